"""What every ``Nats`` does: NatsClient on a real server, and the virtual one of the simulation."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest
import pytest_asyncio

from taipan.broker.cluster.nats.client import NatsClient
from taipan.broker.cluster.nats.interface import (
    NEVER_THERE,
    BucketEntry,
    BucketWrite,
    Nats,
    NoAnswer,
    NoResponders,
    WrongRevision,
)
from taipan.broker.config import ClusterSettings
from tests.support.patience import patience

from ...support.nats_server import NatsServers
from ...support.peer import TIMEOUT
from ...support.virtual_nats import VirtualNats

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(60)]

Connect = Callable[[str], Awaitable[Nats]]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience(TIMEOUT)):
        while not true():
            await asyncio.sleep(0.005)


class Told:
    """What a watch told, and how often that it was current."""

    def __init__(self, nats: Nats, bucket: str = "rows") -> None:
        self.entries: list[BucketEntry] = []
        self.current: list[int] = []
        self.watch = nats.watch(bucket, self.entries.append, lambda: self.current.append(len(self.entries)))

    @property
    def values(self) -> list[tuple[str, bytes | None]]:
        return [(entry.key, entry.value) for entry in self.entries]

    async def until(self, *values: tuple[str, bytes | None]) -> None:
        await until(lambda: self.values[-len(values) :] == list(values))


@pytest_asyncio.fixture(params=["real", "virtual"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes the ``Nats`` of the node of that name, started."""
    made: list[Nats] = []
    if request.param == "virtual":
        hub = VirtualNats(Random(1))

        async def connect_virtual(name: str) -> Nats:
            made.append(nats := hub.client(name))
            await nats.start()
            return nats

        yield connect_virtual
        for nats in made:
            await nats.stop()
        return
    async with NatsServers() as servers:

        async def connect_real(name: str) -> Nats:
            made.append(nats := NatsClient(ClusterSettings(servers=servers.urls), name, 1_000_000))
            await nats.start()
            return nats

        yield connect_real
        for nats in made:
            await nats.stop()


