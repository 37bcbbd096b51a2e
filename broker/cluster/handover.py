"""Handover: a session comes from another node, and another gets one from here (``outgoing``).

What comes is on this node's disk before the key of the session is; the queue follows when the client has its CONNACK::

    this node                        the node that has the session
    prepare  ──────────────────────► closes its client, keeps all as it is (``outgoing``)
             ◄────────────────────── subscriptions, what is in flight, will
    adopt: session, on disk
    take: compare-and-set of the key
    begin: CONNACK
    fetch    ──────────────────────► drops what is in flight, and the piece before
             ◄────────────────────── the next piece of the queue, until all nodes send new messages here
    done     ──────────────────────► forgets the session

New messages go to a second session meanwhile (``staging``), which has the subscriptions, and are delivered at the end.
Both nodes agree which messages are new (``turns``). So no message is lost, none comes twice, and a publisher's come in
order. Rows in the table ``handover`` let each step go on after a restart.

A node that is Stopped is not waited for. What it still sends to the other node is kept there (``outgoing``), and
fetched from there in the same way; also where the other node is this one by then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.cluster import STOPPED, CallFailed, NodeUnreachable
from ..mqtt.message import Delivery
from ..mqtt.topics import matches
from ..persistence.log import records
from ..persistence.record_mapping import body_of
from ..persistence.stored_message import StoredMessage, stored_of
from ..routing.router import Router
from ..session.client_info import ClientInfo
from ..session.protocols import NO_LOCAL, REVOKED, UNREADABLE
from ..session.session import Session
from ..session.subscription import Subscription
from ..store.restored import ZoneOf
from .calls import Calls
from .context import ClusterContext
from .members import Members
from .outgoing import CANCEL, DONE, FETCH, FRESH, OFFER, PREPARE, Outgoing
from .routes import Routes
from .session_transfer import (
    BUSY,
    GONE,
    MORE,
    PIECE_MESSAGES,
    Done,
    Fetch,
    Keeper,
    MovedDelivery,
    MovedSession,
    Offer,
    Piece,
    Prepare,
    Prepared,
    Receiver,
    keys_of,
    moved_delivery,
    with_qos0,
)
from .tasks import Tasks
from .turns import TURN, Mark, Turn, TurnAsked, Turns, copy_for, kept_name

if TYPE_CHECKING:
    from .ownership import Ownership

logger = logging.getLogger(__name__)

TABLE: Final = "handover"
STAGING: Final = "\0staging:"
HELD: Final = "\0held:"
"""Prefix of the session of messages that came before earlier ones of their node, which another node keeps."""

# Where a session that comes stands (``HandoverRow.state``).
ADOPTED: Final = 0
"""It is here, and the key may be another node's still."""
FETCHING: Final = 1
FINISHED: Final = 2
"""All of it is here; the other node is to forget it."""

_PAUSE: Final = 0.01
_PAUSE_KEPT: Final = 0.25
"""Seconds between two questions for what nodes that are away may send to another one."""
_PAUSE_UNREACHABLE: Final = 0.5
_ASK_AGAIN: Final = 1.0


class HandoverRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover``, by ``Incoming.key``. ``taken``: the number of the last piece, ``doubt`` which messages
    it had. ``rest``: nothing but the queue of a session that was begun anew here, or was here already. ``late``: nodes
    that may still send to the other one what is for this session. ``epoch``: of the key here; with ``keep`` the other
    node goes on to take what those send. Of what is kept: of the key when the session had gone from there, and by
    ``order`` what the session was at first is lower."""

    node: str
    move: str
    state: int
    taken: int = 0
    doubt: list[tuple[int, str]] = []
    rest: bool = False
    late: list[str] = []
    epoch: int = 0
    keep: bool = False
    order: int = 0


class Incoming:
    """One session that comes, or, where ``keeper`` is its node, what that keeps for a session that is here."""

    def __init__(self, key: str, row: HandoverRow) -> None:
        self.key = key
        self.client_id, _, kept = key.partition("\0")
        self.keeper = kept.partition("\0")[0]
        self.row = row
        self.session: Session | None = None
        self.staging: Session | None = None
        # All of the queue has come, and the other node knows.
        self.came = False
        self.told = False
        # When its delayed will is due, and filters whose retained messages were not all sent.
        self.will_due = 0.0
        self.replays: list[str] = []
        # Subscriptions that are over since it came: what the other node's queue has of them is dropped.
        self.ended: list[Subscription] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def at_sender(self) -> str:
        """What the other node knows it by."""
        return kept_name(self.client_id, self.row.epoch) if self.keeper else self.client_id


def _keeper_key(client_id: str, node: str, epoch: int) -> str:
    return f"{client_id}\0{node}\0{epoch}"


class Handover:
    """``prepare`` to ``begin`` are the steps of a claim; the rest of a session comes by itself.

    ``step`` is called with the name of each step after the client has its CONNACK.
    """

    def __init__(
        self, context: ClusterContext, members: Members, calls: Calls, routes: Routes, turns: Turns, zone_of: ZoneOf
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._routes = routes
        self._turns = turns
        self.receiver = Receiver(context.broker, zone_of)
        self._rows = context.tables.open(TABLE, HandoverRow)
        self._coming: dict[str, Incoming] = {}
        # Of ``_coming``, what is kept somewhere, by client.
        self._kept: dict[str, list[Incoming]] = {}
        self._tasks = Tasks()
        # Clients of whose sessions messages that waited are being delivered: later ones wait behind them.
        self._releasing: set[str] = set()
        # Those for which nodes are being asked for their marks. A session that went and is here again has another one.
        self._turning: set[Turn] = set()
        self._stopped = False
        self._watched = False
        self.step: Callable[[str], None] = lambda name: None
        self.outgoing = Outgoing(context, members, calls, turns, self._is_coming)
        self.outgoing.keepers = self._keepers
        self.outgoing.held = self._held
        self.outgoing.end_held = self._end_held
        self.outgoing.on_leaving = self._pause
        self.outgoing.on_kept = self._go_on
        self.outgoing.on_gone = self._gone
        self.ownership: Ownership
        calls.serve(OFFER, self._offered)
        self._fetched = msgspec.msgpack.Decoder(Piece)

    # -------------------------------------------------------------- start, stop

    def load(self) -> None:
        """The node has its sessions: these are not all of them here yet."""
        self.outgoing.ownership = self._turns.ownership = self.ownership
        internal = self._broker.sessions.internal
        self.outgoing.load()
        for key, row in self._rows.items():
            incoming = self._coming[key] = Incoming(key, row)
            if incoming.keeper:
                self._kept.setdefault(incoming.client_id, []).append(incoming)
            session = incoming.session = self._broker.sessions.get(incoming.client_id)
            if session is None or incoming.keeper or row.rest:
                continue
            incoming.staging = internal.get(STAGING + incoming.client_id)
            if row.state == ADOPTED:
                for subscription in session.subscriptions.values():
                    self._broker.router.unsubscribe(subscription)
            elif row.state == FETCHING:
                self._open_staging(incoming, session)
        self._turns.load(self._session_of, self.outgoing.stays)
        for client_id in list(internal):
            name = client_id.removeprefix(HELD)
            if name != client_id and self._turns.get(name) is None:
                self._end_held(name, self._broker.sessions.get(name))
        for incoming in self._coming.values():
            turn = self._turns.get(incoming.client_id)
            if turn is not None:
                self._attend(turn)
        self._watch()

    def _session_of(self, client_id: str) -> Session | None:
        """Which session takes what comes for a client, after a restart; ``None``: it is elsewhere."""
        incoming = self._coming.get(client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return None
        if incoming is not None and incoming.staging is not None:
            return incoming.staging
        return self._broker.sessions.get(client_id)

    def start(self) -> None:
        """It is known whose the sessions are: go on where it was."""
        for incoming in list(self._coming.values()):
            session, row = incoming.session, incoming.row
            if incoming.keeper or self._coming.get(incoming.key) is not incoming:
                continue
            if row.state == ADOPTED and not self.ownership.has(incoming.client_id):
                self.drop(incoming.client_id)
            elif row.state == FINISHED or session is None:
                self._end_staging(incoming)
                self._finish(incoming, row.keep)
            else:
                if not row.rest:
                    self._stage(incoming, session)
                self._fetch(incoming)
        for incoming in list(self._coming.values()):
            if incoming.keeper and (incoming.session is None or incoming.row.state == FINISHED):
                self._finish(incoming)
        for client_id in {*self._turns.clients(), *(each.client_id for each in self._coming.values())}:
            self._go_on(client_id)

    async def stop(self) -> None:
        self._stopped = True
        await self._tasks.stop()
        await self.outgoing.stop()

    # ----------------------------------------------------------------- questions

    @property
    def checks_owner(self) -> bool:
        """Whether a session of another is refused."""
        return self._context.channels.access.settings.session_owner != "any"

    def _is_coming(self, client_id: str) -> bool:
        """Whether this session is not all here, though its other node runs."""
        incoming = self._coming.get(client_id)
        if incoming is not None:
            row = incoming.row
            if row.state == ADOPTED or incoming.staging is not None or (row.keep and row.state == FINISHED):
                return True
        return HELD + client_id in self._broker.sessions.internal

    def _of(self, client_id: str) -> list[Incoming]:
        """All that comes for a client's session."""
        main = self._coming.get(client_id)
        return [*([] if main is None else [main]), *self._kept.get(client_id, ())]

    def _keepers_of(self, client_id: str) -> list[Incoming]:
        """Those that still keep something, in the order in which the session was there."""
        found = [each for each in self._kept.get(client_id, ()) if each.row.state == FETCHING]
        return sorted(found, key=lambda each: each.row.order)

    def _is_early(self, keeper: Incoming) -> bool:
        """Whether what it keeps comes after something that is still to come from elsewhere: from the node where the
        session was last, or from one where it was before this one, and that keeps messages of the same nodes."""
        main = self._coming.get(keeper.client_id)
        if main is not None:
            if main.staging is not None and not main.came:
                return True
            if (main.row.node, main.row.epoch) == (keeper.row.node, keeper.row.epoch) and not main.told:
                return True  # it does not keep it yet
        late = set(keeper.row.late)
        before = [each for each in self._keepers_of(keeper.client_id) if each.row.order < keeper.row.order]
        return any(not late.isdisjoint(each.row.late) for each in before)

    def _own_are_early(self, incoming: Incoming) -> bool:
        """Whether another node keeps what this one sent there before the session came here."""
        peers = self._members.peers
        fresh = self._context.settings.takeover == FRESH
        return any(
            self._context.node in each.row.late
            and each.row.node in peers
            and not (fresh and peers[each.row.node].status == STOPPED)
            for each in self._keepers_of(incoming.client_id)
        )

    def _keepers(self, client_id: str) -> list[Keeper]:
        """The session goes to another node: who keeps what for it."""
        found = self._keepers_of(client_id)
        return [Keeper(row.node, row.taken, row.doubt, row.late, row.epoch) for row in (each.row for each in found)]

    def _pause(self, client_id: str) -> None:
        """The session may go to another node, and with it what others keep for it."""
        for incoming in self._keepers_of(client_id):
            if incoming.task is not None:
                incoming.task.cancel()
                incoming.task = None

    def _held(self, client_id: str) -> tuple[Session, list[str]] | None:
        """What waits for keepers, and for messages of which nodes."""
        held = self._broker.sessions.internal.get(HELD + client_id)
        if held is None:
            return None
        return held, sorted({name for each in self._keepers_of(client_id) for name in each.row.late})

    def _end_held(self, client_id: str, session: Session | None) -> None:
        """What waited for a keeper waits no longer."""
        held = self._broker.sessions.internal.get(HELD + client_id)
        if held is not None:
            if session is not None:
                self._deliver_waiting(held, session)
            self._broker.forget_session(held)

    def _go_on(self, client_id: str) -> None:
        """The session is this node's."""
        if self.outgoing.leaves(client_id):
            return
        if HELD + client_id in self._broker.sessions.internal:
            self._tasks.run(self._release(client_id))
        for incoming in self._keepers_of(client_id):
            if incoming.task is None or incoming.task.done():
                self._run(incoming)
        turn = self._turns.get(client_id)
        if turn is not None and not self._turns.is_elsewhere(turn) and turn not in self._turning:
            self._attend(turn)
            self._turning.add(turn)
            self._tasks.run(self._turn(turn))

    def _gone(self, client_id: str, moved: bool) -> None:
        """Another node has the session: what is still to come is offered to that one."""
        main = self._coming.get(client_id)
        if main is not None and main.row.state == FETCHING:
            if main.task is not None:
                main.task.cancel()
            self._remove(main)
        for incoming in self._keepers_of(client_id):
            if moved:
                self._remove(incoming)
            else:
                self._finish(incoming)
        self._end_held(client_id, None)

    def leaves(self, client_id: str) -> bool:
        """Whether another node is just getting this session from here."""
        return self.outgoing.leaves(client_id)

    async def left(self, client_id: str, timeout: float) -> None:
        """Until it has it, or does not want it any more."""
        await self.outgoing.left(client_id, timeout)

    def lost(self, session: Session, node: str, epoch: int, clean_start: bool) -> None:
        """The bucket says that a session of this node is another's, with this epoch."""
        incoming = self._coming.get(session.client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return  # not ours yet
        self.outgoing.lost(session, node, epoch, clean_start)

    def returned(self, client_id: str) -> None:
        """Another node has written that a session is this node's."""
        self.outgoing.returned(client_id)

    def session_ended(self, session: Session) -> None:
        """A session of this node is over: nothing more of it is wanted."""
        for incoming in self._of(session.client_id):
            if incoming.session is session:
                self._end_staging(incoming)
                self._finish(incoming)
        turn = self._turns.get(session.client_id)
        if turn is not None and not self._turns.is_elsewhere(turn):
            self._turns.drop(session.client_id)
            self._end_held(session.client_id, None)
        self.outgoing.session_ended(session)

    # ---------------------------------------------------------- the steps of a claim

    async def prepare(self, node: str, client: ClientInfo, move: str, clean_start: bool, timeout: float) -> Prepared:
        """Ask a node for a session."""
        ask = Prepare(client.client_id, move, client.owner, client.username, self.checks_owner, clean_start)
        most = self._context.settings.call_timeout
        answer = await self._calls.call(node, PREPARE, _encode(ask), min(timeout, most))
        return msgspec.msgpack.decode(answer, type=Prepared)

    def adopt(self, client_id: str, node: str, move: str, moved: MovedSession, keepers: list[Keeper]) -> None:
        """Make the session here; its subscriptions are not in force yet."""
        broker = self._broker
        # If the other node dies now, it may not remember that these were sent, and has them in its queue.
        doubt = keys_of(each for _, each in moved.inflight if each is not None)
        incoming = self._coming[client_id] = Incoming(client_id, HandoverRow(node, move, ADOPTED, doubt=doubt))
        session = self.receiver.session(moved)
        broker.adopt_session(session)
        incoming.session = session
        incoming.will_due = self.receiver.hold(session, moved)
        incoming.replays = moved.replays
        self._rows.put(client_id, incoming.row)
        for order, each in enumerate(keepers, 1):
            row = HandoverRow(
                each.node, "", FETCHING, each.taken, each.doubt, True, each.late, epoch=each.epoch, order=order
            )
            self._add_keeper(client_id, session, row)

    def _add_keeper(self, client_id: str, session: Session, row: HandoverRow) -> None:
        key = _keeper_key(client_id, row.node, row.epoch)
        before = self._coming.get(key)
        if before is not None:
            self._remove(before)
        keeper = self._coming[key] = Incoming(key, row)
        keeper.session = session
        self._kept.setdefault(client_id, []).append(keeper)
        self._rows.put(key, row)

    def drop(self, client_id: str) -> None:
        """The session stays where it was."""
        found = self._of(client_id)
        for incoming in found:
            self._remove(incoming)
        if found and found[0].session is not None:
            self._broker.forget_session(found[0].session)

    def cancel(self, client_id: str) -> None:
        """The other node need not wait any longer."""
        incoming = self._coming.get(client_id)
        if incoming is not None:
            row = incoming.row
            self._tasks.run(self._cancel(row.node, Done(client_id, row.move)))

    async def _cancel(self, node: str, done: Done) -> None:
        with contextlib.suppress(NodeUnreachable, CallFailed):  # else it finds out by itself
            await self._calls.call(node, CANCEL, _encode(done))

    def begin(self, client_id: str) -> None:
        """It is this node's: it goes on here, and the rest of it comes."""
        incoming = self._coming[client_id]
        session = incoming.session
        assert session is not None
        self._stage(incoming, session)
        self._broker.continue_session(session, incoming.will_due, self._context.clock.now())
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
        staging = incoming.staging or self._open_staging(incoming, session)
        before = self._turns.get(client_id)
        if before is None or before.session is not staging:
            owner = self.ownership.owner(client_id)
            epoch = 0 if owner is None else owner.revision
            filters = [each.filter for each in session.subscriptions.values() if each.group is None]
            turn = self._turns.begin(client_id, staging, filters, epoch)
            self._put(incoming, msgspec.structs.replace(incoming.row, epoch=epoch))
            mark = Mark(client_id, self._context.node, epoch)
            self._turns.mark(mark, self._nodes_of(turn)[1:])
        self._watch()

    def _open_staging(self, incoming: Incoming, session: Session) -> Session:
        broker = self._broker
        client = session.client
        staged = ClientInfo(broker.node, client.zone, client_id=STAGING + session.client_id)
        limits = with_qos0(session.limits)
        incoming.staging = staging = broker.open_internal(staged, limits, self._context.clock.now())
        staging.clear_subscriptions()
        for subscription in session.subscriptions.values():
            self._stage_one(staging, subscription)
        return staging

    def _watch(self) -> None:
        if self._coming and not self._watched:
            self._watched = True
            broker = self._broker
            broker.hooks.session_subscribed.add(self._subscribed)
            broker.hooks.session_unsubscribed.add(self._unsubscribed)

    def _subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        for incoming in self._of(subscription.session.client_id):
            if incoming.session is subscription.session:
                incoming.ended = [each for each in incoming.ended if each.filter != subscription.filter]
                if incoming.staging is not None:
                    self._stage_one(incoming.staging, subscription)

    def _unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        session = subscription.session
        for incoming in self._of(session.client_id):
            if incoming.session is not session:
                continue
            incoming.ended.append(subscription)
            if incoming.staging is not None:
                staged = incoming.staging.pop_subscription(subscription.filter)
                if staged is not None:
                    self._broker.router.unsubscribe(staged)
        turn = self._turns.get(session.client_id)
        if turn is not None and turn.filters is not None and subscription.filter in turn.filters:
            turn.filters.discard(subscription.filter)
            self._turns.put(turn)

    def _stage_one(self, staging: Session, subscription: Subscription) -> None:
        staged = copy_for(staging, subscription)
        staging.put_subscription(staged)
        _subscribe_in_place(self._broker.router, subscription, staged)

    async def _merge(self, incoming: Incoming, session: Session) -> None:
        """New messages go to the session itself from now on, after those that waited."""
        staging = incoming.staging
        if staging is None:
            return

        def to() -> Session | None:
            is_so = self._coming.get(incoming.key) is incoming and incoming.staging is staging
            return session if is_so else None

        await self._deliver_paged(staging, to)
        if to() is None:
            return
        router = self._broker.router
        for subscription in session.subscriptions.values():
            router.subscribe(subscription)  # before the others go, so that no other node is told of a change
        turn = self._turns.get(session.client_id)
        if turn is not None:
            self._turns.settle(turn, session)
        self._deliver_waiting(staging, session)
        self._end_staging(incoming)

    def _deliver_waiting(self, waiting: Session, session: Session) -> None:
        for delivery in waiting.queue or ():
            self._deliver_one(session, delivery)

    async def _deliver_paged(self, waiting: Session, to: Callable[[], Session | None]) -> None:
        """Deliver what waits up to the last message that has left memory, in pieces. ``to``: the session; ``None``: not
        any more. Should more come all the time, what is behind is left to ``_deliver_waiting``."""
        durability = self._broker.durability
        if durability is None:
            return
        for _ in range(2 + 2 * waiting.queued // PIECE_MESSAGES):
            if not any(each.message.paged for each in waiting.queue or ()):
                return
            piece = list(islice(waiting.queue or (), PIECE_MESSAGES))
            bodies: dict[int, records.StoredBody] = {}

            def take(stored: StoredMessage, bodies: dict[int, records.StoredBody] = bodies) -> None:
                bodies[stored.number] = body_of(stored.message, -self._context.clock.now())

            found = [stored_of(each.message) for each in piece]
            await durability.paging.load([each for each in found if each is not None], take)
            for delivery in piece:
                session, queue = to(), waiting.queue
                if session is None or queue is None or next(iter(queue)) is not delivery:
                    break
                queue.pop()
                stored = stored_of(delivery.message)
                self._deliver_one(session, delivery, None if stored is None else bodies.get(stored.number))
                if waiting.journal is not None and delivery.qos:
                    waiting.journal.done(waiting, (delivery,))

    def _deliver_one(self, session: Session, delivery: Delivery, body: records.StoredBody | None = None) -> None:
        """A queue is restored in the order in which its messages were stored: what came while others were fetched is
        stored anew, behind those. ``body``: of a message that may have left memory; without it that stays as it is."""
        session.now = now = self._context.clock.now()
        message = delivery.message
        stored = stored_of(message)
        if stored is not None and stored.lost:
            self._broker.delivery_dropped(session, delivery, UNREADABLE)
            return
        if message.publisher is not None and message.publisher.client_id == session.client_id:
            if not delivery.group and _only_others(session, message.topic):
                self._broker.delivery_dropped(session, delivery, NO_LOCAL)
                return
        if message.paged and body is None:
            session.deliver_shared(_copy(delivery))
        else:
            session.deliver_shared(self.receiver.delivery(moved_delivery(delivery, now, body)))

    def _attend(self, turn: Turn) -> None:
        """Messages of a node wait while earlier ones of it are with a keeper."""
        client_id = turn.client_id

        def held() -> Session:
            session = turn.session
            assert session is not None
            client = ClientInfo(self._broker.node, session.client.zone, client_id=HELD + client_id)
            return self._broker.open_internal(client, with_qos0(session.limits), self._context.clock.now())

        turn.waiting = lambda node: self._waits(turn, node)
        turn.held = held

    def _waits(self, turn: Turn, node: str) -> bool:
        client_id = turn.client_id
        return turn.marked(node) and (
            client_id in self._releasing or any(node in each.row.late for each in self._keepers_of(client_id))
        )

    async def _release(self, client_id: str) -> None:
        """What waited for a keeper goes on, if none is waited for any more."""
        internal = self._broker.sessions.internal
        held = internal.get(HELD + client_id)
        turn = self._turns.get(client_id)
        if held is None or (turn is not None and any(self._waits(turn, node) for node in turn.marks)):
            return

        def to() -> Session | None:
            if internal.get(HELD + client_id) is not held or self.outgoing.leaves(client_id):
                return None
            incoming = self._coming.get(client_id)
            staging = None if incoming is None else incoming.staging
            return staging or self._broker.sessions.get(client_id)

        self._releasing.add(client_id)
        try:
            await self._deliver_paged(held, to)
        finally:
            self._releasing.discard(client_id)
        if to() is not None:
            self._end_held(client_id, to())

    def _end_staging(self, incoming: Incoming) -> None:
        staging, incoming.staging = incoming.staging, None
        if staging is not None:
            self._broker.forget_session(staging)

    # --------------------------------------------------------------------- fetch

    def _run(self, incoming: Incoming) -> None:
        incoming.task = self._tasks.run(self._bring(incoming))

    def _fetch(self, incoming: Incoming) -> None:
        self._put(incoming, msgspec.structs.replace(incoming.row, state=FETCHING))
        self._run(incoming)

    def _put(self, incoming: Incoming, row: HandoverRow) -> None:
        incoming.row = row
        self._rows.put(incoming.key, row)

    async def _bring(self, incoming: Incoming) -> None:
        """All that is still to come, however long it takes."""
        try:
            if incoming.row.state == FETCHING:
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
        if turn is None or incoming.staging is None:
            return []
        if not all(turn.marked(each.name) for each in self._members.running()):
            return None
        return [each for each in turn.marks if turn.marked(each)]

    async def _bring_queue(self, incoming: Incoming) -> None:
        session = incoming.session
        assert session is not None
        client_id = incoming.client_id
        late: list[str] = []
        held: list[str] = []
        while incoming.row.state == FETCHING:
            if incoming.keeper and self._is_early(incoming):
                await asyncio.sleep(_PAUSE if client_id in self._coming else _PAUSE_KEPT)
                if self._coming.get(incoming.key) is not incoming:
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
            if incoming.row.state != FETCHING or self._coming.get(incoming.key) is not incoming:
                break
            if piece.state == BUSY or (piece.state == MORE and not piece.deliveries):
                if incoming.keeper and piece.state == MORE:
                    await self._note_late(incoming, piece.late)
                turn = self._turns.get(client_id)
                quick = not incoming.keeper or (turn is not None and any(turn.marked(each) for each in row.late))
                await asyncio.sleep(_PAUSE if quick else _PAUSE_KEPT)
            elif piece.state == MORE:
                self._take_in(incoming, session, piece)
                self.step("piece_taken")
                if not await self._context.tables.stored():
                    await asyncio.sleep(_ASK_AGAIN)
            else:
                turn = self._turns.get(client_id)
                late, held = piece.late, piece.held
                if turn is None or incoming.staging is None or not any(turn.marked(each) for each in late):
                    break
                late = []
                await asyncio.sleep(_PAUSE)
        if incoming.row.state != FETCHING or self._coming.get(incoming.key) is not incoming:
            return
        self.step("fetched")
        keep = incoming.staging is not None and bool(late or held)
        if keep:
            row = incoming.row
            late = sorted({*late, *held})
            order = max((each.row.order for each in self._keepers_of(client_id)), default=0) + 1
            kept = HandoverRow(row.node, "", FETCHING, rest=True, late=late, epoch=row.epoch, order=order)
            self._add_keeper(client_id, session, kept)
        incoming.came = True
        while incoming.staging is not None and self._own_are_early(incoming):
            # One of the keepers may be that node, which keeps nothing before it knows that all has come.
            if not incoming.told:
                incoming.told = await self._tell(incoming, keep)
                self._go_on(client_id)
            await asyncio.sleep(_PAUSE)
            if incoming.row.state != FETCHING or self._coming.get(incoming.key) is not incoming:
                return
        await self._merge(incoming, session)
        if incoming.row.state != FETCHING or self._coming.get(incoming.key) is not incoming:
            return
        self._finish_row(incoming, keep)
        if incoming.keeper:
            await self._release(client_id)
        self.step("merged")

    async def _ask(self, node: str, ask: Fetch) -> Piece:
        if node == self._context.node:
            return await self.outgoing.piece(node, ask)
        return self._fetched.decode(await self._calls.call(node, FETCH, _encode(ask)))

    async def _note_late(self, incoming: Incoming, late: list[str]) -> None:
        """All that the keeper had is here."""
        if late != incoming.row.late:
            self._put(incoming, msgspec.structs.replace(incoming.row, late=late))
            await self._release(incoming.client_id)

    def _take_in(self, incoming: Incoming, session: Session, piece: Piece) -> None:
        session.now = self._context.clock.now()
        for each in piece.deliveries:
            delivery = self.receiver.delivery(each)
            if incoming.ended and _is_over(incoming.ended, session, each):
                self._broker.delivery_dropped(session, delivery, REVOKED)
                continue
            session.deliver_shared(delivery)
        row = incoming.row
        self._put(incoming, msgspec.structs.replace(row, taken=piece.number, doubt=keys_of(piece.deliveries)))

    async def _wait_for_node(self, incoming: Incoming, error: str) -> bool:
        """The other node does not answer. False: it never will."""
        node = incoming.row.node
        peer = self._members.peers.get(node)
        if peer is None:
            logger.warning("handover_ended client_id=%s node=%s reason=node_removed", incoming.client_id, node)
            return False
        fresh = self._context.settings.takeover == FRESH
        if fresh and peer.status == STOPPED and incoming.staging is not None and incoming.session is not None:
            # Its client has waited long enough: what that node still has comes when it is back, after newer messages.
            logger.warning("handover_interrupted client_id=%s node=%s error=%s", incoming.client_id, node, error)
            await self._merge(incoming, incoming.session)
        await asyncio.sleep(_PAUSE_UNREACHABLE)
        return True

    # ------------------------------------------------------------------- the end

    def _finish_row(self, incoming: Incoming, keep: bool = False) -> None:
        self._put(incoming, msgspec.structs.replace(incoming.row, state=FINISHED, doubt=[], keep=keep))

    def _finish(self, incoming: Incoming, keep: bool = False) -> None:
        """The session is over, or all of it is here already."""
        self._finish_row(incoming, keep)
        if incoming.task is None or incoming.task.done():
            self._run(incoming)

    async def _tell_done(self, incoming: Incoming) -> None:
        client_id = incoming.client_id
        await self._context.tables.stored()
        while not incoming.told and not await self._tell(incoming, incoming.row.keep):
            await asyncio.sleep(_ASK_AGAIN)
            if self._coming.get(incoming.key) is not incoming:
                return
        if self._coming.get(incoming.key) is incoming:
            self._remove(incoming)
            self._go_on(client_id)
        self.step("done")

    async def _tell(self, incoming: Incoming, keep: bool) -> bool:
        """Whether the other node knows that all has come, or need not."""
        row = incoming.row
        done = Done(incoming.at_sender, row.move, keep, row.epoch)
        if row.node == self._context.node:
            await self.outgoing.done(row.node, done)
            return True
        # Where the session is that node's again, there is nothing to forget.
        again = not incoming.keeper and self.ownership.owner_of(incoming.client_id) == row.node
        if row.node not in self._members.peers or again:
            return True
        try:
            await self._calls.call(row.node, DONE, _encode(done))
        except (NodeUnreachable, CallFailed):
            return False
        return True

    def _remove(self, incoming: Incoming) -> None:
        if self._coming.get(incoming.key) is incoming:
            del self._coming[incoming.key]
            self._rows.remove(incoming.key)
            kept = self._kept.get(incoming.client_id)
            if kept is not None and incoming in kept:
                kept.remove(incoming)
                if not kept:
                    del self._kept[incoming.client_id]
            turn = self._turns.get(incoming.client_id)
            if turn is not None:
                turn.changed.set()
        if self._watched and not self._coming:
            self._watched = False
            self._broker.hooks.session_subscribed.remove(self._subscribed)
            self._broker.hooks.session_unsubscribed.remove(self._unsubscribed)

    async def _offered(self, node: str, argument: bytes) -> bytes:
        """A node that was away has the rest of a session that was begun anew here."""
        offer = msgspec.msgpack.decode(argument, type=Offer)
        client_id = offer.client_id
        incoming = self._coming.get(client_id)
        session = self._broker.sessions.get(client_id)
        if incoming is None and (session is None or not self.ownership.has(client_id)):
            # Only where it is certain that this node does not have it, nor ever will.
            unsettled = self.ownership.has(client_id) or self.ownership.busy(client_id)
            return (BUSY if unsettled else GONE).encode()
        if incoming is None:
            incoming = self._coming[client_id] = Incoming(client_id, HandoverRow(node, offer.move, FETCHING, rest=True))
            incoming.session = session
            self._fetch(incoming)
        return MORE.encode()

    # ---------------------------------------------------------------------- marks

    def _nodes_of(self, turn: Turn) -> list[str]:
        """The nodes that marks for this client go to, this one first."""
        return list({self._context.node: None, **{each.row.node: None for each in self._of(turn.client_id)}})

    async def _turn(self, turn: Turn) -> None:
        """Ask for marks, until all nodes have sent theirs that may still send something elsewhere."""
        client_id = turn.client_id
        loop = asyncio.get_running_loop()
        # Of each node when it is asked again, and how many questions in a row were not answered as wished.
        asked: dict[str, float] = {}
        failed: dict[str, int] = {}
        try:
            while self._is_ours(turn):
                turn.changed.clear()
                wanted = self._unmarked(turn)
                if wanted is None:
                    self._turns.drop(client_id)
                    return
                now = loop.time()
                due = [name for name in wanted if asked.get(name, now) <= now]
                for name, answered in zip(due, await self._ask_for_marks(turn, due), strict=True):
                    failed[name] = 0 if answered else failed.get(name, 0) + 1
                    pause = min(_PAUSE * 2 ** min(failed[name], 10), _PAUSE_UNREACHABLE)
                    asked[name] = loop.time() + (_ASK_AGAIN if answered else pause)
                wait = min([asked[name] - loop.time() for name in wanted if name in asked], default=_PAUSE_KEPT)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(wait, 0.001)):
                        await turn.changed.wait()
        finally:
            self._turning.discard(turn)

    def _is_ours(self, turn: Turn) -> bool:
        """Whether the session is here, and does not go away."""
        client_id = turn.client_id
        is_here = self._turns.get(client_id) is turn and not self._turns.is_elsewhere(turn)
        return is_here and not self.outgoing.leaves(client_id)

    def _unmarked(self, turn: Turn) -> list[str] | None:
        """Which nodes that run have not sent their marks; ``None``: nobody has to any more."""
        coming = self._of(turn.client_id)
        keepers = self._keepers_of(turn.client_id)
        peers = self._members.peers
        if any(each.staging is not None for each in coming):
            late = set(peers)
        else:
            late = {name for name in turn.others if name in peers}
            late.update(*(each.row.late for each in keepers))
            if not late and not coming:
                return None
        return [name for name in sorted(late) if name in peers and peers[name].running and not turn.marked(name)]

    async def _ask_for_marks(self, turn: Turn, nodes: list[str]) -> list[bool]:
        """Whether each was sent."""
        session = self._broker.sessions.get(turn.client_id)
        owner = self.ownership.owner(turn.client_id)
        if not nodes or session is None or owner is None or not self.ownership.is_ours(owner):
            return [False] * len(nodes)
        # After its mark a node sends nothing more to where the session was: should this node die now, it is to know
        # afterwards that new messages wait here.
        if not await self._context.tables.stored():
            return [False] * len(nodes)
        revision = await self._routes.written([each.filter for each in session.subscriptions.values()])
        ask = _encode(TurnAsked(turn.client_id, owner.revision, revision, self._nodes_of(turn)))
        results = await asyncio.gather(*(self._calls.call(name, TURN, ask) for name in nodes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, (NodeUnreachable, CallFailed)):
                raise result
        return [isinstance(result, bytes) for result in results]

    # ---------------------------------------------------------------------- offers


def _encode(body: object) -> bytes:
    return msgspec.msgpack.encode(body)


def _copy(delivery: Delivery) -> Delivery:
    return Delivery(delivery.message, delivery.qos, delivery.retain, delivery.identifiers, delivery.group)


def _subscribe_in_place(router: Router, old: Subscription, new: Subscription) -> None:
    """The filter has a subscriber at every moment, so that no other node is told of a change."""
    router.subscribe(new)
    router.unsubscribe(old)


def _only_others(session: Session, topic: str) -> bool:
    """Whether No Local keeps the client's own messages of this topic from it."""
    found = [each for each in session.subscriptions.values() if not each.group and matches(each.topic_filter, topic)]
    return bool(found) and all(each.no_local for each in found)


def _is_over(ended: list[Subscription], session: Session, moved: MovedDelivery) -> bool:
    """Whether what brought this message to the session is over, and nothing else of it matches."""
    if moved.group:
        return any(each.filter == moved.group for each in ended)
    topic = moved.body.topic
    if not any(each.group is None and matches(each.topic_filter, topic) for each in ended):
        return False
    return not any(each.group is None and matches(each.topic_filter, topic) for each in session.subscriptions.values())
