"""PUBLISH to clients: QoS, Packet Identifiers, retransmission, order, Receive Maximum, size, expiry, properties."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack
from tests.support.clients import Clients, StartClients, tcp, v5
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
async def test_qos_is_the_lower_one(clients: Clients, published: int, granted: int) -> None:
    """[MQTT-3.8.4-8] [3.1.1 MQTT-3.8.4-6]; DUP is 0 at first [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT-3.3.1-3]
    [3.1.1 MQTT-4.3.2-1] [3.1.1 MQTT-4.3.3-1]."""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=granted)
    await publisher.publish(clients.topic, b"x", published)
    await peer.expect_publish(clients.topic, b"x", min(published, granted), dup=False, retain=False)
    await peer.nothing()


async def test_dup_is_not_passed_on(clients: Clients) -> None:
    """[MQTT-3.3.1-3] [3.1.1 MQTT-3.3.1-3]"""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    for qos in (1, 2):
        await publisher.publish(clients.topic, b"x", qos, dup=True)
        await peer.expect_publish(clients.topic, b"x", qos, dup=False)


async def test_retain_flag_is_not_passed_on(clients: Clients) -> None:
    """To a subscription that existed [MQTT-3.3.1-12] [3.1.1 MQTT-3.3.1-9]."""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic)
    await publisher.publish(clients.topic, b"x", 1, retain=True)
    await peer.expect_publish(clients.topic, b"x", 0, retain=False)


async def test_packet_identifiers_count_from_1(clients: Clients) -> None:
    """Non-zero, unused, from the session's beginning [MQTT-2.2.1-4] [3.1.1 MQTT-2.3.1-4]; the same at QoS 1 and 2."""
    publisher = await clients.connect()
    for _ in range(2):  # a new session begins again
        peer = await clients.connect("pid" + clients.topic)
        await peer.subscribe(clients.topic, qos=2)
        for number in range(1, 7):
            await publisher.publish(clients.topic, b"x", 1 + number % 2)
            await peer.expect_publish(clients.topic, b"x", packet_id=number)
        await peer.disconnect()


async def test_packet_identifiers_in_use_are_not_used_again(clients: Clients) -> None:
    """[MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1] [3.1.1 MQTT-2.3.1-4] [3.1.1 MQTT-4.3.2-1]"""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    ids = set()
    for number in range(20):
        await publisher.publish(clients.topic, b"%d" % number, 1 + number % 2)
        ids.add((await peer.expect_publish(clients.topic, b"%d" % number, acknowledge=False)).packet_id)
    assert len(ids) == 20
    assert 0 not in ids


async def test_qos_2_handshake(clients: Clients) -> None:
    """PUBREL for every PUBREC, never the PUBLISH again [MQTT-4.3.3-4] [MQTT-4.3.3-5] [MQTT-4.3.3-6]
    [3.1.1 MQTT-4.3.3-1]."""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    await publisher.publish(clients.topic, b"x", 2)
    got = await peer.expect_publish(clients.topic, b"x", 2, acknowledge=False)
    await peer.nothing()
    for _ in range(3):
        await peer.pubrec(got.packet_id)
        await peer.expect_ack(c.PUBREL, got.packet_id)
    await peer.pubcomp(got.packet_id)
    await peer.nothing()


async def test_nothing_is_repeated_on_a_live_connection(clients: Clients) -> None:
    """[MQTT-4.4.0-1]"""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    await publisher.publish(clients.topic, b"x", 1)
    await publisher.publish(clients.topic, b"x", 2)
    await peer.expect_publish(qos=1, acknowledge=False)
    await peer.expect_publish(qos=2, acknowledge=False)
    await clients.pass_time(1 if clients.node.external else 600)
    await peer.nothing()


