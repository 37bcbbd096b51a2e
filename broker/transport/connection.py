"""Connection: one socket. Bytes in, packets to the channel; what the channel sends out, once an iteration.

The only one there is, for every type of listener: whatever lies below looks like an asyncio transport.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable
from fcntl import ioctl
from sys import getsizeof, intern
from termios import TIOCOUTQ
from typing import Final, cast

from ..channel import closing
from ..channel.channel import AUTHENTICATING, CLOSED, CONNECTED, CONNECTING, GONE, Channel, ListenerFacts
from ..channel.closing import NORMAL, fail
from ..channel.context import ChannelContext
from ..channel.dispatcher import receive
from ..channel.publish import drop_unpaid
from ..loop.budget import DELIVERIES_PER_ITERATION, HIGH_WATER
from ..loop.timers import Timer
from ..mqtt.decoder import Decoder, Packet, TopicNames
from ..mqtt.errors import MqttError
from ..mqtt.message import Message
from ..mqtt.packets import Ack, Connect, Disconnect, Pingreq
from ..mqtt.properties import memory_size
from ..session.client_info import ClientInfo, Traffic
from .connection_writer import ConnectionWriter, Flusher
from .large_packets import LARGE_BEGINNING, LARGE_REST, LargePacket, keep_freed_memory
from .layer import Layer, raise_packet_limit
from .listener import Listener
from .rate_limits import Rate, rate_limits
from .tls import peer_identity
from .unix_socket import peer_has_closed, peer_of
from .unread import unread

logger = logging.getLogger(__name__)

WRITE_HIGH = 262_144
WRITE_LOW = 65_536
_AHEAD: Final = 65_536
"""Bytes that a client may send before its CONNECT is answered. So long it is read from: only so is it seen to leave,
and its password is not verified for nothing."""
_SECOND_LOOK: Final = 0.05
LINGER: Final = 2.0
"""Seconds for a client to take our last packet and close its side: closing at once with input unread would reset the
connection, and the client would see neither CONNACK nor DISCONNECT."""

# Why packets wait, or nothing is read from the socket; bits of ``_pause_reasons``.
_ITERATION: Final = 1  # output must go out first, or other connections be read
_WAITING: Final = 2  # a packet waits for something outside (a password hash)
_RATE: Final = 4  # message_rate, byte_rate
_SLOW: Final = 8  # the client does not read what it asks for
_STORE: Final = 16  # much of what it is to be told waits for the disk
_MEMORY: Final = 32  # the node's memory is short, and this client sends more than others
_FULL: Final = 64  # so much waits that no more is read
_DEBT: Final = 128  # byte_rate: what has come and does not wait is not paid for
_HOLDS: Final = _ITERATION | _WAITING | _RATE | _SLOW | _STORE | _MEMORY
"""Packets wait meanwhile."""
_STOPS: Final = _ITERATION | _SLOW | _MEMORY | _FULL | _DEBT
"""Nothing is read of a connected client. Else it is read on: acknowledgements, PINGREQ, DISCONNECT and the end of the
connection wait for nothing that PUBLISH packets wait for."""

_MAX_PARKED: Final = 65_536
_MAX_PARKED_FOR_RATE: Final = 1_048_576
"""Bytes of packets of one client that may wait here; then it is read no more until some of them are taken."""
_PACKET_BYTES: Final = 300
"""What a packet that waits takes beside its own bytes, about."""
_LOOK_AT_PEER_EVERY: Final = 0.5
_TCP_INFO: Final = int(getattr(socket, "TCP_INFO", 0))  # Linux alone has it
_ESTABLISHED: Final = 1  # TCP_ESTABLISHED

_AFTER_LOSS: Final = 10.0
"""Seconds for outside sources to answer about what a client sent before its socket was gone."""
LOSS_DELIVERIES: Final = 40
"""Deliveries that the end of a connection counts as: an iteration ends about a hundred."""

_MAX_UNSTORED: Final = 8192
"""Packets of one client that may wait for the disk; 3.x has no Receive Maximum to bound them."""


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed its side of the connection, which is told to nobody who does not read."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    if sock.family == socket.AF_UNIX:
        return peer_has_closed(sock)
    if not _TCP_INFO:
        return False
    try:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED)
    except OSError:
        return True


def _publishes(packets: list[Packet]) -> bool:
    return any(type(packet) is Message for packet in packets)


def _adds_to_store(packets: list[Packet]) -> bool:
    return any(type(packet) is Message and (packet.qos or packet.retain) for packet in packets)


class Connection:
    """Between a transport and a channel: what is read, what waits and why, and when it ends."""

    __slots__ = (
        "_alive_at",
        "_closing",
        "_connections",
        "_context",
        "_decoded_bytes",
        "_decoder",
        "_eof",
        "_flusher",
        "_keep_alive",
        "_largest_read",
        "_leaving",
        "_listener",
        "_loss_waits",
        "_lost",
        "_memory_timer",
        "_newcomer",
        "_paid",
        "_parked_bytes",
        "_pause_reasons",
        "_peer_timer",
        "_queued_packets",
        "_rate_timer",
        "_rates",
        "_stopped",
        "_task",
        "_timer",
        "_tls",
        "_transport",
        "_was_slowed",
        "channel",
        "facts",
        "received_bytes",
        "received_packets",
        "received_reads",
        "writer",
    )

    def __init__(
        self,
        listener: Listener,
        facts: ListenerFacts,
        context: ChannelContext,
        flusher: Flusher,
        topic_names: TopicNames,
        connections: "dict[Connection, None]",
    ) -> None:
        """``connections`` are the server's, which this one joins and leaves."""
        self.facts = facts
        self._context = context
        self._flusher = flusher
        self._connections = connections
        self._listener = listener
        zone = facts.zone
        self.writer = ConnectionWriter()
        self.received_bytes = 0
        self.received_reads = 0
        self.received_packets = 0
        self.channel: Channel
        self._transport: asyncio.Transport | None = None
        self._decoder = Decoder(topic_names, zone.max_packet_size, zone.max_connect_size)
        # Decoded packets that wait, in order; None where nothing waits.
        self._queued_packets: list[Packet] | None = None
        # About how many bytes these came in, and how many of them, from the first on, its rates have paid for.
        self._parked_bytes = 0
        self._paid = 0
        self._was_slowed = False
        self._pause_reasons = 0
        # Nothing is read from the socket. While it waits for an iteration alone, not before more has come.
        self._stopped = False
        # Not let in yet: what it holds is in ``context.before_login``; what its CONNECT takes beside its bytes.
        self._newcomer = True
        self._decoded_bytes = 0
        self._largest_read = 0
        self._tls = False
        self._alive_at = 0.0
        self._keep_alive = 0.0
        self._timer: Timer | None = None
        self._rate_timer: Timer | None = None
        self._memory_timer: Timer | None = None
        self._peer_timer: Timer | None = None
        self._rates = rate_limits(zone.message_rate, zone.byte_rate)
        self._task: asyncio.Future[None] | None = None
        self._closing = False
        # Nothing follows what it has sent: it has said goodbye, or closed its side.
        self._leaving = False
        self._eof = False
        # Why the socket is gone, while what came over it is still to be taken.
        self._lost: str | None = None
        self._loss_waits = False

    # --------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.writer.transport = transport = cast(
            asyncio.Transport, transport
        )  # uvloop's is one in all but name
        transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
        context = self._context
        facts = self.facts
        peer = transport.get_extra_info("peername")
        sock = transport.get_extra_info("sockname") or ("", 0)
        if isinstance(sock, str):  # the path of a Unix socket, whose clients have no address
            sock = (sock, 0)
            peer = peer if isinstance(peer, tuple) else peer_of(transport.get_extra_info("socket"))
        peer = peer or ("", 0)
        client = ClientInfo(
            context.node,
            facts.zone,
            facts.zone_name,
            facts.name,
            str(peer[0]),
            int(peer[1]),
            int(sock[1]),
            facts.loopback,
        )
        client.sock_host = intern(str(sock[0]))
        client.proto_name = facts.proto_name
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None:
            client.cn, client.dn = peer_identity(ssl_object)
            self._tls = True
        self.channel = self.writer.channel = Channel(context, facts, client, self, self._flusher)
        now = context.clock.now()
        self._alive_at = now
        self._timer = context.timers.at(now + facts.zone.idle_timeout, self)
        self._connections[self] = None
        context.before_login.hold(self, 0)
        self._listener.opened()

    def data_received(self, data: bytes, raw: int = -1, begun: int = 0) -> None:
        """``raw``: how many bytes of its client came, where these packets were made of another protocol's requests.
        ``begun``: how many of these, and of those before, no packet has come of yet."""
        context = self._context
        size = len(data)
        if raw < 0:
            raw = size
        context.metrics.bytes_received += raw
        self.received_bytes += raw
        self.received_reads += 1
        if raw > self._largest_read:
            self._largest_read = raw
        if self._closing:
            return
        decoder = self._decoder
        packets = decoder.feed(data)
        if decoder.pending >= LARGE_BEGINNING and decoder.missing >= LARGE_REST:
            self._expect_large()
        now = context.clock.now()
        if packets:
            # [MQTT-3.1.2-22] whole packets count, pieces do not
            self._alive_at = now
            self.received_packets += len(packets)
        if self._rates is not None:
            self._charge(raw, packets, begun + decoder.pending, now)
        if self._newcomer:
            self._look_at_connect(packets)
            if self._pause_reasons == _WAITING and self.received_bytes > _AHEAD:
                self._stop_reading()
        if self._pause_reasons & _ITERATION and not context.broker.budget.congested:
            self._stop_reading()
        if packets:
            if self._queued_packets is not None or self._pause_reasons & _HOLDS:
                self._park(packets, size, now)
            else:
                self._parked_bytes = size
                self._take(packets, now)
        if self._newcomer:
            # What was read of it, once more in the buffer that TLS reads into.
            held = self.received_bytes + self._decoded_bytes + (self._largest_read if self._tls else 0)
            context.before_login.hold(self, held)

    def _park(self, packets: list[Packet], size: int, now: float) -> None:
        """They came in ``size`` bytes and wait behind others; but for those that wait for nobody."""
        channel = self.channel
        goodbye = False
        # An iteration is over so soon that the order stays; and nothing comes before CONNACK.
        waits = (
            (self._pause_reasons != _ITERATION or self._context.broker.budget.congested)
            and channel.state == CONNECTED
            and channel.writer.session is not None
        )
        if waits:
            goodbye = isinstance(packets[-1], Disconnect)
            urgent: list[Packet] = [packet for packet in packets if isinstance(packet, int | Ack | Pingreq)]
            if urgent:
                packets = [packet for packet in packets if not isinstance(packet, int | Ack | Pingreq)]
                if not self._take_urgent(urgent, now):
                    return
        if packets:
            if self._queued_packets is None:
                self._queued_packets = packets
                self._parked_bytes = size
            else:
                self._queued_packets += packets
                self._parked_bytes += size
        if goodbye:
            self._leaving = True
            self._finish(now)
        elif waits:
            self._bound()

    def _take_urgent(self, packets: list[Packet], now: float) -> bool:
        """False: the connection is over."""
        channel = self.channel
        rest: list[Packet] | None = packets
        while rest and not self._closing:
            try:
                receive(channel, rest, now)
            except Exception:
                logger.exception("internal_error client_id=%s", channel.client.client_id)
                closing.internal_error(channel)
            rest = channel.rest
        channel.rest = None
        return not self._closing

    def _bound(self) -> None:
        """Read no more where much waits; read on where that is over."""
        queued = self._queued_packets
        if queued is None:
            self._parked_bytes = 0
            if self._pause_reasons & _FULL:
                self._resume(_FULL)
            return
        most = _MAX_PARKED_FOR_RATE if self._pause_reasons & _RATE else _MAX_PARKED
        if self._parked_bytes + _PACKET_BYTES * len(queued) > most:
            if self._leaving:  # it is read to its end all the same, for a DISCONNECT
                if self._rates is not None:
                    self._paid = 0
                    self._queued_packets = self._without_publishes(queued, self._context.clock.now())
            elif not self._pause_reasons & _FULL:
                self._pause(_FULL)
                self._watch_peer()
        elif self._pause_reasons & _FULL:
            self._resume(_FULL)

    def _without_publishes(self, packets: list[Packet], now: float) -> list[Packet]:
        """These but the PUBLISHes, which are dropped: nobody is told that they were taken."""
        left: list[Packet] = []
        for packet in packets:
            if isinstance(packet, Message):
                drop_unpaid(self.channel, packet, now)
            else:
                left.append(packet)
        return left

    def _finish(self, now: float) -> None:
        """Nothing follows what it has sent: all of that is taken, without waiting for the loop, or dropped."""
        channel = self.channel
        while self._queued_packets is not None and channel.state != CLOSED and not self._pause_reasons & _WAITING:
            packets, self._queued_packets = self._queued_packets, None
            self._take(packets, now, last=True)

    def _expect_large(self) -> None:
        """What is to come next is the rest of a large packet."""
        transport = self._transport
        if not self._newcomer:
            keep_freed_memory()
        if (
            transport is not None
            and self.channel.state == CONNECTED
            and not isinstance(transport, Layer)
            and transport.get_extra_info("ssl_object") is None
        ):
            transport.set_protocol(LargePacket(self, transport, self._decoder))

    def piece_received(self, size: int) -> bool:
        """See ``large_packets.PacketReceiver``."""
        context = self._context
        context.metrics.bytes_received += size
        self.received_bytes += size
        self.received_reads += 1
        if self._closing:
            return False
        if self._rates is not None:
            self._charge(size, [], self._decoder.pending, context.clock.now())
        return True

    def eof_received(self) -> bool:
        self._eof = True
        # Packets that wait are still to be answered; the transport stays open for that, unless it is TLS, which cannot.
        transport = self._transport
        if self._queued_packets is None or self._closing or transport is None or not transport.can_write_eof():
            return False
        channel = self.channel
        session = channel.session
        if channel.state == CONNECTED and session is not None and session.connected:
            # For what can take long it does not stay: nobody may be there any more.
            return self._pause_reasons == _ITERATION or channel.pending_check is not None
        # Of a client that asked for nothing but to be let in, it is a farewell.
        waits = channel.state == AUTHENTICATING or (session is not None and not session.connected)
        return bool(self._queued_packets) or not waits

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        self.writer.connection_lost()
        if transport is not None and not self._closing:
            self._leaving = True
            for data in unread(transport, exc):
                self.data_received(data)
        self._listener.freed(self)
        self._lost = "closed by the client" if exc is None else type(exc).__name__
        if self._context.broker.budget.deliveries > DELIVERIES_PER_ITERATION:  # many at once take several
            self._loss_waits = True
            self._flusher.resume_later(self, last=True)
        else:
            self._account_for_loss()
            self._flusher.wake()

    def _account_for_loss(self) -> None:
        self._context.broker.budget.deliveries += LOSS_DELIVERIES
        self._after_loss()

    def _after_loss(self) -> None:
        """What was received is taken, whoever has gone since; then it is over. An outside source that is being asked
        about some of it has a moment to answer."""
        channel = self.channel
        if (
            channel.state == AUTHENTICATING
            and self._queued_packets
            and self._pause_reasons & _WAITING
            and not self._closing
        ):
            return  # ``_wait`` comes again
        self._leaving = True
        self._finish(self._context.clock.now())
        if channel.pending_check is not None and channel.state == CONNECTED and not self._closing:
            if self._timer is not None and self._timer.callback != self._end:
                self._timer.cancel()
                self._timer = None
            if self._timer is None:
                context = self._context
                self._timer = context.timers.at(context.clock.now() + _AFTER_LOSS, self._end)
            return
        self._end()

    def _end(self) -> None:
        channel = self.channel
        self._closing = True
        reason, self._lost = self._lost or "", None
        if channel.state == CONNECTING and not self.received_bytes:
            closing.left_without_a_byte(channel)
            self._listener.probed(channel.client.peer)
        else:
            closing.connection_lost(channel, reason)
        for timer in (self._timer, self._rate_timer, self._memory_timer, self._peer_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._rate_timer = self._memory_timer = self._peer_timer = None
        self._queued_packets = None
        self._connections.pop(self, None)
        self._logged_in()
        self._listener.closed(channel.end_reason)
        self._leave_traffic()
        # Connection, channel and writers know each other: taken apart here, they need no garbage collector.
        channel.connection = channel.writer.target = GONE
        channel.writer.session = None

    def pause_writing(self) -> None:
        self.writer.pause_writing()

    def resume_writing(self) -> None:
        self.writer.resume_writing()
        self._resume(_SLOW)

    @property
    def disconnects(self) -> bool:
        """Whether DISCONNECT is the next packet that waits to be taken."""
        queued = self._queued_packets
        return queued is not None and len(queued) > 0 and isinstance(queued[0], Disconnect)

    # --------------------------------------------------------------- packets

    def _take(self, packets: list[Packet], now: float, last: bool = False) -> None:
        """Give packets to the channel; queue what must wait. ``last``: nothing waits for the loop any more."""
        budget = self._context.broker.budget
        if not last and (
            budget.deliveries > DELIVERIES_PER_ITERATION
            or (budget.bytes > HIGH_WATER and _publishes(packets))
            or (budget.congested and _adds_to_store(packets))
        ):
            self._resume_after_flush()
            self._park(packets, self._parked_bytes, now)
            return
        count = len(packets)
        later: list[Packet] | None = None
        rates = self._rates
        if rates is not None:
            most = rates.admit(packets, self._paid, now)
            self._paid = 0
            if most < count and last:
                packets = packets[:most] + self._without_publishes(packets[most:], now)
            elif most < count:
                later = packets[most:]
                packets = packets[:most]
        channel = self.channel
        try:
            taken = receive(channel, packets, now)
        except Exception:
            # A fault of ours costs this client its connection and no other client anything [3.1.1 MQTT-4.8.0-2].
            logger.exception("internal_error client_id=%s", channel.client.client_id)
            closing.internal_error(channel)
            return
        if taken is True:
            if channel.writer.backlog > self.facts.zone.max_outbox_bytes:
                self._pause(_SLOW)
            held = channel.writer.held_packets
            if held is not None and len(held) > _MAX_UNSTORED:
                self._pause(_STORE)
            if later is None or rates is None:
                return
            rest = later
            self._wait_for_rates(rates.wait(rest[0], now), _RATE, now)
        else:
            rest = channel.rest or []
            if rates is not None:
                self._paid = sum([isinstance(packet, Message) for packet in rest])
            if later is not None:
                rest = rest + later
            if taken is not False:
                self._queued_packets = []
                self._pause(_WAITING)
                self._task = asyncio.ensure_future(self._wait(taken))
            elif not last:
                self._resume_after_flush(last=True)
        if self._closing:
            return
        if last:
            self._queued_packets = rest
        elif rest:
            self._park(rest, self._parked_bytes * len(rest) // count, now)

    def _look_at_connect(self, packets: list[Packet]) -> None:
        """What it takes in memory beside its bytes counts before a login."""
        for packet in packets:
            if isinstance(packet, Connect):
                # Of names each character may take four bytes.
                size = memory_size(packet.properties) + getsizeof(packet.client_id) + getsizeof(packet.username)
                if packet.will is not None:
                    size += memory_size(packet.will.properties) + getsizeof(packet.will.topic)
                self._decoded_bytes = size

    def close_unfinished(self) -> None:
        """See ``memory_guard.Sender``."""
        logger.warning(
            "publisher_closed client_id=%s bytes=%s setting=limits.memory",
            self.channel.client.client_id[:256],
            self.unfinished_bytes,
        )
        closing.unfinished_packet(self.channel)
        self.abort()

    def evict(self) -> None:
        """See ``core.before_login.Newcomer``."""
        closing.before_login(self.channel)
        self.abort()

    def _logged_in(self) -> None:
        if self._newcomer:
            self._newcomer = False
            self._context.before_login.leave(self)

    async def _wait(self, waiting: Awaitable[None]) -> None:
        channel = self.channel
        try:
            await waiting
        except MqttError as error:
            fail(channel, error)
        except Exception:
            logger.exception("internal_error client_id=%s", channel.client.client_id)
            closing.internal_error(channel)
        finally:
            self._task = None
            self._resume(_WAITING)
            if self._lost is not None and not self._loss_waits:
                self._after_loss()

    def _resume_after_flush(self, last: bool = False) -> None:
        if not self._pause_reasons & _ITERATION:
            self._pause(_ITERATION)
            self._flusher.resume_later(self, last)

    def resume(self) -> None:
        """The output that this connection waited for is written, or its loss is next."""
        if self._loss_waits:
            self._loss_waits = False
            if self._lost is not None:
                self._account_for_loss()
        else:
            self._resume(_ITERATION)

    def _pause(self, why: int) -> None:
        if why == _WAITING and self.channel.state != CONNECTED:
            # Read on while it is little: only so is the client seen to leave.
            stops = self._pause_reasons != 0 or self.received_bytes > _AHEAD
        else:
            stops = why & _STOPS != 0 and why != _ITERATION  # an iteration is over before much can come
        if stops:
            self._stop_reading()
        self._pause_reasons |= why

    def _stop_reading(self) -> None:
        if not self._stopped and self._transport is not None and not self._closing:
            self._stopped = True
            self._transport.pause_reading()

    def _resume(self, why: int) -> None:
        if not self._pause_reasons & why:
            return
        self._pause_reasons &= ~why
        transport = self._transport
        if transport is None:
            return
        if self._closing:
            if self._stopped and not self._pause_reasons:
                self._stopped = False
                transport.resume_reading()
            return
        if not self._pause_reasons & _HOLDS and self._queued_packets is not None:
            now = self._context.clock.now()
            if self._leaving:
                self._finish(now)
            else:
                packets, self._queued_packets = self._queued_packets, None
                self._take(packets, now)
            if self._pause_reasons & _FULL:
                self._bound()
        if self.channel.state == CLOSED:
            return
        if self._eof and not self._pause_reasons & _HOLDS:
            self.writer.flush()
            transport.close()
        elif self._stopped and not self._pause_reasons & (
            _STOPS if self.channel.state == CONNECTED else _STOPS | _HOLDS
        ):
            self._stopped = False
            self._alive_at = self._context.clock.now()  # it was we who did not listen
            transport.resume_reading()

    def _charge(self, size: int, packets: list[Packet], unfinished: int, now: float) -> None:
        """Have its rates pay for what does not wait to be paid for, and read nothing while they have to pay it off."""
        rates = self._rates
        assert rates is not None
        debt = rates.received(size, packets, unfinished, now)
        alone = self._queued_packets is None and not _publishes(packets)
        if debt > 0 and not self._leaving and (alone or debt > rates.patience):
            self._wait_for_rates(debt, _DEBT, now)
            self._watch_peer()

    def _wait_for_rates(self, seconds: float, why: int, now: float) -> None:
        if self._rate_timer is None:
            self._rate_timer = self._context.timers.at(now + seconds, self._rate_over)
        if not self._pause_reasons & why:
            if not self._was_slowed:
                self._was_slowed = True
                self._context.metrics.refusals.add("rate_limited")
            self._pause(why)

    def _watch_peer(self) -> None:
        """Nothing is read for a while: see all the same when the client closes its side."""
        if self._peer_timer is None:
            context = self._context
            self._peer_timer = context.timers.at(context.clock.now() + _LOOK_AT_PEER_EVERY, self._look_at_peer)

    def _look_at_peer(self) -> None:
        self._peer_timer = None
        if self._closing or self._transport is None or not self._pause_reasons & (_FULL | _DEBT):
            return
        if has_left(self._transport):
            self._leaving = True
            self._resume(_FULL | _DEBT)
        else:
            self._watch_peer()

    def _rate_over(self) -> None:
        self._rate_timer = None
        self._resume(_RATE | _DEBT)
        if not self.slowed:
            self._was_slowed = False

    # ---------------------------------------------------------------- memory

    def pause_reading(self, seconds: float) -> bool:
        """Take nothing from the socket for so long. False: it is paused already, or over."""
        if self._closing or self._transport is None or self._memory_timer is not None:
            return False
        self._pause(_MEMORY)
        context = self._context
        self._memory_timer = context.timers.at(context.clock.now() + seconds, self._pause_over)
        return True

    def _pause_over(self) -> None:
        self._memory_timer = None
        self._resume(_MEMORY)

    @property
    def publish_load(self) -> int:
        """How much it has sent, a message of QoS 1 or 2 counting as more than its bytes."""
        channel = self.channel
        return self.received_bytes + 100 * (channel.received1 + channel.received2)

    @property
    def blocked(self) -> bool:
        """Whether its client takes no more of what is written."""
        return not self.channel.writer.writable

    @property
    def buffered_bytes(self) -> int:
        """Bytes in its buffers, in both directions."""
        size = self.writer.unwritten + self.channel.writer.backlog
        if self._newcomer:
            return size  # the rest is counted in ``before_login``
        transport = self._transport
        if isinstance(transport, Layer):
            size += transport.held_bytes
        if self._queued_packets is not None:
            size += _PACKET_BYTES * len(self._queued_packets) + max(self._parked_bytes, self._largest_read)
        if self._tls:
            size += self._largest_read  # TLS reads into a buffer that stays
        return size + self._decoder.unfinished

    @property
    def unfinished_bytes(self) -> int:
        """Of them, those of a packet that has not come whole."""
        if self._closing or self._newcomer:
            return 0
        transport = self._transport
        below = transport.held_bytes if isinstance(transport, Layer) else 0
        return self._decoder.unfinished + below

    # ------------------------------------------------- what the channel asks for

    def stored(self) -> None:
        """See ``channel.channel.ChannelConnection``."""
        if self._pause_reasons & _STORE:
            # Later: the caller is in the middle of releasing what waits.
            asyncio.get_running_loop().call_soon(self._resume, _STORE)

    def accepted(self, keep_alive: float) -> None:
        """See ``channel.channel.ChannelConnection``."""
        self._logged_in()
        transport = self._transport
        if transport is None:
            return
        raise_packet_limit(transport, self.facts.zone.max_packet_size)
        self._keep_alive = keep_alive
        timer = self._timer
        due = self._alive_at + keep_alive
        if keep_alive and timer is not None and timer.active and timer.when <= due:
            timer.callback = self  # it comes too early, and then finds out when to come again
            return
        if timer is not None:
            timer.cancel()
            self._timer = None
        if keep_alive:
            self._timer = self._context.timers.at(due, self)

    def expect_within(self, seconds: float) -> None:
        """From now on a packet has to come within so many seconds; 0: none has to."""
        if self._closing or self._transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._keep_alive = seconds
        if seconds:
            self._alive_at = now = self._context.clock.now()
            self._timer = self._context.timers.at(now + seconds, self)

    def limit(self, message_rate: Rate | None, byte_rate: Rate | None) -> None:
        """Take nothing beyond these (amount, seconds) of PUBLISH packets and of bytes; None: no bound.

        A pause under the old ones ends.
        """
        self._rates = rate_limits(message_rate, byte_rate)
        self._paid = 0
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_over()

    @property
    def limits(self) -> tuple[Rate | None, Rate | None]:
        """What ``limit`` has set, or its zone: (amount, seconds) of messages and of bytes."""
        return (None, None) if self._rates is None else self._rates.bounds

    @property
    def slowed(self) -> bool:
        """Whether something waits at present because of ``limits``."""
        return self._rate_timer is not None

    def close(self) -> None:
        """See ``channel.channel.ChannelConnection``."""
        if self._closing:
            return
        self._closing = True
        self._queued_packets = None
        transport = self._transport
        if transport is None:
            return
        context = self._context
        writer = self.channel.writer
        if self._timer is not None:
            self._timer.cancel()
        blocked = not writer.writable
        self.writer.flush()
        writer.held_packets = writer.held_topics = None  # nothing follows a DISCONNECT
        self._leave_traffic()
        if self.channel.end_reason == NORMAL and transport.can_write_eof() and not transport.get_write_buffer_size():
            # It has sent DISCONNECT and is owed nothing: its end is not waited for.
            transport.close()
            return
        self._timer = context.timers.at(context.clock.now() + LINGER, self.abort)
        self._listener.lingers(self)
        if blocked or self._eof or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer has reset the connection, and the loop has not noticed yet
            transport.abort()
            return
        self._pause_reasons = 0
        if self._stopped:
            self._stopped = False
            transport.resume_reading()

    @property
    def unsent(self) -> bool:
        """Whether something that was written has not arrived at the peer's system yet."""
        transport = self._transport
        if transport is None:
            return False
        if transport.get_write_buffer_size():
            return True
        sock = transport.get_extra_info("socket")
        try:
            return sock is None or any(ioctl(sock.fileno(), TIOCOUTQ, bytes(4)))
        except OSError:  # unknown
            return True

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self._timer is not None:
            self._timer.cancel()  # it would keep the connection, and what that holds, until it is due
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    # ---------------------------------------------------------------- timers

    def __call__(self) -> None:
        """Its timer is due. A bound method of each connection would take as much memory as the timer."""
        if self.channel.state <= AUTHENTICATING:
            self._idle()
        else:
            self._check_alive()

    def _idle(self, looked: bool = False) -> None:
        self._timer = None
        channel = self.channel
        if channel.state > AUTHENTICATING:
            return
        if self._queued_packets is None and looked:
            closing.idle_timeout(channel)
            return
        # It has done its part and waits for us, and may owe an AUTH after that; or its CONNECT lies in the socket, and
        # a busy loop comes to it now.
        context = self._context
        wait = _SECOND_LOOK if self._queued_packets is None else self.facts.zone.idle_timeout
        self._timer = context.timers.at(context.clock.now() + wait, lambda: self._idle(True))

    def _check_alive(self) -> None:
        self._timer = None
        if self._closing or not self._keep_alive:
            return
        now = self._context.clock.now()
        due = self._alive_at + self._keep_alive
        if self._stopped:
            due = now + self._keep_alive
        elif now >= due:
            closing.keep_alive_timeout(self.channel)
            return
        self._timer = self._context.timers.at(due, self)

    # ------------------------------------------------------------------ facts

    def traffic(self) -> Traffic:
        """What went over it so far."""
        channel, written = self.channel, self.writer
        held = sum(map(getsizeof, (self, written, channel, channel.writer)))
        return Traffic(
            self.received_bytes,
            self.received_reads,
            self.received_packets,
            channel.received_messages - channel.received1 - channel.received2,
            channel.received1,
            channel.received2,
            channel.refused_messages,
            written.sent_bytes,
            written.sent_writes,
            written.sent_packets,
            written.sent_messages - written.sent1 - written.sent2,
            written.sent1,
            written.sent2,
            0 if self._queued_packets is None else len(self._queued_packets),
            held + channel.writer.backlog + written.unwritten,
        )

    def _leave_traffic(self) -> None:
        """Where its session goes on without it, what went over it stays known."""
        client = self.channel.client
        session = self._context.broker.sessions.get(client.client_id)
        stays = session is not None and session.client is client
        client.traffic = self.traffic()._replace(waiting=0, held=0) if stays else None
