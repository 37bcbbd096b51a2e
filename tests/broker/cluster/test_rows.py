"""Rows are the same on all nodes: compare-and-set, what is undone, what a node that joins has before and after."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from taipan.broker.cluster.context import ClusterContext
from taipan.broker.cluster.shared.bucket_life import RECORD
from taipan.broker.cluster.shared.rows import LOST, NOT_JOINED, NOT_THERE, UNSURE, Rows
from taipan.broker.cluster.shared.values import RowValue
from taipan.broker.cluster.wire import thing_key
from taipan.broker.persistence.tables import NotAgreed, RowTooLarge, Table
from taipan.broker.server import Server
from tests.support.node import make_settings
from tests.support.patience import patience
from tests.support.virtual_nats import VirtualNats

pytestmark = pytest.mark.asyncio


class Thing(msgspec.Struct, array_like=True, frozen=True):
    text: str


class RowsNode:
    """The rows of one node, without the rest of its cluster. ``taken``: what its table was told of other nodes."""

    def __init__(self, hub: VirtualNats, name: str) -> None:
        settings = make_settings(node={"name": name}, cluster={"servers": ["nats://none"]})
        self.server = Server(make_settings(node={"name": name}))
        self.nats = hub.client(name)
        own = self.server
        self.context = ClusterContext(
            settings, self.nats, own.broker, own.context, own.tables, own.alarms, own.clock, hub.rng, "1"
        )
        self.context.wire.identify(f"uid of {name}", 1)
        self.table: Table[Thing] = own.tables.open("things", Thing, shared=True)
        self.taken: list[tuple[str, Thing | None, Thing | None]] = []
        self.table.on_taken.append(lambda key, old, new: self.taken.append((key, old, new)))
        self.rows = Rows(self.context)
        self.rows.write_timeout = 0.5

    async def start(self, joined: bool = True) -> "RowsNode":
        await self.nats.start()
        self.rows.start()
        if joined:
            assert await self.rows.wait_until_joined(10)
        return self

    async def stop(self) -> None:
        self.rows.stop()
        await self.nats.stop()

    def leave(self) -> None:
        """As a process that ends: what is in its tables stays."""
        self.rows.stop()

    async def come_back(self) -> None:
        self.rows.start()
        assert await self.rows.wait_until_joined(10)

    async def put(self, key: str, text: str) -> None:
        """As an operation does it: refused before, or answered when the cluster has it."""
        await self._change(lambda: self.table.put(key, Thing(text)))

    async def remove(self, key: str) -> None:
        await self._change(lambda: self.table.remove(key))

    async def _change(self, change: Callable[[], object]) -> None:
        reason = self.rows.begin()
        if reason:
            raise NotAgreed(reason)
        change()
        await self.rows.agreed()

    def refused(self, reason: str) -> int:
        return self.server.metrics.refusals.snapshot().get("cluster_" + reason, 0)

    @property
    def things(self) -> dict[str, str]:
        return {key: thing.text for key, thing in self.table.items()}


@asynccontextmanager
async def nodes(hub: VirtualNats, *names: str) -> AsyncIterator[list[RowsNode]]:
    made = [await RowsNode(hub, name).start() for name in names]
    try:
        yield made
    finally:
        for each in made:
            await each.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience(40)):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_change_is_on_every_node_and_is_not_written_again() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b", "c") as (a, b, c):
        await a.put("k", "one")
        await until(lambda: b.things == c.things == {"k": "one"})
        await b.put("k", "two")
        await until(lambda: a.things == c.things == {"k": "two"})
        await c.remove("k")
        await until(lambda: a.things == b.things == {})
        assert a.taken == [("k", Thing("one"), Thing("two")), ("k", Thing("two"), None)]
        assert b.taken == [("k", None, Thing("one")), ("k", Thing("two"), None)]
        written = [entry for entry in hub.buckets["rows"].log if entry.key != RECORD]
        assert len(written) == 3


async def test_of_two_that_change_a_row_at_once_one_wins_and_the_other_is_told() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        await a.put("k", "first")
        await until(lambda: b.things == {"k": "first"})
        outcomes = await asyncio.gather(a.put("k", "of a"), b.put("k", "of b"), return_exceptions=True)
        failures = [str(each) for each in outcomes if each is not None]
        assert failures == [LOST]
        winner = {"k": "of a" if outcomes[0] is None else "of b"}
        await until(lambda: a.things == b.things == winner)


async def test_a_row_that_another_node_has_made_at_once_wins_over_one_that_comes_later() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        hub.delays[("", "b")] = (0.05, 0.05)
        await a.put("k", "of a")
        assert b.things == {}
        with pytest.raises(NotAgreed, match="another node"):
            await b.put("k", "of b")
        assert b.things == {"k": "of a"}


async def test_two_that_want_the_same_have_both_what_they_want() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        await asyncio.gather(a.put("k", "same"), b.put("k", "same"))
        await asyncio.gather(a.remove("k"), b.remove("k"))
        await until(lambda: a.things == b.things == {})


async def test_many_changes_of_a_row_end_with_the_last() -> None:
    hub = VirtualNats()
    hub.delay = (0.0, 0.01)
    async with nodes(hub, "a", "b") as (a, b):
        for number in range(20):
            assert not a.rows.begin()
            a.table.put("k", Thing(str(number)))
            await asyncio.sleep(0)
        await a.rows.agreed()
        await until(lambda: b.things == {"k": "19"})


async def test_without_a_quorum_nothing_changes_and_the_operator_is_told() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        await a.put("k", "before")
        hub.partition({"a"}, {"b"}, quorum=None)
        await until(lambda: not a.nats.quorum)
        with pytest.raises(NotAgreed) as refused:
            await a.put("k", "after")
        assert str(refused.value) == NOT_THERE
        assert a.things == {"k": "before"}
        hub.heal()
        await until(lambda: a.nats.quorum)
        await a.put("k", "after")
        await until(lambda: b.things == {"k": "after"})


async def test_a_quorum_that_is_lost_while_a_change_is_under_way_undoes_it() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a") as (a,):
        await a.put("k", "before")
        assert not a.rows.begin()
        a.table.put("k", Thing("after"))
        hub.partition({"a"}, quorum=None)
        with pytest.raises(NotAgreed) as refused:
            await a.rows.agreed()
        assert str(refused.value) == NOT_THERE
        assert a.things == {"k": "before"}
        assert a.taken[-1] == ("k", Thing("after"), Thing("before"))


async def test_what_changes_by_itself_without_a_quorum_is_given_to_the_others_later() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        hub.partition({"a"}, {"b"}, quorum=1)
        a.table.put("k", Thing("by itself"))
        await until(lambda: not a.nats.quorum)
        assert b.things == {}
        hub.heal()
        await until(lambda: b.things == {"k": "by itself"})


async def test_a_change_whose_answers_are_lost_is_made_once_and_the_operator_learns_that_it_is_not_sure() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        hub.lose_answer = 1.0
        with pytest.raises(NotAgreed) as unsure:
            await a.put("k", "v")
        assert str(unsure.value) == UNSURE
        hub.lose_answer = 0.0
        await until(lambda: b.things == {"k": "v"} and not a.rows._changes)
        assert len([each for each in hub.buckets["rows"].log if each.key != RECORD]) == 1
        await b.put("k", "w")
        await until(lambda: a.things == {"k": "w"})


async def test_a_node_that_was_away_has_what_was_changed_meanwhile() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        await a.put("stays", "1")
        await a.put("goes", "1")
        await until(lambda: len(b.things) == 2)
        b.leave()
        await a.remove("goes")
        await a.put("stays", "2")
        await a.put("comes", "1")
        await b.come_back()
        assert b.things == {"stays": "2", "comes": "1"}


async def test_an_empty_cluster_takes_the_rows_of_the_first_node() -> None:
    hub = VirtualNats()
    first = RowsNode(hub, "a")
    for number in range(100):
        first.table.put(str(number), Thing("own"))
    await first.start()
    async with nodes(hub, "b") as (b,):
        await until(lambda: b.things == first.things and len(b.things) == 100)
    await first.stop()


async def test_the_rows_of_the_cluster_replace_those_of_a_node_that_joins_after_they_were_exported() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a") as (a,):
        await a.put("k", "of the cluster")
        late = RowsNode(hub, "b")
        late.leave()  # a node without a cluster
        late.table.put("k", Thing("own"))
        late.table.put("l", Thing("own"))
        exported: list[dict[str, str]] = []

        async def export() -> str:
            exported.append(late.things)
            return "file"

        late.server.tables.export = export
        await late.start()
        assert exported == [{"k": "own", "l": "own"}]
        assert late.things == {"k": "of the cluster"}
        # It is of the cluster now, and nothing is exported again.
        late.leave()
        await late.come_back()
        assert len(exported) == 1
        await late.stop()


async def test_rows_are_not_replaced_before_they_are_exported() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a") as (a,):
        await a.put("k", "of the cluster")
        late = RowsNode(hub, "b")
        late.leave()
        late.table.put("l", Thing("own"))
        tries: list[int] = []

        async def export() -> str:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("disk full")
            return "file"

        late.server.tables.export = export
        await late.start(joined=False)
        await until(lambda: len(tries) == 1)
        assert late.rows.begin() == NOT_JOINED
        assert late.things == {"l": "own"}
        await until(lambda: late.rows.joined)
        assert late.things == {"k": "of the cluster"}
        await late.stop()


async def test_a_bucket_that_was_lost_is_filled_again_while_the_nodes_run() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        for number in range(50):
            await a.put(str(number), "1")
        await b.remove("7")
        await until(lambda: a.things == b.things and len(a.things) == 49)
        before = a.things
        hub.lose_bucket("rows")
        await until(lambda: all(each.rows.joined and each.rows.generation == 2 for each in (a, b)))
        assert a.things == b.things == before
        await b.put("7", "again")
        await until(lambda: a.things["7"] == "again")


async def test_after_a_loss_the_newest_row_wins_whoever_comes_first() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        for key in ("old", "changed", "removed"):
            await a.put(key, "1")
        await until(lambda: len(b.things) == 3)
        b.leave()  # it knows nothing of what follows
        await a.put("changed", "2")
        await a.remove("removed")
        await a.put("new", "1")
        a.leave()
        hub.lose_bucket("rows")
        await b.come_back()
        assert b.things == {"old": "1", "changed": "1", "removed": "1"}
        await a.come_back()
        wanted = {"old": "1", "changed": "2", "new": "1"}
        await until(lambda: a.things == b.things == wanted)


async def test_after_a_loss_a_node_that_was_away_brings_nothing_back() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        await a.put("removed", "1")
        await a.put("stays", "1")
        await until(lambda: len(b.things) == 2)
        b.leave()
        await a.remove("removed")
        hub.lose_bucket("rows")
        await until(lambda: a.rows.joined and a.rows.generation == 2)
        await b.come_back()
        assert a.things == b.things == {"stays": "1"}


async def test_a_row_that_nats_cannot_carry_is_refused_before_it_changes_anything() -> None:
    hub = VirtualNats(max_payload=65_536)
    async with nodes(hub, "a") as (a,):
        with pytest.raises(RowTooLarge, match="max_payload"):
            await a.put("k", "x" * 65_536)
        assert a.things == {}


async def test_a_row_that_is_too_large_for_nats_keeps_no_node_from_joining_and_stays_on_its_node() -> None:
    """It was there before the cluster, or max_payload was made smaller since."""
    hub = VirtualNats(max_payload=65_536)
    first = RowsNode(hub, "a")
    wanted = {f"{number}": "1" for number in range(50)}
    for key in wanted:
        first.table.put(key, Thing("1"))
        if key == "7":
            first.table.put("large", Thing("x" * 65_100))
    await first.start()
    assert first.refused("row_too_large") == 1
    assert first.things == {**wanted, "large": "x" * 65_100}
    async with nodes(hub, "b") as (b,):
        await until(lambda: b.things == wanted)
        hub.lose_bucket("rows")
        await until(lambda: all(each.rows.joined and each.rows.generation == 2 for each in (first, b)))
        assert first.refused("row_too_large") == 2
        first.leave()
        await first.come_back()
        assert "large" in first.things and b.things == wanted
    await first.stop()


async def test_a_change_that_is_too_large_for_nats_is_undone_and_told() -> None:
    hub = VirtualNats(max_payload=65_536)
    async with nodes(hub, "a") as (a,):
        await a.put("k", "1")
        a.rows.begin()
        a.table.put("k", Thing("x" * 10_000))
        a.nats.max_payload = 8_192  # another server, before it is written
        with pytest.raises(NotAgreed, match="max_payload"):
            await a.rows.agreed()
        assert a.things == {"k": "1"} and a.refused("row_too_large") == 1
        await a.put("k", "2")


async def test_what_cannot_be_read_leaves_this_nodes_rows_as_they_are() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        await a.put("k", "v")
        await until(lambda: b.things == {"k": "v"})
        (row,) = [each for each in hub.buckets["rows"].log if each.key != RECORD]
        b.leave()
        newer = bytes((9, 9)) + (row.value or b"")[2:]
        hub.buckets["rows"].apply(row.key, newer, row.revision, "newer version")
        await b.come_back()
        assert b.things == {"k": "v"}
        assert b.refused("newer_version")


@pytest.mark.parametrize(
    "bad",
    [b"\x93\xa2\xff\xfe\xa1k\xc4\x01x", b"\x95\xa1t\xa1k\xc4\x01x\xc0" + b"\x91" * 100_000],
    ids=["text", "depth"],
)
async def test_a_row_that_cannot_be_read_keeps_no_node_from_the_others(bad: bytes) -> None:
    hub = VirtualNats()
    async with nodes(hub, "a") as (a,):
        await a.put("k", "1")
        hub.write("rows", thing_key("bad"), a.context.wire.write(0)[:-1] + bad, None, "bad")
        await a.put("l", "2")
        async with nodes(hub, "b") as (b,):
            assert b.things == {"k": "1", "l": "2"}
            assert b.refused("malformed")


async def test_a_fault_with_one_row_keeps_no_node_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    hub = VirtualNats()
    async with nodes(hub, "a") as (a,):
        for key in ("k", "l", "m"):
            await a.put(key, "1")
        late = RowsNode(hub, "b")

        def fail(key: str, old: Thing | None, new: Thing | None) -> None:
            if key == "l":
                raise ValueError(key)

        late.table.on_taken.append(fail)
        await late.start()
        assert late.things == {"k": "1", "l": "1", "m": "1"}
        assert "cluster_row_not_taken table=things key=l" in caplog.text
        await late.stop()


async def test_a_row_of_a_table_that_is_a_nodes_own_is_refused() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        from taipan.broker.cluster.wire import thing_key

        a.server.tables.open("own", Thing)
        value = b.context.wire.write(RowValue("own", "k", msgspec.msgpack.encode(Thing("x"))))
        hub.write("rows", thing_key("own\0k"), value, 0, "n")
        await until(lambda: a.refused("malformed") == 1)


async def test_operations_are_told_of_their_own_changes_only() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        hub.delays[("", "b")] = (0.05, 0.05)
        await a.put("k", "of a")
        outcomes = await asyncio.gather(b.put("k", "of b"), b.put("l", "of b"), return_exceptions=True)
        assert [str(each) if each else None for each in outcomes] == [LOST, None]


async def test_a_task_that_an_operation_makes_changes_rows_for_it() -> None:
    hub = VirtualNats()
    async with nodes(hub, "a", "b") as (a, b):
        hub.delays[("", "b")] = (0.05, 0.05)
        await a.put("k", "of a")
        assert not b.rows.begin()

        async def work() -> None:
            assert not b.rows.begin()
            b.table.put("k", Thing("of b"))

        await asyncio.gather(work())
        with pytest.raises(NotAgreed):
            await b.rows.agreed()


@pytest.mark.parametrize("seed", range(6))
async def test_under_every_fault_all_nodes_end_with_the_same_rows(seed: int) -> None:
    from random import Random

    hub = VirtualNats(Random(seed), servers=3)
    hub.delay = (0.0, 0.004)
    hub.lose_request = hub.lose_answer = 0.02
    hub.election = (0.05, 0.2)
    rng = Random(seed)
    confirmed: dict[str, str] = {}
    async with nodes(hub, "a", "b", "c") as made:
        for number in range(60):
            node = rng.choice(made)
            key, text = str(rng.randrange(5)), f"{node.context.node}{number}"
            fault = rng.randrange(15)
            if fault == 0:
                hub.lose_leader()
            elif fault == 1:
                hub.disconnect("b")
                asyncio.get_running_loop().call_later(0.05, hub.connect, "b")
            elif fault == 2 and number > 30:
                node.table.put(key, Thing(text))
                continue
            try:
                await node.put(key, text)
                confirmed[key] = text
            except NotAgreed:
                pass
        hub.lose_request = hub.lose_answer = 0.0
        await until(lambda: not any(each.rows._changes for each in made) and hub.quiet)
        await until(lambda: made[0].things == made[1].things == made[2].things)
        assert set(confirmed) <= set(made[0].things)


async def test_rows_are_on_the_disk_of_every_node(tmp_path: Path) -> None:
    hub = VirtualNats()

    def settings(name: str) -> dict[str, dict[str, object]]:
        return {
            "node": {"name": name, "data_dir": str(tmp_path / name)},
            "durability": {"level": "disk"},
            "cluster": {"servers": ["nats://none"]},
        }

    from taipan.broker.access.password_hash import ScryptHash

    a, b = (Server(make_settings(**settings(name)), nats=hub.client(name)) for name in "ab")
    for each in (a, b):
        await each.start()
    a.stored_users.put("username", "u", ScryptHash.unknown(2))
    await until(lambda: b.stored_users.get("username", "u") is not None)
    assert b.stored_users.count("username") == 1
    assert await b.tables.stored()
    await b.stop()
    await a.stop()
    alone = Server(make_settings(**{**settings("b"), "cluster": None}))
    await alone.start()
    assert alone.stored_users.get("username", "u") == a.stored_users.get("username", "u")
    await alone.stop()
