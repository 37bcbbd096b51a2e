"""Session: the send window, the queue, acknowledgements, reconnects, retained messages, the end."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.mqtt.constants import MAX_PACKET_ID, MESSAGE_EXPIRY_INTERVAL
from broker.mqtt.errors import ProtocolError
from broker.mqtt.message import Delivery, Message
from broker.session.inbound import DUPLICATE, FULL, NEW
from broker.session.limits import Limits
from broker.session.replay import REPLAY_SLICE
from broker.session.session import Session
from broker.session.subscription import Subscription
from tests.support.one_by_one import OneByOne


class Wire(OneByOne):
    """An outlet that writes down what it is given: (payload, QoS, Packet Identifier, DUP) or a PUBREL's identifier."""

    def __init__(self) -> None:
        self.writable = True
        self.sent: list[Any] = []
        self.retains: list[bool] = []
        self.too_large: set[str] = set()
        self.on_send: Any = None
        self.hurried: list[int] = []  # how many were sent when it had to hurry

    def hurry(self) -> None:
        self.hurried.append(len(self.sent))

    def send_publish0(self, message: Message) -> None:
        self.sent.append((message.payload.decode(), 0, 0, False))

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        payload = delivery.message.payload.decode()
        if payload in self.too_large:
            return False
        self.sent.append((payload, delivery.qos, packet_id, dup))
        self.retains.append(delivery.retain)
        if self.on_send is not None:
            self.on_send(delivery)
        return True

    def send_pubrel(self, packet_id: int) -> None:
        self.sent.append(packet_id)

    def take(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return sent


class Bench:
    """A session and its client; drops are written down as (payload, reason)."""

    def __init__(self, window: int = 0, connected: bool = True, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.dropped: list[tuple[str, str]] = []
        self.session = Session("c", self.limits, self, 0.0)
        self.wire = Wire()
        if connected:
            self.attach(window)

    def attach(self, window: int = 0, limits: Limits | None = None, now: float = 0.0) -> Wire:
        """A new connection; ``advance`` sends what is to be sent."""
        self.wire = Wire()
        self.session.attach(self.wire, window or 65_535, limits or self.limits, now)
        self.session.advance(now)
        return self.wire

    def deliver(self, payload: str, qos: int = 1, topic: str = "t", expiry: int | None = None, **options: Any) -> None:
        properties = {} if expiry is None else {MESSAGE_EXPIRY_INTERVAL: expiry}
        message = Message(topic, payload.encode(), qos, options.pop("retain", False), properties)
        self.session.deliver(message, Subscription(self.session, topic, options.pop("granted", 2), **options))

    def queued(self) -> list[str]:
        return [each.message.payload.decode() for each in self.session.queue or ()]

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        assert session is self.session
        self.dropped.append((delivery.message.payload.decode(), reason))


# --- what goes out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"identifiers": (1,)}], ids=["plain", "identified"])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("upgrade", [False, True])
def test_the_qos_is_the_lower_of_both(published: int, granted: int, upgrade: bool, options: dict[str, Any]) -> None:
    """[MQTT-3.8.4-8]; or the higher where the zone says so."""
    bench = Bench(upgrade_qos=upgrade)
    bench.deliver("x", published, granted=granted, **options)
    qos = max(published, granted) if upgrade else min(published, granted)
    assert bench.wire.sent == [("x", qos, 1 if qos else 0, False)]


@pytest.mark.parametrize("window, halves", [(15, []), (16, [8]), (32, [16])])
def test_a_client_with_nothing_in_flight_gets_half_a_window_first(window: int, halves: list[int]) -> None:
    bench = Bench(connected=False)
    for number in range(200):
        bench.deliver(str(number))
    wire = bench.attach(window)
    assert wire.hurried == halves and [each[0] for each in wire.take()] == [str(n) for n in range(window)]
    bench.session.puback(1, 2)
    bench.session.advance(0.0)
    assert wire.hurried == halves and len(wire.take()) == 2  # it has enough to do
    bench.session.puback(*range(3, window + 3))
    bench.session.advance(0.0)
    assert wire.hurried == halves * 2 and len(wire.take()) == window


@pytest.mark.parametrize("retain_as_published", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_travels_only_as_published(retain: bool, retain_as_published: bool) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    bench = Bench()
    bench.deliver("x", 1, retain=retain, retain_as_published=retain_as_published)
    assert bench.wire.retains == [retain and retain_as_published]


def test_identifiers_count_from_one_and_are_not_used_twice() -> None:
    """[MQTT-2.2.1-4]"""
    bench = Bench()
    for payload in "abc":
        bench.deliver(payload)
    assert [each[2] for each in bench.wire.take()] == [1, 2, 3]
    bench.session.puback(2)
    bench.session.last_packet_id = MAX_PACKET_ID - 1
    for payload in "def":
        bench.deliver(payload)
    assert [each[2] for each in bench.wire.take()] == [MAX_PACKET_ID, 2, 4]
    assert list(bench.session.inflight) == [1, 3, MAX_PACKET_ID, 2, 4]


def test_no_more_than_the_window_is_unacknowledged() -> None:
    """[MQTT-3.3.4-9]"""
    bench = Bench(window=2)
    for payload in "abcd":
        bench.deliver(payload)
    assert bench.wire.take() == [("a", 1, 1, False), ("b", 1, 2, False)]
    assert bench.queued() == ["c", "d"]
    assert (bench.session.queued, bench.session.busy, bench.session.ready) == (2, True, False)
    bench.session.puback(1)
    bench.session.advance(0)
    assert bench.wire.take() == [("c", 1, 3, False)]
    bench.session.puback(2)
    bench.session.puback(3)
    bench.session.advance(0)
    assert bench.wire.take() == [("d", 1, 4, False)]
    assert (bench.session.queue, bench.session.queued, bench.session.busy) == (None, 0, False)
    assert bench.session.ready


def test_a_full_socket_stops_the_window_and_the_queue() -> None:
    bench = Bench()
    bench.wire.writable = False
    bench.deliver("a")
    bench.session.advance(0)
    assert (bench.wire.sent, bench.session.ready) == ([], False)
    bench.wire.writable = True
    bench.session.advance(0)
    assert bench.wire.sent == [("a", 1, 1, False)]


def test_bytes_in_flight_are_bounded_but_one_always_goes() -> None:
    unit = len("t") + len(b"a")
    bench = Bench(max_inflight_bytes=2 * unit)
    bench.deliver("x" * 3 * unit)
    assert len(bench.wire.take()) == 1
    for payload in "abc":
        bench.deliver(payload)
    assert (bench.wire.take(), bench.queued()) == ([], ["a", "b", "c"])
    bench.session.puback(1)
    bench.session.advance(0)
    assert [each[0] for each in bench.wire.take()] == ["a", "b"]
    assert bench.session.inflight_bytes == 2 * unit
    bench.session.puback(2)
    bench.session.advance(0)
    assert [each[0] for each in bench.wire.take()] == ["c"]
    bench.session.puback(3)
    bench.session.puback(4)
    assert bench.session.inflight_bytes == 0


def test_what_the_client_cannot_take_counts_as_done() -> None:
    """[MQTT-3.1.2-25]"""
    bench = Bench(window=1, max_inflight_bytes=10_000)
    bench.wire.too_large = {"big", "huge"}
    bench.deliver("big")
    assert (bench.session.inflight, bench.session.inflight_bytes) == ({}, 0)
    bench.deliver("a")
    bench.deliver("huge")
    bench.deliver("b")
    bench.session.puback(1)
    bench.session.advance(0)
    assert bench.wire.sent == [("a", 1, 1, False), ("b", 1, 2, False)]


def test_what_is_published_while_sending_takes_its_own_identifier() -> None:
    """Who is told of a delivery may publish: [MQTT-2.2.1-4] holds for that too, and so does the window."""
    bench = Bench(window=2)

    def publish_more(delivery: Delivery) -> None:
        bench.wire.on_send = None
        bench.deliver("second")
        bench.deliver("third")

    bench.wire.on_send = publish_more
    bench.deliver("first")
    assert bench.wire.sent == [("first", 1, 1, False), ("second", 1, 2, False)]
    assert bench.queued() == ["third"]
    bench = Bench()
    bench.wire.too_large = {"first"}
    bench.session.observer = bench
    drops = []
    original = bench.wire.send_publish

    def refuse_and_publish(delivery: Delivery, packet_id: int, dup: bool) -> bool:
        if original(delivery, packet_id, dup):
            return True
        drops.append(packet_id)
        bench.deliver("told")
        return False

    bench.wire.send_publish = refuse_and_publish  # type: ignore[method-assign]
    bench.deliver("first")
    bench.deliver("next")
    assert bench.wire.sent == [("told", 1, 2, False), ("next", 1, 3, False)]
    assert drops == [1]


# --- QoS 0 ----------------------------------------------------------------------------------------------------------


def test_qos0_does_not_overtake_what_waits_of_its_topic() -> None:
    """[MQTT-4.6.0-6]"""
    bench = Bench(window=1)
    bench.deliver("a", 1)
    bench.deliver("b", 1)
    bench.deliver("c", 0)
    bench.deliver("d", 0, identifiers=(1,))
    bench.deliver("other", 0, topic="u")
    assert bench.wire.take() == [("a", 1, 1, False), ("other", 0, 0, False)]
    assert bench.queued() == ["b", "c", "d"]
    bench.session.puback(1)
    bench.session.advance(0)
    assert bench.wire.take() == [("b", 1, 2, False)]
    bench.session.puback(2)
    bench.session.advance(0)
    assert bench.wire.take() == [("c", 0, 0, False), ("d", 0, 0, False)]


def test_qos0_for_nobody_is_dropped_or_queued() -> None:
    bench = Bench(connected=False)
    bench.deliver("a", 0)
    bench.deliver("b", 0, identifiers=(1,))
    assert bench.dropped == [("a", "qos0_msg"), ("b", "qos0_msg")]
    bench = Bench(connected=False, queue_qos0=True)
    bench.deliver("a", 0)
    bench.deliver("b", 1)
    bench.deliver("c", 0)
    assert bench.attach().sent == [("a", 0, 0, False), ("b", 1, 1, False), ("c", 0, 0, False)]
    assert bench.dropped == []


# --- the queue ------------------------------------------------------------------------------------------------------


def test_a_full_queue_drops_its_oldest_and_says_so() -> None:
    bench = Bench(connected=False, max_queued_messages=2)
    for payload in "abc":
        bench.deliver(payload)
    assert (bench.dropped, bench.session.mqueue_dropped, bench.queued()) == ([("a", "queue_full")], 1, ["b", "c"])


def test_expired_messages_do_not_go_out() -> None:
    """[MQTT-3.3.2-5]"""
    bench = Bench(connected=False)
    bench.deliver("a", expiry=10)
    bench.deliver("b")
    bench.deliver("c", expiry=20)
    bench.session.expire_queued(9.9)
    assert (bench.queued(), bench.dropped) == (["a", "b", "c"], [])
    bench.session.expire_queued(10)
    assert (bench.queued(), bench.dropped) == (["b", "c"], [("a", "expired")])
    bench.attach(now=20)
    assert bench.wire.sent == [("b", 1, 1, False)]
    assert bench.dropped == [("a", "expired"), ("c", "expired")]
    bench = Bench(connected=False)
    bench.session.expire_queued(0)
    bench.deliver("a", expiry=1)
    bench.session.expire_queued(1)
    assert bench.session.queue is None


def test_priorities_come_from_the_limits() -> None:
    bench = Bench(connected=False, priorities={"high": 5}, default_priority=1)
    bench.deliver("a", topic="low")
    bench.deliver("b", topic="high")
    assert [each[0] for each in bench.attach().sent] == ["b", "a"]


@pytest.mark.parametrize(
    "limits, qos, granted, refuses",
    [
        ({"refuse_when_full": True, "max_queued_messages": 1}, 1, 1, True),
        ({"refuse_when_full": True, "max_queued_bytes": 300}, 1, 1, True),
        ({"refuse_when_full": True, "max_queued_messages": 2}, 1, 1, False),
        ({"refuse_when_full": True, "max_queued_messages": 1}, 0, 1, False),
        ({"refuse_when_full": True, "max_queued_messages": 1}, 1, 0, False),
        ({"refuse_when_full": False, "max_queued_messages": 1}, 1, 1, False),
    ],
)
def test_a_queue_that_refuses(limits: dict[str, Any], qos: int, granted: int, refuses: bool) -> None:
    bench = Bench(connected=False, **limits)
    message, subscription = Message("t", b"x", qos), Subscription(bench.session, "t", granted)
    assert not bench.session.would_refuse(message, subscription)
    bench.deliver("a", 1)
    assert bench.session.would_refuse(message, subscription) is refuses


# --- acknowledgements -----------------------------------------------------------------------------------------------


def test_puback_ends_a_qos1_delivery() -> None:
    bench = Bench()
    bench.deliver("a", 1)
    done = bench.session.puback(1)
    assert [each.message.payload for each in done] == [b"a"]
    assert bench.session.puback(1) == []
    assert bench.session.inflight == {}


def test_the_way_of_a_qos2_delivery() -> None:
    """[MQTT-4.3.3-1] [MQTT-4.3.3-5]: the identifier is in use from PUBLISH to PUBCOMP."""
    bench = Bench(window=1)
    bench.deliver("a", 2)
    bench.deliver("b", 2)
    known, delivery = bench.session.pubrec(1)
    assert known and delivery is not None and delivery.message.payload == b"a"
    assert bench.session.pubrec(1) == (True, None)
    bench.session.advance(0)
    assert len(bench.wire.sent) == 1  # the window is still full
    assert bench.session.pubcomp(1)
    assert not bench.session.pubcomp(1)
    assert bench.session.pubrec(1) == (False, None)
    bench.session.advance(0)
    assert bench.wire.sent[1:] == [("b", 2, 2, False)]


def test_a_refused_qos2_delivery_is_over() -> None:
    """[MQTT-4.4.0-2]"""
    bench = Bench(retry_interval=1.0)
    bench.deliver("a", 2)
    known, delivery = bench.session.pubrec(1, failed=True)
    assert known and delivery is not None
    assert (bench.session.inflight, bench.session.sent_at) == ({}, {})
    bench.deliver("b", 2)
    bench.session.pubrec(2)
    assert bench.session.pubrec(2, failed=True) == (True, None)
    assert (bench.session.inflight, bench.session.sent_at) == ({}, {})


def test_the_wrong_acknowledgement_is_an_error() -> None:
    bench = Bench()
    bench.deliver("a", 1)
    bench.deliver("b", 2)
    with pytest.raises(ProtocolError):
        bench.session.pubrec(1)
    with pytest.raises(ProtocolError):
        bench.session.pubcomp(1)
    with pytest.raises(ProtocolError):
        bench.session.puback(2)
    with pytest.raises(ProtocolError):
        bench.session.pubcomp(2)
    bench.session.pubrec(2)
    with pytest.raises(ProtocolError):
        bench.session.puback(2)


def test_messages_are_kept_for_completion_only_where_somebody_asks() -> None:
    session = Bench().session
    assert session.completion_of(1) is None
    message = Message("t")
    session.note_completion(1, message)
    session.note_completion(2, message)
    assert session.completion_of(1) is message
    assert session.completion_of(1) is None
    assert session.completions == {2: message}


# --- inbound QoS 2 --------------------------------------------------------------------------------------------------


def test_an_inbound_identifier_is_one_message_until_it_is_released() -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12]"""
    session = Bench(max_awaiting_rel=2).session
    assert [session.receive2(packet_id, 0) for packet_id in (1, 1, 2, 3, 1)] == [NEW, DUPLICATE, NEW, FULL, DUPLICATE]
    assert session.release(1)
    assert not session.release(1)
    assert session.receive2(3, 0) == NEW
    assert session.release(2) and session.release(3)
    assert session.awaiting_rel is None
    assert not session.release(3)
    unbounded = Bench(max_awaiting_rel=0).session
    assert all(unbounded.receive2(packet_id, 0) == NEW for packet_id in range(1, 1000))


def test_identifiers_never_released_are_forgotten() -> None:
    session = Bench().session
    assert session.forget_unreleased(100) == 0
    for packet_id in (1, 2, 3):
        session.receive2(packet_id, float(packet_id))
    assert session.forget_unreleased(3) == 2
    assert session.receive2(3, 9) == DUPLICATE
    assert session.receive2(1, 9) == NEW


# --- reconnects -----------------------------------------------------------------------------------------------------


def test_a_reconnect_repeats_in_order_with_dup_before_anything_new() -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1] [MQTT-4.3.3-3] [MQTT-4.3.3-6]"""
    bench = Bench()
    for payload, qos in (("a", 1), ("b", 2), ("c", 2), ("d", 1)):
        bench.deliver(payload, qos)
    bench.session.pubrec(2)
    bench.session.detach()
    assert not bench.session.connected
    bench.deliver("e", 1)
    assert bench.attach().sent == [("a", 1, 1, True), ("c", 2, 3, True), ("d", 1, 4, True), 2, ("e", 1, 5, False)]


def test_a_smaller_receive_maximum_holds_for_retransmissions_too() -> None:
    """[MQTT-3.3.4-9]"""
    bench = Bench()
    for payload in "abc":
        bench.deliver(payload, 2)
    bench.session.pubrec(1)
    bench.session.detach()
    wire = bench.attach(window=1)
    assert wire.take() == [("b", 2, 2, True)]
    bench.deliver("d")
    assert bench.queued() == ["d"]
    bench.session.pubrec(2)
    bench.session.advance(0)
    assert wire.take() == []
    bench.session.pubcomp(2)
    bench.session.advance(0)
    assert wire.take() == [("c", 2, 3, True), 1]
    bench.session.pubcomp(1)
    bench.session.advance(0)
    assert wire.take() == []
    bench.session.pubrec(3)
    bench.session.pubcomp(3)
    bench.session.advance(0)
    assert wire.take() == [("d", 1, 4, False)]


def test_retransmission_waits_for_the_socket() -> None:
    bench = Bench()
    bench.deliver("a")
    bench.session.detach()
    wire = Wire()
    wire.writable = False
    bench.session.attach(wire, 10, bench.limits, 0)
    bench.session.advance(0)
    assert (wire.sent, bench.session.busy) == ([], True)
    wire.writable = True
    bench.session.advance(0)
    assert (wire.sent, bench.session.busy) == ([("a", 1, 1, True)], False)


def test_an_acknowledgement_ahead_of_the_retransmission() -> None:
    bench = Bench()
    for payload in "abcd":
        bench.deliver(payload, 2)
    bench.session.pubrec(3)
    bench.session.pubrec(4)
    bench.session.detach()
    wire = bench.attach(window=1)
    assert bench.session.pubcomp(3)  # its PUBREL has not gone out again yet
    assert bench.session.pubrec(4, failed=True) == (True, None)
    bench.session.advance(0)
    assert wire.take() == [("a", 2, 1, True)]
    known, delivery = bench.session.pubrec(2)
    assert known and delivery is not None
    bench.session.advance(0)
    bench.session.pubrec(1)
    bench.session.pubcomp(1)
    bench.session.advance(0)
    assert bench.session.pubcomp(2)
    assert (bench.session.inflight, bench.session._resend) == ({}, None)


def test_a_retransmission_that_the_new_client_cannot_take_is_done() -> None:
    bench = Bench()
    for payload in ("a", "big", "c"):
        bench.deliver(payload)
    bench.session.detach()
    wire = bench.wire = Wire()
    wire.too_large = {"big"}
    bench.session.attach(wire, 10, bench.limits, 0)
    bench.session.advance(0)
    assert wire.sent == [("a", 1, 1, True), ("c", 1, 3, True)]
    assert list(bench.session.inflight) == [1, 3]


def test_the_limits_of_a_new_connection_hold() -> None:
    bench = Bench(connected=False, max_queued_messages=10)
    for payload in "abc":
        bench.deliver(payload)
    bench.attach(window=1)
    bench.session.detach()
    size = len("t") + len(b"a")
    bench.attach(1, Limits(max_queued_messages=2, retry_interval=5, max_inflight_bytes=size), now=50)
    assert bench.session.sent_at == {1: 50}
    assert bench.session.inflight_bytes == size
    bench.deliver("d")
    assert bench.dropped == [("b", "queue_full")]
    bench.session.puback(1)
    assert bench.session.inflight_bytes == 0
    bench.session.detach()
    bench.attach(1, Limits(), now=60)
    assert bench.session.sent_at is None


def test_what_a_reconnect_repeats_counts_as_sent_then() -> None:
    bench = Bench(retry_interval=5)
    bench.deliver("a")
    bench.session.detach()
    bench.attach(now=100)
    assert bench.wire.take() == [("a", 1, 1, True)]
    bench.session.retransmit_older(95, 100)
    assert bench.wire.take() == []


def test_nothing_is_sent_while_nobody_is_there() -> None:
    bench = Bench(connected=False)
    bench.deliver("a")
    bench.session.advance(0)
    bench.session.retransmit_older(0, 0)
    assert (bench.queued(), bench.session.connected, bench.session.ready) == (["a"], False, False)


# --- the retry interval of 3.x --------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_in_time_is_sent_again() -> None:
    bench = Bench(retry_interval=10)
    bench.session.advance(100)
    for payload, qos in (("a", 1), ("b", 2), ("c", 2)):
        bench.deliver(payload, qos)
    bench.session.pubrec(3)
    bench.wire.take()
    bench.session.retransmit_older(100, 109)
    assert bench.wire.take() == []
    bench.session.puback(1)
    bench.session.retransmit_older(101, 111)
    assert bench.wire.take() == [("b", 2, 2, True), 3]
    bench.session.retransmit_older(102, 112)
    assert bench.wire.take() == []  # it was sent at 111
    bench.wire.writable = False
    bench.session.retransmit_older(200, 210)
    assert bench.wire.take() == []
    bench.session.pubcomp(3)
    assert bench.session.sent_at == {2: 111}


def test_the_retry_interval_waits_for_the_reconnect_s_own_retransmissions() -> None:
    bench = Bench(retry_interval=10)
    bench.deliver("a")
    bench.deliver("b")
    bench.session.detach()
    bench.attach(window=1)
    bench.wire.take()
    bench.session.retransmit_older(1000, 1000)
    assert bench.wire.take() == []
    bench = Bench()
    bench.deliver("a")
    bench.wire.take()
    bench.session.retransmit_older(1000, 1000)
    assert bench.wire.take() == []


# --- retained messages ----------------------------------------------------------------------------------------------


def retained(count: int, qos: int = 0) -> list[Message]:
    return [Message(f"r/{number}", b"%d" % number, qos, True) for number in range(count)]


def replay(bench: Bench, messages: Iterator[Message | None], qos: int = 2, filter: str = "r/#", **options: Any) -> None:
    bench.session.replay(messages, Subscription(bench.session, filter, qos, **options))


def test_retained_messages_go_out_with_retain_and_the_lower_qos() -> None:
    """[MQTT-3.3.1-8] [MQTT-3.8.4-8]"""
    bench = Bench()
    replay(bench, iter([*retained(1, 2), *retained(1, 0)]), 1, identifiers=(1,))
    bench.session.advance(0)
    assert bench.wire.sent == [("0", 1, 1, False), ("0", 0, 0, False)]
    assert bench.wire.retains == [True, True]
    assert (bench.session.replays, bench.session.replaying) == (None, False)
    bench = Bench(upgrade_qos=True)
    replay(bench, iter(retained(1, 0)), 2)
    bench.session.advance(0)
    assert bench.wire.sent == [("0", 2, 1, False)]


def test_retained_messages_come_in_slices_and_a_none_is_a_pause() -> None:
    bench = Bench()
    count = REPLAY_SLICE + 3
    replay(bench, iter([None, *retained(2), None, *retained(count)]))
    for expected in (0, 2, REPLAY_SLICE, 3):
        assert bench.session.replaying
        bench.session.advance(0)
        assert len(bench.wire.take()) == expected
    assert not bench.session.replaying


def test_retained_messages_keep_to_the_window_whatever_the_queue_s_bound() -> None:
    """[MQTT-3.3.4-9]: none is lost, though the queue holds hardly one."""
    bench = Bench(window=2, max_queued_messages=1, max_queued_bytes=1)
    replay(bench, iter(retained(5, 1)))
    bench.session.advance(0)
    assert [each[0] for each in bench.wire.take()] == ["0", "1"]
    assert not bench.session.replaying  # nothing but an acknowledgement helps now
    assert bench.queued() == ["2"]
    bench.session.advance(0)
    assert bench.wire.take() == []
    seen = []
    for packet_id in range(1, 6):
        assert bench.session.puback(packet_id)
        bench.session.advance(0)
        seen += [each[0] for each in bench.wire.take()]
    assert (seen, bench.dropped, bench.session.busy) == (["2", "3", "4"], [], False)


def test_retained_messages_wait_for_the_socket_the_bytes_in_flight_and_retransmissions() -> None:
    bench = Bench()
    bench.wire.writable = False
    replay(bench, iter(retained(3, 0)))
    bench.session.advance(0)
    bench.session.advance(0)
    assert bench.wire.take() == []  # not even one for each call: the outbox is bounded and would drop it
    bench.wire.writable = True
    bench.session.advance(0)
    assert len(bench.wire.take()) == 3

    bench = Bench(max_inflight_bytes=1)
    replay(bench, iter(retained(3, 1)))
    bench.session.advance(0)
    assert [each[0] for each in bench.wire.take()] == ["0"]
    bench.session.puback(1)
    bench.session.advance(0)
    assert [each[0] for each in bench.wire.take()] == ["1"]

    bench = Bench()
    bench.deliver("a")
    bench.deliver("b")
    bench.session.detach()
    bench.attach(window=1)
    replay(bench, iter(retained(1, 1)))
    bench.session.advance(0)
    assert bench.wire.take() == [("a", 1, 1, True)]
    for packet_id in (1, 2):
        bench.session.puback(packet_id)
        bench.session.advance(0)
    assert bench.wire.take() == [("b", 1, 2, True), ("0", 1, 3, False)]


def test_retained_messages_follow_what_is_queued() -> None:
    bench = Bench(window=1)
    bench.deliver("a")
    bench.deliver("b")
    bench.wire.take()
    replay(bench, iter(retained(1, 1)))
    bench.session.advance(0)
    assert bench.wire.take() == []
    for packet_id in (1, 2):
        bench.session.puback(packet_id)
        bench.session.advance(0)
    assert [each[0] for each in bench.wire.take()] == ["b", "0"]


def test_one_replay_for_each_filter() -> None:
    """Subscribing again and again costs no more memory than subscribing once; the last one is complete."""
    bench = Bench(window=1)
    for _ in range(100):
        replay(bench, iter(retained(2, 1)), filter="a")
        replay(bench, iter(retained(1, 1)), filter="b")
        bench.session.advance(0)
    assert bench.session.replays is not None and len(bench.session.replays) == 2


def test_unsubscribing_stops_it() -> None:
    """[MQTT-3.10.4-2]"""
    bench = Bench(window=1)
    bench.session.stop_replay("a")
    replay(bench, iter(retained(9, 1)), filter="a")
    replay(bench, iter(retained(1, 1)), filter="b")
    bench.session.advance(0)
    bench.session.stop_replay("c")
    bench.session.stop_replay("a")
    assert bench.session.replays is not None and len(bench.session.replays) == 1
    bench.session.stop_replay("b")
    assert bench.session.replays is None


# --- the end --------------------------------------------------------------------------------------------------------


def test_what_shared_subscriptions_get_back() -> None:
    """[MQTT-4.8.2-5]: a QoS 2 delivery that was begun dies with its session."""
    bench = Bench(window=3, queue_qos0=True)
    group = "$share/g/t"

    def shared(payload: str, qos: int) -> None:
        bench.session.deliver_shared(Delivery(Message("t", payload.encode(), qos), qos, group=group))

    shared("a", 1)
    shared("b", 2)
    bench.deliver("own", 1)
    shared("c", 1)
    shared("d", 2)
    shared("e", 0)
    bench.deliver("own too", 1)
    bench.session.receive2(1, 0)
    assert [each.message.payload for each in bench.session.end()] == [b"a", b"c", b"d", b"e"]
    session = bench.session
    assert (session.inflight, session.queue, session.awaiting_rel, session.outlet) == ({}, None, None, None)
    bench = Bench()
    bench.deliver("own", 1)
    assert bench.session.end() == []


def test_a_shared_qos0_delivery() -> None:
    bench = Bench()
    bench.session.deliver_shared(Delivery(Message("t", b"a"), 0))
    assert bench.wire.sent == [("a", 0, 0, False)]


def test_it_says_who_it_is() -> None:
    assert repr(Bench().session) == "Session('c', connected)"
    assert repr(Bench(connected=False).session) == "Session('c', offline)"
