"""Each node routes by the subscriptions of all."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from taipan.broker.cluster import nats_cluster
from taipan.broker.cluster.links.routes import BUCKET
from taipan.broker.cluster.nats.interface import BucketEntry, NoAnswer, Unknown, Watch, WrongRevision
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wire import NodeRoute, node_key, thing_key
from taipan.broker.core.cluster import STOPPED
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.reason_codes import SUCCESS, USE_ANOTHER_SERVER
from tests.support.cluster_nodes import cluster_nodes
from tests.support.node import Node
from tests.support.patience import patience
from tests.support.virtual_nats import VirtualNats, VirtualNatsClient

pytestmark = pytest.mark.asyncio

QUICK = {"suspect_after": 1.5, "stopped_after": 2.5, "strict_subscribe": True}
MOST_BYTES = 400


def parts(node: Node) -> NatsCluster:
    assert isinstance(node.server.cluster, NatsCluster)
    return node.server.cluster


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.01)


def reaches(node: Node, topic: str) -> int:
    """How many other nodes get a message on this topic."""
    return len(node.server.broker.router.match(topic).remote)


def keys(hub: VirtualNats) -> int:
    return sum(each.value is not None for each in hub.buckets["routes"].last.values())


async def test_a_route_is_there_with_the_first_subscriber_and_gone_with_the_last() -> None:
    async with cluster_nodes(3, cluster=QUICK) as cluster:
        first, second = await cluster[1].client("1"), await cluster[1].client("2")
        await first.subscribe("site/+/state")
        await second.subscribe("site/+/state")
        third = await cluster[2].client("3")
        await third.subscribe("site/#")
        assert reaches(cluster[0], "site/1/state") == 2
        assert reaches(cluster[0], "site/1") == 1
        assert reaches(cluster[1], "site/1/state") == 1
        assert keys(cluster.hub) == 2
        await first.unsubscribe("site/+/state")
        await third.unsubscribe("site/#")
        await until(lambda: keys(cluster.hub) == 1)
        assert reaches(cluster[0], "site/1/state") == 1
        await second.close()
        await until(lambda: keys(cluster.hub) == 0)
        await until(lambda: reaches(cluster[0], "site/1/state") == 0)


async def test_quick_changes_end_in_what_is_true() -> None:
    async with cluster_nodes(2, cluster={**QUICK, "strict_subscribe": False}) as cluster:
        cluster.hub.delay = (0.0, 0.01)
        cluster.hub.lose_answer = cluster.hub.lose_request = 0.1
        clients = [await cluster[1].client(f"c{number}") for number in range(5)]
        for turn in range(20):
            for number, client in enumerate(clients):
                await client.subscribe(f"t/{number}")
                if turn % 2 or number != 4:
                    await client.unsubscribe(f"t/{number}")
        for client in clients[1:]:
            await client.subscribe("t/last")
        cluster.hub.lose_answer = cluster.hub.lose_request = 0.0
        router = cluster[1].server.broker.router
        await until(lambda: keys(cluster.hub) == router.route_count())
        filters = set(router.filters())
        await until(lambda: all(reaches(cluster[0], each) for each in filters))
        assert "t/last" in filters


async def test_a_route_is_written_again_where_nobody_knows_whether_it_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the write is answered nor the question what became of it."""
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t")
        nats = cluster.clients[1]
        write, read = nats.write, nats.read
        unknown = asyncio.Event()

        async def no_answer_to_a_write(*arguments: Any) -> int:
            await write(*arguments)
            raise Unknown

        async def no_answer_to_a_read(bucket: str, key: str) -> BucketEntry | None:
            unknown.set()
            raise NoAnswer

        monkeypatch.setattr(nats, "write", no_answer_to_a_write)
        monkeypatch.setattr(nats, "read", no_answer_to_a_read)
        await subscriber.unsubscribe("t")
        await asyncio.wait_for(unknown.wait(), patience(40))
        assert keys(cluster.hub) == 0
        subscribing = asyncio.ensure_future(subscriber.subscribe("t"))
        await asyncio.sleep(0.1)
        monkeypatch.setattr(nats, "write", write)
        monkeypatch.setattr(nats, "read", read)
        await subscribing
        assert keys(cluster.hub) == 1 and reaches(cluster[0], "t") == 1


