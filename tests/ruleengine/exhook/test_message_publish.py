"""Providers that change or stop messages: every kind of message and publisher, and providers that do not answer."""

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.exhook.messages import CLASSES, CONTINUE, IGNORE, STOP_AND_RETURN
from taipan.broker.config import RuleSettings
from taipan.broker.core import session_life
from taipan.broker.core.inspection import Answer, Inspection, InspectionLimits
from taipan.broker.gateway import kind_of
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Ack, TopicFilter, Will
from taipan.broker.session.memory_account import NORMAL, SLOWING
from taipan.management.configuration.settings import ManagementSettings
from taipan.ruleengine.config import EngineSettings, ExhookServer, ExhookSettings
from taipan.ruleengine.exhook.plugin import ExhookPlugin
from tests.gateways.coap_client import CoapClient
from tests.gateways.sn_client import SnClient
from tests.support.api import APP_ID, SECRET, ManagedNode, managed_node
from tests.support.cluster_nodes import cluster_nodes
from tests.support.exhook_provider import Provider, changed
from tests.support.node import Node, make_settings, start_node
from tests.support.peer import Peer
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = [pytest.mark.timeout(120), pytest.mark.asyncio]

NOT_ASKED: dict[str, list[str]] = {"client.connected": []}


def marked(request: Any) -> Any:
    """The message with another payload."""
    return changed(request, payload=request.message.payload + b"!")


def held(provider: Provider) -> asyncio.Event:
    """Let the provider answer only when the returned event is set."""
    free = asyncio.Event()

    async def answer(request: Any) -> Any:
        await free.wait()
        return marked(request)

    provider.answers["OnMessagePublish"] = answer
    return free


@asynccontextmanager
async def provided(topics: list[str] | None = None, **hooks: list[str]) -> AsyncIterator[Provider]:
    """A provider that changes every payload."""
    provider = Provider(**{"message__publish": topics or [], **hooks})
    provider.answers["OnMessagePublish"] = marked
    await provider.start()
    try:
        yield provider
    finally:
        await provider.stop()


def settings_for(*providers: Provider, **settings: Any) -> ExhookSettings:
    servers = [ExhookServer(name=f"p{number}", url=each.url) for number, each in enumerate(providers)]
    return ExhookSettings(**{"servers": servers, "auto_reconnect": 0.2, "request_timeout": 2.0, **settings})


@asynccontextmanager
async def plugin_of(
    node: Node,
    *providers: Provider,
    connected: bool = True,
    engine: EngineSettings | None = None,
    **settings: Any,
) -> AsyncIterator[ExhookPlugin]:
    engine = engine or EngineSettings(close_timeout=1.0)
    plugin = ExhookPlugin(node.server, settings_for(*providers, **settings), engine)
    plugin.start()
    try:
        if connected:
            await until(lambda: all(each.connected for each in plugin.providers))
        yield plugin
    finally:
        await plugin.close()


