"""Outgoing: hands over sessions to other nodes. ``handover`` describes the steps.

Until the key names the other node, this node has the session. Its client is disconnected, nothing of it is lost, and
if the other node does not come back, the session continues here.

After a session has left, nodes that were Stopped in the meantime may still send messages for it here. An internal
session, ``turns.KEPT``, takes them until their marks have arrived (``turns``), and the session's node fetches them.
There is one for each stay of the session, which may come back before everything is fetched, and leave again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

import msgspec

from ...channel.identity import owner_before
from ...channel.session_setup import take_over
from ...core.cluster import CallFailed, NodeUnreachable
from ...loop.timers import Timer
from ...mqtt.message import Delivery
from ...persistence.log import records
from ...persistence.record_mapping import body_of
from ...persistence.stored_message import StoredMessage, stored_of
from ...session.client_info import ClientInfo
from ...session.protocols import EXPIRED, UNREADABLE
from ...session.session import Session
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..nats.interface import NoAnswer, Unavailable, Unknown
from ..tasks import Tasks
from .given_pieces import GivenPieces, key_of
from .session_nodes import SessionNodes
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
from .turns import KEPT, Stay, Turns, kept_name

logger = logging.getLogger(__name__)

PREPARE: Final = "handover.prepare"
WANTED: Final = "handover.wanted"
FETCH: Final = "handover.fetch"
DONE: Final = "handover.done"
OFFER: Final = "handover.offer"
CANCEL: Final = "handover.cancel"

FRESH: Final = "fresh"
"""Value of the setting ``cluster.takeover``: clients do not wait for a node that is away."""

TABLE: Final = "handover_kept"
_OFFER_AGAIN: Final = 5.0


class KeptRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_kept``, by ``turns.kept_name``: the node that the session moved to, the epoch of its key
    there, the nodes that may still send messages for it here, and the epoch with which it had arrived here."""

    node: str
    epoch: int
    late: list[str]
    begun: int = 0


class Fetched(Protocol):
    """The progress of the other node: as in ``Fetch``."""

    @property
    def taken(self) -> int: ...

    @property
    def doubt(self) -> list[tuple[int, str]]: ...


