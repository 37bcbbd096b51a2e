"""The contract of sinks (``contract.py``) for those that need no server of their own, and those of packages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from taipan.broker.observability.masking import MASK
from taipan.ruleengine.delivery.buffer import DeliveryOutcome
from taipan.ruleengine.delivery.buffered_row import BufferedRow
from taipan.ruleengine.params import Text
from taipan.ruleengine.resources.resource import ResourceType
from taipan.ruleengine.resources.sink import Sink, SinkContext, SinkRequest, buffered
from taipan.ruleengine.stored.param_masking import given_back, shown
from taipan.ruleengine.types.builtin import ACTION_TYPES, RESOURCE_TYPES
from taipan.ruleengine.types.operator_modules import load_operator_modules
from tests.ruleengine.sinks.contract import *  # noqa: F403
from tests.ruleengine.sinks.other_sides import OTHER_SIDES, OtherSide
from tests.support.fake_engine import FakeEngine
from tests.support.packages import install
from tests.support.waiting import until
from tests.systems.names import SYSTEMS


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


@pytest.fixture(scope="module")
def sides() -> dict[str, type[OtherSide]]:
    return OTHER_SIDES


@pytest.fixture(params=sorted(OTHER_SIDES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_sink_has_another_side(types: Any) -> None:
    """Here, or a real server in ``tests/systems``."""
    assert set(types[0]) == set(OTHER_SIDES) | set(SYSTEMS)


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
