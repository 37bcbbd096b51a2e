"""Logins from a master that sentinels name, and from a cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from taipan.broker.access.connection_trial import tried_sources
from taipan.broker.access.control import AccessControl
from taipan.broker.access.registry import ACCESS_SOURCES
from taipan.broker.access.remote import SourceFailed
from taipan.broker.access.remote_status import DOWN
from tests.broker.access.test_sources import client, control, decision, log_in
from tests.support.patience import patience
from tests.support.waiting import until
from tests.systems.servers.redis import RedisServer
from tests.systems.servers.redis_groups import MASTER_NAME, RedisClusterServers, RedisSentinelServer

pytestmark = pytest.mark.asyncio

DECLARED = next(source for source in ACCESS_SOURCES if source.name == "redis")
USERS = 60


@asynccontextmanager
async def asked(**settings: Any) -> AsyncIterator[AccessControl]:
    access = control({"redis": {"password": RedisServer.password, "super_cmd": "", **settings}}, DECLARED)
    access.start()
    try:
        yield access
    finally:
        await access.stop()


async def accepted(access: AccessControl, name: str = "ann") -> bool:
    return (await log_in(access, client(name), b"right")).reason_code == 0


async def eventually(true: Callable[[], Any]) -> None:
    while not await true():
        await asyncio.sleep(0.05)


# ------------------------------------------------------------------ sentinel


async def test_logins_follow_the_master() -> None:
    """A master is killed, and the sentinel promotes its replica."""
    master, replica = RedisServer(), RedisServer()
    replica.settings |= {"replicaof": f"127.0.0.1 {master.port}", "masterauth": master.password}
    watcher = RedisSentinelServer(master.port, master.password)
    try:
        for each in (master, replica):
            each.start()
        await until(lambda: "master_link_status:up" in replica.tell("INFO", "replication"))
        master.say("HSET", "mqtt_user:ann", "password", "right")
        master.say("HSET", "mqtt_acl:ann", "open", "3")
        await until(lambda: replica.tell("EXISTS", "mqtt_acl:ann") == 1)
        watcher.start()
        of_sentinel = {"type": "sentinel", "sentinel": MASTER_NAME, "server": f"127.0.0.1:1,{watcher.address}"}
        async with asked(**of_sentinel, connect_timeout=1.0) as access:
            assert await tried_sources(access.settings) == {"redis": ""}
            assert await accepted(access)
            assert (await decision(access, client(), "open")).ignored  # it has not proved who it is
            who = client()
            await log_in(access, who, b"right")
            assert (await decision(access, who, "open")).allowed
            assert not (await decision(access, who, "shut")).allowed
            await until(lambda: watcher.master["num-slaves"] == "1")
            master.kill()
            assert (await log_in(access, client(), b"right")).reason_code == 0x88
            watcher.fail_over()
            await eventually(lambda: accepted(access))
        async with asked(**{**of_sentinel, "sentinel": "other"}) as access:
            refused = await log_in(access, client(), b"right")
            assert (refused.reason_code, refused.detail) == (0x88, "redis_no_connection")
            (told,) = (await tried_sources(access.settings)).values()
            assert told
    finally:
        for each in (master, replica, watcher):
            each.close()


# ------------------------------------------------------------------- cluster


@pytest.fixture(scope="module")
def cluster_processes() -> Iterator[RedisClusterServers]:
    made = RedisClusterServers()
    made.start()
    yield made
    made.close()


@pytest_asyncio.fixture
async def cluster(cluster_processes: RedisClusterServers) -> AsyncIterator[RedisClusterServers]:
    """Users ``u0``, ``u1`` and so on, on all nodes."""
    cluster_processes.start()
    cluster_processes.flush()
    try:
        for proxy in cluster_processes.proxies:
            await proxy.start()
        async with asked(type="cluster", server=cluster_processes.address) as access:
            servers: Any = access.sources["redis"]
            for number in range(USERS):
                # By the source's own way to a node, which the logins of the tests then prove.
                await until_asked(servers._servers, b"HSET", b"mqtt_user:u%d" % number, b"password", b"right")
        yield cluster_processes
    finally:
        for proxy in cluster_processes.proxies:
            await proxy.stop()


async def until_asked(servers: Any, *words: bytes) -> None:
    """The nodes may not agree yet about the slots that an earlier test has moved."""
    async with asyncio.timeout(patience(20)):
        while True:
            try:
                await servers.ask(list(words))
                return
            except SourceFailed:
                await asyncio.sleep(0.05)


async def test_users_on_all_nodes(cluster: RedisClusterServers) -> None:
    sizes = [each.tell("DBSIZE") for each in cluster.servers]
    assert sum(sizes) == USERS and min(sizes) > 5
    async with asked(type="cluster", server=cluster.address) as access:
        assert await tried_sources(access.settings) == {"redis": ""}
        told = await asyncio.gather(*(accepted(access, f"u{number}") for number in range(USERS)))
        assert told == [True] * USERS
        assert (await log_in(access, client("u1"), b"wrong")).reason_code == 0x86
        assert (await log_in(access, client("nobody"), b"right")).detail == "no_source_knows_it"


async def test_a_user_whose_slot_moves(cluster: RedisClusterServers) -> None:
    """While it moves, its key is asked for at the new node; then the node learns the slots again."""
    first, second, third = cluster.servers
    ids = {each: each.tell("CLUSTER", "MYID") for each in cluster.servers}
    async with asked(type="cluster", server=cluster.address) as access:
        slots = {f"u{n}": first.tell("CLUSTER", "KEYSLOT", f"mqtt_user:u{n}") for n in range(USERS)}
        name, slot = min(slots.items(), key=lambda each: each[1])  # of the first node
        assert await accepted(access, name)
        try:
            second.say("CLUSTER", "SETSLOT", str(slot), "IMPORTING", ids[first])
            first.say("CLUSTER", "SETSLOT", str(slot), "MIGRATING", ids[second])
            first.say("MIGRATE", "127.0.0.1", str(second.port), f"mqtt_user:{name}", "0", "5000",
                      "AUTH", first.password)  # fmt: skip
            assert await accepted(access, name)  # ASK
            for each in (second, first, third):
                each.say("CLUSTER", "SETSLOT", str(slot), "NODE", ids[second])
            assert await accepted(access, name)  # MOVED
            assert await accepted(access, name)
            assert access.sources["redis"].status.failed == 0  # type: ignore[attr-defined]
        finally:
            cluster.flush()
            for each in (first, second, third):
                each.say("CLUSTER", "SETSLOT", str(slot), "NODE", ids[first])


async def test_a_node_of_the_cluster_that_is_away(cluster: RedisClusterServers) -> None:
    """Its users are refused, as if Redis were away; the others log in."""
    last = cluster.servers[2]
    for each in cluster.servers:
        each.say("CONFIG", "SET", "cluster-require-full-coverage", "no")
    async with asked(type="cluster", server=cluster.address, timeout=2.0, connect_timeout=1.0) as access:
        assert await accepted(access, "u0")
        mine: dict[bool, list[str]] = {True: [], False: []}
        for number in range(USERS):
            slot = last.tell("CLUSTER", "KEYSLOT", f"mqtt_user:u{number}")
            mine[slot >= 10_923].append(f"u{number}")
        last.kill()
        for name, other in zip(mine[True][:3], mine[False][:3], strict=True):
            assert (await log_in(access, client(name), b"right")).reason_code == 0x88
            assert await accepted(access, other)
        last.start()
        await eventually(lambda: accepted(access, mine[True][0]))


async def test_a_cluster_that_is_away_at_the_start(cluster: RedisClusterServers) -> None:
    for proxy in cluster.proxies:
        await proxy.stop()
    async with asked(type="cluster", server=cluster.address) as access:
        source: Any = access.sources["redis"]
        await until(lambda: source.status.word == DOWN)
        assert not await accepted(access, "u0")
        for proxy in cluster.proxies:
            await proxy.start()
        await eventually(lambda: accepted(access, "u0"))


@pytest.mark.parametrize(
    "settings, fault",
    [
        ({"server": "a:1,b:2"}, "several servers"),
        ({"type": "sentinel", "server": "a:1"}, "sentinel"),
        ({"sentinel": "m"}, 'set type = "sentinel"'),
        ({"type": "cluster", "server": "a:1,b:2", "sentinel": "m"}, 'set type = "sentinel"'),
        ({"type": "cluster", "server": "a:1,b:2", "database": 1}, "only the database 0"),
    ],
)
async def test_settings_that_do_not_fit(settings: dict[str, Any], fault: str) -> None:
    table = msgspec.convert(settings, DECLARED.settings)  # type: ignore[type-var]
    assert [each for each in DECLARED.faults(table) if fault in str(each)]
