"""Paging: long queues keep their bodies on disk, and nothing else about them changes."""

import asyncio
from collections import deque
from pathlib import Path
from random import Random

import pytest

from taipan.broker.config import BrokerSettings, ZoneSettings
from taipan.broker.core.broker import Broker
from taipan.broker.core.hooks import Hooks
from taipan.broker.loop.timers import Timers
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL, NEVER_EXPIRES, USER_PROPERTY
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.observability.metrics import Metrics
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.persistence.paging import FETCH_MESSAGES
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from taipan.broker.session.outbound_acks import puback, pubcomp, pubrec
from taipan.broker.session.queue import expire_queued
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from taipan.broker.store.store import Store
from tests.support.clock import Clock
from tests.support.one_by_one import OneByOne

KIB = 1024


class Client(OneByOne):
    """A writer whose client acknowledges when it is told to; ``got`` is what came."""

    def __init__(self, session: Session, node: "PagingNode", keep: bool = True) -> None:
        self.writable = True
        self.session = session
        self.node = node
        self.keep = keep
        self.got: list[tuple[str, bytes]] = []
        self.count = 0
        self.unacknowledged: deque[tuple[int, int]] = deque()
        self.most = 0

    def send_publish0(self, message: Message) -> None:
        self.got.append((message.topic, message.payload))

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        message = delivery.message
        if self.keep:
            self.got.append((message.topic, message.payload))
        else:
            assert message.payload.startswith(b"%d " % self.count)
        self.count += 1
        if delivery.qos:
            self.unacknowledged.append((packet_id, delivery.qos))
            self.most = max(self.most, len(self.unacknowledged))
        return True

    def send_publish_after(self, batch: int, delivery: Delivery, packet_id: int, dup: bool = False) -> bool:
        return self.send_publish(delivery, packet_id, dup)

    def send_pubrel(self, packet_id: int) -> None:
        pubcomp(self.session, packet_id)

    def acknowledge(self) -> None:
        """All that came so far."""
        for _ in range(len(self.unacknowledged)):
            packet_id, qos = self.unacknowledged.popleft()
            if qos == 1:
                puback(self.session, packet_id)
            else:
                pubrec(self.session, packet_id)
                pubcomp(self.session, packet_id)
        self.session.advance(self.node.clock.time)


class PagingNode:
    """A broker over a store on a real disk, without listeners; ``turn`` is the end of a loop turn."""

    def __init__(self, directory: Path, queue_memory: int, limits: Limits | None = None) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.limits = limits or Limits(max_queued_messages=0, max_queued_bytes=0)
        self.zone = ZoneSettings()
        self.hooks = Hooks()
        self.broker = Broker(
            BrokerSettings(), self.clock, Timers(self.clock), self.metrics, self.hooks, Random(1)  # type: ignore[arg-type]
        )  # fmt: skip
        self.store = Store(directory, queue_memory)
        self.durability = self.store.open(asyncio.get_running_loop(), self.wake, self.clock.now)
        self.broker.durability = self.durability
        for _ in self.store.recover_in_steps(
            self.broker, lambda _: (self.zone, self.limits), lambda message, due, number: None, lambda message: True
        ):
            pass
        self.paging = self.durability.paging
        self.published = 0

    def wake(self) -> None:
        asyncio.get_running_loop().call_soon(self.durability.commit.end_of_iteration)

    def session(self, client_id: str, filter: str = "t/#", qos: int = 1, expiry: int = NEVER_EXPIRES) -> Session:
        client = ClientInfo("n", self.zone, client_id=client_id)
        session, _ = self.broker.life.open_session(client, False, expiry, self.limits, self.clock.time)
        self.broker.subscribe(session, Subscription(session, filter, qos))
        return session

    def offline(self, client_id: str, filter: str = "t/#", qos: int = 1) -> Session:
        session = self.session(client_id, filter, qos)
        self.broker.life.leave(session, None, 0, self.clock.time, "normal")
        return session

    def connect(self, session: Session, window: int = 10, keep: bool = True) -> Client:
        client = Client(session, self, keep)
        session.attach(client, window, self.limits, self.clock.time, packets=client)
        session.advance(self.clock.time)
        return client

    def back(self, client_id: str, window: int = 10, keep: bool = True) -> Client:
        session = self.broker.sessions.get(client_id)
        assert session is not None
        return self.connect(session, window, keep)

    def publish(self, topic: str, payload: bytes, qos: int = 1) -> None:
        self.broker.publish(Message(topic, payload, qos, timestamp=self.clock.time))

    def fill(self, count: int, octets: int = KIB, topic: str = "t/a", qos: int = 1) -> None:
        for _ in range(count):
            self.publish(topic, (b"%d " % self.published).ljust(octets, b"."), qos)
            self.published += 1

    async def turn(self) -> None:
        """Until all is on disk and as much paged out as should be."""
        await self.store.flush()
        await self.rest()

    async def rest(self) -> None:
        """Until nothing more happens by itself."""
        while self.paging.busy:
            self.durability.commit.end_of_iteration()
            await asyncio.sleep(0.0005)

    async def drain(self, client: Client, total: int) -> None:
        """Acknowledge until so many messages came."""
        while client.count < total:
            client.acknowledge()
            await self.turn()
        client.acknowledge()

    async def close(self) -> None:
        await self.store.close()

    async def kill(self) -> None:
        """End without a word; what is not on disk by now does not get there."""
        self.durability.commit.log._writer.post = lambda job: None  # type: ignore[misc, assignment]
        self.durability.commit.log._log._abandon()

    @property
    def in_memory(self) -> int:
        return sum(len(stored.message.frame) for stored in self.durability.sessions.messages.values())


