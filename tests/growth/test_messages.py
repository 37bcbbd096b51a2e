"""A message costs the same whatever else the node holds."""

import asyncio
import itertools
from collections.abc import Callable
from functools import cache

import pytest

from taipan.broker.mqtt.message import Message
from taipan.ruleengine.config import RuleEngineSettings
from taipan.ruleengine.engine import RuleEngine
from tests.growth import populations
from tests.growth.operations import LARGE, settled
from tests.support.fake_node import FakeNode

NOTHING = {"name": "do_nothing", "params": {}}
SLACK = 1.02
"""A dict that is about to grow, a cache that turns over: two in a hundred."""


def _with_rules(count: int) -> FakeNode:
    node = FakeNode()
    engine = RuleEngine(node.server, RuleEngineSettings())

    async def create() -> None:
        await engine.rules.create('SELECT payload FROM "t/+"', [NOTHING])
        for number in range(count):
            await engine.rules.create(f'SELECT payload FROM "other/{number}/+"', [NOTHING])

    asyncio.run(create())
    return node


@cache
def node_with(what: str, count: int) -> FakeNode:
    """A node that holds so many of these."""
    if what == "rules":
        return _with_rules(count)
    node = FakeNode()
    if what == "subscriptions":
        populations.subscribed(node, count)
    elif what == "sessions":
        for number in range(count):
            populations.session(node, f"idle-{number}")
    elif what == "connections":
        for number in range(count):
            node.connect(f"idle-{number}")
    elif what == "retained":
        populations.retained(node, count)
    else:
        for number in range(count):
            message = Message(f"$delayed/3600/{number}", b"x", timestamp=node.clock.time)
            assert not node.server.delayed.accept(message, node.clock.time).refused
    return node


GROWTH = [
    pytest.param("subscriptions", (1, 1000, LARGE), id="subscriptions"),
    pytest.param("sessions", (1, 1000, 10_000), id="sessions"),
    pytest.param("connections", (1, 100, 10_000), id="connections"),
    pytest.param("rules", (0, 100, 1000), id="rules"),
    pytest.param("retained", (1, 1000, LARGE), id="retained"),
    pytest.param("delayed", (0, 1000, 30_000), id="delayed"),
]
growth = pytest.mark.parametrize("what, counts", GROWTH)


def same(costs: list[int]) -> None:
    """Whatever there is more of, the cost is that of the least."""
    assert min(costs) > 50, f"no work was seen: {costs}"
    assert max(costs) <= costs[0] * SLACK, costs


def costs_of(what: str, counts: tuple[int, ...], prepare: Callable[[FakeNode], Callable[[], object]]) -> list[int]:
    return [settled(prepare(node_with(what, count))) for count in counts]


@growth
@pytest.mark.parametrize("qos", [0, 1])
def test_publish_to_a_topic_seen_lately(what: str, counts: tuple[int, ...], qos: int) -> None:
    """From the publisher's bytes to the subscriber's, one subscription with a wildcard matching."""

    def prepare(node: FakeNode) -> Callable[[], object]:
        node.connect("subscriber").subscribe("t/+", qos=qos)
        publisher = node.connect("publisher")

        def publish() -> None:
            publisher.publish("t/1", b"x", qos, packet_id=7 if qos else 0)
            node.broker.sessions.get("subscriber").clear_inflight()  # type: ignore[union-attr]

        return publish

    same(costs_of(what, counts, prepare))


@growth
def test_publish_to_a_new_topic(what: str, counts: tuple[int, ...]) -> None:
    """Nothing is remembered: the match itself."""
    topics = (f"t/{number:06}" for number in itertools.count())

    def prepare(node: FakeNode) -> Callable[[], object]:
        node.connect("subscriber").subscribe("t/+")
        publisher = node.connect("publisher")
        return lambda: publisher.publish(next(topics), b"x")

    same(costs_of(what, counts, prepare))


@growth
def test_publish_to_nobody(what: str, counts: tuple[int, ...]) -> None:
    topics = (f"nobody/{number:06}" for number in itertools.count())

    def prepare(node: FakeNode) -> Callable[[], object]:
        publisher = node.connect("publisher")
        return lambda: publisher.publish(next(topics), b"x")

    same(costs_of(what, counts, prepare))


@growth
def test_a_retained_message_is_set_replaced_and_cleared(what: str, counts: tuple[int, ...]) -> None:
    def prepare(node: FakeNode) -> Callable[[], object]:
        publisher = node.connect("publisher")

        def work() -> None:
            for payload in (b"x", b"y", b""):
                publisher.publish("kept/1", payload, retain=True)

        return work

    same(costs_of(what, counts, prepare))


@growth
def test_a_client_comes_subscribes_and_goes(what: str, counts: tuple[int, ...]) -> None:
    """CONNECT, SUBSCRIBE, UNSUBSCRIBE and the end of its session."""

    def prepare(node: FakeNode) -> Callable[[], object]:
        def work() -> None:
            client = node.connect("passing")
            client.subscribe("mine/1", "mine/+/x", "$share/g/mine/#")
            node.broker.unsubscribe(client.session, "mine/1")
            client.vanish()
            assert "passing" not in node.broker.sessions

        return work

    same(costs_of(what, counts, prepare))


@growth
def test_a_session_is_resumed(what: str, counts: tuple[int, ...]) -> None:
    def prepare(node: FakeNode) -> Callable[[], object]:
        node.connect("back", expiry=3600).subscribe("mine/#", qos=1)

        def work() -> None:
            client = node.connect("back", clean_start=False, expiry=3600)
            assert client.connack.session_present
            client.vanish()

        return work

    same(costs_of(what, counts, prepare))


@growth
def test_a_second_of_housekeeping_is_bounded(what: str, counts: tuple[int, ...]) -> None:
    """What recurs looks at a slice of the population, never at all of it."""

    def prepare(node: FakeNode) -> Callable[[], object]:
        def second() -> None:
            node.server._sweep(node.clock.time)
            node.timers.run(node.clock.time)
            node.server.stats.sample()

        return second

    costs = [settled(prepare(node_with(what, count)), 12) for count in counts]
    assert costs[-1] < 60_000, costs
