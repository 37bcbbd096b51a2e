"""/monitor and /live of another node, and of all in sum."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.management.operations import watches
from tests.support.api import assert_refused
from tests.support.fake_cluster import FakeNodes, fake_nodes
from tests.support.live import live

pytestmark = pytest.mark.asyncio

N1, N2 = "n1@host", "n2@host"


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[FakeNodes]:
    async with fake_nodes(2) as made:
        yield made


async def pass_seconds(nodes: FakeNodes, seconds: int) -> None:
    for _ in range(seconds):
        for node in nodes.nodes:
            node.clock.shift += 1.0
            await node.server.tick()


async def sessions_of(nodes: FakeNodes, **query: Any) -> list[int]:
    data = (await nodes.api.get("/monitor", **query)).data
    return [row[data["columns"].index("sessions")] for row in data["points"]]


async def test_figures_of_one_and_of_all(nodes: FakeNodes) -> None:
    await nodes[0].client("a")
    await nodes[1].client("b")
    await nodes[1].client("c")
    await pass_seconds(nodes, 3)
    assert (await sessions_of(nodes))[-2:] == [1, 1]
    assert (await sessions_of(nodes, node=N1))[-2:] == [1, 1]
    assert (await sessions_of(nodes, node=N2))[-2:] == [2, 2]
    assert (await sessions_of(nodes, node="all"))[-2:] == [3, 3]


async def test_a_second_that_one_node_does_not_have_yet_is_left_out(nodes: FakeNodes) -> None:
    await nodes[0].client("a")
    await nodes[1].client("b")
    await pass_seconds(nodes, 3)
    for _ in range(2):
        nodes[0].clock.shift += 1.0
        await nodes[0].server.tick()
        # The other node's real second may end at any time.
        assert (await sessions_of(nodes, node="all"))[-2:] == [2, 2]
    for _ in range(5):  # this node lacks so much that it has stopped, or its clock is wrong
        nodes[0].clock.shift += 1.0
        await nodes[0].server.tick()
    assert (await sessions_of(nodes, node="all"))[-1] == 1


async def test_a_node_that_does_not_answer_is_named(nodes: FakeNodes) -> None:
    await pass_seconds(nodes, 3)
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/monitor", node="all")
    assert reply.data["points"] and reply.meta == {"missing_nodes": [N2]}
    assert_refused(await nodes.api.get("/monitor", node=N2), 500, 101, N2)


async def test_an_hour_of_all_nodes_is_an_answer(nodes: FakeNodes) -> None:
    await pass_seconds(nodes, 200)
    assert len(await sessions_of(nodes, node="all")) >= 199
    # An hour is no more than a call may bring.
    assert max(nodes.hub.octets) * 3600 / 200 < 900_000


async def test_a_stream_of_another_node(nodes: FakeNodes) -> None:
    other = nodes[1]
    await other.client("b")
    rule = {"rawsql": 'SELECT * FROM "a/#"', "actions": [{"name": "do_nothing", "params": {}}]}
    rule_id = (await other.api.post("/rules", rule)).data["id"]
    hook = other.server.hooks.message_publish
    before = len(hook)
    nodes.hub.owners["b"] = N2
    what = {"figures": 1, "alarms": 1, "rules": 1, "topics": "a", "events": "a/#", "client": "b", "every": 250}
    async with live(nodes[0], node=N2, **what) as events:
        hello = await events.next("hello")
        assert (hello["node"], hello["every"]) == (N2, 1000)
        assert await events.next("alarms") == {"active": []}
        assert rule_id in (await events.next("rules"))
        assert (await events.next("topics"))["rows"] == []
        assert len(hook) == before + 1
        await other.server.tick()
        assert (await events.next("figures"))["sessions"] == 1
        assert (await events.next("client", lambda data: data["connected"]))["node"] == N2
        client = await other.client("p")
        await client.publish("a/b", b"x", qos=1)
        assert [each["topic"] for each in (await events.next("events"))["events"]] == ["a/b"]
        assert (await events.next("topics"))["rows"][0]["level"] == "b"
    # It is not told that nobody watches any more; after a while it knows.
    other.clock.shift += watches.LAPSE
    await other.server.tick()
    other.clock.shift += watches.LAPSE
    await other.server.tick()
    assert len(hook) == before and not len(other.management.operations.live.answers.event_watches)


async def test_a_node_that_does_not_answer_ends_its_stream(nodes: FakeNodes) -> None:
    async with live(nodes[0], node=N2, alarms=1) as events:
        await events.next("alarms")
        nodes.hub.silent.add(N2)
        bye = await events.next("bye")
        assert (bye["reason"], bye["code"]) == ("refused", 101) and N2 in bye["message"]
        assert await events.ended()
