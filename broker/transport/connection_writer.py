"""Output: the writing side of a connection. What its writer holds goes to the socket, as long as that takes it."""

import asyncio
from typing import Final

from ..channel.channel import Channel, ListenerFacts
from ..channel.context import ChannelContext
from .flusher import Flusher
from .slow_reader import SlowReader
from .traffic_counters import Counted

LARGE: Final = 65_536
"""Bytes of one part that are not copied to go out together with what stands before them."""


class Output(Counted):
    """The ``Flusher`` calls ``flush`` once a turn; the transport says when it takes no more, and when again."""

    __slots__ = ("_context", "_flusher", "_slow_reader", "_transport", "channel", "facts")

    def __init__(self, facts: ListenerFacts, context: ChannelContext, flusher: Flusher) -> None:
        super().__init__()
        self.facts = facts
        self._context = context
        self._flusher = flusher
        self._transport: asyncio.Transport | None = None
        self._slow_reader: SlowReader | None = None
        self.channel: Channel

    def pause_writing(self) -> None:
        self.channel.writer.set_writable(False)
        timeout = self.facts.zone.slow_reader_timeout
        watched = self._slow_reader is not None and self._slow_reader.active
        if timeout and not watched and self._transport is not None:
            self._slow_reader = SlowReader(self.channel, self._transport, timeout)

    def resume_writing(self) -> None:
        if self._slow_reader is not None:
            self._slow_reader.stop()
            self._slow_reader = None
        channel = self.channel
        writer = channel.writer
        writer.set_writable(True)
        writer.backlog = 0
        self.flush()
        if channel.session is not None and writer.writable:
            channel.session.advance(self._context.clock.now())

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._slow_reader is not None:
            self._slow_reader.stop()
            self._slow_reader = None

    def flush(self) -> None:
        """Write what the writer holds, unless the socket is full, then go on with what waits for room in it."""
        writer = self.channel.writer
        if writer.writable and writer.parts:
            self.write()
        if writer.writable and self._transport is not None:
            self._go_on_replaying()

    def write(self) -> None:
        """Write what the writer holds."""
        writer = self.channel.writer
        parts = writer.parts
        transport = self._transport
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
                self.sent1 += sent1
                writer.sent1 = 0
            if sent2:
                metrics.messages_qos2_sent += sent2
                self.sent2 += sent2
                writer.sent2 = 0
            metrics.messages_delivered += messages
            self.sent_messages += messages
        writer.pubacks_written = self.channel.received1 - writer.held_pubacks
        self.sent_packets += messages + writer.sent_other
        writer.sent_other = 0
        if transport is None:
            return
        size = len(data) + len(large)
        metrics.bytes_sent += size
        self.sent_bytes += size
        self.sent_writes += 1
        transport.write(data)
        if large:
            transport.write(large)

    def _go_on_replaying(self) -> None:
        """Fetch the next slice of retained messages; where that found nothing yet, look on in the next turn."""
        channel = self.channel
        session = channel.session
        if session is not None and session.replays is not None:
            session.advance(self._context.clock.now())
            if session.replaying and not channel.writer.parts:
                self._flusher.add(channel.writer)
