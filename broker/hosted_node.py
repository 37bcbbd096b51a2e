"""HostedNode: another node of the cluster, which this process runs from its copy until it owes nothing.

The node that was lost starts again here under its own name, with the data that its copy has, and without listeners. To
all other nodes, it has come back. It evacuates itself: its sessions move to the running nodes, and it publishes or
hands over everything else that it owes. Then it leaves the cluster for good."""

import asyncio
import contextvars
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from .cluster.nats_cluster import NatsCluster
from .config import BrokerSettings, ZoneSettings
from .core.cluster import ChangeRefused
from .core.memory import Memory
from .observability.log_text import hosted_node
from .persistence.durability import Durability
from .server import Server
from .session.limits import Limits
from .session.memory_account import MemoryAccount
from .store.store import Store

if TYPE_CHECKING:
    from .cluster.nats.interface import Nats

logger = logging.getLogger(__name__)

_LOOK_EVERY: Final = 0.5
_TRY_AGAIN: Final = 1.0
HOST: Final = "host"
"""The part of a hosted node's memory that everything else in the process uses."""


class PartsAbove(Protocol):
    """The parts of a node from packages above ``broker``: its rules and hooks, and its answers to operators."""

    @property
    def owed(self) -> int:
        """Return the number of rows that rules have accepted and not delivered yet."""

    @property
    def kept(self) -> int:
        """Return the number of rows that an operator may still need, so that the store is not deleted."""

    def start(self) -> None:
        """Begin, after the server has started."""

    async def close(self) -> None:
        """End, before the server stops."""


class Without:
    """``PartsAbove`` of a broker without other packages."""

    owed: int = 0
    kept: int = 0

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


class HostedMemory(Memory):
    """The memory of a node that shares the process of its host. The host knows how large the process is, so it decides
    for both whether queues are shed: the queues of each alone may not be enough."""

    def __init__(self, host: Memory, account: MemoryAccount) -> None:
        super().__init__(host.limit, account, resident=lambda: 0)
        self._host = host

    @property
    def shedding_helps(self) -> bool:
        return self._host.shedding_helps


