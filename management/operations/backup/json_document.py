"""JSON documents of any size. The position of each record is found in steps, so that reading a document never blocks
the loop."""

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ..refusal import NOT_JSON, WRONG, Refusal, wrong
from .pieced_text import PiecedText

JsonObject = dict[str, Any]

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_WINDOW: Final = 65_536
_LONG: Final = 4 * _WINDOW
# The content of a string, up to its end, or up to an escape or surrogate pair that the window cuts. Nothing follows
# that could fail, so there is no backtracking; possessive quantifiers would express this, but Python 3.11.2 matches
# them incorrectly.
_INSIDE: Final = re.compile(
    r'(?:[^"\\]+|\\(?:[^u]|u[dD][89abAB].{2}\\u[dD][c-fC-F].{2}|u(?![dD][89a-fA-F]).{4}))*', re.DOTALL
)


class Span(NamedTuple):
    """Start and end of a value in the text."""

    start: int
    end: int


class Spans:
    """Many positions in little memory, without objects for the garbage collector."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places = array("q")

    def add(self, span: Span) -> None:
        self._places.extend(span)

    def __len__(self) -> int:
        return len(self._places) // 2

    def __iter__(self) -> Iterator[Span]:
        places = iter(self._places)
        return map(Span, places, places)


class BadRecord(ValueError):
    """A value that has matching brackets but is not valid JSON."""


BOM: Final = "\ufeff"
"""The byte order mark that some editors add at the beginning of a text; RFC 8259 allows a reader to ignore it."""


class Document:
    """A JSON object whose members are read one by one.

    ``sections``: the members that are arrays, by key, as positions of their elements. ``members``: all other members.
    If a key occurs twice, the last one is used."""

    def __init__(self, pieces: Iterable[str]) -> None:
        """``pieces``: the text in pieces."""
        self._text = PiecedText(pieces)
        self.sections: dict[str, Spans] = {}
        self.members: dict[str, Span] = {}

    def read(self) -> Iterator[None]:
        """Find all members; each step is short. Raises Refusal 109 or 108 if this is not a JSON object."""
        try:
            yield from self._read()
        except RecursionError:
            raise Refusal(NOT_JSON, "the document is nested too deeply") from None
        except ValueError as error:
            raise Refusal(NOT_JSON, f"not JSON: {error}") from None

    def _read(self) -> Iterator[None]:
        at = self._skip(1 if self._char(0) == BOM else 0)
        if self._char(at) != "{":
            _, at = self._scan(at)
            self._expect_end(at)
            raise Refusal(WRONG, "expected a JSON object")
        at = self._skip(at + 1)
        if self._char(at) == "}":
            return self._expect_end(at + 1)
        while True:
            start = at
            key, at = self._scan(at)
            if not isinstance(key, str):
                raise self._error("a key in double quotes is expected", start)
            at = self._skip(self._expect(self._skip(at), ":"))
            self.sections.pop(key, None)
            self.members.pop(key, None)
            if self._char(at) == "[":
                spans = Spans()
                for span in self._elements(at):
                    if span is not None:
                        spans.add(span)
                        at = span.end
                    yield
                at = self._after_elements(at, len(spans) > 0)
                self.sections[key] = spans
            elif self._char(at) == '"':
                start = at
                for end in self._text_ends(at):
                    at = end
                    yield
                self.members[key] = Span(start, at)
            else:
                start = at
                _, at = self._scan(at)
                self.members[key] = Span(start, at)
            yield
            at = self._skip(at)
            if self._char(at) != ",":
                return self._expect_end(self._expect(at, "}"))
            at = self._skip(at + 1)

    def _elements(self, at: int) -> Iterator[Span | None]:
        at = self._skip(at + 1)
        if self._char(at) == "]":
            return
        while True:
            _, end = self._scan(at)
            yield Span(at, end)
            at = self._skip(end)
            if self._char(at) != ",":
                return
            at = self._skip(at + 1)

    def _after_elements(self, at: int, some: bool) -> int:
        """Return the position after the bracket that closes an array. ``at`` is the array's beginning, or the end of
        its last element."""
        return self._expect(self._skip(at if some else at + 1), "]")

    def _text_ends(self, start: int) -> Iterator[int]:
        """Yield the end of a string that may be long; the last value is the end."""
        at = start + 1
        while True:
            end = self._inside(at, self._text.length)
            if self._char(end) == '"':
                if end - start < _LONG:
                    self._scan(start)
                yield end + 1
                return
            if end == at:
                self._scan(start)  # raises the exact error
                raise self._error("a string is not valid JSON", at)
            yield end
            at = end

    def long_text(self, span: Span) -> Iterator[str]:
        """Yield a string's contents in pieces. Raises BadRecord."""
        at, last = span.start + 1, span.end - 1
        while at < last:
            end = self._inside(at, last)
            try:
                yield json.loads(f'"{self._text.slice(at, end)}"')
            except ValueError as error:
                raise BadRecord(f"not JSON: {error}") from None
            at = end

    def _inside(self, at: int, last: int) -> int:
        """Return how far a string continues from ``at``, a position inside it, at most one window."""
        last = min(at + _WINDOW, last)
        window, base = self._text.window(at, last)
        found = _INSIDE.match(window, at - base, last - base)
        assert found is not None
        return base + found.end()

    def raw(self, span: Span) -> str:
        """Return the unchanged text."""
        return self._text.slice(*span)

    def is_text(self, span: Span) -> bool:
        return self._char(span.start) == '"'

    def has(self, key: str) -> bool:
        return key in self.sections or key in self.members

    def member(self, key: str) -> Any:
        """Return the value of a member, ``[]`` for any array, ``None`` if it is absent. Raises Refusal 108."""
        if key in self.sections:
            return []
        span = self.members.get(key)
        try:
            return None if span is None else self.value(span)
        except ValueError as error:
            raise wrong(key, str(error)) from None

    def value(self, span: Span) -> Any:
        """Return the value. Raises BadRecord for text that is not Unicode."""
        window, base = self._text.window(*span)
        value, _ = _DECODER.raw_decode(window, span.start - base)
        if _SURROGATE.search(window, span.start - base, span.end - base):
            try:
                msgspec.json.encode(value)
            except (UnicodeEncodeError, ValueError):
                raise BadRecord("contains half a surrogate pair") from None
        return value

    def _scan(self, at: int) -> tuple[Any, int]:
        """Return the value that begins at ``at``, and its end."""
        window, base = self._text.window(at, at + 1)
        while True:
            end = base + len(window)
            try:
                value, stop = _DECODER.raw_decode(window, at - base)
                # "1e+" at the end of the window may continue: look at two characters after anything like a number.
                if base + stop + 2 < end or end >= self._text.length:
                    return value, base + stop
            except json.JSONDecodeError as error:
                if end >= self._text.length:
                    raise self._error(error.msg, base + error.pos) from None
            # The window may cut the value: double it.
            window, base = self._text.window(at, end + end - at)

    def _char(self, at: int) -> str:
        """Return the character at a position, empty beyond the end."""
        window, base = self._text.window(at, at + 1)
        return window[at - base : at - base + 1]

    def _skip(self, at: int) -> int:
        while True:
            window, base = self._text.window(at, at + 1)
            found = _SPACE.match(window, at - base)
            assert found is not None
            at = base + found.end()
            if found.end() < len(window) or at >= self._text.length:
                return at

    def _expect(self, at: int, char: str) -> int:
        if self._char(at) != char:
            raise self._error(f"{char} is expected", at)
        return at + 1

    def _expect_end(self, at: int) -> None:
        at = self._skip(at)
        if at != self._text.length:
            raise self._error("data follows the document", at)

    def _error(self, what: str, at: int) -> ValueError:
        return ValueError(f"{what}: {self._text.place(at)}")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
