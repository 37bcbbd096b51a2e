"""Wills of nodes that die are published once, by another node or by their own when it is back."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wills import BUCKET
from taipan.broker.cluster.wire import WillRecord, Wire, node_key, thing_key
from taipan.broker.core.cluster import STOPPED
from taipan.broker.core.inspection import Inspection, InspectionLimits
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Will
from taipan.broker.persistence.log.records import StoredBody, WillStored
from tests.support.patience import patience
from tests.support.peer import TIMEOUT

from ...support.cluster_nodes import ClusterNodes, cluster_nodes
from ...support.virtual_nats import VirtualNats

pytestmark = pytest.mark.asyncio

QUICK = {
    "suspect_after": 1.2,
    "stopped_after": 1.5,
    "will_grace": 0.5,
    "takeover_timeout": 4,
    "call_timeout": 1,
    "takeover": "fresh",
}


def stored_will(topic: str, client_id: str = "bad", **more: Any) -> WillStored:
    body = replace(StoredBody(topic, b"dead", 0, False, {}, 1.0, client_id, None, "i"), **more)
    return WillStored(0, body, 0, 0.0, "", "", True)


def wire_of(cluster: ClusterNodes, number: int) -> Wire:
    found = cluster[number].server.cluster
    assert isinstance(found, NatsCluster)
    return found.context.wire


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(patience(TIMEOUT)):
        while not holds():
            await asyncio.sleep(0.005)


def keys(cluster: ClusterNodes) -> int:
    """How many wills the bucket has."""
    return sum(entry.value is not None for entry in cluster.hub.buckets[BUCKET].last.values())


def status(cluster: ClusterNodes, number: int, other: int) -> str:
    found = {member.name: member.status for member in cluster[number].server.cluster.members()}
    return found[cluster.name(other)]


async def test_a_will_has_a_key_as_long_as_it_is_in_force(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path) as cluster:
        will = Will("will", b"x", properties={c.WILL_DELAY_INTERVAL: 30})
        client = await cluster[0].client("s", expiry=60, will=will)
        await until(lambda: keys(cluster) == 1)
        await client.drop()
        await until(lambda: not cluster[0].server.context.channels)
        await cluster.wait_until_quiet()
        assert keys(cluster) == 1
        client = await cluster[0].client("s", expiry=60)
        await until(lambda: keys(cluster) == 0)
        await client.disconnect()
        client = await cluster[0].client("t", will=will)
        await until(lambda: keys(cluster) == 1)
        await client.disconnect()
        await until(lambda: keys(cluster) == 0)


async def test_a_will_that_is_too_large_for_nats_has_no_key_and_holds_up_no_other() -> None:
    """Nor does the one that its client had before."""
    async with cluster_nodes(2, hub=VirtualNats(max_payload=65_536)) as cluster:
        await cluster[0].client("s", will=Will("will", b"x"))
        await until(lambda: keys(cluster) == 1)
        await cluster[0].client("s", will=Will("will", b"x" * 65_500))
        await until(lambda: keys(cluster) == 0)
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_will_too_large"] == 1
        await cluster[0].client("t", will=Will("will", b"x"))
        await until(lambda: keys(cluster) == 1)


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_a_will_of_a_node_that_dies_is_published_once(tmp_path: Path, level: str) -> None:
    """Its clients are gone without DISCONNECT [MQTT-3.1.2-8]."""
    async with cluster_nodes(3, directory=tmp_path, level=level, cluster=QUICK) as cluster:
        await cluster[2].client("s", will=Will("will/1", b"dead", 1))
        await cluster[2].client("t", expiry=60, will=Will("will/2", b"dead", 1))
        await until(lambda: keys(cluster) == 2)
        peers = [await cluster[number].client() for number in range(2)]
        for peer in peers:
            await peer.subscribe("will/#", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(2)
        for peer in peers:
            assert {(await peer.expect_publish(payload=b"dead")).topic for _ in range(2)} == {"will/1", "will/2"}
        await cluster.start(2)
        await cluster.wait_until_running()
        await until(lambda: keys(cluster) == 0)
        await cluster.wait_until_quiet()
        for peer in peers:
            await peer.nothing()


class Undecided:
    """A program that answers about messages when ``free`` is set."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    def inspects(self, topic: str) -> bool:
        return True

    async def inspect(self, message: Message) -> Message:
        await self.free.wait()
        return message


