"""Output: what channels have to send goes to their sockets, once an iteration, as long as these take it.

Collecting it is what makes the broker fast: one ``send`` for all that an iteration produced for a client. The
``Flusher`` knows which connections have something to write and has each written once, after all callbacks that were
ready. It writes to at most ``SENDS_PER_ITERATION`` clients and about ``BYTES_PER_ITERATION`` bytes; what is left comes
first in the next iteration, and exactly one further run is outstanding at any time.

The ``ConnectionWriter`` of a connection writes. A socket that takes no more is the back-pressure of a slow reader: the
transport says so (``pause_writing``), the channel's writer is not ``writable`` until the socket has drained, and the
session queues by its own bounds meanwhile; ``SlowReader`` closes a client that takes next to nothing for too long.
"""

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
"""About a millisecond of the kernel's time."""
BYTES_PER_ITERATION: Final = 4_194_304
"""Bytes that an iteration writes, about: some milliseconds of copying to the kernel, but one client at least."""
LARGE: Final = 65_536
"""Bytes of one part that are not copied to go out together with what stands before them."""


class Pausable(Protocol):
    """A connection whose packets wait for output to go out."""

    def resume(self) -> None:
        """Take the packets that were queued."""

    def abort(self) -> None:
        """Close at once."""


class Flusher:
    """Knows which connections have output waiting, and which publishers wait for it to go."""

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
        """``end_of_iteration`` is called in each run: output is written then, and paused connections go on after it."""
        self._end_of_iteration = end_of_iteration
        self._loop = loop
        self._budget = budget
        self._dirty: list[OutboundWriter] = []
        # Of an earlier iteration that had more to write than it should, and about how many bytes they have.
        self._left: list[OutboundWriter] = []
        self._left_bytes = 0
        self._paused: list[Pausable] = []
        # These have had their share of an iteration: they come after the others.
        self._paused_last: list[Pausable] = []
        self._scheduled = False

    def add(self, writer: OutboundWriter) -> None:
        """It has something to write, and had nothing before."""
        self._dirty.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def withdraw(self, writer: OutboundWriter) -> None:
        """It is written now, if it was the last to be added."""
        if self._dirty and self._dirty[-1] is writer:
            self._dirty.pop()

    def wake(self) -> None:
        """See to it that a run comes soon."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def resume_later(self, connection: Pausable, last: bool = False) -> None:
        """Resume it after the next run. ``last``: it had its share of this iteration, and comes after the others."""
        (self._paused_last if last else self._paused).append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Write, then let paused connections go on."""
        self._scheduled = False
        budget = self._budget
        budget.deliveries = 0
        dirty = self._next(budget)
        for writer in dirty:
            try:
                writer.target.flush()
            except Exception:  # a fault of ours costs this client its connection, not the others their output
                logger.exception("flush_failed")
                writer.target.abort()
        if self._end_of_iteration is not None:
            self._end_of_iteration()  # before more is taken: what waits for the disk is on its way meanwhile
        if (self._paused or self._paused_last) and not budget.congested:
            paused = self._paused + self._paused_last
            self._paused = []
            self._paused_last = []
            for place, connection in enumerate(paused):
                if budget.deliveries > DELIVERIES_PER_ITERATION:  # these are the first of the next iteration
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

    def _next(self, budget: LoopBudget) -> list[OutboundWriter]:
        """What is written to now. The bytes of the budget are left with what waits for the next iteration."""
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
        # What has come since does not wait behind large messages to others, but one of those goes out in any case.
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
        """Connections with output waiting for a run."""
        return len(self._dirty) + len(self._left)


def _share(count: int, size: int, sends: int, most: int) -> int:
    """How many of so many may be written to, by what each has on average: what is in a writer is not counted."""
    if size > most:
        sends = max(1, min(sends, most * count // size))
    return min(count, sends)


def _pieces(parts: list[bytes]) -> list[bytes]:
    """The same bytes, the small ones of them together. A large PUBLISH stays one piece of memory: its payload is the
    same for all who get it."""
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
    """The ``Flusher`` calls ``flush`` once an iteration; the transport says when it takes no more, and when again.

    ``transport`` is None before there is one and once it is lost.
    """

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
        # PUBLISH packets, and those of QoS 1 and of QoS 2 among them.
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
        self.channel.connection.stored()

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        if self.transport is not None:
            self.transport.abort()

    def flush(self) -> None:
        """Write what the channel's writer holds, unless the socket is full, then what waits for room in it."""
        channel = self.channel
        writer = channel.writer
        if writer.writable and writer.parts is not None:
            self.write()
        session = channel.session
        if session is not None and session.replays is not None and writer.writable and self.transport is not None:
            self._continue_replay(session)

    def write(self) -> None:
        """Write what the channel's writer holds."""
        channel = self.channel
        writer = channel.writer
        parts = writer.parts
        writer.parts = None
        if not parts:  # what was to be sent was dropped
            return
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

    def _continue_replay(self, session: Session) -> None:
        """Fetch the next slice of retained messages; where that found nothing yet, look on in the next iteration."""
        channel = self.channel
        session.advance(channel.context.clock.now())
        if session.replaying and channel.writer.parts is None:
            channel.flusher.add(channel.writer)
