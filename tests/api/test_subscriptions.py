"""/subscriptions: every field, every filter, those of sessions whose client is away, and pages."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.api import ManagedNode, managed_node, segment

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def several() -> AsyncIterator[ManagedNode]:
    """c1 and c2 are connected, "off/ü" is a session whose client is away."""
    async with managed_node() as node:
        one = await node.client("c1", 4)
        await one.subscribe("t/1", "$queue/q/t", qos=1)
        await one.subscribe("t/+/x", qos=2)
        await one.subscribe("$share/g1/s/t", qos=0)
        two = await node.client("c2", 5)
        await two.subscribe("t/#", qos=2)
        await two.subscribe("$share/g12/s/t", "$share/g1/t/1", qos=1)
        await two.subscribe("#")
        await node.leave_session("off/ü", "t/1", "odd/ü/a b")
        yield node


EVERYTHING = [
    ("c1", "t/1", 1), ("c1", "$share/$queue/q/t", 1), ("c1", "t/+/x", 2), ("c1", "$share/g1/s/t", 0),
    ("c2", "t/#", 2), ("c2", "$share/g12/s/t", 1), ("c2", "$share/g1/t/1", 1), ("c2", "#", 0),
    ("off/ü", "t/1", 1), ("off/ü", "odd/ü/a b", 1),
]  # fmt: skip


def rows(data: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(each["clientid"], each["topic"], each["qos"]) for each in data]


@pytest.mark.parametrize("field", ["node", "clientid", "topic", "qos"])
async def test_every_field(field: str) -> None:
    async with several() as node:
        found = (await node.api.get("/subscriptions")).data
        wanted = {
            "node": [node.name] * len(EVERYTHING),
            "clientid": [each[0] for each in EVERYTHING],
            "topic": [each[1] for each in EVERYTHING],
            "qos": [each[2] for each in EVERYTHING],
        }
        assert [each[field] for each in found] == wanted[field]
        assert all(len(each) == len(wanted) for each in found)


@pytest.mark.parametrize("path", ["/subscriptions", "/nodes/{node}/subscriptions"])
@pytest.mark.parametrize("limit", [1, 3, 4, 10, 11])
async def test_page_by_page(path: str, limit: int) -> None:
    async with several() as node:
        seen = []
        page = 1
        while True:
            reply = await node.api.get(path.format(node=node.name), _page=page, _limit=limit)
            seen += rows(reply.data)
            left = len(seen) < len(EVERYTHING)
            assert reply.meta == {"page": page, "limit": limit, "count": 10, "hasnext": left}
            if not left:
                break
            page += 1
        assert seen == EVERYTHING
        assert (await node.api.get(path.format(node=node.name), _page=page + 5, _limit=limit)).data == []
        assert (await node.api.get(path.format(node=node.name), _page=10**18, _limit=limit)).data == []


FILTERS: list[tuple[str, Any, list[int]]] = [
    ("clientid", "c1", [0, 1, 2, 3]),
    ("clientid", "off/ü", [8, 9]),
    ("clientid", "nobody", []),
    ("topic", "t/1", [0, 8, 6]),
    ("topic", "s/t", [3, 5]),
    ("topic", "q/t", [1]),
    ("topic", "t/#", [4]),
    ("topic", "t/2", []),
    ("topic", "$share/g1/s/t", []),
    ("qos", 0, [3, 7]),
    ("qos", 1, [0, 1, 5, 6, 8, 9]),
    ("qos", 2, [2, 4]),
    ("share", "g1", [3, 6]),
    ("share", "g", []),
    ("share", "$queue", [1]),
    ("_match_topic", "t/1", [0, 6, 8]),
    ("_match_topic", "t/#", [0, 2, 4, 6, 8]),
    ("_match_topic", "+/t", [1, 3, 5]),
    ("_match_topic", "#", list(range(10))),
    ("_match_topic", "nothing/#", []),
]


@pytest.mark.parametrize(("key", "value", "wanted"), FILTERS, ids=[f"{each[0]}-{each[1]}" for each in FILTERS])
async def test_filter(key: str, value: Any, wanted: list[int]) -> None:
    async with several() as node:
        for path in ("/subscriptions", f"/nodes/{node.name}/subscriptions"):
            reply = await node.api.get(path, **{key: value})
            assert rows(reply.data) == [EVERYTHING[each] for each in wanted]
            assert reply.meta["count"] == -1  # specification, Pagination
            assert reply.meta["hasnext"] is False


COMBINED: list[tuple[dict[str, Any], list[int]]] = [
    ({"clientid": "c1", "qos": 2}, [2]),
    ({"clientid": "c1", "topic": "t/1"}, [0]),
    ({"topic": "t/1", "share": "g1"}, [6]),
    ({"topic": "t/1", "qos": 1, "clientid": "off/ü"}, [8]),
    ({"_match_topic": "t/#", "qos": 1}, [0, 6, 8]),
    ({"_match_topic": "s/#", "share": "g12"}, [5]),
    ({"_match_topic": "t/#", "clientid": "c2", "qos": 2}, [4]),
    ({"share": "g1", "qos": 2}, []),
]


@pytest.mark.parametrize(("given", "wanted"), COMBINED, ids=["+".join(each[0]) for each in COMBINED])
async def test_filters_combined(given: dict[str, Any], wanted: list[int]) -> None:
    async with several() as node:
        reply = await node.api.get("/subscriptions", **given)
        assert rows(reply.data) == [EVERYTHING[each] for each in wanted]
        assert reply.meta["count"] == -1


async def test_a_filter_with_pages() -> None:
    async with several() as node:
        for given in ({"topic": "t/1"}, {"_match_topic": "t/1"}):
            reply = await node.api.get("/subscriptions", _limit=2, **given)
            assert len(reply.data) == 2 and reply.meta["hasnext"] is True
            assert reply.meta["count"] == -1
            reply = await node.api.get("/subscriptions", _limit=2, _page=2, **given)
            assert len(reply.data) == 1 and reply.meta["hasnext"] is False
            assert reply.meta["count"] == -1


BAD = [
    ("qos", "3", 108), ("qos", "x", 108), ("_match_topic", "a/#/b", 115), ("_match_topic", "", 115),
    ("_page", "x", 108), ("_limit", "-1", 108),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "code"), BAD, ids=[f"{each[0]}-{each[1]}" for each in BAD])
async def test_a_filter_with_a_wrong_value(key: str, value: str, code: int) -> None:
    async with managed_node() as node:
        reply = await node.api.get("/subscriptions", **{key: value})
        assert (reply.status, reply.code) == (400, code) and key in reply.json["message"]


@pytest.mark.parametrize("path", ["/subscriptions/", "/nodes/{node}/subscriptions/"])
async def test_of_one_client(path: str) -> None:
    async with several() as node:
        path = path.format(node=node.name)
        reply = await node.api.get(path + "c1")
        assert rows(reply.data) == EVERYTHING[:4] and "meta" not in reply.json
        assert rows((await node.api.get(path + segment("off/ü"))).data) == EVERYTHING[8:]
        assert (await node.api.get(path + "nobody")).json == {"data": [], "code": 0}


@pytest.mark.parametrize("path", ["/nodes/x@y/subscriptions", "/nodes/x@y/subscriptions/c1"])
async def test_another_node(path: str) -> None:
    async with managed_node() as node:
        reply = await node.api.get(path)
        assert (reply.status, reply.code) == (404, 102)


async def test_they_go_with_unsubscribe_and_with_the_session() -> None:
    async with managed_node() as node:
        peer = await node.client("c", 5)
        await peer.subscribe("a", "b")
        await peer.subscribe("a", qos=2)
        assert rows((await node.api.get("/subscriptions")).data) == [("c", "a", 2), ("c", "b", 0)]
        await peer.unsubscribe("a")
        assert rows((await node.api.get("/subscriptions")).data) == [("c", "b", 0)]
        await peer.drop()
        reply = await node.api.get("/subscriptions")
        assert reply.data == [] and reply.meta["count"] == 0


async def test_with_a_mount_point() -> None:
    """The filter that is matched, as EMQX shows it."""
    async with managed_node(zone={"mountpoint": "of/%c/"}) as node:
        peer = await node.client("c", 4)
        await peer.subscribe("a", "$share/g/b")
        assert rows((await node.api.get("/subscriptions")).data) == [("c", "of/c/a", 0), ("c", "$share/g/of/c/b", 0)]
