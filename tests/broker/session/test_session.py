"""Session: the send window, the queue, acknowledgements, reconnects, retained messages, the end."""

from collections.abc import Iterable
from typing import Any

import pytest

from taipan.broker.mqtt.constants import MAX_PACKET_ID, MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.errors import ProtocolError
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.run import Run
from taipan.broker.session import inbound_qos2
from taipan.broker.session.acceptance import may_refuse, would_refuse
from taipan.broker.session.inbound_qos2 import DUPLICATE, FULL, NEW
from taipan.broker.session.limits import Limits
from taipan.broker.session.outbound_acks import completion_of, note_completion, puback, pubcomp, pubrec
from taipan.broker.session.queue import expire_queued
from taipan.broker.session.replay import MOST_REPEATS, REPLAY_SLICE, ReplayBudget
from taipan.broker.session.resend import retransmit_older
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.support.one_by_one import OneByOne
from tests.support.sessions import make_session


class Wire(OneByOne):
    """A writer that writes down what it is given: (payload, QoS, Packet Identifier, DUP) or a PUBREL's identifier."""

    def __init__(self) -> None:
        self.writable = True
        self.sent: list[Any] = []
        self.retains: list[bool] = []
        self.too_large: set[str] = set()
        self.on_send: Any = None
        self.hurried: list[int] = []  # how many were sent when it had to hurry

    def flush_now(self) -> None:
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


class SessionHarness:
    """A session and its client; drops are written down as (payload, reason)."""

    def __init__(self, window: int = 0, connected: bool = True, client_id: str = "c", **limits: Any) -> None:
        self.limits = Limits(**limits)
        self.dropped: list[tuple[str, str]] = []
        self.session = make_session(client_id, self.limits, self)
        self.wire = Wire()
        if connected:
            self.attach(window)

    def attach(self, window: int = 0, limits: Limits | None = None, now: float = 0.0) -> Wire:
        """A new connection; ``advance`` sends what is to be sent."""
        self.wire = Wire()
        self.session.attach(self.wire, window or 65_535, limits or self.limits, now, packets=self.wire)
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
    harness = SessionHarness(upgrade_qos=upgrade)
    harness.deliver("x", published, granted=granted, **options)
    qos = max(published, granted) if upgrade else min(published, granted)
    assert harness.wire.sent == [("x", qos, 1 if qos else 0, False)]


@pytest.mark.parametrize("window, halves", [(15, []), (16, [8]), (32, [16])])
def test_a_client_with_nothing_in_flight_gets_half_a_window_first(window: int, halves: list[int]) -> None:
    harness = SessionHarness(connected=False)
    for number in range(200):
        harness.deliver(str(number))
    wire = harness.attach(window)
    assert wire.hurried == halves and [each[0] for each in wire.take()] == [str(n) for n in range(window)]
    puback(harness.session, 1, 2)
    harness.session.advance(0.0)
    assert wire.hurried == halves and len(wire.take()) == 2  # it has enough to do
    puback(harness.session, *range(3, window + 3))
    harness.session.advance(0.0)
    assert wire.hurried == halves * 2 and len(wire.take()) == window


