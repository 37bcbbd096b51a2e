"""What a session asks of the layers above it: ``ClientWriter``, ``SessionJournal`` and ``DropObserver``."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from ..mqtt.message import Delivery, Message

if TYPE_CHECKING:
    from .replay import ReplayBudget
    from .session import Session

# Why a delivery did not reach its client; the names of EMQX's ``delivery.dropped.*`` metrics.
TOO_LARGE: Final = "too_large"
QUEUE_FULL: Final = "queue_full"
QOS0_MSG: Final = "qos0_msg"
EXPIRED: Final = "expired"
NO_LOCAL: Final = "no_local"
# Not EMQX's: too much is on its way to another node; the client may not read it any more; the disk does not give the
# paged-out message back; the node has no memory for it.
LINK_FULL: Final = "full"
REVOKED: Final = "revoked"
UNREADABLE: Final = "unreadable"
MEMORY: Final = "memory"


class ClientWriter(Protocol):
    """The way to a connected client (``channel.outbound_writer``). Sending only appends, and ``flush_now`` writes:
    neither closes, raises or calls back."""

    writable: bool

    def flush_now(self) -> None:
        """Write what is here at once instead of at the end of the loop iteration."""

    def send_publish0(self, message: Message) -> None:
        """A QoS 0 PUBLISH with RETAIN 0 and no Subscription Identifiers: the common case."""

    def send_run0(self, messages: list[Message]) -> None:
        """The same for several."""

    def send_retained0(self, messages: list[Message], identifiers: tuple[int, ...]) -> int:
        """Several of QoS 0 with RETAIN 1 and these Subscription Identifiers; how many, before it was not writable."""

    def takes_packets(self, version: int) -> bool:
        """Whether PUBLISH packets of QoS 0 of this version may go to the client as they are."""

    def send_packets0(self, packets: bytes, count: int) -> None:
        """So many of these, if it takes them."""

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        """Any other PUBLISH. False: this client cannot take it (its Maximum Packet Size), so it counts as done."""

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        """Several of QoS 1, DUP 0; returns the identifiers of those that this client cannot take."""

    def may_hold(self, count: int) -> bool:
        """Whether it has room for so many messages with ``hold_run``."""

    def hold_run(self, run: list[Message], packet_id: int) -> int:
        """Send messages of QoS 1 that nobody durable waits for, and keep them until they are acknowledged: none of them
        is in flight in the session. ``packet_id``: the last one that is in use; returns the one that is then. Only of
        links."""

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        """The same, but not before ``batch`` is on disk."""

    def send_pubrel(self, packet_id: int) -> None:
        """The second half of a QoS 2 delivery."""


class RetainedSource(Protocol):
    """The retained messages that a subscription is still to be sent (``core.retained_matches``)."""

    @property
    def done(self) -> bool:
        """Whether there are no more."""

    def take(self, most: int, budget: "ReplayBudget") -> list[Message]:
        """The next ones, as they are now, at most so many; what was looked at is taken off the budget. None at all,
        though not ``done``: those that were found are not for this subscription, or the search goes on later."""

    def put_back(self, messages: list[Message]) -> None:
        """These were not sent: what their topics have then comes next."""


class SessionJournal(Protocol):
    """Records what a durable session holds, as it happens (``persistence.session_journal`` at level ``disk``).

    Where a number is returned, it is the batch that must be on disk before the packet it is about may go out; 0: none.
    """

    @property
    def barrier(self) -> int:
        """The batch with the last thing that was recorded."""

    def hold(self, session: "Session", delivery: Delivery) -> None:
        """The session owes its client this QoS 1 or 2 delivery from now on."""

    def hold_plain(self, session: "Session", message: Message, qos: int) -> Delivery:
        """The same, with RETAIN 0 and no identifiers; the delivery is made here, and shared among durable sessions."""

    def queued(self, delivery: Delivery) -> None:
        """It waits in a session's queue, and may be paged out."""

    def fetch(self, session: "Session", delivery: Delivery) -> bool:
        """The next in the session's queue is paged: ``advance`` follows when it is loaded. False: it is lost."""

    def sent(self, session: "Session", delivery: Delivery, packet_id: int) -> int:
        """It goes out with this Packet Identifier."""

    def sent_run(self, session: "Session", deliveries: list[Delivery], packet_ids: list[int]) -> None:
        """These go out, all with QoS 1."""

    def done(self, session: "Session", deliveries: Iterable[Delivery]) -> None:
        """They are acknowledged, expired, dropped or refused."""

    def released(self, session: "Session", delivery: Delivery, packet_id: int) -> int:
        """QoS 2: PUBREC arrived; from here on only PUBREL is due."""

    def completed(self, session: "Session", packet_id: int) -> None:
        """QoS 2: PUBCOMP arrived."""

    def received(self, session: "Session", packet_id: int, now: float) -> None:
        """QoS 2 inbound: the identifier stands for one message until it is freed."""

    def freed(self, session: "Session", packet_id: int) -> None:
        """QoS 2 inbound: PUBREL arrived, or the message was refused."""


class DropObserver(Protocol):
    """Is told of deliveries that will not happen: ``core.broker`` counts them and fires ``delivery.dropped``."""

    def delivery_dropped(self, session: "Session", delivery: Delivery, reason: str) -> None:
        """``reason`` is one of the names above."""


class Cancellable(Protocol):
    """A running timer (``loop.timers``)."""

    def cancel(self) -> None:
        """It will not fire."""
