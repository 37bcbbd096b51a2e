"""Handover: brings a session from another node to this one; ``outgoing`` is the other direction.

The session is on this node's disk before its key names this node. The queue follows after the client has received
CONNACK::

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
delivered at the end. Both nodes agree on which messages are new (``turns``). Thus no message is lost, none arrives
twice, and the messages of a publisher arrive in order. With the rows in the table ``handover`` (``incoming``), each
step continues after a restart.

This node does not wait for a node that is Stopped. The other node keeps the messages that the Stopped node still sends
there (``outgoing``). This node fetches them in the same way, even if by then both are the same node.
"""

import contextlib
import logging
from collections.abc import Callable

import msgspec

from ...core.cluster import STOPPED, CallFailed, NodeUnreachable
from ...session.client_info import ClientInfo
from ...session.session import Session
from ...store.restored import ZoneOf
from ..calls import Calls
from ..changes import until
from ..context import ClusterContext
from ..links.link import LISTENER as LINKS
from ..links.link_receiver import LinkReceiver
from ..links.routes import ClusterRoutes
from ..members.members import Members
from ..tasks import Tasks
from ..wire import MALFORMED, valid_body, valid_time
from .fetching import Fetching, is_valid
from .given_pieces import GivenPieces
from .givers import Givers
from .greeting import Greeting
from .held_messages import HeldMessages
from .incoming import ADOPTED, FETCHING, FINISHED, HandoverRow, Incoming, IncomingSessions
from .mark_questions import MarkQuestions
from .outgoing import CANCEL, FRESH, OFFER, PREPARE, WANTED, Outgoing
from .session_keys import SessionKeys
from .session_transfer import (
    BUSY,
    GONE,
    MORE,
    Done,
    MovedSession,
    Offer,
    Prepare,
    Prepared,
    SessionReceiver,
    keys_of,
)
from .staging import Staging
from .turns import Turn, Turns
from .waiting_messages import DeferredMessages

logger = logging.getLogger(__name__)


