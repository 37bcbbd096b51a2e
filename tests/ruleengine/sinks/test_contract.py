"""What each sink promises, those of packages too: its rows arrive, in order, once they can, and it harms nobody."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.broker.observability.masking import MASK
from taipan.ruleengine.delivery.buffer import DeliveryOutcome
from taipan.ruleengine.delivery.buffered_row import BufferedRow
from taipan.ruleengine.params import ParamError, Text
from taipan.ruleengine.resources.resource import ResourceError, ResourceType
from taipan.ruleengine.resources.sink import Sink, SinkContext, SinkRequest, SinkResource, buffered
from taipan.ruleengine.stored.param_masking import given_back, shown
from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES
from taipan.ruleengine.types.operator_modules import load_operator_modules
from tests.ruleengine.sinks.other_sides import OTHER_SIDES, OtherSide, row
from tests.support.fake_engine import QUICK, FakeEngine, FakeReport, published
from tests.support.packages import install
from tests.support.waiting import until

ROWS = 60


class Contract:
    """A sink with its types, and the other side, which has not started."""

    def __init__(self, name: str, types: dict[str, Any], actions: dict[str, Any]) -> None:
        self.type = types[name]
        self.there: OtherSide = OTHER_SIDES[name]()
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


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Resource and action types by name, with those of the package."""
    site = tmp_path_factory.mktemp("site")
    install("lines", site)
    sys.path.insert(0, str(site))
    try:
        added = load_operator_modules([])
        yield (
            {each.name: each for each in (*RESOURCE_TYPES, *added.resources)},
            {each.name: each for each in (*ACTION_TYPES, *added.actions)},
        )
    finally:
        sys.path.remove(str(site))
        sys.modules.pop("taipan_lines", None)


@pytest_asyncio.fixture(params=sorted(OTHER_SIDES))
async def contract(request: pytest.FixtureRequest, types: Any) -> AsyncIterator[Contract]:
    made = Contract(request.param, *types)
    yield made
    await made.close()


def test_every_sink_has_another_side(types: Any) -> None:
    assert set(types[0]) == set(OTHER_SIDES)


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


class Remembers(Sink):
    """A sink whose writes take until they are cancelled."""

    def __init__(self, context: SinkContext) -> None:
        self.calls: list[str] = []

    async def test(self) -> None:
        pass

    async def write(self, rows: list[BufferedRow], lane: int) -> list[DeliveryOutcome]:
        self.calls.append("write")
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("write ended")
        return []

    async def stop_receiving(self) -> None:
        self.calls.append("stop receiving")

    async def close(self) -> None:
        self.calls.append("close")


@pytest.mark.asyncio
async def test_what_is_received_ends_before_what_waits() -> None:
    """Rules end before resources: a message that came now would be acknowledged and never evaluated."""
    engine = FakeEngine()
    text = Text("for tests", "用于测试")
    made = engine.run(ResourceType("remembers", text, text, buffered(Remembers), ()))
    made.put("action_1", SinkRequest(b"x"), {})
    await until(lambda: made.sink.calls == ["write"])
    await made.close()
    assert made.sink.calls == ["write", "stop receiving", "write ended", "close"]


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


def test_a_configuration_is_checked_without_a_loop(types: Any) -> None:
    """A backup is checked so."""
    for name, side in OTHER_SIDES.items():
        engine, there = FakeEngine(), side()
        engine.make(types[0][name], **there.config())
        with pytest.raises(ParamError) as refused:
            engine.make(types[0][name], **{**there.config(), there.address: "no address"})
        assert refused.value.key == there.address


def test_parameters_are_declared(types: Any) -> None:
    """Their order and titles; secrets are masked, and come back."""
    for kind in (*types[0].values(), *types[1].values()):
        assert kind.title.en and kind.title.zh and kind.description.en and kind.description.zh
        assert len({each.order for each in kind.params}) == len(kind.params), kind.name
        for param in kind.params:
            assert param.title.en and param.title.zh and param.description.en and param.description.zh, param.name
        secrets = {each.name: "s3cr3t" for each in kind.params if each.type == "password"}
        masked = shown(secrets, kind.params)
        assert masked == dict.fromkeys(secrets, MASK)
        assert given_back(masked, secrets, kind.params) == secrets
    names = {name for kind in types[0].values() for name in kind.connection}
    assert names <= {each.name for kind in types[0].values() for each in kind.params}
