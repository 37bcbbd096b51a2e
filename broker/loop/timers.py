"""Timers of the whole node, run from its one ticker."""

import heapq
import logging
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

BUDGET: Final = 500
"""Maximum number of callbacks of one ``run``: a few milliseconds even if each sends a Will Message."""
_FEW: Final = 64  # cancelled timers that are never worth a compaction


class TimeSource(Protocol):
    """A source of the time: ``loop.clock.Clock`` or a test clock."""

    def now(self) -> float:
        """Unix seconds."""
        ...


class DatedTimeSource(TimeSource, Protocol):
    """A source of the time and of dates."""

    @property
    def skew(self) -> float: ...

    def wall(self) -> float: ...


class Timer:
    """A callback at a point in time; ``when`` is in Unix seconds. It fires once, unless it is cancelled before."""

    __slots__ = ("_timers", "callback", "when")

    def __init__(self, timers: "Timers", when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback
        self._timers = timers

    @property
    def active(self) -> bool:
        """Return whether the timer has neither fired nor been cancelled."""
        return self.callback is not None

    def cancel(self) -> None:
        """Cancel the timer. This has no effect if it has already fired or been cancelled."""
        if self.callback is not None:
            self.callback = None  # also releases the objects that the callback refers to
            self._timers._one_cancelled()


class Timers:
    """The node's timers. Cancelling only marks a timer; when more than half are cancelled, all cancelled ones are
    removed.

    ``ticker.Ticker`` calls ``run``; without it, no timer fires. Callbacks that are due at the same moment fire in the
    order in which they were added. Each connection has a timer, most of which never fire. Timers are kept in lists of a
    tenth of a second each, and only the lists of tenths that have begun are sorted, in a heap."""

    __slots__ = (
        "_begun",
        "_cancelled",
        "_clock",
        "_count",
        "_heap",
        "_later",
        "_sequence",
        "_tenths",
        "enough",
        "errors",
    )

    def __init__(self, clock: TimeSource) -> None:
        self._clock = clock
        # Returns whether the callbacks of this run have caused enough work for one loop iteration; None: unlimited.
        self.enough: Callable[[], bool] | None = None
        # Timers in tenths of a second up to ``_begun``.
        self._heap: list[tuple[float, int, Timer]] = []
        self._begun = -1
        # Timers in later tenths, in the order in which they were added; and the numbers of these tenths as a heap.
        self._later: dict[int, list[Timer]] = {}
        self._tenths: list[int] = []
        self._count = 0
        self._sequence = 0
        self._cancelled = 0
        self.errors = 0

    def __len__(self) -> int:
        """Return the number of active timers."""
        return self._count - self._cancelled

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` at ``when`` (Unix seconds), or at the next run if that time has passed."""
        timer = Timer(self, when, callback)
        self._count += 1
        tenth = int(when * 10)
        if tenth <= self._begun:
            self._push(timer)
            return timer
        later = self._later.get(tenth)
        if later is None:
            later = self._later[tenth] = []
            heapq.heappush(self._tenths, tenth)
        later.append(timer)
        return timer

    def _push(self, timer: Timer) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (timer.when, self._sequence, timer))

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` in ``seconds`` from now."""
        return self.at(self._clock.now() + seconds, callback)

    def now(self) -> float:
        """Return the time of the clock that the timers use."""
        return self._clock.now()

    def due(self, now: float) -> bool:
        """Return whether a run at ``now`` would fire a timer."""
        tenths = self._tenths
        if tenths and tenths[0] <= now * 10:
            self._begun = int(now * 10)
            while tenths and tenths[0] <= self._begun:
                for timer in self._later.pop(heapq.heappop(tenths)):
                    self._push(timer)
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._cancelled -= 1
            self._count -= 1
        return bool(heap) and heap[0][0] <= now

    def run(self, now: float, budget: int = BUDGET) -> int:
        """Fire the timers that are due at ``now``, at most ``budget`` callbacks or until it is ``enough``; return how
        many fired.

        The remaining timers wait for the next run. An error in a callback is logged and counted, and does not stop the
        others.
        """
        fired = 0
        while fired < budget and self.due(now):
            timer = heapq.heappop(self._heap)[2]
            self._count -= 1
            callback, timer.callback = timer.callback, None
            fired += 1
            if callback is None:  # due() has just removed the cancelled ones
                continue
            try:
                callback()
            except Exception:
                self.errors += 1
                logger.exception("timer_failed callback=%s", getattr(callback, "__qualname__", repr(callback)))
            if self.enough is not None and self.enough():
                break
        return fired

    def _one_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > _FEW and self._cancelled * 2 > self._count:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            for tenth, timers in list(self._later.items()):
                left = [timer for timer in timers if timer.callback is not None]
                if left:
                    self._later[tenth] = left
                else:
                    del self._later[tenth]
            self._tenths = sorted(self._later)
            self._count -= self._cancelled
            self._cancelled = 0
