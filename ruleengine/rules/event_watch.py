"""EventWatch: the latest events of one topic filter or event, as rules receive them, while there is a reader."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from ..functions.budget import Budget
from ..functions.values import encode_json
from ..stored.rows import StoredRule
from .rule import Rule

if TYPE_CHECKING:
    from ..events.columns import Columns

KEPT: Final = 20
"""Number of events."""
A_SECOND: Final = 20
"""Events per second that are processed; further ones are only counted."""
MAX_PAYLOAD: Final = 8192
MAX_EVENT: Final = 16_384
"""Maximum length of an event's JSON in characters."""
MAX_KEPT: Final = 1_048_576
"""Maximum total length of the stored events in characters."""


class EventWatch:
    """Acts as the program of a rule: it reads the columns but selects nothing, so that it does not change any counter.

    ``latest``: the events as JSON, each with its number; ``seen``: number of events."""

    def __init__(self, source: str, kept: int = KEPT, a_second: int = A_SECOND) -> None:
        self.sources = (source,)
        self.latest: deque[tuple[int, str]] = deque()
        self.seen = 0
        self._kept = kept
        self._a_second = a_second
        self._size = 0
        self._second = 0
        self._this_second = 0
        # Before all rules, so that they do not use up the time of an event.
        self.rule = Rule(StoredRule(f"watch of {source}", "", order=-1), self, ())

    def since(self, number: int) -> tuple[int, list[str]]:
        """Return the events after the one with this number, oldest first; and the number of the last event."""
        return self.seen, [text for each, text in self.latest if each > number]

    def run(self, columns: Columns, budget: Budget) -> None:
        """Store the event."""
        self.seen += 1
        at = columns.get("timestamp")
        second = at // 1000 if isinstance(at, int) else 0
        if second != self._second:
            self._second = second
            self._this_second = 0
        self._this_second += 1
        if self._this_second > self._a_second:
            return
        row = dict(columns)
        payload = row.get("payload")
        if isinstance(payload, str | bytes) and len(payload) > MAX_PAYLOAD:
            row["payload"] = payload[:MAX_PAYLOAD]
            row["payload_cut"] = len(payload)
        if isinstance(payload, bytes):
            row["payload_encoding"] = "base64"
        try:
            text = encode_json(row, Budget())
        except ValueError:
            return
        if len(text) <= MAX_EVENT:
            self.latest.append((self.seen, text))
            self._size += len(text)
            while len(self.latest) > self._kept or self._size > MAX_KEPT:
                self._size -= len(self.latest.popleft()[1])
