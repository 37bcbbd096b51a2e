"""Enhanced authentication: AUTH packets around SCRAM-SHA-256, and what is refused."""

import base64
import hashlib
import hmac
from typing import Any

import pytest

from taipan.broker.access.banned import Ban
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Auth, Connack, Connect, Pingreq, Subscribe, TopicFilter, Will
from tests.support.clients import Clients, StartClients
from tests.support.node import ExternalNode
from tests.support.peer import Peer
from tests.support.scram_client import ScramClient
from tests.support.wire import Publish

METHOD = "SCRAM-SHA-256"


def verifier(password: str) -> str:
    """What the configuration holds of a password, made by the RFC."""
    salt = b"salt of sixteen!"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4096)
    client_key = hmac.new(salted, b"Client Key", "sha256").digest()
    server_key = hmac.new(salted, b"Server Key", "sha256").digest()
    parts = (base64.b64encode(part).decode() for part in (salt, hashlib.sha256(client_key).digest(), server_key))
    return "SCRAM-SHA-256$4096:{}${}:{}".format(*parts)


SETTINGS: dict[str, Any] = {
    "zone": {"allow_anonymous": False},
    "access": {
        "users": [
            {"username": "ann", "scram": verifier("secret")},
            {"username": "bob", "scram": verifier("other")},
        ]
    },
}

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.parametrize("version", [5]),
]


async def begin(clients: Clients, scram: ScramClient, method: str = METHOD, **options: Any) -> Peer:
    """CONNECT with client-first."""
    peer = await clients.open()
    properties = {c.AUTHENTICATION_METHOD: method, c.AUTHENTICATION_DATA: scram.first()}
    await peer.send(Connect(5, clients.name(), properties=properties, **options))
    return peer


async def go_on(peer: Peer, scram: ScramClient) -> None:
    """AUTH with server-first, answered by client-final [MQTT-4.12.0-2] [MQTT-4.12.0-3]."""
    challenge = await peer.expect(Auth, reason_code=0x18)
    assert challenge.properties[c.AUTHENTICATION_METHOD] == METHOD
    await peer.auth(
        0x18,
        {
            c.AUTHENTICATION_METHOD: METHOD,
            c.AUTHENTICATION_DATA: scram.final(challenge.properties[c.AUTHENTICATION_DATA]),
        },
    )


async def authenticated(clients: Clients, username: str = "ann", password: str = "secret", **options: Any) -> Peer:
    """A peer that has proved itself, and knows that the server has its keys [MQTT-4.12.0-5]."""
    scram = ScramClient(username, password)
    peer = await begin(clients, scram, **options)
    await go_on(peer, scram)
    connack = await peer.expect(Connack, reason_code=0)
    assert connack.properties[c.AUTHENTICATION_METHOD] == METHOD
    assert scram.verify(connack.properties[c.AUTHENTICATION_DATA])
    return peer


async def test_scram(clients: Clients) -> None:
    """[MQTT-4.12.0-2] [MQTT-4.12.0-5]; afterwards the client works."""
    peer = await authenticated(clients)
    await peer.subscribe(clients.topic, qos=1)
    await peer.publish(clients.topic, b"x", 1)
    await peer.answer(Publish, payload=b"x")


@pytest.mark.parametrize("username, password", [("ann", "wrong"), ("nobody", "secret"), ("bob", "secret")])
async def test_wrong_proof(clients: Clients, username: str, password: str) -> None:
    """CONNACK with 0x80 and more, then the end [MQTT-4.12.0-4]; whether the user exists does not show."""
    scram = ScramClient(username, password)
    peer = await begin(clients, scram)
    await go_on(peer, scram)
    connack = await peer.expect(Connack, session_present=False)
    assert connack.reason_code in (0x86, 0x87)
    assert c.REASON_STRING not in connack.properties
    await peer.expect_closed()


@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "", "scram-sha-256", "PLAIN"])
async def test_unknown_method(clients: Clients, method: str) -> None:
    """0x8C [MQTT-4.12.0-1]"""
    peer = await begin(clients, ScramClient("ann", "secret"), method)
    await peer.expect(Connack, reason_code=0x8C)
    await peer.expect_closed()


