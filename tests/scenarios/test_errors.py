"""What goes wrong after CONNACK: which Reason Code, that it arrives, and that the connection ends cleanly."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Disconnect, Suback, Subscribe, TopicFilter, Will
from tests.support.clients import Clients, StartClients, tcp, v3, v4, v5
from tests.support.wire import SERVER_REASON_CODES, Publish, frame, properties, string

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "packet",
    [
        b"\x00\x00",  # reserved type 0
        b"\x20\x03\x00\x00\x00",  # CONNACK
        b"\x20\x00",
        b"\x90\x04\x00\x01\x00\x00",  # SUBACK
        b"\x90\x00",
        b"\xb0\x04\x00\x01\x00\x00",  # UNSUBACK
        b"\xb0\x00",
        b"\xd0\x00",  # PINGRESP
        b"\xf0\x00",  # AUTH without a method
    ],
)
async def test_packets_a_client_does_not_send(clients: Clients, packet: bytes) -> None:
    """0x82 whatever their contents [MQTT-4.13.1-1] [MQTT-4.12.0-7] [3.1.1 MQTT-4.8.0-1]."""
    peer = await clients.connect()
    await peer.send(packet)
    await peer.expect_disconnect(0x82)


HEADER_FLAGS = {
    "PUBACK": b"\x41\x02\x00\x01",
    "PUBREC": b"\x52\x02\x00\x01",
    "PUBREL": b"\x60\x02\x00\x01",  # [MQTT-3.6.1-1] [3.1.1 MQTT-3.6.1-1]
    "PUBREL all": b"\x6f\x02\x00\x01",
    "PUBCOMP": b"\x74\x02\x00\x01",
    "SUBSCRIBE": b"\x80\x06\x00\x01\x00\x01a\x00",  # [MQTT-3.8.1-1] [3.1.1 MQTT-3.8.1-1]
    "SUBSCRIBE all": b"\x8f\x06\x00\x01\x00\x01a\x00",
    "UNSUBSCRIBE": b"\xa0\x05\x00\x01\x00\x01a",  # [MQTT-3.10.1-1] [3.1.1 MQTT-3.10.1-1]
    "PINGREQ": b"\xc1\x00",
    "DISCONNECT": b"\xe1\x00",  # [MQTT-3.14.1-1] [3.1.1 MQTT-3.14.1-1]
}


@pytest.mark.parametrize("packet", HEADER_FLAGS)
async def test_reserved_header_flags(clients: Clients, packet: str) -> None:
    """0x81 [MQTT-2.1.3-1] [3.1.1 MQTT-2.2.2-2]."""
    peer = await clients.connect()
    await peer.send(HEADER_FLAGS[packet])
    await peer.expect_disconnect(0x81)


MALFORMED = {
    "PUBACK of 1 byte": b"\x40\x01\x00",
    "PUBACK of 0 bytes": b"\x40\x00",
    "PUBREL of 1 byte": b"\x62\x01\x00",
    "PUBACK id 0": b"\x40\x02\x00\x00",
    "PINGREQ with a body": b"\xc0\x01\x00",
    "SUBSCRIBE without filters": b"\x82\x02\x00\x01",  # [MQTT-3.8.3-2] [3.1.1 MQTT-3.8.3-3]
    "SUBSCRIBE id 0": b"\x82\x06\x00\x00\x00\x01a\x00",  # [MQTT-2.2.1-3] [3.1.1 MQTT-2.3.1-1]
    "SUBSCRIBE empty filter": b"\x82\x05\x00\x01\x00\x00\x00",  # [MQTT-4.7.3-1] [3.1.1 MQTT-4.7.3-1]
    "SUBSCRIBE QoS 3": b"\x82\x06\x00\x01\x00\x01a\x03",  # [3.1.1 MQTT-3.8.3-4]
    "SUBSCRIBE reserved bits": b"\x82\x06\x00\x01\x00\x01a\x80",  # [MQTT-3.8.3-5] [3.1.1 MQTT-3.8.3-4]
    "SUBSCRIBE without options": b"\x82\x05\x00\x01\x00\x01a",
    "SUBSCRIBE filter overruns": b"\x82\x06\x00\x01\x00\x09a\x00",
    "UNSUBSCRIBE without filters": b"\xa2\x02\x00\x01",  # [MQTT-3.10.3-2] [3.1.1 MQTT-3.10.3-2]
    "UNSUBSCRIBE id 0": b"\xa2\x05\x00\x00\x00\x01a",
    "UNSUBSCRIBE empty filter": b"\xa2\x04\x00\x01\x00\x00",
    "UNSUBSCRIBE filter overruns": b"\xa2\x05\x00\x01\x00\x09a",
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed(clients: Clients, case: str) -> None:
    """0x81 or 0x82, and an orderly end [MQTT-4.13.1-1] [3.1.1 MQTT-4.8.0-1]; nobody else notices."""
    bystander, peer = await clients.connect(), await clients.connect()
    data = MALFORMED[case]
    if clients.version == 5 and "SUBSCRIBE" in case:
        data = frame(data[0], data[2:4] + b"\x00" + data[4:])
    await peer.send(data)
    await peer.expect_disconnect(0x81, 0x82, 0x8F)
    await bystander.nothing()


@v3
@pytest.mark.parametrize("packet", [b"\x40\x03\x00\x01\x00", b"\x62\x03\x00\x01\x00", b"\xe0\x01\x00"])
async def test_bodies_that_3x_does_not_know(clients: Clients, packet: bytes) -> None:
    """Remaining Length exactly 2 for the PUBACK family, 0 for DISCONNECT [3.1.1 MQTT-4.8.0-1]."""
    peer = await clients.connect()
    await peer.send(packet)
    await peer.expect_closed()


BAD_5 = {
    "PUBACK reason code": (b"\x40\x03\x00\x01\x55", 0x82),
    "PUBREC reason code": (b"\x50\x03\x00\x01\x01", 0x82),
    "PUBREL reason code": (b"\x62\x03\x00\x01\x10", 0x82),
    "PUBCOMP reason code": (b"\x70\x03\x00\x01\x80", 0x82),
    "DISCONNECT reason code": (b"\xe0\x01\x8e", 0x82),
    "DISCONNECT reason code of none": (b"\xe0\x01\x55", 0x82),
    "PUBACK unknown property": (b"\x40\x06\x00\x01\x00\x02\x7f\x00", 0x81),
    "PUBACK property of another packet": (b"\x40\x06\x00\x01\x00\x02\x01\x00", None),
    "PUBACK reason string twice": (b"\x40\x0a\x00\x01\x00\x06\x1f\x00\x00\x1f\x00\x00", 0x82),
    "PUBACK properties overrun": (b"\x40\x04\x00\x01\x00\x09", 0x81),
    "PUBACK bytes left over": (b"\x40\x05\x00\x01\x00\x00\x00", 0x81),
    "DISCONNECT session expiry twice": (
        b"\xe0\x0c\x00\x0a" + b"\x11\x00\x00\x00\x00" * 2,
        0x82,
    ),
    "DISCONNECT properties overrun": (b"\xe0\x02\x00\x05", 0x81),
    "SUBSCRIBE identifier 0": (frame(0x82, b"\x00\x01\x02\x0b\x00" + string("a") + b"\x00"), 0x82),
    "SUBSCRIBE identifier twice": (frame(0x82, b"\x00\x01\x04\x0b\x01\x0b\x02" + string("a") + b"\x00"), 0x82),
    "SUBSCRIBE identifier of five bytes": (
        frame(0x82, b"\x00\x01\x06\x0b\xff\xff\xff\xff\x01" + string("a") + b"\x00"),
        0x81,
    ),
    "SUBSCRIBE retain handling 3": (frame(0x82, b"\x00\x01\x00" + string("a") + b"\x30"), 0x82),
    "SUBSCRIBE QoS 3": (frame(0x82, b"\x00\x01\x00" + string("a") + b"\x03"), 0x82),
    "SUBSCRIBE no local on shared": (frame(0x82, b"\x00\x01\x00" + string("$share/g/a") + b"\x04"), 0x82),
    "UNSUBSCRIBE with identifier": (frame(0xA2, b"\x00\x01\x02\x0b\x01" + string("a")), None),
    "AUTH without method": (b"\xf0\x02\x18\x00", 0x82),
    "AUTH re-authenticate without method": (b"\xf0\x02\x19\x00", 0x82),
    "AUTH header flags": (b"\xf1\x00", None),  # [MQTT-3.15.1-1]
    "PUBLISH alias 0": (frame(0x30, string("a") + b"\x03\x23\x00\x00"), 0x94),  # [MQTT-3.3.2-8]
    "PUBLISH unknown alias": (frame(0x30, string("") + b"\x03\x23\x00\x01"), 0x82),
}


@v5
@pytest.mark.parametrize("case", BAD_5)
async def test_refused_in_5(clients: Clients, case: str) -> None:
    """With the Reason Code of the standard, where it leaves no choice [MQTT-4.13.1-1]
    [MQTT-3.8.3-4] [MQTT-3.8.3-5]."""
    data, code = BAD_5[case]
    peer = await clients.connect()
    await peer.send(data)
    await peer.expect_disconnect(*([0x81, 0x82, 0x94] if code is None else [code]))


async def test_nothing_is_processed_after_a_malformed_packet(clients: Clients) -> None:
    watcher, peer = await clients.connect(), await clients.connect()
    await watcher.subscribe(f"{clients.topic}/#")
    none = b"\x00" if clients.version == 5 else b""
    good = frame(0x30, string(f"{clients.topic}/a") + none + b"x")
    await peer.send(good + frame(0x36, string("a") + b"\x00\x01") + good)
    await peer.expect_disconnect(0x81, 0x82)
    await watcher.expect_publish(f"{clients.topic}/a", b"x")
    await watcher.nothing()


async def test_nothing_is_processed_after_disconnect(clients: Clients) -> None:
    """The client has said that it is over [3.1.1 MQTT-3.14.4-1]."""
    watcher, peer = await clients.connect(), await clients.connect()
    await watcher.subscribe(f"{clients.topic}/#")
    await peer.send(Disconnect(), Publish(f"{clients.topic}/a", b"x"))
    await peer.expect_closed()
    await watcher.nothing()


@tcp
async def test_the_reason_arrives_although_input_is_unread(clients: Clients) -> None:
    """Much behind the bad packet: still DISCONNECT and an orderly end, no reset [MQTT-4.13.2-1] [MQTT-3.14.0-1]
    [MQTT-3.14.4-1] [MQTT-3.14.4-2]."""
    peer = await clients.connect()
    await peer.send(b"\x36\x03\x00\x01a" + bytes(200_000))
    await peer.expect_disconnect(0x81, 0x82)


@tcp
async def test_a_client_that_ignores_the_end(clients: Clients) -> None:
    """Whoever goes on sending after DISCONNECT is cut off and harms nobody."""
    bystander, peer = await clients.connect(), await clients.connect()
    await peer.send(b"\x36\x03\x00\x01a")
    await peer.expect_disconnect(0x81, 0x82)
    for _ in range(20):
        await peer.send(bytes(10_000))
    await bystander.nothing()


@v5
async def test_all_the_forms_of_disconnect(clients: Clients) -> None:
    """Length 0, 1 and with properties."""
    for data in (
        b"\xe0\x00",
        b"\xe0\x01\x00",
        b"\xe0\x02\x00\x00",
        frame(0xE0, b"\x00" + properties({c.REASON_STRING: "bye", c.USER_PROPERTY: [("a", "b")]})),
    ):
        peer = await clients.connect()
        await peer.send(data)
        await peer.expect_closed()


@v5
async def test_server_sends_no_session_expiry_in_disconnect(clients: Clients) -> None:
    """[MQTT-3.14.2-2]; the reader of every scenario refuses it."""
    name = clients.name()
    old = await clients.persistent(name)
    await clients.persistent(name)
    told = await old.expect_disconnect(0x8E)
    assert told is not None
    assert c.SESSION_EXPIRY_INTERVAL not in told.properties


@v5
async def test_reason_string_only_where_it_fits(clients: Clients) -> None:
    """DISCONNECT never exceeds the client's Maximum Packet Size [MQTT-3.1.2-24] [MQTT-3.14.2-3]."""
    for size in (30, 40, 60, 1000):
        peer = await clients.connect(properties={c.MAXIMUM_PACKET_SIZE: size})
        assert len(peer.raw) <= size
        await peer.send(b"\x36\x03\x00\x01a")
        await peer.expect_disconnect(0x81, 0x82)
        assert len(peer.raw) <= size


