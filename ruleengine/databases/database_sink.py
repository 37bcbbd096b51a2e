"""DatabaseSink: the common part of sinks that write rows with SQL statements.

A batch is one statement. If the database refuses it because of a row, each half is written by itself, until the rows
that are refused are known; they become dead letters, and the rest is written in order."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from abc import ABC, abstractmethod
from typing import Final

import msgspec

from ..delivery.buffer import DELIVERED, DeliveryOutcome
from ..delivery.buffered_row import BufferedRow
from ..network.allowed_networks import Networks, reason_of
from ..network.tls import named_context, tls_params
from ..params import Param, ParamError, Text, read_duration
from ..resources.batch_division import BatchAnswer, written_in_parts
from ..resources.resource import ResourceError
from ..resources.sink import Sink, SinkContext, limit_params
from .sql_template import Dialect, SqlTemplate, SqlValue

_TEMPLATES: Final = 256
"""Parsed statements that a resource keeps, including those of rows from before a restart."""
_PROBE: Final = -1
"""The number of the connection that only checks whether the database is alive."""
_REASON: Final = 300


class StatementRefused(Exception):
    """The database has refused a statement. ``whole``: not because of a row."""

    def __init__(self, reason: str, whole: bool = False) -> None:
        super().__init__(" ".join(reason.split())[:_REASON])
        self.whole = whole


class DatabaseConnection(ABC):
    """A connection of one lane. A connection that has raised OSError is not used again."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the other side has closed the connection."""

    @abstractmethod
    async def write(self, template: SqlTemplate, rows: list[list[SqlValue]]) -> None:
        """Write all rows, or none. Raises StatementRefused, or OSError if the database cannot be used now."""

    @abstractmethod
    async def ping(self) -> None:
        """Raises OSError."""

    @abstractmethod
    def abort(self) -> None:
        """Close without waiting."""


class DatabaseSink(Sink):
    """A database with one connection for each lane."""

    dialect: Dialect
    default_port: int
    user_param: str

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self.host, self.port = _host_and_port(config["server"], self.default_port)
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
        self._reconnects: bool = config["auto_reconnect"]
        self._lost = ""
        self._connections: dict[int, DatabaseConnection] = {}
        self._templates: dict[str, SqlTemplate] = {}

    @abstractmethod
    async def open(self, address: str) -> DatabaseConnection:
        """Connect to an IP address and log in. Raises OSError or ResourceError."""

    async def test(self) -> None:
        async with asyncio.timeout(self.request_timeout):
            await self._ping()

    async def _ping(self) -> None:
        connection = await self._connection(_PROBE)
        done = False
        try:
            await connection.ping()
            done = True
        finally:
            if not done:
                self._drop(_PROBE)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        connection = await self._connection(lane)
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
                self._drop(lane)

    async def close(self) -> None:
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()
        await asyncio.sleep(0)

    def _template(self, text: str) -> SqlTemplate:
        found = self._templates.get(text)
        if found is None:
            while len(self._templates) >= _TEMPLATES:
                del self._templates[next(iter(self._templates))]
            found = self._templates[text] = SqlTemplate(text, self.dialect)
        return found

    async def _connection(self, lane: int) -> DatabaseConnection:
        found = self._connections.get(lane)
        if found is not None and not found.closed:
            return found
        if found is not None:
            self._drop(lane)
        if self._lost and not self._reconnects:
            raise ResourceError(self._lost)
        async with asyncio.timeout(self.connect_timeout):
            made = await self._open()
        self._connections[lane] = made
        return made

    async def _open(self) -> DatabaseConnection:
        """Connect to the first address that accepts a connection."""
        refusal: Exception | None = None
        for address in await self._networks.addresses(self.host, self.port):
            try:
                return await self.open(address)
            except (OSError, ResourceError) as error:
                refusal = refusal or error
        raise refusal or OSError(f"{self.host} has no address")

    def _drop(self, lane: int) -> None:
        """Close a connection that has ended, or whose state is unknown."""
        found = self._connections.pop(lane, None)
        if found is not None:
            self._lost = "the connection has been lost, and auto_reconnect is false: restart the resource"
            with contextlib.suppress(OSError):
                found.abort()


_decode: Final = msgspec.msgpack.Decoder(list).decode


def _host_and_port(server: str, default_port: int) -> tuple[str, int]:
    text = server.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.strip("[]")
    right = port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
    if not right or not host or not host.isascii() or not host.isprintable() or set(" /@") & set(host):
        raise ParamError("server", "expected host:port")
    return host, int(port)


def database_params(server: str, user: str, user_default: str | None) -> tuple[Param, ...]:
    """Return the parameters of a database resource. ``server``: its default; ``user``: the name of that parameter."""
    tls = tls_params(8)
    return (
        Param("server", 1, "string", Text("Server", "服务器"), Text("host:port", "host:port"),
              required=True, default=server),
        Param("database", 2, "string", Text("Database", "数据库"),
              Text("The name of the database", "数据库名称"), required=True),
        Param(user, 3, "string", Text("Username", "用户名"), Text("The user to log in as", "登录数据库的用户"),
              required=True, default=user_default),
        Param("password", 4, "password", Text("Password", "密码"), Text("The user's password", "用户的密码"),
              default=""),
        Param("pool_size", 5, "number", Text("Pool Size", "连接池大小"),
              Text("Connections that write; one more checks the database", "用于写入的连接数，另有一个用于检测"),
              default=8, range=(1, 256)),
        Param("auto_reconnect", 6, "boolean", Text("Reconnect", "自动重连"),
              Text("Connect again after a connection was lost; false: only when the resource is restarted",
                   "连接断开后自动重连；false 则需重启资源"), default=True),
        Param("ssl", 7, "boolean", Text("TLS", "TLS"),
              Text("Connect by TLS; a server without it is refused", "使用 TLS 连接，不支持 TLS 的服务器将被拒绝"),
              default=False),
        *tls,
        Param("connect_timeout", 8 + len(tls), "string", Text("Connect Timeout", "连接超时"),
              Text("Time limit for connecting and logging in", "连接并登录的最长时间"), default="5s"),
        Param("request_timeout", 9 + len(tls), "string", Text("Request Timeout", "请求超时"),
              Text("Time limit for one statement", "一条语句的最长时间"), default="30s"),
        *limit_params(10 + len(tls)),
    )  # fmt: skip


def connection_params(user: str) -> tuple[str, ...]:
    """Return the names of the parameters that decide whether the database can be reached."""
    return ("server", "database", user, "password", "ssl", *(each.name for each in tls_params(0)))


def missing(library: str, extra: str) -> ResourceError:
    """Return the error for a library that is not installed."""
    return ResourceError(f"{library} is not installed: pip install 'taipan-mqtt[{extra}]'")
