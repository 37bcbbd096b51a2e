"""A package as if it were not installed, in this process or in those that are started."""

import sys
from pathlib import Path

import pytest


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """``import name`` fails from now on."""
    monkeypatch.setitem(sys.modules, name, None)


def path_without(directory: Path, *names: str) -> str:
    """A PYTHONPATH with which ``import name`` fails."""
    directory.mkdir()
    for name in names:
        (directory / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name}")\n')
    return str(directory)
