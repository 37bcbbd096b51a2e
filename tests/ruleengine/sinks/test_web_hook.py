"""``web_hook`` and ``data_to_webserver`` against servers that answer, hang, refuse, redirect and die."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from aiohttp import web

from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.network.allowed_networks import Networks
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.web_hook import action
from taipan.ruleengine.sinks.web_hook import resource as web_hook
from tests.support.fake_engine import QUICK, FakeEngine, FakeReport, published
from tests.support.http_sink import HttpSink, status
from tests.support.node import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


async def test_the_specifications_form_posts_the_row_as_json(engine: FakeEngine, sink: HttpSink) -> None:
    engine.run(web_hook.TYPE, url=f"{sink.url}/hook?k=1", headers={"X_Token": "abc"})
    act = engine.action(action.TYPE)
    assert act.run({"clientid": "c1", "x": 1}, published()) is False
    await until(lambda: engine.report.successes == 1)
    ((method, path, headers, body),) = sink.requests
    assert (method, path, json.loads(body)) == ("POST", "/hook?k=1", {"clientid": "c1", "x": 1})
    assert headers["x-token"] == "abc" and headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_the_method_is_the_resources(engine: FakeEngine, sink: HttpSink, method: str) -> None:
    engine.run(web_hook.TYPE, url=sink.url, method=method)
    engine.action(action.TYPE, payload_tmpl="v=${x}").run({"x": 2}, published())
    await until(lambda: engine.report.successes == 1)
    assert sink.requests[0][:2] == (method, "/") and sink.bodies == [b"v=2"]


@pytest.mark.parametrize("method", ["POST", "PUT", "GET", "DELETE"])
async def test_the_form_of_4_4(engine: FakeEngine, sink: HttpSink, method: str) -> None:
    engine.run(web_hook.TYPE, url=f"{sink.url}/base/", headers={"a": "1"})
    act = engine.action(
        action.TYPE,
        method=method,
        path="/${clientid}/${n}?q=${q}",
        headers={"X-${n}": "v ${q}", "A": "2"},
        body="<${payload}>",
    )
    act.run({"clientid": "a/b?c é", "n": 7, "q": "x&y=z", "payload": b"\xff"}, published())
    await until(lambda: engine.report.successes == 1)
    made, path, headers, body = sink.requests[0]
    assert (made, path) == (method, "/base/a%2Fb%3Fc%20%C3%A9/7?q=x%26y%3Dz")
    assert headers["x-7"] == "v x&y=z" and headers["a"] == "2"
    assert body == (b"<\xff>" if method in ("POST", "PUT") else b"")
    assert ("content-type" in headers) == (method in ("POST", "PUT"))


@pytest.mark.parametrize(
    "params, row, reason",
    [
        ({"headers": {"x": "${a}"}}, {"a": "1\r\nhost: evil"}, "line break"),
        ({"headers": {"x-${a}": "1"}}, {"a": "b: c"}, "not a valid HTTP header name"),
        ({"headers": {"${a}": "1"}}, {"a": "Content_Length"}, "cannot be set"),
        ({"headers": {"x": "${a}"}}, {"a": b"\xff"}, "not UTF-8"),
        ({"path": "a/${a}/b"}, {"a": ".."}, "change the path"),
        ({"path": "a/${a}${a}/b"}, {"a": "."}, "change the path"),
    ],
)
async def test_a_value_cannot_become_another_header_or_path(
    engine: FakeEngine, sink: HttpSink, params: dict[str, Any], row: dict[str, Any], reason: str
) -> None:
    engine.run(web_hook.TYPE, url=sink.url)
    with pytest.raises(ActionFailed, match=reason):
        engine.action(action.TYPE, **params).run(row, published())
    assert sink.requests == []


@pytest.mark.parametrize("code", [200, 201, 204, 299])
async def test_2xx_is_success(engine: FakeEngine, sink: HttpSink, code: int) -> None:
    sink.answer = status(code)
    engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.count == 1)
    assert engine.report.successes == 1 and len(sink.requests) == 1


@pytest.mark.parametrize("code", [400, 401, 404, 413, 422])
async def test_4xx_fails_at_once_and_says_what_the_server_said(engine: FakeEngine, sink: HttpSink, code: int) -> None:
    sink.answer = status(code)
    hook = engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.count == 1)
    assert engine.report.failures == [(f"HTTP {code}: no", {"x": 1})]
    assert len(sink.requests) == 1
    assert hook.status.buffer.dropped == {"refused": 1}


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
async def test_what_may_pass_is_tried_again(engine: FakeEngine, sink: HttpSink, code: int) -> None:
    sink.answer = status(code)
    engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: len(sink.requests) >= 2)
    sink.answer = status(200)
    await until(lambda: engine.report.successes == 1)
    assert engine.report.failures == []


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_redirects_are_not_followed(engine: FakeEngine, sink: HttpSink, code: int) -> None:
    sink.answer = status(code, location=f"{sink.url}/elsewhere")
    engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.count == 1)
    assert "redirects are not followed" in engine.report.failures[0][0]
    assert [each[1] for each in sink.requests] == ["/"]


async def test_a_server_that_is_away_and_comes_back_gets_every_row_once_and_in_order(
    engine: FakeEngine, sink: HttpSink
) -> None:
    hook = engine.run(web_hook.TYPE, url=sink.url, pool_size=4)
    act = engine.action(action.TYPE, body="${n}")
    await until(lambda: hook.alive)
    for number in range(20):
        act.run({"n": number}, published())
    await until(lambda: engine.report.successes == 20)
    await sink.stop()
    await until(lambda: not hook.alive)
    for number in range(20, 60):
        act.run({"n": number}, published())
    await until(lambda: hook.status.buffer.retried > 2)
    assert hook.status.buffer.waiting == 40
    await sink.start()
    await until(lambda: engine.report.successes == 60)
    assert sink.bodies == [b"%d" % number for number in range(60)]
    assert hook.alive and engine.alive == [True, False, True]
    assert engine.report.failures == []


async def test_a_server_that_hangs_is_given_up_in_time_and_makes_nobody_wait(
    engine: FakeEngine, sink: HttpSink
) -> None:
    released = asyncio.Event()

    async def hang(request: web.Request, body: bytes) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    sink.answer = hang
    hook = engine.run(web_hook.TYPE, url=sink.url, request_timeout="50ms", pool_size=1)
    act = engine.action(action.TYPE)
    for number in range(200):
        act.run({"n": number}, published())  # whoever waited here for the server would wait for ever
    await until(lambda: hook.status.buffer.retried >= 1)
    assert hook.status.buffer.last_error
    released.set()
    await until(lambda: engine.report.successes == 200)


async def test_a_server_that_dies_mid_way_gets_the_row_again(engine: FakeEngine) -> None:
    bodies: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionResetError):
            writer.close()
            return
        size = int(next(each for each in head.split(b"\r\n") if each.lower().startswith(b"content-length")).split()[1])
        bodies.append(await reader.readexactly(size))
        if len(bodies) == 1:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-le")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    engine.run(web_hook.TYPE, url=f"http://127.0.0.1:{port}")
    engine.action(action.TYPE, body="${n}").run({"n": 1}, published())
    await until(lambda: engine.report.successes == 1)
    assert bodies == [b"1", b"1"]
    server.close()


async def test_an_endless_answer_is_cut_off(sink: HttpSink) -> None:
    engine = FakeEngine(msgspec.structs.replace(QUICK, max_reply_bytes=10_000))
    sent = 0

    async def pour(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)
            sent += 65_536

    sink.answer = pour
    engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"n": 1}, published())
    await until(lambda: engine.report.successes == 1)
    assert sent < 64 * 1024 * 1024
    await engine.close()


async def test_one_slow_client_holds_up_no_other(engine: FakeEngine, sink: HttpSink) -> None:
    released = asyncio.Event()

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        if body == b"slow":
            await released.wait()
        return web.Response()

    sink.answer = answer
    engine.run(web_hook.TYPE, url=sink.url, pool_size=16)
    act = engine.action(action.TYPE, body="${who}")
    act.run({"who": "slow"}, published(client_id="slow"))
    for number in range(32):
        act.run({"who": f"c{number}"}, published(client_id=f"c{number}"))
    await until(lambda: engine.report.successes >= 20)
    released.set()
    await until(lambda: engine.report.successes == 33)


def _names_the_setting(hook: Any) -> bool:
    return "refused_networks" in hook.status.buffer.last_error


async def test_a_refused_address_is_never_connected_to_and_the_setting_is_named(sink: HttpSink) -> None:
    engine = FakeEngine(msgspec.structs.replace(QUICK, refused_networks=("127.0.0.0/8",)))
    for url in (sink.url, f"http://localhost:{sink.port}"):
        hook = engine.run(web_hook.TYPE, "resource:1", url=url)
        with pytest.raises(ResourceError, match="refused_networks"):
            await hook.test()
        engine.action(action.TYPE).run({"x": 1}, published())
        await until(partial(_names_the_setting, hook))
        assert not hook.alive
        await hook.close()
        engine.buffers.forget("resource:1")
    assert sink.requests == []


async def test_a_name_that_resolves_elsewhere_after_the_test_is_refused_then(
    engine: FakeEngine, sink: HttpSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    address = "127.0.0.1"

    async def resolve(*arguments: Any, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, sink.port))]

    monkeypatch.setattr(loop, "getaddrinfo", resolve, raising=False)
    hook = engine.run(web_hook.TYPE, url=f"http://rebound.example:{sink.port}", enable_pipelining=False)
    act = engine.action(action.TYPE)
    await hook.test()
    act.run({"x": 1}, published())
    await until(lambda: engine.report.successes == 1)
    address = "169.254.169.254"
    act.run({"x": 2}, published())
    await until(lambda: "169.254.169.254" in hook.status.buffer.last_error)
    assert len(sink.requests) == 1


@pytest.mark.parametrize("reuse, connections", [(True, 1), (False, 5)])
async def test_enable_pipelining_says_whether_a_connection_is_used_again(
    engine: FakeEngine, sink: HttpSink, reuse: bool, connections: int
) -> None:
    peers: set[Any] = set()

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response()

    sink.answer = answer
    engine.run(web_hook.TYPE, url=sink.url, enable_pipelining=reuse)
    act = engine.action(action.TYPE)
    for number in range(5):
        act.run({"n": number}, published())
    await until(lambda: engine.report.successes == 5)
    assert len(peers) == connections


async def test_liveness_is_told_when_it_changes(engine: FakeEngine) -> None:
    sink = HttpSink()
    hook = engine.run(web_hook.TYPE, url=sink.url)
    with pytest.raises(ResourceError):
        await hook.test()
    await until(lambda: "connect" in hook.status.reason.lower())
    assert not hook.alive and engine.alive == []
    await sink.start()
    await hook.test()
    await until(lambda: hook.alive)
    await sink.stop()
    await until(lambda: not hook.alive)
    assert engine.alive == [True, False]


class Closing:
    """A server that answers one request on each connection, and closes it without a word (no ``Connection: close``)
    when the next request has come, before any answer to that; or, with ``answering``, in the middle of it."""

    def __init__(self, answering: bytes = b"") -> None:
        self.port = free_port()
        self.connections = 0
        self.bodies: list[bytes] = []
        self._answering = answering
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Closing:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            self.bodies.append(await _request(reader))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await _request(reader)
            writer.write(self._answering)
        except asyncio.IncompleteReadError:  # the client went first
            pass
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(length)


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_server_that_closes_silently_after_each_answer(engine: FakeEngine, method: str) -> None:
    async with Closing() as server:
        hook = engine.run(web_hook.TYPE, url=f"http://127.0.0.1:{server.port}", method=method, pool_size=1)
        act = engine.action(action.TYPE, body="${x}")
        for number in range(40):
            act.run({"x": number}, published())
        await until(lambda: engine.report.count == 40)
        assert engine.report.successes == 40
        # Each came once, in order, and none was counted as a failure.
        assert server.bodies == [str(number).encode() for number in range(40)]
        status = hook.status.buffer
        assert (status.retried, status.breaker_opened, status.dropped, status.last_error) == (0, 0, {}, "")


async def test_a_request_whose_answer_has_begun_is_not_sent_once_more_by_itself(engine: FakeEngine) -> None:
    async with Closing(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab") as server:
        hook = engine.run(web_hook.TYPE, url=f"http://127.0.0.1:{server.port}", pool_size=1)
        act = engine.action(action.TYPE, body="${x}")
        act.run({"x": 1}, published())
        act.run({"x": 2}, published())
        await until(lambda: engine.report.count == 2)
        assert hook.status.buffer.retried >= 1


async def test_a_new_connection_that_is_closed_at_once_is_a_failure(engine: FakeEngine) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    port = free_port()
    async with await asyncio.start_server(serve, "127.0.0.1", port):
        hook = engine.run(web_hook.TYPE, url=f"http://127.0.0.1:{port}", pool_size=1)
        engine.action(action.TYPE).run({"x": 1}, published())
        await until(lambda: hook.status.buffer.retried >= 1)
        error = hook.status.buffer.last_error.lower()  # which of the two, is up to Python's version
        assert "disconnected" in error or "reset by peer" in error


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("X-GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("gzip", lambda text: gzip.compress(text + b"x" * 50_000_000)),
    ],
)
async def test_an_encoded_answer_is_decoded_within_the_limit(
    engine: FakeEngine, sink: HttpSink, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    async def answer(request: web.Request, body: bytes) -> web.Response:
        return web.Response(status=400, body=encode(b"what was wrong"), headers={"Content-Encoding": coding})

    sink.answer = answer
    engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.count == 1)
    ((reason, _),) = engine.report.failures
    assert reason.startswith("HTTP 400: what was wrong") and len(reason) < 300


async def test_an_answer_that_is_not_what_it_says_it_is(engine: FakeEngine, sink: HttpSink) -> None:
    async def answer(request: web.Request, body: bytes) -> web.Response:
        return web.Response(status=400, body=b"plain", headers={"Content-Encoding": "gzip"})

    sink.answer = answer
    engine.run(web_hook.TYPE, url=sink.url)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.count == 1)
    assert engine.report.failures == [("HTTP 400", {"x": 1})]


@pytest.mark.parametrize(
    ("written", "sent"),
    [("/caf\u00e9?q=\u00fc", "/caf%C3%A9?q=%C3%BC"), ("/a%20b?c=%2F&d=e+f", "/a%20b?c=%2F&d=e+f"), ("", "/")],
)
async def test_a_url_is_sent_encoded(engine: FakeEngine, sink: HttpSink, written: str, sent: str) -> None:
    engine.run(web_hook.TYPE, url=sink.url + written)
    engine.action(action.TYPE).run({"x": 1}, published())
    await until(lambda: engine.report.successes == 1)
    assert sink.requests[0][1] == sent


@pytest.mark.parametrize(
    "key, config",
    [
        ("url", {}),
        ("url", {"url": "http://h/a b"}),
        ("url", {"url": "http://h/a?b c"}),
        ("url", {"url": "http://h/a\nb"}),
        ("url", {"url": "http://h/\tb"}),
        ("url", {"url": "http://h/\x7f"}),
        ("url", {"url": " http://h/"}),
        ("url", {"url": "http://m\u00fcnchen.example/"}),
        ("url", {"url": "ftp://x/"}),
        ("url", {"url": "http:///x"}),
        ("url", {"url": "http://user:secret@127.0.0.1/"}),
        ("method", {"url": "http://h", "method": "GET"}),
        ("headers", {"url": "http://h", "headers": [1]}),
        ("headers", {"url": "http://h", "headers": {"a b": "c"}}),
        ("headers", {"url": "http://h", "headers": {"a": "c\r\nd"}}),
        ("headers", {"url": "http://h", "headers": {"Transfer-Encoding": "chunked"}}),
        ("headers", {"url": "http://h", "headers": {"a": {}}}),
        ("connect_timeout", {"url": "http://h", "connect_timeout": "soon"}),
        ("request_timeout", {"url": "http://h", "request_timeout": "0s"}),
        ("pool_size", {"url": "http://h", "pool_size": 0}),
        ("pool_size", {"url": "http://h", "pool_size": 1.5}),
        ("cacertfile", {"url": "https://h", "cacertfile": "/nowhere/ca.pem"}),
        ("keyfile", {"url": "https://h", "certfile": "/nowhere/cert.pem"}),
        ("certfile", {"url": "https://h", "certfile": "/nowhere/c.pem", "keyfile": "/nowhere/k.pem"}),
    ],
)
async def test_a_configuration_that_cannot_be_is_refused(engine: FakeEngine, key: str, config: dict[str, Any]) -> None:
    with pytest.raises(ParamError) as refused:
        engine.make(web_hook.TYPE, **config)
    assert refused.value.key == key


@pytest.mark.parametrize(
    "key, params",
    [
        ("payload_tmpl", {"payload_tmpl": "a", "body": "b"}),
        ("path", {"path": "a#b"}),
        ("path", {"path": "a b"}),
        ("method", {"method": "PATCH"}),
        ("headers", {"headers": {"a b": "c"}}),
        ("headers", {"headers": {"content-length": "3"}}),
    ],
)
async def test_an_action_that_cannot_be_is_refused(engine: FakeEngine, key: str, params: dict[str, Any]) -> None:
    with pytest.raises(ParamError) as refused:
        engine.action(action.TYPE, **params)
    assert refused.value.key == key


async def test_an_action_whose_resource_is_not_there_fails(engine: FakeEngine) -> None:
    with pytest.raises(ActionFailed, match="resource:1 is not running"):
        engine.action(action.TYPE).run({"x": 1}, published())


async def test_an_instance_that_takes_the_place_of_another_keeps_being_told(engine: FakeEngine, sink: HttpSink) -> None:
    engine.run(web_hook.TYPE, url=sink.url)
    old, new = FakeReport(), FakeReport()
    first = engine.action(action.TYPE, report=old)
    second = engine.action(action.TYPE, report=new)
    first.close()
    second.run({"x": 1}, published())
    await until(lambda: new.successes == 1)
    assert old.count == 0


async def test_an_action_that_is_gone_still_has_its_rows_delivered(engine: FakeEngine, sink: HttpSink) -> None:
    hook = engine.run(web_hook.TYPE, url=sink.url)
    report = FakeReport()
    act = engine.action(action.TYPE, report=report)
    act.run({"x": 1}, published())
    act.close()
    await until(lambda: hook.status.buffer.delivered == 1)
    assert report.count == 0 and len(sink.requests) == 1


PARAMS = msgspec.to_builtins(web_hook.TYPE.record().params)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("url", {"type": "string", "required": True, "format": "url"}),
        ("method", {"type": "string", "enum": ["PUT", "POST"], "default": "POST"}),
        ("headers", {"type": "object", "schema": {}, "default": {}}),
        ("connect_timeout", {"type": "string", "default": "5s"}),
        ("request_timeout", {"type": "string", "default": "5s"}),
        ("pool_size", {"type": "number", "default": 8}),
        ("enable_pipelining", {"type": "boolean", "default": True}),
        ("cacertfile", {"type": "file", "default": ""}),
        ("keyfile", {"type": "file", "default": ""}),
        ("certfile", {"type": "file", "default": ""}),
        ("verify", {"type": "boolean", "default": False}),
        ("server_name_indication", {"type": "string"}),
    ],
)
async def test_web_hook_param(name: str, expected: dict[str, Any]) -> None:
    record = PARAMS[name]
    assert {key: record.get(key) for key in expected} == expected
    assert record["title"].keys() == record["description"].keys() == {"en", "zh"}
    assert ("default" in record) == ("default" in expected) and ("required" in record) == ("required" in expected)


async def test_a_port_that_nobody_listens_on_is_told_so() -> None:
    with pytest.raises(OSError):
        await Networks([]).probe("127.0.0.1", free_port(), 2.0)
