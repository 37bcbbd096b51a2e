"""CONNECT and CONNACK: versions, what is refused and how, Client Identifiers, flags, properties, Reason Codes."""

import struct
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Suback,
    Subscribe,
    TopicFilter,
    Will,
)
from tests.support.clients import Clients, StartClients, tcp, v3, v3_to_v5, v4, v5
from tests.support.peer import Peer
from tests.support.wire import Publish, encode, frame, properties, string

pytestmark = pytest.mark.asyncio(loop_scope="module")


def connect_bytes(
    version: int,
    client_id: bytes = b"raw",
    flags: int = 0x02,
    *,
    name: str | None = None,
    level: int | None = None,
    header: int = 0x10,
    block: bytes = b"\x00",
    rest: bytes = b"",
) -> bytes:
    """A CONNECT of hand: ``flags`` and what follows the Client Identifier need not agree."""
    body = string(name or ("MQIsdp" if version == 3 else "MQTT"))
    body += bytes([version if level is None else level, flags]) + b"\x00\x00"
    if version == 5:
        body += block
    return frame(header, body + struct.pack("!H", len(client_id)) + client_id + rest)


async def refused(peer: Peer, *reason_codes: int) -> None:
    """The end of a connection whose CONNECT was no good: closed, in 5.0 perhaps after a CONNACK that says why."""
    if peer.version == 5:
        try:
            await peer.expect_closed()
        except AssertionError:
            connack = Connack(peer.raw[3], False)
            assert peer.raw[0] == 0x20, f"CONNACK or nothing, got {peer.raw!r}"
            assert connack.reason_code in reason_codes
            await peer.expect_closed()
    else:
        await peer.expect_closed()


# --- versions ---------------------------------------------------------------------------------------------------------


@v3_to_v5
async def test_every_version_connects(clients: Clients) -> None:
    """A CONNECT is answered by CONNACK, and first of all [MQTT-3.1.0-1] [MQTT-3.2.0-1] [MQTT-3.1.4-5]
    [3.1.1 MQTT-3.2.0-1] [3.1.1 MQTT-3.1.4-4]."""
    peer = await clients.connect()
    assert not peer.connack.session_present
    await peer.nothing()  # exactly one CONNACK [MQTT-3.2.0-2]


async def test_versions_talk_to_each_other(clients: Clients) -> None:
    peers = [await clients.connect(version=version) for version in (3, 4, 5)]
    for peer in peers:
        await peer.subscribe(f"{clients.topic}/v")
    for number, peer in enumerate(peers):
        await peer.publish(f"{clients.topic}/v", b"%d" % number)
        for other in peers:
            await other.expect_publish(f"{clients.topic}/v", b"%d" % number)


@pytest.mark.parametrize("level", [0, 1, 2, 6, 7, 127])
@v4
async def test_unknown_level_gets_return_code_1(clients: Clients, level: int) -> None:
    """[3.1.1 MQTT-3.1.2-2] [MQTT-3.1.2-2]"""
    peer = await clients.open()
    await peer.send(connect_bytes(4, level=level))
    await peer.expect(Connack, reason_code=1, session_present=False)
    assert peer.raw == b"\x20\x02\x00\x01"
    await peer.expect_closed()


@pytest.mark.parametrize("name", ["MQT", "MQTTT", "mqtt", "HTTP", "MQIsdq", "\ufeffMQTT"])
async def test_wrong_protocol_name_is_closed(clients: Clients, name: str) -> None:
    """[MQTT-3.1.2-1] [3.1.1 MQTT-3.1.2-1]"""
    peer = await clients.open()
    await peer.send(connect_bytes(clients.version, name=name))
    await refused(peer, 0x84)


@v3_to_v5
@pytest.mark.parametrize(
    "first",
    [
        b"\xc0\x00",
        b"\xe0\x00",
        b"\x30\x05\x00\x01aXY",
        b"\x32\x07\x00\x01a\x00\x01XY",
        b"\x82\x06\x00\x01\x00\x01a\x00",
        b"\xa2\x05\x00\x01\x00\x01a",
        b"\x40\x02\x00\x01",
        b"\xf0\x00",
        b"\x00\x00",
        b"\x20\x02\x00\x00",
        b"\xd0\x00",
    ],
)
async def test_first_packet_must_be_connect(clients: Clients, first: bytes) -> None:
    """Closed with nothing sent [MQTT-3.1.0-1] [3.1.1 MQTT-3.1.0-1]."""
    peer = await clients.open()
    await peer.send(first)
    await peer.expect_closed()


