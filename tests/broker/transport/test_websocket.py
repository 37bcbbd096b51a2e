"""MQTT's byte stream over WebSocket: handshake, frames, closing, and peers that mean harm; over real sockets."""

import asyncio
import random
import ssl
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import websockets
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.config import ZoneSettings
from taipan.broker.transport.layer import raise_packet_limit
from taipan.broker.transport.websocket import (
    LARGE,
    LIBRARY_WORK,
    MAX_REQUEST,
    MIN_FRAME,
    SLACK,
    WORK_PER_ITERATION,
    WebSocketError,
    WebSocketLayer,
)
from taipan.broker.transport.websocket_frames import framed, take_plain
from tests.broker.transport.echo import (
    WatchedListener,
    closed_by_peer,
    dial,
    listener_settings,
    listening,
    on_every_transport,
)
from tests.support.certificates import Certificates
from tests.support.wire import Publish, encode

OFFER = "permessage-deflate; client_max_window_bits"
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

REQUEST = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "mqtt",
}


def request(path: str = "/mqtt", method: str = "GET", version: str = "HTTP/1.1", **changes: str | None) -> bytes:
    """A handshake; ``changes`` to its headers have _ for -, and None leaves one out."""
    headers = {**REQUEST, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [
        f"{method} {path} {version}",
        *(f"{name}: {value}" for name, value in headers.items() if value is not None),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def frame(opcode: int, payload: bytes = b"", fin: bool = True, masked: bool = True, rsv1: bool = False) -> bytes:
    head = bytes([(0x80 if fin else 0) | (0x40 if rsv1 else 0) | opcode])
    length, mask_bit = len(payload), 0x80 if masked else 0
    if length < 126:
        head += bytes([mask_bit | length])
    elif length < 65536:
        head += struct.pack("!BH", mask_bit | 126, length)
    else:
        head += struct.pack("!BQ", mask_bit | 127, length)
    if not masked:
        return head + payload
    mask = b"\x0a\x1b\x2c\x3d"
    stream = (mask * (length // 4 + 1))[:length]
    return head + mask + (int.from_bytes(payload, "big") ^ int.from_bytes(stream, "big")).to_bytes(length, "big")


class Peer:
    """A client that sends any bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def frame(self) -> tuple[int, bytes]:
        """The opcode and payload of the next frame; servers do not mask, and send no fragments here."""
        head, length = await self.reader.readexactly(2)
        assert head & 0x80
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return head & 0x7F, await self.reader.readexactly(length)

    async def payload(self, size: int) -> bytes:
        """The next ``size`` bytes of the stream in binary frames."""
        data = b""
        while len(data) < size:
            opcode, payload = await self.frame()
            assert opcode == BINARY
            data += payload
        return data

    async def closes(self, code: int) -> None:
        """Expect a close frame with ``code``, then the end."""
        opcode, payload = await self.frame()
        assert opcode == CLOSE
        assert struct.unpack("!H", payload[:2])[0] == code
        assert await closed_by_peer(self.reader) == b""


@asynccontextmanager
async def opened(listener: WatchedListener, head: bytes = b"", after: bytes = b"") -> AsyncIterator[Peer]:
    async with dial(listener.port) as (reader, writer):
        writer.write((head or request()) + after)
        response = await reader.readuntil(b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 101 "), response
        yield Peer(reader, writer)


async def answer(listener: WatchedListener, data: bytes) -> bytes:
    """The whole HTTP answer to ``data``."""
    async with dial(listener.port) as (reader, writer):
        writer.write(data)
        return await closed_by_peer(reader)


# The handshake


@on_every_transport
async def test_handshake_and_bytes_both_ways() -> None:
    """[MQTT-6.0.0-3] [MQTT-6.0.0-4] mqtt is offered and told back; [MQTT-6.0.0-1] packets come in binary frames."""
    async with listening(type="ws") as listener, dial(listener.port) as (reader, writer):
        writer.write(request())
        response = await reader.readuntil(b"\r\n\r\n")
        assert response.startswith(b"HTTP/1.1 101 ")
        assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in response
        assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in response
        assert b"Extensions" not in response
        peer = Peer(reader, writer)
        peer.send(frame(BINARY, b"hello"))
        assert await peer.frame() == (BINARY, b"hello")
        transport = listener.echoes[0].transport
        assert isinstance(transport, WebSocketLayer)
        assert transport.get_extra_info("peername") == writer.get_extra_info("sockname")
        assert transport.get_extra_info("sockname") == listener.bind
        assert not transport.is_closing()
        assert listener.protocol == f"mqtt:ws:{listener.port}"
        assert listener.pending == set()


@pytest.mark.parametrize(
    "offered, selected",
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("mqttv3.1.1", "mqttv3.1.1"),
        ("chat, mqttv3.1, mqtt", "mqtt"),
    ],
)
@on_every_transport
async def test_subprotocol_is_selected(offered: str, selected: str) -> None:
    """[MQTT-6.0.0-4] The name told back is mqtt wherever that was offered."""
    async with listening(type="ws") as listener, dial(listener.port) as (reader, writer):
        writer.write(request(Sec_WebSocket_Protocol=offered))
        response = await reader.readuntil(b"\r\n\r\n")
        assert f"\r\nSec-WebSocket-Protocol: {selected}\r\n".encode() in response


@on_every_transport
async def test_without_a_subprotocol_the_handshake_is_refused() -> None:
    """[MQTT-6.0.0-3] A Client that does not offer mqtt is no MQTT Client."""
    async with listening(type="ws") as listener:
        for offered in (None, "chat", "mqtt5"):
            assert (await answer(listener, request(Sec_WebSocket_Protocol=offered))).startswith(b"HTTP/1.1 400 ")
        assert listener.refused == {"websocket_subprotocol": 3}
        assert listener.pending == set()
        assert listener.echoes == []


@on_every_transport
async def test_subprotocol_may_be_left_out_where_it_is_not_required() -> None:
    async with listening(type="ws", subprotocol_required=False) as listener:
        for offered in (None, "chat"):
            async with dial(listener.port) as (reader, writer):
                writer.write(request(Sec_WebSocket_Protocol=offered))
                response = await reader.readuntil(b"\r\n\r\n")
                assert response.startswith(b"HTTP/1.1 101 ")
                assert b"Sec-WebSocket-Protocol" not in response
        async with dial(listener.port) as (reader, writer):
            writer.write(request())
            assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in await reader.readuntil(b"\r\n\r\n")


@on_every_transport
async def test_path() -> None:
    async with listening(type="ws", path="/devices") as listener:
        for path in ("/mqtt", "/", "/devices/x", "/devicesx", "*", "http://localhost/devices"):
            assert (await answer(listener, request(path))).startswith(b"HTTP/1.1 404 ")
        assert listener.refused == {"websocket_path": 6}
        for path in ("/devices?token=1", "/devices/", "/devices/?token=1"):
            async with opened(listener, request(path)) as peer:
                peer.send(frame(BINARY, b"hello"))
                assert await peer.frame() == (BINARY, b"hello")


@on_every_transport
async def test_any_path() -> None:
    async with listening(type="ws", path="*") as listener:
        for path in ("/", "/mqtt", "/a/b?c=d", "/%20"):
            async with opened(listener, request(path)) as peer:
                peer.send(frame(BINARY, b"hello"))
                assert await peer.frame() == (BINARY, b"hello")
        assert listener.refused == {}


@on_every_transport
async def test_several_paths() -> None:
    async with listening(type="ws", path=["/mqtt", "/"]) as listener:
        for path in ("/", "/mqtt", "/mqtt/", "/?c=d", "/mqtt?c=d"):
            async with opened(listener, request(path)) as peer:
                peer.send(frame(BINARY, b"hello"))
                assert await peer.frame() == (BINARY, b"hello")
        for path in ("/other", "/mqtt/x"):
            assert (await answer(listener, request(path))).startswith(b"HTTP/1.1 404 ")
        assert listener.refused == {"websocket_path": 2}


@on_every_transport
async def test_origin() -> None:
    async with listening(type="ws", allowed_origins=["https://panel.example"]) as listener:
        for origin in ("https://evil.example", "null", "https://panel.example.evil.example"):
            assert (await answer(listener, request(Origin=origin))).startswith(b"HTTP/1.1 403 ")
        assert listener.refused == {"websocket_origin": 3}
        for origin in ("https://panel.example", None):
            async with opened(listener, request(Origin=origin)):
                pass


LOOPBACK_ORIGINS = (
    "http://localhost",
    "http://localhost:3000",
    "https://127.0.0.1:8443",
    "http://127.8.9.1",
    "http://[::1]:8083",
)
FOREIGN_ORIGINS = (
    "https://anywhere.example",
    "http://localhost.example",
    "http://127.0.0.1.example:8083",
    "http://127.0.0.1@evil.example",
    "http://rebound.example:8083",
    "file://",
    "null",
    "",
)


@on_every_transport
async def test_where_loopback_lets_anonymous_clients_in_only_its_own_pages_connect() -> None:
    async with listening(type="ws") as listener:
        for origin in FOREIGN_ORIGINS:
            assert (await answer(listener, request(Origin=origin))).startswith(b"HTTP/1.1 403 ")
        assert listener.refused == {"websocket_origin": len(FOREIGN_ORIGINS)}
        for own in (*LOOPBACK_ORIGINS, None):
            async with opened(listener, request(Origin=own)):
                pass


@on_every_transport
async def test_any_page_connects_where_anonymity_comes_from_elsewhere_or_any_origin_is_allowed() -> None:
    page = request(Origin="https://anywhere.example")
    for zone in (ZoneSettings(allow_anonymous=True), ZoneSettings(allow_anonymous=False)):
        async with listening(zone, type="ws") as listener, opened(listener, page):
            pass
    async with listening(type="ws", bind="0.0.0.0:0") as listener, opened(listener, page):
        pass
    async with listening(type="ws", allowed_origins=["https://panel.example", "*"]) as listener, opened(listener, page):
        pass


@on_every_transport
async def test_a_reload_of_allowed_origins_counts_for_the_next_page() -> None:
    async with listening(type="ws") as listener:
        page = request(Origin="https://panel.example")
        assert (await answer(listener, page)).startswith(b"HTTP/1.1 403 ")
        allowed = msgspec.structs.replace(listener.settings, allowed_origins=["https://panel.example"])
        listener.reload(allowed, listener.zone)
        async with opened(listener, page):
            pass
        # Once some are named, pages of this machine are as foreign as others.
        assert (await answer(listener, request(Origin="http://localhost"))).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "data, status",
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 426),
        (b"GET /mqtt HTTP/1.0\r\n\r\n", 400 if websockets.__version__.startswith("15.") else 505),
        (b"GET\r\n\r\n", 400),
        (b"POST /mqtt HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405),
        (b"GET /mqtt HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET /mqtt HTTP/1.1\r\n: x\r\n\r\n", 400),
        (request(Sec_WebSocket_Key="short"), 400),
        (request(Sec_WebSocket_Key=None), 400),
        (request(Sec_WebSocket_Key="\xff" * 24), 400),
        (request(Sec_WebSocket_Version="8"), 400),
        (request(Sec_WebSocket_Version="\xff"), 400),
        (request(Sec_WebSocket_Protocol="mqtt,,;"), 400),
        (request(Connection="close"), 426),
        (request(Upgrade="h2c"), 426),
        (b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02me", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"A" * MAX_REQUEST, 431),
        (b"GET /mqtt HTTP/1.1\r\n" + b"X: y\r\n" * 3000, 431),
        (b"GET /mqtt HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 400),
    ],
)
@on_every_transport
async def test_other_requests_get_a_client_error(data: bytes, status: int) -> None:
    async with listening(type="ws") as listener:
        response = await answer(listener, data)
        assert response.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\nConnection: close\r\n" in response
        assert (b"\r\nAllow: GET\r\n" in response) == (status == 405)
        assert list(listener.refused.values()) == [1]
        assert listener.pending == set()
        assert listener.echoes == []


@on_every_transport
async def test_a_request_byte_by_byte_with_frames_right_behind_it() -> None:
    async with listening(type="ws") as listener:
        async with dial(listener.port) as (reader, writer):
            for byte in request():
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        async with opened(listener, after=frame(PING, b"p") + frame(BINARY, b"early")) as peer:
            assert await peer.frame() == (PONG, b"p")
            assert await peer.frame() == (BINARY, b"early")


@on_every_transport
async def test_a_slow_handshake_is_bounded_in_time() -> None:
    async with (
        listening(ZoneSettings(idle_timeout=0.05), type="ws") as listener,
        dial(listener.port) as (reader, writer),
    ):
        writer.write(request()[:-2])
        assert (await closed_by_peer(reader)).startswith(b"HTTP/1.1 408 ")
        assert listener.refused == {"websocket_timeout": 1}
        assert listener.pending == set()


@on_every_transport
async def test_a_client_that_leaves_during_the_handshake_is_counted() -> None:
    async with listening(type="ws") as listener:
        async with dial(listener.port) as (_, writer):
            writer.write(request()[:50])
        await listener.until(lambda: listener.refused == {"closed_early": 1})
        assert listener.pending == set()


@on_every_transport
async def test_sockets_in_their_handshake_count_against_max_connections_and_end_with_the_listener() -> None:
    async with listening(type="ws", max_connections=2) as listener:
        async with opened(listener), dial(listener.port) as (waiting, _):
            await listener.until(lambda: len(listener.pending) == 1)
            async with dial(listener.port) as (reader, _):
                assert await closed_by_peer(reader) == b""
            assert listener.refused == {"max_connections": 1}
            await listener.stop()
            assert await closed_by_peer(waiting) == b""
            assert listener.current_connections == 1
        assert listener.refused == {"max_connections": 1}


# Frames


@on_every_transport
async def test_a_stream_split_and_joined_at_will() -> None:
    """[MQTT-6.0.0-2] Frames and fragments of any size, in segments of any size, are one stream of bytes."""
    dice = random.Random(7)
    data = dice.randbytes(60_000)
    wire, position = b"", 0
    fragmented = False
    while position < len(data):
        size = dice.choice([0, 1, 2, 125, 126, 127, 3000])
        last = dice.random() < 0.5 or position + size >= len(data)
        wire += frame(CONT if fragmented else BINARY, data[position : position + size], fin=last)
        fragmented = not last
        position += size
        if dice.random() < 0.1:
            wire += frame(PONG, b"not asked for")
    async with listening(type="ws") as listener, opened(listener) as peer:
        position = 0
        while position < len(wire):
            size = dice.choice([1, 7, 100, 5000])
            peer.send(wire[position : position + size])
            await peer.writer.drain()
            await asyncio.sleep(0)
            position += size
        assert await peer.payload(len(data)) == data
        assert b"".join(listener.echoes[0].received) == data


@on_every_transport
async def test_a_fragment_is_handed_on_before_its_message_ends() -> None:
    """[MQTT-6.0.0-2]"""
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"first", fin=False))
        assert await peer.frame() == (BINARY, b"first")
        peer.send(frame(PING, b"between"))
        assert await peer.frame() == (PONG, b"between")
        peer.send(frame(CONT, b"second", fin=False))
        assert await peer.frame() == (BINARY, b"second")


@on_every_transport
async def test_one_message_may_be_as_long_as_the_stream() -> None:
    zone = ZoneSettings(max_connect_size=1000)
    async with listening(zone, type="ws") as listener, opened(listener) as peer:
        piece = b"x" * (1000 + SLACK)
        peer.send(frame(BINARY, piece, fin=False))
        assert await peer.payload(len(piece)) == piece
        for _ in range(5):
            peer.send(frame(CONT, piece, fin=False))
            assert await peer.payload(len(piece)) == piece


@on_every_transport
async def test_each_write_is_one_binary_frame_of_whatever_size() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"hello"))
        await peer.frame()
        transport = listener.echoes[0].transport
        for size in (1, 125, 126, 65_535, 65_536, LARGE + 1, 300_000):
            transport.write(b"y" * size)
            assert await peer.frame() == (BINARY, b"y" * size)
        transport.write(b"")
        transport.write(b"end")
        assert await peer.frame() == (BINARY, b"end")


PINGRESP = b"\xd0\0"
PACKETS = [PINGRESP, encode(Publish("t", b"a" * 200), 5), encode(Publish("t", b"b" * 100_000), 5)] * 3


@pytest.mark.parametrize("offer", [None, OFFER], ids=["plain", "compressed"])
@on_every_transport
async def test_a_frame_for_each_packet(offer: str | None) -> None:
    """However they are written, and only from where the client was let in."""
    async with (
        listening(type="ws", compress=offer is not None) as listener,
        opened(listener, request(Sec_WebSocket_Extensions=offer)) as peer,
    ):
        unpacker = zlib.decompressobj(wbits=-12)
        listener.echoes[0].echoing = False
        transport = listener.echoes[0].transport

        async def payload() -> bytes:
            opcode, data = await peer.frame()
            assert opcode == (BINARY if offer is None else BINARY | 0x40)
            return data if offer is None else unpacker.decompress(data + b"\0\0\xff\xff")

        transport.write(PACKETS[0] * 2)
        assert await payload() == PACKETS[0] * 2
        raise_packet_limit(transport, 1_000_000)
        for several in (PACKETS, PACKETS[:1], PACKETS[2:3], PACKETS[1:2] * 50):
            transport.write(b"".join(several))
            for packet in several:
                assert await payload() == packet
        # A large payload is written by itself, behind what stands before it.
        transport.write(PACKETS[0] + PACKETS[2][:7])
        transport.write(PACKETS[2][7:50])
        transport.write(PACKETS[2][50:])
        transport.write(PACKETS[1])
        got = b""
        frames = 0
        while len(got) < len(PACKETS[0] + PACKETS[2] + PACKETS[1]):
            got += await payload()
            frames += 1
        assert got == PACKETS[0] + PACKETS[2] + PACKETS[1]
        assert frames == (3 if offer is None else 5)


@on_every_transport
async def test_frames_of_many_packets_where_they_are_asked_for() -> None:
    async with listening(type="ws", mqtt_piggyback="multiple") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"x"))
        await peer.frame()
        transport = listener.echoes[0].transport
        raise_packet_limit(transport, 1_000_000)
        transport.write(b"".join(PACKETS))
        assert await peer.frame() == (BINARY, b"".join(PACKETS))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20), st.lists(st.integers(0, 30), max_size=8), st.data())
def test_each_packet_has_its_frame(payloads: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    """Wherever a packet is cut behind its fixed header, and wherever an output ends: one or several packets a piece."""
    packets = [encode(Publish("t", each), 5) for each in payloads]
    pieces: list[bytes] = [b""]
    for number, packet in enumerate(packets):
        at = 4 + cuts[number] if number < len(cuts) else len(packet)
        pieces[-1] += packet[:at]
        if at < len(packet):
            pieces.append(packet[at:])
        elif data.draw(st.booleans()):
            pieces.append(b"")
    written, owed = b"", 0
    while pieces:
        count = data.draw(st.integers(1, len(pieces)))
        parts, owed = framed(pieces[:count], owed)
        written += b"".join(parts)
        del pieces[:count]
    assert owed == 0
    assert written == b"".join(frame(BINARY, packet, masked=False) for packet in packets)


@on_every_transport
async def test_a_text_frame_closes() -> None:
    """[MQTT-6.0.0-1] Any other data frame than binary closes the Network Connection."""
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"before"), frame(TEXT, b"after"), frame(BINARY, b"too late"))
        assert await peer.payload(6) == b"before"
        opcode, _ = await peer.frame()
        assert opcode == CLOSE
        lost = await listener.echoes[0].lost
        assert isinstance(lost, WebSocketError)
        assert lost.code == 1003
        assert listener.echoes[0].received == [b"before"]


@on_every_transport
async def test_a_text_frame_alone_closes_with_1003() -> None:
    """[MQTT-6.0.0-1]"""
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(TEXT, b"hello"))
        await peer.closes(1003)


@pytest.mark.parametrize(
    "data, code",
    [
        (frame(BINARY, b"not masked", masked=False), 1002),
        (frame(BINARY, b"reserved bit", rsv1=True), 1002),
        (frame(3, b"unknown opcode"), 1002),
        (frame(11, b"unknown control opcode"), 1002),
        (frame(CONT, b"of what"), 1002),
        (frame(BINARY, b"a", fin=False) + frame(BINARY, b"b"), 1002),
        (frame(PING, b"p", fin=False), 1002),
        (frame(PING, b"p" * 126), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (frame(CLOSE, struct.pack("!H", 999)), 1002),
        (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), 1007),
    ],
)
@on_every_transport
async def test_what_is_no_websocket_closes(data: bytes, code: int) -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        listener.echoes[0].echoing = False
        peer.send(data)
        await peer.closes(code)
        lost = await listener.echoes[0].lost
        assert isinstance(lost, WebSocketError)
        assert lost.code == code


@on_every_transport
async def test_frames_are_bounded_small_until_grown() -> None:
    zone = ZoneSettings(max_connect_size=1000)
    async with listening(zone, type="ws", mqtt_piggyback="multiple") as listener:
        async with opened(listener) as peer:
            peer.send(frame(BINARY, b"z" * (1000 + SLACK)))
            assert len(await peer.payload(1000 + SLACK)) == 1000 + SLACK
            # The announced length is enough: nothing of it is waited for.
            peer.send(frame(BINARY, b"z" * (1000 + SLACK + 1))[:10])
            await peer.closes(1009)
        assert isinstance(await listener.echoes[0].lost, WebSocketError)
        async with opened(listener) as peer:
            peer.send(frame(BINARY, b"grow"))
            assert await peer.frame() == (BINARY, b"grown")
            large = frame(BINARY, b"z" * (2_000_000 + SLACK))
            peer.send(large)
            assert len(await peer.payload(2_000_000 + SLACK)) == 2_000_000 + SLACK
            peer.send(struct.pack("!BBQ", 0x82, 0xFF, 2**63 - 1))
            await peer.closes(1009)


@on_every_transport
async def test_a_frame_may_hold_many_packets_however_small_the_limit_on_one() -> None:
    async with listening(type="ws", mqtt_piggyback="multiple") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"x"))
        await peer.frame()
        listener.echoes[0].transport.raise_packet_limit(100)
        peer.send(frame(BINARY, b"z" * MIN_FRAME))
        assert len(await peer.payload(MIN_FRAME)) == MIN_FRAME


# Closing


@on_every_transport
async def test_the_peer_closes() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"last words"), frame(CLOSE, struct.pack("!H", 1000) + b"bye"), b"junk")
        assert await peer.payload(10) == b"last words"
        opcode, payload = await peer.frame()
        assert (opcode, payload) == (CLOSE, struct.pack("!H", 1000) + b"bye")
        assert await closed_by_peer(peer.reader) == b""
        assert await listener.echoes[0].lost is None
        assert listener.echoes[0].eof
        assert listener.echoes[0].received == [b"last words"]


@on_every_transport
async def test_the_peer_is_gone_without_a_word() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.writer.write_eof()
        await listener.until(lambda: listener.current_connections == 0)
        assert await listener.echoes[0].lost is None
        assert listener.echoes[0].eof


@on_every_transport
async def test_close_sends_what_was_written_then_a_close_frame() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"quit"))
        assert await peer.frame() == (BINARY, b"bye")
        assert await peer.frame() == (CLOSE, struct.pack("!H", 1000))
        assert not listener.echoes[0].lost.done()
        peer.send(frame(BINARY, b"on its way when the close frame came") * 1000, frame(PING, b"p"))
        peer.send(frame(CLOSE, struct.pack("!H", 1000)))
        assert await peer.reader.read() == b""
        assert await listener.echoes[0].lost is None
        assert listener.echoes[0].received == [b"quit"]
        transport = listener.echoes[0].transport
        assert transport.is_closing()
        transport.write(b"into the void")
        transport.close()


@on_every_transport
async def test_close_while_reading_is_paused_still_hears_the_answer() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        echo = listener.echoes[0]
        echo.transport.pause_reading()
        peer.send(frame(BINARY, b"never heard"), frame(CLOSE))
        echo.transport.close()
        echo.transport.pause_reading()
        assert await peer.frame() == (CLOSE, struct.pack("!H", 1000))
        assert await peer.reader.read() == b""
        assert await echo.lost is None
        assert echo.received == []


@on_every_transport
async def test_a_peer_that_does_not_answer_a_close_frame_is_cut_off() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taipan.broker.transport.websocket.CLOSE_TIMEOUT", 0.05)
        async with listening(type="ws") as listener, opened(listener) as peer:
            peer.send(frame(BINARY, b"quit"))
            assert await peer.frame() == (BINARY, b"bye")
            await peer.closes(1000)
            assert await listener.echoes[0].lost is None


@on_every_transport
async def test_abort_is_at_once() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"die"))
        assert await closed_by_peer(peer.reader) == b""
        assert await listener.echoes[0].lost is None
        assert listener.echoes[0].transport.is_closing()


# Backpressure


@on_every_transport
async def test_pausing_reading_holds_back_what_was_received_already() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        peer.send(frame(BINARY, b"hello"))
        await peer.frame()
        echo = listener.echoes[0]
        echo.transport.pause_reading()
        assert not echo.transport.is_reading()
        pieces = [bytes([number]) * 100 for number in range(200)]
        peer.send(*(frame(BINARY, piece) for piece in pieces))
        for _ in range(20):
            await asyncio.sleep(0)
        assert echo.received == [b"hello"]
        echo.transport.resume_reading()
        assert await peer.payload(20_000) == b"".join(pieces)


@on_every_transport
async def test_pausing_in_the_middle_of_a_burst_holds_back_the_rest() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        echo = listener.echoes[0]
        received, data_received = echo.received, echo.data_received

        def pausing(data: bytes) -> None:
            data_received(data)
            echo.transport.pause_reading()

        echo.data_received = pausing  # type: ignore[method-assign]
        total = 6 * 64 * WORK_PER_ITERATION
        peer.send(*(frame(BINARY, b"p" * 64) for _ in range(total // 64)))
        rounds = 0
        while sum(map(len, received)) < total:
            before = len(received)
            await listener.until(lambda before=before: len(received) > before)
            assert len(received) == before + 1
            assert len(received[-1]) <= 64 * WORK_PER_ITERATION
            rounds += 1
            echo.transport.resume_reading()
        assert rounds > 5
        assert await peer.payload(total) == b"p" * total


@pytest.mark.parametrize("flooded", [BINARY, PONG])
@on_every_transport
async def test_a_flood_of_tiny_frames_leaves_turns_to_others(flooded: int) -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        layer = listener.echoes[0].transport
        work: list[int] = []
        go_on, feed = layer._parse, WebSocketLayer._feed

        def fed(self: WebSocketLayer, chunk: bytes) -> int:
            done = feed(self, chunk)
            work[-1] += LIBRARY_WORK * done
            return done

        def taken(raw: bytes, start: int, limit: int, most: int) -> tuple[bytes, int, int]:
            found = take_plain(raw, start, limit, most)
            work[-1] += found[2]
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WebSocketLayer, "_feed", fed)
            patch.setattr("taipan.broker.transport.websocket.take_plain", taken)
            patch.setattr(WebSocketLayer, "_parse", lambda self: (work.append(0), go_on())[1])
            peer.send(frame(flooded) * 20_000, frame(BINARY, b"end"))
            assert await peer.frame() == (BINARY, b"end")
        each = LIBRARY_WORK if flooded == PONG else 1
        assert sum(work) > 20_000 * each
        assert max(work) <= WORK_PER_ITERATION + LIBRARY_WORK


@on_every_transport
async def test_a_peer_that_pings_and_does_not_read_fills_nothing() -> None:
    async with listening(type="ws") as listener, opened(listener) as peer:
        echo = listener.echoes[0]
        echo.transport.set_write_buffer_limits(high=1000)
        peer.writer.transport.pause_reading()
        size = 0
        while echo.writable:
            echo.transport.write(b"w" * 100_000)
            size += 100_000
            await asyncio.sleep(0)
        assert echo.transport.get_write_buffer_size() > 1000
        before = echo.transport.get_write_buffer_size()
        for number in range(2000):
            peer.send(frame(PING, b"%04d" % number + b"p" * 100))
        peer.send(frame(BINARY, b"heard"))
        echo.echoing = False
        await listener.until(lambda: echo.received == [b"heard"])
        assert echo.transport.get_write_buffer_size() <= before
        peer.writer.transport.resume_reading()
        assert await peer.payload(size) == b"w" * size
        assert await peer.frame() == (PONG, b"1999" + b"p" * 100)
        assert echo.writable


# Compression


def deflated(data: bytes) -> bytes:
    encoder = zlib.compressobj(9, wbits=-12)
    return (encoder.compress(data) + encoder.flush(zlib.Z_SYNC_FLUSH))[:-4]


@on_every_transport
async def test_compression_is_off_unless_asked_for() -> None:
    async with listening(type="ws") as listener, dial(listener.port) as (reader, writer):
        writer.write(request(Sec_WebSocket_Extensions=OFFER))
        assert b"Extensions" not in await reader.readuntil(b"\r\n\r\n")
        writer.write(frame(BINARY, deflated(b"hello"), rsv1=True))
        await Peer(reader, writer).closes(1002)


@on_every_transport
async def test_compression_is_bounded_by_what_comes_out() -> None:
    async with listening(ZoneSettings(max_connect_size=100_000), type="ws", compress=True) as listener:
        async with opened(listener, request(Sec_WebSocket_Extensions=OFFER)) as peer:
            listener.echoes[0].echoing = False
            peer.send(frame(BINARY, deflated(b"c" * 100_000), rsv1=True))
            await listener.until(lambda: listener.echoes[0].received == [b"c" * 100_000])
            listener.echoes[0].transport.write(b"d" * 1000)
            opcode, payload = await peer.frame()
            assert opcode == BINARY | 0x40
            assert len(payload) < 100
            assert zlib.decompressobj(wbits=-12).decompress(payload + b"\0\0\xff\xff") == b"d" * 1000
            peer.send(frame(BINARY, deflated(b"c" * 10_000_000), rsv1=True))
            await peer.closes(1009)
        async with opened(listener, request(Sec_WebSocket_Extensions=OFFER)) as peer:
            peer.send(frame(BINARY, b"no deflate", rsv1=True))
            await peer.closes(1002)


# Clients of others, and TLS


@pytest.mark.parametrize("compression", [None, "deflate"])
@on_every_transport
async def test_the_librarys_own_client(compression: str | None) -> None:
    keys: dict[str, Any] = {"subprotocols": ["mqtt"], "compression": compression, "proxy": None, "max_size": None}
    async with (
        listening(type="ws", compress=compression is not None) as listener,
        websockets.connect(f"ws://127.0.0.1:{listener.port}/mqtt", **keys) as client,
    ):
        assert client.subprotocol == "mqtt"
        for data in (b"hello", b"x" * 200_000):
            await client.send(data)
            received = b""
            while len(received) < len(data):
                received += await client.recv()
            assert received == data
        await client.send([b"in ", b"frag", b"ments"])
        received = b""
        while len(received) < 12:
            received += await client.recv()
        assert received == b"in fragments"
        await (await client.ping())
        await client.close()
        assert client.close_code == 1000
        assert await listener.echoes[0].lost is None


@on_every_transport
async def test_wss(certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=certificates.ca)
    async with (
        listening(type="wss", tls=certificates.settings()) as listener,
        websockets.connect(
            f"wss://localhost:{listener.port}/mqtt", host="127.0.0.1", ssl=context, subprotocols=["mqtt"], proxy=None
        ) as client,
    ):
        assert listener.protocol == f"mqtt:wss:{listener.port}"
        await client.send(b"hello")
        assert await client.recv() == b"hello"
        assert listener.echoes[0].tls_version == "TLSv1.3"
        listener.reload(listener_settings(type="wss", tls=certificates.settings()), ZoneSettings())
        await client.send(b"quit")
        assert await client.recv() == b"bye"
        with pytest.raises(websockets.ConnectionClosedOK):
            await client.recv()
        assert await listener.echoes[0].lost is None


# Any bytes


@given(
    head=st.sampled_from([b"", b"GET ", b"GET /mqtt HTTP/1.1\r\n", request()[:-2], request(), request()]),
    rest=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.builds(
                frame,
                st.integers(0, 15),
                st.binary(max_size=200),
                fin=st.booleans(),
                masked=st.sampled_from([True, True, True, False]),
            ),
            st.sampled_from(
                [
                    b"\r\n\r\n",
                    b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=\xff\r\n",
                    b"Origin: \xff\r\n",
                    b"Sec-WebSocket-Protocol: \xff, mqtt\r\n",
                ]
            ),
        ),
        max_size=8,
    ),
    size=st.integers(1, 500),
    compress=st.booleans(),
)
def test_any_bytes_end_in_an_answer_or_a_close(head: bytes, rest: list[bytes], size: int, compress: bool) -> None:
    """No exception leaves the layer, whatever comes, in segments of whatever size."""

    class Below(asyncio.Transport):
        """A transport that notes what it is told."""

        def __init__(self) -> None:
            super().__init__()
            self.written = b""
            self.closed = False

        def write(self, data: Any) -> None:
            assert not self.closed
            self.written += data

        def close(self) -> None:
            self.closed = True

        def is_closing(self) -> bool:
            return self.closed

        def pause_reading(self) -> None:
            pass

        def resume_reading(self) -> None:
            pass

    async def scenario() -> None:
        unhandled: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        listener = WatchedListener(
            listener_settings(type="ws", compress=compress, allowed_origins=["https://a.example"]), ZoneSettings()
        )
        refused: list[str] = []

        class Gate:
            def finish(self) -> None:
                pass

            def refuse(self, reason: str, setting: str, detail: str = "") -> None:
                refused.append(reason)

        below, layer = Below(), WebSocketLayer(listener.settings, listener.zone, listener.connect, Gate(), None)  # type: ignore[arg-type]
        layer.connection_made(below)
        data = head + b"".join(rest)
        for position in range(0, len(data), size):
            if below.closed:
                break
            layer.data_received(data[position : position + size])
        await asyncio.sleep(0)
        layer.connection_lost(None)
        assert unhandled == []
        if below.closed and not listener.echoes:
            assert below.written.startswith(b"HTTP/1.1 4")
            assert len(refused) == 1

    with asyncio.Runner() as runner:
        runner.run(scenario())
