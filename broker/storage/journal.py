"""Journal: records go into the open batch; batches go to the disk one after the other; the loop is told when.

While the writer stores one batch the next one fills, so the slower the disk the larger the batches. Everything here is
called on the loop's thread.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from .batch import encode, offsets
from .sqlite_log import SqliteLog
from .writer import Append, Drop, Read, Stop, Writer

MAX_PENDING: Final = 67_108_864
YIELD_EVERY: Final = 0.0005
YIELD_FOR: Final = 0.00002


class Journal:
    """Group commit over a ``SqliteLog`` that is open and scanned.

    ``batch`` is the number of the open batch: what is ``put`` now is on the disk once ``durable`` has reached it.
    ``trouble`` says why nothing can be written at present, None when all is well.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_data",
        "_drained",
        "_log",
        "_loop",
        "_on_durable",
        "_on_trouble",
        "_open",
        "_open_octets",
        "_pause",
        "_places",
        "_scheduled",
        "_writer",
        "_writing",
        "_writing_octets",
        "_yielded",
        "batch",
        "durable",
        "max_pending",
        "trouble",
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
        self.durable = log.last
        self.batch = log.last + 1
        self.trouble: str | None = None
        self._open: dict[int, bytes] = {}
        self._open_octets = 0
        self._writing: dict[int, bytes] | None = None
        self._writing_octets = 0
        self._data = b""
        self._places: dict[int, tuple[int, int]] | None = None
        self._scheduled = False
        self._yielded = 0.0
        self._drained: asyncio.Future[None] | None = None
        self._closed = loop.create_future()
        self._writer = Writer(log, loop, self._written, self._troubled, self._ended)

    def start(self) -> None:
        """From now on the log belongs to the writer's thread."""
        self._writer.start()

    async def close(self, timeout: float = 10.0) -> bool:
        """Write what waits, checkpoint, close. False: not all of it was written, or not closed, within ``timeout``."""
        try:
            async with asyncio.timeout(timeout):
                self.end_of_turn()
                if self.pending:
                    self._drained = self._loop.create_future()
                    await self._drained
                self._writer.post(Stop())
                await asyncio.shield(self._closed)
        except TimeoutError:
            # A writer that only waits for space gives up and closes; one stuck in the kernel ends with the process.
            self._writer.post(Stop())
            await asyncio.wait([self._closed], timeout=1.0)
            return False
        await asyncio.to_thread(self._writer.join)
        return True

    def put(self, key: int, record: bytes) -> None:
        """Add a record to the open batch. ``key`` names it and is not in use there."""
        self.put_all({key: record})

    def put_all(self, records: dict[int, bytes]) -> None:
        """Add records, in this order."""
        self._open.update(records)
        self._open_octets += sum(map(len, records.values()))
        if self._writing is None and not self._scheduled:
            # Whoever puts outside the work of a connection, a timer say, has no flusher behind it.
            self._scheduled = True
            self._loop.call_soon(self._turn_over)

    def take_back(self, key: int) -> bool:
        """Remove a record from the open batch, so that it never needs the disk; False: it is on its way already."""
        record = self._open.pop(key, None)
        if record is None:
            return False
        self._open_octets -= len(record)
        return True

    def __contains__(self, key: int) -> bool:
        """Whether the record is still in the open batch."""
        return key in self._open

    @property
    def idle(self) -> bool:
        """Whether a batch cut now would be written at once."""
        return self._writing is None

    @property
    def pending(self) -> int:
        """Records that are not on the disk yet."""
        return len(self._open) + (len(self._writing) if self._writing is not None else 0)

    @property
    def pending_octets(self) -> int:
        """Octets of them."""
        return self._open_octets + self._writing_octets

    @property
    def congested(self) -> bool:
        """More waits than should; publishers are not to be read from until it is written."""
        return self._open_octets + self._writing_octets > self.max_pending

    def end_of_turn(self) -> None:
        """Cut the open batch if the writer is free, and let the writer's thread run."""
        if self._writing is None:
            if not self._open:
                return
            self._cut()
        now = self._clock()
        if now - self._yielded >= YIELD_EVERY:
            # The writer wakes up often in storing a batch; a busy loop has the interpreter's lock back before it does.
            self._pause(YIELD_FOR)
            self._yielded = now

    def location(self, key: int) -> tuple[int, int, int] | None:
        """Batch number, offset and size of a record in the batch that is being written or, until ``on_durable``
        returns, has just been; None for any other."""
        if self._writing is None:
            return None
        if self._places is None:
            records = self._writing
            begins = offsets(records.values())
            self._places = {key: (begin, len(records[key])) for key, begin in zip(records, begins, strict=False)}
        place = self._places.get(key)
        return (self.batch - 1, *place) if place is not None else None

    def read(self, seq: int, offset: int, size: int) -> asyncio.Future[bytes]:
        """A piece of a batch that was cut. The future raises StoreError when it cannot be read."""
        future: asyncio.Future[bytes] = self._loop.create_future()
        if self._writing is not None and seq == self.batch - 1:
            future.set_result(self._data[offset : offset + size])
        else:
            self._writer.post(Read(seq, offset, size, future))
        return future

    def drop_before(self, seq: int) -> None:
        """Forget the batches older than ``seq``, in slices between other work; the newest one stays in any case."""
        self._writer.post(Drop(seq))

    @property
    def size_bytes(self) -> int:
        """Octets of the files."""
        return self._log.size_bytes

    def _turn_over(self) -> None:
        self._scheduled = False
        if self._writing is None and self._open:
            self.end_of_turn()

    def _cut(self) -> None:
        seq = self.batch
        self._writing = self._open
        self._writing_octets = self._open_octets
        self._open = {}
        self._open_octets = 0
        self.batch = seq + 1
        self._data = encode(self._writing.values())
        self._writer.post(Append(seq, self._data))

    def _written(self, seq: int) -> None:
        self.durable = seq
        try:
            self._on_durable(seq)
        finally:
            self._writing = None
            self._writing_octets = 0
            self._data = b""
            self._places = None
            if self._open:
                self._cut()
            elif self._drained is not None and not self._drained.done():
                self._drained.set_result(None)

    def _troubled(self, text: str | None) -> None:
        self.trouble = text
        self._on_trouble(text)

    def _ended(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