@tcp
@pytest.mark.parametrize("version", [4])
async def test_retry_interval_of_3x(clients_of: StartClients) -> None:
    """A setting lets 3.x clients be reminded, with DUP; 5.0 clients never are [MQTT-4.4.0-1]."""
    clients = await clients_of(zone={"retry_interval": 20})
    old, new = await clients.connect(), await clients.connect(version=5)
    publisher = await clients.connect()
    for peer in (old, new):
        await peer.subscribe("a", qos=1)
    await publisher.publish("a", b"x", 1)
    first = await old.expect_publish("a", b"x", 1, acknowledge=False)
    await new.expect_publish("a", b"x", 1, acknowledge=False)
    await clients.pass_time(15)
    await old.nothing()
    await clients.pass_time(15)
    await old.expect_publish("a", b"x", 1, dup=True, packet_id=first.packet_id)
    await old.ping()
    await clients.pass_time(60)
    await old.nothing()
    await new.nothing()


# --- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
async def test_retransmission_on_resume(clients: Clients, qos: int) -> None:
    """Same identifiers, DUP 1, original order, before what is new [MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.6.0-1]
    [MQTT-4.3.2-3] [MQTT-4.3.3-3]
    [3.1.1 MQTT-4.4.0-1] [3.1.1 MQTT-3.3.1-1] [3.1.1 MQTT-4.6.0-1] [3.1.1 MQTT-2.3.1-4]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    ids = []
    for number in range(5):
        await publisher.publish(clients.topic, b"%d" % number, qos)
        ids.append((await peer.expect_publish(clients.topic, b"%d" % number, qos, acknowledge=False)).packet_id)
    await peer.drop()
    await publisher.publish(clients.topic, b"new", qos)
    for _ in range(2):
        peer = await clients.persistent(name, session_present=True)
        for number in range(5):
            await peer.expect_publish(
                clients.topic, b"%d" % number, qos, dup=True, packet_id=ids[number], acknowledge=False
            )
        await peer.expect_publish(clients.topic, b"new", qos, acknowledge=False)
        await peer.nothing()
        await peer.drop()


async def test_acknowledged_messages_are_not_sent_again(clients: Clients) -> None:
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    for number in range(4):
        await publisher.publish(clients.topic, b"%d" % number, 1 + number % 2)
    got = [await peer.expect_publish(clients.topic, acknowledge=False) for _ in range(4)]
    await peer.puback(got[2].packet_id)
    await peer.pubrec(got[3].packet_id)
    await peer.expect_ack(c.PUBREL, got[3].packet_id)
    await peer.pubcomp(got[3].packet_id)
    await peer.ping()
    await peer.drop()
    peer = await clients.persistent(name, session_present=True)
    await peer.expect_publish(clients.topic, b"0", 1, dup=True, packet_id=got[0].packet_id)
    await peer.expect_publish(clients.topic, b"1", 2, dup=True, packet_id=got[1].packet_id)
    await peer.nothing()


async def test_live_messages_stay_behind_queued_ones(clients: Clients) -> None:
    """QoS 0 does not overtake queued QoS 1 of the same topic [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-6]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.drop()
    for number in range(60):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    peer = await clients.persistent(name, session_present=True)
    await publisher.publish(clients.topic, b"60", 0)
    await publisher.publish(clients.topic, b"61", 1)
    seen: list[int] = []
    while len(seen) < 61 or seen[-1] != 61:
        seen.append(int((await peer.expect_publish(clients.topic)).payload))
    assert [number for number in seen if number != 60] == [*range(60), 61]
    if 60 in seen:  # QoS 0 may be dropped, but not come early
        assert seen == [*range(62)]