@asynccontextmanager
async def asked(provider: Provider, zone: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[Node]:
    node = await start_node(zone, **config)
    try:
        async with plugin_of(node, provider):
            yield node
    finally:
        await node.stop()


def refusals(node: Node) -> dict[str, int]:
    return dict(node.server.metrics.refusals.snapshot())


def topics(provider: Provider) -> list[str]:
    return [each.message.topic for each in provider.of("OnMessagePublish")]


# ------------------------------------------------------------------ messages of clients


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_is_changed(version: int, qos: int) -> None:
    def other(request: Any) -> Any:
        return changed(request, topic="new/" + request.message.topic, payload=b"other", qos=2)

    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = other
        reader = await node.client("r", version)
        await reader.subscribe("#", qos=2)
        publisher = await node.client("p", version, username="ann")
        assert await publisher.publish("t", b"payload", qos) == 0
        await reader.expect_publish("new/t", b"other", 2)
        await reader.nothing()
        (request,) = provider.of("OnMessagePublish")
        message = request.message
        assert (message.topic, message.payload, message.qos, getattr(message, "from")) == ("t", b"payload", qos, "p")
        assert message.id and message.headers == {"username": "ann", "protocol": "mqtt", "peerhost": "127.0.0.1"}
        assert request.meta.node == node.server.settings.node.name


@pytest.mark.parametrize("kind", [IGNORE, CONTINUE, STOP_AND_RETURN])
async def test_a_message_that_is_not_changed_arrives_with_everything(kind: int) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = lambda request: changed(request, kind)
        reader = await node.client("r")
        await reader.subscribe(TopicFilter("t", 1, retain_as_published=True))
        publisher = await node.client("p")
        properties = {c.USER_PROPERTY: [("a", "b")], c.CONTENT_TYPE: "x", c.MESSAGE_EXPIRY_INTERVAL: 100}
        await publisher.publish("t", b"p", 1, retain=True, properties=properties)
        got = await reader.expect_publish("t", b"p", 1)
        assert got.retain and dict(got.properties) == properties


async def test_a_changed_message_keeps_its_properties_and_retain_flag() -> None:
    async with provided() as provider, asked(provider) as node:
        publisher = await node.client("p")
        await publisher.publish("t", b"p", 1, retain=True, properties={c.USER_PROPERTY: [("a", "b")]})
        reader = await node.client("r")
        await reader.subscribe("t", qos=1)
        got = await reader.expect_publish("t", b"p!", 1)
        assert got.retain and got.properties[c.USER_PROPERTY] == [("a", "b")]


async def test_a_retained_message_is_changed_stopped_and_cleared() -> None:
    async with provided() as provider, asked(provider) as node:
        publisher = await node.client("p")
        retained = node.server.broker.retained

        def stored() -> bytes:
            message = retained.get("t")
            return b"" if message is None else message.payload

        await publisher.publish("t", b"1", 1, retain=True)
        assert stored() == b"1!"
        provider.answers["OnMessagePublish"] = lambda request: changed(request, allow=False)
        await publisher.publish("t", b"2", 1, retain=True)
        await publisher.publish("t", b"", 1, retain=True)
        assert stored() == b"1!"
        provider.answers["OnMessagePublish"] = lambda request: changed(request)
        await publisher.publish("t", b"", 1, retain=True)
        assert len(retained) == 0


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_is_stopped(version: int, qos: int, caplog: pytest.LogCaptureFixture) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = lambda request: changed(
            request, CONTINUE, allow=request.message.payload != b"bad"
        )
        reader = await node.client("r", version)
        await reader.subscribe("t", qos=2)
        publisher = await node.client("p", version)
        code = await publisher.publish("t", b"bad", qos)
        assert code == (0x10 if version == 5 and qos else 0)
        await publisher.publish("t", b"good", qos)
        await reader.expect_publish("t", b"good", qos)
        await reader.nothing()
        assert refusals(node)["exhook_message_stopped"] == 1
        assert "exhook_message provider=p0 reason=stopped setting=exhook.servers count=1" in caplog.text


async def test_shared_subscriptions_and_the_mount_point() -> None:
    async with provided() as provider, asked(provider, zone={"mountpoint": "m/"}) as node:
        readers = [await node.client(f"r{number}") for number in range(2)]
        for reader in readers:
            await reader.subscribe("$share/g/t", qos=1)
        publisher = await node.client("p")
        for number in range(10):
            await publisher.publish("t", b"%d" % number, 1)
        assert topics(provider) == ["m/t"] * 10
        got: list[bytes] = []

        async def read(reader: Peer) -> None:
            while True:
                got.append((await reader.expect_publish("t", qos=1)).payload)

        tasks = [asyncio.create_task(read(reader)) for reader in readers]
        await until(lambda: len(got) == 10)
        for task in tasks:
            task.cancel()
        assert sorted(got) == sorted(b"%d!" % number for number in range(10))


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_the_order_of_a_publisher(qos: int) -> None:
    chance = random.Random(1)

    async def slow(request: Any) -> Any:
        await asyncio.sleep(chance.random() / 100)
        return marked(request)

    async with provided(["slow/#"]) as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = slow
        reader = await node.client("r")
        await reader.subscribe("#", qos=2)
        publishers = [await node.client(f"p{number}") for number in range(3)]
        for number in range(20):
            for each, publisher in enumerate(publishers):
                topic = f"slow/{each}" if number % 3 else f"fast/{each}"
                packet = Publish(topic, b"%d" % number, qos, packet_id=number + 1 if qos else 0)
                await publisher.send(packet)
        seen: dict[str, list[int]] = {"0": [], "1": [], "2": []}
        for _ in range(60):
            got = await reader.expect_publish(qos=qos)
            seen[got.topic[-1]].append(int(got.payload.rstrip(b"!")))
        assert list(seen.values()) == [list(range(20))] * 3


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_client_that_leaves_before_the_answer(qos: int) -> None:
    """The node waits for the answer, because the client has only closed its side."""
    async with provided() as provider, asked(provider) as node:
        free = held(provider)
        reader = await node.client("r")
        await reader.subscribe("t", qos=2)
        publisher = await node.client("p", expiry=100)
        await publisher.send(Publish("t", b"x", qos, packet_id=1 if qos else 0))
        await until(lambda: provider.of("OnMessagePublish"))
        publisher.abort()
        free.set()
        await reader.expect_publish("t", b"x!", qos)
        again = await node.client("p", expiry=100)
        if qos:  # what has no acknowledgement is sent again; of QoS 2, it is a duplicate
            await again.publish("t", b"x", qos, packet_id=1, dup=True)
        if qos == 1:
            await reader.expect_publish("t", b"x!", qos)
        await reader.nothing()


@pytest.mark.parametrize(("qos", "arrives"), [(0, True), (1, True), (2, False)])
async def test_a_connection_that_has_ended_before_the_answer(
    qos: int, arrives: bool, caplog: pytest.LogCaptureFixture
) -> None:
    node = await start_node()
    try:
        async with provided() as provider, plugin_of(node, provider, request_timeout=60.0):
            free = held(provider)
            reader = await node.client("r")
            await reader.subscribe("t", qos=2)
            publisher = await node.client("p", expiry=100)
            await publisher.send(Publish("t", b"x", qos, packet_id=1 if qos else 0))
            await until(lambda: provider.of("OnMessagePublish"))
            await ended_by_the_network(node, "p")
            free.set()
            if arrives:
                await reader.expect_publish("t", b"x!", qos)
            dropped = int(not arrives)
            await until(lambda: node.server.metrics.packets_publish_dropped == dropped)
            assert refusals(node).get("publish_quota_exceeded", 0) == dropped
            assert ("waited for an answer when its client left" in caplog.text) == (not arrives)
            again = await node.client("p", expiry=100)
            if qos:
                await again.publish("t", b"x", qos, packet_id=1, dup=True)
                await reader.expect_publish("t", b"x!", qos)
            await reader.nothing()
    finally:
        await node.stop()


async def ended_by_the_network(node: Node, client_id: str) -> None:
    """End a connection whose client has not closed it: after an EOF, it would wait for the answer."""
    connection = next(each for each in node.server.connections if each.channel.client.client_id == client_id)
    connection.abort()
    await until(lambda: connection._lost is not None)
    await node.pass_time(11)
    await until(lambda: connection not in node.server.connections)


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_client_that_leaves_after_several_messages(qos: int) -> None:
    async with provided() as provider, asked(provider) as node:
        free = held(provider)
        reader = await node.client("r")
        await reader.subscribe("t", qos=2)
        publisher = await node.client("p", expiry=100)
        for number in range(5):
            await publisher.send(Publish("t", b"%d" % number, qos, packet_id=number + 1 if qos else 0))
        await until(lambda: provider.of("OnMessagePublish"))
        publisher.abort()
        free.set()
        for number in range(5):
            await reader.expect_publish("t", b"%d!" % number, qos)
        await reader.nothing()


async def test_messages_that_are_not_reached_in_time_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    node = await start_node()
    try:
        async with provided() as provider, plugin_of(node, provider, request_timeout=60.0):
            free = held(provider)
            reader = await node.client("r")
            await reader.subscribe("t", qos=2)
            publisher = await node.client("p", expiry=100)
            for number in range(3):
                await publisher.send(Publish("t", b"%d" % number, 0))
            await until(lambda: provider.of("OnMessagePublish"))
            await ended_by_the_network(node, "p")
            assert refusals(node)["publish_quota_exceeded"] == 2
            assert node.server.metrics.packets_publish_dropped == 2
            assert "waited for an earlier one when its client left" in caplog.text
            free.set()
            await reader.expect_publish("t", b"0!", 0)
            await reader.nothing()
    finally:
        await node.stop()


class SlowCluster:
    """Changes of retained messages that are not decided yet."""

    writable = takes = True

    def __init__(self) -> None:
        self.decisions: dict[str, asyncio.Future[None]] = {}

    def fits(self, message: Message) -> bool:
        return True

    def changed(self, topic: str) -> asyncio.Future[None]:
        return self.decisions.setdefault(topic, asyncio.get_running_loop().create_future())

    def undecided(self, topic: str) -> asyncio.Future[None] | None:
        return self.decisions.get(topic)


@pytest.mark.parametrize("topic", ["t", "new"])
async def test_a_repeated_message_waits_for_the_cluster_like_the_first_one(topic: str) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = lambda request: changed(request, topic=topic)
        cluster = SlowCluster()
        node.server.broker.retaining.changes = cluster
        publisher = await node.client("p", expiry=100)
        await publisher.send(Publish("t", b"x", 2, retain=True, packet_id=1))
        await until(lambda: topic in cluster.decisions)
        publisher.abort()
        again = await node.client("p", expiry=100)
        await again.send(Publish("t", b"x", 2, retain=True, packet_id=1, dup=True))
        await again.nothing()
        cluster.decisions[topic].set_result(None)
        await again.answer(Ack, type=c.PUBREC, packet_id=1)
        assert len(topics(provider)) == 1


async def test_messages_of_other_topics_are_not_asked_about() -> None:
    async with provided(["a/#"]) as provider, asked(provider) as node:
        publisher = await node.client("p")
        for topic in ("a/x", "b/x", "a", "$SYS/x"):
            await publisher.publish(topic, b"x", 1, expect=None)
        assert topics(provider) == ["a/x", "a"]


async def test_without_the_hook_nothing_waits() -> None:
    async with provided() as provider:
        provider.hooks = NOT_ASKED
        async with asked(provider) as node:
            assert node.server.broker.inspection is None


async def test_topic_rewrite_comes_before_the_question() -> None:
    rules = [{"action": "publish", "source_topic": "old/#", "re": "^old/(.+)$", "dest_topic": "new/$1"}]
    async with provided() as provider, asked(provider, rewrite={"rules": rules}) as node:
        publisher = await node.client("p")
        await publisher.publish("old/t", b"x", 1)
        assert topics(provider) == ["new/t"]


# --------------------------------------------------------------- Wills, delayed messages


@pytest.mark.parametrize("delay", [0, 30])
async def test_a_will(delay: int) -> None:
    async with provided() as provider, asked(provider) as node:
        reader = await node.client("r")
        await reader.subscribe("will", qos=1)
        properties = {c.WILL_DELAY_INTERVAL: delay}
        dying = await node.client("p", expiry=100, will=Will("will", b"gone", 1, False, properties))
        dying.abort()
        await until(lambda: "p" not in node.server.context.channels)
        await node.pass_time(delay)
        await reader.expect_publish("will", b"gone!", 1)
        assert topics(provider) == ["will"]


async def test_a_will_waits_for_a_provider_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_life, "PAUSE", 0.05)
    async with provided() as provider, asked(provider) as node:
        reader = await node.client("r")
        await reader.subscribe("will", qos=1)
        dying = await node.client("p", will=Will("will", b"gone", 1))
        await provider.stop()
        dying.abort()
        await until(lambda: refusals(node).get("exhook_failed_unavailable") or refusals(node).get("exhook_failed_down"))
        await provider.start()
        await reader.expect_publish("will", b"gone!", 1)


