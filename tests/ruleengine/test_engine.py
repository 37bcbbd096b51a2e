"""Rules on a running node: selection, order, errors, changes while they run, restart."""

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from taipan.broker.mqtt.message import Message
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.records import ActionMetrics
from taipan.ruleengine.rules.rule_index import CACHED_TOPICS
from taipan.ruleengine.sql.sliced_parsing import SLICE, SlicedParsing, parse_here
from tests.support.rule_engine_node import FAIL, KEEP, rule_engine_node


@pytest.mark.asyncio
async def test_rules_run_in_the_order_of_their_creation_and_once_each() -> None:
    async with rule_engine_node() as node:
        ids = [
            await node.rule(f"SELECT topic FROM {sources}")
            for sources in ('"#"', '"a/b", "a/+", "#"', '"a/b"', '"+/b", "a/#"', '"c"', '"a/b"')
        ]
        client = await node.client()
        await client.publish("a/b")
        assert [row["_rule"] for row in await node.until_kept(5)] == [ids[0], ids[1], ids[2], ids[3], ids[5]]
        await node.engine.rules.update(ids[0], {"description": "still the first"})
        await client.publish("a/b")
        assert [row["_rule"] for row in await node.until_kept(10)][5] == ids[0]


@pytest.mark.asyncio
async def test_a_thousand_rules_on_one_topic() -> None:
    async with rule_engine_node() as node:
        ids = [await node.rule(f'SELECT payload.x as x FROM "t" WHERE x >= {number}') for number in range(1000)]
        client = await node.client()
        await client.publish("t", b'{"x": 499}')
        rows = await node.until_kept(500)
        assert [row["_rule"] for row in rows] == ids[:500]
        assert node.metrics(ids[0]).matched == 1 and node.metrics(ids[999]).no_result == 1


@pytest.mark.asyncio
async def test_a_thousand_rules_on_a_thousand_topics() -> None:
    async with rule_engine_node() as node:
        ids = [await node.rule(f'SELECT topic FROM "t/{number}/+"') for number in range(1000)]
        client = await node.client()
        for number in (0, 500, 999):
            await client.publish(f"t/{number}/x")
        await client.publish("other")
        assert [row["_rule"] for row in await node.until_kept(3)] == [ids[0], ids[500], ids[999]]
        assert sum(node.metrics(id).evaluated for id in ids) == 3


@pytest.mark.asyncio
async def test_the_engine_is_not_called_again_for_a_topic_that_no_rule_wants() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT topic FROM "wanted/#"')
        broker = node.server.broker
        told: list[str] = []
        hear = broker.on_rule_match

        def note(message: Message) -> None:
            told.append(message.topic)
            hear(message)

        broker.on_rule_match = note
        client = await node.client()
        for topic in ("other", "other", "wanted/1", "wanted/1", "other"):
            await client.publish(topic)
        assert [topic for topic in told if not topic.startswith("$SYS/")] == ["other", "wanted/1", "wanted/1"]
        assert len(node.kept) == 2
        await node.engine.rules.update(id, {"rawsql": 'SELECT topic FROM "other"'})
        await client.publish("other")
        assert len(node.kept) == 3


@pytest.mark.asyncio
async def test_a_message_that_a_hook_keeps_back_or_replaces() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT topic FROM "#"')

        def rewrite(message: Message) -> Message | None:
            return None if message.topic == "secret" else Message("new/" + message.topic, message.payload)

        node.server.hooks.message_publish.add(rewrite)
        client = await node.client()
        await client.publish("secret")
        await client.publish("t")
        assert [row["topic"] for row in node.kept] == ["new/t"]


@pytest.mark.asyncio
async def test_the_cache_of_topics_is_bounded() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT topic FROM "t/#"')
        rule_index = node.engine.rule_index
        for number in range(3 * CACHED_TOPICS):
            assert len(rule_index.match(f"t/{number}")) == 1
        assert len(rule_index._recent) + len(rule_index._older) <= 2 * CACHED_TOPICS
        rule_index.match("t/" + "x" * 300)
        assert not any(len(topic) > 256 for topic in rule_index._recent)


