"""Records into topics of Kafka, with a real server."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import pytest_asyncio
from aiokafka.partitioner import DefaultPartitioner

from taipan.ruleengine.actions.action import ActionFailed
from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.kafka import action, resource
from taipan.ruleengine.sinks.kafka.client import _Connecting
from tests.ruleengine.sinks.contract import *  # noqa: F403
from tests.ruleengine.sinks.other_sides import OtherSide
from tests.support.certificates import Certificates
from tests.support.fake_engine import QUICK, FakeEngine, FakeReport, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System
from tests.systems.servers.kafka import KafkaServer, Noida, Tansu
from tests.systems.servers.kafka_gate import METADATA, PRODUCE, KafkaGate

KAFKA = resource.TYPE
(TO_KAFKA,) = action.ACTIONS
_INIT_PRODUCER_ID = 22
_numbers = itertools.count(1)


class KafkaSide(OtherSide):
    """Each has a topic of its own on the server of all tests. ``taken`` asks for what was not read before."""

    action: ClassVar = "data_to_kafka"
    address = "servers"
    server: KafkaServer

    def __init__(self) -> None:
        self.port = self.server.port
        self.topic = f"rows-{next(_numbers)}"
        self.params = {"topic": self.topic, "payload_tmpl": "${n}"}
        # Rows that wait must not be the ones that create it.
        if not self.server.runs:
            self.server.start()
        self.server.create(self.topic)
        self.server.stop()

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)

    async def proxies(self) -> list[Any]:
        """A server names the address of its broker, so a proxy that only forwards would be passed by."""
        gate = KafkaGate(self.server.port)
        await gate.start()
        self.port = gate.port
        return [gate]

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.stop)

    def taken(self) -> list[int]:
        return [int(each.value) for each in self.server.records(self.topic)] if self.server.runs else []


@pytest.fixture(scope="module")
def kafka_process() -> Iterator[Noida]:
    made = Noida()
    made.start()
    yield made
    made.close()


@pytest.fixture
def kafka(kafka_process: Noida) -> Noida:
    """It runs."""
    if not kafka_process.runs:
        kafka_process.start()
    return kafka_process


@pytest.fixture(scope="module")
def sides(kafka_process: Noida) -> dict[str, type[OtherSide]]:
    KafkaSide.server = kafka_process
    return {"bridge_kafka": KafkaSide}


@pytest.fixture
def kind(kafka: Noida) -> str:
    return "bridge_kafka"


@pytest_asyncio.fixture
async def engine() -> Any:
    made = FakeEngine()
    yield made
    await made.close()


def run(engine: FakeEngine, server: KafkaServer, **config: Any) -> Any:
    return engine.run(KAFKA, **{"servers": server.address, **config})


def topic_of(server: KafkaServer, partitions: int = 1) -> str:
    name = f"topic-{next(_numbers)}"
    server.create(name, partitions)
    return name


def write(engine: FakeEngine, topic: str, rows: list[dict[str, Any]], **params: Any) -> FakeReport:
    report = FakeReport()
    act = engine.action(TO_KAFKA, f"action_{next(_numbers)}", report, topic=topic, **params)
    for each in rows:
        act.run(each, published(client_id=str(each.get("c", "c1"))))
    return report


class KafkaSystem(System):
    resource, action = KAFKA, TO_KAFKA
    without: ClassVar = {
        "credentials": "the server has no logins: test_logins_wrong_ones_and_rotated_ones puts a gate before it",
        "bad row": "a topic takes any bytes: a record that is too large is in the test below",
    }
    waits_shortly: ClassVar = {"type": "sync"}
    gives_up_soon: ClassVar = {"request_timeout": "300ms", "connect_timeout": "300ms", "sync_timeout": "100ms"}
    server: Noida

    def __init__(self, server: Noida, idempotence: bool) -> None:
        super().__init__(server)
        self._idempotence = idempotence
        self._topic = topic_of(server, 3)
        self._tls: KafkaGate | None = None

    def config(self) -> dict[str, Any]:
        return {"servers": self.server.address, "idempotence": self._idempotence}

    def params(self) -> dict[str, Any]:
        return {"topic": self._topic, "key": "clientid", "strategy": "key_dispatch", "type": "async"}

    async def certify(self, certificate: str, key: str) -> dict[str, Any]:
        await self.uncertify()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        port = 0 if self._tls is None else self._tls.port
        self._tls = KafkaGate(self.server.port, context)
        self._tls.port = port
        await self._tls.start()
        return {"servers": self._tls.address, "ssl": True}

    async def uncertify(self) -> None:
        if self._tls is not None:
            await self._tls.stop()

    def harm(self, row: int) -> None:
        """Not killed: the server loses what it has acknowledged and not yet written."""
        if row in (1000, 2000):
            self.server.restart()

    async def written(self) -> list[tuple[str, int]]:
        rows = [json.loads(each.value) for each in self.server.records(self._topic)]
        numbers = [each["n"] for each in rows if each["c"] == "c1"]
        assert not self._idempotence or len(numbers) == len(set(numbers))
        return [(each["c"], each["n"]) for each in rows]


@pytest.fixture(params=[False, True], ids=["plain", "idempotence"])
def system(request: pytest.FixtureRequest, kafka: Noida) -> System:
    return KafkaSystem(kafka, request.param)


async def done(report: FakeReport, count: int) -> None:
    await until(lambda: report.count >= count)
    assert report.count == count


@pytest.mark.asyncio
async def test_a_record(engine: FakeEngine, kafka: Noida) -> None:
    """Its value is the row, its key what the action says, its time that of the row."""
    topic = topic_of(kafka)
    run(engine, kafka)
    row = {"n": 1, "payload": {"id": "a"}, "pub_props": {"User-Property": {"x": "1"}, "n": 5}}
    await done(write(engine, topic, [row]), 1)
    await done(write(engine, topic, [row], key="clientid", payload_tmpl="n=${n}"), 1)
    await done(write(engine, topic, [row], key="topic"), 1)
    await done(write(engine, topic, [row], key="username"), 1)
    await done(write(engine, topic, [row], key="k-${payload.id}", payload_tmpl="${none}"), 1)
    found = kafka.records(topic)
    assert [each.key for each in found] == [None, b"c1", b"t/1", None, b"k-a"]
    assert json.loads(found[0].value) == row and [each.value for each in found[1:]][::3] == [b"n=1", b"undefined"]
    now = engine.node.clock.now()
    assert all(now - 60 < each.timestamp / 1000 <= now for each in found)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "params, expected",
    [
        ({"kafka_headers": "${p}"}, [("x", b"1"), ("n", b"5"), ("o", b'{"a":1}')]),
        ({"kafka_headers": "${p}", "kafka_header_value_encode_mode": "JSON"},
         [("x", b'"1"'), ("n", b"5"), ("o", b'{"a":1}')]),
        ({"kafka_headers": "${pairs}"}, [("a", b"1"), ("a", b"2")]),
        ({"kafka_headers": "${none}", "kafka_ext_headers": [{"key": "k-${n}", "value": "v ${n}"}]}, [("k-1", b"v 1")]),
        ({"kafka_ext_headers": [{"key": "e", "value": ""}]}, [("e", b"")]),
        ({}, []),
    ],
)  # fmt: skip
async def test_headers(
    engine: FakeEngine, kafka: Noida, params: dict[str, Any], expected: list[tuple[str, bytes]]
) -> None:
    topic = topic_of(kafka)
    run(engine, kafka)
    row = {"n": 1, "p": {"x": "1", "n": 5, "o": {"a": 1}},
           "pairs": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}  # fmt: skip
    report = write(engine, topic, [row], **params)
    await done(report, 1)
    assert report.failures == []
    assert list(kafka.records(topic)[0].headers) == expected


@pytest.mark.asyncio
async def test_headers_that_are_none(engine: FakeEngine, kafka: Noida) -> None:
    run(engine, kafka)
    act = engine.action(TO_KAFKA, topic="t", kafka_headers="${n}")
    for value, reason in [(5, "expected an object"), ([1], "expected an object"), ([{"key": 1, "value": 2}], "string"),
                          ({str(n): n for n in range(101)}, "more than 100")]:  # fmt: skip
        with pytest.raises(ActionFailed, match=reason):
            act.run({"n": value}, published())


@pytest.mark.asyncio
async def test_strategies(engine: FakeEngine, kafka: Noida) -> None:
    """By key as Kafka's own clients choose; in turn; at random."""
    topic = topic_of(kafka, 4)
    run(engine, kafka)
    keys = [f"device-{n}" for n in range(40)]
    await done(write(engine, topic, [{"k": each} for each in keys], key="${k}", strategy="key_dispatch"), 40)
    await done(write(engine, topic, [{"k": each} for each in keys], key="${k}", strategy="first_key_dispatch"), 40)
    placed = {each.key.decode(): each.partition for each in kafka.records(topic)}
    theirs = DefaultPartitioner()
    assert placed == {each: theirs(each.encode(), [0, 1, 2, 3], [0, 1, 2, 3]) for each in keys}
    assert len(set(placed.values())) == 4
    other = topic_of(kafka, 4)
    for _ in range(4):
        await done(write(engine, other, [{"n": 1}], strategy="roundrobin"), 1)
    await done(write(engine, other, [{"n": 1}] * 8, strategy="roundrobin"), 8)
    assert [each.partition for each in kafka.records(other)] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    third = topic_of(kafka, 4)
    await done(write(engine, third, [{"n": 1}] * 100, strategy="key_dispatch"), 100)  # without a key: at random
    assert {each.partition for each in kafka.records(third)} == {0, 1, 2, 3}


