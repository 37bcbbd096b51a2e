"""``make test-pythons``: which interpreters it takes."""

from pathlib import Path

import pytest

from tools import pythons


def interpreter(file: Path, version: str) -> str:
    """A file that answers as a Python of this version; empty: as a shim of one that is not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    file.chmod(0o755)
    return str(file)


def test_the_newest_of_each_minor_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    which = pythons.shutil.which
    monkeypatch.setattr(pythons.shutil, "which", lambda name, path=None: None if path else which(name))
    on_path = interpreter(tmp_path / "bin" / "python3.11", "3.11.2")
    interpreter(tmp_path / "bin" / "python3.12", "")
    interpreter(tmp_path / "bin" / "python3.14", "3.11.9")
    of_pyenv = interpreter(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python3", "3.12.1")
    interpreter(tmp_path / ".pyenv" / "versions" / "3.13.2" / "bin" / "python3", "3.13.2")
    of_uv = interpreter(tmp_path / ".local/share/uv/python/cpython-3.13.11-linux" / "bin" / "python3", "3.13.11")
    assert pythons.installed(tmp_path) == {"3.11": on_path, "3.12": of_pyenv, "3.13": of_uv}


def test_one_that_fails_fails_all_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text('#!/bin/sh\necho "$TAIPAN_COMPILED $*"\n')
    bad.write_text("#!/bin/sh\nexit 3\n")
    for file in (good, bad):
        file.chmod(0o755)
    monkeypatch.setattr(pythons, "installed", lambda home: {"3.11": str(bad), "3.12": "none", "3.13": str(good)})
    own = {"3.11": bad, "3.12": None, "3.13": good}
    monkeypatch.setattr(pythons, "environment", lambda minor, python: own[minor])
    assert pythons.run(["tests/x"]) == 1
    said = capfd.readouterr().out
    assert "no -m pytest -q -m not slow and not long tests/x" in said
    assert "Python 3.11: FAILED (status 3)" in said
    assert "Python 3.12: FAILED: its environment could not be made" in said
    assert f"Python 3.13: passed {good}" in said
    assert "Python 3.14: not installed" in said
