"""PUBLISH from clients and how it is acknowledged, without a socket."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from taipan.broker.channel import publish as module
from taipan.broker.config import AccessSettings, RuleSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Ack, Disconnect, Pingreq, Pingresp, TopicFilter
from taipan.broker.session.memory_account import ALIAS_BYTES
from tests.support.fake_node import FakeClient, FakeNode, acknowledgements
from tests.support.wire import Publish

versions = pytest.mark.parametrize("version", [3, 4, 5])
DENY = {"rules": [{"allow": False, "action": "publish", "topics": ["denied/#"]}]}


# --- acknowledging --------------------------------------------------------------------------------------------------


@versions
def test_each_qos_is_acknowledged_and_delivered_once(version: int) -> None:
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-2.2.1-5]"""
    node = FakeNode()
    reader = node.connect("r", version=version)
    reader.subscribe("t", qos=2)
    writer = node.connect("w", version=version)
    writer.publish("t", b"0")
    assert acknowledgements(writer) == []
    writer.publish("t", b"1", 1, 9)
    assert acknowledgements(writer) == [(c.PUBACK, 9, 0)]
    writer.publish("t", b"2", 2, 9)
    assert acknowledgements(writer) == [(c.PUBREC, 9, 0)]
    writer.send(Ack(c.PUBREL, 9))
    assert acknowledgements(writer) == [(c.PUBCOMP, 9, 0)]
    assert [(each.payload, each.qos) for each in reader.messages()] == [(b"0", 0), (b"1", 1), (b"2", 2)]
    metrics = node.metrics
    assert (metrics.messages_qos0_received, metrics.messages_qos1_received, metrics.messages_qos2_received) == (1, 1, 1)
    assert (metrics.packets_publish_received, metrics.messages_received) == (3, 3)
    assert writer.connection.traffic().received2 == 1


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_nobody_matches(version: int, qos: int) -> None:
    node = FakeNode()
    writer = node.connect("w", version=version)
    writer.publish("t", b"x", qos, 5)
    code = rc.NO_MATCHING_SUBSCRIBERS if version == 5 else 0
    assert acknowledgements(writer) == [(c.PUBACK if qos == 1 else c.PUBREC, 5, code)]


@versions
def test_a_qos2_duplicate_is_one_message(version: int) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.3.3-12]; and [MQTT-4.3.2-5]: after PUBACK the same identifier is a new message."""
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    writer = node.connect("w", version=version)
    for dup in (False, True, False):
        writer.publish("t", b"2", 2, 9, dup=dup)
    assert acknowledgements(writer) == [(c.PUBREC, 9, 0)] * 3
    assert reader.payloads() == [b"2"]
    assert node.metrics.packets_publish_inuse == 2
    writer.send(Ack(c.PUBREL, 9))
    writer.publish("t", b"new", 2, 9, dup=True)
    assert acknowledgements(writer) == [(c.PUBCOMP, 9, 0), (c.PUBREC, 9, 0)]
    for _ in range(2):
        writer.publish("t", b"1", 1, 8, dup=True)
    assert reader.payloads() == [b"new", b"1", b"1"]


@versions
def test_a_qos2_duplicate_over_a_reconnect(version: int) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.3.3-10]"""
    node = FakeNode()
    node.connect("r").subscribe("t")
    writer = node.connect("w", clean_start=False, version=version, expiry=100)
    writer.publish("t", b"2", 2, 9)
    writer.vanish()
    writer = node.connect("w", clean_start=False, version=version, expiry=100)
    writer.publish("t", b"2", 2, 9, dup=True)
    assert acknowledgements(writer) == [(c.PUBREC, 9, 0)]
    assert node.metrics.messages_publish == 1


# --- limits ---------------------------------------------------------------------------------------------------------


def test_the_receive_maximum_counts_what_is_unfinished() -> None:
    """[MQTT-3.3.4-7]: a repetition is not counted twice, a refused one gives its place back, and QoS 1 is answered."""
    node = FakeNode({"receive_maximum": 2}, access=DENY)
    node.connect("r").subscribe("t")
    writer = node.connect("w")
    assert writer.connack.properties[c.RECEIVE_MAXIMUM] == 2
    writer.publish("t", b"", 2, 1)
    writer.publish("denied/x", b"", 2, 2)
    writer.publish("t", b"", 2, 3)
    writer.publish("t", b"", 2, 3, dup=True)
    writer.publish("t", b"", 1, 5)
    found = [each[1:] for each in acknowledgements(writer)]
    assert found == [(1, 0), (2, rc.NOT_AUTHORIZED), (3, 0), (3, 0), (5, 0)]
    writer.publish("t", b"", 2, 4)
    (bye,) = writer.received()
    assert isinstance(bye, Disconnect) and bye.reason_code == rc.RECEIVE_MAXIMUM_EXCEEDED
    assert writer.closed
    assert node.metrics.packets_publish_dropped == 1


