"""SharedMap: keys that belong to all nodes, with the same value on each; ``rows`` and ``retained`` are such maps.

A change takes effect on its node immediately, and is written to a bucket by compare-and-set. The bucket decides which
change is the last one, and each node watches the bucket::

    start    the watch reports everything that the bucket has, which is collected (``_seen``)
    join     which bucket is it (``bucket_life``)? The one that this node has read before: continue. A new one: fill it
             with this node's values. One with values of a cluster in which this node was not: save its own first
    mirror   make this node's values those of the bucket
    joined   apply each entry that the watch reports (``_told``); if a change of its key is under way, keep the entry
             for the end of the change
    lost     the bucket no longer exists: start again

A map decides how values merge. ``_write`` handles a bucket that has another value, ``_fill`` offers values to a new
bucket, and ``_apply`` follows an entry of the bucket.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from ..context import ClusterContext
from ..nats.interface import MAX_PAYLOAD, BucketEntry, BucketWrite, TooLarge, Unavailable, Unknown, Watch, WrongRevision
from ..tasks import Tasks
from .bucket_life import RECORD, BucketLife, BucketRecord, Version

AT_ONCE: Final = 64
"""Maximum number of changes that are written individually at the same time."""
_BATCH: Final = 512
_BATCH_BYTES: Final = 4_194_304
"""The limits of changes that are written together; the last change may exceed the number of bytes."""
_BATCHES: Final = 2
"""Maximum number of unanswered batches. Changes in the meantime are added to the next one, so that batches grow with
the load."""


class SharedChange:
    """A key that was changed here. ``told`` is the last entry that the watch has reported for the key in the meantime.
    ``late`` is set if an attempt to write the change has failed."""

    __slots__ = ("late", "name", "told")

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: BucketEntry | None = None
        self.late = False


class KnownValue:
    """The revision of a value in the bucket."""

    __slots__ = ("revision",)

    def __init__(self, revision: int) -> None:
        self.revision = revision


ChangeT = TypeVar("ChangeT", bound=SharedChange)
KnownT = TypeVar("KnownT", bound=KnownValue)
OwnT = TypeVar("OwnT")
ReadT = TypeVar("ReadT")


class SharedMap(ABC, Generic[ChangeT, KnownT, OwnT, ReadT]):
    """The part of a map that does not depend on its values. ``OwnT``: a value of this node. ``ReadT``: a value of the
    bucket.

    ``generation``: the number of buckets so far, including the present one. ``write_timeout``: seconds for a write.
    """

    def __init__(self, context: ClusterContext, bucket: str, too_large: str) -> None:
        """``too_large``: the reason under which values that are too large for the bucket are counted."""
        self._context = context
        self._nats = context.nats
        self._wire = context.wire
        self._bucket = bucket
        self._too_large = too_large
        self._life = BucketLife(context, bucket, f"{bucket}_joined")
        self.generation = 0
        self.write_timeout = 5.0
        self._watch: Watch | None = None
        # The revision of the last entry that the watch has reported.
        self._last = 0
        self._ready = asyncio.Event()
        self._joining: asyncio.Task[None] | None = None
        # By key: entries before the join; values of the bucket after it; changes that the bucket may not have.
        self._seen: dict[str, BucketEntry] = {}
        self._known: dict[str, KnownT] = {}
        self._changes: dict[str, ChangeT] = {}
        self._queue: deque[ChangeT] = deque()
        self._sending = False  # as soon as this iteration ends
        self._batches = 0
        self._alone: deque[ChangeT] = deque()
        self._workers = 0
        self._tasks = Tasks()
        context.nats.on_lost.append(self._on_lost)

    # ------------------------------------------------------------- start, stop

    def _follow(self) -> None:
        """Read the bucket, and follow it."""
        self._last = 0
        self._watch = self._nats.watch(self._bucket, self._on_entry, self._on_current)

    def _unfollow(self) -> None:
        """Stop following the bucket, and writing to it. Values stay as they are."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._tasks.cancel()
        self._begin_anew()
        self._queue.clear()
        self._alone.clear()

    @property
    def joined(self) -> bool:
        """Whether this node has the values of the cluster, and follows the bucket."""
        return self._ready.is_set()

    async def wait_until_joined(self, timeout: float) -> bool:
        """Return whether this node has the values of the cluster before the timeout."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    def _on_lost(self, bucket: str) -> None:
        if bucket == self._bucket and self._watch is not None:
            self._leave_bucket()
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget everything that was read, because that bucket no longer exists."""
        self._ready.clear()
        self._last = 0
        self._seen = {}
        self._known = {}
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None

    # ---------------------------------------------------- changes of this node

    def _begin(self, change: ChangeT) -> None:
        """Write a change as soon as possible, together with others."""
        self._queue.append(change)
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sending:
            self._sending = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send the waiting changes in one batch, which costs one task and one round trip, however many changes it
        has."""
        self._sending = False
        if self._batches >= _BATCHES:
            return
        changes: list[ChangeT] = []
        writes: list[BucketWrite] = []
        size = 0
        while self._queue and len(changes) < _BATCH and size < _BATCH_BYTES:
            change = self._queue.popleft()
            write = self._batched(change)
            if write is None:
                self._begin_alone(change)
            else:
                changes.append(change)
                writes.append(write)
                size += len(write.value)
        if changes:
            self._tasks.run(self._write_batch(changes, writes))
        if self._queue:
            self._send_soon()

    async def _write_batch(self, changes: list[ChangeT], writes: list[BucketWrite]) -> None:
        self._batches += 1
        try:
            revisions = await self._nats.write_many(self._bucket, writes)
        except Unavailable:
            revisions = [None] * len(changes)
        finally:
            self._batches -= 1
        for change, write, revision in zip(changes, writes, revisions, strict=True):
            if revision is None:
                change.late = True
                self._begin_alone(change)
            else:
                self._written(change, write.value, revision)
        if self._queue:
            self._send_soon()

    def _begin_alone(self, change: ChangeT) -> None:
        """Write a change as soon as possible, in a task of its own."""
        self._alone.append(change)
        if self._workers < AT_ONCE:
            self._workers += 1
            self._tasks.run(self._work())

    async def _work(self) -> None:
        try:
            while self._alone:
                await self._write(self._alone.popleft())
        finally:
            self._workers -= 1

    def _refuse_too_large(self) -> None:
        """Log that only this node keeps the value."""
        self._wire.refusals.add(self._too_large, self._wire.node, MAX_PAYLOAD)

    # ------------------------------------------------------- changes of others

    def _on_entry(self, entry: BucketEntry) -> None:
        self._last = entry.revision
        if self.joined:
            self._told(entry)
        else:
            self._seen[entry.key] = entry

    def _on_current(self) -> None:
        if not self.joined and self._joining is None:
            self._joining = self._tasks.run(self._join())

    def _told(self, entry: BucketEntry) -> None:
        """Apply an entry, unless it is known already. If a change of this node is under way, keep the entry for its
        end."""
        if entry.key == RECORD:
            self._record_told(entry)
            return
        known = self._known.get(entry.key)
        if known is not None and entry.revision <= known.revision:
            return
        change = self._changes.get(entry.key)
        if change is None:
            self._apply(entry)
        elif change.told is None or change.told.revision < entry.revision:
            change.told = entry

    # -------------------------------------------------------------------- join

    async def _join(self) -> None:
        """Use the values of the bucket, or write this node's values to it if it is new."""
        try:
            joined = self._life.joined
            if joined is None:
                self._join_first()
            record = await self._life.find()
            replaced = False
            if joined is not None and joined.id == record.id:
                pass
            elif joined is not None:
                await self._fill(record, lost=True)
                await self._life.filled(self._reached())
            elif record.by == self._wire.uid or not self._has_any():
                await self._fill(record, lost=False)
            else:
                await self._save_own()
                replaced = True
            self._mirror(record, replaced)
        finally:
            if self._joining is asyncio.current_task():
                self._joining = None

    def _has_any(self) -> bool:
        return any(entry.value is not None and entry.key != RECORD for entry in self._seen.values())

    async def _offer(self, name: str, offered: Callable[[BucketEntry | None], tuple[bytes | None, int] | None]) -> None:
        """Write one value to a new bucket. ``offered`` is called with the entry that the bucket has, and returns the
        data and the revision to replace, or ``None`` if the bucket's entry is newer."""
        entry = self._seen.get(name)
        while True:
            found = offered(entry)
            if found is None:
                return
            data, base = found
            nonce = self._context.nonce()
            try:
                revision = await self._nats.write(self._bucket, name, data, base, nonce, self.write_timeout)
            except (WrongRevision, Unknown, Unavailable):
                entry = await self._life.read_again(name)
                continue
            except TooLarge:
                self._refuse_too_large()
                return
            known = self._seen.get(name)
            if known is None or known.revision < revision:
                self._seen[name] = BucketEntry(name, data, revision)
            return

    def _mirror(self, record: BucketRecord, replaced: bool) -> None:
        """Make this node's values those of the bucket. Values that are too large for the bucket stay here, except if
        ``replaced`` is set because this node was not in the cluster before."""
        first = self._life.joined is None
        self.generation = record.generation
        seen, self._seen = self._seen, {}
        own = dict(self._own())
        self._begin_mirror(record)
        unreadable: set[str] = set()  # this node keeps its own values of these
        for entry in sorted(seen.values(), key=lambda entry: entry.revision):
            if entry.key == RECORD or entry.value is None:
                continue
            read = self._read(entry)
            if read is None:
                unreadable.add(entry.key)
            else:
                self._mirror_entry(record, entry, read, own.pop(entry.key, None))
        gone = 0
        for name, there in own.items():
            if name not in self._changes and name not in unreadable and (replaced or self._fits(there)):
                gone += 1
                self._delete_own(record, there)
        self._life.join(record, self._last)
        self._end_mirror(first, gone)
        self._ready.set()

    # ---------------------------------------------------------------- of each map

    def _batched(self, change: ChangeT) -> BucketWrite | None:
        """Return the write of a change that can be written together with others, or ``None`` if it has to be written
        individually."""
        return None

    def _written(self, change: ChangeT, value: bytes, revision: int) -> None:
        """Note that the bucket has the value that ``_batched`` returned."""

    @abstractmethod
    async def _write(self, change: ChangeT) -> None:
        """Repeat the write of a change until the bucket has it, or a different one."""

    @abstractmethod
    def _apply(self, entry: BucketEntry) -> None:
        """Make this node's value of the key the one in the entry."""

    def _record_told(self, entry: BucketEntry) -> None:
        """Note that another node has changed the record of the bucket."""

    @abstractmethod
    def _leave_bucket(self) -> None:
        """Note that the bucket was lost, and how far this node has read it."""

    def _join_first(self) -> None:
        """Forget everything that belongs to another cluster."""

    async def _save_own(self) -> None:
        """Save this node's values before others replace them."""

    @abstractmethod
    async def _fill(self, record: BucketRecord, lost: bool) -> None:
        """Write missing values to the bucket (``_offer``). ``lost`` is set if there was an earlier bucket, of which
        other nodes may have read more or less."""

    @abstractmethod
    def _reached(self) -> Version:
        """Return the version up to which this node knows the bucket that was lost."""

    @abstractmethod
    def _own(self) -> Iterable[tuple[str, OwnT]]:
        """Return this node's values, with their keys."""

    @abstractmethod
    def _fits(self, own: OwnT) -> bool:
        """Return whether the bucket accepts this value."""

    @abstractmethod
    def _read(self, entry: BucketEntry) -> ReadT | None:
        """Return the value of an entry, or ``None`` if it is not readable."""

    def _begin_mirror(self, record: BucketRecord) -> None:
        """Prepare the changes that were made in the meantime for this bucket."""

    @abstractmethod
    def _mirror_entry(self, record: BucketRecord, entry: BucketEntry, read: ReadT, own: OwnT | None) -> None:
        """Make this node's value of the key the one in the entry. ``own`` is the value that the node has."""

    @abstractmethod
    def _delete_own(self, record: BucketRecord, own: OwnT) -> None:
        """Delete a value that the bucket does not have."""

    @abstractmethod
    def _end_mirror(self, first: bool, gone: int) -> None:
        """Log the join. ``gone``: how many values were deleted. ``first``: this node was not in this cluster before."""
