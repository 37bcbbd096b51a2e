"""Whose a session is, when nodes die, pause, are cut off and come back."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.cluster import nats_cluster
from taipan.broker.cluster.context import PIECE_MESSAGES
from taipan.broker.cluster.members.members import Members
from taipan.broker.cluster.members.own_record import BUCKET as MEMBERS
from taipan.broker.cluster.moving import claim_queue, outgoing
from taipan.broker.cluster.moving.fetching import Fetching
from taipan.broker.cluster.moving.handover import Handover
from taipan.broker.cluster.moving.incoming import ADOPTED, FETCHING, HandoverRow, Incoming
from taipan.broker.cluster.moving.outgoing import CANCEL, PREPARE
from taipan.broker.cluster.moving.queue_pieces import QueuePieces
from taipan.broker.cluster.moving.session_keys import BUCKET, RETRY, SessionKeys
from taipan.broker.cluster.moving.session_transfer import BUSY, Done, Fetch, Piece, Prepare, Prepared
from taipan.broker.cluster.nats.interface import BucketEntry, Unavailable, Unknown, WrongRevision
from taipan.broker.cluster.wire import SessionKey, thing_key
from taipan.broker.core.cluster import STOPPED, CallFailed
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt import reason_codes as rc
from taipan.broker.mqtt.packets import Ack, Disconnect
from taipan.broker.session.client_info import ClientInfo
from taipan.broker.session.subscription import Subscription
from tests.support.peer import TIMEOUT, Peer
from tests.support.users import PASSWORD, users
from tests.support.waiting import until
from tests.support.wire import Publish

from ...support.cluster_nodes import ClusterNodes, cluster_nodes
from ...support.patience import patience
from ...support.virtual_nats import VirtualWatch

pytestmark = pytest.mark.asyncio

END = {c.SESSION_EXPIRY_INTERVAL: 0}
MINUTE = {c.SESSION_EXPIRY_INTERVAL: 60}
QUICK = {"suspect_after": 1.2, "stopped_after": 1.5, "takeover_timeout": 40, "call_timeout": 5, "takeover": "fresh"}
"""A node that has died is soon Stopped. A node that runs has the time that a slow disk needs."""
IMPATIENT = {**QUICK, "takeover_timeout": 4, "call_timeout": 1}
"""For tests that wait until the timeout has passed."""
BURST = 50
"""Messages that a test publishes without waiting for PUBACK."""


def sessions(cluster: ClusterNodes, number: int) -> set[str]:
    return {session.client_id for session in cluster[number].server.broker.sessions}


def owner(cluster: ClusterNodes, client_id: str) -> bytes | None:
    return cluster.hub.buckets[BUCKET].value(thing_key(client_id))


def is_over(cluster: ClusterNodes, number: int, client_id: str) -> bool:
    """Whether this node knows of nobody who has the session."""
    known = cluster.part(number).session_keys.place(client_id)
    return known is None or not known.node


async def leave_five(cluster: ClusterNodes) -> None:
    """A session of the first node, whose client is away and is owed five messages."""
    await cluster[0].leave_session("s", "t", qos=2)
    publisher = await cluster[0].client("p")
    for number in range(5):
        await publisher.publish("t", b"%d" % number, qos=2)


async def publish_all(publisher: Peer, payloads: list[bytes]) -> None:
    """QoS 1, many at a time: a slow disk stores a burst at once."""
    for start in range(0, len(payloads), BURST):
        packets = [
            Publish("t", payload, 1, False, False, publisher.next_packet_id(), {})
            for payload in payloads[start : start + BURST]
        ]
        for packet in packets:
            await publisher.send(packet)
        for packet in packets:
            await publisher.answer(Ack, type=c.PUBACK, packet_id=packet.packet_id, reason_code=0)


async def attempt(peer: Peer, client_id: str, **connect: Any) -> int:
    connack = await peer.connect(client_id, expect=None, **connect)
    return connack.reason_code


async def test_a_key_is_there_as_long_as_the_session(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path) as cluster:
        client = await cluster[0].client("s", expiry=3600)
        assert owner(cluster, "s") is not None
        await until(lambda: cluster.part(1).node_of("s") == cluster.name(0))
        await client.disconnect(properties={c.SESSION_EXPIRY_INTERVAL: 0})
        await until(lambda: owner(cluster, "s") is None and cluster.part(1).node_of("s") is None)
        await cluster[0].client("t")
        assert owner(cluster, "t") is None


async def test_a_key_stays_until_the_end_of_its_session_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the session would be back after a kill, and no key would say whose it is."""
    async with cluster_nodes(1, directory=tmp_path, level="disk") as cluster:
        client = await cluster[0].client("s", expiry=60)
        tables = cluster.part(0).context.tables
        stored, asked, goes_on = tables.stored, asyncio.Event(), asyncio.Event()
        answers = [False]

        async def late() -> bool:
            asked.set()
            await goes_on.wait()
            return answers.pop() if answers else await stored()

        monkeypatch.setattr(tables, "stored", late)
        await client.disconnect(properties=END)
        await asked.wait()
        assert owner(cluster, "s") is not None
        goes_on.set()  # the disk is in trouble, and then it is not
        await until(lambda: not answers)
        assert owner(cluster, "s") is not None
        await until(lambda: owner(cluster, "s") is None)


async def test_another_users_session_is_refused_as_on_one_node(tmp_path: Path) -> None:
    """Whoever is not its owner neither gets it nor disturbs its client."""
    access = {"users": users("alice", "mallory")}
    async with cluster_nodes(2, directory=tmp_path, level="disk", access=access) as cluster:
        for expiry in (3600, 0):
            client_id = f"s{expiry}"
            mine = await cluster[0].client(client_id, expiry=expiry, username="alice", password=PASSWORD)
            await mine.subscribe("t", qos=1)
            for clean_start in (False, True):
                other = cluster[1].peer()
                properties = {c.SESSION_EXPIRY_INTERVAL: expiry}
                credentials = {"username": "mallory", "password": PASSWORD}
                if expiry:
                    await other.connect(client_id, clean_start, properties=properties, expect=0x87, **credentials)
                else:
                    await other.connect(client_id, clean_start, properties=properties, **credentials)
                    await other.expect_disconnect(0x87)
            await mine.publish("t", b"undisturbed", qos=1)
            await mine.expect_publish("t", b"undisturbed", 1)
        refused = cluster[1].server.metrics.refusals
        assert refused.snapshot()["session_of_another"] == 2


async def test_a_session_of_a_killed_node_begins_anew_and_what_it_held_follows(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        publisher = await cluster[0].client("p")
        for number in range(3):
            await publisher.publish("t", b"%d" % number, qos=2)
        await cluster.kill(0)
        new = await cluster[1].client("s", expiry=3600, session_present=False)
        await new.subscribe("t", qos=2)
        near = await cluster[1].client("near")
        await near.publish("t", b"new", qos=2)
        await new.expect_publish("t", b"new", 2)
        await cluster.start(0)
        for number in range(3):
            await new.expect_publish("t", b"%d" % number, 2)
        await until(lambda: "s" not in sessions(cluster, 0))
        await new.nothing()


async def test_a_session_of_a_node_that_is_stopped_in_order_waits_until_that_is_back(tmp_path: Path) -> None:
    """As in an upgrade. Clean Start does not wait."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover_timeout": 30}) as cluster:
        for client_id in ("s", "t"):
            await cluster[0].leave_session(client_id, "t", qos=1)
        await cluster.stop(0)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        await cluster[1].client("t", clean_start=True)
        waiting = asyncio.ensure_future(cluster[1].client("s", expiry=3600, session_present=True))
        await cluster.start(0)
        client = await waiting
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        await client.expect_publish("t", b"1", 1)


async def test_a_node_that_was_getting_a_session_that_began_anew_elsewhere_opens_no_place_for_it(
    tmp_path: Path,
) -> None:
    """It learns so when it starts again. What waits there for a queue would be nobody's, and its links would stop."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await leave_five(cluster)

        keeper = cluster.part(0).handover.outgoing
        piece = keeper.piece

        async def one(node: str, ask: Fetch) -> Piece:
            return Piece(BUSY) if ask.taken else await piece(node, ask)

        keeper.piece = one  # type: ignore[method-assign]
        await (await cluster[1].client("s", expiry=60, session_present=True)).drop()
        incoming = cluster.part(1).handover._incoming
        await until(lambda: (each := incoming.get("s")) is not None and each.row.taken == 1)
        await cluster.wait_until_quiet()
        await cluster.kill(1)
        await until(lambda: cluster.part(2).members()[1].status == STOPPED)
        client = await cluster[2].client("s", expiry=60, session_present=False)
        await client.subscribe("t", qos=2)
        await cluster.start(1)
        assert not [name for name in cluster[1].server.broker.sessions.internal if "staging" in name]
        await cluster.wait_until_running()
        keeper.piece = piece  # type: ignore[method-assign]
        publishers = [await cluster[number].client(f"p{number}") for number in range(3)]
        there = await cluster[1].client("there")
        await there.subscribe("t", qos=2)
        for number, publisher in enumerate(publishers):
            await publisher.publish("t", b"%d" % number, qos=2)
            await there.expect_publish("t", b"%d" % number, 2)


async def test_a_client_is_told_of_a_start_and_waits_from_then_on(tmp_path: Path) -> None:
    """The node stopped long ago. Other nodes know of its start by its record; it takes its time."""
    settings = {**QUICK, "takeover_timeout": 30}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        await cluster.stop(0)
        made = cluster.part(1)
        peer = made.membership.peers[cluster.name(0)]
        await until(lambda: peer.status == STOPPED)
        peer.stopped_at = -1e9
        record = msgspec.structs.replace(peer.record, incarnation=peer.incarnation + 1)
        await made.context.nats.write(MEMBERS, peer.key, made.context.wire.write(record), None, made.context.nonce())
        await until(lambda: peer.incarnation == record.incarnation)
        waiting = asyncio.ensure_future(cluster[1].client("s", expiry=3600, session_present=True))
        await until(lambda: not peer.may_run or waiting.done())
        assert not waiting.done()
        await cluster.start(0)
        await waiting


async def test_or_is_refused_where_no_setting_says_otherwise(tmp_path: Path) -> None:
    """``refuse`` is the default."""
    default = {key: value for key, value in QUICK.items() if key != "takeover"}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=default) as cluster:
        await cluster[0].leave_session("s", "t")
        await cluster.kill(0)
        peer = cluster[1].peer()
        await peer.connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=0x88)
        events = cluster[1].server.broker.throttled_log.events.of("s")
        assert events[-1].setting == "cluster.takeover"
        await cluster.start(0)
        await cluster.wait_until_running()
        await cluster[1].client("s", expiry=60, session_present=True)


