"""Protocol5: MQTT 5.0 in the client's role over one connection, for bridges, by the broker's own codec.

A User Property carries how often a message has crossed from one broker to another (``hops``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import encoder, reason_codes
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.errors import MqttError
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
)

from ..hops import hops_of, with_hops
from ..networks import reason_of
from .resource import ResourceError

logger = logging.getLogger(__name__)

_MOST_IN: Final = 100
"""Messages of QoS 1 and 2 that the other side may have under way to us."""
_LARGEST_IN: Final = 16_777_216
_READ: Final = 65_536
# What the other side may take later: the rest of what is 0x80 and above it will not take at all.
_LATER: Final = frozenset({reason_codes.QUOTA_EXCEEDED, reason_codes.RECEIVE_MAXIMUM_EXCEEDED})

OnMessage = Callable[[str, bytes, int, bool, int], Awaitable[bool]]
"""Topic, payload, QoS, RETAIN and hops of a message that came in; whether it may be acknowledged."""


class NotTaken(ResourceError):
    """The other side answered, and will not take this message."""


class Protocol5:
    """``await connect(...)``, then ``publish``; ``lost`` is set when the connection is gone."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        unreleased: set[int],
        on_message: OnMessage | None,
    ) -> None:
        self.lost = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._unreleased = unreleased
        self._on_message = on_message
        self._decoder = Decoder(TopicNames(False), _LARGEST_IN, _LARGEST_IN, server_side=False)
        self._decoder.version = c.V5
        self._waiters: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._ids = itertools.cycle(range(1, 65_536))
        self._window = asyncio.Semaphore(65_535)
        self._max_qos = 2
        self._max_packet = 0
        self._retain = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = 0.0

    async def connect(self, packet: Connect, subscriptions: list[tuple[str, int]]) -> None:
        """Raises ResourceError where the other side refuses."""
        expiry = 0 if packet.clean_start else c.NEVER_EXPIRES
        packet.properties = {
            c.SESSION_EXPIRY_INTERVAL: expiry,
            c.RECEIVE_MAXIMUM: _MOST_IN,
            c.MAXIMUM_PACKET_SIZE: _LARGEST_IN,
        }
        self._spawn(self._read())
        connack = await self._ask(packet, c.CONNACK, 0)
        assert isinstance(connack, Connack)
        if connack.reason_code:
            told = connack.properties.get(c.REASON_STRING, "")
            raise ResourceError(f"CONNACK: {reason_codes.name(connack.reason_code)} {told}".rstrip())
        if not connack.session_present:
            self._unreleased.clear()
        properties = connack.properties
        self._window = asyncio.Semaphore(int(properties.get(c.RECEIVE_MAXIMUM, 65_535)))
        self._max_qos = int(properties.get(c.MAXIMUM_QOS, 2))
        self._max_packet = int(properties.get(c.MAXIMUM_PACKET_SIZE, 0))
        self._retain = bool(properties.get(c.RETAIN_AVAILABLE, 1))
        self._spawn(self._keep_alive(int(properties.get(c.SERVER_KEEP_ALIVE, packet.keep_alive))))
        if subscriptions:
            number = self._free_id(c.SUBACK)
            filters = [TopicFilter(topic, qos, retain_as_published=True) for topic, qos in subscriptions]
            suback = await self._ask(Subscribe(number, filters), c.SUBACK, number)
            codes = zip(subscriptions, suback.reason_codes, strict=False)
            refused = [topic for (topic, _), code in codes if code >= reason_codes.UNSPECIFIED_ERROR]
            if refused:
                raise ResourceError(f"SUBACK: refused {', '.join(refused)}")

    async def publish(self, topic: str, payload: bytes, qos: int, retain: bool, timeout: float, hops: int = 0) -> None:
        """Until it is acknowledged. Raises OSError where the connection is lost, NotTaken, ResourceError."""
        if self.lost.is_set():
            raise ConnectionResetError("the connection was lost")
        qos = min(qos, self._max_qos)
        message = Message(topic, payload, qos, retain and self._retain, with_hops({}, hops))
        if not qos:
            self._write(self._encoded(message))
            await self._writer.drain()
            return
        async with self._window:
            kind = c.PUBACK if qos == 1 else c.PUBREC
            number = message.packet_id = self._free_id(kind)
            code = await self._acknowledged(self._encoded(message), kind, number, timeout)
            if qos == 2 and code < reason_codes.UNSPECIFIED_ERROR:
                released = encoder.encode(Ack(c.PUBREL, number), c.V5)
                await self._acknowledged(released, c.PUBCOMP, number, timeout)
        if code >= reason_codes.UNSPECIFIED_ERROR:
            said = f"{topic}: {reason_codes.name(code)}"
            raise ResourceError(said) if code in _LATER else NotTaken(said)

    async def leave(self) -> None:
        """Say goodbye if there is anybody left to hear it."""
        if not self.lost.is_set():
            self._write(encoder.encode(Disconnect(), c.V5))
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._writer.drain()
            self._end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writer.close()

    # ---------------------------------------------------------------- writing

    def _encoded(self, message: Message) -> bytes:
        octets = encoder.encode(message, c.V5)
        if 0 < self._max_packet < len(octets):
            raise NotTaken(f"{message.topic}: larger than the other side takes ({self._max_packet} octets)")
        return octets

    def _write(self, octets: bytes) -> None:
        if not self.lost.is_set():
            self._writer.write(octets)

    def _free_id(self, kind: int) -> int:
        taken = {number for _, number in self._waiters}
        return next(number for number in self._ids if number not in taken)

    async def _acknowledged(self, octets: bytes, kind: int, number: int, timeout: float) -> int:
        try:
            async with asyncio.timeout(timeout):
                return int(await self._answer(octets, kind, number))
        except TimeoutError:
            # [MQTT-4.4.0-1] nothing may be sent again but on a new connection
            self._writer.transport.abort()
            raise

    async def _ask(self, packet: Any, kind: int, number: int) -> Any:
        return await self._answer(encoder.encode(packet, c.V5), kind, number)

    async def _answer(self, octets: bytes, kind: int, number: int) -> Any:
        waiter = self._waiters[kind, number] = asyncio.get_running_loop().create_future()
        try:
            self._write(octets)
            if self.lost.is_set():
                raise ConnectionResetError("the connection was lost")
            return await waiter
        finally:
            self._waiters.pop((kind, number), None)

    async def _keep_alive(self, seconds: int) -> None:
        loop = asyncio.get_running_loop()
        while seconds:
            await asyncio.sleep(seconds * 0.75)
            if loop.time() - self._heard > seconds * 1.5:
                self._writer.transport.abort()
                return
            self._write(encoder.encode(Pingreq(), c.V5))

    # ---------------------------------------------------------------- reading

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        reason = "the connection was lost"
        try:
            while octets := await self._reader.read(_READ):
                self._heard = loop.time()
                for packet in self._decoder.feed(octets):
                    if isinstance(packet, MqttError):
                        reason = f"what the other side sends is no MQTT 5.0: {packet}"
                        return
                    if isinstance(packet, Disconnect):
                        reason = f"DISCONNECT: {reason_codes.name(packet.reason_code)}"
                        return
                    self._take(packet)
        except OSError as error:
            reason = reason_of(error)
        finally:
            self._end(reason)

    def _end(self, reason: str = "the connection was lost") -> None:
        self.lost.set()
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ConnectionResetError(reason))
        self._writer.transport.abort()

    def _take(self, packet: Any) -> None:
        if isinstance(packet, Message):
            self._spawn(self._received(packet))
        elif isinstance(packet, int):
            self._tell(packet >> 16, packet & 0xFFFF, 0)
        elif isinstance(packet, Ack):
            self._tell(packet.type, packet.packet_id, packet.reason_code)
        elif isinstance(packet, Connack):
            self._tell(c.CONNACK, 0, packet)
        elif isinstance(packet, Suback):
            self._tell(c.SUBACK, packet.packet_id, packet)
        elif not isinstance(packet, Pingresp):
            logger.debug("bridge_packet_ignored type=%s", type(packet).__name__)

    def _tell(self, kind: int, number: int, answer: Any) -> None:
        if kind == c.PUBREL:
            self._unreleased.discard(number)
            self._write(encoder.ack(c.PUBCOMP, number))
            return
        waiter = self._waiters.get((kind, number))
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    async def _received(self, message: Message) -> None:
        if self._on_message is None:
            return
        number, qos = message.packet_id, message.qos
        if qos == 2 and number in self._unreleased:
            self._write(encoder.ack(c.PUBREC, number))
            return
        if qos == 2:
            self._unreleased.add(number)
        try:
            hops = hops_of(message.properties)
            kept = await self._on_message(message.topic, message.payload, qos, message.retain, hops)
        except Exception as error:
            logger.exception("bridge_message_failed topic=%s error=%s", message.topic, error)
            kept = False
        if not kept:
            # Not acknowledged, it comes again on the next connection.
            self._unreleased.discard(number)
            if qos:
                self._writer.transport.abort()
        elif qos:
            self._write(encoder.ack(c.PUBACK if qos == 1 else c.PUBREC, number))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