@pytest.mark.parametrize("retain_as_published", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_retain_travels_only_as_published(retain: bool, retain_as_published: bool) -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    harness = SessionHarness()
    harness.deliver("x", 1, retain=retain, retain_as_published=retain_as_published)
    assert harness.wire.retains == [retain and retain_as_published]


def test_identifiers_count_from_one_and_are_not_used_twice() -> None:
    """[MQTT-2.2.1-4]"""
    harness = SessionHarness()
    for payload in "abc":
        harness.deliver(payload)
    assert [each[2] for each in harness.wire.take()] == [1, 2, 3]
    puback(harness.session, 2)
    harness.session.last_packet_id = MAX_PACKET_ID - 1
    for payload in "def":
        harness.deliver(payload)
    assert [each[2] for each in harness.wire.take()] == [MAX_PACKET_ID, 2, 4]
    assert list(harness.session.inflight) == [1, 3, MAX_PACKET_ID, 2, 4]


def test_no_more_than_the_window_is_unacknowledged() -> None:
    """[MQTT-3.3.4-9]"""
    harness = SessionHarness(window=2)
    for payload in "abcd":
        harness.deliver(payload)
    assert harness.wire.take() == [("a", 1, 1, False), ("b", 1, 2, False)]
    assert harness.queued() == ["c", "d"]
    assert (harness.session.queued, harness.session.busy, harness.session.ready) == (2, True, False)
    puback(harness.session, 1)
    harness.session.advance(0)
    assert harness.wire.take() == [("c", 1, 3, False)]
    puback(harness.session, 2)
    puback(harness.session, 3)
    harness.session.advance(0)
    assert harness.wire.take() == [("d", 1, 4, False)]
    assert (harness.session.queue, harness.session.queued, harness.session.busy) == (None, 0, False)
    assert harness.session.ready


def test_a_full_socket_stops_the_window_and_the_queue() -> None:
    harness = SessionHarness()
    harness.wire.writable = False
    harness.deliver("a")
    harness.session.advance(0)
    assert (harness.wire.sent, harness.session.ready) == ([], False)
    harness.wire.writable = True
    harness.session.advance(0)
    assert harness.wire.sent == [("a", 1, 1, False)]


def test_what_the_client_cannot_take_counts_as_done() -> None:
    """[MQTT-3.1.2-25]"""
    harness = SessionHarness(window=1)
    harness.wire.too_large = {"big", "huge"}
    harness.deliver("big")
    assert harness.session.inflight == {}
    harness.deliver("a")
    harness.deliver("huge")
    harness.deliver("b")
    puback(harness.session, 1)
    harness.session.advance(0)
    assert harness.wire.sent == [("a", 1, 1, False), ("b", 1, 3, False)]


def test_what_is_published_while_sending_takes_its_own_identifier() -> None:
    """Who is told of a delivery may publish: [MQTT-2.2.1-4] holds for that too, and so does the window."""
    harness = SessionHarness(window=2)

    def publish_more(delivery: Delivery) -> None:
        harness.wire.on_send = None
        harness.deliver("second")
        harness.deliver("third")

    harness.wire.on_send = publish_more
    harness.deliver("first")
    assert harness.wire.sent == [("first", 1, 1, False), ("second", 1, 2, False)]
    assert harness.queued() == ["third"]
    harness = SessionHarness()
    harness.wire.too_large = {"first"}
    harness.session.observer = harness
    drops = []
    original = harness.wire.send_publish

    def refuse_and_publish(delivery: Delivery, packet_id: int, dup: bool) -> bool:
        if original(delivery, packet_id, dup):
            return True
        drops.append(packet_id)
        harness.deliver("told")
        return False

    harness.wire.send_publish = refuse_and_publish  # type: ignore[method-assign]
    harness.deliver("first")
    harness.deliver("next")
    assert harness.wire.sent == [("told", 1, 2, False), ("next", 1, 3, False)]
    assert drops == [1]


# --- QoS 0 ----------------------------------------------------------------------------------------------------------


def test_qos0_does_not_overtake_what_waits_of_its_topic() -> None:
    """[MQTT-4.6.0-6]"""
    harness = SessionHarness(window=1)
    harness.deliver("a", 1)
    harness.deliver("b", 1)
    harness.deliver("c", 0)
    harness.deliver("d", 0, identifiers=(1,))
    harness.deliver("other", 0, topic="u")
    assert harness.wire.take() == [("a", 1, 1, False), ("other", 0, 0, False)]
    assert harness.queued() == ["b", "c", "d"]
    puback(harness.session, 1)
    harness.session.advance(0)
    assert harness.wire.take() == [("b", 1, 2, False)]
    puback(harness.session, 2)
    harness.session.advance(0)
    assert harness.wire.take() == [("c", 0, 0, False), ("d", 0, 0, False)]


def test_qos0_overtakes_nothing_on_its_way_to_another_node() -> None:
    harness = SessionHarness(window=1, client_id="\0link:n2@127.0.0.1")
    harness.deliver("a", 1)
    harness.deliver("b", 1)
    harness.deliver("c", 0, topic="u")
    harness.session.deliver_run(
        Run("v", 0, [Message("v", b"d", 0), Message("v", b"e", 0)]), Subscription(harness.session, "#", 1)
    )
    assert harness.wire.take() == [("a", 1, 1, False)]
    assert harness.queued() == ["b", "c", "d", "e"]
    harness.attach(window=1)
    harness.deliver("f", 0, topic="u")
    harness.session.deliver_run(Run("v", 0, [Message("v", b"g", 0)]), Subscription(harness.session, "#", 1))
    assert harness.wire.take() == [("a", 1, 1, True)]
    puback(harness.session, 1)
    harness.session.advance(0)
    puback(harness.session, 2)
    harness.session.advance(0)
    assert [each[0] for each in harness.wire.take()] == ["b", "c", "d", "e", "f", "g"]


def test_qos0_does_not_overtake_what_is_sent_again_to_another_node() -> None:
    harness = SessionHarness(window=2, client_id="\0link:n2@127.0.0.1")
    harness.deliver("a", 1)
    harness.deliver("b", 1)
    session = harness.session
    session.detach()
    wire = harness.wire = Wire()
    wire.writable = False
    session.attach(wire, 65_535, harness.limits, 0.0, packets=wire)
    harness.deliver("c", 0, topic="u")
    session.deliver_run(Run("v", 0, [Message("v", b"d", 0)]), Subscription(session, "#", 1))
    wire.writable = True
    session.advance(0)
    assert [each[0] for each in wire.take()] == ["a", "b", "c", "d"]


def test_qos0_for_nobody_is_dropped_or_queued() -> None:
    harness = SessionHarness(connected=False)
    harness.deliver("a", 0)
    harness.deliver("b", 0, identifiers=(1,))
    assert harness.dropped == [("a", "qos0_msg"), ("b", "qos0_msg")]
    harness = SessionHarness(connected=False, queue_qos0=True)
    harness.deliver("a", 0)
    harness.deliver("b", 1)
    harness.deliver("c", 0)
    assert harness.attach().sent == [("a", 0, 0, False), ("b", 1, 1, False), ("c", 0, 0, False)]
    assert harness.dropped == []


# --- the queue ------------------------------------------------------------------------------------------------------


def test_a_full_queue_drops_its_oldest_and_says_so() -> None:
    harness = SessionHarness(connected=False, max_queued_messages=2)
    for payload in "abc":
        harness.deliver(payload)
    assert (harness.dropped, harness.session.mqueue_dropped, harness.queued()) == ([("a", "queue_full")], 1, ["b", "c"])


def test_expired_messages_do_not_go_out() -> None:
    """[MQTT-3.3.2-5]"""
    harness = SessionHarness(connected=False)
    harness.deliver("a", expiry=10)
    harness.deliver("b")
    harness.deliver("c", expiry=20)
    expire_queued(harness.session, 9.9)
    assert (harness.queued(), harness.dropped) == (["a", "b", "c"], [])
    expire_queued(harness.session, 10)
    assert (harness.queued(), harness.dropped) == (["b", "c"], [("a", "expired")])
    harness.attach(now=20)
    assert harness.wire.sent == [("b", 1, 1, False)]
    assert harness.dropped == [("a", "expired"), ("c", "expired")]
    harness = SessionHarness(connected=False)
    expire_queued(harness.session, 0)
    harness.deliver("a", expiry=1)
    expire_queued(harness.session, 1)
    assert harness.session.queue is None


def test_priorities_come_from_the_limits() -> None:
    harness = SessionHarness(connected=False, priorities={"high": 5}, default_priority=1)
    harness.deliver("a", topic="low")
    harness.deliver("b", topic="high")
    assert [each[0] for each in harness.attach().sent] == ["b", "a"]


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
    harness = SessionHarness(connected=False, **limits)
    message, subscription = Message("t", b"x", qos), Subscription(harness.session, "t", granted)
    assert not would_refuse(harness.session, message, subscription)
    harness.deliver("a", 1)
    assert would_refuse(harness.session, message, subscription) is refuses


def test_a_run_that_may_not_fit_is_not_taken_as_one() -> None:
    run = Run("t", 1, [Message("t", b"x" * 10, 1) for _ in range(3)])
    size = Delivery(run.messages[0], 1).size
    for limits, window, refuses in (
        ({"refuse_when_full": True, "max_queued_messages": 3}, 1, False),
        ({"refuse_when_full": True, "max_queued_messages": 2}, 1, True),
        ({"refuse_when_full": True, "max_queued_messages": 2}, 3, False),  # all go out
        ({"refuse_when_full": True, "max_queued_bytes": 3 * size}, 1, False),
        ({"refuse_when_full": True, "max_queued_bytes": 3 * size - 1}, 1, True),
        ({"refuse_when_full": False, "max_queued_messages": 2}, 1, False),
    ):
        harness = SessionHarness(window, **limits)
        assert may_refuse(harness.session, run) is refuses
    away = SessionHarness(connected=False, refuse_when_full=True, max_queued_messages=4)
    away.session.deliver_run(run, Subscription(away.session, "t", 1))
    assert away.session.queued == 3 and may_refuse(away.session, run)
    run.keep(1)
    assert not may_refuse(away.session, run)


@pytest.mark.parametrize(("qos", "granted"), [(0, 1), (1, 0), (1, 1)])
def test_a_run_is_sent_as_its_messages_are(qos: int, granted: int) -> None:
    run = Run("t", qos, [Message("t", b"%d" % number, qos) for number in range(3)])
    one, other = SessionHarness(2), SessionHarness(2)
    one.session.deliver_run(run, Subscription(one.session, "t", granted))
    for message in run.messages:
        other.session.deliver(message, Subscription(other.session, "t", granted))
    assert one.wire.sent == other.wire.sent != []
    assert one.session.queued == other.session.queued == (1 if qos and granted else 0)
    assert list(one.session.inflight) == list(other.session.inflight)


# --- acknowledgements -----------------------------------------------------------------------------------------------


def test_puback_ends_a_qos1_delivery() -> None:
    harness = SessionHarness()
    harness.deliver("a", 1)
    done = puback(harness.session, 1)
    assert [each.message.payload for each in done] == [b"a"]
    assert puback(harness.session, 1) == []
    assert harness.session.inflight == {}


def test_the_way_of_a_qos2_delivery() -> None:
    """[MQTT-4.3.3-1] [MQTT-4.3.3-5]: the identifier is in use from PUBLISH to PUBCOMP."""
    harness = SessionHarness(window=1)
    harness.deliver("a", 2)
    harness.deliver("b", 2)
    known, delivery = pubrec(harness.session, 1)
    assert known and delivery is not None and delivery.message.payload == b"a"
    assert pubrec(harness.session, 1) == (True, None)
    harness.session.advance(0)
    assert len(harness.wire.sent) == 1  # the window is still full
    assert pubcomp(harness.session, 1)
    assert not pubcomp(harness.session, 1)
    assert pubrec(harness.session, 1) == (False, None)
    harness.session.advance(0)
    assert harness.wire.sent[1:] == [("b", 2, 2, False)]


def test_a_refused_qos2_delivery_is_over() -> None:
    """[MQTT-4.4.0-2]"""
    harness = SessionHarness(retry_interval=1.0)
    harness.deliver("a", 2)
    known, delivery = pubrec(harness.session, 1, failed=True)
    assert known and delivery is not None
    assert (harness.session.inflight, harness.session.sent_at) == ({}, {})
    harness.deliver("b", 2)
    pubrec(harness.session, 2)
    assert pubrec(harness.session, 2, failed=True) == (True, None)
    assert (harness.session.inflight, harness.session.sent_at) == ({}, {})


def test_the_wrong_acknowledgement_is_an_error() -> None:
    harness = SessionHarness()
    harness.deliver("a", 1)
    harness.deliver("b", 2)
    with pytest.raises(ProtocolError):
        pubrec(harness.session, 1)
    with pytest.raises(ProtocolError):
        pubcomp(harness.session, 1)
    with pytest.raises(ProtocolError):
        puback(harness.session, 2)
    with pytest.raises(ProtocolError):
        pubcomp(harness.session, 2)
    pubrec(harness.session, 2)
    with pytest.raises(ProtocolError):
        puback(harness.session, 2)


def test_messages_are_kept_for_completion_only_where_somebody_asks() -> None:
    session = SessionHarness().session
    assert completion_of(session, 1) is None
    message = Message("t")
    note_completion(session, 1, message)
    note_completion(session, 2, message)
    assert completion_of(session, 1) is message
    assert completion_of(session, 1) is None
    assert session.completions == {2: message}


# --- inbound QoS 2 --------------------------------------------------------------------------------------------------


def test_an_inbound_identifier_is_one_message_until_it_is_released() -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12]"""
    session = SessionHarness(max_awaiting_rel=2).session
    outcomes = [inbound_qos2.receive(session, packet_id, 0) for packet_id in (1, 1, 2, 3, 1)]
    assert outcomes == [NEW, DUPLICATE, NEW, FULL, DUPLICATE]
    assert inbound_qos2.release(session, 1)
    assert not inbound_qos2.release(session, 1)
    assert inbound_qos2.receive(session, 3, 0) == NEW
    assert inbound_qos2.release(session, 2) and inbound_qos2.release(session, 3)
    assert session.awaiting_rel is None
    assert not inbound_qos2.release(session, 3)
    unbounded = SessionHarness(max_awaiting_rel=0).session
    assert all(inbound_qos2.receive(unbounded, packet_id, 0) == NEW for packet_id in range(1, 1000))


def test_identifiers_never_released_are_forgotten() -> None:
    session = SessionHarness().session
    assert inbound_qos2.drop_unreleased(session, 100) == 0
    for packet_id in (1, 2, 3):
        inbound_qos2.receive(session, packet_id, float(packet_id))
    assert inbound_qos2.drop_unreleased(session, 3) == 2
    assert inbound_qos2.receive(session, 3, 9) == DUPLICATE
    assert inbound_qos2.receive(session, 1, 9) == NEW


# --- reconnects -----------------------------------------------------------------------------------------------------


def test_a_reconnect_repeats_in_order_with_dup_before_anything_new() -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-3.3.1-1] [MQTT-4.3.3-3] [MQTT-4.3.3-6]"""
    harness = SessionHarness()
    for payload, qos in (("a", 1), ("b", 2), ("c", 2), ("d", 1)):
        harness.deliver(payload, qos)
    pubrec(harness.session, 2)
    harness.session.detach()
    assert not harness.session.connected
    harness.deliver("e", 1)
    assert harness.attach().sent == [("a", 1, 1, True), ("c", 2, 3, True), ("d", 1, 4, True), 2, ("e", 1, 5, False)]


