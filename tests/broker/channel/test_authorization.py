"""Which topic rules are asked about, and what hooks make of a decision."""

import pytest

from taipan.broker.access.decision import Decision
from taipan.broker.channel.authorization import apply_decision
from taipan.broker.core.outcome import NOT_DELAYED, RESERVED, Outcome
from tests.support.fake_node import FakeNode


@pytest.mark.parametrize(
    "topic, expected",
    [
        ("a/b", "a/b"),
        ("$delayed/5/a/b", "a/b"),
        ("$delayed/x/a", NOT_DELAYED),
        ("$delayed/5/", NOT_DELAYED),
        ("$SYS/a", RESERVED),
        ("$delayed/5/$SYS/a", RESERVED),
        ("$other/a", "$other/a"),
    ],
)
def test_one_rule_for_a_publish_and_a_will(topic: str, expected: str | Outcome) -> None:
    node = FakeNode(delayed={"enabled": True})
    assert node.broker.destination(topic) == expected


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("hook", [False, True])
def test_a_hook_changes_what_is_not_cached(allowed: bool, hook: bool, cached: bool) -> None:
    """What it has decided has no setting that an operator could change."""
    node = FakeNode()
    channel = node.connect("c").channel
    node.hooks.client_check_acl.add(lambda allowed, *_: hook)
    decision = Decision(allowed, "access.rules.3", cached=cached)
    applied = apply_decision(channel, "publish", "t", decision)
    if cached or allowed == hook:
        assert applied is decision
    else:
        assert (applied.allowed, applied.setting) == (hook, "-")
    metrics = node.metrics
    assert metrics.client_acl_cache_hit == cached and metrics.client_check_acl == (not cached)
    assert metrics.client_acl_allow == applied.allowed and metrics.client_acl_deny == (not applied.allowed)


@pytest.mark.parametrize("hook", [False, True])
def test_what_does_not_last_does_not_last_for_a_hook(hook: bool) -> None:
    node = FakeNode()
    channel = node.connect("c").channel
    node.hooks.client_check_acl.add(lambda allowed, *_: hook)
    applied = apply_decision(channel, "publish", "t", Decision(not hook, "access.http.acl_url", lasting=False))
    assert (applied.allowed, applied.setting, applied.lasting) == (hook, "-", False)
