"""A clear that follows the retained message it clears, at another node; and what is retained while NATS elects."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

import pytest

from taipan.broker.channel import undecided
from taipan.broker.cluster.shared import retained, retained_order, settling
from taipan.broker.cluster.shared.bucket_life import RECORD
from taipan.broker.cluster.shared.retained import BUCKET
from taipan.broker.cluster.wire import node_key, thing_key
from taipan.broker.core.cluster import RUNNING
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL, PUBACK, PUBREC
from tests.support.api import assert_refused
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.peer import Closed, Peer
from tests.support.virtual_nats import VirtualNats
from tests.support.wire import Ack, Publish

from .test_cluster_retained import QUOTA_EXCEEDED, part, payloads, retain, until, until_same

pytestmark = pytest.mark.asyncio


class Kind(NamedTuple):
    """``before``: what the topic had. ``qos``: of the message, ``clear_qos``: of its clear. ``seen``: the clear follows
    the message that its client has received; else the acknowledgement that another client got for it."""

    before: str
    qos: int
    clear_qos: int
    expires: bool
    seen: bool

    @property
    def topic(self) -> str:
        return "/".join(str(each) for each in self)


def kinds() -> list[Kind]:
    every = itertools.product(("empty", "cleared", "other"), (0, 1, 2), (0, 1, 2), (False, True), (True, False))
    # QoS 0 has no acknowledgement that anything could follow.
    return [kind for kind in map(Kind._make, every) if kind.qos or kind.seen]


async def set_and_clear(device: Peer, controller: Peer, kind: Kind) -> None:
    # There is no Message Expiry Interval in 3.1.1.
    expires = {MESSAGE_EXPIRY_INTERVAL: 3600} if kind.expires and device.version == 5 else {}
    await device.publish(kind.topic, b"command", qos=kind.qos, retain=True, properties=expires)
    if kind.seen:
        await controller.expect_publish(topic=kind.topic, payload=b"command")
    await controller.publish(kind.topic, b"", qos=kind.clear_qos, retain=True)


@contextmanager
def slow_writes(cluster: ClusterNodes, number: int, seconds: float = 0.1) -> Iterator[None]:
    """What this node asks of NATS comes late."""
    way = (cluster.name(number), "")
    cluster.hub.delays[way] = (seconds, seconds)
    yield
    del cluster.hub.delays[way]


async def until_decided(cluster: ClusterNodes) -> None:
    """Until all nodes have what the bucket has."""
    await until(lambda: not any(part(node).pending for node in cluster.nodes.values()) and cluster.hub.quiet)
    last = cluster.hub.buckets[BUCKET].revision
    await until(lambda: all(part(node)._last == last for node in cluster.nodes.values()))


def values(cluster: ClusterNodes) -> int:
    """How many messages the bucket has."""
    return sum(entry.value is not None and key != RECORD for key, entry in cluster.hub.buckets[BUCKET].last.items())


async def prepare(cluster: ClusterNodes, found: list[Kind]) -> None:
    """What the topics have before."""
    client = await cluster[0].client("before")
    for payload, befores in ((b"before", ("cleared", "other")), (b"", ("cleared",))):
        for kind in found:
            if kind.before in befores:
                await client.publish(kind.topic, payload, qos=1, retain=True)
        await until_decided(cluster)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_a_clear_that_follows_the_message_it_clears_wins_on_all_nodes(version: int, level: str) -> None:
    """Whatever kind of message it is; though NATS has the message late, and the clear's node has an early clock."""
    found = kinds()
    async with cluster_nodes(2, level=level, cluster={"strict_subscribe": True}) as cluster:
        await prepare(cluster, found)
        cluster[1].clock.jump = -30
        pairs = []
        for number, kind in enumerate(found):
            device = await cluster[0].client(f"d{number}", version=version)
            controller = await cluster[1].client(f"c{number}", version=version)
            if kind.seen:
                await controller.subscribe(kind.topic, qos=2)
                if kind.before == "other":
                    await controller.expect_publish(payload=b"before")
            pairs.append((device, controller, kind))
        with slow_writes(cluster, 0):
            await asyncio.gather(*(set_and_clear(*each) for each in pairs))
        await until_decided(cluster)
        assert [payloads(node) for node in cluster.nodes.values()] == [{}, {}]
        assert not values(cluster)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a clear waits for takes longer than it waits."""
    monkeypatch.setattr(retained_order, "PROMPT", 0.05)
    monkeypatch.setattr(retained, "WRITTEN_TIMEOUT", 0.1)
    monkeypatch.setattr(settling, "ANSWER_TIMEOUT", 0.1)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("slow", ["nats", "answers", "questions"])
async def test_a_clear_wins_however_long_it_takes_though_its_clock_is_early(slow: str) -> None:
    """The other node reports which of its changes are older, so that no date decides, however slow the machine is."""
    found = [kind for kind in kinds() if kind.qos == 1 and not kind.expires and kind.clear_qos]
    async with cluster_nodes(2, level="disk", cluster={"strict_subscribe": True}) as cluster:
        await prepare(cluster, found)
        cluster[1].clock.jump = -30
        device = await cluster[0].client("device")
        controller = await cluster[1].client("controller")
        for kind in found:
            await controller.subscribe(kind.topic, qos=2)
            if kind.before == "other":
                await controller.expect_publish(topic=kind.topic, payload=b"before")
        names = (cluster.name(0), cluster.name(1))
        ways = {"nats": (names[0], ""), "answers": names, "questions": names[::-1]}
        cluster.hub.delays[names[0], ""] = (0.4, 0.4)
        cluster.hub.delays[ways[slow]] = (0.8, 0.8)
        for kind in found:
            await device.send(Publish(kind.topic, b"command", 1, True, packet_id=found.index(kind) + 1))
        for kind in found:
            await controller.expect_publish(topic=kind.topic, payload=b"command")
        await asyncio.gather(*(retain(cluster[1], kind.topic, b"") for kind in found))
        cluster.hub.delays.clear()
        await until_decided(cluster)
        assert [payloads(node) for node in cluster.nodes.values()] == [{}, {}]
        assert not values(cluster)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("early", [0, 1])
async def test_a_clear_whose_question_is_lost_is_between_the_message_before_it_and_the_one_after_it(early: int) -> None:
    """Whatever the clocks say: the node is asked again, and reports which of its messages was before the clear."""
    async with cluster_nodes(2, level="disk", cluster={"strict_subscribe": True}) as cluster:
        cluster[early].clock.jump = -30
        controller = await cluster[1].client("controller")
        await controller.subscribe("#")
        with slow_writes(cluster, 0, 0.6):
            for topic in ("cleared", "retained again"):
                await retain(cluster[0], topic, b"before")
                await controller.expect_publish(topic=topic, payload=b"before")
            cluster.hub.drop = 1.0
            for topic in ("cleared", "retained again"):
                await controller.publish(topic, b"", retain=True)
            await controller.ping()
            await asyncio.sleep(0.3)
            await retain(cluster[0], "retained again", b"after")
            cluster.hub.drop = 0.0
            await until(lambda: not part(cluster[1]).pending)
        await until_decided(cluster)
        await until_same(cluster, **{"retained again": b"after"})


@pytest.mark.parametrize("jump", [-30, 30])
async def test_the_clock_of_the_node_with_the_message_may_be_set_before_the_clear(jump: int) -> None:
    async with cluster_nodes(2, level="disk", cluster={"strict_subscribe": True}) as cluster:
        controller = await cluster[1].client("controller")
        await controller.subscribe("t")
        with slow_writes(cluster, 0, 0.3):
            await retain(cluster[0], "t", b"command")
            cluster[0].clock.jump = jump
            await controller.expect_publish(topic="t", payload=b"command")
            await retain(cluster[1], "t", b"")
        await until_decided(cluster)
        await until_same(cluster)


async def test_a_clear_at_a_node_that_has_just_started_asks_nodes_that_it_has_not_heard_yet() -> None:
    """Their status is Stopped, but they may run: the clear follows an acknowledgement of such a node."""
    async with cluster_nodes(2, level="disk") as cluster:
        await cluster.kill(1)
        cluster.hub.delays[cluster.name(0), cluster.name(1)] = (1.5, 1.5)
        await cluster.start(1)
        cluster[1].clock.jump = -30
        with slow_writes(cluster, 0, 0.5):
            await retain(cluster[0], "t", b"command")
            await retain(cluster[1], "t", b"")
        cluster.hub.delays.clear()
        await until_decided(cluster)
        await until_same(cluster)


@pytest.mark.usefixtures("short_waits")
async def test_a_message_that_its_node_could_not_write_is_cleared_though_its_node_was_killed() -> None:
    """It had answered which of its changes are older, and the clock of the clear's node is early."""
    async with cluster_nodes(2, level="disk", cluster={"strict_subscribe": True}) as cluster:
        cluster[1].clock.jump = -30
        controller = await cluster[1].client("controller")
        await controller.subscribe("t")
        with slow_writes(cluster, 0, 5.0):
            await retain(cluster[0], "t", b"command")
            await controller.expect_publish(topic="t", payload=b"command")
            await retain(cluster[1], "t", b"")
            await cluster.kill(0)
        await cluster.start(0)
        await until(lambda: part(cluster[0]).joined)
        await until_decided(cluster)
        await until_same(cluster)