async def test_a_route_is_written_once_more_where_a_deletion_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t")
        nats = cluster.clients[1]
        write = nats.write
        late: list[tuple[Any, ...]] = []

        async def under_way(*arguments: Any) -> int:
            late.append(arguments)
            raise Unknown

        monkeypatch.setattr(nats, "write", under_way)
        await subscriber.unsubscribe("t")
        await until(lambda: bool(late))
        monkeypatch.setattr(nats, "write", write)
        await subscriber.subscribe("t")
        with pytest.raises(WrongRevision):
            await write(*late[0])
        assert keys(cluster.hub) == 1 and reaches(cluster[0], "t") == 1


async def test_a_route_of_its_own_that_a_node_cannot_read_is_written_over() -> None:
    """One of a later version, which has been here before, say."""
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        key = f"{node_key(cluster.name(1))}.{thing_key('t')}"
        await cluster.clients[1].write("routes", key, b"of another version", None, "nonce")
        subscriber = await cluster[1].client("s")
        async with asyncio.timeout(patience(40)):
            await subscriber.subscribe("t")
        assert reaches(cluster[0], "t") == 1
        await subscriber.unsubscribe("t")
        await until(lambda: keys(cluster.hub) == 0)


async def test_a_node_that_starts_again_puts_its_routes_right() -> None:
    async with cluster_nodes(2, level="disk", cluster=QUICK) as cluster:
        stays, goes = await cluster[1].client("stays", expiry=1000), await cluster[1].client("goes")
        await stays.subscribe("stays", qos=1)
        await goes.subscribe("goes", qos=1)
        await cluster.kill(1)
        assert reaches(cluster[0], "stays") == reaches(cluster[0], "goes") == 1
        await cluster.start(1)
        await until(lambda: reaches(cluster[0], "goes") == 0)
        assert reaches(cluster[0], "stays") == 1


async def test_routes_that_nats_has_lost_are_written_again_and_none_is_missing_meanwhile() -> None:
    async with cluster_nodes(3, level="disk", cluster=QUICK) as cluster:
        for number in (1, 2):
            client = await cluster[number].client(f"c{number}", expiry=1000)
            await client.subscribe(f"t/{number}", qos=1)
        await cluster.kill(2)
        cluster.hub.lose_bucket("routes")
        await until(lambda: keys(cluster.hub) == 1)
        await asyncio.sleep(0.1)
        # The stopped node's subscribers are owed what is published now.
        assert reaches(cluster[0], "t/1") == reaches(cluster[0], "t/2") == 1
        await cluster.start(2)
        await until(lambda: keys(cluster.hub) == 2)
        assert reaches(cluster[0], "t/2") == 1


async def test_members_of_a_shared_subscription_are_told_with_how_many_are_connected() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        seen: list[tuple[str, str, int, int]] = []
        parts(cluster[0]).routes.on_group.append(lambda *group: seen.append(group))
        first, second = await cluster[1].client("1"), await cluster[1].client("2")
        await first.subscribe("$share/g/t")
        await second.subscribe("$share/g/t")
        key = node_key(cluster.name(1))
        assert seen[-1] == (key, "$share/g/t", 2, 2)
        await first.close()
        await second.close()
        await until(lambda: seen[-1] == (key, "$share/g/t", 0, 0))
        assert reaches(cluster[0], "t") == 0


async def test_a_node_that_leaves_takes_its_routes_along() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        client = await cluster[1].client("c")
        await client.subscribe("t")
        assert reaches(cluster[0], "t") == 1
        await parts(cluster[1]).leave()
        await until(lambda: reaches(cluster[0], "t") == 0 and keys(cluster.hub) == 0)
        await parts(cluster[1]).join(cluster.name(0))
        await until(lambda: reaches(cluster[0], "t") == 1)


