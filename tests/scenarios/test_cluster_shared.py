"""Shared Subscriptions over nodes: each message to one member, wherever it is; to a connected one, if there is one."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from taipan.broker.routing.strategy import STRATEGIES
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.patience import patience
from tests.support.peer import Peer

pytestmark = pytest.mark.asyncio

FILTER = "$share/g/t/#"


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.005)


def known(cluster: ClusterNodes, number: int, filter: str = FILTER) -> tuple[int, int]:
    """What node ``number`` knows of the group: its own connected members, and all others'."""
    group = cluster[number].server.broker.router.group(filter)
    if group is None:
        return 0, 0
    shares = getattr(group.remote, "shares", {})
    return sum(each.session.connected for each in group.members()), sum(each.connected for each in shares.values())


async def member(cluster: ClusterNodes, number: int, name: str, filter: str = FILTER, **connect: Any) -> Peer:
    client = await cluster[number].client(name, **connect)
    await client.subscribe(filter, qos=2)
    return client


async def until_known(cluster: ClusterNodes, total: int, filter: str = FILTER) -> None:
    """Until every node knows that so many members are connected."""
    await until(lambda: all(sum(known(cluster, number, filter)) == total for number in cluster.nodes))


async def read(client: Peer, into: list[str]) -> None:
    """Collect topics until the client is dropped."""
    while True:
        got = await client.expect_publish()
        into.append(got.topic)


async def collect(clients: dict[str, Peer], count: int) -> dict[str, list[str]]:
    """What each gets, until all have so many."""
    got: dict[str, list[str]] = {name: [] for name in clients}
    tasks = [asyncio.ensure_future(read(client, got[name])) for name, client in clients.items()]
    try:
        await until(lambda: sum(map(len, got.values())) >= count)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return got


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_message_goes_to_one_member_of_all_nodes(strategy: str, qos: int) -> None:
    async with cluster_nodes(3, shared={"strategy": strategy}) as cluster:
        clients = {f"m{number}": await member(cluster, number, f"m{number}") for number in range(3)}
        await until_known(cluster, 3)
        publisher = await cluster[0].client("p")
        for number in range(30):
            await publisher.publish(f"t/{number}", b"x", qos=qos)
        got = await collect(clients, 30)
        assert Counter(topic for topics in got.values() for topic in topics) == Counter(f"t/{n}" for n in range(30))
        counts = sorted(map(len, got.values()))
        if strategy.startswith("round_robin"):
            assert counts == [10, 10, 10]
        elif strategy in ("sticky", "hash_clientid"):
            assert counts == [0, 0, 30]
        else:
            assert counts[0] > 0


@pytest.mark.parametrize("strategy", ["hash_clientid", "hash_topic"])
async def test_a_hash_finds_the_same_member_from_every_node(strategy: str) -> None:
    async with cluster_nodes(3, shared={"strategy": strategy}) as cluster:
        clients = {f"m{number}": await member(cluster, number, f"m{number}") for number in range(3)}
        await until_known(cluster, 3)
        for number in range(3):
            publisher = await cluster[number].client("p")
            for topic in range(5):
                await publisher.publish(f"t/{topic}", b"x", qos=1)
            await publisher.disconnect()
        got = await collect(clients, 15)
        for topics in got.values():
            assert all(count == 3 for count in Counter(topics).values())


async def test_nodes_count_by_their_connected_members() -> None:
    async with cluster_nodes(2, shared={"strategy": "random"}) as cluster:
        clients = {"a": await member(cluster, 0, "a")}
        for number in range(3):
            clients[f"b{number}"] = await member(cluster, 1, f"b{number}")
        await until_known(cluster, 4)
        publisher = await cluster[0].client("p")
        for number in range(200):
            await publisher.publish(f"t/{number}", b"x", qos=1)
        got = await collect(clients, 200)
        assert 25 <= len(got["a"]) <= 80


async def test_members_that_are_all_on_another_node_get_what_is_published_here() -> None:
    async with cluster_nodes(2) as cluster:
        client = await member(cluster, 1, "m")
        await until_known(cluster, 1)
        publisher = await cluster[0].client("p")
        await publisher.publish("t/1", b"x", qos=1, expect=0)
        assert (await client.expect_publish()).topic == "t/1"
        await client.unsubscribe(FILTER)
        await until_known(cluster, 0)
        assert cluster[0].server.broker.router.group(FILTER) is None
        assert cluster[0].server.broker.router.route_count() == 0