async def test_a_will_that_waits_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_life, "PAUSE", 0.05)
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = lambda request: changed(request, topic="#")
        inspection = node.server.broker.inspection
        assert isinstance(inspection, Inspection)
        dying = await node.client("p", will=Will("will", bytes(10_000), 1))
        dying.abort()
        await until(lambda: len(topics(provider)) > 3 and inspection.waiting)
        assert inspection.waiting == 1 and node.server.guard.event_bytes > 10_000
        assert "will_quota_exceeded" not in refusals(node)

        def refused() -> bool:
            node.server.broker.account.level = SLOWING
            return refusals(node).get("will_quota_exceeded") == 1

        await until(refused)
        await until(lambda: inspection.waiting == inspection.waiting_bytes == 0)


async def test_a_will_is_refused_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_life, "PAUSE", 0.05)
    async with provided() as provider, asked(provider) as node:
        dying = await node.client("p", will=Will("will", b"gone", 1))
        provider.answers["OnMessagePublish"] = lambda request: changed(request, topic="#")
        dying.abort()
        await until(lambda: refusals(node).get("exhook_failed_bad_answer"))
        assert "will_quota_exceeded" not in refusals(node)
        await node.pass_time(61)
        await until(lambda: refusals(node).get("will_quota_exceeded") == 1)


