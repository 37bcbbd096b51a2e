"""PUBLISH from clients: the QoS handshakes, repeats, limits, and what is refused."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Pingreq, Pingresp, Will
from tests.support.clients import Clients, StartClients, tcp, v4, v5
from tests.support.peer import Peer
from tests.support.wire import Publish, frame, properties, string

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def watch(clients: Clients, topic_filter: str = "#", qos: int = 2) -> Peer:
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/{topic_filter}", qos=qos)
    return watcher


# --- handshakes -------------------------------------------------------------------------------------------------------


async def test_qos_0(clients: Clients) -> None:
    """Delivered, not answered [MQTT-4.3.1-1] [3.1.1 MQTT-4.3.1-1]."""
    watcher, peer = await watch(clients), await clients.connect()
    await peer.send(Publish(f"{clients.topic}/a", b"x"))
    await peer.nothing()
    await watcher.expect_publish(f"{clients.topic}/a", b"x", 0, dup=False, retain=False)


@pytest.mark.parametrize("packet_id", [1, 2, 255, 256, 65_535])
async def test_qos_1(clients: Clients, packet_id: int) -> None:
    """PUBACK with the same identifier [MQTT-4.3.2-4] [MQTT-3.3.4-1] [MQTT-2.2.1-5] [3.1.1 MQTT-4.3.2-2]
    [3.1.1 MQTT-2.3.1-6]."""
    watcher, peer = await watch(clients), await clients.connect()
    await peer.send(Publish(f"{clients.topic}/a", b"x", 1, packet_id=packet_id))
    await peer.expect_ack(c.PUBACK, packet_id)
    await peer.nothing()
    await watcher.expect_publish(f"{clients.topic}/a", b"x", 1)


@pytest.mark.parametrize("packet_id", [1, 256, 65_535])
async def test_qos_2(clients: Clients, packet_id: int) -> None:
    """PUBREC, then PUBCOMP for PUBREL [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT-4.3.3-12] [3.1.1 MQTT-4.3.3-2]."""
    watcher, peer = await watch(clients), await clients.connect()
    await peer.send(Publish(f"{clients.topic}/a", b"x", 2, packet_id=packet_id))
    await peer.expect_ack(c.PUBREC, packet_id)
    await peer.nothing()
    await peer.pubrel(packet_id)
    await peer.expect_ack(c.PUBCOMP, packet_id)
    await peer.nothing()
    await watcher.expect_publish(f"{clients.topic}/a", b"x", 2)
    await watcher.nothing()


@v5
async def test_short_and_long_forms_are_read(clients: Clients) -> None:
    """PUBREL of length 2, 3 and 4 mean the same."""
    peer = await clients.connect()
    for packet_id, rest in ((1, b""), (2, b"\x00"), (3, b"\x00\x00")):
        await peer.send(Publish(f"{clients.topic}/a", b"x", 2, packet_id=packet_id))
        await peer.expect_ack(c.PUBREC, packet_id, None)
        await peer.send(frame(0x62, packet_id.to_bytes(2, "big") + rest))
        await peer.expect_ack(c.PUBCOMP, packet_id)


@v5
async def test_reason_string_on_acknowledgements_is_read(clients: Clients) -> None:
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(f"{clients.topic}/a", qos=2)
    told = {c.REASON_STRING: "why", c.USER_PROPERTY: [("a", "b"), ("a", "b")]}
    for qos in (1, 2):
        await publisher.publish(f"{clients.topic}/a", b"", qos)
        got = await peer.expect_publish(qos=qos, acknowledge=False)
        await peer.send(Ack(c.PUBACK if qos == 1 else c.PUBREC, got.packet_id, 0, told))
    await peer.expect_ack(c.PUBREL, got.packet_id)
    await peer.send(Ack(c.PUBCOMP, got.packet_id, 0, told))
    await peer.send(Publish(f"{clients.topic}/b", b"", 2, packet_id=11))
    await peer.expect_ack(c.PUBREC, 11, None)
    await peer.send(Ack(c.PUBREL, 11, 0, told))
    await peer.expect_ack(c.PUBCOMP, 11)
    await peer.nothing()


@pytest.mark.parametrize("qos", [1, 2])
@v5
async def test_no_matching_subscribers(clients: Clients, qos: int) -> None:
    """0x10 for QoS 1 on PUBACK, for QoS 2 on PUBREC; the handshake is otherwise the same."""
    peer = await clients.connect()
    assert await peer.publish(f"{clients.topic}/nobody", b"x", qos) == 0x10
    await peer.subscribe(f"{clients.topic}/nobody")
    assert await peer.publish(f"{clients.topic}/nobody", b"x", qos) == 0x00


async def test_acknowledgements_keep_the_order(clients: Clients) -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4] [3.1.1 MQTT-4.6.0-2] [3.1.1 MQTT-4.6.0-3]
    [3.1.1 MQTT-4.6.0-4]"""
    peer = await clients.connect()
    await peer.send(*(Publish(f"{clients.topic}/a", b"", 1, packet_id=n) for n in (5, 3, 9, 1)))
    for packet_id in (5, 3, 9, 1):
        await peer.expect_ack(c.PUBACK, packet_id, None)
    await peer.send(*(Publish(f"{clients.topic}/a", b"", 2, packet_id=n) for n in (5, 3, 9, 1)))
    for packet_id in (5, 3, 9, 1):
        await peer.expect_ack(c.PUBREC, packet_id, None)
    await peer.send(*(Ack(c.PUBREL, n) for n in (9, 5, 1, 3)))
    for packet_id in (9, 5, 1, 3):
        await peer.expect_ack(c.PUBCOMP, packet_id)


