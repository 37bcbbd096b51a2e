"""The end of a client: what the client is told, what becomes of its will and session, what the log says."""

import logging
from typing import Any

import pytest

from taipan.broker.channel import closing
from taipan.broker.channel.channel import Channel
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Connack, Connect, Disconnect, Will
from tests.support.fake_node import FakeClient, FakeNode

LATE = {c.WILL_DELAY_INTERVAL: 10}


def channel_of(client: FakeClient) -> Channel:
    return client.connection.channel


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    "garbage, code",
    [
        (b"\x00\x00", None),
        (b"\xf0\x00", None),
        (b"\x36\x05\x00\x01t\x00\x01", rc.MALFORMED_PACKET),
        (b"\x20\x02\x00\x00", rc.PROTOCOL_ERROR),
        (b"\x30\xff\xff\xff\x7f", rc.PACKET_TOO_LARGE),
    ],
)
def test_an_error_is_told_where_the_version_has_words(version: int, garbage: bytes, code: int | None) -> None:
    """[MQTT-4.13.1-1] [MQTT-3.14.0-1]"""
    client = FakeNode().connect(version=version)
    client.transport.feed(garbage)
    packets = client.received()
    if version == 5:
        (bye,) = packets
        assert isinstance(bye, Disconnect)
        assert code is None or bye.reason_code == code
        assert bye.properties[c.REASON_STRING]
    else:
        assert packets == []
    assert client.closed


@pytest.mark.parametrize("first", [b"\xc0\x00", b"\x00\x00", b"\xe0\x00", b"\x10\x02\x00\x00", b"\x30\xff\xff\xff\x7f"])
def test_an_error_before_connect_is_answered_by_the_close_alone(first: bytes) -> None:
    """[MQTT-3.1.0-1] [MQTT-3.1.4-1] [MQTT-3.14.0-1]"""
    node = FakeNode()
    unconnected = node.open()
    unconnected.transport.feed(first)
    assert unconnected.received() == [] and unconnected.closed
    assert sum(node.metrics.refusals.snapshot().values()) == 1


