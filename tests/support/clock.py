"""A clock that stands still until a test moves it."""


class Clock:
    """Tells ``time``, in Unix seconds."""

    def __init__(self, time: float = 1_000_000.0) -> None:
        self.time = time
        self.offset = 0.0
        self.skew = 0.0

    def now(self) -> float:
        """Unix seconds."""
        return self.time

    def monotonic(self) -> float:
        """The same: there is no ``offset``."""
        return self.time

    def wall(self) -> float:
        """The same with ``skew``: what the wall clock was set forward by."""
        return self.time + self.skew

    def advance(self, seconds: float) -> float:
        """Move on, and tell the new time."""
        self.time += seconds
        return self.time
