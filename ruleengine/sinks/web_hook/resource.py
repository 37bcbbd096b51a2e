"""The resource type ``web_hook``: an HTTP server that receives rows."""

from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from ...delivery.buffer import DeliveryOutcome
from ...delivery.buffered_row import BufferedRow
from ...network.tls import asked_name, client_context, tls_params
from ...params import Param, ParamError, Text, read_duration
from ...resources.http_headers import header_name, header_value
from ...resources.http_reply import outcome_of
from ...resources.http_sink import HttpSink
from ...resources.resource import ResourceType
from ...resources.sink import SinkContext, buffered, limit_params

URL_CHARACTERS: Final = "/?:@!$&'()*+,;=-._~%"
"""Characters of a path or a query that are sent unchanged: those of RFC 3986, and encoded ones."""


class HttpRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request without the server's address: ``target`` is path and query, already encoded."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None


class WebHook(HttpSink):
    """The server of a ``web_hook``. The requests of one client stay in one lane, in order."""

    def __init__(self, context: SinkContext) -> None:
        """Raises ParamError."""
        config = context.config
        self.method: str = config["method"]
        self.headers = {
            header_name("headers", name): header_value("headers", value) for name, value in config["headers"].items()
        }
        parts = urlsplit(config["url"])
        self.origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if parts.username is not None:
            raise ParamError("url", "put credentials into an authorization header")
        self.path = quote(parts.path, safe=URL_CHARACTERS)
        self.query = quote(parts.query, safe=URL_CHARACTERS)
        super().__init__(
            context,
            config["url"],
            read_duration("connect_timeout", config["connect_timeout"]),
            read_duration("request_timeout", config["request_timeout"]),
            client_context(config) if parts.scheme == "https" else None,
            asked_name(config),
            config["enable_pipelining"],
        )

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        return [await self._write(each) for each in rows]

    async def _write(self, row: BufferedRow) -> DeliveryOutcome:
        request = msgspec.msgpack.decode(row.request, type=HttpRequest)
        reply = await self.request(request.method, self.origin + request.target, request.headers, request.body)
        return reply if isinstance(reply, DeliveryOutcome) else outcome_of(reply)


TYPE: Final = ResourceType(
    "web_hook",
    Text("WebHook", "WebHook"),
    Text("An HTTP server to send rows to", "接收数据的 HTTP 服务器"),
    buffered(WebHook),
    (
        Param("url", 1, "string", Text("Request URL", "请求 URL"),
              Text("The URL of requests: http:// or https://", "请求的目的 URL，以 http:// 或 https:// 开头"),
              required=True, format="url", parts=True),
        Param("method", 2, "string", Text("Request Method", "请求方法"),
              Text("The method of requests", "请求使用的方法"), default="POST", enum=["PUT", "POST"]),
        Param("headers", 3, "object", Text("Request Header", "请求头"),
              Text("Headers of every request", "每个请求都带的请求头"), default={}, schema={}, parts=True),
        Param("connect_timeout", 4, "string", Text("Connect Timeout", "连接超时"),
              Text("Time limit for opening a connection", "建立连接的最长时间"), default="5s"),
        Param("request_timeout", 5, "string", Text("Request Timeout", "请求超时"),
              Text("Time limit for the answer to a request", "等待响应的最长时间"), default="5s"),
        Param("pool_size", 6, "number", Text("Pool Size", "连接池大小"),
              Text("Concurrent connections", "同时使用的连接数"), default=8, range=(1, 256)),
        Param("enable_pipelining", 7, "boolean", Text("Reuse Connections", "复用连接"),
              Text("Reuse a connection for several requests; false: a new connection for each",
                   "在同一连接上依次发送多个请求；false 则每个请求新建连接"), default=True),
        *tls_params(8),
        *limit_params(13),
    ),
    connection=("url", "connect_timeout", *(param.name for param in tls_params(0))),
    order=1,
)  # fmt: skip
RESOURCES: Final = (TYPE,)
