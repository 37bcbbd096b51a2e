"""Retained messages in a cluster: the same on all nodes, in one order, whatever fails meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from taipan.broker.cluster.nats.interface import HEADROOM
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.shared import retained
from taipan.broker.cluster.shared.retained import BUCKET, ClusterRetained
from taipan.broker.cluster.shared.unwritten import TABLE
from taipan.broker.cluster.shared.values import UnwrittenRow
from taipan.broker.cluster.wire import thing_key
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL, PUBACK, USER_PROPERTY
from taipan.broker.mqtt.message import Message
from taipan.broker.persistence.log.records import StoredBody
from tests.support.api import ApiClient, assert_refused
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.node import Node
from tests.support.patience import patience
from tests.support.virtual_nats import VirtualNats
from tests.support.wire import Ack, Publish

pytestmark = pytest.mark.asyncio

QUOTA_EXCEEDED = 0x97


def part(node: Node) -> ClusterRetained:
    cluster = node.server.cluster
    assert isinstance(cluster, NatsCluster)
    cluster.retained.write_timeout = 0.5
    return cluster.retained


def payloads(node: Node) -> dict[str, bytes]:
    store = node.server.broker.retained
    found = {}
    for topic in store.topics():
        message = store.get(topic)
        if message is not None and not topic.startswith("$SYS"):
            found[topic] = message.payload
    return found


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.005)


async def until_same(cluster: ClusterNodes, **wanted: bytes) -> None:
    """Until all nodes have just these."""
    await until(lambda: all(payloads(node) == wanted for node in cluster.nodes.values()))


async def retain(node: Node, topic: str, payload: bytes, qos: int = 1, **more: Any) -> None:
    client = await node.client()
    await client.publish(topic, payload, qos=qos, retain=True, **more)
    await client.ping()


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_what_is_retained_on_one_node_is_read_on_another_with_all_that_belongs_to_it(level: str) -> None:
    async with cluster_nodes(2, level=level) as cluster:
        publisher = await cluster[0].client("p")
        properties = {USER_PROPERTY: [("a", "b"), ("a", "c")]}
        await publisher.publish("t", b"x", qos=2, retain=True, properties=properties)
        await until_same(cluster, t=b"x")
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t", qos=2)
        got = await subscriber.expect_publish()
        assert (got.topic, got.payload, got.retain, got.qos) == ("t", b"x", True, 2)
        assert got.properties[USER_PROPERTY] == properties[USER_PROPERTY]
        message = cluster[1].server.broker.retained.get("t")
        assert message is not None and message.publisher is not None
        assert message.publisher.client_id == "p"
        await publisher.publish("t", b"", qos=1, retain=True)
        await until_same(cluster)


async def test_of_two_that_retain_at_once_all_nodes_have_the_same_one() -> None:
    async with cluster_nodes(3) as cluster:
        cluster.hub.delay = (0.0, 0.01)
        for number in range(20):
            await asyncio.gather(*(retain(cluster[each], "t", b"%d %d" % (each, number)) for each in range(3)))
        await until(lambda: not any(part(node).pending for node in cluster.nodes.values()) and cluster.hub.quiet)
        assert payloads(cluster[0]) == payloads(cluster[1]) == payloads(cluster[2])
        assert payloads(cluster[0])["t"].endswith(b" 19")


async def test_subscribe_waits_for_no_nats_and_qos_0_is_given_to_the_others_later() -> None:
    async with cluster_nodes(2) as cluster:
        part(cluster[0])
        await retain(cluster[1], "before", b"x")
        await until_same(cluster, before=b"x")
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: not cluster.clients[0].quorum)
        await retain(cluster[0], "alone", b"y", qos=0)
        client = await cluster[0].client()
        await client.subscribe("#")
        assert {(await client.expect_publish()).topic for _ in range(2)} == {"before", "alone"}
        cluster.heal()
        await until_same(cluster, before=b"x", alone=b"y")


@pytest.mark.interpreted
@pytest.mark.parametrize("version", [4, 5])
async def test_qos_1_is_refused_without_a_quorum_as_on_a_full_disk(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retained, "ELECTION", 0.0)  # there has been none for that long
    async with cluster_nodes(1) as cluster:
        cluster.partition({0}, quorum=None)
        await until(lambda: not cluster.clients[0].quorum)
        client = await cluster[0].client(version=version)
        if version == 5:
            await client.publish("t", b"x", qos=1, retain=True, expect=QUOTA_EXCEEDED)
        else:
            # It cannot be told, so it gets no acknowledgement before the message is taken.
            await client.send(Publish("t", b"x", 1, True, packet_id=7))
            with pytest.raises(AssertionError):
                await client.expect(Ack, timeout=0.3)
        assert payloads(cluster[0]) == {}
        if version == 4:
            cluster.heal()
            await client.expect(Ack, type=PUBACK)
            assert payloads(cluster[0]) == {"t": b"x"}
            return
        await client.publish("t", b"x", qos=1)  # what is not retained goes on


async def test_what_was_retained_last_stays_when_the_partition_ends() -> None:
    async with cluster_nodes(2) as cluster:
        part(cluster[0])
        await retain(cluster[1], "old", b"0")
        await retain(cluster[1], "new", b"0")
        await until_same(cluster, old=b"0", new=b"0")
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: not cluster.clients[0].quorum)
        await retain(cluster[0], "old", b"alone", qos=0)
        cluster[1].clock.shift = 10
        await retain(cluster[1], "old", b"later")
        await retain(cluster[1], "new", b"earlier")
        cluster[0].clock.shift = 20
        await retain(cluster[0], "new", b"alone", qos=0)
        cluster.heal()
        await until_same(cluster, old=b"later", new=b"alone")


async def test_an_acknowledged_message_survives_a_kill_before_nats_has_it() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        cluster.hub.lose_request = 1.0  # NATS hears nothing of it, and nobody knows that yet
        await retain(cluster[0], "t", b"second")
        await retain(cluster[0], "u", b"new")
        await cluster.kill(0)
        cluster.hub.lose_request = 0.0
        assert payloads(cluster[1]) == {"t": b"first"}
        await cluster.start(0)
        await until_same(cluster, t=b"second", u=b"new")


async def test_what_another_retained_while_a_node_was_dead_replaces_what_nats_did_not_have() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        cluster.hub.lose_request = 1.0
        await retain(cluster[0], "t", b"second")
        await cluster.kill(0)
        cluster.hub.lose_request = 0.0
        await retain(cluster[1], "t", b"third")
        await cluster.start(0)
        await until_same(cluster, t=b"third")


async def clear_unheard(node: Node, topic: str) -> None:
    """Until the clear is on this node's disk; its acknowledgement waits for NATS."""
    client = await node.client()
    await client.send(Publish(topic, b"", 1, True, packet_id=1))
    durability = node.server.broker.durability
    assert durability is not None
    commit = durability.commit
    await until(lambda: topic not in payloads(node) and not commit.pending)


