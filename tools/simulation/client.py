"""MQTT 5.0 clients of the simulation: they follow the standard, move between nodes, and record what they receive."""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Connack, Connect, Disconnect, Suback, Subscribe, TopicFilter, Will
from tests.support.wire import Packet, Publish, Reader, encode

from .loop import NOBODY
from .node import EPOCH, SimulatedNode, SimulatedTransport

if TYPE_CHECKING:
    from .world import World

V5 = 5
CONNACK_TIMEOUT = 40.0
RETRY = (0.05, 1.0)
AWAY = (0.05, 4.0)
"""The shortest and longest time, in seconds, that clients stay disconnected in runs with evacuations, so that sessions
move without their clients."""


class Sent:
    """A message that a publisher sends. ``number``: counts the messages of this publisher on this topic. ``clears``: an
    empty payload, which deletes the retained message. ``again``: sent again as a new message, because the result of the
    first attempt is unknown. ``node``: the node that it was sent to; empty if it was sent to several nodes, and it is
    unknown which of them accepted it. ``unrouted``: accepted by a node that had not read the other nodes' routes since
    its start, and whose log reports that the other nodes receive nothing. ``first_at`` and ``last_at``: times of the
    first and last attempt; ``acknowledged_at``: time of the first acknowledgement."""

    __slots__ = (
        "acknowledged", "acknowledged_at", "again", "clears", "first_at", "last_at", "node", "number", "publisher",
        "qos", "released", "retain", "topic", "unrouted",
    )  # fmt: skip

    def __init__(self, publisher: str, topic: str, number: int, qos: int, retain: bool, clears: bool = False) -> None:
        self.publisher = publisher
        self.topic = topic
        self.number = number
        self.qos = qos
        self.retain = retain
        self.clears = clears
        self.released = False
        self.acknowledged = False
        self.again = False
        self.first_at = self.last_at = 0.0
        self.acknowledged_at = float("inf")
        self.node = ""
        self.unrouted = False

    @property
    def payload(self) -> bytes:
        return b"" if self.clears else f"{self.publisher} {self.number} {self.qos}".encode()

    def __repr__(self) -> str:
        return f"{self.publisher}#{self.number} qos {self.qos} on {self.topic}"


