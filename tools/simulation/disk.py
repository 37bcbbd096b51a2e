"""The disk of a simulated node: batches in memory. Each is stored some time after its write, or lost in a crash."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

from taipan.broker.loop.budget import LoopBudget
from taipan.broker.persistence.durability import Durability
from taipan.broker.persistence.log.batch import encode
from taipan.broker.persistence.log.check_file import Digests
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.persistence.tables import Tables
from taipan.broker.store.compaction import Compaction
from taipan.broker.store.recovery import read_batches
from taipan.broker.store.store import Store
from taipan.broker.store.store_loss import StoreLoss

from .loop import Life


class SimulatedDisk:
    """The data on a node's disk, across all its starts. ``delay``: the shortest and longest time of a batch, in
    seconds."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.delay = (0.0, 0.01)
        self.batches: dict[int, list[bytes]] = {}
        self.last = 0

    def seconds(self) -> float:
        return self.rng.uniform(*self.delay)


class SimulatedLog:
    """``WriteAheadLog`` without a thread and without a file."""

    max_pending = 67_108_864

    def __init__(self, disk: SimulatedDisk, owner: Life, on_durable: Callable[[int], None]) -> None:
        self._disk = disk
        self._life = owner
        self._on_durable = on_durable
        self.on_append: Callable[[], None] = lambda: None
        self.durable_batch = self.written_batch = disk.last
        self.batch = disk.last + 1
        self.trouble: str | None = None
        self.idle = True
        self.size_bytes = 0
        self.dropping = False
        self._writing: list[bytes] = []

    @property
    def pending(self) -> int:
        return len(self._writing)

    @property
    def pending_bytes(self) -> int:
        return sum(map(len, self._writing))

    def append(self, records: list[bytes], access: Digests | None = None) -> None:
        assert self.idle
        self.idle = False
        self._writing = records
        seq = self.batch
        self.batch += 1
        asyncio.get_running_loop().call_later(self._disk.seconds(), self._written, seq)
        self.on_append()

    def _written(self, seq: int) -> None:
        if self._life.over:
            return  # ``crash`` has reported the outcome, and another life may have written this batch
        self._store(seq)
        self.durable_batch = self.written_batch = seq
        self.idle = True
        self._writing = []
        self._on_durable(seq)

    def _store(self, seq: int) -> None:
        self._disk.batches[seq] = self._writing
        self._disk.last = seq

    def crash(self) -> None:
        """Store or lose the batch that is being written."""
        if not self.idle and self._disk.rng.random() < 0.5:
            self._store(self.batch - 1)

    def yield_to_writer(self) -> None:
        """Do nothing: there is no thread."""

    def verify_path(self) -> None:
        """Do nothing: no file can disappear."""

    def read(self, seq: int, offset: int, size: int) -> asyncio.Future[bytes]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        if not self.idle and seq == self.batch - 1:
            future.set_result(encode(self._writing)[offset : offset + size])
        else:
            loop.call_later(self._disk.seconds(), self._answer, future, seq, offset, size)
        return future

    def _answer(self, future: asyncio.Future[bytes], seq: int, offset: int, size: int) -> None:
        if future.done():
            return
        batch = self._disk.batches.get(seq)
        if batch is None:
            future.set_exception(StoreError(f"batch {seq} is not there"))
        else:
            future.set_result(encode(batch)[offset : offset + size])

    def drop_before(self, seq: int) -> None:
        for old in [each for each in self._disk.batches if each < min(seq, self._disk.last)]:
            del self._disk.batches[old]

    async def close(self, timeout: float = 10.0) -> bool:
        return True


class SimulatedStore(Store):
    """Level ``disk`` on a ``SimulatedDisk``; recovery, compaction and group commit are the real ones."""

    def __init__(self, disk: SimulatedDisk, owner: Life, queue_memory: int = 0) -> None:
        self._disk = disk
        self._life = owner
        self._queue_memory = queue_memory
        self.loss = StoreLoss()
        self._state = None
        self.on_trouble = lambda _: None
        self.log: SimulatedLog

    def read(self) -> None:
        self._state = read_batches(sorted(self._disk.batches.items()), self._queue_memory)
        self._state.load_inflight(self._read)

    def abandon(self) -> None:
        self._state = None

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
        now: Callable[[], float] = lambda: 0.0,
        tables: Tables | None = None,
        skew: Callable[[], float] = lambda: 0.0,
        memory_limit: int = 0,
        budget: LoopBudget | None = None,
    ) -> Durability:
        if self._state is None:
            self.read()
        assert self._state is not None
        self.log = SimulatedLog(self._disk, self._life, self._on_durable)
        self.durability = Durability(
            self.log,  # type: ignore[arg-type]
            wake, self._queue_memory, now, tables, loop.call_later, skew, budget,
        )  # fmt: skip
        self.compaction = Compaction(self.durability)
        self.durability.tables.recover(self._state.rows)
        return self.durability

    def _read(self, seq: int, offset: int, size: int) -> bytes:
        return encode(self._disk.batches[seq])[offset : offset + size]

    def _mark(self) -> None:
        """Do nothing: there is no check file."""

    @property
    def access_lost(self) -> str:
        return ""

    @property
    def damage(self) -> str:
        return ""

    @property
    def file(self) -> Path:
        return Path("simulated")
