"""``backend_influxdb_http``, ``backend_influxdb_http_v2`` and ``data_to_influxdb`` against a server of the test.

Its requests and answers are those in the documentation of the write APIs of InfluxDB 1.8 and 2.7."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.influxdb import action
from taipan.ruleengine.sinks.influxdb.resource import RESOURCES
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, published
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

V1, V2 = RESOURCES
CONFIG = {V1: {"database": "my db"}, V2: {"org": "home", "bucket": "a/b", "token": "t0ken"}}


class Influx(HttpSink):
    """It refuses requests with a line that has the field ``bad``, as a whole. ``lines``: what it has stored."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.sizes: list[int] = []
        self.code = 204
        self.answer = self._write

    async def _write(self, request: web.Request, body: bytes) -> web.StreamResponse:
        if self.code != 204:
            return web.json_response({"code": "no", "message": "not now"}, status=self.code)
        if request.path == "/api/v2/write" and request.headers.get("authorization") != "Token t0ken":
            return web.json_response({"code": "unauthorized", "message": "unauthorized access"}, status=401)
        if request.path == "/api/v2/write" and not body:
            return web.json_response({"code": "invalid", "message": "writing requires points"}, status=400)
        lines = body.decode().splitlines()
        self.sizes.append(len(lines))
        if any("bad=" in each for each in lines):
            return web.json_response({"error": "partial write: field type conflict dropped=1"}, status=400)
        self.lines += lines
        return web.Response(status=204)


@pytest_asyncio.fixture
async def influx() -> AsyncIterator[Influx]:
    made = Influx()
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


async def line_of(engine: FakeEngine, influx: Influx, row: dict[str, Any], **params: Any) -> str:
    count = len(influx.lines)
    given = {"measurement": "m", "timestamp": "7", "fields": {"x": "${x}"}, **params}
    engine.action(action.TYPE, **given).run(row, published())
    await until(lambda: len(influx.lines) > count)
    return influx.lines[-1]


@pytest.mark.parametrize("type, target", [
    (V1, "/write?db=my%20db&precision=ms"),
    (V2, "/api/v2/write?org=home&bucket=a%2Fb&precision=ms"),
])  # fmt: skip
async def test_requests(engine: FakeEngine, influx: Influx, type: Any, target: str) -> None:
    credentials = {"username": "u", "password": "p"} if type is V1 else {}
    engine.run(type, host="127.0.0.1", port=influx.port, **CONFIG[type], **credentials)
    await line_of(engine, influx, {"x": 1.5})
    method, path, headers, _ = influx.requests[-1]
    assert (method, path) == ("POST", target)
    assert headers["authorization"] == ("Basic dTpw" if type is V1 else "Token t0ken")


@pytest.mark.parametrize("type, precision, sent", [
    (V1, "ns", "n"), (V1, "us", "u"), (V1, "s", "s"), (V1, "m", "m"), (V1, "h", "h"),
    (V2, "ns", "ns"), (V2, "us", "us"),
])  # fmt: skip
async def test_precision(engine: FakeEngine, influx: Influx, type: Any, precision: str, sent: str) -> None:
    engine.run(type, host="127.0.0.1", port=influx.port, precision=precision, **CONFIG[type])
    line = await line_of(engine, influx, {"x": 1.5}, timestamp="")
    unit = {"ns": 1e9, "us": 1e6, "s": 1, "m": 1 / 60, "h": 1 / 3600}[precision]
    assert abs(int(line.split(" ")[-1]) / unit - engine.node.clock.wall()) <= 3600
    assert influx.requests[-1][1].endswith(f"&precision={sent}")


@pytest.mark.parametrize("fields, row, written", [
    ({"x": "${x}"}, {"x": 'a"b\\c'}, 'x="a\\"b\\\\c"'),
    ({"x": "${x}"}, {"x": "5i"}, 'x="5i"'),
    ({"x": "${x}"}, {"x": True}, "x=true"),
    ({"x": "${x}"}, {"x": 1e300}, "x=1" + "0" * 300 + ".0"),
    ({"x": "${x}"}, {"x": {"a": [1]}}, 'x="{\\"a\\":[1]}"'),
    ({"x": "${x}i", "y": "${y}u"}, {"x": -3, "y": "4"}, "x=-3i,y=4u"),
    ({"x": "${x}", "y": "${y}", "z": "${z}i"}, {"x": 1.5, "y": None}, "x=1.5"),
    ({"x": "at ${x}"}, {"x": 5}, 'x="at 5"'),
    ({"a b": "1", "c": "2i", "d": 2.5, "e": True}, {}, "a\\ b=1,c=2i,d=2.5,e=true"),
])  # fmt: skip
async def test_fields(
    engine: FakeEngine, influx: Influx, fields: dict[str, Any], row: dict[str, Any], written: str
) -> None:
    engine.run(V1, host="127.0.0.1", port=influx.port, **CONFIG[V1])
    assert await line_of(engine, influx, row, fields=fields) == f"m {written} 7"


