"""Passthrough records: records of an imported file that this node does not use, kept unchanged for the next export."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from taipan.broker.persistence.tables import Tables

from ..durable_answer import rows_of_a_size

MAX_RECORD_SIZE: Final = 8_388_608
"""Maximum size of such a record in bytes."""

_IDENTITIES: Final = ("id", "username", "name")


class PassthroughRecord(msgspec.Struct, array_like=True, frozen=True):
    """``section``: the member of the file that contains the record. ``text``: its JSON. ``listed``: whether that member
    is an array. ``identity``: the value that distinguishes the record from others of its section, if there is one."""

    section: str
    text: str
    listed: bool
    identity: str | None = None


class PassthroughRecords:
    """The records of an import that only a later export uses, in a table, so that they survive a restart."""

    def __init__(self, tables: Tables) -> None:
        self._table = tables.open("carried", PassthroughRecord, shared=True)

    def all(self) -> list[PassthroughRecord]:
        """Return a copy, in order."""
        return list(self._table.values())

    def check(self, section: str, record: PassthroughRecord) -> None:
        """Check one record. Raises Refusal if it is too large for a cluster."""
        with rows_of_a_size():
            self._table.check(f"{section}\0{record.identity}", record)

    def put(self, section: str, records: list[PassthroughRecord]) -> Iterator[None]:
        """Store a section of a file, in steps. Records with an identity are added, or replace the records with the same
        identity. If a record has no identity, the section replaces all existing records of the section."""
        keys, gone = self._plan(section, records)
        for key in gone:
            self._table.remove(key)
            yield
        for key, record in zip(keys, records, strict=True):
            if self._table.get(key) != record:
                self._table.put(key, record)
            yield

    def changes(
        self, section: str, records: list[PassthroughRecord]
    ) -> Iterator[tuple[str, Literal["create", "change", "same", "remove"]]]:
        """Yield the changes that ``put`` would make, by the identity of the records in their section."""
        keys, gone = self._plan(section, records)
        for key in gone:
            yield _shown(key), "remove"
        for key, record in zip(keys, records, strict=True):
            there = self._table.get(key)
            yield _shown(key), "create" if there is None else "same" if there == record else "change"

    def _plan(self, section: str, records: list[PassthroughRecord]) -> tuple[list[str], list[str]]:
        """Return the keys of the records, and the keys of the rows that they replace."""
        join = all(record.listed and record.identity is not None for record in records)
        keys = [f"{section}\0{record.identity if join else f'#{index}'}" for index, record in enumerate(records)]
        kept = set(keys)
        old = [(key, row) for key, row in self._table.items() if row.section == section]
        gone = [key for key, row in old if key not in kept and not (join and row.listed and row.identity is not None)]
        return keys, gone


def _shown(key: str) -> str:
    return key.partition("\0")[2]


def identity_of(value: object) -> str | None:
    """Return the value that distinguishes the record from others of its kind."""
    for key in _IDENTITIES:
        name = value.get(key) if isinstance(value, dict) else None
        if isinstance(name, str) and 0 < len(name) <= 1024:
            return f"{key}:{name}"
    return None
