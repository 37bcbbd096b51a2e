"""Trying SQL: examples stand in for columns, nothing runs and nothing counts."""

from typing import Any

import pytest

from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.events.kinds import KINDS
from tests.support.rule_engine_node import rule_engine_node


@pytest.mark.parametrize("kind", KINDS, ids=[kind.topic.removeprefix("$events/") for kind in KINDS])
@pytest.mark.asyncio
async def test_the_example_of_every_event_matches(kind: Any) -> None:
    async with rule_engine_node() as node:
        found = await node.engine.rules.test_sql(kind.sql_example, {})
        if kind.topic.endswith("publish"):
            assert found == {"msg": "hello"}
        else:
            assert set(kind.examples) <= set(found) and found["event"] == kind.name
        assert node.engine.rules.records() == []


@pytest.mark.parametrize(
    "sql, ctx, expected",
    [
        ('SELECT clientid, topic FROM "t/#"', {}, {"clientid": "c_emqx", "topic": "t/a"}),
        ('SELECT payload.x as x FROM "a"', {"topic": "a", "payload": '{"x": 3}'}, {"x": 3}),
        ('SELECT payload.x as x FROM "a"', {"topic": "a", "payload": {"x": 3}}, {"x": 3}),
        ('FOREACH payload.l AS e DO e AS n FROM "t/#"', {"payload": '{"l":[1,2]}'}, [{"n": 1}, {"n": 2}]),
        ('FOREACH payload.l AS e FROM "t/#"', {"payload": '{"l":[]}'}, []),
        ('FOREACH payload.l AS e INCASE e > 2 FROM "t/#"', {"payload": '{"l":[1,2]}'}, []),
        ('FOREACH payload.none AS e FROM "t/#"', {"payload": "{}"}, []),
        ('SELECT payload.x as x, null() as n FROM "t/#"', {"payload": "{}"}, {"x": None, "n": None}),
        ('FOREACH payload.l AS e DO e.x AS x FROM "t/#"', {"payload": '{"l":[{}]}'}, [{"x": None}]),
        ('SELECT reason FROM "$events/client_disconnected"', {"reason": "kicked"}, {"reason": "kicked"}),
    ],
)
@pytest.mark.asyncio
async def test_what_it_answers(sql: str, ctx: dict[str, Any], expected: Any) -> None:
    async with rule_engine_node() as node:
        assert await node.engine.rules.test_sql(sql, ctx) == expected


@pytest.mark.parametrize(
    "sql, ctx, kind, words",
    [
        ('SELECT * FROM "other"', {}, "unknown", "SQL Not Match"),
        ('SELECT * FROM "t/#" WHERE qos = 2', {}, "unknown", "SQL Not Match"),
        ('SELECT payload.x FROM "t/#"', {"payload": "{"}, "wrong", "SELECT"),
        ("SELECT", {}, "wrong", "line 1"),
        ('SELECT nothing() FROM "t"', {}, "wrong", "nothing"),
        ('FOREACH payload.l FROM "t/#" WHERE qos = 2', {"payload": '{"l":[1]}'}, "unknown", "SQL Not Match"),
        ('SELECT * FROM "$share/g/t/#"', {}, "wrong", "$share/g/t/#"),
        ('SELECT * FROM "t", "$queue/t"', {}, "wrong", "line 1, column 20"),
        ('SELECT * FROM "t/#"', {"topic": 7}, "unknown", "SQL Not Match"),
    ],
)
@pytest.mark.asyncio
async def test_what_it_refuses(sql: str, ctx: dict[str, Any], kind: str, words: str) -> None:
    async with rule_engine_node() as node:
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.rules.test_sql(sql, ctx)
        assert refused.value.kind == kind and words in refused.value.message
