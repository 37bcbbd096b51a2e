"""Takeover: a follower runs a lost node from its copy.

A follower may take over only while the record names it in the in-sync set, because only then its disk has everything
that the origin has acknowledged. First, it refuses the origin's batches for good; then it writes its name into the
record by compare-and-set. After the first step, an origin that still runs can no longer send acknowledgements, and the
second step fails for all other followers. No clock decides, so an unnecessary takeover costs a move, but loses nothing.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from ...core.cluster import RUNNING, CallFailed, ChangeRefused, NodeUnreachable
from ...persistence.log.errors import StoreError
from ...store.set_aside import is_intact
from ..calls import Calls
from ..context import ClusterContext
from ..members.members import Members
from ..members.own_record import ForcedOut
from ..members.peer import Peer
from ..nats.interface import REPLICAS as BUCKET
from ..nats.interface import NatsRefused, NoAnswer, Unavailable, Unknown, WrongRevision
from ..tasks import Tasks
from ..wire import node_key
from .copies import Copies
from .records import ReplicaRecord, ReplicaRecords

logger = logging.getLogger(__name__)

TAKE_OVER: Final = "replicas.take_over"
SETTING: Final = "cluster.failover_after"
UNUSABLE: Final = "replica_unusable"
_LOOK_EVERY: Final = 0.25
_TRY_AGAIN: Final = 1.0
_LONGEST_PAUSE: Final = 10.0
_NEXT_FOLLOWER: Final = 3.0
"""Seconds that a follower waits for each running follower before it in the in-sync set, so that they do not all begin
at the same time."""
NO_COPY: Final = "it has no copy"
_ORDER_TIMEOUT: Final = 60.0


class Hosted(Protocol):
    """A lost node that this process runs from its copy (``broker.hosted_node``)."""

    name: str

    async def start(self) -> None:
        """Become a running member. Raises StoreError and NatsRefused."""

    async def serve_until_done(self) -> bool:
        """Let the node leave when it owes nothing; return whether it has left. Otherwise it was closed, because its
        host stops, or because another node has taken it over from the host."""

    async def stop(self) -> None:
        """Stop the node, because its host stops."""


Host = Callable[[str, Path], Hosted]
"""Returns the node of this name, not started, with the data in this directory."""


class Sight(NamedTuple):
    """An origin as a follower sees it. ``unheard`` is the number of seconds since its last heartbeat. ``orderly``: it
    announced its stop. ``heard_elsewhere``: another node hears it. ``ordered``: an operator has given it up. ``before``
    is the number of running nodes before this follower in the in-sync set. ``holds`` is a lost node whose data is only
    on the origin's disk, or empty."""

    in_sync: bool
    unheard: float
    orderly: bool
    heard_elsewhere: bool
    ordered: bool
    before: int
    holds: str = ""


class _Claim(NamedTuple):
    """A record according to which this node runs an origin. ``in_sync`` is the in-sync set of the record that it
    replaced, or ``None`` if it is not known."""

    record: ReplicaRecord
    in_sync: tuple[str, ...] | None


def is_due(sight: Sight, failover_after: float, restart: float) -> bool:
    """Return whether a follower takes over now. ``restart`` is the number of seconds in which a node that was stopped
    properly may restart, as in an upgrade."""
    if not sight.in_sync:
        return False
    if sight.ordered:
        return True
    if sight.heard_elsewhere or sight.holds:
        return False
    patience = max(failover_after, restart) if sight.orderly else failover_after
    return sight.unheard >= patience + sight.before * _NEXT_FOLLOWER


