"""A durable publisher is answered soon, whatever QoS 0 floods the node meanwhile."""

import pytest

from tools.bench.brokers import running
from tools.bench.latency import SETTINGS, flooding, latencies, publishing, quantile

BOUND = 10.0
"""Milliseconds, p99, above what the disk and the machine take without a flood."""
WINDOWS = 20


@pytest.mark.alone
def test_puback_keeps_its_bound_under_a_flood_of_qos_0() -> None:
    """The best of several windows: a machine that is busy with something else for a while proves nothing."""
    with running("taipan", None, SETTINGS) as (port, _), publishing(port) as publisher:
        idle = min(quantile(latencies(publisher, 0.3), 0.99) for _ in range(3))
        best = float("inf")
        with flooding(port) as received:
            before = received.value
            for _ in range(WINDOWS):
                best = min(best, quantile(latencies(publisher, 0.5), 0.99))
                if best < BOUND + idle:
                    break
            assert received.value > before, "there was no flood"
    assert best < BOUND + idle
