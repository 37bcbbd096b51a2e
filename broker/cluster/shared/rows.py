"""Rows: users, rules, resources, bans and other rows of operators are the same on all nodes, through bucket ``rows``.

A change takes effect on this node immediately, and is answered when the bucket has it. Each write is a compare-and-set:
if two nodes change a row at the same time, one of the changes fails. Every node watches the bucket and has all rows in
its own tables, so that no login and no access decision waits for the network.
"""

import asyncio
import logging
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, NamedTuple

from ...persistence.tables import NotAgreed
from ..context import ClusterContext
from ..nats.interface import BucketEntry, NoAnswer, TooLarge, Unavailable, Unknown, WrongRevision, fits
from ..wire import MALFORMED, OVERHEAD, thing_key
from .bucket_life import AGAIN, NEVER, RECORD, BucketRecord, Version, each_of
from .shared_map import AT_ONCE, KnownValue, SharedChange, SharedMap
from .values import RowValue, RowVersion

logger = logging.getLogger(__name__)

BUCKET: Final = "rows"
TOO_LARGE: Final = "row_too_large"

LOST: Final = "another node changed the same record at the same time: its change applies, this one was undone"
NOT_THERE: Final = "the cluster accepts no changes: it has no quorum, or NATS cannot be reached; nothing was changed"
NOT_JOINED: Final = "the cluster accepts no changes: this node has not read its rows yet; nothing was changed"
NOT_TAKEN: Final = "the row is larger than max_payload of NATS: nothing was changed"
UNSURE: Final = "the change applies on this node, but the cluster has not confirmed it yet; it may still be undone"

_MIB: Final = 1_048_576
_PROBE: Final = 2.0
_MAX_WAIT: Final = 10.0
_MAX_GONE: Final = 10_000
"""The number of deleted rows whose versions are remembered."""

_OTHER_BUCKET: Final = -1


class _Operation:
    """The changes of one request of an operator. ``pending`` has those that the bucket does not have yet."""

    __slots__ = ("failure", "future", "open", "pending", "task")

    def __init__(self, task: "asyncio.Task[object] | None") -> None:
        self.task = None if task is None else weakref.ref(task)
        self.open = True
        self.pending = 0
        self.failure = ""
        self.future: asyncio.Future[None] | None = None

    def done(self, failure: str) -> None:
        self.pending -= 1
        self.failure = self.failure or failure
        if not self.pending and self.future is not None and not self.future.done():
            self.future.set_result(None)


_operation: ContextVar[_Operation | None] = ContextVar("_operation", default=None)


class _Change(SharedChange):
    """A row that was changed here. ``before`` is the value that the bucket had. ``version`` grows with each change of
    the row."""

    __slots__ = ("before", "key", "operations", "table", "value", "version")

    def __init__(self, name: str, table: str, key: str, before: bytes | None) -> None:
        super().__init__(name)
        self.table = table
        self.key = key
        self.before = before
        self.value: bytes | None = None
        self.version = 0
        self.operations: list[_Operation] = []

    def end(self, failure: str) -> None:
        """End the change, and answer the operations that wait for it."""
        operations, self.operations = self.operations, []
        for operation in operations:
            operation.done(failure)


class _Known(KnownValue):
    """A row in the bucket."""

    __slots__ = ("key", "table")

    def __init__(self, table: str, key: str, revision: int) -> None:
        super().__init__(revision)
        self.table = table
        self.key = key


class _Row(NamedTuple):
    """A row of this node."""

    table: str
    key: str
    value: bytes


