"""The soak's commands: a clear that misses the command which it follows is found."""

from random import Random

import pytest

from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.shared.bucket_life import RECORD
from taipan.broker.cluster.shared.retained import BUCKET
from taipan.broker.cluster.shared.settling import NOBODY, Settled, Settling
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tools.soak.commands import Commands

pytestmark = pytest.mark.asyncio


async def left_after(cluster: ClusterNodes, commands: Commands, most: int) -> list[str]:
    """After the first command that leaves something; the nodes' writes come to NATS late."""
    for node in cluster.nodes:
        cluster.hub.delays[cluster.name(node), ""] = (0.05, 0.05)
    for _ in range(most):
        await commands._command("k/0")
        for node in cluster.nodes.values():
            assert isinstance(node.server.cluster, NatsCluster)
            await node.server.cluster.retained.flush(20.0)
        bucket = cluster.hub.buckets[BUCKET]
        there = any(entry.value is not None and key != RECORD for key, entry in bucket.last.items())
        left = commands.left({"k/0": "a command"} if there else {})
        if left:
            return left
    return []


def commands_of(cluster: ClusterNodes) -> Commands:
    return Commands(Random(1), lambda: [node.address().port for node in cluster.nodes.values()])


async def test_nothing_is_left_where_clears_follow_what_their_clients_have_seen() -> None:
    async with cluster_nodes(2, cluster={"strict_subscribe": True}) as cluster:
        commands = commands_of(cluster)
        assert not await left_after(cluster, commands, 12)
        assert commands.count == 12 and not commands.refused


async def test_what_a_clear_has_missed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with nodes that ask no other before they write a clear."""

    async def nobody(self: Settling, name: str, at: float, *_: object) -> Settled:
        return NOBODY

    monkeypatch.setattr(Settling, "elsewhere", nobody)
    async with cluster_nodes(2, cluster={"strict_subscribe": True}) as cluster:
        assert await left_after(cluster, commands_of(cluster), 40)


async def test_what_is_refused_is_noted() -> None:
    commands = Commands(Random(1), list)
    assert commands._taken(0x10, "one") and not commands._taken(0x97, "two")
    assert commands.refused == ["0x97 for two"]
