"""Commands of Redis with placeholders. A command is split at spaces first, and then placeholders are replaced in each
word, so that a client's value stays within its word."""

from collections.abc import Mapping
from typing import Final

from ..placeholders import check_placeholders, filled_in, letters

_LOGIN: Final = "ucCd"


class RedisCommand:
    """``letters``: the letters of its placeholders."""

    __slots__ = ("_words", "letters")

    def __init__(self, text: str) -> None:
        self._words = tuple(text.split())
        self.letters = frozenset(letters(text))

    def words(self, values: Mapping[str, str]) -> list[str]:
        return [filled_in(word, values) for word in self._words]


def check_login_command(text: str) -> None:
    """Raise ``ValueError`` for a command that gives the same answer for every client."""
    _check(text, _LOGIN)


def check_acl_command(text: str) -> None:
    """Raise ``ValueError`` for a command that gives the same answer for every client."""
    _check(text, _LOGIN + "a")


def _check(text: str, known: str) -> None:
    check_placeholders(known, text)
    words = text.split()
    if not words or "%" in words[0]:
        raise ValueError("expected a command of Redis")
    if not letters(text):
        raise ValueError("names no client: %u, %c, %C or %d is missing")