def test_an_unknown_protocol_version_is_told() -> None:
    """[MQTT-3.1.2-2]"""
    unconnected = FakeNode().open(4)
    unconnected.transport.feed(b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00")
    assert unconnected.received() == [Connack(1)]
    assert unconnected.closed


def test_the_end_comes_once() -> None:
    node = FakeNode()
    client = node.connect("c", will=Will("will", b""))
    for _ in range(3):
        closing.keep_alive_timeout(channel_of(client))
    client.vanish()
    assert len(client.received()) == 1
    assert node.metrics.messages_publish == 1
    assert node.metrics.client_disconnected == 1
    assert node.metrics.disconnects.snapshot() == {"keepalive_timeout": 1}


@pytest.mark.parametrize(
    "order, code, reason, will, session",
    [
        ("kick", rc.ADMINISTRATIVE_ACTION, "kicked", True, False),
        ("keep_alive_timeout", rc.KEEP_ALIVE_TIMEOUT, "keepalive_timeout", True, True),
        ("slow_reader", None, "slow_reader", True, True),
        ("idle_timeout", None, "idle_timeout", True, True),
        ("shut_down", rc.SERVER_SHUTTING_DOWN, "server_shutting_down", True, True),
    ],
)
def test_orders_to_close(order: str, code: int | None, reason: str, will: bool, session: bool) -> None:
    """[MQTT-3.1.2-8]"""
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    client = node.connect("c", will=Will("will", b"gone"), expiry=100)
    heard: list[str] = []
    node.hooks.client_disconnected.add(lambda client, reason: heard.append(reason))
    getattr(closing, order)(channel_of(client))
    assert [each.reason_code for each in client.received()] == ([] if code is None else [code])  # type: ignore[union-attr]
    assert client.closed and heard == [reason]
    assert watcher.payloads() == ([b"gone"] if will else [])
    assert ("c" in node.broker.sessions) is session


def test_orders_before_connect() -> None:
    for order in ("kick", "shut_down", "idle_timeout"):
        unconnected = FakeNode().open()
        getattr(closing, order)(channel_of(unconnected))
        assert unconnected.received() == [] and unconnected.closed


def test_the_log_says_who_and_why_and_which_setting(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    with caplog.at_level(logging.INFO):
        client = node.connect("the client")
        closing.slow_reader(channel_of(client))
        unconnected = node.open()
        closing.idle_timeout(channel_of(unconnected))
    connected, gone, refused = (record.getMessage() for record in caplog.records)
    assert connected.startswith("client_connected client_id=the client username=None peer=192.0.2.1:50000")
    assert gone.startswith("client_disconnected client_id=the client")
    assert "reason=slow_reader setting=slow_reader_timeout" in gone
    assert refused.startswith("client_refused") and "reason=idle_timeout setting=idle_timeout" in refused


# --- wills ----------------------------------------------------------------------------------------------------------


def will_of(node: FakeNode, will: Will, **keys: Any) -> list[tuple[str, bytes, int, bool, dict[int, Any]]]:
    """What a watcher of everything sees of it once its client vanishes."""
    watcher = node.connect("watcher")
    watcher.subscribe("#", qos=2)
    node.connect("c", will=will, **keys).vanish()
    return [(each.topic, each.payload, each.qos, each.retain, each.properties) for each in watcher.messages()]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_as_it_was_given(qos: int, retain: bool) -> None:
    """[MQTT-3.1.2-14] [MQTT-3.1.2-15] [MQTT-3.1.3-10]"""
    node = FakeNode()
    properties = {
        c.CONTENT_TYPE: "x",
        c.CORRELATION_DATA: b"\0",
        c.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3")],
        c.MESSAGE_EXPIRY_INTERVAL: 5,
    }
    will = Will("will", b"\xff", qos, retain, {**properties, c.WILL_DELAY_INTERVAL: 0})
    assert will_of(node, will) == [("will", b"\xff", qos, False, properties)]
    assert (node.broker.retained.get("will") is not None) is retain


def test_an_empty_retained_will_clears() -> None:
    node = FakeNode()
    node.publish("will", b"x", retain=True)
    will_of(node, Will("will", b"", 0, True))
    assert node.broker.retained.get("will") is None


@pytest.mark.parametrize(
    "topic, setting, reason",
    [
        ("denied/x", "access.rules.0", "not_authorized"),
        ("$delayed/5/denied/x", "access.rules.0", "not_authorized"),
        ("$delayed/x", "-", "topic_name_invalid"),
        ("$SYS", "-", "not_authorized"),
        ("$SYS/x", "-", "not_authorized"),
    ],
)
def test_a_will_that_its_client_may_not_publish(
    topic: str, setting: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = FakeNode(access={"rules": [{"allow": False, "action": "publish", "topics": ["denied/#"]}]})
    with caplog.at_level(logging.WARNING):
        node.connect("c", will=Will(topic, b"")).vanish()
    assert f"will_refused client_id=c topic={topic} reason={reason} setting={setting} " in caplog.text
    denied = int(reason == "not_authorized")
    assert (node.metrics.packets_publish_auth_error, node.metrics.packets_publish_error) == (denied, 1 - denied)
    assert node.metrics.refusals.snapshot() == {f"will_{reason}": 1}
    assert node.metrics.messages_publish == 0


def test_a_delayed_will() -> None:
    node = FakeNode()
    assert will_of(node, Will("$delayed/5/will", b"x")) == []
    node.pass_time(5)
    assert node.metrics.messages_publish == 1


def test_wills_under_a_mount_point() -> None:
    node = FakeNode({"mountpoint": "m/"})
    seen: list[str] = []
    node.hooks.message_publish.add(lambda message: seen.append(message.topic) or message)
    node.connect("c", will=Will("will", b"")).vanish()
    node.connect("c", will=Will("$delayed/1/will", b"")).vanish()
    node.pass_time(1)
    node.connect("c", will=Will("w" * 65_534, b"")).vanish()
    assert seen == ["m/will", "m/will"]


def test_a_will_s_delay_runs_from_the_end_of_the_connection() -> None:
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    client = node.connect("c", will=Will("will", b"x", properties=LATE), expiry=100)
    node.pass_time(1000)
    client.vanish()
    node.pass_time(9.9)
    assert watcher.messages() == []
    node.pass_time(0.1)
    assert [each.properties for each in watcher.messages()] == [{}]


def test_a_second_connect_is_an_error() -> None:
    """[MQTT-3.1.0-2]; and no normal end, so the will goes out."""
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    client = node.connect("c", will=Will("will", b"x"))
    client.send(Connect(5, "c"))
    assert [each.reason_code for each in client.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]
    assert watcher.payloads() == [b"x"]


def test_every_setting_named_is_one() -> None:
    from taipan.broker.config import AccessSettings, LimitsSettings, ZoneSettings

    fields = {*ZoneSettings.__struct_fields__, *(f"access.{each}" for each in AccessSettings.__struct_fields__)}
    fields |= {f"limits.{each}" for each in LimitsSettings.__struct_fields__}
    named = {each for names in closing.SETTINGS.values() for each in names.split(", ")}
    assert named <= fields
