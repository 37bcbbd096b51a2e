"""Rows into MariaDB, with a real server; it speaks the protocol of MySQL."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.mysql import action, resource
from tests.ruleengine.sinks.contract import *  # noqa: F403
from tests.ruleengine.sinks.other_sides import OtherSide
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, FakeReport, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System, killed_and_restarted
from tests.systems.servers.mariadb import MariaDb

_numbers = itertools.count(1)


class MysqlSide(OtherSide):
    action: ClassVar = "data_to_mysql"
    params: ClassVar = {"sql": "insert into taken(n) values (${n})", "batch_size": 7}
    address = "server"
    server: MariaDb

    def __init__(self) -> None:
        self.port = self.server.port
        self.server.stop()

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), **login(self.server)}

    async def start(self) -> None:
        self.server.start()
        self.server.query("create table if not exists taken(id int auto_increment primary key, n int)")

    async def stop(self) -> None:
        self.server.stop()

    def taken(self) -> list[int]:
        rows = self.server.query("select n from taken order by id") if self.server.runs else []
        return [int(each[0]) for each in rows]


def login(server: MariaDb) -> dict[str, Any]:
    return {"user": server.user, "password": server.password, "database": server.database}


@pytest.fixture(scope="module")
def sides(mariadb_process: MariaDb) -> dict[str, type[OtherSide]]:
    MysqlSide.server = mariadb_process
    return {"backend_mysql": MysqlSide}


@pytest.fixture
def kind(mariadb: MariaDb) -> str:
    return "backend_mysql"


@pytest_asyncio.fixture
async def engine() -> Any:
    made = FakeEngine()
    yield made
    await made.close()


def run(engine: FakeEngine, server: MariaDb, **config: Any) -> Any:
    return engine.run(resource.TYPE, **{"server": server.address, **login(server), "pool_size": 2, **config})


def write(engine: FakeEngine, sql: str, rows: list[dict[str, Any]], **params: Any) -> FakeReport:
    report = FakeReport()
    act = engine.action(action.TYPE, f"action_{next(_numbers)}", report, sql=sql, **params)
    for each in rows:
        act.run(each, published(client_id=str(each.get("c", "c1"))))
    return report


class MysqlSystem(System):
    resource, action = resource.TYPE, action.TYPE
    server: MariaDb

    def config(self) -> dict[str, Any]:
        return {"server": self.server.address, **login(self.server), "pool_size": 4}

    def params(self) -> dict[str, Any]:
        return {"sql": "insert into t(c, n) values (${c}, ${n})", "batch_size": 20}

    login_refused = "Access denied"
    bad_reason = "Incorrect integer value"

    def set_password(self, password: str) -> None:
        self.server.query(f"alter user taipan@'127.0.0.1' identified by '{password}'")
        self.server.disconnect()

    async def certify(self, certificate: str, key: str) -> dict[str, Any]:
        self.server.tls(certificate, key, certificate)
        await asyncio.to_thread(self.server.restart)
        return {"ssl": True}

    async def uncertify(self) -> None:
        self.server.settings.clear()
        await asyncio.to_thread(self.server.restart)

    def harm(self, row: int) -> None:
        killed_and_restarted(self.server, row)

    async def written(self) -> list[tuple[str, int]]:
        return [(c, int(n)) for c, n in self.server.query("select c, n from t order by id")]


@pytest.fixture
def system(mariadb: MariaDb) -> System:
    mariadb.query("create table t(id int auto_increment primary key, c text, n int)")
    return MysqlSystem(mariadb)


async def done(report: FakeReport, count: int) -> None:
    await until(lambda: report.count >= count)
    assert report.count == count


@pytest.mark.asyncio
async def test_the_example_of_emqx(engine: FakeEngine, mariadb: MariaDb) -> None:
    """As in its documentation; a batch is one statement, and ON DUPLICATE KEY may follow."""
    mariadb.query(
        "create table t_mqtt_msg(id int auto_increment primary key, msgid varchar(64) unique, topic varchar(255),"
        " qos tinyint, payload blob, arrived datetime);"
        "create table log(n int auto_increment primary key);"
        "create trigger each_row after insert on t_mqtt_msg for each row set @n = 1"
    )
    run(engine, mariadb)
    sql = (
        "insert into t_mqtt_msg(msgid, topic, qos, payload, arrived) values (${id}, ${topic}, ${qos}, ${payload}, "
        "FROM_UNIXTIME(${timestamp}/1000)) on duplicate key update payload = values(payload)"
    )
    rows: list[dict[str, Any]] = [
        {"id": f"m{n}", "topic": "t/1", "qos": 1, "payload": f'it\'s {n}; "é" \\ ?', "timestamp": 1_700_000_000_123}
        for n in range(40)
    ]
    before = int(mariadb.query("show global status like 'Com_stmt_execute'")[0][1])
    report = write(engine, sql, [*rows, {**rows[7], "payload": "last"}], batch_time=200)
    await done(report, 41)
    assert report.failures == []
    assert int(mariadb.query("show global status like 'Com_stmt_execute'")[0][1]) - before == 1
    stored = mariadb.query(
        "select msgid, topic, qos, hex(payload), arrived from t_mqtt_msg order by length(msgid), msgid"
    )
    rows[7]["payload"] = "last"
    expected = [
        [each["id"], "t/1", "1", each["payload"].encode().hex().upper(), "2023-11-14 22:13:20"] for each in rows
    ]
    assert stored == sorted(expected, key=lambda each: (len(each[0]), each[0]))


VALUES = [
    ("int", 7, "7"),
    ("int", "7", "7"),
    ("int", 7.0, "7"),
    ("bigint", -(2**63), str(-(2**63))),
    ("tinyint", True, "1"),
    ("decimal(30)", 2**70, str(2**70)),
    ("double", 0.1, "0.1"),
    ("double", "1.5", "1.5"),
    ("varchar(300)", "é" * 251, "é" * 251),
    ("longtext", "x" * 70_000, "x" * 70_000),
    ("text", 1, "1"),
    ("text", {"a": [1, "x"]}, '{"a":[1,"x"]}'),
    ("text", None, "NULL"),
    ("json", {"a": 1}, '{"a":1}'),
    ("datetime", "2024-01-02 03:04:05", "2024-01-02 03:04:05"),
    ("date", "2024-01-02", "2024-01-02"),
    ("enum('glad')", "glad", "glad"),
    ("text", "😀", "😀"),
]
REFUSED = [
    ("int", "abc", "Incorrect integer value"),
    ("tinyint", 1000, "Out of range"),
    ("varchar(3)", "abcd", "too long"),
    ("datetime", "soon", "Incorrect datetime"),
    ("json", "no json", "CONSTRAINT"),
    ("enum('glad')", "blue", "truncated"),
    ("text", b"\xff", "Incorrect string value"),
    ("int not null", None, "cannot be null"),
]


@pytest.mark.asyncio
async def test_values_become_those_of_the_columns(engine: FakeEngine, mariadb: MariaDb) -> None:
    mariadb.query(
        "".join(f"create table c{n}(v {kind});" for n, (kind, _, _) in enumerate(VALUES))
        + "".join(f"create table r{n}(v {kind});" for n, (kind, _, _) in enumerate(REFUSED))
        + "create table b(v blob)"
    )
    run(engine, mariadb)
    for number, (kind, value, text) in enumerate(VALUES):
        report = write(engine, f"insert into c{number}(v) values (${{v}})", [{"v": value}] * 3, batch_size=2)
        await done(report, 3)
        assert report.failures == [], (kind, value)
        assert mariadb.query(f"select v from c{number}") == [[text]] * 3, kind
    for number, (kind, value, why) in enumerate(REFUSED):
        report = write(engine, f"insert into r{number}(v) values (${{v}})", [{"v": value}] * 2)
        await done(report, 2)
        assert [why in each[0] for each in report.failures] == [True] * 2, (kind, value, report.failures)
    await done(write(engine, "insert into b values (${v})", [{"v": b"\xff\0\\'"}]), 1)
    assert mariadb.query("select hex(v) from b") == [["FF005C27"]]


@pytest.mark.asyncio
@pytest.mark.parametrize("null, text", [(False, "undefined"), (True, "NULL")])
async def test_sql_insert_null(engine: FakeEngine, mariadb: MariaDb, null: bool, text: str) -> None:
    mariadb.query("create table t(v text, w text)")
    run(engine, mariadb)
    sql = "insert into t(v, w) values (${payload.none}, '<${payload.none}>')"
    await done(write(engine, sql, [{"payload": '{"a": 1}'}] * 2, sql_insert_null=null), 2)
    assert mariadb.query("select v, w from t limit 1") == [[text, "<undefined>"]]


@pytest.mark.asyncio
@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"])
async def test_text_never_becomes_part_of_a_statement(engine: FakeEngine, mariadb: MariaDb, mode: str) -> None:
    mariadb.query(f"create table t(v text, w text); set global sql_mode = '{mode}'")
    run(engine, mariadb)
    evil = "\\'); drop table t; -- \\"
    for sql in ("insert into t values (${v}, '${v}')", "insert into t select ${v}, concat('x', '${v}')"):
        await done(write(engine, sql, [{"v": evil}] * 2), 2)
    mariadb.query("set global sql_mode = default")
    assert mariadb.query("select hex(v), hex(w) from t") == [
        [evil.encode().hex().upper(), more.encode().hex().upper()] for more in (evil, evil, "x" + evil, "x" + evil)
    ]


@pytest.mark.asyncio
async def test_one_bad_row_of_a_batch_goes_aside_and_the_others_are_written(
    engine: FakeEngine, mariadb: MariaDb
) -> None:
    mariadb.query("create table t(id int auto_increment primary key, n int unique check (n <> 13))")
    made = run(engine, mariadb)
    rows: list[dict[str, Any]] = [{"n": n} for n in range(40)]
    rows[20] = {"n": 7}
    rows[30] = {"n": "x"}
    report = write(engine, "insert into t(n) values (${n})", rows, batch_time=200)
    await done(report, 40)
    assert sorted(str(each[1]) for each in report.failures) == ["{'n': 'x'}", "{'n': 13}", "{'n': 7}"]
    assert any("Duplicate entry '7'" in each[0] for each in report.failures)
    kept = [n for n in range(40) if n not in (13, 20, 30)]
    assert [int(each[0]) for each in mariadb.query("select n from t order by id")] == kept
    status = made.status.buffer
    assert (status.dead_letters, status.retried, status.dropped) == (3, 0, {"refused": 3})
    assert made.alive


@pytest.mark.asyncio
async def test_a_batch_that_is_larger_than_a_packet(engine: FakeEngine, mariadb: MariaDb) -> None:
    """It is divided; a row that is larger by itself goes aside."""
    mariadb.query("create table t(v longtext); set global max_allowed_packet = 65536")
    try:
        run(engine, mariadb)
        rows = [{"v": "x" * size} for size in (30_000, 30_000, 30_000, 70_000, 10)]
        report = write(engine, "insert into t values (${v})", rows, batch_time=100)
        await done(report, 5)
        assert [each[0][:40] for each in report.failures] == ["the row is larger than max_allowed_packe"]
        assert sorted(mariadb.query("select length(v) from t")) == [["10"], ["30000"], ["30000"], ["30000"]]
    finally:
        mariadb.query("set global max_allowed_packet = 16777216")


@pytest.mark.asyncio
@pytest.mark.parametrize("sql, expected", [
    ("insert into t(n, m) values (default, ${n})", [["0", "1"], ["0", "2"], ["0", "3"]]),
    ("replace into t(n, m) values (${n}, 5) returning n, m", [["1", "5"], ["2", "5"], ["3", "5"]]),
    ("insert into t values (1, ${n}) on duplicate key update m = ${n}", [["1", "3"]]),
    ("insert into t set n = ${n}, m = ${n} + 1", [["1", "2"], ["2", "3"], ["3", "4"]]),
    ("call store(${n}, 7)", [["1", "7"], ["2", "7"], ["3", "7"]]),
    ("insert into t(m) values (5)", [["0", "5"]] * 3),
])  # fmt: skip
async def test_statements(engine: FakeEngine, mariadb: MariaDb, sql: str, expected: list[list[str]]) -> None:
    key = "primary key" if "duplicate" in sql else ""
    mariadb.query(f"create table t(n int default 0 {key}, m int)")
    mariadb.query("create procedure store(a int, b int) insert into t values (a, b)")
    mariadb.query("grant execute on taipan.* to taipan@'127.0.0.1'")
    run(engine, mariadb)
    report = write(engine, sql, [{"n": n} for n in (1, 2, 3)], batch_time=100)
    await done(report, 3)
    assert report.failures == []
    assert mariadb.query("select * from t order by 1, 2") == expected


@pytest.mark.asyncio
async def test_one_by_one_a_batch_is_a_transaction(engine: FakeEngine, mariadb: MariaDb) -> None:
    """A refused row is found as in a batch of one statement, and none is written twice."""
    mariadb.query("create table t(id int auto_increment primary key, n int unique)")
    run(engine, mariadb)
    report = write(engine, "insert into t set n = ${n}", [{"n": n} for n in (1, 2, 3, 2, 4)], batch_time=100)
    await done(report, 5)
    assert [each[1] for each in report.failures] == [{"n": 2}]
    assert mariadb.query("select n from t order by id") == [["1"], ["2"], ["3"], ["4"]]


@pytest.mark.asyncio
async def test_a_table_that_is_missing_makes_no_other_rule_wait(engine: FakeEngine, mariadb: MariaDb) -> None:
    mariadb.query("create table t(n int)")
    made = run(engine, mariadb, pool_size=1)
    bad = write(engine, "insert into nowhere(n) values (${n})", [{"n": n} for n in range(20)])
    good = write(engine, "insert into t(n) values (${n})", [{"n": n} for n in range(20)])
    await done(good, 20)
    await done(bad, 20)
    assert good.successes == 20 and {"nowhere' doesn't exist" in each[0] for each in bad.failures} == {True}
    assert made.status.buffer.dead_letters == 20


@pytest.mark.asyncio
async def test_many_numbers_of_rows(engine: FakeEngine, mariadb: MariaDb) -> None:
    """More than a connection keeps prepared."""
    mariadb.query("create table t(n int)")
    run(engine, mariadb)
    for count in [*range(1, 21), 1, 2]:
        await done(write(engine, "insert into t values (${n})", [{"n": count}] * count, batch_time=20), count)
    assert mariadb.query("select count(*) from t") == [["213"]]
    assert int(mariadb.query("show global status like 'Prepared_stmt_count'")[0][1]) <= 16 * 2


@pytest.mark.asyncio
async def test_wrong_credentials(engine: FakeEngine, mariadb: MariaDb) -> None:
    mariadb.query("create table t(n int)")
    for wrong, reason in [
        ({"password": "wrong"}, "Access denied"), ({"user": "somebody"}, "Access denied"),
        ({"database": "nowhere"}, "nowhere"), ({"password": ""}, "Access denied"),
    ]:  # fmt: skip
        trial = engine.make(resource.TYPE, "trial", **{"server": mariadb.address, **login(mariadb), **wrong})
        with pytest.raises(ResourceError, match=reason) as refused:
            await trial.test()
        assert "wrong" not in str(refused.value)
        await trial.close()
    made = run(engine, mariadb)
    await until(lambda: made.alive)
    mariadb.query("alter user taipan@'127.0.0.1' identified by 'ünöther€'")
    try:
        mariadb.disconnect()
        write(engine, "insert into t(n) values (${n})", [{"n": 1}])
        await until(lambda: "Access denied" in made.status.reason)
        await made.close()
        run(engine, mariadb, password="ünöther€")
        await until(lambda: mariadb.query("select count(*) from t") == [["1"]])
    finally:
        mariadb.query(f"alter user taipan@'127.0.0.1' identified by '{mariadb.password}'")


@pytest.mark.asyncio
async def test_a_server_that_is_read_only_makes_rows_wait(engine: FakeEngine, mariadb: MariaDb) -> None:
    mariadb.query("create table t(n int)")
    made = run(engine, mariadb)
    mariadb.query("set global read_only = on")
    report = write(engine, "insert into t(n) values (${n})", [{"n": 1}])
    await until(lambda: "read-only" in made.status.buffer.last_error)
    assert report.count == 0
    mariadb.query("set global read_only = off")
    await done(report, 1)
    assert report.failures == []


@pytest.mark.asyncio
@pytest.mark.parametrize("reconnects", [True, False])
async def test_auto_reconnect(engine: FakeEngine, mariadb: MariaDb, reconnects: bool) -> None:
    mariadb.query("create table t(n int)")
    made = run(engine, mariadb, auto_reconnect=reconnects)
    sql = "insert into t(n) values (${n})"
    await done(write(engine, sql, [{"n": 1}]), 1)
    mariadb.restart()
    report = write(engine, sql, [{"n": 2}])
    if reconnects:
        await done(report, 1)
        return
    await until(lambda: "auto_reconnect" in made.status.reason)
    assert report.count == 0 and not made.alive
    await made.close()
    run(engine, mariadb, auto_reconnect=False)
    await until(lambda: mariadb.query("select count(*) from t") == [["2"]])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "params, most",
    [
        ({"batch_pool_size": 1}, 1),
        ({"batch_pool_size": 3}, 3),
        ({"enable_batch": False, "batch_pool_size": 1}, 8),
    ],
)
async def test_batch_pool_size_and_pool_size(
    engine: FakeEngine, mariadb: MariaDb, params: dict[str, Any], most: int
) -> None:
    mariadb.query("create table t(n int, who bigint)")
    run(engine, mariadb, pool_size=8)
    report = write(
        engine, "insert into t(n, who) values (${n}, connection_id())", [{"n": n, "c": n} for n in range(200)], **params
    )
    await done(report, 200)
    assert len(mariadb.query("select distinct who from t")) == most


@pytest.mark.asyncio
async def test_tls(engine: FakeEngine, mariadb: MariaDb, tmp_path: Path) -> None:
    secured = Certificates(tmp_path)
    authority = {"filename": "ca.pem", "file": Path(secured.ca).read_text()}
    tls: dict[str, Any] = {"server": mariadb.address, **login(mariadb), "ssl": True}

    async def reason(**config: Any) -> str:
        trial = engine.make(resource.TYPE, "trial", **{**tls, **config})
        try:
            await trial.test()
        except ResourceError as error:
            return str(error)
        finally:
            await trial.close()
        return ""

    assert "does not support TLS" in await reason()
    try:
        right = secured.issue("db.example")
        mariadb.tls(*right, secured.ca)
        mariadb.restart()
        assert await reason() == ""
        assert "CERTIFICATE_VERIFY_FAILED" in await reason(verify=True)
        assert "match" in await reason(verify=True, cacertfile=authority)
        assert await reason(verify=True, cacertfile=authority, server_name_indication="db.example") == ""
        assert await reason(verify=True, cacertfile=secured.ca, server_name_indication="disable") == ""
        # A client certificate.
        mariadb.query("alter user taipan@'127.0.0.1' require x509")
        assert "Access denied" in await reason()
        mine = secured.issue("client")
        files = {"certfile": mine[0], "keyfile": {"filename": "k", "file": Path(mine[1]).read_text()}}
        assert await reason(**files) == ""
        mariadb.query("alter user taipan@'127.0.0.1' require none")
        mariadb.tls(*secured.issue("late.example", expired=True), secured.ca)
        mariadb.restart()
        assert "expired" in await reason(verify=True, cacertfile=authority, server_name_indication="late.example")
    finally:
        mariadb.settings.clear()
        mariadb.restart()
        mariadb.query("alter user taipan@'127.0.0.1' require none")
