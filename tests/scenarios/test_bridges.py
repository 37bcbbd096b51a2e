"""Bridges, announced by the top bit of the protocol level (3.x only): no loops, RETAIN kept as published."""

import pytest

from taipan.broker.mqtt.packets import Connack, Will
from tests.support.clients import Clients, v3, v4

pytestmark = [pytest.mark.asyncio(loop_scope="module")]


@v3
async def test_a_bridge_is_accepted(clients: Clients) -> None:
    """Levels 0x83 and 0x84."""
    bridge = await clients.connect(is_bridge=True, session_present=False)
    await bridge.nothing()


@v3
async def test_what_it_sent_does_not_come_back(clients: Clients) -> None:
    bridge, other = await clients.connect(is_bridge=True), await clients.connect()
    await bridge.subscribe(f"{clients.topic}/#", qos=1)
    await other.subscribe(f"{clients.topic}/#", qos=1)
    await bridge.publish(f"{clients.topic}/x", b"from the bridge", 1)
    await other.expect_publish(payload=b"from the bridge")
    await bridge.nothing()
    await other.publish(f"{clients.topic}/x", b"from here", 1)
    await bridge.expect_publish(payload=b"from here")


@v3
@pytest.mark.parametrize("retain", [True, False])
async def test_the_retain_flag_stays_as_published(clients: Clients, retain: bool) -> None:
    bridge, other = await clients.connect(is_bridge=True), await clients.connect()
    await bridge.subscribe(clients.topic, qos=1)
    await other.subscribe(clients.topic, qos=1)
    await other.publish(clients.topic, b"x", 1, retain)
    await bridge.expect_publish(clients.topic, b"x", retain=retain)
    await other.expect_publish(clients.topic, b"x", retain=False)
    await other.publish(clients.topic, b"", 1, True)


@v3
async def test_two_bridges_do_not_hear_themselves_but_each_other(clients: Clients) -> None:
    bridges = [await clients.connect(is_bridge=True) for _ in range(2)]
    for bridge in bridges:
        await bridge.subscribe(clients.topic, qos=2)
    await bridges[0].publish(clients.topic, b"x", 2)
    await bridges[1].expect_publish(clients.topic, b"x", 2)
    await bridges[0].nothing()


@v3
async def test_its_will_is_for_the_others(clients: Clients) -> None:
    other = await clients.connect()
    await other.subscribe(clients.topic, qos=1)
    bridge = await clients.connect(is_bridge=True, will=Will(clients.topic, b"bridge down", 1))
    await bridge.subscribe(clients.topic, qos=1)
    await bridge.drop()
    await other.expect_publish(clients.topic, b"bridge down")


@v3
async def test_its_notification_below_sys_is_taken_with_its_connect_and_never_published(clients: Clients) -> None:
    """What a bridge of Mosquitto sends with ``notifications`` on: a retained Will of the server's own topics."""
    other = await clients.connect()
    await other.subscribe("$SYS/broker/#", "#", qos=1)
    name = clients.name()
    will = Will(f"$SYS/broker/connection/{name}/state", b"0", 1, True)
    bridge = await clients.connect(name, is_bridge=True, clean_start=False, will=will)
    assert bridge.connack.reason_code == 0
    await bridge.publish(will.topic, b"1", 1, True)  # acknowledged, as 3.x has it, and dropped
    await bridge.subscribe(f"{clients.topic}/#", qos=1)
    await other.publish(f"{clients.topic}/x", b"works", 1)
    await bridge.expect_publish(f"{clients.topic}/x", b"works")
    await other.expect_publish(f"{clients.topic}/x", b"works")
    await bridge.drop()
    await other.nothing()
    later = await clients.connect()
    await later.subscribe(will.topic, qos=1)
    await later.nothing()


@v4
async def test_5_0_has_options_instead_and_no_such_level(clients: Clients) -> None:
    """[MQTT-3.1.2-2]"""
    peer = await clients.open()
    body = b"\x00\x04MQTT\x85\x02\x00\x00\x00\x01x"
    await peer.send(bytes([0x10, len(body)]) + body)
    await peer.expect(Connack, reason_code=1, session_present=False)
    await peer.expect_closed()
