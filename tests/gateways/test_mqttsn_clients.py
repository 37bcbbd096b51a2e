"""The MQTT-SN clients of the package mqtt-sn-12, as docs/gateways/mqtt-sn.md has them."""

import asyncio
import sys
from pathlib import Path

import pytest

from taipan.broker.gateway import kind_of
from tests.support.api import managed_node
from tests.support.patience import patience

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]


async def command(port: int, name: str, *options: str) -> asyncio.subprocess.Process:
    program = Path(sys.executable).with_name(name)
    return await asyncio.create_subprocess_exec(
        str(program), "-h", "127.0.0.1", "-p", str(port), *options, stdout=asyncio.subprocess.PIPE
    )


async def test_a_publisher_and_a_subscriber() -> None:
    assert kind_of("mqttsn") is not None
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "mqttsn"}]) as node:
        [port] = [each.port for each in node.server.listeners if each.type == "mqttsn"]
        peer = await node.client("m")
        await peer.subscribe("plant/#", qos=1)
        subscriber = await command(port, "mqtt_sn_sub", "-i", "reader", "-t", "plant/#", "-q", "0", "-1")
        async with asyncio.timeout(patience(30)):
            while not list((await node.api.get("/subscriptions/reader")).data or []):
                await asyncio.sleep(0.05)
            publisher = await command(
                port, "mqtt_sn_pub", "-i", "sensor7", "-t", "plant/temperature", "-m", "21.5", "-q", "1"
            )
            assert await publisher.wait() == 0
            await peer.expect_publish("plant/temperature", b"21.5", 1)
            said, _ = await subscriber.communicate()
        assert said.strip() == b"21.5"
