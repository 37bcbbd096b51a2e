"""Every row of the specification has a test, and the pages of endpoints and rows are fresh."""

import subprocess
import sys

import pytest

from taipan.management.api.index import all_routes
from tests.api import rows
from tests.api.test_specification import ENDPOINTS

ROWS = rows.rows()


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The ids of all tests in the files that the rows name, below tests."""
    files = sorted({row.test.partition("::")[0] for row in ROWS})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *(str(rows.TESTS / file) for file in files)],
        cwd=rows.TESTS.parent, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line}


def exists(test: str, collected: set[str]) -> bool:
    return test in collected or (
        test.endswith("]") and any(each.startswith(test.removesuffix("]") + "-") for each in collected)
    )


def test_every_row_has_a_test_that_is_there(collected: set[str]) -> None:
    assert not [row for row in ROWS if not exists(row.test, collected)]


def test_a_test_that_is_not_there_would_be_noticed(collected: set[str]) -> None:
    assert not exists("api/test_clients.py::test_every_field[no_such_field]", collected)
    assert not exists("api/test_clients.py::test_nothing", collected)


def test_no_row_is_listed_twice() -> None:
    names = [(row.section, row.name) for row in ROWS]
    assert len(set(names)) == len(names) > 400


def test_every_endpoint_of_the_specification_is_a_row_and_a_route() -> None:
    listed = {row.name for row in ROWS if row.section == "Endpoints"}
    assert listed == set(ENDPOINTS)
    shapes = {(route.method, tuple("{}" if s[0] == "{" else s for s in route.segments)) for route in all_routes()}
    for endpoint in listed:
        method, _, path = endpoint.partition(" ")
        assert (method, tuple("{}" if s[0] == "{" else s for s in path.split("/") if s)) in shapes, endpoint


def test_the_pages_are_fresh() -> None:
    assert rows.ENDPOINTS.read_text("utf-8") == rows.endpoints(), "make docs-tables writes it"
    assert rows.SPECIFICATION.read_text("utf-8") == rows.specification(), "make docs-tables writes it"


def test_every_group_of_endpoints_names_a_page_that_is_there() -> None:
    assert all((rows.PAGES / f"{name}.md").is_file() for name in rows.MORE.values())
    assert set(rows.MORE) <= {route.tag for route in all_routes()}
