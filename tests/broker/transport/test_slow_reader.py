"""SlowReader: who has to take what it asks for, and how much in time."""

from taipan.broker.transport.slow_reader import SLOWEST
from tests.support.fake_node import blocked_reader


def test_a_reader_that_takes_nothing_is_closed() -> None:
    node, client = blocked_reader()
    node.pass_time(59)
    assert not client.transport.closing
    node.pass_time(1)
    assert client.transport.aborted
    assert node.listener.reasons == ["slow_reader"]
    assert node.metrics.messages_dropped_no_subscribers == 1  # its will was published
    assert len(node.timers) == 0


def test_a_reader_that_takes_a_little_stays() -> None:
    node, client = blocked_reader()
    for _ in range(5):
        client.transport.unblock(SLOWEST)
        client.transport.block()
        node.pass_time(60)
        assert not client.transport.closing
    client.transport.unblock(SLOWEST - 1)
    node.pass_time(60)
    assert client.transport.aborted


def test_a_reader_that_catches_up_stays() -> None:
    node, client = blocked_reader()
    node.pass_time(59)
    client.transport.unblock()
    node.pass_time(1000)
    assert not client.closed
    client.transport.block()
    client.connection.pause_writing()
    client.connection.pause_writing()  # no second timer
    assert len(node.timers) == 1
    client.channel.writer.set_writable(True)
    node.pass_time(60)
    assert not client.closed and len(node.timers) == 0
