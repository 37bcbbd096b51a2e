"""A session moves between nodes with all that it has: over real sockets, each node with a store of its own."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.cluster.moving import fetching
from taipan.broker.cluster.moving.outgoing import FETCH, PREPARE, Outgoing
from taipan.broker.cluster.moving.session_transfer import NOT_OURS, Prepared
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.core.cluster import STOPPED
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Connect, TopicFilter, Will
from taipan.broker.persistence.paging import Paging
from taipan.broker.session.session import Session
from tests.support.patience import patience
from tests.support.peer import TIMEOUT, Peer
from tests.support.wire import Ack, Publish

from ...support.cluster_nodes import ClusterNodes, Node, cluster_nodes

pytestmark = pytest.mark.asyncio

versions = pytest.mark.parametrize("version", [4, 5])


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(2, directory=tmp_path, level="disk") as nodes:
        yield nodes


async def until(what: object, holds: bool = True) -> None:
    """Until what is called gives that."""
    assert callable(what)
    async with asyncio.timeout(patience(TIMEOUT)):
        while bool(what()) is not holds:
            await asyncio.sleep(0.005)


def has(cluster: ClusterNodes, number: int, client_id: str) -> bool:
    return client_id in cluster[number].server.broker.sessions


async def until_moved(cluster: ClusterNodes, client_id: str, origin: int = 0, target: int = 1) -> None:
    """Until nothing of a session is left where it was."""
    await until(lambda: not has(cluster, origin, client_id) and has(cluster, target, client_id))
    internal = cluster[target].server.broker.sessions.internal
    await until(lambda: not [each for each in internal if "staging" in each])


async def received(peer: Peer, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    return [(await peer.expect_publish()).payload for _ in range(count)]


async def page_out(node: Node, session: Session) -> None:
    """Until no body of this session's queue is in memory."""
    durability = node.server.broker.durability
    assert durability is not None
    paging = durability.paging
    paging.bound = 1

    def is_out() -> bool:
        paging.evict()
        return all(each.message.paged for each in session.queue or ())

    await until(is_out)


@versions
async def test_an_offline_session_moves_with_its_queue(cluster: ClusterNodes, version: int) -> None:
    old = await cluster[0].client("s", version, expiry=3600)
    await old.subscribe("a/+", qos=2)
    await old.subscribe("b", qos=1)
    await old.drop()
    publisher = await cluster[0].client("p")
    for number in range(10):
        await publisher.publish(f"a/{number}", b"%d" % number, qos=number % 3)
    await publisher.publish("b", b"last", qos=2)
    new = await cluster[1].client("s", version, expiry=3600, session_present=True)
    expected = [b"%d" % number for number in range(10) if number % 3] + [b"last"]
    assert await received(new, len(expected)) == expected
    await until_moved(cluster, "s")
    await new.nothing()
    await publisher.publish("a/x", b"after", qos=1)
    await new.expect_publish("a/x", b"after", 1)
    near = await cluster[1].client("near")
    await near.publish("b", b"near", qos=1)
    await new.expect_publish("b", b"near", 1)


@versions
async def test_a_connected_client_is_sent_away_when_it_connects_to_another_node(
    cluster: ClusterNodes, version: int
) -> None:
    """[MQTT-3.1.4-3] holds for all nodes."""
    old = await cluster[0].client("s", version, expiry=3600)
    await old.subscribe("t", qos=1)
    new = await cluster[1].client("s", version, expiry=3600, session_present=True)
    await old.expect_disconnect(0x8E)
    publisher = await cluster[0].client("p")
    await publisher.publish("t", b"1", qos=1)
    await new.expect_publish("t", b"1", 1)
    await until_moved(cluster, "s")
    again = await cluster[0].client("s", version, expiry=3600, session_present=True)
    await new.expect_disconnect(0x8E)
    await publisher.publish("t", b"2", qos=1)
    await again.expect_publish("t", b"2", 1)
    await until_moved(cluster, "s", 1, 0)


