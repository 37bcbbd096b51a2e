"""The PROXY protocol: headers as bytes, then in front of real listeners."""

import asyncio
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.transport.proxy_protocol import (
    V1_MAX,
    V2_FIXED,
    V2_MAX,
    V2_SIGNATURE,
    ProxyHeader,
    ProxyProtocolError,
    parse,
)
from tests.broker.transport.echo import closed_by_peer, dial, listening, on_every_transport


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!BH", kind, len(value)) + value


def v2(body: bytes = b"", command: int = 1, family: int = 0x11, length: int | None = None) -> bytes:
    head = struct.pack("!BBH", 0x20 | command, family, len(body) if length is None else length)
    return V2_SIGNATURE + head + body


V4 = socket.inet_aton("203.0.113.7") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 50000, 1883)
V6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::7")
    + socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + struct.pack("!HH", 50001, 8883)
)
SSL = tlv(0x20, struct.pack("!BI", 0x07, 0) + tlv(0x21, b"TLSv1.3") + tlv(0x22, b"pump-7"))

GOOD: list[tuple[str, bytes, tuple[str, int] | None]] = [
    (
        "v1 v4",
        b"PROXY TCP4 203.0.113.7 192.0.2.1 50000 1883\r\n",
        ("203.0.113.7", 50000),
    ),
    (
        "v1 v6",
        b"PROXY TCP6 2001:DB8:0::7 2001:db8::1 50001 8883\r\n",
        ("2001:db8::7", 50001),
    ),
    ("v1 unknown", b"PROXY UNKNOWN\r\n", None),
    ("v1 unknown, the rest is skipped", b"PROXY UNKNOWN what ever 1 2 3 4 5\r\n", None),
    (
        "v1 longest v6",
        b"PROXY TCP6 " + b"ffff:" * 7 + b"ffff " + b"ffff:" * 7 + b"ffff 65535 65535\r\n",
        (("ffff:" * 8)[:-1], 65535),
    ),
    (
        "v2 v4",
        v2(V4),
        ("203.0.113.7", 50000),
    ),
    (
        "v2 v6",
        v2(V6, family=0x21),
        ("2001:db8::7", 50001),
    ),
    ("v2 unix", v2(b"\0" * 216, family=0x31), None),
    ("v2 unspecified", v2(b"\xff" * 9, family=0x00), None),
    ("v2 local", v2(command=0, family=0x00), None),
    ("v2 local, addresses are skipped", v2(b"\xff" * 40, command=0, family=0x77), None),
    (
        "v2 TLVs",
        v2(V4 + tlv(0x04, b"\0" * 10) + tlv(0x02, b"mqtt.example") + SSL + tlv(0xEA, b"\x01vpce")),
        ("203.0.113.7", 50000),
    ),
]