async def test_a_message_that_follows_a_clear_stays_though_the_clear_is_written_after_it() -> None:
    """Its client has seen the clear, and its node has been asked about it."""
    async with cluster_nodes(2, cluster={"strict_subscribe": True}) as cluster:
        await retain(cluster[0], "t", b"old")
        await until_same(cluster, t=b"old")
        client = await cluster[0].client("follows")
        await client.subscribe("t", retain_handling=2)
        handlers = part(cluster[0])._settling._calls._handlers
        answer, asked = handlers[settling.SETTLE], asyncio.Event()

        async def answered(node: str, argument: bytes) -> bytes:
            found = await answer(node, argument)
            asked.set()
            return found

        handlers[settling.SETTLE] = answered
        with slow_writes(cluster, 1, 0.2):
            clears = asyncio.create_task(retain(cluster[1], "t", b""))
            await client.expect_publish(topic="t", payload=b"")
            await asked.wait()
            await client.publish("t", b"new", qos=1, retain=True)
            await clears
        await until_decided(cluster)
        await until_same(cluster, t=b"new")


@pytest.mark.parametrize(
    "kind", ["of a message", "of many messages", "after other messages", "of an unwritten message"]
)
async def test_a_clear_is_asked_about_before_its_message_is_sent_to_other_nodes(kind: str) -> None:
    """Otherwise a message that follows the clear at another node may overtake the question, and count as older."""
    async with cluster_nodes(2, cluster={"strict_subscribe": True}) as cluster:
        topics = [f"t/{number}" for number in range(200 if kind == "of many messages" else 1)]
        publisher = await cluster[1].client("clears")
        for topic in topics:
            await publisher.publish(topic, b"old", qos=1, retain=True)
        await until_decided(cluster)
        client = await cluster[0].client("follows")
        await client.subscribe("t/#", qos=1, no_local=True, retain_handling=2)
        way, link = (cluster.name(1), cluster.name(0)), f".link.{node_key(cluster.name(0))}"
        raw = cluster.clients[1]
        publish = raw.publish

        def slow_after_the_link(subject: str, data: bytes) -> None:
            publish(subject, data)
            if subject.endswith(link):
                cluster.hub.delays[way] = (0.3, 0.3)

        packets = [Publish(topic, b"", 0, True) for topic in topics]
        if kind == "after other messages":
            packets[:0] = [Publish("t/before", b"x", 0)] * 3
        with slow_writes(cluster, 1, 0.2):
            if kind == "of an unwritten message":
                await publisher.send(Publish(topics[0], b"unwritten", 0, True))
                await client.expect_publish(topic=topics[0], payload=b"unwritten")
                assert part(cluster[1]).pending
            raw.publish = slow_after_the_link  # type: ignore[method-assign]
            await publisher.send(*packets)
            for packet in packets:
                await client.expect_publish(topic=packet.topic, payload=packet.payload)
                if not packet.payload:
                    await client.send(Publish(packet.topic, b"new", 0, True))
        await until_decided(cluster)
        await until_same(cluster, **dict.fromkeys(topics, b"new"))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_the_acknowledgement_of_a_clear_waits_until_it_is_decided(version: int, qos: int) -> None:
    """Those of what its client publishes after it wait behind it, in order; the client is served meanwhile."""
    kind = PUBACK if qos == 1 else PUBREC
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"x")
        await until_same(cluster, t=b"x")
        client = await cluster[1].client("c", version=version)
        await client.subscribe("other")
        with slow_writes(cluster, 1, 0.5):
            await client.send(Publish("t", b"", qos, True, packet_id=7), Publish("other", b"y", qos, packet_id=8))
            await client.expect_publish(topic="other")
            await client.ping()
            assert values(cluster) == 1
            await client.expect(Ack, type=kind, packet_id=7)
            assert values(cluster) == 0
            await client.expect(Ack, type=kind, packet_id=8)