def test_a_smaller_receive_maximum_holds_for_retransmissions_too() -> None:
    """[MQTT-3.3.4-9]"""
    harness = SessionHarness()
    for payload in "abc":
        harness.deliver(payload, 2)
    pubrec(harness.session, 1)
    harness.session.detach()
    wire = harness.attach(window=1)
    assert wire.take() == [("b", 2, 2, True)]
    harness.deliver("d")
    assert harness.queued() == ["d"]
    pubrec(harness.session, 2)
    harness.session.advance(0)
    assert wire.take() == []
    pubcomp(harness.session, 2)
    harness.session.advance(0)
    assert wire.take() == [("c", 2, 3, True), 1]
    pubcomp(harness.session, 1)
    harness.session.advance(0)
    assert wire.take() == []
    pubrec(harness.session, 3)
    pubcomp(harness.session, 3)
    harness.session.advance(0)
    assert wire.take() == [("d", 1, 4, False)]


def test_retransmission_waits_for_the_socket() -> None:
    harness = SessionHarness()
    harness.deliver("a")
    harness.session.detach()
    wire = Wire()
    wire.writable = False
    harness.session.attach(wire, 10, harness.limits, 0, packets=wire)
    harness.session.advance(0)
    assert (wire.sent, harness.session.busy) == ([], True)
    wire.writable = True
    harness.session.advance(0)
    assert (wire.sent, harness.session.busy) == ([("a", 1, 1, True)], False)


