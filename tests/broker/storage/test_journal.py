"""The journal: batches in order, acknowledged once they are on the disk, whatever the disk does meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.storage import writer
from broker.storage.batch import decode
from broker.storage.journal import Journal
from broker.storage.sqlite_log import SqliteLog
from broker.storage.trouble import StoreError, WriteTrouble


class GatedLog(SqliteLog):
    """Its ``append`` waits for the gate, and fails as long as ``error`` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.error: str | None = None
        self.tried = 0

    def append(self, seq: int, data: bytes) -> None:
        assert self.gate.wait(20)
        self.tried += 1
        if self.error is not None:
            raise WriteTrouble(self.error)
        super().append(seq, data)


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
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def started(path: Path, max_pending: int = 1_000) -> tuple[GatedLog, Journal, Told]:
    log = GatedLog(path)
    log.open()
    told = Told()
    journal = Journal(log, asyncio.get_running_loop(), told.on_durable, told.on_trouble, max_pending=max_pending)
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
async def test_what_comes_while_the_writer_works_goes_into_one_batch(tmp_path: Path) -> None:
    log, journal, told = started(tmp_path / "s.db")
    log.gate.clear()
    journal.put(1, b"a")
    journal.end_of_turn()
    assert (journal.batch, journal.durable, 1 in journal) == (2, 0, False)
    journal.put(2, b"b")
    journal.end_of_turn()
    journal.put(3, b"c")
    journal.end_of_turn()
    assert (journal.batch, 3 in journal, journal.pending, journal.pending_octets) == (2, True, 3, 3)
    log.gate.set()
    await told.until(lambda: journal.durable == 2)
    assert told.durable == [1, 2] and journal.pending_octets == 0
    assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"a"]), (2, [b"b", b"c"])]


@pytest.mark.asyncio
async def test_a_record_outside_any_turn_is_written_and_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    for seq in (1, 2, 3):
        _, journal, told = started(tmp_path / "s.db")
        assert (journal.batch, journal.durable) == (seq, seq - 1)
        journal.put(1, b"x")
        await told.until(lambda told=told: told.durable != [])  # type: ignore[misc]
        assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"x"]), (2, [b"x"]), (3, [b"x"])]


@pytest.mark.asyncio
async def test_a_record_taken_back_in_time_never_needs_the_disk(tmp_path: Path) -> None:
    log, journal, _ = started(tmp_path / "s.db")
    log.gate.clear()
    journal.put(1, b"early")
    journal.end_of_turn()
    journal.put(2, b"gone")
    journal.put(3, b"stays")
    assert not journal.take_back(1)
    assert journal.take_back(2)
    assert not journal.take_back(2)
    log.gate.set()
    assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"early"]), (2, [b"stays"])]


@pytest.mark.asyncio
async def test_an_empty_batch_is_not_written(tmp_path: Path) -> None:
    log, journal, _ = started(tmp_path / "s.db")
    journal.put(1, b"x")
    assert journal.take_back(1)
    journal.end_of_turn()
    await asyncio.sleep(0)
    assert await journal.close()
    assert log.tried == 0


@pytest.mark.asyncio
async def test_trouble_is_told_once_and_nothing_is_lost_or_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(writer, "LONGEST_PAUSE", 0.004)
    log, journal, told = started(tmp_path / "s.db", max_pending=10)
    journal.put(1, b"first")
    await told.until(lambda: journal.durable == 1)
    log.error = "no space left for the store"
    journal.put(2, b"second")
    await told.until(lambda: journal.trouble is not None)
    journal.put(3, b"third")
    assert journal.congested
    # Reading goes on.
    assert await journal.read(1, 12, 5) == b"first"
    with pytest.raises(StoreError):
        await journal.read(77, 0, 1)
    log.error = None
    await told.until(lambda: journal.durable == 3)
    assert told.trouble == ["no space left for the store", None]
    assert journal.trouble is None and not journal.congested
    assert told.durable == [1, 2, 3]
    assert await journal.close()
    assert stored(tmp_path / "s.db") == [(1, [b"first"]), (2, [b"second"]), (3, [b"third"])]


@pytest.mark.asyncio
async def test_closing_is_bounded_when_the_disk_takes_nothing(tmp_path: Path) -> None:
    log, journal, told = started(tmp_path / "s.db")
    log.error = "write error"
    journal.put(1, b"x")
    await told.until(lambda: journal.trouble is not None)
    assert not await journal.close(timeout=0.05)
    await asyncio.to_thread(journal._writer.join, 20)
    assert stored(tmp_path / "s.db") == []


@pytest.mark.asyncio
async def test_a_record_is_found_where_location_says(tmp_path: Path) -> None:
    log, journal, told = started(tmp_path / "s.db")
    log.gate.clear()
    journal.put(1, b"one")
    journal.put(2, b"twenty-two")
    assert journal.location(2) is None
    journal.end_of_turn()
    place = journal.location(2)
    assert place is not None and journal.location(3) is None
    assert await journal.read(*place) == b"twenty-two"
    log.gate.set()
    await told.until(lambda: journal.durable == 1)
    assert await journal.read(*place) == b"twenty-two"
    assert await journal.close()


@pytest.mark.asyncio
async def test_old_batches_are_dropped_between_others(tmp_path: Path) -> None:
    _, journal, told = started(tmp_path / "s.db")
    for seq in range(1, 60):
        journal.put(seq, b"%d" % seq)
        journal.end_of_turn()
        await told.until(lambda seq=seq: journal.durable == seq)  # type: ignore[misc]
    journal.drop_before(58)
    journal.put(60, b"60")
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
    journal = Journal(log, loop, told.on_durable, told.on_trouble, clock=lambda: now, pause=pauses.append)
    journal.start()
    journal.end_of_turn()
    assert pauses == []
    log.gate.clear()
    journal.put(1, b"x")
    journal.end_of_turn()
    journal.end_of_turn()
    assert len(pauses) == 1
    now += 0.002
    journal.end_of_turn()
    assert len(pauses) == 2
    log.gate.set()
    assert await journal.close()
