"""Retained Messages: set, replaced, cleared, expired, bounded, switched off, and many of them at once."""

import inspect
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from taipan.broker.config import AccessSettings
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Connect, Will
from tests.support.clients import Clients, tcp, v4, v5
from tests.support.node import Node
from tests.support.wire import Ack, Publish

from .until_quiet import payloads, until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]


@pytest.mark.parametrize("stored", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
async def test_it_comes_with_the_lower_qos_and_the_flag(clients: Clients, stored: int, granted: int) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-9] [3.1.1 MQTT-3.3.1-5] [3.1.1 MQTT-3.3.1-6] [3.1.1 MQTT-3.3.1-8]"""
    peer = await clients.connect()
    await peer.publish(clients.topic, b"kept", stored, True)
    await peer.subscribe(clients.topic, qos=granted)
    await peer.expect_publish(clients.topic, b"kept", min(stored, granted), retain=True, dup=False)
    await peer.publish(clients.topic, b"", 0, True)


async def test_the_last_one_counts_and_live_ones_have_no_flag(clients: Clients) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-8] [3.1.1 MQTT-3.3.1-9] [3.1.1 MQTT-3.3.1-12]"""
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for payload, retain in ((b"1", True), (b"2", True), (b"3", False)):
        await peer.publish(clients.topic, payload, 1, retain)
        await peer.expect_publish(clients.topic, payload, retain=False)
    await peer.unsubscribe(clients.topic)
    await peer.subscribe(clients.topic, qos=1)
    await peer.expect_publish(clients.topic, b"2", retain=True)
    await peer.nothing()
    await peer.publish(clients.topic, b"", 0, True)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_empty_one_clears_and_is_forwarded(clients: Clients, qos: int) -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.1-7] [3.1.1 MQTT-3.3.1-10] [3.1.1 MQTT-3.3.1-11]"""
    peer = await clients.connect()
    await peer.publish(clients.topic, b"kept", 1, True)
    await peer.subscribe(clients.topic, qos=2)
    await peer.expect_publish(payload=b"kept")
    await peer.publish(clients.topic, b"", qos, True)
    await peer.expect_publish(clients.topic, b"", qos, retain=False)
    await peer.unsubscribe(clients.topic)
    await peer.subscribe(clients.topic, qos=2)
    await peer.nothing()
    await peer.publish(f"{clients.topic}/never was", b"", qos, True)  # no error


async def test_it_outlives_its_publishers_session(clients: Clients) -> None:
    """[3.1.1 MQTT-3.1.2-7]"""
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"kept", 1, True)
    await publisher.disconnect()
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.expect_publish(payload=b"kept")
    await peer.publish(clients.topic, b"", 1, True)


@v5
async def test_properties_are_kept(clients: Clients) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    peer = await clients.connect()
    properties = {
        c.PAYLOAD_FORMAT_INDICATOR: 1,
        c.CONTENT_TYPE: "text/plain",
        c.RESPONSE_TOPIC: "r/t",
        c.CORRELATION_DATA: b"\x00\xff",
        c.USER_PROPERTY: [("b", "2"), ("a", "1"), ("b", "3"), ("", "")],
    }
    await peer.publish(clients.topic, b"kept", 1, True, properties={**properties, c.TOPIC_ALIAS: 1})
    await peer.subscribe(clients.topic, qos=1)
    message = await peer.expect_publish(clients.topic, b"kept")
    assert message.properties == properties
    await peer.publish(clients.topic, b"", 1, True)


async def test_a_will_is_retained_where_it_asks(clients: Clients) -> None:
    """[MQTT-3.1.2-14] [MQTT-3.1.2-15] [3.1.1 MQTT-3.1.2-16] [3.1.1 MQTT-3.1.2-17]"""
    watcher = await clients.connect()
    for name, retain in (("kept", True), ("gone", False)):
        await watcher.subscribe(f"{clients.topic}/{name}", qos=1)
        dying = await clients.connect(will=Will(f"{clients.topic}/{name}", b"will", 1, retain))
        await dying.drop()
        await watcher.expect_publish(f"{clients.topic}/{name}", b"will", retain=False)
    late = await clients.connect()
    await late.subscribe(f"{clients.topic}/#", qos=1)
    await late.expect_publish(f"{clients.topic}/kept", b"will", retain=True)
    await late.nothing()
    await late.publish(f"{clients.topic}/kept", b"", 1, True)


async def test_each_filter_of_a_subscribe_brings_its_own(clients: Clients) -> None:
    """MQTT 5.0 section 3.8.4; duplicates are possible where filters overlap."""
    peer = await clients.connect()
    for name in "abc":
        await peer.publish(f"{clients.topic}/{name}", name.encode(), 1, True)
    await peer.subscribe(f"{clients.topic}/a", f"{clients.topic}/b", qos=1)
    assert sorted(await payloads(peer)) == [b"a", b"b"]
    for name in "abc":
        await peer.publish(f"{clients.topic}/{name}", b"", 1, True)


@v5
async def test_message_expiry_counts_on(clients: Clients) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    publisher = await clients.connect()
    await publisher.publish(f"{clients.topic}/short", b"s", 1, True, properties={c.MESSAGE_EXPIRY_INTERVAL: 5})
    await publisher.publish(f"{clients.topic}/long", b"l", 1, True, properties={c.MESSAGE_EXPIRY_INTERVAL: 100})
    await clients.pass_time(6)
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/#", qos=1)
    message = await peer.expect_publish(f"{clients.topic}/long", b"l", retain=True)
    assert 92 <= message.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 94
    await peer.nothing()
    await peer.publish(f"{clients.topic}/long", b"", 1, True)


@tcp
async def test_five_thousand_come_complete_and_flow_controlled(clients: Clients) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-2]"""
    count, window = 5000, 10
    publisher = await clients.connect()
    batch = [Publish(f"{clients.topic}/{number}", b"%d" % number, 0, True) for number in range(count)]
    for start in range(0, count, 500):
        await publisher.send(*batch[start : start + 500])
        await publisher.ping()
    await publisher.publish(f"{clients.topic}/0", b"0", 1, True)
    for number in range(1, 30):
        await publisher.publish(f"{clients.topic}/{number}", b"%d" % number, 2, True)
    properties = {c.RECEIVE_MAXIMUM: window} if clients.version == 5 else None
    peer = await clients.connect(properties=properties)
    await peer.subscribe(f"{clients.topic}/#", qos=2)
    found = await payloads(peer)
    assert sorted(map(int, found)) == list(range(count))
    # At QoS 1 nobody is ever sent more than its window.
    for number in range(60):
        await publisher.publish(f"{clients.topic}/{number}", b"%d" % number, 1, True)
    small = await clients.connect(properties=properties)
    await small.subscribe(f"{clients.topic}/+", qos=1)
    open_ids: set[int] = set()
    most = total = 0
    while total < count:
        packet = await small.expect_publish(acknowledge=False)
        total += 1
        if packet.qos:
            open_ids.add(packet.packet_id)
            most = max(most, len(open_ids))
            if len(open_ids) == window:
                for packet_id in open_ids:
                    await small.puback(packet_id)
                open_ids.clear()
        elif total == count - 60 and open_ids:
            for packet_id in open_ids:
                await small.puback(packet_id)
            open_ids.clear()
    assert most <= window
    for start in range(0, count, 500):
        await publisher.send(*(Publish(each.topic, b"", 0, True) for each in batch[start : start + 500]))
        await publisher.ping()


