"""RetainedStore: what is kept, what matches, and that nothing costs more as it grows."""

import gc
import random
from itertools import islice
from typing import Any

import pytest

from taipan.broker.mqtt.constants import CONTENT_TYPE, MESSAGE_EXPIRY_INTERVAL, USER_PROPERTY
from taipan.broker.mqtt.message import Message, Publisher
from taipan.broker.routing import retained
from taipan.broker.routing.retained import ABSENT, CLEARED, FULL, REPLACED, STORED, TOO_LARGE, RetainedStore, Walk
from tests.support.calls import calls


def message(topic: str, payload: bytes = b"x", qos: int = 0, at: float = 0.0, **properties: Any) -> Message:
    return Message(topic, payload, qos, True, properties.get("properties", {}), timestamp=at)


def store_of(*topics: str) -> RetainedStore:
    store = RetainedStore()
    for each in topics:
        assert store.put(message(each)) == STORED
    return store


def delete_matching(store: RetainedStore, filter: str) -> int:
    return sum(store.delete(topic) for topic in store.walk(filter))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_last_message_is_kept_as_it_came(qos: int) -> None:
    """[MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-7]"""
    store = RetainedStore()
    properties = {CONTENT_TYPE: "text/plain", USER_PROPERTY: [("a", "1"), ("a", "2")], MESSAGE_EXPIRY_INTERVAL: 60}
    assert store.put(message("t", b"old", 2)) == STORED
    frame = b"the whole packet as it came in: payload"
    publisher = Publisher()
    publisher.client_id, publisher.username = "c", None
    new = Message("t", None, qos, False, properties, publisher, 5.0, frame, len(frame) - 7, 77, True)
    new.id, new.hops = "id", 3
    new.wire0_v3 = new.wire0_v5 = frame
    assert store.put(new) == REPLACED
    kept = store.get("t")
    assert kept is not None
    assert kept is not new
    assert (kept.topic, kept.payload, kept.qos, kept.retain) == ("t", b"payload", qos, True)
    assert kept.properties == properties
    assert (kept.publisher, kept.timestamp, kept.id, kept.hops) == (publisher, 5.0, "id", 3)
    # What belongs to one delivery stays behind, and no buffer is kept alive.
    assert (kept.frame, kept.packet_id, kept.dup, kept.wire0_v3, kept.wire0_v5) == (b"payload", 0, False, None, None)
    assert not any(each is frame for each in gc.get_referents(kept))
    assert (len(store), store.get("other")) == (1, None)


