"""The properties of MQTT 5.0 (section 2.2.2): one table, and the functions that read and write properties with it."""

from sys import getsizeof
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from . import constants as c
from .data_types import binary, read_binary, read_string, read_variable, string, utf8, variable
from .errors import MalformedPacket, MqttError, ProtocolError
from .packets import NO_PROPERTIES, Properties
from .reason_codes import QUOTA_EXCEEDED, TOPIC_ALIAS_INVALID
from .topics import has_wildcard

if TYPE_CHECKING:
    from mypy_extensions import i64

# Wire types (MQTT 5.0 table 2-4). Types from BINARY on begin with a length of two bytes.
BYTE: Final = 1
TWO_BYTE: Final = 2
FOUR_BYTE: Final = 4
VARIABLE: Final = 5
BINARY: Final = 6
STRING: Final = 7
STRING_PAIR: Final = 8

_LISTS: Final = (c.SUBSCRIPTION_IDENTIFIER, c.USER_PROPERTY)
"""Properties that a PUBLISH may contain more than once."""

MAX_USER_PROPERTIES: Final = 16_384
"""Maximum number in one packet. Empty ones would block the loop, and use many times their size in memory."""

WILL: Final = 0
"""Means the Will Properties in places where a Control Packet type is expected."""

_CONNECT: Final = 1 << c.CONNECT
_WILL: Final = 1 << WILL
_CONNACK: Final = 1 << c.CONNACK
_PUBLISH: Final = 1 << c.PUBLISH
_ACKS: Final = 1 << c.PUBACK | 1 << c.PUBREC | 1 << c.PUBREL | 1 << c.PUBCOMP
_SUBSCRIBE: Final = 1 << c.SUBSCRIBE
_SUBACKS: Final = 1 << c.SUBACK | 1 << c.UNSUBACK
_UNSUBSCRIBE: Final = 1 << c.UNSUBSCRIBE
_DISCONNECT: Final = 1 << c.DISCONNECT
_AUTH: Final = 1 << c.AUTH

_MISPLACED_IS_PROTOCOL_ERROR: Final = _PUBLISH | _ACKS | _DISCONNECT
"""A known property in the wrong packet is malformed according to the standard, but public test suites expect 0x82 for
these packets."""


class Property:
    """A row of the table: ``type`` (wire format), ``name``, ``packets`` as bits ``1 << Control Packet type`` (``WILL``
    included), and the least and greatest value of a number."""

    __slots__ = ("greatest", "identifier", "least", "name", "packets", "type")

    def __init__(
        self, identifier: int, name: str, type: int, packets: int, least: int = 0, greatest: int = 0xFFFF_FFFF
    ) -> None:
        self.identifier = identifier
        self.name = name
        self.type = type
        self.packets = packets
        self.least = least
        self.greatest = greatest


_MESSAGE: Final = _PUBLISH | _WILL
_EVERY: Final = (
    _CONNECT | _WILL | _CONNACK | _PUBLISH | _ACKS | _SUBSCRIBE | _SUBACKS | _UNSUBSCRIBE | _DISCONNECT | _AUTH
)

