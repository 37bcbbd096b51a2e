"""The values of rules: comparison, text form, and JSON.

A value is None (JSON null), UNDEFINED, bool, int, float, str, bytes (binary that is not UTF-8), list or dict."""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from typing import Any, Final

import msgspec

from .budget import Budget
from .undefined import UNDEFINED

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 200_000
"""Maximum number of values in one JSON text, with an object or a list counted as five: decoding takes about twenty
milliseconds."""

_QUICKLY_PRINTED: Final = 128
_SMALL: Final = 4096
_SMALL_INTEGER: Final = 2**63
_SURELY_FEW: Final = 32 * 1024
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?", re.ASCII)
_PRINTABLE: Final = frozenset([*range(32, 127), *range(160, 256), 8, 9, 10, 11, 12, 13, 27])


def describe(value: object) -> str:
    """Describe the value in a few words for an error; a large one is never shown completely."""
    if value is UNDEFINED:
        return "undefined"
    if value is None or type(value) is bool:
        return str(value).lower().replace("none", "null")
    if type(value) is str:
        return f"the string '{value}'" if len(value) <= 32 else f"the string '{value[:32]}...'"
    if type(value) is bytes:
        return f"binary of {len(value)} bytes"
    if type(value) is list:
        return f"a list of {len(value)}"
    if type(value) is dict:
        return f"a map of {len(value)}"
    if type(value) is int:
        return f"the integer {value}" if value.bit_length() <= 128 else "a large integer"
    return f"the float {value}" if type(value) is float else f"a {type(value).__name__}"


def restore(text: str | bytes) -> str | bytes:
    """Return a string if the bytes are UTF-8, otherwise the bytes."""
    if type(text) is str:
        if text.isascii():
            return text
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-8", "surrogateescape")
        else:
            return text
    assert isinstance(text, bytes)
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def same(left: object, right: object, budget: Budget, depth: int = 0) -> bool:
    """Return whether the values are exactly equal: 1 and 1.0 differ, true and 1 differ, also in lists and maps."""
    return _equal(left, right, budget, True, depth)


def equal(left: object, right: object, budget: Budget) -> bool:
    """Return whether the values are equal: 1 equals 1.0, also in lists and maps; no string equals a number, and true is
    not 1."""
    return _equal(left, right, budget, False, 0)


def _equal(left: Any, right: Any, budget: Budget, exact: bool, depth: int) -> bool:
    one, other = type(left), type(right)
    if one is not other:
        if {one, other} == {int, float}:
            return not exact and bool(left == right)
        if one is str and other is bytes:
            return bool(left.encode() == right)
        return one is bytes and other is str and bool(left == right.encode())
    if one is list or one is dict:
        if len(left) != len(right):
            return False
        if depth >= MAX_DEPTH:
            raise ValueError(f"the values are nested deeper than {MAX_DEPTH}")
        budget.step(len(left))
        if one is list:
            return all(_equal(a, b, budget, exact, depth + 1) for a, b in zip(left, right, strict=True))
        return all(key in right and _equal(value, right[key], budget, exact, depth + 1) for key, value in left.items())
    return bool(left == right)


def parse_number(text: str) -> int | float:
    """Return the number in a decimal text. Raises ValueError for anything else, including an empty text and white
    space."""
    if len(text) <= 2400:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isfinite(number):
                return number
    raise ValueError(f"{describe(text)} is not a decimal number")


def float_text(number: float) -> str:
    """Return the shortest decimals that convert back to the same float, always with a point and never with an
    exponent."""
    text = repr(number)
    if "e" in text:
        text = format(Decimal(text), "f")
        if "." not in text:
            text += ".0"
    return text


