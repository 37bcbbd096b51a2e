"""BeforeLogin: who is closed where those without a login hold too much."""

import pytest

from taipan.broker.core.before_login import LEAST, MOST, BeforeLogin


class Newcomer:
    def __init__(self, all_of_them: BeforeLogin) -> None:
        self.all_of_them = all_of_them
        self.closed = False

    def evict(self) -> None:
        self.closed = True
        self.all_of_them.leave(self)  # as a connection does, once it is lost


def test_the_largest_go_and_small_ones_stay(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    held = BeforeLogin(1000, lambda: now)
    small = [Newcomer(held) for _ in range(10)]
    for each in small:
        held.hold(each, 20)
    large = [Newcomer(held) for _ in range(3)]
    for number, each in enumerate(large):
        held.hold(each, 200 + number)
    assert held.bytes == 803
    held.hold(large[0], 500)
    assert [each.closed for each in large] == [True, False, False]
    assert not any(each.closed for each in small)
    assert held.bytes == 603 and len(held) == 12 and held.evicted == 1
    assert caplog.text.count("before_login_closed count=1 total=1 bytes=1103 limit=1000 setting=limits.memory") == 1
    held.hold(large[1], 900)
    assert held.evicted == 2 and caplog.text.count("before_login_closed") == 1  # at most once a minute
    for each in (*small, *large):
        held.leave(each)
    assert held.bytes == len(held) == 0


def test_the_limit_is_a_part_of_the_budget() -> None:
    held = BeforeLogin()
    limits = []
    for budget in (10_000_000, 1_600_000_000, 1 << 40):
        held.resize(budget)
        limits.append(held.limit)
    assert limits == [LEAST, 100_000_000, MOST]


def test_so_many_are_closed_at_once() -> None:
    held = BeforeLogin()
    them = [Newcomer(held) for _ in range(10)]
    for each in them:
        held.hold(each, 0)
    assert held.make_room(-1, 4) == 4
    assert [each.closed for each in them] == [True] * 4 + [False] * 6  # the oldest first
