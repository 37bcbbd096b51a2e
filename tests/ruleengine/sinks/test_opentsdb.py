"""``backend_opentsdb`` and ``data_to_opentsdb`` against a server that answers as OpenTSDB does."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.http_reply import HttpReply
from taipan.ruleengine.sinks.opentsdb import action
from taipan.ruleengine.sinks.opentsdb import resource as opentsdb
from taipan.ruleengine.sinks.opentsdb.action import data_point, sanitise
from taipan.ruleengine.sinks.opentsdb.resource import DataPoint, PutOptions, outcomes_of
from tests.support.fake_engine import QUICK, FakeEngine, published
from tests.support.http_sink import HttpSink
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

# Long enough that everything a test sends in one go shares requests.
LINGERING = msgspec.structs.replace(QUICK, batch_linger=0.05)


class Tsdb(HttpSink):
    """An HttpSink that stores points, but for those whose metric begins with ``bad``."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[dict[str, Any]] = []
        self.queries: list[str] = []
        self.sizes: list[int] = []
        self.answer = self._put

    async def _put(self, request: web.Request, body: bytes) -> web.StreamResponse:
        points = json.loads(body)
        assert request.method == "POST" and request.path == "/api/put" and isinstance(points, list)
        self.queries.append(request.query_string)
        self.sizes.append(len(points))
        bad = [each for each in points if each["metric"].startswith("bad")]
        self.stored += [each for each in points if each not in bad]
        flags = request.query_string.split("&")
        code = 400 if bad else 200
        counts: dict[str, Any] = {"success": len(points) - len(bad), "failed": len(bad)}
        if "details" in flags:
            counts["errors"] = [{"datapoint": each, "error": "Unknown metric"} for each in bad]
        if "details" in flags or "summary" in flags:
            return web.json_response(counts, status=code)
        if bad:
            return web.json_response(
                {"error": {"code": 400, "message": "One or more data points had errors"}}, status=400
            )
        return web.Response(status=204)


@pytest_asyncio.fixture
async def tsdb() -> AsyncIterator[Tsdb]:
    made = Tsdb()
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine(LINGERING)
    yield made
    await made.close()


def row(number: int = 1, metric: str = "cpu", **more: Any) -> dict[str, Any]:
    return {"metric": metric, "value": number, "tags": {"host": "a"}, "timestamp": 1_600_000_000 + number, **more}


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_points_are_put_in_batches_of_at_most_twenty(engine: FakeEngine, tsdb: Tsdb, scheme: str) -> None:
    engine.run(opentsdb.TYPE, server=f"{scheme}127.0.0.1:{tsdb.port}")
    act = engine.action(action.TYPE)
    for number in range(50):
        assert act.run(row(number), published()) is False
    await until(lambda: engine.report.successes == 50)
    assert sorted(tsdb.sizes) == [10, 20, 20]
    assert sorted(each["value"] for each in tsdb.stored) == list(range(50))
    assert set(tsdb.queries) == {"summary"}
    assert tsdb.requests[0][2]["content-type"] == "application/json"


async def test_max_batch_size_is_the_actions(engine: FakeEngine, tsdb: Tsdb) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url, pool_size=1)
    act = engine.action(action.TYPE, max_batch_size=7)
    for number in range(20):
        act.run(row(number), published())
    await until(lambda: engine.report.successes == 20)
    assert tsdb.sizes == [7, 7, 6]


async def test_synchronous_calls_carry_one_point_each(engine: FakeEngine, tsdb: Tsdb) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE, sync=True, sync_timeout=1500)
    for number in range(5):
        act.run(row(number), published())
    await until(lambda: engine.report.successes == 5)
    assert tsdb.sizes == [1] * 5 and set(tsdb.queries) == {"summary&sync&sync_timeout=1500"}


@pytest.mark.parametrize(
    "params, query",
    [
        ({}, "summary"),
        ({"summary": False}, ""),
        ({"details": True}, "details&summary"),
        ({"details": True, "summary": False}, "details"),
        ({"sync_timeout": 5}, "summary"),
        ({"sync": True}, "summary&sync&sync_timeout=0"),
    ],
)
async def test_flags_of_the_request(engine: FakeEngine, tsdb: Tsdb, params: dict[str, Any], query: str) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url)
    engine.action(action.TYPE, **params).run(row(), published())
    await until(lambda: engine.report.successes == 1)
    assert tsdb.queries == [query]


async def test_actions_do_not_share_requests(engine: FakeEngine, tsdb: Tsdb) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url, pool_size=1)
    one, other = engine.action(action.TYPE, "a_1"), engine.action(action.TYPE, "a_2", details=True)
    one.run(row(1), published())
    other.run(row(2), published())
    await until(lambda: engine.report.successes == 2)
    assert sorted(tsdb.queries) == ["details&summary", "summary"]


