"""Topic Aliases in both directions (5.0 only)."""

from collections.abc import Awaitable, Callable

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.clients import Clients, tcp, v5
from tests.support.wire import Publish

from .until_quiet import until_quiet

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

Start = Callable[..., Awaitable[Clients]]


# --- from the client -------------------------------------------------------------------------------------------------


@v5
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_alias_stands_for_its_topic(clients: Clients, qos: int) -> None:
    """It is not forwarded, and a new topic takes its place [MQTT-3.3.2-10] [MQTT-3.3.2-12]."""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/#", qos=2)
    for topic, payload in (("a", b"1"), ("", b"2"), ("b", b"3"), ("", b"4")):
        await peer.publish(f"{clients.topic}/{topic}" if topic else "", payload, qos, properties={c.TOPIC_ALIAS: 3})
    found = await until_quiet(peer)
    assert [(each.topic[-1], each.payload) for each in found] == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("b", b"4")]
    assert all(each.properties == {} for each in found)


@v5
async def test_the_highest_alias_announced_is_taken(clients: Clients) -> None:
    """[MQTT-3.2.2-17] [MQTT-3.3.2-12]"""
    peer = await clients.connect()
    highest = peer.connack.properties[c.TOPIC_ALIAS_MAXIMUM]
    assert highest > 0
    await peer.publish(f"{clients.topic}/a", b"1", 1, properties={c.TOPIC_ALIAS: highest})
    await peer.publish("", b"2", 1, properties={c.TOPIC_ALIAS: highest})
    await peer.nothing()


@v5
async def test_alias_0_is_invalid(clients: Clients) -> None:
    """[MQTT-3.3.2-8]"""
    peer = await clients.connect()
    await peer.send(Publish(clients.topic, b"x", 1, packet_id=1, properties={c.TOPIC_ALIAS: 0}))
    await peer.expect_disconnect(0x94)


@v5
async def test_an_unknown_alias_is_an_error(clients: Clients) -> None:
    """[MQTT-3.3.2-7]"""
    peer = await clients.connect()
    await peer.send(Publish("", b"x", 1, packet_id=1, properties={c.TOPIC_ALIAS: 5}))
    await peer.expect_disconnect(0x82)


@v5
async def test_aliases_are_forgotten_with_the_connection(clients: Clients) -> None:
    """[MQTT-3.3.2-7]"""
    peer = await clients.persistent(clients.name())
    await peer.publish(clients.topic, b"x", 1, properties={c.TOPIC_ALIAS: 1})
    await peer.disconnect()
    back = await clients.persistent(peer.client_id, session_present=True)
    await back.send(Publish("", b"x", 1, packet_id=1, properties={c.TOPIC_ALIAS: 1}))
    await back.expect_disconnect(0x82)


@v5
async def test_directions_and_clients_have_their_own(clients: Clients) -> None:
    """[MQTT-3.3.2-12]"""
    one, two = await clients.connect(), await clients.connect(properties={c.TOPIC_ALIAS_MAXIMUM: 10})
    await two.subscribe(f"{clients.topic}/#", qos=1)
    await one.publish(f"{clients.topic}/one", b"1", 1, properties={c.TOPIC_ALIAS: 1})
    await two.publish(f"{clients.topic}/two", b"2", 1, properties={c.TOPIC_ALIAS: 1})
    await one.publish("", b"3", 1, properties={c.TOPIC_ALIAS: 1})
    await two.publish("", b"4", 1, properties={c.TOPIC_ALIAS: 1})
    aliases: dict[int, str] = {}
    topics = []
    for each in await until_quiet(two):
        alias = each.properties[c.TOPIC_ALIAS]
        if each.topic:
            aliases[alias] = each.topic
        topics.append(aliases[alias])
    assert topics == [f"{clients.topic}/{name}" for name in ("one", "two", "one", "two")]


@v5
@tcp
async def test_the_maximum_of_the_zone(clients_of: Start) -> None:
    """[MQTT-3.3.2-9]"""
    clients = await clients_of(zone={"max_topic_alias": 5})
    peer = await clients.connect()
    assert peer.connack.properties[c.TOPIC_ALIAS_MAXIMUM] == 5
    await peer.publish("t", b"x", 1, properties={c.TOPIC_ALIAS: 5})
    await peer.send(Publish("t", b"x", 1, packet_id=99, properties={c.TOPIC_ALIAS: 6}))
    await peer.expect_disconnect(0x94)


