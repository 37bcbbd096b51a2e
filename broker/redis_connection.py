"""SecureRedisConnection: a connection to Redis whose TLS is a context of ours."""

import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Connection


class SecureRedisConnection(Connection):
    """``tls``: None for a connection without it. ``server_name``: the name in the server's certificate; None: the
    host."""

    def __init__(self, *, tls: ssl.SSLContext | None, server_name: str | None = None, **options: Any) -> None:
        self._tls = tls
        self._server_name = server_name
        super().__init__(**options)

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        if self._tls is None:
            return arguments
        return {**arguments, "ssl": self._tls, "server_hostname": self._server_name}


def in_one_line(error: Exception) -> str:
    """Return what the server or the library has said."""
    return " ".join(str(error).split())[:300] or type(error).__name__
