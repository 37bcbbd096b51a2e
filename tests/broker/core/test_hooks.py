"""Hook points: order, errors that stop nobody, folds."""

import logging

import pytest

from taipan.broker.core.hooks import STOP, Fold, Hooks, Notify
from taipan.broker.mqtt.message import Message
from taipan.broker.session.client_info import ClientInfo

CATALOGUE = """
client.connect client.connack client.connected client.disconnected client.authenticate client.check_acl
client.check_acl_complete client.subscribe client.unsubscribe session.created session.subscribed
session.unsubscribed session.resumed session.discarded session.takeovered session.terminated
message.publish message.delivered message.acked message.dropped delivery.dropped delivery.completed
"""


def test_the_catalogue_is_emqx_s() -> None:
    assert sorted(Hooks().points) == sorted(CATALOGUE.split())


def test_attributes_are_the_names_with_underscores() -> None:
    hooks = Hooks()
    for name, point in hooks.points.items():
        assert getattr(hooks, name.replace(".", "_")) is point


def test_a_point_is_true_while_somebody_stands_there() -> None:
    point = Notify[[int]]("x")
    seen: list[int] = []
    assert not point
    point.add(seen.append)
    assert point
    point(1)
    point.remove(seen.append)
    assert not point
    point(2)
    assert seen == [1]


def test_removing_what_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError):
        Notify[[int]]("x").remove(print)


def test_callbacks_run_by_priority_then_arrival() -> None:
    point = Notify[[list[str]]]("x")
    for name, priority in (("a", 0), ("b", 10), ("c", 0), ("d", -1), ("e", 10)):
        point.add(lambda seen, name=name: seen.append(name), priority)  # type: ignore[misc]
    seen: list[str] = []
    point(seen)
    assert seen == ["b", "e", "a", "c", "d"]


def test_priorities_survive_a_removal() -> None:
    point = Fold[str]("x")

    def high(value: str) -> str:
        return value + "h"

    def low(value: str) -> str:
        return value + "l"

    point.add(low, -5)
    point.add(high, 5)
    point.remove(high)
    point.add(high, 0)
    assert point("") == "hl"


def test_an_error_is_logged_with_both_names_counted_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    seen: list[str] = []

    def broken(client: ClientInfo, reason: str) -> None:
        raise RuntimeError("no")

    hooks.client_disconnected.add(broken)
    hooks.client_disconnected.add(lambda client, reason: seen.append(reason))
    with caplog.at_level(logging.ERROR):
        hooks.client_disconnected(None, "normal")  # type: ignore[arg-type]
    assert seen == ["normal"]
    assert hooks.errors == hooks.client_disconnected.errors == 1
    assert hooks.client_connected.errors == 0
    (record,) = caplog.records
    assert "client.disconnected" in record.getMessage()
    assert "broken" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


def test_a_callback_may_leave_while_the_point_fires() -> None:
    point = Notify[[]]("x")
    seen: list[str] = []

    def once() -> None:
        seen.append("once")
        point.remove(once)

    def always() -> None:
        seen.append("always")

    point.add(once)
    point.add(always)
    point()
    point()
    assert seen == ["once", "always", "always"]


def test_a_fold_hands_on_the_value_and_the_arguments() -> None:
    point = Fold[int]("x")
    point.add(lambda value, factor: value * factor)
    point.add(lambda value, factor: value + 1)
    assert point(2, 10) == 21


def test_stop_ends_a_fold() -> None:
    point = Fold[int]("x")
    point.add(lambda value: STOP(value + 1))
    point.add(lambda value: 1 // 0)
    assert point(1) == 2
    assert point.errors == 0


def test_a_failing_fold_callback_changes_nothing() -> None:
    point = Fold[int]("x")
    point.add(lambda value: value + 1)
    point.add(lambda value: value // 0)
    point.add(lambda value: value + 1)
    assert point(1) == 3
    assert point.errors == 1


def test_message_publish_may_replace_or_stop_a_message() -> None:
    hooks = Hooks()
    other = Message("other")
    hooks.message_publish.add(lambda message: other if message.topic == "replace" else message)
    hooks.message_publish.add(lambda message: None if message.topic == "drop" else message)
    hooks.message_publish.add(lambda message: STOP(None) if message.topic == "stop" else message)
    hooks.message_publish.add(lambda message: STOP(message) if message.topic == "last" else message)
    hooks.message_publish.add(lambda message: None if message.topic == "last" else message)
    kept = Message("keep")
    last = Message("last")
    assert hooks.message_publish(kept) is kept
    assert hooks.message_publish(last) is last
    assert hooks.message_publish(Message("replace")) is other
    assert hooks.message_publish(Message("drop")) is None
    assert hooks.message_publish(Message("stop")) is None


def test_a_failing_publish_callback_does_not_lose_the_message() -> None:
    hooks = Hooks()

    def broken(message: Message) -> Message:
        raise RuntimeError("no")

    hooks.message_publish.add(broken)
    message = Message("a")
    assert hooks.message_publish(message) is message
    assert hooks.errors == 1
