"""A lost node runs again in another one's process, from a copy of its data, until it owes nothing."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.access.banned import Ban
from taipan.broker.cluster.members.own_record import BUCKET as MEMBERS
from taipan.broker.cluster.nats.interface import NatsRefused, Unknown
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.replicas import returning, takeover
from taipan.broker.cluster.replicas.records import ReplicaRecord, copy_directory
from taipan.broker.cluster.replicas.shipping import Shipping
from taipan.broker.core.cluster import IN_SYNC, RUNNING, STOPPED, ChangeRefused
from taipan.broker.core.memory import ENDS
from taipan.broker.hosted_node import HostedNode, HostedServer
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from taipan.broker.mqtt.reason_codes import SERVER_UNAVAILABLE, USE_ANOTHER_SERVER
from taipan.broker.persistence.log.errors import StoreError
from taipan.broker.session.memory_account import SHEDDING
from taipan.broker.store.store import Store
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.node import Node
from tests.support.patience import patience
from tests.support.peer import Peer
from tests.support.waiting import until
from tests.support.wire import Ack, Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(600)]

VERSIONS = (4, 5)
QUICK: dict[str, object] = {
    "suspect_after": 1.5,
    "stopped_after": 2.0,
    "failover_after": 2.0,
    "takeover_timeout": 10.0,
    "will_grace": 1.0,
    "strict_subscribe": True,
    "replicas": 1,
    "replica_timeout": 1.0,
}


def slow(table: dict[str, object]) -> dict[str, object]:
    """These settings, with times for the present load of the machine."""
    return {key: patience(value) if isinstance(value, float) else value for key, value in table.items()}


def failover_after(cluster: ClusterNodes) -> float:
    settings = cluster.settings[0].cluster
    assert settings is not None
    return settings.failover_after


def delayed(seconds: int, topic: str) -> str:
    """The topic of a message that is published after this time, on a machine that has nothing else to do."""
    return f"$delayed/{round(patience(seconds))}/{topic}"


def record_of(cluster: ClusterNodes, number: int) -> ReplicaRecord:
    """The record of a node, as a running node knows it."""
    other = next(each for each in cluster.nodes if each != number)
    records = cluster.part(other).replica_records
    assert records is not None
    found = records.of(cluster.name(number))
    assert found is not None
    return found


def number_of(cluster: ClusterNodes, name: str) -> int:
    return next(number for number in range(len(cluster)) if cluster.name(number) == name)


async def until_copied(cluster: ClusterNodes) -> None:
    """Until each node has all its copies, on the nodes that it chooses when all of them run, and all know where."""
    for number in cluster.nodes:
        shipping = cluster.part(number).shipping
        assert shipping is not None
        core, members = shipping.core, cluster.part(number).membership
        while len(members.running()) < len(cluster.nodes) - 1:
            await asyncio.sleep(0.01)
        shipping._choose(asyncio.get_running_loop().time())  # among all of them, before its next tick does
        while (
            core.copies != shipping._settings.replicas
            or core.members != set(shipping._chosen)
            or not all(knows_copies(cluster, each, number) for each in cluster.nodes)
        ):
            await asyncio.sleep(0.01)


def knows_copies(cluster: ClusterNodes, number: int, of: int) -> bool:
    """Whether a node knows the present record of another one: the followers that left the set are not in it."""
    records, shipping = cluster.part(number).replica_records, cluster.part(of).shipping
    assert shipping is not None
    record = None if records is None else records.of(cluster.name(of))
    return records is None or (record is not None and set(record.in_sync) == shipping.core.members)


async def until_copied_on(cluster: ClusterNodes, number: int, follower: int) -> None:
    """Until the copy of a node is complete on this other one."""
    shipping = cluster.part(number).shipping
    assert shipping is not None
    core = shipping.core
    await until(
        lambda: core.members == {cluster.name(follower)} and core.followers[cluster.name(follower)].state == IN_SYNC
    )


async def lose(cluster: ClusterNodes, number: int, keep: bool = False) -> int:
    """Kill a node and delete its data, unless ``keep``. Return the node that will run it from its copy."""
    follower = number_of(cluster, record_of(cluster, number).in_sync[0])
    await cluster.kill(number)
    if not keep:
        await asyncio.to_thread(shutil.rmtree, cluster._data_dir(number))
    return follower


def statuses(node: Node) -> dict[str, str]:
    return {each.name: each.status for each in node.server.cluster.members()}


async def payloads(peer: Peer, count: int) -> list[bytes]:
    return [(await peer.expect_publish()).payload for _ in range(count)]


@asynccontextmanager
async def replicated(
    directory: Path, count: int = 3, expected: tuple[str, ...] = (), **cluster: object
) -> AsyncIterator[ClusterNodes]:
    """Nodes whose copies are complete. ``expected`` as in ``ClusterNodes``, from their start on. Their times are in
    seconds of a machine that has nothing else to do."""
    table = slow({**QUICK, **cluster})
    async with cluster_nodes(count, directory=directory, level="disk", cluster=table, expected=expected) as nodes:
        await until_copied(nodes)
        yield nodes


async def away(node: Node, client_id: str, version: int, topic: str, qos: int = 1) -> None:
    """A subscriber whose session waits."""
    client = await node.client(client_id, version, expiry=3600)
    await client.subscribe(topic, qos=qos)
    await client.drop()


def other(cluster: ClusterNodes, *numbers: int) -> Node:
    """A running node that is none of these."""
    return next(node for number, node in cluster.nodes.items() if number not in numbers)


async def until_ended(cluster: ClusterNodes, lost: int) -> None:
    """Until the lost node has left again, as the others see it."""
    name = cluster.name(lost)
    await until(lambda: record_of(cluster, lost).ended)
    for node in [node for number, node in cluster.nodes.items() if number != lost]:
        while name in statuses(node):
            await asyncio.sleep(0.01)
        assert not node.server.hosted


async def test_sessions_of_a_lost_node_are_served_again(tmp_path: Path) -> None:
    """All that was queued, and all that is published before and while the node runs again: in order, each once."""
    async with replicated(tmp_path) as cluster:
        watcher = await cluster[0].client("watcher")
        await watcher.subscribe("will/#", qos=1)
        for version in VERSIONS:
            await away(cluster[1], f"away-{version}", version, f"t/{version}", 2)
            await cluster[1].client(f"w-{version}", version, will=Will(f"will/{version}", b"gone", 1))
        publisher = await cluster[0].client("p")
        for number in range(10):
            for version in VERSIONS:
                await publisher.publish(f"t/{version}", b"%d" % number, qos=1 + number % 2)
        await cluster.wait_until_quiet()
        host = await lose(cluster, 1)
        for number in range(10, 20):
            for version in VERSIONS:
                await publisher.publish(f"t/{version}", b"%d" % number, qos=1 + number % 2)
        for version in VERSIONS:
            client = await cluster[2].client(f"away-{version}", version, expiry=3600, session_present=True)
            assert await payloads(client, 20) == [b"%d" % number for number in range(20)]
            await client.nothing()
        assert sorted(await payloads(watcher, 2)) == [b"gone", b"gone"]
        await until_ended(cluster, 1)
        await watcher.nothing()
        copy = copy_directory(Path(cluster[host].server.settings.node.data_dir), cluster.name(1))
        await until(lambda: not copy.exists())
        assert not [name for name in cluster[host].server.alarms.active if name.startswith("node_")]


async def test_sessions_that_nobody_asks_for_move_to_the_nodes_that_run(tmp_path: Path) -> None:
    async with replicated(tmp_path) as cluster:
        names = [f"s-{number}" for number in range(20)]
        for number, name in enumerate(names):
            await away(cluster[1], name, 4 + number % 2, f"t/{name}")
        publisher = await cluster[2].client("p")
        for name in names:
            await publisher.publish(f"t/{name}", b"1", qos=1)
        await cluster.wait_until_quiet()
        await lose(cluster, 1)
        await until_ended(cluster, 1)
        here = [sorted(each.client_id for each in cluster[number].server.broker.sessions) for number in (0, 2)]
        assert all(here) and sorted(here[0] + here[1]) == sorted([*names, "p"])
        for number, name in enumerate(names):
            client = await cluster[0].client(name, 4 + number % 2, expiry=3600, session_present=True)
            assert await payloads(client, 1) == [b"1"]


async def test_what_the_lost_node_owed_to_others_arrives(tmp_path: Path) -> None:
    """Messages in its link and delayed messages: it had acknowledged them, and has sent none."""
    async with replicated(tmp_path) as cluster:
        host = number_of(cluster, record_of(cluster, 1).in_sync[0])
        far_away = 2 - host
        for version in VERSIONS:
            await away(cluster[far_away], f"far-{version}", version, f"far/{version}", 2)
        await cluster.wait_until_quiet()
        cluster.partition({1, host}, {far_away})
        for version in VERSIONS:
            publisher = await cluster[1].client(f"p-{version}", version)
            for number in range(10):
                await publisher.publish(f"far/{version}", b"%d" % number, qos=1 + number % 2)
            await publisher.publish(delayed(3, f"far/{version}"), b"late", qos=2)
        await lose(cluster, 1)
        cluster.heal()
        for version in VERSIONS:
            far = await cluster[far_away].client(f"far-{version}", version, expiry=3600, session_present=True)
            assert await payloads(far, 11) == [*(b"%d" % number for number in range(10)), b"late"]
            await far.nothing()
        await until_ended(cluster, 1)


async def test_what_was_in_flight_goes_on(tmp_path: Path) -> None:
    """A message of QoS 2 that the client has confirmed with PUBREC is not sent again; one without is, as DUP."""
    async with replicated(tmp_path) as cluster:
        publisher = await cluster[0].client("p")
        client = await cluster[1].client("s", expiry=3600)
        await client.subscribe("t", qos=2)
        for number in range(3):
            await publisher.publish("t", b"%d" % number, qos=2)
        first = await client.expect(Publish, payload=b"0")
        second = await client.expect(Publish, payload=b"1")
        third = await client.expect(Publish, payload=b"2")
        await client.pubrec(second.packet_id)
        await client.expect(Ack, type=c.PUBREL, packet_id=second.packet_id)
        await cluster.wait_until_quiet()
        await lose(cluster, 1)
        client = await cluster[2].client("s", expiry=3600, session_present=True)
        await client.expect(Publish, payload=b"0", packet_id=first.packet_id, dup=True)
        await client.expect(Publish, payload=b"2", packet_id=third.packet_id, dup=True)
        await client.expect(Ack, type=c.PUBREL, packet_id=second.packet_id)


async def test_a_publish_of_qos_2_is_accepted_once(tmp_path: Path) -> None:
    """The client sends it again to another node, as the PUBCOMP was lost with its node."""
    async with replicated(tmp_path) as cluster:
        subscriber = await cluster[0].client("s")
        await subscriber.subscribe("t", qos=2)
        publisher = await cluster[1].client("p", expiry=3600)
        await publisher.send(Publish("t", b"1", 2, False, False, 7, {}))
        await publisher.expect(Ack, type=c.PUBREC, packet_id=7)
        assert await payloads(subscriber, 1) == [b"1"]
        await lose(cluster, 1)
        publisher = await cluster[2].client("p", expiry=3600, session_present=True)
        await publisher.send(Publish("t", b"1", 2, False, True, 7, {}))
        await publisher.expect(Ack, type=c.PUBREC, packet_id=7)
        await publisher.send(Ack(c.PUBREL, 7))
        await publisher.expect(Ack, type=c.PUBCOMP, packet_id=7)
        await cluster.wait_until_quiet()
        await subscriber.nothing()


async def test_a_session_does_not_begin_anew_while_its_node_is_expected(tmp_path: Path) -> None:
    """Also with ``fresh``: a client waits for the node that runs again."""
    async with replicated(tmp_path, takeover="fresh", takeover_timeout=30.0) as cluster:
        await away(cluster[1], "s", 5, "t")
        await lose(cluster, 1)
        client = await cluster[2].client("s", expiry=3600, session_present=True)
        await (await cluster[0].client("p")).publish("t", b"1", qos=1)
        assert await payloads(client, 1) == [b"1"]


async def test_one_of_several_followers_takes_over(tmp_path: Path) -> None:
    async with replicated(tmp_path, count=4, replicas=2) as cluster:
        await away(cluster[1], "s", 5, "t")
        in_sync = record_of(cluster, 1).in_sync
        assert len(in_sync) == 2
        await lose(cluster, 1)
        client = await cluster[2].client("s", expiry=3600, session_present=True)
        assert sum(len(node.server.hosted) for node in cluster.nodes.values()) <= 1
        await until_ended(cluster, 1)
        assert record_of(cluster, 1).hosted_by in in_sync
        await client.nothing()


async def test_another_follower_is_preferred_to_a_damaged_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with replicated(tmp_path, count=4, replicas=2) as cluster:
        await away(cluster[1], "s", 5, "t")
        first, second = (number_of(cluster, name) for name in record_of(cluster, 1).in_sync)
        damaged = copy_directory(Path(cluster[first].server.settings.node.data_dir), cluster.name(1))
        monkeypatch.setattr(takeover, "is_intact", lambda directory: directory != damaged)
        for node in cluster.nodes.values():
            node.ignore(lambda record: "replica_damaged" in record.getMessage())
        await lose(cluster, 1)
        await other(cluster, 1, first).client("s", expiry=3600, session_present=True)
        await until_ended(cluster, 1)
        assert record_of(cluster, 1).hosted_by == cluster.name(second)


@pytest.mark.parametrize("answered", [True, False])
async def test_a_copy_that_left_the_set_is_not_given_the_node_back(tmp_path: Path, answered: bool) -> None:
    """The follower that takes over has not heard yet that another one has left the in-sync set."""
    async with replicated(tmp_path, 2, failover_after=600.0) as cluster:
        await cluster.kill(1)
        record, takeovers = record_of(cluster, 1), cluster.part(0).takeovers
        assert takeovers is not None and record.in_sync == (cluster.name(0),)
        write = takeovers._write

        async def unanswered(made: ReplicaRecord, revision: int) -> None:
            takeovers._write = write  # type: ignore[method-assign]
            await write(made, revision)
            raise Unknown("no answer")

        if not answered:
            takeovers._write = unanswered  # type: ignore[method-assign]
        takeovers._under_way.add(record.node)
        stale = msgspec.structs.replace(record, in_sync=(cluster.name(0), "n9@127.0.0.1"))
        claim = await takeovers._claim(stale)
        assert claim is not None and claim.in_sync == record.in_sync
        assert claim.record.hosted_by == cluster.name(0) and not claim.record.in_sync


async def test_another_follower_goes_on_following_the_hosted_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A record that names the host is about the copies of before the takeover only."""
    caplog.set_level("INFO", "taipan.broker.cluster.replicas.copies")
    async with replicated(tmp_path, replicas=2) as cluster:
        await away(cluster[1], "s", 5, "t")
        await cluster[1].client("p", 5)
        caplog.clear()
        host = await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        await until_ended(cluster, 1)
        begun = f"replica_receives node={cluster.name(1)}"
        assert len([each for each in caplog.messages if each.startswith(begun)]) == 1


