"""What the measurements make of what they took; no broker runs here."""

from tools.bench.latency import quantile
from tools.bench.results import cost


def test_a_quantile_of_sorted_values() -> None:
    values = [float(each) for each in range(100)]
    assert [quantile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [0.0, 50.0, 99.0, 99.0]
    assert quantile([7.0], 0.99) == 7.0


def test_the_cost_of_a_message_is_processor_time_over_messages() -> None:
    assert cost({"broker_cpu": 0.5, "delivered_per_s": 100_000}) == 5.0
    assert cost({"label": "S2", "error": "exit 1"}) == 0.0
