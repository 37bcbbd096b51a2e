"""The resource types of PostgreSQL and of its relatives: a database into which rules write rows."""

from typing import Final

from ...databases.database_sink import (
    DatabaseConnection,
    DatabaseSink,
    connection_params,
    database_params,
)
from ...databases.sql_template import POSTGRESQL
from ...params import Text
from ...resources.lane_connections import missing
from ...resources.resource import ResourceError, ResourceType
from ...resources.sink import buffered


class Postgresql(DatabaseSink):
    """A PostgreSQL database."""

    dialect = POSTGRESQL
    default_port = 5432
    user_param = "username"

    async def connect(self) -> None:
        try:
            import asyncpg  # noqa: F401 - a node without such a resource does not need it
        except ImportError:
            raise missing("asyncpg", "postgresql") from None

    async def open(self, address: str) -> DatabaseConnection:
        import asyncpg

        from .connection import ERRORS, PostgresqlConnection

        try:
            connection = await asyncpg.connect(
                host=address,
                port=self.port,
                user=self.user,
                password=self.password,
                database=self.database,
                timeout=self.connect_timeout,
                statement_cache_size=0,
                ssl=self.tls if self.tls is not None else False,
                server_settings={"application_name": "taipan"},
            )
        except ERRORS as error:
            raise ResourceError(" ".join(str(error).split())) from None
        return PostgresqlConnection(connection)


def _type(name: str, title: str, order: int) -> ResourceType:
    return ResourceType(
        name,
        Text(title, title),
        Text(f"A {title} database into which rows are written", f"写入数据的 {title} 数据库"),
        buffered(Postgresql),
        database_params("127.0.0.1:5432", "username", "root"),
        connection=connection_params("username"),
        order=order,
    )


RESOURCES: Final = (
    _type("backend_pgsql", "PostgreSQL", 10),
    _type("backend_timescale", "TimescaleDB", 11),
    # Its name before EMQX 4.3.
    _type("timescaledb", "TimescaleDB", 12),
    _type("backend_matrix", "MatrixDB", 13),
)
