"""The lag of the event loop: how late callbacks run because other work held the loop."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

INTERVAL: Final = 0.037
"""Seconds between probes; not a multiple of the ticker's interval, so that the ticker's own work is measured as
well."""
WINDOW: Final = 1024
"""Number of probes that are kept: about the last 38 seconds."""


class LagProbe:
    """Request a call from the loop repeatedly, and record how late each call was.

    Measured with ``perf_counter``, because uvloop's own clock has steps of a millisecond. A probe costs some
    microseconds; an idle loop shows some tenths of a millisecond. ``clock`` returns seconds; tests pass their own."""

    __slots__ = ("_clock", "_due", "_handle", "_interval", "_loop", "_samples", "peak")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        interval: float = INTERVAL,
        window: int = WINDOW,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._clock = clock
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._samples: deque[float] = deque(maxlen=window)
        self.peak = 0.0  # seconds, since the start

    def start(self) -> None:
        """Start probing."""
        if self._handle is None:
            self._arm()

    def stop(self) -> None:
        """Stop probing; the measurements remain."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def longest(self, seconds: float) -> float:
        """Return the longest lag in seconds, of the probes in the last ``seconds`` or of all that are kept."""
        probes = math.ceil(seconds / self._interval)
        return max(islice(reversed(self._samples), probes), default=0.0)

    def snapshot(self) -> dict[str, float]:
        """Return ``p50``, ``p99`` and ``max`` of the window, and ``peak`` since the start, in milliseconds; all zero
        at first."""
        ordered = sorted(self._samples)
        if not ordered:
            return {"p50": 0.0, "p99": 0.0, "max": 0.0, "peak": 0.0}
        last = len(ordered) - 1
        return {
            "p50": _milliseconds(ordered[round(last * 0.50)]),
            "p99": _milliseconds(ordered[round(last * 0.99)]),
            "max": _milliseconds(ordered[last]),
            "peak": _milliseconds(self.peak),
        }

    def _arm(self) -> None:
        self._due = self._clock() + self._interval
        self._handle = self._loop.call_later(self._interval, self._probe)

    def _probe(self) -> None:
        lag = self._clock() - self._due
        if lag < 0.0:  # loops round their timers
            lag = 0.0
        self._samples.append(lag)
        if lag > self.peak:
            self.peak = lag
        self._arm()


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
