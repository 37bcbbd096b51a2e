"""ClaimQueue: in which order, and how many at a time, the claims of this node ask another node for sessions.

When a node is lost, all its clients connect to the other nodes within seconds, and each claim needs a session of that
node. If all asked repeatedly at the same time, the answers would come too late to be useful. Therefore the claims wait
in line::

    claims of c1 to c500     line: c129 … c500    c1 to c128 ask the node
    the node does not run    line: c2 … c500      c1 asks again every 250 ms
    the node answers c1      line: c130 … c500    c2 to c129 ask the node
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

_MOST_ASKING: Final = 128
"""Maximum number of claims that ask one node at the same time."""
ASK_AGAIN: Final = 0.25
"""Seconds between two questions to a node that does not answer, and between two checks of the claims in line."""


class _Waiting(NamedTuple):
    """A claim in line. ``turn`` receives True when its turn has come, or False when its time is up."""

    number: int
    until: float
    waits: Callable[[], bool]
    turn: asyncio.Future[bool]


class ClaimQueue:
    """The claims that need sessions of one other node. ``unreachable`` says why the last question was not answered, and
    is empty if it was. While it is set, one claim asks, and the others wait for its answer."""

    def __init__(self) -> None:
        self.unreachable = ""
        self._loop = asyncio.get_running_loop()
        self._asking = 0
        self._ask_at = 0.0
        self._line: list[_Waiting] = []  # a heap
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_closed(self) -> bool:
        """Return whether the node failed to answer a moment ago, or is being asked again now."""
        return bool(self.unreachable) and (bool(self._asking) or self._loop.time() < self._ask_at)

    @property
    def is_long(self) -> bool:
        """Return whether claims wait while others ask the node."""
        return bool(self._line) and not self.unreachable

    @contextlib.asynccontextmanager
    async def turn(self, number: int, until: float, waits: Callable[[], bool]) -> AsyncIterator[bool]:
        """Wait for the turn of a claim. ``number``: claims with a lower one come first. ``waits``: returns whether the
        client still waits. The result is False if the time is up, or the client has left."""
        waiting = _Waiting(number, until, waits, self._loop.create_future())
        heappush(self._line, waiting)
        self._let_ask()
        try:
            yield await waiting.turn
        finally:
            if not waiting.turn.done():
                waiting.turn.cancel()
            elif not waiting.turn.cancelled() and waiting.turn.result():
                self._asking -= 1
                self._let_ask()

    def answered(self) -> None:
        """Note that the node has answered."""
        self.unreachable = ""

    def not_answered(self, error: str) -> None:
        """Note that the node has not answered: it is not asked again for some time."""
        self.unreachable = error
        self._ask_at = self._loop.time() + ASK_AGAIN

    def _let_ask(self) -> None:
        while self._line and self._may_ask():
            waiting = heappop(self._line)
            if not waiting.turn.done():
                self._asking += 1
                waiting.turn.set_result(True)
        if self._line and self._timer is None:
            self._timer = self._loop.call_later(ASK_AGAIN, self._look)

    def _may_ask(self) -> bool:
        if self.unreachable:
            return not self._asking and self._loop.time() >= self._ask_at
        return self._asking < _MOST_ASKING

    def _look(self) -> None:
        """End the wait of claims whose time is up, or whose clients have left."""
        self._timer = None
        now = self._loop.time()
        for each in self._line:
            if not each.turn.done() and (now >= each.until or not each.waits()):
                each.turn.set_result(False)
        self._line = [each for each in self._line if not each.turn.done()]
        heapify(self._line)
        self._let_ask()


class ClaimQueues:
    """The queues by node."""

    def __init__(self) -> None:
        self._queues: dict[str, ClaimQueue] = {}
        self._number = 0

    def number(self) -> int:
        """Return the number of a new claim."""
        self._number += 1
        return self._number

    def of(self, node: str) -> ClaimQueue:
        """Return the queue of a node."""
        queue = self._queues.get(node)
        if queue is None:
            queue = self._queues[node] = ClaimQueue()
        return queue

    def forget(self, node: str) -> None:
        """Forget a node that was removed."""
        self._queues.pop(node, None)
