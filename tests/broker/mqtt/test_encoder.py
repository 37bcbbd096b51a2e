"""The encoder against the packet table, and the shared forms of PUBLISH."""

import itertools

import pytest

from taipan.broker.mqtt.constants import REASON_STRING, USER_PROPERTY
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.encoder import PACKET_ID, ack, encode, encode_within, publish, publish0, wire
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
)
from tests.packets import Row, comparable, rows
from tests.packets import wire as bytes_of
from tests.support.table import each_row

_CANONICAL = [row for row in rows() if row.expect_code is None and row.canonical]


@each_row(_CANONICAL, lambda row: row.id)
def test_row(row: Row) -> None:
    assert encode(row.expect, row.version) == row.data


def test_packet_identifiers() -> None:
    assert len(PACKET_ID) == 65536
    assert PACKET_ID[1] == b"\0\1"
    assert PACKET_ID[0xABCD] == b"\xab\xcd"


@pytest.mark.parametrize("type, first", [(4, 0x40), (5, 0x50), (6, 0x62), (7, 0x70)])
def test_ack(type: int, first: int) -> None:
    # [MQTT-2.2.1-5]
    assert ack(type, 0x1234) == bytes((first, 2, 0x12, 0x34))


def test_3_1_says_nothing_of_the_session() -> None:
    assert encode(Connack(0, True), 3) == bytes_of("20 02 00 00")
    assert encode(Connack(0, True), 4) == bytes_of("20 02 01 00")


def test_3_x_gets_no_properties_and_its_own_codes() -> None:
    noise = {REASON_STRING: "why", USER_PROPERTY: [("a", "b")]}
    assert encode(Connack(0x8A, False, noise), 4) == bytes_of("20 02 00 05")
    # [3.1.1 MQTT-3.9.3-2] [MQTT-2.2.1-6]
    assert encode(Suback(1, [0, 2, 0x87, 0x8F], noise), 4) == bytes_of("90 * 0001 00 02 80 80")
    assert encode(Unsuback(1, [0x11], noise), 4) == bytes_of("b0 02 0001")
    assert encode(Ack(4, 1, 0x10, noise), 4) == bytes_of("40 02 0001")
    assert encode(Disconnect(0x8E, noise), 4) == bytes_of("e0 00")
    assert encode(Pingresp(), 3) == bytes_of("d0 00")
    assert encode(Pingreq(), 3) == bytes_of("c0 00")
    with pytest.raises(ValueError):
        encode(Auth(0x18), 4)
    message = Message("a", b"x", properties={1: 1})
    assert publish("a", message, 4, 1, True, True, 7, (1,), 5, 9) == bytes_of("3b * s'a' 0007 'x'")


def test_what_does_not_fit_the_wire() -> None:
    for packet in (
        Disconnect(0, {REASON_STRING: "x" * 65536}),
        Disconnect(0, {REASON_STRING: "\ud800"}),
        Connack(0, False, {33: 65536}),
        Connack(0, False, {39: -1}),
        Subscribe(1, [TopicFilter("f" * 65536)]),
        Subscribe(1, [TopicFilter("f")], {11: 268435456}),
    ):
        with pytest.raises(ValueError):
            encode(packet, 5)


