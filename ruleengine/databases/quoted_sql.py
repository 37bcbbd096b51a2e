"""QuotedSql: an SQL statement with ``${x}`` for databases without parameters, where the template writes the quotes.

A value cannot change the statement: in quotes it is escaped, outside of quotes it is a number, a boolean or NULL, and
as a part of a name it has only letters, digits and underscores. Any other value is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..actions.template import Template
from ..functions.undefined import UNDEFINED
from ..functions.values import float_text, integer_text

_TOKEN: Final = re.compile(
    r"(?P<comment>--|/\*|\#)"
    r"|(?P<quoted>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`\\]*`)"
    r"|(?P<placeholder>\$\{[^}]*\})|(?P<word>\w+)|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_PLACEHOLDER: Final = re.compile(r"\\.|\$\{[^}]*\}", re.DOTALL)
_NUMBER: Final = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,128}", re.ASCII)
_NOT_IN_NAMES: Final = re.compile(r"[`\\\x00-\x1f]")
_BEFORE: Final = frozenset("(,=<>+* \t\r\n")
_AFTER: Final = frozenset("),;=<>+-*/ \t\r\n")
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_IN_QUOTES: Final = {quote: str.maketrans(_ESCAPES | {quote: f"\\{quote}"}) for quote in "'\""}


@dataclass(frozen=True, slots=True)
class BooleanLiterals:
    """The database's literals for true and false."""

    true: str
    false: str


class StatementPart(NamedTuple):
    """A piece of the statement: literal text, or a value. ``quote``: those around the value; empty: none;
    ``_``: it is a part of a name. ``whole``: the text between the quotes is the value, so that NULL removes them."""

    text: str
    template: Template | None = None
    quote: str = ""
    whole: bool = False


class QuotedSql:
    """A statement that is parsed once. ``row``: the tuple of an INSERT statement that can be repeated, or nothing."""

    def __init__(self, text: str, literals: BooleanLiterals) -> None:
        """Raises ValueError."""
        self._literals = literals
        self._parts: list[StatementPart] = []
        self._row: tuple[int, int] | None = None
        self._parse(text.strip().rstrip(";").rstrip())

    @property
    def repeatable(self) -> bool:
        """Whether several rows can share a statement."""
        return self._row is not None

    def _parse(self, text: str) -> None:
        tokens = list(_TOKEN.finditer(text))
        first = ""
        depth = start = end = 0
        values = False
        for index, match in enumerate(tokens):
            kind, token = str(match.lastgroup), match[0]
            if kind == "comment":
                raise ValueError("a statement cannot contain a comment")
            if kind == "other" and token in "'\"`":
                raise ValueError("a quote is not closed")
            if token == ";":
                raise ValueError("expected one statement")
            if kind == "word" and depth == 0:
                first = first or token.lower()
                if token.lower() == "values" and first == "insert":
                    values, start, end = True, 0, 0
            at = len(self._parts)
            if kind == "quoted":
                self._add_quoted(token)
            elif kind == "placeholder":
                self._parts.append(self._bare(text, match, tokens[index - 1] if index else None))
            else:
                self._parts.append(StatementPart(token))
            if kind != "other":
                if end and kind != "space":
                    values = False  # something follows the tuple
                continue
            if token == "(":
                if depth == 0:
                    if end:
                        values = False
                    start = at
                depth += 1
            elif token == ")":
                depth -= 1
                if depth < 0:
                    raise ValueError("the parentheses do not match")
                if depth == 0:
                    end = at + 1
            elif depth == 0 and end:
                values = False
        if depth:
            raise ValueError("the parentheses do not match")
        if not self._parts:
            raise ValueError("expected a statement")
        if values and end:
            self._row = (start, end)

    def _add_quoted(self, token: str) -> None:
        quote, inner = token[0], token[1:-1]
        places = [each for each in _PLACEHOLDER.finditer(inner) if each[0].startswith("$")]
        if not places:
            self._parts.append(StatementPart(token))
            return
        if len(places) == 1 and places[0][0] == inner and quote != "`":
            self._parts.append(StatementPart("", Template(inner), quote, True))
            return
        done = 0
        self._parts.append(StatementPart(quote))
        for each in places:
            self._parts += [StatementPart(inner[done : each.start()]), StatementPart("", Template(each[0]), quote)]
            done = each.end()
        self._parts.append(StatementPart(inner[done:] + quote))

    def _bare(self, text: str, match: re.Match[str], before: re.Match[str] | None) -> StatementPart:
        """Return a value outside of quotes. Next to letters it is a part of a name; a sign could join it otherwise."""
        left, right = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        if before is not None and before.lastgroup == "word" and re.match(r"[A-Za-z_]", before[0]):
            return StatementPart("", Template(match[0]), "_")
        if (left and left not in _BEFORE) or (right and right not in _AFTER):
            raise ValueError(f"{match[0]}: put it in quotes, or whitespace around it")
        return StatementPart("", Template(match[0]))

    def render(self, row: Mapping[str, object], insert_null: bool) -> tuple[str, str, str]:
        """Return the text before the tuple, the tuple, and the text after it; without a tuple, the statement is the
        first. ``insert_null``: undefined is NULL, not the text ``undefined``. Raises ValueError."""
        texts = [each.text if each.template is None else self._value(each, row, insert_null) for each in self._parts]
        if self._row is None:
            return "".join(texts), "", ""
        start, end = self._row
        return "".join(texts[:start]), "".join(texts[start:end]), "".join(texts[end:])

    def _value(self, part: StatementPart, row: Mapping[str, object], insert_null: bool) -> str:
        template = part.template
        assert template is not None
        quote = part.quote
        if quote in ("", "'", '"') and (part.whole or not quote):
            value = template.value(row)
            if value is None or (value is UNDEFINED and insert_null):
                return "NULL"
            if not quote:
                return self._literal(template, value)
        text = _text(template, row)
        if quote == "_":
            if not _NAME.fullmatch(text):
                raise ValueError(f"sql: {template.text} is part of a name, so its value may contain only A-Z a-z 0-9 _")
            return text
        if quote == "`":
            if not text or _NOT_IN_NAMES.search(text):
                raise ValueError(f"sql: {template.text} is part of a name, which cannot contain ` or \\")
            return text
        if "\0" in text:
            raise ValueError(f"sql: {template.text} contains a null character")
        escaped = text.translate(_IN_QUOTES[quote])
        return f"{quote}{escaped}{quote}" if part.whole else escaped

    def _literal(self, template: Template, value: Any) -> str:
        kind = type(value)
        if kind is bool:
            return self._literals.true if value else self._literals.false
        if kind is int:
            return integer_text(value)
        if kind is float:
            return float_text(value)
        if kind is str and _NUMBER.fullmatch(value):
            return str(value)
        what = "is undefined; set sql_insert_null" if value is UNDEFINED else "is not a number; write it in quotes"
        raise ValueError(f"sql: {template.text} {what}")


def _text(template: Template, row: Mapping[str, object]) -> str:
    text = template.render(row)
    if isinstance(text, bytes):
        raise ValueError(f"sql: {template.text} is not UTF-8")
    return text
