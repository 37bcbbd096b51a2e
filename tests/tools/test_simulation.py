"""The simulation of a cluster: some seeds of it, and that it finds what is wrong, the same each time."""

import contextvars
import gc
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from taipan.broker.channel import review
from taipan.broker.cluster.replicas.origin import OriginCopies
from taipan.broker.persistence.log.sqlite_log import SqliteLog
from tools.simulation import promises
from tools.simulation.client import ControllerClient, DeviceClient, Sent, SimulatedClient
from tools.simulation.disk import SimulatedDisk, SimulatedLog
from tools.simulation.files import mount, simulated_writers
from tools.simulation.loop import Life, life
from tools.simulation.world import (
    BURSTS,
    CLEARS,
    COMMANDS,
    DEFAULT,
    ENDS,
    EVACUATED,
    FEATURES,
    FORCED,
    FRESH,
    PAGING,
    PIECES,
    REPLICAS,
    RESTLESS,
    World,
)

pytestmark = pytest.mark.timeout(300)  # ten seeds take 20 seconds of processor time, and ten workers share two cores

ROOT = Path(__file__).parents[2]
ONE_NODE = FEATURES
"""On one node clients need nothing of the cluster but that it leaves them alone."""


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.simulation", "--processes", "1", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ})


@pytest.fixture
def quiet() -> Iterator[None]:
    """What dead nodes were about is collected here, and may complain."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()
    sys.unraisablehook = before


@pytest.mark.parametrize("first", [1, pytest.param(21, marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_slice_of_seeds(first: int) -> None:
    done = simulate("--seeds", "20", "--first", str(first))
    assert done.returncode == 0, done.stdout + done.stderr


MOVES = [4, 5, 6, 8, 30, 45, 52, 53, 64, 66, 72, 90, 92, 98]
"""Order over moves, QoS 2 twice, a session on two nodes, retained messages that differed."""
AWAY = [
    16, 19, 33, 54, 81, 86, 115, 126, 130, 136, 166, 184, 199, 212, 216, 252, 264, 278, 283, 307, 335, 346, 559, 734,
    3508,
]  # fmt: skip
"""Messages lost, or come twice, that a node held which was away while a session moved."""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*MOVES, *AWAY])
def test_seeds_that_failed_where_sessions_move(seed: int) -> None:
    done = simulate("--seed", str(seed), "--features", ",".join(FEATURES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 205, 249, 387, 454, 493, 656, 1059])
def test_seeds_that_failed_where_sessions_move_all_the_time(seed: int) -> None:
    """Order where a session goes to and fro before all nodes have caught up; messages lost, or come twice; a move that
    did not end."""
    done = simulate("--seed", str(seed), "--features", ",".join(["members", "links", "ownership", RESTLESS]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [111, 531, 644])
def test_seeds_that_failed_where_queues_are_on_disk_only(seed: int) -> None:
    done = simulate("--seed", str(seed), "--features", ",".join([*FEATURES, PAGING]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [2899, 5247, 5383, 5942, 7328, 7428, 7720, 7843, 9379, 9537])
def test_seeds_that_failed_with_everything(seed: int) -> None:
    """A write of a life that was over came to the disk of the next one; QoS 0 overtook marks of a move, and came by the
    session's old place and by its new one; moves that did not end; a message that only a node had which had died
    before it knew whom that was for; a route that was deleted, which its node did not learn; a node that was told that
    all of a session had come, and did not know yet that it had given it."""
    done = simulate("--seed", str(seed), "--features", ",".join([*FEATURES, PAGING, RESTLESS, BURSTS]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [758, 1394, 1620, 1718, 1816, 4983, 5020, 14722])
def test_seeds_that_failed_where_queues_move_in_small_pieces(seed: int) -> None:
    """Order where a node starts again that has put new messages, which were on disk only, behind a queue that came, or
    that was delivering what had waited for another node's; a move that did not end, because a node that started without
    NATS had forgotten the marks of it; messages in flight lost, because a takeover that a node was asked for before it
    died took the session from it afterwards; a message for a shared group lost, because it came to a node that had just
    started."""
    done = simulate("--seed", str(seed), "--features", ",".join([*FEATURES, PAGING, RESTLESS, BURSTS, PIECES]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [72, 721, 1459, 1485, 1664])
def test_seeds_that_failed_where_sessions_end(seed: int) -> None:
    """A node that started without NATS served a session that another one had taken; a move whose mark was for a node
    that the other one did not know yet did not end; takeovers that a node was asked for late, with Clean Start, ended a
    session that had begun since, and one that its client had back; a session that was over came back with a node that
    had died before that was on its disk."""
    done = simulate("--seed", str(seed), "--features", ",".join([*FEATURES, PAGING, RESTLESS, BURSTS, PIECES, ENDS]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [914, 3212, 4043, 6232, 7020])
def test_seeds_that_failed_where_what_is_retained_is_cleared(seed: int) -> None:
    """A node died as it took a session: what it had written came to NATS when it had started again, and had dropped the
    session. What waited for a queue stayed where the session was begun anew elsewhere. A node that had been told that a
    session is over wrote so late, when its client had another one, that it had this one. A node deleted a key so late
    that a session had begun on it. A client was told that a session is present that had begun anew elsewhere and was
    over, by a node that had just learned that."""
    features = [*FEATURES, PAGING, RESTLESS, BURSTS, PIECES, ENDS, CLEARS]
    done = simulate("--seed", str(seed), "--features", ",".join(features))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 6, 7, 10, 17, 56, 78, 101, 214, 531, 628, 3310, 340027, 340677])
def test_seeds_that_failed_with_takeover_fresh(seed: int) -> None:
    """What a node knew of a session's earlier stay there was taken for what it knows of the session that began
    anew. A piece of a queue came twice, from the node that had got it, and from the one that had given it. Moves
    that did not end where the old node started again meanwhile, and what nodes kept for a session that was begun
    anew without its node. A client was told that a session is present which had begun anew for an earlier CONNECT
    of it that was not answered. A mark of an earlier session came late, and from then on a node's messages were not
    taken for the next one. Messages of QoS 2 came twice to clients that moved: by the session that had begun anew,
    and from the node that was away. A node's link stood still after a restart, as what a session that had left was
    still to take stayed with its staging session. A session ended whose client gave up while another node took its
    key."""
    features = [*FEATURES, PAGING, RESTLESS, BURSTS, PIECES, ENDS, CLEARS, FRESH]
    done = simulate("--seed", str(seed), "--features", ",".join(features))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [17, 23])
def test_seeds_that_failed_where_nodes_are_forced_out(seed: int) -> None:
    """A node took a session that was just leaving it, for a client that had sent DISCONNECT; a move did not end, as a
    node's mark had come to one place of the session when it was forced out."""
    features = [*FEATURES, PAGING, RESTLESS, BURSTS, PIECES, ENDS, CLEARS, FORCED]
    done = simulate("--seed", str(seed), "--features", ",".join(features))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_seed_that_failed_where_a_node_joins_while_the_rest_of_a_session_is_fetched() -> None:
    """A session had begun again without a node. While its rest was fetched from there, a third node joined. It was not
    asked for its mark, and the fetch waited for the marks of all nodes."""
    done = simulate("--seed", "51515", "--features", "all,forced", "--nodes", "3")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [50041, 50051, 51025])
