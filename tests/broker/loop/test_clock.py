"""The clock: intervals follow the monotonic clock, dates the wall clock."""

import pytest

from taipan.broker.loop import clock as module
from taipan.broker.loop.clock import Clock, WallTime
from taipan.broker.loop.timers import Timers


class Times:
    """The module ``time``, under control."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.since = 5.0

    def time(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.since

    def pass_by(self, seconds: float) -> None:
        self.at += seconds
        self.since += seconds


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    times = Times()
    monkeypatch.setattr(module, "time", times)
    monkeypatch.setattr(Clock, "monotonic", staticmethod(times.monotonic))
    return times


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1_700_000_000.0])
def test_a_jump_of_the_wall_clock_is_seen_by_dates_alone(times: Times, jump: float) -> None:
    clock = Clock()
    times.pass_by(10)
    assert clock.now() == clock.wall() == 1010
    times.at += jump
    assert clock.now() == 1010
    assert clock.wall() == 1010 + jump
    times.pass_by(5)
    assert (clock.now(), clock.wall(), clock.skew) == (1015, 1015 + jump, jump)
    times.at -= jump
    assert (clock.now(), clock.wall(), clock.skew) == (1015, 1015, 0)


def test_being_slewed_makes_no_moment_look_different_from_one_look_to_the_next(times: Times) -> None:
    clock = Clock()
    for _ in range(40):
        times.pass_by(1)
        times.at += 0.01
        assert clock.skew == 0
    for _ in range(20):
        times.pass_by(1)
        times.at += 0.01
    assert 0.5 < clock.skew < 0.6
    assert abs(clock.wall() - times.at) < 0.5


def test_a_machine_that_slept_has_dates_that_went_on(times: Times) -> None:
    clock = Clock()
    dated, lasting = Timers(WallTime(clock)), Timers(clock)
    fired: list[str] = []
    dated.at(1060, lambda: fired.append("date"))
    lasting.after(60, lambda: fired.append("interval"))
    times.at += 100
    dated.run(clock.wall())
    lasting.run(clock.now())
    assert fired == ["date"]
    times.pass_by(60)
    lasting.run(clock.now())
    assert fired == ["date", "interval"]
