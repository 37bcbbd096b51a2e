"""The decoder against the packet table, and what a table cannot say: pieces, limits, caches."""

import pytest

from taipan.broker.mqtt import encoder
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.errors import MalformedPacket, MqttError, PacketTooLarge, ProtocolError, UnknownProtocol
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import NO_PROPERTIES, Ack, Connect, Pingreq, Subscribe, Unsubscribe
from taipan.broker.mqtt.properties import MAX_USER_PROPERTIES
from taipan.broker.mqtt.subscribe_decoder import MAX_FILTERS
from tests.packets import CLIENT, Bad, Row, comparable, rows, wire
from tests.support.table import each_row

_LIMIT = 2 * 1024 * 1024
_ROWS = list(rows())
_SHORT = [row for row in _ROWS if len(row.data) < 400]


def _decoder(version: int = 4, *, strict: bool = False, server_side: bool = True, limit: int = _LIMIT) -> Decoder:
    decoder = Decoder(TopicNames(strict), limit, 1024 * 1024, server_side)
    decoder.version = version
    return decoder


def _for(row: Row) -> Decoder:
    return _decoder(0 if row.fresh else row.version, strict=row.strict, server_side=row.sender == CLIENT)


def test_rows_differ() -> None:
    seen = [(row.data, row.version, row.sender, row.fresh, row.strict) for row in _ROWS]
    assert len(seen) == len(set(seen))


@each_row(_ROWS, lambda row: row.id)
def test_row(row: Row) -> None:
    decoder = _for(row)
    packets = decoder.feed(row.data)
    assert [comparable(packet) for packet in packets] == [comparable(row.expect)]
    if isinstance(row.expect, Bad):
        # [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1]: nothing of that connection is read any more.
        assert decoder.feed(b"\xc0\x00") == []
    else:
        assert decoder.pending == 0


@each_row(_SHORT, lambda row: row.id)
def test_row_byte_by_byte(row: Row) -> None:
    decoder = _for(row)
    packets = []
    for index in range(len(row.data)):
        packets += decoder.feed(row.data[index : index + 1])
    assert [comparable(packet) for packet in packets] == [comparable(row.expect)]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_rows_in_one_piece_and_split_anywhere(version: int) -> None:
    good = [row for row in _SHORT if row.version == version and row.sender == CLIENT and not row.fresh]
    good = [row for row in good if row.expect_code is None]
    data = b"".join(row.data for row in good)
    expected = [comparable(row.expect) for row in good]
    assert [comparable(packet) for packet in _decoder(version).feed(data)] == expected
    for size in (1, 2, 3, 7, 64, 1000):
        decoder = _decoder(version)
        packets = []
        for at in range(0, len(data), size):
            packets += decoder.feed(data[at : at + size])
        assert [comparable(packet) for packet in packets] == expected
        assert decoder.pending == 0


def test_packets_before_the_bad_one_are_kept() -> None:
    packets = _decoder().feed(wire("c0 00") + wire("40 02 0001") + wire("36 00") + wire("c0 00"))
    assert packets[:2] == [Pingreq(), 4 << 16 | 1]
    assert isinstance(packets[2], MalformedPacket)
    assert len(packets) == 3


def test_connect_and_what_follows_in_one_piece() -> None:
    decoder = _decoder(0)
    connect = Connect(5, "a")
    packets = decoder.feed(encoder.encode(connect, 5) + wire("c0 00") + wire("40 03 0001 10"))
    assert packets == [connect, Pingreq(), Ack(4, 1, 0x10)]
    assert decoder.version == 5


def test_version_is_known_where_the_rest_of_connect_is_bad() -> None:
    decoder = _decoder(0)
    assert isinstance(decoder.feed(wire("10 * s'MQTT' 05 03 0000 00 s'a'"))[0], MalformedPacket)
    assert decoder.version == 5
    decoder = _decoder(0)
    assert isinstance(decoder.feed(wire("10 * s'MQTT' 06 02 0000 00 s'a'"))[0], UnknownProtocol)
    assert decoder.version == 0


def test_first_packet_is_refused_by_its_first_byte() -> None:
    # [MQTT-3.1.0-1]
    for first in (0x00, 0x20, 0x30, 0x82, 0xC0, 0xE0, 0xF0):
        assert isinstance(_decoder(0).feed(bytes((first,)))[0], ProtocolError)


