"""KnownRoutes: the routes of other nodes in a file, for a start while NATS is unreachable.

Without them, messages published at that time would have no subscribers on other nodes, and would still be acknowledged.
The file is written some seconds after a change, so it is approximate; the bucket corrects it as soon as it can be
read."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from ...session.subscription import Subscription
from ..context import ClusterContext
from ..members.members import Members
from ..wire import UNREADABLE, NodeRoute, node_key
from .link import Links
from .routes import ClusterRoutes

logger = logging.getLogger(__name__)

FILE: Final = "cluster-routes"
SAVE_EVERY: Final = 5.0
_FORM: Final = 1


class Saved(msgspec.Struct, array_like=True, frozen=True):
    """The content of the file: its format, the name of the cluster, and for each node the filters with subscribers
    there."""

    form: int
    cluster: str
    nodes: dict[str, list[NodeRoute]]


class KnownRoutes:
    """The routes in the file. ``file`` is ``None`` if this node keeps no data after the process ends."""

    def __init__(
        self, context: ClusterContext, membership: Members, routes: ClusterRoutes, links: Links, directory: Path | None
    ) -> None:
        self._context = context
        self._membership = membership
        self._routes = routes
        self._links = links
        self.file = None if directory is None else directory / FILE
        self._saved = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Apply the known routes, after the sessions of links have been recovered."""
        if self.file is None:
            return
        for node, records in self._load().items():
            session = self._links.recovered(node)
            if session is not None:
                self._routes.attach(node_key(node), Subscription(session, "#", 1, retain_as_published=True))
                self._routes.restore(node_key(node), records)
        self._saved = self._routes.changes
        self._look_later()

    def _load(self) -> dict[str, list[NodeRoute]]:
        assert self.file is not None
        try:
            saved = msgspec.msgpack.decode(self.file.read_bytes(), type=Saved)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            logger.warning("cluster_routes_not_loaded file=%s error=%s", self.file, error)
            return {}
        return saved.nodes if saved.form == _FORM and saved.cluster == self._context.name else {}

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SAVE_EVERY, self._look)

    def _look(self) -> None:
        data = self._changed() if self._writing is None or self._writing.done() else None
        if data is not None:
            self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._write, data))
        self._look_later()

    def _changed(self) -> bytes | None:
        """Return the new contents of the file, or ``None`` if they have not changed or the nodes are not known yet."""
        if self._saved == self._routes.changes or not self._membership.known:
            return None
        self._saved = self._routes.changes
        names = {peer.key: peer.name for peer in self._membership.peers.values()}
        nodes = {names[key]: records for key, records in self._routes.known() if key in names}
        return msgspec.msgpack.encode(Saved(_FORM, self._context.name, nodes))

    def _write(self, data: bytes) -> None:
        assert self.file is not None
        fresh = self.file.with_suffix(".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(self.file)
        except OSError as error:
            self._saved = -1  # the next attempt follows
            logger.warning("cluster_routes_not_saved file=%s error=%s setting=node.data_dir", self.file, error)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        if self.file is not None:
            data = self._changed()
            if data is not None:
                self._write(data)
