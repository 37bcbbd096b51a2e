"""Turns: from which node's link a session that has moved gets the messages of each other node.

A node that routes by the subscriptions at a session's new place says so once, in its links to all nodes that may take
its messages for that session: a mark. What it has sent before the mark is taken by the node where the session was, what
it sends after it by the node where the session is. So each message is taken once, in its order, however late the node
is. Marks are as durable as messages of QoS 2.

    link of n3 to the old node   ... m1 m2 | mark ...           m1, m2 are taken here
    link of n3 to the new node   ... m2 | mark | m3 ...         m3 is taken here; m2 is for other sessions only

A ``Turn`` is what one node has to know of one client, from the beginning of a move until all nodes have sent their
marks. Where there is none, all that matches goes to the session. It also knows the stays of the client's sessions here
that are over: the session that is here now, if there is one, may be another one, which knows nothing of theirs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from ..core.cluster import CallFailed
from ..mqtt.message import Message
from ..routing.router import Router
from ..session.session import Session
from ..session.subscription import Subscription, merge
from .calls import Calls
from .context import ClusterContext
from .link_receiver import MARK, LinkReceiver, begun_since
from .members import Members
from .routes import ClusterRoutes
from .wire import MALFORMED, UNREADABLE, MessageRecord, node_key

if TYPE_CHECKING:
    from .ownership import Ownership

logger = logging.getLogger(__name__)

TABLE: Final = "handover_turns"
KEPT: Final = "\0kept:"
"""Prefix of the session of what nodes still send here for a session that is elsewhere: one for each stay that is over,
``kept_name``."""
TURN: Final = "handover.turn"


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """From here on messages for this client's session are taken by ``node``. ``epoch``: of its key there."""

    client_id: str
    node: str
    epoch: int


class TurnAsked(msgspec.Struct, array_like=True, frozen=True):
    """Send a mark to ``nodes``, as soon as the routes have ``revision``."""

    client_id: str
    epoch: int
    revision: int
    nodes: list[str]


class TurnRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_turns``, by Client Identifier. What they are says ``Turn``. ``over``: the row has only
    stays that are over; the session that the node may have of this client began later."""

    default: bool
    others: list[str] = []
    marks: dict[str, tuple[int, bool]] = {}
    filters: list[str] = []
    epoch: int = 0
    kept: bool = False
    early: dict[str, int] = {}
    over: bool = False


def kept_name(client_id: str, epoch: int) -> str:
    """Client Identifier of the session of what is kept of a stay that ended when another node had the key with this
    epoch."""
    return f"{KEPT}{epoch}:{client_id}"


class Stay:
    """One that is over: the session was here from its key's epoch ``begun`` until that was another node's at ``ended``,
    and ``session`` takes what nodes still send here for it. ``apart``: its subscriptions, by filter."""

    __slots__ = ("apart", "begun", "ended", "session")

    def __init__(self, session: Session, begun: int, ended: int) -> None:
        self.session = session
        self.begun = begun
        self.ended = ended
        self.apart: dict[str, Subscription] = {}


class Turn:
    """What a session takes here of other nodes' messages.

    ``session``: ``None`` if it is elsewhere, or is another one than that of these stays. ``default``: whether it
    takes those of a node that is not in ``others``; of one that is, the opposite. ``marks``: of each node the epoch of
    its last mark, and whether that named this node. ``filters``: of the subscriptions that have moved, others are as
    any; ``None``: all. ``epoch``: of the key when the session came here, or was last this node's before it went.
    ``kept``: the subscriptions are not in the node's router, so that this node's own messages are not taken.
    ``stays``: those that are over, by ``Stay.ended``. ``early``: of each node that is so far behind that its messages
    are for one of these, which one.
    ``waiting``: whether earlier messages of a node are still to come from elsewhere; its new ones go to its ``held``
    meanwhile.
    ``anew``: the session has not moved here but begun, so that any of its filters may be one of the session before.
    """

    __slots__ = (
        "anew", "apart", "changed", "client_id", "default", "early", "epoch", "filters", "held", "kept", "marks",
        "others", "session", "stays", "waiting",
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
        # Where it is ``kept``: the subscriptions, by filter.
        self.apart: dict[str, Subscription] = {}
        self.stays: dict[int, Stay] = {}
        self.early = dict(row.early)
        self.waiting: Callable[[str], bool] = lambda node: False
        self.held: Callable[[str], Session] | None = None
        self.changed = asyncio.Event()
        self.anew = False

    @property
    def row(self) -> TurnRow:
        filters = sorted(self.filters or ())
        over = self.session is None
        return TurnRow(self.default, sorted(self.others), self.marks, filters, self.epoch, self.kept, self.early, over)

    def takes(self, node: str) -> bool:
        """Whether messages of this node are for the session here."""
        return (node in self.others) != self.default

    def taker(self, node: str) -> Session | None:
        """What takes the messages of this node."""
        ended = self.early.get(node)
        if ended is not None:
            return self.stays[ended].session
        return self.session if self.takes(node) else None

    def mark(self, node: str, mark: Mark, here: bool) -> None:
        """This node's messages are for the stay of that epoch from now on."""
        self.marks[node] = (mark.epoch, here)
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

    def set(self, node: str, takes: bool) -> None:
        if takes == self.default:
            self.others.discard(node)
        else:
            self.others.add(node)

    def marked(self, node: str) -> bool:
        """Whether this node has sent the mark that this is where the session is."""
        epoch, here = self.marks.get(node, (0, False))
        return here and epoch >= self.epoch

    def given(self, node: str, epoch: int) -> bool:
        """Whether this node has sent the mark of that epoch or a later one."""
        return self.marks.get(node, (0, True))[0] >= epoch


