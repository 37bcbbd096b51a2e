"""The limits and habits of a zone, one setting at a time, and how a client is told."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Subscribe, TopicFilter, Will
from tests.support.clients import Clients, tcp, v4, v5
from tests.support.wire import Publish

from .until_quiet import payloads, until_quiet

pytestmark = pytest.mark.asyncio(loop_scope="module")

Start = Callable[..., Awaitable[Clients]]


@tcp
async def test_max_topic_levels(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_topic_levels": 3})
    peer = await clients.connect()
    await peer.subscribe("a/b/#", "a/b/c", qos=1)
    await peer.subscribe("a/b/c/#", "a/b/c/d", expect=[0x8F, 0x8F] if clients.version == 5 else [0x80, 0x80])
    await peer.publish("a/b/c", b"x", 1)
    await peer.expect_publish("a/b/c", b"x")
    await peer.publish("a/b/c/d", b"x", 1, expect=None)
    if clients.version == 5:
        await peer.publish("a/b/c/d", b"x", 1, expect=0x90)
        await clients.peer().connect("w", will=Will("a/b/c/d", b"x"), expect=0x90)
    await peer.nothing()


@tcp
@pytest.mark.parametrize("most", [0, 1])
async def test_max_qos(clients_of: Start, most: int) -> None:
    """[MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-11] [MQTT-3.2.2-12]"""
    clients = await clients_of(zone={"max_qos": most})
    peer = await clients.connect()
    await peer.subscribe(TopicFilter("t", 2), expect=[most])
    await peer.publish("t", b"x", most)
    await peer.expect_publish("t", b"x", most)
    if clients.version == 5:
        assert peer.connack.properties[c.MAXIMUM_QOS] == most
        await clients.peer().connect("w", will=Will("t", b"x", most + 1), expect=0x9B)
    await peer.send(Publish("t", b"x", most + 1, packet_id=77))
    await peer.expect_disconnect(0x9B)


@tcp
async def test_max_subscriptions(clients_of: Start) -> None:
    clients = await clients_of(zone={"max_subscriptions": 2})
    full = 0x97 if clients.version == 5 else 0x80
    peer = await clients.persistent("p")
    await peer.subscribe("a", "b", "c", expect=[0, 0, full])
    await peer.subscribe("a", qos=1)  # it is there already
    await peer.unsubscribe("b")
    await peer.subscribe("c")
    await peer.subscribe("d", expect=[full])
    await peer.disconnect()
    back = await clients.persistent("p", session_present=True)
    await back.subscribe("d", expect=[full])


@tcp
async def test_max_packet_size(clients_of: Start) -> None:
    """Refused by the fixed header, before the body comes [MQTT-3.2.2-15] [MQTT-4.13.1-1]."""
    clients = await clients_of(zone={"max_packet_size": 1000})
    peer = await clients.connect()
    if clients.version == 5:
        assert peer.connack.properties[c.MAXIMUM_PACKET_SIZE] == 1000
    overhead = 2 + 1 + 2 + (clients.version == 5) + 1 + 1
    await peer.publish("t", bytes(1000 - overhead - 2), 1)
    await peer.send(b"\x32\xe9\x07")  # 1001 bytes to come
    await peer.expect_disconnect(0x95)


@tcp
async def test_max_client_id_length(clients_of: Start) -> None:
    """[MQTT-3.1.3-8] [3.1.1 MQTT-3.1.3-9]"""
    clients = await clients_of(zone={"max_client_id_length": 23})
    await clients.connect("x" * 23)
    await clients.peer().connect("x" * 24, expect=0x85 if clients.version == 5 else 2)


@tcp
async def test_wildcards_unavailable(clients_of: Start) -> None:
    """MQTT 5.0 section 3.2.2.3.11; [3.1.1 MQTT-3.8.3-2]."""
    clients = await clients_of(zone={"wildcard_subscription": False})
    peer = await clients.connect()
    refused = 0xA2 if clients.version == 5 else 0x80
    await peer.subscribe("a/#", "+", "a", expect=[refused, refused, 0])
    if clients.version == 5:
        assert peer.connack.properties[c.WILDCARD_SUBSCRIPTION_AVAILABLE] == 0


@tcp
async def test_shared_subscriptions_unavailable(clients_of: Start) -> None:
    """MQTT 5.0 section 3.2.2.3.13."""
    clients = await clients_of(zone={"shared_subscription": False})
    peer = await clients.connect()
    refused = 0x9E if clients.version == 5 else 0x80
    await peer.subscribe("$share/g/a", "$queue/a", "a", expect=[refused, refused, 0])
    if clients.version == 5:
        assert peer.connack.properties[c.SHARED_SUBSCRIPTION_AVAILABLE] == 0


@tcp
async def test_upgrade_qos(clients_of: Start) -> None:
    """The highest of published and granted, where it is switched on."""
    clients = await clients_of(zone={"upgrade_qos": True})
    peer = await clients.connect()
    for published, granted in ((0, 2), (2, 0), (0, 1), (1, 1)):
        await peer.subscribe("t", qos=granted)
        await peer.publish("t", b"x", published)
        await peer.expect_publish("t", b"x", max(published, granted))


@tcp
async def test_ignore_loop_deliver(clients_of: Start) -> None:
    """No Local for 3.x clients; those of 5.0 have it for the asking."""
    clients = await clients_of(zone={"ignore_loop_deliver": True})
    one, two = await clients.connect(), await clients.connect()
    for peer in (one, two):
        await peer.subscribe("t", qos=1)
    await one.publish("t", b"x", 1)
    await two.expect_publish("t", b"x")
    if clients.version == 5:
        await one.expect_publish("t", b"x")
    await one.nothing()


@tcp
async def test_server_keep_alive(clients_of: Start) -> None:
    """Told to 5.0 and used [MQTT-3.2.2-21] [MQTT-3.2.2-22] [MQTT-3.1.2-22]; 3.1.1 keeps its own."""
    clients = await clients_of(zone={"server_keep_alive": 60})
    asking = {0: 60, 30: None, 60: None, 120: 60}
    for keep_alive, told in asking.items():
        peer = await clients.connect(keep_alive=keep_alive)
        assert peer.connack.properties.get(c.SERVER_KEEP_ALIVE) == (told if clients.version == 5 else None)
    slow = await clients.connect(keep_alive=1000)
    await clients.pass_time(91)
    if clients.version == 5:
        await slow.expect_disconnect(0x8D)
    else:
        await slow.nothing()


@tcp
@v4
async def test_server_keep_alive_for_3_1_1_too(clients_of: Start) -> None:
    clients = await clients_of(zone={"server_keep_alive": 60, "server_keep_alive_v3": True})
    peer = await clients.connect(keep_alive=0)
    await clients.pass_time(91)
    await peer.expect_closed()


@tcp
async def test_keep_alive_multiplier(clients_of: Start) -> None:
    clients = await clients_of(zone={"keep_alive_multiplier": 3.0})
    peer = await clients.connect(keep_alive=10)
    await clients.pass_time(25)
    await peer.nothing()
    await clients.pass_time(31)
    await peer.expect_disconnect(0x8D)


@tcp
@v5
async def test_response_information(clients_of: Start) -> None:
    """Only where it is asked for [MQTT-3.1.2-28]."""
    clients = await clients_of(zone={"response_information": "answers/"})
    peer = await clients.connect(properties={c.REQUEST_RESPONSE_INFORMATION: 1})
    assert peer.connack.properties[c.RESPONSE_INFORMATION] == "answers/"
    for properties in ({}, {c.REQUEST_RESPONSE_INFORMATION: 0}):
        peer = await clients.connect(properties=properties)
        assert c.RESPONSE_INFORMATION not in peer.connack.properties


@tcp
@v5
async def test_session_expiry_cap(clients_of: Start) -> None:
    """What is used is told (MQTT 5.0 section 3.2.2.3.2)."""
    clients = await clients_of(zone={"session_expiry_interval": 100})
    for asked, told in ((50, None), (100, None), (101, 100), (0xFFFFFFFF, 100)):
        peer = await clients.connect(properties={c.SESSION_EXPIRY_INTERVAL: asked})
        assert peer.connack.properties.get(c.SESSION_EXPIRY_INTERVAL) == told
    await peer.disconnect()
    await clients.pass_time(101)
    await clients.connect(peer.client_id, False, session_present=False)


@tcp
@v4
async def test_sessions_of_3_1_1_last_as_long_as_the_zone_lets_them(clients_of: Start) -> None:
    clients = await clients_of(zone={"session_expiry_interval": 100})
    peer = await clients.persistent("p")
    await peer.disconnect()
    await clients.pass_time(90)
    peer = await clients.persistent("p", session_present=True)
    await peer.disconnect()
    await clients.pass_time(101)
    await clients.persistent("p", session_present=False)


@tcp
async def test_empty_client_identifiers_forbidden(clients_of: Start) -> None:
    """MQTT 5.0 section 3.1.3.1."""
    clients = await clients_of(zone={"allow_empty_client_id": False})
    await clients.peer().connect("", expect=0x85 if clients.version == 5 else 2)


@tcp
@v5
async def test_prefix_of_assigned_identifiers(clients_of: Start) -> None:
    """[MQTT-3.1.3-6] [MQTT-3.2.2-16]"""
    clients = await clients_of(zone={"client_id_prefix": "auto-"})
    peer = await clients.connect("")
    assert peer.client_id.startswith("auto-") and len(peer.client_id) > 10


@tcp
async def test_user_name_as_client_identifier(clients_of: Start) -> None:
    clients = await clients_of(zone={"use_username_as_client_id": True})
    first = await clients.connect("anything", username="ann")
    second = await clients.connect("something else", username="ann")
    await first.expect_disconnect(0x8E)
    for username in (None, ""):
        # "ann" would be as good a name for it.
        await clients.connect("ann", username=username, expect=0x85 if clients.version == 5 else 2)
    await second.nothing()


@tcp
async def test_receive_maximum_of_the_server(clients_of: Start) -> None:
    """[MQTT-3.3.4-7] [MQTT-3.3.4-8] [MQTT-4.9.0-1]"""
    clients = await clients_of(zone={"receive_maximum": 5, "max_awaiting_rel": 5})
    peer = await clients.connect()
    for packet_id in range(1, 7):
        await peer.send(Publish("t", b"x", 2, packet_id=packet_id))
    for packet_id in range(1, 6):
        await peer.expect_ack(c.PUBREC, packet_id, None)
    if clients.version == 5:
        assert peer.connack.properties[c.RECEIVE_MAXIMUM] == 5
        await peer.expect_disconnect(0x93)
    else:
        await peer.nothing()  # no PUBREC for the sixth: it may be sent again
        await peer.pubrel(1)
        await peer.expect_ack(c.PUBCOMP, 1)
        await peer.send(Publish("t", b"x", 2, dup=True, packet_id=6))
        await peer.expect_ack(c.PUBREC, 6)


@tcp
async def test_await_rel_timeout(clients_of: Start) -> None:
    """What waits too long for PUBREL is forgotten: its identifier is free."""
    clients = await clients_of(zone={"max_awaiting_rel": 1, "await_rel_timeout": 60.0, "receive_maximum": 100})
    peer = await clients.connect()
    await peer.send(Publish("t", b"x", 2, packet_id=1))
    await peer.expect_ack(c.PUBREC, 1, None)
    await clients.pass_time(61)
    await clients.pass_time(1)
    await peer.send(Publish("t", b"x", 2, packet_id=2))
    packet = await peer.expect_ack(c.PUBREC, 2, None)
    assert packet.reason_code in (0, 0x10)


@tcp
async def test_max_inflight(clients_of: Start) -> None:
    """A window for 3.x too; it caps a 5.0 client's own [MQTT-3.3.4-9] [MQTT-4.3.2-3] [3.1.1 MQTT-4.3.2-1]."""
    clients = await clients_of(zone={"max_inflight": 3})
    peer = await clients.connect()
    await peer.subscribe("t", qos=1)
    publisher = await clients.connect()
    for number in range(10):
        await publisher.publish("t", b"%d" % number, 1)
    first = await until_quiet(peer, acknowledge=False)
    assert [each.payload for each in first] == [b"0", b"1", b"2"]
    for each in first:
        await peer.puback(each.packet_id)
    assert await payloads(peer) == [b"%d" % number for number in range(3, 10)]


