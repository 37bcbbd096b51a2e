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
