"""The write-ahead log from the event loop's side: batches are written one after the other; the loop learns when each
is on disk.

``persistence.group_commit`` appends a batch whenever the writer is free: the slower the disk, the larger the batches.
All functions here are called on the loop's thread.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from .backup_file import BackupWriter, LogRow
from .batch import encode
from .check_file import Digests
from .commit_times import CommitTimes
from .log_writer import Append, Copied, Copy, Drop, LogWriter, Read, Stop, VerifyPath, WriterCall
from .sqlite_log import SqliteLog

MAX_PENDING: Final = 67_108_864
YIELD_EVERY: Final = 0.0005
"""Seconds between two pauses for the writer's thread while it stores a batch."""
YIELD_FOR: Final = 0.00002
"""Seconds of such a pause: long enough that the thread gets the interpreter's lock."""


class LogCopies(Protocol):
    """The copies of this log on other nodes.

    ``durable``: the newest batch that is, with all before it, on this node's disk and on those of the nodes for which
    an acknowledgement waits. ``pending_bytes``: size of the batches that such a node has not confirmed yet."""

    @property
    def durable(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...

    def appended(self, seq: int, data: bytes, access: Digests | None) -> None:
        """Batch ``seq`` is being written to the disk of this node; ``access`` as in ``SqliteLog.append``."""

    def written(self, seq: int) -> None:
        """Everything up to ``seq`` is on the disk of this node."""

    def dropped(self, seq: int) -> None:
        """Batches older than ``seq`` are no longer needed."""


class WriteAheadLog:
    """A ``SqliteLog`` that is open and scanned, and the thread that writes to it.

    ``batch``: the number of the next batch. Records appended to it are durable once ``durable_batch`` has reached that
    number: on the disk of this node (``written_batch``) and, with ``copies``, on those of other nodes. ``pending`` and
    ``pending_bytes``: number and total size of the records that are being written. ``trouble``: why nothing can be
    written at present, or None."""

    __slots__ = (
        "_began",
        "_clock",
        "_closed",
        "_commit_times",
        "_data",
        "_drained",
        "_dropping",
        "_log",
        "_loop",
        "_on_durable",
        "_on_trouble",
        "_pause",
        "_writer",
        "_yielded",
        "batch",
        "copies",
        "durable_batch",
        "idle",
        "max_pending",
        "pending",
        "pending_bytes",
        "trouble",
        "written_batch",
    )

    def __init__(
        self,
        log: SqliteLog,
        loop: asyncio.AbstractEventLoop,
        on_durable: Callable[[int], None],
        on_trouble: Callable[[str | None], None],
        *,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log = log
        self._loop = loop
        self._on_durable = on_durable
        self._on_trouble = on_trouble
        self.max_pending = max_pending
        self._clock = clock
        self._pause = pause
        self.durable_batch = self.written_batch = log.last
        self.copies: LogCopies | None = None
        self.batch = log.last + 1
        self.trouble: str | None = None
        # Whether a batch that is appended now would be written immediately; required for ``append``.
        self.idle = True
        self.pending = 0
        self.pending_bytes = 0
        self._data = b""
        self._yielded = 0.0
        self._began = 0.0  # when the current batch was passed to the writer
        self._commit_times = CommitTimes()
        self._dropping = 0
        self._drained: asyncio.Future[None] | None = None
        self._closed = loop.create_future()
        self._writer = LogWriter(log, loop, self._written, self._troubled, self._ended)

    def start(self) -> None:
        """Start the writer's thread, which from now on owns the log."""
        self._writer.start()

    async def close(self, timeout: float = 10.0) -> bool:
        """Finish writing, checkpoint and close. Return False if this did not succeed within ``timeout``."""
        try:
            async with asyncio.timeout(timeout):
                if not self.idle:
                    self._drained = self._loop.create_future()
                    await self._drained
                self._writer.post(Stop())
                await asyncio.shield(self._closed)
        except TimeoutError:
            # A writer that waits for space stops and closes; one that is stuck in the kernel ends with the process.
            self._writer.post(Stop())
            await asyncio.wait([self._closed], timeout=1.0)
            return False
        await asyncio.to_thread(self._writer.join)
        return True

    def append(self, records: list[bytes], access: Digests | None = None) -> None:
        """Write these records as the next batch, in this order. Call only while the writer is ``idle``. ``access``: as
        in ``SqliteLog.append``."""
        assert self.idle
        self.idle = False
        self._began = self._clock()
        self._data = data = encode(records)
        self.pending = len(records)
        self.pending_bytes = len(data)
        self._writer.post(Append(self.batch, data, access))
        if self.copies is not None:
            self.copies.appended(self.batch, data, access)
            self.pending_bytes = max(self.pending_bytes, self.copies.pending_bytes)
        self.batch += 1

    def verify_path(self) -> None:
        """Have the writer check that the file is still at its path; a moved or deleted file sets ``trouble``."""
        if self.trouble is None:
            self._writer.post(VerifyPath())

    def yield_to_writer(self) -> None:
        """Let the writer's thread run: it wakes up often while it stores a batch, and a busy loop would otherwise take
        the GIL back first."""
        if not self.idle:
            now = self._clock()
            if now - self._yielded >= YIELD_EVERY:
                self._pause(YIELD_FOR)
                self._yielded = now

    def copy(self, backup: BackupWriter, seq: int, most: int) -> asyncio.Future[Copied]:
        """Return the piece of a backup with the rows after ``seq``. The future raises StoreError."""
        future: asyncio.Future[Copied] = self._loop.create_future()
        self._writer.post(Copy(backup, seq, most, future))
        return future

    def rows_after(self, seq: int, most: int) -> asyncio.Future[list[LogRow]]:
        """Return the next rows as in ``SqliteLog.rows_after``. The future raises StoreError."""
        future: asyncio.Future[list[LogRow]] = self._loop.create_future()
        self._writer.post(WriterCall(lambda: self._log.rows_after(seq, most), future))
        return future

    def read(self, seq: int, offset: int, size: int) -> asyncio.Future[bytes]:
        """Read a piece of a batch that was appended. The future raises StoreError if it cannot be read."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if not self.idle and seq == self.batch - 1:
            future.set_result(self._data[offset : offset + size])
        else:
            self._writer.post(Read(seq, offset, size, future))
        return future

    def drop_before(self, seq: int) -> None:
        """Delete the batches older than ``seq``, in slices between other work. The newest batch always stays."""
        self._dropping = max(self._dropping, seq)
        self._writer.post(Drop(seq))
        if self.copies is not None:
            self.copies.dropped(seq)

    @property
    def dropping(self) -> bool:
        """Whether batches that have to be deleted still use space in the file."""
        return self._dropping > self._writer.dropped

    def longest_commit(self, seconds: float) -> float:
        """Return the longest time in seconds that a batch took to reach the disk, among those of the last ``seconds``.
        If the current batch has already taken longer, return that time."""
        now = self._clock()
        longest = self._commit_times.longest(now, seconds)
        return longest if self.idle else max(longest, now - self._began)

    @property
    def first_batch(self) -> int:
        """The number of the oldest batch in the file; 0: there has never been one."""
        return self._log.first

    @property
    def size_bytes(self) -> int:
        """Total size of the files in bytes."""
        return self._log.size_bytes

    def _written(self, seq: int) -> None:
        self.written_batch = seq
        self.idle = True
        now = self._clock()
        self._commit_times.add(now, now - self._began)
        self.pending = self.pending_bytes = 0
        self._data = b""
        if self.copies is None:
            self.durable_batch = seq
        else:
            self.copies.written(seq)
            self._follow_copies()
        try:
            self._on_durable(self.durable_batch)
        finally:
            if self.idle and self._drained is not None and not self._drained.done():
                self._drained.set_result(None)

    def attach_copies(self, copies: LogCopies) -> None:
        """Let ``durable_batch`` wait for copies from now on."""
        self.copies = copies
        self.durable_batch = copies.durable

    def copied(self) -> None:
        """Called by the copies: they may have confirmed more batches."""
        before = self.durable_batch
        self._follow_copies()
        if self.durable_batch > before:
            self._on_durable(self.durable_batch)

    def end_copies(self) -> None:
        """Wait for the disk of this node alone from now on."""
        self.copies = None
        self.pending_bytes = len(self._data)
        before, self.durable_batch = self.durable_batch, self.written_batch
        if self.durable_batch > before:
            self._on_durable(self.durable_batch)

    def _follow_copies(self) -> None:
        if self.copies is not None:
            assert self.copies.durable <= self.written_batch
            self.durable_batch = max(self.durable_batch, self.copies.durable)
            self.pending_bytes = max(len(self._data), self.copies.pending_bytes)

    def _troubled(self, text: str | None) -> None:
        self.trouble = text
        self._on_trouble(text)

    def _ended(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
