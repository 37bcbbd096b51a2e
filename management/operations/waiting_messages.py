"""Waiting messages: the messages that a session has queued for its client, and those in flight."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Literal

import msgspec

from taipan.broker.mqtt.message import Delivery
from taipan.broker.server import Server
from taipan.broker.session.session import Session

from .listing import Listing, PageQuery, offset_of
from .node_calls import NodeCalls
from .node_listing import ListingPiece, Page, listing_of, piece_of
from .owners import Owners, may_have
from .refusal import NOT_ONLINE, Refusal, wrong
from .times import local_text

MAX_ROWS = 100_000
"""Maximum number of messages of a queue that can be listed."""

State = Literal["queued", "sent", "released"]


class WaitingMessage(msgspec.Struct):
    """One message, without its payload. ``state``: ``queued``; ``sent`` and not acknowledged; or ``released``: PUBREL
    was sent, and the message is no longer stored. ``packet_id``: identifier of a sent message. ``age``: seconds since
    publication. ``share``: the shared subscription of the message, or empty. ``payload_size``: approximate if the
    message is only on disk (``on_disk``)."""

    node: str
    state: State
    packet_id: int | None = None
    topic: str | None = None
    qos: int | None = None
    retain: bool | None = None
    publish_at: str | None = None
    age: float | None = None
    expires_at: str | None = None
    payload_size: int | None = None
    on_disk: bool | None = None
    share: str = ""
    from_clientid: str | None = None
    from_username: str | None = None


class WaitingQuery(PageQuery, kw_only=True):
    """The client and the requested part of its messages; not in the query string of a request."""

    clientid: str
    queue: bool


class WaitingMessages:
    """The waiting messages, requested from the node that has the session."""

    def __init__(self, server: Server, calls: NodeCalls, owners: Owners) -> None:
        self._server = server
        self._calls = calls
        self._owners = owners
        calls.serve(self.count, self.piece)

    async def of(self, client_id: str, queue: bool, query: PageQuery, max_rows: int) -> Page[WaitingMessage]:
        """Return one page, in the order in which the messages are or were sent. Raises Refusal."""
        limit = query.rows(max_rows)
        if offset_of(query.page, limit) + limit > MAX_ROWS:
            raise wrong("_page", f"beyond message {MAX_ROWS}")
        found = await self._owners.find([client_id])
        node = found.nodes.get(client_id)
        if node is None:
            raise may_have(found.missing[0], client_id) if found.missing else _unknown(client_id)
        asked = WaitingQuery(clientid=client_id, queue=queue, page=query.page, limit=query.limit)
        return await listing_of(self._calls, self, asked, query.page, limit, node)

    def count(self, query: WaitingQuery) -> int:
        """Count the messages of this node; 0 if the session has moved since it was found here."""
        session = self._server.broker.sessions.get(query.clientid)
        if session is None:
            return 0
        return session.queued if query.queue else len(session.inflight)

    async def piece(self, query: WaitingQuery, skip: int, limit: int) -> ListingPiece[WaitingMessage]:
        return await piece_of(self.cut(query, skip, limit))

    def cut(self, query: WaitingQuery, skip: int, limit: int) -> Listing[WaitingMessage]:
        """Return the messages of this node without the first ``skip``: a copy, because the next acknowledgement changes
        them."""
        session = self._server.broker.sessions.get(query.clientid)
        if session is None:
            raise _unknown(query.clientid)
        rows = _rows(session, query.queue)
        some = list(islice(rows, min(skip, MAX_ROWS), min(skip, MAX_ROWS) + limit + 1))
        return Listing(some, 1, limit, self._record(query.queue), self.count(query), offset=0)

    def _record(self, queue: bool) -> Callable[[tuple[int | None, Delivery | None]], WaitingMessage]:
        clock, node = self._server.clock, self._calls.name
        now, skew = clock.now(), clock.skew

        def record(row: tuple[int | None, Delivery | None]) -> WaitingMessage:
            packet_id, delivery = row
            if delivery is None:
                return WaitingMessage(node, "released", packet_id)
            message = delivery.message
            publisher, expires_at = message.publisher, message.expires_at
            return WaitingMessage(
                node,
                "queued" if queue else "sent",
                packet_id,
                message.topic,
                delivery.qos,
                delivery.retain,
                local_text(message.timestamp + skew),
                round(max(0.0, now - message.timestamp), 3),
                None if expires_at is None else local_text(expires_at + skew),
                message.payload_size,
                message.paged,
                delivery.group,
                None if publisher is None else publisher.client_id,
                None if publisher is None else publisher.username,
            )

        return record


def _unknown(client_id: str) -> Refusal:
    return Refusal(NOT_ONLINE, f"no client {client_id[:256]}")


def _rows(session: Session, queue: bool) -> Iterator[tuple[int | None, Delivery | None]]:
    if not queue:
        yield from session.inflight.items()
        return
    waiting: Iterable[Delivery] = session.queue or ()
    for delivery in waiting:
        yield None, delivery
