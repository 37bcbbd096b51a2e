"""Each server is started once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES
from tests.systems.servers.postgresql import Postgresql


@pytest.fixture(scope="session")
def types() -> tuple[dict[str, object], dict[str, object]]:
    return {each.name: each for each in RESOURCE_TYPES}, {each.name: each for each in ACTION_TYPES}


@pytest.fixture(scope="session")
def postgresql_process() -> Iterator[Postgresql]:
    made = Postgresql()
    made.start()
    yield made
    made.close()


@pytest.fixture
def postgresql(postgresql_process: Postgresql) -> Postgresql:
    """It runs, and has no tables."""
    if not postgresql_process.runs:
        postgresql_process.start()
    postgresql_process.query("drop owned by taipan; drop schema public cascade; create schema public; "
                             "grant all on schema public to taipan")  # fmt: skip
    return postgresql_process