async def test_the_host_is_lost_too(tmp_path: Path) -> None:
    """With two copies, the node runs on from the second one."""
    # No follower is too late before the second loss, however busy this machine is.
    async with replicated(tmp_path, count=4, replicas=2, replica_timeout=60.0) as cluster:
        name = cluster.name(1)
        await away(cluster[1], "s", 5, "t")
        publisher = await cluster[1].client("p")
        await publisher.publish("t", b"1", qos=1)
        await publisher.publish("$delayed/3600/t", b"late", qos=1)
        first = await lose(cluster, 1)
        await until(lambda: name in cluster[first].server.hosted)
        await until(lambda: bool(record_of(cluster, 1).in_sync) and bool(record_of(cluster, first).in_sync))
        await lose(cluster, first)
        for number in cluster.nodes:
            shipping = cluster.part(number).shipping
            assert shipping is not None
            shipping.core._timeout = 1.0
        left = other(cluster, 1, first)
        client = await left.client("s", expiry=3600, session_present=True)
        assert await payloads(client, 1) == [b"1"]

        def owed() -> list[dict[str, int]]:
            found = [node.server.hosted.get(name) for node in cluster.nodes.values()]
            return [each.owed() for each in found if each is not None]

        await until(lambda: owed() == [{"delayed": 1}])
        await client.nothing()


