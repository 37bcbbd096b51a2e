"""answer_within: a time limit for an answer of another system, which delays of this process do not use up.

For example, ten thousand clients connect at once, and the loop needs three seconds for what they have sent. The answer
of a database has arrived in the meantime, but nothing has read it yet: that is not a failure of the database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_STEPS: Final = 10


@asynccontextmanager
async def answer_within(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block after ``seconds``, as ``asyncio.timeout`` does. The time passes in ten steps, and
    in each of them the loop has read what has arrived: a step that begins late, because the loop was busy, is not
    shorter."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def step(left: int) -> None:
            nonlocal timer
            if left:
                timer = loop.call_later(seconds / _STEPS, step, left - 1)
            else:
                limit.reschedule(loop.time())

        timer = loop.call_later(seconds / _STEPS, step, _STEPS - 1)
        try:
            yield
        finally:
            timer.cancel()
