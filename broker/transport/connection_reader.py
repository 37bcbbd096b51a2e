"""The reading side of a connection: received bytes become packets for the channel, and some packets wait."""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from sys import getsizeof
from typing import Final

from ..channel import closing
from ..channel.channel import AUTHENTICATING, CLOSED, CONNECTED, ListenerFacts
from ..channel.closing import fail
from ..channel.context import ChannelContext
from ..channel.dispatcher import receive
from ..channel.packet_refusal import OVER_RATE
from ..channel.publish import drop_unprocessed
from ..core.outcome import Outcome
from ..loop.budget import DELIVERIES_PER_ITERATION, HIGH_WATER
from ..loop.timers import Timer
from ..mqtt.decoder import Decoder, Packet, TopicNames
from ..mqtt.errors import MqttError
from ..mqtt.message import Message
from ..mqtt.packets import Ack, Connect, Disconnect, Pingreq
from ..mqtt.properties import memory_size
from .connection_pauses import AHEAD, FULL, HOLDS, ITERATION, RATE, SLOW, STORE, WAITING, ConnectionPauses, publishes
from .connection_writer import Flusher
from .large_packets import LARGE_BEGINNING, LARGE_REST, LargePacket, keep_freed_memory
from .layer import Layer
from .listener import Listener
from .unread import unread

logger = logging.getLogger(__name__)

_MAX_PARKED: Final = 65_536
_MAX_PARKED_FOR_RATE: Final = 1_048_576
"""Bytes of packets of one client that may wait here; above this, nothing more is read until some are processed."""
_PACKET_BYTES: Final = 300
"""Approximate memory of a waiting packet without its own bytes."""

_AFTER_LOSS: Final = 10.0
"""Seconds for external sources to answer about packets of a client that has closed its side, or whose socket was
lost."""
LOSS_DELIVERIES: Final = 40
"""Number of deliveries that the end of a connection counts as: an iteration handles about a hundred."""

_MAX_UNSTORED: Final = 8192
"""Maximum number of packets of one client that wait for the disk; 3.x has no Receive Maximum that limits them."""


def _adds_to_store(packets: list[Packet]) -> bool:
    return any(type(packet) is Message and (packet.qos or packet.retain) for packet in packets)


