"""``backend_influxdb_http`` with an InfluxDB 1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.influxdb import action
from taipan.ruleengine.sinks.influxdb.resource import RESOURCES
from tests.support.fake_engine import FakeEngine, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System
from tests.systems.servers.influxdb import InfluxDb

FIELDS = {"n": "${n}i", "v": "${v}"}


@pytest.fixture(scope="module")
def process() -> Iterator[InfluxDb]:
    made = InfluxDb()
    made.start()
    yield made
    made.close()


@pytest.fixture
def influxdb(process: InfluxDb) -> InfluxDb:
    """It runs, and has no measurement."""
    if not process.runs:
        process.start()
    process.query(f"DROP DATABASE {process.database}")
    process.query(f"CREATE DATABASE {process.database}")
    process.query(f"GRANT ALL ON {process.database} TO {process.user}")
    return process


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    made = FakeEngine()
    yield made
    await made.close()


def config(server: InfluxDb, **more: Any) -> dict[str, Any]:
    return {
        "host": "127.0.0.1", "port": server.port, "database": server.database, "username": server.user,
        "password": server.password, "request_timeout": "1s", **more,
    }  # fmt: skip


class InfluxDbSystem(System):
    resource, action = RESOURCES[0], action.TYPE
    gives_up_soon: ClassVar = {"request_timeout": "300ms", "connect_timeout": "300ms"}
    waits_shortly: ClassVar = {"retry_for": "100ms"}
    ordered = False  # a point has its time
    login_refused = "401"
    without: ClassVar = {"bad row": "a field gets its type from the first point, not from a table: the next test"}
    server: InfluxDb

    def config(self) -> dict[str, Any]:
        return config(self.server)

    def params(self) -> dict[str, Any]:
        return {"measurement": "m", "fields": {"n": "${n}i", "c": "${c}"}, "timestamp": "${n}", "batch_size": 20}

    def set_password(self, password: str) -> None:
        self.server.query(f"SET PASSWORD FOR {self.server.user} = '{password}'")

    async def certify(self, certificate: str, key: str) -> dict[str, Any]:
        found = await super().certify(certificate, key)
        return {"port": int(found["server"].rpartition(":")[2]), "https_enabled": True}

    def harm(self, row: int) -> None:
        if row == 1000:
            self.server.kill()
        if row == 1500:
            self.server.start()

    async def written(self) -> list[tuple[str, int]]:
        return [(each["c"], each["n"]) for each in self.server.query("SELECT * FROM m")]


@pytest.fixture
def system(influxdb: InfluxDb) -> System:
    return InfluxDbSystem(influxdb)


def write(engine: FakeEngine, numbers: range, **params: Any) -> None:
    act = engine.action(action.TYPE, **{"measurement": "m", "fields": FIELDS, "timestamp": "${n}", **params})
    for number in numbers:
        act.run({"n": number, "v": number / 2}, published(client_id=f"c{number % 5}"))


def numbers(server: InfluxDb) -> list[int]:
    return sorted(each["n"] for each in server.query("SELECT * FROM m"))


@pytest.mark.asyncio
async def test_values_come_back_as_they_were(influxdb: InfluxDb, engine: FakeEngine) -> None:
    engine.run(RESOURCES[0], **config(influxdb))
    text = 'a "b" \\ c, d=e\nfrom é'
    act = engine.action(
        action.TYPE,
        measurement="m, ${kind}",
        tags={"the client": "${client}", "none": "${none}"},
        fields={"text": "${text}", "int": "${int}i", "float": "${float}", "bool": "${bool}", "none": "${none}"},
        timestamp="${time}",
    )
    tag = "c 1,x=\\y"
    act.run({"kind": "x y", "client": tag, "text": text, "int": 2**62, "float": 1.5, "bool": True, "time": 5000,
             "none": None}, published())  # fmt: skip
    await until(lambda: engine.report.count == 1)
    assert engine.report.failures == []
    (row,) = influxdb.query('SELECT * FROM "m, x y"')
    assert row == {"time": 5000, "the client": tag, "text": text, "int": 2**62, "float": 1.5, "bool": True}


@pytest.mark.asyncio
async def test_a_field_of_another_type_stops_no_other_row(influxdb: InfluxDb, engine: FakeEngine) -> None:
    engine.run(RESOURCES[0], **config(influxdb))
    write(engine, range(1))
    await until(lambda: engine.report.successes == 1)
    act = engine.action(action.TYPE, measurement="m", fields=FIELDS, timestamp="${n}", batch_pool_size=1)
    for number in range(1, 60):
        value = "a text" if number == 30 else 1.0
        act.run({"n": number, "v": value}, published(client_id=f"c{number}"))
    await until(lambda: engine.report.count == 60)
    ((reason, row),) = engine.report.failures
    assert "field type conflict" in reason and row is not None and row["n"] == 30
    assert numbers(influxdb) == [each for each in range(60) if each != 30]


@pytest.mark.asyncio
async def test_rows_wait_for_credentials_and_for_the_database(influxdb: InfluxDb, engine: FakeEngine) -> None:
    for wrong, reason in (({"password": "x"}, "401"), ({"database": "missing"}, "40[34]")):
        trial = engine.make(RESOURCES[0], **config(influxdb, **wrong))
        with pytest.raises(ResourceError, match=reason):
            await trial.test()
        await trial.close()
    made = engine.run(RESOURCES[0], **config(influxdb))
    await until(lambda: made.alive)
    influxdb.query(f"SET PASSWORD FOR {influxdb.user} = 'other'")
    write(engine, range(10))
    await until(lambda: "401" in made.buffer.last_error)
    assert engine.report.count == 0
    influxdb.query(f"SET PASSWORD FOR {influxdb.user} = '{influxdb.password}'")
    await until(lambda: engine.report.successes == 10)
    assert engine.report.failures == [] and numbers(influxdb) == list(range(10))
