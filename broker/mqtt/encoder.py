"""Encoder from Control Packets to bytes, for MQTT 3.1, 3.1.1 and 5.0. Many subscribers can share one encoded PUBLISH.

The node creates these packets, so a value that cannot be encoded (a string above 65,535 bytes) raises
``ValueError``."""

from typing import Final

from .constants import (
    AUTH,
    BRIDGE_BIT,
    CONNACK,
    CONNECT,
    DISCONNECT,
    MAX_STRING,
    MESSAGE_EXPIRY_INTERVAL,
    REASON_STRING,
    SUBACK,
    SUBSCRIBE,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    UNSUBACK,
    UNSUBSCRIBE,
    USER_PROPERTY,
    V3,
    V5,
)
from .data_types import BYTE, TWO_BYTES, binary, string, variable
from .message import Delivery, Message
from .packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from .properties import body_of, write
from .reason_codes import UNSPECIFIED_ERROR, V3_SUBACK_FAILURE, to_v3_connack

Outgoing = (
    Message
    | Connect
    | Connack
    | Ack
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
    | int
)
"""Arguments of ``encode``. An ``int`` is a plain acknowledgement: ``type << 16 | packet_id``."""

PACKET_ID: Final = TWO_BYTES
"""Packet Identifier -> the two bytes that encode it."""

_ACK_HEAD: Final[list[bytes]] = [bytes((kind << 4 | (2 if kind == 6 else 0), 2)) for kind in range(16)]

_ALIAS: Final = BYTE[TOPIC_ALIAS]
_IDENTIFIER: Final = SUBSCRIPTION_IDENTIFIER << 8
_LONG_IDENTIFIER: Final = BYTE[SUBSCRIPTION_IDENTIFIER]
_NO_TOPIC: Final = b"\0\0"
_RETAINED: Final = 0x31  # first byte of a PUBLISH

_PINGREQ: Final = b"\xc0\x00"
_PINGRESP: Final = b"\xd0\x00"


def encode(packet: Outgoing, version: int) -> bytes:
    """Encode any Control Packet; ``version`` is 3, 4 or 5. For a CONNECT its own version applies."""
    if isinstance(packet, int):
        return ack(packet >> 16, packet & 0xFFFF)
    if isinstance(packet, Message):
        return publish(packet.topic, packet, version, packet.qos, packet.retain, packet.dup, packet.packet_id)
    if isinstance(packet, Pingresp):
        return _PINGRESP
    if isinstance(packet, Pingreq):
        return _PINGREQ
    if isinstance(packet, Connect):
        return _connect(packet)
    if isinstance(packet, Connack):
        return _connack(packet, version)
    if isinstance(packet, Ack):
        return _acknowledgement(packet, version)
    if isinstance(packet, Suback):
        # The codes are in the caller's order [MQTT-3.9.3-1] [MQTT-3.11.3-1], the id is the request's [MQTT-2.2.1-6].
        if version == V5:
            return _packet(SUBACK << 4, _codes(packet))
        # [3.1.1 MQTT-3.9.3-2]
        codes = bytes([code if code < UNSPECIFIED_ERROR else V3_SUBACK_FAILURE for code in packet.reason_codes])
        return _packet(SUBACK << 4, PACKET_ID[packet.packet_id] + codes)
    if isinstance(packet, Unsuback):
        return _packet(UNSUBACK << 4, _codes(packet) if version == V5 else PACKET_ID[packet.packet_id])
    if isinstance(packet, Subscribe):
        return _subscribe(packet, version)
    if isinstance(packet, Unsubscribe):
        body = PACKET_ID[packet.packet_id] + (write(packet.properties) if version == V5 else b"")
        return _packet(UNSUBSCRIBE << 4 | 2, body + b"".join([string(filter) for filter in packet.filters]))
    if isinstance(packet, Disconnect):
        if version != V5:
            return _packet(DISCONNECT << 4, b"")
        return _packet(DISCONNECT << 4, _reason(packet.reason_code, packet.properties))
    if version != V5:
        raise ValueError("AUTH is 5.0 only")
    return _packet(AUTH << 4, _reason(packet.reason_code, packet.properties))