def value_text(value: object, budget: Budget) -> str | bytes:
    """Return the value as `str()` and templates print it: text unchanged, lists and maps as JSON, undefined by its
    name.

    A list of the codes of printable characters is text, as in EMQX."""
    if type(value) is str or type(value) is bytes:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if value is None:
        return "null"
    if value is UNDEFINED:
        return "undefined"
    if type(value) is int:
        if value.bit_length() > _QUICKLY_PRINTED:
            budget.step(value.bit_length() // _QUICKLY_PRINTED)
        return integer_text(value)
    if type(value) is float:
        return float_text(value)
    if type(value) is list and value and all(type(each) is int and each in _PRINTABLE for each in value):
        budget.step(len(value))
        return "".join(map(chr, value))
    return encode_json(value, budget)


def integer_text(number: int) -> str:
    """Return the decimal digits. Raises ValueError for an integer with more digits than Python prints at once
    (4300)."""
    return str(number)


def measure(value: Any, budget: Budget) -> int:
    """Return the approximate size of the value as JSON in bytes; each element costs a step, and a depth beyond 64 is
    refused."""
    size = 0
    level = [value]
    for depth in range(MAX_DEPTH + 1):
        inner: list[object] = []
        budget.step(len(level))
        for each in level:
            kind = type(each)
            if kind is str or kind is bytes:
                size += len(each) + 3
            elif kind is list:
                size += len(each) + 2
                inner += each
            elif kind is dict:
                size += 2 + sum(len(key) + 4 for key in each)
                inner += each.values()
            elif kind is int:
                bits = each.bit_length()
                size += bits // 3 + 2
                if bits > _QUICKLY_PRINTED:
                    budget.step(bits // _QUICKLY_PRINTED)
            else:
                size += 8
        if depth == MAX_DEPTH and any(type(each) in (list, dict) for each in level):
            break
        if not inner:
            return size
        level = inner
    raise ValueError(f"the value is nested deeper than {MAX_DEPTH}")


def _other_json(value: object) -> object:
    if value is UNDEFINED:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise ValueError(f"{describe(value)} cannot be represented as JSON")


def encode_json(value: object, budget: Budget) -> str:
    """Encode compact JSON with unescaped characters; undefined becomes null, and binary becomes base64."""
    encoded = _encode_flat(value, budget)
    if encoded is not None:
        return encoded.decode("utf-8", "surrogatepass")
    budget.take_bytes(measure(value, budget))
    return _any_json(value)


def encode_json_bytes(value: object, budget: Budget) -> bytes:
    """Return ``encode_json`` as UTF-8; surrogates are encoded like other characters."""
    encoded = _encode_flat(value, budget)
    if encoded is not None:
        return encoded
    budget.take_bytes(measure(value, budget))
    return _any_json(value).encode("utf-8", "surrogatepass")


def _encode_flat(value: object, budget: Budget) -> bytes | None:
    """Return the JSON of an object that ``_flat_size`` knows; None: ``measure`` has to find its size."""
    size = _flat_size(value) if type(value) is dict else 0
    if not size:
        return None
    budget.step(1 + len(value))  # type: ignore[arg-type]  # a dict
    budget.take_bytes(size)
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a surrogate, which the other encoder writes as it is
        return _any_json(value).encode("utf-8", "surrogatepass")


def _in_digits(number: float) -> bool:
    """Return whether both encoders write a number alike: without an exponent."""
    return number == 0 or 1e-4 <= number < 1e15 or -1e15 < number <= -1e-4


def _flat_size(value: dict[str, object]) -> int:
    """Return what ``measure`` returns for an object of texts, numbers, booleans and nulls, as most rows are; 0 for
    every other object. msgspec writes these as json does, several times faster."""
    size = 2
    for key, each in value.items():
        kind = type(each)
        size += len(key) + 4
        if kind is str:
            size += len(each) + 3  # type: ignore[arg-type]  # a string
        elif kind is int and -_SMALL_INTEGER < each < _SMALL_INTEGER:  # type: ignore[operator]  # an integer
            size += each.bit_length() // 3 + 2  # type: ignore[attr-defined]
        elif kind is bool or each is None or (kind is float and _in_digits(each)):  # type: ignore[arg-type]
            size += 8
        else:
            return 0
    return size


_any_json: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_other_json
).encode


def decode_json(text: str | bytes, budget: Budget) -> object:
    """Decode a JSON text with at most 64 levels. Raises ValueError for invalid JSON."""
    budget.take_bytes(len(text))
    try:
        value = read_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"the JSON is nested deeper than {MAX_DEPTH}") from None
    measure(value, budget)
    return value


def read_json(text: str | bytes) -> object:
    """Decode a JSON text of any depth. Raises ValueError for invalid JSON, or for more than `MAX_VALUES` values."""
    size = len(text)
    if size <= _SMALL:
        return msgspec.json.decode(text)
    if size > _SURELY_FEW and _count_values(text) > MAX_VALUES:
        raise ValueError(f"the value has more than {MAX_VALUES} values, counting an object or a list as five")
    return _large_json.decode(text)


def _count_values(text: str | bytes) -> int:
    """Return an upper limit of the number of values: commas and brackets inside strings are included."""
    if isinstance(text, str):
        return text.count(",") + 5 * (text.count("[") + text.count("{"))
    return text.count(b",") + 5 * (text.count(b"[") + text.count(b"{"))


def _read_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


# For some floats msgspec itself needs eight microseconds, and a large text can contain many.
_large_json: Final = msgspec.json.Decoder(float_hook=_read_float)
