"""Recovery: turn records into sessions, queues, retained messages and Wills, before clients are accepted."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar, cast

import msgspec

from ..core.broker import Broker
from ..core.outcome import Outcome
from ..mqtt.constants import MAX_PACKET_ID, NEVER_EXPIRES
from ..mqtt.message import Delivery, Message
from ..persistence.durability import Durability
from ..persistence.log import records
from ..persistence.log.batch import first_offset
from ..persistence.message_holders import Holders
from ..persistence.paging import evicted_copy, queue_properties
from ..persistence.stored_message import StoredMessage
from ..session.client_info import ClientInfo
from ..session.session import Session
from .restored import ZoneOf, restored_client, restored_message, restored_session

logger = logging.getLogger(__name__)

HoldWill = Callable[[int, Message, float, Session | None], None]
"""Accepts a Will that must not be published here yet: its number, the time when it is due, its session."""

RecordT = TypeVar("RecordT", bound=records.Record)

CLOCK_SET: Final = "clock_set"
"""A table with one row: by how much the wall clock was set while the node ran."""
_PROGRESS: Final = 100_000
_STEP: Final = 200
"""Number of messages or sessions that are restored in one step."""
_CHECK_MEMORY_EVERY: Final = 100_000
"""Number of deliveries in queues between two checks of the node's memory."""


class ClockSet(msgspec.Struct, array_like=True, frozen=True):
    """Total number of seconds by which the clock was set since the previous start."""

    by: float