async def test_a_clear_of_nothing_leaves_no_key_while_all_nodes_answer() -> None:
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"")
        await until_decided(cluster)
        assert thing_key("t") not in cluster.hub.buckets[BUCKET].last


async def test_a_message_that_its_node_could_not_write_before_it_was_killed_does_not_undo_a_later_clear() -> None:
    """The node cannot be asked: what it brings back is compared with the date of the clear, also where NATS had
    nothing of the topic."""
    async with cluster_nodes(2, level="disk") as cluster:
        cluster.hub.lose_request = 1.0
        await retain(cluster[0], "t", b"x")
        await cluster.kill(0)
        cluster.hub.lose_request = 0.0
        await until(lambda: cluster[1].server.cluster.members()[0].status != RUNNING)
        await retain(cluster[1], "t", b"")
        await cluster.start(0)
        await until(lambda: part(cluster[0]).joined)
        await until_decided(cluster)
        await until_same(cluster)


async def test_a_message_that_follows_a_clear_stays_though_its_node_has_an_early_clock() -> None:
    """It had not read the deletion yet."""
    async with cluster_nodes(2) as cluster:
        await retain(cluster[0], "t", b"x")
        await until_same(cluster, t=b"x")
        cluster[0].clock.jump = -30
        hub, name = cluster.hub, cluster.name(0)
        hub.delays["", name] = (0.3, 0.3)
        await retain(cluster[1], "t", b"")
        await retain(cluster[0], "t", b"y")
        del hub.delays["", name]
        await until_decided(cluster)
        await until_same(cluster, t=b"y")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("payload", [b"x", b""])