@tcp
async def test_queued_messages_flow_with_the_window(clients: Clients) -> None:
    """A thousand waiting messages arrive complete and in order."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.drop()
    for number in range(300):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    peer = await clients.persistent(name, session_present=True)
    for number in range(300):
        await peer.expect_publish(clients.topic, b"%d" % number, 1)
    await peer.nothing()


# --- acknowledgements out of place ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["PUBREC for QoS 1", "PUBCOMP for QoS 1", "PUBACK for QoS 2", "PUBCOMP before PUBREC"])
async def test_wrong_acknowledgement(clients: Clients, case: str) -> None:
    """A protocol error: 0x82 [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1]."""
    qos = 1 if case.endswith("QoS 1") else 2
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=qos)
    await publisher.publish(clients.topic, b"x", qos)
    got = await peer.expect_publish(clients.topic, b"x", qos, acknowledge=False)
    await peer.send(Ack({"PUBREC": c.PUBREC, "PUBACK": c.PUBACK, "PUBCOMP": c.PUBCOMP}[case.split()[0]], got.packet_id))
    await peer.expect_disconnect(0x82)


async def test_acknowledgements_of_nothing(clients: Clients) -> None:
    """PUBACK and PUBCOMP are ignored; PUBREC is answered, in 5.0 with 0x92."""
    peer = await clients.connect()
    await peer.puback(77)
    await peer.nothing()
    await peer.pubcomp(77)
    await peer.nothing()
    await peer.pubrec(77)
    await peer.expect_ack(c.PUBREL, 77, 0x92)
    await peer.nothing()


@v5
async def test_refused_by_the_subscriber(clients: Clients) -> None:
    """PUBREC or PUBACK with 0x80 and more end it: no PUBREL, no repetition [MQTT-4.4.0-2] [MQTT-4.3.3-4]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    for qos in (1, 2):
        await publisher.publish(clients.topic, b"x", qos)
        got = await peer.expect_publish(clients.topic, b"x", qos, acknowledge=False)
        await peer.send(Ack(c.PUBACK if qos == 1 else c.PUBREC, got.packet_id, 0x83))
        await peer.nothing()
    await peer.drop()
    peer = await clients.persistent(name, session_present=True)
    await peer.nothing()


# --- Receive Maximum of the client ------------------------------------------------------------------------------------


@v5
@pytest.mark.parametrize("qos", [1, 2])
async def test_receive_maximum_of_the_client(clients: Clients, qos: int) -> None:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]: PUBREC frees nothing, PUBACK and PUBCOMP do."""
    peer = await clients.connect(properties={c.RECEIVE_MAXIMUM: 2})
    publisher = await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    for number in range(4):
        await publisher.publish(clients.topic, b"%d" % number, qos)
    first = await peer.expect_publish(clients.topic, b"0", qos, acknowledge=False)
    second = await peer.expect_publish(clients.topic, b"1", qos, acknowledge=False)
    await peer.nothing()
    if qos == 1:
        await peer.puback(first.packet_id)
    else:
        await peer.pubrec(first.packet_id)
        await peer.expect_ack(c.PUBREL, first.packet_id)
        await peer.nothing()
        await peer.pubcomp(first.packet_id)
    await peer.expect_publish(clients.topic, b"2", qos, acknowledge=False)
    await peer.nothing()
    if qos == 2:  # a refusal frees the slot as well
        await peer.pubrec(second.packet_id, 0x80)
    else:
        await peer.puback(second.packet_id)
    await peer.expect_publish(clients.topic, b"3", qos, acknowledge=False)
    await peer.nothing()


@v5
async def test_qos_0_and_everything_else_flow_at_quota_0(clients: Clients) -> None:
    """[MQTT-3.3.4-10] [MQTT-4.9.0-3]"""
    peer = await clients.connect(properties={c.RECEIVE_MAXIMUM: 1})
    publisher = await clients.connect()
    await peer.subscribe(f"{clients.topic}/1", qos=1)
    await publisher.publish(f"{clients.topic}/1", b"a", 1)
    await publisher.publish(f"{clients.topic}/1", b"b", 1)
    first = await peer.expect_publish(f"{clients.topic}/1", b"a", 1, acknowledge=False)
    await peer.subscribe(f"{clients.topic}/0")
    await publisher.publish(f"{clients.topic}/0", b"c", 0)
    await peer.expect_publish(f"{clients.topic}/0", b"c", 0)
    assert await peer.publish(f"{clients.topic}/nobody", b"", 2) == 0x10
    await peer.unsubscribe(f"{clients.topic}/0")
    await peer.nothing()
    await peer.puback(first.packet_id)
    await peer.expect_publish(f"{clients.topic}/1", b"b", 1)


@v5
async def test_receive_maximum_of_the_new_connection_counts(clients: Clients) -> None:
    """For retransmissions too [MQTT-3.3.4-9]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for number in range(4):
        await publisher.publish(clients.topic, b"%d" % number, 1)
    for _ in range(4):
        await peer.expect_publish(acknowledge=False)
    await peer.drop()
    peer = await clients.persistent(name, session_present=True, properties={c.RECEIVE_MAXIMUM: 1})
    for number in range(4):
        got = await peer.expect_publish(clients.topic, b"%d" % number, 1, acknowledge=False, dup=True)
        await peer.nothing()
        await peer.puback(got.packet_id)
    await peer.nothing()


