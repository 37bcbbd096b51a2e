"""LwM2M under faults: datagrams that are lost, repeated and reordered, kill -9, another node, and noise."""

import asyncio
import json
from pathlib import Path

import pytest

from taipan.broker.gateway import kind_of
from tests.gateways.lwm2m_device import LOCATION, Device
from tests.gateways.lwm2m_noise import Noise
from tests.gateways.sn_client import Lossy
from tests.support.api import managed_node
from tests.support.cluster_nodes import cluster_nodes
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

PART = 0.2
COMMANDS = 30
GATEWAY = {"ack_timeout": 0.1, "max_retransmit": 10, "ack_random_factor": 1.0, "answer_timeout": 60}


def read(number: int) -> bytes:
    return json.dumps({"reqID": number, "msgType": "read", "data": {"path": "/3/0/9"}}).encode()


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_network_that_loses_repeats_and_reorders(seed: int) -> None:
    """Each command is carried out once, and each answer is published once."""
    assert kind_of("lwm2m") is not None
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "lwm2m", "gateway": GATEWAY}]) as node:
        [listener] = [each for each in node.server.listeners if each.type == "lwm2m"]
        network = await Lossy.open(listener.bind, PART, seed)
        device = await Device.open(network.address, "pump-7")
        try:
            peer = await node.client("m")
            await peer.subscribe("lwm2m/pump-7/up/resp", qos=0)
            device.resources["/3/0/9"] = 0, b"87"
            assert (await device.register()).dotted == "2.01"
            await peer.expect_publish("lwm2m/pump-7/up/resp")
            for number in range(COMMANDS):
                await peer.publish("lwm2m/pump-7/dn/x", read(number), 0)
            found = []
            while len(found) < COMMANDS:
                answer = json.loads((await peer.expect_publish("lwm2m/pump-7/up/resp")).payload)
                if answer["msgType"] != "ack":
                    assert answer["data"]["content"] == [{"path": "/3/0/9", "value": 87}]
                    found.append(answer["reqID"])
            assert found == list(range(COMMANDS)) and device.requests.qsize() == COMMANDS
            for number in range(10):
                assert (await device.update(f"lt={300 + number}")).dotted == "2.04"
            assert network.lost > 5 and device.repeated > 0
        finally:
            network.close()
            device.close()


CONFIG = """
[node]
data_dir = "{directory}"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{tcp}"

[[listeners]]
name = "devices"
type = "lwm2m"
bind = "127.0.0.1:{udp}"
"""


@pytest.mark.slow
async def test_a_device_registers_again_after_kill_9(tmp_path: Path) -> None:
    """The answer to its update is 4.04; a retained command reaches it then."""
    ports = {"tcp": free_port(), "udp": free_port()}
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", **ports))
    node = await NodeProcess(config).start()
    device = await Device.open(("127.0.0.1", ports["udp"]), "pump-7")
    peer = Peer(Address("127.0.0.1", ports["tcp"]), 5)
    try:
        device.resources["/3/0/9"] = 0, b"87"
        await device.register()
        await peer.connect("p")
        await peer.publish("lwm2m/pump-7/dn/x", read(1), 1, retain=True)
        await device.asked()
        node.process.kill()
        await node.process.wait()
        await peer.close()
        node = await NodeProcess(config).start()
        assert (await device.update()).dotted == "4.04"
        assert (await device.register()).dotted == "2.01"
        assert (await device.asked()).path == "/3/0/9"
    finally:
        device.close()
        await peer.close()
        await node.stop()


async def test_two_nodes(tmp_path: Path) -> None:
    """A command of one node reaches a device of another, and a device that registers elsewhere leaves the first."""
    assert kind_of("lwm2m") is not None
    listeners = [{"type": "tcp", "name": "tcp"}, {"type": "lwm2m", "name": "devices"}]
    async with cluster_nodes(2, directory=tmp_path, listeners=listeners) as cluster:

        def address(number: int) -> tuple[str, int]:
            [found] = [each.bind for each in cluster[number].server.listeners if each.type == "lwm2m"]
            return found

        first, second = await Device.open(address(0), "pump-7"), await Device.open(address(1), "pump-7")
        try:
            peer = await cluster[1].client("m")
            await peer.subscribe("lwm2m/pump-7/up/resp", qos=0)
            await cluster.wait_until_quiet()
            first.resources["/3/0/9"] = second.resources["/3/0/9"] = 0, b"87"
            await first.register()
            await peer.expect_publish("lwm2m/pump-7/up/resp")
            await cluster.wait_until_quiet()
            await peer.publish("lwm2m/pump-7/dn/x", read(1), 0)
            assert json.loads((await peer.expect_publish("lwm2m/pump-7/up/resp")).payload)["reqID"] == 1
            await second.register()
            await peer.expect_publish("lwm2m/pump-7/up/resp")
            await until(lambda: not cluster[0].server.broker.sessions.get("pump-7"))
            await cluster.wait_until_quiet()
            assert (await first.update()).dotted == "4.04"
            await peer.publish("lwm2m/pump-7/dn/x", read(2), 0)
            assert json.loads((await peer.expect_publish("lwm2m/pump-7/up/resp")).payload)["reqID"] == 2
            assert second.requests.qsize() == 1 and first.requests.qsize() == 1
        finally:
            first.close()
            second.close()


async def test_noise() -> None:
    """Datagrams at random, from many addresses: the node serves a device in the meantime, and has no fault."""
    assert kind_of("lwm2m") is not None
    gateway = {"auto_observe": True, "ack_timeout": 0.05, "max_retransmit": 1}
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "lwm2m", "gateway": gateway}]) as node:
        [listener] = [each for each in node.server.listeners if each.type == "lwm2m"]
        noise = Noise(7)
        device = await Device.open(listener.bind, "pump-7")
        peer = await node.client("m")
        await peer.subscribe("lwm2m/pump-7/up/resp", qos=0)
        loop = asyncio.get_running_loop()
        senders = [
            (await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=listener.bind))[0]
            for _ in range(8)
        ]
        try:
            assert (await device.register()).all(LOCATION) == [b"rd", b"pump-7"]
            for number in range(3000):
                senders[number % len(senders)].sendto(noise.datagram())
                if number % 50 == 0:
                    assert (await device.update()).dotted == "2.04"
                    topic, command = noise.command()
                    body = {"topic": topic, "clientid": "m", "payload": command.decode(errors="replace")}
                    assert (await node.api.post("/mqtt/publish", body)).code == 0
            assert listener.gateway_faults == 0
            assert listener.refused["malformed_datagram"] > 100 and listener.refused["registration_refused"] > 20
        finally:
            device.close()
            for each in senders:
                each.abort()
