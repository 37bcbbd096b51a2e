"""GivenPieces: the last piece of a session's queue that one node has sent and another has not confirmed.

If that node continues the session, its next question confirms the piece. If the session continues on a third node, that
node asks for the queue, and only the first two nodes know whether the piece has arrived::

    the node with the queue          the node that was getting it        the node where the session is now
    piece 7           ─────────────► is delivered, 7 is on disk; dies
                      ◄───────────────────────────────────────────────── asks for the queue
    is 7 taken?       ─────────────► is back: yes
    drops 7           ─────────────────────────────────────────────────► piece 8

The first node waits for the second one as long as that is a member; otherwise the messages of the piece would be
delivered twice."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ...core.cluster import CallFailed, NodeUnreachable
from ...mqtt.message import Delivery
from ...persistence.stored_message import stored_of
from ...session.session import Session
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..tasks import Tasks
from .incoming import HandoverRow

logger = logging.getLogger(__name__)

TABLE_GIVEN: Final = "handover_given"
TABLE_TAKEN: Final = "handover_taken"
IS_TAKEN: Final = "handover.is_taken"
TAKEN: Final = "handover.taken"
_AGAIN: Final = 1.0
_QUESTIONS: Final = 500
"""Maximum number of attempts per second, for all sessions together, while nodes are unreachable."""


class GivenRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_given``, by client ID: piece ``number`` of attempt ``move`` was sent to ``node``.
    ``messages`` are the keys of its messages (``key_of``)."""

    node: str
    move: str
    number: int
    messages: list[tuple[int, str]]


