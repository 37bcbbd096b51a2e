"""/shared_groups: the shared subscriptions of all nodes, their members, and how many messages each got."""

import pytest

from tests.support.api import assert_refused, managed_node
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio


async def test_groups_and_members_with_what_they_got() -> None:
    async with managed_node(shared={"strategy": "round_robin_per_group"}) as node:
        for name, filter in (("m1", "$share/g/t/#"), ("m2", "$share/g/t/#"), ("o", "$share/h/t/#"), ("q", "$queue/t")):
            peer = await node.client(name)
            await peer.subscribe(filter, qos=1)
        away = await node.client("away", properties={17: 100})
        await away.subscribe("$share/g/t/#", qos=0)
        await away.disconnect()
        for _ in range(5):
            await peer.publish("t/1", b"x", 0)
        reply = await node.api.get("/shared_groups")
        rows = {row["topic"]: row for row in reply.data}
        assert set(rows) == {"$share/g/t/#", "$share/h/t/#", "$share/$queue/t"} and reply.meta["count"] == 3
        group = rows["$share/g/t/#"]
        assert (group["share"], group["strategy"]) == ("g", "round_robin_per_group")
        assert (group["members"], group["connected"], group["delivered"]) == (3, 2, 5)
        assert rows["$share/$queue/t"]["share"] == "$queue"
        found = await node.api.get("/shared_groups", share="g")
        assert [row["topic"] for row in found.data] == ["$share/g/t/#"] and found.meta["count"] == -1
        found = await node.api.get("/shared_groups", topic="$share/$queue/t")
        assert [row["members"] for row in found.data] == [1]
        members = await node.api.get("/shared_groups/members", topic="$share/g/t/#")
        got = {row["clientid"]: row["delivered"] for row in members.data}
        assert sorted(got.values()) == [0, 2, 3] and got["away"] == 0
        assert {row["clientid"]: row["qos"] for row in members.data} == {"m1": 1, "m2": 1, "away": 0}
        assert [row["connected"] for row in members.data if row["clientid"] == "away"] == [False]
        queue = await node.api.get("/shared_groups/members", topic="$share/$queue/t")
        assert [row["clientid"] for row in queue.data] == ["q"]
        for nothing in ("$share/g/u", "t/#", "$share/g", ""):
            assert (await node.api.get("/shared_groups/members", topic=nothing)).data == []
        assert_refused(await node.api.get("/shared_groups/members"), 400, 107, "topic")


async def test_pages_over_nodes() -> None:
    async with fake_nodes(2) as nodes:
        for number in range(4):
            peer = await nodes[number % 2].client(f"c{number}")
            await peer.subscribe("$share/g/t", qos=1)
        groups = await nodes.api.get("/shared_groups")
        assert {(row["node"], row["members"]) for row in groups.data} == {(nodes[0].name, 2), (nodes[1].name, 2)}
        first = await nodes.api.get("/shared_groups/members", topic="$share/g/t", _limit=3)
        assert len(first.data) == 3 and first.meta["count"] == 4 and first.meta["hasnext"]
        rest = await nodes.api.get("/shared_groups/members", topic="$share/g/t", _limit=3, _page=2)
        assert len(rest.data) == 1 and not rest.meta["hasnext"]
        assert len({row["clientid"] for row in first.data + rest.data}) == 4
