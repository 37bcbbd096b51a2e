"""Passwords that wait for a thread: whose turn it is, how many may wait, who is told busy, what is not done."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.access.hash_queue import KNOWN, NEW, OTHER, HashingBusy, HashQueue, Job
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


class BlockedQueue:
    """A queue of one thread that stands still until ``open``, and what it did in which order."""

    def __init__(self) -> None:
        self.queue = HashQueue(1, 60.0)
        self.opened = threading.Event()
        self.done: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def add(self, label: str, kind: int = OTHER, address: str = "a", name: bytes = b"n", delay: float = 0.0) -> Job:
        job = Job(label.encode(), kind, address, name, self._work(label))
        self.queue.add(job, delay)
        self.tasks.append(asyncio.ensure_future(self.queue.result(job)))
        return job

    def _work(self, label: str) -> Callable[[], str]:
        def work() -> str:
            assert self.opened.wait(5)
            self.done.append(label)
            return label

        return work

    async def run(self) -> list[str]:
        await asyncio.sleep(0)
        self.opened.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), patience(40))
        return self.done


@pytest_asyncio.fixture
async def blocked() -> AsyncIterator[BlockedQueue]:
    blocked = BlockedQueue()
    yield blocked
    blocked.opened.set()
    blocked.queue.close()


async def test_addresses_take_turns(blocked: BlockedQueue) -> None:
    for number in range(20):
        blocked.add(f"flood {number}", address="flood")
    blocked.add("one", address="one")
    # Two were with the thread already.
    assert (await blocked.run()).index("one") <= 3


async def test_names_of_an_address_take_turns(blocked: BlockedQueue) -> None:
    for number in range(20):
        blocked.add(f"flood {number}", name=b"attacked")
    blocked.add("neighbour", name=b"neighbour")
    assert (await blocked.run()).index("neighbour") <= 3


async def test_known_ones_first_and_nobody_never(blocked: BlockedQueue) -> None:
    for number in range(2):
        blocked.add(f"first {number}")
    for number in range(20):
        blocked.add(f"new {number}", NEW)
        blocked.add(f"other {number}", OTHER)
        blocked.add(f"known {number}", KNOWN)
    order = [label.split()[0] for label in await blocked.run()][2:]
    assert order[:16].count("known") == 10 and order[:16].count("other") == 4 and order[:16].count("new") == 2


async def test_what_nobody_waits_for_is_not_done(blocked: BlockedQueue) -> None:
    blocked.add("running")
    blocked.add("next")
    left, stays = blocked.add("left"), blocked.add("stays")
    shared = asyncio.ensure_future(blocked.queue.result(stays))
    await asyncio.sleep(0)
    blocked.tasks[2].cancel()
    shared.cancel()  # one of two
    await asyncio.sleep(0)
    assert blocked.queue.find(left.key) is None and len(blocked.queue) == 1
    assert await blocked.run() == ["running", "next", "stays"]


async def test_an_address_that_fills_the_queue_gives_way(blocked: BlockedQueue) -> None:
    blocked.queue.patience, blocked.queue.seconds = 20.0, 1.0
    assert blocked.queue.limit == 20
    for number in range(22):
        blocked.add(f"flood {number}", address="flood")
    with pytest.raises(HashingBusy):
        blocked.add("one more", address="flood")
    blocked.add("somebody else", address="else")
    assert len(blocked.queue) == 20
    assert "somebody else" in await blocked.run() and "flood 21" not in blocked.done
    assert isinstance((await asyncio.gather(blocked.tasks[21], return_exceptions=True))[0], HashingBusy)


async def test_how_many_may_wait_follows_the_time_of_a_hash(blocked: BlockedQueue) -> None:
    blocked.queue.seconds = 0.5
    assert blocked.queue.limit == 120
    for number in range(32):
        blocked.add(str(number))
    await blocked.run()
    assert blocked.queue.seconds < 0.2 and blocked.queue.limit > 300


async def test_who_waits_longer_than_is_allowed_is_told_so(blocked: BlockedQueue) -> None:
    blocked.add("running")
    blocked.add("next")
    blocked.add("waits")
    blocked.queue.patience = 0.05
    await asyncio.sleep(0.06)
    assert "waits" not in await blocked.run()
    assert isinstance(blocked.tasks[2].exception(), HashingBusy)


async def test_a_slowed_address_has_one_turn_at_a_time(blocked: BlockedQueue) -> None:
    blocked.opened.set()
    begun = time.monotonic()
    for number in range(4):
        blocked.add(f"slow {number}", address="slow", delay=0.05)
    blocked.add("free", address="free")
    await blocked.run()
    assert blocked.done[0] == "free"
    assert time.monotonic() - begun > 0.05 + 3 * 0.1 - 0.02


async def test_a_slowed_one_that_leaves_uses_no_turn(blocked: BlockedQueue) -> None:
    blocked.opened.set()
    for number in range(50):
        blocked.add(f"gone {number}", address="slow", delay=1.0)
    await asyncio.sleep(0)
    for task in blocked.tasks:
        task.cancel()
    await asyncio.sleep(0)
    blocked.tasks.clear()
    blocked.add("stays", address="slow", delay=0.02)
    assert await asyncio.wait_for(blocked.run(), 25) == ["stays"]  # 50 s with the others' turns


async def test_all_processors_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    queue = HashQueue(None, 1.0)
    assert queue.threads == 3
    queue.resize(5)
    assert queue.threads == 5
    queue.close()


async def test_known_names_are_taken_where_unknown_ones_of_their_address_fill_the_queue(
    blocked: BlockedQueue,
) -> None:
    blocked.queue.seconds, blocked.queue.patience = 1.0, 20.0
    for number in range(22):  # two are with the thread
        blocked.add(f"guess {number}", address="nat", name=b"%d" % number, delay=0.02 if number > 1 else 0.0)
    await asyncio.sleep(0.05)
    with pytest.raises(HashingBusy):
        blocked.add("unknown", address="nat")
    blocked.add("known", KNOWN, address="nat")
    done = await blocked.run()
    assert "known" in done and "guess 21" not in done


async def test_who_is_not_slowed_does_not_wait_for_the_pauses_of_its_address(blocked: BlockedQueue) -> None:
    blocked.opened.set()
    for number in range(30):
        blocked.add(f"slow {number}", address="nat", name=b"%d" % number, delay=0.2)
    await asyncio.sleep(0.05)
    known = [blocked.add(f"known {number}", KNOWN, address="nat") for number in range(60)]
    await asyncio.wait_for(asyncio.gather(*(job.future for job in known)), 30)  # 40 s with the others' pauses
    for task in blocked.tasks:
        task.cancel()
    await asyncio.gather(*blocked.tasks, return_exceptions=True)