# --- settings --------------------------------------------------------------------------------------------------------


@tcp
async def test_no_more_than_max_messages_are_kept(clients_of: Start) -> None:
    clients = await clients_of(retained={"max_messages": 2})
    peer = await clients.connect()
    for name in "abc":
        await peer.publish(f"{clients.topic}/{name}", name.encode(), 1, True, expect=None)
    await peer.publish(f"{clients.topic}/a", b"replaced", 1, True)
    await peer.subscribe(f"{clients.topic}/#", qos=1)
    assert sorted(await payloads(peer)) == [b"b", b"replaced"]
    refused = clients.server.metrics.refusals.snapshot()  # only who can be told is refused
    assert refused == {"publish_quota_exceeded" if clients.version == 5 else "retained_full": 1}
    await peer.publish(f"{clients.topic}/a", b"", 1, True)
    await peer.publish(f"{clients.topic}/c", b"c", 1, True)
    late = await clients.connect()
    await late.subscribe(f"{clients.topic}/#", qos=1)
    assert sorted(await payloads(late)) == [b"b", b"c"]


# What is retained first of a topic, and a message that the bound does not allow then.
BOUNDS: dict[str, tuple[int, int]] = {"max_payload_size": (10, 11), "max_bytes": (10, 4000)}


def bounded(setting: str) -> dict[str, int]:
    return {setting: 10 if setting == "max_payload_size" else 3000}


