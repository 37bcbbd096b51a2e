"""Maps and lists. No function changes its arguments: a value that is put into a map is only in the returned map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from .budget import Budget, BudgetExceeded
from .function import ANY, INTEGER, LIST, MAP, REFUSED, FunctionContext, Kind, register
from .undefined import UNDEFINED
from .values import MAX_DEPTH, decode_json, describe, same

KEY: Final = Kind("a string", lambda value: value if type(value) is str else REFUSED)


def walk(value: object, path: Sequence[str], missing: object, budget: Budget) -> object:
    """Return the value at the end of the path, through maps and JSON texts of maps; `missing` if there is none."""
    for key in path:
        if type(value) is str or type(value) is bytes:
            try:
                value = decode_json(value, budget)
            except BudgetExceeded:
                raise
            except ValueError:
                return missing
        if type(value) is not dict or key not in value:
            return missing
        value = value[key]
    return value


@register("map_new")
def new() -> dict[str, object]:
    """Return an empty map."""
    return {}


@register("map_get", KEY, ANY, ANY, optional=1, context=True)
def get_at(context: FunctionContext, path: str, value: object, missing: object = UNDEFINED) -> object:
    """Return the value at a path such as 'a.b', or the default; a stored null is null."""
    return walk(value, path.split("."), missing, context.budget)


@register("map_put", KEY, ANY, ANY, context=True)
def put_at(context: FunctionContext, path: str, new_value: object, value: object) -> dict[str, object]:
    """Return a map with a value at a path such as 'a.b'; missing maps on the path are created, other values on it are
    replaced."""
    keys = path.split(".")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"the path has {len(keys)} parts, more than {MAX_DEPTH}")
    if type(value) is str or type(value) is bytes:
        value = decode_json(value, context.budget)
    if type(value) is not dict:
        raise ValueError(f"argument 3 is {describe(value)}, expected a map")
    result = level = _copy(value, context.budget)
    for key in keys[:-1]:
        inner = level.get(key)
        level[key] = _copy(inner if type(inner) is dict else {}, context.budget)
        level = level[key]
    level[keys[-1]] = new_value
    return result


def _copy(value: dict[str, object], budget: Budget) -> dict[str, Any]:
    budget.step(len(value))
    return dict(value)


@register("mget", KEY, MAP, ANY, optional=1)
def get(key: str, value: dict[str, object], missing: object = UNDEFINED) -> object:
    """Return the value of the literal key, or the default."""
    return value.get(key, missing)


@register("mput", KEY, ANY, MAP, context=True)
def put(context: FunctionContext, key: str, new_value: object, value: dict[str, object]) -> dict[str, object]:
    """Return a map with a value for the literal key."""
    return {**_copy(value, context.budget), key: new_value}


@register("map_keys", ANY, context=True)
def keys(context: FunctionContext, value: object) -> list[str]:
    """Return the keys of a map, or of its JSON text, in order."""
    return list(_map(value, context.budget))


@register("map_values", ANY, context=True)
def values(context: FunctionContext, value: object) -> list[object]:
    """Return the values of a map, or of its JSON text, in order."""
    return list(_map(value, context.budget).values())


@register("map_to_entries", ANY, context=True)
def entries(context: FunctionContext, value: object) -> list[dict[str, object]]:
    """Return a map of `key` and `value` for each pair of a map, or of its JSON text, in order."""
    return [{"key": key, "value": each} for key, each in _map(value, context.budget).items()]


def _map(value: object, budget: Budget) -> dict[str, object]:
    """Return the map, decoded if it is a JSON text. Raises ValueError."""
    given = value
    if type(value) is str or type(value) is bytes:
        value = decode_json(value, budget)
    if type(value) is not dict:
        raise ValueError(f"argument 1 is {describe(given)}, expected a map")
    return value


@register("nth", INTEGER, LIST)
def nth(position: int, elements: list[object]) -> object:
    """Return the element at a position, counted from 1."""
    if not 1 <= position <= len(elements):
        raise ValueError(f"there is no element {position} in a list of {len(elements)}")
    return elements[position - 1]


@register("length", LIST)
def length(elements: list[object]) -> int:
    """Return the number of elements."""
    return len(elements)


@register("sublist", INTEGER, INTEGER.either(LIST), LIST, optional=1)
def sublist(first: int, second: int | list[object], third: list[object] | None = None) -> list[object]:
    """Return a number of elements from the beginning, or from a position counted from 1."""
    count: int | list[object]
    elements: int | list[object]
    if third is None:
        start, count, elements = 1, first, second
    else:
        start, count, elements = first, second, third
    if not isinstance(elements, list):
        raise ValueError(f"argument 2 is {describe(elements)}, expected a list")
    if not isinstance(count, int):
        raise ValueError(f"argument 2 is {describe(count)}, expected an integer")
    if start < 1:
        raise ValueError(f"the position {start} does not exist; the first element is 1")
    if count < 0:
        raise ValueError(f"the length {count} is negative")
    return elements[start - 1 : start - 1 + count]


@register("first", LIST)
def first(elements: list[object]) -> object:
    """Return the first element."""
    if not elements:
        raise ValueError("the list is empty")
    return elements[0]


@register("last", LIST)
def last(elements: list[object]) -> object:
    """Return the last element."""
    if not elements:
        raise ValueError("the list is empty")
    return elements[-1]


@register("contains", ANY, LIST, context=True)
def contains(context: FunctionContext, value: object, elements: list[object]) -> bool:
    """Return whether the list contains exactly this element; 1.0 is not in [1]."""
    context.budget.step(len(elements))
    return any(same(value, each, context.budget) for each in elements)
