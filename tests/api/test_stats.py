"""/stats: every gauge of the specification and of 4.4, and what it shows."""

import asyncio
from typing import Any

import pytest

from taipan.ruleengine.types.builtin import ACTION_TYPES
from tests.support.api import managed_node

# Name -> (now, at most) of the story below.
SHOWN = {
    "connections": (1, 2),
    "live_connections": (1, 2),
    "channels": (2, 2),
    "sessions": (2, 2),
    "topics": (3, 3),
    "suboptions": (3, 4),
    "subscribers": (2, 3),
    "subscriptions": (3, 4),
    "subscriptions.shared": (1, 1),
    "routes": (3, 3),
    "retained": (0, 1),
    "rules": (0, 0),
    "actions": (len(ACTION_TYPES), len(ACTION_TYPES)),  # the types of action there are, as EMQX counts them
    "resources": (0, 0),
    "delayed": (1, 1),
    "alarms": (0, 1),
    "nodes.hosted": (0, 0),
}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    async def story() -> dict[str, Any]:
        async with managed_node() as node:
            one = await node.client("one", expiry=100)
            await one.subscribe("a", "$share/g/b")
            two = await node.client("two")
            await two.subscribe("a", "c/#")
            await two.publish("kept", b"x", retain=True)
            await two.publish("$delayed/100/t", b"x")
            node.server.alarms.activate("something", "")
            await node.api.get("/stats")  # where maxima are looked at
            await two.unsubscribe("a")
            await two.publish("kept", b"", retain=True)
            node.server.alarms.deactivate("something")
            await one.disconnect()
            await node.settled(1)
            (entry,) = (await node.api.get("/stats")).data
            assert entry["node"] == node.name
            assert (await node.api.get(f"/nodes/{node.name}/stats")).data == entry["stats"]
            stats: dict[str, Any] = entry["stats"]
            return stats

    return asyncio.run(story())


@pytest.mark.parametrize("kind", ["count", "max"])
@pytest.mark.parametrize("name", SHOWN)
def test_every_stat(told: dict[str, Any], name: str, kind: str) -> None:
    assert told[f"{name}.{kind}"] == SHOWN[name][kind == "max"]


MEMORY = ("limit", "used", "base", "queues", "messages", "retained", "subscriptions", "sessions", "connections",
          "before_login", "aliases", "events", "event_plugins", "delayed", "hosted", "http",
          "other")  # fmt: skip


def test_there_are_no_others(told: dict[str, Any]) -> None:
    names = [*SHOWN, *(f"memory.{part}" for part in MEMORY)]
    assert set(told) == {f"{name}.{kind}" for name in names for kind in ("count", "max")}


def test_the_parts_of_the_memory_are_all_of_it(told: dict[str, Any]) -> None:
    assert 0 < told["memory.used.count"] < told["memory.limit.count"]
    parts = {part: told[f"memory.{part}.count"] for part in MEMORY[2:]}
    assert abs(sum(parts.values()) - told["memory.used.count"]) < 10_000_000
    assert parts["sessions"] > 0 and parts["connections"] > 0 and parts["subscriptions"] > 0


@pytest.mark.asyncio
async def test_rules_and_resources_are_counted() -> None:
    async with managed_node() as node:
        rule = {"rawsql": 'SELECT * FROM "t/#"', "actions": [{"name": "do_nothing", "params": {}}]}
        made = (await node.api.post("/rules", rule)).data["id"]
        resource = {"type": "web_hook", "config": {"url": "http://127.0.0.1:9"}}
        assert (await node.api.post("/resources", resource)).code == 0
        assert (await node.api.get("/stats")).data[0]["stats"]["rules.count"] == 1
        assert (await node.api.delete(f"/rules/{made}")).code == 0
        (entry,) = (await node.api.get("/stats")).data
        assert (entry["stats"]["rules.count"], entry["stats"]["rules.max"]) == (0, 1)
        assert (entry["stats"]["resources.count"], entry["stats"]["resources.max"]) == (1, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["store.trouble", "store.pending", "store.bytes"])
async def test_stat_of_the_store(name: str) -> None:
    async with managed_node(durability={"level": "disk"}) as node:
        (entry,) = (await node.api.get("/stats")).data
        assert entry["stats"][f"{name}.count"] >= (name == "store.bytes")