async def test_a_clear_that_is_on_disk_survives_a_kill_before_nats_has_it() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        cluster.hub.lose_request = 1.0
        await clear_unheard(cluster[0], "t")
        await cluster.kill(0)
        cluster.hub.lose_request = 0.0
        await cluster.start(0)
        await until_same(cluster)


async def cleared_before(cluster: ClusterNodes, by: int) -> None:
    """Topic t was retained and cleared, and every node knows of it."""
    await retain(cluster[by], "t", b"first")
    await until_same(cluster, t=b"first")
    await retain(cluster[by], "t", b"")
    await until_same(cluster)
    bucket = cluster.hub.buckets[BUCKET]
    nodes = cluster.nodes.values()
    await until(lambda: all(part(node)._last == bucket.revision and not part(node).pending for node in nodes))


async def until_late(node: Node) -> None:
    """Until an attempt to write has had no answer."""
    await until(lambda: any(change.late for change in part(node)._changes.values()))


@pytest.mark.parametrize("by", [0, 1])
async def test_a_deletion_that_was_known_takes_nothing_from_a_message_that_is_written_late(by: int) -> None:
    async with cluster_nodes(2) as cluster:
        await cleared_before(cluster, by)
        cluster.hub.lose_request = 1.0
        await retain(cluster[0], "t", b"second")
        await until_late(cluster[0])
        cluster.hub.lose_request = 0.0
        await until_same(cluster, t=b"second")


@pytest.mark.parametrize("by", [0, 1])
async def test_a_deletion_that_was_known_takes_nothing_from_a_message_that_is_written_after_a_kill(by: int) -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await cleared_before(cluster, by)
        cluster.hub.lose_request = 1.0
        await retain(cluster[0], "t", b"second")
        await cluster.kill(0)
        cluster.hub.lose_request = 0.0
        await cluster.start(0)
        await until(lambda: not part(cluster[0]).pending)
        await until_same(cluster, t=b"second")


