"""The two faces a session sees: the way out to its client, and who hears of what it had to drop."""

from typing import TYPE_CHECKING, Final, Protocol

from ..mqtt.message import Delivery, Message

if TYPE_CHECKING:
    from .session import Session

# Why a delivery did not reach its client; the names of EMQX's ``delivery.dropped.*`` metrics.
TOO_LARGE: Final = "too_large"
QUEUE_FULL: Final = "queue_full"
QOS0_MSG: Final = "qos0_msg"
EXPIRED: Final = "expired"
NO_LOCAL: Final = "no_local"
REVOKED: Final = "revoked"  # nor this: its client may not read it any more
# Not EMQX's: it was paged out and the disk does not give it back; the node has no memory for it.
UNREADABLE: Final = "unreadable"
MEMORY: Final = "memory"


class ClientWriter(Protocol):
    """What a connected client offers its session. Sending only appends, and ``hurry`` writes: neither closes,
    raises or calls back."""

    writable: bool

    def flush_now(self) -> None:
        """Write what is here at once instead of at the end of the turn."""

    def send_publish0(self, message: Message) -> None:
        """A QoS 0 PUBLISH with RETAIN 0 and no Subscription Identifiers: the common case."""

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        """Any other PUBLISH. False: this client cannot take it (its Maximum Packet Size), so it counts as done."""

    def send_run(self, deliveries: list[Delivery], packet_ids: list[int]) -> list[int]:
        """The same for several of QoS 1, DUP 0; returns the identifiers of those that this client cannot take."""

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        """The same, but not before ``batch`` is on disk."""

    def send_pubrel(self, packet_id: int) -> None:
        """The second half of a QoS 2 delivery."""


class Observer(Protocol):
    """Who is told of deliveries that will not happen. ``core.broker`` counts them and fires ``delivery.dropped``."""

    def delivery_dropped(self, session: "Session", delivery: Delivery, reason: str) -> None:
        """``reason`` is one of the names above."""
