"""Retained messages: the same on all nodes, in the order of bucket ``retained``.

A change takes effect on this node immediately. The bucket decides which change is the last one, and every node follows
it; so does this node, if another node's change came later. A SUBSCRIBE reads this node's store, and does not wait.

A clear follows a message that its client has seen, which another node may not have written to the bucket yet.
Therefore, before this node writes the clear, it asks the other nodes (``settling``). Each answers with a point in its
own time: its changes of the topic up to then are older than the clear, and all others are newer. The acknowledgement of
the clear waits until the order is decided.
"""

import asyncio
import heapq
import logging
from collections.abc import Iterator
from typing import Final

from ...core.cluster import ELECTION
from ...loop.clock import JUMP
from ...mqtt.message import Message
from ..calls import Calls
from ..changes import Changes, until
from ..context import ClusterContext
from ..members.members import Members
from ..nats.interface import (
    NEVER_THERE,
    BucketEntry,
    BucketWrite,
    NoAnswer,
    TooLarge,
    Unavailable,
    Unknown,
    WrongRevision,
    fits,
)
from ..wire import thing_key
from .bucket_life import AGAIN, NEVER, BucketRecord, Version, each_of
from .retained_order import RetainedChange, is_later
from .retained_values import RetainedValues, is_same
from .settling import NOBODY, Moment, Settled, Settling
from .shared_map import AT_ONCE, KnownValue, SharedMap
from .unwritten import Unwritten
from .values import RetainedValue

logger = logging.getLogger(__name__)

_LOOK_AGAIN: Final = 0.1
"""Seconds between two checks of the quorum while the node stops."""
BUCKET: Final = "retained"
WRITTEN_TIMEOUT: Final = 1.0
"""Seconds that another node's clear waits until the bucket has the earlier changes of this node."""
SWEEP: Final = 1.0
TOO_LARGE: Final = "retained_too_large"
_PER_SWEEP: Final = 1000
_SUPERSEDED: Final = 1000
"""Maximum number of replaced messages with a Message Expiry Interval that are remembered."""
_LATER: Final = 60.0
"""Seconds after which a node deletes expired messages from the bucket, if the node that wrote them has not."""


class _Known(KnownValue):
    """The value of a topic in the bucket."""

    __slots__ = ("topic",)

    def __init__(self, topic: str, revision: int) -> None:
        super().__init__(revision)
        self.topic = topic


