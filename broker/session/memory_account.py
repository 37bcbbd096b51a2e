"""MemoryAccount: what the queues of all sessions take in memory, kept as they change, and how short memory is."""

from typing import Final

NORMAL: Final = 0
REFUSING: Final = 1
SLOWING: Final = 2
SHEDDING: Final = 3
"""Levels of the node's memory, see ``core.memory``."""


ENTRY_BYTES: Final = 10
OWN_DELIVERY_BYTES: Final = 300
"""Bytes of a place in a queue: its reference there and the session's bit at the message; the delivery of its own, and
its entry at the message."""
ALIAS_BYTES: Final = 100
"""Bytes that a Topic Alias takes beside its topic."""


class MemoryAccount:
    """``entries``: places in queues; ``apart``: those among them with a delivery of their own. ``message_bytes``:
    messages in queues of sessions that do not outlive their connection, each once. ``aliases``: about what Topic
    Aliases take. ``unread``: bytes that were ever made for clients whose sockets took nothing. ``level``: one of the
    levels above."""

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
"""Of sessions that belong to no broker."""
