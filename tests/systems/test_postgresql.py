"""Rows into PostgreSQL, with a real server."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.postgresql import action, resource
from tests.ruleengine.sinks.contract import *  # noqa: F403
from tests.ruleengine.sinks.other_sides import OtherSide
from tests.support.certificates import Certificates
from tests.support.fake_engine import FakeEngine, FakeReport, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System, killed_and_restarted
from tests.systems.servers.postgresql import Postgresql

TYPES = {each.name: each for each in resource.RESOURCES}
ACTIONS = {each.name: each for each in action.ACTIONS}
PGSQL = TYPES["backend_pgsql"]
TO_PGSQL = ACTIONS["data_to_pgsql"]
_numbers = itertools.count(1)


class PostgresqlSide(OtherSide):
    action: ClassVar = "data_to_pgsql"
    params: ClassVar = {"sql": "insert into rows(n) values (${n})", "batch_size": 7}
    address = "server"
    server: Postgresql

    def __init__(self) -> None:
        self.port = self.server.port
        self.server.stop()

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), **login(self.server)}

    async def start(self) -> None:
        self.server.start()
        self.server.query("create table if not exists rows(id serial, n int); grant all on rows, rows_id_seq to taipan")

    async def stop(self) -> None:
        self.server.stop()

    def taken(self) -> list[int]:
        return (
            [int(each[0]) for each in self.server.query("select n from rows order by id")] if self.server.runs else []
        )


class TimescaleSide(PostgresqlSide):
    action = "data_to_timescale"


class TimescaledbSide(PostgresqlSide):
    action = "data_to_timescaledb"


class MatrixSide(PostgresqlSide):
    action = "data_to_matrix"


def login(server: Postgresql) -> dict[str, Any]:
    return {"username": server.user, "password": server.password, "database": server.database}


@pytest.fixture(scope="module")
def sides(postgresql_process: Postgresql) -> dict[str, type[OtherSide]]:
    PostgresqlSide.server = postgresql_process
    return {
        "backend_pgsql": PostgresqlSide,
        "backend_timescale": TimescaleSide,
        "timescaledb": TimescaledbSide,
        "backend_matrix": MatrixSide,
    }


@pytest.fixture
def kind(postgresql: Postgresql) -> str:
    return "backend_pgsql"


@pytest_asyncio.fixture
async def engine() -> Any:
    made = FakeEngine()
    yield made
    await made.close()


def run(engine: FakeEngine, server: Postgresql, **config: Any) -> Any:
    return engine.run(PGSQL, **{"server": server.address, **login(server), "pool_size": 2, **config})


def write(engine: FakeEngine, sql: str, rows: list[dict[str, Any]], **params: Any) -> FakeReport:
    report = FakeReport()
    act = engine.action(TO_PGSQL, f"action_{next(_numbers)}", report, sql=sql, **params)
    for each in rows:
        act.run(each, published(client_id=str(each.get("c", "c1"))))
    return report


class PostgresqlSystem(System):
    resource, action = PGSQL, TO_PGSQL
    server: Postgresql

    def config(self) -> dict[str, Any]:
        return {"server": self.server.address, **login(self.server), "pool_size": 4}

    def params(self) -> dict[str, Any]:
        return {"sql": "insert into t(c, n) values (${c}, ${n})", "batch_size": 20}

    login_refused = "password authentication failed"
    bad_reason = "invalid input"

    def set_password(self, password: str) -> None:
        self.server.query(f"alter role taipan password '{password}'")
        self.server.disconnect()

    async def certify(self, certificate: str, key: str) -> dict[str, Any]:
        self.server.tls(certificate, key)
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
def system(postgresql: Postgresql) -> System:
    postgresql.query("create table t(id serial, c text, n int); grant all on t, t_id_seq to taipan")
    return PostgresqlSystem(postgresql)


async def done(report: FakeReport, count: int) -> None:
    await until(lambda: report.count >= count)
    assert report.count == count


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "kind, act",
    [
        ("backend_timescale", "data_to_timescale"),
        ("timescaledb", "data_to_timescaledb"),
        ("backend_matrix", "data_to_matrix"),
    ],
)
async def test_the_relatives_of_postgresql(engine: FakeEngine, postgresql: Postgresql, kind: str, act: str) -> None:
    postgresql.query("create table t(n int); grant all on t to taipan")
    engine.run(TYPES[kind], server=postgresql.address, **login(postgresql))
    report = FakeReport()
    assert kind in ACTIONS[act].resource_types
    engine.action(ACTIONS[act], report=report, sql="insert into t values (${n})").run({"n": 5}, published())
    await done(report, 1)
    assert postgresql.query("select n from t") == [["5"]]


@pytest.mark.asyncio
async def test_the_example_of_emqx(engine: FakeEngine, postgresql: Postgresql) -> None:
    """Casts, expressions and RETURNING of its documentation; a batch is one statement."""
    postgresql.query(
        "create table t_mqtt_msg(id serial primary key, msgid varchar(64), topic varchar(255), qos smallint,"
        " payload text, arrived timestamp without time zone, tx bigint default txid_current());"
        "grant all on t_mqtt_msg, t_mqtt_msg_id_seq to taipan"
    )
    run(engine, postgresql)
    sql = (
        "insert into t_mqtt_msg(msgid, topic, qos, payload, arrived) values (${id}, ${topic}, ${qos}, ${payload}, "
        "to_timestamp(${timestamp}::double precision /1000)) returning id"
    )
    rows = [
        {
            "id": f"m{n}",
            "topic": "t/1",
            "qos": 1,
            "payload": f'it\'s {n}; "é" \\ ${{x}}',
            "timestamp": 1_700_000_000_123,
        }
        for n in range(50)
    ]
    report = write(engine, sql, rows, batch_time=200)
    await done(report, 50)
    assert report.successes == 50
    stored = postgresql.query("select msgid, topic, qos, payload, arrived, tx from t_mqtt_msg order by id")
    assert [each[:4] for each in stored] == [[each["id"], "t/1", "1", each["payload"]] for each in rows]
    assert stored[0][4].startswith("2023-11-14 22:13:20.123")
    assert len({each[5] for each in stored}) == 1


VALUES = [
    ("integer", 7, "7"),
    ("integer", "7", "7"),
    ("integer", 7.0, "7"),
    ("smallint", True, "1"),
    ("bigint", -(2**63), str(-(2**63))),
    ("numeric", 2**70, str(2**70)),
    ("numeric", 0.1, "0.1"),
    ("double precision", "1.5", "1.5"),
    ("double precision", 1e300, "1e+300"),
    ("real", 3, "3"),
    ("boolean", True, "true"),
    ("boolean", "false", "false"),
    ("boolean", 1, "true"),
    ("text", 1, "1"),
    ("text", 1.5, "1.5"),
    ("text", False, "false"),
    ("text", {"a": [1, "x"]}, '{"a":[1,"x"]}'),
    ("text", None, ""),
    ("varchar(3)", "abc", "abc"),
    ("char(3)", "a", "a"),
    ("jsonb", {"a": 1}, '{"a": 1}'),
    ("json", [1, 2], "[1,2]"),
    ("jsonb", '{"b": null}', '{"b": null}'),
    ("integer[]", [1, 2], "{1,2}"),
    ("text[]", ["a,b", 'c"d\\', None], '{"a,b","c\\"d\\\\",NULL}'),
    ("integer[]", [[1], [2]], "{{1},{2}}"),
    ("timestamptz", "2024-01-02T03:04:05Z", "2024-01-02 03:04:05+00"),
    ("date", "2024-01-02", "2024-01-02"),
    ("uuid", "6f1b8f9e-0000-4000-8000-00000000000a", "6f1b8f9e-0000-4000-8000-00000000000a"),
    ("inet", "10.0.0.1", "10.0.0.1/32"),
    ("bytea", b"\xff\\\x00", "\\xff5c00"),
    ("bytea", "\\a", "\\x5c61"),
    ("interval", "2 hours", "02:00:00"),
    ("mood", "glad", "glad"),
    ("few", 5, "5"),
    ("bit(3)", "101", "101"),
    ('"Odd "" name"', "x", "x"),
]
REFUSED = [
    ("integer", "abc", 'invalid input syntax for type integer: "abc"'),
    ("integer", 1.5, "invalid input syntax"),
    ("integer", 2**40, "out of range"),
    ("varchar(3)", "abcd", "value too long"),
    ("text", b"\xff", "binary of 1 bytes is not UTF-8"),
    ("text", "a\0b", "0x00"),
    ("timestamptz", 1_700_000_000_123, "out of range"),
    ("jsonb", "no json", "json"),
    ("mood", "blue", "mood"),
    ("few", 12, "few"),
    ("integer[]", "x", "malformed array"),
]


@pytest.mark.asyncio
async def test_values_become_those_of_the_columns(engine: FakeEngine, postgresql: Postgresql) -> None:
    """One by one, and in a batch; those that cannot are refused in PostgreSQL's words."""
    postgresql.query(
        "create type mood as enum ('glad'); create domain few as int check (value < 10);"
        'create domain "Odd "" name" as text;'
        + "".join(f"create table c{n}(v {kind});" for n, (kind, _, _) in enumerate(VALUES))
        + "".join(f"create table r{n}(v {kind});" for n, (kind, _, _) in enumerate(REFUSED))
        + "grant all on all tables in schema public to taipan"
    )
    run(engine, postgresql)
    reports = [
        write(engine, f"insert into c{n}(v) values (${{v}})", [{"v": value}] * 3, batch_size=2)
        for n, (_, value, _) in enumerate(VALUES)
    ]
    for each, (kind, value, _) in zip(reports, VALUES, strict=True):
        await done(each, 3)
        assert each.failures == [], (kind, value)
    found = postgresql.query(
        " union all ".join(f"select {n}, v::text from c{n}" for n in range(len(VALUES))) + " order by 1"
    )
    assert found == [[str(n), text] for n, (_, _, text) in enumerate(VALUES) for _ in range(3)]
    for number, (kind, value, reason) in enumerate(REFUSED):
        report = write(engine, f"insert into r{number}(v) values (${{v}})", [{"v": value}] * 2)
        await done(report, 2)
        assert [reason in each[0] for each in report.failures] == [True] * 2, (kind, value, report.failures)