@pytest.mark.parametrize("suffix, written", [("float", "5"), ("signed", "5i"), ("unsigned", "5u")])
async def test_int_suffix(engine: FakeEngine, influx: Influx, suffix: str, written: str) -> None:
    engine.run(V1, host="127.0.0.1", port=influx.port, **CONFIG[V1])
    assert await line_of(engine, influx, {"x": 5}, int_suffix=suffix) == f"m x={written} 7"


async def test_measurement_tags_and_timestamp(engine: FakeEngine, influx: Influx) -> None:
    engine.run(V1, host="127.0.0.1", port=influx.port, **CONFIG[V1])
    line = await line_of(
        engine, influx, {"x": 1.5, "kind": "a,b c", "tag": "d=e, f", "time": "12", "empty": ""},
        measurement="m-${kind}", tags={"k 1": "${tag}", "none": "${none}", "empty": "${empty}"}, timestamp="${time}",
    )  # fmt: skip
    assert line == "m-a\\,b\\ c,k\\ 1=d\\=e\\,\\ f x=1.5 12"


@pytest.mark.parametrize("row, reason", [
    ({"x": None}, "none of them has a value"),
    ({"x": 1.5, "tag": "a\nm x=2 7"}, "line break"),
    ({"x": 1.5, "tag": "a\\"}, "backslash"),
    ({"x": 1.5, "tag": "a\\,b=c"}, "backslash"),
    ({"x": 1.5, "kind": "#"}, "measurement"),
    ({"x": 1.5, "time": "now"}, "timestamp"),
    ({"x": b"\xff"}, "not UTF-8"),
    ({"x": "\ud800"}, "not UTF-8"),
    ({"x": 1.5, "i": "no integer"}, "i is not an integer"),
    ({"x": 1.5, "i": 2**63}, "range"),
])  # fmt: skip
async def test_rows_that_no_line_can_express(
    engine: FakeEngine, influx: Influx, row: dict[str, Any], reason: str
) -> None:
    engine.run(V1, host="127.0.0.1", port=influx.port, **CONFIG[V1])
    act = engine.action(
        action.TYPE, measurement="${kind}", tags={"t": "${tag}"}, fields={"x": "${x}", "i": "${i}i"},
        timestamp="${time}",
    )  # fmt: skip
    with pytest.raises(ActionFailed, match=reason):
        act.run({"kind": "m", **row}, published())


@pytest.mark.parametrize("params, key", [
    ({"fields": {}}, "fields"), ({"fields": {"time": "1"}}, "fields"), ({"fields": {"a\\": "1"}}, "fields"),
    ({"fields": {"a": []}}, "fields"), ({"fields": {"a": ""}}, "fields"), ({"tags": {"a\n": "1"}}, "tags"),
    ({"measurement": ""}, "measurement"), ({"batch_pool_size": 1.5}, "batch_pool_size"),
])  # fmt: skip
async def test_invalid_actions(engine: FakeEngine, params: dict[str, Any], key: str) -> None:
    with pytest.raises(ParamError) as refused:
        engine.action(action.TYPE, **{"measurement": "m", "fields": {"x": "${x}"}, **params})
    assert refused.value.key == key


@pytest.mark.parametrize("config, key", [
    ({"host": "a/b"}, "host"), ({"host": ""}, "host"), ({"port": 1.5}, "port"), ({"username": "a:b"}, "username"),
    ({"request_timeout": "soon"}, "request_timeout"), ({"connect_timeout": "1"}, "connect_timeout"),
])  # fmt: skip
async def test_invalid_resources(engine: FakeEngine, config: dict[str, Any], key: str) -> None:
    with pytest.raises(ParamError) as refused:
        engine.make(V1, **{"host": "h", **CONFIG[V1], **config})
    assert refused.value.key == key