# --- repeats ----------------------------------------------------------------------------------------------------------


async def test_qos_1_identifier_again_is_a_new_message(clients: Clients) -> None:
    """Once acknowledged, whatever DUP says [MQTT-4.3.2-5]."""
    watcher, peer = await watch(clients), await clients.connect()
    for dup in (False, True, True):
        await peer.send(Publish(f"{clients.topic}/a", b"x", 1, dup=dup, packet_id=7))
        await peer.expect_ack(c.PUBACK, 7)
    for _ in range(3):
        await watcher.expect_publish(f"{clients.topic}/a", b"x", 1, dup=False)
    await watcher.nothing()


@pytest.mark.parametrize("dup", [False, True])
async def test_qos_2_identifier_again_is_the_same_message_until_pubrel(clients: Clients, dup: bool) -> None:
    """PUBREC as often as it comes; delivered once [MQTT-4.3.3-10] [3.1.1 MQTT-4.3.3-2]."""
    watcher, peer = await watch(clients), await clients.connect()
    await peer.send(Publish(f"{clients.topic}/a", b"x", 2, packet_id=7))
    await peer.expect_ack(c.PUBREC, 7)
    for _ in range(3):
        await peer.send(Publish(f"{clients.topic}/a", b"x", 2, dup=dup, packet_id=7))
        ack = await peer.expect_ack(c.PUBREC, 7, None)
        assert ack.reason_code in (0x00, 0x91)
    await peer.pubrel(7)
    await peer.expect_ack(c.PUBCOMP, 7)
    await watcher.expect_publish(f"{clients.topic}/a", b"x", 2)
    await watcher.nothing()
    await peer.send(Publish(f"{clients.topic}/a", b"y", 2, dup=dup, packet_id=7))  # free again [MQTT-4.3.3-12]
    await peer.expect_ack(c.PUBREC, 7)
    await watcher.expect_publish(f"{clients.topic}/a", b"y", 2)


