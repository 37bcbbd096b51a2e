"""OwnRecord: this node's record in bucket ``members``, which makes the node a member under its name.

Before a node writes its record, it asks whether another node with its name is running::

    b@h starts, and the bucket has a record of b@h from another start
      "does b@h run?"  ──►  an answer: NameTaken; this node does not start
                            no such subscriber, and no heartbeat of b@h: the record is written
"""

import asyncio
import logging
import os
import socket
from datetime import UTC, datetime
from typing import Final

from ..context import ClusterContext
from ..nats.interface import BucketEntry, NatsRefused, NoAnswer, NoResponders, Unknown, WrongRevision
from ..wire import MALFORMED, OLDEST, VERSION, Header, Heartbeat, MemberRecord, node_key, valid_time
from .identity import NodeIdentity
from .peer import forced_out_of, is_replaced

logger = logging.getLogger(__name__)

BUCKET: Final = "members"
DATA_DIR: Final = "node.data_dir"
REPLACED: Final = "node_replaced"


class NameTaken(NatsRefused):
    """Another node of this name runs."""

    def __init__(self, record: MemberRecord) -> None:
        where = f"host {record.host}, pid {record.pid}, started {_date(record.started)}"
        super().__init__(f"another node named {record.node} runs already: {where}", "node.name")
        self.record = record


