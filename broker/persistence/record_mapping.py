"""The broker's sessions, subscriptions and messages as records of the write-ahead log."""

from typing import Final

from ..mqtt.message import Message
from ..session.session import Session
from ..session.subscription import Subscription
from .log import records
from .stored_message import StoredMessage

Entry = records.Record | StoredMessage
"""What the open batch holds; a message is written with those who hold it when the batch is cut."""

_WITH_A_BODY: Final = (records.RetainedStored, records.WillStored, records.DelayedStored)

OVERHEAD: Final = 200
"""Bytes of a record in memory, beside a payload."""


def body_of(message: Message, skew: float = 0.0) -> records.StoredBody:
    """A message as it is written down. ``skew``, here and below: what makes dates of times (``loop.clock``)."""
    publisher = message.publisher
    return records.StoredBody(
        message.topic,
        message.frame[message.payload_at :],  # not ``payload``, which would keep it a second time
        message.qos,
        message.retain,
        message.properties,
        message.timestamp + skew,
        None if publisher is None else publisher.client_id,
        None if publisher is None else publisher.username,
        message.id,
        publisher is None or bool(publisher.proved_by),
    )


def retained_record(message: Message, skew: float = 0.0) -> records.RetainedStored:
    """A retained message as it is written down."""
    publisher = message.publisher
    return records.RetainedStored(body_of(message, skew), "" if publisher is None else publisher.mountpoint)


def message_record(stored: StoredMessage, skew: float = 0.0) -> records.MessageStored:
    """A message with all who hold it now."""
    holders = []
    for session, delivery, packet_id in stored.holders():
        holders.append((session, delivery.group, delivery.qos, delivery.retain, delivery.identifiers, packet_id))
    return records.MessageStored(stored.number, body_of(stored.message, skew), holders)


def session_record(session: Session, skew: float = 0.0) -> records.SessionStored:
    """A session as it is written down."""
    client = session.client
    return records.SessionStored(
        session.number,
        session.client_id,
        client.username,
        client.proto_ver,
        client.peer_host,
        client.peer_port,
        client.zone_name,
        client.listener,
        client.mountpoint,
        session.created_at + skew,
        client.connected_at + skew,
        session.disconnected_at + skew if session.disconnected_at and not session.connected else 0.0,
        session.expiry_interval,
        client.keep_alive,
        client.clean_start,
        client.is_bridge,
        session.last_packet_id,
        session.owner,
    )


def subscription_record(session: Session, subscription: Subscription) -> records.SubscriptionStored:
    """A subscription as it is written down."""
    return records.SubscriptionStored(
        session.number,
        subscription.filter,
        subscription.topic_filter,
        subscription.group,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.retain_handling,
        subscription.identifiers,
        subscription.by_operator,
    )


def size_of(entry: Entry) -> int:
    """About how many bytes it takes while it waits."""
    if isinstance(entry, StoredMessage):
        return OVERHEAD + len(entry.message.frame)
    if isinstance(entry, _WITH_A_BODY):
        return OVERHEAD + len(entry.body.payload)
    if isinstance(entry, records.SubscriptionStored):
        return OVERHEAD + len(entry.filter)
    if isinstance(entry, records.RowStored):
        return OVERHEAD + len(entry.value)
    return OVERHEAD


def subject_of(record: records.Record) -> int | str | None:
    """What the record is about: a later one about the same takes its place in a batch. None: it stands alone."""
    if isinstance(record, records.SessionStored):
        return record.number
    if isinstance(record, records.RetainedStored):
        return record.body.topic
    if isinstance(record, records.WillStored):
        return will_subject(record.number)
    if isinstance(record, records.RowStored):
        return row_subject(record.table, record.key)
    return None


def will_subject(number: int) -> int:
    """Sessions have the numbers above 0."""
    return -number


def row_subject(table: str, key: str) -> str:
    """No topic has U+0000 in it."""
    return f"{table}\0{key}"
