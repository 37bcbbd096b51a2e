"""The network connection below an MQTT client: a socket, with TLS or without, bare or with WebSocket on it."""

import asyncio
import logging
import socket
import ssl
from typing import Final, NamedTuple, Protocol

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from taipan.broker.observability.log_text import one_line, shorten

from ..allowed_networks import Networks

_READ: Final = 65_536
_FRAMES: Final = 8_192
"""Bytes of WebSocket frames that are parsed before others have their turn; a frame takes at least 2."""
_SLACK: Final = 16_384
# Linux. A server without TCP_NODELAY (Mosquitto) holds its next answer back until this one is acknowledged, for which
# the kernel waits up to 40 ms where nothing is on its way back.
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)

# The library tells of each connection at INFO and of each frame at DEBUG.
_library_logger = logging.getLogger(__name__ + ".library")
_library_logger.setLevel(logging.WARNING)


class Address(NamedTuple):
    """Where the other side listens; ``path``: of the WebSocket there, empty where it is plain TCP or TLS."""

    host: str
    port: int
    path: str = ""


class Stream(Protocol):
    """Bytes both ways. Each method may raise OSError."""

    async def read(self) -> bytes:
        """What has come; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Until there is room for more."""
        ...

    def abort(self) -> None:
        """End at once; what was not sent is lost."""
        ...

    async def close(self) -> None:
        """End when what was written is sent."""
        ...


class SocketStream:
    """TCP or TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, most: int = _READ) -> bytes:
        data = await self._reader.read(most)
        if _QUICKACK is not None and not self._writer.is_closing():
            self._writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        if not self._writer.is_closing():
            self._writer.close()
            await self._writer.wait_closed()


class WebSocketStream:
    """MQTT's bytes in binary frames [MQTT-6.0.0-1], wherever these begin and end [MQTT-6.0.0-2]."""

    def __init__(self, below: SocketStream, protocol: ClientProtocol) -> None:
        self._below = below
        self._protocol = protocol

    @classmethod
    async def open(
        cls, below: SocketStream, address: Address, secure: bool, subprotocol: str, max_packet_size: int
    ) -> "WebSocketStream":
        """With the handshake done."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        protocol = ClientProtocol(
            parse_uri(f"{'wss' if secure else 'ws'}://{host}:{address.port}{address.path}"),
            subprotocols=[Subprotocol(subprotocol)],  # [MQTT-6.0.0-3]
            max_size=max_packet_size + _SLACK,
            logger=_library_logger,
        )
        protocol.send_request(protocol.connect())
        await below.write(b"".join(protocol.data_to_send()))
        while protocol.state is CONNECTING and protocol.handshake_exc is None:
            data = await below.read()
            if data:
                protocol.receive_data(data)
            else:
                protocol.receive_eof()
        if protocol.handshake_exc is not None:
            raise ConnectionError(f"WebSocket handshake: {protocol.handshake_exc}")
        return cls(below, protocol)

    async def read(self) -> bytes:
        protocol = self._protocol
        while True:
            payload = self._payload()
            answers = b"".join(protocol.data_to_send())  # pongs, and the answer to a close frame
            if answers:
                await self._below.write(answers)
            if payload:
                return payload
            if protocol.parser_exc is not None:
                raise ConnectionError(f"WebSocket: {protocol.parser_exc}")
            if protocol.close_rcvd is not None:
                raise ConnectionResetError(f"WebSocket closed: {one_line(shorten(protocol.close_rcvd))}")
            data = await self._below.read(_FRAMES)
            if not data:
                return b""
            protocol.receive_data(data)

    def _payload(self) -> bytes:
        parts = []
        for event in self._protocol.events_received():
            if not isinstance(event, Frame):  # the response to the handshake
                continue
            if event.opcode is Opcode.TEXT:
                raise ConnectionError("WebSocket: a text frame")
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                parts.append(event.data)
        return b"".join(parts)

    async def write(self, data: bytes) -> None:
        if self._protocol.close_rcvd is not None or self._protocol.close_sent is not None:
            raise ConnectionResetError("the WebSocket is closed")
        self._protocol.send_binary(data)
        await self._below.write(b"".join(self._protocol.data_to_send()))

    def abort(self) -> None:
        self._below.abort()

    async def close(self) -> None:
        if self._protocol.close_rcvd is None and self._protocol.close_sent is None:
            self._protocol.send_close(1000)
            await self._below.write(b"".join(self._protocol.data_to_send()))
        await self._below.close()


async def open_stream(
    address: Address,
    networks: Networks,
    timeout: float,
    tls: ssl.SSLContext | None,
    server_hostname: str | None,
    subprotocol: str,
    max_packet_size: int,
) -> Stream:
    """A connection to ``address``. ``max_packet_size``: the largest Control Packet that may come. Raises OSError."""
    async with asyncio.timeout(timeout):
        below = SocketStream(*await networks.connect(address.host, address.port, timeout, tls, server_hostname))
        if not address.path:
            return below
        try:
            return await WebSocketStream.open(below, address, tls is not None, subprotocol, max_packet_size)
        except BaseException:
            below.abort()
            raise
