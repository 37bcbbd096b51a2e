"""A full disk under load: the real process on a small tmpfs. Nothing acknowledged is lost; it recovers by itself."""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Ack, Pingreq, Pingresp, TopicFilter
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import TIMEOUT, Address, Peer
from tests.support.wire import Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(90)]

CONFIG = """
[node]
data_dir = "{data}"

[durability]
level = "disk"

[[listeners]]
name = "one"
type = "tcp"
bind = "127.0.0.1:{port}"
max_queued_messages = 0
"""
WINDOW = 20
BALLAST = 2 * 1024 * 1024
ALARMS = "$SYS/brokers/+/alarms/#"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, half of it taken by a file ``ballast``."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], capture_output=True, text=True)
    if mounted.returncode:
        if os.environ.get("CI"):
            pytest.fail(f"no tmpfs: {mounted.stderr}")
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    (disk / "ballast").write_bytes(bytes(BALLAST))
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


class SmallDiskNode:
    """The node on the small disk, and the clients that were opened to it."""

    def __init__(self, directory: Path, disk: Path) -> None:
        self.disk = disk
        self.address = Address("127.0.0.1", free_port())
        config = directory / "taipan.toml"
        config.write_text(CONFIG.format(data=disk / "data", port=self.address.port))
        self.node = NodeProcess(config)
        self.peers: list[Peer] = []
        self.log: list[str] = []
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.node.start()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        stderr = self.node.process.stderr
        assert stderr is not None
        while line := await stderr.readline():
            self.log.append(line.decode())

    async def stop(self) -> int:
        self.node.process.terminate()
        async with asyncio.timeout(patience(40)):
            status = await self.node.process.wait()
        assert self._reading is not None
        await self._reading
        return status

    async def connect(self, client_id: str, version: int = 5, keep: bool = False, expect: int = 0) -> Peer:
        """``keep``: its session outlives the connection."""
        peer = Peer(self.address, version)
        self.peers.append(peer)
        properties = {c.SESSION_EXPIRY_INTERVAL: 3600} if keep and version == 5 else None
        await peer.connect(client_id, not keep, properties=properties, expect=expect)
        return peer


@pytest_asyncio.fixture
async def small_disk_node(tmp_path: Path, small_disk: Path) -> AsyncIterator[SmallDiskNode]:
    small_disk_node = SmallDiskNode(tmp_path, small_disk)
    await small_disk_node.start()
    yield small_disk_node
    for peer in small_disk_node.peers:
        peer.abort()
    if small_disk_node.node.process.returncode is None:
        small_disk_node.node.process.kill()
        await small_disk_node.node.process.wait()


class Publisher:
    """Publishes numbered messages of 1 KiB with a window, and notes what became of each."""

    def __init__(self, peer: Peer, qos: int) -> None:
        self.peer = peer
        self.qos = qos
        self.unanswered: dict[int, str] = {}
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self.next = 1

    async def send(self) -> None:
        name = f"{self.qos}-{self.next:06d}"
        self.unanswered[self.next] = name
        await self.peer.send(Publish("load/" + str(self.qos), name.encode().ljust(1024), self.qos, packet_id=self.next))
        self.next += 1

    async def step(self, timeout: float = TIMEOUT) -> None:
        """Fill the window, take one answer."""
        while len(self.unanswered) < WINDOW:
            await self.send()
        packet = await self.peer.receive(timeout)
        assert isinstance(packet, Ack)
        if packet.type == c.PUBCOMP:
            return
        name = self.unanswered.pop(packet.packet_id)
        if packet.reason_code >= 0x80:
            assert packet.reason_code == rc.QUOTA_EXCEEDED
            self.refused.append(name)
            return
        self.acknowledged.append(name)
        if packet.type == c.PUBREC:
            await self.peer.send(Ack(c.PUBREL, packet.packet_id))

    async def until_stuck(self) -> None:
        """Until nothing is answered any more: what the disk did not take holds back what came after it."""
        with contextlib.suppress(TimeoutError):
            while len(self.refused) < WINDOW:
                await self.step(timeout=5.0)


