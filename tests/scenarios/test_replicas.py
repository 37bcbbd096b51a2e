"""Copies of a node's data: what is acknowledged is on the disks of two nodes."""

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.cluster.nats.interface import REPLICAS, BucketEntry, NoAnswer, Unavailable, Unknown
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.replicas import copies as copies_module
from taipan.broker.cluster.replicas import shipping as shipping_module
from taipan.broker.cluster.replicas import tail
from taipan.broker.cluster.replicas.choice import CopyPlace
from taipan.broker.cluster.replicas.copies import Copies
from taipan.broker.cluster.replicas.frames import Resume
from taipan.broker.cluster.replicas.records import ReplicaRecord, copy_directory
from taipan.broker.cluster.replicas.shipping import Shipping
from taipan.broker.cluster.wire import node_key
from taipan.broker.core.cluster import ChangeRefused
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.packets import Ack, Will
from taipan.broker.mqtt.reason_codes import QUOTA_EXCEEDED, SERVER_UNAVAILABLE, SUCCESS, USE_ANOTHER_SERVER
from taipan.broker.persistence.log.batch import decode
from taipan.broker.persistence.log.check_file import CheckFile, Digests
from taipan.broker.persistence.log.errors import StoreError, WriteTrouble
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from taipan.broker.store import compaction
from tests.support.cluster_nodes import ClusterNodes, _CopiedLog, _logs_of_copies, cluster_nodes
from tests.support.nats_server import NatsServers
from tests.support.node import Node, make_settings
from tests.support.peer import Peer
from tests.support.waiting import until
from tests.support.wire import Publish

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.timeout(120)]

VERSIONS = (4, 5)
QUICK = {"suspect_after": 2.0, "stopped_after": 3.0, "strict_subscribe": True, "replicas": 1, "replica_timeout": 0.6}


def replicated(directory: Path, count: int = 2, **options: Any) -> contextlib.AbstractAsyncContextManager[ClusterNodes]:
    """Nodes with copies of each other on a virtual NATS."""
    cluster = {**QUICK, **options.pop("cluster", {})}
    return cluster_nodes(count, directory=directory, level="disk", cluster=cluster, **options)


def cluster_of(node: Node) -> NatsCluster:
    cluster = node.server.cluster
    assert isinstance(cluster, NatsCluster)
    return cluster


def shipping(node: Node) -> Shipping:
    found = cluster_of(node).shipping
    assert found is not None
    return found


def copies(node: Node) -> Copies:
    found = cluster_of(node).copies
    assert found is not None
    return found


async def until_in_sync(*nodes: Node) -> None:
    """Until each of them has all its copies."""
    await until(lambda: all(shipping(node).core.copies == shipping(node)._settings.replicas for node in nodes))


def refused(node: Node, reason: str) -> int:
    """How often the node has counted it."""
    return node.server.metrics.refusals.snapshot().get(f"cluster_{reason}", 0)


def stored(directory: Path) -> bytes:
    """All records of a log, opened from what its files have at this moment."""
    look = directory.parent / f"look-{directory.name}"
    shutil.rmtree(look, ignore_errors=True)
    shutil.copytree(directory, look)
    log = SqliteLog(look / "taipan.db")
    log.open()
    found = b"".join(record for _, data in log.scan() for record in decode(data))
    log.checkpoint_and_close()
    shutil.rmtree(look)
    return found


def rows(directory: Path) -> list[tuple[int, bytes]]:
    """Numbers and data of all batches of a log that is closed."""
    log = SqliteLog(directory / "taipan.db")
    log.open()
    assert log.salvaged is None
    found = list(log.scan())
    log.checkpoint_and_close()
    return found


@asynccontextmanager
async def nodes_on(urls: list[str], directory: Path, count: int = 2, **cluster: Any) -> AsyncIterator[list[Node]]:
    """So many nodes on real NATS servers, with copies of each other."""
    nodes: list[Node] = []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(1, count + 1):
            data = {"name": f"n{number}@127.0.0.1", "data_dir": str(directory / f"n{number}")}
            table = {**QUICK, "servers": urls, **cluster}
            Path(data["data_dir"]).mkdir()
            nodes.append(Node(make_settings(node=data, cluster=table, durability={"level": "disk"})))
            await nodes[-1].start()
            stack.push_async_callback(nodes[-1].stop)
        await until_in_sync(*nodes)
        yield nodes


async def away(node: Node, client_id: str, version: int, topic: str, qos: int = 1) -> None:
    """A subscriber whose session waits."""
    client = await node.client(client_id, version, expiry=3600)
    await client.subscribe(topic, qos=qos)
    await client.drop()


async def test_puback_means_on_two_disks(tmp_path: Path) -> None:
    """When PUBACK arrives, the copy's file has the message; so it is with PUBREC and SUBACK."""
    async with NatsServers(1) as servers, nodes_on(servers.urls, tmp_path) as (origin, follower):
        copy = copy_directory(Path(follower.settings.node.data_dir), "n1@127.0.0.1")
        for version in VERSIONS:
            await away(origin, f"s{version}", version, "t", 2)
            assert f"s{version}".encode() in stored(copy)
            publisher = await origin.client(f"p{version}", version)
            for qos in (1, 2):
                payload = b"payload %d %d" % (version, qos)
                await publisher.publish("t", payload, qos=qos, expect=SUCCESS)
                assert payload in stored(copy)


