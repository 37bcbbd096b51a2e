"""Rate limits: how fast a connection is read, paused and resumed; the token bucket."""

import pytest

from taipan.broker.mqtt.packets import Pingreq, Pingresp
from taipan.broker.transport.rate_limits import TokenBucket
from tests.support.fake_node import FakeNode
from tests.support.wire import Publish, encode


def test_the_message_rate_holds_reading_back() -> None:
    node = FakeNode({"message_rate": [2, 1.0]})
    client = node.connect()
    node.clock.advance(10)
    client.feed(*[Publish("t")] * 5, Pingreq())
    assert client.arrived() == []
    node.run()
    assert client.arrived() == []
    assert not client.transport.reading
    node.pass_time(1.4)
    assert client.arrived() == []
    client.feed(Publish("t"), Pingreq())
    node.pass_time(0.1)
    assert client.arrived() == [Pingresp()]
    node.pass_time(0.5)
    assert client.received() == [Pingresp()]
    assert client.transport.reading
    assert node.metrics.refusals.snapshot() == {"rate_limited": 2}


def test_the_byte_rate_counts_pieces_too() -> None:
    node = FakeNode({"byte_rate": [100, 1.0]})
    client = node.connect()
    node.clock.advance(10)
    data = encode(Publish("t", b"x" * 200), 5)
    client.transport.feed(data[:150])
    assert not client.transport.reading
    client.connection.data_received(data[150:160])  # what a layer had already read: no second timer
    node.pass_time(0.6)
    assert client.transport.reading
    client.transport.feed(data[160:])
    node.pass_time(10)
    assert node.metrics.messages_publish == 1
    assert node.metrics.refusals.snapshot() == {"rate_limited": 2}


def test_the_connection_goes_while_a_rate_holds_it() -> None:
    node = FakeNode({"message_rate": [1, 10.0]})
    client = node.connect()
    client.feed(Pingreq(), Pingreq())
    client.vanish()
    node.pass_time(100)
    assert len(node.timers) == 0
    assert node.listener.open == 0


def test_acknowledgements_are_no_messages() -> None:
    """Or a client that is sent much would be read the more slowly for it."""
    node = FakeNode({"message_rate": [1, 10.0]})
    client = node.connect()
    client.subscribe("t", qos=1)
    for _ in range(30):
        node.publish("t", b"x", 1)
    client.puback(*(message.packet_id for message in client.messages()))
    assert client.ask(Pingreq(), Publish("u"), Pingreq()) == [Pingresp(), Pingresp()]
    assert client.transport.reading and client.session.inflight == {}


def test_whoever_waits_for_its_rate_and_leaves_is_forgotten() -> None:
    node = FakeNode({"message_rate": [1, 10.0]})
    client = node.connect()
    before = len(node.timers)
    client.feed(*(Publish("t") for _ in range(100)))
    assert len(node.timers) == before + 1
    client.vanish()
    assert len(node.timers) == 0


def test_an_amount_passes_at_once_then_at_its_rate() -> None:
    bucket = TokenBucket(10, 5.0)
    assert bucket.consume(10, 100.0) == 0.0
    assert bucket.consume(1, 100.0) == pytest.approx(0.5)
    assert bucket.consume(1, 100.0) == pytest.approx(1.0)
    assert bucket.consume(0, 101.0) == 0.0
    assert bucket.consume(1, 101.0) == pytest.approx(0.5)


def test_rest_does_not_save_up_more_than_the_amount() -> None:
    bucket = TokenBucket(10, 1.0)
    assert bucket.consume(0, 0.0) == 0.0
    assert bucket.consume(10, 1000.0) == 0.0
    assert bucket.consume(1, 1000.0) == pytest.approx(0.1)


def test_more_than_the_amount_at_once_is_a_longer_pause() -> None:
    bucket = TokenBucket(1000, 1.0)
    assert bucket.consume(5000, 7.0) == pytest.approx(4.0)
    assert bucket.consume(0, 11.0) == 0.0


def test_pausing_as_told_keeps_the_rate() -> None:
    bucket = TokenBucket(100, 1.0)
    now = 0.0
    for _ in range(1000):
        now += bucket.consume(7, now)
    assert now == pytest.approx((7000 - 100) / 100, abs=0.01)


def test_take_takes_nothing_when_there_is_too_little() -> None:
    bucket = TokenBucket(2, 1.0)
    assert [bucket.take(1, 5.0) for _ in range(4)] == [True, True, False, False]
    assert bucket.take(1, 5.4) is False
    assert bucket.take(1, 5.5) is True


def test_time_that_runs_backwards_gives_nothing() -> None:
    bucket = TokenBucket(1, 1.0)
    assert bucket.take(1, 10.0)
    assert not bucket.take(1, 5.0)
    assert not bucket.take(1, 10.5)
    assert bucket.take(1, 11.0)


@pytest.mark.parametrize("amount, seconds", [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_a_limit_of_nothing_is_an_error(amount: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        TokenBucket(amount, seconds)


def test_its_bound() -> None:
    assert TokenBucket(100, 10).bound == (100, 10)
    assert TokenBucket(5, 0.5).bound == (5, 0.5)
