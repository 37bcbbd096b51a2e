"""Strategy: one object for the members of a node and for the nodes of a cluster."""

from collections import Counter
from random import Random

import pytest

from taipan.broker.routing.strategy import STRATEGIES, Strategy


def strategy(name: str, seed: int = 1) -> Strategy:
    return Strategy(STRATEGIES[name], Random(seed))


def places(chosen: Strategy, times: int, count: int = 4, publisher: str = "p", topic: str = "t") -> list[int]:
    """Who gets so many messages; each is told to ``gave``."""
    got = []
    for _ in range(times):
        place = chosen.place(publisher, topic, count)
        chosen.gave(publisher, place, f"m{place}")
        got.append(place)
    return got


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_place_is_one_of_those_that_there_are(name: str) -> None:
    chosen = strategy(name)
    for count in (5, 1, 3, 2):  # members come and go
        assert set(places(chosen, 20, count)) <= set(range(count))


def test_round_robin_goes_on_from_whoever_got_the_last_message() -> None:
    for name in ("round_robin", "round_robin_per_group"):
        chosen = strategy(name)
        first = places(chosen, 1)[0]
        assert places(chosen, 4) == [(first + step) % 4 for step in range(1, 5)]
        chosen.gave("p", 2, "m2")  # the one that was next could not take it
        assert chosen.place("p", "t", 4) == 3


def test_round_robin_is_of_each_publisher_or_of_the_group() -> None:
    group, each = strategy("round_robin_per_group"), strategy("round_robin")
    assert [places(group, 1, publisher=name)[0] for name in "abcd"] == [0, 1, 2, 3]
    begun = {name: places(each, 1, publisher=name)[0] for name in "abcd"}
    assert {name: places(each, 1, publisher=name)[0] for name in "abcd"} == {
        name: (place + 1) % 4 for name, place in begun.items()
    }


def test_a_hash_is_of_the_publisher_or_of_the_topic() -> None:
    by_client, by_topic = strategy("hash_clientid"), strategy("hash_topic", 2)
    assert by_client.hashed and by_topic.hashed and not by_client.remembers
    assert len(set(places(by_client, 9, topic="a") + places(by_client, 9, topic="b"))) == 1
    assert len({by_client.place(f"p{number}", "t", 4) for number in range(64)}) == 4
    assert (
        by_topic.place("p", "same", 4)
        == by_client.place("same", "t", 4)
        == strategy("hash_topic").place("q", "same", 4)
    )


def test_sticky_remembers_a_name_and_no_place() -> None:
    chosen = strategy("sticky")
    assert chosen.favourite("p") is None
    chosen.gave("p", 3, "ann")
    assert chosen.favourite("p") == "ann" and chosen.favourite("q") is None
    chosen.gave("p", 0, "bob")
    assert chosen.favourite("p") == "bob"


def test_random_is_even() -> None:
    assert all(800 < times < 1200 for times in Counter(places(strategy("random"), 4000)).values())


@pytest.mark.parametrize("name", ["random", "round_robin", "hash_topic"])
def test_only_sticky_has_favourites(name: str) -> None:
    chosen = strategy(name)
    places(chosen, 3)
    assert chosen.favourite("p") is None
