"""Parsing of long statements in slices, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from .ast import Statement

AT_ONCE: Final = 1024
"""Number of characters that are parsed in about four milliseconds; longer texts are parsed in slices."""
SLICE: Final = 64
"""Number of steps between two turns of the loop, about two milliseconds: a step is a token, or a similar amount of
work."""


class SlicedParsing:
    """Parses long statements one at a time, even if several are requested: at most one slice per turn of the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def parse(self, text: str) -> Statement:
        """Return the statement. Raises SqlError."""
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
    """Parse immediately, in this thread. Raises SqlError."""
    from .parser import parse  # imported here: a node without rules needs no grammar

    return parse(text)