async def test_a_delayed_message_is_asked_about_once_when_it_arrives() -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = lambda request: changed(
            request, topic="other", payload=b"x!", allow=request.message.payload != b"stop"
        )
        reader = await node.client("r")
        await reader.subscribe("#", qos=1)
        publisher = await node.client("p")
        await publisher.publish("$delayed/60/t", b"x", 1)
        await publisher.publish("$delayed/60/t", b"stop", 1)
        assert topics(provider) == ["t", "t"] and node.server.delayed.count == 1
        await reader.nothing()
        await node.pass_time(61)
        await reader.expect_publish("other", b"x!", 1)
        assert len(topics(provider)) == 2


# --------------------------------------------------------- API, rules, bridges, gateways


@asynccontextmanager
async def managed(provider: Provider, **config: Any) -> AsyncIterator[ManagedNode]:
    async with managed_node(**config) as node, plugin_of(node, provider):
        yield node


async def test_the_api() -> None:
    async with provided() as provider, managed(provider) as node:
        reader = await node.client("r")
        await reader.subscribe("#", qos=1)
        body = {"topic": "t", "payload": "x", "qos": 1, "clientid": "c"}
        assert (await node.api.post("/mqtt/publish", body)).code == 0
        await reader.expect_publish("t", b"x!", 1)
        batch = [{**body, "topic": f"t{number}"} for number in range(3)]
        assert (await node.api.post("/mqtt/publish_batch", batch)).code == 0
        for number in range(3):
            await reader.expect_publish(f"t{number}", b"x!", 1)
        assert topics(provider) == ["t", "t0", "t1", "t2"]
        provider.answers["OnMessagePublish"] = lambda request: changed(request, allow=False)
        assert (await node.api.post("/mqtt/publish", body)).code == 0
        provider.answers["OnMessagePublish"] = lambda request: changed(request, topic="+")
        refused = await node.api.post("/mqtt/publish", body)
        assert "exhook.request_failed_action" in refused.json["message"]
        await reader.nothing()


async def test_a_rule_that_publishes() -> None:
    async with provided(["out/#"]) as provider, managed(provider) as node:
        action = {
            "name": "republish",
            "params": {"target_topic": "out/t", "payload_tmpl": "${payload}", "target_qos": 1},
        }
        record = await node.engine.rules.create('SELECT * FROM "in"', [action])
        reader = await node.client("r")
        await reader.subscribe("#", qos=1)
        publisher = await node.client("p")
        for number in range(5):
            await publisher.publish("in", b"%d" % number, 1)
        got = [(each.topic, each.payload) for each in [await reader.expect_publish() for _ in range(10)]]
        assert [each for each in got if each[0] == "out/t"] == [("out/t", b"%d!" % number) for number in range(5)]
        provider.answers["OnMessagePublish"] = lambda request: changed(request, topic="+")
        await publisher.publish("in", b"x", 1)
        await reader.expect_publish("in", b"x", 1)
        await until(lambda: _failed(node, record.id) == 1)
        await reader.nothing()


