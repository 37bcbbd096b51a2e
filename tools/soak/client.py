"""Clients of the soak: raw connections that keep their side of a session through every kill."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

from taipan.broker.mqtt import constants as c
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
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.support.patience import patience
from tests.support.wire import Packet, Publish, Reader, WireError, encode

from .promises import SLACK, Promises, Published, Subscriber
from .web_socket import WebSocket

WAIT = 10.0
"""Seconds to wait for an answer of a running node. Only a fault takes this long."""


FOREVER = 36_000
"""A Session Expiry Interval that never expires."""


class Gone(Exception):
    """The connection has ended."""


class Connection(asyncio.Protocol):
    """One network connection; packets go to its owner's ``take`` until it is dropped."""

    def __init__(self, owner: "Client") -> None:
        self.owner: Client | None = owner
        self.reader = Reader(owner.version)
        self.transport: asyncio.Transport | None = None
        self.web_socket: WebSocket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self.owner is not None and self.owner.over_web_socket:
            self.web_socket = WebSocket(transport, self.owner.port)

    def data_received(self, data: bytes) -> None:
        try:
            packets = self.reader.feed(data if self.web_socket is None else self.web_socket.feed(data))
        except (WireError, ValueError) as error:
            if self.owner is not None:
                self.owner.promises.other += 1
                self.owner.promises.wrong(f"{self.owner.client_id}: {error}")
            self.drop()
            return
        for packet, _ in packets:
            owner = self.owner
            if owner is None:
                return
            owner.take(packet)

    def connection_lost(self, exc: Exception | None) -> None:
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.lost()

    def send(self, packet: Packet) -> None:
        if self.transport is not None and self.owner is not None and not self.transport.is_closing():
            data = encode(packet, self.reader.version)
            if self.web_socket is None:
                self.transport.write(data)
            else:
                self.web_socket.send(data)

    def drop(self) -> None:
        """Break the connection and ignore everything that still arrives."""
        owner, self.owner = self.owner, None
        if self.transport is not None:
            self.transport.abort()
        if owner is not None:
            owner.lost()


