"""Outlet: what a PUBLISH to a client looks like, and what is too much for it, in every version that it concerns."""

from typing import Any

import pytest

from broker.channel.outlet import Outlet, Outlet5
from broker.core.hooks import Hooks
from broker.mqtt.constants import (
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
)
from broker.mqtt.message import Delivery, Message
from broker.mqtt.packets import TopicFilter
from broker.session.limits import Limits
from broker.session.session import Session
from tests.support.clock import Clock
from tests.support.fake_transport import House
from tests.support.wire import Publish, Reader


class Bench:
    """An outlet; ``read`` decodes what it holds."""

    def __init__(self, version: int = 5, max_outbox: int = 1000) -> None:
        self.clock = Clock()
        self.hooks = Hooks()
        self.added = 0
        self.dropped: list[str] = []
        make = Outlet5 if version == 5 else Outlet
        self.outlet: Any = make(self, None, self.clock, self.hooks, max_outbox)  # type: ignore[arg-type]
        self.session = Session("c", Limits(), self, 0.0)  # type: ignore[arg-type]
        self.session.client = "the client"
        self.reader = Reader(version)

    def open(self, mountpoint: str = "") -> "Bench":
        self.outlet.open(self.session, mountpoint)
        return self

    def wake(self) -> None:
        pass

    def add(self, outlet: Outlet) -> None:
        self.added += 1

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        self.dropped.append(reason)

    def message(self, topic: str = "t", payload: bytes = b"x", **properties: Any) -> Message:
        return Message(topic, payload, 1, properties=properties.get("properties", {}), timestamp=self.clock.time)

    def read(self) -> list[Publish]:
        data = b"".join(self.outlet.parts)
        self.outlet.parts.clear()
        return [packet for packet, _ in self.reader.feed(data)]  # type: ignore[misc]


versions = pytest.mark.parametrize("version", [3, 4, 5])


