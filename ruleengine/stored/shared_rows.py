"""Rules and resources in a cluster: rows that other nodes change, and the requirements for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from taipan.broker.persistence.tables import RowTooLarge, Table

from ..error import WRONG, RuleEngineError
from .rows import Stored, check_stored

logger = logging.getLogger(__name__)


class TakenRows:
    """Rows that other nodes have changed: each is processed once, in a task, after the current changes."""

    def __init__(self, take: Callable[[str], Awaitable[None]]) -> None:
        """``take`` applies the current row of the table on this node."""
        self._take = take
        self._ids: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, id: str, old: object, new: object) -> None:
        self._ids[id] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._ids:
                id = next(iter(self._ids))
                del self._ids[id]
                try:
                    await self._take(id)
                except Exception:  # an error in one row; the others are still processed
                    logger.exception("row_not_taken id=%s", id)
        finally:
            self._task = None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def check_row(table: Table[Stored], row: Stored) -> Stored:
    """Return the row if it can be stored and sent to other nodes. Raises RuleEngineError."""
    check_stored(row)
    try:
        table.check(row.id, row)
    except RowTooLarge as error:
        raise RuleEngineError(WRONG, str(error)) from error
    return row


def check_unchanged(table: Table[Stored], id: str, row: Stored) -> None:
    """Raise RuleEngineError if another node has changed the row, and the change has not yet been applied here."""
    if table.get(id) != row:
        raise RuleEngineError(WRONG, f"{id} was just changed by another node; check it and try again")
