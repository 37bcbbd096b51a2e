"""Messages that are sent again: all unacknowledged ones after a reconnect, and after a retry interval on a live
connection."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..mqtt.message import Delivery
from .protocols import ClientWriter

if TYPE_CHECKING:
    from .session import Session


class Resend:
    """Packet Identifiers in flight that still have to be sent again on a new connection, in order.

    ``topics`` are those of their messages, once it is known that not all can be sent immediately: QoS 0 messages of
    these topics wait for them in the queue."""

    __slots__ = ("left", "topics")

    def __init__(self, packet_ids: Iterable[int]) -> None:
        self.left: OrderedDict[int, None] = OrderedDict.fromkeys(packet_ids)
        self.topics: set[str] | None = None

    def advance(self, session: "Session", writer: ClientWriter) -> bool:
        """Send again as much as window and socket allow; return whether everything is sent."""
        left = self.left
        while left:
            packet_id = next(iter(left))
            delivery = session.inflight[packet_id]
            if delivery is None:
                _send_pubrel(session, packet_id)
            elif len(session.inflight) - len(left) >= session.window or not writer.writable:
                # The new connection's Receive Maximum also limits these [MQTT-3.3.4-9]. Some may never have been sent:
                # their identifiers were not on disk when the last connection ended.
                if self.topics is None:
                    waiting = [session.inflight[each] for each in left]
                    self.topics = {each.message.topic for each in waiting if each is not None}
                    if session.queue is None:
                        session.new_queue()
                return False
            elif not _send_again(session, writer, packet_id, delivery):
                session.cannot_send(packet_id, delivery)
                continue
            if session.sent_at is not None:
                session.sent_at[packet_id] = session.now
            left.pop(packet_id, None)
        return True


def retransmit_older(session: "Session", before: float, now: float) -> None:
    """Send messages again, on a live connection, that were sent before ``before`` and not acknowledged.

    Only for 3.x clients, if a retry interval is configured; 5.0 forbids it [MQTT-4.4.0-1]."""
    session.now = now
    writer = session.writer
    sent_at = session.sent_at
    if writer is None or sent_at is None or session.resend is not None:
        return
    for packet_id, delivery in list(session.inflight.items()):
        if sent_at.get(packet_id, now) >= before or not writer.writable:
            continue
        sent_at[packet_id] = now
        if delivery is None:
            _send_pubrel(session, packet_id)
        else:
            _send_again(session, writer, packet_id, delivery)


def _send_pubrel(session: "Session", packet_id: int) -> None:
    """Send PUBREL. Only a conversation in packets has released identifiers; others acknowledge in one step."""
    if session.packets is not None:
        session.packets.send_pubrel(packet_id)


def _send_again(session: "Session", writer: ClientWriter, packet_id: int, delivery: Delivery) -> bool:
    packets = session.packets
    if packets is None or session.journal is None or delivery.qos != 2:
        return writer.send_publish(delivery, packet_id, True)
    # The connection on which it was first sent may have ended before the identifier was on disk.
    return packets.send_publish_after(session.journal.barrier, delivery, packet_id, True)
