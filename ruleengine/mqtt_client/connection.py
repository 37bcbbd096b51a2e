"""BrokerConnection: MQTT in the client's role over one network connection, from CONNECT to DISCONNECT."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import encoder, reason_codes
from taipan.broker.mqtt.decoder import Decoder, Packet, TopicNames
from taipan.broker.mqtt.errors import MqttError, ProtocolError
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Properties,
    Suback,
    Subscribe,
    TopicFilter,
)
from taipan.broker.mqtt.reason_codes import DISCONNECT_FROM_CLIENT
from taipan.broker.observability.log_text import one_line, shorten

from ..network.allowed_networks import reason_of
from .session_state import OutgoingMessages, SessionState
from .stream import Stream

logger = logging.getLogger(__name__)

MAX_PACKET_SIZE: Final = 16_777_216
"""Maximum size of a Control Packet from the other broker."""
RECEIVE_MAXIMUM: Final = 100
"""Maximum number of QoS 1 and 2 messages from the other broker that wait to be stored here; nothing more is read in the
meantime."""
_MAX_UNSENT: Final = 262_144
"""Bytes waiting for the socket from which on no more messages are sent and nothing is read."""
_MESSAGES_A_TURN: Final = 100
_REFUSALS: Final = {
    reason_codes.UNSUPPORTED_PROTOCOL_VERSION: "unacceptable protocol version",
    reason_codes.CLIENT_IDENTIFIER_NOT_VALID: "identifier rejected",
    reason_codes.SERVER_UNAVAILABLE: "server unavailable",
    reason_codes.BAD_USER_NAME_OR_PASSWORD: "bad username or password",
    reason_codes.NOT_AUTHORIZED: "not authorized",
}
"""Names of the refusals in a 3.x CONNACK (MQTT 3.1.1, table 3.1)."""
_GOODBYE: Final = 1.0
"""Maximum seconds for closing a connection."""
_PING: Final = 0.75
"""Fraction of the Keep Alive after which PINGREQ is sent, so that it arrives in time."""


class BrokerUnreachable(Exception):
    """The other broker cannot be reached or used at present; the message is the reason in one line."""


class MessageReceiver(Protocol):
    """Receives the messages that the other broker sends."""

    async def ready(self) -> None:
        """Wait until more messages may arrive; nothing is read before that."""
        ...

    def take(self, message: Message) -> None:
        """Publish the message on this node."""
        ...

    async def stored(self) -> bool:
        """Wait until all accepted messages are stored here. Return False if they are not, and have to be sent again."""
        ...


class BrokerConnection:
    """``await connect(...)``, then ``publish``; ``await ended()`` returns why it ended, and the owner calls
    ``close``."""

    def __init__(
        self,
        stream: Stream,
        version: int,
        state: SessionState,
        receiver: MessageReceiver | None,
        answer_timeout: float,
    ) -> None:
        """``answer_timeout``: maximum seconds for an acknowledgement, and for the other broker to read."""
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._version = version
        self._state = state
        self._receiver = receiver
        self._answer_timeout = answer_timeout
        self._decoder = Decoder(TopicNames(capacity=1024), MAX_PACKET_SIZE, MAX_PACKET_SIZE, server_side=False)
        self._decoder.version = version
        self._ended: asyncio.Future[str] = self._loop.create_future()
        self._connack: asyncio.Future[Connack] = self._loop.create_future()
        self._suback: asyncio.Future[Suback] = self._loop.create_future()
        self._broken = ""  # how the other broker has violated the protocol
        self._max_qos = 2
        self._max_packet_size = 0
        self._retain_available = True
        # Data that waits for the socket, and the messages of QoS 0 in it.
        self._unsent: list[bytes] = []
        self._unsent_octets = 0
        self._unsent0: list[OutgoingMessages] = []
        self._writing0: list[OutgoingMessages] = []
        self._to_write = asyncio.Event()
        self._written = asyncio.Event()
        # PUBACK and PUBREC that wait until their messages are stored, in order [MQTT-4.6.0-2] [MQTT-4.6.0-3].
        self._to_acknowledge: list[int] = []
        self._to_store = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._awaiting_store = 0
        self._heard_at = 0.0
        self._reads = False
        self._overdue: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------- connect

    async def connect(self, packet: Connect, filters: list[TopicFilter]) -> bool:
        """Send CONNECT and SUBSCRIBE; return whether the other broker had a session. Call it with a timeout.

        Raises BrokerUnreachable."""
        self._send(encoder.encode(packet, self._version))
        for work in (self._read, self._write, self._acknowledge):
            self._spawn(work)
        connack: Connack = await self._answer(self._connack)
        properties = connack.properties
        if connack.reason_code:
            said = _told(connack.reason_code, properties)
            raise BrokerUnreachable(f"CONNACK: {said if self._version == c.V5 else _REFUSALS[connack.reason_code]}")
        self._max_qos = int(properties.get(c.MAXIMUM_QOS, 2))
        self._max_packet_size = int(properties.get(c.MAXIMUM_PACKET_SIZE, 0))
        self._retain_available = bool(properties.get(c.RETAIN_AVAILABLE, 1))
        keep_alive = int(properties.get(c.SERVER_KEEP_ALIVE, packet.keep_alive))  # [MQTT-3.2.2-21]
        if keep_alive:
            self._spawn(lambda: self._keep_alive(keep_alive))
        if filters:
            await self._subscribe(filters)
        if self._broken:
            raise BrokerUnreachable(self._broken)
        self._send_messages()
        return connack.session_present

    async def _subscribe(self, filters: list[TopicFilter]) -> None:
        packet_id = self._state.free_packet_id()
        octets = encoder.encode(Subscribe(packet_id, filters), self._version)
        if 0 < self._max_packet_size < len(octets):
            raise BrokerUnreachable(
                f"SUBSCRIBE: {len(octets)} bytes, and the other side accepts {self._max_packet_size}"
            )
        self._send(octets)
        suback: Suback = await self._answer(self._suback)
        codes = suback.reason_codes
        if suback.packet_id != packet_id or len(codes) != len(filters):
            raise BrokerUnreachable("SUBACK: not the answer to this SUBSCRIBE")
        refused = [
            f"{each.filter} ({reason_codes.name(code)})"
            for each, code in zip(filters, codes, strict=True)
            if code >= reason_codes.UNSPECIFIED_ERROR
        ]
        if refused:
            raise BrokerUnreachable(f"SUBACK: refused {', '.join(refused)}")

    async def _answer(self, answer: "asyncio.Future[Any]") -> Any:
        await asyncio.wait((answer, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise BrokerUnreachable(self._ended.result())
        return answer.result()

    # ---------------------------------------------------------------- end

    async def ended(self) -> str:
        """Wait for the end and return its reason."""
        return await asyncio.shield(self._ended)

    def _end(self, reason: str) -> None:
        if self._ended.done():
            return
        self._ended.set_result(reason)
        if self._overdue is not None:
            self._overdue.cancel()
        error = BrokerUnreachable(reason)
        self._state.disconnected(error)
        for each in (*self._writing0, *self._unsent0):
            if each.waiter is not None and not each.waiter.done():
                each.waiter.set_exception(error)

    def abort(self) -> None:
        """End the connection immediately, without DISCONNECT; ``close`` still has to be called."""
        self._end("closed")

    async def close(self, session_ends: bool = False) -> None:
        """Send DISCONNECT if the connection is still open. ``session_ends``: in 5.0, end the session immediately."""
        try:
            if not self._ended.done() and not self._broken:
                properties = {c.SESSION_EXPIRY_INTERVAL: 0} if session_ends and self._version == c.V5 else {}
                await self._say_goodbye(Disconnect(properties=properties))
        finally:
            self._end("closed")
            self._stream.abort()
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _say_goodbye(self, packet: Disconnect) -> None:
        last = b"".join(self._unsent) + encoder.encode(packet, self._version)
        self._unsent.clear()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self._stream.write(last)
                await self._stream.close()

    def _spawn(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        self._tasks.append(self._loop.create_task(self._guard(work)))

    async def _guard(self, work: Callable[[], Coroutine[object, object, None]]) -> None:
        try:
            await work()
        except OSError as error:
            self._end(reason_of(error))
        except MqttError as error:
            self._broken = f"bad packet: {error}"
            if self._version == c.V5 and error.reason_code in DISCONNECT_FROM_CLIENT:
                await self._say_goodbye(Disconnect(error.reason_code))
            self._end(self._broken)
        except Exception as error:
            logger.exception("bridge_connection_failed error=%s", error)
            self._end(reason_of(error))

    # ---------------------------------------------------------------- outbound messages

    async def publish(self, key: object, message: Message) -> int:
        """Return the Reason Code of the other broker's answer; for QoS 0, 0 when the message is sent. Raises
        BrokerUnreachable.

        ``key`` identifies the message: if it was in flight when an earlier connection broke, it is not sent twice."""
        if self._ended.done():
            raise BrokerUnreachable(self._ended.result())
        message.qos = min(message.qos, self._max_qos)  # [MQTT-3.2.2-11]
        message.retain = message.retain and self._retain_available  # [MQTT-3.2.2-14]
        outgoing = self._state.offer(key, message)
        if outgoing.answer is None:
            outgoing.waiter = self._loop.create_future()
            self._send_messages()
            await outgoing.waiter
        assert outgoing.answer is not None
        return outgoing.answer

    def _send_messages(self) -> None:
        """Send as many messages as the window and the socket allow."""
        while self._unsent_octets < _MAX_UNSENT and not self._ended.done():
            outgoing = self._state.next_to_send(self._loop.time())
            if outgoing is None:
                return
            message = outgoing.message
            if outgoing.released:
                self._send(encoder.ack(c.PUBREL, message.packet_id))
            else:
                octets = self._encode(message)
                if octets is None:
                    self._state.answered(outgoing, reason_codes.PACKET_TOO_LARGE)
                    continue
                self._send(octets)
                if not message.qos:
                    self._unsent0.append(outgoing)
            if message.qos and self._overdue is None:
                self._overdue = self._loop.call_later(self._answer_timeout, self._look_for_overdue)

    def _encode(self, message: Message) -> bytes | None:
        """Return None for a message that is larger than the other broker accepts [MQTT-3.2.2-15]."""
        try:
            octets = encoder.encode(message, self._version)
        except ValueError:  # larger than any packet can be
            return None
        return None if 0 < self._max_packet_size < len(octets) else octets

    def _look_for_overdue(self) -> None:
        self._overdue = None
        oldest = self._state.oldest
        if oldest is None:
            return
        left = oldest + self._answer_timeout - self._loop.time()
        if left > 0:
            self._overdue = self._loop.call_later(left, self._look_for_overdue)
        else:
            # Messages may only be sent again on a new connection [MQTT-4.4.0-1].
            self._end(f"no acknowledgement within {self._answer_timeout:g} seconds")

    def _send(self, octets: bytes) -> None:
        self._unsent.append(octets)
        self._unsent_octets += len(octets)
        self._to_write.set()

    async def _write(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            octets, self._unsent = b"".join(self._unsent), []
            self._writing0, self._unsent0 = self._unsent0, []
            try:
                async with asyncio.timeout(self._answer_timeout):
                    await self._stream.write(octets)
            except TimeoutError:
                self._end(f"the other side has read nothing for {self._answer_timeout:g} seconds")
                return
            self._unsent_octets -= len(octets)
            for outgoing in self._writing0:
                self._state.answered(outgoing, reason_codes.SUCCESS)
            self._writing0 = []
            self._written.set()
            self._send_messages()

    async def _keep_alive(self, seconds: int) -> None:
        asked_at = 0.0
        while True:
            await asyncio.sleep(seconds * _PING)
            if asked_at and self._reads and self._heard_at <= asked_at:
                self._end(f"no answer to PINGREQ within {seconds * _PING:g} seconds")
                return
            asked_at = self._loop.time()
            self._send(encoder.encode(Pingreq(), self._version))

    # ---------------------------------------------------------------- reading

    async def _read(self) -> None:
        count = 0
        while True:
            # Data that arrived while reading was paused shows that the other broker is alive.
            self._heard_at = self._loop.time()
            self._reads = True
            octets = await self._stream.read()
            self._reads = False
            if not octets:
                self._end("the other side closed the connection")
                return
            for packet in self._decoder.feed(octets):
                self._take(packet)
                count += 1
                if count >= _MESSAGES_A_TURN or self._awaiting_store >= RECEIVE_MAXIMUM:
                    count = 0
                    await self._room()
                if self._ended.done():
                    return
            await self._room()

    async def _room(self) -> None:
        """Wait while other tasks run, and until less data has to be stored or sent."""
        await asyncio.sleep(0)
        if self._receiver is not None:
            await self._receiver.ready()
        while self._awaiting_store >= RECEIVE_MAXIMUM:
            self._acknowledged.clear()
            await self._acknowledged.wait()
        while self._unsent_octets >= _MAX_UNSENT:
            self._written.clear()
            await self._written.wait()

    def _take(self, packet: Packet) -> None:
        if isinstance(packet, MqttError):
            raise packet
        if isinstance(packet, Connack):
            if self._connack.done():
                raise ProtocolError("second CONNACK")
            if not packet.reason_code:
                self._state.connected(
                    packet.session_present,
                    int(packet.properties.get(c.RECEIVE_MAXIMUM, c.MAX_PACKET_ID)),
                    int(packet.properties.get(c.MAXIMUM_QOS, 2)),
                )
            self._connack.set_result(packet)
        elif isinstance(packet, Disconnect):
            self._end(f"DISCONNECT: {_told(packet.reason_code, packet.properties)}")
        elif not self._connack.done():
            raise ProtocolError("no CONNACK as the first packet")  # [MQTT-3.2.0-1]
        elif isinstance(packet, Message):
            self._message(packet)
        elif isinstance(packet, int):
            self._ack(packet >> 16, packet & 0xFFFF, reason_codes.SUCCESS)
        elif isinstance(packet, Ack):
            self._ack(packet.type, packet.packet_id, packet.reason_code)
        elif isinstance(packet, Suback):
            if not self._suback.done():
                self._suback.set_result(packet)
        elif not isinstance(packet, Pingresp):
            raise ProtocolError(f"{type(packet).__name__.upper()} for which nothing was sent")

    def _ack(self, kind: int, packet_id: int, code: int) -> None:
        if kind == c.PUBREL:
            self._released(packet_id)
            return
        outgoing = self._state.find(packet_id)
        if outgoing is None or not outgoing.sent_at:
            if kind == c.PUBREC:
                answer = Ack(c.PUBREL, packet_id, reason_codes.PACKET_IDENTIFIER_NOT_FOUND)
                self._send(encoder.encode(answer, self._version))
            return
        if kind == c.PUBREC and outgoing.released:
            self._send(encoder.ack(c.PUBREL, packet_id))
            return
        if kind != (c.PUBACK if outgoing.message.qos == 1 else c.PUBCOMP if outgoing.released else c.PUBREC):
            raise ProtocolError(f"packet type {kind} does not acknowledge QoS {outgoing.message.qos}")
        if kind == c.PUBREC and code < reason_codes.UNSPECIFIED_ERROR:
            # [MQTT-4.3.3-4]
            outgoing.released = True
            outgoing.sent_at = self._loop.time()
            self._send(encoder.ack(c.PUBREL, packet_id))
            return
        # PUBCOMP means complete or unknown, which is the same after PUBREC.
        self._state.answered(outgoing, reason_codes.SUCCESS if kind == c.PUBCOMP else code)
        self._send_messages()

    # ---------------------------------------------------------------- inbound messages

    def _message(self, message: Message) -> None:
        if message.has_alias:
            raise ProtocolError("Topic Alias above the maximum of 0", reason_codes.TOPIC_ALIAS_INVALID)
        if self._receiver is None:
            raise ProtocolError("PUBLISH without a subscription")
        number, qos = message.packet_id, message.qos
        if qos < 2 or number not in self._state.unreleased:  # [MQTT-4.3.3-10]
            self._receiver.take(message)
        if qos == 2:
            self._state.unreleased.add(number)
        if qos:
            self._to_acknowledge.append((c.PUBACK if qos == 1 else c.PUBREC) << 16 | number)
            self._awaiting_store += 1
            self._to_store.set()

    async def _acknowledge(self) -> None:
        """Send PUBACK and PUBREC when their messages are stored; one wait covers all earlier messages."""
        while True:
            await self._to_store.wait()
            self._to_store.clear()
            acks, self._to_acknowledge = self._to_acknowledge, []
            assert self._receiver is not None
            if not await self._receiver.stored():
                # Without an acknowledgement they are sent again on the next connection.
                self._state.unreleased.difference_update([ack & 0xFFFF for ack in acks if ack >> 16 == c.PUBREC])
                self._end("a message could not be stored here")
                return
            self._send(b"".join([encoder.ack(ack >> 16, ack & 0xFFFF) for ack in acks]))
            self._awaiting_store -= len(acks)
            self._acknowledged.set()

    def _released(self, packet_id: int) -> None:
        known = packet_id in self._state.unreleased
        self._state.unreleased.discard(packet_id)
        code = reason_codes.SUCCESS if known else reason_codes.PACKET_IDENTIFIER_NOT_FOUND
        self._send(encoder.encode(Ack(c.PUBCOMP, packet_id, code), self._version))


def _told(code: int, properties: Properties) -> str:
    """Return a Reason Code by its name, with the other broker's Reason String."""
    said = [properties[each] for each in (c.REASON_STRING, c.SERVER_REFERENCE) if each in properties]
    return " ".join([reason_codes.name(code), *(one_line(shorten(each)) for each in said)])
