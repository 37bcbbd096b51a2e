"""Keep Alive: who is silent for one and a half times the interval is closed."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Pingreq, Pingresp, Will
from tests.support.clients import Clients, StartClients, tcp

pytestmark = pytest.mark.asyncio(loop_scope="module")


def interval(clients: Clients) -> int:
    """A Keep Alive in seconds: short where time is real, else long enough that real time plays no part."""
    return 1 if clients.node.external else 600


async def test_silence_ends_the_connection(clients: Clients) -> None:
    """DISCONNECT 0x8D in 5.0, and the Will goes out [MQTT-3.1.2-22] [MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-24]
    [3.1.1 MQTT-3.1.2-8]."""
    unit = interval(clients)
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/will")
    peer = await clients.connect(keep_alive=unit, will=Will(f"{clients.topic}/will", b"silent"))
    await clients.pass_time(1.2 * unit)
    await watcher.nothing()
    await clients.pass_time(0.5 * unit)
    await peer.expect_disconnect(0x8D)
    await watcher.expect_publish(f"{clients.topic}/will", b"silent")
    await watcher.nothing()  # once


@tcp
@pytest.mark.parametrize("packet", ["ping", "publish", "subscribe", "unsubscribe"])
async def test_any_control_packet_keeps_it_alive(clients: Clients, packet: str) -> None:
    unit = interval(clients)
    peer = await clients.connect(keep_alive=unit)
    for _ in range(3):
        await clients.pass_time(1.2 * unit)
        if packet == "ping":
            await peer.ping()
        elif packet == "publish":
            await peer.publish(f"{clients.topic}/a", b"", 1)
        elif packet == "subscribe":
            await peer.subscribe(f"{clients.topic}/a")
        else:
            await peer.unsubscribe(f"{clients.topic}/a", expect=[0x11])


async def test_what_is_sent_to_the_client_does_not_count(clients: Clients) -> None:
    """Only packets *from* the client do [MQTT-3.1.2-22] [3.1.1 MQTT-3.1.2-24]."""
    unit = interval(clients)
    publisher = await clients.connect()
    peer = await clients.connect(keep_alive=unit)
    await peer.subscribe(f"{clients.topic}/a")
    for payload in (b"1", b"2"):
        await clients.pass_time(0.7 * unit)
        await publisher.publish(f"{clients.topic}/a", payload)
        await peer.expect_publish(f"{clients.topic}/a", payload)
    await clients.pass_time(0.7 * unit)
    await peer.expect_disconnect(0x8D)


@tcp
async def test_part_of_a_packet_does_not_count(clients: Clients) -> None:
    unit = interval(clients)
    bystander = await clients.connect()
    peer = await clients.connect(keep_alive=unit)
    for part in (b"\x30", b"\x10"):
        await clients.pass_time(0.7 * unit)
        await peer.send(part)
        await bystander.ping()  # the node has read it
    await clients.pass_time(0.7 * unit)
    await peer.expect_disconnect(0x8D)


@tcp
async def test_zero_switches_it_off(clients: Clients) -> None:
    peer = await clients.connect(keep_alive=0)
    await clients.pass_time(2 if clients.node.external else 100_000)
    await peer.nothing()


@tcp
async def test_largest_keep_alive(clients: Clients) -> None:
    peer = await clients.connect(keep_alive=65_535)
    await clients.pass_time(1 if clients.node.external else 65_535 * 1.4)
    await peer.send(Pingreq())
    await peer.expect(Pingresp)


@tcp
async def test_server_keep_alive(clients_of: StartClients) -> None:
    """A 5.0 client is told and held to the server's value, also where it asked for none [MQTT-3.2.2-21]
    [MQTT-3.2.2-22]; a 3.x client cannot be told and keeps its own."""
    clients = await clients_of(zone={"server_keep_alive": 60})
    for asked in (120, 0):
        peer = await clients.connect(keep_alive=asked)
        if clients.version == 5:
            assert peer.connack.properties[c.SERVER_KEEP_ALIVE] == 60
            await clients.pass_time(89)
            await peer.ping()
            await clients.pass_time(91)
            await peer.expect_disconnect(0x8D)
        else:
            await clients.pass_time(91)
            await peer.ping()
    peer = await clients.connect(keep_alive=30)
    assert c.SERVER_KEEP_ALIVE not in peer.connack.properties


@tcp
@pytest.mark.parametrize("version", [4])
async def test_server_keep_alive_for_3x(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"server_keep_alive": 60, "server_keep_alive_v3": True})
    peer = await clients.connect(keep_alive=120)
    await clients.pass_time(91)
    await peer.expect_closed()


@tcp
async def test_multiplier(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"keep_alive_multiplier": 3.0})
    peer = await clients.connect(keep_alive=10)
    await clients.pass_time(29)
    await peer.ping()
    await clients.pass_time(31)
    await peer.expect_disconnect(0x8D)
