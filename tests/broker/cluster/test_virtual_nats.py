"""VirtualNats behaves as ``broker.cluster.nats.interface`` says, and its faults are the ones that NATS has."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
import pytest_asyncio

from taipan.broker.cluster.nats.interface import (
    BucketEntry,
    NoAnswer,
    NoResponders,
    Unavailable,
    Unknown,
    WrongRevision,
)
from tests.support.patience import patience

from ...support.virtual_nats import VirtualNats, VirtualNatsClient

pytestmark = pytest.mark.asyncio


class Told:
    """What a watch told."""

    def __init__(self, nats: VirtualNatsClient, bucket: str = "rows") -> None:
        self.entries: list[BucketEntry] = []
        self.current: list[int] = []
        self.watch = nats.watch(bucket, self.entries.append, lambda: self.current.append(len(self.entries)))

    @property
    def values(self) -> list[tuple[str, bytes | None]]:
        return [(entry.key, entry.value) for entry in self.entries]


@pytest.fixture
def hub() -> VirtualNats:
    return VirtualNats(Random(1), servers=3)


@pytest_asyncio.fixture
async def clients(hub: VirtualNats) -> AsyncIterator[list[VirtualNatsClient]]:
    made = [hub.client(name) for name in "abc"]
    for client in made:
        await client.start()
    yield made
    for client in made:
        await client.stop()


async def until_quiet(hub: VirtualNats) -> None:
    while not hub.quiet:
        await asyncio.sleep(0)


async def test_core_messages_keep_their_order_between_two_clients(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    a, b, _ = clients
    hub.delay = (0.0, 0.003)
    got: list[bytes] = []
    b.subscribe("s", lambda data, _: got.append(data))
    for number in range(20):
        a.publish("s", b"%d" % number)
    await until_quiet(hub)
    assert got == [b"%d" % number for number in range(20)]


async def test_drop_repeat_and_disorder_are_of_core_messages(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    a, b, _ = clients
    hub.drop = hub.repeat = hub.disorder = 0.3
    hub.late = 0.005
    got: list[int] = []
    b.subscribe("s", lambda data, _: got.append(int(data)))
    for number in range(100):
        a.publish("s", b"%d" % number)
        await a.write("rows", "k", b"%d" % number, number, str(number))
    await until_quiet(hub)
    assert len(set(got)) < 100 and len(got) > len(set(got)) and got != sorted(got)


async def test_a_request_has_a_reply_nobody_there_or_no_answer(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    a, b, _ = clients
    b.subscribe("echo", lambda data, reply: b.publish(reply, data))
    b.subscribe("silent", lambda data, reply: None)
    assert await a.request("echo", b"x", 1.0) == b"x"
    with pytest.raises(NoResponders):
        await a.request("nobody", b"x", 1.0)
    with pytest.raises(NoAnswer):
        await a.request("silent", b"x", 0.01)
    hub.partition({"a"}, {"b", "c"}, quorum=1)
    with pytest.raises(NoResponders):
        await a.request("echo", b"x", 1.0)
    hub.disconnect("a")
    with pytest.raises(Unavailable):
        await a.request("echo", b"x", 1.0)


async def test_compare_and_set(clients: list[VirtualNatsClient]) -> None:
    a, b, _ = clients
    first = await a.write("rows", "k", b"1", 0, "n1")
    with pytest.raises(WrongRevision):
        await b.write("rows", "k", b"2", 0, "n2")
    assert await a.write("rows", "k", b"1", 0, "n1") == first, "the same write again has effect once"
    second = await b.write("rows", "k", None, first, "n3")
    assert second > first and await a.read("rows", "k") == BucketEntry("k", None, second)
    assert await a.write("rows", "k", b"4", 0, "n4") > second, "a deleted key is not there"
    assert await a.write("rows", "k", b"5", None, "n5") and await a.read("rows", "other") is None


async def test_a_watch_tells_each_change_once_over_reconnects(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    a, b, _ = clients
    await a.write("rows", "k", b"1", None, "n1")
    told = Told(b)
    empty = Told(b, "wills")
    await until_quiet(hub)
    assert told.values == [("k", b"1")] and told.current == [1] and empty.current == [0]
    await a.write("rows", "k", b"2", None, "n2")
    await a.write("rows", "l", b"2", None, "n3")
    assert await told.watch.reached(3, 1.0) and not await told.watch.reached(4, 0.001)
    hub.disconnect("b")
    await a.write("rows", "k", b"3", None, "n4")
    await a.write("rows", "k", b"4", None, "n5")
    await a.write("rows", "l", None, None, "n6")
    await until_quiet(hub)
    assert told.watch.revision == 3
    hub.connect("b")
    await until_quiet(hub)
    assert told.values == [("k", b"1"), ("k", b"2"), ("l", b"2"), ("k", b"4"), ("l", None)]
    told.watch.stop()
    await a.write("rows", "k", b"5", None, "n7")
    await until_quiet(hub)
    assert len(told.entries) == 5 and told.current == [1]


async def test_the_minority_writes_nothing_and_hears_nothing(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    a, b, c = clients
    told = Told(a)
    await until_quiet(hub)
    got: list[bytes] = []
    for client in clients:
        client.subscribe("s", lambda data, _: got.append(data))
    hub.partition({"a"}, {"b", "c"}, quorum=1)
    with pytest.raises(Unavailable):
        await a.write("rows", "k", b"1", None, "n1", timeout=0.01)
    revision = await b.write("rows", "k", b"2", None, "n2")
    c.publish("s", b"c")
    await until_quiet(hub)
    assert got == [b"c", b"c"] and told.entries == []
    hub.heal()
    assert await told.watch.reached(revision, 1.0) and told.values == [("k", b"2")]


async def test_a_write_to_a_paused_server_is_unknown_and_may_come_later(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    a = clients[0]
    hub.pause()
    with pytest.raises(Unknown):
        await a.write("rows", "k", b"1", None, "n1", timeout=0.01)
    hub.resume(lost=0.0)
    await until_quiet(hub)
    entry = await a.read("rows", "k")
    assert entry is not None and entry.value == b"1"
    hub.pause()
    with pytest.raises(Unknown):
        await a.write("rows", "k", b"2", None, "n2", timeout=0.01)
    hub.resume(lost=1.0)
    await until_quiet(hub)
    assert await a.read("rows", "k") == entry


async def test_without_a_leader_nothing_is_written(hub: VirtualNats, clients: list[VirtualNatsClient]) -> None:
    hub.lose_leader(0.02)
    with pytest.raises(Unavailable):
        await clients[0].write("rows", "k", b"1", None, "n1", timeout=0.01)
    assert await clients[0].write("rows", "k", b"1", None, "n1", timeout=1.0) == 1


async def test_the_clients_of_a_stopped_server_move_to_another(
    hub: VirtualNats, clients: list[VirtualNatsClient]
) -> None:
    hub.reconnect_delay = (0.0, 0.001)
    moved = asyncio.Event()
    heard: list[str] = []
    clients[1].on_disconnected.append(lambda: heard.append("gone"))
    clients[1].on_connected.append(moved.set)
    hub.stop_server(1)
    await asyncio.wait_for(moved.wait(), patience(40))
    assert heard == ["gone"] and clients[1].server != 1
    assert await clients[1].write("rows", "k", b"1", None, "n1") == 1
    hub.stop_server(2)
    with pytest.raises(Unavailable):
        await clients[0].write("rows", "k", b"2", None, "n2", timeout=0.01)


async def test_a_bucket_that_lost_its_data_begins_again(hub: VirtualNats, clients: list[VirtualNatsClient]) -> None:
    a = clients[0]
    told = Told(a)
    for number in range(3):
        await a.write("rows", str(number), b"", None, str(number))
    await until_quiet(hub)
    lost: list[str] = []
    a.on_lost.append(lost.append)
    also = Told(a)
    await until_quiet(hub)
    assert a.quorum
    hub.lose_bucket("rows")
    assert await a.write("rows", "new", b"", 0, "n") == 1
    await until_quiet(hub)
    assert told.values[-1] == also.values[-1] == ("new", b"") and told.watch.revision == 1
    assert lost == ["rows"]
    hub.lose_leader(1.0)
    assert not a.quorum


async def test_a_killed_client_is_called_no_more(hub: VirtualNats, clients: list[VirtualNatsClient]) -> None:
    a, b, _ = clients
    told = Told(b)
    b.subscribe("s", lambda data, _: told.entries.append(BucketEntry("s", data, 0)))
    await until_quiet(hub)
    hub.delays = {("a", "b"): (0.5, 0.5), ("", "b"): (0.5, 0.5)}  # longer than it takes until the kill
    a.publish("s", b"x")
    await a.write("rows", "k", b"1", None, "n1")
    b.kill()
    await until_quiet(hub)
    assert told.entries == []
    with pytest.raises(NoResponders):
        await a.request("s", b"x", 1.0)
