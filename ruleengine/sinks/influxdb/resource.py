"""The resource types ``backend_influxdb_http`` and ``backend_influxdb_http_v2``: servers that store points."""

from typing import Final
from urllib.parse import quote

from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...params import Param, ParamError, Text
from ...resources.batch_division import BatchAnswer
from ...resources.batch_sink import (
    BatchSink,
    address_params,
    basic_authorization,
    https_params,
    of_status,
    origin_of,
    request_params,
)
from ...resources.resource import ResourceType
from ...resources.sink import SinkContext, buffered

PRECISIONS: Final = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "m": 1 / 60, "h": 1 / 3600}
"""The units of timestamps, with how many of them a second has."""
_NAMES_OF_1: Final = {"ns": "n", "us": "u"}
_PLAIN: Final = {"content-type": "text/plain; charset=utf-8"}
# Some of the points were refused, the request was invalid, or it was too large.
_DIVIDING: Final = frozenset({400, 413, 422})


class InfluxDb(BatchSink):
    """A server. Each point has its timestamp, so that a point that is written twice is stored once."""

    def __init__(self, context: SinkContext, path: str, headers: dict[str, str]) -> None:
        """``path``: of the request for points, with the beginning of its query. Raises ParamError."""
        origin = origin_of(context.config)
        self.precision: str = context.config["precision"]
        self._url = origin + path
        self._headers = _PLAIN | headers
        super().__init__(context, origin)

    def name_of(self, precision: str) -> str:
        return precision

    async def _post(self, precision: str, body: bytes) -> BatchAnswer:
        url = f"{self._url}&precision={self.name_of(precision)}"
        reply = await self.request("POST", url, self._headers, body)
        return BatchAnswer(reply) if isinstance(reply, DeliveryOutcome) else of_status(reply, _DIVIDING)

    async def send(self, rows: list[BufferedRow]) -> BatchAnswer:
        return await self._post(rows[0].group, b"\n".join([each.request for each in rows]))

    async def ask(self) -> BatchAnswer:
        """Write no points. InfluxDB 2 refuses that, after it has checked the token and the bucket."""
        answer = await self._post(self.precision, b"")
        return BatchAnswer(DELIVERED) if answer.divide else answer


class InfluxDb1(InfluxDb):
    """InfluxDB 1, which has other names for precisions than InfluxDB 2."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        headers = basic_authorization("username", config["username"], config["password"])
        super().__init__(context, f"/write?db={quote(config['database'], safe='')}", headers)

    def name_of(self, precision: str) -> str:
        return _NAMES_OF_1.get(precision, precision)


class InfluxDb2(InfluxDb):
    """InfluxDB 2."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        token = config["token"]
        if not token.isascii() or not token.isprintable():
            raise ParamError("token", "expected printable ASCII characters")
        path = f"/api/v2/write?org={quote(config['org'], safe='')}&bucket={quote(config['bucket'], safe='')}"
        super().__init__(context, path, {"authorization": f"Token {token}"})


def _precision(order: int, names: list[str]) -> Param:
    return Param("precision", order, "string", Text("Precision", "时间精度"),
                 Text("The unit of timestamps", "时间戳的单位"), default="ms", enum=names)  # fmt: skip


_CONNECTION: Final = ("host", "port", *(each.name for each in https_params(0)))
RESOURCES: Final = (
    ResourceType(
        "backend_influxdb_http",
        Text("InfluxDB 1", "InfluxDB 1"),
        Text("An InfluxDB 1 server that stores points", "存储数据点的 InfluxDB 1 服务器"),
        buffered(InfluxDb1),
        (
            *address_params(8086),
            Param("database", 3, "string", Text("Database", "数据库"),
                  Text("The name of the database", "数据库名称"), required=True),
            Param("username", 4, "string", Text("Username", "用户名"),
                  Text("The user; empty: without authentication", "用户名，留空则不认证"), default=""),
            Param("password", 5, "password", Text("Password", "密码"),
                  Text("The user's password", "用户的密码"), default=""),
            _precision(6, list(PRECISIONS)),
            *https_params(7),
            *request_params(20, 4),
        ),
        connection=(*_CONNECTION, "database", "username", "password"),
        order=20,
    ),
    ResourceType(
        "backend_influxdb_http_v2",
        Text("InfluxDB 2", "InfluxDB 2"),
        Text("An InfluxDB 2 server that stores points", "存储数据点的 InfluxDB 2 服务器"),
        buffered(InfluxDb2),
        (
            *address_params(8086),
            Param("org", 3, "string", Text("Organisation", "组织"),
                  Text("The name of the organisation", "组织名称"), required=True),
            Param("bucket", 4, "string", Text("Bucket", "存储桶"),
                  Text("The name of the bucket", "存储桶名称"), required=True),
            Param("token", 5, "password", Text("Token", "令牌"),
                  Text("A token that may write to the bucket", "可写入该存储桶的令牌"), required=True),
            _precision(6, ["ns", "us", "ms", "s"]),
            *https_params(7),
            *request_params(20, 4),
        ),
        connection=(*_CONNECTION, "org", "bucket", "token"),
        order=21,
    ),
)  # fmt: skip
