"""mosquitto.db: the persistence file of Mosquitto, in its formats 5 (1.6) and 6 (2.x).

The file has a header of 15 bytes, a checksum that is always 0, and the number of the format. Chunks follow, each with
its kind and its length. Lengths, packet identifiers and sizes are big-endian; numbers of 8 bytes have the byte order
of the processor that wrote the file. No checksum protects the contents: truncated or contradictory data is found and
reported, a changed byte in a payload is not.
"""

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import properties as mqtt_properties
from taipan.broker.mqtt.errors import MqttError
from taipan.broker.mqtt.topics import parse_filter, valid_filter, valid_name

MAGIC: Final = b"\x00\xb5\x00mosquitto db"
HEAD: Final = len(MAGIC) + 8
VERSIONS: Final = (5, 6)
NEVER: Final = 0xFFFF_FFFF

CFG: Final = 1
MESSAGE: Final = 2
DELIVERY: Final = 3
RETAIN: Final = 4
SUBSCRIPTION: Final = 5
CLIENT: Final = 6

_CHUNK: Final = struct.Struct(">II")
_NAMES: Final = {
    CFG: "configuration",
    MESSAGE: "message",
    DELIVERY: "delivery",
    RETAIN: "retained message",
    SUBSCRIPTION: "subscription",
    CLIENT: "client",
}
_LEAST: Final = {CFG: 16, MESSAGE: 32, DELIVERY: 16, RETAIN: 8, SUBSCRIPTION: 12, CLIENT: 16}
_LARGEST: Final = 268_435_456 + 5 * 65_536
"""Maximum size of a chunk in bytes: a message of the largest size with its names and properties."""

# States of a delivery, numbered as in Mosquitto.
PUBLISH_QOS0: Final = 1
PUBLISH_QOS1: Final = 2
WAIT_FOR_PUBACK: Final = 3
PUBLISH_QOS2: Final = 4
WAIT_FOR_PUBREC: Final = 5
RESEND_PUBREL: Final = 6
WAIT_FOR_PUBREL: Final = 7
RESEND_PUBCOMP: Final = 8
WAIT_FOR_PUBCOMP: Final = 9
SEND_PUBREC: Final = 10
QUEUED: Final = 11

IN: Final = 0
OUT: Final = 1


class DbMessage(msgspec.Struct):
    """``expires``: Unix seconds, 0: never. ``place``: the position of its chunk."""

    store_id: int
    place: int
    expires: int
    source_port: int
    source: str
    username: str
    topic: str
    qos: int
    retain: bool
    payload: bytes
    properties: dict[int, Any]


class DbDelivery(msgspec.Struct):
    """A message that has to be sent to a client (``OUT``), or that a client has sent and not released (``IN``)."""

    place: int
    store_id: int
    client_id: str
    packet_id: int
    qos: int
    state: int
    retain: bool
    direction: int
    identifiers: tuple[int, ...]


class DbSubscription(msgspec.Struct):
    place: int
    client_id: str
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int


class DbClient(msgspec.Struct):
    """``expires``: expiry of the session in Unix seconds, 0: not given. ``port``: port of its listener, 0: unknown.
    ``username``: None if the format does not contain it."""

    place: int
    client_id: str
    expires: int
    interval: int
    last_packet_id: int
    port: int
    username: str | None


class Damage(msgspec.Struct):
    """A part of the file that cannot be read, from this offset on."""

    offset: int
    what: str
    why: str


class MosquittoDb(msgspec.Struct):
    """The intact contents; each list is in the order of the file."""

    version: int = 0
    messages: dict[int, DbMessage] = {}
    clients: dict[str, DbClient] = {}
    subscriptions: list[DbSubscription] = []
    deliveries: list[DbDelivery] = []
    retained: list[tuple[int, int]] = []  # offset of the chunk, and the message
    damage: list[Damage] = []


class NoMosquittoDb(ValueError):
    """This is another kind of file, or its format is not supported."""


class _Bad(Exception):
    """The reason why a chunk is left out."""


def read_mosquitto_db(data: bytes) -> MosquittoDb:
    """Read the file. Raises NoMosquittoDb."""
    if not data.startswith(MAGIC):
        raise NoMosquittoDb("the file does not begin like a Mosquitto persistence file")
    if len(data) < HEAD:
        raise NoMosquittoDb(f"it ends within its header, after {len(data)} bytes")
    version = int.from_bytes(data[len(MAGIC) + 4 : HEAD], "big")
    if version not in VERSIONS:
        raise NoMosquittoDb(
            f"it is of format {version}; formats 5 (Mosquitto 1.6) and 6 (2.x) are read. Start a newer"
            " Mosquitto with it once, which writes a newer format"
        )
    found = MosquittoDb(version, {}, {}, [], [], [], [])
    readers: dict[int, Callable[[MosquittoDb, _Fields], None]] = {
        CFG: _read_cfg,
        MESSAGE: _read_message,
        DELIVERY: _read_delivery,
        RETAIN: _read_retain,
        SUBSCRIPTION: _read_subscription,
        CLIENT: _read_client,
    }
    for kind, at, end in _chunks(data, found.damage):
        try:
            readers[kind](found, _Fields(data, at, end))
        except _Bad as error:
            found.damage.append(Damage(at - _CHUNK.size, _NAMES[kind], str(error)))
    _drop_loose_ends(found)
    return found


