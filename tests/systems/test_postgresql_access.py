"""Users and rules in PostgreSQL: EMQX's shipped rows, hashes, names that would be SQL, and a server that hangs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.broker.access.remote_status import CONNECTED
from taipan.broker.access.sql_source import TOGETHER
from tests.broker.access.sources.postgresql import TABLES, server_of_tests
from tests.broker.access.sources.sql_tables import settings_of, sha256
from tests.broker.access.test_sources import client, control, decision, log_in
from tests.support.patience import patience

DECLARED = next(source for source in ACCESS_SOURCES if source.name == "postgresql")
SHIPPED = """
insert into mqtt_acl (id, allow, ipaddr, username, clientid, access, topic) values
    (1, 1, NULL, '$all', NULL, 2, '#'), (2, 0, NULL, '$all', NULL, 1, '$SYS/#'), (3, 0, NULL, '$all', NULL, 1, 'eq #'),
    (5, 1, '127.0.0.1', NULL, NULL, 2, '$SYS/#'), (6, 1, '127.0.0.1', NULL, NULL, 2, '#'),
    (7, 1, NULL, 'dashboard', NULL, 1, '$SYS/#');
"""


@asynccontextmanager
async def asked(rows: str = "", **settings: Any) -> AsyncIterator[AccessControl]:
    server = server_of_tests()
    server.query(TABLES + rows)
    access = control({"postgresql": settings_of(server, **settings)}, DECLARED)
    access.start()
    try:
        yield access
    finally:
        await access.stop()


@pytest.mark.asyncio
async def test_the_rows_that_emqx_ships() -> None:
    async with asked(SHIPPED) as access:
        for username, action, topic, allowed in (
            ("ann", "publish", "a/b", True), ("ann", "subscribe", "$SYS/#", False), ("ann", "subscribe", "#", False),
            ("dashboard", "subscribe", "$SYS/#", True), ("dashboard", "subscribe", "$SYS/x", True),
        ):  # fmt: skip
            who = client(username)
            who.proved_by = "postgresql"
            (told,) = await access.authorization.ask(who, action, [topic])
            assert told.allowed == allowed and not told.ignored, (username, topic)
        who = client("$ann")
        who.proved_by = "postgresql"
        assert (await decision(access, who, "a/b")).ignored


@pytest.mark.parametrize(
    "row", ["(1, 'ann', 4, 'a')", "(2, 'ann', 1, 'a')", "(1, 'ann', 1, 'a/#/b')", "(1, '', 1, 'a')"]
)
@pytest.mark.asyncio
async def test_a_row_that_is_no_rule(row: str) -> None:
    query = "select allow, ipaddr, username, clientid, access, topic from mqtt_acl where '%u' <> ''"
    async with asked(f"insert into mqtt_acl (allow, username, access, topic) values {row}", acl_query=query) as access:
        who = client()
        who.proved_by = "postgresql"
        told = await decision(access, who, "a")
        assert not told.allowed and not told.lasting


PBKDF2 = hashlib.pbkdf2_hmac("sha256", b"right", b"salt", 1000, 32).hex()


@pytest.mark.parametrize(
    "form, stored, salt",
    [
        ("plain", "right", ""),
        ("md5", hashlib.md5(b"right").hexdigest(), ""),
        ("salt,sha", hashlib.sha1(b"saltright").hexdigest(), "salt"),
        ("sha512,salt", hashlib.sha512(b"rightsalt").hexdigest(), "salt"),
        ("pbkdf2,sha256,1000,32", PBKDF2, "salt"),
        ("bcrypt", "$2b$04$abcdefghijklmnopqrstuu5AkDEHmCZTHmF6zXgXzZ3RCHpZzkqXe", ""),
    ],
)
@pytest.mark.asyncio
async def test_hashes(form: str, stored: str, salt: str) -> None:
    if form == "bcrypt":
        import bcrypt

        stored = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    query = "select password, salt from mqtt_user where username = '%u'"
    rows = f"insert into mqtt_user (username, password, salt) values ('ann', '{stored}', '{salt}')"
    async with asked(rows, password_hash=form, auth_query=query) as access:
        for _ in range(2):
            assert (await log_in(access, client(), b"right")).proved_by == "postgresql"
            wrong = await log_in(access, client(), b"wrong")
            assert (wrong.reason_code, wrong.setting) == (0x86, "access.postgresql.auth_query")


@pytest.mark.asyncio
async def test_superusers_and_names_that_would_be_sql() -> None:
    rows = f"insert into mqtt_user (is_superuser, username, password) values (true, 'ann', '{sha256('right')}')"
    query = "select is_superuser from mqtt_user where username = '%u'"
    async with asked(rows, super_query=query) as access:
        assert (await log_in(access, client(), b"right")).is_superuser
        for name in ("x' or '1'='1", "ann'--", "'; drop table mqtt_user; --", "$1", "%c"):
            assert (await log_in(access, client(name), b"right")).proved_by == ""
        assert (await log_in(access, client(), b"right")).reason_code == 0


@pytest.mark.asyncio
async def test_a_server_that_hangs_and_continues() -> None:
    """Nobody waits longer than ``timeout``, and nobody comes in."""
    rows = f"insert into mqtt_user (username, password) values ('ann', '{sha256('right')}')"
    async with asked(rows, timeout=0.3, connect_timeout=0.3) as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().pause()
        try:
            for _ in range(3):
                refused = await log_in(access, client(), b"right")
                assert (refused.reason_code, refused.detail) == (0x88, "postgresql_timeout")
        finally:
            server_of_tests().resume()
        server_of_tests().query("select 1")
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().disconnect()
        refused = await log_in(access, client(), b"right")
        assert (await log_in(access, client(), b"right")).reason_code == 0


@pytest.mark.asyncio
async def test_a_wrong_password_of_the_database_and_a_query_that_is_none() -> None:
    rows = f"insert into mqtt_user (username, password) values ('ann', '{sha256('right')}')"
    async with asked(rows, password="other") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "postgresql_no_connection")
    async with asked(rows, auth_query="select passwd from mqtt_user where username = '%u'") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "postgresql_query")
    async with asked(rows, password="other", on_failure="ignore") as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0x86


@pytest.mark.asyncio
async def test_ten_thousand_clients_at_once() -> None:
    """None is refused because of the others: they wait longer than ``timeout`` for their turn."""
    rows = (
        "create unique index on mqtt_user (username); insert into mqtt_user (username, password) "
        "select 'u' || n, encode(sha256(('p' || n)::bytea), 'hex') from generate_series(1, 10000) n;"
    )
    async with asked(rows, timeout=patience(1), wait_timeout=patience(60)) as access:
        logins = [log_in(access, client(f"u{n}"), f"p{n}".encode()) for n in range(1, 10_001)]
        told = await asyncio.gather(*logins)
        assert {(outcome.reason_code, outcome.detail) for outcome in told} == {(0, "")}


AT_ONCE = 40
NAMES = (
    "create unique index on mqtt_user (username); insert into mqtt_user (username, password) "
    f"select 'u' || n, encode(sha256(('p' || n)::bytea), 'hex') from generate_series(1, {AT_ONCE}) n;"
)


async def _log_in_at_once(access: AccessControl, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], int]:
    """Return the outcomes of logins with the right password, of the first client with another one, and of an unknown
    user, and how many statements were sent."""
    source: Any = access.sources["postgresql"]
    async with asyncio.timeout(patience(40)):
        while source.status.word != CONNECTED:
            await asyncio.sleep(0.01)
    sent: list[str] = []
    fetched = source._fetched

    async def counted(connection: Any, statement: str, bound: list[Any]) -> Any:
        sent.append(statement)
        return await fetched(connection, statement, bound)

    monkeypatch.setattr(source, "_fetched", counted)
    everyone = [(f"u{n}", f"p{n}") for n in range(1, AT_ONCE + 1)]
    logins = [log_in(access, client(name), password.encode()) for name, password in everyone]
    wrong = [log_in(access, client("u1"), b"wrong"), log_in(access, client("nobody"), b"p1")]
    return await asyncio.gather(*logins, *wrong), len(sent)


@pytest.mark.asyncio
async def test_clients_that_wait_are_asked_about_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everybody has the answer about itself."""
    async with asked(NAMES, pool_size=1) as access:
        told, sent = await _log_in_at_once(access, monkeypatch)
        assert [(each.reason_code, each.proved_by) for each in told[:-2]] == [(0, "postgresql")] * AT_ONCE
        assert told[-2].reason_code == 0x86 and told[-1].proved_by == ""
        assert sent == 1 + -(-(AT_ONCE + 1) // TOGETHER)


@pytest.mark.asyncio
async def test_rules_asked_about_together() -> None:
    """Each client has its own rows, in the order of the query."""
    insert = "insert into mqtt_acl (allow, username, access, topic)"
    rows = f"{insert} select n % 2, 'u' || n, 3, 'a' from generate_series(1, 40) n;"
    again = rows.replace("n % 2", "1 - n % 2")
    query = (
        "select allow, ipaddr, username, clientid, access, topic from mqtt_acl where username = '%u' order by id desc"
    )
    for acl_query, decides in ((query, 1), (query.removesuffix(" desc"), 0)):
        async with asked(rows + again, pool_size=1, acl_query=acl_query) as access:
            everyone = [client(f"u{n}") for n in range(1, 41)]
            for who in everyone:
                who.proved_by = "postgresql"
            told = await asyncio.gather(*(decision(access, who, "a") for who in everyone))
            assert [each.allowed for each in told] == [n % 2 == decides for n in range(1, 41)]


@pytest.mark.asyncio
async def test_a_value_that_the_query_fails_for_concerns_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    query = "select password from mqtt_user where username = '%u' and 1 / (case '%u' when 'u7' then 0 else 1 end) = 1"
    async with asked(NAMES, pool_size=1, auth_query=query) as access:
        told, _ = await _log_in_at_once(access, monkeypatch)
        assert [(number, each.detail) for number, each in enumerate(told[:-2], 1) if each.reason_code] == [
            (7, "postgresql_query")
        ]


CHANGES_ROWS = (
    "with seen as (update mqtt_user set is_superuser = is_superuser where username = '%u' returning password) "
    "select password from seen"
)
OF_ANOTHER_TYPE = "select password from mqtt_user where username = '%u'::cidr::text or username = '%u'"


@pytest.mark.parametrize("query", [CHANGES_ROWS, OF_ANOTHER_TYPE], ids=["changes rows", "another type"])
@pytest.mark.asyncio
async def test_a_query_that_cannot_be_asked_together(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asked(NAMES, pool_size=2, auth_query=query) as access:
        source: Any = access.sources["postgresql"]
        (told, sent) = await _log_in_at_once(access, monkeypatch)
        assert source._batches.largest == 1 and sent == AT_ONCE + 2
        if query == CHANGES_ROWS:
            assert [each.reason_code for each in told[:-2]] == [0] * AT_ONCE


@pytest.mark.asyncio
async def test_the_first_connection_is_open_before_a_client_comes() -> None:
    rows = f"insert into mqtt_user (username, password) values ('ann', '{sha256('right')}')"
    async with asked(rows) as access:
        source: Any = access.sources["postgresql"]
        async with asyncio.timeout(patience(40)):
            while source.status.word != CONNECTED:
                await asyncio.sleep(0.01)
        (opened,) = _connections()
        assert (await log_in(access, client(), b"right")).reason_code == 0
        assert _connections() == [opened]
    async with asyncio.timeout(patience(40)):
        while _connections():
            await asyncio.sleep(0.01)


def _connections() -> list[list[str]]:
    return server_of_tests().query("select pid from pg_stat_activity where application_name = 'taipan'")