@tcp
async def test_max_inflight(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"max_inflight": 2})
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe("a", qos=1)
    for number in range(3):
        await publisher.publish("a", b"%d" % number, 1)
    first = await peer.expect_publish("a", b"0", 1, acknowledge=False)
    await peer.expect_publish("a", b"1", 1, acknowledge=False)
    await peer.nothing()
    await peer.puback(first.packet_id)
    await peer.expect_publish("a", b"2", 1, acknowledge=False)


@tcp
async def test_upgrade_qos(clients_of: StartClients) -> None:
    """The subscription's QoS, where a setting says so."""
    clients = await clients_of(zone={"upgrade_qos": True})
    peer = await clients.connect()
    await peer.subscribe("a", qos=2)
    for qos in (0, 1, 2):
        await peer.publish("a", b"x", qos)
        packet = await peer.answer(Publish)
        assert packet.qos == 2


# --- Maximum Packet Size of the client --------------------------------------------------------------------------------


@v5
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_maximum_packet_size_of_the_client(clients: Clients, qos: int) -> None:
    """Too large a copy is dropped as if delivered; others get theirs, and the next one comes [MQTT-3.1.2-24]
    [MQTT-3.1.2-25]."""
    small = await clients.connect(properties={c.MAXIMUM_PACKET_SIZE: 100, c.RECEIVE_MAXIMUM: 1})
    big, publisher = await clients.connect(), await clients.connect()
    for peer in (small, big):
        await peer.subscribe(clients.topic, qos=qos)
    for payload in (bytes(200), b"fits", bytes(200), b"fits too"):
        await publisher.publish(clients.topic, payload, qos)
    for payload in (bytes(200), b"fits", bytes(200), b"fits too"):
        await big.expect_publish(clients.topic, payload, qos)
    await small.expect_publish(clients.topic, b"fits", qos)
    await small.expect_publish(clients.topic, b"fits too", qos)
    await small.nothing()


@v5
@pytest.mark.parametrize("qos", [0, 1])
async def test_maximum_packet_size_to_the_byte(clients: Clients, qos: int) -> None:
    """Exactly the maximum goes through, one more does not; this client's own properties count [MQTT-3.1.2-24]."""
    topic = clients.topic
    overhead = 2 + 2 + len(topic) + (2 if qos else 0) + 1 + 2  # header, topic, id, property length, identifier
    peer = await clients.connect(properties={c.MAXIMUM_PACKET_SIZE: 100})
    publisher = await clients.connect()
    await peer.subscribe(topic, qos=qos, identifier=5)
    await publisher.publish(topic, bytes(100 - overhead + 1), qos)
    await publisher.publish(topic, bytes(100 - overhead), qos)
    got = await peer.expect_publish(topic, bytes(100 - overhead), qos)
    assert len(peer.raw) == 100
    assert got.properties[c.SUBSCRIPTION_IDENTIFIER] == [5]
    await peer.nothing()