async def test_a_rule_stops_if_a_message_that_nobody_is_asked_about_is_refused() -> None:
    async with provided(["asked"]) as provider, managed(provider) as node:
        actions = [{"name": "republish", "params": {"target_topic": topic}} for topic in ("${payload}", "second")]
        record = await node.engine.rules.create('SELECT * FROM "in"', actions, on_action_failed="stop")
        reader = await node.client("r")
        await reader.subscribe("second", qos=1)
        publisher = await node.client("p")
        await publisher.publish("in", b"$SYS/x", 1)
        await until(lambda: node.engine.rules.lookup(record.id).actions[0].metrics[0].failed == 1)
        await reader.nothing()
        await publisher.publish("in", b"t", 1)
        await reader.expect_publish("second", b"t")


def _failed(node: ManagedNode, rule: str) -> int:
    (action,) = node.engine.rules.lookup(rule).actions
    (metrics,) = action.metrics
    return int(metrics.failed)


@pytest.mark.parametrize("late", [False, True])
async def test_the_message_of_a_rule_survives_the_end_of_the_node(tmp_path: Path, late: bool) -> None:
    """The publisher of the message that the rule selects has its PUBACK before the answer."""
    action = {"name": "republish", "params": {"target_topic": "out", "payload_tmpl": "${payload}", "target_qos": 1}}
    config = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}

    async def hangs(request: Any) -> Any:
        await asyncio.sleep(60)

    async with provided(["out"]) as provider:
        async with managed(provider, **config) as node:
            await node.engine.rules.create('SELECT * FROM "in"', [action])
            reader = await node.client("r", expiry=1000)
            await reader.subscribe("out", qos=1)
            provider.answers["OnMessagePublish"] = hangs
            publisher = await node.client("p")
            dying = await node.client("d", will=Will("out", b"will", 1))
            dying.abort()
            await publisher.publish("in", b"x", 1)
            await until(lambda: len(provider.of("OnMessagePublish")) == 2)
        assert not {"exhook_dropped_stopped", "will_quota_exceeded"} & set(refusals(node))
        provider.answers["OnMessagePublish"] = marked
        provider.asked.clear()
        table = {"bind": "127.0.0.1:0", "apps": [{"id": APP_ID, "secret": SECRET}]}
        node = ManagedNode(make_settings(**config), msgspec.convert(table, ManagementSettings))
        # Before anything is restored.
        plugin = ExhookPlugin(node.server, settings_for(provider, request_timeout=0.2), EngineSettings())
        if late:
            await provider.stop()
        await node.start()
        try:
            plugin.start()
            if late:
                await until(lambda: refusals(node).get("exhook_failed_down"))
                await provider.start()
            reader = await node.client("r", expiry=1000)
            got = {(await reader.expect_publish("out", qos=1)).payload for _ in range(2)}
            assert got == {b"x!", b"will!"} and topics(provider) == ["out", "out"]
            durability = node.server.broker.durability
            assert durability is not None and not durability.node.delayed and not durability.node.wills
        finally:
            await plugin.close()
            await node.stop()


async def test_a_bridge(tmp_path: Path) -> None:
    there = await start_node()
    try:
        async with provided(["in/#"]) as provider, managed(provider) as node:
            reader = await node.client("r")
            await reader.subscribe("in/#", qos=2)
            address = there.address()
            await node.engine.resources.create(
                "bridge_mqtt",
                {
                    "address": f"{address.host}:{address.port}",
                    "pool_size": 1,
                    "ingress": [{"remote_topic": "#", "qos": 2, "local_topic": "in/${topic}"}],
                },
            )
            await until(lambda: len(there.server.context.channels) == 2)
            sender = await there.client("s")
            for number in range(30):
                await sender.publish("t", b"%d" % number, number % 3)
            for number in range(30):
                await reader.expect_publish("in/t", b"%d!" % number, number % 3)
            # Without an answer it is not acknowledged to the other broker, and is asked about again.
            await provider.stop()
            await sender.publish("t", b"late", 1)
            await until(lambda: sum(refusals(node).get(f"exhook_failed_{why}", 0) for why in ("unavailable", "down")))
            (receiving,) = [each for each in there.server.broker.sessions if each.subscriptions]
            assert len(receiving.inflight) == 1
            await provider.start()
            await reader.expect_publish("in/t", b"late!", 1)
            await until(lambda: not receiving.inflight)
    finally:
        await there.stop()


async def test_an_mqtt_sn_client() -> None:
    assert kind_of("mqttsn") is not None
    listeners = [{"type": "tcp"}, {"type": "mqttsn", "name": "devices"}]
    async with provided() as provider, managed(provider, listeners=listeners) as node:
        reader = await node.client("r")
        await reader.subscribe("#", qos=2)
        (listener,) = [each for each in node.server.listeners if each.type == "mqttsn"]
        client = await SnClient.open(listener.bind, True, b"")
        try:
            await client.connect("sn")
            topic_id = await client.register("t")
            for qos in (0, 1, 2):
                await client.publish(topic_id, b"x", qos=qos)
                await reader.expect_publish("t", b"x!", qos)
            assert topics(provider) == ["t"] * 3
        finally:
            client.close()


