"""Templates: texts with ``${a.b}`` in them, filled in from the row that a rule has selected."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..budget import Budget
from ..functions.values import encode_json, restore, value_text
from ..sql.paths import read_key
from ..undefined import UNDEFINED

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*)\}")


class Template:
    """A text compiled once. ``placeholders`` are the paths it reads, in order: ``payload.x`` as ``("payload", "x")``.

    A template that is empty stands for the JSON of the whole row. What is missing prints as ``undefined``, as in EMQX.
    """

    __slots__ = ("_pieces", "placeholders", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # Literal text and paths in turn, beginning and ending with literal text.
        self._pieces: list[str | tuple[str, ...]] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            self._pieces += [text[end : match.start()], tuple(match[1].split("."))]
            end = match.end()
        self._pieces.append(text[end:])
        self.placeholders = tuple(each for each in self._pieces if isinstance(each, tuple))

    @property
    def single(self) -> bool:
        """Whether it is one placeholder and nothing else."""
        return len(self._pieces) == 3 and not self._pieces[0] and not self._pieces[2]

    def value(self, row: Mapping[str, Any]) -> Any:
        """What a ``single`` template stands for, as it is: a number, a boolean, binary; text otherwise."""
        if self.single:
            path = self._pieces[1]
            assert isinstance(path, tuple)
            return _read(row, path, Budget())
        return self.render(row)

    def render(self, row: Mapping[str, Any]) -> str | bytes:
        """The text; binary where a value that is not UTF-8 went in. ValueError: more output than is allowed."""
        budget = Budget()
        if not self.text:
            return encode_json(dict(row), budget)
        if not self.placeholders:
            return self.text
        parts: list[str | bytes] = []
        for piece in self._pieces:
            part = piece if isinstance(piece, str) else value_text(_read(row, piece, budget), budget)
            budget.octets(len(part))
            parts.append(part)
        if all(isinstance(each, str) for each in parts):
            return "".join(parts)  # type: ignore[arg-type]
        return restore(b"".join(each.encode() if isinstance(each, str) else each for each in parts))

    def render_octets(self, row: Mapping[str, Any]) -> bytes:
        """The text as UTF-8, or the binary: what goes into a payload or a body."""
        rendered = self.render(row)
        return rendered.encode("utf-8", "surrogatepass") if isinstance(rendered, str) else rendered

    def render_each(self, row: Mapping[str, Any], escape: Callable[[str | bytes], str]) -> str:
        """The text with each value, but not what stands around it, sent through ``escape``."""
        budget = Budget()
        parts: list[str] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                parts.append(piece)
            else:
                parts.append(escape(value_text(_read(row, piece, budget), budget)))
        return "".join(parts)


def _read(row: Mapping[str, Any], path: tuple[str, ...], budget: Budget) -> Any:
    value = row.get(path[0], UNDEFINED)
    for key in path[1:]:
        value = read_key(value, key, budget)
        if value is UNDEFINED:
            return UNDEFINED
    return value
