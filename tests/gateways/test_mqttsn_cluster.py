"""A sleeping MQTT-SN client of a cluster of real processes, and ``kill -9`` of the node that has its session."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from taipan.broker.gateways.mqttsn import codec as sn
from tests.gateways.sn_client import SnClient
from tests.scenarios.test_lost_node import until_copied
from tests.support.cluster_processes import ClusterProcess, ClusterProcesses
from tests.support.peer import Peer

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(180)]

QUICK = "suspect_after = 2\nstopped_after = 3\ntakeover_timeout = 4\nwill_grace = 1"
DAY = 86_400 // 2


async def open_at(node: ClusterProcess) -> SnClient:
    return await SnClient.open(("127.0.0.1", node.udp))


async def asleep(node: ClusterProcess, *subscriptions: str) -> SnClient:
    """Return a device that has a Will and a durable session at this node, and sleeps."""
    device = await open_at(node)
    assert await device.ask(sn.SnConnect("dev", False, True, 60)) == sn.SnSimple(sn.WILLTOPICREQ)
    assert await device.ask(sn.SnWillTopic("will/dev", 1)) == sn.SnSimple(sn.WILLMSGREQ)
    assert await device.ask(sn.SnWillMsg(b"lost")) == sn.SnConnack(sn.ACCEPTED)
    for each in subscriptions:
        await device.subscribe(each, 1)
    assert await device.ask(sn.SnDisconnect(DAY)) == sn.SnDisconnect()
    return device


async def connected(node: ClusterProcess) -> SnClient:
    """Return the device after it was accepted. It asks again when it was refused, as a device does."""
    while True:
        device = await open_at(node)
        heard = await device.ask(sn.SnConnect("dev", False, False, 60))
        if heard == sn.SnConnack(sn.ACCEPTED):
            return device
        assert heard == sn.SnConnack(sn.CONGESTION)
        device.close()
        await asyncio.sleep(0.2)


async def payloads(device: SnClient, count: int) -> dict[str, list[bytes]]:
    """Return what this many messages carry, by topic."""
    found: dict[str, list[bytes]] = {}
    for _ in range(count):
        topic, payload, qos = await device.message()
        assert qos == 1
        found.setdefault(topic, []).append(payload)
    return found


async def send(publisher: Peer, topic: str, first: int, last: int) -> None:
    for number in range(first, last):
        await publisher.publish(topic, b"%d" % number, 1)  # waits for PUBACK


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def has_ended(node: ClusterProcess) -> None:
    node.process.kill()
    await node.process.wait()


@pytest.mark.parametrize("back_at", [0, 1])
async def test_the_node_of_the_session_comes_back(tmp_path: Path, back_at: int) -> None:
    """The device wakes up on another node, or on its own after the restart. It is not accepted before its session is
    there, and then receives everything that was acknowledged to publishers on both nodes: in order, once."""
    async with ClusterProcesses(2, tmp_path, QUICK, "mqttsn") as cluster:
        near, far, watch = Peer(cluster[0].tcp, 5), Peer(cluster[1].tcp, 4), Peer(cluster[1].tcp, 5)
        sleeping = await asleep(cluster[0], "near/#", "far/#")
        for name, peer in (("near", near), ("far", far), ("watch", watch)):
            await peer.connect(name)
        await watch.subscribe("will/#", qos=1)
        await send(near, "near/t", 0, 10)
        await send(far, "far/t", 0, 10)
        await has_ended(cluster[0])
        await near.close()
        await send(far, "far/t", 10, 20)
        # The device is lost with its node, so its Will is published: by a node that runs, and once.
        await watch.expect_publish("will/dev", b"lost", 1)
        elsewhere = await open_at(cluster[1])
        assert await elsewhere.ask(sn.SnPingreq("dev")) == sn.SnDisconnect()
        assert await elsewhere.ask(sn.SnConnect("dev", False, False, 60)) == sn.SnConnack(sn.CONGESTION)
        elsewhere.close()
        await cluster[0].start()
        if back_at == 0:  # the device asks from its old address, and its node does not know it
            assert await sleeping.ask(sn.SnPingreq("dev")) == sn.SnDisconnect()
        device = await connected(cluster[back_at])
        await send(far, "far/t", 20, 30)
        assert await payloads(device, 40) == {"near/t": numbers(10), "far/t": numbers(30)}
        assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)
        await watch.nothing()
        for each in (device, sleeping):
            each.close()
        for peer in (far, watch):
            await peer.close()


async def test_a_new_session_and_the_old_messages(tmp_path: Path) -> None:
    """With ``takeover = "fresh"``, the device is accepted without its session and subscribes again; what waited in the
    old one arrives when its node is back, each message once."""
    async with ClusterProcesses(2, tmp_path, f'{QUICK}\ntakeover = "fresh"', "mqttsn") as cluster:
        near, far = Peer(cluster[0].tcp, 5), Peer(cluster[1].tcp, 4)
        sleeping = await asleep(cluster[0], "near/#", "far/#")
        for name, peer in (("near", near), ("far", far)):
            await peer.connect(name)
        await send(near, "near/t", 0, 10)
        await send(far, "far/t", 0, 10)
        await has_ended(cluster[0])
        await near.close()
        await send(far, "far/t", 10, 20)
        device = await connected(cluster[1])
        await device.subscribe("far/#", 1)
        await send(far, "far/t", 20, 30)
        assert await payloads(device, 10) == {"far/t": numbers(30)[20:]}
        await cluster[0].start()
        assert await payloads(device, 30) == {"near/t": numbers(10), "far/t": numbers(20)}
        assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)
        for each in (device, sleeping):
            each.close()
        await far.close()


async def test_the_node_of_the_session_is_lost_with_its_disk(tmp_path: Path) -> None:
    """With ``replicas``, another node has the session, with all that was acknowledged."""
    more = "replicas = 1\nfailover_after = 3\nsuspect_after = 2\nstopped_after = 3\nwill_grace = 1"
    async with ClusterProcesses(3, tmp_path, more, "mqttsn") as cluster:
        await until_copied(tmp_path / "n1", 3)
        near, far = Peer(cluster[0].tcp, 5), Peer(cluster[1].tcp, 4)
        sleeping = await asleep(cluster[0], "near/#", "far/#")
        for name, peer in (("near", near), ("far", far)):
            await peer.connect(name)
        await send(near, "near/t", 0, 10)
        await send(far, "far/t", 0, 10)
        await has_ended(cluster[0])
        await near.close()
        shutil.rmtree(tmp_path / "n1")
        lost = cluster.nodes.pop(0)
        await send(far, "far/t", 10, 20)
        device = await connected(cluster[1])
        assert await lost.end() == -signal.SIGKILL
        assert await payloads(device, 30) == {"near/t": numbers(10), "far/t": numbers(20)}
        assert await device.ask(sn.SnPingreq()) == sn.SnSimple(sn.PINGRESP)
        for each in (device, sleeping):
            each.close()
        await far.close()
