"""Connection: what operators read from it and change on it while it lasts."""

from taipan.broker.mqtt.packets import Pingreq
from taipan.broker.session.client_info import Traffic
from tests.support.fake_node import FakeClient, FakeNode
from tests.support.wire import Publish


def publish(client: FakeClient, count: int) -> None:
    client.send(*[Publish("t", b"x") for _ in range(count)])


def left(client: FakeClient) -> Traffic | None:
    """What is known of its traffic after its end."""
    return client.channel.client.traffic


def limits(client: FakeClient) -> tuple[object, object]:
    return client.connection.limits


def has_gone(client: FakeClient) -> bool:
    return client.closed


def test_its_traffic_stays_with_a_session_that_stays() -> None:
    node = FakeNode()
    keeper = node.connect("keeper", properties={17: 100})
    keeper.publish("t", b"x", 1, 1)
    assert left(keeper) is None
    octets = keeper.connection.received_bytes
    keeper.vanish()
    node.run()
    traffic = left(keeper)
    assert isinstance(traffic, Traffic)
    assert (traffic.received_bytes, traffic.received_packets, traffic.received1) == (octets, 2, 1)
    assert (traffic.waiting, traffic.held) == (0, 0)
    goer = node.connect("goer")
    goer.vanish()
    node.run()
    assert left(goer) is None


def test_its_traffic_does_not_stay_with_a_session_taken_over() -> None:
    node = FakeNode()
    first = node.connect("c", properties={17: 100})
    node.connect("c", clean_start=False, properties={17: 100})
    node.run()
    first.vanish()
    node.run()
    assert left(first) is None


def test_a_limit_of_its_own_and_back() -> None:
    node = FakeNode()
    client = node.connect()
    assert limits(client) == (None, None)
    client.connection.limit((2, 10), (1000, 1))
    assert limits(client) == ((2, 10), (1000, 1))
    publish(client, 3)
    assert client.connection.slowed
    assert (client.connection.traffic().received0, client.connection.traffic().waiting) == (2, 1)
    # Lifted, what waits is taken at once.
    client.connection.limit(None, None)
    node.run()
    assert not client.connection.slowed and client.connection.traffic().received0 == 3
    publish(client, 100)
    assert client.connection.traffic().received0 == 103


def test_a_keep_alive_of_its_own() -> None:
    node = FakeNode()
    client = node.connect(keep_alive=0)
    node.pass_time(100)
    client.connection.expect_within(10)
    node.pass_time(9)
    assert not has_gone(client)
    client.send(Pingreq())
    node.pass_time(9)
    assert not has_gone(client)
    node.pass_time(2)
    assert has_gone(client)
    client.connection.expect_within(10)  # too late, and harmless
    node.pass_time(100)


def test_no_keep_alive_any_more() -> None:
    node = FakeNode()
    client = node.connect(keep_alive=10)
    client.connection.expect_within(0)
    node.pass_time(1000)
    assert not has_gone(client)


def test_a_quota_of_what_is_routed() -> None:
    node = FakeNode()
    reader = node.connect("reader")
    reader.subscribe("t")
    client = node.connect()
    publish(client, 2)  # admitted before
    client.channel.limit_routing(Spent())
    publish(client, 2)
    assert client.connection.traffic().refused == 2
    client.channel.limit_routing(None)
    publish(client, 1)
    assert len(reader.messages()) == 3


class Spent:
    """A quota that is used up."""

    def consume(self, n: float, now: float) -> float:
        return 1.0
