"""Which scenarios make no sense where the clients of a test are on different nodes, and why."""

from typing import Final, cast

import pytest

ONE_NODE: Final = "it starts the nodes that it is about"
NOT_ACROSS: Final[dict[str, str]] = {
    "test_metrics": "counters and gauges are of one node",
    "test_session.test_queue_refuses_when_full": "the publisher's node does not see the queue of a session elsewhere",
    "test_retained.test_of_a_publisher_who_lost_the_right_nothing_is_delivered": "it takes the right away on one node",
    "test_offline_queue.test_each_session_is_known_by_its_client_identifier": "it looks into one node",
}
"""The name of a module, or of a test of it after a dot, and the reason."""


def why_not(item: pytest.Item) -> str:
    """Why this test is not run with its clients on different nodes; empty: it is."""
    module, name = item.path.stem, item.name.split("[")[0]
    reason = NOT_ACROSS.get(module) or NOT_ACROSS.get(f"{module}.{name}")
    if reason:
        return reason
    names = cast(pytest.Function, item).fixturenames
    return "" if {"clients", "clients_of"} & set(names) else ONE_NODE