def test_an_acknowledgement_ahead_of_the_retransmission() -> None:
    harness = SessionHarness()
    for payload in "abcd":
        harness.deliver(payload, 2)
    pubrec(harness.session, 3)
    pubrec(harness.session, 4)
    harness.session.detach()
    wire = harness.attach(window=1)
    assert pubcomp(harness.session, 3)  # its PUBREL has not gone out again yet
    assert pubrec(harness.session, 4, failed=True) == (True, None)
    harness.session.advance(0)
    assert wire.take() == [("a", 2, 1, True)]
    known, delivery = pubrec(harness.session, 2)
    assert known and delivery is not None
    harness.session.advance(0)
    pubrec(harness.session, 1)
    pubcomp(harness.session, 1)
    harness.session.advance(0)
    assert pubcomp(harness.session, 2)
    assert (harness.session.inflight, harness.session.resend) == ({}, None)


def test_a_retransmission_that_the_new_client_cannot_take_is_done() -> None:
    harness = SessionHarness()
    for payload in ("a", "big", "c"):
        harness.deliver(payload)
    harness.session.detach()
    wire = harness.wire = Wire()
    wire.too_large = {"big"}
    harness.session.attach(wire, 10, harness.limits, 0, packets=wire)
    harness.session.advance(0)
    assert wire.sent == [("a", 1, 1, True), ("c", 1, 3, True)]
    assert list(harness.session.inflight) == [1, 3]


