"""Errors of a rule, when it is written and when it runs."""

from __future__ import annotations

from typing import Final

from .ast import Position

MAX_BYTES: Final = 16 * 1024
"""Maximum size of a rule's text."""


class SqlError(ValueError):
    """The SQL of a rule is invalid: the problem, its line and column (counted from 1), and what was expected there.

    Its text is one line.
    """

    def __init__(self, message: str, line: int, column: int, expected: tuple[str, ...] = ()) -> None:
        self.message = message
        self.line = line
        self.column = column
        self.expected = expected
        hint = f", expected {_either(expected)}" if expected else ""
        super().__init__(f"line {line}, column {column}: {message}{hint}")

    @classmethod
    def at(cls, position: Position, message: str, *expected: str) -> SqlError:
        """Return the error at a position."""
        return cls(message, position.line, position.column, expected)


class EvaluationError(ValueError):
    """A rule that failed for one message: the clause (`SELECT`, `WHERE`, `FOREACH`, `INCASE`, `DO`), and the reason."""

    def __init__(self, clause: str, message: str) -> None:
        self.clause = clause
        self.message = message
        super().__init__(f"{clause}: {message}")


def _either(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
