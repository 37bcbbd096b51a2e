"""SessionState: the client's part of a session, kept between network connections (MQTT 5.0, section 4.1).

Without I/O and clock: ``connection.py`` sends the results of ``next_to_send``, and reports answers."""

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final

from taipan.broker.mqtt.message import Message

MAX_IN_FLIGHT: Final = 64
"""Maximum number of QoS 1 and 2 messages in flight, even if the other broker accepts more."""


class OutgoingMessages:
    """One PUBLISH to be sent. ``key`` identifies it for the caller: the same object means the same message.

    ``released``: PUBREC has arrived, so PUBREL has to be sent. ``sent_at``: when it was sent on this connection (0: not
    yet). ``answer``: the Reason Code of the other broker, None if there is none yet; ``waiter`` receives it."""

    __slots__ = ("answer", "key", "message", "released", "sent_at", "waiter")

    def __init__(self, key: object, message: Message) -> None:
        self.key = key
        self.message = message
        self.released = False
        self.sent_at = 0.0
        self.answer: int | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether a caller waits for its answer."""
        return self.waiter is not None and not self.waiter.done()


class SessionState:
    """``unreleased``: Packet Identifiers of received QoS 2 messages that are not released."""

    def __init__(self) -> None:
        self.unreleased: set[int] = set()
        self._waiting: deque[OutgoingMessages] = deque()
        self._resend: deque[OutgoingMessages] = deque()
        # Sent without an answer, by Packet Identifier, in the order in which they were first sent.
        self._in_flight: dict[int, OutgoingMessages] = {}
        self._by_key: dict[int, OutgoingMessages] = {}
        # Answered while no caller waited: the next caller with the same key gets the answer.
        self._answered: OrderedDict[int, OutgoingMessages] = OrderedDict()
        self._window = MAX_IN_FLIGHT
        self._unanswered = 0
        self._packet_ids: Iterator[int] = itertools.cycle(range(1, 65_536))

    # ---------------------------------------------------------------- connections

    def connected(self, session_present: bool, receive_maximum: int, max_qos: int) -> None:
        """Note a new connection. If the other broker has no session, this one is discarded, too [MQTT-3.2.2-5]."""
        if not session_present:
            self.unreleased.clear()
        gone = [each for each in self._in_flight.values() if not session_present or each.message.qos > max_qos]
        for each in gone:  # a caller with the same key then offers a new message
            del self._in_flight[each.message.packet_id]
            self._by_key.pop(id(each.key), None)
        self._window = min(receive_maximum, MAX_IN_FLIGHT)
        self._resend = deque(self._in_flight.values())

    def disconnected(self, error: Exception) -> None:
        """Note the end of the connection; sent messages stay for callers with the same key and for the next
        connection."""
        for each in [*self._waiting, *self._in_flight.values()]:
            each.sent_at = 0.0
            if each.waiter is not None and not each.waiter.done():
                each.waiter.set_exception(error)
            each.waiter = None
        for each in self._waiting:
            self._by_key.pop(id(each.key), None)
        self._waiting.clear()
        self._resend.clear()
        self._unanswered = 0

    # ---------------------------------------------------------------- outbound messages

    def offer(self, key: object, message: Message) -> OutgoingMessages:
        """Return the message with this key that is already being sent, or a new one that waits."""
        answered = self._answered.pop(id(key), None)
        if answered is not None:
            return answered
        known = self._by_key.get(id(key))
        if known is None:
            known = OutgoingMessages(key, message)
            self._waiting.append(known)
            if message.qos:
                self._by_key[id(key)] = known
        return known

    def next_to_send(self, now: float) -> OutgoingMessages | None:
        """Return the next message in order, within the window: send PUBLISH, or PUBREL if it is ``released``. None:
        nothing now.

        Messages from the last connection come first, in order and with DUP [MQTT-4.4.0-1] [MQTT-4.6.0-1]."""
        while self._waiting and not self._resend and not self._waiting[0].wanted:
            self._by_key.pop(id(self._waiting.popleft().key), None)
        queue = self._resend or self._waiting
        if not queue:
            return None
        outgoing = queue[0]
        message = outgoing.message
        if message.qos:
            if self._unanswered >= self._window:  # [MQTT-4.9.0-2] [MQTT-4.9.0-3]
                return None
            if queue is self._resend:
                message.dup = True  # [MQTT-3.3.1-1]
            else:
                message.packet_id = self.free_packet_id()
                self._in_flight[message.packet_id] = outgoing
            self._unanswered += 1
        outgoing.sent_at = now
        queue.popleft()
        return outgoing

    def free_packet_id(self) -> int:
        """Return an identifier that is not in flight [MQTT-2.2.1-3]."""
        return next(number for number in self._packet_ids if number not in self._in_flight)

    def find(self, packet_id: int) -> OutgoingMessages | None:
        """Return the message in flight with this Packet Identifier."""
        return self._in_flight.get(packet_id)

    def answered(self, outgoing: OutgoingMessages, reason_code: int) -> None:
        """Note that the other broker has answered; at QoS 0, that the message was sent."""
        outgoing.answer = reason_code
        if self._in_flight.pop(outgoing.message.packet_id, None) is not None:
            self._by_key.pop(id(outgoing.key), None)
            self._unanswered -= 1
        if outgoing.waiter is not None and not outgoing.waiter.done():
            outgoing.waiter.set_result(None)
        elif outgoing.message.qos:
            self._answered[id(outgoing.key)] = outgoing
            if len(self._answered) > MAX_IN_FLIGHT:
                self._answered.popitem(last=False)

    @property
    def oldest(self) -> float | None:
        """Return since when the other broker has not answered on this connection."""
        return min((each.sent_at for each in self._in_flight.values() if each.sent_at), default=None)
