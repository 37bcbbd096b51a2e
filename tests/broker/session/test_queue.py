"""MessageQueue: order, bounds, priorities, expiry."""

import random

import pytest

from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.session.queue import MAX_TOPICS, MessageQueue


def delivery(topic: str, payload: str = "", expiry: int | None = None, at: float = 0.0) -> Delivery:
    properties = {} if expiry is None else {MESSAGE_EXPIRY_INTERVAL: expiry}
    return Delivery(Message(topic, payload.encode(), 1, properties=properties, timestamp=at), 1)


def texts(deliveries: object) -> list[str]:
    return [each.message.payload.decode() for each in deliveries]  # type: ignore[attr-defined]


def drain(queue: MessageQueue) -> list[str]:
    out = []
    while (each := queue.pop()) is not None:
        out.append(each.message.payload.decode())
    return out


def check_empty(queue: MessageQueue) -> None:
    assert (len(queue), queue.size, list(queue), bool(queue), queue.pop()) == (0, 0, [], False, None)
    assert queue._topics == {}


def test_first_in_first_out() -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
    queue = MessageQueue()
    for number in range(5):
        assert queue.push(delivery("t", str(number))) is None
    assert len(queue) == 5
    assert queue.size == 5 * delivery("t", "0").size
    assert texts(queue) == ["0", "1", "2", "3", "4"]
    assert drain(queue) == ["0", "1", "2", "3", "4"]
    check_empty(queue)


def test_the_oldest_makes_room() -> None:
    queue = MessageQueue(max_messages=3)
    dropped = [queue.push(delivery("t", str(number))) for number in range(5)]
    assert dropped[:3] == [None, None, None]
    assert [texts(each) for each in dropped[3:]] == [["0"], ["1"]]
    assert drain(queue) == ["2", "3", "4"]


def test_bytes_are_bounded_too() -> None:
    unit = delivery("t", "x").size
    queue = MessageQueue(max_bytes=3 * unit)
    for text in "abc":
        assert queue.push(delivery("t", text)) is None
    assert texts(queue.push(delivery("t", "d")) or []) == ["a"]
    assert queue.size <= 3 * unit
    big = delivery("t", "e" * 2 * unit)  # takes the space of three
    assert texts(queue.push(big) or []) == ["b", "c", "d"]
    alone = delivery("t", "f" * 4 * unit)
    assert queue.push(alone) == [alone]  # it alone is too much, so nothing else goes
    assert texts(queue) == ["e" * 2 * unit]


def test_full_for_says_what_push_would_do() -> None:
    rng = random.Random(5)
    queue = MessageQueue(max_messages=10, max_bytes=2500)
    seen = set()
    for _ in range(500):
        new = delivery("t", "x" * rng.randrange(150))
        full = queue.full_for(new.size)
        assert full == (queue.push(new) is not None)
        seen.add(full)
        while rng.random() < 0.5:
            queue.pop()
    assert seen == {True, False}
    assert not MessageQueue().full_for(1 << 40)


def test_push_front_goes_back_to_the_head() -> None:
    queue = MessageQueue(max_messages=2)
    for text in "ab":
        queue.push(delivery("t", text))
    first = queue.pop()
    assert first is not None
    queue.push(delivery("t", "c"))
    queue.push_front(first)  # over the bound, and still: it was here before
    assert texts(queue) == ["a", "b", "c"]
    assert texts(queue.push(delivery("t", "d")) or []) == ["a", "b"]
    assert drain(queue) == ["c", "d"]
    check_empty(queue)


def test_holds_knows_the_topics_that_wait() -> None:
    queue = MessageQueue(max_messages=3)
    assert not queue.holds("a")
    for topic in "aab":
        queue.push(delivery(topic))
    queue.pop()
    assert queue.holds("a")
    queue.pop()
    assert not queue.holds("a")
    assert queue.holds("b")
    for _ in range(3):
        queue.push(delivery("c"))
    assert not queue.holds("b")
    queue.clear()
    assert not queue.holds("c")


PRIORITIES = {"high": 200, "low": 1, "w/#": 50, "w/+/x": 60, "w/exact/x": 2}


