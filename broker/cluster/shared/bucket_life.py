"""BucketLife: identifies the bucket that a node has read. If the NATS servers lose a bucket, the nodes notice that the
new one is a different bucket, and fill it again."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import msgspec

from ..context import ClusterContext
from ..nats.interface import BucketEntry, NoAnswer, Unavailable, Unknown, WrongRevision

RECORD: Final = "bucket"
"""The key of ``BucketRecord``; all other keys are 32 hexadecimal digits."""

AGAIN: Final = 0.5
"""Seconds between two attempts."""

Each = TypeVar("Each")

Version = tuple[int, int]
"""The generation of a bucket and a revision in it: the greater version is newer."""

NEVER: Final[Version] = (0, 0)


class BucketRecord(msgspec.Struct, array_like=True, frozen=True):
    """The record that identifies a bucket. ``generation`` grows with each bucket that was lost, and ``by`` is the uid
    of the node that created it. ``filled``: the nodes that filled the bucket had read the previous one up to this
    version."""

    id: str
    generation: int
    by: str
    filled: Version = NEVER


class Joined(msgspec.Struct, array_like=True, frozen=True):
    """The bucket that this node's data comes from. The node knows all its changes up to revision ``reached``."""

    cluster: str
    id: str
    generation: int
    reached: int = 0


class BucketLife:
    """This node's knowledge of one bucket and of earlier ones with the same name, which is stored in ``table``."""

    def __init__(self, context: ClusterContext, bucket: str, table: str) -> None:
        self._context = context
        self._nats = context.nats
        self._bucket = bucket
        self._records = context.wire.reader(BucketRecord)
        self._table = context.tables.open(table, Joined)

    @property
    def joined(self) -> Joined | None:
        """The bucket of this cluster that this node read last, or ``None`` if the node was in another cluster, or in
        none."""
        joined = self._table.get(RECORD)
        return joined if joined is not None and joined.cluster == self._context.name else None

    def join(self, record: BucketRecord, reached: int = 0) -> None:
        """Note that from now on, this node's data comes from this bucket."""
        self._table.put(RECORD, Joined(self._context.name, record.id, record.generation, reached))

    def reached(self, revision: int) -> None:
        """Note that this node knows all changes up to this revision."""
        joined = self.joined
        if joined is not None and joined.reached != revision:
            self._table.put(RECORD, msgspec.structs.replace(joined, reached=revision))

    def forget(self) -> None:
        self._table.remove(RECORD)

    def decode(self, value: bytes | None) -> BucketRecord | None:
        read = None if value is None else self._records.value(value)
        return None if read is None else read[1]

    async def find(self) -> BucketRecord:
        """Return the record of the bucket. A new bucket gets its record from the first node."""
        joined = self.joined
        while True:
            try:
                entry = await self._nats.read(self._bucket, RECORD)
                record = None if entry is None else self.decode(entry.value)
                if entry is None or record is None:
                    generation = 1 if joined is None else joined.generation + 1
                    record = BucketRecord(self._context.nonce(), generation, self._context.wire.uid)
                    await self._write(record, 0)
                elif joined is not None and joined.id != record.id and joined.generation >= record.generation:
                    record = msgspec.structs.replace(record, generation=joined.generation + 1)
                    await self._write(record, entry.revision)
                return record
            except (Unavailable, Unknown, NoAnswer, WrongRevision):
                await asyncio.sleep(AGAIN)

    async def filled(self, version: Version) -> None:
        """Note in the record that the bucket has the data up to this version."""
        while True:
            try:
                entry = await self._nats.read(self._bucket, RECORD)
                record = None if entry is None else self.decode(entry.value)
                if entry is None or record is None or record.filled >= version:
                    return
                await self._write(msgspec.structs.replace(record, filled=version), entry.revision)
                return
            except (Unavailable, Unknown, NoAnswer, WrongRevision):
                await asyncio.sleep(AGAIN)

    async def read_again(self, key: str) -> BucketEntry | None:
        """Return the bucket's entry for a key, as soon as it can be read."""
        while True:
            await asyncio.sleep(AGAIN)
            try:
                return await self._nats.read(self._bucket, key)
            except (Unavailable, NoAnswer):
                continue

    async def _write(self, record: BucketRecord, revision: int) -> None:
        await self._nats.write(self._bucket, RECORD, self._context.wire.write(record), revision, self._context.nonce())


async def each_of(every: Iterable[Each], call: Callable[[Each], Awaitable[None]], at_a_time: int) -> None:
    """Wait until ``call`` has been made with each item."""
    left = iter(every)

    async def some() -> None:
        for each in left:
            await call(each)

    tasks = [asyncio.ensure_future(some()) for _ in range(at_a_time)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
