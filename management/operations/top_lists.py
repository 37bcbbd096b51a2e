"""Top lists: which clients, topics and shared groups are behind the node's figures, over all nodes."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from taipan.broker.client_sweep import MEASURES
from taipan.broker.observability.top.recent_troubles import MAX_NAME
from taipan.broker.observability.top.topic_sample import MAX_TOPIC
from taipan.broker.server import Server

from .node_calls import NodeCalls
from .reasons import advice_of, text_of
from .shared_groups import written_filter
from .times import local_text

DROPPED: Final = "delivery_dropped"
_SHOWN: Final = 20
_OF_A_NODE: Final = 256
"""Maximum rows that a node answers with."""
_MARKED: Final = frozenset({"revoked", "memory", "unreadable"})
"""Reasons of drops whose counters begin with ``delivery_`` instead of ``delivery.dropped.``."""

Row = TypeVar("Row")
Most = Annotated[int, Meta(ge=1, le=100)]


class TopQuery(msgspec.Struct, kw_only=True):
    """``limit``: number of rows."""

    limit: Most = msgspec.field(default=_SHOWN, name="_limit")


class TopClientsQuery(TopQuery, kw_only=True):
    """``sort``: messages or bytes that the clients send (``in``), receive (``out``), or both (``messages``)."""

    sort: Literal["messages", "in", "out", "in_oct", "out_oct"] = msgspec.field(default="messages", name="_sort")


class TopTopicsQuery(TopQuery, kw_only=True):
    """``sort``: by messages or by bytes."""

    sort: Literal["in", "in_oct"] = msgspec.field(default="in", name="_sort")


class TopTroublesQuery(TopQuery, kw_only=True):
    """``reason``: only this one, by its name in the log or the name of its counter. ``clientid``: only this client."""

    reason: str | None = None
    clientid: str | None = None


class TopGroupsQuery(TopQuery, kw_only=True):
    """``sort``: by messages per second, or by messages lost in the last ten minutes."""

    sort: Literal["out", "dropped"] = msgspec.field(default="out", name="_sort")


class TopClientRecord(msgspec.Struct, kw_only=True):
    """Messages and bytes per second that a connected client sends (``in``) and receives (``out``)."""

    clientid: str
    username: str | None
    in_: float = msgspec.field(name="in")
    out: float
    in_oct: float
    out_oct: float
    node: str


class TopTopicRecord(msgspec.Struct, kw_only=True):
    """Messages and bytes per second that clients publish to a topic. ``counts``: messages of the last six periods of
    ten seconds, the current one last. ``from_clientid``: a recent publisher. ``topic_cut``: the topic is longer."""

    topic: str
    topic_cut: bool
    in_: float = msgspec.field(name="in")
    in_oct: float
    counts: list[int]
    from_clientid: str


class TroubleRecord(msgspec.Struct, kw_only=True):
    """A refusal or drop of one client. ``count``: in the last ten minutes; ``counts``: in each of them, the current one
    last. ``counter``: the name under which it is counted. ``topic``, ``peerhost``, ``last_at``: of the latest one."""

    clientid: str
    clientid_cut: bool
    event: str
    reason: str
    counter: str
    setting: str
    text: str
    advice: str
    count: int
    counts: list[int]
    topic: str
    peerhost: str
    last_at: str
    node: str


class TopGroupRecord(msgspec.Struct, kw_only=True):
    """A shared subscription of all nodes: messages per second that its members receive, and messages that they lost in
    the last ten minutes."""

    topic: str
    members: int
    out: float
    dropped: int


class TopLists:
    """The top lists of all nodes. Each node keeps its own in memory; they begin when it starts."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        calls.serve(self.clients_here, self.topics_here, self.troubles_here, self.groups_here)

    async def clients(self, query: TopClientsQuery) -> tuple[list[TopClientRecord], list[str]]:
        """Return the clients with the highest rates, and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.clients_here, query)
        value: Callable[[TopClientRecord], float] = {
            "in": lambda row: row.in_,
            "out": lambda row: row.out,
            "in_oct": lambda row: row.in_oct,
            "out_oct": lambda row: row.out_oct,
            "messages": lambda row: row.in_ + row.out,
        }[query.sort]
        return self._first(found, missing, lambda row: (-value(row), row.clientid), query.limit)

    def clients_here(self, query: TopClientsQuery) -> list[TopClientRecord]:
        """Return the clients of this node with the highest rates."""
        rows = self._server.client_sweep.clients.rows(MEASURES.index(query.sort))
        return [
            TopClientRecord(
                clientid=row.client_id, username=row.username, in_=round(row.messages_in, 2),
                out=round(row.messages_out, 2), in_oct=round(row.bytes_in, 1), out_oct=round(row.bytes_out, 1),
                node=self._calls.name,
            )
            for row in rows[: query.limit]
        ]  # fmt: skip

    async def topics(self, query: TopTopicsQuery) -> tuple[list[TopTopicRecord], list[str]]:
        """Return the topics with most messages or bytes, and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.topics_here)
        topics: dict[str, TopTopicRecord] = {}
        for _, rows in found:
            for row in rows:
                known = topics.get(row.topic)
                if known is None:
                    topics[row.topic] = row
                else:
                    known.in_ = round(known.in_ + row.in_, 2)
                    known.in_oct = round(known.in_oct + row.in_oct, 1)
                    known.counts = [mine + other for mine, other in zip(known.counts, row.counts, strict=False)]
        by_bytes = query.sort == "in_oct"
        joined = sorted(topics.values(), key=lambda row: (-(row.in_oct if by_bytes else row.in_), row.topic))
        return joined[: query.limit], self._calls.may_lack(missing)

    def topics_here(self) -> list[TopTopicRecord]:
        """Return the topics of this node with most messages, and those with most bytes."""
        sample, now = self._server.broker.topic_sample, self._server.clock.now()
        octets = {row.key: row for row in sample.octets.recent(now)}
        messages = {row.key: row for row in sample.messages.recent(now)}
        seconds = max(1.0, sample.messages.covered(now))
        names = dict.fromkeys([*list(messages)[:_OF_A_NODE], *list(octets)[:_OF_A_NODE]])
        found: list[TopTopicRecord] = []
        for topic in names:
            counted, size = messages.get(topic), octets.get(topic)
            found.append(
                TopTopicRecord(
                    topic=topic,
                    topic_cut=len(topic) == MAX_TOPIC,
                    in_=0.0 if counted is None else round(counted.total / seconds, 2),
                    in_oct=0.0 if size is None else round(size.total / seconds, 1),
                    counts=[0] * sample.messages.periods if counted is None else counted.counts,
                    from_clientid="" if counted is None else str(counted.note[0]) if counted.note else "",
                )
            )
        return found

    async def refused(self, query: TopTroublesQuery) -> tuple[list[TroubleRecord], list[str]]:
        """Return the clients that are refused most, and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.troubles_here, query, False)
        return self._first(found, missing, _most_troubled, query.limit)

    async def dropped(self, query: TopTroublesQuery) -> tuple[list[TroubleRecord], list[str]]:
        """Return the clients that lose most messages, and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.troubles_here, query, True)
        return self._first(found, missing, _most_troubled, query.limit)

    def troubles_here(self, query: TopTroublesQuery, dropped: bool) -> list[TroubleRecord]:
        """Return the clients of this node with most drops, or with most refusals."""
        found: list[TroubleRecord] = []
        for row in self._server.broker.throttled_log.troubles.clients.recent(self._server.clock.now()):
            event, client_id, reason, setting = row.key
            counter = counter_of(event, reason)
            if (
                (event == DROPPED) != dropped
                or query.reason not in (None, reason, counter)
                or query.clientid not in (None, client_id)
            ):
                continue
            at, topic, host = row.note or (0.0, "", "")
            found.append(
                TroubleRecord(
                    clientid=client_id, clientid_cut=len(client_id) == MAX_NAME, event=event, reason=reason,
                    counter=counter, setting=setting, text=text_of(event, reason, setting),
                    advice=advice_of(event, reason, setting), count=row.total, counts=row.counts, topic=str(topic),
                    peerhost=str(host), last_at=local_text(float(str(at)) + self._server.clock.skew),
                    node=self._calls.name,
                )
            )  # fmt: skip
            if len(found) == query.limit:
                break
        return found

    async def groups(self, query: TopGroupsQuery) -> tuple[list[TopGroupRecord], list[str]]:
        """Return the shared subscriptions with most messages or most drops, and the nodes that did not answer."""
        found, missing = await self._calls.everywhere(self.groups_here)
        groups: dict[str, TopGroupRecord] = {}
        for _, rows in found:
            for row in rows:
                known = groups.setdefault(row.topic, row)
                if known is not row:
                    known.members += row.members
                    known.out = round(known.out + row.out, 2)
                    known.dropped += row.dropped
        by_drops = query.sort == "dropped"
        joined = sorted(groups.values(), key=lambda row: (-(row.dropped if by_drops else row.out), row.topic))
        return joined[: query.limit], self._calls.may_lack(missing)

    def groups_here(self) -> list[TopGroupRecord]:
        """Return the shared subscriptions of this node that receive or lose messages."""
        found: dict[str, TopGroupRecord] = {}
        for row in self._server.client_sweep.groups.rows(0):
            found[row.filter] = TopGroupRecord(
                topic=written_filter(row.filter), members=row.members, out=round(row.messages_out, 2), dropped=0
            )
        for lost in self._server.broker.throttled_log.troubles.groups.recent(self._server.clock.now())[:_OF_A_NODE]:
            group = found.get(lost.key)
            if group is None:
                known = self._server.broker.router.group(lost.key)
                members = 0 if known is None else len(known)
                group = found[lost.key] = TopGroupRecord(
                    topic=written_filter(lost.key), members=members, out=0.0, dropped=0
                )
            group.dropped = lost.total
        return list(found.values())

    def _first(
        self, found: list[tuple[str, list[Row]]], missing: list[str], key: Callable[[Row], Any], limit: int
    ) -> tuple[list[Row], list[str]]:
        rows = sorted((row for _, rows in found for row in rows), key=key)
        return rows[:limit], self._calls.may_lack(missing)


def counter_of(event: str, reason: str) -> str:
    """Return the name of the counter that counts an event of the log with this reason."""
    if event == DROPPED:
        return ("delivery_" if reason in _MARKED else "delivery.dropped.") + reason
    return reason if event == "client_refused" else f"{event.removesuffix('_refused')}_{reason}"


def _most_troubled(row: TroubleRecord) -> tuple[int, str]:
    return -row.count, row.clientid
