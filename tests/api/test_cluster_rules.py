"""Rules and resources of a cluster: what each node counted, one element for each."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.management.operations import node_listing
from tests.support.api import assert_refused
from tests.support.fake_cluster import FakeNodes, fake_nodes
from tests.support.http_sink import HttpSink
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

N1, N2 = "n1@host", "n2@host"
ACTIONS = [{"name": "do_nothing", "params": {}, "fallbacks": [{"name": "do_nothing", "params": {}}]}]


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[FakeNodes]:
    async with fake_nodes(2) as made:
        yield made


async def same_rule(nodes: FakeNodes, id: str = "rule:1") -> dict[str, Any]:
    """A rule that both have, as shared rows make it: the same ids of its actions. Its record."""
    for node in nodes.nodes:
        await node.engine.rules.create('SELECT * FROM "t"', ACTIONS, id, "", True, "continue")
    first, second = (node.engine.rules.get(id) for node in nodes.nodes)
    for one, other in zip(first.all_actions, second.all_actions, strict=True):
        other.stored = one.stored
    record: dict[str, Any] = (await nodes.api.get(f"/rules/{id}")).data
    return record


async def test_metrics_of_a_rule_on_each_node(nodes: FakeNodes) -> None:
    record = await same_rule(nodes)
    assert [each["node"] for each in record["metrics"]] == [N1, N2]
    for _ in range(2):
        assert (await nodes[1].api.post("/mqtt/publish", {"clientid": "x", "topic": "t", "payload": ""})).code == 0
    for reply in (await nodes.api.get("/rules/rule:1"), await nodes[1].api.get("/rules/rule:1")):
        assert [(each["node"], each["matched"]) for each in reply.data["metrics"]] == [(N1, 0), (N2, 2)]
        (action,) = reply.data["actions"]
        assert [(each["node"], each["success"]) for each in action["metrics"]] == [(N1, 0), (N2, 2)]
        assert [each["node"] for each in action["fallbacks"][0]["metrics"]] == [N1, N2]
    (listed,) = (await nodes.api.get("/rules")).data
    assert listed == (await nodes.api.get("/rules/rule:1")).data
    (listed,) = (await nodes.api.get("/rules", enable_paging="false")).data
    assert [each["matched"] for each in listed["metrics"]] == [0, 2]
    assert (await nodes.api.put("/rules/rule:1/reset_metrics")).code == 0
    assert [each["matched"] for each in (await nodes.api.get("/rules/rule:1")).data["metrics"]] == [0, 0]


async def test_rules_page_by_page(nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await same_rule(nodes, f"rule:{number}")
    monkeypatch.setattr(node_listing, "PIECE", 2)
    reply = await nodes.api.get("/rules", _limit=3, _page=1)
    assert [row["id"] for row in reply.data] == ["rule:4", "rule:3", "rule:2"]
    assert all([each["node"] for each in row["metrics"]] == [N1, N2] for row in reply.data)
    assert reply.meta == {"page": 1, "limit": 3, "count": 5, "hasnext": True}
    assert (await nodes.api.get("/rules", _limit=3, _page=2)).meta["hasnext"] is False


async def test_a_node_that_does_not_answer_or_has_no_such_rule_yet(nodes: FakeNodes) -> None:
    await same_rule(nodes)
    created = await nodes.api.post("/rules", {"id": "own", "rawsql": 'SELECT * FROM "u"', "actions": ACTIONS})
    assert [each["node"] for each in created.data["metrics"]] == [N1]
    assert [each["node"] for each in (await nodes.api.get("/rules/own")).data["metrics"]] == [N1]
    nodes.hub.silent.add(N2)
    for path in ("/rules/rule:1", "/rules"):
        reply = await nodes.api.get(path)
        rule = reply.data if path != "/rules" else reply.data[-1]
        assert [each["node"] for each in rule["metrics"]] == [N1]
        assert reply.meta["missing_nodes"] == [N2]
    assert_refused(await nodes.api.put("/rules/rule:1/reset_metrics"), 500, 101, N2)
    nodes.be_strict()
    assert_refused(await nodes.api.get("/rules/rule:1"), 500, 101, "cluster.strict_fanout")
    assert_refused(await nodes.api.get("/rules"), 500, 101, "cluster.strict_fanout")


async def test_evaluations_of_all_nodes(nodes: FakeNodes) -> None:
    await same_rule(nodes)
    assert (await nodes.api.put("/rules/rule:1/trace", {"size": 5})).code == 0
    for node in reversed(nodes.nodes):
        assert (await node.api.post("/mqtt/publish", {"clientid": "x", "topic": "t", "payload": ""})).code == 0
    rows = (await nodes.api.get("/rules/rule:1/trace")).data
    assert len(rows) == 2 and rows[0]["at"] <= rows[1]["at"]


async def test_the_status_of_a_resource_on_each_node(nodes: FakeNodes, sink: HttpSink) -> None:
    for node, url in zip(nodes.nodes, (sink.url, "http://127.0.0.1:1/"), strict=True):
        await node.engine.resources.create("web_hook", {"url": url}, "resource:1", "")
    async with asyncio.timeout(patience(40)):
        while not nodes[0].engine.resources.get("resource:1").alive:
            await asyncio.sleep(0.01)
    for api in (nodes.api, nodes[1].api):
        status = (await api.get("/resources/resource:1")).data["status"]
        assert [(each["node"], each["is_alive"]) for each in status] == [(N1, True), (N2, False)]
        (listed,) = (await api.get("/resources")).data
        assert listed["status"] is False
        assert (await api.get("/resource_types/web_hook/resources")).data == [listed]
        assert (await api.get("/resource_status/resource:1")).data == {"is_alive": False}
    assert_refused(await nodes.api.post("/resources/resource:1"), 400, 108, N2)
    assert "Resources.start_here" in nodes.hub.methods_asked(N2)
    nodes.hub.silent.add(N2)
    for path in ("/resources", "/resources/resource:1", "/resource_status/resource:1"):
        assert (await nodes.api.get(path)).meta == {"missing_nodes": [N2]}
    assert (await nodes.api.get("/resources")).data[0]["status"] is True
