"""What an MQTT-SN client and the node say to each other: messages of MQTT-SN on one side, MQTT packets on the other.

The link is the only way out, and the clock is the link's. ``state`` names what the client may do next; the table
``_REQUESTS`` has what is understood in which state, and everything else is counted and ignored: a datagram can be late,
repeated or forged, so none of them ends a conversation by being wrong.

Messages for the client go one way: ``packet`` -> ``_deliver`` -> written, or into ``_waiting`` until the client has
proved its address and knows the topic id. Whatever the client has to answer is in ``_unanswered`` and is repeated by
one timer."""

from collections import deque
from collections.abc import Callable
from secrets import randbelow
from typing import Final

from ...gateway import GatewayLink, Pending
from ...mqtt import reason_codes
from ...mqtt.constants import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SESSION_EXPIRY_INTERVAL,
)
from ...mqtt.encoder import Outgoing
from ...mqtt.message import Message
from ...mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Unsuback,
    Unsubscribe,
    Will,
)
from ...mqtt.topics import is_shared, valid_filter, valid_name
from . import codec as sn
from .settings import MqttSnSettings, short_name
from .topics import Topics

# The states.
NEW: Final = 0  # nothing is known of the address
WILL_TOPIC: Final = 1  # a CONNECT with a Will: WILLTOPIC is expected
WILL_MESSAGE: Final = 2  # then WILLMSG
LOGGING_IN: Final = 3  # the broker has the CONNECT
ACTIVE: Final = 4
ASLEEP: Final = 5  # messages wait in the session
AWAKE: Final = 6  # a PINGREQ of a sleeping client: they are delivered, then PINGRESP ends it
PUBLISHER: Final = 7  # logged in for PUBLISH of QoS -1, without a connection that the client knows of
OVER: Final = 8

STATES: Final = ("new", "will_topic", "will_message", "logging_in", "active", "asleep", "awake", "publisher", "over")

V5: Final = 5
MAX_SIZE: Final = 65_200
"""Maximum size of a PUBLISH for a client: with a forwarder's header it still fits into a datagram."""
MAX_STRAYS: Final = 3
"""Answers to an address without a connection. Two gateways that answer each other's DISCONNECT must come to an end."""
MAX_REQUESTS: Final = 64
"""Maximum number of requests of one kind that a client has under way; a further one is rejected as congestion."""
REPEATED_WITHIN: Final = 5.0
"""Seconds in which the same CONNECT is the same request, and not that of a client that has restarted."""
UNLIMITED: Final = MAX_REQUESTS, 2, True
"""Receive Maximum, Maximum QoS and whether RETAIN is available, as most nodes have them."""
COMPLETED: Final = 16
"""How many completed exchanges of QoS 2 are remembered, so that a late repetition is not published again."""
CHALLENGE: Final = "$"
"""A topic name for a REGISTER that only has to be answered. No client can publish to it."""
MAX_CHALLENGE: Final = 0x7FFF
"""The greatest MsgId of a REGISTER: there are clients that read it as a signed number."""
DRAIN_AGAIN: Final = 0.1
"""Seconds until the session of a client that is awake is looked at again."""
NEVER_EXPIRES: Final = 0xFFFFFFFF
WITH_WILL: Final = 0x04
"""The Reason Code of a DISCONNECT that publishes the Will."""

_BUSY: Final = frozenset(
    (reason_codes.SERVER_BUSY, reason_codes.SERVER_UNAVAILABLE, reason_codes.QUOTA_EXCEEDED,
     reason_codes.MESSAGE_RATE_TOO_HIGH)
)  # fmt: skip


def return_code(reason_code: int) -> int:
    """Return the return code of MQTT-SN for a Reason Code."""
    if reason_code < reason_codes.UNSPECIFIED_ERROR:
        return sn.ACCEPTED
    if reason_code in _BUSY:
        return sn.CONGESTION
    return sn.INVALID_TOPIC_ID if reason_code == reason_codes.TOPIC_NAME_INVALID else sn.NOT_SUPPORTED


class Unanswered:
    """A message that the client has to answer with a message of type ``answer``. ``due``: when it is repeated.
    ``topic``: of a PUBLISH."""

    __slots__ = ("answer", "data", "due", "topic", "tries")

    def __init__(self, data: bytes, answer: int, due: float, topic: str = "") -> None:
        self.data = data
        self.answer = answer
        self.due = due
        self.topic = topic
        self.tries = 0


