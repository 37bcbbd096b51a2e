"""/cluster_links: the messages between the nodes, their rate, and what waits."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.api import managed_node
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.fake_cluster import fake_nodes
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

N1, N2 = "n1@127.0.0.1", "n2@127.0.0.1"
CLUSTER = {"suspect_after": 1.5, "stopped_after": 2.5, "strict_subscribe": True}


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(2, directory=tmp_path, level="disk", managed=True, cluster=CLUSTER) as made:
        await until(lambda: all(here(made, number)["state"] == "open" for number in range(2)))
        yield made


def here(cluster: ClusterNodes, number: int) -> dict[str, Any]:
    (link,) = cluster[number].server.cluster.links_to_others()
    return {name: getattr(link, name) for name in link.__struct_fields__}


async def links(cluster: ClusterNodes) -> dict[tuple[str, str], dict[str, Any]]:
    rows = (await cluster.managed_node(0).api.get("/cluster_links")).data
    return {(each.pop("node"), each.pop("to")): each for each in rows}


IDLE = {"state": "open", "rate": 0.0, "sent": 0, "waiting": 0, "waiting_bytes": 0, "oldest": None, "dropped": 0}


@pytest.mark.slow
async def test_messages_that_cross_and_messages_that_wait(cluster: ClusterNodes) -> None:
    assert await links(cluster) == {(N1, N2): IDLE, (N2, N1): IDLE}
    publisher = await cluster[0].client("p")
    subscriber = await cluster[1].client("s", expiry=3600)
    await subscriber.subscribe("t", qos=1)
    for number in range(20):
        await publisher.publish("t", b"%d" % number, qos=number % 2)
        await subscriber.expect_publish("t", b"%d" % number)
    await until(lambda: here(cluster, 0)["waiting"] == here(cluster, 0)["waiting_bytes"] == 0)
    found = await links(cluster)
    assert found.pop((N2, N1)) == IDLE  # the messages go in one direction
    crossed = found.pop((N1, N2))
    assert 20 / 11 <= crossed.pop("rate") <= 40
    assert crossed == {**{name: value for name, value in IDLE.items() if name != "rate"}, "sent": 20}

    # The nodes do not reach each other: the messages wait, and the first of them grows older.
    cluster.partition({0}, {1})
    for number in range(3):
        await publisher.send(Publish("t", b"x" * 1000, qos=1, packet_id=number + 1))
    await until(lambda: here(cluster, 0)["waiting"] == 3)
    first = here(cluster, 0)
    assert first["waiting_bytes"] > 3000  # sent, and not known to have arrived
    assert first["oldest"] >= 0
    await until(lambda: here(cluster, 0)["oldest"] > first["oldest"])
    await until(lambda: here(cluster, 0)["state"] == "closed")
    away = (await links(cluster))[N1, N2]
    assert (away["waiting"], away["rate"]) == (3, 0.0) and away["waiting_bytes"] > 3000 and away["oldest"] > 0
    assert set(await links(cluster)) == {(N1, N2)}  # the other node reports its own links
    cluster.heal()
    await until(lambda: here(cluster, 0)["state"] == "open" and here(cluster, 0)["waiting"] == 0)
    assert here(cluster, 0)["oldest"] is None and here(cluster, 0)["sent"] >= 23


async def test_a_node_that_does_not_answer() -> None:
    async with fake_nodes(2) as nodes:
        reply = await nodes.api.get("/cluster_links")
        assert [(each["node"], each["to"], each["rate"]) for each in reply.data] == [
            ("n1@host", "n2@host", 2.5),
            ("n2@host", "n1@host", 2.5),
        ]
        nodes.hub.silent.add("n2@host")
        reply = await nodes.api.get("/cluster_links")
        assert [each["node"] for each in reply.data] == ["n1@host"]
        assert reply.meta == {"missing_nodes": ["n2@host"]}


async def test_a_single_node_has_none() -> None:
    async with managed_node() as node:
        assert (await node.api.get("/cluster_links")).data == []
