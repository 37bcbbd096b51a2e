"""Write the output of channels to their sockets, once per iteration of the event loop.

The broker collects the packets that an iteration produces for a client, and sends them with one ``send``. The
``Flusher`` keeps the connections that have output. After all ready callbacks, it writes each of them once: at most
``SENDS_PER_ITERATION`` clients and about ``BYTES_PER_ITERATION`` bytes. The remaining connections come first in the
next iteration. At most one run of the ``Flusher`` is scheduled at any time.

Each connection has a ``ConnectionWriter``. When the socket is full, the transport calls ``pause_writing``; until it has
drained, the channel's writer is not ``writable``, and the session queues messages within its limits. ``SlowReader``
closes a connection whose client reads almost nothing for too long."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ..channel.channel import Channel
from ..channel.outbound_writer import OutboundWriter
from ..loop.budget import DELIVERIES_PER_ITERATION, LoopBudget
from ..session.session import Session
from .layer import Layer
from .slow_reader import SlowReader

logger = logging.getLogger(__name__)

SENDS_PER_ITERATION: Final = 256
"""About a millisecond of kernel time."""
BYTES_PER_ITERATION: Final = 4_194_304
"""Approximate number of bytes that an iteration writes: some milliseconds of copying to the kernel. At least one client
is written."""
LARGE: Final = 65_536
"""Size of a part from which on it is not copied to be sent together with the parts before it."""


class Pausable(Protocol):
    """A connection whose packets wait until output is written."""

    def resume(self) -> None:
        """Process the queued packets."""

    def abort(self) -> None:
        """Close immediately."""


class Flusher:
    """Knows which connections have output, and which publishers wait until it is written."""

    __slots__ = (
        "_budget",
        "_dirty",
        "_end_of_iteration",
        "_left",
        "_left_bytes",
        "_loop",
        "_paused",
        "_paused_last",
        "_scheduled",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, budget: LoopBudget, end_of_iteration: Callable[[], None] | None = None
    ) -> None:
        """``end_of_iteration`` is called in each run: output is written then, and paused connections continue
        afterwards."""
        self._end_of_iteration = end_of_iteration
        self._loop = loop
        self._budget = budget
        self._dirty: list[OutboundWriter] = []
        # Writers from an earlier iteration with too much output, and their approximate size in bytes.
        self._left: list[OutboundWriter] = []
        self._left_bytes = 0
        self._paused: list[Pausable] = []
        # These have had their share of an iteration: they come after the others.
        self._paused_last: list[Pausable] = []
        self._scheduled = False

    def add(self, writer: OutboundWriter) -> list[bytes]:
        """Add a writer that has no output yet. Return its new ``parts``, to which the caller adds the output."""
        parts: list[bytes] = []
        writer.parts = parts
        self._dirty.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)
        return parts

    def withdraw(self, writer: OutboundWriter) -> None:
        """Remove a writer that is written now, if it was the last one added."""
        if self._dirty and self._dirty[-1] is writer:
            self._dirty.pop()

    def wake(self) -> None:
        """Make sure that a run follows soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def resume_later(self, connection: Pausable, last: bool = False) -> None:
        """Resume a connection after the next run. ``last``: it had its share of this iteration, and comes after the
        others."""
        (self._paused_last if last else self._paused).append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Write output, then let paused connections continue."""
        self._scheduled = False
        budget = self._budget
        budget.deliveries = 0
        dirty = self._dirty
        if self._left or len(dirty) > SENDS_PER_ITERATION or budget.bytes > BYTES_PER_ITERATION:
            dirty = self._share_of_iteration(budget)
        else:
            self._dirty = []
            self._left_bytes = budget.bytes = 0
        for writer in dirty:
            try:
                writer.target.flush()
            except Exception:  # an internal error costs only this client its connection
                logger.exception("flush_failed")
                writer.target.abort()
        if self._end_of_iteration is not None:
            self._end_of_iteration()  # before reading continues: the records reach the disk in the meantime
        if (self._paused or self._paused_last) and not budget.congested:
            paused = self._paused + self._paused_last
            self._paused = []
            self._paused_last = []
            for place, connection in enumerate(paused):
                if budget.deliveries > DELIVERIES_PER_ITERATION:  # these are first in the next iteration
                    self._paused[:0] = paused[place:]
                    self.wake()
                    break
                try:
                    connection.resume()
                except Exception:
                    logger.exception("packets_failed")
                    connection.abort()
        if (self._dirty or self._left) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def _share_of_iteration(self, budget: LoopBudget) -> list[OutboundWriter]:
        """Return the writers to write now, of more than one iteration may write. The bytes of the others are left for
        the next iteration."""
        left, new = self._left, self._dirty
        self._dirty = []
        if budget.bytes <= BYTES_PER_ITERATION:
            dirty = left + new if left else new
            self._left = dirty[SENDS_PER_ITERATION:]
            if self._left:
                budget.bytes = budget.bytes * len(self._left) // len(dirty)
                del dirty[SENDS_PER_ITERATION:]
            else:
                budget.bytes = 0
            self._left_bytes = budget.bytes
            return dirty
        # New output does not wait behind large messages to others, but one of those is always sent.
        size = max(0, budget.bytes - self._left_bytes)
        count = _share(len(new), size, SENDS_PER_ITERATION, BYTES_PER_ITERATION)
        of_new = size * count // max(1, len(new))
        again = _share(
            len(left), self._left_bytes, max(1, SENDS_PER_ITERATION - count), max(1, BYTES_PER_ITERATION - of_new)
        )
        of_left = self._left_bytes * again // max(1, len(left))
        self._left = left[again:] + new[count:]
        waiting = max(0, size - of_new) + self._left_bytes - of_left
        self._left_bytes = budget.bytes = waiting if self._left else 0
        return new[:count] + left[:again]

    @property
    def waiting(self) -> int:
        """The number of connections with output that waits for a run."""
        return len(self._dirty) + len(self._left)


def _share(count: int, size: int, sends: int, most: int) -> int:
    """Return how many of these writers may be written, by their average size: the size of a single writer is not
    counted."""
    if size > most:
        sends = max(1, min(sends, most * count // size))
    return min(count, sends)


def _pieces(parts: list[bytes]) -> list[bytes]:
    """Return the same bytes with the small parts joined. A large PUBLISH stays one piece of memory, because its payload
    is shared by all receivers."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) <= LARGE:
            small.append(part)
            continue
        if small:
            pieces.append(b"".join(small))
            small.clear()
        pieces.append(part)
    if small:
        pieces.append(b"".join(small))
    return pieces


