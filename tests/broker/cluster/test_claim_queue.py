"""Claims that need sessions of one node ask it in their order, and a limited number at a time."""

import asyncio
from collections.abc import Callable

import pytest

from taipan.broker.cluster.moving.claim_queue import _MOST_ASKING, ASK_AGAIN, ClaimQueue
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio


class Claims:
    """Claims in a queue. ``asks`` has those that ask the node now, ``refused`` those whose turn has not come."""

    def __init__(self) -> None:
        self.queue = ClaimQueue()
        self.asks: list[int] = []
        self.refused: list[int] = []
        self._ends: dict[int, asyncio.Event] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, number: int, time: float = 60.0, waits: Callable[[], bool] = lambda: True) -> None:
        until = asyncio.get_running_loop().time() + time
        self._ends[number] = asyncio.Event()
        self._tasks[number] = asyncio.create_task(self._claim(number, until, waits))

    async def _claim(self, number: int, until: float, waits: Callable[[], bool]) -> None:
        async with self.queue.turn(number, until, waits) as asks:
            if not asks:
                self.refused.append(number)
                return
            self.asks.append(number)
            try:
                await self._ends[number].wait()
            finally:
                self.asks.remove(number)

    async def end(self, number: int) -> None:
        self._ends[number].set()
        await self._tasks[number]
        await asyncio.sleep(0)

    async def cancel(self, number: int) -> None:
        self._tasks[number].cancel()
        await asyncio.gather(self._tasks[number], return_exceptions=True)
        await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(patience(10.0)):
            while not condition():
                await asyncio.sleep(0.01)


async def test_a_limited_number_asks_at_a_time_and_the_first_come_first() -> None:
    claims = Claims()
    for number in range(_MOST_ASKING + 3):
        claims.begin(number)
    await asyncio.sleep(0)
    assert claims.asks == list(range(_MOST_ASKING))
    assert claims.queue.is_long
    await claims.end(5)
    assert claims.asks[-1] == _MOST_ASKING
    claims.begin(2_000)
    claims.begin(1_000)
    for number in (6, 7, 8, 9):
        await claims.end(number)
    assert claims.asks[-4:] == [_MOST_ASKING + 1, _MOST_ASKING + 2, 1_000, 2_000]
    assert not claims.queue.is_long


async def test_one_claim_asks_while_the_node_does_not_answer() -> None:
    claims = Claims()
    loop = asyncio.get_running_loop()
    claims.queue.not_answered("it does not run")
    failed = loop.time()
    for number in range(3):
        claims.begin(number)
    await asyncio.sleep(0)
    assert claims.asks == [] and claims.queue.is_closed and not claims.queue.is_long
    await claims.until(lambda: bool(claims.asks))
    assert loop.time() - failed >= ASK_AGAIN
    assert claims.asks == [0]
    claims.queue.answered()
    await claims.end(0)
    assert claims.asks == [1, 2]


async def test_a_claim_leaves_the_line_when_its_time_is_up_or_its_client_has_gone() -> None:
    claims = Claims()
    for number in range(_MOST_ASKING):
        claims.begin(number)
    claims.begin(100, time=0.0)
    claims.begin(101)
    claims.begin(102, waits=lambda: False)
    await claims.until(lambda: claims.refused == [100, 102])
    await claims.end(0)
    assert claims.asks[-1] == 101


async def test_a_claim_that_is_cancelled_leaves_its_place_to_others() -> None:
    claims = Claims()
    for number in range(_MOST_ASKING + 3):
        claims.begin(number)
    await asyncio.sleep(0)
    await claims.cancel(_MOST_ASKING)  # in line
    await claims.cancel(0)  # asking
    assert claims.asks[-1] == _MOST_ASKING + 1
    # In the moment in which its turn has come:
    claims._ends[1].set()
    claims._tasks[_MOST_ASKING + 2].cancel()
    await asyncio.gather(claims._tasks[1], claims._tasks[_MOST_ASKING + 2], return_exceptions=True)
    await claims.end(2)
    claims.begin(3_000)
    claims.begin(3_001)
    await asyncio.sleep(0)
    assert len(claims.asks) == _MOST_ASKING and claims.asks[-2:] == [3_000, 3_001]
