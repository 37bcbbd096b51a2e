"""When compiled modules stand for the sources, and when not."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taipan.broker.compiled import COMPILED, INTERPRETED, MANIFEST, NO, ROOT, SUFFIX, VARIABLE, Compiled


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with one package ``sample``, and ``built`` with another form of its module ``part``."""
    for directory, text in (("broker", "source"), ("sample", "source"), ("built/sample", "built")):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "part.py").write_text(f"FORM = {text!r}\n", encoding="utf-8")
    (tmp_path / "sample" / "__init__.py").write_text("", encoding="utf-8")
    return tmp_path


def manifest(root: Path, **changed: object) -> Compiled:
    built = root / "built"
    facts = {
        "suffix": SUFFIX, "modules": ["sample.part"], "sources": Compiled.digests(root), "sizes": Compiled.sizes(built)
    }  # fmt: skip
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


def test_half_a_manifest_and_cut_files_are_not_taken(root: Path) -> None:
    whole = manifest(root)
    assert whole.unusable() is None
    (root / "built" / f"shared{SUFFIX}").write_bytes(b"more")
    assert whole.unusable() == "the compiled modules are incomplete"
    for text in ("[]", "{}", '{"suffix": 1}', (root / "built" / MANIFEST).read_text(encoding="utf-8")[:-9]):
        (root / "built" / MANIFEST).write_text(text, encoding="utf-8")
        assert Compiled(root / "built", root).unusable() == "nothing is compiled"


def test_what_cannot_be_loaded_is_not_taken(root: Path) -> None:
    (root / "built" / f"shared{SUFFIX}").write_bytes(b"no library")
    assert manifest(root).prefer().startswith(f"{INTERPRETED}: ")
    assert "sample" not in sys.modules and "shared" not in sys.modules


def outcome(code: str, cwd: Path = ROOT, **env: str) -> str:
    """What a process of its own says of its modules, where the environment of the tests says nothing."""
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    told = subprocess.run(
        [sys.executable, "-c", f"{code}; from taipan.broker import compiled; print(compiled.outcome)"],
        env=environ | env, cwd=cwd, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import taipan.management.node",
        "from taipan.broker.store import store",
        "from taipan.broker.mqtt.topics import matches",
    ],
)
def test_whoever_imports_the_broker_asks_first(root: Path, code: str) -> None:
    """Whatever it would take for compiled is not there before the question is."""
    manifest(root, modules=["taipan.broker.mqtt.reason_codes"], sources=Compiled.digests(ROOT))
    assert outcome(code, **{VARIABLE: str(root / "built")}) == COMPILED
    assert outcome(code, **{VARIABLE: NO}) == INTERPRETED


@pytest.fixture
def checkout(root: Path) -> Path:
    """A copy of the package with something built beside it."""
    shutil.rmtree(root / "broker")
    shutil.copytree(ROOT / "broker", root / "broker", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "taipan").mkdir()
    shutil.copy(ROOT / "taipan" / "__init__.py", root / "taipan")
    (root / "taipan" / "broker").symlink_to("../broker")
    built = root / "build" / "compiled"
    built.parent.mkdir()
    (root / "built").rename(built)
    (built / "taipan" / "broker" / "mqtt").mkdir(parents=True)
    facts = {
        "suffix": SUFFIX,
        "modules": ["taipan.broker.mqtt.reason_codes"],
        "sources": Compiled.digests(root),
        "sizes": {},
    }
    (built / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")
    return root


def test_fresh_modules_beside_the_package_are_taken_without_a_word(checkout: Path) -> None:
    assert outcome("pass", checkout) == COMPILED
    assert outcome("pass", checkout, **{VARIABLE: ""}) == COMPILED
    assert outcome("pass", checkout, **{VARIABLE: NO}) == INTERPRETED
    with (checkout / "broker" / "server.py").open("a", encoding="utf-8") as source:
        source.write("# edited\n")
    assert outcome("pass", checkout) == "interpreted: the sources have changed since"
    shutil.rmtree(checkout / "build")
    assert outcome("pass", checkout) == "interpreted: nothing is compiled"


def test_no_path_leads_into_what_is_compiled(checkout: Path) -> None:
    """A process that inherits ``sys.path`` must not find a ``broker`` there that has no sources."""
    code = "import sys, taipan.broker.mqtt.reason_codes; assert not [at for at in sys.path if at.endswith('compiled')]"
    assert outcome(code, checkout) == COMPILED
