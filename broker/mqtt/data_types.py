"""The data representations of the standard (MQTT 5.0 section 1.5): UTF-8 strings, binary data, variable integers.

Readers receive all of ``data``, the offset ``at`` of the field, and ``end``, the end of the packet or block that
contains the field. They return the value and the offset after it. They raise ``MalformedPacket`` and never read at or
beyond ``end``."""

import re
from typing import Final

from .constants import MAX_REMAINING_LENGTH, MAX_STRING
from .errors import MalformedPacket, ProtocolError

_DISCOURAGED: Final = re.compile(
    "[\x01-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | 0xFFFE) + chr(plane << 16 | 0xFFFF) for plane in range(17))
    + "]"
)
"""Control characters and non-characters: the standard says SHOULD NOT, but one public test suite expects an error for
them."""


BYTE: Final[list[bytes]] = [bytes((number,)) for number in range(256)]
TWO_BYTES: Final[list[bytes]] = [bytes((number >> 8, number & 0xFF)) for number in range(65_536)]
"""The numbers from 0 to 65,535 as two bytes in wire format."""


def utf8(raw: bytes, strict: bool) -> str:
    """Decode the characters of a UTF-8 Encoded String [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-1.5.4-3] [3.1.1 MQTT-1.5.3-1]
    [3.1.1 MQTT-1.5.3-2].

    ``strict`` also refuses control characters and non-characters. Python's decoder refuses surrogates, overlong forms
    and characters above U+10FFFF, and keeps U+FEFF."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("string is not UTF-8") from None
    if 0 in raw:
        raise MalformedPacket("string has U+0000")
    if strict and _DISCOURAGED.search(text) is not None:
        raise MalformedPacket("string has a control character or non-character", setting="strict_strings")
    return text


def read_binary(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Read Binary Data: a length of two bytes, then that many bytes."""
    start = at + 2
    if start > end:
        raise MalformedPacket("field runs over the end of the packet")
    stop = start + (data[at] << 8 | data[at + 1])
    if stop > end:
        raise MalformedPacket("field runs over the end of the packet")
    return data[start:stop], stop


def read_string(data: bytes, at: int, end: int, strict: bool) -> tuple[str, int]:
    """Read a UTF-8 Encoded String."""
    start = at + 2
    if start > end:
        raise MalformedPacket("string runs over the end of the packet")
    stop = start + (data[at] << 8 | data[at + 1])
    if stop > end:
        raise MalformedPacket("string runs over the end of the packet")
    return utf8(data[start:stop], strict), stop


def read_variable(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a Variable Byte Integer of at most four bytes, in its shortest form [MQTT-1.5.5-1]."""
    value = 0
    shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise MalformedPacket("variable byte integer is not the shortest")
            return value, at
        shift += 7
        if shift == 28:
            raise MalformedPacket("variable byte integer is longer than four bytes")
    raise MalformedPacket("variable byte integer runs over the end of the packet")


def read_packet_id(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a Packet Identifier, two bytes long. Raises ``ProtocolError`` if it is 0."""
    if at + 2 > end:
        raise MalformedPacket("no Packet Identifier")
    packet_id = data[at] << 8 | data[at + 1]
    if not packet_id:
        raise ProtocolError("Packet Identifier 0")  # [MQTT-2.2.1-3]
    return packet_id, at + 2


def binary(value: bytes) -> bytes:
    """Return Binary Data in wire format. Raises ``ValueError`` for more than 65,535 bytes."""
    size = len(value)
    if size > MAX_STRING:
        raise ValueError("longer than 65535 bytes")
    return TWO_BYTES[size] + value


def string(value: str) -> bytes:
    """Return a UTF-8 Encoded String in wire format. Raises ``ValueError`` for more than 65,535 bytes or for
    surrogates."""
    return binary(value.encode())


def variable(value: int) -> bytes:
    """Return a Variable Byte Integer in wire format, in its shortest form [MQTT-1.5.5-1]."""
    if value < 0x80:
        if value < 0:
            raise ValueError("negative")
        return BYTE[value]
    if value < 0x4000:
        return TWO_BYTES[(value & 0x7F | 0x80) << 8 | value >> 7]
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value > MAX_REMAINING_LENGTH:
        raise ValueError("above 268435455")
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
