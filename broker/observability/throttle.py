"""Throttle: when something that repeats is logged again."""

from typing import Final

EVERY: Final = 60.0
MAX_ENTRIES: Final = 1024


class Throttle:
    """Limits log lines to one a minute for each key, of at most ``MAX_ENTRIES`` keys, and counts what happens between
    them."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        # key -> [time of the next line, number of occurrences since the last one]
        self._seen: dict[tuple[str, ...], list[float]] = {}

    def due(self, now: float, *key: str, times: int = 1) -> int:
        """Count ``times`` occurrences. Return how many there were since the last line, if a line is due; otherwise 0.
        ``now``: Unix seconds."""
        seen = self._seen
        entry = seen.get(key)
        if entry is None:
            if len(seen) >= MAX_ENTRIES:
                del seen[next(iter(seen))]
            entry = seen[key] = [0.0, 0]
        entry[1] += times
        if now < entry[0]:
            return 0
        count = int(entry[1])
        entry[0] = now + EVERY
        entry[1] = 0
        return count
