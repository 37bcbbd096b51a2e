"""The walk of the tutorial: a resource and a rule by HTTP, and every message arrives once, whoever is away."""

import json
from typing import Any

import pytest

from tests.support.api import managed_node
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

QUICK = {"liveness_interval": 0.05, "liveness_timeout": 60.0, "retry_backoff": 0.01, "retry_backoff_max": 0.05,
         "breaker_pause": 0.05}  # fmt: skip


@pytest.mark.parametrize("level", ["memory", "disk"])
@pytest.mark.parametrize("version", [4, 5])
async def test_rows_arrive_once(version: int, level: str) -> None:
    sink = await HttpSink().start()
    async with managed_node(ruleengine=QUICK, durability={"level": level}) as node:
        hook = {"type": "web_hook", "config": {"url": f"{sink.url}/hook", "headers": {"x-from": "taipan"}}}
        resource = (await node.api.post("/resources", hook)).data
        action = {"name": "data_to_webserver", "params": {"$resource": resource["id"]}}
        rawsql = 'SELECT payload.n as n, clientid FROM "t/#" WHERE n >= 0'
        rule = (await node.api.post("/rules", {"rawsql": rawsql, "actions": [action]})).data
        client = await node.client("c1", version)

        async def publish(numbers: range) -> None:
            for number in numbers:
                await client.publish(f"t/{number}", json.dumps({"n": number}).encode(), 1)
            await client.publish("t/x", b'{"n":-1}', 1)

        await publish(range(5))
        await until(lambda: len(sink.requests) == 5)
        assert all(each[:2] == ("POST", "/hook") and each[2]["x-from"] == "taipan" for each in sink.requests)
        await sink.stop()
        await publish(range(5, 10))
        # The publisher was answered, the rows wait.
        (status,) = (await node.api.get(f"/resources/{resource['id']}")).data["status"]
        assert status["is_alive"] is False or status["buffer"]
        await sink.start()
        await publish(range(10, 12))
        metrics: dict[str, Any] = {}

        async def counted() -> dict[str, Any]:
            (found,) = (await node.api.get(f"/rules/{rule['id']}")).data["actions"][0]["metrics"]
            return dict(found)

        await until(lambda: len(sink.requests) >= 12)
        while (metrics := await counted())["success"] < 12:
            pass
        assert (metrics["taken"], metrics["success"], metrics["failed"]) == (12, 12, 0)
        rows = [json.loads(body) for body in sink.bodies]
        assert rows == [{"n": number, "clientid": "c1"} for number in range(12)]
        (node_metrics,) = (await node.api.get("/metrics")).data
        counters = node_metrics["metrics"]
        assert (counters["rules.matched"], counters["actions.success"], counters["actions.failure"]) == (12, 12, 0)
    await sink.stop()
