"""The form in which a session moves between nodes: first everything except its queue, then the queue in pieces.

It consists of the records of the store, so that a move preserves the same things as a restart. Instead of the dates in
these records, it has seconds from now, so that the clocks of the nodes need not agree.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ...core.broker import Broker
from ...mqtt.message import Delivery, Message
from ...persistence.log import records
from ...persistence.record_mapping import body_of, session_record, subscription_record
from ...persistence.stored_message import stored_of
from ...session.limits import Limits
from ...session.session import Session
from ...store.restored import ZoneOf, restored_client, restored_message, restored_session

# The answers when a node asks for a session (``Prepared.state``).
READY: Final = "ready"
"""The session is on this node and waits to be fetched."""
GONE: Final = "gone"
"""No such session exists."""
BUSY: Final = "busy"
"""The session is arriving, leaving or beginning: ask again."""
NOT_OURS: Final = "not_ours"
"""According to the bucket, another node has the session."""
OF_ANOTHER: Final = "of_another"
"""The session belongs to another user; nothing was done."""
DISCARDED: Final = "discarded"

# The states of the next piece (``Piece.state``), besides GONE and BUSY.
MORE: Final = "more"
END: Final = "end"

PIECE_BYTES: Final = 262_144


class Prepare(msgspec.Struct, array_like=True, frozen=True):
    """The question for a session whose client has connected to the node that asks. ``move`` is the nonce of this
    attempt. ``revision`` is that of the key, as far as the node knows. ``owner`` is that of ``ClientInfo.owner``; if
    ``check_owner`` is set, a session of another owner is refused. ``absent``: no client has connected, and the session
    moves only if its client is not connected."""

    client_id: str
    move: str
    revision: int
    owner: str
    check_owner: bool
    clean_start: bool
    absent: bool = False


class MovedDelivery(msgspec.Struct, array_like=True, frozen=True):
    """A delivery that moves. ``number`` is the message's number in the store of its old node, or 0 if it is not
    stored."""

    body: records.StoredBody
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    group: str
    number: int


class MovedWill(msgspec.Struct, array_like=True, frozen=True):
    """A Will that moves. ``due_in``: seconds until the Will is published."""

    body: records.StoredBody
    due_in: float
    mountpoint: str
    listener: str


class MovedSession(msgspec.Struct, array_like=True, frozen=True):
    """A session without its queue. ``inflight`` has the messages in flight in the order in which they were sent; a
    message is ``None`` if PUBREL was sent. ``received`` has the Packet Identifiers of QoS 2 messages from the client,
    each with its age. ``replays`` has the filters whose retained messages are still to be sent. ``announced`` is that
    of ``Session``."""

    record: records.SessionStored
    subscriptions: list[records.SubscriptionStored]
    inflight: list[tuple[int, MovedDelivery | None]]
    received: dict[int, float]
    replays: list[str]
    queued: int
    mqueue_dropped: int
    dropped: dict[str, int]
    will: MovedWill | None
    announced: bool = True


class Keeper(msgspec.Struct, array_like=True, frozen=True):
    """A node that keeps messages for a session: those that the ``late`` senders, which were away, still send to that
    node. ``taken`` and ``doubt`` are those of ``Fetch``. ``epoch`` is the epoch of the key when the session had left
    the keeper."""

    node: str
    taken: int
    doubt: list[tuple[int, str]]
    late: list[str]
    epoch: int = 0


class Prepared(msgspec.Struct, array_like=True, frozen=True):
    """The answer to ``Prepare``. ``detail`` is the reason of a refusal, for the log. ``earlier`` has the nodes that do
    not know yet that the whole session has arrived at this node, in the form of ``wire.SessionKey.earlier``.

    ``doubts`` matters if a node crashed while its disk was full: messages that it has already handed over are in its
    queue again. For each node that still has a part of the session, ``doubts`` has the last messages that have arrived
    from that node, by their numbers in its store.
    """

    state: str
    detail: str = ""
    session: MovedSession | None = None
    keepers: list[Keeper] = []
    earlier: dict[str, bool] = {}
    doubts: dict[str, list[tuple[int, str]]] = {}


class Fetch(msgspec.Struct, array_like=True, frozen=True):
    """The request for the next piece of a session's queue. ``taken`` is the number of the last piece that is on disk at
    the asking node, and ``doubt`` has the messages of that piece. If ``rest`` is set, only the queue moves, and
    messages in flight are requested as part of it. ``ended`` has the filters from which the client has unsubscribed
    since. ``turned`` has the nodes that have sent their marks, and is ``None`` until all running nodes have sent them;
    ``epoch`` is the epoch that the marks name."""

    client_id: str
    move: str
    taken: int
    doubt: list[tuple[int, str]]
    rest: bool
    ended: list[str]
    turned: list[str] | None
    epoch: int


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """A piece of a session's queue. ``late`` has the nodes that have not sent their marks to the answering node.
    ``held`` has the nodes whose messages wait there for earlier messages, which other nodes keep."""

    state: str
    number: int = 0
    deliveries: list[MovedDelivery] = []
    late: list[str] = []
    held: list[str] = []


class Done(msgspec.Struct, array_like=True, frozen=True):
    """The report that the whole session has arrived, or is no longer needed. ``keep``: keep messages for the session
    from nodes that have not sent the mark of ``epoch``. ``over``: the session has ended, or continued elsewhere without
    the kept messages."""

    client_id: str
    move: str
    keep: bool = False
    epoch: int = 0
    over: bool = False


class Offer(msgspec.Struct, array_like=True, frozen=True):
    """The offer of a node that has the rest of a session, to the node that the key names."""

    client_id: str
    move: str


def moved_delivery(delivery: Delivery, now: float, body: records.StoredBody | None = None) -> MovedDelivery:
    """Return the form in which a delivery moves. ``body`` is passed, with its date, if the message may be paged out."""
    message = delivery.message
    stored = stored_of(message)
    return MovedDelivery(
        body_of(message, -now) if body is None else msgspec.structs.replace(body, timestamp=body.timestamp - now),
        delivery.qos,
        delivery.retain,
        delivery.identifiers,
        delivery.group,
        0 if stored is None else stored.number,
    )


def moved_session(session: Session, will_due: float, now: float) -> MovedSession:
    """Return the form of a session whose client is not connected here. ``will_due``: when its delayed Will is due."""
    inflight = [
        (packet_id, None if delivery is None else moved_delivery(delivery, now))
        for packet_id, delivery in session.inflight.items()
    ]
    return MovedSession(
        session_record(session, -now),
        [subscription_record(session, each) for each in session.subscriptions.values()],
        inflight,
        {packet_id: now - at for packet_id, at in (session.awaiting_rel or {}).items()},
        [] if session.replays is None else session.replays.filters(),
        session.queued,
        session.mqueue_dropped,
        dict(session.client.dropped or {}),
        None if session.will is None else _moved_will(session.will, will_due - now, now),
        session.announced,
    )


def _moved_will(will: Message, due_in: float, now: float) -> MovedWill:
    publisher = will.publisher
    mountpoint, listener = ("", "") if publisher is None else (publisher.mountpoint, publisher.listener)
    return MovedWill(body_of(will, -now), due_in, mountpoint, listener)


class SessionReceiver:
    """Creates sessions and messages from their moved forms. Messages of one publisher share its ``ClientInfo``."""

    def __init__(self, broker: Broker, zone_of: ZoneOf) -> None:
        self._broker = broker
        self._zone_of = zone_of

    def session(self, moved: MovedSession) -> Session:
        """Return the session with its subscriptions. ``hold`` adds the rest when the session is in the broker."""
        now, record = self._broker.clock.now(), moved.record
        record.created_at += now
        record.connected_at += now
        record.disconnected_at += now
        session = restored_session(record, moved.subscriptions, self._broker, self._zone_of)
        session.announced = moved.announced
        session.mqueue_dropped = moved.mqueue_dropped
        session.client.dropped = dict(moved.dropped) or None
        return session

    def hold(self, session: Session, moved: MovedSession) -> float:
        """Add everything besides the queue to the session, and return when its Will is due."""
        broker = self._broker
        now = broker.clock.now()
        journal = session.journal
        for packet_id, each in moved.inflight:
            delivery = None if each is None else self.delivery(each)
            if journal is not None:
                if delivery is None:
                    journal.released(session, _RELEASED, packet_id)
                else:
                    journal.hold(session, delivery)
                    journal.sent(session, delivery, packet_id)
            session.change_inflight()[packet_id] = delivery
        if moved.received:
            session.awaiting_rel = {packet_id: now - age for packet_id, age in moved.received.items()}
            if journal is not None:
                for packet_id, at in session.awaiting_rel.items():
                    journal.received(session, packet_id, at)
        will = moved.will
        if will is None:
            return 0.0
        session.will = message = self._will(will)
        due = now + will.due_in
        if broker.durability is not None:
            session.will_number = broker.durability.node.will_stored(message, int(will.due_in) + 1, due)
        return due

    def delivery(self, moved: MovedDelivery) -> Delivery:
        return Delivery(self.message(moved.body), moved.qos, moved.retain, tuple(moved.identifiers), moved.group)

    def message(self, body: records.StoredBody, listener: str = "", mountpoint: str = "") -> Message:
        publisher = None
        if body.client_id is not None:
            publisher = restored_client(
                self._broker, self._zone_of, body.client_id, body.username, body.proved, listener
            )
            publisher.mountpoint = mountpoint
        message = restored_message(body, body.topic, publisher, 0.0)
        message.timestamp += self._broker.clock.now()
        return message

    def _will(self, will: MovedWill) -> Message:
        return self.message(will.body, will.listener, will.mountpoint)


_RELEASED: Final = Delivery(Message(""), 2)
"""Stands for a QoS 2 delivery whose PUBREL was sent: the client has the message, and this node no longer needs it."""


def with_qos0(limits: Limits) -> Limits:
    """Return the same limits for a queue that accepts QoS 0, because the client is connected, although not to this
    session."""
    return Limits(
        limits.max_inflight,
        limits.max_awaiting_rel,
        limits.max_queued_messages,
        limits.max_queued_bytes,
        True,
        limits.refuse_when_full,
        limits.upgrade_qos,
        limits.priorities,
        limits.default_priority,
        limits.retry_interval,
    )


def keys_of(deliveries: Iterable[MovedDelivery]) -> list[tuple[int, str]]:
    """Return the keys of these messages in the other node's store."""
    return [(each.number, each.group) for each in deliveries if each.number]
