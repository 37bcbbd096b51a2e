"""/clients/{clientid}/explain and /explain."""

import pytest

from tests.support.api import managed_node

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("version", [4, 5])
async def test_a_refusal_names_its_reason_and_setting(version: int) -> None:
    rules = [{"allow": False, "action": "subscribe", "topics": ["secret/#"]}]
    async with managed_node(access={"rules": rules}) as node:
        peer = await node.client("curious", version)
        await peer.subscribe("secret/door", expect=[0x80 if version == 4 else 0x87])
        await peer.disconnect()
        told = (await node.api.get("/clients/curious/explain")).data
        assert told["connected"] is False and told["session"] is None
        refused = next(each for each in told["events"] if each["event"] == "subscribe_refused")
        assert (refused["reason"], refused["setting"], refused["topic"]) == (
            "not_authorized",
            "access.rules.0",
            "secret/door",
        )
        assert {each["event"] for each in told["events"]} >= {"client_connected", "client_disconnected"}


async def test_drops_are_counted_with_the_bound_behind_them() -> None:
    async with managed_node(zone={"max_queued_messages": 2}) as node:
        away = await node.client("away", expiry=3600)
        await away.subscribe("t", qos=1)
        await away.disconnect()
        peer = await node.client("w")
        for number in range(5):
            await peer.publish("t", b"%d" % number, 1)
        told = (await node.api.get("/clients/away/explain")).data
        assert told["session"]["queued"] == 2 and told["session"]["dropped"] == 3
        assert told["session"]["max_queued"] == 2 and told["session"]["expires_at"]
        dropped = told["events"][0]
        assert (dropped["event"], dropped["reason"], dropped["count"]) == ("delivery_dropped", "queue_full", 3)
        assert "max_queued_messages" in dropped["setting"]


async def test_who_would_get_a_message() -> None:
    async with managed_node() as node:
        for name, topic_filter in (("a", "t/+"), ("b", "$share/g/t/#"), ("c", "else")):
            peer = await node.client(name)
            await peer.subscribe(topic_filter, qos=1)
        await peer.publish("t/1", b"abc", 0, retain=True)
        await peer.ping()
        told = (await node.api.get("/explain", topic="t/1")).data
        assert told["receivers"] == [{"clientid": "a", "connected": True, "topic": "t/+", "qos": 1}]
        assert told["shared"] == [{"topic": "$share/g/t/#", "members": ["b"]}]
        assert told["retained"] == {"qos": 0, "octets": 3}
        assert (await node.api.get("/explain", topic="t/#")).code == 115
        assert (await node.api.get("/explain")).code == 107


async def test_of_an_unknown_client_nothing_is_known() -> None:
    async with managed_node() as node:
        reply = await node.api.get("/clients/nobody/explain")
        assert (reply.status, reply.code) == (404, 112)
