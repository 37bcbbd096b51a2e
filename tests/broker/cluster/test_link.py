"""Links between whole nodes, with all that can go wrong on the way and at both ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from taipan.broker.cluster.links import known_routes, link_receiver
from taipan.broker.cluster.links.link import HELLO, PREFIX, Link
from taipan.broker.cluster.links.link_receiver import LinkReceiver
from taipan.broker.cluster.links.link_writer import WINDOW
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wire import Frame, LinkAck, Mark, MessageRecord, RunRecord
from taipan.broker.core.cluster import STOPPED, CallFailed
from taipan.broker.loop.budget import DELIVERIES_PER_ITERATION
from taipan.broker.mqtt.constants import (
    CONTENT_TYPE,
    PUBACK,
    PUBCOMP,
    PUBREC,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS_MAXIMUM,
)
from taipan.broker.mqtt.message import Publisher as PublisherOf
from taipan.broker.mqtt.reason_codes import NO_MATCHING_SUBSCRIBERS, QUOTA_EXCEEDED, SUCCESS
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.node import Node
from tests.support.peer import Closed, Peer
from tests.support.virtual_nats import VirtualNats
from tests.support.waiting import until
from tests.support.wire import Ack, Publish

pytestmark = pytest.mark.asyncio

QUICK = {"suspect_after": 1.5, "stopped_after": 2.5, "strict_subscribe": True}


def parts(node: Node) -> NatsCluster:
    assert isinstance(node.server.cluster, NatsCluster)
    return node.server.cluster


def link(cluster: ClusterNodes, number: int, other: int) -> Link:
    return parts(cluster[number]).links.links[cluster.name(other)]


async def opened(cluster: ClusterNodes) -> None:
    await until(
        lambda: all(
            link(cluster, each, other).open for each in cluster.nodes for other in cluster.nodes if each != other
        )
    )


async def take_all(node: Node, client_id: str, last: bytes) -> list[bytes]:
    """What a persistent session gets until ``last``, everything acknowledged."""
    subscriber = await node.client(client_id, expiry=1000)
    got = []
    while not got or got[-1] != last:
        got.append((await subscriber.expect_publish()).payload)
    await subscriber.close()
    return got


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_lost_repeated_or_out_of_order_on_the_way_arrives_once_and_in_order(qos: int) -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=2)
        await opened(cluster)
        hub = cluster.hub
        hub.drop = hub.repeat = hub.disorder = 0.2
        hub.late = 0.05
        for number in range(200):
            await publisher.publish("t", b"%d" % number, qos=qos)
        hub.drop = hub.repeat = hub.disorder = 0.0
        for number in range(200):
            await subscriber.expect_publish("t", b"%d" % number)
        await cluster.wait_until_quiet()
        await subscriber.nothing()


async def test_qos_0_is_not_repeated() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=0)
        await opened(cluster)
        cluster.hub.repeat = 1.0
        for number in range(50):
            await publisher.publish("t", b"%d" % number)
        for number in range(50):
            await subscriber.expect_publish("t", b"%d" % number)
        await subscriber.nothing()


@pytest.mark.parametrize("level", ["memory", "disk"])
@pytest.mark.parametrize("who", [0, 1])
async def test_a_link_goes_on_after_a_restart_of_either_side(level: str, who: int) -> None:
    async with cluster_nodes(2, level=level, cluster=QUICK) as cluster:
        for end in (cluster.kill, cluster.stop):
            await end(who)
            await cluster.start(who)
            await cluster.wait_until_running()
            await opened(cluster)
            subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
            await subscriber.subscribe("t", qos=2)
            for number in range(20):
                await publisher.publish("t", b"%d" % number, qos=number % 3)
                await subscriber.expect_publish("t", b"%d" % number)
            await subscriber.close()
            await publisher.close()


async def test_what_a_stopped_node_is_owed_waits_for_it_over_a_restart_of_this_one() -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=2)
        await subscriber.close()
        await cluster.kill(1)
        publisher = await cluster[0].client("p")
        for number in range(50):
            assert await publisher.publish("t", b"%d" % number, qos=1 + number % 2) == SUCCESS
        await cluster.kill(0)
        await cluster.start(0)
        await cluster.start(1)
        assert await take_all(cluster[1], "s", b"49") == [b"%d" % number for number in range(50)]


class Publisher:
    """Publishes numbers in turn at QoS 2 and 1 until it is stopped, and goes on after a lost connection as a client
    must: what was not answered is sent again under its Packet Identifier."""

    def __init__(self) -> None:
        self.number = 0
        self.stopped = False
        self._packet_id = 1
        self._phase = "new"

    def has_reached(self, number: int) -> bool:
        return self.number >= number

    async def run(self, node: Node) -> None:
        """Until it is stopped or the connection ends."""
        try:
            peer = await node.client("p", expiry=1000)
            while not self.stopped:
                await self._one(peer)
        except (AssertionError, OSError, Closed):
            pass  # its node was killed

    async def _one(self, peer: Peer) -> None:
        qos = 1 + self.number % 2
        payload = b"%d" % self.number
        if self._phase != "rel":
            dup, self._phase = self._phase == "sent", "sent"
            await peer.send(Publish("t", payload, qos, False, dup, self._packet_id))
            await peer.answer(Ack, type=PUBACK if qos == 1 else PUBREC, packet_id=self._packet_id)
        if qos == 2:
            self._phase = "rel"
            await peer.pubrel(self._packet_id)
            await peer.answer(Ack, type=PUBCOMP, packet_id=self._packet_id)
        self.number += 1
        self._packet_id += 1
        self._phase = "new"


@pytest.mark.parametrize("who", [0, 1])
async def test_acknowledged_messages_survive_kills_in_the_midst_of_them(who: int) -> None:
    """QoS 1 at least once, QoS 2 once."""
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("#", qos=2)
        await subscriber.close()
        cluster.hub.delay = (0.0, 0.003)
        publisher = Publisher()
        for life in range(4):
            publisher.stopped = False
            task = asyncio.ensure_future(publisher.run(cluster[0]))
            await until(partial(publisher.has_reached, publisher.number + 6 + life))
            await cluster.kill(who)
            if who == 1:
                await until(partial(publisher.has_reached, publisher.number + 1))
                publisher.stopped = True
            await task
            await cluster.start(who)
            await cluster.wait_until_running()
        acknowledged = publisher.number
        assert acknowledged > 20
        last = await cluster[0].client("last")
        await last.publish("t", b"end", qos=1)
        got = [int(each) for each in (await take_all(cluster[1], "s", b"end"))[:-1]]
        assert set(got) >= set(range(acknowledged))
        twice = [each for each in got if each % 2]
        assert len(twice) == len(set(twice))
        firsts = list(dict.fromkeys(got))
        assert firsts == sorted(firsts)


async def test_a_full_link_refuses_and_names_its_setting(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_nodes(2, cluster={**QUICK, "link_queue_messages": 10}) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await cluster.kill(1)
        publisher = await cluster[0].client("p")
        await until(lambda: parts(cluster[0]).membership.peers[cluster.name(1)].status == STOPPED)
        for _ in range(10):
            assert await publisher.publish("t", b"1", qos=1) == SUCCESS
        assert await publisher.publish("t", b"1", qos=1, expect=QUOTA_EXCEEDED) == QUOTA_EXCEEDED
        assert "setting=cluster.link_queue_messages" in caplog.text
        await publisher.publish("t", b"0", qos=0)
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_link_qos0_msg"] == 1


async def test_qos_0_beyond_the_credit_of_a_link_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_nodes(2, cluster={**QUICK, "link_credit": 20_000}) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=1)
        await opened(cluster)
        cluster.hub.delays[cluster.name(0), cluster.name(1)] = (0.5, 0.5)
        for _ in range(30):
            await publisher.send(Publish("t", bytes(1000)))
        await publisher.publish("t", b"last", qos=1)
        cluster.hub.delays.clear()
        dropped = cluster[0].server.metrics.refusals.snapshot()["cluster_link_full"]
        assert 5 < dropped < 20
        assert "reason=full setting=cluster.link_credit" in caplog.text
        for _ in range(30 - dropped):
            await subscriber.expect_publish("t", bytes(1000))
        await subscriber.expect_publish("t", b"last")


async def test_a_message_larger_than_nats_takes_crosses_in_parts() -> None:
    hub = VirtualNats(max_payload=65536)
    async with cluster_nodes(2, cluster=QUICK, hub=hub) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=2)
        await opened(cluster)
        payload = bytes(range(256)) * 2000
        for qos in (0, 1, 2):
            await publisher.publish("t", payload, qos=qos)
            await subscriber.expect_publish("t", payload, qos=qos)
        hub.drop = 0.2
        for _ in range(10):
            await publisher.publish("t", payload, qos=1)
        hub.drop = 0.0
        for _ in range(10):
            await subscriber.expect_publish("t", payload)


async def test_what_waits_for_a_node_that_is_forced_out_is_dropped_and_counted() -> None:
    async with cluster_nodes(3, level="disk", cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await cluster.kill(1)
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        name = cluster.name(1)
        await until(lambda: parts(cluster[2]).membership.peers[name].status == STOPPED)
        await parts(cluster[2]).force_leave(name)
        await until(lambda: name not in parts(cluster[0]).links.links)
        assert PREFIX + name not in cluster[0].server.broker.sessions.internal
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_link_node_removed"] == 1
        assert await publisher.publish("t", b"2", qos=1) == NO_MATCHING_SUBSCRIBERS
        await until(lambda: not any(each.value for each in cluster.hub.buckets["routes"].last.values()))


@pytest.mark.parametrize("seen", [True, False], ids=["seen to stop", "not seen to stop"])
async def test_what_waits_for_a_node_whose_name_another_data_directory_takes_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seen: bool
) -> None:
    async with cluster_nodes(2, level="disk", directory=tmp_path, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await subscriber.close()
        await opened(cluster)
        name = cluster.name(1)
        publisher = await cluster[0].client("p")
        if seen:
            await cluster.stop(1)
            await until(lambda: parts(cluster[0]).membership.peers[name].status == STOPPED)
        else:
            await cluster.kill(1)
        for number in range(3):
            assert await publisher.publish("t", b"%d" % number, qos=1) == SUCCESS
        assert link(cluster, 0, 1).open is not seen
        cluster._lives[1] += 10
        await cluster.start(1)
        await cluster.wait_until_running()
        await opened(cluster)
        await cluster.wait_until_quiet()
        counted = cluster[0].server.metrics.refusals.snapshot()
        assert counted["cluster_link_node_replaced"] == 3 and counted["cluster_node_replaced"] == 1
        assert f"cluster_refused node={name} reason=link_node_replaced setting=node.data_dir" in caplog.text
        # The link goes on.
        again = await cluster[1].client("s", expiry=1000, session_present=False)
        await again.subscribe("t", qos=1)
        await publisher.publish("t", b"new", qos=1)
        await again.expect_publish("t", b"new")
        await again.nothing()
        await again.close()
        await cluster.wait_until_quiet()
        # So it does with the first directory, which has its session.
        await cluster.stop(1)
        cluster._lives[1] -= 10
        await cluster.start(1)
        await cluster.wait_until_running()
        await opened(cluster)
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_node_replaced"] == 2
        last = await cluster[1].client("s", expiry=1000, session_present=True)
        await until(lambda: bool(cluster[0].server.broker.router.remote_mask("t")))
        await publisher.publish("t", b"last", qos=1)
        await last.expect_publish("t", b"last")


async def test_the_numbers_go_on_beyond_the_last_packet_identifier() -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await opened(cluster)
        there = link(cluster, 0, 1)
        there.close()
        there.session.last_packet_id = 65_530
        there._numbered = False
        parts(cluster[1]).receiver.forget(cluster.name(0))
        there.update()
        publisher = await cluster[0].client("p")
        for number in range(20):
            await publisher.publish("t", b"%d" % number, qos=1)
            await subscriber.expect_publish("t", b"%d" % number)
        await cluster.wait_until_quiet()
        assert there._writer.acked == 65_550
        await subscriber.close()
        await cluster.kill(1)
        for number in range(20, 40):
            await publisher.publish("t", b"%d" % number, qos=1)
        await cluster.kill(0)
        await cluster.start(0)
        await cluster.start(1)
        assert await take_all(cluster[1], "s", b"39") == [b"%d" % number for number in range(20, 40)]


@pytest.mark.interpreted  # sets ACK_WITHIN, which compiled code has built in
async def test_frames_are_acknowledged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_receiver, "ACK_WITHIN", 600.0)
    async with cluster_nodes(2, cluster={**QUICK, "link_credit": 8 * 65_536}) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=1)
        await opened(cluster)
        to_peer = link(cluster, 0, 1)
        acknowledged: list[int] = []
        taken = to_peer.acknowledged

        def count(ack: LinkAck) -> None:
            acknowledged.append(ack.sequence)
            taken(ack)

        monkeypatch.setattr(to_peer, "acknowledged", count)
        for number in range(150):
            await publisher.publish("t", b"%1000d" % number, qos=1)
            await subscriber.expect_publish("t", b"%1000d" % number)
        # Each was a frame of its own; each 64 KiB of them are acknowledged, and the rest in time.
        await until(lambda: len(acknowledged) == 2)
        assert 40 < acknowledged[0] < 65 and 40 < acknowledged[1] - acknowledged[0] < 65
        assert to_peer._writer.held == 150 - acknowledged[1] > 20


@pytest.mark.interpreted  # sets ROW_EVERY, which compiled code has built in
async def test_what_no_durable_session_waits_for_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_receiver, "ROW_EVERY", 100)
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=2)
        await opened(cluster)
        commits = [node.server.tables.commit for node in (cluster[0], cluster[1])]
        before = [0 if commit is None else commit.written for commit in commits]
        for number in range(250):
            await publisher.publish("t", b"%d" % number, qos=1)
            await subscriber.expect_publish("t", b"%d" % number)
        await cluster.wait_until_quiet()
        written = [0 if commit is None else commit.written for commit in commits]
        assert written[0] == before[0]
        assert 0 < written[1] - before[1] <= 4  # its row, every 100 numbers
        durable = await cluster[1].client("d", expiry=1000)
        await durable.subscribe("t", qos=2)
        await publisher.publish("t", b"250", qos=1)
        assert commits[0] is not None and commits[0].written > written[0]
        await durable.expect_publish("t", b"250")
        await durable.close()
        for number in range(251, 260):
            await publisher.publish("t", b"%d" % number, qos=1 + number % 2)
        await cluster.kill(1)
        for number in range(260, 270):
            await publisher.publish("t", b"%d" % number, qos=1 + number % 2)
        await cluster.kill(0)
        await cluster.start(0)
        await cluster.start(1)
        assert await take_all(cluster[1], "d", b"269") == [b"%d" % number for number in range(251, 270)]


async def test_packets_and_messages_with_more_to_say_come_in_their_order() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        plain, other = await cluster[0].client("p", version=4), await cluster[0].client("o")
        await subscriber.subscribe("+", qos=2, retain_as_published=True)
        await opened(cluster)
        expected: dict[str, list[tuple[bytes, int, bool, object]]] = {"p": [], "o": []}
        for number in range(60):
            payload, qos, retain = b"%d" % number, number % 3, number % 7 == 0
            properties = {CONTENT_TYPE: f"{number}"} if number % 4 == 0 else {}
            await plain.send(Publish("p", payload, qos, retain, False, number + 1 if qos else 0))
            await other.send(Publish("o", payload, qos, retain, False, number + 1 if qos else 0, properties))
            expected["p"].append((payload, qos, retain, None))
            expected["o"].append((payload, qos, retain, properties.get(CONTENT_TYPE)))
        found: dict[str, list[tuple[bytes, int, bool, object]]] = {"p": [], "o": []}
        for _ in range(120):
            publish = await subscriber.expect_publish()
            facts = (publish.payload, publish.qos, publish.retain, publish.properties.get(CONTENT_TYPE))
            found[publish.topic].append(facts)
        assert found == expected


async def send_burst(publisher: Peer, topic: str, numbers: range, qos: int) -> None:
    """These payloads in one write, and the answers that QoS 1 has to them."""
    ids = {number: publisher.next_packet_id() if qos else 0 for number in numbers}
    await publisher.send(*[Publish(topic, b"%d" % each, qos, False, False, ids[each]) for each in numbers])
    if not qos:
        await publisher.ping()
    for packet_id in ids.values() if qos else ():
        assert (await publisher.answer(Ack, type=PUBACK, packet_id=packet_id)).reason_code == SUCCESS


@pytest.mark.parametrize("expiry", [0, 1000])
@pytest.mark.parametrize("version", [4, 5])
async def test_bursts_of_qos_1_arrive_once_and_in_order(version: int, expiry: int) -> None:
    """What one read brought goes on as one, whatever gets lost, comes twice or too late on the way."""
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s", expiry=expiry)
        publisher, other = await cluster[0].client("p", version=version), await cluster[0].client("o")
        await subscriber.subscribe("t", qos=2)
        await opened(cluster)
        hub = cluster.hub
        hub.drop = hub.repeat = hub.disorder = 0.2
        hub.late = 0.05
        for first in range(0, 400, 40):
            await send_burst(publisher, "t", range(first, first + 39), 1)
            await other.publish("t", b"%d" % (first + 39), qos=1 + first // 40 % 2)
        hub.drop = hub.repeat = hub.disorder = 0.0
        found = [int((await subscriber.expect_publish("t")).payload) for _ in range(400)]
        assert found == list(range(400))
        await cluster.wait_until_quiet()
        await subscriber.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_bursts_of_qos_0_come_once_to_whoever_wants_them_in_whatever_form(version: int) -> None:
    """As the packets that came, where the client takes them so; some subscribers get another form."""
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        publisher = await cluster[0].client("p", version=version)
        alike = [await cluster[1].client(f"a{each}", version=version) for each in range(2)]
        await opened(cluster)
        for each in alike:
            await each.subscribe("t", qos=1)
        cluster.hub.repeat = 1.0
        await send_burst(publisher, "t", range(20), 0)
        for each in alike:
            for number in range(20):
                await each.expect_publish("t", b"%d" % number, qos=0, retain=False)
            await each.nothing()
        other = await cluster[1].client("b", version=9 - version)
        identified = await cluster[1].client("i", version=5)
        local = await cluster[1].client("l", version=5)
        aliased = await cluster[1].client("x", properties={TOPIC_ALIAS_MAXIMUM: 5})
        await other.subscribe("t")
        await identified.subscribe("t", identifier=7)
        await local.subscribe("t", no_local=True)
        await aliased.subscribe("t")
        await send_burst(publisher, "t", range(20, 40), 0)
        for each in (*alike, other, local):
            for number in range(20, 40):
                await each.expect_publish("t", b"%d" % number)
            await each.nothing()
        for number in range(20, 40):
            found = await identified.expect_publish("t", b"%d" % number)
            assert found.properties[SUBSCRIPTION_IDENTIFIER] == [7]
            await aliased.expect_publish("t" if number == 20 else "", b"%d" % number)
        metrics = cluster[1].server.metrics
        assert metrics.messages_qos0_sent >= 40 + 20 * 6


async def test_a_burst_that_a_link_holds_is_sent_again_when_the_link_opens_again() -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=1)
        await opened(cluster)
        to_peer = link(cluster, 0, 1)
        for again in range(3):
            cluster.hub.delays[cluster.name(0), cluster.name(1)] = (0.2, 0.2)
            first = 100 * again
            await send_burst(publisher, "t", range(first, first + 50), 1)
            await publisher.publish("t", b"%d" % (first + 50), qos=2)
            await send_burst(publisher, "t", range(first + 51, first + 100), 1)
            assert to_peer._writer.held and not to_peer.idle
            before = to_peer._writer.held + len(to_peer.session.inflight)
            to_peer.close()
            assert not to_peer._writer.held and len(to_peer.session.inflight) == before
            sequences = [to_peer._writer.sequence_of(each) for each in to_peer.session.inflight]
            assert sequences == sorted(sequences)
            cluster.hub.delays.clear()
            to_peer.update()
            for number in range(first, first + 100):
                await subscriber.expect_publish("t", b"%d" % number)
        await cluster.wait_until_quiet()
        assert not to_peer.session.inflight and not to_peer._writer.held
        await subscriber.nothing()


PATIENT = {"suspect_after": 100.0, "stopped_after": 200.0, "strict_subscribe": True}


def cut_off(cluster: ClusterNodes) -> Link:
    """Nothing that node 0 sends reaches node 1, and its link waits."""
    cluster.hub.drop = 1.0
    to_peer = link(cluster, 0, 1)
    assert to_peer._watchdog is not None
    to_peer._watchdog.cancel()
    return to_peer


async def send_numbers(publisher: Peer, count: int) -> None:
    for number in range(0, count, 500):
        await send_burst(publisher, "t", range(number, number + 500), 1)


async def test_what_no_durable_session_waits_for_is_held_beyond_the_window_and_not_written_down() -> None:
    async with cluster_nodes(2, level="disk", cluster=PATIENT) as cluster:
        subscriber, publisher = await cluster[1].client("s", version=4), await cluster[0].client("p", version=4)
        await subscriber.subscribe("t", qos=1)
        await opened(cluster)
        to_peer = cut_off(cluster)
        commit = cluster[0].server.tables.commit
        assert commit is not None
        written = commit.written
        count = 18_500
        await send_numbers(publisher, count)
        assert to_peer._writer.held == count > WINDOW
        assert not to_peer.session.queued and not to_peer.session.inflight and commit.written == written
        to_peer.close()
        assert len(to_peer.session.inflight) == count
        cluster.hub.drop = 0.0
        to_peer.update()
        for number in range(count):
            await subscriber.expect_publish("t", b"%d" % number)
        await cluster.wait_until_quiet()
        await subscriber.nothing()
        assert not to_peer._writer.held and not to_peer.session.inflight


async def test_the_window_is_not_exceeded_after_what_is_on_disk_under_its_identifier() -> None:
    async with cluster_nodes(2, level="disk", cluster=PATIENT) as cluster:
        subscriber, publisher = await cluster[1].client("s", version=4), await cluster[0].client("p", version=4)
        durable = await cluster[1].client("d", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await durable.subscribe("durable", qos=1)
        await opened(cluster)
        to_peer = cut_off(cluster)
        await publisher.publish("durable", b"1", qos=1)
        assert len(to_peer.session.inflight) == 1
        count = 17_500
        await send_numbers(publisher, count)
        assert to_peer.session.queued and to_peer._writer.held < WINDOW
        to_peer.close()
        cluster.hub.drop = 0.0
        to_peer.update()
        await durable.expect_publish("durable", b"1")
        for number in range(count):
            await subscriber.expect_publish("t", b"%d" % number)
        await cluster.wait_until_quiet()
        assert to_peer._writer.may_keep(WINDOW + 1)  # what was in flight is known to be done, on disk too
        await subscriber.nothing()


async def test_the_messages_of_a_burst_have_the_same_ids_on_all_nodes() -> None:
    async with cluster_nodes(3, cluster=QUICK) as cluster:
        publisher = await cluster[0].client("p")
        found: list[dict[bytes, str]] = []
        for number in (1, 2):
            ids: dict[bytes, str] = {}
            found.append(ids)
            subscriber = await cluster[number].client(f"s{number}")
            await subscriber.subscribe("t", qos=1)
            hook = cluster[number].server.broker.hooks.message_delivered
            hook.add(lambda client, message, ids=ids: ids.update({message.payload: message.id}))
        await opened(cluster)
        await send_burst(publisher, "t", range(20), 1)
        await send_burst(publisher, "t", range(20, 40), 0)
        await until(lambda: len(found[0]) == len(found[1]) == 40)
        assert found[0] == found[1]
        numbers = [int(found[0][b"%d" % each], 16) for each in range(40)]
        assert numbers == list(range(numbers[0], numbers[0] + 40))


async def test_a_full_link_refuses_each_of_a_burst_that_has_no_room() -> None:
    async with cluster_nodes(2, level="disk", cluster={**QUICK, "link_queue_messages": 10}) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await cluster.kill(1)
        publisher = await cluster[0].client("p")
        await until(lambda: parts(cluster[0]).membership.peers[cluster.name(1)].status == STOPPED)
        await publisher.publish("t", b"0", qos=1)
        ids = [publisher.next_packet_id() for _ in range(30)]
        await publisher.send(*[Publish("t", b"x", 1, False, False, each) for each in ids])
        codes = [(await publisher.answer(Ack, type=PUBACK, packet_id=each)).reason_code for each in ids]
        assert codes == [SUCCESS] * 9 + [QUOTA_EXCEEDED] * 21


DEEP = b"\x91" * 100_000
"""More arrays in each other than MessagePack is read for."""
QOS_0 = b"\x30\x04\x00\x01tx"
QOS_1 = b"\x32\x06\x00\x01t\x00\x01x"
BAD_RUNS = {
    "QoS 0 that is cut off": RunRecord(0, -1, 4, 0, [], b"\x30\x7f\x00\x01t"),
    "QoS 1 without an identifier": RunRecord(0, -1, 4, 0, [], b"\x32\x03\x00\x01t"),
    "one byte": RunRecord(0, -1, 4, 0, [], b"\x30"),
    "PINGREQ before QoS 0": RunRecord(0, -1, 4, 0, [], b"\xc0\x00" + QOS_0),
    "PINGREQ before QoS 1": RunRecord(0, -1, 4, 0, [], b"\xc0\x00" + QOS_1),
    "fewer than it says": RunRecord(0, -1, 4, 0, [], QOS_1, "t", 2),
    "more than it says": RunRecord(0, -1, 4, 0, [], QOS_1 + QOS_1, "t", 1),
    "more than there are bytes": RunRecord(0, -1, 4, 0, [], QOS_0, "t", 1 << 62),
    "QoS 1 that is cut off": RunRecord(0, -1, 4, 0, [], QOS_1[:-1], "t", 1),
    "nothing": RunRecord(0, -1, 4, 0, [], b"", "t", 1),
    "no PUBLISH": RunRecord(0, -1, 4, 0, [], b"\xc0\x00", "t", 1),
    "QoS 3": RunRecord(0, -1, 4, 0, [], b"\x36" + QOS_1[1:], "t", 1),
    "wildcard, QoS 0": RunRecord(0, -1, 4, 0, [], QOS_0.replace(b"t", b"#"), "#", 1),
    "wildcard, QoS 1": RunRecord(0, -1, 4, 0, [], QOS_1.replace(b"t", b"#"), "#", 1),
    "no topic": RunRecord(0, -1, 4, 0, [], b"\x30\x03\x00\x00x", "", 1),
    "a Topic Alias alone": RunRecord(0, -1, 5, 0, [], b"\x32\x08\x00\x00\x00\x01\x03\x23\x00\x01"),
    "of no version": RunRecord(0, -1, 9, 0, [], QOS_1, "t", 1),
    "from the future": RunRecord(0, -1, 4, -1, [], QOS_1),
    "too old": RunRecord(0, -1, 4, 1 << 62, [], QOS_1),
    "before a message that is not there": RunRecord(9, -1, 4, 0, [], QOS_1),
}


async def test_a_run_that_cannot_be_read_is_refused_and_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted and logged, nothing of it comes, and its numbers are nobody's: the link goes on with the next
    frame, which says where these end."""
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        peers = [await cluster[1].client(f"s{version}", version=version) for version in (4, 5)]
        for peer in peers:
            await peer.subscribe("#", qos=2)
        await opened(cluster)
        receiver, wire = parts(cluster[1]).receiver, parts(cluster[0]).context.wire
        incoming = receiver._incoming[cluster.name(0)]
        refusals = cluster[1].server.metrics.refusals
        before = incoming.taken
        for which, run in BAD_RUNS.items():
            number, taken = incoming.frame + 1, incoming.taken
            refused = refusals.snapshot().get("cluster_malformed", 0)
            for _ in range(2):  # it comes twice
                receiver._came(wire.write((number, taken, taken + 1, [], [], [run])), "")
            # The other node may have given it any number of numbers.
            receiver._came(wire.write((number + 1, taken + 3, taken + 4, [], [message(topic=which)], [])), "")
            assert incoming.taken == taken + 4 and not incoming.gap, which
            assert refusals.snapshot()["cluster_malformed"] > refused, which
            for peer in peers:
                await peer.expect_publish(which)
        assert f"node={cluster.name(0)} reason=malformed" in caplog.text
        incoming.taken = incoming.stored = before  # the other node does not know of them
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"still there", qos=1)
        for peer in peers:
            await peer.expect_publish("t", b"still there")
            await peer.nothing()


