"""Retained messages: the same on all nodes, in the order of bucket ``retained``.

A change counts on this node at once. Whether it is the last one the bucket decides, and every node follows it; so does
this one, where another node's came later. A SUBSCRIBE reads this node's store and waits for nobody.

A clear follows what its client has seen, which another node may not have given to the bucket yet. So before it is
written, the other nodes are asked to give the bucket what they have of the topic (``SETTLE``); its acknowledgement
waits until it is decided.
"""

import asyncio
import heapq
import logging
from collections import deque
from typing import Final

import msgspec

from ..config import ZoneSettings
from ..core.cluster import ELECTION, RUNNING, CallFailed, NodeUnreachable
from ..mqtt.message import Message
from ..mqtt.properties import memory_size
from ..persistence.log import records
from ..persistence.record_mapping import retained_record
from ..session.limits import Limits
from ..store.restored import restored_client, restored_message
from .bucket_life import AGAIN, NEVER, RECORD, BucketLife, BucketRecord, Version, each_of
from .calls import Calls
from .context import ClusterContext
from .members import Members
from .nats import (
    MAX_PAYLOAD,
    NEVER_THERE,
    BucketEntry,
    NoAnswer,
    TooLarge,
    Unavailable,
    Unknown,
    Watch,
    WrongRevision,
    fits,
)
from .tasks import Tasks
from .wire import MALFORMED, thing_key, valid_body, valid_time

logger = logging.getLogger(__name__)

BUCKET: Final = "retained"
SETTLE: Final = "retained.settle"
SETTLE_TIMEOUT: Final = 2.0
"""Seconds that other nodes have to write what a clear follows."""
PROMPT: Final = 1.0
"""Seconds within which a clear counts as later than all that is in the bucket."""
SWEEP: Final = 1.0
TOO_LARGE: Final = "retained_too_large"
_BESIDE: Final = 2048
"""Bytes that a message certainly has room for beside topic, payload, properties and names."""
_AT_ONCE: Final = 64
"""Writes that are under way."""
_PER_SWEEP: Final = 1000
_SUPERSEDED: Final = 1000
"""Messages with a Message Expiry Interval that are remembered though others have taken their places."""
_LATER: Final = 60.0
"""Seconds after which a node takes out of the bucket what has expired, where the one that wrote it has not."""


class RetainedValue(msgspec.Struct, array_like=True, frozen=True):
    """A retained message as the bucket has it, its time being a date. ``mountpoint``: its publisher's. ``version``: it
    was written by a node that had read a bucket before this one, which was lost, up to there. ``at``: the date when it
    was retained, which is later than its own where it was delayed, or copied; 0: that is not known."""

    body: records.StoredBody
    mountpoint: str
    version: Version | None = None
    at: float = 0.0


class Deletion(msgspec.Struct, array_like=True, frozen=True):
    """What is written with a deletion: the date of the clear, or of the message that has expired. ``settled``: nodes
    that had given the bucket all they had of the topic; what else they have is later."""

    at: float
    settled: tuple[str, ...] = ()


class Unwritten(msgspec.Struct, array_like=True, frozen=True):
    """Row: what this node has of a topic is a change that the bucket may not have yet. ``base``: how far this node had
    read (bucket and revision), ``at``: the date of it."""

    bucket: str
    base: int
    at: float


