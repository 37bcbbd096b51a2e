"""A cluster without a network: nodes in this process that call each other by a table, as ``core/cluster.py`` says."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from taipan.broker.config import ClusterSettings
from taipan.broker.core.cluster import (
    RUNNING,
    STOPPED,
    CallFailed,
    ChangeRefused,
    CopyStatus,
    Handler,
    LinkStatus,
    Member,
    NodeUnreachable,
)
from taipan.broker.core.outcome import Outcome
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from taipan.management.configuration.settings import ManagementSettings
from taipan.ruleengine.config import RuleEngineSettings

from .api import APP_ID, SECRET, ManagedNode
from .node import make_settings


class Hub:
    """What connects the nodes: their members' list, and what each answers."""

    def __init__(self) -> None:
        self.statuses: dict[str, str] = {}
        self.handlers: dict[str, dict[str, Handler]] = {}
        self.silent: set[str] = set()
        """Nodes that do not answer, though nobody knows it yet."""
        self.paused: set[str] = set()
        """Nodes whose answers are waited for until the time of the question is over."""
        self.calls: list[tuple[str, str, str]] = []
        """Who asked whom what."""
        self.octets: list[int] = []
        """Of each answer."""
        self.owners: dict[str, str] = {}
        self.gone: list[str] = []

    def join(self, name: str) -> "FakeCluster":
        self.statuses[name] = RUNNING
        self.handlers[name] = {}
        return FakeCluster(self, name)

    def stop(self, name: str) -> None:
        """Everybody knows that it is stopped."""
        self.statuses[name] = STOPPED
        self.silent.add(name)

    def methods_asked(self, node: str) -> list[str]:
        return [method.removeprefix("operations.") for _, asked, method in self.calls if asked == node]


class FakeCluster:
    """The seam of one node."""

    clustered = True
    refused = ""

    def __init__(self, hub: Hub, name: str) -> None:
        self._hub = hub
        self._name = name
        self.left = False
        self.on_replaced: list[Callable[[], None]] = []
        self.evacuating = False
        self.owed_to_others = 0
        self.kept_for_others = 0

    def members(self) -> list[Member]:
        return [Member(name, name, 1, status, 0.0, "9.9.9") for name, status in sorted(self._hub.statuses.items())]

    def claim(
        self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> Awaitable[Outcome | None] | None:
        return None

    def session_ended(self, session: Session) -> None:
        pass

    def node_of(self, client_id: str) -> str | None:
        owner = self._hub.owners.get(client_id)
        return None if owner == self._name else owner

    def serve(self, method: str, handler: Handler) -> None:
        self._hub.handlers[self._name][method] = handler

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        self._hub.calls.append((self._name, node, method))
        await asyncio.sleep(0)
        if node in self._hub.paused:
            await asyncio.sleep(60.0 if timeout is None else timeout)
            raise NodeUnreachable(node)
        if node in self._hub.silent:
            raise NodeUnreachable(node)
        handler = self._hub.handlers[node].get(method)
        if handler is None:
            raise CallFailed(f"unknown method {method}")
        answer = await handler(self._name, argument)
        self._hub.octets.append(len(answer))
        return answer

    def copies_of_data(self) -> list[CopyStatus]:
        return []

    def links_to_others(self) -> list[LinkStatus]:
        others = [each.name for each in self.members() if each.name != self._name]
        return [LinkStatus(self._name, each, "open", 2.5, 100, 3, 300, 0.25, 0) for each in others]

    async def evacuate(self) -> None:
        if self.evacuating:
            raise ChangeRefused("it is already evacuated")
        self.evacuating = True

    def end_evacuation(self) -> None:
        if not self.evacuating:
            raise ChangeRefused("it is not evacuated")
        self.evacuating = False

    async def join(self, node: str) -> None:
        if not self.left:
            raise ChangeRefused("it is a member already")
        if node not in self._hub.statuses:
            raise ChangeRefused(f"{node} is not a member of it")
        self.left = False

    async def leave(self) -> None:
        if self.left:
            raise ChangeRefused("it has left already")
        self.left = True

    async def force_leave(self, node: str, copies_lost: bool = False) -> None:
        if self._hub.statuses.get(node) != STOPPED:
            raise ChangeRefused(f"{node} is not Stopped")
        del self._hub.statuses[node]
        self._hub.gone.append(node)


class FakeNodes:
    """Some nodes of one cluster. ``nodes[0]`` is ``n1@host``, and so on; ``api`` asks the first."""

    def __init__(self, hub: Hub, nodes: list[ManagedNode]) -> None:
        self.hub = hub
        self.nodes = nodes
        self.names = [node.name for node in nodes]
        self.api = nodes[0].api

    def __getitem__(self, index: int) -> ManagedNode:
        return self.nodes[index]

    def be_strict(self) -> None:
        """The first node has ``cluster.strict_fanout = true``."""
        server = self.nodes[0].server
        settings = ClusterSettings(servers=("nats://127.0.0.1:4222",), strict_fanout=True)
        server.settings = msgspec.structs.replace(server.settings, cluster=settings)


@asynccontextmanager
async def fake_nodes(count: int, management: dict[str, Any] | None = None, **config: Any) -> AsyncIterator[FakeNodes]:
    """So many nodes that know of each other; arguments as of ``managed_node``."""
    hub = Hub()
    table = {"bind": "127.0.0.1:0", "apps": [{"id": APP_ID, "secret": SECRET}], **(management or {})}
    async with AsyncExitStack() as stack:
        nodes: list[ManagedNode] = []
        for number in range(1, count + 1):
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="taipan-cluster-"))
            name = f"n{number}@host"
            settings = make_settings(**{**config, "node": {"name": name, "data_dir": directory}})
            managed = msgspec.convert(table, ManagementSettings)
            node = ManagedNode(settings, managed, RuleEngineSettings(), hub.join(name))
            nodes.append(await node.start())
            stack.push_async_callback(node.stop)
        yield FakeNodes(hub, nodes)
