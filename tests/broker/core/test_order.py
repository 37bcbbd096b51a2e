"""What is sent behind a QoS 2 PUBLISH that waits for the disk stays behind it, and nothing else does."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Connect, Subscribe, TopicFilter
from taipan.broker.session.queue import shed_queued, take_queued
from taipan.broker.store.recovery import in_order_of_sending
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_node import FakeClient
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio
versions = pytest.mark.parametrize("version", [4, 5])


async def subscribed(node: DurableFakeNode, version: int = 5, **options: object) -> FakeClient:
    reader = await node.connect_durable("r", version, **options)  # type: ignore[arg-type]
    reader.send(Subscribe(1, [TopicFilter("#", 2)]))
    node.store()
    reader.received()
    return reader


async def come(node: DurableFakeNode, **properties: int) -> FakeClient:
    """The client ``r`` of 5.0, let in with these properties."""
    reader = node.open()
    told = {getattr(c, name.upper()): value for name, value in properties.items()}
    reader.send(Connect(5, "r", False, 0, None, None, None, {c.SESSION_EXPIRY_INTERVAL: 99, **told}))
    for _ in range(3):
        await node.settle()
        node.store()
    return reader


def names(packets: list[object]) -> list[str]:
    return [each.payload.decode() for each in packets if isinstance(each, Publish)]


def mixture(topic: str, text: str) -> list[Publish]:
    """``"210"``: three messages with these QoS, whose payloads are ``2a``, ``1b``, ``0c``."""
    return [
        Publish(topic, f"{qos}{chr(97 + number)}".encode(), int(qos), packet_id=int(qos) and number + 1)
        for number, qos in enumerate(text)
    ]


@versions
async def test_one_topic_has_one_order(version: int) -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
    node = DurableFakeNode()
    reader = await subscribed(node, version)
    node.connect("w", version=version).send(*mixture("t", "1021020120"))
    assert names(reader.received()) == ["1a", "0b"]
    node.store()
    assert names(reader.received()) == ["2c", "1d", "0e", "2f", "0g", "1h", "2i", "0j"]


@versions
async def test_qos_0_of_another_topic_waits_for_nothing(version: int) -> None:
    node = DurableFakeNode()
    reader = await subscribed(node, version)
    writer = node.connect("w", version=version)
    writer.send(*mixture("t", "21"), Publish("other", b"at once"), Publish("t", b"behind"))
    assert names(reader.received()) == ["at once"]
    node.store()
    assert names(reader.received()) == ["2a", "1b", "behind"]
    writer.send(Publish("t", b"one", 1, packet_id=9), Publish("t", b"none"))
    assert names(reader.received()) == ["one", "none"]
    assert reader.channel.writer.held_topics is None and reader.channel.writer.fast


@versions
async def test_qos_0_stays_behind_qos_1_that_waits_behind_qos_2(version: int) -> None:
    node = DurableFakeNode()
    reader = await subscribed(node, version)
    writer = node.connect("w", version=version)
    writer.send(Publish("two", b"1", 2, packet_id=1), Publish("one", b"2", 1, packet_id=2), Publish("one", b"3"))
    assert names(reader.received()) == []
    node.store()
    assert names(reader.received()) == ["1", "2", "3"]


@versions
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("sent", [False, True])
async def test_it_is_sent_again_in_the_order_of_the_first_time(version: int, crash: bool, sent: bool) -> None:
    """[MQTT-4.6.0-1], also where the connection ended before anything was on the disk."""
    node = DurableFakeNode()
    reader = await subscribed(node, version)
    node.connect("w").send(*mixture("t", "12112"), Publish("u", b"u", 1, packet_id=20))
    order = ["1a", "2b", "1c", "1d", "2e", "u"]
    if sent:
        node.store()
        assert names(reader.received()) == order
    reader.vanish()
    node.store()
    if crash:
        node = node.crash()
    again = await node.connect_durable("r", version)
    assert names(again.received()) == order


async def test_the_order_of_sending_and_not_of_publishing_comes_back_after_a_crash() -> None:
    """A topic with a priority went out first. [MQTT-4.6.0-1]"""
    node = DurableFakeNode({"queue_priorities": {"high": 9}, "max_inflight": 4})
    reader = await subscribed(node)
    reader.transport.block()
    node.publish("x", bytes(400_000))
    node.run()
    node.connect("w").send(*mixture("low", "11"), Publish("high", b"high", 1, packet_id=9))
    node.store()
    reader.transport.unblock()
    assert names(reader.received())[1:] == ["high", "1a", "1b"]
    node.store()
    reader.vanish()
    node.store()
    node = node.crash()
    again = await node.connect_durable("r")
    assert names(again.received()) == ["high", "1a", "1b"]


async def test_identifiers_begin_again_at_1() -> None:
    assert in_order_of_sending([7]) == [7]
    assert in_order_of_sending([3, 1, 2]) == [1, 2, 3]
    assert in_order_of_sending([1, 2, 65_534, 4, 65_535]) == [65_534, 65_535, 1, 2, 4]
    assert in_order_of_sending([40_000, 30_000, 65_535]) == [30_000, 40_000, 65_535]


async def test_what_a_smaller_receive_maximum_holds_back_is_not_overtaken_by_qos_0() -> None:
    """[MQTT-4.6.0-6]; QoS 0 of other topics goes on [MQTT-3.3.4-10]."""
    node = DurableFakeNode()
    reader = await subscribed(node)
    node.connect("w").send(*mixture("t", "222"))
    reader.vanish()
    node.store()
    again = await come(node, receive_maximum=1)
    got = again.received()
    node.connect("v").send(Publish("t", b"behind"), Publish("u", b"at once"))
    node.store()
    got += again.received()
    assert names(got) == ["2a", "at once"]
    for packet_id in (1, 2, 3):
        again.pubrec(packet_id)
        node.store()
        again.pubcomp(packet_id)
        node.store()
        got += again.received()
    assert names(got) == ["2a", "at once", "2b", "2c", "behind"]


@pytest.mark.parametrize("emptied", ["revoked", "shed"])
async def test_nor_when_its_queue_is_emptied_meanwhile(emptied: str) -> None:
    """[MQTT-4.6.0-6]"""
    node = DurableFakeNode()
    reader = await subscribed(node)
    node.connect("w").send(*mixture("t", "222"))
    reader.vanish()
    node.store()
    again = await come(node, receive_maximum=1)
    got = again.received()
    session = again.channel.session
    assert session is not None
    node.connect("v").send(Publish("other", b"gone", 1, packet_id=1))
    assert session.queued == 1
    if emptied == "revoked":
        assert len(take_queued(session, {"other"}, set())) == 1
    else:
        assert shed_queued(session, 9, "memory") == 1
    node.connect("v").send(Publish("t", b"behind"))
    for packet_id in (1, 2, 3):
        again.pubrec(packet_id)
        node.store()
        again.pubcomp(packet_id)
        node.store()
        got += again.received()
    assert names(got) == ["2a", "2b", "2c", "behind"]


async def test_qos_0_behind_a_disk_that_does_not_write_is_bounded() -> None:
    node = DurableFakeNode({"max_outbox_bytes": 10_000})
    reader = await subscribed(node)
    writer = node.connect("w")
    writer.publish("t", b"two", 2, 1)
    for number in range(30):
        writer.publish("t", b"%02d" % number + bytes(998))
    assert reader.received() == []
    assert reader.channel.writer.held_qos0_bytes < 10_000
    assert node.metrics.snapshot()["delivery.dropped.queue_full"] == 21
    node.store()
    assert [each.payload[:3] for each in reader.messages()] == [b"two", *(b"%02d\0" % number for number in range(9))]
    assert reader.channel.writer.held_qos0_bytes == 0
    writer.publish("t", b"x")
    assert reader.payloads() == [b"x"]


async def test_a_message_behind_that_the_client_cannot_take_is_done() -> None:
    """[MQTT-3.1.2-25]"""
    node = DurableFakeNode()
    reader = await come(node, maximum_packet_size=100)
    reader.received()
    reader.send(Subscribe(1, [TopicFilter("#", 2)]))
    node.store()
    reader.received()
    writer = node.connect("w")
    writer.send(*mixture("t", "2"), Publish("t", bytes(200), 1, packet_id=7), Publish("t", b"last", 1, packet_id=8))
    node.store()
    packets = reader.received()
    assert names(packets) == ["2a", "last"]
    reader.send(*(Ack(c.PUBACK if each.qos == 1 else c.PUBREC, each.packet_id) for each in packets))  # type: ignore[union-attr]
    node.store()
    reader.pubcomp(1)
    assert reader.session.inflight == {}


async def test_nothing_lines_up_where_the_session_keeps_nothing() -> None:
    node = DurableFakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.connect("w").send(*mixture("t", "210"))
    assert names(reader.received()) == ["2a", "1b", "0c"]
