"""Flusher: every connection that has something to write is written once, at the end of the iteration: after all
callbacks that were ready.

Collecting output is what makes the broker fast: one ``send`` for all that an iteration produced for a client. An
iteration writes to at most ``SENDS_PER_ITERATION`` clients and about ``BYTES_PER_ITERATION`` bytes; what is left comes
first in the next one, and exactly one further run is outstanding at any time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ..channel.outbound_writer import OutboundWriter
from ..loop.budget import DELIVERIES_PER_ITERATION, LoopBudget

logger = logging.getLogger(__name__)

SENDS_PER_ITERATION: Final = 256
"""About a millisecond of the kernel's time."""
BYTES_PER_ITERATION: Final = 4_194_304
"""Bytes that an iteration writes, about: some milliseconds of copying to the kernel, but one client at least."""


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
