"""SecureConnection: a connection to MySQL that never sends a password in the clear if it should use TLS."""

from typing import Any

from aiomysql.connection import Connection
from pymysql.constants import CLIENT


class SecureConnection(Connection):  # type: ignore[misc]  # aiomysql has no types
    """aiomysql itself goes on without TLS if the server has none."""

    async def _request_authentication(self) -> None:
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            raise OSError("the server does not support TLS")
        await super()._request_authentication()

    async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
        if plugin_name == b"mysql_clear_password" and not self._secure:
            raise OSError("the server asks for the password in the clear, and the connection has no TLS")
        return await super()._process_auth(plugin_name, auth_packet)
