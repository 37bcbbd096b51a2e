"""/routes: one for every filter that has subscribers, and one for each shared group."""

import pytest

from tests.support.api import managed_node, segment

pytestmark = pytest.mark.asyncio

FILTERS = ["t/1", "odd/ü/a b", "t/#", "t/+/x", "$queue/q/t", "$share/g/s/t", "$share/h/s/t", "$share/g/t/1"]
TOPICS = ["t/1", "odd/ü/a b", "t/#", "t/+/x", "q/t", "s/t", "s/t", "t/1"]


@pytest.mark.parametrize("field", ["topic", "node"])
async def test_every_field(field: str) -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        await peer.subscribe(*FILTERS)
        await node.leave_session("off", "t/1", "t/off")
        reply = await node.api.get("/routes")
        wanted = {"topic": sorted([*TOPICS, "t/off"]), "node": [node.name] * 9}
        assert sorted(each[field] for each in reply.data) == wanted[field]
        assert all(len(each) == 2 for each in reply.data)
        assert reply.meta["count"] == 9


async def test_page_by_page() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        await peer.subscribe(*FILTERS)
        seen = []
        for page in (1, 2, 3):
            reply = await node.api.get("/routes", _page=page, _limit=3)
            seen += [each["topic"] for each in reply.data]
            assert reply.meta == {"page": page, "limit": 3, "count": 8, "hasnext": page < 3}
        assert sorted(seen) == sorted(TOPICS)
        assert (await node.api.get("/routes", _page=50, _limit=3)).data == []
        reply = await node.api.get("/routes", _page="x")
        assert (reply.status, reply.code) == (400, 108)


@pytest.mark.parametrize(
    ("topic", "routes"),
    [("t/1", 2), ("t/#", 1), ("t/+/x", 1), ("s/t", 2), ("q/t", 1), ("odd/ü/a b", 1), ("t/2", 0), ("$share/g/s/t", 0)],
)
async def test_of_one_filter(topic: str, routes: int) -> None:
    async with managed_node() as node:
        peer = await node.client("c", 4)
        await peer.subscribe(*FILTERS)
        reply = await node.api.get("/routes/" + segment(topic))
        assert reply.json == {"code": 0, "data": [{"topic": topic, "node": node.name}] * routes}
        # Slashes that are not encoded are another path.
        if "/" in topic and "#" not in topic:
            assert (await node.api.get("/routes/t/1")).status == 404


async def test_they_go_with_the_last_subscriber() -> None:
    async with managed_node() as node:
        one, two = await node.client("one", 4), await node.client("two", 4)
        await one.subscribe("a/+")
        await two.subscribe("a/+")
        await one.unsubscribe("a/+")
        assert (await node.api.get("/routes")).data == [{"topic": "a/+", "node": node.name}]
        await two.drop()
        reply = await node.api.get("/routes")
        assert reply.data == [] and reply.meta["count"] == 0
