"""Broker: publishing, retained messages, and how sessions and their wills begin and end. Time is the test's."""

import itertools
import logging
from random import Random
from typing import Any

import msgspec
import pytest

from taipan.broker.config import BrokerSettings, ZoneSettings
from taipan.broker.core import broker as module
from taipan.broker.core.broker import Broker
from taipan.broker.core.hooks import Hooks
from taipan.broker.core.outcome import (
    BRIDGE,
    CLIENT,
    DELAYED,
    NO_MEMORY,
    NO_SUBSCRIBERS,
    NOT_DELAYED,
    OPERATOR,
    PUBLISHED,
    QUEUE_FULL,
    RESERVED,
    RETAINED_BYTES_FULL,
    RETAINED_FULL,
    RETAINED_TOO_LARGE,
    RULE,
    STORE_TROUBLE,
    WILL,
    Outcome,
    PublisherKind,
)
from taipan.broker.core.retained_matches import RetainedMatches
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL, NEVER_EXPIRES
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.observability.metrics import Metrics
from taipan.broker.persistence.durability import Durability
from taipan.broker.session import inbound_qos2
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from taipan.broker.session.outbound_acks import puback
from taipan.broker.session.replay import REPLAY_BYTES, REPLAY_SLICE, ReplayBudget
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.support.clock import Clock
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.one_by_one import OneByOne


class Inbox(OneByOne):
    """A writer that collects (topic, payload, QoS, retain)."""

    def __init__(self) -> None:
        self.writable = True
        self.got: list[tuple[str, str, int, bool]] = []
        self.identifiers: list[tuple[int, ...]] = []

    def send_publish0(self, message: Message) -> None:
        self.got.append((message.topic, message.payload.decode(), 0, False))

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        message = delivery.message
        self.got.append((message.topic, message.payload.decode(), delivery.qos, delivery.retain))
        self.identifiers.append(delivery.identifiers)
        return True

    def send_pubrel(self, packet_id: int) -> None:
        raise AssertionError("nobody sent PUBREC")

    def take(self) -> list[tuple[str, str, int, bool]]:
        got, self.got = self.got, []
        return got


