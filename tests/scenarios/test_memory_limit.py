"""limits.memory: attacks on the node's memory, against the real process; what it takes is the system's word."""

import asyncio
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.mqtt.constants import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER
from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter
from tests.support.node import NodeProcess, free_port
from tests.support.patience import patience
from tests.support.peer import Address, Peer
from tests.support.wire import frame, string

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MIB = 1_048_576
LIMIT = 144 * MIB
OVER = 32 * MIB
"""What the node may take beyond its budget for a moment."""
CONFIG = """
[[listeners]]
name = "one"
type = "tcp"
bind = "127.0.0.1:{port}"

[limits]
memory = {limit}
{rest}
"""


SLOW_DISK = """
import sys, time, apsw
from taipan.management.node import main

class SlowDisk(apsw.Connection):
    def execute(self, statements, *arguments, **options):
        if statements.startswith("INSERT"):
            time.sleep(0.3)
        return super().execute(statements, *arguments, **options)

apsw.Connection = SlowDisk
sys.exit(main())
"""


class LimitedNode:
    """A node with a small budget, which can be killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "taipan.toml"
        self.address = Address("127.0.0.1", free_port())
        self.node = NodeProcess(self.config, "--set", f"node.data_dir={directory}", "--set", "management.enabled=false")
        self._said = bytearray()
        self._reading: asyncio.Task[None] | None = None
        self.peers: list[Peer] = []
        self.publisher: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self, rest: str = "", limit: int = LIMIT) -> "LimitedNode":
        self.config.write_text(CONFIG.format(port=self.address.port, limit=limit, rest=rest))
        await self.node.start(timeout=100)
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def _read(self) -> None:
        assert self.node.process.stderr is not None
        while said := await self.node.process.stderr.read(65_536):
            self._said += said

    async def kill(self) -> None:
        self.publisher = None
        self.node.process.kill()
        assert self._reading is not None
        await self._reading
        await self.node.process.wait()

    def taken(self, field: str = "VmRSS") -> int:
        """Bytes, now or (VmHWM) at most."""
        lines = Path(f"/proc/{self.node.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    def log(self) -> str:
        return self._said.decode()

    async def said(self, *texts: str) -> None:
        """Until it has logged all of these: what it writes comes by a pipe."""
        async with asyncio.timeout(patience(50)):
            while not all(text in self.log() for text in texts):
                await asyncio.sleep(0.05)

    async def client(self, client_id: str, version: int = 5, **options: object) -> Peer:
        peer = Peer(self.address, version)
        self.peers.append(peer)
        await peer.connect(client_id, **options)  # type: ignore[arg-type]
        return peer

    async def refused(self, client_id: str, version: int) -> int:
        """The code with which this client is turned away."""
        peer = await Peer(self.address, version).open()
        self.peers.append(peer)
        return (await peer.connect(client_id, expect=None)).reason_code

    async def subscribe(self, peer: Peer, topic_filter: str) -> int:
        """The code with which a subscription is answered."""
        await peer.send(Subscribe(1, [TopicFilter(topic_filter, 1)]))
        return (await peer.answer(Suback, packet_id=1)).reason_codes[0]

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare one, closed with the node."""
        reader, writer = await asyncio.open_connection(*self.address[:2])
        self.writers.append(writer)
        return reader, writer

    async def flood(self, packets: list[bytes], answers: int) -> None:
        """Send these and wait for so many bytes in return, as a client of 3.1.1."""
        if self.publisher is None:
            self.publisher = await self.connection()
            self.publisher[1].write(CONNECT)
            await self.publisher[0].readexactly(4)
        reader, writer = self.publisher
        reading = asyncio.ensure_future(reader.readexactly(answers))
        for at in range(0, len(packets), 100):
            writer.write(b"".join(packets[at : at + 100]))
            await writer.drain()
        await reading


CONNECT = frame(0x10, string("MQTT") + b"\x04\x02\0\0" + string("publisher"))


def publish(topic: str, payload: bytes, packet_id: int, retain: bool = False) -> bytes:
    """QoS 1 of 3.1.1."""
    return frame(0x32 | retain, string(topic) + struct.pack(">H", packet_id) + payload)


@pytest_asyncio.fixture(loop_scope="module")
async def limited(tmp_path: Path) -> AsyncIterator[LimitedNode]:
    limited = LimitedNode(tmp_path)
    yield limited
    for peer in limited.peers:
        peer.abort()
    for writer in limited.writers:
        writer.transport.abort()
    await asyncio.sleep(0.01)
    if limited.node._process is not None and limited.node.process.returncode is None:
        await limited.kill()


async def absent(limited: LimitedNode, sessions: int, identifier: bool = False) -> None:
    """So many durable sessions with a subscription to everything, whose clients are gone."""
    for number in range(sessions):
        peer = await limited.client(f"absent-{number}", properties={SESSION_EXPIRY_INTERVAL: 3600}, clean_start=False)
        properties = {SUBSCRIPTION_IDENTIFIER: number + 1} if identifier else {}
        await peer.subscribe("#", qos=1, properties=properties)
        await peer.close()
    limited.peers.clear()


async def test_small_messages_for_many_sessions_take_little_and_a_restart_no_more(limited: LimitedNode) -> None:
    """26 KB of PUBLISH took 305 MB with 1,000 sessions, and 440 MB after the restart."""
    await limited.start()
    await absent(limited, 200)
    before = limited.taken()
    await limited.flood([publish(f"t{number}", b"x" * 5, number + 1) for number in range(2000)], 8000)
    assert limited.taken() - before < 16 * MIB
    empty = before
    await limited.kill()
    await limited.start()
    assert limited.taken("VmHWM") - empty < 25 * MIB
    peer = await limited.client(
        "absent-7", properties={SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 65_535}, clean_start=False
    )
    for number in range(2000):  # all of it is there, in order
        message = await peer.expect_publish(f"t{number}", b"x" * 5, 1)
        await peer.puback(message.packet_id)