class SimulatedClient:
    """A client. ``expiry``: the expiry interval of its session. ``filters``: its topic filters, each with its QoS; it
    subscribes to them again if the session is new. It publishes the messages that ``publish`` queues, at most
    ``window`` at a time."""

    def __init__(
        self, world: "World", name: str, expiry: int, filters: dict[str, int] | None = None, will: Will | None = None
    ) -> None:
        self.world = world
        self.rng = world.rng
        self.name = name
        self.expiry = expiry
        self.filters = filters or {}
        self.will = will
        self.window = 10
        self.online = False
        self.unanswered = False  # whether its last CONNECT has no CONNACK
        self.cut_off = False  # whether its session is on a node that is cut off, and has no key of its own
        self.subscribed = False
        self.sessions = 0  # the sessions that a CONNACK reported as new
        # The number of messages received before each of these sessions began, and the time of that.
        self.begun: dict[int, float] = {}
        # Time of the last SUBACK; infinity if the session has begun since then.
        self.subscribed_at = float("inf")
        self.node: SimulatedNode | None = None
        self.transport: SimulatedTransport | None = None
        self.received: list[tuple[str, bytes, int, bool, bool]] = []  # topic, payload, QoS, DUP, RETAIN
        self.waiting: list[Sent] = []
        self.unacknowledged: dict[int, Sent] = {}
        self.wanted: SimulatedNode | None = None  # where it connects next; None: anywhere
        self.stopped = False
        self.asked_at = 0.0  # when it sent its last CONNECT, by the nodes' clocks
        self._awaiting: dict[int, bytes] = {}  # QoS 2 identifiers that it has accepted, each with its payload
        self._numbers: dict[str, int] = {}
        self._reader = Reader(V5)
        self._packet_id = 0
        self._timer: asyncio.TimerHandle | None = None

    # -------------------------------------------------------------- connection

    def connect(self) -> None:
        """Connect to some node; repeat until the node accepts the client."""
        if self.transport is not None or self.stopped:
            return
        nodes = [node for node in self.world.nodes if node.running]
        if self.wanted is not None and self.wanted.running:
            nodes = [self.wanted]
        if not nodes:
            self._retry()
            return
        self.wanted = None
        if self.world.stays and self.node is not None:
            nodes = [self.node] if self.node.running else []
            if not nodes:
                self._retry()
                return
        if self.unanswered and self._may_begin_anew:
            # The session may have started again, and the CONNACK that reported it was lost.
            self.subscribed = False
            self.subscribed_at = float("inf")
        self.unanswered = True
        self.asked_at = EPOCH + self.world.loop.time()
        node = self.node = self.rng.choice(nodes)
        self._reader = Reader(V5)
        self.world.note(f"{self.name} connects to {node.name}")
        self.transport = node.connect(self)
        properties: dict[int, object] = {c.SESSION_EXPIRY_INTERVAL: self.expiry, c.RECEIVE_MAXIMUM: 20}
        self._send(Connect(V5, self.name, self._clean_start(), 0, None, None, self.will, properties, False))  # type: ignore[arg-type]
        self._timer = self.world.loop.call_later(self._connack_timeout, self._no_answer, self.transport, context=NOBODY)

    def _clean_start(self) -> bool:
        return self.expiry == 0

    @property
    def _may_begin_anew(self) -> bool:
        return self.world.may_begin_anew

    @property
    def _connack_timeout(self) -> float:
        return CONNACK_TIMEOUT * self.world.timeout_factor

    def _no_answer(self, transport: SimulatedTransport) -> None:
        if transport is self.transport and not self.online:
            self.world.wrong(
                f"{self.name} got no CONNACK from {self.node and self.node.name} in {self._connack_timeout} s"
            )
            self.drop()

    def _retry(self) -> None:
        wait = self.rng.uniform(*(AWAY if self.world.evacuates else RETRY))
        self.world.loop.call_later(wait, self.connect, context=NOBODY)

    def drop(self) -> None:
        """Break the network connection without a DISCONNECT."""
        transport, node = self.transport, self.node
        if transport is not None and node is not None:
            self.world.note(f"{self.name} drops its connection")
            node.enter(transport.reset)
            self._gone()

    def disconnect(self) -> None:
        """Send DISCONNECT."""
        transport, node = self.transport, self.node
        if transport is not None and node is not None:
            self.world.note(f"{self.name} disconnects")
            self._send(Disconnect(0, self._disconnect_properties()))
            self._gone()

    def _disconnect_properties(self) -> dict[int, object]:
        """Return the properties of the DISCONNECT."""
        return {}

    def move(self, node: SimulatedNode | None = None) -> None:
        """Connect to another node; the old connection may still exist."""
        self.wanted = node
        if self.rng.random() < 0.3 and self.online:
            # The connection is half open: the node notices at the takeover, or at our reset a moment later.
            transport, old = self.transport, self.node
            assert transport is not None and old is not None
            self.world.note(f"{self.name} leaves its connection open")
            self.world.loop.call_later(self.rng.uniform(0.0, 3.0), old.enter, transport.reset, context=NOBODY)
            self._gone()
        elif self.rng.random() < 0.5:
            self.drop()
        else:
            self.disconnect()

    def _gone(self) -> None:
        self.transport = None
        self.online = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._retry()

    def lost(self, transport: SimulatedTransport) -> None:
        """Handle a connection that the node closed, or that ended with the node."""
        if transport is self.transport:
            self._gone()

    def _send(self, packet: Packet) -> None:
        self._feed(encode(packet, V5))

    def _feed(self, packets: bytes) -> None:
        assert self.node is not None and self.transport is not None
        self.node.enter(self.transport.feed, packets)

    def receive(self, transport: SimulatedTransport, data: bytes) -> None:
        if transport is not self.transport:
            return
        for packet, _ in self._reader.feed(data):
            if transport is self.transport:
                self._take(packet)

    # ----------------------------------------------------------------- packets

    def _take(self, packet: Packet) -> None:
        match packet:
            case Connack():
                self._connack(packet)
            case Publish():
                self._publish_received(packet)
            case Ack(type=c.PUBACK | c.PUBREC | c.PUBCOMP):
                self._acknowledged(packet)
            case Ack():
                self._awaiting.pop(packet.packet_id, None)
                self._answer(Ack(c.PUBCOMP, packet.packet_id))
            case Suback():
                refused = [code for code in packet.reason_codes if code >= 0x80]
                if refused and self.world.may_refuse(refused):
                    self.drop()
                    return
                if refused:
                    self.world.wrong(f"{self.name}: {packet}")
                self.subscribed = True
                self.subscribed_at = min(self.subscribed_at, self.world.loop.time())
                self.world.subscribed(self)
            case Disconnect():
                self.world.note(f"{self.name} is sent away: {packet.reason_code:#x}")
            case _:
                self.world.wrong(f"{self.name} got {packet}")

    def _connack(self, packet: Connack) -> None:
        assert self.node is not None
        self.world.note(f"{self.name} at {self.node.name}: {packet.reason_code:#x} present={packet.session_present}")
        if packet.reason_code:
            self.world.refused(self, packet.reason_code)
            return
        self.unanswered = False
        if self._timer is not None:
            self._timer.cancel()
        self.online = True
        self.world.accepted(self, packet.session_present)
        if packet.session_present:
            self._resend()
        else:
            self.sessions += 1
            self.begun[len(self.received)] = self.world.loop.time()
            self.subscribed = False
            self.subscribed_at = float("inf")
            self._awaiting.clear()
            self._begin_anew()
        if self.filters and not self.subscribed:
            entries = [TopicFilter(each, qos) for each, qos in self.filters.items()]
            self._send(Subscribe(self._next_id(), entries, {}))
        self._pump()

    def _next_id(self) -> int:
        while True:
            self._packet_id = self._packet_id % 65_535 + 1
            if self._packet_id not in self.unacknowledged:
                return self._packet_id

    def _resend(self) -> None:
        for packet_id, sent in self.unacknowledged.items():
            if sent.released:
                self._send(Ack(c.PUBREL, packet_id))
            else:
                if self.node is not None and sent.node != self.node.name:
                    sent.node = ""
                sent.last_at = self.world.loop.time()
                self._note_routes(sent)
                self._send(Publish(sent.topic, sent.payload, sent.qos, sent.retain, True, packet_id))

    def _begin_anew(self) -> None:
        """Send incomplete exchanges again as new messages, in order, because the node does not know them."""
        begun = list(self.unacknowledged.values())
        self.unacknowledged.clear()
        for sent in begun:
            sent.again = True
            sent.released = False
        self.waiting[:0] = begun

    # ------------------------------------------------------------ as publisher

    def publish(self, topic: str, qos: int, retain: bool = False, count: int = 1, clears: bool = False) -> Sent:
        """Publish this number of messages at once; return the last one."""
        for _ in range(count):
            number = self._numbers[topic] = self._numbers.get(topic, 0) + 1
            sent = Sent(self.name, topic, number, qos, retain, clears)
            self.world.sent(sent)
            self.waiting.append(sent)
        self._pump()
        return sent

    def _pump(self) -> None:
        """Send what the window allows, in one piece if a publisher sends several messages at once."""
        pieces: list[bytes] = []
        while self.online and self.waiting and len(self.unacknowledged) < self.window:
            sent = self.waiting.pop(0)
            packet_id = self._next_id() if sent.qos else 0
            if self.node is not None:
                sent.node = self.node.name
            sent.last_at = self.world.loop.time()
            sent.first_at = sent.first_at or sent.last_at
            self._note_routes(sent)
            if sent.qos:
                self.unacknowledged[packet_id] = sent
            packet = encode(Publish(sent.topic, sent.payload, sent.qos, sent.retain, False, packet_id), V5)
            if self.world.bursts:
                pieces.append(packet)
            else:
                self._feed(packet)
        if pieces:
            self._feed(b"".join(pieces))

    def _note_routes(self, sent: Sent) -> None:
        if self.node is not None and not self.node.knows_routes:
            sent.unrouted = True

    def _acknowledged(self, packet: Ack) -> None:
        sent = self.unacknowledged.get(packet.packet_id)
        if sent is None:
            if packet.type == c.PUBREC:
                self._answer(Ack(c.PUBREL, packet.packet_id, 0x92))
            return
        if packet.reason_code >= 0x80 and packet.type != c.PUBCOMP:
            # Refused: it is sent again later, as a new one.
            self.world.note(f"{self.name}: {sent} is refused with {packet.reason_code:#x}")
            del self.unacknowledged[packet.packet_id]
            self.world.publish_refused(sent, packet.reason_code)
        elif packet.type == c.PUBREC:
            sent.released = True
            self._note_acknowledged(sent)
            self._answer(Ack(c.PUBREL, packet.packet_id))
        else:
            if not sent.acknowledged:
                self._note_acknowledged(sent)
            del self.unacknowledged[packet.packet_id]
        self._pump()

    def _note_acknowledged(self, sent: Sent) -> None:
        assert self.node is not None
        if not sent.acknowledged:
            sent.acknowledged_at = self.world.loop.time()
        sent.acknowledged = True
        self._note_routes(sent)
        self.world.unrouted += sent.unrouted

    # ----------------------------------------------------------- as subscriber

    def _publish_received(self, packet: Publish) -> None:
        if packet.qos == 2:
            known = self._awaiting.get(packet.packet_id)
            # Another message belongs to a session that started again without this client's knowledge.
            if known is None or (known != packet.payload and self._may_begin_anew):
                self._awaiting[packet.packet_id] = packet.payload
                self._write_down(packet)
            self._answer(Ack(c.PUBREC, packet.packet_id))
            return
        self._write_down(packet)
        if packet.qos == 1:
            self._answer(Ack(c.PUBACK, packet.packet_id))

    def _write_down(self, packet: Publish) -> None:
        self.world.note(f"{self.name} has {packet.payload.decode()} on {packet.topic} dup={packet.dup}")
        self.received.append((packet.topic, packet.payload, packet.qos, packet.dup, packet.retain))

    def _answer(self, packet: Packet) -> None:
        """Answer immediately or a moment later; anything may happen in between."""
        if self.transport is None:
            return
        if self.rng.random() < 0.8:
            self._send(packet)
        else:
            self.world.loop.call_later(
                self.rng.uniform(0.0, 0.5), self._answer_late, self.transport, packet, context=NOBODY
            )

    def _answer_late(self, transport: SimulatedTransport, packet: Packet) -> None:
        if transport is self.transport and transport is not None:
            self._send(packet)