async def test_first_packet_that_is_not_connect_is_refused_by_its_header(clients: Clients) -> None:
    """Nobody waits for the 256 MiB that it announces [MQTT-3.1.0-1]."""
    peer = await clients.open()
    await peer.send(b"\x30\xff\xff\xff\x7f")
    await peer.expect_closed()


async def test_too_large_connect_is_refused_by_its_header(clients: Clients) -> None:
    """Closed when its Remaining Length is known, long before the body could arrive."""
    peer = await clients.open()
    await peer.send(b"\x10\xff\xff\xff\x7f\x00\x04MQTT" + bytes([clients.version]))
    await refused(peer, 0x95)


async def test_second_connect_is_a_protocol_error(clients: Clients) -> None:
    """And the Will is published [MQTT-3.1.0-2] [MQTT-4.13.1-1] [3.1.1 MQTT-3.1.0-2] [3.1.1 MQTT-4.8.0-1]."""
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/will")
    peer = await clients.connect(will=Will(f"{clients.topic}/will", b"gone"))
    await peer.send(Connect(clients.version, peer.client_id))
    await peer.expect_disconnect(0x82)
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


async def test_connect_byte_by_byte(clients: Clients) -> None:
    peer = await clients.open()
    for byte in encode(Connect(clients.version, clients.name()), clients.version):
        await peer.send(bytes([byte]))
    await peer.expect(Connack, reason_code=0)


async def test_packets_behind_connect_in_one_segment(clients: Clients) -> None:
    """A client need not wait for CONNACK; the answers keep the order [MQTT-3.1.4-5] [3.1.1 MQTT-3.1.4-4].

    PINGRESP waits for none of them: of several nodes, SUBACK may come after it.
    """
    peer = await clients.open()
    await peer.send(
        Connect(clients.version, clients.name()),
        Subscribe(1, [TopicFilter(f"{clients.topic}/a", 0)]),
        Publish(f"{clients.topic}/a", b"early"),
        Pingreq(),
    )
    await peer.expect(Connack, reason_code=0)
    answers = [await peer.receive() for _ in range(3)]
    assert answers.count(Pingresp()) == 1
    suback, early = [each for each in answers if not isinstance(each, Pingresp)]
    assert isinstance(suback, Suback) and suback.packet_id == 1
    assert isinstance(early, Publish) and (early.topic, early.payload) == (f"{clients.topic}/a", b"early")


async def test_nothing_after_a_refused_connect_is_processed(clients: Clients) -> None:
    """[MQTT-3.1.4-6] [3.1.1 MQTT-3.1.4-5]"""
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/#")
    peer = await clients.open()
    await peer.send(connect_bytes(clients.version, flags=0x03), Publish(f"{clients.topic}/a", b"no"))
    await refused(peer, 0x81, 0x82)
    await watcher.nothing()


async def test_connect_then_disconnect_in_one_segment(clients: Clients) -> None:
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/will")
    peer = await clients.open()
    await peer.send(
        Connect(clients.version, clients.name(), will=Will(f"{clients.topic}/will", b"never")),
        Disconnect(),
    )
    await peer.expect(Connack, reason_code=0)
    await peer.expect_closed()
    await watcher.nothing()


# --- validation -------------------------------------------------------------------------------------------------------