async def test_batches_and_the_row_that_is_refused(engine: FakeEngine, influx: Influx) -> None:
    engine.run(V2, host="127.0.0.1", port=influx.port, **CONFIG[V2])
    act = engine.action(
        action.TYPE, measurement="m", fields={"x": "${x}", "bad": "${bad}"}, batch_size=20, batch_time=50,
        batch_pool_size=1,
    )  # fmt: skip
    for number in range(40):
        row = {"x": number, "bad": 1} if number == 7 else {"x": number}
        act.run(row, published(client_id=f"c{number}"))
    await until(lambda: engine.report.count == 40)
    ((reason, row_of),) = engine.report.failures
    assert "field type conflict" in reason and row_of == {"x": 7, "bad": 1}
    assert len(influx.lines) == 39 and max(influx.sizes) == 20


async def test_without_batches_each_row_has_a_request(engine: FakeEngine, influx: Influx) -> None:
    engine.run(V1, host="127.0.0.1", port=influx.port, **CONFIG[V1])
    act = engine.action(action.TYPE, measurement="m", fields={"x": "${x}"}, enable_batch=False)
    for number in range(10):
        act.run({"x": number}, published(client_id=f"c{number}"))
    await until(lambda: engine.report.successes == 10)
    assert set(influx.sizes) <= {0, 1}


@pytest.mark.parametrize("code", [401, 403, 404, 429, 503])
async def test_rows_wait_while_the_server_accepts_none(engine: FakeEngine, influx: Influx, code: int) -> None:
    influx.code = code
    made = engine.run(V2, host="127.0.0.1", port=influx.port, **CONFIG[V2])
    engine.action(action.TYPE, measurement="m", fields={"x": "1"}).run({}, published())
    await until(lambda: made.buffer.status.retried > 5)
    assert engine.report.count == 0 and str(code) in made.buffer.last_error
    with pytest.raises(ResourceError, match=str(code)):
        await made.test()
    influx.code = 204
    await until(lambda: engine.report.successes == 1)


async def test_pool_size_requests_go_at_the_same_time(engine: FakeEngine, influx: Influx) -> None:
    released = asyncio.Event()
    going = most = 0

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal going, most
        if body:
            going += 1
            most = max(most, going)
            await released.wait()
            going -= 1
        return web.Response(status=204)

    influx.answer = answer
    engine.run(V1, host="127.0.0.1", port=influx.port, pool_size=3, **CONFIG[V1])
    act = engine.action(action.TYPE, measurement="m", fields={"x": "${x}"}, batch_pool_size=20)
    for number in range(60):
        act.run({"x": number}, published(client_id=f"c{number}"))
    await until(lambda: going == 3)
    released.set()
    await until(lambda: engine.report.successes == 60)
    assert most == 3


async def test_a_server_that_hangs_is_given_up_in_time(engine: FakeEngine, influx: Influx) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response(status=204)

    influx.answer = answer
    made = engine.run(
        V1, host="127.0.0.1", port=influx.port, request_timeout="50ms", connect_timeout="1s", **CONFIG[V1]
    )
    engine.action(action.TYPE, measurement="m", fields={"x": "1"}).run({}, published())
    await until(lambda: made.buffer.status.retried > 0)


@pytest.mark.parametrize("config, trusted", [
    ({}, True), ({"verify": True}, False), ({"verify": True, "cacertfile": "ca"}, True),
    ({"verify": True, "cacertfile": "ca", "server_name_indication": "other.example"}, False),
    ({"tls_version": "tlsv1.3"}, False), ({"https_enabled": False}, False),
])  # fmt: skip
async def test_whom_it_trusts(engine: FakeEngine, tmp_path: Path, config: dict[str, Any], trusted: bool) -> None:
    """The server has TLS 1.2; the authority is given with its text, as in an export of EMQX."""
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certfile, keyfile)
    influx = Influx()
    await influx.start(context)
    empty = {"filename": "", "file": ""}
    given = {"certfile": empty, "keyfile": empty, **config}
    if "cacertfile" in config:
        given["cacertfile"] = {"filename": "ca.pem", "file": Path(certificates.ca).read_text()}
    trial = engine.make(V1, host="localhost", port=influx.port, **{"https_enabled": True, **CONFIG[V1], **given})
    if trusted:
        await trial.test()
    else:
        with pytest.raises(ResourceError):
            await trial.test()
    await trial.close()
    await influx.stop()


async def test_a_client_certificate_is_shown(engine: FakeEngine, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certfile, keyfile)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    influx = Influx()
    await influx.start(context)
    for more in ({}, {"certfile": str(certfile), "keyfile": str(keyfile)}):
        trial = engine.make(V1, host="localhost", port=influx.port, https_enabled=True, **CONFIG[V1], **more)
        if more:
            await trial.test()
        else:
            with pytest.raises(ResourceError):
                await trial.test()
        await trial.close()
    await influx.stop()
