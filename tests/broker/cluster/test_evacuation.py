"""A node is evacuated: nobody gets in, connections end, and all sessions go to other nodes with all that they have."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taipan.broker.cluster.evacuation import ALARM, GRACE, TAKE
from taipan.broker.core.cluster import ChangeRefused
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from taipan.broker.mqtt.reason_codes import USE_ANOTHER_SERVER
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.peer import TIMEOUT, Peer
from tests.support.users import PASSWORD, users
from tests.support.wire import Ack, Publish

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(3, directory=tmp_path, level="disk") as nodes:
        yield nodes


def sessions(cluster: ClusterNodes, number: int) -> list[str]:
    return sorted(each.client_id for each in cluster[number].server.broker.sessions)


async def until_empty(cluster: ClusterNodes, number: int = 0) -> None:
    """Until this node has no session any more. Time passes on its clock."""
    async with asyncio.timeout(TIMEOUT):
        while sessions(cluster, number) or cluster[number].server.connections:
            await cluster[number].pass_time(GRACE)
            await asyncio.sleep(0.05)


async def received(peer: Peer, count: int) -> list[bytes]:
    return [(await peer.expect_publish()).payload for _ in range(count)]


@pytest.mark.parametrize("version", [4, 5])
async def test_offline_sessions_move_with_queue_and_subscriptions(cluster: ClusterNodes, version: int) -> None:
    for name in ("a", "b", "c"):
        client = await cluster[0].client(name, version, expiry=3600)
        await client.subscribe(f"{name}/+", qos=2)
        await client.drop()
    publisher = await cluster[1].client("p")
    for number in range(6):
        await publisher.publish(f"a/{number}", b"%d" % number, qos=1 + number % 2)
    await cluster.wait_until_quiet()
    cluster[0].server.cluster.evacuate()
    await until_empty(cluster)
    assert sorted(sessions(cluster, 1) + sessions(cluster, 2)) == ["a", "b", "c", "p"]
    assert "b" not in sessions(cluster, 1) or "a" not in sessions(cluster, 1) or "c" not in sessions(cluster, 1)
    await publisher.publish("a/x", b"new", qos=1)
    await cluster.stop(0)
    client = await cluster[1].client("a", version, expiry=3600, session_present=True)
    assert await received(client, 7) == [b"%d" % number for number in range(6)] + [b"new"]
    await client.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_connections_end_and_nobody_gets_in(cluster: ClusterNodes, version: int) -> None:
    publisher = await cluster[1].client("p")
    client = await cluster[0].client("s", version, expiry=3600)
    short = await cluster[0].client("short", version)
    await client.subscribe("t", qos=1)
    cluster[0].server.cluster.evacuate()
    await client.expect_disconnect(USE_ANOTHER_SERVER)
    await short.expect_disconnect(USE_ANOTHER_SERVER)
    await publisher.publish("t", b"1", qos=1)
    refused = USE_ANOTHER_SERVER if version == 5 else 3
    for name in ("s", "other"):
        await cluster[0].peer(version).connect(name, clean_start=False, expect=refused)
    client = await cluster[2].client("s", version, expiry=3600, session_present=True)
    assert await received(client, 1) == [b"1"]
    await until_empty(cluster)
    assert sessions(cluster, 0) == []
    assert cluster[0].server.metrics.refusals.snapshot()["use_another_server"] == 2
    assert cluster[0].server.metrics.disconnects.snapshot()["use_another_server"] == 2


async def test_what_is_in_flight_moves(cluster: ClusterNodes) -> None:
    publisher = await cluster[1].client("p")
    client = await cluster[0].client("s", expiry=3600)
    await client.subscribe("t", qos=2)
    for number in range(2):
        await publisher.publish("t", b"%d" % number, qos=2)
    first = await client.expect(Publish, payload=b"0")
    second = await client.expect(Publish, payload=b"1")
    await client.pubrec(second.packet_id)
    await client.expect(Ack, type=c.PUBREL, packet_id=second.packet_id)
    cluster[0].server.cluster.evacuate()
    await until_empty(cluster)
    client = await cluster[2].client("s", expiry=3600, session_present=True)
    await client.expect(Publish, payload=b"0", packet_id=first.packet_id, dup=True)
    await client.expect(Ack, type=c.PUBREL, packet_id=second.packet_id)


async def test_a_session_stays_its_users(tmp_path: Path) -> None:
    """Whoever is not its owner does not get it at the other node either."""
    access = {"users": users("alice", "mallory")}
    async with cluster_nodes(2, directory=tmp_path, level="disk", access=access) as cluster:
        mine = {"username": "alice", "password": PASSWORD, "expiry": 3600}
        client = await cluster[0].client("s", **mine)
        await client.drop()
        cluster[0].server.cluster.evacuate()
        await until_empty(cluster)
        properties = {c.SESSION_EXPIRY_INTERVAL: 3600}
        await (
            cluster[1]
            .peer()
            .connect("s", False, username="mallory", password=PASSWORD, properties=properties, expect=0x87)
        )
        await cluster[1].client("s", session_present=True, **mine)


async def test_a_client_that_comes_by_itself_is_not_sent_away(cluster: ClusterNodes) -> None:
    """Its session is its own node's, whatever the evacuated one asks."""
    client = await cluster[0].client("s", expiry=3600)
    cluster[0].server.cluster.evacuate()
    await client.expect_disconnect(USE_ANOTHER_SERVER)
    client = await cluster[2].client("s", expiry=3600, session_present=True)
    await until_empty(cluster)
    await client.subscribe("t", qos=1)
    await client.publish("t", b"1", qos=1)
    await client.expect_publish("t", b"1", 1)


