"""What no endpoint may be harmed by: nobody's credentials, bodies of every wrong kind, odd paths, broken HTTP."""

import asyncio
import base64
import types
import typing
from typing import Any

import msgspec
import pytest

from management.api import monitoring
from management.api.index import all_routes
from management.http.routes import Raw, Route
from tests.support.api import APP_ID, SECRET, ApiClient, ManagedNode, managed_node, segment

pytestmark = pytest.mark.asyncio

ROUTES = all_routes()
WITH_BODY = [route for route in ROUTES if route.body is not None]
WITH_NODE = [route for route in ROUTES if "{node}" in route.segments]
WITH_VARIABLE = [route for route in ROUTES if any(each.startswith("{") for each in route.segments)]
BASIC = "Basic " + base64.b64encode(f"{APP_ID}:{SECRET}".encode()).decode()

SMALL = 4096


def name_of(route: Any) -> str:
    return f"{route.method} {route.path}" if isinstance(route, Route) else str(route)


def every(routes: list[Route]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("route", routes, ids=name_of)


def path_of(route: Route, node: str, other: str = "x") -> str:
    """The route's path with its variables filled."""
    filled = [
        (segment(node) or other) if each == "{node}" else other if each.startswith("{") else each
        for each in route.segments
    ]
    return "/" + "/".join(filled)


def struct_of(kind: Any) -> tuple[Any, bool]:
    """The object that a body is or is made of, and whether it may come as an array alone."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    arrays = [each for each in choices if typing.get_origin(each) is list]
    return (typing.get_args(arrays[0])[0] if arrays else kind), len(choices) == len(arrays)


def fields_of(route: Route) -> list[msgspec.structs.FieldInfo]:
    if route.body is None:
        return []
    kind, _ = struct_of(route.body)
    return list(msgspec.structs.fields(kind)) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else []


def as_body(route: Route, item: Any) -> Any:
    return [item] if struct_of(route.body)[1] else item


@every(ROUTES)
async def test_nobody_comes_in(route: Route) -> None:
    async with managed_node() as node:
        path = path_of(route, node.name)
        for app, code in ((None, 104), (("", ""), 104), ((APP_ID, "nonsense"), 103), (("nobody", SECRET), 103)):
            stranger = ApiClient(node.management.url, app=app)
            reply = await stranger.ask(route.method, path, raw=b"{" if route.body is not None else None)
            assert (reply.status, reply.code) == (401, code), (app, reply.text)
            assert reply.json["message"] and reply.headers["WWW-Authenticate"].startswith("Basic ")
            assert SECRET not in reply.text
            await stranger.close()


@pytest.mark.parametrize(
    "header", ["Bearer abc", "Basic", "Basic !!!", "Basic YWRtaW5wdWJsaWM=", "Basic //79/A==", "x" * 4000]
)
async def test_credentials_that_are_none(header: str) -> None:
    async with managed_node() as node:
        reply = await node.api.ask("GET", "/brokers", headers={"Authorization": header})
        assert reply.status == 401 and reply.code in (103, 104), reply.text


@pytest.mark.parametrize(
    "route, path",
    [(monitoring.root_routes.all[0], "/metrics"), (None, "/api/v4/emqx_prometheus"), (None, "/api/v4/openapi.json")],
    ids=["metrics", "emqx_prometheus", "openapi"],
)
@pytest.mark.parametrize("public", [False, True], ids=["closed", "public"])
async def test_what_a_setting_opens(route: Route | None, path: str, public: bool) -> None:
    async with managed_node({"public_metrics": public, "public_openapi": public}) as node:
        stranger = ApiClient(node.management.url, prefix="", app=None)
        assert (await stranger.get(path)).status == (200 if public else 401)
        await stranger.close()


NOT_JSON = {
    "half": b'{"topic": ',
    "words": b"hello",
    "not UTF-8": b'{"topic": "\xff\xfe"}',
    "NUL": b"\x00",
    "NUL inside": b'{"a": "\x00"}',
    "nested deeply": b"[" * 3000,
    "nested objects": b'{"a":' * 800,
    "two": b"{} {}",
    "Infinity": b"Infinity",
    "a lone surrogate": b'{"a": "\\ud800"}',
}
WRONG_TYPE = {"null": b"null", "a number": b"5", "text": b'"text"', "true": b"true"}


@every(WITH_BODY)
async def test_a_body_that_is_not_json(route: Route) -> None:
    async with managed_node({"max_body": SMALL, "max_import": SMALL}) as node:
        for what, octets in NOT_JSON.items():
            reply = await node.api.ask(route.method, path_of(route, node.name), raw=octets)
            assert (reply.status, reply.code) == (400, 109), (what, reply.text)


@every(WITH_BODY)
async def test_a_body_of_the_wrong_type(route: Route) -> None:
    async with managed_node() as node:
        path = path_of(route, node.name)
        for what, octets in WRONG_TYPE.items():
            reply = await node.api.ask(route.method, path, raw=octets)
            assert (reply.status, reply.code) == (400, 108), (what, reply.text)
        # Members of an array are looked at like the thing itself.
        if as_body(route, 1) == [1]:
            for octets in (b"[5]", b"[null]", b"[[]]", b"{}"):
                reply = await node.api.ask(route.method, path, raw=octets)
                assert (reply.status, reply.code) == (400, 108), (octets, reply.text)


@every([route for route in WITH_BODY if any(field.required for field in fields_of(route))])
async def test_an_empty_body_misses_something(route: Route) -> None:
    async with managed_node() as node:
        path = path_of(route, node.name)
        for octets in (b"", b" \n", msgspec.json.encode(as_body(route, {}))):
            reply = await node.api.ask(route.method, path, raw=octets)
            assert (reply.status, reply.code) == (400, 107), (octets, reply.text)


def the_fields(required: bool) -> list[tuple[Route, str]]:
    return [
        (route, field.encode_name)
        for route in WITH_BODY
        for field in fields_of(route)
        if field.type is not Any and (field.required or not required)
    ]


@pytest.mark.parametrize("route, key", the_fields(required=False), ids=name_of)
async def test_a_value_of_the_wrong_type(route: Route, key: str) -> None:
    (kind,) = [field.type for field in fields_of(route) if field.encode_name == key]
    wrong: list[Any] = [{"no": {"such": "thing"}}, [[1], None]]
    if "dict" in str(kind) or "Properties" in str(kind):
        wrong = [5, "text"]
    elif "list" in str(kind):
        wrong = [5, {"a": 1}]
    async with managed_node() as node:
        for value in wrong:
            reply = await node.api.ask(route.method, path_of(route, node.name), as_body(route, {key: value}))
            assert (reply.status, reply.code) == (400, 108), (value, reply.text)
            assert key in reply.json["message"]


@pytest.mark.parametrize("route, key", the_fields(required=True), ids=name_of)
async def test_a_key_that_is_missing(route: Route, key: str) -> None:
    """The others are there, of whatever their type wants."""
    given = {
        field.encode_name: sample(field.type)
        for field in fields_of(route)
        if field.required and field.encode_name != key
    }
    async with managed_node() as node:
        reply = await node.api.ask(route.method, path_of(route, node.name), as_body(route, given))
        assert (reply.status, reply.code) == (400, 107), reply.text
        assert key in reply.json["message"]


def sample(kind: Any) -> Any:
    """Something that is of this type."""
    values: list[Any] = ["x", 1, True, [], {}, "clientid", "pub", "allow"]
    for value in values:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        return value
    raise AssertionError(f"no sample for {kind}")


@every(WITH_BODY)
async def test_a_body_over_its_limit(route: Route) -> None:
    async with managed_node({"max_body": SMALL, "max_import": SMALL}) as node:
        path, huge = path_of(route, node.name), b" " * (SMALL + 1)
        reply = await node.api.ask(route.method, path, raw=huge)
        assert (reply.status, reply.code) == (400, 108) and route.max_body in reply.json["message"], reply.text
        # And without saying beforehand how long it will be.
        status, body = await send(
            node, request_head(route.method, path, "Transfer-Encoding: chunked") + b"%x\r\n%b\r\n" % (len(huge), huge)
        )
        assert (status, body["code"]) == (400, 108) and route.max_body in body["message"]


@every(WITH_NODE)
async def test_an_unknown_node(route: Route) -> None:
    async with managed_node() as node:
        for name in ("nobody@nowhere", "garbage", " ", node.name + "x"):
            reply = await node.api.ask(route.method, path_of(route, name), raw=b"{}")
            assert (reply.status, reply.code) == (404, 102), reply.text


@every(ROUTES)
async def test_a_method_that_is_not_there(route: Route) -> None:
    async with managed_node() as node:
        for method in ("PATCH", "OPTIONS", "PROPFIND"):
            reply = await node.api.ask(method, path_of(route, node.name))
            assert (reply.status, reply.code) == (404, 102), (method, reply.text)


@every(WITH_VARIABLE)
async def test_a_broken_escape_in_the_path(route: Route) -> None:
    async with managed_node() as node:
        for escape in ("%ZZ", "%", "%2", "%C3%28", "%FF"):
            reply = await node.api.ask(route.method, path_of(route, "", escape), raw=b"{}")
            assert (reply.status, reply.code) == (400, 108), (escape, reply.text)


ODD_NAMES = [
    "%2F", "..%2F..%2Fetc%2Fpasswd", "..", "%00", "%0A", "%0d%0aX-A:%20b", "%F0%9F%90%8D", "%25ZZ", "x" * 3000
]  # fmt: skip


@every([route for route in WITH_VARIABLE if route.method == "GET"])
async def test_odd_names_in_the_path(route: Route) -> None:
    """Whatever is asked for, the answer is well formed, and slashes at the end or twice change nothing."""
    async with managed_node() as node:
        for name in (
            "%2F",
            "..%2F..%2Fetc%2Fpasswd",
            "..",
            "%00",
            "%0A",
            "%0d%0aX-A:%20b",
            "%F0%9F%90%8D",
            "%25ZZ",
            "x" * 3000,
        ):
            path = path_of(route, node.name, name)
            reply = await node.api.ask("GET", path)
            if isinstance(route.reply, Raw) and reply.status == 200:
                continue
            assert reply.status in (200, 400, 404) and isinstance(reply.code, int), (name, reply.text)
            assert "X-A" not in reply.headers
            again = await node.api.ask("GET", "/" + path.replace("/", "//") + "//")
            assert (again.status, again.code) == (reply.status, reply.code), (name, again.text)


@every([route for route in ROUTES if route.query is not None])
async def test_odd_queries(route: Route) -> None:
    """A value that cannot be is 108, wherever; what is unknown does not count."""
    async with managed_node() as node:
        path = path_of(route, node.name)
        sound = (await node.api.ask(route.method, path)).status
        for query in ("?_page=abc", "?_limit=-5", "?_limit=1.5"):
            reply = await node.api.ask(route.method, path + query)
            pages = "_page" in {field.encode_name for field in msgspec.structs.fields(route.query or msgspec.Struct)}
            assert reply.status == (400 if pages else sound), (query, reply.text)
        for query in ("?nosuch=1", "?" + "&" * 50, "?=", "?%FF=%FF", "?a[]=b"):
            assert (await node.api.ask(route.method, path + query)).status == sound, query


def request_head(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} /api/v4{path} HTTP/1.1", "Host: taipan", f"Authorization: {BASIC}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


async def send(node: ManagedNode, octets: bytes) -> tuple[int, Any]:
    """Status and body of the first answer; 0 where the connection was closed without one."""
    host, port = node.management.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(10):
            writer.write(octets)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split()[1])
            (length,) = [
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
            ]
            return status, msgspec.json.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0, None
    finally:
        writer.close()


CHUNKED = "Transfer-Encoding: chunked"
PUBLISH = b'{"topic":"t","payload":"x","clientid":"a"}'
BROKEN = {
    "two lengths": request_head("POST", "/mqtt/publish", "Content-Length: 5", "Content-Length: 6") + PUBLISH,
    "two equal lengths": request_head("POST", "/mqtt/publish", "Content-Length: 42, 42") + PUBLISH,
    "length and chunks": request_head("POST", "/mqtt/publish", "Content-Length: 3", "Transfer-Encoding: chunked")
    + b"0\r\n\r\n",
    "a negative length": request_head("POST", "/mqtt/publish", "Content-Length: -1") + PUBLISH,
    "a length with a sign": request_head("POST", "/mqtt/publish", "Content-Length: +42") + PUBLISH,
    "a length in words": request_head("POST", "/mqtt/publish", "Content-Length: many") + PUBLISH,
    "garbage for chunks": request_head("POST", "/mqtt/publish", CHUNKED) + b"zz\r\n\r\n",
    "a negative chunk": request_head("POST", "/mqtt/publish", CHUNKED) + b"-1\r\nx\r\n",
    "an unknown coding": request_head("POST", "/mqtt/publish", "Transfer-Encoding: chunked, nonsense") + b"0\r\n\r\n",
    "no gzip": request_head("POST", "/mqtt/publish", "Content-Encoding: gzip", "Content-Length: 4") + b"abcd",
    "an endless header": request_head("GET", "/brokers", "X-A: " + "a" * 20_000),
    "too many headers": request_head("GET", "/brokers", *[f"X-{each}: a" for each in range(5000)]),
    "a header without a name": request_head("GET", "/brokers", ": a"),
    "a header with a NUL": request_head("GET", "/brokers", "X-A: \x00"),
    "a folded header": request_head("GET", "/brokers", "X-A: a", " b: c"),
    "an endless line": request_head("GET", "/" + "a" * 20_000),
    "a NUL in the line": b"GET /api/v4/\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    "an unknown method": request_head("BREW", "/brokers"),
    "no version": b"GET /api/v4/brokers\r\n\r\n",
    "an odd version": b"GET /api/v4/brokers HTTP/9.9\r\nHost: a\r\n\r\n",
    "MQTT": b"\x10\x0c\x00\x04MQTT\x04\x02\x00<\x00\x00\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
"""What a careful server answers with 400, or by hanging up."""


@pytest.mark.parametrize("what", BROKEN)
async def test_what_is_no_http_is_refused(what: str) -> None:
    async with managed_node() as node:
        published = (await node.api.get(f"/nodes/{node.name}/metrics")).data["messages.publish"]
        status, body = await send(node, BROKEN[what])
        assert status in (0, 400, 401), body
        if status:
            assert body["code"] in (104, 108) and body["message"], body
        assert (await node.api.get("/brokers")).code == 0
        assert (await node.api.get(f"/nodes/{node.name}/metrics")).data["messages.publish"] == published


@pytest.mark.parametrize("target", ["*", "http://elsewhere/api/v4/brokers", "//elsewhere/api/v4/brokers", "brokers"])
async def test_odd_targets(target: str) -> None:
    async with managed_node() as node:
        status, body = await send(node, f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert status in (400, 401, 404) and body["code"] in (102, 104, 108), body
        assert (await node.api.get("/brokers")).code == 0


async def test_who_says_nothing_is_put_out() -> None:
    async with managed_node({"read_timeout": 0.1}) as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        for begun in (b"", b"GET /api/v4/brokers HTTP/1.1\r\nHost: a\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begun)
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            writer.close()
        # Whoever has been answered may stay.
        assert (await node.api.get("/brokers")).code == 0


async def test_a_body_that_never_ends_is_refused() -> None:
    async with managed_node({"read_timeout": 0.1}) as node:
        status, body = await send(node, request_head("POST", "/mqtt/publish", "Content-Length: 42") + PUBLISH[:20])
        assert (status, body["code"]) == (400, 108) and "read_timeout" in body["message"]


async def test_more_connections_than_may_be() -> None:
    async with managed_node({"max_connections": 3, "read_timeout": 0.2}) as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(10):
            assert await reader.read() == b""
            writer.close()
            # The slow ones lose their places.
            for each, _ in slow:
                assert await each.read() == b""
        assert (await node.api.get("/brokers")).code == 0
        for _, each_writer in slow:
            each_writer.close()


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "..", "taipan.sqlite", "broker-export-x.json", "a%00.json"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_hostile_file_names(method: str, name: str) -> None:
    async with managed_node() as node:
        for place in ("/data/file/", "/data/export/"):
            reply = await node.api.ask(method, place + name)
            assert reply.status in (400, 404) and "root:" not in reply.text, (place, reply.text)


async def test_who_waits_before_its_body_may_send_it() -> None:
    async with managed_node() as node:
        host, port = node.management.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(10):
            length = f"Content-Length: {len(PUBLISH)}"
            writer.write(request_head("POST", "/mqtt/publish", length, "Expect: 100-continue"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(PUBLISH)
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"200"
        writer.close()
        status, body = await send(node, request_head("GET", "/brokers", "Expect: wonders"))
        assert (status, body["code"]) == (400, 108) and "Expect" in body["message"]


@pytest.mark.parametrize("what", NOT_JSON)
async def test_an_import_that_is_no_json(what: str) -> None:
    async with managed_node() as node:
        reply = await node.api.ask("POST", "/data/import", raw=NOT_JSON[what])
        assert (reply.status, reply.code) == (400, 109), reply.text


NO_EXPORTS = [b"", b"{}", b"[]", b"5", b"null", b'{"filename": 5}', b'{"version": "4.1", "rules": 1}']


@pytest.mark.parametrize("octets", NO_EXPORTS, ids=repr)
async def test_an_import_that_is_no_export(octets: bytes) -> None:
    async with managed_node() as node:
        reply = await node.api.ask("POST", "/data/import", raw=octets)
        assert reply.status == 400 and reply.code in (107, 108), reply.text


async def test_an_import_over_its_limit() -> None:
    async with managed_node({"max_import": SMALL}) as node:
        reply = await node.api.ask("POST", "/data/import", raw=b" " * (SMALL + 1))
        assert (reply.status, reply.code) == (400, 108) and "max_import" in reply.json["message"]


HUGE = [10**18, 10**30, -(10**30), 10**400, 0, -1, 1 << 63, 1 << 31, 1 << 16]
"""Whole numbers at and far beyond what times, sizes and counts fit in."""


def the_numbers() -> list[tuple[Route, str, bool]]:
    """Route, key, and whether it stands in the query: all that may be numbers."""
    found = [
        (route, field.encode_name, True)
        for route in ROUTES
        if route.query is not None
        for field in msgspec.structs.fields(route.query)
        if "int" in str(field.type)
    ]
    return found + [
        (route, field.encode_name, False)
        for route in WITH_BODY
        for field in fields_of(route)
        if "int" in str(field.type) or field.type is Any
    ]


@pytest.mark.parametrize("route, key, in_query", the_numbers(), ids=name_of)
async def test_huge_numbers(route: Route, key: str, in_query: bool) -> None:
    """They are refused or mean what they say, and break nothing: the node logs no error."""
    async with managed_node() as node:
        await node.client("x", username="x")
        await node.api.post("/trace", {"name": "x", "type": "clientid", "clientid": "x"})
        path = path_of(route, node.name)
        required = {field.encode_name: sample(field.type) for field in fields_of(route) if field.required}
        for number in HUGE:
            if in_query:
                reply = await node.api.ask(route.method, f"{path}?{key}={number}")
            else:
                reply = await node.api.ask(route.method, path, as_body(route, {**required, key: number}))
            assert reply.status in (200, 400, 404), (number, reply.text)
        assert (await node.api.get("/clients")).code == 0
