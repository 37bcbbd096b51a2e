"""Floods of datagrams from addresses that nobody has proved: the memory is bounded, each refusal has a reason, a
counter and a log line with the setting, and the clients of before go on."""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.gateway import kind_of
from taipan.broker.gateways.coap import codec as coap
from taipan.broker.gateways.mqttsn import codec as sn
from taipan.broker.transport import handshakes
from tests.gateways.coap_client import CoapClient
from tests.gateways.dtls_client import SecureClient
from tests.gateways.lwm2m_device import Device
from tests.gateways.sn_client import SnClient
from tests.gateways.test_dtls import start as start_secure
from tests.support.api import APP_ID, SECRET, ApiClient, ManagedNode, managed_node
from tests.support.certificates import Certificates
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

MIB = 1_048_576


def sn_connect(number: int) -> bytes:
    return sn.encode(sn.SnConnect(f"new{number}", False, False, 60))


def coap_publish(number: int) -> bytes:
    options = [(coap.URI_PATH, b"mqtt"), (coap.URI_PATH, b"t"), (coap.URI_QUERY, b"c=new%d" % number)]
    return coap.encode(coap.CON, coap.PUT, number, b"t", options, b"x")


def lwm2m_register(number: int) -> bytes:
    queries = (b"ep=new%d" % number, b"lt=300", b"lwm2m=1.0")
    options = [(coap.URI_PATH, b"rd"), *((coap.URI_QUERY, each) for each in queries)]
    return coap.encode(coap.CON, coap.POST, number, b"t", options, b"</1/0>")


class OldSn:
    """An MQTT-SN client of before the flood."""

    def __init__(self, client: SnClient) -> None:
        self._client = client
        self._topic = 0

    @classmethod
    async def open(cls, address: tuple[str, int]) -> "OldSn":
        made = cls(await SnClient.open(address))
        await made._client.connect("old", clean=False)
        made._topic = await made._client.register("old/t")
        return made

    async def says(self, payload: bytes) -> None:
        await self._client.publish(self._topic, payload, 1)

    def close(self) -> None:
        self._client.close()


class OldCoap:
    def __init__(self, client: CoapClient) -> None:
        self._client = client

    @classmethod
    async def open(cls, address: tuple[str, int]) -> "OldCoap":
        return cls(await CoapClient.open(address))

    async def says(self, payload: bytes) -> None:
        assert await self._client.put("mqtt/old/t?c=old", payload) == "2.04"

    def close(self) -> None:
        self._client.close()


class OldDevice:
    """An LwM2M device: each update is a message."""

    def __init__(self, client: Device) -> None:
        self._client = client

    @classmethod
    async def open(cls, address: tuple[str, int]) -> "OldDevice":
        made = cls(await Device.open(address, "old"))
        assert (await made._client.register()).dotted == "2.01"
        return made

    async def says(self, payload: bytes) -> None:
        assert (await self._client.update(objects=b"</9/0>")).dotted == "2.04"

    def close(self) -> None:
        self._client.close()


KINDS: dict[str, tuple[Callable[[int], bytes], Any, str]] = {
    "mqttsn": (sn_connect, OldSn, "old/t"),
    "coap": (coap_publish, OldCoap, "old/t"),
    "lwm2m": (lwm2m_register, OldDevice, "lwm2m/old/up/#"),
}


