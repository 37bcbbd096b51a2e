"""Members: the nodes of the cluster, which of them run, and who this node is.

Each node sends a heartbeat every second. Each node decides by its own clock, and by the heartbeats that it hears, which
nodes run. Bucket ``members`` has a record for each node, with its present data and its present start.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from ...core.cluster import RUNNING, STOPPED, SUSPECT, ChangeRefused, Member
from ..context import ClusterContext
from ..nats.interface import (
    BucketEntry,
    NatsRefused,
    NoAnswer,
    NoResponders,
    Unavailable,
    Unknown,
    Watch,
    WrongRevision,
)
from ..wire import (
    FORCED_OUT,
    MALFORMED,
    OLDEST,
    VERSION,
    Header,
    Heartbeat,
    MemberRecord,
    node_key,
    valid_time,
)
from .admission import Admission
from .membership_check import HEARTBEAT, LOOK_AGAIN, MembershipCheck
from .peer import Peer, forced_out_of, has_other_data, is_replaced

logger = logging.getLogger(__name__)

_AGREES: Final = 2 * HEARTBEAT
"""Seconds within which other nodes notice a change of this node."""
BUCKET: Final = "members"
TABLE: Final = "cluster"
_SELF: Final = "node"
_RETRY: Final = 1.0
PROBE: Final = 5
"""Heartbeats between two writes of this node's record."""
_MOST_REFUSED: Final = 16
"""The number of remembered uids of one name that were forced out."""
_REPLACED: Final = "node_replaced"
_DATA_DIR: Final = "node.data_dir"


class Identity(msgspec.Struct, array_like=True, frozen=True):
    """Row of table ``cluster``: the uid of the data, how often it was started, whether it has left the cluster.
    ``refused_uids``: as in ``MemberRecord``, for a bucket that has lost them. ``copied``: other nodes may have copies
    of the data."""

    uid: str
    incarnation: int
    left: bool = False
    refused_uids: tuple[str, ...] = ()
    copied: bool = False


