"""/nodes, /brokers and what is asked of one node or of all: with a second node that runs, is stopped, is silent."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.support.api import assert_refused
from tests.support.fake_cluster import FakeNodes, fake_nodes

pytestmark = pytest.mark.asyncio

N1, N2 = "n1@host", "n2@host"

# Endpoint, and the type of its ``data``.
OF_ONE_NODE: list[tuple[str, type]] = [
    ("/nodes/{node}", dict),
    ("/brokers/{node}", dict),
    ("/nodes/{node}/metrics", dict),
    ("/nodes/{node}/stats", dict),
    ("/nodes/{node}/listeners", list),
    ("/nodes/{node}/access/sources", list),
    ("/nodes/{node}/alarms", list),
    ("/nodes/{node}/alarms/activated", list),
    ("/nodes/{node}/alarms/deactivated", list),
]
# Endpoint, and the member that has what one node answers.
OF_ALL_NODES = [
    ("/metrics", "metrics"),
    ("/stats", "stats"),
    ("/listeners", "listeners"),
    ("/access/sources", "sources"),
    ("/alarms", "alarms"),
    ("/alarms/activated", "alarms"),
    ("/alarms/deactivated", "alarms"),
    ("/alarms/present", "alarms"),
    ("/alarms/history", "alarms"),
]


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[FakeNodes]:
    async with fake_nodes(2) as made:
        yield made


@pytest.mark.parametrize("path", ["/nodes", "/brokers"])
async def test_a_row_for_each_member(nodes: FakeNodes, path: str) -> None:
    rows = (await nodes.api.get(path)).data
    assert [(row["node"], row["node_status"]) for row in rows] == [(N1, "Running"), (N2, "Running")]
    running = rows[1]
    nodes.hub.silent.add(N2)
    assert [row["node_status"] for row in (await nodes.api.get(path)).data] == ["Running", "Suspect"]
    nodes.hub.stop(N2)
    rows = (await nodes.api.get(path)).data
    assert [(row["node"], row["node_status"]) for row in rows] == [(N1, "Running"), (N2, "Stopped")]
    assert rows[1].keys() == running.keys()
    assert {key: type(value) for key, value in rows[1].items() if "memory" not in key} == {
        key: type(value) for key, value in running.items() if "memory" not in key
    }
    assert rows[1]["version"] == "9.9.9"


@pytest.mark.parametrize(("path", "kind"), OF_ONE_NODE)
async def test_one_node(nodes: FakeNodes, path: str, kind: type) -> None:
    other, own = path.format(node=N2), path.format(node=N1)
    reply = await nodes.api.get(other)
    assert isinstance(reply.data, kind)
    at_itself = (await nodes[1].api.get(other)).data
    if kind is dict:
        assert reply.data.keys() == at_itself.keys()
    assert isinstance((await nodes.api.get(own)).data, kind)
    assert_refused(await nodes.api.get(path.format(node="n3@host")), 404, 102, "n3@host")
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.get(other), 500, 101, N2)
    nodes.hub.stop(N2)
    asked = len(nodes.hub.calls)
    assert_refused(await nodes.api.get(other), 500, 101, "stopped")
    assert len(nodes.hub.calls) == asked  # nobody waits for a node that is known to be stopped
    assert isinstance((await nodes.api.get(own)).data, kind)


@pytest.mark.parametrize(("path", "member"), OF_ALL_NODES)
async def test_all_nodes(nodes: FakeNodes, path: str, member: str) -> None:
    reply = await nodes.api.get(path)
    assert [row["node"] for row in reply.data] == [N1, N2]
    assert all(row.keys() == {"node", member} for row in reply.data)
    assert "meta" not in reply.json
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get(path)
    assert [row["node"] for row in reply.data] == [N1]
    assert reply.meta == {"missing_nodes": [N2]}
    nodes.hub.stop(N2)
    reply = await nodes.api.get(path)
    assert [row["node"] for row in reply.data] == [N1]
    assert "meta" not in reply.json


@pytest.mark.parametrize("path", [path for path, _ in OF_ALL_NODES])
async def test_strict_fanout(nodes: FakeNodes, path: str) -> None:
    nodes.be_strict()
    assert len((await nodes.api.get(path)).data) == 2
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.get(path), 500, 101, "cluster.strict_fanout")


async def test_figures_are_those_of_the_node(nodes: FakeNodes) -> None:
    await nodes[1].client("c1")
    assert [row["connections"] for row in (await nodes.api.get("/nodes")).data] == [0, 1]
    assert (await nodes.api.get(f"/nodes/{N2}")).data["connections"] == 1
    assert (await nodes.api.get(f"/nodes/{N2}/metrics")).data["client.connected"] == 1
    assert (await nodes.api.get(f"/nodes/{N2}/stats")).data["sessions.count"] == 1
    by_node = {row["node"]: row["listeners"] for row in (await nodes.api.get("/listeners")).data}
    assert by_node[N2] == (await nodes.api.get(f"/nodes/{N2}/listeners")).data
    assert by_node[N1] != by_node[N2]
    memory = {row["node"]: row["memory_total"] for row in (await nodes.api.get("/nodes")).data}
    assert isinstance(memory[N2], str)  # with its unit, as the list has it
    assert isinstance((await nodes.api.get(f"/nodes/{N2}")).data["memory_total"], int)


async def test_alarms_of_another_node(nodes: FakeNodes) -> None:
    nodes[1].server.alarms.activate("a1", "something", {"setting": "x"})
    by_node: dict[str, Any] = {row["node"]: row["alarms"] for row in (await nodes.api.get("/alarms")).data}
    assert [alarm["name"] for alarm in by_node[N2]] == ["a1"] and by_node[N1] == []
    assert_refused(await nodes.api.post("/alarms/deactivated", {"node": N1, "name": "a1"}), 404, 102, "a1")
    assert (await nodes.api.post("/alarms/deactivated", {"node": N2, "name": "a1"})).code == 0
    assert [alarm["name"] for alarm in (await nodes.api.get(f"/nodes/{N2}/alarms/deactivated")).data] == ["a1"]
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.delete("/alarms/deactivated"), 500, 101, N2)
    nodes.hub.silent.clear()
    assert (await nodes.api.delete("/alarms/deactivated")).code == 0
    assert (await nodes.api.get(f"/nodes/{N2}/alarms")).data == []


async def test_a_listener_of_another_node_is_restarted(nodes: FakeNodes) -> None:
    name = (await nodes.api.get(f"/nodes/{N2}/listeners")).data[0]["identifier"]
    path = f"/listeners/{name}/restart"
    assert (await nodes.api.put(f"/nodes/{N2}{path}")).code == 0
    assert nodes.hub.methods_asked(N2)[-1] == "Listeners.restart"
    assert (await nodes.api.put(path)).code == 0
    assert_refused(await nodes.api.put(f"/nodes/{N2}/listeners/mqtt:tcp:none/restart"), 404, 102, "mqtt:tcp:none")
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.put(path), 500, 101, N2)


async def test_only_members_are_answered(nodes: FakeNodes) -> None:
    handler = nodes.hub.handlers[N2]["operations.Monitoring.metrics"]
    assert b"n9@host is not known" in await handler("n9@host", b"\x80")
    assert b"n9@host" not in await handler(N1, b"\x80")


async def test_an_argument_that_cannot_be_read_is_refused(nodes: FakeNodes) -> None:
    handler = nodes.hub.handlers[N2]["operations.Alarms.deactivate"]
    for argument in (b"", b"\xc1", b"\x80", b"\x81\xa4name\x01"):
        assert b"cannot be read" in await handler(N1, argument)
