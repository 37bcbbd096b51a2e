"""What becomes of a Topic Filter before anybody is asked whether the client may have it."""

from typing import Any

import msgspec
import pytest

from taipan.broker.config import ZoneSettings
from taipan.broker.core.outcome import (
    FILTER_INVALID,
    FILTER_TOO_DEEP,
    FILTER_TOO_LONG,
    NO_SHARED,
    NO_WILDCARDS,
    Outcome,
)
from taipan.broker.core.subscription_plan import FilterPlan, no_room, plan_filter
from taipan.broker.mqtt.constants import MAX_STRING
from taipan.broker.mqtt.packets import TopicFilter
from taipan.broker.session.client_info import ClientInfo
from tests.support.sessions import make_session


def plan_of(text: str, mountpoint: str = "", qos: int = 0, **zone: Any) -> tuple[FilterPlan, ClientInfo]:
    client = ClientInfo("n", msgspec.convert(zone, ZoneSettings), client_id="c")
    client.mountpoint = mountpoint
    return plan_filter(TopicFilter(text, qos), client), client


@pytest.mark.parametrize(
    "text, zone, refusal",
    [
        ("a/+/#", {}, None),
        ("$share/g/a/#", {}, None),
        ("a#", {}, FILTER_INVALID),
        ("a+/b", {}, FILTER_INVALID),
        ("", {}, FILTER_INVALID),
        ("$share/g", {}, FILTER_INVALID),
        ("$share/+/a", {}, FILTER_INVALID),
        ("$share/g\0/a", {}, FILTER_INVALID),
        ("$queue/", {}, FILTER_INVALID),
        ("a/b/c", {"max_topic_levels": 2}, FILTER_TOO_DEEP),
        ("$share/g/a/b", {"max_topic_levels": 2}, None),
        ("$share/g/a", {"shared_subscription": False}, NO_SHARED),
        ("$queue/a", {"shared_subscription": False}, NO_SHARED),
        ("a/+", {"wildcard_subscription": False}, NO_WILDCARDS),
    ],
)
def test_what_no_client_of_a_zone_has(text: str, zone: dict[str, Any], refusal: Outcome | None) -> None:
    assert plan_of(text, **zone)[0].refusal is refusal


@pytest.mark.parametrize(
    "text, full, group, mounted",
    [
        ("a/#", "home/a/#", None, "home/a/#"),
        ("$share/g/a", "$share/g/home/a", "g", "home/a"),
        ("$queue/a", "$queue/home/a", "$queue", "home/a"),
    ],
)
def test_the_mount_point(text: str, full: str, group: str | None, mounted: str) -> None:
    plan, _ = plan_of(text, "home/")
    assert (plan.filter, plan.group, plan.mounted, plan.refusal) == (full, group, mounted, None)
    assert plan.topic_filter == text.rpartition("/g/")[2].removeprefix("$queue/")
    assert plan_of("x" * MAX_STRING, "home/")[0].refusal is FILTER_TOO_LONG


@pytest.mark.parametrize("bridge, ignore_loops, group", [(True, False, ""), (False, True, ""), (False, True, "g")])
def test_what_a_3_x_client_cannot_ask_for(bridge: bool, ignore_loops: bool, group: str) -> None:
    plan, client = plan_of(f"$share/{group}/a" if group else "a", qos=2, max_qos=1, ignore_loop_deliver=ignore_loops)
    client.is_bridge = bridge
    subscription = plan.subscription(make_session("c"), client, (7,), by_operator=True)
    assert (subscription.qos, subscription.identifiers, subscription.by_operator) == (1, (7,), True)
    assert subscription.no_local is not bool(group)  # [MQTT-3.8.3-4] never for a shared one
    assert subscription.retain_as_published is bridge


@pytest.mark.parametrize(
    "zone, short, setting",
    [
        ({}, False, ""),
        ({}, True, "limits.memory"),
        ({"max_subscriptions": 2}, False, "max_subscriptions"),
        ({"max_subscriptions": 3}, False, ""),
        ({"max_subscription_bytes": 5}, False, "max_subscription_bytes"),
    ],
)
def test_no_room(zone: dict[str, Any], short: bool, setting: str) -> None:
    plan, client = plan_of("aa", **zone)
    session = make_session("c")
    session.client = client
    session.put_subscription(plan.subscription(session, client))
    session.filter_bytes = 2
    assert no_room(session, ("bb", "cc"), short) == setting