async def test_a_session_whose_node_died_as_it_moved_waits_for_all_of_it(tmp_path: Path) -> None:
    """What that node held, and what other nodes had for it, comes first, once and in order, with ``refuse``."""
    refuse = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=refuse) as cluster:
        old = await cluster[0].client("s", expiry=3600)
        await old.subscribe("t", qos=2)
        near, far = await cluster[0].client("near"), await cluster[2].client("far")
        router = cluster[2].server.broker.router
        await until(lambda: router.remote_mask("t"))
        await old.drop()
        await near.publish("t", b"1", qos=2)
        cluster.partition({0, 1}, {2})
        await far.publish("t", b"2", qos=2)  # waits for the first node

        def dies(step: str) -> None:
            if step == "taken":
                cluster.partition({1}, {0}, {2})

        cluster.part(1).claims.step = dies
        new = await cluster[1].client("s", expiry=3600, session_present=True)
        await cluster.kill(0)
        cluster.heal()
        await until(lambda: router.remote_mask("t").bit_count() == 2)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        await far.publish("t", b"3", qos=2)
        await new.nothing()
        await cluster.start(0)
        for number in range(1, 4):
            await new.expect_publish("t", b"%d" % number, 2)
        await until(lambda: "s" not in sessions(cluster, 0))
        await new.nothing()
        await far.publish("t", b"4", qos=2)
        await new.expect_publish("t", b"4", 2)


async def test_a_message_that_comes_late_to_the_new_node_does_not_come_twice(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        old = await cluster[0].client("s", expiry=3600)
        await old.subscribe("t", qos=2)
        near = await cluster[1].client("near")
        await near.subscribe("t", qos=2)
        far = await cluster[2].client("far")
        await until(lambda: cluster[2].server.broker.router.remote_mask("t").bit_count() == 2)
        cluster.hub.delays[cluster.name(2), cluster.name(1)] = (0.8, 0.8)
        await far.publish("t", b"1", qos=2)
        await old.expect_publish("t", b"1", 2)
        new = await cluster[1].client("s", expiry=3600, session_present=True)
        await new.subscribe("u", qos=2)  # only here, while the rest of the session comes
        await far.publish("t", b"2", qos=2)
        await near.expect_publish("t", b"1", 2)
        await near.publish("u", b"3", qos=2)
        got = [(await new.expect_publish()).payload for _ in range(2)]
        assert sorted(got) == [b"2", b"3"]
        await until(lambda: "s" not in sessions(cluster, 0))
        await new.nothing()


async def test_a_node_that_died_before_it_was_told_that_all_has_come_gives_nothing_again(tmp_path: Path) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        merged = asyncio.Event()

        def cut(step: str) -> None:
            if step == "merged":
                cluster.hub.disconnect(cluster.name(0))
                merged.set()

        cluster.part(1).handover.step = cut
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await asyncio.wait_for(merged.wait(), patience(TIMEOUT))
        await cluster.kill(0)
        await cluster.start(0)
        assert sessions(cluster, 0) == {"s"}
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"once", qos=2)
        await client.expect_publish("t", b"once", 2)
        await until(lambda: "s" not in sessions(cluster, 0))
        await client.nothing()


async def test_what_is_paged_out_before_it_is_asked_for_again_comes_whole(tmp_path: Path) -> None:
    refuse = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=refuse) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[0].client("p")
        messages = [b"%d" % number * 500 for number in range(5)]
        for payload in messages:
            await publisher.publish("t", payload, qos=1)
        durability = cluster[0].server.broker.durability
        assert durability is not None
        paging = durability.paging
        asked = asyncio.Event()

        def cut(step: str) -> None:
            if step == "confirmed":
                cluster.hub.disconnect(cluster.name(1))
                asked.set()

        cluster.part(0).handover.outgoing.step = cut
        new = await cluster[1].client("s", expiry=60, session_present=True)
        await asyncio.wait_for(asked.wait(), patience(TIMEOUT))
        await until(lambda: paging.bytes)
        paging.bound = 1
        paging.evict()
        await until(lambda: not paging.bytes)
        cluster.hub.connect(cluster.name(1))
        for payload in messages:
            await new.expect_publish("t", payload, 1)


