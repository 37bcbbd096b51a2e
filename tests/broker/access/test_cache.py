"""AclCache: bounds, age, listing."""

from taipan.broker.access.cache import AclCache


def test_keeps_both_actions_apart() -> None:
    cache = AclCache(32, 60.0)
    cache.put("publish", "a", True, 1.0)
    cache.put("subscribe", "a", False, 2.0)
    assert cache.get("publish", "a", 3.0) is True
    assert cache.get("subscribe", "a", 3.0) is False
    assert cache.get("publish", "b", 3.0) is None
    assert cache.hits == 2


def test_oldest_goes_first() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a", True, 1.0)
    cache.put("publish", "b", True, 2.0)
    cache.put("publish", "a", True, 3.0)
    cache.put("publish", "c", True, 4.0)
    assert len(cache) == 2
    assert cache.get("publish", "b", 5.0) is None
    assert cache.get("publish", "a", 5.0) is True


def test_ends_by_age() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a", True, 100.0)
    assert cache.get("publish", "a", 159.9) is True
    assert cache.get("publish", "a", 160.0) is None
    assert list(cache.entries(160.0)) == []


def test_listing() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a", True, 100.5)
    cache.put("subscribe", "b/#", False, 101.0)
    assert list(cache.entries(102.0)) == [
        {"access": "publish", "topic": "a", "result": "allow", "updated_time": 100_500},
        {"access": "subscribe", "topic": "b/#", "result": "deny", "updated_time": 101_000},
    ]
    cache.clean()
    assert len(cache) == 0


def test_long_topics_are_not_kept() -> None:
    cache = AclCache(2, 60.0)
    cache.put("publish", "a" * 1025, True, 1.0)
    assert len(cache) == 0
