"""Delayed publish: whose time has come, what survives the wait, and the bounds."""

import logging
from typing import Any

import pytest

from taipan.broker.config import DelayedSettings, ZoneSettings
from taipan.broker.core.delayed_topic import reserved, split, with_mountpoint
from taipan.broker.core.outcome import DELAYED
from taipan.broker.extensions.delayed import ABSOLUTE, Delayed
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.reason_codes import NOT_AUTHORIZED, QUOTA_EXCEEDED, SUCCESS, TOPIC_NAME_INVALID
from taipan.broker.observability.metrics import Metrics
from taipan.broker.session.client_info import ClientInfo
from tests.support.clock import Clock

NOW = 1_800_000_000.0


class DelayedHarness:
    def __init__(self, **settings: Any) -> None:
        self.clock = Clock(NOW)
        self.timers = Timers(self.clock)
        self.metrics = Metrics()
        self.published: list[Message] = []
        self.delayed = Delayed(DelayedSettings(**settings), self.timers, self.published.append, self.metrics)
        self.delayed.load()

    def send(self, topic: str, payload: bytes = b"") -> int:
        return self.delayed.accept(Message(topic, payload, timestamp=self.clock.time), self.clock.time).code

    def after(self, seconds: float) -> list[str]:
        self.timers.run(self.clock.advance(seconds))
        return [message.topic for message in self.published]


@pytest.mark.parametrize(
    "topic, inner",
    [
        ("$delayed/15/x/y", "x/y"),
        ("$delayed/15//x/y", "/x/y"),
        ("$delayed/0/x", "x"),
        ("$delayed/15/ ", " "),
        ("$delayed/15/$x", "$x"),
        ("$delayed/15/", None),
        ("$delayed/15", None),
        ("$delayed//x", None),
        ("$delayed/", None),
        ("$delayed/-1/x", None),
        ("$delayed/+1/x", None),
        ("$delayed/1.5/x", None),
        ("$delayed/ 1/x", None),
        ("$delayed/1_0/x", None),
        ("$delayed/\u0661/x", None),
        ("$delayed/\u00b2/x", None),
        ("$delayed/ten/x", None),
        ("$delayed/" + "9" * 5000 + "/x", None),
        ("$delayed/1/$delayed/1/x", None),
    ],
)
def test_topics(topic: str, inner: str | None) -> None:
    harness = DelayedHarness()
    assert harness.delayed.handles(topic)
    found = split(topic)
    assert (None if found is None else found[1]) == inner
    assert harness.send(topic) == (TOPIC_NAME_INVALID if inner is None else SUCCESS)
    assert harness.after(15) == ([] if inner is None else [inner])
    assert harness.metrics.refusals.snapshot() == ({"delayed_topic_invalid": 1} if inner is None else {})


@pytest.mark.parametrize(
    "topic, expected",
    [
        ("$SYS", True),
        ("$SYS/x", True),
        ("$delayed/0/$SYS", True),
        ("$delayed/0/$SYS/x", True),
        ("$SYSTEM/x", False),
        ("x/$SYS/x", False),
        ("$delayed/0//$SYS/x", False),
        ("$delayed/x/$SYS/x", False),
        ("$delayed/0/x", False),
        ("$share/$SYS/x", False),
    ],
)
def test_topics_of_the_server(topic: str, expected: bool) -> None:
    harness = DelayedHarness()
    assert reserved(topic) is expected
    if expected and harness.delayed.handles(topic):
        assert harness.send(topic) == NOT_AUTHORIZED
        assert harness.metrics.refusals.snapshot() == {"delayed_reserved": 1}


@pytest.mark.parametrize("topic", ["x", "$delayed", "$delayedx/1/x", "x/$delayed/1/y", "/$delayed/1/x"])
def test_other_topics_are_not_its_own(topic: str) -> None:
    delayed = DelayedHarness().delayed
    assert not delayed.handles(topic)
    assert split(topic) is None


def test_not_before_its_time_and_then_once() -> None:
    harness = DelayedHarness()
    harness.send("$delayed/10/late")
    harness.send("$delayed/5/early")
    assert harness.delayed.count == 2
    assert harness.after(4.9) == []
    assert harness.after(0.1) == ["early"]
    assert harness.after(5) == ["early", "late"]
    assert harness.after(1000) == ["early", "late"]
    assert harness.delayed.count == harness.delayed.size == 0
    assert harness.metrics.messages_delayed == 2