def encode_within(packet: Outgoing, version: int, max_size: int) -> bytes | None:
    """As ``encode``, but with at most ``max_size`` bytes (0: no limit); ``None`` if the packet cannot be that small
    [MQTT-3.1.2-24].

    If the packet is too large, User Properties and then the Reason String are left out: [MQTT-3.2.2-19] [MQTT-3.2.2-20]
    [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2]
    [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2] [MQTT-3.14.2-3] [MQTT-3.14.2-4]
    [MQTT-3.15.2-2] [MQTT-3.15.2-3]. The User Properties of a PUBLISH belong to the publisher and stay."""
    whole = encode(packet, version)
    if not max_size or len(whole) <= max_size:
        return whole
    if version != V5 or not isinstance(packet, (Connack, Ack, Suback, Unsuback, Disconnect, Auth)):
        return None
    everything = packet.properties
    try:
        for unwanted in ((USER_PROPERTY,), (USER_PROPERTY, REASON_STRING)):
            packet.properties = {key: value for key, value in everything.items() if key not in unwanted}
            whole = encode(packet, version)
            if len(whole) <= max_size:
                return whole
    finally:
        packet.properties = everything
    return None


def ack(type: int, packet_id: int) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP with success [MQTT-2.2.1-5]: the same four bytes in all versions."""
    return _ACK_HEAD[type] + PACKET_ID[packet_id]


def publish0(message: Message, version: int) -> bytes:
    """Encode the message with QoS 0, RETAIN 0 and no identifiers: the same bytes for every client that receives it
    this way.

    Not for 5.0 messages with a Message Expiry Interval, because the remaining interval changes.
    """
    whole = message.wire0_v5 if version == V5 else message.wire0_v3
    if whole is None:
        whole = publish(message.topic, message, version, 0, False, False, 0)
        if version == V5:
            message.wire0_v5 = whole
        else:
            message.wire0_v3 = whole
    return whole


def retained0(parts: list[bytes], message: Message, version: int, identifiers: tuple[int, ...]) -> None:
    """Add the message, at QoS 0 with RETAIN 1, to ``parts``. Not for 5.0 messages with a Message Expiry Interval."""
    topic = message.topic.encode()
    before = _before_payload(message, version, identifiers, 0, None)
    payload = message.payload
    length = len(topic)
    if length > MAX_STRING:
        raise ValueError("longer than 65535 bytes")
    size = length + 2 + len(before) + len(payload)
    if size < 0x80:
        parts.append(TWO_BYTES[_RETAINED << 8 | size])
    else:
        parts.append(BYTE[_RETAINED] + variable(size))
    parts.append(TWO_BYTES[length])
    parts.append(topic)
    if before:
        parts.append(before)
    parts.append(payload)


def wire(delivery: Delivery, version: int) -> tuple[bytes, bytes]:
    """Encode the PUBLISH of a delivery, with DUP 0: (bytes before the Packet Identifier, bytes after it).

    At QoS 0 the first part contains everything. It is encoded once per delivery. A Message Expiry Interval is the
    publisher's; if it has to be reduced, use ``publish``."""
    parts = delivery.wire_v5 if version == V5 else delivery.wire_v3
    if parts is not None:
        return parts
    message = delivery.message
    qos = delivery.qos
    if not qos and not delivery.retain and not delivery.identifiers:
        parts = (publish0(message, version), b"")
    elif (
        message.packet_id_at
        and qos == message.qos
        and (message.frame_version == V5) == (version == V5)
        and not delivery.retain
        and not delivery.identifiers
    ):
        at = message.packet_id_at
        parts = (message.frame[:at], message.frame[at + 2 :])
    else:
        topic = string(message.topic)
        before = _before_payload(message, version, delivery.identifiers, 0, None)
        payload = message.payload
        first = 0x31 if delivery.retain else 0x30
        size = len(topic) + len(before) + len(payload)
        if qos:
            parts = (_fixed_header(first | qos << 1, size + 2) + topic, before + payload)
        else:
            parts = (b"".join((_fixed_header(first, size), topic, before, payload)), b"")
    if version == V5:
        delivery.wire_v5 = parts
    else:
        delivery.wire_v3 = parts
    return parts


def publish(
    topic: str,
    message: Message,
    version: int,
    qos: int,
    retain: bool,
    dup: bool,
    packet_id: int,
    identifiers: tuple[int, ...] = (),
    alias: int = 0,
    expiry: int | None = None,
) -> bytes:
    """Encode a PUBLISH with all fields that are specific to one client.

    ``topic`` replaces the message's topic (empty if ``alias`` is known to the client). ``expiry`` in seconds replaces
    the Message Expiry Interval [MQTT-3.3.2-6]. Identifiers, alias and properties are left out for 3.x."""
    head = string(topic) if topic else _NO_TOPIC
    if qos:
        head += PACKET_ID[packet_id]  # [MQTT-2.2.1-2]
    before = _before_payload(message, version, identifiers, alias, expiry)
    payload = message.payload
    first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    return b"".join((_fixed_header(first, len(head) + len(before) + len(payload)), head, before, payload))