BAD_FOR_ALL = {
    "reserved flag": {"flags": 0x03},  # [MQTT-3.1.2-3] [3.1.1 MQTT-3.1.2-3]
    "will QoS without will": {"flags": 0x0A},  # [MQTT-3.1.2-11] [3.1.1 MQTT-3.1.2-13]
    "will retain without will": {"flags": 0x22},  # [MQTT-3.1.2-13] [3.1.1 MQTT-3.1.2-15]
    "user name flag without user name": {"flags": 0x82},
    "user name without flag": {"flags": 0x02, "rest": b"\x00\x01u"},  # [MQTT-3.1.2-16] [3.1.1 MQTT-3.1.2-18]
    "password flag without password": {"flags": 0xC2, "rest": b"\x00\x01u"},  # [MQTT-3.1.2-19]
    "password without flag": {"flags": 0x82, "rest": b"\x00\x01u\x00\x01p"},  # [MQTT-3.1.2-18]
    "bytes left over": {"rest": b"\x00"},
    "client id overruns": {"rest": b"", "client_id": b""},  # replaced below
    "surrogate in client id": {"client_id": b"a\xed\xa0\x80"},  # [MQTT-1.5.4-1] [3.1.1 MQTT-1.5.3-1]
    "U+0000 in client id": {"client_id": b"a\x00b"},  # [MQTT-1.5.4-2] [3.1.1 MQTT-1.5.3-2]
    "overlong form in client id": {"client_id": b"a\xc0\xaf"},
    "beyond U+10FFFF in client id": {"client_id": b"\xf4\x90\x80\x80"},
    "not UTF-8 in client id": {"client_id": b"\xff"},
    "not UTF-8 in user name": {"flags": 0x82, "rest": b"\x00\x01\xff"},  # [MQTT-3.1.3-12] [3.1.1 MQTT-3.1.3-11]
}


@pytest.mark.parametrize("case", BAD_FOR_ALL)
async def test_malformed_connect(clients: Clients, case: str) -> None:
    """[MQTT-3.1.4-1] [MQTT-3.1.3-4] [3.1.1 MQTT-3.1.4-1] [3.1.1 MQTT-3.1.3-4]
    [3.1.1 MQTT-3.2.2-6]; nobody else notices."""
    bystander = await clients.connect()
    peer = await clients.open()
    data = connect_bytes(clients.version, **BAD_FOR_ALL[case])  # type: ignore[arg-type]
    if case == "client id overruns":
        data = data[:-2] + b"\x00\x09"
    await peer.send(data)
    await refused(peer, 0x81, 0x82, 0x85)
    await bystander.nothing()


@pytest.mark.parametrize("header", [0x11, 0x12, 0x14, 0x18, 0x1F])
async def test_connect_header_flags(clients: Clients, header: int) -> None:
    """[MQTT-2.1.3-1] [3.1.1 MQTT-2.2.2-1] [3.1.1 MQTT-2.2.2-2]"""
    peer = await clients.open()
    await peer.send(connect_bytes(clients.version, header=header))
    await refused(peer, 0x81)


@pytest.mark.parametrize("version", [3])
async def test_v31_ignores_header_flags(clients: Clients) -> None:
    """MQTT 3.1 did not reserve them."""
    peer = await clients.open()
    await peer.send(connect_bytes(3, client_id=clients.name().encode(), header=0x1A))
    await peer.expect(Connack, reason_code=0)


@pytest.mark.parametrize("version", [3])
async def test_v31_allows_the_flags_of_missing_credentials(clients: Clients) -> None:
    """MQTT 3.1 lets the Remaining Length take precedence over the user name and password flags."""
    peer = await clients.open()
    await peer.send(connect_bytes(3, client_id=clients.name().encode(), flags=0xC2))
    await peer.expect(Connack, reason_code=0)


WILL_FIELDS = {4: b"\x00\x01w\x00\x01x", 5: b"\x00\x00\x01w\x00\x01x"}


async def test_will_qos_3(clients: Clients) -> None:
    """[MQTT-3.1.2-12] [3.1.1 MQTT-3.1.2-14]"""
    peer = await clients.open()
    await peer.send(connect_bytes(clients.version, flags=0x1E, rest=WILL_FIELDS[clients.version]))
    await refused(peer, 0x81, 0x82)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a/#/b"])
async def test_will_topic_must_be_a_topic_name(clients: Clients, topic: str) -> None:
    """[MQTT-3.1.3-11] [3.1.1 MQTT-3.1.3-10]"""
    peer = await clients.open()
    fields = WILL_FIELDS[clients.version].replace(b"\x00\x01w", string(topic))
    await peer.send(connect_bytes(clients.version, flags=0x06, rest=fields))
    await refused(peer, 0x81, 0x82, 0x90)