def test_the_limits_of_a_new_connection_hold() -> None:
    harness = SessionHarness(connected=False, max_queued_messages=10)
    for payload in "abc":
        harness.deliver(payload)
    harness.attach(window=1)
    harness.session.detach()
    harness.attach(1, Limits(max_queued_messages=2, retry_interval=5), now=50)
    assert harness.session.sent_at == {1: 50}
    harness.deliver("d")
    assert harness.dropped == [("b", "queue_full")]
    puback(harness.session, 1)
    harness.session.detach()
    harness.attach(1, Limits(), now=60)
    assert harness.session.sent_at is None


def test_what_a_reconnect_repeats_counts_as_sent_then() -> None:
    harness = SessionHarness(retry_interval=5)
    harness.deliver("a")
    harness.session.detach()
    harness.attach(now=100)
    assert harness.wire.take() == [("a", 1, 1, True)]
    retransmit_older(harness.session, 95, 100)
    assert harness.wire.take() == []


def test_nothing_is_sent_while_nobody_is_there() -> None:
    harness = SessionHarness(connected=False)
    harness.deliver("a")
    harness.session.advance(0)
    retransmit_older(harness.session, 0, 0)
    assert (harness.queued(), harness.session.connected, harness.session.ready) == (["a"], False, False)


# --- the retry interval of 3.x --------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_in_time_is_sent_again() -> None:
    harness = SessionHarness(retry_interval=10)
    harness.session.advance(100)
    for payload, qos in (("a", 1), ("b", 2), ("c", 2)):
        harness.deliver(payload, qos)
    pubrec(harness.session, 3)
    harness.wire.take()
    retransmit_older(harness.session, 100, 109)
    assert harness.wire.take() == []
    puback(harness.session, 1)
    retransmit_older(harness.session, 101, 111)
    assert harness.wire.take() == [("b", 2, 2, True), 3]
    retransmit_older(harness.session, 102, 112)
    assert harness.wire.take() == []  # it was sent at 111
    harness.wire.writable = False
    retransmit_older(harness.session, 200, 210)
    assert harness.wire.take() == []
    pubcomp(harness.session, 3)
    assert harness.session.sent_at == {2: 111}


