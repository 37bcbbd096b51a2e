"""Others are heard while one client is given, or asks for, very much; how long turns are is counted in tests/growth."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.mqtt.packets import Suback, Subscribe, TopicFilter, Will
from tests.support.peer import Peer

from .test_memory_limit import LimitedNode

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]

PATIENCE = 40.0
"""Seconds for the answer to a PINGREQ, on a machine that does much else."""


@pytest_asyncio.fixture(loop_scope="module")
async def limited(tmp_path: Path) -> AsyncIterator[LimitedNode]:
    limited = await LimitedNode(tmp_path).start(limit=2 << 30)
    yield limited
    for peer in limited.peers:
        peer.abort()
    await asyncio.sleep(0.01)
    await limited.kill()


class Pulse:
    """A client that asks again and again whether the node is there."""

    def __init__(self, peer: Peer) -> None:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._ask(peer))

    async def _ask(self, peer: Peer) -> None:
        while True:
            began = time.perf_counter()
            await peer.ping()
            self.longest = max(self.longest, time.perf_counter() - began)
            await asyncio.sleep(0.005)

    async def stop(self) -> float:
        self._task.cancel()
        await asyncio.wait([self._task])
        return self.longest


async def test_large_messages_to_many_who_read_nothing(limited: LimitedNode) -> None:
    for number in range(60):
        await (await limited.client(f"quiet-{number}", 4)).subscribe("large", qos=1)
    before = limited.taken()
    source = await limited.client("source", 4)
    pulse = Pulse(await limited.client("pulse", 4))
    await source.publish("large", bytes(2_000_000), 1)
    await asyncio.sleep(1)
    assert await pulse.stop() < PATIENCE
    # Its 2 MB are there once, and not for each of them.
    assert limited.taken() - before < 40_000_000


async def test_very_many_filters(limited: LimitedNode) -> None:
    client = await limited.client("many", 4)
    pulse = Pulse(await limited.client("pulse", 4))
    for start in range(0, 12_000, 4000):
        await client.send(Subscribe(1, [TopicFilter(f"f/{start + each}/+", 1) for each in range(4000)]))
        assert len((await client.answer(Suback, packet_id=1)).reason_codes) == 4000
    assert await pulse.stop() < PATIENCE


async def test_wills_of_very_many(limited: LimitedNode) -> None:
    watcher = await limited.client("watcher", 4)
    await watcher.subscribe("will/#", qos=0)
    crowd = [await limited.client(f"w{number}", 4, will=Will(f"will/{number}", b"bye")) for number in range(500)]
    pulse = Pulse(await limited.client("pulse", 4))
    for each in crowd:
        each.abort()
    told = {(await watcher.expect_publish(None, b"bye", 0)).topic for _ in crowd}
    assert len(told) == len(crowd)
    assert await pulse.stop() < PATIENCE
