"""Traces, counted topics, slow subscriptions, explanations and export files, of nodes that have them apart."""

import io
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.management.operations import tracing
from tests.support.api import assert_refused
from tests.support.fake_cluster import FakeNodes, fake_nodes

pytestmark = pytest.mark.asyncio

N1, N2 = "n1@host", "n2@host"


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[FakeNodes]:
    slow = {"enabled": True, "threshold": 0.001, "top": 2}
    async with fake_nodes(2, slow_subscriptions=slow) as made:
        yield made


async def on_both(nodes: FakeNodes, path: str, body: dict[str, Any]) -> None:
    """What the shared rows do."""
    for node in nodes.nodes:
        assert (await node.api.post(path, body)).code == 0


async def publish(nodes: FakeNodes, place: int, topic: str, payload: str = "x") -> None:
    body = {"clientid": "p", "topic": topic, "payload": payload}
    assert (await nodes[place].api.post("/mqtt/publish", body)).code == 0


async def test_a_trace_has_a_file_on_each_node(nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    await on_both(nodes, "/trace", {"name": "t1", "type": "topic", "topic": "a/#"})
    await publish(nodes, 1, "a/b", "only-there")
    far = await nodes.api.get("/trace/t1/log", bytes=100_000, node=N2)
    assert "a/b" in far.data
    assert far.json == (await nodes[1].api.get("/trace/t1/log", bytes=100_000)).json
    assert "a/b" not in (await nodes.api.get("/trace/t1/log", bytes=100_000)).data
    (row,) = (await nodes.api.get("/trace")).data
    assert row["log_size"].keys() == {N1, N2} and row["log_size"][N2] > row["log_size"][N1]
    monkeypatch.setattr(tracing, "MAX_READ", 7)
    archive = zipfile.ZipFile(io.BytesIO((await nodes.api.get("/trace/t1/download")).octets))
    assert archive.namelist() == [f"{N1}_t1.log", f"{N2}_t1.log"]
    assert archive.read(f"{N2}_t1.log").decode() == far.data
    assert_refused(await nodes.api.get("/trace/t2/download"), 404, 102, "t2")
    assert_refused(await nodes.api.get("/trace/t1/log", node="n9@host"), 404, 102, "n9@host")
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/trace")
    assert reply.data[0]["log_size"].keys() == {N1} and reply.meta == {"missing_nodes": [N2]}
    assert_refused(await nodes.api.get("/trace/t1/log", node=N2), 500, 101, N2)
    archive = zipfile.ZipFile(io.BytesIO((await nodes.api.get("/trace/t1/download")).octets))
    assert archive.read(f"{N1}_t1.log") == b""


async def test_counted_topics_are_added_up(nodes: FakeNodes) -> None:
    await on_both(nodes, "/topic-metrics", {"topic": "a"})
    for place, times in ((0, 1), (1, 2)):
        for _ in range(times):
            await publish(nodes, place, "a")
    assert (await nodes.api.get("/topic-metrics/a")).data["messages.in.count"] == 3
    (row,) = (await nodes.api.get("/topic-metrics")).data
    assert (row["topic"], row["metrics"]["messages.in.count"]) == ("a", 3)
    assert row["metrics"].keys() == (await nodes.api.get("/topic-metrics/a")).data.keys()
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/topic-metrics/a")
    assert reply.data["messages.in.count"] == 1 and reply.meta == {"missing_nodes": [N2]}
    assert_refused(await nodes.api.get("/topic-metrics/b"), 404, 102, "b")


async def test_the_slowest_of_all_nodes(nodes: FakeNodes) -> None:
    for place, seconds in ((0, 3), (1, 5), (1, 1)):
        node = nodes[place]
        peer = await node.client(f"c-{seconds}")
        await peer.subscribe(f"t/{seconds}", qos=1)
        await publish(nodes, place, "unrelated")
        body = {"clientid": "p", "topic": f"t/{seconds}", "payload": "", "qos": 1}
        assert (await node.api.post("/mqtt/publish", body)).code == 0
        packet = await peer.expect_publish(acknowledge=False)
        node.clock.shift += seconds
        await peer.puback(packet.packet_id)
        await peer.ping()
    rows = (await nodes.api.get("/slow_subscriptions")).data
    assert [(row["clientid"], row["node"]) for row in rows] == [("c-5", N2), ("c-3", N1)]
    assert (await nodes.api.delete("/slow_subscriptions")).code == 0
    assert (await nodes[1].api.get("/slow_subscriptions")).data == []
    nodes.hub.silent.add(N2)
    assert (await nodes.api.get("/slow_subscriptions")).meta == {"missing_nodes": [N2]}
    assert_refused(await nodes.api.delete("/slow_subscriptions"), 500, 101, N2)


async def test_what_happened_to_a_client_anywhere(nodes: FakeNodes) -> None:
    await nodes[1].leave_session("there", "a")
    for node in reversed(nodes.nodes):
        bad = node.peer(5)
        await bad.connect("there", username="u", password=b"wrong", expect=None)
    reply = await nodes.api.get("/clients/there/explain")
    assert reply.data["clientid"] == "there" and reply.data["session"] is not None
    assert all(event["node"] in (N1, N2) for event in reply.data["events"])
    assert_refused(await nodes.api.get("/clients/nobody/explain"), 404, 112, "nobody")
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.get("/clients/nobody/explain"), 500, 101, N2)


