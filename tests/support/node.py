"""Nodes to test against: in this process, in a process of its own, or one that somebody else has started.

``TAIPAN_TEST_BROKER=host:port`` (and ``TAIPAN_TEST_BROKER_WS=host:port``) let the scenarios run against any broker.
"""

import asyncio
import itertools
import logging
import os
import resource
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from taipan.broker.cluster.nats.interface import Nats
from taipan.broker.config import BrokerSettings, ListenerSettings, ZoneSettings
from taipan.broker.loop.clock import Clock
from taipan.broker.mqtt.constants import SESSION_EXPIRY_INTERVAL

from .passing_time import standing_since
from .patience import patience
from .peer import TIMEOUT, Address, Peer

# Below the ports that the system gives to clients, and others for each worker of a test run, so that nobody else takes
# one between the moment it is found free and the moment it is bound. TAIPAN_TEST_RUN=1: nor a second run beside this.
_WORKERS = 16
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_worker += 8 * int(os.environ.get("TAIPAN_TEST_RUN", "0"))
_ports = itertools.cycle(range(10_000 + _worker, 32_000, _WORKERS))
for _ in range(os.getpid() * 137 % 1_375):
    next(_ports)
NOBODYS_PORT: Final = 21_728
"""Nothing listens there: the stores of earlier versions in tests/upgrade have a row that waits for this port."""
_held: deque[socket.socket] = deque()
_MOST_HELD = 100
"""Of a process: when one more is asked for, the oldest has long been taken."""

NO_DASHBOARD = {"TAIPAN__DASHBOARD__ENABLED": "false"}
"""Of a process whose dashboard nobody asks for: another one may be at its port."""


def free_port() -> int:
    """A port of the loopback interface that nothing listens on. It stays bound here for a while, so that no other
    process takes it for free; who listens with SO_REUSEADDR, as every server does, gets it."""
    for port in _ports:
        if port == NOBODYS_PORT:
            continue
        holder = socket.socket()
        try:
            holder.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            continue
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # now: else two of these could have one port
        _held.append(holder)
        if len(_held) > _MOST_HELD:
            _held.popleft().close()
        return port
    raise AssertionError("there is always a next one")


class ShiftedClock(Clock):
    """The real clock plus ``shift`` seconds: time that a test lets pass at once. ``jump``: what it has set the wall
    clock forward by. ``stand_still``: no other time passes from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = 0.0
        self.jump = 0.0
        self._still: float | None = None

    def _real(self) -> float:
        since = standing_since()
        return time.monotonic() if since is None else since

    @property
    def skew(self) -> float:
        return super().skew + self.jump

    def monotonic(self) -> float:
        return (self._real() if self._still is None else self._still) + self.shift

    def stand_still(self) -> None:
        self._still = self._real()


class _Complaints(logging.Handler):
    """What the broker logged at ERROR or with a traceback: a node under test must not have any."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.records.append(logging.Formatter("%(name)s: %(message)s").format(record))


class Node:
    """A broker in this process, on the running loop. ``stop`` fails if it logged an error or left one unhandled."""

    external = False
    packages: tuple[str, ...] = ("taipan.broker",)
    """Whose log is heard."""

    def __init__(self, settings: BrokerSettings, nats: Nats | None = None) -> None:
        """``nats``: its connection to the other nodes of a cluster."""
        from taipan.broker.server import Server

        self.settings = settings
        self.clock = ShiftedClock()
        self.server = Server(settings, self.clock, nats=nats)
        self._complaints = _Complaints()
        self._peers: list[Peer] = []
        self._addresses: dict[str, Address] = {
            listener.type: Address(*_host_port(listener.bind), listener.type, _first(listener.path))
            for listener in reversed(settings.listeners)
        }

    async def start(self) -> "Node":
        for package in self.packages:
            logging.getLogger(package).addHandler(self._complaints)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        try:
            await self.server.start()
        except BaseException:
            self._no_more_complaints()
            raise
        return self

    def _no_more_complaints(self) -> None:
        for package in self.packages:
            logging.getLogger(package).removeHandler(self._complaints)

    async def stop(self) -> None:
        try:
            await self.close_clients()
            await self.server.stop()
        finally:
            self._no_more_complaints()
            asyncio.get_running_loop().set_exception_handler(None)
        assert not self._complaints.records, "\n".join(self._complaints.records)

    def ignore(self, is_ignored: Callable[[logging.LogRecord], bool]) -> None:
        """What is logged and no complaint of this node."""
        self._complaints.addFilter(lambda record: not is_ignored(record))

    def address(self, transport: str = "tcp") -> Address:
        """Its first listener of this type."""
        return self._addresses[transport]

    async def client(
        self, client_id: str | None = None, version: int = 5, transport: str = "tcp", **connect: Any
    ) -> Peer:
        """A connected MQTT client, closed with the node; ``connect`` as in ``Peer.connect``, and ``expiry`` seconds
        for a session that stays (for 3.x: ``clean_start=False``)."""
        expiry = connect.pop("expiry", 0)
        if expiry:
            connect["clean_start"] = connect.get("clean_start", False)
            if version == 5:
                connect["properties"] = {**connect.get("properties", {}), SESSION_EXPIRY_INTERVAL: expiry}
        peer = self.peer(version, transport)
        await peer.connect(client_id, **connect)
        return peer

    def peer(self, version: int = 5, transport: str = "tcp") -> Peer:
        """An MQTT client that has still to connect, closed with the node."""
        peer = Peer(self.address(transport), version)
        self._peers.append(peer)
        return peer

    async def leave_session(self, client_id: str, *filters: str, qos: int = 1, **connect: Any) -> None:
        """A persistent session of 3.1.1 with these subscriptions, whose client is gone."""
        peer = await self.client(client_id, 4, clean_start=False, **connect)
        if filters:
            await peer.subscribe(*filters, qos=qos)
        await peer.drop()

    async def settled(self, connections: int) -> None:
        """Until there are no more MQTT connections than these: a client sees the end before the node is through."""
        async with asyncio.timeout(patience(TIMEOUT)):
            while len(self.server.connections) > connections:
                await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Until nothing is on its way from another node."""

    async def close_clients(self) -> None:
        for peer in self._peers:
            await peer.close()
        self._peers.clear()

    async def stand_still(self) -> None:
        """From now on time passes by ``pass_time`` only: what recurs does so when the test wants it, however long the
        machine takes for what is between."""
        self.clock.stand_still()
        await self.server.tick()  # what was due already

    async def pass_time(self, seconds: float) -> None:
        """Lets so many seconds pass on the node's clock, and everything due by then happen."""
        self.clock.shift += seconds
        await self.server.tick()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._complaints.records.append(f"unhandled: {context['message']}: {error!r}")


