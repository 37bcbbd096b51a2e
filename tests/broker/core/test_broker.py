"""Broker: publishing, retained messages, and how sessions and their wills begin and end. Time is the test's."""

import itertools
import logging
from random import Random
from typing import Any

import msgspec
import pytest

from broker.config import BrokerSettings, ZoneSettings
from broker.core import broker as module
from broker.core.broker import Broker
from broker.core.client_info import ClientInfo
from broker.core.hooks import Hooks
from broker.core.metrics import Metrics
from broker.core.timers import Timers
from broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL, NEVER_EXPIRES
from broker.mqtt.message import Delivery, Message
from broker.session.limits import Limits
from broker.session.session import Session
from broker.session.subscription import Subscription
from tests.support.clock import Clock
from tests.support.one_by_one import OneByOne


class Inbox(OneByOne):
    """An outlet that collects (topic, payload, QoS, retain)."""

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


class Bench:
    def __init__(self, limits: Limits | None = None, **rooms: Any) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.metrics = Metrics()
        self.hooks = Hooks()
        settings = msgspec.convert(rooms, BrokerSettings)
        self.broker = Broker(settings, self.clock, self.timers, self.metrics, self.hooks, Random(1))  # type: ignore[arg-type]
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
        session, self.present = self.broker.open_session(
            self.client(client_id), clean, expiry, self.limits, self.clock.time
        )
        inbox = Inbox()
        session.attach(inbox, window, self.limits, self.clock.time)
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
        self.broker.leave(session, message, delay, self.clock.time, reason)

    def pass_time(self, seconds: float) -> None:
        self.timers.run(self.clock.advance(seconds))


# --- publishing -----------------------------------------------------------------------------------------------------


def test_a_message_reaches_whoever_matches_and_is_counted() -> None:
    bench = Bench()
    a, inbox_a = bench.open("a")
    b, inbox_b = bench.open("b")
    bench.subscribe(a, "t/#", 0)
    bench.subscribe(b, "t/1", 2)
    assert bench.publish("t/1", qos=2) == 2
    assert bench.publish("t/2", qos=2) == 1
    assert inbox_a.got == [("t/1", "x", 0, False), ("t/2", "x", 0, False)]
    assert inbox_b.got == [("t/1", "x", 2, False)]
    assert (bench.metrics.messages_publish, bench.metrics.messages_dropped_no_subscribers) == (2, 0)
    assert bench.broker.turn.deliveries == 3 + 2 * module.PUBLISH_STEPS
    assert bench.broker.turn.octets > 0


def test_a_message_for_nobody_is_told() -> None:
    bench = Bench()
    told: list[tuple[str, str]] = []
    assert bench.publish("t") == 0
    bench.hooks.message_dropped.add(lambda message, reason: told.append((message.topic, reason)))
    assert bench.publish("t") == 0
    assert told == [("t", "no_subscribers")]
    assert bench.metrics.messages_dropped_no_subscribers == 2


def test_a_hook_changes_or_stops_a_message() -> None:
    bench = Bench()
    session, inbox = bench.open()
    bench.subscribe(session, "#")
    bench.hooks.message_publish.add(lambda message: None if message.topic == "stop" else Message("to", b"y", 0))
    assert bench.publish("stop", retain=True) == 0
    assert bench.publish("from") == 1
    assert inbox.got == [("to", "y", 0, False)]
    assert len(bench.broker.retained) == 0
    assert (bench.metrics.messages_publish, bench.metrics.messages_dropped_no_subscribers) == (2, 0)


def test_route_is_uncounted_and_unhooked() -> None:
    bench = Bench()
    session, inbox = bench.open()
    bench.subscribe(session, "$SYS/#", 0)
    bench.hooks.message_publish.add(lambda message: None)
    assert bench.broker.route(Message("$SYS/x", b"1")) == 1
    assert inbox.got == [("$SYS/x", "1", 0, False)]
    assert bench.metrics.messages_publish == 0


