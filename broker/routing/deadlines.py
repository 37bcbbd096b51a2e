"""Deadlines: which topics fall due, found without looking at those that do not."""

from heapq import heappop, heappush
from typing import Final

# Far deadlines wait in coarse buckets and move to finer ones as they come near, so that the number of
# buckets stays bounded (about 2 * 4096, and 256 for the longest interval MQTT has) whatever the deadlines are.
_COARSE: Final = 4096
_COARSEST: Final = 4096 * 4096


class Deadlines:
    """One deadline (unix seconds) per topic, in buckets of a second. Setting and removing one costs O(1)."""

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
            # An emptied bucket stays until it is due: its key is in the heap already.
            del self._buckets[due][topic]

    def pop(self, now: float, steps: int) -> list[str]:
        """Take out topics whose deadline has passed, in at most so many steps."""
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
        due = max(int(deadline), self._now) + 1  # rounded up: what is in a fine bucket has passed when that is due
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
