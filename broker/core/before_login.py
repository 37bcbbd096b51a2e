"""BeforeLogin: the memory that clients and callers of the HTTP API hold before they have logged in, and its limit.

Anybody can send the beginning of a CONNECT, of a WebSocket frame or of a request. Nothing of it was acknowledged, so it
is closed before anything that was: the connections that hold most go first, and clients that log in are not affected.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

MOST: Final = 134_217_728
LEAST: Final = 4_194_304
PART: Final = 16
"""Bytes that all of them may hold: a part of the node's budget, within these two."""
_SAY_EVERY: Final = 60.0


class Newcomer(Protocol):
    """A connection without a login."""

    def evict(self) -> None:
        """Close it at once, because memory is short."""


class BeforeLogin:
    """``bytes``: what all of them hold. ``evicted``: how many were closed for it."""

    __slots__ = ("_held", "_now", "_say_at", "bytes", "evicted", "limit")

    def __init__(self, limit: int = MOST, now: Callable[[], float] = lambda: 0.0) -> None:
        self._now = now
        self.limit = limit
        self.bytes = 0
        self.evicted = 0
        self._held: dict[Newcomer, int] = {}
        self._say_at = 0.0

    def __len__(self) -> int:
        return len(self._held)

    def resize(self, budget: int) -> None:
        """Set the limit by the node's budget."""
        self.limit = min(MOST, max(LEAST, budget // PART))

    def hold(self, newcomer: Newcomer, size: int) -> None:
        """It holds so many bytes from now on. If that exceeds the limit, the largest ones are closed."""
        self.bytes += size - self._held.get(newcomer, 0)
        self._held[newcomer] = size
        if self.bytes > self.limit:
            self.make_room(self.limit * 3 // 4)

    def leave(self, newcomer: Newcomer) -> None:
        """It has logged in, or its connection has ended."""
        self.bytes -= self._held.pop(newcomer, 0)

    def make_room(self, most: int, count: int = 0) -> int:
        """Close the largest ones until the others hold at most ``most`` bytes; how many were closed. ``count``: at most
        so many, 0 for no limit."""
        before = self.bytes
        closed = 0
        for newcomer in sorted(self._held, key=self._held.__getitem__, reverse=True):
            if self.bytes <= most or (count and closed >= count):
                break
            self.leave(newcomer)
            newcomer.evict()
            closed += 1
        self.evicted += closed
        now = self._now()
        if closed and now >= self._say_at:
            self._say_at = now + _SAY_EVERY
            logger.warning(
                "before_login_closed count=%s total=%s bytes=%s limit=%s setting=limits.memory",
                closed,
                self.evicted,
                before,
                self.limit,
            )
        return closed