async def test_a_coap_client() -> None:
    assert kind_of("coap") is not None
    listeners = [{"type": "tcp"}, {"type": "coap", "name": "devices"}]
    async with provided() as provider, managed(provider, listeners=listeners) as node:
        reader = await node.client("r")
        await reader.subscribe("#", qos=2)
        (listener,) = [each for each in node.server.listeners if each.type == "coap"]
        client = await CoapClient.open(listener.bind)
        try:
            assert await client.put("mqtt/t?c=dev", b"x") == "2.04"
            await reader.expect_publish("t", b"x!")
            provider.answers["OnMessagePublish"] = lambda request: changed(request, topic="+")
            assert await client.put("mqtt/t?c=dev", b"x") == "5.03"
            await reader.nothing()
        finally:
            client.close()


async def test_only_the_node_that_accepts_asks() -> None:
    async with (
        provided() as provider,
        cluster_nodes(2) as cluster,
        plugin_of(cluster[0], provider),
        plugin_of(cluster[1], provider),
    ):
        reader = await cluster[1].client("r")
        await reader.subscribe("t", qos=1)
        shared = await cluster[1].client("s")
        await shared.subscribe("$share/g/t", qos=1)
        await cluster.wait_until_quiet()
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"x", 1, retain=True)
        await reader.expect_publish("t", b"x!", 1)
        await shared.expect_publish("t", b"x!", 1)
        (request,) = provider.of("OnMessagePublish")
        assert request.meta.node == cluster[0].server.settings.node.name


# ------------------------------------------------------------------------ no answer


async def no_answer(request: Any) -> Any:
    raise RuntimeError("of the provider")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_deny(qos: int, caplog: pytest.LogCaptureFixture) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = no_answer
        reader = await node.client("r")
        await reader.subscribe("t", qos=2)
        publisher = await node.client("p")
        assert await publisher.publish("t", b"x", qos, expect=None) == (0x97 if qos else 0)
        await until(lambda: refusals(node).get("publish_quota_exceeded") == 1)
        await reader.nothing()
        assert refusals(node)["exhook_failed_unknown"] == 1
        assert re.search(r"publish_refused client_id=p topic=t .*setting=exhook.request_failed_action", caplog.text)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_ignore(qos: int) -> None:
    node = await start_node()
    try:
        async with provided() as provider, plugin_of(node, provider, request_failed_action="ignore"):
            provider.answers["OnMessagePublish"] = no_answer
            reader = await node.client("r")
            await reader.subscribe("t", qos=2)
            publisher = await node.client("p")
            await publisher.publish("t", b"x", qos)
            await reader.expect_publish("t", b"x", qos)
            assert refusals(node)["exhook_failed_unknown"] == 1
    finally:
        await node.stop()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_3x_client_has_no_acknowledgement_before_there_is_an_answer(qos: int) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = no_answer
        reader = await node.client("r")
        await reader.subscribe("t", qos=2)
        publisher = await node.client("p", 4)
        await publisher.send(Publish("t", b"x", qos, packet_id=1))
        await until(lambda: refusals(node).get("exhook_failed_unknown") == 1)
        await publisher.nothing()
        provider.answers["OnMessagePublish"] = marked
        await publisher.answer(Ack, type=c.PUBACK if qos == 1 else c.PUBREC, packet_id=1)
        await reader.expect_publish("t", b"x!", qos)
        provider.answers["OnMessagePublish"] = no_answer
        await publisher.send(Publish("t", b"y", qos, packet_id=2))
        await until(lambda: refusals(node).get("exhook_failed_unknown") == 2)
        await node.pass_time(61)
        await publisher.expect_closed()
        await reader.nothing()
        assert refusals(node)["publish_quota_exceeded"] == 1


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_question_is_not_repeated_for_a_client_that_may_not_publish_any_more(qos: int) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = no_answer
        reader = await node.client("r")
        await reader.subscribe("t", qos=2)
        publisher = await node.client("p", 4)
        await publisher.send(Publish("t", b"x", qos, packet_id=1))
        await until(lambda: refusals(node).get("exhook_failed_unknown") == 1)
        rules = [RuleSettings(allow=False, action="publish", topics=["t"])]
        settings = node.server.settings
        access = msgspec.structs.replace(settings.access, rules=rules)
        node.server.reload(msgspec.structs.replace(settings, access=access))
        questions = len(topics(provider))
        provider.answers["OnMessagePublish"] = marked
        await publisher.answer(Ack, type=c.PUBACK if qos == 1 else c.PUBREC, packet_id=1)
        await reader.nothing()
        assert len(topics(provider)) == questions
        assert node.server.metrics.packets_publish_auth_error == 1


@pytest.mark.parametrize(("version", "qos"), [(4, 1), (5, 0), (5, 2)])
async def test_a_connection_whose_client_has_closed_its_side_ends_in_time(version: int, qos: int) -> None:
    """Without it, a provider that does not answer would keep the connections of clients that have left."""
    node = await start_node()
    try:
        async with provided() as provider, plugin_of(node, provider, request_timeout=60.0):
            held(provider)
            publisher = await node.client("p", version)
            await publisher.send(Publish("t", b"x", qos, packet_id=1 if qos else 0))
            await until(lambda: provider.of("OnMessagePublish"))
            connection = next(each for each in node.server.connections if each.channel.client.client_id == "p")
            publisher.stream.writer.write_eof()  # type: ignore[union-attr]
            await until(lambda: connection._eof)
            await node.pass_time(9)
            await publisher.settle()
            assert connection in node.server.connections and connection._lost is None
            await node.pass_time(2)
            await publisher.expect_closed()
            await node.pass_time(11)
            await until(lambda: connection not in node.server.connections)
    finally:
        await node.stop()


