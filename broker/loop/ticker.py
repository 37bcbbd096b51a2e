"""The node's recurring call on the event loop: it runs the timers and the sweeps."""

import asyncio
import logging
from collections import deque
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
    """Run ``timers`` and the registered sweeps every ``interval`` seconds, by one call that is renewed.

    A tick is spread over iterations of the loop, so that sockets are served in between: first the timers, and as many
    runs of them as they need, then each sweep that is due in an iteration of its own. At most one call is scheduled at
    a time.
    """

    __slots__ = ("_clock", "_dated", "_due", "_handle", "_interval", "_loop", "_next", "_sweeps", "_timers", "errors")

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
        # The sweeps of this tick that still have to run.
        self._due: deque[_Entry] = deque()
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
        self._due = deque([entry for entry in self._due if entry.callback != sweep])

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
        """Run a whole tick at ``now``: the timers, and the sweeps that are due."""
        self._begin(now)
        while self._due:
            self._sweep(now)

    def _begin(self, now: float) -> None:
        """Run the timers, and note the sweeps that are due."""
        self._timers.run(now)
        if self._dated is not None:
            self._dated.run(self._dated.now())
        if now < self._next:  # an extra run for timers only
            return
        self._next = now + self._interval
        for entry in self._sweeps:
            if now >= entry.next:
                entry.next = now + entry.every
                self._due.append(entry)

    def _sweep(self, now: float) -> None:
        entry = self._due.popleft()
        try:
            entry.callback(now)
        except Exception:
            self.errors += 1
            name = getattr(entry.callback, "__qualname__", repr(entry.callback))
            logger.exception("sweep_failed sweep=%s", name)

    def _on_loop(self) -> None:
        now = self._clock.now()
        if self._due:
            self._sweep(now)
        else:
            self._begin(now)
        if self._handle is None:  # a timer or a sweep stopped us
            return
        if self._due or self._timers.due(now) or (self._dated is not None and self._dated.due(self._dated.now())):
            self._handle = self._loop.call_soon(self._on_loop)
        else:
            self._handle = self._loop.call_later(max(0.0, self._next - self._clock.now()), self._on_loop)
