"""RedisConnection: a connection of redis-py that does not convert commands and answers, and uses our own TLS
context."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from redis import exceptions
from redis.asyncio import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Address = tuple[str, int]
Command = list[bytes]


class SecureRedisConnection(Connection):
    """``tls``: None for a connection without TLS. ``server_name``: the name in the server's certificate; None: the
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


@dataclass(frozen=True, slots=True)
class RedisLogin:
    """The parameters for opening a connection. ``server_name``: see ``SecureRedisConnection``."""

    username: str
    password: str
    database: int
    tls: ssl.SSLContext | None
    server_name: str | None


class RedisConnection:
    """A connection that has raised OSError, or whose commands were given up, is not used again."""

    def __init__(self, connection: SecureRedisConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, host: str, port: int, login: RedisLogin) -> Self:
        """Connect and log in. Raises OSError."""
        connection = SecureRedisConnection(
            tls=login.tls,
            server_name=login.server_name,
            host=host,
            port=port,
            db=login.database,
            username=login.username or None,
            password=login.password or None,
            retry=Retry(NoBackoff(), 0),
        )
        made = cls(connection)
        opened = False
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            opened = True
        except exceptions.RedisError as error:
            raise OSError(in_one_line(error)) from None
        finally:
            if not opened:
                made.abort()
        return made

    @property
    def closed(self) -> bool:
        """Whether the other side has closed it."""
        reader = self._connection._reader
        return reader is None or reader.at_eof() or reader.exception() is not None

    def abort(self) -> None:
        """Close it without waiting."""
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
        self._connection._close()  # type: ignore[no-untyped-call]

    async def ask(self, *words: bytes) -> Any:
        """Return the answer to a command. Raises OSError."""
        (answer,) = await self.exchange([list(words)])
        if isinstance(answer, Exception):
            raise OSError(in_one_line(answer))
        return answer

    async def exchange(self, commands: list[Command]) -> list[Any]:
        """Return the answers, errors of the server included. Raises OSError."""
        connection = self._connection
        if self.closed:
            raise ConnectionResetError("the server has closed the connection")
        answers: list[Any] = []
        try:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            for _ in commands:
                try:
                    answers.append(await connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    answers.append(error)
        except exceptions.RedisError as error:
            raise OSError(in_one_line(error)) from None
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server has closed the connection") from None
        return answers


def moved(error: Exception) -> bool:
    """Return whether the slot of a command is on another node of the cluster."""
    return isinstance(error, exceptions.MovedError) or str(error).startswith("MOVED ")


def in_one_line(error: Exception) -> str:
    """Return the text of an error from the server or the library, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