@pytest.mark.asyncio
@pytest.mark.parametrize("null, text", [(False, "undefined"), (True, "NULL")])
async def test_sql_insert_null(engine: FakeEngine, postgresql: Postgresql, null: bool, text: str) -> None:
    postgresql.query("create table t(v text, w text); grant all on t to taipan")
    run(engine, postgresql)
    sql = "insert into t(v, w) values (${payload.none}, '<${payload.none}>')"
    await done(write(engine, sql, [{"payload": '{"a": 1}'}] * 2, sql_insert_null=null), 2)
    assert postgresql.query("select coalesce(v, 'NULL'), w from t limit 1") == [[text, "<undefined>"]]


@pytest.mark.asyncio
async def test_text_never_becomes_part_of_a_statement(engine: FakeEngine, postgresql: Postgresql) -> None:
    postgresql.query("create table t(v text, w text); grant all on t to taipan")
    run(engine, postgresql)
    evil = "'); drop table t; --"
    for sql in ("insert into t values (${v}, '${v}')", "insert into t select ${v}::text, 'x' || '${v}'"):
        await done(write(engine, sql, [{"v": evil}] * 2), 2)
    assert postgresql.query("select * from t") == [[evil, evil]] * 2 + [[evil, "x" + evil]] * 2


@pytest.mark.asyncio
async def test_one_bad_row_of_a_batch_goes_aside_and_the_others_are_written(
    engine: FakeEngine, postgresql: Postgresql
) -> None:
    postgresql.query("create table t(id serial, n int unique check (n <> 13)); grant all on t, t_id_seq to taipan")
    made = run(engine, postgresql)
    rows: list[dict[str, Any]] = [{"n": n} for n in range(40)]
    rows[20] = {"n": 7}
    rows[30] = {"n": "x"}
    report = write(engine, "insert into t(n) values (${n})", rows, batch_time=200)
    await done(report, 40)
    assert sorted(str(each[1]) for each in report.failures) == ["{'n': 'x'}", "{'n': 13}", "{'n': 7}"]
    assert any("(n)=(7) already exists" in each[0] for each in report.failures)
    kept = [n for n in range(40) if n not in (13, 20, 30)]
    assert [int(each[0]) for each in postgresql.query("select n from t order by id")] == kept
    status = made.status.buffer
    assert (status.dead_letters, status.set_aside, status.retried, status.dropped) == (3, 3, 0, {"refused": 3})
    assert made.alive


