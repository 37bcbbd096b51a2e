"""mosquitto.db: formats 5 and 6, and what is left of one that is damaged."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.mqtt import constants as c
from taipan.management.migrate import mosquitto_db as db
from taipan.management.migrate.mosquitto_db import NoMosquittoDb, read_mosquitto_db
from tests.support.mosquitto_db import MAGIC, DbWriter


def written(version: int) -> DbWriter:
    made = DbWriter(version)
    made.message(10, "a/b", b"one", 1, properties={c.CONTENT_TYPE: "text", c.USER_PROPERTY: [("k", "v")]})
    made.message(11, "r", b"kept", 1, True, username="ann", expires=2_000_000_000)
    made.client("one", "ann", last=3).delivery("one", 10, 2, 1, db.WAIT_FOR_PUBACK)
    made.delivery("one", 11, 3, 1, db.QUEUED, retain=True, properties={c.SUBSCRIPTION_IDENTIFIER: [5, 6]})
    made.client("two", expires=1_900_000_000, interval=60, port=1884)
    made.delivery("two", 10, 9, 2, db.WAIT_FOR_PUBREL, direction=db.IN)
    made.subscription("one", "a/#", 1).subscription("two", "$share/g/+/b", 2, 0x2C, 7)
    return made.retained(11)


@pytest.mark.parametrize("version", [5, 6])
def test_what_was_written_is_read(version: int) -> None:
    found = read_mosquitto_db(written(version).bytes())
    assert found.version == version and found.damage == []
    one, two = found.clients.values()
    assert (one.client_id, one.username, one.last_packet_id) == ("one", "ann" if version == 6 else None, 3)
    assert (two.expires, two.interval, two.port) == (1_900_000_000, 60, 1884 if version == 6 else 0)
    message = found.messages[10]
    assert (message.topic, message.payload, message.qos, message.source) == ("a/b", b"one", 1, "src")
    assert message.properties == {c.CONTENT_TYPE: "text", c.USER_PROPERTY: [("k", "v")]}
    assert (found.messages[11].username, found.messages[11].expires) == ("ann", 2_000_000_000)
    sent, queued, coming = found.deliveries
    assert (sent.packet_id, sent.state, sent.direction) == (2, db.WAIT_FOR_PUBACK, db.OUT)
    assert (queued.identifiers, queued.retain) == ((5, 6), True)
    assert (coming.client_id, coming.direction, coming.qos) == ("two", db.IN, 2)
    plain, shared = found.subscriptions
    assert (plain.filter, plain.qos, plain.identifier, plain.no_local) == ("a/#", 1, 0, False)
    assert (shared.no_local, shared.retain_as_published, shared.retain_handling, shared.identifier) == (
        True,
        True,
        2,
        7,
    )
    assert [store_id for _, store_id in found.retained] == [11]


@pytest.mark.parametrize(
    "data, said",
    [
        (b"", "does not begin"),
        (b"SQLite format 3\0", "does not begin"),
        (MAGIC + b"\0\0", "ends within its head"),
        (MAGIC + bytes(4) + b"\0\0\0\x04", "format 4"),
        (MAGIC + bytes(4) + b"\0\0\0\x07", "format 7"),
    ],
)
def test_other_files(data: bytes, said: str) -> None:
    with pytest.raises(NoMosquittoDb, match=said):
        read_mosquitto_db(data)


def test_a_chunk_that_contradicts_itself_is_left_out_and_told() -> None:
    made = DbWriter()
    made.message(1, "a", b"x").message(2, "a/#", b"x").message(3, "b", b"x", qos=1)
    made.client("c").client("c").client("")
    made.delivery("c", 9, 1, 1, db.QUEUED).delivery("nobody", 1, 1, 1, db.QUEUED).delivery("c", 3, 0, 1, 3)
    made.subscription("c", "a/#/b", 1).subscription("c", "ok", 3).subscription("c", "ok", 1)
    made.retained(8).add(3, bytes(16))
    found = read_mosquitto_db(made.bytes())
    assert set(found.messages) == {1, 3} and set(found.clients) == {"c"} and len(found.subscriptions) == 1
    assert found.deliveries == [] and found.retained == []
    assert [(each.what, each.why) for each in found.damage] == [
        ("message", "its topic cannot be published to"),
        ("client", "client c already exists"),
        ("client", "it has no client ID"),
        ("delivery", "there is no message 9"),
        ("delivery", "there is no client nobody"),
        ("delivery", "it has no packet identifier"),
        ("subscription", found.damage[6].why),
        ("subscription", "its options are not valid: QoS 3, 0x0"),
        ("retained message", "there is no message 8"),
        ("delivery", "there is no state 0"),
    ]
    offsets = [each.offset for each in found.damage]
    assert offsets == sorted(offsets) and all(offset >= db.HEAD for offset in offsets)


def test_what_follows_a_broken_head_is_found_again() -> None:
    made = DbWriter().message(1, "a", b"x")
    at = len(made.bytes())
    data = bytearray(made.message(2, "b", b"x").message(3, "c", b"x").client("c").retained(3).bytes())
    data[at + 3] = 99  # its kind
    found = read_mosquitto_db(bytes(data))
    assert set(found.messages) == {1, 3} and [store_id for _, store_id in found.retained] == [3]
    (damage,) = found.damage
    assert (damage.offset, damage.why) == (at, "no chunk is of kind 99")


def test_a_file_that_was_cut_off() -> None:
    made = DbWriter().message(1, "a", b"x").client("c")
    at = len(made.bytes())
    found = read_mosquitto_db(made.message(2, "b", b"y" * 100).bytes()[:-1])
    assert set(found.messages) == {1} and set(found.clients) == {"c"}
    assert (found.damage[0].offset, "cut off" in found.damage[0].why) == (at, True)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_file_never_raises(data: st.DataObject) -> None:
    """Cut, flipped, and with bytes put in."""
    sound = written(data.draw(st.sampled_from([5, 6]))).bytes()
    changed = bytearray(sound)
    for at in data.draw(st.lists(st.integers(db.HEAD, len(sound) - 1), max_size=6)):
        changed[at] ^= data.draw(st.integers(1, 255))
    where = data.draw(st.integers(db.HEAD, len(changed)))
    changed[where:where] = data.draw(st.binary(max_size=12))
    cut = bytes(changed[: data.draw(st.integers(db.HEAD, len(changed)))])
    found = read_mosquitto_db(cut)
    for delivery in found.deliveries:
        assert delivery.store_id in found.messages and delivery.client_id in found.clients
    for each in found.damage:
        assert db.HEAD <= each.offset <= len(cut) and each.why


def test_a_tail_of_zeros_is_passed_over_at_once() -> None:
    """As a file system leaves it after a crash: no position of it can begin a chunk."""
    data = DbWriter().message(1, "a", b"x").bytes() + bytes(50_000_000)
    began = time.process_time()
    found = read_mosquitto_db(data)
    assert time.process_time() - began < 5
    assert list(found.messages) == [1]
    assert [each.what for each in found.damage] == ["50000000 bytes"]
