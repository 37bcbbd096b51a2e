"""LinkWriter: which messages go in one frame, and when. Time is the test's."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from taipan.broker.cluster.link_writer import COLLECT_FOR, FRAME_BYTES, MANY, LinkWriter
from taipan.broker.config import BrokerSettings, ZoneSettings
from taipan.broker.core.broker import Broker
from taipan.broker.core.hooks import Hooks
from taipan.broker.loop.clock import Clock
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.message_ids import MessageIds
from taipan.broker.observability.metrics import Metrics
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from tools.simulation.loop import VirtualLoop

CREDIT = 1 << 20


class Sending:
    """A writer, and the frames it sent: when, and how many messages each."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        clock = Clock()
        settings = msgspec.convert({}, BrokerSettings)
        broker = Broker(settings, clock, Timers(clock), Metrics(), Hooks(), Random(1))
        client = ClientInfo("n1@127.0.0.1", ZoneSettings(), client_id="link")
        session = self.session = broker.open_internal(client, Limits(), clock.now())
        self.frames: list[tuple[float, int]] = []
        self.begun = loop.time()

        def send(number: int, after: int, first: int, publishers: Any, messages: list[Any], runs: list[Any]) -> int:
            assert after == self.upto and first == after + 1
            count = self.writer._sent_upto - after
            self.upto += count
            self.frames.append((round(loop.time() - self.begun, 6), count))
            return count * 100

        self.upto = 0
        self.writer = LinkWriter(session, broker, None, CREDIT, MessageIds(Random(1)), send, loop)
        self._last = 0

    def publish(self, count: int, size: int = 100) -> None:
        """So many messages of one read."""
        run = []
        for _ in range(count):
            frame = b"\x32\x00\x00\x01t\x00\x01" + bytes(size)
            message = Message("t", None, 1, False, {}, None, 0.0, frame, 7, 1, False)
            message.frame_version, message.packet_id_at = 4, 5
            run.append(message)
        assert self.writer.may_hold(count)
        self._last = self.writer.hold_run(run, self._last)


def simulated(scenario: Callable[[Sending], Awaitable[None]]) -> list[tuple[float, int]]:
    async def main() -> list[tuple[float, int]]:
        sending = Sending()
        await scenario(sending)
        return sending.frames

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_single_messages_go_at_the_end_of_the_iteration() -> None:
    async def scenario(sending: Sending) -> None:
        for _ in range(3):
            sending.publish(1)
            sending.publish(1)
            await asyncio.sleep(0.0002)

    assert simulated(scenario) == [(0.0, 2), (0.0002, 2), (0.0004, 2)]


def test_shortly_after_a_frame_of_many_the_next_are_collected() -> None:
    async def scenario(sending: Sending) -> None:
        for _ in range(7):
            sending.publish(MANY)
            await asyncio.sleep(COLLECT_FOR / 4)
        await asyncio.sleep(1)

    assert simulated(scenario) == [(0.0, MANY), (0.00125, 4 * MANY), (0.00225, 2 * MANY)]


def test_what_is_collected_goes_at_once_when_it_fills_a_frame() -> None:
    async def scenario(sending: Sending) -> None:
        sending.publish(MANY)
        await asyncio.sleep(0.0001)
        sending.publish(MANY)
        sending.publish(FRAME_BYTES // 1000, 1000)
        await asyncio.sleep(0.0001)
        assert sum(count for _, count in sending.frames) == 2 * MANY + FRAME_BYTES // 1000
        await asyncio.sleep(1)

    frames = simulated(scenario)
    assert {at for at, _ in frames} == {0.0, 0.0001}


def test_a_message_that_comes_later_does_not_wait() -> None:
    async def scenario(sending: Sending) -> None:
        sending.publish(MANY)
        await asyncio.sleep(0.01)
        sending.publish(1)
        await asyncio.sleep(1)

    assert simulated(scenario) == [(0.0, MANY), (0.01, 1)]


def test_what_is_collected_when_the_link_closes_is_the_sessions() -> None:
    async def scenario(sending: Sending) -> None:
        sending.publish(MANY)
        await asyncio.sleep(0.0001)
        sending.publish(3)
        sending.writer.begin(0, 0)
        await asyncio.sleep(1)
        assert sending.writer.held == 0 and len(sending.session.inflight) == MANY + 3

    assert simulated(scenario) == [(0.0, MANY)]


@pytest.mark.parametrize("count", [1, MANY - 1])
def test_few_in_a_frame_make_no_message_wait(count: int) -> None:
    async def scenario(sending: Sending) -> None:
        for _ in range(5):
            sending.publish(count)
            await asyncio.sleep(0.0005)

    assert [at for at, _ in simulated(scenario)] == [0.0, 0.0005, 0.001, 0.0015, 0.002]
