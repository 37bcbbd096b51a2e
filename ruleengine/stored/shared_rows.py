"""Rules and resources in a cluster: rows that other nodes change, and what a row of theirs must be like."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from taipan.broker.persistence.tables import RowTooLarge, Table

from ..error import WRONG, RuleEngineError
from .rows import Stored, check_stored

logger = logging.getLogger(__name__)


class TakenRows:
    """Rows that other nodes have changed: each is looked at once, in a task, after the changes that are under way."""

    def __init__(self, take: Callable[[str], Awaitable[None]]) -> None:
        """``take`` makes of the row that the table has now what runs here."""
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
                except Exception:  # of one row; the others are taken all the same
                    logger.exception("row_not_taken id=%s", id)
        finally:
            self._task = None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


def check_row(table: Table[Stored], row: Stored) -> Stored:
    """The row, if it can be stored, and given to other nodes. Raises RuleEngineError."""
    check_stored(row)
    try:
        table.check(row.id, row)
    except RowTooLarge as error:
        raise RuleEngineError(WRONG, str(error)) from error
    return row


def check_unchanged(table: Table[Stored], id: str, row: Stored) -> None:
    """Raises RuleEngineError where another node has changed it, and that has not taken effect here yet."""
    if table.get(id) != row:
        raise RuleEngineError(WRONG, f"{id} was just changed by another node; check it and try again")
