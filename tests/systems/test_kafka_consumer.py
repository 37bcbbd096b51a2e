"""Messages from topics of Kafka, with a real server."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.broker.core.inspection import Answer, Inspection, InspectionLimits
from taipan.broker.core.outcome import NO_SUBSCRIBERS, PUBLISHED, QUEUE_FULL, RESERVED, SOURCE, Outcome, PublisherKind
from taipan.broker.mqtt.message import Message
from taipan.broker.session.memory_account import NORMAL, SLOWING
from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.exhook.inspector import NO_ANSWER
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.kafka import action, consumer, resource
from taipan.ruleengine.sinks.kafka.consumer_resource import CONSUMER
from tests.support.fake_engine import QUICK, FakeEngine, published
from tests.support.waiting import until
from tests.systems.servers.kafka import KafkaServer, Noida, Tansu
from tests.systems.servers.kafka_gate import METADATA, KafkaGate

_numbers = itertools.count(1)


class ReceivingEngine(FakeEngine):
    """``accepted`` are its messages. ``answer``: what the broker says of one."""

    def __init__(self) -> None:
        super().__init__(msgspec.structs.replace(QUICK, max_hops=5))
        self.accepted: list[Message] = []
        self.node = dataclasses.replace(self.node, accept=self.accept)

    def answer(self, message: Message) -> Outcome:
        return PUBLISHED

    def accept(self, message: Message, source: PublisherKind) -> Outcome:
        assert source is SOURCE
        outcome = self.answer(message)
        if not outcome.refused:
            self.accepted.append(message)
        return outcome

    @property
    def payloads(self) -> list[str]:
        return [each.payload.decode() for each in self.accepted]


@pytest.fixture(scope="module")
def kafka_process() -> Iterator[Noida]:
    made = Noida()
    made.start()
    yield made
    made.close()


@pytest.fixture
def kafka(kafka_process: Noida) -> Noida:
    if not kafka_process.runs:
        kafka_process.start()
    return kafka_process


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[ReceivingEngine]:
    made = ReceivingEngine()
    yield made
    made.node.account.level = NORMAL
    await made.close()


def topic_of(server: KafkaServer, partitions: int = 1) -> str:
    name = f"in-{next(_numbers)}"
    server.create(name, partitions)
    return name


def config(server: KafkaServer, topic: str, **mapping: Any) -> dict[str, Any]:
    """Of a group that begins with the oldest record."""
    return {
        "servers": server.address,
        "offset_reset_policy": "reset_to_earliest",
        "group_id": f"group-{topic}",
        "topic_mapping": [{"kafka_topic": topic, "mqtt_topic": "k/${topic}", "qos": 1, **mapping}],
    }


async def arrived(engine: ReceivingEngine, count: int) -> None:
    await until(lambda: len(engine.accepted) >= count)
    assert len(engine.accepted) == count


@pytest.mark.asyncio
@pytest.mark.parametrize("server", [Noida, Tansu])
async def test_records_become_messages(engine: ReceivingEngine, server: type[KafkaServer]) -> None:
    kafka = server()
    kafka.start()
    try:
        topic = topic_of(kafka)
        at = 1_700_000_000_000
        kafka.write(topic, [{"value": b'{"id": 7}', "key": b"k", "headers": [("h", b"x")], "timestamp_ms": at},
                            {"value": b"\xff\x00", "key": b"\xfe"}])  # fmt: skip
        made = engine.run(
            CONSUMER, **config(kafka, topic, mqtt_topic="k/${topic}/${partition}/${offset}", qos=2, retain=True)
        )
        await arrived(engine, 2)
        first, second = engine.accepted
        assert (first.topic, first.payload, first.qos, first.retain) == (f"k/{topic}/0/0", b'{"id": 7}', 2, True)
        assert (second.topic, second.payload) == (f"k/{topic}/0/1", b"\xff\x00")
        await until(lambda: kafka.committed(f"group-{topic}", topic) == {0: 2})
        status = made.status
        assert (status.is_alive, status.reason, status.received, status.received_refused) == (True, "", 2, 0)
        await made.close()
        whole = config(kafka, topic, mqtt_topic="${key}/${value.id}/${headers.h}", payload_template="")
        made = engine.run(CONSUMER, **(whole | {"group_id": "b"}))
        await until(lambda: made.status.received_refused == 1)  # a key that is not UTF-8 cannot be a topic
        (third,) = engine.accepted[2:]
        assert third.topic == "k/7/x" and json.loads(third.payload) == {
            "topic": topic, "partition": 0, "offset": 0, "key": "k", "value": '{"id": 7}', "ts": at,
            "ts_type": "create", "headers": {"h": "x"},
        }  # fmt: skip
    finally:
        await engine.close()
        kafka.close()


@pytest.mark.asyncio
async def test_encodings(engine: ReceivingEngine, kafka: Noida) -> None:
    topic = topic_of(kafka)
    kafka.write(topic, [{"value": b"\xff", "key": b"\xfe"}])
    mapping = config(kafka, topic, payload_template="${key} ${value}")
    engine.run(CONSUMER, **mapping, key_encode_mode="base64", value_encode_mode="base64")
    await arrived(engine, 1)
    assert engine.payloads == [" ".join(base64.b64encode(each).decode() for each in (b"\xfe", b"\xff"))]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "policy, expected",
    [("reset_to_latest", ["new"]), ("reset_to_earliest", ["old", "new"]), ("reset_by_subscriber", ["old", "new"])],
)
async def test_offset_reset_policy(engine: ReceivingEngine, kafka: Noida, policy: str, expected: list[str]) -> None:
    topic = topic_of(kafka)
    kafka.write(topic, [{"value": b"old"}])
    made = engine.run(CONSUMER, **(config(kafka, topic) | {"offset_reset_policy": policy}))
    await until(lambda: made.alive)
    if policy == "reset_to_latest":
        # A consumer asks for the end after it has its partitions.
        while engine.payloads != ["new"]:
            kafka.write(topic, [{"value": b"new"}])
            await asyncio.sleep(0.05)
            del engine.accepted[1:]
    else:
        kafka.write(topic, [{"value": b"new"}])
        await arrived(engine, 2)
    assert engine.payloads == expected


@pytest.mark.asyncio
async def test_records_that_cannot_be_messages_are_skipped(engine: ReceivingEngine, kafka: Noida) -> None:
    topic = topic_of(kafka)
    values = [b"a", b"#", b"", b"x" * 2000, b"$SYS/x", b"b"]
    kafka.write(topic, [{"value": each} for each in values])
    kafka.write(topic, [{"value": b"looped", "headers": [("bridge-hops", b"5")]}, {"value": b"c"}])
    engine.answer = lambda message: RESERVED if message.topic.startswith("$SYS") else NO_SUBSCRIBERS  # type: ignore[method-assign]
    made = engine.run(CONSUMER, **config(kafka, topic, mqtt_topic="${value}"), max_payload_bytes="1KB")
    await arrived(engine, 3)
    assert engine.payloads == ["a", "b", "c"]
    assert (made.status.received, made.status.received_refused) == (3, 5)
    await until(lambda: kafka.committed(f"group-{topic}", topic) == {0: len(values) + 2})
    refusals = engine.node.metrics.refusals
    assert refusals.snapshot()["kafka_unpublishable"] == 3 and refusals.snapshot()["kafka_max_hops"] == 1


@pytest.mark.asyncio
async def test_an_offset_is_committed_when_the_messages_are_on_disk(
    engine: ReceivingEngine, kafka: Noida, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(kafka)
    stored = asyncio.Event()
    waiting = 0
    works = True

    async def wait() -> bool:
        nonlocal waiting
        waiting += 1
        await stored.wait()
        return works

    monkeypatch.setattr(engine.node.tables, "stored", wait)
    kafka.write(topic, [{"value": b"%d" % n} for n in range(5)])
    made = engine.run(CONSUMER, **config(kafka, topic))
    await until(lambda: waiting)
    assert engine.payloads == list("01234") and kafka.committed(f"group-{topic}", topic).get(0, -1) == -1
    works = False
    stored.set()
    # A store in trouble: the records are read again, and nothing is committed.
    await until(lambda: waiting > 1)
    assert kafka.committed(f"group-{topic}", topic).get(0, -1) == -1
    works = True
    await until(lambda: kafka.committed(f"group-{topic}", topic) == {0: 5})
    assert list(dict.fromkeys(engine.payloads)) == list("01234")
    await until(lambda: made.alive)


@pytest.mark.asyncio
async def test_a_message_that_is_refused_for_now_makes_only_its_partition_wait(
    engine: ReceivingEngine, kafka: Noida
) -> None:
    topic = topic_of(kafka, 2)
    refuses = True
    offered = 0

    def answer(message: Message) -> Outcome:
        nonlocal offered
        if refuses and message.payload == b"0-3":
            offered += 1
            return QUEUE_FULL
        return PUBLISHED

    engine.answer = answer  # type: ignore[method-assign]
    kafka.write(topic, [{"value": b"%d-%d" % (p, n), "partition": p} for n in range(10) for p in (0, 1)])
    engine.run(CONSUMER, **config(kafka, topic))
    await until(lambda: offered >= 3 and len(engine.accepted) == 13)
    kafka.write(topic, [{"value": b"1-10", "partition": 1}])
    await until(lambda: len(engine.accepted) == 14)
    assert kafka.committed(f"group-{topic}", topic)[0] == 3
    refuses = False
    await arrived(engine, 21)
    for partition in (0, 1):
        mine = [each for each in engine.payloads if each.startswith(f"{partition}-")]
        assert mine == [f"{partition}-{n}" for n in range(10 + partition)]


@pytest.mark.asyncio
async def test_a_program_outside_is_asked_about_each_message(kafka: Noida) -> None:
    """In the order of the partition; a record without an answer is read again."""
    engine = FakeEngine()
    broker = engine.server.broker
    inspector = Marking()
    broker.inspection = Inspection(broker, inspector, InspectionLimits("exhook", 1000, 1 << 20))
    accepted: list[Message] = []

    def keep(message: Message) -> Message:
        accepted.append(message)
        return message

    broker.hooks.message_publish.add(keep)
    topic = topic_of(kafka)
    try:
        kafka.write(topic, [{"value": b"%d" % number} for number in range(50)])
        engine.run(CONSUMER, **config(kafka, topic))
        await until(lambda: inspector.refused >= 2 and len(accepted) == 7)
        assert kafka.committed(f"group-{topic}", topic).get(0, 0) <= 7
        inspector.refuses = b""
        await until(lambda: kafka.committed(f"group-{topic}", topic) == {0: 50})
        assert [each.payload for each in accepted] == [b"%d!" % number for number in range(50)]
    finally:
        await engine.close()


class Marking:
    """Changes each payload, and has no answer about ``refuses``."""

    def __init__(self) -> None:
        self.refuses = b"7"
        self.refused = 0

    def inspects(self, topic: str) -> bool:
        return True

    async def inspect(self, message: Message) -> Answer:
        await asyncio.sleep(0)
        if message.payload == self.refuses:
            self.refused += 1
            return NO_ANSWER
        return Message(message.topic, message.payload + b"!", message.qos)


@pytest.mark.asyncio
async def test_while_memory_is_short_nothing_is_taken(engine: ReceivingEngine, kafka: Noida) -> None:
    topic = topic_of(kafka)
    made = engine.run(CONSUMER, **config(kafka, topic))
    await until(lambda: made.alive)
    engine.node.account.level = SLOWING
    await asyncio.sleep(0.6)  # what is asked for already may still come
    kafka.write(topic, [{"value": b"x"}])
    await asyncio.sleep(0.5)
    assert engine.accepted == [] and made.alive
    engine.node.account.level = NORMAL
    await arrived(engine, 1)


@pytest.mark.asyncio
async def test_nothing_is_lost_when_either_side_restarts(engine: ReceivingEngine, kafka: Noida) -> None:
    topic = topic_of(kafka, 2)
    made = engine.run(CONSUMER, **config(kafka, topic))
    await until(lambda: made.alive)
    kafka.write(topic, [{"value": b"%d" % n, "partition": n % 2} for n in range(100)])
    await until(lambda: len(engine.accepted) >= 50)
    await made.close()
    kafka.write(topic, [{"value": b"%d" % n, "partition": n % 2} for n in range(100, 200)])
    made = engine.run(CONSUMER, **config(kafka, topic))
    await until(lambda: len(set(engine.payloads)) == 200)
    await asyncio.to_thread(kafka.stop)
    await until(lambda: not made.alive)
    assert made.status.reason
    await asyncio.to_thread(kafka.start)
    kafka.write(topic, [{"value": b"%d" % n, "partition": n % 2} for n in range(200, 300)])
    await until(lambda: len(set(engine.payloads)) == 300)
    for partition in (0, 1):
        mine = [int(each) for each in engine.payloads if int(each) % 2 == partition]
        assert list(dict.fromkeys(mine)) == sorted(set(mine))
    await until(lambda: made.alive)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_members_share_the_partitions(
    engine: ReceivingEngine, kafka: Noida, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_of(kafka, 4)
    members: list[Any] = []
    real = consumer.CheckedConsumer

    def made(client: Any, **options: Any) -> Any:
        members.append(real(client, **options))
        return members[-1]

    monkeypatch.setattr(consumer, "CheckedConsumer", made)
    other = ReceivingEngine()
    engine.run(CONSUMER, **config(kafka, topic))
    other.run(CONSUMER, **config(kafka, topic))
    try:
        await until(lambda: len(members) == 2 and all(len(each.assignment()) == 2 for each in members))
        kafka.write(topic, [{"value": b"%d" % n, "partition": n} for n in range(4)])
        await until(lambda: len(engine.accepted) == 2 and len(other.accepted) == 2)
        await until(lambda: kafka.committed(f"group-{topic}", topic) == dict.fromkeys(range(4), 1))
        await other.close()
        # Noida refuses commits while a group changes, which Kafka does not: the member would begin anew.
        await until(lambda: len(members[0].assignment()) == 4)
        kafka.write(topic, [{"value": b"%d" % n, "partition": n - 4} for n in range(4, 8)])
        await until(lambda: set(engine.payloads) | set(other.payloads) == {str(n) for n in range(8)})
    finally:
        await other.close()


@pytest.mark.asyncio
async def test_a_rule_that_writes_into_the_topic_that_is_read(engine: ReceivingEngine, kafka: Noida) -> None:
    topic = topic_of(kafka)
    (kind,), (act_type,) = resource.RESOURCES[:1], action.ACTIONS
    engine.run(kind, "resource:out", servers=kafka.address)
    reasons: list[str] = []
    act = engine.action(act_type, topic=topic, payload_tmpl="x", **{"$resource": "resource:out"})

    def answer(message: Message) -> Outcome:
        event = published()
        event.message = message
        try:
            act.run({}, event)
        except ActionFailed as error:
            reasons.append(str(error))
        return PUBLISHED

    engine.answer = answer  # type: ignore[method-assign]
    made = engine.run(CONSUMER, **config(kafka, topic))
    act.run({}, published())
    await until(lambda: reasons)
    assert made.alive and "ruleengine.max_hops" in reasons[0]
    assert [each.hops for each in engine.accepted] == [1, 2, 3, 4, 5]


@pytest.mark.asyncio
async def test_max_bytes(engine: ReceivingEngine, kafka: Noida, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for at once; a record that is larger arrives too."""
    topic = topic_of(kafka)
    asked: list[int] = []
    real = consumer.CheckedConsumer

    def made(client: Any, **options: Any) -> Any:
        asked.append(options["max_partition_fetch_bytes"])
        return real(client, **options)

    monkeypatch.setattr(consumer, "CheckedConsumer", made)
    kafka.write(topic, [{"value": b"x" * 5000}] * 3)
    engine.run(CONSUMER, **config(kafka, topic), max_bytes="1KB")
    await arrived(engine, 3)
    assert asked == [1024]


