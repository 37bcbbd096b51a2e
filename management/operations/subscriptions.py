"""The subscriptions of all clients, as records."""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from taipan.broker.mqtt.topics import QUEUE_PREFIX, matches
from taipan.broker.server import Server
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription

from .listing import EVERYTHING, FILTERED, PAUSE_EVERY, Listing, PageQuery, searched
from .node_calls import NodeCalls
from .node_listing import JoinedListing, ListingPiece, Page, listing_of, piece_of
from .owners import Owners
from .topic_checks import checked_filter

Matches = Callable[[Subscription], bool]


class SubscriptionRecord(msgspec.Struct):
    """Specification, Subscription record."""

    node: str
    clientid: str
    topic: str
    qos: Annotated[int, Meta(ge=0, le=2)]


class SubscriptionsQuery(PageQuery, kw_only=True):
    """Conditions of a search; all given conditions must hold.

    ``topic`` is compared with the subscribed filter, ``match_topic`` is a filter that must match the subscribed filter,
    taken as a topic name; both without ``$share/...``. ``share`` is the group; ``$queue`` is the group of
    ``$queue/...``."""

    clientid: str | None = None
    topic: str | None = None
    qos: Literal[0, 1, 2] | None = None
    share: str | None = None
    match_topic: str | None = msgspec.field(default=None, name="_match_topic")


class Subscriptions:
    """All subscriptions, including those of offline clients."""

    def __init__(self, server: Server, calls: NodeCalls, owners: Owners) -> None:
        self._server = server
        self._calls = calls
        self._owners = owners
        calls.serve(self.count, self.piece)

    async def search(
        self, query: SubscriptionsQuery, max_rows: int, node: str | None = None
    ) -> Page[SubscriptionRecord]:
        """Return one page of the matching subscriptions, session by session. Raises Refusal for an invalid
        ``match_topic``."""
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows), node)

    async def of_client(self, client_id: str, node: str | None = None) -> Page[SubscriptionRecord]:
        """Return all subscriptions of one client; with ``node``, those on that node."""
        query = SubscriptionsQuery(clientid=client_id)
        if node is None:
            found = await self._owners.find([client_id])
            node = found.nodes.get(client_id, self._calls.name)
            if client_id not in found.nodes and found.missing:
                missing = self._calls.may_lack(found.missing)
                return JoinedListing(self._calls, self, query, 1, EVERYTHING, [], missing, meta=False)
        return await listing_of(self._calls, self, query, 1, EVERYTHING, node, meta=False)

    def count(self, query: SubscriptionsQuery) -> int:
        """Count the subscriptions of this node. Raises Refusal for an invalid condition."""
        return FILTERED if list(_conditions(query)) else self._server.broker.router.subscription_count

    async def piece(self, query: SubscriptionsQuery, skip: int, limit: int) -> ListingPiece[SubscriptionRecord]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: SubscriptionsQuery, skip: int, limit: int) -> Listing[SubscriptionRecord]:
        """Return the matching subscriptions of this node without the first ``skip``."""
        conditions = list(_conditions(query))
        if not conditions:
            return self._all(skip, limit)
        sessions = self._server.broker.sessions
        if query.clientid is not None:
            only = sessions.get(query.clientid)
            candidates = [] if only is None else list(only.subscriptions.values())
        elif query.topic is not None:
            candidates = self._of_topic(query.topic)
        else:
            found = _found(list(sessions), _all_of(conditions))
            return Listing(found, 1, limit, self.record, FILTERED, skip)
        matching = searched(candidates, _all_of(conditions))
        return Listing(matching, 1, limit, self.record, FILTERED, skip)

    def record(self, subscription: Subscription) -> SubscriptionRecord:
        """Return the subscription record (specification)."""
        topic = subscription.filter
        if topic.startswith(QUEUE_PREFIX):
            topic = "$share/" + topic
        return SubscriptionRecord(self._server.broker.node, subscription.session.client_id, topic, subscription.qos)

    def _all(self, skip: int, limit: int) -> Listing[SubscriptionRecord]:
        items = _of_sessions(list(self._server.broker.sessions), skip)
        count = self._server.broker.router.subscription_count
        return Listing(items, 1, limit, self.record, count, offset=0)

    def _of_topic(self, topic: str) -> list[Subscription]:
        router = self._server.broker.router
        found = [] if topic.startswith("$share/") else router.subscriptions(topic)
        found = [each for each in found if each.group is None]
        for group in router.groups_of(topic):
            found.extend(group.members())
        return found


def _of_sessions(sessions: list[Session], skip: int) -> Iterator[Subscription | None]:
    """Yield all but the first ``skip`` subscriptions; sessions that are entirely before them are skipped quickly."""
    for start in range(0, len(sessions), PAUSE_EVERY):
        some = sessions[start : start + PAUSE_EVERY]
        counts = [len(session.subscriptions) for session in some]
        held = sum(counts)
        if held <= skip:
            skip -= held
        else:
            for session, count in zip(some, counts, strict=True):
                if count > skip:
                    yield from list(session.subscriptions.values())[skip:]
                    skip = 0
                else:
                    skip -= count
        yield None


def _found(sessions: list[Session], condition: Matches) -> Iterator[Subscription | None]:
    looked = 0
    for session in sessions:
        looked += 1
        if looked >= PAUSE_EVERY:
            looked = 0
            yield None
        for each in list(session.subscriptions.values()):
            looked += 1
            if looked >= PAUSE_EVERY:
                looked = 0
                yield None
            if condition(each):
                yield each


def _conditions(query: SubscriptionsQuery) -> Iterator[Matches]:
    wanted, topic, qos, share = query.clientid, query.topic, query.qos, query.share
    if wanted is not None:
        yield lambda each: each.session.client_id == wanted
    if topic is not None:
        yield lambda each: each.topic_filter == topic
    if qos is not None:
        yield lambda each: each.qos == qos
    if share is not None:
        yield lambda each: each.group == share
    pattern = query.match_topic
    if pattern is not None:
        checked_filter("_match_topic", pattern)
        yield lambda each: matches(pattern, each.topic_filter)


def _all_of(conditions: list[Matches]) -> Matches:
    if len(conditions) == 1:
        return conditions[0]
    return lambda each: all(condition(each) for condition in conditions)
