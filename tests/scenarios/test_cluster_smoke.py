"""Three real nodes over a real NATS server, by the command as it is installed: what a cluster is for, in one test."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from taipan.broker.mqtt import constants as c
from tests.support.api import assert_refused
from tests.support.cluster_processes import PROGRAM, ClusterProcesses
from tests.support.peer import Peer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(90)]


async def test_three_nodes(tmp_path: Path) -> None:
    """Each knows the three; a message crosses at each QoS, a session moves with its queue, everybody stops in order."""
    async with ClusterProcesses(3, tmp_path) as cluster:
        for number in range(3):
            nodes = await cluster.ask(number, "/nodes")
            assert [each["node"] for each in nodes] == [node.name for node in cluster.nodes]
        old, new = Peer(cluster[1].tcp, 4), Peer(cluster[2].ws, 5)
        publisher = Peer(cluster[0].tcp, 5)
        await old.connect("old", clean_start=False)
        await new.connect("new", clean_start=False, properties={c.SESSION_EXPIRY_INTERVAL: 3600})
        await publisher.connect("publisher")
        for subscriber in (old, new):
            await subscriber.subscribe("t/+", qos=2)
        for qos in range(3):
            await publisher.publish(f"t/{qos}", b"crosses", qos=qos)
            for subscriber in (old, new):
                await subscriber.expect_publish(f"t/{qos}", b"crosses", qos)
        for subscriber in (old, new):
            await subscriber.drop()
        for qos in (1, 2):
            await publisher.publish(f"t/{qos}", b"waits", qos=qos)
        moved = [Peer(cluster[2].tcp, 4), Peer(cluster[0].ws, 5)]
        await moved[0].connect("old", clean_start=False, session_present=True)
        await moved[1].connect(
            "new", clean_start=False, properties={c.SESSION_EXPIRY_INTERVAL: 3600}, session_present=True
        )
        for subscriber in moved:
            for qos in (1, 2):
                await subscriber.expect_publish(f"t/{qos}", b"waits", qos)
        places = [("new", cluster[0].name), ("old", cluster[2].name), ("publisher", cluster[0].name)]
        while sorted((row["clientid"], row["node"]) for row in await cluster.ask(1, "/clients")) != places:
            await asyncio.sleep(0.02)  # what has moved is forgotten where it was a moment later
        for peer in (*moved, publisher, old, new):
            await peer.close()


@pytest.mark.slow
async def test_a_node_is_taken_away_without_a_loss(tmp_path: Path) -> None:
    """As docs/run-a-cluster.md says: evacuated, until nothing is left; leave; stopped."""

    async def ctl(*words: str) -> dict[str, Any]:
        words = ("--data-dir", str(tmp_path / "n1"), "--json", "cluster", *words)
        program = str(PROGRAM.with_name("taipan-ctl"))
        process = await asyncio.create_subprocess_exec(program, *words, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(said)
        return found

    expiry = {c.SESSION_EXPIRY_INTERVAL: 3600}
    async with ClusterProcesses(3, tmp_path) as cluster:
        here, away, publisher = Peer(cluster[0].tcp, 5), Peer(cluster[0].tcp, 4), Peer(cluster[1].tcp, 5)
        await publisher.connect("publisher")
        await here.connect("here", clean_start=False, properties=expiry)
        await away.connect("away", clean_start=False)
        for subscriber in (here, away):
            await subscriber.subscribe("t", qos=2)
        await away.drop()
        await publisher.publish("t", b"1", qos=1)
        await here.expect_publish("t", b"1", 1)
        assert (await ctl("evacuation", "start"))["evacuating"] is True
        await here.expect_disconnect(0x9C)
        other = Peer(cluster[0].tcp, 5)
        await other.connect("other", expect=0x9C)
        await publisher.publish("t", b"2", qos=2)
        left = ("connections", "sessions", "messages_for_others", "kept", "delayed")
        now = await ctl("evacuation", "status")
        while any(now[each] for each in left):
            assert now["evacuating"]
            await asyncio.sleep(0.1)
            now = await ctl("evacuation", "status")
        assert "sessions" not in await ctl("leave")
        cluster[0].process.send_signal(signal.SIGTERM)
        assert await cluster[0].process.wait() == 0
        await publisher.publish("t", b"3", qos=1)
        for peer in (here, away, other):
            await peer.close()
        here, away = Peer(cluster[2].tcp, 5), Peer(cluster[1].tcp, 4)
        await here.connect("here", clean_start=False, properties=expiry, session_present=True)
        await away.connect("away", clean_start=False, session_present=True)
        for payload, qos in ((b"2", 2), (b"3", 1)):
            await here.expect_publish("t", payload, qos)
        for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 1)):
            await away.expect_publish("t", payload, qos)
        for peer in (here, away, publisher):
            await peer.close()


@pytest.mark.slow
async def test_a_node_that_was_forced_out_while_it_was_paused_changes_nothing(tmp_path: Path) -> None:
    """What it was asked meanwhile is the first that it finds when it goes on: it does not know yet that it is out."""
    async with ClusterProcesses(3, tmp_path, "suspect_after = 2\nstopped_after = 3") as cluster:
        paused = cluster[2]
        paused.process.send_signal(signal.SIGSTOP)
        try:
            while [each["node_status"] for each in await cluster.ask(0, "/nodes")] != ["Running", "Running", "Stopped"]:
                await asyncio.sleep(0.05)
            words = ("--data-dir", str(tmp_path / "n1"), "cluster", "force-leave", paused.name)
            ctl = await asyncio.create_subprocess_exec(str(PROGRAM.with_name("taipan-ctl")), *words)
            assert await ctl.wait() == 0
            user = {"login": "u", "password": "secret-1", "is_superuser": False}
            user_added = asyncio.create_task(paused.api.post("/auth_user", user))
            client = Peer(paused.tcp, 5)
            expiry = {c.SESSION_EXPIRY_INTERVAL: 3600}
            connected = asyncio.create_task(client.connect("s", clean_start=False, properties=expiry, expect=None))
            await asyncio.sleep(0)
        finally:
            paused.process.send_signal(signal.SIGCONT)
        assert_refused(await user_added, 500, 101, "nothing was changed")
        assert (await connected).reason_code == 0  # cluster.isolated: its own clients are served
        assert await cluster.ask(0, "/auth_user") == [] and await cluster.ask(1, "/clients/s") == []
        there = Peer(cluster[0].tcp, 5)
        await there.connect("s", clean_start=False, properties=expiry, session_present=False)
        assert [row["node"] for row in await cluster.ask(1, "/clients/s")] == [cluster[0].name]
        for peer in (client, there):
            await peer.close()
