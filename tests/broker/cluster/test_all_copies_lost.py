"""Nodes with copies of each other that lose their disks at once wait for each other until an operator ends that."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from taipan.broker.cluster.replicas.returning import COPIES_LOST
from taipan.broker.core.cluster import STOPPED, ChangeRefused
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.patience import patience
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

QUICK: dict[str, object] = {
    "suspect_after": 1.5,
    "stopped_after": 2.0,
    "failover_after": 2.0,
    "replicas": 1,
    "replica_timeout": 1.0,
}
EXPECTED = ("replica", "waits_for_own_copy", "node_replaced", "cluster_node_replaced")


@asynccontextmanager
async def copied(directory: Path, count: int, **cluster: object) -> AsyncIterator[ClusterNodes]:
    """Nodes whose copies are complete."""
    table = {**QUICK, **cluster}
    async with cluster_nodes(count, directory=directory, level="disk", cluster=table, expected=EXPECTED) as nodes:
        await until_copied(nodes)
        yield nodes


async def until_copied(cluster: ClusterNodes) -> None:
    await until(lambda: all(is_copied(cluster, number) for number in cluster.nodes))


def is_copied(cluster: ClusterNodes, number: int) -> bool:
    shipping = cluster.part(number).shipping
    return shipping is not None and shipping.core.copies == 1


def copies_at(cluster: ClusterNodes, at: int, name: str) -> tuple[str, ...]:
    """The nodes that have the copies of a node, as another one knows them."""
    records = cluster.part(at).replica_records
    record = None if records is None else records.of(name)
    return () if record is None else record.in_sync


async def lose(cluster: ClusterNodes, *numbers: int) -> list[asyncio.Future[object]]:
    """Kill these nodes, delete their data and start them again; return the starts, which wait."""
    for number in numbers:
        await cluster.kill(number)
    for number in numbers:
        await asyncio.to_thread(shutil.rmtree, cluster._data_dir(number))
    starting: list[asyncio.Future[object]] = [asyncio.ensure_future(cluster.start(number)) for number in numbers]
    done, _ = await asyncio.wait(starting, timeout=patience(4.0))
    assert not done
    return starting


async def works(cluster: ClusterNodes, at: int, publish_at: int) -> None:
    client = await cluster[at].client("again", expiry=3600)
    await client.subscribe("again", qos=1)
    publisher = await cluster[publish_at].client("p-again")
    await publisher.publish("again", b"m", qos=1)
    await client.expect_publish("again", b"m", 1)


async def test_nodes_start_when_the_records_of_lost_copies_are_deleted(tmp_path: Path) -> None:
    async with copied(tmp_path, 2) as cluster:
        starting = await lose(cluster, 0, 1)
        cluster.hub.lose_bucket("replicas")
        await asyncio.gather(*starting)
        await until_copied(cluster)
        await works(cluster, 0, 1)


async def test_an_operator_of_a_node_without_data_ends_its_wait(tmp_path: Path) -> None:
    """No other node runs, so that only a file in the data directory is left. It counts once."""
    async with copied(tmp_path, 2) as cluster:
        starting = await lose(cluster, 0, 1)
        file = cluster._data_dir(0) / COPIES_LOST
        file.touch()
        await starting[0]
        assert not file.exists() and not starting[1].done()
        # The other one's copy was on the node that has just started, which has none now.
        name = cluster.name(1)
        await until(lambda: {each.name: each.status for each in cluster[0].server.cluster.members()}[name] == STOPPED)
        await until_may_leave(cluster, 0, 1)
        await starting[1]
        await until_copied(cluster)
        await works(cluster, 0, 1)
        starting = await lose(cluster, 0, 1)
        for number in range(2):
            (cluster._data_dir(number) / COPIES_LOST).touch()
        await asyncio.gather(*starting)


async def until_may_leave(cluster: ClusterNodes, at: int, lost: int, copies_lost: bool = False) -> None:
    """Have a node removed; right after its start, the other one does not know yet that it is certain to be Stopped."""
    async with asyncio.timeout(patience(40.0)):
        while True:
            try:
                await cluster[at].server.cluster.force_leave(cluster.name(lost), copies_lost)
                return
            except ChangeRefused as refused:
                if "may run" not in str(refused):
                    raise
            await asyncio.sleep(0.1)


async def test_an_operator_of_another_node_ends_the_wait_of_a_pair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``force-leave`` of each of them is refused, because of the other one: it says what would be lost, and how."""
    async with copied(tmp_path, 3, failover_after=3600.0) as cluster:
        first, second = cluster.name(1), cluster.name(2)
        await until(lambda: copies_at(cluster, 0, first) == (second,) and copies_at(cluster, 0, second) == (first,))
        client = await cluster[1].client("s", expiry=3600)
        await client.subscribe("t", qos=1)
        await cluster.wait_until_quiet()
        starting = await lose(cluster, 1, 2)
        membership = cluster[0].server.cluster
        await until(lambda: [each.status for each in membership.members()].count(STOPPED) == 2)
        for name, follower, sessions in ((first, second, 1), (second, first, 0)):
            wanted = (
                f"the data of {name} is on {follower}, which is stopped. Start it with its disk. If that disk is lost,"
                f" too, cluster force-leave {name} --copies-lost ends {sessions} sessions, with their messages"
            )
            with pytest.raises(ChangeRefused) as refused:
                await membership.force_leave(name)
            assert str(refused.value) == wanted
        await membership.force_leave(first, copies_lost=True)
        assert f"replicas_deleted node={first} copies={second}" in caplog.text
        await starting[0]
        assert not starting[1].done()
        # Its copy was on the first one, which has other data now.
        await until_may_leave(cluster, 0, 2)
        await starting[1]
        await cluster.wait_until_running()
        await until_copied(cluster)
        await cluster[2].client("s", expiry=3600, session_present=False)
        await works(cluster, 1, 2)


async def test_a_copy_that_can_be_used_is_used_nevertheless(tmp_path: Path) -> None:
    async with copied(tmp_path, 3, failover_after=3600.0) as cluster:
        client = await cluster[1].client("s", expiry=3600)
        await client.subscribe("t", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        await asyncio.to_thread(shutil.rmtree, cluster._data_dir(1))
        membership, name = cluster[0].server.cluster, cluster.name(1)
        await until(lambda: {each.name: each.status for each in membership.members()}[name] == STOPPED)
        await until_may_leave(cluster, 0, 1, copies_lost=True)
        await cluster[0].client("s", expiry=3600, session_present=True)
