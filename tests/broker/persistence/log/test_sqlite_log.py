"""The file: its mode, its schema, what happens when it is damaged, and that kill -9 takes nothing that was reported."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import apsw
import pytest

from taipan.broker.persistence.log import sqlite_log
from taipan.broker.persistence.log.errors import NewerSchema, StoreError, WriteTrouble
from taipan.broker.persistence.log.salvage import PAGE, checksum
from taipan.broker.persistence.log.sqlite_log import SqliteLog

SIZES = (40, 700, 3_900, 9_000, 60_000)


def content(seq: int) -> bytes:
    return Random(seq).randbytes(SIZES[seq % 5])


def opened(path: Path) -> SqliteLog:
    log = SqliteLog(path)
    log.open()
    return log


def filled(path: Path, batches: int = 30) -> SqliteLog:
    log = opened(path)
    for seq in range(1, batches + 1):
        log.append(seq, content(seq))
    return log


def test_what_was_appended_is_there_in_order_after_a_new_start(tmp_path: Path) -> None:
    log = filled(tmp_path / "s.db")
    log.append(30, content(30))
    log.checkpoint_and_close()
    log = opened(tmp_path / "s.db")
    assert list(log.scan()) == [(seq, content(seq)) for seq in range(1, 31)]
    assert (log.first, log.last, log.salvaged) == (1, 30, None)
    log.checkpoint_and_close()


def test_files_are_for_the_owner_only_and_closing_leaves_one(tmp_path: Path) -> None:
    log = filled(tmp_path / "s.db")
    assert {path.name for path in tmp_path.iterdir()} == {"s.db", "s.db-wal"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    log.checkpoint_and_close()
    assert {path.name for path in tmp_path.iterdir()} == {"s.db"}


def after_a_crash(directory: Path) -> list[int]:
    """What a start finds of what is in this directory now."""
    copy = directory / "copy"
    copy.mkdir()
    for path in list(directory.iterdir()):
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    log = opened(copy / "s.db")
    found = [seq for seq, _ in log.scan()]
    log.checkpoint_and_close()
    return found


@pytest.mark.parametrize("how", ["deleted", "renamed"])
@pytest.mark.parametrize("look", ["append", "verify"])
def test_a_write_ahead_log_that_is_gone(tmp_path: Path, how: str, look: str) -> None:
    """It had what was reported: that goes into the file, and a new one is started. Once it is told."""
    log = filled(tmp_path / "s.db")
    time.sleep(sqlite_log.WAL_INTERVAL)
    wal = tmp_path / "s.db-wal"
    wal.unlink() if how == "deleted" else wal.rename(tmp_path / "away")
    with pytest.raises(WriteTrouble, match="write-ahead log was deleted or renamed"):
        log.append(31, content(31)) if look == "append" else log.verify_path()
    log.verify_path()
    assert wal.exists()
    log.append(31, content(31))
    assert after_a_crash(tmp_path) == list(range(1, 32))
    log.checkpoint_and_close()
    assert not wal.exists()


def test_a_write_ahead_log_that_was_replaced(tmp_path: Path) -> None:
    """Nothing is added until the other one is away, for a start would read that. What there was is in the file."""
    log = filled(tmp_path / "s.db")
    wal = tmp_path / "s.db-wal"
    copy = tmp_path / "s.db-copy"
    copy.write_bytes(b"of another store")
    os.replace(copy, wal)
    for _ in range(2):
        time.sleep(sqlite_log.WAL_INTERVAL)
        with pytest.raises(WriteTrouble, match=r"move s\.db-wal away"):
            log.append(31, content(31))
    wal.unlink()
    assert after_a_crash(tmp_path) == list(range(1, 31))
    with pytest.raises(WriteTrouble, match="deleted or renamed"):
        log.verify_path()
    log.append(31, content(31))
    log.checkpoint_and_close()
    assert [seq for seq, _ in opened(tmp_path / "s.db").scan()] == list(range(1, 32))


def test_a_piece_of_a_batch(tmp_path: Path) -> None:
    log = filled(tmp_path / "s.db")
    assert log.read(4, 30_000, 17) == content(4)[30_000:30_017]
    for seq, offset, size in ((99, 0, 1), (4, 59_999, 2), (4, 70_000, 1)):
        with pytest.raises(StoreError, match="batch"):
            log.read(seq, offset, size)
    log.checkpoint_and_close()


def test_dropping_the_oldest_gives_the_space_back_but_never_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "SPARE_PAGES", 16)
    log = filled(tmp_path / "s.db", 200)
    log.drop_before(150)
    assert [seq for seq, _ in log.scan()] == list(range(150, 201))
    log.drop_before(10_000)
    assert [seq for seq, _ in log.scan()] == [200]
    log.checkpoint_and_close()
    assert log.size_bytes < 100 * 4096
    log = opened(tmp_path / "s.db")
    assert (log.first, log.last) == (200, 200)
    assert list(log.scan()) == [(200, content(200))]
    log.checkpoint_and_close()


def test_an_older_schema_is_migrated_and_a_newer_one_refused(tmp_path: Path) -> None:
    class Next(SqliteLog):
        steps = (*SqliteLog.steps, ("CREATE TABLE extra (x INT)", "INSERT INTO extra VALUES (7)"))

    path = tmp_path / "s.db"
    filled(path).checkpoint_and_close()
    for _ in range(2):
        log = Next(path)
        log.open()
        assert len(list(log.scan())) == 30
        log.checkpoint_and_close()
    other = apsw.Connection(str(path))
    assert other.execute("SELECT x FROM extra").fetchall() == [(7,)]
    other.close()
    with pytest.raises(NewerSchema, match=r"s\.db: written by a newer version \(schema 2, this one knows up to 1\)$"):
        opened(path)
    log = Next(path)
    log.open()
    assert len(list(log.scan())) == 30 and log.salvaged is None
    log.checkpoint_and_close()


def test_the_write_ahead_log_is_written_over_neither_cut_nor_grown_after_a_kill_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush into space that the file has is quicker than one that has to find some."""
    monkeypatch.setattr(sqlite_log, "CHECKPOINT_PAGES", 20)
    path = tmp_path / "s.db"
    wal = tmp_path / "s.db-wal"
    log = opened(path)

    def lengths(first: int, last: int) -> set[int]:
        found = set()
        for seq in range(first, last + 1):
            log.append(seq, bytes([seq]) * 9_000)
            log.tidy()
            found.add(wal.stat().st_size)
        return found

    lengths(1, 20)
    (length,) = lengths(21, 60)
    log._abandon()
    log = opened(path)
    lengths(61, 80)  # what lay in it when the process was killed is gone with the next checkpoint
    (after,) = lengths(81, 100)
    assert length <= after <= 2 * length
    assert [data for _, data in log.scan()] == [bytes([seq]) * 9_000 for seq in range(1, 101)]
    log.checkpoint_and_close()
    assert not wal.exists()