@pytest.mark.asyncio
async def test_what_is_counted_of_a_rule() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT payload.x as x FROM "t" WHERE x > 10', KEEP, FAIL)
        client = await node.client()
        for payload in (b'{"x": 11}', b'{"x": 1}', b"no json", b'{"x": 12}'):
            await client.publish("t", payload)
        metrics = node.metrics(id)
        assert msgspec.to_builtins(metrics) == {
            "node": "taipan@127.0.0.1", "matched": 2, "passed": 2, "no_result": 1, "exception": 1, "failed": 2,
            "evaluated": 4, "speed": 0.0, "speed_max": 0.0, "speed_last5m": 0.0,
        }  # fmt: skip
        keep, fail = node.engine.rules.lookup(id).actions
        assert keep.metrics == [ActionMetrics("taipan@127.0.0.1", success=2, failed=0, taken=2)]
        assert fail.metrics == [ActionMetrics("taipan@127.0.0.1", success=0, failed=2, taken=2)]
        assert fail.last_error.reason == "as told"
        counters = node.server.metrics.snapshot()
        assert (counters["rules.matched"], counters["actions.success"], counters["actions.failure"]) == (2, 2, 2)
        error = node.engine.rules.lookup(id).last_error
        assert error.clause == "SELECT" and "JSON" in error.reason and "no json" in error.sample
        node.engine.rules.reset_metrics(id)
        record = node.engine.rules.lookup(id)
        assert record.metrics[0].evaluated == 0 and record.last_error is UNSET
        assert record.actions[0].metrics[0].taken == 0


@pytest.mark.asyncio
async def test_speeds_are_measured_every_ten_seconds() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT * FROM "t"')
        client = await node.client()
        await node.pass_time(20)
        for _ in range(25):
            await client.publish("t")
        await node.pass_time(10)
        assert (node.metrics(id).speed, node.metrics(id).speed_max) == (2.5, 2.5)
        await node.pass_time(10)
        metrics = node.metrics(id)
        assert (metrics.speed, metrics.speed_max) == (0.0, 2.5)
        assert 0 < metrics.speed_last5m < 2.5


@pytest.mark.asyncio
async def test_foreach_runs_every_action_for_every_row() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('FOREACH payload.list AS e DO e.n AS n INCASE e.n > 1 FROM "t"')
        client = await node.client()
        await client.publish("t", b'{"list": [{"n": 1}, {"n": 2}, {"n": 3}]}')
        assert [row["n"] for row in await node.until_kept(2)] == [2, 3]
        await client.publish("t", b'{"list": []}')
        metrics = node.metrics(id)
        assert (metrics.matched, metrics.passed, metrics.no_result) == (2, 1, 1)


@pytest.mark.parametrize("choice, rows, exceptions", [("continue", 2, 0), ("stop", 1, 1)])
@pytest.mark.asyncio
async def test_fallbacks_and_on_action_failed(choice: str, rows: int, exceptions: int) -> None:
    async with rule_engine_node() as node:
        first = {**FAIL, "fallbacks": [{**FAIL, "fallbacks": [KEEP]}]}
        id = await node.rule('SELECT * FROM "t"', first, KEEP, on_action_failed=choice)
        client = await node.client()
        await client.publish("t")
        assert len(node.kept) == rows
        assert node.metrics(id).exception == exceptions
        fallback = node.engine.rules.lookup(id).actions[0].fallbacks[0]
        assert fallback.metrics[0].failed == 1
        assert fallback.fallbacks[0].metrics[0].success == 1


