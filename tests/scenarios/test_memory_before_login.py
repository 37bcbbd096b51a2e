"""Attacks on the node's memory before a login, on each transport and port, against the real process.

Clients that have not logged in hold as much as they can; what was acknowledged before, during and after is counted at
the subscriber. It was lost, to the last message.
"""

import asyncio
import base64
import os
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.access.password_hash import ScryptHash
from taipan.broker.mqtt.constants import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from tests.support.certificates import Certificates
from tests.support.node import NodeProcess, free_port
from tests.support.peer import Address, Peer
from tests.support.wire import frame, string

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MIB = 1_048_576
LIMIT = 176 * MIB
OVER = 40 * MIB
"""What the node may take beyond its budget for a moment."""
CONFIG = """
[node]
data_dir = "{directory}"
{access}
[[listeners]]
name = "tcp"
type = "tcp"
bind = "127.0.0.1:{tcp}"
[[listeners]]
name = "ssl"
type = "ssl"
bind = "127.0.0.1:{ssl}"
tls.certfile = "{certfile}"
tls.keyfile = "{keyfile}"
[[listeners]]
name = "ws"
type = "ws"
bind = "127.0.0.1:{ws}"
[[listeners]]
name = "wss"
type = "wss"
bind = "127.0.0.1:{wss}"
tls.certfile = "{certfile}"
tls.keyfile = "{keyfile}"
[management]
bind = "127.0.0.1:{management}"
[dashboard]
enabled = true
bind = "127.0.0.1:{dashboard}"
[limits]
memory = {limit}
"""
TRANSPORTS = ("tcp", "ssl", "ws", "wss")


class AttackedNode:
    """A node with a small budget and a listener of each kind, and those who attack it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {name: free_port() for name in (*TRANSPORTS, "management", "dashboard")}
        self.node = NodeProcess(directory / "taipan.toml", "--set", "log.level=warning")
        self.node.env = {key: value for key, value in self.node.env.items() if not key.startswith("TAIPAN__")}
        self.writers: list[asyncio.StreamWriter] = []
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.tls.check_hostname, self.tls.verify_mode = False, ssl.CERT_NONE
        self._reading: list[asyncio.Task[bytes]] = []

    async def start(self, access: str = "") -> None:
        certfile, keyfile = Certificates(self.directory).issue("localhost")
        text = CONFIG.format(
            **self.ports, directory=self.directory, certfile=certfile, keyfile=keyfile, limit=LIMIT, access=access
        )
        self.node.config.write_text(text)
        await self.node.start(timeout=100)
        for pipe in (self.node.process.stderr, self.node.process.stdout):
            if pipe is not None:
                self._reading.append(asyncio.ensure_future(pipe.read()))

    def taken(self, field: str = "VmHWM") -> int:
        lines = Path(f"/proc/{self.node.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    async def peer(self) -> Peer:
        return await Peer(Address("127.0.0.1", self.ports["tcp"])).open()

    async def attacker(self, port: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        tls = self.tls if port in ("ssl", "wss") else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port], ssl=tls)
        self.writers.append(writer)
        return reader, writer

    async def stop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()
        if self.node._process is not None and self.node.process.returncode is None:
            self.node.process.kill()
            await asyncio.gather(*self._reading)
            await self.node.process.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def attacked(tmp_path: Path) -> AsyncIterator[AttackedNode]:
    attacked = AttackedNode(tmp_path)
    yield attacked
    await attacked.stop()


def connect_packet(client_id: str = "c", username: str | None = None, fill: int = 0) -> bytes:
    """A CONNECT of 5.0. ``fill``: bytes of empty User Properties."""
    properties = b"\x26\0\0\0\0" * (fill // 5)
    head = (
        string("MQTT") + bytes((5, 2 if username is None else 0x82)) + b"\0\0" + variable(len(properties)) + properties
    )
    return frame(0x10, head + string(client_id) + (b"" if username is None else string(username)))


def variable(number: int) -> bytes:
    made = bytearray()
    while True:
        number, low = divmod(number, 128)
        made.append(low | (0x80 if number else 0))
        if not number:
            return bytes(made)


UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def websocket_frame(size: int, payload: bytes) -> bytes:
    """The beginning of a masked frame of ``size`` bytes, its mask 0."""
    return b"\x82\xff" + struct.pack(">Q", size) + bytes(4) + payload


HALF = connect_packet(fill=250_000)[:250_000]


async def half_packet(attacked: AttackedNode, port: str) -> None:
    """Most of a CONNECT, of a WebSocket frame with it."""
    reader, writer = await attacked.attacker(port)
    if port in ("ws", "wss"):
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(websocket_frame(262_000, HALF))
    else:
        writer.write(HALF)
    await writer.drain()


async def whole_packet(attacked: AttackedNode, port: str) -> None:
    """A CONNECT of long names, which is refused, and is made of one character that makes each take four bytes."""
    names = "\U0001f600" + os.urandom(30_000).hex()[:59_000]
    reader, writer = await attacked.attacker(port)
    packet = connect_packet(names, names)
    if port in ("ws", "wss"):
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        packet = websocket_frame(len(packet), packet)
    writer.write(packet)
    await writer.drain()


async def half_body(attacked: AttackedNode, port: str) -> None:
    """Half of a body of 4 MB: at the dashboard's login, at the API with wrong credentials."""
    _, writer = await attacked.attacker(port)
    if port == "dashboard":
        head = "POST /api/v4/auth HTTP/1.1\r\nHost: localhost\r\nX-Taipan-Dashboard: 1\r\n"
    else:
        wrong = base64.b64encode(b"admin:wrong").decode()
        head = f"POST /api/v4/mqtt/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {wrong}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 4000000\r\n\r\n".encode())
    for _ in range(20):
        writer.write(b" " * 100_000)
        await asyncio.wait_for(writer.drain(), 0.2)


