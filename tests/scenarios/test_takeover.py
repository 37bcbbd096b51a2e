"""The same Client Identifier again: the old connection goes, the session moves."""

import asyncio

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.clients import Clients, tcp, v5
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_old_connection_is_closed(clients: Clients) -> None:
    """5.0: after DISCONNECT 0x8E [MQTT-3.1.4-3]; before: without a word [3.1.1 MQTT-3.1.4-2]."""
    name = clients.name()
    old = await clients.connect(name)
    new = await clients.connect(name)
    await old.expect_disconnect(0x8E)
    await new.nothing()


async def test_will_of_the_old_connection_is_published(clients: Clients) -> None:
    """Its network connection closed without DISCONNECT 0x00 [MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]."""
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/will")
    name = clients.name()
    await clients.connect(name, will=Will(f"{clients.topic}/will", b"taken"))
    await clients.connect(name)
    await watcher.expect_publish(f"{clients.topic}/will", b"taken")
    await watcher.nothing()


async def test_session_moves_with_what_is_in_flight(clients: Clients) -> None:
    """Unacknowledged messages are sent again, to the new connection only [MQTT-4.4.0-1] [3.1.1 MQTT-4.4.0-1]."""
    topic, name = f"{clients.topic}/a", clients.name()
    publisher = await clients.connect()
    old = await clients.persistent(name)
    await old.subscribe(topic, qos=2)
    for number in range(3):
        await publisher.publish(topic, b"%d" % number, qos=1 + number % 2)
    first = await old.expect_publish(topic, b"0", 1, acknowledge=False)
    new = await clients.persistent(name, session_present=True)
    again = await new.expect_publish(topic, b"0", 1, dup=True, packet_id=first.packet_id)
    assert again.payload == b"0"
    await new.expect_publish(topic, b"1", 2, dup=True)
    await new.expect_publish(topic, b"2", 1, dup=True)
    await publisher.publish(topic, b"live", qos=1)
    await new.expect_publish(topic, b"live", 1, dup=False)


async def test_nothing_is_delivered_to_the_old_connection_any_more(clients: Clients) -> None:
    topic, name = f"{clients.topic}/a", clients.name()
    publisher = await clients.connect()
    old = await clients.persistent(name)
    await old.subscribe(topic, qos=1)
    new = await clients.persistent(name, session_present=True)
    await publisher.publish(topic, b"x", qos=1)
    await old.expect_disconnect(0x8E)
    await new.expect_publish(topic, b"x", 1)


async def test_clean_start_discards_the_connected_session(clients: Clients) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.2.2-2] [3.1.1 MQTT-3.1.2-6] [3.1.1 MQTT-3.2.2-1]"""
    topic, name = f"{clients.topic}/a", clients.name()
    old = await clients.persistent(name)
    await old.subscribe(topic, qos=1)
    new = await clients.persistent(name, clean_start=True, session_present=False)
    publisher = await clients.connect()
    await publisher.publish(topic, b"x", qos=1)
    await new.nothing()


@tcp
@pytest.mark.parametrize("before, after", [(3, 5), (4, 5), (5, 4), (5, 3)])
@pytest.mark.parametrize("version", [5])
async def test_another_version_takes_over(clients: Clients, before: int, after: int) -> None:
    """Subscriptions and messages stay; what belonged to the connection (aliases, limits) does not."""
    topic, name = f"{clients.topic}/a", clients.name()
    old = await clients.persistent(name, version=before)
    await old.subscribe(topic, qos=1)
    publisher = await clients.connect()
    await publisher.publish(topic, b"1", qos=1, properties={c.USER_PROPERTY: [("k", "v")]})
    await old.expect_publish(topic, b"1", 1, acknowledge=False)
    new = await clients.persistent(name, version=after, session_present=True)
    again = await new.expect_publish(topic, b"1", 1, dup=True)
    assert again.properties == ({c.USER_PROPERTY: [("k", "v")]} if after == 5 else {})


@pytest.mark.parametrize("other", ["tcp", "ws"])
async def test_transports_take_over_from_each_other(clients: Clients, other: str) -> None:
    name = clients.name()
    old = await clients.connect(name)
    await clients.connect(name, transport=other)
    await old.expect_disconnect(0x8E)


async def test_unfinished_inbound_qos_2_survives(clients: Clients) -> None:
    """Its Packet Identifier is session state: the repeat is no second message [MQTT-4.3.3-10]
    [3.1.1 MQTT-4.3.3-2]."""
    topic, name = f"{clients.topic}/a", clients.name()
    watcher = await clients.connect()
    await watcher.subscribe(topic, qos=2)
    old = await clients.persistent(name)
    await old.send(Publish(topic, b"once", 2, packet_id=7))
    await old.expect_ack(c.PUBREC, 7, None)
    new = await clients.persistent(name, session_present=True)
    await new.send(Publish(topic, b"once", 2, dup=True, packet_id=7))
    await new.expect_ack(c.PUBREC, 7, None)
    await new.pubrel(7)
    await new.expect_ack(c.PUBCOMP, 7)
    await watcher.expect_publish(topic, b"once", 2)
    await watcher.nothing()


async def test_storm_of_takeovers(clients: Clients) -> None:
    """Twenty connections fight for one identifier: exactly one stays, and every other is told."""
    name = clients.name()
    peers = await asyncio.gather(*(clients.connect(name) for _ in range(20)))
    alive = 0
    for peer in peers:
        try:
            await peer.nothing()
            alive += 1
        except AssertionError:
            pass
    assert alive == 1


@v5
async def test_session_expiry_of_the_new_connection_counts(clients: Clients) -> None:
    """[MQTT-3.1.2-23]"""
    name = clients.name()
    await clients.connect(name, properties={c.SESSION_EXPIRY_INTERVAL: 100})
    new = await clients.connect(name, False, session_present=True)  # expiry 0: resumed now, gone at its end
    await new.disconnect()
    await clients.connect(name, False, session_present=False)
