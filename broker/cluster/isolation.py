"""Isolation: how a node treats clients while it has no connection to NATS, and thus to the other nodes
(``cluster.isolated``). This also applies after a start without NATS, until the routes are known."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

from ..channel.closing import disconnect
from ..core.outcome import Outcome
from ..mqtt import reason_codes
from .context import ClusterContext
from .links.routes import ClusterRoutes
from .members.members import Members

logger = logging.getLogger(__name__)

SERVE_LOCAL: Final = "serve_local"
CLOSE_ALL: Final = "close_all"
_SETTING: Final = "cluster.isolated"
_DETAIL: Final = "this node is without the other nodes of the cluster"
_ROUTES_UNKNOWN: Final = "this node does not know yet what the other nodes' clients are subscribed to"
_REPLACED: Final = "another node runs in place of this one, from a copy of its data"
_CLOSED_AT_ONCE: Final = 200


class Isolation:
    """``refusal`` is called for every CONNECT."""

    def __init__(self, context: ClusterContext, members: Members, routes: ClusterRoutes) -> None:
        self._context = context
        self._members = members
        self._routes = routes
        members.on_isolated.append(self._changed)

    def refusal(self) -> Awaitable[Outcome] | None:
        """Return why no client may connect now."""
        if self._members.replaced:
            return self._refuse(_REPLACED)
        if self._context.settings.isolated == SERVE_LOCAL:
            return None
        if self._members.isolated:
            return self._refuse(_DETAIL)
        if not self._members.left and not (self._routes.current and self._members.known):
            return self._refuse(_ROUTES_UNKNOWN)
        return None

    async def _refuse(self, detail: str) -> Outcome:
        return Outcome(reason_codes.SERVER_UNAVAILABLE, _SETTING, detail)

    def _changed(self) -> None:
        policy = self._context.settings.isolated
        if not self._members.isolated:
            logger.info("cluster_isolation_over")
            return
        logger.warning("cluster_isolated policy=%s setting=%s", policy, _SETTING)
        if policy == CLOSE_ALL:
            self._close_some()

    def replaced(self) -> None:
        """Close all connections, because another node has taken over this node's sessions."""
        self._close_some()

    def _close_some(self) -> None:
        """Close some connections at a time."""
        if not (self._members.isolated or self._members.replaced):
            return
        channels = self._context.channels.channels
        for channel in list(channels.values())[:_CLOSED_AT_ONCE]:
            code = reason_codes.USE_ANOTHER_SERVER  # SERVER_UNAVAILABLE is not a code of DISCONNECT
            disconnect(channel, code, _DETAIL, reason_codes.name(code), _SETTING)
        if channels:
            asyncio.get_running_loop().call_soon(self._close_some)
