"""ClusterNodes: whole nodes in this process, with real sockets and stores, that find each other over a VirtualNats.

async with cluster_nodes(3, level="disk", directory=tmp_path) as cluster:
    publisher = await cluster[0].client("p")
    subscriber = await cluster[1].client("s", expiry=60)
    await cluster.kill(1)              # as kill -9 does
    await cluster.start(1)             # the same data, the same ports
    cluster.partition({0}, {1, 2})     # the first side keeps the buckets of NATS
    cluster.heal()
    await cluster.wait_until_quiet()
"""

import asyncio
import contextlib
import contextvars
import itertools
import logging
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.config import BrokerSettings
from taipan.broker.core.cluster import RUNNING
from taipan.broker.persistence.log.check_file import CheckFile, Digests
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.management.configuration.settings import ManagementSettings

from .api import APP_ID, SECRET, ManagedNode
from .node import Node, ShiftedClock, make_settings
from .patience import patience
from .peer import TIMEOUT, Address
from .virtual_nats import VirtualNats, VirtualNatsClient

_node: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)
"""Whose code is running: all that a node starts inherits it."""


class _CopiedLog(SqliteLog):
    """A log whose files can be copied between two operations of its thread: what a kill -9 would leave."""

    def __init__(self, path: Path, check: CheckFile) -> None:
        super().__init__(path, check=check)
        self.lock = threading.Lock()

    def append(self, seq: int, data: bytes, access: Digests | None = None) -> None:
        with self.lock:
            super().append(seq, data, access)

    def tidy(self) -> None:
        with self.lock:
            super().tidy()

    def append_all(self, batches: list[tuple[int, bytes, Digests | None]]) -> None:
        with self.lock:
            super().append_all(batches)

    def truncate(self, seq: int) -> None:
        with self.lock:
            super().truncate(seq)

    def drop_some(self, before: int) -> bool:
        with self.lock:
            return super().drop_some(before)


def _logs_of_copies(node: Node) -> list[_CopiedLog]:
    """Those that are open."""
    cluster = node.server.cluster
    if not isinstance(cluster, NatsCluster) or cluster.copies is None:
        return []
    logs = [copy.log for copy in cluster.copies._copies.values()]
    return [log for log in logs if isinstance(log, _CopiedLog)]


