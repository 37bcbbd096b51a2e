"""Deadlines: due in time, whatever the distance; bounded, whatever is set."""

import random

import pytest

from taipan.broker.routing.deadlines import Deadlines

START = 1_700_000_000.5


@pytest.mark.parametrize("ahead", [0, 0.2, 1, 59.9, 4095, 4096, 5000, 4096 * 4096 - 1, 4096 * 4096, 4_294_967_295])
def test_a_deadline_passes_within_a_second(ahead: float) -> None:
    deadlines = Deadlines()
    deadlines.set("t", START + ahead, START)
    now = START
    for share in (0.1, 0.5, 0.9, 0.999):
        assert deadlines.pop(now + ahead * share - 0.001, 10) == []
    assert len(deadlines) == 1
    assert deadlines.pop(START + ahead + 1, 10) == ["t"]
    assert len(deadlines) == 0
    assert deadlines.pop(START + 2 * ahead + 10, 10) == []


def test_the_latest_deadline_counts() -> None:
    deadlines = Deadlines()
    for ahead in (10_000, 5, 50):
        deadlines.set("t", START + ahead, START)
    assert deadlines.pop(START + 40, 10) == []
    assert deadlines.pop(START + 51, 10) == ["t"]
    deadlines.set("t", START + 60, START)
    deadlines.remove("t")
    deadlines.remove("never set")
    assert deadlines.pop(START + 20_000, 10_000) == []


def test_no_more_steps_than_allowed() -> None:
    deadlines = Deadlines()
    for number in range(100):
        deadlines.set(f"{number}", START + number % 7, START)
    seen: list[str] = []
    for _ in range(20):
        some = deadlines.pop(START + 10, 10)
        assert len(some) <= 10
        seen += some
    assert sorted(seen, key=int) == [f"{number}" for number in range(100)]


def test_what_is_overdue_when_set_comes_next() -> None:
    deadlines = Deadlines()
    deadlines.set("new", START + 100, START)
    deadlines.set("old", START - 100, START)
    assert deadlines.pop(START + 1, 10) == ["old"]


def test_buckets_are_bounded_whatever_deadlines_are_set() -> None:
    deadlines = Deadlines()
    rng = random.Random(3)
    for _ in range(50_000):
        deadlines.set("t", START + rng.choice((5_000, 1 << 24, 1 << 32)) * rng.random(), START)
    assert len(deadlines) == 1
    assert len(deadlines._buckets) == len(deadlines._due) <= 3 * 4096


def test_against_a_plain_table() -> None:
    rng = random.Random(11)
    deadlines = Deadlines()
    model: dict[str, float] = {}
    now = START
    for _ in range(5000):
        topic = f"{rng.randrange(50)}"
        if rng.random() < 0.7:
            model[topic] = now + rng.choice((1, 100, 10_000, 30_000_000)) * rng.random()
            deadlines.set(topic, model[topic], now)
        else:
            model.pop(topic, None)
            deadlines.remove(topic)
        if rng.random() < 0.2:
            now += rng.choice((0.5, 60, 9_000))
            passed = deadlines.pop(now, 1_000_000)
            for topic in passed:
                assert model.pop(topic) <= now
            assert all(deadline > now - 1 for deadline in model.values())
        assert len(deadlines) == len(model)
