"""A listener at a Unix socket: who may come in, who a client is, and what becomes of the file."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import paho.mqtt.client as paho
import pytest

from taipan.broker.access.banned import CLIENT_ID, PEER_HOST, Ban
from taipan.broker.access.guesses import name_key
from taipan.broker.mqtt.packets import Connect
from tests.support.absent import absent
from tests.support.clients import Clients
from tests.support.peer import TIMEOUT
from tests.support.reason_codes import bad_credentials
from tests.support.waiting import until

from .test_passwords import USERS, code_of
from .until_quiet import payloads

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

Start = Callable[..., Awaitable[Clients]]
ME = f"uid-{os.getuid()}"
VERSIONS = {4: ("mqttv311", paho.MQTTv311), 5: ("mqttv5", paho.MQTTv5)}


@pytest.fixture(params=["unix"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mqtt.sock"


def at(path: Path, **keys: Any) -> list[dict[str, Any]]:
    return [{"type": "unix", "name": "local", "bind": str(path), **keys}, {"type": "tcp"}]


async def test_messages_of_every_qos(clients_of: Start, path: Path) -> None:
    """To clients of TCP and from them; also one of many pieces, which the socket does not take at once."""
    clients = await clients_of(listeners=at(path))
    here, there = await clients.connect(), await clients.connect(transport="tcp")
    large = os.urandom(1_500_000)
    for publisher, subscriber in ((here, there), (there, here)):
        await subscriber.subscribe("a", qos=2)
        for qos in (0, 1, 2):
            await publisher.publish("a", b"x%d" % qos, qos)
            await subscriber.expect_publish("a", b"x%d" % qos, qos)
        await publisher.publish("a", large, 1)
        await subscriber.expect_publish("a", large, 1)
        await subscriber.unsubscribe("a")


async def test_who_the_client_is(clients_of: Start, path: Path) -> None:
    """Its user and its process, as the system vouches for them, stand where others have address and port."""
    clients = await clients_of(listeners=at(path))
    name = clients.name()
    await clients.connect(name)
    client = clients.server.context.channels[name].client
    assert (client.peer_host, client.peer_port, client.peer) == (ME, os.getpid(), f"{ME}:{os.getpid()}")
    assert (client.sock_host, client.sock_port, client.listener, client.loopback) == (str(path), 0, "local", True)


async def test_a_client_whose_own_end_has_a_name(clients_of: Start, path: Path) -> None:
    """The name is no address, and nothing that it could choose is."""
    clients = await clients_of(listeners=at(path))
    mine = socket.socket(socket.AF_UNIX)
    mine.bind(str(path.with_name("mine.sock")))
    mine.connect(str(path))
    mine.setblocking(False)
    peer, name = clients.peer(), clients.name()
    peer.address = peer.address._replace(host=None)  # type: ignore[arg-type]
    await peer.open(sock=mine)
    await peer.connect(name)
    assert clients.server.context.channels[name].client.peer_host == ME


async def test_rules(clients_of: Start, path: Path) -> None:
    """A rule with an address concerns nobody here, and one with the name of the listener does."""
    rules = [
        {"allow": False, "address": "0.0.0.0/0"},
        {"allow": False, "listener": "local", "action": "publish", "topics": ["b"]},
    ]
    clients = await clients_of(listeners=at(path), access={"rules": rules})
    peer = await clients.connect()
    await peer.subscribe("+", qos=1)
    for topic in ("b", "a"):
        await peer.publish(topic, topic.encode(), 0)
    assert await payloads(peer) == [b"a"]


async def test_bans(clients_of: Start, path: Path) -> None:
    """Those of an address concern nobody here; those of an identifier do."""
    clients = await clients_of(listeners=at(path))
    banned = clients.server.banned
    banned.put(Ban(PEER_HOST, "127.0.0.1", "tester", "", 0, 2**40))
    banned.put(Ban(CLIENT_ID, "banned", "tester", "", 0, 2**40))
    await clients.connect()
    await clients.connect("banned", expect=0x8A if clients.version == 5 else 5)


async def test_wrong_passwords_slow_the_user_who_guesses(clients_of: Start, path: Path) -> None:
    """Those of one user of this machine are counted together, however many processes and sockets it has, and no other
    user waits for them."""
    clients = await clients_of(listeners=at(path), access={"users": USERS, "hash_cost": 10, "guesses": 2})
    guesses = clients.server.access.authentication.passwords.guesses
    for number in range(3):
        peer = await clients.open()
        await peer.send(Connect(clients.version, clients.name(), username=f"u{number}", password=b"wrong"))
        assert await code_of(peer) == bad_credentials(clients.version)
    nobody = name_key(b"another")
    assert guesses.delay(ME, nobody, False) > 0
    assert guesses.delay("uid-4294967294", nobody, False) == 0


async def test_the_limit_of_connections(clients_of: Start, path: Path) -> None:
    clients = await clients_of(listeners=at(path, max_connections=2))
    for _ in range(2):
        await clients.connect()
    third = await clients.open()
    await third.expect_closed()
    [listener] = [each for each in clients.server.listeners if each.name == "local"]
    assert listener.refused == {"max_connections": 1} and listener.current_connections == 2


async def test_memory_before_the_login_is_bounded(clients_of: Start, path: Path) -> None:
    """Those who hold most without having logged in are closed."""
    clients = await clients_of(listeners=at(path), zone={"max_connect_size": 262_144})
    before = clients.server.before_login
    before.limit = 100_000
    peers = [await clients.open() for _ in range(3)]
    for peer in peers:
        await peer.send(b"\x10\xff\xff\x0f" + bytes(60_000))
    await until(lambda: before.evicted > 0)
    assert before.bytes <= before.limit
    await clients.connect()


async def test_with_the_proxy_protocol(clients_of: Start, path: Path) -> None:
    """A load balancer beside the node: the client has the address that it announces."""
    clients = await clients_of(listeners=at(path, proxy_protocol=True), zone={"allow_anonymous": True})
    peer, name = await clients.open(), clients.name()
    await peer.send(b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 1883\r\n")
    await peer.connect(name)
    client = clients.server.context.channels[name].client
    assert (client.peer_host, client.peer_port) == ("203.0.113.7", 4711)


async def test_the_proxy_protocol_brings_clients_of_other_machines(clients_of: Start, path: Path) -> None:
    """Without ``allow_anonymous`` they need a username, as at any listener that others can reach."""
    clients = await clients_of(listeners=at(path, proxy_protocol=True))
    peer = await clients.open()
    await peer.send(b"PROXY TCP4 203.0.113.7 198.51.100.1 4711 1883\r\n")
    await peer.connect("c", expect=0x87 if clients.version == 5 else 5)
    plain = clients.server.settings.listeners[0]
    plain = msgspec.structs.replace(plain, proxy_protocol=False)
    settings = clients.server.settings
    clients.server.reload(msgspec.structs.replace(settings, listeners=[plain, *settings.listeners[1:]]))
    await clients.connect()


async def test_a_client_that_leaves_while_nothing_is_read(clients_of: Start, path: Path) -> None:
    """It is seen to leave, and one that stays is not taken for one that has left."""
    clients = await clients_of(listeners=at(path), zone={"message_rate": [1, 3600.0]})
    stays, leaves = clients.name(), clients.name()
    burst = b"\x30\x04\x00\x01ax" * 6000 if clients.version == 4 else b"\x30\x05\x00\x01a\x00x" * 6000
    peers = {name: await clients.connect(name) for name in (stays, leaves)}
    for peer in peers.values():
        await peer.send(burst)
    channels = clients.server.context.channels
    await until(lambda: all(channels[name].connection._peer_timer is not None for name in peers))  # type: ignore[attr-defined]
    peers[leaves].abort()
    for _ in range(3):
        await clients.pass_time(0.6)
    await until(lambda: leaves not in channels)
    assert stays in channels and not channels[stays].connection._leaving  # type: ignore[attr-defined]


async def test_listening_again(clients_of: Start, path: Path) -> None:
    """A restart from outside puts a new socket in its place; who is connected stays. A reload keeps the file."""
    clients = await clients_of(listeners=at(path))
    peer = await clients.connect()
    listener = clients.server.listeners[0]
    assert listener.prepare(listener.settings, listener.zone)
    before = path.stat().st_ino
    clients.server.reload(clients.server.settings)
    assert path.stat().st_ino == before
    await listener.stop()
    assert not path.exists()
    await listener.start()
    await clients.connect()
    await peer.nothing()


async def test_mosquitto_clients(clients_of: Start, path: Path) -> None:
    if shutil.which("mosquitto_pub") is None:
        absent("mosquitto_pub")
    clients = await clients_of(listeners=at(path))
    peer = await clients.connect()
    await peer.subscribe("a", qos=1)
    command = [
        "mosquitto_pub",
        "--unix",
        str(path),
        "-V",
        VERSIONS[clients.version][0],
        "-q",
        "1",
        "-t",
        "a",
        "-m",
        "x",
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    await peer.expect_publish("a", b"x", 1)


async def test_paho(clients_of: Start, path: Path) -> None:
    clients = await clients_of(listeners=at(path))
    peer = await clients.connect()
    await peer.subscribe("to/peer", qos=1)
    subscribed, received = Event(), Event()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=VERSIONS[clients.version][1], transport="unix")
    client.on_connect = lambda *_: client.subscribe("to/paho", 1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda *_: received.set()
    await asyncio.to_thread(client.connect, str(path), 1)
    client.loop_start()
    try:
        assert await asyncio.to_thread(subscribed.wait, TIMEOUT)
        await peer.publish("to/paho", b"x", 1)
        assert await asyncio.to_thread(received.wait, TIMEOUT)
        client.publish("to/peer", b"y", 1)
        await peer.expect_publish("to/peer", b"y", 1)
        client.disconnect()
    finally:
        await asyncio.to_thread(client.loop_stop)