@pytest.mark.asyncio
async def test_a_trial(engine: ReceivingEngine, kafka: Noida) -> None:
    topic = topic_of(kafka)
    await engine.make(CONSUMER, "trial", **config(kafka, topic)).test()
    wrong = engine.make(CONSUMER, "trial", **(config(kafka, topic) | {"servers": "127.0.0.1:1"}))
    with pytest.raises(ResourceError, match="Connect call failed"):
        await wrong.test()
    refused = engine.make(CONSUMER, "trial", **(config(kafka, topic) | {"servers": "169.254.169.254:1"}))
    with pytest.raises(ResourceError, match="refused_networks"):
        await refused.test()


@pytest.mark.asyncio
async def test_addresses_that_the_cluster_names_are_checked(engine: ReceivingEngine, kafka: Noida) -> None:
    """The first connection is to a server of the configuration; the others are to those that it names."""
    gate = KafkaGate(kafka.port)
    host = b"\x00\x09127.0.0.1"
    named = 0

    def elsewhere(api: int, answer: bytes) -> bytes:
        nonlocal named
        if api != METADATA:
            return answer
        named += answer.count(host)
        return answer.replace(host, b"\x00\x0f169.254.169.254")

    gate.change = elsewhere
    await gate.start()
    topic = topic_of(kafka)
    kafka.write(topic, [{"value": b"x"}])
    made = engine.run(CONSUMER, **(config(kafka, topic) | {"servers": gate.address}), request_timeout="500ms")
    try:
        await until(lambda: "169.254.169.254" in made.status.reason)
        assert named and "refused_networks" in made.status.reason and not engine.accepted
    finally:
        await made.close()
        await gate.stop()


