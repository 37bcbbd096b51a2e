"""VirtualLoop: an event loop whose time stands still while anything is to be done, and then jumps to the next timer.

What a node has started, belongs to its ``Life``: when that is over, nothing of it is called any more, not even a
``finally``. So a node dies as by SIGKILL while its neighbours on the same loop go on.
"""

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Mapping
from typing import Any, Final

NOBODY: Final = contextvars.Context()
"""The context of what belongs to no node."""


MAX_TURNS: Final = 5_000
"""Iterations of the loop in which next to no time passes."""


class Killed(BaseException):
    """Ends what a node is doing at the moment of its death."""


class Life:
    """Of a node, from a start to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.over = False


life: Final[contextvars.ContextVar[Life | None]] = contextvars.ContextVar("life", default=None)
"""Whose code is running."""


class Stuck(Exception):
    """Nothing is left to do, and nothing will be."""


class Spinning(Exception):
    """Much is done and no time passes."""


class _Selector(selectors.BaseSelector):
    """Lets time pass in place of waiting. No file is ever ready."""

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
            self.time += 1e-9  # a timer may fire so much early: who waits on for the rest must not wait for ever
            self.turns += 1
            if self.turns > MAX_TURNS:
                raise Spinning
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time begins at 0."""

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
