"""The slots of a cluster: which node executes a command, by its first key."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from redis.crc import key_slot

from .connection import Address, Command

_COMMANDS: Final = 1000
"""Commands of which is remembered where their key is."""
_ASK: Final = 0
"""The key is not always in the same place: the cluster is asked with COMMAND GETKEYS."""
SLOTS_COMMAND: Final[Command] = [b"CLUSTER", b"SLOTS"]

Exchange = Callable[[list[Command]], Awaitable[list[Any]]]
"""Asks any node of the cluster. Raises OSError."""


class SlotRange(NamedTuple):
    """The first and the last slot of a range, and its master."""

    first: int
    last: int
    master: Address


def slot_ranges(answer: Any, asked: Address) -> list[SlotRange]:
    """Read the answer to ``SLOTS_COMMAND`` from the server ``asked``. Raises OSError."""
    if not isinstance(answer, list):
        raise OSError(f"CLUSTER SLOTS: {answer}")
    # A node that does not know its own address gives an empty one.
    return [
        SlotRange(first, last, ((master[0] or b"").decode() or asked[0], master[1]))
        for first, last, master, *_ in answer
    ]


def master_of(ranges: Sequence[SlotRange], slot: int) -> Address | None:
    return next((each.master for each in ranges if each.first <= slot <= each.last), None)


class KeyPositions:
    """The position of the first key in each command, as reported by the cluster; remembered for up to a thousand
    commands."""

    def __init__(self) -> None:
        self._positions: dict[bytes, int] = {}

    async def slots(self, commands: Sequence[Command], exchange: Exchange) -> list[int]:
        """Return the slot of each command; 0 for one without a key, which any node may execute. Raises OSError."""
        if len(self._positions) > _COMMANDS:
            self._positions.clear()
        names = {words[0].upper() for words in commands} - self._positions.keys()
        if names:
            await self._learn(list(names), exchange)
        keys: dict[int, bytes] = {}
        asked: list[int] = []
        for at, words in enumerate(commands):
            position = self._positions[words[0].upper()]
            if position == _ASK:
                asked.append(at)
            elif position < len(words):
                keys[at] = words[position]
        if asked:
            answers = await exchange([[b"COMMAND", b"GETKEYS", *commands[at]] for at in asked])
            for at, answer in zip(asked, answers, strict=True):
                if isinstance(answer, list) and answer:
                    keys[at] = answer[0]
        return [key_slot(keys[at]) if at in keys else 0 for at in range(len(commands))]

    async def _learn(self, names: list[bytes], exchange: Exchange) -> None:
        (answer,) = await exchange([[b"COMMAND", b"INFO", *names]])
        if not isinstance(answer, list) or len(answer) != len(names):
            raise OSError("the answer to COMMAND INFO cannot be read")
        for name, about in zip(names, answer, strict=True):
            fixed = isinstance(about, list) and len(about) > 3 and about[3] > 0 and b"movablekeys" not in about[2]
            self._positions[name] = about[3] if fixed else _ASK
