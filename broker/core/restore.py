"""Restore: from the records of the journal back to sessions, queues, retained messages and wills, before anybody is let in."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from ..config import ZoneSettings
from ..mqtt.constants import NEVER_EXPIRES
from ..mqtt.message import Delivery, Message
from ..mqtt.packets import NO_PROPERTIES
from ..session.session import Limits, Session
from ..session.subscription import Subscription
from ..storage import records
from .broker import Broker
from .client_info import ClientInfo
from .durability import Durability, StoredMessage

logger = logging.getLogger(__name__)

_PROGRESS: Final = 100_000


class Restored:
    """What the records come to, when all of them are read in order."""

    def __init__(self) -> None:
        self.sessions: dict[int, records.SessionStored] = {}
        self.subscriptions: dict[int, dict[str, records.SubscriptionStored]] = {}
        self.bodies: dict[int, records.StoredBody] = {}
        # message -> (session, group) -> holder
        self.holders: dict[int, dict[tuple[int, str], records.Holder]] = {}
        self.released: dict[int, dict[int, None]] = {}
        self.received: dict[int, dict[int, float]] = {}
        self.retained: dict[str, records.StoredBody] = {}
        self.wills: dict[int, records.WillStored] = {}
        self.delayed: dict[int, records.DelayedStored] = {}
        self.last_session = 0
        self.last_message = 0
        self.last_will = 0
        self.count = 0
        self.unreadable = 0

    def read(self, encoded: bytes) -> None:
        """Take the next record."""
        self.count += 1
        try:
            record = records.decode(encoded)
        except msgspec.MsgspecError:
            self.unreadable += 1
            return
        self._apply(record)

    def _apply(self, record: records.Record) -> None:
        if isinstance(record, records.MessageStored):
            self.last_message = max(self.last_message, record.number)
            self.bodies[record.number] = record.body
            self.holders[record.number] = {(holder[0], holder[1]): holder for holder in record.holders}
        elif isinstance(record, records.DeliveryAdded):
            if record.message in self.bodies:
                holder = record.holder
                self.holders[record.message][holder[0], holder[1]] = holder
        elif isinstance(record, records.DeliverySent):
            holders = self.holders.get(record.message)
            key = (record.session, record.group)
            if holders is not None and key in holders:
                holders[key] = (*holders[key][:5], record.packet_id)
        elif isinstance(record, records.DeliveryDone):
            self._done(record.message, record.session, record.group)
        elif isinstance(record, records.Released):
            self._done(record.message, record.session, record.group)
            self.released.setdefault(record.session, {})[record.packet_id] = None
        elif isinstance(record, records.Completed):
            self.released.get(record.session, {}).pop(record.packet_id, None)
        elif isinstance(record, records.Received):
            self.received.setdefault(record.session, {})[record.packet_id] = record.at
        elif isinstance(record, records.Freed):
            self.received.get(record.session, {}).pop(record.packet_id, None)
        elif isinstance(record, records.SessionStored):
            self.last_session = max(self.last_session, record.number)
            self.sessions[record.number] = record
        elif isinstance(record, records.SessionEnded):
            for table in (self.sessions, self.subscriptions, self.released, self.received):
                table.pop(record.number, None)
        elif isinstance(record, records.SubscriptionStored):
            self.subscriptions.setdefault(record.session, {})[record.filter] = record
        elif isinstance(record, records.SubscriptionRemoved):
            self.subscriptions.get(record.session, {}).pop(record.filter, None)
        elif isinstance(record, records.RetainedStored):
            self.retained[record.body.topic] = record.body
        elif isinstance(record, records.RetainedCleared):
            self.retained.pop(record.topic, None)

        elif isinstance(record, records.WillStored):
            self.last_will = max(self.last_will, record.number)
            self.wills[record.number] = record
        elif isinstance(record, records.WillGone):
            self.wills.pop(record.number, None)
        elif isinstance(record, records.DelayedStored):
            self.last_will = max(self.last_will, record.number)
            self.delayed[record.number] = record
        elif isinstance(record, records.DelayedGone):
            self.delayed.pop(record.number, None)

    def _done(self, message: int, session: int, group: str) -> None:
        holders = self.holders.get(message)
        if holders is not None:
            holders.pop((session, group), None)
            if not holders:
                del self.holders[message]
                del self.bodies[message]


def read(batches: Iterable[Iterable[bytes]]) -> Restored:
    """Read every batch, in order."""
    state = Restored()
    for batch in batches:
        for encoded in batch:
            state.read(encoded)
            if state.count % _PROGRESS == 0:
                logger.info("restore_progress records=%s", state.count)
    return state


def restore(
    state: Restored,
    broker: Broker,
    durability: Durability,
    zone_of: Callable[[str], tuple[ZoneSettings, Limits]],
    delay: Callable[[Message, float, int], None],
    may_publish: Callable[[Message], bool],
) -> None:
    """Put what was read into ``broker``; sessions whose time is over end here, and wills go out that are due.

    ``zone_of`` tells settings and limits by a listener's name, ``delay`` takes a delayed message back, ``may_publish``
    asks for a will's publisher.
    """
    started = time.perf_counter()
    builder = _Builder(state, broker, durability, zone_of)
    builder.build()
    builder.delayed(delay)
    builder.wills(may_publish)
    logger.info(
        "restored sessions=%s retained=%s messages=%s records=%s unreadable=%s seconds=%.3f",
        len(broker.sessions),
        len(broker.retained),
        len(durability.messages),
        state.count,
        state.unreadable,
        time.perf_counter() - started,
    )


class _Builder:
    """Makes the broker's objects of what was restored."""

    def __init__(
        self,
        state: Restored,
        broker: Broker,
        durability: Durability,
        zone_of: Callable[[str], tuple[ZoneSettings, Limits]],
    ) -> None:
        self.state = state
        self.broker = broker
        self.durability = durability
        self.zone_of = zone_of
        self.publishers: dict[tuple[str, str | None], ClientInfo] = {}
        self.sessions: dict[int, Session] = {}

    def build(self) -> None:
        self.durability.continue_from(self.state.last_session, self.state.last_message, self.state.last_will)
        for body in self.state.retained.values():
            self.broker.retained.put(self._message(body))
        for record in self.state.sessions.values():
            self._session(record)
        self._messages()
        now = self.broker.clock.now()
        for session in self.sessions.values():
            self._time_out(session, now)

    def _publisher(self, client_id: str, username: str | None) -> ClientInfo:
        key = (client_id, username)
        publisher = self.publishers.get(key)
        if publisher is None:
            zone, _ = self.zone_of("")
            publisher = ClientInfo(self.broker.node, zone, client_id=client_id, username=username)
            self.publishers[key] = publisher
        return publisher

    def _message(self, body: records.StoredBody) -> Message:
        publisher = None if body.client_id is None else self._publisher(body.client_id, body.username)
        message = Message(
            body.topic,
            body.payload,
            body.qos,
            body.retain,
            body.properties or NO_PROPERTIES,
            publisher,
            body.timestamp,
        )
        message.id = body.id
        return message

    def _session(self, record: records.SessionStored) -> None:
        now = self.broker.clock.now()
        zone, limits = self.zone_of(record.listener)
        session = Session(record.client_id, limits, self.broker, record.created_at, record.expiry_interval)
        session.number = record.number
        session.diary = self.durability
        client = ClientInfo(
            self.broker.node, zone, record.zone, record.listener, record.peer_host, record.peer_port,
            client_id=record.client_id, username=record.username, proto_ver=record.proto_ver,
        )  # fmt: skip
        client.mountpoint = record.mountpoint
        client.connected_at = record.connected_at
        client.keep_alive = record.keep_alive
        client.clean_start = record.clean_start
        client.is_bridge = record.is_bridge
        client.expiry_interval = record.expiry_interval
        session.client = client
        session.now = now
        # Its client was connected when the node died: the connection ended then, and nobody wrote down when.
        session.disconnected_at = record.disconnected_at or now
        session.last_packet_id = record.last_packet_id
        self.broker.sessions.add(session)
        self.sessions[record.number] = session
        for each in self.state.subscriptions.get(record.number, {}).values():
            subscription = Subscription(
                session, each.filter, each.qos, each.no_local, each.retain_as_published, each.retain_handling,
                tuple(each.identifiers), each.group, each.topic_filter,
            )  # fmt: skip
            session.subscriptions[each.filter] = subscription
            self.broker.router.subscribe(subscription)
        received = self.state.received.get(record.number)
        if received:
            session.awaiting_rel = dict(received)

    def _messages(self) -> None:
        """Queues and what was in flight, in the order of publication."""
        for number in sorted(self.state.bodies):
            message = self._message(self.state.bodies[number])
            stored = message.stored = StoredMessage(number, message)
            stored.seq = 1
            self.durability.messages[number] = stored
            for (owner, group), (_, _, qos, retain, identifiers, packet_id) in self.state.holders[number].items():
                session = self.sessions.get(owner)
                if session is None:
                    continue
                if qos == 0 or retain or identifiers or group:
                    delivery = Delivery(message, qos, retain, tuple(identifiers), group)
                else:
                    delivery = message.plain(qos)
                stored.holders[owner, group] = [qos, retain, tuple(identifiers), packet_id]
                if packet_id:
                    session.inflight[packet_id] = delivery
                    session.last_packet_id = packet_id
                else:
                    session.requeue(delivery)
            if not stored.holders and message.stored is stored:
                message.stored = None
                self.durability.messages.pop(number, None)
        for owner, released in self.state.released.items():
            session = self.sessions.get(owner)
            if session is not None:
                for packet_id in released:
                    session.inflight[packet_id] = None

    def _time_out(self, session: Session, now: float) -> None:
        expiry = session.expiry_interval
        if expiry == NEVER_EXPIRES:
            return
        due = session.disconnected_at + expiry
        if due <= now:
            self.broker.end_session(session, "expired", now)
        else:
            self.broker.expire_at(session, due)

    def delayed(self, delay: Callable[[Message, float, int], None]) -> None:
        for record in self.state.delayed.values():
            self.durability.delayed[record.number] = record
            delay(self._message(record.body), record.due_at, record.number)

    def wills(self, may_publish: Callable[[Message], bool]) -> None:
        """A will whose client was connected when the node died is due, after its delay; one that waited goes on waiting."""
        now = self.broker.clock.now()
        for record in self.state.wills.values():
            self.durability.wills[record.number] = record
            message = self._message(record.body)
            if not may_publish(message):
                self.durability.will_gone(record.number)
                continue
            session = None if record.body.client_id is None else self.broker.sessions.get(record.body.client_id)
            due = record.due_at or now + record.delay
            if session is None or due <= now:
                message.timestamp = now
                if self.broker.delay is None or not self.broker.delay(message):
                    self.broker.publish(message)
                self.durability.will_gone(record.number)
            else:
                self.broker.will_at(session, message, record.number, due)