@pytest.mark.slow
async def test_100_000_routes_of_another_node_take_at_most_400_bytes_each() -> None:
    count = 100_000
    async with cluster_nodes(2, cluster={**QUICK, "strict_subscribe": False}) as cluster:
        routes, wire = parts(cluster[0]).routes, parts(cluster[1]).context.wire
        key = node_key(cluster.name(1))
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(count):
                filter = f"site/{number:06}/+/state" if number % 2 else f"site/{number:06}/machine/state"
                routes._entry(BucketEntry(f"{key}.{thing_key(filter)}", wire.write(NodeRoute(filter)), number + 1))
            gc.collect()
            each = (tracemalloc.get_traced_memory()[0] - before) / count
        finally:
            tracemalloc.stop()
        assert reaches(cluster[0], "site/000001/x/state") == 1
        assert each <= MOST_BYTES, f"{each:.0f} bytes"
        print(f"{each:.0f} bytes")


@pytest.mark.parametrize("burst", [1, 40])
@pytest.mark.parametrize("version", [4, 5])
async def test_a_clean_client_that_comes_back_at_another_node_gets_nothing_of_before_again(
    version: int, burst: int
) -> None:
    """With ``close_all``. Its first node has all of that in its link, as the other node has further subscribers. One
    whose session has lasted gets it, and so does a clean one that was there all the time. What is accepted while the
    link is closed, after the client has come back, is for all of them."""
    settings = {**QUICK, "suspect_after": 0.5, "stopped_after": 1.0, "takeover_timeout": 1.0, "isolated": "close_all"}
    async with cluster_nodes(2, level="disk", cluster=settings) as cluster:
        durable, there = await cluster[1].client("durable", expiry=60), await cluster[1].client("there")
        here = await cluster[0].client("s", version)
        for client in (durable, there, here):
            await client.subscribe("t", qos=1)
        publisher = await cluster[0].client("p", expiry=60)
        await until(lambda: reaches(cluster[0], "t"))
        cluster.hub.disconnect(cluster.name(0))
        sent = [b"%d" % number for number in range(2 * burst)]
        for start in range(0, len(sent), burst):
            for payload in sent[start : start + burst]:
                await publisher.publish("t", payload, qos=1)
        for payload in sent:
            await here.expect_publish("t", payload, 1)
        await here.expect_disconnect(USE_ANOTHER_SERVER)
        again = await cluster[1].client("s", version)
        await again.subscribe("t", qos=1)
        session = cluster[1].server.broker.sessions.get("s")
        assert session is not None
        await until(lambda: cluster[0].server.broker.clock.now() > session.created_at + 0.6)
        for _ in range(burst):  # of a rule, for example: clients are away
            cluster[0].server.broker.publish(Message("t", b"later", 1, timestamp=cluster[0].server.broker.clock.now()))
        cluster.hub.connect(cluster.name(0))
        for client in (durable, there):
            for payload in [*sent, *[b"later"] * burst]:
                await client.expect_publish("t", payload, 1)
        for _ in range(burst):
            await again.expect_publish("t", b"later", 1)
        await again.nothing()
        links = cluster[0].server.cluster.links.links.values()  # type: ignore[attr-defined]
        await until(lambda: all(link.idle and not link._writer.late_upto for link in links))


