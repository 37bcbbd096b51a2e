"""The Application Message, and its deliveries.

The decoder creates exactly one ``Message`` for each inbound PUBLISH. This object is routed, queued, retained and passed
to hooks. All subscribers share it, so it is not changed after ``Broker.accept`` has accepted it."""

from typing import Final

from .constants import MESSAGE_EXPIRY_INTERVAL, PUBLISH, TOPIC_ALIAS
from .message_ids import id_of
from .packets import NO_PROPERTIES, Properties
from .properties import body_of, read_block

OVERHEAD: Final = 200
"""Approximate size of a message in memory, in bytes, without its frame."""

ALIAS_LENGTH: Final = 3
"""Size of a Topic Alias among the properties, in bytes."""

_NO_IDENTIFIERS: Final[tuple[int, ...]] = ()


class Publisher:
    """The publisher of a message: the fields of ``session.client_info.ClientInfo`` that are needed wherever a message
    is used."""

    __slots__ = (
        "client_id",
        "is_superuser",
        "listener",
        "mountpoint",
        "peer_host",
        "proto_ver",
        "proved_by",
        "username",
    )

    client_id: str
    username: str | None
    proved_by: str
    mountpoint: str
    listener: str
    peer_host: str
    proto_ver: int
    is_superuser: bool


