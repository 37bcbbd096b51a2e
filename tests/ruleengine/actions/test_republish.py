"""``republish`` with real clients: what it publishes, what it refuses, and how loops end."""

import sys
from types import FrameType
from typing import Any

import pytest

from taipan.broker.config import ZoneSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.session.client_info import ClientInfo
from taipan.ruleengine.error import RuleEngineError
from tests.publish_path import place
from tests.support.rule_engine_node import RuleEngineNode, rule_engine_node


def republish(topic: str, **params: Any) -> dict[str, Any]:
    return {"name": "republish", "params": {"target_topic": topic, **params}}


def failures(node: RuleEngineNode, rule_id: str) -> int:
    return int(node.engine.rules.lookup(rule_id).actions[0].metrics[0].failed)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.asyncio
async def test_a_message_made_of_the_result(version: int) -> None:
    async with rule_engine_node() as node:
        await node.rule(
            'SELECT clientid, payload.x as x, qos FROM "in/#"',
            republish("out/${clientid}", target_qos="${qos}", payload_tmpl="x is ${x}"),
        )
        subscriber = await node.client(version=version)
        await subscriber.subscribe("out/#", qos=2)
        client = await node.client("me", version)
        await client.publish("in/1", b'{"x": 1.5}', 1)
        message = await subscriber.expect_publish("out/me")
        assert (message.payload, message.qos) == (b"x is 1.5", 1)


@pytest.mark.parametrize(
    "params, qos, retain, payload",
    [
        ({}, 0, False, b"p"),
        ({"target_qos": 1}, 1, False, b"p"),
        ({"target_qos": "2"}, 2, False, b"p"),
        ({"target_qos": -1}, 1, False, b"p"),
        ({"target_retain": True}, 0, True, b"p"),
        ({"target_retain": "true"}, 0, True, b"p"),
        ({"target_retain": 1}, 0, True, b"p"),
        ({"target_retain": "${flags.retain}"}, 0, True, b"p"),
        ({"payload_tmpl": "fixed"}, 0, False, b"fixed"),
    ],
)
@pytest.mark.asyncio
async def test_every_parameter(params: dict[str, Any], qos: int, retain: bool, payload: bytes) -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT * FROM "in"', republish("out", **params))
        subscriber = await node.client()
        await subscriber.subscribe("out", qos=2, retain_as_published=True)
        client = await node.client()
        await client.publish("in", b"p", 1, retain=True)
        message = await subscriber.expect_publish("out")
        assert (message.qos, message.retain, message.payload) == (qos, retain, payload)


@pytest.mark.asyncio
async def test_an_empty_template_is_the_whole_result_and_binary_stays_binary() -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT topic, qos FROM "in"', republish("json", payload_tmpl=""))
        await node.rule('SELECT payload FROM "in"', republish("binary"))
        subscriber = await node.client()
        await subscriber.subscribe("json", "binary")
        client = await node.client()
        await client.publish("in", b"\xff\xfe")
        assert (await subscriber.expect_publish("json")).payload == b'{"topic":"in","qos":0}'
        assert (await subscriber.expect_publish("binary")).payload == b"\xff\xfe"


@pytest.mark.parametrize("given", [{"from": "${clientid}", "kind": "fixed"}, "${pub_props.User-Property}"])
@pytest.mark.asyncio
async def test_user_properties(given: Any) -> None:
    async with rule_engine_node() as node:
        await node.rule('SELECT * FROM "in"', republish("out", user_properties=given))
        subscriber = await node.client()
        await subscriber.subscribe("out")
        client = await node.client("me")
        await client.publish("in", properties={c.USER_PROPERTY: [("from", "me"), ("kind", "fixed")]})
        message = await subscriber.expect_publish("out")
        assert message.properties[c.USER_PROPERTY] == [("from", "me"), ("kind", "fixed")]


