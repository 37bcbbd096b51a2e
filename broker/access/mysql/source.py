"""MysqlSource: asks MySQL or MariaDB.

aiomysql has no prepared statements: values are written into a statement by ``literal``."""

from typing import Any, Final

from aiomysql.cursors import Cursor, DictCursor
from pymysql import err

from ...loop.answer_limit import answer_within
from ...mysql_connection import SecureConnection, literal
from ..database import StoredPassword, Values, as_bytes
from ..database_checks import tls_of
from ..database_settings import address_of
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION
from ..source import SourceContext
from ..sql_source import SqlSource, in_one_line
from .declaration import MysqlAccessSettings

_LOST: Final = frozenset([1053, 1077, 1152, 1927, 2006, 2013, 2055, 4031])
"""Errors after which the connection has ended, or the server is stopping."""


class MysqlSource(SqlSource):
    """Belongs to one event loop."""

    setting = "access.mysql.acl_query"
    title = "MySQL"

    def __init__(self, settings: MysqlAccessSettings, context: SourceContext) -> None:
        """Raises ValueError for a file that cannot be used."""
        super().__init__("mysql", settings, context)
        host, port = address_of(settings.server, 3306)
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": settings.username,
            "password": settings.password,
            "database": settings.database,
            "tls": tls_of(settings),
        }
        self._connect_timeout = settings.connect_timeout

    async def find_password(self, values: Values) -> StoredPassword | None:
        """Find the columns of the first row by name, as EMQX 4 does."""
        rows = await self.rows("auth_query", values)
        if not rows:
            return None
        if "password" not in rows[0]:
            raise SourceFailed("bad_row", detail="no column password")
        return StoredPassword(as_bytes(rows[0]["password"]), as_bytes(rows[0].get("salt")))

    async def find_superuser(self, values: Values) -> bool:
        rows = await self.rows("super_query", values)
        return bool(rows) and rows[0][0] == 1

    async def open(self) -> SecureConnection:
        connection = SecureConnection.to(**self._options)
        connected = False
        try:
            async with answer_within(self._connect_timeout):
                await connection._connect()
            connected = True
            return connection
        except TimeoutError:
            raise SourceFailed("timeout", f"access.{self.name}.connect_timeout", away=True) from None
        except (OSError, err.MySQLError, RuntimeError, ValueError) as error:
            raise SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True) from None
        finally:
            if not connected:
                connection.close()

    async def fetch(self, connection: SecureConnection, word: str, values: Values) -> list[Any]:
        query = self.queries[word]
        statement = query.statement(lambda index: literal(values.get(query.letters[index])))
        try:
            async with connection.cursor(DictCursor if word == "auth_query" else Cursor) as cursor:
                await cursor.execute(statement)
                return list(await cursor.fetchall())
        except (err.MySQLError, RuntimeError) as error:
            number = error.args[0] if error.args else None
            lost = not isinstance(error, err.MySQLError) or number in _LOST or isinstance(error, err.InterfaceError)
            raise SourceFailed("broken" if lost else "query", detail=in_one_line(error), away=lost) from None
        except OSError as error:
            raise SourceFailed("broken", detail=in_one_line(error), away=True) from None

    def abort(self, connection: SecureConnection) -> None:
        connection.close()
