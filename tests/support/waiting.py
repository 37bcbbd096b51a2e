"""Waiting for something that other tasks, threads or processes bring about."""

import asyncio
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], timeout: float = 8.0) -> None:
    """Let the loop run until it is so."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.002)
