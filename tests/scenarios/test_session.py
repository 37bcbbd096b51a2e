"""Session State: what is kept over connections, how long, and what ends it."""

from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Disconnect
from tests.support.clients import Clients, StartClients, tcp, v4, v5
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_subscriptions_and_messages_are_kept(clients: Clients) -> None:
    """QoS 1 and 2 wait in order [MQTT-3.1.2-5] [MQTT-4.1.0-1] [MQTT-4.5.0-1]
    [3.1.1 MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-5]
    [3.1.1 MQTT-4.1.0-1] [3.1.1 MQTT-4.5.0-1]."""
    topic, name = f"{clients.topic}/a", clients.name()
    peer = await clients.persistent(name)
    await peer.subscribe(topic, qos=2)
    await peer.disconnect()
    publisher = await clients.connect()
    for number in range(10):
        await publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
    peer = await clients.persistent(name, session_present=True)
    for number in range(10):
        await peer.expect_publish(topic, b"%d" % number, 1 + number % 2, dup=False)
    await peer.nothing()


@tcp
async def test_each_subscription_is_kept_with_its_qos(clients: Clients) -> None:
    topic, name = clients.topic, clients.name()
    peer = await clients.persistent(name)
    for qos in (0, 1, 2):
        await peer.subscribe(f"{topic}/{qos}", qos=qos)
    await peer.unsubscribe(f"{topic}/1")
    await peer.disconnect()
    peer = await clients.persistent(name, session_present=True)
    publisher = await clients.connect()
    for qos in (0, 1, 2):
        await publisher.publish(f"{topic}/{qos}", b"", 2)
    await peer.expect_publish(f"{topic}/0", b"", 0)
    await peer.expect_publish(f"{topic}/2", b"", 2)
    await peer.nothing()


async def test_clean_session_leaves_nothing(clients: Clients) -> None:
    """[MQTT-3.1.2-4] [3.1.1 MQTT-3.1.2-6]"""
    topic, name = f"{clients.topic}/a", clients.name()
    peer = await clients.connect(name)
    await peer.subscribe(topic, qos=1)
    await peer.disconnect()
    peer = await clients.persistent(name, session_present=False)
    publisher = await clients.connect()
    await publisher.publish(topic, b"", 1)
    await peer.nothing()


async def test_clean_start_discards_a_stored_session(clients: Clients) -> None:
    """Queue included [MQTT-3.1.2-4] [MQTT-3.1.4-4] [3.1.1 MQTT-3.1.2-6] [3.1.1 MQTT-3.1.4-3]."""
    topic, name = f"{clients.topic}/a", clients.name()
    peer = await clients.persistent(name)
    await peer.subscribe(topic, qos=1)
    await peer.drop()
    publisher = await clients.connect()
    await publisher.publish(topic, b"", 1)
    peer = await clients.persistent(name, clean_start=True, session_present=False)
    await publisher.publish(topic, b"", 1)
    await peer.nothing()


@v4
async def test_311_session_is_discarded_before_and_after_clean_session(clients: Clients) -> None:
    """[3.1.1 MQTT-3.1.2-6]"""
    name = clients.name()
    for clean, present in ((False, False), (False, True), (True, False), (False, False), (False, True)):
        peer = await clients.connect(name, clean, session_present=present)
        await peer.disconnect()


@v4
async def test_retained_messages_are_not_session_state(clients: Clients) -> None:
    """[3.1.1 MQTT-3.1.2-7]"""
    topic, name = f"{clients.topic}/r", clients.name()
    peer = await clients.connect(name)
    await peer.publish(topic, b"kept", 1, True)
    await peer.disconnect()
    peer = await clients.connect()
    await peer.subscribe(topic)
    await peer.expect_publish(topic, b"kept", 0, retain=True)


@v5
@pytest.mark.parametrize("interval", [None, 0])
async def test_no_expiry_interval_ends_the_session_with_the_connection(clients: Clients, interval: int | None) -> None:
    """[MQTT-3.1.2-23]"""
    name = clients.name()
    properties = {} if interval is None else {c.SESSION_EXPIRY_INTERVAL: interval}
    peer = await clients.connect(name, False, properties=properties)
    await peer.drop()
    await clients.pass_time(0.1)
    await clients.connect(name, False, session_present=False)