async def test_a_node_that_was_cut_off_sends_its_client_away(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        old = await cluster[2].client("s", expiry=3600)
        await old.subscribe("t", qos=1)
        cluster.partition({0, 1}, {2})
        await until(lambda: cluster.part(0).membership.peers[cluster.name(2)].status == STOPPED)
        new = await cluster[0].client("s", expiry=3600, session_present=False)
        await old.nothing()
        cluster.heal()
        await old.expect_disconnect(0x8E)
        await until(lambda: "s" not in sessions(cluster, 2))
        await new.nothing()
        assert cluster.part(2).node_of("s") == cluster.name(0)


@pytest.mark.slow
async def test_a_node_without_quorum_goes_on_with_its_sessions(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await cluster[1].leave_session("ours", "t")
        await cluster[0].leave_session("theirs", "t")
        await until(lambda: cluster.part(1).node_of("theirs") == cluster.name(0))
        cluster.partition({0}, {1})
        await cluster[1].client("ours", expiry=3600, session_present=True)
        await cluster[1].client("none")
        theirs = cluster[1].peer()
        await theirs.connect("theirs", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=0x88)
        begun = await cluster[1].client("new", expiry=3600)
        await begun.subscribe("t", qos=1)
        assert owner(cluster, "new") is None
        cluster.heal()
        await until(lambda: cluster.part(0).node_of("new") == cluster.name(1))
        await begun.nothing()


@pytest.mark.slow
async def test_a_node_that_starts_without_nats_serves_clients_whose_sessions_it_does_not_know(tmp_path: Path) -> None:
    """``cluster.isolated = "serve_local"``."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await cluster[0].leave_session("s", "t")
        await cluster.kill(1)
        cluster.partition({0}, {1})
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=3600, session_present=False)
        await client.subscribe("t", qos=1)
        await client.publish("t", b"1", qos=1)
        await client.expect_publish("t", b"1", 1)


async def test_an_unanswered_write_leaves_no_key_behind(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        cluster.hub.lose_answer = 1.0
        peer = cluster[0].peer()
        await peer.connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=0x88)
        assert owner(cluster, "s") is not None
        cluster.hub.lose_answer = 0.0
        await until(lambda: owner(cluster, "s") is None)
        await cluster[1].client("s", expiry=60, session_present=False)


async def test_an_unanswered_write_gives_the_session_back(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await cluster[0].leave_session("s", "t")
        publisher = await cluster[0].client("p")
        cluster.part(1).claims.step = lambda name: setattr(cluster.hub, "lose_answer", float(name == "stored"))
        peer = cluster[1].peer()
        await peer.connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=0x88)
        cluster.hub.lose_answer = 0.0
        await publisher.publish("t", b"kept", qos=1)
        cluster.part(1).claims.step = lambda name: None
        await until(lambda: cluster.part(1).node_of("s") == cluster.name(0))
        again = await cluster[1].client("s", expiry=60, session_present=True)
        await again.expect_publish("t", b"kept", 1)


async def claim_without_an_answer(cluster: ClusterNodes) -> SessionKeys:
    """Node 1 writes that session ``s`` of node 0 is its own, and does not hear that this was done; its part."""
    await cluster[0].leave_session("s", "t")
    session_keys = cluster.part(1).session_keys
    cluster.part(1).claims.step = lambda name: setattr(cluster.hub, "lose_answer", float(name == "stored"))
    peer = cluster[1].peer()
    await peer.connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=0x88)
    await until(lambda: session_keys.has("s"))
    return session_keys


async def test_an_unanswered_write_gives_the_session_back_after_a_restart(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await claim_without_an_answer(cluster)
        await cluster[1].server.tables.stored()
        await cluster.kill(1)
        cluster.hub.lose_answer = 0.0
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"kept", qos=1)
        await cluster.start(1)
        await until(lambda: cluster.part(1).node_of("s") == cluster.name(0))
        again = await cluster[1].client("s", expiry=60, session_present=True)
        await again.expect_publish("t", b"kept", 1)


async def test_a_session_that_is_given_back_goes_on_where_its_node_started_again_meanwhile(tmp_path: Path) -> None:
    refuse = {**IMPATIENT, "takeover": "refuse"}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=refuse) as cluster:
        await claim_without_an_answer(cluster)
        await cluster[1].server.tables.stored()
        await cluster.kill(1)
        await cluster.kill(0)
        cluster.hub.lose_answer = 0.0
        await cluster.start(0)
        await until(lambda: cluster.part(0).handover.leaves("s"))
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"kept", qos=1)
        await cluster.start(1)
        await until(lambda: not cluster.part(0).handover.leaves("s"))
        again = await cluster[0].client("s", expiry=60, session_present=True)
        await again.expect_publish("t", b"kept", 1)


@pytest.mark.slow
async def test_a_session_is_not_begun_anew_on_a_key_of_an_unanswered_write(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await claim_without_an_answer(cluster)
        await cluster[1].peer().connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 60}, expect=0x88)
        cluster.part(1).claims.step = lambda name: None
        cluster.hub.lose_answer = 0.0
        await cluster[1].client("s", expiry=60, session_present=True)


async def test_a_session_is_found_again_by_a_node_that_learns_late_of_its_leaving(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        old = await cluster[0].client("s", expiry=3600)
        await old.drop()
        cluster.hub.delays["", cluster.name(0)] = (0.7, 0.7)
        await (await cluster[1].client("s", expiry=3600, clean_start=True)).drop()
        assert "s" not in sessions(cluster, 0) and cluster.part(0).session_keys.has("s")
        await cluster[0].client("s", expiry=3600, session_present=True)


@pytest.mark.parametrize("how", ["reset", "DISCONNECT"])
async def test_a_client_that_has_gone_takes_no_session_from_one_that_is_there(tmp_path: Path, how: str) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        old = await cluster[0].client("s", expiry=3600)
        cluster.partition({0}, {1}, quorum=1)
        gone = cluster[1].peer()
        connecting = asyncio.ensure_future(attempt(gone, "s", clean_start=False))
        session_keys = cluster.part(1).session_keys
        await until(lambda: session_keys.busy("s"))
        if how == "reset":
            gone.abort()
            with pytest.raises(AssertionError):
                await connecting
        else:
            await gone.send(Disconnect())
        cluster.heal()
        await until(lambda: not session_keys.busy("s"))
        await old.nothing()
        assert sessions(cluster, 0) == {"s"} and not sessions(cluster, 1)
        if how == "DISCONNECT":
            assert await connecting == rc.SERVER_UNAVAILABLE


async def test_a_client_that_has_gone_begins_no_session_anew_elsewhere(tmp_path: Path) -> None:
    """It would end the one of the node that is not heard, whose client is there."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        old = await cluster[0].client("s", expiry=3600)
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        cluster.hub.delays[cluster.name(1), ""] = (0.3, 0.3)
        gone = cluster[1].peer()
        connecting = asyncio.ensure_future(attempt(gone, "s", properties=MINUTE, clean_start=False))
        await until(lambda: cluster.part(1).session_keys.busy("s"))
        gone.abort()
        with pytest.raises(AssertionError):
            await connecting
        await until(lambda: not cluster.part(1).session_keys.busy("s"))
        cluster.heal()
        await cluster.wait_until_running()
        await old.nothing()
        assert sessions(cluster, 0) == {"s"} and not sessions(cluster, 1)


async def test_a_session_stays_where_it_was_if_its_client_goes_as_another_node_takes_the_key(tmp_path: Path) -> None:
    """No session has begun at the other node, and no CONNACK has told of one."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await leave_five(cluster)
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        session_keys = cluster.part(1).session_keys
        write = session_keys._write
        gone = cluster[1].peer()

        async def written(*arguments: Any) -> int:
            revision = await write(*arguments)
            gone.abort()
            await until(lambda: not cluster[1].server.connections)
            return revision

        session_keys._write = written  # type: ignore[method-assign]
        with pytest.raises(AssertionError):
            await gone.connect("s", properties=MINUTE, clean_start=False)
        session_keys._write = write  # type: ignore[method-assign]
        await until(lambda: not session_keys.busy("s") and not session_keys.has("s"))
        cluster.heal()
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=60, session_present=True)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)
        await client.nothing()


async def test_a_session_stays_where_it_was_if_its_client_is_refused_after_that(tmp_path: Path) -> None:
    """The other node has taken the key, and has no memory for a session by then."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await leave_five(cluster)
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        session_keys = cluster.part(1).session_keys
        write = session_keys._write
        memory = cluster[1].server.memory
        limit = memory.limit

        async def written(*arguments: Any) -> int:
            revision = await write(*arguments)
            memory.limit = int(memory.used / 0.85)  # from 0.80 on, no new session
            await cluster[1].pass_time(1)
            assert cluster[1].server.broker.short_of_memory
            return revision

        session_keys._write = written  # type: ignore[method-assign]
        refused = cluster[1].peer()
        await refused.connect("s", clean_start=False, properties=MINUTE, expect=rc.QUOTA_EXCEEDED)
        session_keys._write = write  # type: ignore[method-assign]
        memory.limit = limit
        await cluster[1].pass_time(1)
        await until(lambda: not session_keys.busy("s") and not session_keys.has("s"))
        cluster.heal()
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=60, session_present=True)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)
        await client.nothing()


async def test_a_key_that_is_given_back_still_names_the_user_of_the_session(tmp_path: Path) -> None:
    """Otherwise another user could have the session while its node is away."""
    async with cluster_nodes(
        2, directory=tmp_path, level="disk", cluster=QUICK, access={"users": users("ann")}
    ) as cluster:
        await cluster[0].client("s", expiry=3600, username="ann", password=PASSWORD)
        session_keys = cluster.part(1).session_keys
        await until(lambda: session_keys.place("s"))
        place = session_keys.place("s")
        session = cluster[0].server.broker.sessions.get("s")
        assert place is not None and session is not None
        nats = cluster.part(1).context.nats
        write = nats.write

        async def unanswered(*arguments: Any) -> int:
            await write(*arguments)
            raise Unknown("no answer")

        nats.write = unanswered  # type: ignore[method-assign]
        with pytest.raises(Unknown):
            await session_keys.take(session.client, cluster.name(1), False, place, 1.0, {})
        nats.write = write  # type: ignore[method-assign]
        await until(lambda: not session_keys.busy("s") and not session_keys.has("s"))
        owned = await session_keys.read("s")
        assert owned is not None and (owned.node, owned.owner) == (cluster.name(0), session.owner)
        assert session.owner