@tcp
async def test_a_window_of_qos_2(clients_of: Start) -> None:
    """Unacknowledged until PUBREC: repeated as PUBLISH before it, as PUBREL after it; the place is free at PUBCOMP
    [MQTT-4.3.3-3] [MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-3.3.4-9]."""
    clients = await clients_of(zone={"max_inflight": 2})
    peer = await clients.persistent("p")
    await peer.subscribe("t", qos=2)
    for number in range(3):
        await peer.publish("t", b"%d" % number, 2)
    first, second = await until_quiet(peer, acknowledge=False)
    await peer.pubrec(first.packet_id)
    await peer.expect_ack(c.PUBREL, first.packet_id)
    await peer.nothing()
    await peer.drop()
    back = await clients.persistent("p", session_present=True)
    await back.answer(Ack, type=c.PUBREL, packet_id=first.packet_id)
    await back.answer(Publish, payload=b"1", qos=2, dup=True, packet_id=second.packet_id)
    await back.nothing()
    await back.pubcomp(first.packet_id)
    await back.expect_publish("t", b"2", 2, dup=False, acknowledge=False)


@tcp
@v4
async def test_retry_interval_is_for_3_x(clients_of: Start) -> None:
    """[3.1.1 MQTT-4.4.0-1] leaves it open; 5.0 forbids it."""
    clients = await clients_of(zone={"retry_interval": 20.0})
    old, new = await clients.connect(), await clients.connect(version=5)
    for peer in (old, new):
        await peer.subscribe("t", qos=1)
    await old.publish("t", b"x", 1)
    first = await old.expect_publish("t", b"x", dup=False, acknowledge=False)
    await new.expect_publish("t", b"x", dup=False, acknowledge=False)
    await clients.pass_time(25)
    await old.expect_publish("t", b"x", dup=True, packet_id=first.packet_id)
    await old.nothing()  # its PUBACK has arrived
    await clients.pass_time(25)
    await old.nothing()
    await new.nothing()


