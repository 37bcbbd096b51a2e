"""Settings that change what clients see and belong to no other scenario."""

import asyncio

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from tests.support.clients import StartClients, tcp, v4, v5
from tests.support.peer import Closed, Peer
from tests.support.users import PASSWORD, users
from tests.support.wire import Publish

pytestmark = [pytest.mark.asyncio(loop_scope="module"), tcp]


async def test_mount_point(clients_of: StartClients) -> None:
    """Put before every topic and filter of a client, and taken off what it gets; ``%c`` and ``%u`` are filled in."""
    clients = await clients_of(zone={"mountpoint": "of/%u/"}, access={"users": users("ann", "bob")})
    ann = await clients.connect(username="ann", password=PASSWORD, will=Will("will", b"gone"))
    also_ann = await clients.connect(username="ann", password=PASSWORD)
    bob = await clients.connect(username="bob", password=PASSWORD)
    for peer in (ann, also_ann, bob):
        await peer.subscribe("#", qos=1)
    await ann.publish("a", b"x", 1, retain=True)
    for peer in (ann, also_ann):
        await peer.expect_publish("a", b"x", 1)
    await bob.nothing()
    await ann.drop()
    await also_ann.expect_publish("will", b"gone")
    await bob.nothing()
    late = await clients.connect(username="ann", password=PASSWORD)
    await late.subscribe("a", "$share/g/a", expect=[0, 0])
    await late.expect_publish("a", b"x", retain=True)
    await late.unsubscribe("a", "$share/g/a")
    await late.publish("a", b"y", 1)
    await late.nothing()


@pytest.mark.parametrize("name", ["#", "+", "+/+", "victim/#", "victim/x", "%u", "%c"])
async def test_mount_point_cannot_be_escaped(clients_of: StartClients, name: str) -> None:
    """A name with wildcards, levels or placeholders widens nothing: it is refused, or nobody else is seen by it."""
    clients = await clients_of(zone={"mountpoint": "%c/"})
    victim = await clients.connect("victim")
    await victim.subscribe("#")
    peer = clients.peer()
    await peer.connect(name, expect=None)
    if peer.connack.reason_code:
        assert peer.connack.reason_code == (0x85 if clients.version == 5 else 2)
        return
    await peer.subscribe("#")
    await peer.publish("a", b"mine", 0)
    await peer.expect_publish("a", b"mine")
    await victim.publish("x/a", b"secret", 0)
    await victim.expect_publish("x/a", b"secret")
    await victim.nothing()
    await peer.nothing()


@v4
async def test_ignore_loop_deliver(clients_of: StartClients) -> None:
    """No Local for 3.x clients, who cannot ask for it."""
    clients = await clients_of(zone={"ignore_loop_deliver": True})
    peer, other = await clients.connect(), await clients.connect()
    for each in (peer, other):
        await each.subscribe("a")
    await peer.publish("a", b"x")
    await other.expect_publish("a", b"x")
    await peer.nothing()


@v4
@pytest.mark.parametrize("level", [3, 4])
async def test_bridges(clients_of: StartClients, level: int) -> None:
    """Levels 0x83 and 0x84: nothing of its own comes back, and RETAIN stays as published."""
    clients = await clients_of()
    bridge = await clients.connect(version=level, is_bridge=True)
    peer = await clients.connect()
    for each in (bridge, peer):
        await each.subscribe("#", qos=1)
    await bridge.publish("a", b"x", 1)
    await peer.expect_publish("a", b"x", 1)
    await bridge.nothing()
    await peer.publish("b", b"kept", 1, retain=True)
    await bridge.expect_publish("b", b"kept", 1, retain=True)
    await peer.expect_publish("b", b"kept", 1, retain=False)
    await peer.publish("c", b"live", 1)
    await bridge.expect_publish("c", b"live", 1, retain=False)


async def test_byte_rate(clients_of: StartClients) -> None:
    """A client over its rate is read more slowly, and loses nothing."""
    clients = await clients_of(zone={"byte_rate": [10_000, 0.1]})
    peer, watcher = await clients.connect(), await clients.connect()
    await watcher.subscribe("a")
    for number in range(20):
        await peer.send(Publish("a", b"%d" % number + bytes(1000)))
    for number in range(20):
        await watcher.expect_publish("a", b"%d" % number + bytes(1000))


