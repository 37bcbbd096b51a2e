"""SharedGroup: who is picked, by strategy and by what the members can take."""

import random
from collections import Counter
from typing import Any, get_args

import pytest

from taipan.broker.config import SharedStrategy
from taipan.broker.routing import shared
from taipan.broker.routing.shared import SharedGroup
from taipan.broker.routing.strategy import MAX_PUBLISHERS, STRATEGIES
from taipan.broker.session.subscription import Subscription

pytestmark = pytest.mark.interpreted  # what counts how often it is looked at is no Session


class FakeSession:
    """Counts how often it is looked at."""

    looked_at = 0

    def __init__(self, client_id: str, connected: bool = True, ready: bool | None = None) -> None:
        self.client_id = client_id
        self.is_connected = connected
        self.is_ready = connected if ready is None else ready

    @property
    def connected(self) -> bool:
        FakeSession.looked_at += 1
        return self.is_connected

    @property
    def ready(self) -> bool:
        FakeSession.looked_at += 1
        return self.is_ready


def member(session: Any, qos: int = 1) -> Subscription:
    return Subscription(session, "$share/g/t/#", qos, group="g", topic_filter="t/#")


def group_of(strategy: str, sessions: list[Any], seed: int = 1) -> SharedGroup:
    group = SharedGroup("g", "t/#", "$share/g/t/#", STRATEGIES[strategy], random.Random(seed))
    for each in sessions:
        group.add(member(each))
    return group


def sessions(count: int) -> list[Any]:
    return [FakeSession(f"m{number}") for number in range(count)]


def picks(group: SharedGroup, count: int, publisher_id: str = "p", topic: str = "t/1") -> list[str]:
    chosen = [group.pick(publisher_id, topic) for _ in range(count)]
    return [each.session.client_id for each in chosen if each is not None]