@pytest.mark.parametrize(("policy", "slow"), [("refuse_new", "routes"), ("close_all", "members")])
async def test_who_comes_to_a_node_that_does_not_know_the_routes_yet_is_refused(
    policy: str, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started without NATS; when that is back, a new subscriber of another node is unknown for a moment. So it is
    where the other node is."""
    monkeypatch.setattr(nats_cluster, "READ_TIMEOUT", 0.2)
    settings = {**QUICK, "suspect_after": 0.5, "stopped_after": 1.0, "takeover_timeout": 1.0, "isolated": policy}
    async with cluster_nodes(2, level="disk", cluster=settings) as cluster:
        await cluster.kill(0)
        subscriber = await cluster[1].client("s")
        await subscriber.subscribe("t", qos=1)
        cluster.partition({0}, {1}, quorum=1)
        watch = VirtualNatsClient.watch
        withheld: list[Callable[[], None]] = []

        def slow_watch(
            self: VirtualNatsClient,
            bucket: str,
            on_entry: Callable[[BucketEntry], None],
            on_current: Callable[[], None],
        ) -> Watch:
            if bucket != slow:
                return watch(self, bucket, on_entry, on_current)
            return watch(
                self,
                bucket,
                lambda entry: withheld.append(partial(on_entry, entry)),
                lambda: withheld.append(on_current),
            )

        monkeypatch.setattr(VirtualNatsClient, "watch", slow_watch)
        await cluster.start(0)
        cluster.heal()
        await until(lambda: parts(cluster[0]).membership.joined)
        for version, refused in ((5, 0x88), (4, 3)):
            await cluster[0].client("p", version, expect=refused)
        for each in withheld:
            each()
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"1", qos=1, expect=0)
        await subscriber.expect_publish("t", b"1")


@pytest.mark.parametrize(
    "record",
    [
        ("$share/g/t", 1, -5),
        ("$share/g/t", -3, -3),
        ("$share/g/t", 0, 0),
        ("$share/g/t", 1, 7),
        ("$share/g/t", 2**62, 2**62),
        ("$share/g/", 1, 1),
        ("$share//t", 1, 1),
        ("$share/g/a/#/b", 1, 1),
        ("", 0, 0),
        ("a/#/b", 0, 0),
        ("a\0", 0, 0),
        ("t" * 70_000, 0, 0),
        ("#", -1, -1),
    ],
    ids=lambda record: f"{record[0][:16]!r} {record[1]} {record[2]}",
)
async def test_a_route_that_cannot_be_is_passed_over_and_messages_go_where_they_should(
    record: tuple[str, int, int],
) -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        member = await cluster[0].client("m")
        await member.subscribe("$share/g/t", qos=1)
        await cluster.wait_until_running()
        await until(lambda: len(list(parts(cluster[1]).routes.groups())) == 1)
        key = f"{node_key(cluster.name(0))}.{thing_key(record[0])}"
        wire = parts(cluster[0]).context.wire
        revision = cluster.hub.write(BUCKET, key, wire.write(NodeRoute(*record)), None, "bad")
        assert await parts(cluster[1]).routes.reached(revision)
        publisher = await cluster[1].client("p")
        for each in range(8):
            assert await publisher.publish("t", b"%d" % each, qos=1) == SUCCESS
        assert [(await member.expect_publish("t")).payload for _ in range(8)] == [b"%d" % each for each in range(8)]
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"]


async def test_a_route_under_the_key_of_another_is_passed_over() -> None:
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await cluster.wait_until_running()
        wire = parts(cluster[0]).context.wire
        key = f"{node_key(cluster.name(0))}.{thing_key('t')}"
        revision = cluster.hub.write(BUCKET, key, wire.write(NodeRoute("u")), None, "bad")
        assert await parts(cluster[1]).routes.reached(revision)
        assert not cluster[1].server.broker.router.remote_mask("u")
        assert cluster[1].server.metrics.refusals.snapshot()["cluster_malformed"]


@pytest.mark.parametrize("when", ["before it subscribes", "after it"])
async def test_the_routes_of_a_replacement_stay_where_those_of_the_node_that_was_forced_out_are_deleted(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Both have the name, and the same filters."""
    async with cluster_nodes(2, cluster=QUICK) as cluster:
        await (await cluster[1].client("1")).subscribe("a", "b")
        await until(lambda: keys(cluster.hub) == 2)
        await cluster.kill(1)
        own = parts(cluster[0])
        await until(lambda: own.members()[1].status == STOPPED)
        write, tried, goes_on = own.context.nats.write, list[str](), asyncio.Event()

        async def late(bucket: str, key: str, value: bytes | None, *args: Any) -> int:
            if bucket == BUCKET and value is None:
                tried.append(key)
                await goes_on.wait()
            return await write(bucket, key, value, *args)

        monkeypatch.setattr(own.context.nats, "write", late)
        leaving = asyncio.ensure_future(own.force_leave(cluster.name(1)))
        await until(lambda: len(tried) == 2)
        await cluster.start(1)
        if when == "before it subscribes":
            goes_on.set()
            await leaving
        client = await cluster[1].client("1")
        await client.subscribe("a")
        goes_on.set()
        await leaving
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()
        publisher = await cluster[0].client("2")
        await publisher.publish("a", b"1", qos=1, expect=SUCCESS)
        await client.expect_publish("a", b"1")
        await until(lambda: keys(cluster.hub) == 1)
