"""Parsing of long statements in a process of its own, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import BrokenExecutor
from typing import TYPE_CHECKING, Final

from .ast import Statement
from .error import MAX_BYTES, SqlError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

ON_LOOP: Final = 1024
"""Characters that take about two milliseconds to parse; what is longer goes to the process."""
IDLE: Final = 60.0
"""Seconds after which an idle process is ended."""

_Refusal = tuple[str, int, int, tuple[str, ...]]


class OffLoop:
    """Parses; the process runs from the first long statement until it was idle for ``IDLE`` seconds."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._used_at = 0.0
        self._busy = 0

    async def parse(self, text: str, now: float) -> Statement:
        """The statement; Raises SqlError, and RuntimeError where the process has ended."""
        if len(text) <= ON_LOOP or len(text) > MAX_BYTES:
            return parse_here(text)
        if self._pool is None:
            # Imported here, as few statements are long.
            from concurrent.futures import ProcessPoolExecutor
            from multiprocessing import get_context

            # spawn: a forked child would hold the listeners' sockets.
            context = get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_ignore_interrupts)
        self._used_at = now
        self._busy += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._pool, _parse, text)
        except BrokenExecutor as error:
            self.close()
            raise RuntimeError("the process that parses SQL has ended") from error
        finally:
            self._busy -= 1
        if isinstance(found, Statement):
            return found
        message, line, column, expected = found
        raise SqlError(message, line, column, expected)

    def tick(self, now: float) -> None:
        """End an idle process."""
        if self._pool is not None and not self._busy and now - self._used_at >= IDLE:
            self.close()

    def close(self) -> None:
        """Without waiting; the process ends by itself."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def parse_here(text: str) -> Statement:
    """The same at once, in this thread. Raises SqlError."""
    from .parser import parse  # here: a node that reads no rule needs no grammar

    return parse(text)


def _ignore_interrupts() -> None:
    """Ctrl-C is for the node, which then ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _parse(text: str) -> Statement | _Refusal:
    """What can go from one process to another: a refusal goes as a tuple."""
    try:
        return parse_here(text)
    except SqlError as error:
        return error.message, error.line, error.column, error.expected
