"""DatabaseSink: the common part of sinks that write rows with SQL statements.

A batch is one statement. If the database refuses it because of a row, each half is written separately, until the
refused rows are known; they become dead letters, and the rest is written in order."""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from typing import Final

import msgspec

from ..actions.lookup_subscriptions import LOOKUP, MAX_FOUND, subscribed
from ..delivery.buffer import DELIVERED, DeliveryOutcome
from ..delivery.buffered_row import BufferedRow
from ..network.allowed_networks import Networks, host_and_port, reason_of
from ..network.tls import named_context, tls_params
from ..params import Param, ParamError, Text, read_duration
from ..resources.batch_division import BatchAnswer, written_in_parts
from ..resources.lane_connections import PROBE, LaneConnection, LaneConnections, lane_params, to_first_address
from ..resources.resource import ResourceError
from ..resources.sink import Sink, SinkContext
from .sql_template import Dialect, SqlTemplate, SqlValue

_TEMPLATES: Final = 256
"""Parsed statements that a resource keeps, including those of rows from before a restart."""
_REASON: Final = 300
_SUBSCRIPTIONS: Final = (
    f"select clientid, topic, qos from mqtt_sub where clientid = ${{clientid}} order by topic limit {MAX_FOUND + 1}"
)
"""EMQX's table."""


class StatementRefused(Exception):
    """The database has refused a statement. ``whole``: not because of a row."""

    def __init__(self, reason: str, whole: bool = False) -> None:
        super().__init__(" ".join(reason.split())[:_REASON])
        self.whole = whole


class DatabaseConnection(LaneConnection):
    """A connection that has raised OSError is not used again."""

    @abstractmethod
    async def write(self, template: SqlTemplate, rows: list[list[SqlValue]]) -> None:
        """Write all rows, or none. Raises StatementRefused, or OSError if the database cannot be used now."""

    @abstractmethod
    async def read(self, query: SqlTemplate, values: list[str]) -> list[tuple[object, ...]]:
        """Return the rows that a query selects. Raises StatementRefused, or OSError if the database cannot be used
        now."""

    @abstractmethod
    async def ping(self) -> None:
        """Check that the server answers. Raises OSError."""


class DatabaseSink(Sink):
    """A database with one connection for each lane."""

    dialect: Dialect
    default_port: int
    user_param: str

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self.host, self.port = host_and_port("server", config["server"], self.default_port)
        for name in ("database", self.user_param, "password"):
            if "\0" in config[name]:
                raise ParamError(name, "cannot contain a null character")
        self.database: str = config["database"]
        self.user: str = config[self.user_param]
        self.password: str = config["password"]
        self.connect_timeout = read_duration("connect_timeout", config["connect_timeout"])
        self.request_timeout = read_duration("request_timeout", config["request_timeout"])
        self.tls: ssl.SSLContext | None = None
        if config["ssl"]:
            self.tls = named_context(config, self.host)
        self._networks = Networks(context.node.settings.refused_networks)
        self._noticed = context.noticed
        self._clients = context.node.clients
        self._lanes = LaneConnections(self._open, self.connect_timeout, config["auto_reconnect"])
        self._templates: dict[str, SqlTemplate] = {}

    @abstractmethod
    async def open(self, address: str) -> DatabaseConnection:
        """Connect to an IP address and log in. Raises OSError or ResourceError."""

    async def test(self) -> None:
        async with asyncio.timeout(self.request_timeout):
            await self._ping()

    async def _ping(self) -> None:
        connection = await self._lanes.get(PROBE)
        done = False
        try:
            await connection.ping()
            done = True
        finally:
            if not done:
                self._lanes.drop(PROBE)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        if rows[0].group == LOOKUP:
            return [await self._looked_up(each, lane) for each in rows]
        connection = await self._lanes.get(lane)
        template = self._template(rows[0].group)
        values = [_decode(each.request) for each in rows]

        async def write(start: int, end: int) -> BatchAnswer:
            return await self._written(connection, lane, template, values[start:end])

        outcomes = await written_in_parts(len(rows), write)
        if not outcomes[-1].retry:
            self._noticed()
        return outcomes

    async def _written(
        self, connection: DatabaseConnection, lane: int, template: SqlTemplate, values: list[list[SqlValue]]
    ) -> BatchAnswer:
        usable = False
        try:
            async with asyncio.timeout(self.request_timeout):
                await connection.write(template, values)
            usable = True
            return BatchAnswer(DELIVERED)
        except StatementRefused as error:
            usable = True
            return BatchAnswer(DeliveryOutcome(str(error), aside=True), not error.whole)
        except (OSError, ResourceError) as error:
            return BatchAnswer(DeliveryOutcome(reason_of(error), retry=True, unreachable=True))
        finally:
            if not usable:
                self._lanes.drop(lane)

    async def _looked_up(self, row: BufferedRow, lane: int) -> DeliveryOutcome:
        async def find(client_id: str) -> list[tuple[object, object]]:
            found = await self.read(_SUBSCRIPTIONS, [client_id], lane)
            # A database may compare without case.
            return [(topic, qos) for stored_for, topic, qos in found if stored_for == client_id]

        try:
            return await subscribed(row, self._clients, find)
        except StatementRefused as error:
            return DeliveryOutcome(str(error), aside=True)

    async def read(self, query: str, values: list[str], lane: int) -> list[tuple[object, ...]]:
        """Return the rows that a query selects. Raises StatementRefused, OSError or ResourceError."""
        connection = await self._lanes.get(lane)
        usable = False
        try:
            async with asyncio.timeout(self.request_timeout):
                found = await connection.read(self._template(query), values)
            usable = True
        except StatementRefused:
            usable = True
            raise
        finally:
            if not usable:
                self._lanes.drop(lane)
        self._noticed()
        return found

    async def close(self) -> None:
        await self._lanes.close()

    def _template(self, text: str) -> SqlTemplate:
        found = self._templates.get(text)
        if found is None:
            while len(self._templates) >= _TEMPLATES:
                del self._templates[next(iter(self._templates))]
            found = self._templates[text] = SqlTemplate(text, self.dialect)
        return found

    async def _open(self) -> DatabaseConnection:
        return await to_first_address(self._networks, self.host, self.port, self.open)


_decode: Final = msgspec.msgpack.Decoder(list).decode


def database_params(server: str, user: str, user_default: str | None) -> tuple[Param, ...]:
    """Return the parameters of a database resource. ``server``: its default; ``user``: the name of that parameter."""
    return (
        Param("server", 1, "string", Text("Server", "服务器"), Text("host:port", "host:port"),
              required=True, default=server),
        Param("database", 2, "string", Text("Database", "数据库"),
              Text("The name of the database", "数据库名称"), required=True),
        Param(user, 3, "string", Text("Username", "用户名"), Text("The user to log in as", "登录数据库的用户"),
              required=True, default=user_default),
        Param("password", 4, "password", Text("Password", "密码"), Text("The user's password", "用户的密码"),
              default=""),
        *lane_params(5, request=Text("Time limit for one statement", "一条语句的最长时间")),
    )  # fmt: skip


def connection_params(user: str) -> tuple[str, ...]:
    """Return the names of the parameters that decide whether the database can be reached."""
    return ("server", "database", user, "password", "ssl", *(each.name for each in tls_params(0)))
