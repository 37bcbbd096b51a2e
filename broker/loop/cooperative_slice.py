"""CooperativeSlice: long work on the event loop in slices, between which the rest of the loop runs."""

import asyncio
import time
from typing import Final

SLICE: Final = 0.004
"""Maximum seconds of work without a pause."""


class CooperativeSlice:
    """Create one for each piece of work, and ``await checkpoint()`` between its steps, each of which is short."""

    __slots__ = ("_end", "_seconds")

    def __init__(self, seconds: float = SLICE) -> None:
        self._seconds = seconds
        self.restart()

    @property
    def over(self) -> bool:
        """Whether the rest of the loop should run now."""
        return time.perf_counter() >= self._end

    async def checkpoint(self) -> None:
        """Return immediately, or after the rest of the loop has run if the slice is used up."""
        if self.over:
            await self.next()

    async def next(self) -> None:
        """Let the rest of the loop run, however much time has passed."""
        await asyncio.sleep(0)
        self.restart()

    def restart(self) -> None:
        """Start a new slice."""
        self._end = time.perf_counter() + self._seconds