class Message:
    """An Application Message.

    ``timestamp``: time of publication, in Unix seconds of the node's clock. ``publisher``: the ``ClientInfo`` of the
    publisher, ``None`` for the node itself. ``properties``: those that are forwarded to subscribers, without the topic
    alias. ``dup`` and ``packet_id``: from the inbound packet; no outbound packet uses them. ``id_prefix`` and
    ``id_number``: the two halves of ``id``, if ``id_number`` is not 0.

    ``frame`` contains the payload from ``payload_at`` to its end: the whole packet if the decoder created the message,
    otherwise only the payload. ``packet_id_at``: position of the Packet Identifier, if the frame can be sent to
    clients of ``frame_version`` (4 for all of 3.x) with only this identifier replaced; otherwise 0.

    The bytes from ``block_at`` to ``payload_at`` of the frame are the encoded properties. They are sent unchanged, and
    are decoded only when ``properties`` is read. ``alias_at`` and ``expiry_at``: positions of the values of Topic
    Alias and Message Expiry Interval in that block, 0 if absent. If ``block_at`` is 0, ``properties`` is complete.

    A ``paged`` message has only the fields that queues need; ``persistence.paging`` knows where the rest is stored.
    Its ``frame`` is empty, and ``payload_at`` is the negative size of the former ``frame``.
    """

    __slots__ = (
        "_block",
        "_id",
        "_payload",
        "_properties",
        "alias_at",
        "block_at",
        "dup",
        "expires",
        "expiry_at",
        "frame",
        "frame_version",
        "has_alias",
        "has_properties",
        "hops",
        "id_number",
        "id_prefix",
        "packet_id",
        "packet_id_at",
        "payload_at",
        "plain1",
        "plain2",
        "publisher",
        "qos",
        "retain",
        "stored",
        "timestamp",
        "topic",
        "waiting",
        "wire0_v3",
        "wire0_v5",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes | None = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        publisher: Publisher | None = None,
        timestamp: float = 0.0,
        frame: bytes = b"",
        payload_at: int = 0,
        packet_id: int = 0,
        dup: bool = False,
    ) -> None:
        if payload is not None:
            frame = payload
            payload_at = 0
        self.topic = topic
        self._payload = payload
        self.qos = qos
        self.retain = retain
        self._properties: Properties | None = properties
        self._block: bytes | None = None
        self.block_at = 0
        self.alias_at = 0
        self.expiry_at = 0
        # The message arrived with a Topic Alias that has not been removed yet.
        self.has_alias = False
        if properties:
            self.has_properties = True
            self.expires = MESSAGE_EXPIRY_INTERVAL in properties
        else:
            self.has_properties = self.expires = False
        self.publisher = publisher
        self.timestamp = timestamp
        self.frame = frame
        self.payload_at = payload_at
        self.packet_id = packet_id
        self.dup = dup
        self.frame_version = 0
        self.packet_id_at = 0
        self._id = ""
        self.id_prefix = ""
        self.id_number = 0
        # ``persistence.stored_message.StoredMessage``; used only by ``persistence``.
        self.stored: object | None = None
        self.hops = 0
        # Number of queues with this message, of sessions that do not outlive their connection.
        self.waiting = 0
        # Encoded forms, created once and shared by all subscribers that receive the message in this form.
        self.wire0_v3: bytes | None = None
        self.wire0_v5: bytes | None = None
        self.plain1: Delivery | None = None
        self.plain2: Delivery | None = None

    @property
    def id(self) -> str:
        """The message's id; empty if it has none."""
        found = self._id
        if not found and self.id_number:
            found = self._id = id_of(self.id_prefix, self.id_number)
        return found

    @id.setter
    def id(self, value: str) -> None:
        self._id = value
        self.id_number = 0

    @property
    def identified(self) -> bool:
        """Return whether the message has an id, without building the id."""
        return self.id_number != 0 or self._id != ""

    def twin(self) -> "Message":
        """Return a copy of the message for another owner."""
        twin = Message(self.topic, self.payload, self.qos, self.retain, self.properties, self.publisher, self.timestamp)
        twin.id = self.id
        twin.hops = self.hops
        return twin

    def readdress(self, topic: str) -> None:
        """Change the topic, before anybody has received the message: the bytes that arrived cannot be forwarded any
        more."""
        self.topic = topic
        self.wire0_v3 = self.wire0_v5 = None
        self.packet_id_at = 0

    @property
    def payload(self) -> bytes:
        """The payload. For an inbound message it is copied from ``frame`` when it is first read."""
        payload = self._payload
        if payload is None:
            if self.payload_at < 0:
                raise LookupError("the payload is on disk")
            payload = self._payload = self.frame[self.payload_at :]
        return payload

    @property
    def paged(self) -> bool:
        """Whether the payload and the properties (except the Message Expiry Interval) are only on disk."""
        return self.payload_at < 0

    @property
    def payload_size(self) -> int:
        """Length of the payload in bytes, without copying it. Approximate for a paged message."""
        return len(self.frame) - self.payload_at

    @property
    def wire_size(self) -> int:
        """Size of the received PUBLISH in bytes."""
        return len(self.frame)

    @property
    def properties(self) -> Properties:
        """The properties by identifier, for reading only. ``has_properties``, ``expires`` and ``block`` are cheaper."""
        properties = self._properties
        if properties is None:
            block = self.block
            # Strings were checked when the message arrived.
            properties = self._properties = read_block(block, 0, len(block), PUBLISH, False)
        return properties

    @properties.setter
    def properties(self, properties: Properties) -> None:
        self._properties = properties
        self._block = None
        self.block_at = self.alias_at = self.expiry_at = 0
        self.has_properties = bool(properties)
        self.expires = MESSAGE_EXPIRY_INTERVAL in properties

    def keep_block(self, block_at: int, alias_at: int, expiry_at: int) -> None:
        """Use the bytes of the frame from ``block_at`` to the payload as properties."""
        self._properties = None
        self.block_at = block_at
        self.alias_at = alias_at
        self.expiry_at = expiry_at
        self.has_alias = alias_at > 0
        self.has_properties = True
        self.expires = expiry_at > 0

    @property
    def block(self) -> bytes:
        """The encoded properties as they are sent, without their length."""
        block = self._block
        if block is not None:
            return block
        if not self.block_at:
            return body_of(self.properties) if self.has_properties else b""
        block = self._block = self.frame[self.block_at : self.payload_at]
        return block

    def take_alias(self) -> int:
        """Return the Topic Alias and remove it from the properties."""
        self.has_alias = False
        at = self.alias_at
        if not at:
            properties = self.properties
            others = {key: value for key, value in properties.items() if key != TOPIC_ALIAS}
            self.properties = others or NO_PROPERTIES
            return int(properties[TOPIC_ALIAS])
        frame = self.frame
        value = self.block_at + at
        block = frame[value + 2 : self.payload_at]
        if at > 1:
            block = frame[self.block_at : value - 1] + block
        if block:
            self._block = block
            self._properties = None
            self.alias_at = 0
            if self.expiry_at > at:
                self.expiry_at -= ALIAS_LENGTH
        else:
            self.properties = NO_PROPERTIES
        return frame[value] << 8 | frame[value + 1]

    @property
    def expiry_interval(self) -> int | None:
        """The Message Expiry Interval in seconds, ``None`` if the message has none."""
        if not self.expires:
            return None
        at = self.expiry_at
        if at:
            block = self.block
            return block[at] << 24 | block[at + 1] << 16 | block[at + 2] << 8 | block[at + 3]
        return int(self.properties[MESSAGE_EXPIRY_INTERVAL])

    @property
    def expires_at(self) -> float | None:
        """The time when the Message Expiry Interval ends (Unix seconds), ``None`` if the message has none."""
        interval = self.expiry_interval
        return None if interval is None else self.timestamp + float(interval)

    def expired(self, now: float) -> bool:
        """Return whether the Message Expiry Interval has passed [MQTT-3.3.2-5]."""
        interval = self.expiry_interval
        return interval is not None and now >= self.timestamp + interval

    def plain(self, qos: int) -> "Delivery":
        """Return the delivery at QoS 1 or 2 with RETAIN 0 and no identifiers, shared by all subscribers that receive
        the message in this form."""
        if qos == 1:
            if self.plain1 is None:
                self.plain1 = Delivery(self, 1)
            return self.plain1
        if self.plain2 is None:
            self.plain2 = Delivery(self, 2)
        return self.plain2

    def release_plain(self) -> None:
        """Release the plain deliveries after all subscribers have received the message. Message and delivery refer to
        each other; without these references they need no garbage collector."""
        self.plain1 = self.plain2 = None

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, qos={self.qos}, retain={self.retain}, {self.payload_size} bytes)"


class Delivery:
    """The form in which a message is delivered: QoS, RETAIN flag and Subscription Identifiers.

    Immutable except for its cached encoded forms, and without anything that belongs to one client. So all sessions that
    receive the message in this form share it. ``group`` is the whole ``$share/...`` filter of a shared subscription,
    empty for an ordinary subscription."""

    __slots__ = ("group", "identifiers", "message", "qos", "retain", "wire_v3", "wire_v5")

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool = False,
        identifiers: tuple[int, ...] = _NO_IDENTIFIERS,
        group: str = "",
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.group = group
        # (bytes before the Packet Identifier, bytes after it); at QoS 0 the first part contains everything.
        self.wire_v3: tuple[bytes, bytes] | None = None
        self.wire_v5: tuple[bytes, bytes] | None = None

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes; queue limits use it."""
        message = self.message
        return (len(message.frame) or -message.payload_at) + len(message.topic) + OVERHEAD

    def __repr__(self) -> str:
        return f"Delivery({self.message!r}, qos={self.qos}, retain={self.retain})"
