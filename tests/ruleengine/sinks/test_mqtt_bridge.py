"""``bridge_mqtt`` and ``data_to_mqtt_broker`` with other brokers that answer, go away, come back, and refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.broker.mqtt.constants import PUBACK, PUBREC
from taipan.broker.session.memory_account import NORMAL, SLOWING
from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.mqtt_bridge import action
from taipan.ruleengine.sinks.mqtt_bridge import resource as mqtt_bridge
from tests.ruleengine.sinks.remotes import KINDS, Remote, remote
from tests.support.fake_engine import QUICK, FakeEngine, published
from tests.support.node import free_port, start_node
from tests.support.peer import Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest_asyncio.fixture(params=KINDS)
async def there(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Remote]:
    async with remote(request.param, tmp_path) as made:
        yield made


def run(engine: FakeEngine, address: str, **config: Any) -> Any:
    given = {"mountpoint": "", "pool_size": 2, "reconnect_interval": "50ms", **config}
    return engine.run(mqtt_bridge.TYPE, address=address, **given)


# aMQTT's broker stands in where its own manners (retained messages for anybody, no order) do not matter.
@pytest.mark.parametrize("there", [*KINDS, "amqtt"], indirect=True)
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_messages_arrive_there_with_their_qos_and_in_order(engine: FakeEngine, there: Remote, qos: int) -> None:
    listener = await there.client("fwd/#", qos=qos)
    bridge = run(engine, there.address, mountpoint="fwd/${node}/")
    act = engine.action(action.TYPE, payload_tmpl="${n}")
    await until(lambda: bridge.status.connections == 2)
    for number in range(40):
        assert act.run({"n": number}, published("a/b", qos=qos)) is False
    await until(lambda: engine.report.successes == 40)
    node = engine.server.settings.node.name
    payloads = [(await listener.expect_publish(f"fwd/{node}/a/b", qos=qos)).payload for _ in range(40)]
    if there.kind == "amqtt":  # keeps no order of its own
        payloads.sort(key=int)
    assert payloads == [b"%d" % number for number in range(40)]
    assert bridge.alive and engine.alive == [True]
    await listener.close()


@pytest.mark.parametrize("given, expected", [("0", 0), ("1", 1), ("2", 2), (1, 1), ("inherited_from_source_msg", 2)])
async def test_the_qos_of_the_action(engine: FakeEngine, tmp_path: Path, given: Any, expected: int) -> None:
    async with remote("taipan", tmp_path) as there:
        listener = await there.client("t", qos=2)
        run(engine, there.address)
        engine.action(action.TYPE, qos=given, payload_tmpl="p").run({}, published("t", qos=2))
        await listener.expect_publish("t", b"p", expected)
        await listener.close()


async def test_no_other_qos(engine: FakeEngine) -> None:
    run(engine, f"127.0.0.1:{free_port()}")
    for wrong in ("3", 3, True, "${qos}"):
        with pytest.raises(ParamError, match='qos: expected one of "inherited_from_source_msg", "0", "1", "2"'):
            engine.action(action.TYPE, qos=wrong)


async def test_topic_payload_and_retain(engine: FakeEngine, there: Remote) -> None:
    run(engine, there.address)
    row = {"clientid": "c1", "payload": b"\xff\x00", "x": 1}
    engine.action(action.TYPE, "a_1", forward_topic="up/${clientid}", payload_tmpl="${payload}").run(
        row, published(qos=1, retain=True)
    )
    engine.action(action.TYPE, "a_2", forward_topic="all").run({"x": 1}, published(qos=1, retain=True))
    await until(lambda: engine.report.successes == 2)
    late = await there.client("up/#")
    await late.expect_publish("up/c1", b"\xff\x00", retain=True)
    await late.close()
    late = await there.client("all")
    assert json.loads((await late.expect_publish("all")).payload) == {"x": 1}
    await late.close()


async def test_a_broker_that_is_away_and_comes_back_gets_everything(engine: FakeEngine, there: Remote) -> None:
    bridge = run(engine, there.address, pool_size=1)
    act = engine.action(action.TYPE, payload_tmpl="${n}")
    await until(lambda: bridge.alive)
    await there.stop()
    await until(lambda: not bridge.alive)
    for number in range(100):
        act.run({"n": number}, published("t", qos=1))
    await until(lambda: bridge.status.buffer.retried > 0)
    assert engine.report.count == 0
    # Whoever listens must be there before the bridge is: its messages are not retained.
    await bridge.close()
    await there.start()
    listener = await there.client("t")
    run(engine, there.address, pool_size=1)
    await until(lambda: engine.report.successes == 100)
    for number in range(100):
        await listener.expect_publish("t", b"%d" % number, 1)
    await listener.close()


async def test_a_bridge_comes_back_by_itself(engine: FakeEngine, there: Remote) -> None:
    bridge = run(engine, there.address)
    act = engine.action(action.TYPE)
    await until(lambda: bridge.status.connections == 2)
    await there.stop()
    await until(lambda: not bridge.alive)
    act.run({"n": 1}, published(qos=1))
    await there.start()
    await until(lambda: bridge.alive and engine.report.successes == 1)
    assert engine.alive == [True, False, True]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_ingress_publishes_here_what_is_published_there(there: Remote, tmp_path: Path, qos: int) -> None:
    node = await start_node()
    engine = FakeEngine(server=node.server)
    here = Peer(node.address(), 4)
    await here.connect()
    await here.subscribe("in/#", qos=2)
    bridge = run(
        engine,
        there.address,
        ingress=[{"remote_topic": "cmd/#", "qos": 2, "local_topic": "in/${topic}", "retain": False}],
    )
    await until(lambda: bridge.status.connections == 3)
    sender = await there.client()
    for number in range(20):
        await sender.publish("cmd/x", b"%d" % number, qos)
    for number in range(20):
        await here.expect_publish("in/cmd/x", b"%d" % number, qos)
    assert bridge.status.received == 20
    for peer in (sender, here):
        await peer.close()
    await engine.close()
    await node.stop()


async def test_no_ingress_reaches_topics_of_the_server_and_its_delays_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with remote("taipan", tmp_path) as there:
        node = await start_node()
        engine = FakeEngine(server=node.server)
        here = Peer(node.address(), 4)
        await here.connect()
        await here.subscribe("$SYS/#", "$SYSa/#", "$delayed/#", "#", qos=1)
        ingress = [
            {"remote_topic": "a/+", "qos": 1, "local_topic": "$SYS${topic}"},  # $SYSa/x is none of the server's
            {"remote_topic": "+/#", "qos": 1, "local_topic": "$${topic}"},
        ]
        bridge = run(engine, there.address, ingress=ingress)
        await until(lambda: bridge.status.connections == 3)
        sender = await there.client()
        for topic in ("SYS/forged", "delayed/0/$SYS/forged", "SYS", "delayed/0/late", "a/x"):
            await sender.publish(topic, b"x", 1)
        assert {(await here.expect_publish()).topic for _ in range(2)} == {"late", "$SYSa/x"}
        await here.nothing()
        assert bridge.status.received_refused == 3
        assert node.server.metrics.refusals.snapshot()["bridge_not_authorized"] == 3
        (line,) = [each.getMessage() for each in caplog.records if "bridge_message_refused" in each.getMessage()]
        assert "setting=ingress.local_topic" in line and "SYS" in line
        for peer in (sender, here):
            await peer.close()
        await engine.close()
        await node.stop()


async def test_nothing_is_forwarded_to_the_topics_of_the_other_server(engine: FakeEngine) -> None:
    run(engine, f"127.0.0.1:{free_port()}")
    with pytest.raises(ActionFailed, match="reserved"):
        engine.action(action.TYPE).run({}, published("$SYS/brokers"))
    with pytest.raises(ParamError, match="SYS"):
        engine.action(action.TYPE, forward_topic="$SYS/${topic}")


async def test_ingress_gets_what_came_while_the_bridge_was_away(tmp_path: Path) -> None:
    async with remote("mosquitto", tmp_path) as there:
        node = await start_node()
        engine = FakeEngine(server=node.server)
        here = Peer(node.address(), 4)
        await here.connect()
        await here.subscribe("cmd/#", qos=1)
        ingress = [{"remote_topic": "cmd/#", "qos": 1}]
        bridge = run(engine, there.address, ingress=ingress)
        await until(lambda: bridge.status.connections == 3)
        await bridge.close()
        sender = await there.client()
        await sender.publish("cmd/x", b"meanwhile", 1)
        await sender.close()
        run(engine, there.address, ingress=ingress)
        await here.expect_publish("cmd/x", b"meanwhile", 1)
        await here.close()
        await engine.close()
        await node.stop()


async def test_bridge_mode_keeps_mosquitto_from_sending_back(tmp_path: Path) -> None:
    async with remote("mosquitto", tmp_path) as there:
        engine = FakeEngine()
        bridge = run(engine, there.address, pool_size=1, bridge_mode=True, ingress=[{"remote_topic": "other/#"}])
        await until(lambda: bridge.status.connections == 2)
        engine.action(action.TYPE, forward_topic="other/t").run({"x": 1}, published(qos=1))
        await until(lambda: engine.report.successes == 1)
        await engine.close()


async def test_what_would_come_back_by_the_ingress_is_not_sent(engine: FakeEngine) -> None:
    run(engine, f"127.0.0.1:{free_port()}", mountpoint="b/", ingress=[{"remote_topic": "b/+/x"}])
    act = engine.action(action.TYPE)
    with pytest.raises(ActionFailed, match=r"b/t/x would come back through the ingress b/\+/x"):
        act.run({}, published("t/x"))
    assert act.run({}, published("t/y")) is False


async def test_a_message_that_nobody_acknowledges_is_sent_again_on_a_new_connection(engine: FakeEngine) -> None:
    """A server that takes PUBLISH and never answers it, the first time."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _packet(reader)
            writer.write(b"\x20\x02\x00\x00")
            while True:
                first, body = await _packet(reader)
                if first >> 4 == 3:
                    seen.append(body)
                    if len(seen) > 1:
                        writer.write(b"\x40\x02" + body[3:5])
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    run(engine, f"127.0.0.1:{port}", pool_size=1, retry_interval="50ms")
    engine.action(action.TYPE, payload_tmpl="p").run({}, published("t", qos=1))
    await until(lambda: engine.report.successes == 1)
    assert len(seen) == 2
    server.close()


