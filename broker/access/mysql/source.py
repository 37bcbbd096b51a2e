"""MysqlSource: asks over a pool of connections.

The library has no prepared statements. A value is written into the statement in hexadecimal: then none of its
characters has a meaning in SQL, with any ``sql_mode`` of the server.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final

from pymysql import err

from ...mysql_connection import SecureConnection
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
from .declaration import MysqlAccessSettings

_WORDS: Final = ("auth_query", "superuser_query", "acl_query")
_LOST: Final = frozenset([1053, 1077, 1152, 1927, 2006, 2013, 2055, 4031])
"""Errors by which the connection has ended, or the server is being stopped."""


def _asked(settings: MysqlAccessSettings) -> dict[str, str]:
    return {
        "auth_query": settings.auth_query,
        "superuser_query": settings.superuser_query,
        "acl_query": settings.acl_query,
    }


def faults(settings: MysqlAccessSettings) -> Iterator[Fault]:
    """Yield the faults between several keys, and of files."""
    yield from common_faults(settings, _asked(settings))


def literal(value: str | None) -> str:
    """A value as part of a statement. It compares like the column beside it."""
    return "NULL" if value is None else f"_utf8mb4 X'{value.encode('utf-8', 'replace').hex()}'"


class MysqlSource(DatabaseSource):
    """Belongs to one event loop. A connection whose question was given up is closed: its answer may still come."""

    setting = "access.mysql.acl_query"
    title = "MySQL"

    def __init__(self, settings: MysqlAccessSettings, context: SourceContext) -> None:
        """``ValueError`` for a file that cannot be used."""
        self._queries_by_word = {word: SqlQuery(text) for word, text in _asked(settings).items() if text.strip()}
        asked = [
            frozenset(self._queries_by_word[word].letters) if word in self._queries_by_word else None for word in _WORDS
        ]
        super().__init__("mysql", settings, context, Queries(_WORDS, *asked))
        host, port = address_of(settings.server, 3306)
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": settings.username,
            # aiomysql encodes it as Latin-1, and MySQL expects UTF-8.
            "password": settings.password.encode().decode("latin-1"),
            "db": settings.database,
            "ssl": tls_of(settings),
            "charset": "utf8mb4",
            "autocommit": True,
        }
        self._connect_timeout = settings.connect_timeout
        self._free: list[Any] = []
        self._places = asyncio.Semaphore(settings.pool_size)
        self._closed = False

    async def connect(self) -> None:
        """Open a connection, and close it."""
        (await self._opened()).close()

    async def find_password(self, values: Values) -> StoredPassword | None:
        """The columns of the first row are found by name, as in EMQX 4."""
        names, rows = await self._rows("auth_query", values)
        if not rows:
            return None
        row = dict(zip(names, rows[0], strict=True))
        if "password" not in row:
            raise SourceFailed("bad_row", detail="no column password")
        return StoredPassword(as_bytes(row["password"]), as_bytes(row.get("salt")))

    async def find_superuser(self, values: Values) -> bool:
        _, rows = await self._rows("superuser_query", values)
        return bool(rows) and rows[0][0] == 1

    async def find_rules(self, values: Values) -> list[AclRule]:
        _, rows = await self._rows("acl_query", values)
        return rules_of(rows)

    async def _rows(self, word: str, values: Values) -> tuple[list[str], list[tuple[object, ...]]]:
        query = self._queries_by_word[word]
        statement = query.statement(lambda index: literal(values.get(query.letters[index])))
        async with self._places:
            while self._free:
                try:
                    return await self._executed(self._free.pop(), statement)
                except SourceFailed as why:
                    if not why.away:
                        raise
                    # The server may have closed it while nobody used it.
            return await self._executed(await self._opened(), statement)

    async def _executed(self, connection: Any, statement: str) -> tuple[list[str], list[tuple[object, ...]]]:
        kept = False
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(statement)
                rows = list(await cursor.fetchall())
                names = [column[0] for column in cursor.description or ()]
            kept = True
            return names, rows
        except (err.MySQLError, RuntimeError) as error:
            number = error.args[0] if error.args else None
            lost = not isinstance(error, err.MySQLError) or number in _LOST or isinstance(error, err.InterfaceError)
            kept = not lost
            raise SourceFailed("broken" if lost else "query", detail=_words(error), away=lost) from None
        except OSError as error:
            raise SourceFailed("broken", detail=_words(error), away=True) from None
        finally:
            if kept and not self._closed:
                self._free.append(connection)
            else:
                connection.close()

    async def _opened(self) -> Any:
        connection = SecureConnection(**self._options)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection._connect()
            return connection
        except TimeoutError:
            raise SourceFailed("timeout", f"access.{self.name}.connect_timeout", away=True) from None
        except asyncio.CancelledError:
            connection.close()
            raise
        except (OSError, err.MySQLError, RuntimeError, ValueError) as error:
            raise SourceFailed(NO_CONNECTION, detail=_words(error), away=True) from None

    def close_connections(self) -> Coroutine[Any, Any, None] | None:
        self._closed = True
        free, self._free = self._free, []
        for connection in free:
            connection.close()
        return None


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
