"""Durability: the data of a node that outlives the process. A node has one ``Durability``, and none at level
``memory``."""

import time
from collections.abc import Callable

from ..loop.budget import LoopBudget
from .group_commit import GroupCommit
from .log.write_ahead_log import WriteAheadLog
from .node_journal import NodeJournal
from .paging import Paging
from .session_journal import DurableSessionJournal
from .tables import Tables


class Durability:
    """``sessions``, ``node`` and ``tables`` record changes, and ``commit`` writes the records to disk. ``copies_bytes``
    returns the memory of batches that are kept for other nodes, or for the copies of their data here."""

    __slots__ = ("commit", "copies_bytes", "node", "paging", "sessions", "skew", "tables")

    def __init__(
        self,
        log: WriteAheadLog,
        wake: Callable[[], None],
        queue_memory: int = 0,
        now: Callable[[], float] = time.time,
        tables: Tables | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        skew: Callable[[], float] = lambda: 0.0,
        budget: LoopBudget | None = None,
    ) -> None:
        """``queue_memory``: limit of queued bodies in memory, in bytes; 0: no limit. ``skew``: the difference between
        dates and times (``loop.clock``); only dates are written. The other parameters are as in ``GroupCommit``."""
        self.skew = skew
        self.tables = tables or Tables()
        self.commit = self.tables.commit = GroupCommit(log, wake, skew, self.tables.changed_access, later, budget)
        self.paging = Paging(log, queue_memory, now)
        self.sessions = DurableSessionJournal(self.commit, self.paging, skew)
        self.node = NodeJournal(self.commit, skew)
        self.copies_bytes: Callable[[], int] = lambda: 0

    def on_durable(self, seq: int) -> None:
        """Called by the writer: everything up to ``seq`` is on disk."""
        self.sessions.on_durable(seq)
        self.commit.on_durable(seq)
        self.paging.evict()
