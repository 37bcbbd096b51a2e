"""LinkWriter: which messages go in one frame, and when. Time is the test's."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest

from taipan.broker.cluster.links.link_writer import COLLECT_FOR, FRAME_BYTES, MANY, LinkWriter
from taipan.broker.config import BrokerSettings, ZoneSettings
from taipan.broker.core.broker import Broker
from taipan.broker.core.hooks import Hooks
from taipan.broker.loop.clock import Clock
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.decoder import Decoder, TopicNames
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.message_ids import MessageIdSource, id_of
from taipan.broker.mqtt.run import Run
from taipan.broker.observability.metrics import Metrics
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from tools.simulation.loop import VirtualLoop

CREDIT = 1 << 20
PREFIX = "A" * 16
USER = b"\x26\x00\x01k\x00\x01v"
"""A User Property."""


def received(payload: bytes, qos: int = 1, properties: bytes = b"", number: int = 0, id: str = "") -> Message:
    """As a client of 5.0 has sent it; ``number``: of its id."""
    decoder = Decoder(TopicNames(False), 1 << 20, 1 << 20)
    decoder.version = 5
    body = b"\x00\x01t" + (b"\x00\x09" if qos else b"") + bytes((len(properties),)) + properties + payload
    length = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 0x7F | 0x80, len(body) >> 7))
    (message,) = decoder.feed(bytes((0x30 | qos << 1,)) + length + body)
    assert isinstance(message, Message)
    if id:
        message.id = id
    elif number:
        message.id_prefix, message.id_number = PREFIX, number
    return message


class Sending:
    """A writer, and the frames it sent: when, and how many messages each."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        clock = Clock()
        settings = msgspec.convert({}, BrokerSettings)
        broker = Broker(settings, clock, Timers(clock), Metrics(), Hooks(), Random(1))
        client = ClientInfo("n1@127.0.0.1", ZoneSettings(), client_id="\0link:n2@127.0.0.1")
        session = self.session = broker.life.open_internal(client, Limits(), clock.now())
        self.frames: list[tuple[float, int]] = []
        self.begun = loop.time()

        def send(number: int, after: int, first: int, publishers: Any, messages: list[Any], runs: list[Any]) -> int:
            assert after == self.upto and first == after + 1
            count = self.writer._sent_upto - after
            self.upto += count
            self.frames.append((round(loop.time() - self.begun, 6), count))
            self.runs += [(each[4], each[8], each[9]) for each in runs]
            return count * 100

        self.upto = 0
        self.runs: list[tuple[list[str], str, int]] = []
        self.writer = LinkWriter(session, broker, None, CREDIT, MessageIdSource(Random(1)), send, loop)
        self._last = 0

    def publish(self, count: int, size: int = 100) -> None:
        """So many messages of one read."""
        self.hold([received(b"x" * size) for _ in range(count)])

    def hold(self, run: list[Message]) -> None:
        assert self.writer.may_keep(len(run))
        self._last = self.writer.keep(run, self._last)


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


@pytest.mark.parametrize("qos", [0, 1])
def test_ids_of_a_run_are_its_first_ones_or_each(qos: int) -> None:
    async def scenario(sending: Sending) -> None:
        def send(run: list[Message]) -> tuple[list[str], str, int]:
            sending.hold(run) if qos else sending.writer.send_run0(Run("t", 0, run))
            sending.writer.flush()
            (found,) = sending.runs
            sending.runs.clear()
            return found

        def run(*numbers: int) -> list[Message]:
            return [received(b"%d" % number, qos, number=number) for number in numbers]

        assert send(run(7, 8, 9)) == ([], PREFIX, 7)
        assert send(run(0, 0)) == ([], "", 0)
        assert send(run(7, 9)) == ([id_of(PREFIX, 7), id_of(PREFIX, 9)], "", 0)
        assert send(run(7, 0, 0)) == ([id_of(PREFIX, 7), "", ""], "", 0)
        own = received(b"1", qos, id="mine")
        assert send([own, *run(0)]) == (["mine", ""], "", 0)
        assert send([*run(3, 4), own, *run(5)]) == (
            [id_of(PREFIX, 3), id_of(PREFIX, 4), "mine", id_of(PREFIX, 5)],
            "",
            0,
        )

    simulated(scenario)


@pytest.mark.parametrize("acknowledged", [0, 2])
def test_what_was_held_is_whole_when_the_link_closes(acknowledged: int) -> None:
    """Of several messages only the packets are there."""

    async def scenario(sending: Sending) -> None:
        publisher = ClientInfo("n1@127.0.0.1", ZoneSettings(), client_id="p")
        run = [received(b"%d" % number, properties=USER, number=number) for number in range(1, 5)]
        run += [received(b"%d" % number, number=number) for number in range(8, 11)]
        for message in run:
            message.publisher, message.timestamp = publisher, 12.5
        sending.hold(run)
        sending.writer.flush()
        assert sending.writer.acknowledged(acknowledged) == [] and sending.writer.held == 7 - acknowledged
        sending.writer.begin(acknowledged, 7)
        found = [each.message for each in sending.session.inflight.values() if each is not None]
        assert list(sending.session.inflight) == list(range(acknowledged + 1, 8))
        for message, before in zip(found, run[acknowledged:], strict=True):
            assert (message.topic, message.payload, message.properties, message.id, message.qos) == (
                before.topic, before.payload, before.properties, before.id, 1,
            )  # fmt: skip
            assert (message.publisher, message.timestamp) == (publisher, 12.5)

    simulated(scenario)


def test_messages_of_qos_0_that_do_not_go_are_counted() -> None:
    async def scenario(sending: Sending) -> None:
        refusals = sending.writer._broker.metrics.refusals
        sending.writer.send_run0(Run("t", 0, [received(b"1", 0) for _ in range(3)]))
        sending.writer.begin(0, 0)
        assert refusals.snapshot()["cluster_link_qos0_msg"] == 3
        size = len(received(b"x" * 1000, 0).frame)
        fits = CREDIT // size
        sending.writer.send_run0(Run("t", 0, [received(b"x" * 1000, 0) for _ in range(fits + 10)]))
        assert 9 <= refusals.snapshot()["cluster_link_full"] <= 13

    simulated(scenario)
