"""/metrics: every counter of the specification and of 4.4, and that each one moves for what it is named after."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Auth, Connack, Connect, Unsuback
from taipan.broker.observability.metrics import NAMES
from tests.scenarios.test_enhanced_authentication import verifier
from tests.support.api import ManagedNode, managed_node
from tests.support.scram_client import ScramClient

_SPECIFICATION = """
actions.success actions.failure rules.matched
bytes.received bytes.sent
client.authenticate client.auth.anonymous client.connect client.connack client.connected client.disconnected
client.check_acl client.subscribe client.unsubscribe
delivery.dropped delivery.dropped.too_large delivery.dropped.queue_full delivery.dropped.qos0_msg
delivery.dropped.expired delivery.dropped.no_local
messages.delayed messages.delivered messages.dropped messages.dropped.expired messages.dropped.no_subscribers
messages.forward messages.publish messages.qos0.received messages.qos1.received messages.qos2.received
messages.qos0.sent messages.qos1.sent messages.qos2.sent messages.received messages.sent messages.retained
messages.acked
packets.received packets.sent packets.connect.received packets.connack.auth_error packets.connack.error
packets.connack.sent packets.publish.received packets.publish.sent packets.publish.inuse packets.publish.auth_error
packets.publish.error packets.publish.dropped packets.puback.received packets.puback.sent packets.puback.inuse
packets.puback.missed packets.pubrec.received packets.pubrec.sent packets.pubrec.inuse packets.pubrec.missed
packets.pubrel.received packets.pubrel.sent packets.pubrel.missed packets.pubcomp.received packets.pubcomp.sent
packets.pubcomp.inuse packets.pubcomp.missed packets.subscribe.received packets.subscribe.error
packets.subscribe.auth_error packets.suback.sent packets.unsubscribe.received packets.unsubscribe.error
packets.unsuback.sent packets.pingreq.received packets.pingresp.sent packets.disconnect.received
packets.disconnect.sent packets.auth.received packets.auth.sent
session.created session.discarded session.resumed session.takeovered session.terminated
"""
_LATER = """
messages.dropped.await_pubrel_timeout client.auth.success client.auth.success.anonymous client.auth.failure
client.acl.allow client.acl.deny client.acl.cache_hit
"""


SPECIFICATION = _SPECIFICATION.split()
LATER = _LATER.split()


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with managed_node() as node:
            (entry,) = (await node.api.get("/metrics")).data
            assert entry["node"] == node.name
            assert (await node.api.get(f"/nodes/{node.name}/metrics")).data == entry["metrics"]
            metrics: dict[str, Any] = entry["metrics"]
            return metrics

    return asyncio.run(ask())


@pytest.mark.parametrize("name", [*SPECIFICATION, *LATER])
def test_every_metric(fresh: dict[str, Any], name: str) -> None:
    assert fresh[name] == 0  # nobody was there


def test_there_are_no_others(fresh: dict[str, Any]) -> None:
    # What the plugin for stored users had beside them up to 4.2.
    assert set(fresh) - {*SPECIFICATION, *LATER} == {"client.auth.ignore", "client.acl.ignore"}
    assert set(fresh) == set(NAMES)


async def metrics_of(node: ManagedNode) -> dict[str, int]:
    values: dict[str, int] = (await node.api.get(f"/nodes/{node.name}/metrics")).data
    return values


Story = Callable[[ManagedNode], Awaitable[dict[str, int]]]


async def connect(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    await peer.ping()
    await peer.disconnect()
    return {
        "client.connect": 1, "client.connack": 1, "client.connected": 1, "client.disconnected": 1,
        "client.authenticate": 1, "client.auth.anonymous": 1, "client.auth.success": 1,
        "client.auth.success.anonymous": 1, "packets.connect.received": 1, "packets.connack.sent": 1,
        "packets.pingreq.received": 1, "packets.pingresp.sent": 1, "packets.disconnect.received": 1,
        "packets.received": 3, "packets.sent": 2, "session.created": 1, "session.terminated": 1,
    }  # fmt: skip


async def publish(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    await peer.subscribe("t", qos=2)
    for qos in (0, 1, 2):
        await peer.publish("t", b"x", qos=qos)
        await peer.expect_publish("t", qos=qos)
    await peer.unsubscribe("t")
    await peer.publish("t", b"x", retain=True)
    return {
        "client.subscribe": 1, "client.unsubscribe": 1, "packets.subscribe.received": 1, "packets.suback.sent": 1,
        "packets.unsubscribe.received": 1, "packets.unsuback.sent": 1, "packets.publish.received": 4,
        "packets.publish.sent": 3, "messages.qos0.received": 2, "messages.qos1.received": 1,
        "messages.qos2.received": 1, "messages.received": 4, "messages.qos0.sent": 1, "messages.qos1.sent": 1,
        "messages.qos2.sent": 1, "messages.sent": 3, "messages.publish": 4, "messages.delivered": 3,
        "messages.acked": 2, "messages.retained": 1, "messages.dropped": 1, "messages.dropped.no_subscribers": 1,
        "packets.puback.received": 1, "packets.puback.sent": 1, "packets.pubrec.received": 1,
        "packets.pubrec.sent": 1, "packets.pubrel.received": 1, "packets.pubrel.sent": 1,
        "packets.pubcomp.received": 1, "packets.pubcomp.sent": 1, "client.check_acl": 2, "client.acl.allow": 5,
        "client.acl.cache_hit": 3,
    }  # fmt: skip


async def missed(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    for kind in (c.PUBACK, c.PUBREC, c.PUBREL, c.PUBCOMP):
        await peer.send(Ack(kind, 77))
    for kind in (c.PUBREL, c.PUBCOMP):  # answers to the second and the third
        await peer.expect(Ack, type=kind, packet_id=77)
    return {
        "packets.puback.missed": 1, "packets.pubrec.missed": 1, "packets.pubrel.missed": 1,
        "packets.pubcomp.missed": 1,
    }  # fmt: skip


async def in_use(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1", version=4)
    for _ in range(2):
        await peer.send(b"\x34\x06\x00\x01t\x00\x05x")
        await peer.expect_ack(c.PUBREC, 5)
    return {"packets.publish.inuse": 1, "messages.publish": 1}


async def delayed(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    await peer.publish("$delayed/9/t", b"x")
    return {"messages.delayed": 1, "messages.publish": 0}


async def no_local(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    await peer.subscribe("t", no_local=True)
    await peer.publish("t", b"x")
    return {"delivery.dropped.no_local": 1, "delivery.dropped": 1}


async def too_large(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("small", properties={c.MAXIMUM_PACKET_SIZE: 100})
    await peer.subscribe("t")
    await node.api.post("/mqtt/publish", {"clientid": "api", "topic": "t", "payload": "x" * 200})
    return {"delivery.dropped.too_large": 1, "delivery.dropped": 1}


async def offline(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1", expiry=100)
    await peer.subscribe("t", qos=1)
    await peer.disconnect()
    for qos in (0, 1, 1):
        body = {"clientid": "api", "topic": "t", "payload": "x", "qos": qos}
        await node.api.post("/mqtt/publish", {**body, "properties": {"message_expiry_interval": 5}})
    await node.pass_time(6)
    await node.client("c1", expiry=100)
    return {
        "delivery.dropped.qos0_msg": 1, "delivery.dropped.queue_full": 1, "delivery.dropped.expired": 1,
        "delivery.dropped": 3, "session.resumed": 1, "messages.received": 3,
    }  # fmt: skip


async def sessions(node: ManagedNode) -> dict[str, int]:
    await node.client("c1", expiry=100)
    await node.client("c1", expiry=100)
    await node.client("c1")
    return {
        "session.created": 2, "session.takeovered": 1, "session.resumed": 1, "session.discarded": 1,
        "packets.disconnect.sent": 2,
    }  # fmt: skip


async def never_released(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    await peer.send(b"\x34\x07\x00\x01t\x00\x05\x00x")
    await peer.expect_ack(c.PUBREC, 5, None)
    await node.pass_time(301)
    return {"messages.dropped.await_pubrel_timeout": 1, "messages.dropped.expired": 1}


async def acknowledgements_in_use(node: ManagedNode) -> dict[str, int]:
    for wrong, qos in ((c.PUBACK, 2), (c.PUBCOMP, 1)):
        peer = await node.client(f"c{qos}", version=4)
        await peer.subscribe("t", qos=2)
        await node.api.post("/mqtt/publish", {"clientid": "api", "topic": "t", "payload": "", "qos": qos})
        got = await peer.expect_publish("t", acknowledge=False)
        await peer.send(Ack(wrong, got.packet_id))
        await peer.expect_closed()
    peer = await node.client("twice", version=4)
    await peer.subscribe("t", qos=2)
    await node.api.post("/mqtt/publish", {"clientid": "api", "topic": "t", "payload": "", "qos": 2})
    got = await peer.expect_publish("t", acknowledge=False)
    for _ in range(2):
        await peer.pubrec(got.packet_id)
        await peer.expect_ack(c.PUBREL, got.packet_id)
    return {"packets.puback.inuse": 1, "packets.pubcomp.inuse": 1, "packets.pubrec.inuse": 1}


async def faults(node: ManagedNode) -> dict[str, int]:
    peer = await node.client("c1")
    await peer.publish("$delayed/x", b"", qos=1, expect=0x90)
    await peer.send(b"\x34\x07\x00\x01t\x00\x05\x00x")
    await peer.expect_ack(c.PUBREC, 5, None)
    await peer.send(b"\xa2\x06\x00\x05\x00\x00\x01t")  # UNSUBSCRIBE with the identifier of that PUBLISH
    await peer.expect(Unsuback, reason_codes=[0x91])
    await peer.send(b"\x34\x07\x00\x01t\x00\x06\x00x")  # beyond Receive Maximum
    await peer.expect_disconnect(0x93)
    return {
        "packets.publish.error": 1, "packets.unsubscribe.error": 1, "packets.publish.dropped": 1,
        "packets.disconnect.sent": 1,
    }  # fmt: skip


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        connect, publish, missed, in_use, delayed, no_local, too_large, offline, sessions, never_released,
        acknowledgements_in_use, faults,
    )
}  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("story", STORIES)
async def test_metrics_move(story: str) -> None:
    async with managed_node(zone={"max_queued_messages": 1, "receive_maximum": 1}) as node:
        expected = await STORIES[story](node)
        if story == "connect":
            await node.settled(0)  # what a connection sent last is counted when it is closed
        metrics = await metrics_of(node)
        got = {name: metrics[name] for name in expected}
        assert got == expected
        assert metrics["bytes.received"] > 0 < metrics["bytes.sent"]


@pytest.mark.asyncio
async def test_metrics_of_refusals() -> None:
    access: dict[str, Any] = {
        "users": [{"username": "u", "password_hash": str(ScryptHash.create(b"right", n=16))}],
        "rules": [{"allow": False, "topics": ["no/#"]}],
    }
    async with managed_node(zone={"allow_anonymous": True}, access=access) as node:
        for username, code in (("u", 0x86), (None, 0)):
            peer = await node.client(username=username, password=b"wrong" if username else None, expect=code)
        await peer.publish("no/1", b"x")
        await peer.subscribe("no/1", expect=[0x87])
        await peer.subscribe("a/#/b", expect=[0x8F])
        metrics = await metrics_of(node)
        expected = {
            "client.auth.failure": 1, "packets.connack.error": 1, "packets.connack.auth_error": 1,
            "packets.publish.auth_error": 1, "packets.subscribe.auth_error": 1, "packets.subscribe.error": 2,
            "client.acl.deny": 2,
        }  # fmt: skip
        assert {name: metrics[name] for name in expected} == expected


@pytest.mark.asyncio
async def test_metrics_of_enhanced_authentication() -> None:
    method = "SCRAM-SHA-256"
    scram = ScramClient("ann", "secret")
    access: dict[str, Any] = {"users": [{"username": "ann", "scram": verifier("secret")}]}
    async with managed_node(zone={"allow_anonymous": False}, access=access) as node:
        peer = node.peer()
        await peer.open()
        first = {c.AUTHENTICATION_METHOD: method, c.AUTHENTICATION_DATA: scram.first()}
        await peer.send(Connect(5, "c1", properties=first))
        challenge = await peer.expect(Auth, reason_code=0x18)
        final = scram.final(challenge.properties[c.AUTHENTICATION_DATA])
        await peer.auth(0x18, {c.AUTHENTICATION_METHOD: method, c.AUTHENTICATION_DATA: final})
        await peer.expect(Connack, reason_code=0)
        metrics = await metrics_of(node)
        assert (metrics["packets.auth.received"], metrics["packets.auth.sent"]) == (1, 1)
