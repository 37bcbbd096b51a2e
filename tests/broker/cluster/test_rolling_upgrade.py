"""Two versions of the wire in one cluster: node by node from one to the other under load, and what nobody can read."""

import asyncio
import logging
import sys
from pathlib import Path

import msgspec
import pytest

from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wire import NEWER_VERSION, VERSION, Header
from taipan.broker.mqtt import constants as c
from tests.support.patience import patience

from ...support.cluster_nodes import cluster_nodes
from ...support.cluster_processes import ClusterProcess, ClusterProcesses
from ...support.peer import Peer

pytestmark = pytest.mark.asyncio

PROGRAM = """
import sys
from taipan.broker.cluster import wire
wire.VERSION = {version}
from taipan.management.node import main
sys.exit(main())
"""


async def restart(node: ClusterProcess, version: int) -> None:
    """Stop it in order, and start it with another version of the wire."""
    assert await node.end() == 0
    node.command = (sys.executable, "-c", PROGRAM.format(version=version))
    await node.start()


async def until_said(node: ClusterProcess, line: bytes) -> None:
    async with asyncio.timeout(patience(40)):
        while line not in node.log:
            await asyncio.sleep(0.02)


class Load:
    """A publisher of QoS 1 and 2, and a durable subscriber of each version; all change their nodes at each ``move``."""

    def __init__(self) -> None:
        self.published = 0
        self.publisher: Peer | None = None
        self.subscribers: dict[int, Peer] = {}
        self.received: dict[int, list[int]] = {4: [], 5: []}
        self._tasks: list[asyncio.Task[None]] = []
        self._end = asyncio.Event()

    async def begin(self, publisher: ClusterProcess, subscriber: ClusterProcess) -> None:
        for version in self.received:
            peer = self.subscribers[version] = Peer(subscriber.tcp, version)
            properties = {c.SESSION_EXPIRY_INTERVAL: 3600} if version == 5 else None
            known = bool(self.published)
            await peer.connect(f"s-{version}", clean_start=False, properties=properties, session_present=known)
            if not known:
                await peer.subscribe("t", qos=2)
            self._tasks.append(asyncio.create_task(self._receive(version, peer)))
        self.publisher = Peer(publisher.tcp)
        await self.publisher.connect("p")
        self._end.clear()
        self._tasks.append(asyncio.create_task(self._publish(self.publisher)))

    async def _publish(self, peer: Peer) -> None:
        while not self._end.is_set():
            await peer.publish("t", b"%d" % self.published, qos=1 + self.published % 2, expect=0)
            self.published += 1
            await asyncio.sleep(0.002)

    async def _receive(self, version: int, peer: Peer) -> None:
        while True:
            message = await peer.expect_publish("t")
            self.received[version].append(int(message.payload))

    async def pause(self) -> None:
        """Until all that was published has come."""
        self._end.set()
        *receiving, publishing = self._tasks
        await publishing
        async with asyncio.timeout(patience(40)):
            while any(len(each) < self.published for each in self.received.values()):
                await asyncio.sleep(0.01)
        for task in receiving:
            task.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)
        self._tasks = []
        for peer in (self.publisher, *self.subscribers.values()):
            assert peer is not None
            await peer.disconnect()
            await peer.close()

    def check(self) -> None:
        for received in self.received.values():
            assert sorted(received) == list(range(self.published))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_node_by_node_and_back_under_load(tmp_path: Path) -> None:
    """Nothing is lost and nothing comes twice while the nodes are of two versions, and sessions move between them."""
    load = Load()
    async with ClusterProcesses(3, tmp_path) as cluster:
        for version in (VERSION + 1, VERSION):
            for number in range(3):
                await load.begin(cluster[(number + 1) % 3], cluster[(number + 2) % 3])
                before = load.published
                await restart(cluster[number], version)
                await until_said(cluster[number], b"cluster_joined")
                if version > VERSION and number < 2:
                    await until_said(cluster[number], b"cluster_wire_version version=%d" % VERSION)
                await load.pause()
                assert load.published > before
                load.check()
            if version > VERSION:
                for number in range(2):
                    await until_said(cluster[number], b"cluster_wire_version version=%d" % version)


async def test_what_a_newer_version_writes_that_cannot_be_read_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted each time, one line in the log, and the nodes go on among themselves."""
    async with cluster_nodes(2, directory=tmp_path, cluster={"strict_subscribe": True}) as cluster:
        header = msgspec.msgpack.encode(Header("taipan", "new@127.0.0.1", "u", 1))
        data = bytes((VERSION + 9, VERSION + 9)) + len(header).to_bytes(2, "big") + header + b"\xc0"
        seam = cluster[0].server.cluster
        assert isinstance(seam, NatsCluster)
        stranger = cluster.hub.client("new@127.0.0.1")
        await stranger.start()
        refusals = cluster[0].server.metrics.refusals

        def counted() -> int:
            return refusals.snapshot().get(f"cluster_{NEWER_VERSION}", 0)

        with caplog.at_level(logging.WARNING):
            for kind in ("link", "ack", "call"):
                stranger.publish(seam.context.subject(kind, cluster.name(0)), data)
            for kind in ("alive", "here"):
                stranger.publish(seam.context.subject(kind), data)
            for bucket in ("members", "routes", "sessions", "rows"):
                await stranger.write(bucket, "0" * 16 + "." + "0" * 32, data, 0, f"nonce-{bucket}")
            async with asyncio.timeout(patience(40)):
                while counted() < 9:
                    await asyncio.sleep(0.01)
        lines = [each.getMessage() for each in caplog.records if "cluster_refused" in each.getMessage()]
        assert lines and all("reason=newer_version" in line for line in lines) and len(lines) <= len(cluster)
        assert sorted(each.name for each in seam.members()) == [cluster.name(0), cluster.name(1)]
        subscriber, publisher = await cluster[1].client("s", 4), await cluster[0].client("p", 5)
        await subscriber.subscribe("t", qos=1)
        await publisher.publish("t", b"still", qos=1)
        await subscriber.expect_publish("t", b"still", 1)
