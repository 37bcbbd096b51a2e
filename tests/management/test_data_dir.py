"""The data directory is one node's at a time."""

import os
from pathlib import Path

import pytest

from management.data_dir import DataDir, DataDirError


def test_it_is_made_for_its_owner_only(tmp_path: Path) -> None:
    held = DataDir(str(tmp_path / "a" / "data"))
    assert (tmp_path / "a" / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "data" / "lock").stat().st_mode & 0o777 == 0o600
    held.close()


def test_a_second_one_is_told_who_has_it(tmp_path: Path) -> None:
    held = DataDir(str(tmp_path))
    with pytest.raises(DataDirError, match=rf"in use by process {os.getpid()}"):
        DataDir(str(tmp_path))
    held.close()
    DataDir(str(tmp_path)).close()


def test_a_path_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match=r"node\.data_dir .*file: "):
        DataDir(str(tmp_path / "file"))
