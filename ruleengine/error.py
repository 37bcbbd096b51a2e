"""Refusals when rules and resources are created, changed or deleted."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, Literal

from .params import ParamError
from .sql.error import SqlError

ErrorKind = Literal["missing", "wrong", "unknown", "exists", "in_use"]

MISSING: Final = "missing"
WRONG: Final = "wrong"
UNKNOWN: Final = "unknown"
EXISTS: Final = "exists"
IN_USE: Final = "in_use"


class RuleEngineError(Exception):
    """A refusal in one line. ``kind``: a required key is missing, a value is invalid, or the named object is unknown,
    already exists, or is used by the rules ``ids``. ``line`` and ``column`` are a position in SQL, 0 if there is
    none."""

    def __init__(
        self, kind: ErrorKind, message: str, ids: tuple[str, ...] = (), line: int = 0, column: int = 0
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.ids = ids
        self.line = line
        self.column = column

    @classmethod
    def unknown(cls, kind: str, name: str, known: Iterable[str]) -> RuleEngineError:
        """Return the refusal of a name that does not exist; it names the most similar one of ``known``."""
        near = get_close_matches(name[:64], sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return cls(UNKNOWN, f"there is no {kind} {name[:64]}{hint}")

    @classmethod
    def of_sql(cls, error: SqlError) -> RuleEngineError:
        return cls(WRONG, f"rawsql: {error}", line=error.line, column=error.column)

    @classmethod
    def of_param(cls, error: ParamError) -> RuleEngineError:
        return cls(MISSING if error.missing else WRONG, str(error))
