"""PostgreSQL, as a process."""

import atexit
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tests.systems.servers.postgresql import Postgresql

from . import Setup

TABLES = """
drop table if exists mqtt_user, mqtt_acl;
create table mqtt_user (id serial primary key, is_superuser boolean, username varchar(100), password varchar(200),
    salt varchar(40));
create table mqtt_acl (id serial primary key, allow integer, ipaddr varchar(60), username varchar(100),
    clientid varchar(100), access integer, topic varchar(100));
grant all on mqtt_user, mqtt_acl to taipan;
"""


def sha256(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


@cache
def server_of_tests() -> Postgresql:
    """One for all tests of a process: a start takes seconds."""
    server = Postgresql()
    atexit.register(server.close)
    server.start()
    return server


def settings_of(server: Postgresql, **more: Any) -> dict[str, Any]:
    return {
        "server": server.address, "username": server.user, "password": server.password, "database": server.database,
        "superuser_query": "", **more,
    }  # fmt: skip


@asynccontextmanager
async def set_up() -> AsyncIterator[Setup]:
    server = server_of_tests()
    try:
        if not server.runs:
            server.start()
        server.query(
            f"{TABLES} insert into mqtt_user (username, password) values ('ann', '{sha256('right')}');"
            "insert into mqtt_acl (allow, username, access, topic) values (1, 'ann', 3, 'open'), (0, 'ann', 3, 'shut')"
        )

        async def away() -> None:
            server.kill()

        async def back() -> None:
            server.start()

        yield Setup(settings={"postgresql": settings_of(server)}, reads_filters=True, away=away, back=back)
    finally:
        if not server.runs:
            server.start()
