"""Exclusive subscriptions across nodes: of all clients of the cluster, one at a time has each."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.core.cluster import STOPPED
from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter
from taipan.broker.session.subscription import Subscription
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.patience import patience
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio

FILTER = "$exclusive/t"
TAKEN = 0x97
STORED: dict[str, Any] = {"properties": {0x11: 3600}}


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def nodes(count: int = 2, **options: Any) -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(count, zone={"exclusive_subscription": True}, **options) as cluster:
        yield cluster


def holders(cluster: ClusterNodes) -> set[str]:
    """Return whom the nodes take for the client that has the filter; empty: for nobody."""
    return {node.server.broker.exclusive.holder("t") for node in cluster.nodes.values()}


async def until_subscribed(client: Peer) -> None:
    """Subscribe as soon as no other client has the filter."""
    async with asyncio.timeout(patience(40)):
        while True:
            try:
                await client.subscribe(FILTER)
                return
            except AssertionError:
                await asyncio.sleep(0.02)


async def test_a_client_of_another_node_is_refused_until_the_first_unsubscribes() -> None:
    async with nodes() as cluster:
        first, second = await cluster[0].client("first"), await cluster[1].client("second", version=4)
        await first.subscribe(FILTER)
        await until(lambda: holders(cluster) == {"first"})
        await second.subscribe(FILTER, expect=[0x80])
        await first.unsubscribe(FILTER)
        await until(lambda: holders(cluster) == {""})
        await second.subscribe(FILTER)
        await first.publish("t", b"x")
        await second.expect_publish("t", b"x")
        await first.subscribe(FILTER, expect=[TAKEN])


async def test_of_clients_that_subscribe_at_once_on_all_nodes_one_is_granted() -> None:
    async with nodes(3) as cluster:
        clients = [await cluster[number % 3].client(f"c{number}") for number in range(6)]
        for _ in range(5):
            granted: list[Peer] = []

            async def ask(client: Peer, granted: list[Peer] = granted) -> None:
                await client.send(Subscribe(client.next_packet_id(), [TopicFilter(FILTER, 0)]))
                (code,) = (await client.answer(Suback)).reason_codes
                assert code in (0, TAKEN)
                if code == 0:
                    granted.append(client)

            await asyncio.gather(*map(ask, clients))
            assert len(granted) == 1
            await granted[0].unsubscribe(FILTER)
            await until(lambda: holders(cluster) == {""})


async def test_a_session_that_moves_keeps_it(tmp_path: Path) -> None:
    async with nodes(directory=tmp_path, level="disk") as cluster:
        first = await cluster[0].client("first", clean_start=True, **STORED)
        await first.subscribe(FILTER, qos=1)
        second = await cluster[1].client("second")
        moved = await cluster[1].client("first", clean_start=False, **STORED)
        assert moved.connack is not None and moved.connack.session_present
        await second.subscribe(FILTER, expect=[TAKEN])
        await moved.subscribe(FILTER, qos=1)
        await second.publish("t", b"x", 1)
        await moved.expect_publish("t", b"x", 1)
        other = await cluster[0].client("other")
        await other.subscribe(FILTER, expect=[TAKEN])
        await moved.unsubscribe(FILTER)
        await until(lambda: holders(cluster) == {""})
        await other.subscribe(FILTER)


@pytest.mark.parametrize("stored", [False, True])
async def test_the_same_client_has_it_again_after_a_clean_start_elsewhere(stored: bool) -> None:
    async with nodes() as cluster:
        options = STORED if stored else {}
        first = await cluster[0].client("first", clean_start=True, **options)
        await first.subscribe(FILTER)
        again = await cluster[1].client("first", clean_start=True, **options)
        await until_subscribed(again)
        await until(lambda: holders(cluster) == {"first"})
        other = await cluster[0].client("other")
        await other.subscribe(FILTER, expect=[TAKEN])


async def test_without_a_quorum_nobody_gets_it() -> None:
    async with nodes(cluster={"isolated": "serve_local"}) as cluster:
        first, second = await cluster[0].client("first"), await cluster[1].client("second")
        cluster.partition({0}, {1}, quorum=None)
        await first.subscribe(FILTER, expect=[TAKEN])
        await second.subscribe(FILTER, expect=[TAKEN])
        refusals = cluster[0].server.metrics.refusals.snapshot()
        assert refusals["subscribe_quota_exceeded"] == 1
        cluster.heal()
        await until_subscribed(first)
        assert holders(cluster) <= {"first", ""}


async def test_a_node_that_is_killed_frees_what_ends_with_its_connections(tmp_path: Path) -> None:
    async with nodes(3, directory=tmp_path, level="disk", cluster={"stopped_after": 2.0}) as cluster:
        brief = await cluster[0].client("brief")
        await brief.subscribe(FILTER)
        stored = await cluster[0].client("stored", clean_start=True, **STORED)
        await stored.subscribe("$exclusive/stored")
        other = await cluster[1].client("other")
        await until(lambda: holders(cluster) == {"brief"})
        await cluster.kill(0)
        await until_subscribed(other)
        await other.subscribe("$exclusive/stored", expect=[TAKEN])
        await cluster.start(0)
        await cluster.wait_until_running()
        await other.subscribe("$exclusive/stored", expect=[TAKEN])
        again = await cluster[0].client("stored", clean_start=False, **STORED)
        await other.publish("stored", b"x")
        await again.expect_publish("stored", b"x")


async def test_what_a_removed_node_had_is_free(tmp_path: Path) -> None:
    async with nodes(3, directory=tmp_path, level="disk", cluster={"stopped_after": 2.0}) as cluster:
        stored = await cluster[0].client("stored", clean_start=True, **STORED)
        await stored.subscribe(FILTER)
        other = await cluster[1].client("other")
        await cluster.kill(0)
        await other.subscribe(FILTER, expect=[TAKEN])
        gone = ClusterNodes.name(0)

        def stopped() -> bool:
            return any(each.name == gone and each.status == STOPPED for each in cluster[1].server.cluster.members())

        await until(stopped)
        await cluster[1].server.cluster.force_leave(gone)
        await until_subscribed(other)


async def test_a_session_that_comes_with_what_another_client_has_loses_it() -> None:
    """The nodes have disagreed, and the first node has not compared its sessions with the rows yet."""
    async with nodes() as cluster:
        first = await cluster[0].client("first", clean_start=True, **STORED)
        second = await cluster[1].client("second")
        await second.subscribe(FILTER)
        await until(lambda: holders(cluster) == {"second"})
        broker = cluster[0].server.broker
        session = broker.sessions.get("first")
        assert session is not None
        broker.subscribe(session, Subscription(session, FILTER, 0, topic_filter="t"))
        await first.disconnect()
        first = await cluster[1].client("first", clean_start=False, **STORED)
        await until(lambda: cluster[1].server.metrics.refusals.snapshot().get("exclusive_subscription_lost"))
        await second.publish("t", b"x")
        await second.expect_publish("t", b"x")
        await first.nothing()
        await first.subscribe(FILTER, expect=[TAKEN])
        await second.unsubscribe(FILTER)
        await until(lambda: holders(cluster) == {""})
        await first.subscribe(FILTER)


async def test_after_a_partition_the_row_decides() -> None:
    async with nodes(3, cluster={"stopped_after": 2.0, "isolated": "serve_local"}) as cluster:
        first = await cluster[0].client("first")
        await first.subscribe(FILTER)
        second = await cluster[1].client("second")
        await until(lambda: holders(cluster) == {"first"})
        cluster.partition({0}, {1, 2}, quorum=1)
        await until_subscribed(second)
        cluster.heal()
        await until(lambda: "t" not in cluster[0].server.broker.exclusive.holders)
        assert cluster[0].server.metrics.refusals.snapshot()["exclusive_subscription_lost"] == 1
        await until(lambda: holders(cluster) == {"second"})
        await cluster[2].server.cluster.subscribed("second", ["t"])
        await second.publish("t", b"x")
        await second.expect_publish("t", b"x")
        await first.nothing()
