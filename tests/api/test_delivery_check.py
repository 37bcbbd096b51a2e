"""/explain/delivery: why a client does or does not receive the messages of a topic, and that a message confirms it."""

from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio


async def asked(node: ManagedNode, client_id: str, topic: str, **more: Any) -> dict[str, Any]:
    reply = await node.api.get("/explain/delivery", clientid=client_id, topic=topic, **more)
    assert reply.code == 0, reply.json
    answer: dict[str, Any] = reply.data
    return answer


def results(answer: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["result"] for each in answer["checks"]}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_a_client_that_receives(version: int, kind: str) -> None:
    async with managed_node() as node:
        peer = await node.client("porch", version, kind)
        await peer.subscribe("garden/+", qos=1)
        answer = await asked(node, "porch", "garden/lamp", qos=2)
        assert answer["outcome"] == "received" and answer["node"] == node.name
        assert "garden/+ (QoS 1)" in answer["checks"][1]["text"] and "delivered with QoS 1" in str(answer["checks"])
        await (await node.client("w")).publish("garden/lamp", b"", 2)
        assert (await peer.expect_publish("garden/lamp")).qos == 1


@pytest.mark.parametrize("version", [4, 5])
async def test_no_subscription_and_what_comes_near_it(version: int) -> None:
    async with managed_node() as node:
        peer = await node.client("porch", version)
        assert (await asked(node, "porch", "garden/lamp"))["reason"] == "The client has no subscriptions."
        await peer.subscribe("/Garden/+", qos=1)
        await peer.subscribe("#", qos=1)
        answer = await asked(node, "porch", "$SYS/x")
        assert answer["outcome"] == "not_received" and "start with $" in answer["reason"]
        await peer.unsubscribe("#")
        answer = await asked(node, "porch", "garden/lamp")
        assert answer["outcome"] == "not_received" and "/Garden/+ (QoS 1) differs" in answer["reason"]
        assert results(answer)["access"] == "pass"


async def test_unknown_clients_and_wrong_topics() -> None:
    async with managed_node() as node:
        answer = await asked(node, "nobody", "t")
        assert (answer["outcome"], answer["node"]) == ("not_received", "") and "no session" in answer["reason"]
        assert_refused(await node.api.get("/explain/delivery", clientid="a", topic="t/#"), 400, 115)
        assert_refused(await node.api.get("/explain/delivery", clientid="a"), 400, 107)
        assert_refused(await node.api.get("/explain/delivery", clientid="a", topic="t", qos=3), 400, 108, "qos")


async def test_a_refused_subscription_names_the_rule_and_the_event() -> None:
    rules = [{"allow": False, "action": "subscribe", "topics": ["secret/#"]}]
    async with managed_node(access={"rules": rules}) as node:
        peer = await node.client("curious", 4)
        await peer.subscribe("secret/#", expect=[0x80])
        answer = await asked(node, "curious", "secret/door")
        access = next(each for each in answer["checks"] if each["check"] == "access")
        assert access["result"] == "fail" and access["setting"] == "access.rules.0"
        assert [each["event"] for each in answer["events"]] == ["subscribe_refused"]
        other = await asked(node, "curious", "open/door")
        assert results(other)["access"] == "pass" and other["events"] == []


async def test_no_local() -> None:
    async with managed_node() as node:
        peer = await node.client("both", 5)
        await peer.subscribe("t", qos=1, no_local=True)
        own = await asked(node, "both", "t", publisher="both")
        assert own["outcome"] == "not_received" and "No Local" in own["reason"]
        other = await asked(node, "both", "t", publisher="w")
        assert other["outcome"] == "received" and results(other)["no_local"] == "note"


async def test_an_offline_client_its_qos_and_its_queue() -> None:
    async with managed_node(zone={"max_queued_messages": 2}) as node:
        peer = await node.client("away", 5, properties={c.SESSION_EXPIRY_INTERVAL: 3600})
        await peer.subscribe("t", qos=1)
        await peer.disconnect()
        none = await asked(node, "away", "t", qos=0)
        assert none["outcome"] == "not_received"
        assert none["checks"][-2]["setting"] == "queue_qos0"
        waits = await asked(node, "away", "t", qos=1)
        assert waits["outcome"] == "waits" and results(waits)["connection"] == "wait"
        writer = await node.client("w")
        for _ in range(3):
            await writer.publish("t", b"", 1)
        full = await asked(node, "away", "t", qos=1)
        assert full["outcome"] == "waits" and "replaces the oldest" in str(full["checks"])
        assert [each["reason"] for each in full["events"]] == ["queue_full"]


async def test_a_queue_that_refuses() -> None:
    async with managed_node(zone={"max_queued_messages": 1, "queue_full": "refuse"}) as node:
        peer = await node.client("away", 5, properties={c.SESSION_EXPIRY_INTERVAL: 3600})
        await peer.subscribe("t", qos=1)
        await peer.disconnect()
        writer = await node.client("w", 5)
        await writer.publish("t", b"", 1)
        answer = await asked(node, "away", "t")
        assert answer["outcome"] == "not_received" and "is refused" in answer["reason"]
        assert await writer.publish("t", b"", 1, expect=None) >= 0x80


async def test_a_window_that_is_full() -> None:
    async with managed_node() as node:
        peer = await node.client("slow", 5, properties={c.RECEIVE_MAXIMUM: 1})
        await peer.subscribe("t", qos=1)
        writer = await node.client("w")
        for _ in range(3):
            await writer.publish("t", b"", 1)
        answer = await asked(node, "slow", "t")
        assert answer["outcome"] == "waits" and "in flight" in answer["reason"]


async def test_shared_groups_and_retained_messages() -> None:
    async with managed_node() as node:
        first, second = await node.client("a", 5), await node.client("b", 5)
        await first.subscribe("$share/g/t", qos=1)
        alone = await asked(node, "a", "t")
        assert alone["outcome"] == "received"
        await second.subscribe("$share/g/t", qos=1)
        writer = await node.client("w")
        await writer.publish("t", b"x", 1, retain=True)
        answer = await asked(node, "a", "t")
        assert answer["outcome"] == "shared" and "2 members" in answer["reason"]
        assert "not sent, because the subscription is shared" in answer["checks"][-1]["text"]
        await second.subscribe("t", qos=0, retain_handling=2)
        answer = await asked(node, "b", "t")
        assert answer["outcome"] == "received" and "never sent (Retain Handling 2)" in answer["checks"][-1]["text"]


async def test_a_client_of_another_node() -> None:
    async with fake_nodes(2) as nodes:
        peer = await nodes[1].client("far")
        await peer.subscribe("t", qos=0)
        answer = await asked(nodes[0], "far", "t")
        assert (answer["outcome"], answer["node"]) == ("received", "n2@host")
        nodes.hub.silent.add("n2@host")
        reply = await nodes[0].api.get("/explain/delivery", clientid="far", topic="t")
        assert reply.code == 101
