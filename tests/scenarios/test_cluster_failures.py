"""What a cluster does when something breaks: a test for each event, with clients of 3.1.1 and of 5.0."""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.channel import undecided
from taipan.broker.cluster.nats.interface import NatsRefused
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.shared import retained
from taipan.broker.core.cluster import RUNNING, STOPPED, SUSPECT
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Will
from taipan.broker.mqtt.reason_codes import (
    QUOTA_EXCEEDED,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
    SUCCESS,
    USE_ANOTHER_SERVER,
)
from tests.support.api import assert_refused
from tests.support.cluster_nodes import ClusterNodes, cluster_nodes
from tests.support.nats_credentials import KINDS, nats_credentials
from tests.support.nats_server import NatsServers
from tests.support.node import Node, free_port, make_settings
from tests.support.peer import Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

VERSIONS = (4, 5)
QUICK = {
    "suspect_after": 2.0,
    "stopped_after": 3.0,
    "takeover_timeout": 2.0,
    "takeover": "fresh",
    "strict_subscribe": True,
}
NOT_AVAILABLE = {4: 3, 5: SERVER_UNAVAILABLE}
"""What CONNACK has for it in 3.1.1 and in 5.0."""


def statuses(node: Node) -> dict[str, str]:
    return {each.name: each.status for each in node.server.cluster.members()}


def refused(node: Node, reason: str) -> int:
    """How often the node has counted it."""
    return node.server.metrics.refusals.snapshot().get(f"cluster_{reason}", 0)


def quick(directory: Path, count: int = 3, **options: Any) -> contextlib.AbstractAsyncContextManager[ClusterNodes]:
    """Nodes with stores on a virtual NATS, which see soon that one is gone."""
    cluster = {**QUICK, **options.pop("cluster", {})}
    return cluster_nodes(count, directory=directory, level="disk", cluster=cluster, **options)


async def until_stopped(cluster: ClusterNodes, number: int, *others: int) -> None:
    """Until these nodes take that one for Stopped."""
    name = cluster.name(number)
    await until(lambda: all(statuses(cluster[other]).get(name) == STOPPED for other in others))


async def payloads(peer: Peer, count: int) -> list[bytes]:
    """So many messages, acknowledged."""
    return [(await peer.expect_publish()).payload for _ in range(count)]


@asynccontextmanager
async def nodes_on(urls: list[str], directory: Path, count: int = 2, **cluster: Any) -> AsyncIterator[list[Node]]:
    """So many whole nodes on real NATS servers, which see each other."""
    nodes = []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(1, count + 1):
            data = {"name": f"n{number}@127.0.0.1", "data_dir": str(directory / f"n{number}")}
            table = {"servers": urls, "strict_subscribe": True, **cluster}
            nodes.append(Node(make_settings(node=data, cluster=table, durability={"level": "disk"})))
            Path(data["data_dir"]).mkdir()
            await nodes[-1].start()
            stack.push_async_callback(nodes[-1].stop)
        names = {node.settings.node.name: RUNNING for node in nodes}
        await until(lambda: all(statuses(node) == names for node in nodes))
        yield nodes


def write_configuration(directory: Path, name: str, cluster: dict[str, Any]) -> Path:
    """For the command ``taipan``."""
    (directory / name).mkdir()
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in cluster.items())
    file = directory / f"{name}.toml"
    file.write_text(
        f'[node]\nname = "{name}@127.0.0.1"\ndata_dir = "{directory / name}"\n'
        f'[[listeners]]\nname = "a"\ntype = "tcp"\nbind = "127.0.0.1:{free_port()}"\n'
        f'[management]\nbind = "127.0.0.1:0"\n[cluster]\n{table}\n'
    )
    return file


