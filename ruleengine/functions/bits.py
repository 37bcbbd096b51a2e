"""Bits of integers, of any size and with arithmetic shifts, and bits of strings."""

from __future__ import annotations

import math
import struct
from typing import Final

from .function import BYTES, INTEGER, MAX_BITS, one_of, register
from .undefined import UNDEFINED

_FLOATS: Final = {16: "e", 32: "f", 64: "d"}


@register("bitnot", INTEGER)
def bit_not(number: int) -> int:
    """Invert all bits."""
    return ~number


@register("bitand", INTEGER, INTEGER)
def bit_and(left: int, right: int) -> int:
    """Return the bits that are set in both."""
    return left & right


@register("bitor", INTEGER, INTEGER)
def bit_or(left: int, right: int) -> int:
    """Return the bits that are set in either."""
    return left | right


@register("bitxor", INTEGER, INTEGER)
def bit_xor(left: int, right: int) -> int:
    """Return the bits that are set in exactly one."""
    return left ^ right


@register("bitsl", INTEGER, INTEGER)
def shift_left(number: int, places: int) -> int:
    """Shift left; for negative places, shift right."""
    if places < 0:
        return number >> min(-places, number.bit_length() + 1)
    if number and number.bit_length() + places > MAX_BITS:
        raise ValueError(f"the result has more than {MAX_BITS} bits")
    return number << places if number else 0


@register("bitsr", INTEGER, INTEGER)
def shift_right(number: int, places: int) -> int:
    """Shift right, keeping the sign; for negative places, shift left."""
    return shift_left(number, -places)


@register("bitsize", BYTES)
def size(data: bytes) -> int:
    """Return the number of bits in the string."""
    return len(data) * 8


@register(
    "subbits",
    BYTES,
    INTEGER,
    INTEGER,
    one_of("integer", "float", "bits"),
    one_of("unsigned", "signed"),
    one_of("big", "little"),
    optional=4,
)
def sub_bits(
    data: bytes,
    first: int,
    second: int | None = None,
    form: str = "integer",
    sign: str = "unsigned",
    endian: str = "big",
) -> object:
    """Return a number of bits from the beginning, or from a position counted from 1, as an integer, a float or a
    string.

    If fewer bits remain, these are returned; a position beyond the end is undefined."""
    start, count = (1, first) if second is None else (first, second)
    if start < 1:
        raise ValueError(f"the position {start} does not exist; the first bit is 1")
    if count < 0:
        raise ValueError(f"the length {count} is negative")
    if form == "float" and count not in _FLOATS:
        raise ValueError(f"a float of {count} bits does not exist, expected 16, 32 or 64")
    total = len(data) * 8
    if start > total:
        return UNDEFINED
    taken = min(count, total - start + 1)
    head = (start - 1) // 8
    tail = -(-(start - 1 + taken) // 8)
    whole = int.from_bytes(data[head:tail], "big") >> (tail * 8 - (start - 1 + taken))
    bits = whole & ((1 << taken) - 1)
    if form == "bits":
        if taken % 8:
            raise ValueError(f"{taken} bits are not a whole number of bytes")
        return bits.to_bytes(taken // 8, "big")
    if form == "float":
        return _float(bits, taken, endian) if taken == count else UNDEFINED
    if taken > MAX_BITS:
        raise ValueError(f"the result has more than {MAX_BITS} bits")
    if endian == "little":
        bits = _little(bits, taken)
    return bits - (1 << taken) if sign == "signed" and taken and bits >> (taken - 1) else bits


def _little(bits: int, count: int) -> int:
    """Return the bits read from their least significant byte on; an incomplete last byte is the most significant."""
    size, rest = divmod(count, 8)
    low = int.from_bytes((bits >> rest).to_bytes(size, "big"), "little")
    return low | (bits & ((1 << rest) - 1)) << (size * 8)


def _float(bits: int, count: int, endian: str) -> object:
    order = ">" if endian == "big" else "<"
    (number,) = struct.unpack(order + _FLOATS[count], bits.to_bytes(count // 8, "big"))
    return number if math.isfinite(number) else UNDEFINED
