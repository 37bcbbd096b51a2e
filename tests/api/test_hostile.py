"""What no endpoint may be harmed by: nobody's credentials, bodies of every wrong kind, odd paths, huge numbers."""

import types
import typing
from typing import Any

import msgspec
import pytest

from taipan.management.api import monitoring
from taipan.management.api.index import all_routes
from taipan.management.http.routes import Endpoint, Raw
from tests.api.raw_http import request_head, send
from tests.support.api import APP_ID, SECRET, ApiClient, managed_node, segment

pytestmark = pytest.mark.asyncio

ROUTES = all_routes()
WITH_BODY = [endpoint for endpoint in ROUTES if endpoint.body is not None]
WITH_NODE = [endpoint for endpoint in ROUTES if "{node}" in endpoint.segments]
WITH_VARIABLE = [endpoint for endpoint in ROUTES if any(each.startswith("{") for each in endpoint.segments)]

SMALL = 4096


def name_of(endpoint: Any) -> str:
    return f"{endpoint.method} {endpoint.path}" if isinstance(endpoint, Endpoint) else str(endpoint)


def every(routes: list[Endpoint]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("endpoint", routes, ids=name_of)


def path_of(endpoint: Endpoint, node: str, other: str = "x") -> str:
    """The endpoint's path with its variables filled."""
    filled = [
        (segment(node) or other) if each == "{node}" else other if each.startswith("{") else each
        for each in endpoint.segments
    ]
    return "/" + "/".join(filled)


def struct_of(kind: Any) -> tuple[Any, bool]:
    """The object that a body is or is made of, and whether it may come as an array alone."""
    choices = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    arrays = [each for each in choices if typing.get_origin(each) is list]
    return (typing.get_args(arrays[0])[0] if arrays else kind), len(choices) == len(arrays)


def fields_of(endpoint: Endpoint) -> list[msgspec.structs.FieldInfo]:
    if endpoint.body is None:
        return []
    kind, _ = struct_of(endpoint.body)
    return list(msgspec.structs.fields(kind)) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else []


def as_body(endpoint: Endpoint, item: Any) -> Any:
    return [item] if struct_of(endpoint.body)[1] else item


@every(ROUTES)
async def test_nobody_comes_in(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        path = path_of(endpoint, node.name)
        for app, code in ((None, 104), (("", ""), 104), ((APP_ID, "nonsense"), 103), (("nobody", SECRET), 103)):
            anonymous = ApiClient(node.management.url, app=app)
            reply = await anonymous.ask(endpoint.method, path, raw=b"{" if endpoint.body is not None else None)
            assert (reply.status, reply.code) == (401, code), (app, reply.text)
            assert reply.json["message"] and reply.headers["WWW-Authenticate"].startswith("Basic ")
            assert SECRET not in reply.text
            await anonymous.close()


@pytest.mark.parametrize(
    "header", ["Bearer abc", "Basic", "Basic !!!", "Basic YWRtaW5wdWJsaWM=", "Basic //79/A==", "x" * 4000]
)
async def test_credentials_that_are_none(header: str) -> None:
    async with managed_node() as node:
        reply = await node.api.ask("GET", "/brokers", headers={"Authorization": header})
        assert reply.status == 401 and reply.code in (103, 104), reply.text


@pytest.mark.parametrize(
    "endpoint, path",
    [(monitoring.root_routes.all[0], "/metrics"), (None, "/api/v4/emqx_prometheus"), (None, "/api/v4/openapi.json")],
    ids=["metrics", "emqx_prometheus", "openapi"],
)
@pytest.mark.parametrize("public", [False, True], ids=["closed", "public"])
async def test_what_a_setting_opens(endpoint: Endpoint | None, path: str, public: bool) -> None:
    async with managed_node({"public_metrics": public, "public_openapi": public}) as node:
        anonymous = ApiClient(node.management.url, prefix="", app=None)
        assert (await anonymous.get(path)).status == (200 if public else 401)
        await anonymous.close()


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
async def test_a_body_that_is_not_json(endpoint: Endpoint) -> None:
    async with managed_node({"max_body": SMALL, "max_import": SMALL}) as node:
        for what, octets in NOT_JSON.items():
            reply = await node.api.ask(endpoint.method, path_of(endpoint, node.name), raw=octets)
            assert (reply.status, reply.code) == (400, 109), (what, reply.text)


@every(WITH_BODY)
async def test_a_body_of_the_wrong_type(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        path = path_of(endpoint, node.name)
        for what, octets in WRONG_TYPE.items():
            reply = await node.api.ask(endpoint.method, path, raw=octets)
            assert (reply.status, reply.code) == (400, 108), (what, reply.text)
        # Members of an array are looked at like the thing itself.
        if as_body(endpoint, 1) == [1]:
            for octets in (b"[5]", b"[null]", b"[[]]", b"{}"):
                reply = await node.api.ask(endpoint.method, path, raw=octets)
                assert (reply.status, reply.code) == (400, 108), (octets, reply.text)


@every([endpoint for endpoint in WITH_BODY if any(field.required for field in fields_of(endpoint))])
async def test_an_empty_body_misses_something(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        path = path_of(endpoint, node.name)
        for octets in (b"", b" \n", msgspec.json.encode(as_body(endpoint, {}))):
            reply = await node.api.ask(endpoint.method, path, raw=octets)
            assert (reply.status, reply.code) == (400, 107), (octets, reply.text)


def the_fields(required: bool) -> list[tuple[Endpoint, str]]:
    return [
        (endpoint, field.encode_name)
        for endpoint in WITH_BODY
        for field in fields_of(endpoint)
        if field.type is not Any and (field.required or not required)
    ]


@pytest.mark.parametrize("endpoint, key", the_fields(required=False), ids=name_of)
async def test_a_value_of_the_wrong_type(endpoint: Endpoint, key: str) -> None:
    (kind,) = [field.type for field in fields_of(endpoint) if field.encode_name == key]
    wrong: list[Any] = [{"no": {"such": "thing"}}, [[1], None]]
    if "dict" in str(kind) or "Properties" in str(kind):
        wrong = [5, "text"]
    elif "list" in str(kind):
        wrong = [5, {"a": 1}]
    async with managed_node() as node:
        for value in wrong:
            reply = await node.api.ask(endpoint.method, path_of(endpoint, node.name), as_body(endpoint, {key: value}))
            assert (reply.status, reply.code) == (400, 108), (value, reply.text)
            assert key in reply.json["message"]


@pytest.mark.parametrize("endpoint, key", the_fields(required=True), ids=name_of)
async def test_a_key_that_is_missing(endpoint: Endpoint, key: str) -> None:
    """The others are there, of whatever their type wants."""
    given = {
        field.encode_name: sample(field.type)
        for field in fields_of(endpoint)
        if field.required and field.encode_name != key
    }
    async with managed_node() as node:
        reply = await node.api.ask(endpoint.method, path_of(endpoint, node.name), as_body(endpoint, given))
        assert (reply.status, reply.code) == (400, 107), reply.text
        assert key in reply.json["message"]


def sample(kind: Any) -> Any:
    """Something that is of this type."""
    values: list[Any] = ["x", 1, True, [], {}, "clientid", "pub", "allow", "avro", "mqtt"]
    for value in values:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        return value
    raise AssertionError(f"no sample for {kind}")


@every(WITH_BODY)
async def test_a_body_over_its_limit(endpoint: Endpoint) -> None:
    async with managed_node({"max_body": SMALL, "max_import": SMALL}) as node:
        path, huge = path_of(endpoint, node.name), b" " * (SMALL + 1)
        reply = await node.api.ask(endpoint.method, path, raw=huge)
        assert (reply.status, reply.code) == (400, 108) and endpoint.max_body in reply.json["message"], reply.text
        # And without saying beforehand how long it will be.
        status, body = await send(
            node,
            request_head(endpoint.method, path, "Transfer-Encoding: chunked") + b"%x\r\n%b\r\n" % (len(huge), huge),
        )
        assert (status, body["code"]) == (400, 108) and endpoint.max_body in body["message"]


@every(WITH_NODE)
async def test_an_unknown_node(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        for name in ("nobody@nowhere", "garbage", " ", node.name + "x"):
            reply = await node.api.ask(endpoint.method, path_of(endpoint, name), raw=b"{}")
            assert (reply.status, reply.code) == (404, 102), reply.text


@every(ROUTES)
async def test_a_method_that_is_not_there(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        for method in ("PATCH", "OPTIONS", "PROPFIND"):
            reply = await node.api.ask(method, path_of(endpoint, node.name))
            assert (reply.status, reply.code) == (404, 102), (method, reply.text)


@every(WITH_VARIABLE)
async def test_a_broken_escape_in_the_path(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        for escape in ("%ZZ", "%", "%2", "%C3%28", "%FF"):
            reply = await node.api.ask(endpoint.method, path_of(endpoint, "", escape), raw=b"{}")
            assert (reply.status, reply.code) == (400, 108), (escape, reply.text)


ODD_NAMES = [
    "%2F", "..%2F..%2Fetc%2Fpasswd", "..", "%00", "%0A", "%0d%0aX-A:%20b", "%F0%9F%90%8D", "%25ZZ", "x" * 3000
]  # fmt: skip


@every(WITH_VARIABLE)
async def test_a_message_that_quotes_the_path_is_one_line(endpoint: Endpoint) -> None:
    async with managed_node() as node:
        for body in (b"{}", b'{"conn_messages_in": "1,1s", "conn_messages_routing": "1,1s", "interval": 5}'):
            reply = await node.api.ask(endpoint.method, path_of(endpoint, "", "a%00%0D%0A%1B%5B2J%E2%80%AE"), raw=body)
            if "message" in reply.text:
                assert str(reply.json.get("message", "")).isprintable(), reply.text


@every([endpoint for endpoint in WITH_VARIABLE if endpoint.method == "GET"])
async def test_odd_names_in_the_path(endpoint: Endpoint) -> None:
    """Whatever is asked for, the answer is well formed, and slashes at the end or twice change nothing."""
    async with managed_node() as node:
        for name in ODD_NAMES:
            path = path_of(endpoint, node.name, name)
            reply = await node.api.ask("GET", path)
            if isinstance(endpoint.reply, Raw) and reply.status == 200:
                continue
            assert reply.status in (200, 400, 404) and isinstance(reply.code, int), (name, reply.text)
            assert "X-A" not in reply.headers
            again = await node.api.ask("GET", "/" + path.replace("/", "//") + "//")
            assert (again.status, again.code) == (reply.status, reply.code), (name, again.text)


# The answer of /live has no end; test_live.py has its queries.
@every([endpoint for endpoint in ROUTES if endpoint.query is not None and endpoint.path != "/live"])
async def test_odd_queries(endpoint: Endpoint) -> None:
    """A value that cannot be is 108, wherever; what is unknown does not count."""
    async with managed_node() as node:
        path = path_of(endpoint, node.name)
        sound = (await node.api.ask(endpoint.method, path)).status
        for query in ("?_page=abc", "?_limit=-5", "?_limit=1.5"):
            reply = await node.api.ask(endpoint.method, path + query)
            known = {field.encode_name for field in msgspec.structs.fields(endpoint.query or msgspec.Struct)}
            assert reply.status == (400 if query[1:].split("=")[0] in known else sound), (query, reply.text)
        for query in ("?nosuch=1", "?" + "&" * 50, "?=", "?%FF=%FF", "?a[]=b"):
            assert (await node.api.ask(endpoint.method, path + query)).status == sound, query


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "..", "taipan.sqlite", "broker-export-x.json", "a%00.json"]
)
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_hostile_file_names(method: str, name: str) -> None:
    async with managed_node() as node:
        for place in ("/data/file/", "/data/export/"):
            reply = await node.api.ask(method, place + name)
            assert reply.status in (400, 404) and "root:" not in reply.text, (place, reply.text)


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


def the_numbers() -> list[tuple[Endpoint, str, bool]]:
    """Endpoint, key, and whether it stands in the query: all that may be numbers."""
    found = [
        (endpoint, field.encode_name, True)
        for endpoint in ROUTES
        if endpoint.query is not None
        for field in msgspec.structs.fields(endpoint.query)
        if "int" in str(field.type)
    ]
    return found + [
        (endpoint, field.encode_name, False)
        for endpoint in WITH_BODY
        for field in fields_of(endpoint)
        if "int" in str(field.type) or field.type is Any
    ]


@pytest.mark.parametrize("endpoint, key, in_query", the_numbers(), ids=name_of)
async def test_huge_numbers(endpoint: Endpoint, key: str, in_query: bool) -> None:
    """They are refused or mean what they say, and break nothing: the node logs no error."""
    async with managed_node() as node:
        await node.client("x", username="x")
        await node.api.post("/trace", {"name": "x", "type": "clientid", "clientid": "x"})
        path = path_of(endpoint, node.name)
        required = {field.encode_name: sample(field.type) for field in fields_of(endpoint) if field.required}
        for number in HUGE:
            if in_query:
                reply = await node.api.ask(endpoint.method, f"{path}?{key}={number}")
            else:
                reply = await node.api.ask(endpoint.method, path, as_body(endpoint, {**required, key: number}))
            assert reply.status in (200, 400, 404), (number, reply.text)
        assert (await node.api.get("/clients")).code == 0
