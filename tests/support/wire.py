"""MQTT as a client sees it, read and written without the broker's codec, so that a fault there cannot hide itself.

``encode`` writes what a Client sends; ``read`` is strict about what a Server sends: fixed header flags, allowed
properties, Reason Codes, exact lengths, valid UTF-8 and minimal variable byte integers. Anything wrong is a
``WireError``, so every scenario also checks the form of every packet it receives.
"""

import struct
from dataclasses import dataclass, field
from typing import Any, Final

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import (
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
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)


class WireError(AssertionError):
    """The broker sent something the standard does not allow."""


@dataclass(slots=True)
class Publish:
    """A PUBLISH as it stands on the wire, either direction."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=dict)


Packet = (
    Publish
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
)

# Property identifier -> its data type.
BYTE, TWO, FOUR, VARIABLE, STRING, BINARY, PAIR = range(7)
PROPERTY_TYPES: Final[dict[int, int]] = {
    1: BYTE, 2: FOUR, 3: STRING, 8: STRING, 9: BINARY, 11: VARIABLE, 17: FOUR, 18: STRING, 19: TWO, 21: STRING,
    22: BINARY, 23: BYTE, 24: FOUR, 25: BYTE, 26: STRING, 28: STRING, 31: STRING, 33: TWO, 34: TWO, 35: TWO, 36: BYTE,
    37: BYTE, 38: PAIR, 39: FOUR, 40: BYTE, 41: BYTE, 42: BYTE,
}  # fmt: skip

_ACK_PROPERTIES = {31, 38}
# What a Server may send in each packet (MQTT 5.0 table 2-4).
SERVER_PROPERTIES: Final[dict[int, set[int]]] = {
    c.CONNACK: {17, 18, 19, 21, 22, 26, 28, 31, 33, 34, 36, 37, 38, 39, 40, 41, 42},
    c.PUBLISH: {1, 2, 3, 8, 9, 11, 35, 38},
    c.PUBACK: _ACK_PROPERTIES,
    c.PUBREC: _ACK_PROPERTIES,
    c.PUBREL: _ACK_PROPERTIES,
    c.PUBCOMP: _ACK_PROPERTIES,
    c.SUBACK: _ACK_PROPERTIES,
    c.UNSUBACK: _ACK_PROPERTIES,
    c.DISCONNECT: {28, 31, 38},  # never 17 [MQTT-3.14.2-2]
    c.AUTH: {21, 22, 31, 38},
}
SERVER_REASON_CODES: Final[dict[int, set[int]]] = {
    c.CONNACK: {0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99,
                0x9A, 0x9B, 0x9C, 0x9D, 0x9F},
    c.PUBACK: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    c.PUBREC: {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
    c.PUBREL: {0x00, 0x92},
    c.PUBCOMP: {0x00, 0x92},
    c.SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    c.UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    c.DISCONNECT: {0x00, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
                   0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2},
    c.AUTH: {0x00, 0x18},
}  # fmt: skip


# --- writing ---------------------------------------------------------------------------------------------------------


def variable(number: int) -> bytes:
    """A Variable Byte Integer."""
    out = bytearray()
    while True:
        number, low = divmod(number, 128)
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def binary(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value


def string(value: str) -> bytes:
    return binary(value.encode())


def properties(values: Properties) -> bytes:
    """The property block with its length."""
    out = bytearray()
    for identifier, value in values.items():
        kind = PROPERTY_TYPES[identifier]
        for each in value if isinstance(value, list) else [value]:
            out += variable(identifier)
            if kind == BYTE:
                out.append(each)
            elif kind == TWO:
                out += struct.pack("!H", each)
            elif kind == FOUR:
                out += struct.pack("!I", each)
            elif kind == VARIABLE:
                out += variable(each)
            elif kind == STRING:
                out += string(each)
            elif kind == BINARY:
                out += binary(each)
            else:
                out += string(each[0]) + string(each[1])
    return variable(len(out)) + bytes(out)


def frame(first: int, body: bytes) -> bytes:
    """A whole Control Packet of its first byte and everything behind the Remaining Length."""
    return bytes([first]) + variable(len(body)) + body


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of a packet that a Client may send."""
    if isinstance(packet, Publish):
        first = c.PUBLISH << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain
        body = string(packet.topic)
        if packet.qos:
            body += struct.pack("!H", packet.packet_id)
        if version == 5:
            body += properties(packet.properties)
        return frame(first, body + packet.payload)
    if isinstance(packet, Connect):
        return _connect(packet)
    if isinstance(packet, Ack):
        first = packet.type << 4 | (2 if packet.type == c.PUBREL else 0)
        body = struct.pack("!H", packet.packet_id)
        if version == 5 and (packet.reason_code or packet.properties):
            body += bytes([packet.reason_code])
            if packet.properties:
                body += properties(packet.properties)
        return frame(first, body)
    if isinstance(packet, Subscribe):
        body = struct.pack("!H", packet.packet_id)
        if version == 5:
            body += properties(packet.properties)
        for each in packet.filters:
            options = each.qos
            if version == 5:
                options |= each.no_local << 2 | each.retain_as_published << 3 | each.retain_handling << 4
            body += string(each.filter) + bytes([options])
        return frame(c.SUBSCRIBE << 4 | 2, body)
    if isinstance(packet, Unsubscribe):
        body = struct.pack("!H", packet.packet_id)
        if version == 5:
            body += properties(packet.properties)
        for topic_filter in packet.filters:
            body += string(topic_filter)
        return frame(c.UNSUBSCRIBE << 4 | 2, body)
    if isinstance(packet, Pingreq):
        return b"\xc0\x00"
    if isinstance(packet, Disconnect | Auth):
        kind = c.DISCONNECT if isinstance(packet, Disconnect) else c.AUTH
        body = b""
        if version == 5 and (packet.reason_code or packet.properties):
            body = bytes([packet.reason_code])
            if packet.properties:
                body += properties(packet.properties)
        return frame(kind << 4, body)
    raise TypeError(f"a client does not send {packet!r}")