@v5
@tcp
async def test_session_expires_at_its_time(clients: Clients) -> None:
    """Counted from the end of the connection; not before, not after [MQTT-3.1.2-23] [MQTT-4.1.0-2]."""
    name = clients.name()
    options: dict[str, Any] = {"properties": {c.SESSION_EXPIRY_INTERVAL: 2}}
    peer = await clients.connect(name, **options)
    await clients.pass_time(3)  # while connected, nothing expires [MQTT-4.1.0-1]
    await peer.ping()
    await peer.disconnect()
    await clients.pass_time(1)
    peer = await clients.connect(name, False, session_present=True, **options)
    await peer.disconnect()
    await clients.pass_time(1)  # the first interval has run out, the second has not
    peer = await clients.connect(name, False, session_present=True, **options)
    await peer.disconnect()
    await clients.pass_time(3)
    await clients.connect(name, False, session_present=False)


@v5
@tcp
async def test_never_expires(clients: Clients) -> None:
    """0xFFFFFFFF."""
    name = clients.name()
    peer = await clients.connect(name, properties={c.SESSION_EXPIRY_INTERVAL: c.NEVER_EXPIRES})
    told = peer.connack.properties.get(c.SESSION_EXPIRY_INTERVAL, c.NEVER_EXPIRES)
    await peer.disconnect()
    await clients.pass_time(1 if clients.node.external else min(told - 10, 10**9))
    await clients.connect(name, False, session_present=True)


@v5
async def test_disconnect_may_change_the_expiry(clients: Clients) -> None:
    """[MQTT-3.1.2-23]"""
    name = clients.name()
    for interval, present in ((0, False), (100, True)):
        peer = await clients.connect(name, properties={c.SESSION_EXPIRY_INTERVAL: 50})
        await peer.disconnect(properties={c.SESSION_EXPIRY_INTERVAL: interval})
        peer = await clients.connect(name, False, session_present=present)
        await peer.disconnect()


@v5
async def test_disconnect_may_not_raise_the_expiry_from_0(clients: Clients) -> None:
    """0x82, and the session ends all the same [MQTT-3.14.2-2]."""
    name = clients.name()
    peer = await clients.connect(name)
    await peer.send(Disconnect(0, {c.SESSION_EXPIRY_INTERVAL: 10}))
    await peer.expect_disconnect(0x82)
    await clients.connect(name, False, session_present=False)


@v5
@tcp
async def test_expiry_ends_subscriptions_and_queue(clients: Clients) -> None:
    topic, name = f"{clients.topic}/a", clients.name()
    options: dict[str, Any] = {"properties": {c.SESSION_EXPIRY_INTERVAL: 1}}
    peer = await clients.connect(name, **options)
    await peer.subscribe(topic, qos=1)
    await peer.drop()
    publisher = await clients.connect()
    await publisher.publish(topic, b"", 1)
    await clients.pass_time(2)
    peer = await clients.connect(name, False, session_present=False, **options)
    assert await publisher.publish(topic, b"", 1) == 0x10
    await peer.nothing()


async def test_unfinished_deliveries_survive(clients: Clients) -> None:
    """PUBLISH or PUBREL, whichever is due, with its Packet Identifier [MQTT-4.4.0-1] [MQTT-4.3.3-6]
    [3.1.1 MQTT-4.4.0-1]."""
    topic, name = f"{clients.topic}/a", clients.name()
    peer = await clients.persistent(name)
    await peer.subscribe(topic, qos=2)
    publisher = await clients.connect()
    for number in range(3):
        await publisher.publish(topic, b"%d" % number, 2)
    ids = [(await peer.expect_publish(topic, b"%d" % n, 2, acknowledge=False)).packet_id for n in range(3)]
    await peer.pubrec(ids[0])
    await peer.expect_ack(c.PUBREL, ids[0])
    await peer.drop()
    peer = await clients.persistent(name, session_present=True)
    await peer.answer(Ack, type=c.PUBREL, packet_id=ids[0])  # its place among the PUBLISH packets is free
    await peer.expect_publish(topic, b"1", 2, dup=True, packet_id=ids[1], acknowledge=False)
    await peer.expect_publish(topic, b"2", 2, dup=True, packet_id=ids[2], acknowledge=False)
    await peer.pubcomp(ids[0])
    for packet_id in ids[1:]:
        await peer.pubrec(packet_id)
        await peer.expect_ack(c.PUBREL, packet_id)
        await peer.pubcomp(packet_id)
    await peer.nothing()


async def test_inbound_qos_2_identifiers_survive(clients: Clients) -> None:
    """[MQTT-4.3.3-10] [3.1.1 MQTT-4.3.3-2]"""
    topic, name = f"{clients.topic}/a", clients.name()
    watcher = await clients.connect()
    await watcher.subscribe(topic, qos=0)
    peer = await clients.persistent(name)
    await peer.send(Publish(topic, b"x", 2, packet_id=5))
    await peer.expect_ack(c.PUBREC, 5)
    await peer.drop()
    peer = await clients.persistent(name, session_present=True)
    await peer.send(Publish(topic, b"x", 2, dup=True, packet_id=5))
    await peer.expect_ack(c.PUBREC, 5, None)
    await peer.pubrel(5)
    await peer.expect_ack(c.PUBCOMP, 5)
    await watcher.expect_publish(topic, b"x", 0)
    await watcher.nothing()


