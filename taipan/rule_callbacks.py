"""Functions of an embedding program as SQL functions and actions of rules."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from .hooks import is_async
from .ruleengine.actions.action import Action, ActionContext, ActionFailed, ActionType, Row
from .ruleengine.event import Event
from .ruleengine.functions.function import Function
from .ruleengine.functions.registry import ANY, BOOLEAN, BYTES, INTEGER, LIST, MAP, NUMBER, TEXT, Kind, make_function
from .ruleengine.params import Text

ActionFunction = Callable[[Mapping[str, object]], object | Awaitable[object]]
"""A function of one row of a rule's result. An exception is a failure of the action."""

MAX_WAITING: Final = 1000
"""The most rows that may wait for an asynchronous action; further ones fail."""

_KINDS: Final[dict[object, Kind]] = {
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    str: TEXT,
    bytes: BYTES,
    list: LIST,
    dict: MAP,
}


def sql_function(callback: Callable[..., object], name: str | None) -> Function:
    """Return an SQL function. Annotations specify the kinds of arguments; without one, any value is valid.

    Raises TypeError if the callback is not callable, is asynchronous, or requires a keyword argument.
    """
    if not callable(callback):
        raise TypeError(f"add_function: expected a function, got {type(callback).__name__}")
    name = callback.__name__ if name is None else name
    if is_async(callback):
        raise TypeError(f"add_function: {name} is asynchronous; SQL runs while a message is published and cannot wait")
    try:
        hints = typing.get_type_hints(callback)
    except (TypeError, NameError):
        hints = {}
    kinds: list[Kind] = []
    optional = 0
    more: Kind | None = None
    for parameter in inspect.signature(callback).parameters.values():
        hint = hints.get(parameter.name)
        kind = _KINDS.get(typing.get_origin(hint) or hint, ANY)
        if parameter.kind is parameter.VAR_POSITIONAL:
            more = kind
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            kinds.append(kind)
            optional += parameter.default is not parameter.empty
        elif parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY:
            raise TypeError(f"add_function: {name}: SQL has no keyword arguments such as {parameter.name}")
    return make_function(name, callback, tuple(kinds), optional, more)


class _Immediate:
    """An action with a plain function, which returns immediately."""

    def __init__(self, callback: ActionFunction) -> None:
        self._callback = callback

    def run(self, row: Row, event: Event) -> bool:
        try:
            answer = self._callback(dict(row))
        except Exception as error:
            raise ActionFailed(_words(error)) from error
        if inspect.iscoroutine(answer):
            answer.close()
            raise ActionFailed("a plain function returned a coroutine: define it with async def")
        return True

    def close(self) -> None:
        pass


class _Waiting:
    """An action with an asynchronous function. While rows wait, one task awaits the function row by row."""

    def __init__(self, callback: ActionFunction, context: ActionContext, tasks: set[asyncio.Task[None]]) -> None:
        self._callback = callback
        self._report = context.report
        self._rows: deque[tuple[Row, Event]] = deque()
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None

    def run(self, row: Row, event: Event) -> bool:
        if len(self._rows) >= MAX_WAITING:
            raise ActionFailed(f"{MAX_WAITING} rows are already waiting for this action")
        self._rows.append((dict(row), event))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(self._task)
            self._task.add_done_callback(self._tasks.discard)
        return False

    async def _work(self) -> None:
        try:
            while self._rows:
                row, event = self._rows.popleft()
                try:
                    answer: Any = self._callback(row)
                    await answer
                except Exception as error:
                    self._report.failed(_words(error), row, event)
                except asyncio.CancelledError:
                    self._report.failed("the action was closed", row, event)
                    raise
                else:
                    self._report.success()
        finally:
            self._task = None

    def close(self) -> None:
        left, self._rows = self._rows, deque()
        for row, event in left:
            self._report.failed("the action was closed", row, event)
        if self._task is not None:
            self._task.cancel()


def action_type(name: object, callback: ActionFunction, title: str, tasks: set[asyncio.Task[None]]) -> ActionType:
    """Return an action type. ``tasks`` contains the running tasks. Raises TypeError or ValueError."""
    if not callable(callback):
        raise TypeError(f"add_action: expected a function, got {type(callback).__name__}")
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"add_action: {name!r} cannot be an action's name")

    def create(context: ActionContext) -> Action:
        return _Waiting(callback, context, tasks) if is_async(callback) else _Immediate(callback)

    text = Text(title or name, title or name)
    return ActionType(name, text, text, create)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
