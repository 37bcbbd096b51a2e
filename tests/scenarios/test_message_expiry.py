"""Message Expiry Interval: what waits too long is not delivered, the rest says what is left (5.0 only)."""

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.clients import Clients, v5

from .until_quiet import payloads, until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")


def expiry(seconds: int) -> dict[int, int]:
    return {c.MESSAGE_EXPIRY_INTERVAL: seconds}


@v5
async def test_delivered_at_once_it_is_unchanged(clients: Clients) -> None:
    """[MQTT-3.3.2-6]"""
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for qos in (0, 1):
        await peer.publish(clients.topic, b"x", qos, properties=expiry(100))
        assert (await peer.expect_publish()).properties[c.MESSAGE_EXPIRY_INTERVAL] in (99, 100)


@v5
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_waited_too_long_in_a_queue_is_gone(clients: Clients, qos: int) -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    peer = await clients.persistent(clients.name())
    await peer.subscribe(clients.topic, qos=2)
    await peer.disconnect()
    publisher = await clients.connect()
    for seconds in (5, 60, 0):
        await publisher.publish(clients.topic, b"%d" % seconds, qos, properties=expiry(seconds))
    await publisher.publish(clients.topic, b"for ever", qos)
    await clients.pass_time(10)
    back = await clients.persistent(peer.client_id, session_present=True)
    message = await back.expect_publish(payload=b"60")
    assert 48 <= message.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 50
    assert (await back.expect_publish(payload=b"for ever")).properties == {}
    await back.nothing()


@v5
async def test_what_waits_for_the_window_expires_too(clients: Clients) -> None:
    """[MQTT-3.3.2-5]"""
    peer = await clients.connect(properties={c.RECEIVE_MAXIMUM: 1})
    await peer.subscribe(clients.topic, qos=1)
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"first", 1)
    await publisher.publish(clients.topic, b"expires", 1, properties=expiry(5))
    await publisher.publish(clients.topic, b"lasts", 1, properties=expiry(50))
    first = await peer.expect_publish(payload=b"first", acknowledge=False)
    await clients.pass_time(10)
    await peer.puback(first.packet_id)
    message = await peer.expect_publish(payload=b"lasts")
    assert 38 <= message.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 40
    await peer.nothing()


@v5
async def test_a_started_qos_2_exchange_is_finished_regardless(clients: Clients) -> None:
    """[MQTT-4.3.3-7] [MQTT-4.3.3-13]"""
    peer = await clients.persistent(clients.name())
    await peer.subscribe(clients.topic, qos=2)
    await peer.publish(clients.topic, b"x", 2, properties=expiry(5))
    message = await peer.expect_publish(acknowledge=False)
    await clients.pass_time(10)
    await peer.pubrec(message.packet_id)
    await peer.expect_ack(c.PUBREL, message.packet_id)
    await clients.pass_time(10)
    await peer.drop()
    back = await clients.persistent(peer.client_id, session_present=True)
    await back.expect_ack(c.PUBREL, message.packet_id)
    await back.pubcomp(message.packet_id)
    await back.nothing()


@v5
async def test_a_subscriber_of_3_1_1_gets_what_is_left_and_nothing_else(clients: Clients) -> None:
    """[MQTT-3.3.2-5]"""
    peer = await clients.persistent(clients.name(), version=4)
    await peer.subscribe(clients.topic, qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    for seconds in (5, 60):
        await publisher.publish(clients.topic, b"%d" % seconds, 1, properties=expiry(seconds))
    await clients.pass_time(10)
    back = await clients.connect(peer.client_id, False, version=4, session_present=True)
    assert await payloads(back) == [b"60"]


@v5
async def test_the_interval_never_wraps(clients: Clients) -> None:
    """[MQTT-3.3.2-6]"""
    peer = await clients.persistent(clients.name())
    await peer.subscribe(clients.topic, qos=1)
    await peer.disconnect()
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"x", 1, properties=expiry(0xFFFFFFFF))
    await publisher.publish(clients.topic, b"y", 1, properties=expiry(1))
    back = await clients.persistent(peer.client_id, session_present=True)
    left = [each.properties[c.MESSAGE_EXPIRY_INTERVAL] for each in await until_quiet(back)]
    assert 0xFFFFFFF0 <= left[0] <= 0xFFFFFFFF
    assert all(each == 1 for each in left[1:])