TABLE: Final[dict[int, Property]] = {
    row.identifier: row
    for row in (
        Property(c.PAYLOAD_FORMAT_INDICATOR, "Payload-Format-Indicator", BYTE, _MESSAGE, 0, 1),
        Property(c.MESSAGE_EXPIRY_INTERVAL, "Message-Expiry-Interval", FOUR_BYTE, _MESSAGE),
        Property(c.CONTENT_TYPE, "Content-Type", STRING, _MESSAGE),
        Property(c.RESPONSE_TOPIC, "Response-Topic", STRING, _MESSAGE),
        Property(c.CORRELATION_DATA, "Correlation-Data", BINARY, _MESSAGE),
        Property(c.SUBSCRIPTION_IDENTIFIER, "Subscription-Identifier", VARIABLE, _PUBLISH | _SUBSCRIBE, 1),
        Property(c.SESSION_EXPIRY_INTERVAL, "Session-Expiry-Interval", FOUR_BYTE, _CONNECT | _CONNACK | _DISCONNECT),
        Property(c.ASSIGNED_CLIENT_IDENTIFIER, "Assigned-Client-Identifier", STRING, _CONNACK),
        Property(c.SERVER_KEEP_ALIVE, "Server-Keep-Alive", TWO_BYTE, _CONNACK),
        Property(c.AUTHENTICATION_METHOD, "Authentication-Method", STRING, _CONNECT | _CONNACK | _AUTH),
        Property(c.AUTHENTICATION_DATA, "Authentication-Data", BINARY, _CONNECT | _CONNACK | _AUTH),
        Property(c.REQUEST_PROBLEM_INFORMATION, "Request-Problem-Information", BYTE, _CONNECT, 0, 1),
        Property(c.WILL_DELAY_INTERVAL, "Will-Delay-Interval", FOUR_BYTE, _WILL),
        Property(c.REQUEST_RESPONSE_INFORMATION, "Request-Response-Information", BYTE, _CONNECT, 0, 1),
        Property(c.RESPONSE_INFORMATION, "Response-Information", STRING, _CONNACK),
        Property(c.SERVER_REFERENCE, "Server-Reference", STRING, _CONNACK | _DISCONNECT),
        Property(c.REASON_STRING, "Reason-String", STRING, _CONNACK | _ACKS | _SUBACKS | _DISCONNECT | _AUTH),
        Property(c.RECEIVE_MAXIMUM, "Receive-Maximum", TWO_BYTE, _CONNECT | _CONNACK, 1),
        Property(c.TOPIC_ALIAS_MAXIMUM, "Topic-Alias-Maximum", TWO_BYTE, _CONNECT | _CONNACK),
        Property(c.TOPIC_ALIAS, "Topic-Alias", TWO_BYTE, _PUBLISH, 1),
        Property(c.MAXIMUM_QOS, "Maximum-QoS", BYTE, _CONNACK, 0, 1),
        Property(c.RETAIN_AVAILABLE, "Retain-Available", BYTE, _CONNACK, 0, 1),
        Property(c.USER_PROPERTY, "User-Property", STRING_PAIR, _EVERY),
        Property(c.MAXIMUM_PACKET_SIZE, "Maximum-Packet-Size", FOUR_BYTE, _CONNECT | _CONNACK, 1),
        Property(c.WILDCARD_SUBSCRIPTION_AVAILABLE, "Wildcard-Subscription-Available", BYTE, _CONNACK, 0, 1),
        Property(c.SUBSCRIPTION_IDENTIFIER_AVAILABLE, "Subscription-Identifier-Available", BYTE, _CONNACK, 0, 1),
        Property(c.SHARED_SUBSCRIPTION_AVAILABLE, "Shared-Subscription-Available", BYTE, _CONNACK, 0, 1),
    )
}
"""Identifier -> the row of the standard's table."""


_PLACE_BYTES: Final = 80
"""Approximate memory of a decoded property, in bytes, without its text."""


def memory_size(properties: Properties) -> int:
    """Return approximately how many bytes of memory decoded properties use. A User Property of 5 bytes uses 160."""
    size = 0
    for identifier, value in properties.items():
        if identifier == c.USER_PROPERTY:
            for name, text in value:
                size += _PLACE_BYTES + getsizeof(name) + getsizeof(text)
        else:
            size += _PLACE_BYTES + getsizeof(value)
    return size


def read(data: bytes, at: int, end: int, packet_type: int, strict: bool) -> tuple[Properties, int]:
    """Read the properties at ``at``, which begin with their length. Return them and the offset after them.

    ``packet_type`` is a Control Packet type or ``WILL``; ``end`` is the end of the packet. An unknown property is
    malformed. A second property of the same kind, or a number out of range, is a Protocol Error."""
    size, at = read_variable(data, at, end)
    if not size:
        return NO_PROPERTIES, at
    stop = at + size
    if stop > end:
        raise MalformedPacket("properties run over the end of the packet")
    return read_block(data, at, stop, packet_type, strict), stop


