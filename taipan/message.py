"""Message and Client: the objects that hooks, subscriptions and access callbacks of a program receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, TypedDict

from .broker.mqtt import constants as c
from .broker.mqtt import properties as wire
from .broker.mqtt.constants import MAX_STRING
from .broker.mqtt.message import Message as BrokerMessage
from .broker.mqtt.packets import NO_PROPERTIES
from .broker.mqtt.packets import Properties as WireProperties
from .broker.mqtt.topics import valid_name

if TYPE_CHECKING:
    from .broker.session.client_info import ClientInfo

_NAMES: Final = {row.identifier: row.name.lower().replace("-", "_") for row in wire.TABLE.values()}
_ROWS: Final = {_NAMES[row.identifier]: row for row in wire.TABLE.values()}
# The broker sets a subscriber's identifiers, and an alias belongs to one connection.
_NOT_GIVEN: Final = (c.SUBSCRIPTION_IDENTIFIER, c.TOPIC_ALIAS)


class Properties(TypedDict, total=False):
    """The properties of MQTT 5.0 that travel with a message."""

    payload_format_indicator: int
    message_expiry_interval: int
    content_type: str
    response_topic: str
    correlation_data: bytes
    user_property: list[tuple[str, str]]


def from_wire(properties: WireProperties) -> dict[str, Any]:
    """Return the properties by their names in the standard, in lower case with ``_``."""
    return {_NAMES[identifier]: value for identifier, value in properties.items()}


def to_wire(given: Mapping[str, Any], packet: int = c.PUBLISH) -> WireProperties:
    """Convert named properties back. Raises ValueError if a property is invalid in this type of packet."""
    found: WireProperties = {}
    known = [name for name, row in _ROWS.items() if row.packets >> packet & 1 and row.identifier not in _NOT_GIVEN]
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            raise ValueError(f"unknown property {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        row = _ROWS[name]
        wanted = _unlike(row, value)
        if wanted:
            raise ValueError(f"property {name}: expected {wanted}, got {value!r}")
        found[row.identifier] = value
    return found or NO_PROPERTIES


def _unlike(row: wire.Property, value: Any) -> str:
    """Return the expected kind of value if ``value`` is invalid for the property, else an empty string."""
    if row.type == wire.STRING:
        good = is_text(value) and (row.identifier != c.RESPONSE_TOPIC or valid_name(value))
        return "" if good else "a Topic Name" if row.identifier == c.RESPONSE_TOPIC else "a string that MQTT can carry"
    if row.type == wire.BINARY:
        return "" if isinstance(value, bytes) and len(value) <= MAX_STRING else f"at most {MAX_STRING} bytes"
    if row.type == wire.STRING_PAIR:
        pairs = isinstance(value, list) and len(value) <= wire.MAX_USER_PROPERTIES
        good = pairs and all(
            isinstance(each, tuple) and len(each) == 2 and is_text(each[0]) and is_text(each[1]) for each in value
        )
        return "" if good else "a list of pairs of strings"
    good = isinstance(value, int) and not isinstance(value, bool) and row.least <= value <= row.greatest
    return "" if good else f"a number from {row.least} to {row.greatest}"


def is_text(value: object) -> bool:
    """Return whether an MQTT string can hold ``value``."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        return len(value.encode()) <= MAX_STRING
    except UnicodeEncodeError:
        return False


def to_bytes(payload: bytes | bytearray | memoryview | str) -> bytes:
    """Return a payload as bytes; a string becomes UTF-8. Raises TypeError."""
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise TypeError(f"payload: expected bytes or str, got {type(payload).__name__}")


