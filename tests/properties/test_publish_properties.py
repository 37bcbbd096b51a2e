"""Properties of a PUBLISH that travel as the bytes they came as, against reading and writing each of them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.data_types import string, variable
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.encoder import PACKET_ID, encode, publish, wire
from taipan.broker.mqtt.errors import MqttError, ProtocolError
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.packets import NO_PROPERTIES, Properties
from taipan.broker.mqtt.properties import read

_PLAIN = st.sampled_from([b"", b"a", b"reply/to", b"application/json", b"~ !", b"x" * 300])
_ODD = st.sampled_from(
    [b"+", b"a/#", "é/ä".encode(), "\ufeff€𝄞".encode(), b"\x1f", b"\x7f", b"\xc2\x85", b"\xff", b"\0"]
)
_strings = _PLAIN | _PLAIN | _ODD | st.binary(max_size=4)
_sized = _strings.map(lambda each: PACKET_ID[len(each)] + each)
_numbers = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFFFF, 0x1_0000, 0xFFFF_FFFF])

_PIECES = {
    c.PAYLOAD_FORMAT_INDICATOR: st.sampled_from([b"\0", b"\1", b"\2"]),
    c.MESSAGE_EXPIRY_INTERVAL: _numbers.map(lambda number: number.to_bytes(4, "big")),
    c.CONTENT_TYPE: _sized,
    c.RESPONSE_TOPIC: _sized,
    c.CORRELATION_DATA: _sized,
    c.TOPIC_ALIAS: _numbers.map(lambda number: (number & 0xFFFF).to_bytes(2, "big")),
    c.USER_PROPERTY: st.tuples(_sized, _sized).map(b"".join),
}
_USUAL = list(_PIECES)


@st.composite
def _pieces(draw: st.DrawFn) -> bytes:
    identifier = draw(st.sampled_from([*_USUAL, *_USUAL, c.USER_PROPERTY]))
    return bytes((identifier,)) + draw(_PIECES[identifier])


_hostile = st.sampled_from([b"\x0b\x01", b"\x21\0\1", b"\x11\0\0\0\1", b"\x83\0\0", b"\xa3\0\0\1", b"\x7f", b"\x80"])


@st.composite
def _blocks(draw: st.DrawFn) -> bytes:
    """Properties with their length in front, right or wrong."""
    pieces = draw(st.lists(_pieces(), max_size=6))
    if draw(st.integers(0, 7)) == 0:
        pieces.insert(draw(st.integers(0, len(pieces))), draw(_hostile))
    if draw(st.booleans()):  # mostly nothing is there twice
        pieces = [each for at, each in enumerate(pieces) if each[0] not in [one[0] for one in pieces[:at]]]
    block = bytearray(b"".join(pieces))
    if block and draw(st.integers(0, 4)) == 0:
        block[draw(st.integers(0, len(block) - 1))] = draw(st.integers(0, 255))
    size = max(0, len(block) + draw(st.sampled_from([0] * 12 + [-1, 1, 5])))
    return (variable(size) if draw(st.integers(0, 9)) else bytes((size & 0x7F | 0x80, size >> 7))) + bytes(block)


def _expected(body: bytes, at: int, strict: bool, from_client: bool) -> tuple[Properties, int] | MqttError:
    """What reading them one by one gives."""
    try:
        properties, at = read(body, at, len(body), c.PUBLISH, strict)
        if from_client and c.SUBSCRIPTION_IDENTIFIER in properties:
            raise ProtocolError("Subscription Identifier from a client")
    except MqttError as error:
        return error
    return properties, at


def _decoded(packet: bytes, strict: bool, from_client: bool) -> Message | MqttError:
    decoder = Decoder(TopicNames(strict), 1 << 20, 1 << 20, server_side=from_client)
    decoder.version = c.V5
    (found,) = decoder.feed(packet)
    assert isinstance(found, Message | MqttError)
    return found


@settings(deadline=None, max_examples=150)
@given(_blocks(), st.binary(max_size=3), st.integers(0, 1), st.booleans(), st.booleans())
def test_read_as_one_by_one(block: bytes, payload: bytes, qos: int, strict: bool, from_client: bool) -> None:
    head = string("a") + (b"\0\7" if qos else b"")
    body = head + block + payload
    packet = bytes((0x30 | qos << 1,)) + variable(len(body)) + body
    expected = _expected(body, len(head), strict, from_client)
    found = _decoded(packet, strict, from_client)
    if isinstance(expected, MqttError):
        assert isinstance(found, MqttError)
        assert (type(found), str(found), found.reason_code, found.setting) == (
            type(expected),
            str(expected),
            expected.reason_code,
            expected.setting,
        )
        return
    assert isinstance(found, Message), found
    properties, at = expected
    assert found.has_properties == bool(properties)
    assert found.has_alias == (c.TOPIC_ALIAS in properties)
    assert found.expires == (c.MESSAGE_EXPIRY_INTERVAL in properties)
    assert found.expiry_interval == properties.get(c.MESSAGE_EXPIRY_INTERVAL)
    assert found.payload == body[at:]
    shared = not (found.has_alias or found.expires)
    assert found.wire0_v5 == (packet if shared and not qos else None)
    assert bool(found.packet_id_at) == bool(shared and qos)
    assert found.properties == properties
    assert list(found.properties) == list(properties)
    if found.has_alias:
        assert found.take_alias() == properties.pop(c.TOPIC_ALIAS)
        assert not found.has_alias
        assert found.properties == properties
        assert found.has_properties == bool(properties)
        assert (found.properties is NO_PROPERTIES) == (not properties)
        assert (found.frame, found.payload) == (packet, body[at:])


@st.composite
def _ways(draw: st.DrawFn) -> dict[str, Any]:
    qos = draw(st.integers(0, 2))
    alias = draw(st.sampled_from([0, 1, 300]))
    return {
        "topic": "" if alias and draw(st.booleans()) else draw(st.sampled_from(["a", "é" * 70])),
        "version": c.V5,
        "qos": qos,
        "retain": draw(st.booleans()),
        "dup": qos > 0 and draw(st.booleans()),
        "packet_id": 9 if qos else 0,
        "identifiers": tuple(draw(st.lists(st.sampled_from([1, 127, 128, 268_435_455]), max_size=3))),
        "alias": alias,
    }


@settings(deadline=None, max_examples=150)
@given(_blocks(), st.binary(max_size=200), st.booleans(), _ways(), st.sampled_from([None, 0, 1, 0xFFFF_FFFE]))
def test_written_as_one_by_one(
    block: bytes, payload: bytes, look: bool, way: dict[str, Any], expiry: int | None
) -> None:
    """A subscriber gets the publisher's properties, but for the alias, with its own and with what is left of time."""
    body = string("a") + block + payload
    found = _decoded(b"\x30" + variable(len(body)) + body, False, True)
    if isinstance(found, MqttError):
        return
    properties = read(body, 3, len(body), c.PUBLISH, False)[0]
    payload = found.payload
    if look:  # whether somebody has asked for them changes nothing
        assert found.properties == properties
    if found.has_alias:
        found.take_alias()
        del properties[c.TOPIC_ALIAS]
    if not found.expires:
        expiry = None
    expected: Properties = dict(properties)
    if expiry is not None:
        expected[c.MESSAGE_EXPIRY_INTERVAL] = expiry
    if way["alias"]:
        expected[c.TOPIC_ALIAS] = way["alias"]
    if way["identifiers"]:
        expected[c.SUBSCRIPTION_IDENTIFIER] = list(way["identifiers"])

    packet = publish(message=found, expiry=expiry, **way)
    one_by_one = publish(message=Message("a", payload, properties=dict(properties)), expiry=expiry, **way)
    assert len(one_by_one) == len(packet)  # User Properties go together there
    sent = _decoded(packet, False, False)
    again = _decoded(one_by_one, False, False)
    assert isinstance(sent, Message), sent
    assert isinstance(again, Message), again
    assert sent.properties == again.properties == expected
    assert (sent.topic, sent.payload) == (way["topic"], payload)
    assert (sent.qos, sent.retain, sent.dup, sent.packet_id) == (
        way["qos"],
        way["retain"],
        way["dup"],
        way["packet_id"],
    )
    if not found.expires:
        delivery = Delivery(found, way["qos"], way["retain"], way["identifiers"])
        head, tail = wire(delivery, c.V5)
        shared = publish("a", found, c.V5, way["qos"], way["retain"], False, way["packet_id"], way["identifiers"])
        assert head + (PACKET_ID[way["packet_id"]] if way["qos"] else b"") + tail == shared
    assert encode(found, c.V4) == publish("a", found, c.V4, 0, False, False, 0)