@v5
async def test_maximum_packet_size_of_the_new_connection_counts(clients: Clients) -> None:
    """[MQTT-3.1.2-25]: a message in flight that has become too large goes as well, and blocks nothing."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await publisher.publish(clients.topic, bytes(500), 1)
    await peer.expect_publish(clients.topic, bytes(500), 1, acknowledge=False)
    await peer.drop()
    await publisher.publish(clients.topic, bytes(500), 1)
    await publisher.publish(clients.topic, b"fits", 1)
    peer = await clients.persistent(
        name, session_present=True, properties={c.MAXIMUM_PACKET_SIZE: 100, c.RECEIVE_MAXIMUM: 1}
    )
    await peer.expect_publish(clients.topic, b"fits", 1)
    await peer.nothing()


# --- Message Expiry Interval ------------------------------------------------------------------------------------------


@v5
@tcp
async def test_message_expiry_is_decremented(clients: Clients) -> None:
    """By the time it waited [MQTT-3.3.2-6]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await publisher.publish(clients.topic, b"live", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 100})
    got = await peer.expect_publish(clients.topic, b"live", 1)
    assert got.properties[c.MESSAGE_EXPIRY_INTERVAL] == 100
    await peer.drop()
    await publisher.publish(clients.topic, b"queued", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 100})
    wait = 2 if clients.node.external else 40
    await clients.pass_time(wait)
    peer = await clients.persistent(name, session_present=True)
    got = await peer.expect_publish(clients.topic, b"queued", 1)
    assert 100 - wait - 1 <= got.properties[c.MESSAGE_EXPIRY_INTERVAL] <= 100 - wait + 1


@v5
@tcp
async def test_expired_messages_are_dropped(clients: Clients) -> None:
    """Before their delivery started; those that did not expire come, in order [MQTT-3.3.2-5]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    await peer.drop()
    for payload, interval in ((b"a", 1), (b"b", None), (b"c", 1), (b"d", 1000)):
        properties = {} if interval is None else {c.MESSAGE_EXPIRY_INTERVAL: interval}
        await publisher.publish(clients.topic, payload, 2, properties=properties)
    await clients.pass_time(2.5)
    peer = await clients.persistent(name, session_present=True)
    await peer.expect_publish(clients.topic, b"b", 2)
    await peer.expect_publish(clients.topic, b"d", 2)
    await peer.nothing()


@tcp
@v5
async def test_expired_messages_are_dropped_for_3x_too(clients: Clients) -> None:
    """A 3.1.1 subscriber is not told, but spared [MQTT-3.3.2-5]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name, version=4), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.drop()
    for payload, interval in ((b"a", 1), (b"b", 1000)):
        await publisher.publish(clients.topic, payload, 1, properties={c.MESSAGE_EXPIRY_INTERVAL: interval})
    await clients.pass_time(2.5)
    peer = await clients.persistent(name, version=4, session_present=True)
    await peer.expect_publish(clients.topic, b"b", 1)
    await peer.nothing()


@v5
@tcp
async def test_messages_that_wait_for_quota_expire_too(clients: Clients) -> None:
    """[MQTT-3.3.2-5]"""
    peer = await clients.connect(properties={c.RECEIVE_MAXIMUM: 1})
    publisher = await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    for payload in (b"a", b"b", b"c"):
        interval = 1 if payload == b"b" else 1000
        await publisher.publish(clients.topic, payload, 1, properties={c.MESSAGE_EXPIRY_INTERVAL: interval})
    first = await peer.expect_publish(clients.topic, b"a", 1, acknowledge=False)
    await clients.pass_time(2.5)
    await peer.puback(first.packet_id)
    await peer.expect_publish(clients.topic, b"c", 1)
    await peer.nothing()