@pytest.mark.parametrize("how", ["delete", "disable"])
@pytest.mark.asyncio
async def test_a_rule_that_goes_while_it_runs(how: str) -> None:
    async with rule_engine_node() as node:
        first = await node.rule('SELECT * FROM "t"', KEEP, KEEP)
        second = await node.rule('SELECT * FROM "t"')

        def go(rule_id: str) -> None:
            book = node.engine.rules
            if rule_id == first:
                if how == "delete":
                    book._delete(first)
                    book._delete(second)
                else:
                    for id in (first, second):
                        asyncio.get_running_loop().create_task(node.engine.rules.update(id, {"enabled": False}))

        node.on_keep = go
        client = await node.client()
        await client.publish("t")
        await client.publish("t")
        if how == "delete":
            assert [row["_rule"] for row in node.kept] == [first]
            assert node.engine.rules.records() == []
        else:
            assert [row["_rule"] for row in node.kept] == [first, first, second]
            assert not any(record.enabled for record in node.engine.rules.records())
        assert len(node.closed) == 3


@pytest.mark.asyncio
async def test_a_change_keeps_the_counters_and_refusals_change_nothing() -> None:
    async with rule_engine_node() as node:
        await node.stand_still()  # no tick at which speeds are measured
        id = await node.rule('SELECT * FROM "t"')
        client = await node.client()
        await client.publish("t")
        before = node.engine.rules.lookup(id)
        for changes in (
            {"rawsql": "SELECT"},
            {"actions": [{"name": "nobody", "params": {}}]},
            {"on_action_failed": "maybe"},
            {"rawsql": 'SELECT * FROM "$events/nothing"'},
        ):
            with pytest.raises(RuleEngineError):
                await node.engine.rules.update(id, changes)
        assert node.engine.rules.lookup(id) == before
        after = await node.engine.rules.update(id, {"rawsql": 'SELECT * FROM "u"', "description": "d"})
        assert (after.sources, after.description, after.metrics[0].matched) == (["u"], "d", 1)
        await client.publish("t")
        await client.publish("u")
        assert node.metrics(id).matched == 2 and len(node.kept) == 2