async def test_a_host_stops_while_the_node_ends(tmp_path: Path) -> None:
    """Nothing is deleted under an open store: the host ends the node when it runs again."""
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        host = await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        hosted = cluster[host].server.hosted[cluster.name(1)]
        left = hosted.server.nats_cluster.leave
        stopped = asyncio.Event()

        async def leave(for_good: bool = False) -> None:
            await left(for_good)
            stopped.set()
            await asyncio.sleep(0.0)

        hosted.server.nats_cluster.leave = leave  # type: ignore[method-assign]
        await stopped.wait()
        await cluster.stop(host)
        await cluster.start(host)
        await until_ended(cluster, 1)


@pytest.mark.parametrize("stopped_after", [3.0, 8.0])
async def test_a_node_that_alone_has_the_data_of_a_lost_one_is_not_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stopped_after: float
) -> None:
    """Otherwise it would wait for the node in its own place, and that one for the lost one, to which it owes messages:
    all three for good. By default, the lost one is only Suspect when the other could be taken over."""
    async with replicated(tmp_path, failover_after=4.0, stopped_after=stopped_after) as cluster:
        follower = {number: number_of(cluster, record_of(cluster, number).in_sync[0]) for number in cluster.nodes}
        lost = next(number for number in follower if follower[follower[number]] != number)
        away_too, third = follower[lost], follower[follower[lost]]
        await away(cluster[lost], "s", 5, "t")
        publisher = await cluster[third].client("p", 5)
        await publisher.publish("t", b"kept", qos=1)
        await cluster.wait_until_quiet()
        await lose(cluster, lost)
        await cluster.kill(away_too)
        await until(lambda: "takeover_withheld" in caplog.text)
        assert not cluster[third].server.hosted
        await cluster.start(away_too)
        client = await cluster[third].client("s", expiry=3600, session_present=True)
        assert await payloads(client, 1) == [b"kept"]
        await until_ended(cluster, lost)