class ClusterNodes:
    """``nodes`` are those that run, by number. ``expected``: how lines of the log begin that are no complaints."""

    def __init__(
        self,
        count: int,
        directory: Path,
        *,
        level: str = "memory",
        managed: bool = False,
        zone: dict[str, Any] | None = None,
        listeners: list[dict[str, Any]] | None = None,
        cluster: dict[str, Any] | None = None,
        hub: VirtualNats | None = None,
        expected: tuple[str, ...] = (),
        **config: Any,
    ) -> None:
        self.hub = hub or VirtualNats(Random(0))
        self.directory = directory
        self.managed = managed
        self.nodes: dict[int, Node] = {}
        self.clients: dict[int, VirtualNatsClient] = {}
        self.settings: list[BrokerSettings] = []
        self._lives = [0] * count
        self._killed: set[Node] = set()
        self._ending: list[asyncio.Task[None]] = []
        self.expected = expected
        for number in range(count):
            node = {**config.get("node", {}), "name": self.name(number), "data_dir": str(self._data_dir(number))}
            table = {"servers": ["nats://127.0.0.1:4222"], **(cluster or {})}
            given = {**config, "node": node, "cluster": table, "durability": {"level": level}}
            self.settings.append(make_settings(zone, listeners, **given))

    @staticmethod
    def name(number: int) -> str:
        return f"n{number + 1}@127.0.0.1"

    def _data_dir(self, number: int) -> Path:
        return self.directory / f"n{number + 1}-{self._lives[number]}"

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def __len__(self) -> int:
        return len(self.settings)

    def part(self, number: int) -> NatsCluster:
        """What a node has of the cluster."""
        found = self.nodes[number].server._nats_cluster
        assert found is not None
        return found

    def managed_node(self, number: int) -> ManagedNode:
        node = self.nodes[number]
        assert isinstance(node, ManagedNode)
        return node

    # ----------------------------------------------------------- coming, going

    async def start(self, number: int) -> Node:
        """With what its last life has left on the disk."""
        assert number not in self.nodes
        data_dir = self._data_dir(number)
        data_dir.mkdir(parents=True, exist_ok=True)
        settings = self.settings[number]
        settings = msgspec.structs.replace(
            settings, node=msgspec.structs.replace(settings.node, data_dir=str(data_dir))
        )
        nats = self.clients[number] = self.hub.client(self.name(number))
        context = contextvars.copy_context()
        node = context.run(self._make, settings, nats)
        context.run(_node.set, node)
        await asyncio.get_running_loop().create_task(node.start(), context=context)
        self.nodes[number] = node
        return node

    def _make(self, settings: BrokerSettings, nats: VirtualNatsClient) -> Node:
        if self.managed:
            table = {"bind": "127.0.0.1:0", "apps": [{"id": APP_ID, "secret": SECRET}]}
            node: Node = ManagedNode(settings, msgspec.convert(table, ManagementSettings), nats=nats)
        else:
            node = Node(settings, nats)
        node.ignore(self._of_the_dead)
        store = node.server.store
        if store is not None:
            store._log = _CopiedLog(store.file, store._check)
        cluster = node.server.cluster
        if isinstance(cluster, NatsCluster) and cluster.copies is not None:
            cluster.copies.make_log = _CopiedLog
        return node

    def _of_the_dead(self, record: logging.LogRecord) -> bool:
        """What a node says that was killed is said by nobody; nor is what is ``expected`` a complaint."""
        return _node.get() in self._killed or (bool(self.expected) and record.getMessage().startswith(self.expected))

    async def stop(self, number: int) -> None:
        """In order, as SIGTERM does."""
        await self.nodes.pop(number).stop()

    async def kill(self, number: int) -> None:
        """As kill -9: nothing is flushed and nothing said; what its disk has, the next ``start`` finds."""
        node = self.nodes.pop(number)
        self._killed.add(node)
        self.clients.pop(number).kill()
        before = self._data_dir(number)
        self._lives[number] += 1
        store = node.server.store
        if store is not None:
            assert isinstance(store._log, _CopiedLog)
            with contextlib.ExitStack() as still:
                still.enter_context(store._log.lock)
                for log in _logs_of_copies(node):
                    still.enter_context(log.lock)
                shutil.copytree(before, self._data_dir(number), ignore=shutil.ignore_patterns("*.sock"))
        for connection in list(node.server.connections):
            connection.abort()
        for listener in node.server.listeners:
            await listener.stop()
        # What is left of it can reach nobody.
        context = contextvars.copy_context()
        context.run(_node.set, node)
        self._ending.append(asyncio.get_running_loop().create_task(node.stop(), context=context))

    # ------------------------------------------------------------------ faults

    @contextmanager
    def held_disk(self, number: int) -> Iterator[None]:
        """The disk of a node takes its time."""
        store = self.nodes[number].server.store
        assert store is not None and isinstance(store._log, _CopiedLog)
        with store._log.lock:
            yield

    def partition(self, *sides: Set[int], quorum: int | None = 0) -> None:
        """As ``VirtualNats.partition``, by numbers."""
        self.hub.partition(*({self.name(number) for number in side} for side in sides), quorum=quorum)

    def heal(self) -> None:
        self.hub.heal()

    # ----------------------------------------------------------------- waiting

    async def wait_until_running(self) -> None:
        """Until each node that runs sees all others that do."""
        wanted = {self.name(number) for number in self.nodes}

        def seen(node: Node) -> set[str]:
            return {member.name for member in node.server.cluster.members() if member.status == RUNNING}

        async with asyncio.timeout(patience(TIMEOUT)):
            while any(seen(node) != wanted for node in self.nodes.values()):
                await asyncio.sleep(0.01)

    @property
    def quiet(self) -> bool:
        """Whether nothing is on its way from one node to another, nor to a disk."""
        return self.hub.quiet and not any(self._busy(node) for node in self.nodes.values())

    @staticmethod
    def _busy(node: Node) -> bool:
        broker = node.server.broker
        if broker.durability is not None and broker.durability.commit.pending:
            return True
        cluster = node.server.cluster
        if isinstance(cluster, NatsCluster) and not all(link.idle for link in cluster.links.links.values()):
            return True
        return any(
            session.writer is not None and (session.inflight or session.queue)
            for session in broker.sessions.internal.values()
        )

    async def wait_until_quiet(self, looks: int = 5) -> None:
        """Until ``quiet`` holds, and goes on to hold while the loop turns."""
        async with asyncio.timeout(patience(TIMEOUT)):
            seen = 0
            while seen < looks:
                await asyncio.sleep(0.005)
                seen = seen + 1 if self.quiet else 0

    async def close(self) -> None:
        for number in list(self.nodes):
            await self.stop(number)
        await asyncio.gather(*self._ending)


