"""Which scenarios make no sense where the clients of a test are on different nodes, and why."""

from typing import Final, cast

import pytest

ONE_NODE: Final = "it starts the nodes that it is about"
NOT_ACROSS: Final[dict[str, str]] = {}
"""The name of a module, or of a test of it after a dot, and the reason."""


def why_not(item: pytest.Item) -> str:
    """Why this test is not run with its clients on different nodes; empty: it is."""
    module, name = item.path.stem, item.name.split("[")[0]
    reason = NOT_ACROSS.get(module) or NOT_ACROSS.get(f"{module}.{name}")
    if reason:
        return reason
    names = cast(pytest.Function, item).fixturenames
    return "" if {"clients", "clients_of"} & set(names) else ONE_NODE
