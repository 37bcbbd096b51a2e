"""The contract of gateways, shown with a package from outside: what the broker does for a client of MQTT it does for
theirs. ``line_gateway`` is found by its entry point, as an installed package is."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import pytest_asyncio

from taipan.broker import gateway as gateways
from taipan.broker.access.banned import CLIENT_ID, PEER_HOST, Ban
from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.gateway import GatewayLoadError, kind_of
from taipan.broker.listener_kinds import LISTENER_KINDS
from taipan.broker.transport.listener import ListenerError
from taipan.management.node import main
from tests.support.api import ManagedNode, managed_node
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import TIMEOUT
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60)]

PACKAGE = Path(__file__).parent / "line_gateway"
HASH = str(ScryptHash.create(b"secret", 1 << 10))


class Lines:
    """A client of the protocol."""

    all: ClassVar[list["Lines"]] = []

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port
        self.all.append(self)

    async def open(self) -> "Lines":
        self._reader, self._writer = await asyncio.open_connection(*self._where)
        return self

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def say(self, *lines: str) -> None:
        self.send("".join(f"{line}\n" for line in lines).encode())

    async def hear(self) -> str:
        """The next line; empty: the connection is over."""
        line = await asyncio.wait_for(self._reader.readline(), patience(TIMEOUT))
        return line.decode().rstrip("\n")

    async def hear_two(self) -> set[str]:
        return {await self.hear(), await self.hear()}

    async def ask(self, *lines: str) -> str:
        self.say(*lines)
        return await self.hear()

    def drop(self) -> None:
        self._writer.transport.abort()
        self._writer.close()


def install(folder: Path, value: str = "line_gateway:GATEWAY") -> None:
    """The package, and what pip writes down about it."""
    (folder / "line_gateway.py").write_text((PACKAGE / "line_gateway.py").read_text("utf-8"), "utf-8")
    made = folder / "line_gateway-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: line-gateway\nVersion: 1.0\n", "utf-8")
    (made / "entry_points.txt").write_text(f"[taipan.gateways]\nline = {value}\n", "utf-8")


def forget() -> None:
    LISTENER_KINDS.pop("line", None)
    gateways.GATEWAYS.pop("line", None)
    sys.modules.pop("line_gateway", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed."""
    made = tmp_path / "site"
    made.mkdir()
    monkeypatch.syspath_prepend(str(made))
    forget()
    yield made
    forget()


@pytest.fixture
def line(folder: Path) -> None:
    install(folder)
    assert kind_of("line") is not None


@pytest_asyncio.fixture(autouse=True)
async def _no_client_stays() -> AsyncIterator[None]:
    yield
    while Lines.all:
        Lines.all.pop().drop()
    await asyncio.sleep(0)


class LineNode:
    """``node`` has a listener of lines beside one of MQTT."""

    def __init__(self, node: ManagedNode) -> None:
        self.node = node

    async def client(self) -> Lines:
        [listener] = [each for each in self.node.server.listeners if each.type == "line"]
        return await Lines(*listener.bind).open()

    async def connected(self, client_id: str) -> Lines:
        client = await self.client()
        assert await client.ask(f"CONNECT {client_id}") == "OK"
        return client


async def start(**settings: Any) -> Any:
    table = settings.pop("gateway", {})
    listeners = [{"type": "tcp"}, {"type": "line", "name": "lines", "gateway": table}]
    return managed_node(listeners=listeners, **settings)


@pytest.mark.asyncio
async def test_messages_between_the_protocols(line: None) -> None:
    async with await start() as node:
        lines, peer = await LineNode(node).connected("pump"), await node.client("mqtt")
        assert await lines.ask("SUB garden/#") == "OK"
        await peer.subscribe("garden/#", qos=1)
        await peer.publish("garden/soil", b"21", 1)
        await peer.expect_publish("garden/soil", b"21", 1)
        assert await lines.hear() == "MSG garden/soil 21"
        lines.say("PUB garden/air 22")
        assert await lines.hear_two() == {"OK", "MSG garden/air 22"}
        await peer.expect_publish("garden/air", b"22", 1)
        assert await lines.ask("PING") == "PONG"
        before = node.server.metrics.snapshot()
        assert before["messages.received"] >= 2 and before["client.connected"] == 2


@pytest.mark.asyncio
async def test_records(line: None) -> None:
    async with await start() as node:
        lines = await LineNode(node).connected("pump")
        [row] = (await node.api.get("/clients/pump")).data
        assert (row["proto_name"], row["proto_ver"], row["ip_address"]) == ("LINE", 1, "127.0.0.1")
        assert (row["recv_pkt"], row["connected"]) == (1, True)
        rows = {each["identifier"]: each for each in (await node.api.get(f"/nodes/{node.name}/listeners")).data}
        assert (rows["line:tcp:lines"]["protocol"], rows["line:tcp:lines"]["current_conns"]) == ("line:tcp", 1)
        assert (await node.api.put("/listeners/line:tcp:lines/restart")).code == 0
        assert await lines.ask("PING") == "PONG"