class Conversation:
    """One client's conversation. ``broker.gateway.GatewayChannel`` describes the methods that the node calls."""

    __slots__ = (
        "_answered", "_answered_at", "_challenge", "_completed", "_drain_asked", "_limits", "_link", "_proved",
        "_publishing", "_quiet", "_registering", "_request", "_settings", "_strays", "_subscribing", "_timer",
        "_topics", "_unanswered", "_waiting", "_waiting_bytes", "_will", "state",
    )  # fmt: skip

    def __init__(self, link: GatewayLink, settings: MqttSnSettings) -> None:
        self.state = NEW
        self._link = link
        self._settings = settings
        # The CONNECT as it has come, and the Will that belongs to it or was set later.
        self._request = b""
        self._will: sn.SnWillTopic | Will | None = None
        # The datagram that was answered with CONNACK, and when; whether nothing else has come since.
        self._answered = b""
        self._answered_at = 0.0
        self._quiet = False
        self._strays = 0
        self._limits = UNLIMITED
        self._topics: Topics | None = None
        # Of the client: MsgId -> topic id of its PUBLISH; of its SUBSCRIBE or UNSUBSCRIBE. Completed QoS 2: MsgId ->
        # its hash and when.
        self._publishing: dict[int, tuple[int, int]] | None = None
        self._subscribing: dict[int, int] | None = None
        self._completed: dict[int, tuple[int, float]] | None = None
        # For the client: messages that wait for its REGACK.
        self._waiting: deque[Message] | None = None
        self._waiting_bytes = 0
        # MsgId of PUBLISH or PUBREL -> the message; the REGISTER that is not answered, by its MsgId, topic id, name.
        self._unanswered: dict[int, Unanswered] | None = None
        self._registering: tuple[int, int, str, Unanswered] | None = None
        self._challenge = False  # the REGISTER only proves the address
        self._proved = False
        self._drain_asked = False
        self._timer: Pending | None = None

    # ------------------------------------------------------------------------------------------ from the client

    def received(self, data: bytes) -> int:
        """Take one datagram."""
        try:
            packet = sn.decode(data)
        except sn.Malformed as error:
            self._link.drop("malformed_datagram", str(error))
            return len(data)
        if type(packet) is sn.SnPublish:
            self._quiet = False
            self._on_publish(packet, data)
            return len(data)
        if self._repeats(data):
            return len(data)
        self._quiet = False
        request = _REQUESTS.get(type(packet))
        if request is None or not request[1] >> self.state & 1:
            self._stray(packet)
        else:
            request[0](self, packet, data)
        return len(data)

    def _repeats(self, data: bytes) -> bool:
        """Answer a repeated request to connect, whose answer was lost."""
        if data != self._answered or self.state not in (ACTIVE, PUBLISHER):
            return False
        if not self._quiet and self._link.now() > self._answered_at + REPEATED_WITHIN:
            return False
        self._write(sn.SnConnack(sn.ACCEPTED))
        return True

    def _stray(self, packet: sn.SnPacket) -> None:
        """Ignore a message that has no meaning in this state; tell an address without a connection that it has none."""
        self._link.drop("unexpected_datagram", f"{type(packet).__name__} while {STATES[self.state]}")
        if self.state == NEW and self._strays < MAX_STRAYS and type(packet) not in _FROM_GATEWAYS:
            self._strays += 1
            self._write(sn.SnDisconnect())

    # To connect

    def _on_search(self, packet: sn.SnSearchGw, data: bytes) -> None:
        self._write(sn.SnGwInfo(self._settings.gateway_id))

    def _on_connect(self, packet: sn.SnConnect, data: bytes) -> None:
        state = self.state
        if packet.protocol_id != sn.PROTOCOL_ID or not packet.client_id:
            self._link.drop("malformed_datagram", "CONNECT without a ClientId, or of another protocol")
            self._write(sn.SnConnack(sn.NOT_SUPPORTED))
            return
        if state == LOGGING_IN:
            return
        if state >= ACTIVE:
            if state in (ASLEEP, AWAKE) and self._is_back(packet):
                self._wake_up(packet, data)
            else:
                self._begin_again(data)
            return
        self._request = data
        self._will = None
        if packet.will:
            self.state = WILL_TOPIC
            self._write(sn.SnSimple(sn.WILLTOPICREQ))
        else:
            self._log_in(data)

    def _is_back(self, packet: sn.SnConnect) -> bool:
        """Return whether a sleeping client continues: without the Will procedure, with the same session."""
        return self._requested().client_id == packet.client_id and not packet.clean and not packet.will

    def _requested(self) -> sn.SnConnect:
        request = sn.decode(self._request)
        assert isinstance(request, sn.SnConnect)
        return request

    def _begin_again(self, data: bytes) -> None:
        """The client starts again from this address: its old connection ends, and a new conversation gets this."""
        self._link.send(Disconnect(WITH_WILL if self._will is not None else reason_codes.SUCCESS))
        self._end()
        self._link.renew(data)

    def _on_will_topic(self, packet: sn.SnWillTopic, data: bytes) -> None:
        if packet.update != (self.state >= ACTIVE):
            self._stray(packet)
        elif packet.update:
            self._update_will(packet)
        elif packet.topic and not valid_name(packet.topic):
            self._link.drop("malformed_datagram", "a Will to an invalid topic")
        elif not packet.topic:
            self._will = None
            self._log_in(data)
        else:
            self._will = packet
            self.state = WILL_MESSAGE
            self._write(sn.SnSimple(sn.WILLMSGREQ))

    def _on_will_message(self, packet: sn.SnWillMsg, data: bytes) -> None:
        if packet.update != (self.state >= ACTIVE):
            self._stray(packet)
            return
        if packet.update:
            self._update_will_message(packet)
            return
        topic = self._will
        assert isinstance(topic, sn.SnWillTopic)
        self._will = Will(topic.topic, packet.payload, topic.qos, topic.retain)
        self._log_in(data)

    def _log_in(self, data: bytes) -> None:
        request = self._requested()
        self._answered = data
        self.state = LOGGING_IN
        properties = {RECEIVE_MAXIMUM: 1, MAXIMUM_PACKET_SIZE: MAX_SIZE}
        if not request.clean:
            properties[SESSION_EXPIRY_INTERVAL] = NEVER_EXPIRES  # the zone has the limit
        will = self._will
        assert not isinstance(will, sn.SnWillTopic)
        self._link.send(self._connect(request.client_id, request.clean, request.duration, will, properties))

    def _connect(
        self, client_id: str, clean: bool, keep_alive: int, will: Will | None, properties: dict[int, int]
    ) -> Connect:
        settings = self._settings
        password = None if settings.password is None else settings.password.encode()
        return Connect(V5, client_id, clean, keep_alive, settings.username, password, will, dict(properties))

    # To publish

    def _on_publish(self, packet: sn.SnPublish, data: bytes) -> None:
        state = self.state
        if packet.qos < 0:
            self._publish_without_connection(packet)
        elif state in (ACTIVE, AWAKE):
            topic = self._topic_of(packet.topic_id, packet.id_type)
            if topic is None:
                self._write(sn.SnPuback(packet.topic_id, packet.msg_id, sn.INVALID_TOPIC_ID))
            elif packet.qos == 0 and (not packet.retain or self._limits[2]):
                self._link.publish(topic, packet.payload, 0, packet.retain)
            else:
                self._publish_acknowledged(packet, topic, data)
        else:
            self._stray(packet)

    def _publish_acknowledged(self, packet: sn.SnPublish, topic: str, data: bytes) -> None:
        most, max_qos, retain = self._limits
        if packet.qos > max_qos or (packet.retain and not retain):
            self._write(sn.SnPuback(packet.topic_id, packet.msg_id, sn.NOT_SUPPORTED))
            return
        publishing = self._publishing
        if publishing is None:
            publishing = self._publishing = {}
        known = packet.msg_id in publishing
        if known and packet.qos == 1:
            return  # the first one is answered when the broker has it
        content = 0
        if packet.qos == 2:
            content = hash((packet.topic_id, packet.id_type, packet.retain, packet.payload))
            if not known and self._was_completed(packet.msg_id, content):
                self._write(sn.SnReply(sn.PUBREC, packet.msg_id))
                return
        if not known and len(publishing) >= most:
            self._write(sn.SnPuback(packet.topic_id, packet.msg_id, sn.CONGESTION))
            return
        publishing[packet.msg_id] = packet.topic_id, content
        self._link.publish(topic, packet.payload, packet.qos, packet.retain, packet.msg_id)

    def _was_completed(self, msg_id: int, content: int) -> bool:
        completed = self._completed
        found = None if completed is None else completed.get(msg_id)
        patience = self._settings.retry_interval * (self._settings.max_retries + 1)
        return found is not None and found[0] == content and self._link.now() < found[1] + patience

    def _topic_of(self, topic_id: int, id_type: int) -> str | None:
        if id_type == sn.SHORT:
            try:
                topic = topic_id.to_bytes(2).decode()
            except UnicodeDecodeError:
                return None
            return topic if valid_name(topic) else None
        if id_type == sn.NORMAL and self._topics is not None:
            found = self._topics.of_id.get(topic_id)
            if found is not None:
                return found
        # Of an unknown normal id, too: clients of Paho do so, and EMQX understands it.
        return self._settings.predefined.of_id.get(topic_id)

    def _publish_without_connection(self, packet: sn.SnPublish) -> None:
        """PUBLISH of QoS -1: predefined and short topics, if the listener accepts it. Nothing is answered."""
        state = self.state
        if not self._settings.enable_qos3:
            self._link.drop("qos3_off", "PUBLISH of QoS -1", "enable_qos3")
            return
        topic = None if packet.id_type == sn.NORMAL else self._topic_of(packet.topic_id, packet.id_type)
        if topic is None or (packet.retain and not self._limits[2]):
            self._link.drop("unexpected_datagram", "PUBLISH of QoS -1 to a topic that is neither predefined nor short")
            return
        if state == NEW:
            self._link.stay_newcomer()
            self._link.send(self._connect("", True, 0, None, {RECEIVE_MAXIMUM: 1, MAXIMUM_PACKET_SIZE: MAX_SIZE}))
            self.state = PUBLISHER
            self._timer = self._link.after(self._link.idle_timeout, self._idle)
        elif state not in (ACTIVE, ASLEEP, AWAKE, PUBLISHER):
            self._link.drop("unexpected_datagram", f"PUBLISH while {STATES[state]}")
            return
        self._quiet = True
        self._link.publish(topic, packet.payload, 0, packet.retain)

    def _idle(self) -> None:
        """A publisher without a connection has its place for ``idle_timeout`` after its last message."""
        self._timer = None
        if self._quiet:
            self._quiet = False
            self._timer = self._link.after(self._link.idle_timeout, self._idle)
        else:
            self._link.send(Disconnect())
            self._end()

    def _on_release(self, packet: sn.SnReply, data: bytes) -> None:
        if packet.type == sn.PUBREL:
            self._link.send(Ack(PUBREL, packet.msg_id))
            return
        unanswered = self._unanswered
        waited = None if unanswered is None else unanswered.get(packet.msg_id)
        if waited is None or unanswered is None:
            return  # it was answered before
        if packet.type == waited.answer:
            del unanswered[packet.msg_id]
            self._link.send(Ack(PUBREC if packet.type == sn.PUBREC else PUBCOMP, packet.msg_id))
            if packet.type == sn.PUBCOMP:
                self._drain()

    def _on_puback(self, packet: sn.SnPuback, data: bytes) -> None:
        unanswered = self._unanswered
        waited = None if unanswered is None else unanswered.get(packet.msg_id)
        if waited is None or unanswered is None:
            if packet.code == sn.INVALID_TOPIC_ID and self._topics is not None:
                self._topics.forget(packet.topic_id)  # of a message of QoS 0
            return
        if waited.answer not in (sn.PUBACK, sn.PUBREC) or packet.code == sn.CONGESTION:
            return  # of congestion: it is repeated when it is due
        qos = 1 if waited.answer == sn.PUBACK else 2
        if packet.code == sn.ACCEPTED and qos == 2:
            return  # a PUBREC is the answer
        del unanswered[packet.msg_id]
        if packet.code == sn.INVALID_TOPIC_ID and self._forgets(packet.topic_id, waited.topic):
            sent = sn.decode(waited.data)
            assert isinstance(sent, sn.SnPublish)
            again = Message(waited.topic, sent.payload, qos, sent.retain, packet_id=packet.msg_id, dup=True)
            self._wait(again, first=True)
            return
        code = reason_codes.SUCCESS if packet.code == sn.ACCEPTED else reason_codes.IMPLEMENTATION_SPECIFIC_ERROR
        self._link.send(Ack(PUBACK if qos == 1 else PUBREC, packet.msg_id, code))
        self._drain()

    def _forgets(self, topic_id: int, topic: str) -> bool:
        """Return whether another REGISTER may help a client that does not know the id of a topic."""
        if topic in self._settings.predefined.of_name or self._topics is None:
            return False
        if self._topics.of_id.get(topic_id) == topic:
            self._topics.forget(topic_id)
        return self._needs_register(topic)

    # Topics and subscriptions

    def _on_register(self, packet: sn.SnRegister, data: bytes) -> None:
        self._link.alive()
        code, topic_id = sn.ACCEPTED, 0
        if not valid_name(packet.topic):
            code = sn.NOT_SUPPORTED
        else:
            topic_id = self._known_topics().register(packet.topic)
            if not topic_id:
                code = sn.CONGESTION
        self._write(sn.SnRegack(topic_id, packet.msg_id, code))

    def _known_topics(self) -> Topics:
        if self._topics is None:
            self._topics = Topics()
        return self._topics

    def _on_subscribe(self, packet: sn.SnSubscribe, data: bytes) -> None:
        topic_id = 0
        if isinstance(packet.topic, int):
            name = self._topic_of(packet.topic, packet.id_type)
            topic_id = packet.topic if packet.id_type == sn.PREDEFINED else 0
        else:
            name = packet.topic
        if name is None or not (is_shared(name) or valid_filter(name)):
            self._answer_subscribe(packet, sn.INVALID_TOPIC_ID)
            return
        subscribing = self._subscribing
        if subscribing is None:
            subscribing = self._subscribing = {}
        if packet.msg_id in subscribing:
            return  # it is being answered
        if len(subscribing) >= MAX_REQUESTS:
            self._answer_subscribe(packet, sn.CONGESTION)
            return
        if packet.remove:
            subscribing[packet.msg_id] = 0
            self._link.send(Unsubscribe(packet.msg_id, [name]))
            return
        if packet.id_type == sn.NORMAL and valid_name(name) and not is_shared(name):
            topic_id = self._known_topics().register(name)
            if not topic_id:
                self._answer_subscribe(packet, sn.CONGESTION)
                return
        subscribing[packet.msg_id] = topic_id
        self._link.send(Subscribe(packet.msg_id, [TopicFilter(name, packet.qos)]))

    def _answer_subscribe(self, packet: sn.SnSubscribe, code: int) -> None:
        if packet.remove:  # UNSUBACK has no return code
            self._link.drop("unexpected_datagram", "UNSUBSCRIBE that cannot be carried out")
        else:
            self._write(sn.SnSuback(0, 0, packet.msg_id, code))

    # To stay and to leave

    def _on_ping(self, packet: sn.SnPingreq, data: bytes) -> None:
        if self.state == ASLEEP:
            if packet.client_id != self._requested().client_id:
                self._link.drop("unexpected_datagram", "PINGREQ without the ClientId of the sleeping client")
                return
            self.state = AWAKE
            self._resume()
            self._drain_asked = False
            self._drain()
        else:
            self._link.send(Pingreq())

    def _on_pong(self, packet: sn.SnSimple, data: bytes) -> None:
        self._link.alive()

    def _drain(self) -> None:
        """Ask the broker for a PINGRESP, which comes behind all that the client can be sent now."""
        if self.state == AWAKE and not self._drain_asked:
            self._drain_asked = True
            self._link.send(Pingreq())

    def _drained(self) -> None:
        self._drain_asked = False
        if self._waiting or self._unanswered or self._registering is not None:
            return  # its answer asks again
        if self._link.waiting:
            self._set_timer()
            return
        self._write(sn.SnSimple(sn.PINGRESP))
        self._fall_asleep()

    def _fall_asleep(self) -> None:
        self.state = ASLEEP
        self._cancel_timer()
        self._link.hold()

    def _on_disconnect(self, packet: sn.SnDisconnect, data: bytes) -> None:
        if self.state == NEW:
            if self._strays < MAX_STRAYS:
                self._strays += 1
                self._write(sn.SnDisconnect())
            return
        self._write(sn.SnDisconnect())
        if self.state < ACTIVE:
            self.state = NEW
            self._request, self._will = b"", None
            return
        if not packet.duration:
            self._link.send(Disconnect())
            self._end()
            return
        self._link.expect_within(packet.duration)
        self._fall_asleep()

    def _wake_up(self, packet: sn.SnConnect, data: bytes) -> None:
        self.state = ACTIVE
        self._request = data
        self._accepted(data)
        self._link.expect_within(packet.duration)
        self._write(sn.SnConnack(sn.ACCEPTED))
        self._resume()

    def _resume(self) -> None:
        """Send what the client has not answered before its sleep, then what has waited."""
        self._link.alive()
        now = self._link.now()
        for each in self._all_unanswered():
            each.tries = 0
            each.due = now
        self._link.release()
        self._repeat()
        self._deliver_waiting()

    def _accepted(self, data: bytes) -> None:
        self._answered = data
        self._answered_at = self._link.now()
        self._quiet = True

    def _end(self) -> None:
        self.state = OVER
        self._cancel_timer()
        self._waiting = self._unanswered = self._registering = None
        self._waiting_bytes = 0

    # The Will of a connected client

    def _update_will(self, packet: sn.SnWillTopic) -> None:
        old = self._will
        new: Will | None = None
        if packet.topic:
            payload = old.payload if isinstance(old, Will) else b""
            new = Will(packet.topic, payload, packet.qos, packet.retain)
        self._write(sn.SnWillResponse(sn.WILLTOPICRESP, self._set_will(new)))

    def _update_will_message(self, packet: sn.SnWillMsg) -> None:
        old = self._will
        if not isinstance(old, Will):
            self._write(sn.SnWillResponse(sn.WILLMSGRESP, sn.NOT_SUPPORTED))
            return
        new = Will(old.topic, packet.payload, old.qos, old.retain)
        self._write(sn.SnWillResponse(sn.WILLMSGRESP, self._set_will(new)))

    def _set_will(self, will: Will | None) -> int:
        self._link.alive()
        if will is not None and not valid_name(will.topic):
            return sn.INVALID_TOPIC_ID
        code = return_code(self._link.set_will(will))
        if code == sn.ACCEPTED:
            self._will = will
        return code

    # ------------------------------------------------------------------------------------------ from the broker

    def packet(self, packet: Outgoing) -> None:
        """Take a packet for the client."""
        if self.state == OVER:
            return
        if isinstance(packet, Message):
            self._deliver(packet)
        elif isinstance(packet, Ack):
            self._answer_publish(packet)
        elif isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, (Suback, Unsuback)):
            self._on_suback(packet)
        elif isinstance(packet, Pingresp):
            if self.state == AWAKE:
                self._drained()
            else:
                self._write(sn.SnSimple(sn.PINGRESP))
        elif isinstance(packet, Disconnect):
            if self.state in (ACTIVE, AWAKE):
                self._write(sn.SnDisconnect())
            self._end()

    def _on_connack(self, packet: Connack) -> None:
        if packet.reason_code:
            if self.state == LOGGING_IN:
                self._write(sn.SnConnack(sn.CONGESTION))  # EMQX's answer to every refusal; there is no better one
            self._end()
            return
        properties = packet.properties
        most = min(MAX_REQUESTS, int(properties.get(RECEIVE_MAXIMUM, MAX_REQUESTS)))
        qos = int(properties.get(MAXIMUM_QOS, 2))
        limits = most, qos, bool(properties.get(RETAIN_AVAILABLE, 1))
        self._limits = UNLIMITED if limits == UNLIMITED else limits
        if self.state == LOGGING_IN:
            self.state = ACTIVE
            self._accepted(self._answered)
            self._write(sn.SnConnack(sn.ACCEPTED))

    def _answer_publish(self, packet: Ack) -> None:
        msg_id = packet.packet_id
        publishing = self._publishing
        if packet.type == PUBREL:
            self._send_unanswered(msg_id, sn.frame(sn.PUBREL, msg_id.to_bytes(2)), sn.PUBCOMP)
            return
        topic_id, content = (0, 0) if publishing is None else publishing.get(msg_id, (0, 0))
        refused = packet.reason_code >= reason_codes.UNSPECIFIED_ERROR
        if packet.type == PUBREC and not refused:
            self._write(sn.SnReply(sn.PUBREC, msg_id))
            return
        if publishing is not None and msg_id in publishing:
            del publishing[msg_id]
            if not publishing:
                self._publishing = None
        if packet.type == PUBCOMP:
            if content and not refused:
                self._remember(msg_id, content)
            self._write(sn.SnReply(sn.PUBCOMP, msg_id))
        else:
            self._write(sn.SnPuback(topic_id, msg_id, return_code(packet.reason_code)))

    def _remember(self, msg_id: int, content: int) -> None:
        completed = self._completed
        if completed is None:
            completed = self._completed = {}
        completed.pop(msg_id, None)
        completed[msg_id] = content, self._link.now()
        if len(completed) > COMPLETED:
            del completed[next(iter(completed))]

    def _on_suback(self, packet: Suback | Unsuback) -> None:
        subscribing = self._subscribing
        topic_id = 0 if subscribing is None else subscribing.pop(packet.packet_id, 0)
        if not subscribing:
            self._subscribing = None
        if isinstance(packet, Unsuback):
            self._write(sn.SnReply(sn.UNSUBACK, packet.packet_id))
            return
        code = packet.reason_codes[0]
        if code > 2:
            self._write(sn.SnSuback(0, 0, packet.packet_id, return_code(code)))
        else:
            self._write(sn.SnSuback(code, topic_id, packet.packet_id, sn.ACCEPTED))

    # ----------------------------------------------------------------------------------------- to the client

    def _write(self, packet: sn.SnPacket) -> None:
        self._link.write(sn.encode(packet))

    def _deliver(self, message: Message) -> None:
        """Send a message, or let it wait until the client knows its topic and has proved its address."""
        if self._waiting is None and self._proved and self.state != ASLEEP:
            topic = message.topic
            topics = self._topics
            found = self._settings.predefined.of_name.get(topic)
            id_type = sn.PREDEFINED
            if found is None and topics is not None:
                found = topics.of_name.get(topic)
                id_type = sn.NORMAL
            if found is None:
                found = short_name(topic)
                id_type = sn.SHORT
            if found is not None:
                self._send_publish(message, found, id_type)
                return
        self._wait(message)

    def _send_publish(self, message: Message, topic_id: int, id_type: int) -> None:
        qos = message.qos
        data = sn.publish(topic_id, id_type, message.payload, qos, message.retain, message.dup, message.packet_id)
        if qos:
            self._send_unanswered(message.packet_id, data, sn.PUBACK if qos == 1 else sn.PUBREC, message.topic)
        else:
            self._link.write(data)

    def _send_unanswered(self, msg_id: int, data: bytes, answer: int, topic: str = "") -> None:
        if self._unanswered is None:
            self._unanswered = {}
        self._unanswered[msg_id] = Unanswered(data, answer, self._link.now() + self._settings.retry_interval, topic)
        self._link.write(data)
        self._set_timer()

    def _wait(self, message: Message, first: bool = False) -> None:
        size = message.payload_size + len(message.topic) + 100
        if not message.qos and self._waiting_bytes + size > self._settings.max_waiting_bytes:
            self._link.drop("waiting_for_client", "a message of QoS 0 for a client that has not answered REGISTER",
                            "max_waiting_bytes")  # fmt: skip
            return
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = deque()
        if first:
            waiting.appendleft(message)
        else:
            waiting.append(message)
        self._waiting_bytes += size
        if self._registering is None and self.state != ASLEEP:
            self._ask_for(waiting[0].topic)

    def _ask_for(self, topic: str) -> None:
        """Send a REGISTER. Its MsgId is a number that only the client's address can know: the answer proves it."""
        topics = self._known_topics()
        self._challenge = not self._proved and not (self._needs_register(topic) and self._fits(topic))
        if self._challenge:
            topic = topic if self._fits(topic) else CHALLENGE
        topic_id = topics.of_name.get(topic) or topics.lend(topic)
        msg_id = 1 + randbelow(MAX_CHALLENGE)
        data = sn.encode(sn.SnRegister(topic_id, msg_id, topic))
        unanswered = Unanswered(data, sn.REGACK, self._link.now() + self._settings.retry_interval)
        self._registering = msg_id, topic_id, topic, unanswered
        self._link.write(data)
        self._set_timer()

    def _fits(self, topic: str) -> bool:
        return self._link.room < 0 or len(topic.encode()) + 10 <= self._link.room

    def _needs_register(self, topic: str) -> bool:
        if topic in self._settings.predefined.of_name or (self._topics is not None and topic in self._topics.of_name):
            return False
        return short_name(topic) is None

    def _on_regack(self, packet: sn.SnRegack, data: bytes) -> None:
        registering = self._registering
        if registering is None or packet.msg_id != registering[0] or packet.topic_id != registering[1]:
            if registering is not None and not self._proved:
                # Whoever guesses has one attempt for each number.
                self._registering = None
                self._retry_register()
            return
        self._link.alive()
        if packet.code == sn.CONGESTION:
            return  # asked again when it is due
        self._registering = None
        if not self._proved:
            self._proved = True
            self._link.proved()
        if packet.code != sn.ACCEPTED:
            assert self._topics is not None
            self._topics.forget(registering[1])
            if not self._challenge:
                self._give_up_topic(registering[2])
        self._deliver_waiting()
        self._drain()

    def _retry_register(self) -> None:
        if self._waiting:
            self._ask_for(self._waiting[0].topic)

    def _give_up_topic(self, topic: str) -> None:
        """The client refuses a topic: its messages are done."""
        waiting = self._waiting or ()
        self._waiting = deque(each for each in waiting if each.topic != topic)
        for each in waiting:
            if each.topic == topic:
                self._waiting_bytes -= each.payload_size + len(topic) + 100
                self._link.drop("topic_refused", "a message for a client that has refused its topic")
                if each.qos:
                    kind = PUBACK if each.qos == 1 else PUBREC
                    self._link.send(Ack(kind, each.packet_id, reason_codes.IMPLEMENTATION_SPECIFIC_ERROR))

    def _deliver_waiting(self) -> None:
        waiting = self._waiting
        if waiting is None or self._registering is not None:
            return
        self._waiting = None
        while waiting:
            message = waiting[0]
            if not self._proved or self._needs_register(message.topic):
                self._waiting = waiting
                self._ask_for(message.topic)
                return
            waiting.popleft()
            self._waiting_bytes -= message.payload_size + len(message.topic) + 100
            self._deliver(message)
        assert self._waiting_bytes == 0, "bytes of messages that no longer wait"

    # ------------------------------------------------------------------------------------------- repetitions

    def _all_unanswered(self) -> list[Unanswered]:
        found = [] if self._unanswered is None else list(self._unanswered.values())
        return found if self._registering is None else [*found, self._registering[3]]

    def _set_timer(self) -> None:
        """Have one timer, for whatever is due first; it may fire earlier than that."""
        if self._timer is not None or self.state in (ASLEEP, OVER):
            return
        dues = [each.due for each in self._all_unanswered()]
        seconds = min(dues) - self._link.now() if dues else DRAIN_AGAIN
        self._timer = self._link.after(max(seconds, 0.0), self._on_time)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        if self.state in (ACTIVE, AWAKE):
            self._repeat()
            if not self._all_unanswered():
                self._drain()

    def _repeat(self) -> None:
        """Repeat what is due; a client that has not answered often enough is lost, or falls asleep again."""
        now = self._link.now()
        unanswered = self._all_unanswered()
        if not unanswered:
            self._unanswered = None
            return
        for each in unanswered:
            if each.due > now:
                continue
            if each.tries >= self._settings.max_retries:
                self._no_answer()
                return
            each.tries += 1
            each.due = now + self._settings.retry_interval
            if each.answer in (sn.PUBACK, sn.PUBREC):
                each.data = sn.repeated(each.data)
            self._link.write(each.data)
        self._set_timer()

    def _no_answer(self) -> None:
        if self.state == AWAKE:
            self._fall_asleep()
            return
        self._link.drop("no_answer", "the client has not answered max_retries repetitions", "max_retries")
        self._write(sn.SnDisconnect())
        self._link.send(Disconnect(WITH_WILL))
        self._end()

    def closed(self) -> None:
        """The connection has ended."""
        self._end()


