"""``backend_clickhouse`` and ``data_to_clickhouse`` with a ClickHouse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.clickhouse import action
from taipan.ruleengine.sinks.clickhouse.resource import TYPE
from tests.support.fake_engine import FakeEngine, published
from tests.support.waiting import until
from tests.systems.servers.clickhouse import ClickHouse

SQL = "INSERT INTO t (n, s, f) VALUES (${n}, '${s}', ${f})"


@pytest.fixture(scope="module")
def process() -> Iterator[ClickHouse]:
    made = ClickHouse()
    made.start()
    yield made
    made.close()


@pytest.fixture
def clickhouse(process: ClickHouse) -> ClickHouse:
    """It runs, and has an empty table."""
    if not process.runs:
        process.start()
    process.execute(f"DROP TABLE IF EXISTS {process.database}.t")
    process.execute(
        f"CREATE TABLE {process.database}.t (n Int32, s String, f Nullable(Float64)) ENGINE = MergeTree ORDER BY n"
    )
    return process


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


def config(server: ClickHouse, **more: Any) -> dict[str, Any]:
    return {
        "server": f"http://{server.address}", "database": server.database, "user": server.user,
        "key": server.password, "request_timeout": "1s", **more,
    }  # fmt: skip


def write(engine: FakeEngine, rows: list[dict[str, Any]], **params: Any) -> None:
    act = engine.action(action.TYPE, **{"sql": SQL, **params})
    for row in rows:
        act.run(row, published(client_id=f"c{row['n']}"))


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"n": number, "s": f"s{number}", "f": number / 2} for number in range(first, end)]


def stored(server: ClickHouse) -> list[dict[str, Any]]:
    return server.query(f"SELECT n, s, f FROM {server.database}.t ORDER BY n")


@pytest.mark.asyncio
async def test_values_come_back_as_they_were(clickhouse: ClickHouse, engine: FakeEngine) -> None:
    """No text leaves its quotes."""
    engine.run(TYPE, **config(clickhouse))
    random = Random(1)
    letters = "'\"\\`(),;-#/* \n\r\tx0é${}"
    given = rows(0, 300)
    for row in given:
        row["s"] = "".join(random.choice(letters) for _ in range(random.randrange(12)))
    given[7]["f"] = None
    write(engine, given, batch_pool_size=1)
    await until(lambda: engine.report.count == 300)
    assert engine.report.failures == [] and stored(clickhouse) == given


@pytest.mark.asyncio
async def test_a_row_of_another_type_stops_no_other_row(clickhouse: ClickHouse, engine: FakeEngine) -> None:
    engine.run(TYPE, **config(clickhouse))
    given = rows(0, 60)
    given[30]["n"] = "no number"
    write(engine, given, batch_pool_size=1, sql="INSERT INTO t (n, s, f) VALUES (toInt32('${n}'), '${s}', ${f})")
    await until(lambda: engine.report.count == 60)
    ((reason, row),) = engine.report.failures
    assert "DB::Exception" in reason and row == given[30]
    assert stored(clickhouse) == given[:30] + given[31:]


@pytest.mark.asyncio
async def test_rows_wait_while_it_is_killed_restarted_or_hangs(clickhouse: ClickHouse, engine: FakeEngine) -> None:
    made = engine.run(TYPE, **config(clickhouse))
    await until(lambda: made.alive)
    clickhouse.kill()
    write(engine, rows(0, 50))
    await until(lambda: not made.alive)
    assert engine.report.count == 0
    clickhouse.start()
    await until(lambda: engine.report.successes == 50)
    clickhouse.pause()
    try:
        write(engine, rows(50, 100))
        await until(lambda: made.buffer.status.retried > 0)
    finally:
        clickhouse.resume()
    await until(lambda: engine.report.successes == 100)
    found = {each["n"] for each in stored(clickhouse)}  # a row whose answer was lost may be there twice
    assert engine.report.failures == [] and found == set(range(100))


@pytest.mark.asyncio
async def test_rows_wait_for_credentials_and_for_the_database(clickhouse: ClickHouse, engine: FakeEngine) -> None:
    for wrong, reason in (({"key": "x"}, "Wrong password"), ({"database": "missing"}, "missing")):
        trial = engine.make(TYPE, **config(clickhouse, **wrong))
        with pytest.raises(ResourceError, match=reason):
            await trial.test()
        await trial.close()
    made = engine.run(TYPE, **config(clickhouse, key="other"))
    write(engine, rows(0, 10))
    await until(lambda: "Wrong password" in made.buffer.last_error)
    assert engine.report.count == 0
    clickhouse.set_password("other")
    await until(lambda: engine.report.successes == 10)
    clickhouse.set_password(clickhouse.password)
    assert engine.report.failures == [] and stored(clickhouse) == rows(0, 10)