class RecoveredState:
    """The state that results from reading all records in order.

    Of queued messages, it keeps the bodies of about ``bound`` bytes in memory (0: all), and of other messages the
    fields that queues need."""

    def __init__(self, bound: int = 0) -> None:
        self.bound = bound
        self.sessions: dict[int, records.SessionStored] = {}
        self.subscriptions: dict[int, dict[str, records.SubscriptionStored]] = {}
        self.bodies: dict[int, records.StoredBody] = {}
        # message -> batch, offset and size of its record
        self.places: dict[int, tuple[int, int, int]] = {}
        # Messages whose ``body`` lacks payload and properties.
        self.paged: set[int] = set()
        # Total size of the other messages' records, in bytes.
        self.bytes = 0
        self.holders: dict[int, Holders[records.Holder]] = {}
        self.released: dict[int, dict[int, None]] = {}
        self.received: dict[int, dict[int, float]] = {}
        self.retained: dict[str, records.RetainedStored] = {}
        self.wills: dict[int, records.WillStored] = {}
        self.delayed: dict[int, records.DelayedStored] = {}
        self.rows: dict[str, dict[str, bytes]] = {}
        self.last_session = 0
        self.last_message = 0
        self.last_will = 0
        self.count = 0
        self.unreadable = 0
        self._place = (0, 0, 0)
        self._topics: dict[str, str] = {}
        self._apply: dict[type[object], Callable[[records.Record], object]] = {}
        self._on(records.MessageStored, self._message)
        self._on(records.DeliveryAdded, self._added)
        self._on(records.DeliveriesSent, self._sent)
        self._on(records.DeliveriesDone, self._finished)
        self._on(records.Released, self._released)
        self._on(records.Completed, self._completed)
        self._on(records.Received, self._received)
        self._on(records.Freed, self._freed)
        self._on(records.SessionStored, self._session)
        self._on(records.SessionEnded, self._ended)
        self._on(records.SubscriptionStored, self._subscribed)
        self._on(records.SubscriptionRemoved, self._unsubscribed)
        self._on(records.RetainedStored, self._retained)
        self._on(records.RetainedCleared, lambda record: self.retained.pop(record.topic, None))
        self._on(records.WillStored, self._will)
        self._on(records.WillGone, lambda record: self.wills.pop(record.number, None))
        self._on(records.DelayedStored, self._delayed)
        self._on(records.DelayedGone, lambda record: self.delayed.pop(record.number, None))
        self._on(records.RowStored, self._row)
        self._on(records.RowRemoved, lambda record: self.rows.get(record.table, {}).pop(record.key, None))

    def _on(self, kind: type[RecordT], apply: Callable[[RecordT], object]) -> None:
        self._apply[kind] = cast(Callable[[records.Record], object], apply)

    def read(self, encoded: bytes, batch: int = 0, offset: int = 0) -> None:
        """Read the next record, with its position in the log."""
        self.count += 1
        try:
            record = records.decode(encoded)
        except msgspec.MsgspecError:
            self.unreadable += 1
            return
        self._place = (batch, offset, len(encoded))
        self._apply[type(record)](record)

    def load_inflight(self, read: Callable[[int, int, int], bytes]) -> None:
        """Read the bodies of messages in flight, which their clients may need immediately. Raises StoreError."""
        for number in list(self.paged):
            holders = self.holders[number]
            if holders.packet_ids or any(holder[5] for holder in (holders.others or {}).values()):
                record = records.decode(read(*self.places[number]))
                assert isinstance(record, records.MessageStored)
                self.bodies[number] = record.body
                self.paged.discard(number)

    def _message(self, record: records.MessageStored) -> None:
        number = record.number
        if number > self.last_message:
            self.last_message = number
        elif number in self.bodies:
            self._forget(number)
        body = record.body
        self.places[number] = self._place
        size = self._place[2]
        if self.bound and self.bytes + size > self.bound:
            self.paged.add(number)
            topic = self._topics.setdefault(body.topic, body.topic)
            body = msgspec.structs.replace(body, topic=topic, payload=b"", properties=queue_properties(body.properties))
        else:
            self.bytes += size
        self.bodies[number] = body
        holders: Holders[records.Holder] = Holders()
        self.holders[number] = holders
        for holder in record.holders:
            _hold(holders, holder)

    def _forget(self, number: int) -> None:
        if number in self.paged:
            self.paged.discard(number)
        else:
            self.bytes -= self.places[number][2]
        del self.bodies[number], self.places[number], self.holders[number]

    def _added(self, record: records.DeliveryAdded) -> None:
        holders = self.holders.get(record.message)
        if holders is not None:
            _hold(holders, record.holder)

    def _sent(self, record: records.DeliveriesSent) -> None:
        for message, group, packet_id in record.deliveries:
            holders = self.holders.get(message)
            if holders is not None:
                other = holders.other(record.session, group)
                if other is not None:
                    holders.add_other(record.session, group, (*other[:5], packet_id))
                elif not group:
                    holders.sent_plain(record.session, packet_id)

    def _finished(self, record: records.DeliveriesDone) -> None:
        for each in record.deliveries:
            if isinstance(each, int):
                self._done(each, record.session, "")
            else:
                self._done(each[0], record.session, each[1])

    def _done(self, message: int, session: int, group: str) -> None:
        holders = self.holders.get(message)
        if holders is not None:
            holders.let_go(session, group)
            if not holders:
                self._forget(message)

    def _released(self, record: records.Released) -> None:
        self._done(record.message, record.session, record.group)
        self.released.setdefault(record.session, {})[record.packet_id] = None

    def _completed(self, record: records.Completed) -> None:
        self.released.get(record.session, {}).pop(record.packet_id, None)

    def _received(self, record: records.Received) -> None:
        self.received.setdefault(record.session, {})[record.packet_id] = record.at

    def _freed(self, record: records.Freed) -> None:
        self.received.get(record.session, {}).pop(record.packet_id, None)

    def _session(self, record: records.SessionStored) -> None:
        self.last_session = max(self.last_session, record.number)
        self.sessions[record.number] = record

    def _ended(self, record: records.SessionEnded) -> None:
        self.last_session = max(self.last_session, record.number)  # a compaction may have removed its first record
        for table in (self.sessions, self.subscriptions, self.released, self.received):
            table.pop(record.number, None)

    def _subscribed(self, record: records.SubscriptionStored) -> None:
        if record.topic_filter == record.filter:
            record.topic_filter = record.filter  # one shared string instead of two equal ones
        self.subscriptions.setdefault(record.session, {})[record.filter] = record

    def _unsubscribed(self, record: records.SubscriptionRemoved) -> None:
        self.subscriptions.get(record.session, {}).pop(record.filter, None)

    def _retained(self, record: records.RetainedStored) -> None:
        self.retained[record.body.topic] = record

    def _will(self, record: records.WillStored) -> None:
        self.last_will = max(self.last_will, record.number)
        self.wills[record.number] = record

    def _delayed(self, record: records.DelayedStored) -> None:
        self.last_will = max(self.last_will, record.number)
        self.delayed[record.number] = record

    def _row(self, record: records.RowStored) -> None:
        self.rows.setdefault(record.table, {})[record.key] = record.value


