"""A node of a cluster is killed and its disk deleted: what it had acknowledged is served by the others."""

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.cluster_processes import PROGRAM, ClusterProcesses
from tests.support.http_sink import HttpSink
from tests.support.peer import Peer
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

EXPIRY = {c.SESSION_EXPIRY_INTERVAL: 3600}
QUICK = "replicas = 1\nsuspect_after = 2\nstopped_after = 3\nfailover_after = 3\nwill_grace = 2"
VERSIONS = (4, 5)


async def ctl(directory: Path, *words: str) -> Any:
    """What ``taipan-ctl --json`` of a node prints."""
    program = str(PROGRAM.with_name("taipan-ctl"))
    arguments = ("--data-dir", str(directory), "--json", *words)
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0, said
    return json.loads(said)


async def until_copied(directory: Path, count: int) -> dict[str, str]:
    """Until each node has its copy; return the nodes that have the copies, by origin."""
    while True:
        found = await ctl(directory, "cluster", "replicas")
        complete = {each["node"]: each["copy"] for each in found["copies"] if each["state"] == "in_sync"}
        if len(complete) == count:
            return complete
        await asyncio.sleep(0.1)


async def connected(peer: Peer, client_id: str, session_present: bool) -> Peer:
    properties = EXPIRY if peer.version == 5 else {}
    await peer.connect(client_id, clean_start=False, properties=properties, session_present=session_present)
    return peer


