"""The page's own types and units: tsc and Vitest, as ``make dashboard-check`` runs them."""

import importlib.util
import subprocess

import pytest

from build_dashboard import SOURCES, node_of_the_machine, own_node

TOOLS = SOURCES / "node_modules"


def test_the_tests_in_chromium_can_run() -> None:
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("the dashboard is not driven in Chromium: Playwright is not here (make browser-modules)")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", [("typescript/bin/tsc",), ("vitest/vitest.mjs", "run", "--reporter=default")])
def test_the_sources_of_the_page(tool: tuple[str, ...]) -> None:
    node = node_of_the_machine() or own_node()
    if node is None or not (TOOLS / tool[0]).exists():
        pytest.skip("the packages of the dashboard's tests are not here: make dashboard-check")
    told = subprocess.run([str(node), str(TOOLS / tool[0]), *tool[1:]], cwd=SOURCES, capture_output=True, text=True)
    assert told.returncode == 0, told.stdout + told.stderr
