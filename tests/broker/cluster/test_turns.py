"""What nodes that are away while a session moves still have for it."""

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest

from taipan.broker.cluster.moving.greeting import Greeting
from taipan.broker.cluster.moving.handover import Handover
from taipan.broker.cluster.moving.incoming import FINISHED
from taipan.broker.cluster.moving.outgoing import DONE, FETCH, Outgoing
from taipan.broker.cluster.moving.session_transfer import BUSY, Fetch, Piece, Prepare, Prepared
from taipan.broker.cluster.moving.turns import KEPT, Turn, Turns
from taipan.broker.cluster.nats.interface import BucketEntry, Watch
from taipan.broker.cluster.wire import Mark, MessageRecord, SessionKey, node_key, thing_key
from taipan.broker.core.cluster import RUNNING, STOPPED, CallFailed
from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.persistence.log.errors import WriteTrouble
from taipan.broker.session.session import Session

from ...support.cluster_nodes import ClusterNodes, cluster_nodes
from ...support.peer import Peer
from ...support.virtual_nats import VirtualNatsClient
from ...support.waiting import until
from ...support.wire import Publish
from .test_handover import received
from .test_session_keys import attempt, leave_five, owner, sessions

pytestmark = pytest.mark.asyncio

QUICK = {"suspect_after": 1.2, "stopped_after": 1.5, "takeover_timeout": 40, "call_timeout": 5, "takeover": "fresh"}
"""Other nodes are soon taken for stopped. How long a client waits is not what is tested here: a node whose disk takes a
second for a batch does not answer within two."""


async def until_away(cluster: ClusterNodes, away: int) -> None:
    def seen() -> set[str]:
        others = [number for number in cluster.nodes if number != away]
        return {each.status for number in others for each in cluster.part(number).members()[away : away + 1]}

    await until(lambda: seen() == {STOPPED})


def turns(cluster: ClusterNodes) -> list[str]:
    """What nodes still know of moves."""
    return [
        f"{table} {key}"
        for node in cluster.nodes.values()
        for table, key, _ in node.server.tables.rows()
        if table.startswith("handover")
    ] + [
        name for node in cluster.nodes.values() for name in node.server.broker.sessions.internal if "link:" not in name
    ]


async def prepare(cluster: ClusterNodes) -> tuple[Peer, Peer, Peer]:
    """A session of the first node, a subscriber of the second, a publisher of the third, and no network between that
    and the others. The first has message 0 already, the second has not; both have still to get message 1."""
    old = await cluster[0].client("s", expiry=3600)
    await old.subscribe("t", qos=2)
    near = await cluster[1].client("near")
    await near.subscribe("t", qos=2)
    far = await cluster[2].client("far")
    router = cluster[2].server.broker.router
    await until(lambda: router.remote_mask("t").bit_count() == 2)
    cluster.partition({0, 2}, {1})
    await far.publish("t", b"0", qos=2)
    await old.expect_publish("t", b"0", 2)
    await until(lambda: cluster.part(2).links.links[cluster.name(0)].idle)
    cluster.partition({0, 1}, {2})
    await far.publish("t", b"1", qos=2)
    await until_away(cluster, 2)
    return old, near, far


@pytest.mark.parametrize("takeover", ["fresh", "refuse"])
@pytest.mark.parametrize("moves", [1, 2])
async def test_a_session_gets_once_what_a_node_held_that_was_away_as_it_moved(
    tmp_path: Path, takeover: str, moves: int
) -> None:
    settings = {**QUICK, "takeover": takeover}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        _, near, far = await prepare(cluster)
        place = 0
        for _ in range(moves):
            place = 1 - place
            new = await cluster[place].client("s", expiry=3600, session_present=True)
            await until(lambda there=1 - place: "s" not in sessions(cluster, there))  # type: ignore[misc]
            publisher = await cluster[place].client("p")
            await publisher.publish("t", b"meanwhile", qos=2)
            await new.expect_publish("t", b"meanwhile", 2)
            await near.expect_publish("t", b"meanwhile", 2)
        assert turns(cluster)
        cluster.heal()
        await new.expect_publish("t", b"1", 2)
        for number in range(2):
            await near.expect_publish("t", b"%d" % number, 2)
        await far.publish("t", b"2", qos=2)
        await new.expect_publish("t", b"2", 2)
        await near.expect_publish("t", b"2", 2)
        await until(lambda: not turns(cluster))
        await new.nothing()


@pytest.mark.parametrize("killed", [0, 1])
async def test_it_does_so_when_a_node_that_takes_part_dies_meanwhile(tmp_path: Path, killed: int) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        _, _, far = await prepare(cluster)
        new = await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 0))
        await new.drop()
        await cluster.kill(killed)
        await far.publish("t", b"2", qos=2)
        await cluster.start(killed)
        await until(lambda: cluster.part(0).members()[1].status == RUNNING)
        new = await cluster[1].client("s", expiry=3600, session_present=True)
        cluster.heal()
        for number in (1, 2):
            await new.expect_publish("t", b"%d" % number, 2)
        await until(lambda: not turns(cluster))
        await far.publish("t", b"3", qos=2)
        await new.expect_publish("t", b"3", 2)
        await new.nothing()


