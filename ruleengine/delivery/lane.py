"""Lane: the rows that wait for one connection of a resource, in the order in which they are sent."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final

from .buffered_row import BufferedRow

_NEVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class WaitingRow:
    """A row in a lane. ``in_flight``: its answer may still arrive; ``done``: delivered or failed."""

    number: int
    buffered: BufferedRow
    size: int
    attempts: int = 0
    in_flight: bool = False
    done: bool = False
    holder: OrderedDict[int, WaitingRow] | None = None


@dataclass(slots=True, eq=False)
class _Held:
    """The rows of one key. The first is not retried before ``due`` (seconds of the loop)."""

    due: float
    rows: OrderedDict[int, WaitingRow] = field(default_factory=OrderedDict)


class Lane:
    """Rows in order. If a key is held, all its rows wait; rows of other keys continue."""

    __slots__ = ("_held", "_rows", "busy", "failures", "index", "single_attempts", "task", "woken")

    def __init__(self, index: int) -> None:
        self.index = index
        self._rows: OrderedDict[int, WaitingRow] = OrderedDict()
        self._held: dict[str, _Held] = {}
        self.single_attempts = 0
        """Number of rows with ``retry_for`` 0."""
        self.task: asyncio.Task[None] | None = None
        # A request is in flight, and its answer may still arrive.
        self.busy = False
        self.failures = 0
        self.woken = asyncio.Event()

    @property
    def empty(self) -> bool:
        return not self._rows and not self._held

    @property
    def ready(self) -> bool:
        """Whether there are rows that are not held."""
        return bool(self._rows)

    @property
    def due(self) -> float:
        """When the next key is released."""
        return min((each.due for each in self._held.values()), default=_NEVER)

    def append(self, waiting: WaitingRow) -> None:
        held = self._held.get(waiting.buffered.key)
        _put(self._rows if held is None else held.rows, waiting)
        self.single_attempts += waiting.buffered.single_attempt
        self.woken.set()

    def remove(self, waiting: WaitingRow) -> None:
        """Remove a row that was delivered or has failed."""
        assert waiting.holder is not None
        del waiting.holder[waiting.number]
        waiting.holder = None
        waiting.done = True
        self.single_attempts -= waiting.buffered.single_attempt

    def hold(self, waiting: WaitingRow, due: float) -> None:
        """Retry a row from ``due`` on, and no other row of its key before."""
        self.hold_key(waiting.buffered.key, due)
        assert waiting.holder is not None
        del waiting.holder[waiting.number]
        _put(self._held[waiting.buffered.key].rows, waiting)

    def hold_key(self, key: str, due: float) -> None:
        """Try no row of this key before ``due``."""
        if key not in self._held:
            self._held[key] = _Held(due)

    def reaches_past(self, keys: Container[str]) -> bool:
        """Return whether there are rows of other keys that are not held."""
        return any(each.buffered.key not in keys for each in self._rows.values())

    def pass_over(self, keys: Container[str], due: float) -> None:
        """Hold the rows of these keys at the front until ``due``."""
        for waiting in list(self._rows.values()):
            if waiting.buffered.key not in keys:
                return
            self.hold(waiting, due)

    def release(self, now: float) -> None:
        """Return the rows of released keys to their positions."""
        for key in [key for key, held in self._held.items() if held.due <= now]:
            for waiting in reversed(self._held.pop(key).rows.values()):
                _put(self._rows, waiting)
                self._rows.move_to_end(waiting.number, last=False)

    def release_all(self) -> None:
        self.release(_NEVER)
        self.woken.set()

    def batch(self) -> list[WaitingRow]:
        """Return the next rows that may share a request."""
        batch: list[WaitingRow] = []
        passed: list[WaitingRow] = []
        for waiting in self._rows.values():
            buffered = waiting.buffered
            if buffered.key in self._held:
                passed.append(waiting)
                continue
            if batch and (len(batch) >= batch[0].buffered.max_batch or buffered.group != batch[0].buffered.group):
                break
            batch.append(waiting)
            if buffered.max_batch == 1:
                break
        for waiting in passed:
            self.hold(waiting, 0.0)
        return batch

    def single_attempt_rows(self) -> list[WaitingRow]:
        """Return the rows with ``retry_for`` 0 that are not in flight."""
        every = [*self._rows.values(), *(each for held in self._held.values() for each in held.rows.values())]
        return [each for each in every if each.buffered.single_attempt and not each.in_flight]


def _put(rows: OrderedDict[int, WaitingRow], waiting: WaitingRow) -> None:
    rows[waiting.number] = waiting
    waiting.holder = rows