@v4
async def test_no_disconnect_for_311(clients: Clients) -> None:
    """A 3.x client gets no packet it does not know [3.1.1 MQTT-4.8.0-1]."""
    peer = await clients.connect()
    await peer.send(b"\x36\x03\x00\x01a")
    await peer.expect_closed()


@tcp
async def test_denied_publish(clients_of: StartClients) -> None:
    """5.0: 0x87 on the acknowledgement; 3.x: acknowledged and dropped. The connection stays [3.1.1 MQTT-3.3.5-2]."""
    clients = await clients_of(access={"rules": [{"allow": False, "action": "publish", "topics": ["no/#"]}]})
    watcher, peer = await clients.connect(), await clients.connect()
    await watcher.subscribe("#")
    for qos in (0, 1, 2):
        code = await peer.publish("no/way", b"x", qos, expect=None)
        assert code == (0x87 if clients.version == 5 and qos else 0)
    await peer.nothing()
    await watcher.nothing()


@tcp
async def test_denied_publish_may_disconnect(clients_of: StartClients) -> None:
    clients = await clients_of(
        zone={"acl_deny_action": "disconnect"},
        access={"rules": [{"allow": False, "action": "publish", "topics": ["no/#"]}]},
    )
    peer = await clients.connect()
    await peer.send(Publish("no/way", b"x"))
    await peer.expect_disconnect(0x87)


