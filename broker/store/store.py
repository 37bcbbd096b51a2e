"""Store: durability level ``disk``, assembled: the log file, its journal, what is restored from it, housekeeping."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ..config import ZoneSettings
from ..core.broker import Broker
from ..loop.budget import LoopBudget
from ..mqtt.message import Message
from ..persistence.durability import COMPACT_ABOVE, Durability
from ..persistence.log import records
from ..persistence.log.batch import decode
from ..persistence.log.check_file import CheckFile
from ..persistence.log.errors import StoreError
from ..persistence.log.sqlite_log import SqliteLog
from ..persistence.log.write_ahead_log import WriteAheadLog
from ..persistence.record_mapping import octets_of
from ..persistence.stored_message import StoredMessage
from ..persistence.tables import Tables
from ..session.limits import Limits
from .compaction import live, live_octets
from .recovery import Restored, read, restore
from .store_loss import MARKED, Loss, judge

logger = logging.getLogger(__name__)

FILE: Final = "taipan.db"
CHECK_FILE: Final = "taipan.check"
MADE: Final = "made"
ACCEPTED: Final = "loss_accepted"
CLOSE_TIMEOUT: Final = 10.0
_A_SLICE: Final = 2000
OCTETS_A_SLICE: Final = 8_388_608
"""Records that one tick of a compaction writes, and bytes of messages."""


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """When it was, in unix seconds."""

    at: float


class Store:
    """Opened before the first listener, closed after the last client."""

    def __init__(self, directory: Path, queue_memory: int = 0, accept_loss: bool = False) -> None:
        """``queue_memory``: bytes of queued messages' bodies in memory, 0: no bound. ``accept_loss``: of access rows,
        without being told to."""
        self._queue_memory = queue_memory
        self.octets_a_slice = OCTETS_A_SLICE
        self._accept_loss = accept_loss
        self._check = CheckFile(directory / CHECK_FILE)
        self._log = SqliteLog(directory / FILE, check=self._check)
        # What the start has found.
        self.loss = Loss()
        self._state: Restored | None = None
        self._live: Iterator[records._Record | StoredMessage] | None = None
        self._from = 0
        self._dropping: asyncio.Task[None] | None = None
        # Told of trouble (one line) and of its end (None).
        self.on_trouble: Callable[[str | None], None] = lambda _: None
        self.durability: Durability

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
        now: Callable[[], float] = time.time,
        tables: Tables | None = None,
        turn: LoopBudget | None = None,
    ) -> Durability:
        """Read the file; ``tables`` are filled at once. ``turn``: as for ``Durability``. Raises StoreError with one
        line where it cannot be used."""
        log = self._log
        try:
            log.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"node.data_dir {log.path.parent}: {error.strerror}") from None
        self._check.read()
        log.open()
        self._state = read(self._batches(), self._queue_memory)
        self._state.bring_sent(log.read)
        if log.salvaged is not None:
            logger.error("store_damaged file=%s setting=node.data_dir report=%s", log.path, log.salvaged)
        journal = WriteAheadLog(log, loop, self._on_durable, self._on_trouble)
        self.durability = Durability(journal, wake, self._queue_memory, now, tables, loop.call_later, turn)
        self.durability.tables.restore(self._state.rows)
        self.durability.tables.durability = self.durability
        self._look_for_loss(self.durability.tables)
        journal.start()
        return self.durability

    def _look_for_loss(self, tables: Tables) -> None:
        """Whether the store has all that it had, by the check file."""
        check, log = self._check, self._log
        if check.expected is not None:
            tables.watch(check.expected.after)
        rows = tables.access()
        marked = len(tables.open(MARKED, Mark)) > 0
        self.loss = loss = judge(check, log.last, rows, marked, log.salvaged is not None)
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
        """Say in the store that there is a check file, so that it is missed; and have it made."""
        tables = self.durability.tables
        marks = tables.open(MARKED, Mark)
        missing = self._check.expected is None and not self._check.held
        if MADE not in marks:
            marks.put(MADE, Mark(time.time()))
        elif missing:
            marks.put(ACCEPTED, Mark(time.time()))
        if missing:
            tables.tell_access()

    async def accept_loss(self) -> bool:
        """The rows that decide who may are right as they are; whether that is on disk."""
        tables = self.durability.tables
        self._check.held = False
        tables.open(MARKED, Mark).put(ACCEPTED, Mark(time.time()))
        tables.tell_access()
        stored = await tables.stored()
        self._check.held = not stored  # nobody was told that it is accepted
        return stored

    @property
    def access_lost(self) -> str:
        """Why nobody but operators may be let in, in one line; empty: nothing is lost, or it was accepted."""
        return self.loss.access if self._check.held else ""

    def _batches(self) -> Iterator[tuple[int, list[bytes]]]:
        for seq, data in self._log.scan():
            try:
                yield seq, decode(data)
            except StoreError as error:
                logger.error("store_batch_unreadable batch=%s error=%s", seq, error)

    def restore(
        self,
        broker: Broker,
        zone_of: Callable[[str], tuple[ZoneSettings, Limits]],
        delay: Callable[[Message, float, int], None],
        may_publish: Callable[[Message], bool],
        relieve: Callable[[], None] = lambda: None,
    ) -> None:
        """Put what was read into the broker. ``relieve``: see there."""
        state, self._state = self._state, None
        assert state is not None
        self._mark()
        restore(state, broker, self.durability, zone_of, delay, may_publish, relieve)

    def _on_durable(self, seq: int) -> None:
        self.durability.on_durable(seq)

    def _on_trouble(self, trouble: str | None) -> None:
        if trouble is None:
            logger.warning("store_recovered file=%s setting=node.data_dir", self._log.path)
        else:
            logger.error("store_trouble file=%s error=%s setting=node.data_dir", self._log.path, trouble)
        self.durability.on_trouble(trouble)
        self.on_trouble(trouble)

    @property
    def damage(self) -> str:
        """What was found damaged at the start, in one line; empty: nothing."""
        return "" if self._log.salvaged is None else str(self._log.salvaged)

    @property
    def file(self) -> Path:
        """Where all of it lies."""
        return self._log.path

    def housekeep(self, broker: Broker) -> None:
        """Compact, a slice at a time, when less than half of a large log says anything that is still true."""
        journal = self.durability.journal
        if self._dropping is not None and not self._dropping.done():
            return
        if self._live is None:
            if journal.dropping:
                return  # the file is larger than it is going to be
            size = journal.size_bytes
            if size < COMPACT_ABOVE or size < 2 * live_octets(self.durability, broker):
                return
            self._from = journal.batch
            self._live = live(self.durability, broker, self._from)
            logger.info("store_compaction_started bytes=%s", size)
        if self.durability.pending_octets > self.octets_a_slice or self.durability.trouble is not None:
            return
        octets = 0
        paged: list[StoredMessage] = []
        for _ in range(_A_SLICE):
            entry = next(self._live, None)
            if entry is None:
                self._live = None
                break
            if isinstance(entry, StoredMessage) and entry.message.paged:
                paged.append(entry)
            else:
                self.durability.write_again(entry)
            octets += entry.size if isinstance(entry, StoredMessage) else octets_of(entry)
            if octets > self.octets_a_slice:
                break
        if paged or self._live is None:
            self._dropping = asyncio.ensure_future(self._after(paged, self._live is None))

    async def _after(self, paged: list[StoredMessage], last: bool) -> None:
        """Write paged messages again, too; ``last``: then all that is true stands in newer batches."""
        if paged:
            await self.durability.paging.load(paged, self.durability.write_again)
        if last:
            await self._drop(self.durability.barrier)

    async def _drop(self, barrier: int) -> None:
        """Everything that is true stands in newer batches: the older ones may go."""
        if barrier:
            await self.durability.wait(barrier)
        self.durability.journal.drop_before(self._from)
        logger.info("store_compacted before=%s", self._from)

    async def flush(self) -> bool:
        """Until everything written so far is on disk; False: there is trouble."""
        self.durability.end_of_turn()
        barrier = self.durability.barrier
        return not barrier or await self.durability.stored(barrier)

    async def close(self) -> None:
        """Write the rest and leave one tidy file; where there is trouble, give up soon."""
        if self._dropping is not None:
            self._dropping.cancel()
        flushing = asyncio.ensure_future(self.flush())
        await asyncio.wait([flushing], timeout=CLOSE_TIMEOUT)
        flushed = flushing.done() and flushing.result()
        if not await self.durability.journal.close(CLOSE_TIMEOUT if flushed else 1.0):
            logger.error("store_not_flushed file=%s", self._log.path)