@pytest.mark.asyncio
async def test_a_login(engine: ReceivingEngine, kafka: Noida) -> None:
    gate = KafkaGate(kafka.port)
    gate.users = {"taipan": "s3cr3t"}
    gate.mechanism = "SCRAM-SHA-256"
    await gate.start()
    topic = topic_of(kafka)
    kafka.write(topic, [{"value": b"x"}])
    login = {"authentication_mechanism": "SCRAM_SHA_256", "username": "taipan", "password": "s3cr3t"}
    try:
        made = engine.run(CONSUMER, **(config(kafka, topic) | {"servers": gate.address, **login, "password": "wr0ng"}))
        await until(lambda: "SaslAuthenticationFailed" in (made.status.reason or ""))
        await made.close()
        engine.run(CONSUMER, **(config(kafka, topic) | {"servers": gate.address, **login}))
        await arrived(engine, 1)
    finally:
        await engine.close()
        await gate.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "key, given",
    [
        ("topic_mapping", {"topic_mapping": []}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t"}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "", "mqtt_topic": "a"}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "a/#"}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "$SYS/a"}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "a", "qos": 3}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "${payload}"}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "a", "more": 1}]}),
        ("topic_mapping", {"topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "a"}] * 2}),
        ("group_id", {"group_id": "x" * 250}),
        ("max_bytes", {"max_bytes": "1B"}),
        ("max_payload_bytes", {"max_payload_bytes": "1GB"}),
        ("offset_reset_policy", {"offset_reset_policy": "sometime"}),
        ("key_encode_mode", {"key_encode_mode": "hex"}),
        ("servers", {"servers": "a b"}),
    ],
)
async def test_a_configuration_that_cannot_be_is_refused(key: str, given: dict[str, Any]) -> None:
    right = {"servers": "h:1", "topic_mapping": [{"kafka_topic": "t", "mqtt_topic": "a"}]}
    engine = FakeEngine()
    engine.make(CONSUMER, "trial", **right)
    with pytest.raises(ParamError) as refused:
        engine.make(CONSUMER, "trial", **{**right, **given})
    assert refused.value.key == key