Attack = Callable[[AttackedNode, str], "asyncio.Future[None]"]
USERS = f"""
[[access.users]]
username = "known"
password_hash = "{ScryptHash.create(b"known", 1024)}"
"""
ATTACKS = [
    *[pytest.param(half_packet, port, 500, "", id=f"half-{port}") for port in TRANSPORTS],
    *[pytest.param(whole_packet, port, 700, USERS, id=f"names-{port}") for port in ("tcp", "wss")],
    pytest.param(half_body, "dashboard", 250, "", id="body-dashboard"),
    pytest.param(half_body, "management", 250, "", id="body-management"),
]


@pytest.mark.parametrize("attack, port, count, access", ATTACKS)
async def test_what_was_acknowledged_stays(
    attacked: AttackedNode, attack: Attack, port: str, count: int, access: str
) -> None:
    await attacked.start(access)
    stays = {SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 65_535}
    absent = await attacked.peer()
    await absent.connect("absent", properties=stays, clean_start=False)
    await absent.subscribe("t", qos=1)
    await absent.close()
    publisher = await attacked.peer()
    await publisher.connect("publisher")
    acknowledged: list[bytes] = []

    async def publish(messages: int) -> None:
        for _ in range(messages):
            payload = b"%d" % len(acknowledged) + bytes(500)
            if await publisher.publish("t", payload, 1, expect=None) < 0x80:
                acknowledged.append(payload)

    await publish(500)
    for number in range(count):
        try:
            await attack(attacked, port)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the node has closed it
        if number % 10 == 0:
            await publish(1)
    await publish(100)
    assert attacked.taken() < LIMIT + OVER
    for writer in attacked.writers:
        writer.transport.abort()
    await publish(500)
    assert len(acknowledged) == 1100 + (count + 9) // 10
    stranger = await attacked.peer()
    await stranger.connect("stranger", properties={SESSION_EXPIRY_INTERVAL: 10})
    back = await attacked.peer()
    await back.connect("absent", properties=stays, clean_start=False, session_present=True)
    for payload in acknowledged:
        await back.expect_publish("t", payload, 1)
    for peer in (publisher, stranger, back):
        await peer.close()
