"""A small file system, for a disk that becomes full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SIZE = "16m"


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Mount a file system at ``place``. Skips where mounting is not allowed, except in CI."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", place], capture_output=True, text=True
    )
    if mounted.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"no tmpfs: {mounted.stderr}")
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> None:
    """Take all the room that is left, with a file ``ballast``."""
    with open(disk / "ballast", "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