def test_a_second_one_is_refused(tmp_path: Path) -> None:
    log = filled(tmp_path / "s.db")
    with pytest.raises(StoreError):
        opened(tmp_path / "s.db")
    assert len(list(log.scan())) == 30
    log.checkpoint_and_close()


@pytest.mark.parametrize("live", [False, True], ids=["closed", "killed"])
def test_flipped_bytes_anywhere_cost_only_what_they_hit(tmp_path: Path, live: bool) -> None:
    """100 places, the head included; with the write-ahead log full of batches, and without one."""
    log = filled(tmp_path / "s.db")
    if not live:
        log.checkpoint_and_close()
    names = [path.name for path in tmp_path.iterdir()]
    images = {name: (tmp_path / name).read_bytes() for name in names}
    if live:
        log.checkpoint_and_close()
    random = Random(3)
    said = 0
    for turn in range(100):
        directory = tmp_path / str(turn)
        directory.mkdir()
        name = random.choice(names)
        at = turn if turn < 50 else random.randrange(len(images[name]))
        for each, image in images.items():
            damaged = bytearray(image)
            if each == name and image:
                damaged[at % len(image)] ^= random.randrange(1, 256)
            (directory / each).write_bytes(damaged)
        log = opened(directory / "s.db")
        found = dict(log.scan())
        assert all(data == content(seq) for seq, data in found.items())
        # One page holds a few small batches; a large one dies alone.
        assert len(found) >= 30 - 8
        if len(found) < 30 and not (live and set(range(1, max(found) + 1)) == set(found)):
            assert log.salvaged is not None and "damaged" in str(log.salvaged)
            said += 1
        log.append(31, content(31))
        log.checkpoint_and_close()
        again = opened(directory / "s.db")
        assert dict(again.scan()) == found | {31: content(31)}
        again.checkpoint_and_close()
    assert said > 10


def varint(value: int) -> bytes:
    octets = [value & 0x7F]
    while value := value >> 7:
        octets.append(value & 0x7F | 0x80)
    return bytes(reversed(octets))


