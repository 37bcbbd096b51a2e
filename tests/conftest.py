"""``make test-compiled`` runs all of this on compiled modules, but for what is marked ``interpreted``.

Nothing of the broker may be imported before this.
"""

import os

import pytest

from broker import compiled

if os.environ.get(compiled.VARIABLE) and compiled.outcome != compiled.COMPILED:
    raise RuntimeError(compiled.outcome)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if compiled.outcome == compiled.COMPILED:
        left_out = pytest.mark.skip(reason="replaces or watches what compiled code has built in")
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(left_out)
