"""Packets that came in one read: taken together where they are of a kind, with nothing else to show for it."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from taipan.broker.channel import closing, dispatcher
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Ack, Pingreq, Subscribe, TopicFilter
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_node import FakeClient, FakeNode, acknowledgements
from tests.support.wire import Publish, encode

versions = pytest.mark.parametrize("version", [4, 5])


def burst(first: int, last: int, topic: str = "t", qos: int = 1, **keys: Any) -> list[Publish]:
    return [Publish(topic, b"%d" % number, qos, packet_id=number, **keys) for number in range(first, last + 1)]


def two(node: FakeNode, version: int = 4, qos: int = 2, topic: str = "t") -> tuple[FakeClient, FakeClient]:
    """A subscriber, and a publisher that was admitted to the topic before."""
    reader = node.connect("r", version=version)
    reader.subscribe(topic, qos=qos)
    writer = node.connect("w", version=version)
    writer.publish(topic, b"first")
    assert reader.payloads() == [b"first"]
    return reader, writer


def drained(reader: FakeClient) -> list[Publish]:
    """All messages there are for it, each acknowledged."""
    got: list[Publish] = []
    while True:
        packets = reader.received()
        if not packets:
            return got
        for packet in packets:
            if isinstance(packet, Publish):
                got.append(packet)
                if packet.qos:
                    reader.feed(Ack(c.PUBACK if packet.qos == 1 else c.PUBREC, packet.packet_id))
            elif packet.type == c.PUBREL:  # type: ignore[union-attr]
                reader.feed(Ack(c.PUBCOMP, packet.packet_id))  # type: ignore[union-attr]


@versions
def test_a_run_is_delivered_and_acknowledged_in_its_order(version: int) -> None:
    """[MQTT-4.3.2-4] [MQTT-4.6.0-2] [MQTT-4.6.0-6]"""
    node = FakeNode({"max_inflight": 4})
    reader, writer = two(node, version)
    writer.send(*burst(1, 10))
    assert acknowledgements(writer) == [(c.PUBACK, number, 0) for number in range(1, 11)]
    first = reader.messages()
    assert [(each.payload, each.qos) for each in first] == [(b"%d" % number, 1) for number in range(1, 5)]
    assert reader.session.queued == 6
    reader.puback(*(each.packet_id for each in first))
    assert [each.payload for each in drained(reader)] == [b"%d" % number for number in range(5, 11)]
    metrics = node.metrics
    assert (metrics.messages_qos1_received, metrics.packets_puback_sent, metrics.messages_publish) == (10, 10, 11)
    assert (metrics.messages_qos1_sent, metrics.messages_acked) == (10, 10)
    assert (metrics.client_acl_allow, metrics.messages_delivered) == (12, 11)
    assert writer.connection.traffic().received1 == 10


@versions
def test_all_kinds_in_one_read(version: int) -> None:
    node = FakeNode()
    reader, writer = two(node, version)
    other = node.connect("o", version=version)
    other.subscribe("u", qos=1)
    sent = [
        *burst(1, 2),
        Publish("t", b"0"),
        *burst(3, 3),
        *burst(4, 5, qos=2),
        *burst(6, 7, "u"),
        *burst(8, 9),
        Publish("t", b"10", 1, True, packet_id=10),
        *burst(11, 12),
    ]
    writer.send(*sent)
    kinds = {number: c.PUBREC if number in (4, 5) else c.PUBACK for number in range(1, 13)}
    assert acknowledgements(writer) == [(kind, number, 0) for number, kind in kinds.items()]
    mine = [each for each in sent if each.topic == "t"]
    assert [(each.payload, each.qos) for each in drained(reader)] == [(each.payload, each.qos) for each in mine]
    assert [each.payload for each in drained(other)] == [b"6", b"7"]
    assert node.broker.retained.get("t").payload == b"10"  # type: ignore[union-attr]


def test_what_is_too_large_for_the_subscriber_takes_no_place_of_its_window() -> None:
    """[MQTT-3.1.2-25]: the rest of the run must not wait for an acknowledgement that never comes."""
    node = FakeNode()
    reader = node.connect("r", properties={c.MAXIMUM_PACKET_SIZE: 50, c.RECEIVE_MAXIMUM: 2})
    reader.subscribe("t", qos=1)
    writer = node.connect("w")
    writer.publish("t", b"first")
    assert reader.payloads() == [b"first"]
    large = [Publish("t", b"x" * 60, 1, packet_id=number) for number in (1, 2, 4, 6)]
    one, two, four, six = large
    writer.send(one, two, *burst(3, 3), four, *burst(5, 5), six, *burst(7, 7))
    assert [each.payload for each in drained(reader)] == [b"3", b"5", b"7"]
    assert reader.session.queued == 0
    writer.send(*large[:2], *large[:2], *burst(9, 9))
    assert [each.payload for each in drained(reader)] == [b"9"]


@versions
def test_a_bad_packet_behind_a_run(version: int) -> None:
    """[MQTT-4.13.1-1]: what came before it is done and answered, and nothing behind it."""
    node = FakeNode()
    reader, writer = two(node, version)
    good = b"".join(encode(each, version) for each in burst(1, 5))
    writer.transport.feed(good + b"\x36\x00" + b"".join(encode(each, version) for each in burst(6, 9)))
    node.run()
    answers = writer.received()
    assert [each.packet_id for each in answers if isinstance(each, Ack)] == [1, 2, 3, 4, 5]
    assert writer.closed
    assert [each.payload for each in reader.messages()] == [b"1", b"2", b"3", b"4", b"5"]


def test_more_than_the_receive_maximum_in_one_read() -> None:
    """Of QoS 1 all are taken and answered, also beside QoS 2 that waits for PUBREL."""
    node = FakeNode({"receive_maximum": 6})
    reader, writer = two(node, 5)
    writer.send(*burst(1, 8))
    assert len(acknowledgements(writer)) == 8
    assert len(drained(reader)) == 8
    writer.send(Publish("t", b"", 2, packet_id=9), *burst(1, 8))
    assert len(acknowledgements(writer)) == 9
    assert node.metrics.packets_publish_dropped == 0 and not writer.closed


def test_a_hook_that_ends_the_publisher_in_the_middle() -> None:
    node = FakeNode()
    reader, writer = two(node)

    def end(message: Any) -> Any:
        if message.payload == b"3":
            closing.kick(node.context.channels["w"])
        return message

    node.hooks.message_publish.add(end)
    writer.send(*burst(1, 6))
    assert writer.closed
    assert [each.payload for each in reader.messages()] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("name", ["message_acked", "delivery_completed"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_hook_that_ends_the_subscriber_in_the_middle(name: str, qos: int) -> None:
    node = FakeNode()
    reader, writer = two(node)
    writer.send(*burst(1, 4, qos=qos))
    ids = [each.packet_id for each in reader.messages()]
    heard: list[bytes] = []

    def end(client: Any, message: Any, *more: Any) -> None:
        heard.append(message.payload)
        if message.payload == b"2":
            closing.kick(node.context.channels["r"])

    getattr(node.hooks, name).add(end)
    if qos == 1:
        reader.puback(*ids)
    else:
        reader.pubrec(*ids)
        if not reader.closed:
            reader.pubcomp(*ids)
    assert reader.closed
    assert heard == [b"1", b"2"]


def test_a_hook_hears_of_each_message_of_a_run() -> None:
    node = FakeNode()
    _, writer = two(node)
    heard: list[bytes] = []

    def hear(message: Any) -> Any:
        heard.append(message.payload)
        return message

    node.hooks.message_publish.add(hear)
    writer.send(*burst(1, 3))
    assert heard == [b"1", b"2", b"3"]


def test_a_run_is_not_taken_by_rules_that_have_changed() -> None:
    node = FakeNode()
    reader, writer = two(node)
    metrics = node.metrics
    hits = metrics.client_acl_cache_hit
    writer.send(*burst(1, 3))
    assert metrics.client_acl_cache_hit == hits + 3
    node.context.authorization.generation += 1
    writer.send(*burst(4, 6))
    assert metrics.client_acl_cache_hit == hits + 5  # the first was asked about anew
    assert len(drained(reader)) == 6 and len(acknowledgements(writer)) == 6


@pytest.mark.interpreted
def test_what_is_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def watched(channel: Any, run: Any, now: float) -> int:
        taken.append(publish_run(channel, run, now))
        return taken[-1]

    publish_run = dispatcher.publish_run
    monkeypatch.setattr(dispatcher, "publish_run", watched)
    node = FakeNode()
    _, writer = two(node)
    writer.send(*burst(1, 5))
    writer.send(*burst(6, 7), Pingreq(), *burst(8, 10), Publish("t", b"", 1, True, packet_id=11), *burst(12, 13))
    assert taken == [5, 2, 3, 2]
    taken.clear()
    writer.send(*burst(14, 14), *burst(15, 15, "nobody"), *burst(16, 16), Publish("t", b""), *burst(17, 17))
    assert taken == []
    writer.send(*burst(18, 20, "nobody"), *burst(21, 23))
    assert taken == [0]  # not worth a second look in this read
    shared = node.connect("s")
    shared.subscribe("$share/g/t", qos=1)
    taken.clear()
    writer.send(*burst(24, 26))
    assert taken == [0] and len(drained(shared)) == 3


def _rewriting(*rules: tuple[str, str, str]) -> FakeNode:
    keys = ("source_topic", "re", "dest_topic")
    node = FakeNode(rewrite={"rules": [{"action": "publish", **dict(zip(keys, rule, strict=True))} for rule in rules]})
    node.server.rewrite.load()
    return node


@pytest.mark.interpreted
@versions
@pytest.mark.parametrize("qos", [0, 1])
def test_a_run_is_rewritten_as_one(version: int, qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    node = _rewriting(("old/#", "^old/(.*)$", "$1"))
    published = node.server.rewrite.published

    def watched(topic: str, publisher: Any) -> str:
        asked.append(topic)
        return published(topic, publisher)

    monkeypatch.setattr(node.server.rewrite, "published", watched)
    reader, writer = two(node, version)
    asked.clear()
    writer.send(*burst(1, 5, "old/t", qos), *burst(6, 8, "t", qos), *burst(9, 10, "old/t", 2))
    assert asked == ["old/t", "t", "old/t", "old/t"]
    got = drained(reader)
    assert [(each.topic, each.payload) for each in got] == [("t", b"%d" % number) for number in range(1, 11)]
    assert node.metrics.messages_publish == 11


@pytest.mark.interpreted
@versions
@pytest.mark.parametrize("qos", [0, 1])
def test_a_run_in_parts_is_rewritten_once(version: int, qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left for later iterations has the topic that the client named."""
    from taipan.broker.core import runs

    monkeypatch.setattr(dispatcher, "DELIVERIES_PER_ITERATION", 10)
    monkeypatch.setattr(runs, "DELIVERIES_PER_ITERATION", 10)
    node = _rewriting(("a", "^a$", "t"), ("t", "^t$", "twice"))
    reader = node.connect("r", version=version)
    reader.subscribe("t", "twice", qos=1)
    writer = node.connect("w", version=version)
    writer.publish("a", b"first")
    assert reader.payloads() == [b"first"]
    writer.send(*burst(1, 20, "a", qos))
    node.run()
    assert [(each.topic, each.payload) for each in drained(reader)] == [("t", b"%d" % n) for n in range(1, 21)]


