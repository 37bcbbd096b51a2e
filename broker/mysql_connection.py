"""SecureConnection: a connection to MySQL that never sends a password in the clear if it should use TLS; and how values
are written into statements."""

import ssl
from typing import Any

from aiomysql.connection import Connection
from pymysql.constants import CLIENT


def literal(value: str | None) -> str:
    """Return a value as part of a statement: in hexadecimal, so that none of its characters has a meaning in SQL,
    whatever ``sql_mode`` the server uses. It is compared with the collation of the column."""
    return "NULL" if value is None else f"_utf8mb4 X'{value.encode('utf-8', 'replace').hex()}'"


class SecureConnection(Connection):  # type: ignore[misc]  # aiomysql has no types
    """aiomysql itself continues without TLS if the server has none."""

    @classmethod
    def to(
        cls, host: str, port: int, user: str, password: str, database: str, tls: ssl.SSLContext | None
    ) -> "SecureConnection":
        """Return a connection that is not established yet."""
        return cls(
            host=host,
            port=port,
            user=user,
            # aiomysql encodes it as Latin-1, and MySQL expects UTF-8.
            password=password.encode().decode("latin-1"),
            db=database,
            charset="utf8mb4",
            autocommit=True,
            ssl=tls,
        )

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            raise OSError("the server does not support TLS")
        await super()._request_authentication()

    async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
        if plugin_name == b"mysql_clear_password" and not self._secure:
            raise OSError("the server asks for the password in the clear, and the connection has no TLS")
        return await super()._process_auth(plugin_name, auth_packet)
