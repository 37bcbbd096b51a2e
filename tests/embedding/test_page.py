"""docs/python.md: its examples run, are typed, and it has every public name and hook."""

import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest

import taipan
from taipan import Node

from .test_node import MEMORY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
EXAMPLES = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_run(example: str) -> None:
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/python.md", "exec"), names)
    for case in list(names.values()):
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
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
