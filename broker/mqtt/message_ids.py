"""Ids of messages: 32 hexadecimal digits. The first half identifies one start of a node, the second half is a number.

A message stores the two halves; its id is built from them when it is read.
"""

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .message import Message

_DIGITS: Final = 3
_BLOCK: Final = 16**_DIGITS
_ENDS: Final = tuple(f"{end:0{_DIGITS}X}" for end in range(_BLOCK))


class _Start:
    """The common part of the ids of a block of numbers. It never changes: nodes on several threads share the most
    recent one."""

    __slots__ = ("block", "prefix", "text")

    def __init__(self, prefix: str, block: int) -> None:
        self.prefix: Final = prefix
        self.block: Final = block
        self.text: Final = f"{prefix}{block:0{16 - _DIGITS}X}"


_last = _Start("", 0)


def id_of(prefix: str, number: int) -> str:
    """Return the id that consists of these halves. Most of the text is cached for many consecutive ids: formatting a
    number costs more than routing a message."""
    global _last
    start = _last
    block = number // _BLOCK
    if block != start.block or prefix != start.prefix:
        start = _last = _Start(prefix, block)
    return start.text + _ENDS[number % _BLOCK]


class MessageIdSource:
    """Assigns consecutive ids."""

    __slots__ = ("_number", "_prefix")

    def __init__(self, rng: Random) -> None:
        self._prefix = f"{rng.getrandbits(64):016X}"
        self._number = 0

    def give(self, message: "Message") -> None:
        """Assign the next id to this message."""
        number = self._number = self._number + 1
        message.id_prefix = self._prefix
        message.id_number = number
