"""MemoryGuard: how much goes when memory is used up, and what is kept of who sent how much."""

import pytest

from taipan.broker.core.memory import BEGINS, ENDS, SHEDDABLE
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Ack, Connect, Disconnect, Subscribe, TopicFilter
from taipan.broker.session.memory_account import NORMAL, SHEDDING, SLOWING
from taipan.broker.transport import memory_guard as module
from tests.support.durable_fake_node import DurableFakeNode
from tests.support.waiting import until
from tests.support.wire import Publish, encode

pytestmark = pytest.mark.asyncio

READERS = 40


async def crowd(node: DurableFakeNode, messages: int, readers: int = READERS) -> None:
    """So many offline sessions, in whose queues are these messages."""
    for number in range(readers):
        reader = await node.connect_durable(f"r{number}")
        reader.send(Subscribe(1, [TopicFilter("t", 1)]))
        node.store()
        reader.vanish()
    writer = node.connect("w")
    for number in range(messages):
        writer.publish("t", b"x", 1, number + 1)
        if number % 50 == 49:
            node.store()
    node.store()


def use(node: DurableFakeNode, part: float) -> None:
    """Make the budget such that what is counted takes this part of it."""
    memory = node.server.memory
    memory._resident = lambda: memory.base
    memory.limit = int(memory.used / part)


def queued(node: DurableFakeNode) -> int:
    return sum(session.queued for session in node.broker.sessions)


@pytest.mark.interpreted
async def test_no_more_is_shed_than_has_to_be() -> None:
    """What says on disk that messages are gone takes memory as well, until it is written: more must not go for that."""
    node = DurableFakeNode()
    await crowd(node, 400)
    assert queued(node) == READERS * 400
    memory = node.server.memory
    memory.base = 100_000
    use(node, BEGINS[SHEDDING] + 0.01)
    node.server.guard.shed_at_once()
    assert node.broker.account.level < SHEDDING
    assert memory.used < memory.limit * ENDS[SHEDDING]
    # Of what takes memory, but for the process, about a tenth has to go.
    assert READERS * 400 * 0.5 < queued(node) < READERS * 400


