"""ConnectionPool: a limited number of connections to a system that a source of access asks."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .remote import SourceFailed

Connection = TypeVar("Connection")
Answer = TypeVar("Answer")


class ConnectionPool(Generic[Connection]):
    """Belongs to one event loop. A connection whose question was given up is closed, because its answer may still
    arrive."""

    def __init__(
        self, size: int, open: Callable[[], Awaitable[Connection]], abort: Callable[[Connection], None]
    ) -> None:
        """``open`` returns a new connection, or raises SourceFailed; ``abort`` closes one without waiting."""
        self._open = open
        self._abort = abort
        self._free: list[Connection] = []
        self._places = asyncio.Semaphore(size)
        self._closed = False

    async def use(self, question: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Ask over a connection, after waiting for one. ``question`` raises SourceFailed, with ``away`` if its
        connection cannot be used again."""
        async with self._places:
            while self._free:
                try:
                    return await self._asked(self._free.pop(), question)
                except SourceFailed as failure:
                    if not failure.away:
                        raise
                    # The server may have closed the connection while nobody used it.
            return await self._asked(await self._open(), question)

    async def _asked(self, connection: Connection, question: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        usable = False
        try:
            answer = await question(connection)
            usable = True
            return answer
        except SourceFailed as failure:
            usable = not failure.away
            raise
        finally:
            if usable and not self._closed:
                self._free.append(connection)
            else:
                self._abort(connection)

    def close(self) -> None:
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            self._abort(connection)
