"""CONNECT, DISCONNECT and take-over step by step, without a socket and on the test's clock."""

import itertools
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Connect, Disconnect, Will
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import MAX_INFLIGHT
from tests.support.fake_node import FakeClient, FakeNode, reason_codes

versions = pytest.mark.parametrize("version", [3, 4, 5])
V3_CODES = {rc.CLIENT_IDENTIFIER_NOT_VALID: 2, rc.BAD_USER_NAME_OR_PASSWORD: 4, rc.NOT_AUTHORIZED: 5}


def refused(client: FakeClient, code: int) -> None:
    """[MQTT-3.2.2-6] [MQTT-3.2.2-7]"""
    connack = client.connack
    assert connack.reason_code == (code if client.version == 5 else V3_CODES.get(code, 3))
    assert not connack.session_present
    assert client.closed and client.received() == []
    assert client.node.context.channels == {}


# --- CONNACK --------------------------------------------------------------------------------------------------------


@versions
def test_session_present(version: int) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3]"""
    node = FakeNode()
    present = []
    for clean in (False, False, True, False, False):
        client = node.connect("c", clean, version=version, expiry=100)
        present.append(client.connack.session_present)
        client.send(Disconnect())
    # 3.x with Clean Session 1 leaves no session behind, 5.0 with an expiry interval does; 3.1 has no such bit.
    assert present == ([False] * 5 if version == 3 else [False, True, False, version == 5, True])


def test_what_a_5_0_client_is_told() -> None:
    """[MQTT-3.2.2-9] [MQTT-3.2.2-21] [MQTT-3.1.2-28]"""
    assert FakeNode().connect(keep_alive=100).connack.properties == {
        c.RECEIVE_MAXIMUM: 100,
        c.MAXIMUM_PACKET_SIZE: 2_097_152,
        c.TOPIC_ALIAS_MAXIMUM: 65_535,
    }
    zone = {
        "receive_maximum": 65_535,
        "max_qos": 1,
        "retain_available": False,
        "max_packet_size": 1000,
        "max_topic_alias": 0,
        "wildcard_subscription": False,
        "shared_subscription": False,
        "server_keep_alive": 60,
        "session_expiry_interval": 50,
        "response_information": "reply/here",
    }
    asked = {c.SESSION_EXPIRY_INTERVAL: 100, c.REQUEST_RESPONSE_INFORMATION: 1}
    assert FakeNode(zone).connect(keep_alive=100, properties=asked).connack.properties == {
        c.MAXIMUM_QOS: 1,
        c.RETAIN_AVAILABLE: 0,
        c.MAXIMUM_PACKET_SIZE: 1000,
        c.WILDCARD_SUBSCRIPTION_AVAILABLE: 0,
        c.SHARED_SUBSCRIPTION_AVAILABLE: 0,
        c.SERVER_KEEP_ALIVE: 60,
        c.SESSION_EXPIRY_INTERVAL: 50,
        c.RESPONSE_INFORMATION: "reply/here",
    }
    assert c.RESPONSE_INFORMATION not in FakeNode(zone).connect().connack.properties


@pytest.mark.parametrize(
    "version, asked, zone, used",
    [
        (5, 120, {"server_keep_alive": 60}, 60),
        (5, 30, {"server_keep_alive": 60}, 30),
        (5, 0, {"server_keep_alive": 60}, 60),
        (5, 0, {}, 0),
        (4, 120, {"server_keep_alive": 60}, 120),
        (4, 120, {"server_keep_alive": 60, "server_keep_alive_v3": True}, 60),
    ],
)
def test_server_keep_alive(version: int, asked: int, zone: dict[str, Any], used: int) -> None:
    """[MQTT-3.2.2-21]"""
    client = FakeNode({"keep_alive_multiplier": 2, **zone}).connect(keep_alive=asked, version=version)
    assert client.channel.client.keep_alive == used
    assert client.connack.properties.get(c.SERVER_KEEP_ALIVE) == (used if version == 5 and used != asked else None)
    client.node.pass_time(used * 2 - 0.1 if used else 1e6)
    assert not client.closed
    client.node.pass_time(0.1)
    assert client.closed is (used > 0)


def test_a_hook_adds_to_the_connack() -> None:
    node = FakeNode()
    node.hooks.client_connack.add(lambda properties, client, code: {**properties, c.USER_PROPERTY: [("a", "b")]})
    assert node.connect().connack.properties[c.USER_PROPERTY] == [("a", "b")]


def test_a_connack_that_does_not_fit() -> None:
    """[MQTT-3.1.2-24]: closed without one."""
    node = FakeNode()
    client = node.open()
    client.feed(Connect(5, "c", properties={c.MAXIMUM_PACKET_SIZE: 10}))
    assert client.received() == []
    assert client.closed
    assert node.context.channels == {} and len(node.broker.sessions) == 0


def test_connack_comes_before_everything_that_waited() -> None:
    """[MQTT-3.2.0-1]"""
    node = FakeNode()
    client = node.connect("c", expiry=100)
    client.subscribe("t", qos=1)
    client.vanish()
    node.publish("t", b"waited", 1)
    client = node.connect("c", clean_start=False, expiry=100)
    assert client.connack.session_present
    assert client.payloads() == [b"waited"]


@pytest.mark.parametrize(
    "asked, most, window", [(None, 2, 2), (3, 2, 2), (1, 2, 1), (None, 0, MAX_INFLIGHT), (7, 0, 7)]
)
def test_the_send_window_is_the_smaller_maximum(asked: int | None, most: int, window: int) -> None:
    """[MQTT-3.3.4-9]"""
    properties = {} if asked is None else {c.RECEIVE_MAXIMUM: asked}
    assert FakeNode({"max_inflight": most}).connect(properties=properties).session.window == window
    assert FakeNode({"max_inflight": most}).connect(version=4).session.window == (most or MAX_INFLIGHT)


# --- refusals -------------------------------------------------------------------------------------------------------


@versions
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_an_empty_client_identifier(version: int, clean: bool, allowed: bool) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16] [3.1.1 MQTT-3.1.3-7] [3.1.1 MQTT-3.1.3-8]"""
    node = FakeNode({"allow_empty_client_id": allowed, "client_id_prefix": "auto-"})
    client = node.open(version)
    client.connect("", clean)
    if not allowed or version == 3 or (version == 4 and not clean):
        refused(client, rc.CLIENT_IDENTIFIER_NOT_VALID)
        return
    name = client.channel.client.client_id
    assert name.startswith("auto-") and len(name) == 37
    assert client.connack.properties.get(c.ASSIGNED_CLIENT_IDENTIFIER) == (name if version == 5 else None)
    assert node.context.channels == {name: client.channel}