@pytest.mark.parametrize(
    "sql, actions, more, kind, words",
    [
        ("SELECT FROM", [], {}, "wrong", "line 1, column 8"),
        ('SELECT nothing(1) FROM "t"', [], {}, "wrong", "nothing"),
        ('SELECT abs(1, 2) FROM "t"', [], {}, "wrong", "abs"),
        ('SELECT * FROM "$events/nothing"', [], {}, "wrong", "$events/"),
        ('SELECT * FROM "$events/message_publish"', [], {}, "wrong", "message_publish"),
        ('SELECT * FROM "a/#/b"', [], {}, "wrong", "topic filter"),
        ('SELECT * FROM "t"', [{"params": {}}], {}, "missing", "name"),
        ('SELECT * FROM "t"', [{"name": "keep"}], {}, "missing", "params"),
        ('SELECT * FROM "t"', [{"name": "nobody", "params": {}}], {}, "unknown", "nobody"),
        ('SELECT * FROM "t"', [{"name": "data_to_webserver", "params": {}}], {}, "missing", "$resource"),
        (
            'SELECT * FROM "t"',
            [{"name": "data_to_webserver", "params": {"$resource": "resource:no"}}],
            {},
            "unknown",
            "resource:no",
        ),
        ('SELECT * FROM "t"', [{**KEEP, "fallbacks": [{"name": "nobody", "params": {}}]}], {}, "unknown", "nobody"),
        ('SELECT * FROM "t"', [KEEP] * 101, {}, "wrong", "100"),
        ('SELECT * FROM "t"', [], {"id": ""}, "wrong", "id"),
        ('SELECT * FROM "t"', [], {"on_action_failed": "later"}, "wrong", "on_action_failed"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_refused_at_creation(sql: str, actions: Any, more: Any, kind: str, words: str) -> None:
    async with rule_engine_node() as node:
        with pytest.raises(RuleEngineError) as refused:
            await node.engine.rules.create(sql, actions, **more)
        assert refused.value.kind == kind
        assert words in refused.value.message and "\n" not in refused.value.message
        assert node.engine.rules.records() == []


@pytest.mark.asyncio
async def test_ids() -> None:
    async with rule_engine_node(rules={"max_rules": 2}) as node:
        assert await node.rule('SELECT * FROM "t"', id="mine") == "mine"
        with pytest.raises(RuleEngineError) as refused:
            await node.rule('SELECT * FROM "t"', id="mine")
        assert refused.value.kind == "exists"
        made = await node.rule('SELECT * FROM "t"')
        assert made.startswith("rule:") and len(made) == 13
        action = node.engine.rules.lookup(made).actions[0].id
        assert action.startswith("keep_") and action.removeprefix("keep_").isdigit()
        with pytest.raises(RuleEngineError, match="max_rules"):
            await node.rule('SELECT * FROM "t"')
        for ask in (node.engine.rules.delete("no"), node.engine.rules.update("no", {})):
            with pytest.raises(RuleEngineError) as refused:
                await ask
            assert refused.value.kind == "unknown"


@pytest.mark.asyncio
async def test_rules_survive_a_restart(tmp_path: Path) -> None:
    level = {"durability": {"level": "disk"}, "data_dir": str(tmp_path)}
    async with rule_engine_node(**level) as node:  # type: ignore[arg-type]
        first = await node.rule('SELECT payload.x as x FROM "t"', KEEP, description="one")
        second = await node.rule('SELECT * FROM "t"', enabled=False)
        third = await node.rule('SELECT topic FROM "t"', {**KEEP, "fallbacks": [KEEP]})
        gone = await node.rule('SELECT * FROM "t"')
        await node.engine.rules.delete(gone)
        assert await node.server.tables.stored()
        before = node.engine.rules.records()
    async with rule_engine_node(**level) as node:  # type: ignore[arg-type]
        # The test's own actions are registered before the start, as an operator's are.
        assert node.engine.rules.records() == before
        assert [rule.id for rule in node.engine.rules.records()] == [first, second, third]
        client = await node.client()
        await client.publish("t", b'{"x": 5}')
        assert [row["_rule"] for row in await node.until_kept(2)] == [first, third]
        assert node.kept[0]["x"] == 5
        later = await node.rule('SELECT * FROM "t"')
        assert node.engine.rules.records()[-1].id == later


@pytest.mark.asyncio
async def test_a_stored_rule_that_cannot_run_says_why(tmp_path: Path) -> None:
    level = {"durability": {"level": "disk"}, "data_dir": str(tmp_path)}
    async with rule_engine_node(**level) as node:  # type: ignore[arg-type]
        id = await node.rule('SELECT * FROM "t"')
        row = node.engine.rules.stored()[0]
        broken = msgspec.structs.replace(row, id="broken", rawsql="SELECT gone(1) FROM t", order=9)
        action = msgspec.structs.replace(row.actions[0], name="gone")
        orphan = msgspec.structs.replace(row, id="orphan", actions=(action,), order=10)
        node.engine.rules._table.put("broken", broken)
        node.engine.rules._table.put("orphan", orphan)
        assert await node.server.tables.stored()
    node_logs: list[str] = []
    async with rule_engine_node(**level) as node:  # type: ignore[arg-type]
        node_logs, node._complaints.records = node._complaints.records, []
        records = {record.id: record for record in node.engine.rules.records()}
        assert records[id].enabled and records[id].suspended is UNSET
        assert not records["broken"].enabled and "gone" in records["broken"].suspended
        assert not records["orphan"].enabled and "gone" in records["orphan"].suspended
        node.engine.action_types["gone"] = node.engine.action_types["keep"]
        await node.pass_time(10)
        assert node.engine.rules.lookup("orphan").enabled
        await node.engine.rules.update("broken", {"rawsql": 'SELECT 1 as n FROM "t"'})
        client = await node.client()
        await client.publish("t")
        assert len(await node.until_kept(3)) == 3
    assert any("rule_unusable rule=broken" in line for line in node_logs)


@pytest.mark.asyncio
async def test_a_trace_is_kept_only_while_asked_for() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT payload.x as x FROM "t" WHERE x > 1', KEEP, FAIL)
        client = await node.client("tracer")
        await client.publish("t", b'{"x": 2}')
        assert node.engine.rules.traced(id) == []
        node.engine.rules.trace(id, 3)
        for payload in (b'{"x": 9}', b'{"x": 2}', b'{"x": 1}', b"{"):
            await client.publish("t", payload)
        passed, refused, broken = node.engine.rules.traced(id)
        assert (passed.outcome, passed.rows, passed.topic, passed.clientid) == (
            "passed", ['{"x":2}'], "t", "tracer",
        )  # fmt: skip
        assert [each.outcome for each in passed.actions] == ["success", "failed"]
        assert refused.outcome == "no_result"
        assert broken.outcome == "exception" and broken.reason.startswith("SELECT: ")
        node.engine.rules.trace(id, 0)
        assert node.engine.rules.traced(id) == []
        with pytest.raises(RuleEngineError):
            node.engine.rules.trace(id, 1000)


class Turns:
    """Counts the turns of the loop for as long as the block lasts."""

    async def __aenter__(self) -> "Turns":
        self.count = 0
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.count += 1


@pytest.mark.asyncio
async def test_a_long_statement_is_parsed_in_slices() -> None:
    """From the first one on, without another process, and other work goes on."""
    fields = ", ".join(f"payload.x{number} as x{number}" for number in range(150))
    async with rule_engine_node() as node:
        async with Turns() as turns:
            id = await node.rule(f'SELECT {fields} FROM "t"')
        tokens = 6 * 150
        assert turns.count >= tokens // SLICE
        assert not multiprocessing.active_children()
        client = await node.client()
        await client.publish("t", b'{"x7": 7}')
        assert (await node.until_kept(1))[0]["x7"] == 7
        for wrong in (f"SELECT {fields}, FROM t", f"SELECT {fields} FROM %"):
            async with Turns() as turns:
                with pytest.raises(RuleEngineError) as refused:
                    await node.engine.rules.update(id, {"rawsql": wrong})
            assert refused.value.line == 1 and refused.value.column > 1024
            assert turns.count >= tokens // SLICE


@pytest.mark.asyncio
async def test_of_several_long_statements_one_is_parsed_at_a_time() -> None:
    parsing = SlicedParsing()
    sql = f'SELECT {", ".join(f"payload.x{number} as x{number}" for number in range(150))} FROM "t"'
    async with Turns() as alone:
        await parsing.parse(sql)
    async with Turns() as together:
        statements = await asyncio.gather(*(parsing.parse(sql) for _ in range(5)))
    assert together.count >= 5 * (alone.count - 1) > alone.count
    assert all(each == parse_here(sql) for each in statements)


@pytest.mark.asyncio
async def test_who_no_longer_waits_for_a_statement_holds_up_nobody() -> None:
    parsing = SlicedParsing()
    sql = f'SELECT {", ".join(f"payload.x{number} as x{number}" for number in range(150))} FROM "t"'
    first = asyncio.create_task(parsing.parse(sql))
    second = asyncio.create_task(parsing.parse(sql))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == parse_here(sql)


@pytest.mark.asyncio
async def test_a_rule_that_takes_too_much_fails_alone() -> None:
    async with rule_engine_node(rules={"max_steps": 50}) as node:
        greedy = await node.rule('FOREACH payload.list AS e DO e FROM "t"')
        modest = await node.rule('SELECT topic FROM "t"')
        subscriber = await node.client()
        await subscriber.subscribe("t")
        client = await node.client()
        await client.publish("t", b'{"list": [1,2,3,4,5,6,7,8,9]}')
        await subscriber.expect_publish("t")
        assert node.metrics(greedy).exception == 1 and "steps" in node.engine.rules.lookup(greedy).last_error.reason
        assert node.metrics(modest).passed == 1


@pytest.mark.asyncio
async def test_gauges() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT * FROM "t"')
        stats = node.server.stats.snapshot()
        assert (stats["rules.count"], stats["resources.count"]) == (1, 0)
        assert stats["actions.count"] == len(node.engine.action_types)


@pytest.mark.asyncio
async def test_closing_twice_is_harmless() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT topic FROM "a"')
        (id,) = [rule.id for rule in node.engine.rules.records()]
        action = node.engine.rules.lookup(id).actions[0].id
        await node.engine.close()
        await node.engine.close()
        assert node.closed == [action]
        assert "rules.count" not in node.server.stats.snapshot()
