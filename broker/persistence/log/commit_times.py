"""CommitTimes: how long the batches of the most recent seconds took."""

from typing import Final

KEPT: Final = 16
"""Seconds that are kept."""


class CommitTimes:
    """The longest commit time of each second."""

    __slots__ = ("_longest", "_seconds")

    def __init__(self) -> None:
        self._seconds = [-1] * KEPT
        self._longest = [0.0] * KEPT

    def add(self, now: float, took: float) -> None:
        """Add the time of a batch that is on disk. ``now``: seconds of any clock."""
        second = int(now)
        place = second % KEPT
        if self._seconds[place] != second:
            self._seconds[place] = second
            self._longest[place] = took
        elif took > self._longest[place]:
            self._longest[place] = took

    def longest(self, now: float, seconds: float) -> float:
        """Return the longest time within the last ``seconds``, rounded up to whole seconds; 0 if there was no batch."""
        first = int(now - seconds)
        return max(
            (took for second, took in zip(self._seconds, self._longest, strict=True) if second >= first), default=0.0
        )