async def test_nobody_waits_for_a_node_that_is_forced_out(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await prepare(cluster)
        new = await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 0))
        assert turns(cluster)
        await cluster.kill(2)
        await cluster.part(0).force_leave(cluster.name(2))
        await until(lambda: not turns(cluster))
        publisher = await cluster[0].client("p")
        await publisher.publish("t", b"3", qos=2)
        await new.expect_publish("t", b"3", 2)
        await new.nothing()


async def test_a_session_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await prepare(cluster)
        await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 0))
        assert turns(cluster)
        await cluster[1].client("s", clean_start=True)
        await until(lambda: not turns(cluster))


async def move_once(cluster: ClusterNodes, refused: set[str]) -> Peer:
    """A session that moves from the first node to the second while the third is away. Of the third's publisher, message
    0 is in the session's queue, and message 1 is on its way to the first node, which keeps it, and gives it to the
    ``refused`` only when they are that no more."""
    names = [cluster.name(number) for number in range(3)]
    old = await cluster[0].client("s", expiry=3600)
    await old.subscribe("t", qos=2)
    await old.drop()
    far = await cluster[2].client("far")
    router = cluster[2].server.broker.router
    await until(lambda: router.remote_mask("t").bit_count() == 1)
    filler = await cluster[0].client("filler")
    await filler.publish("t", b"filler", qos=2)
    await far.publish("t", b"0", qos=2)
    await until(lambda: cluster.part(2).links.links[names[0]].idle)
    cluster.partition(cluster.nodes.keys() - {2}, {2})
    await far.publish("t", b"1", qos=2)
    await until_away(cluster, 2)
    one = {c.SESSION_EXPIRY_INTERVAL: 3600, c.RECEIVE_MAXIMUM: 1}
    first = await cluster[1].client("s", clean_start=False, properties=one, session_present=True)
    await first.expect(Publish, payload=b"filler")
    await first.drop()
    await until(lambda: "s" not in sessions(cluster, 0))
    keeper = cluster.part(0).handover.outgoing
    piece = keeper.piece

    async def some_are_refused(node: str, ask: Fetch) -> Piece:
        return Piece(BUSY) if node in refused else await piece(node, ask)

    keeper.piece = some_are_refused  # type: ignore[method-assign]
    return far


async def until_kept(cluster: ClusterNodes) -> None:
    internal = cluster[0].server.broker.sessions.internal
    await until(lambda: [each.queued for name, each in internal.items() if name.startswith(KEPT)] == [1])


async def move_again(cluster: ClusterNodes, refused: set[str]) -> tuple[Peer, Peer]:
    """The same, and from there to the third at once when that is back."""
    far = await move_once(cluster, refused)
    cluster.hub.delays[cluster.name(2), cluster.name(1)] = (0.2, 0.2)
    cluster.heal()
    await until_kept(cluster)
    return await cluster[2].client("s", expiry=3600, session_present=True), far


@pytest.mark.parametrize("takeover", ["fresh", "refuse"])
async def test_what_is_kept_comes_behind_the_queue_of_a_session_that_moves_again(tmp_path: Path, takeover: str) -> None:
    settings = {**QUICK, "takeover": takeover}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        client, far = await move_again(cluster, {cluster.name(1)})
        assert await received(client, 3) == [b"filler", b"0", b"1"]
        cluster.hub.delays.clear()
        await until(lambda: not turns(cluster))
        await far.publish("t", b"2", qos=2)
        await client.expect_publish("t", b"2", 2)
        await client.nothing()


async def test_what_is_kept_for_a_session_that_is_begun_anew_elsewhere_is_dropped_and_counted(tmp_path: Path) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await move_once(cluster, {cluster.name(1)})
        cluster.heal()
        await until_kept(cluster)
        cluster.partition({0, 2}, {1})
        await until_away(cluster, 1)
        await cluster[2].client("s", expiry=3600, session_present=False)
        cluster.heal()
        refusals = cluster[0].server.metrics.refusals
        await until(lambda: refusals.snapshot().get("cluster_kept_of_lost_session") == 1)
        internal = cluster[0].server.broker.sessions.internal
        await until(lambda: not any(name.startswith(KEPT) for name in internal))


async def test_messages_of_the_node_itself_come_behind_what_it_sent_to_a_keeper(tmp_path: Path) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        refused = {cluster.name(1), cluster.name(2)}
        client, far = await move_again(cluster, refused)
        await far.publish("t", b"2", qos=2)
        assert await received(client, 2) == [b"filler", b"0"]
        coming = cluster.part(2).handover._incoming
        await until(lambda: (found := coming.get("s")) is not None and found.came)
        await client.nothing()
        refused.clear()
        assert await received(client, 2) == [b"1", b"2"]
        await until(lambda: not turns(cluster))
        await client.nothing()