@pytest.mark.interpreted
@versions
def test_the_budget_of_an_iteration_ends_a_run(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from taipan.broker.core import runs

    monkeypatch.setattr(dispatcher, "DELIVERIES_PER_ITERATION", 10)
    monkeypatch.setattr(runs, "DELIVERIES_PER_ITERATION", 10)
    node = FakeNode()
    reader, writer = two(node, version)
    node.loop.turn()
    writer.feed(*burst(1, 20))
    assert reader.arrived() == []
    node.loop.turn()
    assert [each.payload for each in reader.arrived() if isinstance(each, Publish)] == [b"%d" % n for n in range(1, 7)]
    node.run()
    assert acknowledgements(writer) == [(c.PUBACK, number, 0) for number in range(1, 21)]


def test_so_many_of_one_client_and_no_more_before_the_others() -> None:
    node = FakeNode()
    reader, writer = two(node)
    most = dispatcher.PUBLISHES_PER_ITERATION
    node.loop.turn()
    writer.feed(*burst(1, most + 5))
    assert node.metrics.messages_publish == 1 + most
    node.run()
    assert [each[1] for each in acknowledgements(writer)] == list(range(1, most + 6))
    assert len(drained(reader)) == most + 5


@versions
@pytest.mark.asyncio
async def test_a_durable_run_is_answered_when_it_is_on_disk(version: int) -> None:
    node = DurableFakeNode()
    reader = await node.connect_durable("r")
    reader.feed(Subscribe(1, [TopicFilter("t", 1)]))
    node.store()
    assert len(reader.received()) == 1
    writer = node.connect("w", version=version)
    writer.publish("t", b"first", 0)
    writer.feed(*burst(1, 5))
    node.run()
    assert acknowledgements(writer) == []
    node.store()
    assert acknowledgements(writer) == [(c.PUBACK, number, 0) for number in range(1, 6)]
    assert reader.payloads() == [b"first", b"1", b"2", b"3", b"4", b"5"]
    again = await node.crash().connect_durable("r")
    assert [(each.payload, each.dup) for each in again.messages()] == [(b"%d" % number, True) for number in range(1, 6)]


@versions
@pytest.mark.asyncio
async def test_a_disk_that_fails_in_the_middle(version: int) -> None:
    """What waits for the disk is not answered; what comes meanwhile is refused, or waits unread."""
    node = DurableFakeNode()
    reader = await node.connect_durable("r")
    reader.feed(Subscribe(1, [TopicFilter("t", 1)]))
    node.store()
    assert len(reader.received()) == 1
    writer = node.connect("w", version=version)
    writer.publish("t", b"first", 0)
    writer.feed(*burst(1, 3))
    node.run()
    node.trouble()
    assert acknowledgements(writer) == []
    if version == 5:
        writer.send(*burst(4, 6))
        assert acknowledgements(writer) == []  # in order: behind those that wait
        assert node.metrics.packets_publish_dropped == 3
    node.trouble(None)
    node.store()
    expected = [(c.PUBACK, number, 0) for number in range(1, 4)]
    if version == 5:
        expected += [(c.PUBACK, number, rc.QUOTA_EXCEEDED) for number in range(4, 7)]
    assert acknowledgements(writer) == expected
    assert reader.payloads() == [b"first", b"1", b"2", b"3"]


# --- the same as one at a time ---------------------------------------------------------------------------------------


def packets(random: Random, version: int, more: tuple[str, ...] = ()) -> Iterator[Any]:
    """Some of everything that a publisher sends, also to the topics ``more``."""
    number = 0
    waiting: list[int] = []
    topics = ("t", "t", "t", "u", "nobody", "denied/x", *more)
    for _ in range(random.randrange(1, 30)):
        kind = random.choices(("run", "qos0", "qos2", "retained", "ping", "pubrel"), (6, 2, 2, 1, 1, 2))[0]
        topic = random.choice(topics)
        if kind == "run":
            if more and version == 5 and random.random() < 0.4:
                yield Publish(topic, b"named", properties={c.TOPIC_ALIAS: 1})
                yield Publish("", b"alias", properties={c.TOPIC_ALIAS: 1})
            for _ in range(random.randrange(1, 8)):
                number += 1
                yield Publish(topic, b"%d" % number, 1, packet_id=number, dup=random.random() < 0.1)
        elif kind == "qos0":
            for _ in range(random.randrange(1, 6)):
                yield Publish(topic, b"zero")
        elif kind == "qos2":
            number += 1
            waiting.append(number)
            yield Publish(topic, b"%d" % number, 2, packet_id=number)
        elif kind == "retained":
            number += 1
            yield Publish(topic, b"%d" % number, 1, True, packet_id=number)
        elif kind == "ping":
            yield Pingreq()
        elif waiting:
            for _ in range(random.randrange(1, len(waiting) + 1)):
                yield Ack(c.PUBREL, waiting.pop(0))


ACCESS = {"rules": [{"allow": False, "action": "publish", "topics": ["denied/#"]}]}
REWRITTEN = [
    {"source_topic": "old/#", "re": "^old/(.*)$", "dest_topic": "$1"},
    {"source_topic": "u", "re": "^u$", "dest_topic": "t"},  # not for what the other rule has rewritten
]
OLD = ("old/t", "old/t", "old/t", "old/u", "old/denied/x", "old/nobody", "old/")


@versions
@pytest.mark.parametrize("seed", range(40))
def test_a_read_is_the_same_as_its_packets_one_by_one(seed: int, version: int) -> None:
    _compare(seed, version, (), [])


@versions
@pytest.mark.parametrize("seed", range(40, 100))
def test_a_read_of_rewritten_topics_is_the_same_as_its_packets_one_by_one(seed: int, version: int) -> None:
    _compare(seed, version, OLD, [{**rule, "action": "publish"} for rule in REWRITTEN])


def _compare(seed: int, version: int, more: tuple[str, ...], rewritten: list[dict[str, str]]) -> None:
    outcomes = []
    for together in (True, False):
        random = Random(seed)
        zone = {"max_inflight": random.choice((3, 32)), "max_queued_messages": random.choice((5, 1000))}
        node = FakeNode(zone, access=ACCESS, rewrite={"rules": rewritten})
        if rewritten:
            node.server.rewrite.load()
        readers = []
        heard = _hear(node, random)
        for name, qos in (("a", 0), ("b", 1), ("c", 2)):
            reader = node.connect(name, version=random.choice((4, version)))
            reader.subscribe("t", "u", qos=qos)
            readers.append(reader)
        if random.random() < 0.3:
            reader = node.connect("d", version=5)
            reader.subscribe("t", qos=1, properties={c.SUBSCRIPTION_IDENTIFIER: 5})
            readers.append(reader)
        if random.random() < 0.2:
            reader = node.connect("e", version=5)
            reader.subscribe("$share/g/t", qos=1)
            readers.append(reader)
        if random.random() < 0.2:
            readers[1].vanish()
        writer = node.connect("w", version=version)
        if random.random() < 0.3:
            writer.subscribe(TopicFilter("t", 1, no_local=version == 5))
        answers = []
        for _ in range(3):
            sent = list(packets(random, version, more))
            if together:
                writer.send(*sent)
            else:
                for each in sent:
                    writer.send(each)
            answers += writer.received()
        # Its own messages come to it, and their acknowledgements, each in order; between the two there is none.
        told = [[_told(each) for each in answers if isinstance(each, Publish) == own] for own in (True, False)]
        for reader in readers:
            if not reader.closed:
                told.append([_told(each) for each in drained(reader)])
        counted = {name: value for name, value in node.metrics.snapshot().items() if "bytes" not in name}
        outcomes.append(([*told, heard], counted))
    for both in zip(outcomes[0][0], outcomes[1][0], strict=True):
        assert both[0] == both[1]
    assert {*outcomes[0][1].items()} ^ {*outcomes[1][1].items()} == set()


def _hear(node: FakeNode, random: Random) -> list[tuple[Any, ...]]:
    """What some of the hooks that a message passes are called with, from now on."""
    heard: list[tuple[Any, ...]] = []
    if random.random() < 0.5:
        return heard

    def publish(message: Any) -> Any:
        heard.append(("message_publish", message.topic, message.payload))
        return message

    if random.random() < 0.3:
        node.hooks.message_publish.add(publish)
    for name in ("message_delivered", "message_acked", "delivery_dropped"):
        if random.random() < 0.3:

            def hear(client: Any, *given: Any, name: str = name) -> None:
                message = given[-2] if name == "delivery_dropped" else given[0]
                heard.append((name, client.client_id, message.topic, message.payload))

            getattr(node.hooks, name).add(hear)
    return heard


def _told(packet: Any) -> tuple[Any, ...]:
    if isinstance(packet, Publish):
        properties = tuple(sorted(map(repr, packet.properties.items())))
        return packet.topic, packet.payload, packet.qos, packet.retain, packet.dup, packet.packet_id, properties
    if isinstance(packet, Ack):
        return packet.type, packet.packet_id, packet.reason_code
    return (type(packet).__name__,)
