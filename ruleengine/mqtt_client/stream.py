"""The network connection of an MQTT client: a socket, with or without TLS and WebSocket."""

import asyncio
import socket
import ssl
from typing import Final, NamedTuple, Protocol

from ..network.allowed_networks import Networks

_READ: Final = 65_536
# Linux. A server without TCP_NODELAY (Mosquitto) delays its next answer until this one is acknowledged, and the kernel
# waits up to 40 ms for that if no data is sent back.
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class Address(NamedTuple):
    """The address of the other broker; ``path``: path of its WebSocket, empty for plain TCP or TLS."""

    host: str
    port: int
    path: str = ""


class Stream(Protocol):
    """A bidirectional stream of bytes. All methods may raise OSError."""

    async def read(self) -> bytes:
        """Return received data; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Write data, and wait until there is room for more."""
        ...

    def abort(self) -> None:
        """Close immediately; unsent data is lost."""
        ...

    async def close(self) -> None:
        """Close when all data is sent."""
        ...


class SocketStream:
    """A stream over TCP or TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, most: int = _READ) -> bytes:
        data = await self._reader.read(most)
        if _QUICKACK is not None and not self._writer.is_closing():
            below = self._writer.get_extra_info("socket")
            if below is not None:  # none if the other side has ended TLS
                below.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data

    async def write(self, data: bytes) -> None:
        if self._writer.is_closing():  # asyncio ignores such data, uvloop raises RuntimeError
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
    """Return a connection to ``address``. ``max_packet_size``: maximum size of received Control Packets. Raises
    OSError."""
    async with asyncio.timeout(timeout):
        below = SocketStream(*await networks.connect(address.host, address.port, timeout, tls, server_hostname))
        if not address.path:
            return below
        from .websocket_stream import WebSocketStream  # imported here: few bridges use WebSocket

        try:
            return await WebSocketStream.open(below, address, tls is not None, subprotocol, max_packet_size)
        except BaseException:
            below.abort()
            raise
