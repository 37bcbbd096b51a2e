"""Large packets: read where they stay, piece by piece, with everything else as ever."""

import asyncio
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.constants import V4
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.packets import Disconnect, Pingreq, Pingresp
from taipan.broker.transport.large_packets import LargePacket
from tests.broker.transport.echo import on_both_loops
from tests.support.fake_node import FakeNode
from tests.support.node import Node, make_settings
from tests.support.wire import Publish, encode

LARGE = 1_000_000
PAYLOAD = bytes(range(256)) * (LARGE // 256)


def test_room_is_for_as_many_bytes_as_are_here_and_not_for_the_last_one() -> None:
    data = encode(Publish("t", PAYLOAD), V4)
    decoder = Decoder(TopicNames(), 2_000_000, 2_000_000)
    decoder.version = V4
    assert decoder.missing == 0
    assert decoder.feed(data[:1000]) == []
    assert decoder.missing == len(data) - 1000
    sizes = []
    at = 1000
    while True:
        room = decoder.room()
        sizes.append(len(room))
        assert len(room) <= at and at + len(room) < len(data)
        room[:] = data[at : at + len(room)]
        at += len(room)
        filled = len(room)
        del room
        if decoder.filled(filled):
            break
    assert sizes[:3] == [1000, 2000, 4000] and len(sizes) == 10
    assert (decoder.pending, decoder.missing) == (len(data) - 1, 0)
    message, ping = decoder.feed(data[-1:] + encode(Pingreq(), V4))
    assert message.payload == PAYLOAD and isinstance(ping, Pingreq)  # type: ignore[union-attr]
    assert (decoder.pending, decoder.missing) == (0, 0)


@pytest.mark.parametrize("rest", [1, 700, 5000])
def test_what_comes_the_usual_way_is_put_behind_it(rest: int) -> None:
    data = encode(Publish("t", PAYLOAD[:10_000]), V4)
    decoder = Decoder(TopicNames(), 2_000_000, 2_000_000)
    decoder.version = V4
    decoder.feed(data[:2000])
    room = decoder.room()
    room[:500] = data[2000:2500]
    del room
    assert not decoder.filled(500)
    at = 2500
    packets: list[Any] = []
    while at < len(data):
        packets += decoder.feed(data[at : at + rest])
        at += rest
    assert [each.payload for each in packets] == [PAYLOAD[:10_000]]


def test_a_large_packet_among_small_ones() -> None:
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=1)
    writer = node.connect("w")
    data = b"".join(
        encode(each, 5)
        for each in (
            Publish("t", b"before"),
            Publish("t", PAYLOAD, 1, packet_id=1),
            Publish("t", b"between", 1, packet_id=2),
            Publish("t", PAYLOAD[::-1], 1, packet_id=3),
            Pingreq(),
        )
    )
    seen = set()
    for at in range(0, len(data), 100_000):
        writer.transport.feed(data[at : at + 100_000])
        seen.add(type(writer.transport.protocol).__name__)
        assert writer.connection.buffered_bytes < 1_100_000
    assert seen == {"Connection", "LargePacket"}
    assert writer.transport.protocol is writer.connection
    node.run()
    assert reader.payloads() == [b"before", PAYLOAD, b"between", PAYLOAD[::-1]]
    answers = acknowledgements_and_more(writer)
    assert answers == [(c.PUBACK, 1), (c.PUBACK, 2), (c.PUBACK, 3), "pong"]
    assert writer.connection.received_bytes >= len(data) and node.metrics.bytes_received >= len(data)


def acknowledgements_and_more(client: Any) -> list[Any]:
    return ["pong" if isinstance(each, Pingresp) else (each.type, each.packet_id) for each in client.received()]


def test_a_few_bytes_of_a_large_packet_are_held_as_ever() -> None:
    node = FakeNode()
    writer = node.connect("w")
    data = encode(Publish("t", PAYLOAD), 5)
    writer.transport.feed(data[:60_000])
    assert writer.transport.protocol is writer.connection
    writer.transport.feed(data[60_000:70_000])
    assert isinstance(writer.transport.protocol, LargePacket)


def test_the_client_goes_in_the_middle() -> None:
    node = FakeNode()
    writer = node.connect("w")
    writer.transport.feed(encode(Publish("t", PAYLOAD), 5)[:300_000])
    assert isinstance(writer.transport.protocol, LargePacket)
    writer.vanish()
    assert node.listener.reasons == ["tcp_closed"] and node.metrics.messages_publish == 0


def test_the_end_of_the_stream_in_the_middle() -> None:
    node = FakeNode()
    writer = node.connect("w")
    writer.transport.feed(encode(Publish("t", PAYLOAD), 5)[:300_000])
    writer.transport.feed_eof()
    node.run()
    assert writer.closed and node.metrics.messages_publish == 0


def test_a_client_that_is_ended_in_the_middle() -> None:
    """Its bytes are taken no more."""
    from taipan.broker.channel import closing

    node = FakeNode()
    writer = node.connect("w")
    data = encode(Publish("t", PAYLOAD), 5)
    writer.transport.feed(data[:300_000])
    closing.kick(writer.channel)
    (bye,) = writer.received()
    assert isinstance(bye, Disconnect)
    writer.transport.feed(data[300_000:400_000])
    assert writer.transport.protocol is writer.connection
    writer.transport.feed(data[400_000:])
    node.run()
    assert node.metrics.messages_publish == 0


def test_its_bytes_count_for_the_rate() -> None:
    node = FakeNode({"byte_rate": (100_000, 1)})
    writer = node.connect("w")
    data = encode(Publish("t", PAYLOAD), 5)
    for at in range(0, len(data), 50_000):
        writer.transport.feed(data[at : at + 50_000])
    assert not writer.transport.reading
    pieces = 0
    while not node.metrics.messages_publish:
        node.pass_time(1)
        pieces += 1
        assert pieces < 100
    assert pieces >= 8


def test_a_slow_reader_while_a_large_packet_comes() -> None:
    node = FakeNode()
    both = node.connect("b")
    both.subscribe("t")
    both.transport.feed(encode(Publish("t", PAYLOAD), 5)[:300_000])
    both.transport.block()
    node.publish("t", PAYLOAD)
    node.loop.turn()
    assert not both.channel.writer.writable
    both.transport.unblock()
    assert both.channel.writer.writable


@on_both_loops
async def test_over_a_socket() -> None:
    node = await Node(make_settings()).start()
    try:
        reader = await node.client("r", 4)
        await reader.subscribe("t", qos=1)
        writer = await node.client("w", 4)
        payloads = [PAYLOAD, b"small", PAYLOAD[:200_000], PAYLOAD[::-1], b"", PAYLOAD * 2]
        sending = asyncio.ensure_future(
            writer.send(*(Publish("t", payload, 1, packet_id=n) for n, payload in enumerate(payloads, 1)))
        )
        for payload in payloads:
            got = await reader.expect(Publish)
            assert got.payload == payload
        await sending
        for number in range(1, len(payloads) + 1):
            await writer.expect_ack(c.PUBACK, number)
    finally:
        await node.stop()
