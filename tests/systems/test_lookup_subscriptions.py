"""Clients that connect are subscribed to what a database has for them, with real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from taipan.broker.core.exclusive import EXCLUSIVE_PREFIX
from taipan.ruleengine.actions.lookup_subscriptions import MAX_FOUND
from tests.support.api import ManagedNode, managed_node
from tests.support.peer import Peer
from tests.support.waiting import until
from tests.support.wire import Publish
from tests.systems.servers.redis import RedisServer
from tests.systems.servers.redis_groups import RedisClusterServers
from tests.systems.subscribers import (
    Database,
    MysqlDatabase,
    PostgresqlDatabase,
    RedisClusterDatabase,
    RedisDatabase,
)

pytestmark = pytest.mark.asyncio

ONE_SERVER = ["postgresql", "mysql", "redis"]
FAST = {"retry_backoff": 0.01, "retry_backoff_max": 0.05, "breaker_pause": 0.05, "liveness_interval": 0.05}


@pytest.fixture(scope="module")
def redis_process() -> Iterator[RedisServer]:
    made = RedisServer()
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster_processes() -> Iterator[RedisClusterServers]:
    made = RedisClusterServers()
    made.start()
    yield made
    made.close()


@pytest_asyncio.fixture(params=ONE_SERVER)
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    if request.param == "postgresql":
        yield PostgresqlDatabase(request.getfixturevalue("postgresql"))
    elif request.param == "mysql":
        yield MysqlDatabase(request.getfixturevalue("mariadb"))
    elif request.param == "redis":
        server = request.getfixturevalue("redis_process")
        if not server.runs:
            server.start()
        server.say("FLUSHALL")
        yield RedisDatabase(server)
    else:
        cluster = request.getfixturevalue("cluster_processes")
        cluster.start()
        cluster.flush()
        for each in cluster.proxies:
            await each.start()
        yield RedisClusterDatabase(cluster)
        for each in cluster.proxies:
            await each.stop()


@pytest_asyncio.fixture
async def node() -> AsyncIterator[ManagedNode]:
    async with managed_node(ruleengine=FAST) as made:
        yield made


def filters(node: ManagedNode, client_id: str) -> dict[str, int]:
    """The subscriptions of a client, with their QoS."""
    session = node.server.broker.sessions.get(client_id)
    return {} if session is None else {each.filter: each.qos for each in session.subscriptions.values()}


async def counted(node: ManagedNode, **wanted: int) -> dict[str, Any]:
    """The metrics of the action, once they are so."""
    async with asyncio.timeout(60):
        while True:
            (action,) = (await node.api.get("/rules/rule:lookup")).data["actions"]
            metrics = action["metrics"][0]
            if all(metrics[name] == value for name, value in wanted.items()):
                return dict(action)
            await asyncio.sleep(0.02)


async def got(peer: Peer, topic: str, payload: bytes) -> None:
    message = await peer.expect(Publish, topic=topic, payload=payload)
    if message.qos:
        await peer.puback(message.packet_id)


@pytest.mark.parametrize("database", [*ONE_SERVER, "redis-cluster"], indirect=True)
@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_that_connects_is_subscribed(node: ManagedNode, database: Database, version: int) -> None:
    database.put("porch", {"devices/porch/commands": 1, "all/#": 0})
    database.put("hall", {"devices/hall/commands": 2})
    await database.look_up(node)
    porch = await node.client("porch", version)
    await until(lambda: filters(node, "porch") == {"devices/porch/commands": 1, "all/#": 0})
    hall = await node.client("hall", version)
    await until(lambda: filters(node, "hall") == {"devices/hall/commands": 2})
    stranger = await node.client("stranger", version)
    await counted(node, success=3, failed=0)
    assert filters(node, "stranger") == {}
    await stranger.publish("devices/porch/commands", b"open", 1)
    await got(porch, "devices/porch/commands", b"open")
    await stranger.publish("all/x", b"hello", 1)
    await got(porch, "all/x", b"hello")
    await hall.nothing()


@pytest.mark.parametrize("version", [4, 5])
async def test_retained_messages_follow(node: ManagedNode, database: Database, version: int) -> None:
    database.put("porch", {"light": 1})
    publisher = await node.client("p", version)
    await publisher.publish("light", b"on", 1, retain=True)
    await database.look_up(node)
    for _ in range(2):  # a session that has the subscription already gets them, too
        porch = await node.client("porch", version, expiry=3600)
        message = await porch.expect(Publish, topic="light", payload=b"on")
        assert message.retain
        await porch.puback(message.packet_id)
        await porch.drop()


@pytest.mark.parametrize("access", [True, False])
async def test_access_rules_do_not_apply(database: Database, access: bool) -> None:
    """The operator decides, as for proxy subscriptions: what the client itself may not subscribe to."""
    database.put("porch", {"devices/porch/commands": 1})
    rules = [{"allow": False, "topics": ["devices/#"]}] if access else []
    async with managed_node(ruleengine=FAST, access={"rules": rules}) as node:
        await database.look_up(node)
        porch = await node.client("porch", 5)
        await until(lambda: filters(node, "porch") == {"devices/porch/commands": 1})
        session = node.server.broker.sessions.get("porch")
        assert session is not None
        assert [each.by_operator for each in session.subscriptions.values()] == [True]
        await porch.subscribe("devices/other", expect=[0x87 if access else 0])


@pytest.mark.parametrize("version", [4, 5])
async def test_rows_that_are_wrong_stop_no_others(node: ManagedNode, database: Database, version: int) -> None:
    database.put("porch", {"a/#/b": 1, "good": 1, "bad/qos": 3, "$share/g/jobs": 1})
    await database.look_up(node)
    await node.client("porch", version)
    action = await counted(node, failed=1, success=0)
    assert filters(node, "porch") == {"good": 1, "$share/g/jobs": 1}
    assert "2 of 4" in action["last_error"]["reason"]
    assert node.server.metrics.refusals.snapshot()["subscribe_topic_filter_invalid"] == 2
    status = (await node.api.get("/resources/resource:db")).data["status"][0]
    assert status["buffer"]["dead_letters"] == 0  # sending the request again would change nothing


async def test_an_exclusive_filter_that_another_client_has(database: Database) -> None:
    database.put("one", {EXCLUSIVE_PREFIX + "only": 1})
    database.put("two", {EXCLUSIVE_PREFIX + "only": 1})
    async with managed_node(ruleengine=FAST, zone={"exclusive_subscription": True}) as node:
        await database.look_up(node)
        await node.client("one", 5)
        await counted(node, success=1)
        assert filters(node, "one") == {EXCLUSIVE_PREFIX + "only": 1}
        await node.client("two", 5)
        action = await counted(node, failed=1)
        assert filters(node, "two") == {} and "another client" in action["last_error"]["reason"]


@pytest.mark.parametrize(
    "client_id",
    ["it's", 'with "quotes"', "a\\b", "x' or 'a'='a", "${clientid}", "%c", "ünï€🦎", "a b\tc", "--;/*"],
)
async def test_any_client_id_is_a_value(node: ManagedNode, database: Database, client_id: str) -> None:
    database.put(client_id, {"mine": 1})
    database.put("a", {"others": 1})
    await database.look_up(node)
    await node.client(client_id, 5)
    await until(lambda: filters(node, client_id) == {"mine": 1})


@pytest.mark.parametrize("client_id", ["PORCH", "porch ", "pörch"])
async def test_another_spelling_is_another_client(node: ManagedNode, database: Database, client_id: str) -> None:
    """MySQL compares without case and accents, and ignores spaces at the end."""
    database.put("porch", {"devices/porch/commands": 1})
    await database.look_up(node)
    await node.client(client_id, 5)
    await counted(node, success=1)
    assert filters(node, client_id) == {}


@pytest.mark.parametrize("version", [4, 5])
async def test_clients_wait_for_a_database_that_is_away(node: ManagedNode, database: Database, version: int) -> None:
    database.put("stays", {"t": 1})
    database.put("goes", {"t": 1})
    await database.look_up(node)
    await until(lambda: node.engine.resources.get("resource:db").alive)
    await asyncio.to_thread(database.server.stop)
    await node.client("stays", version)
    goes = await node.client("goes", version, expiry=3600)
    await goes.drop()
    await node.settled(1)
    await until(lambda: not node.engine.resources.get("resource:db").alive)
    assert filters(node, "stays") == {}
    await asyncio.to_thread(database.server.start)
    await until(lambda: filters(node, "stays") == {"t": 1})
    await counted(node, success=2, failed=0)
    assert filters(node, "goes") == {}  # it is looked up when it connects again
    await node.client("goes", version, expiry=3600)
    await until(lambda: filters(node, "goes") == {"t": 1})


async def test_a_client_that_disconnects_before_the_answer(node: ManagedNode, database: Database) -> None:
    database.put("goes", {"t": 1})
    await database.look_up(node)
    await until(lambda: node.engine.resources.get("resource:db").alive)
    database.server.pause()
    try:
        goes = await node.client("goes", 5, expiry=3600)
        await asyncio.sleep(0.1)
        await goes.drop()
        await node.settled(0)
    finally:
        database.server.resume()
    await counted(node, success=1, failed=0)
    assert filters(node, "goes") == {}


async def test_a_query_that_fails_is_a_dead_letter(node: ManagedNode, database: Database) -> None:
    """It says why, and can be sent again."""
    database.spoil("porch")
    await database.look_up(node)
    await node.client("porch", 5)
    action = await counted(node, failed=1)
    assert database.refused in action["last_error"]["reason"]
    database.repair("porch")
    database.put("porch", {"t": 1})
    assert len((await node.api.get("/resources/resource:db/dead_letters")).data) == 1
    assert (await node.api.post("/resources/resource:db/dead_letters", {})).code == 0
    await until(lambda: filters(node, "porch") == {"t": 1})


async def test_more_rows_than_are_read(node: ManagedNode, database: Database) -> None:
    database.put("porch", {f"t/{number:05}": 0 for number in range(MAX_FOUND + 5)})
    await database.look_up(node)
    await node.client("porch", 5)
    action = await counted(node, failed=1)
    assert f"more than {MAX_FOUND}" in action["last_error"]["reason"]
    assert len(filters(node, "porch")) == MAX_FOUND


async def test_the_limit_of_the_zone(database: Database) -> None:
    database.put("porch", {"a": 0, "b": 0, "c": 0})
    async with managed_node(ruleengine=FAST, zone={"max_subscriptions": 2}) as node:
        await database.look_up(node)
        await node.client("porch", 5)
        action = await counted(node, failed=1)
        assert sorted(filters(node, "porch")) == ["a", "b"]
        assert "max_subscriptions" in action["last_error"]["reason"]


async def test_another_event_fails(node: ManagedNode, database: Database) -> None:
    await database.look_up(node)
    reply = await node.api.put("/rules/rule:lookup", {"rawsql": 'SELECT * FROM "t"'})
    assert reply.code == 0, reply.text
    publisher = await node.client("p", 5)
    await publisher.publish("t", b"", 1)
    action = await counted(node, failed=1)
    assert "$events/client_connected" in action["last_error"]["reason"]


async def test_requests_are_not_on_disk(database: Database) -> None:
    async with managed_node(ruleengine=FAST, durability={"level": "disk"}) as node:
        await database.look_up(node)
        await until(lambda: node.engine.resources.get("resource:db").alive)
        await asyncio.to_thread(database.server.stop)
        await node.client("porch", 5)
        await until(lambda: node.engine.buffers.total == 1)
        assert len(node.engine.buffers._table) == 0
        await asyncio.to_thread(database.server.start)
        await counted(node, success=1)
