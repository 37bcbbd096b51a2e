"""What one message may cost, however many rules and actions it meets."""

from __future__ import annotations

import logging

import pytest

from taipan.broker.core.broker import PUBLISH_STEPS
from tests.support.rule_engine_node import KEEP, RuleEngineNode, rule_engine_node
from tests.support.waiting import LoopIterations
from tests.support.wire import Publish, encode

pytestmark = pytest.mark.asyncio

SHORT = {"max_time": 1e-9}


def spend(node: RuleEngineNode, rule_id: str) -> list[float]:
    """Processor time of the node, a list of one: a row kept for a rule takes a second of it."""
    spent = [0.0]

    def kept(which: str) -> None:
        if which == rule_id:
            spent[0] += 1.0

    node.on_keep = kept
    node.engine.runtime.processor_time = lambda: spent[0]
    return spent


async def test_rules_that_come_too_late_are_left_out_for_this_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taipan.ruleengine")
    async with rule_engine_node(rules=SHORT) as node:
        ids = [await node.rule('SELECT topic FROM "t"') for _ in range(4)]
        node.engine.rules.trace(ids[3])
        spend(node, ids[1])
        client = await node.client()
        await client.publish("t", b"1", 1)
        assert [row["_rule"] for row in node.kept] == ids[:2]
        assert [node.metrics(each).exception for each in ids] == [0, 0, 1, 1]
        reason = node.engine.rules.lookup(ids[2]).last_error.reason
        assert reason.startswith("not evaluated") and "ruleengine.max_time" in reason
        (evaluation,) = node.engine.rules.traced(ids[3])
        assert evaluation.outcome == "exception" and "ruleengine.max_time" in evaluation.reason
        assert caplog.text.count("rule_failed") == 2
        node.engine.runtime.processor_time = lambda: 0.0
        await client.publish("t", b"2", 1)  # the next message has its own time
        assert [row["_rule"] for row in node.kept[2:]] == ids


async def test_time_that_others_took_of_the_processor_is_not_counted() -> None:
    async with rule_engine_node(rules=SHORT) as node:
        ids = [await node.rule('SELECT topic FROM "t"') for _ in range(3)]
        node.engine.runtime.processor_time = lambda: 5.0
        await (await node.client()).publish("t", b"1", 1)
        assert [row["_rule"] for row in node.kept] == ids


async def test_rows_and_actions_that_come_too_late_are_left_out() -> None:
    async with rule_engine_node(rules=SHORT) as node:
        rule = await node.rule('FOREACH payload.l FROM "t"', KEEP, KEEP)
        spend(node, rule)
        await (await node.client()).publish("t", b'{"l":[1,2,3]}', 1)
        assert len(node.kept) == 1
        assert node.metrics(rule).exception == 1
        assert "not all actions were run" in node.engine.rules.lookup(rule).last_error.reason


async def test_what_a_republished_message_leads_to_counts_as_well() -> None:
    again = {"name": "republish", "params": {"target_topic": "u", "target_qos": 0, "payload_tmpl": "x"}}
    async with rule_engine_node(rules=SHORT) as node:
        first = await node.rule('SELECT topic FROM "t"', again)
        second = await node.rule('SELECT topic FROM "u"')
        third = await node.rule('SELECT topic FROM "t"')
        spend(node, second)
        await (await node.client()).publish("t", b"1", 1)
        assert [node.metrics(each).exception for each in (first, second, third)] == [0, 0, 1]


async def test_what_rules_cost_counts_for_the_turn_of_the_loop() -> None:
    """So that a connection whose messages are dear stops being read until the others had theirs."""
    async with rule_engine_node() as node:
        await node.rule('FOREACH payload.l DO 1 as x INCASE item < 0 FROM "t"')
        turn = node.server.broker.budget
        taken: list[int] = []
        node.server.broker.hooks.message_dropped.add(lambda message, reason: taken.append(turn.deliveries))
        await (await node.client()).publish("t", b'{"l":[' + b"1," * 1899 + b"1]}", 1)
        assert taken == [19_000 // 4 + PUBLISH_STEPS]


async def test_messages_that_are_dear_have_a_turn_of_the_loop_each() -> None:
    """Fifty at once, each of a full evaluation: whoever else is connected is served between any two."""
    async with rule_engine_node() as node:
        await node.rule('FOREACH [1..1900] as e DO e INCASE e < 0 FROM "t"')
        seen: list[int] = []
        iterations = LoopIterations()
        node.server.broker.hooks.message_dropped.add(lambda message, reason: seen.append(iterations.count))
        client = await node.client()
        await client.send(b"".join(encode(Publish("t", b"x"), 5) for _ in range(50)))
        await client.ping()
        iterations.stop()
        assert len(seen) == 50
        assert len(set(seen)) == 50