@tcp
async def test_message_rate(clients_of: Start) -> None:
    """A client that sends too fast is read more slowly, and loses nothing."""
    clients = await clients_of(zone={"message_rate": [20, 0.2]})
    watcher, fast = await clients.connect(), await clients.connect()
    await watcher.subscribe("t")
    began = asyncio.get_running_loop().time()
    for number in range(60):
        await fast.send(Publish("t", b"%d" % number))
    for number in range(60):
        await watcher.expect_publish("t", b"%d" % number)
    assert asyncio.get_running_loop().time() - began > 0.25


@tcp
async def test_byte_rate(clients_of: Start) -> None:
    clients = await clients_of(zone={"byte_rate": [50_000, 0.2]})
    watcher, fast = await clients.connect(), await clients.connect()
    await watcher.subscribe("t")
    began = asyncio.get_running_loop().time()
    for _ in range(15):
        await fast.send(Publish("t", bytes(10_000)))
    for _ in range(15):
        await watcher.expect_publish("t")
    assert asyncio.get_running_loop().time() - began > 0.25


@tcp
@pytest.mark.parametrize("codepoint", ["\x01", "\x1f", "\x7f", "\x9f", "\uffff", "\ufdd0"])
async def test_strict_strings(clients_of: Start, codepoint: str) -> None:
    """The standard lets a Server refuse control characters and non-characters (MQTT 5.0 section 1.5.4)."""
    clients = await clients_of(zone={"strict_strings": True})
    peer = await clients.connect()
    await peer.send(Publish(f"a{codepoint}b", b"x", 1, packet_id=1))
    await peer.expect_disconnect(0x81, 0x90)
    peer = await clients.connect()
    await peer.send(Subscribe(1, [TopicFilter(f"a{codepoint}b")]))
    await peer.expect_disconnect(0x81, 0x8F)


