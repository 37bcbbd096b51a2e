"""Givers: nodes that may have a part of a session that continued here without them.

A had the session of ``pump-7`` and died. With ``cluster.takeover = "fresh"``, the session began again on B, and its key
names A as a *giver*. When A is back, B asks the other nodes for their marks, as in a move, and fetches A's part,
provided that the session is still on B.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from ...session.client_info import ClientInfo
from ...session.session import Session
from ...session.subscription import Subscription
from ..changes import until
from ..context import ClusterContext
from ..members.members import Members
from ..wire import Mark
from .held_messages import HeldMessages
from .incoming import FETCHING, HandoverRow, Incoming, IncomingSessions
from .mark_questions import MarkQuestions
from .session_nodes import SessionNodes
from .turns import Turn, Turns


class Givers:
    """The givers of each session. ``run`` starts to fetch the part that an ``Incoming`` describes."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        incoming: IncomingSessions,
        turns: Turns,
        nodes: SessionNodes,
        marks: MarkQuestions,
        held: HeldMessages,
        run: Callable[[Incoming], None],
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._incoming = incoming
        self._turns = turns
        self._nodes = nodes
        self._marks = marks
        self._held = held
        self._run = run
        # For each session here that continued without other nodes: those nodes, and which of them have nothing left of
        # it, as far as this node has learned since its start.
        self._givers: dict[str, list[str]] = {}
        self._given: dict[str, set[str]] = {}

    def note(self, client_id: str, nodes: list[str]) -> None:
        """Note the givers of a session: the nodes that, according to its key, it continued without. Without ``nodes``,
        it has none, or is on another node."""
        if nodes:
            if not self._givers:
                self._broker.hooks.session_subscribed.add(self._subscribed)
                self._broker.hooks.session_unsubscribed.add(self._unsubscribed)
            self._givers[client_id] = nodes
        elif self._givers.pop(client_id, None) is not None:
            self._given.pop(client_id, None)
            if not self._givers:
                self._broker.hooks.session_subscribed.remove(self._subscribed)
                self._broker.hooks.session_unsubscribed.remove(self._unsubscribed)

    def of(self, client_id: str) -> list[str]:
        """Return the nodes that may still have a part of a session that is here, in the order in which they had the
        session."""
        given = self._given.get(client_id, ())
        peers, known = self._members.peers, self._members.known
        return [each for each in self._givers.get(client_id, ()) if each not in given and (each in peers or not known)]

    def fetch_next(self, client_id: str) -> None:
        """Start to fetch the part of the first running giver. The others follow, each when the part before it has
        arrived."""
        if self._incoming.get(client_id) is not None:
            return
        peers = self._members.peers
        session = self._broker.sessions.get(client_id)
        node = next((each for each in self.of(client_id) if each in peers and peers[each].running), None)
        if session is not None and node is not None and self._nodes.has(client_id):
            self.begin_rest(session, node, self._context.nonce())

    def begin_rest(self, session: Session, node: str, move: str) -> Incoming:
        """Prepare to fetch the part of ``node`` for a session that is here, with the messages that third nodes have
        sent there. If the key names ``node``, it gets their marks."""
        client_id = session.client_id
        turn = self._turns.get(client_id)
        if node not in self.of(client_id):
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
        earlier session, so that each message reaches exactly one of the two sessions."""
        client_id = session.client_id
        place = self._nodes.place(client_id)
        filters = [each.filter for each in session.subscriptions.values() if each.group is None]
        epoch = 0 if place is None else place.revision
        turn = self._turns.begin(client_id, session, filters, epoch)
        turn.anew = True
        self._turns.settle(turn, session)
        turn.inherit()
        self._turns.put(turn)
        self._turns.mark(Mark(client_id, self._context.node, epoch), self._marks.nodes_of(client_id)[1:])
        self._held.attend(turn)
        self._marks.ask(turn)
        return turn

    def _subscribed(self, client: ClientInfo, subscription: Subscription, new: bool) -> None:
        session = subscription.session
        if session.client_id not in self._givers or subscription.group is not None:
            return
        turn = self._turns.get(session.client_id)
        if turn is None:
            if len(session.subscriptions) == 1 and self.of(session.client_id):
                self._begin_turn(session)
        elif turn.anew and turn.session is session and turn.filters is not None and self._is_incomplete(turn):
            turn.filters.add(subscription.filter)
            self._turns.put(turn)

    def _is_incomplete(self, turn: Turn) -> bool:
        """Return whether the messages of some nodes do not belong to the session here yet."""
        return not all(turn.takes(each) for each in self._members.peers)

    def _unsubscribed(self, client: ClientInfo, subscription: Subscription) -> None:
        client_id = subscription.session.client_id
        if client_id in self._givers:
            self._turns.unsubscribed(client_id, subscription.filter)

    async def marked(self, client_id: str) -> None:
        """Wait until each running node sends this node the messages for a session that began again, for at most
        ``call_timeout``."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._context.settings.call_timeout
        while (turn := self._turns.get(client_id)) is not None and turn.anew and loop.time() < end:
            done = partial(self._is_marked, client_id, turn)
            if await until(done, turn.changed, self._members.changes, timeout=end - loop.time()) and (
                self._turns.get(client_id) is turn
            ):
                return

    def _is_marked(self, client_id: str, turn: Turn) -> bool:
        """Return whether each running node has sent its mark, or the turn has been replaced."""
        running = self._members.running()
        return self._turns.get(client_id) is not turn or all(turn.marked(each.name) for each in running)

    def has_given(self, client_id: str, node: str) -> None:
        """Note that a node has nothing left of a session."""
        self._given.setdefault(client_id, set()).add(node)
        doubts = self._incoming.doubts(client_id)
        doubts.pop(node, None)
        self._incoming.note_doubts(client_id, doubts)
