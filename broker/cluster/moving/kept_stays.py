"""KeptStays: messages that nodes still send here for sessions that have left.

C was away when ``pump-7`` moved from A to B, and has messages for it in its link to A. A opens an internal session in
place of the one that has left (``turns.KEPT``). This internal session receives C's messages until C's mark arrives, and
B fetches them. Each stay of the session has an internal session of its own, because the session may come back before
everything is fetched, and leave again.
"""

import logging
from typing import Final

import msgspec

from ...mqtt.message import Delivery
from ...session.client_info import ClientInfo
from ...session.session import Session
from ..context import ClusterContext
from ..members.members import Members
from .queue_pieces import QueuePieces
from .session_nodes import SessionNodes
from .session_transfer import BUSY, END, MORE, Done, Fetch, Piece
from .turns import KEPT, Stay, Turns, kept_name

logger = logging.getLogger(__name__)

TABLE: Final = "handover_kept"


class KeptRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_kept``, by ``turns.kept_name``. ``node`` is the node that the session moved to, and
    ``epoch`` the epoch of its key there. ``late`` has the nodes that may still send messages for the session here.
    ``begun`` is the epoch with which the stay here began."""

    node: str
    epoch: int
    late: list[str]
    begun: int = 0


class KeptStay:
    """The messages of one ended stay. ``node``: the node that fetches the messages, in ``pieces``."""

    def __init__(self, context: ClusterContext, session: Session, row: KeptRow) -> None:
        self.session = session
        self.client_id = session.client_id.removeprefix(KEPT).partition(":")[2]
        self.row = row
        self.node = row.node
        self.pieces = QueuePieces(context, session)


class KeptStays:
    """The ended stays for which this node keeps messages, by the name of their internal sessions (``turns.kept_name``).
    ``Outgoing`` passes questions about these names here."""

    def __init__(self, context: ClusterContext, members: Members, turns: Turns, nodes: SessionNodes) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._turns = turns
        self._nodes = nodes
        self._rows = context.tables.open(TABLE, KeptRow)
        self._stays: dict[str, KeptStay] = {}

    def load(self) -> None:
        """Read the rows when the node's sessions are restored."""
        for name, row in list(self._rows.items()):
            session = self._broker.sessions.internal.get(name)
            if session is None:
                self._rows.remove(name)
            else:
                for subscription in session.subscriptions.values():
                    self._broker.router.unsubscribe(subscription)
                self._stays[name] = KeptStay(self._context, session, row)

    def __len__(self) -> int:
        return len(self._stays)

    def __contains__(self, name: str) -> bool:
        return name in self._stays

    def of(self, client_id: str) -> list[Stay]:
        """Return the ended stays of a client's session for which this node keeps messages."""
        found = [each for each in self._stays.values() if each.client_id == client_id]
        return [Stay(each.session, each.row.begun, each.row.epoch) for each in found]

    def keep(self, session: Session, node: str, epoch: int, held: dict[str, Session]) -> None:
        """Keep messages that other nodes still send here for a session that is now on ``node``; its key has ``epoch``.
        ``held``: messages that waited for earlier ones."""
        client_id = session.client_id
        turn = self._turns.get(client_id)
        late = self._turns.not_given(client_id, epoch)
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
        self._rows.put(kept.client_id, row)
        self._stays[kept.client_id] = KeptStay(self._context, kept, row)
        logger.info("session_kept_for_late_nodes client_id=%s node=%s late=%s", client_id, node, ",".join(late))

    # ------------------------------------------------------ questions of the session's node

    async def piece(self, node: str, ask: Fetch) -> Piece:
        """Return the next piece for a node. That may be this node itself, if the session is here again."""
        stay = self._stays[ask.client_id]
        pieces = stay.pieces
        async with pieces.lock:
            if not self._is_current(stay) or not self._has(node, stay.client_id):
                return Piece(BUSY)
            stay.node = node
            pieces.drop_doubted(ask)
            for topic_filter in ask.ended:
                self._turns.ended(stay.client_id, stay.session, topic_filter)
                self._broker.unsubscribe(stay.session, topic_filter)
            piece = await pieces.next(ask, lambda: self._is_current(stay))
            if piece is not None:
                return piece
            late = self._late(stay)
            return Piece(MORE, ask.taken, [], late) if late else Piece(END, ask.taken)

    def done(self, node: str, done: Done) -> None:
        """Forget a stay, because another node has everything that it needs from it."""
        stay = self._stays[done.client_id]
        holder = self._nodes.node_of(stay.client_id)
        if done.over or stay.node == node or holder in (node, None):
            left = stay.session.queued
            if left and holder not in (node, None):  # it continued without that node
                self._context.refusals.add("kept_of_lost_session", node, "cluster.takeover", left)
            self._end(stay)

    def _is_current(self, stay: KeptStay) -> bool:
        return self._stays.get(stay.session.client_id) is stay

    def _has(self, node: str, client_id: str) -> bool:
        """Return whether that node has this client's session."""
        if node == self._context.node:
            return self._nodes.has(client_id)
        return self._nodes.node_of(client_id) == node

    def _late(self, stay: KeptStay) -> list[str]:
        """Return the nodes that may still send messages here for the stay."""
        peers, epoch = self._members.peers, stay.row.epoch
        return [each for each in stay.row.late if each in peers and not self._turns.given(stay.client_id, each, epoch)]

    # ------------------------------------------------------------------------ the end

    def _end(self, stay: KeptStay) -> None:
        del self._stays[stay.session.client_id]
        self._rows.remove(stay.session.client_id)
        self._turns.end_stay(stay.client_id, stay.row.epoch)
        self._broker.life.forget_session(stay.session)

    def node_removed(self, node: str) -> None:
        """Forget the stays whose sessions were on a removed node, which may never have fetched them."""
        for stay in list(self._stays.values()):
            place = self._nodes.place(stay.client_id)
            if (place.node if place is not None and place.node else stay.node) == node:
                self._end(stay)

    def session_ended(self, session: Session) -> None:
        """Forget a stay whose internal session has ended."""
        stay = self._stays.get(session.client_id)
        if stay is not None and stay.session is session:
            del self._stays[session.client_id]
            stay.pieces.session_ended()
