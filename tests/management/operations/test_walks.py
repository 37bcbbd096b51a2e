"""The walks of the long listings: right wherever the page begins, and with places to pause all along."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from taipan.management.operations.listing import PAUSE_EVERY
from taipan.management.operations.routes import _filters
from taipan.management.operations.subscriptions import _found, _of_sessions


def sessions(counts: list[int], rng: random.Random) -> list[Any]:
    """Sessions with so many subscriptions each, some filters shared by several of them."""
    made = []
    for number, count in enumerate(counts):
        names = {f"of/{number}/{each}" if rng.random() < 0.7 else f"common/{rng.randrange(9)}" for each in range(count)}
        made.append(SimpleNamespace(subscriptions={name: f"{name}@{number}" for name in sorted(names)}))
    return made


def longest_run(walk: list[Any]) -> int:
    """Most rows between two places to pause."""
    longest = run = 0
    for each in walk:
        run = 0 if each is None else run + 1
        longest = max(longest, run)
    return longest


@pytest.mark.parametrize("seed", range(20))
def test_a_page_begins_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    some = sessions([rng.choice((0, 0, 1, 3, 700)) for _ in range(rng.choice((0, 1, 40)))], rng)
    subscriptions = [each for session in some for each in session.subscriptions.values()]
    filters = list(dict.fromkeys(name for session in some for name in session.subscriptions))
    for everything, walk in ((subscriptions, _of_sessions), (filters, _filters)):
        for skip in {0, 1, len(everything) // 2, len(everything) - 1, len(everything), len(everything) + 5}:
            if skip >= 0:
                assert [each for each in walk(some, skip) if each is not None] == everything[skip:]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_there_are_places_to_pause(count: int) -> None:
    some = sessions([count] * (10 * PAUSE_EVERY), random.Random(1))
    for walk in (_of_sessions, _filters):
        walked = list(walk(some, 10**9))
        assert walked == [None] * 10
    nothing = list(_found(some, lambda each: False))
    assert set(nothing) == {None} and len(nothing) >= 10 * (1 + count) * 0.9


def test_a_session_of_many_does_not_hold_the_search() -> None:
    some = sessions([20 * PAUSE_EVERY], random.Random(1))
    assert list(_found(some, lambda each: False)).count(None) >= 10
    assert longest_run(list(_found(some, lambda each: True))) <= PAUSE_EVERY