class DelayedTopics:
    """Takes what ``topics`` has; ``outcome`` is what it says of it."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.taken: list[str] = []
        self.outcome = DELAYED
        self.durability: Durability | None = None

    def handles(self, topic: str) -> bool:
        return topic in self.topics

    def accept(self, message: Message, now: float) -> Outcome:
        self.taken.append(message.topic)
        return self.outcome


class BrokerHarness:
    def __init__(self, limits: Limits | None = None, **config: Any) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.metrics = Metrics()
        self.hooks = Hooks()
        settings = msgspec.convert(config, BrokerSettings)
        self.delayed = DelayedTopics()
        self.broker = Broker(
            settings,
            self.clock,  # type: ignore[arg-type]
            self.timers,
            self.metrics,
            self.hooks,
            Random(1),
            self.delayed,
            retained_allowed=lambda message: message.publisher is None or message.publisher.client_id != "denied",
        )
        self.zone = ZoneSettings()
        self.limits = limits or Limits()
        self.fired: list[tuple[Any, ...]] = []
        for name in ("created", "resumed", "discarded"):
            getattr(self.hooks, f"session_{name}").add(lambda client, session, n=name: self.fired.append((n, session)))
        self.hooks.session_terminated.add(lambda client, session, reason: self.fired.append((reason, session)))

    def client(self, client_id: str) -> ClientInfo:
        return ClientInfo("n", self.zone, client_id=client_id)

    def open(
        self, client_id: str = "c", clean: bool = False, expiry: int = 0, window: int = 100
    ) -> tuple[Session, Inbox]:
        session, self.present = self.broker.life.open_session(
            self.client(client_id), clean, expiry, self.limits, self.clock.time
        )
        inbox = Inbox()
        session.attach(inbox, window, self.limits, self.clock.time, packets=inbox)
        session.advance(self.clock.time)
        return session, inbox

    def subscribe(self, session: Session, filter: str, qos: int = 1, **options: Any) -> None:
        self.broker.subscribe(session, Subscription(session, filter, qos, **options))
        session.advance(self.clock.time)

    def share(self, session: Session, qos: int = 1, **options: Any) -> None:
        self.subscribe(session, "$share/g/t", qos, group="g", topic_filter="t", **options)

    def publish(
        self,
        topic: str,
        payload: str = "x",
        qos: int = 1,
        retain: bool = False,
        by: str | None = None,
        properties: dict[int, Any] | None = None,
    ) -> int:
        publisher = None if by is None else self.client(by)
        return self.broker.publish(
            Message(topic, payload.encode(), qos, retain, properties or {}, publisher, self.clock.time)
        )

    def leave(self, session: Session, will: str | None = None, delay: int = 0, reason: str = "normal") -> None:
        message = None if will is None else Message("will", will.encode(), 1, publisher=session.client)
        self.broker.life.leave(session, message, delay, self.clock.time, reason)

    def pass_time(self, seconds: float) -> None:
        self.timers.run(self.clock.advance(seconds))


# --- publishing -----------------------------------------------------------------------------------------------------


def test_a_message_reaches_whoever_matches_and_is_counted() -> None:
    harness = BrokerHarness()
    a, inbox_a = harness.open("a")
    b, inbox_b = harness.open("b")
    harness.subscribe(a, "t/#", 0)
    harness.subscribe(b, "t/1", 2)
    assert harness.publish("t/1", qos=2) == 2
    assert harness.publish("t/2", qos=2) == 1
    assert inbox_a.got == [("t/1", "x", 0, False), ("t/2", "x", 0, False)]
    assert inbox_b.got == [("t/1", "x", 2, False)]
    assert (harness.metrics.messages_publish, harness.metrics.messages_dropped_no_subscribers) == (2, 0)
    assert harness.broker.budget.deliveries == 3 + 2 * module.PUBLISH_STEPS
    assert harness.broker.budget.bytes > 0


def test_a_message_for_nobody_is_told() -> None:
    harness = BrokerHarness()
    told: list[tuple[str, str]] = []
    assert harness.publish("t") == 0
    harness.hooks.message_dropped.add(lambda message, reason: told.append((message.topic, reason)))
    assert harness.publish("t") == 0
    assert told == [("t", "no_subscribers")]
    assert harness.metrics.messages_dropped_no_subscribers == 2


def test_a_hook_changes_or_stops_a_message() -> None:
    harness = BrokerHarness()
    session, inbox = harness.open()
    harness.subscribe(session, "#")
    harness.hooks.message_publish.add(lambda message: None if message.topic == "stop" else Message("to", b"y", 0))
    assert harness.publish("stop", retain=True) == 0
    assert harness.publish("from") == 1
    assert inbox.got == [("to", "y", 0, False)]
    assert len(harness.broker.retained) == 0
    assert (harness.metrics.messages_publish, harness.metrics.messages_dropped_no_subscribers) == (2, 0)


def test_route_is_uncounted_and_unhooked() -> None:
    harness = BrokerHarness()
    session, inbox = harness.open()
    harness.subscribe(session, "$SYS/#", 0)
    harness.hooks.message_publish.add(lambda message: None)
    assert harness.broker.route(Message("$SYS/x", b"1")) == 1
    assert inbox.got == [("$SYS/x", "1", 0, False)]
    assert harness.metrics.messages_publish == 0


def test_overlapping_subscriptions_make_one_delivery() -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    harness = BrokerHarness()
    session, inbox = harness.open()
    harness.subscribe(session, "t/#", 0, identifiers=(1,))
    harness.subscribe(session, "t/+", 2, identifiers=(2,))
    harness.subscribe(session, "t/x", 1)
    assert harness.publish("t/x", qos=2) == 1
    assert inbox.got == [("t/x", "x", 2, False)]
    assert sorted(inbox.identifiers[0]) == [1, 2]


# --- No Local -------------------------------------------------------------------------------------------------------


def test_no_local_is_about_the_client_identifier() -> None:
    """[MQTT-3.8.3-3]"""
    harness = BrokerHarness()
    session, inbox = harness.open("me")
    dropped: list[str] = []
    harness.hooks.delivery_dropped.add(lambda client, session, message, reason: dropped.append(reason))
    harness.subscribe(session, "t", no_local=True)
    harness.publish("t", by="me")
    assert (inbox.take(), dropped, harness.metrics.delivery_dropped_no_local) == ([], ["no_local"], 1)
    harness.publish("t", by="other")
    harness.publish("t")
    assert len(inbox.take()) == 2


def test_no_local_leaves_what_came_through_other_filters() -> None:
    """[MQTT-3.8.3-3]"""
    harness = BrokerHarness()
    session, inbox = harness.open("me")
    harness.subscribe(session, "t", 2, no_local=True, identifiers=(1,))
    harness.subscribe(session, "#", 1, identifiers=(2,))
    harness.publish("t", qos=2, by="me")
    harness.publish("t", qos=2, by="other")
    assert inbox.got == [("t", "x", 1, False), ("t", "x", 2, False)]
    assert [sorted(each) for each in inbox.identifiers] == [[2], [1, 2]]
    assert harness.metrics.delivery_dropped == 0


def test_no_local_holds_for_the_client_s_own_will() -> None:
    harness = BrokerHarness()
    session, inbox = harness.open("me", expiry=10)
    harness.subscribe(session, "will", no_local=True)
    harness.leave(session, "gone")
    session, inbox = harness.open("me", expiry=10)
    assert inbox.got == []


# --- shared subscriptions -------------------------------------------------------------------------------------------


def test_a_shared_message_goes_to_one_member() -> None:
    """[MQTT-4.8.2-3]"""
    harness = BrokerHarness(shared={"strategy": "round_robin_per_group"})
    inboxes = []
    for name, qos in (("a", 0), ("b", 1)):
        session, inbox = harness.open(name)
        harness.share(session, qos, identifiers=(1,), retain_as_published=name == "b")
        inboxes.append(inbox)
    for _ in range(2):
        assert harness.publish("t", qos=2, retain=True) == 1
    assert [inbox.got for inbox in inboxes] == [[("t", "x", 0, False)], [("t", "x", 1, True)]]
    assert all(inbox.identifiers == [(1,)] for inbox in inboxes)


def test_a_shared_message_at_an_upgraded_qos() -> None:
    harness = BrokerHarness(Limits(upgrade_qos=True))
    session, inbox = harness.open("a")
    harness.share(session, 2)
    harness.publish("t", qos=1)
    assert inbox.got == [("t", "x", 2, False)]


def test_at_a_session_s_end_another_member_gets_what_it_did_not_acknowledge() -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]"""
    harness = BrokerHarness(shared={"strategy": "sticky"})
    a, inbox_a = harness.open("a", window=2)
    harness.share(a, 2)
    harness.publish("t", "first", qos=1, by="p")
    harness.publish("t", "second", qos=2, by="p")
    harness.publish("t", "waiting", qos=2, by="p")
    assert [each[1] for each in inbox_a.got] == ["first", "second"]
    b, inbox_b = harness.open("b")
    harness.share(b, 1)
    harness.leave(a)
    assert inbox_b.take() == [("t", "first", 1, False), ("t", "waiting", 1, False)]
    harness.leave(b)
    assert harness.metrics.delivery_dropped_queue_full == 2  # nobody is left


