"""The contract of access sources, with the databases as processes."""

import pytest

from tests.broker.access import test_sources as contract
from tests.broker.access.test_sources import (  # noqa: F401
    declared,
    test_a_connection_is_tried,
    test_a_declaration,
    test_a_login_that_is_tried_names_it,
    test_a_reload,
    test_a_remote_source_that_is_away,
    test_a_remote_source_that_is_away_at_the_start,
    test_an_explanation_names_it,
    test_it_is_made_by_its_settings,
    test_logins,
    test_no_filter_reaches_further_than_the_rules,
    test_permissions,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", contract.DATABASES)