def test_overlapping_subscriptions_make_one_delivery() -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    bench = Bench()
    session, inbox = bench.open()
    bench.subscribe(session, "t/#", 0, identifiers=(1,))
    bench.subscribe(session, "t/+", 2, identifiers=(2,))
    bench.subscribe(session, "t/x", 1)
    assert bench.publish("t/x", qos=2) == 1
    assert inbox.got == [("t/x", "x", 2, False)]
    assert sorted(inbox.identifiers[0]) == [1, 2]


# --- No Local -------------------------------------------------------------------------------------------------------


def test_no_local_is_about_the_client_identifier() -> None:
    """[MQTT-3.8.3-3]"""
    bench = Bench()
    session, inbox = bench.open("me")
    dropped: list[str] = []
    bench.hooks.delivery_dropped.add(lambda client, session, message, reason: dropped.append(reason))
    bench.subscribe(session, "t", no_local=True)
    bench.publish("t", by="me")
    assert (inbox.take(), dropped, bench.metrics.delivery_dropped_no_local) == ([], ["no_local"], 1)
    bench.publish("t", by="other")
    bench.publish("t")
    assert len(inbox.take()) == 2


def test_no_local_leaves_what_came_through_other_filters() -> None:
    """[MQTT-3.8.3-3]"""
    bench = Bench()
    session, inbox = bench.open("me")
    bench.subscribe(session, "t", 2, no_local=True, identifiers=(1,))
    bench.subscribe(session, "#", 1, identifiers=(2,))
    bench.publish("t", qos=2, by="me")
    bench.publish("t", qos=2, by="other")
    assert inbox.got == [("t", "x", 1, False), ("t", "x", 2, False)]
    assert [sorted(each) for each in inbox.identifiers] == [[2], [1, 2]]
    assert bench.metrics.delivery_dropped == 0


def test_no_local_holds_for_the_client_s_own_will() -> None:
    bench = Bench()
    session, inbox = bench.open("me", expiry=10)
    bench.subscribe(session, "will", no_local=True)
    bench.leave(session, "gone")
    session, inbox = bench.open("me", expiry=10)
    assert inbox.got == []


# --- shared subscriptions -------------------------------------------------------------------------------------------


def test_a_shared_message_goes_to_one_member() -> None:
    """[MQTT-4.8.2-3]"""
    bench = Bench(shared={"strategy": "round_robin_per_group"})
    inboxes = []
    for name, qos in (("a", 0), ("b", 1)):
        session, inbox = bench.open(name)
        bench.share(session, qos, identifiers=(1,), retain_as_published=name == "b")
        inboxes.append(inbox)
    for _ in range(2):
        assert bench.publish("t", qos=2, retain=True) == 1
    assert [inbox.got for inbox in inboxes] == [[("t", "x", 0, False)], [("t", "x", 1, True)]]
    assert all(inbox.identifiers == [(1,)] for inbox in inboxes)


def test_a_shared_message_at_an_upgraded_qos() -> None:
    bench = Bench(Limits(upgrade_qos=True))
    session, inbox = bench.open("a")
    bench.share(session, 2)
    bench.publish("t", qos=1)
    assert inbox.got == [("t", "x", 2, False)]


