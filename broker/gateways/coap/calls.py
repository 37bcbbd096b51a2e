"""Requests of the node to the other side, and its observations there (RFC 7252, section 5; RFC 7641, section 3)."""

from collections import deque
from collections.abc import Callable
from secrets import token_bytes
from typing import Final

from ...gateway import GatewayLink
from . import codec
from .blockwise import Transfer, TransferFailed, exponent_of
from .codec import ACK, CON, RST, Options, Packet
from .sending import Confirmable, ConfirmableSender
from .settings import Transmission
from .shared import Exchanges

TOKEN_BYTES: Final = 4
REPEATED_ANSWERS: Final = 8
"""Message IDs of answers and notifications that are remembered, so that their repetitions have no effect."""
FRESH_AFTER: Final = 128.0
"""Seconds after which a notification is newer whatever its number (RFC 7641, section 3.4)."""


class QueueFull(Exception):
    """``max_requests`` requests to the client wait."""


class CoapAnswer:
    """An answer or a notification of the other side; code 0: it has rejected the request with RST."""

    __slots__ = ("code", "options", "payload")

    def __init__(self, code: int, options: Options, payload: bytes) -> None:
        self.code = code
        self.options = options
        self.payload = payload

    def _number(self, number: int) -> int | None:
        value = codec.option(self.options, number)
        return None if value is None else codec.uint(value)

    @property
    def content_format(self) -> int | None:
        return self._number(codec.CONTENT_FORMAT)

    @property
    def observe(self) -> int | None:
        return self._number(codec.OBSERVE)