@pytest.mark.asyncio
async def test_partitions_that_are_added(engine: FakeEngine, kafka: Noida) -> None:
    topic = topic_of(kafka, 1)
    run(engine, kafka)
    more: dict[str, Any] = {"strategy": "roundrobin", "partition_count_refresh_interval": "1s"}
    await done(write(engine, topic, [{"n": 1}], **more), 1)
    kafka.grow(topic, 3)
    count = 1
    while {each.partition for each in kafka.records(topic)} != {0, 1, 2}:
        await done(write(engine, topic, [{"n": 1}] * 3, **more), 3)
        count += 3
        assert count < 1000
        await asyncio.sleep(0.05)


@pytest.mark.asyncio
@pytest.mark.parametrize("idempotence", [False, True])
async def test_one_bad_record_of_a_batch_goes_aside_and_the_others_are_written(
    engine: FakeEngine, kafka: Noida, idempotence: bool
) -> None:
    topic, other = topic_of(kafka), topic_of(kafka)
    made = run(engine, kafka, idempotence=idempotence, max_batch_bytes="3MB")
    rows: list[dict[str, Any]] = [{"n": str(n)} for n in range(40)]
    rows[20] = {"n": "x" * 1_500_000}
    rows[30] = {"n": "y" * 1_100_000}
    report = write(engine, topic, rows, payload_tmpl="${n}", message_accumulation_size=40)
    fine = write(engine, other, [{"n": 1}] * 5)
    await done(report, 40)
    await done(fine, 5)
    assert len(report.failures) == 2 and fine.failures == []
    assert all(
        "MessageSizeTooLarge" in each[0] and f"topic {topic}, partition 0" in each[0] for each in report.failures
    )
    assert [each.value.decode() for each in kafka.records(topic)] == [str(n) for n in range(40) if n not in (20, 30)]
    status = made.status.buffer
    assert (status.dead_letters, status.set_aside, status.retried) == (2, 2, 0) and made.alive
    assert {each.buffered.client_id for each in engine.buffers.dead_letters.of("resource:1").values()} == {"c1"}


