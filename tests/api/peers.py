"""A managed node and the MQTT clients of a test, which stay until the node stops."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.api import ManagedNode
from tests.support.api import managed_node as bare_node
from tests.support.peer import Peer


class PeopledNode:
    """``node`` and its ``api``; ``connect`` and ``leave_session`` bring clients."""

    def __init__(self, node: ManagedNode) -> None:
        self.node = node
        self.api = node.api
        self.server = node.server
        self.clock = node.clock
        self.name = node.name
        self._peers: list[Peer] = []

    async def connect(self, client_id: str, version: int = 4, transport: str = "tcp", **options: Any) -> Peer:
        """A connected client; options as for ``Peer.connect``."""
        peer = Peer(self.node.address(transport), version)
        self._peers.append(peer)
        await peer.connect(client_id, **options)
        return peer

    async def leave_session(self, client_id: str, *filters: str, qos: int = 1, **options: Any) -> None:
        """A persistent session of 3.1.1 with these subscriptions, whose client is gone."""
        peer = await self.connect(client_id, clean_start=False, **options)
        if filters:
            await peer.subscribe(*filters, qos=qos)
        await peer.drop()

    async def pass_time(self, seconds: float) -> None:
        await self.node.pass_time(seconds)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()


@asynccontextmanager
async def peopled_node(management: dict[str, Any] | None = None, **rooms: Any) -> AsyncIterator[PeopledNode]:
    """Arguments as for ``managed_node``."""
    async with bare_node(management, **rooms) as node:
        peopled = PeopledNode(node)
        try:
            yield peopled
        finally:
            await peopled.close()