class Forger:
    """A socket for each address, as if the sender forged them: what is sent to them is counted, and not answered."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._sockets: list[socket.socket] = []

    async def send(self, count: int, data: Callable[[int], bytes]) -> None:
        """Send one datagram from each of so many new addresses."""
        for number in range(count):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0))
            self._sockets.append(sock)
            sock.sendto(data(number), self._address)
            await asyncio.sleep(0)  # the node reads

    def answers(self) -> list[bytes]:
        """Return all answers since the last call."""
        found = []
        for sock in self._sockets:
            try:
                while True:
                    found.append(sock.recv(65_536))
            except BlockingIOError:
                pass
        return found

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def listener_of(node: ManagedNode, name: str) -> Any:
    [listener] = [each for each in node.server.listeners if each.name == name]
    return listener


@pytest.mark.parametrize("kind", list(KINDS))
async def test_new_client_ids_up_to_the_limit(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Further ones are ignored, without an answer or a session, until there is room again."""
    assert kind_of(kind) is not None
    caplog.set_level(logging.WARNING, "taipan")
    first, old_client, topic = KINDS[kind]
    limit, flood = 10, 150
    listeners = [{"type": "tcp"}, {"type": kind, "name": "devices", "max_connections": limit}]
    async with managed_node(listeners=listeners) as node:
        listener = listener_of(node, "devices")
        peer = await node.client("m")
        await peer.subscribe(topic, qos=1)
        old, forger = await old_client.open(listener.bind), Forger(listener.bind)
        try:
            await old.says(b"before")
            await peer.expect_publish()
            if kind == "lwm2m":
                await peer.expect_publish()  # of the registration
            await forger.send(flood, first)
            await until(lambda: listener.refused.get("max_connections") == flood - limit + 1)
            assert listener.current_connections == limit
            assert len(node.server.broker.sessions) == limit + 1  # with that of the MQTT client
            assert 0 < len(forger.answers()) <= 2 * (limit - 1)
            lines = [each for each in caplog.messages if "reason=max_connections" in each]
            assert len(lines) == 1 and "listener=devices" in lines[0] and "setting=max_connections" in lines[0]
            counters = (await node.api.get("/emqx_prometheus", type="prometheus")).text
            [counter] = [
                each for each in counters.splitlines()
                if each.startswith("taipan_listener_refused_total") and ':devices",reason="max_connections"' in each
            ]  # fmt: skip
            assert counter.endswith(f" {flood - limit + 1}")
            await old.says(b"after")
            await peer.expect_publish()
            # There is room again when clients of the flood are gone.
            assert (await node.api.delete("/clients/new0")).code == 0
            await until(lambda: listener.current_connections == limit - 1)
            await forger.send(1, lambda _: first(7000))
            await until(lambda: "new7000" in node.server.broker.sessions)
        finally:
            old.close()
            forger.close()


CONFIG = """
[node]
data_dir = "{directory}"
[durability]
level = "memory"
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{tcp}"
[[listeners]]
name = "sn"
type = "mqttsn"
bind = "127.0.0.1:{udp}"
[management]
bind = "127.0.0.1:{management}"
[[management.apps]]
id = "{app}"
secret = "{secret}"
[limits]
memory = {limit}
"""
WILL = b"x" * 8_000


class Intruders(asyncio.DatagramProtocol):
    """New MQTT-SN clients behind a forwarder, each with a large Will, some of them at a time."""

    WINDOW = 8

    def __init__(self, enough: int) -> None:
        self.accepted = self.refused = 0
        self.over = asyncio.Event()
        self._enough = enough
        self._number = 0
        self.progress = 0
        self.transport: asyncio.DatagramTransport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.more()

    def more(self) -> None:
        for _ in range(self.WINDOW):
            self._begin()

    def _begin(self) -> None:
        self._number += 1
        self._say(self._number.to_bytes(4), sn.SnConnect(f"new{self._number}", False, True, 60))

    def _say(self, node: bytes, packet: sn.SnPacket) -> None:
        self.transport.sendto(b"\x07\xfe\0" + node + sn.encode(packet))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        prefix, data = sn.split(data)
        self.progress += 1
        match sn.decode(data):
            case sn.SnSimple(type=sn.WILLTOPICREQ):
                self._say(prefix[3:], sn.SnWillTopic("will/t", 1))
            case sn.SnSimple(type=sn.WILLMSGREQ):
                self._say(prefix[3:], sn.SnWillMsg(WILL))
            case sn.SnConnack(code=code):
                self.accepted += code == sn.ACCEPTED
                self.refused += code == sn.CONGESTION
                if self.refused >= self._enough:
                    self.over.set()
                else:
                    self._begin()


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_new_client_ids_until_the_memory_is_used_up(tmp_path: Path) -> None:
    """Without a limit of connections, ``limits.memory`` refuses new clients; those of before go on."""
    limit = 144 * MIB
    ports = {name: free_port() for name in ("tcp", "udp", "management")}
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", app=APP_ID, secret=SECRET, limit=limit, **ports))
    node = NodeProcess(config, env={"TAIPAN__MANAGEMENT__BIND": f"127.0.0.1:{ports['management']}"})
    await node.start()
    assert node.process.stderr is not None
    log = bytearray()
    stderr = node.process.stderr

    async def read() -> None:
        while data := await stderr.read(65_536):
            log.extend(data)

    reading = asyncio.create_task(read())
    api = ApiClient(f"http://127.0.0.1:{ports['management']}")
    address = "127.0.0.1", ports["udp"]
    old, peer = await OldSn.open(address), Peer(Address("127.0.0.1", ports["tcp"]), 5)
    loop = asyncio.get_running_loop()
    transport, flood = await loop.create_datagram_endpoint(lambda: Intruders(100), remote_addr=address)
    try:
        await peer.connect("m")
        await peer.subscribe("old/t", qos=1)
        async with asyncio.timeout(patience(200)):
            while not flood.over.is_set():
                before = flood.progress
                await asyncio.sleep(1)
                if flood.progress == before:
                    flood.more()  # datagrams were lost
        status = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
        assert int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) * 1024 < limit + 32 * MIB
        for number in range(10):
            await old.says(b"%d" % number)
            await peer.expect_publish("old/t", b"%d" % number, 1)
        counters = (await api.get("/emqx_prometheus", type="prometheus")).text
        assert 'taipan_refusals_total{reason="quota_exceeded"}' in counters
        clients = (await api.get("/clients/old")).data
        assert [each["connected"] for each in clients] == [True]
        await until(lambda: b"setting=limits.memory" in log)
        line = next(line for line in log.decode().splitlines() if "client_refused" in line)
        assert "client_id=new" in line and "setting=limits.memory" in line
        assert b"memory_level level=refusing" in log
        assert flood.accepted > 100
    finally:
        transport.abort()
        old.close()
        await peer.close()
        await api.close()
        node.process.kill()
        await node.process.wait()
        await reading


