"""TlsGate: TLS in front of a server that is reached over TCP, with certificates that can be exchanged."""

from __future__ import annotations

import asyncio
import contextlib
import ssl


class TlsGate:
    """Belongs to one event loop. ``port``: where it listens, from ``start`` on."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self._server_port = server_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def certify(self, certificate: str, key: str) -> None:
        """Offer this certificate from now on. The connections of before end."""
        await self.close()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all connections, and listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks = list(self._tasks)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # its handshake was not done when the gate closed
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        inner: asyncio.StreamWriter | None = None
        try:
            with contextlib.suppress(OSError):
                there, inner = await asyncio.open_connection("127.0.0.1", self._server_port)
                await _both_ways(reader, writer, there, inner)
        finally:
            self._tasks.discard(task)
            for each in (writer, inner):
                if each is not None:
                    each.transport.abort()


async def _both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    there: asyncio.StreamReader,
    inner: asyncio.StreamWriter,
) -> None:
    """Until one side ends."""
    ways = [asyncio.ensure_future(_copy(reader, inner)), asyncio.ensure_future(_copy(there, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in ways:
            each.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        target.write(data)
        await target.drain()
