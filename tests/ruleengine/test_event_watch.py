"""A watch of events: the latest ones, bounded in number, in size and in how many are looked at."""

import json

from taipan.ruleengine.events.columns import Columns
from taipan.ruleengine.functions.budget import Budget
from taipan.ruleengine.rules.event_watch import A_SECOND, KEPT, MAX_KEPT, MAX_PAYLOAD, EventWatch


def see(watch: EventWatch, timestamp: int = 1_000, **columns: object) -> None:
    watch.run(Columns({"timestamp": timestamp, **columns}), Budget())


def test_each_is_told_once() -> None:
    watch = EventWatch("a/#")
    see(watch, topic="a/1")
    see(watch, topic="a/2")
    last, events = watch.since(0)
    assert last == 2 and [json.loads(each)["topic"] for each in events] == ["a/1", "a/2"]
    assert watch.since(last) == (2, [])
    see(watch, topic="a/3")
    assert [json.loads(each)["topic"] for each in watch.since(last)[1]] == ["a/3"]


def test_only_the_latest_are_kept() -> None:
    watch = EventWatch("a")
    for number in range(3 * KEPT):
        see(watch, 1_000 * number, number=number)
    last, events = watch.since(0)
    assert last == 3 * KEPT and [json.loads(each)["number"] for each in events] == list(range(2 * KEPT, 3 * KEPT))


def test_of_a_second_only_the_first_are_looked_at() -> None:
    watch = EventWatch("a")
    for number in range(2 * A_SECOND):
        see(watch, 5_000 + number, number=number)
    assert watch.since(0)[0] == 2 * A_SECOND
    assert [json.loads(each)["number"] for each in watch.since(0)[1]] == list(range(A_SECOND))
    see(watch, 6_000, number=-1)
    assert json.loads(watch.since(0)[1][-1])["number"] == -1


def test_a_large_payload_is_cut_and_what_is_too_large_left_out() -> None:
    watch = EventWatch("a")
    see(watch, payload="x" * (MAX_PAYLOAD + 7))
    see(watch, topic="y" * 65_000)
    see(watch, payload=b"\xff")
    first, second = map(json.loads, watch.since(0)[1])
    assert first["payload"] == "x" * MAX_PAYLOAD and first["payload_cut"] == MAX_PAYLOAD + 7
    assert second["payload"] == "/w==" and second["payload_encoding"] == "base64"
    assert "payload_encoding" not in first


def test_more_of_a_second_may_be_kept_in_bounded_memory() -> None:
    watch = EventWatch("a", kept=1000, a_second=1000)
    for number in range(1000):
        see(watch, 5_000, payload="x" * 2000, number=number)
    seen, events = watch.since(0)
    assert seen == 1000 and 400 < len(events) < 1000 and sum(map(len, events)) <= MAX_KEPT
    assert json.loads(events[-1])["number"] == 999