def numbers(client: Client) -> list[int]:
    return [int(payload.split(b" ")[0]) for _, payload in client.got]


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.asyncio
async def test_two_hundred_thousand_messages_in_four_mebibytes(tmp_path: Path) -> None:
    """Queued, killed, half drained, restarted, drained: in order, each once, memory bounded all along."""
    bound = 4 * KIB * KIB
    total = 200_000
    node = PagingNode(tmp_path, bound)
    node.offline("c")
    while node.published < total:
        node.fill(4000, 200)
        await node.turn()
        assert node.in_memory <= bound
    await node.kill()

    node = PagingNode(tmp_path, bound)
    assert node.in_memory <= bound
    client = node.back("c", keep=False)
    while client.count < total // 2:
        assert client.unacknowledged
        client.acknowledge()
        if client.count % 1000 == 0:
            await node.turn()
            assert node.in_memory <= bound + 300 * KIB
        else:
            await node.rest()
    await node.turn()
    assert client.most == 10
    done = client.count - len(client.unacknowledged)
    await node.close()

    node = PagingNode(tmp_path, bound)
    client = Client(node.broker.sessions.get("c"), node, keep=False)  # type: ignore[arg-type]
    client.count = done
    client.session.attach(client, 10, node.limits, node.clock.time, packets=client)
    client.session.advance(node.clock.time)
    while client.count < total:
        assert client.unacknowledged
        client.acknowledge()
        await node.rest()
    client.acknowledge()
    assert client.session.queued == 0 and not client.session.inflight
    await node.turn()
    assert not node.durability.sessions.messages and node.paging.bytes == 0
    await node.close()


@pytest.mark.asyncio
async def test_a_message_of_several_sessions_is_one_body(tmp_path: Path) -> None:
    node = PagingNode(tmp_path, 10 * KIB)
    sessions = [node.offline(f"c{number}", qos=1 + number % 2) for number in range(4)]
    node.fill(100, qos=2)
    await node.turn()
    assert node.in_memory == node.paging.bytes <= 10 * KIB
    paged = [stored for stored in node.durability.sessions.messages.values() if stored.message.paged]
    assert len(paged) > 80 and all(len(list(stored.holders())) == 4 for stored in paged)
    for session in sessions:
        client = node.connect(session, 50)
        await node.drain(client, 100)
        assert numbers(client) == list(range(100))
    assert not node.durability.sessions.messages
    await node.close()


@pytest.mark.asyncio
async def test_clean_sessions_and_retained_messages_keep_what_is_theirs(tmp_path: Path) -> None:
    """What is shared with somebody who has nothing on disk stays whole."""
    node = PagingNode(tmp_path, 1)
    node.offline("durable")
    clean = node.session("clean", expiry=0)
    slow = node.connect(clean, 1)
    for number in range(5):
        node.broker.publish(Message(f"t/{number}", b"%d retained" % number, 1, True, timestamp=node.clock.time))
    await node.turn()
    assert all(stored.message.paged for stored in node.durability.sessions.messages.values())
    while slow.unacknowledged:
        slow.acknowledge()
    assert numbers(slow) == [0, 1, 2, 3, 4]
    for number in range(5):
        message = node.broker.retained.get(f"t/{number}")
        assert message is not None and message.payload == b"%d retained" % number
    await node.close()


@pytest.mark.asyncio
async def test_expired_messages_go_without_being_read(tmp_path: Path) -> None:
    node = PagingNode(tmp_path, 1)
    session = node.offline("c")
    for number in range(10):
        message = Message("t/a", b"%d expires" % number, 1, timestamp=node.clock.time)
        message.properties = {MESSAGE_EXPIRY_INTERVAL: 5 if number % 2 else 50, USER_PROPERTY: [("k", "v" * 500)]}
        node.broker.publish(message)
    await node.turn()
    assert all(USER_PROPERTY not in stored.message.properties for stored in node.durability.sessions.messages.values())
    node.clock.time += 10
    expire_queued(session, node.clock.time)
    assert session.queued == 5
    client = node.connect(session)
    await node.rest()
    assert numbers(client) == [0, 2, 4, 6, 8]
    delivered = [delivery.message for delivery in session.inflight.values() if delivery is not None]
    assert all(message.properties[USER_PROPERTY] == [("k", "v" * 500)] for message in delivered)
    await node.close()


