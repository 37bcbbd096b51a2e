"""Every way to be refused, dropped or sent away: the log names the reason and the setting to look for."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from taipan.broker.access.scram import ScramVerifier
from taipan.broker.config import AccessSettings, DelayedSettings, ListenerSettings, ZoneSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Auth, Connect, Disconnect, Subscribe, TopicFilter, Will
from tests.support.fake_node import FakeClient, FakeNode
from tests.support.scram_client import ScramClient
from tests.support.wire import Publish

VERIFIER = str(ScramVerifier.create("wonderland"))
USERS = {"users": [{"username": "alice", "scram": VERIFIER}]}
RULES = {"rules": [{"allow": True, "topics": ["free"]}, {"allow": False, "topics": ["denied/#"]}]}
DEEP = "/".join("x" * 129)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of each line about ``event``."""
    found = []
    for record in caplog.records:
        if str(record.msg).startswith(event + " ") and isinstance(record.args, tuple):
            found.append(dict(zip(re.findall(r"(\w+)=%s", str(record.msg)), record.args, strict=True)))
    return found


def connect(client_id: str = "c", version: int = 5, **fields: Any) -> Callable[[FakeClient], None]:
    def send(client: FakeClient) -> None:
        client.version = version
        client.send(Connect(version, client_id, **fields))

    return send


def raw(data: bytes) -> Callable[[FakeClient], None]:
    return lambda client: client.transport.feed(data)


def scram(username: str, password: str) -> Callable[[FakeClient], None]:
    def run(client: FakeClient) -> None:
        other = ScramClient(username, password)
        method = {c.AUTHENTICATION_METHOD: "SCRAM-SHA-256"}
        (asked,) = client.ask(Connect(5, "c", properties={**method, c.AUTHENTICATION_DATA: other.first()}))
        assert isinstance(asked, Auth)
        final = other.final(asked.properties[c.AUTHENTICATION_DATA])
        client.send(Auth(rc.CONTINUE_AUTHENTICATION, {**method, c.AUTHENTICATION_DATA: final}))

    return run


CONNECTS: list[tuple[dict[str, Any], dict[str, Any], Callable[[FakeClient], None], str, str]] = [
    # zone, other config, what the client does, reason, setting
    ({"allow_anonymous": False}, {}, connect(), "not_authorized", "allow_anonymous"),
    ({"allow_anonymous": False}, {}, connect(username="u"), "bad_username_or_password", "allow_anonymous"),
    ({}, {"access": USERS}, connect(username="alice"), "bad_username_or_password", "access.users"),
    ({}, {"access": USERS}, scram("alice", "looking-glass"), "not_authorized", "access.users"),
    ({}, {"access": USERS}, scram("nobody", "x"), "not_authorized", "access.users"),
    ({}, {}, connect(properties={c.AUTHENTICATION_METHOD: "x"}), "bad_authentication_method", "access.users"),
    (
        {"allow_empty_client_id": False},
        {},
        connect(client_id=""),
        "client_identifier_not_valid",
        "allow_empty_client_id",
    ),
    ({}, {}, connect(client_id="", version=4, clean_start=False), "client_identifier_not_valid", "-"),
    ({"max_client_id_length": 1}, {}, connect(client_id="cc"), "client_identifier_not_valid", "max_client_id_length"),
    ({"mountpoint": "%c/"}, {}, connect(client_id="a/b"), "client_identifier_not_valid", "mountpoint"),
    ({"mountpoint": "%u/"}, {}, connect(), "not_authorized", "mountpoint"),
    ({"mountpoint": "%u/"}, {}, connect(username="#"), "not_authorized", "mountpoint"),
    ({}, {}, connect(will=Will(DEEP, b"")), "topic_name_invalid", "max_topic_levels"),
    ({}, {}, connect(will=Will("a/#", b"")), "topic_name_invalid", "-"),
    ({"max_qos": 0}, {}, connect(will=Will("t", b"", 1)), "qos_not_supported", "max_qos"),
    (
        {"retain_available": False},
        {},
        connect(will=Will("t", b"", 0, True)),
        "retain_not_supported",
        "retain_available",
    ),
    ({"max_connect_size": 20}, {}, connect(client_id="c" * 20), "packet_too_large", "max_connect_size"),
    ({}, {}, connect(properties={c.MAXIMUM_PACKET_SIZE: 2}), "packet_too_large", "-"),
    ({"strict_strings": True}, {}, connect(client_id="\x01"), "malformed_packet", "strict_strings"),
    ({}, {}, raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), "malformed_packet", "type"),
    ({}, {}, raw(b"GET /mqtt HTTP/1.1\r\n"), "protocol_error", "type"),
    ({}, {}, raw(b"PROXY TCP4 192.0.2.9 192.0.2.1 5 6\r\n"), "protocol_error", "proxy_protocol"),
    ({}, {}, raw(b"\r\n\r\n\x00\r\nQUIT\n\x21\x11"), "protocol_error", "proxy_protocol"),
    ({}, {}, raw(b"\xc0\x00"), "protocol_error", "-"),
    ({}, {}, raw(b"\x10\x07\x00\x04MQTT\x09"), "unsupported_protocol_version", "-"),
    ({}, {}, lambda client: (client.node.pass_time(11), client.node.pass_time(1)), "idle_timeout", "idle_timeout"),
]