@v5
@tcp
async def test_none_at_all(clients_of: Start) -> None:
    """[MQTT-3.2.2-18]"""
    clients = await clients_of(zone={"max_topic_alias": 0})
    peer = await clients.connect()
    assert peer.connack.properties.get(c.TOPIC_ALIAS_MAXIMUM, 0) == 0
    await peer.send(Publish("t", b"x", 1, packet_id=99, properties={c.TOPIC_ALIAS: 1}))
    await peer.expect_disconnect(0x94)


@v5
@tcp
async def test_an_alias_is_set_even_where_the_publish_is_not_allowed(clients_of: Start) -> None:
    """MQTT 5.0 section 3.3.2.3.4: the mapping is the packet's, not the message's."""
    clients = await clients_of(access={"rules": [{"allow": False, "topics": ["no/#"], "action": "publish"}]})
    peer = await clients.connect()
    await peer.publish("no/x", b"x", 1, properties={c.TOPIC_ALIAS: 1}, expect=0x87)
    await peer.publish("", b"x", 1, properties={c.TOPIC_ALIAS: 1}, expect=0x87)
    await peer.nothing()


# --- to the client ---------------------------------------------------------------------------------------------------


@v5
async def test_none_without_being_asked(clients: Clients) -> None:
    """[MQTT-3.1.2-27] [MQTT-3.3.2-11]"""
    for properties in ({}, {c.TOPIC_ALIAS_MAXIMUM: 0}):
        peer = await clients.connect(properties=properties)
        await peer.subscribe(f"{clients.topic}/#", qos=2)
        for number in range(4):
            await peer.publish(f"{clients.topic}/x", b"x", number % 3)
            assert (await peer.expect_publish(f"{clients.topic}/x")).properties == {}


@v5
async def test_never_above_the_clients_maximum(clients: Clients) -> None:
    """[MQTT-3.1.2-26] [MQTT-3.3.2-11]"""
    peer = await clients.connect(properties={c.TOPIC_ALIAS_MAXIMUM: 2})
    await peer.subscribe(f"{clients.topic}/#", qos=1)
    publisher = await clients.connect()
    sent = []
    for number in range(40):
        sent.append(f"{clients.topic}/{number % 5}")
        await publisher.publish(sent[-1], b"x", number % 2)
    known: dict[int, str] = {}
    topics = []
    for each in await until_quiet(peer):
        alias = each.properties.get(c.TOPIC_ALIAS)
        if alias is None:
            topics.append(each.topic)
            continue
        assert 1 <= alias <= 2
        if each.topic:
            known[alias] = each.topic
        topics.append(known[alias])
    assert topics == sent


@v5
async def test_a_message_that_was_too_large_leaves_no_alias_behind(clients: Clients) -> None:
    """[MQTT-3.1.2-25]"""
    peer = await clients.connect(properties={c.TOPIC_ALIAS_MAXIMUM: 5, c.MAXIMUM_PACKET_SIZE: 100})
    await peer.subscribe(f"{clients.topic}/#", qos=1)
    publisher = await clients.connect()
    await publisher.publish(f"{clients.topic}/x", bytes(200), 1)
    await publisher.publish(f"{clients.topic}/x", b"small", 1)
    message = await peer.expect_publish(f"{clients.topic}/x", b"small", 1)
    assert message.topic


@v5
async def test_a_retransmission_carries_the_whole_topic(clients: Clients) -> None:
    """Aliases belong to the connection that is gone [MQTT-3.3.2-7]."""
    name = clients.name()
    peer = await clients.persistent(name, properties={c.TOPIC_ALIAS_MAXIMUM: 5})
    await peer.subscribe(clients.topic, qos=1)
    for number in range(2):
        await peer.publish(clients.topic, b"%d" % number, 1)
    await until_quiet(peer, acknowledge=False)
    await peer.drop()
    back = await clients.persistent(name, session_present=True)
    for number in range(2):
        message = await back.expect_publish(clients.topic, b"%d" % number, dup=True)
        assert message.properties == {}


@v5
async def test_retained_messages_may_use_them(clients: Clients) -> None:
    """[MQTT-3.3.2-11]"""
    publisher = await clients.connect()
    names = [f"{clients.topic}/{number}" for number in range(3)]
    for name in names:
        await publisher.publish(name, b"kept", 1, True)
    peer = await clients.connect(properties={c.TOPIC_ALIAS_MAXIMUM: 1})
    for _ in range(2):
        await peer.subscribe(f"{clients.topic}/+", qos=1)
        known = ""
        topics = []
        for each in await until_quiet(peer):
            if each.topic and c.TOPIC_ALIAS in each.properties:
                known = each.topic
            topics.append(each.topic or known or names[0])
        assert len(topics) == 3
    for name in names:
        await publisher.publish(name, b"", 1, True)
