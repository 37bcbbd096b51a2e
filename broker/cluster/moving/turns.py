"""Turns: from which node's link a session that has moved gets the messages of each other node.

When a node has switched its routing to a session's new place, it sends a mark, once, in its links to all nodes that may
accept its messages for that session. The session's old node accepts the messages before the mark, and its new node
those after it. Thus each message is accepted once, in order, however late the node is. Marks are as durable as QoS 2
messages.

    link of n3 to the old node   ... m1 m2 | mark ...           m1, m2 are taken here
    link of n3 to the new node   ... m2 | mark | m3 ...         m3 is taken here; m2 is for other sessions only

A ``Turn`` contains everything that a node has to know about one client, from the start of a move until all nodes have
sent their marks. Without a turn, all matching messages go to the session. A turn also contains the ended stays of the
client's sessions on this node. If there is a session here now, it may be a different one.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from ...core.cluster import CallFailed
from ...mqtt.message import Message
from ...routing.router import Router
from ...session.session import Session
from ...session.subscription import Subscription, merge
from ..calls import Calls
from ..changes import Changes
from ..context import ClusterContext
from ..links.link_receiver import LinkReceiver, begun_since
from ..links.routes import ClusterRoutes
from ..members.members import Members
from ..wire import MALFORMED, UNREADABLE, Mark, MessageRecord, node_key
from .session_nodes import SessionNodes

logger = logging.getLogger(__name__)

TABLE: Final = "handover_turns"
KEPT: Final = "\0kept:"
"""Prefix of internal sessions for messages that nodes still send here for a session that is elsewhere. Each ended stay
has one, named by ``kept_name``."""
TURN: Final = "handover.turn"


class TurnAsked(msgspec.Struct, array_like=True, frozen=True):
    """The request to send a mark to ``nodes``, as soon as the routes have ``revision``."""

    client_id: str
    epoch: int
    revision: int
    nodes: list[str]


class TurnRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_turns``, by client ID: the fields of ``Turn``. ``over``: the row has only ended stays,
    and any session of this client here has begun later."""

    default: bool
    others: list[str] = []
    marks: dict[str, tuple[int, bool]] = {}
    filters: list[str] = []
    epoch: int = 0
    kept: bool = False
    early: dict[str, int] = {}
    over: bool = False
    behind: list[str] = []


def kept_name(client_id: str, epoch: int) -> str:
    """Return the client ID of the internal session that keeps messages for a stay. ``epoch`` is the epoch of the key
    with which the stay ended."""
    return f"{KEPT}{epoch}:{client_id}"


class Stay:
    """An ended stay. The session was here from its key's epoch ``begun`` until the key named another node at epoch
    ``ended``. ``session`` is the internal session that gets the messages which nodes still send here for the stay, and
    ``apart`` has its subscriptions, by filter."""

    __slots__ = ("apart", "begun", "ended", "session")

    def __init__(self, session: Session, begun: int, ended: int) -> None:
        self.session = session
        self.begun = begun
        self.ended = ended
        self.apart: dict[str, Subscription] = {}


