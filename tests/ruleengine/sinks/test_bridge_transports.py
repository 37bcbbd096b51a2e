"""Bridges by WebSocket and TLS, there and back, and what is said where they do not come about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from amqtt.broker import Broker  # type: ignore[import-untyped]

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.mqtt_bridge import action
from taipan.ruleengine.sinks.mqtt_bridge import resource as mqtt_bridge
from tests.ruleengine.sinks.remotes import MOSQUITTO
from tests.support.absent import absent
from tests.support.amqtt_broker import shut_down
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, published
from tests.support.node import Node, free_port, start_node
from tests.support.peer import Peer
from tests.support.rule_engine_node import rule_engine_node
from tests.support.users import PASSWORD, users
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

VERSIONS = ("mqttv3", "mqttv4", "mqttv5")


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.issue("localhost")
    return made


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


async def node_with(certificates: Certificates, **tls: Any) -> Node:
    settings = msgspec.to_builtins(certificates.settings(**tls))
    kinds: list[dict[str, Any]] = [{"type": "tcp"}, {"type": "ssl", "tls": settings}]
    kinds += [{"type": "ws"}, {"type": "wss", "tls": settings}]
    return await start_node({"max_inflight": 1000}, kinds)


def config_of(node: Node, transport: str, certificates: Certificates) -> dict[str, Any]:
    host, port, _, path = node.address(transport)
    address = f"{host}:{port}" if transport in ("tcp", "ssl") else f"{transport}://{host}:{port}{path}"
    config: dict[str, Any] = {"address": address, "mountpoint": "", "pool_size": 2, "reconnect_interval": "50ms"}
    if transport in ("ssl", "wss"):
        config |= {"verify": True, "cacertfile": certificates.ca, "ssl": transport == "ssl"}
    return config


@pytest.mark.parametrize("transport", ["tcp", "ssl", "ws", "wss"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_goes_over_every_transport(
    certificates: Certificates, transport: str, version: str
) -> None:
    there = await node_with(certificates)
    here = await start_node({"max_inflight": 1000})
    engine = FakeEngine(server=here.server)
    listener, local = await there.client(), await here.client()
    await listener.subscribe("up/#", qos=2)
    await local.subscribe("in/#", qos=2)
    ingress = [{"remote_topic": "down/#", "qos": 2, "local_topic": "in/${topic}"}]
    config = config_of(there, transport, certificates)
    bridge = engine.run(mqtt_bridge.TYPE, proto_ver=version, ingress=ingress, **config)
    await bridge.test()
    act = engine.action(action.TYPE, payload_tmpl="${n}")
    await until(lambda: bridge.status.connections == 3)
    large = b"x" * 300_000
    for number in range(30):
        act.run({"n": number}, published("up/1", qos=number % 3))
    act.run({"n": large.decode()}, published("up/large", qos=2))
    await until(lambda: engine.report.successes == 31)
    got = [await listener.expect_publish() for _ in range(31)]
    assert sorted(each.payload for each in got) == sorted([*(b"%d" % number for number in range(30)), large])
    assert all(each.qos == int(each.payload) % 3 for each in got if each.topic == "up/1")
    sender = await there.client()
    for number in range(30):
        await sender.publish("down/1", b"%d" % number, number % 3)
    await sender.publish("down/large", large, 1)
    for number in range(30):
        await local.expect_publish("in/down/1", b"%d" % number, number % 3)
    await local.expect_publish("in/down/large", large, 1)
    await engine.close()
    await here.stop()
    await there.stop()


@asynccontextmanager
async def websocket_of(kind: str, directory: Path) -> AsyncIterator[int]:
    """The port where another broker speaks WebSocket."""
    port = free_port()
    if kind == "amqtt":
        plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
        broker = Broker({"listeners": {"default": {"type": "ws", "bind": f"127.0.0.1:{port}"}}, "plugins": plugins})
        await broker.start()
        yield port
        await shut_down(broker)
        return
    if MOSQUITTO is None:
        absent("mosquitto")
    config = directory / "mosquitto.conf"
    # Mosquitto 2.0.11 does not start without a listener of TCP.
    tcp = f"listener {free_port()} 127.0.0.1\n"
    config.write_text(f"{tcp}listener {port} 127.0.0.1\nprotocol websockets\nallow_anonymous true\n")
    process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", str(config), stderr=asyncio.subprocess.DEVNULL)
    yield port
    process.kill()
    await process.wait()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind, version", [("mosquitto", "mqttv4"), ("mosquitto", "mqttv5"), ("amqtt", "mqttv4")])
async def test_websocket_of_others(tmp_path: Path, kind: str, version: str) -> None:
    """There and back over the same broker: what is sent to it is fetched from it."""
    async with websocket_of(kind, tmp_path) as port:
        node = await start_node({"max_inflight": 1000})
        engine = FakeEngine(server=node.server)
        local = await node.client()
        await local.subscribe("in/#", qos=2)
        given: dict[str, Any] = {"mountpoint": "", "pool_size": 1, "reconnect_interval": "20ms", "proto_ver": version}
        given["ingress"] = [{"remote_topic": "up/#", "qos": 2, "local_topic": "in/${topic}"}]
        sender = engine.run(mqtt_bridge.TYPE, address=f"ws://127.0.0.1:{port}", **{**given, "ingress": []})
        fetcher = engine.run(mqtt_bridge.TYPE, "resource:2", address=f"ws://127.0.0.1:{port}", **given)
        act = engine.action(action.TYPE, payload_tmpl="${n}")
        await until(lambda: sender.alive and fetcher.status.connections == 2)
        for number in range(30):
            act.run({"n": number}, published("up/1", qos=number % 3))
        got = [await local.expect_publish("in/up/1") for _ in range(30)]
        assert sorted(int(each.payload) for each in got) == list(range(30))
        if kind != "amqtt":  # which sends everything with the QoS of the subscription
            assert all(each.qos == int(each.payload) % 3 for each in got)
        await engine.close()
        await node.stop()


@pytest.mark.parametrize("transport", ["ssl", "wss"])
@pytest.mark.parametrize(
    "more, trusted",
    [
        ({}, True),
        ({"cacertfile": ""}, False),
        ({"cacertfile": "", "verify": False}, True),
        ({"server_name_indication": "other"}, False),
        ({"server_name_indication": "localhost"}, True),
        ({"server_name_indication": "disable"}, True),
    ],
)
async def test_whom_a_bridge_trusts(
    engine: FakeEngine, certificates: Certificates, transport: str, more: dict[str, Any], trusted: bool
) -> None:
    node = await node_with(certificates)
    bridge = engine.run(mqtt_bridge.TYPE, **{**config_of(node, transport, certificates), **more})
    if trusted:
        await bridge.test()
        await until(lambda: bridge.alive)
    else:
        with pytest.raises(ResourceError, match="certificate"):
            await bridge.test()
        await until(lambda: "certificate" in bridge.status.reason)
        assert not bridge.alive
    await bridge.close()
    await node.stop()


@pytest.mark.parametrize("transport", ["ssl", "wss"])
async def test_a_client_certificate_is_shown_where_it_is_asked_for(
    engine: FakeEngine, certificates: Certificates, transport: str
) -> None:
    node = await node_with(certificates, verify="required", cafile=certificates.ca)
    config = config_of(node, transport, certificates)
    with pytest.raises(ResourceError, match=r"(?i)certificate"):
        await engine.make(mqtt_bridge.TYPE, **config).test()
    certfile, keyfile = certificates.issue("me")
    await engine.make(mqtt_bridge.TYPE, certfile=certfile, keyfile=keyfile, **config).test()
    await node.stop()


@pytest.mark.parametrize("transport", ["ssl", "ws", "wss"])
async def test_plain_mqtt_where_tls_or_websocket_is_spoken_says_so(
    engine: FakeEngine, certificates: Certificates, transport: str
) -> None:
    node = await node_with(certificates)
    plain = {**config_of(node, "tcp", certificates), "address": "{}:{}".format(*node.address(transport)[:2])}
    with pytest.raises(ResourceError, match=r"closed|reset|bad packet"):
        await engine.make(mqtt_bridge.TYPE, **plain).test()
    wrong = {**config_of(node, transport, certificates)}
    wrong["address"] = wrong["address"].replace(str(node.address(transport).port), str(node.address("tcp").port))
    with pytest.raises(ResourceError, match=r"(?i)ssl|record|closed|reset|eof|handshake"):
        await engine.make(mqtt_bridge.TYPE, **wrong).test()
    await node.stop()


async def test_a_path_where_no_websocket_is_says_so(engine: FakeEngine, certificates: Certificates) -> None:
    node = await node_with(certificates)
    config = {**config_of(node, "ws", certificates), "address": f"ws://127.0.0.1:{node.address('ws').port}/other"}
    with pytest.raises(ResourceError, match=r"WebSocket handshake: .*404"):
        await engine.make(mqtt_bridge.TYPE, **config).test()
    await node.stop()


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_alarm_says_why_the_other_broker_does_not_let_us_in(version: str) -> None:
    async with rule_engine_node(access={"users": users("u")}) as there, rule_engine_node() as here:
        address = "{}:{}".format(*there.address()[:2])
        config = {"address": address, "proto_ver": version, "username": "u", "password": "no", "pool_size": 1}
        config |= {"mountpoint": "", "reconnect_interval": "50ms"}
        record = await here.engine.resources.create("bridge_mqtt", config)
        ((name, alarm),) = here.server.alarms.active.items()
        assert name == f"resource/bridge_mqtt/{record.id}/down"
        said = "bad_username_or_password" if version == "mqttv5" else "bad username or password"
        assert alarm.details["fault"] == f"CONNACK: {said}"
        await here.engine.resources.update(record.id, {**config, "password": PASSWORD.decode()})
        await until(lambda: not here.server.alarms.active)


async def test_the_alarm_says_what_the_disconnect_of_the_other_broker_said() -> None:
    async with rule_engine_node() as there, rule_engine_node() as here:
        address = "{}:{}".format(*there.address()[:2])
        config = {"address": address, "proto_ver": "mqttv5", "pool_size": 1, "mountpoint": ""}
        record = await here.engine.resources.create("bridge_mqtt", {**config, "reconnect_interval": "1h"})
        bridge: Any = here.engine.resources.running(record.id)
        assert bridge.alive
        # Somebody with the same identifier takes the session over.
        taker = Peer(there.address(), 5)
        await taker.connect(bridge.sink._senders[0].client_id)
        await until(lambda: here.server.alarms.active)
        (alarm,) = here.server.alarms.active.values()
        assert alarm.details["fault"].startswith("DISCONNECT: session_taken_over")
        assert str(here.engine.resources.lookup(record.id).status).count("session_taken_over") == 1
        await taker.close()


@pytest.mark.parametrize(
    "address",
    ["ws://", "ws://h:0/x", "ws://h:70000/x", "http://h:1/x", "ws://u:p@h/x", "ws://h/x#y", "ws://h/ x", "ws://ü/x"],
)
async def test_addresses_that_are_none_are_refused(engine: FakeEngine, address: str) -> None:
    with pytest.raises(ParamError) as refused:
        engine.make(mqtt_bridge.TYPE, address=address)
    assert refused.value.key == "address"


async def test_what_an_address_means(engine: FakeEngine) -> None:
    def meant(address: str, **more: Any) -> tuple[Any, ...]:
        made: Any = engine.make(mqtt_bridge.TYPE, address=address, **more)
        options = made.sink._options
        return (*options.address, options.tls is not None)

    assert meant("h:1883") == ("h", 1883, "", False)
    assert meant("[::1]:8883", ssl=True) == ("::1", 8883, "", True)
    assert meant("ws://h") == ("h", 80, "/mqtt", False)
    assert meant("ws://[::1]:8083/a/b?c=d") == ("::1", 8083, "/a/b?c=d", False)
    assert meant("wss://h/x") == ("h", 443, "/x", True)
    with pytest.raises(ParamError, match="wss://"):
        meant("ws://h", ssl=True)
    assert meant("h:1", proto_ver="mqttv5", password="only")
    with pytest.raises(ParamError, match="username"):
        meant("h:1", proto_ver="mqttv3", password="only")
