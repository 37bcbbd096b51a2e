"""Restore sessions and messages from their records, at the start and when a session arrives from another node."""

from collections.abc import Callable, Iterable

from ..config import ZoneSettings
from ..core.broker import Broker
from ..mqtt.message import Message, Publisher
from ..persistence.log import records
from ..persistence.paging import properties_of
from ..session.client_info import CLIENT_ID_OWNER, RESTORED, USERNAME_OWNER, ClientInfo
from ..session.limits import Limits
from ..session.session import Session
from ..session.subscription import Subscription

ZoneOf = Callable[[str], tuple[ZoneSettings, Limits]]
"""Returns settings and limits for the name of a listener."""


def restored_session(
    record: records.SessionStored,
    subscriptions: Iterable[records.SubscriptionStored],
    broker: Broker,
    zone_of: ZoneOf,
) -> Session:
    """Return the session without its client, messages and Packet Identifiers. It is not yet registered with the broker
    and its router."""
    now = broker.clock.now()
    zone, limits = zone_of(record.listener)
    client = ClientInfo(
        broker.node, zone, record.zone, record.listener, record.peer_host, record.peer_port,
        client_id=record.client_id, username=record.username, proto_ver=record.proto_ver,
    )  # fmt: skip
    session = Session(client, limits, broker, record.created_at, record.expiry_interval)
    session.account = broker.account
    session.owner = owner = record.owner
    if owner == f"{USERNAME_OWNER}{record.username}":
        client.proved_by = RESTORED
    client.proved_client_id = owner == CLIENT_ID_OWNER
    client.mountpoint = record.mountpoint
    client.connected_at = record.connected_at
    client.keep_alive = record.keep_alive
    client.clean_start = record.clean_start
    client.is_bridge = record.is_bridge
    client.expiry_interval = record.expiry_interval
    session.now = now
    # Its client was connected when the node failed. The connection ended then, but the time was not recorded.
    session.disconnected_at = record.disconnected_at or now
    session.last_packet_id = record.last_packet_id
    for each in subscriptions:
        session.put_subscription(Subscription(
            session, each.filter, each.qos, each.no_local, each.retain_as_published, each.retain_handling,
            tuple(each.identifiers), each.group, each.topic_filter, (), each.by_operator,
        ))  # fmt: skip
        session.filter_bytes += len(each.filter)
    return session


def restored_client(
    broker: Broker, zone_of: ZoneOf, client_id: str, username: str | None, proved: bool, listener: str = ""
) -> ClientInfo:
    """Return the publisher of a message."""
    zone, _ = zone_of(listener)
    client = ClientInfo(broker.node, zone, listener=listener, client_id=client_id, username=username)
    client.proved_by = RESTORED if proved else ""
    return client


def restored_message(body: records.StoredBody, topic: str, publisher: Publisher | None, now: float) -> Message:
    """Return the message. ``topic``: the topic of ``body``, as the one string object that all messages share."""
    message = Message(
        topic,
        body.payload,
        body.qos,
        body.retain,
        properties_of(body),
        publisher,
        min(body.timestamp, now),  # otherwise a message from a clock that was ahead would never expire
    )
    message.id = body.id
    return message
