"""Inbound: QoS 2 messages that the client sent, from PUBLISH to PUBREL."""

from typing import Final

from .state import SessionState

# What became of a Packet Identifier.
NEW: Final = 0
DUPLICATE: Final = 1
FULL: Final = 2


class Inbound(SessionState):
    """Which Packet Identifiers of the client wait for PUBREL: ``awaiting_rel``."""

    __slots__ = ()

    def receive2(self, packet_id: int, now: float) -> int:
        """Note an inbound QoS 2 identifier: NEW, DUPLICATE [MQTT-4.3.3-10], or FULL (not noted)."""
        awaiting = self.awaiting_rel
        if awaiting is None:
            self.awaiting_rel = {packet_id: now}
        elif packet_id in awaiting:
            return DUPLICATE
        elif 0 < self.limits.max_awaiting_rel <= len(awaiting):
            return FULL
        else:
            awaiting[packet_id] = now
        if self.diary is not None:
            self.diary.received(self, packet_id, now)
        return NEW

    def release(self, packet_id: int) -> bool:
        """PUBREL, or a refused PUBREC: the identifier is free again. False: it was not in use."""
        awaiting = self.awaiting_rel
        if awaiting is None or packet_id not in awaiting:
            return False
        del awaiting[packet_id]
        if not awaiting:
            self.awaiting_rel = None
        if self.diary is not None:
            self.diary.freed(self, packet_id)
        return True

    def forget_unreleased(self, before: float) -> int:
        """Drop inbound QoS 2 identifiers received earlier than ``before``; how many."""
        awaiting = self.awaiting_rel
        if awaiting is None:
            return 0
        old = [packet_id for packet_id, at in awaiting.items() if at < before]
        for packet_id in old:
            self.release(packet_id)
        return len(old)
