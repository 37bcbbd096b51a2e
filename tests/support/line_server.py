"""A line server, to which the package ``tests/packages/lines`` writes."""

import asyncio
from collections.abc import Callable

from .node import free_port


class LineServer:
    """A TCP server that can be started, stopped and started again; ``lines`` are those that it has answered with ok."""

    def __init__(self, token: str = "") -> None:
        self.port = free_port()
        self.token = token.encode()
        self.lines: list[bytes] = []
        self.requests: list[int] = []
        """How many lines came in each connection that brought some."""
        self.answer: Callable[[bytes], bytes] = lambda line: b"ok"
        self._server: asyncio.Server | None = None

    async def start(self) -> "LineServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 0
        try:
            right = (await reader.readline()).rstrip(b"\n") == self.token
            writer.write(b"ok\n" if right else b"wrong token\n")
            while right and (line := (await reader.readline()).rstrip(b"\n")):
                count += 1
                answer = self.answer(line)
                if answer == b"ok":
                    self.lines.append(line)
                writer.write(answer + b"\n")
        except ConnectionError:
            pass
        finally:
            if count:
                self.requests.append(count)
            writer.close()
