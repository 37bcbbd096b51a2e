"""PostgresqlSource: asks over a pool of connections, with statements that the database has prepared."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import asyncpg

from ...setting_rules import Fault
from ..acl import AclRule
from ..database import DatabaseSource, Queries, StoredPassword, Values, as_bytes
from ..database_checks import common_faults, tls_of
from ..database_settings import address_of
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from ..sql_query import SqlQuery
from ..sql_rules import rules_of
from .declaration import PostgresqlAccessSettings

_WORDS: Final = ("auth_query", "superuser_query", "acl_query")


def _asked(settings: PostgresqlAccessSettings) -> dict[str, str]:
    return {
        "auth_query": settings.auth_query,
        "superuser_query": settings.superuser_query,
        "acl_query": settings.acl_query,
    }


def faults(settings: PostgresqlAccessSettings) -> Iterator[Fault]:
    """Yield the faults between several keys, and of files."""
    yield from common_faults(settings, _asked(settings))


class PostgresqlSource(DatabaseSource):
    """Belongs to one event loop. A connection whose question was given up is closed: its answer may still come."""

    setting = "access.postgresql.acl_query"
    title = "PostgreSQL"

    def __init__(self, settings: PostgresqlAccessSettings, context: SourceContext) -> None:
        """``ValueError`` for a file that cannot be used."""
        self._queries_by_word = {word: SqlQuery(text) for word, text in _asked(settings).items() if text.strip()}
        asked = [
            frozenset(self._queries_by_word[word].letters) if word in self._queries_by_word else None for word in _WORDS
        ]
        super().__init__("postgresql", settings, context, Queries(_WORDS, *asked))
        self._settings = settings
        self._statements = {
            word: query.statement(lambda index: f"${index + 1}") for word, query in self._queries_by_word.items()
        }
        host, port = address_of(settings.server, 5432)
        tls = tls_of(settings)
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": settings.username,
            "password": settings.password,
            "database": settings.database,
            "ssl": False if tls is None else tls,
            "timeout": settings.connect_timeout,
            "server_settings": {"application_name": "taipan"},
        }
        self._free: list[Any] = []
        self._places = asyncio.Semaphore(settings.pool_size)
        self._closed = False

    async def connect(self) -> None:
        """Open a connection and have the statements prepared, which shows a wrong one."""
        connection = await self._opened()
        try:
            for word, statement in self._statements.items():
                try:
                    await connection.prepare(statement)
                except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                    raise SourceFailed("query", f"access.{self.name}.{word}", _words(error)) from None
        except OSError as error:
            raise SourceFailed("broken", detail=_words(error), away=True) from None
        finally:
            connection.terminate()

    async def find_password(self, values: Values) -> StoredPassword | None:
        rows = await self._rows("auth_query", values)
        if not rows:
            return None
        if len(rows) > 1:
            raise SourceFailed("several_rows")
        row = rows[0]
        if not 1 <= len(row) <= 2:
            raise SourceFailed("bad_row", detail=f"{len(row)} columns, expected password, or password and salt")
        return StoredPassword(as_bytes(row[0]), as_bytes(row[1]) if len(row) == 2 else None)

    async def find_superuser(self, values: Values) -> bool:
        rows = await self._rows("superuser_query", values)
        return len(rows) == 1 and len(rows[0]) > 0 and rows[0][0] is True

    async def find_rules(self, values: Values) -> list[AclRule]:
        return rules_of([tuple(row) for row in await self._rows("acl_query", values)])

    async def _rows(self, word: str, values: Values) -> list[Any]:
        bound = [values.get(letter) for letter in self._queries_by_word[word].letters]
        async with self._places:
            connection = self._taken()
            if connection is None:
                connection = await self._opened()
            kept = False
            try:
                rows: list[Any] = await connection.fetch(self._statements[word], *bound)
                kept = True
                return rows
            except (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError) as error:
                # It is being stopped, or has ended this connection.
                raise SourceFailed("broken", detail=_words(error), away=True) from None
            except asyncpg.PostgresError as error:
                kept = True
                raise SourceFailed("query", detail=_words(error)) from None
            except asyncpg.InterfaceError as error:  # a value that is none of the column's type; or closed
                away = connection.is_closed()
                raise SourceFailed("broken" if away else "query", detail=_words(error), away=away) from None
            except OSError as error:
                raise SourceFailed("broken", detail=_words(error), away=True) from None
            finally:
                if kept and not self._closed:
                    self._free.append(connection)
                else:
                    connection.terminate()

    def _taken(self) -> Any:
        """A connection that is open and not in use; None: there is none."""
        while self._free:
            connection = self._free.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _opened(self) -> Any:
        try:
            return await asyncpg.connect(**self._options)
        except TimeoutError:
            raise SourceFailed("timeout", f"access.{self.name}.connect_timeout", away=True) from None
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            raise SourceFailed(NO_CONNECTION, detail=_words(error), away=True) from None

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            connection.terminate()
        return None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