@pytest.mark.asyncio
async def test_users_and_rules(line: None) -> None:
    """Refusals are told, logged, and explained like those of MQTT."""
    users = [{"username": "ann", "password_hash": HASH}]
    rules = [{"allow": False, "action": "publish", "topics": ["no/#"], "username": "ann"}]
    async with await start(access={"users": users, "rules": rules}) as node:
        client = await LineNode(node).client()
        assert (await client.ask("CONNECT pump ann wrong"), await client.hear()) == ("NO 134", "")
        [refused] = (await node.api.get("/refused_clients")).data
        assert (refused["clientid"], refused["reason"], refused["listener"]) == (
            "pump", "bad_username_or_password", "lines",
        )  # fmt: skip
        client = await LineNode(node).client()
        assert await client.ask("CONNECT pump ann secret") == "OK"
        assert await client.ask("PUB no/way 1") == "NO 135"
        assert await client.ask("PUB some/way 1") == "OK"
        explained = (await node.api.get("/clients/pump/explain")).data
        assert any("no/way" in str(event) for event in explained["events"])


@pytest.mark.asyncio
async def test_bans_kicks_and_the_stop(line: None) -> None:
    async with await start() as node:
        client = await LineNode(node).connected("pump")
        assert (await node.api.delete("/clients/pump")).code == 0
        assert (await client.hear(), await client.hear()) == ("END 152", "")
        node.server.banned.put(Ban(CLIENT_ID, "pump", "tester", "", 0, 2**40))
        assert await (await LineNode(node).client()).ask("CONNECT pump") == "NO 138"
        node.server.banned.put(Ban(PEER_HOST, "127.0.0.1", "tester", "", 0, 2**40))
        assert await (await LineNode(node).client()).ask("CONNECT other") == "NO 138"
        node.server.banned.remove(PEER_HOST, "127.0.0.1")
        client = await LineNode(node).connected("last")
        stopping = asyncio.ensure_future(node.server.disconnect_clients())
        assert (await client.hear(), await client.hear()) == ("END 139", "")
        await stopping


@pytest.mark.asyncio
async def test_takeover_and_wills(line: None) -> None:
    """One Client Identifier is one client, whatever it speaks."""
    async with await start() as node:
        watcher = await node.client("watcher")
        await watcher.subscribe("wills/#", qos=1)
        first = await LineNode(node).client()
        assert await first.ask("WILL wills/pump gone", "CONNECT pump") == "OK"
        peer = await node.client("pump")
        assert (await first.hear(), await first.hear()) == ("END 142", "")
        await watcher.expect_publish("wills/pump", b"gone")
        second = await LineNode(node).connected("pump")
        await peer.expect_disconnect(0x8E)
        second.say("BYE")
        assert await second.hear() == ""
        await watcher.nothing()
        third = await LineNode(node).client()
        assert await third.ask("WILL wills/third x", "CONNECT third") == "OK"
        third.drop()
        await watcher.expect_publish("wills/third", b"x")


@pytest.mark.asyncio
async def test_limits(line: None, caplog: pytest.LogCaptureFixture) -> None:
    """Of connections, of a request that does not end, of a packet, of time before the login, and keep alive."""
    caplog.set_level(logging.INFO, "taipan")
    zone = {"max_connect_size": 1000, "max_packet_size": 2000, "idle_timeout": 5.0}
    async with await start(zone=zone, gateway={"keep_alive": 10}) as node:
        client = await LineNode(node).client()
        client.send(b"x" * 1500)
        assert await client.hear() == ""
        client.drop()
        await until(lambda: not node.server.connections)
        assert node.server.before_login.bytes == 0 and "more than 1000 bytes" in caplog.text
        client = await LineNode(node).connected("pump")
        assert await client.ask("PUB a " + "x" * 2500) == "END 149"
        client.drop()
        waits, lives = await LineNode(node).client(), await LineNode(node).connected("lives")
        await until(lambda: len(node.server.connections) == 2)
        await node.pass_time(6)
        await node.pass_time(1)  # the second look
        assert await waits.hear() == ""
        assert await lives.ask("PING") == "PONG"
        await node.pass_time(16)
        assert (await lives.hear(), await lives.hear()) == ("END 141", "")


