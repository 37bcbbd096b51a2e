"""Flusher: every connection that has something to write is written once, at the end of the loop turn.

Collecting output is what makes the broker fast: one ``send`` for all that a turn produced for a client. A turn writes
to at most ``SENDS_A_TURN`` clients and about ``OCTETS_A_TURN`` bytes; who is left comes first in the next one, and
exactly one further run is outstanding at any time.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ..channel.dispatcher import DELIVERIES_PER_ITERATION
from ..channel.outbound_writer import OutboundWriter
from ..loop.budget import LoopBudget

logger = logging.getLogger(__name__)

SENDS_A_TURN: Final = 256
"""About a millisecond of the kernel's time."""
OCTETS_A_TURN: Final = 4_194_304
"""Bytes that a turn writes, about: some milliseconds of copying to the kernel, but one client at least."""
HIGH_WATER: Final = 67_108_864
"""Bytes of output waiting beyond which no publisher's packets are taken."""


class Holdable(Protocol):
    """A connection whose packets wait for output to go out."""

    def proceed(self) -> None:
        """Take the packets that were held back."""

    def abort(self) -> None:
        """Close at once."""


class Flusher:
    """Knows who has output waiting and which publishers wait for it to go."""

    __slots__ = (
        "_dirty",
        "_end_of_turn",
        "_held",
        "_left",
        "_left_octets",
        "_loop",
        "_scheduled",
        "_spent",
        "_turn",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, turn: LoopBudget, end_of_turn: Callable[[], None] | None = None
    ) -> None:
        """``end_of_turn`` is called in each run, when its output is written and before held connections go on."""
        self._end_of_turn = end_of_turn
        self._loop = loop
        self._turn = turn
        self._dirty: list[OutboundWriter] = []
        # Of an earlier turn that had more to write than it should, and about how many bytes they have.
        self._left: list[OutboundWriter] = []
        self._left_octets = 0
        self._held: list[Holdable] = []
        # Of those, who have had their share of a turn: after the others.
        self._spent: list[Holdable] = []
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

    def hold(self, connection: Holdable, spent: bool = False) -> None:
        """Let it proceed after the next run; ``spent``: it had its share of this turn, and lets others go first."""
        (self._spent if spent else self._held).append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """Write, then let held connections go on."""
        self._scheduled = False
        turn = self._turn
        turn.deliveries = 0
        dirty = self._next(turn)
        for writer in dirty:
            try:
                writer.target.flush()
            except Exception:  # a fault of ours costs this client its connection, not the others their output
                logger.exception("flush_failed")
                writer.target.abort()
        if self._end_of_turn is not None:
            self._end_of_turn()  # before more is taken: what waits for the disk is on its way meanwhile
        if (self._held or self._spent) and not turn.congested:
            held = self._held + self._spent
            self._held = []
            self._spent = []
            for place, connection in enumerate(held):
                if (
                    turn.deliveries > DELIVERIES_PER_ITERATION
                ):  # enough for this turn: these are the first of the next one
                    self._held[:0] = held[place:]
                    self.wake()
                    break
                try:
                    connection.proceed()
                except Exception:
                    logger.exception("packets_failed")
                    connection.abort()
        if (self._dirty or self._left) and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.run)

    def _next(self, turn: LoopBudget) -> list[OutboundWriter]:
        """Who is written to now. ``octets`` of the turn are left with what those who wait for the next one have."""
        left, new = self._left, self._dirty
        self._dirty = []
        if turn.octets <= OCTETS_A_TURN:
            dirty = left + new if left else new
            self._left = dirty[SENDS_A_TURN:]
            if self._left:
                turn.octets = turn.octets * len(self._left) // len(dirty)
                del dirty[SENDS_A_TURN:]
            else:
                turn.octets = 0
            self._left_octets = turn.octets
            return dirty
        # Whoever has come since does not wait behind large messages to others, but one of those goes out in any case.
        octets = max(0, turn.octets - self._left_octets)
        count = _share(len(new), octets, SENDS_A_TURN, OCTETS_A_TURN)
        of_new = octets * count // max(1, len(new))
        again = _share(len(left), self._left_octets, max(1, SENDS_A_TURN - count), max(1, OCTETS_A_TURN - of_new))
        of_left = self._left_octets * again // max(1, len(left))
        self._left = left[again:] + new[count:]
        waiting = max(0, octets - of_new) + self._left_octets - of_left
        self._left_octets = turn.octets = waiting if self._left else 0
        return new[:count] + left[:again]

    @property
    def waiting(self) -> int:
        """Connections with output waiting for a run."""
        return len(self._dirty) + len(self._left)


def _share(count: int, octets: int, sends: int, most: int) -> int:
    """How many of so many may be written to, by what each has on average: nobody counts what is in a writer."""
    if octets > most:
        sends = max(1, min(sends, most * count // octets))
    return min(count, sends)
