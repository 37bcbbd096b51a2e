"""SqlSource: a DatabaseSource that asks over a pool of connections."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ..setting_rules import Fault
from .acl import AclRule
from .connection_pool import ConnectionPool
from .database import DatabaseSource, Queries, StoredPassword, Values, hash_of_columns
from .database_checks import common_faults
from .password_hash import PasswordVerifier
from .query_hash import HashFormat
from .source import SourceContext
from .sql_query import SqlQuery
from .sql_rules import rules_of
from .sql_settings import QUERIES, SqlAccessSettings

_SHOWN: Final = 300


def faults(settings: SqlAccessSettings) -> Iterator[Fault]:
    """Yield the faults in combinations of keys, and those of the files."""
    yield from common_faults(settings, settings.texts())


class SqlSource(DatabaseSource):
    """Belongs to one event loop."""

    def __init__(self, name: str, settings: SqlAccessSettings, context: SourceContext) -> None:
        self.queries = {word: SqlQuery(text) for word, text in settings.texts().items() if text.strip()}
        letters = [frozenset(self.queries[word].letters) if word in self.queries else None for word in QUERIES]
        super().__init__(name, settings, context, Queries(QUERIES, *letters))
        self._form = HashFormat(settings.password_hash)
        self._pool: ConnectionPool[Any] = ConnectionPool(self.open, self.abort)

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

    async def connect(self) -> None:
        """Open the first connection of the pool, so that clients find an open connection."""
        connection = await self.open()
        try:
            await self.check(connection)
        except BaseException:
            self.abort(connection)
            raise
        self._pool.keep(connection)

    async def check(self, connection: Any) -> None:
        """Raise SourceFailed for a query that is invalid."""

    # ------------------------------------------------------------- questions

    async def rows(self, word: str, values: Values) -> Sequence[Any]:
        """Return the rows of a query. Raises SourceFailed."""
        return await self._pool.use(lambda connection: self.fetch(connection, word, values))

    def verifier(self, row: StoredPassword, password: bytes, owner: str) -> PasswordVerifier | None:
        return hash_of_columns(self._form, row, password, owner)

    async def find_rules(self, values: Values) -> list[AclRule]:
        return rules_of([tuple(row) for row in await self.rows("acl_query", values)])

    def close_connections(self) -> None:
        self._pool.close()


def in_one_line(error: Exception) -> str:
    """Return the text of a database's error."""
    return " ".join(str(error).split())[:_SHOWN] or type(error).__name__
