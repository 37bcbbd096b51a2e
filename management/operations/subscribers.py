"""Subscribers: the clients that receive a message to a topic, with their filters; of shared subscriptions, all
members."""

from collections.abc import Iterator
from typing import Final

import msgspec

from taipan.broker.routing.shared import SharedGroup
from taipan.broker.routing.strategy import STRATEGIES
from taipan.broker.server import Server
from taipan.broker.session.subscription import Subscription

from .listing import PAUSE_EVERY, Listing, PageQuery
from .node_calls import NodeCalls
from .node_listing import ListingPiece, Page, listing_of, piece_of
from .topic_checks import checked_name

_NAMES: Final = {number: name for name, number in STRATEGIES.items()}

_Found = tuple[Subscription, SharedGroup | None]


class SubscribersQuery(PageQuery, kw_only=True):
    """``topic``: a Topic Name."""

    topic: str


class SubscriberRecord(msgspec.Struct):
    """A client that receives the message; with ``share``, one of the members of a group of which one receives it.
    ``topics``: the filters that match. ``strategy``: how a member is selected; ``delivered``: messages that this member
    received since the node started or since it subscribed; both null without ``share``."""

    node: str
    clientid: str
    connected: bool
    topics: list[str]
    qos: int
    share: str | None
    strategy: str | None
    delivered: int | None


class Subscribers:
    """The subscribers of all nodes."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.count, self.piece)

    async def search(self, query: SubscribersQuery, max_rows: int) -> Page[SubscriberRecord]:
        """Return one page; on each node, members of shared subscriptions come last. Raises Refusal."""
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows))

    def count(self, query: SubscribersQuery) -> int:
        """Count the subscribers of this node. Raises Refusal."""
        route = self._server.broker.router.match(checked_name("topic", query.topic))
        return len(route.targets) + sum(len(group) for group in route.groups)

    async def piece(self, query: SubscribersQuery, skip: int, limit: int) -> ListingPiece[SubscriberRecord]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: SubscribersQuery, skip: int, limit: int) -> Listing[SubscriberRecord]:
        """Return the subscribers of this node without the first ``skip``."""
        count = self.count(query)
        return Listing(self._found(query.topic), 1, limit, self._record, count, offset=skip)

    def _found(self, topic: str) -> Iterator[_Found | None]:
        route = self._server.broker.router.match(topic)
        for looked, each in enumerate(route.targets, 1):
            yield each, None
            if looked % PAUSE_EVERY == 0:
                yield None
        for group in route.groups:
            for looked, each in enumerate(group.members(), 1):
                yield each, group
                if looked % PAUSE_EVERY == 0:
                    yield None

    def _record(self, found: _Found) -> SubscriberRecord:
        subscription, group = found
        session = subscription.session
        return SubscriberRecord(
            self._calls.name,
            session.client_id,
            session.connected,
            [each.filter for each in subscription.parts] or [subscription.filter],
            subscription.qos,
            None if group is None else group.name,
            None if group is None else _NAMES[group.strategy.kind],
            None if group is None else group.delivered_to(session),
        )