class RetainingClient(SimulatedClient):
    """Retains messages on a topic of its own, and clears them, at one node after another. Each message is acknowledged
    before the next one is sent."""

    def __init__(self, world: "World", name: str, expiry: int) -> None:
        super().__init__(world, name, expiry)
        self.rng = Random(f"{name} {world.seed}")  # as with ``EndingClient``
        self.window = 1
        self.topic = f"k/{name}"

    def change(self) -> None:
        """Publish the next change, unless one is in flight."""
        if not self.waiting and not self.unacknowledged:
            self.publish(self.topic, self.rng.randint(1, 2), retain=True, clears=self.rng.random() < 0.5)


class DeviceClient(SimulatedClient):
    """Retains commands on a topic, one after the other, at one node after another."""

    def __init__(self, world: "World", name: str, expiry: int) -> None:
        super().__init__(world, name, expiry)
        self.rng = Random(f"{name} {world.seed}")  # as with ``EndingClient``
        self.window = 1
        self.topic = f"q/{name}"

    def command(self) -> None:
        """Publish the next command, unless one is in flight."""
        if not self.waiting and not self.unacknowledged:
            self.publish(self.topic, self.rng.randint(1, 2), retain=True)


class ControllerClient(SimulatedClient):
    """Clears each command of a device as soon as it receives it, at any node. ``taken``: when it received each one."""

    def __init__(self, world: "World", name: str, expiry: int, device: DeviceClient) -> None:
        super().__init__(world, name, expiry, {device.topic: 2})
        self.rng = Random(f"{name} {world.seed}")
        self.device = device
        self.taken: dict[bytes, list[float]] = {}

    def _write_down(self, packet: Publish) -> None:
        super()._write_down(packet)
        if packet.payload:
            self.taken.setdefault(packet.payload, []).append(self.world.loop.time())
            self.publish(packet.topic, self.rng.randint(1, 2), retain=True, clears=True)


