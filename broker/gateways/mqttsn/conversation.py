"""The conversation of an MQTT-SN client with the node: MQTT-SN messages on one side, MQTT packets on the other.

The link is the only way out, and the clock is the link's. ``state`` names what the client may do next (``states``); the
table ``_REQUESTS`` has what is understood in which state, and everything else is counted and ignored: a datagram can be
late, repeated or forged, so none of them ends a conversation by being wrong.

``deliveries`` sends messages to the client, and repeats those that it has to answer. ``publications`` remembers its
messages of QoS 1 and 2."""

from collections.abc import Callable
from typing import Final

from ...gateway import GatewayLink, Pending
from ...mqtt import reason_codes
from ...mqtt.constants import (
    MAXIMUM_QOS,
    PUBCOMP,
    PUBREC,
    PUBREL,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
)
from ...mqtt.encoder import Outgoing
from ...mqtt.message import Message
from ...mqtt.packets import (
    Ack,
    Connack,
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
from ...mqtt.topics import is_plain, is_shared, valid_filter, valid_name
from . import codec as sn
from . import login, publications, wills
from .deliveries import Deliveries
from .publications import Publications
from .settings import MqttSnSettings
from .states import (
    ACTIVE,
    ASLEEP,
    AWAKE,
    LOGGING_IN,
    NEW,
    OVER,
    PUBLISHER,
    STATES,
    WILL_MESSAGE,
    WILL_TOPIC,
    entered,
    return_code,
)
from .topics import Topics, name_of

MAX_STRAYS: Final = 3
"""Answers to an address without a connection. Two gateways that answer each other's DISCONNECT must come to an end."""
MAX_REQUESTS: Final = 64
"""Maximum number of requests of one kind that a client has under way; a further one is rejected as congestion."""
REPEATED_WITHIN: Final = 5.0
"""Seconds in which the same CONNECT is the same request, and not that of a client that has restarted."""
UNLIMITED: Final = MAX_REQUESTS, 2, True
"""Receive Maximum, Maximum QoS and whether RETAIN is available, as most nodes have them."""
WITH_WILL: Final = 0x04
"""The Reason Code of a DISCONNECT that publishes the Will."""

# Flags of a conversation. The bits above them count the answers to an address without a connection.
_QUIET: Final = 1  # since the CONNACK, or since the last look at a publisher without a connection
_DRAINING: Final = 2  # the broker has been asked for a PINGRESP
_STRAY: Final = 4


class Conversation:
    """One client's conversation. ``broker.gateway.GatewayChannel`` describes the methods that the node calls."""

    __slots__ = (
        "_answered", "_answered_at", "_deliveries", "_flags", "_idle_timer", "_limits", "_link", "_publications",
        "_request", "_settings", "_subscribing", "_topics", "_will", "state",
    )  # fmt: skip

    def __init__(self, link: GatewayLink, settings: MqttSnSettings) -> None:
        self.state = NEW
        self._link = link
        self._settings = settings
        # The CONNECT as it has come, and the Will that belongs to it or was set later.
        self._request = b""
        self._will: sn.SnWillTopic | Will | None = None
        # The datagram that was answered with CONNACK, and when.
        self._answered = b""
        self._answered_at = 0.0
        self._flags = 0
        self._limits = UNLIMITED
        self._topics: Topics | None = None
        # MsgId of a SUBSCRIBE or UNSUBSCRIBE -> topic id.
        self._subscribing: dict[int, int] | None = None
        # These exist once the client needs them.
        self._publications: Publications | None = None
        self._deliveries: Deliveries | None = None
        self._idle_timer: Pending | None = None

    def _enter(self, state: int) -> None:
        self.state = entered(self.state, state)

    # ------------------------------------------------------------------------------------------ from the client

    def received(self, data: bytes) -> int:
        """Take one datagram."""
        try:
            packet = sn.decode(data)
        except sn.Malformed as error:
            self._link.drop("malformed_datagram", str(error))
            return len(data)
        if type(packet) is sn.SnPublish:
            self._flags &= ~_QUIET
            self._on_publish(packet, data)
            return len(data)
        if self._repeats(data):
            return len(data)
        self._flags &= ~_QUIET
        request = _REQUESTS.get(type(packet))
        if request is None or not request[1] >> self.state & 1:
            self._stray(packet)
        else:
            request[0](self, packet, data)
        return len(data)

    def _repeats(self, data: bytes) -> bool:
        """Answer a repeated request to connect, because the first answer was lost."""
        if data != self._answered or self.state not in (ACTIVE, PUBLISHER):
            return False
        if not self._flags & _QUIET and self._link.now() > self._answered_at + REPEATED_WITHIN:
            return False
        self._write(sn.SnConnack(sn.ACCEPTED))
        return True

    def _stray(self, packet: sn.SnPacket) -> None:
        """Ignore a message that has no meaning in this state; inform an address without a connection that it has
        none."""
        self._link.drop("unexpected_datagram", f"{type(packet).__name__} while {STATES[self.state]}")
        if self.state == NEW and self._flags < MAX_STRAYS * _STRAY and type(packet) not in _FROM_GATEWAYS:
            self._flags += _STRAY
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
            self._enter(WILL_TOPIC)
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
        """End the old connection and pass this message to a new conversation, because the client starts again."""
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
            self._enter(WILL_MESSAGE)
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
        self._will = wills.complete(topic, packet)
        self._log_in(data)

    def _log_in(self, data: bytes) -> None:
        request = self._requested()
        self._answered = data
        self._enter(LOGGING_IN)
        will = self._will
        assert not isinstance(will, sn.SnWillTopic)
        self._link.send(login.connect(self._settings, request, will))

    # To publish

    def _on_publish(self, packet: sn.SnPublish, data: bytes) -> None:
        state = self.state
        if packet.qos < 0:
            self._publish_without_connection(packet)
        elif state in (ACTIVE, AWAKE):
            topic = name_of(self._topics, self._settings.predefined, packet.topic_id, packet.id_type)
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
        if self._publications is None:
            self._publications = Publications(self._settings.retry_interval * (self._settings.max_retries + 1))
        found = self._publications.begin(packet, most, self._link.now())
        if found == publications.PUBLISH:
            self._link.publish(topic, packet.payload, packet.qos, packet.retain, packet.msg_id)
        elif found == publications.WAS_COMPLETED:
            self._write(sn.SnReply(sn.PUBREC, packet.msg_id))
        elif found == publications.TOO_MANY:
            self._write(sn.SnPuback(packet.topic_id, packet.msg_id, sn.CONGESTION))

    def _topic_name(self, topic_id: int, id_type: int) -> str | None:
        return name_of(self._topics, self._settings.predefined, topic_id, id_type)

    def _publish_without_connection(self, packet: sn.SnPublish) -> None:
        """Process a PUBLISH of QoS -1 to a predefined or short topic, if the listener accepts it. There is no
        answer."""
        state = self.state
        if not self._settings.enable_qos3:
            self._link.drop("qos3_off", "PUBLISH of QoS -1", "enable_qos3")
            return
        topic = None if packet.id_type == sn.NORMAL else self._topic_name(packet.topic_id, packet.id_type)
        if topic is None or (packet.retain and not self._limits[2]):
            self._link.drop("unexpected_datagram", "PUBLISH of QoS -1 to a topic that is neither predefined nor short")
            return
        if state == NEW:
            self._link.stay_newcomer()
            self._link.send(login.connect(self._settings, sn.SnConnect("", True), None))
            self._enter(PUBLISHER)
            self._idle_timer = self._link.after(self._link.idle_timeout, self._idle)
        elif state not in (ACTIVE, ASLEEP, AWAKE, PUBLISHER):
            self._link.drop("unexpected_datagram", f"PUBLISH while {STATES[state]}")
            return
        self._flags |= _QUIET
        self._link.publish(topic, packet.payload, 0, packet.retain)

    def _idle(self) -> None:
        """Keep a publisher without a connection for ``idle_timeout`` after its last message."""
        self._idle_timer = None
        if self._flags & _QUIET:
            self._flags &= ~_QUIET
            self._idle_timer = self._link.after(self._link.idle_timeout, self._idle)
        else:
            self._link.send(Disconnect())
            self._end()

    # To receive

    def _to_client(self) -> Deliveries:
        """Return what sends messages to the client."""
        if self._deliveries is None:
            self._deliveries = Deliveries(
                self._link, self._settings, self._known_topics(), self._drain, self._no_answer
            )
            # A publisher without a connection is sent nothing.
            self._deliveries.asleep = self.state in (ASLEEP, PUBLISHER)
        return self._deliveries

    def _on_release(self, packet: sn.SnReply, data: bytes) -> None:
        if packet.type == sn.PUBREL:
            self._link.send(Ack(PUBREL, packet.msg_id))
        elif self._deliveries is not None:
            self._deliveries.on_reply(packet)

    def _on_puback(self, packet: sn.SnPuback, data: bytes) -> None:
        self._to_client().on_puback(packet)

    def _on_regack(self, packet: sn.SnRegack, data: bytes) -> None:
        if self._deliveries is not None:
            self._deliveries.on_regack(packet)

    def _no_answer(self) -> None:
        if self.state == AWAKE:
            self._fall_asleep()
            return
        self._link.drop("no_answer", "the client has not answered max_retries repetitions", "max_retries")
        self._write(sn.SnDisconnect())
        self._link.send(Disconnect(WITH_WILL))
        self._end()

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
            self._topics = Topics(self._settings.predefined.of_id)
        return self._topics

    def _on_subscribe(self, packet: sn.SnSubscribe, data: bytes) -> None:
        topic_id = 0
        if isinstance(packet.topic, int):
            name = self._topic_name(packet.topic, packet.id_type)
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
        if packet.id_type == sn.NORMAL and valid_name(name) and is_plain(name):
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
            self._enter(AWAKE)
            self._resume()
            self._flags &= ~_DRAINING
            self._drain()
        else:
            self._link.send(Pingreq())

    def _on_pong(self, packet: sn.SnSimple, data: bytes) -> None:
        self._link.alive()

    def _drain(self) -> None:
        """Ask the broker for a PINGRESP, which follows all messages that can be sent to the client now."""
        if self.state == AWAKE and not self._flags & _DRAINING:
            self._flags |= _DRAINING
            self._link.send(Pingreq())

    def _drained(self) -> None:
        self._flags &= ~_DRAINING
        if self._deliveries is not None and not self._deliveries.idle:
            return  # its answer asks again
        if self._link.waiting:
            self._to_client().look_again()
            return
        self._write(sn.SnSimple(sn.PINGRESP))
        self._fall_asleep()

    def _fall_asleep(self) -> None:
        self._enter(ASLEEP)
        if self._deliveries is not None:
            self._deliveries.fall_asleep()
        self._link.hold()

    def _on_disconnect(self, packet: sn.SnDisconnect, data: bytes) -> None:
        if self.state == NEW:
            if self._flags < MAX_STRAYS * _STRAY:
                self._flags += _STRAY
                self._write(sn.SnDisconnect())
            return
        self._write(sn.SnDisconnect())
        if self.state < ACTIVE:
            self._enter(NEW)
            self._request, self._will = b"", None
            return
        if not packet.duration:
            self._link.send(Disconnect())
            self._end()
            return
        self._link.expect_within(packet.duration)
        self._fall_asleep()

    def _wake_up(self, packet: sn.SnConnect, data: bytes) -> None:
        self._enter(ACTIVE)
        self._request = data
        self._accepted(data)
        self._link.expect_within(packet.duration)
        self._write(sn.SnConnack(sn.ACCEPTED))
        self._resume()

    def _resume(self) -> None:
        self._link.alive()
        if self._deliveries is None:
            self._link.release()
        else:
            self._deliveries.resume()

    def _accepted(self, data: bytes) -> None:
        self._answered = data
        heard_at, now = self._link.heard_at, self._link.now()
        self._answered_at = now if now > heard_at + 1.0 else heard_at  # the link keeps this number anyway
        self._flags |= _QUIET

    def _end(self) -> None:
        self._enter(OVER)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._deliveries is not None:
            self._deliveries.end()

    # The Will of a connected client

    def _update_will(self, packet: sn.SnWillTopic) -> None:
        old = self._will
        assert not isinstance(old, sn.SnWillTopic)
        code = self._set_will(wills.with_topic(old, packet))
        self._write(sn.SnWillResponse(sn.WILLTOPICRESP, code))

    def _update_will_message(self, packet: sn.SnWillMsg) -> None:
        old = self._will
        code = self._set_will(wills.with_message(old, packet)) if isinstance(old, Will) else sn.NOT_SUPPORTED
        self._write(sn.SnWillResponse(sn.WILLMSGRESP, code))

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
        """Translate a packet for the client."""
        if self.state == OVER:
            return
        if isinstance(packet, Message):
            self._to_client().deliver(packet)
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
            self._enter(ACTIVE)
            self._accepted(self._answered)
            self._write(sn.SnConnack(sn.ACCEPTED))

    def _answer_publish(self, packet: Ack) -> None:
        msg_id = packet.packet_id
        if packet.type == PUBREL:
            self._to_client().release(msg_id)
            return
        refused = packet.reason_code >= reason_codes.UNSPECIFIED_ERROR
        if packet.type == PUBREC and not refused:
            self._write(sn.SnReply(sn.PUBREC, msg_id))
            return
        done = packet.type == PUBCOMP
        topic_id = 0
        if self._publications is not None:
            topic_id = self._publications.end(msg_id, done and not refused, self._link.now())
        if done:
            self._write(sn.SnReply(sn.PUBCOMP, msg_id))
        else:
            self._write(sn.SnPuback(topic_id, msg_id, return_code(packet.reason_code)))

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

    def closed(self) -> None:
        """The connection has ended."""
        self._end()


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
"""Messages that no client sends; they are never answered."""