@versions
async def test_what_is_in_flight_goes_on_with_its_packet_identifiers(cluster: ClusterNodes, version: int) -> None:
    """QoS 1 and 2 unacknowledged are sent again, a PUBREL is repeated, a QoS 2 message of the client's own is known
    [MQTT-4.4.0-1]."""
    publisher = await cluster[0].client("p")
    old = await cluster[0].client("s", version, expiry=3600)
    await old.subscribe("t", qos=2)
    await old.subscribe("own", qos=0)
    for number in range(3):
        await publisher.publish("t", b"%d" % number, qos=1 if number == 0 else 2)
    first = await old.expect(Publish, payload=b"0")
    second = await old.expect(Publish, payload=b"1")
    third = await old.expect(Publish, payload=b"2")
    await old.pubrec(third.packet_id)
    await old.expect(Ack, type=c.PUBREL, packet_id=third.packet_id)
    await old.send(Publish("own", b"once", 2, packet_id=77))
    await old.answer(Ack, type=c.PUBREC, packet_id=77)
    await old.answer(Publish, payload=b"once")
    await old.drop()
    new = await cluster[1].client("s", version, expiry=3600, session_present=True)
    again = await new.expect(Publish, payload=b"0", packet_id=first.packet_id, dup=True)
    await new.puback(again.packet_id)
    again = await new.expect(Publish, payload=b"1", packet_id=second.packet_id, dup=True, qos=2)
    await new.expect(Ack, type=c.PUBREL, packet_id=third.packet_id)
    await new.pubcomp(third.packet_id)
    await new.pubrec(again.packet_id)
    await new.expect(Ack, type=c.PUBREL, packet_id=again.packet_id)
    await new.pubcomp(again.packet_id)
    await new.send(Publish("own", b"once", 2, dup=True, packet_id=77))
    await new.expect(Ack, type=c.PUBREC, packet_id=77)
    await new.pubrel(77)
    await new.expect(Ack, type=c.PUBCOMP, packet_id=77)
    await new.nothing()
    await until_moved(cluster, "s")


@versions
async def test_retained_messages_that_were_not_all_sent_come_on_the_other_node(
    cluster: ClusterNodes, version: int
) -> None:
    count = 100
    publisher = await cluster[0].client("p")
    for number in range(count):
        await publisher.publish(f"r/{number}", b"%d" % number, qos=1, retain=True)
    slow = await cluster[0].client("s", version, expiry=60)
    await slow.subscribe("r/#", qos=1)
    session = cluster[0].server.broker.sessions.get("s")
    assert session is not None
    await until(lambda: session.inflight)
    assert session.replays is not None
    await slow.drop()
    retained = cluster[1].server.broker.retained
    await until(lambda: len(retained) == count)
    back = await cluster[1].client("s", version, expiry=60, session_present=True)
    seen = set()
    while len(seen) < count:
        message = await back.expect_publish()
        assert message.retain
        seen.add(message.payload)


@versions
async def test_retained_messages_of_two_subscribes_come_twice_on_the_other_node(
    cluster: ClusterNodes, version: int
) -> None:
    """[MQTT-3.8.4-4, -5]: what of both is left when the session moves comes as often."""
    publisher = await cluster[0].client("p")
    count = 100
    for number in range(count):
        await publisher.publish(f"r/{number}", b"%d" % number, qos=1, retain=True)
    slow = await cluster[0].client("s", version, expiry=60)
    await slow.subscribe(TopicFilter("r/#", 1), TopicFilter("r/#", 1))
    session = cluster[0].server.broker.sessions.get("s")
    assert session is not None
    await until(lambda: session.inflight)
    assert session.replays is not None and session.replays.filters() == ["r/#", "r/#"]
    await slow.drop()
    await until(lambda: len(cluster[1].server.broker.retained) == count)
    back = await cluster[1].client("s", version, expiry=60, session_present=True)
    seen: Counter[bytes] = Counter()
    while len(seen) < count or min(seen.values()) < 2:
        seen[(await back.expect_publish(retain=True)).payload] += 1