@pytest.mark.parametrize("qos", [1, 2])
async def test_full_and_room_again(small_disk_node: SmallDiskNode, qos: int) -> None:
    watcher = await small_disk_node.connect("watcher")
    await watcher.subscribe(TopicFilter(ALARMS, 0))
    keeper = await small_disk_node.connect("keeper", keep=True)
    await keeper.subscribe(TopicFilter("load/#", 2))
    await keeper.disconnect()
    publisher = Publisher(await small_disk_node.connect("publisher", keep=True), qos)
    await publisher.until_stuck()
    assert len(publisher.acknowledged) > 200

    told = await watcher.receive()
    assert isinstance(told, Publish) and told.topic.endswith("/alarms/activate")
    alarm = json.loads(told.payload)
    assert alarm["name"] == "store_trouble" and "no space" in alarm["message"]
    assert alarm["details"]["setting"] == "node.data_dir" and alarm["deactivate_at"] == "infinity"

    # What needs no disk goes on.
    await watcher.send(Pingreq())
    assert await watcher.receive() == Pingresp()
    await watcher.subscribe(TopicFilter("quick", 1))
    for level in (0, 1):
        await watcher.publish("quick", b"x", qos=level)
        await watcher.expect(Publish, topic="quick", qos=level)

    # What needs it is refused: a publication, a subscription, a session.
    other = await small_disk_node.connect("other")
    await other.send(Publish("load/x", b"x", 1, packet_id=7))
    answer = await other.receive()
    assert isinstance(answer, Ack) and (answer.packet_id, answer.reason_code) == (7, rc.QUOTA_EXCEEDED)
    await small_disk_node.connect("stranger", keep=True, expect=rc.QUOTA_EXCEEDED)
    await small_disk_node.connect("old", 4, keep=True, expect=3)
    waits = await small_disk_node.connect("waits", 4)
    await waits.send(Publish("load/x", b"3.1.1", 1, packet_id=9), Pingreq())
    await waits.answer(Pingresp)
    with pytest.raises(TimeoutError):
        await waits.receive(timeout=0.5)

    # Space returns.
    (small_disk_node.disk / "ballast").unlink()
    await waits.answer(Ack, type=c.PUBACK, packet_id=9)
    while publisher.unanswered:
        packet = await publisher.peer.receive()
        assert isinstance(packet, Ack)
        if packet.type == c.PUBREC and packet.reason_code < 0x80:
            await publisher.peer.send(Ack(c.PUBREL, packet.packet_id))
        if packet.type in (c.PUBACK, c.PUBREC):
            name = publisher.unanswered.pop(packet.packet_id)
            (publisher.refused if packet.reason_code >= 0x80 else publisher.acknowledged).append(name)
    before = len(publisher.acknowledged)
    while len(publisher.acknowledged) < before + 20:
        await publisher.step()
    told = await watcher.receive()
    assert isinstance(told, Publish) and told.topic.endswith("/alarms/deactivate")
    assert json.loads(told.payload)["activated"] is False

    assert await small_disk_node.stop() == 0
    assert any("store_trouble" in line and "node.data_dir" in line for line in small_disk_node.log)
    assert any("store_recovered" in line for line in small_disk_node.log)
    assert not [line for line in small_disk_node.log if "Traceback" in line], small_disk_node.log
    names = {each.name for each in (small_disk_node.disk / "data").iterdir()}
    assert sorted(names - {"taipan.history"}) == [
        "lock",
        "taipan.check",
        "taipan.db",
    ]

    # Nothing that was acknowledged is lost, nothing that was refused comes, all in order.
    await small_disk_node.start()
    keeper = await small_disk_node.connect("keeper", keep=True)
    assert keeper.connack.session_present
    got: list[str] = []
    while not set(publisher.acknowledged) <= set(got):
        packet = await keeper.receive()
        if isinstance(packet, Publish):
            if packet.topic == f"load/{qos}":
                got.append(packet.payload.decode().strip())
            await keeper.send(Ack(c.PUBACK if packet.qos == 1 else c.PUBREC, packet.packet_id))
        elif isinstance(packet, Ack) and packet.type == c.PUBREL:
            await keeper.send(Ack(c.PUBCOMP, packet.packet_id))
    assert got == sorted(set(got))
    assert not set(got) & set(publisher.refused)


async def test_it_stops_in_time_while_the_disk_is_full(small_disk_node: SmallDiskNode) -> None:
    keeper = await small_disk_node.connect("keeper", keep=True)
    await keeper.subscribe(TopicFilter("load/#", 1))
    await keeper.disconnect()
    publisher = Publisher(await small_disk_node.connect("publisher"), 1)
    await publisher.until_stuck()
    began = time.monotonic()
    assert await small_disk_node.stop() == 0
    assert time.monotonic() - began < 45.0
    assert any("store_not_flushed" in line for line in small_disk_node.log)
    assert not [line for line in small_disk_node.log if "Traceback" in line], small_disk_node.log

    # On the full disk it starts as well, with all that was acknowledged.
    await small_disk_node.start()
    keeper = await small_disk_node.connect("keeper", keep=True)
    assert keeper.connack.session_present
    got: list[str] = []
    while not set(publisher.acknowledged) <= set(got):
        packet = await keeper.receive()
        assert isinstance(packet, Publish)
        got.append(packet.payload.decode().strip())
        await keeper.send(Ack(c.PUBACK, packet.packet_id))
    assert not set(got) & set(publisher.refused)
