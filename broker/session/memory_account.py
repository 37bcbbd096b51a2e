"""MemoryAccount: the memory of all sessions' queues, updated when they change, and the node's memory level."""

from typing import Final

NORMAL: Final = 0
REFUSING: Final = 1
SLOWING: Final = 2
SHEDDING: Final = 3
"""Levels of the node's memory; see ``core.memory``."""


ENTRY_BYTES: Final = 10
OWN_DELIVERY_BYTES: Final = 300
"""Bytes of an entry in a queue: its reference there and the session's bit at the message; of a separate delivery, and
its entry at the message."""
ALIAS_BYTES: Final = 100
"""Bytes of a Topic Alias, without its topic."""


class MemoryAccount:
    """``entries``: entries in queues; ``apart``: those with a separate delivery. ``message_bytes``: messages in queues
    of sessions that do not outlive their connection, each counted once. ``aliases``: approximate memory of Topic
    Aliases. ``unread``: total bytes ever produced for clients whose sockets were full. ``level``: one of the levels
    above."""

    __slots__ = ("aliases", "apart", "entries", "level", "message_bytes", "unread")

    def __init__(self) -> None:
        self.entries = 0
        self.apart = 0
        self.message_bytes = 0
        self.aliases = 0
        self.unread = 0
        self.level = NORMAL

    @property
    def queues(self) -> int:
        """Bytes of all queues."""
        return self.message_bytes + ENTRY_BYTES * self.entries + OWN_DELIVERY_BYTES * self.apart


UNACCOUNTED: Final = MemoryAccount()
"""For sessions that do not belong to a broker."""