@pytest.mark.parametrize("stays", [True, False])
async def test_of_a_message_that_is_written_late_and_a_deletion_that_was_not_known_the_later_one_counts(
    stays: bool,
) -> None:
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        part(cluster[0])
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: not cluster.clients[0].quorum)
        for of, payload in ((1, b""), (0, b"second")) if stays else ((0, b"second"), (1, b"")):
            await retain(cluster[of], "t", payload, qos=0)
            await asyncio.sleep(0.01)
        await until(lambda: payloads(cluster[1]) == {} and not part(cluster[1]).pending)
        await until_late(cluster[0])
        cluster.heal()
        await until(lambda: not part(cluster[0]).pending)
        await until_same(cluster, **({"t": b"second"} if stays else {}))


@pytest.mark.slow
async def test_a_clear_that_is_written_late_takes_nothing_from_a_message_that_is_acknowledged_after_it() -> None:
    """The message finds the deletion in the bucket, which it did not know of."""
    async with cluster_nodes(3, level="disk") as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        cluster.hub.lose_request = 1.0
        await clear_unheard(cluster[0], "t")
        await until_late(cluster[0])
        await retain(cluster[1], "t", b"second")
        await until_late(cluster[1])
        release = asyncio.Event()
        write = cluster.clients[1].write

        async def wait(*arguments: Any) -> int:
            await release.wait()
            return await write(*arguments)

        cluster.clients[1].write = wait  # type: ignore[method-assign]
        cluster.hub.lose_request = 0.0
        await until(lambda: not part(cluster[0]).pending)
        release.set()
        await until_same(cluster, t=b"second")


@pytest.mark.parametrize("last", [b"second", b""])
async def test_a_change_of_before_a_kill_takes_nothing_from_one_of_after_it(last: bytes) -> None:
    """NATS has both, and the disk does not say so."""
    async with cluster_nodes(2, level="disk") as cluster:
        cluster.hub.lose_request = 1.0
        await retain(cluster[0], "t", b"first")
        await until_late(cluster[0])
        store = cluster[0].server.store
        assert store is not None
        log, goes_on = store._log, threading.Event()  # type: ignore[attr-defined]
        append = log.append

        def late(*arguments: Any) -> None:
            goes_on.wait()
            append(*arguments)

        log.append = late
        cluster.hub.lose_request = 0.0
        await until_same(cluster, t=b"first")
        await until(lambda: not part(cluster[0]).pending)
        await retain(cluster[0], "t", last, qos=0)
        wanted = {"t": last} if last else {}
        await until_same(cluster, **wanted)
        await until(lambda: not part(cluster[0]).pending)
        await cluster.kill(0)
        goes_on.set()
        await cluster.start(0)
        await cluster.wait_until_running()
        await until(lambda: part(cluster[0]).joined and not part(cluster[0]).pending)
        await until_same(cluster, **wanted)


async def test_a_later_deletion_counts_that_was_not_known_where_nothing_was_known_of_the_topic() -> None:
    async with cluster_nodes(2) as cluster:
        first, hub, name = part(cluster[0]), cluster.hub, cluster.name(0)
        first.write_timeout = 5.0
        hub.delays[name, ""] = hub.delays["", name] = (0.4, 0.4)
        await retain(cluster[0], "t", b"early")
        await asyncio.sleep(0.05)
        await retain(cluster[1], "t", b"other")
        await until(lambda: hub.buckets[BUCKET].value(thing_key("t")) is not None)
        await retain(cluster[1], "t", b"")
        await until(lambda: not part(cluster[1]).pending)
        await until(lambda: not first.pending)
        hub.delays.clear()
        await until_same(cluster)


async def test_a_delayed_message_is_as_late_as_it_is_retained() -> None:
    async with cluster_nodes(2) as cluster:
        part(cluster[0])
        part(cluster[1])
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        await (await cluster[0].client()).publish("$delayed/5/t", b"late", qos=1, retain=True)
        cluster.partition({0}, {1}, quorum=0)
        await until(lambda: not cluster.clients[1].quorum)
        await retain(cluster[1], "t", b"", qos=0)
        await until_late(cluster[1])
        await asyncio.sleep(0.01)
        await cluster[0].pass_time(6)
        await cluster[1].pass_time(6)
        await until(lambda: payloads(cluster[0]) == {"t": b"late"} and not part(cluster[0]).pending)
        cluster.heal()
        await until(lambda: not part(cluster[1]).pending)
        await until_same(cluster, t=b"late")