@pytest.mark.parametrize(
    "packet",
    [
        Connack(0x87, False, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")], 17: 5}),
        Ack(4, 1, 0x87, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Ack(5, 1, 0x87, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Ack(6, 1, 0x92, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Ack(7, 1, 0x92, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Suback(1, [0], {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Unsuback(1, [0], {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Disconnect(0x87, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")]}),
        Auth(0x18, {REASON_STRING: "no", USER_PROPERTY: [("k", "v")], 21: "M"}),
    ],
    ids=lambda packet: f"{type(packet).__name__}{getattr(packet, 'type', '')}",
)
def test_reason_string_and_user_properties_give_way(
    packet: Connack | Ack | Suback | Unsuback | Disconnect | Auth,
) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3]
    [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1]
    [MQTT-3.11.2-2] [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.15.2-2] [MQTT-3.15.2-3]
    """
    properties = dict(packet.properties)
    whole = encode(packet, 5)
    assert encode_within(packet, 5, 0) == whole
    assert encode_within(packet, 5, len(whole)) == whole
    packet.properties = {key: value for key, value in properties.items() if key != USER_PROPERTY}
    without_user = encode(packet, 5)
    packet.properties = {key: value for key, value in packet.properties.items() if key != REASON_STRING}
    smallest = encode(packet, 5)
    packet.properties = dict(properties)
    assert encode_within(packet, 5, len(whole) - 1) == without_user
    assert encode_within(packet, 5, len(without_user) - 1) == smallest
    assert encode_within(packet, 5, len(smallest)) == smallest
    assert encode_within(packet, 5, len(smallest) - 1) is None
    assert packet.properties == properties


def test_within_for_what_has_nothing_to_leave_out() -> None:
    assert encode_within(Pingresp(), 5, 2) == b"\xd0\0"
    assert encode_within(Pingresp(), 5, 1) is None
    assert encode_within(Message("a", b"x", properties={USER_PROPERTY: [("k", "v")]}), 5, 10) is None
    assert encode_within(4 << 16 | 1, 5, 3) is None
    assert encode_within(Connack(0), 4, 3) is None


def test_publish0_is_made_once_for_each_version() -> None:
    message = Message("a/b", b"x", properties={3: "c"})
    v3, v5 = publish0(message, 4), publish0(message, 5)
    assert v3 == bytes_of("30 * s'a/b' 'x'")
    assert v5 == bytes_of("30 * s'a/b' ( 03 s'c' ) 'x'")
    assert publish0(message, 3) is v3
    assert publish0(message, 5) is v5


def test_publish0_of_another_qos_and_retain() -> None:
    (message,) = _decode(bytes_of("33 * s'a' 0001 'x'"), 4)
    assert publish0(message, 4) == bytes_of("30 * s'a' 'x'")
    assert publish0(message, 5) == bytes_of("30 * s'a' 00 'x'")


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("identifiers", [(), (1,), (5, 300)])
def test_wire_is_publish_in_two_parts(version: int, qos: int, retain: bool, identifiers: tuple[int, ...]) -> None:
    message = Message("a/b", b"payload" * 50, properties={1: 1, 38: [("k", "v")]})
    delivery = Delivery(message, qos, retain, identifiers)
    head, tail = wire(delivery, version)
    whole = head + (PACKET_ID[77] if qos else b"") + tail
    assert whole == publish("a/b", message, version, qos, retain, False, 77, identifiers)
    again = wire(delivery, version)
    assert again[0] is head
    assert again[1] is tail
    # [MQTT-2.2.1-2]: no Packet Identifier at QoS 0.
    if not qos:
        assert tail == b""
        if not retain and not identifiers:
            assert head is publish0(message, version)
    (back,) = _decode(whole, version)
    assert back.payload == message.payload
    assert back.packet_id == (77 if qos else 0)
    assert back.dup is False
    if version == 5:
        assert back.properties.get(11, []) == list(identifiers)
        # [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]
        assert {key: back.properties[key] for key in (1, 38)} == message.properties


@each_row(
    itertools.product(
        (3, 4, 5),
        (3, 4, 5),
        (0, 1, 2),
        (0x32, 0x33, 0x34, 0x35, 0x3A, 0x3C),
        ("", "01 01", "02 00000009"),
        (b"", b"x", b"y" * 130),
    )
)
def test_wire_of_a_message_that_came_in(row: tuple[int, int, int, int, str, bytes]) -> None:
    """Where the inbound bytes are used again, what goes out is what would be written anew."""
    inbound, outbound, qos, first, properties, text = row
    body = (
        b"\0\1a\0\x09" + (bytes((len(bytes.fromhex(properties)),)) + bytes.fromhex(properties)) * (inbound == 5) + text
    )
    lengths = [bytes((len(body),))] if len(body) < 128 else [bytes((len(body) & 0x7F | 0x80, 1))]
    if inbound != 5 and len(body) < 128:
        lengths.append(bytes((len(body) | 0x80, 0)))  # 3.x may write a length longer than it needs
    for length in lengths:
        (message,) = _decode(bytes((first,)) + length + body, inbound)
        delivery = Delivery(message, qos)
        head, tail = wire(delivery, outbound)
        whole = head + (PACKET_ID[77] if qos else b"") + tail
        assert whole == publish("a", message, outbound, qos, False, False, 77)


def test_publish_with_alias_and_expiry() -> None:
    message = Message("a", b"x", properties={2: 100, 3: "c"})
    assert publish("a", message, 5, 1, False, True, 9, (), 3) == bytes_of(
        "3a * s'a' 0009 ( 23 0003 02 00000064 03 s'c' ) 'x'"
    )
    # [MQTT-3.3.2-6]
    assert publish("", message, 5, 0, False, False, 0, (2,), 3, 40) == bytes_of(
        "30 * s'' ( 23 0003 0b 02 02 00000028 03 s'c' ) 'x'"
    )
    assert message.properties == {2: 100, 3: "c"}
    assert publish("a", Message("a"), 5, 0, False, False, 0, (), 0, 40) == bytes_of("30 * s'a' 00")


@pytest.mark.parametrize("size", [0, 1, 122, 123, 124, 16377, 16378, 16379, 2097145, 2097146])
def test_lengths_around_the_borders(size: int) -> None:
    # [MQTT-1.5.5-1]
    message = Message("abc", b"x" * size)
    for version in (4, 5):
        (back,) = _decode(publish0(message, version), version)
        assert back.payload_size == size


def test_bridge_level() -> None:
    assert encode(Connect(4, "b", is_bridge=True), 4)[8] == 0x84
    assert encode(Connect(3, "b", is_bridge=True), 3)[10] == 0x83


def test_all_that_is_encoded_is_comparable() -> None:
    (message,) = _decode(encode(Message("a", b"x", 2, True, packet_id=3, dup=True), 4), 4)
    assert comparable(message) == comparable(Message("a", b"x", 2, True, packet_id=3, dup=True))


def _decode(data: bytes, version: int) -> list[Message]:
    decoder = Decoder(TopicNames(), 10_000_000, 1000, server_side=False)
    decoder.version = version
    messages = decoder.feed(data)
    return [message for message in messages if isinstance(message, Message)]
