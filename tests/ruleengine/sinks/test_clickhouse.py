"""``backend_clickhouse``, ``data_to_clickhouse`` and its statements, against a server of the test."""

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
from taipan.ruleengine.resources.http_reply import HttpReply
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.clickhouse import action
from taipan.ruleengine.sinks.clickhouse.resource import TYPE, answer_of
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, published
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

SQL = "INSERT INTO t (n, s) VALUES (${n}, '${s}')"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[HttpSink]:
    made = HttpSink()
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


def statements(server: HttpSink) -> list[str]:
    return [each.decode() for each in server.bodies if each != b"SELECT 1"]


async def written(engine: FakeEngine, server: HttpSink, sql: str, row: dict[str, Any], **params: Any) -> str:
    engine.run(TYPE, server=server.url, database="d")
    engine.action(action.TYPE, sql=sql, **params).run(row, published())
    await until(lambda: statements(server) != [])
    return statements(server)[0]


async def test_a_request(engine: FakeEngine, server: HttpSink) -> None:
    engine.run(TYPE, server=server.url, database="my db", user="u", key="p")
    engine.action(action.TYPE, sql=SQL).run({"n": 1, "s": "x"}, published())
    await until(lambda: statements(server) != [])
    method, path, headers, body = server.requests[-1]
    assert (method, path, headers["authorization"]) == ("POST", "/?database=my%20db", "Basic dTpw")
    assert body == b"INSERT INTO t (n, s) VALUES (1, 'x')"


@pytest.mark.parametrize("sql, row, statement", [
    ("insert into t values ('${x}');", {"x": "a'b\\c\n\"`"}, "insert into t values ('a\\'b\\\\c\\n\"`')"),
    ("insert into t values ('at ${x}')", {"x": {"a": "'"}}, "insert into t values ('at {\"a\":\"\\'\"}')"),
    ("insert into t values (${x}, ${y}, ${z})", {"x": True, "y": -1.5, "z": "7"}, "insert into t values (1, -1.5, 7)"),
    ("insert into t values (${x}, '${x}')", {"x": None}, "insert into t values (NULL, NULL)"),
    ("insert into t values ('${x}', '${y}')", {"x": ""}, "insert into t values ('', 'undefined')"),
    ("insert into d_${x} values (${x}/1000)", {"x": 5}, "insert into d_5 values (5/1000)"),
    ("insert into `d ${x}` values ('\\${x}')", {"x": "a'"}, "insert into `d a'` values ('\\${x}')"),
    ('insert into t format JSONEachRow {"a": "${x}"}', {"x": 'b"'}, 'insert into t format JSONEachRow {"a": "b\\""}'),
])  # fmt: skip
async def test_statements(engine: FakeEngine, server: HttpSink, sql: str, row: dict[str, Any], statement: str) -> None:
    assert await written(engine, server, sql, row) == statement


async def test_sql_insert_null(engine: FakeEngine, server: HttpSink) -> None:
    sql = "insert into t values (${x}, '${x}')"
    assert await written(engine, server, sql, {}, sql_insert_null=True) == "insert into t values (NULL, NULL)"


@pytest.mark.parametrize("sql, value, reason", [
    ("${x}", "insert into t values (1)", "not a number"),
    ("insert into t values (${x})", "1), (2", "not a number"),
    ("insert into t values (${x})", "1 -- ", "not a number"),
    ("insert into t values (${x})", [1], "not a number"),
    ("insert into t values (${y})", 1, "sql_insert_null"),
    ("insert into d_${x} values (1)", "a values (2), (3) --", "part of a name"),
    ("insert into `d_${x}` values (1)", "a` values (2)", "part of a name"),
    ("insert into t values ('${x}')", "a\0b", "null character"),
    ("insert into t values ('${x}')", b"\xff", "UTF-8"),
    ("insert into t values ('${x}')", "\ud827", "UTF-8"),
])  # fmt: skip
async def test_values_that_would_change_a_statement(
    engine: FakeEngine, server: HttpSink, sql: str, value: Any, reason: str
) -> None:
    engine.run(TYPE, server=server.url, database="d")
    with pytest.raises(ActionFailed, match=reason):
        engine.action(action.TYPE, sql=sql).run({"x": value}, published())


@pytest.mark.parametrize("sql", [
    "", ";", "insert into t values (-${x})", "insert into t values (${x}${y})", "insert into t values (1${x})",
    "insert into t values (1) -- ${x}", "insert into t values (/* ' */ '${x}')", "insert into t values ('${x})",
    "insert into t values (1); drop table t", "insert into t values (1", ")(",
])  # fmt: skip
async def test_templates_that_are_refused(engine: FakeEngine, sql: str) -> None:
    with pytest.raises(ParamError) as refused:
        engine.action(action.TYPE, sql=sql)
    assert refused.value.key == "sql"


@pytest.mark.parametrize("config, key", [
    ({"server": "ftp://h"}, "server"), ({"server": "http://u:p@h"}, "server"), ({"server": "http://h/x"}, "server"),
    ({"user": "a:b"}, "user"), ({"request_timeout": "soon"}, "request_timeout"),
])  # fmt: skip
async def test_invalid_resources(engine: FakeEngine, config: dict[str, Any], key: str) -> None:
    with pytest.raises(ParamError) as refused:
        engine.make(TYPE, **{"server": "h:1", "database": "d", **config})
    assert refused.value.key == key


