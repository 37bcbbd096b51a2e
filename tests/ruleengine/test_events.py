"""Every event, made by a real client: its columns and their types."""

import asyncio
from typing import Any

import msgspec
import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Unsubscribe
from taipan.ruleengine.events.kinds import EVENTS, KINDS
from tests.support.rule_engine_node import RuleEngineNode, rule_engine_node

STRING, INTEGER, BOOLEAN, OBJECT = str, int, bool, dict
TYPES: dict[str, type] = {
    **dict.fromkeys(("event", "node", "id", "clientid", "from_clientid", "topic", "payload", "peerhost"), STRING),
    **dict.fromkeys(("peername", "sockname", "proto_name", "reason", "reason_code", "action", "result"), STRING),
    **dict.fromkeys(("username", "from_username", "mountpoint"), STRING),
    **dict.fromkeys(("timestamp", "qos", "proto_ver", "keepalive", "expiry_interval", "receive_maximum"), INTEGER),
    **dict.fromkeys(("publish_received_at", "connected_at", "disconnected_at"), INTEGER),
    **dict.fromkeys(("clean_start", "is_bridge", "is_cache"), BOOLEAN),
    **dict.fromkeys(("flags", "headers", "pub_props", "sub_props", "unsub_props", "puback_props"), OBJECT),
    **dict.fromkeys(("conn_props", "disconn_props"), OBJECT),
}
LISTED = [kind.topic.removeprefix("$events/") for kind in KINDS]


async def publish(node: RuleEngineNode) -> None:
    client = await node.client("source", username="u")
    await client.publish("t/a", b"hello", 1)


async def deliver(node: RuleEngineNode) -> None:
    subscriber = await node.client("sink", username="v")
    await subscriber.subscribe("t/#", qos=1)
    await publish(node)
    message = await subscriber.expect_publish("t/a", acknowledge=False)
    await subscriber.send(Ack(c.PUBACK, message.packet_id, 0, {c.USER_PROPERTY: [("k", "v")]}))
    await subscriber.ping()


async def drop_delivery(node: RuleEngineNode) -> None:
    client = await node.client("both", username="u")
    await client.subscribe("t/#", qos=1, no_local=True)
    await client.publish("t/a", b"hello", 1)


async def connect(node: RuleEngineNode) -> None:
    properties = {c.RECEIVE_MAXIMUM: 7, c.SESSION_EXPIRY_INTERVAL: 60, c.USER_PROPERTY: [("k", "v"), ("k", "w")]}
    await node.client("source", username="u", keep_alive=30, properties=properties)


async def disconnect(node: RuleEngineNode) -> None:
    client = await node.client("source", username="u")
    await client.disconnect(0, {c.REASON_STRING: "done"})


async def subscribe(node: RuleEngineNode) -> None:
    client = await node.client("source", username="u")
    await client.subscribe("t/#", qos=1, properties={c.USER_PROPERTY: [("k", "v")]}, identifier=3)


async def unsubscribe(node: RuleEngineNode) -> None:
    client = await node.client("source", username="u")
    await client.subscribe("t/#", qos=1)
    await client.send(Unsubscribe(77, ["t/#"], {c.USER_PROPERTY: [("k", "v")]}))
    await client.ping()


