"""The resource type ``bridge_rabbit``: a RabbitMQ server to whose exchanges rules publish messages."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from ...delivery.buffer import DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.allowed_networks import Networks, host_and_port, reason_of
from ...network.tls import asked_name, client_context, tls_params
from ...params import Param, ParamError, Text, read_duration
from ...resources.lane_connections import PROBE, LaneConnections, missing
from ...resources.resource import ResourceError, ResourceType
from ...resources.sink import Sink, SinkContext, buffered, limit_params
from .message import RabbitMessage

if TYPE_CHECKING:
    from .connection import RabbitConnection

_PORT: Final = 5672
_MAX_HEARTBEAT: Final = 65_535.0
_LONGEST: Final = 255

_decode: Final = msgspec.msgpack.Decoder(RabbitMessage).decode


class RabbitSink(Sink):
    """One connection for each lane, with one channel."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self._host, self._port = host_and_port("server", config["server"], _PORT)
        self._username: str = config["username"]
        self._password: str = config["password"]
        self._virtual_host: str = config["virtual_host"]
        for name in ("username", "virtual_host"):
            if not 0 < len(config[name].encode()) <= _LONGEST:
                raise ParamError(name, f"expected 1 to {_LONGEST} bytes")
        self._timeout = read_duration("timeout", config["timeout"])
        heartbeat = read_duration("heartbeat", config["heartbeat"])
        if not 1 <= heartbeat <= _MAX_HEARTBEAT:
            raise ParamError("heartbeat", "expected 1s to 65535s")
        self._heartbeat = int(heartbeat)
        self._pause = read_duration("auto_reconnect", config["auto_reconnect"])
        self._tls = client_context(config) if config["ssl"] else None
        self._name = asked_name(config) or self._host
        self._networks = Networks(context.node.settings.refused_networks)
        self._noticed = context.noticed
        self._lanes: LaneConnections[RabbitConnection] = LaneConnections(self._open, self._timeout, True)
        self._refusal = ""
        self._not_before = 0.0

    async def connect(self) -> None:
        try:
            import aiormq  # noqa: F401 - a node without such a resource does not need it
        except ImportError:
            raise missing("aiormq", "rabbitmq") from None
        # The library logs each failed attempt as an error; the node logs why a resource is away.
        log = logging.getLogger("aiormq")
        if log.level == logging.NOTSET:
            log.setLevel(logging.CRITICAL)

    async def test(self) -> None:
        async with asyncio.timeout(self._timeout):
            connection = await self._lanes.get(PROBE)
            alive = False
            try:
                await connection.check()
                alive = True
            finally:
                if not alive:
                    self._lanes.drop(PROBE)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        from .connection import MessageRefused

        messages = [(at, _decode(each.request)) for at, each in enumerate(rows)]
        outcomes: list[DeliveryOutcome | None] = [None] * len(rows)
        away = ""
        # After a refusal, each message is published separately, to find the refused one.
        parts = [messages]
        created = False
        while parts and not away:
            part = parts.pop(0)
            usable = False
            try:
                connection = await self._lanes.get(lane)
                await connection.publish(part, outcomes)
                usable = True
            except MessageRefused as error:
                usable = True
                left = [each for each in part if outcomes[each[0]] is None]
                if error.missing and not created:
                    created = True
                    parts.insert(0, left)
                elif len(part) == 1:
                    outcomes[part[0][0]] = DeliveryOutcome(str(error), aside=True)
                else:
                    parts = [[each] for each in left]
            except (OSError, ResourceError) as error:
                away = reason_of(error)
            finally:
                if not usable:
                    self._lanes.drop(lane)
        if not away:
            self._noticed()
        return in_order(rows, [each or DeliveryOutcome(away, retry=True, unreachable=True) for each in outcomes])

    async def close(self) -> None:
        await self._lanes.close()

    async def _open(self) -> RabbitConnection:
        from .connection import RabbitConnection, RabbitLogin

        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            raise OSError(self._refusal)
        login = RabbitLogin(
            self._host,
            self._port,
            self._username,
            self._password,
            self._virtual_host,
            self._heartbeat,
            self._timeout,
            self._tls,
            self._name,
        )
        try:
            return await RabbitConnection.open(self._networks, login)
        except OSError as error:
            self._refusal = reason_of(error)
            self._not_before = asyncio.get_running_loop().time() + self._pause
            raise


def in_order(rows: list[BufferedRow], outcomes: list[DeliveryOutcome]) -> list[DeliveryOutcome]:
    """Return the outcomes. If a row is sent again, all later rows of its key are sent again, even accepted ones."""
    again: dict[str, DeliveryOutcome] = {}
    for at, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
        if outcome.retry:
            again.setdefault(row.key, outcome)
        elif row.key in again and not outcome.reason:
            outcomes[at] = again[row.key]
    return outcomes


TYPE: Final = ResourceType(
    "bridge_rabbit",
    Text("RabbitMQ", "RabbitMQ"),
    Text("A RabbitMQ server to which messages are published", "消息发布到的 RabbitMQ 服务器"),
    buffered(RabbitSink),
    (
        Param("server", 1, "string", Text("Server", "服务器"), Text("host:port", "host:port"),
              required=True, default="127.0.0.1:5672"),
        Param("username", 2, "string", Text("Username", "用户名"), Text("The user to log in as", "登录用户"),
              default="guest"),
        Param("password", 3, "password", Text("Password", "密码"), Text("The user's password", "用户的密码"),
              default="guest"),
        Param("virtual_host", 4, "string", Text("Virtual Host", "虚拟主机"),
              Text("The virtual host", "虚拟主机"), default="/"),
        Param("pool_size", 5, "number", Text("Pool Size", "连接池大小"),
              Text("Connections that publish; one more checks the server", "用于发布的连接数，另有一个用于检测"),
              default=8, range=(1, 256)),
        Param("timeout", 6, "string", Text("Timeout", "超时"),
              Text("Time limit for connecting, and for each next confirmation", "连接和等待确认的最长时间"),
              default="5s"),
        Param("heartbeat", 7, "string", Text("Heartbeat", "心跳间隔"),
              Text("Interval of heartbeats; a connection without any for longer has ended", "心跳间隔，超时则断开连接"),
              default="30s"),
        Param("auto_reconnect", 8, "string", Text("Reconnect Interval", "重连间隔"),
              Text("Pause before the next attempt to connect", "重新连接前的等待时间"), default="2s"),
        Param("ssl", 9, "boolean", Text("TLS", "TLS"), Text("Connect by TLS", "使用 TLS 连接"), default=False),
        *tls_params(10),
        *limit_params(10 + len(tls_params(0))),
    ),
    connection=("server", "username", "password", "virtual_host", "ssl", *(each.name for each in tls_params(0))),
    order=26,
)  # fmt: skip
RESOURCES: Final = (TYPE,)
