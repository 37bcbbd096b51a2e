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

New messages go to a second session meanwhile (``staging``), which has the subscriptions. At the end those of them that
did not also come from the other node are delivered, in order. So no message is lost, none comes twice, and a
publisher's come in order. Rows in the table ``handover`` let each step go on after a restart.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.cluster import STOPPED, CallFailed, NodeUnreachable
from ..mqtt.message import Delivery, Message
from ..mqtt.topics import matches
from ..routing.router import Router
from ..session.client_info import ClientInfo
from ..session.protocols import NO_LOCAL, QOS0_MSG, REVOKED
from ..session.session import Session
from ..session.subscription import Subscription
from ..store.restored import ZoneOf
from .calls import Calls
from .context import ClusterContext
from .link import PREFIX as LINK_PREFIX
from .members import Members
from .outgoing import CANCEL, DONE, FETCH, FRESH, OFFER, PREPARE, Outgoing
from .routes import Routes
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
    Receiver,
    keys_of,
    with_qos0,
)
from .tasks import Tasks

if TYPE_CHECKING:
    from .ownership import Ownership

logger = logging.getLogger(__name__)

PASSED: Final = "handover.passed"
TABLE: Final = "handover"
IDS: Final = "handover_ids"
STAGING: Final = "\0staging:"

# Where a session that comes stands (``HandoverRow.state``).
ADOPTED: Final = 0
"""It is here, and the key may be another node's still."""
FETCHING: Final = 1
FINISHED: Final = 2
"""All of it is here; the other node is to forget it."""

_ID_PREFIX: Final = 16
_PAUSE: Final = 0.01
_PAUSE_UNREACHABLE: Final = 0.5
_ASK_AGAIN: Final = 1.0


class HandoverRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover``, by Client Identifier. ``taken``: the number of the last piece, ``doubt`` which
    messages it had. ``rest``: nothing but the queue of a session that was begun anew here. ``own``: filters that the
    other node does not have. ``caught_up``: what waits in ``staging`` came after the other node's client was gone."""

    node: str
    move: str
    state: int
    taken: int = 0
    doubt: list[tuple[int, str]] = []
    rest: bool = False
    own: list[str] = []
    caught_up: bool = False


class IdsRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_ids``: messages that one piece had, by their ids and groups."""

    ids: list[tuple[str, str]]


class Passed(msgspec.Struct, array_like=True, frozen=True):
    """Until the node routes by this revision of the routes, and until these nodes have what it sent them before."""

    revision: int
    nodes: list[str]


class Incoming:
    """One session that comes."""

    def __init__(self, client_id: str, row: HandoverRow) -> None:
        self.client_id = client_id
        self.row = row
        self.session: Session | None = None
        self.staging: Session | None = None
        # When its delayed will is due.
        self.will_due = 0.0
        # Of each message that has come from the other node: its id and group.
        self.ids: set[tuple[str, str]] = set()
        # Of each publisher and topic, the id of the last one of QoS 0 among them.
        self.last_qos0: dict[tuple[str | None, str], str] = {}
        # Subscriptions that are over since it came: what the other node's queue has of them is dropped.
        self.ended: list[Subscription] = []
        # Every node sends its new messages here, too.
        self.routed = False
        self.task: asyncio.Task[None] | None = None


class Handover:
    """``prepare`` to ``begin`` are the steps of a claim; the rest of a session comes by itself.

    ``step`` is called with the name of each step after the client has its CONNACK.
    """

    def __init__(
        self, context: ClusterContext, members: Members, calls: Calls, routes: Routes, zone_of: ZoneOf
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._routes = routes
        self.receiver = Receiver(context.broker, zone_of)
        self._rows = context.tables.open(TABLE, HandoverRow)
        self._id_rows = context.tables.open(IDS, IdsRow)
        self._coming: dict[str, Incoming] = {}
        self._tasks = Tasks()
        self._stopped = False
        self._watched = False
        self.step: Callable[[str], None] = lambda name: None
        self.outgoing = Outgoing(context, calls, self._is_coming)
        self.outgoing.on_gone = self._gone
        self.ownership: Ownership
        calls.serve(PASSED, self._passed)
        calls.serve(OFFER, self._offered)
        self._fetched = msgspec.msgpack.Decoder(Piece)

    # -------------------------------------------------------------- start, stop

    def load(self) -> None:
        """The node has its sessions: these are not all of them here yet."""
        self.outgoing.ownership = self.ownership
        for client_id, row in self._rows.items():
            incoming = self._coming[client_id] = Incoming(client_id, row)
            incoming.session = self._broker.sessions.get(client_id)
            incoming.staging = self._broker.sessions.internal.get(STAGING + client_id)
        for key, ids in self._id_rows.items():
            client_id = key.rpartition("\0")[0]
            if client_id in self._coming:
                self._coming[client_id].ids.update((each[0], each[1]) for each in ids.ids)

    def start(self) -> None:
        """It is known whose the sessions are: go on where it was."""
        for incoming in list(self._coming.values()):
            session, row = incoming.session, incoming.row
            if row.state == ADOPTED and not self.ownership.has(incoming.client_id):
                self.drop(incoming.client_id)
            elif row.state == FINISHED or session is None:
                self._end_staging(incoming)
                self._finish(incoming)
            else:
                if not row.rest:
                    self._stage(incoming, session)
                self._fetch(incoming)

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
        return incoming is not None and (incoming.row.state == ADOPTED or incoming.staging is not None)

    def _gone(self, client_id: str) -> None:
        """Another node has the session: what is still to come is offered to that one."""
        incoming = self._coming.get(client_id)
        if incoming is not None and incoming.row.state == FETCHING:
            if incoming.task is not None:
                incoming.task.cancel()
            self._remove(incoming)

    def leaves(self, client_id: str) -> bool:
        """Whether another node is just getting this session from here."""
        return self.outgoing.leaves(client_id)

    async def left(self, client_id: str, timeout: float) -> None:
        """Until it has it, or does not want it any more."""
        await self.outgoing.left(client_id, timeout)

    def lost(self, session: Session, node: str, clean_start: bool) -> None:
        """The bucket says that a session of this node is another's."""
        incoming = self._coming.get(session.client_id)
        if incoming is not None and incoming.row.state == ADOPTED:
            return  # not ours yet
        self.outgoing.lost(session, node, clean_start)

    def returned(self, client_id: str) -> None:
        """Another node has written that a session is this node's."""
        self.outgoing.returned(client_id)

    def session_ended(self, session: Session) -> None:
        """A session of this node is over: nothing more of it is wanted."""
        incoming = self._coming.get(session.client_id)
        if incoming is not None and incoming.session is session:
            self._end_staging(incoming)
            self._finish(incoming)
        self.outgoing.session_ended(session)

    # ---------------------------------------------------------- the steps of a claim

    async def prepare(self, node: str, client: ClientInfo, move: str, clean_start: bool, timeout: float) -> Prepared:
        """Ask a node for a session."""
        ask = Prepare(client.client_id, move, client.owner, client.username, self.checks_owner, clean_start)
        most = self._context.settings.call_timeout
        answer = await self._calls.call(node, PREPARE, _encode(ask), min(timeout, most))
        return msgspec.msgpack.decode(answer, type=Prepared)

    def adopt(self, client_id: str, node: str, move: str, moved: MovedSession) -> None:
        """Make the session here; its subscriptions are not in force yet."""
        broker = self._broker
        self._forget_ids(client_id)  # of an earlier time
        incoming = self._coming[client_id] = Incoming(client_id, HandoverRow(node, move, ADOPTED))
        session = self.receiver.session(moved)
        broker.adopt_session(session)
        incoming.session = session
        incoming.will_due = self.receiver.hold(session, moved)
        self._rows.put(client_id, incoming.row)

    def drop(self, client_id: str) -> None:
        """The session stays where it was."""
        incoming = self._coming.pop(client_id, None)
        if incoming is not None and incoming.session is not None:
            self._broker.forget_session(incoming.session)
        self._rows.remove(client_id)

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
        self._fetch(incoming)

    # ------------------------------------------------------------------- staging

    def _stage(self, incoming: Incoming, session: Session) -> None:
        """From now on new messages wait in a session of their own."""
        broker = self._broker
        client = session.client
        staged = ClientInfo(broker.node, client.zone, client_id=STAGING + session.client_id)
        limits = with_qos0(session.limits)
        incoming.staging = staging = broker.open_internal(staged, limits, self._context.clock.now())
        staging.subscriptions.clear()
        for subscription in session.subscriptions.values():
            self._stage_one(staging, subscription)
        if not self._watched:
            self._watched = True
            broker.hooks.session_subscribed.add(self._subscribed)
            broker.hooks.session_unsubscribed.add(self._unsubscribed)

    def _subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        incoming = self._coming.get(subscription.session.client_id)
        if incoming is None or incoming.staging is None or incoming.session is not subscription.session:
            return
        self._stage_one(incoming.staging, subscription)
        if new:
            self._put(incoming, msgspec.structs.replace(incoming.row, own=[*incoming.row.own, subscription.filter]))
        incoming.ended = [each for each in incoming.ended if each.filter != subscription.filter]

    def _unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        incoming = self._coming.get(subscription.session.client_id)
        if incoming is None or incoming.session is not subscription.session:
            return
        incoming.ended.append(subscription)
        if incoming.staging is not None:
            staged = incoming.staging.subscriptions.pop(subscription.filter, None)
            if staged is not None:
                self._broker.router.unsubscribe(staged)

    def _stage_one(self, staging: Session, subscription: Subscription) -> None:
        staged = staging.subscriptions[subscription.filter] = _for(staging, subscription)
        _subscribe_in_place(self._broker.router, subscription, staged)

    def _drop_early(self, incoming: Incoming, staging: Session, session: Session) -> None:
        """What was published before the other node's client was gone may have gone out there, and all of this has come
        to that node."""
        queue = staging.queue
        if queue is not None:
            own = [each for each in session.subscriptions.values() if each.filter in incoming.row.own]
            early = []
            for delivery in queue.clear():
                topic = delivery.message.topic
                if delivery.group or any(not each.group and matches(each.topic_filter, topic) for each in own):
                    queue.push(delivery)
                else:
                    early.append(delivery)
            if staging.journal is not None:
                staging.journal.done(staging, [each for each in early if each.qos])
        self._put(incoming, msgspec.structs.replace(incoming.row, caught_up=True))

    def _merge(self, incoming: Incoming, session: Session) -> None:
        """New messages go to the session itself from now on, after those that waited."""
        staging = incoming.staging
        if staging is None:
            return
        router = self._broker.router
        for subscription in session.subscriptions.values():
            router.subscribe(subscription)  # before the others go, so that no other node is told of a change
        session.now = self._context.clock.now()
        for delivery in staging.queue or ():
            message = delivery.message
            key = (message.id, delivery.group)
            if message.id and key in incoming.ids:
                continue
            if not message.qos and _is_overtaken(incoming, message):
                self._broker.delivery_dropped(session, delivery, QOS0_MSG)
                continue
            if message.publisher is not None and message.publisher.client_id == session.client_id:
                if not delivery.group and _only_others(session, message.topic):
                    self._broker.delivery_dropped(session, delivery, NO_LOCAL)
                    continue
            if message.id:
                incoming.ids.add(key)
            session.deliver_shared(
                Delivery(message, delivery.qos, delivery.retain, delivery.identifiers, delivery.group)
            )
        self._end_staging(incoming)

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
        self._rows.put(incoming.client_id, row)

    async def _bring(self, incoming: Incoming) -> None:
        """All that is still to come, however long it takes."""
        try:
            if incoming.row.state == FETCHING:
                routing = asyncio.get_running_loop().create_task(self._wait_until_routed(incoming))
                try:
                    await self._bring_queue(incoming)
                finally:
                    routing.cancel()
            if incoming.row.state == FINISHED:
                await self._tell_done(incoming)
        except asyncio.CancelledError:
            raise
        except Exception:  # of one session; it goes on after the next start
            logger.exception("handover_failed client_id=%s node=%s", incoming.client_id, incoming.row.node)

    async def _bring_queue(self, incoming: Incoming) -> None:
        session = incoming.session
        assert session is not None
        while incoming.row.state == FETCHING:
            row = incoming.row
            ended = [each.filter for each in incoming.ended]
            ask = Fetch(incoming.client_id, row.move, row.taken, row.doubt, row.rest, ended, incoming.routed)
            try:
                answer = await self._calls.call(row.node, FETCH, _encode(ask))
            except (NodeUnreachable, CallFailed) as error:
                if not await self._wait_for_node(incoming, str(error)):
                    break
                continue
            piece = self._fetched.decode(answer)
            if incoming.row.state != FETCHING:
                break
            if piece.state == BUSY or (piece.state == MORE and not piece.deliveries):
                await asyncio.sleep(_PAUSE)
            elif piece.state == MORE:
                self._take_in(incoming, session, piece)
                self.step("piece_taken")
                if not await self._context.tables.stored():
                    await asyncio.sleep(_ASK_AGAIN)
            else:
                break
        if incoming.row.state != FETCHING:
            return
        self.step("fetched")
        if incoming.staging is not None:
            await self._wait_until_passed([self._context.node], 0)
            self._merge(incoming, session)
        self._finish_row(incoming)
        self.step("merged")

    def _take_in(self, incoming: Incoming, session: Session, piece: Piece) -> None:
        session.now = self._context.clock.now()
        ids: list[tuple[str, str]] = []
        for each in piece.deliveries:
            key = (each.body.id, each.group)
            if each.body.id:
                if key in incoming.ids:
                    continue
                ids.append(key)
                incoming.ids.add(key)
                if not each.body.qos:
                    incoming.last_qos0[each.body.client_id, each.body.topic] = each.body.id
            delivery = self.receiver.delivery(each)
            if incoming.ended and _is_over(incoming.ended, session, each):
                self._broker.delivery_dropped(session, delivery, REVOKED)
                continue
            session.deliver_shared(delivery)
        if ids:
            self._id_rows.put(f"{incoming.client_id}\0{piece.number}", IdsRow(ids))
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
            self._merge(incoming, incoming.session)
        await asyncio.sleep(_PAUSE_UNREACHABLE)
        return True

    # ------------------------------------------------------------------- the end

    def _finish_row(self, incoming: Incoming) -> None:
        self._put(incoming, msgspec.structs.replace(incoming.row, state=FINISHED, doubt=[]))

    def _finish(self, incoming: Incoming) -> None:
        """The session is over, or all of it is here already."""
        self._finish_row(incoming)
        if incoming.task is None or incoming.task.done():
            self._run(incoming)

    async def _tell_done(self, incoming: Incoming) -> None:
        row = incoming.row
        done = _encode(Done(incoming.client_id, row.move))
        await self._context.tables.stored()
        client_id = incoming.client_id
        # Where the session is that node's again, there is nothing to forget.
        while row.node in self._members.peers and self.ownership.owner_of(client_id) != row.node:
            if self._coming.get(client_id) is not incoming:
                return
            try:
                await self._calls.call(row.node, DONE, done)
                break
            except (NodeUnreachable, CallFailed):
                await asyncio.sleep(_ASK_AGAIN)
        self._remove(incoming)
        self.step("done")

    def _remove(self, incoming: Incoming) -> None:
        if self._coming.get(incoming.client_id) is incoming:
            del self._coming[incoming.client_id]
            self._rows.remove(incoming.client_id)
            self._forget_ids(incoming.client_id)
        if self._watched and not self._coming:
            self._watched = False
            self._broker.hooks.session_subscribed.remove(self._subscribed)
            self._broker.hooks.session_unsubscribed.remove(self._unsubscribed)

    def _forget_ids(self, client_id: str) -> None:
        for key in [key for key, _ in self._id_rows.items() if key.startswith(client_id + "\0")]:
            self._id_rows.remove(key)

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

    # --------------------------------------------------------------------- routes

    async def _wait_until_routed(self, incoming: Incoming) -> None:
        """Until every node sends its new messages here, and what it sent to the other node before has come there."""
        session = incoming.session
        if session is not None and incoming.staging is not None:
            if not incoming.row.caught_up:
                await self._wait_until_passed([self._context.node], 0)
                if incoming.staging is not None:
                    self._drop_early(incoming, incoming.staging, session)
            revision = await self._routes.written([each.filter for each in session.subscriptions.values()])
            await self._wait_until_passed([incoming.row.node], revision)
        incoming.routed = True

    async def _wait_until_passed(self, nodes: list[str], revision: int) -> None:
        """Until every node that runs routes by ``revision``, and ``nodes`` have what it has sent them before."""
        ask = _encode(Passed(revision, nodes))
        asked: set[str] = set()
        await self._pass_links(nodes)
        while True:
            waiting = [each.name for each in self._members.running() if each.name not in asked]
            if not waiting:
                return
            calls = [self._calls.call(name, PASSED, ask) for name in waiting]
            for name, result in zip(waiting, await asyncio.gather(*calls, return_exceptions=True), strict=True):
                if isinstance(result, bytes):
                    asked.add(name)
                elif not isinstance(result, (NodeUnreachable, CallFailed)):
                    raise result
            if not asked.issuperset(waiting):
                await asyncio.sleep(_PAUSE)

    async def _passed(self, node: str, argument: bytes) -> bytes:
        passed = msgspec.msgpack.decode(argument, type=Passed)
        if passed.revision and not await self._routes.reached(passed.revision):
            raise CallFailed(f"revision {passed.revision} of the routes is not reached")
        await self._pass_links(passed.nodes)
        return b""

    async def _pass_links(self, nodes: list[str]) -> None:
        """Until these nodes have acknowledged what waits for them now."""
        for node in nodes:
            link = self._broker.sessions.internal.get(LINK_PREFIX + node)
            if link is None:
                continue
            last = _last_of(link)
            while last is not None and _holds(link, last):
                await asyncio.sleep(_PAUSE)


def _encode(body: object) -> bytes:
    return msgspec.msgpack.encode(body)


def _for(staging: Session, subscription: Subscription) -> Subscription:
    """The same subscription of the session where new messages wait."""
    return Subscription(
        staging,
        subscription.filter,
        subscription.qos,
        False,
        subscription.retain_as_published,
        subscription.retain_handling,
        subscription.identifiers,
        subscription.group,
        subscription.topic_filter,
    )


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


def _is_overtaken(incoming: Incoming, message: Message) -> bool:
    """Whether the other node missed this message of QoS 0, and has given what the publisher sent on the topic later.
    Ids that a node has made since its start are alike but for the number that grows."""
    publisher = message.publisher
    last = incoming.last_qos0.get((None if publisher is None else publisher.client_id, message.topic), "")
    return message.id < last and message.id[:_ID_PREFIX] == last[:_ID_PREFIX]


def _last_of(link: Session) -> Delivery | None:
    last: Delivery | None = None
    for delivery in link.queue if link.queue is not None else link.inflight.values():
        last = delivery
    return last


def _holds(link: Session, delivery: Delivery) -> bool:
    if any(each is delivery for each in link.inflight.values()):
        return True
    return link.queue is not None and any(each is delivery for each in link.queue)
