"""BufferStore: the rows of all buffers, by resource, and on disk if the node has a store."""

from collections.abc import Callable
from typing import Final

from taipan.broker.persistence.tables import Table, Tables

from .buffered_row import BufferedRow
from .dead_letters import DeadLetters
from .report import Report

TABLE: Final = "rule_buffers"


def _uncounted(reason: str, count: int) -> None:
    pass


class BufferStore:
    """Rows that wait in the buffers of all resources. They survive the resources, and at level ``disk`` the process.

    An engine has one, created before the server starts. Records in its table have the key ``<resource id>/<number>``.
    If a row is stored while a message is published, the publisher's acknowledgement also waits for the row.
    ``reports``: the receivers of outcomes by action id, including rows of an earlier process."""

    def __init__(self, tables: Tables, count: Callable[[str, int], None] = _uncounted) -> None:
        """``count`` is called with the reason and the number of rows that were not delivered."""
        self.count = count
        self.dead_letters = DeadLetters(tables)
        self._tables = tables
        self._table: Table[BufferedRow] = tables.open(TABLE, BufferedRow)
        self._entries: dict[str, dict[int, BufferedRow]] | None = None
        self._last = 0
        self.reports: dict[str, Report] = {}

    @property
    def total(self) -> int:
        """The number of rows of all resources."""
        return sum(len(entries) for entries in self._all().values())

    def put(self, resource_id: str, buffered: BufferedRow, durable: bool = True) -> int:
        """Store a row; return its number, which is greater than all earlier ones."""
        entries = self._all().setdefault(resource_id, {})
        number = self._last = self._last + 1
        entries[number] = buffered
        if durable and self._tables.durable:
            self._table.put(_key(resource_id, number), buffered)
        return number

    def remove(self, resource_id: str, number: int) -> None:
        """Remove a completed row."""
        entries = self._all().get(resource_id, {})
        if entries.pop(number, None) is not None:
            if self._tables.durable:
                self._table.remove(_key(resource_id, number))
            if not entries:
                del self._all()[resource_id]

    def after(self, resource_id: str, number: int) -> list[tuple[int, BufferedRow]]:
        """Return the rows of a resource with greater numbers, in order."""
        return [each for each in self._all().get(resource_id, {}).items() if each[0] > number]

    def forget(self, resource_id: str) -> int:
        """Delete the rows of a deleted resource; return how many."""
        self.dead_letters.forget(resource_id)
        entries = self._all().pop(resource_id, {})
        for number in entries:
            self._table.remove(_key(resource_id, number))
        return len(entries)

    def remove_report(self, action: str, report: Report) -> None:
        """Remove the report of an instance that has ended, unless another instance has replaced it."""
        if self.reports.get(action) is report:
            del self.reports[action]

    def _all(self) -> dict[str, dict[int, BufferedRow]]:
        # Loaded at the first use, because the server has restored its tables by then.
        if self._entries is None:
            self._entries = {}
            for key, buffered in sorted(self._table.items()):
                resource_id, _, number = key.rpartition("/")
                self._entries.setdefault(resource_id, {})[int(number)] = buffered
                self._last = max(self._last, int(number))
        return self._entries


def _key(resource_id: str, number: int) -> str:
    return f"{resource_id}/{number:016d}"
