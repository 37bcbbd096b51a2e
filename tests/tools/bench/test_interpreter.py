"""Which Python measured nodes run on, and how it was built."""

import subprocess
import sys

import pytest

from tools.bench import interpreter
from tools.bench.interpreter import OF_DISTRIBUTION, OPTIMISED, PLAIN, built, described, how_built, node_command


@pytest.mark.parametrize(
    "prefix, settings, how",
    [
        ("/opt/python", "'--enable-optimizations' '--with-lto'", OPTIMISED),
        ("/opt/python", "-O3 -fprofile-use -fprofile-correction", OPTIMISED),
        ("/usr", "'--enable-shared' '--prefix=/usr'", OF_DISTRIBUTION),
        ("/opt/python", "'--enable-shared' '--prefix=/opt/python'", PLAIN),
    ],
)
def test_how_it_was_built(prefix: str, settings: str, how: str) -> None:
    assert how_built(prefix, settings) == how


def test_nodes_run_on_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_PYTHON", "/no/python3")
    assert node_command("--config", "x")[0] == "/no/python3" and built("/no/python3") == ""
    monkeypatch.setenv("NODE_PYTHON", "own")
    assert node_command()[0] == sys.executable
    assert described().startswith("CPython 3.") and described().endswith(f" ({built(sys.executable)})")


@pytest.mark.parametrize("own, other, suffix, taken", [
    (PLAIN, OF_DISTRIBUTION, True, True), (PLAIN, PLAIN, True, False), (PLAIN, OF_DISTRIBUTION, False, False),
    (OPTIMISED, OF_DISTRIBUTION, True, False),
])  # fmt: skip
def test_nodes_run_on_a_better_one_that_has_our_packages(
    monkeypatch: pytest.MonkeyPatch, own: str, other: str, suffix: bool, taken: bool
) -> None:
    mine = interpreter._facts(sys.executable)
    monkeypatch.delenv("NODE_PYTHON", raising=False)
    monkeypatch.setattr(interpreter, "built", lambda python: own if python == sys.executable else other)
    monkeypatch.setattr(interpreter, "_facts", lambda _: {"suffix": mine["suffix"] if suffix else ".other.so"})
    found = interpreter.node_python()
    assert found == (f"/usr/bin/python3.{sys.version_info.minor}" if taken else sys.executable)


def test_it_starts_taipan_with_our_packages() -> None:
    done = subprocess.run([*node_command("--version")], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "taipan" in done.stdout.lower(), done.stderr
