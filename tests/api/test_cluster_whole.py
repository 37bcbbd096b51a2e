"""The management API of whole nodes: real calls, real rows, real clients."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.mqtt import constants as c
from taipan.ruleengine.functions.budget import Budget
from tests.support.api import ManagedNode, assert_refused
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.ctl import ctl, done
from tests.support.patience import patience

pytestmark = pytest.mark.asyncio

N1, N2, N3 = "n1@127.0.0.1", "n2@127.0.0.1", "n3@127.0.0.1"
QUICK = {"suspect_after": 1.2, "stopped_after": 1.5, "takeover_timeout": 4, "call_timeout": 1, "takeover": "fresh"}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[ClusterNodes]:
    async with cluster_nodes(3, managed=True) as made:
        yield made


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(patience(40)):
        while not await condition():
            await asyncio.sleep(0.02)


async def statuses(node: ManagedNode) -> dict[str, str]:
    return {row["node"]: row["node_status"] for row in (await node.api.get("/nodes")).data}


async def test_what_one_node_is_told_all_answer(cluster: ClusterNodes) -> None:
    first, second, third = (cluster.managed_node(number) for number in range(3))
    for place, node in enumerate((first, second, third), 1):
        await node.client(f"c{place}", expiry=60)
    for node in (first, second, third):
        rows = (await node.api.get("/clients")).data
        assert [(row["clientid"], row["node"]) for row in rows] == [("c1", N1), ("c2", N2), ("c3", N3)]
        assert (await node.api.get("/clients/c2")).data[0]["node"] == N2
        assert [row["node"] for row in (await node.api.get("/metrics")).data] == [N1, N2, N3]
    # An order through the first, a message through the third, a client at the second.
    assert (await first.api.post("/mqtt/subscribe", {"clientid": "c2", "topic": "t/#", "qos": 1})).code == 0
    assert [row["node"] for row in (await third.api.get("/subscriptions")).data] == [N2]
    assert (await third.api.get("/routes")).data == [{"topic": "t/#", "node": N2}]

    async def known() -> bool:
        return bool(third.server.broker.router.match("t/1").remote)

    await until(known)
    assert (
        await third.api.post("/mqtt/publish", {"clientid": "x", "topic": "t/1", "payload": "hi", "qos": 1})
    ).code == 0

    async def arrived() -> bool:
        return bool((await first.api.get("/clients/c2")).data[0]["send_msg"])

    await until(arrived)
    assert (await first.api.delete("/clients/c2")).code == 0
    assert [row["clientid"] for row in (await third.api.get("/clients")).data] == ["c1", "c3"]


async def test_a_client_without_a_stored_session_is_found_too(cluster: ClusterNodes) -> None:
    await cluster.managed_node(1).client("fleeting")
    api = cluster.managed_node(0).api
    assert (await api.get("/clients/fleeting")).data[0]["node"] == N2
    assert (await api.put("/clients/fleeting/keepalive", {"interval": 30})).code == 0
    assert (await api.get("/clients/fleeting")).data[0]["keepalive"] == 30


async def test_rules_and_rows_once_for_all(cluster: ClusterNodes) -> None:
    first, second = cluster.managed_node(0), cluster.managed_node(1)
    rule = {"id": "r1", "rawsql": 'SELECT * FROM "t"', "actions": [{"name": "do_nothing", "params": {}}]}
    assert (await first.api.post("/rules", rule)).code == 0

    async def everywhere() -> bool:
        return [each["node"] for each in (await second.api.get("/rules/r1")).data["metrics"]] == [N1, N2, N3]

    async def known() -> bool:
        return "r1" in second.engine.rules

    await until(known)
    await until(everywhere)
    assert (await second.api.post("/mqtt/publish", {"clientid": "x", "topic": "t", "payload": ""})).code == 0
    record = (await first.api.get("/rules/r1")).data
    assert [each["matched"] for each in record["metrics"]] == [0, 1, 0]
    assert [each["success"] for each in record["actions"][0]["metrics"]] == [0, 1, 0]
    assert (await second.api.post("/trace", {"name": "t1", "type": "topic", "topic": "t"})).code == 0

    async def traced() -> bool:
        rows = (await first.api.get("/trace")).data
        return bool(rows) and list(rows[0]["log_size"]) == [N1, N2, N3]

    await until(traced)
    assert (await first.api.delete("/trace/t1")).code == 0


async def test_a_stopped_node_and_one_that_hangs(cluster: ClusterNodes) -> None:
    first = cluster.managed_node(0)
    await cluster.managed_node(2).client("c3")
    await cluster.stop(2)

    async def stopped() -> bool:
        return (await statuses(first))[N3] == "Stopped"

    await until(stopped)
    reply = await first.api.get("/clients")
    assert reply.data == [] and "missing_nodes" not in reply.meta
    assert_refused(await first.api.get(f"/nodes/{N3}/stats"), 500, 101, N3)
    assert await done(first, "cluster", "status") == [
        f"Cluster status: #{{running_nodes => ['{N1}','{N2}'],stopped_nodes => ['{N3}']}}"
    ]
    said = await ctl(first, "cluster", "force-leave", N2)
    assert said.status == 1 and "Running" in said.out
    assert (await done(first, "cluster", "force-leave", N3))[0] == "Remove the node from cluster successfully."
    assert list(await statuses(first)) == [N1, N2]
    cluster.partition({0}, {1})
    reply = await first.api.get("/metrics")
    assert [row["node"] for row in reply.data] == [N1] and reply.meta == {"missing_nodes": [N2]}
    cluster.heal()

    async def both() -> bool:
        return "meta" not in (await first.api.get("/metrics")).json

    await until(both)


async def test_leave_and_join(cluster: ClusterNodes) -> None:
    first, second = cluster.managed_node(0), cluster.managed_node(1)
    await second.client("c2")
    assert (await done(second, "cluster", "leave"))[0] == "Leave the cluster successfully."

    async def gone() -> bool:
        return list(await statuses(first)) == [N1, N3]

    await until(gone)
    assert (await first.api.get("/clients")).data == []
    assert list(await statuses(second)) == [N2]
    assert [row["clientid"] for row in (await second.api.get("/clients")).data] == ["c2"]
    assert_refused(await second.api.get(f"/nodes/{N1}/stats"), 404, 102, N1)
    assert (await done(second, "cluster", "join", N1))[0] == "Join the cluster successfully."

    async def back() -> bool:
        return await statuses(first) == await statuses(second) == dict.fromkeys((N1, N2, N3), "Running")

    await until(back)
    assert [row["node"] for row in (await first.api.get("/clients")).data] == [N2]


async def test_without_a_quorum_nothing_is_retained_and_the_answer_is_that_of_every_refused_change(
    cluster: ClusterNodes,
) -> None:
    first = cluster.managed_node(0)
    cluster.partition({0, 1, 2}, quorum=None)

    async def without() -> bool:
        return not first.server.broker.retaining.changes.writable

    await until(without)
    message = {"clientid": "x", "topic": "t", "payload": "r", "retain": True, "qos": 1}
    assert_refused(await first.api.post("/mqtt/publish", message), 500, 101, "cluster.servers")
    cluster.heal()


async def force_out(cluster: ClusterNodes, number: int) -> None:
    """As an operator at the first node does, while the other is paused or cut off; then that goes on."""
    first, name = cluster.managed_node(0), cluster.name(number)
    for node in cluster.nodes.values():
        node.ignore(lambda record: "cluster_membership_lost" in record.getMessage())
    cluster.hub.disconnect(name)

    async def stopped() -> bool:
        return (await statuses(first))[name] == "Stopped"

    await until(stopped)
    await done(first, "cluster", "force-leave", name)
    cluster.hub.connect(name)


async def test_a_node_that_was_forced_out_while_it_ran_changes_nothing_for_the_others() -> None:
    async with cluster_nodes(2, managed=True, cluster=QUICK) as cluster:
        first, second = cluster.managed_node(0), cluster.managed_node(1)
        await first.client("theirs", expiry=60)
        before = {name: dict(bucket.last) for name, bucket in cluster.hub.buckets.items()}
        await force_out(cluster, 1)

        async def knows() -> bool:
            return "cluster_refused" in second.server.alarms.active

        await until(knows)
        user = {"login": "u", "password": "secret-1", "is_superuser": False}
        assert_refused(await second.api.post("/auth_user", user), 500, 101, "changed")
        retained = {"clientid": "x", "topic": "t", "payload": "r", "retain": True, "qos": 1}
        assert_refused(await second.api.post("/mqtt/publish", retained), 500, 101, "t")
        # Its own clients are served; one whose session another node has is not, and that session stays.
        await second.client("own", expiry=60)
        other = second.peer()
        connack = await other.connect("theirs", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=None)
        assert connack.reason_code == 0x88
        await cluster.wait_until_quiet()
        for name in ("rows", "retained", "sessions", "wills"):
            assert cluster.hub.buckets[name].last == before[name]
        assert (await first.api.get("/clients/theirs")).data[0]["node"] == N1
        assert (await first.api.get("/clients/own")).data == []
        said = (await done(second, "cluster", "status"))[-1]
        assert said.startswith(f"No member: {N2} was forced out of the cluster taipan")
        for words in (("leave",), ("join", N1)):
            said = await ctl(second, "cluster", *words)
            assert said.status == 1 and "was forced out" in said.out


async def test_a_schema_is_on_all_nodes(cluster: ClusterNodes) -> None:
    first, second = cluster.managed_node(0), cluster.managed_node(1)
    body = {"name": "reading", "parser_type": "json", "schema": '{"required": ["t"]}'}
    assert (await first.api.post("/schemas", body)).code == 0

    async def is_at_second() -> bool:
        return bool((await second.api.get("/schemas")).data)

    await until(is_at_second)
    codec = second.engine.schemas.codec("reading")
    assert codec.decode(b'{"t": 1}', None, Budget()) == {"t": 1}
    assert (await first.api.put("/schemas/reading", {"schema": '{"required": ["u"]}'})).code == 0

    async def is_changed() -> bool:
        return second.engine.schemas.codec("reading") is not codec

    await until(is_changed)
    assert second.engine.schemas.codec("reading").decode(b'{"u": 1}', None, Budget()) == {"u": 1}
    assert (await second.api.delete("/schemas/reading")).code == 0

    async def is_gone() -> bool:
        return "reading" not in first.engine.schemas

    await until(is_gone)
    with pytest.raises(ValueError, match="there is no schema reading"):
        first.engine.schemas.codec("reading")
