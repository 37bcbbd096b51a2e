"""Clients that lose their connections at any moment, both ends and both versions: nothing lost, doubled or disordered.

A seeded random walk; both sides keep what the standard makes them keep, and the books are compared at the end.
"""

import random

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Pingreq, Pingresp
from tests.support.clients import Clients, tcp
from tests.support.peer import Peer
from tests.support.wire import Publish

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60)]

SETTINGS = {"zone": {"max_queued_messages": 0, "max_queued_bytes": 0, "max_inflight": 7, "max_awaiting_rel": 50}}
TOPICS = 3


class Subscriber:
    """A client with a lasting session that acknowledges late, in part, or not at all before it goes."""

    def __init__(self, clients: Clients, name: str, rng: random.Random) -> None:
        self.clients = clients
        self.name = name
        self.rng = rng
        self.peer: Peer | None = None
        self.unreleased: set[int] = set()  # QoS 2 identifiers received, the client's session state
        self.once: list[tuple[str, int]] = []
        self.at_least_once: list[tuple[str, int]] = []
        self.owed: list[Ack] = []

    async def connect(self) -> None:
        version = self.rng.choice((4, 5))
        properties = {}
        if version == 5:
            properties = {c.SESSION_EXPIRY_INTERVAL: 600, c.RECEIVE_MAXIMUM: self.rng.randrange(1, 12)}
            if self.rng.random() < 0.5:
                properties[c.TOPIC_ALIAS_MAXIMUM] = 0
        self.owed.clear()
        self.peer = await self.clients.connect(self.name, False, version=version, properties=properties)

    async def drop(self) -> None:
        assert self.peer is not None
        if self.rng.random() < 0.5:
            self.peer.abort()
        else:
            await self.peer.close()
        self.peer = None

    async def read(self) -> int:
        """Take all that came; how many PUBLISH packets."""
        assert self.peer is not None
        found = 0
        await self.peer.send(Pingreq())
        while not isinstance(packet := await self.peer.receive(), Pingresp):
            if isinstance(packet, Publish):
                found += 1
                self._take(packet)
            else:
                assert isinstance(packet, Ack) and packet.type == c.PUBREL, packet
                self.unreleased.discard(packet.packet_id)
                self.owed.append(Ack(c.PUBCOMP, packet.packet_id))
        return found

    def _take(self, packet: Publish) -> None:
        entry = (packet.topic, int(packet.payload))
        if packet.qos == 1:
            self.at_least_once.append(entry)
            self.owed.append(Ack(c.PUBACK, packet.packet_id))
            return
        assert packet.qos == 2
        if packet.packet_id not in self.unreleased:
            self.unreleased.add(packet.packet_id)
            self.once.append(entry)
        else:
            assert packet.dup
        self.owed.append(Ack(c.PUBREC, packet.packet_id))

    async def acknowledge(self, share: float = 1.0) -> None:
        """Send some of the acknowledgements that are owed, in their order."""
        assert self.peer is not None
        count = round(len(self.owed) * share)
        await self.peer.send(*self.owed[:count])
        del self.owed[:count]