@pytest.mark.asyncio
async def test_a_record_that_its_topic_does_not_accept(engine: FakeEngine, kafka: Noida) -> None:
    """A topic that keeps the last record of each key has none without a key."""
    topic = f"topic-{next(_numbers)}"
    kafka.create(topic, settings={"cleanup.policy": "compact"})
    run(engine, kafka)
    keyless = write(engine, topic, [{"n": 1}])
    await done(keyless, 1)
    assert "InvalidRecord (error 87)" in keyless.failures[0][0]
    fine = write(engine, topic, [{"n": 2}], key="clientid")
    await done(fine, 1)
    assert fine.failures == []


@pytest.mark.asyncio
@pytest.mark.parametrize("compression", ["no_compression", "gzip", "snappy"])
async def test_compression_and_batches_that_are_full(engine: FakeEngine, kafka: Noida, compression: str) -> None:
    topic = topic_of(kafka, 2)
    run(engine, kafka, compression=compression, max_batch_bytes="50KB")
    rows = [{"n": n, "fill": "z" * 1000} for n in range(300)]
    await done(write(engine, topic, rows, key="clientid", strategy="key_dispatch", message_accumulation_size=300), 300)
    assert [json.loads(each.value)["n"] for each in kafka.records(topic)] == list(range(300))


