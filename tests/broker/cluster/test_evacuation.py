"""A node is evacuated: nobody gets in, connections end, and all sessions go to other nodes with all that they have."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.cluster.moving import evacuation
from taipan.broker.cluster.moving.evacuation import ALARM, GRACE, TAKE, NodeEvacuation
from taipan.broker.cluster.moving.handover import Handover
from taipan.broker.cluster.moving.outgoing import Outgoing
from taipan.broker.cluster.moving.session_transfer import BUSY, Prepare, Prepared
from taipan.broker.core.cluster import STOPPED, ChangeRefused
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from taipan.broker.mqtt.reason_codes import USE_ANOTHER_SERVER
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.session import Session
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.patience import patience
from tests.support.peer import TIMEOUT, Peer
from tests.support.users import PASSWORD, users
from tests.support.wire import Ack, Publish

pytestmark = pytest.mark.asyncio

QUICK = {"suspect_after": 1.2, "stopped_after": 1.5, "takeover_timeout": 4, "call_timeout": 1, "takeover": "fresh"}


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(3, directory=tmp_path, level="disk") as nodes:
        yield nodes


def sessions(cluster: ClusterNodes, number: int) -> list[str]:
    return sorted(each.client_id for each in cluster[number].server.broker.sessions)


async def until_empty(cluster: ClusterNodes, number: int = 0) -> None:
    """Until this node has no session any more. Time passes on its clock."""
    async with asyncio.timeout(patience(TIMEOUT)):
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
    await cluster[0].server.cluster.evacuate()
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
    await cluster[0].server.cluster.evacuate()
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
    await cluster[0].server.cluster.evacuate()
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
        await cluster[0].server.cluster.evacuate()
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
    await cluster[0].server.cluster.evacuate()
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
    await cluster[0].server.cluster.evacuate()
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

    async def be_short(number: int) -> None:
        cluster[number].server.memory.limit = 1
        await cluster[number].pass_time(1)
        assert cluster[number].server.broker.short_of_memory

    await be_short(1)
    await cluster[0].server.cluster.evacuate()
    await be_short(2)
    async with asyncio.timeout(patience(TIMEOUT)):
        while "evacuation_waits" not in caplog.text:
            await cluster[0].pass_time(GRACE)
            await asyncio.sleep(0.05)
    assert "limits.memory: that node has no memory" in caplog.text
    assert sessions(cluster, 0) == ["s"]
    for number in (1, 2):
        cluster[number].server.memory.limit = limit
        await cluster[number].pass_time(1)
    await until_empty(cluster)


@pytest.mark.slow
async def test_a_session_stays_where_its_taker_dies(cluster: ClusterNodes) -> None:
    """It is whole on one node: on this one, or on that one when it is back."""
    client = await cluster[0].client("s", expiry=3600)
    await client.subscribe("t", qos=1)
    await client.drop()
    publisher = await cluster[1].client("p")
    await publisher.publish("t", b"1", qos=1)
    await cluster.wait_until_quiet()
    await cluster[0].server.cluster.evacuate()
    await cluster.kill(2)
    await until_empty(cluster)
    client = await cluster[1].client("s", expiry=3600, session_present=True)
    assert await received(client, 1) == [b"1"]
    await cluster.start(2)


async def test_it_ends_by_an_order_or_with_the_process(cluster: ClusterNodes) -> None:
    node = cluster[0]
    await node.server.cluster.evacuate()
    assert ALARM in node.server.alarms.active
    with pytest.raises(ChangeRefused, match="already evacuated"):
        await node.server.cluster.evacuate()
    node.server.cluster.end_evacuation()
    assert ALARM not in node.server.alarms.active
    with pytest.raises(ChangeRefused, match="is not evacuated"):
        node.server.cluster.end_evacuation()
    await node.client("s")
    await node.server.cluster.evacuate()
    await cluster.stop(0)
    await cluster.start(0)
    await cluster[0].client("s")


async def test_it_does_not_begin_where_nobody_could_take_them(cluster: ClusterNodes) -> None:
    for number in (1, 2):
        await cluster.stop(number)
    async with asyncio.timeout(patience(TIMEOUT)):
        while any(each.status == "Running" for each in cluster[0].server.cluster.members()[1:]):
            await asyncio.sleep(0.05)
    with pytest.raises(ChangeRefused, match="no other node can accept its clients: none runs"):
        await cluster[0].server.cluster.evacuate()
    await cluster[0].client("s")


@pytest.mark.slow
async def test_two_nodes_that_are_evacuated_give_to_the_third(cluster: ClusterNodes) -> None:
    for number in (0, 1):
        client = await cluster[number].client(f"s{number}", expiry=3600)
        await client.subscribe("t", qos=1)
        await client.drop()
    for number in (0, 1):
        await cluster[number].server.cluster.evacuate()
    await until_empty(cluster, 0)
    await until_empty(cluster, 1)
    assert sessions(cluster, 2) == ["s0", "s1"]


async def test_after_leave_it_still_lets_nobody_in(cluster: ClusterNodes) -> None:
    """Between leave and the stop of the node nobody begins anything that ends with it."""
    await cluster[0].server.cluster.evacuate()
    await cluster[0].server.cluster.leave()
    await cluster[0].peer(5).connect("s", expect=USE_ANOTHER_SERVER)
    with pytest.raises(ChangeRefused, match="already evacuated"):
        await cluster[0].server.cluster.evacuate()
    cluster[0].server.cluster.end_evacuation()
    await cluster[0].client("s")
    with pytest.raises(ChangeRefused, match="is not a member"):
        await cluster[0].server.cluster.evacuate()


async def test_what_cannot_be_read_moves_nothing(cluster: ClusterNodes) -> None:
    await cluster[0].client("s", expiry=3600)
    with pytest.raises(Exception, match="cannot be read"):
        await cluster[1].server.cluster.call(ClusterNodes.name(0), TAKE, b"\xc1")
    assert sessions(cluster, 0) == ["s"]


async def test_a_session_whose_client_is_back_is_not_taken(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evacuation is over, and a request of it is still on its way."""
    watcher = await cluster[2].client("w")
    await watcher.subscribe("will", qos=1)
    await (await cluster[0].client("s", expiry=3600)).drop()
    asked, go = asyncio.Event(), asyncio.Event()
    prepare = Handover.prepare

    async def late(self: Handover, *args: Any, **kwargs: Any) -> Prepared:
        asked.set()
        await go.wait()
        return await prepare(self, *args, **kwargs)

    monkeypatch.setattr(Handover, "prepare", late)
    await cluster[0].server.cluster.evacuate()
    while not asked.is_set():
        await cluster[0].pass_time(GRACE)
        await asyncio.sleep(0.05)
    cluster[0].server.cluster.end_evacuation()
    client = await cluster[0].client("s", expiry=3600, session_present=True, will=Will("will", b"gone", 1))
    go.set()
    await asyncio.sleep(0.3)
    await client.subscribe("t", qos=1)
    await watcher.nothing()
    assert sessions(cluster, 0) == ["s"]


