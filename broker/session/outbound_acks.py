"""Acknowledgements from a client for messages sent to it: PUBACK for QoS 1, PUBREC and PUBCOMP for QoS 2."""

from typing import TYPE_CHECKING

from ..mqtt.errors import ProtocolError
from ..mqtt.message import Delivery, Message

if TYPE_CHECKING:
    from .session import Session


def puback(session: "Session", *packet_ids: int) -> list[Delivery]:
    """Do the same as ``puback_run`` for one identifier."""
    return puback_run(session, list(packet_ids))


def puback_run(session: "Session", packet_ids: list[int]) -> list[Delivery]:
    """Complete QoS 1 deliveries; return them, ignoring identifiers that are not in use.

    :raises ProtocolError: an identifier belongs to a QoS 2 delivery. Deliveries before it are complete."""
    inflight = session.change_inflight()
    acknowledged: list[Delivery] = []
    simple = session.sent_at is None and session.resend is None
    try:
        for packet_id in packet_ids:
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.qos != 1:
                if packet_id in inflight:
                    raise ProtocolError("PUBACK for a QoS 2 message")
                continue
            if simple:
                del inflight[packet_id]
            else:
                session.forget(packet_id)
            acknowledged.append(delivery)
    finally:
        if session.journal is not None:
            session.journal.done(session, acknowledged)
    return acknowledged


def pubrec(session: "Session", packet_id: int, failed: bool = False) -> tuple[bool, Delivery | None]:
    """Process the first acknowledgement of QoS 2; return (whether the identifier is known, its delivery).

    A second PUBREC for a released identifier is known, with ``None``. ``failed`` (Reason Code >= 0x80) ends the
    exchange [MQTT-4.4.0-2].

    :raises ProtocolError: the identifier belongs to a QoS 1 delivery."""
    inflight = session.inflight
    if packet_id not in inflight:
        return False, None
    delivery = inflight[packet_id]
    if delivery is not None:
        if delivery.qos != 2:
            raise ProtocolError("PUBREC for a QoS 1 message")
        session.forget(packet_id)
        if not failed:
            if session.sent_at is not None:
                session.sent_at[packet_id] = session.now
            if session.journal is not None:
                session.journal.released(session, delivery, packet_id)
            # Moved to the end: PUBRELs are repeated in the order of their PUBRECs.
            session.change_inflight()[packet_id] = None
        else:
            session.done(delivery)
    elif failed:
        session.forget(packet_id)
        if session.journal is not None:
            session.journal.completed(session, packet_id)
    return True, delivery


def pubcomp(session: "Session", packet_id: int) -> bool:
    """Complete a QoS 2 delivery. Return False if the identifier is not in use.

    :raises ProtocolError: PUBREL has not been sent for it yet."""
    inflight = session.inflight
    if packet_id not in inflight:
        return False
    if inflight[packet_id] is not None:
        raise ProtocolError("PUBCOMP before PUBREL")
    session.forget(packet_id)
    if session.journal is not None:
        session.journal.completed(session, packet_id)
    return True


def note_completion(session: "Session", packet_id: int, message: Message) -> None:
    """Keep the message of a released identifier until its PUBCOMP."""
    if session.completions is None:
        session.completions = {}
    session.completions[packet_id] = message


def completion_of(session: "Session", packet_id: int) -> Message | None:
    """Return the message kept for this identifier, and forget it."""
    return None if session.completions is None else session.completions.pop(packet_id, None)
