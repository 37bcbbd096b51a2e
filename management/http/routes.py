"""Endpoints: the handler for each method and path, and the types of query and body."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from ..operations.caller import ANYBODY, NOBODY, VIEWER, Caller, Scope
from ..operations.operations import Operations
from ..operations.refusal import WRONG, Refusal
from .envelope import Extra, of_nodes
from .roles import role_for

PREFIXES: Final = (("api", "v4"), ("api",))
"""Every endpoint is available under both; the longer prefix is tried first."""

P = ParamSpec("P")
R = TypeVar("R")
Row = TypeVar("Row")


_ABSOLUTE: Final = re.compile("https?://", re.IGNORECASE)


class Call:
    """One request to a handler.

    ``path``: the variables in the path, percent-decoded once. ``query`` and ``body``: instances of the endpoint's
    types, or the body's bytes. ``caller``: who makes the request. ``audited``: what the audit shows as before and
    after, if a handler knows better than the body and the object."""

    __slots__ = ("audited", "body", "caller", "operations", "path", "query", "request")

    def __init__(
        self,
        request: web.Request,
        operations: Operations,
        path: dict[str, str],
        query: Any = None,
        body: Any = None,
        caller: Caller = NOBODY,
    ) -> None:
        self.caller = caller
        self.audited: list[object] | None = None
        self.request = request
        self.operations = operations
        self.path = path
        self.query = query
        self.body = body

    async def on_node(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of an operation on the node that the path names."""
        return await self.operations.calls.on(self.path["node"], function, *args, **kwargs)

    async def on_all(
        self,
        row: Callable[[str, R], Row],
        function: Callable[P, R | Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[Row] | Extra:
        """Return the results of an operation on all running nodes, a ``row`` for each."""
        calls = self.operations.calls
        found, missing = await calls.everywhere(function, *args, **kwargs)
        return of_nodes([row(node, each) for node, each in found], calls.may_lack(missing))


Handler = Callable[[Call], object]
"""``envelope`` converts its result, which may be awaitable, to a response."""
H = TypeVar("H", bound=Handler)


QueryType = type[msgspec.Struct] | None

Schema = dict[str, Any]
"""A JSON schema."""
Empty = dict[str, None]
"""``{}``."""


class OrEmpty:
    """The ``reply`` of an endpoint has this type, or is ``{}`` if there is no object."""

    __slots__ = ("kind",)

    def __init__(self, kind: object) -> None:
        self.kind = kind


class OfNodes:
    """The ``reply`` of an endpoint that asks several nodes; ``meta`` may name nodes that did not answer."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any) -> None:
        self.kind = kind


class OnDemand:
    """The ``reply`` of an endpoint that has ``data`` only if the request asks for it."""

    __slots__ = ("kind",)

    def __init__(self, kind: object) -> None:
        self.kind = kind


class UnparsedBody:
    """The ``body`` of an endpoint whose handler receives the bytes and reads them itself."""

    __slots__ = ("kind",)

    def __init__(self, kind: object) -> None:
        self.kind = kind


class Lenient:
    """The ``body`` of an endpoint, of type ``kind``; with ``management.error_status`` ``emqx``, of type ``emqx``,
    because EMQX accepts more."""

    __slots__ = ("emqx", "kind")

    def __init__(self, kind: object, emqx: object) -> None:
        self.kind = kind
        self.emqx = emqx

    def of(self, error_status: str) -> object:
        return self.emqx if error_status == "emqx" else self.kind


class Raw:
    """An endpoint's ``reply`` without the envelope.

    ``content``: media type -> JSON schema. ``failures``: statuses with the same content."""

    __slots__ = ("content", "failures")

    def __init__(self, content: dict[str, Schema], failures: tuple[str, ...] = ()) -> None:
        self.content = content
        self.failures = failures


class Redirect:
    """The ``reply`` of an endpoint that sends a browser to another page. ``where``: in a few words."""

    __slots__ = ("where",)

    def __init__(self, where: str) -> None:
        self.where = where


class Endpoint:
    """``path`` is relative to the prefixes: ``/clients/{clientid}``.

    ``body`` is the type of the body, or ``UnparsedBody`` or ``Lenient``. ``reply`` is the type of ``data`` in the
    OpenAPI document, or one of the classes above. ``max_body`` names the setting that limits the body. ``role``: the
    least role of a dashboard user that may call it, from ``roles``. ``scope``: the scope that an application needs,
    besides ``all``: ``read`` for what viewers may call, unless it is given."""

    __slots__ = (
        "body",
        "descr",
        "handler",
        "max_body",
        "method",
        "name",
        "path",
        "query",
        "reply",
        "role",
        "scope",
        "segments",
        "tag",
        "variables",
    )

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        name: str,
        descr: str,
        query: QueryType,
        body: object,
        reply: object,
        max_body: str,
        tag: str,
        scope: Scope | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.name = name
        self.descr = descr
        self.query = query
        self.body = body
        self.reply = reply
        self.max_body = max_body
        self.tag = tag
        self.role = role_for(method, path)
        self.scope: Scope = scope or ("read" if self.role in (ANYBODY, VIEWER) else "all")
        self.segments = tuple(segment for segment in path.split("/") if segment)
        self.variables = [(index, each[1:-1]) for index, each in enumerate(self.segments) if each.startswith("{")]


class Endpoints:
    """One resource's routes::

    routes = Endpoints("Clients")

    @routes.get("/clients/{clientid}", "Clients of this identifier", reply=list[ClientRecord])
    def lookup_client(call: Call) -> list[ClientRecord]: ...

    The function's name is the endpoint's name. A handler returns a value that ``envelope`` can convert, or raises
    ``Refusal``."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Endpoint] = []

    def add(
        self,
        method: str,
        path: str,
        descr: str,
        query: QueryType = None,
        body: object = None,
        reply: object = None,
        max_body: str = "max_body",
        scope: Scope | None = None,
    ) -> Callable[[H], H]:
        """``scope``: as for ``Endpoint``."""

        def register(handler: H) -> H:
            name: str = getattr(handler, "__name__", path)
            self.all.append(Endpoint(method, path, handler, name, descr, query, body, reply, max_body, self.tag, scope))
            return handler

        return register

    def get(self, path: str, descr: str, query: QueryType = None, reply: object = None) -> Callable[[H], H]:
        return self.add("GET", path, descr, query, None, reply)

    def post(
        self, path: str, descr: str, body: object = None, reply: object = None, scope: Scope | None = None
    ) -> Callable[[H], H]:
        return self.add("POST", path, descr, None, body, reply, scope=scope)

    def put(self, path: str, descr: str, body: object = None, reply: object = None) -> Callable[[H], H]:
        return self.add("PUT", path, descr, None, body, reply)

    def delete(self, path: str, descr: str, query: QueryType = None, reply: object = None) -> Callable[[H], H]:
        return self.add("DELETE", path, descr, query, None, reply)


class RouteTable:
    """Finds the endpoint of a path. A literal segment is preferred over a variable at the same position, the leftmost
    first.

    A segment that ends in U+0000 stands for the name before it, and never for a literal segment. Browsers resolve ``.``
    and ``..`` even if they are escaped; this form lets them request objects with such names, or with the name of a
    literal segment."""

    def __init__(self, routes: Iterable[Endpoint]) -> None:
        self.routes = tuple(routes)
        self._root: dict[str, Any] = {}
        for endpoint in self.routes:
            node = self._root
            for segment in endpoint.segments:
                node = node.setdefault("{}" if segment.startswith("{") else segment, {})
            methods = node.setdefault("", {})
            if endpoint.method in methods:
                raise ValueError(f"{endpoint.method} {endpoint.path} occurs twice")
            methods[endpoint.method] = endpoint

    def find(self, method: str, segments: list[str]) -> tuple[Endpoint, dict[str, str]] | None:
        """``segments``: the segments as received, still encoded."""
        decoded: list[str] = []
        names: set[int] = set()
        for index, segment in enumerate(segments):
            name = segment if "%" not in segment and segment.isascii() else decode_segment(segment)
            if name.endswith("\0"):
                name = name[:-1]
                names.add(index)
            decoded.append(name)
        open_nodes = [(self._root, 0)]
        while open_nodes:
            node, index = open_nodes.pop()
            if index == len(decoded):
                endpoint: Endpoint | None = node.get("", {}).get(method)
                if endpoint is not None:
                    variables: dict[str, str] = {}
                    for place, name in endpoint.variables:
                        variables[name] = decoded[place]
                    return endpoint, variables
                continue
            segment = decoded[index]
            variable, word = node.get("{}"), node.get(segment) if segment and index not in names else None
            if variable is not None:
                open_nodes.append((variable, index + 1))
            if word is not None and segment != "{}":
                open_nodes.append((word, index + 1))
        return None


def split_path(raw: str) -> list[str]:
    """Return the segments of a raw path. Empty ones are left out, so ``/clients/`` is ``/clients``.

    A request as to a proxy, with scheme and host before the path, has the same path."""
    if _ABSOLUTE.match(raw):
        raw = "/" + raw.split("/", 3)[3] if raw.count("/") > 2 else ""
    return list(filter(None, raw.partition("?")[0].split("/")))


def decode_segment(segment: str) -> str:
    """Percent-decode once; ``+`` stays unchanged."""
    for at, char in enumerate(segment):
        if char == "%" and not (len(segment) >= at + 3 and _is_hex(segment[at + 1 : at + 3])):
            raise Refusal(WRONG, f"the path has a broken escape: {segment[at : at + 3]}")
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(WRONG, f"the path is not UTF-8: {segment}") from None


def _is_hex(text: str) -> bool:
    return all(char in "0123456789abcdefABCDEF" for char in text)