def forged_page(seq: int, data: bytes) -> bytes:
    """What follows the first four octets of a page on which there is a sound row."""
    kinds = bytes([6, 6]) + varint(12 + 2 * len(data))
    row = bytes([2 + len(kinds), 0]) + kinds
    row += (1).to_bytes(8, "big") + checksum(seq, 1, data).to_bytes(8, "big") + data
    page = bytearray(PAGE)
    page[0:12] = b"\x0d\0\0\0\x01\0\0\0" + (3000).to_bytes(2, "big") + bytes(2)
    cell = varint(len(row)) + varint(seq) + row
    page[3000 : 3000 + len(cell)] = cell
    return bytes(page[4:])


@pytest.mark.parametrize("damaged", [False, True], ids=["killed", "damaged"])
def test_no_payload_is_taken_for_a_batch(tmp_path: Path, damaged: bool) -> None:
    """What does not fit beside a row lies in pages of its own as it was sent."""
    log = opened(tmp_path / "s.db")
    forged = forged_page(2, b"forged")
    for phase in range(470, 482):  # one of these begins with a page
        log.append(1, (bytes(phase) + forged * 4).ljust(4092 * 6, b"\0"))
        data = (tmp_path / "s.db-wal").read_bytes()
        if forged in {data[at + 28 : at + 4120] for at in range(32, len(data), 4120)}:
            break
    else:
        raise AssertionError("no page is as it was to be")
    if damaged:
        log.checkpoint_and_close()
        with (tmp_path / "s.db").open("r+b") as file:
            file.write(b"rubbish" * 20)
    log._abandon()
    log = opened(tmp_path / "s.db")
    assert (log.salvaged is not None) == damaged
    assert [seq for seq, _ in log.scan()] == [1]
    log.checkpoint_and_close()


def test_a_file_of_rubbish_is_set_aside_and_what_was_dropped_stays_dropped(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    log = filled(path)
    log.drop_before(20)
    log.checkpoint_and_close()
    with path.open("r+b") as file:
        file.write(b"rubbish" * 20)
    log = opened(path)
    assert [seq for seq, _ in log.scan()] == list(range(20, 31))
    assert log.salvaged is not None and log.salvaged.set_aside is not None and log.salvaged.set_aside.exists()
    log.checkpoint_and_close()
    path.write_bytes(b"no database at all" * 500)
    log = opened(path)
    assert list(log.scan()) == []
    assert log.salvaged is not None
    log.checkpoint_and_close()


def test_a_salvage_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    filled(tmp_path / "s.db.salvaged-20260101T000000Z").checkpoint_and_close()
    (tmp_path / "s.db").write_bytes(b"damaged")
    (tmp_path / "s.db.salvaging").write_bytes(b"half")
    log = opened(tmp_path / "s.db")
    assert len(list(log.scan())) == 30
    log.checkpoint_and_close()
    assert {each.name for each in tmp_path.iterdir()} == {"s.db", "s.db.damaged-20260101T000000Z"}


WRITER = """
import sys
from pathlib import Path
from random import Random
from taipan.broker.persistence.log.sqlite_log import SqliteLog
log = SqliteLog(Path(sys.argv[1])); log.open()
sizes = (40, 700, 3_900, 9_000, 60_000)
for seq in range(log.last + 1, 1_000_000):
    log.append(seq, Random(seq).randbytes(sizes[seq % 5]))
    sys.stdout.buffer.write(b"%d\\n" % seq); sys.stdout.buffer.flush()
    log.tidy()
    if seq % 100 == 0:
        log.drop_before(seq - 150)
"""


def test_kill_9_takes_nothing_that_was_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    random = Random(5)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            reported = 0
            for _ in range(random.randrange(1, 400)):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split(b"\n")[:-1]
            reported = int(rest[-1]) if rest else reported
        log = opened(path)
        found = dict(log.scan())
        log.checkpoint_and_close()
        assert log.salvaged is None
        assert set(range(max(1, reported - 150), reported + 1)) <= set(found)
        assert all(data == content(seq) for seq, data in found.items())


def test_a_file_system_that_is_full(tmp_path: Path) -> None:
    """A small tmpfs, where this process may mount one."""
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "x", small], check=False).returncode:
        pytest.skip("no permission to mount")
    try:
        log = opened(small / "s.db")
        ballast = small / "ballast"
        ballast.write_bytes(bytes(600_000))
        seq = 0
        said = ""
        while not said and seq < 100:
            seq += 1
            try:
                log.append(seq, bytes(20_000))
            except WriteTrouble as trouble:
                said = str(trouble)
        assert said == "no space left for the store"
        ballast.unlink()
        log.append(seq, bytes(20_000))
        assert [each for each, _ in log.scan()] == list(range(1, seq + 1))
        log.checkpoint_and_close()
    finally:
        subprocess.run(["umount", small], check=True)