@pytest.mark.parametrize("topic", [b"\x00a", b"\xff", b"\xed\xbf\xbf"])
async def test_will_topic_must_be_utf8(clients: Clients, topic: bytes) -> None:
    """[MQTT-3.1.3-11] [MQTT-1.5.4-1] [3.1.1 MQTT-3.1.3-10]"""
    peer = await clients.open()
    fields = WILL_FIELDS[clients.version].replace(b"\x00\x01w", struct.pack("!H", len(topic)) + topic)
    await peer.send(connect_bytes(clients.version, flags=0x06, rest=fields))
    await refused(peer, 0x81, 0x82, 0x90)


@v4
async def test_password_without_user_name_in_311(clients: Clients) -> None:
    """[3.1.1 MQTT-3.1.2-22]"""
    peer = await clients.open()
    await peer.send(connect_bytes(4, flags=0x42, rest=b"\x00\x01p"))
    await peer.expect_closed()


@v5
async def test_password_without_user_name_in_5(clients: Clients) -> None:
    """5.0 allows it."""
    await clients.connect(password=b"p")


async def test_zero_length_user_name_and_password(clients: Clients) -> None:
    await clients.connect(username="", password=b"")


async def test_largest_fields(clients: Clients) -> None:
    """User name, password, Will topic and Will payload of 65,535 bytes."""
    most = 65_535
    peer = await clients.connect(username="u" * most, password=b"\x00" * most)
    await peer.disconnect()
    peer = await clients.connect(will=Will("w" * most, b"\xff" * most))
    await peer.disconnect()


@v5
@pytest.mark.parametrize(
    "block",
    [
        properties({c.RECEIVE_MAXIMUM: 0}),
        properties({c.MAXIMUM_PACKET_SIZE: 0}),
        properties({c.REQUEST_PROBLEM_INFORMATION: 2}),
        properties({c.REQUEST_RESPONSE_INFORMATION: 2}),
        properties({c.AUTHENTICATION_DATA: b"x"}),
        b"\x0a" + properties({c.SESSION_EXPIRY_INTERVAL: 1})[1:] * 2,
        b"\x06" + properties({c.RECEIVE_MAXIMUM: 1})[1:] * 2,
        b"\x0a" + properties({c.MAXIMUM_PACKET_SIZE: 100})[1:] * 2,
        b"\x06" + properties({c.TOPIC_ALIAS_MAXIMUM: 1})[1:] * 2,
        b"\x04" + properties({c.REQUEST_PROBLEM_INFORMATION: 1})[1:] * 2,
        b"\x04" + properties({c.REQUEST_RESPONSE_INFORMATION: 1})[1:] * 2,
        b"\x08" + properties({c.AUTHENTICATION_METHOD: "m"})[1:] * 2,
        properties({c.TOPIC_ALIAS: 1}),
        properties({c.WILL_DELAY_INTERVAL: 1}),
        properties({c.SERVER_KEEP_ALIVE: 1}),
        properties({c.PAYLOAD_FORMAT_INDICATOR: 1}),
        b"\x02\x7f\x00",
        b"\x03\x11\x00\x00",
        b"\x7f",
        b"\x80\x80\x80\x80\x01",
    ],
)
async def test_bad_connect_properties(clients: Clients, block: bytes) -> None:
    """[MQTT-3.1.4-1]"""
    peer = await clients.open()
    await peer.send(connect_bytes(5, block=block))
    await refused(peer, 0x81, 0x82)


@v5
@pytest.mark.parametrize(
    "block",
    [
        properties({c.PAYLOAD_FORMAT_INDICATOR: 2}),
        b"\x0a" + properties({c.WILL_DELAY_INTERVAL: 1})[1:] * 2,
        b"\x0a" + properties({c.MESSAGE_EXPIRY_INTERVAL: 1})[1:] * 2,
        b"\x08" + properties({c.CONTENT_TYPE: "t"})[1:] * 2,
        b"\x08" + properties({c.RESPONSE_TOPIC: "t"})[1:] * 2,
        b"\x08" + properties({c.CORRELATION_DATA: b"t"})[1:] * 2,
        properties({c.RESPONSE_TOPIC: "a/#"}),
        properties({c.SESSION_EXPIRY_INTERVAL: 1}),
        properties({c.TOPIC_ALIAS: 1}),
        b"\x05" + b"\x03\x00\x02\xff\xff",
    ],
)
async def test_bad_will_properties(clients: Clients, block: bytes) -> None:
    """[MQTT-3.1.4-1] [MQTT-3.3.2-14]"""
    peer = await clients.open()
    await peer.send(connect_bytes(5, flags=0x06, rest=block + b"\x00\x01w\x00\x01x"))
    await refused(peer, 0x81, 0x82)