@pytest.mark.parametrize("before", [0, 1])
def test_a_full_member_is_passed_over_for_one_whose_queue_has_room(before: int) -> None:
    harness = BrokerHarness(
        Limits(max_queued_messages=1, refuse_when_full=True), shared={"strategy": "round_robin_per_group"}
    )
    harness.broker.refusing = True
    a, _ = harness.open("a", window=1)
    b, _ = harness.open("b", window=1)
    harness.share(a)
    harness.share(b)
    harness.subscribe(b, "own")
    for _ in range(before):
        harness.publish("t")
    while not a.inflight or not b.inflight:
        harness.publish("t")
    harness.subscribe(a, "own")
    harness.broker.unsubscribe(b, "own")
    harness.publish("own")
    assert (a.queued, b.queued) == (1, 0)
    harness.publish("t")
    assert (a.queued, b.queued) == (1, 1)
    harness.broker.unsubscribe(a, "own")
    assert harness.broker.would_refuse(Message("t", b"x", 1))
    harness.publish("t")  # to a client that cannot be refused, as a will cannot: somebody gets it
    assert (a.queued + b.queued, harness.metrics.delivery_dropped_queue_full) == (3, 0)  # and nothing goes for it


def test_what_expired_meanwhile_goes_to_no_other_member() -> None:
    """[MQTT-3.3.2-5]"""
    harness = BrokerHarness()
    first, _ = harness.open("first", expiry=100)
    harness.share(first)
    harness.leave(first)
    harness.publish("t", "old", properties={MESSAGE_EXPIRY_INTERVAL: 5})
    harness.publish("t", "good")
    second, inbox = harness.open("second")
    harness.share(second)
    harness.pass_time(100)
    assert inbox.got == [("t", "good", 1, False)]
    assert harness.metrics.delivery_dropped_expired == 1


