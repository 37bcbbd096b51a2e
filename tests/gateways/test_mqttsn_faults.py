"""MQTT-SN under faults: datagrams that are lost, repeated and reordered, kill -9, another node, and noise."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from taipan.broker.gateway import kind_of
from taipan.broker.gateways.mqttsn import codec as sn
from tests.gateways.sn_client import Lossy, SnClient
from tests.gateways.sn_noise import Noise
from tests.support.api import managed_node
from tests.support.cluster_nodes import cluster_nodes
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

PART = 0.2
"""Of the datagrams, in each direction, so many are lost, so many are repeated, and so many come late."""
RETRY = 0.15
MESSAGES = 30


class Persistent:
    """A client that repeats each request until it is answered."""

    def __init__(self, client: SnClient) -> None:
        self.client = client
        self.got: list[sn.SnPublish] = []

    async def ask(self, packet: sn.SnPacket, answered: Callable[[sn.SnPacket], bool]) -> sn.SnPacket:
        for _ in range(200):
            self.client.say(packet)
            if isinstance(packet, (sn.SnPublish, sn.SnSubscribe)):
                packet.dup = True
            until = asyncio.get_running_loop().time() + RETRY
            while (left := until - asyncio.get_running_loop().time()) > 0:
                try:
                    heard = await asyncio.wait_for(self.client.inbox.get(), left)
                except TimeoutError:
                    break
                if isinstance(heard, sn.SnPublish):
                    self.got.append(heard)
                elif answered(heard):
                    return heard
        raise AssertionError(f"no answer to {packet}")

    async def connect(self, client_id: str) -> None:
        await self.ask(sn.SnConnect(client_id, False, False, 60), lambda each: each == sn.SnConnack(0))

    async def publish(self, topic_id: int, payload: bytes, qos: int) -> None:
        msg_id = self.client.next_id()
        packet = sn.SnPublish(topic_id, sn.SHORT, payload, qos, msg_id=msg_id)
        if qos == 1:
            await self.ask(packet, lambda each: isinstance(each, sn.SnPuback) and each.msg_id == msg_id)
            return
        await self.ask(packet, lambda each: each == sn.SnReply(sn.PUBREC, msg_id))
        await self.ask(sn.SnReply(sn.PUBREL, msg_id), lambda each: each == sn.SnReply(sn.PUBCOMP, msg_id))


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_network_that_loses_repeats_and_reorders(seed: int) -> None:
    """Nothing of QoS 1 and 2 is lost, in either direction, and nothing of QoS 2 comes twice."""
    assert kind_of("mqttsn") is not None
    gateway = {"retry_interval": RETRY, "max_retries": 50}
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "mqttsn", "gateway": gateway}]) as node:
        [listener] = [each for each in node.server.listeners if each.type == "mqttsn"]
        network = await Lossy.open(listener.bind, PART, seed)
        device = Persistent(await SnClient.open(network.address))
        try:
            await device.connect("dev")
            for number, topic in enumerate(("q1/#", "q2/#"), 1):
                wanted = sn.SnSubscribe(number, topic, qos=number)
                await device.ask(wanted, lambda each: isinstance(each, sn.SnSuback) and each.code == 0)
            peer = await node.client("m")
            await peer.subscribe("do", qos=2)
            for number in range(MESSAGES):
                await device.publish(int.from_bytes(b"do"), b"%d" % number, 1 + number % 2)
            received: list[tuple[bytes, int]] = []
            while len(set(received)) < MESSAGES:
                packet = await peer.expect_publish("do")
                received.append((packet.payload, packet.qos))
            twice = [each for each in set(received) if each[1] == 2 and received.count(each) > 1]
            assert network.lost > MESSAGES // 4 and not twice
            for number in range(MESSAGES):
                await peer.publish(f"q{1 + number % 2}/x", b"%d" % number, 1 + number % 2)
            while len({each.payload for each in device.got}) < MESSAGES:
                heard = await device.client.hear()
                if isinstance(heard, sn.SnPublish):
                    device.got.append(heard)
            session = node.server.broker.sessions.get("dev")
            assert session is not None
            await until(lambda: not session.inflight and not session.queued)
            exactly = [each.payload for each in device.got if each.qos == 2]
            assert len(exactly) == len(set(exactly)) == MESSAGES // 2
        finally:
            network.close()
            device.client.close()


CONFIG = """
[node]
data_dir = "{directory}"