async def test_the_copy_is_a_store(tmp_path: Path) -> None:
    """A node that is started on a copy has the session and its queue."""
    async with NatsServers(1) as servers, nodes_on(servers.urls, tmp_path) as (origin, follower):
        await away(origin, "s", 5, "t", 2)
        publisher = await origin.client("p", 5)
        for number in range(20):
            await publisher.publish("t", b"%d" % number, qos=1 + number % 2, expect=SUCCESS)
        data_dir = Path(follower.settings.node.data_dir)
        assert copies(follower).held() == ["n1@127.0.0.1"]
        directory = await copies(follower).release("n1@127.0.0.1")
        assert directory == copy_directory(data_dir, "n1@127.0.0.1")
        shutil.copytree(directory, tmp_path / "elsewhere")
    node = {"name": "n1@127.0.0.1", "data_dir": str(tmp_path / "elsewhere")}
    again = Node(make_settings(node=node, durability={"level": "disk"}))
    await again.start()
    try:
        assert not again.server.alarms.active
        client = await again.client("s", 5, expiry=3600, session_present=True)
        found = [(await client.expect_publish()).payload for _ in range(20)]
        assert found == [b"%d" % number for number in range(20)]
    finally:
        await again.stop()


async def flood(publisher: Peer, count: int, size: int = 10, topic: str = "t") -> list[bytes]:
    """Publish so many messages at once, and wait until each is acknowledged; their payloads."""
    payloads = [b"%d " % number + b"x" * size for number in range(count)]
    numbers = [publisher.next_packet_id() for _ in payloads]
    for number, payload in zip(numbers, payloads, strict=True):
        await publisher.send(Publish(topic, payload, 1, False, False, number, {}))
    for number in numbers:
        await publisher.answer(Ack, type=c.PUBACK, packet_id=number, reason_code=0)
    return payloads


def data_dir(node: Node) -> Path:
    return Path(node.server.settings.node.data_dir)


def copy_of(cluster: ClusterNodes, origin: int, follower: int) -> Path:
    return copy_directory(data_dir(cluster[follower]), cluster.name(origin))


def record_of(cluster: ClusterNodes, origin: int, seen_by: int) -> ReplicaRecord | None:
    records = cluster_of(cluster[seen_by]).replica_records
    assert records is not None
    return records.of(cluster.name(origin))


def in_sync(cluster: ClusterNodes, origin: int, seen_by: int) -> tuple[str, ...]:
    record = record_of(cluster, origin, seen_by)
    return record.in_sync if record is not None else ()


async def assert_same_logs(cluster: ClusterNodes, origin: int, follower: int) -> None:
    """Batch by batch, up to the last that was copied. Stops both nodes."""
    await until(lambda: shipping(cluster[origin]).core.durable == shipping(cluster[origin]).core.last)
    core = shipping(cluster[origin]).core
    last = core.last
    original, copy = data_dir(cluster[origin]), copy_of(cluster, origin, follower)
    await cluster.stop(follower)
    await cluster.stop(origin)
    copied = rows(copy)
    assert copied[-1][0] >= last
    assert copied == [row for row in rows(original) if row[0] <= copied[-1][0]]


# ---------------------------------------------------------------------- copying


async def test_both_logs_are_the_same(tmp_path: Path) -> None:
    """Also batches that are greater than a message of NATS."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        with cluster.held_disk(0):
            flooding = asyncio.ensure_future(flood(publisher, 6, 700_000))
            await asyncio.sleep(0.2)
        await flooding
        await flood(publisher, 100)
        await assert_same_logs(cluster, 0, 1)


async def test_messages_of_nats_are_lost(tmp_path: Path) -> None:
    """Batches and answers that are lost, repeated or late cost time, and nothing else."""
    async with replicated(tmp_path, cluster={"replica_timeout": 5}) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        cluster.hub.drop = cluster.hub.repeat = cluster.hub.disorder = 0.1
        for _ in range(20):
            await flood(publisher, 20)
        cluster.hub.drop = cluster.hub.repeat = cluster.hub.disorder = 0.0
        await until_in_sync(cluster[0])
        await assert_same_logs(cluster, 0, 1)


async def test_an_old_store_is_filled_in(tmp_path: Path) -> None:
    """A node that had no copy gets one: what it had is copied while its clients publish."""
    async with replicated(tmp_path) as cluster:
        await cluster.stop(1)
        shutil.rmtree(cluster._data_dir(1))
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        for _ in range(30):
            await flood(publisher, 20, 10_000)
        assert shipping(cluster[0])._tail.first > 2  # the beginning is in the file alone
        await cluster.start(1)
        while in_sync(cluster, 0, 1) != (cluster.name(1),):
            await flood(publisher, 5)
        await assert_same_logs(cluster, 0, 1)


async def test_deleted_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction makes the copies smaller as well."""
    monkeypatch.setattr(compaction, "COMPACT_ABOVE", 200_000)
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "kept")
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10, topic="kept")
        log = shipping(cluster[0])._log
        for _ in range(20):
            for _number in range(50):
                await publisher.publish("t", b"x" * 1000, qos=1, retain=True)
            if log.first_batch > 1:
                break
        assert log.first_batch > 1
        monkeypatch.undo()
        compacting = cluster[0].server.store.compaction
        await until(lambda: not compacting.running and not log.dropping)
        copy = copies(cluster[1])._copies[cluster.name(0)]
        await until(lambda: copy.log is not None and copy.log.first == log.first_batch)
        await assert_same_logs(cluster, 0, 1)


