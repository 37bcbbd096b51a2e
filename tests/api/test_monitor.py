"""/monitor: the figures of the last hour and day, over real HTTP."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

PATIENCE = 40.0


async def pass_seconds(node: ManagedNode, seconds: int) -> None:
    """Let so many whole seconds pass, one after the other."""
    for _ in range(seconds):
        node.clock.shift += 1.0
        await node.server.tick()


async def points_of(node: ManagedNode, /, **query: Any) -> list[dict[str, Any]]:
    data = (await node.api.get("/monitor", **query)).data
    return [dict(zip(data["columns"], row, strict=True)) for row in data["points"]]


async def test_a_point_a_second() -> None:
    async with managed_node() as node:
        client = await node.client("one")
        await client.subscribe("a")
        await client.publish("a", b"x" * 1000)
        await client.publish("nobody/reads", b"x")
        await pass_seconds(node, 10)
        data = (await node.api.get("/monitor")).data
        assert data["resolution"] == "second"
        points = await points_of(node)
        times = [point["at"] for point in points]
        assert len(points) >= 10 and all(time % 1000 == 0 for time in times)
        assert times == sorted(set(times))
        seconds = [(after - before) / 1000 for before, after in pairwise(times)]
        assert seconds == [1.0] * len(seconds)
        assert sum(point["messages_received"] for point in points) == pytest.approx(2, abs=0.3)
        assert sum(point["messages_dropped"] for point in points) == pytest.approx(1, abs=0.2)
        assert points[-1]["connections"] == points[-1]["sessions"] == points[-1]["subscriptions"] == 1
        assert sum(data["drops"]["messages.dropped.no_subscribers"]) == pytest.approx(1, abs=0.2)
        assert all(len(row) == len(data["points"]) for row in data["drops"].values())


async def test_a_range() -> None:
    async with managed_node() as node:
        await pass_seconds(node, 10)
        everything = await points_of(node)
        first, last = everything[3]["at"], everything[6]["at"]
        ranged = await points_of(node, **{"from": first, "to": last})
        assert [point["at"] for point in ranged] == [point["at"] for point in everything[3:7]]
        ahead = everything[-1]["at"] + 3_600_000
        assert await points_of(node, **{"from": ahead, "to": ahead + 1000}) == []
        # Whoever follows the figures asks for those after the last, which may be later than now.
        assert await points_of(node, **{"from": ahead}) == []
        latest = everything[-1]["at"]
        assert [point["at"] for point in await points_of(node, span=3_000)] == [
            latest - 3000 + n * 1000 for n in range(4)
        ]
        ranged = await points_of(node, span=2_000, to=last)
        assert [point["at"] for point in ranged] == [last - 2000, last - 1000, last]


async def test_some_columns() -> None:
    async with managed_node() as node:
        await node.client("one")
        await pass_seconds(node, 5)
        data = (await node.api.get("/monitor", columns="connections,at")).data
        whole = await points_of(node)
        assert data["columns"] == ["connections", "at"]
        assert data["points"] == [[point["connections"], point["at"]] for point in whole]
        assert data["drops"] == (await node.api.get("/monitor")).data["drops"]
        assert (await node.api.get("/monitor", columns="at", node="all")).data["points"][0] == [whole[0]["at"]]


async def test_a_point_a_minute() -> None:
    async with managed_node() as node:
        await pass_seconds(node, 130)
        data = (await node.api.get("/monitor", resolution="minute")).data
        assert data["resolution"] == "minute"
        assert len(data["points"]) >= 2 and all(row[0] % 60_000 == 0 for row in data["points"])


async def test_before_the_start_is_a_gap() -> None:
    async with managed_node() as node:
        await pass_seconds(node, 3)
        data = (await node.api.get("/monitor")).data
        ((start, end),) = data["gaps"]
        assert start < end < data["points"][0][0]


@pytest.mark.parametrize(
    "query",
    [
        {"from": -1},
        {"from": "now"},
        {"to": 1 << 60},
        {"resolution": "hour"},
        {"columns": ""},
        {"columns": "at,"},
        {"columns": "at,nothing"},
        {"span": 0},
        {"span": 2_592_000_001},
        {"span": 2_000, "from": 1_000},
        {"from": 2_000, "to": 1_000},
    ],
    ids=str,
)
async def test_ranges_that_are_none(query: dict[str, Any]) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/monitor", **query), 400, 108, next(iter(query)))


async def test_a_node_that_is_none() -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get("/monitor", node="nobody@nowhere"), 404, 102, "nobody@nowhere")
        assert len((await node.api.get("/monitor", node=node.name)).data["columns"]) == 17


async def test_where_nothing_is_kept() -> None:
    async with managed_node(history={"enabled": False}) as node:
        assert_refused(await node.api.get("/monitor"), 500, 101, "history.enabled")


async def test_the_sum_of_one_node_is_that_node() -> None:
    async with managed_node() as node:
        await pass_seconds(node, 5)
        async with asyncio.timeout(patience(PATIENCE)):
            one, everything = await points_of(node), await points_of(node, node="all")
        assert one[:5] == everything[:5]


async def test_a_month_is_kept_by_ten_minutes() -> None:
    async with managed_node() as node:
        node.clock.stand_still()
        first = node.clock.wall() * 1000
        for _ in range(40):
            node.clock.shift += 60.0
            await node.server.tick()
        points = await points_of(node, resolution="ten_minutes")
        assert len(points) in (3, 4) and all(point["at"] % 600_000 == 0 for point in points)
        # The finest that reaches back to where the range begins.
        for hours, resolution in ((0.5, "second"), (47, "minute"), (49, "ten_minutes"), (720, "ten_minutes")):
            data = (await node.api.get("/monitor", span=round(hours * 3_600_000))).data
            assert data["resolution"] == resolution, hours
        assert (await node.api.get("/monitor", **{"from": 0})).data["points"][0][0] >= first
