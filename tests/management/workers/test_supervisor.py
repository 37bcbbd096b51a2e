"""The supervisor's side of one process. tests/scenarios/test_workers.py has the whole, with real workers."""

import asyncio
import os
import sys

import pytest

from taipan.management.workers.supervisor import _Process, how_ended

pytestmark = pytest.mark.asyncio

LONG = 200_000


async def test_what_a_process_prints_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of any length, and the last one without an end."""
    program = f"print('one'); print('x' * {LONG}); print('two', end='')"
    process = _Process("p", (sys.executable, "-c", program), dict(os.environ))
    await process.start()
    assert await asyncio.wait_for(process.ended(), 40) == 0
    out = capsys.readouterr().out
    assert out.startswith("one\n") and out.endswith("two\n") and out.count("x") == LONG


async def test_a_process_starts_again_until_it_is_stopped() -> None:
    process = _Process("p", (sys.executable, "-c", "raise SystemExit(3)"), dict(os.environ))
    first = await process.start()
    running = asyncio.create_task(process.keep_running())
    async with asyncio.timeout(40):
        while process.process is first or process.process is None:
            await asyncio.sleep(0.01)
    assert first.returncode == 3
    await process.stop(40)
    await asyncio.wait_for(running, 40)


async def test_one_that_does_not_stop_in_time_is_killed() -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('r', flush=True); time.sleep(99)"
    )
    process = _Process("p", (sys.executable, "-c", program), dict(os.environ))
    started = await process.start()
    assert started.stdout is not None
    assert await asyncio.wait_for(started.stdout.readline(), 40) == b"r\n"
    running = asyncio.create_task(process.keep_running())
    await process.stop(0.1)
    assert started.returncode == -9
    await asyncio.wait_for(running, 40)


@pytest.mark.parametrize("status, words", [(0, "with status 0"), (-9, "by SIGKILL"), (-99, "with status -99")])
async def test_how_a_process_ended(status: int, words: str) -> None:
    assert how_ended(status) == words
