"""Copies of a log, whatever happens in whatever order: batches, answers that come late, records whose write has no
answer, lost disks, changes of the members, restarts of the origin.

The promise: each node that may take over, because the record in NATS names it, has everything that was acknowledged.
"""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from taipan.broker.cluster.replicas.choice import CopyPlace, choose
from taipan.broker.cluster.replicas.origin import OriginCopies
from taipan.broker.core.cluster import IN_SYNC

NODES = ("a", "b", "c")
TIMEOUT = 2.0
STEPS = 300


class World:
    """The origin's decisions, and what is true: ``disks``, the last batch that each follower has; ``record``, what NATS
    has; ``sessions``, the followers with which the origin exchanges messages (``shipping``). What happens is drawn with
    the weights in ``EVENTS``."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.now = 0.0
        self.written = 0
        self.disks = dict.fromkeys(NODES, 0)
        self.sessions: set[str] = set()
        self.lost: set[str] = set()  # whose disk was lost while a record named them
        self.record: tuple[str, ...] = ()
        self.revision = self.based_on = 1
        # Writes on their way: the revision that they require, and their set.
        self.pending: list[tuple[int, tuple[str, ...]]] = []
        self.acknowledged = 0
        self.joined = 0
        self.replicas = rng.randint(1, 2)
        self.minimum = rng.randint(0, self.replicas)
        self.core: OriginCopies
        self.writing: tuple[str, ...] | None
        self.restart()
        self.want()

    def run(self) -> None:
        events, weights = zip(*EVENTS.items(), strict=True)
        for _ in range(STEPS):
            self.rng.choices(events, weights)[0](self)
            self.check()
        self.settle()

    def settle(self) -> None:
        """When nothing breaks any more, all copies are complete soon, and everything is acknowledged."""
        self.choose(NODES[: self.replicas])
        for _ in range(100):
            self.write()
            self.read()
            for name in NODES:
                self.meet(name, True)
                self.receive(name, 0, True)
            self.now += 0.1
            self.core.tick(self.now)
            self.begin_to_write()
            self.is_answered()
            self.check()
        core = self.core
        assert core.copies == self.replicas and core.durable == self.written, "it does not settle"
        assert core.trouble(self.now) is None and core.missing_since is None and core.next_record() is None

    def check(self) -> None:
        """Each node that may take over has everything that was acknowledged."""
        core = self.core
        self.acknowledged = max(self.acknowledged, core.durable)
        assert core.durable <= self.written
        assert core.members <= core.followers.keys()
        for name in self.record:
            if name not in self.lost:
                assert self.disks[name] >= self.acknowledged, f"{name} may take over and lacks a batch"
        self.joined += any(each.state == IN_SYNC for each in core.followers.values())

    def some(self) -> str:
        return self.rng.choice(NODES)

    # ------------------------------------------------------------------ the log

    def append(self) -> None:
        if self.core.last == self.written:  # one at a time
            self.core.appended(self.core.last + 1, self.now)

    def write(self) -> None:
        self.written = self.core.last
        self.core.wrote(self.written)

    # ------------------------------------------------------------------ followers

    def want(self) -> None:
        self.choose(self.rng.sample(NODES, self.replicas))

    def choose(self, names: Sequence[str]) -> None:
        self.core.want(names, self.now)
        self.sessions &= self.core.followers.keys()

    def meet_one(self) -> None:
        self.meet(self.some(), self.rng.random() < 0.5)

    def meet(self, name: str, from_tail: bool) -> None:
        """Its copy is compared, and set back to what both have."""
        follower = self.core.followers.get(name)
        if follower is None or name in self.sessions:
            return
        if follower.refill:
            if name in self.core.waited_for:
                return
            self.disks[name] = 0
        self.disks[name] = min(self.disks[name], self.written)
        self.sessions.add(name)
        self.core.found(name, self.disks[name], from_tail, self.now)

    def receive_some(self) -> None:
        name = self.some()
        if name in self.sessions:
            last = self.rng.randint(self.disks[name], max(self.core.last, self.disks[name]))
            self.receive(name, self.rng.choice((0, 0, 1, 3)), self.rng.random() < 0.8, last)

    def receive(self, name: str, late: int, near: bool, last: int | None = None) -> None:
        """More is on its disk; its answer may be older."""
        if name not in self.sessions:
            return
        self.disks[name] = max(self.disks[name], self.core.last if last is None else last)
        self.core.acknowledged(name, max(self.disks[name] - late, 0), True, near, self.now)

    def go_away(self) -> None:
        name = self.some()
        self.sessions.discard(name)
        self.core.lost(name, self.now)

    def fill_its_disk(self) -> None:
        self.core.failed(self.some(), "no space left")

    def lose_its_disk(self) -> None:
        """As ``rm -rf`` of its copy: the promise no longer holds for it while a record names it."""
        name = self.some()
        self.disks[name] = 0
        if name in self.record or any(name in target for _, target in self.pending):
            self.lost.add(name)
        self.sessions.discard(name)
        self.core.differs(name, self.now)

    def lose_its_newest_batches(self) -> None:
        """A disk that did not flush: so is everything that it had said about them."""
        name = self.some()
        self.disks[name] = max(self.disks[name] - 3, 0)
        if name in self.record or any(name in target for _, target in self.pending):
            self.lost.add(name)
        self.sessions.discard(name)
        self.core.lost(name, self.now)

    # ------------------------------------------------------------------ the record

    def read(self) -> None:
        """At the start of an origin, a write by compare-and-set with the same set; later, after a wrong revision."""
        if not self.core.known:
            self.revision += 1
            self.based_on = self.revision
            self.core.record_is(self.record, self.now)

    def begin_to_write(self) -> None:
        target = self.core.next_record() if self.writing is None else None
        if target is not None:
            self.core.writing(target, self.now)
            self.writing = target
            self.pending.append((self.based_on, target))

    def apply(self, base: int, target: tuple[str, ...]) -> None:
        if base == self.revision:
            self.revision += 1
            self.record = target
            self.lost &= set(target)

    def is_answered(self) -> None:
        if self.writing is not None:
            self.apply(*self.pending.pop())
            # Or the revision was wrong: then the origin reads what is there.
            self.based_on = self.revision
            self.core.record_is(self.record, self.now)
            self.writing = None

    def is_not_answered(self) -> None:
        """The write may be applied later, or never."""
        if self.writing is not None:
            self.core.write_failed(True)
            self.writing = None

    def is_not_written(self) -> None:
        """It certainly was not, and never will be."""
        if self.writing is not None and self.pending[-1][0] == self.revision:
            self.pending.pop()
            self.core.write_failed(False)
            self.writing = None

    def is_applied(self) -> None:
        """Without an answer, or before it."""
        if self.pending:
            self.apply(*self.rng.choice(self.pending))

    # ---------------------------------------------------------------------- time

    def tick(self) -> None:
        self.now += self.rng.choice((0.05, 0.1, 0.1, 0.5, 2.5))
        self.core.tick(self.now)

    def restart(self) -> None:
        """What only a follower has is not on the origin's disk, and was not acknowledged."""
        self.sessions.clear()
        self.core = OriginCopies(self.replicas, self.minimum, TIMEOUT, False, self.written, self.now)
        self.core.want(self.rng.sample(NODES, self.replicas), self.now)
        self.writing = None


