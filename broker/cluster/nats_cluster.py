"""NatsCluster: assembles the cluster of a node, and creates, starts and stops its parts in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from ..config import ZoneSettings
from ..core.cluster import IN_SYNC, ChangeRefused, CopyStatus, Handler, LinkStatus, Member, NodeUnreachable
from ..core.outcome import Outcome
from ..mqtt.message import Message
from ..session.client_info import ClientInfo
from ..session.limits import Limits
from ..session.session import Session
from ..store.restored import ZoneOf
from ..store.store import Store
from .calls import Calls
from .context import ClusterContext
from .exclusive import ClusterExclusive
from .isolation import Isolation
from .links.known_routes import KnownRoutes
from .links.link import LISTENER, Links, link_limits
from .links.link_receiver import LinkReceiver
from .links.routes import ClusterRoutes
from .links.shared_groups import ClusterSharedGroups
from .members.members import Members
from .members.own_record import NameTaken
from .moving.claims import Claims
from .moving.connected import Connected
from .moving.evacuation import NodeEvacuation
from .moving.handover import Handover
from .nats.interface import NoAnswer, Unavailable, Unknown
from .replicas import returning
from .replicas.copies import Copies
from .replicas.records import ReplicaRecord, ReplicaRecords, has_copies
from .replicas.shipping import TICK, Shipping
from .replicas.takeover import Host, Takeovers
from .shared.retained import ClusterRetained
from .shared.rows import Rows
from .tasks import Tasks
from .wills import RefusalOf, Wills

logger = logging.getLogger(__name__)

READ_TIMEOUT: Final = 10.0
"""Seconds that a start waits for the rows and retained messages of the cluster, if NATS has a quorum."""
_ROUTES_WITHOUT_QUORUM: Final = 3.0
"""Seconds that a start without NATS or its quorum waits for the routes of other nodes."""
_LAST_FRAMES: Final = 2.0
"""Seconds within which messages for other nodes have to be sent when the node stops."""


class NatsCluster:
    """The cluster of a node, over NATS; the broker uses it as ``core.cluster.Cluster``. It is created before the store
    is opened, and started after recovery."""

    clustered: bool = True

    def __init__(
        self,
        context: ClusterContext,
        zone_of: ZoneOf,
        refusal_of_will: RefusalOf,
        directory: Path | None = None,
        host: Host | None = None,
    ) -> None:
        """``zone_of`` returns settings and limits by the name of a listener. ``refusal_of_will`` is that of
        ``recovery.recover_in_steps``. ``directory`` is the node's data directory, if it keeps data. ``host`` runs a
        lost node from its copy, and is ``None`` if this node itself runs from a copy."""
        self.context = context
        self.nats = context.nats
        self.strict_subscribe = context.settings.strict_subscribe
        self.on_replaced: list[Callable[[], None]] = []
        self._begun = False
        self._connected = False
        self._directory = directory
        # The parts, each created from the context and from those above it.
        self.membership = Members(context)
        self.calls = Calls(context)
        self.rows = Rows(context)
        self.retained = ClusterRetained(context, self.membership, self.calls)
        self.routes = ClusterRoutes(context, self.membership, self.calls)
        self.isolation = Isolation(context, self.membership, self.routes)
        self.links = Links(context, self.membership, self.calls, self.routes)
        self.known_routes = KnownRoutes(context, self.membership, self.routes, self.links, directory)
        self.receiver = LinkReceiver(context, self.membership, self.calls)
        self.shared_groups = ClusterSharedGroups(context, self.membership, self.routes, self.receiver)
        self.connected = Connected(context, self.membership, self.calls)
        self.handover = Handover(context, self.membership, self.calls, self.routes, self.receiver, zone_of)
        self.turns = self.handover.turns
        self.session_keys = self.handover.session_keys
        self.exclusive = ClusterExclusive(context, self.membership, self.rows, self.session_keys)
        self.claims = Claims(context, self.membership, self.handover, self.session_keys, self.connected)
        self.evacuation = NodeEvacuation(context, self.membership, self.calls, self.handover, self.claims)
        self.wills = Wills(context, self.membership, self.session_keys, self.handover.receiver, refusal_of_will)
        self.replica_records: ReplicaRecords | None = None
        self.copies: Copies | None = None
        self.shipping: Shipping | None = None
        self.takeovers: Takeovers | None = None
        self._tasks = Tasks()
        if directory is not None:
            if context.settings.replicas:
                self._make_shipping()
            # What may be the only copy of a node is kept and used also if ``cluster.replicas`` is 0 now.
            if host is not None and (context.settings.replicas or has_copies(directory)):
                records = self._make_records()
                self.copies = Copies(context, self.membership, records, directory)
                self.takeovers = Takeovers(context, self.membership, self.calls, records, self.copies, host)
                self.claims.expected = self.takeovers.is_expected

    def _make_records(self) -> ReplicaRecords:
        if self.replica_records is None:
            self.replica_records = ReplicaRecords(self.context)
        return self.replica_records

    def _make_shipping(self) -> None:
        self.shipping = Shipping(self.context, self.membership, self._make_records())
        self.shipping.record.on_replaced.append(self._replaced)

    async def prepare(self, store: Store) -> None:
        """Find out whether another node has taken over this one. Called after the store was read, and before it is
        opened.

        :raises NatsRefused: this NATS cannot be used.
        """
        if self._directory is None or self.context.hosted_by:
            return
        identity = returning.identity_in(store)
        if returning.may_have_record(self.context, identity):
            await self.nats.start()
            self._connected = True
            await returning.settle(self.context, store, identity, self._directory)

    def _replaced(self, record: ReplicaRecord) -> None:
        node = self.context.node
        where = (
            f"{record.hosted_by} runs {node} from its copy" if record.hosted_by else f"{node} has other data elsewhere"
        )
        self.membership.lose(
            f"{where}: this node accepts no clients until it starts again, with an empty store", "cluster.replicas"
        )
        self.isolation.replaced()
        for call in self.on_replaced:
            call()

    async def start(self) -> None:
        """Become a member. If NATS is unreachable or has no quorum, the node soon serves its own clients, and joins
        later.

        :raises NatsRefused: this node is rejected, or this NATS cannot be used. If another node has taken over this one
            since ``prepare``, ``on_replaced`` is called before."""
        self.membership.identify()
        self.handover.load()
        if self.membership.copied and self.shipping is None and self._directory is not None:
            self._make_shipping()  # ``cluster.replicas`` is 0 now, and the record still names nodes that may take over
        if self.shipping is not None:
            self.shipping.attach()
        self.calls.start()
        self.receiver.start()
        self.links.start()
        self.routes.start()
        self.shared_groups.start()
        self.known_routes.start()
        if not self._connected:
            await self.nats.start()
        try:
            await self.membership.start()
        except NameTaken:
            # A follower may have taken over since ``prepare``.
            if await self._is_hosted():
                for call in self.on_replaced:
                    call()
            raise
        if self.membership.left:
            if self.shipping is not None:
                await self.shipping.end()
            self._stop_sharing()
            self.wills.publish_held()
            return
        await self._take_part()

    async def _is_hosted(self) -> bool:
        """Return whether another node runs this one from its copy."""
        if self._directory is None or self.context.hosted_by:
            return False
        try:
            record = await returning.read_own_record(self.context)
        except (Unavailable, NoAnswer):
            return False
        return record is not None and bool(record.hosted_by) and not record.ended

    async def _take_part(self) -> None:
        """Start all parts that need other nodes: this node is a member, or will be as soon as NATS is reachable."""
        self._start_copies()
        self.rows.start()
        self.retained.start()
        if self.nats.quorum:
            if not await self.rows.wait_until_joined(READ_TIMEOUT):
                logger.warning(
                    "cluster_rows_not_read seconds=%s detail=%s", READ_TIMEOUT, "the rows of this node apply"
                )
            if not await self.retained.wait_until_joined(READ_TIMEOUT):
                logger.warning("cluster_retained_not_read seconds=%s", READ_TIMEOUT)
        patience = self.context.settings.stopped_after if self.nats.quorum else _ROUTES_WITHOUT_QUORUM
        current = await self.routes.wait_until_current(patience)
        # A route to a node that is not known as a member leads nowhere.
        if not current or not await self.membership.wait_until_known(patience):
            known = "the last known routes apply until then"
            logger.warning("cluster_routes_unknown detail=%s setting=cluster.servers", known)
        await self.session_keys.start()
        self.handover.start()
        self.connected.start()
        self.wills.start()
        self.exclusive.start()
        if self.takeovers is not None:
            self.takeovers.start()
        if self.membership.identity.new and self.nats.quorum:
            await self.handover.greet()
        self._begun = True

    def _start_copies(self) -> None:
        if self.replica_records is not None:
            self.replica_records.start()
            if self.copies is not None:
                self.copies.start()
                if not self.context.settings.replicas:
                    names = ",".join(self.copies.held())
                    logger.warning("replicas_kept nodes=%s setting=cluster.replicas", names)
            if self.shipping is not None:
                self.shipping.start()
                if not (self.context.settings.replicas or self.context.hosted_by):
                    self._tasks.run(self._withdraw_copies(self.shipping))
            durability = self.context.broker.durability
            assert durability is not None
            durability.copies_bytes = self._copies_bytes

    async def _withdraw_copies(self, shipping: Shipping) -> None:
        """End the copies of an earlier start. Acknowledgements wait for these copies until no node may take over from
        them."""
        while shipping.may_be_used:
            await asyncio.sleep(TICK)
        while True:
            try:
                await shipping.withdraw()
                break
            except (Unavailable, Unknown, NoAnswer):
                await asyncio.sleep(TICK)
        self.membership.note_no_copies()
        logger.info("replicas_ended node=%s setting=cluster.replicas", self.context.node)

    def _copies_bytes(self) -> int:
        """Return the memory used by batches that other nodes, or the disk of a copy here, have yet to confirm."""
        sent = 0 if self.shipping is None else self.shipping.tail_bytes
        return sent + (0 if self.copies is None else self.copies.pending_bytes)

    async def _end_own_copies(self, for_good: bool) -> None:
        """:raises ChangeRefused: the record of the copies cannot be deleted."""
        if self.shipping is not None:
            try:
                if for_good:  # its host writes the last record
                    await self.shipping.end()
                else:
                    await self.shipping.withdraw()
            except (Unavailable, Unknown, NoAnswer) as error:
                raise ChangeRefused(f"NATS accepts no writes now: {error}") from None

    async def _stop_copies(self) -> None:
        if self.replica_records is not None:
            if self.shipping is not None:
                await self.shipping.stop()
            if self.copies is not None:
                await self.copies.stop()
            self.replica_records.stop()

    def _stop_sharing(self) -> None:
        self.exclusive.stop()
        self.retained.stop()
        self.rows.stop()

    async def stop(self) -> None:
        """Stop taking part, after the clients have disconnected."""
        if self.takeovers is not None:
            await self.takeovers.stop()
        await self._tasks.stop()
        await self.evacuation.stop()
        await self.retained.flush(_LAST_FRAMES)
        self._stop_sharing()
        await self.wills.stop()
        await self.connected.stop()
        await self.handover.stop()
        await self.session_keys.stop()
        await self.links.stop(_LAST_FRAMES)
        self.shared_groups.stop()
        await self.known_routes.stop()
        await self.routes.stop()
        await self._stop_copies()
        await self.membership.stop()
        self.receiver.stop()
        await self.calls.stop()
        await self.nats.stop()

    def zone_of(self, listener: str) -> tuple[ZoneSettings, Limits] | None:
        """Return the settings of a recovered internal session, or ``None`` if its listener is not an internal one."""
        return (ZoneSettings(), link_limits(self.context.settings)) if listener == LISTENER else None

    # ----------------------------------------------------- core.cluster.Cluster

    @property
    def refused(self) -> str:
        return self.membership.refused

    def members(self) -> list[Member]:
        found = self.membership.members()
        records = [] if self.replica_records is None else self.replica_records.all()
        hosts = {each.node: each.hosted_by for each in records if each.hosted_by and not each.ended}
        return [msgspec.structs.replace(each, hosted_by=hosts.get(each.name, "")) for each in found] if hosts else found

    def claim(
        self, client: ClientInfo, clean_start: bool, expiry: int, waits: Callable[[], bool]
    ) -> Awaitable[Outcome | None] | None:
        refusal = self.isolation.refusal() or self.evacuation.refusal()
        return refusal or self.claims.claim(client, clean_start, expiry, waits)

    async def subscribed(self, client_id: str, filters: list[str]) -> None:
        await self.routes.known_everywhere(filters)
        await self.handover.marked(client_id)

    def session_ended(self, session: Session) -> None:
        self.session_keys.session_ended(session)

    def will_changed(self, client_id: str) -> None:
        self.wills.changed(client_id)

    def hold_will(self, client_id: str, will: Message, number: int) -> bool:
        return self.wills.hold_due(client_id, will, number)

    def node_of(self, client_id: str) -> str | None:
        node = self.session_keys.node_of(client_id)
        # The key of a node that is no longer a member is about to be deleted.
        gone = self.membership.known and node not in self.membership.peers
        return None if gone else node

    def serve(self, method: str, handler: Handler) -> None:
        self.calls.serve(method, handler)

    async def call(self, node: str, method: str, argument: bytes, timeout: float | None = None) -> bytes:
        peer = self.membership.peers.get(node)
        if peer is None or not peer.running:
            raise NodeUnreachable(f"{node}: {'no such node' if peer is None else peer.status}")
        return await self.calls.call(node, method, argument, timeout)

    def copies_of_data(self) -> list[CopyStatus]:
        node = self.context.node
        own = [] if self.shipping is None else self.shipping.status()
        found = [CopyStatus(node, each.node, each.state, each.batches, each.bytes, each.since) for each in own]
        for record in [] if self.replica_records is None else self.replica_records.all():
            peer = self.membership.peers.get(record.node)
            if peer is not None and not peer.running and not record.ended:
                found += [CopyStatus(record.node, each, IN_SYNC) for each in record.in_sync]
        return found

    def links_to_others(self) -> list[LinkStatus]:
        return [link.status() for _, link in sorted(self.links.links.items())]

    @property
    def evacuating(self) -> bool:
        return self.evacuation.active

    async def evacuate(self) -> None:
        await self.evacuation.start()

    def end_evacuation(self) -> None:
        self.evacuation.end()

    @property
    def owed_to_others(self) -> int:
        return sum(each.session.queued + len(each.session.inflight) for each in self.links.links.values())

    @property
    def kept_for_others(self) -> int:
        return len(self.handover.outgoing.kept)

    async def join(self, node: str) -> None:
        await self.membership.join(node)
        if self.shipping is not None:
            self.shipping.attach()
        if not self._begun:  # it had left when it started
            await self._take_part()
        else:
            self._start_copies()
            self.rows.start()
            self.retained.start()
            self.session_keys.joined_again()
            self.wills.offer()
            self.exclusive.start()
        await self.membership.wait_until_heard()

    def unfinished(self) -> dict[str, int]:
        """Return, by kind, how much this node still has to do for other nodes. If nothing is left, only its sessions
        are lost when the node leaves."""
        return {
            "messages_for_other_nodes": self.owed_to_others,
            "moves": self.handover.unfinished,
            "session_keys": self.session_keys.unfinished,
            "retained": self.retained.pending,
        }

    async def leave(self, for_good: bool = False) -> None:
        """Implement ``core.cluster.Cluster.leave``. ``for_good``: no node may join with this node's data again."""
        self.membership.check_leave()
        if self.takeovers is not None:
            self.takeovers.check_leave()
        await self._end_own_copies(for_good)
        try:
            await self.wills.withdraw()
            await self.routes.withdraw()
            await self.membership.leave(for_good)
        except Exception:
            self._stay()
            raise
        self._stop_sharing()
        self.rows.forget()
        self.retained.forget()

    def _stay(self) -> None:
        """Undo the preparations for leaving, because the write that would have removed this node has failed."""
        if self.shipping is not None and (self.context.settings.replicas or self.context.hosted_by):
            self.shipping.attach()
            self.shipping.start()
        self.routes.offer()
        self.wills.offer()

    async def force_leave(self, node: str, copies_lost: bool = False) -> None:
        self.membership.check_force_leave(node)
        if self.takeovers is not None:
            sessions = len(self.session_keys.places.of_node(node))
            if await self.takeovers.order(node, copies_lost, sessions):
                return
        try:
            keys = await self.routes.keys_of(node)
        except (Unavailable, NoAnswer) as error:
            raise ChangeRefused(f"NATS does not answer: {error}") from None
        await self.membership.force_leave(node)
        await self.routes.delete(keys)
        if self.takeovers is not None:
            try:
                await self.takeovers.give_up(node)
            except (Unavailable, Unknown, NoAnswer) as error:
                raise ChangeRefused(f"{node} was removed; its record in bucket replicas was not: {error}") from None