def test_connect_above_its_limit_is_refused_by_its_header() -> None:
    decoder = Decoder(TopicNames(), _LIMIT, 100)
    assert decoder.feed(b"\x10\x62") == []
    assert decoder.pending == 2
    decoder = Decoder(TopicNames(), _LIMIT, 100)
    assert [type(packet) for packet in decoder.feed(b"\x10\x63")] == [PacketTooLarge]
    decoder = Decoder(TopicNames(), _LIMIT, 100)
    assert [type(packet) for packet in decoder.feed(b"\x10\xff\xff\xff\x7f")] == [PacketTooLarge]


@pytest.mark.parametrize("version", [3, 4, 5])
def test_packet_above_the_limit_is_refused_by_its_header(version: int) -> None:
    assert _decoder(version, limit=100).feed(b"\x30\x62") == []
    error = _decoder(version, limit=100).feed(b"\x30\x63")[0]
    assert isinstance(error, PacketTooLarge)
    assert error.reason_code == 0x95
    assert isinstance(_decoder(version, limit=100).feed(b"\x30\xff\xff\xff\x7f")[0], PacketTooLarge)
    decoder = _decoder(version, limit=100)
    decoder.max_packet_size = 10
    assert isinstance(decoder.feed(wire("30 * s'abc' 00 000000000000"))[0], PacketTooLarge)
    decoder.max_packet_size = 1000
    assert decoder.feed(b"\xc0\x00") == []


def test_nothing_is_held_but_what_came() -> None:
    decoder = _decoder(limit=300_000_000)
    assert decoder.feed(b"\x30\xff\xff\xff\x7f") == []
    assert decoder.pending == 5
    decoder.feed(b"\x00")
    assert decoder.pending == 6


def test_large_packet_in_small_pieces() -> None:
    payload = bytes(range(256)) * 4096
    data = encoder.publish0(Message("big", payload), 4)
    decoder = _decoder()
    packets = []
    for at in range(0, len(data), 1000):
        packets += decoder.feed(data[at : at + 1000])
    (message,) = packets
    assert isinstance(message, Message)
    assert message.payload == payload
    assert message.payload_size == len(payload)


def test_small_pieces_are_held_as_one_and_large_ones_as_they_are() -> None:
    payload = bytes(range(256)) * 4096
    data = encoder.publish0(Message("big", payload), 4) + b"\xc0\x00"
    decoder = _decoder()
    for at in range(3000):
        assert decoder.feed(data[at : at + 1]) == []
    assert (len(decoder._held or ()), decoder.pending) == (1, 3000)
    for at in range(3000, 1_003_000, 50_000):
        assert decoder.feed(data[at : at + 50_000]) == []
    assert (len(decoder._held or ()), decoder.pending) == (21, 1_003_000)
    message, ping = decoder.feed(data[1_003_000:])
    assert isinstance(message, Message) and message.payload == payload and isinstance(ping, Pingreq)
    assert (decoder._held, decoder.pending) == (None, 0)


def test_a_piece_that_ends_one_packet_and_holds_others() -> None:
    one = wire("30 * s'a' '1'")
    decoder = _decoder()
    assert decoder.feed(one[:3]) == []
    packets = decoder.feed(one[3:] + one + one[:1])
    assert [comparable(packet) for packet in packets] == [comparable(Message("a", b"1"))] * 2
    assert decoder.pending == 1
    assert len(decoder.feed(one[1:])) == 1


def test_publish_shares_its_frame() -> None:
    data = wire("30 * s'a/b' 'hello'")
    (message,) = _decoder(4).feed(data)
    assert isinstance(message, Message)
    assert message.frame == data
    assert message.wire0_v3 == data
    assert message.wire0_v5 is None
    assert message.properties is NO_PROPERTIES
    assert message.publisher is None
    assert message.timestamp == 0.0


@pytest.mark.parametrize(
    "version, text, v3, v5",
    [
        (3, "30 * s'a' 'x'", True, False),
        (4, "31 * s'a' 'x'", False, False),
        (4, "32 * s'a' 0001 'x'", False, False),
        (4, "30 8400 s'a' 'x'", False, False),
        (5, "30 * s'a' 00 'x'", False, True),
        (5, "31 * s'a' 00 'x'", False, False),
        (5, "34 * s'a' 0001 00 'x'", False, False),
        (5, "30 * s'a' ( 01 01 03 s'c' 08 s'r' 09 s'd' 26 s'k' s'v' ) 'x'", False, True),
        (5, "30 * s'a' ( 02 00000001 ) 'x'", False, False),
        (5, "30 * s'a' ( 23 0001 ) 'x'", False, False),
        (5, "30 * s'' ( 23 0001 ) 'x'", False, False),
        (5, "30 * s'a' ( 26 s'k' s'v' 23 0001 ) 'x'", False, False),
    ],
)
def test_frame_goes_out_as_it_came_only_where_it_may(version: int, text: str, v3: bool, v5: bool) -> None:
    data = wire(text)
    (message,) = _decoder(version).feed(data)
    assert isinstance(message, Message)
    assert message.wire0_v3 == (data if v3 else None)
    assert message.wire0_v5 == (data if v5 else None)
    if v3 or v5:
        again = Message(message.topic, message.payload, properties=message.properties)
        assert encoder.publish0(again, version) == data