class ClusterRetained(SharedMap[RetainedChange, _Known, str, tuple[str, RetainedValue]]):
    """Implements ``core.cluster.RetainedChanges`` in a cluster. The values of this node are topics. A value of the
    bucket is the node that wrote it, and the message."""

    def __init__(self, context: ClusterContext, membership: Members, calls: Calls) -> None:
        super().__init__(context, BUCKET, TOO_LARGE)
        self._broker = context.broker
        self._clock = context.clock
        self._values = RetainedValues(context)
        self._unwritten = Unwritten(context.tables, self._life)
        # Deletions by this node that the watch has not reported yet.
        self._deleted: dict[str, int] = {}
        # (when, key, revision, date): messages that will have expired by then
        self._expiring: list[tuple[float, str, int, float]] = []
        self._alone_since: float | None = None
        # That the bucket has all changes, or cannot be written.
        self._written_or_not = Changes()
        context.nats.on_disconnected.append(self._written_or_not.tell)
        self._settling = Settling(context, membership, calls, self._tasks, self._settle)
        context.broker.retaining.changes = self

    # ------------------------------------------------------------- start, stop

    def start(self) -> None:
        """Write missing changes to the bucket, and follow it."""
        self._broker.retaining.changes = self
        joined = self._life.joined
        for bucket, each in self._unwritten.start():
            change = self._change(each.topic, each.base, each.at)
            change.at = each.at
            change.late = change.restored = True
            change.moment = each.moment
            change.base = each.base if joined is not None and joined.id == bucket else 0
            self._unwritten.note(change)
        self._follow()
        self._tasks.run(self._sweep())

    def stop(self) -> None:
        """Stop following the bucket. Retained messages stay."""
        self._broker.retaining.changes = None
        if self.joined:
            self._life.reached(self._last)
        self._unfollow()
        self._settling.stop()
        self._unwritten.stop()
        for change in self._changes.values():
            change.decided(change.count)
        self._changes.clear()

    async def flush(self, timeout: float) -> None:
        """Wait until the bucket has all changes of this node, if it can be written."""
        end = asyncio.get_running_loop().time() + timeout
        while self._changes and self.writable:
            left = end - asyncio.get_running_loop().time()
            if left <= 0.0:
                return
            # The loss of the quorum is noticed by a look only.
            await until(
                lambda: not self._changes or not self.writable,
                self._written_or_not,
                timeout=min(left, _LOOK_AGAIN),
            )

    def forget(self) -> None:
        """Forget the bucket, because this node leaves the cluster and keeps its own retained messages."""
        self._life.forget()
        self._unwritten.forget()

    @property
    def pending(self) -> int:
        """The number of topics with changes that the bucket does not have yet."""
        return len(self._changes)

    # ---------------------------------------------------- changes of this node

    @property
    def writable(self) -> bool:
        return self._nats.connected and self._nats.quorum

    @property
    def takes(self) -> bool:
        if self.writable:
            self._alone_since = None
            return True
        now = asyncio.get_running_loop().time()
        if self._alone_since is None:
            self._alone_since = now
        return now - self._alone_since < ELECTION

    def fits(self, message: Message) -> bool:
        return self._values.fits(message, self._nats.max_payload)

    def undecided(self, topic: str) -> asyncio.Future[None] | None:
        change = self._changes.get(thing_key(topic))
        return None if change is None or not change.waiting else change.decision()

    def changed(self, topic: str) -> asyncio.Future[None] | None:
        # Everything that this node has read of the bucket is from before this change, including deletions.
        base = self._last if self.joined else self._reached()[1]
        moment = self._settling.moment
        at, writable = moment[1] + self._clock.skew, self.writable
        change = self._change(topic, base, at)
        change.at = at
        change.restored = False
        change.moment = moment
        change.asking, change.until = None, {}
        clear = self._broker.retained.get(topic) is None
        if not writable:
            change.late = True
        elif clear and self.joined and self._settling.may_ask:
            # Before links send the clear: a client that receives it may retain a message at another node immediately.
            change.asking = self._settling.ask(change.name, moment[1])
        change.base = max(change.base, base, self._deleted.get(change.name, 0))
        # In the same batch as the message itself: an acknowledged change outlives this process, and is written later.
        self._unwritten.note(change)
        # While the bucket can be written, a retained message is acknowledged when it is on this node's disk.
        return None if writable and not clear else change.decision()

    def _change(self, topic: str, base: int, at: float) -> RetainedChange:
        name = thing_key(topic)
        change = self._changes.get(name)
        if change is None:
            change = self._changes[name] = RetainedChange(name, topic, base, at)
            self._begin(change)
        change.count += 1
        return change

    def _batched(self, change: RetainedChange) -> BucketWrite | None:
        if change.late or not self.joined:
            return None
        message = self._message(change.topic)
        if message is None:
            return None
        data = self._values.encoded(message, None, change.at, change.moment)
        if not fits(data, self._nats.max_payload):
            return None
        change.sent = change.count
        return BucketWrite(change.name, data, self._base(change)[0])

    def _written(self, change: RetainedChange, value: bytes, revision: int) -> None:
        if not self._wrote(change, change.sent, value, revision):
            self._begin(change)

    def _wrote(self, change: RetainedChange, count: int, data: bytes | None, revision: int) -> bool:
        """Note that the bucket has a change as it was at this count; return whether there was no later one."""
        change.base = max(change.base, revision)
        self._has(change, data, revision)
        change.decided(count)
        if change.count != count:
            return False
        self._done(change, revision)
        return True

    def _base(self, change: RetainedChange) -> tuple[int, bool]:
        """Return the revision that a change expects of its key, and whether the key has a value at that revision."""
        known = self._known.get(change.name)
        told = change.told
        revision = NEVER_THERE if known is None else known.revision
        if told is not None and revision < told.revision <= change.base:
            return told.revision, told.value is not None
        return revision, known is not None

    async def _write(self, change: RetainedChange) -> None:
        """Write a change until the bucket has it, or a newer one."""
        while True:
            await self._ready.wait()
            count = change.count
            message = self._message(change.topic)
            data = None if message is None else self._values.encoded(message, None, change.at, change.moment)
            try:
                revision = await self._write_value(change, data)
            except TooLarge:
                self._refuse_too_large()
                self._done(change, 0)
                return
            if revision is None:
                continue
            if revision < 0:
                return
            if self._wrote(change, count, data, revision):
                return

    async def _write_value(self, change: RetainedChange, data: bytes | None) -> int | None:
        """Make one attempt to write a value, and return its revision. Return ``None`` if another attempt is needed, and
        -1 if the bucket has a newer change.

        Each write is a compare-and-set, so that an unanswered attempt cannot be applied after later changes.

        :raises TooLarge: the bucket does not accept such a value.
        """
        clear = data is None and change.at > 0.0
        count, at = change.count, change.at or change.expired
        settled = NOBODY
        if clear:
            skew = change.at - change.moment[1]
            asking, change.asking = change.asking, None
            known = change.until
            settled = await self._settling.elsewhere(change.name, change.moment[1], asking)
            # An earlier answer is more precise: its question was sent before the message of the clear.
            for uid, until in settled.until.items():
                known.setdefault(uid, until)
            settled = Settled(known, settled.complete)
            if change.restored or self._clock.skew - skew > JUMP:  # it is not certain how long ago the clear was
                settled = Settled({}, settled.complete)
        entry: BucketEntry | None = None
        base, is_there = self._base(change)
        try:
            while True:
                if change.late or entry is not None or (clear and not is_there):
                    entry = await self._nats.read(BUCKET, change.name)
                    there = None if entry is None else self._read(entry)
                    base = NEVER_THERE if entry is None else entry.revision
                    is_there = entry is not None and entry.value is not None
                    if entry is not None and entry.revision > change.base:
                        own = None if data is None else self._values.value(data)
                        if there is not None and own is not None and own[1].body == there[1].body:
                            return entry.revision  # an earlier attempt was applied
                        if self._is_later(entry, change, clear, settled.until):
                            if change.count != count:
                                return None  # another change followed: it has seen more than this one
                            self._done(change, 0, entry)
                            return -1
                    # Changes of nodes that were not asked find the deletion, and its date.
                    if data is None and not is_there and settled.complete:
                        return 0 if entry is None else entry.revision
                elif data is None and not is_there:
                    return 0
                try:
                    nonce = self._context.nonce()
                    about = b""
                    if data is None:
                        about = self._values.deletion(at, settled.until)
                    revision = await self._nats.write(BUCKET, change.name, data, base, nonce, self.write_timeout, about)
                except WrongRevision:  # another node's change was written first
                    entry = BucketEntry(change.name, None, base)
                    continue
                change.late = False
                return revision
        except (Unavailable, Unknown, NoAnswer):
            change.late = True
            self._written_or_not.tell()
            await asyncio.sleep(AGAIN)
            return None

    async def _settle(self, asked: list[tuple[str, float]]) -> list[bool]:
        """Write this node's changes of topics that another node is about to clear (``Settling``). Return for each
        whether the bucket has them."""
        found: list[asyncio.Future[None] | None] = []
        for name, latest in asked:
            change = self._changes.get(name)
            # A clear by this node may itself wait for that node. A change that is newer need not be written before.
            if change is None or self._broker.retained.get(change.topic) is None or change.moment[1] > latest:
                found.append(None)
            else:
                found.append(change.decision())
        waiting = [future for future in found if future is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=WRITTEN_TIMEOUT)
        return [self._watch is not None and (future is None or future.done()) for future in found]

    def _has(self, change: RetainedChange, data: bytes | None, revision: int) -> None:
        if data is None:
            self._known.pop(change.name, None)
            if revision > self._last:
                self._deleted[change.name] = revision
        else:
            self._known[change.name] = _Known(change.topic, revision)
            message = self._broker.retained.get(change.topic)
            if message is not None:
                self._will_expire(change.name, message, revision, 0.0)

    def _done(self, change: RetainedChange, revision: int, entry: BucketEntry | None = None) -> None:
        """End a change, because the bucket has it, or the newer one in ``entry``."""
        self._changes.pop(change.name, None)
        self._unwritten.done(change)
        if not self._changes:
            self._written_or_not.tell()
        change.decided(change.count)
        if change.told is not None and (entry is None or entry.revision < change.told.revision):
            entry = change.told
        if entry is None or entry.revision <= revision or not self.joined:
            return
        known = self._known.get(change.name)
        if known is not None and entry.revision < known.revision:
            return
        if entry.value is None:
            self._known.setdefault(change.name, _Known(change.topic, 0))
        # Not by ``_told``: a node that has started knows the revisions of values that it has not applied yet.
        self._apply(entry)

    def _is_later(self, entry: BucketEntry, change: RetainedChange, clear: bool, settled: dict[str, Moment]) -> bool:
        there = self._values.origin(entry, self._topic_of(entry.key))
        return is_later(there, change, self._context.node, self._wire.uid, clear, settled, self._clock.now())

    def _topic_of(self, name: str) -> str | None:
        known = self._known.get(name)
        return None if known is None else known.topic

    # ------------------------------------------------------- changes of others

    def _on_entry(self, entry: BucketEntry) -> None:
        if self._deleted and self._deleted.get(entry.key, entry.revision + 1) <= entry.revision:
            del self._deleted[entry.key]
        super()._on_entry(entry)

    def _leave_bucket(self) -> None:
        logger.warning("cluster_retained_lost detail=%s", "the bucket is read again, and filled if it is new")
        if self.joined:
            self._life.reached(self._last)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._deleted = {}
        self._expiring = []

    def _apply(self, entry: BucketEntry) -> None:
        if entry.value is None:
            known = self._known.pop(entry.key, None)
            if known is not None:
                self._broker.retaining.take(Message(known.topic, b"", retain=True))
            return
        read = self._read(entry)
        if read is None:
            return
        _, value = read
        message = self._values.message(value)
        self._known[entry.key] = _Known(message.topic, entry.revision)
        self._will_expire(entry.key, message, entry.revision, _LATER)
        if self._is_expired(message) or not self._broker.retaining.take(message):
            # The message that was here before is not the one that the others have.
            self._broker.retaining.take(Message(message.topic, b"", retain=True))

    def _read(self, entry: BucketEntry) -> tuple[str, RetainedValue] | None:
        return self._values.read(entry, self._topic_of(entry.key))

    # ------------------------------------------------------------------ expiry

    def _message(self, topic: str) -> Message | None:
        """Return this node's message of a topic, unless it has expired."""
        message = self._broker.retained.get(topic)
        return None if message is None or self._is_expired(message) else message

    def _is_expired(self, message: Message) -> bool:
        deadline = self._broker.retained.deadline(message)
        return deadline is not None and self._clock.now() >= deadline

    def _will_expire(self, name: str, message: Message, revision: int, later: float) -> None:
        deadline = self._broker.retained.deadline(message)
        if deadline is None:
            return
        date = message.timestamp + self._clock.skew
        heapq.heappush(self._expiring, (deadline + later, name, revision, date))
        if len(self._expiring) > 2 * len(self._known) + _SUPERSEDED:
            found = [each for each in self._expiring if self._is_at(each[1], each[2])]
            heapq.heapify(found)
            self._expiring = found

    def _is_at(self, name: str, revision: int) -> bool:
        known = self._known.get(name)
        return known is not None and known.revision == revision

    async def _sweep(self) -> None:
        """Delete expired messages from the bucket, and note how far this node has read."""
        while True:
            await asyncio.sleep(SWEEP)
            _ = self.takes  # it notes since when
            self._unwritten.tidy()
            if not self.joined:
                continue
            self._life.reached(self._last)
            now = self._clock.now()
            for _ in range(_PER_SWEEP):
                if not self._expiring or self._expiring[0][0] > now or not self.writable:
                    break
                _, name, revision, date = heapq.heappop(self._expiring)
                if not self._is_at(name, revision) or name in self._changes:
                    continue
                # As a change, so that a change in the meantime is written after it. Any other message is later.
                self._change(self._known[name].topic, revision, 0.0).expired = date

    # -------------------------------------------------------------------- join

    def _reached(self) -> Version:
        joined = self._life.joined
        return NEVER if joined is None else (joined.generation, joined.reached)

    async def _fill(self, record: BucketRecord, lost: bool) -> None:
        topics = [topic for _, topic in self._own()]
        reached = self._reached() if lost else None
        logger.info("cluster_retained_filled messages=%s lost=%s", len(topics), lost)
        await each_of(topics, lambda topic: self._offer_message(record, topic, reached), AT_ONCE)

    async def _offer_message(self, record: BucketRecord, topic: str, reached: Version | None) -> None:
        name = thing_key(topic)

        def offered(entry: BucketEntry | None) -> tuple[bytes, int] | None:
            message = self._message(topic)
            if message is None:
                return None
            read = None if entry is None else self._read(entry)
            base = 0
            if read is not None:
                assert entry is not None
                if reached is None or read[1].version is None or read[1].version >= reached:
                    return None
                base = entry.revision
            elif entry is not None and entry.value is None and reached is not None:
                return None
            elif reached is not None and reached < record.filled:
                return None  # a node that knew more has cleared it
            return self._values.encoded(message, reached or NEVER), base

        if name not in self._changes:
            await self._offer(name, offered)

    def _own(self) -> Iterator[tuple[str, str]]:
        for topic in list(self._broker.retained.topics()):
            if not topic.startswith("$SYS"):
                yield thing_key(topic), topic

    def _fits(self, own: str) -> bool:
        message = self._broker.retained.get(own)
        return message is None or fits(self._values.encoded(message, None), self._nats.max_payload)

    def _begin_mirror(self, record: BucketRecord) -> None:
        before = self._life.joined
        for change in self._changes.values():
            change.late = True  # changes of the meantime are read first
            if before is None or before.id != record.id:
                change.base, change.told = 0, None  # these are of another bucket

    def _mirror_entry(
        self, record: BucketRecord, entry: BucketEntry, read: tuple[str, RetainedValue], own: str | None
    ) -> None:
        body = read[1].body
        there = self._broker.retained.get(body.topic)
        if entry.key in self._changes or (there is not None and is_same(there, body)):
            self._known[entry.key] = _Known(body.topic, entry.revision)
            if there is not None:
                self._will_expire(entry.key, there, entry.revision, _LATER)
            return
        try:
            self._apply(entry)
        except Exception:  # a fault with one topic must not affect the others
            logger.exception("cluster_retained_not_taken topic=%s", body.topic)

    def _delete_own(self, record: BucketRecord, own: str) -> None:
        self._broker.retaining.take(Message(own, b"", retain=True))

    def _end_mirror(self, first: bool, gone: int) -> None:
        if first and gone:
            logger.warning(
                "cluster_retained_replaced count=%s detail=%s", gone, "the cluster did not have what this node had"
            )
        logger.info("cluster_retained_joined messages=%s generation=%s", len(self._known), self.generation)
