"""/annotations: moments with a text, bounded and durable, on all nodes of a cluster, and in the audit."""

from pathlib import Path

import pytest

from taipan.management.operations import annotations
from tests.support.api import APP_ID, assert_refused, managed_node
from tests.support.ctl import ctl_json, done, refused

pytestmark = pytest.mark.asyncio
HOSTILE = "<b>\u202edeploy\u0000\x1b[31m \U0001f680"


async def test_what_is_created_is_listed_by_time_and_audited() -> None:
    async with managed_node() as node:
        now = node.server.clock.wall()
        ids = []
        for text, time in (("Deploy 1.4", None), ("before", 1000), (HOSTILE, 2000)):
            reply = await node.api.post(
                "/annotations", {"text": text} if time is None else {"text": text, "time": time}
            )
            ids.append(reply.data["id"])
        rows = (await node.api.get("/annotations")).data
        assert [(row["text"], row["created_by"]) for row in rows] == [
            ("Deploy 1.4", APP_ID), (HOSTILE, APP_ID), ("before", APP_ID),
        ]  # fmt: skip
        assert now * 1000 - 1 <= rows[0]["time"] <= node.server.clock.wall() * 1000 + 1 and rows[2]["time"] == 1_000_000
        assert [row["text"] for row in (await node.api.get("/annotations", _lte_at=1999)).data] == ["before"]
        assert [row["text"] for row in (await node.api.get("/annotations", _gte_at=2001)).data] == ["Deploy 1.4"]
        assert len((await node.api.get("/annotations", _limit=1)).data) == 1
        assert (await node.api.delete(f"/annotations/{ids[1]}")).json == {"code": 0}
        assert_refused(await node.api.get(f"/annotations/{ids[1]}"), 404, 102, ids[1])
        assert_refused(await node.api.delete(f"/annotations/{ids[1]}"), 404, 102, ids[1])
        deleted, *_ = (await node.api.get("/audit")).data
        assert (deleted["what"], deleted["before"]["text"]) == ("DELETE /annotations/{id}", "before")


async def test_what_is_no_annotation_is_refused() -> None:
    async with managed_node() as node:
        for body, code in (
            ({}, 107), ({"text": ""}, 108), ({"text": " \n"}, 108), ({"text": "x" * 513}, 108), ({"text": 5}, 108),
            ({"text": "x", "time": -1}, 108), ({"text": "x", "time": 1e300}, 108), ([], 108),
        ):  # fmt: skip
            assert_refused(await node.api.post("/annotations", body), 400, code)
        assert (await node.api.get("/annotations")).data == []


async def test_the_earliest_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "MAX_ANNOTATIONS", 3)
    async with managed_node() as node:
        for time in (30, 10, 20, 40, 5):
            await node.api.post("/annotations", {"text": str(time), "time": time})
        # The one that was just acknowledged stays.
        assert [row["text"] for row in (await node.api.get("/annotations", _limit=3)).data] == ["40", "30", "5"]


async def test_they_survive_a_restart(tmp_path: Path) -> None:
    settings = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**settings) as node:
        await node.api.post("/annotations", {"text": "kept"})
    async with managed_node(**settings) as node:
        assert [row["text"] for row in (await node.api.get("/annotations")).data] == ["kept"]


async def test_ctl() -> None:
    async with managed_node() as node:
        (name,) = await done(node, "annotate", "Deploy 1.5", "--at", "1000")
        (line,) = await done(node, "annotations", "list")
        assert line.endswith(f" Annotation({name}, by=-, text=Deploy 1.5)")
        assert [row["time"] for row in await ctl_json(node, "annotations", "list", "--count", "1")] == [1_000_000]
        assert await done(node, "annotations", "del", name) == ["ok"]
        assert await refused(node, "annotations", "del", name) == f"annotation {name}: not found"
        assert "blank" in await refused(node, "annotate", " ")
        assert [row["what"] for row in (await node.api.get("/audit")).data] == ["annotations del", "annotate"]
