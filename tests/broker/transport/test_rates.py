"""Rates: how fast a connection is read, held back and let go."""

from taipan.broker.mqtt.packets import Pingreq, Pingresp
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
