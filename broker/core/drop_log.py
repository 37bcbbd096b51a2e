"""DropLog: tells in the log which deliveries are dropped, and by which setting.

Once a minute for each client and reason, with the number dropped since the last line.
"""

import logging
from typing import Final

from ..session.outlet import EXPIRED, NO_LOCAL, QOS0_MSG, QUEUE_FULL, TOO_LARGE

logger = logging.getLogger(__name__)

EVERY: Final = 60.0
MOST: Final = 1024

_SETTINGS: Final[dict[str, tuple[int, str]]] = {
    QUEUE_FULL: (logging.WARNING, "max_queued_messages, max_queued_bytes or max_outbox_bytes"),
    TOO_LARGE: (logging.INFO, "the client's Maximum Packet Size"),
    EXPIRED: (logging.INFO, "the message's Message Expiry Interval"),
    QOS0_MSG: (logging.DEBUG, "queue_qos0"),
    NO_LOCAL: (logging.DEBUG, "the subscription's No Local"),
}


class DropLog:
    """Remembers at most ``MOST`` pairs of client and reason, with what was dropped since their last line."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        # (Client Identifier, reason) -> [when the next line may come, dropped since the last]
        self._seen: dict[tuple[str, str], list[float]] = {}

    def note(self, client_id: str, topic: str, reason: str, now: float) -> None:
        """One delivery was dropped at ``now`` (unix seconds)."""
        level, setting = _SETTINGS[reason]
        if not logger.isEnabledFor(level):
            return
        seen = self._seen
        entry = seen.get((client_id, reason))
        if entry is None:
            if len(seen) >= MOST:
                del seen[next(iter(seen))]
            entry = seen[(client_id, reason)] = [0.0, 0]
        entry[1] += 1
        if now < entry[0]:
            return
        logger.log(
            level,
            "delivery_dropped client_id=%s topic=%s reason=%s setting=%s count=%s",
            client_id,
            topic[:256],
            reason,
            setting,
            int(entry[1]),
        )
        entry[0] = now + EVERY
        entry[1] = 0
