"""Data that all conversations of a listener share, with limits: which requests were carried out, so that their
repetitions are not, and the bytes of the bodies that are transferred in blocks."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

EXCHANGE_BYTES: Final = 400
"""Bytes of the answer to a request, on average, that are kept at most."""

Peer = Hashable
"""``GatewayLink.sender``."""


class CoapExchange:
    """A request. ``answer``: the datagram that answers its repetitions; empty while there is none. The digest
    distinguishes a repetition from another request with the same message ID, of a client that uses up the message IDs
    too fast."""

    __slots__ = ("answer", "digest", "expires", "mid", "peer")

    def __init__(self, peer: Peer, mid: int, digest: int, expires: float) -> None:
        self.peer = peer
        self.mid = mid
        self.digest = digest
        self.expires = expires
        self.answer = b""


class Exchanges:
    """The requests of the last ``exchange_lifetime`` seconds, by sender and message ID. They outlive conversations,
    which end and begin again when a client names another ClientId.

    ``answer_bytes``: bytes of all answers to these requests; ``body_bytes``: bytes of all bodies that are transferred
    in blocks."""

    __slots__ = ("_all", "_of", "answer_bytes", "body_bytes")

    def __init__(self) -> None:
        self._of: dict[Peer, dict[int, CoapExchange]] = {}
        self._all: OrderedDict[CoapExchange, None] = OrderedDict()  # the oldest first
        self.answer_bytes = 0
        self.body_bytes = 0

    def __len__(self) -> int:
        return len(self._all)

    def find(self, peer: Peer, mid: int, digest: int, now: float) -> CoapExchange | None:
        """Return the request that a datagram repeats."""
        known = self._of.get(peer)
        found = None if known is None else known.get(mid)
        if found is None or found.digest != digest or found.expires <= now:
            return None
        return found

    def add(self, exchange: CoapExchange, now: float, most: int, most_each: int) -> bool:
        """Remember a request. Return whether another request had to be forgotten early, because there are too many in
        total. If the same address has too many, its oldest request makes room."""
        known = self._of.get(exchange.peer)
        if known is None:
            known = self._of[exchange.peer] = {}
        elif exchange.mid in known:
            self.forget(known[exchange.mid])
        elif len(known) >= most_each:
            self.forget(next(iter(known.values())))
        while self._all and (oldest := next(iter(self._all))).expires <= now:
            self.forget(oldest)
        early = len(self._all) >= most
        if early:
            self.forget(next(iter(self._all)))
        self._of.setdefault(exchange.peer, known)[exchange.mid] = exchange
        self._all[exchange] = None
        return early

    def keep(self, exchange: CoapExchange, answer: bytes, most: int, most_each: int) -> bool:
        """Keep the answer to a request, if it is still remembered. A request with a large answer takes the place of
        several: the oldest are forgotten until all requests, and those of the same sender, have ``EXCHANGE_BYTES``
        each. Return whether one of all requests had to be forgotten."""
        if exchange not in self._all:
            return False
        self.answer_bytes += len(answer) - len(exchange.answer)
        exchange.answer = answer
        if len(answer) > EXCHANGE_BYTES:
            known = self._of[exchange.peer]
            own = sum([len(each.answer) for each in known.values()])
            while own > most_each * EXCHANGE_BYTES and (oldest := next(iter(known.values()))) is not exchange:
                own -= len(oldest.answer)
                self.forget(oldest)
        early = False
        while self.answer_bytes > most * EXCHANGE_BYTES and (oldest := next(iter(self._all))) is not exchange:
            self.forget(oldest)
            early = True
        return early

    def forget(self, exchange: CoapExchange) -> None:
        """Forget a request: a repetition is carried out again."""
        if exchange not in self._all:
            return
        del self._all[exchange]
        self.answer_bytes -= len(exchange.answer)
        known = self._of[exchange.peer]
        del known[exchange.mid]
        if not known:
            del self._of[exchange.peer]
