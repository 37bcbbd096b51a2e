"""Lanes: requests that wait for one provider. Each client has a lane, which sends one request at a time, in order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from zlib import crc32

COUNT: Final = 32
"""Number of lanes, and so of requests at a time."""
_OVERHEAD: Final = 400
"""Approximate memory of a waiting request in addition to its encoded size, in bytes."""


class Waiting(NamedTuple):
    """``method``: the name of the call. ``size``: in bytes."""

    method: str
    request: Any
    size: int


class Lanes:
    """``waiting`` and ``waiting_bytes``: requests that wait or are under way, and their size."""

    def __init__(self, send: Callable[[str, Any], Awaitable[None]]) -> None:
        """``send``: sends a request; it raises nothing."""
        self._send = send
        self._queues: list[deque[Waiting]] = [deque() for _ in range(COUNT)]
        self._wake = [asyncio.Event() for _ in range(COUNT)]
        self._tasks: list[asyncio.Task[None]] = []
        self.waiting = 0
        self.waiting_bytes = 0

    def start(self, name: str) -> None:
        """Send from now on."""
        self._tasks = [asyncio.create_task(self._run(lane), name=f"{name} {lane}") for lane in range(COUNT)]

    def put(self, client_id: str, method: str, request: Any) -> None:
        """Send a request after the earlier ones of the same client."""
        lane = crc32(client_id.encode("utf-8", "replace")) % COUNT
        size = request.ByteSize() + _OVERHEAD
        self.waiting += 1
        self.waiting_bytes += size
        self._queues[lane].append(Waiting(method, request, size))
        self._wake[lane].set()

    async def close(self, seconds: float) -> int:
        """Send what waits, for at most so long; return how many requests are dropped."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.waiting and loop.time() < deadline:
            await asyncio.sleep(0.01)
        left = self.waiting
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return left

    async def _run(self, lane: int) -> None:
        queue, wake = self._queues[lane], self._wake[lane]
        while True:
            if not queue:
                wake.clear()
                await wake.wait()
                continue
            first = queue[0]  # it counts as waiting until it is answered
            try:
                await self._send(first.method, first.request)
            finally:
                queue.popleft()
                self.waiting -= 1
                self.waiting_bytes -= first.size
