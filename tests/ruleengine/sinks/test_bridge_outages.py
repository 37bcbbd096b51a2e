"""Bridges over connections that break in the middle, and to brokers that are killed: what arrives, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taipan.broker.mqtt.constants import SESSION_EXPIRY_INTERVAL
from taipan.ruleengine.sinks.mqtt_bridge import action
from taipan.ruleengine.sinks.mqtt_bridge import resource as mqtt_bridge
from tests.ruleengine.sinks.remotes import KINDS, remote
from tests.support.fake_engine import FakeEngine, published
from tests.support.node import NodeProcess, free_port, start_node
from tests.support.peer import Address, Peer
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio

MESSAGES = 300
BREAKS = 12
VERSIONS = {"mqttv4": 4, "mqttv5": 5}
CONFIG = """
[node]
data_dir = "{directory}"

[durability]
level = "disk"

[[listeners]]
name = "default"
type = "tcp"
bind = "127.0.0.1:{port}"
"""


class BrokenLine:
    """Stands between a bridge and the other broker, and breaks each of the first connections after some kilobytes."""

    def __init__(self, target: int, breaks: int, rng: Random) -> None:
        self.port = 0
        self.broken = 0
        self._target = target
        self._breaks = breaks
        self._rng = rng
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        left = [self._rng.randrange(150, 900) if self.broken < self._breaks else 1 << 40]

        async def pipe(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while left[0] > 0 and (data := await source.read(min(left[0], 512))):
                left[0] -= len(data)
                sink.write(data)
                await sink.drain()

        pipes = [asyncio.ensure_future(pipe(reader, back)), asyncio.ensure_future(pipe(there, writer))]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            self.broken += left[0] <= 0
        except asyncio.CancelledError:
            pass  # of stop
        finally:
            for each in pipes:
                each.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            writer.transport.abort()
            back.transport.abort()


@asynccontextmanager
async def broken_line(port: int) -> AsyncIterator[BrokenLine]:
    made = BrokenLine(port, BREAKS, Random(port))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def run(engine: FakeEngine, port: int, **config: Any) -> Any:
    given = {"mountpoint": "", "pool_size": 1, "reconnect_interval": "20ms", **config}
    return engine.run(mqtt_bridge.TYPE, address=f"127.0.0.1:{port}", **given)


async def reader_at(port: int, version: int = 5) -> Peer:
    """Who comes later for all that was sent: its session is there, and what waits for it."""
    peer = Peer(Address("127.0.0.1", port), version)
    properties = {SESSION_EXPIRY_INTERVAL: 3600} if version == 5 else {}
    await peer.connect("reader", clean_start=False, properties=properties)
    return peer


async def drained(peer: Peer) -> list[int]:
    """Numbers of all messages, up to the one that says end."""
    numbers = []
    while (payload := (await peer.expect_publish()).payload) != b"end":
        numbers.append(int(payload))
    return numbers


def check(numbers: list[int], qos: int) -> None:
    everything = list(range(MESSAGES))
    if qos == 2:
        assert numbers == everything
    else:  # at least once, and in the order of their first coming
        assert list(dict.fromkeys(numbers)) == everything


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_sent_over_connections_that_break(tmp_path: Path, kind: str, version: str, qos: int) -> None:
    async with remote(kind, tmp_path) as there, broken_line(there.port) as line:
        engine = FakeEngine()
        reader = await reader_at(there.port, 4)
        await reader.subscribe("t/#", qos=2)
        bridge = run(engine, line.port, proto_ver=version)
        act = engine.action(action.TYPE, payload_tmpl="${n}")
        await until(lambda: bridge.alive)
        for number in range(MESSAGES):
            act.run({"n": number}, published("t/1", qos=qos))
        await until(lambda: engine.report.successes == MESSAGES)
        assert line.broken > 3 and engine.report.failures == []
        sender = await there.client()
        await sender.publish("t/1", b"end", 2)
        check(await drained(reader), qos)
        for peer in (sender, reader):
            await peer.close()
        await engine.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_fetched_over_connections_that_break(tmp_path: Path, kind: str, version: str, qos: int) -> None:
    async with remote(kind, tmp_path) as there, broken_line(there.port) as line:
        node = await start_node({"max_inflight": 1000})
        engine = FakeEngine(server=node.server)
        here = await node.client("here", 4)
        await here.subscribe("t/#", qos=2)
        bridge = run(engine, line.port, proto_ver=version, ingress=[{"remote_topic": "t/#", "qos": 2}])
        await until(lambda: bridge.sink._fetching.connected)
        sender = await there.client()
        for number in range(MESSAGES):
            await sender.publish("t/1", b"%d" % number, qos)
        await sender.publish("t/1", b"end", 2)
        check(await drained(here), qos)
        assert line.broken > 3
        await sender.close()
        await engine.close()
        await node.stop()


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_broker_that_is_killed_in_the_middle(tmp_path: Path, version: str, qos: int) -> None:
    """With its sessions on disk: what it has acknowledged is there, and at QoS 2 once."""
    port = free_port()
    config = tmp_path / "taipan.toml"
    config.write_text(CONFIG.format(directory=tmp_path / "data", port=port))
    node = await NodeProcess(config).start()
    engine = FakeEngine()
    try:
        reader = await reader_at(port)
        await reader.subscribe("t/#", qos=2)
        reader.abort()
        bridge = run(engine, port, proto_ver=version)
        act = engine.action(action.TYPE, payload_tmpl="${n}")
        await until(lambda: bridge.alive)
        for first in range(0, MESSAGES, MESSAGES // 4):
            for number in range(first, first + MESSAGES // 4):
                act.run({"n": number}, published("t/1", qos=qos))
            await until(lambda first=first: engine.report.successes > first + 10)
            node.process.kill()
            await node.process.communicate()
            await until(lambda: not bridge.alive)
            node = await NodeProcess(config).start()
        await until(lambda: engine.report.successes == MESSAGES)
        sender = Peer(Address("127.0.0.1", port))
        await sender.connect()
        await sender.publish("t/1", b"end", 2)
        reader = await reader_at(port)
        check(await drained(reader), qos)
        for peer in (sender, reader):
            await peer.close()
    finally:
        await engine.close()
        if node.process.returncode is None:
            node.process.kill()
            await node.process.communicate()