async def test_batches_are_deleted_while_a_copy_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copy then has of the old batches is not the whole of them: a session that ended in a missing one would
    be back. So the copy does not count before the old ones are deleted there, too."""
    monkeypatch.setattr(shipping_module, "WINDOW", 100_000)
    monkeypatch.setattr(tail, "KEPT_BYTES", 100_000)
    async with replicated(tmp_path) as cluster:
        await cluster.stop(1)
        shutil.rmtree(cluster._data_dir(1))
        await away(cluster[0], "gone", 5, "other")
        publisher = await cluster[0].client("p", 5)
        for _ in range(100):
            await publisher.publish("t", b"x" * 10_000, qos=1, retain=True)
        opened: list[_SlowLog] = []

        def make_log(path: Path, check: CheckFile) -> SqliteLog:
            opened.append(_SlowLog(path, check=check))
            return opened[-1]

        start = Copies.start

        def with_slow_log(each: Copies) -> None:
            each.make_log = make_log
            start(each)

        monkeypatch.setattr(Copies, "start", with_slow_log)
        await cluster.start(1)
        await until(lambda: opened and opened[-1].last > 3)
        log = shipping(cluster[0])._log
        await (await cluster[0].client("gone", 5, clean_start=True)).disconnect()
        monkeypatch.setattr(compaction, "COMPACT_ABOVE", 100_000)
        while log.first_batch <= opened[-1].last + 1 or log.dropping:
            await publisher.publish("t", b"x" * 10_000, qos=1, retain=True)
        position = opened[-1].last
        opened[-1].may_append.set()
        await until(lambda: opened[-1].last >= log.batch - 1)
        await asyncio.sleep(1.0)
        assert opened[-1].first < position < log.first_batch and not in_sync(cluster, 0, 1)
        opened[-1].may_drop.set()
        while in_sync(cluster, 0, 1) != (cluster.name(1),):
            await asyncio.sleep(0.01)
        assert opened[-1].first > position
        monkeypatch.setattr(compaction, "COMPACT_ABOVE", 1 << 40)
        store = cluster[0].server.store
        assert store is not None
        await until(lambda: not store.compaction.running)
        if store.compaction._finishing is not None:
            await store.compaction._finishing
        await until(lambda: not log.dropping and opened[-1].first == log.first_batch)
        await assert_same_logs(cluster, 0, 1)


class _SlowLog(_CopiedLog):
    """Appends some batches, and the others later; deletes later."""

    def __init__(self, path: Path, check: CheckFile) -> None:
        super().__init__(path, check=check)
        self.may_append = threading.Event()
        self.may_drop = threading.Event()

    def append(self, seq: int, data: bytes, access: Digests | None = None) -> None:
        assert self.last < 4 or self.may_append.wait(60)
        super().append(seq, data, access)

    def append_all(self, batches: list[tuple[int, bytes, Digests | None]]) -> None:
        assert self.last < 4 or self.may_append.wait(60)
        super().append_all(batches)

    def drop_some(self, before: int) -> bool:
        return super().drop_some(before) if self.may_drop.is_set() else True


# --------------------------------------------------------------- a follower is lost


async def test_a_follower_is_lost_and_comes_back(tmp_path: Path) -> None:
    """Publishers notice one pause. The follower catches up while traffic goes on, and counts again."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        assert in_sync(cluster, 0, 0) == (cluster.name(1),)
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10)
        await cluster.kill(1)
        await flood(publisher, 10)  # waits until the follower is in the set no more
        assert in_sync(cluster, 0, 0) == ()
        await until(lambda: "replica_missing" in cluster[0].server.alarms.active)
        assert refused(cluster[0], "replica_left") == 1
        for _ in range(10):
            await flood(publisher, 10, 1000)
        await cluster.start(1)
        while in_sync(cluster, 0, 0) != (cluster.name(1),):
            await flood(publisher, 5)
        await until(lambda: "replica_missing" not in cluster[0].server.alarms.active)
        await flood(publisher, 5)
        await assert_same_logs(cluster, 0, 1)


async def test_another_follower_is_filled(tmp_path: Path) -> None:
    """When a follower is Stopped, another node gets a copy; when it is back, its copy counts again, and the other one
    is deleted."""
    async with replicated(tmp_path, 3) as cluster:
        await until_in_sync(*cluster.nodes.values())
        (first,) = in_sync(cluster, 0, 0)
        lost = [cluster.name(number) for number in range(3)].index(first)
        other = 3 - lost
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10)
        await cluster.kill(lost)
        while in_sync(cluster, 0, 0) != (cluster.name(other),):
            await flood(publisher, 5)
        await cluster.start(lost)
        while in_sync(cluster, 0, 0) != (cluster.name(lost),):
            await flood(publisher, 5)
        directory = copy_of(cluster, 0, other)
        await until(lambda: not directory.exists())
        await assert_same_logs(cluster, 0, lost)


