"""The layout of SUBSCRIBE and UNSUBSCRIBE (MQTT 5.0 sections 3.8 and 3.10): identifier, properties, Topic Filters."""

from typing import Final

from . import reason_codes as rc
from .constants import SUBSCRIBE, UNSUBSCRIBE, V5
from .data_types import read_packet_id, read_string
from .errors import MalformedPacket, ProtocolError
from .packets import NO_PROPERTIES, Subscribe, TopicFilter, Unsubscribe
from .properties import read
from .topics import is_shared

MAX_FILTERS: Final = 4096
"""Maximum in one SUBSCRIBE or UNSUBSCRIBE: short filters use many times their size in memory."""


def read_subscribe(data: bytes, at: int, end: int, version: int, strict: bool) -> Subscribe:
    """Read a SUBSCRIBE, from the end of the fixed header on. Raises MalformedPacket and ProtocolError."""
    packet_id, at = read_packet_id(data, at, end)
    properties = NO_PROPERTIES
    # 3.x has only the QoS in this byte, 0 to 2 [3.1.1 MQTT-3.8.3-4], 5.0 two reserved bits [MQTT-3.8.3-5].
    reserved = 0xFC
    if version == V5:
        reserved = 0xC0
        properties, at = read(data, at, end, SUBSCRIBE, strict)
    if at == end:
        raise ProtocolError("SUBSCRIBE without Topic Filter")  # [MQTT-3.8.3-2] [3.1.1 MQTT-3.8.3-3]
    filters: list[TopicFilter] = []
    while at < end:
        filter, at = _read_filter(data, at, end, strict)
        if at == end:
            raise MalformedPacket("Topic Filter without options")
        options = data[at]
        at += 1
        if options & reserved or (version != V5 and options == 3):
            raise MalformedPacket("reserved bits are set in the Subscription Options")
        # Section 3.8.3.1: these two are Protocol Errors.
        if options & 3 == 3:
            raise ProtocolError("Maximum QoS 3 in the Subscription Options")
        if options & 0x30 == 0x30:
            raise ProtocolError("Retain Handling 3 in the Subscription Options")
        if options & 4 and version == V5 and is_shared(filter):
            raise ProtocolError("No Local on a Shared Subscription")  # [MQTT-3.8.3-4]
        if len(filters) >= MAX_FILTERS:
            raise ProtocolError(f"more than {MAX_FILTERS} Topic Filters", rc.QUOTA_EXCEEDED)
        filters.append(
            TopicFilter(filter, options & 3, options & 4 != 0, options & 8 != 0, options >> 4),
        )
    return Subscribe(packet_id, filters, properties)


def read_unsubscribe(data: bytes, at: int, end: int, version: int, strict: bool) -> Unsubscribe:
    """Read an UNSUBSCRIBE; see ``read_subscribe``."""
    packet_id, at = read_packet_id(data, at, end)
    properties = NO_PROPERTIES
    if version == V5:
        properties, at = read(data, at, end, UNSUBSCRIBE, strict)
    if at == end:
        raise ProtocolError("UNSUBSCRIBE without Topic Filter")  # [MQTT-3.10.3-2]
    filters: list[str] = []
    while at < end:
        filter, at = _read_filter(data, at, end, strict)
        if len(filters) >= MAX_FILTERS:
            raise ProtocolError(f"more than {MAX_FILTERS} Topic Filters", rc.QUOTA_EXCEEDED)
        filters.append(filter)
    return Unsubscribe(packet_id, filters, properties)


def _read_filter(data: bytes, at: int, end: int, strict: bool) -> tuple[str, int]:
    """Read a Topic Filter [MQTT-3.8.3-1] [MQTT-3.10.3-1]. The position of wildcards is checked later, for each
    entry."""
    filter, at = read_string(data, at, end, strict)
    if not filter:
        raise ProtocolError("empty Topic Filter")  # [MQTT-4.7.3-1]
    return filter, at
