"""Connection: one socket. Passes received bytes to the channel as packets, and writes the channel's output once per
iteration.

Listeners of every type use it: each layer below looks like an asyncio transport. This module contains its beginning,
its timers and its end. ``connection_reader`` reads, ``connection_pauses`` stops and resumes reading, and
``connection_writer`` writes.
"""

import asyncio
from fcntl import ioctl
from sys import getsizeof
from termios import TIOCOUTQ
from typing import Final, cast

from ..channel import closing
from ..channel.channel import AUTHENTICATING, CONNECTED, CONNECTING, GONE, Channel, ListenerFacts
from ..channel.closing import NORMAL
from ..channel.context import ChannelContext
from ..channel.packet_refusal import BEHIND
from ..mqtt.decoder import TopicNames
from ..session.client_info import ClientInfo, Traffic, shared_text
from .connection_reader import ConnectionReader
from .connection_writer import Flusher
from .layer import raise_packet_limit
from .listener import Listener
from .tls import peer_identity
from .unix_socket import peer_of

WRITE_HIGH = 262_144
WRITE_LOW = 65_536
_SECOND_LOOK: Final = 0.05
LINGER: Final = 2.0
"""Seconds for a client to read the last packet and close its side: closing at once with input unread would reset the
connection, and the client would see neither CONNACK nor DISCONNECT."""


class Connection(ConnectionReader):
    """Connects a transport and a channel. The base classes read, and keep the waiting packets."""

    __slots__ = ("_connections", "_keep_alive")

    def __init__(
        self,
        listener: Listener,
        facts: ListenerFacts,
        context: ChannelContext,
        flusher: Flusher,
        topic_names: TopicNames,
        connections: "dict[Connection, None]",
    ) -> None:
        """``connections``: the server's connections, which this one joins and leaves."""
        super().__init__(listener, facts, context, flusher, topic_names)
        self._connections = connections
        self._keep_alive = 0.0

    # --------------------------------------------------------------- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = self.writer.transport = transport = cast(
            asyncio.Transport, transport
        )  # uvloop's transport is one in everything but name
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
            shared_text(str(peer[0])),
            int(peer[1]),
            int(sock[1]),
            facts.loopback,
            sock_host=str(sock[0]),
            proto_name=facts.proto_name,
        )
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None:
            client.cn, client.dn = peer_identity(ssl_object)
            self._tls = True
        names = transport.get_extra_info("certificate_names")  # of DTLS
        if names is not None:
            client.cn, client.dn = names
        self.channel = self.writer.channel = Channel(context, facts, client, self, self._flusher)
        now = context.clock.now()
        self._alive_at = now
        self._timer = context.timers.at(now + facts.zone.idle_timeout, self)
        self._connections[self] = None
        context.before_login.hold(self, 0)
        self._listener.opened()

    # ------------------------------------------------- what the channel asks for

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
            timer.callback = self  # it may fire too early; then it computes the next time
            return
        if timer is not None:
            timer.cancel()
            self._timer = None
        if keep_alive:
            self._timer = self._context.timers.at(due, self)

    def expect_within(self, seconds: float) -> None:
        """Expect a packet within this many seconds from now on; 0: no limit."""
        if self._closing or self._transport is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._keep_alive = seconds
        if seconds:
            self._alive_at = now = self._context.clock.now()
            self._timer = self._context.timers.at(now + seconds, self)

    @property
    def heard_at(self) -> float:
        """When the last packet of the client came."""
        return self._alive_at

    def heard(self) -> None:
        """Restart Keep Alive, because the client has sent data of another protocol that does not become a packet."""
        self._alive_at = self._context.clock.now()

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
            # The client has sent DISCONNECT and is owed nothing: do not wait for its end.
            transport.close()
            return
        self._timer = context.timers.at(context.clock.now() + LINGER, self.abort)
        self._listener.lingers(self)
        if blocked or self._eof or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer has reset the connection, but the loop has not noticed yet
            transport.abort()
            return
        self._pause_reasons = 0
        if self._stopped:
            self._stopped = False
            transport.resume_reading()

    @property
    def unsent(self) -> bool:
        """Return whether some written data has not reached the peer's system yet."""
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
        """Close immediately, without sending the remaining data."""
        if self._timer is not None:
            self._timer.cancel()  # it would keep the connection and its objects until it is due
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        channel = self.channel
        if self._queued_packets is not None and channel.state == CONNECTED:
            self._without_publishes(self._queued_packets, BEHIND, self._context.clock.now())
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
        # Connection, channel and writers refer to each other: without these references they need no garbage collector.
        channel.connection = channel.writer.target = GONE
        channel.writer.session = None

    # ---------------------------------------------------------------- timers

    def __call__(self) -> None:
        """Called when the timer is due. A bound method of each connection would use as much memory as the timer."""
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
        # The client has done its part and waits for the server, and may have to send AUTH afterwards; or its CONNECT is
        # in the socket, and a busy loop reads it only now.
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

    # ------------------------------------------------------------------ traffic

    def traffic(self) -> Traffic:
        """Return the traffic of the connection so far."""
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
        """If the session continues without the connection, keep its traffic."""
        client = self.channel.client
        session = self._context.broker.sessions.get(client.client_id)
        stays = session is not None and session.client is client
        client.traffic = self.traffic()._replace(waiting=0, held=0) if stays else None
