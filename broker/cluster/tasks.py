"""Tasks: keeps references to the running tasks of a part of the cluster, because the event loop does not."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class Tasks:
    """The running tasks."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def run(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in list(self._running):
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        tasks = list(self._running)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
