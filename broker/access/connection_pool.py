"""ConnectionPool: connections to a system that a source of access asks."""

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from .remote import SourceFailed

Connection = TypeVar("Connection")
Answer = TypeVar("Answer")


class ConnectionPool(Generic[Connection]):
    """Belongs to one event loop. There are as many connections as simultaneous questions, which ``RemoteSource``
    limits: no question waits while the connection for another one is opened. A connection whose question was given up
    is closed, because its answer may still arrive."""

    def __init__(self, open: Callable[[], Awaitable[Connection]], abort: Callable[[Connection], None]) -> None:
        """``open`` returns a new connection, or raises SourceFailed; ``abort`` closes one without waiting."""
        self._open = open
        self._abort = abort
        self._free: list[Connection] = []
        self._closed = False

    async def use(self, question: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Ask over a connection. ``question`` raises SourceFailed, with ``away`` if its connection cannot be used
        again."""
        while self._free:
            try:
                return await self._asked(self._free.pop(), question)
            except SourceFailed as failure:
                if not failure.away:
                    raise
                # The server may have closed the connection while it was not in use.
        if self._closed:
            raise SourceFailed("stopping")
        return await self._asked(await self._open(), question)

    def keep(self, connection: Connection) -> None:
        """Add a connection that was opened for another purpose. The pool has at most one such connection."""
        self._release(connection, usable=not self._free)

    async def _asked(self, connection: Connection, question: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        usable = False
        try:
            if self._closed:  # while the connection was opened
                raise SourceFailed("stopping")
            answer = await question(connection)
            usable = True
            return answer
        except SourceFailed as failure:
            usable = not failure.away
            raise
        finally:
            self._release(connection, usable)

    def _release(self, connection: Connection, usable: bool) -> None:
        if usable and not self._closed:
            self._free.append(connection)
        else:
            self._abort(connection)

    def close(self) -> None:
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            self._abort(connection)
