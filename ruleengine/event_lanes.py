"""EventLanes: events that wait in memory for a program outside: a provider of exhook, or the server of the web hooks.

Each client has a lane, which sends one request at a time, in order. Waiting events are limited and count as memory of
the node, which drops them when it needs that memory: no event is promised to arrive."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar
from zlib import crc32

from taipan.broker.server import Server
from taipan.broker.session.memory_account import NORMAL

T = TypeVar("T")

QUEUE_FULL = "queue_full"
MEMORY = "memory"
"""Why an event is dropped."""


class LaneLimits(NamedTuple):
    """``table``: the table of the settings ``max_queued`` and ``max_queued_bytes``. ``lanes``: the number of lanes,
    which is the number of requests at a time. ``overhead``: approximate memory of a waiting request in addition to its
    size, in bytes."""

    table: str
    lanes: int
    overhead: int
    max_queued: int
    max_queued_bytes: int


class EventLanes(Generic[T]):
    """Belongs to one event loop. ``waiting`` and ``waiting_bytes``: requests that wait or are under way, and their
    memory."""

    def __init__(
        self,
        server: Server,
        limits: LaneLimits,
        send: Callable[[T], Awaitable[None]],
        dropped: Callable[[str, str, int], None],
    ) -> None:
        """``send``: sends a request; it raises nothing. ``dropped``: is called with the reason, the setting that limits
        what waits, and a number of events."""
        self._account = server.broker.account
        self._queues_of_node = server.guard.event_queues
        self._limits = limits
        self._send = send
        self._dropped = dropped
        self._queues: list[deque[tuple[T, int]]] = [deque() for _ in range(limits.lanes)]
        self._wake = [asyncio.Event() for _ in range(limits.lanes)]
        self._tasks: list[asyncio.Task[None]] = []
        self.waiting = 0
        self.waiting_bytes = 0

    def start(self, name: str) -> None:
        """Send from now on."""
        self._queues_of_node.append(self)
        self._tasks = [asyncio.create_task(self._run(lane), name=f"{name} {lane}") for lane in range(len(self._queues))]

    def put(self, client_id: str, make: Callable[[], tuple[T, int]]) -> None:
        """Send a request after the earlier ones of the same client. ``make`` returns it with its size in bytes; if too
        many requests wait, the event is dropped and ``make`` is not called."""
        lane = crc32(client_id.encode("utf-8", "replace")) % len(self._queues)
        limits = self._limits
        if self.waiting >= limits.max_queued:
            self._dropped(QUEUE_FULL, f"{limits.table}.max_queued", 1)
        elif self.waiting_bytes >= limits.max_queued_bytes:
            self._dropped(QUEUE_FULL, f"{limits.table}.max_queued_bytes", 1)
        elif self._account.level > NORMAL and self._queues[lane]:
            self._dropped(MEMORY, "limits.memory", 1)
        else:
            request, size = make()
            size += limits.overhead
            self.waiting += 1
            self.waiting_bytes += size
            self._queues[lane].append((request, size))
            self._wake[lane].set()

    def shed(self) -> None:
        """Drop everything that waits and is not under way, because memory is exhausted."""
        before = self.waiting
        for queue in self._queues:
            while len(queue) > 1:
                self._gone(queue.pop()[1])
        if before != self.waiting:
            self._dropped(MEMORY, "limits.memory", before - self.waiting)

    async def close(self, seconds: float) -> int:
        """Send waiting events for a limited time; return how many were dropped."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.waiting and loop.time() < deadline:
            await asyncio.sleep(0.01)
        left = self.waiting
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self in self._queues_of_node:
            self._queues_of_node.remove(self)
        return left

    def _gone(self, size: int) -> None:
        self.waiting -= 1
        self.waiting_bytes -= size

    async def _run(self, lane: int) -> None:
        queue, wake = self._queues[lane], self._wake[lane]
        while True:
            if not queue:
                wake.clear()
                await wake.wait()
                continue
            request, size = queue[0]  # it counts as waiting until it is answered
            try:
                await self._send(request)
            finally:
                queue.popleft()
                self._gone(size)