EVENTS: dict[Callable[[World], None], float] = {
    World.append: 10,
    World.write: 10,
    World.want: 0.5,
    World.meet_one: 6,
    World.receive_some: 20,
    World.go_away: 1,
    World.fill_its_disk: 0.5,
    World.lose_its_disk: 0.2,
    World.lose_its_newest_batches: 0.3,
    World.read: 3,
    World.begin_to_write: 10,
    World.is_answered: 6,
    World.is_not_answered: 2,
    World.is_not_written: 1,
    World.is_applied: 2,
    World.tick: 6,
    World.restart: 0.2,
}


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_nothing_is_lost(first: int) -> None:
    """A seed that fails is in the message."""
    joined = 0
    for seed in range(first, first + 100):
        world = World(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        joined += world.joined
    assert joined > 100 * STEPS // 10  # the runs had complete copies


def test_what_is_left_to_happen_happens() -> None:
    """A follower joins, is late, leaves and comes back: acknowledgements continue each time."""
    core = OriginCopies(1, 0, TIMEOUT, False, 5, 0.0)
    core.want(["a"], 0.0)
    assert core.durable == 0  # whether it was replaced is not known
    core.record_is((), 0.0)
    assert core.durable == 5
    core.found("a", 0, False, 0.0)
    core.acknowledged("a", 5, True, True, 0.1)
    assert core.next_record() == ("a",) and core.waited_for == {"a"}
    core.writing(("a",), 0.1)
    core.record_is(("a",), 0.2)
    core.appended(6, 1.0)
    core.wrote(6)
    assert core.durable == 5
    core.tick(2.9)
    assert core.next_record() is None
    core.tick(3.1)
    assert core.next_record() == ()
    core.writing((), 3.1)
    assert core.durable == 5  # until the record is confirmed
    core.record_is((), 3.2)
    assert core.durable == 6 and core.trouble(3.2) is None
    core.tick(3.3)
    assert core.missing_since is not None
    core.acknowledged("a", 6, True, True, 5.3)
    assert core.next_record() == ("a",)
    core.record_is(("a",), 5.4)
    core.tick(5.5)
    assert core.missing_since is None and core.copies == 1


def test_a_start_that_takes_long_is_no_trouble() -> None:
    """Before the record is read, NATS cannot have told who has this node's place."""
    core = OriginCopies(1, 0, TIMEOUT, False, 5, 0.0)
    now = 10 * TIMEOUT
    core.started(now)
    core.tick(now)
    assert core.trouble(now) is None
    now += 2 * TIMEOUT
    core.tick(now)
    assert core.trouble(now) is not None
    core.record_is((), now)
    assert core.trouble(now) is None


def test_a_follower_that_is_chosen_again_in_the_moment_in_which_it_leaves() -> None:
    """It receives batches all the time: what it reports counts, and it enters the record again."""
    core = OriginCopies(1, 0, TIMEOUT, False, 0, 0.0)
    core.want(["a"], 0.0)
    core.record_is(("a",), 0.0)
    core.found("a", 0, True, 0.0)
    core.want(["b"], 0.1)
    core.appended(1, 0.1)
    core.wrote(1)
    core.tick(2.2)
    assert core.next_record() == ()
    core.record_is((), 2.3)
    core.want(["a"], 2.3)
    core.acknowledged("a", 1, True, True, 2.3)
    core.tick(4.4)
    assert core.next_record() == ("a",)


def test_a_copy_that_lost_its_newest_batches_counts_again_when_it_has_them() -> None:
    core = OriginCopies(1, 0, TIMEOUT, False, 9, 0.0)
    core.want(["a"], 0.0)
    core.record_is(("a",), 0.0)
    core.found("a", 9, True, 0.0)
    assert core.durable == 9
    core.lost("a", 0.1)
    core.found("a", 7, True, 0.2)
    assert core.next_record() == ()
    core.acknowledged("a", 9, True, True, 0.3)
    assert core.next_record() is None and core.copies == 1


def test_a_late_follower_stays_if_nothing_is_acknowledged_without_it() -> None:
    """``cluster.replicas_min``."""
    core = OriginCopies(1, 1, TIMEOUT, False, 0, 0.0)
    core.want(["a"], 0.0)
    core.record_is((), 0.0)
    core.tick(2.1)
    assert "cluster.replicas_min" in (core.trouble(2.1) or "")
    core.found("a", 0, True, 2.2)
    core.acknowledged("a", 0, True, True, 2.2)
    core.record_is(core.next_record() or (), 2.3)
    assert core.trouble(2.3) is None
    core.appended(1, 3.0)
    core.wrote(1)
    core.tick(6.0)
    assert core.next_record() is None and "cluster.replicas_min" in (core.trouble(6.0) or "")
    core.acknowledged("a", 1, True, True, 6.1)
    core.tick(6.2)
    assert core.durable == 1 and core.trouble(6.2) is None


def test_few_copies_move() -> None:
    """A node that comes is chosen by those only that rank it first; other racks come first."""
    nodes = {f"n{number}": "" for number in range(10)}

    def chosen(names: dict[str, str]) -> dict[str, list[str]]:
        places = {name: CopyPlace(rack, name) for name, rack in names.items()}
        return {
            origin: choose(origin, places[origin], {name: place for name, place in places.items() if name != origin}, 1)
            for origin in nodes
        }

    before = chosen(nodes)
    after = chosen({**nodes, "new": ""})
    moved = [origin for origin in nodes if before[origin] != after[origin]]
    assert len(moved) <= 4 and all(after[origin] == ["new"] for origin in moved)
    racks = {name: f"rack {number % 2}" for number, name in enumerate(nodes)}
    assert all(racks[found[0]] != racks[origin] for origin, found in chosen(racks).items())
    two = choose(
        "n0", CopyPlace("x", "a"), {"n1": CopyPlace("x", "b"), "n2": CopyPlace("x", "c"), "n3": CopyPlace("y", "d")}, 2
    )
    assert two[0] == "n3" and len(two) == 2


def test_workers_of_a_machine_have_their_copies_on_another_one() -> None:
    """Unless there is only one."""
    for rack in ("", "room 2"):
        places = {f"n{worker}@{host}": CopyPlace(rack, host) for worker in range(4) for host in ("a", "b", "c")}
        for origin, place in places.items():
            found = choose(origin, place, {name: each for name, each in places.items() if name != origin}, 2)
            assert len({place.host, *(places[name].host for name in found)}) == 3
    alone = {"n1": CopyPlace("", "a"), "n2": CopyPlace("", "a")}
    assert len(choose("n0", CopyPlace("", "a"), alone, 1)) == 1