async def test_the_disk_of_the_follower_is_slow(tmp_path: Path) -> None:
    """Nothing waits longer than ``cluster.replica_timeout``."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        (log,) = _logs_of_copies(cluster[1])
        with log.lock:
            await flood(publisher, 10)
            assert in_sync(cluster, 0, 0) == ()
        while in_sync(cluster, 0, 0) != (cluster.name(1),):
            await flood(publisher, 5)
        await assert_same_logs(cluster, 0, 1)


async def test_the_disk_of_the_follower_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower says so, and is taken out of the set at once."""
    async with replicated(tmp_path, cluster={"replica_timeout": 600.0}) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("replica_trouble",)
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        (log,) = _logs_of_copies(cluster[1])
        full = True

        def append(seq: int, data: bytes, access: Digests | None = None) -> None:
            if full:
                raise WriteTrouble("no space left for the store")
            SqliteLog.append(log, seq, data, access)

        monkeypatch.setattr(log, "append", append)
        monkeypatch.setattr(log, "append_all", lambda batches: [append(*batch) for batch in batches])
        await flood(publisher, 10)
        assert in_sync(cluster, 0, 0) == ()
        full = False
        shipping(cluster[0]).core._timeout = 0.1  # it may join at once
        for follower in shipping(cluster[0]).core.followers.values():
            follower.not_before = 0.0
        while in_sync(cluster, 0, 0) != (cluster.name(1),):
            await flood(publisher, 5)
        await assert_same_logs(cluster, 0, 1)


async def test_a_copy_is_deleted_by_hand(tmp_path: Path) -> None:
    """It is filled again, after the record has said that it does not count."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10)
        await cluster.kill(1)
        shutil.rmtree(cluster._data_dir(1) / "replicas")
        await cluster.start(1)
        await flood(publisher, 10)
        await until_in_sync(cluster[0])
        assert refused(cluster[0], "replica_left") >= 1
        await assert_same_logs(cluster, 0, 1)


async def test_an_answer_is_lost_after_the_last_batch(tmp_path: Path) -> None:
    """That the disk of the follower works again: the origin asks, though nothing is on its way."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        origin = shipping(cluster[0])
        origin.core.failed(cluster[1].server.settings.node.name, "no space left")
        await until(lambda: not origin.core.members)
        await until_in_sync(cluster[0])


async def test_copies_on_one_machine_are_an_alarm(tmp_path: Path) -> None:
    async with replicated(tmp_path, cluster={"replica_timeout": 1.0}) as cluster:
        alarms = cluster[0].server.alarms.active
        await until(lambda: "replicas_one_machine" in alarms)
        assert alarms["replicas_one_machine"].details["nodes"] == cluster.name(1)
        shipping(cluster[0])._place = CopyPlace("", "another machine")
        await until(lambda: "replicas_one_machine" not in alarms)


async def test_a_disk_that_does_not_close_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it does, no node is started from the files, and none fills them again."""
    monkeypatch.setattr(copies_module, "CLOSE_TIMEOUT", 0.2)
    expected = ("replica_not_closed", "replica_trouble", "replicas_trouble")
    async with replicated(tmp_path, expected=expected) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        (log,) = _logs_of_copies(cluster[1])
        publisher = await cluster[0].client("p")
        await away(cluster[0], "s", 5, "t")
        with log.lock:
            await publisher.send(Publish("t", bytes(100_000), 1, packet_id=7))
            await until(lambda: copies(cluster[1]).pending_bytes > 100_000)
            with pytest.raises(StoreError, match="has not closed the files"):
                await copies(cluster[1]).release(cluster.name(0))
            with pytest.raises(StoreError, match="has not closed the files"):
                await copies(cluster[1]).release(cluster.name(0))
            copies(cluster[1]).accept_again(cluster.name(0))
            await publisher.answer(Ack, type=c.PUBACK, packet_id=7)  # without this copy
        await until_in_sync(cluster[0], cluster[1])
        await assert_same_logs(cluster, 0, 1)


async def test_an_old_revision_of_the_record(tmp_path: Path) -> None:
    """NATS reports the record late, or a server that was elected a moment ago does not have the newest one yet."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        origin = shipping(cluster[0])
        name, key = cluster[0].server.settings.node.name, node_key(cluster[0].server.settings.node.name)
        newest = cluster.hub.buckets[REPLICAS].last[key]
        old = ReplicaRecord(name, origin._wire.uid, 1, (), "n9@127.0.0.1")
        entry = BucketEntry(key, origin._wire.write(old), newest.revision - 1)
        origin.record._records._entry(entry)
        assert not origin.core.replaced
        cluster.hub.buckets[REPLICAS].last[key] = entry
        with pytest.raises(NoAnswer):
            await origin.record._read()
        assert not origin.core.replaced and origin.core.members
        cluster.hub.buckets[REPLICAS].last[key] = newest


