"""A test that fails and passes when it runs once more, as the continuous integration lets it: the report says why."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import patience

ROOT = Path(__file__).resolve().parents[1]

CONFTEST = """
from tests.support.reruns import explain_reruns

def pytest_terminal_summary(terminalreporter):
    explain_reruns(terminalreporter)
"""

TESTS = """
from pathlib import Path

def test_steady():
    pass

def test_unsteady(request):
    mark = Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        assert request.node.name == "what it was"
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_report_has_the_reason(tmp_path: Path, workers: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8")
    (tmp_path / "test_two.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    command += ["--reruns", "1", "-rR", "-n", workers]
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patience(55))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 rerun" in done.stdout and "RERUN test_two.py::test_unsteady" in done.stdout
    reason = done.stdout.partition("tests that ran once more")[2]
    assert "test_two.py::test_unsteady (call)" in reason
    assert "AssertionError: assert 'test_unsteady' == 'what it was'" in reason
    assert "test_steady" not in reason