async def test_a_start_that_the_copy_does_not_know(tmp_path: Path) -> None:
    """The lost node had just started, and its copy is from before: the others must not mistake one for the other."""
    async with replicated(tmp_path, failover_after=3600.0) as cluster:
        await away(cluster[1], "s", 5, "t")
        node = other(cluster, 1)
        key = cluster.part(1).membership.key
        host = await lose(cluster, 1)
        await until(lambda: statuses(node).get(cluster.name(1)) == STOPPED)
        context = cluster.part(host).context
        peer = cluster.part(host).membership.peers[cluster.name(1)]
        later = msgspec.structs.replace(peer.record, incarnation=peer.incarnation + 1, started=peer.record.started + 1)
        await context.nats.write("members", key, context.wire.write(later), peer.revision, "nonce")
        await until(lambda: statuses(node).get(cluster.name(1)) == STOPPED)
        incarnation = later.incarnation
        await until(lambda: cluster.part(host).membership.peers[cluster.name(1)].incarnation == incarnation)
        await until(lambda: not cluster.part(host).membership.peers[cluster.name(1)].may_run)
        await cluster[host].server.cluster.force_leave(cluster.name(1))
        assert cluster.part(host).membership.peers[cluster.name(1)].incarnation == incarnation + 1
        await node.client("s", expiry=3600, session_present=True)


async def test_force_leave_is_an_order_to_take_over(tmp_path: Path) -> None:
    async with replicated(tmp_path, failover_after=3600.0) as cluster:
        await away(cluster[1], "s", 5, "t")
        host = await lose(cluster, 1)
        node = other(cluster, 1, host)
        await until(lambda: statuses(node).get(cluster.name(1)) == STOPPED)
        await node.server.cluster.force_leave(cluster.name(1))
        await node.client("s", expiry=3600, session_present=True)
        await until_ended(cluster, 1)


async def test_force_leave_does_not_end_what_a_stopped_node_has(tmp_path: Path) -> None:
    async with replicated(tmp_path, failover_after=3600.0) as cluster:
        host = await lose(cluster, 1)
        node = other(cluster, 1, host)
        await cluster.kill(host)
        await until(lambda: set(statuses(node).values()) == {RUNNING, STOPPED})
        await until(lambda: list(statuses(node).values()).count(STOPPED) == 2)
        with pytest.raises(ChangeRefused, match=f"the data of {cluster.name(1)} is on {cluster.name(host)}"):
            await node.server.cluster.force_leave(cluster.name(1))
        await cluster.start(host)
        await until(lambda: statuses(node).get(cluster.name(host)) == RUNNING)
        await node.server.cluster.force_leave(cluster.name(1))
        await until_ended(cluster, 1)


