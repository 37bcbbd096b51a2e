"""The layout of CONNECT (MQTT 5.0 section 3.1). Protocol Name and Protocol Level come first and determine how the rest
is read."""

from typing import Final

from . import reason_codes as rc
from .constants import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, BRIDGE_BIT, CONNECT, V3, V4, V5
from .data_types import read_binary, read_string
from .errors import MalformedPacket, ProtocolError, UnknownProtocol
from .packets import NO_PROPERTIES, Connect, Properties, Will
from .properties import WILL, read
from .topics import has_wildcard

_UNACCEPTABLE_VERSION: Final = b"\x20\x02\x00\x01"
"""CONNACK with return code 1, as in 3.x: clients understand it even if they use an unknown protocol version."""


def read_level(data: bytes, at: int, end: int) -> tuple[int, bool, int]:
    """Read the Protocol Name and Level of a complete CONNECT at the start of ``data``. Return (version, is_bridge,
    offset of the Connect Flags).

    Raises UnknownProtocol, and MalformedPacket for reserved bits in the first byte, if the version defines them."""
    # Name and level determine how everything else is read. This function and all readers that it calls refuse bytes
    # that do not fit the layout [MQTT-3.1.4-1] [3.1.1 MQTT-3.1.4-1]. Client Identifiers of any length are accepted
    # [MQTT-3.1.3-5].
    name, at = read_binary(data, at, end)
    if name != b"MQTT" and name != b"MQIsdp":
        raise UnknownProtocol("Protocol Name is neither MQTT nor MQIsdp")  # [MQTT-3.1.2-1] [3.1.1 MQTT-3.1.2-1]
    if at == end:
        raise MalformedPacket("CONNECT without Protocol Level")
    level = data[at]
    at += 1
    if name == b"MQIsdp":
        version = V3 if level & ~BRIDGE_BIT == V3 else 0
    elif level == V5:
        version = V5
    else:
        version = V4 if level & ~BRIDGE_BIT == V4 else 0
    if not version:
        # [MQTT-3.1.2-2] [3.1.1 MQTT-3.1.2-2]
        raise UnknownProtocol(f"Protocol Level {level}", _UNACCEPTABLE_VERSION)
    if version != V3 and data[0] != 0x10:
        raise MalformedPacket("reserved bits in the first byte")  # [MQTT-2.1.3-1]
    return version, level & BRIDGE_BIT != 0, at


def read_connect(data: bytes, at: int, end: int, version: int, is_bridge: bool, strict: bool) -> Connect:
    """Read the rest of a CONNECT, from the Connect Flags on. Raises MalformedPacket and ProtocolError."""
    if at + 3 > end:
        raise MalformedPacket("CONNECT is too short")
    flags = data[at]
    keep_alive = data[at + 1] << 8 | data[at + 2]
    at += 3
    if version != V3:
        # 3.1 does not define the effect of unused bits.
        if flags & 1:
            raise MalformedPacket("reserved Connect Flag is set")  # [MQTT-3.1.2-3]
        if not flags & 0x04 and flags & 0x38:
            # [MQTT-3.1.2-11] [MQTT-3.1.2-13] [3.1.1 MQTT-3.1.2-11] [3.1.1 MQTT-3.1.2-15]
            raise MalformedPacket("Will QoS or Will Retain without Will Flag")
    if flags & 0x18 == 0x18 and flags & 0x04:
        raise MalformedPacket("Will QoS 3")  # [MQTT-3.1.2-12] [3.1.1 MQTT-3.1.2-14]
    if version != V5 and flags & 0x40 and not flags & 0x80:
        raise MalformedPacket("Password without User Name")  # [3.1.1 MQTT-3.1.2-22]
    properties = NO_PROPERTIES
    if version == V5:
        properties, at = read(data, at, end, CONNECT, strict)
        check_authentication(properties)
    # [MQTT-3.1.3-1] [MQTT-3.1.3-3] [MQTT-3.1.3-4]
    client_id, at = read_string(data, at, end, strict)
    will: Will | None = None
    if flags & 0x04:
        # [MQTT-3.1.2-9] [MQTT-3.1.3-11] [3.1.1 MQTT-3.1.2-9]
        will_properties = NO_PROPERTIES
        if version == V5:
            will_properties, at = read(data, at, end, WILL, strict)
        topic, at = read_string(data, at, end, strict)
        if not topic or has_wildcard(topic):
            # [MQTT-4.7.0-1] [MQTT-4.7.3-1]
            raise ProtocolError("Will Topic is not a Topic Name", rc.TOPIC_NAME_INVALID)
        payload, at = read_binary(data, at, end)
        will = Will(topic, payload, flags >> 3 & 3, flags & 0x20 != 0, will_properties)
    username: str | None = None
    password: bytes | None = None
    # In 3.1 the Remaining Length overrides these two flags: a field beyond the end of the packet is not an error.
    if flags & 0x80 and not (version == V3 and at == end):
        # [MQTT-3.1.2-17] [MQTT-3.1.3-12]
        username, at = read_string(data, at, end, strict)
    if flags & 0x40 and not (version == V3 and at == end):
        # [MQTT-3.1.2-19]
        password, at = read_binary(data, at, end)
    if at != end:
        # [MQTT-3.1.2-16] [MQTT-3.1.2-18]
        raise MalformedPacket("bytes after the last field of CONNECT")
    return Connect(version, client_id, flags & 2 != 0, keep_alive, username, password, will, properties, is_bridge)


def check_authentication(properties: Properties) -> None:
    """:raises ProtocolError: there is Authentication Data but no Authentication Method."""
    if AUTHENTICATION_DATA in properties and AUTHENTICATION_METHOD not in properties:
        raise ProtocolError("Authentication Data without Authentication Method")
