"""A node on a fake disk, on one thread.

Broker, durability, journal and store are the real ones. Only the writer's thread is missing: the script runs its
jobs."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from taipan.broker.persistence.durability import Durability
from taipan.broker.persistence.log import records, sqlite_log
from taipan.broker.persistence.log.batch import decode
from taipan.broker.persistence.log.check_file import CheckFile, Digests
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.persistence.log.log_writer import Append, Drop, Job, Read, Stop
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.persistence.log.write_ahead_log import WriteAheadLog
from taipan.broker.persistence.tables import Tables
from taipan.broker.store import compaction
from taipan.broker.store import store as store_module
from taipan.broker.store.compaction import Compaction
from taipan.broker.store.recovery import read_batches, recover_in_steps
from taipan.broker.store.store import Store
from taipan.broker.transport.connection_writer import Flusher
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_disk import MemoryDisk
from tests.support.fake_node import FakeNode

from .disk_promises import USERS, Found, Outcome

ZONE: dict[str, Any] = {"max_queued_messages": 0, "max_queued_bytes": 0}
WILL_DELAY = 5


@contextmanager
def small() -> Iterator[None]:
    """Return limits that make checkpoints, compaction and shrinking occur within a short run."""
    with (
        patch.object(sqlite_log, "CHECKPOINT_PAGES", 40),
        patch.object(sqlite_log, "SPARE_PAGES", 8),
        patch.object(compaction, "COMPACT_ABOVE", 150_000),
        patch.object(compaction, "_SLICE_RECORDS", 25),
    ):
        yield


class User(msgspec.Struct, array_like=True, frozen=True):
    """An access record of a user."""

    name: str
    change: int


class ManualWriter:
    """Runs the same jobs as ``persistence.log.log_writer.Writer``: each ``step`` tries one job once."""

    def __init__(self, log: SqliteLog, journal: WriteAheadLog) -> None:
        self._log = log
        self._journal = journal
        self._jobs: deque[Job] = deque()
        self._stored = 0
        self._tidy = False
        self.trouble = False
        self.appended = 0
        self.dropped = 0
        self.on_access: Callable[[Digests], None] = lambda _: None

    def post(self, job: Job) -> None:
        self._jobs.append(job)

    def step(self) -> bool:
        """Try the next job, and serve reads even if it fails. Return whether there was a job."""
        for job in [each for each in self._jobs if isinstance(each, Read)]:
            self._jobs.remove(job)
            self._read(job)
        try:
            if self._tidy:
                self._log.tidy()
                self._tidy = False
            elif not self._jobs:
                return False
            else:
                self._do(self._jobs[0])
        except StoreError as error:
            if not self.trouble:
                self.trouble = True
                self._journal._troubled(str(error))
            return True
        if self.trouble:
            self.trouble = False
            self._journal._troubled(None)
        return True

    def _do(self, job: Job) -> None:
        if isinstance(job, Append):
            self._log.append(job.seq, job.data, job.access)
            self._jobs.popleft()
            self.appended += 1
            self._tidy = True
            self._journal._written(job.seq)
            if job.access is not None:
                self.on_access(job.access)
        elif isinstance(job, Drop):
            more = self._log.drop_some(job.seq)
            self._jobs.popleft()
            self._tidy = True
            if more:
                self._jobs.append(job)
            else:
                self.dropped = max(self.dropped, job.seq)
        else:
            assert isinstance(job, Stop)
            raise AssertionError("this node is never stopped")

    def _read(self, job: Read) -> None:
        try:
            job.answer(self._log.read(job.seq, job.offset, job.size), None)
        except StoreError as error:
            job.answer(b"", error)


class DiskFakeNode(FakeNode):
    """A ``FakeNode`` at level ``disk`` whose disk is a ``MemoryDisk``."""

    def __init__(self, directory: Path, disk: MemoryDisk, queue_memory: int) -> None:
        super().__init__(ZONE)
        self.disk = disk
        loop = asyncio.get_running_loop()
        check = CheckFile(directory / store_module.CHECK_FILE, disk.check_files())
        self.log = SqliteLog(directory / store_module.FILE, disk.name, check)
        check.read()
        self.log.open()
        self.journal = WriteAheadLog(
            self.log,
            loop,
            lambda seq: self.durability.on_durable(seq),
            lambda trouble: self.durability.commit.on_trouble(trouble),
            clock=lambda: 0.0,
            pause=lambda _: None,
        )
        self.writer = ManualWriter(self.log, self.journal)
        self.journal._writer = self.writer  # type: ignore[assignment]
        server = self.server
        server.flusher = self.flusher = Flusher(self.loop, self.broker.budget, server._end_of_iteration)  # type: ignore[arg-type]
        tables = Tables()
        self.users = tables.open(USERS, User, access=True)
        self.durability = Durability(self.journal, self.flusher.wake, queue_memory, self.clock.now, tables)
        self.broker.attach_durability(self.durability)
        self.store = Store(directory)
        self.store.durability = self.durability
        self.compaction = self.store.compaction = Compaction(self.durability)
        self.store._log = self.log
        self.store._check = check
        self.store._look_for_loss(tables)
        self.store._mark()
        for _ in recover_in_steps(
            read_batches([]), self.broker, self.durability, lambda _: (self.zone, self.facts.limits),
            server.delayed.recover, server.refusal_of_will,
        ):  # fmt: skip
            pass
        self.compactions = 0

    def housekeep(self) -> None:
        with patch.object(SqliteLog, "size_bytes", self.disk.octets):
            before = self.compaction.running
            self.compaction.run_slice(self.broker)
            self.compactions += not before and self.compaction.running

    async def settle(self) -> None:
        """Run tasks and the event loop until both are idle."""
        for _ in range(6):
            await asyncio.sleep(0)
            self.run()


def outcome_of(found: dict[int, bytes], time: float) -> Outcome:
    """Return the state of a node that is restored from these batches at ``time``, after the wills of the connected
    clients were published."""
    last = max(found, default=0)
    node = DurableFakeNode(ZONE, [decode(found[seq]) if seq in found else [] for seq in range(1, last + 1)], time)
    node.pass_time(WILL_DELAY + 1)
    sessions = {}
    for session in node.broker.sessions:
        if session.durable:
            sessions[session.client_id] = Found(
                {each.filter: each.qos for each in session.subscriptions.values()},
                {pid: None if each is None else _name(each) for pid, each in session.inflight.items()},
                [_name(each) for each in session.queue or ()],
                set(session.awaiting_rel or ()),
            )
    retained = {}
    for topic in node.broker.retained.topics():
        message = node.broker.retained.get(topic)
        assert message is not None
        retained[topic] = message.payload.decode()
    return Outcome(sessions, retained)


def rows_of(found: dict[int, bytes]) -> Tables:
    """Return the tables in these batches."""
    rows: dict[str, dict[str, bytes]] = {}
    for seq in sorted(found):
        for encoded in decode(found[seq]):
            if encoded[1] in (19, 20):
                record = records.decode(encoded)
                if isinstance(record, records.RowStored):
                    rows.setdefault(record.table, {})[record.key] = record.value
                elif isinstance(record, records.RowRemoved):
                    rows.get(record.table, {}).pop(record.key, None)
    tables = Tables()
    tables.recover(rows)
    tables.watch([USERS])
    return tables


def _name(delivery: Any) -> str:
    return str(delivery.message.payload.decode().rstrip())
