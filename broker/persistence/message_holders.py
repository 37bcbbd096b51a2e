"""Holders: the sessions that hold a message in addition to the first one, in little memory for any number of sessions.

If many sessions hold a message, most hold it in the same way: QoS 1 or 2, RETAIN 0, no identifiers, no shared
subscription. Such a session uses one bit; any other session uses an entry in a dict."""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_SHIFT: Final = 8
_MASK: Final = 255


class Numbers:
    """A set of session numbers, which are mostly close to each other: one bit for each, in pieces of 256."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __len__(self) -> int:
        count = 0
        for bits in self._pieces.values():
            count += bits.bit_count()
        return count

    def __contains__(self, number: int) -> bool:
        return bool(self._pieces.get(number >> _SHIFT, 0) >> (number & _MASK) & 1)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers, in ascending order within each piece."""
        for piece, bits in self._pieces.items():
            first = piece << _SHIFT
            while bits:
                lowest = bits & -bits
                yield first + lowest.bit_length() - 1
                bits ^= lowest

    def add(self, number: int) -> None:
        piece = number >> _SHIFT
        self._pieces[piece] = self._pieces.get(piece, 0) | 1 << (number & _MASK)

    def discard(self, number: int) -> bool:
        """Remove a number; return whether it was in the set."""
        piece = number >> _SHIFT
        bits = self._pieces.get(piece, 0)
        bit = 1 << (number & _MASK)
        if not bits & bit:
            return False
        bits ^= bit
        if bits:
            self._pieces[piece] = bits
        else:
            del self._pieces[piece]
        return True


class Holders(Generic[T]):
    """``plain1`` and ``plain2``: the sessions that hold the message plainly, with QoS 1 and 2. ``others``: (session
    number, group filter or "") -> the details of any other session. ``packet_ids``: the Packet Identifiers of the plain
    holders to which the message was sent."""

    __slots__ = ("others", "packet_ids", "plain1", "plain2")

    def __init__(self) -> None:
        self.plain1: Numbers | None = None
        self.plain2: Numbers | None = None
        self.packet_ids: dict[int, int] | None = None
        self.others: dict[tuple[int, str], T] | None = None

    def __bool__(self) -> bool:
        return bool(self.plain1) or bool(self.plain2) or bool(self.others)

    def add_plain(self, session: int, qos: int, packet_id: int) -> None:
        """Add a session that holds the message with QoS 1 or 2, or replace how it holds the message."""
        if self.others is not None:
            self.others.pop((session, ""), None)
        if self.packet_ids is not None:
            self.packet_ids.pop(session, None)
        if qos == 1:
            if self.plain2 is not None:
                self.plain2.discard(session)
            if self.plain1 is None:
                self.plain1 = Numbers()
            self.plain1.add(session)
        else:
            if self.plain1 is not None:
                self.plain1.discard(session)
            if self.plain2 is None:
                self.plain2 = Numbers()
            self.plain2.add(session)
        if packet_id:
            self._note(session, packet_id)

    def add_other(self, session: int, group: str, holding: T) -> None:
        """Add a session that holds the message in another way, or replace how it holds the message."""
        self.let_go(session, group)
        if self.others is None:
            self.others = {}
        self.others[session, group] = holding

    def other(self, session: int, group: str) -> T | None:
        """Return how a session holds the message that does not hold it plainly."""
        return None if self.others is None else self.others.get((session, group))

    def sent_plain(self, session: int, packet_id: int) -> bool:
        """Record that the message was sent to a plain holder. Return False if the session is not one."""
        if (self.plain1 is not None and session in self.plain1) or (self.plain2 is not None and session in self.plain2):
            self._note(session, packet_id)
            return True
        return False

    def _note(self, session: int, packet_id: int) -> None:
        if self.packet_ids is None:
            self.packet_ids = {}
        self.packet_ids[session] = packet_id

    def let_go(self, session: int, group: str) -> bool:
        """Remove a holder. Return False if it was not one."""
        if not group and (
            (self.plain1 is not None and self.plain1.discard(session))
            or (self.plain2 is not None and self.plain2.discard(session))
        ):
            if self.packet_ids is not None:
                self.packet_ids.pop(session, None)
                if not self.packet_ids:
                    self.packet_ids = None
            return True
        return self.others is not None and self.others.pop((session, group), None) is not None

    def plain(self) -> Iterator[tuple[int, int, int]]:
        """Yield the plain holders: session number, QoS, Packet Identifier (0: not sent)."""
        sent = self.packet_ids or {}
        for session in self.plain1 or ():
            yield session, 1, sent.get(session, 0)
        for session in self.plain2 or ():
            yield session, 2, sent.get(session, 0)