async def test_an_offline_member_here_gets_nothing_while_one_is_connected_elsewhere() -> None:
    async with cluster_nodes(2) as cluster:
        offline = await member(cluster, 0, "offline", expiry=100)
        online = await member(cluster, 1, "online")
        await until_known(cluster, 2)
        await offline.drop()
        await until_known(cluster, 1)
        publisher = await cluster[0].client("p")
        for number in range(10):
            await publisher.publish(f"t/{number}", b"x", qos=1)
        got = await collect({"online": online}, 10)
        assert len(got["online"]) == 10


@pytest.mark.parametrize("where", [0, 1])
async def test_offline_members_get_it_where_nobody_is_connected(where: int) -> None:
    async with cluster_nodes(2) as cluster:
        offline = await member(cluster, where, "offline", expiry=100)
        await until_known(cluster, 1)
        await offline.drop()
        await until(lambda: sum(known(cluster, 0)) == sum(known(cluster, 1)) == 0)
        publisher = await cluster[0].client("p")
        await publisher.publish("t/1", b"x", qos=1)
        back = await cluster[where].client("offline", expiry=100)
        assert (await back.expect_publish()).topic == "t/1"


async def test_what_a_member_that_ends_had_not_acknowledged_is_given_to_one_on_another_node() -> None:
    async with cluster_nodes(2, shared={"strategy": "round_robin_per_group"}) as cluster:
        first = await member(cluster, 0, "first")
        publisher = await cluster[0].client("p")
        await publisher.publish("t/1", b"x", qos=1)
        await first.expect_publish(acknowledge=False)
        second = await member(cluster, 1, "second")
        await until_known(cluster, 2)
        await first.disconnect()
        assert (await second.expect_publish()).topic == "t/1"


async def test_a_message_for_a_member_that_has_just_left_is_passed_on() -> None:
    async with cluster_nodes(3, shared={"strategy": "sticky"}) as cluster:
        leaves = await member(cluster, 1, "leaves")
        await until_known(cluster, 1)
        publisher = await cluster[0].client("p")
        await publisher.publish("t/0", b"x", qos=1)
        assert (await leaves.expect_publish()).topic == "t/0"
        stays = await member(cluster, 2, "stays")
        await until_known(cluster, 2)
        # The publisher's node hears of it late.
        cluster.hub.delays[("", cluster.name(0))] = (0.3, 0.3)
        await leaves.unsubscribe(FILTER)
        await publisher.publish("t/1", b"x", qos=1)
        assert (await stays.expect_publish()).topic == "t/1"


async def test_a_node_that_is_gone_gets_nothing_more() -> None:
    quick = {"suspect_after": 2.0, "stopped_after": 2.5}
    async with cluster_nodes(2, cluster=quick) as cluster:
        await member(cluster, 1, "there")
        here = await member(cluster, 0, "here")
        await until_known(cluster, 2)
        await cluster.kill(1)
        name = cluster.name(1)
        await until(lambda: {m.name: m.status for m in cluster[0].server.cluster.members()}[name] != "Running")
        publisher = await cluster[0].client("p")
        for number in range(10):
            await publisher.publish(f"t/{number}", b"x", qos=1)
        got = await collect({"here": here}, 10)
        assert len(got["here"]) == 10


async def test_queue_is_a_shared_subscription_too_and_a_mount_point_is_kept() -> None:
    async with cluster_nodes(2, zone={"mountpoint": "m/"}) as cluster:
        client = await member(cluster, 1, "m", "$queue/t/#")
        await until(lambda: cluster[0].server.broker.router.match("m/t/1").groups)
        publisher = await cluster[0].client("p")
        await publisher.publish("t/1", b"x", qos=1)
        assert (await client.expect_publish()).topic == "t/1"


async def test_a_durable_group_on_another_node_keeps_what_was_acknowledged_over_kills(tmp_path: Any) -> None:
    async with cluster_nodes(2, level="disk") as cluster:
        client = await member(cluster, 1, "m", expiry=100)
        await until_known(cluster, 1)
        publisher = await cluster[0].client("p")
        await client.drop()
        await until_known(cluster, 0)
        for number in range(5):
            await publisher.publish(f"t/{number}", b"x", qos=1)
        await cluster.kill(0)
        await cluster.kill(1)
        await cluster.start(0)
        await cluster.start(1)
        back = await cluster[1].client("m", expiry=100)
        got = await collect({"m": back}, 5)
        assert sorted(set(got["m"])) == [f"t/{number}" for number in range(5)]
