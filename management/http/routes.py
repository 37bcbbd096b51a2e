"""Endpoints: which handler answers which method and path, and by which types its query and body are read."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from ..operations.caller import NOBODY, Caller
from ..operations.operations import Operations
from ..operations.refusal import WRONG, Refusal
from .envelope import Extra, of_nodes

PREFIXES: Final = (("api", "v4"), ("api",))
"""Every endpoint stands under both; the longer is tried first."""

P = ParamSpec("P")
R = TypeVar("R")
Row = TypeVar("Row")


_ABSOLUTE: Final = re.compile("https?://", re.IGNORECASE)


class Call:
    """One request on its way to a handler.

    ``path``: the path's variables, percent-decoded once. ``query`` and ``body``: instances of the endpoint's types,
    or the body's bytes. ``caller``: who asks.
    """

    __slots__ = ("body", "caller", "operations", "path", "query", "request")

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
        self.request = request
        self.operations = operations
        self.path = path
        self.query = query
        self.body = body

    async def on_node(self, function: Callable[P, R | Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """What an operation gives on the node that the path names."""
        return await self.operations.calls.on(self.path["node"], function, *args, **kwargs)

    async def on_all(
        self,
        row: Callable[[str, R], Row],
        function: Callable[P, R | Awaitable[R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[Row] | Extra:
        """What an operation gives on all running nodes, a ``row`` of each."""
        calls = self.operations.calls
        found, missing = await calls.everywhere(function, *args, **kwargs)
        return of_nodes([row(node, each) for node, each in found], calls.may_lack(missing))


Handler = Callable[[Call], object]
"""What it returns, or awaits, is what ``envelope`` knows how to dress."""
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
    """An endpoint's ``reply`` of this type, for which nodes are asked; ``meta`` may name some that did not answer."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any) -> None:
        self.kind = kind


class OnDemand:
    """An endpoint's ``reply`` of this type where the request asks for it; else the answer has no ``data``."""

    __slots__ = ("kind",)

    def __init__(self, kind: object) -> None:
        self.kind = kind


class UnparsedBody:
    """An endpoint's ``body`` of this type, which the handler is given as it came, in bytes, to read it itself."""

    __slots__ = ("kind",)

    def __init__(self, kind: object) -> None:
        self.kind = kind


class Lenient:
    """An endpoint's ``body`` of type ``kind``; with ``management.error_status`` ``emqx``, of type ``emqx``: EMQX takes
    more.
    """

    __slots__ = ("emqx", "kind")

    def __init__(self, kind: object, emqx: object) -> None:
        self.kind = kind
        self.emqx = emqx

    def of(self, error_status: str) -> object:
        return self.emqx if error_status == "emqx" else self.kind


class Raw:
    """An endpoint's ``reply`` that comes without the envelope.

    ``content``: media type -> JSON schema. ``failures``: statuses that come with the same.
    """

    __slots__ = ("content", "failures")

    def __init__(self, content: dict[str, Schema], failures: tuple[str, ...] = ()) -> None:
        self.content = content
        self.failures = failures


class Endpoint:
    """``path`` is relative to the prefixes: ``/clients/{clientid}``.

    ``body`` is the type that the body is read as, or ``UnparsedBody`` or ``Lenient``. ``reply`` names the type of
    ``data`` in the OpenAPI document: a type, or one of the above about it. ``max_body`` names the setting that bounds
    the body. ``viewers``: whether those may call it who only look: all that changes nothing and tells no secret.
    """

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
        "segments",
        "tag",
        "variables",
        "viewers",
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
        viewers: bool,
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
        self.viewers = viewers
        self.segments = tuple(segment for segment in path.split("/") if segment)
        self.variables = [(index, each[1:-1]) for index, each in enumerate(self.segments) if each.startswith("{")]


class Endpoints:
    """One resource's routes::

    routes = Endpoints("Clients")

    @routes.get("/clients/{clientid}", "Clients of this identifier", reply=list[ClientRecord])
    def lookup_client(call: Call) -> list[ClientRecord]: ...

    The function's name is the endpoint's name. A handler answers with what ``envelope`` knows how to dress, and
    raises ``Refusal``.
    """

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
        viewers: bool | None = None,
    ) -> Callable[[H], H]:
        """``viewers``: without it GET alone."""

        def register(handler: H) -> H:
            name: str = getattr(handler, "__name__", path)
            let_in = method == "GET" if viewers is None else viewers
            self.all.append(
                Endpoint(method, path, handler, name, descr, query, body, reply, max_body, self.tag, let_in)
            )
            return handler

        return register

    def get(
        self, path: str, descr: str, query: QueryType = None, reply: object = None, viewers: bool = True
    ) -> Callable[[H], H]:
        return self.add("GET", path, descr, query, None, reply, viewers=viewers)

    def post(self, path: str, descr: str, body: object = None, reply: object = None) -> Callable[[H], H]:
        return self.add("POST", path, descr, None, body, reply)

    def put(self, path: str, descr: str, body: object = None, reply: object = None) -> Callable[[H], H]:
        return self.add("PUT", path, descr, None, body, reply)

    def delete(self, path: str, descr: str, query: QueryType = None, reply: object = None) -> Callable[[H], H]:
        return self.add("DELETE", path, descr, query, None, reply)


class RouteTable:
    """Finds the endpoint of a path. A word wins over a variable at the same place, the leftmost first.

    A segment that ends in U+0000 is the name before that and no word: so a browser, which folds ``.`` and ``..`` away
    however they are escaped, can ask for what has such a name, or that of a word.
    """

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
        """``segments`` are as they came, still encoded."""
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
    """The segments of a raw path: empty ones do not count, so ``/clients/`` is ``/clients``.

    As a proxy is asked, with scheme and host before the path, it is the same path.
    """
    if _ABSOLUTE.match(raw):
        raw = "/" + raw.split("/", 3)[3] if raw.count("/") > 2 else ""
    return list(filter(None, raw.partition("?")[0].split("/")))


def decode_segment(segment: str) -> str:
    """Percent-decoded once; ``+`` stays what it is."""
    for at, char in enumerate(segment):
        if char == "%" and not (len(segment) >= at + 3 and _is_hex(segment[at + 1 : at + 3])):
            raise Refusal(WRONG, f"the path has a broken escape: {segment[at : at + 3]}")
    try:
        return unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError:
        raise Refusal(WRONG, f"the path is not UTF-8: {segment}") from None


def _is_hex(text: str) -> bool:
    return all(char in "0123456789abcdefABCDEF" for char in text)
