"""The records of the log: one for each durable fact, in the order in which the facts occurred.

A later record about the same subject replaces the earlier one. Sessions and messages have numbers that are never used
again. Times are Unix seconds. Records are encoded as MessagePack arrays whose first element is the record's tag; a new
field at the end with a default keeps older files readable."""

from typing import Any

import msgspec

Holder = tuple[int, str, int, bool, tuple[int, ...], int]
"""One delivery of a message: (session, group filter or "", QoS, RETAIN, Subscription Identifiers, Packet Identifier).

Packet Identifier 0: not sent yet.
"""


class BaseRecord(msgspec.Struct, array_like=True, gc=False):
    """Base of all records; never written itself."""


class SessionStored(BaseRecord, tag=1):
    """A session exists. ``disconnected_at`` is 0 while its client is connected. ``owner``: as in
    ``ClientInfo``."""

    number: int
    client_id: str
    username: str | None
    proto_ver: int
    peer_host: str
    peer_port: int
    zone: str
    listener: str
    mountpoint: str
    created_at: float
    connected_at: float
    disconnected_at: float
    expiry_interval: int
    keep_alive: int
    clean_start: bool
    is_bridge: bool
    last_packet_id: int
    owner: str


class SessionEnded(BaseRecord, tag=2):
    number: int


class SubscriptionStored(BaseRecord, tag=3):
    """``by_operator``: see ``Subscription``."""

    session: int
    filter: str
    topic_filter: str
    group: str | None
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifiers: tuple[int, ...]
    by_operator: bool = False


class SubscriptionRemoved(BaseRecord, tag=4):
    session: int
    filter: str


class StoredBody(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """An Application Message and its publisher (``None``: the node). ``proved``: the publisher's username was
    authenticated."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[int, Any]
    timestamp: float
    client_id: str | None
    username: str | None
    id: str
    proved: bool = True


class MessageStored(BaseRecord, tag=5):
    """A message that sessions hold, with all its holders."""

    number: int
    body: StoredBody
    holders: list[Holder]


class DeliveryAdded(BaseRecord, tag=6):
    """One more session holds a message that is already stored."""

    message: int
    holder: Holder


class DeliveriesSent(BaseRecord, tag=7):
    """Deliveries of a session were sent: (message, group filter or "", Packet Identifier)."""

    session: int
    deliveries: list[tuple[int, str, int]]


class DeliveriesDone(BaseRecord, tag=8):
    """A session no longer holds these: a message, or (message, group filter)."""

    session: int
    deliveries: list[int | tuple[int, str]]


class Released(BaseRecord, tag=9):
    """QoS 2 outbound: PUBREC has arrived, so the client has the message; PUBREL is repeated until PUBCOMP arrives."""

    session: int
    packet_id: int
    message: int
    group: str


class Completed(BaseRecord, tag=10):
    """QoS 2 outbound: PUBCOMP arrived."""

    session: int
    packet_id: int


class Received(BaseRecord, tag=11):
    """QoS 2 inbound: until PUBREL, this identifier means the same message."""

    session: int
    packet_id: int
    at: float


class Freed(BaseRecord, tag=12):
    """QoS 2 inbound: PUBREL arrived."""

    session: int
    packet_id: int


class RetainedStored(BaseRecord, tag=13):
    """``mountpoint``: the publisher's mount point."""

    body: StoredBody
    mountpoint: str = ""


class RetainedCleared(BaseRecord, tag=14):
    topic: str


class WillStored(BaseRecord, tag=15):
    """A Will is stored. ``due_at``: the end of its delay, or 0 while its client is connected. ``mountpoint`` and
    ``listener``: those of its client, for the access check. ``approved``: its client was allowed to publish it when
    this record was written; this decides if an external service would have to be asked."""

    number: int
    body: StoredBody
    delay: int
    due_at: float
    mountpoint: str = ""
    listener: str = ""
    approved: bool = False


class WillGone(BaseRecord, tag=16):
    number: int


class DelayedStored(BaseRecord, tag=17):
    number: int
    body: StoredBody
    due_at: float


class DelayedGone(BaseRecord, tag=18):
    number: int


class RowStored(BaseRecord, tag=19):
    """A row of a table (``persistence.tables``), encoded by the package that owns the table."""

    table: str
    key: str
    value: bytes


class RowRemoved(BaseRecord, tag=20):
    table: str
    key: str


Record = (
    SessionStored
    | SessionEnded
    | SubscriptionStored
    | SubscriptionRemoved
    | MessageStored
    | DeliveryAdded
    | DeliveriesSent
    | DeliveriesDone
    | Released
    | Completed
    | Received
    | Freed
    | RetainedStored
    | RetainedCleared
    | WillStored
    | WillGone
    | DelayedStored
    | DelayedGone
    | RowStored
    | RowRemoved
)

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Record).decode
