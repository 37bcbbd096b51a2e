"""The operator's own Python: the example of docs/extend-rules.md, configured and by entry point, and what stops a
start."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from taipan.broker.loop.clock import Clock
from taipan.broker.server import Server
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine
from taipan.ruleengine.functions.registry import FUNCTIONS
from taipan.ruleengine.types.operator_modules import OperatorModuleError, load_operator_modules
from tests.support.node import make_settings
from tests.support.rule_engine_node import rule_engine_node

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extend-rules.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    before = dict(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    FUNCTIONS.clear()
    FUNCTIONS.update(before)
    for name in ("my_rules", "bad_rules"):
        sys.modules.pop(name, None)


def example() -> str:
    found = re.search(r"(?s)```python\n(.*?)```", PAGE.read_text("utf-8"))
    assert found is not None
    return found[1]


@pytest.mark.asyncio
async def test_the_example_of_the_docs(folder: Path) -> None:
    (folder / "my_rules.py").write_text(example(), "utf-8")
    async with rule_engine_node(rules={"functions": [{"module": "my_rules"}]}) as node:
        count = {"name": "count_words", "params": {"field": "note"}}
        id = await node.rule(
            'SELECT celsius(payload.f) as c, shorten(payload.note) as short, payload.note as note FROM "t"',
            count,
            {"name": "keep", "params": {}},
        )
        client = await node.client()
        await client.publish("t", b'{"f": 212, "note": "a longer note"}')
        await client.publish("t", b'{"f": 32, "note": 7}')
        row = (await node.until_kept(1))[0]
        assert (row["c"], row["short"]) == (100.0, "a longer")
        assert node.metrics(id).exception == 1
        words: Any = node.engine.rules.get(id).actions[0].instance
        assert words.words == 3
        assert node.engine.action_type("count_words").record().title.en == "Count words"


def install(folder: Path, name: str, **points: str) -> None:
    """A distribution with these entry points, by group."""
    made = folder / f"{name}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (made / "entry_points.txt").write_text(
        "".join(f"[taipan.{group}]\n{name} = {value}\n" for group, value in points.items()), "utf-8"
    )


def test_entry_points(folder: Path) -> None:
    (folder / "my_rules.py").write_text(example(), "utf-8")
    assert load_operator_modules([]) == ([], [])
    install(folder, "one", rule_functions="my_rules")
    assert [each.name for each in load_operator_modules([]).actions] == ["count_words"]
    assert "celsius" in FUNCTIONS
    install(folder, "two", rule_actions="my_rules:ACTIONS")
    with pytest.raises(OperatorModuleError, match="entry point two"):
        load_operator_modules([])
    module: ModuleType = sys.modules["my_rules"]
    module.WORDS = module.ACTIONS[0]  # type: ignore[attr-defined]
    shutil.rmtree(folder / "two-1.0.dist-info")
    install(folder, "three", rule_actions="my_rules:WORDS")
    assert [each.name for each in load_operator_modules([]).actions] == ["count_words"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("from taipan.ruleengine.functions.registry import register\n@register('abs')\ndef f():\n    return 1", "abs"),
        ("ACTIONS = ['text']", "ACTIONS"),
        ("from taipan.ruleengine.actions.debug import INSPECT\nACTIONS = [INSPECT]", "inspect"),
    ],
)
def test_a_module_that_cannot_be_used(folder: Path, text: str, words: str) -> None:
    (folder / "bad_rules.py").write_text(text, "utf-8")
    settings = msgspec.convert({"functions": [{"module": "bad_rules"}]}, RuleEngineSettings)
    with pytest.raises(OperatorModuleError) as refused:
        RuleEngine(Server(make_settings(), Clock()), settings)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_the_node_says_it_in_one_line(folder: Path) -> None:
    data = folder / "data"
    settings = [f"--set=node.data_dir={data}", "--set=ruleengine.functions.0.module=no_such_module"]
    command = [sys.executable, "-m", "taipan.management.node", *settings]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("taipan:")]
    assert "no_such_module" in line
