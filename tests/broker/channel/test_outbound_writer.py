"""OutboundWriter: what a PUBLISH to a client looks like, and what is too much for it, by version."""

from typing import Any

import pytest

from taipan.broker.channel.outbound_writer import OutboundWriter, OutboundWriter5
from taipan.broker.config import ZoneSettings
from taipan.broker.core.hooks import Hooks
from taipan.broker.mqtt.constants import (
    CONTENT_TYPE,
    MAXIMUM_PACKET_SIZE,
    MESSAGE_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.mqtt.packets import TopicFilter
from taipan.broker.mqtt.run import Run
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from tests.support.clock import Clock
from tests.support.fake_node import FakeNode
from tests.support.sessions import make_session
from tests.support.wire import Publish, Reader


class WriterHarness:
    """A writer; ``read`` decodes what it holds."""

    def __init__(self, version: int = 5, max_outbox: int = 1000) -> None:
        self.clock = Clock()
        self.hooks = Hooks()
        self.added = 0
        self.dropped: list[str] = []
        make = OutboundWriter5 if version == 5 else OutboundWriter
        self.writer: Any = make(self, None, self.clock, self.hooks, max_outbox)  # type: ignore[arg-type]
        self.session = make_session("c", observer=self)
        self.client = ClientInfo("node", ZoneSettings(), client_id="c")
        self.session.client = self.client
        self.reader = Reader(version)

    def open(self, mountpoint: str = "") -> "WriterHarness":
        self.writer.open(self.session, mountpoint)
        return self

    def wake(self) -> None:
        pass

    def add(self, writer: OutboundWriter) -> list[bytes]:
        self.added += 1
        writer.parts = []
        return writer.parts

    def delivery_dropped(self, session: Session, delivery: Delivery, reason: str) -> None:
        self.dropped.append(reason)

    def message(self, topic: str = "t", payload: bytes = b"x", **properties: Any) -> Message:
        return Message(topic, payload, 1, properties=properties.get("properties", {}), timestamp=self.clock.time)

    def read(self) -> list[Publish]:
        data = b"".join(self.writer.parts or ())
        self.writer.parts = None
        return [packet for packet, _ in self.reader.feed(data)]  # type: ignore[misc]


versions = pytest.mark.parametrize("version", [3, 4, 5])


@versions
@pytest.mark.parametrize("mountpoint", ["", "m/"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_all_forms(version: int, mountpoint: str, qos: int, dup: bool, retain: bool) -> None:
    """[MQTT-3.3.1-1] [MQTT-2.2.1-2]; the mount point never shows."""
    harness = WriterHarness(version).open(mountpoint)
    dup = dup and qos > 0
    for _ in range(2):  # the second time from the delivery's cached form
        delivery = Delivery(harness.message(mountpoint + "t"), qos, retain)
        assert harness.writer.send_publish(delivery, 7 if qos else 0, dup)
        assert harness.writer.send_publish(delivery, 8 if qos else 0, dup)
        expected = Publish("t", b"x", qos, retain, dup, 7 if qos else 0)
        assert harness.read() == [expected, Publish("t", b"x", qos, retain, dup, 8 if qos else 0)]


@versions
def test_the_shared_form_of_qos0(version: int) -> None:
    harness = WriterHarness(version).open()
    message = harness.message("t")
    harness.writer.send_publish0(message)
    harness.writer.send_publish0(message)
    assert harness.writer.parts is not None and harness.writer.parts[0] is harness.writer.parts[1]
    assert harness.read() == [Publish("t", b"x")] * 2
    mounted = WriterHarness(version).open("m/")
    mounted.writer.send_publish0(harness.message("m/t"))
    mounted.writer.send_publish0(harness.message("elsewhere"))
    assert mounted.read() == [Publish("t", b"x"), Publish("elsewhere", b"x")]


@versions
def test_several_of_qos0_at_once(version: int) -> None:
    harness = WriterHarness(version).open()
    messages = [harness.message("t", b"%d" % number) for number in range(3)]
    harness.writer.send_run0(Run("t", 0, messages))
    assert (harness.writer.sent0, harness.added) == (3, 1)
    assert harness.writer.takes_packets(5) == (version == 5)
    assert harness.writer.takes_packets(4) == (version != 5)
    harness.writer.send_packets0(b"".join(harness.writer.parts[:2]), 2)
    assert harness.writer.sent0 == 5
    assert [each.payload for each in harness.read()] == [b"0", b"1", b"2", b"0", b"1"]
    harness.writer.set_writable(False)
    assert not harness.writer.takes_packets(version)
    harness.writer.send_run0(Run("t", 0, messages))
    assert harness.writer.backlog
    mounted = WriterHarness(version).open("m/")
    assert not mounted.writer.takes_packets(version)
    mounted.writer.send_run0(Run("m/t", 0, [harness.message("m/t")]))
    assert mounted.read() == [Publish("t", b"x")]


@versions
@pytest.mark.parametrize("size", [1, 125, 126, 20_000, 3_000_000])
def test_several_retained_ones_at_once(version: int, size: int) -> None:
    """The same bytes as one by one, whatever the client asks of each: [MQTT-3.3.1-8] [MQTT-3.3.4-3] [MQTT-3.3.2-6]."""
    properties = [{}, {CONTENT_TYPE: "c", USER_PROPERTY: [("a", "b")]}, {MESSAGE_EXPIRY_INTERVAL: 10}]
    for identifiers in ((), (1,), (300,)):
        for mountpoint in ("", "m/"):
            harness = WriterHarness(version, 10_000_000).open(mountpoint)
            messages = [harness.message(f"{mountpoint}t\u00e9", b"x" * size, properties=each) for each in properties]
            harness.clock.time += 3
            for message in messages:
                harness.writer.send_publish(Delivery(message, 0, True, identifiers), 0, False)
            singly = b"".join(harness.writer.parts)
            harness.writer.parts = None
            assert harness.writer.send_retained0(messages, identifiers) == 3
            assert b"".join(harness.writer.parts) == singly
            assert harness.writer.sent0 == 6
            seen = harness.read()
            assert [(each.topic, each.retain, len(each.payload)) for each in seen] == [("t\u00e9", True, size)] * 3
            if version == 5:
                assert seen[2].properties[MESSAGE_EXPIRY_INTERVAL] == 7
                assert seen[0].properties.get(SUBSCRIPTION_IDENTIFIER, []) == list(identifiers)


def test_retained_ones_that_a_client_cannot_take_are_dropped_and_hooks_hear_of_the_others() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    harness = WriterHarness().open()
    harness.writer.max_packet_size = 30
    harness.writer.open(harness.session, "")
    told: list[bytes] = []
    messages = [harness.message("t", b"x" * length) for length in (1, 40, 2)]
    assert harness.writer.send_retained0(messages, ()) == 3
    harness.hooks.message_delivered.add(lambda client, message: told.append(message.payload))
    harness.writer.send_retained0(messages, ())
    assert [len(each.payload) for each in harness.read()] == [1, 2, 1, 2]
    assert (harness.dropped, told) == (["too_large"] * 2, [b"x", b"xx"])


@versions
def test_the_flusher_hears_of_the_first_part_only(version: int) -> None:
    for send in (
        lambda writer: writer.send(b"\xd0\x00"),
        lambda writer: writer.send_pubrel(1),
        lambda writer: writer.send_publish0(Message("t")),
        lambda writer: writer.send_publish(Delivery(Message("t"), 1), 1, False),
        lambda writer: writer.send_publish(Delivery(Message("t", properties={2: 9}), 1), 1, False),
    ):
        harness = WriterHarness(version).open()
        for expected in (1, 1):
            harness.clock.time = 0
            send(harness.writer)
            assert harness.added == expected
        harness.writer.parts = None
        send(harness.writer)
        assert harness.added == 2


@versions
def test_what_is_sent_is_counted_and_told(version: int) -> None:
    harness = WriterHarness(version)
    told: list[tuple[Any, str]] = []
    harness.hooks.message_delivered.add(lambda client, message: told.append((client, message.topic)))
    harness.writer.send_publish0(harness.message("nobody is let in yet"))
    assert told == []
    harness.open()
    harness.writer.send_publish0(harness.message("a"))
    for qos, topic in enumerate("bcd"):
        harness.writer.send_publish(Delivery(harness.message(topic), qos), qos, False)
    harness.writer.send_pubrel(1)
    writer = harness.writer
    assert (writer.sent0, writer.sent1, writer.sent2, writer.sent_other) == (3, 1, 1, 1)
    assert told == [(harness.client, topic) for topic in "abcd"]


@versions
def test_a_client_that_does_not_read_gets_no_more_qos0_than_fits(version: int) -> None:
    harness = WriterHarness(version, max_outbox=700).open()
    writer = harness.writer
    writer.set_writable(False)
    size = Delivery(harness.message(), 0).size
    for _ in range(4):
        writer.send_publish0(harness.message())
    assert writer.parts is not None and len(writer.parts) == 3
    assert writer.backlog == 3 * size
    assert harness.dropped == ["queue_full"]
    assert writer.send_publish(Delivery(harness.message(), 1), 1, False)  # the window bounds these
    writer.send(b"\xd0\x00")
    assert writer.backlog == 4 * size + 2
    writer.set_writable(True)
    assert writer.fast
    harness = WriterHarness(version, max_outbox=0)
    harness.writer.set_writable(False)
    harness.writer.send_publish0(harness.message())  # before anybody is let in: nobody to tell
    assert harness.dropped == [] and harness.writer.parts is None


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
            harness = WriterHarness().open()
            harness.writer.alias_maximum = aliases
            harness.writer.max_packet_size = 0 if not limit else sizes[0]
            harness.writer._set_fast()
            delivery = Delivery(harness.message("topic", payload, properties=properties), qos, retain)
            assert harness.writer.send_publish(delivery, qos, False)
            sizes.append(sum(map(len, harness.writer.parts or ())))
            assert harness.dropped == []
        assert sizes[0] == sizes[1]
        harness = WriterHarness().open()
        harness.writer.alias_maximum = aliases
        harness.writer.max_packet_size = sizes[0] - 1
        harness.writer._set_fast()
        assert not harness.writer.send_publish(delivery, qos, False)
        if qos == 0 and not retain:
            harness.writer.send_publish0(delivery.message)
            assert harness.dropped.pop() == "too_large"
        assert (harness.writer.parts, harness.dropped, harness.added) == (None, ["too_large"], 0)
        assert (harness.writer.sent0, harness.writer.sent1, harness.writer.sent2) == (0, 0, 0)


# --- Topic Alias ----------------------------------------------------------------------------------------------------


def test_aliases_are_set_by_the_first_and_used_by_the_next() -> None:
    """[MQTT-3.1.2-26]"""
    harness = WriterHarness().open()
    harness.writer.alias_maximum = 2
    harness.writer._set_fast()
    for topic in ("a", "a", "b", "c", "b", "c"):
        harness.writer.send_publish0(harness.message(topic))
    assert [(each.topic, each.properties.get(TOPIC_ALIAS)) for each in harness.read()] == [
        ("a", 1),
        ("", 1),
        ("b", 2),
        ("c", None),
        ("", 2),
        ("c", None),
    ]


def test_no_aliases_unless_the_client_asks() -> None:
    """[MQTT-3.1.2-27]"""
    harness = WriterHarness().open()
    for qos in (0, 1):
        harness.writer.send_publish(Delivery(harness.message(), qos), qos, False)
    assert [each.properties for each in harness.read()] == [{}, {}]


def test_an_alias_that_did_not_go_out_is_not_set() -> None:
    harness = WriterHarness().open()
    harness.writer.alias_maximum = 2
    harness.writer.max_packet_size = 40
    harness.writer._set_fast()
    harness.writer.send_publish0(harness.message("topic", b"x" * 100))
    assert harness.dropped == ["too_large"]
    for _ in range(2):
        harness.writer.send_publish0(harness.message("topic"))
    assert [(each.topic, each.properties[TOPIC_ALIAS]) for each in harness.read()] == [("topic", 1), ("", 1)]


def test_an_alias_is_of_the_topic_the_client_sees() -> None:
    harness = WriterHarness().open("m/")
    harness.writer.alias_maximum = 1
    for _ in range(2):
        harness.writer.send_publish(Delivery(harness.message("m/t"), 1), 1, False)
    assert [each.topic for each in harness.read()] == ["t", ""]


@pytest.mark.parametrize("client, server, used", [(5, 16, 5), (5, 2, 2), (0, 16, 0), (None, 16, 0), (5, 0, 0)])
def test_aliases_keep_within_both_maxima(client: int | None, server: int, used: int) -> None:
    """[MQTT-3.1.2-26] [MQTT-3.1.2-27]"""
    node = FakeNode({"max_outgoing_topic_alias": server})
    properties = {} if client is None else {TOPIC_ALIAS_MAXIMUM: client}
    reader = node.connect("r", properties=properties)
    reader.subscribe("#")
    for number in range(8):
        node.publish(f"t/{number}")
    assert [each.properties.get(TOPIC_ALIAS) for each in reader.messages()] == [
        *range(1, used + 1),
        *[None] * (8 - used),
    ]


# --- Message Expiry Interval ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("waited, left", [(0, 10), (0.9, 10), (1, 9), (9.9, 1), (10, None), (11, None), (-5, 15)])
@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_left_of_the_message_expiry(waited: float, left: int | None, qos: int) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    harness = WriterHarness().open()
    delivery = Delivery(harness.message(properties={MESSAGE_EXPIRY_INTERVAL: 10}), qos)
    harness.clock.advance(waited)
    if qos:
        assert harness.writer.send_publish(delivery, 1, False) is (left is not None)
    else:
        harness.writer.send_publish0(delivery.message)
    assert [each.properties[MESSAGE_EXPIRY_INTERVAL] for each in harness.read()] == ([] if left is None else [left])
    assert harness.dropped == ([] if left is not None else ["expired"])


def test_a_retransmission_is_finished_though_its_time_is_up() -> None:
    """[MQTT-4.3.3-7]"""
    harness = WriterHarness().open()
    delivery = Delivery(harness.message(properties={MESSAGE_EXPIRY_INTERVAL: 10}), 2)
    harness.clock.advance(100)
    assert harness.writer.send_publish(delivery, 1, True)
    assert [each.properties for each in harness.read()] == [{MESSAGE_EXPIRY_INTERVAL: 1}]


def test_an_expiry_of_zero_goes_out_at_once() -> None:
    harness = WriterHarness().open()
    harness.writer.send_publish0(harness.message(properties={MESSAGE_EXPIRY_INTERVAL: 0}))
    assert [each.properties for each in harness.read()] == [{MESSAGE_EXPIRY_INTERVAL: 0}]


def test_3x_is_told_nothing_of_it() -> None:
    harness = WriterHarness(4).open()
    harness.writer.send_publish0(harness.message(properties={MESSAGE_EXPIRY_INTERVAL: 10}))
    assert harness.read() == [Publish("t", b"x")]


# --- together, over a connection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, comes", [(0, True), (1, False)])
@pytest.mark.parametrize("qos", [0, 1])
def test_the_client_s_maximum_packet_size(qos: int, size: int, comes: bool) -> None:
    """[MQTT-3.1.2-25]: dropped, and the window is not used up."""
    node = FakeNode({"max_inflight": 1})
    reader = node.connect("r", properties={MAXIMUM_PACKET_SIZE: 60})
    reader.subscribe("t", qos=qos)
    payload = b"x" * (60 - 2 - 3 - 1 - (2 if qos else 0) + size)
    node.publish("t", payload, qos)
    node.publish("t", b"small", qos)
    assert reader.payloads() == ([payload] if comes else []) + ([] if comes and qos else [b"small"])
    assert node.metrics.delivery_dropped_too_large == (not comes)


def test_identifiers_of_all_matching_subscriptions() -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4] [MQTT-3.3.4-5]"""
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t/#", properties={SUBSCRIPTION_IDENTIFIER: 3})
    reader.subscribe(TopicFilter("t/+", 1), properties={SUBSCRIPTION_IDENTIFIER: 200_000_000})
    reader.subscribe("#")
    node.publish("t/1", qos=2)
    (message,) = reader.messages()
    assert sorted(message.properties[SUBSCRIPTION_IDENTIFIER]) == [3, 200_000_000]
    assert message.qos == 1
