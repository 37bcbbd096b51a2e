"""The journal of durable sessions: records of their state, written when it changes."""

from collections.abc import Callable, Iterable
from typing import Final

from ..mqtt.message import Delivery, Message
from ..session.session import Session
from ..session.subscription import Subscription
from .group_commit import GroupCommit
from .log import records
from .paging import Paging
from .record_mapping import OVERHEAD, session_record, subscription_record
from .stored_message import StoredMessage, stored_of

_DELIVERY_BYTES: Final = 24
_HOLDER_BYTES: Final = 16


class DurableSessionJournal:
    """Implements ``session.protocols.SessionJournal`` for all durable sessions; ``messages`` are the messages that they
    hold."""

    __slots__ = (
        "_commit",
        "_ending",
        "_next_message",
        "_next_session",
        "_skew",
        "_unconfirmed",
        "fetch",
        "messages",
        "paging",
        "queued",
    )

    def __init__(self, commit: GroupCommit, paging: Paging, skew: Callable[[], float]) -> None:
        """``skew`` returns the difference between dates and times (``loop.clock``)."""
        self._commit = commit
        self._skew = skew
        self.paging = paging
        self.queued = paging.queued
        self.fetch = paging.fetch
        self.messages: dict[int, StoredMessage] = {}
        self._next_message = 1
        self._next_session = 1
        # Session number -> the batch with the beginning of the session; Client Identifier -> the batch with its end.
        self._unconfirmed: dict[int, int] = {}
        self._ending: dict[str, int] = {}

    @property
    def barrier(self) -> int:
        return self._commit.barrier

    # --------------------------------------------------------------- sessions

    def opened(self, session: Session) -> None:
        """Record that a durable session has begun, or that its client has reconnected."""
        if session.number == 0:
            session.number = self._next_session
            self._next_session += 1
            session.journal = self
            self._unconfirmed[session.number] = self._commit.batch
        self._commit.write_over(session.number, session_record(session, self._skew()))

    def left(self, session: Session) -> None:
        """Record that the client of a session has disconnected."""
        self._commit.write_over(session.number, session_record(session, self._skew()))

    def ended(self, session: Session, deliveries: list[Delivery]) -> None:
        """Record the end of a session; ``deliveries``: the messages that it still holds."""
        self._commit.write(records.SessionEnded(session.number))
        self._ending[session.client_id] = self._commit.batch
        session.journal = None
        for delivery in deliveries:
            stored = stored_of(delivery.message)
            if stored is not None:
                self._drop(session.number, stored, delivery)

    def unconfirmed(self, session: Session) -> int:
        """Return the batch that must be on disk before a client learns that this session exists; 0: it is on disk."""
        return self._unconfirmed.get(session.number, 0)

    def ending(self, client_id: str) -> int:
        """Return the batch that must be on disk before a client learns that its last session has ended; 0: it is on
        disk."""
        return self._ending.get(client_id, 0)

    def on_durable(self, upto: int) -> None:
        """Batches up to this one are on disk."""
        if self._unconfirmed:
            self._unconfirmed = {number: seq for number, seq in self._unconfirmed.items() if seq > upto}
        if self._ending:
            self._ending = {client_id: seq for client_id, seq in self._ending.items() if seq > upto}

    def subscribed(self, session: Session, subscription: Subscription) -> None:
        self._commit.write(subscription_record(session, subscription))

    def unsubscribed(self, session: Session, filter: str) -> None:
        self._commit.write(records.SubscriptionRemoved(session.number, filter))

    # -------------------------------------------- messages of a session, outbound

    def hold_plain(self, session: Session, message: Message, qos: int) -> Delivery:
        stored = stored_of(message)
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
        self._add_holder(session, stored_of(delivery.message) or self._store(delivery.message), delivery)

    def _store(self, message: Message) -> StoredMessage:
        number = self._next_message
        self._next_message = number + 1
        stored = message.stored = self.messages[number] = StoredMessage(number, message)
        stored.key = self._commit.write(stored, OVERHEAD + len(message.frame))
        self.paging.bodies += len(message.frame)
        return stored

    def _add_holder(self, session: Session, stored: StoredMessage, delivery: Delivery) -> None:
        commit = self._commit
        stored.hold(session.number, delivery)
        if stored.seq:
            # Earlier progress has to be recorded before that.
            for record in commit.delivery_records.take_done(session.number):
                commit.write(record)
            holder = (session.number, delivery.group, delivery.qos, delivery.retain, delivery.identifiers, 0)
            commit.write(records.DeliveryAdded(stored.number, holder))
        else:
            commit.open_bytes += _HOLDER_BYTES
            commit.written += 1

    def sent(self, session: Session, delivery: Delivery, packet_id: int) -> int:
        self.sent_run(session, [delivery], [packet_id])
        return self._commit.batch if delivery.qos == 2 else 0

    def sent_run(self, session: Session, deliveries: list[Delivery], packet_ids: list[int]) -> None:
        commit = self._commit
        number = session.number
        sent = commit.delivery_records.sent.get(session)
        before = 0 if sent is None else len(sent)
        for delivery, packet_id in zip(deliveries, packet_ids, strict=True):
            stored = stored_of(delivery.message)
            assert stored is not None
            if stored.delivery is delivery and stored.owner == number:
                stored.packet_id = packet_id
            else:
                stored.sent_to(number, delivery, packet_id)
            if stored.seq:
                if sent is None:
                    sent = commit.delivery_records.sent_to(session)
                sent[packet_id] = None
        if sent is not None:
            commit.written += 1
            commit.open_bytes += _DELIVERY_BYTES * (len(sent) - before)

    def done(self, session: Session, deliveries: Iterable[Delivery]) -> None:
        commit = self._commit
        number = session.number
        done = commit.delivery_records.done.get(number)
        before = 0 if done is None else len(done)
        for delivery in deliveries:
            stored = stored_of(delivery.message)
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
                    done = commit.delivery_records.done_by(number)
                group = delivery.group
                done.append((stored.number, group) if group else stored.number)
        if done is not None:
            commit.written += 1
            size = _DELIVERY_BYTES * (len(done) - before)
            commit.open_bytes += size
            commit.open_done_bytes += size

    def _drop(self, session: int, stored: StoredMessage, delivery: Delivery) -> bool:
        """Remove a holder, and with the last one the message. Return False if the session was not a holder."""
        if not stored.let_go(session, delivery.group):
            return False
        if stored.key and stored.held:
            self._commit.open_bytes -= _HOLDER_BYTES
        if not stored.held:
            self._forget(stored)
        elif stored.weight:
            self.paging.dropped(stored)
        return True

    def _forget(self, stored: StoredMessage) -> None:
        """Remove a message without holders."""
        stored.message.stored = None
        if self.messages.pop(stored.number, None) is not None:
            self._commit.message_bytes -= stored.size
            self.paging.bodies -= len(stored.message.frame)
        if stored.weight:
            self.paging.forgotten(stored)
        if stored.key:
            self._commit.take_back(stored)

    def released(self, session: Session, delivery: Delivery, packet_id: int) -> int:
        stored = stored_of(delivery.message)
        group = delivery.group
        number = stored.number if stored is not None and self._drop(session.number, stored, delivery) else 0
        self._commit.write(records.Released(session.number, packet_id, number, group))
        return self._commit.batch

    def completed(self, session: Session, packet_id: int) -> None:
        self._commit.write(records.Completed(session.number, packet_id))

    # ------------------------------------------------------------------ inbound

    def received(self, session: Session, packet_id: int, now: float) -> None:
        self._commit.write(records.Received(session.number, packet_id, now))

    def freed(self, session: Session, packet_id: int) -> None:
        self._commit.write(records.Freed(session.number, packet_id))

    # ----------------------------------------------------------------- recovery

    def continue_from(self, session: int, message: int) -> None:
        """Continue after these numbers, which were used before the restart."""
        self._next_session = session + 1
        self._next_message = message + 1

    def recovered(self, stored: StoredMessage) -> None:
        """Add a message from the log, which sessions hold."""
        self.messages[stored.number] = stored
        self._commit.message_bytes += stored.size
        self.paging.bodies += len(stored.message.frame)