class EndingClient(SimulatedClient):
    """A client whose session outlives its connections until it ends the session with DISCONNECT or Clean Start.
    ``present``: whether the next connection must find a session; ``None``: uncertain."""

    def __init__(self, world: "World", name: str, expiry: int, filters: dict[str, int]) -> None:
        super().__init__(world, name, expiry, filters)
        self.rng = Random(f"{name} {world.seed}")  # a separate one, so that the rest of a seed is the same without it
        self.present: bool | None = False
        self._wanted_present: bool | None = None
        self._ending: SimulatedNode | None = None
        self._clean_at: list[tuple[SimulatedNode, object]] = []

    @property
    def _may_begin_anew(self) -> bool:
        return True

    def end(self) -> None:
        """Send DISCONNECT with Session Expiry Interval 0, and connect to any node."""
        if self.online:
            assert self.node is not None
            self._ending = self.node
            self.present = None
            self.disconnect()
            self.world.loop.call_later(0.01, self._look, self.node.life, context=NOBODY)

    def disconnect(self) -> None:
        # Before its CONNACK the client gives up: a DISCONNECT would wait after the CONNECT, which would still apply.
        if self.online:
            super().disconnect()
        else:
            self.drop()

    def _disconnect_properties(self) -> dict[int, object]:
        return {} if self._ending is None else {c.SESSION_EXPIRY_INTERVAL: 0}

    def _look(self, life: object) -> None:
        """Determine whether the session has certainly ended: the node has stored its end, no key in the bucket names a
        node for it, and no node still handles an earlier attempt of this client."""
        node = self._ending
        if node is None or self.transport is not None or node.life is not life or not node.running:
            return
        durability = node.server.broker.durability
        stored = durability is None or not durability.commit.pending
        busy = any(each.running and each.is_at_session_of(self.name) for each in self.world.nodes)
        has_key = any(key.client_id == self.name and key.node for key in self.world.session_keys())
        if stored and self.name not in node.server.broker.sessions and not has_key and not busy:
            self.world.note(f"the session of {self.name} has ended")
            self.present = False
            return
        self.world.loop.call_later(0.01, self._look, life, context=NOBODY)

    def _retry(self) -> None:
        # Wait for some time, so that the end may become certain, and nodes may return.
        wait = self.rng.choice((0.02, 1.0, 8.0)) if self._ending is not None else self.rng.uniform(*RETRY)
        self.world.loop.call_later(wait, self.connect, context=NOBODY)

    def _clean_start(self) -> bool:
        clean = self.rng.random() < 0.1
        self._wanted_present = False if clean else self.present
        if clean or self.present is False:
            self.present = None  # without a CONNACK, the progress of the CONNECT is unknown
        assert self.node is not None
        if clean:
            self._clean_at.append((self.node, self.node.life))
        return clean

    def _is_to_be_discarded(self) -> bool:
        """Return whether another node may still handle an earlier attempt with Clean Start."""
        self._clean_at = [
            (node, life)
            for node, life in self._clean_at
            if node.running and node.life is life and node.is_at_session_of(self.name)
        ]
        return any(node is not self.node for node, _ in self._clean_at)

    def connect(self) -> None:
        if self.transport is None:
            self._ending = None
        super().connect()

    def _connack(self, packet: Connack) -> None:
        assert self.node is not None
        if not packet.reason_code:
            wanted = self._wanted_present
            # A node without a quorum serves what it knows, and others may not know of that for some time.
            has_key = any(
                key.client_id == self.name and key.node == self.node.name for key in self.world.session_keys()
            )
            is_certain = has_key and wanted is not None and not self.world.sessions_end
            if is_certain and packet.session_present != wanted:
                self.world.wrong(f"{self.name} has session present {packet.session_present}, not {wanted}")
            self.present = True if has_key and not self._is_to_be_discarded() else None
        super()._connack(packet)