@pytest.mark.parametrize("clean_start", [False, True])
async def test_a_session_that_was_asked_for_and_then_begun_anew_does_not_come_back(
    tmp_path: Path, clean_start: bool
) -> None:
    """The node that had asked for it says so late."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await leave_five(cluster)
        far = cluster.part(1)
        known = far.session_keys.place("s")
        assert known is not None
        ask = Prepare("s", "move", known.revision, "", False, False)
        await far.calls.call(cluster.name(0), PREPARE, msgspec.msgpack.encode(ask))
        cluster.partition({0}, {1}, quorum=1)
        await until(lambda: far.members()[0].status == STOPPED)
        client = await cluster[1].client("s", expiry=60, clean_start=clean_start, session_present=False)
        cluster.heal()
        await until(lambda: cluster.part(0).session_keys.node_of("s") == cluster.name(1))
        await cluster.wait_until_running()
        await far.calls.call(cluster.name(0), CANCEL, msgspec.msgpack.encode(Done("s", "move")))
        for number in range(0 if clean_start else 5):
            await client.expect_publish("t", b"%d" % number, 2)
        await until(lambda: "s" not in sessions(cluster, 0))
        await client.nothing()
        await client.drop()
        await cluster[0].client("s", expiry=60, session_present=True)


async def test_a_client_that_sends_disconnect_before_it_has_its_session_begins_none(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        cluster.hub.delays[cluster.name(0), ""] = (0.3, 0.3)
        gone = cluster[0].peer()
        connecting = asyncio.ensure_future(attempt(gone, "s", properties=MINUTE))
        session_keys = cluster.part(0).session_keys
        await until(lambda: session_keys.busy("s"))
        await gone.send(Disconnect())
        assert await connecting == rc.SERVER_UNAVAILABLE
        cluster.hub.delays.clear()
        await until(lambda: is_over(cluster, 0, "s") and is_over(cluster, 1, "s"))
        await cluster[1].client("s", expiry=60, session_present=False)


async def test_a_session_that_no_connack_has_told_of_is_not_present_at_another_node(tmp_path: Path) -> None:
    """What it holds already, as an operator has subscribed it, goes along."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await begin_without_connack(cluster, 0)
        broker = cluster[0].server.broker
        session = broker.sessions.get("s")
        assert session is not None
        broker.subscribe(session, Subscription(session, "t", 2))
        await (await cluster[0].client("p")).publish("t", b"0", qos=2)
        client = await cluster[1].client("s", expiry=60, session_present=False)
        await client.expect_publish("t", b"0", 2)
        await client.subscribe("t", qos=1)
        await until(lambda: "s" not in sessions(cluster, 0))
        await (await cluster[0].client("q")).publish("t", b"1", qos=1)
        await client.expect_publish("t", b"1", 1)
        await client.drop()
        await cluster[0].client("s", expiry=60, session_present=True)


async def begin_without_connack(cluster: ClusterNodes, number: int) -> None:
    """A session of ``s`` whose client gives up while it waits for the disk."""
    peer = cluster[number].peer()
    with cluster.held_disk(number):
        connecting = asyncio.ensure_future(attempt(peer, "s", clean_start=False, properties=MINUTE))
        await until(lambda: "s" in sessions(cluster, number))
        peer.abort()
        with pytest.raises(AssertionError):
            await connecting
        await until(lambda: "s" not in cluster[number].server.context.channels)


async def test_the_rest_of_a_session_comes_to_one_that_no_connack_has_told_of(tmp_path: Path) -> None:
    """Begun anew at the second node while the first is away, and taken by the third."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await leave_five(cluster)
        await cluster.kill(0)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        await begin_without_connack(cluster, 1)
        await cluster.start(0)
        await cluster.wait_until_running()
        await until(lambda: "s" not in sessions(cluster, 0))
        client = await cluster[2].client("s", expiry=60, session_present=False)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)


async def test_a_client_that_leaves_meanwhile_leaves_its_session_whole(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t")
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"kept", qos=1)
        gone = cluster[1].peer()
        cluster.part(1).claims.step = lambda name: gone.abort() if name == "adopted" else None
        with pytest.raises(AssertionError):
            await gone.connect("s", False, properties={c.SESSION_EXPIRY_INTERVAL: 60})
        await until(lambda: "s" in sessions(cluster, 1) and "s" not in sessions(cluster, 0))
        again = await cluster[0].client("s", expiry=60, session_present=True)
        await again.expect_publish("t", b"kept", 1)


async def test_a_session_that_moves_on_at_once_is_left_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second node has not told the first one yet that all is there, when the third one has the session."""
    released = asyncio.Event()
    tell_done = Fetching._tell_done

    async def tell_later(self: Fetching, incoming: Incoming) -> None:
        if self is second:
            await released.wait()
        await tell_done(self, incoming)

    monkeypatch.setattr(Fetching, "_tell_done", tell_later)
    monkeypatch.setattr(outgoing, "_OFFER_AGAIN", 1000.0)
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={"takeover": "refuse"}) as cluster:
        second = cluster.part(1).handover._fetching
        await cluster[0].leave_session("s", "t", qos=1)
        await cluster[1].client("s", expiry=60, session_present=True)
        last = await cluster[2].client("s", expiry=60, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 1))
        released.set()
        await until(lambda: "s" not in sessions(cluster, 0))
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        await last.expect_publish("t", b"1", 1)


async def test_a_node_that_dies_before_its_session_is_on_disk_misses_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sends it alone what is new, before it would know after a restart that this is for the session."""
    refuse = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=refuse) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[0].client("p")
        store = cluster[1].server.store
        assert store is not None
        killed = threading.Event()

        def stall(step: str) -> None:
            if step == "taken":
                monkeypatch.setattr(store._log, "append", lambda *arguments: killed.wait())

        cluster.part(1).claims.step = stall
        connecting = asyncio.ensure_future(
            attempt(cluster[1].peer(), "s", clean_start=False, properties={c.SESSION_EXPIRY_INTERVAL: 60})
        )
        await until(lambda: cluster[0].server.broker.router.remote_mask("t"))
        await asyncio.sleep(0.3)  # for what must not be asked
        await publisher.publish("t", b"kept", qos=1)
        await cluster.kill(1)
        killed.set()
        await asyncio.wait([connecting])
        connecting.exception()
        await cluster.start(1)
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await client.expect_publish("t", b"kept", 1)
        await until(lambda: "s" not in sessions(cluster, 0))


async def test_a_node_that_was_cut_off_while_a_session_was_elsewhere_and_came_back_lets_go_of_it(
    tmp_path: Path,
) -> None:
    """The node that has the session does not remember that it was to tell it."""
    refuse = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=refuse) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        merged = asyncio.Event()

        def cut(step: str) -> None:
            if step == "merged" and not merged.is_set():
                cluster.hub.disconnect(cluster.name(0))
                merged.set()

        cluster.part(1).handover.step = cut
        await cluster[1].client("s", expiry=60, session_present=True)
        await asyncio.wait_for(merged.wait(), patience(TIMEOUT))
        await cluster[2].client("s", expiry=60, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 1))
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 2))
        assert cluster.part(0).handover.leaves("s")
        cluster.hub.connect(cluster.name(0))
        await until(lambda: "s" not in sessions(cluster, 0))
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1)
        await client.expect_publish("t", b"1", 1)
        await client.nothing()


async def test_a_late_question_for_an_earlier_stay_takes_no_session_that_is_just_coming(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        handover = cluster.part(1).handover
        late = Fetch("s", "earlier", 0, [], False, [], None, 0)
        answers: list[asyncio.Future[Piece]] = []

        def ask(step: str) -> None:
            if step == "adopted":
                answers.append(asyncio.ensure_future(handover.outgoing.piece(cluster.name(0), late)))

        cluster.part(1).claims.step = ask
        await cluster[1].client("s", expiry=60, session_present=True)
        assert [(await each).state for each in answers] == [BUSY]
        assert not handover.leaves("s")
        await until(lambda: "s" not in sessions(cluster, 0))
        await cluster[0].client("s", expiry=60, session_present=True)


async def rewritten(cluster: ClusterNodes) -> None:
    """The key of the second node's session is written once more: as another one does whose claim was not answered."""
    session = cluster[1].server.broker.sessions.get("s")
    assert session is not None
    session_keys = cluster.part(1).session_keys
    assert await session_keys.keep(session)
    owner = session_keys.place("s")
    await until(lambda: cluster.part(0).session_keys.place("s") == owner)


@pytest.mark.parametrize("takeover", ["fresh", "refuse"])
async def test_a_move_goes_on_where_the_key_is_written_once_more(tmp_path: Path, takeover: str) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": takeover}) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[0].client("p")
        await publish_all(publisher, [b"%d" % number for number in range(2 * PIECE_MESSAGES)])
        pieces = []

        def on_step(step: str) -> None:
            if step == "piece_taken" and not pieces:
                pieces.append(asyncio.ensure_future(rewritten(cluster)))

        cluster.part(1).handover.step = on_step
        client = await cluster[1].client("s", expiry=60, session_present=True)
        for number in range(2 * PIECE_MESSAGES):
            await client.expect_publish("t", b"%d" % number, 1)
        await pieces[0]
        await publisher.publish("t", b"last", qos=1)
        await client.expect_publish("t", b"last", 1)
        await until(lambda: "s" not in sessions(cluster, 0))


