"""Commands to Redis, with real servers: one, a master with a replica and a sentinel, and a cluster of three masters."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from taipan.ruleengine.params import ParamError
from taipan.ruleengine.resources.resource import ResourceError
from taipan.ruleengine.sinks.redis import action, resource
from tests.ruleengine.sinks.contract import *  # noqa: F403
from tests.ruleengine.sinks.other_sides import OtherSide
from tests.support.certificates import Certificates
from tests.support.cutting_proxy import CuttingProxy
from tests.support.fake_engine import FakeEngine, FakeReport, published
from tests.support.waiting import until
from tests.systems.contract import *  # noqa: F403
from tests.systems.contract import System, killed_and_restarted
from tests.systems.servers.redis import RedisServer
from tests.systems.servers.redis_groups import MASTER_NAME, RedisClusterServers, RedisSentinelServer

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def process() -> Iterator[RedisServer]:
    made = RedisServer()
    made.start()
    yield made
    made.close()


@pytest.fixture
def server(process: RedisServer) -> RedisServer:
    """It runs, and is empty."""
    if not process.runs:
        process.start()
    process.say("FLUSHALL")
    return process


@pytest.fixture(scope="module")
def proxy(process: RedisServer) -> CuttingProxy:
    """Where the sentinel finds the server."""
    return CuttingProxy(process.port)


@pytest.fixture(scope="module")
def sentinel(proxy: CuttingProxy) -> Iterator[RedisSentinelServer]:
    made = RedisSentinelServer(proxy.port, RedisServer.password)
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def cluster_processes() -> Iterator[RedisClusterServers]:
    made = RedisClusterServers()
    made.start()
    yield made
    made.close()


@pytest_asyncio.fixture
async def cluster(cluster_processes: RedisClusterServers) -> AsyncIterator[RedisClusterServers]:
    """It can be reached, and is empty."""
    cluster_processes.start()
    cluster_processes.flush()
    for each in cluster_processes.proxies:
        await each.start()
    yield cluster_processes
    for each in cluster_processes.proxies:
        await each.stop()


class SingleSide(OtherSide):
    action: ClassVar = "data_to_redis"
    params: ClassVar = {"cmd": "RPUSH taken ${n}", "batch_size": 7}
    address = "server"
    server: RedisServer

    def __init__(self) -> None:
        self.port = self.server.port
        self.server.stop()

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "password": self.server.password}

    async def start(self) -> None:
        self.server.start()

    async def stop(self) -> None:
        self.server.stop()

    def taken(self) -> list[int]:
        return [int(each) for each in self.server.tell("LRANGE", "taken", "0", "-1")] if self.server.runs else []


class SentinelSide(SingleSide):
    """The server is away when the proxy is."""

    address = "servers"
    sentinel: RedisSentinelServer
    proxy: CuttingProxy

    def __init__(self) -> None:
        self.port = self.sentinel.port

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "sentinel": MASTER_NAME}

    async def start(self) -> None:
        await self.proxy.start()

    async def stop(self) -> None:
        await self.proxy.stop()

    async def proxies(self) -> list[CuttingProxy]:
        return [self.proxy]


class ClusterSide(OtherSide):
    """The cluster is away when the proxies are. The rows of a client are in a list on one of the nodes."""

    action: ClassVar = "data_to_redis"
    params: ClassVar = {"cmd": "RPUSH ${client} ${n}", "batch_size": 7}
    address = "servers"
    cluster: RedisClusterServers

    def __init__(self) -> None:
        self.port = self.cluster.proxies[0].port

    def config(self, host: str = "127.0.0.1") -> dict[str, Any]:
        return {**super().config(host), "password": self.cluster.servers[0].password}

    async def start(self) -> None:
        for each in self.cluster.proxies:
            await each.start()

    async def stop(self) -> None:
        for each in self.cluster.proxies:
            await each.stop()

    async def proxies(self) -> list[CuttingProxy]:
        return self.cluster.proxies

    def taken(self) -> list[int]:
        found = []
        for each in self.cluster.servers:
            for key in each.tell("KEYS", "c*"):
                found += [int(number) for number in each.tell("LRANGE", key, "0", "-1")]
        return found


@pytest.fixture(scope="module")
def sides(
    process: RedisServer,
    proxy: CuttingProxy,
    sentinel: RedisSentinelServer,
    cluster_processes: RedisClusterServers,
) -> dict[str, type[OtherSide]]:
    SingleSide.server = process
    SentinelSide.sentinel = sentinel
    SentinelSide.proxy = proxy
    ClusterSide.cluster = cluster_processes
    return {
        "backend_redis_single": SingleSide, "backend_redis_sentinel": SentinelSide,
        "backend_redis_cluster": ClusterSide,
    }  # fmt: skip


@pytest.fixture(params=["backend_redis_single", "backend_redis_sentinel", "backend_redis_cluster"])
def kind(request: pytest.FixtureRequest, server: RedisServer, cluster_processes: RedisClusterServers) -> str:
    cluster_processes.flush()
    return str(request.param)


@pytest_asyncio.fixture
async def engine() -> Any:
    made = FakeEngine()
    yield made
    await made.close()


def run(engine: FakeEngine, server: RedisServer, **config: Any) -> Any:
    return engine.run(
        resource.SINGLE, **{"server": server.address, "password": server.password, "pool_size": 2, **config}
    )


def write(engine: FakeEngine, cmd: str, rows: list[dict[str, Any]], **params: Any) -> FakeReport:
    report = FakeReport()
    act = engine.action(action.TYPE, f"action_{next(_numbers)}", report, cmd=cmd, **params)
    for each in rows:
        act.run(each, published(client_id=str(each.get("c", "c1"))))
    return report


class RedisSystem(System):
    resource, action = resource.SINGLE, action.TYPE
    server: RedisServer

    def config(self) -> dict[str, Any]:
        return {"server": self.server.address, "password": self.server.password, "pool_size": 4}

    def params(self) -> dict[str, Any]:
        return {"cmd": "RPUSH ${c} ${n}", "batch_size": 20}

    without: ClassVar = {
        "bad row": "a list takes any text: test_a_batch_is_a_transaction_and_a_refused_row_concerns_no_other"
    }
    login_refused = "invalid username-password pair"

    def set_password(self, password: str) -> None:
        self.server.say("CONFIG", "SET", "requirepass", password)
        self.server.password = password
        self.server.disconnect()

    def harm(self, row: int) -> None:
        killed_and_restarted(self.server, row)

    async def written(self) -> list[tuple[str, int]]:
        lists = ((key, self.server.tell("LRANGE", key, "0", "-1")) for key in self.server.tell("KEYS", "c*"))
        return [(key, int(n)) for key, numbers in lists for n in numbers]


@pytest.fixture
def system(server: RedisServer) -> System:
    return RedisSystem(server)


async def done(report: FakeReport, count: int) -> None:
    await until(lambda: report.count >= count)
    assert report.count == count


@pytest.mark.asyncio
async def test_the_example_of_emqx(engine: FakeEngine, server: RedisServer) -> None:
    """As in its documentation. What is filled in stays in its word."""
    run(engine, server)
    cmd = (
        "HMSET mqtt:msg:${id} id ${id} from ${clientid} qos ${qos} topic ${topic} payload ${payload} retain ${retain}"
        " ts ${timestamp}"
    )
    row = {
        "id": "m 1", "clientid": "it's \"c\" 1", "qos": 1, "topic": "t/1", "payload": b"\xff\0\r\n 'x'",
        "retain": True, "timestamp": 1_700_000_000_123,
    }  # fmt: skip
    report = write(engine, cmd, [row, {"id": "m2", "payload": {"a": [1]}}])
    await done(report, 2)
    assert report.failures == []
    assert server.tell("HGET", "mqtt:msg:m 1", "from") == 'it\'s "c" 1'
    assert server.tell("STRLEN", "none") == 0
    assert server.tell("HSTRLEN", "mqtt:msg:m 1", "payload") == 8
    assert server.tell("HMGET", "mqtt:msg:m2", "payload", "qos", "retain") == ['{"a":[1]}', "undefined", "undefined"]
    assert server.tell("HMGET", "mqtt:msg:m 1", "qos", "retain", "ts") == ["1", "true", "1700000000123"]


@pytest.mark.parametrize("cmd, reason", [
    ("", "first word"), ("  ", "first word"), ("${payload}", "first word"), ("SUBSCRIBE a", "changes the connection"),
    ("multi", "changes the connection"), ("SET k ${a b}", "a placeholder cannot contain a space"),
])  # fmt: skip
def test_commands_that_are_refused(cmd: str, reason: str) -> None:
    with pytest.raises(ParamError, match=reason):
        FakeEngine().action(action.TYPE, cmd=cmd)


@pytest.mark.asyncio
async def test_a_batch_is_a_transaction_and_a_refused_row_concerns_no_other(
    engine: FakeEngine, server: RedisServer
) -> None:
    """One that is refused before, because it has too few words, and one that is refused on execution."""
    server.say("SET", "text", "x")
    made = run(engine, server)
    rows: list[dict[str, Any]] = [{"n": n, "k": "list"} for n in range(40)]
    rows[20]["k"] = "text"
    await done(write(engine, "PING", [{}]), 1)
    await until(lambda: made.alive)
    calls = server.tell("INFO", "commandstats")
    report = write(engine, "RPUSH ${k} ${n}", rows, batch_time=200)
    await done(report, 40)
    ((reason, row),) = report.failures
    assert "WRONGTYPE" in reason and row == rows[20]
    kept = [str(n) for n in range(40) if n != 20]
    assert server.tell("LRANGE", "list", "0", "-1") == kept
    assert _calls(server.tell("INFO", "commandstats"), "exec") - _calls(calls, "exec") == 1
    assert made.status.buffer.dead_letters == 1 and made.alive
    for params, count in (({"batch_size": 10}, 4), ({"enable_batch": False}, 0)):
        before = _calls(server.tell("INFO", "commandstats"), "exec")
        await done(write(engine, "RPUSH other ${n}", rows, batch_time=100, **params), 40)
        assert _calls(server.tell("INFO", "commandstats"), "exec") - before == count
    wrong = write(engine, "NOSUCH ${n}", rows[:3], batch_time=100)
    right = write(engine, "RPUSH other ${n}", rows[:3], batch_time=100)
    await done(wrong, 3)
    await done(right, 3)
    assert ["unknown command" in each[0] for each in wrong.failures] == [True] * 3 and right.failures == []


def _calls(info: str, command: str) -> int:
    line = next((each for each in info.splitlines() if each.startswith(f"cmdstat_{command}:")), "calls=0,")
    return int(line.partition("calls=")[2].partition(",")[0])


@pytest.mark.asyncio
async def test_rows_wait_for_memory_and_for_a_master(engine: FakeEngine, server: RedisServer) -> None:
    """Neither is the fault of a row. Commands after one that has to wait are not executed before it."""
    made = run(engine, server)
    for limit, word in (
        (("CONFIG", "SET", "maxmemory", "1"), "command not allowed"),
        (("REPLICAOF", "127.0.0.1", "1"), "read only replica"),
        (("CONFIG", "SET", "min-replicas-to-write", "1"), "NOREPLICAS"),
    ):
        server.say(*limit)
        report = write(engine, "RPUSH list ${n}", [{"n": n} for n in range(20)])
        await until(lambda word=word: word in made.status.buffer.last_error)
        assert report.count == 0
        server.say("CONFIG", "SET", "maxmemory", "0")
        server.say("CONFIG", "SET", "min-replicas-to-write", "0")
        server.say("REPLICAOF", "NO", "ONE")
        await done(report, 20)
        assert report.failures == []
        assert server.tell("LRANGE", "list", "0", "-1") == [str(n) for n in range(20)]
        server.say("DEL", "list")


@pytest.mark.asyncio
async def test_credentials(engine: FakeEngine, server: RedisServer) -> None:
    async def reason(**config: Any) -> str:
        trial = engine.make(
            resource.SINGLE, "trial", **{"server": server.address, "password": server.password, **config}
        )
        try:
            await trial.test()
        except ResourceError as error:
            return str(error)
        finally:
            await trial.close()
        return ""

    server.say("ACL", "SETUSER", "writer", "on", ">wr1ter", "~mine:*", "+@all", "-multi")
    assert await reason() == ""
    assert "invalid username-password pair" in await reason(password="wrong")
    assert "Authentication required" in await reason(password="")
    assert "DB index is out of range" in await reason(database=99)
    assert "may not use MULTI" in await reason(username="writer", password="wr1ter")
    server.say("ACL", "SETUSER", "writer", "+multi")
    assert await reason(username="writer", password="wr1ter") == ""
    # A key that a user may not write to concerns its row.
    run(engine, server, username="writer", password="wr1ter")
    report = write(engine, "SET ${k} 1", [{"k": "mine:1"}, {"k": "other"}, {"k": "mine:2"}], batch_time=50)
    await done(report, 3)
    assert [each[1] for each in report.failures] == [{"k": "other"}] and "no permissions" in report.failures[0][0]
    assert server.tell("MGET", "mine:1", "mine:2") == ["1", "1"]


@pytest.mark.asyncio
async def test_auto_reconnect(engine: FakeEngine, server: RedisServer) -> None:
    made = run(engine, server, auto_reconnect=False)
    await done(write(engine, "RPUSH list ${n}", [{"n": 1}]), 1)
    server.restart()
    report = write(engine, "RPUSH list ${n}", [{"n": 2}])
    await until(lambda: "auto_reconnect" in made.status.reason)
    assert report.count == 0 and not made.alive
    await made.close()
    run(engine, server, auto_reconnect=False)
    await until(lambda: server.tell("LRANGE", "list", "0", "-1") == ["1", "2"])


@pytest.mark.asyncio
async def test_database_and_pool_size(engine: FakeEngine, server: RedisServer) -> None:
    """Rows of different clients share connections."""
    run(engine, server, database=3, pool_size=3)
    report = write(engine, "SET ${c} 1", [{"c": f"c{n}"} for n in range(100)], batch_size=5)
    await done(report, 100)
    listed = server.tell("CLIENT", "LIST").splitlines()
    assert len([each for each in listed if " db=3 " in each]) == 4  # and the one that checks it
    assert server.tell("DBSIZE") == 0


@pytest.mark.asyncio
async def test_tls(engine: FakeEngine, server: RedisServer, tmp_path: Path) -> None:
    secured = Certificates(tmp_path)
    authority = {"filename": "ca.pem", "file": Path(secured.ca).read_text()}

    async def reason(**config: Any) -> str:
        trial = engine.make(
            resource.SINGLE, "trial", server=server.address, password=server.password, ssl=True, **config
        )
        try:
            await trial.test()
        except ResourceError as error:
            return str(error)
        finally:
            await trial.close()
        return ""

    assert await reason(connect_timeout="300ms")
    try:
        server.tls(*secured.issue("redis.example"))
        server.restart()
        assert await reason() == ""
        server.settings |= {"tls-auth-clients": "yes", "tls-ca-cert-file": str(server.give("ca.pem", secured.ca))}
        server.restart()
        assert await reason(connect_timeout="300ms")
        mine = secured.issue("client")
        assert await reason(certfile=mine[0], keyfile={"filename": "k", "file": Path(mine[1]).read_text()}) == ""
        server.settings["tls-auth-clients"] = "no"
        server.restart()
        assert "CERTIFICATE_VERIFY_FAILED" in await reason(verify=True)
        assert "match" in await reason(verify=True, cacertfile=authority)
        assert await reason(verify=True, cacertfile=authority, server_name_indication="redis.example") == ""
        assert await reason(verify=True, cacertfile=authority, server_name_indication="disable") == ""
        server.tls(*secured.issue("late.example", expired=True))
        server.restart()
        assert "expired" in await reason(verify=True, cacertfile=authority, server_name_indication="late.example")
    finally:
        server.settings.clear()
        server.restart()


# ------------------------------------------------------------------ sentinel


@pytest.mark.asyncio
async def test_rows_follow_the_master(engine: FakeEngine) -> None:
    """A master is killed, and the sentinel promotes its replica."""
    master, replica = RedisServer(), RedisServer()
    replica.settings |= {"replicaof": f"127.0.0.1 {master.port}", "masterauth": master.password}
    watcher = RedisSentinelServer(master.port, master.password)
    try:
        for each in (master, replica):
            each.start()
        await until(lambda: "master_link_status:up" in replica.tell("INFO", "replication"))
        await until(lambda: f"port={replica.port}" in master.tell("INFO", "replication"))
        watcher.start()
        config = {"servers": watcher.address, "sentinel": MASTER_NAME, "password": master.password}
        made = engine.run(resource.SENTINEL, **config)
        await done(write(engine, "RPUSH list ${n}", [{"n": n} for n in range(10)]), 10)
        await until(lambda: replica.tell("LLEN", "list") == 10)
        trial = engine.make(resource.SENTINEL, "trial", **{**config, "sentinel": "other"})
        with pytest.raises(ResourceError, match="no master with the name other"):
            await trial.test()
        await until(lambda: watcher.master["num-slaves"] == "1")
        master.kill()
        report = write(engine, "RPUSH list ${n}", [{"n": n} for n in range(10, 20)])
        await until(lambda: not made.alive)
        watcher.fail_over()
        await done(report, 10)
        assert report.failures == []
        assert replica.tell("LRANGE", "list", "0", "-1") == [str(n) for n in range(20)]
    finally:
        for each in (master, replica, watcher):
            each.close()


# ------------------------------------------------------------------- cluster


@pytest.mark.asyncio
async def test_slots(engine: FakeEngine, cluster: RedisClusterServers) -> None:
    """Keys on all nodes, commands without a key, a key that is not the first word, and two keys in different slots."""
    password = cluster.servers[0].password
    made = engine.run(resource.CLUSTER, servers=cluster.address, password=password)
    report = write(engine, "SET k${n} ${n}", [{"n": n} for n in range(200)])
    await done(report, 200)
    assert report.failures == [] and made.alive
    sizes = [each.tell("DBSIZE") for each in cluster.servers]
    assert sum(sizes) == 200 and min(sizes) > 30
    await done(write(engine, "PUBLISH channel ${n}", [{"n": 1}]), 1)
    streams = write(engine, "XGROUP CREATE s${n} g $ MKSTREAM", [{"n": n} for n in range(20)])
    await done(streams, 20)
    assert streams.failures == []
    assert sum(each.tell("DBSIZE") for each in cluster.servers) == 220
    two = write(engine, "MSET a${n} 1 b${n} 2", [{"n": 1}])
    await done(two, 1)
    assert "CROSSSLOT" in two.failures[0][0].upper() or "hash to the same slot" in two.failures[0][0]


@pytest.mark.asyncio
async def test_rows_follow_a_slot(engine: FakeEngine, cluster: RedisClusterServers) -> None:
    first, second = cluster.servers[:2]
    engine.run(resource.CLUSTER, servers=cluster.address, password=first.password)
    await done(write(engine, "RPUSH {b}list ${n}", [{"n": n} for n in range(10)]), 10)
    slot = str(first.tell("CLUSTER", "KEYSLOT", "b"))
    owner = first if first.tell("DBSIZE") else second
    assert owner is first  # the slot of b is 3300
    ids = {each: each.tell("CLUSTER", "MYID") for each in (first, second)}
    try:
        second.say("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[first])
        first.say("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[second])
        first.say("MIGRATE", "127.0.0.1", str(second.port), "{b}list", "0", "5000", "AUTH", first.password)
        report = write(engine, "RPUSH {b}list ${n}", [{"n": n} for n in range(10, 20)])
        await asyncio.sleep(0)
        for each in (second, first, cluster.servers[2]):
            each.say("CLUSTER", "SETSLOT", slot, "NODE", ids[second])
        await done(report, 10)
        assert report.failures == []
        assert second.tell("LRANGE", "{b}list", "0", "-1") == [str(n) for n in range(20)]
    finally:
        cluster.flush()
        for each in (first, second, cluster.servers[2]):
            each.say("CLUSTER", "SETSLOT", slot, "NODE", ids[first])


@pytest.mark.asyncio
async def test_a_node_of_the_cluster_that_is_away(engine: FakeEngine, cluster: RedisClusterServers) -> None:
    """Only the rows of its slots wait."""
    last = cluster.servers[2]
    for each in cluster.servers:
        each.say("CONFIG", "SET", "cluster-require-full-coverage", "no")
    engine.run(resource.CLUSTER, servers=cluster.address, password=last.password, connect_timeout="500ms")
    await done(write(engine, "SET k${n} 1", [{"n": 0}]), 1)
    last.kill()
    report = write(engine, "RPUSH k${n} 1", [{"n": n} for n in range(1, 60)])
    await until(lambda: report.successes >= 30)
    assert report.count < 59
    last.start()
    await done(report, 59)
    assert report.failures == []


def test_a_cluster_has_one_database() -> None:
    with pytest.raises(ParamError, match="database"):
        FakeEngine().make(resource.CLUSTER, servers="127.0.0.1:1", database=1)
