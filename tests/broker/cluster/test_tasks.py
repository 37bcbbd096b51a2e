"""Tasks: they are held until they have ended, and none is left after a stop."""

import asyncio

import pytest

from taipan.broker.cluster.tasks import Tasks

pytestmark = pytest.mark.asyncio


async def test_a_task_is_counted_until_it_has_ended() -> None:
    tasks, go_on = Tasks(), asyncio.Event()

    async def wait() -> None:
        await go_on.wait()

    task = tasks.run(wait())
    assert len(tasks) == 1
    go_on.set()
    await task
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_stop_waits_until_all_have_ended_and_bears_one_that_fails() -> None:
    tasks = Tasks()
    ended: list[str] = []
    begun = asyncio.Event()

    async def slow() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("slow")

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("fails")
            raise ValueError

    tasks.run(fails())
    tasks.run(slow())
    await begun.wait()
    await tasks.stop()
    assert sorted(ended) == ["fails", "slow"]
    assert len(tasks) == 0


async def test_cancel_does_not_wait() -> None:
    tasks = Tasks()

    async def wait() -> None:
        await asyncio.Event().wait()

    task = tasks.run(wait())
    tasks.cancel()
    assert not task.done()
    await asyncio.wait([task])
    assert task.cancelled()
