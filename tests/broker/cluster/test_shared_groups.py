"""Which node gets a message of a Shared Subscription: weights, strategies, and what is tried when a choice fails."""

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from taipan.broker.cluster.links.shared_groups import MAX_HOPS, GroupShares, Share
from taipan.broker.cluster.nats_cluster import NatsCluster
from taipan.broker.cluster.wire import node_key
from taipan.broker.mqtt.message import Message
from taipan.broker.routing.shared import SharedGroup
from taipan.broker.routing.strategy import STRATEGIES

from ...support.cluster_nodes import cluster_nodes
from .test_handover import until

OWN = "m"
pytestmark = pytest.mark.interpreted  # a group of the tests has the compiled one for a base


class FakeSession:
    """The session of a link: its queue is the link's, and refuses what it has no room for."""

    def __init__(self) -> None:
        self.full = False
        self.limits = SimpleNamespace(refuse_when_full=True)
        self.queue = SimpleNamespace(full_for=lambda size: self.full)

    @property
    def ready(self) -> bool:
        return not self.full


class FakeTarget:
    qos = 2

    def __init__(self) -> None:
        self.session = FakeSession()


class FakeBroker:
    """``here``: whether a member of this node is connected, ``offline``: whether one is not."""

    def __init__(self) -> None:
        self.here = True
        self.offline = False
        self.got: list[str] = []
        self.addresses: list[str] = []
        self.names: dict[object, str] = {}

    def deliver_shared(self, message: Message, group: SharedGroup, exclude: object, connected: bool = False) -> bool:
        if self.here or (self.offline and not connected):
            self.got.append(OWN)
            return True
        return False

    def deliver_addressed(self, message: Message, node: object, group: str) -> None:
        self.got.append(self.names[node])
        self.addresses.append(group)


class Here(SharedGroup):
    """A group with members of this node, as far as anybody asks."""

    def __len__(self) -> int:
        return 1


def shares(strategy: str, own: int, **others: int) -> tuple[GroupShares, FakeBroker]:
    group = (Here if own else SharedGroup)("g", "t", "$share/g/t", STRATEGIES[strategy], Random(1))
    group.connected = own
    broker = FakeBroker()
    broker.here = own > 0
    made: Any = GroupShares(group, OWN, broker, Random(2))  # type: ignore[arg-type]
    for name, connected in others.items():
        share = Share(name)
        share.members = connected + 1
        share.connected = connected
        share.running = True
        target: Any = FakeTarget()
        share.target = target
        broker.names[target] = name
        made.put(share)
    group.remote = made
    return made, broker


def message(topic: str = "t") -> Message:
    return Message(topic, b"x", 1)


@pytest.mark.parametrize("strategy", ["random", "hash_topic"])
def test_nodes_get_by_their_connected_members(strategy: str) -> None:
    made, broker = shares(strategy, 1, a=2, z=5)
    for number in range(4000):
        assert made.deliver(message(f"t{number}"), ())
    counts = Counter(broker.got)
    assert 400 < counts[OWN] < 600 and 900 < counts["a"] < 1100 and 2300 < counts["z"] < 2700


@pytest.mark.parametrize("strategy", ["round_robin", "round_robin_per_group"])
def test_a_round_gives_each_member_one(strategy: str) -> None:
    made, broker = shares(strategy, 1, a=2, z=3)
    for _ in range(60):
        made.deliver(message(), ())
    assert Counter(broker.got) == {OWN: 10, "a": 20, "z": 30}


def test_sticky_stays_with_a_node_until_nobody_is_connected_there() -> None:
    made, broker = shares("sticky", 1, a=1, z=1)
    for _ in range(10):
        made.deliver(message(), ())
    (first,) = set(broker.got)
    if first == OWN:
        made._group.connected = 0
        broker.here = False
    else:
        made.shares[first].connected = 0
    broker.got.clear()
    for _ in range(10):
        made.deliver(message(), ())
    (second,) = set(broker.got)
    assert second != first


def test_a_node_that_does_not_run_or_has_no_link_gets_nothing() -> None:
    made, broker = shares("random", 1, a=5, z=5)
    made.shares["a"].running = False
    made.shares["z"].target = None
    for _ in range(20):
        assert made.deliver(message(), ())
    assert set(broker.got) == {OWN}


def test_a_member_that_has_just_left_here_is_not_waited_for() -> None:
    made, broker = shares("random", 5, a=1)
    broker.here = False
    broker.offline = True
    for _ in range(20):
        assert made.deliver(message(), ())
    assert set(broker.got) == {"a"}


def test_a_full_link_is_passed_over() -> None:
    made, broker = shares("random", 0, a=5, z=1)
    target: Any = made.shares["a"].target
    target.session.full = True
    for _ in range(20):
        assert made.deliver(message(), ())
    assert set(broker.got) == {"z"}
    assert not made.would_refuse(message())
    other: Any = made.shares["z"].target
    other.session.full = True
    assert made.would_refuse(message())


def test_offline_members_only_where_nobody_is_connected_those_of_this_node_first() -> None:
    made, broker = shares("random", 1, a=0)
    broker.here = False
    made._group.connected = 0
    broker.offline = True
    made.deliver(message(), ())
    assert broker.got == [OWN]
    broker.offline = False
    made.deliver(message(), ())
    assert broker.got == [OWN, "a"]


def test_a_node_that_has_somebody_connected_gets_back_what_it_gave_to_another() -> None:
    """The count that it chose by may be older than the other's connections."""
    made, broker = shares("round_robin", 1, a=1)
    for _ in range(2):
        made.deliver(message(), ())
    assert sorted(broker.got) == ["a", OWN]
    assert broker.addresses == ["$share/g/t"]  # it may come back
    made, broker = shares("random", 0, a=1)  # and this is what the other does
    assert made.search(message(), (), (OWN,))
    assert broker.addresses == ["$share/g/t\0m"]


def test_where_nobody_was_connected_a_message_does_not_come_back_to_and_it_does_not_wander_for_ever() -> None:
    made, broker = shares("random", 0, a=1, z=1)
    assert made.search(message(), (), ("a", OWN))
    assert broker.got == ["z"]
    assert broker.addresses == ["$share/g/t\0a\0m"]
    assert not made.search(message(), (), ("a", "z", OWN))
    assert not made.search(message(), (), (*(f"n{number}" for number in range(MAX_HOPS)), OWN))


@pytest.mark.asyncio
async def test_a_node_that_knows_no_members_yet_gives_it_back() -> None:
    async with cluster_nodes(2) as cluster:
        member = await cluster[0].client("m")
        await member.subscribe("$share/g/s", qos=1)
        there = cluster[1].server.cluster
        assert isinstance(there, NatsCluster)
        await until(lambda: cluster[1].server.broker.router.group("$share/g/s") is not None)
        there.shared_groups._theirs(node_key(cluster.name(0)), "$share/g/s", 0, 0)
        there.routes._current.clear()
        here = cluster[0].server.cluster
        assert isinstance(here, NatsCluster)
        target = here.routes.target(node_key(cluster.name(1)))
        assert target is not None and there.routes.target(node_key(cluster.name(0))) is not None
        cluster[0].server.broker.deliver_addressed(Message("s", b"1", 1), target, "$share/g/s")
        await member.expect_publish("s", b"1", 1)
        await member.nothing()