async def test_client_hellos_from_forged_addresses(certificates: Certificates) -> None:
    """Each is answered with a cookie and forgotten; a cookie is of no use at another address."""
    async with start_secure(certificates) as node:
        listener = listener_of(node, "secure")
        old = await SecureClient.open(node)
        forger = Forger(listener.bind)
        try:
            await old.connect()
            assert await old.put("mqtt/t?c=old", b"x") == "2.04"
            hello, repeated = old.sent[0], old.sent[1]
            assert repeated != hello and len(repeated) > len(hello)  # it has the cookie
            found: list[bytes] = []
            for data in (hello, repeated):
                await forger.send(150, lambda _, data=data: data)  # type: ignore[misc]

                def all_answered() -> bool:
                    found.extend(forger.answers())
                    return len(found) == 150

                await until(all_answered)
                assert max(map(len, found)) <= len(hello)  # no answer larger than its question
                found.clear()
                assert not listener._datagrams._handshakes._of
                assert len(listener._datagrams._peers) == 1 and listener.current_connections == 1
            assert await old.put("mqtt/t?c=old", b"y") == "2.04"
            new = await SecureClient.open(node)
            await new.connect()
            assert await new.put("mqtt/t?c=new", b"x") == "2.04"
            new.close()
        finally:
            old.close()
            forger.close()


async def test_handshakes_that_are_not_completed(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Addresses that repeat their cookie and then say nothing: so many handshakes exist, and a new one replaces the
    oldest."""
    monkeypatch.setattr(handshakes, "MAX_HANDSHAKES", 5)
    caplog.set_level(logging.WARNING, "taipan")
    async with start_secure(certificates) as node:
        listener = listener_of(node, "secure")
        old = await SecureClient.open(node)
        await old.connect()
        assert await old.put("mqtt/t?c=old", b"x") == "2.04"
        opened = [await SecureClient.open(node) for _ in range(20)]
        try:
            for client in opened:
                client.loses = set(range(1, 100))  # everything but the request for the cookie
                client.handshake()
                await until(lambda client=client: len(client.sent) == 2)
            await until(lambda: listener.refused.get("newcomers") == 15)
            assert len(listener._datagrams._handshakes._of) == 5
            [line] = [each for each in caplog.messages if "reason=newcomers" in each]
            assert "listener=secure" in line
            assert await old.put("mqtt/t?c=old", b"y") == "2.04"
            new = await SecureClient.open(node)
            await new.connect()
            assert await new.put("mqtt/t?c=new", b"x") == "2.04"
            new.close()
        finally:
            for client in (old, *opened):
                client.close()