async def test_the_tuples_of_a_batch_share_a_statement(engine: FakeEngine, server: HttpSink) -> None:
    engine.run(TYPE, server=server.url, database="d")
    act = engine.action(action.TYPE, sql=SQL, batch_size=10, batch_time=50, batch_pool_size=1)
    for number in range(30):
        act.run({"n": number, "s": "x"}, published(client_id=f"c{number}"))
    await until(lambda: engine.report.successes == 30)
    assert statements(server)[0] == "INSERT INTO t (n, s) VALUES " + ",".join(f"({n}, 'x')" for n in range(10))
    assert len(statements(server)) == 3


@pytest.mark.parametrize("sql, params", [
    (SQL, {"enable_batch": False}), ("INSERT INTO t SELECT ${n}", {}), ("INSERT INTO t VALUES (${n}), (2)", {}),
])  # fmt: skip
async def test_one_row_each(engine: FakeEngine, server: HttpSink, sql: str, params: dict[str, Any]) -> None:
    engine.run(TYPE, server=server.url, database="d")
    act = engine.action(action.TYPE, sql=sql, **params)
    for number in range(5):
        act.run({"n": number, "s": "x"}, published(client_id=f"c{number}"))
    await until(lambda: engine.report.successes == 5)
    assert len(statements(server)) == 5


@pytest.mark.parametrize("mode, failures", [("sync", 1), ("async", 0)])
async def test_insert_mode_and_sync_timeout(engine: FakeEngine, mode: str, failures: int) -> None:
    away = HttpSink()
    made = engine.run(TYPE, server=away.url, database="d")
    engine.action(action.TYPE, sql=SQL, insert_mode=mode, sync_timeout=20).run({"n": 1, "s": ""}, published())
    await until(lambda: made.buffer.status.retried > 5 or engine.report.count > 0)
    await asyncio.sleep(0.1)
    assert len(engine.report.failures) == failures


@pytest.mark.parametrize("status, body, waits, divides", [
    (500, b"Code: 193, e.displayText() = DB::Exception: Wrong password", True, False),
    (404, b"Code: 81. DB::Exception: Database d does not exist", True, False),
    (500, b"Code: 252. DB::Exception: Too many parts", True, False),
    (500, b"Code: 53, e.displayText() = DB::Exception: Type mismatch", False, True),
    (400, b"Code: 27. DB::Exception: Cannot parse input", False, True),
    (503, b"", True, False),
])  # fmt: skip
async def test_what_answers_mean(status: int, body: bytes, waits: bool, divides: bool) -> None:
    outcome, divide = answer_of(HttpReply(status, body))
    assert (outcome.retry and outcome.unreachable, divide) == (waits, divides) and outcome.reason


async def test_pool_size_requests_go_at_the_same_time(engine: FakeEngine, server: HttpSink) -> None:
    released = asyncio.Event()
    going = most = 0

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal going, most
        if body != b"SELECT 1":
            going += 1
            most = max(most, going)
            await released.wait()
            going -= 1
        return web.Response()

    server.answer = answer
    engine.run(TYPE, server=server.url, database="d", pool_size=3)
    act = engine.action(action.TYPE, sql=SQL, batch_pool_size=20)
    for number in range(60):
        act.run({"n": number, "s": ""}, published(client_id=f"c{number}"))
    await until(lambda: going == 3)
    released.set()
    await until(lambda: engine.report.successes == 60)
    assert most == 3


async def test_a_server_that_hangs_is_given_up_in_time(engine: FakeEngine, server: HttpSink) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    server.answer = answer
    made = engine.run(TYPE, server=server.url, database="d", request_timeout="50ms", connect_timeout="1s")
    engine.action(action.TYPE, sql=SQL).run({"n": 1, "s": ""}, published())
    await until(lambda: made.buffer.status.retried > 0)


@pytest.mark.parametrize("config, trusted", [
    ({}, True), ({"verify": True}, False), ({"verify": True, "cacertfile": "ca"}, True),
    ({"verify": True, "cacertfile": "ca", "server_name_indication": "other.example"}, False),
])  # fmt: skip
async def test_whom_it_trusts(engine: FakeEngine, tmp_path: Path, config: dict[str, Any], trusted: bool) -> None:
    """The server asks for a certificate of the client."""
    certificates = Certificates(tmp_path)
    certfile, keyfile = certificates.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certfile, keyfile)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.ca)
    server = HttpSink()
    await server.start(context)
    given = {"certfile": str(certfile), "keyfile": str(keyfile), **config}
    if "cacertfile" in config:
        given["cacertfile"] = {"filename": "ca.pem", "file": Path(certificates.ca).read_text()}
    trial = engine.make(TYPE, server=f"https://localhost:{server.port}", database="d", **given)
    if trusted:
        await trial.test()
    else:
        with pytest.raises(ResourceError):
            await trial.test()
    await trial.close()
    await server.stop()
