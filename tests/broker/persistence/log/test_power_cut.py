"""Whatever the disk does, a batch that was reported durable is there afterwards."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import apsw
import pytest

from taipan.broker.persistence.log import sqlite_log
from taipan.broker.persistence.log.errors import StoreError, WriteTrouble
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from tests.support.fake_disk import FakeDisk, Platter, broken, full


def content(seq: int) -> bytes:
    return Random(seq).randbytes((50, 300, 5_000, 20_000)[seq % 4])


def script(log: SqliteLog, disk: FakeDisk, batches: int) -> None:
    """What a node does to its store; a call that fails is tried again, as the writer does."""

    def insist(act: Callable[[], object]) -> None:
        for _ in range(5):
            try:
                act()
            except WriteTrouble:
                continue
            return
        raise AssertionError("does not recover")

    for seq in range(1, batches + 1):
        insist(lambda seq=seq: log.append(seq, content(seq)))  # type: ignore[misc]
        disk.note(seq)
        insist(log.tidy)
        if seq % 10 == 0:
            insist(lambda seq=seq: log.drop_before(seq - 12))  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and shrinking within a short run."""
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_PAGES", 20)
    monkeypatch.setattr(sqlite_log, "SPARE_PAGES", 8)


def check(path: Path, durable: int) -> None:
    log = SqliteLog(path)
    log.open()
    try:
        found = dict(log.scan())
    finally:
        log.checkpoint_and_close()
    assert log.salvaged is None
    assert all(data == content(seq) for seq, data in found.items())
    oldest = max(1, durable // 10 * 10 - 12)
    assert set(range(oldest, durable + 1)) <= set(found)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_power_fails_after_every_single_write(tmp_path: Path) -> None:
    disk = FakeDisk("power")
    log = SqliteLog(tmp_path / "run" / "s.db", "power")
    log.path.parent.mkdir()
    log.open()
    script(log, disk, 40)
    log.checkpoint_and_close()
    platter = Platter()
    random = Random(7)
    after = tmp_path / "after"
    for event in disk.events:
        platter.play(event)
        for chance in (None, random):
            after.mkdir()
            platter.power_cut(after, chance)
            check(after / "s.db", platter.durable)
            shutil.rmtree(after)
    assert len(disk.events) > 500


@pytest.mark.timeout(120)
# Where SQLite has no use for the outcome of a call, APSW reports the error as one that cannot be raised.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [broken, full])
def test_every_single_call_fails_once(tmp_path: Path, error: Callable[[str], apsw.Error]) -> None:
    disk = FakeDisk("failing")
    for number in count(1):
        directory = tmp_path / str(number)
        directory.mkdir()
        disk.calls = 0
        disk.events.clear()
        disk.fail = lambda kind, call, number=number: error(kind) if call == number else None  # type: ignore[misc]
        log = SqliteLog(directory / "s.db", "failing")
        try:
            log.open()
        except StoreError:
            log.open()
        script(log, disk, 24)
        failed = disk.calls >= number
        platter = Platter()
        for event in disk.events:
            platter.play(event)
        log._abandon()
        platter.power_cut(directory, None)
        check(directory / "s.db", 24)
        shutil.rmtree(directory)
        if not failed:
            break
    assert number > 100


def test_a_disk_that_stays_full_keeps_what_it_has_and_takes_more_when_there_is_space(tmp_path: Path) -> None:
    disk = FakeDisk("small")
    log = SqliteLog(tmp_path / "s.db", "small")
    log.open()
    script(log, disk, 5)
    disk.fail = lambda kind, _call: full() if kind == "write" else None
    for _ in range(20):
        with pytest.raises(WriteTrouble, match="no space left"):
            log.append(6, content(6))
    disk.fail = lambda _kind, _call: None
    log.append(6, content(6))
    assert [seq for seq, _ in log.scan()] == [1, 2, 3, 4, 5, 6]
    log.checkpoint_and_close()
    check(tmp_path / "s.db", 6)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_full_disk_keeps_no_one_from_starting(tmp_path: Path, clean: bool) -> None:
    disk = FakeDisk("start")
    log = SqliteLog(tmp_path / "s.db", "start")
    log.open()
    script(log, disk, 9)
    if clean:
        log.checkpoint_and_close()
    log._abandon()
    disk.fail = lambda kind, _call: full() if kind == "write" else None
    log = SqliteLog(tmp_path / "s.db", "start")
    log.open()
    assert dict(log.scan()) == {seq: content(seq) for seq in range(1, 10)}
    with pytest.raises(WriteTrouble, match="no space left"):
        log.append(10, content(10))
    log._abandon()


@pytest.mark.parametrize("flushes", [True, False])
def test_batches_that_a_killed_process_did_not_flush(tmp_path: Path, flushes: bool) -> None:
    """They can be read; ``flush_rest`` has them on disk."""
    disk = FakeDisk("killed")
    log = SqliteLog(tmp_path / "taipan.db", vfs="killed")
    log.open()
    log.append(1, b"one")
    flush, disk.fail = disk.fail, lambda kind, _number: broken(kind) if kind == "sync" else None
    with pytest.raises(WriteTrouble):
        log.append(2, b"two")
    log._abandon()
    disk.fail = flush
    again = SqliteLog(tmp_path / "taipan.db", vfs="killed")
    again.open()
    assert again.last == 2
    before = len(disk.events)
    if flushes:
        again.flush_rest()
    assert (("sync", "taipan.db-wal", 0, b"") in disk.events[before:]) == flushes
    assert [data for _, data in again.scan()] == [b"one", b"two"]
    again.checkpoint_and_close()
