"""Router: subscriptions, routes, and the route cache."""

import random

import pytest

from taipan.broker.routing import router as router_module
from taipan.broker.routing.router import EMPTY, Router
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.support.sessions import make_session


def session(client_id: str) -> Session:
    return make_session(client_id)


def sub(session: Session, filter: str, qos: int = 0, identifier: int = 0, **options: bool) -> Subscription:
    identifiers = (identifier,) if identifier else ()
    if filter.startswith("$share/"):
        _, group, topic_filter = filter.split("/", 2)
        return Subscription(session, filter, qos, identifiers=identifiers, group=group, topic_filter=topic_filter)
    return Subscription(session, filter, qos, identifiers=identifiers, **options)  # type: ignore[arg-type]


A = session("a")
B = session("b")
C = session("c")


def test_nobody() -> None:
    router = Router()
    assert router.match("a") is EMPTY
    assert router.match("a") is EMPTY
    assert (EMPTY.targets, EMPTY.groups) == ((), ())


@pytest.mark.parametrize("filter", ["a/b", "a/+", "#"])
def test_one_two_three_and_back(filter: str) -> None:
    router = Router()
    subscriptions = [sub(each, filter) for each in (A, B, C)]
    for count, each in enumerate(subscriptions, 1):
        assert router.subscribe(each) is None
        assert router.match("a/b").targets == tuple(subscriptions[:count])
        assert router.subscription_count == count
        assert router.route_count() == 1
    assert router.subscriptions(filter) == subscriptions
    for count, each in enumerate(subscriptions, 1):
        assert router.unsubscribe(each)
        assert not router.unsubscribe(each)
        assert router.match("a/b").targets == tuple(subscriptions[count:])
        assert router.subscriptions(filter) == subscriptions[count:]
        assert router.subscription_count == 3 - count
    assert router.match("a/b") is EMPTY
    assert router.route_count() == 0
    assert list(router.filters()) == []


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("filter", ["a/b", "a/+", "$share/g/a/b", "$share/g/#"])
def test_subscribing_again_replaces(filter: str, others: int) -> None:
    """[MQTT-3.8.4-3]"""
    router = Router()
    first, second = sub(A, filter, 0), sub(A, filter, 2)
    rest = [sub(each, filter) for each in (B, C)[:others]]
    for each in [first, *rest]:
        router.subscribe(each)
    router.match("a/b")
    assert router.subscribe(second) is first
    assert router.subscriptions(filter) == [second, *rest]
    assert router.subscription_count == 1 + others
    route = router.match("a/b")
    assert route.targets == (() if route.groups else (second, *rest))
    assert router.unsubscribe(first)  # what the session has at this filter goes, compared to the letter [MQTT-3.10.4-1]
    assert set(router.subscriptions(filter)) == set(rest)


def test_unsubscribing_compares_filters_to_the_letter() -> None:
    """[MQTT-3.10.4-1]"""
    router = Router()
    router.subscribe(sub(A, "a/+"))
    for other in ("a/#", "a/b", "A/+", "a/+/", "#"):
        assert not router.unsubscribe(sub(A, other))
    assert not router.unsubscribe(sub(B, "a/+"))
    assert not router.unsubscribe(sub(A, "$share/g/a/+"))
    assert router.subscription_count == 1


def test_overlapping_filters_are_one_delivery() -> None:
    """Highest QoS and all identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4] [3.1.1 MQTT-3.3.5-1]"""
    router = Router()
    parts = [sub(A, "a/b", 1, 11), sub(A, "a/+", 2), sub(A, "#", 0, 13)]
    for each in parts:
        router.subscribe(each)
    router.subscribe(sub(B, "a/+", 0, 21))
    router.subscribe(sub(C, "a/+", 0))
    targets = {each.session.client_id: each for each in router.match("a/b").targets}
    assert set(targets) == {"a", "b", "c"}
    assert targets["a"].qos == 2
    assert sorted(targets["a"].identifiers) == [11, 13]
    assert set(targets["a"].parts) == set(parts)
    assert (targets["b"].qos, targets["b"].identifiers) == (0, (21,))
    assert [each.qos for each in router.match("a/x").targets if each.session is A] == [2]


