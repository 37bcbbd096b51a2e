"""Channel: which handler takes which packet, and when it stops taking them."""

from typing import Any

import pytest

from taipan.broker.channel import dispatcher as module
from taipan.broker.channel.dispatcher import receive
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Ack, Connect, Disconnect, Pingreq, Pingresp, Subscribe, TopicFilter, Unsubscribe
from tests.support.fake_node import FakeNode
from tests.support.wire import Publish


@pytest.mark.parametrize("version", [3, 4, 5])
def test_ping(version: int) -> None:
    """[MQTT-3.12.4-1]: at once, also where the send window is shut."""
    node = FakeNode({"max_inflight": 1})
    client = node.connect(version=version)
    client.subscribe("t", qos=1)
    for _ in range(3):
        node.publish("t", b"", 1)
    assert len(client.messages()) == 1
    assert client.ask(Pingreq(), Pingreq()) == [Pingresp(), Pingresp()]
    assert node.metrics.packets_pingreq_received == node.metrics.packets_pingresp_sent == 2


@pytest.mark.parametrize(
    "packet",
    [
        Pingreq(),
        Publish("t"),
        Publish("t", qos=1, packet_id=1),
        Ack(c.PUBACK, 1),
        Ack(c.PUBREL, 1),
        Subscribe(1, [TopicFilter("t")]),
        Unsubscribe(1, ["t"]),
        Disconnect(),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_nothing_before_connect(version: int, packet: Any) -> None:
    """[MQTT-3.1.0-1]"""
    node = FakeNode()
    unconnected = node.open(version)
    assert unconnected.ask(packet) == []
    assert unconnected.closed
    assert node.metrics.packets_publish_received == node.metrics.messages_publish == 0


def test_a_packet_of_the_server_s_only() -> None:
    node = FakeNode()
    client = node.connect()
    assert receive(client.channel, [Pingresp()], 0.0) is True  # type: ignore[attr-defined]
    assert isinstance(client.received()[0], Disconnect)


def test_what_the_decoder_would_have_refused() -> None:
    """[MQTT-3.1.0-1] [MQTT-3.1.0-2] hold here as well, whoever hands the packets in."""
    node = FakeNode()
    client = node.connect()
    receive(client.channel, [Connect(5, "c")], 0.0)
    assert isinstance(client.received()[0], Disconnect) and client.closed
    for packet in (Pingreq(), Message("t"), c.PUBACK << 16 | 1):
        unconnected = node.open()
        receive(unconnected.channel, [packet], 0.0)
        assert unconnected.received() == [] and unconnected.closed
    client = node.connect()
    receive(client.channel, [Subscribe(1, [TopicFilter("$share/g/t", no_local=True)])], 0.0)
    assert isinstance(client.received()[0], Disconnect)
    assert node.metrics.messages_publish == 0


@pytest.mark.interpreted
def test_the_budget_of_a_turn_stops_behind_a_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELIVERIES_PER_ITERATION", 0)
    node = FakeNode()
    node.connect("r").subscribe("t")
    channel: Any = node.connect("w").channel
    now = node.clock.time
    messages = [Message("t", b"%d" % number) for number in range(3)]
    assert receive(channel, messages, now) is False
    assert channel.rest == messages[1:]
    node.broker.budget.deliveries = 0
    assert receive(channel, messages[2:], now) is True
    assert channel.rest == []
    node.broker.budget.deliveries = 0
    assert receive(channel, [Pingreq()], now) is True


def test_counts_are_right_though_a_packet_fails() -> None:
    node = FakeNode({"max_qos": 0})
    client = node.connect()
    client.send(Publish("t"), Publish("t"), Publish("t", qos=1, packet_id=1), Publish("t"))
    assert node.metrics.packets_publish_received == client.channel.received_messages == 3
    assert node.metrics.messages_publish == 2


def test_every_acknowledgement_finds_its_handler() -> None:
    node = FakeNode()
    client = node.connect()
    client.subscribe("t", qos=2)
    node.publish("t", b"", 1)
    node.publish("t", b"", 2)
    client.received()
    client.puback(1)
    client.pubrec(2)
    client.pubcomp(2)
    client.publish("t", b"", 2, 9)
    client.send(Ack(c.PUBREL, 9))
    metrics = node.metrics
    assert [
        metrics.packets_puback_received,
        metrics.packets_pubrec_received,
        metrics.packets_pubcomp_received,
        metrics.packets_pubrel_received,
    ] == [1, 1, 1, 1]
    assert len(client.session.inflight) == 1  # its own message of QoS 2


@pytest.mark.interpreted
def test_a_fault_of_the_brokers_costs_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """[3.1.1 MQTT-4.8.0-2] Its sender is told, everybody else goes on, and the log has the whole story."""
    node = FakeNode()
    client, other = node.connect("c"), node.connect("o")

    def fail(message: object) -> int:
        raise RuntimeError("of the brokers' own")

    publish = node.server.broker.publish
    node.server.broker.publish = fail  # type: ignore[method-assign, assignment]
    client.publish("a", b"x")
    node.server.broker.publish = publish  # type: ignore[method-assign]
    assert client.closed
    assert client.channel.end_reason == "internal_error"
    assert "internal_error client_id=c" in caplog.text
    assert "of the brokers' own" in caplog.text
    other.subscribe("b")
    other.publish("b", b"y")
    assert [each.payload for each in other.messages()] == [b"y"]


@pytest.mark.interpreted
def test_a_flood_of_one_client_stops_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUBLISHES_PER_ITERATION", 2)
    node = FakeNode()
    channel: Any = node.connect("w").channel
    messages = [Message("t", b"%d" % number) for number in range(5)]
    assert receive(channel, messages, node.clock.time) is False  # though nobody gets them
    assert channel.rest == messages[2:]
    assert receive(channel, channel.rest, node.clock.time) is False
    assert receive(channel, channel.rest, node.clock.time) is True


def test_pubacks_in_a_row_make_room_at_once_and_keep_their_place() -> None:
    """What is between them is handled between them; one for QoS 2 ends the connection after those before it."""
    node = FakeNode({"max_inflight": 3})
    client = node.connect()
    client.subscribe("t", qos=2)
    for number in range(6):
        node.publish("t", b"%d" % number, 2 if number == 5 else 1)
    assert client.payloads() == [b"0", b"1", b"2"]
    client.send(Ack(c.PUBACK, 1), Ack(c.PUBACK, 9), Ack(c.PUBACK, 2), Pingreq(), Ack(c.PUBACK, 3))
    arrived = client.received()
    assert [type(each) for each in arrived] == [Publish, Publish, Pingresp, Publish]
    metrics = node.metrics
    assert (metrics.packets_puback_received, metrics.packets_puback_missed, metrics.messages_acked) == (4, 1, 3)
    client.send(Ack(c.PUBACK, 4), Ack(c.PUBACK, 6), Ack(c.PUBACK, 5))
    assert client.closed
    assert (metrics.messages_acked, metrics.packets_puback_inuse) == (4, 1)
