"""RedisConnection: executes the commands of rows over a connection of redis-py."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from taipan.broker.redis_connection import SecureRedisConnection, in_one_line

from ...resources.lane_connections import LaneConnection

Command = list[bytes]
_MULTI: Final = [b"MULTI"]
_EXEC: Final = [b"EXEC"]
# Errors that pass: the server is loading, read-only, out of memory, or the slot is on another node.
_PASSING: Final = (
    exceptions.AuthenticationError,
    exceptions.ClusterDownError,
    exceptions.ConnectionError,
    exceptions.MasterDownError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.AskError,
)
_PASSING_WORDS: Final = frozenset(["ASK", "BUSY", "MISCONF", "MOVED", "NOREPLICAS", "OOM"])


@dataclass(frozen=True, slots=True)
class RedisLogin:
    """What a connection is opened with."""

    username: str
    password: str
    database: int
    tls: ssl.SSLContext | None
    server_name: str


class GroupAnswer(NamedTuple):
    """The answer to commands that are executed together. ``executed``: all were, those with an error without effect;
    otherwise none was. ``errors``: by command; None: it has none."""

    executed: bool
    errors: list[Exception | None]


class RedisConnection(LaneConnection):
    """A connection that has raised OSError is not used again."""

    def __init__(self, connection: SecureRedisConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, address: str, port: int, login: RedisLogin) -> RedisConnection:
        """Connect to an IP address and log in. Raises OSError."""
        connection = SecureRedisConnection(
            tls=login.tls,
            server_name=login.server_name,
            host=address,
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
        reader = self._connection._reader
        return reader is None or reader.at_eof() or reader.exception() is not None

    def abort(self) -> None:
        writer = self._connection._writer
        if writer is not None:
            writer.transport.abort()
        self._connection._close()  # type: ignore[no-untyped-call]

    async def check_transactions(self) -> None:
        """Raises OSError for a server or a user without them."""
        begun, _ = await self.exchange([_MULTI, _EXEC])
        if isinstance(begun, Exception):
            raise OSError(f"the user may not use MULTI, which batches need: {in_one_line(begun)}")

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

    async def execute(self, groups: list[list[Command]]) -> list[GroupAnswer]:
        """Execute each group of commands as a transaction. Raises OSError."""
        sent: list[Command] = []
        for group in groups:
            sent += group if len(group) == 1 else [_MULTI, *group, _EXEC]
        answers = await self.exchange(sent)
        found: list[GroupAnswer] = []
        position = 0
        for group in groups:
            count = len(group)
            if count == 1:
                found.append(_single(answers[position]))
                position += 1
                continue
            found.append(_transaction(answers[position : position + count + 2]))
            position += count + 2
        return found


def passes(error: Exception) -> bool:
    """Return whether a command may succeed later as it is."""
    return isinstance(error, _PASSING) or str(error).partition(" ")[0] in _PASSING_WORDS


def moved(error: Exception) -> bool:
    """Return whether the slot of a command is on another node of the cluster."""
    return isinstance(error, exceptions.MovedError) or str(error).startswith("MOVED ")


def _single(answer: Any) -> GroupAnswer:
    if not isinstance(answer, Exception):
        return GroupAnswer(True, [None])
    return GroupAnswer(not passes(answer), [answer])


def _transaction(answers: list[Any]) -> GroupAnswer:
    """Return the answer for the commands between MULTI and EXEC. Raises OSError."""
    begun, *queued, done = answers
    if isinstance(begun, Exception):
        # The commands have been executed, but not together.
        raise OSError(in_one_line(begun))
    if isinstance(done, list):
        return GroupAnswer(True, [each if isinstance(each, Exception) else None for each in done])
    errors = [each if isinstance(each, Exception) else None for each in queued]
    if not any(errors):
        raise OSError(in_one_line(done) if isinstance(done, Exception) else "EXEC has no answer")
    return GroupAnswer(False, errors)