async def test_a_node_that_does_not_know_yet_whose_a_session_is_does_not_take_it_for_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died before the other node could tell it that all has come, and that it is to keep what comes late."""
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        _, _, far = await prepare(cluster)

        async def refused(node: str, argument: bytes) -> bytes:
            raise CallFailed("not now")

        cluster.part(0).calls.serve(DONE, refused)
        new = await cluster[1].client("s", expiry=3600, session_present=True)
        coming = cluster.part(1).handover._incoming
        await until(lambda: (row := coming.get("s")) is not None and row.row.state == FINISHED)
        await cluster.kill(0)
        watch, done, known = VirtualNatsClient.watch, Outgoing._done, asyncio.Event()
        withheld: list[Callable[[], None]] = []
        told: list[str] = []

        def slow_watch(
            self: VirtualNatsClient,
            bucket: str,
            on_entry: Callable[[BucketEntry], None],
            on_current: Callable[[], None],
        ) -> Watch:
            if bucket != "sessions" or known.is_set():
                return watch(self, bucket, on_entry, on_current)
            return watch(
                self,
                bucket,
                lambda entry: withheld.append(partial(on_entry, entry)),
                lambda: withheld.append(on_current),
            )

        async def told_done(self: Outgoing, node: str, argument: bytes) -> bytes:
            told.append(node)
            return await done(self, node, argument)

        monkeypatch.setattr(VirtualNatsClient, "watch", slow_watch)
        monkeypatch.setattr(Outgoing, "_done", told_done)
        starting = asyncio.ensure_future(cluster.start(0))
        await until(lambda: len(told) > 0)
        known.set()
        for each in withheld:
            each()
        await starting
        await until(lambda: "s" not in sessions(cluster, 0))
        cluster.heal()
        await new.expect_publish("t", b"1", 2)
        await far.publish("t", b"2", qos=2)
        await new.expect_publish("t", b"2", 2)
        await until(lambda: not turns(cluster))


async def test_new_messages_come_behind_what_waited_for_a_keeper_as_the_node_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may come before the node has gone on with that."""
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        names = [cluster.name(number) for number in range(3)]
        refused = {names[1]}
        far = await move_once(cluster, refused)
        cluster.heal()
        await until_kept(cluster)
        marks = cluster.part(1).turns
        await until(lambda: (turn := marks.get("s")) is not None and turn.marked(names[2]))
        await far.publish("t", b"2", qos=2)
        here = cluster.part(1).handover
        await until(lambda: [each.queued for each in here._waiting.held("s").values()] == [1])

        async def for_ever(waiting: Session, to: object) -> None:
            await asyncio.Event().wait()

        here._waiting.deliver_paged = for_ever  # type: ignore[method-assign]
        refused.clear()
        await until(lambda: not here._incoming.late_of("s"))
        assert await cluster.part(1).context.tables.stored()
        assert here._waiting.held("s")
        await cluster.kill(1)
        start = Handover.start

        def after_a_message(self: Handover) -> None:
            if self._waiting.held("s"):
                self.turns._route(Message("t", b"3", 1), names[2])
            start(self)

        monkeypatch.setattr(Handover, "start", after_a_message)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        assert await received(client, 5) == [b"filler", b"0", b"1", b"2", b"3"]
        await until(lambda: not turns(cluster))
        await far.publish("t", b"4", qos=2)
        await client.expect_publish("t", b"4", 2)
        await client.nothing()


async def test_what_waits_for_a_keeper_that_has_died_goes_along_with_the_session(tmp_path: Path) -> None:
    """The client is not kept from another node for as long as that one is away."""
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        far = await move_once(cluster, {cluster.name(1)})
        cluster.heal()
        await until_kept(cluster)
        marks, here = cluster.part(1).turns, cluster.part(1).handover
        await until(lambda: (turn := marks.get("s")) is not None and turn.marked(cluster.name(2)))
        await cluster.kill(0)
        await far.publish("t", b"2", qos=2)
        await until(lambda: [each.queued for each in here._waiting.held("s").values()] == [1])
        await until_away(cluster, 0)
        client = await cluster[3].client("s", expiry=3600, session_present=True)
        assert await received(client, 2) == [b"filler", b"0"]
        await far.publish("t", b"3", qos=2)
        await cluster.start(0)
        assert await received(client, 3) == [b"1", b"2", b"3"]
        await until(lambda: not turns(cluster))
        await client.nothing()


@pytest.mark.slow
async def test_a_node_that_dies_before_it_learns_that_a_session_has_gone_keeps_what_waited_for_a_keeper(
    tmp_path: Path,
) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster=settings) as cluster:
        far = await move_once(cluster, {cluster.name(1)})
        cluster.heal()
        await until_kept(cluster)
        marks, here = cluster.part(1).turns, cluster.part(1).handover
        await until(lambda: (turn := marks.get("s")) is not None and turn.marked(cluster.name(2)))
        await cluster.kill(0)
        await far.publish("t", b"2", qos=2)
        await until(lambda: [each.queued for each in here._waiting.held("s").values()] == [1])
        await until_away(cluster, 0)

        async def refused(node: str, argument: bytes) -> bytes:
            raise CallFailed("not now")

        cluster.part(1).calls.serve(DONE, refused)
        client = await cluster[3].client("s", expiry=3600, session_present=True)
        coming = cluster.part(3).handover._incoming
        await until(lambda: (row := coming.get("s")) is not None and row.row.state == FINISHED)
        await cluster.kill(1)
        await cluster.start(1)
        await until(lambda: "s" not in sessions(cluster, 1))
        assert await received(client, 2) == [b"filler", b"0"]
        await far.publish("t", b"3", qos=2)
        await cluster.start(0)
        assert await received(client, 3) == [b"1", b"2", b"3"]
        await until(lambda: not turns(cluster))
        await client.nothing()


