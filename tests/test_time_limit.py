"""A time-out ends a test, never the run: small runs of pytest in processes of their own."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import patience, slowness
from tests.support.time_limit import is_of_the_test

ROOT = Path(__file__).resolve().parents[1]

CONFTEST = """
import os

from tests.support import time_limit

time_limit.AGAIN = 0.3

def pytest_configure(config):
    config.pluginmanager.register(time_limit.TimeLimit())

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ and (report.when == "call" or report.outcome != "passed"):
        with open("reports", "a") as reports:
            print(report.fspath, report.location[2].partition("[")[0], report.outcome, file=reports)
"""

BEGIN = """
import asyncio
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

MARK = Path(__file__).with_suffix(".mark")

def hangs():
    if ONCE and MARK.exists():
        return False
    MARK.touch()
    return True

def forever():
    while hangs():
        while True:
            time.sleep(0.01)

@pytest.fixture(scope="module")
def shared():
    yield 1

"""

AFTER = """

@pytest.mark.parametrize("number", range(5))
def test_after(number, shared, request, tmp_path):
    pass
"""

WHERE = {
    "a_test": """
@pytest.mark.timeout(0.3)
def test_hangs():
    forever()
""",
    "a_loop": """
@pytest.mark.timeout(0.3)
@pytest.mark.asyncio
async def test_hangs():
    if hangs():
        await asyncio.Event().wait()
""",
    "a_fixture": """
@pytest.fixture
def slow():
    forever()

@pytest.mark.timeout(0.3)
def test_hangs(slow):
    pass
""",
    "the_fixture_of_a_module": """
@pytest.fixture(scope="module")
def slow():
    forever()

@pytest.mark.timeout(0.3)
def test_hangs(slow):
    pass
""",
    "a_tear_down": """
@pytest.fixture
def slow():
    yield
    forever()

@pytest.mark.timeout(0.3)
def test_hangs(slow, shared):
    pass
""",
    "where_it_is_caught": """
@pytest.mark.timeout(0.3)
def test_hangs():
    try:
        forever()
    except BaseException:
        while ONCE is False:
            time.sleep(0.01)
        raise
""",
    "a_property": """
@pytest.mark.timeout(0.3)
@settings(deadline=None, database=None, max_examples=1)
@given(strategies.integers())
def test_hangs(number):
    forever()
""",
}


def run(directory: Path, once: bool, *arguments: str) -> dict[str, Counter[str]]:
    """How each test ended that hangs (``once``: at its first attempt), and those after it, by file."""
    (directory / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    settings = "[pytest]\ntimeout = 50\nasyncio_default_fixture_loop_scope = function\n"
    (directory / "pytest.ini").write_text(settings, encoding="utf-8")
    for name, text in WHERE.items():
        (directory / f"{name}_test.py").write_text(f"ONCE = {once}\n{BEGIN}{text}{AFTER}", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments]
    done = subprocess.run(
        command, cwd=directory, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=patience(55)
    )
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1) and "INTERNALERROR" not in said, said
    ended: dict[str, Counter[str]] = {name: Counter() for name in WHERE}
    for line in (directory / "reports").read_text(encoding="utf-8").splitlines():
        file, test, outcome = line.split(" ")
        ended[file.removesuffix("_test.py")][f"{test.removeprefix('test_')} {outcome}"] += 1
    return ended


def test_it_ends_one_test_and_all_others_pass(tmp_path: Path) -> None:
    ended = run(tmp_path, False)
    assert {name: found.pop("after passed") for name, found in ended.items()} == dict.fromkeys(WHERE, 5)
    assert ended.pop("a_tear_down") == {"hangs passed": 1, "hangs failed": 1}
    assert ended == {name: {"hangs failed": 1} for name in ended}


def test_it_ends_each_attempt(tmp_path: Path) -> None:
    ended = run(tmp_path, False, "--reruns", "1", "-n", "2")
    assert {name: found.pop("after passed") for name, found in ended.items()} == dict.fromkeys(WHERE, 5)
    assert ended.pop("a_tear_down") == {"hangs passed": 2, "hangs rerun": 1, "hangs failed": 1}
    assert ended == {name: {"hangs rerun": 1, "hangs failed": 1} for name in ended}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_an_attempt_has_all_its_time_whatever_the_one_before_took(tmp_path: Path, workers: str) -> None:
    ended = run(tmp_path, True, "--reruns", "1", "-n", workers)
    assert {name: found.pop("after passed") for name, found in ended.items()} == dict.fromkeys(WHERE, 5)
    ended["a_tear_down"]["hangs passed"] -= 1  # the call itself has, both times
    assert ended == {name: {"hangs rerun": 1, "hangs passed": 1} for name in ended}


@pytest.mark.parametrize(
    "load, wanted", [(0.0, 1.0), (6.0, 1.0), (12.0, 2.0), (40.0, 40 / 6), (400.0, 8.0), (None, 1.0)]
)
def test_a_machine_with_more_to_do_is_given_more_time(
    load: float | None, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> tuple[float, float, float]:
        if load is None:
            raise OSError("not told")
        return load, 0.0, 0.0

    monkeypatch.setattr("os.getloadavg", told)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert slowness() == wanted and patience(40) == 40 * wanted


def called_by(module: str, file: str, then: Callable[[], bool]) -> Callable[[], bool]:
    """A function of this module and file, which calls ``then``."""
    names: dict[str, Any] = {"__name__": module, "then": then}
    exec(compile("def function():\n    return then()", file, "exec"), names)
    function: Callable[[], bool] = names["function"]
    return function


def test_pytest_itself_is_not_interrupted() -> None:
    """What it calls of the library is its own; what a test or a loop calls there is theirs."""

    def library() -> bool:
        return is_of_the_test(sys._getframe().f_back)

    in_library = called_by("re", re.__file__, library)
    in_loop = called_by("asyncio.events", re.__file__, in_library)
    assert in_library() and in_loop()
    in_pytest = called_by("_pytest.runner", pytest.__file__, in_library)
    assert not in_pytest()
    assert called_by("_pytest.runner", pytest.__file__, in_loop)()
    assert called_by("_pytest.runner", pytest.__file__, called_by("some_test", "/else/some_test.py", in_library))()
    assert not called_by("some_test", "/else/some_test.py", in_pytest)()
