"""The operators of the language: comparison with conversions, and arithmetic.

All raise ValueError with a short reason if there is no result. A boolean is never a number here."""

from __future__ import annotations

import math
from typing import Any, Final

from taipan.broker.mqtt.topics import matches

from ..functions.budget import Budget
from ..functions.undefined import UNDEFINED
from ..functions.values import describe, equal, parse_number, restore

MAX_BITS: Final = 8192
_NUMBER, _NAME, _OBJECT, _LIST, _TEXT = range(5)


def is_number(value: object) -> bool:
    """Return whether the value is an integer or a float."""
    return type(value) is int or type(value) is float


def equals(left: object, right: object, budget: Budget) -> bool:
    """`=`: compares by value; a text is converted for a comparison with a number, and a boolean is its name for one
    with a text."""
    if type(left) is type(right) and type(left) is not list and type(left) is not dict:
        return bool(left == right)
    if left is UNDEFINED or right is UNDEFINED:
        return False
    return equal(*_coerce(left, right), budget)


def less(left: object, right: object, budget: Budget) -> bool:
    """`<`: numbers < names (false, null, true) < objects < lists < texts; undefined is neither less nor greater than
    any value."""
    if left is UNDEFINED or right is UNDEFINED:
        return False
    return _order(*_coerce(left, right), budget) < 0


def at_most(left: object, right: object, budget: Budget) -> bool:
    """`<=`: less or equal; two undefined values are equal."""
    if left is UNDEFINED or right is UNDEFINED:
        return left is right
    return _order(*_coerce(left, right), budget) <= 0


def matches_filter(topic: object, topic_filter: object, budget: Budget) -> bool:
    """`=~`: whether a Topic Name matches a Topic Filter; true for two undefined values, false for one."""
    if topic is UNDEFINED or topic_filter is UNDEFINED:
        return topic is topic_filter
    if type(topic) is not str or type(topic_filter) is not str:
        raise ValueError(f"=~ compares a topic with a filter, not {describe(topic)} with {describe(topic_filter)}")
    return matches(topic_filter, topic)


def add(left: Any, right: Any, budget: Budget) -> object:
    """`+`: the sum of numbers, or two texts concatenated."""
    if is_number(left) and is_number(right):
        return _bounded(left + right)
    if type(left) is str and type(right) is str:
        budget.take_bytes(len(left) + len(right))
        return left + right
    if type(left) in (str, bytes) and type(right) in (str, bytes):
        budget.take_bytes(len(left) + len(right))
        return restore(_to_bytes(left) + _to_bytes(right))
    raise _refuse("+", left, right)


def subtract(left: Any, right: Any, budget: Budget) -> object:
    """`-`: the difference of numbers."""
    if is_number(left) and is_number(right):
        return _bounded(left - right)
    raise _refuse("-", left, right)


def multiply(left: Any, right: Any, budget: Budget) -> object:
    """`*`: the product of numbers."""
    if is_number(left) and is_number(right):
        return _bounded(left * right)
    raise _refuse("*", left, right)


def divide(left: Any, right: Any, budget: Budget) -> float:
    """`/`: the quotient, always a float."""
    if not (is_number(left) and is_number(right)):
        raise _refuse("/", left, right)
    if right == 0:
        raise ValueError("division by zero")
    result: float = _bounded(left / right)
    return result


def divide_whole(left: object, right: object, budget: Budget) -> int:
    """`div`: the quotient of integers, truncated towards zero."""
    if type(left) is not int or type(right) is not int:
        raise _refuse("div", left, right)
    if right == 0:
        raise ValueError("division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def remainder(left: object, right: object, budget: Budget) -> int:
    """`mod`: the remainder of integers, with the sign of the left one."""
    if type(left) is not int or type(right) is not int:
        raise _refuse("mod", left, right)
    if right == 0:
        raise ValueError("division by zero")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def negate(value: Any) -> object:
    """Unary `-`."""
    if is_number(value):
        return -value
    raise ValueError(f"- requires a number, not {describe(value)}")


def affirm(value: object) -> Any:
    """Unary `+`."""
    if is_number(value):
        return value
    raise ValueError(f"+ requires a number, not {describe(value)}")


def _bounded(number: int | float) -> Any:
    if type(number) is int:
        if number.bit_length() > MAX_BITS:
            raise ValueError(f"the number has more than {MAX_BITS} bits")
    elif not math.isfinite(number):
        raise ValueError("the number is too large for a float")
    return number


def _to_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _refuse(operator: str, left: object, right: object) -> ValueError:
    return ValueError(f"{operator} cannot be applied to {describe(left)} and {describe(right)}")


def _coerce(left: object, right: object) -> tuple[object, object]:
    if type(right) is str:
        if is_number(left):
            return left, parse_number(right)
        if type(left) is bool:
            return str(left).lower(), right
    elif type(left) is str:
        if is_number(right):
            return parse_number(left), right
        if type(right) is bool:
            return left, str(right).lower()
    return left, right


def _rank(value: object) -> int:
    if is_number(value):
        return _NUMBER
    if type(value) is dict:
        return _OBJECT
    if type(value) is list:
        return _LIST
    return _TEXT if type(value) is str or type(value) is bytes else _NAME


def _order(left: Any, right: Any, budget: Budget) -> int:
    """Return a number below, at, or above zero if the left value is less than, equal to, or greater than the right
    one."""
    rank = _rank(left)
    if rank != _rank(right):
        return rank - _rank(right)
    if rank == _OBJECT:
        budget.step(len(left) + len(right))
        if len(left) != len(right):
            return len(left) - len(right)
        ours, theirs = sorted(left), sorted(right)
        if ours != theirs:
            return -1 if ours < theirs else 1
        return _order_lists([left[key] for key in ours], [right[key] for key in ours], budget)
    if rank == _LIST:
        return _order_lists(left, right, budget)
    if rank == _NAME:
        left, right = describe(left), describe(right)
    elif rank == _TEXT and type(left) is not type(right):
        left, right = _to_bytes(left), _to_bytes(right)
    return int(left > right) - int(left < right)


def _order_lists(left: list[object], right: list[object], budget: Budget) -> int:
    budget.step(min(len(left), len(right)) + 1)
    for ours, theirs in zip(left, right, strict=False):
        order = _order(ours, theirs, budget)
        if order:
            return order
    return len(left) - len(right)