@pytest.mark.parametrize("place", [2, 3])
async def test_what_follows_a_mark_that_comes_as_the_session_leaves_comes_behind_what_is_kept(
    tmp_path: Path, place: int
) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(place + 1, directory=tmp_path, level="disk", cluster=settings) as cluster:
        refused = {each.name for each in cluster.part(0).members()}
        far = await move_once(cluster, refused)
        marks = cluster.part(2).turns
        send, asked = marks.mark, asyncio.Event()
        waiting: list[tuple[Mark, list[str]]] = []

        def later(mark: Mark, nodes: list[str]) -> None:
            waiting.append((mark, nodes))
            asked.set()

        marks.mark = later  # type: ignore[method-assign]
        giver = cluster.part(1).handover.outgoing
        prepare = giver._prepared

        def then_the_mark_comes(node: str, ask: Prepare) -> Prepared:
            prepared = prepare(node, ask)
            if giver.leaves("s") and marks.mark is later:
                marks.mark = send  # type: ignore[method-assign]
                send(*waiting[0])
                cluster[2].server.broker.publish(Message("t", b"2", 2))
            return prepared

        giver._prepared = then_the_mark_comes  # type: ignore[method-assign]
        cluster.heal()
        await until_kept(cluster)
        await asked.wait()
        client = await cluster[place].client("s", expiry=3600, session_present=True)
        assert await received(client, 2) == [b"filler", b"0"]
        await far.publish("t", b"3", qos=2)
        coming = cluster.part(place).handover._incoming
        await until(lambda: (found := coming.get("s")) is None or found.came)
        await client.nothing()
        refused.clear()
        assert await received(client, 3) == [b"1", b"2", b"3"]
        await until(lambda: not turns(cluster))
        await far.publish("t", b"4", qos=2)
        await client.expect_publish("t", b"4", 2)
        await client.nothing()


async def test_a_session_that_is_back_gets_what_is_kept_behind_what_still_comes_to_its_node(tmp_path: Path) -> None:
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        _, near, far = await prepare(cluster)
        await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 0))
        key = cluster.part(1).session_keys.place("s")
        assert key is not None
        client = await cluster[0].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 1))
        names = [cluster.name(number) for number in range(3)]
        cluster.part(2).turns.mark(Mark("s", names[1], key.revision), names[:2])
        await far.publish("t", b"2", qos=2)
        cluster.hub.delays[names[2], names[0]] = (0.3, 0.3)
        cluster.heal()
        for number in range(3):
            await near.expect_publish("t", b"%d" % number, 2)
        assert await received(client, 2) == [b"1", b"2"]
        cluster.hub.delays.clear()
        await until(lambda: not turns(cluster))
        await far.publish("t", b"3", qos=2)
        await client.expect_publish("t", b"3", 2)
        await client.nothing()


async def test_a_client_is_let_in_where_the_node_that_got_its_session_is_forced_out(tmp_path: Path) -> None:
    """That node died with the first piece; the one that gave it lets its own clients in again."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await leave_five(cluster)
        taken = asyncio.Event()

        def dies(step: str) -> None:
            if step == "piece_taken" and not taken.is_set():
                taken.set()
                cluster.hub.disconnect(cluster.name(1))
                raise asyncio.CancelledError

        cluster.part(1).handover.step = dies
        properties: dict[int, object] = {c.SESSION_EXPIRY_INTERVAL: 60}
        connecting = asyncio.ensure_future(attempt(cluster[1].peer(), "s", clean_start=False, properties=properties))
        await taken.wait()
        await cluster.kill(1)
        await asyncio.wait([connecting])
        connecting.exception()
        await until_away(cluster, 1)
        await cluster.part(0).force_leave(cluster.name(1))
        await until(lambda: not cluster.part(0).handover.leaves("s"))
        await cluster[0].client("s", expiry=60, session_present=False)
        assert not turns(cluster)


async def unasked(turn: Turn, nodes: list[str]) -> list[bool]:
    """Marks that nobody is asked for."""
    return [False] * len(nodes)


async def come_back_with_an_empty_disk(cluster: ClusterNodes) -> Peer:
    """The third node is forced out by the second, and starts again; a client there, when it knows both routes."""
    await cluster.part(1).force_leave(cluster.name(2))
    shutil.rmtree(cluster._data_dir(2))
    await cluster.start(2)
    await until(lambda: cluster.part(1).members()[2].status == RUNNING)
    await until(lambda: cluster[2].server.broker.router.remote_mask("t").bit_count() == 2)
    return await cluster[2].client("far")


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_node_that_was_forced_out_and_is_back_sends_its_mark_to_both_places_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """The new node had it, and the old one, which was cut off meanwhile, not yet. ``earlier``: what comes from that
    node before it is asked again."""
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        receiver = cluster.part(0).handover.turns._receiver
        came = receiver.on_mark

        def of_others(message: Message, record: MessageRecord, node: str) -> None:
            if node != cluster.name(2):
                came(message, record, node)

        receiver.on_mark = of_others
        client = await cluster[1].client("s", expiry=60, session_present=True)
        turn = cluster.part(1).handover.turns.get("s")
        await until(lambda: turn is not None and turn.marked(cluster.name(2)))
        cluster.partition({1, 2}, {0})
        await cluster.kill(2)
        await until(lambda: cluster.part(1).members()[2].status == STOPPED)
        receiver.on_mark = came
        if earlier:
            monkeypatch.setattr(cluster.part(1).handover._marks, "_ask_nodes", unasked)
        far = await come_back_with_an_empty_disk(cluster)
        if earlier:
            await far.publish("t", b"0", qos=2)
        cluster.heal()
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()
        monkeypatch.undo()
        await until(lambda: not turns(cluster))
        if earlier:
            await client.expect_publish("t", b"0", 2)
        await far.publish("t", b"1", qos=2)
        await client.expect_publish("t", b"1", 2)
        await client.nothing()


async def test_what_is_kept_for_a_node_that_comes_for_the_first_time_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third node was forced out while the session moved, and is back with an empty disk; the first one, which
    keeps for it what it sends, was cut off meanwhile."""
    settings = {**QUICK, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        await cluster.wait_until_quiet()
        await cluster.kill(2)
        await until_away(cluster, 2)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 0))
        monkeypatch.setattr(cluster.part(1).handover._marks, "_ask_nodes", unasked)
        cluster.partition({1, 2}, {0})
        far = await come_back_with_an_empty_disk(cluster)
        await far.publish("t", b"1", qos=2)
        cluster.heal()
        await cluster.wait_until_running()
        await cluster.wait_until_quiet()
        monkeypatch.undo()
        await until(lambda: not turns(cluster))
        await far.publish("t", b"2", qos=2)
        await client.expect_publish("t", b"1", 2)
        await client.expect_publish("t", b"2", 2)