@v5
async def test_all_connect_properties(clients: Clients) -> None:
    """User Property may stand there more than once; pairs may repeat, parts may be empty."""
    await clients.connect(
        properties={
            c.SESSION_EXPIRY_INTERVAL: 10,
            c.RECEIVE_MAXIMUM: 65_535,
            c.MAXIMUM_PACKET_SIZE: 0xFFFF_FFFF,
            c.TOPIC_ALIAS_MAXIMUM: 65_535,
            c.REQUEST_RESPONSE_INFORMATION: 1,
            c.REQUEST_PROBLEM_INFORMATION: 0,
            c.USER_PROPERTY: [("a", "b"), ("a", "b"), ("", "")],
        },
        will=Will(
            f"{clients.topic}/w",
            b"",
            properties={
                c.WILL_DELAY_INTERVAL: 0,
                c.PAYLOAD_FORMAT_INDICATOR: 1,
                c.MESSAGE_EXPIRY_INTERVAL: 10,
                c.CONTENT_TYPE: "",
                c.RESPONSE_TOPIC: "r",
                c.CORRELATION_DATA: b"",
                c.USER_PROPERTY: [("a", "b"), ("a", "b")],
            },
        ),
    )


# --- Client Identifiers -----------------------------------------------------------------------------------------------


@v3_to_v5
@pytest.mark.parametrize(
    "client_id",
    [
        "0123456789abcdefghijklm",  # [MQTT-3.1.3-5] [3.1.1 MQTT-3.1.3-5]
        "ABCDEFGHIJKLMNOPQRSTUVW",
        "x" * 24,
        "/+#$ ",
        "\ufeffid",
        "\U0001f40d",
        "i" * 65_535,
    ],
    ids=["23", "upper", "24", "marks", "bom", "astral", "longest"],
)
async def test_client_identifiers_that_work(clients: Clients, client_id: str) -> None:
    """[MQTT-3.1.3-5] [MQTT-3.1.3-3] [3.1.1 MQTT-3.1.3-5] [3.1.1 MQTT-3.1.3-3]; nothing is assigned."""
    peer = await clients.connect(client_id)
    assert c.ASSIGNED_CLIENT_IDENTIFIER not in peer.connack.properties
    await peer.disconnect()


@pytest.mark.parametrize("clean_start", [True, False])
@v5
async def test_empty_client_identifier_in_5(clients: Clients, clean_start: bool) -> None:
    """One is assigned, told, unique, and good for a reconnect [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]."""
    options: dict[str, Any] = {"properties": {c.SESSION_EXPIRY_INTERVAL: 100}}
    first = await clients.connect("", clean_start, **options)
    second = await clients.connect("", clean_start, **options)
    assigned = first.connack.properties[c.ASSIGNED_CLIENT_IDENTIFIER]
    assert assigned
    assert assigned != second.connack.properties[c.ASSIGNED_CLIENT_IDENTIFIER]
    await first.disconnect()
    await clients.connect(assigned, False, session_present=True)


@v4
async def test_empty_client_identifier_in_311(clients: Clients) -> None:
    """Assigned with Clean Session 1, refused with 0 [3.1.1 MQTT-3.1.3-6] [3.1.1 MQTT-3.1.3-7]
    [3.1.1 MQTT-3.1.3-8]."""
    one = await clients.connect("")
    two = await clients.connect("")
    await one.nothing()  # not taken over: the identifiers are unique
    await two.nothing()
    await clients.connect("", False, expect=2)


@pytest.mark.parametrize("version", [3])
@pytest.mark.parametrize("clean_start", [True, False])
async def test_empty_client_identifier_in_31(clients: Clients, clean_start: bool) -> None:
    await clients.connect("", clean_start, expect=2)


