"""TopicMetrics: counts, rates, and nothing at the hooks while there is nothing to count."""

import pytest

from taipan.broker.core.hooks import Hooks
from taipan.broker.extensions.topic_metrics import MAX_TOPICS, TopicMetrics
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.message import Message
from tests.support.clock import Clock


def made() -> tuple[TopicMetrics, Hooks, Timers, Clock]:
    clock = Clock()
    hooks, timers = Hooks(), Timers(clock)
    return TopicMetrics(hooks, timers, clock), hooks, timers, clock


def test_one_message_right_after_the_topic_was_added_is_at_most_one_a_second() -> None:
    module, hooks, _timers, clock = made()
    module.add("t")
    hooks.message_publish(Message("t", b"x"))
    assert module.snapshot("t")["messages.in.rate"] == 1.0
    clock.advance(0.03)
    assert module.snapshot("t")["messages.in.rate"] == 1.0
    clock.advance(1.97)
    assert module.snapshot("t")["messages.in.rate"] == 0.5


def test_rates_are_means_of_the_last_seconds() -> None:
    module, hooks, timers, clock = made()
    module.add("t")
    assert module.snapshot("t")["messages.in.rate"] == 0.0  # no time has passed
    for _ in range(10):
        for _ in range(4):
            assert hooks.message_publish(Message("t", b"x", qos=1)) is not None
        hooks.message_publish(Message("other", b"x"))
        clock.advance(1.0)
        timers.run(clock.now())
    values = module.snapshot("t")
    assert (values["messages.in.count"], values["messages.qos1.in.count"], values["messages.qos0.in.count"]) == (
        40,
        40,
        0,
    )
    assert values["messages.in.rate"] == values["messages.qos1.in.rate"] == 4.0
    hooks.message_dropped(Message("t"), "no_subscribers")
    assert module.snapshot("t")["messages.dropped.count"] == 1


def test_stands_at_hooks_only_while_it_counts() -> None:
    module, hooks, timers, _ = made()
    assert module.active and not hooks.message_publish and len(timers) == 0
    module.add("t")
    module.add("t")
    assert len(module) == 1 and len(hooks.message_publish) == 1 and len(timers) == 1
    assert hooks.message_delivered and hooks.message_dropped
    assert module.remove("t") and not module.remove("t")
    assert not hooks.message_delivered and not hooks.message_dropped and len(timers) == 0


def test_has_a_bound() -> None:
    module, *_ = made()
    for number in range(MAX_TOPICS):
        module.add(str(number))
    with pytest.raises(ValueError, match="512"):
        module.add("more")
