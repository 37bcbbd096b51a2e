"""Whole nodes in one process: they find each other, one is killed and comes back, the network is cut and heals."""

import asyncio
from pathlib import Path

import pytest

from taipan.broker.core.cluster import RUNNING, STOPPED

from ...support.cluster_nodes import ClusterNodes, cluster_nodes

pytestmark = pytest.mark.asyncio


async def until_status(cluster: ClusterNodes, number: int, other: int, status: str) -> None:
    while True:
        members = {member.name: member.status for member in cluster[number].server.cluster.members()}
        if members.get(cluster.name(other)) == status:
            return
        await asyncio.sleep(0.01)


async def test_a_killed_node_comes_back_with_what_its_disk_has(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={"stopped_after": 1.5}) as cluster:
        subscriber = await cluster[1].client("s", expiry=3600)
        await subscriber.subscribe("t", qos=1)
        await subscriber.drop()
        publisher = await cluster[1].client("p")
        await publisher.publish("t", b"acknowledged", qos=1)
        await cluster.kill(1)
        await until_status(cluster, 0, 1, STOPPED)
        await cluster.start(1)
        await until_status(cluster, 0, 1, RUNNING)
        again = await cluster[1].client("s", expiry=3600, session_present=True)
        await again.expect_publish("t", b"acknowledged", 1)
        await cluster.wait_until_quiet()


async def test_a_partition_is_seen_and_heals(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, cluster={"suspect_after": 1.2, "stopped_after": 1.5}) as cluster:
        cluster.partition({0, 1}, {2})
        await until_status(cluster, 0, 2, STOPPED)
        await until_status(cluster, 2, 0, STOPPED)
        cluster.heal()
        await until_status(cluster, 0, 2, RUNNING)
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()


async def test_each_node_may_have_a_management_server(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, managed=True) as cluster:
        for number in range(2):
            nodes = (await cluster.managed_node(number).api.get("/brokers")).data
            assert cluster.name(number) in {node["node"] for node in nodes}