async def test_a_piece_that_is_made_while_a_move_begins_again_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[0].client("p")
        await publish_all(publisher, [b"%d" % number for number in range(2 * PIECE_MESSAGES)])
        out = cluster.part(0).handover.outgoing
        piece, load = out.piece, QueuePieces.load
        asked = 0

        async def load_late(self: QueuePieces) -> None:
            if asked == 2:
                await rewritten(cluster)
            await load(self)

        async def second_answer_lost(node: str, ask: Fetch) -> Piece:
            nonlocal asked
            asked += 1
            lost = asked == 2
            answer = await piece(node, ask)
            if lost:
                raise CallFailed("no answer")
            return answer

        monkeypatch.setattr(QueuePieces, "load", load_late)
        monkeypatch.setattr(out, "piece", second_answer_lost)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        for number in range(2 * PIECE_MESSAGES):
            await client.expect_publish("t", b"%d" % number, 1)


async def test_the_late_answer_of_a_write_takes_no_session_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node has written that it keeps the session; when it learns that, the second one has it."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        session_keys, nats = cluster.part(0).session_keys, cluster.clients[0]
        write = nats.write

        async def answer_late(*arguments: Any) -> int:
            revision = await write(*arguments)
            monkeypatch.setattr(nats, "write", write)
            await cluster[1].client("s", expiry=60, session_present=True)
            await until(lambda: session_keys.node_of("s") == cluster.name(1))
            return revision

        monkeypatch.setattr(nats, "write", answer_late)
        session = cluster[0].server.broker.sessions.get("s")
        assert session is not None
        assert not await session_keys.keep(session)
        assert session_keys.node_of("s") == cluster.name(1) and not session_keys.has("s")
        await until(lambda: "s" not in sessions(cluster, 0))


@pytest.mark.slow
@pytest.mark.parametrize("step", ["prepared", "adopted", "stored", "taken", "piece_taken", "fetched", "merged"])
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("takeover", ["fresh", "refuse"])
async def test_each_node_may_die_at_each_step(tmp_path: Path, step: str, killed: int, takeover: str) -> None:
    """The session is on one node, whole, when both run again; the node that asked for it need not wait then until its
    attempt before has run out of time."""
    settings = {**QUICK, "suspect_after": 8, "stopped_after": 10, "takeover": takeover, "takeover_timeout": 60}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        publisher = await cluster[0].client("p")
        messages = [b"%d" % number for number in range(5)]
        for payload in messages:
            await publisher.publish("t", payload, qos=2)
        reached = asyncio.Event()

        def at(name: str) -> None:
            if name == step and not reached.is_set():
                reached.set()
                cluster.hub.disconnect(cluster.name(killed))
                if killed == 1:
                    raise asyncio.CancelledError  # it does nothing more

        made = cluster.part(1)
        made.claims.step = made.handover.step = at
        peer = cluster[1].peer()
        connecting = asyncio.ensure_future(
            attempt(peer, "s", clean_start=False, properties={c.SESSION_EXPIRY_INTERVAL: 60})
        )
        await asyncio.wait_for(reached.wait(), patience(TIMEOUT))
        await cluster.kill(killed)
        await asyncio.wait([connecting])
        connecting.exception()
        await cluster.start(killed)
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=60)
        assert client.connack.session_present
        got = [(await client.expect_publish()).payload for _ in messages]
        assert sorted(got) == messages
        await until(lambda: sessions(cluster, 1) == {"s"} and "s" not in sessions(cluster, 0))
        await client.nothing()
        await (await cluster[0].client("q")).publish("t", b"later", qos=2)
        await client.expect_publish("t", b"later", 2)


async def die_as_it_adopts(cluster: ClusterNodes) -> None:
    """The second node has the session on its disk, and has not written that it is its own."""
    stored = asyncio.Event()

    def die(step: str) -> None:
        if step == "stored":
            stored.set()
            cluster.hub.disconnect(cluster.name(1))
            raise asyncio.CancelledError

    cluster.part(1).claims.step = die
    connecting = asyncio.ensure_future(attempt(cluster[1].peer(), "s", clean_start=False, properties=MINUTE))
    await stored.wait()
    await cluster.kill(1)
    await asyncio.wait([connecting])
    connecting.exception()


async def test_what_a_node_wrote_before_it_died_takes_no_session_afterwards(tmp_path: Path) -> None:
    """That a session is its own: it comes when that node has started again, and has read that it is not."""
    settings = {**QUICK, "takeover": "refuse", "takeover_timeout": 60}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)
        late = cluster.part(1).context.wire.write(SessionKey("s", cluster.name(1), cluster.part(1).context.wire.uid))
        revision = cluster.hub.buckets[BUCKET].last[thing_key("s")].revision
        await die_as_it_adopts(cluster)
        await cluster.start(1)
        await cluster.wait_until_running()
        await until(lambda: "s" not in sessions(cluster, 1))
        with pytest.raises(WrongRevision):
            cluster.hub.write(BUCKET, thing_key("s"), late, revision, "late")
        client = await cluster[0].client("s", expiry=60, session_present=True)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)


async def test_a_client_that_comes_before_it_is_known_who_has_its_session_is_let_in_when_it_is(tmp_path: Path) -> None:
    settings = {**QUICK, "takeover_timeout": 6}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)
        await die_as_it_adopts(cluster)
        cluster.partition({0}, {1})
        await cluster.start(1)
        assert cluster.part(1).handover.is_undecided("s")
        connecting = asyncio.ensure_future(attempt(cluster[1].peer(), "s", clean_start=False, properties=MINUTE))
        await asyncio.sleep(0.5)
        cluster.heal()
        assert await connecting == 0


@pytest.mark.slow
@pytest.mark.parametrize("members_are_late", [False, True])
async def test_a_session_that_ends_before_it_is_known_who_has_it_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members_are_late: bool
) -> None:
    settings = {**QUICK, "takeover_timeout": 2}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)
        await die_as_it_adopts(cluster)
        known = [not members_are_late]
        name = cluster.name(1)
        told = Members.known.fget
        assert told is not None
        monkeypatch.setattr(
            Members, "known", property(lambda self: told(self) and (known[0] or self._context.node != name))
        )
        settles, settle = asyncio.Event(), SessionKeys.settle_earlier_life

        async def without_nats(self: SessionKeys, client_id: str, node: str) -> None:
            if not members_are_late:
                cluster.partition({0}, {1})
            settles.set()
            await settle(self, client_id, node)

        monkeypatch.setattr(SessionKeys, "settle_earlier_life", without_nats)

        async def end() -> None:
            client = cluster[0].peer()
            while await attempt(client, "s", clean_start=False, properties=MINUTE):
                client = cluster[0].peer()  # both wait for the other node for the same time
            assert client.connack.session_present
            for number in range(5):
                await client.expect_publish("t", b"%d" % number, 2)
            await client.disconnect(properties=END)
            await until(lambda: owner(cluster, "s") is None)

        if members_are_late:
            await end()
        await cluster.start(1)
        await settles.wait()
        if not members_are_late:
            await end()
        await asyncio.sleep(0.5)
        known[0] = True
        cluster.part(1).membership.changes.tell()
        cluster.heal()
        await cluster.wait_until_running()
        await until(lambda: "s" not in sessions(cluster, 1) and not cluster.part(1).session_keys.busy("s"))
        assert owner(cluster, "s") is None
        await cluster[1].client("s", expiry=60, session_present=False)


async def test_what_is_kept_of_a_session_waits_until_it_is_known_who_has_it(tmp_path: Path) -> None:
    async with cluster_nodes(1, directory=tmp_path, level="disk") as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        session = cluster[0].server.broker.sessions.get("s")
        assert session is not None
        incoming = cluster.part(0).handover._incoming
        incoming.begin("s", HandoverRow("a", "move", ADOPTED), session)
        incoming.keep("s", HandoverRow("b", "", FETCHING, rest=True, late=["c"], epoch=5, order=1), session)
        assert incoming.is_early(incoming.keepers_of("s")[0])