async def kept(clients: Clients, topic: str) -> list[int]:
    """The sizes of what a new subscriber gets."""
    late = await clients.connect()
    await late.subscribe(topic, qos=1)
    return [len(each) for each in await payloads(late)]


@tcp
@v5
@pytest.mark.parametrize("setting", BOUNDS)
@pytest.mark.parametrize("prefix", ["", "$delayed/1/"])
async def test_what_cannot_be_retained_is_refused_with_a_reason(
    clients_of: Start, setting: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is delivered then, and the publisher knows that the earlier one stays."""
    clients = await clients_of(retained=bounded(setting))
    small, large = BOUNDS[setting]
    peer, watcher = await clients.connect(), await clients.connect()
    await watcher.subscribe(clients.topic, qos=1)
    await peer.publish(clients.topic, b"x" * small, 1, True)
    await watcher.expect_publish(payload=b"x" * small)
    for qos, kind in ((1, c.PUBACK), (2, c.PUBREC)):
        await peer.send(Publish(f"{prefix}{clients.topic}", b"x" * large, qos, True, packet_id=qos))
        ack = await peer.expect(Ack, type=kind, packet_id=qos, reason_code=0x97)
        assert ack.properties[c.REASON_STRING].startswith("quota_exceeded: ")
    assert clients.server.metrics.refusals.snapshot()["publish_quota_exceeded"] == 2
    assert f"reason=quota_exceeded setting=retained.{setting} count=1" in caplog.text
    await clients.pass_time(2)
    await watcher.nothing()
    assert await kept(clients, clients.topic) == [small]
    await peer.publish(f"{prefix}{clients.topic}", b"x" * large, 1)  # not to be retained


@tcp
@pytest.mark.parametrize("setting", BOUNDS)
@pytest.mark.parametrize("prefix", ["", "$delayed/1/"])
async def test_who_cannot_be_told_is_heard_and_what_was_kept_goes(
    clients_of: Start, version: int, setting: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """3.x, and QoS 0 of any version: nobody gets later what is out of date [3.1.1 MQTT-3.3.1-7]."""
    clients = await clients_of(retained=bounded(setting))
    small, large = BOUNDS[setting]
    peer, watcher = await clients.connect(), await clients.connect()
    await watcher.subscribe(clients.topic, qos=2)
    levels = (0,) if version == 5 else (0, 1, 2)
    for qos in levels:
        await peer.publish(clients.topic, b"x" * small, 1, True)
        await watcher.expect_publish(payload=b"x" * small)
        await peer.publish(f"{prefix}{clients.topic}", b"x" * large, qos, True)
        await clients.pass_time(2)
        await watcher.expect_publish(clients.topic, b"x" * large, qos)
        assert await kept(clients, clients.topic) == []
    reason = "too_large" if setting == "max_payload_size" else "full"
    assert clients.server.metrics.refusals.snapshot()[f"retained_{reason}"] == len(levels)
    assert "retain_refused " in caplog.text and f"reason={reason} setting=retained.{setting} count=1" in caplog.text


@tcp
async def test_a_will_that_cannot_be_retained_is_delivered_and_what_was_kept_goes(clients_of: Start) -> None:
    clients = await clients_of(retained={"max_payload_size": 10})
    watcher, peer = await clients.connect(), await clients.connect()
    await watcher.subscribe(clients.topic, qos=1)
    await peer.publish(clients.topic, b"small", 1, True)
    await watcher.expect_publish(payload=b"small")
    dying = await clients.connect(will=Will(clients.topic, b"x" * 11, 1, True))
    await dying.drop()
    await watcher.expect_publish(clients.topic, b"x" * 11, 1)
    assert await kept(clients, clients.topic) == []
    assert clients.server.metrics.refusals.snapshot()["retained_too_large"] == 1


@tcp
async def test_the_nodes_own_expiry(clients_of: Start) -> None:
    clients = await clients_of(retained={"expiry_interval": 60.0})
    peer = await clients.connect()
    await peer.publish(clients.topic, b"kept", 1, True)
    await clients.pass_time(50)
    await peer.subscribe(clients.topic, qos=1)
    await peer.expect_publish(payload=b"kept")
    await clients.pass_time(11)
    await peer.subscribe(clients.topic, qos=1)
    await peer.nothing()


@tcp
@v5
async def test_retain_unavailable_is_told_and_refused(clients_of: Start) -> None:
    """[MQTT-3.2.2-14] [MQTT-3.2.2-13]"""
    clients = await clients_of(zone={"retain_available": False})
    peer = await clients.connect()
    assert peer.connack.properties[c.RETAIN_AVAILABLE] == 0
    await peer.send(Publish(clients.topic, b"x", 1, True, packet_id=1))
    await peer.expect_disconnect(0x9A)
    willing = clients.peer()
    await willing.connect("willing", will=Will("t", b"x", 0, True), expect=0x9A)


@tcp
@v4
async def test_retain_unavailable_for_3_1_1(clients_of: Start) -> None:
    """Nobody can be told: it is not kept, or the connection ends."""
    clients = await clients_of(zone={"retain_available": False})
    peer = await clients.connect()
    await peer.send(Publish(clients.topic, b"x", 1, True, packet_id=1), Connect(4, "late"))
    late = await clients.connect()
    await late.subscribe(clients.topic, qos=1)
    assert await until_quiet(late) == []


@tcp
async def test_of_a_publisher_who_lost_the_right_nothing_is_delivered(clients_of: Start) -> None:
    """``check_source``: the right is judged again when somebody subscribes."""
    rules = [
        {"allow": False, "action": "publish", "client_id": "outlaw", "topics": ["secret/#"]},
    ]
    clients = await clients_of(retained={"check_source": True}, access={"cache": False})
    outlaw = await clients.connect("outlaw")
    await outlaw.publish("secret/x", b"kept", 1, True)
    await outlaw.publish("open/x", b"open", 1, True)
    node = clients.node
    assert isinstance(node, Node)
    settings = msgspec.structs.replace(
        node.settings, access=msgspec.convert({"rules": rules, "cache": False}, AccessSettings)
    )
    await reload(node.server, settings)
    peer = await clients.connect()
    await peer.subscribe("secret/#", "open/#", qos=1)
    assert await payloads(peer) == [b"open"]


async def reload(server: object, settings: object) -> None:
    """``Server.reload``, whether it is a coroutine function or not."""
    done = server.reload(settings)  # type: ignore[attr-defined]
    if inspect.isawaitable(done):
        await done