def test_the_message_stays_what_it_was() -> None:
    harness = DelayedHarness()
    publisher = ClientInfo("n", ZoneSettings(), client_id="c")
    frame = b"\x33\x14\x00\x0c$delayed/1/x\x00\x01payload"
    message = Message(
        "$delayed/1/x",
        None,
        1,
        True,
        {MESSAGE_EXPIRY_INTERVAL: 60},
        publisher,
        NOW - 0.5,
        frame,
        len(frame) - 7,
        packet_id=1,
        dup=True,
    )
    message.id = "0123"
    message.hops = 2
    assert harness.delayed.accept(message, NOW) is DELAYED
    harness.after(1)
    (released,) = harness.published
    assert released is not message
    assert (released.topic, released.payload, released.qos, released.retain) == ("x", b"payload", 1, True)
    assert released.properties == {MESSAGE_EXPIRY_INTERVAL: 60}
    assert released.publisher is publisher
    assert released.timestamp == NOW - 0.5
    assert (released.id, released.hops, released.dup) == ("0123", 2, False)
    assert message.topic == "$delayed/1/x"


def test_a_mount_point_goes_before_the_inner_topic() -> None:
    harness = DelayedHarness()
    topic = with_mountpoint("$delayed/1/x", "home/")
    assert topic == "$delayed/1/home/x"
    assert harness.send(topic) == SUCCESS
    assert harness.after(1) == ["home/x"]
    assert with_mountpoint("x", "home/") == "home/x"


def test_a_message_that_expires_meanwhile_is_not_published() -> None:
    harness = DelayedHarness()
    message = Message("$delayed/10/x", properties={MESSAGE_EXPIRY_INTERVAL: 5}, timestamp=NOW)
    assert harness.delayed.accept(message, NOW) is DELAYED
    assert harness.after(10) == []
    assert harness.delayed.count == 0
    assert harness.metrics.refusals.snapshot() == {"delayed_expired": 1}


def test_a_large_number_is_a_moment() -> None:
    harness = DelayedHarness()
    assert harness.send(f"$delayed/{int(NOW) + 30}/x") == SUCCESS
    assert harness.after(29) == []
    assert harness.after(1) == ["x"]


def test_a_moment_just_past_is_now() -> None:
    harness = DelayedHarness()
    assert harness.send(f"$delayed/{int(NOW) - 5}/x") == SUCCESS
    assert harness.after(0) == ["x"]


@pytest.mark.parametrize("number", [ABSOLUTE, int(NOW) + ABSOLUTE + 1, 999_999_999_999])
def test_a_moment_too_far_off_either_way_is_refused(number: int) -> None:
    harness = DelayedHarness()
    assert harness.send(f"$delayed/{number}/x") == QUOTA_EXCEEDED
    assert harness.metrics.refusals.snapshot() == {"delayed_too_far": 1}


def test_the_longest_delay_is_a_setting() -> None:
    harness = DelayedHarness(max_seconds=60)
    assert harness.send("$delayed/60/x") == SUCCESS
    assert harness.send("$delayed/61/x") == QUOTA_EXCEEDED
    assert harness.send(f"$delayed/{int(NOW) + 61}/x") == QUOTA_EXCEEDED
    assert harness.delayed.count == harness.metrics.messages_delayed == 1


def test_the_number_of_messages_is_bounded_and_room_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    harness = DelayedHarness(max_messages=2)
    with caplog.at_level(logging.WARNING):
        assert [harness.send("$delayed/1/x") for _ in range(5)] == [SUCCESS] * 2 + [QUOTA_EXCEEDED] * 3
    assert len(caplog.records) == 1  # not one for each
    assert "delayed.max_messages" in caplog.text
    assert harness.metrics.refusals.snapshot() == {"delayed_full": 3}
    assert harness.after(1) == ["x", "x"]
    assert harness.send("$delayed/1/y") == SUCCESS


def test_the_bytes_are_bounded() -> None:
    harness = DelayedHarness(max_bytes=1000, max_messages=0)
    assert harness.send("$delayed/1/x", b"p" * 799) == SUCCESS
    assert harness.delayed.size == 1000
    assert harness.send("$delayed/1/x") == QUOTA_EXCEEDED
    harness.after(1)
    assert harness.send("$delayed/1/x", b"p" * 800) == QUOTA_EXCEEDED
    assert harness.send("$delayed/1/x", b"p" * 799) == SUCCESS


def test_no_limit() -> None:
    harness = DelayedHarness(max_bytes=0, max_messages=0)
    assert all(harness.send("$delayed/1/x") == SUCCESS for _ in range(1000))


def test_a_subscriber_s_error_does_not_leave_it_counted() -> None:
    harness = DelayedHarness()

    def broken(message: Message) -> None:
        raise RuntimeError("no")

    delayed = Delayed(DelayedSettings(), harness.timers, broken, harness.metrics)
    delayed.accept(Message("$delayed/1/x"), NOW)
    harness.after(1)
    assert delayed.count == delayed.size == 0
    assert harness.timers.errors == 1
