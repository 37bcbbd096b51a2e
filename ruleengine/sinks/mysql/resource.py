"""The resource type ``backend_mysql``: a MySQL or MariaDB database into which rules write rows."""

from typing import Final

from ...databases.database_sink import (
    DatabaseConnection,
    DatabaseSink,
    connection_params,
    database_params,
)
from ...databases.sql_template import MYSQL
from ...params import Text
from ...resources.lane_connections import missing
from ...resources.resource import ResourceType
from ...resources.sink import buffered


class Mysql(DatabaseSink):
    """A MySQL or MariaDB database."""

    dialect = MYSQL
    default_port = 3306
    user_param = "user"

    async def connect(self) -> None:
        try:
            import aiomysql  # noqa: F401 - a node without such a resource does not need it
        except ImportError:
            raise missing("aiomysql", "mysql") from None

    async def open(self, address: str) -> DatabaseConnection:
        from pymysql.err import MySQLError

        from taipan.broker.mysql_connection import SecureConnection

        from .connection import MysqlConnection, reason

        connection = SecureConnection.to(address, self.port, self.user, self.password, self.database, self.tls)
        try:
            await connection._connect()
        except MySQLError as error:
            raise OSError(reason(error)) from None
        except BaseException:
            connection.close()
            raise
        return MysqlConnection(connection)


TYPE: Final = ResourceType(
    "backend_mysql",
    Text("MySQL", "MySQL"),
    Text("A MySQL or MariaDB database into which rows are written", "写入数据的 MySQL 或 MariaDB 数据库"),
    buffered(Mysql),
    database_params("127.0.0.1:3306", "user", None),
    connection=connection_params("user"),
    order=14,
)
RESOURCES: Final = (TYPE,)