@pytest.mark.interpreted
async def test_what_others_have_taken_the_place_of_is_not_remembered_until_it_would_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retained, "_SUPERSEDED", 20)
    async with cluster_nodes(2) as cluster:
        client = await cluster[0].client()
        for number in range(100):
            properties = {MESSAGE_EXPIRY_INTERVAL: 86_400}
            await client.publish("t", b"%d" % number, qos=1, retain=True, properties=properties)
        await until_same(cluster, t=b"99")
        assert all(0 < len(part(node)._expiring) <= 22 for node in cluster.nodes.values())


async def burst(node: Node, count: int, topics: int, name: str = "t", letter: bytes = b"x") -> None:
    """Retain messages without waiting for PUBACKs, then wait for all of them."""
    client = await node.client(f"burst-{name}-{letter.decode()}")
    for number in range(count):
        topic, payload = f"{name}/{number % topics}", letter + b"%d" % number
        await client.send(Publish(topic, payload, 1, True, packet_id=number + 1))
    for number in range(count):
        await client.expect(Ack, type=PUBACK, packet_id=number + 1)


async def test_many_retained_messages_cost_few_round_trips() -> None:
    async with cluster_nodes(2, zone={"receive_maximum": 2000}) as cluster:
        operations: list[str] = []
        cluster.clients[0].on_operation = operations.append
        await burst(cluster[0], 1000, 1000)
        wanted = {f"t/{number}": b"x%d" % number for number in range(1000)}
        await until(lambda: payloads(cluster[1]) == wanted and not part(cluster[0]).pending)
        writes = [each for each in operations if each == f"write {BUCKET}"]
        assert len(writes) < 500, f"{len(writes)} writes of 1000 messages"


@pytest.mark.parametrize("fault", ["lose_request", "lose_answer"])
async def test_a_batch_of_which_nats_loses_some_is_whole_and_in_order_in_the_end(fault: str) -> None:
    async with cluster_nodes(2, zone={"receive_maximum": 2000}) as cluster:
        for node in cluster.nodes.values():
            part(node)
        setattr(cluster.hub, fault, 0.3)
        await burst(cluster[0], 200, 20)
        await burst(cluster[0], 200, 20, letter=b"y")
        setattr(cluster.hub, fault, 0.0)
        await until(lambda: not part(cluster[0]).pending)
        await until_same(cluster, **{f"t/{number}": b"y%d" % (180 + number) for number in range(20)})


def unwritten(node: Node) -> list[list[str]]:
    """The topics in each row of changes that the bucket may not have."""
    durability = node.server.broker.durability
    assert durability is not None
    rows = [value for table, _, value in durability.tables.rows() if table == TABLE]
    return [sorted(each.topic for each in msgspec.msgpack.decode(row, type=UnwrittenRow).topics) for row in rows]


def pending(node: Node) -> list[str]:
    return sorted(change.topic for change in part(node)._changes.values())


async def test_many_changes_that_nats_does_not_have_are_few_rows_and_none_when_it_has_them() -> None:
    async with cluster_nodes(2, level="disk", zone={"receive_maximum": 2000}) as cluster:
        await until(lambda: part(cluster[0]).joined)
        cluster.hub.lose_request = 1.0
        await burst(cluster[0], 300, 300)
        rows = unwritten(cluster[0])
        assert sorted(topic for row in rows for topic in row) == pending(cluster[0])
        assert len(pending(cluster[0])) == 300 and len(rows) < 60, f"{len(rows)} rows"
        cluster.hub.lose_request = 0.0
        await until(lambda: not part(cluster[0]).pending)
        assert unwritten(cluster[0]) == []


async def test_of_a_row_only_what_nats_does_not_have_is_written_after_a_kill() -> None:
    async with cluster_nodes(2, level="disk", zone={"receive_maximum": 2000}) as cluster:
        await until(lambda: part(cluster[0]).joined)
        cluster.hub.lose_request = 0.9
        await burst(cluster[0], 300, 300)
        await until(lambda: part(cluster[0]).pending < 250)
        cluster.hub.lose_request = 1.0
        await until(lambda: sorted(topic for row in unwritten(cluster[0]) for topic in row) == pending(cluster[0]))
        assert 0 < part(cluster[0]).pending < 250
        left = pending(cluster[0])
        durability = cluster[0].server.broker.durability
        assert durability is not None
        await until(lambda: not durability.commit.pending)
        await cluster.kill(0)
        cluster.hub.lose_request = 0.0
        await cluster.start(0)
        assert set(pending(cluster[0])) <= set(left)
        await until_same(cluster, **{f"t/{number}": b"x%d" % number for number in range(300)})
        await until(lambda: not part(cluster[0]).pending)
        assert unwritten(cluster[0]) == []


