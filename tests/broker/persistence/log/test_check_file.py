"""The check file: what it says after each step, after a crash between two, and after a write that failed."""

import errno
import os
from pathlib import Path

import pytest

from taipan.broker.persistence.log.check_file import BLOCK, SIZE, CheckFile, Digests, OsFile, OsFiles
from taipan.broker.persistence.log.errors import StoreError, WriteTrouble
from taipan.broker.store.store_loss import find_loss


def rows(count: int) -> Digests:
    return {"users": (count, bytes([count]) * 16), "banned": (0, bytes(16))}


def made(path: Path, last: int = 0, now: Digests | None = None) -> CheckFile:
    check = CheckFile(path)
    check.read()
    check.settle(last, now or rows(0), False)
    return check


def told(path: Path, last: int, now: Digests, marked: bool = True) -> tuple[tuple[int, int] | None, frozenset[str]]:
    check = CheckFile(path)
    check.read()
    loss = find_loss(check, last, now, marked, False)
    check.close()
    return loss.batches, loss.tables


NOTHING = (None, frozenset[str]())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "taipan.check"


def test_the_steps_of_a_batch_that_changes_access_rows(path: Path) -> None:
    check = made(path)
    assert not path.exists()
    check.prepare(rows(1))
    # Here the batch may be stored or not.
    assert told(path, 0, rows(0)) == told(path, 1, rows(1)) == NOTHING
    check.confirm(1, rows(1))
    assert told(path, 1, rows(1)) == NOTHING
    assert told(path, 0, rows(0)) == ((1, 1), {"users"})
    check.prepare(rows(2))
    assert told(path, 1, rows(1)) == told(path, 2, rows(2)) == NOTHING
    assert told(path, 0, rows(0)) == ((1, 1), {"users"})
    check.confirm(2, rows(2))
    assert told(path, 1, rows(1)) == ((2, 2), {"users"})
    assert path.stat().st_size == SIZE and path.stat().st_mode & 0o777 == 0o600


def test_numbers_and_a_start_with_fewer(path: Path) -> None:
    check = made(path)
    check.prepare(rows(0))
    check.confirm(1, rows(0))
    for number in range(2, 30):
        check.note(number)
        assert told(path, number, rows(0)) == NOTHING
    assert told(path, 20, rows(0)) == ((21, 29), frozenset())
    check.close()
    check = made(path, 20)
    assert told(path, 20, rows(0)) == NOTHING  # it has been told once
    check.note(21)
    assert told(path, 21, rows(0)) == NOTHING


@pytest.mark.parametrize("block", range(4))
def test_one_block_that_is_torn(path: Path, block: int) -> None:
    """A number less says less, and the digests of before lead on to those after them."""
    check = made(path)
    check.prepare(rows(0))
    check.confirm(1, rows(0))
    check.note(2)
    check.prepare(rows(1))
    with path.open("r+b") as file:
        file.seek(block * BLOCK + 20)
        file.write(b"\xff" * 8)
    last = 2 if block == 3 else 3
    batches, tables = told(path, last, rows(1) if last == 3 else rows(0))
    assert (batches, tables) == NOTHING


def test_a_flush_that_fails_is_tried_again_in_the_same_place(path: Path) -> None:
    class Failing(OsFile):
        def sync(self) -> None:
            if failing:
                raise OSError(errno.EIO, "Input/output error")

    class Files(OsFiles):
        def open(self, path: Path) -> OsFile:
            return Failing(path)

    failing = False
    made(path).prepare(rows(0))
    check = CheckFile(path, Files())
    check.read()
    check.settle(0, rows(0), False)
    blocks = path.read_bytes()[2 * BLOCK :]
    failing = True
    for _ in range(3):
        with pytest.raises(WriteTrouble, match="Input/output error"):
            check.prepare(rows(1))
    after = path.read_bytes()[2 * BLOCK :]
    changed = [blocks[at : at + BLOCK] != after[at : at + BLOCK] for at in (0, BLOCK)]
    assert changed.count(True) == 1
    failing = False
    check.prepare(rows(1))
    check.confirm(1, rows(1))
    assert told(path, 1, rows(1)) == NOTHING


def test_what_is_held_keeps_what_it_expects(path: Path) -> None:
    check = made(path)
    check.prepare(rows(3))
    check.confirm(5, rows(3))
    check.close()
    check = CheckFile(path)
    check.read()
    check.settle(2, rows(1), True)
    for number, now in ((3, rows(1)), (4, rows(2))):
        check.prepare(now)
        check.confirm(number, now)
    assert told(path, 4, rows(2)) == (None, {"users"})
    assert told(path, 4, rows(3)) == NOTHING  # what was there is there again
    check.held = False
    check.prepare(rows(2))
    assert told(path, 4, rows(2)) == NOTHING
    check.confirm(5, rows(2))
    assert told(path, 5, rows(3)) == (None, {"users"})


def test_a_table_that_it_does_not_know_yet_is_as_it_is(path: Path) -> None:
    check = made(path)
    check.prepare(rows(1))
    check.confirm(1, rows(1))
    assert told(path, 1, {**rows(1), "tokens": (7, bytes(16))}) == NOTHING


def test_without_one(path: Path) -> None:
    assert told(path, 9, rows(1), marked=False) == NOTHING
    assert told(path, 9, rows(1)) == (None, {"users", "banned"})
    path.write_bytes(os.urandom(SIZE))
    assert told(path, 9, rows(1), marked=False) == (None, {"users", "banned"})


def test_a_link_and_a_directory_are_no_check_file(path: Path, tmp_path: Path) -> None:
    made(tmp_path / "other").prepare(rows(0))
    path.symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match=r"taipan\.check"):
        CheckFile(path).read()
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match=r"taipan\.check"):
        CheckFile(path).read()
