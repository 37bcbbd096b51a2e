"""Who is in the cluster and who runs, on a virtual NATS."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taipan.broker.cluster import calls as calls_module
from taipan.broker.cluster.members.own_record import BUCKET, NameTaken
from taipan.broker.cluster.members.peer import Peer, forced_out_of
from taipan.broker.cluster.moving.session_transfer import Offer
from taipan.broker.cluster.nats.interface import NatsRefused, Unknown, WrongRevision
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wire import MemberRecord, Refusals, Reply, Request, Wire, node_key
from taipan.broker.core.cluster import RUNNING, STOPPED, SUSPECT, CallFailed, ChangeRefused, NodeUnreachable
from taipan.broker.observability.metrics import Reasons
from taipan.broker.server import Server
from tests.support.node import make_settings
from tests.support.patience import patience
from tests.support.virtual_nats import VirtualNats

pytestmark = pytest.mark.asyncio

QUICK = {"servers": ["nats://none"], "suspect_after": 1.5, "stopped_after": 2.5, "connect_timeout": 0.1}


def server(hub: VirtualNats, name: str, **cluster: Any) -> Server:
    settings = make_settings(node={"name": name}, cluster={**QUICK, **cluster})
    return Server(settings, nats=hub.client(name))


def on_disk(hub: VirtualNats, name: str, directory: Path, **cluster: Any) -> Server:
    """A node with this data directory."""
    node = {"name": name, "data_dir": str(directory)}
    settings = make_settings(node=node, cluster={**QUICK, **cluster}, durability={"level": "disk"})
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
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def node_on_disk(hub: VirtualNats, name: str, directory: Path) -> AsyncIterator[Server]:
    made = on_disk(hub, name, directory)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def force_out(by: Server, name: str) -> None:
    await until(lambda: status(by, name) == STOPPED and not cluster_of(by).membership.peers[name].may_run)
    await by.cluster.force_leave(name)


async def refused_at_start(hub: VirtualNats, name: str, directory: Path) -> None:
    """A node with this data directory may not join, and it is said why."""
    node = on_disk(hub, name, directory)
    with pytest.raises(NatsRefused, match=f"node.data_dir: {name} was forced out of the cluster taipan: its data_dir"):
        await node.start()


def refused(server: Server, reason: str) -> int:
    return server.metrics.refusals.snapshot().get(f"cluster_{reason}", 0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


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


@pytest.mark.slow
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
        with pytest.raises(ChangeRefused, match="is not a node"):
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


@pytest.mark.slow
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


async def test_data_that_was_forced_out_is_refused_after_others_have_joined_under_its_name(tmp_path: Path) -> None:
    hub = VirtualNats()
    old, second, third = tmp_path / "old", tmp_path / "second", tmp_path / "third"
    async with running(hub, "a@h") as (a,):
        async with node_on_disk(hub, "b@h", old):
            await until(lambda: status(a, "b@h") == RUNNING)
        await force_out(a, "b@h")
        await refused_at_start(hub, "b@h", old)
        async with node_on_disk(hub, "b@h", second) as b:
            await until(lambda: status(a, "b@h") == RUNNING)
            await cluster_of(b).membership.probe()
        await refused_at_start(hub, "b@h", old)
        async with node_on_disk(hub, "b@h", second):
            await until(lambda: status(a, "b@h") == RUNNING)
        await force_out(a, "b@h")
        async with node_on_disk(hub, "b@h", third):
            await until(lambda: status(a, "b@h") == RUNNING)
        await refused_at_start(hub, "b@h", old)
        await refused_at_start(hub, "b@h", second)
        async with node_on_disk(hub, "b@h", third):
            await until(lambda: status(a, "b@h") == RUNNING)


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while it is stopped"])
async def test_who_has_joined_for_data_that_was_forced_out_tells_a_new_bucket_of_it(tmp_path: Path, runs: bool) -> None:
    hub = VirtualNats()
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(hub, "a@h") as (a,):
        async with node_on_disk(hub, "b@h", old):
            await until(lambda: status(a, "b@h") == RUNNING)
        await force_out(a, "b@h")
        async with node_on_disk(hub, "b@h", new):
            await until(lambda: status(a, "b@h") == RUNNING)
            if runs:
                hub.lose_bucket("members")
                await until(lambda: len(hub.buckets["members"].last) == 2)
        if not runs:
            hub.lose_bucket("members")
            async with node_on_disk(hub, "b@h", new):
                await until(lambda: status(a, "b@h") == RUNNING)
        await refused_at_start(hub, "b@h", old)


async def test_data_that_was_forced_out_is_refused_after_a_node_of_its_name_has_left(tmp_path: Path) -> None:
    hub = VirtualNats()
    old, new = tmp_path / "old", tmp_path / "new"
    async with running(hub, "a@h", "c@h") as (a, c):
        async with node_on_disk(hub, "b@h", old):
            await until(lambda: status(a, "b@h") == RUNNING)
        await force_out(a, "b@h")
        async with node_on_disk(hub, "b@h", new) as b:
            await until(lambda: status(a, "b@h") == RUNNING)
            await b.cluster.leave()
            await until(lambda: status(a, "b@h") == status(c, "b@h") == "")
            assert not b.alarms.active and not b.cluster.refused
            with pytest.raises(ChangeRefused, match="b@h is not a member"):
                await cluster_of(a).membership._check_is_member("b@h")
        await refused_at_start(hub, "b@h", old)
        async with node_on_disk(hub, "b@h", new) as b:
            assert status(a, "b@h") == ""
            await b.cluster.join("a@h")
            await until(lambda: status(a, "b@h") == RUNNING)
        await refused_at_start(hub, "b@h", old)


async def test_who_was_forced_out_and_replaced_while_it_was_cut_off_is_told_that_it_was() -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        hub.disconnect("b@h")
        await force_out(a, "b@h")
        new = server(hub, "b@h")
        await new.start()
        await until(lambda: status(a, "b@h") == RUNNING)
        await new.stop()
        hub.connect("b@h")
        await until(lambda: "cluster_refused" in b.alarms.active)
        alarm = b.alarms.active["cluster_refused"]
        assert "b@h was forced out of the cluster taipan" in alarm.message
        assert alarm.details == {"setting": "node.data_dir"}
        assert "was forced out" in b.cluster.refused and refused(b, "forced_out") == 1


async def test_who_was_forced_out_and_replaced_as_it_joins_is_refused() -> None:
    hub = VirtualNats()
    async with running(hub, "b@h") as (b,):
        membership, wire = cluster_of(b).membership, cluster_of(b).context.wire
        theirs = MemberRecord("b@h", "other", 1, "h", 1, 0.0, "v", refused_uids=(wire.uid,))

        async def too_late(revision: int) -> int:
            hub.write(BUCKET, node_key("b@h"), wire.write(theirs), None, "theirs")
            raise WrongRevision

        membership.joined = False
        membership.own_record.write = too_late  # type: ignore[method-assign]
        with pytest.raises(NatsRefused, match="was forced out") as caught:
            await membership._join()
        assert caught.value.setting == "node.data_dir"


async def test_no_more_than_the_sixteen_newest_are_kept() -> None:
    async with running(VirtualNats(), "b@h") as (b,):
        membership = cluster_of(b).membership
        for number in range(30):
            uids = tuple(f"u{each}" for each in range(max(0, number - 5), number))
            record = MemberRecord("b@h", f"u{number}", 1, "h", 1, 0.0, "v", forced_out=True, refused_uids=uids)
            membership.identity.refuse(forced_out_of(record))
        assert membership.own_record.value().refused_uids == tuple(f"u{number}" for number in range(14, 30))


async def test_another_data_directory_under_the_name_of_a_stopped_node_is_told_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = VirtualNats()
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    async with running(hub, "a@h") as (a,):
        for _ in range(2):
            async with node_on_disk(hub, "b@h", right):
                await until(lambda: status(a, "b@h") == RUNNING)
        assert refused(a, "node_replaced") == 0
        async with node_on_disk(hub, "b@h", wrong) as b:
            await until(lambda: status(a, "b@h") == RUNNING)
            await cluster_of(b).membership.probe()
            here, there = sorted(
                (each for each in warnings(caplog) if "cluster_node_replaced" in each),
                key=lambda each: "wrong" not in each,
            )
            assert f"node=b@h setting=node.data_dir data_dir={wrong} " in here and "stop this node" in here
            assert "node=b@h setting=node.data_dir" in there and "previous" in there
            assert refused(a, "node_replaced") == refused(b, "node_replaced") == 1
            assert a.cluster.members()[1].status == RUNNING
        # It is not forced out.
        async with node_on_disk(hub, "b@h", right) as b:
            await until(lambda: status(a, "b@h") == RUNNING)
            assert refused(a, "node_replaced") == 2 and refused(b, "node_replaced") == 1


async def test_another_data_directory_is_told_where_nats_did_not_answer_the_first_write(tmp_path: Path) -> None:
    hub = VirtualNats()
    async with node_on_disk(hub, "b@h", tmp_path / "right"):
        pass
    b = on_disk(hub, "b@h", tmp_path / "wrong")
    membership = cluster_of(b).membership
    written: list[int] = []
    write = membership.own_record.write

    async def unanswered(revision: int) -> int:
        made = await write(revision)
        written.append(made)
        if len(written) == 1:
            raise Unknown("no answer")
        return made

    membership.own_record.write = unanswered  # type: ignore[method-assign]
    await b.start()
    await until(lambda: membership.joined)
    assert len(written) == 2 and refused(b, "node_replaced") == 1
    await b.stop()


async def test_a_node_in_place_of_one_that_was_forced_out_or_has_no_disk_is_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "m@h") as (a, m):
        async with node_on_disk(hub, "b@h", tmp_path / "old"):
            await until(lambda: status(a, "b@h") == RUNNING)
        await force_out(a, "b@h")
        async with node_on_disk(hub, "b@h", tmp_path / "new"):
            await until(lambda: status(a, "b@h") == RUNNING)
        await m.stop()
        m = server(hub, "m@h")
        await m.start()
        await until(lambda: status(a, "m@h") == RUNNING)
        await m.stop()
        assert "node_replaced" not in caplog.text and refused(a, "node_replaced") == 0


async def test_a_node_whose_removal_was_missed_is_nothing_to_warn_of_when_it_was_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "c@h") as (a, c):
        async with node_on_disk(hub, "b@h", tmp_path / "old"):
            await until(lambda: status(c, "b@h") == RUNNING)
        hub.disconnect("c@h")
        await force_out(a, "b@h")
        async with node_on_disk(hub, "b@h", tmp_path / "new"):
            hub.connect("c@h")
            await until(lambda: status(c, "b@h") == RUNNING)
        assert "node_replaced" not in caplog.text


@pytest.mark.slow
async def test_a_node_that_leaves_or_starts_again_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING and status(b, "a@h") == RUNNING)
        await b.cluster.leave()
        await until(lambda: status(a, "b@h") == "")
        await until(lambda: refused(a, "has_left") > 0)
        await asyncio.sleep(2.7)  # for as long as it is out, it hears the others
        assert not b.metrics.refusals.snapshot()
        await b.cluster.join("a@h")
        await until(lambda: status(a, "b@h") == RUNNING)
        await b.stop()
        hub.delays["", "a@h"] = (0.3, 0.3)  # what b says comes before its record
        again = server(hub, "b@h")
        await again.start()
        await until(lambda: status(a, "b@h") == RUNNING)
        assert refused(a, "not_known_yet") >= 1
        late = server(hub, "c@h")
        await late.start()
        await until(lambda: status(a, "c@h") == RUNNING)
        assert "cluster_refused" not in caplog.text and refused(a, "unknown_node") == 0
        await late.stop()
        await again.stop()


async def test_a_node_that_goes_on_without_a_record_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    hub = VirtualNats()
    async with running(hub, "a@h") as (a,):
        stranger = Wire("taipan", "z@h", Refusals(Reasons(), lambda: 0.0))
        stranger.identify("u", 1)
        membership = cluster_of(a).membership
        membership.heartbeats.heard(stranger.write((1, (1, 1), [])), "")
        assert refused(a, "not_known_yet") == 1 and refused(a, "unknown_node") == 0
        await asyncio.sleep(2.5)
        membership.heartbeats.heard(stranger.write((2, (1, 1), [])), "")
        assert refused(a, "unknown_node") == 1
        assert "cluster_refused node=z@h reason=unknown_node" in caplog.text


async def test_who_was_forced_out_and_an_earlier_start_are_warned_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        membership = cluster_of(a).membership
        uid, incarnation = cluster_of(b).context.wire.uid, cluster_of(b).context.wire.incarnation
        other = Wire("taipan", "b@h", Refusals(Reasons(), lambda: 0.0))
        other.identify(uid, incarnation - 1)
        membership.heartbeats.heard(other.write((1, (1, 1), [])), "")
        assert "cluster_refused node=b@h reason=old_incarnation" in caplog.text
        await b.stop()
        await force_out(a, "b@h")
        other.identify(uid, incarnation)
        membership.heartbeats.heard(other.write((1, (1, 1), [])), "")
        assert "cluster_refused node=b@h reason=unknown_node" in caplog.text
        assert refused(a, "unknown_node") == refused(a, "old_incarnation") == 1
        # So it is when another one has its name.
        new = server(hub, "b@h")
        await new.start()
        await until(lambda: status(a, "b@h") == RUNNING)
        membership.heartbeats.heard(other.write((1, (1, 1), [])), "")
        assert refused(a, "unknown_node") == 2
        await new.stop()


async def test_the_log_says_of_a_node_that_it_was_not_heard_yet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hub = VirtualNats()
    async with running(hub, "a@h", "b@h") as (a, b):
        await until(lambda: status(a, "b@h") == RUNNING)
        await b.stop()
        await until(lambda: status(a, "b@h") == STOPPED)
        lines = [each.getMessage() for each in caplog.records if "cluster_node node=b@h" in each.getMessage()]
        found = [re.sub(r"incarnation=\d+ ", "", line.removeprefix("cluster_node node=b@h ")) for line in lines]
        assert found == [
            "status=Stopped previous=- detail=not_heard_yet",
            "status=Running previous=Stopped detail=-",
            "status=Stopped previous=Running detail=-",
        ]
