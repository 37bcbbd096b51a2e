"""Parsing of long statements in slices, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from .ast import Statement

AT_ONCE: Final = 1024
"""Characters that take about four milliseconds to parse; what is longer is parsed in slices."""
SLICE: Final = 64
"""Steps between two turns of the loop, about two milliseconds: a step is a token, or as little work as one."""


class SlicedParsing:
    """Parses long statements one at a time, however many were asked for: no more than a slice in a turn of the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def parse(self, text: str) -> Statement:
        """The statement. Raises SqlError."""
        if len(text) <= AT_ONCE:
            return parse_here(text)
        from .parser import parsing

        async with self._turn:
            steps = parsing(text)
            try:
                while True:
                    for _ in range(SLICE):
                        next(steps)
                    await asyncio.sleep(0)
            except StopIteration as end:
                statement: Statement = end.value
                return statement


def parse_here(text: str) -> Statement:
    """The same at once, in this thread. Raises SqlError."""
    from .parser import parse  # here: a node that reads no rule needs no grammar

    return parse(text)
