"""``$SYS/brokers/...``: what the node tells about itself."""

import json

import pytest

from tests.support.clients import Clients, tcp, v5

from .until_quiet import until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = {
    "sys_topics": {"interval": 60, "heartbeat": 30, "mosquitto_names": True},
    "node": {"name": "taipan@sys.test"},
}
NODE = "$SYS/brokers/taipan@sys.test"


async def test_the_retained_facts(clients: Clients) -> None:
    peer = await clients.connect()
    await clients.pass_time(61)
    await peer.subscribe("$SYS/brokers", f"{NODE}/version", f"{NODE}/sysdescr", qos=1)
    found = {each.topic: each for each in await until_quiet(peer)}
    assert found["$SYS/brokers"].payload == b"taipan@sys.test"
    assert found[f"{NODE}/version"].payload
    assert b"Taipan" in found[f"{NODE}/sysdescr"].payload
    assert all(each.retain for each in found.values())


async def test_the_names_of_mosquitto(clients: Clients) -> None:
    """Retained: a dashboard that connects has the figures at once."""
    peer = await clients.connect()
    await clients.pass_time(61)
    await peer.subscribe("$SYS/broker/#", qos=1)
    found = {each.topic.removeprefix("$SYS/broker/"): each for each in await until_quiet(peer)}
    assert all(each.retain for each in found.values())
    assert found["version"].payload.startswith(b"taipan version ")
    assert int(found["clients/connected"].payload) >= 1
    assert int(found["messages/received"].payload) >= 1
    assert float(found["load/connections/1min"].payload) >= 0


async def test_the_interval_and_the_heartbeat(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.subscribe(f"{NODE}/#", qos=1)
    await until_quiet(peer)
    await clients.pass_time(31)
    beat = {each.topic.removeprefix(f"{NODE}/") for each in await until_quiet(peer)}
    assert {"uptime", "datetime"} <= beat
    await clients.pass_time(61)
    told = {each.topic.removeprefix(f"{NODE}/"): each.payload for each in await until_quiet(peer)}
    assert {"uptime", "datetime", "version", "sysdescr"} <= told.keys()
    for name in ("stats/connections/count", "stats/sessions/max", "stats/subscriptions/count", "stats/retained/count"):
        assert told[name].isdigit()
    for name in ("metrics/bytes/received", "metrics/packets/connect/received", "metrics/messages/qos1/sent"):
        assert told[name].isdigit()
    assert int(told["stats/connections/count"]) >= 1
    assert int(told["metrics/packets/connect/received"]) >= 1


async def test_refusals_and_listeners(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.publish("$SYS/x", b"x", 0)
    await (await clients.connect()).disconnect()
    await peer.subscribe(f"{NODE}/metrics/refusals/+", f"{NODE}/metrics/disconnects/+", f"{NODE}/listeners/#", qos=1)
    await until_quiet(peer)
    await clients.pass_time(61)
    told = {each.topic.removeprefix(f"{NODE}/"): each.payload for each in await until_quiet(peer)}
    assert int(told["metrics/refusals/publish_not_authorized"]) >= 1
    assert int(told["metrics/disconnects/normal"]) >= 1
    name = {"tcp": "tcp-0", "ws": "ws-1"}[clients.transport]
    assert int(told[f"listeners/{name}/connections/count"]) >= 1
    assert int(told[f"listeners/{name}/accepted"]) >= 2
    assert int(told[f"listeners/{name}/shutdown_count/normal"]) >= 1


async def test_comings_and_goings(clients: Clients) -> None:
    watcher = await clients.connect()
    name = clients.name()
    await watcher.subscribe(f"{NODE}/clients/{name}/+", qos=1)
    peer = await clients.connect(name, username="somebody", keep_alive=33)
    message = await watcher.expect_publish(f"{NODE}/clients/{name}/connected", qos=1, retain=False)
    told = json.loads(message.payload)
    assert told["clientid"] == name
    assert told["username"] == "somebody"
    assert told["ipaddress"] == "127.0.0.1"
    assert told["proto_ver"] == clients.version
    assert told["keepalive"] == 33
    await peer.disconnect()
    message = await watcher.expect_publish(f"{NODE}/clients/{name}/disconnected", qos=1, retain=False)
    told = json.loads(message.payload)
    assert (told["clientid"], told["reason"]) == (name, "normal")


@tcp
async def test_a_client_cannot_speak_in_anothers_name(clients: Clients) -> None:
    """Wildcards and levels in a Client Identifier stay inside its level."""
    watcher = await clients.connect()
    await watcher.subscribe(f"{NODE}/clients/#", qos=1)
    for name in (f"{clients.topic}/other", f"{clients.topic}+", f"{clients.topic}#"):
        peer = await clients.connect(name)
        topics = [each.topic for each in await until_quiet(watcher)]
        assert len(topics) == 1
        assert topics[0].count("/") == 5
        assert not set("+#") & set(topics[0])
        await peer.disconnect()
        await until_quiet(watcher)


@v5
async def test_wildcards_in_front_do_not_show_them(clients: Clients) -> None:
    """Nor does a shared subscription [MQTT-4.7.2-1]."""
    peer = await clients.connect()
    await peer.subscribe("#", "+/brokers/#", f"$share/{clients.topic}/#", qos=1)
    await until_quiet(peer)
    await clients.pass_time(61)
    assert not [each for each in await until_quiet(peer) if each.topic.startswith("$SYS")]


@tcp
async def test_a_refused_client_is_not_told_about(clients: Clients) -> None:
    watcher = await clients.connect()
    await watcher.subscribe(f"{NODE}/clients/#", qos=1)
    peer = clients.peer(version=3)
    await peer.connect("", expect=2)
    await watcher.nothing()
