"""answer_within: delays of this process are not those of the other side."""

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from taipan.broker.loop.answer_limit import answer_within

pytestmark = pytest.mark.asyncio


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    yield pair
    for each in pair:
        each.close()


async def test_a_loop_that_is_late_has_read_what_arrived(pair: tuple[socket.socket, socket.socket]) -> None:
    """Each round of the loop takes longer than the whole limit, and the answers need several rounds."""
    loop = asyncio.get_running_loop()
    near, far = pair
    busy = True

    async def other_work() -> None:
        while busy:
            time.sleep(0.02)
            await asyncio.sleep(0)

    async def answers() -> None:
        for _ in range(2):
            await loop.sock_sendall(far, await loop.sock_recv(far, 100))

    tasks = asyncio.ensure_future(answers()), asyncio.ensure_future(other_work())
    try:
        async with answer_within(0.01):
            for _ in range(2):
                await loop.sock_sendall(near, b"question")
                assert await loop.sock_recv(near, 100) == b"question"
    finally:
        busy = False
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_answer() -> None:
    with pytest.raises(TimeoutError):
        async with answer_within(0.01):
            await asyncio.sleep(3600)


async def test_the_limit_ends_with_its_block() -> None:
    async with answer_within(0.01):
        pass
    await asyncio.sleep(0.05)


async def test_a_task_that_is_cancelled_has_no_time_out() -> None:
    async def waits() -> None:
        async with answer_within(3600):
            await asyncio.sleep(3600)

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