def test_an_assigned_identifier_is_nobody_s() -> None:
    node = FakeNode()

    class Rng:
        numbers = iter([1, 1, 2])

        def getrandbits(self, bits: int) -> int:
            return next(self.numbers)

    node.broker.rng = Rng()  # type: ignore[assignment]
    first, second = node.connect(""), node.connect("")
    assert first.channel.client.client_id != second.channel.client.client_id
    assert not first.closed


@versions
@pytest.mark.parametrize(
    "zone, client_id, will, code",
    [
        ({"max_client_id_length": 3}, "four", None, rc.CLIENT_IDENTIFIER_NOT_VALID),
        ({"max_client_id_length": 3}, "\xe4\xe4", None, rc.CLIENT_IDENTIFIER_NOT_VALID),  # in bytes
        ({"max_qos": 1}, "c", Will("t", b"", 2), rc.QOS_NOT_SUPPORTED),
        ({"retain_available": False}, "c", Will("t", b"", 0, True), rc.RETAIN_NOT_SUPPORTED),
        ({"max_topic_levels": 2}, "c", Will("a/b/c", b""), rc.TOPIC_NAME_INVALID),
        ({"allow_anonymous": False}, "c", None, rc.NOT_AUTHORIZED),
        ({"mountpoint": "%c/"}, "a/b", None, rc.CLIENT_IDENTIFIER_NOT_VALID),
    ],
)
def test_refusals(version: int, zone: dict[str, Any], client_id: str, will: Will | None, code: int) -> None:
    """[MQTT-3.2.2-12] [MQTT-3.2.2-13]"""
    node = FakeNode(zone)
    client = node.open(version)
    client.connect(client_id, will=will)
    refused(client, code)
    assert node.metrics.packets_connack_error == node.metrics.client_connack == 1
    assert node.metrics.refusals.snapshot() == {rc.name(code): 1}
    # What access control says stays in the log.
    told = version == 5 and code != rc.NOT_AUTHORIZED
    assert (c.REASON_STRING in client.connack.properties) is told


def test_an_unknown_method() -> None:
    """[MQTT-4.12.0-1]"""
    client = FakeNode().open()
    client.connect(properties={c.AUTHENTICATION_METHOD: "OTHER"})
    refused(client, rc.BAD_AUTHENTICATION_METHOD)


def test_without_problem_information_no_reason_string() -> None:
    client = FakeNode({"max_client_id_length": 1}).open()
    client.connect("long", properties={c.REQUEST_PROBLEM_INFORMATION: 0})
    refused(client, rc.CLIENT_IDENTIFIER_NOT_VALID)
    assert client.connack.properties == {}


