"""KeyLocks: at most one task at a time changes the key of a client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class KeyLocks:
    """A lock for each client ID that a task uses or waits for."""

    def __init__(self) -> None:
        # With the number of tasks that use or wait for the lock.
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __contains__(self, client_id: str) -> bool:
        """Return whether a task uses the lock of a client, or waits for it."""
        return client_id in self._locks

    @contextlib.asynccontextmanager
    async def locked(self, client_id: str) -> AsyncIterator[None]:
        """Prevent other tasks from changing the key of a client."""
        lock, waiting = self._locks.get(client_id) or (asyncio.Lock(), 0)
        self._locks[client_id] = (lock, waiting + 1)
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._locks[client_id]
            if waiting == 1:
                del self._locks[client_id]
            else:
                self._locks[client_id] = (lock, waiting - 1)