@pytest.mark.parametrize("data", [b"", b"n", b"\xff\xfe", b"n,,", b"n,,n=ann", b"p=x,,n=ann,r=a", b"x" * 20_000])
async def test_bad_client_first(clients: Clients, data: bytes) -> None:
    """[MQTT-4.12.0-4]"""
    peer = await clients.open()
    properties = {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: data}
    await peer.send(Connect(5, clients.name(), properties=properties))
    connack = await peer.expect(Connack)
    assert connack.reason_code in (0x82, 0x86, 0x87)
    await peer.expect_closed()


@pytest.mark.parametrize("data", [b"", b"c=biws", b"\xff", b"c=biws,r=wrong,p=AAAA"])
async def test_bad_client_final(clients: Clients, data: bytes) -> None:
    """[MQTT-4.12.0-4]"""
    peer = await begin(clients, ScramClient("ann", "secret"))
    await peer.expect(Auth, reason_code=0x18)
    await peer.auth(0x18, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: data})
    connack = await peer.expect(Connack)
    assert connack.reason_code in (0x82, 0x86, 0x87)
    await peer.expect_closed()


@pytest.mark.parametrize(
    "packet", [Pingreq(), Publish("a", b"x"), Subscribe(1, [TopicFilter("a")]), Connect(5, "again")]
)
async def test_other_packets_before_connack(clients: Clients, packet: Any) -> None:
    """Only AUTH and DISCONNECT may be sent; closed, perhaps after a CONNACK with 0x82 [MQTT-3.1.4-6]."""
    peer = await begin(clients, ScramClient("ann", "secret"))
    await peer.expect(Auth, reason_code=0x18)
    await peer.send(packet)
    try:
        await peer.expect_closed()
    except AssertionError:
        assert peer.raw[:1] == b"\x20" and peer.raw[3] == 0x82
        await peer.expect_closed()


@pytest.mark.parametrize("reason_code, method", [(0x00, METHOD), (0x19, METHOD), (0x18, "PLAIN"), (0x18, None)])
async def test_wrong_auth_before_connack(clients: Clients, reason_code: int, method: str | None) -> None:
    """0x18 and the same method [MQTT-4.12.0-3] [MQTT-4.12.0-5] [MQTT-3.15.2-1]."""
    peer = await begin(clients, ScramClient("ann", "secret"))
    await peer.expect(Auth, reason_code=0x18)
    properties = {c.AUTHENTICATION_DATA: b"x"}
    await peer.auth(reason_code, properties if method is None else {c.AUTHENTICATION_METHOD: method, **properties})
    try:
        await peer.expect_closed()
    except AssertionError:
        assert peer.raw[:1] == b"\x20" and peer.raw[3] in (0x81, 0x82)
        await peer.expect_closed()


async def test_disconnect_before_connack(clients: Clients) -> None:
    peer = await begin(clients, ScramClient("ann", "secret"))
    await peer.expect(Auth, reason_code=0x18)
    await peer.send(b"\xe0\x00")
    await peer.expect_closed()


async def test_no_will_before_connack(clients: Clients) -> None:
    """A client that failed was never connected."""
    watcher = await authenticated(clients)
    await watcher.subscribe(f"{clients.topic}/will")
    peer = await begin(clients, ScramClient("ann", "wrong"), will=Will(f"{clients.topic}/will", b"x"))
    await peer.expect(Auth)
    await peer.drop()
    await watcher.nothing()


async def test_old_session_stays_until_the_proof(clients: Clients) -> None:
    """Who cannot authenticate takes nobody over."""
    victim = await authenticated(clients)
    thief = await clients.open()
    scram = ScramClient("ann", "wrong")
    properties = {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: scram.first()}
    await thief.send(Connect(5, victim.client_id, properties=properties))
    await go_on(thief, scram)
    await thief.expect(Connack)
    await victim.nothing()


async def test_exchange_must_end_in_time(clients: Clients) -> None:
    """Silence in the middle is cut off like silence before CONNECT."""
    if clients.node.external:
        pytest.skip("takes ten seconds")
    peer = await begin(clients, ScramClient("ann", "secret"))
    await peer.expect(Auth)
    await clients.pass_time(11)
    await clients.pass_time(0.1)  # what lies in the socket is read before
    try:
        await peer.expect_closed()
    except AssertionError:
        assert peer.raw[:1] == b"\x20"
        await peer.expect_closed()


# --- re-authentication ------------------------------------------------------------------------------------------------


