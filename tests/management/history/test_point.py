"""Points joined: over time, over nodes, by reason; and the times between them."""

from taipan.management.history.point import (
    COUNTS,
    FIGURES,
    RATES,
    Point,
    Sum,
    gaps,
    total,
    with_fewer_reasons,
)


def point(at: int, seconds: float = 1.0, drops: dict[str, int | float] | None = None, **figures: float) -> Point:
    return Point(at, seconds, [figures.get(name, 0) for name in FIGURES], drops or {})


def figures_of(point: Point) -> dict[str, int | float]:
    return {name: value for name, value in zip(FIGURES, point.figures, strict=True) if value}


def test_a_minute_has_averages_longest_and_last() -> None:
    minute = Sum(60)
    minute.add(point(1, 1.0, {"a": 2}, bytes_sent=10, sessions=5, loop_lag=7, commit_time=1, disk_free=900))
    minute.add(point(3, 2.0, {"a": 5, "b": 3}, bytes_sent=40, sessions=3, loop_lag=2, commit_time=4, disk_free=800))
    joined = minute.point()
    assert (joined.at, joined.seconds) == (60, 3.0)
    assert figures_of(joined) == {"bytes_sent": 30, "sessions": 3, "loop_lag": 7, "commit_time": 4, "disk_free": 800}
    assert joined.drops == {"a": 4, "b": 2}


def test_nodes_add_up_but_for_times() -> None:
    one = point(5, 1.0, {"a": 1.5}, messages_sent=1.25, sessions=2, loop_lag=3, memory=100)
    two = point(5, 1.1, {"a": 1, "b": 2}, messages_sent=1, sessions=1, loop_lag=9, commit_time=1, memory=10)
    joined = total([one, two])
    assert figures_of(joined) == {"messages_sent": 2.25, "sessions": 3, "loop_lag": 9, "commit_time": 1, "memory": 110}
    assert (joined.at, joined.drops) == (5, {"a": 2.5, "b": 2})
    assert total([one]) == one


def test_gaps() -> None:
    every = [point(at) for at in range(101, 111)]
    assert gaps(every, 100, 110, 1) == []
    assert gaps(every, 90, 110, 1) == [[90_000, 100_000]]
    assert gaps(every[:3] + every[6:], 100, 110, 1) == [[103_000, 106_000]]
    assert gaps(every, 100, 200, 1) == [[110_000, 200_000]]
    assert gaps([], 100, 200, 1) == [[100_000, 200_000]]
    # A point that came late is about all the time since the one before.
    assert gaps([*every[:3], point(107, 4.2), *every[7:]], 100, 110, 1) == []
    # The last one may still be to come.
    assert gaps(every, 100, 111, 1) == []
    assert gaps([point(60, 60.0), point(120, 60.0)], 0, 170, 60) == []
    assert gaps([point(60, 60.0), point(300, 31.0)], 0, 300, 60) == [[60_000, 269_000]]


def test_a_point_with_fewer_reasons() -> None:
    fewer = with_fewer_reasons(point(1, drops={"a": 1, "b": 5, "c": 2, "other": 3}), 2)
    assert fewer.drops == {"b": 5, "other": 6}
    assert with_fewer_reasons(point(1, drops={"a": 1, "b": 5}), 0).drops == {"other": 6}


def test_the_order_of_the_columns() -> None:
    assert FIGURES[: len(RATES)] == RATES and FIGURES[len(RATES) : len(RATES) + len(COUNTS)] == COUNTS
    assert point(7, sessions=1).row()[0] == 7000