async def test_sessions_that_cannot_move_keep_no_others_from_it(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = Outgoing._prepared

    def busy(self: Outgoing, node: str, ask: Prepare) -> Prepared:
        return Prepared(BUSY) if ask.client_id.startswith("a") else prepared(self, node, ask)

    monkeypatch.setattr(Outgoing, "_prepared", busy)
    for number in range(60):
        await cluster[0].leave_session(f"a{number}", "t")
    await cluster[0].leave_session("b", "t")
    await cluster[0].server.cluster.evacuate()
    async with asyncio.timeout(patience(TIMEOUT)):
        while "b" in sessions(cluster, 0):
            await cluster[0].pass_time(GRACE)
            await asyncio.sleep(0.05)
    assert len(sessions(cluster, 0)) == 60


async def test_a_session_that_moves_slowly_holds_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many others as move at the same time follow it, and more."""
    prepare, go = Handover.prepare, asyncio.Event()

    async def slow(self: Handover, node: str, revision: int, client: ClientInfo, *args: Any, **kwargs: Any) -> Prepared:
        if client.client_id == "a":
            await go.wait()
        return await prepare(self, node, revision, client, *args, **kwargs)

    monkeypatch.setattr(Handover, "prepare", slow)
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={"call_timeout": 600}) as cluster:
        await cluster[0].leave_session("a", "t")
        for number in range(60):
            await cluster[0].leave_session(f"b{number}", "t")
        await cluster[0].server.cluster.evacuate()
        async with asyncio.timeout(patience(TIMEOUT)):
            while sessions(cluster, 0) != ["a"]:
                await cluster[0].pass_time(GRACE)
                await asyncio.sleep(0.05)
        go.set()
        await until_empty(cluster)


async def test_clients_that_ask_for_their_sessions_come_first(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While as many sessions move to clients as the evacuation moves at the same time, it moves none itself."""
    monkeypatch.setattr(Outgoing, "asked_for", 50)
    await cluster[0].leave_session("s", "t")
    await cluster[0].leave_session("other", "t")
    await cluster[0].server.cluster.evacuate()
    for _ in range(5):
        await cluster[0].pass_time(GRACE)
        await asyncio.sleep(0.1)
    assert sessions(cluster, 0) == ["other", "s"]
    await cluster[1].client("s", expiry=3600, session_present=True)
    monkeypatch.setattr(Outgoing, "asked_for", 49)
    await until_empty(cluster)


async def test_a_node_whose_clients_wait_in_line_takes_no_other_sessions(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster[0].leave_session("s", "t")
    for number in (1, 2):
        monkeypatch.setattr(cluster.part(number).claims, "waits_for_turn", lambda node: True)
    await cluster[0].server.cluster.evacuate()
    for _ in range(5):
        await cluster[0].pass_time(GRACE)
        await asyncio.sleep(0.1)
    assert sessions(cluster, 0) == ["s"]
    monkeypatch.setattr(cluster.part(2).claims, "waits_for_turn", lambda node: False)
    await until_empty(cluster)
    assert sessions(cluster, 2) == ["s"]


@pytest.mark.slow
async def test_nobody_is_sent_away_while_no_session_can_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NATS a client that goes would get a new session elsewhere."""
    monkeypatch.setattr(evacuation, "_CLOSED_AT_ONCE", 1)
    monkeypatch.setattr(evacuation, "_CLOSE_EVERY", 0.5)
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        for number in range(6):
            await cluster[0].client(f"s{number}", expiry=3600)
        await cluster[0].leave_session("gone", "t")
        await cluster[0].server.cluster.evacuate()
        await asyncio.sleep(0.1)
        cluster.partition({0}, {1}, quorum=1)
        await asyncio.sleep(1.0)
        left = len(cluster[0].server.context.channels)
        assert left >= 3
        await cluster[0].pass_time(GRACE)  # sessions without a client are due
        await asyncio.sleep(2.5)
        assert len(cluster[0].server.context.channels) == left
        cluster[0].server.cluster.end_evacuation()
        with pytest.raises(ChangeRefused, match="NATS accepts no writes now"):
            await cluster[0].server.cluster.evacuate()
        await cluster[0].client("s")


async def test_not_all_nodes_are_evacuated(cluster: ClusterNodes) -> None:
    for number in (0, 1):
        await cluster[number].server.cluster.evacuate()
    with pytest.raises(
        ChangeRefused, match=r"n1@127\.0\.0\.1: that node is being evacuated, too; n2@127\.0\.0\.1: that node"
    ):
        await cluster[2].server.cluster.evacuate()
    await cluster[2].client("s")


async def test_nor_do_all_begin_at_once(cluster: ClusterNodes) -> None:
    orders = [cluster[number].server.cluster.evacuate() for number in range(3)]
    done = await asyncio.gather(*orders, return_exceptions=True)
    assert sum(each is None for each in done) < 3


async def test_a_session_that_was_left_while_the_clock_was_ahead_moves_too(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        await cluster[0].pass_time(86_400)
        await cluster[0].leave_session("s", "t")
        await cluster.wait_until_quiet()
        await cluster.stop(0)
        await cluster.start(0)
        await cluster.wait_until_running()
        await cluster[0].server.cluster.evacuate()
        await until_empty(cluster)


async def test_what_nodes_that_are_away_may_still_send_is_counted(tmp_path: Path) -> None:
    """Whoever leaves before that has come loses it."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t")
        publisher = await cluster[2].client("p")
        cluster.partition({0, 1}, {2}, quorum=0)
        await publisher.publish("t", b"1", qos=1)
        await cluster.kill(2)
        cluster.heal()
        async with asyncio.timeout(patience(TIMEOUT)):
            while cluster[0].server.cluster.members()[2].status != STOPPED:
                await asyncio.sleep(0.05)
        await cluster[0].server.cluster.evacuate()
        await until_empty(cluster)
        assert cluster[0].server.cluster.kept_for_others == 1
        await cluster.start(2)
        async with asyncio.timeout(patience(TIMEOUT)):
            while cluster[0].server.cluster.kept_for_others:
                await asyncio.sleep(0.05)
        await cluster[0].server.cluster.leave()
        client = await cluster[1].client("s", 4, clean_start=False, session_present=True)
        assert await received(client, 1) == [b"1"]


async def test_a_fault_does_not_end_it(
    cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    give, faults = NodeEvacuation._give, [OSError("one")]

    async def fails(self: NodeEvacuation, session: Session) -> str:
        if faults:
            raise faults.pop()
        return await give(self, session)

    monkeypatch.setattr(NodeEvacuation, "_give", fails)
    await cluster[0].leave_session("s", "t")
    for node in cluster.nodes.values():
        node.ignore(lambda record: "evacuation_failed" in record.getMessage())
    await cluster[0].server.cluster.evacuate()
    await until_empty(cluster)
    assert "evacuation_failed" in caplog.text


@pytest.mark.slow
async def test_why_sessions_wait_is_told_once(cluster: ClusterNodes, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        await cluster[0].leave_session(f"s{number}", "t")
    await cluster[0].server.cluster.evacuate()
    for number in (1, 2):
        cluster[number].server.memory.limit = 1
        await cluster[number].pass_time(1)
    for _ in range(20):
        await cluster[0].pass_time(GRACE)
        await asyncio.sleep(0.1)
    assert 1 <= caplog.text.count("evacuation_waits") <= 3
    assert len(sessions(cluster, 0)) == 5


async def test_a_taker_has_so_many_coming_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evacuation, "_MOST_COMING", 3)
    async with cluster_nodes(2, directory=tmp_path, level="disk") as cluster:
        for number in range(30):
            await cluster[0].leave_session(f"s{number}", "t")
        await cluster[0].server.cluster.evacuate()
        await until_empty(cluster)
        assert len(sessions(cluster, 1)) == 30
        assert "evacuation_waits" not in caplog.text
