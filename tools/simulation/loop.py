"""VirtualLoop: an event loop whose time stands still while any callback is ready, and then jumps to the next timer.

Everything that a node starts belongs to its ``Life``. When that ends, none of it is called again, not even a
``finally``: a node dies as by SIGKILL while other nodes on the same loop continue.
"""

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Mapping
from typing import Any, Final

NOBODY: Final = contextvars.Context()
"""The context of callbacks that belong to no node."""


MAX_TURNS: Final = 5_000
"""Maximum number of iterations during which almost no time passes."""


IN_ANOTHER_THREAD: Final = 0.002
"""Seconds that the work of another thread takes."""


class Killed(BaseException):
    """Raised in everything that a node is doing at the moment of its death."""


class Life:
    """The life of a node, from a start to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.over = False


life: Final[contextvars.ContextVar[Life | None]] = contextvars.ContextVar("life", default=None)
"""The node whose code is running."""


class Stuck(Exception):
    """Nothing is scheduled, and nothing will be."""


class Spinning(Exception):
    """Many callbacks run, and no time passes."""


class _Selector(selectors.BaseSelector):
    """Advances the time instead of waiting. No file is ever ready."""

    def __init__(self) -> None:
        self.time = 0.0
        self.turns = 0  # in which next to no time has passed
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck
        if timeout > 0:
            self.time += timeout
            self.turns = 0
        else:
            self.time += 1e-9  # a timer may fire this much early; waiting for the rest must not last indefinitely
            self.turns += 1
            if self.turns > MAX_TURNS:
                raise Spinning
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def _complete(future: "asyncio.Future[Any]", result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0."""

    def __init__(self) -> None:
        self.virtual = _Selector()
        self.steps = 0
        self.latest: object = None
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.time

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        owner = life.get() if context is None else context.get(life)
        return super().call_soon(self._call, owner, callback, args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # there is one thread

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Call ``func`` immediately, and return its result some milliseconds later."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.call_later(IN_ANOTHER_THREAD, _fail, future, error)
        else:
            self.call_later(IN_ANOTHER_THREAD, _complete, future, result)
        return future

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        owner = life.get() if context is None else context.get(life)
        return super().call_at(when, self._call, owner, callback, args, context=context)

    def _call(self, owner: Life | None, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.steps += 1
        self.latest = callback
        if owner is not None and owner.over:
            return
        try:
            callback(*args)
        except Killed:
            pass