def _chunks(data: bytes, damage: list[Damage]) -> Iterator[tuple[int, int, int]]:
    """Yield kind, beginning and end of the content of each chunk. After an invalid head, search for the next valid one:
    one that is followed by valid chunks up to the end of the file."""
    at = HEAD
    while at < len(data):
        kind, size, why = _head(data, at)
        if not why:
            yield kind, at + _CHUNK.size, at + _CHUNK.size + size
            at += _CHUNK.size + size
            continue
        found = _next_chain(data, at + 1)
        damage.append(Damage(at, f"{found - at} bytes", why))
        at = found


def _head(data: bytes, at: int) -> tuple[int, int, str]:
    """Return kind and size of the chunk at ``at``, and the problem with it, if any."""
    if at + _CHUNK.size > len(data):
        return 0, 0, "the file ends within the header of a chunk"
    kind, size = _CHUNK.unpack_from(data, at)
    if kind not in _NAMES:
        return 0, 0, f"no chunk is of kind {kind}"
    if size < _LEAST[kind] or size > _LARGEST:
        return 0, 0, f"a {_NAMES[kind]} cannot be {size} bytes long"
    if at + _CHUNK.size + size > len(data):
        return 0, 0, f"the {_NAMES[kind]} is cut off: {size} bytes are announced"
    return kind, size, ""


_CHAIN: Final = 3
_KIND: Final = re.compile(rb"\0\0\0(?=[\1-\6])")


def _next_chain(data: bytes, at: int) -> int:
    """Return the position of the next sound chunks, or the end of the file if there are none."""
    for found in _KIND.finditer(data, at):
        if _is_chain(data, found.start()):
            return found.start()
    return len(data)


def _is_chain(data: bytes, at: int) -> bool:
    """Return whether enough valid chunks follow, or chunks that lead to the end of the file."""
    for _ in range(_CHAIN):
        _, size, why = _head(data, at)
        if why:
            return False
        at += _CHUNK.size + size
        if at == len(data):
            return True
    return True


class _Fields:
    """The fields of one chunk, from front to back. All methods raise _Bad."""

    __slots__ = ("_at", "_data", "_end", "place")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end
        self.place = at - _CHUNK.size

    @property
    def left(self) -> int:
        return self._end - self._at

    def numbers(self, form: struct.Struct) -> tuple[int, ...]:
        if form.size > self.left:
            raise _Bad(f"it ends after {self.left} of {form.size} bytes")
        self._at += form.size
        return form.unpack_from(self._data, self._at - form.size)

    def bytes(self, size: int, what: str) -> bytes:
        if size > self.left:
            raise _Bad(f"its {what} is cut off: {size} bytes are announced, but only {self.left} follow")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self, size: int, what: str) -> str:
        try:
            text = self.bytes(size, what).decode("utf-8")
        except UnicodeDecodeError:
            raise _Bad(f"its {what} is not UTF-8") from None
        if "\0" in text:
            raise _Bad(f"its {what} has U+0000 in it")
        return text

    def properties(self) -> dict[int, Any]:
        """Return the properties of a PUBLISH, if there are any; they end with the chunk."""
        if not self.left:
            return {}
        try:
            found, at = mqtt_properties.read(self._data, self._at, self._end, c.PUBLISH, strict=False)
        except MqttError as error:
            raise _Bad(f"its properties: {error}") from None
        self._at = at
        self.end()
        return dict(found)

    def end(self) -> None:
        if self.left:
            raise _Bad(f"{self.left} bytes too many")