@pytest.mark.asyncio
async def test_queue_bounds_count_paged_messages_alike(tmp_path: Path) -> None:
    """The same messages are dropped, and the size is right to the byte whatever is paged."""
    limits = Limits(max_queued_messages=50, max_queued_bytes=30 * KIB)
    kept = []
    for bound in (0, 3 * KIB):
        directory = tmp_path / str(bound)
        directory.mkdir()
        node = PagingNode(directory, bound, limits)
        session = node.offline("c")
        for _ in range(30):
            node.fill(10, 700)
            await node.turn()
        assert session.queue is not None
        size = session.queue.size
        assert size == sum(delivery.size for delivery in session.queue)
        client = node.connect(session, 5)
        await node.rest()
        assert session.queue.size == sum(delivery.size for delivery in session.queue)
        await node.drain(client, session.queued + client.count)
        kept.append((size, numbers(client), node.metrics.delivery_dropped_queue_full))
        assert session.queued == 0
        await node.close()
    assert kept[0] == kept[1]


@pytest.mark.asyncio
async def test_priorities_keep_their_order(tmp_path: Path) -> None:
    limits = Limits(max_queued_messages=0, max_queued_bytes=0, priorities={"t/high": 9})
    node = PagingNode(tmp_path, 1, limits)
    session = node.offline("c")
    for number in range(20):
        node.publish("t/high" if number % 4 == 0 else "t/low", b"%d" % number)
    await node.turn()
    client = node.connect(session, 3)
    await node.drain(client, 20)
    high = [number for number in range(20) if number % 4 == 0]
    assert numbers(client) == high + [number for number in range(20) if number % 4]
    await node.close()


@pytest.mark.asyncio
async def test_takeover_and_end_while_a_read_is_under_way(tmp_path: Path) -> None:
    node = PagingNode(tmp_path, 1)
    node.offline("a")
    node.offline("b")
    node.fill(30)
    await node.turn()
    first = node.back("a")
    assert first.got == []
    second = node.back("a")  # before the disk has answered
    gone = node.back("b")
    node.broker.life.end_session(gone.session, "kicked", node.clock.time)
    await node.drain(second, 30)
    assert first.got == gone.got == []
    assert numbers(second) == list(range(30))
    await node.turn()
    assert not node.durability.sessions.messages and node.paging.bytes == 0
    await node.close()


@pytest.mark.asyncio
async def test_what_arrives_when_nobody_holds_it_any_more_is_not_counted(tmp_path: Path) -> None:
    node = PagingNode(tmp_path, 1)
    for _ in range(3):
        node.offline("a")
        node.fill(30)
        await node.turn()
        assert node.paging.bodies == 0
        messages = list(node.durability.sessions.messages.values())
        client = node.back("a")
        node.broker.life.end_session(client.session, "kicked", node.clock.time)  # before the disk has answered
        await node.turn()
        assert client.got == [] and not node.durability.sessions.messages
        assert node.paging.bodies == node.paging.bytes == 0
        assert all(each.message.stored is None for each in messages)
    await node.close()


@pytest.mark.parametrize(("expiry", "qos"), [(NEVER_EXPIRES, 1), (NEVER_EXPIRES, 0), (0, 1)])
@pytest.mark.asyncio
async def test_another_member_gets_what_a_shared_subscription_left(tmp_path: Path, expiry: int, qos: int) -> None:
    """Paged messages of a member whose session ends go to another one, durable or not."""
    node = PagingNode(tmp_path, 1)

    def join(client_id: str, qos: int, expiry: int) -> Session:
        session = node.session(client_id, "other", expiry=expiry)
        node.broker.subscribe(session, Subscription(session, "$share/g/t/#", qos, group="g", topic_filter="t/#"))
        return session

    leaving = join("a", 1, NEVER_EXPIRES)
    node.broker.life.leave(leaving, None, 0, node.clock.time, "normal")
    node.fill(20)
    await node.turn()
    assert leaving.queued == 20
    client = node.connect(join("b", qos, expiry), 100)
    node.broker.life.end_session(leaving, "kicked", node.clock.time)
    await node.rest()
    assert numbers(client) == list(range(20))
    client.acknowledge()
    await node.turn()
    assert not node.durability.sessions.messages and node.paging.bytes == 0
    await node.close()


