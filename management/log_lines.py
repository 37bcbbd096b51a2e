"""The node's log on stderr: one line for each record, whatever text it contains from clients.

    logger.info("client_connected client_id=%s peer=%s", client_id, peer)
    2026-11-21T09:00:00.123 INFO taipan.broker.channel client_connected client_id=sensor-7 peer=10.0.0.7:50112
    {"time": "2026-11-21T09:00:00.123", "level": "INFO", "logger": "taipan.broker.channel", "event":
    "client_connected", ...}

A text argument with blanks, quotes, ``=`` or unprintable characters is quoted and escaped, so that it can neither begin
a new line nor look like another field. A long argument is truncated, and a missing one is ``-`` (``null`` in JSON).

Lines wait a few milliseconds for others and are written together: a client that connects and disconnects causes two
lines, and a separate write would cost more than creating the line. Records of ``log_lines.info`` are also formatted
only then."""

import json
import logging
import re
import sys
from contextvars import Context
from functools import lru_cache
from typing import Final, TextIO

from taipan.broker.observability.log_lines import WaitingLine, WaitingLines, collect
from taipan.broker.observability.log_ring import ring
from taipan.broker.observability.log_text import (
    field,
    filled,
    hosted_node,
    line_of,
    one_line,
    quoted,
    shorten,
    timestamp,
)

from .configuration.config import LogSettings

_CONVERSION: Final = re.compile(r"%(%|[-#0 +]*\d*(?:\.\d+)?([a-zA-Z]))")
_FIELD: Final = re.compile(r"(\w+)=(\S+)")
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def setup_logging(settings: LogSettings, stream: TextIO | None = None, worker: int = 0) -> None:
    """Send the records of all loggers to ``stream`` (stderr), replacing the previous setup. ``worker``: the number of
    this process if several processes write to the same log, which each line then contains."""
    json_lines = settings.format == "json"
    ending = ("" if worker == 0 else f', "worker": {worker}}}' if json_lines else f" worker={worker}") + "\n"
    handler = CollectingHandler(stream if stream is not None else sys.stderr, ending, 1 if json_lines and worker else 0)
    handler.setFormatter(JsonLines() if json_lines else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, TextLines):
            root.removeHandler(old)
            old.flush()
    root.addHandler(handler)
    root.setLevel(_LEVELS[settings.level])
    collect(handler.waiting)
    # No format contains the position in the code, the thread or the process, so these are not determined.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class CollectingHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of ``log_lines.DELAY`` to ``stream`` together; warnings, and records from outside a loop, are
    written immediately, after the lines that wait.

    A process that is killed loses the lines that wait."""

    def __init__(self, stream: TextIO, ending: str = "\n", replaced: int = 0) -> None:
        """``ending``: ends each line, in place of its last ``replaced`` characters."""
        super().__init__(stream)
        self._ending = ending
        self._replaced = replaced
        self.waiting = WaitingLines(self, self._write_waiting)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            waits = self.waiting.add(self.format(record))
            if record.levelno >= logging.WARNING or not waits:
                self.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def _write_waiting(self) -> None:
        try:
            self.flush()
        except Exception:
            self.handleError(logging.makeLogRecord({"name": __name__, "msg": "the lines that wait"}))

    def flush(self) -> None:
        self.acquire()
        try:
            waiting = self.waiting.take()
            if waiting:
                lines = [line if isinstance(line, str) else self._made(line) for line in waiting]
                ring.add(lines)
                if self._replaced:
                    lines = [line[: -self._replaced] for line in lines]
                lines.append("")
                self.stream.write(self._ending.join(lines))
                super().flush()
        finally:
            self.release()

    def _made(self, line: WaitingLine) -> str:
        if type(self.formatter) is TextLines:
            # It is one line: ``filled`` quotes values that would not be.
            return line_of(line.created, "INFO", line.logger.name, filled(line.message, line.values))
        record = logging.LogRecord(line.logger.name, logging.INFO, "", 0, line.message, line.values, None)
        record.created = line.created
        return Context().run(self.format, record)  # no line that waits is of a hosted node


class TextLines(logging.Formatter):
    """``time LEVEL logger message``, with the local time in milliseconds."""

    def format(self, record: logging.LogRecord) -> str:
        line = line_of(record.created, record.levelname, record.name, one_line(_message(record)))
        hosted = hosted_node.get()
        if hosted:
            line = f"{line} hosted={quoted(hosted)}"
        trace = self._trace(record)
        return f"{line} exception={quoted(trace)}" if trace else line

    def _trace(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return record.exc_text or ""


class JsonLines(TextLines):
    """One JSON object per line; values in the message as ``key=%s`` or ``key=%s:%s`` become members."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {"time": timestamp(record.created), "level": record.levelname, "logger": record.name}
        event, fields = _event_and_fields(record)
        line["event"] = event
        for name, value in fields.items():
            plain = value if value is None or isinstance(value, (bool, int, float)) else shorten(value)
            line.setdefault(name, plain)
        hosted = hosted_node.get()
        if hosted:
            line["hosted"] = hosted
        trace = self._trace(record)
        if trace:
            line["exception"] = trace
        return json.dumps(line)


@lru_cache(maxsize=512)
def _conversions_of(message: str) -> tuple[list[re.Match[str]], bool]:
    """Return the conversions in the constant text of a line, and whether each ``%`` in it begins a plain ``%s``."""
    found = [match for match in _CONVERSION.finditer(message) if match[2]]
    return found, message.count("%") == message.count("%s") == len(found)


def _conversions(record: logging.LogRecord) -> list[tuple[re.Match[str], object]] | None:
    """Return each ``%s`` of the message with its argument; ``None`` if the message has other conversions."""
    arguments = record.args
    if not isinstance(arguments, tuple) or not arguments or not isinstance(record.msg, str):
        return None
    found, _ = _conversions_of(record.msg)
    if len(found) != len(arguments):
        return None
    return list(zip(found, arguments, strict=True))


def _event_and_fields(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """Split the message into its name and its fields. If a value is outside a field, all of it is the event."""
    conversions = _conversions(record)
    if conversions is None:
        return _message(record), {}
    words: list[str] = []
    fields: dict[str, object] = {}
    for word in re.finditer(r"\S+", str(record.msg)):
        values = [value for found, value in conversions if word.start() <= found.start() < word.end()]
        named = _FIELD.fullmatch(word[0])
        if named is None and values:
            return _message(record), {}
        if named is None:
            words.append(word[0].replace("%%", "%"))
        elif len(values) == 1 and _CONVERSION.fullmatch(named[2]):
            fields[named[1]] = values[0]
        else:
            fields[named[1]] = named[2] % tuple(values)
    return " ".join(words), fields


def _message(record: logging.LogRecord) -> str:
    arguments, message = record.args, record.msg
    if not isinstance(arguments, tuple) or not arguments or not isinstance(message, str):
        return record.getMessage()
    found, plain = _conversions_of(message)
    if len(found) != len(arguments):
        return record.getMessage()
    if plain:
        return filled(message, arguments)
    values = [
        field(value) if match[2] == "s" and not isinstance(value, (bool, int, float)) else value
        for match, value in zip(found, arguments, strict=True)
    ]
    return message % tuple(values)
