"""Durability: what must be on disk before it is said, and who waits for it.

The publish path only adds to the open batch. At the end of a loop turn, if the writer is idle, the batch is cut and
written as one; while it is being written the next one fills. What was held back for a batch goes out when it is on disk::

    publish ──► hold() ──► open batch ──cut──► writer thread ──► on_durable(seq) ──► held PUBACKs go out
                              │
                              └── every holder acknowledged before the cut: the message never needs the disk
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from ..mqtt.message import Delivery, Message
from ..session.session import Session
from ..session.subscription import Subscription
from ..storage import records
from ..storage.journal import Journal
from .client_info import ClientInfo

if TYPE_CHECKING:
    from .broker import Broker

logger = logging.getLogger(__name__)

COMPACT_ABOVE: Final = 67_108_864
"""Bytes a log may have whatever is live in it; beyond, it is compacted where less than half of it is live."""


class Held(Protocol):
    """Somebody with packets that wait for a batch: ``channel.outlet``."""

    def release(self, upto: int) -> bool:
        """Send what waits for batches up to this one; whether anything still waits."""


class StoredMessage:
    """A message that durable sessions hold.

    ``holders``: (session number, group filter or "") -> [QoS, RETAIN, identifiers, Packet Identifier (0: not sent)].
    ``seq`` is the batch that it was written with, 0 while that is still open.
    """

    __slots__ = ("holders", "key", "message", "number", "seq")

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.holders: dict[tuple[int, str], list[object]] = {}
        self.seq = 0
        self.key = 0  # in the open batch


def body_of(message: Message) -> records.StoredBody:
    """A message as it is written down."""
    publisher = message.publisher
    return records.StoredBody(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.properties,
        message.timestamp,
        None if publisher is None else publisher.client_id,
        None if publisher is None else publisher.username,
        message.id,
    )


class Durability:
    """The node's memory beyond its process. One for the node, absent at level ``memory``."""

    def __init__(self, journal: Journal, wake: Callable[[], None]) -> None:
        """``wake`` asks for an ``end_of_turn``, soon."""
        self.journal = journal
        self._wake = wake
        # What the open batch will say: in order, a record or a message whose holders are written as they are at the cut.
        self._open: dict[int, records._Record | StoredMessage] = {}
        self._next_key = 1
        self.messages: dict[int, StoredMessage] = {}
        self._next_message = 1
        self._next_session = 1
        self.wills: dict[int, records.WillStored] = {}
        self.delayed: dict[int, records.DelayedStored] = {}
        self._next_will = 1
        self._waiting: dict[Held, None] = {}
        self._futures: list[tuple[int, asyncio.Future[None]]] = []
        # Grows with every fact; whoever must wait for what it caused compares it before and after.
        self.written = 0

    # ------------------------------------------------------------- the batch

    def _write(self, entry: "records._Record | StoredMessage") -> int:
        if not self._open:
            self._wake()
        key = self._next_key
        self._next_key = key + 1
        self._open[key] = entry
        self.written += 1
        return key

    @property
    def batch(self) -> int:
        """The number of the open batch."""
        return self.journal.batch

    def end_of_turn(self) -> None:
        """Cut the batch if the writer is free."""
        if self._open and self.journal.idle:
            seq = self.journal.batch
            put = self.journal.put
            encode = records.encode
            for key, entry in self._open.items():
                if isinstance(entry, StoredMessage):
                    entry.seq = seq
                    put(key, encode(self._message_record(entry)))
                else:
                    put(key, encode(entry))
            self._open.clear()
        elif not self._open and self._waiting and self.journal.idle:
            # All that was to be written has been taken back: nobody waits for an empty batch.
            self._release(self.journal.batch)
        self.journal.end_of_turn()

    @staticmethod
    def _message_record(stored: StoredMessage) -> records.MessageStored:
        return records.MessageStored(
            stored.number,
            body_of(stored.message),
            [(session, group, *held) for (session, group), held in stored.holders.items()],  # type: ignore[misc]
        )

    def on_durable(self, seq: int) -> None:
        """The writer's word: everything up to ``seq`` is on disk."""
        self._release(seq)
        if self._open:
            self._wake()

    def _release(self, upto: int) -> None:
        if self._waiting:
            self._waiting = {held: None for held in self._waiting if held.release(upto)}
        if self._futures:
            left = []
            for seq, future in self._futures:
                if seq > upto:
                    left.append((seq, future))
                elif not future.done():
                    future.set_result(None)
            self._futures = left

    def due(self, mark: int) -> int:
        """The batch to wait for, for who noted ``written`` before and has caused something since; 0: none."""
        return self.journal.batch if self.written != mark else 0

    @property
    def barrier(self) -> int:
        """The batch that must be on disk for all of what was written to be; 0: all of it is."""
        if self._open:
            return self.journal.batch
        last = self.journal.batch - 1
        return last if last > self.journal.durable else 0

    def hold_back(self, held: Held) -> None:
        """Tell ``held`` when batches are on disk, until nothing of it waits any more."""
        self._waiting[held] = None

    async def wait(self, seq: int) -> None:
        """Until batch ``seq`` is on disk."""
        if seq > self.journal.durable:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._futures.append((seq, future))
            await future

    # --------------------------------------------------------------- sessions

    def session_opened(self, session: Session) -> None:
        """A session that outlives its connection begins, or its client is back."""
        if session.number == 0:
            session.number = self._next_session
            self._next_session += 1
            session.diary = self
        self._write(self._session_record(session))

    def session_left(self, session: Session) -> None:
        """Its client is gone."""
        self._write(self._session_record(session))

    @staticmethod
    def _session_record(session: Session) -> records.SessionStored:
        client: ClientInfo = session.client
        return records.SessionStored(
            session.number,
            session.client_id,
            client.username,
            client.proto_ver,
            client.peer_host,
            client.peer_port,
            client.zone_name,
            client.listener,
            client.mountpoint,
            session.created_at,
            client.connected_at,
            0.0 if session.connected else session.disconnected_at,
            session.expiry_interval,
            client.keep_alive,
            client.clean_start,
            client.is_bridge,
            session.last_packet_id,
        )

    def session_ended(self, session: Session, deliveries: list[Delivery]) -> None:
        """A session is over; ``deliveries`` is what it still held."""
        self._write(records.SessionEnded(session.number))
        session.diary = None
        for delivery in deliveries:
            self._drop(session, delivery)

    def subscribed(self, session: Session, subscription: Subscription) -> None:
        self._write(subscription_record(session, subscription))

    def unsubscribed(self, session: Session, filter: str) -> None:
        self._write(records.SubscriptionRemoved(session.number, filter))

    # -------------------------------------------------- session.diary.Diary

    def hold(self, session: Session, delivery: Delivery) -> None:
        message = delivery.message
        stored: StoredMessage | None = message.stored
        if stored is None:
            number = self._next_message
            self._next_message = number + 1
            stored = message.stored = StoredMessage(number, message)
            self.messages[number] = stored
            stored.key = self._write(stored)
        held = [delivery.qos, delivery.retain, delivery.identifiers, 0]
        stored.holders[session.number, delivery.group] = held
        if stored.seq:
            holder = (session.number, delivery.group, *held)
            self._write(records.DeliveryAdded(stored.number, holder))  # type: ignore[arg-type]
        else:
            self.written += 1

    def sent(self, session: Session, delivery: Delivery, packet_id: int) -> int:
        stored: StoredMessage = delivery.message.stored
        group = delivery.group
        stored.holders[session.number, group][3] = packet_id
        if stored.seq:
            self._write(records.DeliverySent(stored.number, session.number, group, packet_id))
        return self.journal.batch if delivery.qos == 2 else 0

    def done(self, session: Session, delivery: Delivery) -> None:
        stored = self._drop(session, delivery)
        if stored is not None and stored.seq:
            group = delivery.group
            self._write(records.DeliveryDone(stored.number, session.number, group))

    def _drop(self, session: Session, delivery: Delivery) -> StoredMessage | None:
        """Take a holder off; the message goes with its last one."""
        message = delivery.message
        stored: StoredMessage | None = message.stored
        if stored is None:
            return None
        group = delivery.group
        if stored.holders.pop((session.number, group), None) is None:
            return None
        if not stored.holders:
            message.stored = None
            del self.messages[stored.number]
            if not stored.seq:
                self._open.pop(stored.key, None)
        return stored

    def released(self, session: Session, delivery: Delivery, packet_id: int) -> int:
        stored = self._drop(session, delivery)
        group = delivery.group
        number = stored.number if stored is not None else 0
        self._write(records.Released(session.number, packet_id, number, group))
        return self.journal.batch

    def completed(self, session: Session, packet_id: int) -> None:
        self._write(records.Completed(session.number, packet_id))

    def received(self, session: Session, packet_id: int, now: float) -> None:
        self._write(records.Received(session.number, packet_id, now))

    def freed(self, session: Session, packet_id: int) -> None:
        self._write(records.Freed(session.number, packet_id))

    # ------------------------------------------------- retained, wills, delayed

    def retained_stored(self, message: Message) -> None:
        self._write(records.RetainedStored(body_of(message)))

    def retained_cleared(self, topic: str) -> None:
        self._write(records.RetainedCleared(topic))

    def will_stored(self, message: Message, delay: int, due_at: float = 0.0, number: int = 0) -> int:
        """A will is in force, or (``due_at``) waits for its delay; its number."""
        if not number:
            number = self._next_will
            self._next_will += 1
        will = records.WillStored(number, body_of(message), delay, due_at)
        self.wills[number] = will
        self._write(will)
        return number

    def will_gone(self, number: int) -> None:
        """It was published, or will not be."""
        if self.wills.pop(number, None) is not None:
            self._write(records.WillGone(number))

    def delayed_stored(self, message: Message, due_at: float) -> int:
        """A delayed message waits; its number."""
        number = self._next_will
        self._next_will += 1
        delayed = records.DelayedStored(number, body_of(message), due_at)
        self.delayed[number] = delayed
        self._write(delayed)
        return number

    def delayed_gone(self, number: int) -> None:
        """It was published."""
        if self.delayed.pop(number, None) is not None:
            self._write(records.DelayedGone(number))

    # -------------------------------------------------------------- at start

    def continue_from(self, session: int, message: int, will: int) -> None:
        """Numbers up to these were used before the restart."""
        self._next_session = session + 1
        self._next_message = message + 1
        self._next_will = will + 1

    # ------------------------------------------------------------ compaction

    def live_octets(self, broker: "Broker") -> int:
        """About how many bytes everything that is true now takes."""
        messages = sum(len(stored.message.frame) for stored in self.messages.values())
        return messages + 200 * len(self.messages) + broker.retained.bytes + 400 * broker.router.subscription_count

    def write_again(self, record: records._Record) -> None:
        """For compaction: say what is true already once more."""
        self._write(record)

    def live(self, broker: "Broker") -> Iterator[records._Record]:
        """Everything that is true now, as records: what a log without its older batches must still say."""
        for session in list(broker.sessions):
            if session.diary is None:
                continue
            yield self._session_record(session)
            for subscription in list(session.subscriptions.values()):
                yield subscription_record(session, subscription)
            for packet_id, delivery in list(session.inflight.items()):
                if delivery is None:
                    yield records.Released(session.number, packet_id, 0, "")
            for packet_id, at in list((session.awaiting_rel or {}).items()):
                yield records.Received(session.number, packet_id, at)
        for topic in list(broker.retained.topics()):
            message = broker.retained.get(topic)
            if message is not None and not topic.startswith("$SYS/"):
                yield records.RetainedStored(body_of(message))
        for number in list(self.messages):
            stored = self.messages.get(number)
            if stored is not None:
                yield self._message_record(stored)
        yield from list(self.wills.values())
        yield from list(self.delayed.values())


def subscription_record(session: Session, subscription: Subscription) -> records.SubscriptionStored:
    return records.SubscriptionStored(
        session.number,
        subscription.filter,
        subscription.topic_filter,
        subscription.group,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.retain_handling,
        subscription.identifiers,
    )
