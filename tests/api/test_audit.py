"""/audit: who changed what, through each door; durable, bounded, without secrets."""

from typing import Any

import pytest

from taipan.management.ctl.execution import is_recorded
from taipan.management.ctl.index import COMMANDS
from taipan.management.operations import audit as audit_module
from tests.support.api import APP_ID, ManagedNode, assert_refused, managed_node
from tests.support.ctl import done
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio


async def changes(node: ManagedNode, **query: Any) -> list[dict[str, Any]]:
    reply = await node.api.get("/audit", **query)
    assert reply.code == 0, reply.json
    rows: list[dict[str, Any]] = reply.data
    return rows


async def test_a_change_over_the_api_has_before_and_after() -> None:
    async with managed_node() as node:
        assert await changes(node) == []
        app = {"app_id": "exporter", "name": "An exporter", "secret": "a long secret"}
        assert (await node.api.post("/apps", app)).code == 0
        assert (await node.api.put("/apps/exporter", {"name": "Another name", "status": True})).code == 0
        assert (await node.api.delete("/apps/exporter")).code == 0
        deleted, changed, created = await changes(node)
        assert (created["door"], created["who"], created["address"]) == ("api", APP_ID, "127.0.0.1")
        assert (created["what"], created["target"]) == ("POST /apps", "/api/v4/apps")
        assert created["after"]["app_id"] == "exporter" and created["after"]["secret"] == "******"
        assert created["before"] is None and created["node"] == node.name
        assert changed["what"] == "PUT /apps/{app_id}" and changed["target"] == "/api/v4/apps/exporter"
        assert changed["before"]["name"] == "An exporter" and changed["after"]["name"] == "Another name"
        assert deleted["before"]["name"] == "Another name"
        assert "a long secret" not in str(await changes(node))


async def test_requests_that_change_nothing_are_not_recorded() -> None:
    async with managed_node() as node:
        await node.api.get("/clients")
        assert (await node.api.post("/apps", {"app_id": "x"})).code != 0
        await node.api.post("/mqtt/publish", {"topic": "t", "payload": "x", "clientid": "c"})
        await node.api.delete("/banned/clientid/nobody")
        rows = await changes(node)
        assert [row["what"] for row in rows if row["what"] != "DELETE /banned/{as}/{who}"] == []


async def test_conditions_and_pages() -> None:
    async with managed_node() as node:
        for number in range(5):
            await node.api.post("/banned", {"who": f"bad-{number}", "as": "clientid"})
        await done(node, "banned", "del", "clientid", "bad-1")
        assert [row["door"] for row in await changes(node, _limit=2)] == ["ctl", "api"]
        assert [row["after"]["who"] for row in await changes(node, _limit=2, _page=2)] == ["bad-3", "bad-2"]
        assert len(await changes(node, door="api")) == 5 and await changes(node, door="reload") == []
        assert len(await changes(node, who=APP_ID)) == 5
        assert len(await changes(node, _like_what="/banned")) == 5 and await changes(node, _gte_at=4_000_000_000) == []
        reply = await node.api.get("/audit", _limit=2)
        assert reply.meta == {"page": 1, "limit": 2, "count": -1, "hasnext": True}
        assert_refused(await node.api.get("/audit", door="window"), 400, 108, "door")
        assert_refused(await node.api.get("/audit", _page=2), 400, 108, "_page")


async def test_a_command_is_recorded_without_its_secrets() -> None:
    async with managed_node() as node:
        await done(node, "users", "list")
        await done(node, "user", "add", "ann", "a secret of hers, 9")
        (row,) = await changes(node)
        assert (row["door"], row["what"], row["who"]) == ("ctl", "user add", "")
        assert row["after"] == {"Username": "ann", "Password": "******"}
        lines = await done(node, "audit", "list")
        assert len(lines) == 1 and "what=user add" in lines[0]


async def test_every_command_is_known_to_read_or_to_change() -> None:
    reading = {"show", "list", "status", "lookup", "explain", "help", "watch", "top", "test", "verify"}
    for command in COMMANDS:
        if reading & set(command.words) and command.words[:2] != ("rules", "trace"):
            assert not is_recorded(command, {"x": "y"}), command.usage
        if command.words[-1] in {
            "add",
            "del",
            "delete",
            "update",
            "create",
            "kick",
            "import",
            "passwd",
            "stop",
            "clean",
        }:
            assert is_recorded(command, {}) or command.words[0] == "backup", command.usage


async def test_entries_outlive_the_node_and_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(audit_module, "MAX_ENTRIES", 3)
    disk = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    async with managed_node(**disk) as node:
        for number in range(5):
            await node.api.post("/banned", {"who": f"bad-{number}", "as": "clientid"})
        assert [row["after"]["who"] for row in await changes(node, _limit=3)] == ["bad-4", "bad-3", "bad-2"]
    async with managed_node(**disk) as node:
        await node.api.post("/banned", {"who": "later", "as": "clientid"})
        assert [row["after"]["who"] for row in await changes(node, _limit=3)] == ["later", "bad-4", "bad-3"]


async def test_long_values_are_cut() -> None:
    async with managed_node() as node:
        await node.api.post("/banned", {"who": "bad", "as": "clientid", "reason": "x" * 10_000})
        (row,) = await changes(node)
        assert row["after"].keys() == {"bytes"}


async def test_viewers_do_not_see_it_and_dashboard_users_are_named() -> None:
    async with managed_node(dashboard={}) as node:
        body = {"username": "olga", "password": "Secret-word-9", "role": "viewer", "tags": ""}
        assert (await node.api.post("/users", body)).code == 0
        (row,) = await changes(node)
        assert row["after"]["password"] == "******"


async def test_all_nodes() -> None:
    async with fake_nodes(2) as nodes:
        await nodes[0].api.post("/banned", {"who": "one", "as": "clientid"})
        await nodes[1].api.post("/banned", {"who": "two", "as": "clientid"})
        rows = await changes(nodes[0])
        assert {row["node"] for row in rows} == {"n1@host", "n2@host"}
        nodes.hub.silent.add("n2@host")
        reply = await nodes[0].api.get("/audit")
        assert reply.meta["missing_nodes"] == ["n2@host"]
