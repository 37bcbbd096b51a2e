"""Exclusive subscriptions in a cluster: a shared row for each exclusive filter says which client has it.

Before SUBACK, a node claims the filter by a compare-and-set on the row. The row names the client, so that a session
keeps its subscription when it moves. The row is valid for as long as the session: until the session's key is deleted
or, if the session ends with its connection, while the client's node runs. If two nodes disagree after a partition, the
row decides, and the other client loses its subscription.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Final

import msgspec

from ..core.cluster import STOPPED
from ..core.outcome import EXCLUSIVE_ALONE, EXCLUSIVE_TAKEN, Outcome
from ..mqtt.topics import EXCLUSIVE_PREFIX
from ..persistence.tables import NotAgreed, RowTooLarge
from ..session.session import Session
from .context import ClusterContext
from .members.members import Members
from .members.peer import Peer
from .moving.session_keys import SessionKeys
from .nats.interface import NoAnswer, Unavailable
from .shared.rows import Rows
from .tasks import Tasks

logger = logging.getLogger(__name__)

TABLE: Final = "exclusive_subscriptions"
_PATIENCE: Final = 10.0
_ATTEMPTS: Final = 3


class ExclusiveHolder(msgspec.Struct, array_like=True, frozen=True):
    """Row of the table, by Topic Filter with the mount point. ``node`` is the node that claimed the filter.
    ``persistent``: the session outlives its connection, and can move."""

    client_id: str
    node: str
    persistent: bool


class ClusterExclusive:
    """``core.exclusive.ExclusiveClaims`` of a node of a cluster."""

    def __init__(self, context: ClusterContext, members: Members, rows: Rows, session_keys: SessionKeys) -> None:
        self._context = context
        self._node = context.node
        self._exclusive = context.broker.exclusive
        self._members = members
        self._rows = rows
        self._session_keys = session_keys
        self._table = context.tables.open(TABLE, ExclusiveHolder, shared=True)
        # Filters that are claimed here, whose subscriptions follow: how many clients claim each.
        self._claiming: dict[str, int] = {}
        self._tasks = Tasks()
        self._table.on_taken.append(self._taken)
        members.on_removed.append(self._removed)

    def start(self) -> None:
        """Claim the exclusive subscriptions of this node's sessions as soon as the rows are read. Called when the
        sessions are restored."""
        self._exclusive.claims = self
        self._tasks.run(self._begin())

    async def _begin(self) -> None:
        while not await self._rows.wait_until_joined(_PATIENCE):
            pass
        ours = [topic_filter for topic_filter, row in self._table.items() if row.node == self._node]
        for topic_filter in {*self._exclusive.holders, *ours}:
            self._compare(topic_filter)

    def stop(self) -> None:
        """Decide alone from now on, because the node stops or leaves the cluster."""
        self._tasks.cancel()
        self._exclusive.claims = None

    # ------------------------------------------------------------------- claims

    def claim(self, session: Session, topic_filters: Iterable[str]) -> Awaitable[None]:
        filters = list(topic_filters)
        for topic_filter in filters:
            self._claiming[topic_filter] = self._claiming.get(topic_filter, 0) + 1
        return self._claim(session, filters)

    async def _claim(self, session: Session, topic_filters: list[str]) -> None:
        for topic_filter in topic_filters:
            for _ in range(_ATTEMPTS):
                ours = self._table.get(topic_filter) == self._row(session)
                if ours or not await self._is_free(session, topic_filter):
                    break
                if self._rows.begin():
                    return  # the cluster accepts no changes
                if await self._put(session, topic_filter):
                    break

    async def _put(self, session: Session, topic_filter: str) -> bool:
        """Return whether the row now belongs to the session. If the bucket has a different row, the table has now
        adopted it."""
        try:
            self._table.put(topic_filter, self._row(session))
            await self._rows.agreed()
        except (NotAgreed, RowTooLarge) as error:
            logger.warning("exclusive_claim_failed client_id=%s detail=%s", session.client_id, error)
            if self._table.get(topic_filter) == self._row(session):
                self._table.remove(topic_filter)  # it is unknown whether the cluster has it
            return False
        return True

    async def _is_free(self, session: Session, topic_filter: str) -> bool:
        """Return whether the session may claim the filter. If the row is another client's, NATS is asked which node has
        the session of that client, before the session is regarded as ended."""
        there = self._exclusive.holders.get(topic_filter)
        if there is not None and there is not session and self._is_here(there):
            return False
        row = self._table.get(topic_filter)
        if row is None or row.client_id == session.client_id:
            return True
        if not self._counts(row, topic_filter) and row.persistent:
            try:
                await self._session_keys.read(row.client_id)
            except (Unavailable, NoAnswer):
                return False
        row = self._table.get(topic_filter)
        return row is None or not self._counts(row, topic_filter)

    def settle(self, topic_filters: Iterable[str]) -> None:
        for topic_filter in topic_filters:
            left = self._claiming.get(topic_filter, 0) - 1
            if left > 0:
                self._claiming[topic_filter] = left
            else:
                self._claiming.pop(topic_filter, None)
                self._compare(topic_filter)

    def refusal(self, session: Session, topic_filter: str) -> Outcome | None:
        row = self._table.get(topic_filter)
        if row == self._row(session) or self._exclusive.holders.get(topic_filter) is session:
            return None
        taken = row is not None and row.client_id != session.client_id and self._counts(row, topic_filter)
        return EXCLUSIVE_TAKEN if taken else EXCLUSIVE_ALONE

    def holder(self, topic_filter: str) -> str:
        row = self._table.get(topic_filter)
        return row.client_id if row is not None and self._counts(row, topic_filter) else ""

    def _row(self, session: Session) -> ExclusiveHolder:
        return ExclusiveHolder(session.client_id, self._node, session.persistent)

    def _counts(self, row: ExclusiveHolder, topic_filter: str) -> bool:
        """Return whether the session of a row exists."""
        node = row.node
        if row.persistent:
            place = self._session_keys.place(row.client_id)
            node = "" if place is None else place.node
        if node == self._node:
            return topic_filter in self._claiming or topic_filter in self._exclusive.holders
        peer = self._members.peers.get(node)
        if peer is None:
            return bool(node) and not self._members.known
        return row.persistent or peer.status != STOPPED or peer.may_run

    # ------------------------------------------------------------------ changes

    def released(self, session: Session, topic_filter: str) -> None:
        row = self._table.get(topic_filter)
        if row is None or row.client_id != session.client_id or topic_filter in self._claiming:
            return
        # A copy of a session that another node has may end here.
        if self._is_here(session):
            self._table.remove(topic_filter)

    def contested(self, session: Session, topic_filter: str) -> None:
        asyncio.get_running_loop().call_soon(self._decide_between, session, topic_filter)

    def _decide_between(self, session: Session, topic_filter: str) -> None:
        """Decide between two sessions here with the same exclusive filter: end the subscription of the one whose client
        does not have the row."""
        row = self._table.get(topic_filter)
        there = self._exclusive.holders.get(topic_filter)
        subscription = session.subscriptions.get(EXCLUSIVE_PREFIX + topic_filter)
        if subscription is None or there is session:
            return
        if there is None or (row is not None and row.client_id == session.client_id):
            self._exclusive.took(subscription)
            if there is not None:
                self._lose(there, topic_filter, self._row(session))
        else:
            self._lose(session, topic_filter, row or self._row(there))

    def _is_here(self, session: Session) -> bool:
        """Return whether this node has a session. If it has moved, a copy remains here for a while."""
        return self._session_keys.node_of(session.client_id) is None

    def _compare(self, topic_filter: str) -> None:
        """Compare a row with the sessions of this node. If the row names another client, a session here loses the
        subscription: the row was written by a node that could reach the cluster, and this node may have been regarded
        as Stopped."""
        session = self._exclusive.holders.get(topic_filter)
        row = self._table.get(topic_filter)
        if session is None:
            if row is not None and row.node == self._node and not self._counts(row, topic_filter):
                self._table.remove(topic_filter)
        elif not self._is_here(session):
            return
        elif row is None:
            try:
                self._table.put(topic_filter, self._row(session))
            except RowTooLarge as error:
                logger.error("exclusive_claim_failed client_id=%s detail=%s", session.client_id, error)
        elif row.client_id != session.client_id and topic_filter not in self._claiming:
            self._lose(session, topic_filter, row)

    def _taken(self, topic_filter: str, before: ExclusiveHolder | None, after: ExclusiveHolder | None) -> None:
        """Callback of the table: another node has changed a row."""
        if self._exclusive.claims is self:
            asyncio.get_running_loop().call_soon(self._compare, topic_filter)

    def _removed(self, peer: Peer) -> None:
        """Delete the rows of a node that is no longer a member, and of its sessions, which end."""
        if self._exclusive.claims is self and not self._members.left:
            for topic_filter, row in list(self._table.items()):
                place = self._session_keys.place(row.client_id) if row.persistent else None
                if (row.node if place is None else place.node) == peer.name:
                    self._table.remove(topic_filter)

    def _lose(self, session: Session, topic_filter: str, row: ExclusiveHolder) -> None:
        """End a subscription of this node, because a client of another node has claimed the filter while this node was
        without NATS."""
        broker = self._context.broker
        broker.unsubscribe(session, EXCLUSIVE_PREFIX + topic_filter)
        broker.metrics.refusals.add("exclusive_subscription_lost")
        broker.throttled_log.warn(
            "exclusive_subscription_lost",
            session.client_id,
            topic_filter,
            "quota_exceeded",
            "exclusive_subscription",
            self._context.clock.now(),
            detail=f"{row.client_id} has it on {row.node}",
        )