class Turn:
    """Decides which messages of other nodes a client's session gets here.

    For example, C has sent the mark with epoch 11, which names this node, and the session arrived here with epoch 11:
    messages of C are for the session. A, which has not sent a mark, is in ``others``: its messages are not for the
    session yet.

    ``session`` is ``None`` if the session is elsewhere, or has begun after the stays that are known here. ``epoch`` is
    the epoch of the key when the session arrived here; if it has left, the epoch when this node last had it. ``marks``
    has, by node, the epoch of its last mark, and whether the mark named this node. The session gets the messages of
    nodes in ``others`` if ``default`` is not set; if ``default`` is set, of all nodes except these. It is not set while
    an old place of the session accepts messages until the marks, so that those of a node that joins belong there, too.

    ``filters`` are the filters of the subscriptions that have moved, or ``None`` if all have; other subscriptions get
    every message. ``kept``: the subscriptions are not in the node's router, so that this node's own messages are not
    for the session. ``anew``: the session began here instead of moving here, so that each of its filters may have been
    subscribed by the session before it.

    ``stays`` has the ended stays, by ``Stay.ended``. ``early`` has the nodes that are so far behind that their messages
    are for one of these stays, with its ``ended``. ``behind`` has nodes that were so far behind before the session
    began here: until their next mark, their messages are for the session. ``waiting`` returns whether earlier messages
    of a node have yet to arrive from elsewhere; until then, new ones go to the session that ``held`` returns.
    ``changed`` wakes tasks that wait for marks.
    """

    __slots__ = (
        "anew", "apart", "behind", "changed", "client_id", "default", "early", "epoch", "filters", "held", "kept",
        "marks", "others", "session", "stays", "waiting",
    )  # fmt: skip

    def __init__(self, client_id: str, session: Session | None, row: TurnRow) -> None:
        self.client_id = client_id
        self.session = session
        self.default = row.default
        self.others = set(row.others)
        self.marks = dict(row.marks)
        self.filters: set[str] | None = set(row.filters) if row.filters else None
        self.epoch = row.epoch
        self.kept = row.kept
        # If it is ``kept``: the subscriptions, by filter.
        self.apart: dict[str, Subscription] = {}
        self.stays: dict[int, Stay] = {}
        self.early = dict(row.early)
        self.behind = set(row.behind)
        self.waiting: Callable[[str], bool] = lambda node: False
        self.held: Callable[[str], Session] | None = None
        self.changed = Changes()
        self.anew = False

    @property
    def row(self) -> TurnRow:
        filters = sorted(self.filters or ())
        over = self.session is None
        others, behind = sorted(self.others), sorted(self.behind)
        return TurnRow(self.default, others, self.marks, filters, self.epoch, self.kept, self.early, over, behind)

    def takes(self, node: str) -> bool:
        """Return whether messages of this node are for the session here."""
        return (node in self.others) != self.default

    def taker(self, node: str) -> Session | None:
        """Return the session that gets the messages of this node."""
        ended = self.early.get(node)
        if ended is not None:
            return self.stays[ended].session
        return self.session if self.takes(node) else None

    def mark(self, node: str, mark: Mark, here: bool) -> None:
        """Note that this node's messages are for the stay of that epoch from now on."""
        self.marks[node] = (mark.epoch, here)
        if node in self.behind:
            self.behind.discard(node)
            self.set(node, False)
        ended = self.early.get(node)
        # A late one of an earlier session changes neither this nor which messages are taken.
        if ended is not None and (here or mark.epoch >= self.stays[ended].begun):
            del self.early[node]
        stays = self.stays.values()
        over = next((each for each in stays if here and each.begun <= mark.epoch < each.ended), None)
        if over is not None:
            self.early[node] = over.ended
        if here or mark.epoch >= self.epoch:
            self.set(node, here and over is None and self.session is not None)

    def inherit(self) -> None:
        """Give the session the messages of all nodes in ``early``: the session has begun here, and the ended stays do
        not need them."""
        for node in self.early:
            self.behind.add(node)
            self.set(node, True)
        self.early = {}

    def set(self, node: str, takes: bool) -> None:
        if takes == self.default:
            self.others.discard(node)
        else:
            self.others.add(node)

    def marked(self, node: str) -> bool:
        """Return whether this node has sent the mark that names this node for the session."""
        epoch, here = self.marks.get(node, (0, False))
        return here and epoch >= self.epoch

    def given(self, node: str, epoch: int) -> bool:
        """Return whether this node has sent the mark of that epoch or a later one."""
        return self.marks.get(node, (0, True))[0] >= epoch


class MovesOfTurns(Protocol):
    """The facts about sessions that handling a mark requires. ``Handover`` implements it."""

    def begun(self, turn: Turn) -> None:
        """Note that this turn began with a mark, without a session."""

    def last_epoch(self, client_id: str) -> int:
        """Return the epoch that the key of a client's session had when the session was last on this node, or 0 if it is
        not known. The session is here or is leaving."""

    def is_closed(self, client_id: str) -> bool:
        """Return whether this node accepts no further messages for a session that another node has, whatever marks
        arrive."""