class ConnectionWriter:
    """The ``Flusher`` calls ``flush`` once per iteration; the transport reports when the socket is full, and when it
    has drained.

    ``transport`` is None before it exists and after it is lost."""

    __slots__ = (
        "_slow_reader",
        "channel",
        "sent1",
        "sent2",
        "sent_bytes",
        "sent_messages",
        "sent_packets",
        "sent_writes",
        "transport",
    )

    def __init__(self) -> None:
        self._slow_reader: SlowReader | None = None
        self.transport: asyncio.Transport | None = None
        self.channel: Channel
        self.sent_bytes = 0
        self.sent_writes = 0
        self.sent_packets = 0
        # Number of PUBLISH packets, and of those with QoS 1 and with QoS 2.
        self.sent_messages = 0
        self.sent1 = 0
        self.sent2 = 0

    def pause_writing(self) -> None:
        self.channel.writer.set_writable(False)
        watched = self._slow_reader is not None and self._slow_reader.active
        timeout = self.channel.zone.slow_reader_timeout
        if timeout and not watched and self.transport is not None:
            self._slow_reader = SlowReader(self.channel, self.transport, timeout)

    def resume_writing(self) -> None:
        self._stop_watching()
        channel = self.channel
        writer = channel.writer
        writer.set_writable(True)
        writer.backlog = 0
        self.flush()
        if channel.session is not None and writer.writable:
            channel.session.advance(channel.context.clock.now())

    def connection_lost(self) -> None:
        """Discard all output from now on."""
        self.transport = None
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._slow_reader is not None:
            self._slow_reader.stop()
            self._slow_reader = None

    @property
    def unwritten(self) -> int:
        """Return the bytes that the socket has not accepted yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def stored(self) -> None:
        """See ``channel.outbound_writer.WriteTarget``."""
        self.channel.connection.stored()

    def abort(self) -> None:
        """Close immediately, without sending the remaining data."""
        if self.transport is not None:
            self.transport.abort()

    def flush(self, further: bool = True) -> None:
        """Write the output of the channel's writer, unless the socket is full. ``further``: then also output that waits
        for room in the socket."""
        channel = self.channel
        writer = channel.writer
        parts = writer.parts if writer.writable else None
        if parts is not None:
            writer.parts = None
        if parts:  # otherwise the output was dropped
            transport = self.transport
            framed = 0
            if len(parts) == 1:
                pieces = parts
            elif len(parts[-1]) > LARGE:
                pieces = _pieces(parts)
            elif isinstance(transport, Layer):
                framed = transport.write_packets(parts)
                pieces = []
            else:
                pieces = [b"".join(parts)]
            metrics = channel.context.metrics
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
            self.sent_packets += messages + writer.sent_other
            writer.sent_other = 0
            if transport is None:
                return
            self.sent_writes += 1
            metrics.bytes_sent += framed
            self.sent_bytes += framed
            for data in pieces:
                size = len(data)
                metrics.bytes_sent += size
                self.sent_bytes += size
                transport.write(data)
        session = channel.session
        if (
            further
            and session is not None
            and session.replays is not None
            and writer.writable
            and self.transport is not None
        ):
            self._continue_replay(session)

    def _continue_replay(self, session: Session) -> None:
        """Read the next slice of retained messages; if it found nothing yet, continue in the next iteration."""
        channel = self.channel
        session.advance(channel.context.clock.now())
        if session.replaying and channel.writer.parts is None:
            channel.writer.flusher.add(channel.writer)