async def test_re_authentication(clients: Clients) -> None:
    """0x19, then 0x18, then 0x00; other traffic goes on meanwhile."""
    peer = await authenticated(clients)
    await peer.subscribe(clients.topic)
    scram = ScramClient("ann", "secret", "anothernonce")
    await peer.auth(0x19, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: scram.first()})
    await peer.publish(clients.topic, b"meanwhile", 0)
    challenge = await peer.answer(Auth, reason_code=0x18)
    await peer.answer(Publish, payload=b"meanwhile")
    data = scram.final(challenge.properties[c.AUTHENTICATION_DATA])
    await peer.auth(0x18, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: data})
    done = await peer.expect(Auth, reason_code=0)
    assert done.properties[c.AUTHENTICATION_METHOD] == METHOD
    assert scram.verify(done.properties[c.AUTHENTICATION_DATA])
    await peer.nothing()


@pytest.mark.parametrize("username, password", [("ann", "wrong"), ("bob", "other")])
async def test_re_authentication_fails(clients: Clients, username: str, password: str) -> None:
    """DISCONNECT 0x87, also where the client proves to be somebody else [MQTT-4.12.1-2]; the Will goes out."""
    watcher = await authenticated(clients)
    await watcher.subscribe(f"{clients.topic}/will")
    peer = await authenticated(clients, will=Will(f"{clients.topic}/will", b"gone"))
    scram = ScramClient(username, password)
    await peer.auth(0x19, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: scram.first()})
    packet = await peer.receive()
    if isinstance(packet, Auth):
        data = scram.final(packet.properties[c.AUTHENTICATION_DATA])
        await peer.auth(0x18, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: data})
        await peer.expect_disconnect(0x87)
    else:
        assert peer.raw[0] == 0xE0 and peer.raw[2] == 0x87
        await peer.expect_closed()
    await watcher.expect_publish(f"{clients.topic}/will", b"gone")


@pytest.mark.parametrize(
    "reason_code, method",
    [(0x19, "PLAIN"), (0x19, None), (0x18, METHOD), (0x00, METHOD), (0x55, METHOD)],
    ids=["other method", "no method", "0x18 out of place", "0x00", "unknown code"],
)
async def test_bad_re_authentication(clients: Clients, reason_code: int, method: str | None) -> None:
    """[MQTT-4.12.1-1] [MQTT-3.15.2-1]"""
    peer = await authenticated(clients)
    scram = ScramClient("ann", "secret")
    properties = {c.AUTHENTICATION_DATA: scram.first()}
    await peer.auth(reason_code, properties if method is None else {c.AUTHENTICATION_METHOD: method, **properties})
    await peer.expect_disconnect(0x82, 0x87, 0x8C)


async def test_auth_with_header_flags(clients: Clients) -> None:
    """[MQTT-3.15.1-1]"""
    peer = await authenticated(clients)
    await peer.send(b"\xf1\x00")
    await peer.expect_disconnect(0x81, 0x82)


async def test_without_method_there_is_no_auth(clients_of: StartClients) -> None:
    """The server sends neither AUTH nor the property; AUTH from the client is 0x82 [MQTT-4.12.0-6] [MQTT-4.12.0-7]."""
    clients = await clients_of(access=SETTINGS["access"], zone={"allow_anonymous": True})
    peer = await clients.connect()
    assert c.AUTHENTICATION_METHOD not in peer.connack.properties
    assert c.AUTHENTICATION_DATA not in peer.connack.properties
    await peer.auth(0x19, {c.AUTHENTICATION_METHOD: METHOD, c.AUTHENTICATION_DATA: b"n,,n=ann,r=abc"})
    await peer.expect_disconnect(0x82)


async def test_no_method_configured(clients_of: StartClients) -> None:
    """A node without SCRAM users knows no method [MQTT-4.12.0-1]."""
    clients = await clients_of()
    peer = await begin(clients, ScramClient("ann", "secret"))
    await peer.expect(Connack, reason_code=0x8C)
    await peer.expect_closed()


async def test_who_is_banned_by_the_name_that_the_exchange_told(clients: Clients) -> None:
    if isinstance(clients.node, ExternalNode):
        pytest.skip("bans a user inside of this process")
    banned = clients.server.banned
    banned.put(Ban("username", "bob", "test", "why", 0.0, clients.node.clock.now() + 100))
    scram = ScramClient("bob", "other")
    peer = await begin(clients, scram)
    await go_on(peer, scram)
    await peer.expect(Connack, reason_code=0x8A)
    banned.remove("username", "bob")
    await authenticated(clients, "bob", "other")