@pytest.mark.parametrize("topic", ["$SYS/x", "$SYS", "$SYS/brokers/a/b"])
async def test_sys_topics_are_the_brokers_own(clients: Clients, topic: str) -> None:
    """Refused or dropped; the connection stays."""
    watcher, peer = await clients.connect(), await clients.connect()
    await watcher.subscribe("$SYS/#")
    if clients.node.external:
        return
    for qos in (0, 1, 2):
        code = await peer.publish(topic, b"x", qos, expect=None)
        assert code in (0x00, 0x87)
    await peer.nothing()
    await watcher.nothing()


@tcp
@v5
async def test_reason_codes_are_those_of_the_packet(clients_of: StartClients) -> None:
    """Whatever is refused: CONNACK, SUBACK and UNSUBACK say why with a code of their own list [MQTT-3.2.2-8]
    [MQTT-3.9.3-2] [MQTT-3.11.3-2]. The reader of every scenario holds this for every packet."""
    clients = await clients_of(
        zone={
            "max_qos": 1,
            "retain_available": False,
            "wildcard_subscription": False,
            "shared_subscription": False,
            "max_client_id_length": 50,
        },
        access={"rules": [{"allow": False, "topics": ["no/#"]}]},
    )
    await clients.connect("x" * 51, expect=0x85)
    await clients.connect(will=Will("w", b"", 2), expect=0x9B)
    await clients.connect(will=Will("w", b"", 0, True), expect=0x9A)
    await clients.connect(properties={c.AUTHENTICATION_METHOD: "none such"}, expect=0x8C)
    peer = await clients.connect()
    suback = await peer.subscribe("a", "no/way", "b", expect=[0, 0x87, 0])
    assert set(suback.reason_codes) <= SERVER_REASON_CODES[c.SUBACK]
    for topic_filter, code in (("a/+", 0xA2), ("$share/g/a", 0x9E)):
        await peer.send(Subscribe(99, [TopicFilter(topic_filter)]))
        packet = await peer.receive()
        assert isinstance(packet, Suback | Disconnect)
        assert code in (packet.reason_codes if isinstance(packet, Suback) else [packet.reason_code])
        if isinstance(packet, Disconnect):
            await peer.expect_closed()
            peer = await clients.connect()
    await peer.subscribe("a")
    unsuback = await peer.unsubscribe("a", "never", expect=[0x00, 0x11])
    assert set(unsuback.reason_codes) <= SERVER_REASON_CODES[c.UNSUBACK]
