"""/mqtt/publish, subscribe, unsubscribe and their batches."""

import base64
from typing import Any

import msgspec
import pytest

from taipan.broker.mqtt import constants as c
from tests.support.api import managed_node
from tests.support.killed import as_killed
from tests.support.waiting import LoopIterations

pytestmark = pytest.mark.asyncio

PUBLISH: dict[str, Any] = {"topic": "t/1", "clientid": "api", "payload": "hello"}
SUBSCRIBE: dict[str, Any] = {"topic": "t/1", "clientid": "c1"}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publish_reaches_a_subscriber(version: int, qos: int) -> None:
    async with managed_node() as node:
        peer = await node.client("c1", version=version)
        await peer.subscribe("t/#", qos=qos)
        before = node.server.metrics.snapshot()
        reply = await node.api.post("/mqtt/publish", {**PUBLISH, "qos": qos})
        assert (reply.status, reply.json) == (200, {"code": 0})
        got = await peer.expect_publish("t/1", b"hello", qos=qos)
        assert not got.retain
        after = node.server.metrics.snapshot()
        for name in ("messages.received", f"messages.qos{qos}.received", "messages.publish"):
            assert after[name] == before[name] + 1, name
        assert after["packets.publish.received"] == before["packets.publish.received"]


async def test_a_body_may_begin_with_a_byte_order_mark() -> None:
    async with managed_node() as node:
        raw = b"\xef\xbb\xbf" + msgspec.json.encode(PUBLISH)
        assert (await node.api.ask("POST", "/mqtt/publish", raw=raw)).json == {"code": 0}


PAYLOADS = ({"a": [1, None], "b": "\u00fc"}, [1, "x"], 5, 1.5, True, False)


@pytest.mark.parametrize("version", [4, 5])
async def test_a_payload_that_is_no_text_is_published_as_emqx_does_where_failures_are_as_emqx_has_them(
    version: int,
) -> None:
    """By the specification it is a String (docs/decisions/0143)."""
    async with managed_node({"error_status": "emqx"}) as node:
        peer = await node.client("c1", version)
        await peer.subscribe("t/#")
        for payload in PAYLOADS:
            assert (await node.api.post("/mqtt/publish", {**PUBLISH, "payload": payload})).json == {"code": 0}
            await peer.expect_publish("t/1", msgspec.json.encode(payload))
        reply = await node.api.post("/mqtt/publish_batch", [{**PUBLISH, "payload": {"a": 1}}])
        assert [each["code"] for each in reply.data] == [0]
        await peer.expect_publish("t/1", b'{"a":1}')
        refused = await node.api.post("/mqtt/publish", {**PUBLISH, "payload": {"a": 1}, "encoding": "base64"})
        assert refused.code == 108 and "base64" in refused.json["message"]
    async with managed_node() as node:
        for payload in (*PAYLOADS, None):
            reply = await node.api.post("/mqtt/publish", {**PUBLISH, "payload": payload})
            assert (reply.status, reply.code) == (400, 108) and "payload" in reply.json["message"]


async def test_nobody_need_be_named_where_failures_are_as_emqx_has_them() -> None:
    """By the specification ``clientid`` is required; EMQX publishes in nobody's name."""
    anonymous = {key: value for key, value in PUBLISH.items() if key != "clientid"}
    delayed = {**anonymous, "topic": "$delayed/1/t/later", "qos": 1}
    async with managed_node({"error_status": "emqx"}) as node:
        peer = await node.client("c1")
        await peer.subscribe("t/#", qos=1)
        for body in (anonymous, {**anonymous, "qos": 1, "retain": True}):
            assert (await node.api.post("/mqtt/publish", body)).json == {"code": 0}
            await peer.expect_publish("t/1", b"hello", qos=body.get("qos", 0))
        reply = await node.api.post("/mqtt/publish_batch", [anonymous, PUBLISH, delayed])
        assert [each["code"] for each in reply.data] == [0, 0, 0]
        for _ in range(2):
            await peer.expect_publish("t/1", b"hello")
        await node.pass_time(2)
        await peer.expect_publish("t/later", b"hello", qos=1)
        (kept,) = (await node.api.get("/retained")).data
        assert kept["from_clientid"] is None
        assert (await node.api.post("/mqtt/publish", {**anonymous, "clientid": None})).json == {"code": 0}
        await peer.expect_publish("t/1", b"hello")
        for wrong in ({**anonymous, "clientid": 5}, {**anonymous, "payload": None}):
            reply = await node.api.post("/mqtt/publish", wrong)
            assert (reply.status, reply.code) == (200, 108)
        for path in ("/mqtt/subscribe", "/mqtt/unsubscribe"):
            reply = await node.api.post(path, {"topic": "t"})
            assert (reply.status, reply.code) == (200, 107)
        document = (await node.api.get("/openapi.json")).json
        assert "clientid" not in document["components"]["schemas"]["NamelessPublishRequest"]["required"]
    async with managed_node() as node:
        for path, sent in (("/mqtt/publish", anonymous), ("/mqtt/publish_batch", [PUBLISH, anonymous])):
            reply = await node.api.post(path, sent)
            assert (reply.status, reply.code) == (400, 107)


