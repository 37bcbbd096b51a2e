"""MemoryGuard: how much goes when memory is used up, and what is kept of who sent how much."""

import pytest

from broker.core.memory import BEGINS, ENDS
from broker.mqtt.packets import Subscribe, TopicFilter
from broker.session.account import NORMAL, SHEDDING, SLOWING
from broker.transport import memory_guard as module
from tests.support.durable import DurableHouse

pytestmark = pytest.mark.asyncio

READERS = 40


async def crowd(house: DurableHouse, messages: int, readers: int = READERS) -> None:
    """So many offline sessions, in whose queues are these messages."""
    for number in range(readers):
        reader = await house.join(f"r{number}")
        reader.send(Subscribe(1, [TopicFilter("t", 1)]))
        house.store()
        reader.vanish()
    writer = house.connect("w")
    for number in range(messages):
        writer.publish("t", b"x", 1, number + 1)
        if number % 50 == 49:
            house.store()
    house.store()


def use(house: DurableHouse, part: float) -> None:
    """Make the budget such that what is counted takes this part of it."""
    memory = house.server.memory
    memory._resident = lambda: memory.base
    memory.limit = int(memory.used / part)


def queued(house: DurableHouse) -> int:
    return sum(session.queued for session in house.broker.sessions)


@pytest.mark.interpreted
async def test_no_more_is_shed_than_has_to_be() -> None:
    """What says on disk that messages are gone takes memory as well, until it is written: more must not go for that."""
    house = DurableHouse()
    await crowd(house, 400)
    assert queued(house) == READERS * 400
    memory = house.server.memory
    memory.base = 100_000
    use(house, BEGINS[SHEDDING] + 0.01)
    house.server.guard.relieve()
    assert house.broker.account.level < SHEDDING
    assert memory.used < memory.limit * ENDS[SHEDDING]
    # Of what takes memory, but for the process, about a tenth has to go.
    assert READERS * 400 * 0.5 < queued(house) < READERS * 400


@pytest.mark.interpreted
async def test_all_sessions_are_looked_at_once_for_many_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd with short queues is shed without a look at the whole crowd for each few messages of it."""
    house = DurableHouse()
    await crowd(house, 8, 60)
    guard, memory = house.server.guard, house.server.memory
    monkeypatch.setattr(module, "_A_SLICE", 20)
    looks = 0
    rank = guard._rank

    def counted() -> bool:
        nonlocal looks
        looks += 1
        return rank()

    monkeypatch.setattr(guard, "_rank", counted)
    use(house, 1.5)
    memory.base = memory.limit  # nothing that goes is enough
    guard.relieve()
    assert queued(house) == 0
    assert looks <= 6  # each halves all queues, and the last finds none
    assert guard._largest == []


async def test_the_largest_queue_goes_first_and_small_ones_stay() -> None:
    house = DurableHouse()
    await crowd(house, 10, 20)
    large = await house.join("large")
    large.send(Subscribe(1, [TopicFilter("of/large", 1)]))
    house.store()
    large.vanish()
    writer = house.connect("w")
    for number in range(1000):
        writer.publish("of/large", bytes(100), 1, number + 1)
        if number % 50 == 49:
            house.store()
    house.store()
    house.server.memory.base = 100_000
    use(house, BEGINS[SHEDDING] + 0.01)
    house.server.guard.relieve()
    assert house.broker.account.level < SHEDDING
    assert {session.queued for session in house.broker.sessions if session.client_id.startswith("r")} == {10}
    session = house.broker.sessions.get("large")
    assert session is not None and 500 <= session.queued < 1000


async def test_who_has_gone_is_not_kept_for_what_it_sent() -> None:
    house = DurableHouse()
    await crowd(house, 1, 3)
    guard, memory = house.server.guard, house.server.memory
    use(house, BEGINS[SLOWING] + 0.01)
    guard.tick(house.clock.time)
    assert house.broker.account.level == SLOWING and guard._sent
    use(house, 0.5)
    house.clock.time += 2
    guard.tick(house.clock.time)
    assert house.broker.account.level == NORMAL and not guard._sent
    assert memory.used < memory.limit


async def test_what_waits_for_who_does_not_read_is_seen_before_the_next_tick() -> None:
    house = DurableHouse({"max_outbox_bytes": 1_000_000_000})
    readers = [await house.join(f"r{number}") for number in range(10)]
    for reader in readers:
        reader.send(Subscribe(1, [TopicFilter("t", 0)]))
        house.store()
        reader.received()
        reader.transport.block()
    memory, guard = house.server.memory, house.server.guard
    use(house, 0.5)
    memory.limit = memory.used + 40_000_000
    guard.tick(house.clock.time)
    for _ in range(200):
        house.publish("t", bytes(100_000))
        house.run()
    assert house.broker.account.level > NORMAL
    assert sum(each.channel.outlet.backlog for each in readers) < 40_000_000
    assert house.metrics.refusals.snapshot()["delivery_memory"] > 1000
