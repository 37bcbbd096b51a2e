"""Tasks that wait until state of their process has changed."""

import asyncio

import pytest

from taipan.broker.cluster.changes import Changes, until

pytestmark = pytest.mark.asyncio


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    assert await until(lambda: True, Changes(), timeout=0.0)


async def test_any_of_the_changes_ends_the_wait() -> None:
    one, other, found = Changes(), Changes(), [False]
    waiting = asyncio.create_task(until(lambda: found[0], one, other))
    await asyncio.sleep(0)
    one.tell()  # the condition does not hold yet
    await asyncio.sleep(0)
    assert not waiting.done()
    found[0] = True
    other.tell()
    assert await waiting


async def test_the_wait_ends_after_its_timeout() -> None:
    assert not await until(lambda: False, Changes(), timeout=0.01)
    assert not await until(lambda: False, Changes(), timeout=0.0)


async def test_a_task_that_was_cancelled_is_forgotten() -> None:
    changes = Changes()
    waiting = asyncio.create_task(until(lambda: False, changes))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    changes.tell()
    assert changes.count == 1 and not changes._waiting


async def test_a_change_between_two_waits_is_not_missed() -> None:
    changes = Changes()
    seen = changes.count
    changes.tell()
    assert await until(lambda: changes.count != seen, changes, timeout=0.0)