class Client:
    """The common part of publishers and subscribers: connect and disconnect. ``held``: the node has the session,
    according to CONNACK."""

    def __init__(self, promises: Promises, port: int, client_id: str, version: int, persistent: bool) -> None:
        self.promises = promises
        self.port = port
        self.client_id = client_id
        self.version = version
        self.persistent = persistent
        self.held = False
        # Reason codes: the server shuts down, the session was taken over.
        self.expected_disconnects: tuple[int, ...] = (0x8B, 0x8E)
        self.unsure = False  # whether the node has a session: a CONNECT or DISCONNECT was not answered
        self.connection: Connection | None = None
        # The node with its connection: a port, unless ``placed`` returns something else for the connection.
        self.place = port
        self.placed: Callable[[Connection], int] | None = None
        self.answers: dict[tuple[type, int], asyncio.Future[Any]] = {}
        self.receive_maximum = 0
        self.over_web_socket = False
        self.wait = WAIT
        self.expiry = FOREVER
        self.may_begin_anew = False  # its session may have ended before any CONNECT
        # When it left for the last time at the earliest, for a session of the last CONNACK, and at the latest.
        self._left = (0.0, 0.0)
        # Whether an unanswered CONNECT may have started a new session after the last one had expired.
        self._replaced = False

    @property
    def connected(self) -> bool:
        return self.connection is not None

    async def connect(self, clean_start: bool = False, will: Will | None = None) -> bool:
        """Send CONNECT and wait for CONNACK, taking over an existing connection. Return whether the session was
        present."""
        old, self.connection = self.connection, None
        if old is not None:
            old.owner = None
            self.lost()
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
        except OSError as error:
            raise Gone from error
        self.connection = connection
        clean_start = clean_start or not self.persistent
        properties: dict[int, Any] = {}
        if self.version == 5:
            if self.persistent:
                properties[c.SESSION_EXPIRY_INTERVAL] = self.expiry
            if self.receive_maximum:
                properties[c.RECEIVE_MAXIMUM] = self.receive_maximum
        held, unsure = self.held, self.unsure
        asked = time.monotonic()
        if clean_start:
            self.ending()
        # An existing session continues, whether or not this CONNECT is answered.
        self.unsure = unsure or clean_start or not held
        replaced = self._replaced
        self._replaced = replaced or (self.expiry < FOREVER and not self._must_be_there())
        connack = await self.ask(
            Connect(self.version, self.client_id, clean_start, 0, None, None, will, properties), Connack, 0
        )
        if connack.reason_code:
            if not self.promises.stopping:
                self.fault(f"CONNACK {connack.reason_code:#x}")
            self.drop()
            raise Gone
        present = bool(connack.session_present)
        if self.version > 3:
            if clean_start and present:
                self.fault("session present after clean start")
            elif not (clean_start or unsure or present or self.may_begin_anew) and held and self._must_be_there():
                self.fault("the session no longer exists")
            elif present and self._must_be_gone(asked):
                self.fault("the session has outlived its Session Expiry Interval")
            elif not clean_start and not held and not unsure and present:
                self.fault("a session is present that never was")
        else:
            present = held and not clean_start
        self.held = self.persistent and not (clean_start and self.version < 5)
        self.unsure = False
        self._replaced = False
        if present and replaced:
            self.ending()
        if old is not None and old.transport is not None:
            old.transport.close()
        self.place = self.port if self.placed is None else self.placed(connection)
        self.opened(present)
        if self.connected:
            self._left = (0.0, 0.0)
        if self.persistent and not self.held:
            # 3.x ends a session this way and begins none; the next CONNECT does.
            return await self.connect(False, will)
        return present

    def _must_be_there(self) -> bool:
        return time.monotonic() < self._left[0] + self.expiry - SLACK

    def _must_be_gone(self, asked: float) -> bool:
        # If the end of its connection was not stored, the session counts as disconnected from the node's restart on.
        return self.expiry < FOREVER and asked > max(self._left[1], self.promises.ready_at) + self.expiry + SLACK

    async def ask(self, packet: Packet, answer: type, packet_id: int) -> Any:
        """Send a packet, and wait for the answer."""
        connection = self.connection
        if connection is None:
            raise Gone
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.answers[answer, packet_id] = future
        connection.send(packet)
        try:
            async with asyncio.timeout(patience(self.wait)):
                return await future
        except TimeoutError:
            self.fault(f"no {answer.__name__} within {patience(self.wait):g} s")
            raise Gone from None
        finally:
            self.answers.pop((answer, packet_id), None)

    async def ping(self) -> None:
        """Send PINGREQ and wait for PINGRESP; by then, everything that the node sent before has been read."""
        await self.ask(Pingreq(), Pingresp, 0)

    def disconnect(self, end: bool = False) -> None:
        """Send DISCONNECT. The session continues, unless it ends with its connection or ``end`` is set (5.0)."""
        connection = self.connection
        if connection is not None:
            if end:
                self.ending()
                self.unsure = True
            connection.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0} if end else {}))
            if connection.transport is not None:
                connection.owner = None
                connection.transport.close()
            self.connection = None
            self.lost()

    def drop(self) -> None:
        """Break the connection."""
        if self.connection is not None:
            self.connection.drop()

    def take(self, packet: Packet) -> None:
        """Handle a packet that arrived."""
        packet_id = getattr(packet, "packet_id", 0)
        future = self.answers.get((type(packet), packet_id))
        if future is not None and not future.done() and not isinstance(packet, (Publish, Ack)):
            self.answered(packet)
            future.set_result(packet)
        elif isinstance(packet, Disconnect) and packet.reason_code not in self.expected_disconnects:
            self.fault(f"DISCONNECT {packet.reason_code:#x}")

    def answered(self, packet: Packet) -> None:
        """Handle an awaited packet as soon as it is read."""

    def lost(self) -> None:
        """Handle the end of the connection."""
        self.connection = None
        now = time.monotonic()
        self._left = (self._left[0] or now, now)
        for future in self.answers.values():
            if not future.done():
                future.set_exception(Gone())

    def opened(self, present: bool) -> None:
        """Handle CONNACK."""

    def ending(self) -> None:
        """Record the end of the session's promises, if the node receives the packet that ends the session."""

    def fault(self, text: str) -> None:
        self.promises.other += 1
        self.promises.wrong(f"{self.client_id} (v{self.version}): {text}")