def _connect(packet: Connect) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    flags |= (packet.password is not None) << 6 | (packet.username is not None) << 7
    level = packet.version | (c.BRIDGE_BIT if packet.is_bridge else 0)
    body = string("MQIsdp" if packet.version == 3 else "MQTT") + bytes([level, flags])
    body += struct.pack("!H", packet.keep_alive)
    if packet.version == 5:
        body += properties(packet.properties)
    body += string(packet.client_id)
    if will is not None:
        if packet.version == 5:
            body += properties(will.properties)
        body += string(will.topic) + binary(will.payload)
    if packet.username is not None:
        body += string(packet.username)
    if packet.password is not None:
        body += binary(packet.password)
    return frame(c.CONNECT << 4, body)


# --- reading ---------------------------------------------------------------------------------------------------------


class Body:
    """A cursor over one packet's body; running over the end is a ``WireError``."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise WireError(f"{length} bytes wanted, {self.left} left in {self.data!r}")
        self.at += length
        return self.data[self.at - length : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def two(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def four(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def variable(self) -> int:
        value = 0
        for place in range(4):
            byte = self.byte()
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if place and byte == 0:
                    raise WireError("variable byte integer is not minimal [MQTT-1.5.5-1]")
                return value
        raise WireError("variable byte integer of five bytes")

    def binary(self) -> bytes:
        return self.take(self.two())

    def string(self) -> str:
        text = self.binary().decode()  # strict: no surrogates, no overlong forms [MQTT-1.5.4-1]
        if "\0" in text:
            raise WireError("U+0000 in a string [MQTT-1.5.4-2]")
        return text

    def _value(self, data_type: int) -> Any:
        if data_type == PAIR:
            return self.string(), self.string()
        return (self.byte, self.two, self.four, self.variable, self.string, self.binary)[data_type]()

    def properties(self, kind: int) -> Properties:
        length = self.variable()
        end = self.at + length
        if length > self.left:
            raise WireError("property length runs over the packet")
        found: dict[int, Any] = {}
        while self.at < end:
            identifier = self.variable()
            if identifier not in SERVER_PROPERTIES[kind]:
                raise WireError(f"property {identifier} in packet type {kind}")
            value = self._value(PROPERTY_TYPES[identifier])
            if identifier in (c.USER_PROPERTY, c.SUBSCRIPTION_IDENTIFIER):
                found.setdefault(identifier, []).append(value)
            elif identifier in found:
                raise WireError(f"property {identifier} twice in packet type {kind}")
            else:
                found[identifier] = value
        if self.at != end:
            raise WireError("a property runs over the property length")
        return found


class Reader:
    """Cuts a byte stream into packets. ``version`` is what the CONNECT asked for."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Packet, bytes]]:
        """The packets completed by ``data``, each with its exact bytes."""
        self.buffer += data
        packets: list[tuple[Packet, bytes]] = []
        while True:
            raw = self._cut()
            if raw is None:
                return packets
            packets.append((read(raw, self.version), raw))

    def _cut(self) -> bytes | None:
        length = 0
        for place in range(4):
            if len(self.buffer) < place + 2:
                return None
            byte = self.buffer[place + 1]
            length |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                size = place + 2 + length
                if len(self.buffer) < size:
                    return None
                raw = bytes(self.buffer[:size])
                del self.buffer[:size]
                return raw
        raise WireError("Remaining Length of five bytes")


def read(raw: bytes, version: int) -> Packet:
    """One packet of a Server, checked to the letter."""
    kind, flags = raw[0] >> 4, raw[0] & 15
    header = Body(raw[1:])
    header.variable()
    body = Body(header.take(header.left))
    expected_flags = 2 if kind == c.PUBREL else 0
    if kind != c.PUBLISH and flags != expected_flags:
        raise WireError(f"reserved header flags {flags:#x} in packet type {kind} [MQTT-2.1.3-1]")
    packet = _READERS[kind](kind, flags, body, version) if kind in _READERS else None
    if packet is None:
        raise WireError(f"a Server does not send packet type {kind}")
    if body.left:
        raise WireError(f"{body.left} bytes left over in packet type {kind}")
    return packet


