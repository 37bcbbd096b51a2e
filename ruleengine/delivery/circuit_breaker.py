"""CircuitBreaker: stops all attempts after consecutive failures; after a pause, one attempt decides.

::

    closed ──failures in a row──► open ──pause, or retry_now──► half_open
      ▲                             ▲                                          │
      └────────── success ──────────┼──────────────── failure ◄────────────────┤
      └────────────────────────────────────────────── success ◄────────────────┘
"""

import asyncio
from typing import Final

CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"


class CircuitBreaker:
    """``await admit()`` before each attempt; then call ``succeeded``, ``failed`` or ``withdraw``."""

    def __init__(self, failures: int, pause: float) -> None:
        """``failures``: number of consecutive failures that open it for ``pause`` seconds."""
        self.state: str = CLOSED
        self.opened = 0
        self._max_failures = failures
        self._pause = pause
        self._failures = 0
        self._until = 0.0
        self._changed = asyncio.Event()

    async def admit(self) -> None:
        """Wait until an attempt is allowed. The attempt that is admitted in the state open is the test (half open)."""
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
        """Return whether ``admit`` would wait."""
        if self.state == OPEN:
            return asyncio.get_running_loop().time() < self._until
        return self.state == HALF_OPEN

    def withdraw(self) -> None:
        """The admitted caller made no attempt, or an attempt without a clear result: the next caller is admitted."""
        if self.state == HALF_OPEN:
            self.state = OPEN
            self._until = 0.0
            self._notify()

    def succeeded(self) -> None:
        self._failures = 0
        if self.state != CLOSED:
            self.state = CLOSED
            self._notify()

    def failed(self) -> None:
        self._failures += 1
        if self.state == HALF_OPEN or (self.state == CLOSED and self._failures >= self._max_failures):
            if self.state == CLOSED:
                self.opened += 1
            self.state = OPEN
            self._until = asyncio.get_running_loop().time() + self._pause
            self._notify()

    def retry_now(self) -> None:
        """Allow the next attempt now, because the other system is reachable again."""
        if self.state == OPEN:
            self._until = 0.0
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
