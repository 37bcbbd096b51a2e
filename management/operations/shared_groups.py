"""Shared groups: the shared subscriptions, their members, and the numbers of messages that these received."""

from collections.abc import Iterator
from typing import Final

import msgspec

from taipan.broker.mqtt.topics import QUEUE_PREFIX
from taipan.broker.routing.shared import SharedGroup
from taipan.broker.routing.strategy import STRATEGIES
from taipan.broker.server import Server
from taipan.broker.session.subscription import Subscription

from .listing import FILTERED, PAUSE_EVERY, Listing, PageQuery, searched
from .node_calls import NodeCalls
from .node_listing import ListingPiece, Page, listing_of, piece_of

_NAMES: Final = {number: name for name, number in STRATEGIES.items()}


class SharedGroupsQuery(PageQuery, kw_only=True):
    """``topic``: the whole filter of the subscription (``$share/g/a/#``). ``share``: the group. Both must match
    exactly."""

    topic: str | None = None
    share: str | None = None


class SharedMembersQuery(PageQuery, kw_only=True):
    """``topic``: the whole filter."""

    topic: str


class SharedGroupRecord(msgspec.Struct):
    """One shared subscription at one node: its members there, how many of them are ``connected``, and the messages that
    they received since they became members or since the node started."""

    node: str
    topic: str
    share: str
    strategy: str
    members: int
    connected: int
    delivered: int


class SharedMemberRecord(msgspec.Struct):
    """``delivered``: messages that this member received since it became one or since the node started."""

    node: str
    clientid: str
    connected: bool
    qos: int
    delivered: int


class SharedGroups:
    """The shared subscriptions of all nodes. Each node has its own members."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        self.members = SharedMembers(server, calls)
        calls.serve(self.count, self.piece)

    async def search(self, query: SharedGroupsQuery, max_rows: int) -> Page[SharedGroupRecord]:
        """Return one page; on each node in the order in which the groups were created."""
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows))

    def count(self, query: SharedGroupsQuery) -> int:
        """Count the groups of this node."""
        return FILTERED if query.topic is not None or query.share is not None else len(self._groups())

    async def piece(self, query: SharedGroupsQuery, skip: int, limit: int) -> ListingPiece[SharedGroupRecord]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: SharedGroupsQuery, skip: int, limit: int) -> Listing[SharedGroupRecord]:
        """Return the matching groups of this node without the first ``skip``."""
        groups = self._groups()
        if query.topic is None and query.share is None:
            return Listing(groups, 1, limit, self._record, len(groups), skip)

        def matches(group: SharedGroup) -> bool:
            return query.topic in (None, written(group)) and query.share in (None, group.name)

        matching = searched(groups, matches)
        return Listing(matching, 1, limit, self._record, FILTERED, skip)

    def _groups(self) -> list[SharedGroup]:
        return [group for group in self._server.broker.router.groups() if len(group)]

    def _record(self, group: SharedGroup) -> SharedGroupRecord:
        members = group.members()
        return SharedGroupRecord(
            self._calls.name,
            written(group),
            group.name,
            _NAMES[group.strategy.kind],
            len(members),
            sum(each.session.connected for each in members),
            sum(group.delivered_to(each.session) for each in members),
        )


class SharedMembers:
    """The members of one shared subscription, on all nodes."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.count, self.piece)

    async def search(self, query: SharedMembersQuery, max_rows: int) -> Page[SharedMemberRecord]:
        """Return one page of members, or an empty one if the group does not exist."""
        return await listing_of(self._calls, self, query, query.page, query.rows(max_rows))

    def count(self, query: SharedMembersQuery) -> int:
        """Count the members of this node."""
        group = self._group(query.topic)
        return 0 if group is None else len(group)

    async def piece(self, query: SharedMembersQuery, skip: int, limit: int) -> ListingPiece[SharedMemberRecord]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: SharedMembersQuery, skip: int, limit: int) -> Listing[SharedMemberRecord]:
        """Return the members of this node without the first ``skip``."""
        group = self._group(query.topic)
        if group is None:
            return Listing([], 1, limit, self._record, 0)
        found = ((group, each) for each in group.members()[skip:])
        return Listing(_with_pauses(found), 1, limit, self._record, len(group), offset=0)

    def _group(self, topic: str) -> SharedGroup | None:
        router = self._server.broker.router
        return next((group for group in router.groups_of(_topic_filter(topic)) if written(group) == topic), None)

    def _record(self, found: tuple[SharedGroup, Subscription]) -> SharedMemberRecord:
        group, member = found
        session = member.session
        return SharedMemberRecord(
            self._calls.name, session.client_id, session.connected, member.qos, group.delivered_to(session)
        )


def written(group: SharedGroup) -> str:
    """Return the whole filter, in the form of the API."""
    return written_filter(group.filter)


def written_filter(filter: str) -> str:
    """Return the whole filter of a shared subscription in the form of the API."""
    return "$share/" + filter if filter.startswith(QUEUE_PREFIX) else filter


def _topic_filter(topic: str) -> str:
    """Return the filter without ``$share/<group>/``."""
    return topic.split("/", 2)[2] if topic.startswith("$share/") and topic.count("/") > 1 else topic


def _with_pauses(
    found: Iterator[tuple[SharedGroup, Subscription]],
) -> Iterator[tuple[SharedGroup, Subscription] | None]:
    for looked, each in enumerate(found, 1):
        yield each
        if looked % PAUSE_EVERY == 0:
            yield None