def read_block(data: bytes, at: int, stop: int, packet_type: int, strict: bool) -> Properties:
    """Read the properties from ``at`` to ``stop``, which do not include their length; see ``read``."""
    properties: Properties = {}
    while at < stop:
        # All identifiers are below 128, but the error should name a longer or overlong one correctly.
        identifier = data[at]
        at += 1
        if identifier >= 0x80:
            identifier, at = read_variable(data, at - 1, stop)
        row = TABLE.get(identifier)
        if row is None:
            raise MalformedPacket(f"unknown property {identifier}")
        if not row.packets >> packet_type & 1:
            detail = f"{row.name} does not belong in this packet"
            if _MISPLACED_IS_PROTOCOL_ERROR >> packet_type & 1:
                raise ProtocolError(detail)
            raise MalformedPacket(detail)
        kind = row.type
        if kind == STRING_PAIR:
            # [MQTT-1.5.7-1], in the order of arrival [MQTT-3.1.3-10] [MQTT-3.3.2-18]
            key, at = read_string(data, at, stop, strict)
            value, at = read_string(data, at, stop, strict)
            if identifier in properties:
                pairs = properties[identifier]
                if len(pairs) >= MAX_USER_PROPERTIES:
                    raise ProtocolError(f"more than {MAX_USER_PROPERTIES} User Properties", QUOTA_EXCEEDED)
                pairs.append((key, value))
            else:
                properties[identifier] = [(key, value)]
            continue
        if identifier in properties and (identifier != c.SUBSCRIPTION_IDENTIFIER or packet_type != c.PUBLISH):
            raise ProtocolError(f"{row.name} occurs twice")
        if kind == STRING:
            # [MQTT-3.3.2-13] [MQTT-3.3.2-19]
            text, at = read_string(data, at, stop, strict)
            if identifier == c.RESPONSE_TOPIC and (not text or has_wildcard(text)):
                # [MQTT-3.3.2-14] [MQTT-4.7.3-1]
                raise ProtocolError("Response-Topic is not a Topic Name")
            properties[identifier] = text
        elif kind == BINARY:
            properties[identifier], at = read_binary(data, at, stop)
        else:
            number, at = _read_number(data, at, stop, kind)
            if number < row.least or number > row.greatest:
                detail = f"{row.name} may not be {number}"
                if identifier == c.TOPIC_ALIAS:
                    # [MQTT-3.3.2-8]
                    raise ProtocolError(detail, TOPIC_ALIAS_INVALID)
                raise ProtocolError(detail)
            if identifier == c.SUBSCRIPTION_IDENTIFIER and packet_type == c.PUBLISH:
                if identifier in properties:
                    properties[identifier].append(number)
                else:
                    properties[identifier] = [number]
            else:
                properties[identifier] = number
    return properties