async def command(*arguments: str) -> tuple[int, str, str]:
    """Exit status and output of ``taipan``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "taipan.management.node", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def told(errors: str) -> list[str]:
    """The lines that are no line of the log."""
    return [line for line in errors.splitlines() if line.startswith("taipan: ")]


# ------------------------------------------------------------------------ nodes


async def test_a_node_dies(tmp_path: Path) -> None:
    """Its clients go elsewhere. What it owes is on its disk, what it is owed on the disks of the others; it comes back
    with its data, and everything flows, once."""
    async with quick(tmp_path) as cluster:
        for version in VERSIONS:
            for name, topic in (("stays", "t"), ("goes", "u")):
                client = await cluster[1].client(f"{name}-{version}", version, expiry=3600)
                await client.subscribe(topic, qos=2)
                await client.drop()
            far = await cluster[2].client(f"far-{version}", version, expiry=3600)
            await far.subscribe("far", qos=2)
            await far.drop()
        cluster.partition({0, 2}, {1})
        for version in VERSIONS:
            publisher = await cluster[1].client(f"p-{version}", version)
            for qos in (1, 2):
                assert await publisher.publish("far", b"owed by it, %d" % version, qos=qos, expect=SUCCESS) == SUCCESS
                await publisher.publish("u", b"queued, %d" % version, qos=qos)
        await cluster.kill(1)
        cluster.heal()
        await until_stopped(cluster, 1, 0, 2)
        assert f"node_down/{cluster.name(1)}" in cluster[0].server.alarms.active

        publishers = [await cluster[number].client(f"q-{number}") for number in (0, 2)]
        for number, publisher in zip((0, 2), publishers, strict=True):
            for qos in (1, 2):
                await publisher.publish("t", b"owed to it by %d" % number, qos=qos, expect=SUCCESS)
        gone = {}
        for version in VERSIONS:
            gone[version] = await cluster[0].client(f"goes-{version}", version, expiry=3600, session_present=False)
            await gone[version].subscribe("u", qos=2)
        await publishers[1].publish("u", b"live", qos=2)
        for client in gone.values():
            await client.expect_publish("u", b"live", 2)
        await cluster.kill(2)
        await cluster.start(2)

        await cluster.start(1)
        for version in VERSIONS:
            far = await cluster[2].client(f"far-{version}", version, expiry=3600, session_present=True)
            assert await payloads(far, 4) == [b"owed by it, 4"] * 2 + [b"owed by it, 5"] * 2
            stays = await cluster[1].client(f"stays-{version}", version, expiry=3600, session_present=True)
            found = await payloads(stays, 4)
            assert sorted(found) == [b"owed to it by 0"] * 2 + [b"owed to it by 2"] * 2
            assert await payloads(gone[version], 4) == [b"queued, 4"] * 2 + [b"queued, 5"] * 2
            await cluster.wait_until_quiet()
            for client in (far, stays, gone[version]):
                await client.nothing()
        for node in (cluster[0], cluster[2]):
            await until(lambda node=node: statuses(node)[cluster.name(1)] == RUNNING)
        assert not cluster[0].server.alarms.active


async def test_a_node_is_lost_for_good(tmp_path: Path) -> None:
    """force-leave ends its sessions, publishes their wills once and drops what was queued for it, with reasons; it may
    not come back with that data."""
    async with quick(tmp_path, cluster={"will_grace": 3600}) as cluster:
        watcher = await cluster[0].client("watcher")
        await watcher.subscribe("will/#", qos=1)
        for version in VERSIONS:
            will = Will(f"will/{version}", b"lost", 1)
            client = await cluster[1].client(f"c-{version}", version, expiry=3600, will=will)
            await client.subscribe("t", qos=1)
        await cluster.kill(1)
        await until_stopped(cluster, 1, 0, 2)
        publisher = await cluster[0].client("p")
        for number in range(3):
            await publisher.publish("t", b"%d" % number, qos=1, expect=SUCCESS)

        await watcher.nothing()
        await cluster[0].server.cluster.force_leave(cluster.name(1))
        assert {(await watcher.expect_publish(payload=b"lost")).topic for _ in VERSIONS} == {"will/4", "will/5"}
        left = {cluster.name(0): RUNNING, cluster.name(2): RUNNING}
        await until(lambda: statuses(cluster[0]) == left and statuses(cluster[2]) == left)
        await until(lambda: sum(refused(cluster[n], "session_of_removed_node") for n in (0, 2)) == len(VERSIONS))
        assert refused(cluster[0], "link_node_removed") == 3
        assert not cluster[0].server.alarms.active
        for version in VERSIONS:
            await cluster[2].client(f"c-{version}", version, expiry=3600, session_present=False)
        await cluster.wait_until_quiet()
        await watcher.nothing()
        with pytest.raises(NatsRefused, match=r"node.data_dir: .* was forced out of the cluster taipan"):
            await cluster.start(1)


# ------------------------------------------------------------------------- NATS


async def numbers(publisher: Peer, topic: str, first: int, last: int) -> None:
    """Publish these, the half of them with QoS 2."""
    for number in range(first, last):
        await publisher.publish(topic, b"%d" % number, qos=1 + number % 2, expect=SUCCESS)


async def retaining(node: Node, name: str, version: int) -> None:
    """Retain and clear by turns, until cancelled; each is acknowledged, which may wait for the servers' new leader."""
    client = await node.client(name, version)
    for number in itertools.count():
        qos = 1 + number // 2 % 2
        await client.publish(f"r/{name}/{number // 2}", b"" if number % 2 else b"x", qos=qos, retain=True)
        if number % 2 == 0:
            await client.publish(f"kept/{name}", b"%d" % number, qos=qos, retain=True)