@pytest.mark.parametrize("hosted", [False, True])
async def test_force_leave_of_a_node_whose_copy_was_deleted_by_hand(tmp_path: Path, hosted: bool) -> None:
    """Nobody can take it over: its sessions end, and an empty node of its name may start."""
    expected = ("replica_unusable", "replicas_deleted")
    async with replicated(tmp_path, expected=expected, failover_after=2.0 if hosted else 3600.0) as cluster:
        await away(cluster[1], "s", 5, "t")
        if hosted:
            await cluster[1].client("p", 5)
            publisher = await cluster[0].client("p2", 5)
            await publisher.publish("$delayed/3600/t", b"keeps a hosted node", qos=1)
        host = await lose(cluster, 1)
        node = other(cluster, 1, host)
        if hosted:
            await until(lambda: record_of(cluster, 1).hosted_by == cluster.name(host))
        await cluster.kill(host)
        shutil.rmtree(copy_directory(cluster._data_dir(host), cluster.name(1)))
        await cluster.start(host)
        await until(lambda: statuses(node).get(cluster.name(host)) == RUNNING)
        await until(lambda: statuses(node).get(cluster.name(1)) == STOPPED)
        await node.server.cluster.force_leave(cluster.name(1))
        await until(lambda: cluster.name(1) not in statuses(node))
        await cluster.start(1)
        await node.client("s", expiry=3600, session_present=False)
        await until(lambda: f"replica_unusable/{cluster.name(1)}" not in cluster[host].server.alarms.active)


async def test_a_node_that_stops_in_order_has_the_time_to_start_again(tmp_path: Path) -> None:
    async with replicated(tmp_path, takeover_timeout=3600.0) as cluster:
        await cluster.stop(1)
        await asyncio.sleep(2 * failover_after(cluster))
        assert not any(node.server.hosted for node in cluster.nodes.values())
        await cluster.start(1)
        await cluster.wait_until_running()


async def test_a_host_that_restarts_runs_the_node_on(tmp_path: Path) -> None:
    async with replicated(tmp_path) as cluster:
        host = number_of(cluster, record_of(cluster, 1).in_sync[0])
        watcher = await other(cluster, 1, host).client("watcher", expiry=3600)
        await watcher.subscribe("t", qos=1)
        publisher = await cluster[1].client("p")
        await publisher.publish(delayed(9, "t"), b"late", qos=1)
        await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        await cluster.kill(host)
        await cluster.start(host)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        assert await payloads(watcher, 1) == [b"late"]
        await until_ended(cluster, 1)
        await watcher.nothing()


@pytest.mark.parametrize("replicas", [1, 0])
@pytest.mark.parametrize("old_disk", [True, False])
async def test_a_node_that_comes_back_waits_for_the_one_in_its_place(
    tmp_path: Path, old_disk: bool, replicas: int
) -> None:
    """It starts with an empty store when the other one has left; an old disk is set aside. It makes no difference
    whether it is to have copies from now on."""
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        publisher = await cluster[1].client("p")
        await publisher.publish(delayed(6, "t"), b"late", qos=1)
        host = await lose(cluster, 1, keep=old_disk)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        set_replicas(cluster, 1, replicas)
        starting = asyncio.create_task(cluster.start(1))
        client = await cluster[2].client("s", expiry=3600, session_present=True)
        assert cluster.name(1) in cluster[host].server.hosted and not starting.done()
        assert await payloads(client, 1) == [b"late"]
        await starting
        assert not cluster[host].server.hosted
        data = Path(cluster[1].server.settings.node.data_dir)
        assert len(list(data.glob("replaced-*/taipan.db"))) == old_disk
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await (await cluster[2].client("q")).publish("t", b"1", qos=1)
        assert await payloads(client, 1) == [b"1"]
        if replicas:
            await until_copied(cluster)
        await cluster.kill(1)
        await cluster.start(1)  # its new data is its own
        await cluster.wait_until_running()


async def test_a_lost_node_whose_only_copy_is_on_the_disk_of_a_replaced_one(tmp_path: Path) -> None:
    """Nodes 0, 1 and 2: 0 has its copy on 1, and 1 on 2. 1 is taken over while 0 runs, then 0 is lost before it has
    another copy. No node takes over 0, and 1 cannot return. A start of 0 from 1's copy ends this, and loses nothing
    (``docs/replicas.md``, "What it does not promise")."""
    async with replicated(tmp_path, expected=("replicas_trouble",), replicas_min=1) as cluster:
        names = [cluster.name(number) for number in range(3)]
        assert record_of(cluster, 0).in_sync == (names[1],) and record_of(cluster, 1).in_sync == (names[2],)
        copies = cluster.part(2).copies
        assert copies is not None
        copies._released.add(names[0])  # node 2 accepts no copy of node 0, as if its disk were full
        await away(cluster[0], "s", 5, "t")
        publisher = await cluster[0].client("p", 5)
        await publisher.publish("t", b"kept", qos=1)
        late = await cluster[1].client("d", 5)
        await late.publish(delayed(6, "t"), b"late", qos=1)
        await cluster.kill(1)
        await until(lambda: names[1] in cluster[2].server.hosted)
        hosted = cluster[2].server.hosted[names[1]]
        await until(lambda: "node_evacuating" in hosted.server.alarms.active)
        alarm = hosted.server.alarms.active["node_evacuating"]
        assert alarm.message.startswith(f"{names[2]} runs this lost node") and "operator" not in alarm.message
        await cluster.kill(0)
        await asyncio.to_thread(shutil.rmtree, cluster._data_dir(0))
        starting = asyncio.create_task(cluster.start(1))
        await until(lambda: statuses(cluster[2]).get(names[0]) == STOPPED and "delayed" not in hosted.owed())
        await asyncio.sleep(2 * failover_after(cluster))
        assert hosted.owed() and not starting.done() and list(cluster[2].server.hosted) == [names[1]]
        assert record_of(cluster, 0).in_sync == (names[1],)
        copy = copy_directory(cluster._data_dir(1), names[0])
        await asyncio.to_thread(shutil.copytree, copy, cluster._data_dir(0))
        copies.accept_again(names[0])
        await cluster.start(0)
        client = await cluster[0].client("s", 5, expiry=3600, session_present=True)
        assert await payloads(client, 2) == [b"kept", b"late"]
        await starting
        assert not cluster[2].server.hosted
        await cluster.wait_until_running()


