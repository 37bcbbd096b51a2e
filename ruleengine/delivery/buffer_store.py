"""BufferStore: the rows of all buffers, by resource, and on disk where the node has one."""

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

    One for each engine, made before the server starts. A record of its table has the key ``<resource id>/<number>``. A
    row that is put while a message is published is part of what the publisher's acknowledgement waits for.
    ``reports``: where the outcomes of an action's rows go, by action id, those of an earlier process too.
    """

    def __init__(self, tables: Tables, count: Callable[[str, int], None] = _uncounted) -> None:
        """``count`` is called with the reason and number of rows that were not delivered."""
        self.count = count
        self.dead_letters = DeadLetters(tables)
        self._tables = tables
        self._table: Table[BufferedRow] = tables.open(TABLE, BufferedRow)
        self._entries: dict[str, dict[int, BufferedRow]] | None = None
        self._last = 0
        self.reports: dict[str, Report] = {}

    def put(self, resource_id: str, buffered: BufferedRow, durable: bool = True) -> int:
        """Store it; its number, larger than all before."""
        entries = self._all().setdefault(resource_id, {})
        number = self._last = self._last + 1
        entries[number] = buffered
        if durable and self._tables.durable:
            self._table.put(_key(resource_id, number), buffered)
        return number

    def remove(self, resource_id: str, number: int) -> None:
        """It is done."""
        entries = self._all().get(resource_id, {})
        if entries.pop(number, None) is not None:
            self._table.remove(_key(resource_id, number))
            if not entries:
                del self._all()[resource_id]

    def after(self, resource_id: str, number: int) -> list[tuple[int, BufferedRow]]:
        """Rows of a resource with larger numbers, in order."""
        return [each for each in self._all().get(resource_id, {}).items() if each[0] > number]

    def forget(self, resource_id: str) -> int:
        """The resource is deleted, and its rows with it; how many these were."""
        self.dead_letters.forget(resource_id)
        entries = self._all().pop(resource_id, {})
        for number in entries:
            self._table.remove(_key(resource_id, number))
        return len(entries)

    def remove_report(self, action: str, report: Report) -> None:
        """An instance of an action has ended; one that has replaced it keeps its report."""
        if self.reports.get(action) is report:
            del self.reports[action]

    def _all(self) -> dict[str, dict[int, BufferedRow]]:
        # Loaded at the first use: the server has restored its tables by then.
        if self._entries is None:
            self._entries = {}
            for key, buffered in sorted(self._table.items()):
                resource_id, _, number = key.rpartition("/")
                self._entries.setdefault(resource_id, {})[int(number)] = buffered
                self._last = max(self._last, int(number))
        return self._entries


def _key(resource_id: str, number: int) -> str:
    return f"{resource_id}/{number:016d}"
