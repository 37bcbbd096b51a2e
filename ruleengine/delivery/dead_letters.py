"""DeadLetters: rows that the other system answered too often with an error, kept for an operator."""

from __future__ import annotations

from typing import Final

import msgspec

from taipan.broker.persistence.tables import Table, Tables

from .buffered_row import BufferedRow

TABLE: Final = "rule_dead_letters"


class DeadLetter(msgspec.Struct, frozen=True, array_like=True):
    """A row that became a dead letter at ``at`` (Unix seconds) after ``attempts``, with the last error of the other
    system."""

    buffered: BufferedRow
    attempts: int
    reason: str
    at: float

    @property
    def size(self) -> int:
        """Approximate memory in bytes."""
        return self.buffered.size + len(self.reason)


class DeadLetters:
    """The dead letters of all resources, by number. They survive the resources' instances, and at level ``disk`` the
    process."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._table: Table[DeadLetter] = tables.open(TABLE, DeadLetter)
        self._letters: dict[str, dict[int, DeadLetter]] | None = None
        self._bytes: dict[str, int] = {}
        self._last = 0

    def put(self, resource_id: str, letter: DeadLetter, max_letters: int, max_bytes: int, durable: bool = True) -> int:
        """Store a dead letter; return how many older ones were removed because of these limits."""
        letters = self._all().setdefault(resource_id, {})
        number = self._last = self._last + 1
        letters[number] = letter
        size = self._bytes.get(resource_id, 0) + letter.size
        self._bytes[resource_id] = size
        if durable and self._tables.durable:
            self._table.put(_key(resource_id, number), letter)
        removed = 0
        while len(letters) > max_letters or (len(letters) > 1 and self._bytes[resource_id] > max_bytes):
            self.remove(resource_id, next(iter(letters)))
            removed += 1
        return removed

    def of(self, resource_id: str) -> dict[int, DeadLetter]:
        """Return the dead letters of one resource, oldest first."""
        return dict(self._all().get(resource_id, {}))

    @property
    def total(self) -> int:
        """The number of dead letters of all resources."""
        return sum(len(letters) for letters in self._all().values())

    def count(self, resource_id: str) -> int:
        return len(self._all().get(resource_id, {}))

    def remove(self, resource_id: str, number: int) -> bool:
        """Remove a dead letter; return whether it existed."""
        letters = self._all().get(resource_id, {})
        letter = letters.pop(number, None)
        if letter is None:
            return False
        self._bytes[resource_id] -= letter.size
        self._table.remove(_key(resource_id, number))
        return True

    def forget(self, resource_id: str) -> None:
        """Delete the dead letters of a deleted resource."""
        for number in list(self._all().get(resource_id, {})):
            self.remove(resource_id, number)
        self._all().pop(resource_id, None)
        self._bytes.pop(resource_id, None)

    def _all(self) -> dict[str, dict[int, DeadLetter]]:
        # Loaded at the first use, because the server has restored its tables by then.
        if self._letters is None:
            self._letters = {}
            for key, letter in sorted(self._table.items()):
                resource_id, _, number = key.rpartition("/")
                self._letters.setdefault(resource_id, {})[int(number)] = letter
                self._bytes[resource_id] = self._bytes.get(resource_id, 0) + letter.size
                self._last = max(self._last, int(number))
        return self._letters


def _key(resource_id: str, number: int) -> str:
    return f"{resource_id}/{number:016d}"
