"""Brokers that bridge to each other: by MQTT 5.0 a message counts the brokers on its way, and stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt.constants import USER_PROPERTY
from taipan.ruleengine.error import RuleEngineError
from taipan.ruleengine.events.hops import NAME, hops_of, with_hops
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.sinks.mqtt_bridge import action as action_type
from taipan.ruleengine.sinks.mqtt_bridge import resource as mqtt_bridge
from tests.ruleengine.sinks.remotes import KINDS, remote
from tests.support.fake_engine import QUICK, FakeEngine
from tests.support.fake_engine import published as event_of
from tests.support.rule_engine_node import RuleEngineNode, rule_engine_node
from tests.support.users import PASSWORD, users
from tests.support.waiting import until

MOST = 6


@pytest.mark.parametrize(
    "value, hops",
    [("3", 3), ("0", 0), ("-1", 0), ("x", 0), ("9999", 0), ("\u0663", 0), ("", 0), ("999", 999)],
)
def test_what_the_property_says(value: str, hops: int) -> None:
    assert hops_of({USER_PROPERTY: [("a", "7"), (NAME, value)]}) == hops


def test_the_count_takes_the_place_of_the_one_before() -> None:
    pairs = [("a", "1"), (NAME, "2"), ("a", "3")]
    assert with_hops({USER_PROPERTY: pairs}, 3) == {USER_PROPERTY: [("a", "1"), ("a", "3"), (NAME, "3")]}
    assert with_hops({}, 0) == {}


@asynccontextmanager
async def two(**zone: Any) -> AsyncIterator[tuple[RuleEngineNode, RuleEngineNode]]:
    rules = {"max_hops": MOST, "retry_backoff": 0.01, "liveness_interval": 0.05}
    async with rule_engine_node(zone, rules=rules) as a, rule_engine_node(zone, rules=rules) as b:
        yield a, b


async def bridge(here: RuleEngineNode, there: RuleEngineNode, **more: Any) -> None:
    address = there.address()
    config = {"address": f"{address.host}:{address.port}", "mountpoint": "", "pool_size": 1, "proto_ver": "mqttv5"}
    await here.engine.resources.create("bridge_mqtt", {**config, "reconnect_interval": "50ms", **more}, id="bridge")
    await until(lambda: here.engine.resources.running("bridge").alive)


async def forward(here: RuleEngineNode, there: RuleEngineNode, source: str = "loop/#", topic: str = "") -> str:
    await bridge(here, there)
    action = {
        "name": "data_to_mqtt_broker",
        "params": {"$resource": "bridge", "forward_topic": topic, "payload_tmpl": "${payload}"},
    }
    return await here.rule(f'SELECT * FROM "{source}"', action, id="forward")


def published(node: RuleEngineNode) -> int:
    return node.server.metrics.messages_publish


async def quiet(*nodes: RuleEngineNode) -> int:
    """How many messages were published when nothing has moved for a while."""
    looks = [0, -1, -2]
    while len(set(looks)) > 1:  # three looks, for a machine that does something else in between
        await asyncio.sleep(0.2)
        looks = [*looks[1:], sum(map(published, nodes))]
    return looks[0]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.asyncio
async def test_two_brokers_that_forward_to_each_other_stop(qos: int) -> None:
    async with two() as (a, b):
        for here, there in ((a, b), (b, a)):
            await forward(here, there)
        await (await a.client()).publish("loop/1", b"x", qos)
        assert await quiet(a, b) == 1 + MOST
        failed = [each.engine.rules.lookup("forward").actions[0] for each in (a, b)]
        assert sum(each.metrics[0].failed for each in failed) == 1
        assert any(each.last_error and "max_hops" in each.last_error.reason for each in failed)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.asyncio
async def test_two_brokers_that_fetch_from_each_other_stop(qos: int, caplog: pytest.LogCaptureFixture) -> None:
    async with two() as (a, b):
        for here, there in ((a, b), (b, a)):
            await bridge(here, there, ingress=[{"remote_topic": "loop/#", "qos": 2}])
            await until(lambda here=here: here.engine.resources.running("bridge").status.connections == 2)
        await (await a.client()).publish("loop/1", b"x", qos)
        assert await quiet(a, b) == 1 + MOST
        refused = [each.server.metrics.refusals.snapshot().get("bridge_quota_exceeded", 0) for each in (a, b)]
        assert sum(refused) == 1
        (line,) = [each.getMessage() for each in caplog.records if "bridge_message_refused" in each.getMessage()]
        assert "setting=ruleengine.max_hops" in line


@pytest.mark.asyncio
async def test_a_loop_with_a_rule_on_the_way_stops_too() -> None:
    async with two() as (a, b):
        await forward(a, b, "out/#", "in/1")
        await bridge(b, a, ingress=[{"remote_topic": "none"}])
        back = {"name": "republish", "params": {"target_topic": "back/1", "target_qos": 1}}
        await b.rule('SELECT payload FROM "in/#"', back, id="back")
        action = {"name": "data_to_mqtt_broker", "params": {"$resource": "bridge", "forward_topic": "out/1"}}
        await b.rule('SELECT * FROM "back/#"', action, id="forward")
        await (await a.client()).publish("out/1", b"x", 1)
        # Each round: in/1, back/1, out/1; seven messages have a hop less than the most or just as many.
        assert await quiet(a, b) == 1 + MOST


@pytest.mark.asyncio
async def test_what_crosses_once_says_so_and_arrives_as_it_was() -> None:
    async with two() as (a, b):
        await forward(a, b, "up/#")
        reader = await b.client()
        await reader.subscribe("up/#", qos=2)
        writer = await a.client()
        for number, qos in enumerate((0, 1, 2)):
            await writer.publish("up/x", b"%d" % number, qos, retain=True)
            message = await reader.expect_publish("up/x", b"%d" % number, qos)
            assert dict(message.properties[USER_PROPERTY]) == {NAME: "1"}
        late = await b.client()
        await late.subscribe("up/#")
        assert (await late.expect_publish("up/x")).retain


@pytest.mark.asyncio
async def test_a_message_that_the_other_side_does_not_take_fails_and_holds_up_nobody() -> None:
    async with rule_engine_node(rules={"max_hops": MOST}) as a:
        rules = [{"allow": False, "action": "publish", "topics": ["up/no"]}]
        async with rule_engine_node({"max_packet_size": 1000}, access={"rules": rules}) as b:
            await forward(a, b, "up/#")
            reader = await b.client()
            await reader.subscribe("up/#", qos=1)
            writer = await a.client()
            for topic, payload in (("up/no", b"x"), ("up/large", b"x" * 2000), ("up/yes", b"x")):
                await writer.publish(topic, payload, 1)
            await reader.expect_publish("up/yes")
            action = a.engine.rules.lookup("forward").actions[0]
            await until(lambda: a.engine.rules.lookup("forward").actions[0].metrics[0].failed == 2)
            assert a.engine.rules.lookup("forward").actions[0].last_error, action


@pytest.mark.asyncio
async def test_a_bridge_of_5_0_comes_back_and_loses_nothing() -> None:
    rules = {"retry_backoff": 0.01, "retry_backoff_max": 0.05, "breaker_pause": 0.05}
    async with rule_engine_node(rules=rules) as a, rule_engine_node() as b:
        await forward(a, b, "up/#")
        reader = await b.client()
        await reader.subscribe("up/#", qos=1)
        writer = await a.client()
        for number in range(30):
            if number == 10:
                for channel in list(b.server.context.channels.values()):
                    if channel.client.client_id.startswith("client:"):
                        channel.connection.close()
            await writer.publish("up/x", b"%d" % number, 1)
        seen: list[bytes] = []
        while len(set(seen)) < 30:
            seen.append((await reader.expect_publish("up/x")).payload)
        assert list(dict.fromkeys(seen)) == [b"%d" % number for number in range(30)]


@pytest.mark.asyncio
async def test_a_wrong_password_and_a_bridge_mode_are_told() -> None:
    known = users("u")
    async with rule_engine_node() as a, rule_engine_node(access={"users": known}) as b:
        address = b.address()
        config = {"address": f"{address.host}:{address.port}", "proto_ver": "mqttv5", "username": "u", "password": "no"}
        with pytest.raises(RuleEngineError, match="CONNACK"):
            await a.engine.resources.test("bridge_mqtt", config)
        await a.engine.resources.test("bridge_mqtt", {**config, "password": PASSWORD.decode()})
    engine = FakeEngine(QUICK)
    with pytest.raises(ParamError, match="bridge_mode"):
        engine.make(mqtt_bridge.TYPE, address="h:1883", proto_ver="mqttv5", bridge_mode=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.asyncio
async def test_5_0_there_and_back(tmp_path: Path, kind: str, qos: int) -> None:
    async with remote(kind, tmp_path) as there, rule_engine_node() as node:
        engine = FakeEngine(server=node.server)
        listener = await there.client("fwd/#", qos=qos)
        config = {"proto_ver": "mqttv5", "mountpoint": "fwd/", "pool_size": 2, "reconnect_interval": "50ms"}
        ingress = [{"remote_topic": "cmd/#", "qos": 2, "local_topic": "in/${topic}", "retain": False}]
        made = engine.run(mqtt_bridge.TYPE, address=there.address, ingress=ingress, **config)
        act = engine.action(action_type.TYPE, payload_tmpl="${n}")
        await until(lambda: made.status.connections == 3)
        for number in range(40):
            act.run({"n": number}, event_of("a/b", qos=qos))
        await until(lambda: engine.report.successes == 40)
        for number in range(40):
            await listener.expect_publish("fwd/a/b", b"%d" % number, qos)
        here = await node.client()
        await here.subscribe("in/#", qos=2)
        sender = await there.client()
        for number in range(20):
            await sender.publish("cmd/x", b"%d" % number, qos)
        for number in range(20):
            await here.expect_publish("in/cmd/x", b"%d" % number, qos)
        for peer in (listener, sender):
            await peer.close()
        await engine.close()
