"""PostgresqlSource: asks PostgreSQL, with statements that the server has prepared."""

from typing import Any, Final

import asyncpg

from ...loop.answer_limit import answer_within
from ..database import StoredPassword, Values, as_bytes
from ..database_checks import tls_of
from ..database_settings import address_of
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from ..sql_source import SqlSource, in_one_line
from .declaration import PostgresqlAccessSettings

_ERRORS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The errors of asyncpg; the last one also if the server has ended an idle connection, and its end is not read yet."""


class PostgresqlSource(SqlSource):
    """Belongs to one event loop."""

    setting = "access.postgresql.acl_query"
    title = "PostgreSQL"

    def __init__(self, settings: PostgresqlAccessSettings, context: SourceContext) -> None:
        """Raises ValueError for a file that cannot be used."""
        super().__init__("postgresql", settings, context)
        self._statements = {
            word: query.statement(lambda index: f"${index + 1}") for word, query in self.queries.items()
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
            "timeout": None,
            "server_settings": {"application_name": "taipan"},
        }
        self._connect_timeout = settings.connect_timeout

    async def check(self, connection: Any) -> None:
        """Let the server prepare the statements, which reveals invalid ones."""
        for word, statement in self._statements.items():
            try:
                await connection.prepare(statement)
            except _ERRORS as error:
                raise SourceFailed("query", f"access.{self.name}.{word}", in_one_line(error)) from None
            except OSError as error:
                raise SourceFailed("broken", detail=in_one_line(error), away=True) from None

    async def find_password(self, values: Values) -> StoredPassword | None:
        rows = await self.rows("auth_query", values)
        if not rows:
            return None
        if len(rows) > 1:
            raise SourceFailed("several_rows")
        row = rows[0]
        if not 1 <= len(row) <= 2:
            raise SourceFailed("bad_row", detail=f"{len(row)} columns, expected password, or password and salt")
        return StoredPassword(as_bytes(row[0]), as_bytes(row[1]) if len(row) == 2 else None)

    async def find_superuser(self, values: Values) -> bool:
        rows = await self.rows("super_query", values)
        return len(rows) == 1 and len(rows[0]) > 0 and rows[0][0] is True

    async def open(self) -> Any:
        try:
            async with answer_within(self._connect_timeout):
                return await asyncpg.connect(**self._options)
        except TimeoutError:
            raise SourceFailed("timeout", f"access.{self.name}.connect_timeout", away=True) from None
        except (OSError, ValueError, *_ERRORS) as error:
            raise SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True) from None

    async def fetch(self, connection: Any, word: str, values: Values) -> list[Any]:
        bound = [values.get(letter) for letter in self.queries[word].letters]
        try:
            rows: list[Any] = await connection.fetch(self._statements[word], *bound)
            return rows
        except (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, OSError) as error:
            # The server is stopping, or has ended this connection.
            raise SourceFailed("broken", detail=in_one_line(error), away=True) from None
        except _ERRORS as error:  # also a value that the type cannot have
            away = connection.is_closed() or isinstance(error, asyncpg.InternalClientError)
            raise SourceFailed("broken" if away else "query", detail=in_one_line(error), away=away) from None

    def abort(self, connection: Any) -> None:
        connection.terminate()