async def test_one_nats_server_of_three_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is refused; a new session that outlives its connection, and the acknowledgement of a retained message,
    wait for the servers' new leader."""
    for module in (retained, undecided):
        monkeypatch.setattr(module, "ELECTION", 60.0)  # one that nobody wins is followed by another one
    longest = {"takeover_timeout": 19.0}  # an election that nobody wins is followed by another one
    async with NatsServers(3) as servers, nodes_on(list(servers.urls), tmp_path, 3, **longest) as nodes:
        pairs = []
        for version in VERSIONS:
            topic = f"t/{version}"
            subscriber = await nodes[version - 4].client(f"s-{version}", version, expiry=3600)
            await subscriber.subscribe(topic, qos=2)
            publisher = await nodes[2].client(f"p-{version}", 9 - version)
            pairs.append((topic, publisher, subscriber))
        retainers = [
            asyncio.create_task(retaining(node, f"r-{number}-{version}", version))
            for number, node in enumerate(nodes)
            for version in VERSIONS
        ]
        for victim, first in enumerate(range(0, 300, 100)):
            publishing = [
                asyncio.create_task(numbers(publisher, topic, first, first + 100)) for topic, publisher, _ in pairs
            ]
            await servers.until_whole()
            await servers[victim].kill()
            for version in VERSIONS:
                await nodes[1].client(f"new-{victim}-{version}", version, expiry=3600, session_present=False)
            await asyncio.gather(*publishing)
            for _, _, subscriber in pairs:
                assert await payloads(subscriber, 100) == [b"%d" % number for number in range(first, first + 100)]
            await servers[victim].start()
            await until(lambda: all(node.server.cluster.nats.quorum for node in nodes))
            assert not any(task.done() for task in retainers), [task for task in retainers if task.done()]
        for _, _, subscriber in pairs:
            await subscriber.nothing()
        for task in retainers:
            task.cancel()
        await asyncio.gather(*retainers, return_exceptions=True)
        await until(lambda: len(retained_of(nodes[0])) >= 6 and all_the_same(nodes))


def retained_of(node: Node) -> dict[str, bytes]:
    store = node.server.broker.retained
    found = {topic: store.get(topic) for topic in store.topics() if not topic.startswith("$SYS")}
    return {topic: message.payload for topic, message in found.items() if message is not None}


def all_the_same(nodes: list[Node]) -> bool:
    return all(retained_of(node) == retained_of(nodes[0]) for node in nodes)


