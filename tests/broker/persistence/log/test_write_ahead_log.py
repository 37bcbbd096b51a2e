"""The journal: batches in order, acknowledged once they are on the disk, whatever the disk does meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from taipan.broker.persistence.log import log_writer as writer
from taipan.broker.persistence.log.batch import decode, first_offset
from taipan.broker.persistence.log.check_file import Digests
from taipan.broker.persistence.log.errors import StoreError, WriteTrouble
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.persistence.log.write_ahead_log import WriteAheadLog
from tests.support.patience import patience


class GatedLog(SqliteLog):
    """Its ``append`` waits for the gate, and fails as long as ``error`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.error: str | None = None
        self.tried = 0

    def append(self, seq: int, data: bytes, access: Digests | None = None) -> None:
        assert self.gate.wait(20)
        self.tried += 1
        if self.error is not None:
            raise WriteTrouble(self.error)
        super().append(seq, data, access)


class Told:
    """What the journal told."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.trouble: list[str | None] = []
        self.changed = asyncio.Event()

    def on_durable(self, seq: int) -> None:
        self.durable.append(seq)
        self.changed.set()

    def on_trouble(self, text: str | None) -> None:
        self.trouble.append(text)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(patience(40)):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def started(path: Path) -> tuple[GatedLog, WriteAheadLog, Told]:
    log = GatedLog(path)
    log.open()
    told = Told()
    journal = WriteAheadLog(log, asyncio.get_running_loop(), told.on_durable, told.on_trouble)
    journal.start()
    return log, journal, told


def stored(path: Path) -> list[tuple[int, list[bytes]]]:
    log = SqliteLog(path)
    log.open()
    try:
        return [(seq, decode(data)) for seq, data in log.scan()]
    finally:
        log.checkpoint_and_close()


@pytest.mark.asyncio
async def test_one_batch_at_a_time(tmp_path: Path) -> None:
    log, journal, told = started(tmp_path / "s.db")
    log.gate.clear()
    journal.append([b"a"])
    assert (journal.batch, journal.durable_batch, journal.idle) == (2, 0, False)
    assert (journal.pending, journal.pending_bytes) == (1, 13)
    with pytest.raises(AssertionError):
        journal.append([b"b"])
    log.gate.set()
    await told.until(lambda: journal.durable_batch == 1)
    assert journal.idle and journal.pending == journal.pending_bytes == 0
    journal.append([b"b", b"c"])
    assert await journal.close()
    assert told.durable == [1, 2]
    assert stored(tmp_path / "s.db") == [(1, [b"a"]), (2, [b"b", b"c"])]


@pytest.mark.asyncio
async def test_the_next_batch_may_be_appended_when_one_is_durable(tmp_path: Path) -> None:
    log = GatedLog(tmp_path / "s.db")
    log.open()
    waiting = [b"third", b"second"]
    journal: WriteAheadLog

    def on_durable(seq: int) -> None:
        assert journal.idle and journal.durable_batch == seq
        if waiting:
            journal.append([waiting.pop()])

    journal = WriteAheadLog(log, asyncio.get_running_loop(), on_durable, lambda _: None)
    journal.start()
    journal.append([b"first"])
    while waiting:
        await asyncio.sleep(0.001)
    assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"first"]), (2, [b"second"]), (3, [b"third"])]


@pytest.mark.asyncio
async def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    for seq in (1, 2, 3):
        _, journal, told = started(tmp_path / "s.db")
        assert (journal.batch, journal.durable_batch) == (seq, seq - 1)
        journal.append([b"x"])
        await told.until(lambda told=told: told.durable != [])  # type: ignore[misc]
        assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"x"]), (2, [b"x"]), (3, [b"x"])]


@pytest.mark.asyncio
async def test_trouble_is_told_once_and_nothing_is_lost_or_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(writer, "MAX_PAUSE", 0.004)
    log, journal, told = started(tmp_path / "s.db")
    journal.append([b"first"])
    await told.until(lambda: journal.durable_batch == 1)
    log.error = "no space left for the store"
    journal.append([b"second"])
    await told.until(lambda: journal.trouble is not None)
    # Reading goes on.
    assert await journal.read(1, 12, 5) == b"first"
    with pytest.raises(StoreError):
        await journal.read(77, 0, 1)
    log.error = None
    await told.until(lambda: journal.durable_batch == 2)
    assert told.trouble == ["no space left for the store", None]
    assert journal.trouble is None
    assert told.durable == [1, 2]
    assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"first"]), (2, [b"second"])]


@pytest.mark.asyncio
async def test_closing_is_bounded_when_the_disk_takes_nothing(tmp_path: Path) -> None:
    log, journal, told = started(tmp_path / "s.db")
    log.error = "write error"
    journal.append([b"x"])
    await told.until(lambda: journal.trouble is not None)
    assert not await journal.close(timeout=0.05)
    await asyncio.to_thread(journal._writer.join, 20)
    assert stored(tmp_path / "s.db") == []


@pytest.mark.asyncio
async def test_a_record_is_read_while_its_batch_is_written_and_after(tmp_path: Path) -> None:
    log, journal, told = started(tmp_path / "s.db")
    log.gate.clear()
    records = [b"one", b"twenty-two"]
    place = (1, first_offset(2) + len(records[0]), len(records[1]))
    journal.append(records)
    assert await journal.read(*place) == b"twenty-two"
    log.gate.set()
    await told.until(lambda: journal.durable_batch == 1)
    assert await journal.read(*place) == b"twenty-two"
    assert await journal.close()


@pytest.mark.asyncio
async def test_old_batches_are_dropped_between_others(tmp_path: Path) -> None:
    _, journal, told = started(tmp_path / "s.db")
    for seq in range(1, 60):
        journal.append([b"%d" % seq])
        await told.until(lambda seq=seq: journal.durable_batch == seq)  # type: ignore[misc]
    journal.drop_before(58)
    journal.append([b"60"])
    assert await journal.close()
    kept = stored(tmp_path / "s.db")
    assert kept[-1] == (60, [b"60"])
    assert kept[0][0] > 1


@pytest.mark.asyncio
async def test_a_busy_loop_lets_the_writer_run_at_most_once_a_while(tmp_path: Path) -> None:
    log = GatedLog(tmp_path / "s.db")
    log.open()
    now = 100.0
    pauses: list[float] = []
    told = Told()
    loop = asyncio.get_running_loop()
    journal = WriteAheadLog(log, loop, told.on_durable, told.on_trouble, clock=lambda: now, pause=pauses.append)
    journal.start()
    journal.yield_to_writer()
    assert pauses == []
    log.gate.clear()
    journal.append([b"x"])
    journal.yield_to_writer()
    journal.yield_to_writer()
    assert len(pauses) == 1
    now += 0.002
    journal.yield_to_writer()
    assert len(pauses) == 2
    log.gate.set()
    assert await journal.close()


@pytest.mark.asyncio
async def test_how_long_batches_take(tmp_path: Path) -> None:
    log = GatedLog(tmp_path / "s.db")
    log.open()
    now = 100.0
    told = Told()
    loop = asyncio.get_running_loop()
    journal = WriteAheadLog(log, loop, told.on_durable, told.on_trouble, clock=lambda: now)
    journal.start()
    assert journal.longest_commit(1.0) == 0.0
    log.gate.clear()
    journal.append([b"x"])
    now += 0.25
    assert journal.longest_commit(1.0) == 0.25  # it is still under way
    now += 0.25
    log.gate.set()
    await told.until(lambda: journal.idle)
    assert journal.longest_commit(1.0) == 0.5
    journal.append([b"y"])
    await told.until(lambda: journal.idle)
    assert journal.longest_commit(1.0) == 0.5  # the longest, not the latest
    now += 3.0
    assert journal.longest_commit(1.0) == 0.0
    assert journal.longest_commit(5.0) == 0.5
    now += 16.0
    journal.append([b"z"])
    await told.until(lambda: journal.idle)
    assert journal.longest_commit(10.0) == 0.0  # that second's place has been taken
    assert await journal.close()