def _before_payload(
    message: Message, version: int, identifiers: tuple[int, ...], alias: int, expiry: int | None
) -> bytes:
    """Encode the part of a PUBLISH between Packet Identifier and payload: in 5.0 the properties, the node's own
    first."""
    if version != V5:
        return b""
    own = _ALIAS + TWO_BYTES[alias] if alias else b""
    for identifier in identifiers:
        own += TWO_BYTES[_IDENTIFIER | identifier] if identifier < 0x80 else _LONG_IDENTIFIER + variable(identifier)
    if not message.has_properties:
        return variable(len(own)) + own
    # [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]: unchanged.
    if expiry is None or not message.expires:
        block = message.block
    elif message.expiry_at:
        at = message.expiry_at
        block = message.block
        block = b"".join((block[:at], TWO_BYTES[expiry >> 16], TWO_BYTES[expiry & 0xFFFF], block[at + 4 :]))
    else:
        block = body_of({**message.properties, MESSAGE_EXPIRY_INTERVAL: expiry})
    return b"".join((variable(len(own) + len(block)), own, block))


def _fixed_header(first: int, size: int) -> bytes:
    return TWO_BYTES[first << 8 | size] if size < 0x80 else BYTE[first] + variable(size)


def _packet(first: int, body: bytes) -> bytes:
    return _fixed_header(first, len(body)) + body


def _codes(packet: Suback | Unsuback) -> bytes:
    return PACKET_ID[packet.packet_id] + write(packet.properties) + bytes(packet.reason_codes)


def _reason(reason_code: int, properties: Properties) -> bytes:
    """Encode Reason Code and properties in their shortest form."""
    if properties:
        return bytes((reason_code,)) + write(properties)
    return bytes((reason_code,)) if reason_code else b""


def _acknowledgement(packet: Ack, version: int) -> bytes:
    if version != V5:
        return ack(packet.type, packet.packet_id)
    body = PACKET_ID[packet.packet_id] + _reason(packet.reason_code, packet.properties)
    return _packet(_ACK_HEAD[packet.type][0], body)


def _connack(packet: Connack, version: int) -> bytes:
    if version == V5:
        flags = b"\1" if packet.session_present else b"\0"
        return _packet(CONNACK << 4, flags + bytes((packet.reason_code,)) + write(packet.properties))
    # In 3.1 the byte of Session Present is reserved.
    present = 1 if packet.session_present and version != V3 else 0
    return bytes((CONNACK << 4, 2, present, to_v3_connack(packet.reason_code)))


def _connect(packet: Connect) -> bytes:
    flags = 2 if packet.clean_start else 0
    v5 = packet.version == V5
    payload = [string(packet.client_id)]
    will = packet.will
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        if v5:
            payload.append(write(will.properties))
        payload.append(string(will.topic))
        payload.append(binary(will.payload))
    if packet.username is not None:
        flags |= 0x80
        payload.append(string(packet.username))
    if packet.password is not None:
        flags |= 0x40
        payload.append(binary(packet.password))
    level = packet.version | (BRIDGE_BIT if packet.is_bridge else 0)
    head = b"\0\x06MQIsdp" if packet.version == V3 else b"\0\x04MQTT"
    head += bytes((level, flags, packet.keep_alive >> 8, packet.keep_alive & 0xFF))
    if v5:
        head += write(packet.properties)
    return _packet(CONNECT << 4, head + b"".join(payload))


def _subscribe(packet: Subscribe, version: int) -> bytes:
    parts = [PACKET_ID[packet.packet_id]]
    if version == V5:
        parts.append(write(packet.properties))
    for entry in packet.filters:
        options = entry.qos
        if version == V5:
            options |= 4 if entry.no_local else 0
            options |= 8 if entry.retain_as_published else 0
            options |= entry.retain_handling << 4
        parts.append(string(entry.filter))
        parts.append(bytes((options,)))
    return _packet(SUBSCRIBE << 4 | 2, b"".join(parts))
