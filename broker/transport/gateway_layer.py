"""GatewayLayer: between a socket and its Connection, it translates requests of another protocol to MQTT packets."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol, cast

from ..channel.authorization import destination, may_publish
from ..channel.channel import Channel
from ..channel.closing import fail, internal_error
from ..channel.context import ChannelContext
from ..channel.session_setup import change_will
from ..core.subscription_plan import plan_filter, rewritten
from ..gateway import Gateway, GatewayChannel, GatewayError, Pending
from ..mqtt.decoder import Decoder, Packet, TopicNames
from ..mqtt.encoder import Outgoing, encode
from ..mqtt.errors import MalformedPacket, MqttError, PacketTooLarge
from ..mqtt.message import Message
from ..mqtt.packets import NO_PROPERTIES, Ack, Connect, Disconnect, Properties, TopicFilter, Will
from ..mqtt.topics import parse_filter
from ..routing.retained import Walk
from .connection import Connection
from .datagrams import DatagramPeer
from .layer import Layer
from .unread import unread

_TOPIC_NAMES: Final = TopicNames(False)
_LARGEST: Final = 268_435_460
"""Maximum size of a packet: the standard allows no larger ones. The packets decoded here come from the broker."""
_LITTLE: Final = 16_384
"""Maximum size of the beginning of a request that is passed to the conversation with every new piece."""
_SEEN_AGAIN: Final = 50_000_000
"""Bytes per second of a larger beginning that may be passed again, unless it has doubled. Otherwise a client that sends
single bytes would cause a search of everything for each byte."""
SEARCH_STEPS: Final = 10_000
"""Steps of a search for retained messages that find nothing, after which it ends."""
_TEXT: Final = 200
_DECODERS: Final[dict[int, Decoder]] = {}
"""A stateless decoder for each version, so that an idle client does not need its own."""

# Flags of a layer.
_TAKING: Final = 1  # the conversation processes a request
_SCHEDULED: Final = 2
_RELEASED: Final = 4  # the Connection may write again
_LOGGED_IN: Final = 8
_OVER: Final = 16
_FAULTY: Final = 32


class GatewayListener(Protocol):
    """The listener of a conversation: ``listener.Listener``."""

    gateway: Gateway | None
    gateway_settings: object
    gateway_shared: object

    def gateway_failed(self, error: Exception) -> None:
        """Log a fault of the gateway."""

    def refuse(self, reason: str, setting: str, peer: tuple[str, int], detail: str = "") -> None:
        """Count what the conversation drops."""


class _Beginning:
    """The beginning of a request. ``seen``: number of its bytes that the conversation has seen; ``timer``: whether it
    has to be passed again."""

    __slots__ = ("data", "seen", "timer")

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.seen = len(data)
        self.timer: asyncio.TimerHandle | None = None


class GatewayLayer(Layer, asyncio.Protocol):
    """Carries one conversation. The Connection above reads and writes MQTT, whatever the client speaks.

    Packets that the gateway sends while the Connection writes wait until the loop's next callback, so that no method
    that the Connection calls calls the Connection back.
    """

    reads_to_the_end = True

    __slots__ = (
        "_begun", "_channel", "_connection", "_decoder", "_flags", "_held", "_limit", "_listener", "_raw", "_renewal",
        "_up", "_version",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
        max_size: int,
        listener: GatewayListener,
    ) -> None:
        """``max_size``: maximum bytes of one request before the login; ``raise_packet_limit`` sets the maximum after
        it."""
        super().__init__()
        self._connection = connection
        self._limit = max_size
        self._listener = listener
        self._decoder: Decoder | None = None  # with the beginning of a packet
        self._version = 0
        self._channel: GatewayChannel | None = None
        self._held: _Beginning | None = None
        # Bytes of the client that have to be reported to the Connection; reported bytes without a packet yet.
        self._raw = 0
        self._begun = 0
        self._up: list[bytes] | None = None  # packets for the Connection
        self._renewal: bytes | None = None  # for the next conversation of the address
        self._flags = 0

    # Towards the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.below = cast(asyncio.Transport, transport)
        self._connection.connection_made(self)
        try:
            listener = self._listener
            assert listener.gateway is not None
            self._channel = listener.gateway.channel(_Link(self), listener.gateway_settings)
        except Exception as error:
            self._broken(error)

    def connection_lost(self, exc: Exception | None) -> None:
        for data in unread(self.below, exc):
            self.data_received(data)
        self._look_again()
        self._flags |= _OVER
        self._forget_beginning()
        self._connection.connection_lost(exc)
        channel, self._channel = self._channel, None
        try:
            if channel is not None:
                channel.closed()
        except Exception as error:
            self._listener.gateway_failed(error)

    def data_received(self, data: bytes) -> None:
        if self._flags & _OVER or self._channel is None:
            return
        self._raw += len(data)
        held = self._held
        if held is None:
            self._look(data)
        else:
            size = len(held.data) + len(data)
            held.data += data
            if held.seen <= _LITTLE or size >= 2 * held.seen or size > self._limit:
                self._look(None)
            elif held.timer is None:
                held.timer = asyncio.get_running_loop().call_later(held.seen / _SEEN_AGAIN, self._look_again)
        self._hand_on()

    def _look_again(self) -> None:
        """Pass the unseen part of a request to the conversation."""
        if self._held is not None and self._held.timer is not None:
            self._look(None)
        self._hand_on()

    def _forget_beginning(self) -> None:
        held, self._held = self._held, None
        if held is not None and held.timer is not None:
            held.timer.cancel()

    def _look(self, data: bytes | None) -> None:
        """Pass ``data`` to the conversation; None: the beginning of a request that is held."""
        if data is None:
            assert self._held is not None
            data = bytes(self._held.data)
            self._forget_beginning()
        channel, gateway = self._channel, self._listener.gateway
        if self._flags & _OVER or channel is None or gateway is None:
            return
        self._flags |= _TAKING
        try:
            used = channel.received(data)
            if used < len(data) and not gateway.listener.datagram:
                self._held = _Beginning(data[used:])
        except GatewayError as error:
            self._refuse(MalformedPacket(_one_line(str(error))))
        except Exception as error:
            self._broken(error)
        finally:
            self._flags &= ~_TAKING
        if self._held is not None and self._held.seen > self._limit:
            setting = "max_packet_size" if self._flags & _LOGGED_IN else "max_connect_size"
            self._refuse(PacketTooLarge(f"more than {self._limit} bytes in a request", setting))

    def eof_received(self) -> bool:
        self._look_again()
        return self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    # Called by the conversation

    def send_up(self, packet: Outgoing) -> None:
        if self._flags & _OVER:
            return
        if isinstance(packet, Connect):
            self._version = packet.version
        try:
            data = encode(packet, self._version)
        except ValueError as error:
            if not self._flags & _TAKING:
                raise
            raise GatewayError(f"{type(packet).__name__}: {error}") from error
        if self._up is None:
            self._up = []
        self._up.append(data)
        self._hand_on_soon()

    @property
    def peer(self) -> tuple[str, int]:
        client = self._connection.channel.client
        return client.peer_host, client.peer_port

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def shared(self) -> object:
        return self._listener.gateway_shared

    def drop(self, reason: str, detail: str, setting: str) -> None:
        self._listener.refuse(reason, setting, self.peer, _one_line(detail))

    def release(self) -> None:
        self._flags |= _RELEASED
        self._hand_on_soon()

    def renew(self, data: bytes) -> None:
        self._renewal = data
        if isinstance(self.below, DatagramPeer):
            self.below.keep_session()

    def _hand_on_soon(self) -> None:
        if not self._flags & (_TAKING | _SCHEDULED):
            self._flags |= _SCHEDULED
            asyncio.get_running_loop().call_soon(self._hand_on)

    def _hand_on(self) -> None:
        """Pass the packets to the Connection, and report all received bytes, whether they led to a packet or not: the
        Connection applies rate limits to them, and counts them before the login."""
        released = self._flags & _RELEASED
        self._flags &= ~(_SCHEDULED | _RELEASED)
        if released:
            self._connection.writer.resume_writing()
        if self._flags & _OVER or not (self._up or self._raw):
            return
        raw, self._raw = self._raw, 0
        data = b"" if self._up is None else b"".join(self._up)
        self._up = None
        held = 0 if self._held is None else len(self._held.data)
        self._begun = held if data else self._begun + raw
        self._connection.data_received(data, raw, self._begun)
        renewal, self._renewal = self._renewal, None
        if renewal is not None and isinstance(self.below, DatagramPeer):
            self.below.renew(renewal)

    # Towards the Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Pass packets for the client to the conversation, which writes its own form of them to the socket."""
        channel = self._channel
        if not self._version or channel is None:
            return  # unsolicited
        for packet in self._decoded(bytes(data)):
            if isinstance(packet, MqttError):
                self._broken(packet)
                return
            if self._flags & _FAULTY and not isinstance(packet, Disconnect):
                continue
            try:
                channel.packet(Ack(packet >> 16, packet & 0xFFFF) if isinstance(packet, int) else packet)
            except Exception as error:
                self._broken(error)
                return

    def _decoded(self, data: bytes) -> list[Packet]:
        """Decode packets. All conversations share one decoder, except while it would have to keep the beginning of a
        packet."""
        decoder = self._decoder or _DECODERS.pop(self._version, None)
        if decoder is None:
            decoder = Decoder(_TOPIC_NAMES, _LARGEST, _LARGEST, server_side=False)
            decoder.version = self._version
        packets = decoder.feed(data)
        self._decoder = decoder if decoder.pending else None
        if not decoder.pending and not (packets and isinstance(packets[-1], MqttError)):
            _DECODERS[self._version] = decoder
        return packets

    @property
    def held_bytes(self) -> int:
        held = 0 if self._held is None else len(self._held.data)
        return held + sum(map(len, self._up or ())) + super().held_bytes

    def raise_packet_limit(self, max_packet_size: int) -> None:
        super().raise_packet_limit(max_packet_size)
        self._limit = max_packet_size
        self._flags |= _LOGGED_IN
        self._connection.share_decoder()

    # The end

    def _refuse(self, error: MqttError) -> None:
        """End the connection. The conversation receives a DISCONNECT of 5.0, which it can express in its protocol."""
        self._forget_beginning()
        self._hand_on()
        if not self._flags & _OVER:
            self._flags |= _OVER
            fail(self._connection.channel, error)

    def _broken(self, error: Exception) -> None:
        """End the connection because the gateway has a fault, but not within a call of the Connection."""
        self._flags |= _FAULTY
        self._listener.gateway_failed(error)
        if not self._flags & _OVER:
            self._flags |= _OVER
            self._forget_beginning()
            asyncio.get_running_loop().call_soon(internal_error, self._connection.channel)


