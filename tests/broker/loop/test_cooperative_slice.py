"""CooperativeSlice: others have a turn as soon as a stretch has taken its time, and not before."""

import asyncio

import pytest

from taipan.broker.loop import cooperative_slice
from taipan.broker.loop.cooperative_slice import SLICE, CooperativeSlice

pytestmark = pytest.mark.asyncio


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(cooperative_slice.time, "perf_counter", lambda: self.now)


@pytest.mark.parametrize("seconds", [SLICE, 0.001])
async def test_others_have_a_turn_when_it_is_over(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    clock = Clock(monkeypatch)
    turns: list[str] = []
    work = CooperativeSlice(seconds)
    for step in range(3):
        asyncio.get_running_loop().call_soon(turns.append, f"others {step}")
        clock.now += seconds * 0.6
        await work.checkpoint()
        turns.append(f"step {step}")
    # Two steps take longer than one stretch; the third begins a new one.
    assert turns == ["step 0", "others 0", "others 1", "step 1", "step 2"]


async def test_a_new_stretch_begins_when_the_others_are_through(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    work = CooperativeSlice()
    clock.now += 1
    assert work.over
    asyncio.get_running_loop().call_soon(lambda: setattr(clock, "now", clock.now + 5))
    await work.checkpoint()
    assert not work.over
    clock.now += SLICE
    assert work.over
