"""One session, resumed by a client of another version."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Properties
from tests.support.clients import Clients, tcp
from tests.support.peer import Peer
from tests.support.wire import Publish

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

PAIRS = [(3, 4), (4, 3), (4, 5), (5, 4), (3, 5), (5, 3)]
across = pytest.mark.parametrize(("version", "then"), PAIRS, ids=[f"v{first}-v{then}" for first, then in PAIRS])


async def resume(clients: Clients, name: str, version: int, **options: Properties) -> Peer:
    properties: Properties = {c.SESSION_EXPIRY_INTERVAL: 600, **options.get("properties", {})} if version == 5 else {}
    return await clients.connect(name, False, version=version, properties=properties, session_present=True)


@tcp
@across
async def test_subscriptions_and_queue_are_there(clients: Clients, version: int, then: int) -> None:
    """[MQTT-4.1.0-1] [MQTT-3.1.2-5] [3.1.1 MQTT-3.1.2-4]"""
    name = clients.name()
    first = await clients.persistent(name)
    await first.subscribe(f"{clients.topic}/+", qos=2)
    await first.disconnect()
    publisher = await clients.connect(version=then)
    for qos in (1, 2):
        await publisher.publish(f"{clients.topic}/{qos}", b"queued", qos)
    back = await resume(clients, name, then)
    for qos in (1, 2):
        await back.expect_publish(f"{clients.topic}/{qos}", b"queued", qos)
    await publisher.publish(f"{clients.topic}/live", b"live", 1)
    await back.expect_publish(f"{clients.topic}/live", b"live", 1)
    await back.disconnect()
    await resume(clients, name, version)


@tcp
@across
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_in_flight_is_sent_again(clients: Clients, version: int, then: int, qos: int) -> None:
    """In the words of the new version [MQTT-4.4.0-1] [3.1.1 MQTT-4.4.0-1]."""
    name = clients.name()
    first = await clients.persistent(name)
    await first.subscribe(clients.topic, qos=qos)
    publisher = await clients.connect(version=5)
    await publisher.publish(clients.topic, b"x", qos, properties={c.CONTENT_TYPE: "t"})
    sent = await first.expect_publish(acknowledge=False)
    await first.drop()
    back = await resume(clients, name, then)
    again = await back.expect_publish(clients.topic, b"x", qos, dup=True, packet_id=sent.packet_id)
    assert again.properties == ({c.CONTENT_TYPE: "t"} if then == 5 else {})
    await back.nothing()


@tcp
@across
async def test_a_half_finished_qos_2_goes_on(clients: Clients, version: int, then: int) -> None:
    """[MQTT-4.3.3-6] [MQTT-4.3.3-10]"""
    name = clients.name()
    first = await clients.persistent(name)
    await first.subscribe(clients.topic, qos=2)
    await first.publish(clients.topic, b"out", 2)
    sent = await first.expect_publish(acknowledge=False)
    await first.pubrec(sent.packet_id)
    await first.expect_ack(c.PUBREL, sent.packet_id)
    await first.send(Publish(f"{clients.topic}/in", b"in", 2, packet_id=77))
    await first.expect_ack(c.PUBREC, 77, None)
    await first.drop()
    back = await resume(clients, name, then)
    await back.expect_ack(c.PUBREL, sent.packet_id)
    await back.pubcomp(sent.packet_id)
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/in", qos=2)
    await back.send(Publish(f"{clients.topic}/in", b"in", 2, dup=True, packet_id=77))
    await back.expect_ack(c.PUBREC, 77, None)
    await watcher.nothing()
    await back.pubrel(77)
    await back.expect_ack(c.PUBCOMP, 77)


@tcp
@across
async def test_takeover(clients: Clients, version: int, then: int) -> None:
    """[MQTT-3.1.4-3] [3.1.1 MQTT-3.1.4-2]"""
    name = clients.name()
    first = await clients.persistent(name)
    await first.subscribe(clients.topic, qos=1)
    second = await resume(clients, name, then)
    await first.expect_disconnect(0x8E)
    await second.publish(clients.topic, b"x", 1)
    await second.expect_publish(clients.topic, b"x", 1)


@tcp
@pytest.mark.parametrize("version", [5])
async def test_what_only_5_0_has_is_remembered_for_it(clients: Clients) -> None:
    """Options and identifiers are session state, aliases are not [MQTT-4.1.0-1]."""
    name = clients.name()
    first = await clients.persistent(name)
    await first.subscribe(clients.topic, qos=1, identifier=7, retain_as_published=True)
    await first.disconnect()
    old = await resume(clients, name, 4)
    publisher = await clients.connect()
    await publisher.publish(clients.topic, b"x", 1)
    await old.expect_publish(clients.topic, b"x")
    await old.disconnect()
    await publisher.publish(clients.topic, b"y", 1, True)
    back = await resume(clients, name, 5)
    message = await back.expect_publish(clients.topic, b"y", retain=True)
    assert message.properties == {c.SUBSCRIPTION_IDENTIFIER: [7]}
    await publisher.publish(clients.topic, b"", 1, True)


@tcp
@pytest.mark.parametrize("version", [4])
async def test_a_session_of_3_1_1_gets_the_expiry_of_the_5_0_client(clients: Clients) -> None:
    """[MQTT-3.1.2-23]"""
    name = clients.name()
    first = await clients.persistent(name)
    await first.disconnect()
    second = await clients.connect(
        name, False, version=5, properties={c.SESSION_EXPIRY_INTERVAL: 10}, session_present=True
    )
    await second.disconnect()
    await clients.pass_time(12)
    await clients.connect(name, False, version=4, session_present=False)
