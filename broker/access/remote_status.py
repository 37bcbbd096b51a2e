"""RemoteStatus: whether a remote source of access answers, its circuit breaker, and the counters of its answers.

::

    closed ──failures in a row──► open ──pause──► half_open ──connected──► closed
                                   ▲                  │
                                   └──not connected───┘

While the breaker is not closed, questions fail immediately. Each pause is twice as long as the previous one, until a
question is answered.
"""

from collections.abc import Callable
from typing import Final, Literal

from ..loop.clock import Clock

CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"
DOWN: Final = "down"
CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"

UNDECIDED: Final = "undecided"
"""An answer by which the source itself has yet to decide; ``decided`` counts what it decides."""
NO_CONNECTION: Final = "no_connection"
"""The reason of a failure that an attempt to connect shows, too."""
BREAKER_FAILURES: Final = 5
"""Questions in a row without an answer that open the breaker."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts to connect."""
_WEIGHT: Final = 0.1
"""Of the latest answer in ``latency``."""

Word = Literal["connecting", "connected", "down"]
Breaker = Literal["closed", "open", "half_open"]


class RemoteStatus:
    """``word``: ``CONNECTING`` until something is known, ``CONNECTED`` or ``DOWN``; ``reason``: why it is down.
    ``since``: Unix seconds. ``latency``: average seconds until an answer, in which the latest answers weigh most; None:
    there was no answer.

    ``on_change`` is called when ``word`` changes, or when the reason changes while the source is down.
    """

    def __init__(self, clock: Clock, on_change: Callable[[], None]) -> None:
        self.word: Word = CONNECTING
        self.reason = ""
        self.since = clock.wall()
        self.breaker: Breaker = CLOSED
        self.breaker_opened = 0
        self.latency: float | None = None
        self.asked = 0
        self.failed = 0
        self.decisions = {"allow": 0, "deny": 0, "ignore": 0}
        self._clock = clock
        self._on_change = on_change
        self._missed = 0
        self._pause = FIRST_PAUSE
        # Whether an attempt to connect shows the problem; otherwise only an answer shows that it is solved.
        self._shows = True

    @property
    def breaker_blocks(self) -> bool:
        return self.breaker != CLOSED

    def next_pause(self) -> float:
        """Seconds to wait before the next attempt to connect."""
        pause = self._pause
        self._pause = min(2 * pause, LONGEST_PAUSE)
        return pause

    def answered(self, decision: str, seconds: float) -> None:
        """Note that a question was answered."""
        if decision != UNDECIDED:
            self.decided(decision)
        self.latency = seconds if self.latency is None else self.latency + _WEIGHT * (seconds - self.latency)
        self._missed = 0
        self._pause = FIRST_PAUSE
        self._shows = True
        self.breaker = CLOSED
        self._become(CONNECTED, "")

    def decided(self, decision: str) -> None:
        self.decisions[decision] += 1

    def replied(self) -> None:
        """Count a reply without an answer to the question: the source is reachable."""
        self._missed = 0

    def missed(self, reason: str, detail: str) -> None:
        """Count a question without a reply."""
        self._missed += 1
        if self.breaker == CLOSED and self._missed >= BREAKER_FAILURES:
            self.breaker = OPEN
            self.breaker_opened += 1
            if self.word != DOWN:
                self._shows = reason == NO_CONNECTION
            self._become(DOWN, _words(reason, detail))

    def half_open(self) -> None:
        """Note that an attempt to connect begins."""
        if self.breaker == OPEN:
            self.breaker = HALF_OPEN

    def unreachable(self, reason: str, detail: str) -> None:
        """Note that an attempt to connect failed."""
        if self.breaker == HALF_OPEN:
            self.breaker = OPEN
        self._shows = True
        self._become(DOWN, _words(reason, detail))

    def reachable(self) -> None:
        """Note that an attempt to connect succeeded. A server that accepts connections but answers no question stays
        down until it answers one."""
        if self.breaker != CLOSED:
            self.breaker = CLOSED
            self._missed = 0
        if self._shows:
            self._become(CONNECTED, "")

    def _become(self, word: Word, reason: str) -> None:
        if word == self.word and reason == self.reason:
            return
        if word != self.word:
            self.since = self._clock.wall()
        self.word, self.reason = word, reason
        self._on_change()


def _words(reason: str, detail: str) -> str:
    return f"{reason}: {detail}" if detail else reason
