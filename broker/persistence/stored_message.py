"""StoredMessage: a message that durable sessions hold, with these sessions and its position on disk."""

from dataclasses import dataclass

from ..mqtt.message import Delivery, Message
from .message_holders import Holders


@dataclass(slots=True)
class Holding:
    """How one further session holds a message. ``packet_id`` 0: not sent."""

    delivery: Delivery
    packet_id: int


class StoredMessage:
    """A message that durable sessions hold.

    Most messages are held by one session. ``owner`` (its number, 0: none), ``delivery`` and ``packet_id`` (0: not sent)
    describe the first holder, ``others`` describes further holders, ``None`` if there are none. ``seq``, ``offset`` and
    ``size`` give the position of the message's record: the batch (0 before the batch is cut), and the piece of the
    batch. ``key`` is the position in the open batch, 0 if the message is not in it."""

    __slots__ = (
        "delivery",
        "key",
        "lost",
        "message",
        "number",
        "offset",
        "others",
        "owner",
        "packet_id",
        "plain1",
        "plain2",
        "seq",
        "size",
        "weight",
    )

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.owner = 0
        self.delivery: Delivery | None = None
        self.packet_id = 0
        self.others: Holders[Holding] | None = None
        self.seq = 0
        self.offset = 0
        self.size = 0
        self.key = 0
        # Memory of the body in bytes, once the message has been in a queue.
        self.weight = 0
        self.lost = False
        self.plain1: Delivery | None = None
        self.plain2: Delivery | None = None

    def plain(self, qos: int) -> Delivery:
        """As ``Message.plain``, for durable sessions. Other sessions do not share this delivery, so that it can be
        paged."""
        if qos == 1:
            if self.plain1 is None:
                self.plain1 = Delivery(self.message, 1)
            return self.plain1
        if self.plain2 is None:
            self.plain2 = Delivery(self.message, 2)
        return self.plain2

    def hold(self, session: int, delivery: Delivery, packet_id: int = 0) -> None:
        """Add a session that holds the message, or replace how it holds it."""
        first = self.delivery
        if self.owner == session and first is not None and first.group == delivery.group:
            self.delivery = delivery
            self.packet_id = packet_id
            return
        if self.others is None:
            if not self.owner:
                self.owner = session
                self.delivery = delivery
                self.packet_id = packet_id
                return
            self.others = Holders()
        if delivery is self.plain1 or delivery is self.plain2:
            self.others.add_plain(session, delivery.qos, packet_id)
        else:
            self.others.add_other(session, delivery.group, Holding(delivery, packet_id))

    def sent_to(self, session: int, delivery: Delivery, packet_id: int) -> None:
        """Note that the message was sent to a holder."""
        if self.delivery is delivery and self.owner == session:
            self.packet_id = packet_id
        elif self.others is not None:
            other = self.others.other(session, delivery.group)
            if other is not None:
                other.packet_id = packet_id
            else:
                self.others.sent_plain(session, packet_id)

    def let_go(self, session: int, group: str) -> bool:
        """Remove a holder; return False if the session was not one."""
        first = self.delivery
        if first is not None and self.owner == session and first.group == group:
            self.owner = 0
            self.delivery = None
            self.packet_id = 0
            return True
        others = self.others
        if others is None or not others.let_go(session, group):
            return False
        if not others:
            self.others = None
        return True

    @property
    def held(self) -> bool:
        """Return whether any session holds the message."""
        return self.owner != 0 or self.others is not None

    def holders(self) -> list[tuple[int, Delivery, int]]:
        """Yield all holders: session number, delivery, Packet Identifier."""
        found = [] if self.delivery is None else [(self.owner, self.delivery, self.packet_id)]
        others = self.others
        if others is not None:
            found += [(session, self.plain(qos), packet_id) for session, qos, packet_id in others.plain()]
            for (session, _), held in (others.others or {}).items():
                found.append((session, held.delivery, held.packet_id))
        return found

    @property
    def sent(self) -> bool:
        """Whether the message is in flight to a client, which may need it again at any moment."""
        others = self.others
        return self.packet_id != 0 or (
            others is not None
            and (bool(others.packet_ids) or any(each.packet_id for each in (others.others or {}).values()))
        )

    def replace_message(self, message: Message) -> None:
        """Replace the message in all deliveries that wait."""
        message.stored = self
        self.message = message
        waiting = [self.delivery, self.plain1, self.plain2]
        if self.others is not None and self.others.others:
            waiting += [each.delivery for each in self.others.others.values()]
        for delivery in waiting:
            if delivery is not None:
                delivery.message = message
                delivery.wire_v3 = delivery.wire_v5 = None


def stored_of(message: Message) -> StoredMessage | None:
    """Return the stored form of a message."""
    stored = message.stored
    return stored if isinstance(stored, StoredMessage) else None
