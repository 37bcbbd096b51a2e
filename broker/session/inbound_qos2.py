"""QoS 2 from the client: Packet Identifiers, each of which means one message from its PUBLISH to its PUBREL."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .session import Session

# Results for the Packet Identifier of a PUBLISH.
NEW: Final = 0
DUPLICATE: Final = 1
FULL: Final = 2


def receive(session: "Session", packet_id: int, now: float) -> int:
    """Note the identifier of a PUBLISH: NEW, DUPLICATE [MQTT-4.3.3-10], or FULL (not noted)."""
    awaiting = session.awaiting_rel
    if awaiting is None:
        session.awaiting_rel = {packet_id: now}
    elif packet_id in awaiting:
        return DUPLICATE
    elif 0 < session.limits.max_awaiting_rel <= len(awaiting):
        return FULL
    else:
        awaiting[packet_id] = now
    if session.journal is not None:
        session.journal.received(session, packet_id, now)
    return NEW


def release(session: "Session", packet_id: int) -> bool:
    """Free the identifier after PUBREL, or after a refusing PUBREC. Return False if it was not in use."""
    awaiting = session.awaiting_rel
    if awaiting is None or packet_id not in awaiting:
        return False
    del awaiting[packet_id]
    if not awaiting:
        session.awaiting_rel = None
    if session.journal is not None:
        session.journal.freed(session, packet_id)
    return True


def drop_unreleased(session: "Session", before: float) -> int:
    """Drop identifiers received earlier than ``before``; return how many."""
    awaiting = session.awaiting_rel
    if awaiting is None:
        return 0
    old = [packet_id for packet_id, at in awaiting.items() if at < before]
    for packet_id in old:
        release(session, packet_id)
    return len(old)
