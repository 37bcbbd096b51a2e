"""Diary: who writes down what a durable session holds, as it happens."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from ..mqtt.message import Delivery, Message

if TYPE_CHECKING:
    from .session import Session
    from .state import SessionState


class SessionJournal(Protocol):
    """``persistence.durability`` at level ``disk``. A session without one keeps nothing beyond its connection.

    Where a number is returned, it is the batch that must be on disk before the packet it is about may go out; 0: none.
    """

    @property
    def barrier(self) -> int:
        """The batch with the last thing that was written down."""

    def hold(self, session: "Session", delivery: Delivery) -> None:
        """The session owes its client this QoS 1 or 2 delivery from now on."""

    def hold_plain(self, session: "Session", message: Message, qos: int) -> Delivery:
        """The same, with RETAIN 0 and no identifiers; the delivery is made here, and shared among durable sessions."""

    def queued(self, delivery: Delivery) -> None:
        """It waits in a session's queue, and may be paged out."""

    def fetch(self, session: "Session", delivery: Delivery) -> bool:
        """The next in the session's queue is paged: ``advance`` follows when it is here. False: it is lost."""

    def sent(self, session: "Session", delivery: Delivery, packet_id: int) -> int:
        """It goes out with this Packet Identifier."""

    def sent_run(self, session: "Session", deliveries: list[Delivery], packet_ids: list[int]) -> None:
        """These go out, all with QoS 1."""

    def done(self, session: "SessionState", deliveries: Iterable[Delivery]) -> None:
        """They are acknowledged, expired, dropped or refused."""

    def released(self, session: "SessionState", delivery: Delivery, packet_id: int) -> int:
        """QoS 2: PUBREC arrived; from here on only PUBREL is due."""

    def completed(self, session: "SessionState", packet_id: int) -> None:
        """QoS 2: PUBCOMP arrived."""

    def received(self, session: "SessionState", packet_id: int, now: float) -> None:
        """QoS 2 inbound: the identifier stands for one message until it is freed."""

    def freed(self, session: "SessionState", packet_id: int) -> None:
        """QoS 2 inbound: PUBREL arrived, or the message was refused."""
