"""/retained: list, look at, delete."""

from typing import Any

import pytest

from tests.support.api import ManagedNode, managed_node, segment
from tests.support.killed import as_killed

pytestmark = pytest.mark.asyncio


async def keep(node: ManagedNode, *topics: str, **more: Any) -> None:
    for topic in topics:
        body = {"clientid": "api", "topic": topic, "payload": f"of {topic}", "retain": True, **more}
        assert (await node.api.post("/mqtt/publish", body)).code == 0


FIELDS: dict[str, Any] = {
    "node": "taipan@127.0.0.1",
    "topic": "t/1",
    "qos": 1,
    "payload_size": 6,
    "from_clientid": "api",
    "from_username": None,
    "payload": "of t/1",
    "encoding": "plain",
    "properties": {"content_type": "text", "user_properties": [["a", "b"]], "correlation_data": "x"},
}
MORE: dict[str, Any] = {
    "properties": {"content_type": "text", "user_properties": {"a": "b"}, "correlation_data": "x"},
    "qos": 1,
}


@pytest.mark.parametrize("field", FIELDS)
async def test_field(field: str) -> None:
    async with managed_node() as node:
        await keep(node, "t/1", **MORE)
        row = (await node.api.get("/retained/" + segment("t/1"))).data
        assert row[field] == FIELDS[field]
        (listed,) = (await node.api.get("/retained")).data
        if field in ("payload", "encoding", "properties"):
            assert field not in listed
        else:
            assert listed[field] == FIELDS[field]


@pytest.mark.parametrize("field", ["publish_at", "expires_at"])
async def test_time_field(field: str) -> None:
    async with managed_node() as node:
        await keep(node, "t/1", properties={"message_expiry_interval": 60})
        await keep(node, "t/2")
        first, second = (await node.api.get("/retained")).data
        assert len(first[field]) == len("2026-01-31 23:59:59")
        assert (second["expires_at"] is None) and second["publish_at"]


async def test_a_payload_that_is_not_text() -> None:
    async with managed_node() as node:
        await keep(node, "t", encoding="base64", payload="AP8=")
        row = (await node.api.get("/retained/t")).data
        assert (row["payload"], row["encoding"]) == ("AP8=", "base64")


async def test_pages() -> None:
    async with managed_node() as node:
        await keep(node, *(f"t/{number}" for number in range(5)))
        reply = await node.api.get("/retained", _page=2, _limit=2)
        assert [row["topic"] for row in reply.data] == ["t/2", "t/3"]
        assert reply.meta == {"page": 2, "limit": 2, "count": 5, "hasnext": True}
        reply = await node.api.get("/retained", _page=3, _limit=2)
        assert [row["topic"] for row in reply.data] == ["t/4"] and reply.meta["hasnext"] is False
        assert (await node.api.get("/retained", _page=10**30)).data == []


FILTERS = {
    "topic": ({"topic": "a/1"}, ["a/1"]),
    "topic-unknown": ({"topic": "a/3"}, []),
    "_match_topic-plus": ({"_match_topic": "a/+"}, ["a/1", "a/2"]),
    "_match_topic-hash": ({"_match_topic": "#"}, ["a/1", "a/2", "b"]),
    "_match_topic-plain": ({"_match_topic": "b"}, ["b"]),
    "both": ({"_match_topic": "a/#", "topic": "a/2"}, ["a/2"]),
    "both-apart": ({"_match_topic": "a/#", "topic": "b"}, []),
}


@pytest.mark.parametrize("case", FILTERS)
async def test_filter(case: str) -> None:
    query, expected = FILTERS[case]
    async with managed_node() as node:
        await keep(node, "a/1", "a/2", "b")
        reply = await node.api.get("/retained", **query)
        assert sorted(row["topic"] for row in reply.data) == expected
        assert reply.meta["count"] == -1


async def test_what_has_expired_is_not_there() -> None:
    async with managed_node() as node:
        await keep(node, "t", properties={"message_expiry_interval": 5})
        node.clock.shift += 6  # time passes, nothing is swept
        assert (await node.api.get("/retained")).data == []
        assert (await node.api.get("/retained", _match_topic="#")).data == []
        assert (await node.api.get("/retained/t")).status == 404
        assert (await node.api.delete("/retained/t")).data == {"count": 0}


@pytest.mark.parametrize("version", [4, 5])
async def test_what_a_client_retained(version: int) -> None:
    async with managed_node() as node:
        peer = await node.client("c1", version)
        await peer.publish("t", b"x", qos=1, retain=True)
        (row,) = (await node.api.get("/retained")).data
        assert (row["topic"], row["qos"], row["from_clientid"]) == ("t", 1, "c1")


REFUSALS = {
    "get-unknown": ("GET", "nothing", 404, 102),
    "get-wildcard": ("GET", "a/#", 400, 115),
    "delete-invalid": ("DELETE", "a/#/b", 400, 115),
    "list-invalid": ("GET", "?_match_topic=a/%23/b", 400, 115),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_refusal(case: str) -> None:
    method, topic, status, code = REFUSALS[case]
    async with managed_node() as node:
        path = "/retained" + (topic if topic.startswith("?") else "/" + segment(topic))
        reply = await node.api.ask(method, path)
        assert (reply.status, reply.code) == (status, code)


DELETES = {"a/1": ["a/2", "b"], "a/+": ["b"], "#": [], "nothing": ["a/1", "a/2", "b"]}


@pytest.mark.parametrize("filter", DELETES)
async def test_delete(filter: str) -> None:
    async with managed_node() as node:
        await keep(node, "a/1", "a/2", "b")
        left = DELETES[filter]
        assert (await node.api.delete("/retained/" + segment(filter))).data == {"count": 3 - len(left)}
        assert [row["topic"] for row in (await node.api.get("/retained")).data] == left
        assert node.server.metrics.messages_retained == len(left)
        peer = await node.client("c1")
        await peer.subscribe("#")
        for _ in left:
            await peer.expect_publish()
        await peer.nothing()


async def test_a_deletion_is_on_disk(tmp_path: Any) -> None:
    config: dict[str, Any] = {"durability": {"level": "disk"}, "node": {"data_dir": str(tmp_path / "data")}}
    async with managed_node(**config) as node:
        await keep(node, "a/1", "b")
        assert (await node.api.delete("/retained/" + segment("a/#"))).data == {"count": 1}
        copy = as_killed(tmp_path / "data", tmp_path / "copy")
        durability = node.server.broker.durability
        assert durability is not None
        durability.commit.trouble = "the disk is full"
        assert (await node.api.delete("/retained/b")).code == 101
        durability.commit.trouble = None
    for data in (copy, tmp_path / "data"):
        async with managed_node(**{**config, "node": {"data_dir": str(data)}}) as node:
            assert [row["topic"] for row in (await node.api.get("/retained")).data] == ["b"]
