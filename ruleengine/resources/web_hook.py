"""The resource type ``web_hook``: an HTTP server that takes rows."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from ..actions.buffer import Buffer, Outcome
from ..actions.entry import Entry, encode_row
from ..durations import read_duration
from ..networks import Networks, reason_of
from ..params import Param, ParamError, Text
from .http_client import BadRequest, HttpClient, host_and_port, outcome_of
from .liveness import Liveness
from .resource import ResourceError, ResourcePlace, ResourceType
from .tls import asked_name, client_context, tls_params

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What says where a request ends is not for configuration to say.
_OURS: Final = frozenset({"content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect"})
_CONTENT_TYPE: Final = "content-type"


class HttpRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request, complete but for where the server is: ``target`` is path and query, already encoded."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None


def header_name(key: str, name: str) -> str:
    """A header's name as it is sent: in lower case, ``_`` as ``-``. Raises ParamError."""
    if not _TOKEN.fullmatch(name):
        raise ParamError(key, f"{name!r} is no name of an HTTP header")
    sent = name.lower().replace("_", "-")
    if sent in _OURS:
        raise ParamError(key, f"{name} cannot be set")
    return sent


def header_value(key: str, value: Any) -> str:
    """A header's value. Raises ParamError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ParamError(key, "the values of headers are texts")
    text = str(value)
    if any(each in text for each in "\r\n\0"):
        raise ParamError(key, "a header cannot hold a line break")
    return text


class WebHook:
    """A running ``web_hook``. One lane for each connection; the requests of one client stay in one lane, in order."""

    def __init__(self, place: ResourcePlace) -> None:
        """Raises ParamError."""
        config = place.config
        self.method: str = config["method"]
        self.headers = {
            header_name("headers", name): header_value("headers", value) for name, value in config["headers"].items()
        }
        parts = urlsplit(config["url"])
        self.origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if parts.username is not None:
            raise ParamError("url", "put credentials into an authorization header")
        self.path = parts.path
        self.query = parts.query
        self._host, self._port = host_and_port(config["url"])
        self._connect_timeout = read_duration("connect_timeout", config["connect_timeout"])
        self._request_timeout = read_duration("request_timeout", config["request_timeout"])
        lanes = _lanes(config["pool_size"])
        self._tls = client_context(config) if parts.scheme == "https" else None
        self._config = config
        self._settings = place.engine.settings
        self._networks = Networks(self._settings.refused_networks)
        self._clock = place.engine.server.clock
        self._pool_size = lanes
        self._client: HttpClient | None = None
        self._on_alive = place.on_alive
        self._liveness = Liveness(place.id, self._probe, self._settings.liveness_interval, self._changed)
        self.buffer = Buffer(
            place.id, place.engine.buffers, self._settings, self, lanes, place.engine.server.broker.rng
        )

    @property
    def alive(self) -> bool:
        return self._liveness.alive

    @property
    def status(self) -> dict[str, Any]:
        return {"reason": self._liveness.reason, "buffer": self.buffer.status}

    def start(self) -> None:
        self._client = HttpClient(
            self._networks,
            self._pool_size,
            self._connect_timeout,
            self._request_timeout,
            self._settings.max_reply_bytes,
            self._tls,
            asked_name(self._config),
            self._config["enable_pipelining"],
        )
        self._liveness.start()
        self.buffer.start()

    async def test(self) -> None:
        try:
            await self._probe()
        except OSError as error:
            raise ResourceError(reason_of(error)) from None

    async def close(self) -> None:
        await self._liveness.close()
        await self.buffer.close()
        if self._client is not None:
            await self._client.close()

    def send(self, action: str, key: str, request: HttpRequest, row: Mapping[str, Any]) -> None:
        """Take a request; its outcome is told to the report of the action. Raises ActionFailed."""
        now = self._clock.now()
        self.buffer.append(Entry(action, key, "", 1, now, msgspec.msgpack.encode(request), encode_row(row)))

    async def deliver(self, lane: int, batch: list[Entry]) -> list[Outcome]:
        return [await self._deliver(each) for each in batch]

    async def _deliver(self, entry: Entry) -> Outcome:
        assert self._client is not None
        request = msgspec.msgpack.decode(entry.request, type=HttpRequest)
        try:
            reply = await self._client.send(request.method, self.origin + request.target, request.headers, request.body)
        except BadRequest as error:
            return Outcome(str(error))
        except ResourceError as error:
            return Outcome(str(error), again=True, down=True)
        self._liveness.learn()
        return outcome_of(reply)

    async def _probe(self) -> None:
        await self._networks.probe(self._host, self._port, self._settings.liveness_timeout)

    def _changed(self, alive: bool) -> None:
        if alive:
            self.buffer.nudge()
        self._on_alive(alive)


def _lanes(value: Any) -> int:
    if not isinstance(value, int):
        raise ParamError("pool_size", "expected a whole number")
    return value


TYPE: Final = ResourceType(
    "web_hook",
    Text("WebHook", "WebHook"),
    Text("An HTTP server that rows are sent to", "接收数据的 HTTP 服务器"),
    WebHook,
    (
        Param("url", 1, "string", Text("Request URL", "请求 URL"),
              Text("Where requests go: http:// or https://", "请求的目的 URL,以 http:// 或 https:// 开头"),
              required=True, format="url"),
        Param("method", 2, "string", Text("Request Method", "请求方法"),
              Text("The method of requests", "请求使用的方法"), default="POST", enum=["PUT", "POST"]),
        Param("headers", 3, "object", Text("Request Header", "请求头"),
              Text("Headers of every request", "每个请求都带的请求头"), default={}, schema={}),
        Param("connect_timeout", 4, "string", Text("Connect Timeout", "连接超时"),
              Text("How long a connection may take to come about", "建立连接的最长时间"), default="5s"),
        Param("request_timeout", 5, "string", Text("Request Timeout", "请求超时"),
              Text("How long the answer to a request may take", "等待应答的最长时间"), default="5s"),
        Param("pool_size", 6, "number", Text("Pool Size", "连接池大小"),
              Text("Connections at the same time", "同时使用的连接数"), default=8, range=(1, 256)),
        Param("enable_pipelining", 7, "boolean", Text("Reuse Connections", "复用连接"),
              Text("Send one request after the other on a connection; false: a new connection for each",
                   "在同一连接上依次发送多个请求;false 则每个请求新建连接"), default=True),
        *tls_params(8),
    ),
)  # fmt: skip
