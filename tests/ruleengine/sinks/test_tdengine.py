"""``backend_tdengine`` and ``data_to_tdengine``, against answers as TDengine's documentation has them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.http_reply import HttpReply
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.tdengine import action
from taipan.ruleengine.sinks.tdengine.resource import TYPE, answer_of
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, published
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

VERSION = b"SELECT SERVER_VERSION()"
SQL = "INSERT INTO t VALUES (${at}, ${n}, '${s}')"
DONE = {"code": 0, "column_meta": [["affected_rows", "INT", 4]], "data": [[1]], "rows": 1}
TABLE_IS_MISSING = {"code": 9731, "desc": "Table does not exist"}


async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
    """A row with a text that is longer than 8 is refused, and the statement with it."""
    values = body.decode().partition("VALUES")[2].split("'")[1::2]
    if any(len(each) > 8 for each in values):
        return web.json_response({"code": 9728, "desc": "Value too long for column/tag: s"})
    return web.json_response(DONE)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[HttpSink]:
    made = HttpSink()
    made.answer = answer
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


def run(engine: FakeEngine, server: HttpSink, **config: Any) -> Any:
    return engine.run(TYPE, **{"host": "127.0.0.1", "port": server.port, **config})


def statements(server: HttpSink) -> list[str]:
    return [each.decode() for each in server.bodies if each != VERSION]


async def test_a_request(engine: FakeEngine, server: HttpSink) -> None:
    run(engine, server, username="root", password="taosdata")
    engine.action(action.TYPE, sql=SQL, db_name="my db").run({"at": 1, "n": 2, "s": "x'"}, published())
    await until(lambda: engine.report.successes == 1)
    method, path, headers, body = next(each for each in server.requests if each[3] != VERSION)
    assert (method, path) == ("POST", "/rest/sql/my%20db")
    assert headers["authorization"] == "Basic cm9vdDp0YW9zZGF0YQ=="  # as in TDengine's documentation
    assert body == b"INSERT INTO t VALUES (1, 2, 'x\\'')"
    assert next(each[1] for each in server.requests if each[3] == VERSION) == "/rest/sql"


@pytest.mark.parametrize("sql, row, statement", [
    ("insert into d_${x} using m tags('${x}', true) values (now, ${y})", {"x": "a1", "y": 0.5},
     "insert into d_a1 using m tags('a1', true) values (now, 0.5)"),
    ("insert into t values (${x}, ${y}, '${z}')", {"x": True, "y": None, "z": "é\n\\"},
     "insert into t values (true, NULL, 'é\\n\\\\')"),
])  # fmt: skip
async def test_statements(engine: FakeEngine, server: HttpSink, sql: str, row: dict[str, Any], statement: str) -> None:
    run(engine, server)
    engine.action(action.TYPE, sql=sql).run(row, published())
    await until(lambda: statements(server) != [])
    assert statements(server) == [statement]


async def test_sql_insert_null(engine: FakeEngine, server: HttpSink) -> None:
    run(engine, server)
    engine.action(action.TYPE, sql="insert into t values (1, '${x}')", sql_insert_null=True).run({}, published())
    await until(lambda: statements(server) == ["insert into t values (1, NULL)"])


async def test_the_rows_of_a_batch_follow_each_other_without_commas(engine: FakeEngine, server: HttpSink) -> None:
    run(engine, server)
    act = engine.action(action.TYPE, sql=SQL, batch_pool_size=1, batch_size=3, batch_time=500)
    for number in range(4):
        act.run({"at": number, "n": number, "s": "x"}, published(client_id=f"c{number}"))
    await until(lambda: engine.report.successes == 4)
    assert statements(server) == [
        "INSERT INTO t VALUES (0, 0, 'x') (1, 1, 'x') (2, 2, 'x')", "INSERT INTO t VALUES (3, 3, 'x')",
    ]  # fmt: skip


async def test_one_row_each(engine: FakeEngine, server: HttpSink) -> None:
    run(engine, server)
    act = engine.action(action.TYPE, sql=SQL, enable_batch=False)
    for number in range(3):
        act.run({"at": number, "n": number, "s": "x"}, published())
    await until(lambda: engine.report.successes == 3)
    assert len(statements(server)) == 3


async def test_a_refused_row_stops_no_other(engine: FakeEngine, server: HttpSink) -> None:
    run(engine, server)
    act = engine.action(action.TYPE, sql=SQL, batch_pool_size=1, batch_time=200)
    rows = [{"at": number, "n": number, "s": "too long for it" if number == 5 else "x"} for number in range(16)]
    for each in rows:
        act.run(each, published(client_id=f"c{each['n']}"))
    await until(lambda: engine.report.count == 16)
    ((reason, row),) = engine.report.failures
    assert reason == "Value too long for column/tag: s (0x2600)" and row == rows[5]


def told(**answer: Any) -> bytes:
    return json.dumps(answer).encode()


@pytest.mark.parametrize("status, body, outcome", [
    (200, told(**DONE), "delivered"),
    (200, told(status="succ", head=["affected_rows"], data=[[1]], rows=1), "delivered"),  # TDengine 2
    (200, told(**TABLE_IS_MISSING), "aside"),
    (400, told(**TABLE_IS_MISSING), "aside"),
    (200, told(code=9728, desc="syntax error near 'x'"), "divide"),
    (200, told(status="error", code=534, desc="Syntax error in SQL"), "divide"),
    (200, told(code=0x80002600, desc="syntax error"), "divide"),
    (200, told(code=0x060B, desc="Timestamp data out of range"), "divide"),
    (401, told(code=855, desc="Authentication failure"), "waits"),
    (200, told(code=904, desc="Database not exist"), "waits"),
    (200, told(code=11, desc="Unable to establish connection"), "waits"),
    (200, told(code=0x012B, desc="Out of disk space"), "waits"),
    (200, told(code=0x0914, desc="Sync leader is unreachable"), "waits"),
    (200, b"<html>", "waits"),
    (503, b"", "waits"),
    (413, b"", "divide"),
    (500, told(status="succ"), "retry"),
])  # fmt: skip
async def test_what_answers_mean(status: int, body: bytes, outcome: str) -> None:
    found, divide = answer_of(HttpReply(status, body))
    kind = "waits" if found.unreachable else "retry" if found.retry else "aside" if found.aside else ""
    assert outcome == ("divide" if divide else kind or ("failed" if found.reason else "delivered"))


async def test_rows_wait_for_the_login(engine: FakeEngine, server: HttpSink) -> None:
    async def refuse(request: web.Request, body: bytes) -> web.StreamResponse:
        return web.json_response({"code": 855, "desc": "Authentication failure"}, status=401)

    server.answer = refuse
    trial = engine.make(TYPE, host="127.0.0.1", port=server.port, password="x", username="root")
    with pytest.raises(ResourceError, match="Authentication failure"):
        await trial.test()
    await trial.close()
    made = run(engine, server)
    engine.action(action.TYPE, sql=SQL).run({"at": 1, "n": 1, "s": ""}, published())
    await until(lambda: "Authentication failure" in made.buffer.last_error)
    assert engine.report.count == 0
    server.answer = answer
    await until(lambda: engine.report.successes == 1)


@pytest.mark.parametrize("mode, failures", [("sync", 1), ("async", 0)])
async def test_insert_mode_and_sync_timeout(engine: FakeEngine, mode: str, failures: int) -> None:
    away = HttpSink()
    made = run(engine, away)
    engine.action(action.TYPE, sql=SQL, insert_mode=mode, sync_timeout=20).run({"at": 1, "n": 1, "s": ""}, published())
    await until(lambda: made.buffer.status.retried > 5 or engine.report.count > 0)
    await asyncio.sleep(0.1)
    assert len(engine.report.failures) == failures


async def test_pool_size_requests_go_at_the_same_time(engine: FakeEngine, server: HttpSink) -> None:
    released = asyncio.Event()
    going = most = 0

    async def slow(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal going, most
        if body != VERSION:
            going += 1
            most = max(most, going)
            await released.wait()
            going -= 1
        return web.json_response(DONE)

    server.answer = slow
    run(engine, server, pool_size=3)
    act = engine.action(action.TYPE, sql=SQL, batch_pool_size=20)
    for number in range(60):
        act.run({"at": number, "n": number, "s": ""}, published(client_id=f"c{number}"))
    await until(lambda: going == 3)
    released.set()
    await until(lambda: engine.report.successes == 60)
    assert most == 3


async def test_a_server_that_hangs_is_given_up_in_time(engine: FakeEngine, server: HttpSink) -> None:
    async def hang(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    server.answer = hang
    made = run(engine, server, request_timeout="50ms")
    engine.action(action.TYPE, sql=SQL).run({"at": 1, "n": 1, "s": ""}, published())
    await until(lambda: made.buffer.status.retried > 0)


@pytest.mark.parametrize("config, trusted", [
    ({}, True), ({"verify": True}, False), ({"verify": True, "cacertfile": "ca"}, True),
    ({"verify": True, "cacertfile": "ca", "server_name_indication": "other.example"}, False),
    ({"tls_version": "tlsv1.3"}, False), ({"https_enabled": False}, False), ({"certfile": "", "keyfile": ""}, False),
])  # fmt: skip
async def test_whom_it_trusts(engine: FakeEngine, tmp_path: Path, config: dict[str, Any], trusted: bool) -> None:
    """The server has TLS 1.2, and asks for a certificate of the client."""
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certfile, keyfile)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    server = HttpSink()
    server.answer = answer
    await server.start(context)
    given = {"https_enabled": True, "certfile": certfile, "keyfile": keyfile, **config}
    if "cacertfile" in config:
        given["cacertfile"] = {"filename": "ca.pem", "file": Path(certificates.ca).read_text()}
    trial = engine.make(TYPE, host="localhost", port=server.port, **given)
    if trusted:
        await trial.test()
    else:
        with pytest.raises(ResourceError):
            await trial.test()
    await trial.close()
    await server.stop()


async def test_invalid_resources(engine: FakeEngine) -> None:
    for config, key in (({"host": "a b"}, "host"), ({"username": "a:b"}, "username")):
        with pytest.raises(ParamError) as refused:
            engine.make(TYPE, **{"host": "h", **config})
        assert refused.value.key == key