@versions
def test_a_stopping_server_refuses(version: int) -> None:
    node = FakeNode()
    node.context.closing = True
    client = node.open(version)
    client.connect()
    refused(client, rc.SERVER_UNAVAILABLE)


@versions
@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_a_hook_has_the_last_word_on_authentication(version: int, decision: str) -> None:
    allowed = decision == "deny"  # what access says is the other way round
    node = FakeNode({"allow_anonymous": allowed})
    node.hooks.client_authenticate.add(lambda said, client, password: decision)
    client = node.open(version)
    client.connect()
    if decision == "allow":
        assert client.connack.reason_code == 0
    else:
        refused(client, rc.NOT_AUTHORIZED)
    metrics = node.metrics
    assert (metrics.client_auth_success, metrics.client_auth_failure) == (not allowed, allowed)


def test_hooks_hear_of_a_connect_before_anything_is_checked() -> None:
    node = FakeNode({"allow_anonymous": False})
    heard: list[tuple[str, int, Any]] = []
    node.hooks.client_connect.add(
        lambda client, properties: heard.append((client.client_id, client.proto_ver, properties))
    )
    node.hooks.client_connected.add(lambda client: heard.append((client.client_id, 0, None)))
    node.open().connect("c", properties={c.RECEIVE_MAXIMUM: 5})
    assert heard == [("c", 5, {c.RECEIVE_MAXIMUM: 5})]


# --- who the client is ----------------------------------------------------------------------------------------------


def test_the_facts_of_a_client() -> None:
    node = FakeNode({"session_expiry_interval": 10})
    client = node.open(4)
    client.connect("c", clean_start=False, keep_alive=7, username="u", is_bridge=True)
    facts: ClientInfo = client.channel.client
    assert (facts.client_id, facts.username, facts.proto_ver, facts.is_bridge) == ("c", "u", 4, True)
    assert (facts.clean_start, facts.keep_alive, facts.expiry_interval, facts.anonymous) == (False, 7, 10, True)
    assert facts.connected_at == node.clock.time


def test_the_user_name_as_client_identifier() -> None:
    node = FakeNode({"use_username_as_client_id": True})
    client = node.open()
    client.connect("c", username="u")
    assert client.channel.client.client_id == "u"
    for username in ("", None):
        client = FakeNode({"use_username_as_client_id": True}).open()
        client.connect("c", username=username)
        refused(client, rc.CLIENT_IDENTIFIER_NOT_VALID)


def vouched(zone: dict[str, Any]) -> FakeNode:
    """Where a hook says that everybody is who it says."""
    node = FakeNode({**zone, "allow_anonymous": False})
    node.hooks.client_authenticate.add(lambda said, client, password: "allow")
    return node


def test_a_name_that_nobody_proved_has_no_mount_point() -> None:
    client = FakeNode({"mountpoint": "%u/"}).open()
    client.connect("c", username="ann")
    refused(client, rc.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    "template, mount", [("", ""), ("m/", "m/"), ("%c/%u/", "c/%c/"), ("x%d%", "x%d%"), ("%u", "%c")]
)
def test_mount_points_are_filled_in_once(template: str, mount: str) -> None:
    client = vouched({"mountpoint": template}).open()
    client.connect("c", username="%c")
    assert client.channel.client.mountpoint == mount


@pytest.mark.parametrize("name", ["+", "#", "a/b", "$SYS"])
def test_names_that_would_leave_their_mount_point(name: str) -> None:
    client = vouched({"mountpoint": "%u/"}).open()
    client.connect("c", username=name)
    refused(client, rc.NOT_AUTHORIZED)
    client = FakeNode({"mountpoint": "%c/"}).open()
    client.connect(name)
    refused(client, rc.CLIENT_IDENTIFIER_NOT_VALID)