def test_at_a_session_s_end_another_member_gets_what_it_did_not_acknowledge() -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]"""
    bench = Bench(shared={"strategy": "sticky"})
    a, inbox_a = bench.open("a", window=2)
    bench.share(a, 2)
    bench.publish("t", "first", qos=1, by="p")
    bench.publish("t", "second", qos=2, by="p")
    bench.publish("t", "waiting", qos=2, by="p")
    assert [each[1] for each in inbox_a.got] == ["first", "second"]
    b, inbox_b = bench.open("b")
    bench.share(b, 1)
    bench.leave(a)
    assert inbox_b.take() == [("t", "first", 1, False), ("t", "waiting", 1, False)]
    bench.leave(b)
    assert bench.metrics.delivery_dropped_queue_full == 2  # nobody is left


@pytest.mark.parametrize("before", [0, 1])
def test_a_full_member_is_passed_over_for_one_whose_queue_has_room(before: int) -> None:
    bench = Bench(Limits(max_queued_messages=1, refuse_when_full=True), shared={"strategy": "round_robin_per_group"})
    bench.broker.refusing = True
    a, _ = bench.open("a", window=1)
    b, _ = bench.open("b", window=1)
    bench.share(a)
    bench.share(b)
    bench.subscribe(b, "own")
    for _ in range(before):
        bench.publish("t")
    while not a.inflight or not b.inflight:
        bench.publish("t")
    bench.subscribe(a, "own")
    bench.broker.unsubscribe(b, "own")
    bench.publish("own")
    assert (a.queued, b.queued) == (1, 0)
    bench.publish("t")
    assert (a.queued, b.queued) == (1, 1)
    bench.broker.unsubscribe(a, "own")
    assert bench.broker.would_refuse(Message("t", b"x", 1))
    bench.publish("t")  # to a client that cannot be refused, as a will cannot: somebody gets it
    assert (a.queued + b.queued, bench.metrics.delivery_dropped_queue_full) == (3, 0)  # and nothing goes for it


def test_what_expired_meanwhile_goes_to_no_other_member() -> None:
    """[MQTT-3.3.2-5]"""
    bench = Bench()
    first, _ = bench.open("first", expiry=100)
    bench.share(first)
    bench.leave(first)
    bench.publish("t", "old", properties={MESSAGE_EXPIRY_INTERVAL: 5})
    bench.publish("t", "good")
    second, inbox = bench.open("second")
    bench.share(second)
    bench.pass_time(100)
    assert inbox.got == [("t", "good", 1, False)]
    assert bench.metrics.delivery_dropped_expired == 1


def test_a_group_that_was_empty_meanwhile_is_the_same_group() -> None:
    bench = Bench()
    first, _ = bench.open("first", expiry=100)
    bench.share(first)
    bench.publish("t", "x")
    bench.broker.unsubscribe(first, "$share/g/t")
    second, inbox = bench.open("second")
    bench.share(second)
    bench.leave(first)
    bench.pass_time(100)
    assert inbox.got == [("t", "x", 1, False)]


def test_a_shared_member_that_is_offline_gets_it_where_nobody_is_online() -> None:
    bench = Bench()
    session, _ = bench.open("a", expiry=100)
    bench.share(session)
    bench.leave(session)
    assert bench.publish("t") == 1
    assert session.queued == 1


# --- refusing -------------------------------------------------------------------------------------------------------


def test_refusing_asks_every_matching_session() -> None:
    bench = Bench(Limits(max_queued_messages=1, refuse_when_full=True))
    session, _ = bench.open("a", window=1)
    bench.subscribe(session, "t", 1)
    for _ in range(2):
        bench.publish("t")
    message = Message("t", b"x", 1)
    assert not bench.broker.would_refuse(message)  # no zone refuses
    bench.broker.refusing = True
    assert bench.broker.would_refuse(message)
    assert not bench.broker.would_refuse(Message("u", b"x", 1))


def test_full_members_of_a_shared_subscription_are_passed_over() -> None:
    bench = Bench(Limits(max_queued_messages=1, refuse_when_full=True), shared={"strategy": "round_robin_per_group"})
    bench.broker.refusing = True
    a, inbox_a = bench.open("a", window=1)
    b, inbox_b = bench.open("b")
    bench.share(a)
    bench.share(b)
    message = Message("t", b"x", 1)
    for _ in range(10):
        assert not bench.broker.would_refuse(message)
        bench.publish("t")
    assert len(inbox_a.got) == 1 and a.queued <= 1
    assert len(inbox_b.got) >= 8
    b.window = 1
    for _ in range(2):
        bench.publish("t")
    assert (a.queued, b.queued) == (1, 1)
    assert bench.broker.would_refuse(message)
    assert bench.metrics.delivery_dropped == 0


# --- retained -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handling, existed, sent", [(0, False, 1), (0, True, 1), (1, False, 1), (1, True, 0), (2, False, 0), (2, True, 0)]
)
def test_retain_handling(handling: int, existed: bool, sent: int) -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11] [MQTT-3.8.4-3]"""
    bench = Bench()
    bench.publish("t", retain=True)
    session, inbox = bench.open()
    if existed:
        bench.subscribe(session, "t", retain_handling=2)
    bench.subscribe(session, "t", retain_handling=handling)
    assert inbox.got == [("t", "x", 1, True)] * sent