async def test_a_node_without_its_disk_waits_until_nats_has_a_quorum(tmp_path: Path) -> None:
    """If it became a member with other data, the others would forget what it had acknowledged."""
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        publisher = await cluster[1].client("p", 5)
        await publisher.publish("t", b"kept", qos=1)
        await cluster.kill(1)
        await asyncio.to_thread(shutil.rmtree, cluster._data_dir(1))
        cluster.hub.lose_leader(4.0)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        assert await payloads(client, 1) == [b"kept"]


async def test_a_node_that_is_taken_over_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had read its record before. The process starts again, instead of ending because its name is taken."""
    async with replicated(tmp_path) as cluster:
        publisher = await cluster[1].client("p", 5)
        await publisher.publish("$delayed/3600/t", b"late", qos=1)
        host = await lose(cluster, 1, keep=True)
        await until(lambda: bool(cluster[host].server.hosted))
        told: list[str] = []
        is_hosted = NatsCluster._is_hosted

        async def asked(self: NatsCluster) -> bool:
            self.on_replaced.append(lambda: told.append(self.context.node))
            return await is_hosted(self)

        async def nothing(*_: object) -> None:
            pass

        monkeypatch.setattr(NatsCluster, "_is_hosted", asked)
        monkeypatch.setattr(returning, "settle", nothing)
        with pytest.raises(NatsRefused):
            await cluster.start(1)
        assert told == [cluster.name(1)]


async def test_a_node_that_comes_back_at_once_without_its_disk(tmp_path: Path) -> None:
    """It lets another node run from the copy, and does not begin with nothing."""
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        await lose(cluster, 1)
        await cluster.start(1)
        await cluster.wait_until_running()
        await cluster[1].client("s", expiry=3600, session_present=True)


async def test_a_node_that_was_replaced_while_it_ran_serves_nobody(tmp_path: Path) -> None:
    async with replicated(tmp_path) as cluster:
        for node in cluster.nodes.values():
            node.ignore(lambda record: "cluster_membership_lost" in record.getMessage())
            node.ignore(lambda record: "replicas_trouble" in record.getMessage())
        client = await cluster[1].client("s", expiry=3600)
        await client.subscribe("t", qos=1)
        await cluster.wait_until_quiet()
        cluster.partition({0, 2}, {1})
        host = number_of(cluster, record_of(cluster, 1).in_sync[0])
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        cluster.heal()
        await client.expect_disconnect(USE_ANOTHER_SERVER)
        await cluster[1].peer().connect("s", False, expect=SERVER_UNAVAILABLE)
        assert "cluster_refused" in cluster[1].server.alarms.active
        client = await cluster[2].client("s", expiry=3600, session_present=True)
        await until_ended(cluster, 1)
        await cluster.kill(1)
        await cluster.start(1)
        await cluster.wait_until_running()


def set_replicas(cluster: ClusterNodes, number: int, replicas: int) -> None:
    """Change the setting for the next start of a node."""
    settings = cluster.settings[number]
    assert settings.cluster is not None
    table = msgspec.structs.replace(settings.cluster, replicas=replicas)
    cluster.settings[number] = msgspec.structs.replace(settings, cluster=table)


async def test_a_node_that_no_longer_has_copies_is_not_replaced_by_an_old_one(tmp_path: Path) -> None:
    """What it has accepted since then is on its own disk only."""
    async with replicated(tmp_path, count=2) as cluster:
        await away(cluster[1], "s", 5, "t")
        await cluster.stop(1)
        set_replicas(cluster, 1, 0)
        await cluster.start(1)
        await cluster.wait_until_running()
        publisher = await cluster[1].client("p")
        await publisher.publish("t", b"1", qos=1)
        records = cluster.part(0).replica_records
        assert records is not None
        await until(lambda: records.of(cluster.name(1)) is None)
        await cluster.kill(1)
        await asyncio.sleep(2 * failover_after(cluster))
        assert not cluster[0].server.hosted
        set_replicas(cluster, 1, 1)
        await cluster.start(1)
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        assert await payloads(client, 1) == [b"1"]
        await until_copied(cluster)
        await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[0].server.hosted)
        await cluster[0].client("s", expiry=3600, session_present=True)


@pytest.mark.parametrize("when", ["hosted", "lost", "lost later"])
async def test_a_node_without_replicas_uses_the_only_copy(tmp_path: Path, when: str) -> None:
    """``cluster.replicas`` is 0 at its next start. What it has is hosted on; a node that is lost meanwhile, or later,
    is taken over as before."""
    async with replicated(tmp_path, count=3) as cluster:
        cluster.expected += ("replicas_kept",)
        await away(cluster[1], "s", 5, "t")
        publisher = await cluster[1].client("p")
        await publisher.publish("t", b"1", qos=1)
        await publisher.publish(delayed(6, "t"), b"late", qos=1)
        host = number_of(cluster, record_of(cluster, 1).in_sync[0])
        third = 3 - 1 - host
        for number in (host, third):
            set_replicas(cluster, number, 0)
        await cluster.kill(third)
        await cluster.start(third)  # it keeps no copies for node 1
        if when == "hosted":
            await lose(cluster, 1)
            await until(lambda: cluster.name(1) in cluster[host].server.hosted)
            await cluster.kill(host)
        else:
            await cluster.kill(host)
            if when == "lost":
                await cluster.kill(1)
                await asyncio.to_thread(shutil.rmtree, cluster._data_dir(1))
        await cluster.start(host)
        if when == "lost later":
            await cluster.wait_until_running()
            await publisher.publish("t", b"2", qos=1)
            await until_copied_on(cluster, 1, host)
            await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        client = await cluster[third].client("s", expiry=3600, session_present=True)
        wanted = [b"1", b"2", b"late"] if when == "lost later" else [b"1", b"late"]
        assert sorted(await payloads(client, len(wanted))) == sorted(wanted)
        await until_ended(cluster, 1)
        assert not copy_directory(Path(cluster[host].server.settings.node.data_dir), cluster.name(1)).exists()
        await client.nothing()


async def test_the_alarm_of_a_node_that_may_have_been_replaced_ends_with_the_node_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for a node that runs from its copy, however long its start takes: NATS was not asked before."""
    attach = Shipping.attach

    def attach_early(shipping: Shipping) -> None:
        attach(shipping)
        if shipping._context.hosted_by:
            shipping.core._began -= 2 * shipping._settings.replica_timeout

    monkeypatch.setattr(Shipping, "attach", attach_early)
    expected = ("replicas_trouble", "cluster_membership_lost")
    async with replicated(tmp_path, expected=expected) as cluster:
        await cluster[1].client("s", expiry=3600)
        await cluster.wait_until_quiet()
        host = number_of(cluster, record_of(cluster, 1).in_sync[0])
        alarms = cluster[1].server.alarms.active
        assert "replicas_trouble" not in alarms
        cluster.partition({0, 2}, {1})
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        hosted = cluster[host].server.hosted[cluster.name(1)].server.alarms
        cluster.heal()
        await until(lambda: "replicas_trouble" in alarms)
        assert alarms["replicas_trouble"].details["setting"] == "cluster.replicas"
        await until_ended(cluster, 1)
        raised = [*hosted.active, *(each.name for each in hosted.history)]
        assert "node_evacuating" in raised and "replicas_trouble" not in raised
        await cluster.kill(1)
        await cluster.start(1)
        await cluster.wait_until_running()
        await until(lambda: "replicas_trouble" not in cluster[1].server.alarms.active)


