"""SqlSource: a connection that the server has ended is not used again, and the query is sent over another one."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from taipan.broker.access.postgresql.declaration import PostgresqlAccessSettings
from taipan.broker.access.postgresql.source import PostgresqlSource
from taipan.broker.access.remote import SourceFailed
from taipan.broker.access.source import SourceContext
from taipan.broker.config import AccessSettings
from taipan.broker.loop.clock import Clock


class _Connection:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.terminated = False

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        self.terminated = True

    async def fetch(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        if self.error is not None:
            raise self.error
        return [("hash",)]


class _Source(PostgresqlSource):
    def __init__(self, *connections: _Connection) -> None:
        super().__init__(PostgresqlAccessSettings(), SourceContext(Clock(), lambda reason: None, AccessSettings()))
        self.connections = list(connections)

    async def open(self) -> Any:
        return self.connections.pop(0)


ENDED = asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")


@pytest.mark.asyncio
async def test_a_connection_that_the_server_has_ended_is_replaced() -> None:
    first, second = _Connection(), _Connection()
    source = _Source(first, second)
    assert await source.rows("auth_query", {"u": "ann"}) == [("hash",)]
    first.error = ENDED
    assert await source.rows("auth_query", {"u": "ann"}) == [("hash",)]
    assert first.terminated and not second.terminated and source.connections == []
    source.close_connections()
    assert second.terminated


@pytest.mark.asyncio
async def test_a_new_connection_that_fails_is_a_failure_of_the_database() -> None:
    only = _Connection(ENDED)
    with pytest.raises(SourceFailed) as failed:
        await _Source(only).rows("auth_query", {"u": "ann"})
    assert failed.value.away and only.terminated


@pytest.mark.asyncio
async def test_a_query_that_is_refused_keeps_the_connection() -> None:
    only = _Connection(asyncpg.UndefinedTableError("no such table"))
    source = _Source(only)
    for _ in range(2):
        with pytest.raises(SourceFailed) as failed:
            await source.rows("auth_query", {"u": "ann"})
        assert not failed.value.away
    assert not only.terminated and source.connections == []