class Rows(SharedMap[_Change, _Known, _Row, RowValue]):
    """The rows of operators, the same on all nodes. The tables call it as ``persistence.tables.SharedRows``."""

    def __init__(self, context: ClusterContext) -> None:
        super().__init__(context, BUCKET, TOO_LARGE)
        self._tables = tables = context.tables
        self._values = context.wire.reader(RowValue)
        self._versions = tables.open("row_versions", RowVersion)
        # The tombstones among these, the oldest first.
        self._gone: dict[str, None] = {}
        self._turn: list[_Change] = []
        tables.shared_rows = self

    # ------------------------------------------------------------- start, stop

    def start(self) -> None:
        """Read the rows of the cluster, and follow them."""
        self._gone = {name: None for name, each in self._versions.items() if each.gone}
        self._tables.shared_rows = self
        self._follow()
        self._tasks.run(self._probe())

    def stop(self) -> None:
        """Stop following the bucket. The rows remain, and belong to this node alone until ``start``."""
        self._tables.shared_rows = None
        self._unfollow()
        for change in self._changes.values():
            change.end(UNSURE)
        self._changes.clear()

    @property
    def revision(self) -> int:
        """The revision of the last change that this node has received."""
        return self._last

    def forget(self) -> None:
        """Forget the bucket, because this node leaves the cluster. From now on, its rows belong to it alone; if it
        joins again, it does so as a new node."""
        self._life.forget()
        self._forget_versions()

    def _forget_versions(self) -> None:
        for name, _ in list(self._versions.items()):
            self._versions.remove(name)
        self._gone.clear()

    # ---------------------------------------------------- changes of this node

    @property
    def max_row(self) -> int:
        return (self._nats.max_payload or _MIB) - OVERHEAD

    def begin(self) -> str:
        task = asyncio.current_task()
        operation = _operation.get()
        if operation is None or not operation.open or operation.task is None or operation.task() is task:
            _operation.set(_Operation(task))
        if not self._nats.connected or not self._nats.quorum:
            return NOT_THERE
        return "" if self.joined else NOT_JOINED

    def changed(self, table: str, key: str, before: bytes | None, value: bytes | None) -> None:
        operation = _operation.get()
        self._change(table, key, before, value, operation if operation is not None and operation.open else None)

    def _change(
        self, table: str, key: str, before: bytes | None, value: bytes | None, operation: _Operation | None
    ) -> None:
        name = thing_key(f"{table}\0{key}")
        change = self._changes.get(name)
        if change is None:
            change = self._changes[name] = _Change(name, table, key, before)
            if not self._turn:
                asyncio.get_running_loop().call_soon(self._end_of_turn)
            self._turn.append(change)
        change.value = value
        change.version += 1
        if operation is not None and operation not in change.operations:
            change.operations.append(operation)
            operation.pending += 1

    async def agreed(self) -> None:
        operation = _operation.get()
        if operation is None or not operation.open:
            return
        operation.open = False
        _operation.set(None)
        while operation.pending:
            pending = operation.pending
            operation.future = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_MAX_WAIT):
                    await operation.future
            except TimeoutError:
                if operation.pending == pending:
                    raise NotAgreed(UNSURE) from None
        if operation.failure:
            raise NotAgreed(operation.failure)

    def _end_of_turn(self) -> None:
        """Write the changes of one loop iteration. New rows are written before the rows that they replace are
        deleted."""
        turn, self._turn = self._turn, []
        for change in [each for each in turn if each.value is not None] + [each for each in turn if each.value is None]:
            self._begin(change)

    async def _write(self, change: _Change) -> None:
        """Repeat the write of a change until the bucket has it, or a different one. If an operation waits for the
        change, give up when the bucket cannot be reached."""
        while True:
            while not self.joined:
                if not await self.wait_until_joined(_MAX_WAIT / 2) and change.operations:
                    self._undo(change)
                    return
            value, version, nonce = change.value, change.version, self._context.nonce()
            known = self._known.get(change.name)
            if value is not None or known is not None:
                base = known.revision if known is not None else 0
                outcome = await self._write_value(change, value, base, nonce)
                if outcome is None:
                    return
                if outcome == _OTHER_BUCKET:
                    continue
                self._has(change.name, change.table, change.key, value, outcome)
            change.before = value
            if change.version == version:
                break
        del self._changes[change.name]
        change.end("")
        self._apply_later(change)

    async def _write_value(self, change: _Change, value: bytes | None, base: int, nonce: str) -> int | None:
        """Write a value, and return its revision. Return ``None`` if the change has ended without a write, because
        another node's change came first, or because the write failed and was undone. Return ``_OTHER_BUCKET`` if the
        bucket was lost, and the value has to be written to the next one."""
        data = None if value is None else self._wire.write(RowValue(change.table, change.key, value))
        while True:
            try:
                return await self._nats.write(BUCKET, change.name, data, base, nonce, self.write_timeout)
            except WrongRevision:
                if not self.joined:
                    return _OTHER_BUCKET
                winner = await self._winner(change)
                if winner.value is None and value is None:
                    return winner.revision
                body = None if winner.value is None else self._values.value(winner.value)
                theirs = None if body is None else body[1].row
                if value is not None and theirs == value:
                    return winner.revision  # an earlier attempt was applied, or both changes are the same
                del self._changes[change.name]
                logger.warning("row_change_lost table=%s key=%s", change.table, change.key)
                self._known.pop(change.name, None)
                if theirs is None:
                    self._take(change.table, change.key, None, (self.generation, winner.revision))
                else:
                    self._apply(winner)
                change.end(LOST)
                self._apply_later(change)
                return None
            except Unavailable:
                if change.operations:
                    self._undo(change)
                    return None
            except TooLarge:
                self._refuse_too_large()
                if change.operations:
                    self._undo(change, NOT_TAKEN)
                else:  # no operation waits for an answer: this node keeps the change
                    del self._changes[change.name]
                    self._apply_later(change)
                return None
            except Unknown:
                change.end(UNSURE)
            await asyncio.sleep(AGAIN)

    async def _winner(self, change: _Change) -> BucketEntry:
        """Return the entry of the bucket that another node wrote first."""
        while True:
            try:
                entry = await self._nats.read(BUCKET, change.name)
            except (Unavailable, NoAnswer):
                change.end(UNSURE)
                await asyncio.sleep(AGAIN)
                continue
            return BucketEntry(change.name, None, 0) if entry is None else entry

    def _has(self, name: str, table: str, key: str, value: bytes | None, revision: int) -> None:
        """Note that the bucket has this node's row."""
        if value is None:
            self._known.pop(name, None)
        else:
            self._known[name] = _Known(table, key, revision)
        self._date(table, key, value is None, (self.generation, revision))

    def _undo(self, change: _Change, failure: str = NOT_THERE) -> None:
        """Restore the earlier row here, because the change was certainly not written."""
        del self._changes[change.name]
        self._tables.take(change.table, change.key, change.before)
        change.end(failure)
        self._apply_later(change)

    def _apply_later(self, change: _Change) -> None:
        """Apply a newer entry that the watch reported while the change was being written."""
        if change.told is not None and self.joined:
            self._told(change.told)

    # ------------------------------------------------------- changes of others

    def _leave_bucket(self) -> None:
        logger.warning("cluster_rows_lost detail=%s", "the bucket is read again, and filled if it is new")

    def _record_told(self, entry: BucketEntry) -> None:
        joined, record = self._life.joined, self._life.decode(entry.value)
        if record is not None and joined is not None and joined.id == record.id:
            self.generation = record.generation
            if joined.generation != record.generation:
                self._life.join(record)

    def _apply(self, entry: BucketEntry) -> None:
        """Apply an entry of another node."""
        if entry.value is None:
            known = self._known.pop(entry.key, None)
            if known is not None:
                self._take(known.table, known.key, None, (self.generation, entry.revision))
            return
        body = self._read(entry)
        if body is None:
            return
        version = body.version or (self.generation, entry.revision)
        own = self._versions.get(_version_key(body.table, body.key))
        self._known[entry.key] = _Known(body.table, body.key, entry.revision)
        if body.version is not None and own is not None and own.version > version:
            # A node that was away for long has filled a new bucket with old rows.
            value = self._tables.value(body.table, body.key)
            self._change(body.table, body.key, body.row, value, None)
            return
        self._take(body.table, body.key, body.row, version)

    def _read(self, entry: BucketEntry) -> RowValue | None:
        read = None if entry.value is None else self._values.value(entry.value)
        if read is None:
            return None
        header, body = read
        if thing_key(f"{body.table}\0{body.key}") != entry.key:
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None
        return body

    def _take(self, table: str, key: str, value: bytes | None, version: Version) -> None:
        if self._tables.take(table, key, value):
            self._date(table, key, value is None, version)
        else:
            self._wire.refusals.add(MALFORMED, "-", "-")

    def _date(self, table: str, key: str, gone: bool, version: Version) -> None:
        name = _version_key(table, key)
        self._gone.pop(name, None)
        if gone:
            self._gone[name] = None
            if len(self._gone) > _MAX_GONE:
                oldest = next(iter(self._gone))
                del self._gone[oldest]
                self._versions.remove(oldest)
        self._versions.put(name, RowVersion(*version, gone))

    # -------------------------------------------------------------------- join

    async def _probe(self) -> None:
        """Read the bucket every few seconds. Thus ``Nats.quorum`` shows whether rows can be changed, even before an
        operator tries."""
        while True:
            await asyncio.sleep(_PROBE)
            try:
                await self._nats.read(BUCKET, RECORD)
            except (Unavailable, NoAnswer):
                continue  # ``Nats.quorum`` reports it from now on

    def _join_first(self) -> None:
        self._forget_versions()

    def _reached(self) -> Version:
        return max((each.version for each in self._versions.values()), default=NEVER)

    async def _fill(self, record: BucketRecord, lost: bool) -> None:
        own = [(table, key, value, self._version_of(table, key)) for table, key, value in self._tables.shared()]
        rows: list[tuple[str, str, bytes | None, Version]] = list(own)
        if lost:
            for name in self._gone:
                table, _, key = name.partition("\0")
                rows.append((table, key, None, self._version_of(table, key)))
        logger.info("cluster_rows_filled rows=%s lost=%s", len(own), lost)

        async def offer(row: tuple[str, str, bytes | None, Version]) -> None:
            table, key, value, version = row
            await self._offer_row(record, table, key, value, version if lost else None)

        await each_of(rows, offer, AT_ONCE)

    def _version_of(self, table: str, key: str) -> Version:
        known = self._versions.get(_version_key(table, key))
        return NEVER if known is None else known.version

    async def _offer_row(
        self, record: BucketRecord, table: str, key: str, value: bytes | None, version: Version | None
    ) -> None:
        data = None if value is None else self._wire.write(RowValue(table, key, value, version))

        def offered(entry: BucketEntry | None) -> tuple[bytes | None, int] | None:
            there = None if entry is None else self._read(entry)
            if there is not None:
                assert entry is not None
                theirs = there.version or (record.generation, entry.revision)
                return None if version is None or theirs >= version or there.row == value else (data, entry.revision)
            if value is None or (version is not None and (entry is not None or version <= record.filled)):
                return None  # a node that knew more has deleted it
            return data, 0

        await self._offer(thing_key(f"{table}\0{key}"), offered)

    async def _save_own(self) -> None:
        """Write the rows that will be replaced to a file first."""
        count = sum(1 for _ in self._tables.shared())
        if not count:
            return
        file = "-"
        while self._tables.export is not None:
            try:
                file = await self._tables.export()
                break
            except Exception as error:  # no row is replaced before it is in the file
                logger.error("cluster_rows_not_exported setting=node.data_dir error=%s", error)
                await asyncio.sleep(2 * AGAIN)
        logger.warning(
            "cluster_rows_replaced count=%s file=%s detail=%s",
            count,
            file,
            "it was not in the cluster before; the cluster's users, rules and resources replace its own",
        )

    def _own(self) -> Iterator[tuple[str, _Row]]:
        for table, key, value in self._tables.shared():
            yield thing_key(f"{table}\0{key}"), _Row(table, key, value)

    def _fits(self, own: _Row) -> bool:
        return fits(self._wire.write(RowValue(*own)), self._nats.max_payload)

    def _mirror_entry(self, record: BucketRecord, entry: BucketEntry, read: RowValue, own: _Row | None) -> None:
        self._known[entry.key] = _Known(read.table, read.key, entry.revision)
        if entry.key in self._changes:
            return
        version = read.version or (record.generation, entry.revision)
        if own is None or own.value != read.row:
            try:
                self._take(read.table, read.key, read.row, version)
            except Exception:  # a fault with one row must not affect the others
                logger.exception("cluster_row_not_taken table=%s key=%s", read.table, read.key)
        elif self._version_of(read.table, read.key) != version:
            self._date(read.table, read.key, False, version)

    def _delete_own(self, record: BucketRecord, own: _Row) -> None:
        self._take(own.table, own.key, None, (record.generation, self._last))

    def _end_mirror(self, first: bool, gone: int) -> None:
        logger.info("cluster_rows_joined rows=%s generation=%s", len(self._known), self.generation)


def _version_key(table: str, key: str) -> str:
    return f"{table}\0{key}"
