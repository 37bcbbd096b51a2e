"""Modules and plugins, as EMQX 4's dashboard asks for them: what there is, start and stop, and that it lasts."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.ctl import done

pytestmark = pytest.mark.asyncio

STARTS_AND_STOPS = [
    "emqx_mod_delayed",
    "emqx_mod_presence",
    "emqx_mod_rewrite",
    "emqx_mod_slow_subs",
    "emqx_mod_subscription",
    "emqx_mod_topic_metrics",
]


async def active(node: ManagedNode) -> dict[str, bool]:
    (row,) = (await node.api.get("/modules")).data
    assert row["node"] == node.name and row["modules"] == (await node.api.get(f"/nodes/{node.name}/modules")).data
    return {each["name"]: each["active"] for each in row["modules"]}


async def test_each_starts_and_stops() -> None:
    async with managed_node() as node:
        before = await active(node)
        assert set(before) == {*STARTS_AND_STOPS, "emqx_mod_acl_internal", "emqx_mod_trace"}
        for name in STARTS_AND_STOPS:
            for place in (f"/modules/{name}", f"/nodes/{node.name}/modules/{name}"):
                if (await active(node))[name]:
                    assert_refused(await node.api.put(f"{place}/load"), 400, 110, "already_started")
                else:
                    assert (await node.api.put(f"{place}/load")).json == {"code": 0}
                assert (await node.api.put(f"{place}/reload")).json == {"code": 0}
                assert (await node.api.put(f"{place}/unload")).json == {"code": 0}
                assert (await active(node))[name] is False
                assert_refused(await node.api.put(f"{place}/unload"), 400, 111, "not_started")
        for name in ("emqx_mod_acl_internal", "emqx_mod_trace"):
            assert_refused(await node.api.put(f"/modules/{name}/unload"), 400, 108, "part of the node")
            assert_refused(await node.api.put(f"/modules/{name}/load"), 400, 110)
        for verb in ("load", "unload", "reload"):
            assert_refused(await node.api.put(f"/modules/emqx_mod_unknown/{verb}"), 404, 102, "emqx_mod_unknown")


async def test_it_takes_effect() -> None:
    async with managed_node(slow_subscriptions={"threshold": 0.0001}) as node:
        watcher = await node.client("watcher")
        await watcher.subscribe("$SYS/brokers/+/clients/+/connected", "$delayed/#", "t", qos=1)
        for name in ("emqx_mod_presence", "emqx_mod_delayed", "emqx_mod_topic_metrics"):
            assert (await node.api.put(f"/modules/{name}/unload")).code == 0
        publisher = await node.client("publisher")
        await publisher.publish("$delayed/1/t", b"at once, as any topic", 1)
        assert (await watcher.expect_publish()).topic == "$delayed/1/t"
        reply = await node.api.post("/topic-metrics", {"topic": "t"})
        assert_refused(reply, 400, 108, "module_not_loaded")
        for name in (*STARTS_AND_STOPS[:2], "emqx_mod_topic_metrics", "emqx_mod_slow_subs"):
            assert (await node.api.put(f"/modules/{name}/load")).code == 0
        await node.client("comes")
        assert (await watcher.expect_publish()).topic.endswith("/clients/comes/connected")
        assert (await node.api.post("/topic-metrics", {"topic": "t"})).code == 0
        await publisher.publish("t", b"1", 1)
        await watcher.expect_publish()
        await watcher.ping()
        assert (await node.api.get("/topic-metrics/t")).data["messages.in.count"] == 1
        assert "t" in [each["topic"] for each in (await node.api.get("/slow_subscriptions")).data]
        assert (await node.api.put("/modules/emqx_mod_slow_subs/unload")).code == 0
        assert_refused(await node.api.get("/slow_subscriptions"), 404, 102)


async def test_it_lasts_over_a_restart(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        assert (await node.api.put("/modules/emqx_mod_delayed/unload")).code == 0
        assert (await node.api.put("/modules/emqx_mod_slow_subs/load")).code == 0
    async with managed_node(**config) as node:
        now = await active(node)
        assert (now["emqx_mod_delayed"], now["emqx_mod_slow_subs"], now["emqx_mod_presence"]) == (False, True, True)


async def test_plugins_are_parts_of_the_node() -> None:
    async with managed_node() as node:
        (row,) = (await node.api.get("/plugins")).data
        plugins = {each["name"]: each for each in row["plugins"]}
        assert row["plugins"] == (await node.api.get(f"/nodes/{node.name}/plugins")).data
        assert plugins["emqx_retainer"] == {
            "name": "emqx_retainer", "description": "Retained messages", "active": True, "type": "feature"
        }  # fmt: skip
        assert plugins["emqx_dashboard"]["active"] is False
        place = f"/nodes/{node.name}/plugins"
        assert_refused(await node.api.put(f"{place}/emqx_retainer/load"), 400, 110)
        assert_refused(await node.api.put(f"{place}/emqx_retainer/unload"), 400, 108, "part of the node")
        assert_refused(await node.api.put("/plugins/emqx_retainer/unload"), 400, 108)
        assert_refused(await node.api.put(f"{place}/emqx_dashboard/load"), 400, 108, "dashboard.enabled")
        assert_refused(await node.api.put(f"{place}/emqx_dashboard/unload"), 400, 111)
        assert (await node.api.put("/plugins/emqx_retainer/reload")).json == {"code": 0}
        assert (await node.api.put(f"{place}/emqx_retainer/reload")).json == {"code": 0}
        assert_refused(await node.api.put(f"{place}/emqx_lwm2m/load"), 404, 102)


async def test_commands() -> None:
    async with managed_node() as node:
        assert await done(node, "modules", "unload", "emqx_mod_delayed") == [
            "Module emqx_mod_delayed unloaded successfully."
        ]
        assert await done(node, "modules", "load", "emqx_mod_delayed") == [
            "Module emqx_mod_delayed loaded successfully."
        ]
        assert "Plugin(emqx_retainer, description=Retained messages, active=true)" in await done(
            node, "plugins", "list"
        )
        assert await done(node, "modules", "reload", "emqx_mod_delayed") == [
            'Module: "emqx_mod_delayed" does not need to be reloaded.'
        ]
        assert await done(node, "admins", "add", "root", "pass-word-1") == ["ok"]
        assert await done(node, "admins", "add", "eve", "pass-word-1", "viewer") == ["ok"]
        assert await done(node, "admins", "add", "ann", "pass-word-1", "--role", "viewer") == ["ok"]
        assert await done(node, "admins", "passwd", "eve", "pass-word-2") == ["ok"]
        assert await done(node, "admins", "list") == [
            "Admin(username=root, role=administrator, tags=)",
            "Admin(username=eve, role=viewer, tags=viewer)",
            "Admin(username=ann, role=viewer, tags=)",
        ]
        assert await done(node, "admins", "del", "ann") == ["ok"]