@pytest.mark.asyncio
@pytest.mark.parametrize("acks", ["all_isr", "leader_only", "none"])
async def test_required_acks(engine: FakeEngine, kafka: Noida, acks: str) -> None:
    topic = topic_of(kafka)
    run(engine, kafka)
    await done(write(engine, topic, [{"n": n} for n in range(3)], required_acks=acks), 3)
    await until(lambda: len(kafka.records(topic)) == 3)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def reason(engine: FakeEngine, address: str, **config: Any) -> str:
    """Why the cluster cannot be used."""
    trial = engine.make(KAFKA, "trial", servers=address, **config)
    try:
        await trial.test()
    except ResourceError as error:
        return str(error)
    finally:
        await trial.close()
    return ""


@pytest.mark.asyncio
async def test_tls(engine: FakeEngine, kafka: Noida, secured: Certificates) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*secured.issue("kafka.example"))
    context.load_verify_locations(secured.ca)
    gate = KafkaGate(kafka.port, context)
    await gate.start()
    topic = topic_of(kafka)
    try:
        assert await reason(engine, gate.address) != ""
        assert await reason(engine, gate.address, ssl=True) == ""
        assert "CERTIFICATE_VERIFY_FAILED" in await reason(engine, gate.address, ssl=True, verify=True)
        checked: dict[str, Any] = {
            "ssl": True, "verify": True, "cacertfile": {"filename": "ca.pem", "file": Path(secured.ca).read_text()},
        }  # fmt: skip
        for name, expected in [("auto", "match"), ("other.example", "match"), ("disable", ""), ("kafka.example", "")]:
            said = await reason(engine, gate.address, **checked, server_name_indication=name)
            assert expected in said and bool(said) == bool(expected), name
        # The address that the cluster names, with the same name.
        engine.run(KAFKA, servers=gate.address, **checked, server_name_indication="kafka.example")
        await done(write(engine, topic, [{"n": 1}]), 1)
        context.verify_mode = ssl.CERT_REQUIRED
        assert "ertificate" in await reason(engine, gate.address, ssl=True)
        mine = secured.issue("client")
        files = {"certfile": mine[0], "keyfile": {"filename": "k", "file": Path(mine[1]).read_text()}}
        assert await reason(engine, gate.address, ssl=True, **files) == ""
    finally:
        await gate.stop()
    assert len(kafka.records(topic)) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM_SHA_256", "SCRAM_SHA_512"])
async def test_logins_wrong_ones_and_rotated_ones(engine: FakeEngine, kafka: Noida, mechanism: str) -> None:
    gate = KafkaGate(kafka.port)
    gate.users = {"taipan": "s3cr3t"}
    gate.mechanism = mechanism.replace("_", "-")
    await gate.start()
    topic = topic_of(kafka)
    login = {"authentication_mechanism": mechanism, "username": "taipan", "password": "s3cr3t"}
    try:
        for wrong in ({"password": "wr0ng"}, {"username": "nobody"}):
            said = await reason(engine, gate.address, **{**login, **wrong})
            assert said and "wr0ng" not in said and "s3cr3t" not in said
        assert await reason(engine, gate.address) != ""
        other = "PLAIN" if mechanism != "PLAIN" else "SCRAM_SHA_256"
        assert (
            "mechanism" in (await reason(engine, gate.address, **{**login, "authentication_mechanism": other})).lower()
        )
        made = engine.run(KAFKA, servers=gate.address, **login)
        await done(write(engine, topic, [{"n": 1}]), 1)
        gate.users["taipan"] = "another"
        gate.disconnect()
        report = write(engine, topic, [{"n": 2}])
        await until(lambda: not made.alive and made.status.buffer.last_error)
        assert report.count == 0
        await made.close()
        engine.run(KAFKA, servers=gate.address, **{**login, "password": "another"})
        await done(report, 1)
        assert [json.loads(each.value)["n"] for each in kafka.records(topic)] == [1, 2]
    finally:
        await gate.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("idempotence", [False, True])
