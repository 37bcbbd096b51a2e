"""RecentTroubles: the clients behind refusals and drops of the last ten minutes."""

from typing import Final

from .frequent_counts import ROW_BYTES, RecentCounts

CAPACITY: Final = 128
PERIODS: Final = 10
PERIOD: Final = 60.0
MAX_NAME: Final = 256
"""Maximum length of a stored Client Identifier in characters: clients that were not accepted choose them."""
_MAX_TOPIC: Final = 256


Trouble = tuple[str, str, str, str]
"""An event such as ``delivery_dropped``, the client ID, the reason, and the setting that decided."""


class RecentTroubles:
    """The most frequent troubles, each with its latest topic, address and time; and the Shared Subscriptions that lose
    messages."""

    __slots__ = ("clients", "groups")

    def __init__(self) -> None:
        self.clients: RecentCounts[Trouble] = RecentCounts(CAPACITY, PERIODS, PERIOD)
        self.groups: RecentCounts[str] = RecentCounts(CAPACITY, PERIODS, PERIOD)

    def add(
        self, event: str, client_id: str, reason: str, setting: str, now: float, topic: str = "", host: str = ""
    ) -> None:
        """Count an event; ``now`` in seconds of the node's clock."""
        key = (event, client_id[:MAX_NAME], reason, setting)
        self.clients.add(key, now, 1, (now, topic[:_MAX_TOPIC], host))

    @property
    def size(self) -> int:
        """Return approximately how many bytes of memory the counts use."""
        return ROW_BYTES * (len(self.clients) + len(self.groups))

    def lost(self, group: str, now: float) -> None:
        """Count a message that a member of a Shared Subscription did not get."""
        self.groups.add(group[:_MAX_TOPIC], now)
