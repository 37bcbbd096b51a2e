"""The layout of the packets that only a Server sends, for code that reads from a server: CONNACK, SUBACK and
UNSUBACK."""

from . import reason_codes as rc
from .constants import CONNACK, SUBACK, UNSUBACK, V5
from .data_types import read_packet_id
from .errors import MalformedPacket, ProtocolError
from .packets import NO_PROPERTIES, Connack, Suback, Unsuback
from .properties import read, read_last
from .reason_codes import CONNACK_CODES, FROM_V3_CONNACK, SUBACK_CODES, UNSUBACK_CODES


def read_connack(data: bytes, at: int, end: int, version: int, strict: bool) -> Connack:
    """Read a CONNACK, from the end of the fixed header on. Raises MalformedPacket and ProtocolError."""
    if at + 2 > end:
        raise MalformedPacket("CONNACK is too short")
    if data[at] & 0xFE:
        raise MalformedPacket("reserved Connect Acknowledge Flags")  # [MQTT-3.2.2-1]
    session_present = data[at] != 0
    reason_code = data[at + 1]
    at += 2
    if version == V5:
        if reason_code not in CONNACK_CODES:
            raise ProtocolError(f"Reason Code 0x{reason_code:02x} does not belong in CONNACK")
        return Connack(reason_code, session_present, read_last(data, at, end, CONNACK, strict))
    if at != end:
        raise MalformedPacket("CONNACK is too long")
    if reason_code not in FROM_V3_CONNACK:
        raise ProtocolError(f"return code {reason_code} does not belong in CONNACK")
    return Connack(FROM_V3_CONNACK[reason_code], session_present, NO_PROPERTIES)


def read_suback(data: bytes, at: int, end: int, version: int, strict: bool) -> Suback:
    """Read a SUBACK; see ``read_connack``."""
    packet_id, at = read_packet_id(data, at, end)
    properties = NO_PROPERTIES
    if version == V5:
        properties, at = read(data, at, end, SUBACK, strict)
    codes = list(data[at:end])
    if not codes:
        raise ProtocolError("SUBACK without Reason Code")
    for code in codes:
        if code not in SUBACK_CODES or (version != V5 and code > rc.UNSPECIFIED_ERROR):
            raise ProtocolError(f"Reason Code 0x{code:02x} does not belong in SUBACK")
    return Suback(packet_id, codes, properties)


def read_unsuback(data: bytes, at: int, end: int, version: int, strict: bool) -> Unsuback:
    """Read an UNSUBACK; see ``read_connack``."""
    packet_id, at = read_packet_id(data, at, end)
    if version != V5:
        if at != end:
            raise MalformedPacket("UNSUBACK longer than two bytes")
        return Unsuback(packet_id, [], NO_PROPERTIES)
    properties, at = read(data, at, end, UNSUBACK, strict)
    codes = list(data[at:end])
    if not codes:
        raise ProtocolError("UNSUBACK without Reason Code")
    for code in codes:
        if code not in UNSUBACK_CODES:
            raise ProtocolError(f"Reason Code 0x{code:02x} does not belong in UNSUBACK")
    return Unsuback(packet_id, codes, properties)