def ask_about_messages(cluster: ClusterNodes, number: int) -> tuple[Undecided, Inspection]:
    program, broker = Undecided(), cluster[number].server.broker
    broker.inspection = Inspection(broker, program, InspectionLimits("exhook", 100, 1_000_000))
    return program, broker.inspection


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_a_will_of_a_node_that_dies_while_a_program_is_asked_about_it_is_published_once(
    tmp_path: Path, level: str
) -> None:
    async with cluster_nodes(3, directory=tmp_path, level=level, cluster=QUICK) as cluster:
        client = await cluster[2].client("s", will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        watcher = await cluster[0].client()
        await watcher.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        _, inspection = ask_about_messages(cluster, 2)
        await client.drop()
        await until(lambda: inspection.waiting)
        await cluster.wait_until_quiet()
        assert keys(cluster) == 1
        await cluster.kill(2)
        await watcher.expect_publish("will", b"dead", 1)
        await cluster.start(2)
        await cluster.wait_until_running()
        await until(lambda: keys(cluster) == 0)
        await cluster.wait_until_quiet()
        await watcher.nothing()


@pytest.mark.parametrize("answer", ["before", "while it is cut off", "after"])
async def test_a_will_about_which_a_program_is_asked_while_its_node_is_cut_off_comes_once(
    tmp_path: Path, answer: str
) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        client = await cluster[1].client("s", will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        watcher = await cluster[0].client()
        await watcher.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        program, inspection = ask_about_messages(cluster, 1)
        await client.drop()
        await until(lambda: inspection.waiting)
        if answer == "before":
            program.free.set()
            await watcher.expect_publish("will", b"dead", 1)
        else:
            cluster.partition({0}, {1}, quorum=0)
            await watcher.expect_publish("will", b"dead", 1)
            if answer == "while it is cut off":
                program.free.set()
                await until(lambda: not inspection.waiting)
            cluster.heal()
            await cluster.wait_until_running()
            await cluster.wait_until_quiet()
        program.free.set()
        await until(lambda: keys(cluster) == 0)
        await cluster.wait_until_quiet()
        await watcher.nothing()


BAD = {
    "text": b"\x93\xa2\xff\xfe\x93",
    "topic": msgspec.msgpack.encode(WillRecord("bad", stored_will("w/#"))),
    "property": msgspec.msgpack.encode(WillRecord("bad", stored_will("w", properties={c.USER_PROPERTY: 5}))),
    "due": msgspec.msgpack.encode(WillRecord("bad", replace(stored_will("w"), due_at=float("nan")))),
}


@pytest.mark.parametrize("bad", list(BAD))
async def test_a_will_that_cannot_be_read_keeps_none_of_its_node_from_being_published(bad: str) -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        watcher = await cluster[0].client("w")
        await watcher.subscribe("w/#", qos=1)
        wire = wire_of(cluster, 1)
        of = node_key(cluster.name(1))
        for number in range(10):
            record = WillRecord(f"c{number}", stored_will(f"w/{number}", f"c{number}"))
            cluster.hub.write(BUCKET, f"{of}.{thing_key(f'c{number}')}", wire.write(record), None, f"n{number}")
            if number == 5:
                cluster.hub.write(BUCKET, f"{of}.{thing_key('bad')}", wire.write(0)[:-1] + BAD[bad], None, "bad")
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        found = {(await watcher.expect_publish()).topic for _ in range(10)}
        assert found == {f"w/{number}" for number in range(10)}
        assert cluster[0].server.metrics.refusals.snapshot()["cluster_malformed"]


async def test_a_node_that_is_back_within_the_grace_publishes_its_own(tmp_path: Path) -> None:
    patient = {**QUICK, "will_grace": 60}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=patient) as cluster:
        await cluster[1].client("s", will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        peer = await cluster[0].client()
        await peer.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        await until(lambda: status(cluster, 0, 1) == STOPPED)
        await peer.nothing()
        await cluster.start(1)
        await peer.expect_publish("will", b"dead", 1)
        await until(lambda: keys(cluster) == 0)
        await peer.nothing()


@pytest.mark.slow
async def test_a_client_that_is_back_elsewhere_within_the_delay_has_no_will(tmp_path: Path) -> None:
    """[MQTT-3.1.3-9]"""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        will = Will("will", b"dead", 1, properties={c.WILL_DELAY_INTERVAL: 6})
        await cluster[1].client("s", expiry=60, will=will)
        await cluster[1].client("gone", expiry=60, will=Will("will", b"gone", 1, properties={c.WILL_DELAY_INTERVAL: 6}))
        await until(lambda: keys(cluster) == 2)
        peer = await cluster[0].client()
        await peer.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        await cluster[0].client("s", expiry=60, session_present=False)
        await peer.expect_publish("will", b"gone", 1)
        await peer.nothing()


@pytest.mark.parametrize("gone", ["while it is cut off", "as the network heals"])
async def test_a_will_of_a_node_that_is_cut_off_and_lives_comes_once(tmp_path: Path, gone: str) -> None:
    """The others have published it meanwhile."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        client = await cluster[1].client("s", will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        watcher, beside = await cluster[0].client("w"), await cluster[1].client("b")
        for each in (watcher, beside):
            await each.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        cluster.partition({0}, {1}, quorum=0)
        await watcher.expect_publish("will", b"dead")
        await client.drop()
        if gone == "while it is cut off":
            await until(lambda: not cluster[1].server.context.channels.get("s"))
        cluster.heal()
        await cluster.wait_until_running()
        await until(lambda: keys(cluster) == 0)
        await cluster.wait_until_quiet()
        await beside.expect_publish("will", b"dead")
        for each in (watcher, beside):
            await each.nothing()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("expiry", [0, 60])
async def test_a_will_that_is_due_while_its_node_is_cut_off_is_held_and_comes_once(
    tmp_path: Path, expiry: int, killed: bool
) -> None:
    """Nobody has published it meanwhile. It is on disk until it is out, also where its client has another since."""
    patient = {**QUICK, "will_grace": 60}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=patient) as cluster:
        client = await cluster[1].client("s", expiry=expiry, will=Will("will", b"1", 1))
        await until(lambda: keys(cluster) == 1)
        watcher = await cluster[0].client("w")
        await watcher.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        cluster.partition({0}, {1}, quorum=0)
        await until(lambda: status(cluster, 0, 1) == STOPPED and status(cluster, 1, 0) == STOPPED)
        await client.drop()
        await until(lambda: "s" not in cluster[1].server.context.channels)
        beside = await cluster[1].client("b")
        await beside.subscribe("will", qos=1)
        await beside.nothing()
        await cluster[1].client("s", expiry=expiry, will=Will("will", b"2", 1), session_present=None)
        if killed:
            await cluster[1].server.tables.stored()  # CONNACK of a session without expiry waits for no disk
            await cluster.kill(1)
        cluster.heal()
        if killed:
            await cluster.start(1)
            assert {(await watcher.expect_publish()).payload for _ in range(2)} == {b"1", b"2"}
        else:
            await watcher.expect_publish("will", b"1", 1)
            await beside.expect_publish("will", b"1", 1)
            await until(lambda: keys(cluster) == 1)
        await watcher.nothing()


async def test_a_will_that_no_other_node_knows_of_waits_for_no_nats(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        cluster.hub.disconnect(cluster.name(1))
        beside = await cluster[1].client("b")
        await beside.subscribe("will", qos=1)
        client = await cluster[1].client("s", will=Will("will", b"dead", 1))
        await client.drop()
        await beside.expect_publish("will", b"dead", 1)
        cluster.hub.connect(cluster.name(1))
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()
        await beside.nothing()


async def test_a_new_will_of_a_client_is_not_taken_for_the_one_that_another_node_has_published(tmp_path: Path) -> None:
    """Its client has said DISCONNECT while its node was cut off, and connected again."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        client = await cluster[1].client("s", will=Will("will", b"1", 1))
        await until(lambda: keys(cluster) == 1)
        watcher = await cluster[0].client("w")
        await watcher.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        cluster.partition({0}, {1}, quorum=0)
        await client.disconnect()
        await until(lambda: "s" not in cluster[1].server.context.channels)
        client = await cluster[1].client("s", will=Will("will", b"2", 1))
        await watcher.expect_publish("will", b"1")
        cluster.heal()
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()
        await client.drop()
        await watcher.expect_publish("will", b"2")
        await watcher.nothing()


async def test_force_leave_publishes_the_wills_and_ends_the_sessions(tmp_path: Path) -> None:
    patient = {**QUICK, "will_grace": 60}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=patient) as cluster:
        await cluster[2].client("s", expiry=60, will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        peer = await cluster[0].client()
        await peer.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(2)
        await until(lambda: all(status(cluster, number, 2) == STOPPED for number in range(2)))
        await cluster[0].server.cluster.force_leave(cluster.name(2))
        await peer.expect_publish("will", b"dead", 1)
        await until(lambda: cluster[1].server.cluster.node_of("s") is None)
        new = await cluster[1].client("s", expiry=60, session_present=False)
        await new.nothing()
        await peer.nothing()


async def test_a_will_waits_for_its_delay_where_its_node_is_back_without_its_data(tmp_path: Path) -> None:
    """It publishes it itself, if the client is not back."""
    async with cluster_nodes(2, directory=tmp_path, level="memory", cluster=QUICK) as cluster:
        for client_id in ("s", "gone"):
            will = Will("will", client_id.encode(), 1, properties={c.WILL_DELAY_INTERVAL: 2})
            await cluster[1].client(client_id, expiry=60, will=will)
        await until(lambda: keys(cluster) == 2)
        peer = await cluster[0].client()
        await peer.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        await cluster.start(1)
        await cluster[1].client("s", session_present=False)
        await peer.expect_publish("will", b"gone", 1)
        await until(lambda: keys(cluster) == 0)
        await peer.nothing()


@pytest.mark.slow
@pytest.mark.parametrize("new_will", [None, Will("will", b"of one who lives", 1)], ids=["none", "another"])
async def test_a_client_that_is_back_at_a_replacement_within_the_delay_has_no_will(
    tmp_path: Path, new_will: Will | None
) -> None:
    """[MQTT-3.1.3-9]. The replacement has the name, and the client's will the key, of the node that was forced out."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "will_grace": 60}) as cluster:
        delayed = {c.WILL_DELAY_INTERVAL: 5}
        for client_id in ("s", "gone"):
            await cluster[1].client(client_id, expiry=60, will=Will("will", client_id.encode(), 1, properties=delayed))
        await until(lambda: keys(cluster) == 2)
        peer = await cluster[0].client()
        await peer.subscribe("will", qos=1)
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        await until(lambda: status(cluster, 0, 1) == STOPPED)
        await cluster[0].server.cluster.force_leave(cluster.name(1))
        shutil.rmtree(cluster._data_dir(1))
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=60, session_present=False, will=new_will)
        await peer.expect_publish("will", b"gone", 1)
        await asyncio.sleep(3)
        await peer.nothing()
        await client.drop()
        if new_will is not None:
            await peer.expect_publish("will", b"of one who lives", 1)


async def test_a_node_that_has_left_and_joined_again_publishes_wills_of_others_that_die(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        watcher = await cluster[0].client("watcher")
        await watcher.subscribe("will", qos=1)
        await cluster[1].client("s", will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        await cluster.wait_until_quiet()
        await cluster[0].server.cluster.leave()
        await cluster[0].server.cluster.join(cluster.name(1))
        await cluster.wait_until_running()
        await cluster.kill(1)
        await watcher.expect_publish("will", b"dead", 1)


async def test_no_will_is_published_of_a_node_that_was_not_heard_yet(tmp_path: Path) -> None:
    at_once = {**QUICK, "will_grace": 0}
    async with cluster_nodes(2, directory=tmp_path, cluster=at_once) as cluster:
        watcher = await cluster[0].client("watcher")
        await watcher.subscribe("will", qos=1)
        await cluster[0].client("s", will=Will("will", b"dead", 1))
        await until(lambda: keys(cluster) == 1)
        await cluster.stop(1)
        cluster.hub.delays[cluster.name(0), cluster.name(1)] = (0.8, 0.8)
        await cluster.start(1)
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()
        await watcher.nothing()
        assert keys(cluster) == 1
