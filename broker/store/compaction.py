"""Compaction of the store: the current state is written as new records, then the older batches are deleted."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from ..core.broker import Broker
from ..persistence.durability import Durability
from ..persistence.log import records
from ..persistence.record_mapping import (
    Entry,
    retained_record,
    session_record,
    size_of,
    subject_of,
    subscription_record,
)
from ..persistence.stored_message import StoredMessage
from ..session.session import Session

logger = logging.getLogger(__name__)

COMPACT_ABOVE: Final = 67_108_864
"""Size in bytes below which a log is never compacted. A larger log is compacted when less than half of it is live."""
SLICE_BYTES: Final = 8_388_608
_SLICE_RECORDS: Final = 2000
"""Number of records that one call of ``run_slice`` writes."""


class Compaction:
    """Compaction of the log in slices: ``run_slice`` is called five times a second."""

    def __init__(self, durability: Durability, slice_bytes: int = SLICE_BYTES) -> None:
        self._durability = durability
        self._slice_bytes = slice_bytes
        self._records: Iterator[Entry] | None = None
        # The oldest batch that is not deleted.
        self._from = 0
        self._finishing: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Return whether records remain to be rewritten."""
        return self._records is not None

    def cancel(self) -> None:
        """Stop the compaction: no further batch is deleted."""
        if self._finishing is not None:
            self._finishing.cancel()

    def run_slice(self, broker: Broker) -> None:
        """Start a compaction if less than half of a large log is still needed; continue a compaction that has
        started."""
        commit = self._durability.commit
        if self._finishing is not None and not self._finishing.done():
            return
        if self._records is None and not self._begin(broker):
            return
        if commit.pending_bytes > self._slice_bytes or commit.trouble is not None:
            return
        size = 0
        evicted: list[StoredMessage] = []
        for _ in range(_SLICE_RECORDS):
            entry = next(self._records, None) if self._records is not None else None
            if entry is None:
                self._records = None
                break
            if isinstance(entry, StoredMessage) and entry.message.paged:
                evicted.append(entry)
            else:
                write_again(self._durability, entry)
            size += entry.size if isinstance(entry, StoredMessage) else size_of(entry)
            if size > self._slice_bytes:
                break
        if evicted or self._records is None:
            self._finishing = asyncio.ensure_future(self._finish_slice(evicted, self._records is None))

    def _begin(self, broker: Broker) -> bool:
        log = self._durability.commit.log
        if log.dropping:
            return False  # the file is larger than it will be in the end
        size = log.size_bytes
        if size < COMPACT_ABOVE or size < 2 * live_bytes(self._durability, broker):
            return False
        self._from = log.batch
        self._records = live_records(self._durability, broker, self._from)
        logger.info("store_compaction_started bytes=%s", size)
        return True

    async def _finish_slice(self, evicted: list[StoredMessage], last: bool) -> None:
        """Rewrite evicted messages as well. ``last``: after this slice, newer batches contain the whole state."""
        durability = self._durability
        if evicted:
            await durability.paging.load(evicted, lambda stored: write_again(durability, stored))
        if last:
            await durability.commit.wait_until_durable(durability.commit.barrier, through_trouble=True)
            durability.commit.log.drop_before(self._from)
            logger.info("store_compacted before=%s", self._from)


def live_bytes(durability: Durability, broker: Broker) -> int:
    """Return approximately how many bytes the records of the current state use."""
    recorded = durability.commit.message_bytes + durability.tables.bytes + durability.node.bytes
    small = len(broker.sessions) + broker.router.subscription_count
    return recorded + broker.retained.bytes + broker.router.filter_bytes + 400 * small


def live_records(durability: Durability, broker: Broker, before: int) -> Iterator[Entry]:
    """Yield the current state as records: the contents that a log without its older batches must have.

    The state may change between two records: each shows the state at the time when it is requested. Messages that were
    written in batch ``before`` or later are left out.
    """
    for session in list(broker.sessions.all()):
        if session.durable:
            yield session_record(session, durability.skew())
            yield from _records_of(session)
    for topic in list(broker.retained.topics()):
        message = broker.retained.get(topic)
        if message is not None and not topic.startswith("$SYS"):
            yield retained_record(message, durability.skew())
    for number in list(durability.sessions.messages):
        stored = durability.sessions.messages.get(number)
        if stored is not None and 0 < stored.seq < before and not stored.key:
            yield stored
    for table in (durability.node.wills, durability.node.delayed):
        for number in list(table):
            record = table.get(number)
            if record is not None:
                yield record
    for table_name, key, value in durability.tables.rows():
        yield records.RowStored(table_name, key, value)


def write_again(durability: Durability, record: Entry) -> None:
    """Write the record of an existing object once more. If it is a message, its body must be in memory."""
    commit = durability.commit
    if isinstance(record, StoredMessage):
        if record.held and not record.key and not record.message.paged:
            record.key = commit.write(record)
        return
    subject = subject_of(record)
    if subject is None:
        commit.write(record)
    else:
        commit.write_over(subject, record)


def _records_of(session: Session) -> Iterator[records.Record]:
    for filter in list(session.subscriptions):
        subscription = session.subscriptions.get(filter)
        if subscription is not None:
            yield subscription_record(session, subscription)
    for packet_id in list(session.inflight):
        if packet_id in session.inflight and session.inflight[packet_id] is None:
            yield records.Released(session.number, packet_id, 0, "")
    for packet_id in list(session.awaiting_rel or ()):
        at = (session.awaiting_rel or {}).get(packet_id)
        if at is not None:
            yield records.Received(session.number, packet_id, at)