@pytest.mark.parametrize("pieces", [1, 3])
def test_qos_1_beyond_the_receive_maximum_is_answered(pieces: int) -> None:
    """A burst of any length, however slowly it is taken: nobody is sent away for it."""
    node = FakeNode({"receive_maximum": 5})
    writer = node.connect("w")
    burst = [Publish("t", b"", 1, packet_id=packet_id) for packet_id in range(1, 1001)]
    for piece in range(pieces):
        writer.feed(*burst[piece::pieces])
    node.run()
    assert sorted(each[1] for each in acknowledgements(writer)) == list(range(1, 1001))
    assert not writer.closed and node.metrics.packets_publish_dropped == 0


def test_the_receive_maximum_holds_for_qos_2_in_a_burst_with_qos_1() -> None:
    """[MQTT-3.3.4-7]"""
    node = FakeNode({"receive_maximum": 2})
    writer = node.connect("w")
    mixed = [Publish("t", b"", qos, packet_id=packet_id) for packet_id, qos in ((1, 1), (2, 2), (3, 1), (4, 2), (2, 2))]
    writer.send(*mixed)
    assert len(writer.received()) == 5
    writer.send(Publish("t", b"", 1, packet_id=1), Publish("t", b"", 0), Publish("t", b"", 1, packet_id=3))
    assert len(writer.received()) == 2
    writer.send(*mixed, Publish("t", b"", 2, packet_id=6))
    bye = writer.received()[-1]
    assert isinstance(bye, Disconnect) and bye.reason_code == rc.RECEIVE_MAXIMUM_EXCEEDED


def test_3_x_has_no_receive_maximum() -> None:
    node = FakeNode({"receive_maximum": 3})
    writer = node.connect("w", version=4)
    writer.send(*(Publish("t", b"", 1, packet_id=packet_id) for packet_id in range(1, 11)))
    assert len(writer.received()) == 10