@pytest.mark.asyncio
async def test_faults(line: None, caplog: pytest.LogCaptureFixture) -> None:
    """One of a client, with what it was; one of the gateway, which ends no connection but this one."""
    caplog.set_level(logging.INFO, "taipan")
    async with await start() as node:
        stays, client = await LineNode(node).connected("stays"), await LineNode(node).connected("pump")
        assert (await client.ask("NONSENSE 1"), await client.hear()) == ("END 129", "")
        assert "no such request: NONSENSE" in caplog.text
        node.ignore(lambda record: record.getMessage() == "gateway_error gateway=line listener=lines count=1")
        for _ in range(3):  # one line with a traceback in ten seconds
            client = await LineNode(node).connected("pump")
            assert (await client.ask("BREAK"), await client.hear()) == ("END 128", "")
        assert caplog.text.count("RuntimeError: a fault of this gateway") == 1
        assert await stays.ask("PING") == "PONG"


@pytest.mark.asyncio
@pytest.mark.parametrize("version, told", [(5, ["END 129", ""]), (4, [""])])
async def test_who_is_told_of_a_mistake(line: None, version: int, told: list[str]) -> None:
    """A conversation of version 5 whose CONNECT was accepted."""
    async with await start(gateway={"version": version}) as node:
        assert await (await LineNode(node).client()).ask("NONSENSE 1") == ""
        client = await LineNode(node).connected("pump")
        client.say("NONSENSE 1")
        assert [await client.hear() for _ in told] == told


@pytest.mark.asyncio
async def test_a_packet_that_cannot_be_decoded_ends_one_connection(line: None) -> None:
    """All clients of a listener share a decoder, which reads nothing more after an error."""
    async with await start() as node:
        stays, client = await LineNode(node).connected("stays"), await LineNode(node).connected("pump")
        for _ in range(2):
            client.say("PUB plant/# x", "PING")
            assert (await client.hear(), await client.hear()) == ("END 129", "")
            assert await stays.ask("PING") == "PONG"
            client = await LineNode(node).connected("pump")
            assert await client.ask("PING") == "PONG"


@pytest.mark.asyncio
async def test_requests_that_no_packet_can_carry(line: None, caplog: pytest.LogCaptureFixture) -> None:
    """They are mistakes of the client, and no faults of the gateway; whatever characters its reason has."""
    caplog.set_level(logging.INFO, "taipan")
    async with await start() as node:
        for request in (f"PUB {'a' * 70_000} x", "\0\N{BELL}", "\x1b[2J" + "x" * 70_000):
            client = await LineNode(node).connected("pump")
            assert (await client.ask(request), await client.hear()) == ("END 129", "")
        client = await LineNode(node).client()
        assert await client.ask("CONNECT " + "a" * 70_000) == ""
        assert node.server.metrics.refusals.snapshot()["malformed_packet"] == 1
        assert node.server.metrics.disconnects.snapshot()["malformed_packet"] == 3
        assert "Message: longer than 65535 bytes" in caplog.text and "gateway_error" not in caplog.text


@pytest.mark.asyncio
async def test_what_its_clients_hold_before_the_login(line: None) -> None:
    """All of their bytes, also those that the conversation keeps."""
    async with await start() as node:
        clients = [await LineNode(node).client() for _ in range(20)]
        for client in clients:
            client.send(b"WILL will/topic " + b"x" * 60_000 + b"\n")
        await until(lambda: node.server.before_login.bytes >= 20 * 60_000)
        for number, client in enumerate(clients):
            assert await client.ask(f"CONNECT c{number}") == "OK"
        assert node.server.before_login.bytes == 0


@pytest.mark.asyncio
async def test_the_byte_rate(line: None) -> None:
    """It is paid with all bytes of the client, as they come, and once."""
    async with await start(zone={"byte_rate": [10_000, 1.0]}) as node:
        await node.stand_still()
        client = await LineNode(node).connected("pump")
        [connection] = node.server.connections
        before = node.server.metrics.bytes_received
        client.send(b"PUB a " + b"x" * 12_000)
        await until(lambda: connection.slowed)
        assert node.server.metrics.messages_publish == 0
        client.send(b"x" * 3000 + b"\nPING\n")
        heard = asyncio.ensure_future(client.hear_two())
        while not heard.done():
            await node.pass_time(0.25)
            await asyncio.sleep(0.01)
        assert await heard == {"OK", "PONG"}
        assert node.server.metrics.bytes_received - before == 15_012
        assert connection.traffic().received_bytes == 15_012 + len("CONNECT pump\n")


@pytest.mark.asyncio
async def test_payloads_that_are_no_line_of_text(line: None) -> None:
    """A publisher can neither end the connection of a subscriber nor say a line in the broker's name."""
    async with await start() as node:
        lines, peer = await LineNode(node).connected("pump"), await node.client("mqtt")
        assert await lines.ask("SUB #") == "OK"
        await peer.publish("garden/soil", b"\xff\nMSG door/open yes\r\\n", 1)
        assert await lines.hear() == "MSG garden/soil \ufffd\\nMSG door/open yes\\r\\\\n"
        assert await lines.ask("PING") == "PONG"