PUBLISH_REFUSALS: dict[str, tuple[dict[str, Any], int, int]] = {
    "clientid-missing": ({"clientid": None}, 400, 107),
    "payload-missing": ({"payload": None}, 400, 107),
    "topic-and-topics-missing": ({"topic": None}, 400, 107),
    "clientid-number": ({"clientid": 5}, 400, 108),
    "payload-number": ({"payload": 5}, 400, 108),
    "topic-number": ({"topic": 5}, 400, 108),
    "topics-array": ({"topics": ["a"]}, 400, 108),
    "qos-3": ({"qos": 3}, 400, 108),
    "qos-negative": ({"qos": -1}, 400, 108),
    "qos-text": ({"qos": "one"}, 400, 108),
    "retain-text": ({"retain": "yes"}, 400, 108),
    "encoding-unknown": ({"encoding": "rot13"}, 400, 108),
    "base64-broken": ({"encoding": "base64", "payload": "***"}, 400, 108),
    "topic-empty": ({"topic": ""}, 400, 115),
    "topic-plus": ({"topic": "t/+"}, 400, 115),
    "topic-hash": ({"topic": "t/#"}, 400, 115),
    "topic-nul": ({"topic": "t\0"}, 400, 115),
    "topic-long": ({"topic": "t" * 65_536}, 400, 115),
    "topics-one-bad": ({"topic": None, "topics": "a,b/#"}, 400, 115),
    "topic-sys": ({"topic": "$SYS/x"}, 400, 115),
    "topic-delayed-malformed": ({"topic": "$delayed/x/y"}, 400, 115),
    "properties-unknown": ({"properties": {"nonsense": 1}}, 400, 108),
    "properties-text": ({"properties": "x"}, 400, 108),
    "payload_format_indicator-2": ({"properties": {"payload_format_indicator": 2}}, 400, 108),
    "message_expiry_interval-negative": ({"properties": {"message_expiry_interval": -1}}, 400, 108),
    "response_topic-wildcard": ({"properties": {"response_topic": "a/#"}}, 400, 115),
    "content_type-long": ({"properties": {"content_type": "x" * 65_536}}, 400, 108),
    "correlation_data-long": ({"properties": {"correlation_data": "x" * 65_536}}, 400, 108),
    "user_properties-array": ({"properties": {"user_properties": {"a": [1]}}}, 400, 108),
    "user_properties-many": ({"user_properties": {str(n): "" for n in range(16_385)}}, 400, 108),
    "topics-many": ({"topic": None, "topics": "a," * 10_000 + "a"}, 400, 108),
}  # fmt: skip


@pytest.mark.parametrize("case", PUBLISH_REFUSALS)
async def test_publish_refusal(case: str) -> None:
    changes, status, code = PUBLISH_REFUSALS[case]
    body = {key: value for key, value in {**PUBLISH, **changes}.items() if value is not None}
    async with managed_node() as node:
        for path, sent in (("/mqtt/publish", body), ("/mqtt/publish_batch", [PUBLISH, body])):
            reply = await node.api.post(path, sent)
            assert (reply.status, reply.code) == (status, code), reply.text
            assert reply.json["message"]
        # Nothing of a refused batch has happened.
        assert node.server.metrics.messages_received == 0


@pytest.mark.parametrize(
    "raw,code", [(b"{", 109), (b"[]", 108), (b"5", 108), (b"", 107), (b"null", 108)], ids=lambda value: str(value)
)
async def test_publish_body(raw: bytes, code: int) -> None:
    async with managed_node() as node:
        reply = await node.api.ask("POST", "/mqtt/publish", raw=raw)
        assert (reply.status, reply.code) == (400, code), reply.text


