"""``inspect`` writes what there is to see; ``do_nothing`` only counts."""

import logging

import pytest

from tests.support.rule_engine_node import rule_engine_node


@pytest.mark.asyncio
async def test_inspect(caplog: pytest.LogCaptureFixture) -> None:
    async with rule_engine_node() as node:
        with caplog.at_level(logging.INFO, "taipan.ruleengine"):
            id = await node.rule('SELECT payload.x as x FROM "t"', {"name": "inspect", "params": {"a": 1}})
            client = await node.client("watched")
            await client.publish("t", b'{"x": 7}')
        (line,) = [line for line in caplog.messages if line.startswith("rule_inspect")]
        record = node.engine.rules.lookup(id).actions[0]
        assert f"rule={id} action={record.id}" in line
        assert 'selected={"x":7}' in line and '"clientid":"watched"' in line and "params={'a': 1}" in line
        assert record.params == {"a": 1} and record.metrics[0].success == 1


@pytest.mark.asyncio
async def test_inspect_of_a_binary_payload(caplog: pytest.LogCaptureFixture) -> None:
    async with rule_engine_node() as node:
        with caplog.at_level(logging.INFO, "taipan.ruleengine"):
            await node.rule('SELECT payload FROM "t"', {"name": "inspect", "params": {}})
            client = await node.client()
            await client.publish("t", b"\xff\n")
        (line,) = [line for line in caplog.messages if line.startswith("rule_inspect")]
        assert 'selected={"payload":"/wo="}' in line


@pytest.mark.asyncio
async def test_do_nothing() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT * FROM "t"', {"name": "do_nothing", "params": {}})
        client = await node.client()
        await client.publish("t")
        assert node.engine.rules.lookup(id).actions[0].metrics[0].success == 1