async def test_a_node_is_killed_and_its_data_deleted(tmp_path: Path) -> None:
    """A subscriber that was away gets from another node, in order and once, all that was acknowledged."""
    async with ClusterProcesses(3, tmp_path, QUICK) as cluster:
        lost = cluster[1].name
        host = (await until_copied(tmp_path / "n1", 3))[lost]
        peers = []
        for version in VERSIONS:
            peer = await connected(Peer(cluster[1].tcp, version), f"away-{version}", False)
            await peer.subscribe(f"t/{version}", qos=2)
            await peer.drop()
        near, far = Peer(cluster[1].tcp, 5), Peer(cluster[0].tcp, 4)
        for name, publisher in (("near", near), ("far", far)):
            await publisher.connect(name)
        for number in range(0, 40, 2):
            for version in VERSIONS:
                await near.publish(f"t/{version}", b"near %d" % number, qos=1 + number // 2 % 2)
                await far.publish(f"t/{version}", b"far %d" % number, qos=1 + number // 2 % 2)
        await near.publish("$delayed/15/t/5", b"delayed", qos=1)

        cluster[1].process.send_signal(signal.SIGKILL)
        await cluster[1].process.wait()
        shutil.rmtree(tmp_path / "n2")
        for version in VERSIONS:
            await far.publish(f"t/{version}", b"far 40", qos=2)
        for version in VERSIONS:
            while True:
                peer = Peer(cluster[2].tcp, version)
                try:
                    await connected(peer, f"away-{version}", True)
                    break
                except AssertionError:  # refused: the node of the session does not run yet
                    await peer.close()
            peers.append(peer)
            found = [(await peer.expect_publish()).payload for _ in range(41)]
            for publisher_name in (b"near", b"far"):
                own = [payload for payload in found if payload.startswith(publisher_name)]
                last = 42 if publisher_name == b"far" else 40
                assert own == [b"%s %d" % (publisher_name, number) for number in range(0, last, 2)]

        nodes = {each["node"]: each for each in await cluster.ask(0, "/nodes")}
        assert (nodes[lost]["node_status"], nodes[lost]["hosted_by"]) == ("Running", host)
        assert "hosted_by" not in nodes[host]
        (listed,) = nodes[host]["hosts"]
        assert (listed["node"], listed["owed"]) == (lost, {"delayed": 1}) and listed["since"]
        status = await ctl(tmp_path / "n1", "cluster", "status")
        assert lost in status["running_nodes"] and status["hosted_nodes"] == {lost: host}
        (hosted,) = (await ctl(tmp_path / "n3", "cluster", "replicas"))["hosted"]
        assert (hosted["node"], hosted["host"], hosted["owed"]) == (lost, host, {"delayed": 1})
        evacuation = await ctl(tmp_path / f"n{host[1]}", "cluster", "evacuation", "status")
        assert (evacuation["delayed"], evacuation["hosted"]) == (1, {lost: {"delayed": 1}})
        alarms = {each["node"]: each["alarms"] for each in await cluster.ask(2, "/alarms/activated")}
        assert f"node_hosted/{lost}" in {each["name"] for each in alarms[host]}
        clients = {each["clientid"]: each["node"] for each in await cluster.ask(0, "/clients")}
        assert clients["away-4"] == clients["away-5"] == cluster[2].name
        assert (await peers[1].expect_publish()).payload == b"delayed"
        while lost in {each["node"] for each in await cluster.ask(0, "/nodes")}:
            await asyncio.sleep(0.1)
        log = cluster[int(host[1]) - 1].log
        await until(lambda: b"hosted_node_ended" in log)
        assert f"hosted={lost}".encode() in log
        for peer in (*peers, far):
            await peer.nothing()
            await peer.close()
        await near.close()

        await cluster[1].start()  # with an empty directory
        while len(await until_copied(tmp_path / "n1", 3)) < 3:
            await asyncio.sleep(0.1)
        peer = await connected(Peer(cluster[1].tcp, 5), "away-5", True)
        await peer.close()


async def test_a_node_that_was_paused_for_too_long_starts_again(tmp_path: Path) -> None:
    """Another node runs in its place by then: it begins with an empty store, in the same process."""
    async with ClusterProcesses(3, tmp_path, QUICK) as cluster:
        paused = cluster[1]
        await until_copied(tmp_path / "n1", 3)
        first = await connected(Peer(paused.tcp, 5), "s", False)
        await first.subscribe("t", qos=1)
        paused.process.send_signal(signal.SIGSTOP)
        while not (await ctl(tmp_path / "n1", "cluster", "replicas"))["hosted"]:
            await asyncio.sleep(0.1)
        paused.process.send_signal(signal.SIGCONT)
        peer = Peer(cluster[2].tcp, 5)
        while True:
            try:
                await connected(peer, "s", True)
                break
            except AssertionError:  # refused: the node of the session does not run yet
                await peer.close()
        await until(lambda: paused.log.count(b"taipan ready") == 1)  # the first one was read by start
        assert b"starting_again" in paused.log
        assert await until_copied(tmp_path / "n1", 3)
        assert list((tmp_path / "n2").glob("replaced-*"))
        publisher = Peer(paused.tcp, 4)
        await publisher.connect("p")
        await publisher.publish("t", b"from the node that was replaced", qos=1)
        await peer.expect_publish("t", b"from the node that was replaced")
        for each in (publisher, peer, first):
            await each.close()


async def test_rules_of_a_lost_node_deliver_what_they_had_accepted(tmp_path: Path) -> None:
    """Rows that waited for a web server that was away, and the rules for a delayed message that the node published."""
    async with ClusterProcesses(3, tmp_path, QUICK) as cluster:
        await until_copied(tmp_path / "n1", 3)
        sink = HttpSink()  # away
        config = {"url": f"{sink.url}/rows", "pool_size": 1}
        await cluster[0].api.post("/resources", {"type": "web_hook", "config": config, "id": "resource:hook"})
        action = {"name": "data_to_webserver", "params": {"$resource": "resource:hook"}}
        rule = {"rawsql": 'SELECT payload.n as n FROM "rows"', "actions": [action], "id": "rule:rows"}
        await cluster[0].api.post("/rules", rule)
        while not await cluster.ask(1, "/rules"):
            await asyncio.sleep(0.05)
        publisher = Peer(cluster[1].tcp, 5)
        await publisher.connect("p")
        for number in range(10):
            await publisher.publish("rows", b'{"n": %d}' % number, qos=1)
        await publisher.publish("$delayed/4/rows", b'{"n": 10}', qos=1)
        cluster[1].process.send_signal(signal.SIGKILL)
        await cluster[1].process.wait()
        shutil.rmtree(tmp_path / "n2")
        while (await ctl(tmp_path / "n1", "cluster", "replicas"))["hosted"] == []:
            await asyncio.sleep(0.1)
        await sink.start()
        await until(lambda: len(sink.bodies) == 11)
        assert [json.loads(body)["n"] for body in sink.bodies] == list(range(11))
        while cluster[1].name in {each["node"] for each in await cluster.ask(0, "/nodes")}:
            await asyncio.sleep(0.1)
        assert len(sink.bodies) == 11
        await sink.stop()
        await publisher.close()
        await cluster[1].start()
