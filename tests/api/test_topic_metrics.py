"""/topic-metrics: messages counted under single topics."""

from typing import Any

import pytest

from taipan.broker.extensions.topic_metrics import MAX_TOPICS, NAMES
from tests.support.api import managed_node, segment

pytestmark = pytest.mark.asyncio

# What the story below comes to.
COUNTS = {
    "messages.in": 6,
    "messages.out": 8,
    "messages.dropped": 2,
    "messages.qos0.in": 1,
    "messages.qos0.out": 2,
    "messages.qos1.in": 2,
    "messages.qos1.out": 2,
    "messages.qos2.in": 3,
    "messages.qos2.out": 4,
}


@pytest.mark.parametrize("kind", ["count", "rate"])
@pytest.mark.parametrize("name", NAMES)
async def test_figure(name: str, kind: str) -> None:
    async with managed_node() as node:
        assert (await node.api.post("/topic-metrics", {"topic": "t/1"})).json == {"code": 0}
        peer = await node.client("pub")
        for qos in (1, 2):
            await peer.publish("t/1", b"nobody", qos=qos)
        listeners = [await node.client(f"sub{number}") for number in range(2)]
        for each in listeners:
            await each.subscribe("t/+", qos=2)
        for qos in (0, 1, 2):
            await peer.publish("t/1", b"x", qos=qos)
            await peer.publish("t/2", b"not counted", qos=qos)
            for each in listeners:
                await each.expect_publish("t/1")
                await each.expect_publish("t/2")
        await node.api.post("/mqtt/publish", {"clientid": "api", "topic": "$delayed/1/t/1", "payload": "", "qos": 2})
        await node.pass_time(2)
        metrics = (await node.api.get("/topic-metrics/" + segment("t/1"))).data
        if kind == "count":
            assert metrics[f"{name}.count"] == COUNTS[name]
        else:
            # Of the seconds since it was added: two that were let pass, and what the test took.
            assert 0 < metrics[f"{name}.rate"] <= COUNTS[name] / 2
            for _ in range(7):  # the window of a rate, and one more
                await node.pass_time(2)
            again = (await node.api.get("/topic-metrics/" + segment("t/1"))).data
            assert again[f"{name}.rate"] == 0.0


async def test_list() -> None:
    async with managed_node() as node:
        assert (await node.api.get("/topic-metrics")).data == []
        for topic in ("b", "a"):
            await node.api.post("/topic-metrics", {"topic": topic})
        data = (await node.api.get("/topic-metrics")).data
        assert [each["topic"] for each in data] == ["b", "a"]
        assert set(data[0]["metrics"]) == {f"{name}.{kind}" for name in NAMES for kind in ("count", "rate")}


REFUSALS = {
    "post-missing": ("POST", "", {}, 400, 107),
    "post-wildcard": ("POST", "", {"topic": "a/#"}, 400, 115),
    "post-empty": ("POST", "", {"topic": ""}, 400, 115),
    "post-number": ("POST", "", {"topic": 1}, 400, 108),
    "post-again": ("POST", "", {"topic": "there"}, 400, 113),
    "get-unknown": ("GET", "/x", None, 404, 102),
    "get-wildcard": ("GET", "/%23", None, 400, 115),
    "delete-unknown": ("DELETE", "/x", None, 404, 102),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_refusal(case: str) -> None:
    method, path, body, status, code = REFUSALS[case]
    async with managed_node() as node:
        await node.api.post("/topic-metrics", {"topic": "there"})
        reply = await node.api.ask(method, "/topic-metrics" + path, body)
        assert (reply.status, reply.code) == (status, code)


async def test_most() -> None:
    async with managed_node() as node:
        module = node.management.operations.topic_metrics.module
        for number in range(MAX_TOPICS):
            module.add(str(number))
        reply = await node.api.post("/topic-metrics", {"topic": "one more"})
        assert (reply.status, reply.code) == (400, 108) and "512" in reply.json["message"]


async def test_nothing_registered_costs_nothing() -> None:
    async with managed_node() as node:
        hooks = node.server.hooks
        points = (hooks.message_publish, hooks.message_delivered, hooks.message_dropped)
        timers = len(node.server.timers)
        before = [len(point) for point in points]
        await node.api.post("/topic-metrics", {"topic": "a"})
        await node.api.post("/topic-metrics", {"topic": "b"})
        assert [len(point) for point in points] == [count + 1 for count in before]
        assert (await node.api.delete("/topic-metrics/a")).json == {"code": 0}
        assert [len(point) for point in points] == [count + 1 for count in before]
        assert (await node.api.delete("/topic-metrics")).json == {"code": 0}
        assert [len(point) for point in points] == before
        assert len(node.server.timers) == timers
        assert (await node.api.get("/topic-metrics")).data == []


async def test_topics_outlive_the_process(tmp_path: Any) -> None:
    config: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    async with managed_node(**config) as node:
        for topic in ("a", "b"):
            await node.api.post("/topic-metrics", {"topic": topic})
        await node.api.delete("/topic-metrics/a")
    async with managed_node(**config) as node:
        assert [each["topic"] for each in (await node.api.get("/topic-metrics")).data] == ["b"]
