"""PUBACK, PUBREC, PUBREL and PUBCOMP from clients, without a socket."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Ack
from tests.support.fake_node import FakeNode, acknowledgements

versions = pytest.mark.parametrize("version", [3, 4, 5])


@versions
def test_the_window_moves_with_each_acknowledgement(version: int) -> None:
    """[MQTT-4.3.3-4] [MQTT-3.3.4-9]"""
    node = FakeNode({"max_inflight": 1})
    reader = node.connect("r", version=version)
    reader.subscribe("t", qos=2)
    for qos in (1, 2, 2):
        node.publish("t", b"%d" % qos, qos)
    assert reader.payloads() == [b"1"]
    reader.puback(1)
    assert reader.payloads() == [b"2"]
    reader.pubrec(2)
    assert reader.received() == [Ack(c.PUBREL, 2)]
    reader.pubcomp(2)
    assert reader.payloads() == [b"2"]
    reader.pubrec(3)
    reader.pubrec(3)
    assert reader.received() == [Ack(c.PUBREL, 3)] * 2
    assert node.metrics.packets_pubrec_inuse == 1
    assert node.metrics.messages_acked == 3


def test_a_refused_message_frees_its_place() -> None:
    """[MQTT-4.4.0-2]"""
    node = FakeNode({"max_inflight": 1})
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish("t", b"a", 2)
    node.publish("t", b"b", 2)
    reader.received()
    reader.send(Ack(c.PUBREC, 1, rc.UNSPECIFIED_ERROR))
    assert reader.payloads() == [b"b"]
    assert node.metrics.messages_acked == 0


@versions
def test_acknowledgements_of_nothing(version: int) -> None:
    node = FakeNode()
    reader = node.connect("r", version=version)
    for kind in (c.PUBACK, c.PUBREC, c.PUBCOMP):
        reader.send(Ack(kind, 9))
    code = rc.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else 0
    assert acknowledgements(reader) == [(c.PUBREL, 9, code)]
    metrics = node.metrics
    assert (metrics.packets_puback_missed, metrics.packets_pubrec_missed, metrics.packets_pubcomp_missed) == (1, 1, 1)


def test_the_wrong_acknowledgement_closes() -> None:
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish("t", b"", 2)
    reader.received()
    reader.puback(1)
    assert [each.reason_code for each in reader.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]


def test_pubcomp_before_pubrel_closes() -> None:
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish("t", b"", 2)
    reader.received()
    reader.pubcomp(1)
    assert [each.reason_code for each in reader.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]
    assert node.metrics.packets_pubcomp_inuse == 1


def test_the_properties_of_a_wrong_acknowledgement_are_not_those_of_a_disconnect() -> None:
    """Hooks find in ``packet_properties`` those of the packet in hand, and the client has sent no DISCONNECT."""
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish("t", b"", 2)
    found: list[object] = []
    node.hooks.client_disconnected.add(lambda client, reason: found.append(client.packet_properties))
    reader.send(Ack(c.PUBCOMP, 1, 0, {c.REASON_STRING: "why"}))
    assert found == [{}]


def test_acknowledgements_with_reason_codes_and_properties() -> None:
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish("t", b"1", 1)
    node.publish("t", b"2", 2)
    reader.received()
    extra = {c.REASON_STRING: "why"}
    reader.send(Ack(c.PUBACK, 1, rc.NO_MATCHING_SUBSCRIBERS, extra), Ack(c.PUBREC, 2, 0, extra))
    assert acknowledgements(reader) == [(c.PUBREL, 2, 0)]
    reader.send(Ack(c.PUBCOMP, 2, 0, extra), Ack(c.PUBREL, 5, rc.PACKET_IDENTIFIER_NOT_FOUND, extra))
    assert acknowledgements(reader) == [(c.PUBCOMP, 5, rc.PACKET_IDENTIFIER_NOT_FOUND)]
    assert reader.session.inflight == {}


def test_hooks_hear_of_acknowledgements_and_completions() -> None:
    node = FakeNode()
    heard: list[tuple[str, bytes]] = []
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish("t", b"unheard", 2)
    reader.pubrec(1)
    node.hooks.message_acked.add(lambda client, message: heard.append(("acked", message.payload)))
    node.hooks.delivery_completed.add(lambda client, message, at: heard.append(("completed", message.payload)))
    reader.pubcomp(1)
    node.publish("t", b"1", 1)
    node.publish("t", b"2", 2)
    reader.received()
    reader.puback(2)
    reader.pubrec(3)
    assert heard == [("acked", b"1"), ("completed", b"1"), ("acked", b"2")]
    reader.pubcomp(3)
    assert heard[3:] == [("completed", b"2")]
    assert reader.session.completions == {}


@versions
def test_pubrel_for_an_unknown_identifier(version: int) -> None:
    """[MQTT-4.3.3-11]"""
    writer = FakeNode().connect("w", version=version)
    writer.send(Ack(c.PUBREL, 3))
    code = rc.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else 0
    assert acknowledgements(writer) == [(c.PUBCOMP, 3, code)]
    assert writer.node.metrics.packets_pubrel_missed == 1
