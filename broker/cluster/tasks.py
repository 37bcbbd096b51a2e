"""Tasks: what a part of the cluster has begun and not ended; the event loop alone does not hold a task."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Tasks:
    """Those that run."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Begin it."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """None of them goes on."""
        for task in list(self._running):
            task.cancel()

    async def stop(self) -> None:
        """The same, and until they have ended."""
        tasks = list(self._running)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
