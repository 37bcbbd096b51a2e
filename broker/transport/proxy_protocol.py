"""The PROXY protocol, versions 1 and 2: the header with which a load balancer reports the client of a forwarded
connection.

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt"""

import asyncio
import socket
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from .layer import Layer

Address = tuple[str, int]

V1_SIGNATURE: Final = b"PROXY "
V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1_MAX: Final = 107  # bytes of a version 1 header, CRLF included
V2_FIXED: Final = 16  # bytes before a version 2 header's addresses
V2_MAX: Final = 216 + 2048  # the largest address block, and room for TLVs

TLV_AUTHORITY: Final = 0x02
TLV_SSL: Final = 0x20
TLV_SSL_CN: Final = 0x22
SSL_FIXED: Final = 5  # bytes of an SSL TLV before the TLVs inside it


class ProxyProtocolError(ValueError):
    """The bytes are not a PROXY protocol header, or the header is too large."""


class ProxyHeader(NamedTuple):
    """The contents of a header. ``source`` is None if the proxy speaks for itself (LOCAL) or does not know it
    (UNKNOWN)."""

    size: int  # bytes of the header itself
    source: Address | None = None


def parse(buffer: bytes) -> ProxyHeader | None:
    """Read the header at the start of ``buffer``; None: more bytes are needed, and all so far belong to the header.

    Raises ProxyProtocolError at the first byte that cannot be part of one.
    """
    if buffer.startswith(V2_SIGNATURE[: len(buffer)]):
        return _parse_v2(buffer)
    if buffer.startswith(V1_SIGNATURE[: len(buffer)]):
        return _parse_v1(buffer)
    raise ProxyProtocolError("no PROXY protocol signature")


def _parse_v1(buffer: bytes) -> ProxyHeader | None:
    end = buffer.find(b"\r\n", 0, V1_MAX)
    if end < 0:
        if len(buffer) >= V1_MAX:
            raise ProxyProtocolError(f"version 1 header longer than {V1_MAX} bytes")
        return None
    size = end + 2
    try:
        words = buffer[:end].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise ProxyProtocolError("version 1 header is not ASCII") from None
    if words[1] == "UNKNOWN":
        return ProxyHeader(size)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyProtocolError("malformed version 1 header")
    family = IPv4Address if words[1] == "TCP4" else IPv6Address
    try:
        if "%" in words[2] or "%" in words[3]:
            raise ValueError("a zone has no meaning outside its own machine")
        source = str(family(words[2]))
        family(words[3])  # the destination is not used, but has to be whole
    except ValueError:
        raise ProxyProtocolError(f"version 1 header with a bad {words[1]} address") from None
    port = _port(words[4])
    _port(words[5])
    return ProxyHeader(size, (source, port))


def _port(word: str) -> int:
    if not 1 <= len(word) <= 5 or not word.isdigit() or (word[0] == "0" and word != "0") or int(word) > 65535:
        raise ProxyProtocolError("version 1 header with a bad port")
    return int(word)


def _parse_v2(buffer: bytes) -> ProxyHeader | None:
    if len(buffer) > 12:
        version, command = buffer[12] >> 4, buffer[12] & 0x0F
        if version != 2 or command > 1:
            raise ProxyProtocolError(f"unknown version 2 version and command 0x{buffer[12]:02x}")
    if len(buffer) < V2_FIXED:
        return None
    length: int = struct.unpack_from("!H", buffer, 14)[0]
    if length > V2_MAX:
        raise ProxyProtocolError(f"version 2 header longer than {V2_FIXED + V2_MAX} bytes")
    size = V2_FIXED + length
    if len(buffer) < size:
        return None
    if buffer[12] & 0x0F == 0:  # LOCAL: the proxy's own connection, a health check; the rest is skipped
        return ProxyHeader(size)
    family, body = buffer[13], buffer[V2_FIXED:size]
    if family == 0x00:  # UNSPEC: the addresses are to be ignored, and their end is unknown
        return ProxyHeader(size)
    if family == 0x11:
        used = 12
    elif family == 0x21:
        used = 36
    elif family == 0x31:
        used = 216
    else:
        raise ProxyProtocolError(f"version 2 header of an unknown family and transport 0x{family:02x}")
    if len(body) < used:
        raise ProxyProtocolError("version 2 header too short for its addresses")
    _check_tlvs(body[used:])
    if family == 0x11:
        return ProxyHeader(size, (str(IPv4Address(body[:4])), struct.unpack_from("!H", body, 8)[0]))
    if family == 0x21:
        return ProxyHeader(size, (str(IPv6Address(body[:16])), struct.unpack_from("!H", body, 32)[0]))
    return ProxyHeader(size)


def _check_tlvs(body: bytes) -> None:
    """Check further data of the proxy, which is not used but must be well-formed: sizes, and UTF-8 in the names."""
    position = 0
    while position < len(body):
        if len(body) - position < 3:
            raise ProxyProtocolError("version 2 header with a truncated TLV")
        kind, length = struct.unpack_from("!BH", body, position)
        value = body[position + 3 : position + 3 + length]
        position += 3 + length
        if position > len(body):
            raise ProxyProtocolError("version 2 header with a TLV longer than itself")
        if kind == TLV_SSL:
            if length < SSL_FIXED:
                raise ProxyProtocolError("version 2 header with a short SSL TLV")
            _check_tlvs(value[SSL_FIXED:])
        elif kind in (TLV_AUTHORITY, TLV_SSL_CN):
            try:
                value.decode()
            except UnicodeDecodeError:
                raise ProxyProtocolError("version 2 header with text that is not UTF-8") from None


async def read_header(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> ProxyHeader:
    """Read exactly one header from a non-blocking ``sock``, and no byte beyond it.

    The next bytes may be a TLS handshake, which the loop reads. So the bytes are read with MSG_PEEK first, and only
    those of the header are removed. Raises ProxyProtocolError, EOFError and OSError. The caller limits the time."""
    done: asyncio.Future[ProxyHeader] = loop.create_future()
    taken = b""

    def readable() -> None:
        nonlocal taken
        try:
            seen = sock.recv(V2_FIXED + V2_MAX, socket.MSG_PEEK)
            if not seen:
                raise EOFError("closed before its PROXY protocol header was complete")
            header = parse(taken + seen)
            # Everything seen of an unfinished header belongs to it; removing it prevents a busy loop.
            size = len(seen) if header is None else header.size - len(taken)
            taken += sock.recv(size)
        except (BlockingIOError, InterruptedError):
            return
        except (ProxyProtocolError, EOFError, OSError) as exc:
            loop.remove_reader(sock)
            if not done.done():
                done.set_exception(exc)
            return
        if header is not None:
            loop.remove_reader(sock)
            if not done.done():
                done.set_result(header)

    loop.add_reader(sock, readable)
    try:
        return await done
    finally:
        loop.remove_reader(sock)


class ProxiedTransport(Layer):
    """A transport whose peer is the client behind the proxy."""

    __slots__ = ("_header",)

    def __init__(self, below: asyncio.Transport, header: ProxyHeader) -> None:
        super().__init__()
        self.below = below
        self._header = header

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "peername" and self._header.source is not None:
            return self._header.source
        return self.below.get_extra_info(name, default)
