"""Logs: log levels, changed while the node runs. The next reload applies those of the configuration again."""

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
"""The level of a logger without a level of its own."""
PRIMARY: Final = "primary"


class Logs:
    """Levels of the root logger, of named ones below it, and of the handlers that write."""

    def level(self, name: str | None = None) -> str:
        """Return the level of a logger (``None``: the root logger, ``primary``). Raises Refusal for an unknown one."""
        return level_name(self._logger(name).getEffectiveLevel())

    def set_level(self, level: str, name: str | None = None) -> str:
        """Set the lowest level that this logger writes; return the effective level.

        ``inherit``: a named logger uses the level of its parent again."""
        logger = self._logger(name)
        if level == INHERIT and logger is not logging.getLogger():
            logger.setLevel(logging.NOTSET)
        else:
            logger.setLevel(_number(level))
        return level_name(logger.getEffectiveLevel())

    def levels(self) -> list[dict[str, Any]]:
        """Return the root logger and each logger with a level of its own."""
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
        """Set the lowest level that this handler writes. Raises Refusal for an unknown handler or level."""
        for place, handler in enumerate(logging.getLogger().handlers):
            if _record(place, handler)["id"] == handler_id:
                handler.setLevel(_number(level))
                return level_name(handler.level)
        raise not_found("log handler", handler_id)

    def _logger(self, name: str | None) -> logging.Logger:
        root = logging.getLogger()
        if name is None or name == PRIMARY:
            return root
        # A name without a logger would stay in memory indefinitely.
        if name not in root.manager.loggerDict:
            raise not_found("logger", name)
        return logging.getLogger(name)


def level_name(level: int) -> str:
    """Return the name of a level, such as ``info``; for a value between two names, the number."""
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
