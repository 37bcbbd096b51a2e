"""CooperativeSlice: long work on the event loop in stretches, between which the rest of the loop runs."""

import asyncio
import time
from typing import Final

SLICE: Final = 0.004
"""Seconds that one stretch of work may take."""


class CooperativeSlice:
    """One for each piece of work. ``await checkpoint()`` between two steps of it, each of which is short."""

    __slots__ = ("_end", "_seconds")

    def __init__(self, seconds: float = SLICE) -> None:
        self._seconds = seconds
        self.restart()

    @property
    def over(self) -> bool:
        """Whether the rest of the loop should run now."""
        return time.perf_counter() >= self._end

    async def checkpoint(self) -> None:
        """Go on at once, or after the rest of the loop has run."""
        if self.over:
            await self.next()

    async def next(self) -> None:
        """Let the rest of the loop run, whatever time has passed."""
        await asyncio.sleep(0)
        self.restart()

    def restart(self) -> None:
        """A stretch begins now."""
        self._end = time.perf_counter() + self._seconds
