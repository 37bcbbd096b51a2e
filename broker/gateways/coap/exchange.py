"""The message layer of one address (RFC 7252, sections 4 and 5): it passes on each request once, and repeats each
message until it is acknowledged.

Nothing here knows MQTT or a socket: the link of the conversation sends, and has the clock. ``sending`` repeats
messages, ``calls`` has the requests of the node, ``bodies`` the bodies that are transferred in blocks. One timer serves
all of them."""

from collections.abc import Callable, Iterable
from typing import Final

from ...gateway import GatewayLink, Pending
from . import codec
from .blockwise import Block, Resource, block, exponent_of
from .bodies import Bodies
from .calls import CoapAnswer, CoapCalls, QueueFull
from .codec import ACK, BLOCK1, CON, NON, RST, Options, Packet
from .sending import Confirmable, ConfirmableSender, nothing_done, nothing_waits
from .settings import Transmission
from .shared import CoapExchange, Exchanges

__all__ = ["CoapAnswer", "CoapEndpoint", "CoapRequest", "Confirmable", "QueueFull"]

MAX_OPEN: Final = 64
"""Requests of a client that are under way; a further one is answered with 5.03."""


class CoapRequest:
    """A whole request of the other side, to be answered once. ``query`` has each argument as it comes: ``c=pump7``."""

    __slots__ = (
        "_acknowledged", "_block1", "_endpoint", "_exchange", "accept", "answered", "block2", "code", "confirmable",
        "content_format", "max_age", "mid", "observe", "options", "path", "payload", "query", "token",
    )  # fmt: skip

    def __init__(self, endpoint: "CoapEndpoint", packet: Packet, exchange: CoapExchange) -> None:
        """Raises ``codec.BadOption``."""
        self._endpoint = endpoint
        self._exchange = exchange
        self._block1: Block | None = None
        self._acknowledged = False
        self.answered = False
        self.code = packet.code
        self.mid = packet.mid
        self.token = packet.token
        self.confirmable = packet.type == CON
        self.options = packet.options
        self.payload = packet.payload
        found = codec.read_options(packet.options)
        self.path = found.path
        self.query = found.query
        self.content_format = found.content_format
        self.accept = found.accept
        self.observe = found.observe
        self.max_age = found.max_age
        self._block1 = None if found.block1 < 0 else block(found.block1)
        self.block2 = None if found.block2 < 0 else block(found.block2)

    @property
    def resource(self) -> Resource:
        return self.code, self.path, self.query

    def argument(self, name: str) -> str | None:
        """Return the value of an argument of the query."""
        head = name + "="
        for each in self.query:
            if each.startswith(head):
                return each[len(head) :]
        return None

    def answer(
        self,
        code: int,
        payload: bytes = b"",
        content_format: int | None = None,
        options: Iterable[tuple[int, bytes]] = (),
    ) -> None:
        """Answer, now or later. A second answer is ignored."""
        if not self.answered:
            self.answered = True
            found = list(options)
            if content_format is not None:
                found.append((codec.CONTENT_FORMAT, codec.uint_bytes(content_format)))
            self._endpoint.answer(self, code, found, payload)

    def forget(self) -> None:
        """Give the request up without an answer; a repetition is then a new request."""
        self.answered = True
        self._endpoint.forget_request(self)


