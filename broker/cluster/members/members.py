"""Members: the nodes of the cluster, and how this node becomes one of them and leaves.

Bucket ``members`` has a record for each node, with its present data and its present start (``own_record``). Which nodes
run is decided by their heartbeats (``heartbeats``).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from ...core.cluster import RUNNING, STOPPED, ChangeRefused, Member
from ..changes import Changes, until
from ..context import ClusterContext
from ..nats.interface import (
    BucketEntry,
    NatsRefused,
    NoAnswer,
    Unavailable,
    Unknown,
    Watch,
    WrongRevision,
)
from ..wire import FORCED_OUT, MemberRecord, node_key
from .admission import Admission
from .heartbeats import Heartbeats
from .identity import NodeIdentity
from .membership_check import HEARTBEAT, MembershipCheck
from .own_record import BUCKET, DATA_DIR, REPLACED, MemberRecords, OwnRecord
from .peer import Peer, forced_out_of, has_other_data, is_replaced

logger = logging.getLogger(__name__)

_RETRY: Final = 1.0
PROBE: Final = 5
"""Number of heartbeats between two writes of this node's record."""


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class Members:
    """The nodes of the cluster, as this node knows them. Every other package uses ``peers`` and the callbacks.

    ``peers`` has the other nodes by name, Stopped ones included. ``known`` is set when NATS has reported all of them.
    ``joined`` is set while bucket ``members`` has this node's record. ``changes`` wakes tasks that wait for a change of
    ``peers``, of a status, or of ``known``.

    Callbacks::

        on_joined     this node has become a member
        on_current    all nodes that were known at the start are in ``peers``
        on_change     the status or the identity of a node has changed; with its previous status
        on_replaced   before on_change: a node name now belongs to other data, and both are on disk
        on_removed    a node was forced out, or has left
        on_isolated   ``isolated`` has changed
        on_refused    this node is no longer a member: it was forced out, or another node has its name
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        # For becoming a member, which happens before the node is one; everything else uses ``_member_nats``.
        self._member_nats = context.nats
        self._nats = context.nats.raw
        self._wire = context.wire
        self.identity = NodeIdentity(context)
        self.records = MemberRecords(context)
        self.own_record = OwnRecord(context, self.identity, self.records)
        self.peers: dict[str, Peer] = {}
        self._by_key: dict[str, Peer] = {}
        self._admission = Admission(context, self.peers, lambda: self.left)
        self.joined = False
        self.replaced = False
        self._told = False
        self.changes = Changes()
        self.on_isolated: list[Callable[[], None]] = []
        self.on_refused: list[Callable[[], None]] = []
        self.on_change: list[Callable[[Peer, str], None]] = []
        self.on_replaced: list[Callable[[Peer], None]] = []
        self.on_removed: list[Callable[[Peer], None]] = []
        self.on_joined: list[Callable[[], None]] = []
        self.on_current: list[Callable[[], None]] = []
        self.key = self.own_record.key
        self.check = MembershipCheck(context.settings, context.nats, self.key, self.peers, self._read_own_record)
        self.heartbeats = Heartbeats(context, self.peers, self.own_record, self.check, self._tell)
        self._disconnected_at: float | None = None
        self._was_isolated = False
        self._watch: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    # -------------------------------------------------------------- start, stop

    def identify(self) -> None:
        """Set the uid of the data, and count this start."""
        self.identity.load()
        self._note_outside()

    @property
    def left(self) -> bool:
        """Whether this node has left the cluster."""
        return self.identity.left

    @property
    def copied(self) -> bool:
        """Whether other nodes may have copies of this node's data (``cluster.replicas``), now or from an earlier
        start."""
        return self.identity.copied

    def note_no_copies(self) -> None:
        """Note that no other node may use a copy of this node's data."""
        self.identity.note_no_copies()

    async def start(self) -> None:
        """Become a member, now or as soon as NATS is connected.

        :raises NatsRefused: this node may not be a member.
        """
        self._loop = asyncio.get_running_loop()
        self.check.start()
        self._disconnected_at = None if self._nats.connected else -1e9
        self._nats.on_connected.append(self._connected)
        self._nats.on_disconnected.append(self._disconnected)
        self._nats.on_lost.append(self._lost)
        self.heartbeats.start()
        if not self.left:
            self._watch = self._nats.watch(BUCKET, self._entry, self._is_current)
        # An identity that is not on disk could be used a second time. Its copies follow when this node is a member.
        await self._context.tables.written()
        if self._nats.quorum and not self.left:
            try:
                await self._join()
            except (Unavailable, Unknown, NoAnswer) as error:
                logger.warning("cluster_join_waits error=%s", _text(error))
        self._join_later()
        self._tick()

    async def stop(self) -> None:
        """Announce that this node stops; its record stays."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for task in (self._joining, self._probing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.joined:
            self.heartbeats.beat(leaving=True)

    def _connected(self) -> None:
        if self.joined:
            self._disconnected_at = None
            self._look_whether_isolated()
        self._context.alarms.deactivate("nats_disconnected")
        logger.info("nats_connected")
        self._join_later()

    def _disconnected(self) -> None:
        self._disconnected_at = self._loop.time()
        details = {"setting": "cluster.servers", "servers": ", ".join(self._context.settings.servers)}
        self._context.alarms.activate("nats_disconnected", "no NATS server is connected", details)

    def _lost(self, bucket: str) -> None:
        if bucket == BUCKET and self.joined:
            self.own_record.revision = 0
            self._rejoin()

    @property
    def known(self) -> bool:
        return self._told or self.left

    @property
    def isolated(self) -> bool:
        """Whether this node has been without NATS, or not a member, for so long that others regard it as Stopped."""
        since = self._disconnected_at
        if since is None or self.left:
            return False
        return self._loop.time() - since > self._context.settings.stopped_after

    def _look_whether_isolated(self) -> None:
        if self.isolated != self._was_isolated:
            self._was_isolated = not self._was_isolated
            for call in self.on_isolated:
                call()

    # --------------------------------------------------------------------- join

    def lose(self, why: str, setting: str) -> None:
        """Note that another node runs in place of this one, with its data: this node is not a member until its next
        start."""
        if self.replaced:
            return
        self.replaced = self.own_record.silent = True
        self.joined = False
        self._refused(why, setting)

    def _join_later(self) -> None:
        if self.replaced:
            return
        if not self.joined and not self.left and (self._joining is None or self._joining.done()):
            self._joining = self._loop.create_task(self._keep_joining())

    async def _keep_joining(self) -> None:
        said = ""
        while not self.joined and self._nats.connected:
            try:
                await self._join()
            except (Unavailable, Unknown, NoAnswer) as error:
                if _text(error) != said:
                    said = _text(error)
                    logger.info("cluster_join_waits error=%s", said)
                self._no_quorum(error)
                await asyncio.sleep(_RETRY)
            except NatsRefused as error:
                details = {"setting": error.setting}
                self._context.alarms.activate("cluster_refused", str(error), details)
                logger.error("cluster_refused_this_node setting=%s error=%s", error.setting, error)
                self._note_refused(str(error))
                return

    async def _join(self) -> None:
        await self.own_record.join()
        self.joined = True
        self.check.may_be_out = False
        self._member_nats.outside = ""
        self._disconnected_at = None if self._nats.connected else self._loop.time()
        self._look_whether_isolated()
        self._context.alarms.deactivate("cluster_refused")
        self._context.alarms.deactivate("nats_no_quorum")
        logger.info("cluster_joined node=%s incarnation=%s", self._context.node, self._wire.incarnation)
        self.own_record.log_replaced()
        self.heartbeats.beat()
        for call in self.on_joined:
            call()

    # ------------------------------------------------------------------- others

    def members(self) -> list[Member]:
        """Return all known nodes by name, including this one."""
        wire = self._wire
        found = [
            Member(each.name, each.uid, each.incarnation, each.status, each.since, each.record.version)
            for each in self.peers.values()
        ]
        us = Member(
            self._context.node, wire.uid, wire.incarnation, RUNNING, self.own_record.started, self._context.version
        )
        return sorted([*found, us], key=lambda member: member.name)

    def running(self) -> list[Peer]:
        """Return the other nodes that are not Stopped."""
        return [each for each in self.peers.values() if each.running]

    def _entry(self, entry: BucketEntry) -> None:
        """Handle a record that was written or deleted."""
        if entry.value is None:
            peer = self._by_key.get(entry.key)
            if peer is not None:
                self._admission.note_left(peer)
                self._remove(peer)
            elif entry.key == self.key and self.joined and not self.left:
                self._rejoin()
            return
        found = self.records.read(entry)
        if found is None:
            return
        record = found[1]
        if entry.key == self.key:
            self._own_entry(record, entry.revision)
            return
        peer = self.peers.get(record.node)
        self._admission.note_record(record)
        if record.forced_out:
            if peer is not None:
                if not record.uid:
                    self._admission.note_left(peer)
                self._remove(peer)
            return
        if peer is None:
            now = self._loop.time()
            until = now + self._context.settings.stopped_after
            peer = self.peers[record.node] = Peer(record, entry.revision, self._context.clock.wall(), now, until)
            self._by_key[peer.key] = peer
            self._tell(peer, "")
            self._greet()
            return
        same = peer.uid == record.uid and peer.incarnation == record.incarnation
        replaced = is_replaced(peer.record, record)
        other_data = has_other_data(peer.record, record)
        peer.record = record
        peer.revision = entry.revision
        if not same:
            if replaced:
                self._wire.refusals.count(REPLACED)
                what = "its data directory is not the previous one: the sessions in the previous one are not available"
                logger.warning("cluster_node_replaced node=%s setting=%s detail=%s", peer.name, DATA_DIR, what)
            before = peer.status
            peer.uid = record.uid
            peer.incarnation = record.incarnation
            self.heartbeats.began_again(peer)
            if other_data:
                for call in self.on_replaced:
                    call(peer)
            self._tell(peer, before)
            self._greet()

    def _greet(self) -> None:
        """Send a heartbeat now, because another node has started."""
        if self.joined:
            self.heartbeats.beat()

    def _own_entry(self, record: MemberRecord, revision: int) -> None:
        ours = record.uid == self._wire.uid and record.incarnation == self._wire.incarnation
        if not self.joined or self.left or revision <= self.own_record.revision:
            return
        if ours and not record.forced_out:
            self.own_record.revision = revision
            return
        self.joined = False
        if self._wire.uid in forced_out_of(record):
            self._wire.refusals.add(FORCED_OUT, self._context.node, "-")
            what, setting = f"{self.own_record.forced_out}; until then it serves its own clients only", DATA_DIR
        else:
            what, setting = f"host {record.host}, pid {record.pid} took the name {record.node}", "node.name"
        self._refused(what, setting)

    def _refused(self, why: str, setting: str) -> None:
        """Note that this node is no longer a member."""
        self._context.alarms.activate("cluster_refused", why, {"setting": setting})
        logger.error("cluster_membership_lost reason=%s", why)
        self._note_refused(why)

    def _note_refused(self, why: str) -> None:
        self._member_nats.outside = why
        if self._disconnected_at is None:
            self._disconnected_at = self._loop.time()
        for call in self.on_refused:
            call()

    @property
    def outside(self) -> str:
        """The reason why this node is not a member and does not become one automatically. Empty if it is a member, or
        keeps trying to become one."""
        return self._member_nats.outside

    @property
    def refused(self) -> str:
        """Implement ``core.cluster.Cluster.refused``."""
        return "" if self.left else self.outside

    async def _read_own_record(self) -> bool:
        """Read this node's record, and return whether it exists. A node without a record is about to write one."""
        if not self.joined:
            return False
        try:
            entry = await self._nats.read(BUCKET, self.key)
        except (Unavailable, NoAnswer):
            return False
        found = self.records.read(entry)
        if entry is None or found is None:
            return False
        self._own_entry(found[1], entry.revision)
        return True

    def _is_current(self) -> None:
        self._told = True
        for call in self.on_current:
            call()
        self.changes.tell()

    def _rejoin(self) -> None:
        """Write this node's record again, because NATS has lost it."""
        self.joined = False
        self._join_later()

    def _remove(self, peer: Peer) -> None:
        del self.peers[peer.name]
        del self._by_key[peer.key]
        self._context.alarms.deactivate(f"node_down/{peer.name}")
        before, peer.status = peer.status, STOPPED
        logger.info("cluster_node_removed node=%s previous=%s", peer.name, before)
        for call in self.on_removed:
            call(peer)
        self.changes.tell()
        self.heartbeats.look_for_partition()

    def _tell(self, peer: Peer, before: str) -> None:
        unheard = peer.may_run and not peer.running
        logger.info(
            "cluster_node node=%s status=%s previous=%s incarnation=%s detail=%s",
            peer.name,
            peer.status,
            before or "-",
            peer.incarnation,
            "not_heard_yet" if unheard else "-",
        )
        for call in self.on_change:
            call(peer, before)
        self.changes.tell()

    # --------------------------------------------------------------- heartbeats

    def _tick(self) -> None:
        late = self.check.tick()
        self._timer = self._loop.call_later(HEARTBEAT, self._tick)
        if late > HEARTBEAT:
            self.heartbeats.was_paused(late)
        self.check.judge(late)
        if self.joined:
            self.check.notice_pause()
            self.heartbeats.beat()
        self._look_whether_isolated()
        self.heartbeats.look()
        due = self.check.may_be_out or self.heartbeats.number % PROBE == 0
        if self._nats.connected and due and (self._probing is None or self._probing.done()):
            self._probing = self._loop.create_task(self.probe())

    async def probe(self) -> None:
        """Write this node's record again, to find out whether the NATS servers have a quorum."""
        await self.check.look()
        if not self.joined:
            return
        alarms = self._context.alarms
        try:
            record = self.own_record
            record.revision = max(record.revision, await record.write(record.revision))
            alarms.deactivate("nats_no_quorum")
        except WrongRevision:
            self.check.may_be_out = True
            alarms.deactivate("nats_no_quorum")
        except (Unavailable, Unknown) as error:
            self._no_quorum(error)

    def _no_quorum(self, error: Exception) -> None:
        if self._nats.connected:
            details = {"setting": "cluster.servers", "error": _text(error)}
            message = "NATS accepts no writes: sessions, users, rules and retained messages cannot change"
            self._context.alarms.activate("nats_no_quorum", message, details)

    # ---------------------------------------------------------- join and leave

    def check_leave(self) -> None:
        """:raises ChangeRefused: this node has left, or cannot leave at present."""
        if self.left:
            raise ChangeRefused(f"{self._context.node} has left the cluster {self._context.name} already")
        self._check_not_refused()
        if not self.joined:
            raise ChangeRefused(f"{self._context.node} is not a member of the cluster {self._context.name} now")

    async def leave(self, for_good: bool = False) -> None:
        """Leave the cluster until ``join``, also after a restart. ``for_good``: no node may join with this data."""
        self.check_leave()
        # Before the write: a node that has not left writes its record again if that was deleted.
        self.identity.left = True
        value = self.own_record.left_behind(for_good)
        certain = True
        while True:
            try:
                await self._nats.write(BUCKET, self.key, value, None, self._context.nonce())
                break
            except (Unavailable, Unknown) as error:
                certain = certain and isinstance(error, Unavailable)
                if certain or not for_good:
                    self.identity.left = False
                    raise ChangeRefused(f"NATS accepts no writes now: {error}") from None
            # It may have left, and could not become a member again.
            await asyncio.sleep(_RETRY)
        self.heartbeats.beat(leaving=True)
        self.joined = False
        if self._watch is not None:
            self._watch.stop()
        for peer in list(self.peers.values()):
            self._remove(peer)
        self._admission.forget_unknown()
        self._set_left(True)
        await self._context.tables.stored()

    async def join(self, node: str) -> None:
        """Join the cluster of ``node``, as in ``core.cluster.Cluster.join``."""
        self._check_not_refused()
        if not self.left:
            raise ChangeRefused(f"{self._context.node} is a member of the cluster {self._context.name} already")
        try:
            # Before any write: the cluster's data will replace this node's.
            await self._check_is_member(node)
            await self._join()
        except (Unavailable, Unknown, NoAnswer, NatsRefused) as error:
            raise ChangeRefused(str(error) or "NATS does not answer") from None
        self._told = False
        self._watch = self._nats.watch(BUCKET, self._entry, self._is_current)
        self._set_left(False)
        # The members are known when the watch reports this node's record.
        await self._watch.reached(self.own_record.revision, self._context.settings.call_timeout)
        await self._context.tables.stored()

    async def _check_is_member(self, node: str) -> None:
        """:raises ChangeRefused: the bucket does not have a record of this node."""
        entry = await self._nats.read(BUCKET, node_key(node))
        found = self.records.read(entry)
        if found is None or found[1].forced_out:
            raise ChangeRefused(
                f"{node} is not a member of the cluster {self._context.name} (settings cluster.servers, cluster.name)"
            )

    async def wait_until_known(self, timeout: float) -> bool:
        """Wait until NATS has reported all nodes; return False after the timeout."""
        return await until(lambda: self.known, self.changes, timeout=timeout)

    async def wait_until_heard(self) -> None:
        """Wait until each known node has been heard, or is certainly Stopped."""

        def unheard() -> list[float]:
            return [peer.unheard_until for peer in self.peers.values() if peer.may_run and not peer.running]

        while times := unheard():
            await until(lambda: not unheard(), self.changes, timeout=max(times) - self._loop.time())

    def check_force_leave(self, node: str) -> Peer:
        """:raises ChangeRefused: this node cannot be removed."""
        peer = self.peers.get(node)
        if peer is None:
            raise ChangeRefused(f"{node} is not a node of the cluster {self._context.name}")
        if peer.running:
            raise ChangeRefused(f"{node} is {peer.status}; stop it, then remove it with force-leave")
        if peer.may_run:
            left = peer.unheard_until - self._loop.time()
            raise ChangeRefused(
                f"{node} may run: it was not heard yet, but this node has only just learned of it; in {left:.0f} s it"
                " is Stopped for certain, or Running"
            )
        return peer

    async def force_leave(self, node: str) -> None:
        """Remove a Stopped node from the cluster, so that it cannot come back with the same data."""
        peer = self.check_force_leave(node)
        value = self._wire.write(msgspec.structs.replace(peer.record, forced_out=True))
        try:
            await self._nats.write(BUCKET, peer.key, value, peer.revision, self._context.nonce())
        except WrongRevision:
            raise ChangeRefused(f"{node} is back") from None
        except (Unavailable, Unknown) as error:
            raise ChangeRefused(f"NATS accepts no writes now: {error}") from None
        if self.peers.get(node) is peer and peer.status == STOPPED:
            self._remove(peer)

    def _set_left(self, left: bool) -> None:
        self.identity.note_left(left)
        self.changes.tell()
        self._note_outside()

    def _note_outside(self) -> None:
        outside = f"{self._context.node} has left the cluster {self._context.name}" if self.left else ""
        self._member_nats.outside = outside

    def _check_not_refused(self) -> None:
        """:raises ChangeRefused: this node was forced out, or another node has its name."""
        if self.refused:
            raise ChangeRefused(self.refused)