def pairs(*given: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in given]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.asyncio
async def test_properties_as_emqx_enterprise_has_them(version: int) -> None:
    """``user_properties_template`` and ``mqtt_properties_template``; clients of 3.1.1 get the message without them."""
    async with rule_engine_node() as node:
        await node.rule(
            'SELECT clientid, payload.s as s, payload.k as k FROM "in"',
            republish(
                "out",
                user_properties_template=pairs(("from", "${clientid}"), ("x-${k}", "1"), ("from", ""), ("", "")),
                mqtt_properties_template=pairs(
                    ("Payload-Format-Indicator", "1"),
                    ("Message-Expiry-Interval", "${s}"),
                    ("Content-Type", "text/${k}"),
                    ("Response-Topic", "answers/${clientid}"),
                    ("Correlation-Data", "${k}-${s}"),
                ),
                payload_tmpl="p",
            ),
        )
        subscriber = await node.client(version=version)
        await subscriber.subscribe("out")
        client = await node.client("me", version)
        await client.publish("in", b'{"s": 60, "k": "plain"}')
        message = await subscriber.expect_publish("out", b"p")
        assert message.properties == ({} if version == 4 else {
            c.USER_PROPERTY: [("from", "me"), ("x-plain", "1"), ("from", "")],
            c.PAYLOAD_FORMAT_INDICATOR: 1,
            c.MESSAGE_EXPIRY_INTERVAL: 60,
            c.CONTENT_TYPE: "text/plain",
            c.RESPONSE_TOPIC: "answers/me",
            c.CORRELATION_DATA: b"plain-60",
        })  # fmt: skip


@pytest.mark.asyncio
async def test_a_property_without_a_value_is_left_out() -> None:
    async with rule_engine_node() as node:
        names = ("Response-Topic", "Correlation-Data", "Message-Expiry-Interval", "Content-Type")
        template = pairs(*((name, f"${{pub_props.{name}}}") for name in names))
        await node.rule('SELECT * FROM "in"', republish("out", mqtt_properties_template=template))
        subscriber = await node.client()
        await subscriber.subscribe("out")
        client = await node.client()
        given = {c.CORRELATION_DATA: b"\xff\x00", c.MESSAGE_EXPIRY_INTERVAL: 90}
        await client.publish("in", properties=given)
        assert (await subscriber.expect_publish("out")).properties == given
        await client.publish("in")
        assert (await subscriber.expect_publish("out")).properties == {}


@pytest.mark.asyncio
async def test_a_message_expires_by_the_interval_of_its_template() -> None:
    """Not only for those who are connected: in the queue of a session, of 3.1.1 too."""
    async with rule_engine_node() as node:
        await node.stand_still()
        template = pairs(("Message-Expiry-Interval", "${s}"))
        await node.rule('SELECT payload.s as s, payload FROM "in"',
                        republish("out", target_qos=1, mqtt_properties_template=template))  # fmt: skip
        away = await node.client("away", 4, clean_start=False)
        await away.subscribe("out", qos=1)
        await away.disconnect()
        client = await node.client()
        for seconds in (10, 1000):
            await client.publish("in", b'{"s": %d}' % seconds, 1)
        await node.pass_time(60)
        again = await node.client("away", 4, clean_start=False)
        await again.expect_publish("out", b'{"s": 1000}', 1)
        await again.nothing()


