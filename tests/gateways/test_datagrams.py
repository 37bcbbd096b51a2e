"""A gateway whose listener receives datagrams: its clients are like any other, and a flood of forged addresses costs
little. The package is ``line_gateway``, over UDP."""

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker import gateway as gateways
from taipan.broker.access.banned import CLIENT_ID, Ban
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.gateway import Gateway, kind_of
from taipan.broker.listener_kinds import LISTENER_KINDS, ListenerKind
from taipan.broker.transport import datagrams
from taipan.broker.transport.listener import ListenerError
from taipan.management.node import main
from tests.support.api import ManagedNode, managed_node
from tests.support.patience import patience
from tests.support.peer import TIMEOUT
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60)]

PACKAGE = Path(__file__).parent / "line_gateway"
HASH = str(ScryptHash.create(b"secret", 1 << 10))


class Thing(asyncio.DatagramProtocol):
    """A client: one address, and the datagrams that have come to it."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.inbox.put_nowait(data)

    @property
    def port(self) -> int:
        port: int = self.transport.get_extra_info("sockname")[1]
        return port

    def say(self, line: str) -> None:
        self.transport.sendto(line.encode() + b"\n")

    async def hear(self) -> str:
        return (await asyncio.wait_for(self.inbox.get(), patience(TIMEOUT))).decode().rstrip("\n")

    async def ask(self, line: str) -> str:
        self.say(line)
        return await self.hear()


class Things:
    """``node`` has a listener of datagrams beside one of MQTT."""

    def __init__(self) -> None:
        self._all: list[Thing] = []

    async def client(self, node: ManagedNode) -> Thing:
        loop = asyncio.get_running_loop()
        where = the_listener(node).bind
        _, thing = await loop.create_datagram_endpoint(Thing, remote_addr=where)
        self._all.append(thing)
        return thing

    async def connected(self, node: ManagedNode, client_id: str) -> Thing:
        thing = await self.client(node)
        assert await thing.ask(f"CONNECT {client_id}") == "OK"
        return thing

    async def close(self) -> None:
        for thing in self._all:
            thing.transport.abort()
        await asyncio.sleep(0)


def the_listener(node: ManagedNode) -> Any:
    [listener] = [each for each in node.server.listeners if each.type == "line-udp"]
    return listener


def forget() -> None:
    for name in ("line", "line-udp"):
        LISTENER_KINDS.pop(name, None)
        gateways.GATEWAYS.pop(name, None)
    sys.modules.pop("line_gateway", None)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, and what pip writes down about it."""
    folder = tmp_path / "site"
    made = folder / "line_gateway-1.0.dist-info"
    made.mkdir(parents=True)
    (folder / "line_gateway.py").write_text((PACKAGE / "line_gateway.py").read_text("utf-8"), "utf-8")
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: line-gateway\nVersion: 1.0\n", "utf-8")
    (made / "entry_points.txt").write_text("[taipan.gateways]\nline-udp = line_gateway:DATAGRAMS\n", "utf-8")
    monkeypatch.syspath_prepend(str(folder))
    forget()
    assert kind_of("line-udp") is not None
    yield
    forget()


@pytest_asyncio.fixture
async def things(installed: None) -> AsyncIterator[Things]:
    made = Things()
    yield made
    await made.close()


def start(**settings: Any) -> Any:
    own = settings.pop("listener", {})
    listeners = [{"type": "tcp"}, {"type": "line-udp", "name": "things", **own}]
    return managed_node(listeners=listeners, **settings)


@pytest.mark.asyncio
async def test_messages_between_the_protocols(things: Things) -> None:
    async with start() as node:
        thing, other, peer = (
            await things.connected(node, "a"),
            await things.connected(node, "b"),
            await node.client("m"),
        )
        assert await thing.ask("SUB garden/#") == "OK"
        await peer.subscribe("garden/#", qos=1)
        await peer.publish("garden/soil", b"21", 1)
        await peer.expect_publish("garden/soil", b"21", 1)
        assert await thing.hear() == "MSG garden/soil 21"
        assert await other.ask("PUB garden/air 22") == "OK"
        assert await thing.hear() == "MSG garden/air 22"
        await peer.expect_publish("garden/air", b"22", 1)
        assert await thing.ask("PING") == "PONG"
        [row] = (await node.api.get("/clients/a")).data
        assert (row["proto_name"], row["ip_address"], row["port"]) == ("LINE", "127.0.0.1", thing.port)
        assert the_listener(node).refused == {}