@pytest.mark.parametrize("key", ["topic", "topics"])
async def test_several_topics(key: str) -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("#")
        body = {"clientid": "api", "payload": "x", key: "w/a,w/b"}
        assert (await node.api.post("/mqtt/publish", body)).json == {"code": 0}
        await peer.expect_publish("w/a", b"x")
        await peer.expect_publish("w/b", b"x")
        assert node.server.metrics.messages_received == 2


async def test_topic_wins_over_topics() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("#")
        await node.api.post("/mqtt/publish", {**PUBLISH, "topics": "no/1"})
        await peer.expect_publish("t/1")
        await peer.nothing()


async def test_encoding_base64() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t/1")
        payload = base64.b64encode(b"\0\xff").decode()
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "encoding": "base64", "payload": payload})).code == 0
        await peer.expect_publish("t/1", b"\0\xff")


async def test_retain() -> None:
    async with managed_node() as node:
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "retain": True, "qos": 1})).code == 0
        peer = await node.client("c1")
        await peer.subscribe("t/1", qos=1)
        got = await peer.expect_publish("t/1", b"hello", qos=1)
        assert got.retain
        assert node.server.metrics.snapshot()["messages.retained"] == 1


PROPERTIES = {
    "payload_format_indicator": (1, c.PAYLOAD_FORMAT_INDICATOR, 1),
    "response_topic": ("a/b", c.RESPONSE_TOPIC, "a/b"),
    "correlation_data": ("id", c.CORRELATION_DATA, b"id"),
    "content_type": ("text", c.CONTENT_TYPE, "text"),
    "user_properties": (
        {"a": "b", "n": 1, "f": 1.5, "t": True},
        c.USER_PROPERTY,
        [("a", "b"), ("n", "1"), ("f", "1.5"), ("t", "true")],
    ),
}


@pytest.mark.parametrize("name", PROPERTIES)
async def test_property(name: str) -> None:
    given, identifier, expected = PROPERTIES[name]
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t/1")
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "properties": {name: given}})).code == 0
        got = await peer.expect_publish("t/1")
        assert got.properties == {identifier: expected}


async def test_property_message_expiry_interval() -> None:
    async with managed_node() as node:
        body = {**PUBLISH, "retain": True, "properties": {"message_expiry_interval": 60}}
        assert (await node.api.post("/mqtt/publish", body)).code == 0
        peer = await node.client("c1")
        await peer.subscribe("t/1")
        got = await peer.expect_publish("t/1")
        assert 1 <= got.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 60
        await node.pass_time(61)
        late = await node.client("late")
        await late.subscribe("t/1")
        await late.nothing()


async def test_user_properties_beside_properties() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t/1")
        body = {**PUBLISH, "user_properties": {"a": "1", "b": "1"}, "properties": {"user_properties": {"b": "2"}}}
        assert (await node.api.post("/mqtt/publish", body)).code == 0
        got = await peer.expect_publish("t/1")
        assert got.properties == {c.USER_PROPERTY: [("a", "1"), ("b", "2")]}


async def test_return_tells_the_ids() -> None:
    async with managed_node() as node:
        one = (await node.api.post("/mqtt/publish", {**PUBLISH, "return": True})).data["msgid"]
        assert len(one) == 32 and int(one, 16) and one == one.upper()
        body = {"clientid": "api", "payload": "", "topics": "a,b", "return": 1}
        assert len(set((await node.api.post("/mqtt/publish", body)).data["msgids"])) == 2
        (item,) = (await node.api.post("/mqtt/publish_batch", [body])).data
        assert len(item["msgids"]) == 2


async def test_a_query_key_wins_over_the_body() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("#", qos=1)
        assert (await node.api.post("/mqtt/publish", PUBLISH, qos=1, topic="q/1")).code == 0
        await peer.expect_publish("q/1", qos=1)


async def test_publish_goes_through_the_hooks() -> None:
    async with managed_node() as node:
        seen = []

        def refuse(message: Any) -> None:
            seen.append((message.publisher.client_id, message.topic, message.payload))

        node.server.hooks.message_publish.add(refuse)
        peer = await node.client("c1")
        await peer.subscribe("#")
        assert (await node.api.post("/mqtt/publish", PUBLISH)).code == 0
        await peer.nothing()
        assert seen == [("api", "t/1", b"hello")]


