"""What comes from other nodes is read, or refused and counted with a reason."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from taipan.broker.cluster.wire import OLDEST, VERSION, Heartbeat, MessageRecord, Refusals, RunRecord, Wire, valid_body
from taipan.broker.mqtt import constants as c
from taipan.broker.observability.metrics import Reasons
from taipan.broker.persistence.log.records import StoredBody

BEAT = Heartbeat(7, (OLDEST, VERSION), ["k1", "k2"])


class Now:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def wire(cluster: str = "c", node: str = "n1@h") -> tuple[Wire, Reasons, Now]:
    counts, now = Reasons(), Now()
    made = Wire(cluster, node, Refusals(counts, now))
    made.identify("u" * 32, 3)
    return made, counts, now


def test_what_one_node_writes_another_reads() -> None:
    here, counts, _ = wire()
    there, _, _ = wire(node="n2@h")
    found = here.reader(Heartbeat).message(there.write(BEAT))
    assert found is not None
    header, body = found
    assert (header.cluster, header.node, header.uid, header.incarnation) == ("c", "n2@h", "u" * 32, 3)
    assert body == BEAT
    assert counts.snapshot() == {}


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    here, _, _ = wire()
    data = here.write((*msgspec.to_builtins(BEAT), "new"))
    found = here.reader(Heartbeat).value(data)
    assert found is not None
    assert found[1] == BEAT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "truncated"),
        (lambda data: data[:3], "truncated"),
        (lambda data: data[:20], "truncated"),
        (lambda data: data[:-2], "malformed"),
        (lambda data: bytes((VERSION + 1, VERSION + 1)) + data[2:], "newer_version"),
        (lambda data: bytes((OLDEST - 1, OLDEST - 1)) + data[2:], "older_version"),
        (lambda data: data[:4] + b"\xc1" + data[5:], "malformed"),
        (lambda data: data.replace(b"n2@h", b"n2\xff\xfe"), "malformed"),
        (lambda data: data.replace(b"\x92\xa2k1\xa2k2", b"\x92\xa2\xff\xfe\xa2k2"), "malformed"),
        (lambda data: data[:-1].replace(b"\x93\x07", b"\x95\x07") + b"\xc2" + b"\x91" * 100_000, "malformed"),
        (lambda data: wire("other")[0].write(BEAT), "other_cluster"),
    ],
)
def test_what_cannot_be_read_is_refused(change: object, reason: str) -> None:
    here, counts, _ = wire()
    assert callable(change)
    data = change(wire(node="n2@h")[0].write(BEAT))
    assert here.reader(Heartbeat).message(data) is None
    assert counts.snapshot() == {f"cluster_{reason}": 1}


BODY = StoredBody("t", b"x", 1, True, {}, 1.0, "c", None, "i")


@pytest.mark.parametrize(
    "properties",
    [
        {c.PAYLOAD_FORMAT_INDICATOR: 1, c.MESSAGE_EXPIRY_INTERVAL: 5, c.CONTENT_TYPE: "x", c.RESPONSE_TOPIC: "r"},
        {c.CORRELATION_DATA: b"x", c.USER_PROPERTY: [["a", "b"], ["a", "c"]]},
    ],
)
def test_a_message_that_a_client_could_have_published_is_taken(properties: dict[int, object]) -> None:
    assert valid_body(replace(BODY, properties=properties))


@pytest.mark.parametrize(
    "change",
    [
        {"topic": ""},
        {"topic": "a/#"},
        {"topic": "a\0"},
        {"topic": "t" * 65_536},
        {"qos": 3},
        {"qos": -1},
        {"timestamp": float("nan")},
        {"timestamp": float("inf")},
        {"timestamp": -1e300},
        {"properties": {9999: 5}},
        {"properties": {c.MESSAGE_EXPIRY_INTERVAL: "x"}},
        {"properties": {c.MESSAGE_EXPIRY_INTERVAL: [5]}},
        {"properties": {c.MESSAGE_EXPIRY_INTERVAL: 2**63}},
        {"properties": {c.MESSAGE_EXPIRY_INTERVAL: -5}},
        {"properties": {c.MESSAGE_EXPIRY_INTERVAL: 1.5}},
        {"properties": {c.PAYLOAD_FORMAT_INDICATOR: 2}},
        {"properties": {c.CONTENT_TYPE: 5}},
        {"properties": {c.CONTENT_TYPE: "x" * 65_536}},
        {"properties": {c.CORRELATION_DATA: "x"}},
        {"properties": {c.RESPONSE_TOPIC: "a/+"}},
        {"properties": {c.USER_PROPERTY: 5}},
        {"properties": {c.USER_PROPERTY: [5]}},
        {"properties": {c.USER_PROPERTY: [["a"]]}},
        {"properties": {c.USER_PROPERTY: [[1, 2]]}},
        {"properties": {c.USER_PROPERTY: {"ab": 1}}},
        {"properties": {c.SESSION_EXPIRY_INTERVAL: 5}},
    ],
    ids=str,
)
def test_a_message_that_no_client_could_have_published_is_not(change: dict[str, Any]) -> None:
    assert not valid_body(replace(BODY, **change))


def test_every_truncation_is_refused() -> None:
    here, counts, _ = wire()
    data = wire(node="n2@h")[0].write(BEAT)
    for end in range(len(data)):
        assert here.reader(Heartbeat).message(data[:end]) is None
    assert sum(counts.snapshot().values()) == len(data)


def test_a_newer_version_that_this_one_can_read_is_read() -> None:
    here, counts, _ = wire()
    data = wire(node="n2@h")[0].write(BEAT)
    assert here.reader(Heartbeat).message(bytes((VERSION + 1, VERSION)) + data[2:]) is not None
    assert counts.snapshot() == {}


def test_who_is_not_admitted_is_not_read_but_its_values_are() -> None:
    here, _, _ = wire()
    here.admits = lambda header: False
    data = wire(node="n2@h")[0].write(BEAT)
    assert here.reader(Heartbeat).message(data) is None
    assert here.reader(Heartbeat).value(data) is not None


def test_a_refusal_is_logged_once_a_minute_with_its_setting(caplog: pytest.LogCaptureFixture) -> None:
    here, counts, now = wire()
    data = wire("other", "n2@h")[0].write(BEAT)
    for _ in range(3):
        here.reader(Heartbeat).message(data)
    assert caplog.text.count("cluster_refused node=n2@h reason=other_cluster setting=cluster.name") == 1
    now.seconds = 61.0
    here.reader(Heartbeat).message(data)
    assert caplog.text.count("reason=other_cluster") == 2
    assert counts.snapshot() == {"cluster_other_cluster": 4}


@pytest.mark.parametrize(
    "values",
    [("t", b"m", 1, -1, 0, "id", None, 0, "", ()), (0, -1, 4, 0, [], b"packets", "t", 2, "prefix", 7)],
)
def test_a_node_of_before_reads_a_record_that_says_how_long_it_waited(values: tuple[Any, ...]) -> None:
    """The field is the last one: an older node does not look at it, and what an older node writes has none."""
    kind: Any = MessageRecord if isinstance(values[0], str) else RunRecord
    *before, last = msgspec.structs.fields(kind)
    assert last.name == "waited" and not last.required and last.default == 0
    older = msgspec.defstruct("Older", [(each.name, each.type) for each in before], array_like=True)
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(kind(*values, 1500)), type=older)
    assert tuple(getattr(old, each.name) for each in before) == values
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=kind) == kind(*values)