@pytest.mark.parametrize("expiry", [0, 60])
async def test_a_disk_in_trouble_keeps_no_client_from_going_elsewhere_when_its_session_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        client = await cluster[0].client("s", expiry=60)

        async def in_trouble() -> bool:
            return False

        first = cluster.part(0)
        with monkeypatch.context() as patch:
            patch.setattr(first.context.tables, "stored", in_trouble)
            await client.disconnect(properties=END)
            await until(lambda: first.session_keys._not_stored)
            properties = {c.SESSION_EXPIRY_INTERVAL: expiry}
            assert await attempt(cluster[1].peer(), "s", clean_start=True, properties=properties) == 0
            # Should the first node have it again after its next start, this tells that it is over.
            key = cluster.part(1).session_keys.place("s")
            assert key is not None and key.earlier == {cluster.name(0): False}
        await until(lambda: not first.session_keys._not_stored)


@pytest.mark.parametrize("at", [0, 1])
async def test_a_key_that_cannot_be_read_keeps_no_client_out(tmp_path: Path, at: int) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        for client_id in ("s", "of nobody"):
            cluster.hub.write(BUCKET, thing_key(client_id), b"no key", None, client_id)
        await cluster[at].client("s", expiry=60, session_present=True)
        await cluster[at].client("of nobody", expiry=60, session_present=False)


async def test_what_waits_for_a_queue_goes_with_a_session_that_is_begun_anew_elsewhere(tmp_path: Path) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)

        async def not_now(node: str, argument: bytes) -> bytes:
            raise CallFailed("not now")

        cluster.part(0).calls._handlers[outgoing.FETCH] = not_now
        await (await cluster[1].client("s", expiry=60, session_present=True)).drop()
        internal = cluster[1].server.broker.sessions.internal
        assert any("staging" in name for name in internal)
        cluster.partition({0, 2}, {1})
        await cluster[2].client("s", clean_start=True, properties={c.SESSION_EXPIRY_INTERVAL: 60})
        cluster.heal()
        await until(lambda: "s" not in sessions(cluster, 1) and not any("staging" in name for name in internal))


async def test_a_node_that_starts_without_nats_forgets_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a session that is going elsewhere, and knows neither that nor who the other nodes are."""
    monkeypatch.setattr(nats_cluster, "READ_TIMEOUT", 0.2)
    numbers = [b"%d" % number for number in range(200)]
    quick = {**QUICK, "takeover": "refuse", "takeover_timeout": 1}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=quick) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        publisher = await cluster[0].client("p")
        await publish_all(publisher, numbers)
        cluster.part(0).context.piece_messages = 1
        client = await cluster[1].client("s", expiry=60, session_present=True)

        def is_turned() -> bool:
            here, there = (cluster.part(number).turns.get("s") for number in range(2))
            if here is None or there is None:
                return False
            return all(here.given(cluster.name(number), there.epoch) for number in range(2))

        await until(is_turned)
        assert await cluster.part(0).context.tables.stored()
        await cluster.kill(0)
        cluster.partition({0}, {1}, quorum=1)
        await cluster.start(0)
        assert not cluster.part(0).membership.known
        await asyncio.sleep(1)  # it is looked four times a second whether somebody is asked
        assert cluster.part(0).turns.get("s") is not None
        cluster.heal()
        for number in numbers:
            await client.expect_publish("t", number, 1)
        await until(lambda: "s" not in sessions(cluster, 0))
        await until(lambda: not cluster.part(1).turns.clients())


async def test_a_session_that_was_asked_for_and_is_over_after_a_restart_leaves_no_key(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await cluster[0].leave_session("other", "t")
        old = await cluster[0].client("s", expiry=1)
        await old.drop()
        asked, answered = asyncio.Event(), asyncio.Event()

        async def never(*arguments: object) -> bool:
            asked.set()
            await answered.wait()  # an event that this test holds: a garbage collection would end the task
            return False

        cluster.part(1).session_keys.take = never  # type: ignore[method-assign]
        elsewhere = asyncio.create_task(cluster[1].client("s", expiry=60))
        await asked.wait()
        assert await cluster.part(0).context.tables.stored()
        for number in (1, 0):
            await cluster.kill(number)
        elsewhere.cancel()
        await asyncio.gather(elsewhere, return_exceptions=True)
        await asyncio.sleep(1.5)
        await cluster.start(0)
        await cluster.start(1)
        await until(lambda: cluster.part(1).node_of("other") == cluster.name(0))
        await until(lambda: cluster.part(1).node_of("s") is None)


async def test_a_session_that_was_begun_anew_and_is_over_does_not_come_back_with_its_node(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"old", qos=2)
        await cluster.kill(0)
        new = await cluster[1].client("s", expiry=3600, session_present=False)
        await new.disconnect(properties=END)
        await until(lambda: is_over(cluster, 1, "s"))
        assert owner(cluster, "s") is not None  # the other node is to see it
        await cluster.start(0)
        await until(lambda: owner(cluster, "s") is None and "s" not in sessions(cluster, 0))
        again = await cluster[1].client("s", expiry=3600, session_present=False)
        await again.nothing()


async def be_back_when_it_is_over(cluster: ClusterNodes, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The first node dies, its session begins anew at the second and ends; the first one is back, knows that, and does
    nothing about it while what is returned says so."""
    await cluster.kill(0)
    new = await cluster[1].client("s", expiry=3600, session_present=False)
    await new.disconnect(properties=END)
    await until(lambda: is_over(cluster, 1, "s"))
    settle_soon, held = SessionKeys.settle_soon, [True]

    def later(self: SessionKeys, client_id: str) -> None:
        if not held[0] or self._context.node != cluster.name(0):
            settle_soon(self, client_id)

    monkeypatch.setattr(SessionKeys, "settle_soon", later)
    await cluster.start(0)
    await until(lambda: cluster.part(0).session_keys.place("s") is not None and is_over(cluster, 0, "s"))
    return held


@pytest.mark.parametrize("expiry", [3600, 0])
async def test_nor_where_its_client_comes_before_its_node_has_seen_to_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expiry: int
) -> None:
    """Its CONNECT waits for NATS, and goes first when that is back."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"old", qos=2)
        held = await be_back_when_it_is_over(cluster, monkeypatch)
        assert "s" in sessions(cluster, 0)
        again = await cluster[0].client("s", clean_start=False, expiry=expiry, session_present=False)
        await again.nothing()
        held[0] = False
        await again.subscribe("t", qos=2)
        near = await cluster[1].client("near")
        await near.publish("t", b"new", qos=2)
        await again.expect_publish("t", b"new", 2)
        await cluster.kill(0)
        await cluster.start(0)
        await cluster[0].client("s", expiry=60, session_present=bool(expiry))


@pytest.mark.slow
@pytest.mark.parametrize("healed", [False, True])
async def test_a_session_that_begins_without_a_key_is_none_that_is_over(tmp_path: Path, healed: bool) -> None:
    """The key of the client says that an earlier one is, as its node is away."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        await cluster.kill(0)
        new = await cluster[1].client("s", expiry=3600, session_present=False)
        await new.disconnect(properties=END)
        await until(lambda: is_over(cluster, 1, "s") and "s" not in sessions(cluster, 1))
        cluster.partition({1}, {2}, quorum=1)
        client = await cluster[1].client("s", expiry=3600, session_present=False)
        await client.subscribe("t", qos=1)
        publisher = await cluster[1].client("p")
        await client.drop()
        await until(lambda: "s" not in cluster[1].server.context.channels)
        await publisher.publish("t", b"1", qos=1)
        if healed:
            cluster.heal()
            await until(lambda: cluster.part(2).node_of("s") == cluster.name(1))
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await client.expect_publish("t", b"1", 1)