@v5
async def test_suback_denied_code(clients_of: StartClients) -> None:
    clients = await clients_of(
        zone={"suback_denied_code": 0x80},
        access={"rules": [{"allow": False, "action": "subscribe", "topics": ["test/nosubscribe"]}]},
    )
    peer = await clients.connect()
    await peer.subscribe("test/nosubscribe", "test/other", expect=[0x80, 0])


async def test_delayed_publish(clients_of: StartClients) -> None:
    """``$delayed/<seconds>/<topic>`` comes when its time has come, retained where asked."""
    clients = await clients_of()
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe("#", qos=1)
    await publisher.publish("$delayed/10/a/b", b"x", 1, retain=True)
    await clients.pass_time(9)
    await peer.nothing()
    await clients.pass_time(2)
    await peer.expect_publish("a/b", b"x", 1)
    late = await clients.connect()
    await late.subscribe("a/b", qos=1)
    await late.expect_publish("a/b", b"x", 1, retain=True)


async def test_delayed_publish_is_subject_to_access_rules(clients_of: StartClients) -> None:
    """The rules of the topic behind it."""
    clients = await clients_of(access={"rules": [{"allow": False, "action": "publish", "topics": ["no/#"]}]})
    peer, publisher = await clients.connect(), await clients.connect()
    await peer.subscribe("#")
    code = await publisher.publish("$delayed/1/no/way", b"x", 1, expect=None)
    assert code == (0x87 if clients.version == 5 else 0)
    await clients.pass_time(3)
    await peer.nothing()


async def test_rules_by_user_and_client(clients_of: StartClients) -> None:
    """First match wins; placeholders are the client's own name and never a wildcard."""
    rules = [
        {"allow": True, "topics": ["of/%c/#"]},
        {"allow": True, "topics": ["all"], "username": "ann"},
        {"allow": True, "action": "subscribe", "topics": ["all", "of/#"], "client_id": "watcher"},
        {"allow": False},
    ]
    clients = await clients_of(access={"rules": rules, "users": users("ann")})
    denied = 0x87 if clients.version == 5 else 0x80
    watcher = await clients.connect("watcher")
    await watcher.subscribe("all", "of/#", "else", expect=[0, 0, denied])
    peer = await clients.connect("peer", username="ann", password=PASSWORD)
    await peer.publish("of/peer/a", b"1", 1)
    await watcher.expect_publish("of/peer/a", b"1")
    await peer.publish("all", b"2", 1)
    await watcher.expect_publish("all", b"2")
    await peer.publish("of/other/a", b"3", 1, expect=None)
    await watcher.nothing()
    joker = await clients.connect("+")
    await joker.publish("of/peer/a", b"4", 1, expect=None)
    await watcher.nothing()


@v5
async def test_slow_reader_is_closed(clients_of: StartClients) -> None:
    """A socket that takes nothing for so long, although much waits for it."""
    clients = await clients_of(zone={"slow_reader_timeout": 30, "max_outbox_bytes": 1_000_000})
    slow, publisher = await clients.connect(properties={c.SESSION_EXPIRY_INTERVAL: 100}), await clients.connect()
    await slow.subscribe("a")
    for _ in range(40):
        await publisher.publish("a", bytes(500_000))
    for _ in range(4):
        await clients.pass_time(31)
        await asyncio.sleep(0)
    assert await _read_to_the_end(slow)
    await publisher.nothing()
    again = await clients.connect(slow.client_id, False, session_present=True)
    await again.nothing()


async def test_slow_reader_gets_qos_1_complete(clients_of: StartClients) -> None:
    """What is queued for a full socket comes when it is read again, in order."""
    clients = await clients_of(zone={"max_outbox_bytes": 300_000, "max_inflight": 5})
    slow, publisher = await clients.connect(), await clients.connect()
    await slow.subscribe("a", qos=1)
    for number in range(40):
        await publisher.publish("a", b"%d " % number + bytes(200_000), 1)
    for number in range(40):
        got = await slow.expect_publish("a", qos=1)
        assert int(got.payload.split()[0]) == number


async def _read_to_the_end(peer: Peer) -> bool:
    """Takes what still comes; whether the connection ended."""
    try:
        while True:
            await peer.receive()
    except Closed:
        return True
    except TimeoutError:
        return False