@asynccontextmanager
async def cluster_nodes(
    count: int = 3, *, directory: Path | None = None, **options: Any
) -> AsyncIterator[ClusterNodes]:
    """So many nodes, which see each other, for as long as the block lasts; ``options`` as for ``ClusterNodes``."""
    with TemporaryDirectory(prefix="taipan-cluster-") as made:
        cluster = ClusterNodes(count, directory or Path(made), **options)
        try:
            for number in range(count):
                await cluster.start(number)
            await cluster.wait_until_running()
            yield cluster
        finally:
            await cluster.close()


class _SpreadClock:
    """The clock of all nodes: what a test sets, it sets everywhere."""

    def __init__(self, cluster: ClusterNodes) -> None:
        self._cluster = cluster

    @property
    def _clocks(self) -> list[ShiftedClock]:
        return [node.clock for node in self._cluster.nodes.values()]

    @property
    def shift(self) -> float:
        return self._clocks[0].shift

    @shift.setter
    def shift(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.shift = seconds

    @property
    def jump(self) -> float:
        return self._clocks[0].jump

    @jump.setter
    def jump(self, seconds: float) -> None:
        for clock in self._clocks:
            clock.jump = seconds

    @property
    def skew(self) -> float:
        return self._clocks[0].skew

    def now(self) -> float:
        return self._clocks[0].now()

    def wall(self) -> float:
        return self._clocks[0].wall()


class SpreadNode(Node):
    """A cluster of two that a scenario takes for one node: every second client goes to the second one. A subscription
    is acknowledged when both know of it."""

    def __init__(self, cluster: ClusterNodes, directory: TemporaryDirectory[str]) -> None:
        self._cluster = cluster
        self._directory = directory
        self._peers = []
        self._turns = itertools.cycle(range(len(cluster)))
        self.settings = cluster[0].settings
        self.server = cluster[0].server
        self.clock = _SpreadClock(cluster)  # type: ignore[assignment]

    def address(self, transport: str = "tcp") -> Address:
        return self._cluster[next(self._turns)].address(transport)

    async def stand_still(self) -> None:
        await asyncio.gather(*(node.stand_still() for node in self._cluster.nodes.values()))

    async def pass_time(self, seconds: float) -> None:
        await asyncio.gather(*(node.pass_time(seconds) for node in self._cluster.nodes.values()))

    async def settled(self, connections: int) -> None:
        async with asyncio.timeout(patience(TIMEOUT)):
            while sum(len(node.server.connections) for node in self._cluster.nodes.values()) > connections:
                await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """A second at most: a test may hold back something on purpose."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while not await self._quiet():
                    await asyncio.sleep(0.002)

    async def _quiet(self) -> bool:
        for _ in range(3):
            if not self._cluster.quiet or any(self._sessions_come(node) for node in self._cluster.nodes.values()):
                return False
            await asyncio.sleep(0)
        return True

    @staticmethod
    def _sessions_come(node: Node) -> bool:
        cluster = node.server._nats_cluster
        return cluster is not None and bool(cluster.handover._incoming)

    async def stop(self) -> None:
        await self.close_clients()
        await self._cluster.close()
        self._directory.cleanup()


async def start_spread_node(
    zone: dict[str, Any] | None = None, listeners: list[dict[str, Any]] | None = None, **config: Any
) -> SpreadNode:
    """Arguments as for ``start_node``."""
    directory = TemporaryDirectory(prefix="taipan-cluster-")
    level = config.pop("durability", {}).get("level", "memory")
    strict = {"strict_subscribe": True}
    cluster = ClusterNodes(
        2, Path(directory.name), level=level, zone=zone, listeners=listeners, cluster=strict, **config
    )
    for number in range(len(cluster)):
        await cluster.start(number)
    await cluster.wait_until_running()
    return SpreadNode(cluster, directory)