async def test_a_delayed_will_stays_unpublished_when_the_client_is_back_elsewhere(cluster: ClusterNodes) -> None:
    """[MQTT-3.1.3-9]"""
    watcher = await cluster[0].client("w")
    await watcher.subscribe("will")
    will = Will("will", b"dead", properties={c.WILL_DELAY_INTERVAL: 5})
    old = await cluster[0].client("s", expiry=3600, will=will)
    await old.drop()
    await until(lambda: cluster[0].server.broker.sessions.get("s").connected, False)  # type: ignore[union-attr]
    await cluster[1].client("s", expiry=3600, session_present=True)
    await until_moved(cluster, "s")
    await cluster[0].pass_time(10)
    await cluster[1].pass_time(10)
    await watcher.nothing()


async def test_clean_start_ends_the_session_on_the_other_node(cluster: ClusterNodes) -> None:
    old = await cluster[0].client("s", expiry=3600)
    await old.subscribe("t", qos=1)
    new = await cluster[1].client("s", clean_start=True, properties={c.SESSION_EXPIRY_INTERVAL: 60})
    assert not new.connack.session_present
    await old.expect_disconnect(0x8E)
    assert not has(cluster, 0, "s")
    assert cluster[0].server.metrics.session_discarded == 1
    await until(lambda: cluster[0].server.cluster.node_of("s") == cluster.name(1))