class SessionsHere(Protocol):
    """What a session that leaves needs to know of this node's side; ``Handover`` does."""

    def is_coming(self, client_id: str) -> bool:
        """Return whether a session cannot move on to another node yet."""

    def arrives(self, client_id: str) -> bool:
        """Return whether a session that is here is still arriving from another node."""

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know that a whole session is here, as ``wire.SessionKey.earlier``."""

    def keepers(self, client_id: str) -> list[Keeper]:
        """Return what other nodes keep for a session, as ``Prepared.keepers``."""

    def doubts(self, client_id: str) -> dict[str, list[tuple[int, str]]]:
        """Return the same as ``Prepared.doubts``."""

    def held(self, client_id: str) -> dict[str, Session]:
        """Return the messages that wait for those of keepers, by sending node."""

    async def release_held(self, client_id: str, to: Callable[[], Session | None], late: bool) -> bool:
        """Deliver waiting messages to a session, and return whether there were any."""

    def end_held(self, client_id: str, session: Session | None) -> None:
        """Let messages wait no longer."""

    def leaving(self, client_id: str) -> None:
        """Note that a session may leave."""

    def kept(self, client_id: str) -> None:
        """Note that a session stays."""

    def gone(self, client_id: str, moved: bool) -> None:
        """Note that a session has left. ``moved``: in order."""


class Leaving:
    """A session that moves to another node. ``confirmed``: that node has it. ``begun_again``: that node has asked once
    more. ``kept``: the session has left, and ``session`` is the internal session that takes the rest."""

    def __init__(self, session: Session, node: str, move: str, kept: KeptRow | None = None) -> None:
        self.session = session
        name = session.client_id
        self.client_id = name if kept is None else name.removeprefix(KEPT).partition(":")[2]
        self.kept = kept
        self.node = node
        self.move = move
        # The epoch of its key when this node last had it; 0: not known.
        self.last_epoch = 0
        # Earlier attempts to move the session, and the nodes of those attempts that had asked for it. In the meantime,
        # another node may have begun the session again and given it back.
        self.earlier: set[str] = set()
        self.asked: set[str] = set()
        self.confirmed = False
        self.begun_again = False
        # The epoch of its key there, when that is confirmed.
        self.epoch = 0
        # The key names the other node, which has not asked for the session, as far as this node remembers.
        self.anew = False
        # The session began again there while this node was away. What others keep for this one does not move with it.
        self.apart = False
        # The session accepts no new messages any more.
        self.closed = False
        self.will_due = 0.0
        self.limits = session.limits
        # The number of the last piece, and its messages.
        self.number = 0
        self.sent: list[Delivery] = []
        self.left = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.lock = asyncio.Lock()


class Outgoing:
    """``leaves``: whether a session is on its way; ``left``: waits until it no longer is."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        turns: Turns,
        nodes: SessionNodes,
        here: SessionsHere,
        given: GivenPieces,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._turns = turns
        self._kept = context.tables.open(TABLE, KeptRow)
        self._nodes = nodes
        self._here = here
        self._given = given
        self._leaving: dict[str, Leaving] = {}
        self._tasks = Tasks()
        self.step: Callable[[str], None] = lambda name: None
        calls.serve(PREPARE, self._prepare)
        calls.serve(FETCH, self._fetch)
        calls.serve(DONE, self._done)
        calls.serve(CANCEL, self._cancel)
        members.on_removed.append(self._removed)

    def load(self) -> None:
        """Read the rows when the node's sessions are restored."""
        for name, row in list(self._kept.items()):
            session = self._broker.sessions.internal.get(name)
            if session is None:
                self._kept.remove(name)
            else:
                for subscription in session.subscriptions.values():
                    self._broker.router.unsubscribe(subscription)
                self._add_kept(session, row)

    def stays(self, client_id: str) -> list[Stay]:
        """Return the ended stays of a client's session for which this node keeps messages."""
        found = [each for each in self._leaving.values() if each.kept is not None and each.client_id == client_id]
        return [Stay(each.session, each.kept.begun, each.kept.epoch) for each in found if each.kept is not None]

    @property
    def kept_sessions(self) -> int:
        """Return the number of sessions that have left, for which nodes that are away may still send messages here."""
        return sum(each.kept is not None for each in self._leaving.values())

    @property
    def unfinished(self) -> int:
        """Return the number of sessions that are leaving, or that have left and for which this node still keeps
        something."""
        return len(self._leaving)

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
        # Everything handed over is on this disk: if this node dies now, no link sends it here again, and an ended
        # session does not come back. A full disk does not keep the client from moving: then the key informs this node
        # after its next start.
        given = prepared.state in (READY, GONE, DISCARDED)
        if given and not await self._context.tables.stored() and prepared.state != READY:
            earlier = {**prepared.earlier, self._context.node: False}
            prepared = msgspec.structs.replace(prepared, earlier=earlier)
        return msgspec.msgpack.encode(prepared)

    async def _is_wanted(self, node: str, ask: Prepare) -> bool:
        """Return whether the client still waits there. It may have left, and have its session on this node again,
        before another question ends the attempt."""
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
                # Only a late write can be left of its attempt before.
                leaving.begun_again = True
                self._look(leaving)
            return self._ready(leaving, now) if same else Prepared(BUSY)
        if self._nodes.busy(client_id) or self._here.is_coming(client_id):
            return Prepared(BUSY)
        if not self._nodes.has(client_id, ask.revision):
            # With another revision, the question is late: this session has begun, or arrived here, since.
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
        self._nodes.key_may_go(client_id)
        self.step("suspended")
        return self._ready(leaving, now)

    def _over(self, client_id: str, state: str) -> Prepared:
        """Return the answer for a session that no longer exists. The other node may take the key."""
        self._nodes.key_may_go(client_id)
        self._nodes.settle_soon(client_id)
        return Prepared(state, earlier=self._here.untold(client_id))

    def _suspend(self, session: Session, node: str, move: str) -> Leaving:
        leaving = Leaving(session, node, move)
        leaving.last_epoch = self.last_epoch(session.client_id)
        self._leaving[session.client_id] = leaving
        timer = session.will_timer
        leaving.will_due = timer.when if isinstance(timer, Timer) else 0.0
        self._broker.life.suspend_session(session)
        session.limits = with_qos0(session.limits)
        self._here.leaving(session.client_id)
        self._wait_for_key(leaving)
        return leaving

    def _ready(self, leaving: Leaving, now: float) -> Prepared:
        moved = moved_session(leaving.session, leaving.will_due, now)
        client_id = leaving.client_id
        return Prepared(
            READY, "", moved, self._here.keepers(client_id), self._here.untold(client_id), self._here.doubts(client_id)
        )

    def last_epoch(self, client_id: str) -> int:
        """Return the epoch of the key of a session that is here, or is leaving, when this node last had it; 0: not
        known."""
        leaving = self._leaving.get(client_id)
        if leaving is not None:
            return leaving.last_epoch
        place = self._nodes.place(client_id)
        return place.revision if place is not None and self._nodes.is_ours(place) else 0

    # ------------------------------------------------------ who has the key then

    def _wait_for_key(self, leaving: Leaving) -> None:
        wait = self._context.settings.takeover_timeout
        leaving.timer = asyncio.get_running_loop().call_later(wait, self._look, leaving)

    def _look(self, leaving: Leaving) -> None:
        if leaving.timer is None:
            return  # it is under way already
        leaving.timer.cancel()
        leaving.timer = None
        if not leaving.confirmed and not leaving.anew and self._leaving.get(leaving.session.client_id) is leaving:
            self._tasks.run(self._settle(leaving))

    async def _settle(self, leaving: Leaving) -> None:
        """Write the key once more, because the other node has not come back. A late write of that node then finds
        another revision."""
        session = leaving.session
        try:
            kept = await self._nodes.keep(session)
        except (Unavailable, Unknown, NoAnswer) as error:
            logger.info("session_kept_unknown client_id=%s error=%s", session.client_id, error)
            self._wait_for_key(leaving)
            return
        if leaving.confirmed or self._leaving.get(session.client_id) is not leaving:
            return
        if not kept:
            # The other node has the session, and may not know of this attempt any more.
            await self._offer(leaving)
            return
        self._keep(leaving)

    def _keep(self, leaving: Leaving) -> None:
        session = leaving.session
        logger.info("session_kept client_id=%s node=%s", session.client_id, leaving.node)
        self._forget(leaving)
        session.limits = leaving.limits
        self._broker.life.continue_session(session, leaving.will_due, self._context.clock.now())
        self._here.kept(session.client_id)

    def returned(self, client_id: str) -> None:
        """Keep the session: another node could not take it, and has written that this node has it."""
        leaving = self._leaving.get(client_id)
        if leaving is None or leaving.confirmed:
            return
        if leaving.closed:
            for subscription in leaving.session.subscriptions.values():
                self._broker.router.subscribe(subscription)
        self._keep(leaving)

    async def _cancel(self, node: str, argument: bytes) -> bytes:
        """Keep the session: the other node does not take it, and has written nothing."""
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
                self._nodes.key_is_certain(leaving.client_id)
        leaving.left.set()

    # ------------------------------------------------------------------ the queue

    async def _fetch(self, node: str, argument: bytes) -> bytes:
        ask = self._calls.decoded(node, argument, Fetch)
        return msgspec.msgpack.encode(await self.piece(node, ask))

    async def piece(self, node: str, ask: Fetch) -> Piece:
        """Return the next piece for a node. That may be this node itself, if the session is here again, and messages of
        an earlier stay are kept."""
        if not self._members.known:
            return Piece(BUSY)  # other nodes may still send messages for the session here
        client_id = ask.client_id
        leaving = self._leaving.get(client_id)
        if leaving is None:
            session = self._broker.sessions.get(client_id)
            if session is None:
                return Piece(GONE)  # for a session that is kept, too: there is no more of it
            if self._nodes.node_of(client_id) != node or self._here.is_coming(client_id):
                # The watch has not reported its write yet; or this is a late question about an earlier stay.
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
                if self._nodes.node_of(client_id) != node:
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
                # A question that is late or repeated must not begin another piece, which no node would take.
                return await self._made(leaving) if leaving.sent else Piece(BUSY)
            self._drop_sent(leaving, ask)
            await self._context.tables.stored()
            await self._load(leaving)
            if not self._is_current(leaving):
                return Piece(BUSY)
            return await self._next(leaving, ask)

    def _is_current(self, leaving: Leaving) -> bool:
        """Return whether it has neither ended in the meantime, nor begun again with everything here (``lost``)."""
        return self._leaving.get(leaving.session.client_id) is leaving

    def _has(self, node: str, client_id: str) -> bool:
        """Return whether that node has this client's session."""
        if node == self._context.node:
            return self._nodes.has(client_id)
        return self._nodes.node_of(client_id) == node

    def _confirm(self, leaving: Leaving, ask: Fetch) -> None:
        """Note that the other node has the session, and its messages in flight."""
        session = leaving.session
        leaving.confirmed = True
        place = self._nodes.place(leaving.client_id)
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
        """Drop the messages that the other node has, which this one did not note before it died."""
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
        """Load the messages of the next piece that are only on disk."""
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
            return Piece(BUSY)  # the messages were paged out again
        if leaving.closed:
            return Piece(END, ask.taken)
        if leaving.kept is not None:
            late = self._late(leaving.kept.late, leaving)
            return Piece(MORE, ask.taken, [], late) if late else Piece(END, ask.taken)
        if await self._here.release_held(
            leaving.client_id, lambda: session if self._is_current(leaving) else None, ask.turned == []
        ):
            return Piece(MORE, ask.taken)
        turn = self._turns.get(leaving.client_id)
        if ask.turned is None or (ask.turned and turn is None):
            return Piece(MORE, ask.taken)
        # This node's own mark, too: the other node may not have asked for it, if it has just come back.
        wanted = [*ask.turned, self._context.node] if ask.turned else []
        if turn is not None and not all(turn.given(each, ask.epoch) for each in wanted):
            return Piece(MORE, ask.taken)
        if ask.turned:
            late = self._turns.not_given(leaving.client_id, ask.epoch)
            return Piece(END, ask.taken, [], late, sorted(self._here.held(leaving.client_id)))
        for subscription in session.subscriptions.values():
            self._broker.router.unsubscribe(subscription)
        return Piece(END, ask.taken)

    def _gave(self, leaving: Leaving) -> None:
        if leaving.kept is None:
            self._given.gave(leaving.client_id, leaving.node, leaving.move, leaving.number, leaving.sent)

    def is_under_way(self, client_id: str) -> bool:
        leaving = self._leaving.get(client_id)
        return leaving is not None and bool(leaving.sent)

    def _late(self, names: list[str], leaving: Leaving) -> list[str]:
        """Return which of these nodes may still send messages here for a session that has left."""
        if leaving.kept is None:
            return []
        client_id, epoch, peers = leaving.client_id, leaving.kept.epoch, self._members.peers
        return [each for each in names if each in peers and not self._turns.given(client_id, each, epoch)]

    def _fill(self, leaving: Leaving) -> None:
        """Fill the next piece."""
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
        """Return the current piece. If it is requested again, some of its messages may be paged out."""
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
        if done.client_id not in self._leaving and self._nodes.is_unknown(done.client_id):
            raise CallFailed("the node of the session is not known yet")
        await self.done(node, done)
        return b""

    async def done(self, node: str, done: Done) -> None:
        """Forget a session, because a node, which may be this one, has everything that it needs of it."""
        client_id = done.client_id
        leaving = self._leaving.get(client_id)
        session = self._broker.sessions.get(client_id)
        owned = self._nodes.node_of(client_id) == node
        if leaving is not None and leaving.kept is not None:
            holder = self._nodes.node_of(leaving.client_id)
            if done.over or leaving.node == node or holder in (node, None):
                left = leaving.session.queued
                if left and holder not in (node, None):  # it continued without that node
                    self._context.refusals.add("kept_of_lost_session", node, "cluster.takeover", left)
                self._end_kept(leaving)
            await self._context.tables.stored()
            return
        rest_over = leaving is not None and owned and leaving.anew and not leaving.confirmed
        apart = leaving is not None and leaving.apart
        if leaving is not None and (leaving.move == done.move or done.move in leaving.earlier or rest_over):
            # Or this node has restarted after the other one had everything: its offer would be outdated.
            self._forget(leaving)
            if done.keep:
                self._take_back(leaving)  # a piece that was requested after the end
        elif leaving is not None or session is None or not owned or self._here.arrives(client_id):
            session = None  # it is another session
        if session is not None:
            if done.keep:
                self._keep_late(session, node, done.epoch)
            else:
                self._turns.end(client_id)
            self._forget_session(session)
            self._here.gone(client_id, not apart)
            await self._context.tables.stored()

    def _forget_session(self, session: Session) -> None:
        """Forget the session, which is no longer needed here."""
        self._given.forget(session.client_id)
        self._broker.life.forget_session(session)

    # -------------------------------------------------------------- late messages

    def _keep_late(self, session: Session, node: str, epoch: int) -> None:
        """Keep messages that other nodes still send here for a session that has left."""
        client_id = session.client_id
        turn = self._turns.get(client_id)
        late = self._turns.not_given(client_id, epoch)
        held = self._here.held(client_id)
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
        """Forget the sessions of a node that was removed."""
        for leaving in list(self._leaving.values()):
            # The node that has the session now may never have fetched the kept messages.
            place = self._nodes.place(leaving.client_id)
            if (place.node if place is not None and place.node else leaving.node) != peer.name:
                continue
            if leaving.kept is not None:
                self._end_kept(leaving)
            elif leaving.confirmed:
                self._forget(leaving)
                self._turns.end(leaving.client_id)
                self._forget_session(leaving.session)
                self._here.gone(leaving.client_id, False)

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
        """Offer the rest of a session to another node, because the bucket names that node. ``epoch``: of its key there.
        ``anew``: the session began there without this node. ``last_epoch``: of its key, if this node had the session
        until now; otherwise 0."""
        client_id = session.client_id
        leaving = self._leaving.get(client_id)
        earlier: set[str] = set()
        asked: set[str] = set()
        # It moved to that node already, and did not begin again there.
        again = leaving is not None and leaving.node == node
        closed = leaving is not None and leaving.closed
        if leaving is not None:
            as_asked = leaving.epoch in (0, epoch) if leaving.confirmed else leaving.anew or not anew
            if again and as_asked and (leaving.confirmed or not clean_start):
                return  # as expected
            asked = leaving.asked if leaving.anew else leaving.asked | {leaving.node}
            # If that node asked for the session and then began it without this node, its question does not count.
            again = (again and leaving.confirmed) or (not anew and node in asked)
            # Another key of the same node: either the session was elsewhere in the meantime, and that node no longer
            # asks; or the key was only written once more, and it continues to ask.
            self._forget(leaving)
            self._take_back(leaving)
            last_epoch = max(last_epoch, leaving.last_epoch)
            earlier = leaving.earlier | {leaving.move}
        channel = self._context.channels.channels.get(client_id)
        if channel is not None:
            take_over(channel, False, node)
        if self._broker.sessions.get(client_id) is not session:
            return
        apart = not again and not self._nodes.may_be_taken(client_id)
        if apart or anew:
            logger.warning("session_lost client_id=%s node=%s clean_start=%s", client_id, node, clean_start)
        # Otherwise that node had asked for it, and this one stopped before it learned that everything had arrived.
        # A node that continued without this one has named it in the key. It asks the others for marks, which arrive
        # here, too: messages that they sent before those are for the session here.
        closed = closed or clean_start or (apart and not anew and self._context.settings.takeover == FRESH)
        if closed or apart:
            self._here.end_held(client_id, session)
        if closed:
            self._turns.end(client_id)
            for subscription in session.subscriptions.values():
                self._broker.router.unsubscribe(subscription)
            empty = not (session.inflight or session.queued)
        else:
            # It was on its way when this node stopped, and the messages that other nodes have for it arrive here first.
            empty = False
        if clean_start or empty:
            self._broker.life.suspend_session(session)
            self._forget_session(session)
            self._here.gone(client_id, False)
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
        """Put the last piece back into the queue, because no node has confirmed it."""
        session = leaving.session
        queue = session.new_queue() if session.queue is None and leaving.sent else session.queue
        if queue is not None:
            for delivery in reversed(leaving.sent):
                queue.push_front(delivery)
        leaving.sent = []

    async def _offer(self, leaving: Leaving) -> None:
        client_id = leaving.session.client_id
        while self._leaving.get(client_id) is leaving and not leaving.confirmed:
            node = self._nodes.node_of(client_id)
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
                self._here.end_held(client_id, None)
                self._forget_session(leaving.session)
                self._here.gone(client_id, False)
                return
            await asyncio.sleep(_OFFER_AGAIN)


def _doubt(ask: Fetched) -> set[tuple[int, str]]:
    return {(number, group) for number, group in ask.doubt}