async def test_of_the_clients_of_a_node_that_is_away_only_one_asks_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the node is back, all have their sessions."""
    names = [f"s{number}" for number in range(8)]
    settings = {**QUICK, "suspect_after": 60, "stopped_after": 60, "takeover": "refuse", "takeover_timeout": 120}
    prepare, asked = Handover.prepare, list[str]()

    async def counted(self: Handover, node: str, revision: int, client: ClientInfo, *args: Any) -> Prepared:
        asked.append(client.client_id)
        return await prepare(self, node, revision, client, *args)

    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        for name in names:
            await cluster[0].leave_session(name, "t")
        await cluster.kill(0)
        monkeypatch.setattr(Handover, "prepare", counted)
        first = asyncio.create_task(cluster[1].client(names[0], expiry=60, session_present=True))
        await until(lambda: bool(asked))
        others = [asyncio.create_task(cluster[1].client(name, expiry=60, session_present=True)) for name in names[1:]]
        await until(lambda: len(asked) >= 6)
        assert set(asked) == {names[0]}
        await cluster.start(0)
        await asyncio.gather(first, *others)
        assert set(asked) == set(names)


async def test_a_claim_that_has_waited_in_line_has_time_for_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_queue, "_MOST_ASKING", 1)
    settings = {**QUICK, "takeover_timeout": 60, "call_timeout": 60}
    prepare, go, times = Handover.prepare, asyncio.Event(), list[float]()

    async def timed(self: Handover, node: str, revision: int, client: ClientInfo, *args: Any) -> Prepared:
        times.append(args[-1])
        await go.wait()
        return await prepare(self, node, revision, client, *args)

    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        for name in ("first", "second"):
            await cluster[0].leave_session(name, "t")
        monkeypatch.setattr(Handover, "prepare", timed)
        claims = [asyncio.create_task(cluster[1].client("first", expiry=60, session_present=True))]
        await until(lambda: bool(times))
        claims.append(asyncio.create_task(cluster[1].client("second", expiry=60, session_present=True)))
        await asyncio.sleep(1.0)
        go.set()
        await asyncio.gather(*claims)
        assert len(times) == 2 and min(times) > 59.5


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
async def test_nor_is_one_that_begins_so_where_an_earlier_one_has_just_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """The key names this node, and cannot be written for now."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=IMPATIENT) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        held = await be_back_when_it_is_over(cluster, monkeypatch)
        cluster.partition({0}, {1}, quorum=1)
        held[0] = False
        client = await cluster[0].client("s", expiry=3600, session_present=False)
        await client.subscribe("u", qos=1)
        publisher = await cluster[0].client("p")
        await client.drop()
        await until(lambda: "s" not in cluster[0].server.context.channels)
        await publisher.publish("u", b"1", qos=1)
        if restarted:
            await cluster.kill(0)
            held[0] = True
            cluster.heal()
            await cluster.start(0)
            held[0] = False
        client = await cluster[0].client("s", expiry=3600, session_present=True)
        await client.expect_publish("u", b"1", 1)
        cluster.heal()
        await until(lambda: cluster.part(1).node_of("s") == cluster.name(0))
        assert not list(cluster.part(0).session_keys._ended.items())


@pytest.mark.parametrize("takeover", ["fresh", "refuse"])
async def test_what_a_moved_session_got_does_not_come_again_once_it_is_over(tmp_path: Path, takeover: str) -> None:
    """Its old node dies after the last piece; the client gets that, ends its session, and begins another."""
    settings = {**QUICK, "takeover": takeover}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)
        taken = asyncio.Event()

        def at(step: str) -> None:
            if step == "piece_taken" and not taken.is_set():
                taken.set()
                cluster.hub.disconnect(cluster.name(0))

        cluster.part(1).handover.step = at
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await taken.wait()
        await cluster.kill(0)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)
        await client.disconnect(properties=END)
        await until(lambda: is_over(cluster, 1, "s"))
        await cluster.start(0)
        await until(lambda: owner(cluster, "s") is None and "s" not in sessions(cluster, 0))
        again = await cluster[1].client("s", expiry=3600, session_present=False)
        await again.nothing()


@pytest.mark.parametrize("takeover", ["fresh", "refuse"])
async def test_what_was_before_clean_start_does_not_come_back_where_the_session_has_moved(
    tmp_path: Path, takeover: str
) -> None:
    settings = {**QUICK, "takeover": takeover}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"old", qos=2)
        await cluster.kill(0)
        new = await cluster[1].client("s", clean_start=True, expiry=3600)
        await new.subscribe("u", qos=1)
        moved = await cluster[2].client("s", expiry=3600, session_present=True)
        await cluster.start(0)
        await cluster.wait_until_running()
        await until(lambda: "s" not in sessions(cluster, 0))
        near = await cluster[0].client("near")
        await near.publish("t", b"not subscribed to", qos=1)
        await near.publish("u", b"new", qos=1)
        await moved.expect_publish("u", b"new", 1)
        await moved.disconnect(properties=END)
        await until(lambda: owner(cluster, "s") is None)


async def test_nobody_is_waited_for_that_is_forced_out_to_see_that_a_session_is_over(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t")
        await cluster.kill(0)
        new = await cluster[1].client("s", expiry=3600, session_present=False)
        await new.disconnect(properties=END)
        await until(lambda: is_over(cluster, 1, "s"))
        assert owner(cluster, "s") is not None
        await cluster.part(1).force_leave(cluster.name(0))
        await until(lambda: owner(cluster, "s") is None)


async def test_a_session_of_a_node_that_replaced_a_forced_out_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the name, and the client its key, before another node comes to end the session of that key."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[1].leave_session("s", "t")
        await cluster.kill(1)
        await until(lambda: cluster.part(0).members()[1].status == STOPPED)
        nats, tried, goes_on = cluster.part(0).session_keys._nats, list[str](), asyncio.Event()
        write = nats.write

        async def late(bucket: str, key: str, value: bytes | None, *args: Any) -> int:
            if bucket == BUCKET and value is None:
                tried.append(key)
                if not goes_on.is_set():
                    await goes_on.wait()
                    raise Unavailable("no quorum")
            return await write(bucket, key, value, *args)

        monkeypatch.setattr(nats, "write", late)
        await cluster.part(0).force_leave(cluster.name(1))
        await until(lambda: tried)
        shutil.rmtree(cluster._data_dir(1))
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=3600, session_present=False)
        await client.subscribe("u", qos=1)
        key = owner(cluster, "s")
        await until(lambda: cluster.part(0).node_of("s") == cluster.name(1))
        goes_on.set()
        await asyncio.sleep(RETRY + 0.2)
        assert owner(cluster, "s") == key is not None and len(tried) == 1
        await client.close()
        await cluster[0].client("s", expiry=3600, session_present=True)


async def test_a_client_keeps_its_session_where_the_end_of_an_earlier_one_is_told_late(tmp_path: Path) -> None:
    """The bucket tells the node of its own write when the client has its session already."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        await cluster.kill(0)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        watch = cluster.part(1).session_keys._watch
        assert isinstance(watch, VirtualWatch)
        tell, late = watch._on_entry, list[BucketEntry]()
        watch._on_entry = late.append
        new = await cluster[1].client("s", clean_start=True)
        await new.subscribe("t", qos=2)
        await until(lambda: late)
        for entry in late:
            tell(entry)
        await cluster.wait_until_quiet()
        near = await cluster[1].client("near")
        await near.publish("t", b"1", qos=2)
        await new.expect_publish("t", b"1", 2)


async def test_a_client_that_is_back_at_a_node_that_was_cut_off_keeps_its_session(tmp_path: Path) -> None:
    """It began one anew at the other side, ended that, and came back, before the two sides heard of each other. The
    bucket tells the last value of a key only."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=1)
        cluster.partition({0}, {1}, quorum=1)
        new = await cluster[1].client("s", expiry=3600, session_present=False)
        await new.disconnect(properties=END)
        await until(lambda: is_over(cluster, 1, "s"))
        back = await cluster[0].client("s", expiry=3600, session_present=True)
        watch = cluster.part(0).session_keys._watch
        assert isinstance(watch, VirtualWatch)
        tell, told = watch._on_entry, list[BucketEntry]()
        watch._on_entry = told.append
        cluster.heal()
        await until(lambda: len(told) == 2)
        watch._on_entry = tell
        tell(told[1])
        await until(lambda: cluster.part(1).node_of("s") == cluster.name(0))
        await cluster.wait_until_running()
        publisher = await cluster[1].client("p")
        await publisher.publish("t", b"1", qos=1)
        await back.expect_publish("t", b"1", 1)


