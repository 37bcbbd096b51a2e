"""Templates: texts with ``${a.b}``, which is replaced by a value of the row."""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from taipan.broker.core.delayed_topic import reserved

from ..functions.budget import Budget
from ..functions.undefined import UNDEFINED
from ..functions.values import encode_json, encode_json_bytes, restore, value_text
from ..sql.paths import read_key

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")
_AS_JSON: Final = re.compile(r"json\((.*)\)", re.DOTALL)


class _Placeholder(NamedTuple):
    """``path`` to a value of the row; ``as_json``: the value is written as JSON."""

    path: tuple[str, ...]
    as_json: bool


class Template:
    """A text that is compiled once. ``placeholders`` are the paths that it reads, in order: ``payload.x`` as
    ``("payload", "x")``.

    An empty template means the JSON of the whole row. A missing value renders as ``undefined``, as in EMQX.
    ``${json(payload.x)}`` is the value as JSON, a text with its quotes and escapes, and ``null`` where it is
    missing."""

    __slots__ = ("_pieces", "placeholders", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # Literal text and placeholders in turn, with literal text at the beginning and the end.
        self._pieces: list[str | _Placeholder] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            wrapped = _AS_JSON.fullmatch(match[1])
            path = tuple((match[1] if wrapped is None else wrapped[1]).split("."))
            self._pieces += [text[end : match.start()], _Placeholder(path, wrapped is not None)]
            end = match.end()
        self._pieces.append(text[end:])
        self.placeholders = tuple(each.path for each in self._pieces if isinstance(each, _Placeholder))

    @property
    def beginning(self) -> str:
        """The text before the first placeholder."""
        first = self._pieces[0]
        assert isinstance(first, str)
        return first

    @property
    def single(self) -> bool:
        """Whether the template consists of a single placeholder."""
        return len(self._pieces) == 3 and not self._pieces[0] and not self._pieces[2]

    def value(self, row: Mapping[str, object]) -> object:
        """Return the value of a ``single`` template with its type: a number, a boolean, binary; otherwise text."""
        if self.single:
            piece = self._pieces[1]
            assert isinstance(piece, _Placeholder)
            if not piece.as_json:
                return _read(row, piece.path, Budget())
        return self.render(row)

    def render(self, row: Mapping[str, object]) -> str | bytes:
        """Return the text; binary if a value that is not UTF-8 was inserted. Raises ValueError for more output than
        allowed."""
        budget = Budget()
        if not self.text:
            return encode_json(dict(row), budget)
        if not self.placeholders:
            return self.text
        parts: list[str] = []
        size = 0
        for index, piece in enumerate(self._pieces):
            part = piece if isinstance(piece, str) else _text(row, piece, budget)
            if isinstance(part, bytes):
                return self._render_binary(row, parts, part, index, budget)
            size += len(part)
            if size > budget.bytes_left:
                budget.take_bytes(size)
            parts.append(part)
        return "".join(parts)

    def _render_binary(
        self, row: Mapping[str, object], before: list[str], part: bytes, index: int, budget: Budget
    ) -> str | bytes:
        """Return the rest of ``render`` from the first binary value on."""
        parts = ["".join(before).encode(), part]
        budget.take_bytes(len(parts[0]) + len(part))
        for piece in self._pieces[index + 1 :]:
            text = piece if isinstance(piece, str) else _text(row, piece, budget)
            budget.take_bytes(len(text))
            parts.append(text.encode() if isinstance(text, str) else text)
        return restore(b"".join(parts))

    def render_bytes(self, row: Mapping[str, object]) -> bytes:
        """Return the text as UTF-8, or the binary, for a payload or a body."""
        if not self.text:
            return encode_json_bytes(row if type(row) is dict else dict(row), Budget())
        rendered = self.render(row)
        return rendered.encode("utf-8", "surrogatepass") if isinstance(rendered, str) else rendered

    def render_each(self, row: Mapping[str, object], escape: Callable[[str | bytes], str]) -> str:
        """Return the text with ``escape`` applied to each value, but not to the literal parts."""
        budget = Budget()
        parts: list[str] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                parts.append(piece)
            else:
                parts.append(escape(_text(row, piece, budget)))
        return "".join(parts)


def always_reserved(topic: Template) -> bool:
    """Return whether every topic that the template can produce is reserved for the server."""
    # A placeholder may have any value: it neither ends nor begins a level here.
    return reserved(f"{topic.beginning}x" if topic.placeholders else topic.text)


def _text(row: Mapping[str, object], piece: _Placeholder, budget: Budget) -> str | bytes:
    path = piece.path
    value = row.get(path[0], UNDEFINED) if len(path) == 1 else _read(row, path, budget)
    if piece.as_json:
        return encode_json(value, budget)
    return value if type(value) is str else value_text(value, budget)


def _read(row: Mapping[str, object], path: tuple[str, ...], budget: Budget) -> object:
    value = row.get(path[0], UNDEFINED)
    for key in path[1:]:
        value = read_key(value, key, budget)
        if value is UNDEFINED:
            return UNDEFINED
    return value
