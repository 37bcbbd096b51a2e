"""Messages for a client: they are sent, or wait until the client has proved its address and knows the topic id.

``deliver`` writes a message, or adds it to ``_waiting``. Whatever the client has to answer is in ``_unanswered`` or
``_registering``, and is repeated by one timer. While the client sleeps, nothing is sent and nothing is repeated."""

from collections import deque
from collections.abc import Callable
from secrets import randbelow
from typing import Final

from ...gateway import GatewayLink, Pending
from ...mqtt import reason_codes
from ...mqtt.constants import PUBACK, PUBCOMP, PUBREC
from ...mqtt.message import Message
from ...mqtt.packets import Ack
from . import codec as sn
from .settings import MqttSnSettings
from .topics import Topics, known_id, needs_register

CHALLENGE: Final = "$"
"""A topic name for a REGISTER that only has to be answered. No client can publish to it."""
MAX_CHALLENGE: Final = 0x7FFF
"""The greatest MsgId of a REGISTER: there are clients that read it as a signed number."""
LOOK_AGAIN: Final = 0.1
"""Seconds until the session of a client that is awake is looked at again."""
_MESSAGE_BYTES: Final = 100
"""Approximate memory of a waiting message without its topic and payload."""


class Unanswered:
    """A message that the client has to answer with a message of type ``answer``. ``due``: when it is repeated.
    ``topic``: the topic of a PUBLISH."""

    __slots__ = ("answer", "data", "due", "topic", "tries")

    def __init__(self, data: bytes, answer: int, due: float, topic: str = "") -> None:
        self.data = data
        self.answer = answer
        self.due = due
        self.topic = topic
        self.tries = 0


def _size(message: Message) -> int:
    return message.payload_size + len(message.topic) + _MESSAGE_BYTES