async def test_two_nodes_that_write_batches_for_the_same_topics_agree() -> None:
    async with cluster_nodes(2, zone={"receive_maximum": 2000}) as cluster:
        cluster.hub.delay = (0.0, 0.02)
        await asyncio.gather(
            *(burst(cluster[number], 300, 30, letter=letter) for number, letter in ((0, b"x"), (1, b"y")))
        )
        await until(lambda: not any(part(node).pending for node in cluster.nodes.values()))
        await until(lambda: payloads(cluster[0]) == payloads(cluster[1]))
        last = cluster.hub.buckets[BUCKET].last
        for topic, payload in payloads(cluster[0]).items():
            value = last[thing_key(topic)].value
            assert value is not None and payload in value


async def test_a_large_message_in_a_batch_is_refused_alone_and_the_others_are_written() -> None:
    async with cluster_nodes(2, zone={"receive_maximum": 2000}) as cluster:
        await burst(cluster[0], 10, 10)
        await until(lambda: not part(cluster[0]).pending)
        cluster.clients[0].max_payload = 2000
        store = cluster[0].server.broker
        store.retaining.take(Message("too large", b"x" * 3000, 1, True))
        assert store.retaining.changes is not None
        store.retaining.changes.changed("too large")
        await burst(cluster[0], 10, 10, letter=b"y")
        await until(lambda: not part(cluster[0]).pending)
        wanted = {f"t/{number}": b"y%d" % number for number in range(10)}
        await until(lambda: payloads(cluster[1]) == wanted)
        assert cluster[0].server.broker.metrics.refusals.snapshot()["cluster_retained_too_large"] == 1


async def test_what_another_node_deletes_as_expired_takes_nothing_from_what_is_retained_after_it() -> None:
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"first", properties={MESSAGE_EXPIRY_INTERVAL: 100})
        await until_same(cluster, t=b"first")
        part(cluster[1])
        cluster.partition({0}, {1}, quorum=0)
        await until(lambda: not cluster.clients[1].quorum)
        await until(lambda: not part(cluster[0]).pending)
        await cluster[0].pass_time(101)
        await until(lambda: cluster.hub.buckets[BUCKET].value(thing_key("t")) is None)
        await cluster[1].pass_time(1)  # else it has the date of the first one
        await retain(cluster[1], "t", b"second", qos=0)
        await until_late(cluster[1])
        cluster.heal()
        await until_same(cluster, t=b"second")


async def test_a_clear_without_an_answer_takes_nothing_from_what_is_retained_after_it() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        hub = cluster.hub
        tell, hub._tell_watches = hub._tell_watches, lambda bucket: None  # type: ignore[method-assign]
        hub.lose_answer = 1.0
        part(cluster[0])
        await clear_unheard(cluster[0], "t")
        await until_late(cluster[0])
        await retain(cluster[0], "t", b"second")
        hub.lose_answer = 0.0
        hub._tell_watches = tell  # type: ignore[method-assign]
        await until(lambda: not part(cluster[0]).pending)
        await until_same(cluster, t=b"second")


async def test_a_clear_that_the_watch_has_not_told_takes_nothing_from_what_is_retained_after_it() -> None:
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"first")
        await until_same(cluster, t=b"first")
        hub = cluster.hub
        tell, hub._tell_watches = hub._tell_watches, lambda bucket: None  # type: ignore[method-assign]
        await retain(cluster[0], "t", b"")
        await until(lambda: not part(cluster[0]).pending)
        hub.lose_request = 1.0
        await retain(cluster[0], "t", b"second")
        await until_late(cluster[0])
        hub.lose_request = 0.0
        hub._tell_watches = tell  # type: ignore[method-assign]
        await until_same(cluster, t=b"second")
        assert not part(cluster[0])._deleted


