"""QueuePieces: the queue of one session, which another node fetches piece by piece.

Each question names the last piece that the other node has, and this node drops that piece before it creates the next
one. A repeated question gets the same piece again::

    the node that fetches               this node: queue m1 m2 m3 m4, two messages in a piece
    I have 0            ──────────────► makes piece 1: m1 m2
                        ◄────────────── piece 1; the answer is lost
    I have 0            ──────────────► piece 1 again
    I have 1            ──────────────► drops m1 m2, makes piece 2: m3 m4

If a piece is read from disk so slowly that the other node no longer waits, its messages stay in memory for the repeated
question. Otherwise each question would take just as long, and the queue would never move.

``Outgoing`` hands over sessions in this way, and ``KeptStays`` the messages that arrived after a session had left.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from ...mqtt.message import Delivery
from ...persistence.log import records
from ...persistence.record_mapping import body_of
from ...persistence.stored_message import StoredMessage, stored_of
from ...session.protocols import EXPIRED, UNREADABLE
from ...session.session import Session
from ..context import ClusterContext
from .given_pieces import key_of
from .session_transfer import BUSY, MORE, PIECE_BYTES, Piece, moved_delivery


class Fetched(Protocol):
    """The progress of the other node: the fields of ``Fetch``."""

    @property
    def taken(self) -> int: ...

    @property
    def doubt(self) -> list[tuple[int, str]]: ...


class QueuePieces:
    """The pieces of one session's queue. ``Leaving`` and ``KeptStay`` have one each.

    ``sent`` has the messages of piece ``number``, the last one; they are no longer in the queue. ``lock`` admits one
    question at a time. ``on_sent`` is called with each new piece before it leaves, and ``on_dropped`` when the other
    node has confirmed one. ``read_slowly`` has the messages of ``sent``, by number, that took long to read.
    """

    def __init__(self, context: ClusterContext, session: Session) -> None:
        self._context = context
        self._broker = context.broker
        self.session = session
        self.number = 0
        self.sent: list[Delivery] = []
        self.lock = asyncio.Lock()
        self.read_slowly: dict[int, records.StoredBody] = {}
        self.on_sent: Callable[[], None] = lambda: None
        self.on_dropped: Callable[[], None] = lambda: None

    async def next(self, ask: Fetched, is_current: Callable[[], bool]) -> Piece | None:
        """Return the next piece, or the same one again; ``None`` if the queue is empty. ``is_current`` returns whether
        the other node still fetches this queue. If it does not, or while this node cannot store which pieces it has
        sent, the answer is ``BUSY``."""
        stored = self._context.tables.stored
        # A question that is late or repeated must not begin another piece, which no node would take.
        if ask.taken >= self.number:
            self._drop_sent(ask)
            if not await stored():
                return Piece(BUSY)
            await self.load()
            if not is_current():
                return Piece(BUSY)
            self._fill()
            if not self.sent:
                return Piece(BUSY) if self.session.queued else None  # the messages were paged out again
            self.number = ask.taken + 1
            self.on_sent()
        # If this node dies now, it knows after its restart, or on the node that has its copy, what it has sent.
        return await self._made() if self.sent and await stored() else Piece(BUSY)

    def send_again(self, deliveries: list[Delivery], ask: Fetched) -> None:
        """Make these messages, which were in flight, the first piece."""
        self.sent = deliveries
        self.number = ask.taken + 1 if deliveries else ask.taken
        if deliveries:
            self.on_sent()

    def drop_doubted(self, ask: Fetched) -> None:
        """Drop the messages that the other node has already received, although this node died before it could note
        that."""
        session = self.session
        queue = session.queue
        doubt = doubted(ask)
        if doubt and queue is not None and not self.sent:
            taken = [each for each in queue if key_of(each) in doubt]
            kept = [each for each in queue.clear() if key_of(each) not in doubt] if taken else []
            for delivery in kept:
                queue.push(delivery)
            if session.journal is not None:
                session.journal.done(session, taken)

    def take_back(self) -> None:
        """Return the last piece to the queue, because no node has confirmed it."""
        session = self.session
        queue = session.new_queue() if session.queue is None and self.sent else session.queue
        if queue is not None:
            for delivery in reversed(self.sent):
                queue.push_front(delivery)
        self._forget_sent()

    def session_ended(self) -> None:
        """Note that the session has ended, so that its last piece is no longer needed."""
        if self.sent and self._broker.durability is not None:
            self._broker.durability.sessions.done(self.session, [each for each in self.sent if each.qos])

    def _drop_sent(self, ask: Fetched) -> None:
        session = self.session
        if self.sent:
            if session.journal is not None:
                session.journal.done(session, [each for each in self.sent if each.qos])
            self.on_dropped()
        self._forget_sent()
        self.number = ask.taken

    def _forget_sent(self) -> None:
        self.sent = []
        self.read_slowly = {}

    async def load(self) -> None:
        """Load the messages of the next piece that are only on disk."""
        durability = self._broker.durability
        queue = self.session.queue
        if queue is not None and durability is not None:
            piece = islice(queue, self._context.piece_messages)
            paged = [stored_of(each.message) for each in piece if each.message.paged]
            await durability.paging.load([each for each in paged if each is not None])

    def _fill(self) -> None:
        """Move messages from the queue to the next piece."""
        session = self.session
        queue = session.queue
        now = self._context.clock.now()
        most = self._context.piece_messages
        size = 0
        while queue is not None and len(self.sent) < most and size < PIECE_BYTES:
            delivery = queue.pop()
            if delivery is None:
                break
            message = delivery.message
            stored = stored_of(message)
            lost = stored is not None and stored.lost
            if message.expired(now) or (message.paged and lost):
                if session.journal is not None and delivery.qos:
                    session.journal.done(session, (delivery,))
                self._broker.delivery_dropped(session, delivery, UNREADABLE if lost else EXPIRED)
                continue
            if message.paged:
                queue.push_front(delivery)
                break
            self.sent.append(delivery)
            size += delivery.size
        if queue is not None and not len(queue):
            session.queue = None

    async def _made(self) -> Piece:
        """Return the current piece. If it is requested again, some of its messages may have been paged out."""
        session = self.session
        durability = self._broker.durability
        bodies = dict(self.read_slowly)

        def take(stored: StoredMessage) -> None:
            bodies[stored.number] = body_of(stored.message)

        number, sent = self.number, self.sent
        if durability is not None:
            found = [stored_of(each.message) for each in sent]
            loop = asyncio.get_running_loop()
            began = loop.time()
            await durability.paging.load(
                [each for each in found if each is not None and each.number not in bodies], take
            )
            if loop.time() - began > self._context.settings.call_timeout / 2 and self.sent is sent:
                self.read_slowly = bodies
        now = self._context.clock.now()
        moved = []
        for each in sent:
            stored = stored_of(each.message)
            if stored is not None and stored.lost:
                self._broker.delivery_dropped(session, each, UNREADABLE)
            else:
                moved.append(moved_delivery(each, now, None if stored is None else bodies[stored.number]))
        return Piece(MORE, number, moved)


def doubted(ask: Fetched) -> set[tuple[int, str]]:
    """Return the doubted messages: the other node does not know whether this one has noted their arrival."""
    return {(number, group) for number, group in ask.doubt}