@pytest.mark.asyncio
async def test_ipv6(things: Things) -> None:
    """The address of a client has four parts there; everything that shows or limits it has two."""
    async with start(listener={"bind": "[::1]:0", "max_connections": 1}) as node:
        thing = await things.connected(node, "a")
        assert await thing.ask("SUB garden/#") == "OK"
        thing.say("PUB garden/soil 21")
        assert {await thing.hear(), await thing.hear()} == {"OK", "MSG garden/soil 21"}
        [row] = (await node.api.get("/clients/a")).data
        assert (row["ip_address"], row["port"]) == ("::1", thing.port)
        other = await things.client(node)
        other.say("CONNECT b")
        await until(lambda: the_listener(node).refused == {"max_connections": 1})
        await node.api.delete("/clients/a")
        assert await thing.hear() == "END 152"
        await until(lambda: the_listener(node).current_connections == 0)
        assert await other.ask("CONNECT b") == "OK"


@pytest.mark.asyncio
async def test_users_rules_bans_kicks_and_takeover(things: Things) -> None:
    users = [{"username": "ann", "password_hash": HASH}]
    rules = [{"allow": False, "action": "publish", "topics": ["no/#"], "username": "ann"}]
    async with start(access={"users": users, "rules": rules}) as node:
        thing = await things.client(node)
        assert await thing.ask("CONNECT a ann wrong") == "NO 134"
        # The same address again, by a conversation of its own.
        assert await thing.ask("CONNECT a ann secret") == "OK"
        assert await thing.ask("PUB no/way 1") == "NO 135"
        assert await thing.ask("PUB some/way 1") == "OK"
        second = await things.client(node)
        assert await second.ask("CONNECT a ann secret") == "OK"
        assert await thing.hear() == "END 142"
        assert (await node.api.delete("/clients/a")).code == 0
        assert await second.hear() == "END 152"
        node.server.banned.put(Ban(CLIENT_ID, "a", "tester", "", 0, 2**40))
        assert await second.ask("CONNECT a ann secret") == "NO 138"


@pytest.mark.asyncio
async def test_stop_and_restart(things: Things) -> None:
    """A stopped listener serves the clients that it has, and no new ones; then its port is free."""
    async with start() as node:
        listener = the_listener(node)
        thing = await things.connected(node, "a")
        rows = {each["identifier"]: each for each in (await node.api.get(f"/nodes/{node.name}/listeners")).data}
        row = rows["line:udp:things"]
        assert (row["protocol"], row["current_conns"]) == ("line:udp", 1)
        host, port = listener.bind
        assert (await node.api.put("/listeners/line:udp:things/restart")).code == 0
        assert listener.bind == (host, port) and await thing.ask("PING") == "PONG"
        assert (await node.api.put("/listeners/line:udp:things/stop")).code == 0
        assert not listener.running and await thing.ask("PING") == "PONG"
        new = await things.client(node)
        new.say("CONNECT b")
        assert await thing.ask("PING") == "PONG"
        assert new.inbox.empty() and listener.current_connections == 1
        thing.say("BYE")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

            def free() -> bool:
                try:
                    sock.bind((host, port))
                except OSError:
                    return False
                return True

            await until(free)
            with pytest.raises(ListenerError, match="cannot bind"):
                await listener.start()
        assert (await node.api.put("/listeners/line:udp:things/restart")).code == 0
        assert await new.ask("CONNECT b") == "OK"


@pytest.mark.asyncio
async def test_the_stop_of_the_node(things: Things) -> None:
    async with start() as node:
        thing = await things.connected(node, "a")
        stopping = asyncio.ensure_future(node.server.disconnect_clients())
        assert await thing.hear() == "END 139"
        await stopping
        assert not node.server.connections


