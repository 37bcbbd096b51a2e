"""Steps into nested values: reading and storing along a path.

Nothing is changed in place, because all rules of a message share its decoded payload."""

from __future__ import annotations

from typing import Final

from ..functions.budget import Budget
from ..functions.undefined import UNDEFINED
from ..functions.values import decode_json, describe, measure

HEAD: Final = 0
"""As an index for storing: before the first element."""

TAIL: Final = "tail"
"""As an index for storing: after the last element. Keys are wrapped in a tuple, so that none is confused with it."""


def read_key(value: object, key: str, budget: Budget) -> object:
    """Return the member of an object, or of a string that is the JSON of an object; undefined if it has no such
    member."""
    if type(value) is dict:
        return value.get(key, UNDEFINED)
    if type(value) is str or type(value) is bytes:
        decoded = _decode(value, budget)
        if type(decoded) is dict:
            return decoded.get(key, UNDEFINED)
    return UNDEFINED


def read_index(value: object, index: object, budget: Budget) -> object:
    """Return the element of a list, counted from 1 or, if negative, from the end; undefined if it does not exist."""
    if type(value) is str or type(value) is bytes:
        value = _decode(value, budget)
    if type(value) is list and type(index) is int:
        position = _position(index, len(value))
        if position is not None:
            return value[position]
    return UNDEFINED


def read_slice(value: object, first: int, last: int, budget: Budget) -> list[object]:
    """Return the elements from `first` to `last`, both included; 0 is not allowed."""
    if type(value) is str or type(value) is bytes:
        value = _decode(value, budget)
    if type(value) is not list:
        raise ValueError(f"a range requires a list, not {describe(value)}")
    size = len(value)
    start = first - 1 if first > 0 else max(size + first, 0)
    end = last if last > 0 else size + last + 1
    part = value[start : max(end, 0)]
    budget.take_bytes(16 * len(part))
    return part


def store(holder: object, steps: list[object], value: object, budget: Budget, create: bool) -> object:
    """Return a copy of `holder` with `value` at the end of `steps`: a key in a tuple, an index, or `TAIL`.

    Missing objects on the path are created, and values that cannot contain the next step are replaced; a string that
    is JSON is decoded first. An index out of range leaves the list unchanged; if there is no list, any index creates a
    list of this element.
    """
    if not steps:
        return value
    if type(value) is list or type(value) is dict:
        budget.take_bytes(measure(value, budget))
    return _store(holder, steps, 0, value, budget, create)


def _store(holder: object, steps: list[object], at: int, value: object, budget: Budget, create: bool) -> object:
    if at == len(steps):
        return value
    if type(holder) is str or type(holder) is bytes:
        holder = _decode(holder, budget)
    step = steps[at]
    if type(step) is tuple:
        copy = dict(holder) if type(holder) is dict else {}
        budget.take_bytes(16 * len(copy))
        inner = _store(copy.get(step[0], UNDEFINED), steps, at + 1, value, budget, create)
        if inner is not UNDEFINED or at + 1 == len(steps) or step[0] in copy:
            copy[step[0]] = inner
        return copy
    is_end = step is TAIL or (step == HEAD and type(step) is int)
    if type(holder) is not list:
        if is_end or create or type(step) is int:
            return [_store(UNDEFINED, steps, at + 1, value, budget, create)]
        return holder
    budget.take_bytes(16 * len(holder))
    if is_end and not create:
        element = [_store(UNDEFINED, steps, at + 1, value, budget, create)]
        return holder + element if step is TAIL else element + holder
    position = _position(step, len(holder)) if type(step) is int else None
    if position is None:
        return holder
    elements = list(holder)
    elements[position] = _store(elements[position], steps, at + 1, value, budget, create)
    return elements


def _position(index: int, size: int) -> int | None:
    if 0 < index <= size:
        return index - 1
    return size + index if -size <= index < 0 else None


def _decode(text: str | bytes, budget: Budget) -> object:
    try:
        return decode_json(text, budget)
    except ValueError:
        if budget.bytes_left < 0 or budget.steps_left < 0:
            raise
        return UNDEFINED
