"""The seam to other nodes, on a node that has none."""

import pytest

from taipan.broker.core.cluster import RUNNING, ChangeRefused, NodeUnreachable
from taipan.broker.server import Server
from tests.support.node import make_settings

pytestmark = pytest.mark.asyncio


async def test_a_node_without_a_cluster_is_its_only_member() -> None:
    server = Server(make_settings())
    (member,) = server.cluster.members()
    assert (member.name, member.status, member.version) == (server.settings.node.name, RUNNING, server.version)
    assert not server.cluster.clustered
    assert server.cluster.node_of("anybody") is None


async def test_what_needs_other_nodes_says_that_there_are_none() -> None:
    cluster = Server(make_settings()).cluster
    with pytest.raises(NodeUnreachable, match="n2@host"):
        await cluster.call("n2@host", "operations.x", b"")
    for change in (cluster.join("n2@host"), cluster.leave(), cluster.force_leave("n2@host")):
        with pytest.raises(ChangeRefused, match=r"cluster\.servers"):
            await change