def test_priorities_first() -> None:
    queue = MessageQueue(0, 0, PRIORITIES, 10)
    for topic in ("low", "other", "w/1", "w/1/x", "w/exact/x", "high", "low", "w/2", "high", "other"):
        queue.push(delivery(topic, topic))
    expected = ["high", "high", "w/1/x", "w/1", "w/2", "other", "other", "w/exact/x", "low", "low"]
    assert texts(queue) == expected
    first = queue.pop()
    assert first is not None
    queue.push(delivery("high", "late"))
    queue.push_front(first)
    expected.insert(2, "late")
    assert drain(queue) == expected
    check_empty(queue)
    assert queue._lanes == {}


def test_the_default_is_lowest_unless_said() -> None:
    queue = MessageQueue(0, 0, {"low": 1}, 0)
    queue.push(delivery("other", "other"))
    queue.push(delivery("low", "low"))
    assert drain(queue) == ["low", "other"]


def test_the_lowest_priority_makes_room() -> None:
    queue = MessageQueue(3, 0, PRIORITIES, 0)
    for topic, text in (("high", "h1"), ("low", "l1"), ("low", "l2")):
        queue.push(delivery(topic, text))
    assert texts(queue.push(delivery("high", "h2")) or []) == ["l1"]
    assert texts(queue.push(delivery("other", "o")) or []) == ["o"]  # all others have a higher one
    assert texts(queue.push(delivery("low", "l3")) or []) == ["l2"]
    assert texts(queue.push(delivery("high", "h3")) or []) == ["l3"]
    assert texts(queue.push(delivery("high", "h4")) or []) == ["h1"]
    assert drain(queue) == ["h2", "h3", "h4"]


def test_nothing_is_dropped_for_one_that_cannot_come_in() -> None:
    unit = delivery("low", "x").size
    queue = MessageQueue(0, 4 * unit, PRIORITIES, 0)
    for topic in ("low", "high", "high"):
        queue.push(delivery(topic, "x"))
    fat = delivery("low", "y" * (3 * unit))
    assert queue.push(fat) == [fat]
    assert len(queue) == 3


def test_expired_ones_are_dropped() -> None:
    """[MQTT-3.3.2-5]"""
    for priorities in (None, PRIORITIES):
        queue = MessageQueue(0, 0, priorities, 0)
        some = (("t", "a", 10), ("high", "b", 5), ("t", "c", None), ("low", "d", 20), ("t", "e", 10))
        for topic, text, expiry in some:
            queue.push(delivery(topic, text, expiry, at=100.0))
        assert queue.drop_expired(104.9) == []
        assert texts(queue.drop_expired(105.0)) == ["b"]
        assert not queue.holds("high")
        assert queue.drop_expired(109.0) == []
        assert texts(queue.drop_expired(110.0)) == ["a", "e"]
        assert sorted(texts(queue)) == ["c", "d"]
        assert texts(queue.drop_expired(1000.0)) == ["d"]
        assert queue.drop_expired(1e12) == []
        assert drain(queue) == ["c"]
        check_empty(queue)


def test_other_bounds_hold_from_the_next_push() -> None:
    queue = MessageQueue(5)
    for text in "abcde":
        queue.push(delivery("t", text))
    queue.resize(3, 0)
    assert len(queue) == 5
    assert texts(queue.push(delivery("t", "f")) or []) == ["a", "b", "c"]
    queue.resize(0, 0)
    assert queue.push(delivery("t", "g")) is None
    assert texts(queue) == ["d", "e", "f", "g"]


def test_clear_gives_all_in_order() -> None:
    queue = MessageQueue(0, 0, PRIORITIES, 0)
    for topic in ("low", "high", "other"):
        queue.push(delivery(topic, topic, 5))
    assert texts(queue.clear()) == ["high", "low", "other"]
    check_empty(queue)
    queue.push(delivery("low", "again"))
    assert queue.drop_expired(1e9) == []
    assert drain(queue) == ["again"]