def test_the_retry_interval_waits_for_the_reconnect_s_own_retransmissions() -> None:
    harness = SessionHarness(retry_interval=10)
    harness.deliver("a")
    harness.deliver("b")
    harness.session.detach()
    harness.attach(window=1)
    harness.wire.take()
    retransmit_older(harness.session, 1000, 1000)
    assert harness.wire.take() == []
    harness = SessionHarness()
    harness.deliver("a")
    harness.wire.take()
    retransmit_older(harness.session, 1000, 1000)
    assert harness.wire.take() == []


# --- retained messages ----------------------------------------------------------------------------------------------


def retained(count: int, qos: int = 0) -> list[Message]:
    return [Message(f"r/{number}", b"%d" % number, qos, True) for number in range(count)]


class Source:
    """Retained messages of a test's own; None: the search goes on later."""

    def __init__(self, messages: Iterable[Message | None]) -> None:
        self.left = list(messages)

    @property
    def done(self) -> bool:
        return not self.left

    def take(self, most: int, budget: ReplayBudget) -> list[Message]:
        found: list[Message] = []
        while self.left and len(found) < most and not budget.spent:
            message = self.left.pop(0)
            if message is None:
                budget.steps = 0
            else:
                found.append(message)
                budget.messages -= 1
                budget.bytes -= message.payload_size
        return found

    def put_back(self, messages: list[Message]) -> None:
        self.left[:0] = messages


def replay(
    harness: SessionHarness, messages: Iterable[Message | None], qos: int = 2, filter: str = "r/#", **options: Any
) -> None:
    harness.session.replay(Source(messages), Subscription(harness.session, filter, qos, **options))


def test_retained_messages_go_out_with_retain_and_the_lower_qos() -> None:
    """[MQTT-3.3.1-8] [MQTT-3.8.4-8]"""
    harness = SessionHarness()
    replay(harness, ([*retained(1, 2), *retained(1, 0)]), 1, identifiers=(1,))
    harness.session.advance(0)
    assert harness.wire.sent == [("0", 1, 1, False), ("0", 0, 0, False)]
    assert harness.wire.retains == [True, True]
    assert (harness.session.replays, harness.session.replaying) == (None, False)
    harness = SessionHarness(upgrade_qos=True)
    replay(harness, (retained(1, 0)), 2)
    harness.session.advance(0)
    assert harness.wire.sent == [("0", 2, 1, False)]


def test_retained_messages_come_in_slices_and_a_none_is_a_pause() -> None:
    harness = SessionHarness()
    count = REPLAY_SLICE + 3
    replay(harness, ([None, *retained(2), None, *retained(count)]))
    for expected in (0, 2, REPLAY_SLICE, 3):
        assert harness.session.replaying
        harness.session.advance(0)
        assert len(harness.wire.take()) == expected
    assert not harness.session.replaying