def test_a_group_that_was_empty_meanwhile_is_the_same_group() -> None:
    harness = BrokerHarness()
    first, _ = harness.open("first", expiry=100)
    harness.share(first)
    harness.publish("t", "x")
    harness.broker.unsubscribe(first, "$share/g/t")
    second, inbox = harness.open("second")
    harness.share(second)
    harness.leave(first)
    harness.pass_time(100)
    assert inbox.got == [("t", "x", 1, False)]


def test_a_shared_member_that_is_offline_gets_it_where_nobody_is_online() -> None:
    harness = BrokerHarness()
    session, _ = harness.open("a", expiry=100)
    harness.share(session)
    harness.leave(session)
    assert harness.publish("t") == 1
    assert session.queued == 1


# --- refusing -------------------------------------------------------------------------------------------------------


def test_refusing_asks_every_matching_session() -> None:
    harness = BrokerHarness(Limits(max_queued_messages=1, refuse_when_full=True))
    session, _ = harness.open("a", window=1)
    harness.subscribe(session, "t", 1)
    for _ in range(2):
        harness.publish("t")
    message = Message("t", b"x", 1)
    assert not harness.broker.would_refuse(message)  # no zone refuses
    harness.broker.refusing = True
    assert harness.broker.would_refuse(message)
    assert not harness.broker.would_refuse(Message("u", b"x", 1))


def test_full_members_of_a_shared_subscription_are_passed_over() -> None:
    harness = BrokerHarness(
        Limits(max_queued_messages=1, refuse_when_full=True), shared={"strategy": "round_robin_per_group"}
    )
    harness.broker.refusing = True
    a, inbox_a = harness.open("a", window=1)
    b, inbox_b = harness.open("b")
    harness.share(a)
    harness.share(b)
    message = Message("t", b"x", 1)
    for _ in range(10):
        assert not harness.broker.would_refuse(message)
        harness.publish("t")
    assert len(inbox_a.got) == 1 and a.queued <= 1
    assert len(inbox_b.got) >= 8
    b.window = 1
    for _ in range(2):
        harness.publish("t")
    assert (a.queued, b.queued) == (1, 1)
    assert harness.broker.would_refuse(message)
    assert harness.metrics.delivery_dropped == 0


# --- retained -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handling, existed, sent", [(0, False, 1), (0, True, 1), (1, False, 1), (1, True, 0), (2, False, 0), (2, True, 0)]
)
def test_retain_handling(handling: int, existed: bool, sent: int) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-3]"""
    harness = BrokerHarness()
    harness.publish("t", retain=True)
    session, inbox = harness.open()
    if existed:
        harness.subscribe(session, "t", retain_handling=2)
    harness.subscribe(session, "t", retain_handling=handling)
    assert inbox.got == [("t", "x", 1, True)] * sent


def test_retained_messages_are_replaced_and_removed() -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8]"""
    harness = BrokerHarness()
    harness.publish("t", "1", retain=True)
    harness.publish("t", "2", retain=True)
    harness.publish("t", "3")
    assert harness.metrics.messages_retained == 1
    session, inbox = harness.open()
    harness.subscribe(session, "t")
    assert inbox.take() == [("t", "2", 1, True)]
    harness.publish("t", "", retain=True)
    assert inbox.take() == [("t", "", 1, False)]
    assert harness.metrics.messages_retained == 0
    harness.subscribe(session, "t")
    assert inbox.take() == []


def test_a_shared_subscription_gets_no_retained_messages() -> None:
    harness = BrokerHarness()
    harness.publish("t", retain=True)
    session, inbox = harness.open()
    harness.share(session)
    assert inbox.got == []