class Message:
    """An Application Message. It never changes: ``replace`` returns a changed copy.

    ``qos`` and ``retain`` are those of the publisher. In a message from a subscription, ``retain`` is true only if the
    message was retained before the subscription. ``client_id`` and ``username`` are the publisher's; if the node itself
    publishes, they are empty and None. ``timestamp`` is in Unix seconds.
    """

    __slots__ = (
        "_payload", "_source", "client_id", "properties", "qos", "retain", "timestamp", "topic", "username",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        payload: bytes | str = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        self.topic = topic
        self._payload: bytes | None = to_bytes(payload)
        self.qos = qos
        self.retain = retain
        self.properties: Properties = properties if properties is not None else {}
        self.client_id = ""
        self.username: str | None = None
        self.timestamp = 0.0
        self._source: BrokerMessage | None = None

    @classmethod
    def of(cls, source: BrokerMessage, retain: bool | None = None) -> Message:
        """Return the broker's message as a program sees it."""
        made = cls.__new__(cls)
        made.topic = source.topic
        made._payload = None
        made._source = source
        made.qos = source.qos
        made.retain = source.retain if retain is None else retain
        properties: Any = from_wire(source.properties)
        made.properties = properties
        publisher = source.publisher
        made.client_id = "" if publisher is None else publisher.client_id
        made.username = None if publisher is None else publisher.username
        made.timestamp = source.timestamp
        return made

    @property
    def payload(self) -> bytes:
        """The bytes of the message. Raises LookupError if they are only on disk, for example after long queueing."""
        if self._payload is None:
            assert self._source is not None
            self._payload = self._source.payload
        return self._payload

    def replace(
        self,
        topic: str | None = None,
        payload: bytes | str | None = None,
        qos: int | None = None,
        retain: bool | None = None,
        properties: Properties | None = None,
    ) -> Message:
        """Return a copy with the given values replaced."""
        made = Message(
            self.topic if topic is None else topic,
            self.payload if payload is None else payload,
            self.qos if qos is None else qos,
            self.retain if retain is None else retain,
            self.properties if properties is None else properties,
        )
        made.client_id, made.username, made.timestamp = self.client_id, self.username, self.timestamp
        return made

    def publishable(self) -> BrokerMessage:
        """Return the message for the broker. Raises ValueError if the broker cannot publish it."""
        return broker_message(self.topic, self.payload, self.qos, self.retain, self.properties)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.topic, self.payload, self.qos, self.retain, self.properties) == (
            other.topic,
            other.payload,
            other.qos,
            other.retain,
            other.properties,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        payload = self._payload if self._source is None or not self._source.paged else b"(on disk)"
        shown = repr(self.payload if payload is None else payload)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return f"Message({self.topic!r}, {shown}, qos={self.qos}, retain={self.retain})"


def broker_message(
    topic: object,
    payload: bytes | bytearray | memoryview | str,
    qos: object,
    retain: bool,
    properties: Mapping[str, Any] | None,
) -> BrokerMessage:
    """Return a message of the broker. Raises ValueError or TypeError if it cannot be published."""
    if not isinstance(topic, str) or not valid_name(topic) or not is_text(topic):
        raise ValueError(f"{topic!r} is not a Topic Name")
    if isinstance(qos, bool) or not isinstance(qos, int) or not 0 <= qos <= 2:
        raise ValueError(f"qos: expected 0, 1 or 2, got {qos!r}")
    return BrokerMessage(topic, to_bytes(payload), qos, bool(retain), to_wire(properties or {}))


@dataclass(frozen=True, slots=True)
class Client:
    """A client, as it is at the moment of the call.

    ``username`` is the name that the client claims. ``proto_ver`` is 3 (MQTT 3.1), 4 (3.1.1) or 5. ``listener`` is the
    name of the client's listener. ``cn`` and ``dn`` come from a client certificate that the listener has verified.
    """

    client_id: str
    username: str | None = None
    peer_host: str = ""
    peer_port: int = 0
    listener: str = ""
    proto_ver: int = 0
    clean_start: bool = True
    keep_alive: int = 0
    expiry_interval: int = 0
    is_superuser: bool = False
    anonymous: bool = True
    mountpoint: str = ""
    cn: str | None = None
    dn: str | None = None
    connected_at: float = 0.0

    @classmethod
    def of(cls, info: ClientInfo | None, client_id: str = "") -> Client:
        """Return the client. ``client_id``: for a restored session whose client has not connected since."""
        if info is None:
            return cls(client_id)
        return cls(
            info.client_id,
            info.username,
            info.peer_host,
            info.peer_port,
            info.listener,
            info.proto_ver,
            info.clean_start,
            info.keep_alive,
            info.expiry_interval,
            info.is_superuser,
            info.anonymous,
            info.mountpoint,
            info.cn,
            info.dn,
            info.connected_at,
        )
