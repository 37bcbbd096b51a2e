"""SUBSCRIBE and UNSUBSCRIBE: one Reason Code for each filter, and what is in force afterwards."""

from typing import Any

import pytest

from broker.mqtt import constants as c
from broker.mqtt import reason_codes as rc
from broker.mqtt.packets import Disconnect, Suback, Subscribe, TopicFilter, Unsuback, Unsubscribe
from tests.support.fake_transport import House
from tests.support.wire import Publish

DENY = {"rules": [{"allow": False, "action": "subscribe", "topics": ["denied/#"]}]}


@pytest.mark.parametrize("version", [3, 4, 5])
def test_each_filter_has_its_code_in_order(version: int) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1]"""
    house = House({"max_topic_levels": 3, "max_qos": 1}, access=DENY)
    client = house.connect(version=version)
    filters = ["a", "a/#/b", "denied/x", "b+", "$share/g", "a/b/c/d", "$share/g/x", "b"]
    codes = client.subscribe(*filters, qos=2)
    expected = [1, rc.TOPIC_FILTER_INVALID, rc.NOT_AUTHORIZED, rc.TOPIC_FILTER_INVALID, rc.TOPIC_FILTER_INVALID,
                rc.TOPIC_FILTER_INVALID, 1, 1]  # fmt: skip
    assert codes == (expected if version == 5 else [min(code, 0x80) for code in expected])
    assert list(client.session.subscriptions) == ["a", "$share/g/x", "b"]
    assert house.metrics.packets_subscribe_error == house.metrics.packets_subscribe_auth_error == 1
    assert sum(house.metrics.refusals.snapshot().values()) == 5


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
    client = House(zone, access=DENY).connect()
    assert client.subscribe("first") == [0]
    assert client.subscribe(filter) == [code]


def test_a_denial_may_close_and_ends_the_packet_there() -> None:
    """What follows in the same SUBSCRIBE is not put into a session that has ended."""
    house = House({"acl_deny_action": "disconnect"}, access=DENY)
    client = house.connect()
    client.send(Subscribe(1, [TopicFilter("a"), TopicFilter("denied/x"), TopicFilter("b")]))
    (bye,) = client.received()
    assert isinstance(bye, Disconnect) and bye.reason_code == rc.NOT_AUTHORIZED
    assert client.closed
    assert house.broker.router.subscription_count == 0
    assert len(house.broker.sessions) == 0


def test_no_local_on_a_shared_subscription_is_an_error() -> None:
    """[MQTT-3.8.3-4]"""
    house = House()
    client = house.connect()
    client.send(Subscribe(1, [TopicFilter("$share/g/t", 0, no_local=True)]))
    assert [each.reason_code for each in client.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]
    shared = House({"ignore_loop_deliver": True}).connect()
    assert shared.subscribe("$share/g/t") == [0]
    shared.publish("t", b"own")
    assert shared.payloads() == [b"own"]


def test_a_bridge_gets_no_local_and_retain_as_published() -> None:
    house = House()
    bridge = house.open(4)
    bridge.connect("b", is_bridge=True)
    bridge.subscribe("#")
    bridge.publish("t", b"own")
    house.publish("t", b"x", retain=True)
    assert [(each.payload, each.retain) for each in bridge.messages()] == [(b"x", True)]
    assert bridge.subscribe("$share/g/u") == [0]


def test_subscribing_again_replaces() -> None:
    """[MQTT-3.8.4-3]"""
    house = House()
    client = house.connect()
    client.subscribe("t", qos=0, properties={c.SUBSCRIPTION_IDENTIFIER: 1})
    client.subscribe("t", qos=1, properties={c.SUBSCRIPTION_IDENTIFIER: 2})
    house.publish("t", b"", 1)
    (message,) = client.messages()
    assert (message.qos, message.properties) == (1, {c.SUBSCRIPTION_IDENTIFIER: [2]})


def test_suback_comes_before_the_retained_messages() -> None:
    house = House()
    house.publish("t", b"x", retain=True)
    client = house.connect()
    client.feed(Subscribe(9, [TopicFilter("t")]))
    suback, message = client.received()
    assert suback == Suback(9, [0])
    assert isinstance(message, Publish) and message.retain


def test_an_identifier_in_use() -> None:
    """[MQTT-2.2.1-3]: a 5.0 client is told, an old one is taken at its word."""
    for version, codes in ((5, [rc.PACKET_IDENTIFIER_IN_USE] * 2), (4, [0, 0])):
        house = House()
        client = house.connect(version=version)
        client.publish("t", b"", 2, 7)
        client.received()
        assert client.subscribe("a", "b") == codes
        assert len(client.session.subscriptions) == (0 if version == 5 else 2)
        client.send(Unsubscribe(7, ["a"]))
        (unsuback,) = client.received()
        assert unsuback == Unsuback(7, [rc.PACKET_IDENTIFIER_IN_USE] if version == 5 else [])
        assert house.metrics.packets_unsubscribe_error == (version == 5)


def test_unsubscribe() -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.11.3-1]"""
    house = House()
    client = house.connect()
    client.subscribe("a", "b/#", "$share/g/c")
    answers = client.ask(Unsubscribe(3, ["b/#", "A", "$share/g/c", "$share/h/a"]))
    assert answers == [Unsuback(3, [0, rc.NO_SUBSCRIPTION_EXISTED, 0, rc.NO_SUBSCRIPTION_EXISTED])]
    assert list(client.session.subscriptions) == ["a"]
    house.publish("b/c")
    assert client.messages() == []