class TakenRow(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``handover_taken``, by client ID, of a session that has moved on since: the last piece of its queue
    that has arrived from ``node``."""

    node: str
    move: str
    number: int


class Taken(msgspec.Struct, array_like=True, frozen=True):
    """The report that everything up to this piece of attempt ``move`` has arrived; in a call of ``IS_TAKEN``, the
    question whether it has."""

    client_id: str
    move: str
    number: int


class GivenPieces:
    """The pieces that this node has sent, and those that it has received. ``coming`` returns the row of a session that
    is moving to this node, and ``is_under_way`` whether a piece is being sent to another node."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        coming: Callable[[str], HandoverRow | None],
        is_under_way: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._members = members
        self._calls = calls
        self._coming = coming
        self._is_under_way = is_under_way
        self._given = context.tables.open(TABLE_GIVEN, GivenRow)
        self._taken = context.tables.open(TABLE_TAKEN, TakenRow)
        # The messages of the pieces, while this node runs: QoS 0 messages are not stored.
        self._sent: dict[str, list[Delivery]] = {}
        self._tasks = Tasks()
        calls.serve(IS_TAKEN, self._is_taken)
        calls.serve(TAKEN, self._was_taken)

    def load(self) -> None:
        """Load the rows after the node has its sessions."""
        for client_id, _ in list(self._given.items()):
            if client_id not in self._context.broker.sessions:
                self._given.remove(client_id)

    def start(self) -> None:
        for client_id, _ in list(self._taken.items()):
            self._tasks.run(self._tell(client_id))

    async def stop(self) -> None:
        await self._tasks.stop()

    # ------------------------------------------------------------ the sending node

    def gave(self, client_id: str, node: str, move: str, number: int, sent: list[Delivery]) -> None:
        """Note that this piece is being sent to ``node``, which already has all pieces before it."""
        messages = [key for key in map(key_of, sent) if key[0]]
        self._given.put(client_id, GivenRow(node, move, number, messages))
        self._sent[client_id] = list(sent)

    def forget(self, client_id: str) -> None:
        """Forget the session, which has ended here."""
        self._sent.pop(client_id, None)
        self._given.remove(client_id)

    async def settle(self, session: Session, move: str) -> None:
        """Remove messages from the queue that another attempt has sent and its node has received; call this before each
        piece.

        :raises CallFailed: this node does not know yet what the other node has received."""
        client_id = session.client_id
        row = self._given.get(client_id)
        if row is None or row.move == move:
            return
        if row.node in self._members.peers:
            question = msgspec.msgpack.encode(Taken(client_id, row.move, row.number))
            try:
                taken = bool(await self._calls.call(row.node, IS_TAKEN, question))
            except NodeUnreachable as error:
                raise CallFailed(f"{row.node} may have a piece of it, and is away: {error}") from None
            if self._given.get(client_id) is not row:
                raise CallFailed("another operation on it is in progress")
            if taken:
                self._drop(session, row)
        self.forget(client_id)

    async def _was_taken(self, node: str, argument: bytes) -> bytes:
        taken = self._calls.decoded(node, argument, Taken)
        row = self._given.get(taken.client_id)
        session = self._context.broker.sessions.get(taken.client_id)
        if row is not None and session is not None and (row.node, row.move) == (node, taken.move):
            if self._is_under_way(taken.client_id):
                raise CallFailed("this node does not know yet that the session has moved on")
            if row.number <= taken.number:
                self._drop(session, row)
                self.forget(taken.client_id)
        await self._must_be_stored()
        return b""

    async def _must_be_stored(self) -> None:
        """Wait until everything so far is on disk.

        :raises CallFailed: the disk fails, so that this node would not know after a restart."""
        if not await self._context.tables.stored():
            raise CallFailed("this node cannot store it at present")

    def _drop(self, session: Session, row: GivenRow) -> None:
        """Remove the messages that another node has received."""
        queue = session.queue
        if queue is None:
            return
        sent = {id(each) for each in self._sent.get(session.client_id, ())}
        keys = set(row.messages)

        def is_taken(delivery: Delivery) -> bool:
            return id(delivery) in sent or key_of(delivery) in keys

        taken = [each for each in queue if is_taken(each)]
        if not taken:
            return
        for delivery in [each for each in queue.clear() if not is_taken(each)]:
            queue.push(delivery)
        if session.journal is not None:
            session.journal.done(session, [each for each in taken if each.qos])

    # ------------------------------------------------------------- the receiving node

    async def _is_taken(self, node: str, argument: bytes) -> bytes:
        asked = self._calls.decoded(node, argument, Taken)
        row = self._coming(asked.client_id)
        found = [(row.node, row.move, row.taken)] if row is not None else []
        gone = self._taken.get(asked.client_id)
        if gone is not None:
            found.append((gone.node, gone.move, gone.number))
        taken = any(each == node and move == asked.move and number >= asked.number for each, move, number in found)
        if taken:
            await self._must_be_stored()  # the other node drops it
        return b"1" if taken else b""

    def went_on(self, client_id: str, row: HandoverRow) -> None:
        """Note that a session has moved on before its whole queue had arrived here."""
        if row.taken and row.node != self._context.node:
            self._taken.put(client_id, TakenRow(row.node, row.move, row.taken))
            self._tasks.run(self._tell(client_id))

    async def _tell(self, client_id: str) -> None:
        """Report to the other node what has arrived, until it confirms the report."""
        row = self._taken.get(client_id)
        while row is not None and self._taken.get(client_id) is row:
            if self._members.known and row.node not in self._members.peers:
                self._taken.remove(client_id)
                return
            peer = self._members.peers.get(row.node)
            if peer is not None and peer.running:
                taken = msgspec.msgpack.encode(Taken(client_id, row.move, row.number))
                with contextlib.suppress(NodeUnreachable):
                    try:
                        await self._calls.call(row.node, TAKEN, taken)
                    except CallFailed as error:
                        logger.debug("taken_piece_not_told client_id=%s node=%s error=%s", client_id, row.node, error)
                    else:
                        if self._taken.get(client_id) is row:
                            self._taken.remove(client_id)
                        return
            await asyncio.sleep(max(_AGAIN, len(self._tasks) / _QUESTIONS))


def key_of(delivery: Delivery) -> tuple[int, str]:
    """Return the number of this message in the node's store, with its group. The number is 0 if the message is not
    stored."""
    stored = stored_of(delivery.message)
    return (0 if stored is None else stored.number, delivery.group)
