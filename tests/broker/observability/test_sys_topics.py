"""$SYS topics: names, payloads, flags and pace."""

import json
import time
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taipan.broker.config import SysTopicsSettings, ZoneSettings
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.topics import valid_name
from taipan.broker.observability.metrics import NAMES, Metrics
from taipan.broker.observability.stats import Stats
from taipan.broker.observability.sys_topics import SysTopics, topic_level, uptime_text
from taipan.broker.session.client_info import ClientInfo
from tests.support.clock import Clock

NODE = "taipan@10.0.0.1"
AT = f"$SYS/brokers/{NODE}/"


class SysTopicsHarness:
    def __init__(self, interval: float = 60.0, heartbeat: float = 30.0) -> None:
        self.clock = Clock(1_800_000_000.0)
        self.metrics = Metrics()
        self.stats = Stats()
        self.stats.gauge("subscriptions.shared", lambda: 4)
        self.published: list[Message] = []
        self.sys_topics = SysTopics(
            SysTopicsSettings(interval=interval, heartbeat=heartbeat),
            NODE,
            self.published.append,
            self.metrics,
            self.stats,
            self.clock,
            "1.2.3",
            listeners=lambda: self.listeners,
            reaches=self._reaches,
            wanted=lambda: self.wanted,
        )
        self.wanted = True  # by anybody
        self.asked: list[str] = []  # about which topics
        self.nobody: set[str] = set()  # topics that nobody gets
        self.listeners: dict[str, dict[str, int]] = {}

    def _reaches(self, topic: str) -> bool:
        self.asked.append(topic)
        return topic not in self.nobody

    def tick(self, seconds: float = 0.0) -> dict[str, Message]:
        """What one tick publishes, by topic."""
        self.published.clear()
        self.sys_topics.tick(self.clock.advance(seconds))
        found = {message.topic: message for message in self.published}
        assert len(found) == len(self.published)
        return found


def test_the_first_tick_tells_everything() -> None:
    harness = SysTopicsHarness()
    harness.metrics.bytes_received = 12
    found = harness.tick()
    texts = {topic: message.payload.decode() for topic, message in found.items()}
    assert texts.pop("$SYS/brokers") == NODE
    assert texts.pop(AT + "version") == "1.2.3"
    assert texts.pop(AT + "sysdescr") == "Taipan Broker"
    assert texts.pop(AT + "uptime") == "0 seconds"
    assert texts.pop(AT + "datetime") == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(harness.clock.time))
    assert texts.pop(AT + "stats/subscriptions/shared/count") == "4"
    assert texts.pop(AT + "stats/subscriptions/shared/max") == "4"
    assert texts.pop(AT + "metrics/bytes/received") == "12"
    assert texts.pop(AT + "metrics/packets/publish/auth_error") == "0"
    assert set(texts) < {AT + "metrics/" + name.replace(".", "/") for name in NAMES}
    assert len(texts) == len(NAMES) - 2


def test_refusals_disconnects_and_listeners_by_their_reasons() -> None:
    harness = SysTopicsHarness()
    harness.metrics.refusals.add("publish_not_authorized", 3)
    harness.metrics.disconnects.add("tcp_closed")
    harness.listeners = {"a/b": {"accepted": 7, "refused.tls_handshake": 2}}
    texts = {topic: message.payload.decode() for topic, message in harness.tick().items()}
    assert texts[AT + "metrics/refusals/publish_not_authorized"] == "3"
    assert texts[AT + "metrics/disconnects/tcp_closed"] == "1"
    assert texts[AT + "listeners/a%2Fb/accepted"] == "7"
    assert texts[AT + "listeners/a%2Fb/refused/tls_handshake"] == "2"


def test_only_the_lasting_ones_are_retained_and_all_come_from_the_node() -> None:
    found = SysTopicsHarness().tick()
    retained = {topic for topic, message in found.items() if message.retain}
    assert retained == {"$SYS/brokers", AT + "version", AT + "sysdescr"}
    for message in found.values():
        assert message.qos == 0
        assert message.publisher is None
        assert message.timestamp == 1_800_000_000.0
        assert valid_name(message.topic)


def test_each_group_keeps_its_own_pace() -> None:
    harness = SysTopicsHarness(interval=60, heartbeat=25)
    harness.tick()
    assert harness.tick(24) == {}
    assert set(harness.tick(1)) == {AT + "uptime", AT + "datetime"}
    assert harness.tick(1) == {}
    found = harness.tick(34)  # 60 s after the first
    assert AT + "version" in found
    assert found[AT + "uptime"].payload == b"1 minutes, 0 seconds"


