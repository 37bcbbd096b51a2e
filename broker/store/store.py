"""Store: durability level ``disk``, assembled from the log file, recovery, compaction and shutdown."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ..config import ZoneSettings
from ..core.broker import Broker
from ..core.outcome import Outcome
from ..loop.budget import LoopBudget
from ..mqtt.message import Message
from ..persistence.durability import Durability
from ..persistence.log.backup_file import BackupHead, BackupWriter
from ..persistence.log.batch import decode
from ..persistence.log.check_file import CheckFile
from ..persistence.log.errors import StoreError
from ..persistence.log.sqlite_log import SqliteLog
from ..persistence.log.write_ahead_log import WriteAheadLog
from ..persistence.tables import Tables
from ..session.limits import Limits
from .compaction import SLICE_BYTES, Compaction
from .recovery import CLOCK_SET, ClockSet, HoldWill, RecoveredState, read_batches, recover_in_steps
from .store_loss import MARKED, StoreLoss, find_loss

logger = logging.getLogger(__name__)

FILE: Final = "taipan.db"
CHECK_FILE: Final = "taipan.check"
MADE: Final = "made"
ACCEPTED: Final = "loss_accepted"
CLOSE_TIMEOUT: Final = 10.0
COPY_TIMEOUT: Final = 30.0
COPY_BYTES: Final = 1_048_576
"""Size of a piece of a backup, unless a batch is larger. While a piece is read, no batch is written."""


class RecordedTime(msgspec.Struct, array_like=True, frozen=True):
    """A recorded time, in Unix seconds."""

    at: float


class Store:
    """The store of a node, opened before the first listener and closed after the last client."""

    def __init__(self, directory: Path, queue_memory: int = 0, accept_loss: bool = False) -> None:
        """``queue_memory``: limit of queued message bodies in memory, in bytes, 0: none. ``accept_loss``: accept the
        loss of access rows without an order of an operator."""
        self._queue_memory = queue_memory
        self._accept_loss = accept_loss
        self._check = CheckFile(directory / CHECK_FILE)
        self._log = SqliteLog(directory / FILE, check=self._check)
        # The results of the start.
        self.loss = StoreLoss()
        self._state: RecoveredState | None = None
        # Called with the trouble (one line), and with None at its end.
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self.durability: Durability
        self.compaction: Compaction

    def read(self) -> None:
        """Read the file; another thread may do so. ``open`` follows, or ``abandon``. Raises StoreError with a one-line
        message if the file cannot be used."""
        log = self._log
        try:
            log.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"node.data_dir {log.path.parent}: {error.strerror}") from None
        self._check.read()
        log.open()
        self._state = read_batches(self._batches(), self._queue_memory)
        self._state.load_inflight(log.read)
        if log.salvaged is not None:
            logger.error("store_damaged file=%s setting=node.data_dir report=%s", log.path, log.salvaged)

    def row(self, table: str, key: str) -> bytes | None:
        """Return a row that ``read`` has found; None: there is none."""
        assert self._state is not None
        return self._state.rows.get(table, {}).get(key)

    def abandon(self) -> None:
        """Close the file that ``read`` has opened."""
        self._state = None
        with contextlib.suppress(StoreError):
            self._log.checkpoint_and_close()

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
        tables: Tables | None = None,
        skew: Callable[[], float] = lambda: 0.0,
        memory_limit: int = 0,
        budget: LoopBudget | None = None,
    ) -> Durability:
        """Fill ``tables``, and write from now on. Reads the file unless ``read`` has done so, and raises its errors.

        ``memory_limit``: limit of the node in bytes, 0: none. Data that is being written uses memory several times.
        ``budget``: as for ``GroupCommit``."""
        if self._state is None:
            self.read()
        assert self._state is not None
        log = self._log
        wal = WriteAheadLog(log, loop, self._on_durable, self._on_trouble)
        slice_bytes = SLICE_BYTES
        if memory_limit:
            wal.max_pending = min(wal.max_pending, memory_limit // 16)
            slice_bytes = min(slice_bytes, memory_limit // 128)
        self.durability = Durability(wal, wake, self._queue_memory, now, tables, loop.call_later, skew, budget)
        self.compaction = Compaction(self.durability, slice_bytes)
        self.durability.tables.recover(self._state.rows)
        self._look_for_loss(self.durability.tables)
        wal.start()
        return self.durability

    def _look_for_loss(self, tables: Tables) -> None:
        """Check against the check file whether the store is complete."""
        check, log = self._check, self._log
        if check.expected is not None:
            tables.watch(check.expected.after)
        rows = tables.access()
        marked = len(tables.open(MARKED, RecordedTime)) > 0
        self.loss = loss = find_loss(check, log.last, rows, marked, log.salvaged is not None)
        if loss.batches is not None:
            logger.error("store_batches_lost file=%s first=%s last=%s setting=node.data_dir", log.path, *loss.batches)
        held = bool(loss.access) and not self._accept_loss
        if loss.access:
            logger.error(
                "access_rows_lost file=%s accepted=%s what=%s setting=data.access_lost",
                log.path, "no" if held else "yes", loss.access,
            )  # fmt: skip
        check.settle(log.last, rows, held)

    def _mark(self) -> None:
        """Record in the store that a check file exists, so that a missing one is noticed; then have it created."""
        tables = self.durability.tables
        marks = tables.open(MARKED, RecordedTime)
        missing = self._check.expected is None and not self._check.held
        if MADE not in marks:
            marks.put(MADE, RecordedTime(time.time()))
        elif missing:
            marks.put(ACCEPTED, RecordedTime(time.time()))
        if missing:
            tables.write_access()

    async def accept_loss(self) -> bool:
        """Accept the rows of access control as they are; return whether that is on disk."""
        tables = self.durability.tables
        self._check.held = False
        tables.open(MARKED, RecordedTime).put(ACCEPTED, RecordedTime(time.time()))
        tables.write_access()
        stored = await tables.stored()
        self._check.held = not stored  # the acceptance has not been confirmed to the operator
        return stored

    @property
    def access_lost(self) -> str:
        """Return why only operators are accepted, in one line; empty if nothing is lost or the loss was accepted."""
        return self.loss.access if self._check.held else ""

    def _batches(self) -> Iterator[tuple[int, list[bytes]]]:
        for seq, data in self._log.scan():
            try:
                yield seq, decode(data)
            except StoreError as error:
                logger.error("store_batch_unreadable batch=%s error=%s", seq, error)

    def recover_in_steps(
        self,
        broker: Broker,
        zone_of: Callable[[str], tuple[ZoneSettings, Limits]],
        delay: Callable[[Message, float, int], None],
        refusal_of_will: Callable[[Message, bool], Outcome | None],
        shed: Callable[[], None] = lambda: None,
        hold_will: HoldWill | None = None,
    ) -> Iterator[None]:
        """Put the recovered state into the broker in steps; the arguments are those of
        ``recovery.recover_in_steps``."""
        state, self._state = self._state, None
        assert state is not None
        self._mark()
        yield from recover_in_steps(state, broker, self.durability, zone_of, delay, refusal_of_will, shed, hold_will)

    def _on_durable(self, seq: int) -> None:
        self.durability.on_durable(seq)

    def _on_trouble(self, trouble: str | None) -> None:
        if trouble is None:
            logger.warning("store_recovered file=%s setting=node.data_dir", self._log.path)
        else:
            logger.error("store_trouble file=%s error=%s setting=node.data_dir", self._log.path, trouble)
        self.durability.commit.on_trouble(trouble)
        self.on_trouble(trouble)

    def note_clock_set(self, by: float) -> None:
        """Record by how many seconds the wall clock was set. The next start needs it, because it measures intervals by
        dates."""
        table = self.durability.tables.open(CLOCK_SET, ClockSet)
        before = table.get(CLOCK_SET)
        table.put(CLOCK_SET, ClockSet(by if before is None else before.by + by))

    @property
    def damage(self) -> str:
        """Return the damage that was found at the start, in one line; empty if there is none."""
        return "" if self._log.salvaged is None else str(self._log.salvaged)

    @property
    def file(self) -> Path:
        """Return the path of the store's file."""
        return self._log.path

    def verify_path(self) -> None:
        """Have the writer verify that the file is still in its place. Called once a second, because otherwise a deleted
        file would be noticed only at the next start or write."""
        self.durability.commit.log.verify_path()

    async def flush(self) -> bool:
        """Wait until everything written so far is on disk; return False if the store has failed."""
        commit = self.durability.commit
        commit.end_of_iteration()
        return await commit.wait_until_durable(commit.barrier)

    async def copy(self, head: BackupHead) -> AsyncGenerator[bytes, None]:
        """Yield a backup in pieces. It contains everything that was acknowledged before it began, and some of the data
        that arrived while it was made. Raises StoreError."""
        if not await self.flush():
            raise StoreError(f"the store is in trouble: {self.durability.commit.trouble}")
        log = self.durability.commit.log
        writer = BackupWriter()
        yield writer.head(head)
        seq = 0
        while True:
            try:
                async with asyncio.timeout(COPY_TIMEOUT):
                    copied = await log.copy(writer, seq, COPY_BYTES)
            except TimeoutError:
                raise StoreError(f"the store has not answered for {COPY_TIMEOUT:.0f} seconds") from None
            yield copied.data
            if copied.end:
                return
            seq = copied.seq

    async def close(self) -> None:
        """Write the remaining data and leave one compact file; if the store has failed, stop trying after a short
        time."""
        self.compaction.cancel()
        flushing = asyncio.ensure_future(self.flush())
        await asyncio.wait([flushing], timeout=CLOSE_TIMEOUT)
        flushed = flushing.done() and flushing.result()
        if not await self.durability.commit.log.close(CLOSE_TIMEOUT if flushed else 1.0):
            logger.error("store_not_flushed file=%s", self._log.path)
