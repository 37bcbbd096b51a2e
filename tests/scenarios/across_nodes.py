"""Which scenarios make no sense where the clients of a test are on different nodes, and why."""

from typing import Final, cast

import pytest

ONE_NODE: Final = "it starts the nodes that it is about"
COUNTERS: Final = "it reads the counters of one node"
REFUSING: Final = "only the queues of the publisher's node are asked whether they refuse"
NOT_ACROSS: Final[dict[str, str]] = {
    "test_metrics": "counters and gauges are of one node",
    "test_sys_topics": "$SYS topics of a node are for its own clients",
    "test_passwords": "each node has its own queue of hashes, and holds back guesses at itself",
    "test_access.test_anonymous_clients_on_loopback_and_elsewhere": "its port is given, and two nodes cannot have it",
    "test_access.test_anonymous_clients_elsewhere_if_it_is_said_in_so_many_words": "its port is given, as above",
    "test_backpressure.test_one_slow_reader_among_a_hundred": COUNTERS,
    "test_hostile_peers.test_a_bomb_of_subscriptions": "it counts the sessions of one node",
    "test_offline_queue.test_refusing_instead_is_withheld_from_3_1_1": REFUSING,
    "test_outside_sources.test_a_message_that_waited_is_asked_about_again": REFUSING,
    "test_outside_sources.test_no_answer_to_connect": COUNTERS,
    "test_outside_sources.test_qos2_sent_again_after_the_question_was_given_up": "it looks into one node",
    "test_outside_sources.test_retained_messages_with_check_source": "rules of a file are changed on one node only",
    "test_proxy_subscription.test_a_proved_username": COUNTERS,
    "test_retained.test_of_a_publisher_who_lost_the_right_nothing_is_delivered": "it takes the right away on one node",
    "test_session.test_queue_refuses_when_full": REFUSING,
    "test_topic_rewrite.test_access_is_asked_about_the_new_topic": COUNTERS,
    "test_topic_rewrite.test_what_would_be_no_topic_is_refused": COUNTERS,
    "test_unix_sockets": "the path of its socket is given, and two nodes cannot have it",
    "test_zone_limits.test_accept_rate": "the rate is of one listener",
    "test_zone_limits.test_max_connections": "the bound is of one listener",
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
