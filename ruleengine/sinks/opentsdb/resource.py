"""The resource type ``backend_opentsdb``: an OpenTSDB server that stores data points."""

import json
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ...config import settings_of
from ...delivery.buffer import DELIVERED, DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.tls import client_context
from ...params import Param, ParamError, Text
from ...resources.http_reply import HttpReply, outcome_of
from ...resources.http_sink import HttpSink
from ...resources.resource import ResourceType
from ...resources.sink import SinkContext, SinkRequest, buffered, limit_params
from .settings import OpenTsdbSettings

_HEADERS: Final = {"content-type": "application/json"}
_REASON: Final = 200


class DataPoint(msgspec.Struct, frozen=True, array_like=True):
    """One data point. ``timestamp``: seconds or milliseconds since 1970."""

    metric: str
    timestamp: int
    value: int | float
    tags: dict[str, str]


class PutOptions(msgspec.Struct, frozen=True):
    """Options of ``/api/put``. ``sync_timeout``: milliseconds; 0: no limit."""

    details: bool
    summary: bool
    sync: bool
    sync_timeout: int

    @property
    def query(self) -> str:
        """Return the query of the request: flags without values, each only if it is set."""
        flags = [name for name in ("details", "summary", "sync") if getattr(self, name)]
        if self.sync:
            flags.append(f"sync_timeout={self.sync_timeout}")
        return "?" + "&".join(flags) if flags else ""


class OpenTsdb(HttpSink):
    """The server of a ``backend_opentsdb``. The order of points does not matter."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        server = str(context.config["server"]).strip()
        self._url = (server if "://" in server else f"http://{server}").rstrip("/")
        try:
            parts = urlsplit(self._url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        # Sent unchanged: a blank would end the request line.
        usable = usable and self._url.isascii() and self._url.isprintable() and " " not in self._url
        if not usable or parts.query or parts.fragment or parts.username is not None:
            raise ParamError("server", "expected http://host:port, https://host:port or host:port")
        self._appended = 0
        settings = settings_of(OpenTsdbSettings, context.node.settings)
        super().__init__(
            context,
            self._url,
            settings.opentsdb_connect_timeout,
            settings.opentsdb_response_timeout,
            client_context({"verify": True}) if parts.scheme == "https" else None,
        )

    def request_of(self, action: str, point: DataPoint, options: PutOptions, max_batch: int) -> SinkRequest:
        """Return a request for a point, which may be sent with up to ``max_batch`` others of this action."""
        # This number of consecutive points uses one lane, so that they can share a request; the next ones use another
        # connection.
        key = str(self._appended // max_batch)
        self._appended += 1
        group = f"{action} {msgspec.json.encode(options).decode()}"
        return SinkRequest(msgspec.msgpack.encode(point), key, group, max_batch)

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        points = [msgspec.msgpack.decode(each.request, type=DataPoint) for each in rows]
        options = msgspec.json.decode(rows[0].group.partition(" ")[2], type=PutOptions)
        return await self._put(points, f"{self._url}/api/put{options.query}")

    async def _put(self, points: list[DataPoint], url: str) -> list[DeliveryOutcome]:
        """The outcome of each point. If the answer does not name the failed points, each half is sent separately."""
        body = msgspec.json.encode([_wire(each) for each in points])
        reply = await self.request("POST", url, _HEADERS, body)
        if isinstance(reply, DeliveryOutcome):
            return [reply] * len(points)
        if len(points) > 1 and refused_as_a_whole(reply):
            half = len(points) // 2
            return [*await self._put(points[:half], url), *await self._put(points[half:], url)]
        return outcomes_of(reply, points)


def refused_as_a_whole(reply: HttpReply) -> bool:
    """Return whether fewer points could succeed: the request was too large, or one of them made it invalid."""
    return reply.status == 413 or (reply.status == 400 and _failures(reply.body)[0] is None)


def outcomes_of(reply: HttpReply, points: list[DataPoint]) -> list[DeliveryOutcome]:
    """Return the outcome of each point. The server answers 400 if any point was refused, although it stored the
    others."""
    whole = outcome_of(reply)
    if reply.status not in (200, 400):
        return [whole] * len(points)
    failed, errors = _failures(reply.body)
    if failed is None:
        return [whole] * len(points)
    outcomes = [DELIVERED] * len(points)
    named = 0
    for point, error in errors:
        for index, each in enumerate(points):
            if outcomes[index] is DELIVERED and _same(each, point):
                outcomes[index] = DeliveryOutcome(f"not stored: {error}")
                named += 1
                break
    # This number of further points was not stored, and the answer does not show which.
    for index in range(len(points) - 1, -1, -1):
        if named >= failed:
            break
        if outcomes[index] is DELIVERED:
            known = failed >= len(points)
            outcomes[index] = DeliveryOutcome(f"{failed} of {len(points)} points not stored", attributed=known)
            named += 1
    return outcomes


def _failures(body: bytes) -> tuple[int | None, list[tuple[dict[str, object], str]]]:
    """Return how many points failed, and those that the answer lists with the reason; None: there is no count."""
    try:
        answer = json.loads(body)
    except ValueError:
        return None, []
    failed = answer.get("failed") if isinstance(answer, dict) else None
    if type(failed) is not int or failed < 0:
        return None, []
    errors = answer.get("errors")
    named = [
        (each["datapoint"], str(each.get("error", ""))[:_REASON])
        for each in (errors if isinstance(errors, list) else [])
        if isinstance(each, dict) and isinstance(each.get("datapoint"), dict)
    ]
    return failed, named


def _same(point: DataPoint, reported: dict[str, object]) -> bool:
    return (
        reported.get("metric") == point.metric
        and str(reported.get("timestamp")) == str(point.timestamp)
        and reported.get("tags") == point.tags
    )


def _wire(point: DataPoint) -> dict[str, object]:
    return {"metric": point.metric, "timestamp": point.timestamp, "value": point.value, "tags": point.tags}


TYPE: Final = ResourceType(
    "backend_opentsdb",
    Text("OpenTSDB", "OpenTSDB"),
    Text("An OpenTSDB server that stores data points", "存储数据点的 OpenTSDB 服务器"),
    buffered(OpenTsdb),
    (
        Param("server", 1, "string", Text("Server", "服务器地址"),
              Text("Address of the server's HTTP interface", "服务器 HTTP 接口的地址"),
              required=True, default="http://127.0.0.1:4242", parts=True),
        Param("pool_size", 2, "number", Text("Pool Size", "连接池大小"),
              Text("Concurrent requests", "同时进行的请求数"), default=8, range=(1, 256)),
        *limit_params(3),
    ),
    connection=("server",),
    order=3,
)  # fmt: skip
RESOURCES: Final = (TYPE,)