@versions
def test_too_many_unreleased(version: int, caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode({"max_awaiting_rel": 1})
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    writer = node.connect("w", version=version)
    writer.publish("t", b"1", 2, 1)
    with caplog.at_level(logging.WARNING):
        writer.publish("t", b"2", 2, 2)
    assert acknowledgements(writer) == [(c.PUBREC, 1, 0)] + ([(c.PUBREC, 2, rc.QUOTA_EXCEEDED)] if version == 5 else [])
    assert "setting=max_awaiting_rel" in caplog.text
    assert reader.payloads() == [b"1"]
    writer.send(Ack(c.PUBREL, 1))
    writer.publish("t", b"2", 2, 2, dup=True)
    assert acknowledgements(writer) == [(c.PUBCOMP, 1, 0), (c.PUBREC, 2, 0)]
    assert reader.payloads() == [b"2"]


def test_an_identifier_in_use_by_the_other_qos() -> None:
    node = FakeNode()
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    for version, code in ((5, rc.PACKET_IDENTIFIER_IN_USE), (4, 0)):
        writer = node.connect("w", version=version)
        writer.publish("t", b"", 2, 7)
        acknowledgements(writer)
        writer.publish("t", b"", 1, 7)
        assert acknowledgements(writer) == [(c.PUBACK, 7, code)]
        assert len(reader.messages()) == (1 if code else 2)


@versions
@pytest.mark.parametrize(
    "zone, keys, code",
    [
        ({"max_qos": 1}, {"qos": 2, "packet_id": 1}, rc.QOS_NOT_SUPPORTED),
        ({"max_qos": 0}, {"qos": 1, "packet_id": 1}, rc.QOS_NOT_SUPPORTED),
        ({"retain_available": False}, {"retain": True}, rc.RETAIN_NOT_SUPPORTED),
    ],
)
def test_what_was_announced_as_unavailable_closes(
    version: int, zone: dict[str, Any], keys: dict[str, Any], code: int
) -> None:
    """[MQTT-3.2.2-11] [MQTT-3.2.2-14]"""
    writer = FakeNode(zone).connect("w", version=version)
    writer.publish("t", b"x", **keys)
    packets = writer.received()
    assert [each.reason_code for each in packets] == ([code] if version == 5 else [])  # type: ignore[union-attr]
    assert writer.closed


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    "topic, code",
    [
        ("a/b/c", rc.TOPIC_NAME_INVALID),
        ("$SYS", rc.NOT_AUTHORIZED),
        ("$SYS/x", rc.NOT_AUTHORIZED),
        ("$delayed/1/$SYS/x", rc.TOPIC_NAME_INVALID),  # four levels
        ("$delayed/x", rc.TOPIC_NAME_INVALID),
        ("denied/x", rc.NOT_AUTHORIZED),
    ],
)
def test_a_topic_that_is_not_the_client_s_to_write(qos: int, topic: str, code: int) -> None:
    """[3.1.1 MQTT-3.3.5-2]"""
    for version in (4, 5):
        node = FakeNode({"max_topic_levels": 2}, access=DENY)
        writer = node.connect("w", version=version)
        writer.publish(topic, b"x", qos, qos)
        assert acknowledgements(writer) == ([(c.PUBACK, 1, code if version == 5 else 0)] if qos else [])
        assert node.metrics.messages_publish == 0
        denied = code == rc.NOT_AUTHORIZED
        assert (node.metrics.packets_publish_auth_error, node.metrics.packets_publish_error) == (denied, not denied)
        assert node.metrics.refusals.snapshot() == {f"publish_{rc.name(code)}": 1}


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_reason_string_only_where_the_client_wants_it(wanted: int) -> None:
    """[MQTT-3.1.2-29]"""
    node = FakeNode(access=DENY)
    writer = node.connect("w", properties={c.REQUEST_PROBLEM_INFORMATION: wanted})
    writer.publish("denied/x", b"x", 1, 1)
    (ack,) = writer.received()
    assert isinstance(ack, Ack)
    assert ack.properties == ({c.REASON_STRING: "not_authorized"} if wanted else {})


@versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_denied_publish_may_close(version: int, qos: int) -> None:
    node = FakeNode({"acl_deny_action": "disconnect"}, access=DENY)
    writer = node.connect("w", clean_start=False, version=version, expiry=100)
    writer.publish("denied/x", b"x", qos, qos)
    codes = [each.reason_code for each in writer.received()]  # type: ignore[union-attr]
    assert codes == ([rc.NOT_AUTHORIZED] if version == 5 else [])
    assert writer.closed
    # What was denied was not taken: it is no duplicate when it comes again.
    session = node.broker.sessions.get("w")
    assert session is not None and session.awaiting_rel is None


# --- access ---------------------------------------------------------------------------------------------------------


def test_a_topic_once_admitted_is_not_asked_about_again_until_the_rules_change() -> None:
    node = FakeNode(access={"cache_ttl": 60})
    asked: list[str] = []
    node.hooks.client_check_acl.add(lambda allowed, client, action, topic: asked.append(topic) or allowed)
    writer = node.connect("w")
    for _ in range(3):
        writer.publish("t")
    assert asked == ["t"]
    assert (node.metrics.client_check_acl, node.metrics.client_acl_cache_hit) == (1, 2)
    assert node.metrics.client_acl_allow == 3
    node.clock.advance(60)
    writer.publish("t")
    assert asked == ["t", "t"]
    node.server.access.reload(AccessSettings(rules=[RuleSettings(allow=False, topics=["t"])]))
    writer.publish("t", b"", 1, 1)
    assert acknowledgements(writer) == [(c.PUBACK, 1, rc.NOT_AUTHORIZED)]
    assert asked == ["t", "t", "t"]


def test_without_the_cache_every_publish_is_asked_about() -> None:
    node = FakeNode(access={"cache": False})
    asked: list[tuple[bool, bool]] = []
    node.hooks.client_check_acl_complete.add(
        lambda client, action, topic, allowed, cached: asked.append((allowed, cached))
    )
    writer = node.connect("w")
    for _ in range(2):
        writer.publish("t")
    assert asked == [(True, False)] * 2


