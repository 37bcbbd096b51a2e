"""Outgoing: sessions that another node gets from here. What the steps are says ``handover``.

Until the other node has the key, the session is this node's: its client is gone, nothing of it is lost, and if the
other does not come back it goes on here.

When the session has gone, nodes that were Stopped meanwhile may still send here what is for it. A session of the node's
own, ``turns.KEPT``, takes that until their marks have come (``turns``), and the session's node fetches it. There is one
for each stay of the session: it may come back here before all is fetched, and go again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from ..channel.identity import owner_before
from ..channel.session_setup import take_over
from ..core.cluster import CallFailed, NodeUnreachable
from ..loop.timers import Timer
from ..mqtt.message import Delivery
from ..persistence.log import records
from ..persistence.record_mapping import body_of
from ..persistence.stored_message import StoredMessage, stored_of
from ..session.client_info import ClientInfo
from ..session.protocols import EXPIRED, UNREADABLE
from ..session.session import Session
from .calls import Calls
from .context import ClusterContext
from .given_pieces import GivenPieces, key_of
from .members import Members
from .nats import NoAnswer, Unavailable, Unknown
from .peer import Peer
from .session_transfer import (
    BUSY,
    DISCARDED,
    END,
    GONE,
    MORE,
    NOT_OURS,
    OF_ANOTHER,
    PIECE_BYTES,
    READY,
    Done,
    Fetch,
    Keeper,
    Offer,
    Piece,
    Prepare,
    Prepared,
    moved_delivery,
    moved_session,
    with_qos0,
)
from .tasks import Tasks
from .turns import KEPT, Stay, Turns, kept_name

if TYPE_CHECKING:
    from .ownership import Ownership

logger = logging.getLogger(__name__)

PREPARE: Final = "handover.prepare"
WANTED: Final = "handover.wanted"
FETCH: Final = "handover.fetch"
DONE: Final = "handover.done"
OFFER: Final = "handover.offer"
CANCEL: Final = "handover.cancel"

FRESH: Final = "fresh"
"""Setting ``cluster.takeover``: a client need not wait for a node that is away."""

TABLE: Final = "handover_kept"
_OFFER_AGAIN: Final = 5.0


class KeptRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_kept``, by ``turns.kept_name``: the node where the session went, the epoch of its key
    there, which nodes may still send here what is for it, and the epoch with which it had come here."""

    node: str
    epoch: int
    late: list[str]
    begun: int = 0


class Fetched(Protocol):
    """How far the other node is: as in ``Fetch``."""

    @property
    def taken(self) -> int: ...

    @property
    def doubt(self) -> list[tuple[int, str]]: ...


class Leaving:
    """A session that another node gets. ``confirmed``: that node has it; ``begun_again``: it has asked once more.
    ``kept``: it has gone, and ``session`` is what takes the rest."""

    def __init__(self, session: Session, node: str, move: str, kept: KeptRow | None = None) -> None:
        self.session = session
        name = session.client_id
        self.client_id = name if kept is None else name.removeprefix(KEPT).partition(":")[2]
        self.kept = kept
        self.node = node
        self.move = move
        # Of its key, when it was last this node's; 0: not known.
        self.last_epoch = 0
        # Attempts of nodes that it was to go to before, and which of these nodes had asked for it: another node may
        # have begun it anew meanwhile and given it back.
        self.earlier: set[str] = set()
        self.asked: set[str] = set()
        self.confirmed = False
        self.begun_again = False
        # Of its key there, once it is confirmed.
        self.epoch = 0
        # The key says that it is the other node's, which has not asked for it; or this one does not remember that.
        self.anew = False
        # It began anew there while this node was away. What others keep for this one does not go along.
        self.apart = False
        # No new message comes to it any more.
        self.closed = False
        self.will_due = 0.0
        self.limits = session.limits
        # The number of the last piece, and what it had.
        self.number = 0
        self.sent: list[Delivery] = []
        self.left = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.lock = asyncio.Lock()


