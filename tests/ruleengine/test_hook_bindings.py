"""What rules are told: before they are there, and of one message to many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.message import Message
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.events import columns
from taipan.ruleengine.functions.values import read_json
from tests.support.node import make_settings
from tests.support.rule_engine_node import RuleEngineNode, rule_engine_node

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("rules", [0, 1])
async def test_what_is_published_while_the_node_restores_itself(tmp_path: Path, rules: int) -> None:
    """Seen by the rules once, in order, when they are taken up; forgotten where no rule asks for messages."""
    directory = {"data_dir": str(tmp_path)}
    async with rule_engine_node(node=directory, durability={"level": "disk"}) as first:
        for _ in range(rules):
            await first.rule('SELECT payload FROM "wills/#"')
    node = RuleEngineNode(
        make_settings(None, [{"type": "tcp"}], node=directory, durability={"level": "disk"}), RuleEngineSettings()
    )

    def restored() -> None:
        for number in range(3):
            node.server.broker.publish(Message("wills/1", b"%d" % number))
        node.server.broker.publish(Message("other", b""))

    node.server.on_recovered.insert(0, restored)
    await node.start()
    try:
        assert [row["payload"] for row in node.kept] == ["0", "1", "2"] * rules
        await (await node.client()).publish("wills/2", b"3", 1)
        assert [row["payload"] for row in node.kept] == ["0", "1", "2", "3"] * rules
        assert (node.server.broker.rule_index is not None) == bool(rules)
    finally:
        await node.stop()


async def test_a_payload_is_decoded_once_for_all_who_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str | bytes] = []

    def read(text: str | bytes) -> Any:
        decoded.append(text)
        return read_json(text)

    monkeypatch.setattr(columns, "read_json", read)
    async with rule_engine_node() as node:
        await node.rule('SELECT payload.x as x, clientid FROM "$events/message_delivered"')
        await node.rule('SELECT payload.x as x FROM "$events/message_delivered" WHERE payload.x > 1')
        readers = [await node.client(f"r{number}") for number in range(5)]
        for reader in readers:
            await reader.subscribe("t")
        writer = await node.client("w")
        for payload in (b'{"x":1}', b"no JSON", b'{"x":2}'):
            decoded.clear()
            await writer.publish("t", payload, 1)
            for reader in readers:
                await reader.expect_publish("t", payload)
            assert decoded == [payload.decode()]
        assert [row["x"] for row in node.kept] == [1] * 5 + [2] * 10
        assert {row["clientid"] for row in node.kept if "clientid" in row} == {f"r{number}" for number in range(5)}
