"""Routes: which topic filters have subscribers on which node."""

from broker.mqtt.topics import parse_shared
from broker.server import Server

from .listing import Listing, Row


class Routes:
    """A route for every filter that somebody has subscribed to, and one for each group of a shared subscription."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def listing(self, page: int, limit: int) -> Listing:
        """One page of all."""
        router = self._server.broker.router
        return Listing(router.filters(), page, limit, self.record, router.route_count())

    def lookup(self, topic: str) -> list[Row]:
        """The routes of just this filter (not: matching it), without ``$share/...``."""
        router = self._server.broker.router
        return [self._row(topic)] * (router.has(topic) + len(router.groups_of(topic)))

    def record(self, filter: str) -> Row:
        """The route record (specification): the filter without ``$share/...``."""
        return self._row(parse_shared(filter)[1])

    def _row(self, topic: str) -> Row:
        return {"topic": topic, "node": self._server.broker.node}
