"""The bench of logins against a database, with few clients: none is refused unless the database is away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.bench.database_logins import CONDITIONS, Server, measure, started

CLIENTS = 200
_AWAY = {"no_connection", "broken", "down"}


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[Server, dict[str, str], str]]:
    made = started("postgresql", CLIENTS)
    yield made
    made[0].close()


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.asyncio
async def test_clients_that_all_connect_at_once(
    database: tuple[Server, dict[str, str], str], condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.bench.database_logins.AWAY", 2.0)
    monkeypatch.setenv("PATIENCE", "300")
    server, passwords, table = database
    if not server.runs:
        server.start()
    found = await measure("postgresql", condition, server, passwords, table)
    assert len(found.back) == CLIENTS and found.accepted_while_away == 0
    if condition in ("answers", "slow"):
        assert not found.told and not found.reasons
    else:
        assert found.reasons.keys() <= _AWAY and found.told.keys() <= {"return code 3"}
    if condition == "away":
        assert found.told["return code 3"] >= CLIENTS
        assert sum(found.reasons.values()) >= CLIENTS
