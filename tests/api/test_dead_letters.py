"""/resources/{id}/dead_letters and the commands beside it: rows that were set aside are seen, sent again, removed."""

import json
from typing import Any

import pytest
from aiohttp import web

from tests.support.api import ManagedNode, managed_node
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

QUICK = {"liveness_interval": 0.05, "retry_backoff": 0.01, "retry_backoff_max": 0.05, "breaker_failures": 1000}
HOOK = "resource:hook"


async def bad(request: web.Request, body: bytes) -> web.StreamResponse:
    return web.Response(status=500 if b"bad" in body else 200, text="cannot parse")


async def poisoned(node: ManagedNode, sink: HttpSink, rows: int = 3) -> None:
    """``rows`` rows that were set aside, and one that was not."""
    sink.answer = bad
    hook = {"id": HOOK, "type": "web_hook", "config": {"url": sink.url, "retry_attempts": 2}}
    assert (await node.api.post("/resources", hook)).code == 0
    action = {"name": "data_to_webserver", "params": {"$resource": HOOK, "retry_for": "1h"}}
    rule = {"id": "rule:r", "rawsql": 'SELECT payload as p FROM "t/#"', "actions": [action]}
    assert (await node.api.post("/rules", rule)).code == 0
    for number in range(rows):
        await publish(node, f"bad {number}")
    await publish(node, "good")
    await until(lambda: counters(node) == (1, rows))


async def publish(node: ManagedNode, payload: str) -> None:
    reply = await node.api.post("/mqtt/publish", {"topic": "t/1", "payload": payload, "clientid": payload, "qos": 1})
    assert reply.code == 0


def counters(node: ManagedNode) -> tuple[int, int]:
    metrics = node.engine.rules.lookup("rule:r").actions[0].metrics[0]
    return metrics.success, metrics.failed


async def letters(node: ManagedNode, query: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await node.api.get(f"/resources/{HOOK}/dead_letters{query}")).data
    return rows


