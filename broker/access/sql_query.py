"""Queries in SQL with placeholders.

A placeholder counts only as a whole text within single quotes, ``'%u'``, and becomes a bound value, quotes and all.
Everything else stays as it is written: what a client sends never becomes part of a statement.
"""

import re
from collections.abc import Callable
from typing import Final

_PLACEHOLDER: Final = re.compile("'%([ucCda])'")
_LOGIN: Final = frozenset("ucCd")


class SqlQuery:
    """``letters``: those of its placeholders, in their order."""

    __slots__ = ("_parts", "letters")

    def __init__(self, text: str) -> None:
        parts = _PLACEHOLDER.split(text.strip().removesuffix(";"))
        self._parts = tuple(parts[::2])
        self.letters = tuple(parts[1::2])

    def statement(self, mark: Callable[[int], str]) -> str:
        """The text with ``mark`` of its index, from 0, for each value."""
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
        raise ValueError("'%a' is known to acl_query only")
