"""Pauses of a connection: why its packets wait, or nothing is read from its socket, and when that ends."""

import asyncio
import socket
from abc import ABC, abstractmethod
from typing import Final

from ..channel.channel import CLOSED, CONNECTED, Channel, ListenerFacts
from ..channel.context import ChannelContext
from ..loop.timers import Timer
from ..mqtt.decoder import Packet
from ..mqtt.message import Message
from .connection_writer import ConnectionWriter
from .rate_limits import Rate, rate_limits
from .unix_socket import peer_has_closed

# Bits of ``_pause_reasons``.
ITERATION: Final = 1  # output must be written first, or other connections be read
WAITING: Final = 2  # a packet waits for an external answer (a password hash)
RATE: Final = 4  # message_rate, byte_rate
SLOW: Final = 8  # the client does not read its output
STORE: Final = 16  # many of its acknowledgements wait for the disk
MEMORY: Final = 32  # the node's memory is short, and this client sends more than others
FULL: Final = 64  # so much waits that nothing more is read
DEBT: Final = 128  # byte_rate: received bytes that do not wait have not been paid for
HOLDS: Final = ITERATION | WAITING | RATE | SLOW | STORE | MEMORY
"""Packets wait until these have ended."""
_STOPS: Final = ITERATION | SLOW | MEMORY | FULL | DEBT
"""The reasons for which nothing is read from a connected client. For the other reasons, reading continues:
acknowledgements, PINGREQ, DISCONNECT and the end of the connection do not wait for the things that PUBLISH packets wait
for."""

AHEAD: Final = 65_536
"""Bytes that a client may send before its CONNECT is answered. Up to this limit its socket is read: otherwise the node
would not see that it has left, and would verify its password for nothing."""
_LOOK_AT_PEER_EVERY: Final = 0.5
_TCP_INFO: Final = int(getattr(socket, "TCP_INFO", 0))  # Linux alone has it
_ESTABLISHED: Final = 1  # TCP_ESTABLISHED


def has_left(transport: asyncio.Transport) -> bool:
    """Return whether the client has closed its side of the connection, which only a read would report."""
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


def publishes(packets: list[Packet]) -> bool:
    """Return whether a PUBLISH is among them."""
    return any(type(packet) is Message for packet in packets)