async def test_a_batch_whose_answer_is_lost(engine: FakeEngine, kafka: Noida, idempotence: bool) -> None:
    """It is written again; once, if the producer is idempotent."""
    gate = KafkaGate(kafka.port)
    await gate.start()
    topic = topic_of(kafka)
    lost = 0

    def change(api: int, answer: bytes) -> bytes | None:
        nonlocal lost
        if api != PRODUCE or lost == 2:
            return answer
        lost += 1
        return None

    try:
        engine.run(KAFKA, servers=gate.address, idempotence=idempotence)
        gate.change = change
        report = write(engine, topic, [{"n": n} for n in range(10)])
        await done(report, 10)
        more = write(engine, topic, [{"n": n} for n in range(10, 20)])
        await done(more, 10)
        assert report.failures == [] and more.failures == [] and lost == 2
        found = [json.loads(each.value)["n"] for each in kafka.records(topic)]
        assert list(dict.fromkeys(found)) == list(range(20))
        assert len(found) == (20 if idempotence else 40)
    finally:
        await gate.stop()


@pytest.mark.asyncio
async def test_a_batch_whose_answer_is_lost_is_written_once_while_checks_fail_too(
    engine: FakeEngine, kafka: Noida
) -> None:
    """A check that fails makes the resource connect again; the producer and its unanswered batch stay."""
    gate = KafkaGate(kafka.port)
    await gate.start()
    topic = topic_of(kafka)
    lost = checks = 0

    def change(api: int, answer: bytes) -> bytes | None:
        nonlocal lost, checks
        lost += api == PRODUCE
        checks += api == METADATA
        # No batch is answered before some checks have failed.
        return answer if api not in (PRODUCE, METADATA) or checks >= 8 or not lost else None

    try:
        engine.run(KAFKA, servers=gate.address, idempotence=True)
        gate.change = change
        for count in (10, 20):
            report = write(engine, topic, [{"n": n} for n in range(count - 10, count)])
            await done(report, 10)
            assert report.failures == []
        assert lost > 2 and checks >= 8
        assert [json.loads(each.value)["n"] for each in kafka.records(topic)] == list(range(20))
    finally:
        await gate.stop()


@pytest.mark.asyncio
async def test_what_was_written_stays_written_when_no_identity_is_given(engine: FakeEngine, kafka: Noida) -> None:
    """One topic has several batches in a call. Before its second one, the producer needs another identity, because of
    another topic, and the answer with it is lost."""
    gate = KafkaGate(kafka.port)
    await gate.start()
    large, small = topic_of(kafka), topic_of(kafka)
    refused = lost = 0

    def change(api: int, answer: bytes) -> bytes | None:
        nonlocal refused, lost
        found = answer.find(small.encode())
        if api == PRODUCE and found >= 0 and not refused:
            refused = 1
            at = found + len(small) + 4 + 4
            return answer[:at] + struct.pack(">h", 45) + answer[at + 2 :]
        if api == _INIT_PRODUCER_ID and refused and not lost:
            lost = 1
            return None
        return answer

    gate.change = change
    try:
        engine.run(KAFKA, servers=gate.address, idempotence=True, max_batch_bytes="1KB")
        rows = [{"n": n, "fill": "z" * 400} for n in range(6)]
        many, one = FakeReport(), FakeReport()
        to_large = engine.action(TO_KAFKA, "action_large", many, topic=large)
        to_small = engine.action(TO_KAFKA, "action_small", one, topic=small)
        to_small.run({"n": 1}, published())
        for each in rows:
            to_large.run(each, published())
        await done(many, 6)
        await done(one, 1)
        assert (refused, lost) == (1, 1) and many.failures == [] and one.failures == []
        assert [json.loads(each.value)["n"] for each in kafka.records(large)] == list(range(6))
    finally:
        await gate.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("code, failed", [(6, 0), (19, 0), (45, 0), (56, 0), (3, 3), (29, 3)])
