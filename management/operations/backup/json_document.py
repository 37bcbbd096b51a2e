"""JSON documents of any size: where each record stands, found in steps, so that reading one never holds the loop."""

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ..refusal import NOT_JSON, WRONG, Refusal, wrong

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_WINDOW: Final = 65_536
_LONG: Final = 4 * _WINDOW
# What a string may hold, up to its end, or up to an escape or surrogate pair that the window cuts. Nothing follows that
# could fail, so nothing is tried twice; possessive quantifiers would say so, and Python 3.11.2 matches them wrongly.
_INSIDE: Final = re.compile(
    r'(?:[^"\\]+|\\(?:[^u]|u[dD][89abAB].{2}\\u[dD][c-fC-F].{2}|u(?![dD][89a-fA-F]).{4}))*', re.DOTALL
)


class Span(NamedTuple):
    """From where to where a value stands in the text."""

    start: int
    end: int


class Spans:
    """Many of them, in little memory, and nothing for the garbage collector to look at."""

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
    """A value that is JSON by its brackets and none by its contents."""


class Document:
    """A JSON object whose members are looked at one by one.

    ``sections``: members that are arrays, by key, as the places of their elements. ``members``: all others. Of a key
    given twice the last counts.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.sections: dict[str, Spans] = {}
        self.members: dict[str, Span] = {}

    def read(self) -> Iterator[None]:
        """Find everything; each step is short. Raises Refusal 109 or 108 where this is no JSON object."""
        try:
            yield from self._read()
        except RecursionError:
            raise Refusal(NOT_JSON, "the document is nested too deeply") from None
        except ValueError as error:
            raise Refusal(NOT_JSON, f"not JSON: {error}") from None

    def _read(self) -> Iterator[None]:
        text = self.text
        at = self._skip(0)
        if text[at : at + 1] != "{":
            _, at = self._scan(at)
            self._expect_end(at)
            raise Refusal(WRONG, "expected a JSON object")
        at = self._skip(at + 1)
        if text[at : at + 1] == "}":
            return self._expect_end(at + 1)
        while True:
            start = at
            key, at = self._scan(at)
            if not isinstance(key, str):
                raise self._error("a key in double quotes is expected", start)
            at = self._skip(self._expect(self._skip(at), ":"))
            self.sections.pop(key, None)
            self.members.pop(key, None)
            if text[at : at + 1] == "[":
                spans = Spans()
                for span in self._elements(at):
                    if span is not None:
                        spans.add(span)
                        at = span.end
                    yield
                at = self._after_elements(at, len(spans) > 0)
                self.sections[key] = spans
            elif text[at : at + 1] == '"':
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
            if text[at : at + 1] != ",":
                return self._expect_end(self._expect(at, "}"))
            at = self._skip(at + 1)

    def _elements(self, at: int) -> Iterator[Span | None]:
        at = self._skip(at + 1)
        if self.text[at : at + 1] == "]":
            return
        while True:
            _, end = self._scan(at)
            yield Span(at, end)
            at = self._skip(end)
            if self.text[at : at + 1] != ",":
                return
            at = self._skip(at + 1)

    def _after_elements(self, at: int, some: bool) -> int:
        """Behind the bracket that closes an array; ``at`` is its beginning or the end of its last element."""
        return self._expect(self._skip(at if some else at + 1), "]")

    def _text_ends(self, start: int) -> Iterator[int]:
        """The end of a string that may be long: the last value is it."""
        at = start + 1
        while True:
            end = self._inside(at, len(self.text))
            if self.text[end : end + 1] == '"':
                if end - start < _LONG:
                    self._scan(start)
                yield end + 1
                return
            if end == at:
                self._scan(start)  # says what is wrong
                raise self._error("a string is broken", at)
            yield end
            at = end

    def long_text(self, span: Span) -> Iterator[str]:
        """A string's contents in pieces. Raises BadRecord."""
        at, last = span.start + 1, span.end - 1
        while at < last:
            end = self._inside(at, last)
            try:
                yield json.loads(f'"{self.text[at:end]}"')
            except ValueError as error:
                raise BadRecord(f"not JSON: {error}") from None
            at = end

    def _inside(self, at: int, last: int) -> int:
        """How far a string goes on from ``at``, which is inside it, at most a window."""
        found = _INSIDE.match(self.text, at, min(at + _WINDOW, last))
        assert found is not None
        return found.end()

    def raw(self, span: Span) -> str:
        """As it stands in the text."""
        return self.text[span.start : span.end]

    def has(self, key: str) -> bool:
        return key in self.sections or key in self.members

    def member(self, key: str) -> Any:
        """What a member is, ``[]`` for any array; ``None`` where it is not there. Raises Refusal 108."""
        if key in self.sections:
            return []
        span = self.members.get(key)
        try:
            return None if span is None else self.value(span)
        except ValueError as error:
            raise wrong(key, str(error)) from None

    def value(self, span: Span) -> Any:
        """Raises BadRecord for text that is not Unicode."""
        value, _ = self._scan(span.start)
        if _SURROGATE.search(self.text, span.start, span.end):
            try:
                msgspec.json.encode(value)
            except (UnicodeEncodeError, ValueError):
                raise BadRecord("holds half a surrogate pair") from None
        return value

    def _scan(self, at: int) -> tuple[Any, int]:
        """The value that begins at ``at``, and where it ends."""
        return _DECODER.raw_decode(self.text, at)

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        assert found is not None
        return found.end()

    def _expect(self, at: int, char: str) -> int:
        if self.text[at : at + 1] != char:
            raise self._error(f"{char} is expected", at)
        return at + 1

    def _expect_end(self, at: int) -> None:
        at = self._skip(at)
        if at != len(self.text):
            raise self._error("something follows the document", at)

    def _error(self, what: str, at: int) -> json.JSONDecodeError:
        return json.JSONDecodeError(what, self.text, at)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
