"""The node's recurring call on the event loop: it runs the timers and the sweeps."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from .timers import Timers, TimeSource

logger = logging.getLogger(__name__)

Sweep = Callable[[float], None]
"""Called with the time, in Unix seconds."""


@dataclass(slots=True)
class _Entry:
    callback: Sweep
    every: float
    next: float = 0.0


class Ticker:
    """Run ``timers`` and the registered sweeps every ``interval`` seconds, by one ``call_later`` that is renewed.

    If more timers are due than one run may fire, the next run follows in the next iteration, so that sockets are
    served in between. At most one call is scheduled at a time.
    """

    __slots__ = ("_clock", "_dated", "_handle", "_interval", "_loop", "_next", "_sweeps", "_timers", "errors")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        clock: TimeSource,
        interval: float = 0.1,
        dated: Timers | None = None,
    ) -> None:
        """``dated``: timers of another clock."""
        self._loop = loop
        self._timers = timers
        self._dated = dated
        self._clock = clock
        self._interval = interval
        self._next = 0.0
        self._sweeps: list[_Entry] = []
        self._handle: asyncio.Handle | None = None
        self.errors = 0

    def every(self, seconds: float, sweep: Sweep) -> None:
        """Call ``sweep(now)`` each ``seconds``; 0: at each tick. The first call comes with the next tick."""
        self._sweeps.append(_Entry(sweep, seconds))

    def remove(self, sweep: Sweep) -> None:
        """Remove a sweep. Raises ValueError if it is not registered."""
        left = [entry for entry in self._sweeps if entry.callback != sweep]
        if len(left) == len(self._sweeps):
            raise ValueError("no such sweep")
        self._sweeps = left

    def start(self) -> None:
        """Start ticking; the first tick is one interval from now."""
        if self._handle is None:
            self._next = self._clock.now() + self._interval
            self._handle = self._loop.call_later(self._interval, self._on_loop)

    def stop(self) -> None:
        """Stop ticking. The timers remain as they are."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def tick(self, now: float) -> None:
        """Run one tick at ``now``: the timers, and the sweeps that are due."""
        self._timers.run(now)
        if self._dated is not None:
            self._dated.run(self._dated.now())
        if now < self._next:  # an extra run for timers only
            return
        self._next = now + self._interval
        for entry in tuple(self._sweeps):
            if now >= entry.next:
                entry.next = now + entry.every
                try:
                    entry.callback(now)
                except Exception:
                    self.errors += 1
                    name = getattr(entry.callback, "__qualname__", repr(entry.callback))
                    logger.exception("sweep_failed sweep=%s", name)

    def _on_loop(self) -> None:
        now = self._clock.now()
        self.tick(now)
        if self._handle is None:  # a sweep stopped us
            return
        if self._timers.due(now) or (self._dated is not None and self._dated.due(self._dated.now())):
            self._handle = self._loop.call_soon(self._on_loop)
        else:
            self._handle = self._loop.call_later(max(0.0, self._next - self._clock.now()), self._on_loop)