async def test_what_is_beside_a_run_that_cannot_be_read_comes_where_its_numbers_are_certain() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("#", qos=1)
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        incoming = receiver._incoming[cluster.name(0)]
        taken = incoming.taken
        bad = RunRecord(1, -1, 4, 0, [], b"\x32\x03\x00\x01t" + QOS_1)
        messages = [message(payload=b"1"), message(payload=b"2")]
        receiver._take(incoming, Frame(incoming.frame + 1, taken, taken + 1, [], messages, [bad]))
        assert incoming.taken == taken + 4
        cut_off = RunRecord(1, -1, 4, 0, [], QOS_1[:-1])
        receiver._take(incoming, Frame(incoming.frame + 1, taken + 4, taken + 5, [], messages, [cut_off]))
        assert incoming.taken == taken + 5
        for payload in (b"1", b"2", b"1"):
            await subscriber.expect_publish("t", payload)
        await subscriber.nothing()


@pytest.mark.interpreted  # sets _MOST_BYTES, which compiled code has built in
async def test_a_frame_in_parts_that_can_never_be_whole_is_refused_and_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_receiver, "_MOST_BYTES", 200_000)
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("#", qos=1)
        await opened(cluster)
        receiver, wire = parts(cluster[1]).receiver, parts(cluster[0]).context.wire
        incoming = receiver._incoming[cluster.name(0)]
        refusals = cluster[1].server.metrics.refusals
        in_parts = wire.body((1, 0, 1, [], [], [], (0, 2, b"x")))
        cases: dict[str, list[tuple[int, int, bytes]]] = {
            "too many parts": [(0, 1 << 62, b"x")],
            "too many bytes": [(0, 4, bytes(150_000)), (1, 4, bytes(150_000)), (2, 4, b"x")],
            "no frame": [(0, 2, b"\x96"), (1, 2, b"\xc1")],
            "no text": [(0, 1, b"\x96\x01\x00\x01\x91\x98\xa2\xff\xfe")],
            "too deep": [(0, 1, b"\x96\x01\x00\x01\x90\x91\x97\xa1t\xc4\x01x\x01\xff\x00\xa1i\x81\x02" + DEEP)],
            "no parts": [(0, 0, b"x")],
            "fewer than none": [(0, -1, b"")],
            "parts of parts": [(0, 1, in_parts)],
        }
        for refused, (which, pieces) in enumerate(cases.items(), 1):
            number, taken = incoming.frame + 1, incoming.taken
            for piece in pieces:
                receiver._came(wire.write((number, taken, taken + 1, [], [], [], piece)), "")
            assert incoming.parts == [], which
            assert refusals.snapshot()["cluster_malformed"] == refused, which
            receiver._came(wire.write((number + 1, taken + 1, taken + 2, [], [message(topic=which)], [])), "")
            await subscriber.expect_publish(which)
            assert incoming.taken == taken + 2
        await subscriber.nothing()


