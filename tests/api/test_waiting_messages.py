"""/clients/{clientid}/queue and /inflight: what waits for a client and what is on its way; and limits that bite."""

from typing import Any

import pytest

from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from tests.support.api import assert_refused, managed_node, segment
from tests.support.fake_cluster import fake_nodes
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio


async def test_the_queue_of_one_that_is_away() -> None:
    async with managed_node() as node:
        away = await node.client("away", expiry=3600)
        await away.subscribe("t/#", qos=2)
        await away.disconnect()
        peer = await node.client("w")
        await peer.publish("t/1", b"abc", 1)
        await peer.publish("t/2", b"abcde", 2, properties={MESSAGE_EXPIRY_INTERVAL: 60})
        node.clock.shift += 10
        reply = await node.api.get("/clients/away/queue")
        first, second = reply.data
        assert (first["state"], first["topic"], first["qos"], first["payload_size"]) == ("queued", "t/1", 1, 3)
        assert first["from_clientid"] == "w" and first["expires_at"] is None and first["age"] >= 10
        assert (second["topic"], second["qos"]) == ("t/2", 2) and second["expires_at"]
        assert all("payload" not in row for row in reply.data)
        assert reply.meta["count"] == 2
        assert (await node.api.get("/clients/away/queue", _limit=1, _page=2)).data[0]["topic"] == "t/2"
        assert (await node.api.get("/clients/away/inflight")).data == []


async def test_what_is_on_its_way() -> None:
    async with managed_node(zone={"max_inflight": 2}) as node:
        slow = await node.client("slow")
        await slow.subscribe("t/#", qos=2)
        peer = await node.client("w")
        for number, qos in ((1, 1), (2, 2), (3, 1)):
            await peer.publish(f"t/{number}", b"abc", qos)
        one = await slow.expect_publish(acknowledge=False)
        two = await slow.expect_publish(acknowledge=False)
        rows = (await node.api.get("/clients/slow/inflight")).data
        assert [(row["packet_id"], row["state"], row["topic"]) for row in rows] == [
            (one.packet_id, "sent", "t/1"), (two.packet_id, "sent", "t/2"),
        ]  # fmt: skip
        assert [row["topic"] for row in (await node.api.get("/clients/slow/queue")).data] == ["t/3"]
        told: Any = (await node.api.get("/clients/slow/explain")).data
        assert {each["setting"]: (each["now"], each["most"]) for each in told["limits"] if each["reached"]} == {
            "max_inflight": (2, 2)
        }
        await slow.pubrec(two.packet_id)
        await slow.ping()
        rows = (await node.api.get("/clients/slow/inflight")).data
        assert ("released", None) in [(row["state"], row["topic"]) for row in rows]


async def test_a_client_of_another_node_and_one_that_is_not_there() -> None:
    async with fake_nodes(2) as nodes:
        away = await nodes[1].client("away", expiry=3600)
        await away.subscribe("t", qos=1)
        await away.disconnect()
        body = {"clientid": "p", "topic": "t", "payload": "x", "qos": 1}
        assert (await nodes[1].api.post("/mqtt/publish", body)).code == 0
        (row,) = (await nodes.api.get("/clients/away/queue")).data
        assert (row["node"], row["topic"]) == (nodes[1].name, "t")
        assert_refused(await nodes.api.get("/clients/nobody/queue"), 404, 112, "nobody")
        assert_refused(await nodes.api.get("/clients/nobody/inflight"), 404, 112, "nobody")
        assert_refused(await nodes.api.get("/clients/away/queue", _page=10**9), 400, 108, "_page")
        hostile = segment("<b>\u202e\x01/" + "x" * 5000)
        assert (await nodes.api.get(f"/clients/{hostile}/queue")).code == 112


async def test_a_rate_that_holds_a_client_back() -> None:
    async with managed_node(zone={"message_rate": [1, 60.0]}) as node:
        peer = await node.client("fast")
        await peer.send(*[Publish("t", b"x") for _ in range(3)])
        reached = False
        while not reached:
            told = (await node.api.get("/clients/fast/explain")).data["limits"]
            (rate,) = [each for each in told if each["setting"] == "message_rate"]
            reached = rate["reached"]
        assert rate["most"] == [1, 60.0]