# --- CONNACK ----------------------------------------------------------------------------------------------------------


async def test_session_present(clients: Clients) -> None:
    """[MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-3.1.2-6] [MQTT-3.1.3-2] [3.1.1 MQTT-3.2.2-1] [3.1.1 MQTT-3.2.2-2]
    [3.1.1 MQTT-3.2.2-3]"""
    name = clients.name()
    peer = await clients.persistent(name, session_present=False)
    await peer.disconnect()
    peer = await clients.persistent(name, session_present=True)
    await peer.disconnect()
    await clients.persistent(name + "x", session_present=False)
    peer = await clients.persistent(name, clean_start=True, session_present=False)
    await peer.disconnect()


@v5
async def test_problem_information_can_be_declined(clients: Clients) -> None:
    """No Reason String but in CONNACK, DISCONNECT and PUBLISH [MQTT-3.1.2-29]."""
    peer = await clients.connect(properties={c.REQUEST_PROBLEM_INFORMATION: 0})
    suback = await peer.subscribe(clients.topic)
    assert not suback.properties
    unsuback = await peer.unsubscribe("not there", expect=[0x11])
    assert not unsuback.properties


@v5
async def test_response_information_only_if_asked_for(clients: Clients) -> None:
    """[MQTT-3.1.2-28]"""
    for properties_ in ({}, {c.REQUEST_RESPONSE_INFORMATION: 0}):
        peer = await clients.connect(properties=properties_)
        assert c.RESPONSE_INFORMATION not in peer.connack.properties


@v5
async def test_connack_never_exceeds_the_clients_maximum_packet_size(clients: Clients) -> None:
    """A CONNACK that cannot be made small enough is not sent at all [MQTT-3.1.2-24] [MQTT-3.2.2-19]
    [MQTT-3.2.2-20]."""
    peer = await clients.open()
    await peer.send(Connect(5, clients.name(), properties={c.MAXIMUM_PACKET_SIZE: 4}))
    await peer.expect_closed()


async def test_ping(clients: Clients) -> None:
    """[MQTT-3.12.4-1] [3.1.1 MQTT-3.12.4-1]"""
    peer = await clients.connect()
    await peer.send(Pingreq(), Pingreq())
    await peer.ping()
    await peer.ping()


@v3
async def test_31_and_311_share_an_identifier_space(clients: Clients) -> None:
    name = clients.name()
    old = await clients.connect(name, version=3)
    await clients.connect(name, version=4)
    await old.expect_closed()


# --- settings ---------------------------------------------------------------------------------------------------------


@tcp
async def test_empty_client_identifiers_disabled(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"allow_empty_client_id": False})
    await clients.connect("", expect=0x85 if clients.version == 5 else 2)


@tcp
async def test_assigned_identifier_prefix(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"client_id_prefix": "auto-"})
    peer = await clients.connect("", version=5)
    assert peer.client_id.startswith("auto-")


@tcp
async def test_client_identifier_too_long(clients_of: StartClients) -> None:
    """[3.1.1 MQTT-3.1.3-9] [3.1.1 MQTT-3.2.2-5]"""
    clients = await clients_of(zone={"max_client_id_length": 10})
    await clients.connect("x" * 10)
    await clients.connect("x" * 11, expect=0x85 if clients.version == 5 else 2)


@tcp
async def test_user_name_as_client_identifier(clients_of: StartClients) -> None:
    clients = await clients_of(zone={"use_username_as_client_id": True})
    first = await clients.connect("one", username="ann", password=b"")
    await clients.connect("two", username="ann", password=b"")
    await first.expect_disconnect(0x8E)


@tcp
async def test_anonymous_refused(clients_of: StartClients) -> None:
    """[MQTT-3.2.2-7] [3.1.1 MQTT-3.2.2-5] [3.1.1 MQTT-3.2.2-4]"""
    clients = await clients_of(zone={"allow_anonymous": False})
    peer = clients.peer()
    await peer.connect(expect=None)
    assert peer.connack.reason_code in ((0x86, 0x87) if clients.version == 5 else (4, 5))


