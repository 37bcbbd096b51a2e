"""A sleeping client of MQTT-SN, an observer of CoAP and a device of LwM2M, each from its protocol to an MQTT client and
back, with a rule, the management API and the dashboard; on one node, and with the MQTT client on another node."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.gateway import kind_of
from taipan.broker.gateways.mqttsn import codec as sn
from tests.gateways.coap_client import CoapClient
from tests.gateways.lwm2m_device import Device
from tests.gateways.sn_client import SnClient
from tests.support.api import ManagedNode
from tests.support.cluster_nodes import cluster_nodes
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120), pytest.mark.parametrize("count", [1, 2])]


class Setting:
    """``near`` has the listener of the gateway; ``far`` is the same node, or another one. ``quiet`` waits until both
    know the subscriptions of each other."""

    def __init__(self, near: ManagedNode, far: ManagedNode, kind: str, quiet: Callable[[], Any]) -> None:
        self.near = near
        self.far = far
        self.quiet = quiet
        [self.address] = [each.bind for each in near.server.listeners if each.type == kind]

    async def reader(self, topic: str) -> Any:
        """Return an MQTT client of ``far``. It receives the messages to the topic, and what a rule makes of them: the
        client ID and the protocol of their publisher, to ``seen``."""
        sql = f'SELECT clientid, headers.protocol AS protocol FROM "{topic}"'
        params = {"target_topic": "seen", "target_qos": 1, "payload_tmpl": "${clientid} ${protocol}"}
        made = await self.near.api.post("/rules", {"rawsql": sql, "actions": [{"name": "republish", "params": params}]})
        assert made.code == 0, made.body
        client = await self.far.client("m")
        await client.subscribe(topic, "seen", qos=1)
        return client

    async def shows(self, client_id: str, proto_name: str, port: int) -> None:
        """Both nodes show the client in ``/clients``, from which the dashboard has its page."""
        for node in (self.near, self.far):
            [row] = (await node.api.get(f"/clients/{client_id}")).data
            assert (row["proto_name"], row["ip_address"], row["port"]) == (proto_name, "127.0.0.1", port)
            assert (row["connected"], row["node"]) == (True, self.near.name)
            found = (await node.api.get("/clients", proto_name=proto_name)).data
            assert [each["clientid"] for each in found] == [client_id]


@asynccontextmanager
async def setting(kind: str, count: int, directory: Path) -> AsyncIterator[Setting]:
    assert kind_of(kind) is not None
    listeners = [{"type": "tcp", "name": "tcp"}, {"type": kind, "name": "devices"}]
    async with cluster_nodes(count, directory=directory, managed=True, listeners=listeners) as cluster:
        yield Setting(cluster.managed_node(0), cluster.managed_node(count - 1), kind, cluster.wait_until_quiet)


async def test_a_sleeping_client_of_mqtt_sn(tmp_path: Path, count: int) -> None:
    async with setting("mqttsn", count, tmp_path) as at:
        peer = await at.reader("up/#")
        device = await SnClient.open(at.address)
        try:
            await device.connect("dev", clean=False)
            await device.subscribe("down/#", 1)
            topic = await device.register("up/t")
            await at.quiet()
            await device.publish(topic, b"21", 1)
            assert await two(peer) == {("up/t", b"21"), ("seen", b"dev mqtt-sn")}
            assert await device.ask(sn.SnDisconnect(600)) == sn.SnDisconnect()
            for number in range(3):
                await peer.publish("down/t", b"%d" % number, 1)
            await at.shows("dev", "MQTT-SN", device.port)
            session = at.near.server.broker.sessions.get("dev")
            assert session is not None
            await until(lambda: session.queued + len(session.inflight) == 3)
            assert device.inbox.empty()
            device.say(sn.SnPingreq("dev"))
            assert [await device.message() for _ in range(3)] == [("down/t", b"%d" % each, 1) for each in range(3)]
            await device.expect(sn.SnSimple(sn.PINGRESP))
        finally:
            device.close()


async def test_an_observer_of_coap(tmp_path: Path, count: int) -> None:
    async with setting("coap", count, tmp_path) as at:
        peer = await at.reader("up/#")
        device = await CoapClient.open(at.address)
        try:
            await device.observe("mqtt/down/+?c=dev")
            await at.quiet()
            assert await device.put("mqtt/up/t?c=dev", b"21") == "2.04"
            assert await two(peer) == {("up/t", b"21"), ("seen", b"dev coap")}
            await peer.publish("down/t", b"1", 1)
            assert await device.state() == b"1"
            await at.shows("dev", "CoAP", device.port)
        finally:
            device.close()


async def test_a_device_of_lwm2m(tmp_path: Path, count: int) -> None:
    async with setting("lwm2m", count, tmp_path) as at:
        peer = await at.reader("lwm2m/+/up/#")
        device = await Device.open(at.address, "dev")
        device.resources["/3/0/9"] = (0, b"87")
        try:
            await at.quiet()
            assert (await device.register()).dotted == "2.01"
            assert ("seen", b"dev lwm2m") in await two(peer)
            await at.quiet()
            await peer.publish("lwm2m/dev/dn/1", b'{"reqID":1,"msgType":"read","data":{"path":"/3/0/9"}}', 1)
            [answer] = [json.loads(data) for topic, data in await two(peer) if topic == "lwm2m/dev/up/resp"]
            assert answer["data"]["content"] == [{"path": "/3/0/9", "value": 87}]
            await at.shows("dev", "LwM2M", device.port)
            [known] = (await at.near.api.get("/lwm2m_channels")).data
            assert known["imei"] == "dev"
        finally:
            device.close()


async def two(peer: Any) -> set[tuple[str, bytes]]:
    """Return the next two messages of an MQTT client: of two topics, the order is not known."""
    found = set()
    for _ in range(2):
        packet = await peer.expect_publish()
        found.add((packet.topic, packet.payload))
    return found