async def test_what_is_retained_while_the_one_before_is_deleted_as_expired_stays() -> None:
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"first", properties={MESSAGE_EXPIRY_INTERVAL: 100})
        await until_same(cluster, t=b"first")
        publisher = cluster[0].server.broker

        def publish(operation: str) -> None:
            if operation == "write retained":
                cluster.clients[0].on_operation = lambda _: None
                publisher.publish(Message("t", b"second", 1, True))

        cluster.clients[0].on_operation = publish
        await cluster[0].pass_time(101)
        await until(lambda: payloads(cluster[0]) == {"t": b"second"})
        await until_same(cluster, t=b"second")
        await until(lambda: not part(cluster[0]).pending)
        await until_same(cluster, t=b"second")


async def test_what_was_known_of_a_lost_bucket_says_nothing_of_the_new_one() -> None:
    async with cluster_nodes(2) as cluster:
        part(cluster[0])
        for number in range(20):
            await retain(cluster[1], "t", b"%d" % number)
            await until_same(cluster, t=b"%d" % number)
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: not cluster.clients[0].quorum)
        await retain(cluster[0], "t", b"alone", qos=0)
        await until_late(cluster[0])
        bucket = cluster.hub.buckets[BUCKET]
        before = bucket.revision
        cluster.hub.lose_bucket(BUCKET)
        await until(lambda: part(cluster[1]).joined and part(cluster[1]).generation == 2)
        cluster[1].clock.shift = 10
        await retain(cluster[1], "t", b"later")
        await until(lambda: not part(cluster[1]).pending)
        assert bucket.revision < before
        cluster.heal()
        await until(lambda: part(cluster[0]).generation == 2 and not part(cluster[0]).pending)
        await until_same(cluster, t=b"later")


async def test_a_node_that_comes_back_has_what_was_changed_meanwhile() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        for topic in ("stays", "changes", "goes"):
            await retain(cluster[0], topic, b"1")
        await until_same(cluster, stays=b"1", changes=b"1", goes=b"1")
        await cluster.stop(1)
        await retain(cluster[0], "changes", b"2")
        await retain(cluster[0], "goes", b"")
        await retain(cluster[0], "comes", b"1")
        await until(lambda: not part(cluster[0]).pending)
        await cluster.start(1)
        await until_same(cluster, stays=b"1", changes=b"2", comes=b"1")


async def test_a_new_node_takes_what_the_cluster_has() -> None:
    async with cluster_nodes(2) as cluster:
        await cluster.stop(1)
        client = await cluster[0].client()
        for number in range(200):
            await client.publish(f"t/{number}", b"x", qos=1, retain=True)
        await until(lambda: not part(cluster[0]).pending)
        await cluster.start(1)
        assert len(payloads(cluster[1])) == 200


async def test_a_lost_bucket_is_filled_again_while_the_nodes_run() -> None:
    async with cluster_nodes(2) as cluster:
        for topic in ("a", "b", "c"):
            await retain(cluster[0], topic, b"1")
        await retain(cluster[1], "b", b"2")
        await retain(cluster[1], "c", b"")
        await until_same(cluster, a=b"1", b=b"2")
        cluster.hub.lose_bucket(BUCKET)
        await until(lambda: all(part(node).joined and part(node).generation == 2 for node in cluster.nodes.values()))
        await until_same(cluster, a=b"1", b=b"2")
        await retain(cluster[1], "d", b"3")
        await until_same(cluster, a=b"1", b=b"2", d=b"3")


async def test_after_a_loss_a_node_that_was_away_brings_nothing_back() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "stays", b"1")
        await retain(cluster[0], "goes", b"1")
        await until_same(cluster, stays=b"1", goes=b"1")
        await cluster.stop(1)
        await retain(cluster[0], "stays", b"2")
        await retain(cluster[0], "goes", b"")
        await until(lambda: not part(cluster[0]).pending)
        cluster.hub.lose_bucket(BUCKET)
        await until(lambda: part(cluster[0]).joined and part(cluster[0]).generation == 2)
        await cluster.start(1)
        await until_same(cluster, stays=b"2")


async def test_all_nodes_and_nats_are_killed_and_everything_is_there_again() -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "t", b"1")
        await until_same(cluster, t=b"1")
        await retain(cluster[1], "u", b"1")
        await until_same(cluster, t=b"1", u=b"1")
        await cluster.kill(0)
        await cluster.kill(1)
        cluster.hub.lose_bucket(BUCKET)
        await cluster.start(1)
        await cluster.start(0)
        await until_same(cluster, t=b"1", u=b"1")


