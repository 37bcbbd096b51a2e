"""The line of each key in a TOML document, and the extent of each table, which ``tomllib`` does not report."""

import tomllib
from typing import Final, NamedTuple

from taipan.broker.setting_rules import KeyPath as KeyPath

_SPACE: Final = " \t"
_BARE_END: Final = " \t\r\n.=]}#,"


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line (from 1) on which each key of a *valid* document is first written.

    Members of arrays have their index as key: ``("listeners", 0, "bind")``. A table that is named only as part of
    another one (``a`` in ``[a.b]``) has the line of the other one."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class Section(NamedTuple):
    """The keys below a header, as offsets of the text. ``path``: the table's path; empty for keys before the first
    header. ``start``: the offset of the first line after the header; ``end``: the offset of the next header, or the end
    of the text."""

    path: KeyPath
    start: int
    end: int


def sections(text: str) -> list[Section]:
    """The sections of a *valid* document whose lines end with ``\\n``, in order; their headers are between them."""
    scanner = _Scanner(text)
    scanner.document()
    starts = [(0, ()), *((text.find("\n", at) + 1 or len(text), path) for _, at, path in scanner.headers)]
    ends = [*(before for before, _, _ in scanner.headers), len(text)]
    return [Section(path, start, end) for (start, path), end in zip(starts, ends, strict=True)]


class _Scanner:
    """Scans the text once. The document has already been parsed, so the scanner only has to find where values end."""

    __slots__ = ("_arrays", "_at", "_counted_to", "_line", "_text", "headers", "lines")

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._line = 1
        self._counted_to = 0
        self._arrays: dict[KeyPath, int] = {}  # arrays of tables: index of the last member
        self.lines: dict[KeyPath, int] = {}
        self.headers: list[tuple[int, int, KeyPath]] = []  # offsets before and after a header, and its table

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip_blank(newlines=True)
            if self._at >= len(self._text):
                return
            before = self._at
            if self._text.startswith("[[", self._at):
                self._at += 2
                table = self._header(array=True)
                self._at += 2
                self.headers.append((before, self._at, table))
            elif self._text[self._at] == "[":
                self._at += 1
                table = self._header(array=False)
                self._at += 1
                self.headers.append((before, self._at, table))
            else:
                self._key_value(table)

    def _header(self, array: bool) -> KeyPath:
        line = self._current_line()
        names = self._key()
        path: KeyPath = ()
        for name in names[:-1]:
            path = self._enter(path + (name,), line)
        path = path + (names[-1],)
        self.lines.setdefault(path, line)
        if array:
            self._arrays[path] = self._arrays.get(path, -1) + 1
        return self._enter(path, line)

    def _enter(self, path: KeyPath, line: int) -> KeyPath:
        self.lines.setdefault(path, line)
        if path in self._arrays:
            path = path + (self._arrays[path],)
            self.lines.setdefault(path, line)
        return path

    def _key_value(self, table: KeyPath) -> None:
        line = self._current_line()
        path = table
        for name in self._key():
            path = path + (name,)
            self.lines.setdefault(path, line)
        self._at += 1  # "="
        self._skip_blank()
        self._value(path)

    def _key(self) -> list[str]:
        """Read a dotted key, up to ``=`` or ``]``."""
        names = []
        while True:
            self._skip_blank()
            start = self._at
            if self._text[start] in "\"'":
                self._string()
                # The escapes of a quoted key are decoded by TOML.
                names.append(_unquote(self._text[start : self._at]))
            else:
                while self._text[self._at] not in _BARE_END:
                    self._at += 1
                names.append(self._text[start : self._at])
            self._skip_blank()
            if self._text[self._at] != ".":
                return names
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        char = self._text[self._at]
        if char in "\"'":
            self._string()
        elif char == "[":
            self._at += 1
            index = 0
            while True:
                self._skip_blank(newlines=True)
                if self._text[self._at] == "]":
                    break
                if self._text[self._at] == ",":
                    self._at += 1
                    continue
                member = path + (index,)
                self.lines.setdefault(member, self._current_line())
                self._value(member)
                index += 1
            self._at += 1
        elif char == "{":
            self._at += 1
            while True:
                self._skip_blank(newlines=True)
                if self._text[self._at] == "}":
                    break
                if self._text[self._at] == ",":
                    self._at += 1
                    continue
                self._key_value(path)
            self._at += 1
        else:
            # A number, date or boolean. A date may contain a space, which does not end it.
            while self._at < len(self._text) and self._text[self._at] not in ",]}#\n":
                self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        triple = quote * 3
        if self._text.startswith(triple, self._at):
            self._at += 3
            while not self._text.startswith(triple, self._at):
                self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
            self._at += 3
            # Up to two quotes may belong to the text, directly before the closing three.
            while self._text.startswith(quote, self._at):
                self._at += 1
            return
        self._at += 1
        while self._text[self._at] != quote:
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += 1

    def _skip_blank(self, newlines: bool = False) -> None:
        skipped = _SPACE + "\n" if newlines else _SPACE
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in skipped:
                self._at += 1
            elif char == "#" and newlines:
                while self._at < len(self._text) and self._text[self._at] != "\n":
                    self._at += 1
            else:
                return

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line


def _unquote(quoted: str) -> str:
    (key,) = tomllib.loads(quoted + " = 0")
    return key