async def test_a_host_does_not_leave_the_cluster(tmp_path: Path) -> None:
    """Nobody could finish what the lost node owes."""
    async with replicated(tmp_path) as cluster:
        publisher = await cluster[1].client("p")
        await publisher.publish(delayed(6, "t"), b"late", qos=1)
        host = await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        with pytest.raises(ChangeRefused, match=f"runs {cluster.name(1)} from its copy"):
            await cluster[host].server.cluster.leave()
        await until_ended(cluster, 1)
        await cluster[host].server.cluster.leave()


async def test_a_host_stops_before_the_last_record(tmp_path: Path) -> None:
    """The lost node has left, and its copy is deleted, but the record does not say so yet."""
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        host = await lose(cluster, 1)
        takeovers = cluster.part(host).takeovers
        assert takeovers is not None

        async def not_yet(made: ReplicaRecord) -> None:
            await asyncio.Event().wait()

        takeovers._until_written = not_yet  # type: ignore[method-assign]
        directory = copy_directory(cluster._data_dir(host), cluster.name(1))
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        await until(lambda: not directory.exists())
        await cluster.kill(host)
        await cluster.start(host)
        await until_ended(cluster, 1)
        await cluster.start(1)
        await cluster.wait_until_running()


async def test_a_host_is_killed_as_the_node_has_left(tmp_path: Path) -> None:
    """NATS has it, and the copy does not: the host ends what it cannot start again."""
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        host = await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        hosted = cluster[host].server.hosted[cluster.name(1)].server._nats_cluster
        assert hosted is not None
        left = asyncio.Event()

        def has_left(left_now: bool) -> None:
            left.set()
            raise asyncio.CancelledError

        hosted.membership._set_left = has_left  # type: ignore[method-assign]
        await left.wait()
        await cluster.kill(host)
        await cluster.start(host)
        await until_ended(cluster, 1)
        await cluster.start(1)
        await cluster.wait_until_running()