class Publisher(Client):
    """Sends QoS 1 and 2 messages within a window, and resumes after a kill if its session still exists."""

    def __init__(
        self, promises: Promises, port: int, client_id: str, version: int, persistent: bool, window: int
    ) -> None:
        super().__init__(promises, port, client_id, version, persistent)
        self.window = window
        # Packet Identifier -> the message (None: PUBREC came), its bytes to be; in order.
        self.unfinished: dict[int, tuple[Published | None, Publish | None]] = {}
        self._next = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def source(self) -> str:
        """The name of the publisher whose messages on a topic arrive in order."""
        return self.client_id

    def opened(self, present: bool) -> None:
        """Send unfinished messages again, in order, with their identifiers [MQTT-4.4.0-1]."""
        assert self.connection is not None
        if not present:
            self.unfinished.clear()
        for packet_id, (message, publish) in self.unfinished.items():
            if message is not None and publish is not None:
                publish.dup = True
                message.note(f"sent again by {self.client_id} packet_id={packet_id}")
                message.sent_again()
                if publish.retain:
                    self.promises.retaining(publish.topic, message.name, publish.payload.decode(), self.place)
                self.connection.send(publish)
            else:
                self.connection.send(Ack(c.PUBREL, packet_id))
        self._check_room()

    def lost(self) -> None:
        super().lost()
        self._room.set()

    def ending(self) -> None:
        self.unfinished.clear()

    async def publish(
        self, topic: str, qos: int, retain: bool = False, clear: bool = False, size: int = 0, delay: int = 0,
        expiry: int = 0,
    ) -> None:  # fmt: skip
        """Send a message when the window has room, without waiting for the acknowledgement. ``delay``: seconds of
        ``$delayed/``; ``expiry``: the Message Expiry Interval, 0 for none."""
        while self.connection is not None and not self._room.is_set():
            await self._room.wait()
        if self.connection is None:
            raise Gone
        message = self.promises.sending(self.source, topic, qos, expiry)
        payload = b"" if clear else message.name.encode() + b" " * size
        if retain:
            self.promises.retaining(topic, message.name, payload.decode(), self.place)
        if clear:
            message.candidates = set()
        packet_id = self._packet_id()
        properties = {c.MESSAGE_EXPIRY_INTERVAL: expiry} if expiry else {}
        topic = f"$delayed/{delay}/{topic}" if delay else topic
        publish = Publish(topic, payload, qos, retain, False, packet_id, properties)
        message.note(f"packet_id={packet_id} window={len(self.unfinished)}")
        self.unfinished[packet_id] = (message, publish)
        self._check_room()
        self.connection.send(publish)

    async def finish(self) -> None:
        """Wait until every exchange is complete."""
        try:
            async with asyncio.timeout(patience(WAIT)):
                while self.unfinished:
                    if self.connection is None:
                        raise Gone
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self.fault(f"unfinished for {patience(WAIT):g} s: {list(self.unfinished)}")
            raise Gone from None

    def _packet_id(self) -> int:
        # Few identifiers, so that they are used again soon.
        while True:
            self._next = self._next % (2 * self.window) + 1
            if self._next not in self.unfinished:
                return self._next

    def _check_room(self) -> None:
        if len(self.unfinished) < self.window:
            self._room.set()
        else:
            self._room.clear()

    def take(self, packet: Packet) -> None:
        if not isinstance(packet, Ack):
            super().take(packet)
            return
        packet_id = packet.packet_id
        message, publish = self.unfinished.get(packet_id, (None, None))
        if packet.type in (c.PUBACK, c.PUBREC):
            if packet.reason_code >= 0x80:
                self._refused(packet, message, publish)
                self._check_room()
                return
            if message is not None and publish is not None:
                self.promises.acknowledged(message, packet.reason_code)
                if publish.retain:
                    self.promises.retained_acknowledged(publish.topic, message.name, self.place)
            if packet.type == c.PUBACK:
                self.unfinished.pop(packet_id, None)
            else:
                self.unfinished.pop(packet_id, None)  # PUBRELs in the order of their PUBRECs
                self.unfinished[packet_id] = (None, None)
                if self.connection is not None:
                    self.connection.send(Ack(c.PUBREL, packet_id))
        elif packet.type == c.PUBCOMP:
            self.unfinished.pop(packet_id, None)
        self._check_room()

    def _refused(self, packet: Ack, message: Published | None, publish: Publish | None) -> None:
        if publish is None or message is None or not publish.topic.startswith("q/") or packet.reason_code != 0x97:
            self.fault(f"reason code {packet.reason_code:#x} in {packet}")
            return
        # A message that was sent again may have been accepted the first time.
        self.promises.refused(message, certain=not publish.dup)
        self.unfinished.pop(packet.packet_id, None)


