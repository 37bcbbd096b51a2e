"""The network connection below an MQTT client: a socket, with TLS or without, bare or with WebSocket on it."""

import asyncio
import socket
import ssl
from typing import Final, NamedTuple, Protocol

from ..network.allowed_networks import Networks

_READ: Final = 65_536
# Linux. A server without TCP_NODELAY (Mosquitto) holds its next answer back until this one is acknowledged, for which
# the kernel waits up to 40 ms where nothing is on its way back.
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


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
            below = self._writer.get_extra_info("socket")
            if below is not None:  # TLS that the other side has ended has none
                below.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():  # asyncio passes over such data, uvloop raises RuntimeError
            raise ConnectionResetError("the connection is closed")
        self._writer.write(data)
        await self._writer.drain()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        if not self._writer.is_closing():
            self._writer.close()
            await self._writer.wait_closed()


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
        from .websocket_stream import WebSocketStream  # here: few bridges want WebSocket

        try:
            return await WebSocketStream.open(below, address, tls is not None, subprotocol, max_packet_size)
        except BaseException:
            below.abort()
            raise
