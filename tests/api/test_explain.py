"""/clients/{clientid}/explain and /explain."""

import pytest

from taipan.broker.access.password_hash import ScryptHash
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


@pytest.mark.parametrize("version", [4, 5])
async def test_who_was_refused_is_listed(version: int) -> None:
    users = [{"username": "u", "password_hash": str(ScryptHash.create(b"right", n=16))}]
    async with managed_node(access={"users": users}) as node:
        for _ in range(2):
            bad = node.peer(version)
            await bad.connect("lost", username="u", password=b"wrong", expect=4 if version == 4 else 0x86)
        (refused,) = (await node.api.get("/refused_clients")).data
        assert (refused["clientid"], refused["username"], refused["count"]) == ("lost", "u", 2)
        assert refused["peerhost"] == "127.0.0.1" and refused["listener"] and refused["clientid_cut"] is False
        assert refused["at"] <= refused["last_at"]
        # The same as the story at its address has.
        story = (await node.api.get("/clients/lost/explain")).data["events"][0]
        for key in ("reason", "setting", "text", "advice", "count", "last_at"):
            assert refused[key] == story[key], key
        assert refused["reason"] == "bad_username_or_password" and refused["text"] and refused["advice"]
        # Who comes in is no news, nor is a connection that never said who it is.
        await node.client("fine", version, username="u", password=b"right")
        assert [each["clientid"] for each in (await node.api.get("/refused_clients")).data] == ["lost"]


async def test_a_connect_that_cannot_be_read_is_listed_by_its_address() -> None:
    async with managed_node() as node:
        probe = node.peer(5)
        await probe.open()
        await probe.close()
        broken = node.peer(5)
        await broken.open()
        await broken.send(b"\x10\x02\x00\x09")
        await broken.expect_closed()
        (refused,) = (await node.api.get("/refused_clients")).data
        assert refused["clientid"] == "" and refused["username"] is None and refused["peerhost"] == "127.0.0.1"
        assert refused["reason"] == "malformed_packet"