def test_retained_messages_are_replaced_and_removed() -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT-3.3.1-8]"""
    bench = Bench()
    bench.publish("t", "1", retain=True)
    bench.publish("t", "2", retain=True)
    bench.publish("t", "3")
    assert bench.metrics.messages_retained == 1
    session, inbox = bench.open()
    bench.subscribe(session, "t")
    assert inbox.take() == [("t", "2", 1, True)]
    bench.publish("t", "", retain=True)
    assert inbox.take() == [("t", "", 1, False)]
    assert bench.metrics.messages_retained == 0
    bench.subscribe(session, "t")
    assert inbox.take() == []


def test_a_shared_subscription_gets_no_retained_messages() -> None:
    bench = Bench()
    bench.publish("t", retain=True)
    session, inbox = bench.open()
    bench.share(session)
    assert inbox.got == []


@pytest.mark.parametrize(
    "settings, reason", [({"max_messages": 1}, "retained_full"), ({"max_payload_size": 3}, "retained_too_large")]
)
def test_a_retained_message_beyond_the_bounds_is_delivered_but_not_kept(
    settings: dict[str, int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(retained=settings)
    session, inbox = bench.open()
    bench.subscribe(session, "#")
    bench.publish("a", "x", retain=True)
    with caplog.at_level(logging.WARNING):
        bench.publish("b", "xxxx", retain=True)
    assert len(inbox.got) == 2
    assert bench.metrics.refusals.snapshot() == {reason: 1}
    assert f"setting=retained.{next(iter(settings))}" in caplog.text
    assert len(bench.broker.retained) == 1


def test_a_retained_message_is_judged_as_it_is_sent() -> None:
    """[MQTT-3.3.2-5] and No Local and ``check_source``; what changes before it is sent counts."""
    bench = Bench()
    for name in ("mine", "theirs", "denied", "cleared", "expired"):
        by = "me" if name == "mine" else name
        properties = {MESSAGE_EXPIRY_INTERVAL: 5} if name == "expired" else {}
        bench.publish(f"t/{name}", name, retain=True, by=by, properties=properties)
    bench.broker.retained_allowed = lambda message: message.publisher.client_id != "denied"
    session, inbox = bench.open("me")
    bench.broker.subscribe(session, Subscription(session, "t/+", 0, no_local=True))
    bench.clock.advance(5)
    bench.publish("t/cleared", "", retain=True)
    inbox.take()
    for _ in range(5):
        session.advance(bench.clock.time)
    assert inbox.got == [("t/theirs", "theirs", 0, True)]
    assert bench.metrics.refusals.snapshot() == {"retained_source_denied": 1}
    bench.broker.sweep_retained(bench.clock.advance(60), 100)
    assert bench.metrics.messages_retained == 3


def test_a_long_search_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WALK_STEPS", 5)
    bench = Bench()
    for number in range(20):
        bench.publish(f"{number}/a", retain=True)
    bench.publish("7/b", "found", retain=True)
    session, inbox = bench.open()
    bench.broker.subscribe(session, Subscription(session, "+/b", 0))
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
    bench = Bench()
    heard: list[Any] = []
    bench.hooks.session_subscribed.add(lambda client, subscription, new: heard.append((subscription.qos, new)))
    bench.hooks.session_unsubscribed.add(lambda client, subscription: heard.append(subscription.qos))
    session, _ = bench.open()
    bench.subscribe(session, "t", 0)
    bench.subscribe(session, "t", 1)
    assert not bench.broker.unsubscribe(session, "T")
    assert bench.broker.unsubscribe(session, "t")
    assert not bench.broker.unsubscribe(session, "t")
    assert heard == [(0, True), (1, False), 1]
    assert bench.broker.router.subscription_count == 0


def test_unsubscribing_stops_new_messages_and_keeps_old_ones() -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-3]"""
    bench = Bench()
    for number in range(5):
        bench.publish(f"r/{number}", retain=True)
    session, inbox = bench.open(window=1)
    bench.subscribe(session, "r/+", 1)
    bench.broker.unsubscribe(session, "r/+")
    bench.publish("r/1", "new")
    session.puback(1)
    session.advance(0)
    session.puback(2)
    session.advance(0)
    assert len(inbox.got) == 2  # one in flight, one that waited; no more of the search
    assert not session.busy


