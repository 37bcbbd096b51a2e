"""Changes: lets a task wait for a change of state in this process without polling."""

import asyncio
from collections.abc import Callable


class Changes:
    """The changes of one object. Code that changes the object calls ``tell``; ``until`` waits. ``count`` grows with
    each change::

    incoming.came = True
    incoming.changes.tell()

    await until(lambda: incoming.came, incoming.changes)
    """

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Let waiting tasks check their conditions."""
        self.count += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    def add(self, future: asyncio.Future[None]) -> None:
        """Complete a future at the next change."""
        self._waiting.add(future)

    def remove(self, future: asyncio.Future[None]) -> None:
        """Forget a future of ``add``."""
        self._waiting.discard(future)


async def until(condition: Callable[[], bool], *changes: Changes, timeout: float | None = None) -> bool:
    """Wait until a condition holds, and check it at each of these changes. Return False if it does not hold after
    ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    while not condition():
        left = None if end is None else end - loop.time()
        if left is not None and left <= 0.0:
            return False
        future: asyncio.Future[None] = loop.create_future()
        for each in changes:
            each.add(future)
        try:
            await asyncio.wait((future,), timeout=left)
        finally:
            for each in changes:
                each.remove(future)
    return True