class Turns:
    """The turns of this node, by client ID. ``LinkReceiver`` calls it for each message of another node, if there is a
    turn."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        routes: ClusterRoutes,
        receiver: LinkReceiver,
        nodes: SessionNodes,
        moves: MovesOfTurns,
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._routes = routes
        self._receiver = receiver
        self._table = context.tables.open(TABLE, TurnRow)
        self._turns: dict[str, Turn] = {}
        self._of: dict[Session, Turn] = {}
        # Subscriptions that receive only messages of other nodes.
        self._kept = Router(cache_size=1024)
        self._nodes = nodes
        self._moves = moves
        receiver.on_mark = self._came
        receiver.on_late = self._route_late
        receiver.on_new_node = self._forget_marks
        calls.serve(TURN, self._asked)

    def load(self, session_of: Callable[[str], Session | None], stays_of: Callable[[str], Iterable[Stay]]) -> None:
        """Read the rows when the node's sessions are restored. ``session_of`` returns the session that gets messages
        for a client, if it is here, and ``stays_of`` the ended stays of a client."""
        for client_id, row in list(self._table.items()):
            session = None if row.over else session_of(client_id)
            stays = {each.ended: each for each in stays_of(client_id)}
            if session is None and not stays:
                self._table.remove(client_id)
                continue
            turn = Turn(client_id, session, row)
            turn.early = {node: ended for node, ended in row.early.items() if ended in stays}
            turn.stays = stays
            self._add(turn)
            if row.kept and session is not None:
                self._keep(turn)
            for stay in stays.values():
                for filter, subscription in stay.session.subscriptions.items():
                    if subscription.group is None:
                        stay.apart[filter] = subscription
                        self._routes.hold(subscription.filter)
                        self._kept.subscribe(subscription)

    # ----------------------------------------------------------------- questions

    def get(self, client_id: str) -> Turn | None:
        """Return the turn of a session that is here, or is leaving; ``None`` if only ended stays are known."""
        turn = self._turns.get(client_id)
        return None if turn is None or turn.session is None else turn

    def clients(self) -> list[str]:
        """Return the clients that have turns, including those with only ended stays."""
        return list(self._turns)

    def given(self, client_id: str, node: str, epoch: int) -> bool:
        """Return the same as ``Turn.given``, also for ended stays."""
        turn = self._turns.get(client_id)
        return turn is None or turn.given(node, epoch)

    def not_given(self, client_id: str, epoch: int) -> list[str]:
        """Return the other nodes that may still send messages here for this client's session, which has moved."""
        turn = self._turns.get(client_id)
        return [name for name in self._members.peers if turn is None or not turn.given(name, epoch)]

    # ------------------------------------------------------------------- changes

    def put(self, turn: Turn) -> None:
        """Store a changed turn."""
        self._table.put(turn.client_id, turn.row)

    def begin(self, client_id: str, session: Session, filters: Iterable[str], epoch: int) -> Turn:
        """Begin the turn of a session that has arrived: it gets messages of another node only after that node's
        mark."""
        before = self.get(client_id)
        others = () if before is None or before.default else before.others
        node = self._context.node
        row = TurnRow(False, sorted({*others, node}), {node: (epoch, True)}, list(filters), epoch)
        turn = self._make(client_id, session, row)
        self.put(turn)
        return turn

    def _make(self, client_id: str, session: Session, row: TurnRow) -> Turn:
        """Add the turn of a session, and keep its ended stays."""
        turn = Turn(client_id, session, row)
        before = self._turns.get(client_id)
        if before is not None:
            turn.marks = {**before.marks, **turn.marks}
            turn.stays, before.stays = before.stays, {}
            turn.early = before.early
            self.end(client_id)
        self._add(turn)
        return turn

    def settle(self, turn: Turn, session: Session) -> None:
        """Deliver new messages to ``session`` itself. Messages of nodes that have not sent their marks still belong to
        the old place, including those of nodes that join."""
        self._replace(turn, session)
        self.put(turn)

    def complete(self, turn: Turn) -> None:
        """Note that no old place accepts further messages, except from nodes that are late there: messages of a node
        that joins belong to the session."""
        late = {name for name in self._members.peers if not turn.marked(name) and not turn.takes(name)}
        turn.default = True
        turn.others = late
        self.put(turn)

    def _replace(self, turn: Turn, session: Session) -> None:
        """Replace the turn's session by this one. If the earlier session was not in the node's router, neither is this
        one."""
        before, turn.apart = turn.apart, {}
        if turn.session is not None:
            self._of.pop(turn.session, None)
        turn.session = session
        self._of[session] = turn
        if turn.kept:
            self._keep(turn)
        for filter in list(before):
            self._end(before, filter)

    def _leaves(self, session: Session, epoch: int) -> Turn:
        """Add the turn of a session that is leaving, and return it. ``epoch`` is the epoch of the key when this node
        last had it, or 0 if it is not known."""
        return self._make(session.client_id, session, TurnRow(True, epoch=epoch))

    def hand_over(self, turn: Turn, to: Session, epoch: int) -> None:
        """Give ``to`` the messages that nodes still send here for a session that has left. ``epoch`` is the epoch of
        its key at the other node."""
        stay = turn.stays[epoch] = Stay(to, turn.epoch, epoch)
        durability = self._broker.durability
        for filter, subscription in turn.apart.items():
            new = stay.apart[filter] = copy_for(to, subscription)
            to.put_subscription(new)
            if durability is not None and to.durable:
                durability.sessions.subscribed(to, new)
            self._routes.hold(new.filter)
            self._kept.subscribe(new)
        self._of[to] = turn
        for name in self._members.peers:
            if turn.takes(name):
                turn.early.setdefault(name, epoch)
        self.end(turn.client_id)

    def end(self, client_id: str) -> None:
        """Forget the session of this client, because it is elsewhere, has ended, or no longer needs a turn. Ended stays
        remain."""
        turn = self._turns.get(client_id)
        if turn is None:
            return
        if turn.session is not None and self._of.get(turn.session) is turn:
            del self._of[turn.session]
        turn.session = None
        turn.default, turn.others, turn.filters, turn.held = False, set(), None, None
        turn.behind = set()
        turn.kept = True
        for filter in list(turn.apart):
            self._end(turn.apart, filter)
        turn.changed.tell()
        if turn.stays:
            self.put(turn)
            return
        del self._turns[client_id]
        self._table.remove(client_id)
        if not self._turns:
            self._receiver.apart = None

    def end_stay(self, client_id: str, ended: int) -> None:
        """Forget an ended stay whose messages are no longer needed."""
        turn = self._turns.get(client_id)
        stay = None if turn is None else turn.stays.pop(ended, None)
        if turn is None or stay is None:
            return
        self._of.pop(stay.session, None)
        for filter in list(stay.apart):
            self._end(stay.apart, filter)
        turn.early = {node: each for node, each in turn.early.items() if each != ended}
        if turn.session is None and not turn.stays:
            self.end(client_id)
        else:
            self.put(turn)

    def _add(self, turn: Turn) -> None:
        self._turns[turn.client_id] = turn
        for session in [turn.session, *(each.session for each in turn.stays.values())]:
            if session is not None:
                self._of[session] = turn
        self._receiver.apart = self._route

    def _keep(self, turn: Turn) -> None:
        """Remove the session from the node's router, so that it receives only messages of other nodes."""
        assert turn.session is not None
        turn.kept = True
        for filter, subscription in turn.session.subscriptions.items():
            if subscription.group is None:
                turn.apart[filter] = subscription
                self._routes.hold(subscription.filter)
                self._kept.subscribe(subscription)
            self._broker.router.unsubscribe(subscription)

    def ended(self, client_id: str, session: Session, filter: str) -> None:
        """Delete a filter from which the client has unsubscribed, wherever its session is now. ``session`` is the
        session of the client, or that of a stay."""
        turn = self._turns.get(client_id)
        if turn is None:
            return
        for of, apart in [(turn.session, turn.apart), *((each.session, each.apart) for each in turn.stays.values())]:
            if of is session and filter in apart:
                self._end(apart, filter)

    def unsubscribed(self, client_id: str, filter: str) -> None:
        """Note that the client has unsubscribed from a filter. If it subscribes again, the filter has not moved."""
        turn = self.get(client_id)
        if turn is not None and turn.filters is not None and filter in turn.filters:
            turn.filters.discard(filter)
            self.put(turn)

    def _end(self, apart: dict[str, Subscription], filter: str) -> None:
        self._kept.unsubscribe(apart.pop(filter))
        self._routes.release(filter)

    # --------------------------------------------------------------------- marks

    async def _asked(self, node: str, argument: bytes) -> bytes:
        """Answer the node that has a session with this node's mark."""
        asked = self._calls.decoded(node, argument, TurnAsked)
        if not await self._routes.reached(asked.revision):
            raise CallFailed(f"revision {asked.revision} of the routes is not reached")
        place = self._nodes.place(asked.client_id)
        if place is None or place.node != node or place.revision != asked.epoch:
            raise CallFailed("the key is another one here")
        self.mark(Mark(asked.client_id, node, asked.epoch), asked.nodes)
        return b""

    def mark(self, mark: Mark, nodes: list[str]) -> None:
        """Send this node's mark."""
        for node in nodes:
            if node == self._context.node:
                self._marked(node, mark)
                continue
            target = self._routes.target(node_key(node))
            if target is not None:
                self._broker.deliver_addressed(mark.message(), target, Mark.ADDRESS)

    def _came(self, message: Message, record: MessageRecord, node: str) -> None:
        try:
            mark = record.mark()
        except UNREADABLE:
            self._context.refusals.add(MALFORMED, node, "-")
            return
        self._marked(node, mark)

    def _forget_marks(self, node: str) -> None:
        """Forget the marks of a node that has not sent anything yet. An earlier node of this name that was forced out
        may have sent its mark to one place of a session and not to the other."""
        for turn in list(self._turns.values()):
            if turn.marks.pop(node, None) is not None:
                if turn.session is not None:
                    turn.others.discard(node)  # as it was before that mark
                    turn.behind.discard(node)
                self.put(turn)
                turn.changed.tell()

    def _marked(self, node: str, mark: Mark) -> None:
        here = mark.node == self._context.node
        turn = self._turns.get(mark.client_id)
        session = self._broker.sessions.get(mark.client_id)
        unknown = (turn is None or turn.session is None) and not here and not self._moves.is_closed(mark.client_id)
        if unknown and session is not None and session.persistent:
            epoch = self._moves.last_epoch(mark.client_id)
            if mark.epoch >= epoch:  # otherwise it is about an earlier session
                # It left before this node stopped, or this node does not know yet that it has the session.
                turn = self._leaves(session, epoch)
                self._moves.begun(turn)
        if turn is None:
            return
        turn.mark(node, mark, here)
        if node == self._context.node and not here and not turn.kept:
            self._keep(turn)
        self.put(turn)
        turn.changed.tell()

    # ------------------------------------------------------------------- messages

    def _route(self, message: Message, node: str) -> None:
        """Do the same as ``Broker.route_local`` for a message of another node."""
        broker, of = self._broker, self._of
        targets = broker.router.match(message.topic).targets
        kept = self._kept.match(message.topic).targets
        if not kept and not any(each.session in of for each in targets):
            broker.route_local(message)
            return
        broker.deliver_to(message, self._chosen(message, node))

    def _route_late(self, message: Message, node: str, before: float) -> None:
        """Do the same as ``_route`` for a message that waited in the link since ``before``: sessions that began later
        and end with their connection do not get it."""
        chosen = [each for each in self._chosen(message, node) if not begun_since(each.session, before)]
        self._broker.deliver_to(message, chosen)

    def _chosen(self, message: Message, node: str) -> list[Subscription]:
        """Return the subscriptions that receive a message of this node."""
        of = self._of
        kept = self._kept.match(message.topic).targets
        chosen = [each for each in kept if of[each.session].taker(node) is each.session]
        chosen = [_waiting_place(of[each.session], each, node) for each in chosen]
        for each in self._broker.router.match(message.topic).targets:
            turn = of.get(each.session)
            if turn is None:
                chosen.append(each)
            elif turn.taker(node) is not each.session:
                parts = each.parts or (each,)
                left = [] if turn.filters is None else [part for part in parts if part.filter not in turn.filters]
                if left:
                    chosen.append(left[0] if len(left) == 1 else merge(left))
            else:
                chosen.append(_waiting_place(turn, each, node))
        return chosen


def _waiting_place(turn: Turn, subscription: Subscription, node: str) -> Subscription:
    """Return the subscription that receives a message of this node: that of a waiting place if earlier messages have
    yet to arrive."""
    if turn.held is not None and subscription.session is turn.session and turn.waiting(node):
        return copy_for(turn.held(node), subscription)
    return subscription


def copy_for(session: Session, subscription: Subscription) -> Subscription:
    """Return a copy of the subscription for a session in which messages wait."""
    return Subscription(
        session,
        subscription.filter,
        subscription.qos,
        False,
        subscription.retain_as_published,
        subscription.retain_handling,
        subscription.identifiers,
        subscription.group,
        subscription.topic_filter,
    )
