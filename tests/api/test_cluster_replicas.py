"""Copies of the nodes' data as an operator sees them: /nodes and Prometheus."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.management.operations.times import milliseconds
from tests.api.test_prometheus import scrape
from tests.support.api import managed_node
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

N1, N2 = "n1@127.0.0.1", "n2@127.0.0.1"
CLUSTER = {"replicas": 1, "suspect_after": 1.5, "stopped_after": 2.0, "failover_after": 30.0, "replica_timeout": 1.0}
STATES = ["absent", "catching_up", "filling", "in_sync", "joining"]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(2, directory=tmp_path, level="disk", managed=True, cluster=CLUSTER) as made:
        await until(lambda: all(states(made, number) == ["in_sync"] for number in range(2)))
        yield made


def states(cluster: ClusterNodes, number: int) -> list[str]:
    server = cluster[number].server
    return [each.state for each in server.cluster.copies_of_data() if each.node == server.settings.node.name]


async def nodes(cluster: ClusterNodes, number: int) -> dict[str, dict[str, Any]]:
    return {each["node"]: each for each in (await cluster.managed_node(number).api.get("/nodes")).data}


async def test_who_has_the_copy(cluster: ClusterNodes) -> None:
    found = await nodes(cluster, 0)
    for name, follower in ((N1, N2), (N2, N1)):
        (copy,) = found[name]["replicas"]
        since = copy.pop("since")
        assert 0 <= time.time() - milliseconds(since) / 1000 < 60
        assert copy == {"follower": follower, "state": "in_sync", "behind_batches": 0, "behind_bytes": 0}
        assert "hosts" not in found[name] and "hosted_by" not in found[name]
    assert (await cluster.managed_node(0).api.get(f"/nodes/{N2}")).data["replicas"][0]["follower"] == N1


async def test_the_copy_of_a_stopped_node(cluster: ClusterNodes) -> None:
    """It is known from the record."""
    await cluster.kill(1)
    await until(lambda: cluster[0].server.cluster.members()[1].status == "Stopped")
    found = (await nodes(cluster, 0))[N2]
    assert found["node_status"] == "Stopped"
    assert found["replicas"] == [
        {"follower": N1, "state": "in_sync", "behind_batches": 0, "behind_bytes": 0, "since": None}
    ]


async def test_gauges(cluster: ClusterNodes) -> None:
    follower = ("follower", N2)
    found = await scrape(cluster.managed_node(0))
    assert found["taipan_replicas_missing"] == {(): 0}
    assert found["taipan_replica_behind_batches"] == {(follower,): 0}
    assert found["taipan_replica_behind_bytes"] == {(follower,): 0}
    assert 0 <= found["taipan_replica_state_seconds"][follower,] < 60
    assert found["taipan_replica_state"] == {(follower, ("state", state)): int(state == "in_sync") for state in STATES}
    publisher = await cluster[0].client("p")
    away = await cluster[0].client("s", expiry=3600)
    await away.subscribe("t", qos=1)
    await away.drop()
    cluster.partition({0}, {1})
    await publisher.send(Publish("t", b"x" * 1000, qos=1, packet_id=1))
    await until(lambda: cluster[0].server.cluster.copies_of_data()[0].bytes > 1000)
    found = await scrape(cluster.managed_node(0))
    assert found["taipan_replica_behind_batches"][follower,] >= 1
    assert found["taipan_replica_behind_bytes"][follower,] > 1000
    assert 0 <= found["taipan_replica_state_seconds"][follower,] < 60
    await until(lambda: "in_sync" not in states(cluster, 0))
    assert (await scrape(cluster.managed_node(0)))["taipan_replicas_missing"] == {(): 1}
    cluster.heal()


async def test_no_gauges_without_copies() -> None:
    async with managed_node() as node:
        assert not [name for name in await scrape(node) if name.startswith("taipan_replica")]