@pytest.mark.parametrize(
    "bad", [b"", b"\xc1", b"\x91\x01", b"\x93\x00\x00" + DEEP], ids=["empty", "nothing", "too short", "too deep"]
)
async def test_a_link_opens_after_an_answer_that_cannot_be_read(bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await opened(cluster)
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t", qos=1)
        to_peer, handlers = link(cluster, 0, 1), parts(cluster[1]).calls._handlers
        good, asked = handlers[HELLO], []

        async def answer(node: str, argument: bytes) -> bytes:
            asked.append(node)
            return bad if len(asked) == 1 else await good(node, argument)

        handlers[HELLO] = answer
        to_peer.update()
        await until(lambda: to_peer.open)
        assert len(asked) == 2
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_malformed"] == 1
        assert f"node={cluster.name(1)} reason=malformed" in caplog.text
        await publisher.publish("t", b"x", qos=1)
        await subscriber.expect_publish("t", b"x")


async def test_a_hello_that_cannot_be_read_is_refused() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await opened(cluster)
        for number, bad in enumerate((b"", b"\xc1", b"\x93\x00\x00" + DEEP), 1):
            with pytest.raises(CallFailed, match="cannot be read"):
                await parts(cluster[0]).calls.call(cluster.name(1), HELLO, bad)
            assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"] == number


async def test_a_mark_that_cannot_be_read_is_refused() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        incoming = receiver._incoming[cluster.name(0)]
        taken = incoming.taken
        bad = [b"\xc1", b"\x93\xa2\xff\xfe\xa1n\x01", b"\x94\xa1c\xa1n\x01" + DEEP]
        messages = [message(topic=Mark.ADDRESS, flags=2, group=Mark.ADDRESS, payload=each) for each in bad]
        receiver._take(incoming, Frame(incoming.frame + 1, taken, taken + 1, [], messages, []))
        assert incoming.taken == taken + 3
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"] == 3


async def test_a_link_goes_on_though_nothing_follows_a_run_that_can_never_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The link asks with an empty frame, which says where the run ends."""
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        durable, publisher = await cluster[1].client("d", expiry=1000), await cluster[0].client("p")
        await durable.subscribe("t", qos=1)
        await opened(cluster)
        to_peer = link(cluster, 0, 1)
        send = to_peer._writer._send

        def cut_off(
            number: int,
            after: int,
            first: int,
            publishers: list[PublisherOf],
            messages: list[tuple[object, ...]],
            runs: list[tuple[object, ...]],
        ) -> int:
            damaged: list[tuple[object, ...]] = [(*run[:5], b"\x32\x7f", *run[6:]) for run in runs]
            return send(number, after, first, publishers, messages, damaged)

        monkeypatch.setattr(to_peer._writer, "_send", cut_off)
        for _ in range(3):
            await publisher.publish("t", b"lost", qos=1)
        await until(lambda: not to_peer.session.inflight)
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"] >= 1
        monkeypatch.undo()
        await publisher.publish("t", b"x", qos=1)
        await durable.expect_publish("t", b"x")


async def test_a_frame_after_a_lost_one_is_not_taken_though_something_was_refused_before() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        incoming = receiver._incoming[cluster.name(0)]
        number, taken = incoming.frame + 1, incoming.taken
        receiver._take(incoming, Frame(number, taken, taken + 1, [], [], [BAD_RUNS["QoS 1 that is cut off"]]))
        receiver._take(incoming, Frame(number + 2, taken + 2, taken + 3, [], [message()], []))
        assert incoming.taken == taken and incoming.gap
        receiver._take(incoming, Frame(number + 3, taken + 5, taken + 5, [], [message()], []))
        assert incoming.taken == taken
        receiver._take(incoming, Frame(number + 3, -2, -1, [], [message()], []))
        assert incoming.taken == taken


async def test_a_run_goes_where_its_packets_say() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t", qos=1, retain_as_published=True)
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        incoming = receiver._incoming[cluster.name(0)]
        retained = b"\x31" + QOS_0[1:]
        for packets, topic, count in ((QOS_1, "elsewhere", 1), (QOS_1 + QOS_0, "t", 2), (retained, "t", 1)):
            frame = Frame(incoming.frame + 1, incoming.taken, incoming.taken + 1, [], [], [])
            frame = msgspec.structs.replace(frame, runs=[RunRecord(0, -1, 4, 0, [], packets, topic, count)])
            taken = incoming.taken
            receiver._take(incoming, frame)
            assert incoming.taken == taken + (packets[0] == QOS_1[0])
        for qos, retain in ((1, False), (1, False), (0, False), (0, True)):
            await subscriber.expect_publish("t", b"x", qos=qos, retain=retain)


def message(**more: object) -> MessageRecord:
    given = {"topic": "t", "payload": b"x", "flags": 1, "publisher": -1, "age": 0, "id": "i"}
    return MessageRecord(**{**given, **more})  # type: ignore[arg-type]


BAD_MESSAGES = {
    "wildcard": message(topic="t/#"),
    "no topic": message(topic=""),
    "U+0000 in the topic": message(topic="t/\0"),
    "topic too long": message(topic="t" * 65_536),
    "QoS 3": message(flags=3),
    "unknown flags": message(flags=9),
    "negative flags": message(flags=-3),
    "from the future": message(age=-1),
    "too old": message(age=1 << 62, properties={2: 10}),
    "expiry out of range": message(properties={2: 1 << 40}),
    "negative expiry": message(properties={2: -5}),
    "expiry of text": message(properties={2: "x"}),
    "user property of a number": message(properties={38: 5}),
    "user property of three": message(properties={38: [["a", "b", "c"]]}),
    "unknown property": message(properties={9999: 5}),
    "subscription identifier": message(properties={11: [1]}),
    "negative hops": message(hops=-1),
    "no topic, to a group": message(topic="", group="$share/g/t"),
}


async def test_a_message_that_no_client_can_have_published_is_refused_and_those_beside_it_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is counted and logged, and has its number: nobody can ever take it."""
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        peers = [await cluster[1].client(f"s{version}", version=version) for version in (4, 5)]
        for peer in peers:
            await peer.subscribe("#", qos=2)
        away = await cluster[1].client("away", expiry=1000)
        await away.subscribe("#", qos=2)
        await away.close()
        await opened(cluster)
        receiver, wire = parts(cluster[1]).receiver, parts(cluster[0]).context.wire
        incoming = receiver._incoming[cluster.name(0)]
        for which, bad in BAD_MESSAGES.items():
            taken = incoming.taken
            messages = [message(payload=b"before " + which.encode()), bad, message(payload=b"after")]
            receiver._came(wire.write((incoming.frame + 1, taken, taken + 1, [], messages, [])), "")
            assert incoming.taken == taken + 3, which
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"] == len(BAD_MESSAGES)
        assert f"node={cluster.name(0)} reason=malformed" in caplog.text
        peers.append(await cluster[1].client("away", clean_start=False, expiry=1000))
        for peer in peers:
            for which in BAD_MESSAGES:
                await peer.expect_publish("t", b"before " + which.encode())
                await peer.expect_publish("t", b"after")
            await peer.nothing()


def make_disk_slow(node: Node, slow: bool) -> None:
    """From the next end of an iteration on more waits for the disk than should, or not any more."""
    commit = node.server.tables.commit
    assert commit is not None
    commit.log.max_pending = -1 if slow else 67_108_864
    commit._wake()


@asynccontextmanager
async def slow_disk(node: Node) -> AsyncIterator[None]:
    budget = node.server.broker.budget
    make_disk_slow(node, True)
    await until(lambda: budget.congested)
    yield
    make_disk_slow(node, False)
    await until(lambda: not budget.congested)


async def test_frames_from_before_a_restart_use_up_no_numbers_of_the_messages_after_it() -> None:
    """What nobody durable waits for is on no disk: the node that has started again gives out its numbers again."""
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        durable, volatile = await cluster[1].client("d", expiry=1000), await cluster[1].client("v")
        await durable.subscribe("d", qos=1)
        await volatile.subscribe("v", qos=1)
        await opened(cluster)
        publisher = await cluster[0].client("p")
        await publisher.publish("d", b"before", qos=1)
        await durable.expect_publish("d", b"before")
        await cluster.wait_until_quiet()
        receiver = parts(cluster[1]).receiver
        async with slow_disk(cluster[1]):
            for each in range(5):
                await publisher.publish("v", b"old %d" % each, qos=1)
            await until(lambda: len(receiver._queue) >= 1)
            await cluster.kill(0)
            await cluster.start(0)
            await cluster.wait_until_running()
            await opened(cluster)
            publisher = await cluster[0].client("p")
            for each in range(5):
                assert await publisher.publish("d", b"new %d" % each, qos=1) == SUCCESS
        for each in range(5):
            await durable.expect_publish("d", b"new %d" % each)
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_link_not_taken"] >= 1


async def test_qos_0_after_a_restart_is_taken_where_frames_from_before_it_waited() -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        subscriber, publisher = await cluster[1].client("s"), await cluster[0].client("p")
        await subscriber.subscribe("t")
        await opened(cluster)
        for _ in range(20):
            await publisher.publish("t", b"before")
            await subscriber.expect_publish("t", b"before")
        receiver = parts(cluster[1]).receiver
        async with slow_disk(cluster[1]):
            await publisher.publish("t", b"old")
            await until(lambda: len(receiver._queue) >= 1)
            await cluster.kill(0)
            await cluster.start(0)
            await cluster.wait_until_running()
            await opened(cluster)
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"new")
        await subscriber.expect_publish("t", b"new")