class Publisher:
    """A client with a lasting session that repeats what was not finished when it comes back."""

    def __init__(self, clients: Clients, name: str, rng: random.Random, prefix: str) -> None:
        self.clients = clients
        self.name = name
        self.rng = rng
        self.prefix = prefix
        self.peer: Peer | None = None
        self.unfinished: dict[int, Publish | None] = {}  # None: PUBREL is due
        self.sent: dict[int, list[tuple[str, int]]] = {1: [], 2: []}
        self._next_id = 0

    async def connect(self) -> None:
        version = self.rng.choice((4, 5))
        properties = {c.SESSION_EXPIRY_INTERVAL: 600} if version == 5 else {}
        self.peer = await self.clients.connect(self.name, False, version=version, properties=properties)
        for packet_id, publish in self.unfinished.items():
            if publish is None:
                await self.peer.pubrel(packet_id)
            else:
                publish.dup = True
                await self.peer.send(publish)

    def drop(self) -> None:
        assert self.peer is not None
        self.peer.abort()
        self.peer = None

    async def publish(self) -> None:
        assert self.peer is not None
        if len(self.unfinished) >= 10:
            return
        qos = self.rng.choice((1, 2))
        self._next_id = self._next_id % 65_535 + 1
        topic = f"{self.prefix}/{qos}/{self.rng.randrange(TOPICS)}"
        number = len(self.sent[qos])
        self.sent[qos].append((topic, number))
        publish = Publish(topic, b"%d" % number, qos, packet_id=self._next_id)
        self.unfinished[self._next_id] = publish
        await self.peer.send(publish)

    async def read(self) -> None:
        assert self.peer is not None
        await self.peer.send(Pingreq())
        while not isinstance(packet := await self.peer.receive(), Pingresp):
            assert isinstance(packet, Ack), packet
            if packet.type == c.PUBREC:
                assert packet.reason_code < 0x80
                del self.unfinished[packet.packet_id]
                self.unfinished[packet.packet_id] = None
                await self.peer.pubrel(packet.packet_id)
            else:
                assert packet.type in (c.PUBACK, c.PUBCOMP)
                del self.unfinished[packet.packet_id]


async def walk(clients: Clients, rng: random.Random) -> tuple[list[Publisher], list[Subscriber]]:
    subscribers = [Subscriber(clients, clients.name("sub"), rng) for _ in range(3)]
    for subscriber in subscribers:
        await subscriber.connect()
        assert subscriber.peer is not None
        await subscriber.peer.subscribe(f"{clients.topic}/#", qos=2)
    publishers = [Publisher(clients, clients.name("pub"), rng, f"{clients.topic}/{number}") for number in range(2)]
    for publisher in publishers:
        await publisher.connect()
    for _ in range(400):
        publisher = rng.choice(publishers)
        subscriber = rng.choice(subscribers)
        dice = rng.random()
        if dice < 0.45:
            await publisher.publish()
        elif dice < 0.6:
            await publisher.read()
        elif dice < 0.65:
            publisher.drop()
            await publisher.connect()
        elif dice < 0.93:
            if subscriber.peer is None:
                await subscriber.connect()
            await subscriber.read()
            await subscriber.acknowledge(rng.choice((0, 0.5, 1, 1)))
        elif subscriber.peer is not None:
            await subscriber.drop()
    for publisher in publishers:
        while publisher.unfinished:
            await publisher.read()
    for subscriber in subscribers:
        if subscriber.peer is None:
            await subscriber.connect()
        assert subscriber.peer is not None
        await subscriber.peer.settle()
        while await subscriber.read() or subscriber.owed:
            await subscriber.acknowledge()
        await subscriber.peer.nothing()
    return publishers, subscribers


@tcp
@pytest.mark.parametrize("version", [5])
@pytest.mark.parametrize("seed", range(12))
async def test_nothing_is_lost_doubled_or_disordered(clients: Clients, seed: int) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-4.4.0-1] [MQTT-4.6.0-1] [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4]
    [MQTT-4.6.0-5] [MQTT-4.6.0-6] [3.1.1 MQTT-4.6.0-1] [3.1.1 MQTT-4.6.0-2] [3.1.1 MQTT-4.6.0-3]
    [3.1.1 MQTT-4.6.0-4] [3.1.1 MQTT-4.6.0-5] [3.1.1 MQTT-4.6.0-6]"""
    publishers, subscribers = await walk(clients, random.Random(seed))
    for subscriber in subscribers:
        for publisher in publishers:
            for number in range(TOPICS):
                topic = f"{publisher.prefix}/2/{number}"
                wanted = [entry for entry in publisher.sent[2] if entry[0] == topic]
                assert [entry for entry in subscriber.once if entry[0] == topic] == wanted
                topic = f"{publisher.prefix}/1/{number}"
                wanted = [entry for entry in publisher.sent[1] if entry[0] == topic]
                found = [entry for entry in subscriber.at_least_once if entry[0] == topic]
                assert list(dict.fromkeys(found)) == wanted