def test_an_empty_payload_clears_and_is_not_kept() -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-10] [3.1.1 MQTT-3.3.1-11]"""
    store = store_of("a", "a/b")
    assert store.put(message("a", b"")) == CLEARED
    assert store.put(message("a", b"")) == ABSENT
    assert store.get("a") is None
    assert list(store.walk("#")) == ["a/b"]
    assert store.delete("a/b")
    assert not store.delete("a/b")
    assert (len(store), store.bytes, store._roots) == (0, 0, ({}, {}))


def test_bounds() -> None:
    store = RetainedStore(2, 3)
    assert store.put(message("a", b"1234")) == TOO_LARGE
    assert store.put(message("a", b"123")) == STORED
    assert store.put(message("b")) == STORED
    assert store.put(message("c")) == FULL
    assert store.put(message("c", b"")) == ABSENT
    assert store.put(message("a", b"1")) == REPLACED  # the number stays the same
    assert store.put(message("a", b"1234")) == TOO_LARGE
    kept = store.get("a")
    assert kept is not None
    assert kept.payload == b"1"
    assert store.put(message("b", b"")) == CLEARED
    assert store.put(message("c")) == STORED
    store.resize(0, 0)
    assert store.put(message("d", b"1" * 1000)) == STORED


def test_bytes_are_those_of_what_is_there() -> None:
    store = store_of("a", "b")
    two = store.bytes
    store.put(message("a", b"1" * 5001))
    assert store.bytes == two + 5000
    store.put(message("a", b"1"))
    assert store.bytes == two
    store.delete("a")
    assert store.bytes == two / 2


TOPICS = ["a", "a/b", "a/b/c", "a/", "/", "/a", "a//b", "b/b", "$SYS", "$SYS/x", "$SYS/x/y", "$", "A"]


@pytest.mark.parametrize(
    "filter, topics",
    [
        ("a", "a"),
        ("a/b", "a/b"),
        ("nothing", ""),
        ("a/x", ""),
        ("#", "a a/b a/b/c a/ / /a a//b b/b A"),
        ("+", "a A"),
        ("+/+", "a/b a/ / /a b/b"),
        ("+/#", "a a/b a/b/c a/ / /a a//b b/b A"),
        ("+/b", "a/b b/b"),
        ("+/b/#", "a/b a/b/c b/b"),
        ("a/#", "a a/b a/b/c a/ a//b"),
        ("a/+", "a/b a/"),
        ("a/+/#", "a/b a/b/c a/ a//b"),
        ("a/+/b", "a//b"),
        ("/#", "/ /a"),
        ("/+", "/ /a"),
        ("$SYS/#", "$SYS $SYS/x $SYS/x/y"),
        ("$SYS/+", "$SYS/x"),
        ("$SYS/+/y", "$SYS/x/y"),
    ],
)
@pytest.mark.parametrize("wide", [False, True])
def test_walk(filter: str, topics: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """[MQTT-4.7.2-1] [MQTT-4.7.3-4]"""
    if wide:
        monkeypatch.setattr(retained, "WIDE", 0)
    store = store_of(*TOPICS)
    assert sorted(store.walk(filter)) == sorted(topics.split())
    assert sorted(each for each in store.walk(filter, 1) if each) == sorted(topics.split())
    assert delete_matching(store, filter) == len(topics.split())
    assert sorted(store.walk("#")) + sorted(store.walk("$SYS/#")) == sorted(
        set(TOPICS) - set(topics.split()) - {"$", "$SYS", "$SYS/x", "$SYS/x/y"}
    ) + sorted({"$SYS", "$SYS/x", "$SYS/x/y"} - set(topics.split()))
    for each in TOPICS:
        store.delete(each)
    assert len(store) == 0
    assert not set(store._roots[0]) - {"//"} and not set(store._roots[1]) - {"//"}


@pytest.mark.parametrize("wide", [0, 4, 1024])
@pytest.mark.parametrize("filter", ["#", "a/+", "+/+/x/#"])
def test_walking_a_store_that_changes(filter: str, wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stays is seen once; who is gone is not seen."""
    monkeypatch.setattr(retained, "WIDE", wide)
    rng = random.Random(wide)
    store = RetainedStore()
    staying = {f"{one}/{two}{rest}" for one in "abc" for two in range(40) for rest in ("", "/x", "/x/y")}
    passing = [f"{one}/z{two}{rest}" for one in "abcd" for two in range(40) for rest in ("", "/x", "/x/y")]
    for topic in rng.sample(sorted(staying) + passing, len(staying) + len(passing)):
        store.put(message(topic))
    expected = set(store.walk(filter)) & staying
    assert expected
    seen: list[str] = []
    for topic in store.walk(filter):
        assert store.get(topic) is not None
        seen.append(topic)
        for each in rng.sample(passing, 5):
            store.put(message(each, b"" if rng.random() < 0.7 else b"again"))
    assert {each for each in seen if each in staying} == expected
    assert len([each for each in seen if each in staying]) == len(expected)


@pytest.mark.parametrize("wide", [0, 1024])
@pytest.mark.parametrize("filter", ["#", "a/+", "a/#"])
def test_what_is_taken_is_as_it_is_then(filter: str, wide: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained, "WIDE", wide)
    store = store_of(*(f"a/{number}" for number in range(10)))
    walk = Walk(store, filter)
    seen = walk.take(4)
    assert len(seen) == 4 and not walk.done
    left = [f"a/{number}" for number in range(10) if f"a/{number}" not in {each.topic for each in seen}]
    store.put(message(left[0], b"new"))
    store.put(message(left[1], b""))
    store.put(message(seen[0].topic, b"too late"))
    seen = walk.take(100)
    assert walk.done and walk.take(100) == []
    assert sorted(each.topic for each in seen) == sorted(left[:1] + left[2:])
    assert [each.payload for each in seen if each.topic == left[0]] == [b"new"]


def test_as_much_is_taken_as_is_asked_for() -> None:
    store = RetainedStore()
    for number in range(100):
        store.put(message(f"{number}/a", b"x" * 100))
    assert len(Walk(store, "#").take(7)) == 7
    assert len(Walk(store, "#").take(50, 950)) == 10  # the tenth passes the bound
    nothing = Walk(store, "+/b")
    takes = 0
    while not nothing.done:
        assert nothing.take(50, 0, 10) == []
        assert nothing.steps <= 10
        takes += 1
    assert takes >= 20
    exact = Walk(store, "5/a")
    assert [each.topic for each in exact.take(50, 0, 10)] == ["5/a"] and exact.done
    assert Walk(store, "5/b").take(50) == []


def test_slots_are_used_again() -> None:
    store = RetainedStore()
    for number in range(5000):
        store.put(message(f"t{number}"))
    for number in range(50_000):
        store.put(message(f"t{number}", b""))
        store.put(message(f"t{number + 5000}"))
    order = store._roots[0]["//"]
    assert len(order.values) <= 5002
    assert sorted(store.walk("+")) == sorted(f"t{number}" for number in range(50_000, 55_000))
    assert delete_matching(store, "#") == 5000
    assert order.values == []


