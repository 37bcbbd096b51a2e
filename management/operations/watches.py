"""Watches: data that is observed only while a reader needs it, shared by all readers of the same data."""

import math
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from taipan.broker.loop.timers import Timer, Timers

from .refusal import Busy

LAPSE: Final = 15.0
"""Seconds after which a reader that has not asked again is removed; longer than the wait of any stream."""
MAX_WATCHES: Final = 64


class Watched(Protocol):
    def close(self) -> None: ...


W = TypeVar("W", bound=Watched)


class Watches(Generic[W]):
    """``make`` creates the observer of a key; the observer is closed when its last reader has left."""

    def __init__(self, make: Callable[[str], W], timers: Timers, what: str) -> None:
        self._make = make
        self._timers = timers
        self._what = what
        self._watches: dict[str, tuple[W, dict[str, float]]] = {}
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def ask(self, key: str, who: str) -> W:
        """Return the observer of a key, with ``who`` as a reader from now on. Raises Refusal if too much is
        observed, and the errors of ``make``."""
        now = self._timers.now()
        found = self._watches.get(key)
        if found is None:
            if len(self._watches) >= MAX_WATCHES:
                raise Busy(f"{MAX_WATCHES} {self._what} are already watched")
            found = self._watches[key] = (self._make(key), {})
            if self._timer is None:
                self._timer = self._timers.after(LAPSE, self._lapse)
        watch, watchers = found
        watchers[who] = max(now, watchers.get(who, now))
        return watch

    def hold(self, key: str, who: str) -> W:
        """Return the observer as ``ask`` does. ``who`` remains a reader until ``leave``, however slowly it reads."""
        watch = self.ask(key, who)
        self._watches[key][1][who] = math.inf
        return watch

    def leave(self, key: str, who: str) -> None:
        """Remove ``who`` from the readers."""
        found = self._watches.get(key)
        if found is not None:
            found[1].pop(who, None)
            self._close_if_unwatched(key)

    def close(self) -> None:
        """Close all observers."""
        for watch, _ in self._watches.values():
            watch.close()
        self._watches.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _lapse(self) -> None:
        """Remove readers that no longer ask: streams of other nodes do not report their end."""
        before = self._timers.now() - LAPSE
        for key, (_, watchers) in list(self._watches.items()):
            for who in [who for who, asked in watchers.items() if asked < before]:
                del watchers[who]
            self._close_if_unwatched(key)
        self._timer = self._timers.after(LAPSE, self._lapse) if self._watches else None

    def _close_if_unwatched(self, key: str) -> None:
        watch, watchers = self._watches[key]
        if not watchers:
            del self._watches[key]
            watch.close()
