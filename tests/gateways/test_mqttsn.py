"""MQTT-SN clients over UDP: their messages, sessions, Wills and sleep, beside MQTT clients on the same node."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.gateway import kind_of
from taipan.broker.gateways.mqttsn import codec as sn
from tests.gateways.sn_client import SnClient
from tests.support.api import ManagedNode, managed_node
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio]

TOPICS = {"1": "/predefined/topic/name/hello", "2": "/predefined/topic/name/nice"}


class Clients:
    def __init__(self) -> None:
        self._all: list[SnClient] = []

    async def open(self, node: ManagedNode, answers: bool = True, prefix: bytes = b"") -> SnClient:
        client = await SnClient.open(listener_of(node).bind, answers, prefix)
        self._all.append(client)
        return client

    async def connected(self, node: ManagedNode, client_id: str, **options: Any) -> SnClient:
        client = await self.open(node)
        await client.connect(client_id, **options)
        return client

    async def close(self) -> None:
        for client in self._all:
            client.close()
        await asyncio.sleep(0)


def listener_of(node: ManagedNode) -> Any:
    [listener] = [each for each in node.server.listeners if each.type == "mqttsn"]
    return listener


@pytest_asyncio.fixture
async def clients() -> AsyncIterator[Clients]:
    made = Clients()
    yield made
    await made.close()


def start(gateway: dict[str, object] | None = None, **settings: Any) -> Any:
    assert kind_of("mqttsn") is not None
    own = settings.pop("listener", {})
    table = {"predefined_topics": TOPICS, **(gateway or {})}
    listeners = [{"type": "tcp"}, {"type": "mqttsn", "name": "sn", "gateway": table, **own}]
    return managed_node(listeners=listeners, **settings)


async def test_messages_in_both_directions(clients: Clients) -> None:
    async with start() as node:
        device, peer = await clients.connected(node, "dev1"), await node.client("m")
        await peer.subscribe("plant/#", qos=2)
        topic_id = await device.register("plant/temperature")
        for qos in (0, 1, 2):
            await device.publish(topic_id, b"21", qos)
            await peer.expect_publish("plant/temperature", b"21", qos)
        for qos, topic in enumerate(("valve", "plant/+/set", "alarm/#")):
            await device.subscribe(topic, qos)
        await peer.publish("valve", b"open", 0)
        assert await device.message() == ("valve", b"open", 0)
        await peer.publish("plant/9/set", b"5", 2)
        assert await device.message() == ("plant/9/set", b"5", 1)
        await peer.publish("alarm/9", b"6", 2)
        assert await device.message() == ("alarm/9", b"6", 2)
        assert device.registered[1:] == ["plant/9/set", "alarm/9"]
        assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)
        [row] = (await node.api.get("/clients/dev1")).data
        assert (row["proto_name"], row["proto_ver"], row["port"]) == ("MQTT-SN", 1, device.port)
        assert row["ip_address"] == "127.0.0.1" and row["keepalive"] == 60 and row["clean_start"] is True
        assert await device.ask(sn.SnDisconnect()) == sn.SnDisconnect()
        await until(lambda: listener_of(node).current_connections == 0)
        assert listener_of(node).refused == {}
