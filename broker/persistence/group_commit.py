"""Group commit: records are collected in a batch, written as one, and what waits for them goes out when it is on disk.

The publish path only adds to the open batch. At the end of a loop iteration, if the writer is idle, the batch is cut
and written as one; while it is being written the next one fills::

    publish ──► write() ──► open batch ──cut──► writer thread ──► on_durable(seq) ──► PUBACKs that waited go out
                              │
                              └── acknowledged by all subscribers before the cut: the message never needs the disk
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from ..loop.budget import LoopBudget
from .delivery_records import PendingDeliveryRecords
from .log import records
from .log.batch import first_offset
from .log.check_file import Digests
from .log.write_ahead_log import WriteAheadLog
from .record_mapping import Entry, message_record, size_of
from .stored_message import StoredMessage

logger = logging.getLogger(__name__)

Subject = int | str
"""What a record is about, where a later one takes its place: see ``record_mapping.subject_of``."""


class CommitWaiter(Protocol):
    """A client with packets that wait for a batch: ``channel.outbound_writer``."""

    def release(self, upto: int) -> bool:
        """Send what waits for batches up to this one; whether anything still waits."""

    def abort(self) -> None:
        """Close its connection at once."""


class GroupCommit:
    """The open batch, and who waits for which batch.

    ``trouble`` says why nothing can be written at present; None: all is well. ``written`` grows with every record, so
    that a caller can tell whether something was written since. ``message_bytes``: of the records of all messages that
    are held and have been written.
    """

    __slots__ = (
        "_budget",
        "_changed_access",
        "_futures",
        "_new",
        "_next_key",
        "_open",
        "_places",
        "_recovered",
        "_skew",
        "_waiting",
        "_wake",
        "delivery_records",
        "log",
        "message_bytes",
        "open_bytes",
        "open_done_bytes",
        "trouble",
        "written",
    )

    def __init__(
        self,
        log: WriteAheadLog,
        wake: Callable[[], None],
        skew: Callable[[], float],
        changed_access: Callable[[], Digests | None],
        later: Callable[[float, Callable[[], None]], object] | None = None,
        budget: LoopBudget | None = None,
    ) -> None:
        """``wake`` requests a call of ``end_of_iteration`` soon. ``skew`` returns the difference between dates and
        times (``loop.clock``).

        ``changed_access``: as in ``Tables``. ``later``: as in ``PendingDeliveryRecords``. ``budget`` is informed
        immediately when too much data waits.
        """
        self.log = log
        self._wake = wake
        self._skew = skew
        self._changed_access = changed_access
        self._budget = budget or LoopBudget()
        # In order; a message is written with those who hold it at the cut.
        self._open: dict[int, Entry] = {}
        self._next_key = 1
        # Where the open batch says something about a subject. Said again, it is said there, so that what is true fits
        # in memory however long the disk takes nothing.
        self._places: dict[Subject, int] = {}
        # Of these, what no older batch knows of: if it is removed again, nothing of it needs the disk.
        self._new: set[Subject] = set()
        # About how many bytes the open batch takes; and those of them that say which deliveries are done.
        self.open_bytes = 0
        self.open_done_bytes = 0
        self.message_bytes = 0
        self.delivery_records = PendingDeliveryRecords(wake, later)
        self._waiting: dict[CommitWaiter, None] = {}
        # (batch, who waits for it, whether trouble ends the wait)
        self._futures: list[tuple[int, asyncio.Future[bool], bool]] = []
        self.trouble: str | None = None
        self._recovered: asyncio.Future[None] | None = None
        self.written = 0

    # ---------------------------------------------------------- the open batch

    @property
    def batch(self) -> int:
        """The number of the open batch."""
        return self.log.batch

    def write(self, entry: Entry, size: int = 0) -> int:
        """Add an entry to the open batch and return its position there. ``size``: approximate number of bytes, if
        known."""
        if not self._open:
            self._wake()
        key = self._next_key
        self._next_key = key + 1
        self._open[key] = entry
        self.open_bytes += size or size_of(entry)
        if self.congested:
            self._pause_publishers()
        self.written += 1
        return key

    def write_over(self, subject: Subject, entry: records.Record) -> None:
        """Write what takes the place of anything that the open batch says about the same."""
        key = self._places.get(subject)
        if key is None:
            self._places[subject] = self.write(entry)
            return
        self.open_bytes += size_of(entry) - size_of(self._open[key])
        self._open[key] = entry
        if self.congested:
            self._pause_publishers()
        self.written += 1

    def _pause_publishers(self) -> None:
        """Too much waits: no publisher is read from, from this moment on. A slow disk ends no iteration of its own, and
        so one has to be asked for, to find out when that is over."""
        if self.trouble is None:
            self._budget.congested = True
        self._wake()

    def write_new(self, subject: Subject, entry: records.Record) -> None:
        """The same of what was not there before."""
        if subject not in self._places:
            self._new.add(subject)
        self.write_over(subject, entry)

    def write_removed(self, subject: Subject, entry: records.Record) -> None:
        """Write that something is gone, or take back what the open batch says about it."""
        if subject not in self._new:
            self.write_over(subject, entry)
            return
        self._new.discard(subject)
        self.open_bytes -= size_of(self._open.pop(self._places.pop(subject)))
        self.written += 1

    def take_back(self, stored: StoredMessage) -> None:
        """A message that is in the open batch is held no longer, and needs no disk."""
        if self._open.pop(stored.key, None) is not None:
            self.open_bytes -= size_of(stored)

    def end_of_iteration(self) -> None:
        """Cut the batch if the writer is free and the batch is waited for, or could be; let the writer's thread run."""
        self._next_batch()
        self.log.yield_to_writer()

    def _next_batch(self) -> None:
        if self.log.idle:
            waited_for = bool(self._waiting or self._futures)
            if self.delivery_records and (self._open or waited_for or self.delivery_records.due):
                for record in self.delivery_records.take():
                    self.write(record)
            if self._open:
                self._cut()
            elif waited_for and not self.delivery_records:
                # All that was to be written has been taken back: an empty batch is not waited for.
                self._release(self.log.batch)

    def _cut(self) -> None:
        seq = self.log.batch
        encode = records.encode
        offset = first_offset(len(self._open))
        encoded: list[bytes] = []
        skew = self._skew()
        for entry in self._open.values():
            if isinstance(entry, StoredMessage):
                data = encode(message_record(entry, skew))
                size = len(data)
                self.message_bytes += size - entry.size
                entry.seq = seq
                entry.offset = offset
                entry.size = size
                entry.key = 0
                offset += size
            else:
                data = encode(entry)
                offset += len(data)
            encoded.append(data)
        self.log.append(encoded, self._changed_access())
        self._open.clear()
        self._places.clear()
        self._new.clear()
        self.open_bytes = self.open_done_bytes = 0

    # ------------------------------------------------------------- what waits

    def on_durable(self, seq: int) -> None:
        """The writer's word: everything up to ``seq`` is on disk."""
        if self._open:
            self._next_batch()  # first of all, so that the disk has work while this batch's acknowledgements go out
        self._release(seq)
        if not self.log.idle or self._open or self.delivery_records.due or self._waiting or self._futures:
            self._wake()

    def _release(self, upto: int) -> None:
        if self._waiting:
            # What goes out may cause more that waits.
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                # An empty batch that is not empty any more is waited for as any other.
                if (upto == self.log.batch and self._open) or self._released(waiter, upto):
                    self._waiting[waiter] = None
        if upto == self.log.batch and self._open:
            return
        if self._futures:
            left = []
            for entry in self._futures:
                seq, future, _ = entry
                if seq > upto:
                    left.append(entry)
                elif not future.done():
                    future.set_result(True)
            self._futures = left

    @staticmethod
    def _released(waiter: CommitWaiter, upto: int) -> bool:
        try:
            return waiter.release(upto)
        except Exception:  # a fault of ours costs this client its connection, not the others their acknowledgements
            logger.exception("release_failed")
            waiter.abort()
            return False

    def add_waiter(self, waiter: CommitWaiter) -> None:
        """Tell ``waiter`` when batches are on disk, until nothing of it waits any more."""
        self._waiting[waiter] = None
        if not self._open:
            self._wake()  # it may wait for an empty batch, which nothing else would end

    def batch_since(self, written: int) -> int:
        """The batch to wait for, for a caller that noted ``written`` before and has caused something since; 0: none."""
        return self.log.batch if self.written != written else 0

    @property
    def barrier(self) -> int:
        """The batch that must be on disk for all of what was written to be; 0: all of it is."""
        if self._open or self.delivery_records:
            return self.log.batch
        last = self.log.batch - 1
        return last if last > self.log.durable_batch else 0

    async def wait_until_durable(self, seq: int, through_trouble: bool = False) -> bool:
        """Until batch ``seq`` is on disk (True) or there is trouble (False).

        ``through_trouble``: however long it takes.
        """
        if seq <= self.log.durable_batch:
            return True
        if self.trouble is not None and not through_trouble:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._futures.append((seq, future, not through_trouble))
        if not self._open:
            self._wake()
        return await future

    # ---------------------------------------------------------------- trouble

    def on_trouble(self, trouble: str | None) -> None:
        """The writer's word: nothing can be written, or (None) it can again."""
        self.trouble = trouble
        if trouble is None:
            if self._recovered is not None:
                self._recovered.set_result(None)
                self._recovered = None
        else:
            for _, future, gives_up in self._futures:
                if gives_up and not future.done():
                    future.set_result(False)
            self._futures = [waiting for waiting in self._futures if not waiting[2]]
        self._wake()

    async def wait_for_recovery(self, timeout: float) -> None:
        """Until the trouble is over, but no longer than ``timeout`` seconds."""
        if self.trouble is not None:
            if self._recovered is None:
                self._recovered = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._recovered], timeout=timeout)

    # --------------------------------------------------------- how much waits

    @property
    def congested(self) -> bool:
        """More waits for the disk than should: what adds to it is not to be read until it is written."""
        return self.pending_bytes > self.log.max_pending

    @property
    def pending_bytes(self) -> int:
        """About how many bytes wait for the disk."""
        return self.log.pending_bytes + self.open_bytes

    @property
    def pending_bytes_without_done(self) -> int:
        """The same, but for what says that deliveries are done: shedding messages must not cause more shedding."""
        return self.pending_bytes - self.open_done_bytes

    @property
    def pending(self) -> int:
        """Records that are not on disk yet."""
        return len(self._open) + len(self.delivery_records) + self.log.pending
