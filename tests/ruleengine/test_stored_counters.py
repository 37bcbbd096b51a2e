"""Figures of rules and actions go on over a restart: written at ticks and at the stop, never for a message."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.rule_engine_node import FAIL, KEEP, RuleEngineNode, rule_engine_node

pytestmark = pytest.mark.asyncio

SQL = 'SELECT payload.x as x FROM "t" WHERE x > 1'


def config(tmp_path: Path) -> dict[str, Any]:
    return {"data_dir": str(tmp_path), "durability": {"level": "disk"}}


async def some(node: RuleEngineNode) -> None:
    client = await node.client()
    for payload in (b'{"x": 1}', b'{"x": 2}', b'{"x": 3}', b"no JSON"):
        await client.publish("t", payload, 1)


def figures(node: RuleEngineNode) -> dict[str, Any]:
    record = node.engine.rules.lookup("r")
    of_rule = {
        key: value for key, value in msgspec.structs.asdict(record.metrics[0]).items() if not key.startswith("speed")
    }
    failing = record.actions[1]
    return of_rule | {
        "keep": record.actions[0].metrics[0].success,
        "fail": failing.metrics[0].failed,
        "fallback": failing.fallbacks[0].metrics[0].taken,
    }


async def test_they_go_on_after_a_restart_and_end_with_the_rule(tmp_path: Path) -> None:
    async with rule_engine_node(**config(tmp_path)) as node:
        await node.rule(SQL, KEEP, {**FAIL, "fallbacks": [KEEP]}, id="r")
        await some(node)
        before = figures(node)
        assert (before["matched"], before["no_result"], before["exception"], before["fallback"]) == (2, 1, 1, 2)
    async with rule_engine_node(**config(tmp_path)) as node:
        assert figures(node) == before
        node.engine.rules.tick()
        assert node.engine.rules.lookup("r").metrics[0].speed == 0.0
        await some(node)
        assert figures(node) == {key: 2 * value if isinstance(value, int) else value for key, value in before.items()}
    async with rule_engine_node(**config(tmp_path)) as node:
        assert figures(node)["matched"] == 4
        node.engine.rules.reset_metrics("r")
    async with rule_engine_node(**config(tmp_path)) as node:
        assert figures(node)["matched"] == figures(node)["keep"] == 0
        await node.engine.rules.delete("r")
        await node.rule(SQL, id="r")
        assert node.metrics("r").matched == 0


async def test_a_tick_writes_what_has_changed_and_a_message_nothing(tmp_path: Path) -> None:
    async with rule_engine_node(**config(tmp_path)) as node:
        await node.stand_still()
        await node.rule(SQL, id="r")
        await node.rule('SELECT * FROM "other"', id="quiet")
        table = node.engine.rules._counted._table
        await some(node)
        assert len(table) == 0
        node.engine.rules.tick()
        assert dict(table.items()).keys() == {"r"}


async def test_a_tick_writes_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.ruleengine.stored.counters._MAX_ROWS_PER_TICK", 2)
    async with rule_engine_node(**config(tmp_path)) as node:
        await node.stand_still()
        for number in range(5):
            await node.rule('SELECT * FROM "t"', id=f"r{number}")
        await (await node.client()).publish("t", b"x", 1)
        written = []
        for _ in range(3):
            node.engine.rules.tick()
            written.append(len(node.engine.rules._counted._table))
        assert written == [2, 4, 5]


async def test_nothing_is_kept_at_level_memory() -> None:
    async with rule_engine_node() as node:
        await node.rule(SQL, id="r")
        await some(node)
        node.engine.rules.tick()
        assert len(node.engine.rules._counted._table) == 0
