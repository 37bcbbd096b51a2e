"""Each gateway with each module that changes topics, subscriptions or who may come in: topic rewrite, proxy
subscription, exclusive subscription, delayed publish, bans and the flapping detector."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.access.banned import CLIENT_ID, PEER_HOST, Ban
from taipan.broker.gateway import kind_of
from taipan.broker.gateways.coap import codec
from taipan.broker.gateways.coap.codec import DELETE, GET
from taipan.broker.gateways.mqttsn import codec as sn
from taipan.broker.routing.retained import Walk
from tests.gateways.coap_client import CoapClient
from tests.gateways.lwm2m_device import Device
from tests.gateways.sn_client import SnClient
from tests.support.api import ManagedNode, managed_node
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio]

TYPES = ["mqttsn", "coap", "lwm2m"]
REWRITE = {
    "rules": [
        {"action": "all", "source_topic": "old/#", "re": "^old/(.+)$", "dest_topic": "new/$1"},
        {"action": "publish", "source_topic": "moved/#", "re": "^moved/(.+)$", "dest_topic": "gone/$1"},
        {"action": "all", "source_topic": "bad/#", "re": "^bad/(.+)$", "dest_topic": "%c/$1"},
        {"action": "all", "source_topic": "lwm2m/+/up/#", "re": "^lwm2m/(.+)/up/(.+)$", "dest_topic": "up/$1/$2"},
        {"action": "all", "source_topic": "lwm2m/+/dn/#", "re": "^lwm2m/(.+)/dn/(.+)$", "dest_topic": "dn/$1/$2"},
    ]
}
QOS = [0, 1, 2]

Open = Callable[[ManagedNode, Any], Awaitable[Any]]


def bind_of(node: ManagedNode, kind: str) -> tuple[str, int]:
    [listener] = [each for each in node.server.listeners if each.type == kind]
    bind: tuple[str, int] = listener.bind
    return bind


def start(**settings: Any) -> Any:
    for each in TYPES:
        assert kind_of(each) is not None
    return managed_node(listeners=[{"type": "tcp"}, *({"type": each, "name": each} for each in TYPES)], **settings)


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Open]:
    made: list[Any] = []

    async def open_client(node: ManagedNode, kind: Any) -> Any:
        match kind:
            case "mqttsn":
                made.append(await SnClient.open(bind_of(node, kind)))
            case "coap":
                made.append(await CoapClient.open(bind_of(node, kind)))
            case "lwm2m":
                made.append(await Device.open(bind_of(node, kind), "dev"))
        return made[-1]

    yield open_client
    for each in made:
        each.close()
    await asyncio.sleep(0)


async def try_login(client: Any) -> bool:
    """Log in as ``dev``, and return whether that was accepted."""
    if isinstance(client, SnClient):
        return await client.ask(sn.SnConnect("dev", True, False, 60)) == sn.SnConnack(sn.ACCEPTED)
    if isinstance(client, CoapClient):
        return await client.code(GET, "mqtt/none?c=dev") == "2.05"
    reply = await client.register()
    return bool(reply.dotted == "2.01")


async def log_out(node: ManagedNode) -> None:
    """Kick the client, and wait until it is gone."""
    assert (await node.api.delete("/clients/dev")).status == 200
    await until(lambda: "dev" not in node.server.context.channels)


def retained(node: ManagedNode) -> list[str]:
    return sorted(each.topic for each in Walk(node.server.broker.retained, "#").take(99))


async def test_topic_rewrite_of_mqtt_sn(opened: Open) -> None:
    async with start(rewrite=REWRITE) as node:
        device, peer = await opened(node, "mqttsn"), await node.client("m")
        await peer.subscribe("new/#", "gone/#", qos=2)
        assert await try_login(device)
        for topic, arrives in (("old/a", "new/a"), ("moved/a", "gone/a")):
            topic_id = await device.register(topic)
            for qos in QOS:
                await device.publish(topic_id, b"x", qos)
                await peer.expect_publish(arrives, b"x", qos)
        await device.subscribe("old/b", 1)
        await peer.publish("new/b", b"y", 1)
        assert await device.message() == ("new/b", b"y", 1)


async def test_topic_rewrite_of_coap(opened: Open) -> None:
    """Below /ps, too: whether a topic has a message, its format and what a DELETE clears are those of the topic to
    which a publication goes."""
    async with start(rewrite=REWRITE) as node:
        client, peer = await opened(node, "coap"), await node.client("m")
        await peer.subscribe("new/#", "gone/#", qos=1)
        assert await client.put("mqtt/old/a?c=dev", b"x") == "2.04"
        await peer.expect_publish("new/a", b"x", 1)
        await client.observe("mqtt/old/b?c=dev")
        await peer.publish("new/b", b"y", 1)
        await peer.expect_publish("new/b", b"y", 1)
        assert await client.state() == b"y"

        assert await client.put("ps/old/a?c=dev", b"{}", content_format=50) == "2.01"
        assert await client.put("ps/old/a?c=dev", b"{1}", content_format=50) == "2.04"
        assert await client.put("ps/old/a?c=dev", b"x", content_format=42) == "4.00"
        assert await client.put("ps/old/a?c=dev", b"{2}") == "2.04"  # without a format, that of the message
        answer = await client.ask(GET, "ps/old/a?c=dev")
        assert answer.payload == b"{2}" and codec.option(answer.options, codec.CONTENT_FORMAT) == b"\x32"
        answer = await client.observe("ps/old/a?c=dev", token=b"p")
        await peer.publish("new/a", b"{3}", 1)
        heard = await client.notification()
        assert heard.payload == b"{3}" and codec.option(heard.options, codec.CONTENT_FORMAT) == b"\x32"

        assert await client.put("ps/old/a/1?c=dev", b"x") == "2.01"
        assert await client.put("ps/moved/a?c=dev", b"x") == "2.01"
        assert await client.put("ps/bad/+?c=dev", b"x") == "4.00"
        await peer.publish("moved/kept", b"x", 1, retain=True)  # goes to gone/kept
        await until(lambda: len(retained(node)) == 4)
        assert retained(node) == ["gone/a", "gone/kept", "new/a", "new/a/1"]
        assert await client.code(DELETE, "ps/old/a?c=dev") == "2.02"
        assert retained(node) == ["gone/a", "gone/kept"]
        assert await client.code(DELETE, "ps/old/a?c=dev") == "4.04"
        # Only publications to moved/# are rewritten: its own message can be cleared, those below it have other names.
        assert await client.code(DELETE, "ps/moved?c=dev") == "4.04"
        assert await client.code(DELETE, "ps/moved/a?c=dev") == "2.02"
        assert retained(node) == ["gone/kept"]


async def test_two_filters_of_coap_that_are_rewritten_to_one(opened: Open) -> None:
    """They are one subscription; each observation has its own notifications, and ends alone."""
    async with start(rewrite=REWRITE) as node:
        client, peer = await opened(node, "coap"), await node.client("m")
        await client.observe("mqtt/old/b?c=dev", token=b"1")
        await client.observe("mqtt/new/b?c=dev", token=b"2")
        await peer.publish("new/b", b"y", 1)
        assert sorted([(await client.notification()).token for _ in range(2)]) == [b"1", b"2"]
        answer = await client.ask(GET, "mqtt/old/b?c=dev", token=b"1", observe=1)
        assert codec.dotted(answer.code) == "2.05"
        await peer.publish("new/b", b"z", 1)
        heard = await client.notification()
        assert (heard.token, heard.payload) == (b"2", b"z")
        session = node.server.broker.sessions.get("dev")
        assert session is not None and list(session.subscriptions) == ["new/b"]
        await client.ask(GET, "mqtt/new/b?c=dev", token=b"2", observe=1)
        await until(lambda: not session.subscriptions)
        # Both are read below /ps, too.
        assert await client.put("ps/new/c?c=dev", b"x") == "2.01"
        for topic in ("old/c", "new/c"):
            assert (await client.ask(GET, f"ps/{topic}?c=dev")).payload == b"x"


async def test_topic_rewrite_of_lwm2m(opened: Open) -> None:
    async with start(rewrite=REWRITE) as node:
        device, peer = await opened(node, "lwm2m"), await node.client("m")
        await peer.subscribe("up/dev/#")
        device.resources["/3/0/9"] = (0, b"87")
        assert await try_login(device)
        assert json.loads((await peer.expect_publish("up/dev/resp")).payload)["msgType"] == "register"
        command = json.dumps({"reqID": 1, "msgType": "read", "data": {"path": "/3/0/9"}}).encode()
        await peer.publish("dn/dev/1", command)
        assert json.loads((await peer.expect_publish("up/dev/resp")).payload)["data"]["code"] == "2.05"


async def test_proxy_subscription(opened: Open) -> None:
    """What the operator subscribes clients to comes to each as its protocol can have it; for a device of LwM2M, it is a
    topic for commands."""
    topics = {"topics": [{"topic": "to/%c", "qos": 1}]}
    async with start(auto_subscribe=topics) as node:
        peer = await node.client("m")
        await peer.subscribe("lwm2m/dev/up/#")
        device = await opened(node, "mqttsn")
        assert await try_login(device)
        await peer.publish("to/dev", b"x", 1)
        assert await device.message() == ("to/dev", b"x", 1)
        await log_out(node)
        client = await opened(node, "coap")
        await client.observe("mqtt/to/dev?c=dev")
        await peer.publish("to/dev", b"y", 1)
        assert await client.state() == b"y"
        await log_out(node)
        device = await opened(node, "lwm2m")
        device.resources["/3/0/9"] = (0, b"87")
        assert await try_login(device)
        assert json.loads((await peer.expect_publish("lwm2m/dev/up/resp")).payload)["msgType"] == "register"
        await peer.publish("to/dev", b'{"reqID":1,"msgType":"read","data":{"path":"/3/0/9"}}', 1)
        assert json.loads((await peer.expect_publish("lwm2m/dev/up/resp")).payload)["data"]["code"] == "2.05"


async def test_exclusive_subscription(opened: Open) -> None:
    async with start(zone={"exclusive_subscription": True}) as node:
        device, client, peer = await opened(node, "mqttsn"), await opened(node, "coap"), await node.client("m")
        assert await try_login(device)
        await device.subscribe("$exclusive/t", 1)
        assert await client.code(GET, "mqtt/$exclusive/t?c=other", observe=0, token=b"o") == "5.03"
        assert await client.code(GET, "ps/$exclusive/t?c=other") == "5.03"
        await peer.publish("t", b"x", 1)
        assert await device.message() == ("t", b"x", 1)
        device.say(sn.SnDisconnect())
        await until(lambda: "dev" not in node.server.context.channels)
        await client.observe("mqtt/$exclusive/t?c=other")
        await peer.publish("t", b"y", 1)
        assert await client.state() == b"y"
        await client.code(GET, "mqtt/$exclusive/t?c=other", observe=1, token=b"o")
        await peer.publish("t", b"kept", 1, retain=True)
        await until(lambda: retained(node) == ["t"])
        assert (await client.ask(GET, "ps/$exclusive/t?c=other")).payload == b"kept"


async def test_delayed_publish(opened: Open) -> None:
    async with start() as node:
        device, client, peer = await opened(node, "mqttsn"), await opened(node, "coap"), await node.client("m")
        await peer.subscribe("late", qos=1)
        assert await try_login(device)
        await device.publish(await device.register("$delayed/0/late"), b"sn", 1)
        await peer.expect_publish("late", b"sn", 1)
        assert await client.put("mqtt/$delayed/0/late?c=other", b"coap") == "2.04"
        await peer.expect_publish("late", b"coap", 1)
        assert await client.put("ps/$delayed/0/late?c=other", b"{}", content_format=50) == "2.01"
        await peer.expect_publish("late", b"{}", 1)
        # The message that it replaces is that of the topic itself.
        assert await client.put("ps/$delayed/60/late?c=other", b"{}", content_format=50) == "2.04"
        assert await client.put("ps/$delayed/60/late?c=other", b"x", content_format=42) == "4.00"


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("ban", [(CLIENT_ID, "dev"), (PEER_HOST, "127.0.0.1")])
async def test_bans(opened: Open, kind: str, ban: tuple[str, str]) -> None:
    async with start() as node:
        node.server.banned.put(Ban(*ban, "m", "", 0.0, 2e9 * 2))
        assert not await try_login(await opened(node, kind))
        node.server.banned.remove(*ban)
        assert await try_login(await opened(node, kind))


@pytest.mark.parametrize("kind", TYPES)
async def test_flapping(opened: Open, kind: str) -> None:
    async with start(zone={"flapping_threshold": 3, "flapping_window": 3600.0}) as node:
        for _ in range(3):
            assert await try_login(await opened(node, kind))
            await log_out(node)
        assert not await try_login(await opened(node, kind))
