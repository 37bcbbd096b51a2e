"""A node that has left goes on alone, over a restart too, and takes part in everything once it has joined again."""

from pathlib import Path

import pytest

from taipan.broker.cluster.moving.session_keys import BUCKET
from taipan.broker.cluster.nats.interface import Unavailable
from taipan.broker.core.cluster import ChangeRefused
from taipan.broker.mqtt.packets import Will
from tests.support.waiting import until

from ...support.cluster_nodes import ClusterNodes, cluster_nodes

pytestmark = pytest.mark.asyncio

QUICK = {
    "suspect_after": 1.2,
    "stopped_after": 1.5,
    "will_grace": 0.5,
    "takeover_timeout": 4,
    "call_timeout": 1,
    "takeover": "fresh",
}


def sessions_with_a_key(cluster: ClusterNodes) -> int:
    return sum(entry.value is not None for entry in cluster.hub.buckets[BUCKET].last.values())


async def restart(cluster: ClusterNodes, number: int) -> None:
    await cluster.stop(number)
    await cluster.start(number)


@pytest.mark.slow
async def test_after_a_restart_too_it_takes_part_again_without_another(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[1].leave_session("before", "t", qos=1)
        await until(lambda: cluster.part(0).node_of("before"))
        await cluster.part(1).leave()
        await until(lambda: sessions_with_a_key(cluster) == 0)
        await restart(cluster, 1)
        assert cluster.part(1).membership.left
        await cluster[1].leave_session("alone", "t", qos=1)
        there = await cluster[1].client("both")
        here = await cluster[0].client("both")
        await cluster.part(1).join(cluster.name(0))
        await cluster.wait_until_running()
        # Of two clients of one identifier that of the cluster stays.
        await there.expect_disconnect(0x8E)
        await here.nothing()
        # Sessions are the cluster's: they move, with what came for them.
        await until(lambda: cluster.part(0).node_of("before") and cluster.part(0).node_of("alone"))
        await cluster[1].leave_session("after", "t", qos=1)
        publisher = await cluster[0].client("p")
        await until(lambda: cluster[0].server.broker.router.remote_mask("t"))
        await publisher.publish("t", b"1", qos=1)
        for name in ("before", "alone", "after"):
            client = await cluster[0].client(name, expiry=60, session_present=True)
            await client.expect_publish("t", b"1", 1)
        # And so are wills.
        await publisher.subscribe("will", qos=1)
        await cluster[1].client("w", will=Will("will", b"dead", 1))
        await until(lambda: cluster.part(0).wills._theirs.get(cluster.part(1).membership.key))
        await cluster.kill(1)
        await publisher.expect_publish("will", b"dead", 1)


async def test_what_begins_while_it_is_out_has_a_key_when_it_is_back(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[1].leave_session("before", "t", qos=1)
        await until(lambda: cluster.part(0).node_of("before"))
        await cluster.part(1).leave()
        await until(lambda: sessions_with_a_key(cluster) == 0)
        await cluster[1].leave_session("alone", "t", qos=1)
        await cluster.wait_until_quiet()
        assert sessions_with_a_key(cluster) == 0
        await cluster.part(1).join(cluster.name(0))
        await until(lambda: cluster.part(0).node_of("before") and cluster.part(0).node_of("alone"))


async def test_a_node_that_could_not_leave_still_receives_what_others_publish(tmp_path: Path) -> None:
    """Its routes were deleted before NATS accepted no more writes."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t", qos=1)
        await until(lambda: cluster[0].server.broker.router.remote_mask("t"))

        def refuse(operation: str) -> None:
            if operation == "write members":
                raise Unavailable("no quorum")

        nats = cluster.clients[1]
        nats.on_operation = refuse
        with pytest.raises(ChangeRefused, match="NATS accepts no writes now"):
            await cluster.part(1).leave()
        nats.on_operation = lambda _: None
        await until(lambda: cluster[0].server.broker.router.remote_mask("t"))
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        await subscriber.expect_publish("t", b"1", 1)


async def test_a_join_to_a_node_that_is_no_member_leaves_everything_as_it_is(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster.part(1).leave()
        here, there = await cluster[0].client("both", expiry=60), await cluster[1].client("both", expiry=60)
        await there.publish("kept", b"own", qos=1, retain=True)
        await cluster.wait_until_quiet()
        before = {name: dict(bucket.last) for name, bucket in cluster.hub.buckets.items()}
        with pytest.raises(ChangeRefused, match=r"n9@127.0.0.1 is not a member .* cluster.servers, cluster.name"):
            await cluster.part(1).join("n9@127.0.0.1")
        await cluster.wait_until_quiet()
        assert cluster.part(1).membership.left
        for each in (here, there):
            await each.nothing()
        assert cluster[1].server.broker.retained.get("kept") is not None
        del before["members"]  # in which those that are there write their own record again and again
        assert before == {name: cluster.hub.buckets[name].last for name in before}
        assert not cluster.part(0).membership.peers


async def test_no_will_is_published_because_its_node_leaves(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        watcher = await cluster[0].client("watcher")
        await watcher.subscribe("will", qos=1)
        near = await cluster[1].client("near")
        await near.subscribe("will", qos=1)
        client = await cluster[1].client("w", will=Will("will", b"gone", 1))
        await until(lambda: cluster.part(0).wills._theirs.get(cluster.part(1).membership.key))
        await cluster.part(1).leave()
        await until(lambda: not cluster.part(0).membership.peers)
        await watcher.nothing()
        await client.drop()
        await near.expect_publish("will", b"gone", 1)


async def test_a_will_that_outlives_its_node_goes_out_where_that_has_left(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster.part(1).leave()
        near = await cluster[1].client("near", expiry=60)
        await near.subscribe("will", qos=1)
        await cluster[1].client("w", will=Will("will", b"gone", 1))
        await near.subscribe("later", qos=1)  # CONNACK of a clean session does not wait for the disk; this does
        await cluster.kill(1)
        await cluster.start(1)
        near = await cluster[1].client("near", expiry=60, session_present=True)
        await near.expect_publish("will", b"gone", 1)


async def test_sessions_and_wills_of_those_that_stay_go_on_when_a_node_leaves(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("stays", "t", qos=1)
        watcher = await cluster[0].client("watcher")
        near = await cluster[1].client("near")
        for each in (watcher, near):
            await each.subscribe("will", qos=1)
        await cluster[0].client("w", will=Will("will", b"gone", 1))
        await until(lambda: cluster.part(1).wills._theirs.get(cluster.part(0).membership.key))
        await until(lambda: cluster.part(1).node_of("stays"))
        key = cluster.part(0).session_keys.place("stays")
        await cluster.part(1).leave()
        await until(lambda: not cluster.part(0).membership.peers)
        await near.nothing()
        await watcher.nothing()
        assert cluster.part(0).session_keys.place("stays") == key