@pytest.mark.interpreted
async def test_all_sessions_are_looked_at_once_for_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd with short queues is shed without a look at the whole crowd for each few messages of it."""
    node = DurableFakeNode()
    await crowd(node, 8, 60)
    guard, memory = node.server.guard, node.server.memory
    monkeypatch.setattr(module, "_SLICE_MESSAGES", 20)
    looks = 0
    rank = guard._rank

    def counted() -> bool:
        nonlocal looks
        looks += 1
        return rank()

    monkeypatch.setattr(guard, "_rank", counted)
    memory.base = 0
    memory._resident = lambda: 0
    memory._sources = {name: memory._sources[name] for name in SHEDDABLE}
    memory.limit = 10  # all of it has to go
    guard.shed_at_once()
    assert queued(node) == 0
    assert looks <= 6  # each halves all queues, and the last finds none
    assert guard._largest == []


async def test_the_largest_queue_goes_first_and_small_ones_stay() -> None:
    node = DurableFakeNode()
    await crowd(node, 10, 20)
    large = await node.connect_durable("large")
    large.send(Subscribe(1, [TopicFilter("of/large", 1)]))
    node.store()
    large.vanish()
    writer = node.connect("w")
    for number in range(1000):
        writer.publish("of/large", bytes(100), 1, number + 1)
        if number % 50 == 49:
            node.store()
    node.store()
    node.server.memory.base = 100_000
    use(node, BEGINS[SHEDDING] + 0.01)
    node.server.guard.shed_at_once()
    assert node.broker.account.level < SHEDDING
    assert {session.queued for session in node.broker.sessions if session.client_id.startswith("r")} == {10}
    session = node.broker.sessions.get("large")
    assert session is not None and 500 <= session.queued < 1000


async def test_who_has_gone_is_not_kept_for_what_it_sent() -> None:
    node = DurableFakeNode()
    await crowd(node, 1, 3)
    guard, memory = node.server.guard, node.server.memory
    use(node, BEGINS[SLOWING] + 0.01)
    guard.tick(node.clock.time)
    assert node.broker.account.level == SLOWING and guard._sent
    use(node, 0.5)
    node.clock.time += 2
    guard.tick(node.clock.time)
    assert node.broker.account.level == NORMAL and not guard._sent
    assert memory.used < memory.limit


async def test_what_waits_for_who_does_not_read_is_seen_before_the_next_tick() -> None:
    node = DurableFakeNode({"max_outbox_bytes": 1_000_000_000})
    readers = [await node.connect_durable(f"r{number}") for number in range(10)]
    for reader in readers:
        reader.send(Subscribe(1, [TopicFilter("t", 0)]))
        node.store()
        reader.received()
        reader.transport.block()
    memory, guard = node.server.memory, node.server.guard
    use(node, 0.5)
    memory.limit = memory.used + 40_000_000
    guard.tick(node.clock.time)
    for _ in range(200):
        node.publish("t", bytes(100_000))
        node.run()
    assert node.broker.account.level > NORMAL
    assert sum(each.channel.writer.backlog for each in readers) < 40_000_000
    assert node.metrics.refusals.snapshot()["delivery_memory"] > 1000


async def test_who_sends_beginnings_of_large_packets_is_let_go_before_what_was_acknowledged() -> None:
    node = DurableFakeNode()
    await crowd(node, 50, 3)
    memory, guard, loop = node.server.memory, node.server.guard, node.loop
    memory.base = 100_000
    packet = encode(Publish("t", bytes(1_000_000), 1, packet_id=1), 5)
    hoarders = [node.connect(f"h{number}") for number in range(30)]
    for number, each in enumerate(hoarders):
        each.transport.feed(packet[: 500_000 + 1000 * number])
    honest = node.connect("honest")
    honest.transport.feed(packet[:60_000])
    room = sum(each.connection._decoder.unfinished for each in hoarders)
    assert sum(each.connection.buffered_bytes for each in hoarders) >= room > 15_000_000
    memory._resident = lambda: memory.base
    guard.tick(node.clock.time)
    use(node, BEGINS[SHEDDING] + 0.01)
    guard.tick(node.clock.time)
    loop.run()
    closed = [each.closed for each in hoarders]
    assert 1 <= closed.count(True) < 15 and closed == sorted(closed)
    assert not honest.closed and queued(node) == 150
    assert node.broker.account.level < SHEDDING
    last = hoarders[-1].received()[-1]
    assert isinstance(last, Disconnect) and last.reason_code == rc.QUOTA_EXCEEDED
    assert node.metrics.disconnects.snapshot()["memory"] == closed.count(True)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [1, 2])
async def test_what_would_be_shed_at_once_is_not_acknowledged(version: int, qos: int) -> None:
    """5.0 is told 0x97; 3.x waits until there is room. It was answered with success, and dropped."""
    node = DurableFakeNode()
    await crowd(node, 1, 3)
    writer = node.connect("writer", version=version)
    listener = node.connect("listener", version=version)
    listener.send(Subscribe(1, [TopicFilter("only/online", 1)]))
    listener.received()
    other = node.connect("other", version=version)
    use(node, 2.0)
    node.server.memory.base = 2 * node.server.memory.limit  # nothing that goes is enough
    node.server.guard.tick(node.clock.time)
    assert node.broker.account.level == SHEDDING and queued(node) == 3
    before = queued(node)
    writer.publish("t", b"x", qos, 7)
    node.store()
    kind = c.PUBACK if qos == 1 else c.PUBREC
    if version == 5:
        answer = writer.received()[0]
        assert isinstance(answer, Ack) and (answer.type, answer.reason_code) == (kind, rc.QUOTA_EXCEEDED)
    else:
        assert writer.received() == [] and not writer.closed
    assert queued(node) == before
    # Who is there gets it as ever.
    other.publish("only/online", b"y", 1, 8)
    node.store()
    assert [each.payload for each in listener.messages()] == [b"y"]
    use(node, 0.5)
    node.clock.time += 2
    node.server.guard.tick(node.clock.time)
    assert node.broker.account.level == NORMAL
    if version == 4:
        await until(lambda: node.store() or queued(node) == before + 3)
        assert writer.received() == [Ack(kind, 7)]


async def test_queues_stay_where_others_take_the_memory() -> None:
    """Those without a login are closed; what cannot be explained takes nothing from the queues."""
    node = DurableFakeNode()
    await crowd(node, 50, 3)
    memory, guard, loop = node.server.memory, node.server.guard, node.loop
    newcomers = [node.open() for _ in range(20)]
    for each in newcomers:
        each.transport.feed(encode(Connect(5, "x", username="u" * 60_000), 5)[:50_000])
    assert node.context.before_login.bytes == 1_000_000
    memory.base = 100_000
    memory._resident = lambda: 50_000_000
    memory.limit = 2_000_000
    node.clock.time += 2
    guard.tick(node.clock.time)
    loop.run()
    assert node.broker.account.level == SHEDDING
    assert all(each.closed for each in newcomers) and node.context.before_login.bytes == 0
    assert queued(node) == 150
