"""The file of the points: what was written is read again, and no content keeps a node from starting."""

import logging
import os
from pathlib import Path

import msgspec
import pytest

from taipan.management.history.point import FIGURES, Point
from taipan.management.history.ring_file import MAX_POINT, SLOT, RingFile

SIZES = (8, 3)
HEAD = 4096


def point(at: int) -> Point:
    return Point(at, 1.0, [at % 100] * len(FIGURES), {"reason": 0.5})


def encoded(at: int) -> bytes:
    return msgspec.msgpack.encode(point(at))


def filled(path: Path) -> bytes:
    """A file with points in some slots of both parts; its bytes."""
    file = RingFile(path, SIZES)
    file.open()
    for at in range(6):
        file.write(0, at, encoded(1000 + at))
    file.write(1, 2, encoded(60))
    file.close()
    return path.read_bytes()


def read(path: Path) -> list[list[int]]:
    """The times of the points in it, opened as a start does."""
    file = RingFile(path, SIZES)
    parts = file.open()
    file.write(0, 7, encoded(2000))  # it can be written to, whatever it was
    file.close()
    assert path.stat().st_size == HEAD + SLOT * sum(SIZES)
    assert [each.at for each in RingFile(path, SIZES).open()[0]][-1] == 2000
    return [[each.at for each in part] for part in parts]


ALL = [[1000, 1001, 1002, 1003, 1004, 1005], [60]]
NONE: list[list[int]] = [[], []]


def test_a_new_file_is_empty_and_has_all_its_room(tmp_path: Path) -> None:
    path = tmp_path / "h"
    assert read(path) == NONE
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    filled(tmp_path / "h")
    file = RingFile(tmp_path / "h", SIZES)
    assert file.open() == [[point(1000 + at) for at in range(6)], [point(60)]]


def test_a_slot_is_written_over(tmp_path: Path) -> None:
    filled(tmp_path / "h")
    file = RingFile(tmp_path / "h", SIZES)
    file.open()
    file.write(0, 0, msgspec.msgpack.encode(Point(1008, 1.0, [0] * len(FIGURES), {})))
    file.close()
    assert read(tmp_path / "h") == [[1008, *ALL[0][1:]], [60]]


@pytest.mark.parametrize("size", [1, 17, HEAD - 1, HEAD, HEAD + 1, HEAD + SLOT * 5 + 100, HEAD + SLOT * 11 - 1])
def test_a_file_that_was_cut_is_begun_anew(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    content = filled(tmp_path / "h")
    (tmp_path / "h").write_bytes(content[:size])
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path / "h") == NONE
    assert "history_damaged" in caplog.text and str(tmp_path / "h") in caplog.text


def test_a_file_that_is_longer_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = filled(tmp_path / "h")
    (tmp_path / "h").write_bytes(content + b"x")
    assert read(tmp_path / "h") == NONE
    assert "history_damaged" in caplog.text


def test_an_empty_file_is_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "h").touch()
    assert read(tmp_path / "h") == NONE
    assert not caplog.text


@pytest.mark.parametrize("place", [0, 10, 100, HEAD - 1])
def test_another_head_is_no_head(tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    content = bytearray(filled(tmp_path / "h"))
    content[place] ^= 1
    (tmp_path / "h").write_bytes(content)
    assert read(tmp_path / "h") == NONE
    assert "history_damaged" in caplog.text


def test_a_flipped_bit_costs_its_point(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever it is, in the point and in the numbers before it."""
    content = filled(tmp_path / "h")
    used = 6 + len(encoded(1002))
    for place in range(used):
        damaged = bytearray(content)
        damaged[HEAD + SLOT * 2 + place] ^= 0x10
        (tmp_path / "h").write_bytes(damaged)
        caplog.clear()
        assert read(tmp_path / "h") == [[1000, 1001, 1003, 1004, 1005], [60]], place
        assert "history_points_damaged" in caplog.text and "points=1" in caplog.text


@pytest.mark.parametrize("size", [1, 4, 6, 7, 30])
def test_a_torn_slot_costs_its_point(tmp_path: Path, size: int) -> None:
    content = bytearray(filled(tmp_path / "h"))
    start = HEAD + SLOT * 2
    content[start + size : start + SLOT] = bytes(SLOT - size)
    (tmp_path / "h").write_bytes(content)
    assert read(tmp_path / "h") == [[1000, 1001, 1003, 1004, 1005], [60]]


def test_any_bytes_are_read(tmp_path: Path) -> None:
    size = HEAD + SLOT * sum(SIZES)
    content = filled(tmp_path / "h")
    for body in (bytes(size - HEAD), b"\xff" * (size - HEAD), os.urandom(size - HEAD)):
        (tmp_path / "h").write_bytes(content[:HEAD] + body)
        assert read(tmp_path / "h") == NONE


def test_a_point_of_other_columns_is_left_out(tmp_path: Path) -> None:
    filled(tmp_path / "h")
    file = RingFile(tmp_path / "h", SIZES)
    file.open()
    file.write(0, 3, msgspec.msgpack.encode(Point(1003, 1.0, [1, 2], {})))
    file.write(0, 4, msgspec.msgpack.encode(["no", "point"]))
    file.write(0, 5, b"\xc1")
    file.close()
    assert read(tmp_path / "h") == [[1000, 1001, 1002], [60]]


def test_the_largest_point_fits(tmp_path: Path) -> None:
    large = Point(7, 1.0, [1.5] * len(FIGURES), {"x" * (MAX_POINT - 176): 1.5})
    assert MAX_POINT - 10 < len(msgspec.msgpack.encode(large)) <= MAX_POINT
    file = RingFile(tmp_path / "h", SIZES)
    file.open()
    file.write(0, 7, msgspec.msgpack.encode(large))
    file.write(1, 0, encoded(60))
    file.close()
    assert RingFile(tmp_path / "h", SIZES).open() == [[large], [point(60)]]


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("directory", "pipe", "link", "nowhere/h"):
        with pytest.raises(OSError):
            RingFile(tmp_path / name, SIZES).open()
    assert (tmp_path / "target").read_bytes() == b""


@pytest.mark.parametrize("sizes", [(8,), (20,), (4, 2), (3, 8), (20, 5, 9)])
def test_a_file_with_other_sizes_is_begun_anew(
    tmp_path: Path, sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    before = RingFile(tmp_path / "h", sizes)
    before.open()
    before.write(0, 0, encoded(1000))
    before.close()
    assert read(tmp_path / "h") == NONE
    assert "history_damaged" in caplog.text