async def test_no_local_holds_for_who_it_is_published_as() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("#", no_local=True)
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "clientid": "c1"})).code == 0
        await peer.nothing()
        assert (await node.api.post("/mqtt/publish", PUBLISH)).code == 0
        await peer.expect_publish("t/1")


async def test_mountpoints_do_not_matter_to_publish_but_to_subscribe() -> None:
    async with managed_node(zone={"mountpoint": "m/%c/"}) as node:
        peer = await node.client("c1")
        assert (await node.api.post("/mqtt/subscribe", SUBSCRIBE)).code == 0
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "clientid": "c1"})).code == 0
        await peer.nothing()
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "topic": "m/c1/t/1"})).code == 0
        await peer.expect_publish("t/1")
        assert (await node.api.post("/mqtt/unsubscribe", SUBSCRIBE)).code == 0
        assert not node.server.broker.sessions.get("c1").subscriptions  # type: ignore[union-attr]


async def test_publish_delayed() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("#")
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "topic": "$delayed/10/t/1"})).code == 0
        await peer.nothing()
        assert node.server.metrics.messages_delayed == 1
        await node.pass_time(11)
        await peer.expect_publish("t/1", b"hello")


async def test_publish_delayed_too_far() -> None:
    async with managed_node(delayed={"max_seconds": 100}) as node:
        reply = await node.api.post("/mqtt/publish", {**PUBLISH, "topic": "$delayed/101/t/1"})
        assert (reply.status, reply.code) == (400, 108) and "delayed.max_seconds" in reply.json["message"]
        assert node.server.delayed.count == 0


async def test_a_full_queue_that_refuses() -> None:
    async with managed_node(zone={"queue_full": "refuse", "max_queued_messages": 1}) as node:
        peer = await node.client("c1", expiry=100)
        await peer.subscribe("#", qos=1)
        await peer.disconnect()
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "qos": 1})).code == 0
        reply = await node.api.post("/mqtt/publish", {**PUBLISH, "qos": 1})
        assert (reply.status, reply.code) == (500, 101) and "queue_full" in reply.json["message"]
        (item,) = (await node.api.post("/mqtt/publish_batch", [{**PUBLISH, "qos": 1}])).data
        assert (item["topic"], item["code"]) == ("t/1", 101)


RETAINED = {
    "retained.max_payload_size": ({"max_payload_size": 4}, "t/1"),
    "retained.max_messages": ({"max_messages": 1}, "t/2"),
    "retained.max_bytes": ({"max_bytes": 1000}, "t/2"),
}


@pytest.mark.parametrize("setting", RETAINED)
async def test_what_cannot_be_retained(setting: str) -> None:
    settings, topic = RETAINED[setting]
    async with managed_node(retained=settings) as node:
        kept = {**PUBLISH, "retain": True, "payload": "tiny"}
        assert (await node.api.post("/mqtt/publish", kept)).code == 0
        reply = await node.api.post("/mqtt/publish", {**PUBLISH, "retain": True, "topic": topic})
        assert (reply.status, reply.code) == (400, 108) and setting in reply.json["message"]
        delayed = {**PUBLISH, "retain": True, "topic": f"$delayed/9/{topic}"}
        for row in (await node.api.post("/mqtt/publish_batch", [delayed, {**delayed, "topic": topic}])).data:
            assert row["code"] == 108 and setting in row["message"]
        # What clears a topic, or is not retained, is fine.
        assert (await node.api.post("/mqtt/publish", {**kept, "topic": topic, "payload": ""})).code == 0
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "topic": topic})).code == 0


async def test_what_was_answered_is_on_disk(tmp_path: Any) -> None:
    config: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path / "data")}}
    async with managed_node(**config) as node:
        peer = await node.client("c1", expiry=1000)
        await peer.disconnect()
        reply = await node.api.post("/mqtt/subscribe", {**SUBSCRIBE, "topic": "t/#", "qos": 2})
        assert reply.json == {"code": 0}
        subscribed = as_killed(tmp_path / "data", tmp_path / "subscribed")
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "qos": 1, "retain": True})).code == 0
        published = as_killed(tmp_path / "data", tmp_path / "published")
    async with managed_node(**{**config, "node": {"data_dir": str(subscribed)}}) as node:
        session = node.server.broker.sessions.get("c1")
        assert session is not None and list(session.subscriptions) == ["t/#"]
    async with managed_node(**{**config, "node": {"data_dir": str(published)}}) as node:
        assert node.server.broker.retained.get("t/1") is not None
        peer = await node.client("c1", expiry=1000)
        await peer.expect_publish("t/1", b"hello", qos=1)
        await peer.puback(1)
        await peer.disconnect()
        assert (await node.api.post("/mqtt/unsubscribe", {"clientid": "c1", "topic": "t/#"})).code == 0
    async with managed_node(**{**config, "node": {"data_dir": str(published)}}) as node:
        session = node.server.broker.sessions.get("c1")
        assert session is not None and not session.subscriptions


