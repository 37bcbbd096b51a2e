"""Fetching: brings the queue of a session that has moved here, and reports to the other node when all of it is here.

One task for each incoming session asks the other node for the next piece until the answer is END. Then it delivers the
messages that have waited in the meantime (``staging``), and the other node forgets the session. The row in table
``handover`` has the number of the last piece, so that the task continues after a restart::

    FETCHING    next piece? ── MORE ──► into the session's queue, its number on disk, again
                            ── BUSY ──► again, after a pause
                            ── END ───► merge
    FINISHED    done        ──────────► the other node forgets the session, this one the row

What another node keeps for late senders (``outgoing``) is fetched in the same way, by a task of its own.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ...core.cluster import STOPPED, CallFailed, NodeUnreachable
from ...mqtt.topics import matches
from ...session.protocols import QOS0_MSG, REVOKED
from ...session.session import Session
from ...session.subscription import Subscription
from ..calls import Calls
from ..changes import until
from ..context import ClusterContext
from ..members.members import Members
from ..tasks import Tasks
from ..wire import MALFORMED, valid_body
from .givers import Givers
from .held_messages import HeldMessages
from .incoming import FETCHING, FINISHED, HandoverRow, Incoming, IncomingSessions
from .outgoing import DONE, FETCH, FRESH, Outgoing
from .session_nodes import SessionNodes
from .session_transfer import BUSY, MORE, Done, Fetch, MovedDelivery, Piece, SessionReceiver, keys_of
from .staging import Staging
from .turns import Turns

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.01
_PAUSE_KEPT: Final = 0.25
"""Seconds between two questions for messages that another node may still receive from nodes that are away."""
_PAUSE_UNREACHABLE: Final = 0.5
_ASK_AGAIN: Final = 1.0
_QUESTIONS: Final = 500
"""Maximum number of questions per second for all sessions together. The questions continue for as long as a node is
away."""


class Fetching:
    """The tasks that fetch what is incoming. ``Handover`` starts and ends them, and ``Givers`` starts those for the
    parts of a session that began again. ``step`` is called with the name of each step, and ``kept`` with the client ID
    of a session that stays here."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        incoming: IncomingSessions,
        turns: Turns,
        nodes: SessionNodes,
        outgoing: Outgoing,
        receiver: SessionReceiver,
        staging: Staging,
        held: HeldMessages,
        givers: Givers,
        step: Callable[[str], None],
        kept: Callable[[str], None],
    ) -> None:
        self._context = context
        self._broker = context.broker
        self._members = members
        self._calls = calls
        self._incoming = incoming
        self._turns = turns
        self._nodes = nodes
        self._outgoing = outgoing
        self._receiver = receiver
        self._staging = staging
        self._held = held
        self._givers = givers
        self._step = step
        self._kept = kept
        self._tasks = Tasks()

    async def stop(self) -> None:
        await self._tasks.stop()

    def run(self, incoming: Incoming) -> None:
        self._staging.watch()
        incoming.task = self._tasks.run(self._bring(incoming))

    def fetch(self, incoming: Incoming) -> None:
        self._incoming.put(incoming, msgspec.structs.replace(incoming.row, state=FETCHING))
        self.run(incoming)

    async def _bring(self, incoming: Incoming) -> None:
        """Fetch everything that is still to arrive, however long it takes."""
        try:
            await until(lambda: self._members.known, self._members.changes)
            if not self._incoming.has(incoming):
                return
            if incoming.row.state == FETCHING:
                # The other node drops messages in flight at the first question. After a restart, this node must
                # therefore know that it has the session, even if NATS is away then.
                if await self._stored(incoming):
                    await self._bring_queue(incoming)
            if incoming.row.state == FINISHED:
                await self._tell_done(incoming)
        except asyncio.CancelledError:
            raise
        except Exception:  # it concerns one session, which continues after the next start
            logger.exception("handover_failed client_id=%s node=%s", incoming.client_id, incoming.row.node)

    async def _stored(self, incoming: Incoming) -> bool:
        """Wait until everything so far is on disk, even while the disk fails. Return False if the fetching has ended in
        the meantime."""
        while not await self._context.tables.stored():
            await asyncio.sleep(_ASK_AGAIN)
            if not self._incoming.has(incoming):
                return False
        return True

    def _turned(self, incoming: Incoming) -> list[str] | None:
        """Return which nodes have sent their marks here, or ``None`` if a running node has not."""
        turn = self._turns.get(incoming.client_id)
        if turn is None or not incoming.goes_by_marks:
            return []
        if not all(turn.marked(each.name) for each in self._members.running()):
            return None
        return [each for each in turn.marks if turn.marked(each)]

    async def _bring_queue(self, incoming: Incoming) -> None:
        session = incoming.session
        assert session is not None
        client_id = incoming.client_id
        is_early = self._incoming.is_early
        late: list[str] = []
        held: list[str] = []
        pause = _PAUSE
        while incoming.row.state == FETCHING:
            if incoming.keeper and self._incoming.is_early(incoming):
                await until(lambda: not self._is_fetched(incoming) or not is_early(incoming), incoming.changes)
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
            if not self._is_fetched(incoming):
                break
            if piece.state == BUSY or (piece.state == MORE and not piece.deliveries):
                if incoming.keeper and piece.state == MORE:
                    await self._note_late(incoming, piece.late)
                turn = self._turns.get(client_id)
                quick = not (incoming.keeper or row.rest)
                quick = quick or (turn is not None and any(turn.marked(each) for each in row.late))
                await asyncio.sleep(pause if quick else self._slow(_PAUSE_KEPT))
                # If a node has died without notice, many sessions wait for it at once, for some seconds.
                pause = min(2 * pause, _PAUSE_KEPT)
            elif piece.state == MORE:
                pause = _PAUSE
                self._take_in(incoming, session, piece)
                self._step("piece_taken")
                # The next question confirms the piece, and the other node drops it.
                await self._stored(incoming)
            else:
                turn = self._turns.get(client_id)
                late, held = piece.late, piece.held
                marked = turn is not None and any(turn.marked(each) for each in late)
                if not incoming.goes_by_marks or not marked:
                    break
                late = []
                await asyncio.sleep(_PAUSE)
        if not self._is_fetched(incoming):
            return
        self._step("fetched")
        keep = incoming.goes_by_marks and bool(late or held)
        if keep:
            row = incoming.row
            late = sorted({*late, *held})
            order = max((each.row.order for each in self._incoming.keepers_of(client_id)), default=0) + 1
            kept = HandoverRow(row.node, "", FETCHING, rest=True, late=late, epoch=row.epoch, order=order)
            self._incoming.keep(client_id, kept, session)
        self._incoming.note_came(incoming)
        while self._waits_for_own(incoming):
            # One of the keepers may be that node, which keeps nothing before it knows that all has arrived.
            if not incoming.told:
                # If this node dies now, it must know after its restart what that node keeps.
                if await self._context.tables.stored() and await self._tell(incoming, keep):
                    self._incoming.note_told(incoming)
                self._kept(client_id)
            if incoming.told:
                members = self._members.changes
                await until(lambda: not self._waits_for_own(incoming), incoming.changes, members)
            else:
                await asyncio.sleep(_PAUSE)
            if not self._is_fetched(incoming):
                return
        await self._staging.merge(incoming, session)
        if not self._is_fetched(incoming):
            return
        if incoming.row.rest and not incoming.keeper:
            self._givers.has_given(client_id, incoming.row.node)
        turn = self._turns.get(client_id)
        if turn is not None and not incoming.keeper and not self._givers.of(client_id):
            self._turns.complete(turn)
        self._finish_row(incoming, keep)
        if incoming.keeper:
            await self._held.release(client_id)
        self._step("merged")

    def _is_fetched(self, incoming: Incoming) -> bool:
        """Return whether the fetching continues, because nothing has ended or replaced it."""
        return incoming.row.state == FETCHING and self._incoming.has(incoming)

    def _waits_for_own(self, incoming: Incoming) -> bool:
        """Return whether the session waits because another node keeps messages that this one sent there before the
        session arrived here."""
        if incoming.staging is None or not self._is_fetched(incoming):
            return False
        peers = self._members.peers
        fresh = self._context.settings.takeover == FRESH
        return any(
            self._context.node in each.row.late
            and each.row.node in peers
            and not (fresh and peers[each.row.node].status == STOPPED)
            for each in self._incoming.keepers_of(incoming.client_id)
        )

    def _slow(self, pause: float) -> float:
        """Return the seconds between two questions for a session that may take a long time."""
        return max(pause, len(self._incoming) / _QUESTIONS)

    async def _ask(self, node: str, ask: Fetch) -> Piece:
        if node == self._context.node:
            return await self._outgoing.piece(node, ask)
        return self._calls.decoded(node, await self._calls.call(node, FETCH, msgspec.msgpack.encode(ask)), Piece)

    async def _note_late(self, incoming: Incoming, late: list[str]) -> None:
        """Note that everything that the keeper had is here."""
        if late != incoming.row.late:
            self._incoming.put(incoming, msgspec.structs.replace(incoming.row, late=late))
            await self._held.release(incoming.client_id)

    def _take_in(self, incoming: Incoming, session: Session, piece: Piece) -> None:
        session.now = self._context.clock.now()
        for each in piece.deliveries:
            if not is_valid(self._context, incoming.row.node, each):
                continue
            delivery = self._receiver.delivery(each)
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
            await self._staging.merge(incoming, incoming.session)
        await asyncio.sleep(self._slow(_PAUSE_UNREACHABLE))
        return True

    # ------------------------------------------------------------------- the end

    def finish(self, incoming: Incoming, keep: bool = False) -> None:
        """End the fetching, because the session has ended or is already complete."""
        self._finish_row(incoming, keep)
        if incoming.task is None or incoming.task.done():
            self.run(incoming)

    def _finish_row(self, incoming: Incoming, keep: bool = False) -> None:
        self._incoming.put(incoming, msgspec.structs.replace(incoming.row, state=FINISHED, doubt=[], keep=keep))

    async def _tell_done(self, incoming: Incoming) -> None:
        client_id = incoming.client_id
        if not await self._stored(incoming):
            return
        while not incoming.told and not await self._tell(incoming, incoming.row.keep):
            await asyncio.sleep(self._slow(_ASK_AGAIN))
            if not self._incoming.has(incoming):
                return
        if self._incoming.has(incoming):
            self.remove(incoming)
            self._kept(client_id)
        self._step("done")

    async def _tell(self, incoming: Incoming, keep: bool) -> bool:
        """Inform the other node that everything has arrived; return whether it knows or does not need to know."""
        row = incoming.row
        over = bool(incoming.keeper) and incoming.client_id not in self._broker.sessions
        done = Done(incoming.at_sender, row.move, keep, row.epoch, over)
        if row.node == self._context.node:
            self._outgoing.done(row.node, done)
            return True
        # If that node has the session again, it must not forget it.
        again = not incoming.keeper and self._nodes.node_of(incoming.client_id) == row.node
        if row.node not in self._members.peers or again:
            return True
        try:
            await self._calls.call(row.node, DONE, msgspec.msgpack.encode(done))
        except (NodeUnreachable, CallFailed):
            return False
        return True

    def remove(self, incoming: Incoming) -> None:
        if self._incoming.has(incoming):
            self._incoming.remove(incoming)
            turn = self._turns.get(incoming.client_id)
            if turn is not None:
                turn.changed.tell()
        self._staging.unwatch()


def is_valid(context: ClusterContext, node: str, moved: MovedDelivery) -> bool:
    """Return whether a message from a node is valid; count it if not."""
    if valid_body(moved.body) and 0 <= moved.qos <= 2:
        return True
    context.refusals.add(MALFORMED, node, "-")
    return False


def _is_over(ended: list[Subscription], session: Session, moved: MovedDelivery) -> bool:
    """Return whether all subscriptions that match this message have ended."""
    if moved.group:
        return any(each.filter == moved.group for each in ended)
    topic = moved.body.topic
    if not any(each.group is None and matches(each.topic_filter, topic) for each in ended):
        return False
    return not any(each.group is None and matches(each.topic_filter, topic) for each in session.subscriptions.values())
