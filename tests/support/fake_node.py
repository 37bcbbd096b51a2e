"""A node without sockets, without a loop and without a clock of its own: every turn and every second is the test's.

    node = FakeNode({"max_inflight": 2})
    alice = node.connect("alice")
    alice.send(Subscribe(1, [TopicFilter("t", 1)]))
    assert alice.received() == [Suback(1, [1])]

What a client reads is decoded by ``wire``, so that a fault of the broker's codec cannot hide itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

from taipan.broker.channel.channel import ListenerFacts
from taipan.broker.config import BrokerSettings, ZoneSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Ack, Connack, Connect, Properties, Suback, Subscribe, TopicFilter, Will
from taipan.broker.server import Server
from taipan.broker.transport.connection import Connection
from taipan.broker.transport.connection_writer import Flusher

from .clock import Clock
from .wire import Packet, Publish, Reader, encode

MOST_TURNS = 100_000
"""Nothing here takes so many turns of the loop unless it turns for ever."""


class FakeLoop:
    """Keeps what is to be called soon until a test lets it happen."""

    def __init__(self) -> None:
        self.soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    def turn(self) -> None:
        """Calls what is there at its beginning, as a turn of asyncio does."""
        for _ in range(len(self.soon)):
            callback, args = self.soon.popleft()
            callback(*args)

    def run(self) -> int:
        """Turns until nothing is left to do; how many it took."""
        for turns in range(MOST_TURNS):
            if not self.soon:
                return turns
            self.turn()
        raise AssertionError(f"still busy after {MOST_TURNS} turns: {self.soon}")

    def waiting(self, callback: Callable[..., object]) -> int:
        """How often it is going to be called."""
        return sum(each == callback for each, _ in self.soon)


class FakeTransport(asyncio.Transport):
    """A socket's transport, as asyncio and uvloop have it, with both ends in the test's hands.

    ``capacity`` is how many bytes the peer's socket still takes (``None``: all); the rest waits in ``unsent``.
    """

    def __init__(self, loop: FakeLoop, protocol: asyncio.Protocol | asyncio.BufferedProtocol, **extra: Any) -> None:
        super().__init__({"peername": ("192.0.2.1", 50_000), "sockname": ("127.0.0.1", 1883), **extra})
        self.loop = loop
        self.protocol = protocol
        self.sent = bytearray()  # went to the peer
        self.unsent = bytearray()
        self.capacity: int | None = None
        self.writes = 0
        self.reading = True
        self.writing = True
        self.incoming: deque[bytes] = deque()
        self.peer_eof = False
        self.eof_told = False
        self.wrote_eof = False
        self.closing = False
        self.aborted = False
        self.lost = False
        self.told = False  # connection_lost was called
        self.high = 65_536
        self.low = 16_384
        self.half_closes = True
        self.write_eof_error: OSError | None = None

    # What the broker calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.wrote_eof or self.told:
            raise RuntimeError("Cannot call write() after write_eof(), nor when the connection is lost")
        if self.lost:
            return
        self.writes += 1
        self.unsent += data
        self._pump()
        if len(self.unsent) > self.high and self.writing:
            self.writing = False
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None and low is not None
        self.high, self.low = high, low

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def pause_reading(self) -> None:
        if not self.closing:
            self.reading = False

    def resume_reading(self) -> None:
        if not self.closing and not self.reading:
            self.reading = True
            self.loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return self.reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol  # type: ignore[assignment]

    def can_write_eof(self) -> bool:
        return self.half_closes

    def write_eof(self) -> None:
        if self.told:
            raise RuntimeError("the handle is closed")  # as uvloop does
        if self.write_eof_error is not None:
            raise self.write_eof_error
        assert self.half_closes and not self.closing
        self.wrote_eof = True

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._end_if_sent()

    def abort(self) -> None:
        if not self.lost:
            self.aborted = self.closing = True
            self.unsent.clear()
            self._lose(None)

    def is_closing(self) -> bool:
        return self.closing

    # What the peer does

    def feed(self, data: bytes) -> None:
        """Bytes arrive; the broker gets them when it reads."""
        self.incoming.append(data)
        self._deliver()

    def feed_eof(self) -> None:
        """The peer has sent its last byte."""
        self.peer_eof = True
        self._deliver()

    def reset(self, error: Exception | None = None) -> None:
        """The network connection breaks."""
        self.closing = True
        self._lose(error or ConnectionResetError())

    def block(self, capacity: int = 0) -> None:
        """The peer takes ``capacity`` more bytes and then none."""
        self.capacity = capacity

    def unblock(self, size: int | None = None) -> None:
        """The peer takes ``size`` bytes more, or all there will ever be."""
        self.capacity = None if size is None else (self.capacity or 0) + size
        self._pump()
        if not self.writing and len(self.unsent) <= self.low:
            self.writing = True
            self.protocol.resume_writing()
        if self.closing:
            self._end_if_sent()

    def take(self) -> bytes:
        """What has reached the peer since the last call."""
        data = bytes(self.sent)
        self.sent.clear()
        return data

    def _pump(self) -> None:
        size = len(self.unsent) if self.capacity is None else min(self.capacity, len(self.unsent))
        self.sent += self.unsent[:size]
        del self.unsent[:size]
        if self.capacity is not None:
            self.capacity -= size

    def _deliver(self) -> None:
        while self.incoming and self.reading and not self.closing:
            protocol = self.protocol
            data = self.incoming.popleft()
            if isinstance(protocol, asyncio.BufferedProtocol):
                buffer = protocol.get_buffer(-1)
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]  # type: ignore[index]
                del buffer
                if size < len(data):
                    self.incoming.appendleft(data[size:])
                protocol.buffer_updated(size)
            else:
                protocol.data_received(data)
        if self.peer_eof and not self.incoming and self.reading and not self.closing and not self.eof_told:
            self.eof_told = True
            if not self.protocol.eof_received():
                self.close()

    def _end_if_sent(self) -> None:
        if not self.unsent:
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self.lost:
            self.lost = True
            self.loop.call_soon(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        self.told = True
        self.protocol.connection_lost(error)


class FakeListener:
    """Notes who came and why they went."""

    name = "default"

    def __init__(self) -> None:
        self.open = 0
        self.probes = 0
        self.lingering: set[Connection] = set()
        self.reasons: list[str] = []

    def opened(self) -> None:
        self.open += 1

    def lingers(self, connection: Connection) -> None:
        self.lingering.add(connection)

    def probed(self, peer: str) -> None:
        self.probes += 1

    def freed(self, connection: Connection) -> None:
        self.lingering.discard(connection)
        self.open -= 1

    def closed(self, reason: str) -> None:
        self.reasons.append(reason)


class FakeNode:
    """A whole ``Server`` that listens nowhere. ``zone`` are keys of ``ZoneSettings``, ``config`` the
    other tables of ``BrokerSettings``."""

    def __init__(self, zone: Mapping[str, Any] | None = None, seed: int = 0, **config: Any) -> None:
        self.zone = self._zone(zone)
        config.setdefault("durability", {"level": "memory"})
        config.setdefault("sys_topics", {"interval": 0, "heartbeat": 0})
        settings = msgspec.structs.replace(msgspec.convert(config, BrokerSettings), listener_zones=(self.zone,))
        self.clock = Clock()
        self.loop = FakeLoop()
        self.listener = FakeListener()
        self.server = Server(settings, self.clock, Random(seed))  # type: ignore[arg-type]
        self.server.settings = msgspec.structs.replace(settings, listener_zones=())  # it has no listeners
        self.server.flusher = self.flusher = Flusher(self.loop, self.server.broker.budget)  # type: ignore[arg-type]
        self.broker = self.server.broker
        self.metrics = self.server.metrics
        self.hooks = self.server.hooks
        self.timers = self.server.timers
        self.context = self.server.context
        self.context.reviews.stopwatch = self.clock.now  # else a CONNECT waits for a loop where the machine is slow
        self.facts = self._facts(self.zone)

    @staticmethod
    def _zone(keys: Mapping[str, Any] | None) -> ZoneSettings:
        return msgspec.convert({"allow_anonymous": True, **(keys or {})}, ZoneSettings)

    def _facts(self, zone: ZoneSettings, **keys: Any) -> ListenerFacts:
        keys = {"tls_username": "", "loopback": True, **keys}
        return ListenerFacts("default", zone, "external", self.server.limits_of(zone), **keys)

    def open(self, version: int = 5, zone: Mapping[str, Any] | None = None, **extra: Any) -> "FakeClient":
        """A network connection, no CONNECT yet. ``zone`` overrides the node's; ``extra`` is told by the transport."""
        facts = self.facts
        if zone is not None:
            facts = self._facts(self._zone({**msgspec.to_builtins(self.zone), **zone}))
        if "tls_username" in extra:
            facts = self._facts(facts.zone, tls_username=extra.pop("tls_username"))
        return FakeClient(self, facts, version, extra)

    def connect(
        self,
        client_id: str = "c",
        clean_start: bool = True,
        keep_alive: int = 0,
        version: int = 5,
        will: Will | None = None,
        properties: Properties | None = None,
        zone: Mapping[str, Any] | None = None,
        expiry: int | None = None,
        **extra: Any,
    ) -> "FakeClient":
        """A client that was let in; ``connack`` is what it was answered. ``expiry``: Session Expiry Interval, 5.0."""
        client = self.open(version, zone, **extra)
        client.connect(client_id, clean_start, keep_alive, will, properties, expiry)
        assert client.connack.reason_code == 0
        return client

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **keys: Any) -> int:
        """A message of the node's own."""
        return self.broker.publish(Message(topic, payload, qos, retain, timestamp=self.clock.time, **keys))

    def pass_time(self, seconds: float) -> None:
        """So much time passes at once; what is due then is done."""
        self.timers.run(self.clock.advance(seconds))
        self.server.wall_timers.run(self.clock.wall())
        self.loop.run()

    def run(self) -> None:
        """Turns the loop until nothing is left to do."""
        self.loop.run()