def test_several_filters_without_overlap_are_not_merged() -> None:
    router = Router()
    one, two, three = sub(A, "a/b"), sub(B, "a/+"), sub(C, "#")
    for each in (one, two, three):
        router.subscribe(each)
    assert set(router.match("a/b").targets) == {one, two, three}


def test_wildcards_do_not_match_dollar_topics() -> None:
    """[MQTT-4.7.2-1]"""
    router = Router()
    for each in ("#", "+/x", "+/#", "$share/g/#", "$share/g/+/x"):
        router.subscribe(sub(A, each))
    assert router.match("$SYS/x") is EMPTY
    router.subscribe(sub(B, "$SYS/#"))
    router.subscribe(sub(B, "$share/g/$SYS/+"))
    route = router.match("$SYS/x")
    assert [each.session for each in route.targets] == [B]
    assert [each.topic_filter for each in route.groups] == ["$SYS/+"]


def test_shared_groups_are_told_apart_by_name_and_filter() -> None:
    router = Router()
    shared = [sub(A, "$share/g/a/b"), sub(A, "$share/g/a/+"), sub(A, "$share/h/a/b"), sub(B, "$share/g/a/b")]
    everything = [*shared, sub(A, "a/b")]
    for each in everything:
        router.subscribe(each)
    route = router.match("a/b")
    assert sorted((each.name, each.topic_filter, len(each)) for each in route.groups) == [
        ("g", "a/+", 1),
        ("g", "a/b", 2),
        ("h", "a/b", 1),
    ]
    assert route.targets == (everything[-1],)  # an ordinary subscription of a member gets its own copy
    assert (router.shared_count, router.subscription_count, router.route_count()) == (4, 5, 4)
    assert sorted(router.filters()) == ["$share/g/a/+", "$share/g/a/b", "$share/h/a/b", "a/b"]
    assert {each.filter for each in router.groups()} == {"$share/g/a/+", "$share/g/a/b", "$share/h/a/b"}
    for each in everything:
        assert router.unsubscribe(each)
        assert not router.unsubscribe(each)
    assert router.match("a/b") is EMPTY
    assert (router.shared_count, router.subscription_count, router.route_count()) == (0, 0, 0)
    assert len(router._groups_by_filter) == 0


def test_a_change_within_a_group_keeps_the_route() -> None:
    router = Router()
    router.subscribe(sub(A, "$share/g/#"))
    route = router.match("a")
    router.subscribe(sub(B, "$share/g/#"))
    assert router.match("a") is route
    assert len(route.groups[0]) == 2


def test_a_route_does_not_change_under_the_one_who_holds_it() -> None:
    router = Router()
    first = sub(A, "#")
    router.subscribe(first)
    route = router.match("a")
    router.subscribe(sub(B, "#"))
    router.unsubscribe(first)
    assert route.targets == (first,)


def test_an_exact_filter_changes_the_route_of_its_topic_only() -> None:
    router = Router()
    router.subscribe(sub(A, "#"))
    other, this = router.match("other"), router.match("this")
    router.subscribe(sub(B, "this"))
    assert router.match("other") is other
    assert router.match("this") is not this
    assert len(router.match("this").targets) == 2