class HostedServer(Server):
    """A ``Server`` within the process of another one, its *host*. It has no listeners, publishes no ``$SYS`` topics,
    and shares the memory of the host."""

    def __init__(self, host: Server, node: str, directory: Path, nats: "Nats") -> None:
        self.host = host
        settings = host.settings
        assert settings.cluster is not None
        node_settings = msgspec.structs.replace(settings.node, name=node, data_dir=str(directory))
        # It hands over what it has, and must not wait for another copy before that.
        cluster = msgspec.structs.replace(settings.cluster, replicas_min=0)
        settings = msgspec.structs.replace(settings, node=node_settings, cluster=cluster)
        super().__init__(settings, host.clock, Random(host.broker.rng.getrandbits(64)), nats)
        # The levels of the host apply: this node's memory counts there, and the rest of the process counts here.
        self.memory.source(HOST, lambda: host.memory.used - self.own_bytes)

    @property
    def own_bytes(self) -> int:
        """Return the memory of this node in bytes."""
        return self.memory.counted_without(HOST)

    @property
    def own_sheddable(self) -> int:
        """Return the part of it that shrinks when queues are shed."""
        return self.memory.sheddable

    @property
    def nats_cluster(self) -> NatsCluster:
        assert self._nats_cluster is not None
        return self._nats_cluster

    @property
    def hosted_by(self) -> str:
        return self.host.settings.node.name

    def _make_memory(self) -> Memory:
        return HostedMemory(self.host.memory, self.broker.account)

    def reload(self, settings: BrokerSettings) -> None:
        """Apply new users and rules of the host. Its zones are looked up at each use."""
        self.access.reload(settings.access)
        self.rewrite.use(settings.rewrite)

    def _prepare_for_clients(self) -> None:
        """Follow the limit of the host's memory. No client connects to this node."""
        self.ticker.every(1.0, lambda _: self.memory.resize(self.host.memory.limit))

    def zone_of(self, listener: str) -> tuple[ZoneSettings, Limits]:
        internal = self.nats_cluster.zone_of(listener)
        return self.host.zone_of(listener) if internal is None else internal

    async def _read(self, store: Store) -> None:
        """Read in another thread: the clients of the host do not wait for it."""
        await asyncio.to_thread(store.read)

    async def _recover(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        """Restore the state in steps, for the same reason."""
        for _ in self._restore(store, loop):
            await asyncio.sleep(0)

    @property
    def durability(self) -> Durability:
        return self._durability()


class HostedNode:
    """``await start()``, then ``await serve_until_done()``; ``await stop()`` when the host stops. ``since``: Unix
    seconds. All log lines of this node name it."""

    def __init__(
        self, host: Server, node: str, directory: Path, nats: "Nats", above: Callable[[Server], PartsAbove]
    ) -> None:
        self.name = node
        self.since = host.clock.wall()
        self._host = host
        self._directory = directory
        self._context = contextvars.copy_context()
        self._context.run(hosted_node.set, node)
        self.server = self._context.run(HostedServer, host, node, directory, nats)
        self._above = self._context.run(above, self.server)
        self._started = False
        self._stopping = False
        self._closing: asyncio.Task[bool] | None = None
        self._replaced = asyncio.Event()

    def _run(self, coroutine: "asyncio._CoroutineLike[bool]") -> asyncio.Task[bool]:
        return asyncio.get_running_loop().create_task(coroutine, context=self._context)

    async def start(self) -> None:
        """Become a running member. Raises StoreError if the copy cannot be used, and NatsRefused if the cluster does
        not admit it, for example because the node itself is back."""
        await self._run(self._start())

    async def _start(self) -> bool:
        began = time.perf_counter()
        self.server.cluster.on_replaced.append(self._replaced.set)
        # Now, as its memory counts from the first message on.
        self._host.hosted_servers.append(self.server)
        try:
            await self.server.start()
        except BaseException:
            self._host.hosted_servers.remove(self.server)
            await self._above.close()
            raise
        self._above.start()
        self._started = True
        self._host.hosted[self.name] = self
        self._host.alarms.activate(
            f"node_hosted/{self.name}",
            f"node {self.name} is lost; {self._host.settings.node.name} runs it from its copy until it owes nothing",
            {"node": self.name, "setting": "cluster.failover_after"},
        )
        logger.warning(
            "hosted_node_started node=%s sessions=%s seconds=%.3f",
            self.name, len(self.server.broker.sessions), time.perf_counter() - began,
        )  # fmt: skip
        return True

    def owed(self) -> dict[str, int]:
        """Return what keeps this node from leaving, by kind."""
        server = self.server
        wills, delayed = server.durability.node.wills, server.durability.node.delayed
        found = {
            "sessions": len(server.broker.sessions),
            **server.nats_cluster.unfinished(),
            "delayed": len(delayed),
            "wills": len(wills),
            "rows_of_rules": self._above.owed,
        }
        return {kind: count for kind, count in found.items() if count}

    async def serve_until_done(self) -> bool:
        """Evacuate the node, wait until it owes nothing, and let it leave the cluster for good. Return False if it was
        stopped before: by its host, or because another node has taken it over from the host."""
        serving = self._run(self._serve())
        replaced = asyncio.get_running_loop().create_task(self._replaced.wait())
        try:
            await asyncio.wait((serving, replaced), return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                return serving.result()
        finally:
            serving.cancel()
            replaced.cancel()
        logger.warning("hosted_node_replaced node=%s", self.name)
        await self.stop()
        return False

    async def _serve(self) -> bool:
        cluster = self.server.nats_cluster
        refused = ""
        while not self._stopping:
            try:
                if not cluster.membership.left:  # it had left, and its host was stopped before that was complete
                    await self._evacuate()
                    if self.owed():
                        await asyncio.sleep(_LOOK_EVERY)
                        continue
                    await cluster.leave(for_good=True)
                return await self._end()
            except ChangeRefused as error:
                if str(error) != refused:
                    refused = str(error)
                    logger.warning("hosted_node_waits node=%s reason=%s", self.name, refused)
                await asyncio.sleep(_TRY_AGAIN)
        return False

    async def _evacuate(self) -> None:
        if not self.server.cluster.evacuating:
            await self.server.cluster.evacuate()

    async def _end(self) -> bool:
        """Close the node, and delete its copy. Return False if it is being stopped: then its host does so later."""
        kept = self._above.kept
        if not await self._close():
            return False
        if kept:
            date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            aside = self._directory.with_name(f"{self._directory.name}-ended-{date}")
            self._directory.rename(aside)
            logger.warning("hosted_node_kept node=%s dead_letters=%s directory=%s", self.name, kept, aside)
        else:
            await asyncio.to_thread(shutil.rmtree, self._directory, True)
        seconds = self._host.clock.wall() - self.since
        logger.warning("hosted_node_ended node=%s seconds=%.1f", self.name, seconds)
        return True

    async def stop(self) -> None:
        """Stop the node, because its host stops. It starts again with the host."""
        self._stopping = True
        await self._run(self._close())

    async def _close(self) -> bool:
        """Close the node; return whether this call has begun that."""
        begins = self._started
        if begins:
            self._started = False
            self._closing = self._run(self._shut_down())
        if self._closing is not None:
            await asyncio.shield(self._closing)  # the other caller waits for it, too
        return begins

    async def _shut_down(self) -> bool:
        self._host.hosted.pop(self.name, None)
        self._host.alarms.deactivate(f"node_hosted/{self.name}")
        try:
            await self._above.close()
            await self.server.stop()
        finally:
            self._host.hosted_servers.remove(self.server)
        return True