async def test_nothing_of_an_earlier_start_of_a_node_is_taken() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        incoming = receiver._incoming[cluster.name(0)]
        taken = incoming.taken
        frame = Frame(incoming.frame + 1, taken, taken + 1, [], [message()], [])
        receiver._queue.append((incoming, incoming.incarnation - 1, frame, 0))
        receiver._process()
        assert incoming.taken == taken and not receiver._queue
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_old_incarnation"] == 1
        receiver._queue.append((incoming, incoming.incarnation, frame, 0))
        receiver._process()
        assert incoming.taken == taken + 1


async def test_what_waits_of_a_node_that_is_removed_does_not_bring_back_its_row() -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        durable = await cluster[1].client("d", expiry=1000)
        await durable.subscribe("d", qos=1)
        await opened(cluster)
        publisher = await cluster[0].client("p")
        receiver = parts(cluster[1]).receiver
        name = cluster.name(0)
        async with slow_disk(cluster[1]):
            await publisher.publish("d", b"1", qos=1)
            await until(lambda: len(receiver._queue) >= 1)
            await cluster.kill(0)
            await until(lambda: parts(cluster[1]).membership.peers[name].status == STOPPED)
            await parts(cluster[1]).force_leave(name)
            await until(lambda: name not in receiver._incoming)
            assert not receiver._queue
        await cluster.wait_until_quiet()
        assert receiver._table.get(name) is None
        await durable.nothing()


