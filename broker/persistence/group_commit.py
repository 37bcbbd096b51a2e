"""Group commit: records are collected in a batch and written together. Packets that wait for a batch are sent when it
is on disk.

The publish path only adds to the open batch. At the end of a loop iteration, if the writer is idle, the batch is cut
and written. In the meantime the next batch fills::

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
"""The subject of a record. A later record about the same subject replaces it: see ``record_mapping.subject_of``."""


class CommitWaiter(Protocol):
    """A client with packets that wait for a batch: ``channel.outbound_writer``."""

    def release(self, upto: int) -> bool:
        """Send the packets that wait for batches up to this one; return whether more packets wait."""

    def abort(self) -> None:
        """Close the client's connection immediately."""


class GroupCommit:
    """The open batch, and the clients and tasks that wait for each batch.

    ``trouble``: why nothing can be written at present, or None. ``written`` grows with every record, so that a caller
    can find out whether something was written since. ``message_bytes``: total size of the records of all messages that
    are held and have been written. ``on_cut`` is called before a batch is cut, and may add records about all of it."""

    __slots__ = (
        "_budget",
        "_changed_access",
        "_copies_trouble",
        "_disk_trouble",
        "_futures",
        "_new",
        "_next_key",
        "_open",
        "_places",
        "_recovered",
        "_released",
        "_skew",
        "_waiting",
        "_wake",
        "_written_futures",
        "delivery_records",
        "log",
        "message_bytes",
        "on_cut",
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
        # In order. A message is encoded with its holders when the batch is cut.
        self._open: dict[int, Entry] = {}
        self._next_key = 1
        # Subject -> position of its record in the open batch. A new record about the subject replaces it there, so that
        # the current state fits in memory however long the disk accepts no data.
        self._places: dict[Subject, int] = {}
        # The subjects that no older batch contains: if one is removed again, nothing about it has to be written.
        self._new: set[Subject] = set()
        # Approximate size of the open batch, and of its records about completed deliveries.
        self.open_bytes = 0
        self.open_done_bytes = 0
        self.message_bytes = 0
        self.on_cut: Callable[[], None] | None = None
        self.delivery_records = PendingDeliveryRecords(wake, later)
        self._waiting: dict[CommitWaiter, None] = {}
        # (batch, the future that waits for it, whether trouble ends the wait)
        self._futures: list[tuple[int, asyncio.Future[bool], bool]] = []
        # (batch, the future that waits until the disk of this node has it)
        self._written_futures: list[tuple[int, asyncio.Future[None]]] = []
        self._released = -1
        self.trouble: str | None = None
        self._disk_trouble: str | None = None
        self._copies_trouble: str | None = None
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
        """Write a record that replaces any record about the same subject in the open batch."""
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
        """Stop reading from publishers at once, because too much data waits. A slow disk does not end an iteration, so
        request one, which will notice when the backlog is gone."""
        if self.trouble is None:
            self._budget.congested = True
        self._wake()

    def write_new(self, subject: Subject, entry: records.Record) -> None:
        """As ``write_over``, for a subject that did not exist before."""
        if subject not in self._places:
            self._new.add(subject)
        self.write_over(subject, entry)

    def write_removed(self, subject: Subject, entry: records.Record) -> None:
        """Record that a subject was removed, or delete its record from the open batch."""
        if subject not in self._new:
            self.write_over(subject, entry)
            return
        self._new.discard(subject)
        self.open_bytes -= size_of(self._open.pop(self._places.pop(subject)))
        self.written += 1

    def take_back(self, stored: StoredMessage) -> None:
        """Remove a message from the open batch if no session holds it any longer: it does not have to be written."""
        if self._open.pop(stored.key, None) is not None:
            self.open_bytes -= size_of(stored)

    def end_of_iteration(self) -> None:
        """Cut the batch if the writer is idle and the batch can be cut; let the writer's thread run."""
        self._next_batch()
        self.log.yield_to_writer()

    def _next_batch(self) -> None:
        if self.log.idle:
            waited_for = bool(self._waiting or self._futures or self._written_futures)
            if self.delivery_records and (self._open or waited_for or self.delivery_records.due):
                for record in self.delivery_records.take():
                    self.write(record)
            if self._open:
                self._cut()
            elif not self.delivery_records:
                # Everything in the batch has been removed again: nothing has to wait for an empty batch.
                if waited_for and self.log.durable_batch >= self.log.batch - 1:
                    self._release(self.log.batch)
                if self._written_futures:
                    self._release_written(self.log.batch)

    def _cut(self) -> None:
        if self.on_cut is not None:
            self.on_cut()
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

    # -------------------------------------------------------- waiting for batches

    def on_durable(self, seq: int) -> None:
        """Called by the writer: everything up to ``seq`` is on disk."""
        if self._open:
            self._next_batch()  # first, so that the disk is busy while this batch's acknowledgements are sent
        if seq != self._released:  # with copies, the disk of this node may be ahead
            self._released = seq
            self._release(seq)
        if self._written_futures:
            self._release_written(self.log.written_batch)
        busy = not self.log.idle or self._open or self.delivery_records.due
        if busy or self._waiting or self._futures or self._budget.congested:
            self._wake()

    def _release(self, upto: int) -> None:
        if self._waiting:
            # Sending may cause further packets that wait.
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                # If the empty batch has a record now, the packets wait for it as usual.
                if (upto == self.log.batch and self._open) or self._has_more(waiter, upto):
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

    def _release_written(self, upto: int) -> None:
        left = []
        for seq, future in self._written_futures:
            if seq > upto:
                left.append((seq, future))
            elif not future.done():
                future.set_result(None)
        self._written_futures = left

    @staticmethod
    def _has_more(waiter: CommitWaiter, upto: int) -> bool:
        try:
            return waiter.release(upto)
        except Exception:  # an internal error costs only this client its connection
            logger.exception("release_failed")
            waiter.abort()
            return False

    def add_waiter(self, waiter: CommitWaiter) -> None:
        """Notify ``waiter`` when batches are on disk, until it no longer waits for any."""
        self._waiting[waiter] = None
        if not self._open:
            self._wake()  # it may wait for an empty batch, which only an iteration can complete

    def batch_since(self, written: int) -> int:
        """Return the batch to wait for, for a caller that noted ``written`` earlier and has caused records since; 0:
        none."""
        return self.log.batch if self.written != written else 0

    @property
    def barrier(self) -> int:
        """Return the batch that has to be on disk for everything written so far to be on disk; 0: everything is on
        disk."""
        if self._open or self.delivery_records:
            return self.log.batch
        last = self.log.batch - 1
        return last if last > self.log.durable_batch else 0

    async def wait_until_durable(self, seq: int, through_trouble: bool = False) -> bool:
        """Wait until batch ``seq`` is on disk (True) or until there is trouble (False).

        ``through_trouble``: wait through trouble as well, however long it lasts."""
        if seq <= self.log.durable_batch:
            return True
        if self.trouble is not None and not through_trouble:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._futures.append((seq, future, not through_trouble))
        if not self._open:
            self._wake()
        return await future

    async def wait_until_written(self) -> None:
        """Wait until everything written so far is on the disk of this node, whatever its copies have."""
        if self._open or self.delivery_records:
            batch = self.log.batch
        else:
            batch = self.log.batch - 1
            if batch <= self.log.written_batch:
                return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._written_futures.append((batch, future))
        self._wake()
        await future

    # ---------------------------------------------------------------- trouble

    def on_trouble(self, trouble: str | None) -> None:
        """Called by the writer: nothing can be written, or (None) writing works again."""
        self._disk_trouble = trouble
        self._set_trouble()

    def on_copies_trouble(self, trouble: str | None) -> None:
        """Called by the copies: nothing can be acknowledged, or (None) that works again."""
        self._copies_trouble = trouble
        self._set_trouble()

    def _set_trouble(self) -> None:
        trouble = self._disk_trouble or self._copies_trouble
        if trouble == self.trouble:
            return
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
        """Wait until the trouble ends, but at most ``timeout`` seconds."""
        if self.trouble is not None:
            if self._recovered is None:
                self._recovered = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._recovered], timeout=timeout)

    # --------------------------------------------------------- backlog

    @property
    def congested(self) -> bool:
        """Whether too much data waits for the disk. Until it is written, input that adds to it must not be read."""
        return self.pending_bytes > self.log.max_pending

    @property
    def pending_bytes(self) -> int:
        """Approximate number of bytes that wait for the disk."""
        return self.log.pending_bytes + self.open_bytes

    @property
    def pending_bytes_without_done(self) -> int:
        """The same without records of completed deliveries: shedding messages must not cause more shedding."""
        return self.pending_bytes - self.open_done_bytes

    @property
    def pending(self) -> int:
        """Number of records that are not on disk yet."""
        return len(self._open) + len(self.delivery_records) + self.log.pending
