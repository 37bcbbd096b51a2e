"""Values of resources: as bytes in TLV, as plain text, and as JSON for MQTT clients. The type comes from the object
definition; type names are those of the XML files."""

import base64
import binascii
import math
import struct
from collections.abc import Callable
from typing import Final

from .paths import BadPath, identifier

STRING: Final = "String"
INTEGER: Final = "Integer"
UNSIGNED: Final = "Unsigned Integer"
FLOAT: Final = "Float"
BOOLEAN: Final = "Boolean"
OPAQUE: Final = "Opaque"
TIME: Final = "Time"
OBJLNK: Final = "Objlnk"
CORELNK: Final = "Corelnk"

TYPES: Final = frozenset((STRING, INTEGER, UNSIGNED, FLOAT, BOOLEAN, OPAQUE, TIME, OBJLNK, CORELNK))

Value = str | int | float | bool
"""As JSON: Opaque is Base64, Objlnk is ``3:0``, Time is Unix seconds."""

MAX_DIGITS: Final = 25


class BadValue(ValueError):
    """A value does not have the form of its type; the message says why."""


# From a device, in TLV


def from_bytes(kind: str, data: bytes) -> Value:
    """Return the value of these bytes; an unknown type is read as Opaque. Raises BadValue."""
    read = _FROM_BYTES.get(kind)
    return base64_of(data) if read is None else read(data)


def _signed(data: bytes) -> int:
    if len(data) not in (1, 2, 4, 8):
        raise BadValue(f"an integer of {len(data)} bytes")
    return int.from_bytes(data, signed=True)


def _unsigned(data: bytes) -> int:
    if len(data) not in (1, 2, 4, 8):
        raise BadValue(f"an integer of {len(data)} bytes")
    return int.from_bytes(data)


def _float(data: bytes) -> float | str:
    if len(data) not in (4, 8):
        raise BadValue(f"a float of {len(data)} bytes")
    number: float = struct.unpack(">f" if len(data) == 4 else ">d", data)[0]
    return number if math.isfinite(number) else str(number)  # JSON has no such numbers


def _boolean(data: bytes) -> bool:
    if data not in (b"\0", b"\1"):
        raise BadValue("the Boolean is neither 0 nor 1")
    return data == b"\1"


def _string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadValue("the string is not UTF-8") from None


def _link(data: bytes) -> str:
    if len(data) != 4:
        raise BadValue(f"an object link of {len(data)} bytes")
    return f"{int.from_bytes(data[:2])}:{int.from_bytes(data[2:])}"


def base64_of(data: bytes) -> str:
    """Return bytes as JSON has them."""
    return base64.b64encode(data).decode()


_FROM_BYTES: Final[dict[str, Callable[[bytes], Value]]] = {
    STRING: _string,
    CORELNK: _string,
    INTEGER: _signed,
    TIME: _signed,
    UNSIGNED: _unsigned,
    FLOAT: _float,
    BOOLEAN: _boolean,
    OPAQUE: base64_of,
    OBJLNK: _link,
}


# From a device, as plain text


def from_text(kind: str, data: bytes) -> Value:
    """Return the value of a text; an unknown type is read as String. Raises BadValue."""
    text = _string(data)
    if kind in (INTEGER, UNSIGNED, TIME):
        return _whole(text)
    if kind == FLOAT:
        return _number(text)
    if kind == BOOLEAN:
        if text not in ("0", "1", "false", "true"):
            raise BadValue(f"{text[:20]!r} is not a Boolean")
        return text in ("1", "true")
    if kind == OPAQUE:
        return base64_of(_decoded_base64(text))
    if kind == OBJLNK:
        return _link(_link_bytes(text))
    return text


def _whole(text: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > MAX_DIGITS:
        raise BadValue(f"{text[:30]!r} is not an integer")
    return int(text)


def _number(text: str) -> float:
    try:
        number = float(text) if len(text) <= 400 else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadValue(f"{text[:30]!r} is not a number")
    return number


def _decoded_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadValue("the opaque value is not Base64") from None


# To a device


def to_bytes(kind: str, value: object) -> bytes:
    """Return a value of a command, which is a JSON value or its text, as bytes for TLV. Raises BadValue."""
    write = _TO_BYTES.get(kind)
    if write is None:
        raise BadValue(f"{kind[:30]!r} is not a type: use Time, String, Integer, Float, Boolean, Opaque or Objlnk")
    return write(value)


def _text_bytes(value: object) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if not isinstance(value, (str, int, float)):
        raise BadValue("a string is required")
    return _encoded(str(value))


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadValue("the string has half of a surrogate pair") from None


def _integer_bytes(value: object) -> bytes:
    number = _as_whole(value)
    for size in (1, 2, 4, 8):
        if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
            return number.to_bytes(size, signed=True)
    raise BadValue(f"{number} does not fit into 64 bits")


def _unsigned_bytes(value: object) -> bytes:
    number = _as_whole(value)
    for size in (1, 2, 4, 8):
        if 0 <= number < 1 << 8 * size:
            return number.to_bytes(size)
    raise BadValue(f"{number} is negative or does not fit into 64 bits")


def _as_whole(value: object) -> int:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise BadValue("an integer is required")
    return int(value)


def _float_bytes(value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadValue("a number is required")
    number = _number(str(value))
    try:
        short = struct.pack(">f", number)
    except OverflowError:
        return struct.pack(">d", number)
    return short if struct.unpack(">f", short)[0] == number else struct.pack(">d", number)


def _boolean_bytes(value: object) -> bytes:
    for byte, forms in ((b"\0", ("false", "0")), (b"\1", ("true", "1"))):
        if str(value).lower() in forms:
            return byte
    raise BadValue("expected true or false")


def _opaque_bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise BadValue("an opaque value must be a string")
    return _encoded(value)


def _link_bytes(value: object) -> bytes:
    parts = value.split(":") if isinstance(value, str) else []
    try:
        if len(parts) == 2:
            return b"".join([identifier(part).to_bytes(2) for part in parts])
    except BadPath:
        pass
    raise BadValue("an object link has the form 3:0")


_TO_BYTES: Final[dict[str, Callable[[object], bytes]]] = {
    STRING: _text_bytes,
    CORELNK: _text_bytes,
    INTEGER: _integer_bytes,
    TIME: _integer_bytes,
    UNSIGNED: _unsigned_bytes,
    FLOAT: _float_bytes,
    BOOLEAN: _boolean_bytes,
    OPAQUE: _opaque_bytes,
    OBJLNK: _link_bytes,
}