async def test_pubrel_is_always_answered(clients: Clients) -> None:
    """Known, repeated or unknown [MQTT-4.3.3-11] [3.1.1 MQTT-4.3.3-2]."""
    peer = await clients.connect()
    await peer.publish(f"{clients.topic}/a", b"x", 2, packet_id=7)
    for packet_id in (7, 7, 99):
        await peer.pubrel(packet_id)
        ack = await peer.expect(Ack, type=c.PUBCOMP, packet_id=packet_id)
        assert ack.reason_code in (0x00, 0x92)


@v5
async def test_qos_1_with_the_identifier_of_an_unfinished_qos_2(clients: Clients) -> None:
    """0x91, however often the topic was published before; free again after PUBCOMP."""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/a")
    await peer.publish(f"{clients.topic}/a", b"", 1)
    await peer.send(Publish(f"{clients.topic}/a", b"", 2, packet_id=70))
    await peer.answer(Ack, type=c.PUBREC, packet_id=70)
    assert await peer.publish(f"{clients.topic}/a", b"", 1, packet_id=70, expect=0x91) == 0x91
    await peer.pubrel(70)
    await peer.answer(Ack, type=c.PUBCOMP, packet_id=70)
    assert await peer.publish(f"{clients.topic}/a", b"", 1, packet_id=70) == 0


async def test_same_identifier_in_both_directions(clients: Clients) -> None:
    """Each direction has its own [MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-2]."""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(f"{clients.topic}/a", qos=2)
    await publisher.publish(f"{clients.topic}/a", b"x", 2)
    got = await peer.expect_publish(qos=2, packet_id=1, acknowledge=False)
    await peer.send(Publish(f"{clients.topic}/b", b"y", 2, packet_id=1))
    await peer.expect_ack(c.PUBREC, 1, None)
    await peer.pubrec(got.packet_id)
    await peer.expect_ack(c.PUBREL, 1)
    await peer.pubrel(1)
    await peer.expect_ack(c.PUBCOMP, 1)
    await peer.pubcomp(1)
    await peer.nothing()


# --- limits -----------------------------------------------------------------------------------------------------------


@tcp
@v5
async def test_receive_maximum_exceeded(clients_of: StartClients) -> None:
    """One more of QoS 2 than announced: 0x93 [MQTT-3.3.4-7]. A repeat does not count twice, QoS 1 is answered."""
    clients = await clients_of(zone={"receive_maximum": 3})
    peer = await clients.connect()
    assert peer.connack.properties[c.RECEIVE_MAXIMUM] == 3
    for packet_id in (1, 2, 3, 3, 1):
        await peer.send(Publish("a", b"", 2, packet_id=packet_id))
        await peer.expect(Ack, type=c.PUBREC, packet_id=packet_id)
    await peer.pubrel(2)
    await peer.expect_ack(c.PUBCOMP, 2)
    await peer.send(Publish("a", b"", 2, packet_id=4))
    await peer.expect(Ack, type=c.PUBREC, packet_id=4)
    await peer.send(Publish("a", b"", 1, packet_id=5))
    await peer.expect(Ack, type=c.PUBACK, packet_id=5)
    await peer.send(Publish("a", b"", 2, packet_id=6))
    await peer.expect_disconnect(0x93)


@v5
@pytest.mark.parametrize("durable", [False, True], ids=["clean", "durable"])
async def test_a_thousand_of_qos_1_in_one_go(clients_of: StartClients, durable: bool) -> None:
    """As MQTT.js sends them, which counts nothing: each is answered, all arrive, and the Will stays where it is."""
    clients = await clients_of()
    watcher, reader = await clients.connect(), clients.peer()
    await watcher.subscribe("will", qos=1)
    await reader.connect("reader", clean_start=False, properties={c.SESSION_EXPIRY_INTERVAL: 3600 * durable})
    await reader.subscribe("a", qos=1)
    peer = clients.peer()
    await peer.connect("p", will=Will("will", b"gone", 1))
    assert peer.connack.properties[c.RECEIVE_MAXIMUM] < 1000
    await peer.send(*[Publish("a", b"%d" % number, 1, packet_id=number) for number in range(1, 1001)])
    for number in range(1, 1001):
        await peer.expect_ack(c.PUBACK, number)
        await reader.expect_publish("a", b"%d" % number, 1)
    await peer.disconnect()
    await watcher.nothing()