# --- sessions -------------------------------------------------------------------------------------------------------


def test_clean_start_makes_a_new_session_and_otherwise_the_old_one_goes_on() -> None:
    """[MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6]"""
    bench = Bench()
    first, _ = bench.open(expiry=100)
    assert not bench.present
    bench.subscribe(first, "t")
    bench.leave(first)
    bench.publish("t", "waits")
    second, inbox = bench.open(expiry=50)
    assert second is first and bench.present
    assert (second.expiry_interval, inbox.take()) == (50, [("t", "waits", 1, False)])
    bench.leave(second)
    third, inbox = bench.open(clean=True)
    assert third is not first and not bench.present
    bench.publish("t", "nobody")
    assert inbox.got == []
    assert bench.fired == [("created", first), ("resumed", first), ("discarded", first), ("created", third)]
    assert bench.broker.router.subscription_count == 0
    metrics = bench.metrics
    assert (metrics.session_created, metrics.session_resumed, metrics.session_discarded) == (2, 1, 1)
    assert metrics.session_terminated == 0


@pytest.mark.parametrize(
    "expiry, after, lives", [(0, 0, False), (10, 9.9, True), (10, 10, False), (NEVER_EXPIRES, 1e10, True)]
)
def test_a_session_lives_as_long_as_its_expiry_interval(expiry: int, after: float, lives: bool) -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]"""
    bench = Bench()
    session, _ = bench.open(expiry=expiry)
    bench.subscribe(session, "t")
    bench.pass_time(1000)  # connected: no interval runs [MQTT-4.1.0-1]
    bench.leave(session)
    bench.pass_time(after)
    assert ("c" in bench.broker.sessions) is lives
    assert bench.broker.router.subscription_count == lives
    if not lives:
        assert bench.fired[-1] == ("expired" if expiry else "normal", session)
        assert bench.metrics.session_terminated == 1


def test_a_reconnect_stops_the_expiry() -> None:
    bench = Bench()
    session, _ = bench.open(expiry=10)
    bench.leave(session)
    bench.pass_time(9)
    bench.open(expiry=10)
    bench.pass_time(100)
    assert "c" in bench.broker.sessions
    bench.leave(session)
    bench.pass_time(9)
    assert "c" in bench.broker.sessions
    assert session.disconnected_at == bench.clock.time - 9


def test_an_ended_session_ends_once() -> None:
    bench = Bench()
    session, _ = bench.open()
    bench.broker.end_session(session, "kicked", 0)
    bench.broker.end_session(session, "kicked", 0)
    assert bench.fired == [("created", session), ("kicked", session)]


# --- wills ----------------------------------------------------------------------------------------------------------


def test_the_will_comes_when_its_delay_or_the_session_is_over() -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10]: whichever is first, and once."""
    for delay, expiry in itertools.product((0, 3, 10), (0, 2, 3, 5, NEVER_EXPIRES)):
        bench = Bench()
        watcher, inbox = bench.open("watcher")
        bench.subscribe(watcher, "will")
        session, _ = bench.open(expiry=expiry)
        bench.pass_time(100)
        bench.leave(session, "bye", delay, "tcp_closed")
        due = min(delay, expiry)
        if due:
            bench.pass_time(due - 0.1)
            assert inbox.got == [], (delay, expiry)
            bench.pass_time(0.1)
        assert inbox.take() == [("will", "bye", 1, False)], (delay, expiry)
        bench.pass_time(100)
        assert inbox.got == [], (delay, expiry)
        assert session.will is None


