"""Timers: order, cancelling, budgets, errors; what was cancelled is not kept."""

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.loop.timers import Timer, Timers
from tests.support.clock import Clock


def record(seen: list[str], word: str) -> Callable[[], None]:
    return lambda: seen.append(word)


def test_fires_what_is_due_in_order_of_time_then_arrival() -> None:
    timers, seen = Timers(Clock()), list[str]()
    for when, word in ((3.0, "d"), (1.0, "a"), (2.0, "b"), (2.0, "c"), (4.0, "e")):
        timers.at(when, record(seen, word))
    assert timers.run(0.5) == 0
    assert timers.run(3.0) == 4
    assert seen == ["a", "b", "c", "d"]
    assert len(timers) == 1


def test_after_counts_from_now() -> None:
    clock = Clock(100.0)
    timers, seen = Timers(clock), list[str]()
    timer = timers.after(5, record(seen, "x"))
    assert timer.when == 105.0
    timers.run(104.9)
    assert seen == []
    timers.run(105.0)
    assert seen == ["x"]
    assert not timer.active


def test_a_cancelled_timer_does_not_fire() -> None:
    timers, seen = Timers(Clock()), list[str]()
    timer = timers.at(1.0, record(seen, "x"))
    assert timer.active
    timer.cancel()
    timer.cancel()
    assert len(timers) == 0
    assert not timers.due(2.0)
    assert timers.run(2.0) == 0
    assert seen == []


def test_cancelling_after_firing_has_no_effect() -> None:
    timers, seen = Timers(Clock()), list[str]()
    timer = timers.at(1.0, record(seen, "x"))
    timers.at(9.0, record(seen, "y"))
    timers.run(1.0)
    timer.cancel()
    assert len(timers) == 1


def test_a_callback_may_cancel_another_and_add_more() -> None:
    timers, seen = Timers(Clock()), list[str]()
    later = timers.at(2.0, record(seen, "never"))

    def first() -> None:
        later.cancel()
        timers.at(1.5, record(seen, "added"))

    timers.at(1.0, first)
    assert timers.run(3.0) == 2
    assert seen == ["added"]


def test_a_storm_is_sliced() -> None:
    timers, seen = Timers(Clock()), list[str]()
    for number in range(1000):
        timers.at(1.0, record(seen, str(number)))
    assert timers.run(1.0, budget=300) == 300
    assert timers.due(1.0)
    assert [timers.run(1.0, budget=300) for _ in range(4)] == [300, 300, 100, 0]
    assert not timers.due(1.0)
    assert seen == [str(number) for number in range(1000)]


def test_a_timer_that_adds_itself_again_does_not_hold_the_run() -> None:
    timers = Timers(Clock())

    def again() -> None:
        timers.at(0.0, again)

    again()
    assert timers.run(1.0, budget=50) == 50


def test_an_error_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    timers, seen = Timers(Clock()), list[str]()

    def broken() -> None:
        raise RuntimeError("no")

    timers.at(1.0, broken)
    timers.at(1.0, record(seen, "x"))
    with caplog.at_level(logging.ERROR):
        assert timers.run(1.0) == 2
    assert seen == ["x"]
    assert timers.errors == 1
    assert "broken" in caplog.text


def test_cancelled_timers_are_not_kept() -> None:
    timers = Timers(Clock())
    kept = timers.at(1.0, lambda: None)
    for _ in range(100_000):
        timers.at(5.0, lambda: None).cancel()
    assert len(timers) == 1
    assert len(timers._heap) + sum(map(len, timers._later.values())) < 200
    assert len(timers._tenths) == len(timers._later) < 200
    assert kept.active


@given(st.lists(st.tuples(st.sampled_from(["add", "cancel", "run"]), st.integers(0, 100)), max_size=300))
def test_behaves_as_a_sorted_list_would(steps: list[tuple[str, int]]) -> None:
    timers = Timers(Clock())
    fired: list[int] = []
    expected: list[int] = []
    made: list[Timer] = []
    waiting: list[tuple[float, int]] = []
    for step, number in steps:
        if step == "add":
            at = len(made)
            made.append(timers.at(number / 40, lambda at=at: fired.append(at)))  # type: ignore[misc]
            waiting.append((number / 40, at))
        elif step == "cancel" and made:
            at = number % len(made)
            made[at].cancel()
            waiting = [entry for entry in waiting if entry[1] != at]
        elif step == "run":
            due = sorted(entry for entry in waiting if entry[0] <= number / 40)
            waiting = [entry for entry in waiting if entry[0] > number / 40]
            expected += [at for _, at in due]
            assert timers.run(number / 40) == len(due)
        assert len(timers) == len(waiting)
        assert fired == expected