class CoapCall:
    """A request of the node that has no answer yet, or that observes. ``due``: when an acknowledged request is given
    up; ``latest``: the token of its last message; ``charged``: the bytes of the answer so far, as counted in
    ``Exchanges``.
    """

    __slots__ = (
        "acknowledged", "answered", "charged", "due", "latest", "notified", "seen_at", "sequence", "token", "transfer",
    )  # fmt: skip

    def __init__(
        self, token: bytes, transfer: Transfer, answered: Callable[[CoapAnswer | None], None] | None,
        notified: Callable[[CoapAnswer], None] | None, acknowledged: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        self.acknowledged = acknowledged
        self.token = self.latest = token
        self.charged = 0
        self.transfer = transfer
        self.answered = answered
        self.notified = notified
        self.sequence = -1
        self.seen_at = 0.0
        self.due = 0.0

    def is_fresh(self, sequence: int, now: float) -> bool:
        """Return whether a notification is newer than the last one (RFC 7641, section 3.4)."""
        last = self.sequence
        fresh = last < 0 or now > self.seen_at + FRESH_AFTER or 0 < (sequence - last) % 0x1000000 < 0x800000
        if fresh:
            self.sequence, self.seen_at = sequence, now
        return fresh


class CoapCalls:
    """The requests of the node to one address, by token. ``wake`` is called when ``dues`` have changed."""

    __slots__ = ("_calls", "_exchanges", "_link", "_seen", "_sender", "_settings", "_wake")

    def __init__(
        self, link: GatewayLink, settings: Transmission, sender: ConfirmableSender, wake: Callable[[], None],
        exchanges: Exchanges,
    ) -> None:  # fmt: skip
        self._exchanges = exchanges
        self._link = link
        self._settings = settings
        self._sender = sender
        self._wake = wake
        self._calls: dict[bytes, CoapCall] | None = None
        self._seen: deque[int] | None = None

    def dues(self) -> list[float]:
        """Return when requests are given up."""
        return [each.due for each in (self._calls or {}).values() if each.due]

    def on_time(self, now: float) -> None:
        """Give up requests whose answer has not come."""
        for token, call in list((self._calls or {}).items()):
            if call.due and call.due <= now:
                self._finish(token, None)

    def end(self) -> None:
        """End all requests, because no more answers will come."""
        calls = dict.fromkeys((self._calls or {}).values())
        self._calls = None
        for call in calls:
            self._charge(call, 0)
            if call.answered is not None:
                call.answered(None)

    def request(
        self,
        code: int,
        options: Options,
        payload: bytes,
        answered: Callable[[CoapAnswer | None], None],
        notified: Callable[[CoapAnswer], None] | None,
        acknowledged: Callable[[], None] | None,
        token: bytes,
    ) -> bytes:
        """See ``exchange.CoapEndpoint.request``."""
        calls = self._calls
        if calls is None:
            calls = self._calls = {}
        settings = self._settings
        if len([each for each in calls.values() if each.answered is not None]) >= settings.max_requests:
            raise QueueFull
        transfer = Transfer(code, options, payload, exponent_of(settings.block_size), settings.max_body_bytes)
        call = CoapCall(token or self._new_token(), transfer, answered, notified, acknowledged)
        calls[call.token] = call
        self._send_call(call, call.token)
        return call.token

    def _new_token(self) -> bytes:
        while True:
            token = token_bytes(TOKEN_BYTES)
            if self._calls is None or token not in self._calls:
                return token

    def forget(self, token: bytes) -> None:
        """Accept no more answers or notifications to a request; the next one is answered with RST."""
        for key, call in list((self._calls or {}).items()):
            if call.token == token:
                self._charge(call, 0)
                self._forget_token(key)

    def _forget_token(self, token: bytes) -> None:
        if self._calls is not None:
            self._calls.pop(token, None)
            if not self._calls:
                self._calls = None

    def _send_call(self, call: CoapCall, token: bytes) -> None:
        """Send the next message of a request; ``token``: a token for this message only, so that a late answer is not
        mistaken for another one."""
        options, payload = call.transfer.message()
        code = call.transfer.code

        def done(packet: Packet | None) -> None:
            if packet is None:
                self._finish(token, None)
            elif packet.type == RST:
                self._finish(token, CoapAnswer(0, [], b""))
            elif packet.code == codec.EMPTY:
                call.due = self._link.now() + self._settings.answer_timeout
                self._wake()
                acknowledged, call.acknowledged = call.acknowledged, None
                if acknowledged is not None:
                    acknowledged()
            else:
                self._take_answer(packet)

        # The blocks of a body follow each other: those of two bodies for one resource cannot be told apart.
        outgoing = Confirmable(lambda mid: codec.encode(CON, code, mid, token, options, payload), done)
        self._sender.send(outgoing, next_one=token != call.token)

    def _stray(self, what: str) -> None:
        self._link.drop("unexpected_datagram", what)

    def on_answer(self, packet: Packet) -> None:
        """Process an answer in a separate message, or a notification."""
        if self._seen is not None and packet.mid in self._seen:
            if packet.type == CON:
                self._link.write(codec.empty(ACK, packet.mid))
            return
        if self._calls is None or packet.token not in self._calls:
            self._stray("an answer to no request")
            if packet.type == CON:
                self._link.write(codec.empty(RST, packet.mid))
            return
        if self._seen is None:
            self._seen = deque(maxlen=REPEATED_ANSWERS)
        self._seen.append(packet.mid)
        if packet.type == CON:
            self._link.write(codec.empty(ACK, packet.mid))
        self._take_answer(packet)

    def _take_answer(self, packet: Packet) -> None:
        call = None if self._calls is None else self._calls.get(packet.token)
        if call is None:
            self._stray("an answer to no request")
            return
        self._link.alive()
        sequence = codec.option(packet.options, codec.OBSERVE)
        if call.answered is None and packet.token == call.token and sequence is not None:
            if not call.is_fresh(codec.uint(sequence), self._link.now()):
                return
        elif sequence is not None:
            call.is_fresh(codec.uint(sequence), self._link.now())
        if packet.token not in (call.token, call.latest):
            self._forget_token(packet.token)  # a block of a state that a newer notification has replaced
            return
        try:
            payload = call.transfer.answered(packet)
        except TransferFailed as error:
            self._link.drop("transfer_failed", str(error), "max_body_bytes")
            self._finish(packet.token, None)
            return
        if not self._charge(call, call.transfer.collected):
            self._link.drop("bodies_full", "an answer that is transferred in blocks", "max_bodies_bytes")
            self._finish(packet.token, None)
            return
        if payload is not None:
            self._finish(packet.token, CoapAnswer(packet.code, packet.options, payload))
            return
        if packet.token != call.token:
            self._forget_token(packet.token)
        token = call.latest = self._new_token()
        assert self._calls is not None
        self._calls[token] = call
        call.due = 0.0
        self._send_call(call, token)

    def _charge(self, call: CoapCall, size: int) -> bool:
        """Count the bytes of an incomplete answer. Return whether the limit for all bodies of the listener allows
        them."""
        self._exchanges.body_bytes += size - call.charged
        call.charged = size
        return not size or self._exchanges.body_bytes <= self._settings.max_bodies_bytes

    def _finish(self, token: bytes, answer: CoapAnswer | None) -> None:
        """Pass on the answer to a request, or another state of its observation."""
        call = None if self._calls is None else self._calls.get(token)
        if call is None:
            return
        call.due = 0.0
        self._charge(call, 0)
        observes = call.notified is not None and answer is not None and 0 < answer.code < codec.BAD_REQUEST
        observes = observes and (call.sequence >= 0 or token != call.token)
        # A notification whose blocks do not come does not end what is observed: the next one has a newer state.
        observes = observes or (answer is None and call.answered is None)
        if not observes:
            self.forget(call.token)
        elif token != call.token:
            self._forget_token(token)
        answered, call.answered = call.answered, None
        if answered is not None:
            answered(answer)
        elif call.notified is not None and answer is not None:
            call.notified(answer)