class ExternalNode:
    """A broker that runs already. Its time is everybody's time."""

    external = True

    def __init__(self, tcp: str, ws: str | None) -> None:
        self._addresses = {"tcp": Address(*_host_port(tcp))}
        if ws is not None:
            self._addresses["ws"] = Address(*_host_port(ws), "ws")

    async def stop(self) -> None:
        pass

    def address(self, transport: str = "tcp") -> Address:
        return self._addresses[transport]

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def external_node() -> ExternalNode | None:
    """The broker named in the environment, if there is one."""
    tcp = os.environ.get("TAIPAN_TEST_BROKER")
    return ExternalNode(tcp, os.environ.get("TAIPAN_TEST_BROKER_WS")) if tcp else None


def make_settings(
    zone: Mapping[str, Any] | None = None,
    listeners: list[dict[str, Any]] | None = None,
    **config: Any,
) -> BrokerSettings:
    """Settings of a node on free loopback ports, tcp and ws unless ``listeners`` says otherwise.

    ``zone`` are keys of ``ZoneSettings``; ``config`` are the other tables of ``BrokerSettings`` as plain dicts.
    A listener without ``bind`` or ``name`` gets one. The durability level is ``memory`` unless given.
    """
    made = []
    for number, given in enumerate(listeners or [{"type": "tcp"}, {"type": "ws"}]):
        made.append({"name": f"{given['type']}-{number}", "bind": f"127.0.0.1:{free_port()}", **given})
    a_zone = msgspec.convert(dict(zone or {}), ZoneSettings)
    config.setdefault("durability", {"level": "memory"})  # what is about the disk says so
    config.setdefault("sys_topics", {"interval": 0, "heartbeat": 0})
    settings = msgspec.convert(config, BrokerSettings)
    return msgspec.structs.replace(
        settings,
        listeners=tuple(msgspec.convert(each, ListenerSettings) for each in made),
        listener_zones=(a_zone,) * len(made),
        zones={"external": a_zone},
    )


async def start_node(
    zone: Mapping[str, Any] | None = None, listeners: list[dict[str, Any]] | None = None, **config: Any
) -> Node:
    """Starts a node in this process; arguments as for ``make_settings``."""
    return await Node(make_settings(zone, listeners, **config)).start()


class NodeProcess:
    """The real ``taipan`` process with a configuration file, on free ports."""

    command: tuple[str, ...] = (sys.executable, "-m", "taipan.management.node")

    def __init__(
        self, config: Path, *arguments: str, env: Mapping[str, str] | None = None, most_files: int | None = None
    ) -> None:
        """``most_files``: file descriptors that the process may have."""
        self.config = config
        self.arguments = arguments
        self.env = {**os.environ, "TAIPAN__MANAGEMENT__BIND": "127.0.0.1:0", **NO_DASHBOARD, **(env or {})}
        self.most_files = most_files
        self.ready = ""
        self.said = ""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, "not started"
        return self._process

    async def start(self, timeout: float = 50.0) -> "NodeProcess":
        """Starts it and waits for the line that begins ``taipan ready``: ``ready``; what it said: ``said``. One that
        does not come to it is killed."""
        self._process = await asyncio.create_subprocess_exec(
            *self.command, "--config", str(self.config), *self.arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=self.env,
            cwd=Path(__file__).parents[2], preexec_fn=None if self.most_files is None else self._limit_files,
        )  # fmt: skip
        assert self._process.stdout is not None
        said = b""
        try:
            async with asyncio.timeout(patience(timeout)):
                while line := await self._process.stdout.readline():
                    said += line
                    if line.startswith(b"taipan ready"):
                        self.ready = line.decode().strip()
                        self.said = said.decode()
                        return self
        except BaseException:
            self._process.kill()
            await self._process.communicate()
            raise
        _, errors = await self._process.communicate()
        raise AssertionError(f"ended with {self._process.returncode}: {(said + errors).decode()}")

    def _limit_files(self) -> None:
        assert self.most_files is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.most_files, self.most_files))

    async def stop(self, timeout: float = TIMEOUT) -> int:
        """SIGTERM; the exit status. Kills it and fails where it does not end in time."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            async with asyncio.timeout(patience(timeout)):
                await self.process.communicate()
        except TimeoutError:
            self.process.kill()
            await self.process.communicate()
            raise AssertionError("the node did not stop on SIGTERM") from None
        assert self.process.returncode is not None
        return self.process.returncode


def _first(paths: str | list[str]) -> str:
    return paths if isinstance(paths, str) else paths[0]


def _host_port(bind: str) -> tuple[str, int]:
    if bind.startswith("/"):
        return bind, 0
    host, _, port = bind.rpartition(":")
    return host.strip("[]"), int(port)
