"""Mapping of the broker's sessions, subscriptions and messages to records of the write-ahead log."""

from typing import Final

from ..mqtt.message import Message
from ..session.session import Session
from ..session.subscription import Subscription
from .log import records
from .stored_message import StoredMessage

Entry = records.Record | StoredMessage
"""An entry of the open batch. A message is encoded with its holders when the batch is cut."""

_WITH_A_BODY: Final = (records.RetainedStored, records.WillStored, records.DelayedStored)

OVERHEAD: Final = 200
"""Approximate memory of a record in bytes, without its payload."""


def body_of(message: Message, skew: float = 0.0) -> records.StoredBody:
    """Return the stored form of a message. Here and below, ``skew`` is the difference between dates and times
    (``loop.clock``)."""
    publisher = message.publisher
    return records.StoredBody(
        message.topic,
        message.frame[message.payload_at :],  # not ``payload``, which would keep a second copy
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
    """Return the record of a retained message."""
    publisher = message.publisher
    return records.RetainedStored(body_of(message, skew), "" if publisher is None else publisher.mountpoint)


def message_record(stored: StoredMessage, skew: float = 0.0) -> records.MessageStored:
    """Return the record of a message with all its current holders."""
    holders = []
    for session, delivery, packet_id in stored.holders():
        holders.append((session, delivery.group, delivery.qos, delivery.retain, delivery.identifiers, packet_id))
    return records.MessageStored(stored.number, body_of(stored.message, skew), holders)


def session_record(session: Session, skew: float = 0.0) -> records.SessionStored:
    """Return the record of a session."""
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
    """Return the record of a subscription."""
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
    """Return the approximate number of bytes that an entry uses while it waits."""
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
    """Return the subject of a record: a later record about the same subject replaces it in the batch. None: it replaces
    no record."""
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
    """Return a negative number, because session numbers are positive."""
    return -number


def row_subject(table: str, key: str) -> str:
    """Return a text with U+0000, which no topic contains."""
    return f"{table}\0{key}"
