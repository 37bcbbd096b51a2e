"""The quick way to read a run of packets says what the decoder says, or leaves it to that."""

import pytest

from taipan.broker.mqtt import encoder
from taipan.broker.mqtt.constants import CONTENT_TYPE
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.run_decoder import count_numbered, read_run

_SIZES = (0, 1, 110, 111, 112, 113, 200, 16_370, 16_371, 16_372, 16_373, 16_374, 70_000, 2_097_200)


def _packet(version: int, topic: str, size: int, packet_id: int, qos: int = 1, retain: bool = False) -> bytes:
    return encoder.publish(topic, Message(topic, bytes(size)), version, qos, retain, False, packet_id)


def _facts(message: Message) -> tuple[object, ...]:
    return (
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
        message.packet_id,
        message.frame,
        message.payload_at,
        message.frame_version,
        message.packet_id_at,
        message.has_properties,
        message.expires,
    )


def _decoded(data: bytes, version: int) -> list[tuple[object, ...]] | None:
    decoder = Decoder(TopicNames(False), 1 << 28, 1 << 20)
    decoder.version = version
    packets = decoder.feed(data)
    if decoder.pending or not all(isinstance(each, Message) for each in packets):
        return None
    return [_facts(each) for each in packets if isinstance(each, Message)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["t", "some/where/\u00fc", "x" * 300])
def test_packets_of_every_size_are_read_as_the_decoder_reads_them(version: int, topic: str) -> None:
    data = b"".join([_packet(version, topic, size, place + 1) for place, size in enumerate(_SIZES)])
    found = read_run(data, version, topic, None, 12.0, "F" * 16, 7)
    assert found is not None
    assert [_facts(each) for each in found.messages] == _decoded(data, version)
    assert [each.id for each in found.messages] == ["F" * 16 + f"{7 + place:016X}" for place in range(len(_SIZES))]
    assert {each.timestamp for each in found.messages} == {12.0}
    without = read_run(data, version, topic, None, 12.0, "", 0)
    assert without is not None and not any(each.identified for each in without.messages)


@pytest.mark.parametrize("version", [4, 5])
def test_what_is_cut_off_is_left_to_the_decoder(version: int) -> None:
    data = _packet(version, "topic", 5, 1) + _packet(version, "topic", 150, 2)
    first = len(_packet(version, "topic", 5, 1))
    for end in range(1, len(data)):
        found = read_run(data[:end], version, "topic", None, 0.0, "", 0)
        assert (found is None) == (end != first), end


@pytest.mark.parametrize("version", [4, 5])
def test_what_is_of_another_kind_is_left_to_the_decoder(version: int) -> None:
    good = _packet(version, "t", 5, 1)
    properties = Message("t", b"x", properties={CONTENT_TYPE: "text"})
    others = [
        _packet(version, "u", 5, 2),
        _packet(version, "tt", 5, 2),
        _packet(version, "t", 5, 2, qos=2),
        _packet(version, "t", 5, 2, retain=True),
        _packet(version, "t", 5, 0, qos=0),
        b"\x3a" + good[1:],  # DUP
        b"\x32\x8a\x00" + good[2:],  # a length that could be shorter
        b"\x32\x80\x80\x80\x80\x01",
        b"\x32\x05\x00\x01t\x00\x00" if version == 4 else b"\x32\x06\x00\x01t\x00\x00\x00",  # Packet Identifier 0
        b"\xc0\x00",
        b"\x32",
        b"\x32\x00",
    ]
    if version == 5:
        others.append(encoder.publish("t", properties, 5, 1, False, False, 2))
    for other in others:
        assert read_run(good + other, version, "t", None, 0.0, "", 0) is None, other
        assert read_run(other + good, version, "t", None, 0.0, "", 0) is None, other


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "x" * 65_536])
def test_a_topic_that_is_none_is_left_to_the_decoder(version: int, topic: str) -> None:
    name = topic.encode()[:65_535]
    body = len(name).to_bytes(2, "big") + name + b"\x00\x01" + (b"\x00" if version == 5 else b"")
    assert read_run(b"\x32" + _length(len(body)) + body, version, topic, None, 0.0, "", 0) is None


def _length(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*digits, number))


def test_messages_with_a_number_are_counted_though_they_cannot_be_read() -> None:
    good = _packet(4, "t", 200, 1)
    assert count_numbered(b"") == 0
    assert count_numbered(good + _packet(4, "t", 1, 0, qos=0) + b"\x34\x01x" + b"\xc0\x00" + b"\x62\x02\x00\x01") == 2
    assert count_numbered(good + b"\x32") == count_numbered(good[:-1]) == -1
    assert count_numbered(b"\x32\xff\xff\xff\xff\x01") == -1