async def test_an_election_refuses_no_retained_message_and_holds_its_acknowledgement(
    version: int, qos: int, payload: bytes
) -> None:
    hub = VirtualNats(Random(1), servers=3)
    hub.election = (0.5, 1.0)
    async with cluster_nodes(2, hub=hub) as cluster:
        for number in range(20):
            await retain(cluster[0], f"t/{number}", b"before")
        await until_decided(cluster)
        for node in cluster.nodes.values():
            part(node)
        clients = [await cluster[number].client(f"c{number}", version=version) for number in (0, 1)]
        hub.stop_server(hub.leader)
        await until(lambda: not all(each.quorum for each in cluster.clients.values()))
        for number in range(20):
            await clients[number % 2].publish(f"t/{number}", payload, qos=qos, retain=True)
            assert (hub.buckets[BUCKET].value(thing_key(f"t/{number}")) is None) == (not payload)
        await until_decided(cluster)
        wanted = {f"t/{number}": payload for number in range(20)} if payload else {}
        assert payloads(cluster[0]) == payloads(cluster[1]) == wanted


async def test_a_node_that_stops_does_not_wait_for_nats_without_a_quorum() -> None:
    hub = VirtualNats(Random(1), servers=3)
    hub.election = (3600.0, 3600.0)
    async with cluster_nodes(1, hub=hub) as cluster:
        changes, way = part(cluster[0]), (cluster.name(0), "")
        changes.write_timeout = 3600.0
        hub.delays[way] = (3600.0, 3600.0)
        await retain(cluster[0], "t", b"x")
        flushing = asyncio.create_task(changes.flush(3600.0))
        await until(lambda: changes.pending and not flushing.done())
        hub.stop_server(hub.leader)
        await until(flushing.done)
        del hub.delays[way]


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_waits_longer_than_any_election_is_refused(monkeypatch: pytest.MonkeyPatch, qos: int) -> None:
    """What was taken may still be there when there is a quorum again."""
    monkeypatch.setattr(undecided, "ELECTION", 0.3)
    monkeypatch.setattr(retained, "ELECTION", 0.3)
    async with cluster_nodes(1) as cluster:
        client = await cluster[0].client()
        cluster.partition({0}, quorum=None)
        await until(lambda: not cluster.clients[0].quorum)
        await client.publish("t", b"x", qos=qos, retain=True, expect=QUOTA_EXCEEDED)
        assert payloads(cluster[0]) == {"t": b"x"}
        await until(lambda: not part(cluster[0]).takes)
        await client.publish("u", b"x", qos=qos, retain=True, expect=QUOTA_EXCEEDED)
        await client.publish("u", b"x", qos=qos)  # what is not retained goes on
        assert payloads(cluster[0]) == {"t": b"x"}
        cluster.heal()
        await until_decided(cluster)
        await client.publish("u", b"x", qos=qos, retain=True)
        assert payloads(cluster[0]) == {"t": b"x", "u": b"x"}