def _hold(holders: Holders[records.Holder], holder: records.Holder) -> None:
    session, group, qos, retain, identifiers, packet_id = holder
    if qos == 0 or retain or identifiers or group:
        holders.add_other(session, group, holder)
    else:
        holders.add_plain(session, qos, packet_id)


def read_batches(batches: Iterable[tuple[int, list[bytes]]], bound: int = 0) -> RecoveredState:
    """Read all batches (number and records), in order; ``bound`` as in ``RecoveredState``."""
    state = RecoveredState(bound)
    due = _PROGRESS
    for seq, batch in batches:
        offset = first_offset(len(batch))
        for encoded in batch:
            state.read(encoded, seq, offset)
            offset += len(encoded)
        if state.count >= due:
            due = state.count + _PROGRESS
            logger.info("restore_progress records=%s", state.count)
    return state


def recover_in_steps(
    state: RecoveredState,
    broker: Broker,
    durability: Durability,
    zone_of: ZoneOf,
    delay: Callable[[Message, float, int], None],
    refusal_of_will: Callable[[Message, bool], Outcome | None],
    shed: Callable[[], None] = lambda: None,
    hold_will: HoldWill | None = None,
) -> Iterator[None]:
    """Put the recovered state into ``broker``, in steps of some milliseconds; expired sessions end here, and Wills that
    are due are published.

    ``zone_of`` returns settings and limits by the name of a listener, ``delay`` accepts a message whose publication is
    delayed. ``refusal_of_will`` returns why a Will may not be published, None if it may; its argument: whether the
    record is ``approved``. ``shed`` is called repeatedly, because the node may have less memory than before.
    ``hold_will`` receives the Wills, because another node may have published them; if it is ``None``, they are
    published here."""
    started = time.perf_counter()
    recovery = _Recovery(state, broker, durability, zone_of, shed)
    yield from recovery.sessions_and_retained()
    recovery.delayed(delay)
    recovery.wills(refusal_of_will, hold_will)
    logger.info(
        "restored sessions=%s retained=%s messages=%s records=%s unreadable=%s seconds=%.3f",
        len(broker.sessions),
        len(broker.retained),
        len(durability.sessions.messages),
        state.count,
        state.unreadable,
        time.perf_counter() - started,
    )
    recovery.tell_expired()


def in_order_of_sending(packet_ids: Iterable[int]) -> list[int]:
    """Return the Packet Identifiers in flight, oldest first: each identifier is the next free one after its
    predecessor, and 1 follows 65,535. Few identifiers are in flight, so the widest gap between them is before the
    oldest [MQTT-4.6.0-1]."""
    ascending = sorted(packet_ids)
    widest = ascending[0] + MAX_PACKET_ID - ascending[-1]
    first = 0
    for place in range(1, len(ascending)):
        gap = ascending[place] - ascending[place - 1]
        if gap > widest:
            widest, first = gap, place
    return ascending[first:] + ascending[:first]


