"""What is given to the engine in a wrong type, or could not be stored, is refused, and nothing of it stays."""

from __future__ import annotations

from typing import Any

import pytest

from taipan.ruleengine.error import WRONG, RuleEngineError
from tests.support.rule_engine_node import KEEP, rule_engine_node

pytestmark = pytest.mark.asyncio

SQL = 'SELECT 1 as x FROM "t"'
HUGE = 10**400
BROKEN = "\ud800"
HOOK = {"url": "http://127.0.0.1:1/"}


def inspect(value: Any) -> list[dict[str, Any]]:
    return [{"name": "inspect", "params": {"x": value}}]


@pytest.mark.parametrize(
    "arguments",
    [
        {"rawsql": None}, {"rawsql": 1}, {"rawsql": ["SELECT"]}, {"rawsql": BROKEN}, {"rawsql": b"SELECT"},
        {"actions": None}, {"actions": 1}, {"actions": "x"}, {"actions": {"name": "keep"}}, {"actions": [1]},
        {"actions": [{"name": "keep", "params": {}, "fallbacks": 1}]},
        {"actions": inspect(HUGE)}, {"actions": inspect(BROKEN)}, {"actions": inspect({BROKEN: 1})},
        {"actions": inspect(1j)},
        {"id": 1}, {"id": ""}, {"id": BROKEN}, {"description": 1}, {"description": BROKEN}, {"enabled": "yes"},
        {"enabled": None}, {"on_action_failed": 1}, {"on_action_failed": []},
    ],
    ids=repr,
)  # fmt: skip
async def test_rule(arguments: dict[str, Any]) -> None:
    async with rule_engine_node() as node:
        given: dict[str, Any] = {"rawsql": SQL, "actions": [KEEP], **arguments}
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.rules.create(**given)
        assert refused.value.kind == WRONG
        assert node.engine.rules.records() == [] and not node.engine.rule_index.wants_messages
        rule = await node.rule(SQL)
        before = node.engine.rules.lookup(rule)
        if not arguments.keys() & {"id"} and None not in arguments.values():  # None: leave it as it is
            with pytest.raises(RuleEngineError):
                await node.engine.rules.update(rule, arguments)
        assert node.engine.rules.lookup(rule) == before


@pytest.mark.parametrize(
    "type, config, more",
    [
        (None, HOOK, {}), (1, HOOK, {}), ("web_hook", [], {}), ("web_hook", None, {}), ("web_hook", HOOK, {"id": 1}),
        ("web_hook", HOOK, {"id": BROKEN}), ("web_hook", HOOK, {"description": 5}),
        ("web_hook", {"url": f"http://{BROKEN}/"}, {}), ("web_hook", {**HOOK, "other": HUGE}, {}),
        ("web_hook", {**HOOK, "headers": {"a": BROKEN}}, {}),
    ],
    ids=repr,
)  # fmt: skip
async def test_resource(type: Any, config: Any, more: dict[str, Any]) -> None:
    async with rule_engine_node() as node:
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.resources.create(type, config, **more)
        assert refused.value.kind == WRONG
        assert node.engine.resources.records() == []
        if not more:
            with pytest.raises(RuleEngineError):
                await node.engine.resources.test(type, config)


@pytest.mark.parametrize("rawsql, ctx", [(1, {}), (None, {}), (SQL, None), (SQL, [1]), (SQL, "x"), (BROKEN, {})])
async def test_trying_sql(rawsql: Any, ctx: Any) -> None:
    async with rule_engine_node() as node:
        with pytest.raises(RuleEngineError):
            await node.engine.rules.test_sql(rawsql, ctx)


@pytest.mark.parametrize("size", [None, "1", 1.5, -1, 101])
async def test_trace(size: Any) -> None:
    async with rule_engine_node() as node:
        rule = await node.rule(SQL)
        with pytest.raises(RuleEngineError):
            node.engine.rules.trace(rule, size)
