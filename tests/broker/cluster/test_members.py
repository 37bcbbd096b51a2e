"""Who is in the cluster and who runs, on a virtual NATS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from taipan.broker.cluster import calls as calls_module
from taipan.broker.cluster.members import NameTaken, Peer
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.session_transfer import Offer
from taipan.broker.cluster.wire import MemberRecord, Reply, Request, node_key
from taipan.broker.core.cluster import RUNNING, STOPPED, SUSPECT, CallFailed, ChangeRefused, NodeUnreachable
from taipan.broker.server import Server
from tests.support.node import make_settings
from tests.support.virtual_nats import VirtualNats

pytestmark = pytest.mark.asyncio

QUICK = {"servers": ["nats://none"], "suspect_after": 1.5, "stopped_after": 2.5, "connect_timeout": 0.1}


def server(hub: VirtualNats, name: str, **cluster: Any) -> Server:
    settings = make_settings(node={"name": name}, cluster={**QUICK, **cluster})
    return Server(settings, nats=hub.client(name))


def cluster_of(server: Server) -> NatsCluster:
    assert isinstance(server.cluster, NatsCluster)
    return server.cluster


@asynccontextmanager
async def running(hub: VirtualNats, *names: str) -> AsyncIterator[list[Server]]:
    servers = [server(hub, name) for name in names]
    for each in servers:
        await each.start()
    try:
        yield servers
    finally:
        for each in servers:
            if not each.context.closing:
                await each.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def status(server: Server, name: str) -> str:
    return next((each.status for each in server.cluster.members() if each.name == name), "")


async def test_nodes_find_each_other_and_one_that_stops_stays_listed() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)
        assert [each.name for each in a.cluster.members()] == ["a@h", "b@h"]
        await b.stop()
        await until(lambda: status(a, "b@h") == STOPPED)
        assert "node_down/b@h" in a.alarms.active


async def test_a_node_that_is_not_heard_is_suspect_and_then_stopped_and_back_when_it_is_heard() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, _):
        await until(lambda: status(a, "b@h") == RUNNING)
        seen: list[str] = []
        cluster_of(a).membership.on_change.append(lambda peer, before: seen.append(peer.status))
        hub.partition({"a@h"}, {"b@h"})
        await until(lambda: status(a, "b@h") == STOPPED)
        hub.heal()
        await until(lambda: status(a, "b@h") == RUNNING)
        assert seen == [SUSPECT, STOPPED, RUNNING]
        assert "node_down/b@h" not in a.alarms.active


async def test_who_starts_or_notices_first_that_another_is_gone_sees_no_partition() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, _):
        c = server(hub, "c@h", suspect_after=0.5, stopped_after=1.1)
        raised: list[str] = []
        activate = c.alarms.activate
        c.alarms.activate = lambda name, *more: raised.append(name) or activate(name, *more)  # type: ignore[method-assign,func-returns-value]
        hub.delays["b@h", "c@h"] = (0.3, 0.3)  # the other says that it hears b before b does
        await c.start()
        try:
            await until(lambda: status(c, "a@h") == RUNNING and status(c, "b@h") == RUNNING)
            hub.disconnect("b@h")
            await until(lambda: status(c, "b@h") == STOPPED)
            await until(lambda: status(a, "b@h") == STOPPED)
            assert "node_down/b@h" in raised and "partition" not in raised
        finally:
            await c.stop()


async def test_a_node_that_others_hear_and_this_one_does_not_is_behind_a_partition() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h", "c@h") as (a, _, c):
        await until(lambda: status(a, "b@h") == RUNNING and status(c, "b@h") == RUNNING)
        hub.delays["b@h", "a@h"] = (60.0, 60.0)
        await until(lambda: "partition" in a.alarms.active)
        assert a.alarms.active["partition"].details == {"nodes": "b@h"}
        assert "partition" not in c.alarms.active


async def test_a_second_node_of_a_name_does_not_start_and_says_where_the_first_is() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h"):
        second = server(hub, "a@h")
        with pytest.raises(NameTaken, match=r"a@h runs already: host .*, pid \d+, started 20"):
            await second.start()


async def test_two_that_start_at_once_with_one_name_are_not_both_members() -> None:
    hub = VirtualNats()
    both = [server(hub, "a@h"), server(hub, "a@h")]
    results = await asyncio.gather(*(each.start() for each in both), return_exceptions=True)
    try:
        assert sorted(type(each).__name__ for each in results) == ["NameTaken", "NoneType"]
    finally:
        for each, result in zip(both, results, strict=True):
            if result is None:
                await each.stop()


async def test_a_node_starts_again_after_it_was_killed() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (_, b):
        hub.disconnect("a@h")  # as its death is seen by others
        again = server(hub, "a@h")
        await again.start()
        await until(lambda: status(b, "a@h") == RUNNING)
        incarnation = cluster_of(again).context.wire.incarnation
        assert cluster_of(b).membership.peers["a@h"].incarnation == incarnation
        await again.stop()


async def test_a_node_that_was_forced_out_is_gone_from_the_lists() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h", "c@h") as (a, b, c):
        await until(lambda: status(a, "b@h") == RUNNING)
        with pytest.raises(ChangeRefused, match="is Running"):
            await a.cluster.force_leave("b@h")
        with pytest.raises(ChangeRefused, match="is no node"):
            await a.cluster.force_leave("z@h")
        await b.stop()
        await until(lambda: status(a, "b@h") == STOPPED)
        await a.cluster.force_leave("b@h")
        await until(lambda: [each.name for each in c.cluster.members()] == ["a@h", "c@h"])
        assert [each.name for each in a.cluster.members()] == ["a@h", "c@h"]
        assert "node_down/b@h" not in a.alarms.active


async def test_who_leaves_is_forgotten_until_it_joins_again() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        with pytest.raises(ChangeRefused, match="already"):
            await b.cluster.join("a@h")
        await b.cluster.leave()
        await until(lambda: status(a, "b@h") == "")
        for _ in range(100):
            await asyncio.sleep(0)
        assert status(a, "b@h") == "" and not b.cluster.membership.joined
        with pytest.raises(ChangeRefused, match="already"):
            await b.cluster.leave()
        await b.cluster.join("a@h")
        assert [each.name for each in b.cluster.members()] == ["a@h", "b@h"]
        await until(lambda: status(a, "b@h") == RUNNING)


async def test_without_nats_a_node_starts_and_joins_when_it_is_there() -> None:
    hub = VirtualNats()
    hub.stop_server(0)
    async with running(hub, "a@h", "b@h") as (a, b):
        assert status(a, "b@h") == ""
        hub.start_server(0)
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)


async def test_lost_records_are_written_again() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        hub.lose_bucket("members")
        bucket = hub.buckets["members"]
        await until(lambda: len(bucket.last) == 2)
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)


async def long_answer(node: str, argument: bytes) -> bytes:
    return argument * 100_000


async def test_a_long_answer_is_kept_until_it_was_fetched() -> None:
    hub = VirtualNats(max_payload=65536)
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)
        b.cluster.serve("long", long_answer)
        for _ in range(3):
            assert len(await a.cluster.call("b@h", "long", b"x")) == 100_000
        await until(lambda: cluster_of(b).calls.kept_bytes == 0)


async def test_the_last_part_of_a_long_answer_can_be_asked_for_again() -> None:
    """It was lost. Who asks for nothing more is waited for no longer than ``call_timeout``."""
    hub = VirtualNats(max_payload=65536)
    async with running(hub, "a@h") as (a,):
        late = server(hub, "b@h", call_timeout=1.0)
        await late.start()
        await until(lambda: status(a, "b@h") == RUNNING and status(late, "a@h") == RUNNING)
        late.cluster.serve("long", long_answer)
        calls = cluster_of(a).calls
        first = await calls._ask("b@h", Request(1_000, "long", b"x"), 5)
        offset = len(first.part)
        last = b""
        while offset < first.size:
            last = (await calls._ask("b@h", Request(1_000, "", b"", offset), 5)).part
            offset += len(last)
        again = await calls._ask("b@h", Request(1_000, "", b"", offset - len(last)), 5)
        assert again.part == last and cluster_of(late).calls.kept_bytes == first.size
        await until(lambda: cluster_of(late).calls.kept_bytes == 0)
        await late.stop()


async def test_long_answers_are_bounded_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = VirtualNats(max_payload=65536)
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)
        b.cluster.serve("long", long_answer)
        monkeypatch.setattr(calls_module, "MAX_KEPT", 250_000)
        for number in (1_000, 1_001, 1_002):
            reply = await cluster_of(a).calls._ask("b@h", Request(number, "long", b"x"), 5)
        assert reply.failure and cluster_of(b).calls.kept_bytes == 200_000
        assert b.metrics.refusals.snapshot()["cluster_answers_full"] == 1

        sent: list[int] = []

        def endless(subject: str, reply: Reply) -> None:
            sent.append(reply.size)
            write(subject, Reply("", 2**62, b"x"))

        write = cluster_of(b).calls._reply
        monkeypatch.setattr(cluster_of(b).calls, "_reply", endless)
        with pytest.raises(CallFailed, match="too long"):
            await a.cluster.call("b@h", "long", b"x")
        assert len(sent) == 1


@pytest.mark.parametrize(
    "bad",
    [
        b"\x97\xa2\xff\xfe",
        b"\x99\xa3b@h\xa1u\x01\xa1h\x01\xcb" + bytes(8) + b"\xa1v\xc2" + b"\x91" * 100_000,
        msgspec.msgpack.encode(MemberRecord("c@h", "u", 1, "h", 1, 0.0, "v")),
        msgspec.msgpack.encode(MemberRecord("b@h", "u", 1, "h", 1, float("nan"), "v")),
    ],
    ids=["text", "depth", "another node's", "date"],
)
async def test_a_record_of_a_node_that_cannot_be_read_is_written_over_by_it(bad: bytes) -> None:
    hub = VirtualNats()
    async with running(hub, "a@h") as (a,):
        start = cluster_of(a).context.wire.write(0)[:-1]
        hub.write("members", node_key("b@h"), start + bad, None, "bad")
        async with running(hub, "b@h") as (b,):
            await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)
            assert [each.name for each in a.cluster.members()] == ["a@h", "b@h"]


async def test_an_answer_that_cannot_be_read_fails_the_call() -> None:
    async with running(VirtualNats(), "a@h", "b@h") as (a, _):
        calls = cluster_of(a).calls
        for data in (b"\x92\xa2\xff\xfe\xa1m", b"\x93\xa1c\xa1m" + b"\x91" * 100_000, b"\xc1"):
            with pytest.raises(CallFailed, match="b@h"):
                calls.decoded("b@h", data, Offer)
        assert a.metrics.refusals.snapshot()["cluster_malformed"] == 3


async def test_a_call_is_answered_whatever_its_size() -> None:
    hub = VirtualNats(max_payload=65536)
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)

        async def repeat(node: str, argument: bytes) -> bytes:
            assert node == "a@h"
            return argument * 100_000

        async def fail(node: str, argument: bytes) -> bytes:
            raise CallFailed("no such client")

        b.cluster.serve("repeat", repeat)
        b.cluster.serve("fail", fail)
        answers = await asyncio.gather(*(a.cluster.call("b@h", "repeat", bytes([each])) for each in range(10)))
        assert answers == [bytes([each]) * 100_000 for each in range(10)]
        with pytest.raises(CallFailed, match="no such client"):
            await a.cluster.call("b@h", "fail", b"")
        with pytest.raises(CallFailed, match="no such call: else"):
            await a.cluster.call("b@h", "else", b"")
        with pytest.raises(NodeUnreachable, match="no such node"):
            await a.cluster.call("z@h", "repeat", b"")
        hub.delays["b@h", "a@h"] = (2.0, 2.0)
        with pytest.raises(NodeUnreachable, match="no answer in time"):
            await a.cluster.call("b@h", "repeat", b"x", 0.05)


async def test_who_was_forced_out_while_it_ran_does_not_come_back_with_the_next_connection() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        hub.disconnect("b@h")
        await until(lambda: status(a, "b@h") == STOPPED)
        await a.cluster.force_leave("b@h")
        hub.connect("b@h")
        await until(lambda: "cluster_refused" in b.alarms.active)
        refusals: list[str] = []
        cluster_of(b).membership.on_refused.append(lambda: refusals.append(b.cluster.refused))
        hub.disconnect("b@h")
        hub.connect("b@h")
        await until(lambda: bool(refusals))
        assert "was forced out of the cluster taipan" in refusals[0]
        assert status(a, "b@h") == "" and not b.cluster.membership.joined
        for change in (b.cluster.leave(), b.cluster.join("a@h")):
            with pytest.raises(ChangeRefused, match="was forced out"):
                await change


async def test_who_was_not_heard_yet_is_not_forced_out_and_join_waits_until_it_was() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        await b.cluster.leave()
        refused: list[str] = []

        async def force_out(peer: Peer) -> None:
            try:
                await b.cluster.force_leave(peer.name)
            except ChangeRefused as error:
                refused.append(str(error))

        tasks: list[asyncio.Task[None]] = []
        told = cluster_of(b).membership.on_change
        told.append(lambda peer, before: None if before else tasks.append(asyncio.create_task(force_out(peer))))
        await b.cluster.join("a@h")
        assert status(b, "a@h") == RUNNING
        await asyncio.gather(*tasks)
        assert len(refused) == 1 and "a@h may run" in refused[0]


async def test_join_waits_no_longer_than_until_a_node_that_is_gone_is_stopped_for_certain() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h", "c@h") as (a, b, c):
        await until(lambda: status(a, "b@h") == RUNNING)
        await b.cluster.leave()
        await c.stop()
        await b.cluster.join("a@h")
        assert status(b, "a@h") == RUNNING and status(b, "c@h") == STOPPED
        await b.cluster.force_leave("c@h")
