"""What each sink promises: its rows arrive, in order, once they can, and it harms nobody.

A module of tests imports everything from here, and defines the fixtures ``sides`` (the other sides by resource type)
and ``kind`` (one resource type)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.resources.sink import SinkResource
from tests.ruleengine.sinks.other_sides import OtherSide, row
from tests.support.fake_engine import QUICK, FakeEngine, FakeReport, published
from tests.support.waiting import until

ROWS = 60


class Contract:
    """A sink with its types, and the other side, which has not started."""

    def __init__(self, name: str, side: type[OtherSide], types: dict[str, Any], actions: dict[str, Any]) -> None:
        self.type = types[name]
        self.there: OtherSide = side()
        self._action = actions[self.there.action]
        self.engine = FakeEngine()

    def run(self, **config: Any) -> SinkResource:
        return self.engine.run(self.type, **{**self.there.config(), **config})

    def write(self, numbers: range, report: FakeReport | None = None, **params: Any) -> None:
        """Each row of a client of its own, three clients in all."""
        act = self.engine.action(self._action, report=report, **{**self.there.params, **params})
        for number in numbers:
            act.run(row(number), published(client_id=f"c{number % 3}"))

    async def all_arrive(self, count: int) -> None:
        """Every row, once at least, and in order for each client."""
        await until(lambda: self.engine.report.successes == count)
        await until(lambda: set(self.there.taken()) == set(range(count)))
        assert self.engine.report.failures == []
        if self.there.ordered:
            for client in range(3):
                mine = list(dict.fromkeys(each for each in self.there.taken() if each % 3 == client))
                assert mine == sorted(mine)

    async def close(self) -> None:
        await self.engine.close()
        await self.there.stop()


@pytest_asyncio.fixture
async def contract(kind: str, types: Any, sides: dict[str, type[OtherSide]]) -> AsyncIterator[Contract]:
    made = Contract(kind, sides[kind], *types)
    yield made
    await made.close()


@pytest.mark.asyncio
async def test_rows_arrive_in_order(contract: Contract) -> None:
    await contract.there.start()
    made = contract.run()
    await until(lambda: made.alive)
    contract.write(range(ROWS))
    await contract.all_arrive(ROWS)
    assert sorted(contract.there.taken()) == list(range(ROWS))
    status = made.status
    assert (status.is_alive, status.reason) == (True, "")
    buffer = status.buffer
    assert isinstance(buffer, msgspec.Struct)
    assert (buffer.delivered, buffer.waiting) == (ROWS, 0)


@pytest.mark.asyncio
async def test_rows_wait_for_a_side_that_is_away(contract: Contract) -> None:
    made = contract.run()
    contract.write(range(10))
    await until(lambda: made.status.reason not in ("", "not tried yet"))
    assert not made.alive and made.status.buffer.waiting == 10
    await contract.there.start()
    await contract.all_arrive(10)
    await until(lambda: made.alive)


@pytest.mark.asyncio
async def test_rows_wait_while_the_other_side_restarts(contract: Contract) -> None:
    await contract.there.start()
    made = contract.run()
    contract.write(range(10))
    await contract.all_arrive(10)
    await contract.there.stop()
    await until(lambda: not made.alive)
    contract.write(range(10, 20))
    await asyncio.sleep(0)
    assert contract.engine.report.successes == 10
    await contract.there.start()
    await contract.all_arrive(20)
    await until(lambda: made.alive)
    assert contract.engine.alive == [True, False, True]


@pytest.mark.asyncio
async def test_rows_whose_answer_ends_in_the_middle_are_sent_again(contract: Contract) -> None:
    """What the other side has done is not known: a row may arrive twice, but none is lost, and the order holds."""
    await contract.there.start()
    proxies = await contract.there.proxies()
    try:
        made = contract.run()
        contract.write(range(10))
        await contract.all_arrive(10)
        for each in proxies:
            each.left = 3
        for number in range(10, ROWS):
            contract.write(range(number, number + 1))
            await asyncio.sleep(0)
        await until(lambda: not any(each.left for each in proxies))
        await contract.all_arrive(ROWS)
        assert made.status.buffer.retried > 0 and made.status.buffer.dropped == {}
    finally:
        await contract.engine.close()
        for each in proxies:
            await each.stop()


@pytest.mark.asyncio
async def test_a_row_that_may_not_wait_fails_with_its_row(contract: Contract) -> None:
    contract.run()
    contract.write(range(1), retry_for=0)
    await until(lambda: contract.engine.report.count == 1)
    ((reason, failed),) = contract.engine.report.failures
    assert "retry_for" in reason and failed == row(0)


@pytest.mark.asyncio
async def test_what_waits_is_there_for_the_next_one_of_its_id(contract: Contract) -> None:
    made = contract.run()
    contract.write(range(5))
    await until(lambda: made.status.reason not in ("", "not tried yet"))
    async with asyncio.timeout(20):
        await made.close()
    assert contract.engine.report.count == 0
    await contract.there.start()
    contract.run()
    await contract.all_arrive(5)


@pytest.mark.asyncio
async def test_a_side_that_never_answers_holds_up_no_close(contract: Contract) -> None:
    """It accepts connections, and that is all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        contract.there.port = silent.getsockname()[1]
        made = contract.run()
        contract.write(range(5))
        await until(lambda: made.buffer.status.waiting == 5)
        async with asyncio.timeout(QUICK.close_timeout + 20):
            await made.close()


@pytest.mark.asyncio
async def test_a_trial(contract: Contract) -> None:
    """It has never started, and leaves nothing behind."""
    trial = contract.engine.make(contract.type, "__probe__:1", **contract.there.config())
    with pytest.raises(ResourceError) as refused:
        await trial.test()
    assert str(refused.value) and "\n" not in str(refused.value)
    await trial.close()
    await contract.there.start()
    trial = contract.engine.make(contract.type, "__probe__:1", **contract.there.config())
    await trial.test()
    await trial.close()
    assert contract.there.taken() == []


@pytest.mark.asyncio
async def test_addresses_that_are_refused(contract: Contract) -> None:
    trial = contract.engine.make(contract.type, **contract.there.config("169.254.169.254"))
    with pytest.raises(ResourceError, match="refused_networks"):
        await trial.test()
    await trial.close()


def test_a_configuration_is_checked_without_a_loop(types: Any, sides: dict[str, type[OtherSide]]) -> None:
    """A backup is checked so."""
    for name, side in sides.items():
        engine, there = FakeEngine(), side()
        engine.make(types[0][name], **there.config())
        with pytest.raises(ParamError) as refused:
            engine.make(types[0][name], **{**there.config(), there.address: "no address"})
        assert refused.value.key == there.address