async def test_details_name_the_points_that_failed(engine: FakeEngine, tsdb: Tsdb) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE, details=True)
    for number in range(10):
        act.run(row(number, "bad" if number in (3, 7) else "cpu"), published())
    await until(lambda: engine.report.count == 10)
    assert engine.report.successes == 8
    assert [each["value"] for _, each in engine.report.failures if each is not None] == [3, 7]
    assert {reason for reason, _ in engine.report.failures} == {"not stored: Unknown metric"}
    assert tsdb.sizes == [10]


async def test_the_summary_says_how_many_failed(engine: FakeEngine, tsdb: Tsdb) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE)
    for number in range(10):
        act.run(row(number, "bad" if number in (3, 7) else "cpu"), published())
    await until(lambda: engine.report.count == 10)
    assert engine.report.successes == 8
    assert engine.report.failures == [("2 of 10 points not stored", None)] * 2


async def test_a_whole_batch_that_failed_is_known_by_its_rows(engine: FakeEngine, tsdb: Tsdb) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url)
    engine.action(action.TYPE).run(row(1, "bad"), published())
    await until(lambda: engine.report.count == 1)
    assert engine.report.failures == [("1 of 1 points not stored", row(1, "bad"))]


@pytest.mark.parametrize("bad", [(), (3,), (0, 7, 9)])
async def test_without_summary_and_details_the_bad_points_are_found(
    engine: FakeEngine, tsdb: Tsdb, bad: tuple[int, ...]
) -> None:
    """The answer names and counts none: each half is sent by itself."""
    engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE, summary=False)
    for number in range(10):
        act.run(row(number, "bad" if number in bad else "cpu"), published())
    await until(lambda: engine.report.count == 10)
    assert engine.report.successes == 10 - len(bad)
    assert [each["value"] for _, each in engine.report.failures if each is not None] == list(bad)
    assert all("HTTP 400" in reason for reason, _ in engine.report.failures)


async def test_a_request_that_is_too_large_is_sent_in_parts(engine: FakeEngine, tsdb: Tsdb) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        points = json.loads(body)
        if len(points) > 3 or any(each["metric"] == "huge" for each in points):
            return web.Response(status=413)
        tsdb.stored += points
        return web.Response(status=204)

    tsdb.answer = answer
    engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE)
    for number in range(20):
        act.run(row(number, "huge" if number == 5 else "cpu"), published())
    await until(lambda: engine.report.count == 20)
    assert engine.report.successes == 19
    assert sorted(each["value"] for each in tsdb.stored) == [number for number in range(20) if number != 5]
    assert engine.report.failures == [("HTTP 413", row(5, "huge"))]


@pytest.mark.parametrize("status", [200, 400])
async def test_counts_of_an_encoded_answer_count(engine: FakeEngine, tsdb: Tsdb, status: int) -> None:
    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        points = json.loads(body)
        bad = [each for each in points if each["metric"] == "bad"]
        errors = [{"datapoint": each, "error": "Unknown metric"} for each in bad]
        told = json.dumps({"success": len(points) - len(bad), "failed": len(bad), "errors": errors}).encode()
        return web.Response(status=status, body=gzip.compress(told), headers={"Content-Encoding": "gzip"})

    tsdb.answer = answer
    engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE, details=True)
    for number in range(60):
        act.run(row(number, "bad" if number % 5 == 0 else "cpu"), published())
    await until(lambda: engine.report.count == 60)
    assert engine.report.successes == 48
    assert {reason for reason, _ in engine.report.failures} == {"not stored: Unknown metric"}


async def test_a_server_that_is_away_and_comes_back_gets_every_point_once(engine: FakeEngine, tsdb: Tsdb) -> None:
    store = engine.run(opentsdb.TYPE, server=tsdb.url)
    act = engine.action(action.TYPE)
    await until(lambda: store.alive)
    await tsdb.stop()
    await until(lambda: not store.alive)
    for number in range(30):
        act.run(row(number), published())
    await until(lambda: store.status.buffer.retried > 0)
    await tsdb.start()
    await until(lambda: engine.report.successes == 30)
    assert sorted(each["value"] for each in tsdb.stored) == list(range(30))


async def test_pool_size_requests_go_at_the_same_time(engine: FakeEngine, tsdb: Tsdb) -> None:
    released, going, most = asyncio.Event(), 0, 0

    async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await released.wait()
        going -= 1
        return web.Response(status=204)

    tsdb.answer = answer
    engine.run(opentsdb.TYPE, server=tsdb.url, pool_size=3)
    act = engine.action(action.TYPE, max_batch_size=1)
    for number in range(60):
        act.run(row(number), published())
    await until(lambda: going == 3)
    released.set()
    await until(lambda: engine.report.successes == 60)
    assert most == 3


@pytest.mark.parametrize(
    "value, expected",
    [(1, 1), (-2.5, -2.5), ("12", 12), ("+3", 3), ("1.5", 1.5), ("-2e3", -2000.0)],
)
async def test_value_is_a_number_or_a_text_of_one(value: Any, expected: Any) -> None:
    assert data_point(row(value=value), 1.0).value == expected


