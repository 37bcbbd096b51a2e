"""DeadLetters: rows that the other side kept answering with an error of its own, kept for an operator to look at."""

from __future__ import annotations

from typing import Final

import msgspec

from taipan.broker.persistence.tables import Table, Tables

from .entry import Entry

TABLE: Final = "rule_dead_letters"


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A row that was set aside at ``at`` (unix seconds) after ``attempts``, with what the other side said last."""

    entry: Entry
    attempts: int
    reason: str
    at: float

    @property
    def size(self) -> int:
        """About what it takes in memory, in octets."""
        return self.entry.size + len(self.reason)


class DeadLetters:
    """Those of all resources, by number; they outlive the resources' instances, and at level ``disk`` the process."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._table: Table[DeadLetter] = tables.open(TABLE, DeadLetter)
        self._letters: dict[str, dict[int, DeadLetter]] | None = None
        self._octets: dict[str, int] = {}
        self._last = 0

    def put(self, resource_id: str, letter: DeadLetter, most: int, most_octets: int, durable: bool = True) -> int:
        """Keep it, within these bounds; how many older ones made room."""
        letters = self._all().setdefault(resource_id, {})
        number = self._last = self._last + 1
        letters[number] = letter
        octets = self._octets.get(resource_id, 0) + letter.size
        self._octets[resource_id] = octets
        if durable and self._tables.durable:
            self._table.put(_key(resource_id, number), letter)
        room = 0
        while len(letters) > most or (len(letters) > 1 and self._octets[resource_id] > most_octets):
            self.remove(resource_id, next(iter(letters)))
            room += 1
        return room

    def of(self, resource_id: str) -> dict[int, DeadLetter]:
        """Those of one resource, the oldest first."""
        return dict(self._all().get(resource_id, {}))

    def count(self, resource_id: str) -> int:
        return len(self._all().get(resource_id, {}))

    def remove(self, resource_id: str, number: int) -> bool:
        """Whether there was one of this number."""
        letters = self._all().get(resource_id, {})
        letter = letters.pop(number, None)
        if letter is None:
            return False
        self._octets[resource_id] -= letter.size
        self._table.remove(_key(resource_id, number))
        return True

    def forget(self, resource_id: str) -> None:
        """The resource is deleted."""
        for number in list(self._all().get(resource_id, {})):
            self.remove(resource_id, number)
        self._all().pop(resource_id, None)
        self._octets.pop(resource_id, None)

    def _all(self) -> dict[str, dict[int, DeadLetter]]:
        # When the first one asks, the server has restored its tables.
        if self._letters is None:
            self._letters = {}
            for key, letter in sorted(self._table.items()):
                resource_id, _, number = key.rpartition("/")
                self._letters.setdefault(resource_id, {})[int(number)] = letter
                self._octets[resource_id] = self._octets.get(resource_id, 0) + letter.size
                self._last = max(self._last, int(number))
        return self._letters


def _key(resource_id: str, number: int) -> str:
    return f"{resource_id}/{number:016d}"
