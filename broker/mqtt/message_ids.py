"""Ids of messages: 32 hexadecimal digits, the first half of which is of a start of a node, the second a number.

A message has the two halves, and its id is made of them when somebody asks for it.
"""

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .message import Message

_DIGITS: Final = 3
_BLOCK: Final = 16**_DIGITS


class _Texts:
    """Makes ids. Most of one is made once for many in a row: formatting a number costs more than routing a message."""

    __slots__ = ("_block", "_ends", "_prefix", "_start")

    def __init__(self) -> None:
        self._prefix = ""
        self._block = -1
        self._start = ""
        self._ends: list[str] = []

    def of(self, prefix: str, number: int) -> str:
        block = number // _BLOCK
        if block != self._block or prefix != self._prefix:
            self._prefix, self._block = prefix, block
            self._start = f"{prefix}{block:0{16 - _DIGITS}X}"
            if not self._ends:
                self._ends = [f"{end:0{_DIGITS}X}" for end in range(_BLOCK)]
        return self._start + self._ends[number % _BLOCK]


_texts: Final = _Texts()


def id_of(prefix: str, number: int) -> str:
    """The id with these halves."""
    return _texts.of(prefix, number)


class MessageIds:
    """Gives one after the other."""

    __slots__ = ("_number", "_prefix")

    def __init__(self, rng: Random) -> None:
        self._prefix = f"{rng.getrandbits(64):016X}"
        self._number = 0

    def give(self, message: "Message") -> None:
        """The next one is this message's."""
        number = self._number = self._number + 1
        message.id_prefix = self._prefix
        message.id_number = number
