"""The action ``data_to_webserver``: one HTTP request for each row, through a ``web_hook`` resource."""

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ..params import RESOURCE, Param, ParamError, Text, read_retry_for, resource_param, retry_for_param
from ..resources.web_hook import URL_CHARACTERS, HttpRequest, WebHook, header_name, header_value
from ..template import Template
from .action import ActionContext, ActionFailed, ActionType, Row
from .message_facts import order_key

if TYPE_CHECKING:
    from ..event import Event

_METHODS: Final = ["POST", "DELETE", "PUT", "GET"]
_WITHOUT_BODY: Final = frozenset({"GET", "DELETE"})
_JSON: Final = {"content-type": "application/json"}


class DataToWebServer:
    """A running action. Method, headers and URL are the resource's where the action has none of its own."""

    def __init__(self, context: ActionContext) -> None:
        """Raises ParamError."""
        params = context.params
        if params.get("payload_tmpl") and params.get("body"):
            raise ParamError("payload_tmpl", "cannot be given together with body")
        self._id = context.id
        self._find_resource = context.resource
        self._buffers = context.node.buffers
        self._resource_id: str = params[RESOURCE]
        self._method: str | None = params.get("method")
        self._body = Template(params.get("body") or params.get("payload_tmpl") or "")
        path = params.get("path", "")
        if "#" in path or any(ord(each) <= 32 for each in path):
            raise ParamError("path", "cannot hold '#', white space or control characters")
        self._path = Template(path)
        self._headers = [_header(name, value) for name, value in params.get("headers", {}).items()]
        self._retry_for = read_retry_for(params)
        self._report = context.report
        self._buffers.reports[context.id] = context.report

    def run(self, row: Row, event: "Event") -> bool:
        resource = self._find_resource(self._resource_id)
        if not isinstance(resource, WebHook):
            raise ActionFailed(f"the resource {self._resource_id} is not running")
        method = self._method or resource.method
        headers = {**_JSON, **resource.headers}
        try:
            for name, value in self._headers:
                sent = header_name("headers", _text(name.render(row)))
                headers[sent] = header_value("headers", _text(value.render(row)))
            body = None if method in _WITHOUT_BODY else self._body.render_bytes(row)
            target = self._target(resource, row)
        except ValueError as error:
            raise ActionFailed(str(error)) from None
        if body is None:
            headers.pop("content-type", None)
        resource.send(self._id, order_key(event), HttpRequest(method, target, headers, body), row, self._retry_for)
        return False

    def close(self) -> None:
        self._buffers.remove_report(self._id, self._report)

    def _target(self, resource: WebHook, row: Row) -> str:
        path, query = resource.path, resource.query
        if self._path.text:
            rendered = quote(self._path.render_each(row, _escape), safe=URL_CHARACTERS)
            more, _, more_query = rendered.partition("?")
            if not {".", ".."}.isdisjoint(more.split("/")):
                raise ValueError(f"path: {more!r} would lead elsewhere")
            if more:
                path = f"{path.rstrip('/')}/{more.lstrip('/')}"
            query = "&".join(each for each in (query, more_query) if each)
        return (path or "/") + (f"?{query}" if query else "")


def _escape(value: str | bytes) -> str:
    """One value as part of a path: nothing in it can end a segment or begin a query."""
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
    DataToWebServer,
    (
        resource_param("web_hook"),
        Param("method", 1, "string", Text("Method", "请求方法"),
              Text("The method of the request; the resource's where none is given. GET and DELETE have no body",
                   "请求方法,未指定时使用资源的方法;GET 与 DELETE 不带请求体"), enum=_METHODS),
        Param("path", 2, "string", Text("Path", "路径"),
              Text("Put behind the resource's URL; ${...} is filled in and percent-encoded",
                   "接在资源 URL 之后的路径,${...} 会被替换并做百分号编码"), default=""),
        Param("headers", 3, "object", Text("Headers", "请求头"),
              Text("Put over the resource's headers; ${...} is filled in. The content type is JSON unless one is given",
                   "覆盖资源的请求头,支持 ${...};默认 content-type 为 JSON"), schema={}),
        Param("body", 4, "string", Text("Body", "请求体"),
              Text("Template of the body; empty: the whole row as JSON. In a body that is JSON write ${json(name)}",
                   "请求体模板;留空则为整条数据的 JSON;JSON 请求体中请用 ${json(name)}"),
              default="", input="textarea"),
        Param("payload_tmpl", 5, "string", Text("Payload Template", "消息内容模板"),
              Text("The body under its name of EMQX 4.0", "请求体模板 (EMQX 4.0 中的名称)"),
              default="", input="textarea"),
        retry_for_param(6),
    ),
    resource_types=("web_hook",),
    category="data_forward",
)  # fmt: skip
