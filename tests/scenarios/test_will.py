"""Will Messages: when they are published, when not, with what, and how long they wait."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.clients import Clients, StartClients, tcp, v5
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def watch(clients: Clients, qos: int = 2, **options: object) -> Peer:
    watcher = await clients.connect()
    await watcher.subscribe(f"{clients.topic}/will", qos=qos, **options)  # type: ignore[arg-type]
    return watcher


def will(clients: Clients, payload: bytes = b"gone", qos: int = 0, retain: bool = False, **properties: int) -> Will:
    return Will(
        f"{clients.topic}/will", payload, qos, retain, {getattr(c, name): value for name, value in properties.items()}
    )


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_network_failure(clients: Clients, qos: int) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-7] [3.1.1 MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-9]; once."""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients, qos=qos))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone", qos, retain=False)
    await watcher.nothing()


async def test_reset_of_the_network_connection(clients: Clients) -> None:
    """[MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]"""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    peer.abort()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


async def test_orderly_end_of_the_network_connection_without_disconnect(clients: Clients) -> None:
    """[MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]"""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    await peer.close()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


async def test_half_a_packet_then_the_end(clients: Clients) -> None:
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    await peer.send(b"\x30\x10\x00")
    await peer.close()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


async def test_not_after_disconnect(clients: Clients) -> None:
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3] [3.1.1 MQTT-3.1.2-10] [3.1.1 MQTT-3.14.4-3]"""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    await peer.disconnect()
    await watcher.nothing()


@v5
@pytest.mark.parametrize("reason_code", [0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99])
async def test_disconnect_with_another_reason_code(clients: Clients, reason_code: int) -> None:
    """0x04 asks for it, and no other but 0x00 removes it [MQTT-3.1.2-8] [MQTT-3.1.2-10]."""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    await peer.disconnect(reason_code)
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


async def test_protocol_error(clients: Clients) -> None:
    """[MQTT-3.1.2-8] [3.1.1 MQTT-3.1.2-8]"""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    await peer.send(b"\x36\x03\x00\x01a")
    await peer.expect_disconnect(0x81, 0x82)
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_retained_will(clients: Clients, qos: int) -> None:
    """Live without the flag, kept for those who come later [MQTT-3.1.2-15] [3.1.1 MQTT-3.1.2-17]."""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients, qos=qos, retain=True))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone", qos, retain=False)
    late = await clients.connect()
    await late.subscribe(f"{clients.topic}/will", qos=2)
    await late.expect_publish(f"{clients.topic}/will", b"gone", qos, retain=True)


async def test_will_without_retain_is_not_kept(clients: Clients) -> None:
    """[MQTT-3.1.2-14] [3.1.1 MQTT-3.1.2-16]"""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    late = await watch(clients)
    await late.nothing()


async def test_empty_retained_will_clears(clients: Clients) -> None:
    """[MQTT-3.3.1-6] [3.1.1 MQTT-3.3.1-10]"""
    publisher = await clients.connect()
    await publisher.publish(f"{clients.topic}/will", b"kept", 1, True)
    watcher = await watch(clients)
    await watcher.expect_publish(f"{clients.topic}/will", b"kept", 1, retain=True)
    peer = await clients.connect(will=will(clients, b"", retain=True))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"", 0)
    late = await watch(clients)
    await late.nothing()


async def test_empty_will(clients: Clients) -> None:
    """A zero-length payload is a payload."""
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients, b""))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"")


async def test_will_is_capped_by_the_subscription(clients: Clients) -> None:
    watcher = await watch(clients, qos=1)
    peer = await clients.connect(will=will(clients, qos=2))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone", 1)


async def test_will_is_not_the_next_connections(clients: Clients) -> None:
    """A new CONNECT without Will has none [MQTT-3.1.2-10] [3.1.1 MQTT-3.1.2-12]."""
    watcher = await watch(clients)
    name = clients.name()
    peer = await clients.persistent(name, will=will(clients))
    await peer.disconnect()
    peer = await clients.persistent(name)
    await peer.drop()
    await clients.pass_time(0.1)
    await watcher.nothing()


async def test_binary_will(clients: Clients) -> None:
    payload = bytes(range(256)) * 8
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients, payload))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", payload)


# --- 5.0 --------------------------------------------------------------------------------------------------------------


@v5
async def test_will_properties_travel(clients: Clients) -> None:
    """User properties in order; Will Delay Interval does not [MQTT-3.1.3-10] [MQTT-3.3.2-17] [MQTT-3.3.2-15]
    [MQTT-3.3.2-16] [MQTT-3.3.2-20] [MQTT-3.3.2-4]."""
    sent = {
        c.PAYLOAD_FORMAT_INDICATOR: 1,
        c.MESSAGE_EXPIRY_INTERVAL: 1000,
        c.CONTENT_TYPE: "text/plain",
        c.RESPONSE_TOPIC: "answer/here",
        c.CORRELATION_DATA: b"\x00\xff",
        c.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "1")],
    }
    watcher = await watch(clients)
    the_will = will(clients)
    the_will.properties = {c.WILL_DELAY_INTERVAL: 0, **sent}
    peer = await clients.connect(will=the_will)
    await peer.drop()
    got = await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    assert got.properties == sent


@v5
@tcp
async def test_message_expiry_of_a_will_counts_from_its_publication(clients: Clients) -> None:
    watcher = await watch(clients)
    peer = await clients.connect(will=will(clients, MESSAGE_EXPIRY_INTERVAL=100))
    await clients.pass_time(2)
    await peer.drop()
    got = await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    assert got.properties[c.MESSAGE_EXPIRY_INTERVAL] == 100


@v5
@tcp
async def test_message_expiry_of_a_delayed_will_counts_from_its_publication(clients: Clients) -> None:
    watcher = await watch(clients)
    a_will = will(clients, WILL_DELAY_INTERVAL=2, MESSAGE_EXPIRY_INTERVAL=100)
    peer = await clients.persistent(clients.name(), will=a_will)
    await peer.drop()
    await clients.pass_time(2.5)
    got = await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    assert got.properties == {c.MESSAGE_EXPIRY_INTERVAL: 100}


@v5
@tcp
async def test_each_connection_has_its_own_will_delay(clients: Clients) -> None:
    """The delay of a cancelled Will does not bring out the next one early [MQTT-3.1.3-9]."""
    watcher = await watch(clients)
    name = clients.name()
    peer = await clients.persistent(name, will=will(clients, b"first", WILL_DELAY_INTERVAL=2))
    await peer.drop()
    peer = await clients.persistent(name, will=will(clients, b"second", WILL_DELAY_INTERVAL=4))
    await peer.drop()
    await clients.pass_time(3)
    await watcher.nothing()
    await clients.pass_time(2)
    await watcher.expect_publish(f"{clients.topic}/will", b"second")
    await watcher.nothing()


@v5
@tcp
async def test_will_delay(clients: Clients) -> None:
    """Not before, and then [MQTT-3.1.2-8]."""
    watcher = await watch(clients)
    peer = await clients.persistent(clients.name(), will=will(clients, WILL_DELAY_INTERVAL=2))
    await peer.drop()
    await clients.pass_time(1)
    await watcher.nothing()
    await clients.pass_time(1.5)
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    await watcher.nothing()


@v5
@tcp
async def test_session_end_ends_the_will_delay(clients: Clients) -> None:
    """[MQTT-3.1.2-8]: whichever is first."""
    watcher = await watch(clients)
    peer = await clients.connect(properties={c.SESSION_EXPIRY_INTERVAL: 2}, will=will(clients, WILL_DELAY_INTERVAL=5))
    await peer.drop()
    await clients.pass_time(1)
    await watcher.nothing()
    await clients.pass_time(1.5)
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    await clients.pass_time(3)
    await watcher.nothing()


@v5
@tcp
@pytest.mark.parametrize("expiry", [None, 0])
async def test_session_without_expiry_has_no_will_delay(clients: Clients, expiry: int | None) -> None:
    """[MQTT-3.1.2-8]"""
    watcher = await watch(clients)
    properties = {} if expiry is None else {c.SESSION_EXPIRY_INTERVAL: expiry}
    peer = await clients.connect(properties=properties, will=will(clients, WILL_DELAY_INTERVAL=1000))
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


@v5
@tcp
async def test_reconnect_cancels_the_delayed_will(clients: Clients) -> None:
    """[MQTT-3.1.3-9]"""
    watcher = await watch(clients)
    name = clients.name()
    peer = await clients.persistent(name, will=will(clients, WILL_DELAY_INTERVAL=1))
    await peer.drop()
    peer = await clients.persistent(name, session_present=True)
    await clients.pass_time(2)
    await watcher.nothing()
    await peer.disconnect()
    await clients.pass_time(2)
    await watcher.nothing()


@v5
async def test_takeover_of_a_continuing_session_cancels_the_delayed_will(clients: Clients) -> None:
    """[MQTT-3.1.3-9]"""
    watcher = await watch(clients)
    name = clients.name()
    await clients.persistent(name, will=will(clients, WILL_DELAY_INTERVAL=1))
    await clients.persistent(name, session_present=True)
    await clients.pass_time(2)
    await watcher.nothing()


@v5
@pytest.mark.parametrize("connected", [True, False])
async def test_clean_start_sends_the_delayed_will_at_once(clients: Clients, connected: bool) -> None:
    """The session ended [MQTT-3.1.2-8]."""
    watcher = await watch(clients)
    name = clients.name()
    peer = await clients.persistent(name, will=will(clients, WILL_DELAY_INTERVAL=100))
    if not connected:
        await peer.drop()
        await clients.pass_time(0.1)
        await watcher.nothing()
    await clients.persistent(name, clean_start=True, session_present=False)
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")
    await watcher.nothing()


@v5
async def test_disconnect_with_expiry_0_sends_the_delayed_will_at_once(clients: Clients) -> None:
    """0x04 with Session Expiry Interval 0: the session ends with the connection [MQTT-3.1.2-8]."""
    watcher = await watch(clients)
    peer = await clients.persistent(clients.name(), will=will(clients, WILL_DELAY_INTERVAL=100))
    await peer.disconnect(0x04, {c.SESSION_EXPIRY_INTERVAL: 0})
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


@v5
async def test_no_local_holds_for_wills(clients: Clients) -> None:
    """A will of the subscriber's own Client Identifier [MQTT-3.8.3-3]."""
    name = clients.name()
    peer = await clients.persistent(name, will=will(clients, qos=1))
    await peer.subscribe(f"{clients.topic}/will", qos=1, no_local=True)
    watcher = await watch(clients)
    await peer.drop()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone", 1)
    peer = await clients.persistent(name, session_present=True)
    await peer.nothing()


@tcp
async def test_will_is_subject_to_access_rules(clients_of: StartClients) -> None:
    """A forbidden one is refused with the CONNECT or never published; nobody gets it."""
    clients = await clients_of(access={"rules": [{"allow": False, "action": "publish", "topics": ["secret/#"]}]})
    watcher = await clients.connect()
    await watcher.subscribe("#")
    peer = clients.peer()
    await peer.connect(will=Will("secret/a", b"x"), expect=None)
    if peer.connack.reason_code == 0:
        await peer.drop()
        await clients.pass_time(0.1)
    else:
        assert peer.connack.reason_code == (0x87 if clients.version == 5 else 5)
    await watcher.nothing()


@tcp
async def test_clean_shutdown_tells_clients(clients_of: StartClients) -> None:
    """DISCONNECT 0x8B in 5.0 and an orderly end in all versions."""
    clients = await clients_of()
    peer = await clients.connect()
    await clients.node.stop()
    await peer.expect_disconnect(0x8B)