@pytest.mark.parametrize("priorities", [None, PRIORITIES])
def test_a_queue_of_many_is_as_a_sorted_list(priorities: dict[str, int] | None) -> None:
    rng = random.Random(7)
    queue = MessageQueue(50, 0, priorities, 3)
    rank = {"high": 200, "low": 1, "other": 3, "w/1": 50} if priorities else {}
    model: list[Delivery] = []
    for number in range(3000):
        if rng.random() < 0.6:
            new = delivery(rng.choice(("high", "low", "other", "w/1")), str(number))
            dropped = queue.push(new) or []
            model.append(new)
            if len(model) > 50:
                lowest = min(rank.get(each.message.topic, 0) for each in model)
                victim = next(each for each in model if rank.get(each.message.topic, 0) == lowest)
                assert dropped == [victim]
                model.remove(victim)
            else:
                assert dropped == []
        elif model:
            best = max(rank.get(each.message.topic, 0) for each in model)
            expected = next(each for each in model if rank.get(each.message.topic, 0) == best)
            assert queue.pop() is expected
            model.remove(expected)
        assert len(queue) == len(model)
        assert queue.size == sum(each.size for each in model)


def test_a_run_ends_before_what_goes_out_another_way() -> None:
    queue = MessageQueue()
    for each in [delivery("a", "1"), delivery("b", "2"), delivery("a", "3"), delivery("a", "4", expiry=9)]:
        queue.push(each)
    queue.push(Delivery(Message("a", b"5", 2), 2))
    size = queue.size
    first = queue.pop_run(2)
    assert texts(first) == ["1", "2"] and queue.size == size - sum(each.size for each in first)
    assert (len(queue), queue.holds("b"), queue.holds("a")) == (3, False, True)
    assert texts(queue.pop_run(10)) == ["3"]
    assert queue.pop_run(10) == []  # it may expire
    assert queue.pop() is not None and queue.pop_run(10) == []  # QoS 2
    assert queue.pop() is not None and queue.pop_run(10) == []
    check_empty(queue)


def test_a_queue_with_priorities_has_no_runs() -> None:
    queue = MessageQueue(priorities={"a": 1})
    queue.push(delivery("a", "1"))
    assert queue.pop_run(10) == [] and len(queue) == 1


def test_of_very_many_topics_none_is_known_from_the_others() -> None:
    queue = MessageQueue()
    for number in range(MAX_TOPICS + 1):
        queue.push(delivery(f"t/{number}"))
    assert queue._topics is None
    assert queue.holds("t/0") and queue.holds("another")  # rather behind the others than before its own
    assert len(queue.pop_run(10)) == 10
    drain(queue)
    check_empty(queue)
    assert not queue.holds("t/0")
    for number in range(MAX_TOPICS + 1):
        queue.push(delivery(f"t/{number}"))
    queue.pop_run(MAX_TOPICS + 1)
    check_empty(queue)


@pytest.mark.parametrize("priorities", [None, {"a": 1, "b": 1, "c": 9}])
@pytest.mark.parametrize("many", [False, True])
def test_what_is_taken_out_by_topic_and_group(priorities: dict[str, int] | None, many: bool) -> None:
    """What came through a shared subscription goes by that, whatever its topic is."""
    queue = MessageQueue(priorities=priorities)
    shared = Delivery(Message("a", b"shared", 1), 1, False, (), "$share/g/a")
    other = Delivery(Message("a", b"other", 1), 1, False, (), "$share/h/a")
    for each in (
        delivery("a", "1"),
        delivery("b", "2"),
        shared,
        delivery("c", "3", expiry=5),
        other,
        delivery("a", "4"),
    ):
        queue.push(each)
    if many:
        for number in range(MAX_TOPICS + 1):
            queue.push(delivery(f"t/{number}", str(number)))
        queue.drop_expired(1.0)
    assert {"a", "b", "c"} <= set(queue.topics()) and len(queue.topics()) == 3 + many * (MAX_TOPICS + 1)
    taken = queue.take({"a", "c"}, {"$share/g/a"})
    assert sorted(texts(taken)) == ["1", "3", "4", "shared"]
    left = drain(queue)
    assert left[:2] == ["2", "other"] and len(left) == 2 + many * (MAX_TOPICS + 1)
    check_empty(queue)


def test_nothing_of_it_is_there() -> None:
    queue = MessageQueue()
    queue.push(delivery("a", "1"))
    assert queue.take({"b"}, set()) == [] and drain(queue) == ["1"]