def test_a_denial_that_is_cached_is_counted_as_such() -> None:
    node = FakeNode(access=DENY)
    asked: list[tuple[bool, bool]] = []
    node.hooks.client_check_acl_complete.add(
        lambda client, action, topic, allowed, cached: asked.append((allowed, cached))
    )
    writer = node.connect("w")
    for _ in range(2):
        writer.publish("denied/x")
    assert asked == [(False, False), (False, True)]
    assert (node.metrics.client_acl_deny, node.metrics.client_acl_cache_hit) == (2, 1)


@pytest.mark.interpreted
def test_what_is_admitted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ADMITTED", 3)
    writer = FakeNode().connect("w")
    for number in range(20):
        writer.publish(f"t/{number}")
        assert 0 < len(writer.channel.admitted) <= 3


# --- Topic Alias ----------------------------------------------------------------------------------------------------


def test_long_topics_are_not_remembered() -> None:
    writer = FakeNode().connect("w")
    for size in (256, 257, 60_000):
        writer.publish("x" * size)
    assert [len(topic) for topic in writer.channel.admitted] == [256]


@pytest.mark.interpreted
def test_what_aliases_stand_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ALIAS_CHARACTERS", 10)
    writer = FakeNode().connect("w")
    for topic in ("aaaaa", "bbbb", "ccccc"):  # one alias: only what it stands for now counts
        writer.publish(topic, properties={c.TOPIC_ALIAS: 1})
    writer.publish("ddddd", properties={c.TOPIC_ALIAS: 2})
    assert acknowledgements(writer) == [] and not writer.closed
    writer.publish("e", properties={c.TOPIC_ALIAS: 3})
    (disconnect,) = writer.received()
    assert isinstance(disconnect, Disconnect) and disconnect.reason_code == rc.QUOTA_EXCEEDED
    assert writer.closed


@pytest.mark.interpreted
def test_aliases_are_counted_as_long_as_their_client_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ALIAS_CHARACTERS", 10)
    node = FakeNode()
    for _ in range(3):
        writer = node.connect("w")
        writer.publish("dddddd", properties={c.TOPIC_ALIAS: 1})
        assert node.broker.account.aliases == 6 + ALIAS_BYTES
        writer.publish("eeeeee", properties={c.TOPIC_ALIAS: 2})  # which is too much
        assert writer.closed and node.broker.account.aliases == 0
    writer = node.connect("w")
    writer.publish("dddddd", properties={c.TOPIC_ALIAS: 1})
    writer.publish("d", properties={c.TOPIC_ALIAS: 1})
    assert node.broker.account.aliases == 1 + ALIAS_BYTES
    writer.vanish()
    assert node.broker.account.aliases == 0


def test_aliases_from_the_client() -> None:
    """[MQTT-3.3.2-7] [MQTT-3.3.2-9] [MQTT-3.3.2-12]; they do not travel on."""
    node = FakeNode({"max_topic_alias": 2})
    reader = node.connect("r")
    reader.subscribe("#")
    writer = node.connect("w")
    assert writer.connack.properties[c.TOPIC_ALIAS_MAXIMUM] == 2
    alias = {c.TOPIC_ALIAS: 1}
    writer.publish("a", b"1", properties=alias)
    writer.publish("", b"2", properties={**alias, c.CONTENT_TYPE: "x"})
    writer.publish("b", b"3", properties=alias)
    writer.publish("", b"4", 1, 1, properties=alias)
    assert [(each.topic, each.payload, each.properties) for each in reader.messages()] == [
        ("a", b"1", {}),
        ("a", b"2", {c.CONTENT_TYPE: "x"}),
        ("b", b"3", {}),
        ("b", b"4", {}),
    ]
    acknowledgements(writer)
    writer = node.connect("w")
    writer.publish("", b"5", properties=alias)
    assert [each.reason_code for each in writer.received()] == [rc.PROTOCOL_ERROR]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "topic, alias, code",
    [("a", 3, rc.TOPIC_ALIAS_INVALID), ("", 3, rc.TOPIC_ALIAS_INVALID), ("", 2, rc.PROTOCOL_ERROR)],
)
def test_an_alias_that_cannot_be(topic: str, alias: int, code: int) -> None:
    """[MQTT-3.3.2-8] [MQTT-3.3.2-9]; one that stands for nothing, section 3.3.4."""
    writer = FakeNode({"max_topic_alias": 2}).connect("w")
    writer.publish("a", properties={c.TOPIC_ALIAS: 1})
    writer.publish(topic, properties={c.TOPIC_ALIAS: alias})
    assert [each.reason_code for each in writer.received()] == [code]  # type: ignore[union-attr]
    assert writer.closed