@pytest.mark.asyncio
async def test_an_upsert_of_one_key_twice_in_a_batch(engine: FakeEngine, postgresql: Postgresql) -> None:
    """One statement cannot change a row twice; the last value stays."""
    postgresql.query("create table t(k text primary key, n int); grant all on t to taipan")
    run(engine, postgresql)
    sql = "insert into t(k, n) values (${k}, ${n}) on conflict (k) do update set n = excluded.n"
    report = write(engine, sql, [{"k": f"k{n % 3}", "n": n} for n in range(30)], batch_time=200)
    await done(report, 30)
    assert report.failures == []
    assert postgresql.query("select * from t order by k") == [["k0", "27"], ["k1", "28"], ["k2", "29"]]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "sql, expected",
    [
        ("insert into t(n, m) values (default, ${n})", [["0", "1"], ["0", "2"], ["0", "3"]]),
        (
            "insert into t(n, m) values (${n}, 1), (${n}, 2)",
            [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"], ["3", "1"], ["3", "2"]],
        ),
        ("insert into t(m) values (5)", [["0", "5"]] * 3),
        ("insert into t(n, m) values (1, ${n}) on conflict (n) do update set m = ${n}", [["1", "3"]]),
        (
            "with x as (select ${n}::int as n) insert into t(n, m) select n, n * 2 from x",
            [["1", "2"], ["2", "4"], ["3", "6"]],
        ),
        ("select add(${n}, '1')", [["1", "1"], ["2", "1"], ["3", "1"]]),
    ],
)
async def test_statements_that_take_one_row_each(
    engine: FakeEngine, postgresql: Postgresql, sql: str, expected: list[list[str]]
) -> None:
    key = "primary key" if "conflict" in sql else ""
    postgresql.query(
        f"create table t(n int default 0 {key}, m int);"
        "create function add(a int, b int) returns void language sql as 'insert into t values (a, b)';"
        "grant all on t to taipan"
    )
    run(engine, postgresql)
    report = write(engine, sql, [{"n": n} for n in (1, 2, 3)], batch_time=100)
    await done(report, 3)
    assert report.failures == []
    assert postgresql.query("select * from t order by 1, 2") == expected


