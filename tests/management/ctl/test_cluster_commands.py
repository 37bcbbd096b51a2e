"""cluster, and the commands that are about all nodes."""

import pytest

from tests.support.api import managed_node
from tests.support.ctl import ctl, ctl_json, done
from tests.support.fake_cluster import fake_nodes

pytestmark = pytest.mark.asyncio

N1, N2 = "n1@host", "n2@host"


async def test_status() -> None:
    async with fake_nodes(2) as nodes:
        line = "Cluster status: #{running_nodes => ['n1@host','n2@host'],stopped_nodes => []}"
        assert await done(nodes[0], "cluster", "status") == [line]
        nodes.hub.stop(N2)
        line = "Cluster status: #{running_nodes => ['n1@host'],stopped_nodes => ['n2@host']}"
        assert await done(nodes[0], "cluster", "status") == [line]
        assert await ctl_json(nodes[0], "cluster", "status") == {"running_nodes": [N1], "stopped_nodes": [N2]}


async def test_leave_and_join() -> None:
    async with fake_nodes(2) as nodes:
        status = "Cluster status: #{running_nodes => ['n1@host','n2@host'],stopped_nodes => []}"
        said = await ctl(nodes[0], "cluster", "join", N2)
        assert (said.status, said.lines) == (1, [f"error: node {N2}: it is a member already"])
        assert await done(nodes[0], "cluster", "leave") == ["Leave the cluster successfully.", status]
        said = await ctl(nodes[0], "cluster", "leave")
        assert (said.status, said.lines) == (1, ["error: command cluster leave: it has left already"])
        said = await ctl(nodes[0], "cluster", "join", "n9@host")
        assert (said.status, said.lines) == (1, ["error: node n9@host: n9@host is not a member of it"])
        assert nodes[0].server.cluster.left  # type: ignore[attr-defined]
        assert await done(nodes[0], "cluster", "join", N2) == ["Join the cluster successfully.", status]
        said = await ctl(nodes[0], "cluster", "join", N1)
        assert said.lines == [f"error: node {N1}: it is this node: it joins no other than its own cluster"]
        assert said.status == 1


async def test_leave_says_what_stays() -> None:
    async with fake_nodes(2) as nodes:
        await nodes[0].leave_session("s", "t")
        said = await done(nodes[0], "cluster", "leave")
        assert said[-1] == "Sessions that stay on this node, for clients that connect to it: 1."
    async with fake_nodes(2) as nodes:
        await nodes[0].leave_session("s", "t")
        assert (await ctl_json(nodes[0], "cluster", "leave"))["sessions"] == 1


async def test_evacuation() -> None:
    async with fake_nodes(2) as nodes:
        await nodes[0].leave_session("s", "t")
        await nodes[0].client("c")
        table = {"connections": 1, "sessions": 2, "messages_for_others": 0, "kept": 0, "delayed": 0}
        said = await ctl(nodes[0], "cluster", "evacuation", "stop")
        assert (said.status, said.lines) == (1, ["error: command cluster evacuation stop: it is not evacuated"])
        assert await ctl_json(nodes[0], "cluster", "evacuation", "status") == {"evacuating": False, **table}
        assert await done(nodes[0], "cluster", "evacuation", "start") == [
            "Evacuating             : true",
            "Connections            : 1",
            "Sessions               : 2",
            "Messages for others    : 0",
            "Kept for stopped nodes : 0",
            "Delayed messages       : 0",
        ]
        said = await ctl(nodes[0], "cluster", "evacuation", "start")
        assert (said.status, said.lines) == (1, ["error: command cluster evacuation start: it is already evacuated"])
        assert await ctl_json(nodes[0], "cluster", "evacuation", "stop") == {"evacuating": False, **table}


async def test_force_leave() -> None:
    async with fake_nodes(2) as nodes:
        said = await ctl(nodes[0], "cluster", "force-leave", N2)
        assert (said.status, said.lines) == (1, [f"error: node {N2}: {N2} is not Stopped"])
        said = await ctl(nodes[0], "cluster", "force-leave", N1)
        assert said.lines == [f"error: node {N1}: it is this node: it removes itself by cluster leave"]
        assert said.status == 1
        nodes.hub.stop(N2)
        assert await done(nodes[0], "cluster", "force-leave", N2) == [
            "Remove the node from cluster successfully.",
            "Cluster status: #{running_nodes => ['n1@host'],stopped_nodes => []}",
        ]
        assert nodes.hub.gone == [N2]


async def test_a_node_without_a_cluster() -> None:
    async with managed_node() as node:
        (line,) = await done(node, "cluster", "status")
        assert line == f"Cluster status: #{{running_nodes => ['{node.name}'],stopped_nodes => []}}"
        refused = (("leave",), ("join", N2), ("force-leave", N2), ("evacuation", "start"), ("evacuation", "stop"))
        for words in refused:
            said = await ctl(node, "cluster", *words)
            assert said.status == 1 and "cluster.servers" in said.out


async def test_listings_are_of_all_nodes() -> None:
    async with fake_nodes(2) as nodes:
        for place, node in enumerate(nodes.nodes, 1):
            await node.leave_session(f"c{place}", f"t/{place}", username=f"u{place}")
        lines = await done(nodes[0], "clients", "list")
        assert [line.split(",")[0] for line in lines] == ["Client(c1", "Client(c2"]
        at_home = await done(nodes[1], "clients", "show", "c2")

        def facts(line: str) -> dict[str, str]:
            return dict(part.split("=") for part in line.removesuffix(")").split(", ")[1:])

        for line in (lines[1], *await done(nodes[0], "clients", "show", "c2")):
            far, near = facts(line), facts(at_home[0])
            for time in ("created_at", "connected_at", "disconnected_at"):
                assert int(far.pop(time)) == int(near.pop(time)) // 1000 * 1000
            assert far.keys() == facts(at_home[0]).keys() - {"created_at", "connected_at", "disconnected_at"}
            assert far == near
        assert await done(nodes[0], "subscriptions", "list") == ["c1 -> t/1", "c2 -> t/2"]
        assert await done(nodes[0], "subscriptions", "show", "c2") == ["c2 -> t/2"]
        assert await done(nodes[0], "routes", "list") == [f"t/1 -> {N1}", f"t/2 -> {N2}"]
        assert await done(nodes[0], "routes", "show", "t/2") == [f"t/2 -> {N2}"]
        assert [row["node"] for row in await ctl_json(nodes[0], "clients", "list")] == [N1, N2]
        assert await done(nodes[0], "subscriptions", "add", "c2", "more", "1") == ["ok"]
        assert await done(nodes[1], "subscriptions", "show", "c2") == ["c2 -> t/2", "c2 -> more"]
        assert await done(nodes[0], "acl", "cache-clean", "node", N2) == ["ACL cache drain start OK"]
        assert await done(nodes[0], "clients", "kick", "c2") == ["ok"]
        assert await done(nodes[0], "clients", "list") == lines[:1]