class Takeovers:
    """The takeovers of this node. ``hosted``: the nodes that it runs, by name."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        calls: Calls,
        records: ReplicaRecords,
        copies: Copies,
        host: Host,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._members = members
        self._calls = calls
        self._records = records
        self._copies = copies
        self._host = host
        self._tasks = Tasks()
        self._under_way: set[str] = set()
        self._ordered: set[str] = set()
        # Names and uids of nodes whose copies here are damaged.
        self._damaged: set[tuple[str, str]] = set()
        # Nodes that are not taken over because of another one's copy, which they have; by name.
        self._withheld: dict[str, str] = {}
        self.hosted: dict[str, Hosted] = {}
        self._stopped = False
        calls.serve(TAKE_OVER, self._take_over_now)

    def start(self) -> None:
        """Start looking for lost nodes, and resume those that this node ran before it stopped."""
        self._tasks.run(self._watch())

    async def stop(self) -> None:
        """Stop all nodes that run here; they restart together with this one."""
        self._stopped = True
        await asyncio.gather(*(each.stop() for each in self.hosted.values()))
        await self._tasks.stop()

    # ------------------------------------------------------------------- questions

    def copies_of(self, node: str) -> list[str]:
        """Return the members that run a node from its copy, or could do so."""
        record = self._records.of(node)
        if record is None or record.ended:
            return []
        found = dict.fromkeys(record.in_sync)
        if record.hosted_by:
            found[record.hosted_by] = None
        known = {self._context.node, *self._members.peers}
        return [each for each in found if each in known and each != node]

    def is_expected(self, node: str) -> bool:
        """Return whether a node that is away will be run from a copy, so that its sessions must not begin again
        elsewhere."""
        return any(self._runs(each) for each in self.copies_of(node))

    def _runs(self, node: str) -> bool:
        peer = self._members.peers.get(node)
        return node == self._context.node or (peer is not None and peer.running)

    def _is_certain_to_run(self, node: str) -> bool:
        """Return whether a node runs, and was heard a moment ago: a node that is only Suspect may be lost, and
        ``cluster.failover_after`` is shorter than the time until it is Stopped."""
        peer = self._members.peers.get(node)
        return node == self._context.node or (peer is not None and peer.status == RUNNING)

    def check_leave(self) -> None:
        """:raises ChangeRefused: this node runs others, and only it can finish what they owe."""
        us, held = self._context.node, self._copies.held()
        records = [each for each in self._records.all() if each.hosted_by == us and not each.ended]
        nodes = sorted(each.node for each in records if each.node in held)
        if nodes:
            names = ", ".join(nodes)
            raise ChangeRefused(f"{us} runs {names} from its copy, and cannot leave yet (taipan-ctl cluster replicas)")

    # ---------------------------------------------------------------------- orders

    async def order(self, node: str, copies_lost: bool, sessions: int) -> bool:
        """Order the takeover of a node that has copies. Return False if it has none, or if all that the record names
        were deleted. ``copies_lost``: an operator knows that the copies on stopped nodes are lost. ``sessions``: how
        many end if no node takes over.

        :raises ChangeRefused: the node has copies, but none can be used now."""
        able = self.copies_of(node)
        if not able:
            return False
        running = [each for each in able if self._runs(each)]
        if not running and not copies_lost:
            raise ChangeRefused(
                f"the data of {node} is on {', '.join(able)}, which is stopped. Start it with its disk. If that disk is"
                f" lost, too, cluster force-leave {node} --copies-lost ends {sessions} sessions, with their messages"
            )
        errors = []
        for each in running:
            error = await self._order_from(each, node)
            if not error:
                return True
            if error != NO_COPY:
                errors.append(f"{each}: {error}")
        if not errors and (copies_lost or running == able):
            logger.error("replicas_deleted node=%s copies=%s setting=node.data_dir", node, ",".join(able))
            return False
        errors = errors or [f"{', '.join(running)}: {NO_COPY}"]
        raise ChangeRefused(f"no node has taken over {node}: {'; '.join(errors)}")

    async def give_up(self, node: str) -> None:
        """Stop waiting for a removed node, whose only copy may be on another removed node. Raises Unavailable, Unknown
        and NoAnswer."""
        record = self._records.of(node)
        if record is None or record.ended:
            return
        entry = await self._context.nats.read(BUCKET, node_key(node))
        found = self._records.decode(entry)
        if entry is not None and found is not None and found.uid == record.uid:
            with contextlib.suppress(WrongRevision):
                await self._write(msgspec.structs.replace(found, in_sync=(), ended=True), entry.revision)

    async def _order_from(self, follower: str, node: str) -> str:
        argument = msgspec.msgpack.encode(node)
        if follower == self._context.node:
            return (await self._take_over_now(self._context.node, argument)).decode()
        try:
            return (await self._calls.call(follower, TAKE_OVER, argument, _ORDER_TIMEOUT)).decode()
        except (NodeUnreachable, CallFailed) as error:
            return str(error)

    async def _take_over_now(self, asking: str, argument: bytes) -> bytes:
        """Take over a node that an operator has given up; return why that is not possible, or an empty string."""
        node = msgspec.msgpack.decode(argument, type=str)
        logger.warning("takeover_ordered node=%s by=%s", node, asking)
        if node in self.hosted:
            return b""
        if node not in self._copies.held():
            return NO_COPY.encode()
        self._ordered.add(node)
        try:
            if node in self._under_way:
                return b"" if await self._until_hosted(node) else b"the takeover under way has failed"
            record = self._records.of(node)
            if record is None or not self._sees(record).in_sync:
                return b"its copy is not complete"
            done = await self._take_over(record)
            return b"" if done else b"another node has taken over, or the record cannot be written"
        finally:
            self._ordered.discard(node)

    async def _until_hosted(self, node: str) -> bool:
        while node in self._under_way and node not in self.hosted:
            await asyncio.sleep(_LOOK_EVERY)
        return node in self.hosted

    # -------------------------------------------------------------------- decision

    def _sees(self, record: ReplicaRecord) -> Sight:
        peer = self._members.peers.get(record.node)
        in_sync = self._context.node in record.in_sync and not record.ended and record.node in self._copies.held()
        if peer is None or peer.uid != record.uid:
            return Sight(False, 0.0, False, False, False, 0)
        last = peer.lost_at if peer.heard < 0 else peer.heard
        return Sight(
            in_sync,
            0.0 if peer.status == RUNNING else asyncio.get_running_loop().time() - last,
            peer.heard < 0 <= peer.stopped_at,
            self._is_heard(peer),
            record.node in self._ordered,
            self._before(record),
            self._holds(record.node),
        )

    def _holds(self, origin: str) -> str:
        """Return a lost node that only ``origin`` can run from its copy, or an empty string if there is none.
        Otherwise, there would be a deadlock: a node that runs ``origin`` may owe messages to the lost one and would
        wait for it. But ``origin``, which has the copy, waits for the node that runs in its place."""
        for record in self._records.all():
            if record.ended or record.node in (origin, self._context.node):
                continue
            runs = self._is_certain_to_run(record.node) and not record.hosted_by
            if not runs and origin in (record.hosted_by, *record.in_sync):
                if not any(self._is_certain_to_run(each) for each in record.in_sync if each != origin):
                    return record.node
        return ""

    def _before(self, record: ReplicaRecord) -> int:
        """Return how many running followers come before this one: those before it in the in-sync set. If the copy here
        is damaged, the result is higher than for any other follower."""
        us = self._context.node
        damaged = (record.node, record.uid) in self._damaged
        first = [each for each in record.in_sync if each != us]
        if us in record.in_sync and not damaged:
            first = first[: record.in_sync.index(us)]
        running = sum(map(self._runs, first))
        return running + 1 if damaged and running else running

    def _is_heard(self, peer: Peer) -> bool:
        """Return whether another running node still hears the origin, according to a heartbeat that it sent after the
        silence began."""
        since = max(peer.heard, peer.lost_at)
        others = self._members.running()
        return any(peer.key in each.hears and each.heard > since + 1.0 for each in others if each is not peer)

    async def _watch(self) -> None:
        while not self._stopped:
            if self._records.current and self._members.joined:
                for record in self._records.all():
                    try:
                        self._look_at(record)
                    except Exception:  # an error with one node must not affect the others
                        logger.exception("takeover_failed node=%s", record.node)
            await asyncio.sleep(_LOOK_EVERY)

    def _look_at(self, record: ReplicaRecord) -> None:
        node = record.node
        if record.ended or self._context.node not in (*record.in_sync, record.hosted_by):
            self._context.alarms.deactivate(f"{UNUSABLE}/{node}")  # no copy here is needed now
        if node == self._context.node or node in self._under_way or node in self.hosted:
            return
        if record.hosted_by == self._context.node:
            if not record.ended:
                self._tasks.run(self._resume(record))
            return
        sight = self._sees(record)
        if is_due(sight, self._settings.failover_after, self._settings.takeover_timeout):
            self._tasks.run(self._take_over(record))
        withheld = sight.holds if sight.in_sync and sight.unheard >= self._settings.failover_after else ""
        if withheld != self._withheld.get(node, ""):
            self._withheld[node] = withheld
            if withheld:
                logger.warning("takeover_withheld node=%s holds=%s setting=%s", node, withheld, SETTING)

    # -------------------------------------------------------------------- takeover

    async def _take_over(self, record: ReplicaRecord) -> bool:
        """Take over a node; return whether it runs here now."""
        node = record.node
        if node in self._under_way:
            return False
        self._under_way.add(node)
        try:
            logger.warning("takeover_begins node=%s incarnation=%s setting=%s", node, record.incarnation, SETTING)
            directory, claim = None, None
            try:
                directory = await self._copies.release(node)
            except StoreError as error:
                self._complain(node, str(error))
            if directory is not None and await self._may_use(record, directory):
                claim = await self._claim(record)
            if directory is None or claim is None:
                self._copies.accept_again(node)
                return False
            return await self._run(claim.record, directory, claim.in_sync)
        finally:
            self._under_way.discard(node)

    async def _may_use(self, record: ReplicaRecord, directory: Path) -> bool:
        """Return whether the copy is complete, or no other follower could take over from a better one."""
        if (record.node, record.uid) in self._damaged or await asyncio.to_thread(is_intact, directory):
            return True
        self._damaged.add((record.node, record.uid))
        self._copies.distrust(record.node)
        logger.error("replica_damaged node=%s directory=%s", record.node, directory)
        return self._before(record) == 0

    async def _claim(self, seen: ReplicaRecord) -> _Claim | None:
        """Claim the origin by writing this node into its record; return ``None`` if this is not allowed. ``seen`` is
        the record that led to this, which may have changed."""
        key = node_key(seen.node)
        in_sync: tuple[str, ...] | None = None
        while not self._stopped:
            try:
                entry = await self._context.nats.read(BUCKET, key)
                record = self._records.decode(entry)
                if entry is None or record is None or record.uid != seen.uid or record.ended:
                    return None
                if record.hosted_by == self._context.node and record.incarnation > seen.incarnation:
                    return _Claim(record, in_sync)  # an attempt that was not answered
                if self._context.node not in record.in_sync or record.incarnation != seen.incarnation:
                    logger.info("takeover_lost node=%s hosted_by=%s", seen.node, record.hosted_by or "-")
                    return None
                made = msgspec.structs.replace(
                    record, incarnation=record.incarnation + 1, in_sync=(), hosted_by=self._context.node
                )
                in_sync = record.in_sync
                await self._write(made, entry.revision)
                return _Claim(made, in_sync)
            except WrongRevision:
                continue
            except Unavailable as error:
                # It was certainly not written. The origin may run and need its follower.
                logger.warning("takeover_waits node=%s error=%s", seen.node, error)
                return None
            except (Unknown, NoAnswer):
                await asyncio.sleep(_TRY_AGAIN)
        return None

    async def _write(self, record: ReplicaRecord, revision: int) -> None:
        value = self._context.wire.write(record)
        await self._context.nats.write(BUCKET, node_key(record.node), value, revision, self._context.nonce())

    async def _resume(self, record: ReplicaRecord) -> None:
        """Resume a node that this one ran before it stopped."""
        self._under_way.add(record.node)
        try:
            try:
                directory = await self._copies.release(record.node)
            except StoreError as error:
                self._complain(record.node, str(error))
                return
            if directory is None or not directory.exists():
                if self._members.known and record.node not in self._members.peers:
                    # It had left, and this node was stopped before the record said so.
                    await self._end(record)
                    return
                self._complain(record.node, "its directory does not exist")
                await asyncio.sleep(_TRY_AGAIN)
                return
            await self._run(record, directory, None)
        finally:
            self._under_way.discard(record.node)

    async def _run(self, record: ReplicaRecord, directory: Path, in_sync: tuple[str, ...] | None) -> bool:
        """Start a node from its copy; return whether it runs. ``in_sync`` names the nodes that have a complete copy,
        too. It is ``None`` if there may be none, because the node has run here before."""
        node = record.node
        said, pause = "", _TRY_AGAIN
        while not self._stopped:
            current = self._records.of(node)
            if current is not None and current.incarnation >= record.incarnation:
                if current.hosted_by != self._context.node or current.uid != record.uid or current.ended:
                    self._copies.accept_again(node)
                    return False  # another node has taken over in the meantime
            hosted = self._host(node, directory)
            try:
                await hosted.start()
            except ForcedOut:
                # It had left for good, or was forced out: it owes nothing.
                await self._end(record)
                return False
            except NatsRefused as error:
                # The node itself has started in the same moment, and is about to learn that it was replaced.
                if str(error) != said:
                    said = str(error)
                    logger.warning("hosted_node_waits node=%s reason=%s", node, said)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            except Exception as error:
                if not isinstance(error, StoreError):
                    logger.exception("hosted_node_failed node=%s", node)
                self._complain(node, str(error) or type(error).__name__)
                if in_sync is None:
                    await asyncio.sleep(_TRY_AGAIN)
                else:
                    await self._give_back(record, in_sync)
                return False
            self.hosted[node] = hosted
            self._context.alarms.deactivate(f"{UNUSABLE}/{node}")
            self._tasks.run(self._serve(hosted, record))
            return True
        return False

    def _complain(self, node: str, why: str) -> None:
        details = {"node": node, "setting": "node.data_dir", "error": why}
        if self._context.alarms.activate(f"{UNUSABLE}/{node}", f"the copy of {node} cannot be used: {why}", details):
            logger.error("replica_unusable node=%s error=%s", node, why)

    async def _give_back(self, record: ReplicaRecord, in_sync: tuple[str, ...]) -> None:
        """Let another node take over, or the origin continue, because the copy here cannot be used. If it is the only
        copy, it stays in the record: it may be complete, on a disk that is only full. Then this node tries again."""
        others = tuple(each for each in in_sync if each != self._context.node)
        made = msgspec.structs.replace(record, in_sync=others or in_sync, hosted_by="")
        await self._until_written(made)
        self._copies.accept_again(record.node)
        if not others:
            await asyncio.sleep(_LONGEST_PAUSE)

    async def _until_written(self, made: ReplicaRecord) -> None:
        """Write the record of a node that this node runs or has run, until the write succeeds."""
        while not self._stopped:
            try:
                entry = await self._context.nats.read(BUCKET, node_key(made.node))
                record = self._records.decode(entry)
                if entry is None or record is None or record.hosted_by != self._context.node:
                    return
                await self._write(made, entry.revision)
                return
            except (WrongRevision, Unavailable, Unknown, NoAnswer):
                await asyncio.sleep(_TRY_AGAIN)

    async def _serve(self, hosted: Hosted, record: ReplicaRecord) -> None:
        done = await hosted.serve_until_done()
        if done:
            await self._end(record)
        elif self._stopped:
            return
        del self.hosted[record.node]
        # What another node has taken over may be copied to this one again.
        self._copies.accept_again(record.node)

    async def _end(self, record: ReplicaRecord) -> None:
        """Write that a node owes nothing and has left. Then its name is free, and the node itself may be waiting for
        that."""
        await self._until_written(msgspec.structs.replace(record, in_sync=(), hosted_by=self._context.node, ended=True))
        self._copies.accept_again(record.node)
