"""What is observed only while somebody watches: who shares it, when it ends, how large it may be."""

import pytest

from taipan.broker.core.hooks import Hooks
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.message import Message
from taipan.management.operations import watches
from taipan.management.operations.refusal import Refusal
from taipan.management.operations.topic_watch import MAX_LEVELS, MAX_TOPIC, SHOWN, TopicWatch
from taipan.management.operations.watches import Watches
from tests.support.clock import Clock


class Watch:
    def __init__(self, key: str) -> None:
        if key == "wrong":
            raise Refusal(108, "this cannot be watched")
        self.key = key
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def make() -> tuple[Watches[Watch], Clock, Timers]:
    clock = Clock()
    timers = Timers(clock)
    return Watches(Watch, timers, "things"), clock, timers


def test_who_asks_for_the_same_shares_it() -> None:
    made, _, _ = make()
    one = made.ask("a", "x")
    assert made.ask("a", "y") is one and made.ask("b", "x") is not one
    made.leave("a", "x")
    assert one.closed == 0 and made.ask("a", "y") is one
    made.leave("a", "y")
    assert one.closed == 1 and made.ask("a", "y") is not one
    made.leave("nothing", "x")
    made.leave("a", "nobody")


def test_who_does_not_ask_again_watches_no_more() -> None:
    made, clock, timers = make()
    one, two = made.ask("a", "x"), made.ask("b", "x")
    for _ in range(4):
        clock.time += watches.LAPSE / 2
        made.ask("a", "x")
        timers.run(clock.now())
    assert (one.closed, two.closed, len(made)) == (0, 1, 1)
    clock.time += watches.LAPSE * 2
    timers.run(clock.now())
    assert one.closed == 1 and len(made) == 0 and len(timers) == 0


def test_as_many_as_may_be() -> None:
    made, _, _ = make()
    for number in range(watches.MAX_WATCHES):
        made.ask(str(number), "x")
    with pytest.raises(Refusal, match="things are already watched"):
        made.ask("more", "x")
    made.ask("0", "y")
    made.leave("1", "x")
    made.ask("more", "x")
    made.close()
    assert len(made) == 0


def test_what_cannot_be_made_is_not_there() -> None:
    made, _, _ = make()
    with pytest.raises(Refusal):
        made.ask("wrong", "x")
    assert len(made) == 0


def test_levels_that_are_many_or_long_are_others() -> None:
    hooks, clock = Hooks(), Clock()
    watch = TopicWatch("", hooks, clock)
    for number in range(MAX_LEVELS + 10):
        hooks.message_publish(Message(f"level{number}", b"x"))
    hooks.message_publish(Message("x" * (MAX_TOPIC + 1), b"x"))
    hooks.message_publish(Message("level0", b"x"))
    clock.time += 2.0
    rows = watch.rows()
    assert len(rows.rows) == SHOWN and rows.rows[0].level == "level0"
    assert (rows.rows[0].rate, rows.rows[0].messages) == (1.0, 2)
    assert sum(row.messages for row in rows.rows) + rows.others == MAX_LEVELS + 12
    # Where others want their places, quiet levels lose them.
    clock.time += 100.0
    hooks.message_publish(Message("level0", b"x"))
    watch.rows()
    hooks.message_publish(Message("new", b"x"))
    assert {row.level for row in watch.rows().rows} == {"level0", "new"}
    watch.close()
    assert not hooks.message_publish


def test_a_rate_is_that_of_the_last_seconds() -> None:
    """A message every four seconds is not nothing for three of them."""
    hooks, clock = Hooks(), Clock()
    watch = TopicWatch("", hooks, clock)
    rates = []
    for second in range(40):
        if second % 4 == 0:
            hooks.message_publish(Message("slow", b"x"))
        if second == 30:
            hooks.message_publish(Message("late", b"x"))
        clock.time += 1.0
        rates.append({row.level: row.rate for row in watch.rows().rows})
    assert all(0.2 <= each["slow"] <= 0.3 for each in rates[10:])
    assert rates[30]["late"] == 0.1  # one in ten seconds, though it came a second ago
    for _ in range(12):
        clock.time += 1.0
        watch.rows()
    assert {row.rate for row in watch.rows().rows} == {0.0}
    # Who looks seldom gets the mean since the last look.
    for _ in range(60):
        hooks.message_publish(Message("slow", b"x"))
    clock.time += 30.0
    assert {row.level: row.rate for row in watch.rows().rows}["slow"] == 2.0
    watch.close()


def test_a_prefix_is_of_whole_levels() -> None:
    hooks = Hooks()
    watch = TopicWatch("a/b/", hooks, Clock())
    for topic in ("a/b", "a/bc", "a/b/", "a/b/c", "a/b/c/d", "x/a/b/c"):
        hooks.message_publish(Message(topic, topic.encode()))
    rows = {row.level: (row.topic, row.messages, row.payload, row.deeper) for row in watch.rows().rows}
    assert rows == {"": ("a/b/", 1, "a/b/", False), "c": ("a/b/c", 2, "a/b/c", True)}


@pytest.mark.parametrize(
    "payload, text",
    [(b"", ""), (b"\xff", "0xff"), ("ä".encode() * 200, "ä" * 128), (b"x" + "ä".encode() * 200, "x" + "ä" * 127)],
)
def test_payloads_as_text(payload: bytes, text: str) -> None:
    hooks = Hooks()
    watch = TopicWatch("", hooks, Clock())
    hooks.message_publish(Message("a", payload))
    assert watch.rows().rows[0].payload == text
