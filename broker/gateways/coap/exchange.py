"""The message layer of one address (RFC 7252, section 4 and 5): what comes is a Request or an Answer, once; what goes
is repeated until it is acknowledged.

Nothing here knows MQTT or a socket: the link of the conversation sends, and has the clock. At most one confirmable
message is under way (NSTART is 1); others wait in ``_queue``, and notifications with ``observe.Observations``, which
keeps the last state of each only. One timer serves everything that is due.

An address proves itself by acknowledging a message ID that it cannot guess. What is larger than what has come from it
waits for that; if there is nothing small enough, a ping asks for it, which every endpoint answers with RST."""

from collections import deque
from collections.abc import Callable, Iterable
from random import uniform
from secrets import randbelow, token_bytes
from typing import Final

from ...gateway import GatewayLink, Pending
from . import codec
from .blockwise import Assembly, Block, Body, Resource, Transfer, TransferFailed, block, exponent_of
from .codec import ACK, BLOCK1, CON, NON, RST, Options, Packet
from .settings import Transmission
from .shared import Exchange, Exchanges

MAX_WRONG: Final = 8
"""Answers with a wrong message ID until an address that is not proved counts as forged."""
MAX_BODIES: Final = 4
"""Answers that a client can be fetching in blocks at a time."""
MAX_OPEN: Final = 64
"""Confirmable requests of a client that are under way; a further one is answered with 5.03."""
TOKEN_BYTES: Final = 4
REPEATED_ANSWERS: Final = 8
"""Message IDs of answers and notifications that are remembered, so that their repetitions have no effect."""
FRESH_AFTER: Final = 128.0
"""Seconds after which a notification is newer whatever its number (RFC 7641, section 3.4)."""


class QueueFull(Exception):
    """``max_requests`` requests to the client wait."""


class Answer:
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


class Request:
    """A whole request of the other side, to be answered once. ``query`` has each argument as it comes: ``c=pump7``."""

    __slots__ = (
        "_acknowledged", "_block1", "_endpoint", "_exchange", "accept", "answered", "block2", "code", "confirmable",
        "content_format", "max_age", "mid", "observe", "options", "path", "payload", "query", "token",
    )  # fmt: skip

    def __init__(self, endpoint: "Endpoint", packet: Packet, exchange: Exchange) -> None:
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


class Outgoing:
    """A confirmable message of the node. ``build(mid)`` returns its bytes, and is asked again before a repetition only
    if ``newer`` says that there is a newer state. ``done``: the acknowledgement or RST; None: there is none."""

    __slots__ = ("build", "data", "done", "due", "mid", "newer", "timeout", "tries")

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


class Call:
    """A request of the node that is not answered, or observes. ``due``: when an acknowledged one is given up."""

    __slots__ = ("answered", "due", "notified", "seen_at", "sequence", "token", "transfer")

    def __init__(
        self, token: bytes, transfer: Transfer, answered: Callable[[Answer | None], None] | None,
        notified: Callable[[Answer], None] | None,
    ) -> None:  # fmt: skip
        self.token = token
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


def _nothing() -> Outgoing | None:
    return None


