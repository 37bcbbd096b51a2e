"""RedisSingle and RedisSentinel: all commands go to one server."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import host_and_port
from ...resources.lane_connections import PROBE, LaneConnections
from ...resources.resource import ResourceError
from ...resources.sink import SinkContext
from .redis_sink import PORT, Address, RedisSink, addresses, executed, numbered

if TYPE_CHECKING:
    from .connection import RedisConnection

_SENTINEL_PORT: Final = 26_379


class OneServer(RedisSink):
    """All commands go to one server."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        super().__init__(context)
        self._lanes = LaneConnections(self.open_server, self.connect_timeout, context.config["auto_reconnect"])

    @abstractmethod
    async def open_server(self) -> RedisConnection:
        """Connect to the server that takes commands. Raises OSError or ResourceError."""

    async def test(self) -> None:
        async with asyncio.timeout(self.request_timeout):
            connection = await self._lanes.get(PROBE)
            alive = False
            try:
                await connection.ask(b"PING")
                alive = True
            finally:
                if not alive:
                    self._lanes.drop(PROBE)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        connection = await self._lanes.get(lane)
        outcomes: list[DeliveryOutcome] = [DELIVERED] * len(rows)
        usable = False
        try:
            async with asyncio.timeout(self.request_timeout):
                usable = not await executed(connection, [numbered(rows)], outcomes)
        finally:
            if not usable:
                self._lanes.drop(lane)
        if usable:
            self.noticed()
        return outcomes

    async def close(self) -> None:
        await self._lanes.close()


class RedisSingle(OneServer):
    """One server that is always the same."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        self._address = host_and_port("server", context.config["server"], PORT)
        super().__init__(context)

    async def open_server(self) -> RedisConnection:
        return await self.open(self._address)


class RedisSentinel(OneServer):
    """The master that the sentinels name. Each connection asks them again."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        self._sentinels = addresses(context.config["servers"], _SENTINEL_PORT)
        self._master: str = context.config["sentinel"]
        super().__init__(context)

    async def open_server(self) -> RedisConnection:
        refusal: Exception | None = None
        for sentinel in self._sentinels:
            try:
                return await self._open_master(await self._ask(sentinel))
            except (OSError, ResourceError) as error:
                refusal = refusal or error
        raise refusal or OSError("no sentinel")

    async def _ask(self, sentinel: Address) -> Address:
        async with asyncio.timeout(self.connect_timeout / len(self._sentinels)):
            connection = await self.open(sentinel, data=False)
            try:
                answer = await connection.ask(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._master.encode())
            finally:
                connection.abort()
        if not isinstance(answer, list) or len(answer) != 2:
            raise ResourceError(f"the sentinels have no master with the name {self._master}")
        return answer[0].decode(), int(answer[1])

    async def _open_master(self, address: Address) -> RedisConnection:
        connection = await self.open(address)
        is_master = False
        try:
            role = await connection.ask(b"ROLE")
            is_master = isinstance(role, list) and bool(role) and role[0] == b"master"
        finally:
            if not is_master:
                connection.abort()
        if not is_master:
            raise OSError(f"{address[0]}:{address[1]} is no longer the master")
        return connection
