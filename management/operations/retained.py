"""Retained messages: list, read, and delete by Topic Filter."""

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.topics import has_wildcard, matches
from taipan.broker.server import Server

from .backpressure_slice import BackpressureSlice
from .durable_answer import TROUBLE, wait_until_decided, wait_until_stored
from .listing import FILTERED, Listing, PageQuery, offset_of
from .refusal import RPC_ERROR, Refusal, not_found
from .times import local_text
from .topic_checks import checked_filter, checked_name

_STEPS: Final = 2000
"""Number of steps of a walk between two pauses."""


class RetainedQuery(PageQuery, kw_only=True):
    """``topic``: exact. ``_match_topic``: a Topic Filter. Both apply."""

    topic: str | None = None
    match_topic: str | None = msgspec.field(default=None, name="_match_topic")


class RetainedRecord(msgspec.Struct):
    """One retained message. ``expires_at``: null if it never expires; ``from_clientid``: null for the node itself."""

    node: str
    topic: str
    qos: int
    payload_size: int
    publish_at: str
    expires_at: str | None
    from_clientid: str | None
    from_username: str | None


class RetainedMessage(RetainedRecord):
    """A retained message with its payload. ``encoding``: the encoding of ``payload``: plain, or base64 if it is not
    UTF-8."""

    payload: str
    encoding: str
    properties: dict[str, Any]


class _Page(Listing[RetainedRecord]):
    """One page of topics; messages that were deleted since are left out."""

    def __init__(self, retained: "Retained", topics: list[str], page: int, limit: int) -> None:
        super().__init__((), page, limit, retained.record, len(topics))
        skip = offset_of(page, limit)
        self._topics = topics[skip : skip + limit]
        self._more = len(topics) > skip + limit
        self._retained = retained

    def __iter__(self) -> Iterator[RetainedRecord | None]:
        for topic in self._topics:
            message = self._retained.find(topic)
            yield None if message is None else self._retained.record(message)
        self.has_next = self._more


class Retained:
    """The retained messages of the node. An expired message is treated as absent, even before it is removed."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def find(self, topic: str) -> Message | None:
        store = self._server.broker.retained
        message = store.get(topic)
        return None if message is None or store.expired(message, self._server.clock.now()) else message

    def search(self, query: RetainedQuery, max_rows: int) -> Listing[RetainedRecord]:
        """Return the messages in the order in which their topics were first retained."""
        page, limit = query.page, query.rows(max_rows)
        topic, match_topic = query.topic, query.match_topic
        if topic is None and match_topic is None:
            return _Page(self, list(self._server.broker.retained.topics()), page, limit)
        filter = checked_filter("_match_topic", match_topic) if match_topic is not None else None
        return Listing(self._matching(topic, filter), page, limit, self.record, FILTERED)

    def _matching(self, topic: str | None, filter: str | None) -> Iterator[Message | None]:
        if topic is not None:
            message = self.find(topic)
            if message is not None and (filter is None or matches(filter, topic)):
                yield message
            return
        assert filter is not None
        for found in self._server.broker.retained.walk(filter, _STEPS):
            yield self.find(found) if found else None

    def record(self, message: Message) -> RetainedRecord:
        """Return the record of a message without the payload."""
        publisher = message.publisher
        deadline = self._server.broker.retained.deadline(message)
        skew = self._server.clock.skew
        return RetainedRecord(
            self._server.settings.node.name,
            message.topic,
            message.qos,
            message.payload_size,
            local_text(message.timestamp + skew),
            None if deadline is None else local_text(deadline + skew),
            None if publisher is None else publisher.client_id,
            None if publisher is None else publisher.username,
        )

    def get(self, topic: str) -> RetainedMessage:
        """Return the record of one message, with payload and properties. Raises Refusal."""
        message = self.find(checked_name("topic", topic))
        if message is None:
            raise not_found("retained message of topic", topic)
        try:
            payload, encoding = message.payload.decode(), "plain"
        except UnicodeDecodeError:
            payload, encoding = base64.b64encode(message.payload).decode(), "base64"
        record = msgspec.structs.asdict(self.record(message))
        return RetainedMessage(**record, payload=payload, encoding=encoding, properties=_properties(message))

    async def count(self, filter: str) -> int:
        """Count the messages that ``delete`` would delete. Raises Refusal."""
        checked_filter("filter", filter)
        work = CooperativeSlice()
        count = 0
        for topic in self._server.broker.retained.walk(filter, _STEPS):
            count += bool(topic) and self.find(topic) is not None
            await work.checkpoint()
        return count

    async def delete(self, filter: str) -> int:
        """Delete the messages of all matching topics, on disk as well; return how many there were. Raises Refusal."""
        checked_filter("filter", filter)
        broker = self._server.broker
        durability = broker.durability
        if durability is not None and durability.commit.trouble is not None:
            raise Refusal(RPC_ERROR, TROUBLE)
        if broker.retaining.changes is not None and not broker.retaining.changes.writable:
            raise Refusal(RPC_ERROR, "the cluster has no quorum: nothing was changed")
        work = BackpressureSlice(self._server)
        count = 0
        decisions: list[asyncio.Future[None]] = []
        for topic in broker.retained.walk(filter, 0 if not has_wildcard(filter) else _STEPS):
            if topic:
                count += self.find(topic) is not None
                decision = broker.retaining.clear(topic)
                if decision is not None:
                    decisions.append(decision)
            await work.checkpoint()
        if count:
            await wait_until_stored(self._server.tables)
        await wait_until_decided(decisions)
        return count


def _properties(message: Message) -> dict[str, object]:
    """Return the MQTT 5.0 properties by the names that /mqtt/publish accepts."""
    found: dict[str, object] = {}
    for identifier, name in (
        (c.PAYLOAD_FORMAT_INDICATOR, "payload_format_indicator"),
        (c.MESSAGE_EXPIRY_INTERVAL, "message_expiry_interval"),
        (c.RESPONSE_TOPIC, "response_topic"),
        (c.CONTENT_TYPE, "content_type"),
    ):
        if identifier in message.properties:
            found[name] = message.properties[identifier]
    if c.CORRELATION_DATA in message.properties:
        # Any bytes: invalid UTF-8 is shown as U+FFFD.
        found["correlation_data"] = message.properties[c.CORRELATION_DATA].decode(errors="replace")
    if c.USER_PROPERTY in message.properties:
        # In order, because a name may occur more than once.
        found["user_properties"] = [list(pair) for pair in message.properties[c.USER_PROPERTY]]
    return found
