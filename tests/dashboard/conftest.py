"""Fixtures of the tests that drive the dashboard in Chromium; where it cannot be driven they are skipped.

All tests of a run share one event loop and one browser; each test has pages of its own.
``pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]``.
"""

import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.absent import reason

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

    from tests.support.browser import Dashboard, DashboardNode

FAILED = pytest.StashKey[bool]()
"""Of a test: its set-up or its call did."""

if importlib.util.find_spec("playwright") is None:
    # They import it. test_units.py says that they were left out.
    collect_ignore = [file.name for file in Path(__file__).parent.glob("test_*.py") if file.name != "test_units.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.timeout(240))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed or (report.when != "setup" and item.stash.get(FAILED, False))
    return report


def lacking() -> str | None:
    """What is missing to drive the dashboard; None: nothing."""
    from tests.support.browser import AXE, BUILT, CHROMIUM

    if not CHROMIUM.exists():
        return f"the dashboard is driven in Chromium: {reason('chromium')}"
    if not BUILT.exists():
        return "the dashboard is not built here: make dashboard"
    if not AXE.exists():
        return "axe-core is not here: make browser-modules"
    return None


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator["Browser"]:
    why = lacking()
    if why is not None:
        pytest.skip(why)
    from playwright.async_api import async_playwright, expect

    from tests.support.browser import CHROMIUM, PATIENCE

    expect.set_options(timeout=PATIENCE * 1000)
    # Chromium's own sandbox refuses to run for root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        opened = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=arguments)
        yield opened
        await opened.close()


@pytest.fixture(scope="module")
def make_node(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[], DashboardNode]":
    """A module whose ``shared_node`` has settings of its own overrides this."""
    from tests.support.browser import DashboardNode

    return lambda: DashboardNode(tmp_path_factory.mktemp("node"))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def _running(browser: "Browser") -> AsyncIterator["list[DashboardNode]"]:
    nodes: list[DashboardNode] = []
    yield nodes
    for node in nodes:
        await node.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def shared_node(
    request: pytest.FixtureRequest, _running: "list[DashboardNode]", make_node: "Callable[[], DashboardNode]"
) -> AsyncIterator["DashboardNode"]:
    """One node for all tests of a module that leave it running. A test's clients go with the test, and so do their
    sessions: which test comes next does not matter. After a test that failed the next one, which may be the same once
    more, gets a new node: this one has what is left of it."""
    if not _running:
        _running.append(await make_node().start())
    yield _running[0]
    if request.node.stash.get(FAILED, False):
        await _running.pop().stop()
    else:
        await _running[0].end_sessions()


@pytest_asyncio.fixture(loop_scope="session")
async def own_node(browser: "Browser", tmp_path: Path) -> AsyncIterator["DashboardNode"]:
    """A node of this test alone: it may be stopped, started and filled."""
    from tests.support.browser import DashboardNode

    node = await DashboardNode(tmp_path).start()
    yield node
    await node.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def open_dashboard(browser: "Browser") -> AsyncIterator[Callable[["DashboardNode"], "Dashboard"]]:
    """Dashboards of nodes, watched until the test has ended."""
    from tests.support.browser import Dashboard

    opened: list[Dashboard] = []

    def open_one(node: "DashboardNode") -> Dashboard:
        opened.append(Dashboard(browser, node))
        return opened[-1]

    yield open_one
    for dashboard in opened:
        await dashboard.close()


@pytest_asyncio.fixture(loop_scope="session")
async def dashboard(
    shared_node: "DashboardNode", open_dashboard: Callable[["DashboardNode"], "Dashboard"]
) -> "Dashboard":
    """That of the module's node."""
    return open_dashboard(shared_node)


@pytest.fixture
def open_page(dashboard: "Dashboard") -> Callable[..., Awaitable["Page"]]:
    """``await open_page("/clients", role="viewer")``: a page in a browser of its own, logged in."""
    return dashboard.open