class CoapEndpoint:
    """The message layer of one address.

    ``serve`` receives each request of the other side. ``lost`` is called when the other side does not answer.
    ``begins`` is called when the first block of a large request has arrived; it returns 0, or a code that refuses the
    request. ``more`` returns a notification that may be sent now."""

    __slots__ = (
        "_begins", "_bodies", "_calls", "_due", "_ended", "_exchanges", "_link", "_peer", "_sender", "_serve",
        "_settings", "_timer", "_unanswered", "_unproved",
    )  # fmt: skip

    def __init__(
        self,
        link: GatewayLink,
        settings: Transmission,
        serve: Callable[[CoapRequest], None],
        lost: Callable[[], None],
        begins: Callable[[CoapRequest], int] | None = None,
        more: Callable[[], Confirmable | None] = nothing_waits,
    ) -> None:
        shared = link.shared
        assert isinstance(shared, Exchanges), "a gateway of this message layer has shared=Exchanges"
        self._exchanges = shared
        self._link = link
        self._settings = settings
        self._serve = serve
        self._begins = begins
        self._peer = link.sender
        self._ended = False
        self._sender = ConfirmableSender(link, settings, more, self._send_unproved, lost, self._set_timer)
        self._calls = CoapCalls(link, settings, self._sender, self._set_timer, shared)
        self._bodies = Bodies(link, settings, shared)
        self._unanswered: dict[CoapRequest, float] | None = None  # when an empty acknowledgement is due; 0: it was sent
        self._unproved: dict[CoapRequest, tuple[int, Options, bytes]] | None = None  # answers too large for the address
        self._timer: Pending | None = None
        self._due = 0.0

    # ------------------------------------------------------------------------------------------ what comes

    def received(self, data: bytes) -> None:
        """Take one datagram."""
        try:
            packet = codec.decode(data)
        except codec.MalformedCoap as error:
            self._link.drop("malformed_datagram", str(error))
            if error.reset >= 0:
                self._link.write(codec.empty(RST, error.reset))
            return
        if packet.type >= ACK:
            self._sender.on_reply(packet)
        elif packet.code == codec.EMPTY:
            if packet.type == CON:  # a ping
                self._link.alive()
                self._link.write(codec.empty(RST, packet.mid))
            else:
                self._stray("an empty message that does not acknowledge anything")
        elif codec.is_request(packet.code):
            self._on_request(packet, data)
        else:
            self._calls.on_answer(packet)
        self.advance()

    def _stray(self, what: str) -> None:
        self._link.drop("unexpected_datagram", what)

    def _on_request(self, packet: Packet, data: bytes) -> None:
        now, peer, settings = self._link.now(), self._peer, self._settings
        digest = hash(data)
        known = self._exchanges.find(peer, packet.mid, digest, now)
        if known is not None:
            if known.answer and packet.type == CON:
                self._link.write(known.answer)
            return
        exchange = CoapExchange(peer, packet.mid, digest, now + settings.exchange_lifetime)
        if self._exchanges.add(exchange, now, settings.max_exchanges, settings.max_exchanges_per_address):
            self._forgotten_early()
        try:
            request = CoapRequest(self, packet, exchange)
        except codec.BadOption as error:
            self._refuse(packet, exchange, error)
            return
        if self._unanswered is not None and len(self._unanswered) >= MAX_OPEN:
            request.answer(codec.UNAVAILABLE)
        elif request._block1 is not None:
            self._on_block(request, request._block1)
        elif not self._continue_body(request):
            self._serve(request)
        if not request.answered and not self._ended:
            self._await(request)

    def _refuse(self, packet: Packet, exchange: CoapExchange, error: codec.BadOption) -> None:
        self._exchanges.forget(exchange)
        if packet.type == CON:
            self._link.write(codec.encode(ACK, error.code, packet.mid, packet.token))
        else:  # section 5.4.1: a NON request is rejected without an answer
            self._stray(str(error))

    # Blocks

    def _on_block(self, request: CoapRequest, part: Block) -> None:
        """Add a block of a request; serve the request once it is complete."""
        if not part.num:
            refused = 0 if self._begins is None else self._begins(request)
            if refused:
                request.answer(refused)
                return
            self._bodies.begin(request.resource)
        refused = self._bodies.add(request.resource, part, request.payload)
        if refused == codec.TOO_LARGE:
            request.answer(refused, options=[(codec.SIZE1, codec.uint_bytes(self._settings.max_body_bytes))])
        elif refused:
            request.answer(refused)
        elif part.more:
            request.answer(codec.CONTINUE)
        else:
            request.payload = self._bodies.whole()
            self._serve(request)

    def _continue_body(self, request: CoapRequest) -> bool:
        """Answer a request for a later block of a stored answer."""
        wanted = request.block2
        if wanted is None or not wanted.num:
            return False
        body = self._bodies.find(request.resource)
        if body is None:
            if request.code == codec.GET:
                return False
            request.answer(codec.INCOMPLETE)  # to carry it out again would do more than to return the answer
            return True
        request.answered = True
        part = body.part(wanted, exponent_of(self._settings.block_size))
        if part is None:
            self._reply(request, codec.BAD_REQUEST, [], b"")
        else:
            self._reply(request, body.code, *part)
        return True

    def in_blocks(self, resource: Resource, options: Options, payload: bytes) -> tuple[int, Options, bytes]:
        """Return a notification, or its first block if it is larger than a block; the other blocks are kept."""
        return self._bodies.in_blocks(resource, codec.CONTENT, options, payload, None)

    # ------------------------------------------------------------------------------------------ answers to requests

    def answer(self, request: CoapRequest, code: int, options: Options, payload: bytes) -> None:
        """Answer a request; ``CoapRequest.answer`` calls this."""
        if self._ended:
            return
        if request._block1 is not None and not codec.is_error(code):
            first = request._block1
            size = exponent_of(self._settings.block_size)
            options.append((BLOCK1, Block(first.num, code == codec.CONTINUE, min(first.exponent, size)).encoded()))
        if not codec.is_error(code):
            code, options, payload = self._bodies.in_blocks(request.resource, code, options, payload, request.block2)
        else:
            self._exchanges.forget(request._exchange)
        self._reply(request, code, options, payload)

    def forget_request(self, request: CoapRequest) -> None:
        """``CoapRequest.forget`` calls this."""
        self._exchanges.forget(request._exchange)
        if self._unanswered is not None:
            self._unanswered.pop(request, None)

    def refuse_open(self, code: int) -> None:
        """Answer all requests that have no answer with an error."""
        for request in list(self._unanswered or ()):
            if self._unproved is None or request not in self._unproved:
                request.answer(code)

    def _reply(self, request: CoapRequest, code: int, options: Options, payload: bytes) -> None:
        unanswered = self._unanswered
        if request._acknowledged:
            token = request.token
            self._sender.send(
                Confirmable(lambda mid: codec.encode(CON, code, mid, token, options, payload), nothing_done)
            )
        elif not self._piggyback(request, code, options, payload):
            if self._unproved is None:
                self._unproved = {}
            self._unproved[request] = code, options, payload
            if unanswered is None or request not in unanswered:
                self._await(request)
            self._sender.ask_for_proof()
            return
        if unanswered is not None:
            unanswered.pop(request, None)

    def _piggyback(self, request: CoapRequest, code: int, options: Options, payload: bytes) -> bool:
        """Send the answer in the acknowledgement, if it is not too large for an address without a proof."""
        kind, mid = (ACK, request.mid) if request.confirmable else (NON, self.next_mid())
        data = codec.encode(kind, code, mid, request.token, options, payload)
        if not self._sender.fits(len(data)):
            return False
        self._keep(request, data)
        self._link.write(data)
        return True

    def _keep(self, request: CoapRequest, answer: bytes) -> None:
        most, most_each = self._settings.max_exchanges, self._settings.max_exchanges_per_address
        if self._exchanges.keep(request._exchange, answer, most, most_each):
            self._forgotten_early()

    def _forgotten_early(self) -> None:
        self._link.drop("exchanges_forgotten", "a request whose repetition would be carried out", "max_exchanges")

    def _await(self, request: CoapRequest) -> None:
        """Wait for an answer that comes later."""
        if self._unanswered is None:
            self._unanswered = {}
        due = self._link.now() + self._settings.ack_timeout / 2
        self._unanswered[request] = due if request.confirmable else 0.0
        self._set_timer()

    def _acknowledge(self, request: CoapRequest) -> None:
        """Acknowledge the request now; its answer will be a message of its own."""
        request._acknowledged = True
        acknowledgement = codec.empty(ACK, request.mid)
        self._keep(request, acknowledgement)
        self._link.write(acknowledgement)
        assert self._unanswered is not None
        self._unanswered[request] = 0.0
        ready = None if self._unproved is None else self._unproved.pop(request, None)
        if ready is not None:
            self._reply(request, *ready)

    def _send_unproved(self) -> None:
        """Send the answers that were too large, because the client has proved its address."""
        unproved, self._unproved = self._unproved, None
        for request, ready in (unproved or {}).items():
            self._reply(request, *ready)

    # ------------------------------------------------------------------------------------------ requests of the node

    def request(
        self,
        code: int,
        *,
        path: Iterable[str] = (),
        query: Iterable[str] = (),
        payload: bytes = b"",
        content_format: int | None = None,
        accept: int | None = None,
        observe: int | None = None,
        options: Iterable[tuple[int, bytes]] = (),
        answered: Callable[[CoapAnswer | None], None],
        notified: Callable[[CoapAnswer], None] | None = None,
        acknowledged: Callable[[], None] | None = None,
        token: bytes = b"",
    ) -> bytes:
        """Send a confirmable request, when the messages before it are acknowledged; return its token. ``answered``
        receives the whole answer, or None if there is none; ``notified`` receives the notifications that follow;
        ``acknowledged`` is called if the answer comes later than its acknowledgement. ``token``: the token of an
        observation, which the request takes over: a request that cancels an observation must have its token (RFC 7641,
        section 3.6). Raises QueueFull."""
        found = [*options, *((codec.URI_PATH, each.encode()) for each in path)]
        found += [(codec.URI_QUERY, each.encode()) for each in query]
        for number, value in ((codec.CONTENT_FORMAT, content_format), (codec.ACCEPT, accept), (codec.OBSERVE, observe)):
            if value is not None:
                found.append((number, codec.uint_bytes(value)))
        return self._calls.request(code, found, payload, answered, notified, acknowledged, token)

    def forget(self, token: bytes) -> None:
        """Accept no more answers or notifications to a request; the next one is answered with RST."""
        self._calls.forget(token)

    # ------------------------------------------------------------------------------------------ what goes

    def next_mid(self) -> int:
        """Return the message ID for a message that is not confirmable."""
        return self._sender.next_mid()

    @property
    def unanswered(self) -> bool:
        """Return whether a confirmable message has not been acknowledged yet."""
        return self._sender.due > 0

    def repeat_now(self) -> bool:
        """Repeat the message under way before that is due, because the other side is awake now. Return whether it was
        repeated."""
        return not self._ended and self._sender.repeat_now()

    def ping(self) -> None:
        """Ask whether the client is reachable; call ``lost`` if it is not."""
        self._sender.ping()

    def advance(self) -> None:
        """Send the next confirmable message, if none is under way."""
        if self._unproved:
            self._sender.ask_for_proof()
        self._sender.advance()

    # ------------------------------------------------------------------------------------------ time

    def _set_timer(self) -> None:
        """Set the one timer for whatever is due first; it may fire earlier than that."""
        dues = [each for each in (self._unanswered or {}).values() if each]
        dues += self._calls.dues()
        if self._sender.due:
            dues.append(self._sender.due)
        if not dues or self._ended:
            return
        due = min(dues)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        self._timer = self._link.after(max(due - self._link.now(), 0.0), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now = self._link.now()
        for request, due in list((self._unanswered or {}).items()):
            if due and due <= now:
                self._acknowledge(request)
        self._calls.on_time(now)
        self._sender.on_time(now)
        if not self._ended:
            self._set_timer()

    def end(self) -> None:
        """End the conversation: send nothing more, and leave open requests without an answer."""
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sender.end()
        self._bodies.end()
        self._unanswered = self._unproved = None
        self._calls.end()