async def test_what_has_expired_is_gone_everywhere_and_from_the_bucket() -> None:
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"x", properties={MESSAGE_EXPIRY_INTERVAL: 100})
        await until_same(cluster, t=b"x")
        for node in cluster.nodes.values():
            await node.pass_time(101)
        client = await cluster[1].client()
        await client.subscribe("#")
        await client.nothing()
        bucket = cluster.hub.buckets[BUCKET]
        await until(lambda: [entry.value for entry in bucket.last.values()].count(None) == 1)
        await until_same(cluster)


async def test_a_node_that_may_keep_less_says_so_and_keeps_nothing_old() -> None:
    async with cluster_nodes(2) as cluster:
        small = cluster[1].server.broker.retained
        small.resize(0, 5)
        await retain(cluster[0], "t", b"12345")
        await until_same(cluster, t=b"12345")
        await retain(cluster[0], "t", b"123456")
        await until(lambda: payloads(cluster[1]) == {})
        assert cluster[1].server.metrics.refusals.snapshot()["retained_too_large"] == 1
        assert payloads(cluster[0]) == {"t": b"123456"}


BODY = StoredBody("bad", b"x", 1, True, {}, 1.0, None, None, "i")
BAD = {
    "text": b"\x92\x99\xa2\xff\xfe",
    "depth": msgspec.msgpack.encode((BODY, ""))[:-1] + b"\xa0" + b"\x91" * 100_000,
    "property": msgspec.msgpack.encode((replace(BODY, properties={USER_PROPERTY: 5}), "")),
    "qos": msgspec.msgpack.encode((replace(BODY, qos=7), "")),
    "date": msgspec.msgpack.encode((replace(BODY, timestamp=float("nan")), "")),
}


@pytest.mark.parametrize("bad", list(BAD))
async def test_what_cannot_be_a_retained_message_is_passed_over_and_those_after_it_are_taken(bad: str) -> None:
    """By nodes that run, and by one that starts and reads the whole bucket."""
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "a", b"1")
        await until(lambda: not part(cluster[0]).pending)
        start = part(cluster[0])._wire.write(0)[:-1]
        cluster.hub.write(BUCKET, thing_key("bad"), start + BAD[bad], None, "bad")
        await retain(cluster[0], "z", b"1")
        await until_same(cluster, a=b"1", z=b"1")
        await cluster.kill(1)
        await cluster.start(1)
        assert part(cluster[1]).joined and payloads(cluster[1]) == {"a": b"1", "z": b"1"}
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"]
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("#")
        assert {(await subscriber.expect_publish()).topic for _ in range(2)} == {"a", "z"}


LARGE = {"max_packet_size": 1024 * 1024 - 4096}


def retain_too_large(node: Node, topic: str) -> None:
    """As what is there before the node is of a cluster."""
    message = Message(topic, b"x" * (1024 * 1024 - HEADROOM), retain=True)
    node.server.broker.retaining.take(message)
    part(node).changed(topic)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_that_retains_what_is_too_large_for_nats(version: int) -> None:
    """5.0 is told; of a 3.1.1 client's topic nothing is kept on any node. The packet may be that large, the value of
    the bucket is more: it has the long Client Identifier, too."""
    async with cluster_nodes(2, zone=LARGE) as cluster:
        await retain(cluster[0], "t", b"old")
        await until_same(cluster, t=b"old")
        client = await cluster[0].client("p" * 8192, version)
        large = b"x" * (LARGE["max_packet_size"] - 100)
        code = await client.publish("t", large, qos=1, retain=True, expect=None)
        if version == 5:
            assert code == QUOTA_EXCEEDED
            await until_same(cluster, t=b"old")
        else:
            await until_same(cluster)
            assert cluster[0].server.metrics.refusals.snapshot()["retained_too_large"] == 1
        await client.publish("t", large, qos=1)


async def test_what_is_too_large_for_nats_holds_up_nothing_else() -> None:
    """Of 64 that are written at a time each was tried for ever."""
    async with cluster_nodes(2, zone=LARGE) as cluster:
        most = cluster.hub.max_payload
        for number in range(64):
            message = Message(f"t/{number:02}", b"x" * (most - HEADROOM + 1 - number), retain=True)
            message.id = "0" * 24
            cluster[0].server.broker.retaining.take(message)
            part(cluster[0]).changed(message.topic)
        await retain(cluster[0], "fine", b"1")
        await until(lambda: payloads(cluster[1]) == {"fine": b"1"})
        refused = cluster[0].server.metrics.refusals.snapshot()["cluster_retained_too_large"]
        assert refused == 64 and not part(cluster[0]).pending