@pytest.mark.asyncio
async def test_a_table_that_is_missing_makes_no_other_rule_wait(engine: FakeEngine, postgresql: Postgresql) -> None:
    postgresql.query("create table t(n int); grant all on t to taipan")
    made = run(engine, postgresql, pool_size=1)
    bad = write(engine, "insert into nowhere(n) values (${n})", [{"n": n} for n in range(20)])
    good = write(engine, "insert into t(n) values (${n})", [{"n": n} for n in range(20)])
    await done(good, 20)
    await done(bad, 20)
    assert good.successes == 20 and {each[0] for each in bad.failures} == {'relation "nowhere" does not exist'}
    letters = engine.buffers.dead_letters.of("resource:1").values()
    assert made.status.buffer.dead_letters == 20 and {each.buffered.client_id for each in letters} == {"c1"}
    # Sent again once the table is there, as an operator does.
    postgresql.query("create table nowhere(n int); grant all on nowhere to taipan")
    for number in list(engine.buffers.dead_letters.of("resource:1")):
        made.buffer.send_again(number)
    await until(lambda: postgresql.query("select count(*) from nowhere") == [["20"]])


@pytest.mark.asyncio
async def test_a_table_that_changes_under_a_prepared_statement(engine: FakeEngine, postgresql: Postgresql) -> None:
    postgresql.query("create table t(n int); grant all on t to taipan")
    run(engine, postgresql)
    sql = "insert into t(n) values (${n}) returning *"
    await done(write(engine, sql, [{"n": 1}, {"n": 2}]), 2)
    postgresql.query("alter table t alter n type text, add more int default 5")
    report = write(engine, sql, [{"n": "x"}, {"n": "y"}])
    await done(report, 2)
    assert report.failures == []
    assert postgresql.query("select n, more from t") == [["1", "5"], ["2", "5"], ["x", "5"], ["y", "5"]]


