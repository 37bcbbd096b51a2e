"""When compiled modules stand for the sources, and when not."""

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from broker.compiled import COMPILED, MANIFEST, ROOT, VARIABLE, Compiled

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with one package ``sample``, and ``built`` with another form of its module ``part``."""
    for directory, text in (("broker", "source"), ("sample", "source"), ("built/sample", "built")):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "part.py").write_text(f"FORM = {text!r}\n", encoding="utf-8")
    (tmp_path / "sample" / "__init__.py").write_text("", encoding="utf-8")
    return tmp_path


def manifest(root: Path, **changed: object) -> Compiled:
    facts = {"suffix": SUFFIX, "modules": ["sample.part"], "sources": Compiled.digests(root)}
    (root / "built" / MANIFEST).write_text(json.dumps(facts | changed), encoding="utf-8")
    return Compiled(root / "built", root)


def test_nothing_there(tmp_path: Path) -> None:
    assert Compiled(tmp_path / "built").prefer() == "interpreted: nothing is compiled"
    (tmp_path / MANIFEST).write_text("{", encoding="utf-8")
    assert Compiled(tmp_path).unusable() == "nothing is compiled"


def test_what_was_built_is_found_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    assert manifest(root).prefer() == COMPILED
    try:
        assert importlib.import_module("sample.part").FORM == "built"
        assert manifest(root).prefer() == "interpreted: sample.part was imported before"
    finally:
        for name in ("sample", "sample.part"):
            sys.modules.pop(name, None)


def test_another_python(root: Path) -> None:
    assert manifest(root, suffix=".cpython-27.so").prefer() == "interpreted: compiled for another Python"


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_changed_sources_are_what_runs(root: Path, change: str) -> None:
    compiled = manifest(root)
    assert compiled.unusable() is None
    if change == "edited":
        (root / "broker" / "part.py").write_text("FORM = 'new'\n", encoding="utf-8")
    elif change == "added":
        (root / "broker" / "more.py").write_text("", encoding="utf-8")
    else:
        (root / "broker" / "part.py").unlink()
    assert compiled.prefer() == "interpreted: the sources have changed since"


def test_the_node_asks_before_it_imports_anything_else(root: Path) -> None:
    """Whatever it would take for compiled is not there before the question is."""
    manifest(root, modules=["broker.mqtt.reason_codes"], sources=Compiled.digests(ROOT))
    code = "import management.node; from broker import compiled; print(compiled.outcome)"
    told = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {VARIABLE: str(root / "built")}, cwd=ROOT,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == COMPILED