class _Change:
    """A topic whose retained message was changed here. ``base``: how far this node had read when it was; ``at``: the
    date; 0: it has expired, and ``expired`` is its own date. ``count`` grows with each change; ``late``: an attempt to
    write it has failed. ``told``: what the watch has told meanwhile. ``restored``: it is of before this node's start,
    which may have forgotten that it was written, and others after it. ``since``: of the last change, by the loop's
    clock. ``waiting``: who waits until the bucket has the change of that ``count``, or a later one."""

    __slots__ = ("at", "base", "count", "expired", "late", "name", "restored", "since", "told", "topic", "waiting")

    def __init__(self, name: str, topic: str, base: int, at: float) -> None:
        self.name = name
        self.topic = topic
        self.base = base
        self.at = at
        self.expired = 0.0
        self.count = 0
        self.late = False
        self.restored = False
        self.told: BucketEntry | None = None
        self.since = 0.0
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []

    def decision(self) -> asyncio.Future[None]:
        """Done when the bucket has this change, as it is now, or something later."""
        if not self.waiting or self.waiting[-1][0] != self.count:
            self.waiting.append((self.count, asyncio.get_running_loop().create_future()))
        return self.waiting[-1][1]

    def decided(self, count: int) -> None:
        while self.waiting and self.waiting[0][0] <= count:
            future = self.waiting.pop(0)[1]
            if not future.done():
                future.set_result(None)


class _Known:
    """What the bucket has of a topic."""

    __slots__ = ("revision", "topic")

    def __init__(self, topic: str, revision: int) -> None:
        self.topic = topic
        self.revision = revision


