"""ClientEvents: what is remembered of clients, and how much at most."""

import pytest

from taipan.broker.observability import client_events
from taipan.broker.observability.client_events import ClientEvents


def test_the_same_again_is_counted() -> None:
    events = ClientEvents()
    events.add("c", 1.0, "delivery_dropped", "queue_full", "max", "a")
    events.add("c", 2.0, "delivery_dropped", "queue_full", "max", "b")
    events.add("c", 3.0, "client_disconnected", "normal", "-")
    first, second = reversed(events.of("c"))
    assert (first.count, first.at, first.last_at, first.topic) == (2, 1.0, 2.0, "b")
    assert second.event == "client_disconnected" and second.count == 1


@pytest.mark.interpreted
def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_events, "MAX_CLIENTS", 3)
    events = ClientEvents()
    for number in range(100):
        events.add("chatty", float(number), f"event{number}", "r", "s", "t" * 1000, "d" * 1000)
    for name in ("a", "b", "chatty", "c", ""):
        events.add(name, 200.0, "e", "r", "s")
    assert len(events) == 3 and events.of("a") == []  # what nothing befell for longest went first
    told = events.of("chatty")
    assert len(told) == client_events.MAX_EVENTS and len(told[1].topic) == 128 == len(told[1].detail)


@pytest.mark.interpreted
def test_long_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_events, "MAX_NAMES", 100)
    events = ClientEvents()
    for name in ("a" * 40, "b" * 40, "c" * 40, "d" * 10):
        events.add(name, 1.0, "e", "r", "s")
    assert not events.of("a" * 40) and events.of("b" * 40) and events.of("d" * 10)
    events.add("e" * 1000, 1.0, "e", "r", "s")
    assert len(events) == 1 and events.of("e" * 1000)
    events.add("f", 1.0, "e", "r", "s")
    assert len(events) == 1 and events.of("f")