class Endpoint:
    """The message layer of one address.

    ``serve`` gets each request of the other side. ``lost`` is called when it does not answer. ``begins``: the first
    block of a large request has come; returns 0, or a code that refuses it. ``more`` returns a notification that may be
    sent now."""

    __slots__ = (
        "_assembly", "_begins", "_bodies", "_calls", "_current", "_due", "_ended", "_exchanges", "_link", "_lost",
        "_mid", "_more", "_peer", "_proved", "_queue", "_seen", "_serve", "_settings", "_timer", "_unanswered",
        "_wrong",
    )  # fmt: skip

    def __init__(
        self,
        link: GatewayLink,
        settings: Transmission,
        serve: Callable[[Request], None],
        lost: Callable[[], None],
        begins: Callable[[Request], int] | None = None,
        more: Callable[[], Outgoing | None] = _nothing,
    ) -> None:
        shared = link.shared
        assert isinstance(shared, Exchanges), "a gateway of this message layer has shared=Exchanges"
        self._exchanges = shared
        self._link = link
        self._settings = settings
        self._serve = serve
        self._lost = lost
        self._begins = begins
        self._more = more
        self._peer = link.peer
        self._mid = randbelow(0x10000)
        self._ended = False
        self._proved = False
        self._wrong = 0
        self._current: Outgoing | None = None
        self._queue: deque[Outgoing] | None = None
        self._calls: dict[bytes, Call] | None = None
        self._unanswered: dict[Request, float] | None = None  # when an empty acknowledgement is due
        self._assembly: Assembly | None = None
        self._bodies: dict[Resource, Body] | None = None
        self._seen: deque[int] | None = None
        self._timer: Pending | None = None
        self._due = 0.0

    # ------------------------------------------------------------------------------------------ what comes

    def received(self, data: bytes) -> None:
        """Take one datagram."""
        try:
            packet = codec.decode(data)
        except codec.Malformed as error:
            self._link.drop("malformed_datagram", str(error))
            if error.reset >= 0:
                self._write(codec.empty(RST, error.reset))
            return
        if packet.type >= ACK:
            self._on_reply(packet)
        elif packet.code == codec.EMPTY:
            if packet.type == CON:  # a ping
                self._link.alive()
                self._write(codec.empty(RST, packet.mid))
            else:
                self._stray("an empty message that is no acknowledgement")
        elif codec.is_request(packet.code):
            self._on_request(packet, data)
        else:
            self._on_answer(packet)
        self.advance()

    def _stray(self, what: str) -> None:
        self._link.drop("unexpected_datagram", what)

    def _on_request(self, packet: Packet, data: bytes) -> None:
        now, peer, settings = self._link.now(), self._peer, self._settings
        digest = hash(data)
        known = self._exchanges.find(peer, packet.mid, digest, now)
        if known is not None:
            if known.answer and packet.type == CON:
                self._write(known.answer)
            return
        exchange = Exchange(peer, packet.mid, digest, now + settings.exchange_lifetime)
        if self._exchanges.add(exchange, now, settings.max_exchanges, settings.max_exchanges_per_address):
            self._link.drop("exchanges_forgotten", "a request whose repetition would be carried out", "max_exchanges")
        try:
            request = Request(self, packet, exchange)
        except codec.BadOption as error:
            self._refuse(packet, exchange, error)
            return
        if self._unanswered is not None and len(self._unanswered) >= MAX_OPEN:
            request.answer(codec.UNAVAILABLE)
        elif request._block1 is not None:
            self._on_block(request, request._block1)
        elif not self._continue_body(request):
            self._serve(request)
        if not request.answered and request.confirmable:
            if self._unanswered is None:
                self._unanswered = {}
            self._unanswered[request] = now + settings.ack_timeout / 2
            self._set_timer()

    def _refuse(self, packet: Packet, exchange: Exchange, error: codec.BadOption) -> None:
        self._exchanges.forget(exchange)
        if packet.type == CON:
            self._write(codec.encode(ACK, error.code, packet.mid, packet.token))
        else:  # section 5.4.1: a NON request is rejected without an answer
            self._stray(str(error))

    # Blocks

    def _on_block(self, request: Request, part: Block) -> None:
        """Take a block of a request; serve it once it is whole."""
        if not part.num:
            refused = self._begin(request)
            if refused:
                request.answer(refused)
                return
        assembly = self._assembly
        if assembly is None or assembly.resource != request.resource:
            request.answer(codec.INCOMPLETE)
            return
        size = len(request.payload)
        settings = self._settings
        if len(assembly) + size > settings.max_body_bytes:
            self._drop_assembly()
            self._link.drop("body_too_large", "a request in blocks", "max_body_bytes")
            request.answer(codec.TOO_LARGE, options=[(codec.SIZE1, codec.uint_bytes(settings.max_body_bytes))])
            return
        if not self._charge(size):
            self._drop_assembly()
            request.answer(codec.UNAVAILABLE)
            return
        refused = assembly.add(part, request.payload)
        if refused:
            self._exchanges.body_bytes -= size
            request.answer(refused)
            return
        if part.more:
            request.answer(codec.CONTINUE)
            return
        request.payload = assembly.body()
        self._drop_assembly()
        self._serve(request)

    def _begin(self, request: Request) -> int:
        self._drop_assembly()
        refused = 0 if self._begins is None else self._begins(request)
        if not refused:
            self._assembly = Assembly(request.resource, self._link.now())
        return refused

    def _drop_assembly(self) -> None:
        if self._assembly is not None:
            self._exchanges.body_bytes -= len(self._assembly)
            self._assembly = None

    def _charge(self, size: int) -> bool:
        """Count bytes of a body, if all bodies of the listener have room for them."""
        if self._exchanges.body_bytes + size > self._settings.max_bodies_bytes:
            self._link.drop("bodies_full", "a body that is transferred in blocks", "max_bodies_bytes")
            return False
        self._exchanges.body_bytes += size
        return True

    def _continue_body(self, request: Request) -> bool:
        """Answer a request for a later block of an answer that is kept."""
        wanted = request.block2
        if wanted is None or not wanted.num:
            return False
        body = None if self._bodies is None else self._bodies.get(request.resource)
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

    def in_blocks(self, resource: Resource, code: int, options: Options, payload: bytes, wanted: Block | None
                  ) -> tuple[int, Options, bytes]:  # fmt: skip
        """Return an answer, or its first block if it is larger than a block; it is kept for the others."""
        exponent = exponent_of(self._settings.block_size)
        if wanted is not None:
            exponent = min(exponent, wanted.exponent)
        if len(payload) <= 16 << exponent and (wanted is None or not wanted.num):
            return code, options, payload
        body = Body(code, options, payload)
        part = body.part(wanted or Block(0, False, exponent), exponent)
        if part is None:
            return codec.BAD_REQUEST, [], b""
        if not self._keep(resource, body):
            return codec.UNAVAILABLE, [], b""
        return code, *part

    def _keep(self, resource: Resource, body: Body) -> bool:
        bodies = self._bodies
        if bodies is None:
            bodies = self._bodies = {}
        old = bodies.pop(resource, None)
        if old is None and len(bodies) >= MAX_BODIES:
            old = bodies.pop(next(iter(bodies)))
        if old is not None:
            self._exchanges.body_bytes -= len(old.payload)
        if not self._charge(len(body.payload)):
            return False
        bodies[resource] = body
        return True

    # ------------------------------------------------------------------------------------------ answers to requests

    def answer(self, request: Request, code: int, options: Options, payload: bytes) -> None:
        """Answer a request; ``Request.answer`` calls this."""
        if self._ended:
            return
        if request._block1 is not None and not codec.is_error(code):
            first = request._block1
            size = exponent_of(self._settings.block_size)
            options.append((BLOCK1, Block(first.num, code == codec.CONTINUE, min(first.exponent, size)).encoded()))
        if not codec.is_error(code):
            code, options, payload = self.in_blocks(request.resource, code, options, payload, request.block2)
        else:
            self._exchanges.forget(request._exchange)
        self._reply(request, code, options, payload)

    def _reply(self, request: Request, code: int, options: Options, payload: bytes) -> None:
        if self._unanswered is not None:
            self._unanswered.pop(request, None)
        token = request.token
        if not request._acknowledged:
            kind, mid = (ACK, request.mid) if request.confirmable else (NON, self.next_mid())
            data = codec.encode(kind, code, mid, token, options, payload)
            if self.fits(len(data)):
                request._exchange.answer = data
                self._write(data)
                return
            self._acknowledge(request)
        self.send(Outgoing(lambda mid: codec.encode(CON, code, mid, token, options, payload), self._answer_taken))

    def _acknowledge(self, request: Request) -> None:
        """The answer comes later, as a message of its own."""
        request._acknowledged = True
        if request.confirmable:
            request._exchange.answer = codec.empty(ACK, request.mid)
            self._write(request._exchange.answer)

    def _answer_taken(self, packet: Packet | None) -> None:
        pass  # RST: the client has forgotten its request

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
        answered: Callable[[Answer | None], None],
        notified: Callable[[Answer], None] | None = None,
    ) -> bytes:
        """Send a confirmable request, when those before it are acknowledged; return its token. ``answered`` gets the
        whole answer, or None if there is none; ``notified`` the notifications that follow. Raises QueueFull."""
        calls = self._calls
        if calls is None:
            calls = self._calls = {}
        if len([each for each in calls.values() if each.answered is not None]) >= self._settings.max_requests:
            raise QueueFull
        found = [*options, *((codec.URI_PATH, each.encode()) for each in path)]
        found += [(codec.URI_QUERY, each.encode()) for each in query]
        for number, value in ((codec.CONTENT_FORMAT, content_format), (codec.ACCEPT, accept), (codec.OBSERVE, observe)):
            if value is not None:
                found.append((number, codec.uint_bytes(value)))
        settings = self._settings
        transfer = Transfer(code, found, payload, exponent_of(settings.block_size), settings.max_body_bytes)
        call = Call(self._new_token(), transfer, answered, notified)
        calls[call.token] = call
        self._send_call(call, call.token)
        return call.token

    def _new_token(self) -> bytes:
        while True:
            token = token_bytes(TOKEN_BYTES)
            if self._calls is None or token not in self._calls:
                return token

    def forget(self, token: bytes) -> None:
        """Take no answers or notifications to a request any more; the next one is answered with RST."""
        for key, call in list((self._calls or {}).items()):
            if call.token == token:
                self._forget_token(key)

    def _forget_token(self, token: bytes) -> None:
        if self._calls is not None:
            self._calls.pop(token, None)
            if not self._calls:
                self._calls = None

    def _send_call(self, call: Call, token: bytes) -> None:
        """Send the next message of a request; ``token``: its own, so that a late answer is not taken for another."""
        options, payload = call.transfer.message()
        code = call.transfer.code

        def done(packet: Packet | None) -> None:
            if packet is None:
                self._finish(token, None)
            elif packet.type == RST:
                self._finish(token, Answer(0, [], b""))
            elif packet.code == codec.EMPTY:
                call.due = self._link.now() + self._settings.answer_timeout
                self._set_timer()
            else:
                self._take_answer(packet)

        # The blocks of a body follow each other: those of two bodies for one resource cannot be told apart.
        outgoing = Outgoing(lambda mid: codec.encode(CON, code, mid, token, options, payload), done)
        self.send(outgoing, next_one=token != call.token)

    def _on_answer(self, packet: Packet) -> None:
        """Take an answer that is a message of its own, or a notification."""
        if self._seen is not None and packet.mid in self._seen:
            if packet.type == CON:
                self._write(codec.empty(ACK, packet.mid))
            return
        if self._calls is None or packet.token not in self._calls:
            self._stray("an answer to no request")
            if packet.type == CON:
                self._write(codec.empty(RST, packet.mid))
            return
        if self._seen is None:
            self._seen = deque(maxlen=REPEATED_ANSWERS)
        self._seen.append(packet.mid)
        if packet.type == CON:
            self._write(codec.empty(ACK, packet.mid))
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
        try:
            payload = call.transfer.answered(packet)
        except TransferFailed as error:
            self._link.drop("transfer_failed", str(error), "max_body_bytes")
            self._finish(packet.token, None)
            return
        if payload is not None:
            self._finish(packet.token, Answer(packet.code, packet.options, payload))
            return
        if packet.token != call.token:
            self._forget_token(packet.token)
        token = self._new_token()
        assert self._calls is not None
        self._calls[token] = call
        call.due = 0.0
        self._send_call(call, token)

    def _finish(self, token: bytes, answer: Answer | None) -> None:
        """A request has its answer, or its observation another state."""
        call = None if self._calls is None else self._calls.get(token)
        if call is None:
            return
        call.due = 0.0
        observes = call.notified is not None and answer is not None and 0 < answer.code < codec.BAD_REQUEST
        observes = observes and (call.sequence >= 0 or token != call.token)
        if not observes:
            self.forget(call.token)
        elif token != call.token:
            self._forget_token(token)
        answered, call.answered = call.answered, None
        if answered is not None:
            answered(answer)
        elif call.notified is not None and answer is not None:
            call.notified(answer)

    # ------------------------------------------------------------------------------------------ what goes

    def next_mid(self) -> int:
        self._mid = self._mid + 1 & 0xFFFF
        return self._mid

    def fits(self, size: int) -> bool:
        """Return whether the client may be sent so many bytes now."""
        return self._proved or not 0 <= self._link.room < size

    def _write(self, data: bytes) -> None:
        self._link.write(data)

    def send(self, outgoing: Outgoing, next_one: bool = False) -> None:
        """Send a confirmable message when it is its turn."""
        if self._ended:
            return
        if self._queue is None:
            self._queue = deque()
        if next_one:
            self._queue.appendleft(outgoing)
        else:
            self._queue.append(outgoing)
        self.advance()

    def ping(self) -> None:
        """Ask whether the client is there; ``lost`` is called if not."""
        if self._current is None and not self._ended:
            self._begin_sending(_ping())

    def advance(self) -> None:
        """Send the next confirmable message, if none is under way."""
        if self._current is not None or self._ended:
            return
        if self._queue:
            following: Outgoing | None = self._queue.popleft()
        else:
            self._queue = None
            following = self._more()
        if following is not None:
            self._begin_sending(following)

    def _begin_sending(self, outgoing: Outgoing) -> None:
        outgoing.mid = self.next_mid()
        outgoing.data = outgoing.build(outgoing.mid)
        if not self.fits(len(outgoing.data)):
            if self._queue is None:
                self._queue = deque()
            self._queue.appendleft(outgoing)
            if not self.fits(4):
                return  # the next datagram of the client makes room
            outgoing = _ping()
            outgoing.mid = self.next_mid()
            outgoing.data = outgoing.build(outgoing.mid)
        settings = self._settings
        outgoing.timeout = settings.ack_timeout * uniform(1.0, settings.ack_random_factor)
        outgoing.due = self._link.now() + outgoing.timeout
        self._current = outgoing
        self._write(outgoing.data)
        self._set_timer()

    def _on_reply(self, packet: Packet) -> None:
        """Take an acknowledgement or RST."""
        current = self._current
        if current is None or packet.mid != current.mid:
            self._wrong_reply()
            return
        if packet.type == RST and packet.code != codec.EMPTY:
            self._stray("RST with content")
            return
        self._current = None
        self._link.alive()
        if not self._proved:
            self._proved = True
            self._link.proved()
        current.done(packet)

    def _wrong_reply(self) -> None:
        """A late reply, or the guess of someone who does not receive at this address."""
        self._stray("a reply to no message")
        if self._current is None or self._proved:
            return
        self._wrong += 1
        self._mid = randbelow(0x10000)
        if self._wrong >= MAX_WRONG:
            self._give_up()

    # ------------------------------------------------------------------------------------------ time

    def _set_timer(self) -> None:
        """Have one timer, for what is due first; it may fire earlier than that."""
        dues = [each for each in (self._unanswered or {}).values() if each]
        dues += [each.due for each in (self._calls or {}).values() if each.due]
        if self._current is not None:
            dues.append(self._current.due)
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
                assert self._unanswered is not None
                self._unanswered[request] = 0.0
        for token, call in list((self._calls or {}).items()):
            if call.due and call.due <= now:
                self._finish(token, None)
        current = self._current
        if current is not None and current.due <= now:
            self._repeat(current, now)
        if not self._ended:
            self._set_timer()

    def _repeat(self, current: Outgoing, now: float) -> None:
        """Repeat a message, or give the client up."""
        if current.tries >= self._settings.max_retransmit:
            self._give_up()
            return
        current.tries += 1
        current.timeout *= 2
        current.due = now + current.timeout
        if current.newer is not None and current.newer():
            current.mid = self.next_mid()
            current.data = current.build(current.mid)
        if self.fits(len(current.data)):
            self._write(current.data)

    def _give_up(self) -> None:
        current, self._current = self._current, None
        self._link.drop("no_answer", "the client has not answered max_retransmit repetitions", "max_retransmit")
        if current is not None:
            current.done(None)
        self._lost()
        self.advance()

    def end(self) -> None:
        """The conversation is over: nothing is sent any more, and open requests have no answer."""
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drop_assembly()
        for body in (self._bodies or {}).values():
            self._exchanges.body_bytes -= len(body.payload)
        calls = dict.fromkeys((self._calls or {}).values())
        self._current = self._queue = self._calls = self._unanswered = self._bodies = None
        for call in calls:
            if call.answered is not None:
                call.answered(None)


def _ping() -> Outgoing:
    return Outgoing(lambda mid: codec.empty(CON, mid), lambda packet: None)
