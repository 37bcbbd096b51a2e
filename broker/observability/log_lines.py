"""Log lines that wait a few milliseconds, and are then formatted and written together.

Creating and passing on a ``logging`` record takes as long as formatting the line, and a client that connects and
disconnects logs two lines. ``info`` stores only the time and the values if exactly one handler needs the line.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

Value = str | int | float | None
"""Types whose values cannot change before the line is formatted."""

MAX_WAITING: Final = 256
DELAY: Final = 0.005
"""Seconds that a line waits for others. A write costs more than a line, and an iteration often has only a few lines."""


class WaitingLine:
    """A line that is formatted later. ``message`` has a ``%s`` for each of ``values`` and no other ``%``.
    ``created``: Unix seconds."""

    __slots__ = ("created", "logger", "message", "values")

    def __init__(self, logger: logging.Logger, message: str, values: tuple[Value, ...]) -> None:
        self.created = time.time()
        self.logger = logger
        self.message = message
        self.values = values


class WaitingLines:
    """At most ``MAX_WAITING`` lines of ``handler``, in their order; ``write`` writes all of them.

    Lines for which ``logging`` created a record are already text.
    """

    __slots__ = ("_handler", "_lines", "_loop", "write")

    def __init__(self, handler: logging.Handler, write: Callable[[], None]) -> None:
        self._handler = handler
        self.write = write
        self._lines: list[str | WaitingLine] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that writes them

    def add(self, line: str | WaitingLine) -> bool:
        """Add a line. Return False if it has to be written immediately, because no loop runs or too many lines wait."""
        self._lines.append(line)
        if len(self._lines) >= MAX_WAITING:
            return False
        loop = self._loop  # another thread may take the lines in the meantime, including this one
        if loop is not None and loop.is_running():
            return True
        try:
            loop = self._loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        loop.call_later(DELAY, self.write)
        return True

    def add_values(self, logger: logging.Logger, message: str, values: tuple[Value, ...]) -> None:
        """Add a line that is formatted when it is written."""
        if not self.add(WaitingLine(logger, message, values)):
            self.write()

    def take(self) -> list[str | WaitingLine]:
        """Return all lines and forget them."""
        self._loop = None
        # Clear the list in place, because another thread may be about to append to it.
        lines = self._lines[:]
        del self._lines[: len(lines)]
        return lines

    def alone(self, logger: logging.Logger) -> bool:
        """Return whether a record of this logger would reach this handler, unfiltered, and no other handler."""
        if logger.filters:
            return False
        each = logger
        while each.parent is not None:
            if each.handlers or not each.propagate:
                return False
            each = each.parent
        handler = self._handler
        return each.handlers == [handler] and handler.level <= logging.INFO and not handler.filters


class _Collected:
    """The place where lines wait; None: ``logging`` writes them immediately."""

    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by: WaitingLines | None = None


_collected: Final = _Collected()


def collect(lines: WaitingLines | None) -> None:
    """Make the lines of ``info`` wait in ``lines``."""
    _collected.by = lines


def write_waiting() -> None:
    """Write the lines that wait, so that a reader of the log finds them."""
    lines = _collected.by
    if lines is not None:
        lines.write()


def info(logger: logging.Logger, message: str, *values: Value) -> None:
    """``logger.info(message, *values)``, with ``message`` in the form that ``WaitingLine`` requires."""
    if not logger.isEnabledFor(logging.INFO):
        return
    lines = _collected.by
    if lines is not None and lines.alone(logger):
        lines.add_values(logger, message, values)
    else:
        logger.info(message, *values)
