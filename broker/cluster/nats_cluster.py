"""NatsCluster: the cluster of a node, assembled: what is built, started and stopped, in which order."""

import logging
from collections.abc import Awaitable
from random import Random
from typing import Final

from ..channel.context import ChannelContext
from ..config import BrokerSettings
from ..core.broker import Broker
from ..core.cluster import Handler, Member, NodeUnreachable
from ..core.outcome import Outcome
from ..loop.clock import Clock
from ..observability.alarms import Alarms
from ..persistence.tables import Tables
from ..session.client_info import ClientInfo
from ..session.session import Session
from .calls import Calls
from .context import ClusterContext
from .members import Members
from .nats import Nats
from .rows import Rows

logger = logging.getLogger(__name__)

ROWS_TIMEOUT: Final = 10.0
"""Seconds that a start waits for the rows of the cluster, where NATS is there."""


class NatsCluster:
    """Implements ``core.cluster.Cluster`` over NATS. Built before the store is opened, started when it is recovered."""

    clustered: bool = True

    def __init__(
        self,
        settings: BrokerSettings,
        nats: Nats,
        broker: Broker,
        channels: ChannelContext,
        tables: Tables,
        alarms: Alarms,
        clock: Clock,
        rng: Random,
        version: str,
    ) -> None:
        self.context = ClusterContext(settings, nats, broker, channels, tables, alarms, clock, rng, version)
        self.nats = nats
        # The parts, each made of the context and of those above it.
        self.membership = Members(self.context)
        self.calls = Calls(self.context)
        self.rows = Rows(self.context)

    async def start(self) -> None:
        """Become a member. Where NATS is not there, the node serves its own clients, and joins when it is.

        :raises NatsRefused: this node may not, or this NATS cannot be used.
        """
        self.membership.identify()
        self.calls.start()
        await self.nats.start()
        await self.membership.start()
        if self.membership.left:
            self.rows.stop()
            return
        self.rows.start()
        if self.nats.connected and not await self.rows.wait_until_joined(ROWS_TIMEOUT):
            logger.warning("cluster_rows_not_read seconds=%s detail=%s", ROWS_TIMEOUT, "those of this node count")

    async def stop(self) -> None:
        """The clients are gone: take no part any more."""
        self.rows.stop()
        await self.membership.stop()
        await self.calls.stop()
        await self.nats.stop()

    # ----------------------------------------------------- core.cluster.Cluster

    def members(self) -> list[Member]:
        return self.membership.members()

    def claim(self, client: ClientInfo, clean_start: bool, expiry: int) -> Awaitable[Outcome | None] | None:
        return None

    def session_ended(self, session: Session) -> None:
        pass

    def owner_of(self, client_id: str) -> str | None:
        return None

    def serve(self, method: str, handler: Handler) -> None:
        self.calls.serve(method, handler)

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        peer = self.membership.peers.get(node)
        if peer is None or not peer.running:
            raise NodeUnreachable(f"{node}: {'no such node' if peer is None else peer.status}")
        return await self.calls.call(node, method, argument, timeout)

    async def join(self) -> None:
        await self.membership.join()
        self.rows.start()

    async def leave(self) -> None:
        await self.membership.leave()
        self.rows.stop()
        self.rows.forget()

    async def force_leave(self, node: str) -> None:
        await self.membership.force_leave(node)
