"""/top: the clients, topics and shared groups behind the figures, on one node and on several."""

import pytest

from tests.support.api import ManagedNode, assert_refused, managed_node
from tests.support.fake_cluster import fake_nodes
from tests.support.wire import Publish

pytestmark = pytest.mark.asyncio

N1, N2, N3 = "n1@host", "n2@host", "n3@host"


async def sweep(*nodes: ManagedNode, seconds: float = 10.0) -> None:
    """Let some time pass, in which all clients are looked at."""
    for node in nodes:
        await node.pass_time(seconds)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("kind", ["tcp", "ws"])
async def test_the_loudest_clients(version: int, kind: str) -> None:
    async with managed_node(listeners=[{"type": "tcp"}, {"type": "ws"}]) as node:
        quiet = await node.client("quiet", version, kind)
        reader = await node.client("reader", version, kind, username="ann")
        await reader.subscribe("t/#", qos=0)
        await sweep(node)
        for number in range(20):
            await reader.publish("t/own", b"", 1) if number % 4 == 0 else await quiet.publish("t/1", b"x" * 500, 1)
        await reader.ping()
        await sweep(node)
        rows = (await node.api.get("/top/clients")).data
        assert [row["clientid"] for row in rows] == ["reader", "quiet"]
        assert rows[0] | {"in_oct": 0, "out_oct": 0} == {
            "clientid": "reader", "username": "ann", "in": 0.5, "out": 2.0, "in_oct": 0, "out_oct": 0,
            "node": node.name,
        }  # fmt: skip
        assert rows[1]["username"] is None and rows[1]["in"] == 1.5 and rows[1]["in_oct"] > 750
        for sort, wanted in (("in", "quiet"), ("out", "reader"), ("in_oct", "quiet"), ("out_oct", "reader")):
            found = (await node.api.get("/top/clients", _sort=sort, _limit=1)).data
            assert [row["clientid"] for row in found] == [wanted], sort
        # A client that does nothing is no longer in the list, and so is one that has gone.
        await quiet.disconnect()
        await sweep(node)
        assert (await node.api.get("/top/clients", _sort="in")).data == []


@pytest.mark.parametrize("version", [4, 5])
async def test_the_loudest_topics(version: int) -> None:
    async with managed_node() as node:
        client = await node.client("press-04", version)
        for number in range(30):
            await client.publish("many", b"", number % 3)
            if number % 3 == 0:
                await client.publish("some", b"x" * 1000, 1)
        await client.publish("t" * 600, b"", 1)
        rows = (await node.api.get("/top/topics")).data
        assert [(row["topic"], sum(row["counts"])) for row in rows] == [("many", 30), ("some", 10), ("t" * 512, 1)]
        assert [row["topic_cut"] for row in rows] == [False, False, True]
        assert rows[0]["from_clientid"] == "press-04"
        assert rows[0]["in"] > rows[1]["in"] > 0 and rows[0]["in_oct"] == 0
        assert [row["topic"] for row in (await node.api.get("/top/topics", _sort="in_oct", _limit=1)).data] == ["some"]
        await node.pass_time(61)
        assert (await node.api.get("/top/topics")).data == []


@pytest.mark.parametrize("version", [4, 5])
async def test_runs_of_one_read_are_counted(version: int) -> None:
    """They do not go through ``Broker.publish``."""
    async with managed_node() as node:
        await (await node.client("reader", version)).subscribe("run", qos=0)
        writer = await node.client("writer", version)
        await writer.send(*[Publish("run", b"x", 0)] * 300)
        await writer.ping()
        rows = (await node.api.get("/top/topics")).data
        assert [(row["topic"], sum(row["counts"])) for row in rows] == [("run", 300)]


@pytest.mark.parametrize("version", [4, 5])
async def test_clients_that_are_refused(version: int) -> None:
    async with managed_node(zone={"allow_anonymous": False}) as node:
        for _ in range(3):
            with pytest.raises(AssertionError):
                await node.client("never-let-in", version)
        rows = (await node.api.get("/top/refused")).data
        assert [(row["clientid"], row["event"], row["count"]) for row in rows] == [
            ("never-let-in", "client_refused", 3)
        ]
        assert rows[0]["counts"] == [0] * 9 + [3] and rows[0]["peerhost"] == "127.0.0.1" and rows[0]["text"]
        assert rows[0]["counter"] == rows[0]["reason"] and rows[0]["node"] == node.name
        assert (await node.api.get("/top/dropped")).data == []
        assert len((await node.api.get("/top/refused", reason=rows[0]["reason"])).data) == 1
        assert (await node.api.get("/top/refused", reason="publish_not_authorized")).data == []
        assert (await node.api.get("/top/refused", clientid="else")).data == []
        await node.pass_time(660)
        assert (await node.api.get("/top/refused")).data == []


