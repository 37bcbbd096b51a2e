"""Outbox: what a target is sent next, and when."""

import random
from typing import Any

import pytest

from taipan.management.alarm_targets.notice import Event, Notice
from taipan.management.alarm_targets.notifier import matches
from taipan.management.alarm_targets.outbox import (
    BETWEEN,
    FIRST_PAUSE,
    GIVE_UP,
    LONGEST_PAUSE,
    MAX_WAITING,
    Outbox,
    State,
)


def notice(name: str, event: Event = "activated", **more: Any) -> Notice:
    return Notice(event, "n@host", {"name": name, "message": "m", **more})


@pytest.mark.parametrize(
    "pattern, name, expected",
    [
        ("*", "anything/at all", True),
        ("disk", "disk", True),
        ("disk", "disk2", False),
        ("resource/*/down", "resource/web_hook/a/b/down", True),
        ("disk?", "disk2", True),
        ("a[b]*", "a[b]c", True),
        ("[a]", "a", False),
        ("Disk", "disk", False),
    ],
)
def test_patterns(pattern: str, name: str, expected: bool) -> None:
    assert matches(pattern, name) is expected


def test_notices_are_sent_in_order() -> None:
    outbox = Outbox()
    for name in ("a", "b"):
        outbox.put(notice(name), 0.0)
    for name in ("a", "b"):
        found = outbox.next(1.0)
        assert found is not None and found.name == name and outbox.state is State.SENDING
        outbox.sent(1.0)
    assert outbox.next(2.0) is None and outbox.due_at() is None and len(outbox) == 0


def test_only_the_latest_notice_about_an_alarm_waits() -> None:
    outbox = Outbox()
    outbox.put(notice("a"), 0.0)
    outbox.put(notice("b"), 0.0)
    outbox.put(notice("a", "deactivated"), 0.0)
    first, second = _all(outbox, 0.0)
    assert (first.name, second.name, second.event) == ("b", "a", "deactivated")


def test_an_alarm_that_changes_all_the_time_is_told_once_a_minute() -> None:
    outbox = Outbox()
    told = []
    for second in range(600):
        outbox.put(notice("a", "deactivated" if second % 2 else "activated"), float(second))
        told += _all(outbox, float(second))
    assert len(told) == 10
    # The last state is told too, at the latest after the pause.
    assert outbox.due_at() == 540.0 + BETWEEN
    assert [each.event for each in _all(outbox, 600.0)] == ["deactivated"]


def test_pauses_after_failures_grow_and_end() -> None:
    outbox = Outbox()
    outbox.put(notice("a"), 0.0)
    now, pauses = 0.0, []
    for _ in range(12):
        assert outbox.next(now) is not None
        assert outbox.failed(now) is None
        assert outbox.state is State.PAUSING and outbox.next(now) is None
        due = outbox.due_at()
        assert due is not None
        pauses.append(due - now)
        now = due
    assert pauses[:3] == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4] and pauses[-1] == LONGEST_PAUSE
    outbox.at_once()
    assert outbox.state is State.READY and outbox.next(0.0) is not None
    outbox.sent(0.0)
    assert outbox.state is State.READY


def test_a_notice_that_fails_does_not_hold_up_the_others() -> None:
    outbox = Outbox()
    outbox.put(notice("a"), 0.0)
    outbox.put(notice("b"), 0.0)
    assert outbox.next(0.0) == notice("a")
    outbox.failed(0.0)
    assert outbox.next(FIRST_PAUSE) == notice("b")


def test_a_later_notice_replaces_the_one_that_failed() -> None:
    outbox = Outbox()
    outbox.put(notice("a"), 0.0)
    outbox.next(0.0)
    outbox.put(notice("a", "deactivated"), 0.0)
    assert len(outbox) == 2
    outbox.failed(0.0)
    assert len(outbox) == 1 and outbox.next(1.0) == notice("a", "deactivated") and outbox.dropped == 0


def test_given_up_after_a_day() -> None:
    outbox = Outbox()
    outbox.put(notice("a"), 0.0)
    outbox.next(0.0)
    assert outbox.failed(GIVE_UP - 1.0) is None
    assert outbox.next(GIVE_UP) is not None
    assert outbox.failed(GIVE_UP) == notice("a")
    assert outbox.dropped == 1 and len(outbox) == 0


def test_too_many_alarms_drop_the_oldest() -> None:
    outbox = Outbox()
    for number in range(MAX_WAITING):
        assert outbox.put(notice(str(number)), 0.0) is None
    assert outbox.put(notice("one more"), 0.0) == notice("0")
    assert (len(outbox), outbox.dropped) == (MAX_WAITING, 1)


def test_memory_stays_bounded_whatever_happens() -> None:
    outbox, choose = Outbox(), random.Random(7)
    now = 0.0
    for number in range(20_000):
        now += choose.random()
        outbox.put(notice(str(choose.randrange(5 * MAX_WAITING))), now)
        if number % 3 == 0 and outbox.next(now) is not None:
            if choose.random() < 0.8:
                outbox.sent(now)
            else:
                outbox.failed(now)
        assert len(outbox) <= MAX_WAITING and len(outbox._sent_at) <= MAX_WAITING


def _all(outbox: Outbox, now: float) -> list[Notice]:
    found = []
    while (each := outbox.next(now)) is not None:
        outbox.sent(now)
        found.append(each)
    return found