# --- take-over ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old_version", [4, 5])
@pytest.mark.parametrize("new_version", [4, 5])
def test_take_over(old_version: int, new_version: int) -> None:
    """[MQTT-3.1.4-3]: the old connection is out of the session before the new one is answered."""
    node = FakeNode()
    old = node.connect("c", False, version=old_version, expiry=100)
    old.subscribe("t", qos=1)
    node.publish("t", b"1", 1)
    old.received()
    events: list[str] = []
    node.hooks.client_disconnected.add(lambda client, reason: events.append(reason))
    node.hooks.session_takeovered.add(lambda client, session: events.append("session"))
    node.hooks.client_connected.add(lambda client: events.append("connected"))
    new = node.connect("c", False, version=new_version, expiry=100)
    assert events == ["session", "takeovered", "connected"]
    assert reason_codes(old) == ([rc.SESSION_TAKEN_OVER] if old_version == 5 else [])
    assert old.closed
    assert new.connack.session_present
    assert [(each.payload, each.dup) for each in new.messages()] == [(b"1", True)]
    node.publish("t", b"2", 1)
    assert new.payloads() == [b"2"] and old.received() == []
    assert node.context.channels == {"c": new.channel}
    old.vanish()
    assert node.context.channels == {"c": new.channel}
    assert node.metrics.session_takeovered == 1


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("expiry", [0, 5, 100, c.NEVER_EXPIRES])
@pytest.mark.parametrize("delay", [0, 10])
def test_the_will_of_a_taken_over_client(clean: bool, expiry: int, delay: int) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]: kept back only where it has a delay and its session goes on."""
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    will = Will("will", b"gone", properties={c.WILL_DELAY_INTERVAL: delay} if delay else {})
    node.connect("c", will=will, expiry=expiry)
    new = node.connect("c", clean, expiry=expiry)
    goes_on = expiry > 0 and not clean
    assert new.connack.session_present is goes_on
    assert watcher.payloads() == ([] if delay and goes_on else [b"gone"])
    metrics = node.metrics
    assert (metrics.session_discarded, metrics.session_takeovered) == (clean, not clean)
    node.pass_time(1000)
    assert watcher.payloads() == []
    assert not new.closed


@pytest.mark.parametrize("connected", [False, True])
def test_hooks_hear_of_a_discarded_session(connected: bool) -> None:
    node = FakeNode()
    heard: list[str] = []
    node.hooks.session_discarded.add(lambda client, session: heard.append("discarded"))
    node.hooks.session_terminated.add(lambda client, session, reason: heard.append(reason))
    old = node.connect("c", expiry=100)
    if not connected:
        old.vanish()
    node.connect("c")
    assert heard == ["discarded"]
    assert node.metrics.session_discarded == 1


def test_the_new_connection_s_own_limits_hold() -> None:
    node = FakeNode()
    old = node.connect("c", expiry=100, properties={c.TOPIC_ALIAS_MAXIMUM: 5})
    old.subscribe("t", qos=1)
    for _ in range(2):
        node.publish("t", b"", 1)
    assert [each.topic for each in old.messages()] == ["t", ""]
    new = node.connect("c", False, expiry=100, properties={c.RECEIVE_MAXIMUM: 1})
    assert [(each.topic, each.dup) for each in new.messages()] == [("t", True)]


def test_three_clients_with_one_name_leave_one_session() -> None:
    for cleans in itertools.product((False, True), repeat=3):
        node = FakeNode()
        clients = [node.connect("c", clean, expiry=at) for clean, at in zip(cleans, (0, 10, 0), strict=True)]
        assert [client.closed for client in clients] == [True, True, False]
        assert len(node.broker.sessions) == len(node.context.channels) == 1
        clients[2].vanish()
        assert (len(node.broker.sessions), node.context.channels) == (0, {})


# --- DISCONNECT -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version, code, published", [(4, 0, False), (5, 0, False), (5, 4, True), (5, 0x80, True)])
def test_the_will_and_disconnect(version: int, code: int, published: bool) -> None:
    """[MQTT-3.14.4-3] [MQTT-3.1.2-10]"""
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    client = node.connect("c", version=version, will=Will("will", b"gone"))
    client.send(Disconnect(code))
    assert watcher.payloads() == ([b"gone"] if published else [])
    assert client.closed and client.received() == []
    client.vanish()
    assert node.listener.reasons == ["normal" if not code else rc.name(code)]


@pytest.mark.parametrize(
    "first, then, lives",
    [(100, 0, 0), (100, 10, 10), (10, 100, 50), (c.NEVER_EXPIRES, 20, 20), (20, c.NEVER_EXPIRES, 50)],
)
def test_disconnect_changes_the_session_expiry(first: int, then: int, lives: int) -> None:
    """Never beyond the zone's bound of 50."""
    node = FakeNode({"session_expiry_interval": 50})
    client = node.connect("c", expiry=first)
    client.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: then}))
    if lives:
        node.pass_time(lives - 0.1)
        assert "c" in node.broker.sessions
    node.pass_time(0.1)
    assert "c" not in node.broker.sessions


def test_disconnect_cannot_make_a_session_outlive_its_connection() -> None:
    node = FakeNode()
    watcher = node.connect("watcher")
    watcher.subscribe("will")
    client = node.connect("c", will=Will("will", b"gone"))
    client.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 10}))
    assert reason_codes(client) == [rc.PROTOCOL_ERROR]
    assert watcher.payloads() == [b"gone"]
    assert "c" not in node.broker.sessions
    client = node.connect("c")
    client.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 0}))
    assert client.received() == []
