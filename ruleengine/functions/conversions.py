"""Conversions between data types, and checks of a value's type."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

from .function import ANY, BYTES, FLOAT, INTEGER, TEXT, FunctionContext, register
from .undefined import UNDEFINED
from .values import decode_json, describe, parse_number, value_text

MAX_DECIMALS: Final = 253
# Number of digits of the largest float with that many decimals, so that only the requested rounding happens.
_EXACT: Final = Context(prec=600)


@register("str", ANY, context=True)
def to_text(context: FunctionContext, value: object) -> str | bytes:
    """Return the value as text."""
    return value_text(value, context.budget)


@register("str_utf8", ANY, context=True)
def to_utf8_text(context: FunctionContext, value: object) -> str | bytes:
    """Return the value as text; here the same as `str`."""
    return value_text(value, context.budget)


@register("bool", ANY)
def to_boolean(value: object) -> bool:
    """Return true for true, 1, 1.0 and 'true', and false for their opposites; other values are refused."""
    if type(value) is bool:
        return value
    if type(value) in (int, float) and value in (0, 1):
        return bool(value)
    if value in ("true", b"true"):
        return True
    if value in ("false", b"false"):
        return False
    raise ValueError(f"{describe(value)} is not a truth value: expected true, false, 1, 0, 'true' or 'false'")


def _number(value: object) -> int | float | None:
    if type(value) is int or type(value) is float:
        return value
    if type(value) is str:
        return parse_number(value)
    if type(value) is bytes:
        return parse_number(value.decode("utf-8", "replace"))
    return None


@register("int", ANY)
def to_integer(value: object) -> int:
    """Return an integer: floats and their text are rounded down, true is 1 and false 0."""
    if type(value) is bool:
        return int(value)
    number = _number(value)
    if number is None:
        raise ValueError(f"{describe(value)} is not a number")
    return math.floor(number)


@register("float", ANY)
def to_float(value: object) -> float:
    """Return the number as a float; a boolean is refused."""
    number = _number(value)
    if number is None:
        raise ValueError(f"{describe(value)} is not a number")
    return float(number)


@register("float2str", FLOAT, INTEGER)
def float_to_text(number: float, decimals: int) -> str:
    """Return the float rounded to this number of decimals, without zeros at the end except one after the point."""
    if not 0 <= decimals <= MAX_DECIMALS:
        raise ValueError(f"{decimals} decimals requested, expected 0 to {MAX_DECIMALS}")
    rounded = Decimal(number).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP, _EXACT)
    text = format(rounded, "f")
    if decimals == 0:
        return text
    text = text.rstrip("0")
    return text + "0" if text.endswith(".") else text


@register("map", ANY, context=True)
def to_map(context: FunctionContext, value: object) -> dict[str, object]:
    """Return the map in a JSON text; a map is returned unchanged."""
    if type(value) is dict:
        return value
    if type(value) is str or type(value) is bytes:
        decoded = decode_json(value, context.budget)
        if type(decoded) is dict:
            return decoded
    raise ValueError(f"{describe(value)} is neither a map nor a JSON object")


@register("bin2hexstr", BYTES)
def to_hex(data: bytes) -> str:
    """Return two upper-case hexadecimal digits for each byte."""
    return data.hex().upper()


@register("hexstr2bin", TEXT)
def from_hex(text: str) -> bytes:
    """Return the bytes of hexadecimal digits in upper or lower case; an odd number of digits gets a leading zero."""
    digits = "0" + text if len(text) % 2 else text
    # fromhex() would skip whitespace.
    if digits and not (digits.isascii() and digits.isalnum()):
        raise ValueError(f"{describe(text)} has characters that are not hexadecimal digits")
    return bytes.fromhex(digits)


@register("is_null", ANY)
def is_null(value: object) -> bool:
    """Return whether the value is undefined; JSON null is a value."""
    return value is UNDEFINED


@register("is_not_null", ANY)
def is_not_null(value: object) -> bool:
    """Return whether the value is not undefined."""
    return value is not UNDEFINED


@register("is_null_var", ANY)
def is_null_var(value: object) -> bool:
    """Return whether the value is undefined or JSON null."""
    return value is UNDEFINED or value is None


@register("is_not_null_var", ANY)
def is_not_null_var(value: object) -> bool:
    """Return whether the value is neither undefined nor JSON null."""
    return value is not UNDEFINED and value is not None


@register("is_str", ANY)
def is_text(value: object) -> bool:
    """Return whether the value is a string, including binary."""
    return type(value) is str or type(value) is bytes


@register("is_bool", ANY)
def is_boolean(value: object) -> bool:
    """Return whether the value is true or false."""
    return type(value) is bool


@register("is_int", ANY)
def is_integer(value: object) -> bool:
    """Return whether the value is an integer."""
    return type(value) is int


@register("is_float", ANY)
def is_float(value: object) -> bool:
    """Return whether the value is a float."""
    return type(value) is float


@register("is_num", ANY)
def is_number(value: object) -> bool:
    """Return whether the value is an integer or a float."""
    return type(value) is int or type(value) is float


@register("is_map", ANY)
def is_map(value: object) -> bool:
    """Return whether the value is a map."""
    return type(value) is dict


@register("is_array", ANY)
def is_array(value: object) -> bool:
    """Return whether the value is a list."""
    return type(value) is list
