"""The servers to which commands of logins are sent: one server, the master that sentinels name, or the nodes of a
cluster.

All three have the same connections (``broker/redis_servers``) as the rules that write to Redis."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from redis import exceptions

from ...redis_servers.connection import Address, Command, RedisConnection, in_one_line
from ...redis_servers.slots import SLOTS_COMMAND, KeyPositions, SlotRange, master_of, slot_ranges
from ..connection_pool import ConnectionPool
from ..remote import SourceFailed
from ..remote_status import NO_CONNECTION

_MOVES: Final = 3
"""Maximum number of times that a command follows its slot to another node."""
_ASKING: Final = [b"ASKING"]
# The cluster, and not this command, has a problem.
_PASSING: Final = (exceptions.ClusterDownError, exceptions.MasterDownError, exceptions.TryAgainError)

Open = Callable[[], Awaitable[RedisConnection]]


class RedisServers(ABC):
    """Belongs to one event loop. Each method raises SourceFailed."""

    @abstractmethod
    async def connect(self) -> None:
        """Open a connection that later questions use."""

    @abstractmethod
    async def ask(self, words: Command) -> Any:
        """Return the answer to a command."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections without waiting."""


class SingleServer(RedisServers):
    """One server at a time: always the same one, or the current master."""

    def __init__(self, open: Open) -> None:
        self._open = open
        self._pool = ConnectionPool(open, RedisConnection.abort)

    async def connect(self) -> None:
        connection = await self._open()
        answers = False
        try:
            _read((await _exchange(connection, [[b"PING"]]))[0])
            answers = True
        finally:
            if not answers:
                connection.abort()
        self._pool.keep(connection)

    async def ask(self, words: Command) -> Any:
        (answer,) = await self._pool.use(lambda connection: _exchange(connection, [words]))
        return _read(answer)

    def close(self) -> None:
        self._pool.close()


class ClusterServers(RedisServers):
    """A cluster. The slot of the first key decides which master is asked."""

    def __init__(self, seeds: list[Address], open: Callable[[Address], Awaitable[RedisConnection]]) -> None:
        """``seeds``: nodes that name the others."""
        self._seeds = seeds
        self._open = open
        self._pools: dict[Address, ConnectionPool[RedisConnection]] = {}
        self._ranges: list[SlotRange] = []
        self._positions = KeyPositions()
        self._closed = False

    async def connect(self) -> None:
        await self._learn()
        (info,) = await self._exchange([[b"CLUSTER", b"INFO"]])
        if not isinstance(info, bytes) or b"cluster_state:ok" not in info:
            raise SourceFailed(NO_CONNECTION, detail="the cluster is down: cluster_state is not ok", away=True)

    async def ask(self, words: Command) -> Any:
        (slot,) = await self._positions.slots([words], self._exchange)
        node = master_of(self._ranges or await self._learn(), slot)
        commands = [words]
        for _ in range(_MOVES):
            if node is None:
                self._ranges = []
                raise SourceFailed(NO_CONNECTION, detail=f"no node has the slot {slot}", away=True)
            answer = (await self._asked(node, commands))[-1]
            if not isinstance(answer, exceptions.AskError):
                return _read(answer)
            commands = [words]
            if isinstance(answer, exceptions.MovedError):
                self._ranges = []
            else:  # only this key, which is on its way there
                commands = [_ASKING, words]
            node = (answer.host or node[0], answer.port)
        raise SourceFailed(NO_CONNECTION, detail=f"the slot {slot} keeps moving between nodes", away=True)

    async def _asked(self, node: Address, commands: list[Command]) -> list[Any]:
        try:
            return await self._pool(node).use(lambda connection: _exchange(connection, commands))
        except SourceFailed as failure:
            if failure.away:
                self._ranges = []  # a replica may be the master now
            raise

    def _pool(self, node: Address) -> ConnectionPool[RedisConnection]:
        found = self._pools.get(node)
        if found is None:
            found = self._pools[node] = ConnectionPool(lambda: self._open(node), RedisConnection.abort)
            if self._closed:
                found.close()
        return found

    async def _learn(self) -> list[SlotRange]:
        """Ask which node has which slots."""
        refusal: SourceFailed | None = None
        for node in self._nodes():
            try:
                (answer,) = await self._asked(node, [SLOTS_COMMAND])
                ranges = self._ranges = slot_ranges(answer, node)
            except OSError as error:
                refusal = refusal or SourceFailed(NO_CONNECTION, detail=in_one_line(error), away=True)
            except SourceFailed as failure:
                refusal = refusal or failure
            else:
                self._forget_others()
                return ranges
        raise refusal or SourceFailed(NO_CONNECTION, away=True)

    async def _exchange(self, commands: list[Command]) -> list[Any]:
        """Ask the first node that answers."""
        refusal: SourceFailed | None = None
        for node in self._nodes():
            try:
                return await self._asked(node, commands)
            except SourceFailed as failure:
                refusal = refusal or failure
        raise refusal or SourceFailed(NO_CONNECTION, away=True)

    def _nodes(self) -> Iterator[Address]:
        yield from dict.fromkeys([*self._seeds, *(each.master for each in self._ranges)])

    def _forget_others(self) -> None:
        known = {each.master for each in self._ranges}.union(self._seeds)
        for node in self._pools.keys() - known:
            self._pools.pop(node).close()

    def close(self) -> None:
        self._closed = True
        for pool in self._pools.values():
            pool.close()


async def _exchange(connection: RedisConnection, commands: list[Command]) -> list[Any]:
    try:
        return await connection.exchange(commands)
    except OSError as error:
        raise SourceFailed("broken", detail=in_one_line(error), away=True) from None


def _read(answer: Any) -> Any:
    """Return an answer. Raises SourceFailed if it is an error."""
    if isinstance(answer, _PASSING):
        raise SourceFailed(NO_CONNECTION, detail=in_one_line(answer), away=True)
    if isinstance(answer, Exception):
        raise SourceFailed("query", detail=in_one_line(answer))
    return answer
