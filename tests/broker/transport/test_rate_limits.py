"""Rate limits: how fast a connection is read, paused and resumed; the token bucket."""

import pytest

from taipan.broker.mqtt import constants as c
from taipan.broker.mqtt.message import Message
from taipan.broker.mqtt.packets import Ack, Disconnect, Pingreq, Pingresp, Will
from taipan.broker.transport.rate_limits import RateLimits, TokenBucket
from tests.support.fake_node import FakeClient, FakeNode
from tests.support.wire import Publish, encode


def told(client: FakeClient) -> list[int]:
    """How many messages came since it was asked last."""
    return [int(each.payload) for each in client.received() if isinstance(each, Publish)]


def tick(node: FakeNode, seconds: int) -> None:
    for _ in range(10 * seconds):
        node.pass_time(0.1)


def numbered(first: int, count: int, qos: int = 0) -> list[Publish]:
    return [Publish("t", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(first, first + count)]


def test_the_message_rate_lets_pass_what_it_says() -> None:
    """What is too much waits; nothing that is not a message does."""
    node = FakeNode({"message_rate": [2, 1.0]})
    client = node.connect()
    node.clock.advance(10)
    client.feed(*numbered(0, 5), Pingreq())
    assert client.received() == [Pingresp()]
    assert (node.metrics.messages_publish, client.transport.reading) == (2, True)
    node.pass_time(0.5)
    assert node.metrics.messages_publish == 3
    client.feed(*numbered(5, 1), Pingreq())
    assert client.received() == [Pingresp()]
    node.pass_time(1)
    assert node.metrics.messages_publish == 5
    assert node.metrics.refusals.snapshot() == {"rate_limited": 1}
    node.pass_time(0.5)
    assert node.metrics.messages_publish == 6
    node.pass_time(10)
    client.feed(*numbered(6, 3))
    assert node.metrics.messages_publish == 8
    assert node.metrics.refusals.snapshot() == {"rate_limited": 2}


@pytest.mark.parametrize("each", [26, 40, 200])
def test_no_second_has_more_than_the_bucket(each: int) -> None:
    """Whatever a client sends; and all that a quiet time lets pass at once is one bucket."""
    node = FakeNode({"message_rate": [20, 1.0]})
    reader, client = node.connect("r"), node.connect("w")
    reader.subscribe("t")
    sent = 0
    seconds: list[list[int]] = []
    for _ in range(30):
        seconds.append([])
        for tenth in range(10):
            size = each * (tenth + 1) // 10 - each * tenth // 10
            client.feed(*numbered(sent, size), Pingreq())
            assert client.received() == [Pingresp()] or each == 200  # more than may wait comes of that
            sent += size
            node.pass_time(0.1)
            seconds[-1] += told(reader)
    assert [number for second in seconds for number in second] == list(range(sum(map(len, seconds))))
    counts = [len(second) for second in seconds]
    assert counts[0] <= 40 and sum(counts) <= 20 + 20 * 30
    assert all(19 <= count <= 21 for count in counts[4:])


def test_a_small_bucket_is_not_slower_than_it_says() -> None:
    node = FakeNode({"message_rate": [1, 0.01]})
    client = node.connect()
    client.feed(*numbered(0, 150))
    tick(node, 1)
    assert 90 <= node.metrics.messages_publish <= 130


def test_a_message_larger_than_the_bucket_passes_and_is_paid_for() -> None:
    node = FakeNode({"byte_rate": [1000, 1.0]})
    client = node.connect()
    node.clock.advance(10)
    client.feed(Publish("t", bytes(3000)), Publish("t", bytes(500)), Pingreq())
    assert client.received() == [Pingresp()]
    assert node.metrics.messages_publish == 1
    node.pass_time(2)
    assert node.metrics.messages_publish == 1
    node.pass_time(0.6)
    assert node.metrics.messages_publish == 2


def test_other_packets_count_for_the_byte_rate() -> None:
    node = FakeNode({"byte_rate": [100, 1.0]})
    client = node.connect()
    node.clock.advance(10)
    client.feed(*[Pingreq()] * 100)
    assert client.received() == [Pingresp()] * 100
    assert not client.transport.reading
    node.pass_time(1.1)
    assert client.transport.reading


def test_what_waits_has_a_bound() -> None:
    """Then nothing more is read, until there is room; all of it arrives."""
    node = FakeNode({"message_rate": [1000, 1.0]})
    reader, client = node.connect("r"), node.connect("w")
    reader.subscribe("t")
    sent = 0
    while client.transport.reading:
        client.transport.feed(b"".join(encode(each, 5) for each in numbered(sent, 100)))
        sent += 100
        assert sent < 10_000
    assert sent > 2_000 and client.connection.buffered_bytes < 1_200_000
    client.transport.feed(b"".join(encode(each, 5) for each in (*numbered(sent, 100), Pingreq())))
    assert client.received() == []
    node.pass_time(0.5)
    assert client.transport.reading and client.received() == [Pingresp()]
    tick(node, 10)
    assert told(reader) == list(range(sent + 100))


def test_what_is_taken_in_turns_is_paid_for_once() -> None:
    node = FakeNode({"message_rate": [1500, 1000.0]})
    client = node.connect()
    client.feed(*numbered(0, 1600))
    node.run()
    assert node.metrics.messages_publish == 1500


@pytest.mark.parametrize("goodbye", [True, False], ids=["DISCONNECT", "socket"])
def test_who_leaves_is_gone_at_once(goodbye: bool, caplog: pytest.LogCaptureFixture) -> None:
    """What its rate has no room for goes with it, and is told to nobody as taken."""
    node = FakeNode({"message_rate": [3, 1.0]})
    reader, client = node.connect("r"), node.connect("w", will=Will("t", b"99"))
    reader.subscribe("t")
    client.feed(*numbered(0, 10, qos=1), *[Pingreq()] * goodbye)
    node.pass_time(0.4)
    client.received()
    if goodbye:
        client.feed(*numbered(10, 2), Disconnect())
    else:
        client.transport.feed_eof()
    node.run()
    assert "w" not in node.context.channels and node.listener.reasons == ["normal" if goodbye else "tcp_closed"]
    assert told(reader) == [0, 1, 2, 3] + [99] * (not goodbye)
    assert node.metrics.packets_publish_dropped == (8 if goodbye else 6)
    assert "setting=message_rate" in caplog.text
    node.pass_time(100)
    assert told(reader) == []


def test_a_session_is_not_lost_to_what_waits_for_a_rate() -> None:
    """Acknowledgements are taken: more is sent."""
    node = FakeNode({"message_rate": [1, 1000.0], "max_inflight": 1})
    client = node.connect()
    client.subscribe("u", qos=2)
    for _ in range(3):
        node.publish("u", b"1", 2)
    client.feed(*numbered(0, 10))
    for _ in range(3):
        (got,) = client.received()
        assert isinstance(got, Publish)
        client.feed(Ack(c.PUBREC, got.packet_id))
        assert client.received() == [Ack(c.PUBREL, got.packet_id)]
        client.feed(Ack(c.PUBCOMP, got.packet_id))
    assert client.received() == []


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


@pytest.mark.parametrize("size, cost", [(9900, 10_000), (12_000, 12_000), (10, 10_000)])
def test_a_request_of_another_protocol_is_paid_for_once(size: int, cost: int) -> None:
    """10,000 bytes in pieces; the PUBLISH that a gateway makes of them is smaller or larger."""
    limits = RateLimits(None, (20_000.0, 1.0))
    message = Message("t", b"")
    message.frame = bytes(size)
    assert message.wire_size == size
    limits.received(4000, [], 4000, 0.0)
    limits.received(4000, [], 8000, 0.0)
    limits.received(2000, [message], 0, 0.0)
    assert limits.admit([message], 0, 0.0) == 1
    debt = limits.received(20_000 - cost + 100, [], 0, 0.0)
    assert debt == pytest.approx(100 / 20_000)
