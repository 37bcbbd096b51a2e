"""Ids of messages: 32 hexadecimal digits, the first half of which is of this start of the node."""

from random import Random
from typing import Final

_DIGITS: Final = 3
_BLOCK: Final = 16**_DIGITS


class MessageIds:
    """Gives one after the other. Most of an id is made once for many of them: formatting a number costs more than
    routing a message."""

    __slots__ = ("_block", "_ends", "_number", "_prefix")

    def __init__(self, rng: Random) -> None:
        self._prefix = f"{rng.getrandbits(64):016X}"
        self._number = 0
        self._block = ""
        self._ends: list[str] = []

    def next(self) -> str:
        number = self._number = self._number + 1
        place = number % _BLOCK
        if not place or not self._ends:
            self._block = f"{self._prefix}{number // _BLOCK:0{16 - _DIGITS}X}"
            if not self._ends:
                self._ends = [f"{end:0{_DIGITS}X}" for end in range(_BLOCK)]
        return self._block + self._ends[place]
