"""A node of the simulation: a real ``Server`` that listens nowhere, on a virtual clock, disk and network."""

import asyncio
import contextvars
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from taipan.broker.channel.channel import ListenerFacts
from taipan.broker.cluster.nats.interface import NatsRefused
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.config import BrokerSettings, ZoneSettings
from taipan.broker.loop.clock import Clock
from taipan.broker.mqtt.decoder import TopicNames
from taipan.broker.persistence.tables import Table
from taipan.broker.server import Server
from taipan.broker.transport.connection import Connection
from tests.support.virtual_nats import VirtualNatsClient

from .disk import SimulatedDisk, SimulatedStore
from .files import Disk, mount
from .loop import NOBODY, Life, life

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

EPOCH = 1_700_000_000.0
"""Unix time at the loop's time 0."""


class VirtualClock(Clock):
    """A clock whose wall time and monotonic time are those of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.offset = EPOCH

    def monotonic(self) -> float:
        return self._loop.time()

    @property
    def skew(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.now()


class _Listener:
    """The parts of a listener that a Connection uses."""

    name = label = "default"

    def opened(self) -> None:
        pass

    def lingers(self, connection: Connection) -> None:
        pass

    def freed(self, connection: Connection) -> None:
        pass

    def closed(self, reason: str) -> None:
        pass


class SimulatedTransport(asyncio.Transport):
    """The node's end of a connection; the client receives written data some time later, in order."""

    def __init__(self, node: "SimulatedNode", client: "SimulatedClient") -> None:
        super().__init__({"peername": ("192.0.2.1", 50_000), "sockname": ("127.0.0.1", 1883)})
        self._node = node
        self._client = client
        self._loop = node.loop
        self._protocol: Connection
        self._closing = False
        self._lost = False
        self._reading = True
        self._unread: list[bytes] = []

    def open(self) -> None:
        node = self._node
        server = node.server
        self._protocol = Connection(
            node.listener,  # type: ignore[arg-type]
            node.facts,
            server.context,
            server.flusher,
            node.names,
            server.connections,
        )
        node.transports[self] = None
        self._protocol.connection_made(self)

    # What the broker calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._lost:
            self._later(self._client.receive, self, bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self._reading

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._lose()

    def abort(self) -> None:
        self._lose()

    def _lose(self) -> None:
        if not self._lost:
            self._closing = self._lost = True
            self._node.transports.pop(self, None)
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._later(self._client.lost, self)

    def _later(self, call: object, *args: object) -> None:
        self._loop.call_soon(call, *args, context=NOBODY)  # type: ignore[arg-type]

    # What the client does

    def feed(self, data: bytes) -> None:
        self._unread.append(data)
        self._deliver()

    def _deliver(self) -> None:
        while self._unread and self._reading and not self._closing:
            self._protocol.data_received(self._unread.pop(0))

    def reset(self) -> None:
        """Break the network connection."""
        if not self._lost:
            self._closing = self._lost = True
            self._node.transports.pop(self, None)
            self._protocol.connection_lost(ConnectionResetError())


class Row(msgspec.Struct, array_like=True, frozen=True):
    """A row of the table that all nodes share."""

    value: str


class SimulatedNode:
    """A node that ``start`` and ``kill`` run and end repeatedly; its disk stays. ``piece``: the number of queued
    messages that move to another node at once. ``directory``: its disk, if it has copies; ``None``: the disk is in
    memory (``disk``)."""

    def __init__(
        self, name: str, settings: BrokerSettings, world: "World", piece: int, directory: Path | None = None
    ) -> None:
        self.name = name
        self.settings = settings
        self.world = world
        self.piece = piece
        self.loop = world.loop
        self.rng = Random(world.rng.getrandbits(32))
        self.disk = SimulatedDisk(self.rng)
        self.directory = directory
        self.files: Disk | None = None
        self.listener = _Listener()
        self.running = False
        self.starting = False
        self.lives = 0
        self.life = Life(name)
        self.context = contextvars.Context()
        self.server: Server
        self.nats: VirtualNatsClient
        self.names: TopicNames
        self.rows: Table[Row]
        self.transports: dict[SimulatedTransport, None] = {}

    async def start(self) -> None:
        """Start with the data of the disk, within a new life of the node."""
        self.lives += 1
        self.life = Life(f"{self.name}.{self.lives}")
        self.context = contextvars.Context()
        self.context.run(life.set, self.life)
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self.files = mount(self.life, self.disk)
        self.starting = True
        task = self.loop.create_task(self._start(), context=self.context)
        await asyncio.wait([task])
        error = task.exception()
        if isinstance(error, NatsRefused):
            self.kill()
            self.world.start_refused(self, error)
        elif error is not None:
            raise error

    async def _start(self) -> None:
        self.nats = self.world.hub.client(self.name)
        server = self.server = Server(
            self.settings, VirtualClock(self.loop), Random(self.rng.getrandbits(32)), nats=self.nats
        )
        zone = self.settings.zones["external"]
        self.facts = ListenerFacts("default", zone, "external", server.limits_of(zone), "", True)
        server._facts["default"] = self.facts
        self.names = server._topic_names[zone.strict_strings]
        if server.store is not None and self.directory is None:
            server.store = SimulatedStore(self.disk, self.life, self.settings.durability.queue_memory)
        self.rows = server.tables.open("simulated", Row, shared=True)
        assert isinstance(server.cluster, NatsCluster)
        server.cluster.context.piece_messages = self.piece
        server.cluster.evacuation.grace = 0.0
        server.cluster.on_replaced.append(lambda: self.world.replaced(self))
        await server.start()
        server.lag.stop()
        server.ticker._interval = 0.5
        self.starting = False
        self.running = True

    def on_append(self, call: Callable[[], None]) -> None:
        """Register a callback for each batch that is written."""
        if self.files is not None:
            self.files.on_append = call
        else:
            assert isinstance(self.server.store, SimulatedStore)
            self.server.store.log.on_append = call

    def lose_disk(self) -> None:
        """Delete everything that the node has stored; it does not run."""
        assert self.directory is not None
        shutil.rmtree(self.directory)

    @property
    def copied(self) -> bool:
        """Whether all copies of its data are complete, its record is not being written, and it runs no other node."""
        cluster = self.server.cluster
        assert isinstance(cluster, NatsCluster) and cluster.shipping is not None
        core = cluster.shipping.core
        written = core._writing is None and not core._unanswered
        return written and not self.server.hosted and core.copies >= cluster.context.settings.replicas

    @property
    def knows_routes(self) -> bool:
        """Whether the node has read the routes of the others since its start."""
        cluster = self.server.cluster
        assert isinstance(cluster, NatsCluster)
        return cluster.routes._current.is_set()

    @property
    def knows_sessions(self) -> bool:
        """Whether the node has learned since its start which node has each session."""
        cluster = self.server.cluster
        assert isinstance(cluster, NatsCluster)
        return cluster.session_keys._current.is_set()

    @property
    def copies(self) -> str:
        """The copies of its data, as its own part of the cluster sees them."""
        cluster = self.server.cluster
        assert isinstance(cluster, NatsCluster) and cluster.shipping is not None
        return f"{cluster.shipping.status()} {cluster.shipping.core.next_record()}"

    def is_at_session_of(self, client_id: str) -> bool:
        """Return whether the node handles a CONNECT of this client, or has yet to write its key."""
        cluster = self.server.cluster
        assert isinstance(cluster, NatsCluster)
        return cluster.session_keys.busy(client_id)

    def connect(self, client: "SimulatedClient") -> SimulatedTransport:
        """Open a network connection to this node."""
        transport = SimulatedTransport(self, client)
        self.context.copy().run(transport.open)
        return transport

    def enter(self, call: object, *args: object) -> None:
        """Run within the life of this node, as its own loop would."""
        self.loop.call_soon(call, *args, context=self.context)  # type: ignore[arg-type]

    def kill(self) -> None:
        """Kill the node as ``kill -9`` would: none of its callbacks runs again. Its disk keeps its data, and its
        clients lose their connections."""
        self.life.over = True
        self.running = self.starting = False
        if self.lives:
            self.nats.kill()
            store = self.server.store
            if isinstance(store, SimulatedStore) and hasattr(store, "log"):
                store.log.crash()
        if self.files is not None:
            self.context.copy().run(self.files.crash)
        transports, self.transports = list(self.transports), {}
        for transport in transports:
            self.loop.call_soon(transport._client.lost, transport, context=NOBODY)


def settings_of(
    name: str, level: str, cluster: dict[str, object], queue_memory: int = 0, directory: Path | None = None
) -> BrokerSettings:
    zone = msgspec.convert(
        {"allow_anonymous": True, "session_expiry_interval": 86_400, "max_inflight": 20}, ZoneSettings
    )
    config = {
        "node": {"name": name, **({} if directory is None else {"data_dir": str(directory)})},
        "durability": {"level": level, "queue_memory": queue_memory},
        "sys_topics": {"interval": 0, "heartbeat": 0},
        "cluster": {"servers": ["nats://127.0.0.1:4222"], **cluster},
    }
    return msgspec.structs.replace(
        msgspec.convert(config, BrokerSettings), listeners=(), listener_zones=(), zones={"external": zone}
    )
