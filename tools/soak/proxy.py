"""Proxy: one TCP proxy per node in front of a NATS server, which can delay bytes or hold them back in either
direction."""

import asyncio
from collections import deque

BOTH = ("up", "down")
"""Both directions; ``up`` is from the node to the server."""


class Proxy:
    """Listens on a port of loopback and forwards to ``target``. Held data is forwarded later: as with TCP, nothing is
    lost unless ``drop`` ends the connections."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        self.held: set[str] = set()
        self._server: asyncio.Server | None = None
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        for direction, source, sink, back in (
            ("up", reader, up_writer, writer),
            ("down", up_reader, writer, up_writer),
        ):
            pipe = _Pipe(self, direction, source, sink, back)
            self._pipes.add(pipe)
            task = asyncio.create_task(pipe.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def hold(self, *directions: str) -> None:
        """Forward nothing in these directions until ``release``."""
        self.held = set(directions)

    def release(self) -> None:
        """Forward everything again immediately, beginning with the held data."""
        self.held = set()
        self.delay = 0.0
        for pipe in list(self._pipes):
            pipe.wake()

    def drop(self) -> None:
        """End all connections through the proxy."""
        for pipe in list(self._pipes):
            pipe.abort()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self, pipe: "_Pipe") -> None:
        self._pipes.discard(pipe)


class _Pipe:
    """One direction of one connection."""

    def __init__(
        self,
        proxy: Proxy,
        direction: str,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
    ) -> None:
        self.proxy = proxy
        self.direction = direction
        self.source = source
        self.sink = sink
        self.back = back  # to where ``source`` reads from
        self._waiting: deque[tuple[float, bytes]] = deque()  # when it may go, at the earliest
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await self.source.read(65536):
                self._waiting.append((loop.time() + self.proxy.delay, data))
                self.wake()
        except OSError:
            pass
        finally:
            self.abort()

    def wake(self) -> None:
        """Forward the data that is no longer held."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.direction in self.proxy.held:
            return
        loop = asyncio.get_running_loop()
        while self._waiting:
            due, data = self._waiting[0]
            if due > loop.time() and self.proxy.delay:
                self._timer = loop.call_at(due, self.wake)
                return
            self._waiting.popleft()
            if not self.sink.transport.is_closing():
                self.sink.write(data)

    def abort(self) -> None:
        """Close both ends."""
        if self._timer is not None:
            self._timer.cancel()
        self.proxy.forget(self)
        self.sink.transport.abort()
        self.back.transport.abort()