async def test_a_record_whose_deletion_is_not_answered(tmp_path: Path) -> None:
    """The node stays, and so does its record."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        origin, hub = shipping(cluster[0]), cluster.hub
        key = node_key(cluster[0].server.settings.node.name)
        write = origin._nats.raw.write

        async def unanswered(*arguments: Any, **options: Any) -> int:
            origin._nats.raw.write = write  # type: ignore[method-assign]
            await write(*arguments, **options)
            raise Unknown("no answer")

        origin._nats.raw.write = unanswered  # type: ignore[method-assign]
        with pytest.raises(Unknown):
            await origin.withdraw()
        assert hub.buckets[REPLICAS].value(key) is None
        await until(lambda: hub.buckets[REPLICAS].value(key) is not None)
        await until_in_sync(cluster[0])


async def test_a_takeover_that_another_write_has_overtaken(tmp_path: Path) -> None:
    """The follower had closed its copy, and the origin did not notice: neither of them may wait for the other."""
    async with replicated(tmp_path) as cluster:
        origin, follower = cluster[0], cluster[1]
        await until_in_sync(origin, follower)
        assert await copies(follower).release(origin.server.settings.node.name)
        await away(origin, "s", 5, "t")
        publisher = await origin.client("p")
        await publisher.publish("t", b"without it", qos=1)
        assert shipping(origin).core.copies == 0
        copies(follower).accept_again(origin.server.settings.node.name)
        await until_in_sync(origin)
        await publisher.publish("t", b"with it", qos=1)
        await assert_same_logs(cluster, 0, 1)


async def test_a_slow_follower_pauses_publishers(tmp_path: Path) -> None:
    """What it has not confirmed is bounded, as what waits for the node's own disk."""
    async with replicated(tmp_path, cluster={"replica_timeout": 600.0, "stopped_after": 900.0}) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        most = shipping(cluster[0])._log.max_pending = shipping(cluster[0])._tail._most_bytes = 4_194_304
        budget = cluster[0].server.broker.budget
        (log,) = _logs_of_copies(cluster[1])
        publishers = [await cluster[0].client(f"p{number}", 5) for number in range(8)]
        with log.lock:
            flooding = [asyncio.ensure_future(flood(publisher, 10, 500_000)) for publisher in publishers]
            await until(lambda: budget.congested)
            for _ in range(20):
                await asyncio.sleep(0.02)
                # What was read before the pause comes on top: a buffer and a packet of each client.
                assert shipping(cluster[0]).tail_bytes <= most + len(publishers) * 1_500_000
                parts = cluster[0].server.memory.parts()
                assert parts["messages"] >= shipping(cluster[0]).tail_bytes
        await asyncio.gather(*flooding)
        assert not budget.congested
        await assert_same_logs(cluster, 0, 1)


async def test_a_copy_is_damaged(tmp_path: Path) -> None:
    """A copy whose file cannot be read as it is lacks something: it leaves the record, and is filled again."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("replica_trouble",)
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10, 10_000)
        directory = copy_of(cluster, 0, 1)
        await cluster.stop(1)
        file = directory / "taipan.db"
        content = bytearray(file.read_bytes())
        content[4096:4104] = b"\xff" * 8  # the head of the page with the table
        file.write_bytes(content)
        await flood(publisher, 1)
        await cluster.start(1)
        await until_in_sync(cluster[0])
        await flood(publisher, 10)
        await assert_same_logs(cluster, 0, 1)


async def test_a_qos_2_handshake_waits_for_the_copy(tmp_path: Path) -> None:
    """PUBREC and PUBCOMP, too; a follower that is lost in between delays them once."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "t", 2)
        for version in VERSIONS:
            publisher = await cluster[0].client(f"p{version}", version)
            (log,) = _logs_of_copies(cluster[1])
            with log.lock:
                await publisher.send(Publish("t", b"%d" % version, 2, False, False, 7, {}))
                await asyncio.sleep(0.1)
                await publisher.nothing()
            await publisher.answer(Ack, type=c.PUBREC, packet_id=7)
            await publisher.send(Publish("t", b"%d" % version, 2, False, True, 7, {}))
            await publisher.answer(Ack, type=c.PUBREC, packet_id=7)
            await publisher.pubrel(7)
            await publisher.answer(Ack, type=c.PUBCOMP, packet_id=7)
        client = await cluster[0].client("s", 5, expiry=3600, session_present=True)
        assert [(await client.expect_publish()).payload for _ in VERSIONS] == [b"4", b"5"]
        await client.nothing()


async def test_fewer_copies_than_replicas_min(tmp_path: Path) -> None:
    """Rather than going on without a copy, the node refuses, as with a disk in trouble."""
    table = {"replicas_min": 1, "replica_timeout": 2.0}
    async with replicated(tmp_path, cluster=table, expected=("replicas_trouble",)) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "t")
        new, old = await cluster[0].client("p5", 5), await cluster[0].client("p4", 4)
        await cluster.kill(1)
        await new.send(Publish("t", b"before", 1, False, False, 100, {}))
        await until(lambda: cluster[0].server.broker.durability.commit.trouble is not None)
        later = await cluster[0].client("p5-later", 5)
        assert await later.publish("t", b"refused", qos=1, expect=QUOTA_EXCEEDED) == QUOTA_EXCEEDED
        await old.send(Publish("t", b"waits", 1, False, False, 200, {}))
        await old.nothing()
        await new.nothing()
        assert in_sync(cluster, 0, 0) == (cluster.name(1),)  # it may take over: it has all that was acknowledged
        await cluster.start(1)
        await new.answer(Ack, type=c.PUBACK, packet_id=100, reason_code=0)
        await old.answer(Ack, type=c.PUBACK, packet_id=200, reason_code=0)
        await assert_same_logs(cluster, 0, 1)


