"""The text of a log line and of its values. Clients choose many of these values, each up to 65,535 characters."""

import re
import time
from contextvars import ContextVar
from typing import Final

MAX_CHARACTERS: Final = 512
NOTHING: Final = "-"
"""Replaces a missing value."""
_EMPTY: Final = '""'

hosted_node: Final[ContextVar[str]] = ContextVar("hosted_node", default="")
"""The lost node that this process runs and whose code is running; empty: the process's own node."""

_PLAIN: Final = re.compile(r"[^\s\"'=\\]+").fullmatch
_ASCII: Final = re.compile(r"[!#-&(-<>-\[\]-~]+").fullmatch  # most values match this and need no quotes


def one_line(text: str) -> str:
    """Return ``text`` on one line, with unprintable characters as backslash escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shorten(value: object) -> str:
    """Return ``value`` as text: its first 512 characters and its length, ``-`` for none."""
    if value is None:
        return NOTHING
    text = str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({len(text)} characters)"


def field(value: object) -> str:
    """Return the value of a log field: shortened if it is long (``shorten``), in quotation marks if it needs them."""
    return quoted(shorten(value))


def quoted(text: str) -> str:
    """Return ``text`` unchanged if it is unambiguous, otherwise in double quotes."""
    if _ASCII(text) is not None or (text.isprintable() and _PLAIN(text) is not None):
        return text
    return '"' + one_line(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def filled(message: str, values: tuple[object, ...]) -> str:
    """Return ``message`` with its ``%s`` replaced by fields, one for each value; it contains no other ``%``."""
    texts = [value if isinstance(value, str) else NOTHING if value is None else str(value) for value in values]
    together = "".join(texts)
    if len(together) > MAX_CHARACTERS or _ASCII(together) is None:
        texts = [field(text) for text in texts]
    elif "" in texts:
        texts = [text or _EMPTY for text in texts]
    return message % tuple(texts)


def line_of(created: float, level: str, logger: str, message: str) -> str:
    """Return ``time LEVEL logger message``. ``created``: Unix seconds; ``message`` is ``one_line``."""
    return f"{timestamp(created)} {level} {logger} {message}"


class _Second:
    """The latest second as text, which most lines share with the previous line."""

    __slots__ = ("latest",)

    def __init__(self) -> None:
        self.latest = (-1, "")  # replaced as a whole, because other threads also log


_second: Final = _Second()
_MILLISECONDS: Final = tuple([f".{number:03d}" for number in range(1000)])


def timestamp(created: float) -> str:
    """Return Unix seconds as local time with milliseconds."""
    second = int(created)
    at, text = _second.latest
    if second != at:
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
        _second.latest = (second, text)
    # Corrects the error of a float that should be a whole millisecond.
    return text + _MILLISECONDS[min(int((created - second) * 1000 + 0.001), 999)]