@v5
@tcp
async def test_started_deliveries_are_finished_whatever_the_expiry(clients: Clients) -> None:
    """[MQTT-4.3.3-7] [MQTT-4.3.3-13]"""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=2)
    await publisher.publish(clients.topic, b"x", 2, properties={c.MESSAGE_EXPIRY_INTERVAL: 1})
    got = await peer.expect_publish(clients.topic, b"x", 2, acknowledge=False)
    await clients.pass_time(2.5)
    await peer.pubrec(got.packet_id)
    await peer.expect_ack(c.PUBREL, got.packet_id)
    await peer.drop()
    peer = await clients.persistent(name, session_present=True)
    await peer.expect_ack(c.PUBREL, got.packet_id)
    await peer.pubcomp(got.packet_id)
    await peer.nothing()


@v5
@tcp
async def test_expiry_0_is_not_queued(clients: Clients) -> None:
    """It expires at once, and never wraps around [MQTT-3.3.2-5] [MQTT-3.3.2-6]."""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1)
    await peer.drop()
    await publisher.publish(clients.topic, b"0", 1, properties={c.MESSAGE_EXPIRY_INTERVAL: 0})
    await clients.pass_time(1.1)
    peer = await clients.persistent(name, session_present=True)
    await peer.nothing()


# --- properties -------------------------------------------------------------------------------------------------------

ALL_PROPERTIES = {
    c.PAYLOAD_FORMAT_INDICATOR: 1,
    c.CONTENT_TYPE: "text/\u00fcml",
    c.RESPONSE_TOPIC: "an/answer",
    c.CORRELATION_DATA: b"\x00\xff\x00",
    c.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],
}


@v5
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_properties_are_forwarded_unaltered(clients: Clients, qos: int) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe(clients.topic, qos=qos)
    await publisher.publish(clients.topic, b"x", qos, properties=ALL_PROPERTIES)
    got = await peer.expect_publish(clients.topic, b"x", qos)
    assert got.properties == ALL_PROPERTIES


@v5
async def test_properties_survive_queue_and_retransmission(clients: Clients) -> None:
    """[MQTT-3.3.2-18] and the others"""
    name = clients.name()
    peer, publisher = await clients.persistent(name), await clients.connect()
    await peer.subscribe(clients.topic, qos=1, identifier=9)
    await peer.drop()
    await publisher.publish(clients.topic, b"x", 1, properties=ALL_PROPERTIES)
    for _ in range(2):
        peer = await clients.persistent(name, session_present=True)
        got = await peer.expect_publish(clients.topic, b"x", 1, acknowledge=False)
        assert got.properties == {**ALL_PROPERTIES, c.SUBSCRIPTION_IDENTIFIER: [9]}
        await peer.drop()


@v5
async def test_no_properties_for_3x(clients: Clients) -> None:
    """And from 3.x there are none."""
    old, new = await clients.connect(version=4), await clients.connect()
    for peer in (old, new):
        await peer.subscribe(clients.topic, qos=1)
    await new.publish(clients.topic, b"x", 1, properties=ALL_PROPERTIES)
    await old.expect_publish(clients.topic, b"x", 1)
    assert old.raw.endswith(b"x") and len(old.raw) == 2 + 2 + len(clients.topic) + 2 + 1
    await new.expect_publish(clients.topic, b"x", 1)
    await old.publish(clients.topic, b"y", 1)
    got = await new.expect_publish(clients.topic, b"y", 1)
    assert got.properties == {}


# --- slow readers -----------------------------------------------------------------------------------------------------


@tcp
async def test_client_that_does_not_read_harms_nobody(clients: Clients) -> None:
    """QoS 0 for it is dropped beyond a bound; others get everything."""
    slow, quick, publisher = await clients.connect(), await clients.connect(), await clients.connect()
    for peer in (slow, quick):
        await peer.subscribe(clients.topic)
    payload = bytes(500_000)
    for number in range(80):
        await publisher.publish(clients.topic, payload + b"%d" % number)
        await quick.expect_publish(clients.topic, payload + b"%d" % number)