_Handler = Callable[[Conversation, "sn.SnPacket", bytes], None]


def _in(*states: int) -> int:
    return sum(1 << state for state in states)


_CONNECTED: Final = _in(ACTIVE, AWAKE)
_REQUESTS: Final[dict[type, tuple[Callable[..., None], int]]] = {
    sn.SnSearchGw: (Conversation._on_search, _in(NEW, WILL_TOPIC, WILL_MESSAGE, LOGGING_IN, ACTIVE, ASLEEP, AWAKE)),
    sn.SnConnect: (
        Conversation._on_connect,
        _in(NEW, WILL_TOPIC, WILL_MESSAGE, LOGGING_IN, ACTIVE, ASLEEP, AWAKE, PUBLISHER),
    ),
    sn.SnWillTopic: (Conversation._on_will_topic, _in(WILL_TOPIC, WILL_MESSAGE) | _CONNECTED),
    sn.SnWillMsg: (Conversation._on_will_message, _in(WILL_MESSAGE) | _CONNECTED),
    sn.SnRegister: (Conversation._on_register, _CONNECTED),
    sn.SnRegack: (Conversation._on_regack, _CONNECTED),
    sn.SnPuback: (Conversation._on_puback, _CONNECTED),
    sn.SnReply: (Conversation._on_release, _CONNECTED),
    sn.SnSubscribe: (Conversation._on_subscribe, _CONNECTED),
    sn.SnPingreq: (Conversation._on_ping, _CONNECTED | _in(ASLEEP)),
    sn.SnSimple: (Conversation._on_pong, _CONNECTED),
    sn.SnDisconnect: (
        Conversation._on_disconnect,
        _in(NEW, WILL_TOPIC, WILL_MESSAGE, ACTIVE, ASLEEP, AWAKE),
    ),
}
"""Message -> what takes it, and the states in which it has a meaning, as bits."""
_FROM_GATEWAYS: Final = frozenset(
    (sn.SnAdvertise, sn.SnGwInfo, sn.SnConnack, sn.SnSuback, sn.SnWillResponse, sn.SnDisconnect, sn.SnSimple)
)
"""What no client sends: such a message is never answered."""
