"""BufferStore: every entry of every buffer, by resource, and on disk where the node has one."""

from collections.abc import Callable
from typing import Final

from taipan.broker.persistence.tables import Table, Tables

from .dead_letters import DeadLetters
from .entry import Entry
from .report import Report

TABLE: Final = "rule_buffers"


def _uncounted(reason: str, count: int) -> None:
    pass


class BufferStore:
    """What waits in the buffers of all resources; it outlives the resources, and at level ``disk`` the process.

    One for the engine, made before the server starts. A row of its table has the key ``<resource id>/<number>``. An
    entry that is put while a message is published is part of what the publisher's acknowledgement waits for.
    ``reports``: where the outcome of an action's entries is told, by action id, those of an earlier process too.
    """

    def __init__(self, tables: Tables, count: Callable[[str, int], None] = _uncounted) -> None:
        """``count`` is told, by reason, of rows that did not get where they should."""
        self.count = count
        self.dead_letters = DeadLetters(tables)
        self._tables = tables
        self._table: Table[Entry] = tables.open(TABLE, Entry)
        self._entries: dict[str, dict[int, Entry]] | None = None
        self._last = 0
        self.reports: dict[str, Report] = {}

    def put(self, resource_id: str, entry: Entry, durable: bool = True) -> int:
        """Keep it; its number, larger than all before."""
        entries = self._all().setdefault(resource_id, {})
        number = self._last = self._last + 1
        entries[number] = entry
        if durable and self._tables.durable:
            self._table.put(_key(resource_id, number), entry)
        return number

    def remove(self, resource_id: str, number: int) -> None:
        """It has been dealt with."""
        entries = self._all().get(resource_id, {})
        if entries.pop(number, None) is not None:
            self._table.remove(_key(resource_id, number))
            if not entries:
                del self._all()[resource_id]

    def after(self, resource_id: str, number: int) -> list[tuple[int, Entry]]:
        """Entries of a resource with larger numbers, in order."""
        return [each for each in self._all().get(resource_id, {}).items() if each[0] > number]

    def forget(self, resource_id: str) -> int:
        """The resource is deleted, and what waited for it with it; how many entries that were."""
        self.dead_letters.forget(resource_id)
        entries = self._all().pop(resource_id, {})
        for number in entries:
            self._table.remove(_key(resource_id, number))
        return len(entries)

    def stop_telling(self, action: str, report: Report) -> None:
        """An instance of an action is gone; one that has taken its place by now keeps its report."""
        if self.reports.get(action) is report:
            del self.reports[action]

    def _all(self) -> dict[str, dict[int, Entry]]:
        # When the first one asks, the server has restored its tables.
        if self._entries is None:
            self._entries = {}
            for key, entry in sorted(self._table.items()):
                resource_id, _, number = key.rpartition("/")
                self._entries.setdefault(resource_id, {})[int(number)] = entry
                self._last = max(self._last, int(number))
        return self._entries


def _key(resource_id: str, number: int) -> str:
    return f"{resource_id}/{number:016d}"
