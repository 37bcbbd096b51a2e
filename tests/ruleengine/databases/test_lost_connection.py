"""A server that ends an idle connection: until the end is read, asyncpg raises an error of its own."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from taipan.ruleengine.databases.sql_template import POSTGRESQL, SqlTemplate
from taipan.ruleengine.sinks.postgresql.connection import PostgresqlConnection


class _Ended:
    """A connection in that state."""

    def is_closed(self) -> bool:
        return False

    async def execute(self, statement: str) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    prepare: Any = execute


@pytest.mark.asyncio
async def test_rows_wait_for_another_connection() -> None:
    connection = PostgresqlConnection(_Ended())
    with pytest.raises(OSError, match="another operation"):
        await connection.write(SqlTemplate("insert into t(n) values (${n})", POSTGRESQL), [[1]])
    with pytest.raises(OSError, match="another operation"):
        await connection.ping()