CAUSES: dict[str, Any] = {
    "message_publish": (publish, {"topic": "t/a", "payload": "hello", "qos": 1, "clientid": "source", "username": "u"}),
    "message_delivered": (
        deliver,
        {"from_clientid": "source", "from_username": "u", "clientid": "sink", "username": "v", "payload": "hello"},
    ),
    "message_acked": (
        deliver,
        {"from_clientid": "source", "clientid": "sink", "qos": 1, "puback_props": {
            "User-Property": {"k": "v"}, "User-Property-Pairs": [{"key": "k", "value": "v"}]}},
    ),
    "message_dropped": (publish, {"reason": "no_subscribers", "clientid": "source", "topic": "t/a"}),
    "delivery_dropped": (drop_delivery, {"reason": "no_local", "from_clientid": "both", "clientid": "both"}),
    "client_connected": (
        connect,
        {"clientid": "source", "username": "u", "proto_ver": 5, "proto_name": "MQTT", "keepalive": 30,
         "receive_maximum": 7, "expiry_interval": 60, "clean_start": True, "is_bridge": False,
         "conn_props": {"Receive-Maximum": 7, "Session-Expiry-Interval": 60, "User-Property": {"k": "w"},
                        "User-Property-Pairs": [{"key": "k", "value": "v"}, {"key": "k", "value": "w"}]}},
    ),
    "client_disconnected": (
        disconnect,
        {"clientid": "source", "reason": "normal", "disconn_props": {"Reason-String": "done"}},
    ),
    "client_connack": (connect, {"clientid": "source", "reason_code": "success", "keepalive": 30}),
    "session_subscribed": (
        subscribe,
        {"clientid": "source", "topic": "t/#", "qos": 1, "sub_props": {"Subscription-Identifier": 3,
         "User-Property": {"k": "v"}, "User-Property-Pairs": [{"key": "k", "value": "v"}]}},
    ),
    "session_unsubscribed": (
        unsubscribe,
        {"clientid": "source", "topic": "t/#", "qos": 1, "unsub_props": {
            "User-Property": {"k": "v"}, "User-Property-Pairs": [{"key": "k", "value": "v"}]}},
    ),
    "client_check_acl_complete": (
        publish,
        {"clientid": "source", "username": "u", "topic": "t/a", "action": "publish", "result": "allow",
         "is_cache": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("event", LISTED)
@pytest.mark.asyncio
async def test_every_event(event: str) -> None:
    cause, expected = CAUSES[event]
    source = "t/#" if event == "message_publish" else f"$events/{event}"
    async with rule_engine_node() as node:
        await node.rule(f'SELECT * FROM "{source}"')
        await cause(node)
        (row,) = (await node.until_kept(1))[:1]
        assert {key: row[key] for key in expected} == expected
        kind = next(kind for kind in KINDS if kind.topic.endswith("/" + event))
        assert row["event"] == kind.name
        assert row["metadata"] == {"rule_id": row["_rule"]}
        row.pop("metadata")
        row.pop("_rule")
        assert row.keys() == kind.makers.keys()
        for name, value in row.items():
            if name == "mountpoint":
                assert repr(value) == "undefined"
            else:
                assert type(value) is TYPES[name], name
        if "id" in row:
            assert len(row["id"]) == 32 and row["id"] == row["id"].upper() and int(row["id"], 16) >= 0
        for name in row.keys() & {"peerhost"}:
            assert row[name] == "127.0.0.1"
        if "sockname" in row:
            assert row["sockname"] == f"127.0.0.1:{node.address().port}"
            assert row["peername"].startswith("127.0.0.1:")


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.asyncio
async def test_a_client_without_properties(version: int) -> None:
    async with rule_engine_node({"max_inflight": 20}) as node:
        await node.rule('SELECT * FROM "$events/client_connected"')
        await node.rule('SELECT * FROM "$events/client_disconnected"')
        client = await node.client("old", version)
        client.abort()
        connected, disconnected = await node.until_kept(2)
        assert (connected["proto_ver"], connected["conn_props"], connected["receive_maximum"]) == (version, {}, 20)
        assert repr(connected["username"]) == "undefined"
        assert (disconnected["reason"], disconnected["disconn_props"]) == ("tcp_closed", {})


@pytest.mark.asyncio
async def test_a_message_has_one_id_everywhere() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT id FROM "t/#"')
        await node.rule('SELECT id FROM "$events/message_delivered"')
        await node.rule('SELECT id FROM "$events/message_acked"')
        await deliver(node)
        rows = await node.until_kept(3)
        assert len({row["id"] for row in rows}) == 1
        await publish(node)
        assert len({row["id"] for row in await node.until_kept(4)}) == 2


@pytest.mark.parametrize("version, name", [(5, "not_authorized"), (4, "unauthorized_client")])
@pytest.mark.asyncio
async def test_a_refused_client_has_a_connack_event(version: int, name: str) -> None:
    async with rule_engine_node({"allow_anonymous": False}) as node:
        await node.rule('SELECT reason_code, clientid FROM "$events/client_connack"')
        await node.rule('SELECT clientid FROM "$events/client_connected"')
        await node.client("who", version, expect=None)
        (row,) = await node.until_kept(1)
        assert (row["clientid"], row["reason_code"]) == ("who", name)


@pytest.mark.asyncio
async def test_a_denied_publish_is_seen_by_the_access_event() -> None:
    rules = [{"allow": False, "action": "publish", "topics": ["secret"]}]
    async with rule_engine_node(access={"rules": rules}) as node:
        await node.rule('SELECT topic, action, result, is_cache FROM "$events/client_check_acl_complete"')
        client = await node.client()
        await client.publish("secret")
        (row,) = await node.until_kept(1)
        assert (row["topic"], row["action"], row["result"], row["is_cache"]) == ("secret", "publish", "deny", False)


def listens(node: RuleEngineNode) -> bool:
    """Whether the broker tells the engine of published messages."""
    return node.server.broker.rule_index is not None


@pytest.mark.asyncio
async def test_a_hook_is_attached_only_while_an_enabled_rule_asks() -> None:
    async with rule_engine_node() as node:
        hooks = node.server.hooks
        before = {name: len(point) for name, point in hooks.points.items()}
        rules = [await node.rule(f'SELECT * FROM "{topic}"') for topic in ("t/#", *EVENTS)]
        during = {name: len(point) for name, point in hooks.points.items()}
        assert sum(during.values()) - sum(before.values()) == len(EVENTS)
        assert listens(node)
        for rule in rules[::2]:
            await node.engine.rules.delete(rule)
        for rule in rules[1::2]:
            await node.engine.rules.update(rule, {"enabled": False})
        assert {name: len(point) for name, point in hooks.points.items()} == before
        assert not listens(node)
        await node.engine.rules.update(rules[1], {"enabled": True})
        assert sum(len(point) for point in hooks.points.values()) == sum(before.values()) + 1


@pytest.mark.asyncio
async def test_a_payload_that_is_no_text_stays_binary() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT payload FROM "t/#"')
        client = await node.client()
        await client.publish("t/a", b"\xff\x00")
        assert (await node.until_kept(1))[0]["payload"] == b"\xff\x00"


@pytest.mark.asyncio
async def test_system_messages_are_ignored_unless_asked_for() -> None:
    from taipan.broker.mqtt.message import Message

    for ignored, count in ((True, 0), (False, 1)):
        async with rule_engine_node(rules={"ignore_sys_message": ignored}) as node:
            await node.rule('SELECT topic FROM "$SYS/#"')
            node.server.broker.publish(Message("$SYS/x", b""))
            node.server.alarms.activate("fire", "smoke")  # what the node itself tells is routed another way
            await asyncio.sleep(0)
            assert len(node.kept) == 2 * count
            await node.client()  # presence, which is made only where it reaches somebody
            assert len(node.kept) == 3 * count


@pytest.mark.parametrize("kind", KINDS, ids=LISTED)
def test_every_event_has_a_record_to_write_rules_by(kind: Any) -> None:
    record = msgspec.to_builtins(kind.record())
    assert list(record) == ["event", "title", "description", "columns", "test_columns", "sql_example"]
    assert all(record[key]["en"] and record[key]["zh"] for key in ("title", "description"))
    assert set(record["test_columns"]) <= set(record["columns"])
    assert set(TYPES) >= set(record["columns"])
