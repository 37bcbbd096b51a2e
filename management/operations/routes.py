"""Routes: which topic filters have subscribers on which node."""

from collections.abc import Iterator

import msgspec

from taipan.broker.mqtt.topics import parse_shared
from taipan.broker.server import Server
from taipan.broker.session.session import Session

from .listing import PAUSE_EVERY, Listing, PageQuery
from .node_calls import NodeCalls
from .node_listing import ListingPiece, Page, listing_of, piece_of


class RouteRecord(msgspec.Struct):
    """Specification, Route record."""

    topic: str
    node: str


class Routes:
    """A route for every filter with a subscription, and one for each group of a shared subscription."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.count, self.piece, self.lookup)

    async def search(self, query: PageQuery, max_rows: int) -> Page[RouteRecord]:
        """Return one page of all routes; on each node in the order in which the sessions were created that first had
        them."""
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows))

    async def find(self, topic: str) -> tuple[list[RouteRecord], list[str]]:
        """Return the routes of exactly this filter (not of matching ones), without ``$share/...``; and the nodes that
        did not answer."""
        found, missing = await self._calls.everywhere(self.lookup, topic)
        return [route for _, routes in found for route in routes], self._calls.may_lack(missing)

    def count(self, query: PageQuery) -> int:
        """Count the routes of this node."""
        return self._server.broker.router.route_count()

    async def piece(self, query: PageQuery, skip: int, limit: int) -> ListingPiece[RouteRecord]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: PageQuery, skip: int, limit: int) -> Listing[RouteRecord]:
        """Return the routes of this node without the first ``skip``."""
        items = _filters(list(self._server.broker.sessions), skip)
        return Listing(items, 1, limit, self.record, self.count(query), offset=0)

    def lookup(self, topic: str) -> list[RouteRecord]:
        """Return the routes of this node with exactly this filter."""
        router = self._server.broker.router
        return [self._record(topic)] * (router.has(topic) + len(router.groups_of(topic)))

    def record(self, filter: str) -> RouteRecord:
        """The route record (specification): the filter without ``$share/...``."""
        return self._record(parse_shared(filter)[1])

    def _record(self, topic: str) -> RouteRecord:
        return RouteRecord(topic, self._server.broker.node)


def _filters(sessions: list[Session], skip: int) -> Iterator[str | None]:
    """Yield each filter once, without the first ``skip``."""
    seen: set[str] = set()
    for place, session in enumerate(sessions, 1):
        held = session.subscriptions
        if len(held) <= skip:
            before = len(seen)
            seen.update(held)
            skip -= len(seen) - before
        else:
            fresh = [filter for filter in held if filter not in seen]
            seen.update(fresh)
            yield from fresh[skip:]
            skip = max(0, skip - len(fresh))
        if place % PAUSE_EVERY == 0:
            yield None
