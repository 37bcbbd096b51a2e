"""Deadlines: finds the topics that are due without checking the others."""

from heapq import heappop, heappush
from typing import Final

# Far deadlines wait in coarse buckets and move to finer ones as they approach, so that the number of buckets is limited
# (about 2 * 4096, and 256 for MQTT's longest interval) for any deadlines.
_COARSE: Final = 4096
_COARSEST: Final = 4096 * 4096


class Deadlines:
    """One deadline (Unix seconds) per topic, in buckets of a second. Setting and removing a deadline takes O(1)."""

    __slots__ = ("_bucket_of", "_buckets", "_due", "_now")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[str, float]] = {}  # when it is due -> topic -> deadline
        self._due: list[int] = []  # heap of the keys of _buckets
        self._bucket_of: dict[str, int] = {}
        self._now = 0

    def __len__(self) -> int:
        return len(self._bucket_of)

    def set(self, topic: str, deadline: float, now: float) -> None:
        """Set or replace the deadline of a topic."""
        self.remove(topic)
        if now > self._now:
            self._now = int(now)
        self._place(topic, deadline)

    def remove(self, topic: str) -> None:
        """Forget the deadline of a topic, if it has one."""
        due = self._bucket_of.pop(topic, None)
        if due is not None:
            # An empty bucket stays until it is due, because its key is already in the heap.
            del self._buckets[due][topic]

    def pop(self, now: float, steps: int) -> list[str]:
        """Remove and return topics whose deadline has passed, with at most ``steps`` steps."""
        if now > self._now:
            self._now = int(now)
        passed: list[str] = []
        while self._due and self._due[0] <= now and steps > 0:
            bucket = self._buckets[self._due[0]]
            while bucket and steps > 0:
                topic, deadline = bucket.popitem()
                del self._bucket_of[topic]
                steps -= 1
                if deadline <= now:
                    passed.append(topic)
                else:
                    self._place(topic, deadline)
            if not bucket:
                steps -= 1
                del self._buckets[heappop(self._due)]
        return passed

    def _place(self, topic: str, deadline: float) -> None:
        due = max(int(deadline), self._now) + 1  # rounded up: all deadlines in a fine bucket have passed when it is due
        ahead = due - self._now
        if ahead >= _COARSEST:
            due -= due % _COARSEST
        elif ahead >= _COARSE:
            due -= due % _COARSE
        bucket = self._buckets.get(due)
        if bucket is None:
            bucket = self._buckets[due] = {}
            heappush(self._due, due)
        bucket[topic] = deadline
        self._bucket_of[topic] = due
