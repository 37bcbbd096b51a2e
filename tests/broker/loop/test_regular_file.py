"""Files that somebody names: regular ones of a bounded size, and no wait for anything else."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from taipan.broker.loop.regular_file import MIB, check_regular, read_regular


def test_a_regular_file_is_read_through_links_too(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"x" * 5)
    link.symlink_to(file)
    assert read_regular(str(link), 5) == read_regular(file, 6) == b"xxxxx"
    check_regular(link, 5)


def test_it_is_bounded_also_where_its_size_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * (MIB + 1))
    for read in (read_regular, check_regular):
        with pytest.raises(OSError, match="larger than 1 MiB") as refused:
            read(file, MIB)
        assert refused.value.errno == errno.EFBIG
    with pytest.raises(OSError, match="larger than"):
        read_regular("/proc/self/maps", 10)


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "directory", "absent", "long", "nul"])
def test_what_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    why, bound = "not a regular file", None
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "socket":
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(path))
    elif kind == "directory":
        path, why = tmp_path, "Is a directory"
    elif kind == "absent":
        why = "No such file"
    elif kind == "long":
        path, why = tmp_path / ("x" * 300), "File name too long"
    else:
        path, why = tmp_path / "x\0y", "null"
    for read in (read_regular, check_regular):
        with pytest.raises((OSError, ValueError), match=why):
            read(path, MIB)
    if bound is not None:
        bound.close()
