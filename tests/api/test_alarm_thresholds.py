"""/alarm_thresholds: figures that raise an alarm above or below a value."""

from typing import Any

import pytest

from taipan.management.operations.alarm_thresholds import CHECKS, Crossing
from tests.support.api import ManagedNode, assert_refused, managed_node

NODE = "taipan@127.0.0.1"


def test_consecutive_checks_decide() -> None:
    crossing = Crossing()
    for _ in range(5):
        assert not crossing.step(True) and not crossing.step(False)
    changes = [crossing.step(True) for _ in range(CHECKS)]
    assert changes == [False, False, True] and crossing.crossed
    assert not crossing.step(False) and not crossing.step(True)
    assert [crossing.step(False) for _ in range(CHECKS)] == [False, False, True] and not crossing.crossed


async def of(node: ManagedNode, name: str) -> dict[str, Any]:
    (found,) = [each for each in (await node.api.get("/alarm_thresholds")).data if each["name"] == name]
    return dict(found)


def checks(node: ManagedNode, count: int = CHECKS) -> list[str]:
    for _ in range(count):
        node.management.operations.alarm_thresholds.check(0.0)
    return list(node.server.alarms.active)


@pytest.mark.asyncio
async def test_connections() -> None:
    async with managed_node() as node:
        before = await of(node, "connections")
        assert before.pop("current") in (None, 0)  # 0 after the first check, which may have been made by now
        assert before == {"name": "connections", "value": None, "default": None, "unit": "", "below": False}
        assert (await node.api.put("/alarm_thresholds/connections", {"value": 1})).json == {"code": 0}
        await node.client("a")
        assert checks(node) == []
        second = await node.client("b")
        assert checks(node, CHECKS - 1) == []
        assert checks(node, 1) == ["threshold/connections"]
        alarm = (await node.api.get(f"/nodes/{NODE}/alarms/activated")).data[0]
        assert alarm["message"] == "the number of connected clients is 2, above 1"
        assert alarm["details"] == {"value": 2, "threshold": 1}
        await node.client("c")
        checks(node, 1)
        alarm = (await node.api.get(f"/nodes/{NODE}/alarms/activated")).data[0]
        assert alarm["details"]["value"] == 3 and (await of(node, "connections"))["current"] == 3
        await second.disconnect()
        assert (await node.api.put("/alarm_thresholds/connections", {"value": 2})).code == 0
        assert list(node.server.alarms.active) == [] and checks(node) == []
        (row,) = (await node.api.get("/audit", _limit=1)).data
        assert row["what"] == "PUT /alarm_thresholds/{name}" and row["after"] == {"value": 2}


@pytest.mark.asyncio
@pytest.mark.parametrize("name, value", [("disk_free", 100), ("memory", 0)])
async def test_others(name: str, value: float) -> None:
    async with managed_node() as node:
        assert (await node.api.put(f"/alarm_thresholds/{name}", {"value": value})).code == 0
        assert checks(node) == [f"threshold/{name}"]
        assert (await node.api.put(f"/alarm_thresholds/{name}", {"value": None})).code == 0
        assert checks(node) == []


@pytest.mark.asyncio
async def test_refusals_a_second() -> None:
    async with managed_node() as node:
        assert (await node.api.put("/alarm_thresholds/refused", {"value": 0})).code == 0
        for _ in range(CHECKS):
            node.server.metrics.refusals.add("banned")
            active = checks(node, 1)
        assert active == ["threshold/refused"]


@pytest.mark.asyncio
async def test_wrong() -> None:
    async with managed_node() as node:
        assert_refused(await node.api.put("/alarm_thresholds/nothing", {"value": 1}), 404, 102)
        for value in (-1, 1e13, "x"):
            assert_refused(await node.api.put("/alarm_thresholds/memory", {"value": value}), 400, 108, "value")
        assert_refused(await node.api.put("/alarm_thresholds/memory", {}), 400, 107)
