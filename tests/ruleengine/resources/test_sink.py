"""SinkResource: the common part of all sinks."""

import asyncio

import pytest

from taipan.ruleengine.delivery.buffer import DELIVERED, DeliveryOutcome
from taipan.ruleengine.delivery.buffered_row import BufferedRow
from taipan.ruleengine.params import Text
from taipan.ruleengine.resources.resource import ResourceType
from taipan.ruleengine.resources.sink import Sink, SinkContext, buffered
from tests.support.fake_engine import FakeEngine


class _Slow(Sink):
    """Its test takes a while."""

    at_once = 0
    most = 0

    def __init__(self, context: SinkContext) -> None:
        pass

    async def test(self) -> None:
        _Slow.at_once += 1
        _Slow.most = max(_Slow.most, _Slow.at_once)
        await asyncio.sleep(0.01)
        _Slow.at_once -= 1

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        return [DELIVERED] * len(rows)


@pytest.mark.asyncio
async def test_one_test_at_a_time() -> None:
    """A new resource is tested for the answer of the API while its liveness check begins: with two tests at once, one
    connection would be used by both, or stay open."""
    engine = FakeEngine()
    try:
        made = engine.run(ResourceType("slow", Text("", ""), Text("", ""), buffered(_Slow), ()))
        await asyncio.gather(made.test(), made.test())
        assert _Slow.most == 1
    finally:
        await engine.close()