class Handover:
    """Brings sessions to this node. ``Claims`` calls the steps of one move in this order::

        prepare   ask the node of the session; its answer has everything except the queue
        adopt     create the session here; its subscriptions do not apply yet
        begin     the key names this node: subscribe, and fetch the queue in the background
        drop      instead of ``begin``, if the key could not be written

    ``SessionKeys`` calls ``lost``, ``returned`` and ``went_on_without`` when a key has changed. ``step`` is called with
    the name of each step after CONNACK; tests and the simulation stop there.
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
        self.step: Callable[[str], None] = lambda name: None
        self.session_keys = SessionKeys(context, members, self)
        self.turns = Turns(context, members, calls, routes, receiver, self.session_keys, self)
        self._given_pieces = GivenPieces(context, members, calls, self._coming_row, self._is_under_way)
        self._held = held = HeldMessages(context, incoming, self._waiting, lambda each: self.outgoing.leaves(each))
        self.outgoing = Outgoing(
            context, members, calls, self.turns, self.session_keys, self, self._given_pieces, incoming, held
        )
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
            lambda each: self._givers.of(each),
            lambda each: self._givers.fetch_next(each),
        )
        self._givers = Givers(
            context,
            members,
            incoming,
            self.turns,
            self.session_keys,
            self._marks,
            self._held,
            lambda each: self._fetching.run(each),
        )
        self._staging = Staging(context, incoming, self._waiting, self.turns, self.session_keys, self._marks)
        self._fetching = Fetching(
            context,
            members,
            calls,
            incoming,
            self.turns,
            self.session_keys,
            self.outgoing,
            self.receiver,
            self._staging,
            self._held,
            self._givers,
            lambda name: self.step(name),
            self.kept,
        )
        # Attempts that other nodes were asked for, and functions that return whether their clients still wait.
        self._asking: dict[str, Callable[[], bool]] = {}
        self._greeting = Greeting(context, members, calls, receiver, self._marks)
        calls.serve(OFFER, self._offered)
        calls.serve(WANTED, self._is_wanted)

    # -------------------------------------------------------------- start, stop

    def load(self) -> None:
        """Read which sessions have not arrived completely, when the node's sessions are restored."""
        self.outgoing.kept.load()
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
        self.turns.load(self._session_of, self.outgoing.kept.of)
        for client_id in self._waiting.held_clients():
            if self.turns.get(client_id) is None:
                self._held.end(client_id, self._broker.sessions.get(client_id))
        for client_id in {*self._waiting.held_clients(), *(each.client_id for each in self._incoming.all())}:
            turn = self.turns.get(client_id)
            if turn is not None:
                self._held.attend(turn)
        self._staging.watch()

    def _session_of(self, client_id: str) -> Session | None:
        """Return which session takes new messages for a client after a restart, or ``None`` if the session is
        elsewhere."""
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
                self._staging.end(incoming)
                self._fetching.finish(incoming, row.keep)
            else:
                # A session that another node has by now takes no new messages; its rest goes to that node, too.
                if not row.rest and not self.outgoing.leaves(incoming.client_id):
                    self._staging.stage(incoming, session)
                self._fetching.fetch(incoming)
        self._given_pieces.start()
        for incoming in self._incoming.all():
            if incoming.keeper and (incoming.session is None or incoming.row.state == FINISHED):
                self._fetching.finish(incoming)
        for client_id in {*self.turns.clients(), *(each.client_id for each in self._incoming.all())}:
            self.kept(client_id)

    async def greet(self) -> None:
        """As ``Greeting.greet``."""
        await self._greeting.greet()

    async def _decide(self, incoming: Incoming) -> None:
        """Find out from the key which node has the session, because this node died while it was taking it over."""
        await self.session_keys.known()
        await self.session_keys.settle_earlier_life(incoming.client_id, incoming.row.node)
        await until(lambda: self._members.known, self._members.changes)  # this node's mark has to reach the other one
        session = incoming.session
        if not self._incoming.has(incoming) or incoming.row.state != ADOPTED:
            return
        if not self.session_keys.has(incoming.client_id):
            self.drop(incoming.client_id)
            return
        if session is None:
            self._fetching.finish(incoming)
            return
        self._staging.stage(incoming, session)
        self._fetching.fetch(incoming)
        self.kept(incoming.client_id)

    async def stop(self) -> None:
        await self._tasks.stop()
        await self._fetching.stop()
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
        """Return the number of incomplete moves from and to this node, and of messages that wait for one."""
        internal = self._broker.sessions.internal.values()
        waiting = sum(each.queued + len(each.inflight) for each in internal if each.client.listener != LINKS)
        return len(self._incoming) + self.outgoing.unfinished + waiting

    @property
    def checks_owner(self) -> bool:
        """Return whether a session of another owner is refused."""
        return self._context.channels.access.settings.session_owner != "any"

    def is_undecided(self, client_id: str) -> bool:
        """Return whether this node has adopted a session, but does not know yet whether the key names this node."""
        incoming = self._incoming.get(client_id)
        return incoming is not None and incoming.row.state == ADOPTED

    async def decided(self, client_id: str, timeout: float) -> None:
        """Wait until the session is no longer undecided, for at most ``timeout`` seconds."""
        incoming = self._incoming.get(client_id)
        if incoming is not None:
            await until(lambda: not self.is_undecided(client_id), incoming.changes, timeout=timeout)

    def untold(self, client_id: str) -> dict[str, bool]:
        """Return the node that does not know yet that the whole session is here, in the form of
        ``wire.SessionKey.earlier``."""
        incoming = self._incoming.get(client_id)
        return {} if incoming is None else {incoming.row.node: incoming.row.state != FINISHED}

    def giver(self, client_id: str) -> str:
        """Return the node from which a session is still arriving, or an empty string if all of it is here."""
        incoming = self._incoming.get(client_id)
        return "" if incoming is None or incoming.row.rest or incoming.row.state == FINISHED else incoming.row.node

    def _coming_row(self, client_id: str) -> HandoverRow | None:
        incoming = self._incoming.get(client_id)
        return None if incoming is None else incoming.row

    def _is_under_way(self, client_id: str) -> bool:
        return self.outgoing.is_under_way(client_id)

    def is_coming(self, client_id: str) -> bool:
        """Return whether a part of this session has yet to arrive from a running node."""
        if self.arrives(client_id) and not self._is_let_go(client_id):
            return True
        away = self._late_at_stopped(client_id)
        return any(node not in away for node in self._waiting.held(client_id))

    def arrives(self, client_id: str) -> bool:
        """Return whether another node is handing over this session, or does not know yet that it has handed it over."""
        incoming = self._incoming.get(client_id)
        if incoming is None:
            return False
        row = incoming.row
        return row.state == ADOPTED or incoming.staging is not None or (row.keep and row.state == FINISHED)

    def _is_let_go(self, client_id: str) -> bool:
        """Return whether the whole session is here and may move on, although a node that is away does not know this
        yet."""
        incoming = self._incoming.get(client_id)
        if incoming is None or incoming.row.state != FINISHED or incoming.staging is not None:
            return False
        peer = self._members.peers.get(incoming.row.node)
        return self._context.settings.takeover == FRESH and peer is not None and not peer.may_run

    def _late_at_stopped(self, client_id: str) -> set[str]:
        """Return the nodes whose messages are at a stopped keeper. Messages that wait for these may wait for a long
        time, and therefore move with the session."""
        peers = self._members.peers
        keepers = self._incoming.keepers_of(client_id)
        stopped = [each for each in keepers if each.row.node in peers and peers[each.row.node].status == STOPPED]
        return {node for each in stopped for node in each.row.late}

    def leaving(self, client_id: str) -> None:
        """Stop fetching the messages that others keep for the session, because it may move to another node. Those
        messages go there, too: this node must not accept any after the last piece that it hands over."""
        main = self._incoming.get(client_id)
        coming = [main] if main is not None and main.row.state == FETCHING else []
        for incoming in [*coming, *self._incoming.keepers_of(client_id)]:
            if incoming.task is not None:
                incoming.task.cancel()
                incoming.task = None

    def kept(self, client_id: str) -> None:
        """Resume fetching, because the session stays on this node."""
        if self.outgoing.leaves(client_id):
            return
        if self._waiting.held(client_id):
            self._tasks.run(self._held.release(client_id))
        main = self._incoming.get(client_id)
        coming = [main] if main is not None and main.row.state == FETCHING else []
        for incoming in [*coming, *self._incoming.keepers_of(client_id)]:
            if incoming.task is None or incoming.task.done():
                self._fetching.run(incoming)
        turn = self.turns.get(client_id)
        if turn is not None:
            self._held.attend(turn)
            self._marks.ask(turn)

    def gone(self, client_id: str, moved: bool) -> None:
        """Stop fetching, because another node has the session. Offer that node the parts that have not arrived yet."""
        main = self._incoming.get(client_id)
        if main is not None and main.row.state == FETCHING:
            if main.task is not None:
                main.task.cancel()
            self._given_pieces.went_on(client_id, main.row)
            self._staging.end(main)
            self._fetching.remove(main)
        for incoming in self._incoming.keepers_of(client_id):
            if moved:
                self._fetching.remove(incoming)
            else:
                self._fetching.finish(incoming)
        self._incoming.note_doubts(client_id, {})
        self._held.end(client_id, None)

    def went_on_without(self, client_id: str, nodes: list[str]) -> None:
        """As ``Givers.note``."""
        self._givers.note(client_id, nodes)

    async def marked(self, client_id: str) -> None:
        """As ``Givers.marked``."""
        await self._givers.marked(client_id)

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
        """Wait until the other node has the session or no longer needs it."""
        await self.outgoing.left(client_id, timeout)

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool, anew: bool, last_epoch: int) -> None:
        """Do the same as ``Outgoing.lost``, and stop fetching for the session."""
        incoming = self._incoming.get(session.client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return  # not ours yet
        if incoming is not None and incoming.staging is not None:
            if clean_start:
                self._staging.end(incoming)
            else:
                # That node may give the session back: then it continues as it was.
                self._staging.join(incoming, incoming.staging, session)
        self.outgoing.lost(session, node, epoch, clean_start, anew, last_epoch)

    def returned(self, client_id: str) -> None:
        """Note that another node has returned a session: its key names this node again."""
        self.outgoing.returned(client_id)

    def session_ended(self, session: Session) -> None:
        """Stop fetching, because a session of this node has ended."""
        for incoming in self._incoming.of(session.client_id):
            if incoming.session is session:
                self._staging.end(incoming)
                self._fetching.finish(incoming)
        if self.turns.get(session.client_id) is not None:
            self.turns.end(session.client_id)
            self._held.end(session.client_id, None)
        if not session.internal:
            self._givers.note(session.client_id, [])
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
        ask = Prepare(client.client_id, move, revision, client.owner, check, clean_start, absent)
        most = self._context.settings.call_timeout
        self._asking[move] = waits
        try:
            answer = await self._calls.call(node, PREPARE, msgspec.msgpack.encode(ask), min(timeout, most))
        finally:
            del self._asking[move]
        prepared = self._calls.decoded(node, answer, Prepared)
        moved = prepared.session
        if moved is None:
            return prepared
        inflight = [each for each in moved.inflight if each[1] is None or is_valid(self._context, node, each[1])]
        will = moved.will
        if will is not None and not (valid_body(will.body) and valid_time(will.due_in)):
            self._context.refusals.add(MALFORMED, node, "-")
            will = None
        return msgspec.structs.replace(prepared, session=msgspec.structs.replace(moved, inflight=inflight, will=will))

    async def _is_wanted(self, node: str, argument: bytes) -> bytes:
        """Answer whether a client still waits for a session that this node has asked another one for."""
        waits = self._asking.get(argument.decode("ascii", "replace"))
        return b"1" if waits is not None and waits() else b""

    def adopt(self, client_id: str, node: str, move: str, moved: MovedSession, prepared: Prepared) -> None:
        """Create the session here. Its subscriptions do not apply yet."""
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
        """Delete the adopted session, because the other node keeps it."""
        found = self._incoming.of(client_id)
        for incoming in found:
            self._fetching.remove(incoming)
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
            await self._calls.call(node, CANCEL, msgspec.msgpack.encode(done))

    def begin(self, client_id: str) -> None:
        """Continue the session here, because this node has it, and fetch the rest."""
        incoming = self._incoming.get(client_id)
        assert incoming is not None and incoming.session is not None
        session = incoming.session
        self._staging.stage(incoming, session)
        self._broker.life.continue_session(session, incoming.will_due, self._context.clock.now())
        for filter in incoming.replays:
            subscription = session.subscriptions.get(filter)
            if subscription is not None:
                self._broker.replay_retained(session, subscription)
        self._fetching.fetch(incoming)
        self.kept(client_id)

    async def _offered(self, node: str, argument: bytes) -> bytes:
        """Accept the offer of a node that was away and has the rest of a session that began again here."""
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
            self._givers.begin_rest(session, node, offer.move)
        return MORE.encode()