@tcp
@v5
async def test_receive_maximum_by_default(clients: Clients) -> None:
    """What CONNACK announces holds, to the message [MQTT-3.3.4-7]."""
    peer = await clients.connect()
    announced = peer.connack.properties.get(c.RECEIVE_MAXIMUM, 65_535)
    assert announced <= 1000, "announce something small"
    for packet_id in range(1, announced + 1):
        await peer.send(Publish(clients.topic, b"", 2, packet_id=packet_id))
        await peer.expect(Ack, type=c.PUBREC, packet_id=packet_id)
    await peer.publish(clients.topic, b"", 0)  # QoS 0 does not count
    await peer.send(Publish(clients.topic, b"", 2, packet_id=announced + 1))
    await peer.expect_disconnect(0x93)


@tcp
@v5
async def test_refused_qos_2_frees_its_slot_and_identifier(clients_of: StartClients) -> None:
    """[MQTT-4.3.3-9]"""
    clients = await clients_of(
        zone={"receive_maximum": 1}, access={"rules": [{"allow": False, "action": "publish", "topics": ["no/#"]}]}
    )
    peer = await clients.connect()
    for _ in range(3):
        await peer.send(Publish("no/a", b"", 2, packet_id=7))
        await peer.expect_ack(c.PUBREC, 7, 0x87)
    await peer.publish("yes/a", b"", 2, packet_id=7)


@tcp
@v4
async def test_max_awaiting_rel_of_3x(clients_of: StartClients) -> None:
    """A 3.x client over the limit is neither acknowledged nor closed, and its next one is taken when there is room."""
    clients = await clients_of(zone={"max_awaiting_rel": 2})
    peer = await clients.connect()
    for packet_id in (1, 2):
        await peer.send(Publish("a", b"", 2, packet_id=packet_id))
        await peer.expect(Ack, type=c.PUBREC, packet_id=packet_id)
    await peer.send(Publish("a", b"", 2, packet_id=3), Pingreq())
    await peer.expect(Pingresp)
    await peer.nothing()
    await peer.pubrel(1)
    await peer.expect_ack(c.PUBCOMP, 1)
    await peer.send(Publish("a", b"", 2, packet_id=3))
    await peer.expect_ack(c.PUBREC, 3)


@tcp
@v4
async def test_a_3x_client_may_send_all_it_has_at_once(clients_of: StartClients) -> None:
    """As paho does when it comes back: it cannot be told how many the broker would take."""
    clients = await clients_of()
    peer = await clients.connect()
    await peer.send(*(Publish("a", b"x", 2, packet_id=packet_id) for packet_id in range(1, 2001)))
    for packet_id in range(1, 2001):
        await peer.expect_ack(c.PUBREC, packet_id)
    await peer.send(*(Ack(c.PUBREL, packet_id) for packet_id in range(1, 2001)))
    for packet_id in range(1, 2001):
        await peer.expect_ack(c.PUBCOMP, packet_id)


@tcp
async def test_await_rel_timeout(clients_of: StartClients) -> None:
    """An identifier that waited too long for its PUBREL is free again."""
    clients = await clients_of(zone={"await_rel_timeout": 100, "max_awaiting_rel": 1, "receive_maximum": 1})
    watcher = await clients.connect()
    await watcher.subscribe("a")
    peer = await clients.connect()
    await peer.send(Publish("a", b"1", 2, packet_id=1))
    await peer.expect_ack(c.PUBREC, 1)
    await clients.pass_time(150)
    await clients.pass_time(150)
    await peer.send(Publish("a", b"2", 2, packet_id=1))
    await peer.expect_ack(c.PUBREC, 1)
    await watcher.expect_publish("a", b"1")
    await watcher.expect_publish("a", b"2")