async def test_a_node_that_starts_without_nats_keeps_a_session_that_it_has_just_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died before it had noted that the key is its own; the node that gave the session has started again, too."""
    monkeypatch.setattr(nats_cluster, "READ_TIMEOUT", 0.2)
    settings = {**QUICK, "takeover": "refuse", "takeover_timeout": 30}
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)
        taken = asyncio.Event()

        def dies(step: str) -> None:
            if step == "taken" and not taken.is_set():
                taken.set()
                cluster.hub.disconnect(cluster.name(1))
                raise asyncio.CancelledError

        cluster.part(1).claims.step = dies
        properties: dict[int, Any] = {c.SESSION_EXPIRY_INTERVAL: 60}
        connecting = asyncio.ensure_future(attempt(cluster[1].peer(), "s", clean_start=False, properties=properties))
        await taken.wait()
        await cluster.kill(1)
        await asyncio.wait([connecting])
        connecting.exception()
        cluster.partition({0}, {1}, quorum=0)
        await cluster.start(1)
        await cluster.kill(0)
        await cluster.start(0)
        cluster.heal()
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=60, session_present=True)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)


@pytest.mark.slow
async def test_a_client_is_let_in_where_the_key_of_a_node_that_is_forced_out_could_not_be_deleted(
    tmp_path: Path,
) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await cluster[1].leave_session("s", "t", qos=2)
        await until(lambda: cluster.part(0).node_of("s") is not None)
        await cluster.kill(1)
        await until(lambda: cluster.part(0).members()[1].status == STOPPED)
        # NATS elects a leader for longer than a write waits.
        cluster.part(0).membership.on_removed.insert(0, lambda peer: cluster.hub.lose_leader(7))
        await cluster.part(0).membership.force_leave(cluster.name(1))
        await until(lambda: owner(cluster, "s") is None)
        await cluster[2].client("s", expiry=60, session_present=False)


async def test_the_session_of_a_node_that_is_no_member_is_nobodys(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path) as cluster:
        owned = cluster.part(1).context.wire.write(SessionKey("s", "n9@gone", "uid of n9"))
        await cluster.clients[1].write(BUCKET, thing_key("s"), owned, 0, "nonce")
        await until(lambda: cluster.part(0).session_keys.node_of("s") == "n9@gone")
        assert cluster.part(0).node_of("s") is None


async def test_who_was_paused_looks_whether_it_is_a_member_before_it_takes_a_session(tmp_path: Path) -> None:
    """Forced out meanwhile, and not told yet; or not, and then nothing is lost but the time of the question."""
    async with cluster_nodes(2, directory=tmp_path, cluster=QUICK) as cluster:
        cluster[1].ignore(lambda record: "cluster_membership_lost" in record.getMessage())
        cluster[0].ignore(lambda record: "cluster_membership_lost" in record.getMessage())
        members, raw = cluster.part(1).membership, cluster.clients[1]
        members.check._last_beat -= 60
        await cluster[1].client("before", expiry=60)
        assert owner(cluster, "before") is not None and members.joined
        raw.watches = [each for each in raw.watches if each.bucket != "members"]
        record = msgspec.structs.replace(members.own_record.value(), forced_out=True)
        await raw.write(
            "members", members.key, cluster.part(1).context.wire.write(record), members.own_record.revision, "nonce"
        )
        members.check._last_beat -= 60
        await cluster[1].client("after", expiry=60)
        assert owner(cluster, "after") is None and not members.joined


@pytest.mark.parametrize("version", [4, 5])
async def test_a_client_that_moves_gets_what_was_published_while_its_node_was_away_once(
    tmp_path: Path, version: int
) -> None:
    """With ``fresh`` and QoS 2, by way of each node: before the client has subscribed anew, after that, while its first
    node is back, and then."""
    settings = {**QUICK, "takeover": "fresh", "strict_subscribe": True}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        near, far = await cluster[1].client("near"), await cluster[2].client("far")
        for at in (1, 2):
            await until(lambda at=at: cluster[at].server.broker.router.remote_mask("t"))  # type: ignore[misc]
        sent: list[bytes] = []

        async def publish(count: int, *others: Peer) -> None:
            for number in range(count):
                for publisher in (near, far, *others):
                    sent.append(b"%d" % len(sent))
                    await publisher.publish("t", sent[-1], qos=1 + number % 2)

        await cluster.kill(0)
        await publish(4)
        new = await cluster[1].client("s", version, expiry=3600, session_present=False)
        await publish(4)
        before = len(sent)
        await new.subscribe("t", qos=2)
        await publish(6)
        got = [(await new.expect_publish()).payload for _ in sent[before:]]
        assert got == sent[before:]
        await new.nothing()
        await cluster.start(0)
        back = await cluster[0].client("back")
        await publish(4, back)
        got += [(await new.expect_publish()).payload for _ in range(len(sent) - len(got))]
        assert sorted(got, key=int) == sent
        await until(lambda: "s" not in sessions(cluster, 0))
        await publish(1, back)
        for payload in sent[-3:]:
            await new.expect_publish("t", payload)
        await until(lambda: not cluster.part(1).turns.clients() and not cluster.part(0).turns.clients())
        await new.nothing()


async def test_a_session_that_has_moved_while_its_node_stopped_is_not_called_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was begun anew meanwhile is."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await leave_five(cluster)
        await cluster[0].leave_session("other", "t", qos=1)

        async def not_now(node: str, argument: bytes) -> bytes:
            raise CallFailed("not now")

        cluster.part(0).calls._handlers[outgoing.FETCH] = not_now
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await cluster.stop(0)
        await cluster[1].client("other", clean_start=True, properties=MINUTE)
        caplog.clear()
        await cluster.start(0)
        for number in range(5):
            await client.expect_publish("t", b"%d" % number, 2)
        await until(lambda: not sessions(cluster, 0))
        lost = [each.getMessage() for each in caplog.records if "session_lost" in each.getMessage()]
        assert [each.split()[1] for each in lost] == ["client_id=other"]


async def test_a_session_moves_on_when_the_rest_of_it_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began anew at the second node, and its client goes to the third one while the first is giving what it has:
    that node does not know yet that the last piece has come, and would give it again."""
    piece = outgoing.Outgoing.piece
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def held(self: outgoing.Outgoing, node: str, ask: Fetch) -> Piece:
        if ask.rest and ask.taken and not goes_on.is_set():
            asked.set()
            return Piece(BUSY)
        return await piece(self, node, ask)

    monkeypatch.setattr(outgoing.Outgoing, "piece", held)
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await leave_five(cluster)
        await cluster.kill(0)
        await until(lambda: cluster.part(1).members()[0].status == STOPPED)
        client = await cluster[1].client("s", expiry=60, session_present=False)
        await client.subscribe("t", qos=2)
        await client.drop()
        await cluster.start(0)
        await asked.wait()
        moving = asyncio.ensure_future(cluster[2].client("s", expiry=60, session_present=True))
        answers = cluster.part(1).calls._handlers[PREPARE]
        refused = asyncio.Event()

        async def watched(node: str, argument: bytes) -> bytes:
            answer = await answers(node, argument)
            if msgspec.msgpack.decode(answer, type=Prepared).state == BUSY:
                refused.set()
            return answer

        cluster.part(1).calls._handlers[PREPARE] = watched
        await until(lambda: refused.is_set() or moving.done())
        goes_on.set()
        client = await moving
        got = sorted([(await client.expect_publish("t")).payload for _ in range(5)])
        assert got == [b"%d" % number for number in range(5)]
        await until(lambda: "s" not in sessions(cluster, 0) and "s" not in sessions(cluster, 1))
        await client.nothing()


@pytest.mark.parametrize("back", ["back", "back after the first", "forced out"])
async def test_a_piece_of_a_queue_comes_once_where_its_node_died_in_the_middle_of_a_move(
    tmp_path: Path, back: str
) -> None:
    """The second node has got a piece from the first one and dies before it says so, and the session begins anew at the
    third. The first one asks the second what that has; when it was forced out, the piece is given again."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await leave_five(cluster)
        cluster.part(0).context.piece_messages = 2
        pieces = cluster.part(0).calls._handlers[outgoing.FETCH]

        async def first_piece(node: str, argument: bytes) -> bytes:
            if msgspec.msgpack.decode(argument, type=Fetch).taken:
                raise CallFailed("not now")
            return await pieces(node, argument)

        cluster.part(0).calls._handlers[outgoing.FETCH] = first_piece
        client = await cluster[1].client("s", expiry=60, session_present=True)
        got = [(await client.expect_publish("t", qos=2)).payload for _ in range(2)]
        coming = cluster.part(1).handover._incoming.get("s")
        assert coming is not None and coming.row.taken == 1 and await cluster.part(1).context.tables.stored()
        await cluster.kill(1)
        await until(lambda: cluster.part(2).members()[1].status == STOPPED)
        cluster.part(0).calls._handlers[outgoing.FETCH] = pieces
        client = await cluster[2].client("s", expiry=60, session_present=False)
        await client.subscribe("t", qos=2)
        await until(
            lambda: (found := cluster.part(2).handover._incoming.get("s")) and found.row.node == cluster.name(0)
        )
        await client.nothing()
        if back == "back after the first":
            await cluster.kill(0)
            await cluster.start(0)
            await cluster.start(1)
        elif back == "back":
            await cluster.start(1)
        else:
            await until(lambda: cluster.part(0).members()[1].status == STOPPED)
            await cluster.part(0).force_leave(cluster.name(1))
            got.clear()
        got += [(await client.expect_publish("t")).payload for _ in range(5 - len(got))]
        assert got == [b"%d" % number for number in range(5)]
        await client.nothing()
        await until(lambda: "s" not in sessions(cluster, 0))

        def rows() -> list[str]:
            tables = [each.server.tables.rows() for each in cluster.nodes.values()]
            return [table for each in tables for table, _, _ in each if table.startswith("handover")]

        await until(lambda: not rows())