def _one_line(text: str) -> str:
    """Return the beginning of a reason, which may contain a client's words. MQTT cannot encode some characters."""
    return "".join([each if each.isprintable() else "?" for each in text[:_TEXT]])


class _Link:
    """See ``gateway.GatewayLink``."""

    __slots__ = ("_layer",)

    def __init__(self, layer: GatewayLayer) -> None:
        self._layer = layer

    def send(self, packet: Outgoing) -> None:
        self._layer.send_up(packet)

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, packet_id: int = 0,
        properties: Properties = NO_PROPERTIES,
    ) -> None:  # fmt: skip
        self._layer.send_up(Message(topic, payload, qos, retain, properties, packet_id=packet_id))

    def write(self, data: bytes) -> None:
        self._layer.below.write(data)

    @property
    def peer(self) -> tuple[str, int]:
        return self._layer.peer

    @property
    def sender(self) -> Hashable:
        below = self._layer.below
        return below.sender if isinstance(below, DatagramPeer) else self._layer.peer

    @property
    def shared(self) -> object:
        return self._layer.shared

    def now(self) -> float:
        return self._context.clock.now()

    def after(self, seconds: float, callback: Callable[[], None]) -> Pending:
        return self._context.timers.after(seconds, callback)

    @property
    def idle_timeout(self) -> float:
        return self._channel.zone.idle_timeout

    def alive(self) -> None:
        self._layer.connection.heard()

    @property
    def heard_at(self) -> float:
        return self._layer.connection.heard_at

    def expect_within(self, seconds: float) -> None:
        self._layer.connection.expect_within(seconds * self._channel.zone.keep_alive_multiplier)

    def hold(self) -> None:
        self._channel.writer.set_writable(False)

    def release(self) -> None:
        self._layer.release()

    @property
    def waiting(self) -> int:
        session = self._channel.session
        return 0 if session is None else session.queued + len(session.inflight) + session.replaying

    def set_will(self, will: Will | None) -> int:
        return change_will(self._channel, will)

    def retained(self, topic_filter: str, most: int) -> list[tuple[str, Message]]:
        broker, client = self._context.broker, self._channel.client
        plan = plan_filter(TopicFilter(topic_filter), client, broker.rewriting)
        if plan.refusal is not None:
            return []
        found = Walk(broker.retained, plan.mounted).take(most, most_steps=SEARCH_STEPS)
        now, below = self._context.clock.now(), len(client.mountpoint)
        return [(each.topic[below:], each) for each in found if not broker.retained.expired(each, now)]

    def rewritten(self, topic_filter: str) -> str:
        rewriting = self._context.broker.rewriting
        if rewriting is None:
            return topic_filter
        try:
            _, inner = parse_filter(topic_filter)
        except ValueError:
            return topic_filter
        return rewritten(topic_filter, inner, self._channel.client, rewriting)[0]

    def stored(self, topic: str) -> Message | None:
        retained, real = self._context.broker.retained, destination(self._channel, topic)
        found = retained.get(self._channel.client.mountpoint + real) if real else None
        return None if found is None or retained.expired(found, self._context.clock.now()) else found

    def may_publish(self, topics: Sequence[str], judged: Callable[[list[bool]], None]) -> None:
        may_publish(self._channel, topics, judged)

    def drop(self, reason: str, detail: str, setting: str = "") -> None:
        self._layer.drop(reason, detail, setting)

    @property
    def room(self) -> int:
        below = self._layer.below
        return below.room if isinstance(below, DatagramPeer) else -1

    def proved(self) -> None:
        below = self._layer.below
        if isinstance(below, DatagramPeer):
            below.proved()

    def stay_newcomer(self) -> None:
        below = self._layer.below
        if isinstance(below, DatagramPeer):
            below.stay_newcomer()

    def renew(self, data: bytes) -> None:
        self._layer.renew(data)

    @property
    def _channel(self) -> Channel:
        return self._layer.connection.channel

    @property
    def _context(self) -> ChannelContext:
        return self._layer.connection.channel.context
