"""The form in which a session moves between nodes: all of it but its queue at once, its queue in pieces.

It is made of the records of the store, so that a session that moves keeps what one keeps over a restart. Where those
have dates, it has seconds from now, so that the clocks of the nodes need not agree.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ..core.broker import Broker
from ..mqtt.message import Delivery, Message
from ..persistence.log import records
from ..persistence.record_mapping import body_of, session_record, subscription_record
from ..persistence.stored_message import stored_of
from ..session.limits import Limits
from ..session.session import Session
from ..store.restored import ZoneOf, restored_client, restored_message, restored_session

# What became of the question for a session (``Prepared.state``).
READY: Final = "ready"
"""It is here and waits to be fetched."""
GONE: Final = "gone"
"""There is none."""
BUSY: Final = "busy"
"""It is just coming, going or beginning: ask again."""
NOT_OURS: Final = "not_ours"
"""The bucket says that another node has it."""
OF_ANOTHER: Final = "of_another"
"""It belongs to somebody else; nothing was done."""
DISCARDED: Final = "discarded"

# What a node says to the next piece (``Piece.state``); GONE and BUSY also.
MORE: Final = "more"
END: Final = "end"

PIECE_MESSAGES: Final = 256
PIECE_BYTES: Final = 262_144


class Prepare(msgspec.Struct, array_like=True, frozen=True):
    """A client wants its session on the node that asks. ``move``: this attempt, never used again. ``revision``: of the
    key, as far as that node knows. ``owner``: see ``ClientInfo.owner``; ``check_owner``: whether a session of another
    is refused. ``absent``: no client wants it; it is wanted only if its client is not connected."""

    client_id: str
    move: str
    revision: int
    owner: str
    username: str | None
    check_owner: bool
    clean_start: bool
    absent: bool = False


class MovedDelivery(msgspec.Struct, array_like=True, frozen=True):
    """``number``: of the message in the store it comes from; 0: it is in none."""

    body: records.StoredBody
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    group: str
    number: int


class MovedWill(msgspec.Struct, array_like=True, frozen=True):
    """``due_in``: seconds until it is published."""

    body: records.StoredBody
    due_in: float
    mountpoint: str
    listener: str


class MovedSession(msgspec.Struct, array_like=True, frozen=True):
    """``inflight``: in order of sending, ``None`` where PUBREL is out. ``received``: Packet Identifiers of QoS 2, each
    with its age. ``replays``: filters whose retained messages are still to be sent. ``announced``: see ``Session``."""

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
    """A node that keeps for a session what nodes that were away still send there. ``taken`` and ``doubt``: as in
    ``Fetch``; ``late``: those nodes; ``epoch``: of the key when the session had gone from there."""

    node: str
    taken: int
    doubt: list[tuple[int, str]]
    late: list[str]
    epoch: int = 0


class Prepared(msgspec.Struct, array_like=True, frozen=True):
    """``detail``: why not, for the log. ``earlier``: nodes that do not know yet that all of it has come to this one, as
    in ``wire.Owned``. ``doubts``: by node that still has a part of the session, the last messages that have come from
    there, by their numbers in its store: if its disk was full when it crashed, they are in its queue again.
    """

    state: str
    detail: str = ""
    session: MovedSession | None = None
    keepers: list[Keeper] = []
    earlier: dict[str, bool] = {}
    doubts: dict[str, list[tuple[int, str]]] = {}


class Fetch(msgspec.Struct, array_like=True, frozen=True):
    """The next piece of a session's queue. ``taken``: the number of the last piece that is on disk here, ``doubt``
    which messages that had. ``rest``: nothing else was moved, so what is in flight is wanted, too. ``ended``: filters
    that it is not subscribed to any more. ``turned``: nodes that have sent their marks (``turns``), once all that run
    have; ``epoch``: of the key that they name."""

    client_id: str
    move: str
    taken: int
    doubt: list[tuple[int, str]]
    rest: bool
    ended: list[str]
    turned: list[str] | None
    epoch: int


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """``late``: nodes that have not sent their marks here. ``held``: those of which messages are here that wait for
    earlier ones, which other nodes keep."""

    state: str
    number: int = 0
    deliveries: list[MovedDelivery] = []
    late: list[str] = []
    held: list[str] = []


class Done(msgspec.Struct, array_like=True, frozen=True):
    """All of a session has come, or is not wanted any more. ``keep``: what nodes still send that have not sent the mark
    of this epoch. ``over``: the session is, or it went on elsewhere without what is kept for it."""

    client_id: str
    move: str
    keep: bool = False
    epoch: int = 0
    over: bool = False


class Offer(msgspec.Struct, array_like=True, frozen=True):
    """A node has the rest of a session that is another node's by now."""

    client_id: str
    move: str


def moved_delivery(delivery: Delivery, now: float, body: records.StoredBody | None = None) -> MovedDelivery:
    """``body``: of a message that may be paged out."""
    message = delivery.message
    stored = stored_of(message)
    return MovedDelivery(
        body or body_of(message, -now),
        delivery.qos,
        delivery.retain,
        delivery.identifiers,
        delivery.group,
        0 if stored is None else stored.number,
    )


def moved_session(session: Session, will_due: float, now: float) -> MovedSession:
    """Of a session whose client is not connected here. ``will_due``: when its delayed will is due."""
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
    """Makes sessions and messages of what comes. Messages of one publisher share its ``ClientInfo``."""

    def __init__(self, broker: Broker, zone_of: ZoneOf) -> None:
        self._broker = broker
        self._zone_of = zone_of

    def session(self, moved: MovedSession) -> Session:
        """The session with its subscriptions; what it holds comes by ``hold``, once it is in the broker."""
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
        """Take in what the session holds besides its queue; when its will is due."""
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
            session.inflight[packet_id] = delivery
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
"""Of a QoS 2 delivery whose PUBREL is out: the message is its client's and nobody needs it."""


def with_qos0(limits: Limits) -> Limits:
    """The same bounds; QoS 0 waits, too: the client is connected, only not to this session."""
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
    """Which messages of the other node's store these are."""
    return [(each.number, each.group) for each in deliveries if each.number]
