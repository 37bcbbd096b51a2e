"""Queries in SQL with placeholders.

A placeholder is recognised only as a whole text within single quotes, ``'%u'``. It becomes a bound value, which also
replaces the quotes. Everything else stays unchanged, so a client's data never becomes part of a statement.
"""

import re
from collections.abc import Callable
from typing import Final

_PLACEHOLDER: Final = re.compile("'%([ucCda])'")
_LOGIN: Final = frozenset("ucCd")


class SqlQuery:
    """``letters``: the letters of its placeholders, in order."""

    __slots__ = ("_parts", "letters")

    def __init__(self, text: str) -> None:
        parts = _PLACEHOLDER.split(text.strip().removesuffix(";"))
        self._parts = tuple(parts[::2])
        self.letters = tuple(parts[1::2])

    def statement(self, mark: Callable[[int], str]) -> str:
        """Return the text with ``mark(index)``, counted from 0, in place of each value."""
        made = self._parts[0]
        for index, part in enumerate(self._parts[1:]):
            made += mark(index) + part
        return made


def check_login_query(text: str) -> None:
    """Raise ``ValueError`` for a query that gives the same row for every client."""
    letters = SqlQuery(text).letters
    if not _LOGIN & set(letters):
        raise ValueError(
            "the query must contain '%u', '%c', '%C' or '%d' in single quotes: without one, it has the same result for "
            "every client"
        )
    if "a" in letters:
        raise ValueError("'%a' is available in acl_query only")
