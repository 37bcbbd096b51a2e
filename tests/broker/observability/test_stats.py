"""Gauges and their maxima."""

import pytest

from taipan.broker.observability.stats import NAMES, Stats


def test_a_gauge_shows_what_is_and_the_most_that_was() -> None:
    stats = Stats()
    value = 0
    stats.gauge("sessions", lambda: value)
    seen = []
    for each in (3, 7, 2):
        value = each
        stats.sample()
        seen.append(stats.snapshot())
    assert seen == [
        {"sessions.count": 3, "sessions.max": 3},
        {"sessions.count": 7, "sessions.max": 7},
        {"sessions.count": 2, "sessions.max": 7},
    ]


def test_a_snapshot_samples() -> None:
    stats = Stats()
    value = 5
    stats.gauge("routes", lambda: value)
    assert stats.snapshot() == {"routes.count": 5, "routes.max": 5}


def test_order_is_the_catalogue_s_whatever_the_order_of_registration() -> None:
    stats = Stats()
    stats.gauge("rules", lambda: 0)
    for name in reversed(NAMES):
        stats.gauge(name, lambda: 0)
    expected = [f"{name}.{what}" for name in (*NAMES, "rules") for what in ("count", "max")]
    assert list(stats.snapshot()) == expected


def test_the_specification_s_names_are_there() -> None:
    specified = {"connections", "channels", "sessions", "topics", "suboptions", "subscribers", "subscriptions"}
    assert specified | {"subscriptions.shared", "routes", "retained"} == set(NAMES) - {"live_connections"}


def test_registering_twice_is_an_error_and_removing_makes_room() -> None:
    stats = Stats()
    stats.gauge("sessions", lambda: 1)
    with pytest.raises(ValueError):
        stats.gauge("sessions", lambda: 2)
    stats.remove("sessions")
    stats.gauge("sessions", lambda: 3)
    assert stats.snapshot()["sessions.max"] == 3
