"""Listeners: the addresses at which the node accepts clients and operators, the number of connections, and how
connections ended."""

import asyncio
import logging
from typing import Final, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from taipan.broker.server import Server
from taipan.broker.transport.listener import Listener, ListenerError
from taipan.broker.transport.tls import TlsError

from .node_calls import NodeCalls
from .refusal import RPC_ERROR, WRONG, Refusal, not_found

logger = logging.getLogger(__name__)

ACCEPTORS: Final = 1
"""One event loop accepts connections for all listeners; there are no separate acceptor processes."""


class ListenerRecord(msgspec.Struct):
    """Specification, Listener record; ``identifier``: the name for restarting it. ``running``: false if the listener
    was stopped, otherwise absent."""

    protocol: str
    listen_on: str
    identifier: str
    acceptors: int
    max_conns: int
    current_conns: int
    shutdown_count: list[dict[str, int]] | dict[str, int]
    running: bool | UnsetType = UNSET


class ListenerCounts(Protocol):
    """The interface of an HTTP listener: ``http.listener``."""

    max_connections: int
    accepted: int
    refused: dict[str, int]

    @property
    def current_connections(self) -> int:
        """The number of open connections."""

    @property
    def protocol(self) -> str:
        """``http:management``, ``https:dashboard`` and the like."""

    @property
    def listen_on(self) -> str:
        """Address and port."""


class Listeners:
    """All listeners of the node. ``http_listeners``: the HTTP listeners that are open."""

    def __init__(self, server: Server, shutdown_count: Literal["array", "object"], calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self._as_array = shutdown_count == "array"
        self._restarting = asyncio.Lock()
        self.http_listeners: list[ListenerCounts] = []
        calls.serve(self.records, self.restart, self.stop)

    def records(self) -> list[ListenerRecord]:
        """Return the listener records, MQTT listeners first."""
        rows = [
            ListenerRecord(
                listener.protocol,
                listener.listen_on,
                identifier(listener),
                ACCEPTORS,
                listener.max_connections,
                listener.current_connections,
                self._shutdown_count(listener.shutdown_count),
                UNSET if listener.running else False,
            )
            for listener in self._server.listeners
        ]
        rows += [
            ListenerRecord(
                listener.protocol,
                listener.listen_on,
                listener.protocol,
                ACCEPTORS,
                listener.max_connections,
                listener.current_connections,
                [],
            )
            for listener in self.http_listeners
        ]
        return rows

    def _shutdown_count(self, counts: dict[str, int]) -> list[dict[str, int]] | dict[str, int]:
        if not counts:
            return []
        return [dict(counts)] if self._as_array else dict(counts)

    async def restart(self, name: str) -> None:
        """Close a listener's socket and open it again with newly read certificates; clients stay connected.

        ``name`` is an identifier from ``records``. Raises Refusal.
        """
        if name.startswith(("http:", "https:")):
            raise Refusal(WRONG, "http_listener_restart_unsupported: a restart would disconnect the caller")
        listener = self._find(name)
        async with self._restarting:
            try:
                # Find errors before anything is closed.
                listener.prepare(listener.settings, listener.zone)
            except (ListenerError, TlsError) as error:
                logger.warning("listener_restart_refused listener=%s error=%s", listener.name, error)
                raise Refusal(RPC_ERROR, f"the listener continues unchanged: {error}") from None
            try:
                await listener.restart()
            except (ListenerError, TlsError) as error:
                logger.error("listener_restart_failed listener=%s error=%s", listener.name, error)
                raise Refusal(RPC_ERROR, f"the listener is closed: {error}") from None

    async def restart_everywhere(self, name: str) -> None:
        """Restart a listener on all nodes. Raises Refusal."""
        await self._calls.order_all(self.restart, name)

    async def stop(self, name: str) -> None:
        """Close a listener's socket until it is restarted; clients stay connected. Raises Refusal."""
        if name.startswith(("http:", "https:")):
            setting = f"{name.partition(':')[2]}.enabled"
            raise Refusal(WRONG, f"http_listener_stop_unsupported: set {setting} = false and restart the node")
        listener = self._find(name)
        async with self._restarting:
            if not listener.running:
                raise Refusal(WRONG, f"listener {name} does not listen")
            await listener.stop()

    async def stop_everywhere(self, name: str) -> None:
        """Stop a listener on all nodes. Raises Refusal."""
        await self._calls.order_all(self.stop, name)

    def _find(self, name: str) -> Listener:
        for listener in self._server.listeners:
            if identifier(listener) == name:
                return listener
        raise not_found("listener", name)


def identifier(listener: Listener) -> str:
    """Return the identifier as in EMQX 4.3: ``mqtt:tcp:default``."""
    return f"{listener.kind.protocol}:{listener.name}"