@pytest.mark.parametrize("cache_size", [0, 1, 2, 8, 64])
def test_routes_are_right_whatever_the_cache_holds(cache_size: int) -> None:
    rng = random.Random(cache_size)
    router = Router(cache_size=cache_size)
    fresh = Router(cache_size=0)
    held: dict[tuple[str, str], Subscription] = {}
    topics = [f"{one}/{two}" for one in "abcd" for two in "abcd"]
    for _ in range(3000):
        if rng.random() < 0.1:
            session = rng.choice((A, B, C))
            filter = rng.choice([*topics, "a/+", "+/b", "#", "c/#", "$share/g/a/+", "$share/g/c/d"])
            subscription = held.pop((session.client_id, filter), None)
            if subscription is None:
                subscription = held[session.client_id, filter] = sub(session, filter)
                router.subscribe(subscription)
                fresh.subscribe(subscription)
            else:
                assert router.unsubscribe(subscription)
                assert fresh.unsubscribe(subscription)
        topic = rng.choice(topics)
        got, expected = router.match(topic), fresh.match(topic)
        assert [each.session for each in got.targets] == [each.session for each in expected.targets]
        assert [each.qos for each in got.targets] == [each.qos for each in expected.targets]
        assert {each.filter for each in got.groups} == {each.filter for each in expected.groups}
        assert len(router.recent) + len(router._older) <= max(2, cache_size)


def test_hot_topics_outlive_a_flood_of_others() -> None:
    router = Router(cache_size=100)
    router.subscribe(sub(A, "hot"))
    route = router.match("hot")
    for number in range(10_000):
        router.match(f"cold/{number}")
        if number % 20 == 0:
            assert router.match("hot") is route
    assert len(router.recent) + len(router._older) <= 100


def test_a_flood_of_topics_pushes_few_out_and_keeps_no_hot_one_from_coming_in() -> None:
    router = Router(rng=random.Random(1), cache_size=1000)
    router.subscribe(sub(A, "#"))
    for number in range(5000):
        router.match(f"cold/{number}")
        if number >= 2000 and number % 20 == 0:
            router.match("late")
    assert "late" in router.recent or "late" in router._older
    known = list(router.recent)
    for number in range(500):
        router.match(f"more/{number}")
    assert sum(each in router.recent or each in router._older for each in known) == len(known)
    assert sum(f"more/{number}" in router.recent for number in range(500)) < 150


def test_long_topics_and_too_many_targets_are_not_kept() -> None:
    router = Router(cache_size=4)
    router.subscribe(sub(A, "#"))
    long = "x" * (router_module.MAX_CACHED_TOPIC + 1)
    assert len(router.match(long).targets) == 1
    assert not router.recent
    for number in range(40):
        router.subscribe(sub(session(f"{number}"), "wide/#"))
    assert len(router.match("wide/1").targets) == 41
    assert not router.recent  # a route heavier than the whole cache may be
    router = Router(cache_size=40)  # 20 topics and 320 targets in each half
    for number in range(100):
        router.subscribe(sub(session(f"{number}"), "wide/#"))
    for number in range(50):
        assert len(router.match(f"wide/{number}").targets) == 100
        assert len(router.recent) <= 3


def test_ended_sessions_do_not_stay_in_the_cache() -> None:
    router = Router()
    for filter in ("a/+", "a/b"):
        subscription = sub(A, filter)
        router.subscribe(subscription)
        router.match("a/b")
        router.unsubscribe(subscription)
        assert not router.recent
        assert not router._older


def test_adding_to_and_leaving_a_huge_fan_out_does_not_copy_it() -> None:
    router = Router()
    for number in range(10_000):
        router.subscribe(sub(session(f"{number}"), "#"))
    held = router._subscribers.get("#")
    extra = sub(A, "#")
    router.subscribe(extra)
    assert router._subscribers.get("#") is held
    router.unsubscribe(extra)
    assert router._subscribers.get("#") is held


@pytest.mark.parametrize("filter", ["a/b", "a/+", "#", "$share/g/a/b", "$share/g/a/+"])
def test_reaches(filter: str) -> None:
    router = Router()
    assert not router.reaches("a/b")
    subscription = sub(A, filter)
    router.subscribe(subscription)
    assert router.reaches("a/b")
    assert not router.reaches("$SYS/b")
    router.unsubscribe(subscription)
    assert not router.reaches("a/b")
    assert not router.recent  # nothing was remembered