@pytest.mark.asyncio
async def test_a_reload(line: None) -> None:
    """New settings of the gateway serve the clients to come; wrong ones change nothing."""
    async with await start(gateway={"greeting": "one"}) as node:
        assert await (await LineNode(node).client()).hear() == "one"

        def with_table(**table: object) -> Any:
            *others, lines = node.server.settings.listeners
            return msgspec.structs.replace(
                node.server.settings, listeners=(*others, msgspec.structs.replace(lines, gateway=table))
            )

        with pytest.raises(ListenerError, match=r"listener lines: gateway: .*greating"):
            node.server.reload(with_table(greating="x"))
        node.server.reload(with_table(greeting="two"))
        assert await (await LineNode(node).client()).hear() == "two"


@pytest.mark.asyncio
async def test_a_node_finds_it_by_its_entry_point(folder: Path, tmp_path: Path) -> None:
    install(folder)
    port = free_port()
    file = tmp_path / "taipan.toml"
    file.write_text(
        f'[node]\ndata_dir = "{tmp_path / "data"}"\n[[listeners]]\nname = "lines"\ntype = "line"\n'
        f'bind = "127.0.0.1:{port}"\n[listeners.gateway]\ngreeting = "hello"\n'
    )
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    node = await NodeProcess(file, env={"PYTHONPATH": path}).start()
    try:
        assert f"lines=line:127.0.0.1:{port}" in node.ready
        client = await Lines("127.0.0.1", port).open()
        assert (await client.hear(), await client.ask("CONNECT pump")) == ("hello", "OK")
    finally:
        assert await node.stop() == 0


def test_configurations(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "taipan.toml"

    def check(table: str) -> str:
        file.write_text(
            '[management]\nbind = "127.0.0.1:0"\n[dashboard]\nbind = "127.0.0.1:0"\n'
            f'[[listeners]]\nname = "lines"\ntype = "line"\nbind = "127.0.0.1:2883"\n{table}'
        )
        status = main(["check", str(file)])
        said = capsys.readouterr()
        assert bool(status) == bool(said.err), said
        return re.sub(r".*taipan\.toml:\d+: ", "", said.err.strip())

    known = '"tcp", "ssl", "ws", "wss", "unix", "coap", "coaps", "lwm2m", "lwm2ms", "mqttsn"'
    assert check("") == f'listeners.0.type: expected one of {known}, got "line"'
    install(folder)
    assert check("") == ""
    assert check('[listeners.gateway]\ngreeting = "x"') == ""
    assert "greating" in check('[listeners.gateway]\ngreating = "x"')
    assert check('path = "/x"') == "listeners.0.path: only ws and wss listeners accept this key"


@pytest.mark.parametrize(
    "value, told",
    [
        ("line_gateway:LineChannel", "line_gateway:LineChannel is not a Gateway"),
        ("line_gateway:OTHER", "line_gateway:OTHER has another name: other"),
        ("line_gateway:NOTHING", "AttributeError"),
        ("no_such_module:GATEWAY", "ModuleNotFoundError"),
    ],
)
def test_an_entry_point_that_is_no_gateway(folder: Path, value: str, told: str) -> None:
    install(folder, value)
    with open(folder / "line_gateway.py", "a") as module:
        kind = 'ListenerKind(name="other", protocol="x", scheme="x")'
        module.write(
            f'OTHER = Gateway(name="other", listener={kind}, channel=LineChannel, proto_name="", proto_ver=1)\n'
        )
    where = r"^entry point line of taipan\.gateways, package line-gateway: "
    with pytest.raises(GatewayLoadError, match=where + f".*{told}"):
        kind_of("line")
    assert "line" not in LISTENER_KINDS


def test_two_packages_with_one_gateway(folder: Path) -> None:
    install(folder)
    made = folder / "other_line-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: other-line\nVersion: 1.0\n", "utf-8")
    (made / "entry_points.txt").write_text("[taipan.gateways]\nline = other_line:GATEWAY\n", "utf-8")
    told = "^several packages have an entry point of this name: line-gateway and other-line; remove all but one$"
    with pytest.raises(GatewayLoadError, match=told):
        kind_of("line")


def test_a_gateway_that_is_loaded_is_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taipan")
    install(folder)
    assert kind_of("line") is kind_of("line") is not None
    told = "extension_loaded group=taipan.gateways name=line value=line_gateway:GATEWAY"
    assert [record.getMessage() for record in caplog.records] == [told]
    assert kind_of("no-such") is None