@tcp
async def test_packet_too_large_is_decided_by_its_header(clients_of: StartClients) -> None:
    """0x95 before the body arrives [MQTT-3.2.2-15]; a packet of exactly the maximum is fine."""
    clients = await clients_of(zone={"max_packet_size": 1000})
    watcher = await clients.connect()
    await watcher.subscribe("#")
    peer = await clients.connect()
    overhead = 1 + 2 + 3 + (1 if clients.version == 5 else 0)  # header, Remaining Length, topic, property length
    await peer.publish("a", bytes(1000 - overhead))
    await watcher.expect_publish("a", bytes(1000 - overhead))
    await peer.send(b"\x30\xe6\x07")  # Remaining Length 998: one byte too many in all
    await peer.expect_disconnect(0x95)
    peer = await clients.connect()
    await peer.send(b"\x30\xff\xff\xff\x7f\x00\x01a")
    await peer.expect_disconnect(0x95)
    await watcher.nothing()


@tcp
@pytest.mark.parametrize("qos", [1, 2])
async def test_qos_beyond_the_maximum(clients_of: StartClients, qos: int) -> None:
    """0x9B [MQTT-3.2.2-11]; subscriptions are granted what there is [MQTT-3.2.2-10]."""
    clients = await clients_of(zone={"max_qos": qos - 1})
    peer = await clients.connect()
    if clients.version == 5:
        assert peer.connack.properties[c.MAXIMUM_QOS] == qos - 1
    await peer.subscribe("a", qos=2, expect=[qos - 1])
    await peer.send(Publish("a", b"x", qos, packet_id=1))
    await peer.expect_disconnect(0x9B)


@tcp
async def test_retain_unavailable(clients_of: StartClients) -> None:
    """0x9A [MQTT-3.2.2-14]; 3.x clients are closed or their message is not retained."""
    clients = await clients_of(zone={"retain_available": False})
    peer = await clients.connect()
    if clients.version == 5:
        assert peer.connack.properties[c.RETAIN_AVAILABLE] == 0
    await peer.send(Publish("a", b"x", 0, True))
    if clients.version == 5:
        await peer.expect_disconnect(0x9A)
    late = await clients.connect()
    await late.subscribe("a")
    await late.nothing()


@tcp
async def test_topic_levels_are_limited(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"max_topic_levels": 3})
    peer = await clients.connect()
    await peer.publish("a/b/c", b"", 1)
    await peer.subscribe("a/b/c/d", expect=[0x8F if clients.version == 5 else 0x80])
    await peer.subscribe("a/b/+")
    await peer.send(Publish("a/b/c/d", b"", 1, packet_id=50))
    try:
        ack = await peer.expect(Ack, type=c.PUBACK, packet_id=50)
    except AssertionError:
        return  # closed, or DISCONNECT 0x90
    assert clients.version == 4 or ack.reason_code == 0x90


@tcp
@v5
async def test_quota_exceeded(clients_of: StartClients) -> None:
    """A message rate holds a fast client back and loses nothing."""
    clients = await clients_of(zone={"message_rate": [5, 0.2]})
    peer = await clients.connect()
    await peer.subscribe("a", qos=0)
    for number in range(12):
        await peer.send(Publish("a", b"%d" % number))
    for number in range(12):
        await peer.expect_publish("a", b"%d" % number)


# --- refused ----------------------------------------------------------------------------------------------------------