def test_retained_messages_keep_to_the_window_whatever_the_queue_s_bound() -> None:
    """[MQTT-3.3.4-9]: none is lost, though the queue holds hardly one."""
    harness = SessionHarness(window=2, max_queued_messages=1, max_queued_bytes=1)
    replay(harness, (retained(5, 1)))
    harness.session.advance(0)
    assert [each[0] for each in harness.wire.take()] == ["0", "1"]
    assert not harness.session.replaying  # nothing but an acknowledgement helps now
    assert harness.queued() == ["2"]
    harness.session.advance(0)
    assert harness.wire.take() == []
    seen = []
    for packet_id in range(1, 6):
        assert puback(harness.session, packet_id)
        harness.session.advance(0)
        seen += [each[0] for each in harness.wire.take()]
    assert (seen, harness.dropped, harness.session.busy) == (["2", "3", "4"], [], False)


def test_retained_messages_of_each_qos_keep_their_order() -> None:
    """What goes out together is of one kind: [MQTT-3.8.4-8] for each."""
    kinds = [0, 0, 1, 1, 1, 2, 2, 1, 0, 1, 1]
    messages = [Message(f"r/{number}", b"%d" % number, qos, True) for number, qos in enumerate(kinds)]
    messages[3].properties = {MESSAGE_EXPIRY_INTERVAL: 5}  # its interval is this client's own
    for granted in (0, 1, 2):
        harness = SessionHarness()
        replay(harness, messages, granted, identifiers=(7,))
        harness.session.advance(0)
        sent = harness.wire.take()
        assert [each[0] for each in sent] == [str(number) for number in range(len(kinds))]
        assert [each[1] for each in sent] == [min(qos, granted) for qos in kinds]
        with_id = [each[2] for each in sent if each[1]]
        assert with_id == list(range(1, len(with_id) + 1)) == list(harness.session.inflight)
        assert all(harness.wire.retains) and not harness.session.busy


def test_retained_messages_that_a_writer_did_not_take_come_later() -> None:
    """It was full after the first; who is told of a sending filled the window."""

    class Bounded(Wire):
        def send_retained0(self, messages: list[Message], identifiers: tuple[int, ...]) -> int:
            super().send_retained0(messages[:1], identifiers)
            self.writable = False
            return 1

    for qos in (0, 1):  # of the subscription
        harness = SessionHarness()
        bounded = Bounded()
        harness.session.attach(bounded, 10, harness.limits, 0, packets=bounded)
        replay(harness, retained(3, 0), qos)
        for expected in ("0", "1", "2"):
            assert harness.session.replaying
            bounded.writable = True
            harness.session.advance(0)
            assert [each[0] for each in bounded.take()] == [expected]
        assert not harness.session.busy

    harness = SessionHarness(window=3)
    harness.wire.on_send = lambda delivery: (
        [harness.deliver(f"new{number}") for number in range(2)] if delivery.message.payload == b"0" else None
    )
    replay(harness, [*retained(1, 2), *retained(3, 1)[1:]])
    for packet_id in range(6):
        if packet_id:
            pubrec(harness.session, packet_id, failed=True) if packet_id == 1 else puback(harness.session, packet_id)
        harness.session.advance(0)
        assert len(harness.session.inflight) <= 3
    assert sorted(each[0] for each in harness.wire.take()) == ["0", "1", "2", "new0", "new1"]
    assert (harness.dropped, harness.session.busy) == ([], False)


def test_retained_messages_wait_for_the_socket_the_bytes_in_flight_and_retransmissions() -> None:
    harness = SessionHarness()
    harness.wire.writable = False
    replay(harness, (retained(3, 0)))
    harness.session.advance(0)
    harness.session.advance(0)
    assert harness.wire.take() == []  # not even one for each call: the outbox is bounded and would drop it
    harness.wire.writable = True
    harness.session.advance(0)
    assert len(harness.wire.take()) == 3

    harness = SessionHarness(window=1)
    replay(harness, (retained(3, 1)))
    harness.session.advance(0)
    assert [each[0] for each in harness.wire.take()] == ["0"]
    puback(harness.session, 1)
    harness.session.advance(0)
    assert [each[0] for each in harness.wire.take()] == ["1"]

    harness = SessionHarness()
    harness.deliver("a")
    harness.deliver("b")
    harness.session.detach()
    harness.attach(window=1)
    replay(harness, (retained(1, 1)))
    harness.session.advance(0)
    assert harness.wire.take() == [("a", 1, 1, True)]
    for packet_id in (1, 2):
        puback(harness.session, packet_id)
        harness.session.advance(0)
    assert harness.wire.take() == [("b", 1, 2, True), ("0", 1, 3, False)]


