"""Each server is started once for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES
from tests.systems.contract import is_without
from tests.systems.servers.mariadb import MariaDb
from tests.systems.servers.postgresql import Postgresql


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases of the contract that a system is without."""
    without = [each for each in items if isinstance(each, pytest.Function) and is_without(each)]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [each for each in items if each not in without]


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


@pytest.fixture(scope="session")
def mariadb_process() -> Iterator[MariaDb]:
    made = MariaDb()
    made.start()
    yield made
    made.close()


@pytest.fixture
def mariadb(mariadb_process: MariaDb) -> MariaDb:
    """It runs, and has no tables."""
    if not mariadb_process.runs:
        mariadb_process.start()
    name = mariadb_process.database
    mariadb_process.query(f"drop database {name}; create database {name}", "mysql")
    return mariadb_process
