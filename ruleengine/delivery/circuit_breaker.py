"""Breaker: stops everybody from knocking at a door that has not opened for a while; then one knocks.

::

    closed ──failures in a row──► open ──pause, or word that it is back──► half_open
      ▲                             ▲                                          │
      └────────── success ──────────┼──────────────── failure ◄────────────────┤
      └────────────────────────────────────────────── success ◄────────────────┘
"""

import asyncio
from typing import Final

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"


class Breaker:
    """``await admit()`` before each attempt, then tell ``succeeded`` or ``failed``."""

    def __init__(self, failures: int, pause: float) -> None:
        """``failures`` in a row open it for ``pause`` seconds."""
        self.state: str = CLOSED
        self.opened = 0
        self._most = failures
        self._pause = pause
        self._failures = 0
        self._until = 0.0
        self._changed = asyncio.Event()

    async def admit(self) -> None:
        """Until an attempt may be made. Whoever is let in while it is open makes the one that tells."""
        while self.state != CLOSED:
            left = self._until - asyncio.get_running_loop().time()
            if self.state == OPEN and left <= 0:
                self.state = HALF_OPEN
                return
            try:
                async with asyncio.timeout(left if self.state == OPEN else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    @property
    def blocked(self) -> bool:
        """Whether whoever comes now would have to wait."""
        if self.state == OPEN:
            return asyncio.get_running_loop().time() < self._until
        return self.state == HALF_OPEN

    def withdraw(self) -> None:
        """Whoever was let in has nothing to try, or nothing that would tell: it is the next one's turn."""
        if self.state == HALF_OPEN:
            self.state = OPEN
            self._until = 0.0
            self._tell()

    def succeeded(self) -> None:
        self._failures = 0
        if self.state != CLOSED:
            self.state = CLOSED
            self._tell()

    def failed(self) -> None:
        self._failures += 1
        if self.state == HALF_OPEN or (self.state == CLOSED and self._failures >= self._most):
            if self.state == CLOSED:
                self.opened += 1
            self.state = OPEN
            self._until = asyncio.get_running_loop().time() + self._pause
            self._tell()

    def nudge(self) -> None:
        """Word that the other side is back: the next attempt may be made now."""
        if self.state == OPEN:
            self._until = 0.0
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
