"""Durability: what outlives the process. One for the node, absent at level ``memory``."""

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
    """``sessions``, ``node`` and ``tables`` write down what happens, ``commit`` puts it on disk."""

    __slots__ = ("commit", "node", "paging", "sessions", "skew", "tables")

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
        """``queue_memory``: bytes of queued bodies in memory, 0: any. ``skew``: what makes dates of times
        (``loop.clock``); only dates are written down. The others: as in ``GroupCommit``."""
        self.skew = skew
        self.tables = tables or Tables()
        self.commit = self.tables.commit = GroupCommit(log, wake, skew, self.tables.changed_access, later, budget)
        self.paging = Paging(log, queue_memory, now)
        self.sessions = DurableSessionJournal(self.commit, self.paging, skew)
        self.node = NodeJournal(self.commit, skew)

    def on_durable(self, seq: int) -> None:
        """The writer's word: everything up to ``seq`` is on disk."""
        self.sessions.on_durable(seq)
        self.commit.on_durable(seq)
        self.paging.evict()