async def test_a_client_that_has_closed_its_side_gets_its_acknowledgement() -> None:
    async with provided() as provider, asked(provider) as node:
        free = held(provider)
        publisher = await node.client("p")
        await publisher.send(Publish("t", b"x", 1, packet_id=1))
        await until(lambda: provider.of("OnMessagePublish"))
        publisher.stream.writer.write_eof()  # type: ignore[union-attr]
        free.set()
        await publisher.expect(Ack, type=c.PUBACK, packet_id=1)
        await publisher.expect_closed()


async def test_a_provider_that_hangs_is_not_waited_for_each_time(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(request: Any) -> Any:
        await asyncio.sleep(60)

    node = await start_node()
    try:
        engine = EngineSettings(breaker_failures=2, breaker_pause=0.3, close_timeout=1.0)
        async with provided() as provider, plugin_of(node, provider, engine=engine, request_timeout=0.3) as plugin:
            provider.answers["OnMessagePublish"] = hangs
            publisher = await node.client("p")
            for _ in range(10):
                assert await publisher.publish("t", b"x", 1, expect=None) == 0x97
            found = refusals(node)
            assert found["exhook_failed_deadline_exceeded"] + found["exhook_failed_down"] == 10
            assert found["exhook_failed_down"] >= 5
            assert "reason=deadline_exceeded setting=exhook.request_timeout" in caplog.text
            assert plugin.providers[0].connected
            provider.answers["OnMessagePublish"] = marked
            while await publisher.publish("t", b"x", 1, expect=None) == 0x97:
                await asyncio.sleep(0.05)
    finally:
        await node.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda request: CLASSES["ValuedResponse"](type=STOP_AND_RETURN, bool_result=True),
        lambda request: changed(request, topic=""),
        lambda request: changed(request, topic="a/#"),
        lambda request: changed(request, topic="$SYS/x"),
        lambda request: changed(request, topic="$delayed/1/x"),
        lambda request: changed(request, topic="x" * 65_536),
        lambda request: changed(request, topic="a\0b"),
        lambda request: changed(request, qos=3),
        lambda request: b"no message of exhook",
    ],
)
async def test_a_wrong_answer_is_none(wrong: Callable[[Any], Any]) -> None:
    async with provided() as provider, asked(provider) as node:
        provider.answers["OnMessagePublish"] = wrong
        publisher = await node.client("p")
        assert await publisher.publish("t", b"x", 1, expect=None) == 0x97
        assert refusals(node)["exhook_failed_bad_answer"] == 1


async def test_a_large_message() -> None:
    async with provided() as provider, asked(provider, {"max_packet_size": 10_000_000}) as node:
        reader = await node.client("r")
        await reader.subscribe("t", qos=1)
        publisher = await node.client("p")
        await publisher.publish("t", bytes(5_000_000), 1)
        await reader.expect_publish("t", bytes(5_000_000) + b"!", 1)


async def test_an_empty_answer_changes_nothing() -> None:
    async with provided() as provider, asked(provider) as node:
        del provider.answers["OnMessagePublish"]
        reader = await node.client("r")
        await reader.subscribe("t", qos=1)
        publisher = await node.client("p")
        await publisher.publish("t", b"x", 1)
        await reader.expect_publish("t", b"x", 1)


@pytest.mark.parametrize(("action", "code"), [("deny", 0x97), ("ignore", 0)])
async def test_a_provider_that_was_never_there(action: str, code: int) -> None:
    node = await start_node()
    try:
        provider = Provider(message__publish=[])
        await provider.start()
        await provider.stop()
        settings: dict[str, Any] = {"request_failed_action": action, "request_timeout": 0.3, "connected": False}
        async with plugin_of(node, provider, **settings) as plugin:
            reader = await node.client("r")
            await reader.subscribe("t", qos=1)
            publisher = await node.client("p")
            assert await publisher.publish("t", b"x", 1, expect=None) == code
            provider.hooks = NOT_ASKED
            await provider.start()
            await until(lambda: plugin.providers[0].connected)
            assert await publisher.publish("t", b"x", 1) == 0
        await provider.stop()
    finally:
        await node.stop()


async def test_messages_wait_for_a_provider_that_starts_again() -> None:
    async with provided() as provider, asked(provider) as node:
        reader = await node.client("r")
        await reader.subscribe("t", qos=1)
        publisher = await node.client("p")
        await provider.stop()
        await until(lambda: bool(node.server.alarms.active))
        await publisher.send(Publish("t", b"x", 1, packet_id=1))
        await provider.start()
        await reader.expect_publish("t", b"x!", 1)


# ---------------------------------------------------------------- several providers