BAD: list[tuple[str, bytes]] = [
    ("nothing of it", b"\x10\x0e\x00\x04MQTT"),
    ("v1 lower case", b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n"),
    ("v1 without a space", b"PROXYTCP4 1.2.3.4 1.2.3.4 1 2\r\n"),
    ("v1 UDP", b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n"),
    ("v1 nothing said", b"PROXY \r\n"),
    ("v1 a word short", b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n"),
    ("v1 a word long", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n"),
    ("v1 two spaces", b"PROXY TCP4 1.2.3.4  1.2.3.4 1 2\r\n"),
    ("v1 v6 address in TCP4", b"PROXY TCP4 ::1 ::1 1 2\r\n"),
    ("v1 v4 address in TCP6", b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n"),
    ("v1 address out of range", b"PROXY TCP4 1.2.3.256 1.2.3.4 1 2\r\n"),
    ("v1 zone", b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n"),
    ("v1 port out of range", b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n"),
    ("v1 negative port", b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n"),
    ("v1 port with a leading zero", b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n"),
    ("v1 long port", b"PROXY TCP4 1.2.3.4 1.2.3.4 " + b"9" * 40 + b" 2\r\n"),
    ("v1 not ASCII", b"PROXY TCP4 1.2.3.4 1.2.3.4 1 \xb2\r\n"),
    ("v1 without end", b"PROXY UNKNOWN " + b"x" * 93),
    ("v1 end too late", b"PROXY UNKNOWN " + b"x" * 92 + b"\r\n"),
    ("v2 version 1", V2_SIGNATURE + b"\x11\x11\x00\x0c" + V4),
    ("v2 unknown command", V2_SIGNATURE + b"\x22\x11\x00\x0c" + V4),
    ("v2 datagrams", v2(V4, family=0x12)),
    ("v2 unknown family", v2(V4, family=0x41)),
    ("v2 too long", v2(length=V2_MAX + 1)),
    ("v2 too long by far", v2(length=0xFFFF)),
    ("v2 short for v4", v2(V4[:-1])),
    ("v2 short for v6", v2(V4, family=0x21)),
    ("v2 short for unix", v2(b"\0" * 215, family=0x31)),
    ("v2 cut TLV", v2(V4 + b"\x04\x00")),
    ("v2 TLV longer than the header", v2(V4 + b"\x04\xff\xff")),
    ("v2 short SSL TLV", v2(V4 + tlv(0x20, b"\x01\0\0\0"))),
    ("v2 cut TLV in the SSL TLV", v2(V4 + tlv(0x20, b"\x01\0\0\0\0\x22\x00\x09a"))),
    ("v2 name that is not UTF-8", v2(V4 + tlv(0x02, b"\xff"))),
    ("v2 common name that is not UTF-8", v2(V4 + tlv(0x20, b"\x01\0\0\0\0" + tlv(0x22, b"\xff")))),
]


@pytest.mark.parametrize("data, source", [row[1:] for row in GOOD], ids=[row[0] for row in GOOD])
def test_good_headers(data: bytes, source: tuple[str, int] | None) -> None:
    assert parse(data + b"\x10\x00rest") == ProxyHeader(len(data), source)
    for end in range(len(data)):
        assert parse(data[:end]) is None


@pytest.mark.parametrize("data", [row[1] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_headers(data: bytes) -> None:
    with pytest.raises(ProxyProtocolError) as raised:
        parse(data)
    assert "\n" not in str(raised.value)


@given(
    st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", V2_SIGNATURE, V2_SIGNATURE + b"\x21\x11", v2(length=400)]),
    st.binary(max_size=600),
)
def test_any_bytes_give_a_header_or_an_error_within_bounds(start: bytes, rest: bytes) -> None:
    data = start + rest
    try:
        header = parse(data)
    except ProxyProtocolError:
        return
    if header is None:
        assert len(data) < V2_FIXED + V2_MAX
        assert not data.startswith(b"PROXY ") or len(data) < V1_MAX
    else:
        assert header.size <= len(data)


@pytest.mark.parametrize("kind", ["tcp", "ws"])
@on_every_transport
async def test_the_address_behind_the_proxy_is_the_peer(kind: str) -> None:
    async with (
        listening(type=kind, proxy_protocol=True) as listener,
        dial(listener.port) as (reader, writer),
    ):
        writer.write(v2(V4 + SSL))
        if kind == "ws":
            writer.write(
                b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
                b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        await listener.until(lambda: listener.current_connections == 1)
        transport = listener.echoes[0].transport
        assert transport.get_extra_info("peername") == ("203.0.113.7", 50000)
        assert transport.get_extra_info("sockname") == ("127.0.0.1", listener.port)
        assert transport.get_extra_info("nothing") is None
        assert listener.pending == set()


@on_every_transport
async def test_a_header_in_pieces_and_together_with_what_follows() -> None:
    header = b"PROXY TCP6 2001:db8::7 2001:db8::1 50001 8883\r\n"
    async with listening(proxy_protocol=True) as listener:
        async with dial(listener.port) as (reader, writer):
            for byte in header:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
        async with dial(listener.port) as (reader, writer):
            writer.write(header + b"hello" * 1000)
            assert await reader.readexactly(5000) == b"hello" * 1000
        assert [echo.transport.get_extra_info("peername") for echo in listener.echoes] == [("2001:db8::7", 50001)] * 2


@on_every_transport
async def test_the_proxy_itself_keeps_its_own_address() -> None:
    async with (
        listening(proxy_protocol=True) as listener,
        dial(listener.port) as (reader, writer),
    ):
        writer.write(v2(command=0, family=0) + b"hello")
        assert await reader.readexactly(5) == b"hello"
        transport = listener.echoes[0].transport
        assert transport.get_extra_info("peername") == writer.get_extra_info("sockname")


@on_every_transport
async def test_without_the_setting_a_header_is_only_bytes() -> None:
    async with listening() as listener, dial(listener.port) as (reader, writer):
        writer.write(b"PROXY UNKNOWN\r\n")
        assert await reader.readexactly(15) == b"PROXY UNKNOWN\r\n"


@on_every_transport
async def test_bad_header_closes_and_is_counted() -> None:
    async with listening(proxy_protocol=True) as listener, dial(listener.port) as (reader, writer):
        writer.write(b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02me")
        assert await closed_by_peer(reader) == b""
        assert listener.refused == {"proxy_protocol_error": 1}
        assert listener.pending == set()
        assert listener.echoes == []


@on_every_transport
async def test_a_slow_header_is_bounded_in_time() -> None:
    async with (
        listening(proxy_protocol=True, proxy_protocol_timeout=0.05) as listener,
        dial(listener.port) as (reader, writer),
    ):
        writer.write(b"PROXY TCP4")
        assert await closed_by_peer(reader) == b""
        assert listener.refused == {"proxy_protocol_timeout": 1}
        assert listener.pending == set()


@on_every_transport
async def test_a_client_that_leaves_before_its_header_is_counted() -> None:
    async with listening(proxy_protocol=True) as listener:
        async with dial(listener.port) as (_, writer):
            writer.write(b"PROXY TC")
            writer.write_eof()
            await listener.until(lambda: listener.refused == {"closed_early": 1})
        assert listener.pending == set()