def of_publish(given: Properties) -> Properties | None:
    """Return the properties as ``read`` would return them; ``None`` if no client can send them in a PUBLISH. They do
    not come from a packet, so their names and values can be anything."""
    if any(isinstance(value, list) != (identifier in _LISTS) for identifier, value in given.items()):
        return None
    try:
        block = body_of(given)
        properties = read_block(block, 0, len(block), c.PUBLISH, False)
    except (MqttError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return None if c.SUBSCRIPTION_IDENTIFIER in properties else properties  # [MQTT-3.3.4-6]


# For ``find_block``, for each identifier below 128: its type in a client's PUBLISH (0: not allowed), and a separate bit
# if it may occur only once.
_PUBLISH_TYPES: Final = bytes(
    [
        TABLE[each].type
        if each in TABLE and each != c.SUBSCRIPTION_IDENTIFIER and TABLE[each].packets & _PUBLISH
        else 0
        for each in range(128)
    ]
)
_SINGLE: Final = [each for each in range(128) if _PUBLISH_TYPES[each] not in (0, STRING_PAIR)]
_SINGLE_BITS: Final = bytes([1 << _SINGLE.index(each) if each in _SINGLE else 0 for each in range(128)])
_UNUSUAL: Final = (0, 0, 0, 0)


def find_block(data: bytes, start: int, strict: bool) -> tuple[int, int, int, int]:
    """Return the positions in a PUBLISH where the properties begin (after their length) and end, and the offsets from
    there of the values of Topic Alias and Message Expiry Interval (0 if absent). All zeros: ``read`` has to decode the
    properties at ``start``.

    Accepts only properties that ``read`` accepts, and creates no objects. Properties that it leaves to ``read`` are
    rare or invalid.
    """
    size: i64 = len(data)
    at: i64 = start
    if at >= size:
        return _UNUSUAL
    length: i64 = data[at]
    at += 1
    if length >= 0x80:
        if at >= size:
            return _UNUSUAL
        high: i64 = data[at]
        at += 1
        if high >= 0x80 or high == 0:
            return _UNUSUAL
        length = length & 0x7F | high << 7
    begin: i64 = at
    stop: i64 = at + length
    if length == 0 or stop > size:
        return _UNUSUAL
    compiled = _COMPILED
    alias_at: i64 = 0
    expiry_at: i64 = 0
    seen: i64 = 0
    while at < stop:
        identifier: i64 = data[at]
        at += 1
        if identifier >= 0x80:
            return _UNUSUAL
        kind: i64 = _PUBLISH_TYPES[identifier]
        bit: i64 = _SINGLE_BITS[identifier]
        if seen & bit:
            return _UNUSUAL
        seen |= bit
        if kind >= BINARY:
            strings: i64 = 2 if kind == STRING_PAIR else 1
            while strings > 0:
                strings -= 1
                if at + 2 > stop:
                    return _UNUSUAL
                first: i64 = at + 2
                high = data[at]
                low: i64 = data[at + 1]
                at = first + (high << 8 | low)
                if at > stop:
                    return _UNUSUAL
                if kind != BINARY and not (compiled and _is_printable(data, first, at)):
                    utf8(data[first:at], strict)
            if identifier == c.RESPONSE_TOPIC:
                topic = data[first:at]
                if not topic or b"+" in topic or b"#" in topic:
                    return _UNUSUAL
        elif kind == TWO_BYTE:
            # Topic Alias
            if at + 2 > stop or not (data[at] or data[at + 1]):
                return _UNUSUAL
            alias_at = at - begin
            at += 2
        elif kind == FOUR_BYTE:
            # Message Expiry Interval
            if at + 4 > stop:
                return _UNUSUAL
            expiry_at = at - begin
            at += 4
        elif kind == BYTE:
            # Payload Format Indicator
            if at >= stop or data[at] > 1:
                return _UNUSUAL
            at += 1
        else:
            return _UNUSUAL
    return int(begin), int(stop), int(alias_at), int(expiry_at)


def _is_printable(data: bytes, start: int, end: int) -> bool:
    """Return whether all bytes from ``start`` to ``end`` are printable ASCII."""
    at: i64 = start
    stop: i64 = end
    while at < stop:
        byte: i64 = data[at]
        if byte < 0x20 or byte > 0x7E:
            return False
        at += 1
    return True


# Without compilation, the UTF-8 decoder is faster than checking each byte.
_COMPILED: Final = not isinstance(_is_printable, FunctionType)


def read_last(data: bytes, at: int, end: int, packet_type: int, strict: bool) -> Properties:
    """Read the properties at the end of a packet; nothing follows them."""
    properties, at = read(data, at, end, packet_type, strict)
    if at != end:
        raise MalformedPacket("bytes after the properties")
    return properties


def _read_number(data: bytes, at: int, stop: int, kind: int) -> tuple[int, int]:
    if kind == VARIABLE:
        return read_variable(data, at, stop)
    # BYTE, TWO_BYTE and FOUR_BYTE have their size as value.
    after = at + kind
    if after > stop:
        raise MalformedPacket("property runs over the end of the properties")
    value = 0
    while at < after:
        value = value << 8 | data[at]
        at += 1
    return value, at


def write(properties: Properties) -> bytes:
    """Encode the properties in the order of the dict, after their length [MQTT-2.2.2-1].

    Raises ``KeyError`` for an unknown identifier, ``ValueError`` for a value that cannot be encoded."""
    if not properties:
        return b"\0"
    body = body_of(properties)
    return variable(len(body)) + body


def body_of(properties: Properties) -> bytes:
    """Encode the properties in the order of the dict, without their length."""
    parts: list[bytes] = []
    for identifier, value in properties.items():
        kind = TABLE[identifier].type
        if kind == STRING_PAIR:
            for key, text in value:
                parts.append(b"\x26" + string(key) + string(text))
        elif isinstance(value, list):
            for each in value:
                parts.append(bytes((identifier,)) + _number(kind, each))
        else:
            parts.append(bytes((identifier,)) + _value(kind, value))
    return b"".join(parts)


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return string(value)
    if kind == BINARY:
        return binary(value)
    return _number(kind, value)


def _number(kind: int, value: int) -> bytes:
    if kind == VARIABLE:
        return variable(value)
    try:
        return value.to_bytes(kind, "big")
    except OverflowError:
        raise ValueError(f"{value} does not fit in {kind} bytes") from None