async def test_providers_are_asked_in_their_order() -> None:
    def second_in_turn(request: Any) -> Any:
        return changed(request, payload=request.message.payload + b"2")

    node = await start_node()
    try:
        async with provided() as first, provided() as second, plugin_of(node, first, second):
            reader = await node.client("r")
            await reader.subscribe("#", qos=1)
            publisher = await node.client("p")
            first.answers["OnMessagePublish"] = lambda request: changed(request, CONTINUE, payload=b"1", allow=True)
            second.answers["OnMessagePublish"] = second_in_turn
            await publisher.publish("t", b"x", 1)
            await reader.expect_publish("t", b"12", 1)
            assert second.of("OnMessagePublish")[0].message.headers["allow_publish"] == "true"
            first.answers["OnMessagePublish"] = lambda request: changed(request, STOP_AND_RETURN, payload=b"only")
            await publisher.publish("t", b"x", 1)
            await reader.expect_publish("t", b"only", 1)
            first.answers["OnMessagePublish"] = lambda request: changed(request, IGNORE, payload=b"ignored")
            await publisher.publish("t", b"x", 1)
            await reader.expect_publish("t", b"x2", 1)
            assert len(first.of("OnMessagePublish")) == 3 and len(second.of("OnMessagePublish")) == 2
    finally:
        await node.stop()


# ---------------------------------------------------------------------------- limits


async def test_what_waits_is_limited_and_counts_as_memory() -> None:
    node = await start_node()
    try:
        async with provided() as provider, plugin_of(node, provider, max_queued=3, request_timeout=60.0):
            free = held(provider)
            publishers = [await node.client(f"p{number}") for number in range(4)]
            for publisher in publishers[:3]:
                await publisher.send(Publish("t", bytes(1000), 1, packet_id=1))
            inspection = node.server.broker.inspection
            assert isinstance(inspection, Inspection)
            await until(lambda: inspection.waiting == 3)
            assert inspection.waiting_bytes > 3000
            assert node.server.guard.event_bytes >= inspection.waiting_bytes
            await publishers[3].send(Publish("t", b"x", 1, packet_id=1))
            ack = await publishers[3].answer(Ack, type=c.PUBACK, packet_id=1)
            assert ack.reason_code == 0x97 and "too many messages wait" in str(ack.properties)
            free.set()
            for publisher in publishers[:3]:
                await publisher.answer(Ack, type=c.PUBACK, packet_id=1)
            assert inspection.waiting == inspection.waiting_bytes == 0
    finally:
        await node.stop()


async def test_properties_count_as_memory() -> None:
    many: Any = {c.USER_PROPERTY: [("k" * 100, "v" * 100)] * 200}
    async with provided(["t", "will"]) as provider, managed(provider) as node:
        free = held(provider)
        dying = await node.client("d", will=Will("will", b"", 1, False, many))
        publisher = await node.client("p")
        inspection = node.server.broker.inspection
        assert isinstance(inspection, Inspection)
        await publisher.send(Publish("t", b"", 0, properties=many))
        await until(lambda: inspection.waiting == 1)
        assert inspection.waiting_bytes > 40_000
        dying.abort()
        await until(lambda: inspection.waiting == 2)
        assert inspection.waiting_bytes > 80_000
        free.set()
        await until(lambda: inspection.waiting == 0)
        assert inspection.waiting_bytes == 0


class BrokenInspector:
    """An inspector with a fault."""

    def inspects(self, topic: str) -> bool:
        return True

    async def inspect(self, message: Message) -> Answer:
        raise RuntimeError("a fault")


async def test_an_internal_error_refuses_the_message_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    node = await start_node()
    node.ignore(lambda record: record.msg.startswith("message_not_inspected"))
    try:
        broker = node.server.broker
        inspection = Inspection(broker, BrokenInspector(), InspectionLimits("exhook", 10, 100_000))
        broker.inspection = inspection
        publisher = await node.client("p")
        for _ in range(2):
            assert await publisher.publish("t", b"x", 1, expect=None) == 0x80
        assert inspection.waiting == inspection.waiting_bytes == 0
        assert "message_not_inspected topic=t" in caplog.text
    finally:
        await node.stop()


async def test_when_memory_is_exhausted_what_is_not_asked_yet_is_refused() -> None:
    async with provided(["out"]) as provider, managed(provider) as node:
        free = held(provider)
        action = {"name": "republish", "params": {"target_topic": "out", "payload_tmpl": "${payload}", "target_qos": 0}}
        record = await node.engine.rules.create('SELECT * FROM "in"', [action])
        publisher = await node.client("p")
        for _ in range(5):
            await publisher.publish("in", b"x", 1)
        inspection = node.server.broker.inspection
        assert inspection is not None and inspection.waiting == 5
        inspection.shed()
        assert inspection.waiting == 1 and _failed(node, record.id) == 4
        free.set()
        await until(lambda: inspection.waiting == 0)
        assert node.server.broker.account.level == NORMAL


async def test_the_end_of_the_node_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(request: Any) -> Any:
        await asyncio.sleep(60)

    caplog.set_level(logging.WARNING)
    node = await start_node()
    try:
        async with provided() as provider:
            engine = EngineSettings(close_timeout=0.2)
            async with plugin_of(node, provider, engine=engine, request_timeout=60.0):
                provider.answers["OnMessagePublish"] = hangs
                publisher = await node.client("p")
                await publisher.send(Publish("t", b"x", 0))
                await until(lambda: provider.of("OnMessagePublish"))
    finally:
        await node.stop()
    assert "setting=ruleengine.close_timeout" in caplog.text
