"""BeforeLogin: the memory that clients and callers of the HTTP API use before they have logged in, and its limit.

Anyone can send the beginning of a CONNECT, of a WebSocket frame or of a request. None of this is acknowledged, so when
memory is short it is dropped first: the connections that use most are closed, and clients that have logged in are not
affected."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from ..observability.throttle import Throttle

logger = logging.getLogger(__name__)

MOST: Final = 134_217_728
LEAST: Final = 4_194_304
PART: Final = 16
"""Limit for all of them in bytes: a part of the node's budget, between these two values."""


class Newcomer(Protocol):
    """A connection without a login."""

    def evict(self) -> None:
        """Close the connection immediately, because memory is short."""


class BeforeLogin:
    """``bytes``: memory of all connections without a login. ``evicted``: number of connections that were closed because
    of it."""

    __slots__ = ("_held", "_now", "_throttle", "bytes", "evicted", "limit")

    def __init__(self, limit: int = MOST, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self.limit = limit
        self.bytes = 0
        self.evicted = 0
        self._held: dict[Newcomer, int] = {}
        self._throttle = Throttle()

    def __len__(self) -> int:
        return len(self._held)

    def resize(self, budget: int) -> None:
        """Set the limit by the node's budget."""
        self.limit = min(MOST, max(LEAST, budget // PART))

    def hold(self, newcomer: Newcomer, size: int) -> None:
        """Set how many bytes a newcomer uses. If the total exceeds the limit, the largest ones are closed."""
        self.bytes += size - self._held.get(newcomer, 0)
        self._held[newcomer] = size
        if self.bytes > self.limit:
            self.make_room(self.limit * 3 // 4)

    def leave(self, newcomer: Newcomer) -> None:
        """Remove a newcomer that has logged in or whose connection has ended."""
        self.bytes -= self._held.pop(newcomer, 0)

    def make_room(self, most: int, count: int = 0) -> int:
        """Close the largest ones until the others use at most ``most`` bytes; return how many were closed. ``count``:
        the maximum to close, 0 for no limit."""
        before = self.bytes
        closed = 0
        for newcomer in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if self.bytes <= most or (count and closed >= count):
                break
            self.leave(newcomer)
            newcomer.evict()
            closed += 1
        self.evicted += closed
        if closed and self._throttle.due(self._now()):
            logger.warning(
                "before_login_closed count=%s total=%s bytes=%s limit=%s setting=limits.memory",
                closed,
                self.evicted,
                before,
                self.limit,
            )
        return closed
