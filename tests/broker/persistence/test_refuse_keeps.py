"""queue_full = "refuse": what was acknowledged stays in a full queue, whoever comes with more."""

from typing import Any

import pytest

from taipan.broker.mqtt.packets import Ack, Subscribe, TopicFilter, Will
from tests.support.durable_fake_node import DurableFakeNode

from ..store.test_recovery import subscribed

pytestmark = pytest.mark.asyncio


async def full_node(**config: Any) -> tuple[DurableFakeNode, Any]:
    """Session ``r`` is away and its queue is full of 0, 1 and 2; the node and who published them."""
    node = DurableFakeNode({"max_queued_messages": 3, "queue_full": "refuse", "queue_qos0": True}, **config)
    (await subscribed(node)).vanish()
    writer = await node.connect_durable("w")
    for number in range(4):
        writer.publish("t/1", b"%d" % number, 1, number + 1)
    node.store()
    acks = [each for each in writer.received() if isinstance(each, Ack)]
    assert [each.reason_code for each in acks] == [0, 0, 0, 0x97]
    return node, writer


def held(node: DurableFakeNode) -> list[bytes]:
    session = node.broker.sessions.get("r")
    assert session is not None
    return [delivery.message.payload for delivery in session.queue or ()]


async def test_a_will_comes_on_top() -> None:
    node, _ = await full_node()
    other = await node.connect_durable("x", will=Will("t/will", b"gone", 1, False, {}))
    other.vanish()
    node.store()
    assert held(node) == [b"0", b"1", b"2", b"gone"]


async def test_a_message_of_qos_0_is_dropped() -> None:
    node, writer = await full_node()
    writer.publish("t/1", b"zero", 0)
    node.store()
    assert held(node) == [b"0", b"1", b"2"]


async def test_a_delayed_message_comes_on_top() -> None:
    node, writer = await full_node(delayed={"enabled": True})
    writer.publish("$delayed/5/t/1", b"late", 1, 9)
    node.store()
    node.pass_time(6)
    assert held(node) == [b"0", b"1", b"2", b"late"]


async def test_a_message_of_the_node_comes_on_top() -> None:
    node, _ = await full_node()
    node.publish("t/1", b"node", 1)
    assert held(node) == [b"0", b"1", b"2", b"node"]


async def test_retained_messages_wait_for_their_turn() -> None:
    node = DurableFakeNode({"max_queued_messages": 3, "queue_full": "refuse", "max_inflight": 1})
    reader = await subscribed(node)
    writer = await node.connect_durable("w")
    for number in range(5):
        writer.publish(f"ret/{number}", b"ret", 1, number + 20, retain=True)
    for number in range(4):
        writer.publish("t/1", b"%d" % number, 1, number + 1)
    node.store()
    reader.send(Subscribe(9, [TopicFilter("ret/#", 1)]))
    node.store()
    assert held(node)[:3] == [b"1", b"2", b"3"]