def test_a_reconnect_within_the_delay_cancels_the_will() -> None:
    """[MQTT-3.1.3-9]"""
    bench = Bench()
    watcher, inbox = bench.open("watcher")
    bench.subscribe(watcher, "will")
    session, _ = bench.open(expiry=100)
    bench.leave(session, "bye", 10)
    bench.pass_time(9)
    bench.open(expiry=100)
    bench.pass_time(1000)
    assert inbox.got == []


def test_a_clean_start_within_the_delay_sends_the_will_at_once() -> None:
    """[MQTT-3.1.2-8]: the session has ended."""
    bench = Bench()
    watcher, inbox = bench.open("watcher")
    bench.subscribe(watcher, "will")
    session, _ = bench.open(expiry=100)
    bench.leave(session, "bye", 10)
    bench.open(clean=True)
    assert inbox.take() == [("will", "bye", 1, False)]
    bench.pass_time(1000)
    assert inbox.got == []


def test_the_message_expiry_of_a_will_counts_from_its_publication() -> None:
    bench = Bench()
    session, _ = bench.open(expiry=100)
    will = Message("will", b"bye", 0, True, {MESSAGE_EXPIRY_INTERVAL: 20})
    bench.broker.leave(session, will, 50, bench.clock.time, "tcp_closed")
    bench.pass_time(50)
    kept = bench.broker.retained.get("will")
    assert kept is not None and kept.expires_at == bench.clock.time + 20


def test_a_will_may_be_delayed() -> None:
    bench = Bench()
    taken: list[str] = []

    def delay(message: Message) -> bool:
        taken.append(message.topic)
        return message.topic == "will"

    bench.broker.delay = delay
    session, _ = bench.open()
    bench.leave(session, "bye")
    assert (taken, bench.metrics.messages_publish) == (["will"], 0)
    session, _ = bench.open()
    bench.broker.leave(session, Message("other"), 0, 0, "tcp_closed")
    assert bench.metrics.messages_publish == 1


# --- housekeeping ---------------------------------------------------------------------------------------------------


def test_the_sweep_drops_what_is_over(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    session, _ = bench.open(expiry=10_000)
    idle, _ = bench.open("idle")
    bench.subscribe(session, "t")
    session.receive2(1, bench.clock.time)
    session.receive2(2, bench.clock.time + 1)
    bench.leave(session)
    bench.publish("t", properties={MESSAGE_EXPIRY_INTERVAL: 5})
    bench.clock.advance(bench.zone.await_rel_timeout)
    bench.broker.sweep_sessions([session, idle], bench.clock.time)
    assert session.queued == 0
    assert bench.metrics.messages_dropped_await_pubrel_timeout == 0
    bench.clock.advance(0.5)
    with caplog.at_level(logging.WARNING):
        bench.broker.sweep_sessions([session, idle], bench.clock.time)
    assert session.awaiting_rel is not None and list(session.awaiting_rel) == [2]
    assert bench.metrics.messages_dropped_await_pubrel_timeout == 1
    assert "setting=await_rel_timeout" in caplog.text


@pytest.mark.parametrize("reason", ["queue_full", "qos0_msg", "expired", "too_large", "no_local"])
def test_every_dropped_delivery_is_counted_and_told(reason: str) -> None:
    bench = Bench()
    session, _ = bench.open()
    told: list[str] = []
    bench.broker.delivery_dropped(session, Delivery(Message("t"), 0), reason)
    bench.hooks.delivery_dropped.add(lambda client, session, message, why: told.append(why))
    bench.broker.delivery_dropped(session, Delivery(Message("t"), 0), reason)
    assert getattr(bench.metrics, f"delivery_dropped_{reason}") == bench.metrics.delivery_dropped == 2
    assert told == [reason]