class Receiver(Client):
    """Subscribes and acknowledges, at once or slowly."""

    def __init__(
        self, promises: Promises, port: int, client_id: str, version: int, persistent: bool, group: str = ""
    ) -> None:
        super().__init__(promises, port, client_id, version, persistent)
        # Members of a group are one subscriber here.
        self.session: Subscriber = promises.subscriber(group or client_id)
        self.delay = 0.0
        self.awaiting: dict[int, bytes] = {}
        self.found: dict[str, str] = {}  # retained
        self._next = 0
        self._unheard: dict[int, tuple[tuple[str, int], ...]] = {}

    def opened(self, present: bool) -> None:
        self.session.note(f"CONNACK present={present} delay={self.delay:.3f} receive_maximum={self.receive_maximum}")
        self._unheard.clear()
        if not present:
            self.awaiting.clear()
            if self.expiry < FOREVER:
                self.promises.sessions_expired += self._left != (0.0, 0.0)
                self.promises.ending(self.session)
            self.promises.ended(self.session)

    def ending(self) -> None:
        # The client's part of the session ends now, even if the node's part does not.
        self.awaiting.clear()
        self.promises.ending(self.session)

    def lost(self) -> None:
        if self.connection is not None:
            self.session.note("connection lost")
        super().lost()
        if not self.persistent:
            self.promises.ending(self.session)

    async def subscribe(self, *filters: tuple[str, int]) -> None:
        packet_id = self._packet_id()
        for topic_filter, _ in filters:
            self.promises.subscribing(self.session, topic_filter)
        self._filters = filters
        suback = await self.ask(
            Subscribe(packet_id, [TopicFilter(topic_filter, qos) for topic_filter, qos in filters]), Suback, packet_id
        )
        if suback.reason_codes != [qos for _, qos in filters]:
            self.fault(f"{suback} for {filters}")

    def subscribe_unheard(self, *filters: tuple[str, int]) -> None:
        """Send SUBSCRIBE without checking whether and how it is answered."""
        if self.connection is not None:
            for topic_filter, _ in filters:
                self.promises.subscribing(self.session, topic_filter)
            entries = [TopicFilter(topic_filter, qos) for topic_filter, qos in filters]
            packet_id = self._packet_id()
            self._unheard[packet_id] = filters
            self.connection.send(Subscribe(packet_id, entries))

    async def unsubscribe(self, topic_filter: str) -> None:
        packet_id = self._packet_id()
        state = self.session.filters.get(topic_filter)
        expected = None if state is None or not state.known else [0x00 if state.solid else 0x11]
        self.promises.unsubscribing(self.session, topic_filter)
        self._filters = ((topic_filter, 0),)
        unsuback = await self.ask(Unsubscribe(packet_id, [topic_filter]), Unsuback, packet_id)
        if self.version == 5 and expected is not None and unsuback.reason_codes != expected:
            self.fault(f"{unsuback} for {topic_filter}, expected {expected}")

    def _packet_id(self) -> int:
        self._next = self._next % 1000 + 60_000  # far from the node's, so that logs are easy to read
        return self._next

    def answered(self, packet: Packet) -> None:
        # Recorded as soon as the answer is read, so that everything sent after it also follows it in the record.
        if isinstance(packet, Suback):
            for topic_filter, qos in self._filters:
                self.promises.subscribed(self.session, topic_filter, qos)
        elif isinstance(packet, Unsuback):
            self.promises.unsubscribed(self.session, self._filters[0][0])

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._take_publish(packet)
        elif isinstance(packet, Ack):
            if packet.type == c.PUBREL:
                self.session.note(f"PUBREL {packet.packet_id} reason_code={packet.reason_code:#x}")
                self.awaiting.pop(packet.packet_id, None)
                self._answer(Ack(c.PUBCOMP, packet.packet_id))
        else:
            if isinstance(packet, Suback):
                for topic_filter, qos in self._unheard.pop(packet.packet_id, ()):
                    if self.session.moves and max(packet.reason_codes) < 0x80:
                        self.promises.subscribed(self.session, topic_filter, qos)
            super().take(packet)

    def _take_publish(self, packet: Publish) -> None:
        if packet.qos == 2:
            known = self.awaiting.get(packet.packet_id)
            self.session.note(f"PUBLISH {packet.packet_id} dup={packet.dup} {packet.payload[:30]!r}")
            # MQTT 3.1 does not report that a session is new, and a CONNACK that reports it may be lost.
            if known is None or (known != packet.payload and self.may_begin_anew):
                self.awaiting[packet.packet_id] = packet.payload
                self._deliver(packet)
            elif known != packet.payload:
                self.promises.other += 1
                self.promises.wrong(
                    f"{self.client_id}: packet id {packet.packet_id} is {known[:30]!r}, now {packet.payload[:30]!r}",
                    self.promises.messages.get(known.decode().rstrip()),
                    self.session,
                )
            self._answer(Ack(c.PUBREC, packet.packet_id))
            return
        self._deliver(packet)
        if packet.qos == 1:
            self._answer(Ack(c.PUBACK, packet.packet_id))

    def _deliver(self, packet: Publish) -> None:
        payload = packet.payload.decode()
        if packet.retain:
            self.found[packet.topic] = payload
        elif payload:
            name = payload.rstrip()
            if self.version == 5:
                remaining = packet.properties.get(c.MESSAGE_EXPIRY_INTERVAL, 0)
                self.promises.remaining(self.session, name, remaining, packet.dup)
            self.promises.delivered_to(self.session, name, packet.topic, packet.qos, packet.dup)

    def _answer(self, packet: Ack) -> None:
        connection = self.connection
        if connection is None:
            return
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, connection.send, packet)
        else:
            connection.send(packet)


def spread(rng: random.Random, low: float, high: float) -> float:
    """Return the delay of an acknowledgement between the two limits; small delays are more frequent."""
    return low + (high - low) * rng.random() ** 2
