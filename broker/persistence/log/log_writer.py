"""LogWriter: the only thread that uses the store. It waits for jobs and reports their results to the loop.

An append is retried until it succeeds. In the meantime reads continue, and all other jobs wait."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final

from .backup_file import BackupWriter
from .check_file import Digests
from .errors import StoreError, describe
from .sqlite_log import SqliteLog

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
MAX_PAUSE: Final = 1.0
GROUP_BYTES: Final = 4_194_304
"""Size of batches that are flushed together at most, in bytes."""


@dataclass(slots=True)
class Append:
    """Store batch ``seq``; ``access`` as in ``SqliteLog.append``."""

    seq: int
    data: bytes
    access: Digests | None = None


@dataclass(slots=True)
class Drop:
    """Drop the batches before ``seq``."""

    seq: int


@dataclass(slots=True)
class Read:
    """Fetch a piece of a batch."""

    seq: int
    offset: int
    size: int
    future: asyncio.Future[bytes]

    def answer(self, data: bytes, error: StoreError | None) -> None:
        """Deliver the result, on the loop's thread."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(data)
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class WriterCall:
    """Call ``act`` between other work."""

    act: Callable[[], Any]
    future: asyncio.Future[Any]

    def answer(self, result: object, error: StoreError | None) -> None:
        """Deliver the result, on the loop's thread."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


@dataclass(slots=True)
class Copied:
    """A piece of a backup, up to batch ``seq``; ``end``: the last one."""

    data: bytes
    seq: int
    end: bool


@dataclass(slots=True)
class Copy:
    """Read the piece of a backup that begins after ``seq``, with about ``most`` bytes of rows."""

    backup: BackupWriter
    seq: int
    most: int
    future: asyncio.Future[Copied]

    def answer(self, copied: Copied, error: StoreError | None) -> None:
        """Deliver the result, on the loop's thread."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(copied)
        else:
            self.future.set_exception(error)


class VerifyPath:
    """Check whether the file is still at the path where it was opened."""


class Stop:
    """Checkpoint, close and end; data that is not written by then is discarded."""


Job = Append | WriterCall | Copy | Drop | VerifyPath | Read | Stop


class LogWriter(threading.Thread):
    """Calls ``written(seq)``, ``trouble(text or None)`` and ``ended()`` on the loop's thread."""

    def __init__(
        self,
        log: SqliteLog,
        loop: asyncio.AbstractEventLoop,
        written: Callable[[int], None],
        trouble: Callable[[str | None], None],
        ended: Callable[[], None],
    ) -> None:
        # A daemon: a disk that never answers must not keep the process from ending.
        super().__init__(name="store", daemon=True)
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self.post: Final = self._jobs.put
        self._later: deque[Job] = deque()
        self._log = log
        self._loop = loop
        self._written = written
        self._trouble = trouble
        self._ended = ended
        self._stopping = False
        # Batches up to this one have been deleted for ``Drop``; read by the loop's thread.
        self.dropped = 0

    def run(self) -> None:
        try:
            while not self._stopping:
                self.work(self._later.popleft() if self._later else self._jobs.get())
            self.finish()
        except RuntimeError:
            # The loop is closed, so nothing can be reported. Data on the disk stays there.
            logger.warning("store_abandoned")

    def work(self, job: Job) -> None:
        """Do one job."""
        match job:
            case Append():
                self._append(job)
            case Read():
                self._read(job)
            case Drop():
                self._drop(job)
            case WriterCall():
                self._call(job)
            case Copy():
                self._copy(job)
            case VerifyPath():
                self._until_done(self._log.verify_path)
            case Stop():
                self._stopping = True

    def finish(self) -> None:
        """Close the log after ``Stop``."""
        try:
            self._log.checkpoint_and_close()
        except StoreError as error:
            logger.warning("store_checkpoint_failed error=%s", error)
        self._loop.call_soon_threadsafe(self._ended)

    def _append(self, job: Append) -> None:
        jobs = self._with_next(job)
        if len(jobs) == 1:
            done = self._until_done(lambda: self._log.append(job.seq, job.data, job.access))
        else:
            batches = [(each.seq, each.data, each.access) for each in jobs]
            done = self._until_done(lambda: self._log.append_all(batches))
        if done:
            self._loop.call_soon_threadsafe(self._written, jobs[-1].seq)
            # After the report: this batch does not wait for the checkpoint.
            self._until_done(self._log.tidy)

    def _with_next(self, job: Append) -> list[Append]:
        """Return the batches that wait, which are flushed together. The node's own log has only one at a time."""
        jobs = [job]
        size = len(job.data)
        while size < GROUP_BYTES and not self._later:
            try:
                following = self._jobs.get_nowait()
            except Empty:
                break
            if not isinstance(following, Append):
                self._later.append(following)
                break
            jobs.append(following)
            size += len(following.data)
        return jobs

    def _drop(self, job: Drop) -> None:
        more = False

        def slice_() -> None:
            nonlocal more
            more = self._log.drop_some(job.seq)
            self._log.tidy()

        if self._until_done(slice_):
            if more:
                # To the end of the queue, so that batches and reads run between the slices.
                self.post(job)
            else:
                self.dropped = max(self.dropped, job.seq)

    def _read(self, job: Read) -> None:
        error = None
        data = b""
        try:
            data = self._log.read(job.seq, job.offset, job.size)
        except StoreError as failure:
            error = failure
        self._loop.call_soon_threadsafe(job.answer, data, error)

    def _call(self, job: WriterCall) -> None:
        error = None
        result: object = None
        try:
            result = job.act()
        except StoreError as failure:
            error = failure
        self._loop.call_soon_threadsafe(job.answer, result, error)

    def _copy(self, job: Copy) -> None:
        """Run between batches, so that the last row and the check file match."""
        error = None
        copied = Copied(b"", job.seq, False)
        try:
            rows = self._log.rows_after(job.seq, job.most)
            if rows:
                copied = Copied(job.backup.rows(rows), rows[-1][0], False)
            else:
                copied = Copied(job.backup.end(self._log.first, self._log.check_content()), job.seq, True)
        except StoreError as failure:
            error = failure
        self._loop.call_soon_threadsafe(job.answer, copied, error)

    def _until_done(self, act: Callable[[], None]) -> bool:
        """Try until the call succeeds; return False if the thread has to stop first."""
        pause = FIRST_PAUSE
        while True:
            try:
                act()
            except Exception as error:  # whatever the error is: only Stop discards a batch
                text = str(error) if isinstance(error, StoreError) else describe(error)
                if not isinstance(error, StoreError):
                    logger.exception("store_failed")
            else:
                if pause > FIRST_PAUSE:
                    self._loop.call_soon_threadsafe(self._trouble, None)
                return True
            if pause == FIRST_PAUSE:
                self._loop.call_soon_threadsafe(self._trouble, text)
            if not self._wait(pause):
                return False
            pause = min(pause * 2, MAX_PAUSE)

    def _wait(self, pause: float) -> bool:
        """Serve reads for ``pause`` seconds; return False if the thread has to stop."""
        until = monotonic() + pause
        while not self._stopping and (left := until - monotonic()) > 0:
            try:
                job = self._jobs.get(timeout=left)
            except Empty:
                break
            if isinstance(job, Read):
                self._read(job)
            elif isinstance(job, WriterCall):
                self._call(job)
            elif isinstance(job, Stop):
                self._stopping = True
            else:
                self._later.append(job)
        return not self._stopping