def waiting_bytes(receiver: LinkReceiver) -> int:
    """Of the runs that wait to be taken."""
    return sum(len(run.packets) for _, _, frame, _ in receiver._queue for run in frame.runs)


@pytest.mark.slow
async def test_frames_that_are_sent_again_while_the_disk_is_slow_do_not_pile_up() -> None:
    async with cluster_nodes(2, level="disk", cluster={**QUICK, "link_credit": 65_536}) as cluster:
        durable, publisher = await cluster[1].client("d", expiry=1000), await cluster[0].client("p")
        await durable.subscribe("d", qos=1)
        await opened(cluster)
        receiver, to_peer = parts(cluster[1]).receiver, link(cluster, 0, 1)
        payload = bytes(20_000)
        async with slow_disk(cluster[1]):
            for _ in range(12):
                await publisher.publish("d", payload, qos=1)
            await until(lambda: not to_peer._writer.writable and waiting_bytes(receiver) >= 60_000)
            for _ in range(5):
                sent = to_peer._writer.frame
                to_peer.update()  # as it does when the other node acknowledges nothing
                await until(lambda sent=sent: to_peer.open and to_peer._writer.frame > sent + 3)  # type: ignore[misc]
                await until(lambda: cluster.hub.quiet)
                assert 60_000 <= waiting_bytes(receiver) <= 2 * 65_536
        for _ in range(12):
            await durable.expect_publish("d", payload)
        await cluster.wait_until_quiet()
        await durable.nothing()


