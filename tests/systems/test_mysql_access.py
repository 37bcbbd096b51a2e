"""Users and rules in MariaDB: columns by name, names that would be SQL, a server that hangs, and a wrong password."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES
from tests.broker.access.sources.mysql import TABLES, server_of_tests
from tests.broker.access.sources.sql_tables import settings_of, sha256
from tests.broker.access.test_sources import client, control, log_in

from .test_postgresql_access import SHIPPED

DECLARED = next(source for source in ACCESS_SOURCES if source.name == "mysql")
ANN = f"insert into mqtt_user (username, password, is_superuser) values ('ann', '{sha256('right')}', 1);"


@asynccontextmanager
async def asked(rows: str = ANN, **settings: Any) -> AsyncIterator[AccessControl]:
    server = server_of_tests()
    server.query(TABLES + rows)
    access = control({"mysql": settings_of(server, **settings)}, DECLARED)
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
            ("dashboard", "subscribe", "$SYS/#", True),
        ):  # fmt: skip
            who = client(username)
            who.proved_by = "mysql"
            (told,) = await access.authorization.ask(who, action, [topic])
            assert told.allowed == allowed and not told.ignored, (username, topic)


@pytest.mark.asyncio
async def test_columns_are_found_by_name() -> None:
    stored = hashlib.sha256(b"saltright").hexdigest()
    rows = f"insert into mqtt_user (username, password, salt) values ('ann', '{stored}', 'salt');"
    query = "select salt, password from mqtt_user where username = '%u'"
    async with asked(rows, auth_query=query, password_hash="salt,sha256") as access:
        assert (await log_in(access, client(), b"right")).proved_by == "mysql"
        assert (await log_in(access, client(), b"wrong")).reason_code == 0x86


@pytest.mark.asyncio
async def test_superusers_and_names_that_would_be_sql() -> None:
    query = "select is_superuser from mqtt_user where username = '%u'"
    async with asked(super_query=query) as access:
        assert (await log_in(access, client(), b"right")).is_superuser
        for name in ("x' or '1'='1", "ann'-- ", "\\' or 1=1 -- ", '"; drop table mqtt_user; --', "%s", "é"):
            assert (await log_in(access, client(name), b"right")).proved_by == ""
        assert (await log_in(access, client(), b"right")).reason_code == 0


@pytest.mark.asyncio
async def test_a_server_that_hangs_and_connections_that_it_ends() -> None:
    async with asked(timeout=0.5, connect_timeout=0.5) as access:
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().pause()
        try:
            refused = await log_in(access, client(), b"right")
            assert (refused.reason_code, refused.detail) == (0x88, "mysql_timeout")
        finally:
            server_of_tests().resume()
        server_of_tests().query("select 1")
        assert (await log_in(access, client(), b"right")).reason_code == 0
        server_of_tests().disconnect()
        assert (await log_in(access, client(), b"right")).reason_code == 0


@pytest.mark.asyncio
async def test_a_wrong_password_of_the_database_and_a_query_that_is_none() -> None:
    async with asked(password="other") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "mysql_no_connection")
    async with asked(auth_query="select passwd from mqtt_user where username = '%u'") as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "mysql_query")


@pytest.mark.asyncio
async def test_without_tls_of_the_server_no_password_is_sent() -> None:
    async with asked(tls=True, tls_verify=False) as access:
        refused = await log_in(access, client(), b"right")
        assert (refused.reason_code, refused.detail) == (0x88, "mysql_no_connection")