@pytest.mark.parametrize(
    "path,body",
    [
        ("/mqtt/publish", {**PUBLISH, "retain": True}),
        ("/mqtt/subscribe", SUBSCRIBE),
        ("/mqtt/unsubscribe", SUBSCRIBE),
    ],
)
async def test_nothing_is_promised_while_the_store_is_in_trouble(path: str, body: dict[str, Any]) -> None:
    async with managed_node(durability={"level": "disk"}) as node:
        peer = await node.client("c1", expiry=1000)
        await peer.disconnect()
        durability = node.server.broker.durability
        assert durability is not None
        durability.commit.trouble = "the disk is full"
        node.ignore(lambda record: record.getMessage().startswith("audit_not_stored "))
        reply = await node.api.post(path, body)
        assert (reply.status, reply.code) == (500, 101)
        (item,) = (await node.api.post(path + "_batch", [body])).data
        assert item["code"] == 101
        # What needs no disk goes on.
        assert (await node.api.post("/mqtt/publish", PUBLISH)).code == 0
        durability.commit.trouble = None
        assert (await node.api.post(path, body)).code == 0


async def test_publish_batch() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("#", qos=1)
        batch = [PUBLISH, {"clientid": "api", "payload": "2", "topics": "b,c", "qos": 1}]
        reply = await node.api.post("/mqtt/publish_batch", batch)
        assert reply.json == {"code": 0, "data": [{"topic": "t/1", "code": 0}, {"topic": "b,c", "code": 0}]}
        await peer.expect_publish("t/1", b"hello")
        await peer.expect_publish("b", b"2", qos=1)
        await peer.expect_publish("c", b"2", qos=1)
        assert (await node.api.post("/mqtt/publish_batch", [])).data == []


async def test_publish_batch_tells_what_became_of_each() -> None:
    async with managed_node(delayed={"max_messages": 1}) as node:
        batch = [{**PUBLISH, "topic": f"$delayed/10/{name}"} for name in "ab"]
        first, second = (await node.api.post("/mqtt/publish_batch", batch)).data
        assert first["code"] == 0
        assert second["code"] == 108 and "delayed.max_messages" in second["message"]


async def test_a_large_batch_holds_nobody_up() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("bulk/#")
        iterations, seen = LoopIterations(), set[int]()
        node.server.broker.hooks.message_delivered.add(lambda client, message: seen.add(iterations.count))
        batch = [{**PUBLISH, "topic": f"bulk/{number}"} for number in range(5000)]
        assert len((await node.api.post("/mqtt/publish_batch", batch)).data) == 5000
        assert node.server.metrics.messages_received == 5000
        iterations.stop()
        assert len(seen) >= 2  # the loop went on meanwhile
        for number in range(5000):
            await peer.expect_publish(f"bulk/{number}")


# Subscribe


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_subscribe_an_online_client(version: int, qos: int) -> None:
    async with managed_node() as node:
        await node.api.post("/mqtt/publish", {**PUBLISH, "topic": "t/kept", "retain": True})
        peer = await node.client("c1", version=version)
        reply = await node.api.post("/mqtt/subscribe", {**SUBSCRIBE, "topic": "t/#", "qos": qos})
        assert (reply.status, reply.json) == (200, {"code": 0})
        assert (await peer.expect_publish("t/kept", b"hello")).retain
        await node.api.post("/mqtt/publish", {**PUBLISH, "qos": 2})
        await peer.expect_publish("t/1", b"hello", qos=qos)