async def test_qos_0_is_not_queued(clients: Clients) -> None:
    """By default."""
    topic, name = f"{clients.topic}/a", clients.name()
    peer = await clients.persistent(name)
    await peer.subscribe(topic, qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    await publisher.publish(topic, b"0")
    await publisher.publish(topic, b"1", 1)
    peer = await clients.persistent(name, session_present=True)
    if clients.node.external:
        return
    await peer.expect_publish(topic, b"1", 1)
    await peer.nothing()


@tcp
async def test_qos_0_is_queued_where_a_setting_says_so(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"queue_qos0": True})
    peer = await clients.persistent("q")
    await peer.subscribe("a", qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    await publisher.publish("a", b"0")
    await publisher.publish("a", b"1", 1)
    peer = await clients.persistent("q", session_present=True)
    await peer.expect_publish("a", b"0", 0)
    await peer.expect_publish("a", b"1", 1)


@tcp
async def test_queue_drops_the_oldest(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"max_queued_messages": 3})
    peer = await clients.persistent("q")
    await peer.subscribe("a", qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    for number in range(5):
        await publisher.publish("a", b"%d" % number, 1)
    peer = await clients.persistent("q", session_present=True)
    for number in (2, 3, 4):
        await peer.expect_publish("a", b"%d" % number, 1)
    await peer.nothing()


@tcp
async def test_queue_refuses_when_full(clients_of: StartClients) -> None:
    """5.0: 0x97; 3.x: the acknowledgement is withheld until there is room."""
    clients = await clients_of(zone={"max_queued_messages": 2, "queue_full": "refuse"})
    peer = await clients.persistent("q")
    await peer.subscribe("a", qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    for number in range(2):
        await publisher.publish("a", b"%d" % number, 1)
    if clients.version == 5:
        assert await publisher.publish("a", b"2", 1, expect=0x97) == 0x97
    else:
        await publisher.send(Publish("a", b"2", 1, packet_id=9))
    peer = await clients.persistent("q", session_present=True)
    for number in range(2):
        await peer.expect_publish("a", b"%d" % number, 1)
    if clients.version == 4:  # there is room again
        await publisher.expect_ack(c.PUBACK, 9)
        await peer.expect_publish("a", b"2", 1)
    await peer.nothing()


@tcp
async def test_queue_is_bounded_in_bytes(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"max_queued_bytes": 10_000})
    peer = await clients.persistent("q")
    await peer.subscribe("a", qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    for number in range(5):
        await publisher.publish("a", b"%d" % number + bytes(4_000), 1)
    peer = await clients.persistent("q", session_present=True)
    for number in (3, 4):
        await peer.expect_publish("a", b"%d" % number + bytes(4_000), 1)
    await peer.nothing()


@tcp
async def test_queue_priorities(clients_of: StartClients) -> None:
    """The more important first; in order among equals."""
    clients = await clients_of(zone={"queue_priorities": {"alarm/#": 10, "news": 5}})
    peer = await clients.persistent("q")
    await peer.subscribe("#", qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    for topic in ("x", "news", "alarm/1", "x", "alarm/2", "news"):
        await publisher.publish(topic, b"", 1)
    peer = await clients.persistent("q", session_present=True)
    for topic in ("alarm/1", "alarm/2", "news", "news", "x", "x"):
        await peer.expect_publish(topic, b"", 1)


@tcp
async def test_server_caps_the_expiry(clients_of: StartClients) -> None:
    """A 5.0 client is told; 3.x sessions live as long as the cap."""
    clients = await clients_of(zone={"session_expiry_interval": 60})
    peer = await clients.persistent("s", properties={c.SESSION_EXPIRY_INTERVAL: 100} if clients.version == 5 else None)
    if clients.version == 5:
        assert peer.connack.properties[c.SESSION_EXPIRY_INTERVAL] == 60
    await peer.disconnect()
    await clients.pass_time(59)
    peer = await clients.persistent("s", session_present=True)
    await peer.disconnect()
    await clients.pass_time(61)
    await clients.persistent("s", session_present=False)


@tcp
async def test_maximum_of_subscriptions(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"max_subscriptions": 2})
    peer = await clients.connect()
    refused = 0x97 if clients.version == 5 else 0x80
    await peer.subscribe("a", "b", "c", expect=[0, 0, refused])
    await peer.subscribe("a", qos=1)  # again is not one more
    await peer.unsubscribe("b")
    await peer.subscribe("c")