async def test_no_more_waits_for_a_slow_disk_than_twice_the_credit_of_a_link(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_nodes(2, level="disk", cluster={**QUICK, "link_credit": 65_536}) as cluster:
        durable, publisher = await cluster[1].client("d", expiry=1000), await cluster[0].client("p")
        await durable.subscribe("d", qos=1)
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        link(cluster, 0, 1)._writer._credit = 1_000_000  # the other node has another setting
        payload = bytes(20_000)
        async with slow_disk(cluster[1]):
            for _ in range(20):
                await publisher.publish("d", payload, qos=1)
            refusals = cluster[1].server.metrics.refusals
            await until(lambda: refusals.snapshot().get("cluster_link_not_taken", 0) > 0)
            assert 2 * 65_536 <= waiting_bytes(receiver) <= 2 * 65_536 + 21_000
        assert "reason=link_not_taken setting=cluster.link_credit" in caplog.text
        for _ in range(20):
            await durable.expect_publish("d", payload)
        await cluster.wait_until_quiet()
        await durable.nothing()


@pytest.mark.slow
async def test_many_frames_of_one_read_are_taken_in_slices() -> None:
    async with cluster_nodes(2, cluster=QUICK, zone={"max_queued_messages": 0}) as cluster:
        subscriber = await cluster[1].client("s", version=4)
        await subscriber.subscribe("t", qos=1)
        await opened(cluster)
        receiver = parts(cluster[1]).receiver
        incoming = receiver._incoming[cluster.name(0)]
        wire = parts(cluster[0]).context.wire
        before, number = incoming.taken, incoming.frame
        for frame in range(10):
            after = before + frame * 1000
            packets = b"".join(b"\x32\x09\x00\x01t\x00\x01%04d" % (frame * 1000 + each) for each in range(1000))
            run = RunRecord(0, -1, 4, 0, [], packets, "t", 1000)
            receiver._came(wire.write(Frame(number + 1 + frame, after, after + 1, [], [], [run])), "")
        # What other clients have sent comes between, and acknowledgements go out.
        assert DELIVERIES_PER_ITERATION < incoming.taken - before <= DELIVERIES_PER_ITERATION + 1000
        for each in range(10_000):
            await subscriber.expect_publish("t", b"%04d" % each)
        assert incoming.taken == before + 10_000


async def test_a_start_without_nats_still_knows_who_waits_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_routes, "SAVE_EVERY", 0.05)
    async with cluster_nodes(2, level="disk", cluster={**QUICK, "stopped_after": 1.0, "suspect_after": 0.5}) as cluster:
        subscriber = await cluster[1].client("s", expiry=1000)
        await subscriber.subscribe("t", qos=1)
        await subscriber.close()
        saved = parts(cluster[0]).known_routes.file
        assert saved is not None
        await until(lambda: saved.exists() and b"\xa1t" in saved.read_bytes())
        await cluster.kill(0)
        cluster.partition({0}, {1}, quorum=1)
        await cluster.start(0)
        publisher = await cluster[0].client("p")
        for number in range(10):
            assert await publisher.publish("t", b"%d" % number, qos=1) == SUCCESS
        cluster.heal()
        await cluster.wait_until_running()
        assert await take_all(cluster[1], "s", b"9") == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(
    "data",
    [b"\x93\x01\xa6taip", b"\x93\x01\xa2\xff\xfe", b"\x94\x01\xa1t\x80" + b"\x91" * 100_000],
    ids=["form", "text", "depth"],
)
async def test_a_damaged_file_of_routes_is_none(caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        saved = parts(cluster[0]).known_routes.file
        assert saved is not None
        await cluster.stop(0)
        saved.write_bytes(data)
        await cluster.start(0)
        assert "cluster_routes_not_loaded" in caplog.text


async def test_routes_that_change_while_the_file_is_written_come_into_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many routes is written by a thread."""
    monkeypatch.setattr(known_routes, "SAVE_EVERY", 0.02)
    replace, may_go = Path.replace, threading.Event()

    def slow_replace(path: Path, target: Path) -> Path:
        may_go.wait(10)
        return replace(path, target)

    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        known = parts(cluster[0]).known_routes
        file = known.file
        assert file is not None
        monkeypatch.setattr(Path, "replace", slow_replace)
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("first", qos=1)
        await until(lambda: file.with_suffix(".new").exists())
        await subscriber.subscribe("second", qos=1)
        await asyncio.sleep(0.1)  # it looks some times meanwhile
        may_go.set()
        await until(lambda: file.exists() and b"second" in file.read_bytes(), 5)


async def test_routes_that_the_disk_did_not_take_are_written_when_it_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(known_routes, "SAVE_EVERY", 0.02)
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        file = parts(cluster[0]).known_routes.file
        assert file is not None
        blocked = file.with_suffix(".new")
        blocked.unlink(missing_ok=True)
        blocked.mkdir()
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t", qos=1)
        await until(lambda: "cluster_routes_not_saved" in caplog.text)
        blocked.rmdir()
        await until(lambda: file.exists() and b"\xa1t" in file.read_bytes(), 5)
