"""``$SYS/broker/...`` under Mosquitto's names: values, changes only, and averages of the load."""

from taipan.broker.config import SysTopicsSettings
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.topics import valid_name
from taipan.broker.observability.metrics import Metrics
from taipan.broker.observability.stats import Stats
from taipan.broker.observability.sys_topics import SysTopics
from tests.support.clock import Clock


class Harness:
    def __init__(self, mosquitto_names: bool = True, interval: float = 10.0) -> None:
        self.clock = Clock(1_800_000_000.0)
        self.metrics = Metrics()
        self.stats = Stats()
        self.connected, self.sessions, self.accepted = 2, 5, 0
        self.stats.gauge("connections", lambda: self.connected)
        self.stats.gauge("sessions", lambda: self.sessions)
        self.stats.gauge("subscriptions", lambda: 7)
        self.stats.gauge("retained", lambda: 9)
        self.stats.gauge("memory.used", lambda: 1000)
        self.published: list[Message] = []
        self.topics = SysTopics(
            SysTopicsSettings(interval=interval, heartbeat=0, mosquitto_names=mosquitto_names),
            "taipan@10.0.0.1",
            self.published.append,
            self.metrics,
            self.stats,
            self.clock,
            "1.2.3",
            listeners=lambda: {"tcp": {"accepted": self.accepted}},
        )

    def tick(self, seconds: float = 0.0) -> dict[str, str]:
        self.published.clear()
        self.topics.tick(self.clock.advance(seconds))
        found = [each for each in self.published if each.topic.startswith("$SYS/broker/")]
        assert all(each.retain and each.qos == 0 and valid_name(each.topic) for each in found)
        return {each.topic.removeprefix("$SYS/broker/"): each.payload.decode() for each in found}


def test_the_figures() -> None:
    harness = Harness()
    harness.metrics.bytes_received = 120
    found = harness.tick()
    assert {name: text for name, text in found.items() if not name.startswith("load/")} == {
        "version": "taipan version 1.2.3", "uptime": "0 seconds",
        "bytes/received": "120", "bytes/sent": "0", "messages/received": "0", "messages/sent": "0",
        "publish/messages/received": "0", "publish/messages/sent": "0", "publish/messages/dropped": "0",
        "clients/connected": "2", "clients/active": "2", "clients/disconnected": "3", "clients/inactive": "3",
        "clients/total": "5", "clients/maximum": "2", "subscriptions/count": "7", "retained messages/count": "9",
        "heap/current size": "1000", "heap/maximum size": "1000",
    }  # fmt: skip
    names = ("messages/received", "messages/sent", "publish/received", "publish/sent", "publish/dropped")
    names += ("bytes/received", "bytes/sent", "connections", "sockets")
    loads = {f"load/{name}/{minutes}min" for name in names for minutes in (1, 5, 15)}
    assert {name for name in found if name.startswith("load/")} == loads


def test_only_what_has_changed_is_published_again() -> None:
    harness = Harness()
    harness.tick()
    assert harness.tick(5) == {}
    assert harness.tick(5) == {"uptime": "10 seconds"}
    harness.connected = 3
    assert set(harness.tick(10)) == {
        "uptime", "clients/connected", "clients/active", "clients/disconnected", "clients/inactive", "clients/maximum",
    }  # fmt: skip


def test_the_load_is_an_average_a_minute() -> None:
    harness = Harness()
    harness.tick()
    for _ in range(360):  # an hour with six connections a minute
        harness.accepted += 1
        last = harness.tick(10)
    latest = harness.topics._mosquitto._latest  # type: ignore[union-attr]
    assert [latest[f"load/sockets/{minutes}min"] for minutes in (1, 5)] == ["6.00", "6.00"]
    assert 5.8 < float(latest["load/sockets/15min"]) < 6.0
    assert "load/sockets/1min" not in last
    harness.tick(10)
    assert 5.0 < float(latest["load/sockets/1min"]) < 5.2
    assert float(latest["load/sockets/15min"]) > 5.7


def test_they_are_off_unless_asked_for() -> None:
    assert Harness(mosquitto_names=False).tick() == {}
    assert Harness(interval=0).tick() == {}