async def test_what_is_too_large_for_nats_keeps_no_node_from_joining_a_new_bucket_and_stays() -> None:
    async with cluster_nodes(2, zone=LARGE) as cluster:
        await retain(cluster[0], "a", b"1")
        retain_too_large(cluster[0], "large")
        await retain(cluster[0], "z", b"1")
        await until(lambda: payloads(cluster[1]) == {"a": b"1", "z": b"1"} and not part(cluster[0]).pending)
        cluster.hub.lose_bucket(BUCKET)
        await until(lambda: all(part(node).joined and part(node).generation == 2 for node in cluster.nodes.values()))
        assert payloads(cluster[1]) == {"a": b"1", "z": b"1"}
        assert sorted(payloads(cluster[0])) == ["a", "large", "z"]
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_retained_too_large"] == 2


async def test_bounds_that_two_nodes_reach_at_once_leave_them_with_the_same() -> None:
    async with cluster_nodes(2, retained={"max_messages": 10}) as cluster:
        cluster.hub.delay = (0.01, 0.02)
        await asyncio.gather(
            *(retain(cluster[each], f"{each}/{number}", b"x", qos=0) for each in (0, 1) for number in range(10))
        )
        await until(lambda: not any(part(node).pending for node in cluster.nodes.values()) and cluster.hub.quiet)
        assert payloads(cluster[0]) == payloads(cluster[1])
        assert 10 <= len(payloads(cluster[0])) <= 20


async def test_an_operator_deletes_everywhere_and_not_without_a_quorum() -> None:
    async with cluster_nodes(2, managed=True) as cluster:
        api: ApiClient = cluster.managed_node(1).api
        await retain(cluster[0], "a/1", b"x")
        await retain(cluster[0], "b", b"x")
        await until_same(cluster, **{"a/1": b"x", "b": b"x"})
        assert (await api.delete("/retained/a%2F%23")).data == {"count": 1}
        await until_same(cluster, b=b"x")
        cluster.partition({0}, {1}, quorum=None)
        await until(lambda: not cluster.clients[1].quorum)
        assert_refused(await api.delete("/retained/b"), 500, 101, "quorum")
        assert payloads(cluster[1]) == {"b": b"x"}


async def test_what_a_rule_and_the_api_retain_is_retained_everywhere() -> None:
    async with cluster_nodes(2, managed=True) as cluster:
        a = cluster.managed_node(0).api
        republish = {"name": "republish", "params": {"target_topic": "out", "target_retain": True}}
        body = {"rawsql": 'SELECT * FROM "in"', "actions": [republish]}
        assert (await a.post("/rules", body)).code == 0
        publish = {"topic": "in", "payload": "x", "qos": 1, "clientid": "c"}
        assert (await a.post("/mqtt/publish", publish)).code == 0
        assert (await a.post("/mqtt/publish", {**publish, "topic": "api", "retain": True})).code == 0
        await until(lambda: set(payloads(cluster[1])) >= {"api"})


@pytest.mark.parametrize("seed", range(5))
async def test_under_every_fault_all_nodes_end_with_the_same(seed: int) -> None:
    rng = Random(seed)
    hub = VirtualNats(Random(seed), servers=3)
    hub.election = (0.05, 0.2)
    async with cluster_nodes(3, hub=hub) as cluster:
        parts = [part(node) for node in cluster.nodes.values()]
        hub.delay = (0.0, 0.004)
        hub.lose_request = hub.lose_answer = 0.05
        clients = [await cluster[number].client() for number in range(3)]
        for number in range(80):
            fault = rng.randrange(20)
            if fault == 0:
                hub.lose_leader()
            elif fault == 1:
                cluster.partition({0}, {1, 2}, quorum=1)
            elif fault == 2:
                cluster.heal()
            payload = b"" if rng.randrange(4) == 0 else b"%d" % number
            await rng.choice(clients).publish(f"t/{rng.randrange(5)}", payload, qos=0, retain=True)
            await asyncio.sleep(0.002)
        cluster.heal()
        hub.lose_request = hub.lose_answer = 0.0
        await until(lambda: not any(each.pending for each in parts) and hub.quiet)
        bucket = hub.buckets[BUCKET]
        await until(lambda: all(each._last == bucket.revision for each in parts))
        assert payloads(cluster[0]) == payloads(cluster[1]) == payloads(cluster[2])