@pytest.mark.asyncio
async def test_limits_of_connections_and_of_their_rate(things: Things, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taipan")
    async with start(listener={"max_connections": 1}) as node:
        thing, other = await things.connected(node, "a"), await things.client(node)
        other.say("CONNECT b")
        await until(lambda: the_listener(node).refused == {"max_connections": 1})
        assert "listener_limit listener=things reason=max_connections count=1" in caplog.text
        thing.say("BYE")
        await until(lambda: the_listener(node).current_connections == 0)
        assert await other.ask("CONNECT b") == "OK"
    async with start(listener={"accept_rate": 1}) as node:
        await node.stand_still()
        await things.connected(node, "a")
        other = await things.client(node)
        other.say("CONNECT b")
        await until(lambda: the_listener(node).refused == {"accept_rate": 1})
        await node.pass_time(1)
        assert await other.ask("CONNECT b") == "OK"


@pytest.mark.asyncio
async def test_before_the_login(things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few clients without a login, in time, without more bytes than they have sent, and within their memory."""
    monkeypatch.setattr(datagrams, "MAX_NEWCOMERS", 3)
    zone = {"idle_timeout": 5.0, "max_connect_size": 100_000}
    async with start(zone=zone, listener={"gateway": {"greeting": "long" * 30}}) as node:
        listener = the_listener(node)
        stays = await things.connected(node, "stays")
        assert listener.refused == {"amplification": 1}  # the greeting
        for number in range(5):
            (await things.client(node)).say("WILL topic " + "x" * 30_000)
            await until(lambda wanted=number + 2: listener.accepted == wanted)
        await until(lambda: listener.current_connections == 4)
        assert listener.refused["newcomers"] == 2
        assert 3 * 30_000 < node.server.before_login.bytes < 4 * 31_000
        node.server.before_login.make_room(31_000)
        await until(lambda: listener.current_connections == 2)
        await node.pass_time(6)
        await node.pass_time(1)
        await until(lambda: listener.current_connections == 1)
        assert node.server.before_login.bytes == 0
        assert await stays.ask("PING") == "PONG"


@pytest.mark.asyncio
async def test_a_client_that_is_not_read(things: Things) -> None:
    """While the node does not read from it, some of its datagrams wait; what exceeds their memory is dropped and
    counted."""
    async with start() as node:
        await node.stand_still()
        thing = await things.connected(node, "a")
        [connection] = node.server.connections
        assert connection.pause_reading(1.0)
        for _ in range(4):
            thing.say("PUB a " + "x" * 20_000)
        await until(lambda: the_listener(node).refused == {"datagrams_dropped": 1})
        assert 60_000 < connection.buffered_bytes < 90_000 and thing.inbox.empty()
        await node.pass_time(2)
        assert [await thing.hear() for _ in range(3)] == ["OK"] * 3
        assert connection.buffered_bytes < 60_000  # nothing but the last read


@pytest.mark.asyncio
async def test_a_datagram_is_whole(things: Things) -> None:
    """What a conversation leaves of one is not put before the next; an empty one is nothing."""
    async with start() as node:
        thing = await things.connected(node, "a")
        thing.transport.sendto(b"PUB half")
        thing.transport.sendto(b"")
        assert await thing.ask("PING") == "PONG"
        assert await thing.ask("NONSENSE") == "END 129"
        assert await thing.ask("CONNECT a") == "OK"


@pytest.mark.asyncio
async def test_what_cannot_be_sent_is_counted(things: Things) -> None:
    async with start() as node:
        thing, peer = await things.connected(node, "a"), await node.client("m")
        assert await thing.ask("SUB #") == "OK"
        await peer.publish("a", b"x" * 70_000, 1)
        await until(lambda: the_listener(node).refused == {"datagrams_unsent": 1})
        assert await thing.ask("PING") == "PONG"


def test_configurations(installed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may have the port of a listener of streams, and none of the keys of streams."""
    file = tmp_path / "taipan.toml"

    def check(table: str) -> str:
        file.write_text(
            '[management]\nbind = "127.0.0.1:0"\n[dashboard]\nbind = "127.0.0.1:0"\n'
            '[[listeners]]\nname = "mqtt"\ntype = "tcp"\nbind = "127.0.0.1:2883"\n'
            f'[[listeners]]\nname = "things"\ntype = "line-udp"\nbind = "127.0.0.1:2883"\n{table}'
        )
        main(["check", str(file)])
        return capsys.readouterr().err

    assert check("") == ""
    for key in ("backlog = 5", "proxy_protocol = true", "nodelay = true"):
        told = f"listeners.1.{key.split()[0]}: only tcp, ssl, ws, wss and unix listeners accept this key"
        assert told in check(key)
    second = '[[listeners]]\nname = "more"\ntype = "line-udp"\nbind = "127.0.0.1:2883"\n'
    assert "listeners.2.bind" in check(second)


def test_kinds_that_cannot_be() -> None:
    kind = ListenerKind(name="x", protocol="x:udp", scheme="x", datagram=True, local=True)
    with pytest.raises(ValueError, match="a datagram listener has no Unix socket"):
        Gateway(name="x", listener=kind, channel=lambda link, settings: None, proto_name="X", proto_ver=1)  # type: ignore[arg-type, return-value]