@pytest.mark.asyncio
async def test_what_was_sent_stays_in_memory_until_it_is_acknowledged(tmp_path: Path) -> None:
    """A client that comes back gets it at once, from before a restart too."""
    node = PagingNode(tmp_path, 1)
    session = node.offline("c")
    node.fill(50)
    await node.turn()
    client = node.connect(session, 5)
    await node.rest()
    assert numbers(client) == [0, 1, 2, 3, 4]
    node.broker.life.leave(session, None, 0, node.clock.time, "normal")
    await node.turn()
    again = node.connect(session, 5)
    assert numbers(again) == [0, 1, 2, 3, 4]
    await node.turn()
    await node.kill()

    node = PagingNode(tmp_path, 1)
    client = node.back("c", 5)
    assert numbers(client) == [0, 1, 2, 3, 4]
    await node.drain(client, 50)
    assert numbers(client) == list(range(50))
    await node.close()


@pytest.mark.asyncio
async def test_compaction_takes_paged_messages_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old batches go, under traffic and while a client reads its queue; nothing is lost, after a kill neither."""
    monkeypatch.setattr("taipan.broker.store.compaction.COMPACT_ABOVE", 1)
    monkeypatch.setattr("taipan.broker.store.compaction._SLICE_RECORDS", 50)
    node = PagingNode(tmp_path, 20 * KIB)
    node.offline("keep")
    node.offline("other", "o")
    node.fill(400)
    for _ in range(30):
        node.publish("o", b"x" * 100 * KIB)
        await node.turn()
    node.broker.life.end_session(node.broker.sessions.get("other"), "kicked", node.clock.time)  # type: ignore[arg-type]
    await node.turn()
    first = node.durability.commit.log._log.first
    client = node.back("keep", 3)
    while node.durability.commit.log._log.first == first:
        node.store.compaction.run_slice(node.broker)
        await node.turn()
        client.acknowledge()
        node.fill(1)
        assert node.in_memory <= 20 * KIB + FETCH_MESSAGES * KIB
    oldest = min(stored.seq for stored in node.durability.sessions.messages.values() if stored.seq)
    assert oldest >= node.durability.commit.log._log.first > first
    unacknowledged = len(client.unacknowledged)
    got = numbers(client)
    assert got == list(range(len(got)))
    await node.turn()
    total = node.published
    await node.kill()

    node = PagingNode(tmp_path, 20 * KIB)
    client = node.back("keep", 100)
    await node.drain(client, total - len(got) + unacknowledged)
    assert numbers(client) == list(range(len(got) - unacknowledged, total))
    await node.close()


@pytest.mark.asyncio
async def test_a_read_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.broker.persistence.paging._RETRY_PAUSE", 0)
    node = PagingNode(tmp_path, 1)
    session = node.offline("c")
    node.fill(10)
    await node.turn()
    real = node.durability.commit.log.read
    failures = [1, 2]

    def read(seq: int, offset: int, size: int) -> asyncio.Future[bytes]:
        if failures:
            failures.pop()
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            future.set_exception(StoreError("input/output error"))
            return future
        return real(seq, offset, size)

    monkeypatch.setattr(type(node.durability.commit.log), "read", lambda self, *place: read(*place))
    client = node.connect(session, 100)
    await node.rest()
    assert numbers(client) == list(range(10)) and not failures
    await node.close()


@pytest.mark.asyncio
async def test_what_cannot_be_read_is_dropped_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the queue follows."""
    monkeypatch.setattr("taipan.broker.persistence.paging._RETRY_PAUSE", 0)
    node = PagingNode(tmp_path, 1)
    dropped: list[str] = []
    node.hooks.delivery_dropped.add(lambda client, session, message, reason: dropped.append(reason))
    session = node.offline("c")
    node.fill(10)
    await node.turn()
    node.durability.sessions.messages[4].offset += 1
    client = node.connect(session, 100)
    await node.drain(client, 9)
    assert numbers(client) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert dropped == ["unreadable"] and not node.durability.sessions.messages
    await node.close()


@pytest.mark.asyncio
async def test_without_a_bound_nothing_is_paged(tmp_path: Path) -> None:
    node = PagingNode(tmp_path, 0)
    session = node.offline("c")
    node.fill(100)
    await node.turn()
    assert not any(stored.message.paged for stored in node.durability.sessions.messages.values())
    await node.close()
    node = PagingNode(tmp_path, 0)
    client = node.back("c", 200)
    assert numbers(client) == list(range(100)) and session.queued == 100
    await node.close()


def test_the_payload_of_a_paged_message_is_not_made_up() -> None:
    from taipan.broker.persistence.paging import evicted_copy

    message = evicted_copy(Message("t", b"abc", 1), 3)
    assert message.paged and message.payload_size == 3
    with pytest.raises(LookupError):
        message.payload  # noqa: B018
