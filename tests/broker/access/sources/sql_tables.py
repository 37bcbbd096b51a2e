"""A user and two rules in the tables of a database, for the sources that ask in SQL."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.systems.servers.mariadb import MariaDb
from tests.systems.servers.postgresql import Postgresql

from . import Setup


def sha256(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def settings_of(server: Postgresql | MariaDb, **more: Any) -> dict[str, Any]:
    return {
        "server": server.address, "username": server.user, "password": server.password, "database": server.database,
        "super_query": "", **more,
    }  # fmt: skip


@asynccontextmanager
async def database_set_up(name: str, server: Postgresql | MariaDb, tables: str) -> AsyncIterator[Setup]:
    try:
        if not server.runs:
            server.start()
        server.query(
            f"{tables} insert into mqtt_user (username, password) values ('ann', '{sha256('right')}');"
            "insert into mqtt_acl (allow, username, access, topic) values (1, 'ann', 3, 'open'), (0, 'ann', 3, 'shut')"
        )

        async def away() -> None:
            server.kill()

        async def back() -> None:
            server.start()

        yield Setup(settings={name: settings_of(server)}, reads_filters=True, away=away, back=back)
    finally:
        if not server.runs:
            server.start()