@versions
@pytest.mark.parametrize("mountpoint", ["", "m/"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_all_forms(version: int, mountpoint: str, qos: int, dup: bool, retain: bool) -> None:
    """[MQTT-3.3.1-1] [MQTT-2.2.1-2]; the mount point never shows."""
    bench = Bench(version).open(mountpoint)
    dup = dup and qos > 0
    for _ in range(2):  # the second time from the delivery's cached form
        delivery = Delivery(bench.message(mountpoint + "t"), qos, retain)
        assert bench.outlet.send_publish(delivery, 7 if qos else 0, dup)
        assert bench.outlet.send_publish(delivery, 8 if qos else 0, dup)
        expected = Publish("t", b"x", qos, retain, dup, 7 if qos else 0)
        assert bench.read() == [expected, Publish("t", b"x", qos, retain, dup, 8 if qos else 0)]


@versions
def test_the_shared_form_of_qos0(version: int) -> None:
    bench = Bench(version).open()
    message = bench.message("t")
    bench.outlet.send_publish0(message)
    bench.outlet.send_publish0(message)
    assert bench.outlet.parts[0] is bench.outlet.parts[1]
    assert bench.read() == [Publish("t", b"x")] * 2
    mounted = Bench(version).open("m/")
    mounted.outlet.send_publish0(bench.message("m/t"))
    mounted.outlet.send_publish0(bench.message("elsewhere"))
    assert mounted.read() == [Publish("t", b"x"), Publish("elsewhere", b"x")]


@versions
def test_the_flusher_hears_of_the_first_part_only(version: int) -> None:
    for send in (
        lambda outlet: outlet.send(b"\xd0\x00"),
        lambda outlet: outlet.send_pubrel(1),
        lambda outlet: outlet.send_publish0(Message("t")),
        lambda outlet: outlet.send_publish(Delivery(Message("t"), 1), 1, False),
        lambda outlet: outlet.send_publish(Delivery(Message("t", properties={2: 9}), 1), 1, False),
    ):
        bench = Bench(version).open()
        for expected in (1, 1):
            bench.clock.time = 0
            send(bench.outlet)
            assert bench.added == expected
        bench.outlet.parts.clear()
        send(bench.outlet)
        assert bench.added == 2


@versions
def test_what_is_sent_is_counted_and_told(version: int) -> None:
    bench = Bench(version)
    told: list[tuple[Any, str]] = []
    bench.hooks.message_delivered.add(lambda client, message: told.append((client, message.topic)))
    bench.outlet.send_publish0(bench.message("nobody is let in yet"))
    assert told == []
    bench.open()
    bench.outlet.send_publish0(bench.message("a"))
    for qos, topic in enumerate("bcd"):
        bench.outlet.send_publish(Delivery(bench.message(topic), qos), qos, False)
    bench.outlet.send_pubrel(1)
    outlet = bench.outlet
    assert (outlet.sent0, outlet.sent1, outlet.sent2, outlet.sent_other) == (3, 1, 1, 1)
    assert told == [("the client", topic) for topic in "abcd"]


@versions
def test_a_client_that_does_not_read_gets_no_more_qos0_than_fits(version: int) -> None:
    bench = Bench(version, max_outbox=700).open()
    outlet = bench.outlet
    outlet.set_writable(False)
    size = Delivery(bench.message(), 0).size
    for _ in range(4):
        outlet.send_publish0(bench.message())
    assert len(outlet.parts) == 3
    assert outlet.backlog == 3 * size
    assert bench.dropped == ["queue_full"]
    assert outlet.send_publish(Delivery(bench.message(), 1), 1, False)  # the window bounds these
    outlet.send(b"\xd0\x00")
    assert outlet.backlog == 4 * size + 2
    outlet.set_writable(True)
    assert outlet.fast
    bench = Bench(version, max_outbox=0)
    bench.outlet.set_writable(False)
    bench.outlet.send_publish0(bench.message())  # before anybody is let in: nobody to tell
    assert bench.dropped == [] and bench.outlet.parts == []


# --- Maximum Packet Size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("aliases", [0, 1])
@pytest.mark.parametrize("expiry", [None, 100])
def test_the_maximum_packet_size_is_exact(qos: int, retain: bool, aliases: int, expiry: int | None) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    for payload in (b"", b"x" * 100, b"x" * 130):  # across the second byte of Remaining Length
        properties = {} if expiry is None else {MESSAGE_EXPIRY_INTERVAL: expiry}
        sizes = []
        for limit in (0, 1):
            bench = Bench().open()
            bench.outlet.alias_maximum = aliases
            bench.outlet.max_packet_size = 0 if not limit else sizes[0]
            bench.outlet._set_fast()
            delivery = Delivery(bench.message("topic", payload, properties=properties), qos, retain)
            assert bench.outlet.send_publish(delivery, qos, False)
            sizes.append(sum(map(len, bench.outlet.parts)))
            assert bench.dropped == []
        assert sizes[0] == sizes[1]
        bench = Bench().open()
        bench.outlet.alias_maximum = aliases
        bench.outlet.max_packet_size = sizes[0] - 1
        bench.outlet._set_fast()
        assert not bench.outlet.send_publish(delivery, qos, False)
        if qos == 0 and not retain:
            bench.outlet.send_publish0(delivery.message)
            assert bench.dropped.pop() == "too_large"
        assert (bench.outlet.parts, bench.dropped, bench.added) == ([], ["too_large"], 0)
        assert (bench.outlet.sent0, bench.outlet.sent1, bench.outlet.sent2) == (0, 0, 0)


# --- Topic Alias ----------------------------------------------------------------------------------------------------


def test_aliases_are_set_by_the_first_and_used_by_the_next() -> None:
    """[MQTT-3.1.2-26]"""
    bench = Bench().open()
    bench.outlet.alias_maximum = 2
    bench.outlet._set_fast()
    for topic in ("a", "a", "b", "c", "b", "c"):
        bench.outlet.send_publish0(bench.message(topic))
    assert [(each.topic, each.properties.get(TOPIC_ALIAS)) for each in bench.read()] == [
        ("a", 1),
        ("", 1),
        ("b", 2),
        ("c", None),
        ("", 2),
        ("c", None),
    ]


def test_no_aliases_unless_the_client_asks() -> None:
    """[MQTT-3.1.2-27]"""
    bench = Bench().open()
    for qos in (0, 1):
        bench.outlet.send_publish(Delivery(bench.message(), qos), qos, False)
    assert [each.properties for each in bench.read()] == [{}, {}]


def test_an_alias_that_did_not_go_out_is_not_set() -> None:
    bench = Bench().open()
    bench.outlet.alias_maximum = 2
    bench.outlet.max_packet_size = 40
    bench.outlet._set_fast()
    bench.outlet.send_publish0(bench.message("topic", b"x" * 100))
    assert bench.dropped == ["too_large"]
    for _ in range(2):
        bench.outlet.send_publish0(bench.message("topic"))
    assert [(each.topic, each.properties[TOPIC_ALIAS]) for each in bench.read()] == [("topic", 1), ("", 1)]


def test_an_alias_is_of_the_topic_the_client_sees() -> None:
    bench = Bench().open("m/")
    bench.outlet.alias_maximum = 1
    for _ in range(2):
        bench.outlet.send_publish(Delivery(bench.message("m/t"), 1), 1, False)
    assert [each.topic for each in bench.read()] == ["t", ""]


@pytest.mark.parametrize("client, server, used", [(5, 16, 5), (5, 2, 2), (0, 16, 0), (None, 16, 0), (5, 0, 0)])
def test_aliases_keep_within_both_maxima(client: int | None, server: int, used: int) -> None:
    """[MQTT-3.1.2-26] [MQTT-3.1.2-27]"""
    house = House({"max_outgoing_topic_alias": server})
    properties = {} if client is None else {TOPIC_ALIAS_MAXIMUM: client}
    reader = house.connect("r", properties=properties)
    reader.subscribe("#")
    for number in range(8):
        house.publish(f"t/{number}")
    assert [each.properties.get(TOPIC_ALIAS) for each in reader.messages()] == [
        *range(1, used + 1),
        *[None] * (8 - used),
    ]


# --- Message Expiry Interval ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("waited, left", [(0, 10), (0.9, 10), (1, 9), (9.9, 1), (10, None), (11, None), (-5, 15)])
@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_left_of_the_message_expiry(waited: float, left: int | None, qos: int) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    bench = Bench().open()
    delivery = Delivery(bench.message(properties={MESSAGE_EXPIRY_INTERVAL: 10}), qos)
    bench.clock.advance(waited)
    if qos:
        assert bench.outlet.send_publish(delivery, 1, False) is (left is not None)
    else:
        bench.outlet.send_publish0(delivery.message)
    assert [each.properties[MESSAGE_EXPIRY_INTERVAL] for each in bench.read()] == ([] if left is None else [left])
    assert bench.dropped == ([] if left is not None else ["expired"])


def test_a_retransmission_is_finished_though_its_time_is_up() -> None:
    """[MQTT-4.3.3-7]"""
    bench = Bench().open()
    delivery = Delivery(bench.message(properties={MESSAGE_EXPIRY_INTERVAL: 10}), 2)
    bench.clock.advance(100)
    assert bench.outlet.send_publish(delivery, 1, True)
    assert [each.properties for each in bench.read()] == [{MESSAGE_EXPIRY_INTERVAL: 1}]


def test_an_expiry_of_zero_goes_out_at_once() -> None:
    bench = Bench().open()
    bench.outlet.send_publish0(bench.message(properties={MESSAGE_EXPIRY_INTERVAL: 0}))
    assert [each.properties for each in bench.read()] == [{MESSAGE_EXPIRY_INTERVAL: 0}]


def test_3x_is_told_nothing_of_it() -> None:
    bench = Bench(4).open()
    bench.outlet.send_publish0(bench.message(properties={MESSAGE_EXPIRY_INTERVAL: 10}))
    assert bench.read() == [Publish("t", b"x")]


# --- together, over a connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, comes", [(0, True), (1, False)])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_client_s_maximum_packet_size(qos: int, size: int, comes: bool) -> None:
    """[MQTT-3.1.2-25]: dropped, and the window is not used up."""
    house = House({"max_inflight": 1})
    reader = house.connect("r", properties={MAXIMUM_PACKET_SIZE: 60})
    reader.subscribe("t", qos=qos)
    payload = b"x" * (60 - 2 - 3 - 1 - (2 if qos else 0) + size)
    house.publish("t", payload, qos)
    house.publish("t", b"small", qos)
    assert reader.payloads() == ([payload] if comes else []) + ([] if comes and qos else [b"small"])
    assert house.metrics.delivery_dropped_too_large == (not comes)


def test_identifiers_of_all_matching_subscriptions() -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.4-5]"""
    house = House()
    reader = house.connect("r")
    reader.subscribe("t/#", properties={SUBSCRIPTION_IDENTIFIER: 3})
    reader.subscribe(TopicFilter("t/+", 1), properties={SUBSCRIPTION_IDENTIFIER: 200_000_000})
    reader.subscribe("#")
    house.publish("t/1", qos=2)
    (message,) = reader.messages()
    assert sorted(message.properties[SUBSCRIPTION_IDENTIFIER]) == [3, 200_000_000]
    assert message.qos == 1
