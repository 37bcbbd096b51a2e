"""Log lines about what repeats: one a minute for each key, with its count."""

import pytest

from taipan.broker.observability import throttle
from taipan.broker.observability.throttle import EVERY, Throttle


def test_the_first_is_due_and_the_next_ones_are_counted() -> None:
    throttled = Throttle()
    assert throttled.due(1000.0, "dropped", "full") == 1
    assert [throttled.due(1000.0 + second, "dropped", "full") for second in range(1, 5)] == [0, 0, 0, 0]
    assert throttled.due(1000.0 + EVERY, "dropped", "full", times=7) == 11
    assert throttled.due(1000.0 + EVERY, "dropped", "full") == 0


def test_each_key_has_its_own_line_and_count() -> None:
    throttled = Throttle()
    assert throttled.due(1000.0, "dropped", "full") == 1
    assert throttled.due(1000.0, "dropped", "stopped", times=3) == 3
    assert throttled.due(1000.0) == 1


@pytest.mark.interpreted
def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that, the oldest is forgotten: its next line comes early."""
    monkeypatch.setattr(throttle, "MAX_ENTRIES", 2)
    throttled = Throttle()
    for key in ("a", "b", "c"):
        assert throttled.due(1000.0, key) == 1
    assert (throttled.due(1000.0, "b"), throttled.due(1000.0, "c"), throttled.due(1000.0, "a")) == (0, 0, 1)