async def test_fewer_copies_than_replicas_min_hold_back_publishers(tmp_path: Path) -> None:
    """Nothing is acknowledged to publishers with 3.1.1. The node accepts no more from them, so that its memory stays
    the same however much they send; when there are enough copies, everything is accepted once."""
    table = {"replicas_min": 1, "replica_timeout": 1.0}
    async with replicated(tmp_path, cluster=table, expected=("replicas_trouble",)) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        server = cluster[0].server
        assert server.broker.durability is not None
        commit = server.broker.durability.commit
        await away(cluster[0], "s", 5, "#")
        first = await cluster[0].client("first", 4)
        publishers = [await cluster[0].client(f"p{number}", 4) for number in range(4)]
        await cluster.kill(1)
        await first.send(Publish("t", b"before", 1, packet_id=7))
        await until(lambda: commit.trouble is not None)
        session = server.broker.sessions.get("s")
        assert session is not None and session.queued == 1
        stored, tail = commit.pending_bytes, shipping(cluster[0]).tail_bytes
        flooding = [asyncio.ensure_future(flood(publisher, 20, 500_000)) for publisher in publishers]
        for _ in range(50):
            await asyncio.sleep(0.02)
            assert session.queued == 1 and not any(each.done() for each in flooding)
            # What the node itself stores, for example that the other one has stopped, comes on top.
            assert commit.pending_bytes < stored + 100_000 and shipping(cluster[0]).tail_bytes < tail + 100_000
        # Of 40 MB, the node has read a packet and a buffer of each publisher at most.
        assert server.memory.parts()["connections"] < len(publishers) * 1_500_000
        await cluster.start(1)
        await first.answer(Ack, type=c.PUBACK, packet_id=7)
        sent = [payload for payloads in await asyncio.gather(*flooding) for payload in payloads]
        assert session.queued == 1 + len(sent) == 81
        await until_in_sync(cluster[0], cluster[1])
        await assert_same_logs(cluster, 0, 1)


# ------------------------------------------------------------------ without NATS


async def test_nats_without_a_quorum(tmp_path: Path) -> None:
    """Acknowledgements go on while the follower answers."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "#")
        publisher = await cluster[0].client("p", 5)
        cluster.hub.partition({cluster.name(0), cluster.name(1)}, set(), quorum=1)
        await flood(publisher, 50)
        cluster.heal()
        assert in_sync(cluster, 0, 0) == (cluster.name(1),)
        await assert_same_logs(cluster, 0, 1)


async def test_nats_is_gone(tmp_path: Path) -> None:
    """A node that can reach neither its copy nor NATS may have been replaced: it acknowledges nothing. 5.0 is refused,
    3.1.1 waits; QoS 0 goes on."""
    async with replicated(tmp_path, cluster={"stopped_after": 30.0}) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("replicas_trouble",)
        await away(cluster[0], "s", 5, "t")
        new, old = await cluster[0].client("p5", 5), await cluster[0].client("p4", 4)
        here = await cluster[0].client("here", 5)
        await here.subscribe("live", qos=0)
        for number in (0, 1):
            cluster.hub.disconnect(cluster.name(number))
        await new.send(Publish("t", b"before", 1, False, False, 100, {}))
        await new.nothing()
        await until(lambda: cluster[0].server.broker.durability.commit.trouble is not None)
        later = await cluster[0].client("p5-later", 5)
        assert await later.publish("t", b"refused", qos=1, expect=QUOTA_EXCEEDED) == QUOTA_EXCEEDED
        await old.send(Publish("t", b"waits", 1, False, False, 200, {}))
        await old.nothing()
        await new.publish("live", b"0")
        await here.expect_publish("live", b"0", 0)
        for number in (0, 1):
            cluster.hub.connect(cluster.name(number))
        await new.answer(Ack, type=c.PUBACK, packet_id=100, reason_code=0)
        await old.answer(Ack, type=c.PUBACK, packet_id=200, reason_code=0)
        await until_in_sync(cluster[0])
        await assert_same_logs(cluster, 0, 1)


async def test_nats_is_gone_and_the_node_goes_on_alone(tmp_path: Path) -> None:
    """``cluster.replicas_isolated = "alone"``: acknowledged on one disk. Afterwards the copy gets what it lacks."""
    cluster_settings = {"stopped_after": 30.0, "replicas_isolated": "alone"}
    async with replicated(tmp_path, cluster=cluster_settings) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "t")
        publisher = await cluster[0].client("p", 5)
        for number in (0, 1):
            cluster.hub.disconnect(cluster.name(number))
        await flood(publisher, 20)
        await flood(publisher, 20)
        for number in (0, 1):
            cluster.hub.connect(cluster.name(number))
        await flood(publisher, 20)
        await until_in_sync(cluster[0])
        await assert_same_logs(cluster, 0, 1)


async def test_a_node_starts_without_a_quorum(tmp_path: Path) -> None:
    """It listens, and acknowledges nothing until it knows that it was not replaced."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("replicas_trouble",)
        await away(cluster[0], "s", 5, "t")
        await cluster.stop(0)
        cluster.partition({0, 1}, set(), quorum=1)
        await cluster.start(0)
        await until(lambda: shipping(cluster[0]).core.trouble(asyncio.get_running_loop().time()))
        publisher = await cluster[0].client("p", 5)
        assert await publisher.publish("t", b"refused", qos=1, expect=QUOTA_EXCEEDED) == QUOTA_EXCEEDED
        cluster.heal()
        await until_in_sync(cluster[0])
        await flood(publisher, 10)
        await assert_same_logs(cluster, 0, 1)


