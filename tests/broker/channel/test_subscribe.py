"""SUBSCRIBE and UNSUBSCRIBE: one Reason Code for each filter, and what is in force afterwards."""

import asyncio
from typing import Any

import pytest

from taipan.broker.channel.subscribe import FILTERS_PER_ITERATION
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Disconnect, Suback, Subscribe, TopicFilter, Unsuback, Unsubscribe, Will
from tests.support.fake_node import FakeNode
from tests.support.wire import Publish

DENY = {"rules": [{"allow": False, "action": "subscribe", "topics": ["denied/#"]}]}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_each_filter_has_its_code_in_order(version: int) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1]"""
    node = FakeNode({"max_topic_levels": 3, "max_qos": 1}, access=DENY)
    client = node.connect(version=version)
    filters = ["a", "a/#/b", "denied/x", "b+", "$share/g", "a/b/c/d", "$share/g/x", "b"]
    codes = client.subscribe(*filters, qos=2)
    expected = [1, rc.TOPIC_FILTER_INVALID, rc.NOT_AUTHORIZED, rc.TOPIC_FILTER_INVALID, rc.TOPIC_FILTER_INVALID,
                rc.TOPIC_FILTER_INVALID, 1, 1]  # fmt: skip
    assert codes == (expected if version == 5 else [min(code, 0x80) for code in expected])
    assert list(client.session.subscriptions) == ["a", "$share/g/x", "b"]
    assert node.metrics.packets_subscribe_error == node.metrics.packets_subscribe_auth_error == 1
    assert sum(node.metrics.refusals.snapshot().values()) == 5


@pytest.mark.parametrize(
    "zone, filter, code",
    [
        ({"wildcard_subscription": False}, "a/+", rc.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
        ({"shared_subscription": False}, "$share/g/a", rc.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
        ({"suback_denied_code": 0x80}, "denied/a", rc.UNSPECIFIED_ERROR),
        ({"max_subscriptions": 1}, "second", rc.QUOTA_EXCEEDED),
        ({"max_subscriptions": 1}, "first", 0),
    ],
)
def test_what_the_zone_does_not_allow(zone: dict[str, Any], filter: str, code: int) -> None:
    client = FakeNode(zone, access=DENY).connect()
    assert client.subscribe("first") == [0]
    assert client.subscribe(filter) == [code]


@pytest.mark.parametrize("filter", ["$share/g/$share/x", "$share/g/$queue/", "$share/g/$share", "$queue/$queue"])
def test_what_is_shared_may_begin_like_a_shared_one(filter: str) -> None:
    client = FakeNode(access=DENY).connect()
    assert client.subscribe(filter) == [0]


def test_a_denial_may_close_and_ends_the_packet_there() -> None:
    """What follows in the same SUBSCRIBE is not put into a session that has ended."""
    node = FakeNode({"acl_deny_action": "disconnect"}, access=DENY)
    client = node.connect()
    client.send(Subscribe(1, [TopicFilter("a"), TopicFilter("denied/x"), TopicFilter("b")]))
    (bye,) = client.received()
    assert isinstance(bye, Disconnect) and bye.reason_code == rc.NOT_AUTHORIZED
    assert client.closed
    assert node.broker.router.subscription_count == 0
    assert len(node.broker.sessions) == 0


def test_no_local_on_a_shared_subscription_is_an_error() -> None:
    """[MQTT-3.8.3-4]"""
    node = FakeNode()
    client = node.connect()
    client.send(Subscribe(1, [TopicFilter("$share/g/t", 0, no_local=True)]))
    assert [each.reason_code for each in client.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]
    shared = FakeNode({"ignore_loop_deliver": True}).connect()
    assert shared.subscribe("$share/g/t") == [0]
    shared.publish("t", b"own")
    assert shared.payloads() == [b"own"]


def test_a_bridge_gets_no_local_and_retain_as_published() -> None:
    node = FakeNode()
    bridge = node.open(4)
    bridge.connect("b", is_bridge=True)
    bridge.subscribe("#")
    bridge.publish("t", b"own")
    node.publish("t", b"x", retain=True)
    assert [(each.payload, each.retain) for each in bridge.messages()] == [(b"x", True)]
    assert bridge.subscribe("$share/g/u") == [0]


def test_subscribing_again_replaces() -> None:
    """[MQTT-3.8.4-3]"""
    node = FakeNode()
    client = node.connect()
    client.subscribe("t", qos=0, properties={c.SUBSCRIPTION_IDENTIFIER: 1})
    client.subscribe("t", qos=1, properties={c.SUBSCRIPTION_IDENTIFIER: 2})
    node.publish("t", b"", 1)
    (message,) = client.messages()
    assert (message.qos, message.properties) == (1, {c.SUBSCRIPTION_IDENTIFIER: [2]})


def test_suback_comes_before_the_retained_messages() -> None:
    node = FakeNode()
    node.publish("t", b"x", retain=True)
    client = node.connect()
    client.feed(Subscribe(9, [TopicFilter("t")]))
    suback, message = client.received()
    assert suback == Suback(9, [0])
    assert isinstance(message, Publish) and message.retain


def test_an_identifier_in_use() -> None:
    """[MQTT-2.2.1-3]: a 5.0 client is told, an old one is taken at its word."""
    for version, codes in ((5, [rc.PACKET_IDENTIFIER_IN_USE] * 2), (4, [0, 0])):
        node = FakeNode()
        client = node.connect(version=version)
        client.publish("t", b"", 2, 7)
        client.received()
        assert client.subscribe("a", "b") == codes
        assert len(client.session.subscriptions) == (0 if version == 5 else 2)
        client.send(Unsubscribe(7, ["a"]))
        (unsuback,) = client.received()
        assert unsuback == Unsuback(7, [rc.PACKET_IDENTIFIER_IN_USE] if version == 5 else [])
        assert node.metrics.packets_unsubscribe_error == (version == 5)


def test_unsubscribe() -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.11.3-1]"""
    node = FakeNode()
    client = node.connect()
    client.subscribe("a", "b/#", "$share/g/c")
    answers = client.ask(Unsubscribe(3, ["b/#", "A", "$share/g/c", "$share/h/a"]))
    assert answers == [Unsuback(3, [0, rc.NO_SUBSCRIPTION_EXISTED, 0, rc.NO_SUBSCRIPTION_EXISTED])]
    assert list(client.session.subscriptions) == ["a"]
    node.publish("b/c")
    assert client.messages() == []


