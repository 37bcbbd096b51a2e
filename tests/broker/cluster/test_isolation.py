"""What a node does with its clients when it has been without NATS for long."""

import asyncio

import pytest

from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.mqtt.reason_codes import SERVER_UNAVAILABLE, USE_ANOTHER_SERVER
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes

pytestmark = pytest.mark.asyncio

QUICK = {"suspect_after": 0.3, "stopped_after": 0.5}


async def isolate(cluster: ClusterNodes) -> None:
    """Node 0 loses its connection to NATS and has been without it for long."""
    part = cluster[0].server.cluster
    assert isinstance(part, NatsCluster)
    noticed = asyncio.Event()
    part.membership.on_isolated.append(lambda isolated: noticed.set() if isolated else noticed.clear())
    cluster.hub.disconnect(cluster.name(0))
    await asyncio.wait_for(noticed.wait(), 10)


async def test_serve_local_goes_on() -> None:
    async with cluster_nodes(2, cluster={**QUICK, "isolated": "serve_local"}) as cluster:
        subscriber = await cluster[0].client("s")
        await subscriber.subscribe("t", qos=1)
        await isolate(cluster)
        assert "nats_disconnected" in cluster[0].server.alarms.active
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        await subscriber.expect_publish("t", b"1")
        cluster.hub.connect(cluster.name(0))
        await cluster.wait_until_running()
        assert "nats_disconnected" not in cluster[0].server.alarms.active


async def test_refuse_new_keeps_who_is_there_and_lets_nobody_in() -> None:
    async with cluster_nodes(2, cluster={**QUICK, "isolated": "refuse_new"}) as cluster:
        there = await cluster[0].client("there")
        await isolate(cluster)
        await there.ping()
        late = cluster[0].peer()
        await late.connect("late", expect=SERVER_UNAVAILABLE)
        cluster.hub.connect(cluster.name(0))
        await cluster.wait_until_running()
        await cluster[0].client("again")


async def test_close_all_sends_everybody_elsewhere() -> None:
    async with cluster_nodes(2, cluster={**QUICK, "isolated": "close_all"}) as cluster:
        there = await cluster[0].client("there")
        await isolate(cluster)
        await there.expect_disconnect(USE_ANOTHER_SERVER)
        await cluster[0].peer().connect("late", expect=SERVER_UNAVAILABLE)
        assert cluster[0].server.metrics.disconnects.snapshot()["isolated"] == 1
        await cluster[1].client("there")
