"""Copies of a node's data: what is acknowledged is on the disks of two nodes."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.replicas.copies import Copies
from taipan.broker.cluster.replicas.origin import IN_SYNC
from taipan.broker.cluster.replicas.records import copy_directory
from taipan.broker.cluster.replicas.shipping import Shipping
from taipan.broker.mqtt.reason_codes import SUCCESS
from taipan.broker.persistence.log.batch import decode
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.nats_server import NatsServers
from tests.support.node import Node, make_settings
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

VERSIONS = (4, 5)
QUICK = {"suspect_after": 2.0, "stopped_after": 3.0, "strict_subscribe": True, "replicas": 1, "replica_timeout": 0.6}


def replicated(directory: Path, count: int = 2, **options: Any) -> contextlib.AbstractAsyncContextManager[ClusterNodes]:
    """Nodes with copies of each other on a virtual NATS."""
    cluster = {**QUICK, **options.pop("cluster", {})}
    return cluster_nodes(count, directory=directory, level="disk", cluster=cluster, **options)


def cluster_of(node: Node) -> NatsCluster:
    cluster = node.server.cluster
    assert isinstance(cluster, NatsCluster)
    return cluster


def shipping(node: Node) -> Shipping:
    found = cluster_of(node).shipping
    assert found is not None
    return found


def copies(node: Node) -> Copies:
    found = cluster_of(node).copies
    assert found is not None
    return found


async def until_in_sync(*nodes: Node) -> None:
    """Until each of them has all its copies."""
    await until(lambda: all(shipping(node).core.copies == shipping(node)._settings.replicas for node in nodes))


def stored(directory: Path) -> bytes:
    """All records of a log, opened from what its files have at this moment."""
    look = directory.parent / f"look-{directory.name}"
    shutil.rmtree(look, ignore_errors=True)
    shutil.copytree(directory, look)
    log = SqliteLog(look / "taipan.db")
    log.open()
    found = b"".join(record for _, data in log.scan() for record in decode(data))
    log.checkpoint_and_close()
    shutil.rmtree(look)
    return found


def rows(directory: Path) -> list[tuple[int, bytes]]:
    """Numbers and data of all batches of a log that is closed."""
    log = SqliteLog(directory / "taipan.db")
    log.open()
    assert log.salvaged is None
    found = list(log.scan())
    log.checkpoint_and_close()
    return found


@asynccontextmanager
async def nodes_on(urls: list[str], directory: Path, count: int = 2, **cluster: Any) -> AsyncIterator[list[Node]]:
    """So many nodes on real NATS servers, with copies of each other."""
    nodes: list[Node] = []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(1, count + 1):
            data = {"name": f"n{number}@127.0.0.1", "data_dir": str(directory / f"n{number}")}
            table = {**QUICK, "servers": urls, **cluster}
            Path(data["data_dir"]).mkdir()
            nodes.append(Node(make_settings(node=data, cluster=table, durability={"level": "disk"})))
            await nodes[-1].start()
            stack.push_async_callback(nodes[-1].stop)
        await until_in_sync(*nodes)
        yield nodes


async def away(node: Node, client_id: str, version: int, topic: str, qos: int = 1) -> None:
    """A subscriber whose session waits."""
    client = await node.client(client_id, version, expiry=3600)
    await client.subscribe(topic, qos=qos)
    await client.drop()


async def test_puback_means_on_two_disks(tmp_path: Path) -> None:
    """When PUBACK arrives, the copy's file has the message; so it is with PUBREC and SUBACK."""
    async with NatsServers(1) as servers, nodes_on(servers.urls, tmp_path) as (origin, follower):
        copy = copy_directory(Path(follower.settings.node.data_dir), "n1@127.0.0.1")
        for version in VERSIONS:
            await away(origin, f"s{version}", version, "t", 2)
            assert f"s{version}".encode() in stored(copy)
            publisher = await origin.client(f"p{version}", version)
            for qos in (1, 2):
                payload = b"payload %d %d" % (version, qos)
                await publisher.publish("t", payload, qos=qos, expect=SUCCESS)
                assert payload in stored(copy)


async def test_the_copy_is_a_store(tmp_path: Path) -> None:
    """A node that is started on a copy has the session and its queue."""
    async with NatsServers(1) as servers:
        async with nodes_on(servers.urls, tmp_path) as (origin, follower):
            await away(origin, "s", 5, "t", 2)
            publisher = await origin.client("p", 5)
            for number in range(20):
                await publisher.publish("t", b"%d" % number, qos=1 + number % 2, expect=SUCCESS)
            data_dir = Path(follower.settings.node.data_dir)
            assert copies(follower).held() == ["n1@127.0.0.1"]
            directory = await copies(follower).release("n1@127.0.0.1")
            assert directory == copy_directory(data_dir, "n1@127.0.0.1")
            shutil.copytree(directory, tmp_path / "elsewhere")
    node = {"name": "n1@127.0.0.1", "data_dir": str(tmp_path / "elsewhere")}
    again = Node(make_settings(node=node, durability={"level": "disk"}))
    await again.start()
    try:
        assert not again.server.alarms.active
        client = await again.client("s", 5, expiry=3600, session_present=True)
        found = [(await client.expect_publish()).payload for _ in range(20)]
        assert found == [b"%d" % number for number in range(20)]
    finally:
        await again.stop()


async def test_both_logs_are_the_same(tmp_path: Path) -> None:
    """Batch by batch, also those that are greater than a message of NATS."""
    async with replicated(tmp_path) as cluster:
        cluster.hub.max_payload = 1024 * 1024
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        sizes = (10, 700_000, 900_000, 5)
        for size in sizes:
            await publisher.send_publish("t", b"x" * size, qos=1)
        for _ in sizes:
            await publisher.expect_puback()
        await cluster.wait_until_quiet()
        original = Path(cluster[0].settings.node.data_dir)
        copy = copy_directory(Path(cluster[1].settings.node.data_dir), cluster.name(0))
        # The session of the node itself goes on when it stops, after its copies.
        await until(lambda: shipping(cluster[0]).core.durable == shipping(cluster[0]).core.last)
        last = shipping(cluster[0]).core.last
        await cluster.stop(1)
        await cluster.stop(0)
        assert rows(copy) == [row for row in rows(original) if row[0] <= last][: len(rows(copy))]
        assert rows(copy)[-1][0] >= last


__all__ = ["IN_SYNC", "asyncio"]
