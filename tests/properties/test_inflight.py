"""The send window, whatever happens in whatever order: deliveries, acknowledgements, lost connections, slow sockets.

The rules are MQTT 5.0's, about one session: ids [MQTT-2.2.1-4], Receive Maximum [MQTT-3.3.4-9], retransmission
[MQTT-4.4.0-1] with DUP [MQTT-3.3.1-1], order [MQTT-4.6.0-5] [MQTT-4.6.0-6], and QoS 2 exactly once [MQTT-4.3.3-5].
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.session.limits import Limits
from taipan.broker.session.outbound_acks import puback, pubcomp, pubrec
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.support.one_by_one import OneByOne
from tests.support.sessions import make_session

TOPICS = ("a", "b")


class Client(OneByOne):
    """A conforming client and its socket. What it keeps of QoS 2 outlives its connection."""

    def __init__(self) -> None:
        self.writable = True
        self.window = 0
        # What it has and has not acknowledged on this connection: Packet Identifier -> QoS.
        self.owed: dict[int, int] = {}
        self.released: set[int] = set()  # PUBREL came, PUBCOMP not sent
        self.received2: set[int] = set()  # ids of QoS 2 received and not released; over connections
        self.seen: list[tuple[str, int, int]] = []  # (topic, QoS, number) of new messages, in order of arrival
        self.sent_before: dict[int, tuple[int, int]] = {}  # id -> (QoS, number) of what went out and is not done
        self.resent: list[int] = []  # ids in order, of this connection
        self.fresh = False  # whether something new came on this connection

    def send_publish0(self, message: Message) -> None:
        self.seen.append((message.topic, 0, int(message.payload)))

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        number = int(delivery.message.payload)
        if delivery.qos == 0:
            assert (packet_id, dup) == (0, False)
            self.seen.append((delivery.message.topic, 0, number))
            return True
        assert 1 <= packet_id <= 65_535
        assert packet_id not in self.owed, "an identifier that is in use"
        if dup:
            assert self.sent_before.get(packet_id) == (delivery.qos, number), "DUP on what was never sent"
            assert not self.fresh, "a retransmission behind a new message"
            self.resent.append(packet_id)
        else:
            assert packet_id not in self.sent_before, "an identifier of an unfinished exchange"
            self.sent_before[packet_id] = (delivery.qos, number)
            self.seen.append((delivery.message.topic, delivery.qos, number))
            self.fresh = True
        if delivery.qos == 2:
            assert dup or packet_id not in self.received2
            self.received2.add(packet_id)
        self.owed[packet_id] = delivery.qos
        return True

    def send_pubrel(self, packet_id: int) -> None:
        assert packet_id not in self.owed
        self.released.add(packet_id)
        self.received2.discard(packet_id)


class Window(RuleBasedStateMachine):
    """A session with a bounded window against a model client. Nothing is too large, nothing expires here."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limits = Limits(max_inflight=8, max_queued_messages=0, max_queued_bytes=0)
        self.session = make_session("c", self.limits, self, 3600)
        self.client = Client()
        self.connected = False
        self.number = 0
        self.given: list[tuple[str, int, int]] = []
        self.dropped: list[tuple[str, int, int]] = []
        # QoS 0 messages with what waited of their topic when they came.
        self.behind: list[tuple[tuple[str, int, int], tuple[str, int, int]]] = []

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        assert delivery.qos == 0 and reason == "qos0_msg" and not self.connected
        self.dropped.append((delivery.message.topic, 0, int(delivery.message.payload)))

    @rule(topic=st.sampled_from(TOPICS), qos=st.sampled_from((0, 1, 2, 2)), plain=st.booleans())
    def deliver(self, topic: str, qos: int, plain: bool) -> None:
        self.number += 1
        self.given.append((topic, qos, self.number))
        if qos == 0 and self.connected:
            self.behind += [(each, self.given[-1]) for each in self.queued() if each[0] == topic]
        message = Message(topic, b"%d" % self.number, qos)
        self.session.deliver(message, Subscription(self.session, topic, 2, identifiers=() if plain else (1,)))

    @precondition(lambda self: self.connected and 1 in self.client.owed.values())
    @rule(data=st.data())
    def puback(self, data: Any) -> None:
        packet_id = data.draw(st.sampled_from([each for each, qos in self.client.owed.items() if qos == 1]))
        del self.client.owed[packet_id], self.client.sent_before[packet_id]
        assert puback(self.session, packet_id)
        self.session.advance(self.now)

    @precondition(lambda self: self.connected and 2 in self.client.owed.values())
    @rule(data=st.data(), failed=st.booleans())
    def pubrec(self, data: Any, failed: bool) -> None:
        packet_id = data.draw(st.sampled_from([each for each, qos in self.client.owed.items() if qos == 2]))
        del self.client.owed[packet_id], self.client.sent_before[packet_id]
        known, delivery = pubrec(self.session, packet_id, failed)
        assert known and delivery is not None
        if failed:
            self.client.received2.discard(packet_id)
            self.session.advance(self.now)
        else:
            self.client.sent_before[packet_id] = (0, 0)
            self.client.send_pubrel(packet_id)

    @precondition(lambda self: self.connected and self.client.released)
    @rule(data=st.data())
    def pubcomp(self, data: Any) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.client.released)))
        self.client.released.discard(packet_id)
        del self.client.sent_before[packet_id]
        assert pubcomp(self.session, packet_id)
        self.session.advance(self.now)

    @precondition(lambda self: self.connected and self.session.resend and self.session.resend.left)
    @rule(data=st.data())
    def late_acknowledgement(self, data: Any) -> None:
        """Of something the last connection brought, before this connection repeats it."""
        packet_id = data.draw(st.sampled_from(sorted(self.session.resend.left)))
        delivery = self.session.inflight[packet_id]
        del self.client.sent_before[packet_id]
        if delivery is None:
            assert pubcomp(self.session, packet_id)
        elif delivery.qos == 1:
            assert puback(self.session, packet_id) == [delivery]
        else:
            assert pubrec(self.session, packet_id) == (True, delivery)
            self.client.sent_before[packet_id] = (0, 0)
            self.client.send_pubrel(packet_id)
        self.session.advance(self.now)

    @precondition(lambda self: self.connected and self.client.released)
    @rule(data=st.data(), failed=st.booleans())
    def pubrec_again(self, data: Any, failed: bool) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.client.released)))
        assert pubrec(self.session, packet_id, failed) == (True, None)
        if failed:
            self.client.released.discard(packet_id)
            del self.client.sent_before[packet_id]
            self.session.advance(self.now)

    @precondition(lambda self: self.connected)
    @rule()
    def disconnect(self) -> None:
        self.connected = False
        self.session.detach()

    @precondition(lambda self: not self.connected)
    @rule(window=st.sampled_from((1, 1, 2, 3, 8)))
    def reconnect(self, window: int) -> None:
        client = self.client
        client.owed.clear()
        client.released.clear()
        client.resent.clear()
        client.writable = True
        client.fresh = False
        client.window = window
        self.connected = True
        self.session.attach(client, window, self.limits, self.now, packets=client)
        self.session.advance(self.now)

    @precondition(lambda self: self.connected and self.client.writable)
    @rule()
    def the_socket_is_full(self) -> None:
        self.client.writable = False

    @precondition(lambda self: self.connected and not self.client.writable)
    @rule()
    def the_socket_drains(self) -> None:
        self.client.writable = True
        self.session.advance(self.now)

    @invariant()
    def never_more_than_the_window(self) -> None:
        if self.connected:
            assert len(self.client.owed) <= self.client.window

    @invariant()
    def nothing_waits_without_a_reason(self) -> None:
        session = self.session
        if self.connected and self.client.writable and session.resend is None:
            assert not session.queued or len(session.inflight) >= session.window

    @invariant()
    def in_order_and_once(self) -> None:
        seen = self.client.seen
        assert len(set(seen)) == len(seen)
        for topic in TOPICS:
            for qos in range(3):
                numbers = [number for which, of, number in seen if (which, of) == (topic, qos)]
                assert numbers == sorted(numbers)
        place = {message: at for at, message in enumerate(seen)}
        for first, second in self.behind:
            assert second not in place or place.get(first, len(seen)) < place[second]

    @invariant()
    def nothing_is_lost(self) -> None:
        assert sorted(self.client.seen + self.dropped + self.queued()) == sorted(self.given)

    def queued(self) -> list[tuple[str, int, int]]:
        return [(each.message.topic, each.qos, int(each.message.payload)) for each in self.session.queue or ()]

    @invariant()
    def bookkeeping(self) -> None:
        assert set(self.session.inflight) == set(self.client.sent_before)
        assert set(self.session.resend.left if self.session.resend else ()) <= set(self.session.inflight)

    def teardown(self) -> None:
        """A client that acknowledges everything gets everything."""
        if not self.connected:
            self.reconnect(8)
        self.client.writable = True
        self.session.advance(self.now)
        for _ in range(10_000):
            if not self.session.inflight:
                break
            for packet_id, qos in list(self.client.owed.items()):
                del self.client.owed[packet_id], self.client.sent_before[packet_id]
                if qos == 1:
                    puback(self.session, packet_id)
                else:
                    pubrec(self.session, packet_id)
                    self.client.sent_before[packet_id] = (0, 0)
                    self.client.send_pubrel(packet_id)
                self.session.advance(self.now)
            for packet_id in list(self.client.released):
                self.client.released.discard(packet_id)
                del self.client.sent_before[packet_id]
                pubcomp(self.session, packet_id)
                self.session.advance(self.now)
        assert not self.session.inflight and self.session.queue is None and self.session.resend is None
        assert sorted(self.client.seen + self.dropped) == sorted(self.given)


TestWindow = Window.TestCase
TestWindow.settings = settings(max_examples=100, stateful_step_count=80, deadline=None)