class NameTaken(NatsRefused):
    """Another node of this name runs."""

    def __init__(self, record: MemberRecord) -> None:
        where = f"host {record.host}, pid {record.pid}, started {_date(record.started)}"
        super().__init__(f"another node named {record.node} runs already: {where}", "node.name")
        self.record = record


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _date(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


class Members:
    """``peers``: the other nodes by name, stopped ones too. ``joined``: whether this node has its record.
    ``known``: whether all members are in ``peers``; not before NATS has reported all of them. ``copied``: other nodes
    may have copies of this node's data (``cluster.replicas``), now or from an earlier start.

    ``on_isolated`` is called when ``isolated`` has changed; ``on_refused`` when this node is no member any more, as it
    was forced out or another one has its name.
    ``on_change`` is called after the status or the identity of a node changed, with the status before; ``on_replaced``
    before that, when it has other data than before, both on disk; ``on_removed`` when a node is forced out or has left;
    ``on_joined`` each time this node has become a member; ``on_current`` when all nodes that were known at the start
    are in ``peers``.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        # For becoming a member, which happens before the node is one; everything else uses ``_member_nats``.
        self._member_nats = context.nats
        self._nats = context.nats.raw
        self._wire = context.wire
        self._table = context.tables.open(TABLE, Identity)
        self._heartbeats = context.wire.reader(Heartbeat)
        self._records = context.wire.reader(MemberRecord)
        self.peers: dict[str, Peer] = {}
        self._by_key: dict[str, Peer] = {}
        self._admission = Admission(context, self.peers, lambda: self.left)
        # As in ``MemberRecord``, for this node's name. The uid of other data that had the name until this node joins.
        self._refused_uids: tuple[str, ...] = ()
        self._replaces: MemberRecord | None = None
        self.joined = False
        self.left = False
        self.copied = bool(context.settings.replicas)
        self.replaced = False
        self._told = False
        self.on_isolated: list[Callable[[], None]] = []
        self.on_refused: list[Callable[[], None]] = []
        self.on_change: list[Callable[[Peer, str], None]] = []
        self.on_replaced: list[Callable[[Peer], None]] = []
        self.on_removed: list[Callable[[Peer], None]] = []
        self.on_joined: list[Callable[[], None]] = []
        self.on_current: list[Callable[[], None]] = []
        self.key = node_key(context.node)
        self._subject = context.subject("alive")
        self._revision = 0
        self._number = 0
        self._started = context.clock.wall()
        self._name_heard = False
        self._answering = False
        self.check = MembershipCheck(context.settings, context.nats, self.key, self.peers, self._read_own_record)
        self._disconnected_at: float | None = None
        self._was_isolated = False
        self._watch: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop

    # -------------------------------------------------------------- start, stop

    def identify(self) -> None:
        """Set the uid of the data, and count this start. At level ``memory`` there is no data, and nothing to count."""
        row = self._table.get(_SELF)
        if not self._context.tables.durable:
            self._wire.identify(self._new_uid(), round(self._context.clock.wall() * 1000))
        elif row is None:
            self._wire.identify(self._new_uid(), 1)
        else:
            self._wire.identify(row.uid, row.incarnation + 1)
            self._refused_uids = row.refused_uids
            self.copied = self.copied or row.copied
            self._note_left(row.left)
        self._store_identity()

    def _new_uid(self) -> str:
        return f"{self._context.rng.getrandbits(128):032x}"

    def _store_identity(self) -> None:
        wire = self._wire
        self._table.put(_SELF, Identity(wire.uid, wire.incarnation, self.left, self._refused_uids, self.copied))

    def note_no_copies(self) -> None:
        """Note that no other node may use a copy of this node's data."""
        self.copied = False
        self._store_identity()

    async def start(self) -> None:
        """Become a member if NATS is connected; otherwise as soon as it is.

        :raises NatsRefused: this node is not allowed to.
        """
        self._loop = asyncio.get_running_loop()
        self.check.start()
        self._disconnected_at = None if self._nats.connected else -1e9
        self._nats.on_connected.append(self._connected)
        self._nats.on_disconnected.append(self._disconnected)
        self._nats.on_lost.append(self._lost)
        self._nats.subscribe(self._subject, self._heard)
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
            self._beat(leaving=True)

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
            self._revision = 0
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
        """Note that another node runs in place of this one, with its data: it is not a member until its next start."""
        if self.replaced:
            return
        self.replaced = True
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
        entry = await self._nats.read(BUCKET, self.key)
        found = self._read(entry)
        if found is not None:
            record = found[1]
            self._check_not_forced_out(record)
            # A copy of this data may be older than the last start of its node: then only the date tells these apart.
            ours = (self._wire.uid, self._wire.incarnation, self._started)
            if record.uid and (record.uid, record.incarnation, record.started) != ours:
                await self._supersede(record)
            self._note_refused_uids(record)
            if is_replaced(record, self._record()):
                self._replaces = record
        if not self._answering:
            # Before the write: a node that reads this record finds this node.
            self._answering = True
            self._nats.subscribe(self._context.subject("name", self._context.node), self._asked_for_name)
        try:
            self._revision = await self._write_record(0 if entry is None or entry.value is None else entry.revision)
        except WrongRevision:
            await self._look_again()
        self.joined = True
        self.check.may_be_out = False
        self._member_nats.outside = ""
        self._disconnected_at = None if self._nats.connected else self._loop.time()
        self._look_whether_isolated()
        self._context.alarms.deactivate("cluster_refused")
        self._context.alarms.deactivate("nats_no_quorum")
        logger.info("cluster_joined node=%s incarnation=%s", self._context.node, self._wire.incarnation)
        self._tell_replaces()
        self._beat()
        for call in self.on_joined:
            call()

    async def _look_again(self) -> None:
        """Read this node's record again, because it was written: by this node, in a write that was not answered, or by
        another node of this name."""
        entry = await self._nats.read(BUCKET, self.key)
        found = self._read(entry)
        if entry is None or found is None:
            raise Unknown("the record of this node changes")
        record = found[1]
        self._check_not_forced_out(record)
        if record.uid != self._wire.uid or record.incarnation != self._wire.incarnation:
            raise NameTaken(record)
        self._revision = entry.revision

    def _check_not_forced_out(self, record: MemberRecord) -> None:
        """:raises NatsRefused: this node was forced out, with the data that it has."""
        if self._wire.uid in forced_out_of(record):
            raise NatsRefused(self._forced_out, _DATA_DIR)

    def _note_refused_uids(self, record: MemberRecord) -> None:
        """Note which data may not have this node's name, for its record in this bucket and in a new one."""
        known = dict.fromkeys((*self._refused_uids, *forced_out_of(record)))
        refused = tuple(known)[-_MOST_REFUSED:]
        if refused != self._refused_uids:
            self._refused_uids = refused
            self._store_identity()

    def _tell_replaces(self) -> None:
        """Log that other data had this node's name and was not forced out: a disk may be missing."""
        before, self._replaces = self._replaces, None
        if before is None:
            return
        self._wire.refusals.count(_REPLACED)
        logger.warning(
            "cluster_node_replaced node=%s setting=%s data_dir=%s host=%s started=%s detail=%s",
            self._context.node,
            _DATA_DIR,
            self._context.node_settings.node.data_dir,
            before.host,
            _date(before.started),
            "until now this name belonged to another data directory, started there at that time: its sessions and"
            " their messages are not here. If that directory is the right one, stop this node and start it"
            " with that directory",
        )

    @property
    def _forced_out(self) -> str:
        what = "its data_dir must be a different or an empty one"
        return f"{self._context.node} was forced out of the cluster {self._context.name}: {what}"

    async def _supersede(self, record: MemberRecord) -> None:
        """Replace the record of an earlier start of this node, or of another node of its name.

        :raises NatsRefused: that node runs.
        """
        if await self._name_in_use():
            raise NameTaken(record)
        if record.uid == self._wire.uid and record.incarnation >= self._wire.incarnation:
            self._wire.identify(self._wire.uid, record.incarnation + 1)
            self._store_identity()
            await self._context.tables.written()

    async def _name_in_use(self) -> bool:
        """Return whether another node of this name runs. A node that does not answer may be paused, or its connection
        may be left over from a machine that is off. This node waits for as long as a node has to be heard."""
        self._name_heard = False
        settings = self._context.settings
        question = self._wire.write(Heartbeat(0, (OLDEST, VERSION), []))
        subject = self._context.subject("name", self._context.node)
        try:
            await self._nats.request(subject, question, settings.connect_timeout)
            return True
        except NoResponders:
            return self._name_heard
        except NoAnswer:
            await asyncio.sleep(settings.suspect_after)
            return self._name_heard

    def _asked_for_name(self, data: bytes, reply: str) -> None:
        header = self._wire.header(data)
        if self.replaced:
            return
        if header is not None and (header.uid, header.incarnation) != (self._wire.uid, self._wire.incarnation):
            self._nats.publish(reply, self._wire.write(self._record()))

    def _record(self) -> MemberRecord:
        return MemberRecord(
            self._context.node,
            self._wire.uid,
            self._wire.incarnation,
            socket.gethostname(),
            os.getpid(),
            self._started,
            self._context.version,
            refused_uids=self._refused_uids,
            durable=self._context.tables.durable,
            rack=self._rack,
        )

    @property
    def _rack(self) -> str | None:
        settings = self._context.settings
        return settings.rack if settings.replicas and not self._context.hosted_by else None

    async def _write_record(self, revision: int) -> int:
        value = self._wire.write(self._record())
        return await self._nats.write(BUCKET, self.key, value, revision, self._context.nonce())

    # ------------------------------------------------------------------- others

    def members(self) -> list[Member]:
        """Return all known nodes by name, including this one."""
        wire = self._wire
        found = [
            Member(each.name, each.uid, each.incarnation, each.status, each.since, each.record.version)
            for each in self.peers.values()
        ]
        us = Member(self._context.node, wire.uid, wire.incarnation, RUNNING, self._started, self._context.version)
        return sorted([*found, us], key=lambda member: member.name)

    def running(self) -> list[Peer]:
        """Return the other nodes that are not Stopped."""
        return [each for each in self.peers.values() if each.running]

    def _read(self, entry: BucketEntry | None) -> tuple[Header, MemberRecord] | None:
        """Return the header and the record of an entry."""
        found = None if entry is None or entry.value is None else self._records.value(entry.value)
        if entry is None or found is None:
            return None
        header, record = found
        if node_key(record.node) != entry.key or not valid_time(record.started):
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None
        return found

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
        found = self._read(entry)
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
                self._wire.refusals.count(_REPLACED)
                what = "its data directory is not the previous one: the sessions in the previous one are not available"
                logger.warning("cluster_node_replaced node=%s setting=%s detail=%s", peer.name, _DATA_DIR, what)
            before = peer.status
            peer.uid = record.uid
            peer.incarnation = record.incarnation
            # Until the new node is heard.
            peer.status = STOPPED
            peer.heard = -1e9
            peer.lost_at = self._loop.time()
            peer.stopped_at = peer.lost_at
            peer.unheard_until = peer.lost_at + self._context.settings.stopped_after
            peer.since = self._context.clock.wall()
            if other_data:
                for call in self.on_replaced:
                    call(peer)
            self._tell(peer, before)
            self._greet()

    def _greet(self) -> None:
        """Send a heartbeat now, because another node has started."""
        if self.joined:
            self._beat()

    def _own_entry(self, record: MemberRecord, revision: int) -> None:
        ours = record.uid == self._wire.uid and record.incarnation == self._wire.incarnation
        if not self.joined or self.left or revision <= self._revision:
            return
        if ours and not record.forced_out:
            self._revision = revision
            return
        self.joined = False
        if self._wire.uid in forced_out_of(record):
            self._wire.refusals.add(FORCED_OUT, self._context.node, "-")
            what, setting = f"{self._forced_out}; until then it serves its own clients only", _DATA_DIR
        else:
            what, setting = f"host {record.host}, pid {record.pid} took the name {record.node}", "node.name"
        self._refused(what, setting)

    def _refused(self, why: str, setting: str) -> None:
        """Note that this node was a member and no longer is."""
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
        """Why this node is not a member and will not become one by itself; empty: it is one, or is about to be."""
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
        found = self._read(entry)
        if entry is None or found is None:
            return False
        self._own_entry(found[1], entry.revision)
        return True

    def _is_current(self) -> None:
        self._told = True
        for call in self.on_current:
            call()

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
        self._judge()

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

    # --------------------------------------------------------------- heartbeats

    def _tick(self) -> None:
        late = self.check.tick()
        self._timer = self._loop.call_later(HEARTBEAT, self._tick)
        if late > HEARTBEAT:
            # This process did not run: heartbeats of the meantime are still to be read.
            for peer in self.peers.values():
                peer.heard += late
                peer.unheard_until += late
        self.check.judge(late)
        if self.joined:
            self.check.notice_pause()
            self._beat()
        self._look_whether_isolated()
        self._look()
        due = self.check.may_be_out or self._number % PROBE == 0
        if self._nats.connected and due and (self._probing is None or self._probing.done()):
            self._probing = self._loop.create_task(self._probe())

    def _beat(self, leaving: bool = False) -> None:
        self._number += 1
        if self._nats.connected:
            self.check.beat()
        hears = [each.key for each in self.peers.values() if each.status == RUNNING]
        self._nats.publish(self._subject, self._wire.write(Heartbeat(self._number, (OLDEST, VERSION), hears, leaving)))

    def _heard(self, data: bytes, _: str) -> None:
        header = self._wire.header(data)
        if header is None:
            return
        if header.node == self._context.node:
            if (header.uid, header.incarnation) != (self._wire.uid, self._wire.incarnation):
                self._name_heard = True
            return
        found = self._heartbeats.message(data)
        if found is None:
            return
        peer = self.peers[header.node]
        beat = found[1]
        peer.hears = beat.hears
        peer.heard = -1e9 if beat.leaving else self._loop.time()
        peer.unheard_until = -1e9
        if peer.versions != beat.versions:
            peer.versions = beat.versions
            self._agree()
        if beat.leaving:
            peer.stopped_at = self._loop.time()
        if beat.leaving or peer.status != RUNNING:
            self._set_status(peer, STOPPED if beat.leaving else RUNNING)

    def _agree(self) -> None:
        """Use the newest version of the wire that every node reads."""
        newest = min([VERSION, *(each.versions[1] for each in self.peers.values() if each.running)])
        if newest != self._wire.version and newest >= OLDEST:
            logger.info("cluster_wire_version version=%s", newest)
            self._wire.write_version(newest)

    def _look(self) -> None:
        settings = self._context.settings
        now = self._loop.time()
        for peer in list(self.peers.values()):
            age = now - peer.heard
            if age >= settings.stopped_after:
                status = STOPPED
            else:
                status = SUSPECT if age >= settings.suspect_after else RUNNING
            if status != peer.status:
                self._set_status(peer, status)
        self._judge()

    def _set_status(self, peer: Peer, status: str) -> None:
        before, peer.status = peer.status, status
        peer.since = self._context.clock.wall()
        alarms = self._context.alarms
        if status == STOPPED:
            peer.lost_at = self._loop.time()
            details = {"node": peer.name, "setting": "cluster.stopped_after"}
            alarms.activate(f"node_down/{peer.name}", f"node {peer.name} is stopped or cannot be reached", details)
        elif status == RUNNING:
            alarms.deactivate(f"node_down/{peer.name}")
            self._agree()
        self._tell(peer, before)

    def _judge(self) -> None:
        """Find nodes on the other side of a partition: those that this node does not hear and another one does. A
        heartbeat from about the time of the stop does not count: its sender was about to notice the stop, or this node
        has just started."""
        running = [each for each in self.peers.values() if each.status == RUNNING]
        lost = [each for each in self.peers.values() if each.status == STOPPED]
        cut = sorted(
            each.name
            for each in lost
            if any(each.key in other.hears and other.heard > each.lost_at + _AGREES for other in running)
        )
        if cut:
            details = {"nodes": ", ".join(cut)}
            self._context.alarms.activate("partition", f"other nodes hear {', '.join(cut)}, this one does not", details)
        else:
            self._context.alarms.deactivate("partition")

    async def _probe(self) -> None:
        """Write this node's record again, to find out whether the NATS servers have a quorum."""
        await self.check.look()
        if not self.joined:
            return
        alarms = self._context.alarms
        try:
            self._revision = max(self._revision, await self._write_record(self._revision))
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
        self.left = True
        try:
            await self._nats.write(BUCKET, self.key, self._left_behind(for_good), None, self._context.nonce())
        except (Unavailable, Unknown) as error:
            self.left = False
            raise ChangeRefused(f"NATS accepts no writes now: {error}") from None
        self._beat(leaving=True)
        self.joined = False
        if self._watch is not None:
            self._watch.stop()
        for peer in list(self.peers.values()):
            self._remove(peer)
        self._admission.forget_unknown()
        self._set_left(True)
        await self._context.tables.stored()

    def _left_behind(self, for_good: bool) -> bytes | None:
        """Return the value of a node that has left: none, or the data that may not have its name."""
        refused = (*self._refused_uids, *([self._wire.uid] if for_good else []))[-_MOST_REFUSED:]
        if not refused:
            return None
        # A record without a uid forces out no node, also for nodes of earlier versions.
        nobody = MemberRecord(self._context.node, "", 0, "", 0, 0.0, "", True, refused)
        return self._wire.write(nobody)

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
        await self._watch.reached(self._revision, self._context.settings.call_timeout)
        await self._context.tables.stored()

    async def _check_is_member(self, node: str) -> None:
        """:raises ChangeRefused: the bucket does not have a record of this node."""
        entry = await self._nats.read(BUCKET, node_key(node))
        found = self._read(entry)
        if found is None or found[1].forced_out:
            raise ChangeRefused(
                f"{node} is not a member of the cluster {self._context.name} (settings cluster.servers, cluster.name)"
            )

    async def wait_until_heard(self) -> None:
        """Wait until each known node was heard, or is certain to be Stopped."""
        while any(peer.may_run and not peer.running for peer in self.peers.values()):
            await asyncio.sleep(LOOK_AGAIN)

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
        """Remove a Stopped node from the cluster: it may not come back with the same data."""
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
        self._note_left(left)
        self._store_identity()

    def _note_left(self, left: bool) -> None:
        self.left = left
        self._member_nats.outside = f"{self._context.node} has left the cluster {self._context.name}" if left else ""

    def _check_not_refused(self) -> None:
        """:raises ChangeRefused: this node was forced out, or another node has its name."""
        if self.refused:
            raise ChangeRefused(self.refused)
