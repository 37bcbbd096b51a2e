"""Arithmetic and mathematical functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from .function import ANY, INTEGER, NUMBER, FunctionContext, register
from .values import describe, equal

_TEXT: Final = (str, bytes)


@register("+", ANY, ANY)
def add(left: Any, right: Any) -> object:
    """Return the sum of two numbers, or two strings concatenated; both arguments must be of the same kind."""
    if type(left) in (int, float) and type(right) in (int, float):
        return left + right
    if type(left) is str and type(right) is str:
        return left + right
    if isinstance(left, _TEXT) and isinstance(right, _TEXT):
        return b"".join(each.encode() if isinstance(each, str) else each for each in (left, right))
    raise ValueError(f"{describe(left)} and {describe(right)} cannot be added: expected two numbers or two strings")


@register("-", NUMBER, NUMBER)
def subtract(left: float, right: float) -> float:
    """Return the difference; an integer for two integers."""
    return left - right


@register("*", NUMBER, NUMBER)
def multiply(left: float, right: float) -> float:
    """Return the product; an integer for two integers."""
    return left * right


@register("/", NUMBER, NUMBER)
def divide(left: float, right: float) -> float:
    """Return the quotient, always a float."""
    return left / right


@register("div", INTEGER, INTEGER)
def divide_whole(left: int, right: int) -> int:
    """Return the quotient of integers, truncated towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


@register("mod", INTEGER, INTEGER)
def modulo(left: int, right: int) -> int:
    """Return the remainder of `div`, with the sign of the dividend."""
    return left - right * divide_whole(left, right)


@register("eq", ANY, ANY, context=True)
def equals(context: FunctionContext, left: object, right: object) -> bool:
    """Return whether the values are equal: 1 equals 1.0, and no string equals a number."""
    return equal(left, right, context.budget)


@register("abs", NUMBER)
def absolute(number: float) -> float:
    """Return the absolute value."""
    return abs(number)


@register("ceil", NUMBER)
def ceil(number: float) -> int:
    """Return the smallest integer that is not less than the number."""
    return math.ceil(number)


@register("floor", NUMBER)
def floor(number: float) -> int:
    """Return the greatest integer that is not greater than the number."""
    return math.floor(number)


@register("round", NUMBER)
def round_half_away(number: float) -> int:
    """Return the nearest integer; halves are rounded away from zero."""
    size = abs(number)
    whole = math.floor(size)
    if size - whole >= 0.5:
        whole += 1
    return whole if number >= 0 else -whole


@register("power", NUMBER, NUMBER)
def power(base: float, exponent: float) -> float:
    """Return one number raised to the power of the other, a float."""
    return math.pow(base, exponent)


@register("fmod", NUMBER, NUMBER)
def float_modulo(left: float, right: float) -> float:
    """Return the remainder of a division of floats, with the sign of the dividend."""
    return math.fmod(left, right)


# Each returns a float, and raises outside its domain.
_OF_ONE_NUMBER: Final[tuple[Callable[[float], float], ...]] = (
    math.sqrt,
    math.exp,
    math.log,
    math.log10,
    math.log2,
    math.sin,
    math.cos,
    math.tan,
    math.asin,
    math.acos,
    math.atan,
    math.sinh,
    math.cosh,
    math.tanh,
    math.asinh,
    math.acosh,
    math.atanh,
)
for _each in _OF_ONE_NUMBER:
    register(_each.__name__, NUMBER)(_each)
