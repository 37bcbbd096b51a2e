"""BatchAnswer, and the division of a batch of which some rows were refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..delivery.buffer import DELIVERED, DeliveryOutcome


class BatchAnswer(NamedTuple):
    """The answer for a batch. ``divide``: the server refused it, and fewer of its rows may succeed."""

    outcome: DeliveryOutcome
    divide: bool = False


async def written_in_parts(count: int, write: Callable[[int, int], Awaitable[BatchAnswer]]) -> list[DeliveryOutcome]:
    """Return the outcomes of ``count`` rows, in order. ``write(start, end)`` writes a part of them.

    Each half of a refused batch is written separately, until only the invalid rows are left, which become dead
    letters."""
    outcomes = [DELIVERED] * count
    # The parts that have not been written, the first rows last.
    parts = [(0, count)]
    while parts:
        start, end = parts.pop()
        outcome, divide = await write(start, end)
        if divide and end - start > 1:
            middle = (start + end) // 2
            parts += [(middle, end), (start, middle)]
            continue
        if outcome.retry:
            # Earlier parts have been written; the server cannot write the others either.
            outcomes[start:] = [outcome] * (count - start)
            break
        outcomes[start:end] = [outcome._replace(aside=True) if divide else outcome] * (end - start)
    return outcomes