# --- mount points and delays ----------------------------------------------------------------------------------------


def test_a_mount_point() -> None:
    node = FakeNode()
    whole = node.connect("whole")
    whole.subscribe("#")
    reader = node.connect("r", zone={"mountpoint": "m/"})
    reader.subscribe("t")
    for version in (4, 5):
        writer = node.connect("w", version=version, zone={"mountpoint": "m/"})
        writer.publish("t", b"x")
        writer.publish("t", b"y", 1, 1)
        assert [each.topic for each in reader.messages()] == ["t", "t"]
        assert [each.topic for each in whole.messages()] == ["m/t", "m/t"]
    writer.publish("$delayed/1/t", b"later")
    node.pass_time(1)
    assert [each.topic for each in whole.messages()] == ["m/t"]
    writer.received()
    writer.publish("t" * 65_534, b"", 1, 2)
    assert acknowledgements(writer) == [(c.PUBACK, 2, rc.TOPIC_NAME_INVALID)]


def test_a_delayed_publish() -> None:
    node = FakeNode(delayed={"max_messages": 2})
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    writer = node.connect("w")
    writer.publish("$delayed/5/t", b"0")
    writer.publish("$delayed/5/t", b"2", 2, 1)
    writer.publish("$delayed/5/t", b"full", 2, 2)
    writer.publish("$delayed/5/t", b"full")
    assert acknowledgements(writer) == [(c.PUBREC, 1, 0), (c.PUBREC, 2, rc.QUOTA_EXCEEDED)]
    assert reader.messages() == []
    node.pass_time(5)
    assert reader.payloads() == [b"0", b"2"]
    off = FakeNode(delayed={"enabled": False})
    reader = off.connect("r")
    reader.subscribe("$delayed/#")
    off.connect("w").publish("$delayed/5/t")
    assert [each.topic for each in reader.messages()] == ["$delayed/5/t"]


# --- queue_full = "refuse" ------------------------------------------------------------------------------------------


def full_node(mountpoint: str = "") -> tuple[FakeNode, FakeClient]:
    """A subscriber to ``t`` with one message in flight and a full queue."""
    node = FakeNode({"queue_full": "refuse", "max_queued_messages": 1, "max_inflight": 1, "mountpoint": mountpoint})
    reader = node.connect("r")
    reader.subscribe("t", qos=2)
    node.publish(f"{mountpoint}t", b"in flight", 1)
    node.publish(f"{mountpoint}t", b"queued", 1)
    return node, reader


@pytest.mark.parametrize("qos", [1, 2])
def test_a_full_queue_refuses_a_5_0_publisher(qos: int) -> None:
    node, reader = full_node()
    writer = node.connect("w")
    kind = c.PUBACK if qos == 1 else c.PUBREC
    writer.publish("t", b"x", qos, 1)
    assert acknowledgements(writer) == [(kind, 1, rc.QUOTA_EXCEEDED)]
    reader.puback(1)
    writer.publish("t", b"y", qos, 1)
    assert acknowledgements(writer) == [(kind, 1, 0)]
    assert reader.payloads() == [b"in flight", b"queued"]
    reader.puback(2)
    assert reader.payloads() == [b"y"]


class Sleeper:
    """``asyncio.sleep`` that sleeps until the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept: list[float] = []
        self.wake = asyncio.Event()
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        monkeypatch.setattr(module.asyncio, "sleep", self)

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.wake.wait()
        self.wake.clear()

    async def turn(self) -> None:
        for _ in range(5):
            await self.sleep(0)

    async def over(self) -> None:
        """The time is up."""
        self.wake.set()
        await self.turn()


@pytest.mark.asyncio
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_full_queue_makes_a_3x_publisher_wait(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next messages wait with it, in order; PINGREQ does not, and of the others so many are read as may wait."""
    node, reader = full_node()
    sleeper = Sleeper(monkeypatch)
    writer = node.connect("w", version=4)
    writer.send(Publish("t", b"x", qos, packet_id=1), Pingreq())
    await sleeper.turn()
    assert writer.received() == [Pingresp()]
    writer.send(Publish("other", b"y", 1, packet_id=2), Pingreq())
    assert writer.received() == [Pingresp()]
    assert writer.transport.reading
    writer.feed(*[Publish("more", bytes(1000))] * 70, Pingreq())
    assert writer.received() == [Pingresp()]
    assert not writer.transport.reading
    reader.puback(1)
    await sleeper.over()
    kind = c.PUBACK if qos == 1 else c.PUBREC
    assert writer.received() == [Ack(kind, 1), Ack(c.PUBACK, 2)]
    assert writer.transport.reading
    if qos == 2:
        writer.publish("t", b"x", 2, 1, dup=True)
        assert acknowledgements(writer) == [(c.PUBREC, 1, 0)]
    reader.puback(2)
    assert reader.payloads() == [b"in flight", b"queued", b"x"]


