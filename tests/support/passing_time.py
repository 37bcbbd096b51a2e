"""Time of nodes under test: a test that lets time pass has no other, however long the machine takes for it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import pytest

_standing_since: list[float] = []


@contextmanager
def standing_clocks() -> Iterator[None]:
    """The clocks of all nodes of this process stand still meanwhile, but for what ``pass_time`` adds."""
    _standing_since.append(time.monotonic())
    try:
        yield
    finally:
        _standing_since.pop()


def standing_since() -> float | None:
    """When they began to, by the monotonic clock; None: they go."""
    return _standing_since[0] if _standing_since else None


def has_its_own_time(test: pytest.Function) -> bool:
    """Whether it calls ``pass_time``, itself or by a function of its module."""
    function = getattr(test.function, "__wrapped__", test.function)
    if not isinstance(function, FunctionType):
        return False
    return any("pass_time" in code.co_names for code in _codes(function.__code__, function.__globals__, set()))


def _codes(code: CodeType, names: dict[str, Any], seen: set[CodeType]) -> Iterator[CodeType]:
    if code in seen:
        return
    seen.add(code)
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each, names, seen)
    for name in code.co_names:
        other = names.get(name)
        if isinstance(other, FunctionType) and other.__globals__ is names:
            yield from _codes(other.__code__, names, seen)
