"""/audit: who changed what, through each door; durable, bounded, without secrets."""

import json
from typing import Any

import pytest

from taipan.broker.observability.masking import mask
from taipan.management.ctl.changed_objects import OBJECTS
from taipan.management.ctl.execution import is_recorded
from taipan.management.ctl.index import COMMANDS
from taipan.management.operations import audit as audit_module
from tests.support.api import APP_ID, ManagedNode, assert_refused, managed_node
from tests.support.ctl import done, refused
from tests.support.fake_cluster import fake_nodes

from .test_dashboard_roles import with_users

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


async def test_deleting_a_file_does_not_send_it() -> None:
    """GET of its path writes an answer of its own."""
    async with managed_node() as node:
        name = (await node.api.post("/data/export")).data["filename"]
        reply = await node.api.delete(f"/data/file/{name}")
        assert (reply.status, reply.json) == (200, {"code": 0})
        row = (await changes(node))[0]
        assert (row["what"], row["target"], row["before"]) == (
            "DELETE /data/file/{filename}",
            f"/api/v4/data/file/{name}",
            None,
        )


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
        assert len(lines) == 1
        assert lines[0].endswith(f"(door=ctl, who=-, address=-, what=user add, target=user ann, node={node.name})")


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


async def test_many_entries_of_one_kind_remove_only_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(audit_module, "MAX_ENTRIES", 8)
    disk = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path)}}
    async with managed_node(**disk) as node:
        await done(node, "banned", "add", "clientid", "by-an-operator")
        await node.api.post("/apps", {"app_id": "intruder", "name": "x"})
        for number in range(20):
            await node.api.post("/banned", {"who": f"bad-{number}", "as": "clientid"})
        found = [row["what"] for row in await changes(node, _limit=8)]
        assert found == ["POST /banned"] * 6 + ["POST /apps", "banned add"]
    async with managed_node(**disk) as node:
        for number in range(3):
            await node.api.post("/banned", {"who": f"worse-{number}", "as": "clientid"})
        rows = await changes(node, _limit=8)
        assert [row["what"] for row in rows] == found
        assert [row["after"]["who"] for row in rows[:4]] == ["worse-2", "worse-1", "worse-0", "bad-19"]


async def test_a_parameter_that_the_endpoint_does_not_know_hides_no_change() -> None:
    async with managed_node() as node:
        assert (await node.api.post("/banned?test=true", {"who": "bad", "as": "clientid"})).code == 0
        assert (await node.api.delete("/banned/clientid/bad?test=true&dry_run=true")).code == 0
        assert [row["what"] for row in await changes(node)] == ["DELETE /banned/{as}/{who}", "POST /banned"]


async def test_tests_and_dry_runs_are_not_recorded() -> None:
    async with managed_node() as node:
        sql = {"rawsql": 'SELECT topic FROM "t"', "ctx": {"topic": "t"}}
        assert (await node.api.post("/rules?test=true", sql)).code == 0
        assert (await node.api.post("/rules", {**sql, "test": True})).code == 0
        file = (await node.api.post("/data/export")).data["filename"]
        assert (await node.api.post("/data/import?dry_run=true", {"filename": file})).code == 0
        assert (await node.api.post("/data/import", {"version": "4.3", "apps": [{"secret": 1}]})).code != 0
        assert [row["what"] for row in await changes(node)] == ["POST /data/export"]


async def test_the_deletion_of_a_file_is_answered_once_and_recorded() -> None:
    async with managed_node() as node:
        file = (await node.api.post("/data/export")).data["filename"]
        reply = await node.api.delete(f"/data/file/{file}")
        assert reply.json == {"code": 0}
        deleted, _ = await changes(node)
        assert (deleted["what"], deleted["before"]) == ("DELETE /data/file/{filename}", None)


async def test_an_import_is_recorded_with_its_answer_and_without_the_file() -> None:
    async with managed_node() as node:
        await node.api.post("/apps", {"app_id": "exporter", "name": "x", "secret": "a long secret"})
        exported = (await node.api.post("/data/export")).data["filename"]
        file = (await node.api.get(f"/data/file/{exported}")).json
        del file["apps"][0]["secret_sha256"]
        file["apps"][0]["secret"] = "a secret of the file"
        assert (await node.api.post("/data/import", {**file, "env": {"X": "another secret"}})).code == 0
        row = (await changes(node))[0]
        assert row["what"] == "POST /data/import" and row["after"]["replaced_apps"] == ["exporter"]
        assert "secret" not in str(row)