BAD = {
    "QoS 3": frame(0x36, string("a") + b"\x00\x01"),  # [MQTT-3.3.1-4] [3.1.1 MQTT-3.3.1-4]
    "DUP with QoS 0": frame(0x38, string("a")),  # [MQTT-3.3.1-2] [3.1.1 MQTT-3.3.1-2]
    "packet identifier 0": frame(0x32, string("a") + b"\x00\x00"),  # [MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1]
    "packet identifier 0 with QoS 2": frame(0x34, string("a") + b"\x00\x00"),
    "wildcard +": frame(0x30, string("a/+")),  # [MQTT-3.3.2-2] [3.1.1 MQTT-3.3.2-2]
    "wildcard #": frame(0x30, string("#")),
    "wildcard inside": frame(0x30, string("a#b")),  # [MQTT-4.7.0-1] [3.1.1 MQTT-4.7.1-1]
    "U+0000": frame(0x30, b"\x00\x03a\x00b"),  # [MQTT-4.7.3-2] [3.1.1 MQTT-4.7.3-2]
    "not UTF-8": frame(0x30, b"\x00\x02a\xff"),  # [MQTT-3.3.2-1] [3.1.1 MQTT-3.3.2-1]
    "surrogate": frame(0x30, b"\x00\x03\xed\xa0\x80"),
    "no topic": frame(0x30, b""),
    "topic overruns": frame(0x30, b"\x00\x09abc"),
    "no packet identifier": frame(0x32, string("a")),
    "half a packet identifier": frame(0x32, string("a") + b"\x01"),
}


TRUNCATED = ("no topic", "topic overruns", "no packet identifier", "half a packet identifier")


@pytest.mark.parametrize("case", BAD)
async def test_bad_publish(clients: Clients, case: str) -> None:
    """Closed, in 5.0 with a Reason Code [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1]; nobody gets anything."""
    watcher = await clients.connect()
    await watcher.subscribe("#")
    peer = await clients.connect()
    data = BAD[case]
    if clients.version == 5 and case not in TRUNCATED:
        data = frame(data[0], data[2:] + b"\x00")
    await peer.send(data)
    await peer.expect_disconnect(0x81, 0x82, 0x90)
    if clients.node.external:
        return
    await watcher.nothing()


@v4
async def test_empty_topic_before_5(clients: Clients) -> None:
    """[3.1.1 MQTT-4.7.3-1]"""
    peer = await clients.connect()
    await peer.send(Publish("", b"x"))
    await peer.expect_closed()


@v5
async def test_empty_topic_without_alias(clients: Clients) -> None:
    """[MQTT-4.7.3-1]"""
    peer = await clients.connect()
    await peer.send(Publish("", b"x"))
    await peer.expect_disconnect(0x82, 0x90, 0x81)


BAD_PROPERTIES = {
    "payload format 2": properties({c.PAYLOAD_FORMAT_INDICATOR: 2}),
    "payload format twice": b"\x04\x01\x01\x01\x01",
    "message expiry twice": b"\x0a" + b"\x02\x00\x00\x00\x01" * 2,
    "content type twice": b"\x08" + b"\x03\x00\x01a" * 2,
    "response topic twice": b"\x08" + b"\x08\x00\x01a" * 2,
    "correlation data twice": b"\x08" + b"\x09\x00\x01a" * 2,
    "topic alias twice": b"\x06" + b"\x23\x00\x01" * 2,
    "response topic with wildcard": properties({c.RESPONSE_TOPIC: "a/+"}),  # [MQTT-3.3.2-14]
    "response topic not UTF-8": b"\x04\x08\x00\x01\xff",  # [MQTT-3.3.2-13]
    "content type not UTF-8": b"\x04\x03\x00\x01\xff",  # [MQTT-3.3.2-19]
    "user property value not UTF-8": b"\x07\x26\x00\x01a\x00\x01\xff",  # [MQTT-1.5.7-1]
    "user property name with U+0000": b"\x07\x26\x00\x01\x00\x00\x01a",
    "subscription identifier": properties({c.SUBSCRIPTION_IDENTIFIER: [1]}),  # [MQTT-3.3.4-6]
    "session expiry": properties({c.SESSION_EXPIRY_INTERVAL: 1}),
    "reason string": properties({c.REASON_STRING: "x"}),
    "unknown": b"\x02\x7e\x00",
    "length overruns": b"\x7f",
    "length too long": b"\xff\xff\xff\xff\x01",
    "length not minimal": b"\x80\x00",  # [MQTT-1.5.5-1]
    "value overruns": b"\x02\x02\x00",
}


