"""No work is quadratic: ten times as many of the worst kind cost ten times as much."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from taipan.broker.mqtt.constants import MAX_PACKET_ID, MESSAGE_EXPIRY_INTERVAL
from taipan.broker.mqtt.message import Delivery, Message
from taipan.broker.routing.retained import RetainedStore
from taipan.broker.routing.router import Router
from taipan.broker.session.limits import MAX_INFLIGHT, Limits
from taipan.broker.session.outbound_acks import puback
from taipan.broker.session.queue import EXPIRY_SLICE, MessageQueue
from taipan.broker.session.session import Session
from taipan.broker.session.subscription import Subscription
from tests.growth import populations
from tests.growth.operations import Counted, linear, operations, settled
from tests.support.fake_node import FakeNode
from tests.support.one_by_one import OneByOne
from tests.support.sessions import make_session

pytestmark = pytest.mark.interpreted  # compiled code has no instructions to count


class Nowhere(OneByOne):
    """A writer that takes everything."""

    writable = True

    def __init__(self) -> None:
        self.last = 0

    def send_publish0(self, message: Message) -> None:
        pass

    def send_publish(self, delivery: Delivery, packet_id: int, dup: bool) -> bool:
        self.last = packet_id
        return True

    def send_pubrel(self, packet_id: int) -> None:
        self.last = packet_id


def in_flight(count: int) -> Session:
    """A session whose client has so many messages unacknowledged."""
    session = make_session("c", Limits(0), expiry_interval=3600)
    session.attach(Nowhere(), MAX_PACKET_ID, session.limits, 0.0)  # type: ignore[arg-type]
    subscription = Subscription(session, "t", 1)
    for _ in range(count):
        session.deliver(Message("t", b"x", 1), subscription)
    return session


# --- subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filter", ["t", "t/+", "$share/g/t/+"])
def test_many_leave_one_filter(filter: str) -> None:
    def prepare(count: int) -> Callable[[], object]:
        node = FakeNode()
        clients = [node.connect(str(number)) for number in range(count)]
        for client in clients:
            client.subscribe(filter)
        random.Random(1).shuffle(clients)
        return lambda: [node.broker.unsubscribe(client.session, filter) for client in clients]

    linear(prepare)


def test_many_leave_one_filter_while_messages_come() -> None:
    """Each message costs what it delivers, and no more for those that have left."""

    def prepare(count: int) -> Callable[[], object]:
        router = Router()
        made = [Subscription(in_flight(0), f"t/{'+' if number % 2 else '#'}", 0) for number in range(count)]
        for each in made:
            router.subscribe(each)

        def work() -> None:
            for each in made[:-1]:
                router.unsubscribe(each)
            for _ in range(count):
                router.match("t/1")

        return work

    linear(prepare)


def test_a_session_with_many_subscriptions_ends() -> None:
    def prepare(count: int) -> Callable[[], object]:
        node = FakeNode()
        session = populations.session(node, "c")
        for number in range(count):
            filter = f"{'$share/g/' if number % 3 == 0 else ''}a/{number}/{'+' if number % 2 else 'b'}"
            topic_filter = filter.removeprefix("$share/g/")
            group = "g" if number % 3 == 0 else None
            node.broker.subscribe(session, Subscription(session, filter, 1, group=group, topic_filter=topic_filter))

        def end() -> None:
            node.broker.life.end_session(session, "expired", 0.0)
            assert node.broker.router.subscription_count == 0

        return end

    linear(prepare)


@pytest.mark.parametrize(
    "strategy", ["random", "round_robin", "round_robin_per_group", "sticky", "hash_clientid", "hash_topic"]
)
@pytest.mark.parametrize("connected", ["all", "none", "one"])
def test_a_shared_subscription_with_many_members(strategy: str, connected: str) -> None:
    """Nobody is there, or just one: the search is bounded."""

    def cost(count: int) -> int:
        node = FakeNode(shared={"strategy": strategy})
        for number in range(count):
            session = populations.session(node, f"m{number}")
            node.broker.subscribe(session, Subscription(session, "$share/g/t", 1, group="g", topic_filter="t"))
            if connected == "all" or (connected == "one" and number == count // 2):
                session.attach(Nowhere(), 32, session.limits, 0.0)  # type: ignore[arg-type]
        return max(operations(lambda: node.publish("t", b"x", 1)) for _ in range(20))

    costs = [cost(1000), cost(5000)]
    assert max(costs) < 40_000
    assert costs[1] <= costs[0] * 2 + 500, costs


@pytest.mark.parametrize("filter", ["+/", "a/"])
def test_a_topic_of_many_levels(filter: str) -> None:
    """Subscribed to, matched, unsubscribed from, retained and found again."""

    def prepare(levels: int) -> Callable[[], object]:
        router, store = Router(), RetainedStore()
        topic = "a/" * levels + "a"
        wanted = filter * levels + "#"
        subscription = Subscription(in_flight(0), wanted, 0)

        def work() -> None:
            router.subscribe(subscription)
            assert router.match(topic).targets
            router.unsubscribe(subscription)
            store.put(Message(topic, b"x", 0, True))
            assert list(store.walk(wanted)) == [topic]
            store.delete(topic)

        return work

    linear(prepare, 1000, 10_000)


def test_every_topic_is_a_new_one() -> None:
    """The routes that are remembered stay few, and forgetting costs nothing that grows."""
    router = Router(cache_size=1000)
    router.subscribe(Subscription(in_flight(0), "t/#", 0))
    topics = (f"t/{number}" for number in itertools.count())

    def thousand() -> None:
        for _ in range(1000):
            router.match(next(topics))

    first = settled(thousand)
    for _ in range(20):
        thousand()
    assert settled(thousand) <= first * 1.05
    assert len(router.recent) + len(router._older) <= 1000


# --- messages in flight -----------------------------------------------------------------------------------------------


def test_identifiers_are_found_with_nearly_all_in_use() -> None:
    """The client acknowledges just what makes the search for the next free one longest."""
    session = in_flight(MAX_PACKET_ID)
    assert len(session.inflight) == MAX_INFLIGHT < MAX_PACKET_ID
    subscription = Subscription(session, "t", 1)
    writer: Any = session.writer
    many = 2 * (MAX_PACKET_ID - MAX_INFLIGHT)

    def work() -> None:
        for _ in range(many):
            puback(session, writer.last)
            session.advance(0.0)

    session.queue = None
    for _ in range(many):
        session.deliver(Message("t", b"x", 1), subscription)
    assert operations(work) < many * 1000


@pytest.mark.parametrize("order", ["as sent", "backwards", "any"])
def test_acknowledgements_while_much_is_to_be_sent_again(order: str) -> None:
    """A client comes back with a small Receive Maximum and acknowledges what it has from before."""

    def prepare(count: int) -> Callable[[], object]:
        session = in_flight(count)
        session.detach()
        inflight: dict[int, Delivery | None] = {Counted(each): delivery for each, delivery in session.inflight.items()}
        session.clear_inflight()
        session.change_inflight().update(inflight)
        session.attach(Nowhere(), 10, session.limits, 0.0)  # type: ignore[arg-type]
        session.advance(0.0)
        packet_ids = list(session.inflight)
        if order == "backwards":
            packet_ids.reverse()
        elif order == "any":
            random.Random(1).shuffle(packet_ids)

        def acknowledge() -> None:
            for packet_id in packet_ids:
                puback(session, packet_id)
                session.advance(0.0)
            assert not session.inflight

        return acknowledge

    linear(prepare)


# --- queues -----------------------------------------------------------------------------------------------------------


def expiring(count: int, max_messages: int = 0) -> MessageQueue:
    """Each a second later than the one before it."""
    queue = MessageQueue(max_messages)
    for number in range(count):
        properties = {MESSAGE_EXPIRY_INTERVAL: 10 + number}
        queue.push(Delivery(Message("t", b"%d" % number, 1, properties=properties, timestamp=0.0), 1))
    return queue


def test_a_full_queue_drops_its_oldest() -> None:
    def prepare(count: int) -> Callable[[], object]:
        queue = expiring(count, max_messages=count)
        more = [Delivery(Message("t", b"x", 1), 1) for _ in range(count)]
        return lambda: [queue.push(each) for each in more]

    linear(prepare)


def test_looking_for_expired_messages_is_sliced() -> None:
    """One message expires each second in a long queue: no second looks at all of it."""
    queue = expiring(4 * EXPIRY_SLICE)
    most = operations(lambda: expiring(EXPIRY_SLICE).drop_expired(10.0))
    gone = []
    for second in range(10, 20):

        def look(now: float = float(second)) -> None:
            gone.extend(queue.drop_expired(now))

        assert operations(look) < most
    assert [each.message.payload for each in gone] == [b"%d" % number for number in range(len(gone))]
    assert len(gone) >= 2
    for _ in range(10):
        queue.drop_expired(19.0)
    assert [each.message.payload for each in queue] == [b"%d" % number for number in range(10, 4 * EXPIRY_SLICE)]


def test_a_sliced_look_misses_nothing_whatever_comes_and_goes_meanwhile() -> None:
    queue = expiring(3 * EXPIRY_SLICE)
    rng = random.Random(3)
    kept: set[bytes] = {each.message.payload for each in queue}
    now = 10.0
    for number in range(200):
        now += rng.choice((0, 1, 50))
        kept -= {each.message.payload for each in queue.drop_expired(now)}
        for _ in range(rng.randrange(3)):
            taken = queue.pop()
            assert taken is not None
            kept.discard(taken.message.payload)
            if rng.random() < 0.3:
                queue.push_front(taken)
                kept.add(taken.message.payload)
        soon = Delivery(
            Message("t", b"new %d" % number, 1, properties={MESSAGE_EXPIRY_INTERVAL: rng.randrange(1, 60)}), 1
        )
        soon.message.timestamp = now
        queue.push(soon)
        kept.add(soon.message.payload)
        kept -= {each.message.payload for each in queue.pop_run(2)}
        assert {each.message.payload for each in queue} == kept
    for _ in range(20):
        queue.drop_expired(1e9)
    assert len(queue) == 0


# --- many at one moment -----------------------------------------------------------------------------------------------


def test_many_wills_at_once() -> None:
    def prepare(count: int) -> Callable[[], object]:
        node = FakeNode()
        node.connect("heir").subscribe("will/#")
        for number in range(count):
            session = populations.session(node, str(number))
            node.broker.life.will_at(session, Message(f"will/{number}", b"x"), 0, node.clock.time + 5)
        node.clock.advance(6)

        def work() -> None:
            while node.timers.due(node.clock.time):
                node.timers.run(node.clock.time)
                node.run()

        return work

    linear(prepare)


def test_many_delayed_messages_at_once() -> None:
    def prepare(count: int) -> Callable[[], object]:
        node = FakeNode()
        node.connect("late").subscribe("#")

        def work() -> None:
            for number in range(count):
                message = Message(f"$delayed/5/{number}", b"x", timestamp=node.clock.time)
                assert not node.server.delayed.accept(message, node.clock.time).refused
            node.clock.advance(6)
            while node.timers.due(node.clock.time):
                node.timers.run(node.clock.time)
                node.run()
            assert node.server.delayed.count == 0

        return work

    linear(prepare)


def test_many_timers_are_cancelled() -> None:
    """Very many reconnect: their expiry and will timers go, and the heap with them."""

    def prepare(count: int) -> Callable[[], object]:
        node = FakeNode()
        timers = [node.timers.at(1e9 + number, node.run) for number in range(count)]

        def work() -> None:
            for each in timers:
                each.cancel()

        return work

    linear(prepare, 1000, 10_000)


def test_many_retained_messages_expire_at_once() -> None:
    def prepare(count: int) -> Callable[[], object]:
        store = RetainedStore()
        for number in range(count):
            properties = {MESSAGE_EXPIRY_INTERVAL: 5}
            store.put(Message(f"a/{number}", b"x", 0, True, properties, timestamp=0.0))

        def work() -> None:
            while store.sweep(10.0, 1000):
                pass
            assert len(store) == 0

        return work

    linear(prepare)
