"""The writing side of a connection: what its channel has to send goes to the socket, as long as that takes it.

A socket that takes no more is the back-pressure of a slow reader. The transport says so (``pause_writing``), the
channel's writer is not ``writable`` until the socket has drained, and the session queues by its own bounds meanwhile;
``SlowReader`` closes a client that takes next to nothing for too long.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ..channel.channel import Channel
from ..channel.context import ChannelContext
from .flusher import Flusher
from .slow_reader import SlowReader
from .traffic_counters import TrafficCounters

LARGE: Final = 65_536
"""Bytes of one part that are not copied to go out together with what stands before them."""


class ConnectionWriter:
    """The ``Flusher`` calls ``flush`` once an iteration; the transport says when it takes no more, and when again.

    ``transport`` is None before there is one and once it is lost. ``on_stored``: nothing waits for the disk any more.
    """

    __slots__ = (
        "_context",
        "_counters",
        "_flusher",
        "_slow_reader",
        "_slow_reader_timeout",
        "channel",
        "on_stored",
        "transport",
    )

    def __init__(
        self,
        context: ChannelContext,
        flusher: Flusher,
        counters: TrafficCounters,
        slow_reader_timeout: float,
        on_stored: Callable[[], None],
    ) -> None:
        self._context = context
        self._flusher = flusher
        self._counters = counters
        self._slow_reader_timeout = slow_reader_timeout
        self._slow_reader: SlowReader | None = None
        self.transport: asyncio.Transport | None = None
        self.channel: Channel
        self.on_stored: Callable[[], None] | None = on_stored

    def pause_writing(self) -> None:
        self.channel.writer.set_writable(False)
        watched = self._slow_reader is not None and self._slow_reader.active
        if self._slow_reader_timeout and not watched and self.transport is not None:
            self._slow_reader = SlowReader(self.channel, self.transport, self._slow_reader_timeout)

    def resume_writing(self) -> None:
        self._stop_watching()
        channel = self.channel
        writer = channel.writer
        writer.set_writable(True)
        writer.backlog = 0
        self.flush()
        if channel.session is not None and writer.writable:
            channel.session.advance(self._context.clock.now())

    def connection_lost(self) -> None:
        """What is sent from now on goes nowhere."""
        self.transport = None
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._slow_reader is not None:
            self._slow_reader.stop()
            self._slow_reader = None

    @property
    def unwritten(self) -> int:
        """Bytes that the socket has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def stored(self) -> None:
        """See ``channel.outbound_writer.WriteTarget``."""
        if self.on_stored is not None:
            self.on_stored()

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

    def flush(self) -> None:
        """Write what the channel's writer holds, unless the socket is full, then what waits for room in it."""
        writer = self.channel.writer
        if writer.writable and writer.parts:
            self.write()
        if writer.writable and self.transport is not None:
            self._continue_replay()

    def write(self) -> None:
        """Write what the channel's writer holds."""
        writer = self.channel.writer
        counters = self._counters
        parts = writer.parts
        transport = self.transport
        large = b""
        if len(parts) > 1 and len(parts[-1]) > LARGE:
            # A large PUBLISH: its payload is the same for all who get it, and stays one piece of memory.
            large = parts.pop()
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        metrics = self._context.metrics
        sent0 = writer.sent0
        sent1 = writer.sent1
        sent2 = writer.sent2
        messages = sent0 + sent1 + sent2
        if messages:
            if sent0:
                metrics.messages_qos0_sent += sent0
                writer.sent0 = 0
            if sent1:
                metrics.messages_qos1_sent += sent1
                counters.sent1 += sent1
                writer.sent1 = 0
            if sent2:
                metrics.messages_qos2_sent += sent2
                counters.sent2 += sent2
                writer.sent2 = 0
            metrics.messages_delivered += messages
            counters.sent_messages += messages
        writer.pubacks_written = self.channel.received1 - writer.held_pubacks
        counters.sent_packets += messages + writer.sent_other
        writer.sent_other = 0
        if transport is None:
            return
        size = len(data) + len(large)
        metrics.bytes_sent += size
        counters.sent_bytes += size
        counters.sent_writes += 1
        transport.write(data)
        if large:
            transport.write(large)

    def _continue_replay(self) -> None:
        """Fetch the next slice of retained messages; where that found nothing yet, look on in the next iteration."""
        channel = self.channel
        session = channel.session
        if session is not None and session.replays is not None:
            session.advance(self._context.clock.now())
            if session.replaying and not channel.writer.parts:
                self._flusher.add(channel.writer)