async def test_no_quorum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish and deliver go on between nodes; changes of rows are refused with code 101; an alarm until it is over."""
    for module in (retained, undecided):
        monkeypatch.setattr(module, "ELECTION", 1.0)
    async with quick(tmp_path, 2, managed=True) as cluster:
        everybody = {cluster.name(number) for number in range(2)}
        api = cluster.managed_node(0).api
        clients = [
            (await cluster[0].client(f"s-{each}", each), await cluster[1].client(f"p-{each}", each))
            for each in VERSIONS
        ]
        for subscriber, _ in clients:
            await subscriber.subscribe("t", qos=2)
        cluster.hub.partition(everybody, quorum=None)
        await until(lambda: all("nats_no_quorum" in cluster[number].server.alarms.active for number in range(2)))
        for _, publisher in clients:
            for qos in range(3):
                await publisher.publish("t", b"%d" % qos, qos=qos)
        for subscriber, _ in clients:
            assert sorted(await payloads(subscriber, 6)) == [b"0", b"0", b"1", b"1", b"2", b"2"]
        assert await clients[1][1].publish("r", b"r", qos=1, retain=True, expect=QUOTA_EXCEEDED) == QUOTA_EXCEEDED
        user = {"username": "u", "password": "secret"}
        assert_refused(await api.post("/auth_username", user), 500, 101)
        assert statuses(cluster[0]) == dict.fromkeys(everybody, RUNNING)
        cluster.heal()
        await until(lambda: not any(cluster[number].server.alarms.active for number in range(2)))
        assert (await api.post("/auth_username", user)).code == 0
        assert (await cluster.managed_node(1).api.get("/auth_username/u")).data


class Isolated:
    """Two nodes that lose NATS, with clients of both versions on the first one."""

    def __init__(self, cluster: ClusterNodes) -> None:
        self.cluster = cluster
        self.near: list[Peer] = []
        self.publishers: dict[int, Peer] = {}

    async def begin(self) -> None:
        for version in VERSIONS:
            near = await self.cluster[0].client(f"near-{version}", version)
            await near.subscribe("near", qos=1)
            self.near.append(near)
            far = await self.cluster[1].client(f"far-{version}", version, expiry=3600)
            await far.subscribe("far", qos=1)
            await far.drop()
            self.publishers[version] = await self.cluster[0].client(f"p-{version}", version)
        self.cluster.hub.stop_server(0)
        await until(lambda: "nats_disconnected" in self.cluster[0].server.alarms.active)
        await until_stopped(self.cluster, 1, 0)
        seam = self.cluster[0].server.cluster
        assert isinstance(seam, NatsCluster)
        await until(lambda: seam.membership.isolated)

    async def serves_its_own(self) -> None:
        """Those who are connected talk to each other."""
        for publisher in self.publishers.values():
            await publisher.publish("near", b"near", qos=1)
        for near in self.near:
            assert await payloads(near, len(VERSIONS)) == [b"near"] * len(VERSIONS)

    async def refuses_new(self) -> None:
        for version in VERSIONS:
            for expiry in (0, 3600):
                await self.cluster[0].client(f"new-{version}", version, expiry=expiry, expect=NOT_AVAILABLE[version])

    async def end(self, owed: list[bytes]) -> None:
        """NATS is back."""
        self.cluster.hub.start_server(0)
        await self.cluster.wait_until_running()
        await until(lambda: self.cluster.clients[0].quorum)
        for version in VERSIONS:
            far = await self.cluster[1].client(f"far-{version}", version, expiry=3600, session_present=True)
            assert await payloads(far, len(owed)) == owed
            await self.cluster[0].client(f"new-{version}", version, expiry=3600)
        await until(lambda: not self.cluster[0].server.alarms.active)


@pytest.mark.parametrize("gone", [False, True], ids=["no_quorum", "nats_is_gone"])
async def test_a_node_that_starts_without_nats_or_a_quorum_listens_soon(tmp_path: Path, gone: bool) -> None:
    """It waits for nothing that only NATS could give, serves its own clients, and joins later."""
    settings = {"stopped_after": 600.0, "strict_subscribe": False}  # as long as a start would wait
    async with quick(tmp_path, 2, cluster=settings) as cluster:
        everybody = {cluster.name(number) for number in range(2)}
        await cluster.kill(0)
        if gone:
            cluster.hub.stop_server(0)
        else:
            cluster.hub.partition(everybody, quorum=None)
        await cluster.start(0)
        subscriber = await cluster[0].client("s")
        publisher = await cluster[0].client("p")
        await subscriber.subscribe("t", qos=1)
        await publisher.publish("t", b"1", qos=1)
        assert await payloads(subscriber, 1) == [b"1"]
        if gone:
            cluster.hub.start_server(0)
        else:
            await until(lambda: "nats_no_quorum" in cluster[0].server.alarms.active)
            cluster.hub.heal()
        await cluster.wait_until_running()
        await until(lambda: not cluster[0].server.alarms.active)


async def test_without_a_quorum_at_the_start_routes_are_not_known(tmp_path: Path) -> None:
    """Where only a node with the others may serve, nobody gets in until this one knows what is for them."""
    async with quick(tmp_path, 2, cluster={"isolated": "refuse_new"}) as cluster:
        await cluster.kill(0)
        cluster.hub.partition({cluster.name(number) for number in range(2)}, quorum=None)
        await cluster.start(0)
        await cluster[0].client("new", 5, expect=NOT_AVAILABLE[5])
        cluster.hub.heal()
        await cluster.wait_until_running()
        await cluster[0].client("new")


async def test_nats_is_gone_serve_local(tmp_path: Path) -> None:
    """A node serves its own clients, new ones too; what others are owed waits on its disk, within its bounds."""
    settings = {"isolated": "serve_local", "link_queue_messages": 4}
    async with quick(tmp_path, 2, cluster=settings) as cluster:
        isolated = Isolated(cluster)
        await isolated.begin()
        await isolated.serves_its_own()
        for version in VERSIONS:
            await cluster[0].client(f"new-{version}", version, expiry=3600, session_present=False)
        owed = [b"0", b"1", b"2", b"3"]
        for number, payload in enumerate(owed):
            await isolated.publishers[VERSIONS[number % 2]].publish("far", payload, qos=1, expect=SUCCESS)
        await isolated.publishers[5].publish("far", b"more", qos=1, expect=QUOTA_EXCEEDED)
        await isolated.serves_its_own()
        await isolated.end(owed)


async def test_nats_is_gone_refuse_new(tmp_path: Path) -> None:
    """Who is connected stays; nobody else gets in until NATS is back."""
    async with quick(tmp_path, 2, cluster={"isolated": "refuse_new"}) as cluster:
        isolated = Isolated(cluster)
        await isolated.begin()
        await isolated.refuses_new()
        await isolated.serves_its_own()
        await isolated.publishers[4].publish("far", b"owed", qos=1, expect=SUCCESS)
        await isolated.end([b"owed"])


async def test_nats_is_gone_close_all(tmp_path: Path) -> None:
    """Nobody is connected until NATS is back."""
    async with quick(tmp_path, 2, cluster={"isolated": "close_all"}) as cluster:
        isolated = Isolated(cluster)
        await isolated.begin()
        for client in (*isolated.near, *isolated.publishers.values()):
            await client.expect_disconnect(USE_ANOTHER_SERVER)
        await isolated.refuses_new()
        await isolated.end([])


async def test_partition(tmp_path: Path) -> None:
    """The minority changes no session keys and no rows and serves its clients; on healing links drain, and who got a
    session last keeps it."""
    async with quick(tmp_path, managed=True) as cluster:
        majority, minority = {}, {}
        for version in VERSIONS:
            majority[version] = await cluster[0].client(f"a-{version}", version, expiry=3600)
            minority[version] = await cluster[2].client(f"b-{version}", version, expiry=3600)
            for client in (majority[version], minority[version]):
                await client.subscribe("t", qos=1)
        publisher = await cluster[2].client("p")
        cluster.partition({0, 1}, {2})
        await until_stopped(cluster, 2, 0, 1)
        await until_stopped(cluster, 0, 2)
        await until_stopped(cluster, 1, 2)

        for version in VERSIONS:
            await cluster[2].client(f"a-{version}", version, expiry=3600, expect=NOT_AVAILABLE[version])
        user = {"username": "u", "password": "secret"}
        assert_refused(await cluster.managed_node(2).api.post("/auth_username", user), 500, 101)
        await publisher.publish("t", b"of the minority", qos=1, expect=SUCCESS)
        for version in VERSIONS:
            await minority[version].expect_publish("t", b"of the minority", 1)
            await majority[version].nothing()
        assert (await cluster.managed_node(0).api.post("/auth_username", user)).code == 0
        taken = {}
        for version in VERSIONS:
            taken[version] = await cluster[1].client(f"b-{version}", version, expiry=3600, session_present=False)
            await taken[version].subscribe("t", qos=1)

        cluster.heal()
        await cluster.wait_until_running()
        for version in VERSIONS:
            await minority[version].expect_disconnect(SESSION_TAKEN_OVER)
            await majority[version].expect_publish("t", b"of the minority", 1)
        await until(lambda: cluster[2].server.stored_users.get("username", "u") is not None)
        other = await cluster[0].client("q")
        await other.publish("t", b"healed", qos=1)
        for version in VERSIONS:
            await taken[version].expect_publish("t", b"healed", 1)
            await majority[version].expect_publish("t", b"healed", 1)
        owners = {cluster[number].server.cluster.node_of(f"b-{version}") for version in VERSIONS for number in (0, 2)}
        assert owners == {cluster.name(1)}
        await until(lambda: not any(cluster[number].server.alarms.active for number in range(3)))


# ----------------------------------------------------------------------- clocks


async def test_the_wall_clock_jumps(tmp_path: Path) -> None:
    """Nothing happens: nobody is missed, messages cross with their expiry, sessions move, the latest client stays."""
    async with quick(tmp_path, 2) as cluster:
        seen: list[str] = []
        peers = []
        for number in range(2):
            seam = cluster[number].server.cluster
            assert isinstance(seam, NatsCluster)
            seam.membership.on_change.append(lambda peer, before: seen.append(peer.status))
            peers += seam.membership.peers.values()
        days = 86_400.0 * 365
        for jumps in ((days, -days), (-days, days)):
            for number, jump in enumerate(jumps):
                cluster[number].clock.jump = jump
            for version in VERSIONS:
                subscriber = await cluster[0].client(f"s-{version}", version, expiry=3600)
                await subscriber.subscribe("t", qos=1)
            publisher = await cluster[1].client("p")
            await publisher.publish("t", b"live", qos=1, properties={c.MESSAGE_EXPIRY_INTERVAL: 60})
            for version in VERSIONS:
                moved = await cluster[1].client(f"s-{version}", version, expiry=3600, session_present=True)
                message = await moved.expect_publish("t", b"live", 1)
                if version == 5:
                    assert message.properties[c.MESSAGE_EXPIRY_INTERVAL] in (59, 60)
                again = await cluster[0].client(f"s-{version}", version, expiry=3600, session_present=True)
                await moved.expect_disconnect(SESSION_TAKEN_OVER)
                await again.nothing()
            for version in VERSIONS:
                old = await cluster[0].client(f"c-{version}", version)
                await cluster[1].client(f"c-{version}", version)
                await old.expect_disconnect(SESSION_TAKEN_OVER)
                new = await cluster[0].client(f"c-{version}", version)
                await new.nothing()
            two_heartbeats_on = asyncio.get_running_loop().time() + 1.5
            await until(lambda: all(peer.heard > two_heartbeats_on for peer in peers))  # noqa: B023
        assert SUSPECT not in seen and STOPPED not in seen


# ------------------------------------------------------------ names, credentials


async def test_two_nodes_of_one_name(tmp_path: Path) -> None:
    """The second does not start, and says where the first is; the first goes on."""
    async with NatsServers() as servers, nodes_on(list(servers.urls), tmp_path) as (first, other):
        clients = [await first.client("old", 4), await first.client("new", 5)]
        file = write_configuration(tmp_path, "second", {"servers": list(servers.urls)})
        status, _, errors = await command("--config", str(file), "--set", "node.name=n1@127.0.0.1")
        assert status == 1 and "Traceback" not in errors
        (line,) = told(errors)
        assert "node.name: another node named n1@127.0.0.1 runs already: host " in line and ", pid " in line
        for client in clients:
            await client.nothing()
        assert statuses(other) == {"n1@127.0.0.1": RUNNING, "n2@127.0.0.1": RUNNING}


@pytest.mark.parametrize("kind", KINDS)
async def test_credentials_of_nats(kind: str, tmp_path: Path) -> None:
    """The right ones make a cluster; with wrong ones a node does not start and says in one line which setting it is,
    and so does ``taipan check --connect``."""
    made = nats_credentials(kind, tmp_path)
    async with NatsServers(more=f"max_payload: 4MB\n{made.server}") as servers:
        urls = made.urls(servers)
        async with nodes_on(urls, tmp_path, **made.right) as nodes:
            assert not [name for node in nodes for name in node.server.alarms.active]
        right = write_configuration(tmp_path, "right", {"servers": urls, **made.right})
        wrong = write_configuration(tmp_path, "wrong", {"servers": urls, **made.wrong})
        status, said, _ = await command("check", "--connect", str(right))
        assert status == 0 and "ok; NATS: " in said
        for arguments in (("check", "--connect", str(wrong)), ("--config", str(wrong))):
            status, _, errors = await command(*arguments)
            assert status == 1 and "Traceback" not in errors
            (line,) = told(errors)
            assert line.removeprefix("taipan: ").removeprefix("cannot start: ").startswith(f"{made.setting}: ")