def test_seeds_that_failed_where_a_node_is_asked_about_a_clear_while_it_starts_again(seed: int) -> None:
    """Each attempt to ask it doubled the time that the next question may take, so that one that was lost delayed the
    clear by an hour. In the meantime, only the node of the clear had no message on the topic."""
    done = simulate("--seed", str(seed), "--features", "all,fresh", "--nodes", "3")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", [930007, 930050])
def test_seeds_that_failed_where_disks_are_lost_and_sessions_begin_anew(seed: int) -> None:
    """A node with an empty disk joined when a session had started again, and both places of the session took its
    messages. A node gave pieces of a queue away which its copies did not know to be gone, and was run from such a
    copy."""
    done = simulate("--seed", str(seed), "--features", "all,fresh,replicas", "--nodes", "3")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_nodes_that_are_evacuated() -> None:
    done = simulate("--seeds", "10", "--features", "all,evacuated")
    assert done.returncode == 0, done.stdout + done.stderr


REPLICATED = ",".join(["members", "links", "ownership", REPLICAS])


@pytest.mark.slow
def test_nodes_with_copies_lose_their_disks() -> None:
    done = simulate("--seeds", "8", "--features", REPLICATED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", [15, 22])
def test_seeds_that_failed_where_disks_are_lost(seed: int) -> None:
    """A host was killed when the lost node had left the cluster, and its copy did not say so: the host tried to start
    it again for good. NATS did not answer when the lost node left, and it did not try again."""
    done = simulate("--seed", str(seed), "--features", REPLICATED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_seed_that_failed_where_disks_are_lost_and_sessions_begin_anew() -> None:
    """A move did not end."""
    done = simulate("--seed", "930028", "--features", "all,fresh,replicas", "--nodes", "3")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_death_of_a_node_closes_a_log_that_has_no_writer_yet(tmp_path: Path) -> None:
    """The node died between the two. Its next start waited for the file until the end of the run."""
    log = SqliteLog(tmp_path / "taipan.db")
    with simulated_writers():
        node = Life("n1.1")
        disk = mount(node, SimulatedDisk(Random(1)))
        started = contextvars.copy_context()
        started.run(life.set, node)
        started.run(log.open)
        disk.crash()
        again = SqliteLog(log.path)
        again.open()
        again.checkpoint_and_close()


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_an_acknowledgement_that_does_not_wait_for_a_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance(self: OriginCopies) -> None:
        self.durable = self.written

    monkeypatch.setattr(OriginCopies, "_advance", advance)
    wrong = (each for seed in range(1, 16) for each in World(seed, tuple(REPLICATED.split(","))).run())
    assert any("never got" in each or " times" in each for each in wrong)


@pytest.mark.slow
def test_takeover_fresh() -> None:
    done = simulate("--seeds", "15", "--features", "all,fresh")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_what_is_retained_is_cleared() -> None:
    done = simulate("--seeds", "15", "--features", ",".join(["members", "links", "ownership", "retained", CLEARS]))
    assert done.returncode == 0, done.stdout + done.stderr


COMMANDED = ",".join(["members", "links", "ownership", "retained", CLEARS, COMMANDS])


@pytest.mark.slow
def test_commands_are_cleared_at_other_nodes() -> None:
    done = simulate("--seeds", "10", "--features", COMMANDED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("follows", ["its acknowledgement", "its arrival", "nothing"])
@pytest.mark.parametrize("left", [True, False])
def test_a_command_that_is_left_after_its_clear_is_found(
    follows: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clear that came before the command has nothing to say about it."""
    world = World(1, (*FEATURES, COMMANDS))
    device = DeviceClient(world, "d0", 60)
    controller = ControllerClient(world, "c0", 60, device)
    world.controllers = [controller]
    command, clear = Sent("d0", "q/d0", 1, 1, True), Sent("c0", "q/d0", 1, 1, True, clears=True)
    world.messages = [command, clear]
    command.node, clear.node = "n1", "n2"
    command.first_at = command.last_at = 1.0
    if follows == "its acknowledgement":
        command.acknowledged, command.acknowledged_at = True, 2.0
    elif follows == "its arrival":
        controller.taken[command.payload] = [2.0]
    clear.first_at, clear.acknowledged = 2.5, True
    monkeypatch.setattr(promises, "retained_of", lambda node: {"q/d0": command.payload} if left else {})
    world.nodes = [None]  # type: ignore[list-item]
    promises._commands_cleared(world)
    world.loop.close()
    assert bool(world.violations) == (left and follows != "nothing")


@pytest.mark.slow
@pytest.mark.long
def test_nodes_are_forced_out_while_sessions_move() -> None:
    done = simulate("--seeds", "25", "--features", "all,forced")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_queues_move_in_small_pieces() -> None:
    done = simulate("--seeds", "15", "--features", "all")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_clients_end_their_sessions() -> None:
    done = simulate("--seeds", "15", "--features", ",".join(["members", "links", "ownership", ENDS]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_what_waits_is_on_disk_only() -> None:
    done = simulate("--seeds", "15", "--first", "301", "--features", ",".join([*FEATURES, PAGING]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_several_messages_in_one_piece() -> None:
    done = simulate("--seeds", "15", "--features", ",".join([*FEATURES, BURSTS]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_clients_of_one_node() -> None:
    done = simulate("--seeds", "10", "--nodes", "1", "--features", ",".join(ONE_NODE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_does_the_same_each_time() -> None:
    first, second = (simulate("--seed", "5", "--trace").stdout.splitlines() for _ in range(2))
    told = [[line for line in each if "restored sessions" not in line] for each in (first, second)]
    assert len(told[0]) > 50 and told[0] == told[1]


@pytest.mark.usefixtures("quiet")
def test_a_seed_does_the_same_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reviews of sessions, which follow an evacuation, go on for a time that the machine's clock measures."""
    told: list[list[str]] = []
    for seconds in (0.0, 0.003):
        ticks = itertools.count(0.0, seconds)
        monkeypatch.setattr(review, "perf_counter", partial(next, ticks))
        lines: list[str] = []
        assert World(1, ("members", "links", "ownership", EVACUATED), lines.append).run() == []
        told.append([line for line in lines if "restored sessions" not in line])
    assert len(told[0]) > 50 and told[0] == told[1]


@pytest.mark.usefixtures("quiet")
def test_a_message_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write_down = SimulatedClient._write_down

    def forget_one(self: SimulatedClient, packet: object) -> None:
        if self.name != "s0" or len(self.received) != 3:
            write_down(self, packet)  # type: ignore[arg-type]
        else:
            self.received.append(("", b"nobody 0 0", 0, False, False))

    monkeypatch.setattr(SimulatedClient, "_write_down", forget_one)
    wrong = [World(seed, ONE_NODE, nodes=1).run() for seed in range(1, 6)]
    assert any("never got" in each for found in wrong for each in found), wrong


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("part", [FRESH, FORCED])
def test_a_subscriber_that_gets_nothing_any_more_is_found(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Where sessions may begin anew, what was published meanwhile may be lost, and nothing afterwards."""
    write_down = SimulatedClient._write_down

    def forget(self: SimulatedClient, packet: object) -> None:
        if not self.world._calm:
            write_down(self, packet)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedClient, "_write_down", forget)
    wrong = World(1, (*DEFAULT, "ownership", part)).run()
    assert any("published after all faults had ended" in each for each in wrong), wrong


@pytest.mark.usefixtures("quiet")
def test_what_comes_twice_to_a_client_that_moves_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    write_down = SimulatedClient._write_down

    def twice(self: SimulatedClient, packet: object) -> None:
        write_down(self, packet)  # type: ignore[arg-type]
        write_down(self, packet)  # type: ignore[arg-type]

    monkeypatch.setattr(SimulatedClient, "_write_down", twice)
    wrong = World(1, (*DEFAULT, "ownership", FRESH)).run()
    assert any("in sessions that started again" in each for each in wrong), wrong


@pytest.mark.usefixtures("quiet")
def test_a_disk_that_forgets_what_it_has_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: SimulatedLog) -> None:
        for seq in sorted(self._disk.batches)[-3:-1]:
            del self._disk.batches[seq]

    monkeypatch.setattr(SimulatedLog, "crash", forget)
    assert any(World(seed, ONE_NODE, nodes=1).run() for seed in range(1, 12))


@pytest.mark.usefixtures("quiet")
def test_nodes_that_do_not_hear_of_each_other_are_found() -> None:
    world = World(1, DEFAULT)
    world.hub.drop = 1.0
    assert any("every node sees the others" in each for each in world.run())
