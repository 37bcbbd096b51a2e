"""Liveness: probes go on whatever one of them raises."""

from __future__ import annotations

import pytest

from taipan.ruleengine.resources.liveness import LivenessCheck
from tests.support.waiting import until


@pytest.mark.asyncio
async def test_an_error_that_nobody_expects_makes_it_down_and_the_next_probe_comes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors: list[Exception] = [OSError("away"), RuntimeError("unexpected")]
    reasons: list[str] = []

    async def probe() -> None:
        reasons.append(liveness.reason)
        if errors:
            raise errors.pop(0)

    liveness = LivenessCheck("resource:1", probe, 0.001, lambda alive: None)
    liveness.start()
    await until(lambda: liveness.alive)
    await liveness.close()
    assert reasons[1:3] == ["away", "unexpected"] and liveness.reason == ""
    assert sum("resource_probe_failed" in each.message for each in caplog.records) == 1