def test_unsubscribing_while_retained_messages_come() -> None:
    """[MQTT-3.10.4-2]"""
    house = House({"max_inflight": 1})
    for number in range(5):
        house.publish(f"r/{number}", b"x", 1, retain=True)
    client = house.connect()
    client.subscribe("r/#", qos=1)
    (first,) = client.messages()
    client.ask(Unsubscribe(3, ["r/#"]))
    client.puback(first.packet_id)
    (second,) = client.messages()  # it waited already [MQTT-3.10.4-3]
    client.puback(second.packet_id)
    assert client.messages() == []


def test_mount_points() -> None:
    house = House()
    client = house.connect("c", zone={"mountpoint": "m/"})
    assert client.subscribe("t", "$share/g/s/#") == [0, 0]
    assert list(client.session.subscriptions) == ["m/t", "$share/g/m/s/#"]
    house.publish("m/t")
    house.publish("m/s/1")
    assert [each.topic for each in client.messages()] == ["t", "s/1"]
    answers = client.ask(Unsubscribe(3, ["t", "$share/g/s/#", "m/t", "$share/"]))
    assert answers == [Unsuback(3, [0, 0, rc.NO_SUBSCRIPTION_EXISTED, rc.TOPIC_FILTER_INVALID])]
    assert client.session.subscriptions == {}


def test_hooks_change_the_filters() -> None:
    house = House()
    house.hooks.client_subscribe.add(lambda filters, client, properties: [TopicFilter("changed", 1)])
    house.hooks.client_unsubscribe.add(lambda filters, client, properties: ["changed"])
    client = house.connect()
    assert client.subscribe("t") == [1]
    assert list(client.session.subscriptions) == ["changed"]
    assert client.ask(Unsubscribe(3, ["t"])) == [Unsuback(3, [0])]


def test_an_answer_that_does_not_fit() -> None:
    """[MQTT-3.1.2-24]"""
    house = House()
    client = house.connect(properties={c.MAXIMUM_PACKET_SIZE: 30})
    client.send(Subscribe(1, [TopicFilter("t")] * 40))
    client.send(Unsubscribe(2, ["t"] * 40))
    assert client.received() == []
    assert (house.metrics.packets_suback_sent, house.metrics.packets_unsuback_sent) == (0, 0)
