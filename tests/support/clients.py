"""Clients: what a scenario gets to work with. Makes peers of the scenario's version and transport and cleans up.

Scenarios run for 3.1.1 and 5.0 over tcp and ws; the marks below narrow that where only some make sense.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Properties
from taipan.broker.server import Server

from .node import ExternalNode, Node
from .peer import Peer

v3 = pytest.mark.parametrize("version", [3, 4])
v4 = pytest.mark.parametrize("version", [4])
v5 = pytest.mark.parametrize("version", [5])
v3_to_v5 = pytest.mark.parametrize("version", [3, 4, 5])
tcp = pytest.mark.parametrize("transport", ["tcp"])

_numbers = itertools.count(1)
_RUN = f"{os.getpid():x}"  # names stay unique where several runs share a broker


class Clients:
    """``topic`` is a prefix nobody else uses; ``name()`` makes up Client Identifiers."""

    def __init__(self, node: Node | ExternalNode, version: int, transport: str) -> None:
        self.node = node
        self.version = version
        self.transport = transport
        self.topic = f"t{_RUN}-{next(_numbers)}"
        self._peers: list[Peer] = []

    @property
    def server(self) -> Server:
        """Of a node in this process."""
        assert isinstance(self.node, Node)
        return self.node.server

    def name(self, role: str = "c") -> str:
        return f"{role}{_RUN}-{next(_numbers)}"

    def peer(self, version: int | None = None, transport: str | None = None) -> Peer:
        """A peer that is not open yet."""
        peer = Peer(self.node.address(transport or self.transport), version or self.version)
        if isinstance(self.node, Node):
            peer.settle = self.node.settle
        self._peers.append(peer)
        return peer

    async def open(self, version: int | None = None, transport: str | None = None) -> Peer:
        """A peer with a network connection and no CONNECT."""
        return await self.peer(version, transport).open()

    async def connect(
        self,
        client_id: str | None = None,
        *args: Any,
        version: int | None = None,
        transport: str | None = None,
        **options: Any,
    ) -> Peer:
        """A connected peer; arguments as for ``Peer.connect``."""
        peer = self.peer(version, transport)
        await peer.connect(self.name() if client_id is None else client_id, *args, **options)
        return peer

    async def persistent(self, client_id: str, clean_start: bool = False, **options: Any) -> Peer:
        """A connected peer whose session outlives its connection, in either version."""
        version = options.get("version") or self.version
        if version == 5:
            properties: Properties = dict(options.pop("properties", None) or {})
            properties.setdefault(c.SESSION_EXPIRY_INTERVAL, 3600)
            options["properties"] = properties
        return await self.connect(client_id, clean_start, **options)

    async def pass_time(self, seconds: float) -> None:
        await self.node.pass_time(seconds)

    async def close(self) -> None:
        for peer in self._peers:
            peer.abort()
        await asyncio.sleep(0)


StartClients = Callable[..., Awaitable[Clients]]
"""The fixture ``clients_of``."""