@v5
@pytest.mark.parametrize("case", BAD_PROPERTIES)
async def test_bad_publish_properties(clients: Clients, case: str) -> None:
    """[MQTT-4.13.1-1]"""
    peer = await clients.connect()
    await peer.send(frame(0x30, string("a") + BAD_PROPERTIES[case]))
    await peer.expect_disconnect(0x81, 0x82, 0x90, 0x94)


@v5
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_payload_format_is_passed_on_or_refused(clients: Clients, qos: int) -> None:
    """Payload that is not the UTF-8 it is said to be: checking is the broker's choice, 0x99 its code [MQTT-3.3.2-4]."""
    peer = await clients.connect()
    await peer.subscribe(f"{clients.topic}/a")
    code = await peer.publish(
        f"{clients.topic}/a", b"\xff", qos, properties={c.PAYLOAD_FORMAT_INDICATOR: 1}, expect=(0x00, 0x99)
    )
    if code == 0:
        got = await peer.expect_publish(f"{clients.topic}/a", b"\xff")
        assert got.properties[c.PAYLOAD_FORMAT_INDICATOR] == 1


# --- what may be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic",
    [
        " ",
        "/",
        "//",
        "a//b",
        "/a",
        "a/",
        "A.b*c>d",
        "\ufeffx",
        "\U0001f40d/\u65e5\u672c",
        "$other/x",
        "a b/c",
        "'\"`;--",
    ],
)
async def test_unusual_topics(clients: Clients, topic: str) -> None:
    """Every UTF-8 string is a topic, and is itself only [MQTT-4.7.3-4] [3.1.1 MQTT-4.7.3-4] [MQTT-1.5.4-3]
    [3.1.1 MQTT-1.5.3-3]."""
    peer = await clients.connect()
    await peer.subscribe(topic, qos=1)
    await peer.publish(topic, b"x", 1)
    await peer.expect_publish(topic, b"x", 1)


@tcp
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 100_000, 1_900_000])
async def test_payload_sizes(clients: Clients, size: int) -> None:
    """Across every size of the Remaining Length."""
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    peer = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.publish(clients.topic, payload, 1)
    await peer.expect_publish(clients.topic, payload, 1)


@tcp
async def test_longest_topic(clients: Clients) -> None:
    topic = clients.topic + "x" * (65_535 - len(clients.topic))
    peer = await clients.connect()
    await peer.subscribe(topic)
    await peer.publish(topic, b"x", 1)
    await peer.expect_publish(topic, b"x", 0)


@tcp
async def test_thousands_of_levels_harm_nobody(clients: Clients) -> None:
    """Refused or taken, but the node lives."""
    bystander, peer = await clients.connect(), await clients.connect()
    await peer.send(Publish("/" * 65_535, b"x"), Pingreq())
    try:
        await peer.receive()
    except Exception:
        pass
    await bystander.nothing()


async def test_many_publishers_one_order(clients: Clients) -> None:
    """Each publisher's order is kept at each QoS [MQTT-4.6.0-5] [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-5]
    [3.1.1 MQTT-4.6.0-6]."""
    watcher = await watch(clients, qos=1)
    peers = [await clients.connect() for _ in range(3)]
    for number in range(20):
        for index, peer in enumerate(peers):
            await peer.send(Publish(f"{clients.topic}/a", b"%d %d" % (index, number), 1, packet_id=number + 1))
    seen: dict[bytes, list[int]] = {b"0": [], b"1": [], b"2": []}
    for _ in range(60):
        who, count = (await watcher.expect_publish(f"{clients.topic}/a")).payload.split()
        seen[who].append(int(count))
    assert all(numbers == list(range(20)) for numbers in seen.values())