async def test_a_delayed_will_and_the_expiry_go_along(cluster: ClusterNodes) -> None:
    watcher = await cluster[2].client("w")
    await watcher.subscribe("will", qos=1)
    will = Will("will", b"gone", 1, False, {c.WILL_DELAY_INTERVAL: 300})
    client = await cluster[0].client("s", expiry=1000, will=will)
    await client.drop()
    cluster[0].server.cluster.evacuate()
    await until_empty(cluster)
    await watcher.nothing()
    number = 1 if "s" in sessions(cluster, 1) else 2
    await cluster[number].pass_time(310)
    await watcher.expect_publish("will", b"gone", 1)
    assert "s" in sessions(cluster, number)
    await cluster[number].pass_time(700)
    assert "s" not in sessions(cluster, number)


async def test_a_node_that_cannot_take_them_leaves_them_where_they_are(
    cluster: ClusterNodes, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster[0].client("s", expiry=3600)
    await client.subscribe("t", qos=1)
    await client.drop()
    limit = cluster[1].server.memory.limit
    for number in (1, 2):
        cluster[number].server.memory.limit = 1
        await cluster[number].pass_time(1)
        assert cluster[number].server.broker.short_of_memory
    cluster[0].server.cluster.evacuate()
    async with asyncio.timeout(TIMEOUT):
        while "evacuation_waits" not in caplog.text:
            await cluster[0].pass_time(GRACE)
            await asyncio.sleep(0.05)
    assert "limits.memory: it has no memory" in caplog.text
    assert sessions(cluster, 0) == ["s"]
    for number in (1, 2):
        cluster[number].server.memory.limit = limit
    await until_empty(cluster)


async def test_a_session_stays_where_its_taker_dies(cluster: ClusterNodes) -> None:
    """It is whole on one node: on this one, or on that one when it is back."""
    client = await cluster[0].client("s", expiry=3600)
    await client.subscribe("t", qos=1)
    await client.drop()
    publisher = await cluster[1].client("p")
    await publisher.publish("t", b"1", qos=1)
    await cluster.wait_until_quiet()
    cluster[0].server.cluster.evacuate()
    await cluster.kill(2)
    await until_empty(cluster)
    client = await cluster[1].client("s", expiry=3600, session_present=True)
    assert await received(client, 1) == [b"1"]
    await cluster.start(2)


async def test_it_ends_by_an_order_or_with_the_process(cluster: ClusterNodes) -> None:
    node = cluster[0]
    node.server.cluster.evacuate()
    assert ALARM in node.server.alarms.active
    with pytest.raises(ChangeRefused, match="evacuated already"):
        node.server.cluster.evacuate()
    node.server.cluster.end_evacuation()
    assert ALARM not in node.server.alarms.active
    with pytest.raises(ChangeRefused, match="is not evacuated"):
        node.server.cluster.end_evacuation()
    await node.client("s")
    node.server.cluster.evacuate()
    await cluster.stop(0)
    await cluster.start(0)
    await cluster[0].client("s")


async def test_it_does_not_begin_where_nobody_could_take_them(cluster: ClusterNodes) -> None:
    for number in (1, 2):
        await cluster.stop(number)
    async with asyncio.timeout(TIMEOUT):
        while any(each.status == "Running" for each in cluster[0].server.cluster.members()[1:]):
            await asyncio.sleep(0.05)
    with pytest.raises(ChangeRefused, match="no other node runs"):
        cluster[0].server.cluster.evacuate()
    await cluster[0].client("s")


async def test_two_nodes_that_are_evacuated_give_to_the_third(cluster: ClusterNodes) -> None:
    for number in (0, 1):
        client = await cluster[number].client(f"s{number}", expiry=3600)
        await client.subscribe("t", qos=1)
        await client.drop()
    for number in (0, 1):
        cluster[number].server.cluster.evacuate()
    await until_empty(cluster, 0)
    await until_empty(cluster, 1)
    assert sessions(cluster, 2) == ["s0", "s1"]


async def test_after_leave_it_still_lets_nobody_in(cluster: ClusterNodes) -> None:
    """Between leave and the stop of the node nobody begins anything that ends with it."""
    cluster[0].server.cluster.evacuate()
    await cluster[0].server.cluster.leave()
    await cluster[0].peer(5).connect("s", expect=USE_ANOTHER_SERVER)
    with pytest.raises(ChangeRefused, match="evacuated already"):
        cluster[0].server.cluster.evacuate()
    cluster[0].server.cluster.end_evacuation()
    await cluster[0].client("s")
    with pytest.raises(ChangeRefused, match="is no member"):
        cluster[0].server.cluster.evacuate()


async def test_what_cannot_be_read_moves_nothing(cluster: ClusterNodes) -> None:
    await cluster[0].client("s", expiry=3600)
    with pytest.raises(Exception, match="cannot be read"):
        await cluster[1].server.cluster.call(ClusterNodes.name(0), TAKE, b"\xc1")
    assert sessions(cluster, 0) == ["s"]
