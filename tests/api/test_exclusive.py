"""Exclusive subscriptions for operators: listings, subscribing a client, and why a client does not get one."""

import pytest

from tests.support.api import managed_node

pytestmark = pytest.mark.asyncio

FILTER = "$exclusive/t"


async def test_operators_see_who_has_it_and_keep_to_it() -> None:
    async with managed_node(zone={"exclusive_subscription": True}) as node:
        first, second = await node.client("first"), await node.client("second")
        await first.subscribe(FILTER, qos=1)
        (row,) = (await node.api.get("/subscriptions", topic="t")).data
        assert (row["clientid"], row["topic"]) == ("first", FILTER)
        (row,) = (await node.api.get("/subscriptions/first")).data
        assert row["topic"] == FILTER
        body = {"clientid": "second", "topic": FILTER, "qos": 1}
        reply = await node.api.post("/mqtt/subscribe", body)
        assert reply.code != 0 and "another client has this exclusive subscription" in reply.text
        told = (await node.api.get("/access/explain", topic=FILTER, action="subscribe", clientid="second")).data
        assert told["allowed"] is False and told["rule"] == "exclusive_subscription"
        assert told["steps"][-1]["detail"] == "the client first has this exclusive subscription"
        told = (await node.api.get("/access/explain", topic=FILTER, action="subscribe", clientid="first")).data
        assert told["allowed"] is True
        assert (await node.api.post("/mqtt/unsubscribe", {"clientid": "first", "topic": FILTER})).code == 0
        assert (await node.api.post("/mqtt/subscribe", body)).code == 0
        await first.publish("t", b"x", 1)
        await second.expect_publish("t", b"x", 1)


async def test_operators_cannot_where_it_is_off() -> None:
    async with managed_node() as node:
        await node.client("c")
        reply = await node.api.post("/mqtt/subscribe", {"clientid": "c", "topic": FILTER})
        assert reply.code != 0 and "setting exclusive_subscription" in reply.text