async def test_a_3x_client_whose_acknowledgement_waits_for_too_long_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot be told; it comes back, and sends again."""
    monkeypatch.setattr(undecided, "LONGEST_3", 0.3)
    async with cluster_nodes(1) as cluster:
        client = await cluster[0].client(version=4)
        cluster.partition({0}, quorum=None)
        await until(lambda: not cluster.clients[0].quorum)
        await client.send(Publish("t", b"x", 1, True, packet_id=7))
        with pytest.raises(Closed):
            await client.receive()


async def test_a_qos_2_clear_that_is_sent_again_is_acknowledged_when_it_is_decided() -> None:
    """Its identifier was taken, and its client came back before it was decided."""
    async with cluster_nodes(2, level="disk") as cluster:
        await retain(cluster[0], "t", b"x")
        await until_same(cluster, t=b"x")
        client = await cluster[1].client("c", expiry=60)
        with slow_writes(cluster, 1, 0.5):
            await client.send(Publish("t", b"", 2, True, packet_id=7))
            await until(lambda: payloads(cluster[1]) == {})
            await client.drop()
            client = await cluster[1].client("c", expiry=60, clean_start=False)
            await client.send(Publish("t", b"", 2, True, dup=True, packet_id=7))
            await client.expect(Ack, type=PUBREC, packet_id=7)
            assert values(cluster) == 0


async def test_who_has_very_many_acknowledgements_waiting_is_not_read_until_there_are_fewer() -> None:
    async with cluster_nodes(1, zone={"receive_maximum": 1000}) as cluster:
        client = await cluster[0].client(version=4)
        cluster.partition({0}, quorum=None)
        await until(lambda: not cluster.clients[0].quorum)
        most = undecided.MOST
        for number in range(most + 50):
            await client.send(Publish(f"t/{number}", b"x", 1, True, packet_id=number + 1))
        await until(lambda: len(payloads(cluster[0])) == most)
        await asyncio.sleep(0.1)
        assert len(payloads(cluster[0])) == most
        cluster.heal()
        for number in range(most + 50):
            await client.expect(Ack, type=PUBACK, packet_id=number + 1)
        assert len(payloads(cluster[0])) == most + 50


async def test_an_operators_clear_is_answered_when_it_is_decided() -> None:
    async with cluster_nodes(2, managed=True) as cluster:
        api = cluster.managed_node(1).api
        await retain(cluster[0], "a", b"x")
        await retain(cluster[0], "b", b"x")
        await until_same(cluster, a=b"x", b=b"x")
        with slow_writes(cluster, 1, 0.2):
            assert (await api.delete("/retained/a")).data == {"count": 1}
            assert values(cluster) == 1
            publish = {"topic": "b", "payload": "", "qos": 1, "retain": True, "clientid": "c"}
            assert (await api.post("/mqtt/publish", publish)).code == 0
            assert values(cluster) == 0
        cluster.partition({0}, {1}, quorum=0)
        await until(lambda: not cluster.clients[1].quorum)
        assert_refused(await api.post("/mqtt/publish", publish), 500, 101, "quorum")
