"""The node's one clock: intervals by the monotonic clock, dates by the wall clock."""

import time
from typing import Final

JUMP: Final = 0.5
"""Difference in seconds between the wall clock and the clock since the start above which it counts: the clock was set,
or the machine was suspended. A smaller difference comes from gradual adjustment; correcting it would give the same
moment a different date each time."""


class Clock:
    """The clock of a node. ``now()``, for durations, is the wall clock read at the start plus the monotonic time since
    then. ``wall()``, for dates, is the current wall clock. They differ if the wall clock was set.

    Tests pass their own clock.
    """

    monotonic = staticmethod(time.monotonic)
    """``now()`` without ``offset``, which is added to get Unix seconds."""

    def __init__(self) -> None:
        self.offset = time.time() - time.monotonic()
        self._skew = 0.0

    def now(self) -> float:
        """Return Unix seconds that a change of the wall clock does not affect."""
        return self.monotonic() + self.offset

    @property
    def skew(self) -> float:
        """Return the seconds from ``now()`` to ``wall()``; added to the ``now()`` of an event they give its date."""
        off = time.time() - time.monotonic() - self.offset
        if abs(off - self._skew) > JUMP:
            self._skew = off
        return self._skew

    def wall(self) -> float:
        """Return the Unix seconds of the wall clock."""
        return self.now() + self.skew


class WallTime:
    """``wall()`` as a clock, for timers that are due at a date."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> float:
        """Unix seconds."""
        return self._clock.wall()