def _reason_code(kind: int, code: int) -> int:
    if code not in SERVER_REASON_CODES[kind]:
        raise WireError(f"Reason Code {code:#x} in packet type {kind}")
    return code


def _read_connack(kind: int, flags: int, body: Body, version: int) -> Packet:
    acknowledge, code = body.byte(), body.byte()
    if acknowledge > 1:
        raise WireError("reserved Connect Acknowledge Flags [MQTT-3.2.2-1]")
    if code and acknowledge:
        raise WireError("Session Present with a refusal [MQTT-3.2.2-6] [3.1.1 MQTT-3.2.2-4]")
    if version == 3 and acknowledge:
        raise WireError("the first byte of CONNACK is reserved in MQTT 3.1")
    if version == 5:
        found = body.properties(kind)
        for identifier in (c.RETAIN_AVAILABLE, c.MAXIMUM_QOS, 40, 41, 42):
            if found.get(identifier, 0) > 1:
                raise WireError(f"CONNACK property {identifier} is neither 0 nor 1")
        if found.get(c.RECEIVE_MAXIMUM) == 0 or found.get(c.MAXIMUM_PACKET_SIZE) == 0:
            raise WireError("Receive Maximum or Maximum Packet Size 0")
        return Connack(_reason_code(kind, code), bool(acknowledge), found)
    if code > 5:
        raise WireError(f"CONNACK return code {code}")
    return Connack(code, bool(acknowledge))


def _read_publish(kind: int, flags: int, body: Body, version: int) -> Packet:
    qos = flags >> 1 & 3
    if qos == 3:
        raise WireError("QoS 3 [MQTT-3.3.1-4]")
    if not qos and flags & 8:
        raise WireError("DUP with QoS 0 [MQTT-3.3.1-2]")
    topic = body.string()
    if "+" in topic or "#" in topic:
        raise WireError(f"wildcard in Topic Name {topic!r} [MQTT-3.3.2-2]")
    packet_id = body.two() if qos else 0
    if qos and not packet_id:
        raise WireError("Packet Identifier 0 [MQTT-2.2.1-4]")
    found = body.properties(kind) if version == 5 else {}
    if not topic and c.TOPIC_ALIAS not in found:
        raise WireError("neither topic nor alias")
    if found.get(c.TOPIC_ALIAS) == 0:
        raise WireError("Topic Alias 0 [MQTT-3.3.2-8]")
    if 0 in found.get(c.SUBSCRIPTION_IDENTIFIER, ()):
        raise WireError("Subscription Identifier 0")
    return Publish(topic, body.take(body.left), qos, bool(flags & 1), bool(flags & 8), packet_id, found)


def _read_ack(kind: int, flags: int, body: Body, version: int) -> Packet:
    ack = Ack(kind, body.two())
    if not ack.packet_id:
        raise WireError("Packet Identifier 0")
    if version == 5 and body.left:
        ack.reason_code = _reason_code(kind, body.byte())
        if body.left:
            ack.properties = body.properties(kind)
        if not ack.reason_code and not ack.properties:
            raise WireError("the short form says Reason Code 0 without properties")
    return ack


def _read_suback(kind: int, flags: int, body: Body, version: int) -> Packet:
    packet_id = body.two()
    found = body.properties(kind) if version == 5 else {}
    codes = list(body.take(body.left))
    for code in codes:
        if version != 5 and code not in (0, 1, 2, 0x80):
            raise WireError(f"SUBACK return code {code:#x} [3.1.1 MQTT-3.9.3-2]")
        _reason_code(kind, code)
    return Suback(packet_id, codes, found)


def _read_unsuback(kind: int, flags: int, body: Body, version: int) -> Packet:
    packet_id = body.two()
    if version != 5:
        return Unsuback(packet_id, [])
    found = body.properties(kind)
    return Unsuback(packet_id, [_reason_code(kind, code) for code in body.take(body.left)], found)


def _read_pingresp(kind: int, flags: int, body: Body, version: int) -> Packet:
    return Pingresp()


def _read_disconnect(kind: int, flags: int, body: Body, version: int) -> Packet:
    if version != 5:
        raise WireError("DISCONNECT from a Server before 5.0")
    packet: Disconnect | Auth = Disconnect() if kind == c.DISCONNECT else Auth()
    if body.left:
        packet.reason_code = _reason_code(kind, body.byte())
        if body.left:
            packet.properties = body.properties(kind)
    return packet


_READERS: Final = {
    c.CONNACK: _read_connack,
    c.PUBLISH: _read_publish,
    c.PUBACK: _read_ack,
    c.PUBREC: _read_ack,
    c.PUBREL: _read_ack,
    c.PUBCOMP: _read_ack,
    c.SUBACK: _read_suback,
    c.UNSUBACK: _read_unsuback,
    c.PINGRESP: _read_pingresp,
    c.DISCONNECT: _read_disconnect,
    c.AUTH: _read_disconnect,
}

__all__ = ["Body", "Packet", "Publish", "Reader", "TopicFilter", "Will", "WireError", "encode", "frame", "read"]
