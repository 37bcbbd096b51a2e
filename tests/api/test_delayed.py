"""/delayed: messages that wait."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio

NODE = "taipan@127.0.0.1"


async def delay(node: ManagedNode, seconds: int, topic: str, payload: bytes = b"x", **more: Any) -> None:
    peer = await node.client(more.pop("client_id", "c"))
    await peer.publish(f"$delayed/{seconds}/{topic}", payload, qos=1, **more)
    await peer.disconnect()


async def topics(node: ManagedNode, **query: Any) -> list[str]:
    return [each["topic"] for each in (await node.api.get("/delayed", **query)).data]


async def test_list_look_delete() -> None:
    async with managed_node() as node:
        subscriber = await node.client("s")
        await subscriber.subscribe("#")
        assert (await node.api.get("/delayed")).json["data"] == []
        await delay(node, 300, "later", b"\xff", retain=True)
        await delay(node, 100, "door/1", b"open", client_id="d")
        first, second = (await node.api.get("/delayed")).data
        assert first == {
            "id": first["id"], "node": NODE, "topic": "door/1", "qos": 1, "retain": False, "payload_size": 4,
            "publish_at": first["publish_at"], "expected_at": first["expected_at"], "remaining": 100,
            "from_clientid": "d", "from_username": None,
        }  # fmt: skip
        assert first["publish_at"] < first["expected_at"] < second["expected_at"]
        content = (await node.api.get(f"/nodes/{NODE}/delayed/{first['id']}")).data
        assert content == {**first, "payload": "open", "encoding": "plain"}
        content = (await node.api.get(f"/nodes/{NODE}/delayed/{second['id']}")).data
        assert (content["encoding"], base64.b64decode(content["payload"])) == ("base64", b"\xff")
        assert (await node.api.delete(f"/nodes/{NODE}/delayed/{first['id']}")).json == {"code": 0}
        assert await topics(node) == ["later"] and node.server.delayed.count == 1
        (row,) = (await node.api.get("/audit", _limit=1)).data
        assert row["what"] == "DELETE /nodes/{node}/delayed/{id}" and row["before"]["topic"] == "door/1"
        await node.pass_time(200)
        await node.pass_time(101)
        assert (await subscriber.expect_publish()).topic == "later"  # and not the deleted one
        assert await topics(node) == [] and node.server.delayed.size == 0
        assert_refused(await node.api.delete(f"/nodes/{NODE}/delayed/{second['id']}"), 404, 102)


async def test_conditions_and_pages() -> None:
    async with managed_node() as node:
        for number in range(5):
            await delay(node, 100 + number, f"a/{number}", client_id=f"c{number % 2}")
        assert await topics(node, _match_topic="a/+", clientid="c1") == ["a/1", "a/3"]
        assert await topics(node, _match_topic="b/#") == []
        reply = await node.api.get("/delayed", _limit=2, _page=2)
        assert [each["topic"] for each in reply.data] == ["a/2", "a/3"] and reply.meta["hasnext"] is True
        assert (await node.api.get("/delayed", _limit=2, _page=3)).meta["hasnext"] is False
        assert_refused(await node.api.get("/delayed", _match_topic="a/#/b"), 400, 115)
        assert_refused(await node.api.get("/delayed", _page=11, _limit=1000), 400, 108, "_page")


async def test_a_deleted_message_does_not_come_back(tmp_path: Path) -> None:
    config: dict[str, Any] = {"node": {"data_dir": str(tmp_path)}, "durability": {"level": "disk"}}
    async with managed_node(**config) as node:
        await delay(node, 1000, "gone")
        await delay(node, 1000, "stays")
        (name,) = [each["id"] for each in (await node.api.get("/delayed")).data if each["topic"] == "gone"]
        assert (await node.api.delete(f"/nodes/{NODE}/delayed/{name}")).code == 0
    async with managed_node(**config) as node:
        (record,) = (await node.api.get("/delayed")).data
        assert record["topic"] == "stays" and 900 < record["remaining"] <= 1000
        # An identifier of the process before names nothing.
        assert_refused(await node.api.delete(f"/nodes/{NODE}/delayed/{name}"), 404, 102)
        assert record["id"] != name


@pytest.mark.parametrize("name", ["x", "1", "-1", "x-1", "9" * 5000, "%00"])
async def test_identifiers_that_are_none(name: str) -> None:
    async with managed_node() as node:
        assert_refused(await node.api.get(f"/nodes/{NODE}/delayed/{name}"), 404, 102)


async def test_all_nodes() -> None:
    async with fake_nodes(2) as nodes:
        await delay(nodes[0], 200, "b")
        await delay(nodes[1], 100, "a")
        first, second = (await nodes[0].api.get("/delayed")).data
        assert [(each["node"], each["topic"]) for each in (first, second)] == [("n2@host", "a"), ("n1@host", "b")]
        assert (await nodes[0].api.get(f"/nodes/n2@host/delayed/{first['id']}")).data["payload"] == "x"
        assert (await nodes[0].api.delete(f"/nodes/n2@host/delayed/{first['id']}")).code == 0
        assert nodes[1].server.delayed.count == 0