SUBSCRIBE_REFUSALS: dict[str, tuple[dict[str, Any], int, int]] = {
    "clientid-missing": ({"clientid": None}, 400, 107),
    "topic-and-topics-missing": ({"topic": None}, 400, 107),
    "clientid-number": ({"clientid": 1}, 400, 108),
    "qos-3": ({"qos": 3}, 400, 108),
    "qos-text": ({"qos": "x"}, 400, 108),
    "topic-number": ({"topic": 1}, 400, 108),
    "topic-empty": ({"topic": ""}, 400, 115),
    "topic-hash-inside": ({"topic": "a/#/b"}, 400, 115),
    "topic-plus-in-word": ({"topic": "a+"}, 400, 115),
    "share-without-filter": ({"topic": "$share/x"}, 400, 115),
    "share-bad-filter": ({"topic": "$share/x/a/#/b"}, 400, 115),
    "topics-one-bad": ({"topic": None, "topics": "a,"}, 400, 115),
    "topic-long": ({"topic": "t" * 65_536}, 400, 115),
}  # fmt: skip


@pytest.mark.parametrize("case", SUBSCRIBE_REFUSALS)
async def test_subscribe_refusal(case: str) -> None:
    changes, status, code = SUBSCRIBE_REFUSALS[case]
    body = {key: value for key, value in {**SUBSCRIBE, **changes}.items() if value is not None}
    async with managed_node() as node:
        await node.client("c1")
        for path, sent in (("/mqtt/subscribe", body), ("/mqtt/subscribe_batch", [SUBSCRIBE, body])):
            reply = await node.api.post(path, sent)
            assert (reply.status, reply.code) == (status, code), reply.text
        assert not node.server.broker.sessions.get("c1").subscriptions  # type: ignore[union-attr]


UNSUBSCRIBE_REFUSALS: dict[str, tuple[dict[str, Any], int, int]] = {
    "clientid-missing": ({"clientid": None}, 400, 107),
    "topic-missing": ({"topic": None}, 400, 107),
    "clientid-number": ({"clientid": 1}, 400, 108),
    "topic-number": ({"topic": 1}, 400, 108),
    "topic-empty": ({"topic": ""}, 400, 115),
    "topic-hash-inside": ({"topic": "a/#/b"}, 400, 115),
    "share-without-filter": ({"topic": "$share/x"}, 400, 115),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSUBSCRIBE_REFUSALS)
async def test_unsubscribe_refusal(case: str) -> None:
    changes, status, code = UNSUBSCRIBE_REFUSALS[case]
    body = {key: value for key, value in {**SUBSCRIBE, **changes}.items() if value is not None}
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t/1")
        for path, sent in (("/mqtt/unsubscribe", body), ("/mqtt/unsubscribe_batch", [SUBSCRIBE, body])):
            reply = await node.api.post(path, sent)
            assert (reply.status, reply.code) == (status, code), reply.text
        assert list(node.server.broker.sessions.get("c1").subscriptions) == ["t/1"]  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["/mqtt/subscribe", "/mqtt/unsubscribe"])
async def test_a_client_that_is_not_there(path: str) -> None:
    async with managed_node() as node:
        await node.client("c1")
        reply = await node.api.post(path, {**SUBSCRIBE, "clientid": "nobody"})
        assert (reply.status, reply.code) == (404, 112)
        batch = [SUBSCRIBE, {**SUBSCRIBE, "clientid": "nobody"}]
        first, second = (await node.api.post(path + "_batch", batch)).data
        assert first == {"clientid": "c1", "topic": "t/1", "code": 0}
        assert (second["clientid"], second["topic"], second["code"]) == ("nobody", "t/1", 112)
        # Publishing as somebody who is not there is fine.
        assert (await node.api.post("/mqtt/publish", {**PUBLISH, "clientid": "nobody"})).code == 0


async def test_subscribe_several_topics() -> None:
    async with managed_node() as node:
        await node.client("c1")
        assert (await node.api.post("/mqtt/subscribe", {"clientid": "c1", "topics": "a,b/+", "qos": 2})).code == 0
        session = node.server.broker.sessions.get("c1")
        assert session is not None
        assert {each.filter: each.qos for each in session.subscriptions.values()} == {"a": 2, "b/+": 2}


@pytest.mark.parametrize("filter", ["$share/g/t/1", "$queue/t/1"])
async def test_shared_subscription(filter: str) -> None:
    async with managed_node() as node:
        peers = [await node.client(name) for name in ("c1", "c2")]
        for peer in peers:
            assert (await node.api.post("/mqtt/subscribe", {"clientid": peer.client_id, "topic": filter})).code == 0
        await node.api.post("/mqtt/publish_batch", [PUBLISH] * 4)
        assert node.server.metrics.messages_qos0_received == 4
        assert node.server.broker.router.shared_count == 2
        listed = filter.replace("$queue/", "$share/$queue/")
        for peer in peers:
            assert (await node.api.post("/mqtt/unsubscribe", {"clientid": peer.client_id, "topic": listed})).code == 0
        assert node.server.broker.router.shared_count == 0