@pytest.mark.parametrize("version", [4, 5])
async def test_packets_that_are_refused_have_the_names_of_their_counters(version: int) -> None:
    rules = [{"allow": False, "topics": ["secret/#"]}]
    async with managed_node(access={"rules": rules}) as node:
        peer = await node.client("curious", version)
        await peer.subscribe("secret/door", expect=[0x80 if version == 4 else 0x87])
        await peer.publish("secret/door", b"", 0)
        rows = (await node.api.get("/top/refused", clientid="curious")).data
        assert {(row["event"], row["counter"], row["topic"], row["setting"]) for row in rows} == {
            ("subscribe_refused", "subscribe_not_authorized", "secret/door", "access.rules.0"),
            ("publish_refused", "publish_not_authorized", "secret/door", "access.rules.0"),
        }
        refusals = node.server.metrics.refusals.snapshot()
        for row in rows:
            assert refusals[row["counter"]] == row["count"] == 1
        found = (await node.api.get("/top/refused", reason="publish_not_authorized")).data
        assert [row["event"] for row in found] == ["publish_refused"]


@pytest.mark.parametrize("version", [4, 5])
async def test_clients_and_groups_that_lose_messages(version: int) -> None:
    async with managed_node(zone={"max_queued_messages": 2}) as node:
        for name, topic_filter in (("away", "t"), ("member", "$share/g/t")):
            peer = await node.client(name, version, clean_start=False, expiry=3600)
            await peer.subscribe(topic_filter, qos=1)
            await peer.disconnect()
        writer = await node.client("w", version)
        for number in range(6):
            await writer.publish("t", b"%d" % number, 1)
        rows = (await node.api.get("/top/dropped")).data
        assert [(row["clientid"], row["count"], row["counter"]) for row in rows] == [
            ("away", 4, "delivery.dropped.queue_full"),
            ("member", 4, "delivery.dropped.queue_full"),
        ]
        assert rows[0]["topic"] == "t" and "max_queued_messages" in rows[0]["setting"] and rows[0]["advice"]
        assert (await node.api.get("/top/refused")).data == []
        groups = (await node.api.get("/top/groups", _sort="dropped")).data
        assert groups == [{"topic": "$share/g/t", "members": 1, "out": 0.0, "dropped": 4}]


async def test_groups_by_rate() -> None:
    async with managed_node() as node:
        for name, topic_filter in (("a", "$share/g/t/#"), ("b", "$share/g/t/#"), ("c", "$queue/t/2")):
            await (await node.client(name)).subscribe(topic_filter, qos=0)
        writer = await node.client("w")
        await sweep(node)
        for number in range(20):
            await writer.publish(f"t/{number % 4}", b"", 1)
        await sweep(node)
        assert (await node.api.get("/top/groups")).data == [
            {"topic": "$share/g/t/#", "members": 2, "out": 2.0, "dropped": 0},
            {"topic": "$share/$queue/t/2", "members": 1, "out": 0.5, "dropped": 0},
        ]


async def test_a_subscriber_that_asks_for_no_local_loses_nothing() -> None:
    async with managed_node() as node:
        peer = await node.client("both", 5)
        await peer.subscribe("t", qos=1, no_local=True)
        await peer.publish("t", b"", 1)
        assert (await node.api.get("/top/dropped")).data == []


@pytest.mark.parametrize("path", ["clients", "topics", "refused", "dropped", "groups"])
async def test_wrong_queries(path: str) -> None:
    async with managed_node() as node:
        for query in ({"_limit": 0}, {"_limit": 101}, {"_limit": "x"}):
            assert_refused(await node.api.get(f"/top/{path}", **query), 400, 108, "_limit")
        if path not in ("refused", "dropped"):
            assert_refused(await node.api.get(f"/top/{path}", _sort="nosuch"), 400, 108, "_sort")


async def test_all_nodes() -> None:
    async with fake_nodes(3) as nodes:
        for place, name in enumerate(("a", "b", "c")):
            peer = await nodes[place].client(name)
            await sweep(nodes[place])
            for _ in range(10 * (place + 1)):
                await peer.publish("t", b"x" * 10, 1)
            nodes[place].server.broker.throttled_log.troubles.add(
                "publish_refused", name, "not_authorized", "s", nodes[place].clock.now()
            )
            await sweep(nodes[place])
        rows = (await nodes.api.get("/top/clients", _sort="in")).data
        assert [(row["clientid"], row["in"], row["node"]) for row in rows] == [
            ("c", 3.0, N3), ("b", 2.0, N2), ("a", 1.0, N1),
        ]  # fmt: skip
        (topic,) = (await nodes.api.get("/top/topics")).data
        assert (topic["topic"], sum(topic["counts"])) == ("t", 60)
        assert {row["node"] for row in (await nodes.api.get("/top/refused")).data} == {N1, N2, N3}
        assert len((await nodes.api.get("/top/refused", _limit=2)).data) == 2
        nodes.hub.silent.add(N2)
        for path in ("clients", "topics", "refused", "dropped", "groups"):
            reply = await nodes.api.get(f"/top/{path}")
            assert reply.meta == {"missing_nodes": [N2]}
