"""Routes: which topic filters have subscribers on which node."""

from collections.abc import Iterator

import msgspec

from taipan.broker.mqtt.topics import parse_shared
from taipan.broker.server import Server
from taipan.broker.session.session import Session

from .listing import PAUSE_EVERY, Listing, offset_of


class RouteRecord(msgspec.Struct):
    """Specification, Route record."""

    topic: str
    node: str


class Routes:
    """A route for every filter with a subscription, and one for each group of a shared subscription."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def listing(self, page: int, limit: int) -> Listing[RouteRecord]:
        """One page of all, in the order in which the sessions were made that came first to them."""
        broker = self._server.broker
        items = _filters(list(broker.sessions), offset_of(page, limit))
        return Listing(items, page, limit, self.record, broker.router.route_count(), offset=0)

    def lookup(self, topic: str) -> list[RouteRecord]:
        """The routes of just this filter (not: matching it), without ``$share/...``."""
        router = self._server.broker.router
        return [self._record(topic)] * (router.has(topic) + len(router.groups_of(topic)))

    def record(self, filter: str) -> RouteRecord:
        """The route record (specification): the filter without ``$share/...``."""
        return self._record(parse_shared(filter)[1])

    def _record(self, topic: str) -> RouteRecord:
        return RouteRecord(topic, self._server.broker.node)


def _filters(sessions: list[Session], skip: int) -> Iterator[str | None]:
    """Each filter once, without the first ``skip``."""
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