def test_zero_turns_a_group_off() -> None:
    assert set(SysTopicsHarness(interval=0).tick()) == {AT + "uptime", AT + "datetime"}
    assert {AT + "uptime", AT + "datetime"}.isdisjoint(SysTopicsHarness(heartbeat=0).tick())
    assert SysTopicsHarness(interval=0, heartbeat=0).tick() == {}


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0 seconds"),
        (59, "59 seconds"),
        (60, "1 minutes, 0 seconds"),
        (3599, "59 minutes, 59 seconds"),
        (3600, "1 hours, 0 minutes, 0 seconds"),
        (86399, "23 hours, 59 minutes, 59 seconds"),
        (86400, "1 days, 0 hours, 0 minutes, 0 seconds"),
        (400 * 86400 + 7384, "400 days, 2 hours, 3 minutes, 4 seconds"),
    ],
)
def test_uptime(seconds: int, text: str) -> None:
    assert uptime_text(seconds) == text


def client(client_id: str, username: str | None = "ann") -> ClientInfo:
    info = ClientInfo("n", ZoneSettings(), "external", "l", "192.0.2.7", 4711, 1883, False, client_id, username, 5)
    info.keep_alive = 60
    info.clean_start = False
    info.expiry_interval = 300
    info.connected_at = 1_799_999_990.5
    return info


def test_connected() -> None:
    harness = SysTopicsHarness()
    harness.sys_topics.client_connected(client("dev1"))
    (message,) = harness.published
    assert message.topic == AT + "clients/dev1/connected"
    assert (message.qos, message.retain) == (1, False)
    assert json.loads(message.payload) == {
        "clientid": "dev1",
        "username": "ann",
        "ipaddress": "192.0.2.7",
        "sockport": 1883,
        "proto_name": "MQTT",
        "proto_ver": 5,
        "keepalive": 60,
        "connack": 0,
        "clean_start": False,
        "expiry_interval": 300,
        "connected_at": 1_799_999_990_500,
        "ts": 1_800_000_000_000,
    }


def test_what_nobody_gets_is_not_put_into_words() -> None:
    harness = SysTopicsHarness()
    harness.nobody = {AT + "clients/dev1/connected"}
    harness.sys_topics.client_connected(client("dev1"))
    harness.sys_topics.client_connected(client("dev2"))
    harness.sys_topics.client_disconnected(client("dev1", None), "normal")
    assert [message.topic for message in harness.published] == [
        AT + "clients/dev2/connected",
        AT + "clients/dev1/disconnected",
    ]


def test_where_nobody_gets_any_no_topic_is_made() -> None:
    harness = SysTopicsHarness()
    harness.wanted = False
    harness.sys_topics.client_connected(client("dev1"))
    harness.sys_topics.client_disconnected(client("dev1"), "normal")
    assert not harness.asked and not harness.published
    harness.wanted = True
    harness.sys_topics.client_disconnected(client("dev1"), "normal")
    assert harness.asked == [AT + "clients/dev1/disconnected"] == [each.topic for each in harness.published]


def test_disconnected() -> None:
    harness = SysTopicsHarness()
    harness.sys_topics.client_disconnected(client("dev1", None), "keepalive_timeout")
    (message,) = harness.published
    assert message.topic == AT + "clients/dev1/disconnected"
    assert (message.qos, message.retain) == (1, False)
    assert json.loads(message.payload) == {
        "clientid": "dev1",
        "username": "undefined",
        "ipaddress": "192.0.2.7",
        "sockport": 1883,
        "proto_name": "MQTT",
        "proto_ver": 5,
        "reason": "keepalive_timeout",
        "disconnected_at": 1_800_000_000_000,
        "ts": 1_800_000_000_000,
    }


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40))
def test_any_client_id_is_one_level_of_a_valid_name(client_id: str) -> None:
    harness = SysTopicsHarness()
    harness.sys_topics.client_connected(client(client_id))
    (message,) = harness.published
    assert valid_name(message.topic)
    level = message.topic.removeprefix(AT + "clients/").removesuffix("/connected")
    assert level == topic_level(client_id)
    assert "/" not in level
    assert unquote(level) == client_id
    assert json.loads(message.payload)["clientid"] == client_id


def test_nobody_speaks_in_another_s_name() -> None:
    assert topic_level("a/connected") == "a%2Fconnected"
    assert topic_level("a%2Fb") != topic_level("a/b")


def test_an_id_too_long_for_a_topic_is_left_out() -> None:
    harness = SysTopicsHarness()
    harness.sys_topics.client_connected(client("x" * 65_535))
    assert harness.published == []
    fits = 65_535 - len(AT + "clients//connected")
    harness.sys_topics.client_connected(client("x" * fits))
    assert len(harness.published) == 1
