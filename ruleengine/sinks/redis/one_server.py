"""RedisSingle and RedisSentinel: all commands go to one server."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import host_and_port
from ...resources.lane_connections import PROBE, LaneConnections
from ...resources.sink import SinkContext
from .redis_sink import PORT, RedisSink, addresses, executed, numbered

if TYPE_CHECKING:
    from taipan.broker.redis_servers.connection import Command

    from .connection import RedisLaneConnection

_SENTINEL_PORT: Final = 26_379


class OneServer(RedisSink):
    """All commands go to one server."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        super().__init__(context)
        self._lanes = LaneConnections(self.open_server, self.connect_timeout, context.config["auto_reconnect"])

    @abstractmethod
    async def open_server(self) -> RedisLaneConnection:
        """Connect to the server that takes commands. Raises OSError."""

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

    async def ask(self, commands: list[Command], lane: int) -> list[Any]:
        connection = await self._lanes.get(lane)
        usable = False
        try:
            async with asyncio.timeout(self.request_timeout):
                answers = await connection.exchange(commands)
            usable = True
            return answers
        finally:
            if not usable:
                self._lanes.drop(lane)

    async def execute(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
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

    async def open_server(self) -> RedisLaneConnection:
        return await self.open(self._address)


class RedisSentinel(OneServer):
    """The master that the sentinels name. Each connection asks them again."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        self._sentinels = addresses(context.config["servers"], _SENTINEL_PORT)
        self._master: str = context.config["sentinel"]
        super().__init__(context)

    async def open_server(self) -> RedisLaneConnection:
        from taipan.broker.redis_servers.sentinel import to_master

        return await to_master(
            self._sentinels, self._master, lambda each: self.open(each, data=False), self.open, self.connect_timeout
        )