@pytest.mark.asyncio
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("mountpoint", ["", "m/"])
async def test_a_right_that_ends_while_the_message_waits(
    qos: int, mountpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it may be published is judged when it is published, by the topic that the client calls it."""
    node, reader = full_node(mountpoint)
    sleeper = Sleeper(monkeypatch)
    writer = node.connect("w", version=4)
    writer.send(Publish("t", b"x", qos, packet_id=1))
    await sleeper.turn()
    assert writer.received() == []
    rules = [{"allow": False, "action": "publish", "topics": ["t"]}]
    node.server.access.reload(msgspec.convert({"rules": rules}, AccessSettings))
    reader.puback(1)
    await sleeper.over()
    assert acknowledgements(writer) == [(c.PUBACK if qos == 1 else c.PUBREC, 1, 0)]
    reader.puback(2)
    assert reader.payloads() == [b"in flight", b"queued"]
    assert node.metrics.packets_publish_auth_error == 1
    assert node.metrics.refusals.snapshot() == {"publish_not_authorized": 1}
    assert "publish_refused client_id=w" in caplog.text and "setting=access.rules.0" in caplog.text
    if qos == 2:
        writer.send(Ack(c.PUBREL, 1))
        assert acknowledgements(writer) == [(c.PUBCOMP, 1, 0)]


@pytest.mark.asyncio
async def test_a_publisher_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = full_node()
    sleeper = Sleeper(monkeypatch)
    writer = node.connect("w", version=4)
    writer.send(Publish("t", b"x", 1, packet_id=1))
    await sleeper.turn()
    node.clock.advance(module._MAX_WAIT)
    await sleeper.over()
    assert not writer.closed
    node.clock.advance(1)
    await sleeper.over()
    assert writer.closed and writer.received() == []


@pytest.mark.asyncio
async def test_a_waiting_publisher_that_goes_may_send_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """[MQTT-4.3.3-10] must not make a duplicate of what was never published."""
    node, reader = full_node()
    sleeper = Sleeper(monkeypatch)
    writer = node.connect("w", clean_start=False, version=4)
    writer.send(Publish("t", b"x", 2, packet_id=1))
    await sleeper.turn()
    writer.vanish()
    reader.puback(1)
    again = node.connect("w", clean_start=False, version=4)
    again.publish("t", b"x", 2, 1, dup=True)
    await sleeper.over()
    assert acknowledgements(again) == [(c.PUBREC, 1, 0)]
    reader.puback(2)
    assert reader.payloads() == [b"in flight", b"queued", b"x"]
    assert reader.session.queued == 0


# --- what others see of it -------------------------------------------------------------------------------------------


def test_the_client_is_the_publisher_of_its_messages() -> None:
    node = FakeNode()
    published: list[Any] = []
    node.hooks.message_publish.add(lambda message: published.append(message) or message)
    writer = node.connect("w")
    node.clock.advance(5)
    writer.publish("t", b"x")
    (message,) = published
    assert message.publisher is writer.channel.client
    assert message.timestamp == node.clock.time


def test_no_local_between_filters_and_versions() -> None:
    """[MQTT-3.8.3-3]; a 3.x client of a zone that says ``ignore_loop_deliver`` as if it had asked."""
    node = FakeNode()
    client = node.connect("c")
    client.subscribe(TopicFilter("t/#", 2, no_local=True), TopicFilter("t/1", 1))
    for qos, packet_id in ((0, 0), (2, 1)):
        client.publish("t/1", b"x", qos, packet_id)
    client.publish("t/2", b"y")
    packets = client.received()
    assert [each.qos for each in packets if isinstance(each, Publish)] == [0, 1]
    old = node.connect("old", version=4, zone={"ignore_loop_deliver": True})
    old.subscribe("own")
    old.publish("own")
    node.publish("own")
    assert len(old.messages()) == 1