@pytest.mark.interpreted
def test_a_put_costs_the_same_at_any_size() -> None:
    store = RetainedStore()
    costs = set()
    for number in range(30_000):
        if number in (3_000, 10_000, 29_999):
            costs.add(calls(lambda at=number: store.put(message(f"flat{at}"))))  # type: ignore[misc]
            costs.add(calls(lambda at=number: store.put(message(f"flat{at}"))))  # type: ignore[misc]
        store.put(message(f"flat{number}"))
    assert max(costs) < 60
    assert len(costs) == 2  # a new one, a replaced one


@pytest.mark.parametrize("make", ["{}", "{}/x", "a/{}", "a/{}/x"])
def test_a_walk_can_be_taken_in_pieces(make: str) -> None:
    store = RetainedStore()
    for number in range(20_000):
        store.put(message(make.format(number)))
    walk = store.walk("#")
    for _ in range(20):
        cost = calls(lambda: list(islice(walk, 1000)))
        assert cost < 1000 * 40
    assert list(walk) == []


def test_a_walk_that_finds_nothing_can_be_stopped() -> None:
    store = RetainedStore()
    for number in range(20_000):
        store.put(message(f"{number}/x"))
    pauses = list(store.walk("+/y", 1000))
    assert set(pauses) == {""}
    assert len(pauses) >= 20
    assert calls(lambda: next(store.walk("+/y", 1000))) < 10_000
    assert list(store.walk("+/y")) == []


def test_an_exact_filter_is_one_lookup() -> None:
    store = RetainedStore()
    for number in range(5000):
        store.put(message(f"{number}"))
    assert calls(lambda: list(store.walk("77"))) < 20


def test_thousands_of_levels_do_not_recurse() -> None:
    store = store_of("a/" * 30_000 + "a")
    assert len(list(store.walk("#"))) == 1
    assert len(list(store.walk("+/" * 30_000 + "+"))) == 1
    assert delete_matching(store, "+/#") == 1
    assert store._roots == ({}, {})


def test_expired_messages_are_swept_a_few_at_a_time() -> None:
    """[MQTT-3.3.2-5]"""
    store = RetainedStore()
    for number in range(300):
        store.put(message(f"{number}", at=1000.0, properties={MESSAGE_EXPIRY_INTERVAL: number}))
    store.put(message("stays", at=1000.0))
    kept = store.get("100")
    assert kept is not None
    assert (store.expired(kept, 1099.9), store.expired(kept, 1100.0)) == (False, True)
    removed = 0
    for _ in range(60):
        count = store.sweep(1100.5, 10)
        assert count <= 10
        removed += count
    assert 100 <= removed <= 101
    assert store.sweep(1100.5, 1000) == 0
    for _ in range(10):
        store.sweep(2000.0, 1000)
    assert list(store.walk("#")) == ["stays"]
    assert len(store._deadlines) == 0


def test_a_new_message_takes_the_deadline_of_the_old_one() -> None:
    store = RetainedStore()
    store.put(message("t", at=0.0, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    store.put(message("t", at=1.0))
    store.put(message("u", at=0.0, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    store.put(message("u", at=1.0, properties={MESSAGE_EXPIRY_INTERVAL: 50}))
    store.put(message("v", at=0.0, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    store.put(message("v", b"", at=1.0))
    assert store.sweep(30.0, 1000) == 0
    assert sorted(store.walk("#")) == ["t", "u"]
    assert store.sweep(60.0, 1000) == 1
    assert list(store.walk("#")) == ["t"]


def test_the_node_can_let_every_message_expire() -> None:
    store = RetainedStore(expiry_interval=10.0)
    store.put(message("t", at=100.0))
    store.put(message("sooner", at=100.0, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    store.put(message("later", at=100.0, properties={MESSAGE_EXPIRY_INTERVAL: 500}))
    assert store.sweep(106.0, 100) == 1
    kept = store.get("later")
    assert kept is not None
    assert (store.deadline(kept), store.expired(kept, 109.0), store.expired(kept, 110.0)) == (110.0, False, True)
    assert store.sweep(111.0, 100) == 2
    assert len(store) == 0


def test_properties_and_long_names_of_publishers_count() -> None:
    """A User Property of 5 bytes takes 160: 16,000 of them were counted as nothing."""
    store = RetainedStore()
    store.put(message("t"))
    before = store.bytes
    publisher = Publisher()
    publisher.client_id, publisher.username = "c" * 60_000, "u" * 60_000
    large = Message("t", b"x", 1, True, {USER_PROPERTY: [("", "")] * 16_000}, publisher)
    assert store.grows_by(large, large.topic) > 16_000 * 150 + 119_000
    store.put(large)
    assert store.bytes - before > 16_000 * 150 + 119_000
    store.delete("t")
    assert store.bytes == 0
