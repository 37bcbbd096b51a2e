"""Confirmable messages to an address, with their repetitions (RFC 7252, section 4.2), and the proof of the address.

At most one confirmable message is under way (NSTART is 1). The others wait in ``_queue``; notifications wait where
``more`` gets them, which keeps only the last state of each.

An address proves itself by acknowledging a message ID that it cannot guess. Messages that are larger than those from
the address wait for this proof. A ping requests it: every endpoint answers a ping with RST."""

from collections import deque
from collections.abc import Callable
from random import uniform
from secrets import randbelow
from typing import Final

from ...gateway import GatewayLink
from . import codec
from .codec import CON, RST, Packet
from .settings import Transmission

MAX_WRONG: Final = 8
"""Answers with a wrong message ID until an address that is not proved counts as forged."""
PING_BYTES: Final = 4
MORE_PINGS: Final = 2
"""Number of additional, earlier repetitions of a ping: an answer may wait for it, and libcoap does not answer it in the
first quarter of a second."""


class Confirmable:
    """A confirmable message of the node. ``build(mid)`` returns its bytes, and is called again before a repetition only
    if ``newer`` reports a newer state. ``done`` receives the acknowledgement or RST; None: there is none. ``renewed``:
    its repetitions have begun again, because the client is awake now."""

    __slots__ = ("build", "data", "done", "due", "mid", "newer", "renewed", "timeout", "tries")

    def __init__(
        self, build: Callable[[int], bytes], done: Callable[[Packet | None], None],
        newer: Callable[[], bool] | None = None,
    ) -> None:  # fmt: skip
        self.build = build
        self.done = done
        self.newer = newer
        self.data = b""
        self.mid = 0
        self.due = 0.0
        self.timeout = 0.0
        self.tries = 0
        self.renewed = False

    @property
    def is_ping(self) -> bool:
        return len(self.data) == PING_BYTES


def nothing_waits() -> Confirmable | None:
    """Return that no notification waits, for an endpoint without observations."""
    return None


