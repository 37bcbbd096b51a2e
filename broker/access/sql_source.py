"""SqlSource: a DatabaseSource that asks over a pool of connections."""

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..setting_rules import Fault
from .acl import AclRule
from .database import DatabaseSource, Queries, Values
from .database_checks import common_faults
from .remote import SourceFailed
from .source import SourceContext
from .sql_query import SqlQuery
from .sql_rules import rules_of
from .sql_settings import QUERIES, SqlAccessSettings

_SHOWN: Final = 300


def faults(settings: SqlAccessSettings) -> Iterator[Fault]:
    """Yield the faults between several keys, and of files."""
    yield from common_faults(settings, settings.texts())


class SqlSource(DatabaseSource):
    """Belongs to one event loop. A connection whose query was given up is closed, because its answer may still
    arrive."""

    def __init__(self, name: str, settings: SqlAccessSettings, context: SourceContext) -> None:
        self.queries = {word: SqlQuery(text) for word, text in settings.texts().items() if text.strip()}
        letters = [frozenset(self.queries[word].letters) if word in self.queries else None for word in QUERIES]
        super().__init__(name, settings, context, Queries(QUERIES, *letters))
        self._free: list[Any] = []
        self._places = asyncio.Semaphore(settings.pool_size)
        self._closed = False

    # --------------------------------------------------------- of a database

    @abstractmethod
    async def open(self) -> Any:
        """Return a new connection. Raises SourceFailed."""

    @abstractmethod
    async def fetch(self, connection: Any, word: str, values: Values) -> Sequence[Any]:
        """Return the rows of the query with this setting. Raises SourceFailed, with ``away`` if the connection cannot
        be used again."""

    @abstractmethod
    def abort(self, connection: Any) -> None:
        """Close a connection without waiting."""

    # ------------------------------------------------------------- questions

    async def rows(self, word: str, values: Values) -> Sequence[Any]:
        """Return the rows of a query. Raises SourceFailed."""
        async with self._places:
            while self._free:
                try:
                    return await self._fetched(self._free.pop(), word, values)
                except SourceFailed as failure:
                    if not failure.away:
                        raise
                    # The server may have closed the connection while nobody used it.
            return await self._fetched(await self.open(), word, values)

    async def _fetched(self, connection: Any, word: str, values: Values) -> Sequence[Any]:
        usable = False
        try:
            rows = await self.fetch(connection, word, values)
            usable = True
            return rows
        except SourceFailed as failure:
            usable = not failure.away
            raise
        finally:
            if usable and not self._closed:
                self._free.append(connection)
            else:
                self.abort(connection)

    async def find_rules(self, values: Values) -> list[AclRule]:
        return rules_of([tuple(row) for row in await self.rows("acl_query", values)])

    def close_connections(self) -> None:
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            self.abort(connection)


def in_one_line(error: Exception) -> str:
    """Return the text of a database's error."""
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__