@pytest.mark.asyncio
async def test_wrong_credentials(engine: FakeEngine, postgresql: Postgresql) -> None:
    postgresql.query("create table t(n int); grant all on t to taipan")
    for wrong, reason in [
        ({"password": "wrong"}, "password authentication failed"),
        ({"username": "nobody"}, "password authentication failed"),
        ({"database": "nowhere"}, "does not exist"), ({"password": ""}, "password"),
    ]:  # fmt: skip
        trial = engine.make(PGSQL, "trial", **{"server": postgresql.address, **login(postgresql), **wrong})
        with pytest.raises(ResourceError, match=reason) as refused:
            await trial.test()
        assert "wrong" not in str(refused.value)
        await trial.close()


@pytest.mark.asyncio
async def test_a_server_that_is_read_only_or_full_of_connections_makes_rows_wait(
    engine: FakeEngine, postgresql: Postgresql
) -> None:
    postgresql.query("create table t(n int); grant all on t to taipan")
    made = run(engine, postgresql)
    for setting, value, undo in [
        ("default_transaction_read_only", "on", "off"), ("connection limit", "0", "-1"),
    ]:  # fmt: skip
        limit = setting == "connection limit"
        postgresql.query(
            f"alter role taipan {setting} {value}" if limit else f"alter role taipan set {setting} = {value}"
        )
        postgresql.disconnect()
        report = write(engine, "insert into t(n) values (${n})", [{"n": 1}])
        await until(lambda: made.status.buffer.last_error != "")
        assert report.count == 0
        postgresql.query(
            f"alter role taipan {setting} {undo}" if limit else f"alter role taipan set {setting} = {undo}"
        )
        postgresql.disconnect()
        await done(report, 1)
        assert report.failures == []


