"""Output: what is written, when the socket is full, and retained messages that come slice by slice."""

import pytest

from taipan.broker.mqtt.packets import Connack, Connect, Pingreq, Pingresp, Subscribe, TopicFilter
from taipan.broker.transport.connection import WRITE_LOW
from tests.support.fake_node import FakeClient, FakeNode
from tests.support.wire import Publish


def test_a_full_socket_holds_output_back_until_it_drains() -> None:
    node = FakeNode({"max_inflight": 0})
    reader = node.connect("r")
    reader.subscribe("t", qos=1)
    reader.transport.block()
    for number in range(8):
        node.publish("t", b"%d" % number + b"x" * 100_000, 1)
        node.run()
    assert not reader.channel.writer.writable
    assert reader.session.queued > 0
    writes = reader.transport.writes
    reader.send(Pingreq())
    assert reader.transport.writes == writes
    reader.transport.unblock(WRITE_LOW)
    assert not reader.channel.writer.writable
    reader.transport.unblock()
    assert reader.channel.writer.writable
    packets = reader.received()
    assert [each.payload[:1] for each in packets if isinstance(each, Publish)] == [b"%d" % n for n in range(8)]
    assert sum(isinstance(each, Pingresp) for each in packets) == 1
    assert (reader.session.queued, reader.channel.writer.backlog) == (0, 0)
    assert len(node.timers) == 0


def test_draining_may_fill_the_socket_again() -> None:
    node = FakeNode({"max_inflight": 0, "max_outbox_bytes": 10_000_000})
    reader = node.connect("r")
    reader.subscribe("t")
    reader.transport.block()
    for _ in range(20):
        node.publish("t", b"x" * 100_000)
        node.run()
    reader.transport.unblock(2_500_000)
    reader.transport.block()
    assert reader.channel.writer.writable or not reader.transport.writing
    reader.transport.unblock()
    assert len(reader.messages()) == 20


def test_half_a_window_is_written_at_once_and_the_rest_at_the_end_of_the_turn() -> None:
    node = FakeNode({"max_inflight": 32})
    reader = node.connect("r", expiry=60)
    reader.subscribe("t", qos=1)
    reader.vanish()
    for number in range(40):
        node.publish("t", b"%d" % number, 1)
    reader = node.open()
    reader.feed(Connect(5, "r", clean_start=False))
    connack, *first = reader.arrived()
    assert isinstance(connack, Connack) and connack.session_present
    rest = reader.messages()
    assert (len(first), len(rest), reader.transport.writes) == (16, 16, 2)
    together = [each.payload for each in [*first, *rest] if isinstance(each, Publish)]
    assert together == [b"%d" % number for number in range(32)]
    reader.puback(*range(1, 33))
    assert [each.payload for each in reader.messages()] == [b"%d" % number for number in range(32, 40)]
    assert node.flusher.waiting == 0


def encode_connack(client: FakeClient) -> bytes:
    from taipan.broker.mqtt.encoder import encode as broker_encode

    return broker_encode(client.connack, client.version)


def test_what_is_sent_to_a_lost_connection_goes_nowhere() -> None:
    node = FakeNode()
    client = node.connect()
    client.vanish()
    client.channel.writer.send(b"\xd0\x00")
    node.run()
    assert node.metrics.bytes_sent == len(encode_connack(client))
    client.connection.pause_writing()
    client.connection.abort()
    client.connection.close()
    client.connection.accepted(10)
    assert len(node.timers) == 0


# --- retained messages ----------------------------------------------------------------------------------------------


@pytest.mark.interpreted
def test_retained_messages_come_turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.broker.session.replay.REPLAY_SLICE", 10)
    node = FakeNode()
    for number in range(95):
        node.publish(f"r/{number}", b"x", retain=True)
    reader = node.connect("r")
    reader.feed(Subscribe(1, [TopicFilter("r/+")]))
    seen = []
    while node.loop.soon:
        assert node.loop.waiting(node.flusher.run) == 1
        node.loop.turn()
        seen.append(len(reader.arrived()))
    assert seen == [11, *[10] * 8, 5]


def test_retained_messages_that_take_long_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that found nothing does not end the search, and other clients are heard meanwhile."""
    monkeypatch.setattr("taipan.broker.session.replay.REPLAY_STEPS", 10)
    node = FakeNode()
    for number in range(200):
        node.publish(f"{number}/a", b"", retain=True)
        node.publish(f"{number}/a", b"x", retain=True)
    node.publish("199/b", b"found", retain=True)
    reader = node.connect("r")
    reader.feed(Subscribe(1, [TopicFilter("+/b")]), Subscribe(2, [TopicFilter("nothing/+")]))
    turns = node.loop.run()
    assert turns > 20
    packets = reader.arrived()
    assert [each.payload for each in packets if isinstance(each, Publish)] == [b"found"]
    assert reader.session.replays is None


def test_retained_messages_stop_with_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taipan.broker.session.replay.REPLAY_STEPS", 10)
    node = FakeNode()
    for number in range(200):
        node.publish(f"{number}/a", b"x", retain=True)
    reader = node.connect("r")
    reader.feed(Subscribe(1, [TopicFilter("+/b")]))
    node.loop.turn()
    reader.transport.reset()
    assert node.loop.run() < 5


def test_retained_messages_go_on_after_acknowledgements() -> None:
    """[MQTT-3.3.4-9]: never more than the window, nothing lost to the queue's bound."""
    node = FakeNode({"max_inflight": 3, "max_queued_messages": 1})
    for number in range(50):
        node.publish(f"r/{number}", b"%d" % number, 1, retain=True)
    reader = node.connect("r")
    assert reader.subscribe("r/#", qos=1) == [1]
    seen: list[bytes] = []
    while messages := reader.messages():
        assert len(messages) <= 3
        assert all(each.retain for each in messages)
        seen += [each.payload for each in messages]
        reader.puback(*[each.packet_id for each in messages])
    assert sorted(seen, key=int) == [b"%d" % number for number in range(50)]
    assert node.metrics.delivery_dropped == 0


def test_retained_messages_wait_for_a_full_socket() -> None:
    node = FakeNode()
    for number in range(20):
        node.publish(f"r/{number}", b"x" * 100_000, retain=True)
    reader = node.connect("r")
    reader.transport.block()
    reader.send(Subscribe(1, [TopicFilter("r/#")]))
    assert reader.session.replays is not None
    reader.transport.unblock()
    assert len(reader.received()) == 21
    assert node.metrics.delivery_dropped == 0