async def test_messages_reach_who_listens_in_order(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    heard: list[bytes] = []
    also: list[tuple[bytes, str]] = []
    b.subscribe("taipan.t.x", lambda data, reply: heard.append(data))
    b.subscribe("taipan.t.x", lambda data, reply: also.append((data, reply)))
    b.subscribe("taipan.t.other", lambda data, reply: heard.append(b"wrong"))
    assert a.connected and b.connected and a.max_payload >= 1_000_000
    # Whoever has answered listens.
    b.subscribe("taipan.t.ready", lambda data, reply: b.publish(reply, b"ready"))
    await answered(a, "taipan.t.ready")
    sent = [str(number).encode() for number in range(2000)]
    for data in sent:
        a.publish("taipan.t.x", data)
    await until(lambda: len(heard) == len(also) == len(sent))
    assert heard == sent and also == [(data, "") for data in sent]


async def answered(nats: Nats, subject: str) -> bytes:
    async with asyncio.timeout(patience(TIMEOUT)):
        while True:
            try:
                return await nats.request(subject, b"", 1.0)
            except NoResponders:
                await asyncio.sleep(0.01)


async def test_a_request_gets_its_answer(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    b.subscribe("taipan.t.call", lambda data, reply: b.publish(reply, data.upper()))
    b.subscribe("taipan.t.silent", lambda data, reply: None)
    await answered(a, "taipan.t.call")
    answers = await asyncio.gather(*(a.request("taipan.t.call", f"q{n}".encode(), 5.0) for n in range(200)))
    assert answers == [f"Q{n}".encode() for n in range(200)]
    with pytest.raises(NoResponders, match=r"^nothing listens on taipan\.t\.nobody$"):
        await a.request("taipan.t.nobody", b"", 5.0)
    with pytest.raises(NoAnswer, match=r"^no answer to taipan\.t\.silent$"):
        await a.request("taipan.t.silent", b"", 0.05)


async def test_a_large_message_arrives_whole(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    heard: list[bytes] = []
    b.subscribe("taipan.t.x", lambda data, reply: heard.append(data))
    b.subscribe("taipan.t.ready", lambda data, reply: b.publish(reply, b""))
    await answered(a, "taipan.t.ready")
    data = Random(1).randbytes(a.max_payload)
    a.publish("taipan.t.x", data)
    await until(lambda: heard == [data])


async def test_compare_and_set(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    first = await a.write("sessions", "k", b"1", 0, "n1")
    with pytest.raises(WrongRevision):
        await b.write("sessions", "k", b"2", 0, "n2")
    assert await b.read("sessions", "k") == BucketEntry("k", b"1", first)
    second = await b.write("sessions", "k", b"2", first, "n3")
    assert second > first
    with pytest.raises(WrongRevision):
        await a.write("sessions", "k", b"3", first, "n4")
    third = await a.write("sessions", "k", b"3", None, "n5")
    assert await b.read("sessions", "k") == BucketEntry("k", b"3", third)
    assert await b.read("sessions", "other") is None and a.quorum


async def test_writes_that_are_sent_together_are_compared_each(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    told = Told(b)
    await until(lambda: bool(told.current))  # a watch that starts later is not told what has been replaced
    at = await a.write("rows", "there", b"1", 0, "n1")
    deleted = await a.write("rows", "deleted", None, await a.write("rows", "deleted", b"1", 0, "n2"), "n3")
    many = [BucketWrite(f"k{number}", b"%d" % number, NEVER_THERE) for number in range(500)]
    revisions = await b.write_many("rows", [
        BucketWrite("there", b"2", at),
        BucketWrite("other", b"2", at),
        BucketWrite("deleted", b"2", NEVER_THERE),
        *many,
    ])  # fmt: skip
    assert revisions[1:3] == [None, None]
    written = [revisions[0], *revisions[3:]]
    assert all(written) and sorted(written, key=lambda each: each or 0) == written
    assert await a.write_many("rows", [BucketWrite("there", b"3", at), BucketWrite("deleted", b"3", deleted)]) == [
        None, (await a.read("rows", "deleted") or BucketEntry("", None, 0)).revision,
    ]  # fmt: skip
    await told.until(("deleted", b"3"))
    assert told.values[3:-1] == [("there", b"2")] + [(each.key, each.value) for each in many]
    assert a.quorum and b.quorum


async def test_a_deleted_key_can_be_made_again(connect: Connect) -> None:
    a = await connect("a")
    first = await a.write("sessions", "k", b"", 0, "n1")
    assert await a.read("sessions", "k") == BucketEntry("k", b"", first)
    second = await a.write("sessions", "k", None, first, "n2")
    assert await a.read("sessions", "k") == BucketEntry("k", None, second)
    with pytest.raises(WrongRevision):
        await a.write("sessions", "k", b"2", first, "n3")
    third = await a.write("sessions", "k", b"3", 0, "n4")
    assert await a.read("sessions", "k") == BucketEntry("k", b"3", third)
    with pytest.raises(WrongRevision):
        await a.write("sessions", "k", b"4", 0, "n5")


async def test_what_is_written_with_a_deletion_is_told_with_it(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    told: list[BucketEntry] = []
    current = asyncio.Event()
    b.watch("retained", told.append, current.set)
    await current.wait()
    first = await a.write("retained", "k", b"1", 0, "n1", about=b"not of a value")
    second = await a.write("retained", "k", None, first, "n2", about=b"why")
    assert await b.read("retained", "k") == BucketEntry("k", None, second, b"why")
    # A stream keeps one message of a key: the first may be gone before it is sent to the watch.
    earlier, deletion = BucketEntry("k", b"1", first), BucketEntry("k", None, second, b"why")
    await until(lambda: told in ([earlier, deletion], [deletion]))
    late: list[BucketEntry] = []
    a.watch("retained", late.append, lambda: None)
    await until(lambda: late == [BucketEntry("k", None, second, b"why")])


async def test_a_key_that_was_never_there_was_not_deleted_either(connect: Connect) -> None:
    a = await connect("a")
    first = await a.write("retained", "k", b"1", NEVER_THERE, "n1")
    with pytest.raises(WrongRevision):
        await a.write("retained", "k", b"2", NEVER_THERE, "n2")
    second = await a.write("retained", "k", None, first, "n3")
    with pytest.raises(WrongRevision):
        await a.write("retained", "k", b"3", NEVER_THERE, "n4")
    third = await a.write("retained", "k", b"4", second, "n5")
    assert await a.read("retained", "k") == BucketEntry("k", b"4", third)


async def test_the_same_nonce_writes_once(connect: Connect) -> None:
    a = await connect("a")
    first = await a.write("rows", "k", b"1", 0, "n1")
    assert await a.write("rows", "k", b"1", 0, "n1") == first
    second = await a.write("rows", "k", b"2", first, "n2")
    assert await a.write("rows", "k", b"2", first, "n2") == second
    assert await a.read("rows", "k") == BucketEntry("k", b"2", second)


async def test_one_of_many_writers_wins(connect: Connect) -> None:
    nodes = [await connect(name) for name in "abc"]
    for number in range(20):
        key = f"k{number}"
        results = await asyncio.gather(
            *(nats.write("sessions", key, bytes([n]), 0, f"{key}-{n}") for n, nats in enumerate(nodes)),
            return_exceptions=True,
        )
        won = [n for n, each in enumerate(results) if isinstance(each, int)]
        assert len(won) == 1, results
        entry = await nodes[0].read("sessions", key)
        assert entry is not None and entry.value == bytes(won)


async def test_a_watch_tells_what_is_there_and_every_change_once(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    empty = Told(b, "wills")
    await until(lambda: empty.current == [0])
    await a.write("rows", "one", b"1", 0, "n1")
    two = await a.write("rows", "two", b"1", 0, "n2")
    await a.write("rows", "two", b"2", two, "n3")
    three = await a.write("rows", "three", b"1", 0, "n4")
    told = Told(b)
    await until(lambda: bool(told.current))
    assert told.values == [("one", b"1"), ("two", b"2"), ("three", b"1")] and told.current == [3]
    assert told.watch.revision == three and told.watch.current
    await a.write("rows", "three", None, three, "n5")
    last = await a.write("rows", "four", b"", 0, "n6")
    assert await told.watch.reached(last, 5.0)
    assert told.values[3:] == [("three", None), ("four", b"")] and told.current == [3]
    assert not await told.watch.reached(last + 1, 0.01)
    revisions = [entry.revision for entry in told.entries]
    assert revisions == sorted(set(revisions))
    told.watch.stop()
    also = Told(b)
    await until(lambda: bool(also.current))
    assert also.values == [("one", b"1"), ("two", b"2"), ("three", None), ("four", b"")]
    assert len(told.entries) == 5


async def test_many_entries_are_told_in_order(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    for begin in range(0, 3000, 500):
        await asyncio.gather(*(a.write("routes", f"k{n}", b"x" * 100, 0, f"n{n}") for n in range(begin, begin + 500)))
    told = Told(b, "routes")
    await until(lambda: bool(told.current))
    assert told.current == [3000]
    assert [entry.revision for entry in told.entries] == list(range(1, 3001))
    assert {entry.key for entry in told.entries} == {f"k{n}" for n in range(3000)}


async def test_callbacks_that_raise_end_nothing(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    heard: list[bytes] = []
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))

    def fail(data: bytes, reply: str) -> None:
        heard.append(data)
        raise RuntimeError("a bug")

    b.subscribe("taipan.t.x", fail)
    b.subscribe("taipan.t.ready", lambda data, reply: b.publish(reply, b""))
    await answered(a, "taipan.t.ready")
    a.publish("taipan.t.x", b"1")
    a.publish("taipan.t.x", b"2")
    await until(lambda: heard == [b"1", b"2"])
    assert b.connected
    asyncio.get_running_loop().set_exception_handler(None)


async def test_nothing_is_told_after_stop(connect: Connect) -> None:
    a, b = await connect("a"), await connect("b")
    told = Told(b)
    lost: list[str] = []
    b.on_disconnected.append(lambda: lost.append("lost"))
    await until(lambda: bool(told.current))
    await b.stop()
    await a.write("rows", "k", b"1", 0, "n1")
    assert told.entries == [] and not b.connected and lost == []
