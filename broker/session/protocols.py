"""The interfaces that a session needs from the layers above it: the ways to its client, ``SessionJournal`` and
``DropObserver``."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from ..mqtt.message import Delivery, Message
from ..mqtt.run import Run

if TYPE_CHECKING:
    from .replay import ReplayBudget
    from .session import Session

# Why a delivery did not reach its client; the names of EMQX's ``delivery.dropped.*`` metrics.
TOO_LARGE: Final = "too_large"
QUEUE_FULL: Final = "queue_full"
QOS0_MSG: Final = "qos0_msg"
EXPIRED: Final = "expired"
NO_LOCAL: Final = "no_local"
# Taipan's own: too much data waits for another node; the client may no longer read the message; a paged message cannot
# be read from disk; the node has no memory for it.
LINK_FULL: Final = "full"
REVOKED: Final = "revoked"
UNREADABLE: Final = "unreadable"
MEMORY: Final = "memory"


class ClientWriter(Protocol):
    """Sends to a connected client: the members that every conversation has. Sending only appends, and ``flush_now``
    writes; neither closes the connection, raises or calls back. The protocols below have the members of some
    conversations; ``Session.attach`` gets them separately."""

    writable: bool

    def flush_now(self) -> None:
        """Write immediately instead of at the end of the loop iteration."""

    def send_publish0(self, message: Message) -> None:
        """Send a QoS 0 PUBLISH with RETAIN 0 and no Subscription Identifiers: the common case."""

    def send_run0(self, run: Run) -> None:
        """Send several such messages."""

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        """Send any other PUBLISH. Return False if the delivery is thereby complete: this client cannot receive it (its
        Maximum Packet Size), or does not acknowledge."""

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        """Send several messages of QoS 1 with DUP 0; return the identifiers of those that are thereby complete."""


class PacketWriter(Protocol):
    """The additional members of a conversation in MQTT packets (``channel.outbound_writer``)."""

    def takes_packets(self, version: int) -> bool:
        """Return whether PUBLISH packets of QoS 0 of this version can be sent to the client unchanged."""

    def send_packets0(self, packets: bytes, count: int) -> None:
        """Send this number of such packets."""

    def send_retained0(self, messages: list[Message], identifiers: tuple[int, ...]) -> int:
        """Send several messages of QoS 0 with RETAIN 1 and these Subscription Identifiers; return how many were sent
        before the client was not writable."""

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        """Do the same as ``send_publish``, but not before ``batch`` is on disk."""

    def send_pubrel(self, packet_id: int) -> None:
        """Send the second half of a QoS 2 delivery."""


class MessageKeeper(Protocol):
    """A conversation that itself keeps messages until they are acknowledged: a link to another node
    (``cluster.link_writer``)."""

    def may_keep(self, count: int) -> bool:
        """Return whether ``keep`` has room for this number of messages."""

    def keep(self, messages: list[Message], packet_id: int) -> int:
        """Send messages of QoS 1 for which no durable session waits, and keep them until they are acknowledged: they
        are not in flight in the session. ``packet_id``: the last identifier in use; return the new last one."""


class RetainedSource(Protocol):
    """The retained messages that still have to be sent for a subscription (``core.retained_matches``)."""

    @property
    def done(self) -> bool:
        """Whether there are no more messages."""

    def take(self, most: int, budget: "ReplayBudget") -> list[Message]:
        """Return the next messages in their current state, at most ``most``, and reduce the budget by the number of
        steps. An empty result although it is not ``done``: the messages found are not for this subscription, or the
        search continues later."""

    def put_back(self, messages: list[Message]) -> None:
        """Return messages that were not sent: the current messages of their topics come next."""


class SessionJournal(Protocol):
    """Records the state of a durable session when it changes (``persistence.session_journal`` at level ``disk``).

    If a method returns a number, it is the batch that must be on disk before the packet may be sent; 0: none."""

    @property
    def barrier(self) -> int:
        """Return the batch with the last record."""

    def hold(self, session: "Session", delivery: Delivery) -> None:
        """Record that the session holds this QoS 1 or 2 delivery from now on."""

    def hold_plain(self, session: "Session", message: Message, qos: int) -> Delivery:
        """The same with RETAIN 0 and no identifiers; the delivery is created here, and shared among durable
        sessions."""

    def queued(self, delivery: Delivery) -> None:
        """Note that a delivery waits in a session's queue, and may be paged out."""

    def fetch(self, session: "Session", delivery: Delivery) -> bool:
        """Load the next paged messages of the session's queue; ``advance`` is called afterwards. Return False if the
        delivery is lost."""

    def sent(self, session: "Session", delivery: Delivery, packet_id: int) -> int:
        """Record that a delivery is sent with this Packet Identifier."""

    def sent_run(self, session: "Session", deliveries: list[Delivery], packet_ids: list[int]) -> None:
        """Record that these deliveries, all with QoS 1, are sent."""

    def done(self, session: "Session", deliveries: Iterable[Delivery]) -> None:
        """Record that deliveries were acknowledged, expired, dropped or refused."""

    def released(self, session: "Session", delivery: Delivery, packet_id: int) -> int:
        """Record, for QoS 2, that PUBREC has arrived; from now on only PUBREL is sent."""

    def completed(self, session: "Session", packet_id: int) -> None:
        """Record, for QoS 2, that PUBCOMP has arrived."""

    def received(self, session: "Session", packet_id: int, now: float) -> None:
        """Record, for inbound QoS 2, that the identifier means one message until it is freed."""

    def freed(self, session: "Session", packet_id: int) -> None:
        """Record, for inbound QoS 2, that PUBREL has arrived, or that the message was refused."""


class DropObserver(Protocol):
    """Receives deliveries that will not happen: ``core.broker`` counts them and calls ``delivery.dropped``."""

    def delivery_dropped(self, session: "Session", delivery: Delivery, reason: str) -> None:
        """``reason`` is one of the names above."""


class Cancellable(Protocol):
    """A running timer (``loop.timers``)."""

    def cancel(self) -> None:
        """Cancel the timer."""
