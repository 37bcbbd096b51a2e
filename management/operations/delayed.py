"""Delayed messages: those that wait on all nodes, and their deletion."""

import base64
import heapq
import secrets
from collections.abc import Iterator
from typing import Final

import msgspec

from taipan.broker.extensions.delayed import DelayedMessage
from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.mqtt.topics import matches
from taipan.broker.server import Server

from .durable_answer import check_store_writable, wait_until_stored
from .listing import PageQuery
from .node_calls import Gathered, NodeCalls
from .node_listing import SortedListing
from .refusal import not_found, wrong
from .times import local_text
from .topic_checks import checked_filter

MAX_ROWS: Final = 10_000
"""The last row of the listing: conditions find the others."""


class DelayedQuery(PageQuery, kw_only=True):
    """``match_topic``: a Topic Filter that matches the topic of the message. ``clientid``: that of its publisher."""

    match_topic: str | None = msgspec.field(default=None, name="_match_topic")
    client_id: str | None = msgspec.field(default=None, name="clientid")


class DelayedRecord(msgspec.Struct):
    """A message that waits. ``id``: valid until the node stops. ``remaining``: seconds until it is published at
    ``expected_at``. ``from_clientid``: null for the node itself."""

    id: str
    node: str
    topic: str
    qos: int
    retain: bool
    payload_size: int
    publish_at: str
    expected_at: str
    remaining: int
    from_clientid: str | None
    from_username: str | None


class DelayedContent(DelayedRecord):
    """A message that waits, with its payload. ``encoding``: plain, or base64 if the payload is not UTF-8."""

    payload: str
    encoding: str


class DelayedMessageList:
    """The messages that wait on this node, and the listing of all nodes."""

    def __init__(self, server: Server, calls: NodeCalls) -> None:
        self._server = server
        self._calls = calls
        # Numbers begin again with each process: an identifier of an earlier one must not name another message.
        self._process = secrets.token_hex(4)
        calls.serve(self.first_here, self.get_here, self.delete_here)

    async def listing(self, query: DelayedQuery, max_rows: int) -> SortedListing[DelayedRecord]:
        """Return one page of the messages on all nodes, the first to be published first. Raises Refusal."""
        if query.match_topic is not None:
            checked_filter("_match_topic", query.match_topic)
        limit = query.rows(max_rows)
        start = (max(query.page, 1) - 1) * limit
        if start + limit > MAX_ROWS:
            raise wrong("_page", f"the listing ends at row {MAX_ROWS}: use conditions")
        first: Gathered[list[DelayedRecord]] = await self._calls.everywhere(self.first_here, query, start + limit + 1)
        rows = [row for _, of_node in first.found for row in of_node]
        rows.sort(key=lambda row: row.remaining)
        page = rows[start : start + limit]
        more = len(rows) > start + limit
        return SortedListing(page, query.page, limit, -1, more, self._calls.may_lack(first.missing))

    async def first_here(self, query: DelayedQuery, wanted: int) -> list[DelayedRecord]:
        """Return the matching messages of this node that are published first."""
        first: list[tuple[float, int]] = []  # a heap of the negated dates: the last one is at its top
        work = CooperativeSlice()
        waiting = self._server.delayed.waiting
        for key in list(waiting):
            await work.checkpoint()
            held = waiting.get(key)
            if held is None or not _is_wanted(held, query):
                continue
            if len(first) < wanted:
                heapq.heappush(first, (-held.date, -key))
            else:
                heapq.heappushpop(first, (-held.date, -key))
        return list(self._records(sorted(first, reverse=True)))

    def get_here(self, name: str) -> DelayedContent:
        """Return one message of this node with its payload. Raises Refusal."""
        key = self._key(name)
        held = self._server.delayed.waiting[key]
        try:
            payload, encoding = held.message.payload.decode(), "plain"
        except UnicodeDecodeError:
            payload, encoding = base64.b64encode(held.message.payload).decode(), "base64"
        return DelayedContent(**msgspec.structs.asdict(self._record(key, held)), payload=payload, encoding=encoding)

    async def delete_here(self, name: str) -> bool:
        """Delete one message of this node; return whether it still waited. On return it is deleted from the disk.
        Raises Refusal."""
        key = self._key(name)
        check_store_writable(self._server.tables)
        deleted = self._server.delayed.delete(key)
        await wait_until_stored(self._server.tables)
        return deleted

    def _records(self, first: list[tuple[float, int]]) -> Iterator[DelayedRecord]:
        for _, key in first:
            held = self._server.delayed.waiting.get(-key)
            if held is not None:
                yield self._record(-key, held)

    def _record(self, key: int, held: DelayedMessage) -> DelayedRecord:
        message, clock = held.message, self._server.clock
        publisher = message.publisher
        return DelayedRecord(
            f"{self._process}-{key}",
            self._server.settings.node.name,
            message.topic,
            message.qos,
            message.retain,
            message.payload_size,
            local_text(message.timestamp + clock.skew),
            local_text(held.date),
            max(0, round(held.date - clock.wall())),
            None if publisher is None else publisher.client_id,
            None if publisher is None else publisher.username,
        )

    def _key(self, name: str) -> int:
        process, _, number = name.partition("-")
        key = int(number) if number.isascii() and number.isdigit() and len(number) < 20 else 0
        if process != self._process or key not in self._server.delayed.waiting:
            raise not_found("delayed message", name)
        return key


def _is_wanted(held: DelayedMessage, query: DelayedQuery) -> bool:
    message = held.message
    if query.client_id is not None and (message.publisher is None or message.publisher.client_id != query.client_id):
        return False
    return query.match_topic is None or matches(query.match_topic, message.topic)
