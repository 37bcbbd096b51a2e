"""One order per publisher and topic, whatever the QoS, the same when it is sent again: random mixtures to a durable
session, with a disk that writes when it likes, a client that comes and goes, and power cuts."""

import asyncio
from collections import defaultdict
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Connack, Connect, Subscribe, TopicFilter
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.fake_node import FakeClient
from tests.support.wire import Publish

TOPICS = ("t/a", "t/b", "t/c")

publishes = st.tuples(st.just("publish"), st.lists(st.tuples(st.sampled_from(TOPICS), st.integers(0, 2)), max_size=6))
steps = st.lists(
    st.one_of(
        publishes,
        publishes,
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("acknowledge"), st.integers(0, 5)),
        st.tuples(st.just("return"), st.integers(1, 6)),
        st.tuples(st.just("vanish"), st.none()),
        st.tuples(st.just("block"), st.integers(0, 60)),
        st.tuples(st.just("unblock"), st.none()),
        st.tuples(st.just("crash"), st.none()),
    ),
    max_size=25,
)


class Run:
    """``connections``: of each of the reader's, the numbers of the messages that it got, in order."""

    def __init__(self, version: int, zone: dict[str, Any]) -> None:
        self.version = version
        self.node = DurableFakeNode(zone)
        self.number = 0
        self.topic_of: dict[int, str] = {}
        self.qos_of: dict[int, int] = {}
        self.promised: set[int] = set()
        self.connections: list[list[int]] = []
        self.open: list[Publish] = []
        self.unwritten: dict[int, int] = {}  # Packet Identifier of the writer -> message
        self.reader: FakeClient | None = None
        self.writer: FakeClient

    async def begin(self) -> None:
        self.writer = self.node.connect("w", version=4)
        await self.come(6)
        assert self.reader is not None
        self.reader.send(Subscribe(1, [TopicFilter("t/#", 2)]))
        self.node.store()
        self.reader.received()

    async def come(self, receive_maximum: int) -> None:
        properties = {c.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF, c.RECEIVE_MAXIMUM: receive_maximum}
        reader = self.reader = self.node.open(self.version)
        reader.send(Connect(self.version, "r", False, 0, None, None, None, properties if self.version == 5 else {}))
        self.connections.append([])
        self.open = []
        for _ in range(3):
            await self.node.settle()
            self.node.journal.write()
        self.hear()

    def hear(self) -> None:
        if self.reader is not None:
            for packet in self.reader.received():
                if isinstance(packet, Publish):
                    self.connections[-1].append(int(packet.payload))
                    if packet.qos:
                        self.open.append(packet)
                elif isinstance(packet, Ack) and packet.type == c.PUBREL:
                    self.reader.pubcomp(packet.packet_id)
                else:
                    assert isinstance(packet, Connack), packet
        for packet in self.writer.received():
            assert isinstance(packet, Ack)
            if packet.type == c.PUBREC:
                self.writer.send(Ack(c.PUBREL, packet.packet_id))
            if packet.type != c.PUBCOMP:
                self.promised.add(self.unwritten.pop(packet.packet_id))

    def publish(self, messages: list[tuple[str, int]]) -> None:
        packets = []
        for topic, qos in messages:
            self.number += 1
            self.topic_of[self.number], self.qos_of[self.number] = topic, qos
            if qos:
                self.unwritten[self.number] = self.number
            packets.append(Publish(topic, b"%d" % self.number, qos, packet_id=self.number if qos else 0))
        if packets:
            self.writer.send(*packets)

    def acknowledge(self, most: int) -> None:
        if self.reader is not None:
            for packet in self.open[:most]:
                self.reader.send(Ack(c.PUBACK if packet.qos == 1 else c.PUBREC, packet.packet_id))
            del self.open[:most]

    async def take(self, what: str, argument: Any) -> None:
        if what == "publish":
            self.publish(argument)
        elif what == "write":
            self.node.journal.write()
        elif what == "acknowledge":
            self.hear()
            self.acknowledge(argument)
        elif what in ("return", "vanish"):
            self.hear()
            if self.reader is not None:
                self.reader.vanish()
                self.reader = None
            if what == "return":
                await self.come(argument)
        elif what == "block" and self.reader is not None:
            self.reader.transport.block(argument)
        elif what == "unblock" and self.reader is not None:
            self.reader.transport.unblock()
        elif what == "crash":
            self.hear()
            self.node = self.node.crash()
            self.reader = None
            self.unwritten.clear()
            self.writer = self.node.connect("w", version=4)
        self.hear()

    async def finish(self) -> None:
        await self.take("return", 6)
        for _ in range(self.number + 3):
            self.node.store()
            await self.node.settle()
            self.hear()
            self.acknowledge(10)

    def check(self) -> None:
        seen: dict[str, list[int]] = defaultdict(list)
        for connection in self.connections:
            for number in connection:
                topic = seen[self.topic_of[number]]
                if number not in topic:
                    topic.append(number)
        for topic, numbers in seen.items():
            assert numbers == sorted(numbers), f"first deliveries of {topic}: {numbers}"
        for before, after in pairwise(self.connections):
            both = {number for number in {*before} & {*after} if self.qos_of[number]}
            first = [number for number in dict.fromkeys(before) if number in both]
            again = [number for number in dict.fromkeys(after) if number in both]
            assert first == again, "sent again in another order"
        got = {number for connection in self.connections for number in connection}
        assert self.promised <= got, "promised, and never delivered"


@settings(deadline=None)
@given(st.sampled_from((4, 5)), st.sampled_from((2, 5, 32)), steps)
def test_one_order_per_publisher_and_topic(version: int, window: int, taken: list[tuple[str, Any]]) -> None:
    """[MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-1]"""

    async def run() -> None:
        zone = {"max_inflight": window, "session_expiry_interval": 0xFFFFFFFF, "slow_reader_timeout": 0}
        test = Run(version, zone)
        await test.begin()
        for what, argument in taken:
            await test.take(what, argument)
        await test.finish()
        test.check()

    asyncio.run(run())