@pytest.mark.parametrize("zone, config, act, reason, setting", CONNECTS)
def test_a_connect_is_refused(
    zone: dict[str, Any],
    config: dict[str, Any],
    act: Callable[[FakeClient], None],
    reason: str,
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = FakeNode(zone, **config)
    with caplog.at_level(logging.INFO):
        client = node.open()
        act(client)
    (line,) = lines(caplog, "client_refused")
    assert (line["reason"], line["setting"], line["listener"]) == (reason, setting, "default")
    assert node.metrics.refusals.snapshot() == {reason: 1}
    assert node.metrics.disconnects.snapshot() == {}


def test_a_connect_that_cannot_be_accepted_while_the_node_stops(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    node.context.closing = True
    with caplog.at_level(logging.INFO):
        node.open().connect("c")
    (line,) = lines(caplog, "client_refused")
    assert (line["reason"], line["setting"]) == ("server_unavailable", "-")


def test_who_failed_by_scram_is_named(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(access=USERS)
    with caplog.at_level(logging.INFO):
        scram("alice", "looking-glass")(node.open())
    (line,) = lines(caplog, "client_refused")
    assert (line["username"], line["detail"]) == ("alice", "wrong password")


@pytest.mark.parametrize(
    "first, words",
    [(b"\x16\x03\x01", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP"), (b"PROXY UNKNOWN\r\n", "PROXY")],
)
def test_another_protocol_is_named(first: bytes, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        FakeNode().open().transport.feed(first)
    (line,) = lines(caplog, "client_refused")
    assert words in line["detail"]


def test_another_protocol_is_named_in_pieces_too(caplog: pytest.LogCaptureFixture) -> None:
    client = FakeNode().open()
    with caplog.at_level(logging.INFO):
        for piece in (b"\x16", b"\x03", b"\x01"):
            client.transport.feed(piece)
    (line,) = lines(caplog, "client_refused")
    assert line["setting"] == "type"


def publish(topic: str, qos: int = 1, **fields: Any) -> Publish:
    return Publish(topic, b"x", qos, packet_id=1 if qos else 0, **fields)


CLIENTS: list[tuple[dict[str, Any], dict[str, Any], list[Any], str, str]] = [
    # zone, other config, what the client sends, reason, setting
    ({"max_qos": 0}, {}, [publish("t")], "qos_not_supported", "max_qos"),
    ({"retain_available": False}, {}, [publish("t", retain=True)], "retain_not_supported", "retain_available"),
    ({"max_packet_size": 20}, {}, [publish("t" * 20)], "packet_too_large", "max_packet_size"),
    (
        {"max_topic_alias": 1},
        {},
        [publish("t", 0, properties={c.TOPIC_ALIAS: 2})],
        "topic_alias_invalid",
        "max_topic_alias",
    ),
    ({}, {}, [publish("", 0, properties={c.TOPIC_ALIAS: 2})], "protocol_error", "-"),
    (
        {"receive_maximum": 1},
        {},
        [Publish("t", b"", 2, packet_id=1), Publish("t", b"", 2, packet_id=2)],
        "receive_maximum_exceeded",
        "receive_maximum",
    ),
    ({"strict_strings": True}, {}, [publish("\x01")], "malformed_packet", "strict_strings"),
    ({"acl_deny_action": "disconnect"}, {"access": RULES}, [publish("denied/x")], "not_authorized", "access.rules.1"),
    (
        {"acl_deny_action": "disconnect"},
        {"access": {"no_match": "deny"}},
        [Subscribe(1, [TopicFilter("t")])],
        "not_authorized",
        "access.no_match",
    ),
    ({}, {}, [Connect(5, "c")], "protocol_error", "-"),
    ({}, {}, [Disconnect()], "normal", "-"),
]


@pytest.mark.parametrize("zone, config, packets, reason, setting", CLIENTS)
def test_a_client_is_sent_away(
    zone: dict[str, Any],
    config: dict[str, Any],
    packets: list[Any],
    reason: str,
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = FakeNode(zone, **config)
    client = node.connect()
    with caplog.at_level(logging.INFO):
        client.send(*packets)
    (line,) = lines(caplog, "client_disconnected")
    assert (line["reason"], line["setting"], line["listener"]) == (reason, setting, "default")
    assert node.metrics.disconnects.snapshot() == {reason: 1}


MESSAGES: list[tuple[dict[str, Any], dict[str, Any], Publish, str, str]] = [
    # zone, other config, the message, reason, setting
    ({}, {}, publish("$SYS/x"), "not_authorized", "-"),
    ({}, {}, publish("$delayed/1/$SYS/x"), "not_authorized", "-"),
    ({}, {}, publish("$delayed/x/y"), "topic_name_invalid", "-"),
    ({}, {}, publish("$delayed/9999999999/y"), "quota_exceeded", "delayed.max_seconds"),
    ({}, {"delayed": {"max_bytes": 1}}, publish("$delayed/1/y"), "quota_exceeded", "delayed.max_bytes"),
    ({}, {}, publish(DEEP), "topic_name_invalid", "max_topic_levels"),
    ({"mountpoint": "m/"}, {}, publish("t" * 65_534), "topic_name_invalid", "mountpoint"),
    ({}, {"access": RULES}, publish("denied/x"), "not_authorized", "access.rules.1"),
    ({}, {"access": {"no_match": "deny", **RULES}}, publish("t"), "not_authorized", "access.no_match"),
]


@pytest.mark.parametrize("zone, config, message, reason, setting", MESSAGES)
def test_a_message_is_refused(
    zone: dict[str, Any],
    config: dict[str, Any],
    message: Publish,
    reason: str,
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = FakeNode(zone, **config)
    client = node.connect()
    with caplog.at_level(logging.INFO):
        client.send(message)
        client.send(message)  # also where the decision was remembered, though not within the minute
        node.pass_time(59)
        client.send(message)
        node.pass_time(2)
        client.send(message)
    told = [(line["reason"], line["setting"], line["count"]) for line in lines(caplog, "publish_refused")]
    assert told == [(reason, setting, 1), (reason, setting, 3)]


def test_a_message_that_finds_a_full_queue(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode({"queue_full": "refuse", "max_queued_messages": 1})
    watcher = node.connect("watcher", expiry=100)
    watcher.subscribe("t", qos=1)
    watcher.vanish()
    client = node.connect("c")
    with caplog.at_level(logging.INFO):
        client.send(publish("t"), publish("t"))
    (line,) = lines(caplog, "publish_refused")
    assert (line["reason"], line["setting"]) == ("quota_exceeded", "queue_full")


def test_one_refusal_does_not_hide_another_of_the_same_reason(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(access=RULES)
    client = node.connect()
    with caplog.at_level(logging.INFO):
        client.send(publish("$SYS/x"), publish("denied/x"))
    assert [line["setting"] for line in lines(caplog, "publish_refused")] == ["-", "access.rules.1"]


def test_a_hook_s_denial_is_nobody_s_setting(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(access=RULES)
    client = node.connect()
    node.hooks.client_check_acl.add(lambda allowed, client, action, topic: False)
    with caplog.at_level(logging.INFO):
        client.send(publish("free"))
    (line,) = lines(caplog, "publish_refused")
    assert (line["reason"], line["setting"]) == ("not_authorized", "-")


FILTERS: list[tuple[dict[str, Any], dict[str, Any], TopicFilter, str, str]] = [
    ({}, {}, TopicFilter("$share/g"), "topic_filter_invalid", "-"),
    ({}, {}, TopicFilter("a/#/b"), "topic_filter_invalid", "-"),
    ({}, {}, TopicFilter(DEEP), "topic_filter_invalid", "max_topic_levels"),
    (
        {"shared_subscription": False},
        {},
        TopicFilter("$share/g/t"),
        "shared_subscriptions_not_supported",
        "shared_subscription",
    ),
    (
        {"wildcard_subscription": False},
        {},
        TopicFilter("#"),
        "wildcard_subscriptions_not_supported",
        "wildcard_subscription",
    ),
    ({"max_subscriptions": 1}, {}, TopicFilter("t"), "quota_exceeded", "max_subscriptions"),
    ({}, {"access": RULES}, TopicFilter("#"), "not_authorized", "access.rules.1"),
    ({"suback_denied_code": 0x80}, {"access": RULES}, TopicFilter("#"), "not_authorized", "access.rules.1"),
]


@pytest.mark.parametrize("zone, config, entry, reason, setting", FILTERS)
def test_a_filter_is_refused(
    zone: dict[str, Any],
    config: dict[str, Any],
    entry: TopicFilter,
    reason: str,
    setting: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeNode(zone, **config).connect()
    client.subscribe("free")
    with caplog.at_level(logging.INFO):
        client.send(Subscribe(2, [entry]))
    (line,) = lines(caplog, "subscribe_refused")
    assert (line["reason"], line["setting"]) == (reason, setting)
    assert line["detail"] == ("answered 0x80 by suback_denied_code" if "suback_denied_code" in zone else "")


def test_every_setting_named_is_one() -> None:
    fields = {
        "-",
        *ZoneSettings.__struct_fields__,
        *ListenerSettings.__struct_fields__,
        *(f"access.{each}" for each in AccessSettings.__struct_fields__),
        *(f"delayed.{each}" for each in DelayedSettings.__struct_fields__),
    }
    named = {row[-1] for table in (CONNECTS, CLIENTS, MESSAGES, FILTERS) for row in table}
    assert {re.sub(r"\.\d+$", "", setting) for setting in named} <= fields


def test_the_peer_of_ipv6_is_written_unmistakably(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    with caplog.at_level(logging.INFO):
        node.connect("c", peername=("2001:db8::5", 50_000, 0, 0)).vanish()
        node.open(peername=("2001:db8::5", 50_000, 0, 0)).transport.feed(b"\0")
    for event in ("client_connected", "client_disconnected", "client_refused"):
        (line,) = lines(caplog, event)
        assert line["peer"] == "[2001:db8::5]:50000"