@pytest.mark.parametrize(
    "timestamp, expected",
    [(1_600_000_000, 1_600_000_000), ("1600000000123", 1_600_000_000_123), ("soon", 1500), (None, 1500), (1.5, 1500)],
)
async def test_timestamp_is_kept_read_or_made(timestamp: Any, expected: int) -> None:
    assert data_point(row(timestamp=timestamp), 1.5).timestamp == expected


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"metric": None}, "metric"),
        ({"metric": ""}, "metric"),
        ({"value": None}, "value"),
        ({"value": "many"}, "value"),
        ({"value": True}, "value"),
        ({"value": float("inf")}, "value"),
        ({"value": 2**64}, "64 bits"),
        ({"tags": None}, "tags"),
        ({"tags": {}}, "tags"),
        ({"tags": "[1]"}, "tags"),
        ({"tags": {"a": None}}, "tag a"),
        ({"tags": {"a": ""}}, "tag a"),
        ({"tags": {"a b": "x", "a/b": "x", "a%b": "y"}}, "same name"),
        ({"tags": {f"t{number}": 1 for number in range(9)}}, "9 tags"),
    ],
)
async def test_what_is_no_data_point_says_why(
    engine: FakeEngine, tsdb: Tsdb, change: dict[str, Any], reason: str
) -> None:
    engine.run(opentsdb.TYPE, server=tsdb.url)
    with pytest.raises(ActionFailed, match=reason):
        engine.action(action.TYPE).run(row(**change), published())


async def test_characters_that_opentsdb_refuses_are_replaced() -> None:
    assert sanitise("säule 1/a_b-c.d:e") == "säule_1/a_b-c.d_e"
    point = data_point(row(metric="a b", tags={"ho st": "x:y", "n": 1.5, "on": True}), 1.0)
    assert (point.metric, point.tags) == ("a_b", {"ho_st": "x_y", "n": "1.5", "on": "true"})
    assert data_point(row(tags='{"a":"b"}'), 1.0).tags == {"a": "b"}


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b'{"failed":"x"}', b'{"failed":-1}'])
@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_says_nothing_counts_by_its_status(status: int, body: bytes) -> None:
    outcomes = outcomes_of(HttpReply(status, body), [DataPoint("m", 1, 1, {"a": "b"})] * 2)
    assert [bool(each.reason) for each in outcomes] == [status == 400] * 2


async def test_errors_beyond_those_named_are_counted() -> None:
    points = [DataPoint("m", number, 1, {"a": "b"}) for number in range(4)]
    named = {"datapoint": {"metric": "m", "timestamp": 1, "value": "1", "tags": {"a": "b"}}, "error": "no"}
    outcomes = outcomes_of(HttpReply(400, json.dumps({"success": 2, "failed": 2, "errors": [named]}).encode()), points)
    assert [(bool(each.reason), each.attributed) for each in outcomes] == [
        (False, True),
        (True, True),
        (False, True),
        (True, False),
    ]


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_an_overloaded_server_is_asked_again(status: int) -> None:
    assert outcomes_of(HttpReply(status, b""), [DataPoint("m", 1, 1, {"a": "b"})])[0].retry


PARAMS = msgspec.to_builtins(action.TYPE.record().params)


@pytest.mark.parametrize(
    "name, order, type, default",
    [
        ("$resource", 0, "string", None),
        ("details", 1, "boolean", False),
        ("summary", 2, "boolean", True),
        ("max_batch_size", 3, "number", 20),
        ("sync", 4, "boolean", False),
        ("sync_timeout", 5, "number", 0),
    ],
)
async def test_opentsdb_param(name: str, order: int, type: str, default: Any) -> None:
    record = PARAMS[name]
    assert (record["order"], record["type"], record.get("default")) == (order, type, default)
    assert record.get("required", False) == (name == "$resource")


async def test_there_are_seven_parameters() -> None:
    assert len(PARAMS) == 7


@pytest.mark.parametrize(
    "key, params",
    [
        ("max_batch_size", {"max_batch_size": 0}),
        ("max_batch_size", {"max_batch_size": 1.5}),
        ("sync_timeout", {"sync_timeout": -1}),
        ("details", {"details": "maybe"}),
    ],
)
async def test_an_action_that_cannot_be_is_refused(engine: FakeEngine, key: str, params: dict[str, Any]) -> None:
    with pytest.raises(ParamError) as refused:
        engine.action(action.TYPE, **params)
    assert refused.value.key == key


@pytest.mark.parametrize(
    "server", ["", "ftp://h:1", "http://", "h:99999", "http://h?x=1", "http://u:p@h", "http://h/a b", "http://h/\u00fc"]
)
async def test_a_server_that_cannot_be_is_refused(engine: FakeEngine, server: str) -> None:
    with pytest.raises(ParamError) as refused:
        engine.make(opentsdb.TYPE, server=server)
    assert refused.value.key == "server"


async def test_the_query_is_made_of_bare_flags() -> None:
    assert PutOptions(True, True, True, 3).query == "?details&summary&sync&sync_timeout=3"