@tcp
async def test_lenient_strings(clients: Clients) -> None:
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}\x01\uffff", qos=1)
    await peer.publish(f"{clients.topic}\x01\uffff", b"x", 1)
    await peer.expect_publish(f"{clients.topic}\x01\uffff", b"x")


@tcp
async def test_max_connections(clients_of: Start) -> None:
    clients = await clients_of(listeners=[{"type": "tcp", "max_connections": 2}])
    first = await clients.connect()
    await clients.connect()
    third = await clients.open()
    await third.expect_closed()
    await first.disconnect()
    await clients.connect()


async def test_the_place_of_a_client_that_is_gone_is_free_at_once(clients_of: Start) -> None:
    """However it went: by DISCONNECT, by closing, or sent away by the node and still holding its socket."""
    listeners = [{"type": transport, "max_connections": 1} for transport in ("tcp", "ws")]
    clients = await clients_of(listeners=listeners)
    peer = await clients.connect()
    for _ in range(10):
        await peer.disconnect()
        peer = await clients.connect()
        peer.abort()
        peer = await clients.connect()
        await peer.send(b"\xf7\x00")
        peer = await clients.connect()
    assert all(each.refused == {} for each in clients.server.listeners)


@tcp
async def test_accept_rate(clients_of: Start) -> None:
    """Further ones wait and are served."""
    clients = await clients_of(listeners=[{"type": "tcp", "accept_rate": 20}])
    began = asyncio.get_running_loop().time()
    for _ in range(30):
        await clients.connect()
    assert asyncio.get_running_loop().time() - began > 0.3
