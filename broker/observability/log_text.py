"""A value that a client chose, in a line of the log: cut, since it may have 65,535 characters."""

from typing import Final

MAX_CHARACTERS: Final = 512
NOTHING: Final = "-"
"""Where there is no value."""


def one_line(text: str) -> str:
    """``text`` on one line: everything unprintable as a backslash escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shorten(value: object) -> str:
    """``value`` as text: its first 512 characters and how many there are, ``-`` for none."""
    if value is None:
        return NOTHING
    text = str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}... ({len(text)} characters)"
