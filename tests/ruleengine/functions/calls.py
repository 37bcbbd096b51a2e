"""How the tests call a function, and how they read the special values of the vector files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.functions.function import SchemaCodec, no_schema
from taipan.ruleengine.functions.registry import FUNCTIONS, FunctionContext
from taipan.ruleengine.functions.undefined import UNDEFINED

NOW = 1653561612.25  # 2022-05-26T10:40:12.25Z


def context(
    columns: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
    budget: Budget | None = None,
    codec: Callable[[str], SchemaCodec] = no_schema,
) -> FunctionContext:
    """What a function sees in a test: a fixed time, and the columns asked for."""
    return FunctionContext(
        columns if columns is not None else {},
        NOW,
        "taipan@127.0.0.1",
        state if state is not None else {},
        budget or Budget(),
        codec,
    )


def call(name: str, *arguments: Any, within: FunctionContext | None = None) -> Any:
    """Call a function of the registry as a compiled rule does."""
    return FUNCTIONS[name].call(within or context(), list(arguments))


def read_value(value: Any) -> Any:
    """A value of a vector file: `{"$undefined": true}` is undefined, `{"$hex": ...}` binary."""
    if isinstance(value, list):
        return [read_value(each) for each in value]
    if isinstance(value, dict):
        if value == {"$undefined": True}:
            return UNDEFINED
        if set(value) == {"$hex"}:
            return bytes.fromhex(value["$hex"])
        return {key: read_value(each) for key, each in value.items()}
    return value


def alike(got: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Whether an answer is the expected one: numbers by value, binary like the text of its bytes, true never 1."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return got is expected
    if isinstance(expected, (int, float)) and isinstance(got, (int, float)):
        return abs(got - expected) <= tolerance
    if isinstance(expected, (str, bytes)) and isinstance(got, (str, bytes)):
        return _bytes(got) == _bytes(expected)
    if isinstance(expected, list) and isinstance(got, list):
        return len(got) == len(expected) and all(map(alike, got, expected))
    if isinstance(expected, dict) and isinstance(got, dict):
        return got.keys() == expected.keys() and all(alike(got[key], expected[key]) for key in expected)
    return got is expected


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