class ConnectionPauses(ABC):
    """The part of a Connection that stops and resumes reading. ``ConnectionReader`` reads, and keeps the waiting
    packets."""

    __slots__ = (
        "_alive_at",
        "_closing",
        "_context",
        "_eof",
        "_leaving",
        "_memory_timer",
        "_paid",
        "_pause_reasons",
        "_peer_timer",
        "_queued_packets",
        "_rate_timer",
        "_rates",
        "_stopped",
        "_transport",
        "_was_slowed",
        "channel",
        "facts",
        "received_bytes",
        "writer",
    )

    def __init__(self, facts: ListenerFacts, context: ChannelContext) -> None:
        self.facts = facts
        self._context = context
        self.writer = ConnectionWriter()
        self.received_bytes = 0
        self.channel: Channel
        self._transport: asyncio.Transport | None = None
        # Decoded packets that wait, in order; None if there are none.
        self._queued_packets: list[Packet] | None = None
        # How many of them, from the first on, its rates have paid for.
        self._paid = 0
        self._pause_reasons = 0
        self._alive_at = 0.0
        self._rate_timer: Timer | None = None
        self._memory_timer: Timer | None = None
        self._peer_timer: Timer | None = None
        self._rates = rate_limits(facts.zone.message_rate, facts.zone.byte_rate)
        # All flags are here and at the beginning of ConnectionReader: flags next to each other use a byte each.
        self._was_slowed = False
        # Nothing is read from the socket. If it only waits for an iteration, reading stops when more data arrives.
        self._stopped = False
        self._closing = False
        # The client sends nothing more: it has sent DISCONNECT, or closed its side.
        self._leaving = False
        self._eof = False

    # Declared here, in the lowest class: mypyc lays out objects wrongly if only a subclass has a ``__call__``.
    @abstractmethod
    def __call__(self) -> None:
        """Handle the timer of the connection, called when it fires."""

    @abstractmethod
    def _take_waiting(self) -> None:
        """Process the packets that have waited, as far as that is possible now."""

    def _pause(self, why: int) -> None:
        if why == WAITING and self.channel.state != CONNECTED:
            # Continue to read while it is little: otherwise the node would not notice that the client disconnects.
            stops = self._pause_reasons != 0 or self.received_bytes > AHEAD
        else:
            stops = why & _STOPS != 0 and why != ITERATION  # an iteration ends before much can arrive
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
        if not self._pause_reasons & HOLDS and self._queued_packets is not None:
            self._take_waiting()
        if self.channel.state == CLOSED:
            return
        if self._eof and not self._pause_reasons & HOLDS:
            self.writer.flush()
            transport.close()
        elif self._stopped and not self._pause_reasons & (
            _STOPS if self.channel.state == CONNECTED else _STOPS | HOLDS
        ):
            self._stopped = False
            self._alive_at = self._context.clock.now()  # the pause was the node's
            transport.resume_reading()

    def _charge(self, size: int, packets: list[Packet], unfinished: int, now: float) -> None:
        """Charge data that does not wait against its rates, and read nothing while they are exceeded."""
        rates = self._rates
        assert rates is not None
        debt = rates.received(size, packets, unfinished, now)
        alone = self._queued_packets is None and not publishes(packets)
        if debt > 0 and not self._leaving and (alone or debt > rates.patience):
            self._wait_for_rates(debt, DEBT, now)
            self._watch_peer()

    def _wait_for_rates(self, seconds: float, why: int, now: float) -> None:
        if self._rate_timer is None:
            self._rate_timer = self._context.timers.at(now + seconds, self._rate_over)
        if not self._pause_reasons & why:
            if not self._was_slowed:
                self._was_slowed = True
                self._context.metrics.refusals.add("rate_limited")
            self._pause(why)

    def _rate_over(self) -> None:
        self._rate_timer = None
        self._resume(RATE | DEBT)
        if not self.slowed:
            self._was_slowed = False

    def limit(self, message_rate: Rate | None, byte_rate: Rate | None) -> None:
        """Limit PUBLISH packets and bytes to these rates (amount, seconds); None: no limit.

        A pause under the old limits ends."""
        self._rates = rate_limits(message_rate, byte_rate)
        self._paid = 0
        if self._rate_timer is not None:
            self._rate_timer.cancel()
            self._rate_over()

    @property
    def limits(self) -> tuple[Rate | None, Rate | None]:
        """Return the rates from ``limit`` or from its zone: (amount, seconds) of messages and of bytes."""
        return (None, None) if self._rates is None else self._rates.bounds

    @property
    def slowed(self) -> bool:
        """Whether packets wait at present because of ``limits``."""
        return self._rate_timer is not None

    def _watch_peer(self) -> None:
        """Detect that the client closes its side while nothing is read."""
        if self._peer_timer is None:
            context = self._context
            self._peer_timer = context.timers.at(context.clock.now() + _LOOK_AT_PEER_EVERY, self._look_at_peer)

    def _look_at_peer(self) -> None:
        self._peer_timer = None
        if self._closing or self._transport is None or not self._pause_reasons & (FULL | DEBT):
            return
        if has_left(self._transport):
            self._leaving = True
            self._resume(FULL | DEBT)
        else:
            self._watch_peer()

    def pause_reading(self, seconds: float) -> bool:
        """Read nothing for this long. Return False if reading is already paused, or the connection has ended."""
        if self._closing or self._transport is None or self._memory_timer is not None:
            return False
        self._pause(MEMORY)
        context = self._context
        self._memory_timer = context.timers.at(context.clock.now() + seconds, self._pause_over)
        return True

    def _pause_over(self) -> None:
        self._memory_timer = None
        self._resume(MEMORY)

    def stored(self) -> None:
        """See ``channel.channel.ChannelConnection``."""
        if self._pause_reasons & STORE:
            # Later, because the caller is releasing waiting packets.
            asyncio.get_running_loop().call_soon(self._resume, STORE)

    def pause_writing(self) -> None:
        self.writer.pause_writing()

    def resume_writing(self) -> None:
        self.writer.resume_writing()
        self._resume(SLOW)