@tcp
@v5
async def test_connack_tells_the_limits(clients_of: StartClients) -> None:
    """What is absent is available and unlimited [MQTT-3.2.2-9]."""
    clients = await clients_of(
        zone={
            "max_qos": 1,
            "retain_available": False,
            "wildcard_subscription": False,
            "shared_subscription": False,
            "max_packet_size": 1000,
            "max_topic_alias": 7,
            "receive_maximum": 9,
            "session_expiry_interval": 60,
            "server_keep_alive": 60,
            "response_information": "rsp/",
        }
    )
    peer = await clients.connect(
        keep_alive=120, properties={c.SESSION_EXPIRY_INTERVAL: 100, c.REQUEST_RESPONSE_INFORMATION: 1}
    )
    assert peer.connack.properties == {
        c.MAXIMUM_QOS: 1,
        c.RETAIN_AVAILABLE: 0,
        c.WILDCARD_SUBSCRIPTION_AVAILABLE: 0,
        c.SHARED_SUBSCRIPTION_AVAILABLE: 0,
        c.MAXIMUM_PACKET_SIZE: 1000,
        c.TOPIC_ALIAS_MAXIMUM: 7,
        c.RECEIVE_MAXIMUM: 9,
        c.SESSION_EXPIRY_INTERVAL: 60,
        c.SERVER_KEEP_ALIVE: 60,
        c.RESPONSE_INFORMATION: "rsp/",
    }


@tcp
@v5
async def test_maximum_qos_and_retain_are_not_told_when_unlimited(clients_of: StartClients) -> None:
    clients = await clients_of()
    peer = await clients.connect(keep_alive=30)
    told = peer.connack.properties
    assert c.MAXIMUM_QOS not in told  # the value 2 does not exist
    assert told.get(c.RETAIN_AVAILABLE, 1) == 1
    for identifier in (40, 41, 42):
        assert told.get(identifier, 1) == 1
    assert c.SERVER_KEEP_ALIVE not in told
    assert c.SESSION_EXPIRY_INTERVAL not in told


@tcp
@v5
async def test_will_beyond_the_limits(clients_of: StartClients) -> None:
    """Refused, with Session Present 0 although there is a session [MQTT-3.2.2-12] [MQTT-3.2.2-13] [MQTT-3.2.2-6]."""
    clients = await clients_of(zone={"max_qos": 1, "retain_available": False})
    peer = await clients.persistent("stored", will=Will("w", b"", 1))
    await peer.disconnect()
    await clients.persistent("stored", will=Will("w", b"", 2), expect=0x9B, session_present=False)
    await clients.persistent("stored", will=Will("w", b"", 0, True), expect=0x9A, session_present=False)
    await clients.persistent("stored", session_present=True)


@tcp
async def test_connect_must_come_in_time(clients_of: StartClients) -> None:
    """A complete CONNECT, that is: neither silence nor a trickle holds a connection."""
    clients = await clients_of(zone={"idle_timeout": 10})
    silent, trickle = await clients.open(), await clients.open()
    await trickle.send(b"\x10\x20\x00")
    good = await clients.connect()
    await clients.pass_time(9)
    await trickle.send(b"\x04")
    await clients.pass_time(2)
    await clients.pass_time(0.1)  # what lies in the socket is read before
    await silent.expect_closed()
    await trickle.expect_closed()
    await good.nothing()


@tcp
async def test_wrong_password(clients_of: StartClients) -> None:
    """A user the node does not know, where nobody is anonymous [MQTT-3.2.2-7] [3.1.1 MQTT-3.2.2-5]."""
    clients = await clients_of(zone={"allow_anonymous": False})
    peer = clients.peer()
    await peer.connect(username="nobody", password=b"wrong", expect=None)
    assert peer.connack.reason_code in ((0x86, 0x87) if clients.version == 5 else (4, 5))


@tcp
async def test_strict_strings(clients_of: StartClients) -> None:
    """Control characters and non-characters: allowed by default, refused where a setting says so."""
    for strict in (False, True):
        clients = await clients_of(zone={"strict_strings": strict})
        for client_id in ("a\x01", "a\x7f", "a\x85", "a\uffff", "a\U0001fffe"):
            peer = await clients.open()
            await peer.send(Connect(clients.version, client_id))
            if strict:
                await refused(peer, 0x81, 0x82, 0x85)
            else:
                await peer.expect(Connack, reason_code=0)
