"""SqlTemplate: an SQL statement with ``${x}``, each of which becomes a parameter of the statement.

A value never becomes part of the text of a statement. ``${x}`` and ``'${x}'`` are one parameter with the value of
``x``; a string literal with more than a placeholder is one parameter with the rendered text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..actions.template import Template
from ..functions.budget import Budget
from ..functions.undefined import UNDEFINED
from ..functions.values import encode_json, value_text

SqlValue = str | int | float | bool | bytes | None
"""The value of a parameter in the form that a buffer stores."""

_UNDEFINED_TEXT: Final = "undefined"
_INSERTS: Final = frozenset({"insert", "replace"})
_VALUES: Final = frozenset({"values", "value"})
_LARGEST: Final = 2**63
_PLACEHOLDER: Final = r"\$\{[^}]*\}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a database's statements are divided into tokens, as regular expressions. ``literals`` are strings whose
    quotes are doubled; ``names`` and comments contain no parameters. ``own_parameter``: a parameter in the dialect's
    own notation, which a template must not contain. ``escapes``: a backslash has a meaning in ``literals``."""

    literals: str
    names: str
    comments: str
    own_parameter: str
    escapes: bool

    @property
    def token(self) -> re.Pattern[str]:
        return re.compile(
            rf"(?P<comment>{self.comments})|(?P<name>{self.names})|(?P<literal>{self.literals})"
            rf"|(?P<placeholder>{_PLACEHOLDER})|(?P<own>{self.own_parameter})"
            r"|(?P<word>[^\W\d][\w$]*)|(?P<other>.)",
            re.DOTALL,
        )


POSTGRESQL: Final = Dialect(
    literals=r"'(?:[^']|'')*'",
    # Also what may contain quotes, but no parameters: strings with escapes, and strings between dollars.
    names=r"\"(?:[^\"]|\"\")*\"|\b[eE]'(?:[^'\\]|\\.|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$",
    comments=r"--[^\n]*|/\*.*?\*/",
    own_parameter=r"\$\d+",
    escapes=False,
)
MYSQL: Final = Dialect(
    literals=r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"",
    names=r"`(?:[^`]|``)*`",
    comments=r"--(?=\s|$)[^\n]*|\#[^\n]*|/\*.*?\*/",
    own_parameter=r"\?",
    escapes=True,
)


class Part(NamedTuple):
    """A piece of the text; ``parameter``: its number, or -1 for literal text."""

    text: str
    parameter: int = -1


class SqlTemplate:
    """A statement that is parsed once. ``row``: the tuple of an INSERT statement if it can be repeated, and
    empty for any other statement; ``prefix``: the text before ``values``; ``suffix``: the text after the tuple."""

    __slots__ = ("_simple", "parameters", "parts", "prefix", "row", "suffix", "text")

    def __init__(self, text: str, dialect: Dialect) -> None:
        """Raises ValueError."""
        self.text = text
        self.parameters: list[Template] = []
        self.parts: list[Part] = []
        self.prefix = ""
        self.row: list[Part] = []
        self.suffix = ""
        values, start, end = self._parse(dialect)
        if end:
            outside = [*self.parts[:start], *self.parts[end:]]
            # A parameter outside of the tuple has another value in each row.
            if all(each.parameter < 0 for each in outside):
                self.prefix = "".join(each.text for each in self.parts[:values])
                self.row = self.parts[start:end]
                self.suffix = "".join(each.text for each in self.parts[end:])
        # Members of the row itself are read without a template.
        self._simple = [
            each.placeholders[0][0] if each.single and each.text == f"${{{each.placeholders[0][0]}}}" else None
            for each in self.parameters
        ]

    def _parse(self, dialect: Dialect) -> tuple[int, int, int]:
        """Fill ``parts``; return where ``values`` is, and where its tuple starts and ends, or zeros."""
        first = ""
        depth = values = start = end = 0
        ended = several = False
        for match in dialect.token.finditer(self.text.strip().rstrip(";").rstrip()):
            kind, text = str(match.lastgroup), match[0]
            if kind == "comment":
                self.parts.append(Part(text))
                continue
            if kind == "own":
                raise ValueError(f"{text} is not a placeholder; write ${{...}}")
            if kind == "name" and re.search(_PLACEHOLDER, text):
                raise ValueError("a placeholder cannot be part of a name, or of a string with escapes")
            if text == ";":
                raise ValueError("expected one statement")
            if text == "(":
                if depth == 0 and values and not start:
                    start = len(self.parts)
                depth += 1
            elif kind == "word" and depth == 0:
                first = first or text.lower()
                if text.lower() in _VALUES and not values and first in _INSERTS:
                    values = len(self.parts)
            if end and not ended and not text.isspace():
                ended = True
                if text == ",":  # several tuples already
                    several = True
            self.parts.append(self._part(kind, text, dialect))
            if text == ")" and kind == "other":
                depth -= 1
                if depth < 0:
                    raise ValueError("a parenthesis is closed that was not opened")
                if depth == 0 and start and not end:
                    end = len(self.parts)
        if depth:
            raise ValueError("a parenthesis is not closed")
        if not first:
            raise ValueError("expected a statement")
        return (0, 0, 0) if several else (values, start, end)

    def _part(self, kind: str, text: str, dialect: Dialect) -> Part:
        if kind == "other" and text in "'\"`":
            raise ValueError("a quote is not closed")
        if kind == "literal" and re.search(_PLACEHOLDER, text):
            quote, inner = text[0], text[1:-1]
            if dialect.escapes and "\\" in inner:
                raise ValueError("a string with a placeholder cannot contain a backslash")
            return self._parameter(inner.replace(quote * 2, quote))
        return self._parameter(text) if kind == "placeholder" else Part(text)

    def _parameter(self, text: str) -> Part:
        self.parameters.append(Template(text))
        return Part(text, len(self.parameters) - 1)

    def values(self, row: Mapping[str, object], insert_null: bool) -> list[SqlValue]:
        """Return the values of the parameters; ``insert_null``: undefined is NULL, and not the text ``undefined``.
        Raises ValueError."""
        values: list[SqlValue] = []
        for name, template in zip(self._simple, self.parameters, strict=True):
            value = template.value(row) if name is None else row.get(name, UNDEFINED)
            kind = type(value)
            if kind is str or value is None or kind is float or kind is bool or kind is bytes:
                values.append(value)  # type: ignore[arg-type]  # one of these types
            elif kind is int:
                assert isinstance(value, int)
                values.append(value if -_LARGEST <= value < _LARGEST else value_text(value, Budget()))
            elif value is UNDEFINED:
                values.append(None if insert_null else _UNDEFINED_TEXT)
            else:
                values.append(encode_json(value, Budget()))
        return values

    def sql(self, mark: Callable[[int], str]) -> str:
        """Return the statement for one row; ``mark`` writes the parameter with this number."""
        return joined(self.parts, mark)


def joined(parts: list[Part], mark: Callable[[int], str]) -> str:
    """Return the text of the parts, with their parameters written by ``mark``."""
    return "".join(each.text if each.parameter < 0 else mark(each.parameter) for each in parts)
