"""/subscribers: who receives a message to a topic, and how many each member of a shared subscription got."""

from collections import Counter

import pytest

from tests.support.api import assert_refused, managed_node
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio


async def test_clients_with_the_filters_that_match() -> None:
    async with managed_node(shared={"strategy": "round_robin_per_group"}) as node:
        for name, filters in (
            ("both", ("t/+", "t/#")), ("one", ("t/1",)), ("else", ("u",)),
            ("m1", ("$share/g/t/#",)), ("m2", ("$share/g/t/#",)), ("q", ("$queue/t/1",)),
        ):  # fmt: skip
            peer = await node.client(name)
            for each in filters:
                await peer.subscribe(each, qos=1)
        for _ in range(5):
            await peer.publish("t/1", b"x", 0)
        await peer.ping()
        reply = await node.api.get("/subscribers", topic="t/1")
        rows = {row["clientid"]: row for row in reply.data}
        assert set(rows) == {"both", "one", "m1", "m2", "q"} and reply.meta["count"] == 5
        assert sorted(rows["both"]["topics"]) == ["t/#", "t/+"] and rows["both"]["share"] is None
        assert rows["one"]["topics"] == ["t/1"] and rows["one"]["delivered"] is None
        assert rows["m1"]["strategy"] == "round_robin_per_group" and rows["m1"]["share"] == "g"
        assert Counter([rows["m1"]["delivered"], rows["m2"]["delivered"]]) == {3: 1, 2: 1}
        assert rows["q"]["delivered"] == 5
        # A member that leaves takes its count with it; the others keep theirs.
        left = "m1" if rows["m1"]["delivered"] == 3 else "m2"
        await node.api.delete(f"/clients/{left}")
        (member,) = [row for row in (await node.api.get("/subscribers", topic="t/2")).data if row["share"] == "g"]
        assert member["delivered"] == 5 - rows[left]["delivered"]


async def test_pages_over_nodes_and_what_is_no_topic() -> None:
    async with fake_nodes(2) as nodes:
        for number in range(4):
            peer = await nodes[number % 2].client(f"c{number}")
            await peer.subscribe("t")
        reply = await nodes.api.get("/subscribers", topic="t", _limit=3)
        assert len(reply.data) == 3 and reply.meta["count"] == 4 and reply.meta["hasnext"]
        assert {row["node"] for row in reply.data} == {nodes[0].name, nodes[1].name}
        rest = await nodes.api.get("/subscribers", topic="t", _limit=3, _page=2)
        assert len(rest.data) == 1 and not rest.meta["hasnext"]
        assert_refused(await nodes.api.get("/subscribers", topic="t/#"), 400, 115)
        assert_refused(await nodes.api.get("/subscribers"), 400, 107, "topic")
