"""Durability: what must be on disk before it is said, and who waits for it.

The publish path only adds to the open batch. At the end of a loop turn, if the writer is idle, the batch is cut and
written as one; while it is being written the next one fills. What was held back for a batch goes out when it is on
disk::

    publish ──► hold() ──► open batch ──cut──► writer thread ──► on_durable(seq) ──► held PUBACKs go out
                              │
                              └── every holder acknowledged before the cut: the message never needs the disk
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ..loop.budget import LoopBudget
from ..mqtt.message import Delivery, Message
from ..session.session import Session
from ..session.subscription import Subscription
from .delivery_records import PendingDeliveryRecords
from .log import records
from .log.batch import first_offset
from .log.write_ahead_log import WriteAheadLog
from .paging import Paging
from .record_mapping import (
    OVERHEAD,
    Entry,
    body_of,
    message_record,
    octets_of,
    retained_record,
    session_record,
    subscription_record,
)
from .stored_message import StoredMessage
from .tables import Tables

logger = logging.getLogger(__name__)

COMPACT_ABOVE: Final = 67_108_864
"""Bytes a log may have whatever is live in it; beyond, it is compacted where less than half of it is live."""

_OF_A_DELIVERY: Final = 24
_OF_A_HOLDER: Final = 16


class Held(Protocol):
    """Somebody with packets that wait for a batch: ``channel.outbound_writer``."""

    def release(self, upto: int) -> bool:
        """Send what waits for batches up to this one; whether anything still waits."""

    def abort(self) -> None:
        """Close its connection at once."""


class Durability:
    """The node's memory beyond its process. One for the node, absent at level ``memory``."""

    def __init__(
        self,
        journal: WriteAheadLog,
        wake: Callable[[], None],
        queue_memory: int = 0,
        now: Callable[[], float] = time.time,
        tables: Tables | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        turn: LoopBudget | None = None,
    ) -> None:
        """``wake`` asks for an ``end_of_turn``, soon. ``queue_memory``: bytes of queued bodies in memory, 0: any.

        ``later``: see ``PendingDeliveryRecords``. ``turn`` is told at once when too much waits.
        """
        self.journal = journal
        self.tables = tables or Tables()
        # What makes dates of times; only dates are written down (``loop.clock``).
        self.skew: Callable[[], float] = lambda: 0.0
        self.paging = Paging(journal, queue_memory, now)
        self.queued = self.paging.queued
        self.fetch = self.paging.fetch
        # Octets of the records of ``messages`` that are on disk or on their way.
        self._stored_octets = 0
        self._wake = wake
        self._turn = turn or LoopBudget()
        # What the open batch will say, in order; the holders of a message are written as they are at the cut.
        self._open: dict[int, Entry] = {}
        self._next_key = 1
        self.messages: dict[int, StoredMessage] = {}
        self._next_message = 1
        self._next_session = 1
        self.wills: dict[int, records.WillStored] = {}
        self.delayed: dict[int, records.DelayedStored] = {}
        self._next_will = 1
        self._waiting: dict[Held, None] = {}
        # (batch, who waits for it, whether trouble ends the wait)
        self._futures: list[tuple[int, asyncio.Future[bool], bool]] = []
        # Where the open batch speaks of a session, a retained topic, a will. Said again, it is said there, so that what
        # is true fits in memory however long the disk takes nothing.
        self._places: dict[int | str, int] = {}
        # Of these, what no older batch knows of: should it go again, nothing of it needs the disk.
        self._news: set[int | str] = set()
        self.delivery_records = PendingDeliveryRecords(wake, later)
        # About how many bytes the open batch takes; and those of them that say what is held no longer.
        self._octets = 0
        self._octets_done = 0
        # Sessions that nobody may be told of yet: number -> batch; and clients who may not be told that theirs is over.
        self._unconfirmed: dict[int, int] = {}
        self._ending: dict[str, int] = {}
        # Why nothing can be written at present; None: all is well.
        self.trouble: str | None = None
        self._recovered: asyncio.Future[None] | None = None
        # Grows with every fact; whoever must wait for what it caused compares it before and after.
        self.written = 0

    # ------------------------------------------------------------- the batch

    def _write(self, entry: Entry, octets: int = 0) -> int:
        if not self._open:
            self._wake()
        key = self._next_key
        self._next_key = key + 1
        self._open[key] = entry
        self._octets += octets or octets_of(entry)
        if self.congested:
            self._crowd()
        self.written += 1
        return key

    def _write_over(self, about: int | str, entry: records._Record) -> None:
        """Write what takes the place of anything that the open batch says about the same."""
        key = self._places.get(about)
        if key is None:
            self._places[about] = self._write(entry)
            return
        self._octets += octets_of(entry) - octets_of(self._open[key])
        self._open[key] = entry
        if self.congested:
            self._crowd()
        self.written += 1

    def _crowd(self) -> None:
        """Too much waits: no publisher is read from, from this moment on. A slow disk ends no turn of its own, and so
        one has to be asked for, to find out when that is over."""
        if self.trouble is None:
            self._turn.congested = True
        self._wake()

    def _write_new(self, about: int | str, entry: records._Record) -> None:
        """The same of what was not there before."""
        if about not in self._places:
            self._news.add(about)
        self._write_over(about, entry)

    def _write_gone(self, about: int | str, entry: records._Record) -> None:
        """Write that something is gone, or take back what the open batch says about it."""
        if about not in self._news:
            self._write_over(about, entry)
            return
        self._news.discard(about)
        self._octets -= octets_of(self._open.pop(self._places.pop(about)))
        self.written += 1

    @property
    def batch(self) -> int:
        """The number of the open batch."""
        return self.journal.batch

    def end_of_turn(self) -> None:
        """Cut the batch if the writer is free and somebody waits for it, or could, and let the writer's thread run."""
        self._next_batch()
        self.journal.give_way()

    def _next_batch(self) -> None:
        if self.journal.idle:
            waited_for = bool(self._waiting or self._futures)
            if self.delivery_records and (self._open or waited_for or self.delivery_records.due):
                for fate in self.delivery_records.take():
                    self._write(fate)
            if self._open:
                self._cut()
            elif waited_for and not self.delivery_records:
                # All that was to be written has been taken back: nobody waits for an empty batch.
                self._release(self.journal.batch)

    def _cut(self) -> None:
        seq = self.journal.batch
        encode = records.encode
        offset = first_offset(len(self._open))
        encoded: list[bytes] = []
        skew = self.skew()
        for entry in self._open.values():
            if isinstance(entry, StoredMessage):
                data = encode(message_record(entry, skew))
                size = len(data)
                self._stored_octets += size - entry.size
                entry.seq = seq
                entry.offset = offset
                entry.size = size
                entry.key = 0
                offset += size
            else:
                data = encode(entry)
                offset += len(data)
            encoded.append(data)
        self.journal.append(encoded, self.tables.changed_access())
        self._open.clear()
        self._places.clear()
        self._news.clear()
        self._octets = self._octets_done = 0

    def on_durable(self, seq: int) -> None:
        """The writer's word: everything up to ``seq`` is on disk."""
        if self._open:
            self._next_batch()  # first of all, so that the disk has work while this batch's acknowledgements go out
        self._release(seq)
        self.paging.relieve()
        if not self.journal.idle or self._open or self.delivery_records.due or self._waiting or self._futures:
            self._wake()

    def _release(self, upto: int) -> None:
        if self._waiting:
            # What goes out may cause more that waits.
            waiting, self._waiting = self._waiting, {}
            for held in waiting:
                # An empty batch that is not empty any more is waited for as any other.
                if (upto == self.journal.batch and self._open) or self._released_of(held, upto):
                    self._waiting[held] = None
        if upto == self.journal.batch and self._open:
            return
        if self._futures:
            left = []
            for entry in self._futures:
                seq, future, _ = entry
                if seq > upto:
                    left.append(entry)
                elif not future.done():
                    future.set_result(True)
            self._futures = left
        if self._unconfirmed:
            self._unconfirmed = {number: seq for number, seq in self._unconfirmed.items() if seq > upto}
        if self._ending:
            self._ending = {client_id: seq for client_id, seq in self._ending.items() if seq > upto}

    @staticmethod
    def _released_of(held: Held, upto: int) -> bool:
        try:
            return held.release(upto)
        except Exception:  # a fault of ours costs this client its connection, not the others their acknowledgements
            logger.exception("release_failed")
            held.abort()
            return False

    def due(self, mark: int) -> int:
        """The batch to wait for, for who noted ``written`` before and has caused something since; 0: none."""
        return self.journal.batch if self.written != mark else 0

    @property
    def barrier(self) -> int:
        """The batch that must be on disk for all of what was written to be; 0: all of it is."""
        if self._open or self.delivery_records:
            return self.journal.batch
        last = self.journal.batch - 1
        return last if last > self.journal.durable else 0

    def hold_back(self, held: Held) -> None:
        """Tell ``held`` when batches are on disk, until nothing of it waits any more."""
        self._waiting[held] = None

    async def wait(self, seq: int) -> None:
        """Until batch ``seq`` is on disk, however long that takes."""
        if seq > self.journal.durable:
            await self._wait(seq, False)

    async def stored(self, seq: int) -> bool:
        """Until batch ``seq`` is on disk (True) or there is trouble (False)."""
        if seq <= self.journal.durable:
            return True
        return self.trouble is None and await self._wait(seq, True)

    def _wait(self, seq: int, impatient: bool) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._futures.append((seq, future, impatient))
        return future

    # ---------------------------------------------------------------- trouble

    def on_trouble(self, trouble: str | None) -> None:
        """The writer's word: nothing can be written, or (None) it can again."""
        self.trouble = trouble
        if trouble is None:
            if self._recovered is not None:
                self._recovered.set_result(None)
                self._recovered = None
        else:
            for _, future, impatient in self._futures:
                if impatient and not future.done():
                    future.set_result(False)
            self._futures = [waiting for waiting in self._futures if not waiting[2]]
        self._wake()

    async def recovered(self, at_most: float) -> None:
        """Until the trouble is over, but no longer than ``at_most`` seconds."""
        if self.trouble is not None:
            if self._recovered is None:
                self._recovered = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._recovered], timeout=at_most)

    @property
    def congested(self) -> bool:
        """More waits for the disk than should: what adds to it is not to be read until it is written."""
        return self.pending_octets > self.journal.max_pending

    @property
    def pending_octets(self) -> int:
        """About how many bytes wait for the disk."""
        return self.journal.pending_octets + self._octets

    @property
    def held_octets(self) -> int:
        """The same, but for what says that deliveries are held no longer: who sheds some must not shed more for it."""
        return self.pending_octets - self._octets_done

    @property
    def pending(self) -> int:
        """Records that are not on disk yet."""
        return len(self._open) + len(self.delivery_records) + self.journal.pending

    def unconfirmed(self, session: Session) -> int:
        """The batch that must be on disk before anybody is told that there is this session; 0: it is."""
        return self._unconfirmed.get(session.number, 0)

    def ending(self, client_id: str) -> int:
        """The batch that must be on disk before anybody is told that this client's last session is over; 0: it is."""
        return self._ending.get(client_id, 0)

    # --------------------------------------------------------------- sessions

    def session_opened(self, session: Session) -> None:
        """A session that outlives its connection begins, or its client is back."""
        if session.number == 0:
            session.number = self._next_session
            self._next_session += 1
            session.journal = self
            self._unconfirmed[session.number] = self.journal.batch
        self._write_over(session.number, session_record(session, self.skew()))

    def session_left(self, session: Session) -> None:
        """Its client is gone."""
        self._write_over(session.number, session_record(session, self.skew()))

    def session_ended(self, session: Session, deliveries: list[Delivery]) -> None:
        """A session is over; ``deliveries`` is what it still held."""
        self._write(records.SessionEnded(session.number))
        self._ending[session.client_id] = self.journal.batch
        session.journal = None
        for delivery in deliveries:
            if delivery.message.stored is not None:
                self._drop(session.number, delivery.message.stored, delivery)

    def subscribed(self, session: Session, subscription: Subscription) -> None:
        self._write(subscription_record(session, subscription))

    def unsubscribed(self, session: Session, filter: str) -> None:
        self._write(records.SubscriptionRemoved(session.number, filter))

    # -------------------------------------------------- session.protocols.SessionJournal

    def hold_plain(self, session: Session, message: Message, qos: int) -> Delivery:
        stored: StoredMessage | None = message.stored
        if stored is None:
            stored = self._store(message)
            delivery = stored.plain(qos)
            stored.owner = session.number
            stored.delivery = delivery
        else:
            delivery = stored.plain(qos)
            self._add_holder(session, stored, delivery)
        return delivery

    def hold(self, session: Session, delivery: Delivery) -> None:
        self._add_holder(session, delivery.message.stored or self._store(delivery.message), delivery)

    def _store(self, message: Message) -> StoredMessage:
        number = self._next_message
        self._next_message = number + 1
        stored = message.stored = self.messages[number] = StoredMessage(number, message)
        stored.key = self._write(stored, OVERHEAD + len(message.frame))
        self.paging.bodies += len(message.frame)
        return stored

    def _add_holder(self, session: Session, stored: StoredMessage, delivery: Delivery) -> None:
        stored.hold(session.number, delivery)
        if stored.seq:
            # What became of it before must stand before that.
            for fate in self.delivery_records.settle(session.number):
                self._write(fate)
            holder = (session.number, delivery.group, delivery.qos, delivery.retain, delivery.identifiers, 0)
            self._write(records.DeliveryAdded(stored.number, holder))
        else:
            self._octets += _OF_A_HOLDER
            self.written += 1

    def sent(self, session: Session, delivery: Delivery, packet_id: int) -> int:
        self.sent_run(session, [delivery], [packet_id])
        return self.journal.batch if delivery.qos == 2 else 0

    def sent_run(self, session: Session, deliveries: list[Delivery], packet_ids: list[int]) -> None:
        number = session.number
        sent = self.delivery_records.sent.get(session)
        before = 0 if sent is None else len(sent)
        for delivery, packet_id in zip(deliveries, packet_ids, strict=True):
            stored: StoredMessage = delivery.message.stored
            if stored.delivery is delivery and stored.owner == number:
                stored.packet_id = packet_id
            else:
                stored.sent_to(number, delivery, packet_id)
            if stored.seq:
                if sent is None:
                    sent = self.delivery_records.sent_to(session)
                sent[packet_id] = None
        if sent is not None:
            self.written += 1
            self._octets += _OF_A_DELIVERY * (len(sent) - before)

    def done(self, session: Session, deliveries: Iterable[Delivery]) -> None:
        number = session.number
        done = self.delivery_records.done.get(number)
        before = 0 if done is None else len(done)
        for delivery in deliveries:
            stored: StoredMessage | None = delivery.message.stored
            if stored is None:
                continue
            if stored.delivery is delivery and stored.owner == number and stored.others is None:
                stored.owner = 0
                stored.delivery = None
                self._forget(stored)
            elif not self._drop(number, stored, delivery):
                continue
            if stored.seq:
                if done is None:
                    done = self.delivery_records.done_by(number)
                group = delivery.group
                done.append((stored.number, group) if group else stored.number)
        if done is not None:
            self.written += 1
            octets = _OF_A_DELIVERY * (len(done) - before)
            self._octets += octets
            self._octets_done += octets

    def _drop(self, session: int, stored: StoredMessage, delivery: Delivery) -> bool:
        """Take a holder off; the message goes with its last one. False: it was not one."""
        if not stored.let_go(session, delivery.group):
            return False
        if stored.key and stored.held:
            self._octets -= _OF_A_HOLDER
        if not stored.held:
            self._forget(stored)
        elif stored.weight:
            self.paging.dropped(stored)
        return True

    def _forget(self, stored: StoredMessage) -> None:
        """Nobody holds it any more."""
        stored.message.stored = None
        if self.messages.pop(stored.number, None) is not None:
            self._stored_octets -= stored.size
            self.paging.bodies -= len(stored.message.frame)
        if stored.weight:
            self.paging.forgotten(stored)
        if stored.key and self._open.pop(stored.key, None) is not None:
            self._octets -= octets_of(stored)

    def released(self, session: Session, delivery: Delivery, packet_id: int) -> int:
        stored: StoredMessage | None = delivery.message.stored
        group = delivery.group
        number = stored.number if stored is not None and self._drop(session.number, stored, delivery) else 0
        self._write(records.Released(session.number, packet_id, number, group))
        return self.journal.batch

    def completed(self, session: Session, packet_id: int) -> None:
        self._write(records.Completed(session.number, packet_id))

    def received(self, session: Session, packet_id: int, now: float) -> None:
        self._write(records.Received(session.number, packet_id, now))

    def freed(self, session: Session, packet_id: int) -> None:
        self._write(records.Freed(session.number, packet_id))

    # ------------------------------------------------- retained, wills, delayed

    def retained_stored(self, message: Message, new: bool) -> None:
        """``new``: its topic had none."""
        stored = retained_record(message, self.skew())
        if new:
            self._write_new(message.topic, stored)
        else:
            self._write_over(message.topic, stored)

    def retained_cleared(self, topic: str) -> None:
        self._write_gone(topic, records.RetainedCleared(topic))

    def will_stored(self, message: Message, delay: int, due_at: float = 0.0, number: int = 0) -> int:
        """A will is in force, or (``due_at``) waits for its delay; its number."""
        new = not number
        if new:
            number = self._next_will
            self._next_will += 1
        skew = self.skew()
        client = message.publisher
        mountpoint, listener = ("", "") if client is None else (client.mountpoint, client.listener)
        due_at = due_at + skew if due_at else 0.0
        will = records.WillStored(number, body_of(message, skew), delay, due_at, mountpoint, listener)
        self.wills[number] = will
        if new:
            self._write_new(-number, will)
        else:
            self._write_over(-number, will)
        return number

    def will_gone(self, number: int) -> None:
        """It was published, or will not be."""
        if self.wills.pop(number, None) is not None:
            self._write_gone(-number, records.WillGone(number))

    def delayed_stored(self, message: Message, due_at: float) -> int:
        """A delayed message waits until the date ``due_at``; its number."""
        number = self._next_will
        self._next_will += 1
        delayed = records.DelayedStored(number, body_of(message, self.skew()), due_at)
        self.delayed[number] = delayed
        self._write(delayed)
        return number

    def delayed_gone(self, number: int) -> None:
        """It was published."""
        if self.delayed.pop(number, None) is not None:
            self._write(records.DelayedGone(number))

    # ---------------------------------------------------------- tables.RowDiary

    def row_stored(self, table: str, key: str, value: bytes) -> None:
        self._write_over(f"{table}\0{key}", records.RowStored(table, key, value))

    def row_removed(self, table: str, key: str) -> None:
        self._write_over(f"{table}\0{key}", records.RowRemoved(table, key))

    # -------------------------------------------------------------- at start

    def continue_from(self, session: int, message: int, will: int) -> None:
        """Numbers up to these were used before the restart."""
        self._next_session = session + 1
        self._next_message = message + 1
        self._next_will = will + 1

    def restored(self, stored: StoredMessage) -> None:
        """A message that the log holds, and sessions."""
        self.messages[stored.number] = stored
        self._stored_octets += stored.size
        self.paging.bodies += len(stored.message.frame)

    # ------------------------------------------------------------ compaction

    def recorded_octets(self) -> int:
        """About how many bytes the messages, rows, wills and delayed messages take that are true now."""
        waiting = sum(octets_of(each) for table in (self.wills, self.delayed) for each in table.values())
        return self._stored_octets + self.tables.octets + waiting

    def write_again(self, record: Entry) -> None:
        """For compaction: say what is true already once more. A message must be in memory for that."""
        if isinstance(record, StoredMessage):
            if record.held and not record.key and not record.message.paged:
                record.key = self._write(record)
        elif isinstance(record, records.SessionStored):
            self._write_over(record.number, record)
        elif isinstance(record, records.RetainedStored):
            self._write_over(record.body.topic, record)
        elif isinstance(record, records.WillStored):
            self._write_over(-record.number, record)
        elif isinstance(record, records.RowStored):
            self.row_stored(record.table, record.key, record.value)
        else:
            self._write(record)