async def test_a_question_that_comes_late_takes_no_session_that_has_been_elsewhere_since(cluster: ClusterNodes) -> None:
    """Its client has been there meanwhile, and is back."""
    late: list[bytes] = []
    far = cluster[1].server.cluster
    assert isinstance(far, NatsCluster)
    calls = far.calls
    call = calls.call

    async def keep(node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        if method == PREPARE:
            late.append(argument)
        return await call(node, method, argument, timeout)

    calls.call = keep  # type: ignore[method-assign]
    await cluster[0].leave_session("s", "t", qos=1)
    await cluster[1].client("s", expiry=60, session_present=True)
    await until_moved(cluster, "s")
    client = await cluster[0].client("s", expiry=60, session_present=True)
    await until_moved(cluster, "s", 1, 0)
    calls.call = call  # type: ignore[method-assign]
    answer = await calls.call(cluster.name(0), PREPARE, late[0])
    assert calls.decoded(cluster.name(0), answer, Prepared).state == NOT_OURS
    assert has(cluster, 0, "s")
    await client.nothing()


async def test_clean_start_that_comes_late_ends_no_session_that_its_client_has_back(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has gone to the node that has its session, before that one is asked by the other."""
    await cluster[0].leave_session("s", "t", qos=1)
    asked, goes_on = asyncio.Event(), asyncio.Event()
    prepare = Outgoing._prepare

    async def late(self: Outgoing, node: str, argument: bytes) -> bytes:
        asked.set()
        await goes_on.wait()
        return await prepare(self, node, argument)

    owner, far = cluster[0].server.cluster, cluster[1].server.cluster
    assert isinstance(owner, NatsCluster) and isinstance(far, NatsCluster)
    monkeypatch.setitem(owner.calls._handlers, PREPARE, late.__get__(owner.handover.outgoing))
    gone = await cluster[1].peer().open()
    await gone.send(Connect(5, "s", properties={c.SESSION_EXPIRY_INTERVAL: 60}))
    await asked.wait()
    gone.abort()
    client = await cluster[0].client("s", expiry=60, session_present=True)
    goes_on.set()
    await until(lambda: not far.session_keys.busy("s"))
    await client.publish("t", b"1", qos=1)
    await client.expect_publish("t", b"1", 1)


@versions
async def test_two_clients_without_a_session_that_stays(cluster: ClusterNodes, version: int) -> None:
    old = await cluster[0].client("s", version)
    new = await cluster[1].client("s", version)
    await old.expect_disconnect(0x8E)
    await new.nothing()


@versions
async def test_of_two_at_once_one_stays(cluster: ClusterNodes, version: int) -> None:
    for expiry in (0, 3600):
        peers = [cluster[number % 2].peer(version) for number in range(6)]
        connecting = (
            peer.connect(f"s{expiry}", not expiry, properties={c.SESSION_EXPIRY_INTERVAL: expiry}) for peer in peers
        )
        # Some are sent away before they are answered.
        results = await asyncio.gather(*connecting, return_exceptions=True)
        assert not all(isinstance(each, BaseException) for each in results)

        def connected(client_id: str = f"s{expiry}") -> int:
            return sum(client_id in cluster[number].server.context.channels for number in range(2))

        await until(lambda: connected() == 1)
        await cluster.wait_until_quiet()
        assert connected() == 1


async def test_a_thousand_queued_messages_come_in_order(cluster: ClusterNodes) -> None:
    await cluster[0].leave_session("s", "t", qos=1)
    publisher = await cluster[0].client("p")
    for start in range(0, 1000, 20):
        for number in range(start, start + 20):
            await publisher.send(Publish("t", b"%d" % number, 1, packet_id=number + 1))
        for number in range(start, start + 20):
            await publisher.answer(Ack, type=c.PUBACK, packet_id=number + 1)
    new = await cluster[1].client("s", 4, clean_start=False, session_present=True)
    assert await received(new, 1000) == [b"%d" % number for number in range(1000)]
    await until_moved(cluster, "s")
    await new.nothing()


async def test_what_came_while_the_queue_was_fetched_stays_behind_it_after_a_restart(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publishers = [await cluster[number].client(f"p{number}") for number in range(2)]
        await publishers[0].publish("t", b"1", qos=1)
        cluster.hub.delays[cluster.name(1), cluster.name(0)] = (0.3, 0.3)
        await (await cluster[1].client("s", expiry=60, session_present=True)).drop()
        await publishers[1].publish("t", b"2", qos=1)
        assert has(cluster, 0, "s")
        cluster.hub.delays.clear()
        await until_moved(cluster, "s")
        await cluster.kill(1)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        assert await received(client, 2) == [b"1", b"2"]


async def begin_to_move(cluster: ClusterNodes, queued: list[bytes]) -> list[Peer]:
    """A session with this queue is to come to the second node, which hears late of the first one. A client at each."""
    await cluster[0].leave_session("s", "t", qos=1)
    publishers = [await cluster[number].client(f"p{number}") for number in range(2)]
    for payload in queued:
        await publishers[0].publish("t", payload, qos=1)
    cluster.hub.delays[cluster.name(1), cluster.name(0)] = (0.3, 0.3)
    await (await cluster[1].client("s", expiry=60, session_present=True)).drop()
    return publishers


async def test_what_waited_on_disk_only_stays_behind_the_queue_after_a_restart(tmp_path: Path) -> None:
    numbers = [b"%d" % number for number in range(12)]
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        publishers = await begin_to_move(cluster, numbers[:6])
        for number in numbers[6:]:
            await publishers[1].publish("t", number, qos=1)
        waiting = cluster[1].server.broker.sessions.internal["\0staging:s"]
        assert len(waiting.queue or ()) == 6
        await page_out(cluster[1], waiting)
        assert has(cluster, 0, "s")
        cluster.hub.delays.clear()
        await until_moved(cluster, "s")
        await cluster.kill(1)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        assert await received(client, 12) == numbers
        await client.nothing()


async def test_what_comes_while_that_is_read_stays_behind_it_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fast as it is read, and it leaves memory at once."""
    numbers = [b"%d" % number for number in range(32)]
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        publishers = await begin_to_move(cluster, numbers[:6])
        for number in numbers[6:12]:
            await publishers[1].publish("t", number, qos=1)
        waiting = cluster[1].server.broker.sessions.internal["\0staging:s"]
        await page_out(cluster[1], waiting)
        to_come = numbers[12:]
        here = cluster[1].server.cluster
        durability = cluster[1].server.broker.durability
        assert durability is not None and isinstance(here, NatsCluster)
        here.context.piece_messages = 2
        load = durability.paging.load

        async def load_while_more_comes(*arguments: Any) -> None:
            for _ in range(2):
                if to_come:
                    await publishers[1].publish("t", to_come.pop(0), qos=1)
            await page_out(cluster[1], waiting)
            await load(*arguments)

        monkeypatch.setattr(Paging, "load", lambda _, *arguments: load_while_more_comes(*arguments))
        cluster.hub.delays.clear()
        await until_moved(cluster, "s")
        monkeypatch.undo()
        assert not to_come
        await cluster.kill(1)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        assert await received(client, len(numbers)) == numbers
        await client.nothing()


async def test_a_queue_moves_from_a_disk_on_which_a_piece_takes_longer_than_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each repeated question is answered too late, as the first one was. The Message Expiry Interval runs on
    while the messages wait for the next question."""
    call_timeout = patience(0.5)
    table = {"call_timeout": call_timeout}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=table) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[0].client("p")
        for number in range(6):
            properties = {c.MESSAGE_EXPIRY_INTERVAL: 1000}
            await publisher.publish("t", b"%d" % number, qos=1, properties=properties)
        session = cluster[0].server.broker.sessions.get("s")
        assert session is not None
        await page_out(cluster[0], session)
        load = Paging.load
        durability = cluster[0].server.broker.durability
        assert durability is not None
        slow = durability.paging

        async def load_slowly(self: Paging, wanted: Any, *then: Any) -> None:
            found = list(wanted)
            if self is slow and then and found:
                await asyncio.sleep(1.5 * call_timeout)
                cluster[0].clock.shift += 100
                cluster[1].clock.shift += 100
                slow.evict()
            await load(self, found, *then)

        monkeypatch.setattr(Paging, "load", load_slowly)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        got = [await client.expect_publish() for _ in range(6)]
        assert [each.payload for each in got] == [b"%d" % number for number in range(6)]
        assert all(each.properties[c.MESSAGE_EXPIRY_INTERVAL] in range(880, 901) for each in got)
        await until_moved(cluster, "s")


async def test_new_messages_that_are_dropped_while_others_are_read_hold_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is as much as may: whenever it is read, the first of it is dropped for a new one."""
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[1].client("p")
        cluster.hub.delays[cluster.name(1), cluster.name(0)] = (0.3, 0.3)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        for number in range(6):
            await publisher.publish("t", b"%d" % number, qos=1)
        waiting = cluster[1].server.broker.sessions.internal["\0staging:s"]
        assert waiting.queue is not None
        waiting.queue._max_messages = 6
        await page_out(cluster[1], waiting)
        here = cluster[1].server.cluster
        durability = cluster[1].server.broker.durability
        assert durability is not None and isinstance(here, NatsCluster)
        here.context.piece_messages = 2
        load = durability.paging.load
        loads = 0

        async def load_while_more_comes(*arguments: Any) -> None:
            nonlocal loads
            loads += 1
            if loads < 100:
                await publisher.publish("t", b"more %d" % loads, qos=1)
            await load(*arguments)

        monkeypatch.setattr(Paging, "load", lambda _, *arguments: load_while_more_comes(*arguments))
        cluster.hub.delays.clear()
        await until_moved(cluster, "s")
        assert loads < 20
        assert (await client.expect_publish()).payload == b"1"


async def test_qos_0_of_a_piece_does_not_come_twice_where_the_node_dies_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has it, and the disk does not know."""
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        client = await cluster[0].client("s", expiry=60)
        await client.subscribe("t", qos=1)
        publisher = await cluster[0].client("p")
        here = cluster[1].server.cluster
        assert isinstance(here, NatsCluster)
        store = cluster[1].server.store
        assert store is not None
        log = store._log
        append, goes_on = log.append, threading.Event()

        def append_later(*arguments: Any) -> None:
            goes_on.wait(TIMEOUT)
            append(*arguments)

        def on_step(step: str) -> None:
            if step == "piece_taken":
                monkeypatch.setattr(log, "append", append_later)

        here.handover.step = on_step
        cluster.hub.delays[cluster.name(1), cluster.name(0)] = (0.1, 0.1)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await publisher.publish("t", b"0", qos=0)
        await publisher.publish("t", b"1", qos=1)
        cluster.hub.delays.clear()
        assert (await client.expect_publish()).payload == b"0"
        await cluster.kill(1)
        goes_on.set()
        cluster.hub.delays[cluster.name(0), cluster.name(1)] = (0.3, 0.3)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        cluster.hub.delays.clear()
        assert (await client.expect_publish()).payload == b"1"
        await client.nothing()


async def test_a_takeover_asked_for_before_the_node_died_does_not_take_what_came_after(tmp_path: Path) -> None:
    """Its client is there again, with messages in flight that the other node does not know of."""
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        there = cluster[1].server.cluster
        assert isinstance(there, NatsCluster)
        take, writes, goes_on = there.session_keys.take, asyncio.Event(), asyncio.Event()

        async def take_later(*arguments: Any) -> bool:
            writes.set()
            await goes_on.wait()
            return await take(*arguments)

        there.session_keys.take = take_later  # type: ignore[assignment, method-assign]
        elsewhere = asyncio.create_task(cluster[1].client("s", expiry=60, session_present=True))
        await writes.wait()
        await cluster.kill(0)
        await cluster.start(0)
        client = await cluster[0].client("s", expiry=60, session_present=True)
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        await publisher.publish("t", b"2", qos=2)
        assert [(await client.expect(Publish)).payload for _ in range(2)] == [b"1", b"2"]
        goes_on.set()
        client = await elsewhere
        assert await received(client, 2) == [b"1", b"2"]
        await until_moved(cluster, "s")
        await client.nothing()


@pytest.mark.parametrize("qos", [1, 2])
async def test_nothing_is_lost_or_comes_twice_while_messages_arrive(cluster: ClusterNodes, qos: int) -> None:
    publishers = [await cluster[number].client(f"p{number}") for number in range(2)]
    watcher = await cluster[1].client("same")
    await watcher.subscribe("t/#", qos=qos)
    subscriber = await cluster[0].client("s", expiry=3600)
    await subscriber.subscribe("t/#", qos=qos)
    count = 150
    got: list[bytes] = []
    unreleased: set[int] = set()  # of the client's Session State [MQTT-4.3.3-10]

    async def publish(publisher: Peer) -> None:
        for number in range(count):
            await publisher.publish(f"t/{publisher.client_id}", b"%s %d" % (publisher.client_id.encode(), number), qos)

    async def read(peer: Peer) -> None:
        while True:
            packet = await peer.receive()
            if isinstance(packet, Publish):
                if packet.qos == 2:
                    if packet.packet_id not in unreleased:
                        got.append(packet.payload)
                    unreleased.add(packet.packet_id)
                    await peer.pubrec(packet.packet_id)
                else:
                    if not packet.dup or packet.payload not in got:
                        got.append(packet.payload)
                    await peer.puback(packet.packet_id)
            elif isinstance(packet, Ack) and packet.type == c.PUBREL:
                unreleased.discard(packet.packet_id)
                await peer.pubcomp(packet.packet_id)

    async def move() -> None:
        peer, at = subscriber, 0
        while True:
            reading = asyncio.ensure_future(read(peer))
            await asyncio.sleep(0.05)
            at = 1 - at
            new = cluster[at].peer()
            await new.connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 3600}, session_present=True)
            await asyncio.wait([reading])
            reading.exception()
            peer = new
            if len(set(got)) >= 2 * count:
                return

    moving = asyncio.ensure_future(move())
    await asyncio.gather(*(publish(publisher) for publisher in publishers))
    async with asyncio.timeout(patience(40)):
        await moving
    for publisher in publishers:
        name = publisher.client_id.encode()
        assert [each for each in got if each.startswith(name)] == [b"%s %d" % (name, n) for n in range(count)]


@pytest.mark.slow
async def test_what_a_node_that_is_away_may_still_send_is_asked_for_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many sessions have moved meanwhile, and however long it is away."""
    monkeypatch.setattr(fetching, "_QUESTIONS", 10)
    quick = {"suspect_after": 1.2, "stopped_after": 1.5}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=quick) as cluster:
        for number in range(20):
            await cluster[0].leave_session(f"s{number}", "t")
        await cluster.kill(2)
        await until(lambda: cluster[0].server.cluster.members()[2].status == STOPPED)
        for number in range(20):
            await (await cluster[1].client(f"s{number}", 4, clean_start=False, session_present=True)).drop()
        await until(lambda: not any(has(cluster, 0, f"s{number}") for number in range(20)))
        first = cluster[0].server.cluster
        assert isinstance(first, NatsCluster)
        asked, fetch = [0], first.calls._handlers[FETCH]

        async def counted(node: str, argument: bytes) -> bytes:
            asked[0] += 1
            return await fetch(node, argument)

        first.calls._handlers[FETCH] = counted
        await asyncio.sleep(2)
        assert 0 < asked[0] <= 40