async def test_a_broker_that_says_nothing_for_a_keep_alive_is_left(engine: FakeEngine) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            await _packet(reader)
            writer.write(b"\x20\x02\x00\x00")
            while True:
                await _packet(reader)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    run(engine, f"127.0.0.1:{port}", pool_size=1, keepalive="1s")
    await until(lambda: connections == 2)
    server.close()


async def _packet(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    first, length = await reader.readexactly(2)
    return first, await reader.readexactly(length)


async def test_a_refused_connection_says_why(engine: FakeEngine) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _packet(reader)
        writer.write(b"\x20\x02\x00\x05")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bridge = run(engine, f"127.0.0.1:{port}", pool_size=1)
    with pytest.raises(ResourceError, match="not authorized"):
        await bridge.test()
    await until(lambda: "not authorized" in bridge.status.reason)
    assert not bridge.alive
    server.close()


async def test_a_bridge_that_is_alive_gives_no_reason(engine: FakeEngine) -> None:
    """Also while other connections of its pool are refused; ``connections`` says how many there are."""
    refused = asyncio.Event()
    connected: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _packet(reader)
        if not connected:
            connected.append(writer)
            writer.write(b"\x20\x02\x00\x00")
            return
        writer.write(b"\x20\x02\x00\x05")
        writer.close()
        refused.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    bridge = run(engine, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", pool_size=3)
    await refused.wait()
    await until(lambda: any("not authorized" in each.reason for each in bridge.sink._clients()))
    await until(lambda: bridge.alive)
    assert (bridge.status.is_alive, bridge.status.reason, bridge.status.connections) == (True, "", 1)
    server.close()
    connected[0].close()
    await until(lambda: not bridge.alive)
    assert bridge.status.reason


async def test_user_client_identifier_and_bridge_are_told(engine: FakeEngine) -> None:
    told: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.append((await _packet(reader))[1])
        writer.write(b"\x20\x02\x00\x04")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config: dict[str, Any] = {
        "username": "user",
        "password": "secret",
        "bridge_mode": True,
        "keepalive": "5m",
        "append": False,
    }
    with pytest.raises(ResourceError, match="bad username or password"):
        await engine.make(mqtt_bridge.TYPE, address=address, **config).test()
    ((head, rest),) = [(each[:10], each[10:]) for each in told]
    assert head == b"\x00\x04MQTT\x84\xc2" + (300).to_bytes(2, "big")
    assert rest[2:].startswith(b"client:") and rest.endswith(b"\x00\x04user\x00\x06secret")
    server.close()


async def test_a_refused_address_is_never_connected_to(there: Remote) -> None:
    engine = FakeEngine(msgspec.structs.replace(QUICK, refused_networks=("127.0.0.0/8",)))
    bridge = run(engine, there.address)
    with pytest.raises(ResourceError, match=r"ruleengine\.refused_networks"):
        await bridge.test()
    await until(lambda: "refused_networks" in bridge.status.reason)
    await engine.close()


async def test_the_client_identifier_is_the_same_after_a_restart_and_another_on_another_node(tmp_path: Path) -> None:
    async with remote("taipan", tmp_path) as there:
        engine = FakeEngine()
        bridge = run(engine, there.address, pool_size=2, clientid="br")
        again = engine.make(mqtt_bridge.TYPE, address=there.address, mountpoint="", pool_size=2, clientid="br")
        plain = engine.make(mqtt_bridge.TYPE, address=there.address, pool_size=1, clientid="br", append=False)
        names = [each.client_id for each in bridge.sink._senders]
        assert names == [each.client_id for each in again.sink._senders]  # type: ignore[attr-defined]
        assert names[0].startswith("br:") and names[0].endswith(":1") and len(set(names)) == 2
        assert [each.client_id for each in plain.sink._senders] == ["br:1"]  # type: ignore[attr-defined]
        await engine.close()


@pytest.mark.parametrize(
    "key, config",
    [
        ("proto_ver", {"proto_ver": "mqttv6"}),
        ("address", {"address": "host"}),
        ("address", {"address": "host:0"}),
        ("address", {"address": "host:70000"}),
        ("mountpoint", {"mountpoint": "a/#"}),
        ("keepalive", {"keepalive": "soon"}),
        ("keepalive", {"keepalive": "20h"}),
        ("reconnect_interval", {"reconnect_interval": "-1s"}),
        ("retry_interval", {"retry_interval": ""}),
        ("pool_size", {"pool_size": 0}),
        ("pool_size", {"pool_size": 2.5}),
        ("clientid", {"clientid": ""}),
        ("username", {"password": "x"}),
        ("disk_cache", {"disk_cache": "maybe"}),
        ("certfile", {"ssl": True, "keyfile": "/nowhere/k.pem"}),
        ("cacertfile", {"ssl": True, "cacertfile": "/nowhere/ca.pem"}),
        ("ciphers", {"ssl": True, "ciphers": "NONSENSE"}),
        ("ingress", {"ingress": [{}]}),
        ("ingress", {"ingress": [{"remote_topic": "a/#/b"}]}),
        ("ingress", {"ingress": [{"remote_topic": "$share/g/a"}]}),
        ("ingress", {"ingress": [{"remote_topic": "a", "qos": 3}]}),
        ("ingress", {"ingress": [{"remote_topic": "a", "local_topic": "b/+"}]}),
        ("ingress", {"ingress": [{"remote_topic": "a", "local_topic": "${payload}"}]}),
        ("ingress", {"ingress": [{"remote_topic": "a", "else": 1}]}),
        ("ingress", {"ingress": [{"remote_topic": "a", "local_topic": "$SYS/brokers/x/alarms/activate"}]}),
        ("ingress", {"ingress": [{"remote_topic": "a", "local_topic": "$delayed/0/$SYS/${topic}"}]}),
        ("ingress", {"ingress": [{"remote_topic": "$SYS/#"}]}),
        ("mountpoint", {"mountpoint": "$SYS/"}),
        ("ingress", {"ingress": "a"}),
    ],
)
async def test_a_configuration_that_cannot_be_is_refused(engine: FakeEngine, key: str, config: dict[str, Any]) -> None:
    with pytest.raises(ParamError) as refused:
        engine.make(mqtt_bridge.TYPE, **config)
    assert refused.value.key == key


async def test_an_action_refuses_topics_that_are_none(engine: FakeEngine) -> None:
    with pytest.raises(ParamError, match="wildcards"):
        engine.action(action.TYPE, forward_topic="a/#")
    run(engine, f"127.0.0.1:{free_port()}")
    with pytest.raises(ActionFailed, match="not a valid topic to publish to"):
        engine.action(action.TYPE, forward_topic="a/${x}").run({"x": "+"}, published())


@pytest.mark.parametrize("setting, rows", [("on", 1), ("off", 0)])
async def test_disk_cache_says_whether_what_waits_is_on_disk(tmp_path: Path, setting: str, rows: int) -> None:
    node = await start_node(durability={"level": "disk"}, node={"data_dir": str(tmp_path)})
    engine = FakeEngine(server=node.server)
    run(engine, f"127.0.0.1:{free_port()}", disk_cache=setting)
    engine.action(action.TYPE).run({"x": 1}, published(qos=1))
    assert sum(1 for table, _, _ in node.server.tables.rows() if table == "rule_buffers") == rows
    await engine.close()
    await node.stop()


async def test_ingress_is_acknowledged_when_it_is_on_disk_here(tmp_path: Path) -> None:
    """QoS 1 and 2, told apart by what the other broker is answered."""
    node = await start_node(durability={"level": "disk"}, node={"data_dir": str(tmp_path)})
    engine = FakeEngine(server=node.server)
    answers: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, body = await _packet(reader)
                if first >> 4 == 1:
                    writer.write(b"\x20\x02\x00\x00")
                elif first >> 4 == 8:
                    writer.write(b"\x90\x03" + body[:2] + b"\x02")
                    writer.write(b"\x32\x06\x00\x01t\x00\x01x" + b"\x34\x06\x00\x01t\x00\x02y" * 2)
                elif first >> 4 in (PUBACK, PUBREC):
                    answers.append(first >> 4)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bridge = run(engine, f"127.0.0.1:{port}", pool_size=1, ingress=[{"remote_topic": "t", "qos": 2}])
    await until(lambda: len(answers) == 3)
    assert sorted(answers) == [PUBACK, PUBREC, PUBREC]
    assert bridge.status.received == 2  # the second y is the first one again
    await engine.close()
    server.close()
    await node.stop()


async def test_nothing_is_fetched_while_memory_is_short(tmp_path: Path) -> None:
    async with remote("taipan", tmp_path) as there:
        node = await start_node()
        engine = FakeEngine(server=node.server)
        bridge = run(engine, there.address, ingress=[{"remote_topic": "cmd/#", "qos": 1}])
        await until(lambda: bridge.status.connections == 3)
        memory = node.server.memory
        looked = memory.look
        memory.look = lambda *_, **__: SLOWING  # type: ignore[method-assign]
        node.server.broker.account.level = SLOWING
        sender = await there.client()
        await sender.publish("cmd/x", b"first", 0)
        await until(lambda: bridge.sink.received == 1)  # what is read already is taken
        for _ in range(200):
            await sender.publish("cmd/x", b"later", 0)
        assert bridge.sink.received == 1 and bridge.alive
        memory.look = looked  # type: ignore[method-assign]
        node.server.broker.account.level = NORMAL
        await until(lambda: bridge.sink.received == 201)
        await sender.close()
        await engine.close()
        await node.stop()
