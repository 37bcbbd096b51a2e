"""/clients, /subscriptions and /routes over two and three nodes: pages, filters, and nodes that do not answer."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.core.cluster import NodeUnreachable
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.limits import Limits
from taipan.management.operations import node_listing
from tests.support.api import assert_refused, managed_node
from tests.support.fake_cluster import FakeNodes, fake_nodes

pytestmark = pytest.mark.asyncio

N1, N2, N3 = "n1@host", "n2@host", "n3@host"
PER_NODE = (3, 5, 2)
LISTINGS = ["/clients", "/subscriptions", "/routes"]


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[FakeNodes]:
    """Clients c1-0, c1-1, ... on the first node and so on, each subscribed to a filter of its own name."""
    async with fake_nodes(3) as made:
        for place, count in enumerate(PER_NODE):
            for number in range(count):
                client_id = f"c{place + 1}-{number}"
                await made[place].leave_session(client_id, f"t/{client_id}", username="even" if number % 2 else "odd")
        yield made


async def all_pages(nodes: FakeNodes, path: str, limit: int, **query: Any) -> list[Any]:
    rows: list[Any] = []
    page = 1
    while True:
        reply = await nodes.api.get(path, _page=page, _limit=limit, **query)
        assert reply.meta["page"] == page and reply.meta["limit"] == limit
        rows += reply.data
        if not reply.meta["hasnext"]:
            return rows
        assert len(reply.data) == limit
        page += 1


@pytest.mark.parametrize("path", LISTINGS)
async def test_all_rows_in_order_of_the_nodes(nodes: FakeNodes, path: str) -> None:
    reply = await nodes.api.get(path)
    assert [row["node"] for row in reply.data] == [N1] * 3 + [N2] * 5 + [N3] * 2
    assert reply.meta == {"page": 1, "limit": 10_000, "count": 10, "hasnext": False}
    # Whoever is asked answers the same.
    assert (await nodes[2].api.get(path)).json == reply.json


@pytest.mark.parametrize("path", LISTINGS)
async def test_pages_have_each_row_once(nodes: FakeNodes, path: str) -> None:
    whole = (await nodes.api.get(path)).data
    for limit in (1, 2, 3, 4, 5, 8, 9, 10, 11):
        assert await all_pages(nodes, path, limit) == whole, limit


async def test_pages_with_conditions(nodes: FakeNodes) -> None:
    whole = (await nodes.api.get("/clients", username="odd")).data
    assert [row["clientid"] for row in whole] == ["c1-0", "c1-2", "c2-0", "c2-2", "c2-4", "c3-0"]
    assert (await nodes.api.get("/clients", username="odd")).meta["count"] == -1
    for limit in (1, 2, 3, 5, 6):
        assert await all_pages(nodes, "/clients", limit, username="odd") == whole, limit
        rows = await all_pages(nodes, "/subscriptions", limit, _match_topic="t/+", qos=1)
        assert Counter(row["node"] for row in rows) == {N1: 3, N2: 5, N3: 2}, limit


async def test_no_rows_are_asked_for(nodes: FakeNodes) -> None:
    reply = await nodes.api.get("/clients", _limit=0)
    assert reply.data == [] and reply.meta == {"page": 1, "limit": 0, "count": 10, "hasnext": True}
    reply = await nodes.api.get("/clients", _limit=4, _page=9)
    assert reply.data == [] and reply.meta == {"page": 9, "limit": 4, "count": 10, "hasnext": False}


async def test_only_nodes_with_a_part_of_the_page_are_asked_for_rows(nodes: FakeNodes) -> None:
    await nodes.api.get("/clients", _limit=3, _page=2)  # the first three of n2
    assert nodes.hub.methods_asked(N2) == ["Clients.count", "Clients.piece"]
    assert nodes.hub.methods_asked(N3) == ["Clients.count"]


async def test_a_long_page_comes_in_pieces(nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (await nodes.api.get("/clients")).data
    filtered = (await nodes.api.get("/clients", _like_clientid="c")).data
    monkeypatch.setattr(node_listing, "PIECE", 2)
    nodes.hub.calls.clear()
    assert (await nodes.api.get("/clients")).data == whole
    assert nodes.hub.methods_asked(N2) == ["Clients.count", *["Clients.piece"] * 3]
    assert (await nodes.api.get("/clients", _like_clientid="c")).data == filtered == whole
    assert await all_pages(nodes, "/clients", 3, _like_clientid="c") == whole


@pytest.mark.parametrize("path", LISTINGS)
async def test_a_node_that_does_not_answer_is_named(nodes: FakeNodes, path: str) -> None:
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get(path)
    assert [row["node"] for row in reply.data] == [N1] * 3 + [N3] * 2
    assert reply.meta == {"page": 1, "limit": 10_000, "count": 5, "hasnext": False, "missing_nodes": [N2]}
    nodes.hub.stop(N2)
    assert "missing_nodes" not in (await nodes.api.get(path)).meta
    nodes.hub.silent.add(N3)
    nodes.be_strict()
    assert_refused(await nodes.api.get(path), 500, 101, "cluster.strict_fanout")


@pytest.mark.parametrize("strict", [False, True])
async def test_a_node_that_goes_silent_amid_the_answer(nodes: FakeNodes, strict: bool) -> None:
    if strict:
        nodes.be_strict()

    async def gone(asking: str, argument: bytes) -> bytes:
        nodes.hub.silent.add(N2)
        raise NodeUnreachable(N2)

    nodes.hub.handlers[N2]["operations.Clients.piece"] = gone
    reply = await nodes.api.get("/clients")
    if strict:
        assert_refused(reply, 500, 101, N2)
    else:
        assert [row["node"] for row in reply.data] == [N1] * 3 + [N3] * 2
        assert reply.meta["missing_nodes"] == [N2]


@pytest.mark.parametrize("path", ["/nodes/{node}/clients", "/nodes/{node}/subscriptions"])
async def test_the_listing_of_one_node(nodes: FakeNodes, path: str) -> None:
    other = path.format(node=N2)
    reply = await nodes.api.get(other)
    assert [row["node"] for row in reply.data] == [N2] * 5
    assert reply.meta == {"page": 1, "limit": 10_000, "count": 5, "hasnext": False}
    assert (await nodes[1].api.get(other)).json == reply.json
    assert (await nodes.api.get(other, _limit=2, _page=3)).meta["hasnext"] is False
    assert len((await nodes.api.get(other, clientid="c2-1")).data) == 1
    assert (await nodes.api.get(other, clientid="c1-1")).data == []
    nodes.hub.silent.add(N2)
    assert_refused(await nodes.api.get(other), 500, 101, N2)
    assert len((await nodes.api.get(path.format(node=N1))).data) == 3
    nodes.hub.stop(N2)
    assert_refused(await nodes.api.get(other), 500, 101, "stopped")
    assert_refused(await nodes.api.get(path.format(node="n9@host")), 404, 102, "n9@host")


async def test_wrong_conditions_are_refused_before_anybody_is_asked(nodes: FakeNodes) -> None:
    assert_refused(await nodes.api.get("/clients", ip_address="nowhere"), 400, 108, "ip_address")
    assert_refused(await nodes.api.get("/subscriptions", qos=1, _match_topic="a/#/b"), 400, 115, "_match_topic")
    assert_refused(await nodes.api.get(f"/nodes/{N2}/clients", ip_address="nowhere"), 400, 108, "ip_address")
    assert nodes.hub.calls == []


async def test_by_user_name(nodes: FakeNodes) -> None:
    reply = await nodes.api.get("/clients/username/even")
    assert [row["clientid"] for row in reply.data] == ["c1-1", "c2-1", "c2-3", "c3-1"]
    assert "meta" not in reply.json
    assert [row["clientid"] for row in (await nodes.api.get(f"/nodes/{N2}/clients/username/even")).data] == [
        "c2-1",
        "c2-3",
    ]
    assert [row["clientid"] for row in await all_pages(nodes, "/clients/username/even", 3)] == [
        "c1-1",
        "c2-1",
        "c2-3",
        "c3-1",
    ]
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/clients/username/even")
    assert [row["clientid"] for row in reply.data] == ["c1-1", "c3-1"]
    assert reply.meta == {"missing_nodes": [N2]}


async def test_the_routes_of_a_filter(nodes: FakeNodes) -> None:
    for place in (0, 2):
        await nodes[place].leave_session(f"more-{place}", "common")
    assert (await nodes.api.get("/routes/common")).data == [
        {"topic": "common", "node": N1},
        {"topic": "common", "node": N3},
    ]
    assert (await nodes.api.get("/routes/none")).data == []
    nodes.hub.silent.add(N3)
    reply = await nodes.api.get("/routes/common")
    assert reply.data == [{"topic": "common", "node": N1}] and reply.meta == {"missing_nodes": [N3]}


async def test_a_deep_page_fetches_that_page_alone() -> None:
    """Rows that are fetched are those that are shown, whatever stands before and behind them."""
    async with fake_nodes(3) as nodes:
        for place, node in enumerate(nodes.nodes):
            broker, zone = node.server.broker, node.settings.listener_zones[0]
            for number in range(2000):
                client = ClientInfo("node", zone, client_id=f"c{place + 1}-{number:04}")
                broker.life.open_session(client, True, 100, Limits(), 0.0)
        nodes.hub.octets.clear()
        reply = await nodes.api.get("/clients", _page=31, _limit=100)
        assert [row["clientid"] for row in reply.data] == [f"c2-{number:04}" for number in range(1000, 1100)]
        assert reply.meta == {"page": 31, "limit": 100, "count": 6000, "hasnext": True}
        assert [method for _, _, method in nodes.hub.calls] == [
            "operations.Clients.count",
            "operations.Clients.count",
            "operations.Clients.piece",
        ]
        a_row = len(reply.octets) // 100
        assert sum(nodes.hub.octets) < 1.2 * 100 * a_row


BEYOND_64_BITS = 10**21
BEYOND: list[tuple[str, str]] = [
    *((path, name) for path in LISTINGS for name in ("_page", "_limit")),
    ("/clients", "proto_ver"),
    ("/clients", "_gte_mqueue_len"),
    ("/clients", "_gte_created_at"),
    ("/subscribers", "_limit"),
    ("/subscribers", "_page"),
    ("/clients/c2-0/queue", "_limit"),
    ("/clients/c2-0/queue", "_page"),
]


@pytest.mark.parametrize(("path", "name"), BEYOND)
async def test_a_number_beyond_64_bits_is_answered_as_on_one_node(nodes: FakeNodes, path: str, name: str) -> None:
    query = {"topic": "t/c2-0"} if path == "/subscribers" else {}
    async with managed_node() as alone:
        await alone.leave_session("c2-0", "t/c2-0")
        for number in (BEYOND_64_BITS, -BEYOND_64_BITS):
            expected = await alone.api.get(path, **query, **{name: number})
            reply = await nodes.api.get(path, **query, **{name: number})
            assert (reply.status, reply.code) == (expected.status, expected.code), reply.text
            if reply.code == 0:
                assert reply.meta["page"] == expected.meta["page"] and reply.meta["limit"] == expected.meta["limit"]
                assert bool(reply.data) == bool(expected.data)
                if path in ("/clients", "/subscriptions"):
                    other = await nodes.api.get(f"/nodes/{N2}{path}", **{name: number})
                    assert other.status == 200 and bool(other.data) == bool(reply.data)


async def test_one_order_over_all_nodes(nodes: FakeNodes) -> None:
    names = sorted(row["clientid"] for row in (await nodes.api.get("/clients")).data)
    for sort, wanted in (("clientid", names), ("-clientid", names[::-1])):
        for limit in (1, 3, 4, 10, 11):
            rows = await all_pages(nodes, "/clients", limit, _sort=sort)
            assert [row["clientid"] for row in rows] == wanted
    reply = await nodes.api.get("/clients", _sort="-created_at", _limit=4)
    assert reply.meta == {"page": 1, "limit": 4, "count": 10, "hasnext": True}
    odd = (await nodes.api.get("/clients", _sort="-clientid", username="odd")).data
    assert [row["clientid"] for row in odd] == ["c3-0", "c2-4", "c2-2", "c2-0", "c1-2", "c1-0"]
    nodes.hub.silent.add(N2)
    reply = await nodes.api.get("/clients", _sort="clientid")
    assert {row["node"] for row in reply.data} == {N1, N3} and reply.meta["missing_nodes"] == [N2]
