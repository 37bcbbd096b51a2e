"""The data directory is one node's at a time."""

import errno
import logging
import os
import stat
from pathlib import Path

import pytest

from taipan.management.data_dir import DataDir, DataDirError


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


def test_what_others_could_read_is_taken_from_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    (data / "backup").mkdir(parents=True)
    files = [data / "taipan.db", data / "taipan.db-wal", data / "backup" / "export.json", data / "lock"]
    for file in files:
        file.write_text("")
        file.chmod(0o666)
    for directory in (data, data / "backup"):
        directory.chmod(0o777)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    elsewhere.chmod(0o644)
    (data / "link").symlink_to(elsewhere)
    with caplog.at_level(logging.WARNING, "taipan.management.data_dir"):
        DataDir(str(data)).close()
    assert [path.stat().st_mode & 0o777 for path in (data, data / "backup")] == [0o700, 0o700]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert elsewhere.stat().st_mode & 0o777 == 0o644
    (line,) = caplog.messages
    assert line.startswith(f"data_dir_repaired path={data} repaired=6 setting=node.data_dir")
    caplog.clear()
    DataDir(str(data)).close()
    assert caplog.messages == []


@pytest.mark.parametrize("mode, refused", [(0o777, True), (0o705, True), (0o770, False)])
def test_what_is_not_ours_to_repair(
    tmp_path: Path, mode: int, refused: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Open to everybody: not used. Lent by its group: used."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)

    def not_ours(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", not_ours)
    with caplog.at_level(logging.WARNING, "taipan.management.data_dir"):
        if refused:
            with pytest.raises(DataDirError, match=r"node\.data_dir .*data: others may access it"):
                DataDir(str(data))
            assert not (data / "lock").exists()
        else:
            DataDir(str(data)).close()
            assert caplog.messages == [f"data_dir_shared_with_group path={data} shared=1 setting=node.data_dir"]


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    data, precious = tmp_path / "data", tmp_path / "precious"
    data.mkdir(mode=0o700)
    for make in (
        lambda: (data / "lock").symlink_to(precious),
        lambda: (data / "lock").hardlink_to(precious),
        lambda: (data / "lock").symlink_to(tmp_path / "absent"),
        lambda: os.mkfifo(data / "lock", 0o600),
    ):
        precious.write_text("what was there")
        make()
        with pytest.raises(DataDirError, match=r"node\.data_dir .*lock: is "):
            DataDir(str(data))
        assert precious.read_text() == "what was there" and not (tmp_path / "absent").exists()
        (data / "lock").unlink()
    DataDir(str(data)).close()


def test_a_path_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match=r"node\.data_dir .*file: "):
        DataDir(str(tmp_path / "file"))


@pytest.mark.parametrize(
    "mode, names", [(0o1777, ()), (0o755, ("passwd",)), (0o755, ("nats", "mysql")), (0o1777, ("lock",))]
)
def test_a_directory_that_others_use_is_left_alone(tmp_path: Path, mode: int, names: tuple[str, ...]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for name in names:
        (shared / name).write_text("")
        (shared / name).chmod(0o644)
    shared.chmod(mode)
    with pytest.raises(DataDirError, match=f"node.data_dir {shared}: other programs may use this directory; choose a"):
        DataDir(str(shared))
    assert stat.S_IMODE(shared.stat().st_mode) == mode
    assert all((shared / name).stat().st_mode & 0o777 == 0o644 for name in names)


@pytest.mark.parametrize(
    "mode, names", [(0o755, ()), (0o755, ("lost+found",)), (0o755, ("taipan.db",)), (0o700, ("x",))]
)
def test_a_directory_of_its_own_is_taken(tmp_path: Path, mode: int, names: tuple[str, ...]) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in names:
        (own / name).write_text("")
    own.chmod(mode)
    DataDir(str(own)).close()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