# The 8-byte numbers are in the processor's byte order: little-endian on all processors on which Mosquitto is known to
# run today.
_CFG_FIELDS: Final = struct.Struct("<QBB6x")
_MESSAGE_TIMES: Final = struct.Struct("<Qq")
_MESSAGE_SIZES: Final = struct.Struct(">IHHHHHBB")
_STORE_ID: Final = struct.Struct("<Q")
_DELIVERY_FIELDS: Final = struct.Struct(">HHBBBB")
_SUBSCRIPTION_FIELDS: Final = struct.Struct(">IHHBB2x")
_CLIENT_TIME: Final = struct.Struct("<q")
_CLIENT_FIELDS: Final = struct.Struct(">IHH")
_CLIENT_MORE: Final = struct.Struct(">HH4x")
_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999."""


def _read_cfg(found: MosquittoDb, fields: _Fields) -> None:
    _, _, id_size = fields.numbers(_CFG_FIELDS)
    if id_size != 8:
        raise _Bad(f"message numbers have {id_size} bytes; only 8 bytes are supported")
    fields.end()


def _time(value: int, what: str) -> int:
    if not 0 <= value <= _LAST_SECOND:
        raise _Bad(f"its {what} is not a time: {value}")
    return value


def _read_message(found: MosquittoDb, fields: _Fields) -> None:
    store_id, expires = fields.numbers(_MESSAGE_TIMES)
    size, _, source_size, username_size, topic_size, port, qos, retain = fields.numbers(_MESSAGE_SIZES)
    expires = _time(expires, "expiry")
    source = fields.text(source_size, "publisher")
    username = fields.text(username_size, "publisher's username")
    topic = fields.text(topic_size, "topic")
    if not valid_name(topic):
        raise _Bad("its topic cannot be published to")
    if qos > 2:
        raise _Bad(f"its QoS is {qos}")
    payload = fields.bytes(size, "payload")
    properties = fields.properties()
    for each in (c.TOPIC_ALIAS, c.SUBSCRIPTION_IDENTIFIER, c.MESSAGE_EXPIRY_INTERVAL):
        properties.pop(each, None)
    if store_id in found.messages:
        raise _Bad(f"message {store_id} already exists")
    found.messages[store_id] = DbMessage(
        store_id, fields.place, expires, port, source, username, topic, qos, bool(retain), payload, properties
    )


def _read_delivery(found: MosquittoDb, fields: _Fields) -> None:
    (store_id,) = fields.numbers(_STORE_ID)
    packet_id, id_size, qos, state, retain_dup, direction = fields.numbers(_DELIVERY_FIELDS)
    client_id = fields.text(id_size, "client identifier")
    if qos > 2:
        raise _Bad(f"its QoS is {qos}")
    if not PUBLISH_QOS0 <= state <= QUEUED:
        raise _Bad(f"there is no state {state}")
    if direction not in (IN, OUT):
        raise _Bad(f"there is no direction {direction}")
    if state != QUEUED and qos and not packet_id:
        raise _Bad("it has no packet identifier")
    identifiers = fields.properties().get(c.SUBSCRIPTION_IDENTIFIER, ())
    if isinstance(identifiers, int):
        identifiers = (identifiers,)
    found.deliveries.append(
        DbDelivery(
            fields.place, store_id, client_id, packet_id, qos, state, bool(retain_dup >> 4), direction,
            tuple(identifiers),
        )
    )  # fmt: skip


def _read_retain(found: MosquittoDb, fields: _Fields) -> None:
    (store_id,) = fields.numbers(_STORE_ID)
    fields.end()
    found.retained.append((fields.place, store_id))


def _read_subscription(found: MosquittoDb, fields: _Fields) -> None:
    identifier, id_size, topic_size, qos, options = fields.numbers(_SUBSCRIPTION_FIELDS)
    client_id = fields.text(id_size, "client identifier")
    text = fields.text(topic_size, "topic filter")
    fields.end()
    try:
        _, inner = parse_filter(text)
    except ValueError as error:
        raise _Bad(f"its topic filter: {error}") from None
    if not valid_filter(inner):
        raise _Bad("its topic filter is not valid")
    if qos > 2 or options >> 4 > 2:
        raise _Bad(f"its options are not valid: QoS {qos}, {options:#x}")
    if identifier > 268_435_455:
        raise _Bad(f"there is no subscription identifier {identifier}")
    found.subscriptions.append(
        DbSubscription(
            fields.place, client_id, text, qos, bool(options & 4), bool(options & 8), options >> 4, identifier
        )
    )


def _read_client(found: MosquittoDb, fields: _Fields) -> None:
    (expires,) = fields.numbers(_CLIENT_TIME)
    interval, last_packet_id, id_size = fields.numbers(_CLIENT_FIELDS)
    port = username_size = 0
    if found.version >= 6:
        port, username_size = fields.numbers(_CLIENT_MORE)
    client_id = fields.text(id_size, "client identifier")
    username = (fields.text(username_size, "user name") or None) if username_size else None
    fields.end()
    if not client_id:
        raise _Bad("it has no client ID")
    if client_id in found.clients:
        raise _Bad(f"client {client_id[:100]} already exists")
    found.clients[client_id] = DbClient(
        fields.place, client_id, _time(expires, "expiry"), interval, last_packet_id, port, username
    )


def _drop_loose_ends(found: MosquittoDb) -> None:
    """Report and remove references to objects that do not exist."""

    def loose(place: int, what: str, why: str) -> None:
        found.damage.append(Damage(place, what, why))

    deliveries = []
    for delivery in found.deliveries:
        if delivery.client_id not in found.clients:
            loose(delivery.place, "delivery", f"there is no client {delivery.client_id[:100]}")
        elif delivery.store_id not in found.messages:
            loose(delivery.place, "delivery", f"there is no message {delivery.store_id}")
        else:
            deliveries.append(delivery)
    found.deliveries = deliveries
    subscriptions = []
    for subscription in found.subscriptions:
        if subscription.client_id not in found.clients:
            loose(subscription.place, "subscription", f"there is no client {subscription.client_id[:100]}")
        else:
            subscriptions.append(subscription)
    found.subscriptions = subscriptions
    retained = []
    for place, store_id in found.retained:
        if store_id not in found.messages:
            loose(place, "retained message", f"there is no message {store_id}")
        else:
            retained.append((place, store_id))
    found.retained = retained
    found.damage.sort(key=lambda each: each.offset)