def test_retained_messages_follow_what_is_queued() -> None:
    harness = SessionHarness(window=1)
    harness.deliver("a")
    harness.deliver("b")
    harness.wire.take()
    replay(harness, (retained(1, 1)))
    harness.session.advance(0)
    assert harness.wire.take() == []
    for packet_id in (1, 2):
        puback(harness.session, packet_id)
        harness.session.advance(0)
    assert [each[0] for each in harness.wire.take()] == ["b", "0"]


def test_each_subscribe_to_a_filter_sends_all_of_its_own() -> None:
    """[MQTT-3.8.4-4, -5]: in order, with what each asked for; also where the first is not done yet."""
    harness = SessionHarness(window=1)
    replay(harness, retained(3, 1), 1, filter="a", identifiers=(1,))
    replay(harness, [Message("other", b"other", 0, True)], filter="b")
    harness.session.advance(0)  # one goes out, one waits for the window, one has not been fetched
    replay(harness, retained(2, 1), 0, filter="a", identifiers=(2,))
    replays = harness.session.replays
    assert replays is not None and replays.filters() == ["a", "a", "b"]
    for packet_id in (1, 2, 3):
        puback(harness.session, packet_id)
        harness.session.advance(0)
    sent = [(payload, qos) for payload, qos, *_ in harness.wire.take()]
    assert sent == [("0", 1), ("1", 1), ("2", 1), ("0", 0), ("1", 0), ("other", 0)]
    assert not harness.session.busy


def test_subscribing_again_and_again_takes_bounded_memory() -> None:
    """Beyond the bound the last one takes the place of the one before it, and is complete."""
    harness = SessionHarness()
    harness.wire.writable = False
    for number in range(200):
        replay(harness, [Message("a", b"%d" % number, 0, True)], filter="a")
        replay(harness, [Message("b", b"b", 0, True)], filter="b")
    replays = harness.session.replays
    assert replays is not None and len(replays) == len(replays.filters()) == MOST_REPEATS + 2
    harness.wire.writable = True
    harness.session.advance(0)
    sent = [payload for payload, *_ in harness.wire.take()]
    assert len(sent) == MOST_REPEATS + 2 and sent[0] == "0" and "199" in sent
    assert not harness.session.busy
    for _ in range(200):
        replay(harness, retained(1, 0), filter="a")
    harness.session.stop_replay("a")
    assert harness.session.replays is None


def test_unsubscribing_stops_it() -> None:
    """[MQTT-3.10.4-2]"""
    harness = SessionHarness(window=1)
    harness.session.stop_replay("a")
    replay(harness, (retained(9, 1)), filter="a")
    replay(harness, (retained(1, 1)), filter="b")
    harness.session.advance(0)
    harness.session.stop_replay("c")
    harness.session.stop_replay("a")
    assert harness.session.replays is not None and len(harness.session.replays) == 1
    harness.session.stop_replay("b")
    assert harness.session.replays is None


# --- the end --------------------------------------------------------------------------------------------------------


def test_what_shared_subscriptions_get_back() -> None:
    """[MQTT-4.8.2-5]: a QoS 2 delivery that was begun dies with its session."""
    harness = SessionHarness(window=3, queue_qos0=True)
    group = "$share/g/t"

    def shared(payload: str, qos: int) -> None:
        harness.session.deliver_shared(Delivery(Message("t", payload.encode(), qos), qos, group=group))

    shared("a", 1)
    shared("b", 2)
    harness.deliver("own", 1)
    shared("c", 1)
    shared("d", 2)
    shared("e", 0)
    harness.deliver("own too", 1)
    inbound_qos2.receive(harness.session, 1, 0)
    assert [each.message.payload for each in harness.session.end()] == [b"a", b"c", b"d", b"e"]
    session = harness.session
    assert (session.inflight, session.queue, session.awaiting_rel, session.writer) == ({}, None, None, None)
    harness = SessionHarness()
    harness.deliver("own", 1)
    assert harness.session.end() == []


def test_a_shared_qos0_delivery() -> None:
    harness = SessionHarness()
    harness.session.deliver_shared(Delivery(Message("t", b"a"), 0))
    assert harness.wire.sent == [("a", 0, 0, False)]


def test_it_says_who_it_is() -> None:
    assert repr(SessionHarness().session) == "Session('c', connected)"
    assert repr(SessionHarness(connected=False).session) == "Session('c', offline)"