class _Recovery:
    """Create the broker's objects from the recovered state."""

    def __init__(
        self,
        state: RecoveredState,
        broker: Broker,
        durability: Durability,
        zone_of: ZoneOf,
        shed: Callable[[], None],
    ) -> None:
        self.shed = shed
        self.state = state
        self.broker = broker
        self.durability = durability
        self.zone_of = zone_of
        self.topics: dict[str, str] = {}
        self.publishers: dict[tuple[str, str | None, bool, str], ClientInfo] = {}
        self.sessions: dict[int, Session] = {}
        # Sessions and messages that have expired since they were stored.
        self._expired_messages = 0
        self._expired_retained = 0
        self._expired_sessions = 0
        self._queued_of_expired = 0
        self._latest = 0.0
        self._left_of_step = _STEP

    def sessions_and_retained(self) -> Iterator[None]:
        self.durability.sessions.continue_from(self.state.last_session, self.state.last_message)
        self.durability.node.continue_from(self.state.last_will)
        now = self.broker.clock.now()
        for retained in self.state.retained.values():
            message = self._message(retained.body, retained.mountpoint)
            self._latest = max(self._latest, message.timestamp)
            self._expired_retained += self.broker.retained.expired(message, now)
            self.broker.retained.put(message)
            if self._enough():
                yield
        for record in self.state.sessions.values():
            self._session(record)
            self._latest = max(self._latest, record.connected_at, record.disconnected_at)
            if self._enough():
                yield
        yield from self._messages()
        for session in list(self.sessions.values()):
            if not self.state.sessions[session.number].disconnected_at:
                # So that their expiry does not start again at the next restart.
                self.durability.sessions.left(session)
            self._time_out(session, now)
            if self._enough():
                yield

    def _publisher(self, client_id: str, username: str | None, proved: bool, mountpoint: str) -> ClientInfo:
        key = (client_id, username, proved, mountpoint)
        publisher = self.publishers.get(key)
        if publisher is None:
            publisher = restored_client(self.broker, self.zone_of, client_id, username, proved)
            self.publishers[key] = publisher
            publisher.mountpoint = mountpoint
        return publisher

    def _message(self, body: records.StoredBody, mountpoint: str = "") -> Message:
        """``mountpoint``: the publisher's mount point, for a later check of the publisher's rights."""
        publisher = None
        if body.client_id is not None:
            publisher = self._publisher(body.client_id, body.username, body.proved, mountpoint)
        topic = self.topics.setdefault(body.topic, body.topic)
        return restored_message(body, topic, publisher, self.broker.clock.now())

    def _session(self, record: records.SessionStored) -> None:
        subscriptions = self.state.subscriptions.get(record.number, {})
        session = restored_session(record, subscriptions.values(), self.broker, self.zone_of)
        session.number = record.number
        session.journal = self.durability.sessions
        self.broker.sessions.add(session)
        self.sessions[record.number] = session
        for subscription in session.subscriptions.values():
            self.broker.router.subscribe(subscription)
        self.broker.exclusive.add(session)
        received = self.state.received.get(record.number)
        if received:
            session.awaiting_rel = dict(received)

    def _enough(self) -> bool:
        """Return whether a step ends after this object."""
        self._left_of_step -= 1
        if self._left_of_step > 0:
            return False
        self._left_of_step = _STEP
        return True

    def _messages(self) -> Iterator[None]:
        """Restore queues and messages in flight, in the order of publication."""
        state = self.state
        now = self.broker.clock.now()
        left = _CHECK_MEMORY_EVERY
        for number in sorted(state.bodies):
            message = self._message(state.bodies.pop(number))
            seq, offset, size = state.places.pop(number)
            if number in state.paged:
                message = evicted_copy(message, size)
            stored = message.stored = StoredMessage(number, message)
            stored.seq, stored.offset, stored.size = seq, offset, size
            waiting: list[tuple[Session, Delivery]] = []
            holders = state.holders.pop(number)
            for owner, qos, packet_id in holders.plain():
                self._hold(stored, owner, stored.plain(qos), packet_id, waiting)
            for (owner, group), (_, _, qos, retain, identifiers, packet_id) in (holders.others or {}).items():
                delivery = Delivery(message, qos, retain, tuple(identifiers), group)
                self._hold(stored, owner, delivery, packet_id, waiting)
            if not stored.held:
                message.stored = None
                continue
            self._latest = max(self._latest, message.timestamp)
            if waiting and message.expired(now):
                self._expired_messages += len(waiting)
            self.durability.sessions.recovered(stored)
            for session, delivery in waiting:
                session.requeue(delivery)  # which may drop this message or another one, if limits are lower now
            left -= 1 + len(waiting)
            if left < 0:
                left = _CHECK_MEMORY_EVERY
                self.shed()
            if self._enough():
                yield
        for session in self.sessions.values():
            if session.inflight:
                order = in_order_of_sending(session.inflight)
                before = session.inflight
                session.clear_inflight()
                session.change_inflight().update((packet_id, before[packet_id]) for packet_id in order)
                session.last_packet_id = order[-1]
        for owner, released in self.state.released.items():
            holder = self.sessions.get(owner)
            if holder is not None:
                for packet_id in released:
                    holder.change_inflight()[packet_id] = None

    def _hold(
        self,
        stored: StoredMessage,
        owner: int,
        delivery: Delivery,
        packet_id: int,
        waiting: list[tuple[Session, Delivery]],
    ) -> None:
        session = self.sessions.get(owner)
        if session is None:
            return
        stored.hold(owner, delivery, packet_id)
        if packet_id:
            session.change_inflight()[packet_id] = delivery
        else:
            waiting.append((session, delivery))

    def _time_out(self, session: Session, now: float) -> None:
        expiry = session.expiry_interval
        if expiry == NEVER_EXPIRES:
            return
        due = min(session.disconnected_at, now) + expiry
        if due <= now:
            self._expired_sessions += 1
            self._queued_of_expired += session.queued
            self.broker.life.end_session(session, "expired", now)
        else:
            self.broker.life.expire_at(session, due)

    def tell_expired(self) -> None:
        """Log how many sessions and messages expired while the node was stopped, or because the clock was set.
        Intervals that continue across a restart are measured by dates."""
        table = self.durability.tables.open(CLOCK_SET, ClockSet)
        clock_set = table.get(CLOCK_SET)
        if clock_set is not None:
            table.remove(CLOCK_SET)
        if not (self._expired_messages or self._expired_retained or self._expired_sessions):
            return
        logger.warning(
            "expired_at_start messages=%s retained=%s sessions=%s queued=%s last_date=%s seconds_since=%.0f "
            "clock_set_by=%.0f",
            self._expired_messages,
            self._expired_retained,
            self._expired_sessions,
            self._queued_of_expired,
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._latest)),
            max(0.0, self.broker.clock.now() - self._latest),
            0.0 if clock_set is None else clock_set.by,
        )

    def delayed(self, delay: Callable[[Message, float, int], None]) -> None:
        for record in self.state.delayed.values():
            self.durability.node.delayed[record.number] = record
            delay(self._message(record.body), record.due_at, record.number)

    def wills(self, refusal_of: Callable[[Message, bool], Outcome | None], hold: HoldWill | None) -> None:
        """Restore Wills. If a client was connected when the node failed, its Will is due after its delay. A Will that
        was already waiting continues to wait."""
        now = self.broker.clock.now()
        for record in self.state.wills.values():
            self.durability.node.wills[record.number] = record
            message = self._message(record.body)
            client_id = record.body.client_id
            if client_id is not None and (record.mountpoint or record.listener):
                body = record.body
                client = restored_client(
                    self.broker, self.zone_of, client_id, body.username, body.proved, record.listener
                )
                client.mountpoint = record.mountpoint
                message.publisher = client
            refusal = refusal_of(message, record.approved)
            if refusal is not None:
                self.broker.life.will_refused(client_id or "", message.topic, refusal, now)
                self.durability.node.will_gone(record.number)
                continue
            session = None if client_id is None else self.broker.sessions.get(client_id)
            due = min(record.due_at or now + record.delay, now + record.delay)
            if hold is not None:
                hold(record.number, message, due, session)
            elif session is None or due <= now:
                self.broker.life.publish_will_late(message, record.number)
            else:
                if not record.due_at:
                    # So that the delay does not start again at the next restart.
                    self.durability.node.will_stored(message, record.delay, due, record.number)
                self.broker.life.will_at(session, message, record.number, due)