@pytest.mark.parametrize(
    "params, words",
    [
        ({"target_topic": "a/+"}, "target_topic"),
        ({"target_topic": ""}, "target_topic"),
        ({"target_topic": "out/${nothing}"}, "${nothing}"),
        ({"target_topic": "out", "payload_tmpl": "${qos}"}, "${qos}"),
        ({"target_topic": "out", "target_qos": 3}, "target_qos"),
        ({"target_topic": "$SYS"}, "reserved"),
        ({"target_topic": "$SYS/x"}, "reserved"),
        ({"target_topic": "$SYS/${topic}"}, "reserved"),
        ({"target_topic": "$delayed/0/$SYS/brokers/x/alarms/activate"}, "reserved"),
        ({"target_topic": "$delayed/0/$SYS/${topic}"}, "reserved"),
        ({"target_topic": "out", "target_qos": "q${topic}"}, "target_qos"),
        ({"target_topic": "out", "target_retain": "maybe"}, "target_retain"),
        ({"target_topic": "out", "user_properties": {"k": 1}}, "user_properties"),
        ({"target_topic": "out", "user_properties": "text"}, "user_properties"),
        ({"target_topic": "out", "user_properties_template": {"k": "v"}}, "user_properties_template: expected a list"),
        ({"target_topic": "out", "user_properties_template": ["k"]}, "[0]: expected an object with key and value"),
        ({"target_topic": "out", "user_properties_template": [{"key": "k"}]}, "[0]"),
        ({"target_topic": "out", "user_properties_template": pairs(("k", True))}, "[0]"),
        ({"target_topic": "out", "user_properties_template": pairs((1, "v"))}, "[0]"),  # type: ignore[arg-type]
        ({"target_topic": "out", "user_properties_template": pairs(("", "v"))}, "key is empty"),
        ({"target_topic": "out", "user_properties_template": pairs(("k", "${qos}"))}, "${qos}"),
        ({"target_topic": "out", "user_properties_template": pairs(("${qos}", "v"))}, "${qos}"),
        ({"target_topic": "out", "user_properties_template": pairs(*[("k", "v")] * 101)}, "more than 100"),
        (
            {"target_topic": "out", "user_properties_template": pairs(("k", "v")), "user_properties": {"k": "v"}},
            "cannot be given together",
        ),
        (
            {"target_topic": "out", "mqtt_properties_template": pairs(("Topic-Alias", 1))},
            'expected one of "Payload-Format-Indicator", "Message-Expiry-Interval", "Content-Type"',
        ),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("content_type", "a"))}, "content_type"),
        (
            {"target_topic": "out", "mqtt_properties_template": pairs(("Content-Type", "a"), ("Content-Type", "b"))},
            "twice",
        ),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("Payload-Format-Indicator", 2))}, "from 0 to 1"),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("Message-Expiry-Interval", -1))}, "4294967295"),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("Message-Expiry-Interval", 2**32))}, "4294967295"),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("Response-Topic", "a/#"))}, "Response-Topic"),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("Content-Type", "a\0"))}, "U+0000"),
        ({"target_topic": "out", "mqtt_properties_template": pairs(("Correlation-Data", "x" * 65_536))}, "longer"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_refused_at_creation(params: dict[str, Any], words: str) -> None:
    async with rule_engine_node() as node:
        with pytest.raises(RuleEngineError) as refused:
            await node.rule('SELECT topic, payload FROM "in"', {"name": "republish", "params": params})
        assert refused.value.kind == "wrong" and words in refused.value.message


@pytest.mark.parametrize(
    "payload, params",
    [
        (b'{"t": "a/#"}', {"target_topic": "${t}"}),
        (b'{"t": ""}', {"target_topic": "${t}"}),
        (b'{"t": "$SYS/x"}', {"target_topic": "${t}"}),
        (b'{"t": "$SYS"}', {"target_topic": "${t}"}),
        (b'{"t": "$delayed/0/$SYS/x"}', {"target_topic": "${t}"}),
        (b'{"t": "$SYS"}', {"target_topic": "$delayed/0/${t}/x"}),
        (b'{"t": "0/$SYS/x"}', {"target_topic": "$delayed/${t}"}),
        (b'{"t": 7}', {"target_topic": "out", "target_qos": "${t}"}),
        (b'{"t": "x"}', {"target_topic": "out", "target_retain": "${t}"}),
        (b'{"t": "a\\u0000"}', {"target_topic": "out", "user_properties": {"k": "${t}"}}),
        (b'{"t": {"a\\u0000": 1}}', {"target_topic": "out", "user_properties": "${t}"}),
        (b'{"t": "a\\u0000"}', {"target_topic": "out", "user_properties_template": pairs(("k", "${t}"))}),
        (b'{"t": "no"}', {"target_topic": "out", "mqtt_properties_template": pairs(("${t}", "1"))}),
        (
            b'{"t": true}',
            {"target_topic": "out", "mqtt_properties_template": pairs(("Message-Expiry-Interval", "${t}"))},
        ),
        (
            b'{"t": 1.5}',
            {"target_topic": "out", "mqtt_properties_template": pairs(("Message-Expiry-Interval", "${t}"))},
        ),
        (b'{"t": "a/+"}', {"target_topic": "out", "mqtt_properties_template": pairs(("Response-Topic", "${t}"))}),
        (
            b'{"t": "Content-Type"}',
            {"target_topic": "out", "mqtt_properties_template": pairs(("${t}", "a"), ("Content-Type", "b"))},
        ),
    ],
)
@pytest.mark.asyncio
async def test_what_fails_for_one_message(payload: bytes, params: dict[str, Any]) -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT payload.t as t, payload FROM "in"', {"name": "republish", "params": params})
        client = await node.client()
        await client.publish("in", payload)
        assert failures(node, id) == 1
        assert node.engine.rules.lookup(id).actions[0].last_error.reason


@pytest.mark.asyncio
async def test_a_rule_that_feeds_itself_publishes_once() -> None:
    async with rule_engine_node() as node:
        id = await node.rule('SELECT * FROM "t2"', republish("t2"))
        subscriber = await node.client()
        await subscriber.subscribe("t2")
        client = await node.client()
        await client.publish("t2", b"x")
        await subscriber.expect_publish("t2")
        await subscriber.expect_publish("t2")
        await subscriber.nothing()
        assert failures(node, id) == 1
        assert "loop" in node.engine.rules.lookup(id).actions[0].last_error.reason


@pytest.mark.asyncio
async def test_a_loop_of_several_rules_ends_and_says_so() -> None:
    async with rule_engine_node(rules={"max_hops": 7}) as node:
        ids = [await node.rule(f'SELECT * FROM "{a}"', republish(b)) for a, b in (("a", "b"), ("b", "c"), ("c", "a"))]
        client = await node.client()
        before = node.server.metrics.messages_publish
        await client.publish("a")
        assert node.server.metrics.messages_publish - before == 1 + 7
        assert sum(failures(node, id) for id in ids) == 1
        errors = [node.engine.rules.lookup(id).actions[0].last_error for id in ids]
        assert any(each and "max_hops" in each.reason for each in errors)


@pytest.mark.asyncio
async def test_a_loop_through_an_event_ends() -> None:
    async with rule_engine_node() as node:
        one = await node.rule('SELECT * FROM "$events/message_delivered"', republish("x"))
        two = await node.rule('SELECT * FROM "$events/message_delivered"', republish("x"))
        subscriber = await node.client()
        await subscriber.subscribe("x")
        client = await node.client()
        before = node.server.metrics.messages_publish
        await client.publish("x")
        await client.ping()
        # Each rule sees what the other one published, ten times.
        assert node.server.metrics.messages_publish - before == 1 + 2 * 10
        assert failures(node, one) > 0 and failures(node, two) > 0


@pytest.mark.asyncio
async def test_loops_get_so_many_messages_a_second_and_no_more() -> None:
    async with rule_engine_node(rules={"max_chained": 100, "max_chained_rate": 150, "max_time": 10.0}) as node:
        for number in range(4):
            await node.rule('SELECT * FROM "g/#"', *[republish(f"g/{number}/{each}") for each in range(4)])
        client = await node.client()
        metrics = node.server.metrics

        await node.stand_still()
        before = metrics.messages_publish
        for _ in range(20):
            await client.publish("g")
        await client.ping()
        # Of each event the message, what sees it and a few more are free; of the rest there is so much a second.
        assert metrics.messages_publish - before <= 20 * (1 + 16 + 10) + 150
        assert metrics.refusals.snapshot()["rules_chained_rate"] > 100
        await node.pass_time(2)
        refused = metrics.refusals.snapshot()["rules_chained_rate"]
        await client.publish("g")
        await client.ping()
        assert metrics.refusals.snapshot()["rules_chained_rate"] == refused


@pytest.mark.asyncio
async def test_a_loop_that_grows_is_stopped() -> None:
    async with rule_engine_node(rules={"max_chained": 50, "max_time": 10.0}) as node:
        for number in range(4):
            await node.rule('SELECT * FROM "g/#"', *[republish(f"g/{number}/{each}") for each in range(4)])
        client = await node.client()
        before = node.server.metrics.messages_publish
        await client.publish("g")
        # One from the client, sixteen that see it, and then the bound.
        assert node.server.metrics.messages_publish - before <= 1 + 16 + 50
        assert any(
            action.last_error and "max_chained" in action.last_error.reason
            for rule in node.engine.rules.records()
            for action in rule.actions
        )


@pytest.mark.parametrize("subscribers, most", [(0, 60), (1, 70)])
@pytest.mark.asyncio
async def test_a_hit_takes_few_calls(subscribers: int, most: int) -> None:
    """Of functions of Taipan: from the message that a rule sees to the outbox of who receives what it makes of it."""
    async with rule_engine_node() as node:
        rule_id = await node.rule(
            'SELECT clientid, payload.x as x, qos FROM "in/#"',
            republish("out/${clientid}", payload_tmpl="x is ${x}"),
        )
        if subscribers:
            subscriber = await node.client()
            await subscriber.subscribe("out/#")
        publisher = ClientInfo(node.engine.node.node, ZoneSettings(), client_id="me")
        calls = 0

        def count(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call" and place(frame.f_code) is not None

        for _ in range(2):  # what is found for a topic is remembered
            message = Message("in/1", b'{"x": 1}', publisher=publisher)
            calls = 0
            node.server.broker.topic_sample.left = 1000  # none is looked at: one of many, with much to do, is
            sys.setprofile(count)
            try:
                node.server.broker.publish(message)
            finally:
                sys.setprofile(None)
            if subscribers:
                assert (await subscriber.expect_publish("out/me")).payload == b"x is 1"
        assert node.metrics(rule_id).passed == 2
        assert 0 < calls <= most