class FakeClient:
    """One client of a ``FakeNode``: sends packets, reads what the broker wrote to it."""

    def __init__(self, node: FakeNode, facts: ListenerFacts, version: int, extra: Mapping[str, Any]) -> None:
        self.node = node
        self.version = version
        self.reader = Reader(version)
        self.connection = Connection(
            node.listener,  # type: ignore[arg-type]
            facts,
            node.context,
            node.flusher,
            node.server._topic_names[facts.zone.strict_strings],
            node.server.connections,
        )
        self.transport = FakeTransport(node.loop, self.connection, **extra)
        self.connection.connection_made(self.transport)
        self.channel = self.connection.channel
        self.connack = Connack(0xFF)

    @property
    def session(self) -> Any:
        assert self.channel.session is not None
        return self.channel.session

    def feed(self, *packets: Packet) -> None:
        """Sends them in one piece; the loop stands still."""
        self.transport.feed(b"".join(encode(packet, self.version) for packet in packets))

    def send(self, *packets: Packet) -> None:
        """Sends them in one piece and lets the loop turn."""
        self.feed(*packets)
        self.node.run()

    def received(self) -> list[Packet]:
        """All packets that came since the last call, after letting the loop turn."""
        self.node.run()
        return self.arrived()

    def arrived(self) -> list[Packet]:
        """All packets that came since the last call; the loop stands still."""
        return [packet for packet, _ in self.reader.feed(self.transport.take())]

    def ask(self, *packets: Packet) -> list[Packet]:
        """Sends them and reads the answers."""
        self.feed(*packets)
        return self.received()

    def messages(self) -> list[Publish]:
        """All PUBLISH packets that came; there must be nothing else."""
        packets = self.received()
        assert all(isinstance(packet, Publish) for packet in packets), packets
        return packets  # type: ignore[return-value]

    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages()]

    def connect(
        self,
        client_id: str = "c",
        clean_start: bool = True,
        keep_alive: int = 0,
        will: Will | None = None,
        properties: Properties | None = None,
        expiry: int | None = None,
        username: str | None = None,
        password: bytes | None = None,
        is_bridge: bool = False,
    ) -> Connack:
        """Sends CONNECT; the answer, which must come first."""
        properties = dict(properties or {})
        if expiry is not None and self.version == 5:
            properties[c.SESSION_EXPIRY_INTERVAL] = expiry
        self.feed(
            Connect(self.version, client_id, clean_start, keep_alive, username, password, will, properties, is_bridge)
        )
        self.node.run()
        packets = self.reader.feed(self.transport.take())
        first = packets.pop(0)[0]
        assert isinstance(first, Connack), first
        self.connack = first
        self.reader.buffer[:0] = b"".join(raw for _, raw in packets)  # [MQTT-3.2.0-1] what follows is for the test
        return first

    def subscribe(self, *filters: str | TopicFilter, qos: int = 0, properties: Properties | None = None) -> list[int]:
        """One SUBSCRIBE; the Reason Codes of its SUBACK, which must be the first answer. What follows stays unread."""
        entries = [each if isinstance(each, TopicFilter) else TopicFilter(each, qos) for each in filters]
        self.feed(Subscribe(7, entries, properties or {}))
        self.node.run()
        packets = self.reader.feed(self.transport.take())
        suback = packets.pop(0)[0]
        assert isinstance(suback, Suback) and suback.packet_id == 7, suback
        self.reader.buffer[:0] = b"".join(raw for _, raw in packets)
        return suback.reason_codes

    def publish(self, topic: str, payload: bytes = b"", qos: int = 0, packet_id: int = 0, **keys: Any) -> None:
        """One PUBLISH; what it is answered stays unread."""
        self.send(Publish(topic, payload, qos, packet_id=packet_id, **keys))

    def puback(self, *packet_ids: int) -> None:
        self.send(*(Ack(c.PUBACK, packet_id) for packet_id in packet_ids))

    def pubrec(self, *packet_ids: int) -> None:
        self.send(*(Ack(c.PUBREC, packet_id) for packet_id in packet_ids))

    def pubcomp(self, *packet_ids: int) -> None:
        self.send(*(Ack(c.PUBCOMP, packet_id) for packet_id in packet_ids))

    def vanish(self) -> None:
        """The network connection breaks without a DISCONNECT."""
        self.transport.reset()
        self.node.run()

    @property
    def closed(self) -> bool:
        """Whether the broker has ended the connection, or written its last packet."""
        self.node.run()
        return self.transport.wrote_eof or self.transport.closing


def blocked_reader() -> tuple[FakeNode, FakeClient]:
    """A client whose socket is full."""
    node = FakeNode({"slow_reader_timeout": 60, "max_outbox_bytes": 1_000_000})
    client = node.connect("r", will=Will("will", b"", 1))
    client.subscribe("t")
    client.transport.block()
    for _ in range(5):
        node.publish("t", b"x" * 100_000)
        node.run()
    assert not client.transport.writing
    return node, client


def acknowledgements(client: FakeClient) -> list[tuple[int, int, int]]:
    """Acknowledgements that came: (type, identifier, Reason Code)."""
    packets = client.received()
    assert all(isinstance(each, Ack) for each in packets), packets
    return [(each.type, each.packet_id, each.reason_code) for each in packets]  # type: ignore[union-attr]


def reason_codes(client: FakeClient) -> list[int]:
    """The Reason Codes of everything that came."""
    return [each.reason_code for each in client.received()]  # type: ignore[union-attr]