class Deliveries:
    """The deliveries to one client. ``answered`` is called when the client has answered something, and ``lost`` when it
    has not answered all repetitions."""

    __slots__ = (
        "_answered", "_challenge", "_link", "_lost", "_proved", "_registering", "_settings", "_timer", "_topics",
        "_unanswered", "_waiting", "_waiting_bytes", "asleep",
    )  # fmt: skip

    def __init__(
        self,
        link: GatewayLink,
        settings: MqttSnSettings,
        topics: Topics,
        answered: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.asleep = False
        self._link = link
        self._settings = settings
        self._topics = topics
        self._answered = answered
        self._lost = lost
        # Messages that wait for REGACK.
        self._waiting: deque[Message] | None = None
        self._waiting_bytes = 0
        # MsgId of PUBLISH or PUBREL -> the message; the REGISTER that is not answered, by its MsgId, topic id, name.
        self._unanswered: dict[int, Unanswered] | None = None
        self._registering: tuple[int, int, str, Unanswered] | None = None
        self._challenge = False  # the REGISTER only proves the address
        self._proved = False
        self._timer: Pending | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing has to be answered."""
        return not self._waiting and not self._unanswered and self._registering is None

    # ------------------------------------------------------------------------------------------ to the client

    def deliver(self, message: Message) -> None:
        """Send a message, or let it wait until the client knows its topic and has proved its address."""
        if self._waiting is None and self._proved and not self.asleep:
            found = known_id(self._topics, self._settings.predefined, message.topic)
            if found is not None:
                self._send_publish(message, *found)
                return
        self._wait(message)

    def release(self, msg_id: int) -> None:
        """Send PUBREL."""
        self._send_unanswered(msg_id, sn.frame(sn.PUBREL, msg_id.to_bytes(2)), sn.PUBCOMP)

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
        size = _size(message)
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
        if self._registering is None and not self.asleep:
            self._ask_for(waiting[0].topic)

    def _ask_for(self, topic: str) -> None:
        """Send a REGISTER. Its MsgId and topic id are numbers that only the client's address can know: the answer
        proves it."""
        assert self._registering is None, "one REGISTER at a time"
        topics = self._topics
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
        return needs_register(self._topics, self._settings.predefined, topic)

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
            self._waiting_bytes -= _size(message)
            self.deliver(message)
        assert self._waiting_bytes == 0, "bytes of messages that no longer wait"

    # ------------------------------------------------------------------------------------------ from the client

    def on_regack(self, packet: sn.SnRegack) -> None:
        """The client has answered a REGISTER."""
        registering = self._registering
        if registering is None or packet.msg_id != registering[0] or packet.topic_id != registering[1]:
            if registering is not None and not self._proved:
                # Whoever guesses has one attempt for each number.
                self._registering = None
                if self._waiting:
                    self._ask_for(self._waiting[0].topic)
            return
        self._link.alive()
        if packet.code == sn.CONGESTION:
            return  # asked again when it is due
        self._registering = None
        if not self._proved:
            self._proved = True
            self._link.proved()
        if packet.code != sn.ACCEPTED:
            self._topics.forget(registering[1])
            if not self._challenge:
                self._give_up_topic(registering[2])
        self._deliver_waiting()
        self._answered()

    def _give_up_topic(self, topic: str) -> None:
        """Drop the messages of a topic that the client refuses."""
        waiting = self._waiting or ()
        self._waiting = deque(each for each in waiting if each.topic != topic)
        for each in waiting:
            if each.topic == topic:
                self._waiting_bytes -= _size(each)
                self._link.drop("topic_refused", "a message for a client that has refused its topic")
                if each.qos:
                    kind = PUBACK if each.qos == 1 else PUBREC
                    self._link.send(Ack(kind, each.packet_id, reason_codes.IMPLEMENTATION_SPECIFIC_ERROR))

    def on_puback(self, packet: sn.SnPuback) -> None:
        """Note that the client has received a message of QoS 1, or refuses it."""
        unanswered = self._unanswered
        waited = None if unanswered is None else unanswered.get(packet.msg_id)
        if waited is None or unanswered is None:
            if packet.code == sn.INVALID_TOPIC_ID:
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
        self._answered()

    def _forgets(self, topic_id: int, topic: str) -> bool:
        """Return whether another REGISTER may help a client that does not know the id of a topic."""
        if topic in self._settings.predefined.of_name:
            return False
        if self._topics.of_id.get(topic_id) == topic:
            self._topics.forget(topic_id)
        return self._needs_register(topic)

    def on_reply(self, packet: sn.SnReply) -> None:
        """PUBREC or PUBCOMP for a message of QoS 2."""
        unanswered = self._unanswered
        waited = None if unanswered is None else unanswered.get(packet.msg_id)
        if waited is None or unanswered is None or packet.type != waited.answer:
            return  # it was answered before
        del unanswered[packet.msg_id]
        self._link.send(Ack(PUBREC if packet.type == sn.PUBREC else PUBCOMP, packet.msg_id))
        if packet.type == sn.PUBCOMP:
            self._answered()

    # ------------------------------------------------------------------------------------------- sleep, repetitions

    def fall_asleep(self) -> None:
        """Stop sending and repeating messages, because the client sleeps."""
        self.asleep = True
        self._cancel_timer()

    def resume(self) -> None:
        """Send the messages that the client had not answered before its sleep, then those that have waited."""
        self.asleep = False
        now = self._link.now()
        for each in self._all_unanswered():
            each.tries = 0
            each.due = now
        self._link.release()
        self._repeat()
        self._deliver_waiting()

    def look_again(self) -> None:
        """Call ``answered`` soon: the session still has messages."""
        self._set_timer()

    def end(self) -> None:
        """End the conversation."""
        self._cancel_timer()
        self._waiting = self._unanswered = self._registering = None
        self._waiting_bytes = 0

    def _all_unanswered(self) -> list[Unanswered]:
        found = [] if self._unanswered is None else list(self._unanswered.values())
        return found if self._registering is None else [*found, self._registering[3]]

    def _set_timer(self) -> None:
        """Set the one timer for whatever is due first; it may fire earlier than that."""
        if self._timer is not None or self.asleep:
            return
        dues = [each.due for each in self._all_unanswered()]
        seconds = min(dues) - self._link.now() if dues else LOOK_AGAIN
        self._timer = self._link.after(max(seconds, 0.0), self._on_time)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        assert not self.asleep, "a sleeping client has no timer"
        self._repeat()
        if not self._all_unanswered():
            self._answered()

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
                self._lost()
                return
            each.tries += 1
            each.due = now + self._settings.retry_interval
            if each.answer in (sn.PUBACK, sn.PUBREC):
                each.data = sn.repeated(each.data)
            self._link.write(each.data)
        self._set_timer()
