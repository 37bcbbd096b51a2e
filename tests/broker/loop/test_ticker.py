"""The ticker, on a loop that a test turns by hand."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from taipan.broker.loop.ticker import Ticker
from taipan.broker.loop.timers import BUDGET, Timers
from tests.support.clock import Clock


class Handle:
    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """Keeps what is scheduled; ``turn`` moves the clock to the next one and calls it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.scheduled: list[Handle] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        handle = Handle(self.clock.time + delay, callback)
        self.scheduled.append(handle)
        return handle

    def call_soon(self, callback: Callable[[], None]) -> Handle:
        return self.call_later(0.0, callback)

    def turn(self) -> None:
        (handle,) = [each for each in self.scheduled if not each.cancelled]
        self.scheduled.clear()
        self.clock.time = max(self.clock.time, handle.when)
        handle.callback()

    def tick(self) -> None:
        """Turn until the next call is at a later time."""
        self.turn()
        while any(each.when <= self.clock.time for each in self.scheduled):
            self.turn()


def make() -> tuple[Ticker, Timers, Loop, Clock]:
    clock = Clock(1000.0)
    loop = Loop(clock)
    timers = Timers(clock)
    return Ticker(cast(asyncio.AbstractEventLoop, cast(Any, loop)), timers, clock, 0.125), timers, loop, clock


def test_runs_timers_and_sweeps_at_their_pace() -> None:
    ticker, timers, loop, clock = make()
    each: list[float] = []
    seldom: list[float] = []
    fired: list[float] = []
    ticker.every(0, each.append)
    ticker.every(0.5, seldom.append)
    timers.at(1000.2, lambda: fired.append(clock.time))
    ticker.start()
    ticker.start()  # once is enough
    for _ in range(8):
        loop.tick()
    assert each == [1000.125 + 0.125 * number for number in range(8)]
    assert seldom == [1000.125, 1000.625]
    assert fired == [1000.25]


def test_a_storm_of_timers_goes_on_at_the_next_turn_with_one_call_outstanding() -> None:
    ticker, timers, loop, clock = make()
    fired: list[int] = []
    swept: list[float] = []
    for number in range(BUDGET * 3 - 1):
        timers.at(1000.1, lambda number=number: fired.append(number))  # type: ignore[misc]
    ticker.every(0, swept.append)
    ticker.start()
    for count, sweeps in ((BUDGET, 0), (BUDGET, 1), (BUDGET * 2, 1)):  # the sweep has a turn of its own
        loop.turn()
        assert (len(fired), len(swept)) == (count, sweeps)
        assert len(loop.scheduled) == 1
        assert loop.scheduled[0].when == clock.time  # at once
    loop.turn()
    assert len(fired) == BUDGET * 3 - 1
    assert clock.time == 1000.125
    assert loop.scheduled[0].when == 1000.25
    assert swept == [1000.125]  # extra turns are for timers only


def test_a_late_loop_does_not_make_up_for_missed_ticks() -> None:
    ticker, _, loop, clock = make()
    seen: list[float] = []
    ticker.every(0, seen.append)
    ticker.start()
    clock.time = 1010.0
    loop.tick()
    loop.tick()
    assert seen == [1010.0, 1010.125]


def test_no_two_sweeps_run_in_one_iteration() -> None:
    """Nor one with the timers, whose callbacks publish messages: sockets are served in between."""
    ticker, timers, loop, clock = make()
    done: list[str] = []
    ticker.every(0, lambda now: done.append("guard"))
    ticker.every(0.5, lambda now: done.append("sample"))
    ticker.every(0.5, lambda now: done.append("sweep"))
    timers.at(1000.1, lambda: done.append("timer"))
    ticker.start()
    turns = []
    while clock.time < 1000.7:
        done.clear()
        loop.turn()
        turns.append((clock.time, *done))
    assert [each for each in turns if len(each) > 1] == [
        (1000.125, "timer"), (1000.125, "guard"), (1000.125, "sample"), (1000.125, "sweep"),
        (1000.25, "guard"), (1000.375, "guard"), (1000.5, "guard"),
        (1000.625, "guard"), (1000.625, "sample"), (1000.625, "sweep"),
    ]  # fmt: skip


def test_a_whole_tick_for_whoever_passes_the_time() -> None:
    ticker, timers, _, clock = make()
    done: list[str] = []
    ticker.every(0, lambda now: done.append("guard"))
    ticker.every(0.5, lambda now: done.append("sample"))
    timers.at(1000.1, lambda: done.append("timer"))
    clock.time = 1001.0
    ticker.tick(1001.0)
    assert done == ["timer", "guard", "sample"]


def test_a_sweep_that_is_removed_while_it_is_due_does_not_run() -> None:
    ticker, _, loop, _ = make()
    done: list[float] = []
    ticker.every(0, lambda now: ticker.remove(done.append) if not done else None)
    ticker.every(0, done.append)
    ticker.start()
    loop.turn()
    loop.turn()
    loop.tick()
    assert done == []


def test_an_error_in_a_sweep_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    ticker, _, loop, _ = make()
    seen: list[float] = []

    def broken(now: float) -> None:
        raise RuntimeError("no")

    ticker.every(0, broken)
    ticker.every(0, seen.append)
    ticker.start()
    with caplog.at_level(logging.ERROR):
        loop.tick()
    loop.tick()
    assert len(seen) == 2
    assert ticker.errors == 2
    assert "broken" in caplog.text


def test_stop_and_remove() -> None:
    ticker, _, loop, _ = make()
    seen: list[float] = []
    ticker.every(0, seen.append)
    ticker.start()
    loop.tick()
    ticker.remove(seen.append)
    with pytest.raises(ValueError):
        ticker.remove(seen.append)
    loop.tick()
    assert len(seen) == 1
    ticker.stop()
    ticker.stop()
    assert all(handle.cancelled for handle in loop.scheduled)


def test_a_sweep_may_stop_the_ticker() -> None:
    ticker, _, loop, _ = make()
    ticker.every(0, lambda now: ticker.stop())
    ticker.start()
    loop.turn()
    loop.turn()
    assert loop.scheduled == []
