"""What is asked and ordered about a client that another node has: found there, done there."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from tests.support.api import ApiClient, Reply, assert_refused
from tests.support.fake_cluster import FakeNodes, fake_nodes

pytestmark = pytest.mark.asyncio

N1, N2, N3 = "n1@host", "n2@host", "n3@host"

Order = Callable[[ApiClient, str], Awaitable[Reply]]
ORDERS: dict[str, Order] = {
    "kick": lambda api, client: api.delete(f"/clients/{client}"),
    "keepalive": lambda api, client: api.put(f"/clients/{client}/keepalive", {"interval": 30}),
    "ratelimit": lambda api, client: api.post(f"/clients/{client}/ratelimit", {"conn_messages_in": "100,1s"}),
    "no ratelimit": lambda api, client: api.delete(f"/clients/{client}/ratelimit"),
    "quota": lambda api, client: api.post(f"/clients/{client}/quota", {"conn_messages_routing": "100,1s"}),
    "no quota": lambda api, client: api.delete(f"/clients/{client}/quota"),
    "acl_cache": lambda api, client: api.get(f"/clients/{client}/acl_cache"),
    "no acl_cache": lambda api, client: api.delete(f"/clients/{client}/acl_cache"),
    "subscribe": lambda api, client: api.post("/mqtt/subscribe", {"clientid": client, "topic": "t", "qos": 1}),
    "unsubscribe": lambda api, client: api.post("/mqtt/unsubscribe", {"clientid": client, "topic": "t"}),
}


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[FakeNodes]:
    async with fake_nodes(3) as made:
        yield made


async def test_a_client_is_found_wherever_it_is(nodes: FakeNodes) -> None:
    await nodes[1].client("there", username="u")
    await nodes[0].client("here")
    for api in (nodes.api, nodes[1].api, nodes[2].api):
        (row,) = (await api.get("/clients/there")).data
        assert (row["node"], row["clientid"], row["username"], row["connected"]) == (N2, "there", "u", True)
    assert (await nodes.api.get("/clients/here")).data[0]["node"] == N1
    reply = await nodes.api.get("/clients/nobody")
    assert reply.data == [] and "meta" not in reply.json
    assert (await nodes.api.get(f"/nodes/{N2}/clients/there")).data[0]["node"] == N2
    assert (await nodes.api.get(f"/nodes/{N3}/clients/there")).data == []
    assert (await nodes.api.get(f"/nodes/{N1}/clients/there")).data == []


async def test_the_owner_that_is_known_is_asked_alone(nodes: FakeNodes) -> None:
    await nodes[1].client("there")
    nodes.hub.owners["there"] = N2
    assert (await nodes.api.get("/clients/there")).data[0]["node"] == N2
    assert [(asked, method) for _, asked, method in nodes.hub.calls] == [(N2, "operations.Clients.lookup")]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
async def test_an_order_is_carried_out_where_the_client_is(nodes: FakeNodes, order: Order) -> None:
    await nodes[1].client("there")
    reply = await order(nodes.api, "there")
    assert (reply.status, reply.code) == (200, 0), reply.text
    assert nodes.hub.methods_asked(N2)[-1].endswith("_here")
    assert_refused(await order(nodes.api, "nobody"), 404, 112, "nobody")
    nodes.hub.silent.add(N3)
    assert_refused(await order(nodes.api, "nobody"), 500, 101, N3)  # it may be there
    nodes.hub.stop(N3)
    assert_refused(await order(nodes.api, "nobody"), 404, 112, "nobody")


async def test_a_client_is_kicked(nodes: FakeNodes) -> None:
    peer = await nodes[1].client("there", expiry=100)
    assert (await nodes.api.delete("/clients/there")).code == 0
    await peer.expect_disconnect(0x98)
    assert (await nodes[1].api.get("/clients/there")).data == []
    await nodes[1].client("there")
    assert_refused(await nodes.api.delete(f"/nodes/{N3}/clients/there"), 404, 112, "there")
    assert (await nodes.api.delete(f"/nodes/{N2}/clients/there")).code == 0
    await nodes[1].settled(0)
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.delete(f"/nodes/{N2}/clients/there"), 500, 101, N2)


async def test_missing_nodes_are_named_where_a_client_is_not_found(nodes: FakeNodes) -> None:
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/clients/there")
    assert reply.data == [] and reply.meta == {"missing_nodes": [N2]}
    nodes.be_strict()
    assert_refused(await nodes.api.get("/clients/there"), 500, 101, "cluster.strict_fanout")
    await nodes[2].client("elsewhere")
    reply = await nodes.api.get("/clients/elsewhere")
    assert reply.data[0]["node"] == N3 and "meta" not in reply.json  # it is on no other


async def test_subscriptions_of_a_client(nodes: FakeNodes) -> None:
    await nodes[1].leave_session("there", "a", "b/#")
    row = {"node": N2, "clientid": "there", "topic": "a", "qos": 1}
    reply = await nodes.api.get("/subscriptions/there")
    assert reply.data == [row, {**row, "topic": "b/#"}]
    assert (await nodes.api.get(f"/nodes/{N2}/subscriptions/there")).json == reply.json
    assert (await nodes.api.get(f"/nodes/{N1}/subscriptions/there")).data == []
    assert (await nodes.api.get("/subscriptions/nobody")).data == []
    assert (await nodes[1].api.get("/subscriptions/there")).json == reply.json


async def test_missing_nodes_are_named_where_the_subscriptions_of_a_client_are_not_found(nodes: FakeNodes) -> None:
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/subscriptions/there")
    assert reply.data == [] and reply.meta == {"missing_nodes": [N2]}
    await nodes[2].leave_session("elsewhere", "a")
    reply = await nodes.api.get("/subscriptions/elsewhere")
    assert reply.data[0]["node"] == N3 and "meta" not in reply.json
    nodes.be_strict()
    assert_refused(await nodes.api.get("/subscriptions/there"), 500, 101, "cluster.strict_fanout")


async def test_a_keep_alive_beyond_64_bits_is_refused_as_on_one_node(nodes: FakeNodes) -> None:
    await nodes[1].client("there")
    path = "/clients/there/keepalive"
    for interval in (10**23, -(10**23)):
        reply = await nodes.api.put(path, {"interval": interval})
        assert_refused(reply, 400, 108, "interval")
        assert reply.json == (await nodes[1].api.put(path, {"interval": interval})).json


async def test_subscribed_by_another_node_it_gets_messages(nodes: FakeNodes) -> None:
    peer = await nodes[1].client("there")
    assert (await nodes.api.post("/mqtt/subscribe", {"clientid": "there", "topics": "a,b", "qos": 1})).code == 0
    assert (await nodes[1].api.post("/mqtt/publish", {"clientid": "x", "topic": "b", "payload": "p"})).code == 0
    await peer.expect_publish("b", b"p")
    assert [row["topic"] for row in (await nodes.api.get("/subscriptions/there")).data] == ["a", "b"]
    assert (await nodes.api.post("/mqtt/unsubscribe", {"clientid": "there", "topic": "a"})).code == 0
    assert [row["topic"] for row in (await nodes.api.get("/subscriptions/there")).data] == ["b"]
    wrong = await nodes.api.post("/mqtt/subscribe", {"clientid": "there", "topic": "a/#/b"})
    assert_refused(wrong, 400, 115, "a/#/b")


async def test_batches_are_carried_out_by_each_owner(nodes: FakeNodes) -> None:
    for place, name in enumerate(("c1", "c2", "c3")):
        await nodes[place].leave_session(name)
    order = ["c2", "nobody", "c1", "c3", "c2"]
    body = [{"clientid": name, "topic": f"t/{place}", "qos": 1} for place, name in enumerate(order)]
    rows = (await nodes.api.post("/mqtt/subscribe_batch", body)).data
    assert [(row["clientid"], row["topic"], row["code"]) for row in rows] == [
        (name, f"t/{place}", 112 if name == "nobody" else 0) for place, name in enumerate(order)
    ]
    held = {row["topic"]: row["node"] for row in (await nodes.api.get("/subscriptions")).data}
    assert held == {"t/0": N2, "t/2": N1, "t/3": N3, "t/4": N2}
    assert nodes.hub.methods_asked(N2).count("PubSub.subscribed_here") == 1
    nodes.hub.silent.add(N3)
    rows = (await nodes.api.post("/mqtt/unsubscribe_batch", body)).data
    assert [row["code"] for row in rows] == [0, 101, 0, 101, 0]
    nodes.hub.silent.clear()
    assert [row["topic"] for row in (await nodes.api.get("/subscriptions")).data] == ["t/3"]
    bad = [*body, {"clientid": "c2", "topic": "a/#/b", "qos": 0}]
    assert_refused(await nodes.api.post("/mqtt/subscribe_batch", bad), 400, 115, "[5]")
    assert [row["topic"] for row in (await nodes.api.get("/subscriptions")).data] == ["t/3"]


async def test_a_long_batch_is_asked_in_portions(nodes: FakeNodes) -> None:
    await nodes[1].leave_session("c2")
    body = [{"clientid": "c2", "topic": f"t/{place}/" + "x" * 20_000, "qos": 0} for place in range(20)]
    rows = (await nodes.api.post("/mqtt/subscribe_batch", body)).data
    assert [row["code"] for row in rows] == [0] * 20
    assert nodes.hub.methods_asked(N2).count("PubSub.subscribed_here") == 4


async def test_acl_caches_of_one_node_and_of_all(nodes: FakeNodes) -> None:
    asked = nodes.hub.methods_asked
    assert (await nodes.api.delete("/acl-cache")).code == 0
    assert asked(N2) == asked(N3) == ["Clients.clean_acl_caches"]
    assert (await nodes.api.delete(f"/nodes/{N2}/acl-cache")).code == 0
    assert len(asked(N2)) == 2 and len(asked(N3)) == 1
    nodes.hub.silent.add(N3)
    assert_refused(await nodes.api.delete("/acl-cache"), 500, 101, N3)