def _date(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")


class ForcedOut(NatsRefused):
    """This node's data must no longer use its name: it was forced out, or has left for good."""


class MemberRecords:
    """Reads the records of bucket ``members``, of this node and of others."""

    def __init__(self, context: ClusterContext) -> None:
        self._records = context.wire.reader(MemberRecord)
        self._refusals = context.wire.refusals

    def read(self, entry: BucketEntry | None) -> tuple[Header, MemberRecord] | None:
        """Return the header and the record of an entry; ``None`` if it has none. An invalid record is counted."""
        found = None if entry is None or entry.value is None else self._records.value(entry.value)
        if entry is None or found is None:
            return None
        header, record = found
        if node_key(record.node) != entry.key or not valid_time(record.started):
            self._refusals.add(MALFORMED, header.node, "-")
            return None
        return found


class OwnRecord:
    """The record of this node. ``Members`` calls ``join`` to become a member, and ``write`` to check that NATS accepts
    writes.

    ``key`` is the record's key, and ``revision`` that of the last record that was written or read, or 0 if there is
    none. ``started`` is the date of this start. ``silent`` is set when another node runs with this node's data: this
    one no longer answers for its name. ``name_heard`` is set when a heartbeat of another node with this name arrives.
    """

    def __init__(self, context: ClusterContext, identity: NodeIdentity, records: MemberRecords) -> None:
        self._context = context
        # For becoming a member, which happens before ``MemberNats`` lets this node write.
        self._nats = context.nats.raw
        self._wire = context.wire
        self._identity = identity
        self._records = records
        self.key = node_key(context.node)
        self.started = context.clock.wall()
        self.revision = 0
        self.silent = False
        self.name_heard = False
        self._answering = False
        # The record of other data that had the name until this node joins.
        self._replaces: MemberRecord | None = None

    async def join(self) -> None:
        """Write the record, if no other node of this name runs.

        :raises NameTaken: another node of this name runs.
        :raises ForcedOut: this node was forced out, with the data that it has.
        :raises Unavailable: the record was certainly not written.
        :raises Unknown: it may be written, now or later.
        """
        entry = await self._nats.read(BUCKET, self.key)
        found = self._records.read(entry)
        if found is not None:
            record = found[1]
            self._check_not_forced_out(record)
            if record.uid and not self._is_ours(record):
                await self._supersede(record)
            self._identity.refuse(forced_out_of(record))
            if is_replaced(record, self.value()):
                self._replaces = record
        if not self._answering:
            # Before the write: a node that reads this record finds this node.
            self._answering = True
            self._nats.subscribe(self._context.subject("name", self._context.node), self._asked_for_name)
        try:
            self.revision = await self.write(0 if entry is None or entry.value is None else entry.revision)
        except WrongRevision:
            await self._look_again()

    async def write(self, revision: int) -> int:
        """Replace the record that has this revision, and return the new revision."""
        value = self._wire.write(self.value())
        return await self._nats.write(BUCKET, self.key, value, revision, self._context.nonce())

    def value(self) -> MemberRecord:
        """Return the record as it should be."""
        return MemberRecord(
            self._context.node,
            self._wire.uid,
            self._wire.incarnation,
            socket.gethostname(),
            os.getpid(),
            self.started,
            self._context.version,
            refused_uids=self._identity.refused_uids,
            durable=self._context.tables.durable,
            rack=self._rack,
        )

    @property
    def _rack(self) -> str | None:
        settings = self._context.settings
        return settings.rack if settings.replicas and not self._context.hosted_by else None

    def left_behind(self, for_good: bool) -> bytes | None:
        """Return the part of the record that remains when this node leaves: the uids that must not use its name, or
        nothing. ``for_good``: this includes the uid of this node."""
        refused = self._identity.refused_with((self._wire.uid,) if for_good else ())
        if not refused:
            return None
        # A record without a uid forces out no node, also for nodes of earlier versions.
        nobody = MemberRecord(self._context.node, "", 0, "", 0, 0.0, "", True, refused)
        return self._wire.write(nobody)

    @property
    def forced_out(self) -> str:
        """Return the message for a node that was forced out."""
        what = "its data_dir must be a different or an empty one"
        return f"{self._context.node} was forced out of the cluster {self._context.name}: {what}"

    def _check_not_forced_out(self, record: MemberRecord) -> None:
        """:raises ForcedOut: this node was forced out, with the data that it has."""
        if self._wire.uid in forced_out_of(record):
            raise ForcedOut(self.forced_out, DATA_DIR)

    async def _look_again(self) -> None:
        """Read the record again, because it has changed: by an unanswered write of this node, or by another node with
        this name."""
        entry = await self._nats.read(BUCKET, self.key)
        found = self._records.read(entry)
        if entry is None or found is None:
            raise Unknown("the record of this node was deleted or cannot be read")
        record = found[1]
        self._check_not_forced_out(record)
        if not self._is_ours(record):
            raise NameTaken(record)
        self.revision = entry.revision

    def _is_ours(self, record: MemberRecord) -> bool:
        """Return whether this start of the node has written the record. A copy of its data may be older than its last
        start: then only the date distinguishes the two starts."""
        ours = (self._wire.uid, self._wire.incarnation, self.started)
        return (record.uid, record.incarnation, record.started) == ours

    def log_replaced(self) -> None:
        """Log that other data used this node's name and was not forced out: a disk may be missing."""
        before, self._replaces = self._replaces, None
        if before is None:
            return
        self._wire.refusals.count(REPLACED)
        logger.warning(
            "cluster_node_replaced node=%s setting=%s data_dir=%s host=%s started=%s detail=%s",
            self._context.node,
            DATA_DIR,
            self._context.node_settings.node.data_dir,
            before.host,
            _date(before.started),
            "until now this name belonged to another data directory, started there at that time: its sessions and"
            " their messages are not here. If that directory is the right one, stop this node and start it"
            " with that directory",
        )

    # ------------------------------------------------------------------- the name

    async def _supersede(self, record: MemberRecord) -> None:
        """Prepare to replace the record of an earlier start of this node, or of another node with its name.

        :raises NameTaken: that node runs.
        """
        if record.uid == self._wire.uid and record.incarnation >= self._wire.incarnation:
            # Before the question, which another start with the same incarnation would not answer.
            await self._identity.follow(record.incarnation)
        if await self._name_in_use():
            raise NameTaken(record)

    async def _name_in_use(self) -> bool:
        """Return whether another node of this name runs. If a node does not answer, it may be paused, or its connection
        may be left over from a machine that is off. Then this node waits for a heartbeat, for as long as a running node
        may be silent."""
        self.name_heard = False
        settings = self._context.settings
        question = self._wire.write(Heartbeat(0, (OLDEST, VERSION), []))
        subject = self._context.subject("name", self._context.node)
        try:
            await self._nats.request(subject, question, settings.connect_timeout)
            return True
        except NoResponders:
            return self.name_heard
        except NoAnswer:
            await asyncio.sleep(settings.suspect_after)
            return self.name_heard

    def _asked_for_name(self, data: bytes, reply: str) -> None:
        header = self._wire.header(data)
        if self.silent:
            return
        if header is not None and (header.uid, header.incarnation) != (self._wire.uid, self._wire.incarnation):
            self._nats.publish(reply, self._wire.write(self.value()))