async def test_a_nats_server_is_killed(tmp_path: Path) -> None:
    """A real one, under traffic, with the nodes' connections: what was under way is sent again, and the logs stay the
    same."""
    async with NatsServers(1) as servers:  # which outlives the nodes
        nodes = nodes_on(servers.urls, tmp_path, replica_timeout=2.0)
        async with nodes as (origin, follower):
            for node in (origin, follower):
                node.ignore(lambda record: record.getMessage().startswith(("replicas_trouble", "nats_")))
            await away(origin, "s", 5, "#")
            publisher = await origin.client("p", 5)
            sent = await flood(publisher, 100)
            flooding = asyncio.ensure_future(flood(publisher, 200, 1000))
            await servers[0].kill()
            await asyncio.sleep(0.2)
            assert not flooding.done()
            await servers[0].start()
            sent += await flooding
            await until_in_sync(origin)
            client = await origin.client("s", 5, expiry=3600, session_present=True)
            assert [(await client.expect_publish()).payload for _ in sent] == sent
            await until(lambda: shipping(origin).core.durable == shipping(origin).core.last)
            last = shipping(origin).core.last
            original = Path(origin.settings.node.data_dir)
            copy = copy_directory(Path(follower.settings.node.data_dir), "n1@127.0.0.1")
    copied = rows(copy)
    assert copied[-1][0] >= last
    assert copied == [row for row in rows(original) if row[0] <= copied[-1][0]]


# --------------------------------------------------------------- the origin restarts


async def test_the_origin_is_killed_and_comes_back(tmp_path: Path) -> None:
    """It continues the same copy, also if that has a batch that the origin's disk has not."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "t")
        for life in range(3):
            publisher = await cluster[0].client(f"p{life}", 5)
            await flood(publisher, 10)
            with cluster.held_disk(0):
                await publisher.send(Publish("t", b"never acknowledged", 1, False, False, 100, {}))
                core = shipping(cluster[0]).core
                copy = copies(cluster[1])._copies[cluster.name(0)]
                await until(lambda core=core, copy=copy: copy.disk > core.written)
                node = cluster[0]
                before = data_dir(node)
                shutil.copytree(before, tmp_path / f"left-{life}", ignore=shutil.ignore_patterns("*.sock"))
            await cluster.kill(0)
            shutil.rmtree(cluster._data_dir(0))
            shutil.copytree(tmp_path / f"left-{life}", cluster._data_dir(0))
            await cluster.start(0)
            await until_in_sync(cluster[0])
            assert shipping(cluster[0]).core.followers[cluster.name(1)].refill is False
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10)
        assert refused(cluster[0], "replica_left") == 0
        await assert_same_logs(cluster, 0, 1)


async def test_both_are_killed_in_turn(tmp_path: Path) -> None:
    """Each comes back and is filled up before the other is killed: nothing is missing."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "t")
        sent: list[bytes] = []
        for turn in range(4):
            publisher = await cluster[0].client(f"p{turn}", 5)
            sent += await flood(publisher, 10)
            await cluster.kill(turn % 2)
            await cluster.start(turn % 2)
            await until_in_sync(cluster[0], cluster[1])
        client = await cluster[0].client("s", 5, expiry=3600, session_present=True)
        assert [(await client.expect_publish()).payload for _ in sent] == sent
        await assert_same_logs(cluster, 0, 1)


async def claim(cluster: ClusterNodes, origin: int, follower: int) -> None:
    """Write that the follower runs the origin from its copy."""
    record = record_of(cluster, origin, follower)
    assert record is not None
    hosted = msgspec.structs.replace(record, hosted_by=cluster.name(follower), incarnation=record.incarnation + 1)
    context = cluster_of(cluster[follower]).context
    key = node_key(cluster.name(origin))
    entry = await context.nats.read(REPLICAS, key)
    assert entry is not None
    await context.nats.write(REPLICAS, key, context.wire.write(hosted), entry.revision, "nonce")


