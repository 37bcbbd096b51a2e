"""/topic_tree and /retained_tree: topics by level, with what stands below each."""

from typing import Any

import pytest

from taipan.broker.loop.cooperative_slice import CooperativeSlice
from taipan.broker.mqtt.constants import MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.message import Message
from taipan.broker.routing.router import Router
from taipan.management.operations import topic_tree
from tests.support.api import ManagedNode, assert_refused, managed_node, segment

pytestmark = pytest.mark.asyncio


async def tree(node: ManagedNode, prefix: str = "", path: str = "/topic_tree", **query: Any) -> dict[str, Any]:
    rows = (await node.api.get(path, prefix=prefix, **query)).data
    assert all(row["topic"] == (f"{prefix}/{row['level']}" if prefix else row["level"]) for row in rows)
    numbers = ("children", "topics", "retained", "subscribers", "messages")
    return {row["level"]: tuple(row[name] for name in numbers if name in row) for row in rows}


async def test_levels_of_filters_and_retained_messages() -> None:
    async with managed_node() as node:
        for name, filters in (("c1", ("a/b", "a/+/x", "#", "$share/g/a/b/c")), ("c2", ("a/b", "z"))):
            peer = await node.client(name)
            for each in filters:
                await peer.subscribe(each, qos=1)
        for topic in ("a/b", "a/d", "r/s/t", "r/s/u", "/lead", "$own/x"):
            await peer.publish(topic, b"x", 1, retain=True)
        assert await tree(node) == {
            "": (1, 1, 1, 0),
            "#": (0, 1, 0, 1),
            "$own": (1, 1, 1, 0),
            "a": (3, 4, 2, 4),
            "r": (1, 2, 2, 0),
            "z": (0, 1, 0, 1),
        }
        for path in ("/topic_tree", "/retained_tree"):
            (row,) = (await node.api.get(path, below="/")).data
            assert (row["level"], row["topic"]) == ("lead", "/lead")
            assert (await node.api.get(path, below="//")).data == []
            named, below = [
                (await node.api.get(path, **{how: text})).data for how, text in (("prefix", "r"), ("below", "r/"))
            ]
            assert named == below and len(named) == 1
        assert_refused(await node.api.get("/topic_tree", below="a"), 400, 108)
        assert_refused(await node.api.get("/topic_tree", below="a/", prefix="a"), 400, 108)
        assert await tree(node, "a") == {"+": (1, 1, 0, 1), "b": (1, 2, 1, 3), "d": (0, 1, 1, 0)}
        assert await tree(node, "a/b") == {"c": (0, 1, 0, 1)}
        assert await tree(node, "a/+") == {"x": (0, 1, 0, 1)}
        assert await tree(node, "nothing") == {} == await tree(node, "z")
        assert await tree(node, level="a") == {"a": (3, 4, 2, 4)}
        retained = {"": (1, 1), "$own": (1, 1), "a": (2, 2), "r": (1, 2)}
        assert await tree(node, path="/retained_tree") == retained
        assert await tree(node, "r/s", path="/retained_tree") == {"t": (0, 1), "u": (0, 1)}


async def test_pages_and_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_tree, "_PAUSE", 5)
    async with managed_node() as node:
        for number in range(100):
            node.server.broker.retained.put(Message(f"d/{(number * 37) % 100:03}/x", b"p", 0, True))
        first = await node.api.get("/topic_tree", prefix="d", _limit=10)
        assert [row["level"] for row in first.data] == [f"{n:03}" for n in range(10)]
        assert first.meta == {"page": 1, "limit": 10, "count": -1, "hasnext": True}
        last = await node.api.get("/topic_tree", prefix="d", _limit=30, _page=4)
        assert [row["level"] for row in last.data] == [f"{n:03}" for n in range(90, 100)]
        assert (last.meta["hasnext"], last.meta["count"]) == (False, 100)
        assert (await node.api.get("/topic_tree", prefix="d", _limit=0)).data == []
        assert_refused(await node.api.get("/topic_tree", _page=1001, _limit=100), 400, 108, "prefix")
        assert_refused(await node.api.get("/topic_tree", prefix="x" * 65_536), 400, 108, "prefix")


async def test_what_expired_is_not_there() -> None:
    async with managed_node() as node:
        properties = {MESSAGE_EXPIRY_INTERVAL: 5}
        message = Message("t/x", b"p", 0, True, properties, timestamp=node.clock.now() - 10)
        node.server.broker.retained.put(message)
        assert await tree(node) == await tree(node, "t") == {}


async def test_many_topics_do_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is done in stretches: between any two of them the loop runs."""
    paused = 0

    async def checkpoint(self: CooperativeSlice) -> None:
        nonlocal paused
        paused += 1

    monkeypatch.setattr(CooperativeSlice, "checkpoint", checkpoint)
    async with managed_node() as node:
        for number in range(5000):
            node.server.broker.retained.put(Message(f"d/{number}", b"p", 0, True))
        assert await tree(node) == {"d": (5000, 5000, 5000, 0)}
        assert paused >= 2 * 5000 / topic_tree._STEPS
        # Also where nothing of it is below the prefix.
        for number in range(5000):
            node.server.broker.router.set_remote(f"r/{number}", 1)
        paused = 0
        assert await tree(node, "nothing") == {}
        assert paused >= 5000 / topic_tree._STEPS


async def test_routes_of_other_nodes_count_each_node_once() -> None:
    router = Router()
    router.set_remote("a/b", 0b1101)  # two nodes, one of them with durable sessions
    router.set_remote("a/#", 0b10)
    assert sorted(router.known_filters()) == ["a/#", "a/b"]
    assert (router.subscriber_count("a/b"), router.subscriber_count("a/#"), router.subscriber_count("c")) == (2, 1, 0)
    assert router.knows("a/b") and not router.knows("a/c")


HOSTILE = ["<script>alert(1)</script>", "\u202egnp.exe", "\x01\x02", "x" * 60_000, "ü/ß", "%2F", "'\";--"]


@pytest.mark.parametrize("topic", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_topics(topic: str) -> None:
    async with managed_node() as node:
        node.server.broker.retained.put(Message(f"{topic}/below", b"p", 0, True))
        level = topic.partition("/")[0]
        assert list(await tree(node)) == [level]
        assert len(await tree(node, level)) == 1


async def test_the_messages_that_a_deletion_would_take_are_counted_first() -> None:
    async with managed_node() as node:
        for topic in ("a/1", "a/2", "b"):
            node.server.broker.retained.put(Message(topic, b"p", 0, True))
        path = "/retained/" + segment("a/#")
        assert (await node.api.delete(path, dry_run="true")).data == {"count": 2}
        assert len((await node.api.get("/retained")).data) == 3
        assert (await node.api.delete(path)).data == {"count": 2}
        assert_refused(await node.api.delete("/retained/" + segment("a/#/b"), dry_run="true"), 400, 115)
