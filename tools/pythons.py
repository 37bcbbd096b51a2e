"""``make test-pythons``: run the quick tests, interpreted, on each installed Python from 3.11 to 3.14.

Interpreters are searched on the path, in ``/usr/bin``, and in the directories of pyenv and uv; the newest of each minor
version is used. Each has its own environment in ``build/pythons``, which is kept for the next run. Further arguments
are passed to pytest."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = ROOT / "build" / "pythons"
MINORS: Final = ("3.11", "3.12", "3.13", "3.14")
_ASK: Final = "import ensurepip, sys, venv; print('%d.%d.%d' % sys.version_info[:3])"


def candidates(minor: str, home: Path) -> Iterator[str]:
    """Return files that may be a Python of this minor version, the likeliest first."""
    for directory in (None, "/usr/local/bin", "/usr/bin"):
        found = shutil.which(f"python{minor}", path=directory)
        if found is not None:
            yield found
    kept = [*home.glob(f".pyenv/versions/{minor}.*"), *home.glob(f".local/share/uv/python/cpython-{minor}.*")]
    for directory in kept:
        yield str(directory / "bin" / "python3")


def version(python: str) -> tuple[int, ...]:
    """Return the version of an interpreter that can create environments; empty: it cannot, or it is a shim without a
    target."""
    try:
        told = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True)
    except OSError:
        return ()
    return tuple(map(int, told.stdout.split("."))) if told.returncode == 0 else ()


def installed(home: Path) -> dict[str, str]:
    """Return the interpreters by minor version."""
    found = {}
    for minor in MINORS:
        there = {python: version(python) for python in candidates(minor, home)}
        fitting = [each for each, facts in there.items() if facts[:2] == tuple(map(int, minor.split(".")))]
        if fitting:
            found[minor] = max(fitting, key=there.__getitem__)
    return found


def environment(minor: str, python: str) -> Path | None:
    """Return the interpreter of its environment, which is created if it does not exist; None: it cannot be created."""
    home = PLACE / minor
    own, stamp = home / "bin" / "python", home / ".installed"
    facts = f"{python} {(ROOT / 'pyproject.toml').read_text('utf-8')}"
    if stamp.exists() and stamp.read_text("utf-8") == facts:
        return own
    for command in ([python, "-m", "venv", "--clear", home], [own, ROOT / "install.py", "--editable", ".[test]"]):
        if subprocess.run(command, cwd=ROOT).returncode != 0:
            return None
    stamp.write_text(facts, "utf-8")
    return own


def run(words: list[str]) -> int:
    """Run the tests on each interpreter in turn, and print the result of each. Return the exit status."""
    pythons = installed(Path.home())
    outcomes = {}
    for minor in MINORS:
        if minor not in pythons:
            outcomes[minor] = "not installed"
            continue
        print(f"=== {pythons[minor]}", flush=True)
        own = environment(minor, pythons[minor])
        if own is None:
            outcomes[minor] = "FAILED: its environment could not be made"
            continue
        command = [own, "-m", "pytest", "-q", "-m", "not slow and not long", *words]
        status = subprocess.run(command, cwd=ROOT, env=os.environ | {"TAIPAN_COMPILED": "no"}).returncode
        outcomes[minor] = "passed" if status == 0 else f"FAILED (status {status})"
    for minor, outcome in outcomes.items():
        print(f"Python {minor}: {outcome} {pythons.get(minor, '')}".rstrip())
    return int(not pythons or any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