class Outgoing:
    """``leaves``: whether a session is on its way; ``left``: when it is not any more."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        turns: Turns,
        is_coming: Callable[[str], bool],
        arrives: Callable[[str], bool],
        given: GivenPieces,
    ) -> None:
        """``is_coming``: whether a session cannot go on to another node yet; ``arrives``: whether one that is here is
        just coming from another node."""
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._turns = turns
        self._kept = context.tables.open(TABLE, KeptRow)
        self._is_coming = is_coming
        self._arrives = arrives
        self._given = given
        given.is_under_way = self._is_under_way
        self._leaving: dict[str, Leaving] = {}
        self._tasks = Tasks()
        # Set by ``handover``: which node does not know that a session is all here, what nodes keep for one, and
        # ``Prepared.doubts``; it may go, it stays, it has gone, and whether as it should.
        self.untold: Callable[[str], dict[str, bool]] = lambda client_id: {}
        self.keepers: Callable[[str], list[Keeper]] = lambda client_id: []
        self.doubts: Callable[[str], dict[str, list[tuple[int, str]]]] = lambda client_id: {}
        # What of its messages waits for those, by the node whose messages these are; it goes to this session, and
        # whether there was any; it waits no longer.
        self.held: Callable[[str], dict[str, Session]] = lambda client_id: {}
        self.release_held: Callable[[str, Callable[[], Session | None], bool], Awaitable[bool]]
        self.end_held: Callable[[str, Session | None], None] = lambda client_id, session: None
        self.on_leaving: Callable[[str], None] = lambda client_id: None
        self.on_kept: Callable[[str], None] = lambda client_id: None
        self.on_gone: Callable[[str, bool], None] = lambda client_id, moved: None
        self.step: Callable[[str], None] = lambda name: None
        self.ownership: Ownership
        calls.serve(PREPARE, self._prepare)
        calls.serve(FETCH, self._fetch)
        calls.serve(DONE, self._done)
        calls.serve(CANCEL, self._cancel)
        members.on_removed.append(self._removed)

    def load(self) -> None:
        """The node has its sessions."""
        for name, row in list(self._kept.items()):
            session = self._broker.sessions.internal.get(name)
            if session is None:
                self._kept.remove(name)
            else:
                for subscription in session.subscriptions.values():
                    self._broker.router.unsubscribe(subscription)
                self._add_kept(session, row)

    def stays(self, client_id: str) -> list[Stay]:
        """Those of a client's session that are over, and of which something is kept."""
        found = [each for each in self._leaving.values() if each.kept is not None and each.client_id == client_id]
        return [Stay(each.session, each.kept.begun, each.kept.epoch) for each in found if each.kept is not None]

    @property
    def kept_sessions(self) -> int:
        """Sessions that have gone, for which nodes that are away may still send something here."""
        return sum(each.kept is not None for each in self._leaving.values())

    def _add_kept(self, session: Session, row: KeptRow) -> None:
        leaving = self._leaving[session.client_id] = Leaving(session, row.node, "", row)
        leaving.confirmed = True

    async def stop(self) -> None:
        for leaving in self._leaving.values():
            if leaving.timer is not None:
                leaving.timer.cancel()
        await self._tasks.stop()

    def leaves(self, client_id: str) -> bool:
        return client_id in self._leaving

    def is_closed(self, client_id: str) -> bool:
        """Return whether this node accepts no new messages for a session that another node has."""
        leaving = self._leaving.get(client_id)
        return leaving is not None and leaving.closed

    async def left(self, client_id: str, timeout: float) -> None:
        leaving = self._leaving.get(client_id)
        if leaving is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await leaving.left.wait()

    # ------------------------------------------------------------------- prepare

    async def _prepare(self, node: str, argument: bytes) -> bytes:
        ask = self._calls.decoded(node, argument, Prepare)
        if ask.clean_start and not await self._is_wanted(node, ask):
            prepared = Prepared(BUSY)
        else:
            prepared = self._prepared(node, ask)
        # What is given is on this disk: should this node die now, no link brings it here once more, and what is over
        # does not come back. With a disk that is full the client is not kept from going elsewhere: it is the key then
        # that tells this node after its next start.
        given = prepared.state in (READY, GONE, DISCARDED)
        if given and not await self._context.tables.stored() and prepared.state != READY:
            earlier = {**prepared.earlier, self._context.node: False}
            prepared = msgspec.structs.replace(prepared, earlier=earlier)
        return msgspec.msgpack.encode(prepared)

    async def _is_wanted(self, node: str, ask: Prepare) -> bool:
        """Whether the client still waits there. It may have gone, and have its session back at this node, before a
        question comes that ends this."""
        session = self._broker.sessions.get(ask.client_id)
        if session is None:
            return True
        client = session.client
        timeout = self._context.settings.call_timeout / 2
        try:
            waits = await self._calls.call(node, WANTED, ask.move.encode(), timeout)
        except (NodeUnreachable, CallFailed):
            return False
        return bool(waits) and self._broker.sessions.get(ask.client_id) is session and session.client is client

    def _prepared(self, node: str, ask: Prepare) -> Prepared:
        client_id = ask.client_id
        now = self._context.clock.now()
        leaving = self._leaving.get(client_id)
        if leaving is not None:
            same = leaving.move == ask.move and leaving.node == node and not leaving.confirmed
            if not same and leaving.node == node and not leaving.begun_again:
                # Of its attempt before nothing can be left but a late write.
                leaving.begun_again = True
                self._look(leaving)
            return self._ready(leaving, now) if same else Prepared(BUSY)
        if self.ownership.busy(client_id) or self._is_coming(client_id):
            return Prepared(BUSY)
        if not self.ownership.has(client_id, ask.revision):
            # With another revision the question is late: this is a session that has begun, or come here, since.
            return Prepared(NOT_OURS)
        session = self._broker.sessions.get(client_id)
        if session is None:
            return self._over(client_id, GONE)
        owner = owner_before(session, ask.owner, ask.username) if ask.check_owner else ""
        if owner:
            return Prepared(OF_ANOTHER, f"the session belongs to {owner}")
        channel = self._context.channels.channels.get(client_id)
        if channel is not None and ask.absent:
            return Prepared(BUSY)
        if channel is not None:
            take_over(channel, ask.clean_start, node)
        elif ask.clean_start:
            self._broker.life.discard_session(session, now)
        if ask.clean_start:
            return self._over(client_id, DISCARDED)
        session = self._broker.sessions.get(client_id)
        if session is None:
            return self._over(client_id, GONE)
        leaving = self._suspend(session, node, ask.move)
        self.ownership.key_may_go(client_id)
        self.step("suspended")
        return self._ready(leaving, now)

    def _over(self, client_id: str, state: str) -> Prepared:
        """There is no session any more, and the key is the other node's, if it takes it."""
        self.ownership.key_may_go(client_id)
        self.ownership.settle_soon(client_id)
        return Prepared(state, earlier=self.untold(client_id))

    def _suspend(self, session: Session, node: str, move: str) -> Leaving:
        leaving = Leaving(session, node, move)
        leaving.last_epoch = self.last_epoch(session.client_id)
        self._leaving[session.client_id] = leaving
        timer = session.will_timer
        leaving.will_due = timer.when if isinstance(timer, Timer) else 0.0
        self._broker.life.suspend_session(session)
        session.limits = with_qos0(session.limits)
        self.on_leaving(session.client_id)
        self._wait_for_key(leaving)
        return leaving

    def _ready(self, leaving: Leaving, now: float) -> Prepared:
        moved = moved_session(leaving.session, leaving.will_due, now)
        client_id = leaving.client_id
        return Prepared(READY, "", moved, self.keepers(client_id), self.untold(client_id), self.doubts(client_id))

    def last_epoch(self, client_id: str) -> int:
        """Of the key of a session that is here, or goes from here, when it was last this node's; 0: not known."""
        leaving = self._leaving.get(client_id)
        if leaving is not None:
            return leaving.last_epoch
        place = self.ownership.place(client_id)
        return place.revision if place is not None and self.ownership.is_ours(place) else 0

    # ------------------------------------------------------ who has the key then

    def _wait_for_key(self, leaving: Leaving) -> None:
        wait = self._context.settings.takeover_timeout
        leaving.timer = asyncio.get_running_loop().call_later(wait, self._look, leaving)

    def _look(self, leaving: Leaving) -> None:
        if leaving.timer is None:
            return  # it is under way
        leaving.timer.cancel()
        leaving.timer = None
        if not leaving.confirmed and not leaving.anew and self._leaving.get(leaving.session.client_id) is leaving:
            self._tasks.run(self._settle(leaving))

    async def _settle(self, leaving: Leaving) -> None:
        """The other node has not come back. A write of its own may be late: the key is written once more, so that it
        comes too late."""
        session = leaving.session
        try:
            kept = await self.ownership.keep(session)
        except (Unavailable, Unknown, NoAnswer) as error:
            logger.info("session_kept_unknown client_id=%s error=%s", session.client_id, error)
            self._wait_for_key(leaving)
            return
        if leaving.confirmed or self._leaving.get(session.client_id) is not leaving:
            return
        if not kept:
            # It is the other's, which may not know of this attempt any more.
            await self._offer(leaving)
            return
        self._keep(leaving)

    def _keep(self, leaving: Leaving) -> None:
        session = leaving.session
        logger.info("session_kept client_id=%s node=%s", session.client_id, leaving.node)
        self._forget(leaving)
        session.limits = leaving.limits
        self._broker.life.continue_session(session, leaving.will_due, self._context.clock.now())
        self.on_kept(session.client_id)

    def returned(self, client_id: str) -> None:
        """Another node has written that the session is this node's: it could not take it."""
        leaving = self._leaving.get(client_id)
        if leaving is None or leaving.confirmed:
            return
        if leaving.closed:
            for subscription in leaving.session.subscriptions.values():
                self._broker.router.subscribe(subscription)
        self._keep(leaving)

    async def _cancel(self, node: str, argument: bytes) -> bytes:
        """The other node does not take it, and has written nothing."""
        done = self._calls.decoded(node, argument, Done)
        leaving = self._leaving.get(done.client_id)
        if leaving is not None and leaving.move == done.move and not leaving.confirmed:
            self._keep(leaving)
        return b""

    def _forget(self, leaving: Leaving) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
            leaving.timer = None
        if self._leaving.get(leaving.session.client_id) is leaving:
            del self._leaving[leaving.session.client_id]
            if leaving.kept is None:
                self.ownership.key_is_certain(leaving.client_id)
        leaving.left.set()

    # ------------------------------------------------------------------ the queue

    async def _fetch(self, node: str, argument: bytes) -> bytes:
        ask = self._calls.decoded(node, argument, Fetch)
        return msgspec.msgpack.encode(await self.piece(node, ask))

    async def piece(self, node: str, ask: Fetch) -> Piece:
        """What a node gets next, which may be this one: the session is here again, and something is kept of before."""
        if not self._members.known:
            return Piece(BUSY)  # other nodes may still send here what is for the session
        client_id = ask.client_id
        leaving = self._leaving.get(client_id)
        if leaving is None:
            session = self._broker.sessions.get(client_id)
            if session is None:
                return Piece(GONE)  # for a session that is kept, too: there is no more of it
            if self.ownership.node_of(client_id) != node or self._is_coming(client_id):
                # What it has written has not been told here; or this is a late question about an earlier stay.
                return Piece(BUSY)
            leaving = self._suspend(session, node, ask.move)
        async with leaving.lock:
            if not self._is_current(leaving):
                return Piece(BUSY)
            if leaving.kept is None:
                await self._given.settle(leaving.session, ask.move)
                if not self._is_current(leaving):
                    return Piece(BUSY)
            if leaving.kept is not None:
                if not self._has(node, leaving.client_id):
                    return Piece(BUSY)
                leaving.node = node
                self._drop_doubted(leaving, ask)
            elif leaving.move != ask.move:
                if self.ownership.node_of(client_id) != node:
                    return Piece(BUSY)
                leaving.move, leaving.node = ask.move, node
                if not leaving.sent:
                    leaving.number = ask.taken
            if not leaving.confirmed:
                self._confirm(leaving, ask)
            for topic_filter in ask.ended:
                self._turns.ended(leaving.client_id, leaving.session, topic_filter)
                self._broker.unsubscribe(leaving.session, topic_filter)
            if ask.taken < leaving.number:
                # A question that came late, or twice, must not begin another piece: nobody would take that.
                return await self._made(leaving) if leaving.sent else Piece(BUSY)
            self._drop_sent(leaving, ask)
            await self._context.tables.stored()
            await self._load(leaving)
            if not self._is_current(leaving):
                return Piece(BUSY)
            return await self._next(leaving, ask)

    def _is_current(self, leaving: Leaving) -> bool:
        """Whether it has not ended meanwhile, or begun again with all that was here (``lost``)."""
        return self._leaving.get(leaving.session.client_id) is leaving

    def _has(self, node: str, client_id: str) -> bool:
        """Whether this client's session is that node's."""
        if node == self._context.node:
            return self.ownership.has(client_id)
        return self.ownership.node_of(client_id) == node

    def _confirm(self, leaving: Leaving, ask: Fetch) -> None:
        """The other node has the session, and what is in flight."""
        session = leaving.session
        leaving.confirmed = True
        place = self.ownership.place(leaving.client_id)
        leaving.epoch = ask.epoch or (0 if place is None else place.revision)
        journal = session.journal
        self._drop_doubted(leaving, ask)
        held = [each for each in session.inflight.values() if each is not None]
        again: list[Delivery] = []
        if ask.rest:
            leaving.apart = True
            doubt = _doubt(ask)
            unknown = [each for each in held if key_of(each) not in doubt]
            lost = sum(each.qos == 2 for each in unknown) + len(session.inflight) - len(held)
            if lost:
                self._broker.metrics.refusals.add("cluster_qos2_of_lost_session", lost)
            again = [each for each in unknown if each.qos == 1]
            held = [each for each in held if each.qos == 2 or key_of(each) in doubt]
        if journal is not None:
            journal.done(session, held)
            for packet_id, each in session.inflight.items():
                if each is None:
                    journal.completed(session, packet_id)
            for packet_id in session.awaiting_rel or ():
                journal.freed(session, packet_id)
        session.inflight.clear()
        session.awaiting_rel = None
        self._broker.life.drop_will(session)
        leaving.sent = again
        leaving.number = ask.taken + 1 if again else ask.taken
        if again:
            self._gave(leaving)
        self.step("confirmed")

    def _drop_doubted(self, leaving: Leaving, ask: Fetched) -> None:
        """The other node has these: this one did not live to note that."""
        session = leaving.session
        queue = session.queue
        doubt = _doubt(ask)
        if doubt and queue is not None and not leaving.sent:
            taken = [each for each in queue if key_of(each) in doubt]
            kept = [each for each in queue.clear() if key_of(each) not in doubt] if taken else []
            for delivery in kept:
                queue.push(delivery)
            if session.journal is not None:
                session.journal.done(session, taken)

    def _drop_sent(self, leaving: Leaving, ask: Fetched) -> None:
        session = leaving.session
        if leaving.sent:
            if session.journal is not None:
                session.journal.done(session, [each for each in leaving.sent if each.qos])
            self._given.forget(leaving.session.client_id)
        leaving.sent = []
        leaving.number = ask.taken

    async def _load(self, leaving: Leaving) -> None:
        """What the next piece is made of, where it is on disk only."""
        durability = self._broker.durability
        queue = leaving.session.queue
        if queue is not None and durability is not None:
            piece = islice(queue, self._context.piece_messages)
            paged = [stored_of(each.message) for each in piece if each.message.paged]
            await durability.paging.load([each for each in paged if each is not None])

    async def _next(self, leaving: Leaving, ask: Fetch) -> Piece:
        session = leaving.session
        self._fill(leaving)
        if leaving.sent:
            leaving.number = ask.taken + 1
            self._gave(leaving)
            await self._context.tables.stored()  # as with ``_prepare``
            return await self._made(leaving)
        if session.queued:
            return Piece(BUSY)  # what waits was paged out again
        if leaving.closed:
            return Piece(END, ask.taken)
        if leaving.kept is not None:
            late = self._late(leaving.kept.late, leaving)
            return Piece(MORE, ask.taken, [], late) if late else Piece(END, ask.taken)
        if await self.release_held(
            leaving.client_id, lambda: session if self._is_current(leaving) else None, ask.turned == []
        ):
            return Piece(MORE, ask.taken)
        turn = self._turns.get(leaving.client_id)
        if ask.turned is None or (ask.turned and turn is None):
            return Piece(MORE, ask.taken)
        # This node's own mark, too: the other one may not have asked for it, where it has just come back.
        wanted = [*ask.turned, self._context.node] if ask.turned else []
        if turn is not None and not all(turn.given(each, ask.epoch) for each in wanted):
            return Piece(MORE, ask.taken)
        if ask.turned:
            late = self._turns.not_given(leaving.client_id, ask.epoch)
            return Piece(END, ask.taken, [], late, sorted(self.held(leaving.client_id)))
        for subscription in session.subscriptions.values():
            self._broker.router.unsubscribe(subscription)
        return Piece(END, ask.taken)

    def _gave(self, leaving: Leaving) -> None:
        if leaving.kept is None:
            self._given.gave(leaving.client_id, leaving.node, leaving.move, leaving.number, leaving.sent)

    def _is_under_way(self, client_id: str) -> bool:
        leaving = self._leaving.get(client_id)
        return leaving is not None and bool(leaving.sent)

    def _late(self, names: list[str], leaving: Leaving) -> list[str]:
        """Which of these nodes may still send here what is for a session that has gone."""
        if leaving.kept is None:
            return []
        client_id, epoch, peers = leaving.client_id, leaving.kept.epoch, self._members.peers
        return [each for each in names if each in peers and not self._turns.given(client_id, each, epoch)]

    def _fill(self, leaving: Leaving) -> None:
        """The next piece."""
        session = leaving.session
        queue = session.queue
        now = self._context.clock.now()
        most = self._context.piece_messages
        size = 0
        while queue is not None and len(leaving.sent) < most and size < PIECE_BYTES:
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
            leaving.sent.append(delivery)
            size += delivery.size
        if queue is not None and not len(queue):
            session.queue = None

    async def _made(self, leaving: Leaving) -> Piece:
        """Asked for again, some of it may be paged out."""
        session = leaving.session
        durability = self._broker.durability
        now = self._context.clock.now()
        bodies: dict[int, records.StoredBody] = {}

        def take(stored: StoredMessage) -> None:
            bodies[stored.number] = body_of(stored.message, -now)

        number, sent = leaving.number, leaving.sent
        if durability is not None:
            found = [stored_of(each.message) for each in sent]
            await durability.paging.load([each for each in found if each is not None], take)
        moved = []
        for each in sent:
            stored = stored_of(each.message)
            if stored is not None and stored.lost:
                self._broker.delivery_dropped(session, each, UNREADABLE)
            else:
                moved.append(moved_delivery(each, now, None if stored is None else bodies[stored.number]))
        return Piece(MORE, number, moved)

    # -------------------------------------------------------------------- the end

    async def _done(self, node: str, argument: bytes) -> bytes:
        if not self._members.known:
            raise CallFailed("not all members are known yet")
        done = self._calls.decoded(node, argument, Done)
        if done.client_id not in self._leaving and self.ownership.is_unknown(done.client_id):
            raise CallFailed("the owner of the session is not known yet")
        await self.done(node, done)
        return b""

    async def done(self, node: str, done: Done) -> None:
        """A node, which may be this one, has all that it wants of a session."""
        client_id = done.client_id
        leaving = self._leaving.get(client_id)
        session = self._broker.sessions.get(client_id)
        owned = self.ownership.node_of(client_id) == node
        if leaving is not None and leaving.kept is not None:
            holder = self.ownership.node_of(leaving.client_id)
            if done.over or leaving.node == node or holder in (node, None):
                left = leaving.session.queued
                if left and holder not in (node, None):  # it went on without that node
                    self._context.refusals.add("kept_of_lost_session", node, "cluster.takeover", left)
                self._end_kept(leaving)
            await self._context.tables.stored()
            return
        rest_over = leaving is not None and owned and leaving.anew and not leaving.confirmed
        apart = leaving is not None and leaving.apart
        if leaving is not None and (leaving.move == done.move or done.move in leaving.earlier or rest_over):
            # Or this node has started again after the other had all of it: what it would offer is over.
            self._forget(leaving)
            if done.keep:
                self._take_back(leaving)  # what was asked for after the end
        elif leaving is not None or session is None or not owned or self._arrives(client_id):
            session = None  # it is another one
        if session is not None:
            if done.keep:
                self._keep_late(session, node, done.epoch)
            else:
                self._turns.end(client_id)
            self._forget_session(session)
            self.on_gone(client_id, not apart)
            await self._context.tables.stored()

    def _forget_session(self, session: Session) -> None:
        """Nothing of it is wanted here any more."""
        self._given.forget(session.client_id)
        self._broker.life.forget_session(session)

    # --------------------------------------------------------------- what is late

    def _keep_late(self, session: Session, node: str, epoch: int) -> None:
        """Other nodes still send here what is for a session that has gone."""
        client_id = session.client_id
        turn = self._turns.get(client_id)
        late = self._turns.not_given(client_id, epoch)
        held = self.held(client_id)
        if turn is None or (not late and not session.queued and not held):
            self._turns.end(client_id)
            return
        client = ClientInfo(self._broker.node, session.client.zone, client_id=kept_name(client_id, epoch))
        kept = self._broker.life.open_internal(client, session.limits, self._context.clock.now())
        row = KeptRow(node, epoch, late, turn.epoch)
        self._turns.hand_over(turn, kept, epoch)
        waiting = [each for of_node in held.values() for each in of_node.queue or ()]
        for each in [*(session.queue or ()), *waiting]:
            kept.deliver_shared(Delivery(each.message, each.qos, each.retain, each.identifiers, each.group))
        self._kept.put(kept.client_id, row)
        self._add_kept(kept, row)
        logger.info("session_kept_for_late_nodes client_id=%s node=%s late=%s", client_id, node, ",".join(late))

    def _end_kept(self, leaving: Leaving) -> None:
        assert leaving.kept is not None
        self._forget(leaving)
        self._kept.remove(leaving.session.client_id)
        self._turns.end_stay(leaving.client_id, leaving.kept.epoch)
        self._broker.life.forget_session(leaving.session)

    def _removed(self, peer: Peer) -> None:
        """A node is out for good, and with it its sessions."""
        for leaving in list(self._leaving.values()):
            # What is kept was perhaps never fetched by the node where its session is now.
            place = self.ownership.place(leaving.client_id)
            if (place.node if place is not None and place.node else leaving.node) != peer.name:
                continue
            if leaving.kept is not None:
                self._end_kept(leaving)
            elif leaving.confirmed:
                self._forget(leaving)
                self._turns.end(leaving.client_id)
                self._forget_session(leaving.session)
                self.on_gone(leaving.client_id, False)

    def session_ended(self, session: Session) -> None:
        self._given.forget(session.client_id)
        leaving = self._leaving.get(session.client_id)
        if leaving is None or leaving.session is not session:
            return
        self._forget(leaving)
        if leaving.sent and self._broker.durability is not None:
            self._broker.durability.sessions.done(session, [each for each in leaving.sent if each.qos])

    # ------------------------------------------------- a session that was taken away

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """The bucket says that another node has this session: it is offered what there is of it here. ``epoch``: of
        its key there; ``anew``: it began there without this node; ``last_epoch``: of its key, when it was this node's
        until now, or 0."""
        client_id = session.client_id
        leaving = self._leaving.get(client_id)
        earlier: set[str] = set()
        asked: set[str] = set()
        # It went to this node already, and nothing of it began anew there.
        again = leaving is not None and leaving.node == node
        closed = leaving is not None and leaving.closed
        if leaving is not None:
            as_asked = leaving.epoch in (0, epoch) if leaving.confirmed else leaving.anew or not anew
            if again and as_asked and (leaving.confirmed or not clean_start):
                return  # as it should be
            asked = leaving.asked if leaving.anew else leaving.asked | {leaving.node}
            # What that node asked for and then began without does not count any more.
            again = (again and leaving.confirmed) or (not anew and node in asked)
            # Another key of the same node: the session was elsewhere meanwhile, and that node does not ask any more; or
            # the key was only written once more, and it asks on.
            self._forget(leaving)
            self._take_back(leaving)
            last_epoch = max(last_epoch, leaving.last_epoch)
            earlier = leaving.earlier | {leaving.move}
        channel = self._context.channels.channels.get(client_id)
        if channel is not None:
            take_over(channel, False, node)
        if self._broker.sessions.get(client_id) is not session:
            return
        apart = not again and not self.ownership.may_be_taken(client_id)
        if apart or anew:
            logger.warning("session_lost client_id=%s node=%s clean_start=%s", client_id, node, clean_start)
        # Otherwise that node had asked for it, and this one has stopped before it was told that all has come.
        # A node that went on without this one has it named in the key, and asks the others for marks that come here,
        # too: what they have sent before those is for the session that is here.
        closed = closed or clean_start or (apart and not anew and self._context.settings.takeover == FRESH)
        if closed or apart:
            self.end_held(client_id, session)
        if closed:
            self._turns.end(client_id)
            for subscription in session.subscriptions.values():
                self._broker.router.unsubscribe(subscription)
            empty = not (session.inflight or session.queued)
        else:
            # It was on its way when this node ended, and what other nodes still have for it comes here first.
            empty = False
        if clean_start or empty:
            self._broker.life.suspend_session(session)
            self._forget_session(session)
            self.on_gone(client_id, False)
            return
        leaving = self._suspend(session, node, self._context.nonce())
        leaving.anew = True
        leaving.last_epoch = last_epoch
        leaving.apart = apart
        leaving.closed = closed
        leaving.earlier = earlier
        leaving.asked = asked
        self._tasks.run(self._offer(leaving))

    def _take_back(self, leaving: Leaving) -> None:
        """The last piece waits again: nobody has said that it is there."""
        session = leaving.session
        queue = session.new_queue() if session.queue is None and leaving.sent else session.queue
        if queue is not None:
            for delivery in reversed(leaving.sent):
                queue.push_front(delivery)
        leaving.sent = []

    async def _offer(self, leaving: Leaving) -> None:
        client_id = leaving.session.client_id
        while self._leaving.get(client_id) is leaving and not leaving.confirmed:
            node = self.ownership.node_of(client_id)
            offer = msgspec.msgpack.encode(Offer(client_id, leaving.move))
            try:
                answer = b"" if node is None else await self._calls.call(node, OFFER, offer)
            except (NodeUnreachable, CallFailed):
                answer = b""
            if self._leaving.get(client_id) is not leaving or leaving.confirmed:
                return
            if answer == GONE.encode() or node is None or node == self._context.node:
                if not leaving.anew:
                    self._wait_for_key(leaving)
                    return
                logger.warning("session_rest_dropped client_id=%s node=%s reason=session_over", client_id, node)
                self._forget(leaving)
                self._turns.end(client_id)
                self.end_held(client_id, None)
                self._forget_session(leaving.session)
                self.on_gone(client_id, False)
                return
            await asyncio.sleep(_OFFER_AGAIN)


def _doubt(ask: Fetched) -> set[tuple[int, str]]:
    return {(number, group) for number, group in ask.doubt}