async def test_a_node_that_does_not_know_yet_that_it_was_replaced_cannot_leave(tmp_path: Path) -> None:
    """The record is its host's, which it must not delete."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("replicas_trouble", "cluster_membership_lost")
        records = cluster_of(cluster[0]).replica_records
        assert records is not None
        records.on_change.clear()
        await copies(cluster[1]).release(cluster.name(0))
        await claim(cluster, 0, 1)
        with pytest.raises(ChangeRefused):
            await cluster[0].server.cluster.leave()
        record = record_of(cluster, 0, 1)
        assert record is not None and record.hosted_by == cluster.name(1)


async def test_a_node_that_was_replaced_acknowledges_nothing(tmp_path: Path) -> None:
    """From the moment in which a follower has written that it hosts the origin."""
    async with replicated(tmp_path, cluster={"replica_timeout": 5.0}) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("replicas_trouble", "cluster_membership_lost")
        await away(cluster[0], "s", 5, "t")
        publisher = await cluster[0].client("p", 5)
        told: list[ReplicaRecord] = []
        shipping(cluster[0]).record.on_replaced.append(told.append)
        await copies(cluster[1]).release(cluster.name(0))
        await publisher.send(Publish("t", b"not on the second disk", 1, False, False, 100, {}))
        await publisher.nothing()
        await claim(cluster, 0, 1)
        await until(lambda: told)
        await publisher.expect_disconnect(USE_ANOTHER_SERVER)
        await cluster[0].peer().connect("later", expect=SERVER_UNAVAILABLE)


async def test_a_new_disk_does_not_replace_what_the_copy_has(tmp_path: Path) -> None:
    """A node of the same name with empty data waits until another one has run the copy to its end."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await away(cluster[0], "s", 5, "t")
        publisher = await cluster[0].client("p", 5)
        payloads = await flood(publisher, 10)
        await cluster.kill(0)
        shutil.rmtree(cluster._data_dir(0))
        node = await cluster.start(0)
        assert cluster.name(0) not in cluster[1].server.hosted
        client = await node.client("s", 5, expiry=3600, session_present=True)
        assert [(await client.expect_publish()).payload for _ in payloads] == payloads
        await until_in_sync(cluster[0], cluster[1])
        record = record_of(cluster, 0, 1)
        assert record is not None and record.uid == cluster_of(node).context.wire.uid


async def test_a_node_leaves_the_cluster(tmp_path: Path) -> None:
    """Its record is deleted, and it acknowledges on its own disk."""
    async with replicated(tmp_path, 3) as cluster:
        await until_in_sync(*cluster.nodes.values())
        await away(cluster[0], "s", 5, "t")
        await cluster[0].server.cluster.leave()
        publisher = await cluster[0].client("p", 5)
        await flood(publisher, 10)
        await until(lambda: record_of(cluster, 0, 1) is None)
        await cluster[0].server.cluster.join(cluster.name(1))
        await until_in_sync(*cluster.nodes.values())
        await flood(publisher, 10)


@pytest.mark.parametrize("bucket", ["wills", "members"])
async def test_a_node_that_cannot_leave_keeps_its_copies(tmp_path: Path, bucket: str) -> None:
    """Its record was deleted before NATS accepted no more writes to another bucket."""
    async with replicated(tmp_path, cluster={"call_timeout": 1.0}) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        await cluster[0].client("w", will=Will("will", b"gone", 1))
        await until(lambda: cluster_of(cluster[0]).wills._ours)

        def refuse(operation: str) -> None:
            if operation == f"write {bucket}":
                raise Unavailable("no quorum")

        nats = cluster.clients[0]
        nats.on_operation = refuse
        with pytest.raises(ChangeRefused, match="NATS accepts no writes now"):
            await cluster[0].server.cluster.leave()
        nats.on_operation = lambda _: None
        assert cluster_of(cluster[0]).context.broker.durability.commit.log.copies is shipping(cluster[0])
        await until_in_sync(cluster[0])
        assert record_of(cluster, 0, 1) is not None


async def test_a_damaged_store_is_reported(tmp_path: Path) -> None:
    """An origin reads its store before it starts, to find out whether it was replaced."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        cluster.expected = ("store_damaged",)
        await away(cluster[0], "s", 5, "t")
        await cluster.stop(0)
        with (cluster._data_dir(0) / "taipan.db").open("r+b") as file:
            file.write(b"damaged")
        node = await cluster.start(0)
        assert "store_damaged" in node.server.alarms.active
        await until_in_sync(node)
        await node.client("s", 5, expiry=3600, session_present=True)


async def test_an_answer_to_an_earlier_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower's disk is slow, and the origin starts again: the copy continues where the last start wants it to."""
    async with replicated(tmp_path) as cluster:
        await until_in_sync(cluster[0], cluster[1])
        went_on = threading.Event()
        calls: list[Resume] = []

        def set_back(log: SqliteLog, frame: Resume) -> None:
            calls.append(frame)
            if len(calls) == 1:
                assert went_on.wait(30)
            before(log, frame)

        before = copies_module._set_back
        monkeypatch.setattr(copies_module, "_set_back", set_back)
        await cluster.kill(0)
        try:
            await cluster.start(0)
            await until(lambda: calls)
            incarnation = copies(cluster[1])._copies[cluster.name(0)].incarnation
            await cluster.kill(0)
            await cluster.start(0)
            await until(lambda: copies(cluster[1])._copies[cluster.name(0)].incarnation > incarnation)
            assert len(calls) == 1
        finally:
            went_on.set()
        await until_in_sync(cluster[0])
        assert len(calls) == 2
        await assert_same_logs(cluster, 0, 1)