async def test_secrets_in_the_json_of_a_command_are_masked() -> None:
    async with managed_node() as node:
        config = {"url": "http://127.0.0.1:1/", "headers": {"authorization": "Bearer of-the-resource"}}
        await done(node, "resources", "create", "web_hook", "-i", "hook", "-c", json.dumps(config))
        params = {"$resource": "hook", "headers": {"authorization": "Bearer of-the-action"}}
        actions = [{"name": "data_to_webserver", "params": params}]
        await done(node, "rules", "create", 'SELECT * FROM "t"', json.dumps(actions), "-i", "r")
        await done(node, "rules", "update", "r", "-a", json.dumps(actions))
        updated, created, _ = rows = await changes(node)
        assert "Bearer" not in str(rows)
        assert created["after"]["Actions"][0]["params"]["headers"] == {"authorization": "******"}
        assert updated["after"]["A"] == created["after"]["Actions"]


async def test_long_values_are_cut() -> None:
    async with managed_node() as node:
        await node.api.post("/banned", {"who": "bad", "as": "clientid", "reason": "x" * 10_000})
        (row,) = await changes(node)
        assert row["after"].keys() == {"bytes"}


async def test_a_long_value_is_not_searched_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masking 50,000 users would hold the loop for more than a second."""
    sizes: list[int] = []
    monkeypatch.setattr(audit_module, "mask", lambda value: sizes.append(len(json.dumps(value))) or mask(value))
    async with managed_node() as node:
        rule = {"topic": "t/" + "x" * 60, "action": "pub", "access": "allow"}
        rules = [{"clientid": f"c-{number}", **rule} for number in range(1_000)]
        assert (await node.api.post("/acl", rules)).code == 0
        (row,) = await changes(node)
        assert row["after"]["bytes"] > 64_000 and max(sizes, default=0) < 20_000


async def test_dashboard_users_are_named_and_viewers_do_not_see_it() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:
        dashboard = await with_users(node)
        root, eve = await dashboard.logged_in("root"), await dashboard.logged_in("eve")
        body = {"username": "pia", "password": "Secret-word-9", "role": "viewer", "tags": ""}
        assert (await root.ask("POST", "/users", body)).code == 0
        (row,) = await changes(node)
        assert (row["door"], row["who"], row["address"]) == ("dashboard", "root", "127.0.0.1")
        assert row["after"]["username"] == "pia" and row["after"]["password"] == "******"
        assert (await eve.ask("GET", "/audit")).status == 403
        assert (await root.ask("GET", "/audit")).data == [row]
        await dashboard.close()


async def test_a_change_that_a_node_does_not_answer_is_recorded() -> None:
    """On the other nodes, it is done."""
    async with fake_nodes(2) as nodes:
        nodes.hub.silent.add("n2@host")
        reply = await nodes[0].api.delete("/acl-cache")
        assert "on the others it is done" in reply.json["message"]
        assert [row["what"] for row in await changes(nodes[0])] == ["DELETE /acl-cache"]
        assert "n2@host" in await refused(nodes[0], "acl", "cache-clean", "node", "n2@host")
        assert [row["what"] for row in await changes(nodes[0])] == ["acl cache-clean node", "DELETE /acl-cache"]


async def test_all_nodes() -> None:
    async with fake_nodes(2) as nodes:
        await nodes[0].api.post("/banned", {"who": "one", "as": "clientid"})
        await nodes[1].api.post("/banned", {"who": "two", "as": "clientid"})
        rows = await changes(nodes[0])
        assert {row["node"] for row in rows} == {"n1@host", "n2@host"}
        nodes.hub.silent.add("n2@host")
        reply = await nodes[0].api.get("/audit")
        assert reply.meta["missing_nodes"] == ["n2@host"]


async def test_silences_and_thresholds_have_what_was_before() -> None:
    async with managed_node() as node:
        until = int(node.server.clock.wall()) + 60
        name = (await node.api.post("/alarm_silences", {"until": until, "reason": "work"})).data["id"]
        await node.api.put("/alarm_thresholds/memory", {"value": 70})
        await node.api.put("/alarm_thresholds/memory", {"value": 80})
        await node.api.delete(f"/alarm_silences/{name}")
        ended, second, first, made = (await node.api.get("/audit")).data
        assert (made["before"], ended["before"]["reason"]) == (None, "work")
        assert (first["before"]["value"], first["after"]["value"]) == (None, 70.0)
        assert (second["before"]["value"], second["after"]["value"]) == (70.0, 80.0)


async def test_a_command_has_what_was_before() -> None:
    async with managed_node(dashboard={}, access={"hash_cost": 10}) as node:

        async def before(*words: str) -> Any:
            await done(node, *words)
            row = (await changes(node))[0]
            assert row["door"] == "ctl"
            return row["before"]

        assert await before("user", "add", "ann", "a secret of hers, 9") is None
        created = (await node.api.get("/auth_username/ann")).data
        assert await before("user", "update", "ann", "another secret, 9") == created
        changed = await before("users", "update", "ann", "another secret, 9", "true")
        assert (changed["login"], changed["is_superuser"], changed["password"]) == ("ann", False, "******")
        assert (await before("users", "del", "ann"))["is_superuser"] is True

        assert await before("mgmt", "insert", "exporter", "An exporter") is None
        as_by_api = (await node.api.get("/apps/exporter")).data
        assert await before("mgmt", "scopes", "exporter", "read") == {**as_by_api, "secret": "******"}
        assert (await before("mgmt", "delete", "exporter"))["scopes"] == ["read"]

        assert await before("admins", "add", "olga", "Secret-word-9") is None
        assert (await before("admins", "role", "olga", "viewer"))["role"] == "administrator"
        assert (await before("admins", "del", "olga"))["role"] == "viewer"

        assert await before("acl", "add", "username", "ann", "t/#", "pub", "allow") is None
        (rule,) = await before("acl", "del", "username", "ann", "t/#")
        assert (rule["topic"], rule["action"], rule["access"]) == ("t/#", "pub", "allow")
        assert await before("acl", "add", "_all", "t/#", "pub", "allow") is None
        assert len(await before("acl", "del", "_all", "t/#")) == 1

        assert await before("banned", "add", "clientid", "bad", "--reason", "first") is None
        assert (await before("banned", "add", "clientid", "bad", "--reason", "second"))["reason"] == "first"
        assert (await before("banned", "del", "clientid", "bad"))["reason"] == "second"

        actions = '[{"name": "do_nothing", "params": {}}]'
        assert await before("rules", "create", 'SELECT * FROM "t"', actions, "-i", "r") is None
        assert (await before("rules", "update", "r", "-s", 'SELECT * FROM "u"'))["rawsql"] == 'SELECT * FROM "t"'
        assert (await before("rules", "delete", "r"))["rawsql"] == 'SELECT * FROM "u"'

        assert (await before("thresholds", "set", "connections", "100"))["value"] is None
        assert (await before("thresholds", "set", "connections", "off"))["value"] == 100
        await before("log", "set-level", "error", "taipan.management.ctl")
        assert await before("log", "set-level", "inherit", "taipan.management.ctl") == {"level": "error"}


async def test_a_command_that_is_refused_reads_no_object_that_does_not_exist() -> None:
    async with managed_node() as node:
        assert "not found" in str(await refused(node, "rules", "delete", "nothing"))
        assert "not found" in str(await refused(node, "user", "del", "nobody"))
        assert await changes(node) == []


async def test_every_command_that_changes_something_has_its_object_or_none() -> None:
    """Those without one create it, act on many, or change what is not kept."""
    without = {
        "acl cache-clean", "acl cache-clean node", "alarms clean", "alarms deactivate", "annotate", "backup restore",
        "data accept-loss", "data import", "listeners restart", "listeners stop", "resources create", "retainer clean",
        "rules create", "silences add", "slow-subs clean", "subscriptions add", "subscriptions del",
        "topic-metrics add", "trace start", "trace stop", "traces delete", "traces start", "traces stop",
    }  # fmt: skip
    recorded = [" ".join(each.words) for each in COMMANDS if is_recorded(each, {"x": "y"})]
    assert {each for each in recorded if not any(f"{each} ".startswith(f"{words} ") for words in OBJECTS)} == without
    assert not is_recorded(next(each for each in COMMANDS if each.words == ("cluster", "replicas")), {})