@pytest.mark.asyncio
@pytest.mark.parametrize("reconnects", [True, False])
async def test_auto_reconnect(engine: FakeEngine, postgresql: Postgresql, reconnects: bool) -> None:
    postgresql.query("create table t(n int); grant all on t to taipan")
    made = run(engine, postgresql, auto_reconnect=reconnects)
    sql = "insert into t(n) values (${n})"
    await done(write(engine, sql, [{"n": 1}]), 1)
    postgresql.restart()
    report = write(engine, sql, [{"n": 2}])
    if reconnects:
        await done(report, 1)
        return
    await until(lambda: "auto_reconnect" in made.status.reason)
    assert report.count == 0 and not made.alive
    await made.close()
    run(engine, postgresql, auto_reconnect=False)
    await until(lambda: postgresql.query("select count(*) from t") == [["2"]])


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
    engine: FakeEngine, postgresql: Postgresql, params: dict[str, Any], most: int
) -> None:
    postgresql.query("create table t(n int, who int default pg_backend_pid()); grant all on t to taipan")
    run(engine, postgresql, pool_size=8)
    report = write(engine, "insert into t(n) values (${n})", [{"n": n, "c": n} for n in range(200)], **params)
    await done(report, 200)
    assert len(postgresql.query("select distinct who from t")) == most


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.asyncio
async def test_tls(engine: FakeEngine, postgresql: Postgresql, secured: Certificates) -> None:
    postgresql.query(
        "create function secure() returns bool language sql as "
        "'select ssl from pg_stat_ssl where pid = pg_backend_pid()';"
        "create table t(n int, tls bool default secure()); grant all on t to taipan"
    )
    authority = {"filename": "ca.pem", "file": Path(secured.ca).read_text()}
    tls: dict[str, Any] = {"server": postgresql.address, **login(postgresql), "ssl": True}

    async def reason(**config: Any) -> str:
        trial = engine.make(PGSQL, "trial", **{**tls, **config})
        try:
            await trial.test()
        except ResourceError as error:
            return str(error)
        finally:
            await trial.close()
        return ""

    assert "rejected SSL upgrade" in await reason()
    try:
        right = secured.issue("db.example")
        postgresql.tls(*right)
        postgresql.restart()
        assert await reason() == ""
        assert "CERTIFICATE_VERIFY_FAILED" in await reason(verify=True)
        name = "server_name_indication"
        assert "match" in await reason(verify=True, cacertfile=authority)
        assert await reason(verify=True, cacertfile=authority, **{name: "db.example"}) == ""
        assert await reason(verify=True, cacertfile=secured.ca, **{name: "disable"}) == ""
        assert "match" in await reason(verify=True, cacertfile=authority, **{name: "other.example"})
        run(engine, postgresql, ssl=True, verify=True, cacertfile=authority, server_name_indication="db.example")
        await done(write(engine, "insert into t(n) values (${n})", [{"n": 1}]), 1)
        assert postgresql.query("select tls from t") == [["t"]]
        late = secured.issue("late.example", expired=True)
        postgresql.tls(*late)
        postgresql.reload()
        await until_expired(reason, authority)
        # A client certificate.
        postgresql.tls(*right)
        postgresql.settings["ssl_ca_file"] = f"'{postgresql.give('ca.pem', secured.ca)}'"
        postgresql.access("hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca")
        postgresql.restart()
        assert "certificate" in await reason()
        mine = secured.issue("client")
        files = {"certfile": mine[0], "keyfile": {"filename": "k", "file": Path(mine[1]).read_text()}}
        assert await reason(**files) == ""
    finally:
        postgresql.settings.clear()
        postgresql.access("scram-sha-256")
        postgresql.restart()


async def until_expired(reason: Any, authority: Any) -> None:
    for _ in range(100):
        said = await reason(verify=True, cacertfile=authority, server_name_indication="late.example")
        if "expired" in said:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(said)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "key, config",
    [
        ("server", {"server": "a b:1"}),
        ("server", {"server": "h:0"}),
        ("server", {"server": "h:x"}),
        ("server", {"server": "u@h:1"}),
        ("server", {"server": ""}),
        ("database", {"database": "a\0"}),
        ("database", {"database": None}),
        ("pool_size", {"pool_size": 0}),
        ("connect_timeout", {"connect_timeout": "soon"}),
        ("request_timeout", {"request_timeout": "0s"}),
        ("cacertfile", {"ssl": True, "cacertfile": "/nowhere"}),
        ("certfile", {"ssl": True, "keyfile": "/nowhere", "certfile": "/nowhere"}),
    ],
)
async def test_a_configuration_that_cannot_be_is_refused(engine: FakeEngine, key: str, config: dict[str, Any]) -> None:
    right = {"server": "127.0.0.1:1", "database": "d", "username": "u", "password": "p"}
    engine.make(PGSQL, "trial", **right, auto_reconnect=True)
    given = {name: value for name, value in {**right, **config}.items() if value is not None}
    with pytest.raises(ParamError) as refused:
        engine.make(PGSQL, "trial", **given)
    assert refused.value.key == key


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "key, params",
    [
        ("sql", {}),
        ("sql", {"sql": "a; b"}),
        ("batch_size", {"sql": "x", "batch_size": 0}),
        ("batch_size", {"sql": "x", "batch_size": 1.5}),
        ("batch_pool_size", {"sql": "x", "batch_pool_size": 0}),
        ("insert_mode", {"sql": "x", "insert_mode": "later"}),
        ("sync_timeout", {"sql": "x", "sync_timeout": 0.5}),
        ("batch_time", {"sql": "x", "batch_time": -1}),
    ],
)
async def test_an_action_that_cannot_be_is_refused(engine: FakeEngine, key: str, params: dict[str, Any]) -> None:
    with pytest.raises(ParamError) as refused:
        engine.action(TO_PGSQL, **params)
    assert refused.value.key == key
