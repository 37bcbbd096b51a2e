"""Mixed QoS to a durable session of a real process at level ``disk``: first, again, and after kill -9, in one order."""

import random
from pathlib import Path

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer
from tests.support.wire import Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

CONFIG = """
[node]
data_dir = "{directory}"

[durability]
level = "disk"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{tcp}"
max_inflight = 1000

[[listeners]]
name = "web"
type = "ws"
bind = "127.0.0.1:{ws}"
max_inflight = 1000
"""
MESSAGES = 400
TOPICS = ("t/1", "t/2")


async def come(address: Address, version: int) -> Peer:
    reader = Peer(address, version)
    properties = {c.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF} if version == 5 else None
    await reader.connect("r", False, properties=properties)
    return reader


async def heard(reader: Peer, count: int) -> list[Publish]:
    """So many messages, none of which is acknowledged."""
    found: list[Publish] = []
    while len(found) < count:
        packet = await reader.receive()
        assert isinstance(packet, Publish), packet
        found.append(packet)
    return found


@pytest.mark.parametrize("transport", ["tcp", "ws"])
@pytest.mark.parametrize("version", [4, 5])
async def test_one_order(tmp_path: Path, version: int, transport: str) -> None:
    """[MQTT-4.6.0-1] [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-1]"""
    rng = random.Random(version)
    ports = {"tcp": free_port(), "ws": free_port()}
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", **ports))
    address = Address("127.0.0.1", ports[transport], transport)
    node = await NodeProcess(config).start()
    peers: list[Peer] = []
    try:
        reader = await come(address, version)
        await reader.subscribe("t/#", qos=2)
        writer = Peer(Address("127.0.0.1", ports["tcp"]), 4)
        peers += [reader, writer]
        await writer.connect("w")
        messages = [
            Publish(rng.choice(TOPICS), b"%d" % number, qos, packet_id=number if qos else 0)
            for number in range(1, MESSAGES + 1)
            for qos in (rng.randrange(3),)
        ]
        at = 0
        while at < MESSAGES:
            burst = rng.randint(1, 12)
            await writer.send(*messages[at : at + burst])
            at += burst
            if rng.random() < 0.5:
                await writer.receive()  # time goes by
        first = await heard(reader, MESSAGES)
        for topic in TOPICS:
            numbers = [int(each.payload) for each in first if each.topic == topic]
            assert numbers == sorted(numbers)
        reader.abort()
        order = [each.payload for each in first if each.qos]
        again = await come(address, version)
        peers.append(again)
        assert [each.payload for each in await heard(again, len(order))] == order
        node.process.kill()
        await node.process.communicate()
        again.abort()
        node = await NodeProcess(config).start()
        last = await come(address, version)
        peers.append(last)
        got = await heard(last, len(order))
        assert [each.payload for each in got] == order
        assert [each.dup for each in got] == [True] * len(order)
    finally:
        for each in peers:
            await each.close()
        if node.process.returncode is None:
            node.process.kill()
            await node.process.communicate()