class ClusterRetained:
    """``core.cluster.RetainedChanges`` of a node of a cluster.

    ``write_timeout``: seconds for a write. ``generation``: how many buckets there were, the present one included.
    """

    def __init__(self, context: ClusterContext, membership: Members, calls: Calls) -> None:
        self._context = context
        self._peers = membership.peers
        self._calls = calls
        self._nats = context.nats
        self._wire = context.wire
        self._broker = context.broker
        self._clock = context.clock
        self._values = context.wire.reader(RetainedValue)
        self._deletion = context.wire.reader(Deletion)
        self._life = BucketLife(context, BUCKET, "retained_joined")
        self._rows = context.tables.open("retained_unwritten", Unwritten)
        zones = context.node_settings.listener_zones
        self._zone = zones[0] if zones else ZoneSettings()
        self.write_timeout = 5.0
        self.generation = 0
        self._watch: Watch | None = None
        self._last = 0
        self._ready = asyncio.Event()
        self._seen: dict[str, BucketEntry] = {}
        self._known: dict[str, _Known] = {}
        # Deletions by this node that the watch has not told yet.
        self._deleted: dict[str, int] = {}
        self._changes: dict[str, _Change] = {}
        self._queue: deque[_Change] = deque()
        self._workers = 0
        # (when, key, revision, date): what has expired by then
        self._expiring: list[tuple[float, str, int, float]] = []
        self._tasks = Tasks()
        self._joining: asyncio.Task[None] | None = None
        # Topics (their keys) that the others are asked about together, and their answer.
        self._asked: list[str] = []
        self._asking: asyncio.Task[tuple[tuple[str, ...], bool]] | None = None
        self._alone_since: float | None = None
        calls.serve(SETTLE, self._settle)
        context.nats.on_lost.append(self._on_lost)
        context.broker.retaining.changes = self

    # ------------------------------------------------------------- start, stop

    def start(self) -> None:
        """Give the bucket what it does not have yet, and follow it."""
        self._broker.retaining.changes = self
        for topic, row in list(self._rows.items()):
            change = self._change(topic, row.base, row.at)
            change.late = change.restored = True
            joined = self._life.joined
            if joined is None or joined.id != row.bucket:
                change.base = 0
        self._last = 0
        self._watch = self._nats.watch(BUCKET, self._on_entry, self._on_current)
        self._tasks.run(self._sweep())

    def stop(self) -> None:
        """Follow no more. What is retained stays."""
        self._broker.retaining.changes = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self.joined:
            self._life.reached(self._last)
        self._tasks.cancel()
        self._asking = None
        self._asked = []
        self._begin_anew()
        for change in self._changes.values():
            change.decided(change.count)
        self._changes.clear()
        self._queue.clear()

    async def flush(self, timeout: float) -> None:
        """Until the bucket has what was changed here, where it can be reached."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while self._changes and self.writable and loop.time() < end:
            await asyncio.sleep(0.01)

    def forget(self) -> None:
        """This node leaves the cluster: what it has is its own from now on."""
        self._life.forget()
        for topic, _ in list(self._rows.items()):
            self._rows.remove(topic)

    @property
    def joined(self) -> bool:
        """Whether this node has what the cluster has, and follows it."""
        return self._ready.is_set()

    @property
    def pending(self) -> int:
        """Topics whose change the bucket does not have yet."""
        return len(self._changes)

    async def wait_until_joined(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    # ---------------------------------------------------------- changes of ours

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
        most = self._nats.max_payload
        size = message.payload_size + 4 * len(message.topic) + _BESIDE
        if message.has_properties:
            size += memory_size(message.properties)
        publisher = message.publisher
        if publisher is not None:
            size += 4 * (len(publisher.client_id) + len(publisher.username or "") + len(publisher.mountpoint))
        if not most or size <= most:
            return True
        return fits(self._encoded(message, None, self._clock.wall()), most)

    def undecided(self, topic: str) -> asyncio.Future[None] | None:
        change = self._changes.get(thing_key(topic))
        return None if change is None or not change.waiting else change.decision()

    def changed(self, topic: str) -> asyncio.Future[None] | None:
        name = thing_key(topic)
        joined = self._life.joined
        # What this node has read of the bucket was there before this change, deletions included.
        base = self._last if self.joined else 0 if joined is None else joined.reached
        change = self._change(topic, base, self._clock.wall())
        change.at = self._clock.wall()
        change.restored = False
        change.since = asyncio.get_running_loop().time()
        if not self.writable:
            change.late = True
        change.base = max(change.base, base, self._deleted.get(name, 0))
        # In the same batch as the message itself: what is acknowledged outlives this process, and is written then.
        self._rows.put(topic, Unwritten("" if joined is None else joined.id, change.base, change.at))
        # Who retains gets the acknowledgement for what is on this node's disk, while the others can be told.
        return None if self.writable and self._broker.retained.get(topic) is not None else change.decision()

    def _change(self, topic: str, base: int, at: float) -> _Change:
        name = thing_key(topic)
        change = self._changes.get(name)
        if change is None:
            change = self._changes[name] = _Change(name, topic, base, at)
            self._queue.append(change)
            if self._workers < _AT_ONCE:
                self._workers += 1
                self._tasks.run(self._work())
        change.count += 1
        return change

    async def _work(self) -> None:
        try:
            while self._queue:
                await self._write(self._queue.popleft())
        finally:
            self._workers -= 1

    async def _write(self, change: _Change) -> None:
        """Until the bucket has it, or something newer."""
        while True:
            await self._ready.wait()
            count = change.count
            message = self._broker.retained.get(change.topic)
            if message is not None and self._broker.retained.expired(message, self._clock.now()):
                message = None
            data = None if message is None else self._encoded(message, None, change.at)
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
            change.base = max(change.base, revision)
            self._has(change, data, revision)
            change.decided(count)
            if change.count == count:
                self._done(change, revision)
                return

    async def _write_value(self, change: _Change, data: bytes | None) -> int | None:
        """Its revision; ``None``: it is to be tried again; -1: the bucket has something newer.

        Always by compare-and-set, so that an attempt without an answer cannot come after what follows it.

        :raises TooLarge: the bucket takes no such value.
        """
        clear = data is None and change.at > 0.0
        settled: tuple[str, ...] = ()
        all_settled = True
        if clear:
            settled, all_settled = await self._settle_elsewhere(change.name)
        known = self._known.get(change.name)
        entry: BucketEntry | None = None
        base = NEVER_THERE if known is None else known.revision
        is_there = known is not None
        told = change.told
        if told is not None and base < told.revision <= change.base:
            base, is_there = told.revision, told.value is not None
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
                            return entry.revision  # it was written after all
                        if self._newer(entry, change, clear):
                            self._done(change, 0, entry)
                            return -1
                    # What nodes that were not asked have of it finds the deletion, and its date.
                    if data is None and not is_there and all_settled:
                        return 0 if entry is None else entry.revision
                elif data is None and not is_there:
                    return 0
                try:
                    nonce = self._context.nonce()
                    about = b""
                    if data is None:
                        about = self._wire.write(Deletion(change.at or change.expired, settled))
                    revision = await self._nats.write(BUCKET, change.name, data, base, nonce, self.write_timeout, about)
                except WrongRevision:  # another node's came before this one
                    entry = BucketEntry(change.name, None, base)
                    continue
                change.late = False
                return revision
        except (Unavailable, Unknown, NoAnswer):
            change.late = True
            await asyncio.sleep(AGAIN)
            return None

    def _refuse_too_large(self) -> None:
        """The message is kept by this node alone."""
        self._wire.refusals.add(TOO_LARGE, self._context.node, MAX_PAYLOAD)

    def _dated(self, entry: BucketEntry) -> tuple[float, str]:
        """The date of what is there, and the node that wrote it. A deletion by other means has none."""
        if entry.value is None:
            deleted = self._deletion.value(entry.about) if entry.about else None
            return (0.0, "") if deleted is None or not valid_time(deleted[1].at) else (deleted[1].at, deleted[0].node)
        found = self._read(entry)
        return (0.0, "") if found is None else (found[1].at or found[1].body.timestamp, found[0])

    def _newer(self, entry: BucketEntry, change: _Change, clear: bool) -> bool:
        """Whether what another node has written, before it knew of this change or this node of that, is to stay. What
        this one has written since its start was before. So is what a clear finds that was not held up, and a deletion
        for which this node had given the bucket all it had."""
        node = self._context.node
        there = self._dated(entry)
        if not change.restored:
            if there[1] == node:
                return False
            if clear and not change.late and asyncio.get_running_loop().time() - change.since < PROMPT:
                return False
            deleted = self._deletion.value(entry.about) if entry.value is None and entry.about else None
            if deleted is not None and node in deleted[1].settled:
                return False
        return there > (change.at, node)

    async def _settle_elsewhere(self, name: str) -> tuple[tuple[str, ...], bool]:
        """Until the other nodes have given the bucket what they have of a topic: those that have, and whether these are
        all that there are."""
        self._asked.append(name)
        asking = self._asking
        if asking is None:
            asking = self._asking = self._tasks.run(self._ask_others())
        return await asyncio.shield(asking)

    async def _ask_others(self) -> tuple[tuple[str, ...], bool]:
        await asyncio.sleep(0)  # all clears of this iteration together
        self._asking = None
        names, self._asked = self._asked, []
        question = msgspec.msgpack.encode(names)
        peers = list(self._peers.values())
        answers = await asyncio.gather(*(self._ask(peer.name, question) for peer in peers if peer.status == RUNNING))
        settled = tuple(node for node in answers if node)
        return settled, len(settled) == len(peers)

    async def _ask(self, node: str, question: bytes) -> str:
        """Its name; empty: it has not answered, or could not."""
        try:
            await self._calls.call(node, SETTLE, question, SETTLE_TIMEOUT)
        except (NodeUnreachable, CallFailed) as error:
            logger.debug("cluster_retained_not_settled node=%s error=%s", node, error)
            return ""
        return node

    async def _settle(self, node: str, argument: bytes) -> bytes:
        """Another node is about to clear these."""
        names = self._calls.decoded(node, argument, list[str])
        if self._watch is None:
            raise CallFailed("it has not started yet")
        waiting: list[asyncio.Future[None]] = []
        for name in names:
            change = self._changes.get(name)
            # A clear of its own may wait for that node.
            if change is not None and self._broker.retained.get(change.topic) is not None:
                waiting.append(change.decision())
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=SETTLE_TIMEOUT)
            if late:
                raise CallFailed("it cannot be written now")
        return b""

    def _has(self, change: _Change, data: bytes | None, revision: int) -> None:
        if data is None:
            self._known.pop(change.name, None)
            if revision > self._last:
                self._deleted[change.name] = revision
        else:
            self._known[change.name] = _Known(change.topic, revision)
            message = self._broker.retained.get(change.topic)
            if message is not None:
                self._will_expire(change.name, message, revision, 0.0)

    def _done(self, change: _Change, revision: int, entry: BucketEntry | None = None) -> None:
        """The bucket has it, or (``entry``) something newer."""
        self._changes.pop(change.name, None)
        self._rows.remove(change.topic)
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
        # Not by ``_told``: a node that has started knows the revision of what it has not taken yet.
        self._apply(entry)

    def _encoded(self, message: Message, version: Version | None, at: float = 0.0) -> bytes:
        if not message.id:
            message.id = self._context.nonce().upper()
        record = retained_record(message, self._clock.skew)
        return self._wire.write(RetainedValue(record.body, record.mountpoint, version, at))

    # ------------------------------------------------------- changes of others

    def _on_entry(self, entry: BucketEntry) -> None:
        self._last = entry.revision
        if self._deleted.get(entry.key, entry.revision + 1) <= entry.revision:
            del self._deleted[entry.key]
        if self.joined:
            self._told(entry)
        else:
            self._seen[entry.key] = entry

    def _on_current(self) -> None:
        if not self.joined and self._joining is None:
            self._joining = self._tasks.run(self._join())

    def _on_lost(self, bucket: str) -> None:
        if bucket == BUCKET and self._watch is not None:
            logger.warning("cluster_retained_lost detail=%s", "the bucket is read again, and filled if it is new")
            if self.joined:
                self._life.reached(self._last)
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._ready.clear()
        self._last = 0
        self._seen = {}
        self._known = {}
        self._deleted = {}
        self._expiring = []
        if self._joining is not None:
            self._joining.cancel()
            self._joining = None

    def _told(self, entry: BucketEntry) -> None:
        if entry.key == RECORD:
            return
        known = self._known.get(entry.key)
        if known is not None and entry.revision <= known.revision:
            return
        change = self._changes.get(entry.key)
        if change is None:
            self._apply(entry)
        elif change.told is None or change.told.revision < entry.revision:
            change.told = entry

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
        message = self._message(value)
        self._known[entry.key] = _Known(message.topic, entry.revision)
        self._will_expire(entry.key, message, entry.revision, _LATER)
        if self._broker.retained.expired(message, self._clock.now()) or not self._broker.retaining.take(message):
            # What was there before is not what the others have.
            self._broker.retaining.take(Message(message.topic, b"", retain=True))

    def _read(self, entry: BucketEntry) -> tuple[str, RetainedValue] | None:
        """The node that wrote it, and what."""
        read = None if entry.value is None or entry.key == RECORD else self._values.value(entry.value)
        if read is None:
            return None
        header, value = read
        topic = value.body.topic
        valid = valid_body(value.body) and valid_time(value.at)
        if thing_key(topic) != entry.key or topic.startswith("$SYS") or not valid:
            self._wire.refusals.add(MALFORMED, header.node, "-")
            return None
        return header.node, value

    def _message(self, value: RetainedValue) -> Message:
        body = value.body
        publisher = None
        if body.client_id is not None:
            zone = self._zone
            publisher = restored_client(
                self._broker, lambda _: (zone, Limits()), body.client_id, body.username, body.proved
            )
            publisher.mountpoint = value.mountpoint
        known = self._broker.retained.get(body.topic)
        topic = body.topic if known is None else known.topic
        skew = self._clock.skew
        if skew:
            body = msgspec.structs.replace(body, timestamp=body.timestamp - skew)
        return restored_message(body, topic, publisher, self._clock.now())

    # ------------------------------------------------------------------ expiry

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
        """Take out of the bucket what has expired, and note how far this node has read."""
        while True:
            await asyncio.sleep(SWEEP)
            _ = self.takes  # it notes since when
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
                # As a change, so that one that comes meanwhile is written after it. Any other message is later.
                self._change(self._known[name].topic, revision, 0.0).expired = date

    # -------------------------------------------------------------------- join

    async def _join(self) -> None:
        try:
            joined = self._life.joined
            record = await self._life.find()
            replaced = False
            if joined is not None and joined.id == record.id:
                pass
            elif joined is not None:
                reached = (joined.generation, joined.reached)
                await self._fill(record, reached)
                await self._life.filled(reached)
            elif record.by == self._wire.uid or not self._has_any():
                await self._fill(record, None)
            else:
                replaced = True
            self._mirror(record, joined is None, replaced)
        finally:
            if self._joining is asyncio.current_task():
                self._joining = None

    def _has_any(self) -> bool:
        return any(entry.value is not None and entry.key != RECORD for entry in self._seen.values())

    async def _fill(self, record: BucketRecord, reached: Version | None) -> None:
        """Give the bucket what it lacks. ``reached``: how far this node had read the one that was lost."""
        topics = [topic for topic in self._broker.retained.topics() if not topic.startswith("$SYS")]
        logger.info("cluster_retained_filled messages=%s lost=%s", len(topics), reached is not None)
        await each_of(topics, lambda topic: self._offer(record, topic, reached), _AT_ONCE)

    async def _offer(self, record: BucketRecord, topic: str, reached: Version | None) -> None:
        name = thing_key(topic)
        if name in self._changes:
            return
        entry = self._seen.get(name)
        while True:
            message = self._broker.retained.get(topic)
            if message is None or self._broker.retained.expired(message, self._clock.now()):
                return
            read = None if entry is None else self._read(entry)
            base = 0
            if read is not None:
                assert entry is not None
                if reached is None or read[1].version is None or read[1].version >= reached:
                    return
                base = entry.revision
            elif entry is not None and entry.value is None and reached is not None:
                return
            elif reached is not None and reached < record.filled:
                return  # who knew more has cleared it
            data = self._encoded(message, reached or NEVER)
            try:
                revision = await self._nats.write(BUCKET, name, data, base, self._context.nonce(), self.write_timeout)
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

    def _mirror(self, record: BucketRecord, first: bool, replaced: bool) -> None:
        """From now on this node has what the bucket has, and what is too large for it. ``replaced``: the latter not
        either, as the node was not of this cluster."""
        broker = self._broker
        self.generation = record.generation
        seen, self._seen = self._seen, {}
        own = {topic for topic in broker.retained.topics() if not topic.startswith("$SYS")}
        unreadable: set[str] = set()
        before = self._life.joined
        for change in self._changes.values():
            change.late = True  # what came meanwhile is read first
            if before is None or before.id != record.id:
                change.base, change.told = 0, None  # of another bucket
        self._ready.set()
        for entry in sorted(seen.values(), key=lambda entry: entry.revision):
            read = self._read(entry)
            if read is None:
                if entry.value is not None and entry.key != RECORD:
                    unreadable.add(entry.key)
                continue
            body = read[1].body
            own.discard(body.topic)
            there = broker.retained.get(body.topic)
            if entry.key in self._changes or (there is not None and _same(there, body)):
                self._known[entry.key] = _Known(body.topic, entry.revision)
                if there is not None:
                    self._will_expire(entry.key, there, entry.revision, _LATER)
                continue
            try:
                self._apply(entry)
            except Exception:  # a fault with one of them keeps no node from the others
                logger.exception("cluster_retained_not_taken topic=%s", body.topic)
        gone = 0
        for topic in own:
            name = thing_key(topic)
            if name in self._changes or name in unreadable:
                continue
            message = broker.retained.get(topic)
            if replaced or message is None or fits(self._encoded(message, None), self._nats.max_payload):
                gone += 1
                broker.retaining.take(Message(topic, b"", retain=True))
        if first and gone:
            logger.warning(
                "cluster_retained_replaced count=%s detail=%s", gone, "the cluster did not have what this node had"
            )
        self._life.join(record, self._last)
        logger.info("cluster_retained_joined messages=%s generation=%s", len(self._known), record.generation)


def _same(message: Message, body: records.StoredBody) -> bool:
    return message.id == body.id and message.payload == body.payload and message.qos == body.qos