[durability]
level = "disk"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{tcp}"

[[listeners]]
name = "sn"
type = "mqttsn"
bind = "127.0.0.1:{udp}"
"""


@pytest.mark.slow
async def test_a_sleeping_client_loses_nothing_at_kill_9(tmp_path: Path) -> None:
    """What was acknowledged to a publisher while the device slept reaches it after kill -9 of the node."""
    ports = {"tcp": free_port(), "udp": free_port()}
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", **ports))
    node = await NodeProcess(config).start()
    device = await SnClient.open(("127.0.0.1", ports["udp"]))
    publisher = Peer(Address("127.0.0.1", ports["tcp"]), 5)
    try:
        await device.connect("dev", clean=False)
        await device.subscribe("t/#", 1)
        assert await device.ask(sn.SnDisconnect(3600)) == sn.SnDisconnect()
        await publisher.connect("p")
        for number in range(20):
            await publisher.publish(f"t/{number % 3}", b"%d" % number, 1)  # waits for PUBACK
        node.process.kill()
        await node.process.wait()
        await publisher.close()
        node = await NodeProcess(config).start()
        # The node knows of no connection, and says so; the device connects again.
        assert await device.ask(sn.SnPingreq("dev")) == sn.SnDisconnect()
        await device.connect("dev", clean=False)
        heard = [await device.message() for _ in range(20)]
        assert [payload for _, payload, _ in heard] == [b"%d" % number for number in range(20)]
        assert [topic for topic, _, _ in heard] == [f"t/{number % 3}" for number in range(20)]
    finally:
        device.close()
        await node.stop()


async def test_two_nodes(tmp_path: Path) -> None:
    """A device moves to another node with its session, and messages cross the nodes in both directions."""
    assert kind_of("mqttsn") is not None
    listeners = [{"type": "tcp", "name": "tcp"}, {"type": "mqttsn", "name": "sn"}]
    async with cluster_nodes(2, directory=tmp_path, listeners=listeners) as cluster:

        def address(number: int) -> tuple[str, int]:
            [found] = [each.bind for each in cluster[number].server.listeners if each.type == "mqttsn"]
            return found

        first, second = await SnClient.open(address(0)), await SnClient.open(address(1))
        try:
            await first.connect("dev", clean=False)
            await first.subscribe("t/#", 1)
            peer = await cluster[1].client("m")
            await peer.subscribe("up", qos=1)
            await first.publish(await first.register("up"), b"1", 1)
            await peer.expect_publish("up", b"1", 1)
            await cluster.wait_until_quiet()
            await peer.publish("t/1", b"1", 1)
            assert await first.message() == ("t/1", b"1", 1)
            assert await first.ask(sn.SnDisconnect(3600)) == sn.SnDisconnect()
            await peer.publish("t/2", b"2", 1)
            # It wakes elsewhere: a connection of its own, which takes the session over.
            assert await second.ask(sn.SnPingreq("dev")) == sn.SnDisconnect()
            await second.connect("dev", clean=False)
            assert await second.message() == ("t/2", b"2", 1)
            await until(lambda: not cluster[0].server.broker.sessions.get("dev"))
            await peer.publish("t/3", b"3", 1)
            assert await second.message() == ("t/3", b"3", 1)
        finally:
            first.close()
            second.close()


async def test_noise() -> None:
    """Datagrams at random, and messages with random changes, from many addresses: the node serves a device meanwhile,
    and nothing remains."""
    assert kind_of("mqttsn") is not None
    gateway = {"enable_qos3": True, "predefined_topics": {"1": "a"}}
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "mqttsn", "gateway": gateway}]) as node:
        [listener] = [each for each in node.server.listeners if each.type == "mqttsn"]
        device = await SnClient.open(listener.bind)
        noise = Noise(7)
        senders = [await SnClient.open(listener.bind, answers=False) for _ in range(8)]
        try:
            await device.connect("dev")
            for number in range(3000):
                senders[number % len(senders)].send(noise.datagram())
                if number % 50 == 0:
                    assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)
                    for each in senders:
                        while not each.inbox.empty():
                            noise.seen(each.inbox.get_nowait())
            assert listener.gateway_faults == 0
            assert listener.refused["malformed_datagram"] > 500
        finally:
            for each in (device, *senders):
                each.close()
