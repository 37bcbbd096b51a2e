"""One SQL function: its name, the number and kinds of its arguments, and the cost of a call."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from .budget import Budget, BudgetExceeded
from .undefined import UNDEFINED
from .values import describe, restore

P = ParamSpec("P")
R = TypeVar("R")

MAX_BITS: Final = 8192
"""Maximum size of an integer, so that multiplying and printing it is fast."""

BYTES_PER_STEP: Final = 128
"""Text that a function reads also costs steps: the hash of a large payload is not free because its result is short."""

REFUSED: Final = object()

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[-+*/]")


class SchemaCodec(Protocol):
    """A compiled schema. ``message`` is the message type of Protobuf; the other parser types have none.

    Both methods raise ValueError if the value does not match the schema."""

    def decode(self, data: bytes, message: str | None, budget: Budget) -> object:
        """Return the value in these bytes."""
        ...

    def encode(self, value: object, message: str | None, budget: Budget) -> bytes:
        """Return the bytes of this value."""
        ...


def no_schema(name: str) -> SchemaCodec:
    """The default for a context without schemas: raise ValueError."""
    raise ValueError(f"there is no schema {name[:64]}")


class FunctionError(ValueError):
    """A call that failed; the message contains the function, the argument, its value and the expected kind."""


@dataclass(slots=True)
class FunctionContext:
    """The data that a function may use in addition to its arguments.

    `columns` are those of the event, `now` is Unix time in seconds, `node` the node's name, `state` the values that
    functions keep between evaluations (one dictionary for the life of the engine), `budget` the remaining cost of this
    evaluation, and `codec` returns a compiled schema by its name."""

    columns: Mapping[str, Any]
    now: float
    node: str
    state: dict[str, Any]
    budget: Budget
    codec: Callable[[str], SchemaCodec] = no_schema


@dataclass(frozen=True, slots=True)
class Function:
    """A function for SQL: `call(context, arguments)` checks and charges the arguments and returns the result, or raises
    `FunctionError`.

    `max_args` is None if any number may follow. `kinds`: the kinds of the arguments by name; if any number may follow,
    the last one applies to all of these."""

    name: str
    min_args: int
    max_args: int | None
    call: Callable[[FunctionContext, list[Any]], Any]
    kinds: tuple[str, ...] = ()

    def takes(self, count: int) -> bool:
        """Return whether the function accepts this number of arguments."""
        return count >= self.min_args and (self.max_args is None or count <= self.max_args)


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a parameter: `take` returns the value in the form that the function expects, or `REFUSED`."""

    name: str
    take: Callable[[Any], Any]

    def either(self, other: Kind) -> Kind:
        """Return a kind that accepts the values of either kind."""

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
    """Return a kind that accepts only these words."""
    return Kind(" or ".join(f"'{word}'" for word in words), lambda value: value if value in words else REFUSED)


ANY: Final = Kind("any value", lambda value: value)
INTEGER: Final = Kind("an integer", lambda value: value if type(value) is int else REFUSED)
FLOAT: Final = Kind("a float", lambda value: value if type(value) is float and math.isfinite(value) else REFUSED)
NUMBER: Final = Kind("a number", _finite)
BOOLEAN: Final = Kind("a boolean", lambda value: value if type(value) is bool else REFUSED)
TEXT: Final = Kind("a string", _text)
"""Passed as `str`; bytes that are not UTF-8 are represented as surrogates and returned unchanged."""
BYTES: Final = Kind("a string", _bytes)
"""Passed as `bytes`, whether it was text or binary."""
LIST: Final = Kind("a list", lambda value: value if type(value) is list else REFUSED)
MAP: Final = Kind("a map", lambda value: value if type(value) is dict else REFUSED)

FUNCTIONS: Final[dict[str, Function]] = {}


def _checked(result: Any, budget: Budget) -> object:
    """Return the result in the form for SQL: text or binary, with numbers in range and its size charged."""
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
    `context` the function gets the `FunctionContext` first. It returns None (JSON null), UNDEFINED, bool, int, float,
    str, bytes, list or dict, and raises ValueError for invalid arguments; the function's name is added before the text.
    It runs on the event loop: before slow work it has to charge `context.budget`. Each name can be registered only
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
    """Return the function that `register` registers: it checks and charges its arguments before the call."""
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