def test_every_strategy_of_the_settings_is_here() -> None:
    assert set(get_args(SharedStrategy)) == set(STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    def test_empty_and_one(self, strategy: str) -> None:
        group = group_of(strategy, [])
        assert group.pick("p", "t") is None
        only: Any = FakeSession("only", connected=False)
        group.add(member(only))
        assert picks(group, 3) == ["only"] * 3
        assert group.pick("p", "t", (only,)) is None

    def test_members_come_and_go(self, strategy: str) -> None:
        all_sessions = sessions(5)
        group = group_of(strategy, all_sessions)
        again = member(all_sessions[2], 2)
        assert group.add(again) is not None
        assert len(group) == 5
        assert group.get(all_sessions[2]) is again
        left = list(all_sessions)
        for each in (all_sessions[4], all_sessions[0], all_sessions[2]):
            left.remove(each)
            assert group.remove(each)
            assert not group.remove(each)
            assert group.get(each) is None
            names = {picked for publisher in "pqrstuvwxyz" for picked in picks(group, 20, publisher, publisher)}
            assert names <= {each.client_id for each in left}
        assert {each.session for each in group.members()} == set(left)

    def test_ready_before_connected_before_offline(self, strategy: str) -> None:
        offline = [FakeSession(f"offline{number}", False) for number in range(5)]
        busy = FakeSession("busy", True, False)
        ready = FakeSession("ready")
        group = group_of(strategy, [*offline[:2], busy, *offline[2:], ready])
        assert set(picks(group, 30)) == {"ready"}
        ready.is_connected = ready.is_ready = False
        assert set(picks(group, 30)) == {"busy"}
        busy.is_connected = False
        assert len(picks(group, 30)) == 30
        ready.is_connected = ready.is_ready = True
        assert set(picks(group, 30)) == {"ready"}

    def test_the_excluded_are_not_picked(self, strategy: str) -> None:
        all_sessions = sessions(4)
        group = group_of(strategy, all_sessions)
        for count in range(1, 4):
            for _ in range(10):
                chosen = group.pick("p", "t", tuple(all_sessions[:count]))
                assert chosen is not None
                assert chosen.session in all_sessions[count:]
        assert group.pick("p", "t", set(all_sessions)) is None

    def test_a_pick_costs_the_same_in_a_group_of_ten_thousand(self, strategy: str) -> None:
        group = group_of(strategy, sessions(10_000))
        FakeSession.looked_at = 0
        picks(group, 100)
        assert FakeSession.looked_at <= 200

    def test_a_pick_is_bounded_where_nobody_is_connected(self, strategy: str) -> None:
        all_sessions = sessions(5_000)
        for each in all_sessions:
            each.is_connected = each.is_ready = False
        group = group_of(strategy, all_sessions)
        FakeSession.looked_at = 0
        assert len(picks(group, 10)) == 10
        assert FakeSession.looked_at <= 10 * (3 * shared.SEARCH + 5)

    def test_the_only_one_connected_of_thousands_is_found_and_remembered(self, strategy: str) -> None:
        all_sessions = sessions(5_000)
        for each in all_sessions:
            each.is_connected = each.is_ready = False
        group = group_of(strategy, all_sessions)
        all_sessions[1234].is_connected = all_sessions[1234].is_ready = True
        picks(group, 2 * 5_000 // shared.SEARCH)
        assert set(picks(group, 50)) == {"m1234"}

    def test_more_excluded_than_are_searched(self, strategy: str) -> None:
        all_sessions = sessions(1_000)
        for each in all_sessions:
            each.is_connected = each.is_ready = False
        group = group_of(strategy, all_sessions)
        chosen = group.pick("p", "t", set(all_sessions[1:]))
        assert chosen is not None
        assert chosen.session is all_sessions[0]


def test_random_reaches_all_about_alike() -> None:
    counts = Counter(picks(group_of("random", sessions(4)), 4000))
    assert len(counts) == 4
    assert min(counts.values()) > 800


def test_of_ten_messages_to_two_members_each_gets_one() -> None:
    """What public suites demand of the default strategy; one seed in 512 would fail, so these are fixed."""
    for seed in range(20):
        assert len(set(picks(group_of("random", sessions(2), seed), 10))) == 2


def test_round_robin_goes_round_for_each_publisher() -> None:
    group = group_of("round_robin", sessions(3))
    mixed: dict[str, list[str]] = {"p": [], "q": []}
    for _ in range(9):
        for publisher in mixed:
            mixed[publisher] += picks(group, 1, publisher)
    for names in mixed.values():
        assert names == names[:3] * 3
        assert len(set(names)) == 3


def test_round_robin_per_group_is_one_round_for_all() -> None:
    group = group_of("round_robin_per_group", sessions(3))
    names = [picks(group, 1, publisher)[0] for publisher in "pqrspqrsp"]
    assert names == ["m0", "m1", "m2"] * 3


def test_a_round_passes_over_who_is_offline() -> None:
    all_sessions = sessions(4)
    all_sessions[1].is_connected = all_sessions[1].is_ready = False
    assert picks(group_of("round_robin_per_group", all_sessions), 6) == ["m0", "m2", "m3"] * 2


def test_sticky_stays_until_the_member_leaves_or_goes_offline() -> None:
    all_sessions = sessions(10)
    group = group_of("sticky", all_sessions)
    by_publisher = {f"p{number}": picks(group, 1, f"p{number}")[0] for number in range(50)}
    assert len(set(by_publisher.values())) > 3
    for publisher, name in by_publisher.items():
        assert picks(group, 3, publisher) == [name] * 3
    favourite = next(each for each in all_sessions if each.client_id == by_publisher["p0"])
    favourite.is_ready = False  # busy is no reason to part
    assert picks(group, 3, "p0") == [favourite.client_id] * 3
    group.remove(favourite)
    second = picks(group, 1, "p0")[0]
    assert second != favourite.client_id
    favourite.is_ready = True
    group.add(member(favourite))
    assert picks(group, 3, "p0") == [second] * 3
    gone = next(each for each in all_sessions if each.client_id == second)
    gone.is_connected = gone.is_ready = False
    third = picks(group, 1, "p0")[0]
    assert third != second
    gone.is_connected = gone.is_ready = True
    assert picks(group, 3, "p0") == [third] * 3


def test_sticky_holds_no_session_that_left() -> None:
    old: Any = FakeSession("same")
    new: Any = FakeSession("same")
    group = group_of("sticky", [old])
    assert picks(group, 1) == ["same"]
    group.add(member(new))
    group.remove(old)
    chosen = group.pick("p", "t")
    assert chosen is not None
    assert chosen.session is new


def test_hash_by_publisher() -> None:
    group = group_of("hash_clientid", sessions(8))
    names = [picks(group, 1, f"p{number}", "t/1")[0] for number in range(100)]
    assert names == [picks(group, 1, f"p{number}", "t/2")[0] for number in range(100)]
    assert len(set(names)) == 8


def test_hash_by_topic() -> None:
    group = group_of("hash_topic", sessions(8))
    names = [picks(group, 1, "p", f"t/{number}")[0] for number in range(100)]
    assert names == [picks(group, 1, "q", f"t/{number}")[0] for number in range(100)]
    assert len(set(names)) == 8


@pytest.mark.parametrize("strategy", ["round_robin", "sticky"])
def test_what_is_remembered_of_publishers_is_bounded_and_the_latest(strategy: str) -> None:
    group = group_of(strategy, sessions(16))
    memory: Any = group.strategy.rounds if strategy == "round_robin" else group.strategy.favourites
    assert memory is not None
    for number in range(3 * MAX_PUBLISHERS):
        picks(group, 1, f"p{number}")
        assert len(memory) <= MAX_PUBLISHERS
    assert memory.get("p0") is None
    assert memory.get(f"p{3 * MAX_PUBLISHERS - 1}") is not None
    assert memory.get(f"p{3 * MAX_PUBLISHERS - MAX_PUBLISHERS // 2}") is not None


def test_where_all_are_busy_few_are_looked_at() -> None:
    group = group_of("random", [FakeSession(f"m{number}", True, False) for number in range(1_000)])
    FakeSession.looked_at = 0
    assert len(picks(group, 10)) == 10
    assert FakeSession.looked_at <= 10 * (shared.SEARCH_READY + 5)


@pytest.mark.parametrize("strategy", ["hash_clientid", "hash_topic"])
def test_a_hash_stays_with_a_busy_member(strategy: str) -> None:
    members = sessions(4)
    group = group_of(strategy, members)
    (first,) = picks(group, 1)
    chosen = next(each for each in members if each.client_id == first)
    chosen.is_ready = False
    assert picks(group, 3) == [first] * 3
    chosen.is_connected = False
    assert first not in picks(group, 3)
