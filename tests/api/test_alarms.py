"""/alarms: what is active, what is over, an operator's word about it."""

from typing import Any

import pytest

from tests.support.api import ManagedNode, managed_node

pytestmark = pytest.mark.asyncio

NODE = "taipan@127.0.0.1"


async def raise_two(node: ManagedNode) -> None:
    """``over`` was, ``still`` is."""
    node.server.alarms.activate("over", "it was", {"n": 1})
    await node.pass_time(5)
    node.server.alarms.deactivate("over")
    node.server.alarms.activate("still", "it is", {"n": 2})


FORMS = {
    "/alarms": ["still", "over"],
    "/alarms/activated": ["still"],
    "/alarms/deactivated": ["over"],
    "/alarms/present": ["still"],
    "/alarms/history": ["over"],
    f"/nodes/{NODE}/alarms": ["still", "over"],
    f"/nodes/{NODE}/alarms/activated": ["still"],
    f"/nodes/{NODE}/alarms/deactivated": ["over"],
}


@pytest.mark.parametrize("path", FORMS)
async def test_list(path: str) -> None:
    async with managed_node() as node:
        await raise_two(node)
        data = (await node.api.get(path)).data
        if not path.startswith("/nodes"):
            assert [each["node"] for each in data] == [NODE]
            data = data[0]["alarms"]
        assert [record["name"] for record in data] == FORMS[path]


@pytest.mark.parametrize(
    "field", ["name", "message", "details", "activated", "activate_at", "deactivate_at", "duration"]
)
async def test_field(field: str) -> None:
    async with managed_node() as node:
        await raise_two(node)
        still, over = (await node.api.get(f"/nodes/{NODE}/alarms")).data
        expected: dict[str, tuple[Any, Any]] = {
            "name": ("still", "over"),
            "message": ("it is", "it was"),
            "details": ({"n": 2}, {"n": 1}),
            "activated": (True, False),
        }
        if field in expected:
            assert (still[field], over[field]) == expected[field]
        elif field == "deactivate_at":
            assert still[field] == "infinity" and over[field] > over["activate_at"]
        elif field == "activate_at":
            assert still[field] >= over["deactivate_at"] > 1_600_000_000_000_000
        else:
            assert 5_000_000 <= over[field] < 60_000_000 and 0 <= still[field] < 60_000_000


async def test_deactivate() -> None:
    async with managed_node() as node:
        await raise_two(node)
        assert (await node.api.post("/alarms/deactivated", {"node": NODE, "name": "still"})).json == {"code": 0}
        assert (await node.api.get(f"/nodes/{NODE}/alarms/activated")).data == []
        assert len((await node.api.get(f"/nodes/{NODE}/alarms/deactivated")).data) == 2


REFUSALS = {
    "name-missing": ({"node": NODE}, 400, 107),
    "node-missing": ({"name": "x"}, 400, 107),
    "name-number": ({"node": NODE, "name": 1}, 400, 108),
    "name-unknown": ({"node": NODE, "name": "x"}, 404, 102),
    "node-unknown": ({"node": "no@where", "name": "x"}, 404, 102),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_deactivate_refusal(case: str) -> None:
    body, status, code = REFUSALS[case]
    async with managed_node() as node:
        reply = await node.api.post("/alarms/deactivated", body)
        assert (reply.status, reply.code) == (status, code)


@pytest.mark.parametrize("path", ["/alarms/deactivated", f"/nodes/{NODE}/alarms/deactivated"])
async def test_delete(path: str) -> None:
    async with managed_node() as node:
        await raise_two(node)
        assert (await node.api.delete(path)).json == {"code": 0}
        assert [record["name"] for record in (await node.api.get(f"/nodes/{NODE}/alarms")).data] == ["still"]