@pytest.mark.parametrize(
    "settings, reason", [({"max_messages": 1}, "retained_full"), ({"max_payload_size": 3}, "retained_too_large")]
)
def test_a_retained_message_beyond_the_bounds_is_delivered_but_not_kept(
    settings: dict[str, int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness = BrokerHarness(retained=settings)
    session, inbox = harness.open()
    harness.subscribe(session, "#")
    harness.publish("a", "x", retain=True)
    with caplog.at_level(logging.WARNING):
        harness.publish("b", "xxxx", retain=True)
    assert len(inbox.got) == 2
    assert harness.metrics.refusals.snapshot() == {reason: 1}
    assert f"setting=retained.{next(iter(settings))}" in caplog.text
    assert len(harness.broker.retained) == 1


@pytest.mark.parametrize("kind", [WILL, RULE, BRIDGE])
@pytest.mark.parametrize("settings", [{"max_payload_size": 3}, {"max_bytes": 700}])
def test_what_is_kept_goes_where_what_follows_cannot_be_kept(kind: PublisherKind, settings: dict[str, int]) -> None:
    """[3.1.1 MQTT-3.3.1-7]: of whoever has nobody to be told."""
    harness = BrokerHarness(retained=settings)
    session, inbox = harness.open()
    harness.subscribe(session, "#")
    harness.publish("a", "x", retain=True)
    publisher = harness.client("p")
    publisher.proto_ver = 5
    message = Message("a", b"x" * 100, 1, True, publisher=publisher, timestamp=harness.clock.time)
    assert not harness.broker.accept(message, kind).refused
    assert len(inbox.got) == 2 and len(harness.broker.retained) == 0
    assert harness.metrics.messages_retained == 0 and harness.broker.retained.bytes == 0


def test_a_retained_message_is_judged_as_it_is_sent() -> None:
    """[MQTT-3.3.2-5] and No Local and ``check_source``; what changes before it is sent counts."""
    harness = BrokerHarness()
    for name in ("mine", "theirs", "denied", "cleared", "expired"):
        by = "me" if name == "mine" else name
        properties = {MESSAGE_EXPIRY_INTERVAL: 5} if name == "expired" else {}
        harness.publish(f"t/{name}", name, retain=True, by=by, properties=properties)
    harness.broker.retaining.check_source = True
    session, inbox = harness.open("me")
    harness.broker.subscribe(session, Subscription(session, "t/+", 0, no_local=True))
    harness.clock.advance(5)
    harness.publish("t/cleared", "", retain=True)
    inbox.take()
    for _ in range(5):
        session.advance(harness.clock.time)
    assert inbox.got == [("t/theirs", "theirs", 0, True)]
    assert harness.metrics.refusals.snapshot() == {"retained_source_denied": 1}
    harness.broker.retaining.sweep(harness.clock.advance(60), 100)
    assert harness.metrics.messages_retained == 3


def test_a_retained_message_that_was_not_sent_comes_as_it_is_then() -> None:
    harness = BrokerHarness()
    for number in range(5):
        harness.publish(f"t/{number}", "old", retain=True)
    session, _ = harness.open()
    matches = RetainedMatches(harness.broker, Subscription(session, "t/+", 1))
    budget = ReplayBudget()
    taken = matches.take(3, budget)
    assert budget.messages == REPLAY_SLICE - 3 and budget.bytes == REPLAY_BYTES - 9
    harness.publish(taken[1].topic, "new", retain=True)
    harness.publish(taken[2].topic, "", retain=True)
    matches.put_back(taken[1:])
    left = matches.take(1, budget) + matches.take(1, budget)
    assert [(each.topic, each.payload) for each in left] == [(taken[1].topic, b"new")]
    last = matches.take(10, budget)
    assert len(last) == 2 and matches.done
    matches.put_back(last)
    assert not matches.done and matches.take(10, budget) == last and matches.done


def test_a_long_search_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.broker.session.replay.REPLAY_STEPS", 5)
    harness = BrokerHarness()
    for number in range(20):
        harness.publish(f"{number}/a", retain=True)
    harness.publish("7/b", "found", retain=True)
    session, inbox = harness.open()
    harness.broker.subscribe(session, Subscription(session, "+/b", 0))
    session.advance(0)
    advances = 1
    assert session.replaying
    while session.replaying:
        session.advance(0)
        advances += 1
    assert advances > 3
    assert inbox.got == [("7/b", "found", 0, True)]


# --- subscriptions --------------------------------------------------------------------------------------------------


def test_hooks_hear_of_subscriptions() -> None:
    harness = BrokerHarness()
    heard: list[Any] = []
    harness.hooks.session_subscribed.add(lambda client, subscription, new: heard.append((subscription.qos, new)))
    harness.hooks.session_unsubscribed.add(lambda client, subscription: heard.append(subscription.qos))
    session, _ = harness.open()
    harness.subscribe(session, "t", 0)
    harness.subscribe(session, "t", 1)
    assert not harness.broker.unsubscribe(session, "T")
    assert harness.broker.unsubscribe(session, "t")
    assert not harness.broker.unsubscribe(session, "t")
    assert heard == [(0, True), (1, False), 1]
    assert harness.broker.router.subscription_count == 0


def test_unsubscribing_stops_new_messages_and_keeps_old_ones() -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3]"""
    harness = BrokerHarness()
    for number in range(5):
        harness.publish(f"r/{number}", retain=True)
    session, inbox = harness.open(window=1)
    harness.subscribe(session, "r/+", 1)
    harness.broker.unsubscribe(session, "r/+")
    harness.publish("r/1", "new")
    puback(session, 1)
    session.advance(0)
    puback(session, 2)
    session.advance(0)
    assert len(inbox.got) == 2  # one in flight, one that waited; no more of the search
    assert not session.busy


# --- sessions -------------------------------------------------------------------------------------------------------


def test_clean_start_makes_a_new_session_and_otherwise_the_old_one_goes_on() -> None:
    """[MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6]"""
    harness = BrokerHarness()
    first, _ = harness.open(expiry=100)
    assert not harness.present
    harness.subscribe(first, "t")
    harness.leave(first)
    harness.publish("t", "waits")
    second, inbox = harness.open(expiry=50)
    assert second is first and harness.present
    assert (second.expiry_interval, inbox.take()) == (50, [("t", "waits", 1, False)])
    harness.leave(second)
    third, inbox = harness.open(clean=True)
    assert third is not first and not harness.present
    harness.publish("t", "nobody")
    assert inbox.got == []
    assert harness.fired == [("created", first), ("resumed", first), ("discarded", first), ("created", third)]
    assert harness.broker.router.subscription_count == 0
    metrics = harness.metrics
    assert (metrics.session_created, metrics.session_resumed, metrics.session_discarded) == (2, 1, 1)
    assert metrics.session_terminated == 0


@pytest.mark.parametrize(
    "expiry, after, lives", [(0, 0, False), (10, 9.9, True), (10, 10, False), (NEVER_EXPIRES, 1e10, True)]
)
def test_a_session_lives_as_long_as_its_expiry_interval(expiry: int, after: float, lives: bool) -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]"""
    harness = BrokerHarness()
    session, _ = harness.open(expiry=expiry)
    harness.subscribe(session, "t")
    harness.pass_time(1000)  # connected: no interval runs [MQTT-4.1.0-1]
    harness.leave(session)
    harness.pass_time(after)
    assert ("c" in harness.broker.sessions) is lives
    assert harness.broker.router.subscription_count == lives
    if not lives:
        assert harness.fired[-1] == ("expired" if expiry else "normal", session)
        assert harness.metrics.session_terminated == 1


def test_a_reconnect_stops_the_expiry() -> None:
    harness = BrokerHarness()
    session, _ = harness.open(expiry=10)
    harness.leave(session)
    harness.pass_time(9)
    harness.open(expiry=10)
    harness.pass_time(100)
    assert "c" in harness.broker.sessions
    harness.leave(session)
    harness.pass_time(9)
    assert "c" in harness.broker.sessions
    assert session.disconnected_at == harness.clock.time - 9


def test_an_ended_session_ends_once() -> None:
    harness = BrokerHarness()
    session, _ = harness.open()
    harness.broker.life.end_session(session, "kicked", 0)
    harness.broker.life.end_session(session, "kicked", 0)
    assert harness.fired == [("created", session), ("kicked", session)]


# --- wills ----------------------------------------------------------------------------------------------------------


def test_the_will_comes_when_its_delay_or_the_session_is_over() -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10]: whichever is first, and once."""
    for delay, expiry in itertools.product((0, 3, 10), (0, 2, 3, 5, NEVER_EXPIRES)):
        harness = BrokerHarness()
        watcher, inbox = harness.open("watcher")
        harness.subscribe(watcher, "will")
        session, _ = harness.open(expiry=expiry)
        harness.pass_time(100)
        harness.leave(session, "bye", delay, "tcp_closed")
        due = min(delay, expiry)
        if due:
            harness.pass_time(due - 0.1)
            assert inbox.got == [], (delay, expiry)
            harness.pass_time(0.1)
        assert inbox.take() == [("will", "bye", 1, False)], (delay, expiry)
        harness.pass_time(100)
        assert inbox.got == [], (delay, expiry)
        assert session.will is None


def test_a_reconnect_within_the_delay_cancels_the_will() -> None:
    """[MQTT-3.1.3-9]"""
    harness = BrokerHarness()
    watcher, inbox = harness.open("watcher")
    harness.subscribe(watcher, "will")
    session, _ = harness.open(expiry=100)
    harness.leave(session, "bye", 10)
    harness.pass_time(9)
    harness.open(expiry=100)
    harness.pass_time(1000)
    assert inbox.got == []


def test_a_clean_start_within_the_delay_sends_the_will_at_once() -> None:
    """[MQTT-3.1.2-8]: the session has ended."""
    harness = BrokerHarness()
    watcher, inbox = harness.open("watcher")
    harness.subscribe(watcher, "will")
    session, _ = harness.open(expiry=100)
    harness.leave(session, "bye", 10)
    harness.open(clean=True)
    assert inbox.take() == [("will", "bye", 1, False)]
    harness.pass_time(1000)
    assert inbox.got == []


def test_the_message_expiry_of_a_will_counts_from_its_publication() -> None:
    harness = BrokerHarness()
    session, _ = harness.open(expiry=100)
    will = Message("will", b"bye", 0, True, {MESSAGE_EXPIRY_INTERVAL: 20})
    harness.broker.life.leave(session, will, 50, harness.clock.time, "tcp_closed")
    harness.pass_time(50)
    kept = harness.broker.retained.get("will")
    assert kept is not None and kept.expires_at == harness.clock.time + 20


def test_a_will_may_be_delayed() -> None:
    harness = BrokerHarness()
    harness.delayed.topics.add("$delayed/5/will")
    session, _ = harness.open()
    harness.broker.life.leave(session, Message("$delayed/5/will"), 0, 0, "tcp_closed")
    assert (harness.delayed.taken, harness.metrics.messages_publish) == (["$delayed/5/will"], 0)
    session, _ = harness.open()
    harness.broker.life.leave(session, Message("other"), 0, 0, "tcp_closed")
    assert harness.metrics.messages_publish == 1


# --- what is accepted from whom ---------------------------------------------------------------------------------------

SOURCES = {"client": CLIENT, "operator": OPERATOR, "will": WILL, "rule": RULE, "bridge": BRIDGE}


@pytest.mark.parametrize("source", SOURCES)
def test_who_publishes_and_who_receives(source: str) -> None:
    harness = BrokerHarness()
    accept = harness.broker.accept
    assert accept(Message("t", b"x", 1), SOURCES[source]) is NO_SUBSCRIBERS
    session, inbox = harness.open()
    harness.subscribe(session, "#")
    assert accept(Message("t", b"x", 1), SOURCES[source]) is PUBLISHED
    assert len(inbox.got) == 1
    # A client's count when its packet arrives, a will is in no PUBLISH, and a bridge counts its own.
    assert harness.metrics.messages_qos1_received == (2 if source in ("operator", "rule") else 0)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("topic", ["$SYS", "$SYS/x", "$delayed/1/$SYS/x"])
def test_nobody_speaks_for_the_server(source: str, topic: str) -> None:
    harness = BrokerHarness()
    session, inbox = harness.open()
    harness.subscribe(session, "$SYS/#")
    harness.delayed.topics.add("$delayed/1/$SYS/x")
    assert harness.broker.accept(Message(topic), SOURCES[source]) is RESERVED
    assert (inbox.got, harness.delayed.taken, harness.metrics.messages_publish) == ([], [], 0)


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_delayed_is_not_published_now(source: str) -> None:
    harness = BrokerHarness()
    session, inbox = harness.open()
    harness.subscribe(session, "#")
    harness.subscribe(session, "$delayed/#")
    harness.delayed.topics.add("$delayed/1/t")
    assert harness.broker.accept(Message("$delayed/1/t"), SOURCES[source]) is DELAYED
    harness.delayed.outcome = Outcome(0x97, "delayed.max_messages")
    assert harness.broker.accept(Message("$delayed/1/t"), SOURCES[source]).setting == "delayed.max_messages"
    assert inbox.got == []
    assert harness.broker.accept(Message("$delayed/2/t"), SOURCES[source]) is PUBLISHED  # a topic like others


@pytest.mark.parametrize("source, refused", [(each, each in ("client", "operator")) for each in SOURCES])
def test_a_full_queue_refuses_who_can_be_told(source: str, refused: bool) -> None:
    harness = BrokerHarness(Limits(max_queued_messages=1, refuse_when_full=True))
    harness.broker.refusing = True
    session, _ = harness.open(expiry=100)
    harness.subscribe(session, "t", qos=1)
    harness.leave(session)
    harness.publish("t", qos=1)
    outcome = harness.broker.accept(Message("t", b"x", 1), SOURCES[source])
    assert outcome is (QUEUE_FULL if refused else PUBLISHED)
    assert session.queued == (1 if refused else 2)
    assert not harness.broker.accept(Message("t", b"x"), SOURCES[source]).refused  # QoS 0 is dropped instead


@pytest.mark.parametrize("source, refused", [(each, each in ("client", "operator")) for each in SOURCES])
def test_trouble_of_the_store_refuses_who_can_be_told(source: str, refused: bool) -> None:
    node = DurableFakeNode()
    node.trouble()
    expected = STORE_TROUBLE if refused else DELAYED
    assert node.broker.accept(Message("$delayed/1/t", b"x", 1), SOURCES[source]) is expected
    # Nothing of it is to be stored: it has no subscriber.
    assert node.broker.accept(Message("t", b"x", 1), SOURCES[source]) is NO_SUBSCRIBERS


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"max_messages": 1}, RETAINED_FULL),
        ({"max_payload_size": 1}, RETAINED_TOO_LARGE),
        ({"max_bytes": 700}, RETAINED_BYTES_FULL),
    ],
)
def test_who_is_told_that_a_message_cannot_be_retained(
    source: str, settings: dict[str, int], expected: Outcome
) -> None:
    harness = BrokerHarness(retained=settings)
    harness.publish("a", "x", retain=True)
    outcome = harness.broker.accept(Message("b", b"xxxx", 0, True), SOURCES[source])
    assert outcome is (expected if source == "operator" else NO_SUBSCRIBERS)
    assert harness.metrics.messages_publish == (1 if source == "operator" else 2)
    assert len(harness.broker.retained) == 1
    assert not harness.broker.accept(Message("a", b"", 0, True), SOURCES[source]).refused  # clears


def test_an_operator_is_told_that_there_is_no_memory_to_retain() -> None:
    harness = BrokerHarness()
    harness.broker.account.level = 1
    assert harness.broker.accept(Message("t", b"x", 0, True), OPERATOR) is NO_MEMORY
    assert harness.broker.accept(Message("t", b"x", 0, True), CLIENT) is NO_SUBSCRIBERS
    assert len(harness.broker.retained) == 0


@pytest.mark.parametrize(
    "topic, expected",
    [
        ("t", "t"),
        ("$delayed/1/t", "t"),
        ("$delayed/1/$SYS/t", RESERVED),
        ("$delayed/x/t", NOT_DELAYED),
        ("$delayed/2/t", "$delayed/2/t"),  # not handled: a topic like others
        ("$delayed/2/$SYS", RESERVED),
        ("$SYS/t", RESERVED),
        ("$share", "$share"),
    ],
)
def test_where_a_message_ends_up(topic: str, expected: str | Outcome) -> None:
    harness = BrokerHarness()
    harness.delayed.topics |= {"$delayed/1/t", "$delayed/1/$SYS/t", "$delayed/x/t"}
    assert harness.broker.destination(topic) == expected


# --- housekeeping ---------------------------------------------------------------------------------------------------


def test_the_sweep_drops_what_is_over(caplog: pytest.LogCaptureFixture) -> None:
    harness = BrokerHarness()
    session, _ = harness.open(expiry=10_000)
    idle, _ = harness.open("idle")
    harness.subscribe(session, "t")
    inbound_qos2.receive(session, 1, harness.clock.time)
    inbound_qos2.receive(session, 2, harness.clock.time + 1)
    harness.leave(session)
    harness.publish("t", properties={MESSAGE_EXPIRY_INTERVAL: 5})
    harness.clock.advance(harness.zone.await_rel_timeout)
    harness.broker.life.sweep_sessions([session, idle], harness.clock.time)
    assert session.queued == 0
    assert harness.metrics.messages_dropped_await_pubrel_timeout == 0
    harness.clock.advance(0.5)
    with caplog.at_level(logging.WARNING):
        harness.broker.life.sweep_sessions([session, idle], harness.clock.time)
    assert session.awaiting_rel is not None and list(session.awaiting_rel) == [2]
    assert harness.metrics.messages_dropped_await_pubrel_timeout == 1
    assert "setting=await_rel_timeout" in caplog.text


@pytest.mark.parametrize("reason", ["queue_full", "qos0_msg", "expired", "too_large", "no_local"])
def test_every_dropped_delivery_is_counted_and_told(reason: str) -> None:
    harness = BrokerHarness()
    session, _ = harness.open()
    told: list[str] = []
    harness.broker.delivery_dropped(session, Delivery(Message("t"), 0), reason)
    harness.hooks.delivery_dropped.add(lambda client, session, message, why: told.append(why))
    harness.broker.delivery_dropped(session, Delivery(Message("t"), 0), reason)
    assert getattr(harness.metrics, f"delivery_dropped_{reason}") == harness.metrics.delivery_dropped == 2
    assert told == [reason]
