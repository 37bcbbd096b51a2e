"""OriginRecord: this node's record in bucket ``replicas``, which lists the nodes that may take over from a copy.
``origin`` decides on its contents. Each change is a compare-and-set, which is tried again until it succeeds, or until
the record shows that another node may have this node's place."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ..context import ClusterContext
from ..members.members import Members
from ..nats.interface import REPLICAS as BUCKET
from ..nats.interface import NoAnswer, Unavailable, Unknown, WrongRevision
from ..tasks import Tasks
from .origin import Follower, OriginCopies
from .records import ReplicaRecord, ReplicaRecords

logger = logging.getLogger(__name__)

_PAUSE: Final = 0.1
"""Seconds between two attempts."""


class OriginRecord:
    """Call ``attach``, then ``start``; ``end`` undoes both. ``on_replaced`` is called with the record according to
    which another node may have taken this node's place."""

    def __init__(
        self,
        context: ClusterContext,
        members: Members,
        records: ReplicaRecords,
        changed: Callable[[], None],
        removed: Callable[[Follower], None],
    ) -> None:
        """``changed`` is called after each attempt to write the record, and when another node may have taken this
        node's place. ``removed`` is called with each follower that the record no longer names."""
        self._context = context
        self._settings = context.settings
        self._members = members
        self._records = records
        self._nats = context.nats
        self._wire = context.wire
        self._changed = changed
        self._removed = removed
        self._revision = 0
        self._write = asyncio.Event()
        self._attached = False
        self._listens = False
        self.on_replaced: list[Callable[[ReplicaRecord], None]] = []
        self._core: OriginCopies
        self._loop: asyncio.AbstractEventLoop

    def attach(self, core: OriginCopies) -> None:
        """Start following the decisions of ``core`` about the record."""
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._attached = True

    def start(self, tasks: Tasks) -> None:
        """Begin to write the record, in one of ``tasks``; this node is a member, or will be."""
        if not self._listens:
            self._listens = True
            self._nats.on_lost.append(self._lost)
            self._records.on_change.append(self._record_changed)
        tasks.run(self._keep())

    def end(self) -> None:
        """Ignore further changes of the record. The caller stops the task."""
        self._attached = False

    def check(self) -> None:
        """Write the record soon, if it has to change."""
        if not self._write.is_set() and (not self._core.known or self._core.next_record() is not None):
            self._write.set()

    async def delete(self) -> None:
        """Delete the record. Raises Unavailable, Unknown or NoAnswer."""
        try:
            await self._nats.write(BUCKET, self._members.key, None, self._revision, self._context.nonce())
        except WrongRevision as error:
            await self._read()  # perhaps it is the record of a host now
            raise Unavailable(f"the record of the copies has changed: {error}") from None
        except Unknown:
            self._core.record_lost()  # this node stays, and its record may be deleted later
            raise

    # -------------------------------------------------------------------- writing

    async def _keep(self) -> None:
        """Write the record whenever it has to change."""
        core = self._core
        told = ""
        while not core.replaced:
            await self._write.wait()
            self._write.clear()
            failed = ""
            try:
                if not core.known:
                    if self._members.joined:
                        await self._take()
                else:
                    target = core.next_record()
                    if target is not None:
                        await self._change(target)
            except Unavailable as error:
                failed = str(error) or type(error).__name__
                core.write_failed(False)
                await asyncio.sleep(_PAUSE)
            except (Unknown, NoAnswer) as error:
                failed = str(error) or type(error).__name__
                core.write_failed(True)
                await asyncio.sleep(_PAUSE)
            if failed and failed != told:
                logger.warning("replica_record_not_written error=%s setting=%s", failed, "cluster.servers")
            told = failed
            if not core.known:
                await asyncio.sleep(_PAUSE)
            self._changed()

    async def _take(self) -> None:
        """Find out whether this node still owns its name, and write its record."""
        entry = await self._nats.read(BUCKET, self._members.key)
        record = self._records.decode(entry)
        in_sync: tuple[str, ...] = ()
        if record is not None:
            if self._is_ours(record):
                in_sync = record.in_sync
            elif not record.ended and (record.hosted_by or record.in_sync):
                self._taken_over(record)
                return
        elif entry is not None and entry.value is not None:
            raise NoAnswer("the record cannot be read")
        revision = 0 if entry is None or entry.value is None else entry.revision
        try:
            self._revision = await self._put(in_sync, revision)
        except WrongRevision:
            return  # read it again
        self._core.record_is(in_sync, self._loop.time())

    async def _change(self, target: tuple[str, ...]) -> None:
        """Write the record with this in-sync set."""
        core = self._core
        now = self._loop.time()
        gone = [core.followers[name] for name in sorted(core.members.difference(target))]
        core.writing(target, now)
        try:
            self._revision = await self._put(target, self._revision)
        except WrongRevision:
            await self._read()
            return
        core.record_is(target, self._loop.time())
        for follower in gone:
            self._removed(follower)
        logger.info("replicas_in_sync nodes=%s", ",".join(target) or "-")

    async def _put(self, in_sync: tuple[str, ...], revision: int) -> int:
        timeout = max(self._settings.replica_timeout, 1.0)
        wire = self._wire
        record = ReplicaRecord(self._context.node, wire.uid, wire.incarnation, in_sync, self._context.hosted_by)
        return await self._nats.write(
            BUCKET, self._members.key, wire.write(record), revision, self._context.nonce(), timeout
        )

    # -------------------------------------------------------------------- reading

    def _is_ours(self, record: ReplicaRecord) -> bool:
        """Return whether a record belongs to this node, with its data, in this process."""
        return record.uid == self._wire.uid and record.hosted_by == self._context.hosted_by

    async def _read(self) -> None:
        """Read the record, which has changed: by a write of this node that was not answered, or by another node."""
        entry = await self._nats.read(BUCKET, self._members.key)
        if entry is not None and entry.revision < self._revision:
            raise NoAnswer("the server has an older record")  # it was elected a moment ago
        record = self._records.decode(entry)
        if record is None:
            self._revision = 0 if entry is None or entry.value is None else entry.revision
            self._core.write_failed(True)
        elif not self._is_ours(record):
            self._taken_over(record)
        else:
            assert entry is not None
            self._revision = entry.revision
            self._core.record_is(record.in_sync, self._loop.time())

    def _record_changed(self, origin: str) -> None:
        if origin != self._context.node or not self._attached or self._core.replaced:
            return
        if self._records.revision(origin) <= self._revision:
            return  # this node has written a later one
        record = self._records.of(origin)
        if record is not None and not record.ended and record.hosted_by != self._context.hosted_by:
            self._taken_over(record)

    def _lost(self, bucket: str) -> None:
        if bucket == BUCKET and self._attached:
            self._revision = 0
            self._core.record_lost()

    def _taken_over(self, record: ReplicaRecord) -> None:
        by = record.hosted_by or ", ".join(record.in_sync)
        self._core.taken_over(f"{by} has this node's data (cluster.replicas): another node may have taken its place")
        self._changed()
        for call in self.on_replaced:
            call(record)
