"""What one turn of the event loop may do is bounded, so that nobody waits long for the next: counted, not timed."""

import pytest

from taipan.broker.channel.dispatcher import PUBLISHES_PER_ITERATION
from taipan.broker.core.broker import PUBLISH_STEPS
from taipan.broker.core.session_life import WILL_STEPS
from taipan.broker.loop.budget import DELIVERIES_PER_ITERATION
from taipan.broker.loop.timers import BUDGET
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Subscribe, TopicFilter
from taipan.broker.session.queue import EXPIRY_SLICE
from taipan.broker.session.replay import REPLAY_BYTES, REPLAY_SLICE
from taipan.broker.session.subscription import Subscription
from taipan.broker.transport.connection_writer import SENDS_PER_ITERATION
from tests.growth import populations
from tests.growth.operations import operations
from tests.growth.test_worst_cases import expiring
from tests.support.fake_node import FakeNode
from tests.support.wire import Publish

READERS = 1000


class Watched(FakeNode):
    """Writes down what each turn of the loop delivered and to how many clients it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = [self.connect(f"r{number}") for number in range(READERS)]

    def turns(self) -> tuple[list[int], list[int]]:
        """Deliveries and writes of each turn until nothing is left to do."""
        deliveries: list[int] = []
        writes: list[int] = []
        while self.loop.soon:
            before = sum(each.connection.writer.sent_messages + each.channel.writer.sent0 for each in self.readers)
            sent = sum(each.transport.writes for each in self.readers)
            self.loop.turn()
            after = sum(each.connection.writer.sent_messages + each.channel.writer.sent0 for each in self.readers)
            deliveries.append(after - before)
            writes.append(sum(each.transport.writes for each in self.readers) - sent)
        return deliveries, writes


@pytest.mark.parametrize("publishers", [1, 5])
def test_one_to_a_thousand(publishers: int) -> None:
    """A flood of QoS 0 that each of a thousand subscribers gets: turns stay short however much is waiting."""
    node = Watched()
    for reader in node.readers:
        reader.subscribe("t")
    writers = [node.connect(f"w{number}") for number in range(publishers)]
    floods = 20
    for writer in writers:
        writer.feed(*[Publish("t", b"x")] * floods)
    deliveries, writes = node.turns()
    total = READERS * floods * publishers
    at_once = sum(each.connection.writer.sent_messages for each in node.readers) - sum(deliveries)
    assert at_once + sum(deliveries) == total
    # Whoever was last within the budget may go over it by one message.
    assert max(deliveries) <= DELIVERIES_PER_ITERATION + READERS
    assert max(writes) <= SENDS_PER_ITERATION
    assert all(len(each.messages()) == floods * publishers for each in node.readers[::100])


def test_five_hundred_pairs() -> None:
    """Each publisher brings thousands in one piece: all have a share of each turn."""
    node = Watched()
    pairs = READERS // 20
    for number in range(pairs):
        node.readers[number].subscribe(f"p/{number}")
    writers = [node.connect(f"w{number}") for number in range(pairs)]
    floods = 2 * PUBLISHES_PER_ITERATION
    for number, writer in enumerate(writers):
        writer.feed(*[Publish(f"p/{number}", b"x")] * floods)
    deliveries, writes = node.turns()
    assert max(deliveries) <= DELIVERIES_PER_ITERATION // (1 + PUBLISH_STEPS) + 1
    assert max(writes) <= SENDS_PER_ITERATION
    assert all(len(node.readers[number].messages()) == floods for number in range(pairs))


def test_whoever_waits_is_asked_no_oftener_for_being_many() -> None:
    """Publishers are held back: a turn lets as many go on as it has room for and looks at no others."""

    def dearest(count: int) -> int:
        node = FakeNode()
        node.connect("reader").subscribe("t")
        writers = [node.connect(f"w{number}") for number in range(count)]
        node.broker.budget.deliveries = DELIVERIES_PER_ITERATION + 1
        for writer in writers:
            writer.feed(Publish("t", b"x"))

        # What a turn may deliver is spent by the first: the others wait, however many there are.
        def spend(message: Message) -> Message:
            node.broker.budget.deliveries += DELIVERIES_PER_ITERATION
            return message

        node.hooks.message_publish.add(spend)
        return max(operations(node.loop.turn) for _ in range(3))

    few, many = dearest(50), dearest(1000)
    assert few > 100
    assert many <= few + 50


def test_wills_to_many() -> None:
    """A thousand wills fall due at once and each goes to a thousand clients."""
    node = Watched()
    for reader in node.readers:
        reader.subscribe("will")
    for number in range(100):
        session = populations.session(node, str(number))
        node.broker.life.will_at(session, Message("will", b"x"), 0, node.clock.time + 5)
    node.clock.advance(6)
    runs = 0
    while node.timers.due(node.clock.time):
        node.timers.run(node.clock.time)
        assert node.broker.budget.deliveries <= DELIVERIES_PER_ITERATION + READERS
        assert node.loop.soon, "nobody will go on"
        node.run()
        runs += 1
    assert runs >= 100 * READERS // (DELIVERIES_PER_ITERATION + READERS)
    assert len(node.readers[0].messages()) == 100


def test_wills_of_a_crowd_that_goes_at_once() -> None:
    """Two thousand connections end in one turn: what their wills take is spread over many, and none is lost."""
    node = FakeNode()
    reader = node.connect("reader")
    reader.subscribe("will")
    turn = node.broker.budget
    node.timers.enough = lambda: turn.deliveries > DELIVERIES_PER_ITERATION
    sessions = [populations.session(node, str(number)) for number in range(2000)]
    turn.deliveries = 0
    for number, session in enumerate(sessions):
        will = Message("will", b"%d" % number, publisher=session.client)
        session.expiry_interval = 3600 * (number % 2)  # some end with their connection, some go on
        node.broker.life.leave(session, will, 0, node.clock.time, "")
    assert turn.deliveries <= DELIVERIES_PER_ITERATION + 2 * WILL_STEPS
    runs = 0
    while node.timers.due(node.clock.time):
        turn.deliveries = 0
        node.timers.run(node.clock.time)
        assert turn.deliveries <= DELIVERIES_PER_ITERATION + 2 * WILL_STEPS
        runs += 1
    node.run()
    assert runs >= 2000 * WILL_STEPS // DELIVERIES_PER_ITERATION - 1
    assert [int(each.payload) for each in reader.messages()] == list(range(2000))


def test_retained_messages_searched_for_by_many_filters() -> None:
    """Each filter looks at little and finds nothing; one turn after the other looks at some of them."""
    node = FakeNode()
    for number in range(500):
        node.publish(f"kept/{number}/x", b"x", retain=True)
    session = node.connect("c").session
    for number in range(100):
        node.broker.subscribe(session, Subscription(session, f"kept/+/none{number}", 0))
    turns = []
    while session.replays is not None:
        turns.append(operations(lambda: session.advance(node.clock.time)))
    assert len(turns) > 10
    assert max(turns) < 400_000


def test_retained_messages_go_out_in_slices() -> None:
    node = FakeNode()
    for number in range(3 * REPLAY_SLICE):
        node.publish(f"kept/{number}", b"x", retain=True)
    client = node.connect("c")
    client.feed(Subscribe(1, [TopicFilter("kept/#", 0)]))
    writer = client.channel.writer
    most = 0
    while node.loop.soon:
        node.loop.turn()
        most = max(most, writer.sent0)
    assert 1 < most <= REPLAY_SLICE
    assert len(client.received()) == 3 * REPLAY_SLICE + 1


def test_large_retained_messages_go_out_a_few_at_a_time() -> None:
    node = FakeNode()
    size = REPLAY_BYTES // 4
    for number in range(20):
        node.publish(f"kept/{number}", b"x" * size, retain=True)
    client = node.connect("c")
    client.feed(Subscribe(1, [TopicFilter("kept/#", 0)]))
    most = 0
    while node.loop.soon:
        node.loop.turn()
        most = max(most, client.channel.writer.sent0)
    assert most == 4
    assert len(client.received()) == 21


def test_sessions_are_swept_in_slices() -> None:
    """Long queues in which something expires: a second looks at a few of them."""
    node = FakeNode()
    sessions = [populations.session(node, str(number)) for number in range(20)]
    for session in sessions:
        session.queue = expiring(EXPIRY_SLICE)
    left = list(sessions)
    node.broker.life.sweep_sessions(left, node.clock.time)
    assert 12 <= len(left) < 20


@pytest.mark.parametrize("number", [1, 3])
def test_timers_leave_the_loop_to_others(number: int) -> None:
    """So many callbacks and no more, whatever is due."""
    node = FakeNode()
    fired: list[int] = []
    for each in range(BUDGET * number + 1):
        node.timers.at(1.0, lambda each=each: fired.append(each))  # type: ignore[misc]
    assert node.timers.run(node.clock.time) == BUDGET == len(fired)
