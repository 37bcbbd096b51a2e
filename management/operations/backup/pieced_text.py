"""PiecedText: a long text in pieces. It is never copied as a whole, which would block the loop."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate


class PiecedText:
    """A text in pieces. Positions are relative to the start of the whole text; reading mostly moves forwards."""

    __slots__ = ("_base", "_pieces", "_starts", "_window", "length")

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = [piece for piece in pieces if piece]
        self._starts = list(accumulate(map(len, self._pieces), initial=0))
        self.length = self._starts.pop()
        self._window = ""
        self._base = 0

    def window(self, start: int, end: int) -> tuple[str, int]:
        """Return a part of the text that contains everything from ``start`` to ``end``, and the position of this
        part."""
        if end > self.length:
            end = self.length
        if start < self._base or end > self._base + len(self._window):
            first = max(bisect_right(self._starts, start) - 1, 0)
            after = max(bisect_left(self._starts, end), first + 1)
            some = self._pieces[first:after]
            self._window = some[0] if len(some) == 1 else "".join(some)
            self._base = self._starts[first] if some else 0
        return self._window, self._base

    def slice(self, start: int, end: int) -> str:
        window, base = self.window(start, end)
        return window[start - base : end - base]

    def place(self, at: int) -> str:
        """Describe a position in the words of the ``json`` module."""
        line, column, left = 1, 1, at
        for piece in self._pieces:
            newlines = piece.count("\n", 0, left)
            line += newlines
            column = min(left, len(piece)) - piece.rfind("\n", 0, left) if newlines else column + min(left, len(piece))
            left -= len(piece)
            if left <= 0:
                break
        return f"line {line} column {column} (char {at})"