async def test_who_was_refused_anywhere(nodes: FakeNodes) -> None:
    for node in nodes.nodes:
        assert (await node.api.post("/banned", {"who": "bad", "as": "clientid"})).code == 0
        await node.peer(5).connect("bad", expect=0x8A)
    refused = (await nodes.api.get("/refused_clients")).data
    assert sorted((each["node"], each["clientid"], each["count"]) for each in refused) == [
        (N1, "bad", 1),
        (N2, "bad", 1),
    ]
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/refused_clients")
    assert [each["node"] for each in reply.data] == [N1] and reply.meta == {"missing_nodes": [N2]}


async def test_of_a_client_whose_node_is_stopped_it_is_told_which_that_is(nodes: FakeNodes) -> None:
    nodes.hub.owners["there"] = N2
    nodes.hub.stop(N2)
    for path in ("/clients/there/explain", "/clients/there/queue"):
        assert_refused(await nodes.api.get(path), 500, 101, f"node {N2} is stopped")
    assert_refused(await nodes.api.get("/clients/nobody/explain"), 404, 112, "nobody")


async def test_who_would_get_a_message(nodes: FakeNodes) -> None:
    await nodes[0].leave_session("c1", "a", "$share/g/a")
    await nodes[1].leave_session("c2", "#", "$share/g/a", "$share/h/a")
    found = (await nodes.api.get("/explain", topic="a")).data
    assert [(each["clientid"], each["node"]) for each in found["receivers"]] == [("c1", N1), ("c2", N2)]
    assert found["receivers_count"] == 2
    shared = {each["topic"]: each["members"] for each in found["shared"]}
    assert sorted(shared.values()) == [["c1", "c2"], ["c2"]]
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/explain", topic="a")
    assert reply.data["receivers_count"] == 1 and reply.meta == {"missing_nodes": [N2]}


async def test_files_of_another_node(nodes: FakeNodes) -> None:
    made = (await nodes[1].api.post("/data/export")).data
    name = made["filename"]
    assert (await nodes.api.get("/data/export")).data == [made] and made["node"] == N2
    content = await nodes.api.get(f"/data/file/{name}")
    assert content.octets == (await nodes[1].api.get(f"/data/file/{name}")).octets
    assert len(content.octets) == made["size"]
    assert (await nodes.api.ask("HEAD", f"/data/file/{name}")).octets == b""
    assert_refused(await nodes.api.get("/data/file/none.json"), 404, 102, "none.json")
    nodes.hub.silent.add(N2)
    assert (await nodes.api.get("/data/export")).meta == {"missing_nodes": [N2]}
    assert_refused(await nodes.api.get(f"/data/file/{name}"), 500, 101, N2)
    assert_refused(await nodes.api.delete(f"/data/export/{name}"), 500, 101, N2)
    nodes.hub.silent.clear()
    assert (await nodes.api.delete(f"/data/export/{name}")).code == 0
    assert (await nodes[1].api.get("/data/export")).data == []
    assert_refused(await nodes.api.delete(f"/data/export/{name}"), 404, 102, name)


async def test_the_first_user_says_how_many_clients_of_all_nodes_it_shuts_out(nodes: FakeNodes) -> None:
    for place, node in enumerate(nodes.nodes):
        await node.client(f"c{place}", username="somebody", password=b"x")
    user = {"login": "alice", "password": "secret-1", "is_superuser": False}
    assert "; 2 of the connected clients" in (await nodes.api.post("/auth_user", user)).json["warning"]
    nodes.hub.silent.add(N2)
    assert (await nodes.api.delete("/auth_user/alice")).code == 0
    warning = (await nodes.api.post("/auth_user", user)).json["warning"]
    assert f"; 1 of the connected clients gave a username (without {N2}, which did not answer)" in warning
