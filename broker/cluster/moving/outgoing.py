"""Outgoing: hands over sessions to other nodes. ``handover`` describes the steps.

Until the key names the other node, this node has the session. The client is disconnected, nothing is lost, and if the
other node does not come back, the session continues here. The other node fetches the queue (``queue_pieces``). Messages
that arrive here later, because their sender was away, are kept for it (``kept_stays``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ...channel.identity import owner_before
from ...channel.session_setup import take_over
from ...core.cluster import CallFailed, NodeUnreachable
from ...loop.timers import Timer
from ...mqtt.message import Delivery
from ...session.session import Session
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..nats.interface import NoAnswer, Unavailable, Unknown
from ..tasks import Tasks
from .given_pieces import GivenPieces, key_of
from .held_messages import HeldMessages
from .incoming import IncomingSessions
from .kept_stays import KeptStays
from .queue_pieces import QueuePieces, doubted
from .session_nodes import SessionNodes, SessionsHere
from .session_transfer import (
    BUSY,
    DISCARDED,
    END,
    GONE,
    MORE,
    NOT_OURS,
    OF_ANOTHER,
    READY,
    Done,
    Fetch,
    Offer,
    Piece,
    Prepare,
    Prepared,
    moved_session,
    with_qos0,
)
from .turns import Turns

logger = logging.getLogger(__name__)

PREPARE: Final = "handover.prepare"
WANTED: Final = "handover.wanted"
FETCH: Final = "handover.fetch"
DONE: Final = "handover.done"
OFFER: Final = "handover.offer"
CANCEL: Final = "handover.cancel"

FRESH: Final = "fresh"
"""Value of the setting ``cluster.takeover`` with which clients do not wait for a node that is away."""

_OFFER_AGAIN: Final = 5.0


class Leaving:
    """A session that is moving to ``node``. ``move`` is the nonce of the attempt.

    ``confirmed`` is set when that node has asked for the first piece: the session is there, and its key has ``epoch``.
    ``last_epoch`` is the epoch of the key when the session was last on this node, or 0 if it is not known.
    ``begun_again`` is set when the node has asked for the session a second time. ``earlier`` has the nonces of earlier
    attempts, and ``asked`` the nodes that asked in those.

    ``anew``: the key names the other node, but this node remembers no question from it. ``apart``: the session began
    again there while this node was away, so that kept messages of others do not move with it. ``closed``: the session
    accepts no new messages. ``timer`` ends the wait for the other node. ``left`` is set when the session is no longer
    leaving.
    """

    def __init__(self, context: ClusterContext, session: Session, node: str, move: str) -> None:
        self.session = session
        self.client_id = session.client_id
        self.node = node
        self.move = move
        self.pieces = QueuePieces(context, session)
        self.last_epoch = 0
        self.earlier: set[str] = set()
        self.asked: set[str] = set()
        self.confirmed = False
        self.begun_again = False
        self.epoch = 0
        self.anew = False
        self.apart = False
        self.closed = False
        self.will_due = 0.0
        self.limits = session.limits
        self.left = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None


class Outgoing:
    """Hands over the sessions of this node. Other nodes call it: ``PREPARE``, then ``FETCH`` until END, then ``DONE``,
    or ``CANCEL``. ``leaves`` returns whether a session is moving to another node."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        turns: Turns,
        nodes: SessionNodes,
        here: SessionsHere,
        given: GivenPieces,
        incoming: IncomingSessions,
        held: HeldMessages,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._turns = turns
        self._nodes = nodes
        self._here = here
        self._given = given
        self._incoming = incoming
        self._held = held
        self.kept = KeptStays(context, members, turns, nodes)
        self._leaving: dict[str, Leaving] = {}
        self._tasks = Tasks()
        self.step: Callable[[str], None] = lambda name: None
        calls.serve(PREPARE, self._prepare)
        calls.serve(FETCH, self._fetch)
        calls.serve(DONE, self._done)
        calls.serve(CANCEL, self._cancel)
        members.on_removed.append(self._removed)

    @property
    def unfinished(self) -> int:
        """Return the number of sessions that are leaving, or that have left and for which this node still keeps
        something."""
        return len(self._leaving) + len(self.kept)

    @property
    def asked_for(self) -> int:
        """Return the number of sessions that other nodes have asked for, and may soon have."""
        return sum(not each.confirmed and each.timer is not None for each in self._leaving.values())

    async def stop(self) -> None:
        for leaving in self._leaving.values():
            if leaving.timer is not None:
                leaving.timer.cancel()
        await self._tasks.stop()

    def leaves(self, client_id: str) -> bool:
        return client_id in self._leaving

    def is_closed(self, client_id: str) -> bool:
        """Return whether this node accepts no new messages for a session that another node has, whatever marks
        arrive."""
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
        """Return whether the client still waits there. It may have left and resumed its session on this node before
        another question ends the attempt."""
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
        owner = owner_before(session, ask.owner) if ask.check_owner else ""
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
        leaving = Leaving(self._context, session, node, move)
        client_id = session.client_id
        leaving.pieces.on_sent = lambda: self._gave(leaving)
        leaving.pieces.on_dropped = lambda: self._given.forget(client_id)
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
        client_id, incoming = leaving.client_id, self._incoming
        untold = self._here.untold(client_id)
        return Prepared(READY, "", moved, incoming.keepers(client_id), untold, incoming.doubts(client_id))

    def last_epoch(self, client_id: str) -> int:
        """Return the epoch that the key of a session had when the session was last on this node, or 0 if it is not
        known. The session is here or is leaving."""
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
        if not leaving.confirmed and not leaving.anew and self._leaving.get(leaving.client_id) is leaving:
            self._tasks.run(self._settle(leaving))

    async def _settle(self, leaving: Leaving) -> None:
        """Write the key once more, because the other node has not come back, so that a late write of that node finds
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
        """Keep the session, because the other node could not take it and has written that it stays here."""
        leaving = self._leaving.get(client_id)
        if leaving is None or leaving.confirmed:
            return
        if leaving.closed:
            for subscription in leaving.session.subscriptions.values():
                self._broker.router.subscribe(subscription)
        self._keep(leaving)

    async def _cancel(self, node: str, argument: bytes) -> bytes:
        """Keep the session, because the other node does not take it and has written nothing."""
        done = self._calls.decoded(node, argument, Done)
        leaving = self._leaving.get(done.client_id)
        if leaving is not None and leaving.move == done.move and not leaving.confirmed:
            self._keep(leaving)
        return b""

    def _forget(self, leaving: Leaving) -> None:
        if leaving.timer is not None:
            leaving.timer.cancel()
            leaving.timer = None
        if self._leaving.get(leaving.client_id) is leaving:
            del self._leaving[leaving.client_id]
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
        if client_id in self.kept:
            return await self.kept.piece(node, ask)
        leaving = self._leaving.get(client_id)
        if leaving is None:
            session = self._broker.sessions.get(client_id)
            if session is None:
                return Piece(GONE)  # for a session that is kept, too: there is no more of it
            if self._nodes.node_of(client_id) != node or self._here.is_coming(client_id):
                # The watch has not reported its write yet; or this is a late question about an earlier stay.
                return Piece(BUSY)
            leaving = self._suspend(session, node, ask.move)
        pieces = leaving.pieces
        async with pieces.lock:
            if not self._is_current(leaving):
                return Piece(BUSY)
            await self._given.settle(leaving.session, ask.move)
            if not self._is_current(leaving):
                return Piece(BUSY)
            if leaving.move != ask.move:
                if self._nodes.node_of(client_id) != node:
                    return Piece(BUSY)
                leaving.move, leaving.node = ask.move, node
                if not pieces.sent:
                    pieces.number = ask.taken
            if not leaving.confirmed:
                self._confirm(leaving, ask)
            for topic_filter in ask.ended:
                self._turns.ended(client_id, leaving.session, topic_filter)
                self._broker.unsubscribe(leaving.session, topic_filter)
            piece = await pieces.next(ask, lambda: self._is_current(leaving))
            return await self._after_queue(leaving, ask) if piece is None else piece

    def _is_current(self, leaving: Leaving) -> bool:
        """Return whether the move has neither ended in the meantime, nor begun again with everything here
        (``lost``)."""
        return self._leaving.get(leaving.client_id) is leaving

    def _confirm(self, leaving: Leaving, ask: Fetch) -> None:
        """Note that the other node has the session, and its messages in flight."""
        session = leaving.session
        leaving.confirmed = True
        place = self._nodes.place(leaving.client_id)
        leaving.epoch = ask.epoch or (0 if place is None else place.revision)
        journal = session.journal
        leaving.pieces.drop_doubted(ask)
        held = [each for each in session.inflight.values() if each is not None]
        again: list[Delivery] = []
        if ask.rest:
            leaving.apart = True
            doubt = doubted(ask)
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
        session.clear_inflight()
        session.awaiting_rel = None
        self._broker.life.drop_will(session)
        leaving.pieces.send_again(again, ask)
        self.step("confirmed")

    async def _after_queue(self, leaving: Leaving, ask: Fetch) -> Piece:
        """Return the answer when the queue is empty: END if no further message for the session can arrive here."""
        session = leaving.session
        if leaving.closed:
            return Piece(END, ask.taken)
        if await self._held.release_to(
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
            return Piece(END, ask.taken, [], late, sorted(self._held.of(leaving.client_id)))
        for subscription in session.subscriptions.values():
            self._broker.router.unsubscribe(subscription)
        return Piece(END, ask.taken)

    def _gave(self, leaving: Leaving) -> None:
        pieces = leaving.pieces
        self._given.gave(leaving.client_id, leaving.node, leaving.move, pieces.number, pieces.sent)

    def is_under_way(self, client_id: str) -> bool:
        leaving = self._leaving.get(client_id)
        return leaving is not None and bool(leaving.pieces.sent)

    # -------------------------------------------------------------------- the end

    async def _done(self, node: str, argument: bytes) -> bytes:
        if not self._members.known:
            raise CallFailed("not all members are known yet")
        done = self._calls.decoded(node, argument, Done)
        if done.client_id not in self._leaving and self._nodes.is_unknown(done.client_id):
            raise CallFailed("the node of the session is not known yet")
        self.done(node, done)
        if not await self._context.tables.stored():
            raise CallFailed("this node cannot store that the session has left")
        return b""

    def done(self, node: str, done: Done) -> None:
        """Forget a session, because a node, possibly this one, has fetched everything that it needs."""
        client_id = done.client_id
        if client_id in self.kept:
            self.kept.done(node, done)
            return
        leaving = self._leaving.get(client_id)
        session = self._broker.sessions.get(client_id)
        owned = self._nodes.node_of(client_id) == node
        rest_over = leaving is not None and owned and leaving.anew and not leaving.confirmed
        apart = leaving is not None and leaving.apart
        if leaving is not None and (leaving.move == done.move or done.move in leaving.earlier or rest_over):
            # Or this node has restarted after the other one had everything: its offer would be outdated.
            self._forget(leaving)
            if done.keep:
                leaving.pieces.take_back()  # a piece that was requested after the end
        elif leaving is not None or session is None or not owned or self._here.arrives(client_id):
            session = None  # it is another session
        if session is not None:
            if done.keep:
                self.kept.keep(session, node, done.epoch, self._held.of(client_id))
            else:
                self._turns.end(client_id)
            self._forget_session(session)
            self._here.gone(client_id, not apart)

    def _forget_session(self, session: Session) -> None:
        """Forget the session, because it is no longer needed here."""
        self._given.forget(session.client_id)
        self._broker.life.forget_session(session)

    def _removed(self, peer: Peer) -> None:
        """Forget the sessions of a node that was removed."""
        self.kept.node_removed(peer.name)
        for leaving in list(self._leaving.values()):
            place = self._nodes.place(leaving.client_id)
            if (place.node if place is not None and place.node else leaving.node) == peer.name and leaving.confirmed:
                self._forget(leaving)
                self._turns.end(leaving.client_id)
                self._forget_session(leaving.session)
                self._here.gone(leaving.client_id, False)

    def session_ended(self, session: Session) -> None:
        self._given.forget(session.client_id)
        self.kept.session_ended(session)
        leaving = self._leaving.get(session.client_id)
        if leaving is not None and leaving.session is session:
            self._forget(leaving)
            leaving.pieces.session_ended()

    # ------------------------------------------------- a session that was taken away

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """Offer the rest of a session to ``node``, because the key names that node. ``epoch`` is the epoch of the key
        there, and ``last_epoch`` that of the key with which this node had the session until now, or 0. ``anew``: the
        session began there without this node."""
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
            leaving.pieces.take_back()
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
            self._held.end(client_id, session)
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

    async def _offer(self, leaving: Leaving) -> None:
        client_id = leaving.client_id
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
                self._held.end(client_id, None)
                self._forget_session(leaving.session)
                self._here.gone(client_id, False)
                return
            await asyncio.sleep(_OFFER_AGAIN)
