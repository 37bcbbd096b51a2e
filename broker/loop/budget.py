"""LoopBudget: the amount of output that the current iteration of the event loop has produced so far.

The publish path adds to it; the transport reads and resets it, to flush before too much output accumulates, and to
stop reading from publishers while output waits.
"""

from dataclasses import dataclass
from typing import Final

DELIVERIES_PER_ITERATION: Final = 4096
"""After this number of deliveries in one iteration, a publisher's remaining packets wait for the next iteration, so
that output is flushed and packets of other clients are processed in between."""
HIGH_WATER: Final = 67_108_864
"""Bytes of waiting output above which no publisher's packets are processed."""


@dataclass(slots=True)
class LoopBudget:
    """``deliveries``: the number of messages handed to subscribers, plus other work that takes as long as that many
    deliveries. ``bytes``: approximately how many bytes they will write.

    ``congested``: too much data waits for the disk; work that would add to it is refused."""

    deliveries: int = 0
    bytes: int = 0
    congested: bool = False
