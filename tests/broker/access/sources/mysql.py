"""MariaDB, as a process."""

import atexit
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tests.systems.servers.mariadb import MariaDb

from . import Setup
from .postgresql import sha256

TABLES = """
drop table if exists mqtt_user, mqtt_acl;
create table mqtt_user (id int auto_increment primary key, username varchar(100) unique, password varchar(200),
    salt varchar(40), is_superuser tinyint(1) default 0);
create table mqtt_acl (id int auto_increment primary key, allow int, ipaddr varchar(60), username varchar(100),
    clientid varchar(100), access int, topic varchar(100));
"""


@cache
def server_of_tests() -> MariaDb:
    """One for all tests of a process: a start takes seconds."""
    server = MariaDb()
    atexit.register(server.close)
    server.start()
    return server


def settings_of(server: MariaDb, **more: Any) -> dict[str, Any]:
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

        yield Setup(settings={"mysql": settings_of(server)}, reads_filters=True, away=away, back=back)
    finally:
        if not server.runs:
            server.start()
