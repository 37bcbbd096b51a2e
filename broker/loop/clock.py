"""The node's one clock: intervals by the monotonic clock, dates by the wall clock."""

import time
from typing import Final

JUMP: Final = 0.5
"""Seconds that the wall clock may stray from what it was at the start before that counts: it was set anew, or the
machine slept. What is less is its being slewed, and would make the same moment look different each time."""


class Clock:
    """``now()`` is the wall clock read at start plus the monotonic time since: for everything that lasts. ``wall()`` is
    the wall clock of now: for everything that has a date. They differ when the wall clock has been set.

    Tests inject their own.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._skew = 0.0

    def now(self) -> float:
        """Unix seconds; a jump of the wall clock changes nothing."""
        return time.monotonic() + self._offset

    @property
    def skew(self) -> float:
        """Seconds from ``now()`` to ``wall()``: what makes of the moment of an event, by ``now()`` its date."""
        off = time.time() - time.monotonic() - self._offset
        if abs(off - self._skew) > JUMP:
            self._skew = off
        return self._skew

    def wall(self) -> float:
        """Unix seconds, as other machines have them."""
        return self.now() + self.skew


class WallTime:
    """``wall()`` as a clock, for timers that are due at a date."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> float:
        """Unix seconds."""
        return self._clock.wall()
