"""Waiting for something that other tasks, threads or processes bring about."""

import asyncio
from collections.abc import Callable
from typing import Any

from .patience import patience


async def until(condition: Callable[[], Any], timeout: float = 40.0) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(patience(timeout)):
        while not condition():
            await asyncio.sleep(0.002)


class LoopIterations:
    """``count``: how often the running loop has gone round since; end it with ``stop``."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._again)

    def _again(self) -> None:
        self.count += 1
        self._next = self._loop.call_soon(self._again)

    def stop(self) -> None:
        self._next.cancel()
