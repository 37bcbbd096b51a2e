"""Nodes with copies of each other that lose their disks at once wait for each other until an operator ends that."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

QUICK: dict[str, object] = {
    "suspect_after": 1.5,
    "stopped_after": 2.0,
    "failover_after": 2.0,
    "replicas": 1,
    "replica_timeout": 1.0,
}


def is_copied(cluster: ClusterNodes, number: int) -> bool:
    shipping = cluster.part(number).shipping
    return shipping is not None and shipping.core.copies == 1


async def test_nodes_start_when_the_records_of_lost_copies_are_deleted(tmp_path: Path) -> None:
    expected = ("replicas_trouble", "waits_for_own_copy", "node_replaced")
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK, expected=expected) as cluster:
        await until(lambda: is_copied(cluster, 0) and is_copied(cluster, 1))
        for number in range(2):
            await cluster.kill(number)
        for number in range(2):
            await asyncio.to_thread(shutil.rmtree, cluster._data_dir(number))
        starting = [asyncio.ensure_future(cluster.start(number)) for number in range(2)]
        done, _ = await asyncio.wait(starting, timeout=4.0)
        assert not done
        cluster.hub.lose_bucket("replicas")
        await asyncio.gather(*starting)
        await until(lambda: is_copied(cluster, 0) and is_copied(cluster, 1))
        client = await cluster[0].client("s", expiry=3600)
        await client.subscribe("t", qos=1)
        publisher = await cluster[1].client("p")
        await publisher.publish("t", b"m", qos=1)
        await client.expect_publish("t", b"m", 1)