async def test_they_are_seen_sent_again_and_removed(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        await poisoned(node, sink)
        rows = await letters(node)
        assert {json.loads(each["row"])["p"] for each in rows} == {"bad 0", "bad 1", "bad 2"}
        first = rows[0]
        assert set(first) == {"id", "action", "clientid", "at", "taken_at", "attempts", "reason", "row"}
        assert first["attempts"] == 2 and "HTTP 500: cannot parse" in first["reason"]
        assert first["action"].startswith("data_to_webserver_") and first["clientid"] == json.loads(first["row"])["p"]
        assert 0 < first["taken_at"] <= first["at"]
        assert [each["id"] for each in await letters(node, "?_page=2&_limit=2")] == [rows[2]["id"]]
        status = (await node.api.get(f"/resources/{HOOK}")).data["status"][0]["buffer"]
        assert (status["dead_letters"], status["set_aside"], status["waiting"]) == (3, 3, 0)
        sink.answer = HttpSink().answer  # mended
        misspelt = await node.api.post(f"/resources/{HOOK}/dead_letters", {"id": [first["id"]]})
        assert (misspelt.status, misspelt.code) == (400, 108) and "did you mean" in misspelt.json["message"]
        sent = await node.api.post(f"/resources/{HOOK}/dead_letters", {"ids": [first["id"]]})
        assert sent.data == {"count": 1}
        await until(lambda: counters(node) == (2, 3))
        assert (await node.api.delete(f"/resources/{HOOK}/dead_letters/{rows[1]['id']}")).code == 0
        assert [each["id"] for each in await letters(node)] == [rows[2]["id"]]
        assert (await node.api.post(f"/resources/{HOOK}/dead_letters", {})).data == {"count": 1}
        await until(lambda: counters(node) == (3, 3))
        assert await letters(node) == []


async def test_all_are_removed_and_go_with_their_resource(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        await poisoned(node, sink)
        assert (await node.api.delete(f"/resources/{HOOK}/dead_letters")).data == {"count": 3}
        assert await letters(node) == []
        await publish(node, "bad again")
        await until(lambda: counters(node) == (1, 4))
        assert len(await letters(node)) == 1
        await node.api.delete("/rules/rule:r")
        assert (await node.api.delete(f"/resources/{HOOK}")).code == 0
        assert node.engine.buffers.dead_letters.count(HOOK) == 0


async def test_what_is_not_there_is_refused(sink: HttpSink) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        await poisoned(node, sink, 1)
        for reply in (
            await node.api.get("/resources/none/dead_letters"),
            await node.api.post("/resources/none/dead_letters", {}),
            await node.api.delete("/resources/none/dead_letters"),
            await node.api.delete(f"/resources/{HOOK}/dead_letters/99"),
            await node.api.post(f"/resources/{HOOK}/dead_letters", {"ids": [1, 99]}),
        ):
            assert (reply.status, reply.code) == (404, 102), reply.text
        for number in ("x", "9" * 30):
            assert (await node.api.delete(f"/resources/{HOOK}/dead_letters/{number}")).code == 108
        assert len(await letters(node)) == 1


@pytest.mark.parametrize("retry_for", [-1, "x", "-5s", True, 1e12])
async def test_a_retry_for_that_is_none_is_refused(sink: HttpSink, retry_for: Any) -> None:
    async with managed_node(ruleengine=QUICK) as node:
        hook = {"id": HOOK, "type": "web_hook", "config": {"url": sink.url}}
        await node.api.post("/resources", hook)
        action = {"name": "data_to_webserver", "params": {"$resource": HOOK, "retry_for": retry_for}}
        reply = await node.api.post("/rules", {"rawsql": 'SELECT * FROM "t"', "actions": [action]})
        assert reply.code == 108 and "retry_for" in reply.json["message"]


@pytest.mark.parametrize("key, value", [("retry_attempts", 0), ("retry_attempts", 1.5), ("dead_letters", -1)])
async def test_a_limit_that_is_none_is_refused(key: str, value: Any) -> None:
    async with managed_node() as node:
        config = {"url": "http://127.0.0.1:9", key: value}
        reply = await node.api.post("/resources", {"type": "web_hook", "config": config})
        assert reply.code == 108 and key in reply.json["message"]


async def test_fallbacks_run_while_the_server_is_away(sink: HttpSink) -> None:
    """``retry_for`` 0: at once; a second: after that; without: not at all."""
    await sink.stop()
    async with managed_node(ruleengine=QUICK) as node:
        await node.api.post("/resources", {"id": HOOK, "type": "web_hook", "config": {"url": sink.url}})
        fallback = {"name": "republish", "params": {"target_topic": "away/${f}", "payload_tmpl": "x", "target_qos": 1}}
        listener = await node.client()
        await listener.subscribe("away/#", qos=1)
        for name, more in (("at_once", {"retry_for": 0}), ("soon", {"retry_for": "1s"}), ("never", {})):
            action = {"name": "data_to_webserver", "params": {"$resource": HOOK, **more}, "fallbacks": [fallback]}
            sql = f"SELECT '{name}' as f FROM \"t\""
            assert (await node.api.post("/rules", {"id": name, "rawsql": sql, "actions": [action]})).code == 0
        await publish_to(node, "t")
        assert (await listener.expect_publish()).topic == "away/at_once"
        assert (await listener.expect_publish()).topic == "away/soon"
        await listener.nothing()
        figures = {name: node.engine.rules.lookup(name).actions[0].metrics[0] for name in ("at_once", "soon", "never")}
        assert {name: each.failed for name, each in figures.items()} == {"at_once": 1, "soon": 1, "never": 0}


async def publish_to(node: ManagedNode, topic: str) -> None:
    assert (await node.api.post("/mqtt/publish", {"topic": topic, "payload": "p", "clientid": "c", "qos": 1})).code == 0
