"""Entry points: one reading of the installed packages for all groups, until something is installed."""

from pathlib import Path
from typing import NamedTuple

import pytest

from taipan.broker import entry_points
from taipan.broker.entry_points import load, load_all, names


class Door(NamedTuple):
    name: str


def install(folder: Path, name: str, *points: str) -> None:
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (made / "entry_points.txt").write_text("[taipan.doors]\n" + "".join(f"{each}\n" for each in points), "utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_packages_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    real = entry_points.entry_points
    monkeypatch.setattr(entry_points, "entry_points", lambda: looked.append(1) or real())
    for _ in range(3):
        assert names("taipan.doors") == []
        assert load("taipan.doors", "front", Door) is None
        assert list(load_all("taipan.doors", (Door,), "a Door")) == []
    assert len(looked) == 1
    install(folder, "doors", f"front = {__name__}:FRONT")
    assert names("taipan.doors") == ["front"] and len(looked) == 2


FRONT = Door("front")


def test_all_of_a_group(folder: Path) -> None:
    install(folder, "doors", f"front = {__name__}:FRONT")
    assert load("taipan.doors", "front", Door) is FRONT
    where = "entry point front of taipan.doors, package doors"
    assert list(load_all("taipan.doors", (Door,), "a Door")) == [(FRONT, where)]
    with pytest.raises(ValueError, match=f"^{where}: {__name__}:FRONT is not a number$"):
        list(load_all("taipan.doors", (int,), "a number"))


def test_an_import_that_fails(folder: Path) -> None:
    install(folder, "doors", "back = no_such_module:BACK")
    words = "entry point back of taipan.doors, package doors: ModuleNotFoundError: No module named 'no_such_module'"
    with pytest.raises(ValueError, match=f"^{words}$"):
        load("taipan.doors", "back", Door)
    with pytest.raises(ValueError, match=f"^{words}$"):
        list(load_all("taipan.doors", (Door,), "a Door"))