async def test_queues_beyond_the_budget_are_shed_and_nobody_new_comes_in(limited: LimitedNode) -> None:
    await limited.start()
    await absent(limited, 110, identifier=True)
    for _ in range(4):
        await limited.flood([publish("t", b"x" * 5, number + 1) for number in range(700)], 2800)
    assert limited.taken("VmHWM") < LIMIT + OVER
    await limited.said("memory_level level=refusing", "memory_level level=shedding")
    await limited.said("alarm_activated name=high_system_memory_usage")
    await limited.said("delivery_dropped client_id=absent-", "reason=memory setting=limits.memory")
    assert await limited.refused("stranger", 5) == 0x97
    assert await limited.refused("stranger", 4) == 3
    await limited.said("client_refused client_id=stranger")
    known = await limited.client(
        "absent-3", properties={SESSION_EXPIRY_INTERVAL: 3600, RECEIVE_MAXIMUM: 20}, clean_start=False
    )
    assert await limited.subscribe(known, "more") == 0x97
    await limited.kill()
    await limited.start()
    assert limited.taken("VmHWM") < LIMIT + OVER
    await limited.kill()
    # With less at its start it sheds what is too much before anybody comes.
    shed = limited.log().count("memory_level level=shedding")
    await limited.start(limit=LIMIT - 24 * MIB)
    assert limited.taken("VmHWM") < LIMIT + OVER
    async with asyncio.timeout(patience(50)):
        while limited.log().count("memory_level level=shedding") == shed:
            await asyncio.sleep(0.1)


async def test_long_filters_are_bounded_by_client_and_by_the_node(limited: LimitedNode) -> None:
    """15,000 of 65,000 characters took 1 GB."""
    await limited.start()
    refused: set[str] = set()
    for client in range(8):
        peer = await limited.client(f"c{client}", 4, clean_start=False)
        for number in range(300):
            if await limited.subscribe(peer, f"{client}/{number}/{'x' * 65_000}/+") == 0x80:
                refused.add("client" if number >= 250 else "node")
                break
        if "node" in refused:
            break
    assert refused == {"client", "node"}
    assert limited.taken("VmHWM") < LIMIT + OVER
    await limited.said("setting=max_subscription_bytes", "setting=limits.memory")
    assert limited.log().count("store_compaction_started") < 5
    await limited.kill()
    await limited.start()
    assert limited.taken("VmHWM") < LIMIT + OVER


async def test_retained_messages_are_bounded(limited: LimitedNode) -> None:
    """However slow the disk is: while it was busy, nobody saw how much more waited for it, and 335 MB were taken."""
    limited.node.command = (sys.executable, "-c", SLOW_DISK)
    await limited.start("[retained]\nmax_bytes = 4000000\n")
    await limited.flood([publish(f"r/{number}", bytes(10_000), number + 1, True) for number in range(600)], 2400)
    await limited.said("reason=full setting=retained.max_bytes")
    await limited.kill()
    await limited.start("[retained]\nmax_bytes = 0\nmax_messages = 0\n")
    for half in range(2):
        many = [publish(f"r/{half}/{n}", bytes(20_000), n + 1, True) for n in range(3000)]
        await limited.flood(many, 12_000)
    await limited.said("reason=memory setting=limits.memory")
    assert limited.taken("VmHWM") < LIMIT + OVER
    # What is there can be cleared, and then there is room again.
    await limited.flood([publish(f"r/0/{n}", b"", n + 1, True) for n in range(3000)], 12_000)
    async with asyncio.timeout(patience(60)):
        while "level=normal" not in [line for line in limited.log().splitlines() if "memory_level" in line][-1]:
            await asyncio.sleep(0.1)
    await limited.flood([publish("r/new", b"x", 1, True)], 4)
    reader = await limited.client("reader", 4)
    await reader.subscribe("r/new", qos=1)
    await reader.expect_publish("r/new", b"x", 1, retain=True)


async def test_who_reads_nothing_does_not_fill_the_node(limited: LimitedNode) -> None:
    await limited.start("[zones.external]\nmax_outbox_bytes = 100000000\n")
    quiet = []
    for number in range(20):
        peer = await limited.client(f"quiet-{number}", 5)
        await peer.subscribe("t", qos=0, properties={SUBSCRIPTION_IDENTIFIER: number + 1})
        quiet.append(peer)
    source = await limited.client("source", 4)
    for _ in range(60):
        await source.publish("t", bytes(500_000), qos=1)
    assert limited.taken("VmHWM") < LIMIT + OVER
    await limited.said("reason=memory setting=limits.memory")
    await source.ping()


async def test_topic_aliases_count(limited: LimitedNode) -> None:
    await limited.start()
    ended = 0
    for number in range(40):
        reader, writer = await limited.connection()
        connect = frame(0x10, string("MQTT") + b"\x05\x02\0\0\0" + string(f"alias-{number}"))
        writer.write(connect)
        await reader.read(200)
        for alias in range(1, 64):
            topic = f"{number}/{alias}/{'x' * 65_000}"
            writer.write(frame(0x30, string(topic) + b"\x03\x23" + struct.pack(">H", alias)))
            try:
                await writer.drain()
            except ConnectionError:
                break
        writer.write(b"\xc0\0")
        try:
            answer = await reader.read(200)
        except ConnectionError:
            answer = b""
        ended += not answer.startswith(b"\xd0")
    assert ended and limited.taken("VmHWM") < LIMIT + OVER
    await limited.said("setting=limits.memory")
