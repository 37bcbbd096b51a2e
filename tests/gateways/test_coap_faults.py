"""CoAP under faults: datagrams that are lost, repeated and reordered, another node, and noise."""

import asyncio
from pathlib import Path

import pytest

from taipan.broker.gateway import kind_of
from taipan.broker.gateways.coap import codec
from taipan.broker.gateways.coap.codec import PUT
from tests.gateways.coap_client import CoapClient
from tests.gateways.coap_noise import Noise
from tests.gateways.sn_client import Lossy
from tests.support.api import managed_node
from tests.support.cluster_nodes import cluster_nodes
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

PART = 0.2
"""Of the datagrams, in each direction, so many are lost, so many are repeated, and so many come late."""
MESSAGES = 30


async def until_answered(client: CoapClient, data: bytes) -> codec.Packet:
    """Repeat a request until it is answered."""
    mid = codec.decode(data).mid
    for _ in range(200):
        client.send(data)
        try:
            while True:
                packet = await asyncio.wait_for(client.inbox.get(), 0.15)
                if packet.mid == mid and packet.code:
                    return packet
        except TimeoutError:
            continue
    raise AssertionError("no answer")


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_network_that_loses_repeats_and_reorders(seed: int) -> None:
    """Nothing is published twice, nothing that was acknowledged is lost, and an observer has the last state."""
    assert kind_of("coap") is not None
    gateway = {"ack_timeout": 0.15, "max_retransmit": 8}
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "coap", "gateway": gateway}]) as node:
        [listener] = [each for each in node.server.listeners if each.type == "coap"]
        network = await Lossy.open(listener.bind, PART, seed)
        device, observer = await CoapClient.open(network.address), await CoapClient.open(network.address)
        try:
            peer = await node.client("m")
            await peer.subscribe("do", qos=1)
            for number in range(MESSAGES):
                answer = await until_answered(device, device.request(PUT, "mqtt/do?c=dev", b"%d" % number))
                assert answer.code == codec.CHANGED
            received = [(await peer.expect_publish("do")).payload for _ in range(MESSAGES)]
            assert received == [b"%d" % number for number in range(MESSAGES)] and network.lost > MESSAGES // 4
            observer._observed.add(b"o")
            data = observer.request(codec.GET, "mqtt/state?c=obs", token=b"o", observe=0)
            await until_answered(observer, data)
            for number in range(MESSAGES):
                await peer.publish("state", b"%d" % number)
            seen: list[bytes] = []
            while b"%d" % (MESSAGES - 1) not in seen:
                seen.append(await observer.state())
            await asyncio.sleep(0.3)
            assert node.server.broker.sessions.get("obs") is not None
        finally:
            network.close()
            device.close()
            observer.close()


async def test_two_nodes(tmp_path: Path) -> None:
    """Messages and values cross the nodes, and a device that appears at another node is taken over."""
    assert kind_of("coap") is not None
    listeners = [{"type": "tcp", "name": "tcp"}, {"type": "coap", "name": "devices"}]
    async with cluster_nodes(2, directory=tmp_path, listeners=listeners) as cluster:

        def address(number: int) -> tuple[str, int]:
            [found] = [each.bind for each in cluster[number].server.listeners if each.type == "coap"]
            return found

        first, second = await CoapClient.open(address(0)), await CoapClient.open(address(1))
        try:
            peer = await cluster[1].client("m")
            await peer.subscribe("up", qos=1)
            await first.observe("mqtt/t/+?c=dev")
            await cluster.wait_until_quiet()
            assert await first.put("mqtt/up?c=dev", b"1") == "2.04"
            await peer.expect_publish("up", b"1", 1)
            await peer.publish("t/1", b"1", 1)
            assert await first.state() == b"1"
            assert await first.put("ps/value?c=dev", b"42") == "2.01"
            await cluster.wait_until_quiet()
            assert (await second.ask(codec.GET, "ps/value?c=dev")).payload == b"42"
            assert (await first.notification()).code == codec.UNAVAILABLE
            await until(lambda: not cluster[0].server.broker.sessions.get("dev"))
        finally:
            first.close()
            second.close()


async def test_noise() -> None:
    """Datagrams at random, and messages with random changes, from many addresses: the node serves a device meanwhile,
    and nothing remains."""
    assert kind_of("coap") is not None
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "coap"}]) as node:
        [listener] = [each for each in node.server.listeners if each.type == "coap"]
        device = await CoapClient.open(listener.bind)
        noise = Noise(7)
        senders = [await CoapClient.open(listener.bind) for _ in range(8)]
        try:
            for number in range(3000):
                senders[number % len(senders)].send(noise.datagram())
                if number % 50 == 0:
                    assert await device.put("mqtt/t?c=dev", b"x") == "2.04"
                    for each in senders:
                        while not each.inbox.empty():
                            packet = each.inbox.get_nowait()
                            noise.seen(codec.encode(packet.type, packet.code, packet.mid, packet.token))
            assert listener.gateway_faults == 0
            assert listener.refused["malformed_datagram"] > 100
        finally:
            for each in (device, *senders):
                each.close()
        await until(lambda: listener.gateway_shared.body_bytes == 0)
