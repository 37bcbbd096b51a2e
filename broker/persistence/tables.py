"""Tables: small named sets of rows that outlive the process, such as users, access rules, applications and rules.

A package opens its table once and reads it like a dict. Every change is immediately in memory, and on disk after the
next batch, for which ``Tables.stored`` waits. At level ``memory``, tables do not survive a restart."""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
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
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RowTooLarge(ValueError):
    """A row that is too large to be sent to the other nodes."""


class NotAgreed(Exception):
    """The cluster does not have a change, or it is unknown whether it has it; the message says which, and what applies
    now."""


class SharedRows(Protocol):
    """Sends changes of shared tables to the other nodes: ``cluster.rows``.

    ``max_row``: maximum size of a row in bytes."""

    @property
    def max_row(self) -> int: ...

    def begin(self) -> str:
        """Announce that an operation of this task, or of tasks that it creates, will change rows. Return why this is
        not possible now, or ``""``."""

    def changed(self, table: str, key: str, before: bytes | None, value: bytes | None) -> None:
        """Note that a row was changed on this node. ``None`` before: the row is new; ``None`` after: it was removed."""

    async def agreed(self) -> None:
        """Wait until the cluster has the changes since ``begin``.

        :raises NotAgreed: it does not have them."""


class Table(Generic[Row]):
    """Rows of one kind by key, in the order in which the keys were first put.

    ``shared``: in a cluster all nodes have the same rows. ``unreadable``: keys of rows on disk that cannot be read;
    they stay there unchanged. ``on_taken``: called when another node has changed a row, with its key, the row before
    and the row after, ``None`` if there is none."""

    __slots__ = ("_rows", "_tables", "kind", "name", "on_taken", "shared", "unreadable")

    def __init__(self, tables: "Tables", name: str, kind: type[Row], shared: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.shared = shared
        self.on_taken: list[Callable[[str, Row | None, Row | None], None]] = []
        self._tables = tables
        self._rows: dict[str, Row] = {}
        self.unreadable: list[str] = []

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def put(self, key: str, row: Row) -> None:
        """Add or replace a row. The table keeps ``row`` itself: treat it as immutable from now on.

        :raises RowTooLarge: the row cannot be sent to the other nodes."""
        value = self._encoded(key, row)
        before = self._rows.get(key)
        self._rows[key] = row
        self._tables.put(self.name, key, value)
        self._tell(key, before, value)

    def remove(self, key: str) -> bool:
        """Remove a row; return whether it existed."""
        before = self._rows.pop(key, None)
        if before is None:
            return False
        self._tables.remove(self.name, key)
        self._tell(key, before, None)
        return True

    def check(self, key: str, row: Row) -> None:
        """Check whether a row can be stored, before anything changes.

        :raises RowTooLarge: the row cannot be sent to the other nodes."""
        if self.shared and self._tables.shared_rows is not None:
            self._encoded(key, row)

    def _encoded(self, key: str, row: Row) -> bytes:
        value = msgspec.msgpack.encode(row)
        rows = self._tables.shared_rows
        if self.shared and rows is not None and len(value) + 4 * len(key) > rows.max_row:
            raise RowTooLarge(
                f"{self.name}: a row of {len(value)} bytes is larger than a message of NATS may be"
                " (max_payload in the configuration of the NATS server)"
            )
        return value

    def _tell(self, key: str, before: Row | None, value: bytes | None) -> None:
        rows = self._tables.shared_rows
        if self.shared and rows is not None:
            rows.changed(self.name, key, None if before is None else msgspec.msgpack.encode(before), value)

    def take(self, key: str, value: bytes | None) -> None:
        """Apply a row of the cluster, and write it to this node's disk. A row that cannot be read is stored there and
        listed in ``unreadable``."""
        before = self._rows.get(key)
        row: Row | None = None
        if key in self.unreadable:
            self.unreadable.remove(key)
        if value is not None:
            try:
                row = msgspec.msgpack.decode(value, type=self.kind)
            except _UNREADABLE as error:
                self.unreadable.append(key)
                logger.error("row_unreadable table=%s key=%s error=%s", self.name, key, error)
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row
        if value is None:
            self._tables.remove(self.name, key)
        else:
            self._tables.put(self.name, key, value)
        if row is not None or before is not None:
            for call in self.on_taken:
                call(key, before, row)

    def value(self, key: str) -> bytes | None:
        """Return a row in its stored form."""
        row = self._rows.get(key)
        return None if row is None else msgspec.msgpack.encode(row)

    def encoded(self) -> Iterator[tuple[str, bytes]]:
        """Yield every row that can be read, in its stored form. The table must not change during the iteration."""
        for key, row in self._rows.items():
            yield key, msgspec.msgpack.encode(row)

    def items(self) -> Iterator[tuple[str, Row]]:
        """Return an iterator over the rows; copy it if the table may change during the iteration."""
        return iter(self._rows.items())

    def values(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, encoded: dict[str, bytes]) -> None:
        """Load the rows from disk."""
        decode = msgspec.msgpack.Decoder(self.kind).decode
        for key, value in encoded.items():
            try:
                self._rows[key] = decode(value)
            except _UNREADABLE as error:
                self.unreadable.append(key)
                logger.error("row_unreadable table=%s key=%s error=%s", self.name, key, error)


class _OpenTable(Protocol):
    """A table with rows of any type."""

    name: str
    shared: bool
    unreadable: list[str]

    def load(self, encoded: dict[str, bytes]) -> None: ...

    def take(self, key: str, value: bytes | None) -> None: ...

    def value(self, key: str) -> bytes | None: ...

    def encoded(self) -> Iterator[tuple[str, bytes]]: ...


class _Digest:
    """Digest of the rows of one table, independent of their order."""

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

    ``commit`` is set when the store is open; it is ``None`` at level ``memory``. ``shared_rows`` is set in a
    cluster."""

    def __init__(self) -> None:
        self.commit: GroupCommit | None = None
        self.shared_rows: SharedRows | None = None
        # Before the rows of a cluster replace the stored rows, writes these to a file and returns its name.
        self.export: Callable[[], Awaitable[str]] | None = None
        self._tables: dict[str, _OpenTable] = {}
        # table -> key -> row, including tables that are not open
        self._encoded: dict[str, dict[str, bytes]] = {}
        self.bytes = 0
        # For tables whose rows decide what clients and users are allowed to do.
        self._digests: dict[str, _Digest] = {}
        self._access_changed = False

    def open(self, name: str, kind: type[Row], *, access: bool = False, shared: bool = False) -> Table[Row]:
        """Return the table with this name. If it is opened before the store, ``recover`` fills it.

        ``access``: its rows decide which clients may connect, publish, subscribe or manage; their loss is noticed.
        ``shared``: in a cluster all nodes have the same rows."""
        if access:
            self.watch([name])
        table = self._tables[name] = Table(self, name, kind, shared)
        table.load(self._encoded.get(name, {}))
        return table

    def recover(self, rows: dict[str, dict[str, bytes]]) -> None:
        """Load the rows from disk, before clients are accepted."""
        self._encoded = rows
        self.bytes = sum(len(key) + len(value) for table in rows.values() for key, value in table.items())
        for name, table in self._tables.items():
            table.load(rows.get(name, {}))
        self.watch(list(self._digests))

    def watch(self, names: Iterable[str]) -> None:
        """Treat the rows of these tables as access control, even if the tables are not open."""
        for name in names:
            digest = self._digests[name] = _Digest()
            for key, row in self._encoded.get(name, {}).items():
                digest.add(key, row)

    def access(self) -> Digests:
        """Return the digests of the current rows of access control."""
        return {
            name: (digest.count, digest.value.to_bytes(_DIGEST, "little")) for name, digest in self._digests.items()
        }

    def changed_access(self) -> Digests | None:
        """Return the digests of ``access`` if they have changed since the last call, otherwise None."""
        if not self._access_changed:
            return None
        self._access_changed = False
        return self.access()

    def write_access(self) -> None:
        """Include the digests of these rows in the next batch, whether they have changed or not."""
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

    def take(self, table: str, key: str, value: bytes | None) -> bool:
        """Apply a row of the cluster to a shared table, or to a table that only later versions know; return ``False``
        if the table belongs to this node."""
        known = self._tables.get(table)
        if known is not None:
            if known.shared:
                known.take(key, value)
            return known.shared
        if value is None:
            self.remove(table, key)
        else:
            self.put(table, key, value)
        return True

    def value(self, table: str, key: str) -> bytes | None:
        """Return a row of a shared table in its stored form."""
        known = self._tables.get(table)
        if known is None:
            return self._encoded.get(table, {}).get(key)
        return known.value(key) if known.shared else None

    def shared(self) -> Iterator[tuple[str, str, bytes]]:
        """Iterate over the rows of the shared tables: table, key, and the stored form of the row. The tables must not
        change during the iteration."""
        for table in self._tables.values():
            if table.shared:
                for key, value in table.encoded():
                    yield table.name, key, value

    def rows(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield every row. The tables may change during the iteration."""
        for name in list(self._encoded):
            for key in list(self._encoded[name]):
                value = self._encoded[name].get(key)
                if value is not None:
                    yield name, key, value

    @property
    def unreadable(self) -> dict[str, int]:
        """Return how many rows could not be read, by table, without tables that have none."""
        return {name: len(table.unreadable) for name, table in self._tables.items() if table.unreadable}

    @property
    def durable(self) -> bool:
        """Whether the tables outlive the process."""
        return self.commit is not None

    @property
    def in_trouble(self) -> bool:
        """Whether the store cannot be written at present."""
        return self.commit is not None and self.commit.trouble is not None

    async def stored(self) -> bool:
        """Wait until every change so far is on disk; return ``False`` if the store is in trouble and cannot ensure
        this."""
        return self.commit is None or await self.commit.wait_until_durable(self.commit.barrier)

    async def written(self) -> None:
        """Wait until every change so far is on the disk of this node; its copies may not have it yet."""
        if self.commit is not None:
            await self.commit.wait_until_written()