class ConnectionReader(ConnectionPauses):
    """The part of a Connection between the bytes that arrive and the channel."""

    __slots__ = (
        "_decoded_bytes",
        "_decoder",
        "_flusher",
        "_largest_read",
        "_listener",
        "_loss_waits",
        "_lost",
        "_newcomer",
        "_parked_bytes",
        "_task",
        "_timer",
        "_tls",
        "received_packets",
        "received_reads",
    )

    def __init__(
        self,
        listener: Listener,
        facts: ListenerFacts,
        context: ChannelContext,
        flusher: Flusher,
        topic_names: TopicNames,
    ) -> None:
        super().__init__(facts, context)
        # Without a login: its memory is in ``context.before_login``; the memory of its CONNECT without its bytes.
        self._newcomer = True
        self._tls = False
        self._loss_waits = False
        self._flusher = flusher
        self._listener = listener
        self.received_reads = 0
        self.received_packets = 0
        # None: the decoder is ``facts.decoder``.
        self._decoder: Decoder | None = Decoder(topic_names, facts.zone.max_packet_size, facts.zone.max_connect_size)
        # Approximate size of the waiting packets in bytes.
        self._parked_bytes = 0
        self._decoded_bytes = 0
        self._largest_read = 0
        # The timer of the CONNECT, then of Keep Alive, then of the end.
        self._timer: Timer | None = None
        self._task: asyncio.Future[None] | None = None
        # Why the socket was lost, while packets from it still have to be processed.
        self._lost: str | None = None

    @abstractmethod
    def abort(self) -> None:
        """Close immediately, without sending the remaining data."""

    @abstractmethod
    def _end(self) -> None:
        """End the connection: its socket is closed, and all packets that came over it were processed."""

    def data_received(self, data: bytes, raw: int = -1, begun: int = 0) -> None:
        """``raw``: number of bytes of the client, if the packets were created from requests of another protocol.
        ``begun``: number of these and earlier bytes that have not led to a packet yet."""
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
        if decoder is None:
            decoder = self._shared_decoder()
        packets = decoder.feed(data)
        if decoder.pending >= LARGE_BEGINNING and decoder.missing >= LARGE_REST:
            self._expect_large()
        clock = context.clock
        now = clock.monotonic() + clock.offset  # as ``Clock.now``, without a call for each read
        if packets:
            # [MQTT-3.1.2-22] only whole packets count
            self._alive_at = now
            self.received_packets += len(packets)
        if self._rates is not None:
            self._charge(raw, packets, begun + decoder.pending, now)
        if self._newcomer:
            self._look_at_connect(packets)
            if self._pause_reasons == WAITING and self.received_bytes > AHEAD:
                self._stop_reading()
        if self._pause_reasons & ITERATION and not context.broker.budget.congested:
            self._stop_reading()
        if packets:
            if self._queued_packets is not None or self._pause_reasons & HOLDS:
                self._park(packets, size, now)
            else:
                self._parked_bytes = size
                self._take(packets, now)
        if self._newcomer:
            # The part that was read, again in the buffer that TLS reads into.
            held = self.received_bytes + self._decoded_bytes + (self._largest_read if self._tls else 0)
            context.before_login.hold(self, held)

    def piece_received(self, size: int) -> bool:
        """See ``large_packets.PacketReceiver``."""
        context = self._context
        context.metrics.bytes_received += size
        self.received_bytes += size
        self.received_reads += 1
        if self._closing:
            return False
        if self._rates is not None:
            pending = 0 if self._decoder is None else self._decoder.pending
            self._charge(size, [], pending, context.clock.now())
        return True

    def share_decoder(self) -> None:
        """Decode all later bytes, which must be whole packets, with a decoder for all clients of the listener."""
        decoder = self._decoder
        if decoder is not None and not decoder.pending:
            self._decoder = None
            if self.facts.decoder is None:
                self.facts.decoder = decoder

    def _shared_decoder(self) -> Decoder:
        """Return the shared decoder: a new one if the last bytes were not whole packets without an error."""
        decoder = self.facts.decoder
        assert decoder is not None, "share_decoder has set it"
        if decoder.failed or decoder.pending:
            decoder = self.facts.decoder = decoder.another()
        decoder.version = self.channel.version
        return decoder

    def _expect_large(self) -> None:
        """Prepare for the rest of a large packet, which comes next."""
        transport = self._transport
        decoder = self._decoder
        if not self._newcomer:
            keep_freed_memory()
        if (
            transport is not None
            and decoder is not None
            and self.channel.state == CONNECTED
            and not isinstance(transport, Layer)
            and transport.get_extra_info("ssl_object") is None
        ):
            transport.set_protocol(LargePacket(self, transport, decoder))

    def _look_at_connect(self, packets: list[Packet]) -> None:
        """Note the memory that a CONNECT uses besides its bytes: that counts before a login."""
        for packet in packets:
            if isinstance(packet, Connect):
                # Each character of a name may use four bytes.
                size = memory_size(packet.properties) + getsizeof(packet.client_id) + getsizeof(packet.username)
                if packet.will is not None:
                    size += memory_size(packet.will.properties) + getsizeof(packet.will.topic)
                self._decoded_bytes = size

    def _logged_in(self) -> None:
        if self._newcomer:
            self._newcomer = False
            self._context.before_login.leave(self)
            self._decoded_bytes = 0

    def _take(self, packets: list[Packet], now: float, last: bool = False) -> None:
        """Pass packets to the channel; queue those that must wait. ``last``: nothing waits for the loop any longer."""
        budget = self._context.broker.budget
        if not last and (
            budget.deliveries > DELIVERIES_PER_ITERATION
            or (budget.bytes > HIGH_WATER and publishes(packets))
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
                packets = packets[:most] + self._without_publishes(packets[most:], OVER_RATE, now)
            elif most < count:
                later = packets[most:]
                packets = packets[:most]
        channel = self.channel
        try:
            taken = receive(channel, packets, now)
        except Exception:
            # An internal error costs this client its connection, and other clients nothing [3.1.1 MQTT-4.8.0-2].
            logger.exception("internal_error client_id=%s", channel.client.client_id)
            closing.internal_error(channel)
            return
        if taken is True:
            if channel.writer.backlog > self.facts.zone.max_outbox_bytes:
                self._pause(SLOW)
            held = channel.writer.held_packets
            if held is not None and len(held) > _MAX_UNSTORED:
                self._pause(STORE)
            if later is None or rates is None:
                return
            rest = later
            self._wait_for_rates(rates.wait(rest[0], now), RATE, now)
        else:
            rest = channel.rest or []
            if rates is not None:
                self._paid = sum([isinstance(packet, Message) for packet in rest])
            if later is not None:
                rest = rest + later
            if taken is not False:
                self._queued_packets = []
                self._pause(WAITING)
                self._task = asyncio.ensure_future(self._wait(taken))
            elif not last:
                self._resume_after_flush(last=True)
        if self._closing:
            return
        if last:
            self._queued_packets = rest
        elif rest:
            self._park(rest, self._parked_bytes * len(rest) // count, now)

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
            self._resume(WAITING)
            if self._lost is not None and not self._loss_waits:
                self._after_loss()

    def _resume_after_flush(self, last: bool = False) -> None:
        if not self._pause_reasons & ITERATION:
            self._pause(ITERATION)
            self._flusher.resume_later(self, last)

    def resume(self) -> None:
        """The output for which this connection waited is written, or its loss is the next step."""
        if self._loss_waits:
            self._loss_waits = False
            if self._lost is not None:
                self._account_for_loss()
        else:
            self._resume(ITERATION)

    def _park(self, packets: list[Packet], size: int, now: float) -> None:
        """Keep packets, which came in ``size`` bytes, behind others that wait, except those that need not wait."""
        channel = self.channel
        goodbye = False
        # An iteration ends so soon that the order stays; and nothing is processed before CONNACK.
        waits = (
            (self._pause_reasons != ITERATION or self._context.broker.budget.congested)
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

    def _take_waiting(self) -> None:
        """See ``ConnectionPauses``."""
        queued, now = self._queued_packets, self._context.clock.now()
        if self._leaving:
            self._finish(now)
        elif queued is not None:
            self._queued_packets = None
            self._take(queued, now)
        if self._pause_reasons & FULL:
            self._bound()

    def _take_urgent(self, packets: list[Packet], now: float) -> bool:
        """Return False if the connection is over."""
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
        """Stop reading while much data waits; resume afterwards."""
        queued = self._queued_packets
        if queued is None:
            self._parked_bytes = 0
            if self._pause_reasons & FULL:
                self._resume(FULL)
            return
        most = _MAX_PARKED_FOR_RATE if self._pause_reasons & RATE else _MAX_PARKED
        if self._parked_bytes + _PACKET_BYTES * len(queued) > most:
            if self._leaving:  # it is read to its end nevertheless, because of a possible DISCONNECT
                if self._rates is not None:
                    self._paid = 0
                    self._queued_packets = self._without_publishes(queued, OVER_RATE, self._context.clock.now())
            elif not self._pause_reasons & FULL:
                self._pause(FULL)
                self._watch_peer()
        elif self._pause_reasons & FULL:
            self._resume(FULL)

    def _without_publishes(self, packets: list[Packet], why: Outcome, now: float) -> list[Packet]:
        """Return the packets except the PUBLISHes, which are dropped without an acknowledgement."""
        left: list[Packet] = []
        for packet in packets:
            if isinstance(packet, Message):
                drop_unprocessed(self.channel, packet, why, now)
            else:
                left.append(packet)
        return left

    def _finish(self, now: float) -> None:
        """Process all packets without waiting for the loop, or drop them: the client sends nothing more."""
        channel = self.channel
        while self._queued_packets is not None and channel.state != CLOSED and not self._pause_reasons & WAITING:
            packets, self._queued_packets = self._queued_packets, None
            self._take(packets, now, last=True)

    @property
    def disconnects(self) -> bool:
        """Whether DISCONNECT is the next waiting packet."""
        queued = self._queued_packets
        return queued is not None and len(queued) > 0 and isinstance(queued[0], Disconnect)

    def eof_received(self) -> bool:
        self._eof = True
        # Waiting packets still have to be answered; the transport stays open for that, unless it is TLS, which cannot
        # stay open.
        transport = self._transport
        if self._queued_packets is None or self._closing or transport is None or not transport.can_write_eof():
            return False
        channel = self.channel
        session = channel.session
        if channel.state == CONNECTED and session is not None and session.connected:
            # It does not stay open for slow work, because the client may have disconnected.
            if channel.pending_check is not None:
                self._limit_questions(self.abort)
                return True
            return self._pause_reasons == ITERATION
        # For a client that only requested a connection, this is its end.
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
        if self._context.broker.budget.deliveries > DELIVERIES_PER_ITERATION:  # many at the same time take several
            self._loss_waits = True
            self._flusher.resume_later(self, last=True)
        else:
            self._account_for_loss()
            self._flusher.wake()

    def _account_for_loss(self) -> None:
        self._context.broker.budget.deliveries += LOSS_DELIVERIES
        self._after_loss()

    def _after_loss(self) -> None:
        """Process what was received before the loss, then end. An outside source that is being asked about some of it
        has a moment to answer."""
        channel = self.channel
        if (
            channel.state == AUTHENTICATING
            and self._queued_packets
            and self._pause_reasons & WAITING
            and not self._closing
        ):
            return  # ``_wait`` calls this again
        self._leaving = True
        self._finish(self._context.clock.now())
        if channel.pending_check is not None and channel.state == CONNECTED and not self._closing:
            if self._timer is None or self._timer.callback != self._end:
                self._limit_questions(self._end)
            return
        self._end()

    def _limit_questions(self, give_up: Callable[[], None]) -> None:
        """Call ``give_up`` if outside sources do not answer in time. The client sends nothing more."""
        context = self._context
        if self._timer is not None:
            self._timer.cancel()
        self._timer = context.timers.at(context.clock.now() + _AFTER_LOSS, give_up)

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

    @property
    def publish_load(self) -> int:
        """Return how much the client has sent; a message of QoS 1 or 2 counts as more than its bytes."""
        channel = self.channel
        return self.received_bytes + 100 * (channel.received1 + channel.received2)

    @property
    def blocked(self) -> bool:
        """Whether the client does not read its output."""
        return not self.channel.writer.writable

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes in its buffers, in both directions."""
        size = self.writer.unwritten + self.channel.writer.backlog
        if self._newcomer:
            return size  # other memory is counted in ``before_login``
        transport = self._transport
        if isinstance(transport, Layer):
            size += transport.held_bytes
        if self._queued_packets is not None:
            size += _PACKET_BYTES * len(self._queued_packets) + max(self._parked_bytes, self._largest_read)
        if self._tls:
            size += self._largest_read  # TLS reads into a permanent buffer
        return size + (0 if self._decoder is None else self._decoder.unfinished)

    @property
    def unfinished_bytes(self) -> int:
        """The part of ``buffered_bytes`` that belongs to an incomplete packet."""
        if self._closing or self._newcomer:
            return 0
        transport = self._transport
        below = transport.held_bytes if isinstance(transport, Layer) else 0
        return below if self._decoder is None else self._decoder.unfinished + below
