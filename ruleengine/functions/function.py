"""One SQL function: its name, how many arguments it takes and of which kinds, and what it costs to call it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from .budget import Budget, BudgetExceeded
from .undefined import UNDEFINED
from .values import describe, restore

P = ParamSpec("P")
R = TypeVar("R")

MAX_BITS: Final = 8192
"""No integer grows beyond this, so that none takes long to multiply or to print."""

BYTES_PER_STEP: Final = 128
"""Text that a function reads costs steps too: a hash of a large payload is not free because its result is short."""

REFUSED: Final = object()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[-+*/]")


class FunctionError(ValueError):
    """A call that cannot be answered; the text names the function, the argument, what came and what was expected."""


@dataclass(slots=True)
class FunctionContext:
    """What a function may see beside its arguments.

    `columns` are those of the event, `now` is Unix time in seconds, `node` the node's name, `state` what functions keep
    between evaluations (one dictionary for the life of the engine), `budget` what this evaluation may still cost.
    """

    columns: Mapping[str, Any]
    now: float
    node: str
    state: dict[str, Any]
    budget: Budget


@dataclass(frozen=True, slots=True)
class Function:
    """A function as SQL calls it: `call(context, arguments)` checks, charges and answers, or raises `FunctionError`.

    `max_args` is None where any number may follow. `kinds`: what each argument is, by the names of kinds; where any
    number may follow, the last is that of these.
    """

    name: str
    min_args: int
    max_args: int | None
    call: Callable[[FunctionContext, list[Any]], Any]
    kinds: tuple[str, ...] = ()

    def takes(self, count: int) -> bool:
        """Whether it can be called with so many arguments."""
        return count >= self.min_args and (self.max_args is None or count <= self.max_args)


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a parameter: `take` returns the value in the form that the function expects, or `REFUSED`."""

    name: str
    take: Callable[[Any], Any]

    def either(self, other: Kind) -> Kind:
        """A kind that accepts what this or the other one accepts."""

        def take(value: object) -> object:
            taken = self.take(value)
            return other.take(value) if taken is REFUSED else taken

        return Kind(f"{self.name} or {other.name}", take)


def _text(value: object) -> object:
    if type(value) is str:
        return value
    if type(value) is bytes:
        return value.decode("utf-8", "surrogateescape")
    return REFUSED


def _bytes(value: object) -> object:
    if type(value) is str:
        return value.encode()
    return value if type(value) is bytes else REFUSED


def _finite(value: Any) -> object:
    kind = type(value)
    return value if kind is int or (kind is float and math.isfinite(value)) else REFUSED


def one_of(*words: str) -> Kind:
    """A parameter that accepts these words only."""
    return Kind(" or ".join(f"'{word}'" for word in words), lambda value: value if value in words else REFUSED)


ANY: Final = Kind("any value", lambda value: value)
INTEGER: Final = Kind("an integer", lambda value: value if type(value) is int else REFUSED)
FLOAT: Final = Kind("a float", lambda value: value if type(value) is float and math.isfinite(value) else REFUSED)
NUMBER: Final = Kind("a number", _finite)
BOOLEAN: Final = Kind("a boolean", lambda value: value if type(value) is bool else REFUSED)
TEXT: Final = Kind("a string", _text)
"""Arrives as `str`; bytes that are not UTF-8 stand in it as surrogates and come out as they were."""
BYTES: Final = Kind("a string", _bytes)
"""Arrives as `bytes`, whether it was text or binary."""
LIST: Final = Kind("a list", lambda value: value if type(value) is list else REFUSED)
MAP: Final = Kind("a map", lambda value: value if type(value) is dict else REFUSED)

FUNCTIONS: Final[dict[str, Function]] = {}


def _checked(result: Any, budget: Budget) -> object:
    """The result as SQL may have it: text or binary decided, no number out of bounds, its size paid for."""
    kind = type(result)
    if kind is str or kind is bytes:
        budget.take_bytes(len(result))
        return restore(result)
    if kind is int:
        if result.bit_length() > MAX_BITS:
            raise ValueError(f"the result has more than {MAX_BITS} bits")
    elif kind is float:
        if not math.isfinite(result):
            raise ValueError("the result is not a finite number")
    elif kind is list or kind is dict:
        budget.step(len(result))
    elif result is not None and kind is not bool and result is not UNDEFINED:
        raise ValueError(f"the result is a Python {kind.__name__}, which a rule cannot handle")
    return result


def _arity(least: int, most: int | None) -> str:
    if most is None:
        return f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be a function's name")


def register(
    name: str, *kinds: Kind, optional: int = 0, more: Kind | None = None, context: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a Python function callable in SQL under `name`, with one kind for each of its parameters.

    The last `optional` parameters may be left out (give them defaults); `more` is the kind of any further ones; with
    `context` the function gets the `FunctionContext` first. It answers None (JSON null), UNDEFINED, bool, int, float,
    str, bytes, list or dict, and raises ValueError for what it cannot answer; the name is put in front of the text.
    It runs on the event loop: what takes long has to charge `context.budget` before it begins. A name is registered
    once.

        @register("celsius", NUMBER)
        def celsius(fahrenheit: float) -> float:
            return (fahrenheit - 32) / 1.8
    """
    _check_name(name)
    if not 0 <= optional <= len(kinds):
        raise ValueError(f"{name}: {optional} of {len(kinds)} parameters cannot be optional")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if name in FUNCTIONS:
            raise ValueError(f"function {name} already exists")
        FUNCTIONS[name] = make_function(name, function, kinds, optional, more, context)
        return function

    return decorate


def make_function(
    name: str,
    answer: Callable[..., object],
    kinds: tuple[Kind, ...],
    optional: int = 0,
    more: Kind | None = None,
    context: bool = False,
) -> Function:
    """The function that `register` registers: it checks and charges its arguments before the call."""
    _check_name(name)
    least = len(kinds) - optional
    most = None if more is not None else len(kinds)

    def call(given: FunctionContext, arguments: list[object]) -> object:
        count = len(arguments)
        if count < least or (most is not None and count > most):
            raise FunctionError(f"{name} takes {_arity(least, most)} arguments, not {count}")
        cost = 1
        taken: list[object] = [given] if context else []
        for index, value in enumerate(arguments):
            if type(value) is str or type(value) is bytes:
                cost += len(value) // BYTES_PER_STEP
            kind = kinds[index] if index < len(kinds) else more
            accepted = kind.take(value) if kind is not None else REFUSED
            if accepted is REFUSED:
                wanted = kind.name if kind is not None else "nothing"
                raise FunctionError(f"{name}: argument {index + 1} is {describe(value)}, expected {wanted}")
            taken.append(accepted)
        given.budget.step(cost)
        try:
            return _checked(answer(*taken), given.budget)
        except (BudgetExceeded, FunctionError):
            raise
        except (ArithmeticError, ValueError) as error:
            raise FunctionError(f"{name}: {error}") from error

    further = () if more is None else (more.name,)
    return Function(name, least, most, call, (*[each.name for each in kinds], *further))