async def test_errors_of_a_broker(engine: FakeEngine, kafka: Noida, code: int, failed: int) -> None:
    """Those that end by themselves make rows wait; after others, a row is tried a few times."""
    gate = KafkaGate(kafka.port)
    await gate.start()
    topic = topic_of(kafka)
    answers = 0

    def change(api: int, answer: bytes) -> bytes:
        nonlocal answers
        answers += api == PRODUCE
        if api != PRODUCE or (not failed and answers > 5):
            return answer
        at = 4 + 4 + 2 + len(topic) + 4 + 4
        return answer[:at] + struct.pack(">h", code) + answer[at + 2 :]

    gate.change = change
    try:
        made = engine.run(KAFKA, servers=gate.address)
        report = write(engine, topic, [{"n": n} for n in range(3)])
        await done(report, 3)
        assert len(report.failures) == failed and made.status.buffer.dead_letters == failed
        if failed:
            assert f"(error {code})" in report.failures[0][0] and answers >= 3
        else:
            assert answers == 6
    finally:
        await gate.stop()


@pytest.mark.asyncio
async def test_min_metadata_refresh_interval(engine: FakeEngine, kafka: Noida) -> None:
    """So often a broker is asked for the leaders while it says that it is none."""
    asked: dict[str, int] = {}
    for interval in ("1ms", "1h"):
        gate = KafkaGate(kafka.port)
        await gate.start()
        topic = topic_of(kafka)
        metadata = answers = 0

        def change(api: int, answer: bytes, topic: str = topic) -> bytes:
            nonlocal metadata, answers
            metadata += api == METADATA
            answers += api == PRODUCE
            at = 4 + 4 + 2 + len(topic) + 4 + 4
            return answer if api != PRODUCE else answer[:at] + struct.pack(">h", 6) + answer[at + 2 :]

        gate.change = change
        # No liveness checks, which ask for the same.
        quiet = FakeEngine(msgspec.structs.replace(QUICK, liveness_interval=3600.0, breaker_failures=1000))
        try:
            quiet.run(KAFKA, servers=gate.address, min_metadata_refresh_interval=interval)
            write(quiet, topic, [{"n": 1}])
            await until(lambda: answers >= 8)  # noqa: B023 - of this round
            asked[interval] = metadata
        finally:
            await quiet.close()
            await gate.stop()
    assert asked["1h"] + 4 <= asked["1ms"]


@pytest.mark.asyncio
async def test_options_of_sockets(engine: FakeEngine, kafka: Noida, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of(kafka)
    seen: list[tuple[bool, bool, int]] = []
    real = _Connecting._set_options

    def set_options(self: _Connecting, sock: socket.socket) -> None:
        before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        real(self, sock)
        now = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        alive = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        seen.append((now != before, bool(alive), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)))

    monkeypatch.setattr(_Connecting, "_set_options", set_options)
    made = run(engine, kafka, send_buffer="16KB", tcp_keepalive="33s")
    await done(write(engine, topic, [{"n": 1}]), 1)
    assert seen[0] == (True, True, 33)
    seen.clear()
    await made.close()
    run(engine, kafka, send_buffer=0, tcp_keepalive="0s")
    await done(write(engine, topic, [{"n": 1}]), 1)
    assert seen[0][:2] == (False, False)


@pytest.mark.asyncio
async def test_rows_accumulate(engine: FakeEngine, kafka: Noida) -> None:
    """Those of several moments are written at once."""
    gate = KafkaGate(kafka.port)
    await gate.start()
    topic = topic_of(kafka)
    produced = 0

    def change(api: int, answer: bytes) -> bytes:
        nonlocal produced
        produced += api == PRODUCE
        return answer

    gate.change = change
    try:
        engine.run(KAFKA, servers=gate.address)
        more: dict[str, Any] = {"message_accumulation_size": 10, "message_accumulation_interval": 60_000}
        report = write(engine, topic, [{"n": n} for n in range(20)], **more)
        await done(report, 20)
        assert produced == 2
        waiting = write(engine, topic, [{"n": n} for n in range(3)], **{**more, "message_accumulation_interval": 100})
        await done(waiting, 3)
        assert produced == 3
    finally:
        await gate.stop()


