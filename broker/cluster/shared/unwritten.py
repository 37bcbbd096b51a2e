"""Unwritten: remembers across a restart which retained messages have changes that the bucket may not have yet.

A row of its own for each change would be encoded, and removed again, as often as there are messages. Therefore one row
has all changes of a batch of the log. For example, 300 messages are retained, and their batch is cut: it also gets a
row with these 300 topics. When the bucket has all of them, the row is removed. If the bucket has only 200 of them, the
row is written again with the other 100, within a second (``tidy``).
"""

from typing import Final

from ...persistence.tables import Tables
from .bucket_life import BucketLife
from .retained_order import RetainedChange
from .values import UnwrittenRow, UnwrittenTopic

TABLE: Final = "retained_changes"
_PER_ROW: Final = 512
"""Maximum number of changes in a row. The fewer there are, the sooner the row is removed."""


class Unwritten:
    """The rows of table ``retained_changes``. ``life``: which bucket this node has read."""

    def __init__(self, tables: Tables, life: BucketLife) -> None:
        self._table = tables.open(TABLE, UnwrittenRow)
        self._tables = tables
        self._life = life
        self._number = 0
        # Changes since the last batch was cut.
        self._noted: dict[RetainedChange, None] = {}
        # The changes of each row, and rows with changes that the bucket has by now.
        self._changes: dict[str, set[RetainedChange]] = {}
        self._partly_written: set[str] = set()

    def start(self) -> list[tuple[str, UnwrittenTopic]]:
        """Return the changes in the rows, each with its bucket, the oldest first. The rows are removed, so the caller
        has to note these changes again."""
        found: list[tuple[str, UnwrittenTopic]] = []
        for key, row in sorted(self._table.items(), key=lambda each: int(each[0])):
            found += [(row.bucket, each) for each in row.topics]
            self._table.remove(key)
        if self._tables.commit is not None:
            self._tables.commit.on_cut = self._write
        return found

    def stop(self) -> None:
        """Write the noted changes, and forget them. The rows remain."""
        self._write()
        self.tidy()
        if self._tables.commit is not None:
            self._tables.commit.on_cut = None
        self._changes.clear()

    def forget(self) -> None:
        """Remove all rows."""
        for key, _ in list(self._table.items()):
            self._table.remove(key)

    def note(self, change: RetainedChange) -> None:
        """Note a change: the batch that is open now will have it."""
        self._noted[change] = None

    def done(self, change: RetainedChange) -> None:
        """Forget a change, because the bucket has it, or a newer one."""
        self._noted.pop(change, None)
        self._take_out(change)

    def tidy(self) -> None:
        """Write rows again without the changes that the bucket has."""
        for key in self._partly_written:
            self._put(key, self._changes[key])
        self._partly_written.clear()

    def _write(self) -> None:
        """Write the noted changes, because the batch with the messages is about to be cut."""
        changes = list(self._noted)
        self._noted.clear()
        for start in range(0, len(changes), _PER_ROW):
            self._number += 1
            key = str(self._number)
            row = self._changes[key] = set(changes[start : start + _PER_ROW])
            for change in row:
                self._take_out(change)
                change.row = key
            self._put(key, row)

    def _put(self, key: str, changes: set[RetainedChange]) -> None:
        joined = self._life.joined
        topics = [UnwrittenTopic(each.topic, each.base, each.at, each.moment) for each in changes]
        self._table.put(key, UnwrittenRow("" if joined is None else joined.id, topics))

    def _take_out(self, change: RetainedChange) -> None:
        """Remove a change from its row, if it has one."""
        key = change.row
        if not key:
            return
        change.row = ""
        left = self._changes[key]
        left.discard(change)
        if left:
            self._partly_written.add(key)
        else:
            del self._changes[key]
            self._partly_written.discard(key)
            self._table.remove(key)
