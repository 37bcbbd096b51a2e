"""docs/python.md and docs/testing-an-mqtt-application.md: examples run, are typed, and names are complete."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest

import taipan
from taipan import Node
from taipan.testing import Broker

from .test_node import MEMORY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
TESTING = (ROOT / "docs" / "testing-an-mqtt-application.md").read_text("utf-8")
EXAMPLES = [each for page in (PAGE, TESTING) for each in re.findall(r"(?ms)^```python\n(.*?)^```$", page)]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example: str) -> None:
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/python.md", "exec"), names)
    for name, case in list(names.items()):
        if name.startswith("test_") and callable(case):
            with Broker() as broker:
                case(broker)
        if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == "example":
            result = unittest.defaultTestLoader.loadTestsFromTestCase(case).run(unittest.TestResult())
            assert result is not None and result.testsRun and result.wasSuccessful(), result.errors + result.failures


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_examples_are_typed(tmp_path: Path) -> None:
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example, "utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "--follow-imports=silent",
            "--config-file",
            "",
            *sorted(tmp_path.glob("*.py")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_has_every_name() -> None:
    hooks = [name for name in vars(Node(**MEMORY)) if name.startswith("on_")]
    methods = [name for name in dir(Node) if not name.startswith("_")]
    missing = [name for name in [*taipan.__all__, *hooks, *methods] if not re.search(rf"\b{name}\b", PAGE)]
    assert missing == ["__version__"]
    methods = [name for name in dir(Broker) if not name.startswith("_") and name not in ("start", "stop")]
    assert [name for name in methods if not re.search(rf"\bbroker\.{name}\b", TESTING)] == []
