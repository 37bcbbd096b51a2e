"""Handover: brings a session from another node to this one; ``outgoing`` is the other direction.

The session is on this node's disk before its key names this node. The queue follows when the client has its CONNACK::

    this node                        the node that has the session
    prepare  ──────────────────────► closes the client's connection, and keeps the session as it is (``outgoing``); with
                                     Clean Start it ends the session if this node's client still waits
             ◄────────────────────── subscriptions, messages in flight, Will
    adopt: session, on disk
    take: compare-and-set of the key
    begin: CONNACK
    fetch    ──────────────────────► drops the messages in flight, and the piece before
             ◄────────────────────── the next piece of the queue, until all nodes send new messages here
    done     ──────────────────────► forgets the session

In the meantime, new messages go to a second session (``waiting_messages``), which has the subscriptions. They are
delivered at the end. Both nodes agree which messages are new (``turns``). Thus no message is lost, none arrives twice,
and the messages of a publisher arrive in order. With the rows in the table ``handover`` (``incoming``), each step
continues after a restart.

This node does not wait for a node that is Stopped. The other node keeps the messages that the Stopped node still sends
there (``outgoing``). This node fetches them in the same way, even if it is the other node itself by then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ...core.cluster import STOPPED, CallFailed, NodeUnreachable
from ...mqtt.topics import matches
from ...session.client_info import ClientInfo
from ...session.protocols import QOS0_MSG, REVOKED
from ...session.session import Session
from ...session.subscription import Subscription
from ...store.restored import ZoneOf
from ..calls import Calls
from ..context import ClusterContext
from ..links.link import LISTENER as LINKS
from ..links.link_receiver import LinkReceiver
from ..links.routes import ClusterRoutes
from ..members.members import Members
from ..tasks import Tasks
from ..wire import MALFORMED, valid_body, valid_time
from .given_pieces import GivenPieces
from .incoming import ADOPTED, FETCHING, FINISHED, HandoverRow, Incoming, IncomingSessions
from .mark_questions import MarkQuestions
from .outgoing import CANCEL, DONE, FETCH, FRESH, OFFER, PREPARE, WANTED, Outgoing
from .session_keys import SessionKeys
from .session_transfer import (
    BUSY,
    GONE,
    MORE,
    Done,
    Fetch,
    Keeper,
    MovedDelivery,
    MovedSession,
    Offer,
    Piece,
    Prepare,
    Prepared,
    SessionReceiver,
    keys_of,
)
from .turns import Mark, Turn, Turns
from .waiting_messages import DeferredMessages

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.01
_PAUSE_KEPT: Final = 0.25
"""Seconds between two questions for messages that nodes that are away may still send to another node."""
_PAUSE_UNREACHABLE: Final = 0.5
_ASK_AGAIN: Final = 1.0
_QUESTIONS: Final = 500
"""Questions in a second for all sessions together, because they may continue for as long as a node is away."""


class Handover:
    """``prepare`` to ``begin`` are the steps of a claim; this class then fetches the rest of the session by itself.

    ``step`` is called with the name of each step after the client has its CONNACK.
    """

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        routes: ClusterRoutes,
        receiver: LinkReceiver,
        zone_of: ZoneOf,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._routes = routes
        self.receiver = SessionReceiver(context.broker, zone_of)
        self._incoming = incoming = IncomingSessions(context)
        self._waiting = DeferredMessages(context, self.receiver)
        self._tasks = Tasks()
        self._watched = False
        self.step: Callable[[str], None] = lambda name: None
        self.session_keys = SessionKeys(context, members, self)
        self.turns = Turns(context, members, calls, routes, receiver, self.session_keys, self)
        self._given_pieces = GivenPieces(context, members, calls, self._coming_row, self._is_under_way)
        self.outgoing = Outgoing(context, members, calls, self.turns, self.session_keys, self, self._given_pieces)
        # For each session here that continued without other nodes: those nodes, and which of them have nothing left of
        # it, as far as this node has learned since its start.
        self._givers: dict[str, list[str]] = {}
        self._given: dict[str, set[str]] = {}
        self._marks = MarkQuestions(
            context,
            members,
            calls,
            routes,
            self.turns,
            self.session_keys,
            incoming,
            self.outgoing.leaves,
            lambda each: bool(self._waiting.held(each)),
            self._givers_of,
            self._fetch_from_giver,
        )
        # Attempts that other nodes were asked for, and functions that return whether their clients still wait.
        self._asking: dict[str, Callable[[], bool]] = {}
        calls.serve(OFFER, self._offered)
        calls.serve(WANTED, self._is_wanted)

    # -------------------------------------------------------------- start, stop

    def load(self) -> None:
        """Read which sessions have not arrived completely, when the node's sessions are restored."""
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
        self.turns.load(self._session_of, self.outgoing.stays)
        for client_id in self._waiting.held_clients():
            if self.turns.get(client_id) is None:
                self.end_held(client_id, self._broker.sessions.get(client_id))
        for client_id in {*self._waiting.held_clients(), *(each.client_id for each in self._incoming.all())}:
            turn = self.turns.get(client_id)
            if turn is not None:
                self._attend(turn)
        self._watch()

    def _session_of(self, client_id: str) -> Session | None:
        """Return which session takes new messages for a client after a restart; ``None``: the session is elsewhere."""
        incoming = self._incoming.get(client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return None
        if incoming is not None and incoming.staging is not None:
            return incoming.staging
        return self._broker.sessions.get(client_id)

    def start(self) -> None:
        """Continue all moves, when the nodes of the sessions are known."""
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
                # A session that another node has by now takes no new messages; its rest goes to that node, too.
                if not row.rest and not self.outgoing.leaves(incoming.client_id):
                    self._stage(incoming, session)
                self._fetch(incoming)
        self._given_pieces.start()
        for incoming in self._incoming.all():
            if incoming.keeper and (incoming.session is None or incoming.row.state == FINISHED):
                self._finish(incoming)
        for client_id in {*self.turns.clients(), *(each.client_id for each in self._incoming.all())}:
            self.kept(client_id)

    async def _decide(self, incoming: Incoming) -> None:
        """Find out which node has the session after this node died while it took it: the key decides."""
        await self.session_keys.known()
        await self.session_keys.settle_earlier_life(incoming.client_id, incoming.row.node)
        while not self._members.known:  # this node's mark has to reach the other one
            await asyncio.sleep(_PAUSE_UNREACHABLE)
        session = incoming.session
        if not self._incoming.has(incoming) or incoming.row.state != ADOPTED:
            return
        if not self.session_keys.has(incoming.client_id):
            self.drop(incoming.client_id)
            return
        if session is None:
            self._finish(incoming)
            return
        self._stage(incoming, session)
        self._fetch(incoming)
        self.kept(incoming.client_id)

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._marks.stop()
        await self._given_pieces.stop()
        await self.outgoing.stop()

    # ----------------------------------------------------------------- questions

    @property
    def coming(self) -> int:
        """Return the number of sessions that have not arrived completely."""
        return self._incoming.sessions

    @property
    def unfinished(self) -> int:
        """Return the number of moves from and to this node that are not complete, and of messages that wait for one."""
        internal = self._broker.sessions.internal.values()
        waiting = sum(each.queued + len(each.inflight) for each in internal if each.client.listener != LINKS)
        return len(self._incoming) + self.outgoing.unfinished + waiting

    @property
    def checks_owner(self) -> bool:
        """Return whether a session of another owner is refused."""
        return self._context.channels.access.settings.session_owner != "any"

    def is_undecided(self, client_id: str) -> bool:
        """Return whether this node holds a session and does not know yet whether it has taken it."""
        incoming = self._incoming.get(client_id)
        return incoming is not None and incoming.row.state == ADOPTED

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know yet that a whole session is here, as ``wire.SessionKey.earlier``."""
        incoming = self._incoming.get(client_id)
        return {} if incoming is None else {incoming.row.node: incoming.row.state != FINISHED}

    def giver(self, client_id: str) -> str:
        """Return the node that a session comes from until all of it has arrived; empty: none."""
        incoming = self._incoming.get(client_id)
        return "" if incoming is None or incoming.row.rest or incoming.row.state == FINISHED else incoming.row.node

    def _coming_row(self, client_id: str) -> HandoverRow | None:
        incoming = self._incoming.get(client_id)
        return None if incoming is None else incoming.row

    def _is_under_way(self, client_id: str) -> bool:
        return self.outgoing.is_under_way(client_id)

    def is_coming(self, client_id: str) -> bool:
        """Return whether a part of this session is still to arrive from a running node."""
        if self.arrives(client_id) and not self._is_let_go(client_id):
            return True
        away = self._late_at_stopped(client_id)
        return any(node not in away for node in self._waiting.held(client_id))

    def arrives(self, client_id: str) -> bool:
        """Return whether another node is handing over this session, or does not know yet that it has."""
        incoming = self._incoming.get(client_id)
        if incoming is None:
            return False
        row = incoming.row
        return row.state == ADOPTED or incoming.staging is not None or (row.keep and row.state == FINISHED)

    def _is_let_go(self, client_id: str) -> bool:
        """Return whether the whole session is here, without a wait for the node that does not know that."""
        incoming = self._incoming.get(client_id)
        if incoming is None or incoming.row.state != FINISHED or incoming.staging is not None:
            return False
        peer = self._members.peers.get(incoming.row.node)
        return self._context.settings.takeover == FRESH and peer is not None and not peer.may_run

    def _late_at_stopped(self, client_id: str) -> set[str]:
        """Return the nodes with messages at a keeper that is stopped. Messages that wait for those may wait for long,
        and therefore move with the session."""
        peers = self._members.peers
        keepers = self._incoming.keepers_of(client_id)
        stopped = [each for each in keepers if each.row.node in peers and peers[each.row.node].status == STOPPED]
        return {node for each in stopped for node in each.row.late}

    def _own_are_early(self, incoming: Incoming) -> bool:
        """Return whether another node keeps messages that this one sent there before the session arrived here."""
        peers = self._members.peers
        fresh = self._context.settings.takeover == FRESH
        return any(
            self._context.node in each.row.late
            and each.row.node in peers
            and not (fresh and peers[each.row.node].status == STOPPED)
            for each in self._incoming.keepers_of(incoming.client_id)
        )

    def leaving(self, client_id: str) -> None:
        """Stop fetching what others keep for the session, because it may move to another node. Those messages go there,
        too: this node must not take any after the last piece that it hands over."""
        main = self._incoming.get(client_id)
        coming = [main] if main is not None and main.row.state == FETCHING else []
        for incoming in [*coming, *self._incoming.keepers_of(client_id)]:
            if incoming.task is not None:
                incoming.task.cancel()
                incoming.task = None

    def end_held(self, client_id: str, session: Session | None) -> None:
        """Let messages wait no longer for those of keepers."""
        for node in list(self._waiting.held(client_id)):
            self._waiting.end_held(client_id, node, session)

    # ------------------------------------------------- a session that continued without a node

    def went_on_without(self, client_id: str, nodes: list[str]) -> None:
        """Note that, according to the key, a session is this node's and continued without these nodes, which may have a
        part of it. No nodes: it did not, or another node has it."""
        if nodes:
            self._givers[client_id] = nodes
            self._watch()
        elif self._givers.pop(client_id, None) is not None:
            self._given.pop(client_id, None)
            self._unwatch()

    def _givers_of(self, client_id: str) -> list[str]:
        """Return the nodes that may still have a part of a session that is here, in the order in which they had it."""
        given = self._given.get(client_id, ())
        peers, known = self._members.peers, self._members.known
        return [each for each in self._givers.get(client_id, ()) if each not in given and (each in peers or not known)]

    def _fetch_from_giver(self, client_id: str) -> None:
        """Begin to fetch the part of the first running giver; the others follow when all of it has arrived."""
        if self._incoming.get(client_id) is not None:
            return
        peers = self._members.peers
        session = self._broker.sessions.get(client_id)
        node = next((each for each in self._givers_of(client_id) if each in peers and peers[each].running), None)
        if session is not None and node is not None and self.session_keys.has(client_id):
            self._begin_rest(session, node, self._context.nonce())

    def _begin_rest(self, session: Session, node: str, move: str) -> Incoming:
        """Prepare to fetch another node's part of a session that is here, and what third nodes have for the session
        there: if the key names ``node``, it gets their marks."""
        client_id = session.client_id
        turn = self.turns.get(client_id)
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
        """Begin the turn of a session that began again. Messages that other nodes send before their marks belong to the
        earlier session, so that each message is taken once, here or there."""
        client_id = session.client_id
        place = self.session_keys.place(client_id)
        filters = [each.filter for each in session.subscriptions.values() if each.group is None]
        epoch = 0 if place is None else place.revision
        turn = self.turns.begin(client_id, session, filters, epoch)
        turn.anew = True
        self.turns.settle(turn, session)
        turn.inherit()
        self.turns.put(turn)
        self.turns.mark(Mark(client_id, self._context.node, epoch), self._marks.nodes_of(client_id)[1:])
        self._attend(turn)
        self._marks.ask(turn)
        return turn

    def _subscribed_anew(self, session: Session, subscription: Subscription) -> None:
        turn = self.turns.get(session.client_id)
        if turn is None:
            if len(session.subscriptions) == 1 and self._givers_of(session.client_id):
                self._begin_turn(session)
        elif turn.anew and turn.session is session and turn.filters is not None and turn.others:
            turn.filters.add(subscription.filter)
            self.turns.put(turn)

    async def marked(self, client_id: str) -> None:
        """Wait until each running node sends messages for a session that began again to this node, but no longer than
        ``call_timeout``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._context.settings.call_timeout):
                while (turn := self.turns.get(client_id)) is not None and turn.anew:
                    if all(turn.marked(each.name) for each in self._members.running()):
                        return
                    await asyncio.sleep(_PAUSE)

    def kept(self, client_id: str) -> None:
        """Continue, because this node has the session."""
        if self.outgoing.leaves(client_id):
            return
        if self._waiting.held(client_id):
            self._tasks.run(self._release(client_id))
        main = self._incoming.get(client_id)
        coming = [main] if main is not None and main.row.state == FETCHING else []
        for incoming in [*coming, *self._incoming.keepers_of(client_id)]:
            if incoming.task is None or incoming.task.done():
                self._run(incoming)
        turn = self.turns.get(client_id)
        if turn is not None:
            self._attend(turn)
            self._marks.ask(turn)

    def gone(self, client_id: str, moved: bool) -> None:
        """Stop fetching, because another node has the session. The parts that are still to arrive are offered to that
        node."""
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
        self.end_held(client_id, None)

    def keepers(self, client_id: str) -> list[Keeper]:
        """Return what other nodes keep for a session."""
        return self._incoming.keepers(client_id)

    def doubts(self, client_id: str) -> dict[str, list[tuple[int, str]]]:
        """Return, by node, which messages of a session may have arrived here from it."""
        return self._incoming.doubts(client_id)

    def held(self, client_id: str) -> dict[str, Session]:
        """Return the messages that wait for those of keepers, by sending node."""
        return self._waiting.held(client_id)

    def begun(self, turn: Turn) -> None:
        """Ask the other nodes for their marks, because a mark alone has begun this turn."""
        self._marks.ask(turn)

    def last_epoch(self, client_id: str) -> int:
        """As ``Outgoing.last_epoch``."""
        return self.outgoing.last_epoch(client_id)

    def is_closed(self, client_id: str) -> bool:
        """As ``Outgoing.is_closed``."""
        return self.outgoing.is_closed(client_id)

    def leaves(self, client_id: str) -> bool:
        """Return whether this session is moving to another node."""
        return self.outgoing.leaves(client_id)

    async def left(self, client_id: str, timeout: float) -> None:
        """Wait until the other node has the session, or no longer needs it."""
        await self.outgoing.left(client_id, timeout)

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """Do what ``Outgoing.lost`` does, and end what this node does for the session."""
        incoming = self._incoming.get(session.client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return  # not ours yet
        if incoming is not None and incoming.staging is not None:
            if clean_start:
                self._end_staging(incoming)
            else:
                # That node may give the session back: then it continues as it was.
                self._join(incoming, incoming.staging, session)
        self.outgoing.lost(session, node, epoch, clean_start, anew, last_epoch)

    def returned(self, client_id: str) -> None:
        """Note that another node has written that this node has a session."""
        self.outgoing.returned(client_id)

    def session_ended(self, session: Session) -> None:
        """Stop fetching, because a session of this node has ended."""
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is session:
                self._end_staging(incoming)
                self._finish(incoming)
        if self.turns.get(session.client_id) is not None:
            self.turns.end(session.client_id)
            self.end_held(session.client_id, None)
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
        """Ask a node for a session whose key has this revision. ``waits``: returns whether the client still waits.
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
        """Answer whether a client still waits for a session that this node has asked another one for."""
        waits = self._asking.get(argument.decode("ascii", "replace"))
        return b"1" if waits is not None and waits() else b""

    def _is_valid(self, node: str, moved: MovedDelivery) -> bool:
        """Return whether a message from a node is valid; count it if not."""
        if valid_body(moved.body) and 0 <= moved.qos <= 2:
            return True
        self._context.refusals.add(MALFORMED, node, "-")
        return False

    def adopt(self, client_id: str, node: str, move: str, moved: MovedSession, prepared: Prepared) -> None:
        """Create the session here; its subscriptions do not apply yet."""
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
        """Delete the adopted session, because it stays where it was."""
        found = self._incoming.of(client_id)
        for incoming in found:
            self._remove(incoming)
        self._incoming.note_doubts(client_id, {})
        if found and found[0].session is not None:
            self._broker.life.forget_session(found[0].session)

    def cancel(self, client_id: str) -> None:
        """Inform the other node that it need not wait any longer."""
        incoming = self._incoming.get(client_id)
        if incoming is not None:
            row = incoming.row
            self._tasks.run(self._cancel(row.node, Done(client_id, row.move)))

    async def _cancel(self, node: str, done: Done) -> None:
        with contextlib.suppress(NodeUnreachable, CallFailed):  # then it finds out by itself
            await self._calls.call(node, CANCEL, _encode(done))

    def begin(self, client_id: str) -> None:
        """Continue the session here, because this node has it, and fetch the rest."""
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
        self.kept(client_id)

    # ------------------------------------------------------------------- staging

    def _stage(self, incoming: Incoming, session: Session) -> None:
        """Let new messages wait in a session of their own from now on."""
        client_id = session.client_id
        if incoming.staging is None:
            incoming.staging = self._waiting.open_staging(session)
        staging = incoming.staging
        before = self.turns.get(client_id)
        if before is None or before.session is not staging:
            place = self.session_keys.place(client_id)
            epoch = 0 if place is None else place.revision
            filters = [each.filter for each in session.subscriptions.values() if each.group is None]
            self.turns.begin(client_id, staging, filters, epoch)
            self._incoming.put(incoming, msgspec.structs.replace(incoming.row, epoch=epoch))
            mark = Mark(client_id, self._context.node, epoch)
            self.turns.mark(mark, self._marks.nodes_of(client_id)[1:])
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
        turn = self.turns.get(session.client_id)
        if turn is not None and turn.filters is not None and subscription.filter in turn.filters:
            turn.filters.discard(subscription.filter)
            self.turns.put(turn)

    async def _merge(self, incoming: Incoming, session: Session) -> None:
        """Deliver new messages to the session itself from now on, after those that waited."""
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
        """Let the session take new messages itself, after those that are in memory and wait in ``staging``."""
        router = self._broker.router
        for subscription in session.subscriptions.values():
            router.subscribe(subscription)  # before the others are deleted: so no change is reported to other nodes
        turn = self.turns.get(session.client_id)
        if turn is not None:
            self.turns.settle(turn, session)
        self._waiting.deliver(staging, session)
        self._end_staging(incoming)

    def _attend(self, turn: Turn) -> None:
        """Let messages of a node wait while a keeper has earlier ones of it, or earlier ones wait."""
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
        """Deliver waiting messages of each node for which no keeper has anything any more."""

        def to() -> Session | None:
            if self.outgoing.leaves(client_id):
                return None
            incoming = self._incoming.get(client_id)
            staging = None if incoming is None else incoming.staging
            return staging or self._broker.sessions.get(client_id)

        await self.release_held(client_id, to, False)

    async def release_held(self, client_id: str, to: Callable[[], Session | None], late: bool) -> bool:
        """Deliver waiting messages, and return whether there were any. ``to``: returns the session, or ``None`` if it
        no longer exists. ``late``: also messages of nodes for which a keeper has something."""
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
        """Fetch everything that is still to arrive, however long it takes."""
        try:
            while not self._members.known:
                await asyncio.sleep(_PAUSE_UNREACHABLE)
            if not self._incoming.has(incoming):
                return
            if incoming.row.state == FETCHING:
                # The other node drops messages in flight at the first question. After a restart, this node must
                # therefore know that it has the session, even if NATS is away then.
                await self._context.tables.stored()
                await self._bring_queue(incoming)
            if incoming.row.state == FINISHED:
                await self._tell_done(incoming)
        except asyncio.CancelledError:
            raise
        except Exception:  # it concerns one session, which continues after the next start
            logger.exception("handover_failed client_id=%s node=%s", incoming.client_id, incoming.row.node)

    def _turned(self, incoming: Incoming) -> list[str] | None:
        """Return which nodes have sent their marks here, if all running nodes have."""
        turn = self.turns.get(incoming.client_id)
        if turn is None or not self._goes_by_marks(incoming):
            return []
        if not all(turn.marked(each.name) for each in self._members.running()):
            return None
        return [each for each in turn.marks if turn.marked(each)]

    def _goes_by_marks(self, incoming: Incoming) -> bool:
        """Return whether the other node takes messages that other nodes send there until their marks."""
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
                turn = self.turns.get(client_id)
                quick = not (incoming.keeper or row.rest)
                quick = quick or (turn is not None and any(turn.marked(each) for each in row.late))
                await asyncio.sleep(pause if quick else self._slow(_PAUSE_KEPT))
                # If a node has died without notice, many sessions wait for it at once, for some seconds.
                pause = min(2 * pause, _PAUSE_KEPT)
            elif piece.state == MORE:
                pause = _PAUSE
                self._take_in(incoming, session, piece)
                self.step("piece_taken")
                if not await self._context.tables.stored():
                    await asyncio.sleep(_ASK_AGAIN)
            else:
                turn = self.turns.get(client_id)
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
            # One of the keepers may be that node, which keeps nothing before it knows that all has arrived.
            if not incoming.told:
                # If this node dies now, it must know after its restart what that node keeps.
                incoming.told = await self._context.tables.stored() and await self._tell(incoming, keep)
                self.kept(client_id)
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
        """Return the seconds between two questions for a session that may take long."""
        return max(pause, len(self._incoming) / _QUESTIONS)

    async def _ask(self, node: str, ask: Fetch) -> Piece:
        if node == self._context.node:
            return await self.outgoing.piece(node, ask)
        return self._calls.decoded(node, await self._calls.call(node, FETCH, _encode(ask)), Piece)

    async def _note_late(self, incoming: Incoming, late: list[str]) -> None:
        """Note that everything that the keeper had is here."""
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
        """Wait for the other node, which does not answer; return False if it never will."""
        node = incoming.row.node
        peer = self._members.peers.get(node)
        if peer is None:
            logger.warning("handover_ended client_id=%s node=%s reason=node_removed", incoming.client_id, node)
            return False
        fresh = self._context.settings.takeover == FRESH
        if fresh and not peer.may_run and incoming.staging is not None and incoming.session is not None:
            # The client has waited long enough: the rest arrives when that node is back, after newer messages.
            logger.warning("handover_interrupted client_id=%s node=%s error=%s", incoming.client_id, node, error)
            await self._merge(incoming, incoming.session)
        await asyncio.sleep(self._slow(_PAUSE_UNREACHABLE))
        return True

    # ------------------------------------------------------------------- the end

    def _finish_row(self, incoming: Incoming, keep: bool = False) -> None:
        self._incoming.put(incoming, msgspec.structs.replace(incoming.row, state=FINISHED, doubt=[], keep=keep))

    def _finish(self, incoming: Incoming, keep: bool = False) -> None:
        """End the fetching, because the session has ended, or is complete already."""
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
            self.kept(client_id)
        self.step("done")

    async def _tell(self, incoming: Incoming, keep: bool) -> bool:
        """Inform the other node that everything has arrived; return whether it knows, or need not know."""
        row = incoming.row
        over = bool(incoming.keeper) and incoming.client_id not in self._broker.sessions
        done = Done(incoming.at_sender, row.move, keep, row.epoch, over)
        if row.node == self._context.node:
            await self.outgoing.done(row.node, done)
            return True
        # If that node has the session again, it must not forget it.
        again = not incoming.keeper and self.session_keys.node_of(incoming.client_id) == row.node
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
            turn = self.turns.get(incoming.client_id)
            if turn is not None:
                turn.changed.set()
        self._unwatch()

    async def _offered(self, node: str, argument: bytes) -> bytes:
        """Accept the offer of a node that was away: it has the rest of a session that began again here."""
        offer = self._calls.decoded(node, argument, Offer)
        client_id = offer.client_id
        incoming = self._incoming.get(client_id)
        session = self._broker.sessions.get(client_id)
        if incoming is None and (session is None or not self.session_keys.has(client_id)):
            # Only if it is certain that this node does not have the session and never will.
            unsettled = self.session_keys.has(client_id) or self.session_keys.busy(client_id)
            return (BUSY if unsettled else GONE).encode()
        if incoming is None:
            assert session is not None
            self._begin_rest(session, node, offer.move)
        return MORE.encode()


def _encode(body: object) -> bytes:
    return msgspec.msgpack.encode(body)


def _is_over(ended: list[Subscription], session: Session, moved: MovedDelivery) -> bool:
    """Return whether all subscriptions that match this message have ended."""
    if moved.group:
        return any(each.filter == moved.group for each in ended)
    topic = moved.body.topic
    if not any(each.group is None and matches(each.topic_filter, topic) for each in ended):
        return False
    return not any(each.group is None and matches(each.topic_filter, topic) for each in session.subscriptions.values())
