"""A TCP proxy that ends connections in the middle of an answer."""

import asyncio
from contextlib import suppress

from .node import free_port


class CuttingProxy:
    """Forwards to ``target`` of this host. Can be started again after a stop."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.left = 0
        """How many answers are still to be cut: of each, the first half is forwarded, and then the connection ends."""
        self._target = target
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._running)

    async def start(self) -> "CuttingProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for each in self._running:
            each.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with suppress(OSError):
                there, to_there = await asyncio.open_connection("127.0.0.1", self._target)
                try:
                    asking = asyncio.create_task(_forward(reader, to_there))
                    answering = asyncio.create_task(self._answer(there, writer))
                    try:
                        await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        asking.cancel()
                        answering.cancel()
                finally:
                    to_there.transport.abort()
        except asyncio.CancelledError:
            pass  # the streams of asyncio would log it
        finally:
            writer.transport.abort()
            self._running.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self.left:
                    self.left -= 1
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
