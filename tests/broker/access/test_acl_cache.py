"""AclCache: bounds, age, listing."""

from taipan.broker.access.acl_cache import AclCache
from taipan.broker.access.decision import Decision

ALLOW, DENY = Decision(True, "access.rules.0"), Decision(False, "access.rules.1")


def test_keeps_both_actions_apart() -> None:
    cache = AclCache(32, 60.0)
    cache.put("publish", "a", ALLOW, 1.0)
    cache.put("subscribe", "a", DENY, 2.0)
    assert cache.get("publish", "a", 3.0) == ALLOW.as_cached()
    assert cache.get("subscribe", "a", 3.0) == DENY.as_cached()
    assert cache.get("publish", "b", 3.0) is None
    assert cache.hits == 2


def test_a_hit_allocates_nothing() -> None:
    """What is cached is one object for all clients that a rule has allowed something."""
    first, second = AclCache(32, 60.0), AclCache(32, 60.0)
    first.put("publish", "a", ALLOW, 1.0)
    second.put("subscribe", "b", ALLOW, 1.0)
    decision = first.get("publish", "a", 2.0)
    assert decision is not None and decision is second.get("subscribe", "b", 2.0)
    assert decision.cached and decision.setting == ALLOW.setting and not ALLOW.cached


def test_oldest_goes_first() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a", ALLOW, 1.0)
    cache.put("publish", "b", ALLOW, 2.0)
    cache.put("publish", "a", ALLOW, 3.0)
    cache.put("publish", "c", ALLOW, 4.0)
    assert len(cache) == 2
    assert cache.get("publish", "b", 5.0) is None
    assert cache.get("publish", "a", 5.0) == ALLOW.as_cached()


def test_ends_by_age() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a", ALLOW, 100.0)
    assert cache.get("publish", "a", 159.9) == ALLOW.as_cached()
    assert cache.get("publish", "a", 160.0) is None
    assert list(cache.entries(160.0)) == []


def test_listing() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a", ALLOW, 100.5)
    cache.put("subscribe", "b/#", DENY, 101.0)
    assert list(cache.entries(102.0)) == [
        {"access": "publish", "topic": "a", "result": "allow", "updated_time": 100_500},
        {"access": "subscribe", "topic": "b/#", "result": "deny", "updated_time": 101_000},
    ]
    cache.clean()
    assert len(cache) == 0


def test_long_topics_are_not_kept() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a" * 1025, ALLOW, 1.0)
    assert len(cache) == 0
