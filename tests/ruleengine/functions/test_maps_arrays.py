"""Maps and lists beyond the shared vectors."""

from __future__ import annotations

from typing import Any

import pytest

from taipan.ruleengine.functions.registry import FunctionError
from taipan.ruleengine.functions.undefined import UNDEFINED
from tests.ruleengine.functions.calls import call


def test_putting_changes_nothing_in_place() -> None:
    before: dict[str, Any] = {"a": {"b": 1}, "c": 2}
    assert call("map_put", "a.d", 3, before) == {"a": {"b": 1, "d": 3}, "c": 2}
    assert call("mput", "c", 4, before) == {"a": {"b": 1}, "c": 4}
    assert before == {"a": {"b": 1}, "c": 2}


@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("map_get", ["a.b.c", '{"a":"{\\"b\\":{\\"c\\":1}}"}'], 1),
        ("map_get", ["a", UNDEFINED], UNDEFINED),
        ("map_get", ["a.b", {"a": None}, 7], 7),
        ("map_get", ["a", [1], 7], 7),
        ("map_get", ["a", "[" * 70, 7], 7),
        ("map_put", ["a.b", 1, {"a": 5}], {"a": {"b": 1}}),
        ("map_put", ["b", 1, '{"a":2}'], {"a": 2, "b": 1}),
        ("mget", ["a", {"a": None}, 1], None),
        ("map_keys", [{"b": 1, "a": 2}], ["b", "a"]),
        ("map_to_entries", [{"b": 1}], [{"key": "b", "value": 1}]),
        ("map_to_entries", ['{"b":1}'], [{"key": "b", "value": 1}]),
        ("map_to_entries", [b'{"b":1}'], [{"key": "b", "value": 1}]),
        ("map_keys", ['{"b":1,"a":2}'], ["b", "a"]),
        ("map_values", ['{"b":1,"a":2}'], [1, 2]),
        ("sublist", [9, [1, 2]], [1, 2]),
        ("sublist", [3, 1, [1, 2]], []),
        ("sublist", [1, 10**30, [1, 2]], [1, 2]),
        ("last", [[1, None]], None),
        ("contains", [None, [None]], True),
    ],
)
def test_answers(name: str, arguments: list[Any], expected: Any) -> None:
    assert call(name, *arguments) == expected


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("map_put", ["a", 1, UNDEFINED]),
        ("map_to_entries", ["[1]"]),
        ("map_to_entries", ["no"]),
        ("map_keys", [5]),
        ("map_put", ["a", 1, "[1]"]),
        ("map_put", ["a", 1, "no"]),
        ("map_put", [".".join("a" * 65), 1, {}]),
        ("map_get", [1, {}]),
        ("mput", ["a", 1, "{}"]),
        ("nth", [3, [1, 2]]),
        ("nth", [-1, [1, 2]]),
        ("sublist", [0, 1, [1]]),
        ("sublist", [-1, [1]]),
        ("sublist", [1, 2]),
        ("sublist", [1, [1], [2]]),
        ("first", [[]]),
        ("first", ["abc"]),
        ("contains", [1, {"a": 1}]),
    ],
)
def test_refused(name: str, arguments: list[Any]) -> None:
    with pytest.raises(FunctionError, match=f"^{name}: "):
        call(name, *arguments)
