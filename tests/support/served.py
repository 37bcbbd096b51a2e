"""A node with its management server and with MQTT clients that are closed with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from broker.transport.listener import ListenerError

from .api import ApiClient, ManagedNode, managed_node
from .peer import TIMEOUT, Peer

_TRIES: Final = 4


class Served:
    """``node`` and its rooms, ``api`` to ask it, ``join`` for a client."""

    def __init__(self, node: ManagedNode) -> None:
        self.node = node
        self.server = node.server
        self.api: ApiClient = node.api
        self.peers: list[Peer] = []

    async def join(
        self, client_id: str = "c1", version: int = 5, expiry: int | None = None, transport: str = "tcp"
    ) -> Peer:
        """A connected client; ``expiry``: its session outlives the connection by so many seconds."""
        peer = Peer(self.node.address(transport), version)
        self.peers.append(peer)
        await peer.open()
        if expiry is None:
            await peer.connect(client_id)
        elif version == 5:
            await peer.connect(client_id, clean_start=False, properties={17: expiry})
        else:
            await peer.connect(client_id, clean_start=False)
        return peer

    async def settled(self, connections: int) -> None:
        """Until the node has no more MQTT connections than these: a client sees the end before the node is through."""
        async with asyncio.timeout(TIMEOUT):
            while len(self.server.connections) > connections:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def served(management: dict[str, Any] | None = None, **rooms: Any) -> AsyncIterator[Served]:
    """Arguments as for ``managed_node``."""
    async with AsyncExitStack() as stack:
        node = await _started(stack, management, rooms)
        party = Served(node)
        try:
            yield party
        finally:
            for peer in party.peers:
                await peer.close()


async def _started(stack: AsyncExitStack, management: dict[str, Any] | None, rooms: dict[str, Any]) -> ManagedNode:
    """Between the moment a port is found free and the node's start somebody else may have taken it: then others."""
    for _ in range(_TRIES):
        try:
            return await stack.enter_async_context(managed_node(management, **rooms))
        except ListenerError as error:
            if "in use" not in str(error):
                raise
    return await stack.enter_async_context(managed_node(management, **rooms))