@pytest.mark.parametrize("expiry", [0, 60])
async def test_a_mark_of_an_earlier_session_comes_late(tmp_path: Path, expiry: int) -> None:
    """It says that that one was elsewhere, and takes nothing from the one that has begun here since."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        client = await cluster[0].client("s", expiry=expiry)
        await client.subscribe("t", qos=2)
        far = await cluster[1].client("far")
        cluster.part(1).handover.turns.mark(Mark("s", cluster.name(1), 0), [cluster.name(0)])
        for number in range(2):
            await far.publish("t", b"%d" % number, qos=2)
            await client.expect_publish("t", b"%d" % number, 2)
            await cluster.wait_until_quiet()
        assert not turns(cluster)


async def test_a_mark_of_an_earlier_session_comes_while_the_next_one_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        old = await cluster[0].client("s", expiry=60)
        await old.subscribe("t", qos=2)
        far = await cluster[2].client("far")
        router = cluster[2].server.broker.router
        await until(lambda: router.remote_mask("t").bit_count() == 1)

        async def not_yet(revision: int) -> bool:
            return False

        late = cluster.part(2).handover.turns
        monkeypatch.setattr(late._routes, "reached", not_yet)
        client = await cluster[1].client("s", expiry=60, session_present=True)
        await until(lambda: cluster.part(0).handover.turns.get("s") is not None)
        await until(lambda: router.remote_mask("t").bit_count() == 2)
        late.mark(Mark("s", cluster.name(1), 0), [cluster.name(0)])
        await far.publish("t", b"0", qos=2)
        await cluster.wait_until_quiet()
        monkeypatch.undo()
        await until(lambda: not turns(cluster))
        await far.publish("t", b"1", qos=2)
        await client.expect_publish("t", b"0", 2)
        await client.expect_publish("t", b"1", 2)


async def test_a_mark_that_comes_before_it_is_known_whose_the_session_is_asks_for_another(tmp_path: Path) -> None:
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        client = await cluster[0].client("s", expiry=60)
        await client.subscribe("t", qos=2)
        session_keys = cluster.part(0).session_keys
        key = session_keys.places.by_key.pop(thing_key("s"))
        cluster.part(1).handover.turns.mark(Mark("s", cluster.name(1), 0), [cluster.name(0)])
        await until(lambda: turns(cluster))
        session_keys.places.by_key[thing_key("s")] = key
        await until(lambda: not turns(cluster))
        far = await cluster[1].client("far")
        await far.publish("t", b"1", qos=2)
        await client.expect_publish("t", b"1", 2)


async def test_a_session_that_is_all_here_may_go_on_while_its_old_node_is_away(tmp_path: Path) -> None:
    """The old node is to keep what the third one still has, and died before it was told so."""
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await prepare(cluster)
        cluster.partition({0, 1, 3}, {2})

        async def refused(node: str, argument: bytes) -> bytes:
            raise CallFailed("not now")

        cluster.part(0).calls.serve(DONE, refused)
        await cluster[1].client("s", expiry=3600, session_present=True)
        coming = cluster.part(1).handover._incoming
        await until(lambda: (incoming := coming.get("s")) is not None and incoming.row.state == FINISHED)
        await cluster.kill(0)
        await until_away(cluster, 0)
        await cluster[3].client("s", expiry=3600, session_present=True)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_session_that_begins_anew_where_something_is_kept_of_its_earlier_stay(
    tmp_path: Path, restarted: bool
) -> None:
    """The first node keeps what the third one still has for the session, which went to the second. That node dies, the
    session begins anew at the first one, and that one starts again, too. The new session receives messages that the
    third node accepts while it still regards the first node as that of the earlier session."""
    settings = {**QUICK, "takeover": "fresh", "strict_subscribe": True}
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster=settings) as cluster:
        _, _, far = await prepare(cluster)
        cluster.partition({0, 1, 3}, {2})
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: any(name.startswith(KEPT) for name in cluster[0].server.broker.sessions.internal))
        await client.drop()
        publisher = await cluster[3].client("publisher")
        await publisher.publish("t", b"2", qos=2)
        await until(lambda: cluster.part(3).links.links[cluster.name(1)].idle)
        await cluster.kill(1)
        await until_away(cluster, 1)
        client = await cluster[0].client("s", expiry=3600, session_present=False)
        await client.subscribe("t", qos=2)
        if restarted:
            await client.drop()
            await cluster.kill(0)
            await publisher.publish("t", b"3", qos=2)
            await cluster.start(0)
            client = await cluster[0].client("s", expiry=3600, session_present=True)
        else:
            await publisher.publish("t", b"3", qos=2)
        await client.expect_publish("t", b"3", 2)
        await far.publish("t", b"far", qos=2)
        await cluster.start(1)
        await client.expect_publish("t", b"2", 2)
        cluster.heal()
        await client.expect_publish("t", b"1", 2)
        await client.expect_publish("t", b"far", 2)
        await cluster.wait_until_running()
        await until(lambda: not turns(cluster))
        await publisher.publish("t", b"4", qos=2)
        await client.expect_publish("t", b"4", 2)
        await client.nothing()


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_is_kept_for_a_session_stays_where_a_node_is_forced_out_that_it_has_left(
    tmp_path: Path, restarted: bool
) -> None:
    """From the first node to the second, and on to the fourth; the third is away; the second is forced out."""
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await move_once(cluster, set())
        client = await cluster[3].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 1))
        await cluster.kill(1)
        await until_away(cluster, 1)
        if restarted:
            await client.drop()
            await cluster.kill(3)
            await cluster.kill(0)
            await cluster.start(0)
            await until_away(cluster, 1)
            await until(lambda: not cluster.part(0).membership.peers[cluster.name(1)].may_run)
        await cluster.part(0).force_leave(cluster.name(1))
        if restarted:
            await cluster.start(3)
            client = await cluster[3].client("s", expiry=3600, session_present=True)
        cluster.heal()
        await cluster.wait_until_running()
        assert await received(client, 3) == [b"filler", b"0", b"1"]
        await until(lambda: not turns(cluster))


async def test_nothing_is_kept_for_a_session_whose_node_is_forced_out_and_never_asked(tmp_path: Path) -> None:
    """It went on from the second node to the fourth, which the first one does not answer."""
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await move_once(cluster, {cluster.name(3)})
        await cluster[3].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 1))
        await cluster.kill(3)
        await until_away(cluster, 3)
        await cluster.part(0).force_leave(cluster.name(3))
        await until(lambda: owner(cluster, "s") is None)
        await until(lambda: not [each for each in turns(cluster) if "n1" not in each])


def fill_disk(cluster: ClusterNodes, number: int) -> None:
    """Nothing more is written there until the node starts again."""
    store = cluster[number].server.store
    assert store is not None

    def full(*arguments: object) -> None:
        raise WriteTrouble("the disk is full")

    for node in cluster.nodes.values():
        node.ignore(lambda record: record.getMessage().startswith("store_"))
    store._log.append = full  # type: ignore[method-assign]


async def test_messages_that_a_full_disk_forgot_as_sent_do_not_come_twice_by_a_third_node(tmp_path: Path) -> None:
    """The first node cannot store that it has sent them, gives them to the second node and dies. The client goes on to
    the third node before the first one is back."""
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await leave_five(cluster)
        await cluster.wait_until_quiet()
        fill_disk(cluster, 0)
        client = await cluster[0].client("s", expiry=3600, session_present=True)
        session = cluster[0].server.broker.sessions.get("s")
        await until(lambda: session is not None and len(session.inflight) == 5)
        cluster.part(1).claims.step = lambda name: cluster.partition({1, 2}, {0}) if name == "taken" else None
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await cluster.kill(0)
        assert await received(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await until_away(cluster, 0)
        coming = cluster.part(1).handover._incoming
        await until(lambda: (incoming := coming.get("s")) is not None and incoming.staging is None)
        client = await cluster[2].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 1))
        cluster.heal()
        await cluster.start(0)
        await cluster.wait_until_running()
        await until(lambda: "s" not in sessions(cluster, 0) and not turns(cluster))
        await client.nothing()


def count_questions(cluster: ClusterNodes, number: int) -> list[int]:
    """Which pieces of queues a node is asked for, by the number of the last one that has arrived."""
    node = cluster.part(number)
    asked: list[int] = []

    async def counted(name: str, argument: bytes) -> bytes:
        asked.append(msgspec.msgpack.decode(argument, type=Fetch).taken)
        return await node.handover.outgoing._fetch(name, argument)

    node.calls.serve(FETCH, counted)
    return asked


async def test_a_node_that_cannot_store_what_it_gives_gives_no_queued_messages(tmp_path: Path) -> None:
    """Otherwise it would give them again after its next start, as would a node that runs it from a copy."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await leave_five(cluster)
        await cluster.wait_until_quiet()
        cluster.part(0).context.piece_messages = 2
        fill_disk(cluster, 0)
        asked = count_questions(cluster, 0)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: len(asked) > 2)
        await client.nothing()
        await cluster.kill(0)
        await cluster.start(0)
        assert await received(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await until(lambda: not turns(cluster))
        await client.nothing()


async def test_a_piece_that_is_not_on_the_disk_of_the_new_node_is_not_confirmed(tmp_path: Path) -> None:
    """Otherwise the old node would drop it, and it would be lost with the new one."""
    async with cluster_nodes(2, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "refuse"}) as cluster:
        await leave_five(cluster)
        await cluster.wait_until_quiet()
        old, new = cluster.part(0), cluster.part(1)
        old.context.piece_messages = 2

        async def busy(node: str, argument: bytes) -> bytes:
            return msgspec.msgpack.encode(Piece(BUSY))

        old.calls.serve(FETCH, busy)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await client.drop()
        new.handover.step = lambda name: fill_disk(cluster, 1) if name == "piece_taken" else None
        asked = count_questions(cluster, 0)
        await until(lambda: new.context.tables.in_trouble)
        await asyncio.sleep(1.2)
        assert set(asked) == {0}
        await cluster.kill(1)
        await cluster.start(1)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        assert await received(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await until(lambda: not turns(cluster))


@pytest.mark.parametrize("level", ["disk", "memory"])
async def test_a_node_with_new_data_accepts_no_messages_before_all_nodes_know_it(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third node starts with an empty disk. The first one, which has a session, does not know of it for a moment.
    The second one takes the session, and knows of the third one, but has not heard it yet."""
    watch, publish = VirtualNatsClient.watch, VirtualNatsClient.publish
    withheld: list[Callable[[], object]] = []
    holds = False

    def slow_watch(
        self: VirtualNatsClient, bucket: str, on_entry: Callable[[BucketEntry], None], on_current: Callable[[], None]
    ) -> Watch:
        def entry(each: BucketEntry) -> None:
            if holds and (self.name, bucket, each.key) == (cluster.name(0), "members", node_key(cluster.name(2))):
                withheld.append(partial(on_entry, each))
            else:
                on_entry(each)

        return watch(self, bucket, entry, on_current)

    def without_heartbeats(self: VirtualNatsClient, subject: str, data: bytes) -> None:
        if not (holds and self.name == cluster.name(2) and subject.endswith(".alive")):
            publish(self, subject, data)

    async def start_and_publish() -> None:
        await cluster.start(2)
        publisher = await cluster[2].client("p")
        await publisher.publish("t", b"m", qos=2)

    monkeypatch.setattr(VirtualNatsClient, "watch", slow_watch)
    monkeypatch.setattr(VirtualNatsClient, "publish", without_heartbeats)
    settings = {**QUICK, "suspect_after": 8, "stopped_after": 10, "takeover": "refuse"}
    async with cluster_nodes(3, directory=tmp_path, level=level, cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        await cluster.part(2).leave()
        await cluster.stop(2)
        shutil.rmtree(cluster._data_dir(2), ignore_errors=level == "memory")
        await until(lambda: not any(cluster.name(2) in cluster.part(number).membership.peers for number in range(2)))
        holds = True
        publishing = asyncio.ensure_future(start_and_publish())
        await until(lambda: bool(withheld) and cluster.name(2) in cluster.part(1).membership.peers)
        await asyncio.wait([publishing], timeout=2)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        await until(lambda: "s" not in sessions(cluster, 0))
        holds = False
        for each in withheld:
            each()
        await publishing
        await client.expect_publish("t", b"m", 2)
        await until(lambda: not turns(cluster))
        await client.nothing()


async def test_a_new_node_that_others_have_not_heard_yet_accepts_no_clients_before_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, greeted = VirtualNatsClient.publish, Greeting._greeted
    holds = False

    def without_heartbeats(self: VirtualNatsClient, subject: str, data: bytes) -> None:
        if not (holds and self.name == cluster.name(2) and subject.endswith(".alive")):
            publish(self, subject, data)

    def heard() -> None:
        nonlocal holds
        holds = False

    async def first_unheard(self: Greeting, node: str, argument: bytes) -> bytes:
        asyncio.get_running_loop().call_later(0.3, heard)
        return await greeted(self, node, argument)

    monkeypatch.setattr(VirtualNatsClient, "publish", without_heartbeats)
    monkeypatch.setattr(Greeting, "_greeted", first_unheard)
    settings = {**QUICK, "suspect_after": 2, "stopped_after": 6}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        await cluster.part(2).leave()
        await cluster.stop(2)
        shutil.rmtree(cluster._data_dir(2))
        await until(lambda: not any(cluster.name(2) in cluster.part(number).membership.peers for number in range(2)))
        cluster.partition({1, 2}, {0})
        await until_away(cluster, 0)
        client = await cluster[1].client("s", expiry=3600, session_present=False)
        await client.subscribe("t", qos=2)
        holds = True
        await cluster.start(2)
        assert not holds
        turn = cluster.part(1).handover.turns.get("s")
        assert turn is not None and turn.marked(cluster.name(2))


async def test_a_message_of_a_node_that_joins_after_a_session_began_anew_comes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node has the session and is away, it starts again at the second one, and the third one starts with an
    empty disk. Before its mark, its message is for the session at the first node."""
    asked = Turns._asked
    refuses = True

    async def refused(self: Turns, node: str, argument: bytes) -> bytes:
        if refuses and self._context.node == cluster.name(2):
            raise CallFailed("not now")
        return await asked(self, node, argument)

    monkeypatch.setattr(Turns, "_asked", refused)
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=QUICK) as cluster:
        await cluster[0].leave_session("s", "t", qos=2)
        await cluster.part(2).leave()
        await cluster.stop(2)
        shutil.rmtree(cluster._data_dir(2))
        await until(lambda: not any(cluster.name(2) in cluster.part(number).membership.peers for number in range(2)))
        cluster.partition({1, 2}, {0})
        await until_away(cluster, 0)
        client = await cluster[1].client("s", expiry=3600, session_present=False)
        await client.subscribe("t", qos=2)
        await cluster.start(2)
        publisher = await cluster[2].client("p")
        await publisher.publish("t", b"m", qos=2)
        cluster.heal()
        await cluster.wait_until_running()
        refuses = False
        await client.expect_publish("t", b"m", 2)
        await until(lambda: not turns(cluster))
        await client.nothing()


async def test_a_session_that_another_node_begins_anew_and_gives_back_loses_nothing(tmp_path: Path) -> None:
    """It goes from the first node to the second. Before all of it is there, the fourth node begins it anew, learns too
    late that it has, and gives it back. The third node, which is away, still has messages for its stay at the first."""
    async with cluster_nodes(4, directory=tmp_path, level="disk", cluster={**QUICK, "takeover": "fresh"}) as cluster:
        await prepare(cluster)
        cluster.partition({0, 1, 3}, {2})

        async def refused(node: str, argument: bytes) -> bytes:
            raise CallFailed("not now")

        calls = cluster.part(0).calls
        calls.serve(FETCH, refused)
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        marks = cluster.part(0).turns
        names = {cluster.name(number) for number in (0, 1, 3)}
        await until(lambda: (turn := marks.get("s")) is not None and turn.marks.keys() >= names)
        fourth = cluster.part(3).session_keys
        place = fourth.place("s")
        session = cluster[1].server.broker.sessions.get("s")
        assert place is not None and session is not None
        earlier = {cluster.name(0): True, cluster.name(1): True}
        assert await fourth.take(session.client, cluster.name(3), False, place, 1.0, earlier)
        await until(lambda: cluster.part(0).session_keys.node_of("s") == cluster.name(3))
        fourth._unanswered.put("s", SessionKey("s", place.node, place.uid))
        fourth.settle_soon("s")
        await until(lambda: cluster.part(0).session_keys.node_of("s") == cluster.name(1))
        near = await cluster[3].client("another")
        await near.publish("t", b"2", qos=2)
        calls.serve(FETCH, cluster.part(0).handover.outgoing._fetch)
        cluster.heal()
        await cluster.wait_until_running()
        client = await cluster[1].client("s", expiry=3600, session_present=True)
        assert sorted(await received(client, 2)) == [b"1", b"2"]
        await until(lambda: not turns(cluster))
        await client.nothing()


@pytest.mark.parametrize("qos", [0, 2])
async def test_a_session_that_was_arriving_and_began_anew_elsewhere_takes_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    """The session goes from the first node to the second, which dies before the queue has arrived. The third node
    begins the session anew, the second one is back, sends its mark, and dies once more. After its next start, the
    second node still has the session of before, and a session for new messages."""

    async def busy(outgoing: Outgoing, node: str, ask: Fetch) -> Piece:
        return Piece(BUSY)

    settings = {**QUICK, "strict_subscribe": True}
    async with cluster_nodes(3, directory=tmp_path, level="disk", cluster=settings) as cluster:
        await leave_five(cluster)
        with monkeypatch.context() as nothing_is_given:
            nothing_is_given.setattr(Outgoing, "piece", busy)
            client = await cluster[1].client("s", expiry=3600, session_present=True)
            await cluster.wait_until_quiet()
            await client.drop()
            await cluster.kill(1)
            await until_away(cluster, 1)
            client = await cluster[2].client("s", expiry=3600, session_present=False)
            await client.subscribe("t", qos=2)
            await cluster.start(1)
            second = cluster.name(1)
            await until(lambda: (turn := cluster.part(1).turns.get("s")) is not None and turn.kept)
            await until(lambda: (turn := cluster.part(2).turns.get("s")) is not None and turn.marked(second))
            await cluster.kill(1)
            await cluster.start(1)
            await cluster.wait_until_running()
            await until(lambda: cluster.part(1).handover.outgoing.leaves("s"))
            near = await cluster[1].client("near")
            await near.subscribe("t", qos=2)
            for number in range(3):
                publisher = await cluster[number].client(f"p{number}")
                await publisher.publish("t", b"new%d" % number, qos=qos)
                await client.expect_publish("t", b"new%d" % number, qos)
                await near.expect_publish("t", b"new%d" % number, qos)
        assert sorted(await received(client, 5)) == [b"0", b"1", b"2", b"3", b"4"]
        await until(lambda: not turns(cluster))
        await client.nothing()
        await near.nothing()
