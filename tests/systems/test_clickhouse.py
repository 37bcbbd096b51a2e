"""``backend_clickhouse`` and ``data_to_clickhouse`` with a ClickHouse."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.clickhouse import action
from taipan.ruleengine.sinks.clickhouse.resource import TYPE
from tests.support.fake_engine import FakeEngine, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System
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


class ClickHouseSystem(System):
    resource, action = TYPE, action.TYPE
    gives_up_soon: ClassVar = {"request_timeout": "300ms", "connect_timeout": "300ms"}
    waits_shortly: ClassVar = {"retry_for": "100ms"}
    ordered = False  # the server sorts
    without: ClassVar = {
        "credentials": "it reads a new password seconds later: test_rows_wait_for_credentials_and_for_the_database",
    }
    bad_reason = "DB::Exception"
    server: ClickHouse

    def config(self) -> dict[str, Any]:
        return config(self.server)

    def params(self) -> dict[str, Any]:
        return {"sql": "INSERT INTO t (n, s) VALUES (toInt32('${n}'), '${c}')", "batch_size": 20}

    async def certify(self, certificate: str, key: str) -> dict[str, Any]:
        found = await super().certify(certificate, key)
        return {"server": f"https://{found['server']}"}

    def harm(self, row: int) -> None:
        if row == 1000:
            self.server.kill()
        if row == 1500:
            self.server.start()

    async def written(self) -> list[tuple[str, int]]:
        return [(each["s"], each["n"]) for each in stored(self.server)]


@pytest.fixture
def system(clickhouse: ClickHouse) -> System:
    return ClickHouseSystem(clickhouse)


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
