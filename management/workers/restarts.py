"""When a process that has ended starts again."""

from typing import Final

FIRST: Final = 0.1
"""Seconds until the first restart. Each further one takes twice as long, up to ``LONGEST``."""
LONGEST: Final = 10.0
STABLE: Final = 60.0
"""Seconds after which a process that ends is restarted as quickly as the first time."""


class Restarts:
    """The restarts of one process. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._next = FIRST
        self._started_at = 0.0

    def started(self, now: float) -> None:
        """The process has started."""
        self._started_at = now

    def ended(self, now: float) -> float:
        """Return the seconds until the process that has ended starts again."""
        if now - self._started_at >= STABLE:
            self._next = FIRST
        delay, self._next = self._next, min(self._next * 2, LONGEST)
        return delay
