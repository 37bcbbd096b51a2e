"""LivenessCheck: whether the other system of a resource can be reached, checked at the start and then at an
interval."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ..network.allowed_networks import NOT_TRIED, reason_of

logger = logging.getLogger(__name__)


class LivenessCheck:
    """Calls ``probe`` every ``interval`` seconds, and ``on_change`` when the result changes."""

    def __init__(
        self,
        resource_id: str,
        probe: Callable[[], Awaitable[None]],
        interval: float,
        on_change: Callable[[bool], None],
    ) -> None:
        """``probe`` raises OSError if the system cannot be reached, and limits its own time."""
        self.alive = False
        self.reason = NOT_TRIED
        self._resource_id = resource_id
        self._probe = probe
        self._interval = interval
        self._on_change = on_change
        self._known = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def learn(self, reason: str = "") -> None:
        """Note the result of a probe or of a request: alive, or not for this ``reason``."""
        alive = not reason
        self.reason = reason
        first, self._known = not self._known, True
        if alive == self.alive and not first:
            return
        if alive:
            logger.info("resource_alive resource=%s", self._resource_id)
        else:
            logger.warning("resource_down resource=%s reason=%s", self._resource_id, reason)
        if alive != self.alive:
            self.alive = alive
            self._on_change(alive)

    async def _watch(self) -> None:
        while True:
            try:
                await self._probe()
            except OSError as error:
                self.learn(reason_of(error))
            except Exception as error:
                logger.exception("resource_probe_failed resource=%s error=%s", self._resource_id, error)
                self.learn(reason_of(error))
            else:
                self.learn()
            await asyncio.sleep(self._interval)
