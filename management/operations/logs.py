"""Logs: how much the node writes, changed while it runs. The configuration says it again at the next reload."""

import logging
from typing import Any, Final

from .refusal import Refusal, not_found, wrong

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
INHERIT: Final = "inherit"
"""The level of a logger that has none of its own."""
PRIMARY: Final = "primary"


class Logs:
    """Levels of the root logger, of named ones below it, and of the handlers that write."""

    def level(self, name: str | None = None) -> str:
        """Return the level of a logger (``None``: the root logger, ``primary``). Raises Refusal for an unknown one."""
        return level_name(self._logger(name).getEffectiveLevel())

    def set_level(self, level: str, name: str | None = None) -> str:
        """From now on write no less than ``level`` of this logger; the level that then holds.

        ``inherit``: a named logger goes by the one above it again.
        """
        logger = self._logger(name)
        if level == INHERIT and logger is not logging.getLogger():
            logger.setLevel(logging.NOTSET)
        else:
            logger.setLevel(_number(level))
        return level_name(logger.getEffectiveLevel())

    def levels(self) -> list[dict[str, Any]]:
        """The root and each logger with a level of its own."""
        root = logging.getLogger()
        found = [{"logger": PRIMARY, "level": level_name(root.level)}]
        for name, logger in sorted(root.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
                found.append({"logger": name, "level": level_name(logger.level)})
        return found

    def handlers(self) -> list[dict[str, object]]:
        """Return the log handlers. ``id``: the number of the handler, or its name if it has one."""
        return [_record(place, handler) for place, handler in enumerate(logging.getLogger().handlers)]

    def set_handler_level(self, handler_id: str, level: str) -> str:
        """From now on let this handler write no less than ``level``. Raises Refusal for an unknown one."""
        for place, handler in enumerate(logging.getLogger().handlers):
            if _record(place, handler)["id"] == handler_id:
                handler.setLevel(_number(level))
                return level_name(handler.level)
        raise not_found("log handler", handler_id)

    def _logger(self, name: str | None) -> logging.Logger:
        root = logging.getLogger()
        if name is None or name == PRIMARY:
            return root
        # A name without a logger would stay in memory for ever.
        if name not in root.manager.loggerDict:
            raise not_found("logger", name)
        return logging.getLogger(name)


def level_name(level: int) -> str:
    """``info``; of a number between two names the number."""
    if level == logging.NOTSET:
        return "debug"
    return logging.getLevelName(level).lower()


def _number(level: str) -> int:
    number = LEVELS.get(level)
    if number is None:
        raise _unknown(level)
    return number


def _unknown(level: str) -> Refusal:
    return wrong("level", f"expected one of {', '.join(LEVELS)}, not {level}")


def _record(place: int, handler: logging.Handler) -> dict[str, object]:
    stream = getattr(handler, "stream", None)
    destination = getattr(stream, "name", None) or type(handler).__name__
    return {
        "id": handler.name or f"handler{place}",
        "level": level_name(handler.level),
        "destination": str(destination).strip("<>"),
        "status": "started",
    }
