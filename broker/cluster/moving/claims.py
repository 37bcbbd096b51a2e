"""Claims: a node claims the session of a client that connects, or a session that another node asks it to accept.

If no other node has the session, that is decided at once. Otherwise this node asks the node that has it, and writes the
key itself (``session_keys``) when the session is on its disk (``handover``). A node that does not answer is waited for;
then ``cluster.takeover`` decides.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ...channel.identity import SESSION_OWNER
from ...core.cluster import CallFailed, NodeUnreachable
from ...core.outcome import CLIENT_GONE, STORE_TROUBLE, Outcome
from ...mqtt import reason_codes
from ...mqtt.constants import NEVER_EXPIRES
from ...session.client_info import ClientInfo
from ..context import ClusterContext
from ..members.members import Members
from ..members.peer import Peer
from ..nats.interface import NoAnswer, Unavailable, Unknown, WrongRevision
from ..wire import SessionKey
from .claim_queue import ASK_AGAIN, ClaimQueue, ClaimQueues
from .connected import Connected
from .session_keys import RETRY, NotStored, SessionKeys
from .session_nodes import Moves, SessionPlace
from .session_transfer import BUSY, DISCARDED, GONE, OF_ANOTHER, READY, MovedSession, Prepared

logger = logging.getLogger(__name__)

SERVE_LOCAL: Final = "serve_local"
_TIMEOUT: Final = "cluster.takeover_timeout"
_PAUSE: Final = 0.02
"""Seconds between the first two questions to a node that is busy with the session."""
_LOOK_FOR_CLIENT: Final = 0.25
"""Seconds after which a waiting claim checks whether its client is still waiting."""


class Claims:
    """The claims of this node. ``step`` is called with the name of each step that another node takes part in."""

    def __init__(
        self, context: ClusterContext, members: Members, moves: Moves, session_keys: SessionKeys, connected: Connected
    ) -> None:
        self.context = context
        self.moves = moves
        self.session_keys = session_keys
        self.queues = ClaimQueues()
        self._members = members
        self._connected = connected
        members.on_removed.append(lambda peer: self.queues.forget(peer.name))
        self.step: Callable[[str], None] = lambda name: None
        # Whether a node that is away will run again, from a copy of its data.
        self.expected: Callable[[str], bool] = lambda node: False

    def claim(
        self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> Awaitable[Outcome | None] | None:
        """As ``core.cluster.Cluster.claim``."""
        if self._members.left:
            return None
        here = self.session_keys.simply_here(client.client_id)
        if here or (here is None and not expiry):
            self._connected.announce(client, clean_start)
            return None
        return self._claim(client, clean_start, expiry, waits)

    async def _claim(
        self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> Outcome | None:
        loop = asyncio.get_running_loop()
        client_id = client.client_id
        async with self.session_keys.locked(client_id):
            claim = Claim(self, client, clean_start, expiry, waits)
            refusal = await claim.run()
            if refusal is None and claim.taken_from is not None:
                self.session_keys.give_back_unless_begun(client_id, claim.taken_from, waits)
        if refusal is None:
            # The client may have disconnected in the meantime.
            loop.call_later(RETRY, self.session_keys.look_at, client_id)
            if not waits():
                # A session that it has elsewhere by now stays, and it would not know of a session that began here.
                return CLIENT_GONE
            self._connected.announce(client, clean_start)
        return refusal

    def waits_for_turn(self, node: str) -> bool:
        """Return whether claims that need sessions of ``node`` are waiting in line."""
        return self.queues.of(node).is_long

    async def bring(self, client: ClientInfo, node: str) -> str:
        """Move a session of ``node`` to this node, while its client is not connected. Return why it stays there; empty:
        it has arrived, and its queue follows."""
        async with self.session_keys.locked(client.client_id):
            return await Claim(self, client, False, NEVER_EXPIRES, lambda: True).bring(node)


class Claim:
    """The claim of one CONNECT whose session is not simply on this node."""

    def __init__(
        self, claims: "Claims", client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> None:
        self._waits = waits
        self._context = claims.context
        self._session_keys = claims.session_keys
        self._moves = claims.moves
        self._step = claims.step
        self._expected = claims.expected
        self._queues = claims.queues
        self._number = claims.queues.number()
        self._client = client
        self._clean_start = clean_start
        self._expiry = expiry
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + self._context.settings.takeover_timeout
        self._why = ""
        self._pause = _PAUSE
        self._asked = False
        # The key before, if this node has taken it without the node that has the session, and not for a Clean Start.
        self.taken_from: SessionKey | None = None

    @property
    def _left(self) -> float:
        return self._deadline - self._loop.time()

    async def run(self) -> Outcome | None:
        """Return why the client is refused, or ``None``."""
        keys, client_id = self._session_keys, self._client.client_id
        while self._left > 0:
            if not self._waits():
                return CLIENT_GONE
            if self._moves.leaves(client_id):
                await self._moves.left(client_id, self._left)
                continue
            if self._moves.is_undecided(client_id):
                self._why = "it is not known yet whether this node has its session"
                await self._moves.decided(client_id, min(self._left, _LOOK_FOR_CLIENT))
                continue
            place = keys.place(client_id)
            try:
                with contextlib.suppress(NotStored):  # of a session that is over
                    await keys.settle_unanswered(client_id)
                if self._moves.leaves(client_id):
                    continue  # that has told that it is another node's
                place = keys.place(client_id)
                if place is not None and keys.is_ours(place):
                    if not keys.knows(client_id):
                        await keys.read(client_id)
                    if keys.place(client_id) == place:
                        return None
                    continue
                if place is not None and not place.node and keys.end_here(client_id, place):
                    # On disk, or it would be this client's after a restart.
                    if not await self._context.tables.stored():
                        return STORE_TROUBLE
                    continue
                if place is None or not place.node or place.node == self._context.node:
                    if not self._expiry or await self._take(place, {}):
                        return None
                    continue
                done, refusal = await self._from(place)
                if done:
                    return refusal
            except WrongRevision:
                continue
            except Unavailable as error:
                # In the meantime, the bucket may have reported which node has it.
                return self._without_quorum(keys.place(client_id), str(error))
            except (Unknown, NoAnswer) as error:
                return Outcome(reason_codes.SERVER_UNAVAILABLE, _TIMEOUT, f"NATS did not answer: {error}")
        return Outcome(reason_codes.SERVER_UNAVAILABLE, _TIMEOUT, self._why)

    async def bring(self, node: str) -> str:
        """Make one attempt of ``Claims.bring``, which never begins a session."""
        keys, client_id, step = self._session_keys, self._client.client_id, self._step
        try:
            await keys.settle_unanswered(client_id)
            place = keys.place(client_id)
            if place is None or place.node != node:
                return "the session is not known here as one of that node"
            if self._moves.leaves(client_id) or self._moves.is_undecided(client_id):
                return "the session is being moved"
            move = self._context.nonce()
            prepared = await self._moves.prepare(
                node, place.revision, self._client, move, False, self._waits, self._left, absent=True
            )
            step("prepared")
            if prepared.state != READY or prepared.session is None:
                return "" if prepared.state == GONE else f"{prepared.state} {prepared.detail}".strip()
            taken, refusal = await self._move(place, move, prepared.session, prepared)
        except (NodeUnreachable, CallFailed, WrongRevision, Unavailable, Unknown, NoAnswer, NotStored) as error:
            return str(error) or type(error).__name__
        if not taken:
            return "another node has taken it over"
        return "" if refusal is None else f"{refusal.setting}: {refusal.detail}"

    async def _take(self, place: SessionPlace | None, earlier: dict[str, bool]) -> bool:
        node = self._context.node if self._expiry else ""
        timeout = max(self._left, _PAUSE)
        return await self._session_keys.take(self._client, node, self._clean_start, place, timeout, earlier)

    def _without_quorum(self, place: SessionPlace | None, error: str) -> Outcome | None:
        """Decide without NATS accepting writes: a session that no node has may begin here; its key is written later."""
        settings = self._context.settings
        nobodys = place is None or not place.node
        if settings.isolated == SERVE_LOCAL and nobodys and not self._session_keys.may_be_taken(self._client.client_id):
            logger.warning(
                "session_without_key client_id=%s setting=cluster.isolated error=%s", self._client.client_id, error
            )
            self._loop.call_later(RETRY, self._session_keys.settle_soon, self._client.client_id)
            return None
        return Outcome(reason_codes.SERVER_UNAVAILABLE, "cluster.isolated", f"NATS accepts no writes: {error}")

    async def _from(self, place: SessionPlace) -> tuple[bool, Outcome | None]:
        """Get the session from the node that has it. Return whether the claim is settled, and why the client is
        refused."""
        self._context.nats.check()
        node = place.node
        queue = self._queues.of(node)
        if queue.is_closed and not self._may_wait_for(node):
            return await self._not_asked(place, queue)
        until = self._deadline - ASK_AGAIN
        answered: tuple[bool, Outcome | None] | None = None
        pause = 0.0
        async with queue.turn(self._number, until, lambda: self._is_at(place) and self._may_wait_for(node)) as asks:
            if asks and self._is_at(place):
                self._begin_turn()
                move = self._context.nonce()
                try:
                    prepared = await self._moves.prepare(
                        node, place.revision, self._client, move, self._clean_start, self._waits, self._left
                    )
                except CallFailed as error:
                    # The node runs, and cannot answer at present.
                    queue.answered()
                    self._why = f"{node} has its session: {error}"
                    answered, pause = (False, None), ASK_AGAIN
                except NodeUnreachable as error:
                    queue.not_answered(str(error))
                else:
                    queue.answered()
                    answered = await self._prepared(place, move, prepared)
                    pause = self._pause if prepared.state == BUSY else 0.0
        if answered is None:
            return await self._not_asked(place, queue)
        if pause:
            # After the turn: the session may be busy until a move that was interrupted is over.
            await asyncio.sleep(pause)
            self._pause = min(2 * self._pause, ASK_AGAIN)
        return answered

    def _begin_turn(self) -> None:
        """Give the node of the session time to answer, although this claim may have waited in line for long. If the
        time ended after the question, the session would be busy there for ``cluster.takeover_timeout``."""
        if not self._asked:
            self._asked = True
            settings = self._context.settings
            time = min(settings.call_timeout, settings.takeover_timeout)
            self._deadline = max(self._deadline, self._loop.time() + time)

    async def _not_asked(self, place: SessionPlace, queue: ClaimQueue) -> tuple[bool, Outcome | None]:
        """Decide what to do after the node of the session has not answered, or the turn of this claim has not come."""
        if not self._is_at(place):
            return False, None
        self._why = f"{place.node} has its session: {queue.unreachable or 'those of other clients move first'}"
        peer = self._session_keys.peer(place.node)
        if peer is not None and not self._clean_start:
            timeout = self._context.settings.takeover_timeout
            self._deadline = max(self._deadline, peer.stopped_at + timeout)
        if not queue.unreachable or (self._may_wait_for(place.node) and self._left > ASK_AGAIN):
            return False, None
        return await self._without(place)

    async def _prepared(self, place: SessionPlace, move: str, prepared: Prepared) -> tuple[bool, Outcome | None]:
        """Do what the answer of the node of the session requires."""
        self._step("prepared")
        state = prepared.state
        if state == OF_ANOTHER:
            return True, Outcome(reason_codes.NOT_AUTHORIZED, SESSION_OWNER, prepared.detail)
        if state in (GONE, DISCARDED):
            # Without an expiry, that node deletes the key, unless its disk has an error.
            left = not self._expiry and place.node not in prepared.earlier
            return (left or await self._take(place, dict.fromkeys(prepared.earlier, False))), None
        if state != READY or prepared.session is None:
            self._why = f"{place.node} is busy with its session"
            if state != BUSY:
                await asyncio.sleep(_PAUSE)
                await self._session_keys.read(self._client.client_id)
            return False, None
        return await self._move(place, move, prepared.session, prepared)

    def _is_at(self, place: SessionPlace) -> bool:
        """Return whether the client still waits, and its session has not moved in the meantime."""
        return self._waits() and self._session_keys.place(self._client.client_id) == place

    def _may_wait_for(self, node: str) -> bool:
        """Return whether a node may be running, or may soon run again, as far as this node knows."""
        peer = self._session_keys.peer(node)
        return not self._session_keys.knows_members if peer is None else self._may_run(peer)

    def _may_run(self, peer: Peer) -> bool:
        """Return whether a node may be running, or may soon run again: a node that was stopped properly may be
        restarting, as in an upgrade. With Clean Start, its session is not needed."""
        timeout = self._context.settings.takeover_timeout
        stopped = not self._clean_start and self._loop.time() - peer.stopped_at < timeout
        return peer.may_run or stopped or (not self._clean_start and self._expected(peer.name))

    async def _move(
        self, place: SessionPlace, move: str, moved: MovedSession, prepared: Prepared
    ) -> tuple[bool, Outcome | None]:
        moves, step = self._moves, self._step
        client_id = self._client.client_id
        taken = False
        try:
            moves.adopt(client_id, place.node, move, moved, prepared)
            step("adopted")
            if not await self._context.tables.stored():
                moves.cancel(client_id)
                return True, STORE_TROUBLE
            step("stored")
            node, timeout = self._context.node, max(self._left, _PAUSE)
            taken = await self._session_keys.take(self._client, node, False, place, timeout, prepared.earlier)
        except Unknown:
            raise
        except BaseException:
            moves.cancel(client_id)
            raise
        finally:
            if not taken:
                moves.drop(client_id)
        if not taken:
            return False, None
        step("taken")
        moves.begin(client_id)
        return True, None

    async def _without(self, place: SessionPlace) -> tuple[bool, Outcome | None]:
        """Decide about the claim while the node of the session is away."""
        client = self._client
        settings = self._context.settings
        detail = f"{place.node} has its session and does not answer"
        key = await self._session_keys.read(client.client_id)
        if self._session_keys.place(client.client_id) != place or key is None:
            return False, None
        if self._moves.checks_owner and key.owner not in ("", client.owner):
            return True, Outcome(reason_codes.NOT_AUTHORIZED, SESSION_OWNER, f"the session belongs to {key.owner}")
        gone = self._session_keys.peer(place.node) is None and self._session_keys.knows_members
        if settings.takeover == "refuse" and not self._clean_start and not gone:
            return True, Outcome(reason_codes.SERVER_UNAVAILABLE, "cluster.takeover", detail)
        if not self._clean_start and self._expected(place.node):
            return True, Outcome(reason_codes.SERVER_UNAVAILABLE, "cluster.failover_after", detail)
        if not self._waits():
            return True, CLIENT_GONE
        earlier = {key.giver: True} if key.giver else {}
        if not await self._take(place, {**earlier, place.node: True}):
            return False, None
        self.taken_from = None if self._clean_start else key
        self._context.broker.metrics.refusals.add("cluster_session_begun_anew")
        logger.warning(
            "session_begun_anew client_id=%s node=%s setting=cluster.takeover clean_start=%s",
            client.client_id,
            place.node,
            self._clean_start,
        )
        return True, None
