"""Handover: a session comes from another node, and another gets one from here (``outgoing``).

What comes is on this node's disk before the key of the session is; the queue follows when the client has its CONNACK::

    this node                        the node that has the session
    prepare  ──────────────────────► closes its client, keeps all as it is (``outgoing``); with Clean Start it ends it,
                                     where this node's client still waits
             ◄────────────────────── subscriptions, what is in flight, will
    adopt: session, on disk
    take: compare-and-set of the key
    begin: CONNACK
    fetch    ──────────────────────► drops what is in flight, and the piece before
             ◄────────────────────── the next piece of the queue, until all nodes send new messages here
    done     ──────────────────────► forgets the session

New messages go to a second session meanwhile (``waiting_messages``), which has the subscriptions, and are delivered at
the end. Both nodes agree which messages are new (``turns``). So no message is lost, none comes twice, and a publisher's
come in order. Rows in the table ``handover`` (``incoming``) let each step go on after a restart.

A node that is Stopped is not waited for. What it still sends to the other node is kept there (``outgoing``), and
fetched from there in the same way; also where the other node is this one by then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.cluster import STOPPED, CallFailed, NodeUnreachable
from ..mqtt.topics import matches
from ..session.client_info import ClientInfo
from ..session.protocols import QOS0_MSG, REVOKED
from ..session.session import Session
from ..session.subscription import Subscription
from ..store.restored import ZoneOf
from .calls import Calls
from .context import ClusterContext
from .given_pieces import GivenPieces
from .incoming import ADOPTED, FETCHING, FINISHED, HandoverRow, Incoming, IncomingSessions
from .mark_questions import MarkQuestions
from .members import Members
from .outgoing import CANCEL, DONE, FETCH, FRESH, OFFER, PREPARE, WANTED, Outgoing
from .routes import ClusterRoutes
from .session_transfer import (
    BUSY,
    GONE,
    MORE,
    Done,
    Fetch,
    MovedDelivery,
    MovedSession,
    Offer,
    Piece,
    Prepare,
    Prepared,
    SessionReceiver,
    keys_of,
)
from .tasks import Tasks
from .turns import Mark, Turn, Turns
from .waiting_messages import DeferredMessages
from .wire import MALFORMED, valid_body, valid_time

if TYPE_CHECKING:
    from .ownership import Ownership

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.01
_PAUSE_KEPT: Final = 0.25
"""Seconds between two questions for what nodes that are away may send to another one."""
_PAUSE_UNREACHABLE: Final = 0.5
_ASK_AGAIN: Final = 1.0
_QUESTIONS: Final = 500
"""So many in a second, of all sessions together, where they may go on for as long as a node is away."""


class Handover:
    """``prepare`` to ``begin`` are the steps of a claim; the rest of a session comes by itself.

    ``step`` is called with the name of each step after the client has its CONNACK.
    """

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        routes: ClusterRoutes,
        turns: Turns,
        zone_of: ZoneOf,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._routes = routes
        self._turns = turns
        self.receiver = SessionReceiver(context.broker, zone_of)
        self._incoming = incoming = IncomingSessions(context)
        self._waiting = DeferredMessages(context, self.receiver)
        self._tasks = Tasks()
        self._watched = False
        self.step: Callable[[str], None] = lambda name: None
        self._given_pieces = GivenPieces(context, members, calls, self._coming_row)
        self.outgoing = Outgoing(context, members, calls, turns, self._is_coming, self._arrives, self._given_pieces)
        self.outgoing.untold = self.untold
        self.outgoing.keepers = incoming.keepers
        self.outgoing.doubts = incoming.doubts
        self.outgoing.held = self._waiting.held
        self.outgoing.release_held = self._release_to
        self.outgoing.end_held = self._end_held
        self.outgoing.on_leaving = self._pause
        self.outgoing.on_kept = self._go_on
        self.outgoing.on_gone = self._gone
        # Of each session that is here and went on without other nodes, which those are; and which of these have nothing
        # of it any more, as far as this node has learned since its start.
        self._givers: dict[str, list[str]] = {}
        self._given: dict[str, set[str]] = {}
        self._marks = MarkQuestions(
            context,
            members,
            calls,
            routes,
            turns,
            incoming,
            self.outgoing.leaves,
            lambda each: bool(self._waiting.held(each)),
            self._givers_of,
            self._fetch_from_giver,
        )
        turns.on_begun = self._marks.ask
        turns.last_epoch = self.outgoing.last_epoch
        turns.is_closed = self.outgoing.is_closed
        self.ownership: Ownership
        # Attempts that other nodes are asked about, and whether their clients still wait.
        self._asking: dict[str, Callable[[], bool]] = {}
        calls.serve(OFFER, self._offered)
        calls.serve(WANTED, self._is_wanted)

    # -------------------------------------------------------------- start, stop

    def load(self) -> None:
        """The node has its sessions: these are not all of them here yet."""
        self.outgoing.ownership = self._turns.ownership = self._marks.ownership = self.ownership
        self.outgoing.load()
        self._given_pieces.load()
        self._incoming.load()
        self._waiting.load()
        for incoming in self._incoming.all():
            row = incoming.row
            session = incoming.session = self._broker.sessions.get(incoming.client_id)
            if session is None or incoming.keeper or row.rest:
                continue
            incoming.staging = self._waiting.staging(incoming.client_id)
            if row.state == ADOPTED:
                for subscription in session.subscriptions.values():
                    self._broker.router.unsubscribe(subscription)
            elif row.state == FETCHING:
                incoming.staging = self._waiting.open_staging(session)
        for client_id, staging in self._waiting.stagings():
            main = self._incoming.get(client_id)
            if main is None or main.staging is not staging:
                self._broker.life.forget_session(staging)
        self._turns.load(self._session_of, self.outgoing.stays)
        for client_id in self._waiting.held_clients():
            if self._turns.get(client_id) is None:
                self._end_held(client_id, self._broker.sessions.get(client_id))
        for client_id in {*self._waiting.held_clients(), *(each.client_id for each in self._incoming.all())}:
            turn = self._turns.get(client_id)
            if turn is not None:
                self._attend(turn)
        self._watch()

    def _session_of(self, client_id: str) -> Session | None:
        """Which session takes what comes for a client, after a restart; ``None``: it is elsewhere."""
        incoming = self._incoming.get(client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return None
        if incoming is not None and incoming.staging is not None:
            return incoming.staging
        return self._broker.sessions.get(client_id)

    def start(self) -> None:
        """It is known whose the sessions are: go on where it was."""
        for incoming in self._incoming.all():
            session, row = incoming.session, incoming.row
            if incoming.keeper or not self._incoming.has(incoming):
                continue
            if row.state == ADOPTED:
                self._tasks.run(self._decide(incoming))
            elif row.state == FINISHED or session is None:
                self._end_staging(incoming)
                self._finish(incoming, row.keep)
            else:
                # One that is another node's by now takes no new messages; what is still to come goes there, too.
                if not row.rest and not self.outgoing.leaves(incoming.client_id):
                    self._stage(incoming, session)
                self._fetch(incoming)
        self._given_pieces.start()
        for incoming in self._incoming.all():
            if incoming.keeper and (incoming.session is None or incoming.row.state == FINISHED):
                self._finish(incoming)
        for client_id in {*self._turns.clients(), *(each.client_id for each in self._incoming.all())}:
            self._go_on(client_id)

    async def _decide(self, incoming: Incoming) -> None:
        """This node died as it took the session, which is where the key says."""
        await self.ownership.known()
        await self.ownership.settle_earlier_life(incoming.client_id, incoming.row.node)
        while not self._members.known:  # this node's mark goes to the other one
            await asyncio.sleep(_PAUSE_UNREACHABLE)
        session = incoming.session
        if not self._incoming.has(incoming) or incoming.row.state != ADOPTED:
            return
        if not self.ownership.has(incoming.client_id):
            self.drop(incoming.client_id)
            return
        if session is None:
            self._finish(incoming)
            return
        self._stage(incoming, session)
        self._fetch(incoming)
        self._go_on(incoming.client_id)

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._marks.stop()
        await self._given_pieces.stop()
        await self.outgoing.stop()

    # ----------------------------------------------------------------- questions

    @property
    def coming(self) -> int:
        """Sessions that are not all here yet."""
        return self._incoming.sessions

    @property
    def checks_owner(self) -> bool:
        """Whether a session of another is refused."""
        return self._context.channels.access.settings.session_owner != "any"

    def is_undecided(self, client_id: str) -> bool:
        """Whether a session is here of which it is not known yet whether this node has taken it."""
        incoming = self._incoming.get(client_id)
        return incoming is not None and incoming.row.state == ADOPTED

    def untold(self, client_id: str) -> dict[str, bool]:
        """The node that does not know yet that all of a session has come here; as ``wire.Owned.earlier``."""
        incoming = self._incoming.get(client_id)
        return {} if incoming is None else {incoming.row.node: incoming.row.state != FINISHED}

    def giver(self, client_id: str) -> str:
        """The node that a session comes from, as long as not all of it is here; empty: none."""
        incoming = self._incoming.get(client_id)
        return "" if incoming is None or incoming.row.rest or incoming.row.state == FINISHED else incoming.row.node

    def _coming_row(self, client_id: str) -> HandoverRow | None:
        incoming = self._incoming.get(client_id)
        return None if incoming is None else incoming.row

    def _is_coming(self, client_id: str) -> bool:
        """Whether this session is not all here, though the nodes run that have the rest."""
        if self._arrives(client_id) and not self._is_let_go(client_id):
            return True
        away = self._late_at_stopped(client_id)
        return any(node not in away for node in self._waiting.held(client_id))

    def _arrives(self, client_id: str) -> bool:
        """Whether another node is giving this session, or does not know yet that it has."""
        incoming = self._incoming.get(client_id)
        if incoming is None:
            return False
        row = incoming.row
        return row.state == ADOPTED or incoming.staging is not None or (row.keep and row.state == FINISHED)

    def _is_let_go(self, client_id: str) -> bool:
        """Whether all of the session is here, and the node that does not know it is not waited for."""
        incoming = self._incoming.get(client_id)
        if incoming is None or incoming.row.state != FINISHED or incoming.staging is not None:
            return False
        peer = self._members.peers.get(incoming.row.node)
        return self._context.settings.takeover == FRESH and peer is not None and not peer.may_run

    def _late_at_stopped(self, client_id: str) -> set[str]:
        """Nodes of whose messages some are with a keeper that is stopped: what waits for those may wait for long, and
        goes along with the session."""
        peers = self._members.peers
        keepers = self._incoming.keepers_of(client_id)
        stopped = [each for each in keepers if each.row.node in peers and peers[each.row.node].status == STOPPED]
        return {node for each in stopped for node in each.row.late}

    def _own_are_early(self, incoming: Incoming) -> bool:
        """Whether another node keeps what this one sent there before the session came here."""
        peers = self._members.peers
        fresh = self._context.settings.takeover == FRESH
        return any(
            self._context.node in each.row.late
            and each.row.node in peers
            and not (fresh and peers[each.row.node].status == STOPPED)
            for each in self._incoming.keepers_of(incoming.client_id)
        )

    def _pause(self, client_id: str) -> None:
        """The session may go to another node, and with it what others keep for it. What still comes goes there, too:
        nothing may be taken here behind the last piece that this node gives."""
        main = self._incoming.get(client_id)
        coming = [main] if main is not None and main.row.state == FETCHING else []
        for incoming in [*coming, *self._incoming.keepers_of(client_id)]:
            if incoming.task is not None:
                incoming.task.cancel()
                incoming.task = None

    def _end_held(self, client_id: str, session: Session | None) -> None:
        """What waited for keepers waits no longer."""
        for node in list(self._waiting.held(client_id)):
            self._waiting.end_held(client_id, node, session)

    # ------------------------------------------------- a session that went on without a node

    def went_on_without(self, client_id: str, nodes: list[str]) -> None:
        """The key says that a session is this node's and went on without these nodes, which may have something for it;
        or, without any, that it did not, or is another node's."""
        if nodes:
            self._givers[client_id] = nodes
            self._watch()
        elif self._givers.pop(client_id, None) is not None:
            self._given.pop(client_id, None)
            self._unwatch()

    def _givers_of(self, client_id: str) -> list[str]:
        """Nodes that may still have something of a session that is here, in the order in which it was there."""
        given = self._given.get(client_id, ())
        peers, known = self._members.peers, self._members.known
        return [each for each in self._givers.get(client_id, ()) if each not in given and (each in peers or not known)]

    def _fetch_from_giver(self, client_id: str) -> None:
        """Begin to fetch what the first of these has that runs; the others follow when all of that has come."""
        if self._incoming.get(client_id) is not None:
            return
        peers = self._members.peers
        session = self._broker.sessions.get(client_id)
        node = next((each for each in self._givers_of(client_id) if each in peers and peers[each].running), None)
        if session is not None and node is not None and self.ownership.has(client_id):
            self._begin_rest(session, node, self._context.nonce())

    def _begin_rest(self, session: Session, node: str, move: str) -> Incoming:
        """What another node has of a session that is here comes, and what third nodes have for it there: ``node`` gets
        their marks, where the key has named it."""
        client_id = session.client_id
        turn = self._turns.get(client_id)
        if node not in self._givers_of(client_id):
            turn = None
        elif turn is None:
            turn = self._begin_turn(session)
        epoch = 0 if turn is None else turn.epoch
        doubt = self._incoming.doubt_of(client_id, node)
        row = HandoverRow(node, move, FETCHING, doubt=doubt, rest=True, epoch=epoch)
        incoming = self._incoming.begin(client_id, row, session)
        self._run(incoming)
        return incoming

    def _begin_turn(self, session: Session) -> Turn:
        """The session began anew. What other nodes have sent until their marks is for the session that it was: so each
        message is taken once, here or there."""
        client_id = session.client_id
        place = self.ownership.place(client_id)
        filters = [each.filter for each in session.subscriptions.values() if each.group is None]
        epoch = 0 if place is None else place.revision
        turn = self._turns.begin(client_id, session, filters, epoch)
        turn.anew = True
        self._turns.settle(turn, session)
        self._turns.mark(Mark(client_id, self._context.node, epoch), self._marks.nodes_of(client_id)[1:])
        self._attend(turn)
        self._marks.ask(turn)
        return turn

    def _subscribed_anew(self, session: Session, subscription: Subscription) -> None:
        turn = self._turns.get(session.client_id)
        if turn is None:
            if len(session.subscriptions) == 1 and self._givers_of(session.client_id):
                self._begin_turn(session)
        elif turn.anew and turn.session is session and turn.filters is not None and turn.others:
            turn.filters.add(subscription.filter)
            self._turns.put(turn)

    async def marked(self, client_id: str) -> None:
        """Until each node that runs sends here what is for a session that began anew, no longer than a question."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.call_timeout):
                while (turn := self._turns.get(client_id)) is not None and turn.anew:
                    if all(turn.marked(each.name) for each in self._members.running()):
                        return
                    await asyncio.sleep(_PAUSE)

    def _go_on(self, client_id: str) -> None:
        """The session is this node's."""
        if self.outgoing.leaves(client_id):
            return
        if self._waiting.held(client_id):
            self._tasks.run(self._release(client_id))
        main = self._incoming.get(client_id)
        coming = [main] if main is not None and main.row.state == FETCHING else []
        for incoming in [*coming, *self._incoming.keepers_of(client_id)]:
            if incoming.task is None or incoming.task.done():
                self._run(incoming)
        turn = self._turns.get(client_id)
        if turn is not None:
            self._attend(turn)
            self._marks.ask(turn)

    def _gone(self, client_id: str, moved: bool) -> None:
        """Another node has the session: what is still to come is offered to that one."""
        main = self._incoming.get(client_id)
        if main is not None and main.row.state == FETCHING:
            if main.task is not None:
                main.task.cancel()
            self._given_pieces.went_on(client_id, main.row)
            self._end_staging(main)
            self._remove(main)
        for incoming in self._incoming.keepers_of(client_id):
            if moved:
                self._remove(incoming)
            else:
                self._finish(incoming)
        self._incoming.note_doubts(client_id, {})
        self._end_held(client_id, None)

    def leaves(self, client_id: str) -> bool:
        """Whether another node is just getting this session from here."""
        return self.outgoing.leaves(client_id)

    async def left(self, client_id: str, timeout: float) -> None:
        """Until it has it, or does not want it any more."""
        await self.outgoing.left(client_id, timeout)

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """As ``Outgoing.lost``."""
        incoming = self._incoming.get(session.client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return  # not ours yet
        if incoming is not None and incoming.staging is not None:
            if clean_start:
                self._end_staging(incoming)
            else:
                # That node may give it back: then it goes on as it was.
                self._join(incoming, incoming.staging, session)
        self.outgoing.lost(session, node, epoch, clean_start, anew, last_epoch)

    def returned(self, client_id: str) -> None:
        """Another node has written that a session is this node's."""
        self.outgoing.returned(client_id)

    def session_ended(self, session: Session) -> None:
        """A session of this node is over: nothing more of it is wanted."""
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is session:
                self._end_staging(incoming)
                self._finish(incoming)
        if self._turns.get(session.client_id) is not None:
            self._turns.end(session.client_id)
            self._end_held(session.client_id, None)
        if not session.internal:
            self.went_on_without(session.client_id, [])
            self._incoming.note_doubts(session.client_id, {})
        self.outgoing.session_ended(session)

    # ---------------------------------------------------------- the steps of a claim

    async def prepare(
        self,
        node: str,
        revision: int,
        client: ClientInfo,
        move: str,
        clean_start: bool,
        waits: Callable[[], bool],
        timeout: float,
        absent: bool = False,
    ) -> Prepared:
        """Ask a node for a session, whose key has this revision. ``waits``: whether the client is there still.
        ``absent``: as in ``Prepare``."""
        check = self.checks_owner
        ask = Prepare(client.client_id, move, revision, client.owner, client.username, check, clean_start, absent)
        most = self._context.settings.call_timeout
        self._asking[move] = waits
        try:
            answer = await self._calls.call(node, PREPARE, _encode(ask), min(timeout, most))
        finally:
            del self._asking[move]
        prepared = self._calls.decoded(node, answer, Prepared)
        moved = prepared.session
        if moved is None:
            return prepared
        inflight = [each for each in moved.inflight if each[1] is None or self._is_valid(node, each[1])]
        will = moved.will
        if will is not None and not (valid_body(will.body) and valid_time(will.due_in)):
            self._context.refusals.add(MALFORMED, node, "-")
            will = None
        return msgspec.structs.replace(prepared, session=msgspec.structs.replace(moved, inflight=inflight, will=will))

    async def _is_wanted(self, node: str, argument: bytes) -> bytes:
        """Whether a client still waits for a session that this node has asked another one for."""
        waits = self._asking.get(argument.decode("ascii", "replace"))
        return b"1" if waits is not None and waits() else b""

    def _is_valid(self, node: str, moved: MovedDelivery) -> bool:
        """Whether what a node has given can be delivered; it is counted where not."""
        if valid_body(moved.body) and 0 <= moved.qos <= 2:
            return True
        self._context.refusals.add(MALFORMED, node, "-")
        return False

    def adopt(self, client_id: str, node: str, move: str, moved: MovedSession, prepared: Prepared) -> None:
        """Make the session here; its subscriptions are not in force yet."""
        # If the other node dies now, it may not remember that these were sent, and has them in its queue.
        doubt = keys_of(each for _, each in moved.inflight if each is not None)
        session = self.receiver.session(moved)
        self._broker.life.adopt_session(session)
        incoming = self._incoming.begin(client_id, HandoverRow(node, move, ADOPTED, doubt=doubt), session)
        incoming.will_due = self.receiver.hold(session, moved)
        incoming.replays = moved.replays
        self._incoming.keep_all(client_id, prepared.keepers, session)
        self._incoming.note_doubts(client_id, prepared.doubts)

    def drop(self, client_id: str) -> None:
        """The session stays where it was."""
        found = self._incoming.of(client_id)
        for incoming in found:
            self._remove(incoming)
        self._incoming.note_doubts(client_id, {})
        if found and found[0].session is not None:
            self._broker.life.forget_session(found[0].session)

    def cancel(self, client_id: str) -> None:
        """The other node need not wait any longer."""
        incoming = self._incoming.get(client_id)
        if incoming is not None:
            row = incoming.row
            self._tasks.run(self._cancel(row.node, Done(client_id, row.move)))

    async def _cancel(self, node: str, done: Done) -> None:
        with contextlib.suppress(NodeUnreachable, CallFailed):  # else it finds out by itself
            await self._calls.call(node, CANCEL, _encode(done))

    def begin(self, client_id: str) -> None:
        """It is this node's: it goes on here, and the rest of it comes."""
        incoming = self._incoming.get(client_id)
        assert incoming is not None and incoming.session is not None
        session = incoming.session
        self._stage(incoming, session)
        self._broker.life.continue_session(session, incoming.will_due, self._context.clock.now())
        for filter in incoming.replays:
            subscription = session.subscriptions.get(filter)
            if subscription is not None:
                self._broker.replay_retained(session, subscription)
        self._fetch(incoming)
        self._go_on(client_id)

    # ------------------------------------------------------------------- staging

    def _stage(self, incoming: Incoming, session: Session) -> None:
        """From now on new messages wait in a session of their own."""
        client_id = session.client_id
        if incoming.staging is None:
            incoming.staging = self._waiting.open_staging(session)
        staging = incoming.staging
        before = self._turns.get(client_id)
        if before is None or before.session is not staging:
            place = self.ownership.place(client_id)
            epoch = 0 if place is None else place.revision
            filters = [each.filter for each in session.subscriptions.values() if each.group is None]
            self._turns.begin(client_id, staging, filters, epoch)
            self._incoming.put(incoming, msgspec.structs.replace(incoming.row, epoch=epoch))
            mark = Mark(client_id, self._context.node, epoch)
            self._turns.mark(mark, self._marks.nodes_of(client_id)[1:])
        self._watch()

    def _unwatch(self) -> None:
        if self._watched and not self._incoming and not self._givers:
            self._watched = False
            self._broker.hooks.session_subscribed.remove(self._subscribed)
            self._broker.hooks.session_unsubscribed.remove(self._unsubscribed)

    def _watch(self) -> None:
        if (self._incoming or self._givers) and not self._watched:
            self._watched = True
            broker = self._broker
            broker.hooks.session_subscribed.add(self._subscribed)
            broker.hooks.session_unsubscribed.add(self._unsubscribed)

    def _subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        session = subscription.session
        if session.client_id in self._givers and subscription.group is None:
            self._subscribed_anew(session, subscription)
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is session:
                incoming.ended = [each for each in incoming.ended if each.filter != subscription.filter]
                if incoming.staging is not None:
                    self._waiting.stage(incoming.staging, subscription)

    def _unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        session = subscription.session
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is not session:
                continue
            incoming.ended.append(subscription)
            if incoming.staging is not None:
                self._waiting.unstage(incoming.staging, subscription.filter)
        turn = self._turns.get(session.client_id)
        if turn is not None and turn.filters is not None and subscription.filter in turn.filters:
            turn.filters.discard(subscription.filter)
            self._turns.put(turn)

    async def _merge(self, incoming: Incoming, session: Session) -> None:
        """New messages go to the session itself from now on, after those that waited."""
        staging = incoming.staging
        if staging is None:
            return

        def to() -> Session | None:
            is_so = self._incoming.has(incoming) and incoming.staging is staging
            return session if is_so else None

        await self._waiting.deliver_paged(staging, to)
        if to() is None:
            return
        self._join(incoming, staging, session)

    def _join(self, incoming: Incoming, staging: Session, session: Session) -> None:
        """The session takes new messages itself, after those that are in memory and wait in ``staging``."""
        router = self._broker.router
        for subscription in session.subscriptions.values():
            router.subscribe(subscription)  # before the others go, so that no other node is told of a change
        turn = self._turns.get(session.client_id)
        if turn is not None:
            self._turns.settle(turn, session)
        self._waiting.deliver(staging, session)
        self._end_staging(incoming)

    def _attend(self, turn: Turn) -> None:
        """Messages of a node wait while earlier ones of it are with a keeper, or wait."""
        client_id = turn.client_id

        def held(node: str) -> Session:
            session = self._broker.sessions.get(client_id)
            assert session is not None
            return self._waiting.open_held(session, node)

        def waiting(node: str) -> bool:
            late = turn.marked(node) and node in self._incoming.late_of(client_id)
            return late or node in self._waiting.held(client_id)

        turn.waiting = waiting
        turn.held = held

    async def _release(self, client_id: str) -> None:
        """What waited goes on, of each node of which no keeper has anything any more."""

        def to() -> Session | None:
            if self.outgoing.leaves(client_id):
                return None
            incoming = self._incoming.get(client_id)
            staging = None if incoming is None else incoming.staging
            return staging or self._broker.sessions.get(client_id)

        await self._release_to(client_id, to, False)

    async def _release_to(self, client_id: str, to: Callable[[], Session | None], late: bool) -> bool:
        """What waited goes to this session; ``None``: not any more. ``late``: of nodes of which a keeper has something,
        too. Returns whether there was anything."""
        released = False
        for node, held in list(self._waiting.held(client_id).items()):

            def still_to(node: str = node, held: Session = held) -> Session | None:
                waits = self._waiting.held(client_id).get(node) is held
                return to() if waits and (late or node not in self._incoming.late_of(client_id)) else None

            if still_to() is None:
                continue
            released = True
            await self._waiting.deliver_paged(held, still_to)
            session = still_to()
            if session is not None:
                self._waiting.end_held(client_id, node, session)
        return released

    def _end_staging(self, incoming: Incoming) -> None:
        staging, incoming.staging = incoming.staging, None
        if staging is not None:
            self._broker.life.forget_session(staging)

    # --------------------------------------------------------------------- fetch

    def _run(self, incoming: Incoming) -> None:
        incoming.task = self._tasks.run(self._bring(incoming))

    def _fetch(self, incoming: Incoming) -> None:
        self._incoming.put(incoming, msgspec.structs.replace(incoming.row, state=FETCHING))
        self._run(incoming)

    async def _bring(self, incoming: Incoming) -> None:
        """All that is still to come, however long it takes."""
        try:
            while not self._members.known:
                await asyncio.sleep(_PAUSE_UNREACHABLE)
            if not self._incoming.has(incoming):
                return
            if incoming.row.state == FETCHING:
                # The other node drops what is in flight when it is first asked: after a restart this one must know that
                # the session is its own, even if NATS is away then.
                await self._context.tables.stored()
                await self._bring_queue(incoming)
            if incoming.row.state == FINISHED:
                await self._tell_done(incoming)
        except asyncio.CancelledError:
            raise
        except Exception:  # of one session; it goes on after the next start
            logger.exception("handover_failed client_id=%s node=%s", incoming.client_id, incoming.row.node)

    def _turned(self, incoming: Incoming) -> list[str] | None:
        """Which nodes have sent their marks here, if all have that run."""
        turn = self._turns.get(incoming.client_id)
        if turn is None or not self._goes_by_marks(incoming):
            return []
        if not all(turn.marked(each.name) for each in self._members.running()):
            return None
        return [each for each in turn.marks if turn.marked(each)]

    def _goes_by_marks(self, incoming: Incoming) -> bool:
        """Whether the other node takes what other nodes send there until their marks."""
        return incoming.staging is not None or (not incoming.keeper and incoming.row.epoch > 0)

    async def _bring_queue(self, incoming: Incoming) -> None:
        session = incoming.session
        assert session is not None
        client_id = incoming.client_id
        late: list[str] = []
        held: list[str] = []
        pause = _PAUSE
        while incoming.row.state == FETCHING:
            if incoming.keeper and self._incoming.is_early(incoming):
                await asyncio.sleep(_PAUSE if self._incoming.get(client_id) is not None else self._slow(_PAUSE_KEPT))
                if not self._incoming.has(incoming):
                    return
                continue
            row = incoming.row
            ended = [each.filter for each in incoming.ended]
            turned = self._turned(incoming)
            ask = Fetch(incoming.at_sender, row.move, row.taken, row.doubt, row.rest, ended, turned, row.epoch)
            try:
                piece = await self._ask(row.node, ask)
            except (NodeUnreachable, CallFailed) as error:
                if not await self._wait_for_node(incoming, str(error)):
                    break
                continue
            if incoming.row.state != FETCHING or not self._incoming.has(incoming):
                break
            if piece.state == BUSY or (piece.state == MORE and not piece.deliveries):
                if incoming.keeper and piece.state == MORE:
                    await self._note_late(incoming, piece.late)
                turn = self._turns.get(client_id)
                quick = not (incoming.keeper or row.rest)
                quick = quick or (turn is not None and any(turn.marked(each) for each in row.late))
                await asyncio.sleep(pause if quick else self._slow(_PAUSE_KEPT))
                # A node that has died without a word is waited for some seconds, with many sessions at once.
                pause = min(2 * pause, _PAUSE_KEPT)
            elif piece.state == MORE:
                pause = _PAUSE
                self._take_in(incoming, session, piece)
                self.step("piece_taken")
                if not await self._context.tables.stored():
                    await asyncio.sleep(_ASK_AGAIN)
            else:
                turn = self._turns.get(client_id)
                late, held = piece.late, piece.held
                marked = turn is not None and any(turn.marked(each) for each in late)
                if not self._goes_by_marks(incoming) or not marked:
                    break
                late = []
                await asyncio.sleep(_PAUSE)
        if incoming.row.state != FETCHING or not self._incoming.has(incoming):
            return
        self.step("fetched")
        keep = self._goes_by_marks(incoming) and bool(late or held)
        if keep:
            row = incoming.row
            late = sorted({*late, *held})
            order = max((each.row.order for each in self._incoming.keepers_of(client_id)), default=0) + 1
            kept = HandoverRow(row.node, "", FETCHING, rest=True, late=late, epoch=row.epoch, order=order)
            self._incoming.keep(client_id, kept, session)
        incoming.came = True
        while incoming.staging is not None and self._own_are_early(incoming):
            # One of the keepers may be that node, which keeps nothing before it knows that all has come.
            if not incoming.told:
                # Should this node die now, it is to know afterwards what that one keeps.
                incoming.told = await self._context.tables.stored() and await self._tell(incoming, keep)
                self._go_on(client_id)
            await asyncio.sleep(_PAUSE)
            if incoming.row.state != FETCHING or not self._incoming.has(incoming):
                return
        await self._merge(incoming, session)
        if incoming.row.state != FETCHING or not self._incoming.has(incoming):
            return
        if incoming.row.rest and not incoming.keeper:
            self._given.setdefault(client_id, set()).add(incoming.row.node)
            doubts = self._incoming.doubts(client_id)
            doubts.pop(incoming.row.node, None)
            self._incoming.note_doubts(client_id, doubts)
        self._finish_row(incoming, keep)
        if incoming.keeper:
            await self._release(client_id)
        self.step("merged")

    def _slow(self, pause: float) -> float:
        """Seconds between two questions of a session that may go on for long."""
        return max(pause, len(self._incoming) / _QUESTIONS)

    async def _ask(self, node: str, ask: Fetch) -> Piece:
        if node == self._context.node:
            return await self.outgoing.piece(node, ask)
        return self._calls.decoded(node, await self._calls.call(node, FETCH, _encode(ask)), Piece)

    async def _note_late(self, incoming: Incoming, late: list[str]) -> None:
        """All that the keeper had is here."""
        if late != incoming.row.late:
            self._incoming.put(incoming, msgspec.structs.replace(incoming.row, late=late))
            await self._release(incoming.client_id)

    def _take_in(self, incoming: Incoming, session: Session, piece: Piece) -> None:
        session.now = self._context.clock.now()
        for each in piece.deliveries:
            if not self._is_valid(incoming.row.node, each):
                continue
            delivery = self.receiver.delivery(each)
            if incoming.ended and _is_over(incoming.ended, session, each):
                self._broker.delivery_dropped(session, delivery, REVOKED)
                continue
            if incoming.restarted and not delivery.qos:
                self._broker.delivery_dropped(session, delivery, QOS0_MSG)
                continue
            session.deliver_shared(delivery)
        incoming.restarted = False
        row = incoming.row
        self._incoming.put(incoming, msgspec.structs.replace(row, taken=piece.number, doubt=keys_of(piece.deliveries)))

    async def _wait_for_node(self, incoming: Incoming, error: str) -> bool:
        """The other node does not answer. False: it never will."""
        node = incoming.row.node
        peer = self._members.peers.get(node)
        if peer is None:
            logger.warning("handover_ended client_id=%s node=%s reason=node_removed", incoming.client_id, node)
            return False
        fresh = self._context.settings.takeover == FRESH
        if fresh and not peer.may_run and incoming.staging is not None and incoming.session is not None:
            # Its client has waited long enough: what that node still has comes when it is back, after newer messages.
            logger.warning("handover_interrupted client_id=%s node=%s error=%s", incoming.client_id, node, error)
            await self._merge(incoming, incoming.session)
        await asyncio.sleep(self._slow(_PAUSE_UNREACHABLE))
        return True

    # ------------------------------------------------------------------- the end

    def _finish_row(self, incoming: Incoming, keep: bool = False) -> None:
        self._incoming.put(incoming, msgspec.structs.replace(incoming.row, state=FINISHED, doubt=[], keep=keep))

    def _finish(self, incoming: Incoming, keep: bool = False) -> None:
        """The session is over, or all of it is here already."""
        self._finish_row(incoming, keep)
        if incoming.task is None or incoming.task.done():
            self._run(incoming)

    async def _tell_done(self, incoming: Incoming) -> None:
        client_id = incoming.client_id
        await self._context.tables.stored()
        while not incoming.told and not await self._tell(incoming, incoming.row.keep):
            await asyncio.sleep(self._slow(_ASK_AGAIN))
            if not self._incoming.has(incoming):
                return
        if self._incoming.has(incoming):
            self._remove(incoming)
            self._go_on(client_id)
        self.step("done")

    async def _tell(self, incoming: Incoming, keep: bool) -> bool:
        """Whether the other node knows that all has come, or need not."""
        row = incoming.row
        over = bool(incoming.keeper) and incoming.client_id not in self._broker.sessions
        done = Done(incoming.at_sender, row.move, keep, row.epoch, over)
        if row.node == self._context.node:
            await self.outgoing.done(row.node, done)
            return True
        # Where the session is that node's again, there is nothing to forget.
        again = not incoming.keeper and self.ownership.node_of(incoming.client_id) == row.node
        if row.node not in self._members.peers or again:
            return True
        try:
            await self._calls.call(row.node, DONE, _encode(done))
        except (NodeUnreachable, CallFailed):
            return False
        return True

    def _remove(self, incoming: Incoming) -> None:
        if self._incoming.has(incoming):
            self._incoming.remove(incoming)
            turn = self._turns.get(incoming.client_id)
            if turn is not None:
                turn.changed.set()
        self._unwatch()

    async def _offered(self, node: str, argument: bytes) -> bytes:
        """A node that was away has the rest of a session that was begun anew here."""
        offer = self._calls.decoded(node, argument, Offer)
        client_id = offer.client_id
        incoming = self._incoming.get(client_id)
        session = self._broker.sessions.get(client_id)
        if incoming is None and (session is None or not self.ownership.has(client_id)):
            # Only where it is certain that this node does not have it, nor ever will.
            unsettled = self.ownership.has(client_id) or self.ownership.busy(client_id)
            return (BUSY if unsettled else GONE).encode()
        if incoming is None:
            assert session is not None
            self._begin_rest(session, node, offer.move)
        return MORE.encode()


def _encode(body: object) -> bytes:
    return msgspec.msgpack.encode(body)


def _is_over(ended: list[Subscription], session: Session, moved: MovedDelivery) -> bool:
    """Whether what brought this message to the session is over, and nothing else of it matches."""
    if moved.group:
        return any(each.filter == moved.group for each in ended)
    topic = moved.body.topic
    if not any(each.group is None and matches(each.topic_filter, topic) for each in ended):
        return False
    return not any(each.group is None and matches(each.topic_filter, topic) for each in session.subscriptions.values())
