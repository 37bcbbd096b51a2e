"""The record of a node whose log is copied, in bucket ``replicas``, and the place of a copy."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ..context import ClusterContext
from ..nats.interface import REPLICAS as BUCKET
from ..nats.interface import BucketEntry, Watch
from ..wire import MALFORMED, node_key

DIRECTORY: Final = "replicas"
"""The directory of all copies, in the data directory."""
ORIGIN_FILE: Final = "origin"
"""The file in the directory of a copy that names its node."""


class ReplicaRecord(msgspec.Struct, array_like=True, frozen=True):
    """The copies of node ``node``, whose data has this ``uid``. ``in_sync`` names the nodes whose disks have everything
    that it has acknowledged. ``hosted_by`` is the node that has restarted it from its copy, or empty. ``ended`` is set
    when that is complete: the node owes nothing, and has left the cluster for good with this data."""

    node: str
    uid: str
    incarnation: int
    in_sync: tuple[str, ...] = ()
    hosted_by: str = ""
    ended: bool = False


def copy_directory(data_dir: Path, origin: str) -> Path:
    """Return the directory of the copy of ``origin``, with the same files as a node's data directory."""
    return data_dir / DIRECTORY / node_key(origin)


def has_copies(data_dir: Path) -> bool:
    """Return whether this data directory has copies of other nodes' data."""
    return any((data_dir / DIRECTORY).glob(f"*/{ORIGIN_FILE}"))


class ReplicaRecords:
    """The records of all origins, as NATS last reported them. ``current`` is set when all of them are known.
    ``on_change`` is called with the name of an origin whose record was written or deleted."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._records = context.wire.reader(ReplicaRecord)
        self._known: dict[str, tuple[ReplicaRecord, int]] = {}  # by key, with the revision
        self._watch: Watch | None = None
        self.current = False
        self.on_change: list[Callable[[str], None]] = []
        self.on_current: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start watching the bucket."""
        if self._watch is None:
            self._watch = self._context.nats.watch(BUCKET, self._entry, self._is_current)

    def stop(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self.current = False

    def of(self, origin: str) -> ReplicaRecord | None:
        """Return the record of ``origin``, or ``None`` if it has none."""
        found = self._known.get(node_key(origin))
        return None if found is None else found[0]

    def revision(self, origin: str) -> int:
        """Return the revision at which NATS reported the record of ``origin``, or 0 if it has none."""
        found = self._known.get(node_key(origin))
        return 0 if found is None else found[1]

    def all(self) -> list[ReplicaRecord]:
        """Return all records."""
        return [record for record, _ in self._known.values()]

    def decode(self, entry: BucketEntry | None) -> ReplicaRecord | None:
        """Return the record in an entry, or ``None`` if there is none or it is not readable."""
        found = None if entry is None or entry.value is None else self._records.value(entry.value)
        if entry is None or found is None:
            return None
        header, record = found
        if node_key(record.node) != entry.key:
            self._context.refusals.add(MALFORMED, header.node, "-")
            return None
        return record

    def _entry(self, entry: BucketEntry) -> None:
        record = self.decode(entry)
        if record is not None:
            self._known[entry.key] = (record, entry.revision)
            name = record.node
        else:
            gone = self._known.pop(entry.key, None)
            if gone is None:
                return
            name = gone[0].node
        for call in self.on_change:
            call(name)

    def _is_current(self) -> None:
        self.current = True
        for call in self.on_current:
            call()