async def test_nats_does_not_answer_as_the_node_leaves(tmp_path: Path) -> None:
    async with replicated(tmp_path) as cluster:
        await away(cluster[1], "s", 5, "t")
        host = await lose(cluster, 1)
        await until(lambda: cluster.name(1) in cluster[host].server.hosted)
        hosted = cluster[host].server.hosted[cluster.name(1)].server._nats_cluster
        assert hosted is not None
        nats = hosted.membership._nats
        write, asked = nats.write, asyncio.Event()

        async def unanswered(bucket: str, *arguments: Any) -> int:
            revision = await write(bucket, *arguments)
            if bucket == MEMBERS and not asked.is_set():
                asked.set()
                raise Unknown("no answer")
            return revision

        nats.write = unanswered  # type: ignore[method-assign]
        await until_ended(cluster, 1)
        assert asked.is_set()


async def test_access_rows_that_are_older_than_the_copy_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node had changed them since its start: the copy knows their digests, though it reads them from the file."""
    choose, held = Shipping._choose, [True]
    monkeypatch.setattr(Shipping, "_choose", lambda self, now: None if held else choose(self, now))
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=slow(QUICK)) as cluster:
        cluster[0].server.banned.put(Ban("clientid", "evil", "op", "", 0, 2**40))
        await cluster[0].server.tables.stored()
        held.clear()
        await until_copied(cluster)
        await away(cluster[0], "s", 5, "t")
        await lose(cluster, 0)
        await until(lambda: cluster.name(0) in cluster[1].server.hosted)
        store = cluster[1].server.hosted[cluster.name(0)].server.store
        assert store is not None and store.loss.access == ""
        await cluster[1].client("s", expiry=3600, session_present=True)


async def test_another_node_takes_over_from_a_host_that_was_disconnected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The host ends what it runs, and may have a copy of it again."""
    async with replicated(tmp_path) as cluster:
        publisher = await cluster[1].client("p", 5)
        await publisher.publish("$delayed/3600/t", b"late", qos=1)
        host = await lose(cluster, 1)
        name, takeovers, copies = cluster.name(1), cluster.part(host).takeovers, cluster.part(host).copies
        assert takeovers is not None and copies is not None
        await until(lambda: name in takeovers.hosted)
        hosted = cluster[host].server.hosted[name]
        takeovers._look_at = lambda record: None  # type: ignore[method-assign]
        for call in hosted.server.cluster.on_replaced:
            call()
        await until(lambda: name not in takeovers.hosted)
        assert "hosted_node_replaced" in caplog.text
        assert not cluster[host].server.hosted and name not in copies._released


async def test_the_only_copy_cannot_be_used_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example because the disk of the host is full: what only this copy has is not given up."""
    monkeypatch.setattr(takeover, "_LONGEST_PAUSE", 1.0)
    failed: list[str] = []
    start = HostedNode.start

    async def start_later(hosted: HostedNode) -> None:
        if not failed:
            failed.append(hosted.name)
            raise StoreError("no space left on device")
        await start(hosted)

    monkeypatch.setattr(HostedNode, "start", start_later)
    async with replicated(tmp_path, count=2) as cluster:
        cluster.expected += ("replica_unusable", "replicas_deleted")
        await away(cluster[1], "s", 5, "t")
        await lose(cluster, 1)
        await until(lambda: bool(failed))
        await cluster.start(1)  # with an empty disk
        await cluster[1].client("s", expiry=3600, session_present=True)


async def test_memory_of_a_host_and_its_node_is_short_only_together(tmp_path: Path) -> None:
    """The queues of each alone would not be enough: both shed."""
    async with replicated(tmp_path, count=2) as cluster:
        for number in range(2):
            await away(cluster[number], f"s{number}", 5, f"t/{number}")
            publisher = await cluster[number].client(f"p{number}")
            for _ in range(20):
                await publisher.publish(f"t/{number}", bytes(3000), qos=1)
        await lose(cluster, 1)
        host = cluster[0].server
        await until(lambda: cluster.name(1) in host.hosted)
        node = host.hosted[cluster.name(1)].server
        host.memory._missed = 0  # what the test itself uses is no matter here
        own, hosted = host.memory.sheddable - node.own_sheddable, node.own_sheddable
        assert own > 0 and hosted > 0
        assert host.memory.used == node.memory.used
        # Less than it has, by more than the larger part of the queues.
        before = host.memory.limit
        host.memory.limit = int((host.memory.used - max(own, hosted) - min(own, hosted) // 2) / ENDS[SHEDDING])
        assert host.memory.shedding_helps and node.memory.shedding_helps
        del host.memory._sheddable["hosted"]
        assert not host.memory.shedding_helps and not node.memory.shedding_helps
        host.memory.limit = before


async def test_memory_of_a_hosted_node_counts_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be unexplained memory of the host, and for a moment counted twice."""
    counted: list[tuple[int, int]] = []
    recover = HostedServer._recover

    async def recovered(server: HostedServer, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        await recover(server, store, loop)
        counted.append((server.own_bytes, server.host.memory.parts()["hosted"]))

    monkeypatch.setattr(HostedServer, "_recover", recovered)
    async with replicated(tmp_path, count=2) as cluster:
        await away(cluster[1], "s", 5, "t")
        publisher = await cluster[1].client("p")
        for _ in range(20):
            await publisher.publish("t", bytes(3000), qos=1)
        host = cluster[0].server
        await lose(cluster, 1)
        await until(lambda: cluster.name(1) in host.hosted)
        own, seen = counted[0]
        assert own == seen > 0
        await cluster[0].client("s", expiry=3600, session_present=True)
        await until_ended(cluster, 1)
        assert not host.hosted_servers