class ConfirmableSender:
    """The confirmable messages to one address. ``proved``: the address is not forged; ``lost``: it does not answer;
    ``wake``: ``due`` has changed."""

    __slots__ = (
        "_current", "_ended", "_is_proved", "_link", "_lost", "_mid", "_more", "_proved", "_queue", "_settings",
        "_wake", "_wrong",
    )  # fmt: skip

    def __init__(
        self,
        link: GatewayLink,
        settings: Transmission,
        more: Callable[[], Confirmable | None],
        proved: Callable[[], None],
        lost: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._link = link
        self._settings = settings
        self._more = more
        self._proved = proved
        self._lost = lost
        self._wake = wake
        self._mid = randbelow(0x10000)
        self._ended = False
        self._is_proved = False
        self._wrong = 0
        self._current: Confirmable | None = None
        self._queue: deque[Confirmable] | None = None

    @property
    def due(self) -> float:
        """When a message has to be repeated; 0: none."""
        return 0.0 if self._current is None else self._current.due

    def next_mid(self) -> int:
        self._mid = self._mid + 1 & 0xFFFF
        return self._mid

    def fits(self, size: int) -> bool:
        """Return whether this many bytes may be sent to the client now."""
        return self._is_proved or not 0 <= self._link.room < size

    def send(self, outgoing: Confirmable, next_one: bool = False) -> None:
        """Send a confirmable message when it is its turn."""
        if not self._ended:
            self._push(outgoing, next_one)
            self.advance()

    def _push(self, outgoing: Confirmable, next_one: bool) -> None:
        if self._queue is None:
            self._queue = deque()
        if next_one:
            self._queue.appendleft(outgoing)
        else:
            self._queue.append(outgoing)

    def ping(self) -> None:
        """Ask whether the client is reachable; call ``lost`` if it is not."""
        if self._current is None and not self._ended:
            self._begin_sending(_ping())

    def ask_for_proof(self) -> None:
        """Send a ping, unless one is under way."""
        if self._current is None or not self._current.is_ping:
            self.send(_ping(), next_one=True)

    def advance(self) -> None:
        """Send the next confirmable message, if none is under way."""
        if self._current is not None or self._ended:
            return
        if self._queue:
            following: Confirmable | None = self._queue.popleft()
        else:
            self._queue = None
            following = self._more()
        if following is not None:
            self._begin_sending(following)

    def _build(self, outgoing: Confirmable) -> None:
        outgoing.mid = self.next_mid()
        outgoing.data = outgoing.build(outgoing.mid)

    def _begin_sending(self, outgoing: Confirmable) -> None:
        """Send a message, or first a ping if the message is too large to be repeated to an address without a proof."""
        settings = self._settings
        self._build(outgoing)
        if not outgoing.is_ping and not self.fits(len(outgoing.data) * (1 + settings.max_retransmit)):
            self._push(outgoing, next_one=True)
            outgoing = _ping()
            self._build(outgoing)
        if not self.fits(len(outgoing.data)):
            if not outgoing.is_ping:
                self._push(outgoing, next_one=True)
            return  # the next datagram of the client makes room
        self._current = outgoing
        self._write_first(outgoing)

    def _write_first(self, outgoing: Confirmable) -> None:
        """Write a message that has all its repetitions before it."""
        settings = self._settings
        outgoing.timeout = settings.ack_timeout * uniform(1.0, settings.ack_random_factor)
        outgoing.tries = 0
        if outgoing.is_ping:
            outgoing.timeout /= 4
            outgoing.tries = -MORE_PINGS
        outgoing.due = self._link.now() + outgoing.timeout
        self._link.write(outgoing.data)
        self._wake()

    def repeat_now(self) -> bool:
        """Repeat a message at once that has been repeated without an answer, because the client is awake now. It has
        all its repetitions again, but only once, so that it ends before its message ID may be used again. Return
        whether it was repeated."""
        current = self._current
        if current is None or current.renewed or current.tries == (-MORE_PINGS if current.is_ping else 0):
            return False
        if not self.fits(len(current.data)):
            return False
        current.renewed = True
        self._write_first(current)
        return True

    def on_reply(self, packet: Packet) -> None:
        """Handle an acknowledgement or RST."""
        current = self._current
        if current is None or packet.mid != current.mid:
            self._wrong_reply()
            return
        if packet.type == RST and packet.code != codec.EMPTY:
            self._stray("RST with content")
            return
        self._current = None
        self._link.alive()
        if not self._is_proved:
            self._is_proved = True
            self._link.proved()
            self._proved()
        current.done(packet)

    def _stray(self, what: str) -> None:
        self._link.drop("unexpected_datagram", what)

    def _wrong_reply(self) -> None:
        """Handle a late reply, or a guess by an attacker who does not receive at this address."""
        self._stray("a reply to no message")
        if self._current is None or self._is_proved:
            return
        self._wrong += 1
        self._mid = randbelow(0x10000)
        if self._wrong >= MAX_WRONG:
            self._give_up()

    def on_time(self, now: float) -> None:
        """Repeat a message if that is due."""
        current = self._current
        if current is not None and current.due <= now:
            self._repeat(current, now)

    def _repeat(self, current: Confirmable, now: float) -> None:
        """Repeat a message, or give the client up."""
        if current.tries >= self._settings.max_retransmit:
            self._give_up()
            return
        current.tries += 1
        current.timeout *= 2
        current.due = now + current.timeout
        if current.newer is not None and current.newer():
            self._build(current)
        if self.fits(len(current.data)):
            self._link.write(current.data)

    def _give_up(self) -> None:
        current, self._current = self._current, None
        self._link.drop("no_answer", "the client has not answered max_retransmit repetitions", "max_retransmit")
        if current is not None:
            current.done(None)
        self._lost()
        self.advance()

    def end(self) -> None:
        """Stop sending."""
        self._ended = True
        self._current = self._queue = None


def _ping() -> Confirmable:
    return Confirmable(lambda mid: codec.empty(CON, mid), nothing_done)


def nothing_done(packet: Packet | None) -> None:
    """For a message whose end has no consequence."""
