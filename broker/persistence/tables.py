"""Tables: small named sets of rows that outlive the process: users, access rules, applications, later rules.

A package opens its table once and reads it like a dict; every change is in memory at once and on disk after the next
batch, for which ``Tables.stored`` waits. At level ``memory`` nothing of it survives.
"""

import logging
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from .group_commit import GroupCommit
from .log import records
from .log.check_file import Digests
from .record_mapping import row_subject

logger = logging.getLogger(__name__)

Row = TypeVar("Row", bound=msgspec.Struct)
_DIGEST: Final = 16


class Table(Generic[Row]):
    """Rows of one kind by key, in the order in which the keys were first put.

    ``unreadable``: keys of rows that are on disk and cannot be read; they stay there as they are.
    """

    __slots__ = ("_rows", "_tables", "kind", "name", "unreadable")

    def __init__(self, tables: "Tables", name: str, kind: type[Row]) -> None:
        self.name = name
        self.kind = kind
        self._tables = tables
        self._rows: dict[str, Row] = {}
        self.unreadable: list[str] = []

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def put(self, key: str, row: Row) -> None:
        """Add or replace a row. The table keeps ``row`` itself: treat it as immutable from here on."""
        self._rows[key] = row
        self._tables.put(self.name, key, msgspec.msgpack.encode(row))

    def remove(self, key: str) -> bool:
        """Whether there was such a row."""
        if self._rows.pop(key, None) is None:
            return False
        self._tables.remove(self.name, key)
        return True

    def items(self) -> Iterator[tuple[str, Row]]:
        """Take a copy before anything changes meanwhile."""
        return iter(self._rows.items())

    def values(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, encoded: dict[str, bytes]) -> None:
        """Take what was on disk."""
        decode = msgspec.msgpack.Decoder(self.kind).decode
        for key, value in encoded.items():
            try:
                self._rows[key] = decode(value)
            except msgspec.MsgspecError as error:
                self.unreadable.append(key)
                logger.error("row_unreadable table=%s key=%s error=%s", self.name, key, error)


class _OpenTable(Protocol):
    """A table, whatever its rows are."""

    unreadable: list[str]

    def load(self, encoded: dict[str, bytes]) -> None: ...


class _Digest:
    """Of the rows of one table, whatever their order."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count = 0
        self.value = 0

    def add(self, key: str, row: bytes) -> None:
        self.count += 1
        self.value ^= self._of(key, row)

    def take(self, key: str, row: bytes) -> None:
        self.count -= 1
        self.value ^= self._of(key, row)

    @staticmethod
    def _of(key: str, row: bytes) -> int:
        encoded = key.encode("utf-8", "surrogatepass")
        head = len(encoded).to_bytes(4, "little")
        return int.from_bytes(blake2b(head + encoded + row, digest_size=_DIGEST).digest(), "little")


class Tables:
    """All tables of the node, and the encoded rows that a compaction writes again.

    ``commit`` is set when the store is open; ``None`` at level ``memory``.
    """

    def __init__(self) -> None:
        self.commit: GroupCommit | None = None
        self._tables: dict[str, _OpenTable] = {}
        # table -> key -> row, also of tables that are not open
        self._encoded: dict[str, dict[str, bytes]] = {}
        self.bytes = 0
        # Of tables whose rows decide what clients and users may do.
        self._digests: dict[str, _Digest] = {}
        self._access_changed = False

    def open(self, name: str, kind: type[Row], *, access: bool = False) -> Table[Row]:
        """The table of this name. Opened before the store is, it is filled by ``recover``.

        ``access``: its rows decide who may connect, publish, subscribe or manage; their loss is noticed.
        """
        if access:
            self.watch([name])
        table = self._tables[name] = Table(self, name, kind)
        table.load(self._encoded.get(name, {}))
        return table

    def recover(self, rows: dict[str, dict[str, bytes]]) -> None:
        """What was on disk, before clients are let in."""
        self._encoded = rows
        self.bytes = sum(len(key) + len(value) for table in rows.values() for key, value in table.items())
        for name, table in self._tables.items():
            table.load(rows.get(name, {}))
        self.watch(list(self._digests))

    def watch(self, names: Iterable[str]) -> None:
        """The rows of these tables are of access control, be they open or not."""
        for name in names:
            digest = self._digests[name] = _Digest()
            for key, row in self._encoded.get(name, {}).items():
                digest.add(key, row)

    def access(self) -> Digests:
        """Of the rows of access control, as they are now."""
        return {
            name: (digest.count, digest.value.to_bytes(_DIGEST, "little")) for name, digest in self._digests.items()
        }

    def changed_access(self) -> Digests | None:
        """The same, where it has changed since this was last asked."""
        if not self._access_changed:
            return None
        self._access_changed = False
        return self.access()

    def write_access(self) -> None:
        """The next batch says how these rows are, whether they have changed or not."""
        self._access_changed = True

    def put(self, table: str, key: str, value: bytes) -> None:
        if self.commit is None:
            return
        rows = self._encoded.setdefault(table, {})
        before = rows.get(key)
        self.bytes += len(value) - len(before) if before is not None else len(key) + len(value)
        rows[key] = value
        digest = self._digests.get(table)
        if digest is not None:
            if before is not None:
                digest.take(key, before)
            digest.add(key, value)
            self._access_changed = True
        self.commit.write_over(row_subject(table, key), records.RowStored(table, key, value))

    def remove(self, table: str, key: str) -> None:
        if self.commit is None:
            return
        value = self._encoded.get(table, {}).pop(key, None)
        if value is not None:
            self.bytes -= len(key) + len(value)
            digest = self._digests.get(table)
            if digest is not None:
                digest.take(key, value)
                self._access_changed = True
            self.commit.write_over(row_subject(table, key), records.RowRemoved(table, key))

    def rows(self) -> Iterator[tuple[str, str, bytes]]:
        """Every row there is; much may change between two of them."""
        for name in list(self._encoded):
            for key in list(self._encoded[name]):
                value = self._encoded[name].get(key)
                if value is not None:
                    yield name, key, value

    @property
    def unreadable(self) -> dict[str, int]:
        """How many rows could not be read, by table; tables with none are left out."""
        return {name: len(table.unreadable) for name, table in self._tables.items() if table.unreadable}

    @property
    def durable(self) -> bool:
        """Whether they outlive the process."""
        return self.commit is not None

    @property
    def in_trouble(self) -> bool:
        """Whether nothing can be written at present."""
        return self.commit is not None and self.commit.trouble is not None

    async def stored(self) -> bool:
        """Until every change so far is on disk; ``False``: the store is in trouble and cannot promise that."""
        return self.commit is None or await self.commit.wait_until_durable(self.commit.barrier)
