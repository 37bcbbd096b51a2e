"""The action ``data_to_webserver``: sends one HTTP request for each row, through a ``web_hook`` resource."""

from typing import Final
from urllib.parse import quote

import msgspec

from ...actions.action import ActionContext, ActionType, Row
from ...actions.message_facts import order_key
from ...actions.sink_action import to_sink
from ...actions.template import Template
from ...event import Event
from ...params import Param, ParamError, Text, resource_param, retry_for_param
from ...resources.http_headers import header_name, header_value
from ...resources.sink import SinkRequest
from .resource import URL_CHARACTERS, HttpRequest, WebHook

_METHODS: Final = ["POST", "DELETE", "PUT", "GET"]
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})
_JSON: Final = {"content-type": "application/json"}


class DataToWebServer:
    """Creates the request. Method, headers and URL are the resource's unless the action has its own."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        params = context.params
        if params.get("payload_tmpl") and params.get("body"):
            raise ParamError("payload_tmpl", "cannot be given together with body")
        self._method: str | None = params.get("method")
        self._body = Template(params.get("body") or params.get("payload_tmpl") or "")
        path = params.get("path", "")
        if "#" in path or any(ord(each) <= 32 for each in path):
            raise ParamError("path", "cannot contain '#', whitespace or control characters")
        self._path = Template(path)
        self._headers = [_header(name, value) for name, value in params.get("headers", {}).items()]

    def request(self, row: Row, event: Event, sink: WebHook) -> SinkRequest:
        method = self._method or sink.method
        headers = {**_JSON, **sink.headers}
        for name, value in self._headers:
            sent = header_name("headers", _text(name.render(row)))
            headers[sent] = header_value("headers", _text(value.render(row)))
        body = None if method in _WITHOUT_BODY else self._body.render_bytes(row)
        if body is None:
            headers.pop("content-type", None)
        made = HttpRequest(method, self._target(sink, row), headers, body)
        return SinkRequest(msgspec.msgpack.encode(made), order_key(event))

    def _target(self, sink: WebHook, row: Row) -> str:
        path, query = sink.path, sink.query
        if self._path.text:
            rendered = quote(self._path.render_each(row, _escape), safe=URL_CHARACTERS)
            more, _, more_query = rendered.partition("?")
            if not {".", ".."}.isdisjoint(more.split("/")):
                raise ValueError(f"path: {more!r} would change the path of the resource")
            if more:
                path = f"{path.rstrip('/')}/{more.lstrip('/')}"
            query = "&".join(each for each in (query, more_query) if each)
        return (path or "/") + (f"?{query}" if query else "")


def _escape(value: str | bytes) -> str:
    """Escape one value as part of a path: it can neither end a segment nor begin a query."""
    return quote(value, safe="")


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        raise ValueError("headers: a value is not UTF-8")
    return value


def _header(name: str, value: object) -> tuple[Template, Template]:
    named = Template(name)
    if not named.placeholders:
        header_name("headers", name)
    if not name:
        raise ParamError("headers", "a header has no name")
    text = header_value("headers", value)
    if not text:
        raise ParamError("headers", f"{name} has no value")
    return named, Template(text)


TYPE: Final = ActionType(
    "data_to_webserver",
    Text("Data to Web Server", "发送数据到 Web 服务"),
    Text("Send each row to an HTTP server", "将每条数据发送到 HTTP 服务器"),
    to_sink(WebHook, DataToWebServer),
    (
        resource_param("web_hook"),
        Param("method", 1, "string", Text("Method", "请求方法"),
              Text("The method of the request; by default that of the resource. GET and DELETE have no body",
                   "请求方法，未指定时使用资源的方法；GET 与 DELETE 不带请求体"), enum=_METHODS),
        Param("path", 2, "string", Text("Path", "路径"),
              Text("Appended to the resource's URL; ${...} is replaced and percent-encoded",
                   "接在资源 URL 之后的路径，${...} 会被替换并做百分号编码"), default="", parts=True),
        Param("headers", 3, "object", Text("Headers", "请求头"),
              Text("Override the resource's headers; ${...} is replaced. The content type is JSON unless one is given",
                   "覆盖资源的请求头，支持 ${...}；默认 content-type 为 JSON"), schema={}, parts=True),
        Param("body", 4, "string", Text("Body", "请求体"),
              Text("Template of the body; empty: the whole row as JSON. In a JSON body, write ${json(name)}",
                   "请求体模板；留空则为整条数据的 JSON；JSON 请求体中请用 ${json(name)}"),
              default="", input="textarea", parts=True),
        Param("payload_tmpl", 5, "string", Text("Payload Template", "消息内容模板"),
              Text("The body, under its EMQX 4.0 name", "请求体模板（EMQX 4.0 中的名称）"),
              default="", input="textarea", parts=True),
        retry_for_param(6),
    ),
    resource_types=("web_hook",),
    category="data_forward",
    order=4,
)  # fmt: skip
ACTIONS: Final = (TYPE,)