class Turns:
    """Those of this node, by Client Identifier. ``on_begun`` gets one that has begun by a mark alone. ``last_epoch``:
    of the key of a client's session that is here or goes from here, when that was last this node's; 0: not known.
    ``is_closed``: whether this node accepts no new messages for a session that another node has, whatever marks
    arrive."""

    def __init__(
        self, context: ClusterContext, members: Members, calls: Calls, routes: ClusterRoutes, receiver: LinkReceiver
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
        # Subscriptions that only other nodes' messages go to.
        self._kept = Router(cache_size=1024)
        self.ownership: Ownership
        self.on_begun: Callable[[Turn], None] = lambda turn: None
        self.last_epoch: Callable[[str], int] = lambda client_id: 0
        self.is_closed: Callable[[str], bool] = lambda client_id: False
        receiver.on_mark = self._came
        receiver.on_late = self._route_late
        receiver.on_new_node = self._forget_marks
        calls.serve(TURN, self._asked)

    def load(self, session_of: Callable[[str], Session | None], stays_of: Callable[[str], Iterable[Stay]]) -> None:
        """The node has its sessions. ``session_of``: which takes what comes for a client's, if it is here;
        ``stays_of``: of those that are over."""
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
        """That of the session which is here, or goes from here. Of stays that are over it says nothing."""
        turn = self._turns.get(client_id)
        return None if turn is None or turn.session is None else turn

    def clients(self) -> list[str]:
        """Also those of whose sessions only stays are known that are over."""
        return list(self._turns)

    def given(self, client_id: str, node: str, epoch: int) -> bool:
        """As ``Turn.given``, also of stays that are over."""
        turn = self._turns.get(client_id)
        return turn is None or turn.given(node, epoch)

    def not_given(self, client_id: str, epoch: int) -> list[str]:
        """Other nodes that may still send here what is for this client's session, which went elsewhere."""
        turn = self._turns.get(client_id)
        return [name for name in self._members.peers if turn is None or not turn.given(name, epoch)]

    # ------------------------------------------------------------------- changes

    def put(self, turn: Turn) -> None:
        """It has changed."""
        self._table.put(turn.client_id, turn.row)

    def begin(self, client_id: str, session: Session, filters: Iterable[str], epoch: int) -> Turn:
        """A session has come here: it takes messages of no other node, until that has sent its mark."""
        before = self.get(client_id)
        others = () if before is None or before.default else before.others
        node = self._context.node
        row = TurnRow(False, sorted({*others, node}), {node: (epoch, True)}, list(filters), epoch)
        turn = self._make(client_id, session, row)
        self.put(turn)
        return turn

    def _make(self, client_id: str, session: Session, row: TurnRow) -> Turn:
        """Add the turn of a session, and keep what is known of stays that are over."""
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
        """New messages go to the session itself; those of nodes that have sent no mark are not for it yet."""
        late = {name for name in self._members.peers if not turn.marked(name) and not turn.takes(name)}
        if turn.session is not None:
            self._of.pop(turn.session, None)
        turn.session = session
        turn.default = True
        turn.others = late
        self._of[session] = turn
        self.put(turn)

    def _leaves(self, session: Session, epoch: int) -> Turn:
        """What there is to know of a session that goes elsewhere. ``epoch``: of its key, when it was last this node's;
        0: that is not known."""
        return self._make(session.client_id, session, TurnRow(True, epoch=epoch))

    def hand_over(self, turn: Turn, to: Session, epoch: int) -> None:
        """The session is elsewhere, and what nodes still send here for it is taken by ``to``. ``epoch``: of its key
        there."""
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
        """Forget the session of this client, which is elsewhere, over, or as any other. Stays that are over remain."""
        turn = self._turns.get(client_id)
        if turn is None:
            return
        if turn.session is not None and self._of.get(turn.session) is turn:
            del self._of[turn.session]
        turn.session = None
        turn.default, turn.others, turn.filters, turn.held = False, set(), None, None
        turn.kept = True
        for filter in list(turn.apart):
            self._end(turn.apart, filter)
        turn.changed.set()
        if turn.stays:
            self.put(turn)
            return
        del self._turns[client_id]
        self._table.remove(client_id)
        if not self._turns:
            self._receiver.apart = None

    def end_stay(self, client_id: str, ended: int) -> None:
        """Nobody wants any more what comes for it."""
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
        """This node's own messages are not for it any more. The other nodes still send theirs."""
        assert turn.session is not None
        turn.kept = True
        for filter, subscription in turn.session.subscriptions.items():
            if subscription.group is None:
                turn.apart[filter] = subscription
                self._routes.hold(subscription.filter)
                self._kept.subscribe(subscription)
            self._broker.router.unsubscribe(subscription)

    def ended(self, client_id: str, session: Session, filter: str) -> None:
        """Its client has unsubscribed, where its session is now. ``session``: that of the client, or of a stay."""
        turn = self._turns.get(client_id)
        if turn is None:
            return
        for of, apart in [(turn.session, turn.apart), *((each.session, each.apart) for each in turn.stays.values())]:
            if of is session and filter in apart:
                self._end(apart, filter)

    def _end(self, apart: dict[str, Subscription], filter: str) -> None:
        self._kept.unsubscribe(apart.pop(filter))
        self._routes.release(filter)

    # --------------------------------------------------------------------- marks

    async def _asked(self, node: str, argument: bytes) -> bytes:
        """The node that has a session wants this one's mark."""
        asked = self._calls.decoded(node, argument, TurnAsked)
        if not await self._routes.reached(asked.revision):
            raise CallFailed(f"revision {asked.revision} of the routes is not reached")
        place = self.ownership.place(asked.client_id)
        if place is None or place.node != node or place.revision != asked.epoch:
            raise CallFailed("the key is another one here")
        self.mark(Mark(asked.client_id, node, asked.epoch), asked.nodes)
        return b""

    def mark(self, mark: Mark, nodes: list[str]) -> None:
        """Send this node's mark."""
        payload = msgspec.msgpack.encode(mark)
        for node in nodes:
            if node == self._context.node:
                self._marked(node, mark)
                continue
            target = self._routes.target(node_key(node))
            if target is not None:
                self._broker.deliver_addressed(Message(MARK, payload, 2), target, MARK)

    def _came(self, message: Message, record: MessageRecord, node: str) -> None:
        try:
            mark = msgspec.msgpack.decode(record.payload, type=Mark)
        except UNREADABLE:
            self._context.refusals.add(MALFORMED, node, "-")
            return
        self._marked(node, mark)

    def _forget_marks(self, node: str) -> None:
        """Nothing has come from this node yet. One of its name that was forced out may have sent its mark to one place
        of a session and not to the other."""
        for turn in list(self._turns.values()):
            if turn.marks.pop(node, None) is not None:
                if turn.session is not None:
                    turn.others.discard(node)  # all is as it was before that mark
                self.put(turn)
                turn.changed.set()

    def _marked(self, node: str, mark: Mark) -> None:
        here = mark.node == self._context.node
        turn = self._turns.get(mark.client_id)
        session = self._broker.sessions.get(mark.client_id)
        unknown = (turn is None or turn.session is None) and not here and not self.is_closed(mark.client_id)
        if unknown and session is not None and session.persistent:
            epoch = self.last_epoch(mark.client_id)
            if mark.epoch >= epoch:  # or it is about an earlier session
                # It went away before this node's last end, or it is not known yet that it is here.
                turn = self._leaves(session, epoch)
                self.on_begun(turn)
        if turn is None:
            return
        turn.mark(node, mark, here)
        if node == self._context.node and not here and not turn.kept:
            self._keep(turn)
        self.put(turn)
        turn.changed.set()

    # ------------------------------------------------------------------- messages

    def _route(self, message: Message, node: str) -> None:
        """As ``Broker.route_local``, for a message of another node."""
        broker, of = self._broker, self._of
        targets = broker.router.match(message.topic).targets
        kept = self._kept.match(message.topic).targets
        if not kept and not any(each.session in of for each in targets):
            broker.route_local(message)
            return
        broker.deliver_to(message, self._chosen(message, node))

    def _route_late(self, message: Message, node: str, before: float) -> None:
        """The same for a message that waited in the link since then: sessions that began later, and that end with their
        connection, get nothing of it."""
        chosen = [each for each in self._chosen(message, node) if not begun_since(each.session, before)]
        self._broker.deliver_to(message, chosen)

    def _chosen(self, message: Message, node: str) -> list[Subscription]:
        """Who gets a message of this node."""
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
    """Where a message of this node goes: earlier ones of it may still have to come."""
    if turn.held is not None and subscription.session is turn.session and turn.waiting(node):
        return copy_for(turn.held(node), subscription)
    return subscription


def copy_for(session: Session, subscription: Subscription) -> Subscription:
    """The same subscription of a session where messages wait."""
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
