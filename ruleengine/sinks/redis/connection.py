"""RedisLaneConnection: executes the commands of rows, several of them as a transaction."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from redis import exceptions

from taipan.broker.redis_servers.connection import Command, RedisConnection, in_one_line

from ...resources.lane_connections import LaneConnection

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


class GroupAnswer(NamedTuple):
    """The answer to commands that are executed together. ``executed``: all were, those with an error without effect;
    otherwise none was. ``errors``: by command; None: it has none."""

    executed: bool
    errors: list[Exception | None]


class RedisLaneConnection(RedisConnection, LaneConnection):
    """The connection of a lane."""

    async def check_transactions(self) -> None:
        """Check that the server and the user allow transactions. Raises OSError if they do not."""
        begun, _ = await self.exchange([_MULTI, _EXEC])
        if isinstance(begun, Exception):
            raise OSError(f"the user may not use MULTI, which batches need: {in_one_line(begun)}")

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
        raise OSError(in_one_line(done) if isinstance(done, Exception) else "the server did not answer EXEC")
    return GroupAnswer(False, errors)