def test_plain_acknowledgements_are_integers() -> None:
    packets = _decoder(5).feed(wire("40 02 0001 50 02 0002 62 02 ffff 70 02 0004 40 03 0005 00 40 04 0006 00 00"))
    assert packets == [4 << 16 | 1, 5 << 16 | 2, 6 << 16 | 65535, 7 << 16 | 4, 4 << 16 | 5, 4 << 16 | 6]


def test_topic_names_are_cached_and_shared() -> None:
    names = TopicNames()
    one, two = Decoder(names, _LIMIT, 1000), Decoder(names, _LIMIT, 1000)
    one.version = two.version = 4
    (first,) = one.feed(wire("30 * s'some/topic'"))
    (second,) = two.feed(wire("32 * s'some/topic' 0001"))
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    assert first.topic is second.topic
    assert list(names.cache) == [b"some/topic"]


def test_topic_names_cache_neither_long_nor_bad_nor_empty() -> None:
    names = TopicNames()
    assert names.resolve(b"t" * 257) == "t" * 257
    assert names.resolve(b"") == ""
    for raw in (b"#", b"a/+", b"\xff", b"\0"):
        with pytest.raises(MalformedPacket):
            names.resolve(raw)
    assert names.cache == {}
    assert names.resolve(b"t" * 256) == "t" * 256
    assert len(names.cache) == 1


def test_topic_names_are_bounded() -> None:
    names = TopicNames(capacity=10)
    for number in range(1000):
        assert names.resolve(b"%d" % number) == str(number)
        assert len(names.cache) <= 10
    assert b"999" in names.cache
    cache = names.cache
    names.resolve(b"new")
    assert names.cache is cache
    empty = TopicNames(capacity=0)
    assert empty.resolve(b"a") == "a"
    assert empty.cache == {}


def test_bombs_of_short_entries_are_bounded() -> None:
    allowed = b"\x26\0\0\0\0" * MAX_USER_PROPERTIES
    for count, fits in ((MAX_USER_PROPERTIES, True), (MAX_USER_PROPERTIES + 1, False)):
        message = Message("a", properties={38: [("", "")] * count})
        (packet,) = _decoder(5).feed(encoder.publish0(message, 5))
        if fits:
            assert isinstance(packet, Message)
            assert len(packet.frame) > len(allowed)
        else:
            assert isinstance(packet, MqttError)
            assert packet.reason_code == 0x97
    for kind, entry in (("82", "s'a' 00"), ("a2", "s'a'")):
        (packet,) = _decoder(4).feed(wire(f"{kind} * 0001" + f" {entry}" * MAX_FILTERS))
        assert isinstance(packet, (Subscribe, Unsubscribe))
        assert len(packet.filters) == MAX_FILTERS
        (packet,) = _decoder(4).feed(wire(f"{kind} * 0001" + f" {entry}" * (MAX_FILTERS + 1)))
        assert isinstance(packet, MqttError)
        assert packet.reason_code == 0x97


def test_errors_never_hold_bytes_of_the_client() -> None:
    for row in _ROWS:
        if isinstance(row.expect, Bad) and len(row.data) < 2000:
            (error,) = _for(row).feed(row.data)
            assert str(error).isprintable()
            assert len(str(error)) < 100


@pytest.mark.parametrize(
    "behind", [b"", b"\x40", b"\x40\x02\x00", b"\xc0\x00", b"\x40\x02\x00\x00", b"\x50\x02\x00\x07"]
)
def test_pubacks_in_a_row_are_read_as_one_by_one(behind: bytes) -> None:
    """Whatever follows them; a Packet Identifier of 0 is refused behind those before it."""
    data = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in (1, 0xFFFF, *range(2, 40))) + behind
    together, one_by_one = Decoder(TopicNames(), 100, 100, False), Decoder(TopicNames(), 100, 100, False)
    together.version = one_by_one.version = 4
    packets = together.feed(data)
    expected = [packet for at in range(0, len(data), 4) for packet in one_by_one.feed(data[at : at + 4])]
    assert len(packets) >= 40
    assert [(type(each), str(each)) for each in packets] == [(type(each), str(each)) for each in expected]
    assert together.pending == one_by_one.pending
