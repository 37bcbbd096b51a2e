"""The node's one clock: unix seconds that follow the monotonic clock; a jump of the wall clock changes nothing."""

import time


class Clock:
    """``now()`` is the wall clock read at start plus the monotonic time since. Tests inject their own."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return time.monotonic() + self._offset
