"""FrequentCounts: the counts of the most frequent of any number of keys, in a fixed amount of memory.

The algorithm is that of Misra and Gries, with a purge for many keys at a time. If a key does not fit, all counts are
reduced by the highest count outside the ``capacity`` highest ones, and the keys without a remaining count are
forgotten. So a count is never too high, and too low by at most ``error``, which is at most ``total / (capacity + 1)``:
every key with more than that share of the total is included.
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

ROW_BYTES: Final = 500
"""Approximate memory of one key with its count and note."""
NO_NOTE: Final[tuple[object, ...]] = ()


class FrequentCounts(Generic[Key]):
    """``counts``: key -> count, at most twice ``capacity`` of them. ``notes``: key -> the latest note about it.
    ``total``: the sum of all weights. ``error``: by how much a count may be too low."""

    __slots__ = ("_capacity", "counts", "error", "notes", "total")

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self._capacity = capacity
        self.counts: dict[Key, int] = {}
        self.notes: dict[Key, tuple[object, ...]] = {}
        self.total = 0
        self.error = 0

    def add(self, key: Key, weight: int = 1, note: tuple[object, ...] = NO_NOTE) -> None:
        """Add ``weight``, above 0, to the count of a key."""
        self.total += weight
        counts = self.counts
        known = counts.get(key)
        if known is not None:
            counts[key] = known + weight
        else:
            if len(counts) >= 2 * self._capacity:
                self._purge()
                counts = self.counts
            counts[key] = weight
        if note:
            self.notes[key] = note

    def _purge(self) -> None:
        behind = sorted(self.counts.values(), reverse=True)[self._capacity]
        self.error += behind
        self.counts = {key: count - behind for key, count in self.counts.items() if count > behind}
        notes = self.notes
        self.notes = {key: notes[key] for key in self.counts if key in notes}
        assert len(self.counts) <= self._capacity and self.error * (self._capacity + 1) <= self.total

    def __len__(self) -> int:
        return len(self.counts)


class RecentCount(Generic[Key]):
    """The counts of a key in each period, the current one last, and the latest note about the key."""

    __slots__ = ("counts", "key", "note")

    def __init__(self, key: Key, periods: int) -> None:
        self.key = key
        self.counts = [0] * periods
        self.note: tuple[object, ...] = NO_NOTE

    @property
    def total(self) -> int:
        return sum(self.counts)


class RecentCounts(Generic[Key]):
    """The most frequent keys of the last ``periods`` periods of ``seconds`` each, the current one included."""

    __slots__ = ("_capacity", "_counts", "_number", "periods", "seconds")

    def __init__(self, capacity: int, periods: int, seconds: float) -> None:
        self._capacity = capacity
        self.periods = periods
        self.seconds = seconds
        self._counts: deque[FrequentCounts[Key]] = deque(maxlen=periods)
        self._number = -1

    def add(self, key: Key, now: float, weight: int = 1, note: tuple[object, ...] = NO_NOTE) -> None:
        """Count a key at the time ``now``, in seconds of a clock that does not go back."""
        self._turn(now)
        self._counts[-1].add(key, weight, note)

    def recent(self, now: float) -> list[RecentCount[Key]]:
        """Return the keys with their counts of each period, the highest total first."""
        self._turn(now)
        found: dict[Key, RecentCount[Key]] = {}
        before = self.periods - len(self._counts)
        for place, counts in enumerate(self._counts, before):
            for key, count in counts.counts.items():
                row = found.get(key)
                if row is None:
                    row = found[key] = RecentCount(key, self.periods)
                row.counts[place] = count
                row.note = counts.notes.get(key, row.note)
        return sorted(found.values(), key=lambda row: -row.total)

    def covered(self, now: float) -> float:
        """Return how many seconds the periods cover: the current one is not complete."""
        self._turn(now)
        return (len(self._counts) - 1) * self.seconds + now % self.seconds

    def _turn(self, now: float) -> None:
        """Begin the current period, and forget those that are too old."""
        number = int(now // self.seconds)
        if number <= self._number and self._counts:
            return
        gone = min(number - self._number, self.periods) if self._counts else 1
        for _ in range(gone):
            self._counts.append(FrequentCounts(self._capacity))
        self._number = number

    def __len__(self) -> int:
        return sum(map(len, self._counts))
