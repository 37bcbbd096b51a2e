"""The lag probe, on a loop and a clock that a test moves."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from taipan.broker.observability.lag import LagProbe


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    def __init__(self) -> None:
        self.time = 50.0
        self.calls: list[tuple[float, Callable[[], None], Handle]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        handle = Handle()
        self.calls.append((self.time + delay, callback, handle))
        return handle

    def turn(self, late: float) -> None:
        """Call what is due, so many seconds late."""
        ((when, callback, _),) = self.calls
        self.calls.clear()
        self.time = when + late
        callback()


def make(window: int = 1024) -> tuple[LagProbe, Loop]:
    loop = Loop()
    probe = LagProbe(cast(asyncio.AbstractEventLoop, cast(Any, loop)), 0.05, window, lambda: loop.time)
    return probe, loop


def test_nothing_measured_is_zero() -> None:
    probe, _ = make()
    assert probe.snapshot() == {"p50": 0.0, "p99": 0.0, "max": 0.0, "peak": 0.0}


def test_percentiles_in_milliseconds() -> None:
    probe, loop = make()
    probe.start()
    for number in range(101):
        loop.turn(late=number / 1000)
    assert probe.snapshot() == {"p50": 50.0, "p99": 99.0, "max": 100.0, "peak": 100.0}


def test_the_window_slides_and_the_peak_stays() -> None:
    probe, loop = make(window=10)
    probe.start()
    loop.turn(late=0.5)
    for _ in range(10):
        loop.turn(late=0.001)
    assert probe.snapshot() == {"p50": 1.0, "p99": 1.0, "max": 1.0, "peak": 500.0}


def test_too_early_is_not_late() -> None:
    probe, loop = make()
    probe.start()
    loop.turn(late=-0.002)
    assert probe.snapshot()["max"] == 0.0


def test_one_call_is_outstanding_until_it_is_stopped() -> None:
    probe, loop = make()
    probe.start()
    probe.start()
    assert len(loop.calls) == 1
    loop.turn(late=0.0)
    ((_, _, handle),) = loop.calls
    probe.stop()
    probe.stop()
    assert handle.cancelled


def test_the_longest_of_the_last_seconds() -> None:
    probe, loop = make(window=10)
    assert probe.longest(1.0) == 0.0
    probe.start()
    loop.turn(late=0.5)
    for _ in range(3):
        loop.turn(late=0.0)
    loop.turn(late=0.125)
    assert round(probe.longest(0.05), 6) == 0.125
    assert round(probe.longest(0.2), 6) == 0.125
    assert round(probe.longest(0.25), 6) == 0.5
    assert round(probe.longest(60.0), 6) == 0.5