@pytest.mark.asyncio
async def test_tansu(engine: FakeEngine) -> None:
    """Another server; it gives producers no identity."""
    server = Tansu()
    server.start()
    try:
        server.create("t", 2)
        made = run(engine, server)
        report = write(engine, "t", [{"n": n} for n in range(100)], key="clientid", strategy="key_dispatch")
        await done(report, 100)
        assert report.failures == []
        assert [json.loads(each.value)["n"] for each in server.records("t")] == list(range(100))
        await made.close()
        made = run(engine, server, idempotence=True)
        report = write(engine, "t", [{"n": 1}])
        await until(lambda: "idempotence" in made.status.buffer.last_error)
        assert report.count == 0
    finally:
        server.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "key, config",
    [
        ("servers", {"servers": "a b:1"}),
        ("servers", {"servers": "h:0"}),
        ("servers", {"servers": " , "}),
        ("servers", {"servers": ",".join(["h:1"] * 101)}),
        ("username", {"authentication_mechanism": "PLAIN"}),
        ("password", {"authentication_mechanism": "SCRAM_SHA_256", "username": "u"}),
        ("username", {"username": "a\0"}),
        ("authentication_mechanism", {"authentication_mechanism": "KERBEROS"}),
        ("compression", {"compression": "best"}),
        ("max_batch_bytes", {"max_batch_bytes": "1B"}),
        ("max_batch_bytes", {"max_batch_bytes": "much"}),
        ("send_buffer", {"send_buffer": "9GB"}),
        ("tcp_keepalive", {"tcp_keepalive": "often"}),
        ("sync_timeout", {"sync_timeout": "0s"}),
        ("min_metadata_refresh_interval", {"min_metadata_refresh_interval": "x"}),
        ("query_api_versions", {"query_api_versions": False}),
        ("cacertfile", {"ssl": True, "cacertfile": "/nowhere"}),
    ],
)
async def test_a_configuration_that_cannot_be_is_refused(engine: FakeEngine, key: str, config: dict[str, Any]) -> None:
    for servers in ("h", "h:1", "[::1]:9092,[::1]", "a:1, b:2,"):
        engine.make(KAFKA, "trial", servers=servers)
    with pytest.raises(ParamError) as refused:
        engine.make(KAFKA, "trial", **{"servers": "h:1", **config})
    assert refused.value.key == key


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "key, params",
    [
        ("topic", {}),
        ("topic", {"topic": "a b"}),
        ("topic", {"topic": ".."}),
        ("topic", {"topic": "${topic}"}),
        ("type", {"topic": "t", "type": "later"}),
        ("strategy", {"topic": "t", "strategy": "best"}),
        ("required_acks", {"topic": "t", "required_acks": "some"}),
        ("kafka_headers", {"topic": "t", "kafka_headers": "x ${y}"}),
        ("kafka_ext_headers", {"topic": "t", "kafka_ext_headers": [{"key": "a"}]}),
        ("kafka_ext_headers", {"topic": "t", "kafka_ext_headers": [{"key": "", "value": "b"}]}),
        ("kafka_ext_headers", {"topic": "t", "kafka_ext_headers": [{"key": "a", "value": 1}]}),
        ("kafka_ext_headers", {"topic": "t", "kafka_ext_headers": [{"key": "a", "value": "b"}] * 101}),
        ("kafka_header_value_encode_mode", {"topic": "t", "kafka_header_value_encode_mode": "XML"}),
        ("partition_count_refresh_interval", {"topic": "t", "partition_count_refresh_interval": "0s"}),
        ("message_accumulation_size", {"topic": "t", "message_accumulation_size": 0.5}),
        ("message_accumulation_interval", {"topic": "t", "message_accumulation_interval": -1}),
    ],
)
async def test_an_action_that_cannot_be_is_refused(engine: FakeEngine, key: str, params: dict[str, Any]) -> None:
    with pytest.raises(ParamError) as refused:
        engine.action(TO_KAFKA, **params)
    assert refused.value.key == key