def test_unsubscribing_while_retained_messages_come() -> None:
    """[MQTT-3.10.4-2]"""
    node = FakeNode({"max_inflight": 1})
    for number in range(5):
        node.publish(f"r/{number}", b"x", 1, retain=True)
    client = node.connect()
    client.subscribe("r/#", qos=1)
    (first,) = client.messages()
    client.ask(Unsubscribe(3, ["r/#"]))
    client.puback(first.packet_id)
    (second,) = client.messages()  # it waited already [MQTT-3.10.4-3]
    client.puback(second.packet_id)
    assert client.messages() == []


def test_mount_points() -> None:
    node = FakeNode()
    client = node.connect("c", zone={"mountpoint": "m/"})
    assert client.subscribe("t", "$share/g/s/#") == [0, 0]
    assert list(client.session.subscriptions) == ["m/t", "$share/g/m/s/#"]
    node.publish("m/t")
    node.publish("m/s/1")
    assert [each.topic for each in client.messages()] == ["t", "s/1"]
    answers = client.ask(Unsubscribe(3, ["t", "$share/g/s/#", "m/t", "$share/"]))
    assert answers == [Unsuback(3, [0, 0, rc.NO_SUBSCRIPTION_EXISTED, rc.TOPIC_FILTER_INVALID])]
    assert client.session.subscriptions == {}


def test_hooks_change_the_filters() -> None:
    node = FakeNode()
    node.hooks.client_subscribe.add(lambda filters, client, properties: [TopicFilter("changed", 1)])
    node.hooks.client_unsubscribe.add(lambda filters, client, properties: ["changed"])
    client = node.connect()
    assert client.subscribe("t") == [1]
    assert list(client.session.subscriptions) == ["changed"]
    assert client.ask(Unsubscribe(3, ["t"])) == [Unsuback(3, [0])]


@pytest.mark.parametrize("what", [Subscribe(9, [TopicFilter("t")] * 24), Unsubscribe(9, ["t"] * 24)])
def test_an_answer_that_does_not_fit(what: Subscribe | Unsubscribe) -> None:
    """[MQTT-3.1.2-24]: what the client cannot be told of is not done."""
    node = FakeNode()
    client = node.connect(properties={c.MAXIMUM_PACKET_SIZE: 28})
    assert client.subscribe(*["t"] * 23) == [0] * 23
    assert client.subscribe("t") == [0]
    client.send(Unsubscribe(2, ["x"] * 23))
    (unsuback,) = client.received()
    assert isinstance(unsuback, Unsuback)
    session = client.session
    session.pop_subscription("t")
    client.send(what)
    (bye,) = client.received()
    assert isinstance(bye, Disconnect) and bye.reason_code == rc.PACKET_TOO_LARGE
    assert client.closed and session.subscriptions == {}
    assert node.metrics.disconnects.snapshot() == {"packet_too_large": 1}


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("mountpoint", ["", "m/"])
def test_what_is_no_topic_filter_is_refused_on_its_own(version: int, mountpoint: str) -> None:
    """The entry fails, the others are taken and the client stays [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.8.2-1]
    [MQTT-4.8.2-2] [3.1.1 MQTT-4.7.1-2] [3.1.1 MQTT-4.7.1-3]."""
    client = FakeNode({"mountpoint": mountpoint}).connect(version=version)
    none = ["a/#/b", "a+", "#a", "a/+b/c", "++", "$share", "$share/g", "$share//t", "$share/+/t", "$share/g/a#"]
    failed = rc.TOPIC_FILTER_INVALID if version == 5 else 0x80
    assert client.subscribe("a", *none, "b") == [0, *[failed] * len(none), 0]
    client.send(Unsubscribe(7, ["a", *none, "c"]))
    (unsuback,) = client.received()
    assert isinstance(unsuback, Unsuback)
    if version == 5:
        none_there = rc.NO_SUBSCRIPTION_EXISTED
        assert unsuback.reason_codes == [0, *[rc.TOPIC_FILTER_INVALID] * len(none), none_there]
    assert not client.closed


@pytest.mark.parametrize("kind", [Subscribe, Unsubscribe])
@pytest.mark.asyncio
async def test_what_came_behind_very_many_filters_counts_whoever_has_gone(kind: type) -> None:
    """A PUBLISH and a DISCONNECT that were received are taken: no Will is due then [MQTT-3.14.4-3]."""
    node = FakeNode()
    watcher = node.connect("watcher", version=4)
    watcher.subscribe("said", "will")
    client = node.connect("c", will=Will("will", b"will"))
    filters = [f"f/{number}" for number in range(2 * FILTERS_PER_ITERATION + 1)]
    many = Subscribe(1, [TopicFilter(each, 0) for each in filters]) if kind is Subscribe else Unsubscribe(1, filters)
    client.send(many, Publish("said", b"said"), Disconnect())
    client.vanish()
    for _ in range(10):
        await asyncio.sleep(0)
        node.run()
    assert watcher.payloads() == [b"said"]
    assert len(node.server.connections) == 1