async def test_max_subscriptions() -> None:
    async with managed_node(zone={"max_subscriptions": 2}) as node:
        await node.client("c1")
        reply = await node.api.post("/mqtt/subscribe", {"clientid": "c1", "topics": "a,b,c"})
        assert (reply.status, reply.code) == (400, 108) and "max_subscriptions" in reply.json["message"]
        assert not node.server.broker.sessions.get("c1").subscriptions  # type: ignore[union-attr]
        batch = [{"clientid": "c1", "topic": topic} for topic in ("a", "b", "c", "a")]
        codes = [item["code"] for item in (await node.api.post("/mqtt/subscribe_batch", batch)).data]
        assert codes == [0, 0, 108, 0]


ZONES: dict[str, tuple[dict[str, Any], str]] = {
    "wildcard_subscription": ({"wildcard_subscription": False}, "a/#"),
    "shared_subscription": ({"shared_subscription": False}, "$share/g/a"),
    "max_topic_levels": ({"max_topic_levels": 2}, "a/b/c"),
}


@pytest.mark.parametrize("setting", ZONES)
async def test_what_the_zone_forbids(setting: str) -> None:
    zone, filter = ZONES[setting]
    async with managed_node(zone=zone) as node:
        await node.client("c1")
        reply = await node.api.post("/mqtt/subscribe", {"clientid": "c1", "topic": filter})
        assert (reply.status, reply.code) == (400, 115) and setting in reply.json["message"]


async def test_max_qos_caps_the_subscription() -> None:
    async with managed_node(zone={"max_qos": 1}) as node:
        await node.client("c1")
        assert (await node.api.post("/mqtt/subscribe", {**SUBSCRIBE, "qos": 2})).code == 0
        assert node.server.broker.sessions.get("c1").subscriptions["t/1"].qos == 1  # type: ignore[union-attr]


async def test_unsubscribe() -> None:
    async with managed_node() as node:
        peer = await node.client("c1")
        await peer.subscribe("t/1")
        assert (await node.api.post("/mqtt/unsubscribe", {"clientid": "c1", "topic": "never"})).json == {"code": 0}
        assert (await node.api.post("/mqtt/unsubscribe", SUBSCRIBE)).json == {"code": 0}
        await node.api.post("/mqtt/publish", PUBLISH)
        await peer.nothing()


async def test_subscribe_and_unsubscribe_batch() -> None:
    async with managed_node() as node:
        peers = [await node.client(name) for name in ("c1", "c2")]
        batch = [{"clientid": "c1", "topic": "a", "qos": 1}, {"clientid": "c2", "topics": "b,c"}]
        reply = await node.api.post("/mqtt/subscribe_batch", batch)
        assert reply.data == [
            {"clientid": "c1", "topic": "a", "code": 0},
            {"clientid": "c2", "topic": "b,c", "code": 0},
        ]
        await node.api.post("/mqtt/publish", {**PUBLISH, "topics": "a,b", "topic": "a,b"})
        await peers[0].expect_publish("a")
        await peers[1].expect_publish("b")
        batch = [{"clientid": "c1", "topic": "a"}, {"clientid": "c2", "topic": "b"}]
        reply = await node.api.post("/mqtt/unsubscribe_batch", batch)
        assert [item["code"] for item in reply.data] == [0, 0]
        assert node.server.broker.router.subscription_count == 1


async def test_what_bounds_a_client_s_subscriptions_bounds_an_operator_s() -> None:
    """The rules of a SUBSCRIBE, from the same place; access rules aside."""
    async with managed_node(zone={"max_subscription_bytes": 10}) as node:
        peer = await node.client("c", 5)
        await peer.subscribe("12345678")
        for topic in ("123", "a,12"):
            reply = await node.api.post("/mqtt/subscribe", {"clientid": "c", "topic": topic, "qos": 0})
            assert reply.code != 0 and "max_subscription_bytes" in reply.json["message"], topic
        assert (await node.api.post("/mqtt/subscribe", {"clientid": "c", "topic": "12", "qos": 0})).code == 0
